"""A finite MDP, stored as a list of transitions.

The transitions of (x, a) are those from first[x·A + a] to first[x·A + a + 1] − 1:

    row  x·A + a       0        1     2 …
    first              0        2     3 …
                       |        |     |
    probability       0.5 0.5   1.0   …      p(x'|x, a)
    successor          0   1    1     …      x'
    ends               0   0    1     …      the share of the transition that terminates
    reward             1   3    0     …      r(x, a, x')

These are the arrays of a CSR matrix of shape (X·A, X), so a sparse `p` is used without a copy.
Several transitions of one row may lead to the same state, with different rewards, or one that
terminates and one that does not.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.likelihoods import tolerance
from offtrace.mdp.checks import checked_numbers, checked_whole, checked_wholes
from offtrace.mdp.transitions import (
    check_rows,
    check_transitions,
    checked_successors,
    ends_of,
    from_dense,
    from_sparse,
    rewards_of,
)


class FiniteMDP:
    """A finite MDP of X states and A actions.

    >>> mdp = FiniteMDP(p=[[[0.5, 0.5]], [[0.0, 1.0]]], r=[[1.0], [0.0]], gamma=0.9)
    >>> mdp
    FiniteMDP(2 states, 1 action, 3 transitions, gamma=0.9)

    Shapes: `p` (X, A, X), or a SciPy sparse matrix (X·A, X); `r` (X, A) or (X, A, X), or sparse as
    `p`.

    `terminates` is the share of a transition that ends the episode, in [0, 1] or as booleans: (X,)
    for transitions into a state, (X, A) for transitions from a state with an action, (X, A, X) or
    sparse as `p` for each transition. Values are not bootstrapped past an end, so the value of a
    terminal state is never used; its row may hold anything.

    `start` (X,) is the distribution of first states, uniform by default. `grid` (rows, columns)
    means that the states are the cells of a map, row by row; it is used for pictures.
    """

    num_states: int
    num_actions: int
    gamma: float
    probability: np.ndarray
    """(m,) p(x'|x, a), per transition."""
    successor: np.ndarray
    """(m,) x'."""
    first: np.ndarray
    """(X·A + 1,) the first transition of each row."""
    ends: np.ndarray | None
    """(m,) the share that terminates, or None if nothing does."""
    reward: np.ndarray | None
    """(m,) r(x, a, x'), or None if rewards are r(x, a)."""
    r: np.ndarray
    """(X, A) the expected reward of a step."""
    row_sums: tuple[float, float]
    """The smallest and the largest sum of a row of p: 1, up to rounding."""
    start: np.ndarray
    name: str
    grid: tuple[int, int] | None

    def __init__(
        self,
        *,
        p: Any,
        r: Any,
        gamma: float,
        terminates: Any = None,
        start: ArrayLike | None = None,
        name: str = "",
        grid: tuple[int, int] | None = None,
    ) -> None:
        if hasattr(p, "tocsr"):
            shape, probability, successor, first = from_sparse(p)
        else:
            shape, probability, successor, first = from_dense(p)
        self._fill(
            probability,
            successor,
            first,
            shape,
            r=rewards_of(r, shape, successor, first),
            ends=ends_of(terminates, shape, successor, first),
            gamma=gamma,
            start=start,
            name=name,
            grid=grid,
        )

    @classmethod
    def from_transitions(
        cls,
        *,
        probability: ArrayLike,
        successor: ArrayLike,
        first: ArrayLike,
        num_actions: int,
        r: ArrayLike,
        gamma: float,
        ends: ArrayLike | None = None,
        start: ArrayLike | None = None,
        name: str = "",
        grid: tuple[int, int] | None = None,
    ) -> "FiniteMDP":
        """Make an MDP from lists of transitions; `r` is (m,), one reward per transition, or (X, A).

        >>> FiniteMDP.from_transitions(
        ...     probability=[1.0, 1.0], successor=[1, 1], first=[0, 1, 2], num_actions=1, r=[0.0, 1.0], gamma=0.5
        ... ).r
        array([[0.],
               [1.]])
        """
        first = checked_wholes("first", first)
        num_actions = checked_whole("num_actions", num_actions)
        if first.ndim != 1 or (len(first) - 1) % num_actions or len(first) < 2:
            raise ValueError(f"`first` must have X·A + 1 entries for {num_actions} actions; got {first.shape}.")
        shape = (len(first) - 1) // num_actions, num_actions
        self = cls.__new__(cls)
        self._fill(
            checked_numbers("probability", probability),
            successor,
            first,
            shape,
            r=checked_numbers("r", r),
            ends=None if ends is None else checked_numbers("ends", ends),
            gamma=gamma,
            start=start,
            name=name,
            grid=grid,
        )
        return self

    def _fill(
        self,
        probability: np.ndarray,
        successor: Any,
        first: np.ndarray,
        shape: tuple[int, int],
        *,
        r: np.ndarray,
        ends: np.ndarray | None,
        gamma: float,
        start: ArrayLike | None,
        name: str,
        grid: tuple[int, int] | None,
    ) -> None:
        self.num_states, self.num_actions = shape
        self.gamma = checked_gamma(gamma)
        self.name = name
        rounding = tolerance(probability)
        self.probability = np.ascontiguousarray(probability, dtype=np.float64)
        self.successor = checked_successors(successor, self.num_states)
        self.first = np.ascontiguousarray(first)
        for argument, values in (("probability", self.probability), ("successor", self.successor)):
            if values.ndim != 1:
                raise ValueError(
                    f"`{argument}` must be a list with one entry per transition; got shape {values.shape}."
                )
        self.row_sums = check_rows(self.probability, self.successor, self.first, shape, rounding)
        self.ends = self._checked_ends(ends)
        self._set_rewards(r)
        self.start = self._checked_start(start)
        self.grid = None if grid is None else self._checked_grid(grid)

    def _checked_ends(self, ends: np.ndarray | None) -> np.ndarray | None:
        if ends is None:
            return None
        size = self.probability.shape
        if ends.shape != size:
            raise ValueError(f"`ends` must have one entry per transition, {size[0]} in all; got shape {ends.shape}.")
        rounding = tolerance(ends)
        broken = ~((ends >= -rounding) & (ends <= 1 + rounding))
        check_transitions(broken, ends, self.first, self.shape, "terminates", "must be a share in [0, 1]")
        return np.ascontiguousarray(ends, dtype=np.float64) if ends.any() else None

    def _set_rewards(self, r: np.ndarray) -> None:
        if r.shape == self.probability.shape:
            self.reward = np.ascontiguousarray(r, dtype=np.float64)
            check_transitions(~np.isfinite(r), r, self.first, self.shape, "r", "must be finite")
            self.r = np.add.reduceat(self.probability * self.reward, self.first[:-1]).reshape(self.shape)
        elif r.shape == self.shape:
            self.reward = None
            self.r = np.ascontiguousarray(r, dtype=np.float64)
            if not np.isfinite(self.r).all():
                x, a = np.argwhere(~np.isfinite(self.r))[0].tolist()
                raise ValueError(f"`r` must be finite; got {self.r[x, a]} at (x, a) = ({x}, {a}).")
        else:
            allowed = f"{self.shape} or {(*self.shape, self.num_states)}"
            raise ValueError(f"`r` must have shape {allowed}; got {r.shape}.")

    def _checked_grid(self, grid: Any) -> tuple[int, int]:
        whole = len(grid) == 2 and all(isinstance(side, (int, np.integer)) and side > 0 for side in grid)
        if not whole or int(np.prod(grid)) != self.num_states:
            raise ValueError(f"`grid` must be (rows, columns) with {self.num_states} cells; got {grid}.")
        return int(grid[0]), int(grid[1])

    def _checked_start(self, start: ArrayLike | None) -> np.ndarray:
        if start is None:
            return np.broadcast_to(1 / self.num_states, self.num_states)  # read-only, and needs no memory
        chosen = checked_numbers("start", start)
        if chosen.shape != (self.num_states,):
            raise ValueError(f"`start` must have shape ({self.num_states},), a distribution; got {chosen.shape}.")
        broken = ~(chosen >= -tolerance(chosen))
        if broken.any():
            x = int(np.argmax(broken))
            raise ValueError(f"`start` must be a distribution over states; got {chosen[x]:.6g} at x = {x}.")
        if not abs(chosen.sum() - 1) <= tolerance(chosen):
            raise ValueError(f"`start` must be a distribution over states; its sum is {chosen.sum():.6g}.")
        return chosen.astype(np.float64)

    def __repr__(self) -> str:
        def count(number: int, noun: str) -> str:
            return f"{number:,} {noun}{'' if number == 1 else 's'}"

        sizes = [count(self.num_states, "state"), count(self.num_actions, "action")]
        name = [self.name] * bool(self.name)
        shown = [*name, *sizes, count(len(self.probability), "transition"), f"gamma={self.gamma:g}"]
        return f"FiniteMDP({', '.join(shown)})"

    @property
    def shape(self) -> tuple[int, int]:
        """(X, A), the shape of Q, π and μ."""
        return self.num_states, self.num_actions

    @functools.cached_property
    def continuing(self) -> np.ndarray:
        """(m,) the part of p that does not terminate; the same array as `probability` if nothing does."""
        return self.probability if self.ends is None else self.probability * (1 - self.ends)

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """(m,) the row x·A + a of each transition."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def dense(self) -> np.ndarray:
        """Return p as an array (X, A, X), including the transitions that terminate."""
        p = np.zeros((self.num_states * self.num_actions, self.num_states))
        np.add.at(p, (self.rows, self.successor), self.probability)
        return p.reshape(*self.shape, self.num_states)

    def with_gamma(self, gamma: float) -> "FiniteMDP":
        """Return an MDP with the same transitions, not copied, and another discount.

        >>> FiniteMDP(p=[[[1.0]]], r=[[1.0]], gamma=0.9).with_gamma(0.5).gamma
        0.5
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, gamma=checked_gamma(gamma))
        return other


