"""A log: the steps of episodes as columns, and the checks that every log goes through.

One row per step. Rows may come in any order; they are kept episode after episode:

    row            0   1   2   3   4   5   6
    episode        a   a   a   b   b   c   c
    step           0   1   2   0   1   0   1
    terminated     ·   ·   ✓   ·   ·   ·   ✓
    truncated      ·   ·   ·   ·   ✓   ·   ·
    first          0           3       5       7        one more than there are episodes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

REQUIRED = ("episode", "step", "action", "reward", "terminated", "truncated")
OPTIONAL = (
    "state",
    "observation",
    "next_state",
    "next_observation",
    "behaviour_probability",
    "behaviour_log_density",
)
COLUMNS = (*REQUIRED, *OPTIONAL)
MOST_SHOWN = 5
"""The most rows that a problem names."""


@dataclass(frozen=True, eq=False)
class Log:
    """Logged episodes, in order. `Log.from_columns` makes one from rows in any order, and checks it.

    >>> log = Log.from_columns({
    ...     "episode": [0, 0, 1], "step": [0, 1, 0], "state": [0, 1, 0], "action": [1, 0, 1],
    ...     "reward": [0.0, 1.0, 0.5],
    ...     "terminated": [False, True, True], "truncated": [False, False, False],
    ... })
    >>> log
    Log(2 episodes, 3 steps, 2 states, 2 actions, unknown μ)
    >>> log.first
    array([0, 2, 3])
    """

    first: np.ndarray
    """(E + 1,) the row at which each episode starts; the last entry is the number of rows."""
    action: np.ndarray
    """(N,) actions, or (N, d) vectors."""
    reward: np.ndarray
    """(N,) rewards."""
    terminated: np.ndarray
    """(N,) True at the last step of an episode that ended by itself."""
    truncated: np.ndarray
    """(N,) True at the last step of an episode that was cut off."""
    state: np.ndarray | None = None
    """(N,) numbers of states; None for a log of observations."""
    observation: np.ndarray | None = None
    """(N, d) observations; None for a log of states."""
    successor: np.ndarray | None = None
    """(N,) or (N, d): the state or observation after each step; None where the log does not have it."""
    mu_a: np.ndarray | None = None
    """(N,) the probability with which the action was drawn; None where it is unknown."""
    log_mu_a: np.ndarray | None = None
    """(N,) its log-density, for actions that are vectors."""
    row: np.ndarray | None = None
    """(N,) the row of each step in the source; None where the source was in order."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> "Log":
        """Return the log of these columns; raise `LogError` with everything that is wrong, by row."""
        arrays = _as_arrays(columns)
        problems = check_columns(arrays)
        if problems:
            raise LogError(problems)
        return _ordered(arrays)

    @property
    def num_steps(self) -> int:
        """The number of rows."""
        return len(self.reward)

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return len(self.first) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(E,) steps per episode."""
        return np.diff(self.first)

    def __repr__(self) -> str:
        parts = [f"{self.num_episodes:,} episodes", f"{self.num_steps:,} steps"]
        if self.state is not None:
            parts.append(f"{int(self.state.max()) + 1:,} states")
        if self.observation is not None:
            parts.append(f"observations of {self.observation.shape[1]} numbers")
        if self.action.ndim == 1:
            parts.append(f"{int(self.action.max()) + 1:,} actions")
        else:
            parts.append(f"actions of {self.action.shape[1]} numbers")
        known = self.mu_a is not None or self.log_mu_a is not None
        parts.append("known μ" if known else "unknown μ")
        return f"Log({', '.join(parts)})"


@dataclass(frozen=True)
class Problem:
    """One rule that a log breaks, and the rows that break it."""

    rule: str
    rows: tuple[int, ...]
    """The first rows, counted from 0; empty where the whole log is concerned."""
    num_rows: int
    """The number of rows that break the rule."""

    def __str__(self) -> str:
        if not self.rows:
            return self.rule
        shown = ", ".join(f"{row:,}" for row in self.rows)
        rest = self.num_rows - len(self.rows)
        more = f" and {rest:,} more" if rest else ""
        return f"{self.rule}: row{'s' if self.num_rows > 1 else ''} {shown}{more}"


class LogError(ValueError):
    """A log that breaks a rule. `problems` has all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the log cannot be used (rows count from 0):\n{lines}")


# -- checks --------------------------------------------------------------------------------------


