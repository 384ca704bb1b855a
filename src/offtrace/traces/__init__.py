"""Table 1 of the paper and its successors: how much of a later TD error reaches back.

Every algorithm of the paper is the same operator (Eq. 3),

    R Q(x, a) = Q(x, a) + E_μ[ Σ_t γ^t (Π_{s=1..t} c_s) (r_t + γ E_π Q(x_{t+1}, ·) − Q(x_t, a_t)) ],

and differs only in its coefficients c_s. A trace is a small frozen value that computes them, and its class states
what is known about it: names, needs, theory. A new trace is one class, in `markov.py` or `trajectory_aware.py`, and
one row of `TRACES`. A trace of your own needs no row: subclass `Trace` or `TrajectoryAware`, or pass a function.
"""

from offtrace.traces.base import Trace
from offtrace.traces.function import FunctionTrace
from offtrace.traces.markov import (
    ContinuousACER,
    ImportanceSampling,
    OneStep,
    QLambda,
    QSigma,
    Retrace,
    SoftWatkins,
    TreeBackup,
    Watkins,
)
from offtrace.traces.names import TRACES, WITHOUT_LAMBDA, as_trace, check_name
from offtrace.traces.trajectory_aware import RBIS, RecursiveRetrace, TrajectoryAware, TruncatedIS

__all__ = [
    "RBIS",
    "TRACES",
    "WITHOUT_LAMBDA",
    "ContinuousACER",
    "FunctionTrace",
    "ImportanceSampling",
    "OneStep",
    "QLambda",
    "QSigma",
    "RecursiveRetrace",
    "Retrace",
    "SoftWatkins",
    "Trace",
    "TrajectoryAware",
    "TreeBackup",
    "TruncatedIS",
    "Watkins",
    "as_trace",
    "check_name",
]


def __dir__() -> list[str]:
    return sorted(__all__)
