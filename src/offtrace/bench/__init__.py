"""Benchmarks: how fast something is beside its peers, measured together on this machine.

A file in `benchmarks/` asks one question and defines one `BENCHMARK`; `run` measures it, shows the table and
keeps every number as JSON. All contenders of a row are checked against one answer, then measured in turns
(repeat 1 of each, repeat 2 of each, …), so that a machine that slows down slows down for everybody.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Function = Callable[[], object]
MIN_REPEATS = 7
CROWDED = 0.1
"""From so many cores kept busy by others on, a row comes with a warning."""
LIBRARIES = ("offtrace", "numpy", "numba", "scipy", "jax", "jaxlib", "torch", "triton", "rlax", "gymnasium")


class LeftOut(Exception):
    """Raised by a contender that does not enter a row; its text is the reason, shown as a note."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median of the repeats, their quartiles, and each; a repeat is `calls` calls."""

    median: float
    low: float
    high: float
    repeats: int
    calls: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Benchmark:
    """One question, the sizes it is asked at, and who answers it.

    `rows` are problem sizes, cheap ones first; `problem(row)` makes the data. A contender maps the data to
    the function that is timed, or leaves the row by raising `LeftOut(reason)`. A peer that cannot be
    imported, fails, or is further from `answer(data)` than `tolerance` (of the answer's largest number) is
    left out and named in a note; one of `ours` has to be right. Ratios are a time over that of each of
    `ours`. `floors` are times nobody can be under (reading the bytes once, say): measured alongside,
    unchecked; `of floor` is the lowest of them over a time. `columns` are further numbers from (row, seconds
    per call), such as steps per second; `measures` are some from (row, name), such as the memory that a process of
    a contender's own takes. A quick run takes the first `quick_rows` rows, fewer and shorter
    repeats, and leaves out the `slow` contenders.

    >>> sums = Benchmark(
    ...     name="sums", question="Who adds n numbers fastest?", rows=(10, 1000), problem=np.arange,
    ...     answer=np.sum, ours=("ours",), min_time=1e-4,
    ...     contenders={"ours": lambda x: x.sum, "loop": lambda x: lambda: sum(x)})
    >>> list(measure_row(sums, 10).ratios["ours"])
    ['ours', 'loop']
    """

    name: str
    question: str
    rows: tuple[Any, ...]
    problem: Callable[[Any], Any]
    contenders: Mapping[str, Callable[[Any], Function]]
    ours: tuple[str, ...]
    answer: Callable[[Any], Any] | None = None
    tolerance: float = 1e-4
    floors: Mapping[str, Callable[[Any], Function]] = field(default_factory=dict)
    columns: Mapping[str, Callable[[Any, float], float]] = field(default_factory=dict)
    measures: Mapping[str, Callable[[Any, str], float]] = field(default_factory=dict)
    repeats: int = 9
    min_time: float = 0.02
    quick_rows: int = 3
    slow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = {*self.ours, *self.slow} - set(self.contenders)
        if unknown:
            raise ValueError(f"`ours` and `slow` must name contenders; these are none: {sorted(unknown)}")
        if set(self.floors) & set(self.contenders):
            raise ValueError("`floors` and `contenders` must have different names")


@dataclass(frozen=True)
class Row:
    """What was measured at one size.

    `ratios[own][name]` is the time of `name` over that of `own`, one of ours; `columns[heading][name]` is
    further numbers; `left_out[name]` is the reason why somebody is missing. `others` is how many cores other
    processes kept busy meanwhile (None where that is unknown): contenders with threads suffer most from it.
    """

    row: str
    timings: Mapping[str, Timing]
    ratios: Mapping[str, Mapping[str, float]]
    columns: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]
    others: float | None = None


