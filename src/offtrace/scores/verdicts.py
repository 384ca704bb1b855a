"""When a few seeds may decide: Student's t with an allowance for skewness, and Holm's method for several claims.

Student's t is exact for normal scores. Scores of runs are often skewed, and with few seeds that
makes its tails too thin: on four games, where one of two algorithms is as skewed as an exponential
and the other is not, a test of 5 % errs in 6 to 7 % of cases, and one of 5 %/6 up to three times
as often as it says. A verdict therefore allows for that much skewness and somewhat more, by the
first term of Cornish and Fisher's expansion, and counts no more runs than its smallest block has.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.scale import Array

SKEWNESS = 2.5
"""Skewness of a run that is allowed for: an exponential has 2, and runs of which one in nine fails have 2.5."""
MIN_SEEDS = 3
"""Seeds that a verdict needs."""


def skewness_allowance(t: ArrayLike, num_runs: ArrayLike) -> Array:
    """Return the half-width in standard errors that replaces Student's t.

        t + γ (2t² + 1) / 6,    γ = 2.5/√n

    >>> float(skewness_allowance(2.0, 16))  # 2 + 0.625 · 9 / 6
    2.9375
    """
    t = np.asarray(t, dtype=np.float64)
    skewness = SKEWNESS / np.sqrt(num_runs)
    return t + skewness * (2.0 * t**2 + 1.0) / 6.0


def one_sided_p_value(ratio: ArrayLike, num_runs: ArrayLike) -> Array:
    """Return the p-value of an estimate this many standard errors above 0; 1 if it is not above 0.

    >>> one_sided_p_value(np.array([3.1821, -1.0]), 16).round(4)
    array([0.025, 1.   ])
    """
    from scipy.special import stdtr

    ratio = np.asarray(ratio, dtype=np.float64)
    num_runs = np.asarray(num_runs)
    skewness = SKEWNESS / np.sqrt(num_runs)
    above = np.maximum(ratio, 0.0)
    # The inverse of `skewness_allowance`: the t that would need this many standard errors.
    t = (np.sqrt(1.0 + 4.0 * skewness / 3.0 * (above - skewness / 6.0)) - 1.0) / (2.0 * skewness / 3.0)
    return np.where(ratio > 0.0, stdtr(num_runs - 1.0, -t), 1.0)[()]


def half_width(outside: float, num_runs: ArrayLike) -> Array:
    """Return half the width, in standard errors, of an interval that leaves out a share `outside`.

    >>> half_width(0.05, np.array([3, 16])).round(2)  # Student's t: 4.3 and 2.13
    array([13.45,  3.18])
    """
    from scipy.special import stdtrit

    return skewness_allowance(stdtrit(np.asarray(num_runs) - 1.0, 1.0 - outside / 2.0), num_runs)


def holm(p_values: Sequence[float | None], *, level: float = 0.05) -> list[bool]:
    """Return which p-values are significant if the chance of any error at all is to be at most `level`.

    The smallest of m p-values must be at most level/m, the next one level/(m − 1), and so on until
    one is not. None means that there was no test: it is never significant and does not count.

    >>> holm([0.04, 0.01, None, 0.02])  # 0.01 ≤ 0.05/3, 0.02 ≤ 0.05/2, 0.04 ≤ 0.05
    [True, True, False, True]
    >>> holm([0.04, 0.01, 0.03])  # 0.03 > 0.05/2
    [False, True, False]
    """
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    significant = [False] * len(p_values)
    for rank, (p, i) in enumerate(tested):
        if p > level / (len(tested) - rank):
            break
        significant[i] = True
    return significant
