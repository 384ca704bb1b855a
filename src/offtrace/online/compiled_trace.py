"""A trace as the compiled learner takes it, and its coefficient c(x, a).

A trace with a formula in `offtrace.traces.formulas` is passed by its kind. Any other Markov trace
that does not read Q is called once for all (x, a) where π and μ are fixed. What is left runs in the
Python learner.
"""

from typing import NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.traces import Trace
from offtrace.traces.formulas import (
    GIVEN,
    KIND_ONE_STEP,
    KIND_SOFT_WATKINS,
    KIND_WATKINS,
    KINDS,
    PARAMETERS,
    factor,
    greedy_factor,
)


class CompiledTrace(NamedTuple):
    """A trace for the kernels."""

    kind: int
    lambda_: float
    parameter: float
    """The parameter besides λ; 0 where there is none."""
    c: np.ndarray
    """(X·A,) where `kind` is GIVEN, else empty."""


def compile_trace(trace: Trace, *, pi: np.ndarray | None, mu: np.ndarray | None) -> CompiledTrace | None:
    """Return the trace for the kernels, or None where it has to be called step by step.

    `pi` and `mu` are the policies (X, A) where they are fixed, else None.
    """
    cls = type(trace)
    if cls in KINDS:
        parameter = float(getattr(trace, PARAMETERS[cls])) if cls in PARAMETERS else 0.0
        return CompiledTrace(KINDS[cls], float(trace.lambda_), parameter, np.empty(0))
    if not trace.markov or trace.reads_q or pi is None or mu is None:
        return None
    c = np.zeros(pi.size)
    taken = mu.ravel() > 0  # no other action ever occurs
    c[taken] = trace(pi_a=pi.ravel()[taken], mu_a=mu.ravel()[taken])
    return CompiledTrace(GIVEN, 1.0, 0.0, c)


@jit(allocates=False, forceinline=True)
def coefficient(kind, lambda_, parameter, given, pair, a, pi_a, mu_a, q, x, pi):
    """c(x, a) of a Markov trace; Watkins' traces read q[x], the others π(a|x) and, where they need it, μ(a|x)."""
    if kind == GIVEN:
        return given[pair]
    if lambda_ == 0 or kind == KIND_ONE_STEP:
        return 0.0
    if kind in (KIND_WATKINS, KIND_SOFT_WATKINS):
        return lambda_ * greedy_factor(kind, parameter, q, pi, x, a)
    return lambda_ * factor(kind, parameter, pi_a, mu_a)