@dataclass(frozen=True)
class Result:
    """The rows measured so far; `complete` is False until the last one is there."""

    benchmark: Benchmark
    quick: bool
    date: str
    machine: Mapping[str, Any]
    rows: tuple[Row, ...] = ()
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Every number, in types that JSON has."""
        question = {name: getattr(self.benchmark, name) for name in ("name", "question", "ours")}
        facts = {name: getattr(self, name) for name in ("quick", "complete", "date", "machine")}
        floors = list(self.benchmark.floors)
        return question | facts | {"floors": floors, "rows": [asdict(row) for row in self.rows]}


# -- measuring -----------------------------------------------------------------------------------------------


def measure(function: Function, *, repeats: int = 9, min_time: float = 0.02) -> Timing:
    """The time of one call: after a warm-up, `repeats` repeats of at least `min_time` seconds each.

    >>> measure(lambda: sum(range(100)), min_time=0.001).repeats
    9
    """
    return measure_together({"": function}, repeats=repeats, min_time=min_time)[""]


def measure_together(
    functions: Mapping[str, Function],
    *,
    repeats: int = 9,
    min_time: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Timing]:
    """The time of one call of each function, in turns: repeat 1 of each, repeat 2 of each, …

    The first calls (compilation) are not counted. `progress` is called after each repeat of each function.
    """
    if repeats < MIN_REPEATS:
        raise ValueError(f"`repeats` must be at least {MIN_REPEATS}, or the median says little; got {repeats}")
    calls = {name: _calls_per_repeat(function, min_time, clock) for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            if calls[name] > 1:
                function()  # the others have emptied the caches: that is not this one's cost
            seconds[name].append(_elapsed(function, calls[name], clock) / calls[name])
            progress()
    quartiles = {name: np.quantile(seconds[name], (0.5, 0.25, 0.75)).tolist() for name in functions}
    return {name: Timing(*quartiles[name], repeats, calls[name], tuple(seconds[name])) for name in functions}


def _calls_per_repeat(function: Function, min_time: float, clock: Callable[[], float]) -> int:
    """How many calls last `min_time`; by the quicker of two trials, since the first may compile."""
    calls = 1
    while (elapsed := min(_elapsed(function, calls, clock) for _ in range(2))) < min_time:
        needed = math.ceil(1.1 * calls * min_time / max(elapsed, 1e-9))
        calls = min(max(needed, calls + 1), 100 * calls)
    return calls


def _elapsed(function: Function, calls: int, clock: Callable[[], float]) -> float:
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in itertools.repeat(None, calls):
            function()
        return clock() - start
    finally:
        if collecting:
            gc.enable()


def measure_row(
    benchmark: Benchmark, row: Any, *, quick: bool = False, progress: Callable[[], object] = lambda: None
) -> Row:
    """Prepare and check every contender of one row, then measure them, and the floors, together."""
    problem = benchmark.problem(row)
    answer = None if benchmark.answer is None else np.asarray(benchmark.answer(problem), dtype=np.float64)
    functions: dict[str, Function] = {}
    left_out: dict[str, str] = {}
    for name, prepare in benchmark.contenders.items():
        try:
            if quick and name in benchmark.slow:
                raise LeftOut("not in a quick run")
            function = prepare(problem)
            output = function()
            if answer is not None:
                _check(output, answer, benchmark.tolerance)
            functions[name] = function
        except LeftOut as reason:
            left_out[name] = str(reason)
        except ImportError as error:
            if (error.name or "").startswith("offtrace"):
                raise  # a part of ours is broken, not absent
            left_out[name] = f"not installed: {error}"
        except Exception as error:
            if name in benchmark.ours:
                raise
            left_out[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    functions |= {name: prepare(problem) for name, prepare in benchmark.floors.items()}
    repeats, min_time = (MIN_REPEATS, benchmark.min_time / 4) if quick else (benchmark.repeats, benchmark.min_time)
    start, busy, own = time.perf_counter(), _busy_seconds(), time.process_time()
    timings = measure_together(functions, repeats=repeats, min_time=min_time, progress=progress)
    wall, own, busy_now = time.perf_counter() - start, time.process_time() - own, _busy_seconds()
    others = None if busy is None or busy_now is None else max(0.0, (busy_now - busy - own) / wall)
    times = {name: timing.median for name, timing in timings.items() if name not in benchmark.floors}
    present = [own for own in benchmark.ours if own in times]
    ratios = {own: {name: seconds / times[own] for name, seconds in times.items()} for own in present}
    columns: dict[str, dict[str, float]] = {}
    if benchmark.floors:
        floor = min(timings[name].median for name in benchmark.floors)
        columns["of floor"] = {name: floor / seconds for name, seconds in times.items()}
    for heading, value in benchmark.columns.items():
        columns[heading] = {name: value(row, seconds) for name, seconds in times.items()}
    for heading, measured in benchmark.measures.items():
        columns[heading] = {name: measured(row, name) for name in times}
    return Row(str(row), timings, ratios, columns, left_out, others)


def _busy_seconds() -> float | None:
    """Processor time used on this machine by everybody, and by its neighbours on the same host."""
    with suppress(OSError):
        user, nice, system, _, _, *others = Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]
        return sum(map(int, (user, nice, system, *others))) / os.sysconf("SC_CLK_TCK")
    return None


def _check(output: Any, answer: np.ndarray, tolerance: float) -> None:
    if hasattr(output, "detach"):  # a PyTorch tensor, on whatever device
        output = output.detach().cpu()
    given = np.asarray(output, dtype=np.float64)
    if given.shape != answer.shape:
        raise ArithmeticError(f"wrong answer: its shape is {given.shape}, not {answer.shape}")
    error = float(np.max(np.abs(given - answer), initial=0.0))
    allowed = tolerance * float(np.max(np.abs(answer), initial=0.0))
    if not error <= allowed:  # so written, NaN is refused
        raise ArithmeticError(f"wrong answer: off by {error:.3g}, allowed is {allowed:.3g}")


# -- finding and running -------------------------------------------------------------------------------------


def folder() -> Path:
    """Where the benchmark files are: inside an installed package, or beside `src` in the repository."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "benchmarks", package.parents[1] / "benchmarks"):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"no folder `benchmarks` in {package} or {package.parents[1]}: reinstall offtrace")


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(path.stem for path in folder().glob("*.py"))


