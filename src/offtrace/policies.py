"""Policies from action values: greedy, ε-greedy, softmax, the mixture of Eq. 8; and tests of Definition 1.

Arrays have the actions on their last axis, (…, A); NumPy, JAX and PyTorch in and out. An action of value −inf is
illegal: it gets probability 0, and ε is spread over the legal ones.
"""

from collections.abc import Sequence

import numpy as np

from offtrace.arrays import Array, expectation, is_concrete, library, namespace, quietly, shape_of
from offtrace.errors import raise_where

__all__ = [
    "distance_from_greedy",
    "epsilon_greedy",
    "greedy",
    "increasingly_greedy_gap",
    "is_increasingly_greedy",
    "mixture",
    "softmax",
    "uniform",
]

TIES = ("first", "share")


def __dir__() -> list[str]:
    return __all__


def greedy(q: Array, *, ties: str = "first") -> Array:
    """Return the greedy policy: π(a|x) = 1 for the best action.

    Where several are best, `ties="first"` takes the first, as `argmax` does; `ties="share"` splits evenly.

    >>> greedy(np.array([1.0, 3.0, 3.0]))
    array([0., 1., 0.])
    >>> greedy(np.array([1.0, 3.0, 3.0]), ties="share")
    array([0. , 0.5, 0.5])
    """
    q = _checked_values(q)
    xp = namespace(q)
    if ties == "first":
        options = {"device": q.device} if library(q) == "torch" else {}
        actions = xp.arange(q.shape[-1], **options)
        return xp.where(actions == q.argmax(-1)[..., None], xp.ones_like(q), xp.zeros_like(q))
    if ties == "share":
        best = xp.where(q == xp.amax(q, -1)[..., None], xp.ones_like(q), xp.zeros_like(q))
        return best / best.sum(-1)[..., None]
    raise ValueError(f"`ties` must be one of {', '.join(TIES)}; got {ties!r}.")


def uniform(q: Array) -> Array:
    """Return the policy with the same probability for every legal action.

    >>> uniform(np.array([1.0, 3.0, -np.inf]))
    array([0.5, 0.5, 0. ])
    """
    q = _checked_values(q)
    xp = namespace(q)
    legal = xp.where(q > -np.inf, xp.ones_like(q), xp.zeros_like(q))
    return legal / legal.sum(-1)[..., None]


def epsilon_greedy(q: Array, epsilon: Array, *, ties: str = "first") -> Array:
    """Return π = (1 − ε) greedy + ε uniform; ε is a number, or (…), one per state.

    >>> epsilon_greedy(np.array([1.0, 3.0]), 0.2)
    array([0.1, 0.9])
    """
    epsilon = _checked_share("epsilon", epsilon, q)
    return (1 - epsilon) * greedy(q, ties=ties) + epsilon * uniform(q)


def softmax(q: Array, beta: Array) -> Array:
    """Return π(a|x) ∝ exp(β Q(x, a)): uniform at β = 0, greedy as β grows; it never overflows.

    >>> softmax(np.array([1.0, 0.0]), 1.0).round(3)
    array([0.731, 0.269])
    """
    q = _checked_values(q)
    xp = namespace(q)
    if is_concrete(beta):
        raise_where(~_finite(beta, low=0), "beta", "must be a number of at least 0", np.asarray(beta), axis="x")
    if shape_of(beta):
        beta = beta[..., None]
    legal = q > -np.inf
    with quietly(xp, over="ignore"):  # an action far below the best overflows to −inf and gets 0
        below_best = xp.where(legal, q, 0) - xp.amax(q, -1)[..., None]
        weight = xp.where(legal, xp.exp(beta * below_best), xp.zeros_like(q))
    return weight / weight.sum(-1)[..., None]


def mixture(q: Array, mu: Array, epsilon: Array) -> Array:
    """Return μ_k of Eq. 8: 1 − ε on the greedy action, ε spread over the others in proportion to `mu`.

    Where `mu` takes only the greedy action the mixture is undefined, which is an error (Deviation D8).

    >>> mixture(np.array([5.0, 1.0, 2.0]), np.array([0.5, 0.4, 0.1]), 0.3)
    array([0.7 , 0.24, 0.06])
    """
    epsilon = _checked_share("epsilon", epsilon, q)
    best = greedy(q)
    xp = namespace(best, mu)
    others = xp.where(best == 1, 0, xp.asarray(mu))
    mass = others.sum(-1)[..., None]
    if is_concrete(mass):
        remedy = "Eq. 8 divides by 1 − μ(greedy); give another action a probability above 0 there."
        raise_where(
            ~(mass[..., 0] > 0), "mu", "must have mass on actions that are not greedy", mass[..., 0], remedy, axis="x"
        )
    return epsilon * others / mass + (1 - epsilon) * best


