"""When a few seeds may decide: Student's t with an allowance for skewness, and Holm's method for several claims.

Student's t is exact for normal scores. Scores of runs are often skewed, and with few seeds that makes its tails too
thin: on four games, where one of two algorithms is as skewed as an exponential and the other is not, a test of 5 %
errs in 6 to 7 % of cases, and one of 5 %/6 up to three times as often as it says. A verdict therefore allows for that
much skewness and somewhat more, by the first term of Cornish and Fisher's expansion, and counts no more runs than its
smallest block has.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.scale import Array

SKEWNESS = 2.5
"""Of a run, that is allowed for: an exponential has 2, and runs of which one in nine fails have 2.5."""
FEWEST = 3
"""Seeds that a verdict needs."""


def allowance(t: ArrayLike, num_runs: ArrayLike) -> Array:
    """How many standard errors an interval needs, where Student's would need t.

        t + γ (2t² + 1) / 6,    γ = 2.5/√n

    >>> float(allowance(2.0, 16))  # 2 + 0.625 · 9 / 6
    2.9375
    """
    t, skewness = np.asarray(t, dtype=np.float64), SKEWNESS / np.sqrt(num_runs)
    return t + skewness * (2.0 * t**2 + 1.0) / 6.0


def tail(ratio: ArrayLike, num_runs: ArrayLike) -> Array:
    """The one-sided p-value of a value that is this many standard errors above 0; 1 if it is not above.

    >>> tail(np.array([3.1821, -1.0]), 16).round(4)
    array([0.025, 1.   ])
    """
    from scipy.special import stdtr

    ratio, num_runs = np.asarray(ratio, dtype=np.float64), np.asarray(num_runs)
    skewness = SKEWNESS / np.sqrt(num_runs)
    above = np.maximum(ratio, 0.0)
    t = (np.sqrt(1.0 + 4.0 * skewness / 3.0 * (above - skewness / 6.0)) - 1.0) / (2.0 * skewness / 3.0)
    return np.where(ratio > 0.0, stdtr(num_runs - 1.0, -t), 1.0)[()]


def half_width(outside: float, num_runs: ArrayLike) -> Array:
    """Half the width, in standard errors, of an interval that leaves out this share.

    >>> half_width(0.05, np.array([3, 16])).round(2)  # where Student's t has 4.3 and 2.13
    array([13.45,  3.18])
    """
    from scipy.special import stdtrit

    return allowance(stdtrit(np.asarray(num_runs) - 1.0, 1.0 - outside / 2.0), num_runs)


def holm(p_values: Sequence[float | None], *, level: float = 0.05) -> list[bool]:
    """Which of these are significant when the chance of a single error in all of them is to be at most `level`.

    The smallest of m p-values must be at most level/m, the next one level/(m − 1), and so on until one is not. None
    is no test: it is never significant and does not count.

    >>> holm([0.04, 0.01, None, 0.02])  # 0.01 ≤ 0.05/3, 0.02 ≤ 0.05/2, 0.04 ≤ 0.05
    [True, True, False, True]
    >>> holm([0.04, 0.01, 0.03])  # 0.03 > 0.05/2
    [False, True, False]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    found = [False] * len(p_values)
    for rank, (p, i) in enumerate(known):
        if p > level / (len(known) - rank):
            break
        found[i] = True
    return found
