"""offtrace: multi-step off-policy reinforcement learning, after Munos et al. (2016).

    import offtrace as ot
    ot.targets(q=q, a=a, r=r, discount=discount, pi=pi, mu_a=mu_a, trace=ot.Retrace(lambda_=1.0))

Importing it loads NumPy and nothing heavier.
"""

from offtrace import arrays, doctor, mdp, online, operators, policies, returns, safety, scores, traces
from offtrace.mdp import FiniteMDP
from offtrace.returns import (
    c_trace_targets,
    corrections,
    n_step_targets,
    peng_targets,
    targets,
    vtrace_targets,
)
from offtrace.returns.checks import UnsafeTraceWarning
from offtrace.safety import analyze
from offtrace.traces import (
    RBIS,
    TRACES,
    ContinuousACER,
    ImportanceSampling,
    OneStep,
    QLambda,
    QSigma,
    RecursiveRetrace,
    Retrace,
    SoftWatkins,
    Trace,
    TrajectoryAware,
    TreeBackup,
    TruncatedIS,
    Watkins,
    trace,
)

__version__ = "0.1.0"

__all__ = [
    "RBIS",
    "TRACES",
    "ContinuousACER",
    "FiniteMDP",
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
    "UnsafeTraceWarning",
    "Watkins",
    "__version__",
    "analyze",
    "arrays",
    "c_trace_targets",
    "corrections",
    "doctor",
    "mdp",
    "n_step_targets",
    "online",
    "operators",
    "peng_targets",
    "policies",
    "returns",
    "safety",
    "scores",
    "targets",
    "trace",
    "traces",
    "vtrace_targets",
]
