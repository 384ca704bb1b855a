"""The double sum as the paper prints it: slow and obvious, the oracle of the tests.

    ΔQ(x_t, a_t) = Σ_{s ≥ t} (Π_{i=t..s−1} γ_i) (Π_{i=t+1..s} c_i) [ r_s + γ_s E_π Q(x_{s+1}, ·) − Q(x_s, a_s) ]

with γ_i = `discount[i]`; the sum ends where the trajectory ends. Float64 and Python loops, one batch element and
one start at a time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Weights = Callable[[int, int, tuple[int, ...]], float]
"""Maps (start, step, batch index) to the product of the traces between start and step."""


def corrections(
    *,
    q_a: Any,
    expected_q: Any,
    r: Any,
    discount: Any,
    c: Any,
    reset: Any = None,
    mask: Any = None,
) -> np.ndarray:
    """Return Δ from given coefficients.

    >>> corrections(q_a=[1.0, 2.0], expected_q=[2.0, 0.0], r=[1.0, 1.5], discount=[0.5, 0.0], c=[1.0, 1.0])
    array([ 0.75, -0.5 ])
    """
    c = np.asarray(c, np.float64)

    def product(start: int, step: int, b: tuple[int, ...]) -> float:
        weight = 1.0
        for i in range(start + 1, step + 1):
            weight *= float(c[(i, *b)])
        return weight

    return double_sum(q_a, expected_q, r, discount, product, reset=reset, mask=mask)[0]


def double_sum(
    q_a: Any, expected_q: Any, r: Any, discount: Any, weight: Weights, *, reset: Any = None, mask: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return Δ, and the sum of its absolute terms, which rounding errors are compared with."""
    r = np.asarray(r, np.float64)
    discount = np.asarray(discount, np.float64)
    q_a = np.asarray(q_a, np.float64)
    expected_q = np.asarray(expected_q, np.float64)
    n, *batch = r.shape
    total = np.zeros(r.shape)
    absolute = np.zeros(r.shape)
    for b in np.ndindex(*batch):
        for start in range(n):
            if mask is not None and not mask[(start, *b)]:
                continue
            reach = 1.0
            for s in range(start, n):
                if s > start and _ends_before(s, b, reset, mask):
                    break
                bootstrap = 0.0
                if discount[(s, *b)] != 0:
                    bootstrap = discount[(s, *b)] * expected_q[(s, *b)]
                factor = reach * weight(start, s, b)
                if factor != 0:
                    total[(start, *b)] += factor * (r[(s, *b)] + bootstrap - q_a[(s, *b)])
                    terms = abs(r[(s, *b)]) + abs(bootstrap) + abs(q_a[(s, *b)])
                    absolute[(start, *b)] += abs(factor) * terms
                reach *= discount[(s, *b)]
                if reach == 0:
                    break
    return total, absolute


def expectations(q: Any, pi: Any) -> np.ndarray:
    """Return E_π Q(x_{t+1}, ·), the values of the successors: (n, …)."""
    q = np.asarray(q, np.float64)
    pi = np.asarray(pi, np.float64)
    values = np.zeros(q.shape[:-1])
    for place in np.ndindex(*q.shape[:-1]):
        for action in range(q.shape[-1]):
            if pi[(*place, action)] != 0:
                values[place] += pi[(*place, action)] * q[(*place, action)]
    return values[1:]


def _ends_before(s: int, b: tuple[int, ...], reset: Any, mask: Any) -> bool:
    """Return True if row s does not continue the trajectory: a new episode starts in it, or it is masked."""
    is_reset = reset is not None and reset[(s, *b)]
    is_masked = mask is not None and not mask[(s, *b)]
    return bool(is_reset or is_masked)