def checked_gamma(gamma: Any) -> float:
    """Return γ as a float in [0, 1]."""
    try:
        if isinstance(gamma, (str, bytes, bool)):
            raise TypeError
        value = float(gamma)
    except (TypeError, ValueError):
        raise TypeError(f"`gamma` must be a number in [0, 1]; got {gamma!r}.") from None
    if not 0 <= value <= 1:
        raise ValueError(f"`gamma` must be in [0, 1]; got {value:g}.")
    return value


def checked_policy(policy: Any, shape: tuple[int, int], name: str) -> np.ndarray:
    """Return a policy (X, A) whose rows are distributions, up to rounding.

    >>> checked_policy([[0.5, 0.4]], (1, 2), "pi")
    Traceback (most recent call last):
    ValueError: `pi` must have rows that sum to 1; got 0.9 at x = 0.
    """
    policy = checked_numbers(name, policy)
    if policy.shape != shape:
        raise ValueError(f"`{name}` must have shape (X, A) = {shape}; got {policy.shape}.")
    off = tolerance(policy)
    if not (policy.min() >= -off and policy.max() <= 1 + off):
        broken = ~((policy >= -off) & (policy <= 1 + off))
        x, a = np.argwhere(broken)[0].tolist()
        raise ValueError(f"`{name}` must be a probability in [0, 1]; got {policy[x, a]:.6g} at (x, a) = ({x}, {a}).")
    policy = np.ascontiguousarray(policy, dtype=np.float64)
    sums = np.einsum("xa->x", policy)  # many times faster than a sum over a short axis
    broken = ~(abs(sums - 1) <= off)
    if broken.any():
        x = int(np.argmax(broken))
        raise ValueError(f"`{name}` must have rows that sum to 1; got {sums[x]:.6g} at x = {x}.")
    return policy
