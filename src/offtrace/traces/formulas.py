"""The traces' formulas for Numba kernels, and the number by which a kernel knows each trace.

    factor             c / λ of the traces that read π(a|x) and μ(a|x) only
    greedy_factor      c / λ of Watkins' traces, which read Q(x, ·)
    next_beta, is_cut  the β recursion of trajectory-aware traces (`beta.py` has it for arrays)

The kernels of `returns` and `online` both call these. They are inlined into the caller, so a `kind`
that is constant at compile time costs nothing. A trace without a formula here works, too.
Importing this module loads Numba; `offtrace.traces` does not import it.
"""

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
    Trace,
    TreeBackup,
    TruncatedIS,
    Watkins,
)

GIVEN = 0
"""Not a formula: the kernel is handed an array of c."""
KIND_ONE_STEP = 1
KIND_IS = 2
KIND_Q_LAMBDA = 3
KIND_TREE_BACKUP = 4
KIND_RETRACE = 5
KIND_WATKINS = 6
KIND_SOFT_WATKINS = 7
KIND_ACER = 8
KIND_Q_SIGMA = 9
KIND_RECURSIVE_RETRACE = 10
KIND_TRUNCATED_IS = 11
KIND_RBIS = 12

KINDS: dict[type[Trace], int] = {
    OneStep: KIND_ONE_STEP,
    ImportanceSampling: KIND_IS,
    QLambda: KIND_Q_LAMBDA,
    TreeBackup: KIND_TREE_BACKUP,
    Retrace: KIND_RETRACE,
    Watkins: KIND_WATKINS,
    SoftWatkins: KIND_SOFT_WATKINS,
    ContinuousACER: KIND_ACER,
    QSigma: KIND_Q_SIGMA,
    RecursiveRetrace: KIND_RECURSIVE_RETRACE,
    TruncatedIS: KIND_TRUNCATED_IS,
    RBIS: KIND_RBIS,
}
"""The number of each trace that has a formula here. A subclass is another trace, so look up `type(trace)`."""

PARAMETERS: dict[type, str] = {SoftWatkins: "kappa", ContinuousACER: "num_dims", QSigma: "sigma"}
"""The field of the traces that have a parameter besides λ."""

FIRST_TRAJECTORY_AWARE = KIND_RECURSIVE_RETRACE
"""Kinds from this one on have a β instead of a c."""


@jit(allocates=False, forceinline=True)
def factor(kind, parameter, pi_a, mu_a):
    """c / λ for the traces that read π(a|x) and μ(a|x) only; μ is read only by those whose formula has it."""
    if kind == KIND_ONE_STEP:
        return 0.0
    if kind == KIND_TREE_BACKUP:
        return pi_a
    if kind == KIND_Q_LAMBDA:
        return 1.0
    ratio = pi_a / mu_a
    if kind == KIND_IS:
        return ratio
    if kind == KIND_Q_SIGMA:
        return parameter * ratio + (1 - parameter) * pi_a
    clipped = ratio if ratio < 1 else 1.0
    if kind == KIND_ACER:
        return clipped ** (1.0 / parameter)
    return clipped  # Retrace


@jit(allocates=False, forceinline=True)
def greedy_factor(kind, parameter, q, pi, x, a):
    """c / λ for Watkins' traces, from Q (X, A) and π(·|x) (A,)."""
    if kind == KIND_WATKINS:
        for b in range(q.shape[1]):
            if q[x, b] > q[x, a]:
                return 0.0
        return 1.0
    matched = 0.0
    for b in range(q.shape[1]):
        if q[x, a] >= q[x, b] - parameter * abs(q[x, b]):
            matched += pi[b]
    return matched


@jit(allocates=False, forceinline=True)
def next_beta(kind, lambda_, beta, ratio, lambda_product, log_product):
    """β_t from β_{t−1}, ρ_t, Π λ and log Π ρ; truncated IS alone reads the last one."""
    if kind == KIND_TRUNCATED_IS:
        return lambda_product * (np.exp(log_product) if log_product < 0 else 1.0)
    carried = beta * ratio
    if kind == KIND_RECURSIVE_RETRACE:
        return lambda_ * (carried if carried < 1 else 1.0)
    return carried if carried < lambda_product else lambda_product  # RBIS


@jit(allocates=False, forceinline=True)
def is_cut(kind, beta, lambda_product, log_product):
    """Whether β stays 0 from here on. The β of truncated IS may underflow to 0 and come back."""
    if kind == KIND_TRUNCATED_IS:
        return lambda_product == 0 or log_product == -np.inf
    return beta == 0
