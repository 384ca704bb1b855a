"""`offtrace report`: the verb."""

import json as json_module
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from offtrace.verbs.numbers import harmless
from offtrace.verbs.streams import print_json

STYLES = {"holds": "green", "does not hold": "red", "cannot tell": "dim"}
TRACES = ("one_step", "importance_sampling", "q_lambda", "tree_backup", "retrace")


def report(
    results: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RESULTS …")],
    output: Path = Path("report"),
    formats: tuple[str, ...] = ("png", "svg", "pdf"),
    json: bool = False,
) -> None:
    """One page, tables and figures from stored results, with a verdict for each of the paper's claims.

    Several files of `offtrace sweep` are read as one. A sweep may still be writing to them: what is there is shown,
    and the page says how much is missing. The paper's own tables are on the same page.

    Example: offtrace report results.sqlite more.sqlite --output report

    Args:
        results: files that `offtrace sweep` wrote.
        output: folder for index.html, figures, tables and data; made if it is not there.
        formats: of the figures.
        json: print the verdicts as JSON, for a program to read.
    """
    if not results:
        raise ValueError("`results`: name a file: `offtrace report results.sqlite`.")
    for path in results:
        if not path.exists():
            raise ValueError(f"`results`: there is no file {str(path)!r}. `offtrace sweep` makes one.")
    try:
        from offtrace.report import folder
    except ImportError as error:
        raise ValueError(f"`report`: {error}") from None
    from offtrace.experiments.results import studies
    from offtrace.experiments.store import read

    console, aside = Console(stderr=json), Console(stderr=True)
    runs = read(
        results, warn=lambda line: aside.print(f"warning: {line}", markup=False, highlight=False, soft_wrap=True)
    )
    if not runs:
        names = ", ".join(repr(str(path)) for path in results)
        raise ValueError(f"`results` must have a run, done or not; {names} has none. Run `offtrace sweep` first.")
    found = studies(runs)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal) as shown:
        task = shown.add_task("comparing", total=None)
        page = folder.write(
            output,
            found,
            extra_sections=[theory()],
            command=shlex.join(["offtrace", *map(str, sys.argv[1:])]),
            progress=lambda done, total: shown.update(task, description="drawing", completed=done, total=total),
            formats=formats,
        )
    told = json_module.loads((page.parent / "data" / "claims.json").read_text(encoding="utf-8"))
    if json:
        counts = [dict(study.num_by_status) for study in found]
        for study, by_status in zip(told, counts, strict=False):
            study["num_by_status"] = by_status
        print_json({"page": str(page), "studies": told})
    else:
        for study in told:
            console.print(_table(study), "")
    from offtrace.report.findings import findings, materials_of

    print_troubles(runs, console)
    by = Counter(run.status for run in runs)
    others = {"diverged": by["diverged"], "failed": by["failed"], "not done yet": by["missing"] + by["running"]}
    state = "".join(f", {number} {word}" for word, number in others.items() if number)
    console.print(f"{by['done']} of {len(runs)} runs are done{state}.", markup=False, highlight=False)
    print_findings(findings(materials_of(found)), console)
    console.print(f"Open [bold]{escape(str(page))}[/bold]", highlight=False, soft_wrap=True)


def theory() -> Any:
    """What speed costs in variance on a small grid, with the traces that the paper compares."""
    from offtrace import policies
    from offtrace.mdp import grid_world
    from offtrace.operators import q_star
    from offtrace.report.sections import safety_section
    from offtrace.safety import analyze

    mdp = grid_world()
    q = q_star(mdp)
    pi, mu = policies.epsilon_greedy(q, 0.1), policies.epsilon_greedy(q, 0.5)
    return safety_section(analyze(mdp, pi=pi, mu=mu, traces=TRACES))


def print_troubles(runs: Sequence[Any], console: Console) -> None:
    """A line for each reason for which runs diverged or failed, and for what they noted, with the first of them."""
    from offtrace.experiments import reasons

    told = {"diverged": reasons.divergences(runs), "failed": reasons.failures(runs), "noted": reasons.events(runs)}
    for word, groups in told.items():
        for group in groups[: reasons.MOST]:
            line = f"{word}: {reasons.first_runs(group.runs, 1)}: {group.reason}"
            console.print(harmless(line), markup=False, highlight=False, soft_wrap=True)
        if len(groups) > reasons.MOST:
            console.print(f"{word}: {len(groups) - reasons.MOST:,} other reasons", highlight=False)


def print_findings(sentences: Sequence[str], console: Console) -> None:
    """The last thing that is printed before the page's path."""
    for sentence in sentences:
        console.print(Padding(Text(sentence), (0, 0, 0, 2)))


def _table(study: dict[str, Any]) -> Table:
    """A row for each claim, with its verdict and difference by each score."""
    from offtrace.report.findings import SHORT_SCORES, SIGNS

    name = "".join(sign if sign.isprintable() else "\ufffd" for sign in study["study"])
    kinds = list(dict.fromkeys(row["score"] for row in study["claims"]))
    table = Table("claim of the paper", title=Text(name), box=None, pad_edge=False)
    for kind in kinds:
        table.add_column(SHORT_SCORES[kind] if len(kinds) > 1 else "verdict")
    table.title_justify, table.title_style = "left", "bold"
    by_text: dict[str, dict[str, dict[str, Any]]] = {}
    for row in study["claims"]:
        by_text.setdefault(row["claim"], {})[row["score"]] = row
    for text, rows in by_text.items():
        table.add_row(text, *(_verdict(rows.get(kind), SIGNS) for kind in kinds))
    return table


def _verdict(row: dict[str, Any] | None, signs: dict[str, str]) -> Text:
    if row is None:
        return Text("")
    verdict = row["verdict"]
    return Text(f"{signs[verdict]} {_difference(row)}", STYLES[verdict])


def _difference(row: dict[str, Any]) -> str:
    if row["difference"] is None:
        return "–"
    ends = f" ({row['low']:+.2f}, {row['high']:+.2f})" if row["low"] is not None else ""
    return f"{row['difference']:+.2f}{ends}"
