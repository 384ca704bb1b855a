"""A log: the steps of episodes as columns, and the checks that every log goes through.

One row per step. Rows may come in any order; they are kept episode after episode:

    row            0   1   2   3   4   5   6
    episode        a   a   a   b   b   c   c
    step           0   1   2   0   1   0   1
    terminated     ·   ·   ✓   ·   ·   ·   ✓
    truncated      ·   ·   ·   ·   ✓   ·   ·
    first          0           3       5       7        one more than there are episodes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.evaluation.checks import check_columns, check_names, order_of
from offtrace.evaluation.columns import KINDS, MISSING, Columns
from offtrace.evaluation.problems import LogError, Problem, whole


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
    """(N,) or (N, d): the state or observation after each step; None where the log does not have the column.

    −1 or NaN at the last step of an episode where it is missing.
    """
    mu_a: np.ndarray | None = None
    """(N,) the probability with which the action was drawn; None where it is unknown."""
    log_mu_a: np.ndarray | None = None
    """(N,) its log-density, for actions that are vectors."""
    behaviour_policy: np.ndarray | None = None
    """(N,) the number of the policy that acted, in `behaviour_names`; None for a log without that column."""
    behaviour_names: tuple[str, ...] = ()
    """The names of the behaviour policies, in the order in which they appear."""
    row: np.ndarray | None = None
    """(N,) the row of each step in the source; None where the source was in order."""

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> "Log":
        """Return the log of these columns; raise `LogError` with everything that is wrong, by row."""
        given, problems = columns_of(columns)
        problems = problems or problems_of(given)
        if problems:
            raise LogError(problems)
        return ordered(given)

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

    @property
    def has_successor(self) -> np.ndarray:
        """(N,) False at a truncated step whose next state or observation is not in the log: it has no target."""
        known = np.ones(self.num_steps, bool)
        cut = np.flatnonzero(self.truncated)
        if self.successor is None:
            known[cut] = False
        elif self.successor.ndim == 1:
            known[cut] = self.successor[cut] != MISSING
        else:
            known[cut] = ~np.isnan(self.successor[cut]).any(axis=1)
        return known

    def source_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the source, sorted, for rows of this log."""
        return rows if self.row is None else np.sort(self.row[rows])

    def transitions(self) -> dict[str, np.ndarray]:
        """Return the steps whose successor is known, as `state`, `action`, `reward`, `next_state`, `terminated`.

        After a termination the next state may be unknown; the state itself stands for it.
        """
        if self.state is None or self.action.ndim != 1:
            raise ValueError("transitions need a log of states and discrete actions.")
        after = np.append(self.state[1:], 0) if self.successor is None else self.successor
        ends = self.terminated if self.successor is None else self.terminated & (self.successor == MISSING)
        rows = self.has_successor
        found = {
            "state": self.state,
            "action": self.action,
            "reward": self.reward,
            "next_state": np.where(ends, self.state, after),
            "terminated": self.terminated,
        }
        return {name: column[rows] for name, column in found.items()}

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


def columns_of(given: Mapping[str, Any]) -> tuple[Columns, list[Problem]]:
    """Return the columns of a mapping of arrays, and what is wrong with their names and shapes."""
    present = {name: values for name, values in given.items() if values is not None}
    problems = [
        whole(f"unknown column `{name}`; valid columns: {', '.join(KINDS)}")
        for name in sorted(map(str, set(present) - set(KINDS)))[:1]
    ]
    problems = problems or check_names(present)
    if problems:
        return Columns(()), problems
    arrays = {}
    for name, values in present.items():
        try:
            arrays[name] = np.asarray(values)
        except ValueError:
            problems.append(whole(f"`{name}` must have the same shape in every row"))
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    num_rows = max(lengths.values(), default=0)
    for name, length in lengths.items():
        if length != num_rows:
            problems.append(whole(f"`{name}` must have {num_rows:,} rows, as other columns; got {length:,}"))
    columns = Columns(list(arrays), num_rows)
    if not problems:
        for name, array in arrays.items():
            columns.add(name, array)
    return columns, problems


def problems_of(columns: Columns) -> list[Problem]:
    """Return everything that is wrong with the rows."""
    arrays = columns.arrays
    found = columns.problems
    broken = {name for name, builder in columns.builders.items() if builder.problems}
    if not found and not any(len(array) for array in arrays.values()):
        return [whole("the log is empty")]
    return [*found, *check_columns(arrays, broken)]


def ordered(columns: Columns) -> Log:
    """Return the log of columns that are without problems. Each is forgotten once it is in order, to save memory."""
    order = order_of(columns.pop("episode"), columns.pop("step"))
    names = {}
    if "behaviour_policy" in columns.builders:
        names["behaviour_names"] = tuple(columns.builders["behaviour_policy"].names)
    taken = {name: order.take(columns.pop(name)) for name in list(columns.builders)}
    terminated = taken["terminated"]
    successor = taken.get("next_state", taken.get("next_observation"))
    if successor is not None and successor.shape[1:] == (0,):  # all rows are null
        successor = None
    return Log(
        first=order.first,
        action=taken["action"],
        reward=taken["reward"],
        terminated=terminated,
        truncated=taken["truncated"] & ~terminated,
        state=taken.get("state"),
        observation=taken.get("observation"),
        successor=successor,
        mu_a=taken.get("behaviour_probability"),
        log_mu_a=taken.get("behaviour_log_density"),
        behaviour_policy=taken.get("behaviour_policy"),
        row=order.rows,
        **names,
    )
