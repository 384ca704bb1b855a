"""Results of a comparison: a table of mean scores, averages over games, statistics per algorithm."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.intervals import Interval
from offtrace.scores.scale import Array

SINGLE_RUN = "a cell has a single run, and one run has no spread; add a seed"
"""Reason for a missing interval."""


@dataclass(frozen=True, eq=False)
class Table:
    """Mean scores at one λ of the games with runs of every algorithm: `values`, `num_runs` (games, algorithms)."""

    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    values: Array
    num_runs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over games, (λ, algorithms) each. Where `low` and `high` are None, `reason` says why."""

    lambdas: tuple[float, ...]
    algorithms: tuple[str, ...]
    value: Array
    low: Array | None
    high: Array | None
    num_games: int
    num_runs: int
    reason: str | None = None


class Statistics(NamedTuple):
    """Statistics of one algorithm at one λ, on the scale of the inter-algorithm score."""

    algorithm: str
    mean: Interval
    """Mean with Student's t interval, as in `Comparison.averages`; the next three intervals are bootstrapped."""
    iqm: Interval
    """Interquartile mean of runs clipped to [0, 1]."""
    optimality_gap: Interval
    """Optimality gap of runs clipped to [0, 1]."""
    improvement: Interval | None
    """Probability that one of its runs beats one of the baseline's; None for the baseline, or without one."""
    area: Interval | None
    """Mean of the areas under learning curves; None without curves."""