def check_columns(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    """Return everything that is wrong with the columns of a log; an empty list if nothing is."""
    problems = _check_names(arrays) or _check_shapes(arrays) or _check_types(arrays)
    if problems:
        return problems
    return [*_check_values(arrays), *_check_episodes(arrays)]


def _check_names(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    problems = [_whole(f"the column `{name}` is missing") for name in REQUIRED if name not in arrays]
    pairs = (("state", "observation"), ("behaviour_probability", "behaviour_log_density"))
    for one, other in pairs:
        if one in arrays and other in arrays:
            problems.append(_whole(f"give `{one}` or `{other}`, not both"))
    if "state" not in arrays and "observation" not in arrays:
        problems.append(_whole("the column `state` (numbers) or `observation` (vectors) is missing"))
    for one, other in (("next_state", "state"), ("next_observation", "observation")):
        if one in arrays and other not in arrays:
            problems.append(_whole(f"`{one}` comes with `{other}`"))
    return problems


def _check_shapes(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    num_rows = len(arrays["reward"]) if arrays["reward"].ndim else 0
    if num_rows == 0:
        return [_whole("the log is empty")]
    problems = []
    for name, array in arrays.items():
        vectors = name in ("observation", "next_observation") or (name == "action" and array.ndim == 2)
        if array.ndim != (2 if vectors else 1) or len(array) != num_rows:
            wanted = f"({num_rows}, d)" if vectors else f"({num_rows},)"
            problems.append(_whole(f"`{name}` must have the shape {wanted}; got {array.shape}"))
    if "next_observation" in arrays and not problems:
        width, given = arrays["observation"].shape[1], arrays["next_observation"].shape[1]
        if width != given:
            problems.append(_whole(f"`next_observation` must have {width} numbers per row; got {given}"))
    return problems


KINDS = {"step": "iu", "state": "iu", "next_state": "iu", "terminated": "b", "truncated": "b"}
WORDS = {"iu": "whole numbers", "b": "booleans", "fiu": "numbers", "iuUSO": "whole numbers or strings"}


def _check_types(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    problems = []
    for name, array in arrays.items():
        kinds = KINDS.get(name, "fiu")
        if name == "episode":
            kinds = "iuUSO"
        elif name == "action" and array.ndim == 1:
            kinds = "iu"
        if array.dtype.kind not in kinds:
            problems.append(_whole(f"`{name}` must be {WORDS[kinds]}; got {array.dtype}"))
    return problems


def _check_values(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    problems = []
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            finite = np.isfinite(array).reshape(len(array), -1)
            problems += _where(f"`{name}` must be finite", np.asarray(~finite.all(axis=1)))
        elif array.dtype.kind in "i" and name not in ("episode", "reward"):
            problems += _where(f"`{name}` must not be negative", array < 0)
    if "behaviour_probability" in arrays:
        given = arrays["behaviour_probability"]
        rule = "`behaviour_probability` must be above 0 and at most 1, as the action was taken"
        problems += _where(rule, np.isfinite(given) & ((given <= 0) | (given > 1 + 1e-9)))
    return problems


def _check_episodes(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    order, first = _order(arrays)
    step = arrays["step"][order].astype(np.int64)
    within = np.arange(len(step)) - np.repeat(first[:-1], np.diff(first))
    is_start = within == 0
    change = np.diff(step, prepend=0)
    change[is_start] = 1
    problems = _where("an episode must start with step 0", (is_start & (step != 0)), order)
    problems += _where("two rows have the same episode and step", change == 0, order)
    problems += _where("steps are missing before", change > 1, order)
    ends = (arrays["terminated"] | arrays["truncated"])[order]
    is_last = np.zeros(len(step), bool)
    is_last[first[1:] - 1] = True
    problems += _where("the episode goes on after `terminated` or `truncated`", ends & ~is_last, order)
    rule = "the last step of an episode must be `terminated` or `truncated`; if the log stops there, it is truncated"
    problems += _where(rule, ~ends & is_last, order)
    return problems


def _whole(rule: str) -> Problem:
    return Problem(rule, (), 0)


def _where(rule: str, broken: np.ndarray, order: np.ndarray | None = None) -> list[Problem]:
    """Return the problem with the rows where `broken` holds, or an empty list; `order` leads back to the source."""
    found = np.flatnonzero(broken)
    if not len(found):
        return []
    rows = found if order is None else np.sort(order[found])
    return [Problem(rule, tuple(int(row) for row in rows[:MOST_SHOWN]), len(rows))]


# -- order ---------------------------------------------------------------------------------------


def _as_arrays(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise LogError([_whole(f"unknown column `{unknown[0]}`; valid columns: {', '.join(COLUMNS)}")])
    return {name: np.asarray(values) for name, values in columns.items() if values is not None}


def _order(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows in the order of episodes and steps, and the first row of each episode.

    Episodes keep the order in which they first appear.
    """
    episode = arrays["episode"]
    changes = np.flatnonzero(episode[1:] != episode[:-1]) + 1
    starts = np.concatenate([[0], changes])
    names = episode[starts]
    if len(np.unique(names)) == len(names):  # every episode is in one piece
        number = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(episode))))
    else:
        _, first_seen, inverse = np.unique(episode, return_index=True, return_inverse=True)
        rank = np.empty(len(first_seen), np.int64)
        rank[np.argsort(first_seen)] = np.arange(len(first_seen))
        number = rank[inverse]
    step = arrays["step"]
    rises = (number[1:] > number[:-1]) | ((number[1:] == number[:-1]) & (step[1:] >= step[:-1]))
    order = np.arange(len(step)) if rises.all() else np.lexsort((step, number))
    sizes = np.bincount(number)
    return order, np.concatenate([[0], np.cumsum(sizes)])


def _ordered(arrays: Mapping[str, np.ndarray]) -> Log:
    order, first = _order(arrays)
    in_order = bool((order[:-1] < order[1:]).all())

    def take(name: str, dtype: Any = None) -> np.ndarray | None:
        if name not in arrays:
            return None
        column = arrays[name] if in_order else arrays[name][order]
        return column if dtype is None else column.astype(dtype, copy=False)

    action = take("action")
    successor = take("next_state", np.int64)
    if successor is None:
        successor = take("next_observation", np.float64)
    terminated = take("terminated")
    truncated = take("truncated")
    assert action is not None
    assert terminated is not None
    assert truncated is not None
    return Log(
        first=first,
        action=action.astype(np.int64 if action.ndim == 1 else np.float64, copy=False),
        reward=np.asarray(take("reward", np.float64)),
        terminated=terminated,
        truncated=truncated & ~terminated,
        state=take("state", np.int64),
        observation=take("observation", np.float64),
        successor=successor,
        mu_a=take("behaviour_probability", np.float64),
        log_mu_a=take("behaviour_log_density", np.float64),
        row=None if in_order else order,
    )
