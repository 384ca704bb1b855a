"""The traces inside the kernels: one table, one formula for c and one for β.

A trace that is not in the table learns all the same: where π and μ are fixed it is asked once for every c(x, a), else
the learner of `generic.py` calls it step by step.
"""

from typing import Any, NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.traces import (
    RBIS,
    ContinuousACER,
    ImportanceSampling,
    OneStep,
    QLambda,
    QSigma,
    RecursiveRetrace,
    Retrace,
    SoftWatkins,
    TreeBackup,
    TruncatedIS,
    Watkins,
)

GIVEN, ZERO, IS, LAMBDA, TB, RETRACE, WATKINS, SOFT_WATKINS, ACER, Q_SIGMA = range(10)
RECURSIVE_RETRACE, TRUNCATED_IS, RBIS_ = TRAJECTORY_AWARE = range(10, 13)
FIRST_AWARE = TRAJECTORY_AWARE[0]

RULES: dict[type, tuple[int, str]] = {
    OneStep: (ZERO, ""),
    ImportanceSampling: (IS, ""),
    QLambda: (LAMBDA, ""),
    TreeBackup: (TB, ""),
    Retrace: (RETRACE, ""),
    Watkins: (WATKINS, ""),
    SoftWatkins: (SOFT_WATKINS, "kappa"),
    ContinuousACER: (ACER, "num_dims"),
    QSigma: (Q_SIGMA, "sigma"),
    RecursiveRetrace: (RECURSIVE_RETRACE, ""),
    TruncatedIS: (TRUNCATED_IS, ""),
    RBIS: (RBIS_, ""),
}
"""Class to its number, and the name of its parameter beside λ. A subclass is another trace, and has no row here."""


class Rule(NamedTuple):
    """A trace as the kernels see it."""

    kind: int
    lambda_: float
    parameter: float
    c: np.ndarray
    """(X·A,) where `kind` is GIVEN, else empty."""


def rule(trace: Any, *, pi: np.ndarray | None, mu: np.ndarray | None) -> Rule | None:
    """The trace in compiled form, or None where it has to be called step by step. `pi`, `mu`: (X, A) where fixed."""
    if type(trace) in RULES:
        kind, parameter = RULES[type(trace)]
        return Rule(kind, float(trace.lambda_), float(getattr(trace, parameter)) if parameter else 0.0, np.empty(0))
    if not trace.markov or trace.reads_q or pi is None or mu is None:
        return None
    c = np.zeros(pi.size)
    taken = mu.ravel() > 0  # no other action is ever seen
    c[taken] = trace(pi_a=pi.ravel()[taken], mu_a=mu.ravel()[taken])
    return Rule(GIVEN, 1.0, 0.0, c)


@jit(forceinline=True)
def coefficient(kind, lambda_, parameter, given, pair, a, pi_a, mu_a, q, x, pi):
    """c(x, a) of a Markov trace; q[x] is read by those that ask what is greedy, μ only by those that need it."""
    if kind == GIVEN:
        return given[pair]
    if lambda_ == 0 or kind == ZERO:
        return 0.0
    factor = 1.0
    if kind in (RETRACE, ACER):
        factor = pi_a / mu_a if pi_a < mu_a else 1.0
        if kind == ACER:
            factor = factor ** (1.0 / parameter)
    elif kind == IS:
        factor = pi_a / mu_a
    elif kind == TB:
        factor = pi_a
    elif kind == Q_SIGMA:
        factor = parameter * (pi_a / mu_a) + (1 - parameter) * pi_a
    elif kind == WATKINS:
        for b in range(q.shape[1]):
            if q[x, b] > q[x, a]:
                factor = 0.0
    elif kind == SOFT_WATKINS:
        factor = 0.0
        for b in range(q.shape[1]):
            if q[x, a] >= q[x, b] - parameter * abs(q[x, b]):
                factor += pi[b]
    return lambda_ * factor


@jit(forceinline=True)
def next_beta(kind, lambda_, beta, ratio, lambda_product, log_product):
    """β_t of a trajectory-aware trace from β_{t−1}, ρ_t, λ^t and log Π ρ."""
    if kind == TRUNCATED_IS:
        return lambda_product * (np.exp(log_product) if log_product < 0 else 1.0)
    carried = beta * ratio
    if kind == RECURSIVE_RETRACE:
        return lambda_ * (carried if carried < 1 else 1.0)
    return carried if carried < lambda_product else lambda_product


@jit(forceinline=True)
def gone(kind, beta, lambda_product, log_product):
    """Whether β is 0 for good; the β of truncated IS can come back from an underflow."""
    if kind == TRUNCATED_IS:
        return lambda_product == 0 or log_product == -np.inf
    return beta == 0