def load(name: str) -> Benchmark:
    """The `BENCHMARK` of the file `<name>.py` in `folder()`."""
    if name not in names():
        raise ValueError(f"no benchmark is called `{name}`; there are: {', '.join(names())}")
    path = folder() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"offtrace_benchmark_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if module.BENCHMARK.name != name:
        raise ValueError(f"{path} defines the benchmark `{module.BENCHMARK.name}`; file and name must agree")
    return module.BENCHMARK


def run(
    selection: Sequence[str] = (),
    *,
    quick: bool = False,
    output: str | Path | None = "bench-results",
    console: Console | None = None,
) -> list[Result]:
    """Measure the benchmarks named in `selection` (all, if empty) and print a table of each on `console`.

    After every row all numbers so far are in `<output>/<name>.json` (`<name>-quick.json` for a quick run,
    which does not replace a full one); `output=None` writes nothing. An interruption prints what there is,
    then goes on upwards.
    """
    console = console or Console()
    benchmarks = [load(name) for name in selection or names()]
    return [_run(benchmark, quick, None if output is None else Path(output), console) for benchmark in benchmarks]


def _run(benchmark: Benchmark, quick: bool, output: Path | None, console: Console) -> Result:
    result = Result(benchmark, quick, datetime.now(UTC).isoformat(timespec="seconds"), machine())
    rows = benchmark.rows[: benchmark.quick_rows] if quick else benchmark.rows
    steps = len(benchmark.contenders) + len(benchmark.floors)
    steps *= MIN_REPEATS if quick else benchmark.repeats
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("left:"), TimeRemainingColumn())
    try:
        with Progress(*bar, console=console, transient=True) as progress:
            task = progress.add_task("", total=steps * len(rows))
            advance = functools.partial(progress.advance, task)
            for done, row in enumerate(rows, start=1):
                progress.update(task, description=f"{benchmark.name} {row}")
                measured = measure_row(benchmark, row, quick=quick, progress=advance)
                progress.update(task, completed=steps * done)  # whoever was left out made no steps
                result = replace(result, rows=(*result.rows, measured), complete=done == len(rows))
                if output is not None:
                    write(result, output)
    finally:
        if result.rows:
            shown = [table(result)] if any(row.timings for row in result.rows) else [Text(benchmark.question)]
            console.print(*shown, *map(Text, notes(result)), sep="\n")
    return result


