"""The names and the plain records of a comparison."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.intervals import Interval
from offtrace.scores.scale import Array

Stretch = Literal["final", "early", "area", "evaluation"]

BASELINES = ("dqn", "one_step")
"""They have no λ: one run is theirs at every λ, stored at 0."""
ORDER = ("retrace", "tree_backup", "q_lambda", "q_star", *BASELINES)
SINGLE = "some cell has a single run, and one run has no spread; add a seed"
"""Why there is no interval."""


def is_baseline(name: str) -> bool:
    """Whether an algorithm, or the one that it is a variant of, has no λ.

    >>> is_baseline("dqn.exploration.double"), is_baseline("retrace.greedy")
    (True, False)
    """
    return name.partition(".")[0] in BASELINES


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The paper's order of merit, then others by name, and baselines last; variants right after what they vary.

    >>> in_order(["dqn", "retrace.greedy", "watkins", "q_star", "retrace"])
    ('retrace', 'retrace.greedy', 'q_star', 'watkins', 'dqn')
    """

    def place(name: str) -> tuple[bool, int, str, str]:
        plain = name.partition(".")[0]
        merit = ORDER.index(plain) if plain in ORDER else len(ORDER)
        return is_baseline(name), merit, plain, name

    return tuple(sorted(names, key=place))


class Key(NamedTuple):
    """A cell."""

    game: str
    algorithm: str
    lambda_: float


@dataclass(frozen=True, eq=False)
class Table:
    """Mean scores at one λ, of games with runs of every algorithm: `values` and `num_runs` (games, algorithms)."""

    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    values: Array
    num_runs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over games, (λ, algorithms) each; where `low` and `high` are None, `reason` says why."""

    lambdas: tuple[float, ...]
    algorithms: tuple[str, ...]
    value: Array
    low: Array | None
    high: Array | None
    num_games: int
    num_runs: int
    reason: str | None = None


class Statistics(NamedTuple):
    """Of one algorithm at one λ, on the scale of the inter-algorithm score."""

    algorithm: str
    mean: Interval
    """With Student's t interval, as `Comparison.averages` has it; the next three are bootstrapped."""
    iqm: Interval
    """Of runs cut off at 0 and 1, as is the next."""
    optimality_gap: Interval
    improvement: Interval | None
    """How likely one of its runs beats one of the baseline's; None for the baseline itself, or without one."""
    area: Interval | None
    """The mean for areas under learning curves; None where there are no curves."""
