"""A model counted from logged transitions: what was seen of each (x, a), and what was not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.errors import raise_where
from offtrace.mdp.finite import FiniteMDP

MOST_PAIRS = 10**8
"""(x, a) of a counted model, so that a stray state number is refused before memory is taken for it."""


@dataclass(frozen=True, eq=False)
class CountedMDP:
    """The most likely model of some data, with the counts it rests on."""

    mdp: FiniteMDP
    """p, r and the share that ends as they were seen; where `unseen`, the episode ends at once with reward 0."""
    mu: np.ndarray
    """(X, A) the behaviour as it was seen; where `unvisited`, uniform."""
    counts: np.ndarray
    """(X, A) how often each pair was seen."""

    @property
    def unseen(self) -> np.ndarray:
        """(X, A) True where a pair was never seen, so that the model says nothing of it."""
        return self.counts == 0

    @property
    def unvisited(self) -> np.ndarray:
        """(X,) True where no step was taken from a state; it may still have been entered."""
        return self.counts.sum(axis=1) == 0

    @property
    def num_transitions(self) -> int:
        """How many transitions were counted."""
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
    """The maximum-likelihood model of transitions (x, a, r, x', terminated), in any order: arrays of one shape (N,).

    p(x'|x, a) and the share that ends are relative frequencies, r(x, a, x') is a mean, apart for what ended and what
    went on. A truncated step is one that did not terminate. The sizes are the largest number seen plus one unless
    given; `start` is uniform unless given.

    >>> model = from_data(states=[0, 0, 1], actions=[0, 0, 0], rewards=[1.0, 3.0, 0.0], next_states=[0, 1, 1],
    ...                   terminated=[False, False, True], gamma=0.9)
    >>> model.mdp.dense()[0], model.mdp.r[0], model.counts.ravel()
    (array([[0.5, 0.5]]), array([2.]), array([2, 1]))
    """
    x, a = _whole_numbers("states", states), _whole_numbers("actions", actions)
    y = _whole_numbers("next_states", next_states)
    r, end = _finite("rewards", rewards), _booleans("terminated", terminated)
    shapes = {
        "states": x.shape,
        "actions": a.shape,
        "rewards": r.shape,
        "next_states": y.shape,
        "terminated": end.shape,
    }
    if len(set(shapes.values())) != 1 or x.ndim != 1:
        got = ", ".join(f"`{name}` {shape}" for name, shape in shapes.items())
        raise ValueError(f"the arrays must have one shape (N,); got {got}.")
    if not len(x):
        raise ValueError("`states` must hold a transition at least; got none.")
    num_states = _size("num_states", num_states, states=x, next_states=y)
    num_actions = _size("num_actions", num_actions, actions=a)
    if num_states * num_actions > MOST_PAIRS:
        raise ValueError(
            f"`states` and `actions` must have at most {MOST_PAIRS:,} pairs; got {num_states:,} states × "
            f"{num_actions:,} actions. Number them without gaps: np.unique(states, return_inverse=True)."
        )
    x, a, y = (values.astype(np.int64, copy=False) for values in (x, a, y))
    row = x * num_actions + a
    shape = num_states, num_actions
    counts = np.bincount(row, minlength=num_states * num_actions)
    row, successor, ends, probability, reward = _cells(row, y, end, r, counts, num_states)
    pairs, visits = counts.reshape(shape), counts.reshape(shape).sum(axis=1, keepdims=True)
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
    return CountedMDP(mdp, mu=np.where(visits > 0, pairs / np.maximum(visits, 1), 1 / num_actions), counts=pairs)


def _cells(
    row: np.ndarray, y: np.ndarray, end: np.ndarray, r: np.ndarray, counts: np.ndarray, num_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Every (row, x', end) seen, and every row unseen, in order: row, x', end, probability, reward."""
    key = (row * num_states + y) * 2 + end
    space = 2 * num_states * len(counts)
    if space <= 2 * len(key):  # a table of all keys is no larger than the data, and faster than sorting them
        seen = np.bincount(key, minlength=space)
        kept = np.flatnonzero(seen)
        seen, total = seen[kept], np.bincount(key, weights=r, minlength=space)[kept]
    else:
        kept, place, seen = np.unique(key, return_inverse=True, return_counts=True)
        total = np.bincount(place, weights=r)
    unseen = np.flatnonzero(counts == 0)
    itself = unseen // (len(counts) // num_states)
    key = np.concatenate([kept, (unseen * num_states + itself) * 2 + 1])
    row, successor = np.divmod(key // 2, num_states)
    probability = np.concatenate([seen / counts[row[: len(kept)]], np.ones(len(unseen))])
    reward = np.concatenate([total / seen, np.zeros(len(unseen))])
    order = np.argsort(row, kind="stable")
    return row[order], successor[order], (key % 2)[order], probability[order], reward[order]


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array; got {type(values).__name__}.") from None


def _whole_numbers(name: str, values: Any) -> np.ndarray:
    array = _array(name, values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"`{name}` must be whole numbers; got {array.dtype}.")
    remedy = "After an end any state will do." if name == "next_states" else "Leave out rows that are no steps."
    raise_where(array < 0, name, "must not be negative", array, remedy)
    return array


def _finite(name: str, values: Any) -> np.ndarray:
    array = _array(name, values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must be numbers; got {array.dtype}.")
    raise_where(~np.isfinite(array), name, "must be finite", array, "Leave that transition out.")
    return array.astype(np.float64, copy=False)


def _booleans(name: str, values: Any) -> np.ndarray:
    array = _array(name, values)
    if array.dtype.kind != "b" and array.size:
        raise TypeError(f"`{name}` must be booleans; got {array.dtype}. Where 1 means an end, give `{name} == 1`.")
    return array


def _size(name: str, given: int | None, **arrays: np.ndarray) -> int:
    if given is None:
        return max(int(array.max()) for array in arrays.values()) + 1
    if not isinstance(given, (int, np.integer)) or isinstance(given, bool) or given < 1:
        raise ValueError(f"`{name}` must be a whole number, at least 1; got {given!r}.")
    for argument, array in arrays.items():
        raise_where(array >= given, argument, f"must be below `{name}` = {given}", array, "They are numbered from 0.")
    return int(given)
