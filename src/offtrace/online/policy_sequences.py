"""Sequences of policies π_k and μ_k: the policy learned about, or acted with, in trajectory k, given Q_k.

Each is a small frozen value. `row` is the policy at one state, as in `offtrace.policies` but
without checks, for the Python learner; the kernels have the same formulas under the number `code`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from offtrace.mdp.finite import checked_policy
from offtrace.online.schedules import Schedule, numbers

FIXED, EPSILON_GREEDY, SOFTMAX, MIXTURE, EPSILON_SHARED = range(5)
"""The formulas that the kernels know; ε-greedy is two: the first best action, or all of them."""

TIES = ("share", "first")


class PolicySequence(Protocol):
    """π_k or μ_k as the learners use it."""

    @property
    def code(self) -> int | None:
        """Number of the formula in the kernels; None if there is none."""
        ...

    def parameters(self, num: int) -> np.ndarray:
        """Return ε_k or β_k for the trajectories 0 … num − 1."""
        ...

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        """Return the policy (X, A) that the formula reads; (0, A) where it reads none."""
        ...

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        """Return π_k(·|x), (A,), from q = Q(x, ·)."""
        ...


@dataclass(frozen=True, eq=False)
class Fixed:
    """The same policy (X, A) in every trajectory.

    >>> Fixed([[0.25, 0.75]]).row(np.zeros(2), 0, 0, 0.0)
    array([0.25, 0.75])
    """

    policy: Any
    name: str = "policy"
    code: ClassVar[int] = FIXED

    def __post_init__(self) -> None:
        given = np.asarray(self.policy)
        if given.ndim != 2:
            raise ValueError(f"`{self.name}` must have shape (X, A); got {given.shape}.")
        object.__setattr__(self, "policy", checked_policy(given, given.shape, self.name))

    def parameters(self, num: int) -> np.ndarray:
        return np.zeros(num)

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        return checked_policy(self.policy, shape, self.name)

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        return self.policy[x]


@dataclass(frozen=True, eq=False)
class EpsilonGreedy:
    """(1 − ε_k) greedy + ε_k uniform; increasingly greedy where ε_k does not grow (Lemma 2).

    Actions that are equally good share 1 − ε_k, so no action is preferred before anything is known;
    `ties="first"` gives it all to the first of them.

    >>> EpsilonGreedy(0.2).row(np.array([1.0, 3.0]), 0, 0, 0.2)
    array([0.1, 0.9])
    >>> EpsilonGreedy(0.3).row(np.array([3.0, 1.0, 3.0]), 0, 0, 0.3)
    array([0.45, 0.1 , 0.45])
    """

    epsilon: Schedule = 0.1
    ties: str = "share"

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise ValueError(f"`ties` must be one of {', '.join(TIES)}; got {self.ties!r}.")

    @property
    def code(self) -> int:
        return EPSILON_GREEDY if self.ties == "first" else EPSILON_SHARED

    def parameters(self, num: int) -> np.ndarray:
        return numbers(self.epsilon, num, "epsilon", low=0, high=1)

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        return np.empty((0, shape[1]))

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        row = np.full(len(q), parameter * (1.0 / len(q)))
        if self.ties == "first":
            row[q.argmax()] += 1 - parameter
        else:
            best = q == q.max()
            row[best] += (1 - parameter) / np.count_nonzero(best)
        return row


def Greedy(ties: str = "share") -> EpsilonGreedy:
    """Return the greedy policy. As a target it makes Retrace Watkins' Q(λ).

    >>> Greedy().row(np.array([1.0, 3.0]), 0, 0, 0.0)
    array([0., 1.])
    """
    return EpsilonGreedy(0.0, ties)


@dataclass(frozen=True, eq=False)
class Softmax:
    """π_k(a|x) ∝ exp(β_k Q_k(x, a)); not always increasingly greedy, contrary to Lemma 3 (Deviation D9).

    >>> Softmax(1.0).row(np.array([0.0, 0.0]), 0, 0, 1.0)
    array([0.5, 0.5])
    """

    beta: Schedule = 1.0
    code: ClassVar[int] = SOFTMAX

    def parameters(self, num: int) -> np.ndarray:
        return numbers(self.beta, num, "beta", low=0)

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        return np.empty((0, shape[1]))

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        weight = np.exp(parameter * (q - q.max()))
        return weight / weight.sum()


@dataclass(frozen=True, eq=False)
class Mixture:
    """Eq. 8: 1 − ε_k on the first greedy action, ε_k over the others in proportion to `mu`; ε_k need not go to 0.

    Eq. 8 is undefined where `mu` takes a single action and that action is greedy, so `mu` must take
    two or more.

    >>> Mixture([[0.5, 0.4, 0.1]], 0.3).row(np.array([5.0, 1.0, 2.0]), 0, 0, 0.3)
    array([0.7 , 0.24, 0.06])
    """

    mu: Any
    epsilon: Schedule = 0.1
    code: ClassVar[int] = MIXTURE

    def __post_init__(self) -> None:
        mu = Fixed(self.mu, "mu").policy
        alone = (mu > 0).sum(1) < 2
        if alone.any():
            x = int(np.argmax(alone))
            raise ValueError(
                f"`mu` must have mass on two actions or more; got {mu[x]} at x = {x}. Eq. 8 divides by "
                "1 − μ(greedy): mix in a little of another action."
            )
        object.__setattr__(self, "mu", mu)

    def parameters(self, num: int) -> np.ndarray:
        return numbers(self.epsilon, num, "epsilon", low=0, high=1)

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        return checked_policy(self.mu, shape, "mu")

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        best = q.argmax()
        others = self.mu[x].copy()
        others[best] = 0.0
        row = parameter * others / others.sum()
        row[best] = 1 - parameter
        return row


@dataclass(frozen=True, eq=False)
class FunctionPolicy:
    """A user's `function(q, x, k)` from Q(x, ·) to a distribution (A,); runs in the Python learner."""

    function: Callable[[np.ndarray, int, int], Any]
    name: str
    code: ClassVar[None] = None

    def parameters(self, num: int) -> np.ndarray:
        return np.zeros(num)

    def table(self, shape: tuple[int, int]) -> np.ndarray:
        return np.empty((0, shape[1]))

    def row(self, q: np.ndarray, x: int, k: int, parameter: float) -> np.ndarray:
        given = np.asarray(self.function(q, x, k))[None]
        return checked_policy(given, (1, len(q)), self.name)[0]


def as_policy_sequence(given: Any, name: str) -> PolicySequence:
    """Return a sequence as it is, an array (X, A) as a fixed policy, and a function as a `FunctionPolicy`."""
    if isinstance(given, Fixed | EpsilonGreedy | Softmax | Mixture | FunctionPolicy):
        return given
    if callable(given):
        return FunctionPolicy(given, name)
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 2:
        raise TypeError(
            f"`{name}` must be a policy (X, A), or a sequence such as EpsilonGreedy(0.1), Greedy(), Softmax(5.0), "
            f"Mixture(mu, 0.1) or a function of (q, x, k); got {given!r}."
        )
    return Fixed(array, name)
