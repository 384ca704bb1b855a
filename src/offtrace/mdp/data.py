"""An MDP estimated from logged transitions, and how often each (x, a) was seen."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.errors import raise_where
from offtrace.mdp.checks import checked_array, checked_whole, checked_wholes
from offtrace.mdp.finite import FiniteMDP

MOST_PAIRS = 10**8
"""The most pairs (x, a) of an estimated MDP, so that a stray state number is refused before memory runs out."""


@dataclass(frozen=True, eq=False)
class CountedMDP:
    """The maximum-likelihood MDP of logged data, with its counts."""

    mdp: FiniteMDP
    """The observed p, r and terminations; an `unseen` pair ends the episode at once with reward 0."""
    mu: np.ndarray
    """(X, A) the observed behaviour policy; uniform in `unvisited` states."""
    counts: np.ndarray
    """(X, A) the number of times each pair was seen."""

    @property
    def unseen(self) -> np.ndarray:
        """(X, A) True for pairs that were never seen."""
        return self.counts == 0

    @property
    def unvisited(self) -> np.ndarray:
        """(X,) True for states in which no action was taken; they may still have been entered."""
        return self.counts.sum(axis=1) == 0

    @property
    def num_transitions(self) -> int:
        """The number of transitions counted."""
        return int(self.counts.sum())

    def __repr__(self) -> str:
        seen = f"{self.num_transitions:,} transitions, {self.unseen.sum():,} of {self.counts.size:,} pairs unseen"
        return f"CountedMDP({self.mdp!r}, {seen})"


def from_data(
    *,
    states: ArrayLike,
    actions: ArrayLike,
    rewards: ArrayLike,
    next_states: ArrayLike,
    terminated: ArrayLike,
    gamma: float,
    num_states: int | None = None,
    num_actions: int | None = None,
    start: ArrayLike | None = None,
) -> CountedMDP:
    """Estimate an MDP from transitions in any order, as arrays of one shape (N,).

    p(x'|x, a) and the share that terminates are relative frequencies. r(x, a, x') is a mean,
    separate for transitions that terminated and those that did not. A truncated step did not
    terminate. `num_states` and `num_actions` default to the largest number seen plus one, `start`
    to uniform.

    >>> model = from_data(states=[0, 0, 1], actions=[0, 0, 0], rewards=[1.0, 3.0, 0.0], next_states=[0, 1, 1],
    ...                   terminated=[False, False, True], gamma=0.9)
    >>> model.mdp.dense()[0], model.mdp.r[0], model.counts.ravel()
    (array([[0.5, 0.5]]), array([2.]), array([2, 1]))
    """
    x = _numbered("states", states)
    a = _numbered("actions", actions)
    y = _numbered("next_states", next_states)
    r = _finite("rewards", rewards)
    end = _booleans("terminated", terminated)
    _check_shapes(states=x, actions=a, rewards=r, next_states=y, terminated=end)
    num_states = _size("num_states", num_states, states=x, next_states=y)
    num_actions = _size("num_actions", num_actions, actions=a)
    if num_states * num_actions > MOST_PAIRS:
        raise ValueError(
            f"`states` and `actions` must form at most {MOST_PAIRS:,} pairs; got {num_states:,} "
            f"states × {num_actions:,} actions. Number them without gaps: np.unique(states, "
            "return_inverse=True)."
        )
    row = x.astype(np.int64, copy=False) * num_actions + a.astype(np.int64, copy=False)
    counts = np.bincount(row, minlength=num_states * num_actions)
    row, successor, ends, probability, reward = _transitions(
        row, y.astype(np.int64, copy=False), end, r, counts, num_states
    )
    mdp = FiniteMDP.from_transitions(
        probability=probability,
        successor=successor,
        first=np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(counts)))]),
        num_actions=num_actions,
        r=reward,
        ends=ends,
        gamma=gamma,
        start=start,
        name="counted",
    )
    pairs = counts.reshape(num_states, num_actions)
    visits = pairs.sum(axis=1, keepdims=True)
    mu = np.where(visits > 0, pairs / np.maximum(visits, 1), 1 / num_actions)
    return CountedMDP(mdp, mu=mu, counts=pairs)


def _transitions(
    row: np.ndarray, y: np.ndarray, end: np.ndarray, r: np.ndarray, counts: np.ndarray, num_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the transitions seen, and one per unseen row: row, x', end, probability, reward.

    A transition (row, x', end) is numbered by one key, so that equal ones can be counted:

        key = (row · X + x') · 2 + end
    """
    key = (row * num_states + y) * 2 + end
    space = 2 * num_states * len(counts)
    if space <= 2 * len(key):  # a table of all keys is no larger than the data, and faster than sorting them
        table = np.bincount(key, minlength=space)
        kept = np.flatnonzero(table)
        seen = table[kept]
        total = np.bincount(key, weights=r, minlength=space)[kept]
    else:
        kept, place, seen = np.unique(key, return_inverse=True, return_counts=True)
        total = np.bincount(place, weights=r)
    # A row that was never seen gets one transition, to its own state, that ends the episode.
    unseen = np.flatnonzero(counts == 0)
    own_state = unseen // (len(counts) // num_states)
    key = np.concatenate([kept, (unseen * num_states + own_state) * 2 + 1])
    row, successor = np.divmod(key // 2, num_states)
    probability = np.concatenate([seen / counts[row[: len(kept)]], np.ones(len(unseen))])
    reward = np.concatenate([total / seen, np.zeros(len(unseen))])
    order = np.argsort(row, kind="stable")
    return row[order], successor[order], (key % 2)[order], probability[order], reward[order]


def _check_shapes(**arrays: np.ndarray) -> None:
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or arrays["states"].ndim != 1:
        got = ", ".join(f"`{name}` {array.shape}" for name, array in arrays.items())
        raise ValueError(f"the arrays must have one shape (N,); got {got}.")
    if not len(arrays["states"]):
        raise ValueError("`states` must not be empty.")


def _numbered(name: str, values: Any) -> np.ndarray:
    """Return the numbers of states or actions."""
    array = checked_wholes(name, values)
    remedy = "Leave out rows that are not steps."
    if name == "next_states":
        remedy = "After a termination any state may be given."
    raise_where(array < 0, name, "must not be negative", array, remedy)
    return array


def _finite(name: str, values: Any) -> np.ndarray:
    array = checked_array(name, values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must be numbers; got {array.dtype}.")
    raise_where(~np.isfinite(array), name, "must be finite", array, "Leave that transition out.")
    return array.astype(np.float64, copy=False)


def _booleans(name: str, values: Any) -> np.ndarray:
    array = checked_array(name, values)
    if array.dtype.kind != "b" and array.size:
        raise TypeError(f"`{name}` must be booleans; got {array.dtype}. If 1 means terminated, pass `{name} == 1`.")
    return array


def _size(name: str, given: int | None, **arrays: np.ndarray) -> int:
    if given is None:
        return max(int(array.max()) for array in arrays.values()) + 1
    size = checked_whole(name, given)
    for argument, array in arrays.items():
        raise_where(array >= size, argument, f"must be below `{name}` = {size}", array, "Numbers start at 0.")
    return size