# -- increasingly greedy sequences (Definition 1) ------------------------------------------------------------


def increasingly_greedy_gap(policies: Sequence[Array], qs: Sequence[Array]) -> float:
    """Return the minimum over k and x of E_{π_{k+1}} Q_{k+1}(x, ·) − E_{π_k} Q_{k+1}(x, ·).

    If it is at least 0, Definition 1 holds for any P: P^{π_{k+1}} Q_{k+1} ≥ P^{π_k} Q_{k+1}. Conversely, Definition 1
    implies a difference of at least 0 at every state that is the only successor of some (x, a).

    >>> qs = [np.array([[10.0, 0.0]]), np.array([[1.0, 0.0]])]  # Lemma 3 is false as stated
    >>> round(increasingly_greedy_gap([softmax(q, 1.0) for q in qs], qs), 3)
    -0.269
    """
    if len(policies) != len(qs) or len(qs) < 2:
        raise ValueError(
            f"`policies` and `qs` must have the same length, at least 2; got {len(policies)} and {len(qs)}."
        )
    pairs = zip(policies[:-1], policies[1:], qs[1:], strict=True)
    return min(float((expectation(q, new) - expectation(q, old)).min()) for old, new, q in pairs)


def is_increasingly_greedy(policies: Sequence[Array], qs: Sequence[Array], *, tol: float = 1e-12) -> bool:
    """Return True if Definition 1 holds up to `tol` times the largest |Q|.

    >>> qs = [np.array([[0.0, 1.0]]), np.array([[3.0, 1.0]])]
    >>> is_increasingly_greedy([epsilon_greedy(q, 0.1) for q in qs], qs)  # Lemma 2
    True
    >>> is_increasingly_greedy([greedy(-q) for q in qs], qs)  # the paper's counter-example: the worst action
    False
    """
    return increasingly_greedy_gap(policies, qs) >= -tol * max(1.0, *(float(abs(q).max()) for q in qs))


def distance_from_greedy(pi: Array, q: Array) -> float:
    """Return ε_k of Theorem 3: the maximum over x of ‖π(·|x) − π_Q(·|x)‖₁, with ties to the first action.

    >>> round(distance_from_greedy(np.array([[0.9, 0.1]]), np.array([[1.0, 0.0]])), 6)
    0.2
    """
    return float(abs(pi - greedy(q)).sum(-1).max())


def _checked_values(q: Array) -> Array:
    if isinstance(q, (list, tuple)):
        q = np.asarray(q)
    if not hasattr(q, "shape") or len(q.shape) == 0 or q.shape[-1] == 0:
        raise ValueError(f"`q` must have the actions on its last axis; got shape {tuple(np.shape(q))}.")
    xp = namespace(q)
    if xp is np and q.dtype.kind != "f":
        q = np.asarray(q, dtype=np.float64)
    if is_concrete(q):
        raise_where(~(q < np.inf), "q", "must be numbers below +inf; −inf marks an illegal action", q, axis="x")
        raise_where(
            ~(xp.amax(q, -1) > -np.inf), "q", "must have a legal action in every state", xp.amax(q, -1), axis="x"
        )
    return q


def _checked_share(name: str, value: Array, q: Array) -> Array:
    """Return a number in [0, 1], or one per state, in a shape that multiplies (…, A)."""
    if is_concrete(value):
        raise_where(
            ~(_finite(value, low=0) & _finite(1 - value, low=0)),
            name,
            "must be in [0, 1]",
            np.asarray(value),
            axis="x",
        )
    own = shape_of(value)
    if not own:
        return value
    if own != shape_of(q)[:-1]:
        raise ValueError(f"`{name}` must be a number or have shape {shape_of(q)[:-1]}; got {own}.")
    return value[..., None]


def _finite(value: Array, *, low: float) -> np.ndarray:
    if library(value) == "torch":
        value = value.detach().cpu()
    number = np.asarray(value, dtype=np.float64)
    return np.isfinite(number) & (number >= low)
