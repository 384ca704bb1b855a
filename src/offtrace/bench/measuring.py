"""Timing of functions in turns, and of the contenders of one row."""

import gc
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from offtrace.bench.records import Benchmark, Function, LeftOut, Row, Timing

MIN_REPEATS = 7


def measure(function: Function, *, repeats: int = 9, min_time: float = 0.02) -> Timing:
    """Measure the time of one call: after a warm-up, `repeats` repeats of at least `min_time` seconds each.

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
    """Measure the time of one call of each function, in turns: repeat 1 of each, repeat 2 of each, …

    The first calls (compilation) are not counted. `progress` is called after each repeat of each function.
    """
    if repeats < MIN_REPEATS:
        raise ValueError(f"`repeats` must be at least {MIN_REPEATS} for a stable median; got {repeats}.")
    calls = {name: _calls_per_repeat(function, min_time, clock) for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            if calls[name] > 1:
                function()  # the other functions have emptied the caches
            seconds[name].append(_elapsed(function, calls[name], clock) / calls[name])
            progress()
    quartiles = {name: np.quantile(seconds[name], (0.5, 0.25, 0.75)).tolist() for name in functions}
    return {name: Timing(*quartiles[name], repeats, calls[name], tuple(seconds[name])) for name in functions}


def _calls_per_repeat(function: Function, min_time: float, clock: Callable[[], float]) -> int:
    """Return how many calls take `min_time`, by the faster of two trials: the first may compile."""
    calls = 1
    while (elapsed := min(_elapsed(function, calls, clock) for _ in range(2))) < min_time:
        needed = math.ceil(1.1 * calls * min_time / max(elapsed, 1e-9))
        calls = min(max(needed, calls + 1), 100 * calls)
    return calls


def _elapsed(function: Function, calls: int, clock: Callable[[], float]) -> float:
    """Return the time of `calls` calls, without garbage collection."""
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
    functions, left_out = _entrants(benchmark, problem, quick)
    floors = benchmark.floors if functions else {}  # without a contender, the machine may not have what they need
    functions |= {name: prepare(problem) for name, prepare in floors.items()}
    repeats = MIN_REPEATS if quick else benchmark.repeats
    min_time = benchmark.min_time / 4 if quick else benchmark.min_time
    with _OtherCores() as others:
        timings = measure_together(functions, repeats=repeats, min_time=min_time, progress=progress)
    times = {name: timing.median for name, timing in timings.items() if name not in benchmark.floors}
    present = [own for own in benchmark.ours if own in times]
    ratios = {own: {name: seconds / times[own] for name, seconds in times.items()} for own in present}
    columns: dict[str, dict[str, float]] = {}
    if floors:
        floor = min(timings[name].median for name in floors)
        columns["of floor"] = {name: floor / seconds for name, seconds in times.items()}
    for heading, value in benchmark.columns.items():
        columns[heading] = {name: value(row, seconds) for name, seconds in times.items()}
    for heading, measured in benchmark.measures.items():
        columns[heading] = {name: measured(row, name) for name in times}
    return Row(str(row), timings, ratios, columns, left_out, others.num_busy)


def _entrants(benchmark: Benchmark, problem: Any, quick: bool) -> tuple[dict[str, Function], dict[str, str]]:
    """Return the functions to measure, and the reasons why other contenders are left out."""
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
                _check_answer(output, answer, benchmark.tolerance)
            functions[name] = function
        except LeftOut as reason:
            left_out[name] = str(reason)
        except ImportError as error:
            if (error.name or "").startswith("offtrace"):
                raise  # a module of ours is broken, not absent
            left_out[name] = f"not installed: {error}"
        except Exception as error:
            if name in benchmark.ours:
                raise
            left_out[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return functions, left_out


class _OtherCores:
    """Measures how many cores other processes keep busy inside a `with` block."""

    num_busy: float | None = None

    def __enter__(self) -> Self:
        self._wall = time.perf_counter()
        self._own = time.process_time()
        self._all = _busy_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        wall = time.perf_counter() - self._wall
        own = time.process_time() - self._own
        busy = _busy_seconds()
        if self._all is not None and busy is not None:
            self.num_busy = max(0.0, (busy - self._all - own) / wall)


def _busy_seconds() -> float | None:
    """Return the processor time used so far by all processes of this machine, and by others on the same host."""
    with suppress(OSError):
        user, nice, system, _, _, *others = Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]
        return sum(map(int, (user, nice, system, *others))) / os.sysconf("SC_CLK_TCK")
    return None


def _check_answer(output: Any, answer: np.ndarray, tolerance: float) -> None:
    if hasattr(output, "detach"):  # a PyTorch tensor, on whatever device
        output = output.detach().cpu()
    given = np.asarray(output, dtype=np.float64)
    if given.shape != answer.shape:
        raise ArithmeticError(f"wrong answer: its shape is {given.shape}, not {answer.shape}")
    error = float(np.max(np.abs(given - answer), initial=0.0))
    allowed = tolerance * float(np.max(np.abs(answer), initial=0.0))
    if not error <= allowed:  # so that NaN is an error
        raise ArithmeticError(f"wrong answer: off by {error:.3g}, allowed is {allowed:.3g}")
