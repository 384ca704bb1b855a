"""`offtrace bench`."""

import math
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from offtrace import bench as library
from offtrace.bench import Result, Row
from offtrace.cli.options import option
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console, print_json
from offtrace.cli.tables import new_table

BUSY_CORES = 0.1
"""Cores kept busy by other processes above which a row gets a warning."""


def bench(
    names: Annotated[tyro.conf.Positional[tuple[str, ...]], option("NAME …", "all")] = (),
    quick: bool = False,
    output: Path = Path("bench-results"),
    list: Annotated[bool, tyro.conf.arg(name="list")] = False,
    json: bool = False,
) -> None:
    """Measure this machine's speed beside the peers that are installed.

    Times are medians of interleaved repeats. Compare the ratios: they hold across machines better than the times.

    Example: offtrace bench return_operator --quick

    Args:
        names: Benchmarks to run.
        quick: Run only the small sizes, which take seconds.
        output: Folder for one JSON file per benchmark.
        list: Print the names of the benchmarks and exit.
        json: Print the results as JSON.
    """
    if list:
        for name in library.names():
            print(f"{name:20} {library.load(name).question}")
        return
    console = Console(stderr=json)
    benchmarks = [library.load(name) for name in names or library.names()]
    results = [run_and_print(benchmark, quick, output, console) for benchmark in benchmarks]
    if json:
        print_json([result.as_dict() for result in results])


def run_and_print(benchmark: library.Benchmark, quick: bool, output: Path | None, console: Console) -> Result:
    """Run a benchmark and print its table and notes, also of the rows so far if it is interrupted."""
    result = None
    try:
        with ProgressBar(benchmark.name) as bar:
            for so_far in library.run(benchmark, quick=quick, output=output, progress=bar.update):
                result = so_far
    finally:
        if result is not None:
            has_times = any(row.timings for row in result.rows)
            shown = table(result) if has_times else Text(benchmark.question)
            console.print(shown, *map(Text, notes(result)), sep="\n")
    assert result is not None, "a benchmark has rows"
    return result


def short_time(seconds: float) -> str:
    """Return a time in µs, ms or s.

    >>> short_time(0.0000035), short_time(0.0123), short_time(75)
    ('3.50 µs', '12.3 ms', '75.0 s')
    """
    if seconds < 1e-3:
        return f"{significant(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{significant(seconds * 1e3)} ms"
    return f"{significant(seconds)} s"


def significant(value: float) -> str:
    """Return a number with three significant digits and no exponent.

    >>> significant(0.512), significant(28.64), significant(1234567)
    ('0.512', '28.6', '1,234,567')
    """
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}"


def table(result: Result) -> Table:
    """Return a table of times, their spread, and how many times faster ours is: one section per row."""
    benchmark = result.benchmark
    headings = list(dict.fromkeys(heading for row in result.rows for heading in (*row.ratios, *row.columns)))
    title = benchmark.question
    if not result.complete:
        title += " (interrupted)"
    caption = "Medians ± half the quartiles' distance; ÷: time over the time of ours"
    shown = new_table(title, caption, is_dense=True)
    shown.add_column("", no_wrap=True)
    ratios = {name: f"÷ {name}" for name in benchmark.ours}
    for heading in ("time", "±", *(ratios.get(name, name) for name in headings)):
        shown.add_column(heading, justify="right", vertical="bottom")
    for row in result.rows:
        shown.add_section()
        shown.add_row(Text(row.row, style="bold"))
        for name, timing in row.timings.items():
            cells = [_cell(row, heading, name) for heading in headings]
            spread = f"{(timing.high - timing.low) / timing.median / 2:.0%}"
            style = "bold" if name in benchmark.ours else ""
            shown.add_row(Text(f"  {name}", style=style), short_time(timing.median), spread, *cells)
    return shown


def _cell(row: Row, heading: str, name: str) -> Text:
    ratio = row.ratios.get(heading, {}).get(name)
    value = row.columns.get(heading, {}).get(name)
    if ratio is not None and name != heading:
        return Text(f"{significant(ratio)}×", style="red" if ratio < 1 else "green")
    if value is not None:
        return Text(f"{value:.0%}" if heading == "of floor" else significant(value))
    return Text("")


def notes(result: Result) -> list[str]:
    """Return a line per contender that was left out, and one for rows measured while other processes were busy."""
    rows: dict[str, list[str]] = {}
    for row in result.rows:
        for name, reason in row.left_out.items():
            rows.setdefault(f"Left out: {name} ({reason})", []).append(row.row)
        if row.others is not None and row.others > BUSY_CORES:
            rows.setdefault("Other processes were busy: measure again when they are idle", []).append(row.row)
    lines = []
    for note, labels in rows.items():
        is_everywhere = len(labels) == len(result.rows)
        lines.append(note if is_everywhere else f"{note}, at {', '.join(labels)}")
    return lines
