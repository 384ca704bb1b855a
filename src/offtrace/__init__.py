"""offtrace: multi-step off-policy reinforcement learning, after Munos et al. (2016).

    import offtrace as ot
    ot.targets(q=q, a=a, r=r, discount=discount, pi=pi, mu_a=mu_a, trace=ot.Retrace(lambda_=1.0))

Importing it loads NumPy, the traces and the return operator; every other room is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offtrace import arrays, returns, traces
from offtrace.returns import (
    c_trace_targets,
    corrections,
    n_step_targets,
    peng_targets,
    targets,
    vtrace_targets,
)
from offtrace.returns.checks import UnsafeTraceWarning
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

if TYPE_CHECKING:
    from offtrace import doctor, mdp, online, operators, policies, safety, scores
    from offtrace.agent.policy import load_policy as load_policy
    from offtrace.agent.runs import Result as Result
    from offtrace.agent.spec import TrainSpec as TrainSpec
    from offtrace.agent.training import train as train
    from offtrace.mdp import FiniteMDP
    from offtrace.safety import analyze

_ROOMS = ("doctor", "mdp", "online", "operators", "policies", "safety", "scores")
_NAMES = {"FiniteMDP": "mdp", "analyze": "safety"}
_AGENT = {"train": "training", "TrainSpec": "spec", "Result": "runs", "load_policy": "policy"}
"""Names by their module, which is loaded with them; the agent's needs an extra."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"offtrace.{name}")
    if name in _NAMES:
        return getattr(import_module(f"offtrace.{_NAMES[name]}"), name)
    if name in _AGENT:
        try:
            return getattr(import_module(f"offtrace.agent.{_AGENT[name]}"), name)
        except ModuleNotFoundError as missing:  # who only looks around, as `help` does, is not stopped by that
            raise AttributeError(f"`ot.{name}` needs more: pip install 'offtrace[agent]' ({missing})") from missing
    raise AttributeError(f"module 'offtrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_NAMES, *_AGENT})


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
