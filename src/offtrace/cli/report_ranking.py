"""The algorithms of a study as `offtrace report` prints them: best first, each against the best."""

from pathlib import Path
from typing import Any

from rich.text import Text

from offtrace.cli.numbers import printable
from offtrace.cli.streams import Console
from offtrace.cli.tables import new_table
from offtrace.report.findings import SCORE_NAMES
from offtrace.report.rankings import entry_name, interval_text, method_text, scale_text, value_text
from offtrace.scores import Entry, Ranking, ranking

MOST = 15
"""Algorithms in a table; the page and the CSV file have all."""
STYLES = {"better": "green", "worse": "red", "cannot tell": "dim", None: "bold"}


def print_ranking(study: Any, stretch: Any, page: Path, console: Console) -> None:
    """Print the table of a score; nothing for a single algorithm."""
    found = ranking(study.comparison, stretch)
    if len(found.entries) < 2:
        return
    caption = f"{scale_text(found)} {method_text(found)}"
    if study.protocol:
        caption = f"Protocol: {printable(study.protocol_text)}. {caption}"
    if len(found.entries) > MOST:
        caption = f"The best {MOST} of {len(found.entries)}; {page} has all. {caption}"
    table = new_table(f"{printable(study.comparison.name)}, best first: {SCORE_NAMES[stretch]}", caption)
    table.add_column("algorithm")
    table.add_column("average", justify="right")
    table.add_column("minus the best", justify="right")
    table.add_column("verdict")
    for entry in found.entries[:MOST]:
        style = STYLES[entry.verdict]
        table.add_row(
            Text(printable(entry_name(entry))),
            value_text(found, entry.average.value),
            _difference(found, entry),
            Text(entry.verdict or "best", style),
        )
    console.print(table, "")


def _difference(found: Ranking, entry: Entry) -> str:
    if entry.to_best is None:
        return "" if entry.verdict is None else "–"
    text = value_text(found, entry.to_best.value, signed=True)
    interval = interval_text(found, entry.to_best).replace(" to ", ", ")
    return f"{text} ({interval})" if interval else text