def write(result: Result, output: Path) -> None:
    """Write the JSON beside its place, then move it there: a reader never sees half a file."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{result.benchmark.name}{'-quick' if result.quick else ''}.json"
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_text(json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)


def machine() -> dict[str, Any]:
    """What the numbers depend on: processor, cores, how busy they are, Python and library versions."""
    model = platform.processor()
    with suppress(OSError):
        facts = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
        model = next((value.strip() for name, _, value in facts if name.strip() == "model name"), model)
    versions = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "libraries": versions,
    }


# -- showing -------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """A time with a unit that suits it.

    >>> duration(0.0000035), duration(0.0123), duration(75)
    ('3.50 µs', '12.3 ms', '75.0 s')
    """
    unit = "µs" if seconds < 1e-3 else "ms" if seconds < 1 else "s"
    return f"{significant(seconds * {'µs': 1e6, 'ms': 1e3, 's': 1.0}[unit])} {unit}"


def significant(value: float) -> str:
    """Three significant digits, never an exponent.

    >>> significant(0.512), significant(28.64), significant(1234567)
    ('0.512', '28.6', '1,234,567')
    """
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(digits, 0)}f}"


def table(result: Result) -> Table:
    """Times, their spread, and how many times faster ours is; one section per row, for 80 columns."""
    benchmark = result.benchmark
    headings = list(dict.fromkeys(heading for row in result.rows for heading in (*row.ratios, *row.columns)))
    title = benchmark.question if result.complete else f"{benchmark.question} (interrupted)"
    caption = "Medians ± half the quartiles' distance; ÷: time over the time of ours"
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    shown.title_justify = shown.caption_justify = "left"
    shown.add_column("", no_wrap=True)
    for heading in ("time", "±", *(f"÷ {name}" if name in benchmark.ours else name for name in headings)):
        shown.add_column(heading, justify="right", vertical="bottom")
    for row in result.rows:
        shown.add_section()
        shown.add_row(Text(row.row, style="bold"))
        for name, timing in row.timings.items():
            cells = [_cell(row, heading, name) for heading in headings]
            spread = f"{(timing.high - timing.low) / timing.median / 2:.0%}"
            style = "bold" if name in benchmark.ours else ""
            shown.add_row(Text(f"  {name}", style=style), duration(timing.median), spread, *cells)
    return shown


def _cell(row: Row, heading: str, name: str) -> Text:
    ratio, value = row.ratios.get(heading, {}).get(name), row.columns.get(heading, {}).get(name)
    if ratio is not None and name != heading:
        return Text(f"{significant(ratio)}×", style="red" if ratio < 1 else "green")
    if value is not None:
        return Text(f"{value:.0%}" if heading == "of floor" else significant(value))
    return Text("")


def notes(result: Result) -> list[str]:
    """A line for each contender that was left out, with the reason, and one for rows measured in a crowd."""
    rows: dict[str, list[str]] = {}
    for row in result.rows:
        for name, reason in row.left_out.items():
            rows.setdefault(f"Left out: {name} ({reason})", []).append(row.row)
        if row.others is not None and row.others > CROWDED:
            rows.setdefault("Other processes were busy: measure again when they are idle", []).append(row.row)
    everywhere = len(result.rows)
    return [note if len(labels) == everywhere else f"{note}, at {', '.join(labels)}" for note, labels in rows.items()]
