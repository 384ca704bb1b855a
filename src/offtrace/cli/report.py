"""`offtrace report RESULTS…`."""

import json as json_module
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from offtrace.cli.numbers import printable
from offtrace.cli.options import option
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console, print_json, warn
from offtrace.cli.tables import VERDICT_STYLES, new_table


def report(
    results: Annotated[
        tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RESULTS …", help_behavior_hint="(required)")
    ],
    output: Path = Path("report"),
    formats: Annotated[tuple[str, ...], option("FORMAT …")] = ("png", "svg", "pdf"),
    json: bool = False,
) -> None:
    """Make a page with tables and figures from stored results: the algorithms best first, with their differences.

    Several results files are read as one. A sweep may still be writing to them: the page shows what
    is there, and says how much is missing. If the paper's algorithms are among them, there is a
    verdict on each of its claims, and its own tables are on the same page.

    Example: offtrace report results.sqlite more.sqlite --output report

    Args:
        results: Results files of `offtrace sweep`.
        output: Folder for index.html, figures, tables and data; created if it does not exist.
        formats: Formats of the figures: png, svg, pdf.
        json: Print the rankings and verdicts as JSON.
    """
    if not results:
        raise ValueError("`results` must not be empty. Name a file: `offtrace report results.sqlite`.")
    for path in results:
        if not path.exists():
            raise ValueError(f"`results` must be existing files; got {str(path)!r}. `offtrace sweep` makes one.")
    try:
        from offtrace.report import folder
    except ImportError as error:
        raise ValueError(f"`report`: {error}") from None
    from offtrace.cli.report_ranking import print_ranking
    from offtrace.experiments.results import studies
    from offtrace.experiments.store import read
    from offtrace.report.findings import materials_of, scores_of
    from offtrace.report.overview import findings_of, is_about_the_paper
    from offtrace.report.rankings import study_rankings
    from offtrace.report.theory import theory_section

    console = Console(stderr=json)
    runs = read(results, warn=warn)
    if not runs:
        names = ", ".join(repr(str(path)) for path in results)
        raise ValueError(f"`results` must have at least one run; {names} has none. Run `offtrace sweep` first.")
    found = studies(runs)
    with ProgressBar("comparing") as bar:
        page = folder.write(
            output,
            found,
            extra_sections=[theory_section()] if is_about_the_paper(found) else [],
            command=shlex.join(["offtrace", *map(str, sys.argv[1:])]),
            progress=lambda done, total: bar.update(done, total, "drawing"),
            formats=formats,
        )
    told = json_module.loads((page.parent / "data" / "claims.json").read_text(encoding="utf-8"))
    if json:
        for study, stored in zip(told, found, strict=False):
            study["rankings"] = study_rankings(stored)
            study["num_by_status"] = dict(stored.num_by_status)
        print_json({"page": str(page), "studies": told})
    else:
        for study in found:
            for stretch in scores_of(study.comparison):
                print_ranking(study, stretch, page, console)
        for study in told:
            if study["claims"]:
                console.print(_claim_table(study), "")
    print_troubles(runs, console)
    console.print(_status(runs), markup=False, highlight=False)
    print_findings(findings_of(found, materials_of(found)), console)
    console.print(f"Open [bold]{escape(str(page))}[/bold]", highlight=False, soft_wrap=True)


def _status(runs: Sequence[Any]) -> str:
    by_status = Counter(run.status for run in runs)
    others = {
        "diverged": by_status["diverged"],
        "failed": by_status["failed"],
        "not done yet": by_status["missing"] + by_status["running"],
    }
    rest = "".join(f", {number} {state}" for state, number in others.items() if number)
    return f"{by_status['done']} of {len(runs)} runs are done{rest}."


def print_troubles(runs: Sequence[Any], console: Console) -> None:
    """Print a line per reason for which runs diverged or failed, and per kind of event, each with its first run."""
    from offtrace.experiments import reasons

    groups_by_kind = {
        "diverged": reasons.divergences(runs),
        "failed": reasons.failures(runs),
        "noted": reasons.events(runs),
    }
    for kind, groups in groups_by_kind.items():
        for group in groups[: reasons.MOST]:
            line = f"{kind}: {reasons.first_runs(group.runs, 1)}: {group.reason}"
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
        if len(groups) > reasons.MOST:
            console.print(f"{kind}: {len(groups) - reasons.MOST:,} other reasons", highlight=False)


def print_findings(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        console.print(Padding(Text(sentence), (0, 0, 0, 2)))


def _claim_table(study: dict[str, Any]) -> Table:
    """Return a table with a row per claim: its verdict and difference by each score."""
    from offtrace.report.findings import SHORT_SCORES

    name = "".join(sign if sign.isprintable() else "\ufffd" for sign in study["study"])
    kinds = list(dict.fromkeys(row["score"] for row in study["claims"]))
    table = new_table(name)
    table.add_column("claim of the paper")
    for kind in kinds:
        table.add_column(SHORT_SCORES[kind] if len(kinds) > 1 else "verdict")
    by_text: dict[str, dict[str, dict[str, Any]]] = {}
    for row in study["claims"]:
        by_text.setdefault(row["claim"], {})[row["score"]] = row
    for text, rows in by_text.items():
        table.add_row(text, *(_verdict(rows.get(kind)) for kind in kinds))
    return table


def _verdict(row: dict[str, Any] | None) -> Text:
    from offtrace.report.findings import SIGNS

    if row is None:
        return Text("")
    verdict = row["verdict"]
    return Text(f"{SIGNS[verdict]} {_difference(row)}", VERDICT_STYLES[verdict])


def _difference(row: dict[str, Any]) -> str:
    from offtrace.report.wording import signed_text

    if row["difference"] is None:
        return "–"
    if row["low"] is None:
        return signed_text(row["difference"])
    return f"{signed_text(row['difference'])} ({signed_text(row['low'])}, {signed_text(row['high'])})"
