"""Parts of a log: whole episodes, on which every estimator works alone, and whose sums are added up.

    log      ┃ episodes 0 … 51,203 ┃ … 103,877 ┃ … 150,000 ┃        cut every 262,144 rows or so
    part            0                    1           2
    a sweep       Σ rows       +       Σ rows   +  Σ rows            added in this order

The cut depends on the log alone, and so does the order of the sums. So threads and a Ray cluster
give the same numbers, and what a sweep needs besides the log is small.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from offtrace.evaluation.log import Log
from offtrace.threads import num_cores

ROWS_PER_PART = 1 << 18
"""Rows after which a part ends, with the episode that they are in."""


@dataclass
class Part:
    """Whole episodes of a log, and what has been prepared for them."""

    log: Log
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    """(E,) per name: the fold or the group of every episode."""
    mu_a: np.ndarray | None = None
    """(N,) μ(a_t|x_t), as recorded or as estimated."""
    steps: Any = None
    """The rows as a sweep reads them, for one target policy."""


class Engine(Protocol):
    """Where the parts are, and how a function is applied to all of them."""

    sizes: list[int]
    """Episodes per part."""

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Return `function(part, *common)` of every part, in order.

        With `each`, its entry for the part is the last argument.
        """
        ...


class LocalEngine:
    """The parts in this process, with a thread per core."""

    def __init__(self, log: Log) -> None:
        self.parts = [Part(take(log, *bounds)) for bounds in cuts(log)]
        self.sizes = [part.log.num_episodes for part in self.parts]

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> list[Any]:
        own: list[tuple[Any, ...]] = [()] * len(self.parts)
        if each is not None:
            own = [(one,) for one in each]
        num_threads = min(num_cores(), len(self.parts))
        if num_threads == 1:
            return [function(part, *common, *more) for part, more in zip(self.parts, own, strict=True)]
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(lambda part, more: function(part, *common, *more), self.parts, own))


def cuts(log: Log) -> list[tuple[int, int]]:
    """Return the first and the last episode (exclusive) of every part."""
    wanted = np.arange(ROWS_PER_PART, log.num_steps, ROWS_PER_PART)
    inner = np.searchsorted(log.first, wanted)
    bounds = np.unique([0, *inner, log.num_episodes]).tolist()
    return list(pairwise(bounds))


def take(log: Log, start: int, end: int) -> Log:
    """Return the episodes from `start` to `end` (exclusive), as views."""
    rows = slice(log.first[start], log.first[end])
    columns = {}
    for one in fields(Log):
        value = getattr(log, one.name)
        if isinstance(value, np.ndarray) and one.name != "first":
            columns[one.name] = value[rows]
    first = log.first[start : end + 1] - log.first[start]
    return Log(first=first, behaviour_names=log.behaviour_names, **columns)


def split(engine: Engine, values: np.ndarray) -> list[np.ndarray]:
    """Return an array per episode, (E, …), cut into those of the parts."""
    return np.split(values, np.cumsum(engine.sizes)[:-1])


def total(results: Sequence[Any]) -> Any:
    """Return the sum of the results of all parts, in order."""
    out = results[0]
    for one in results[1:]:
        out = out + one
    return out
