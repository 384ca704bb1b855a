"""A benchmark as data, and its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

Function = Callable[[], object]


class LeftOut(Exception):
    """Raised by a contender that takes no part in a row; the text is the reason, shown as a note."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, quartiles and all repeats; a repeat is `calls` calls."""

    median: float
    low: float
    high: float
    repeats: int
    calls: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Benchmark:
    """One question, the problem sizes, and the contenders.

    `rows` are problem sizes, cheap ones first; `problem(row)` makes the data. A contender maps the
    data to the function that is timed, or raises `LeftOut(reason)`. A peer that cannot be imported,
    fails, or differs from `answer(data)` by more than `tolerance` (relative to the answer's largest
    number) is left out and named in a note; an error of one of `ours` is raised. Ratios are times
    over the time of each of `ours`.

    `floors` are lower bounds of the time, such as reading the bytes once: measured alongside,
    unchecked; the column `of floor` is the lowest of them over a time. `columns` are further numbers
    from (row, seconds per call), such as steps per second; `measures` are further numbers from (row,
    name), such as the memory of a contender's process. A quick run takes the first `quick_rows` rows
    and fewer, shorter repeats, and leaves out the `slow` contenders.

    >>> import numpy as np
    >>> sums = Benchmark(
    ...     name="sums", question="Who adds n numbers fastest?", rows=(10, 1000), problem=np.arange,
    ...     answer=np.sum, ours=("ours",), min_time=1e-4,
    ...     contenders={"ours": lambda x: x.sum, "loop": lambda x: lambda: sum(x)})
    >>> list(sums.contenders)
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
            raise ValueError(f"`ours` and `slow` must name contenders; got {sorted(unknown)}.")
        if set(self.floors) & set(self.contenders):
            raise ValueError("`floors` and `contenders` must have different names.")


@dataclass(frozen=True)
class Row:
    """The measurements at one problem size.

    `ratios[own][name]` is the time of `name` over that of `own`, one of ours; `columns[heading][name]` is a further
    number; `left_out[name]` is the reason why a contender is missing. `others` is the number of cores that other
    processes kept busy meanwhile (None if unknown), which slows down contenders with threads most.
    """

    row: str
    timings: Mapping[str, Timing]
    ratios: Mapping[str, Mapping[str, float]]
    columns: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]
    others: float | None = None


@dataclass(frozen=True)
class Result:
    """The rows measured so far; `complete` is False until the last one."""

    benchmark: Benchmark
    quick: bool
    date: str
    machine: Mapping[str, Any]
    rows: tuple[Row, ...] = ()
    complete: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return every number, in types that JSON has."""
        question = {name: getattr(self.benchmark, name) for name in ("name", "question", "ours")}
        facts = {name: getattr(self, name) for name in ("quick", "complete", "date", "machine")}
        floors = list(self.benchmark.floors)
        return question | facts | {"floors": floors, "rows": [asdict(row) for row in self.rows]}
