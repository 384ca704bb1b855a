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
    as_trace,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from offtrace import doctor, mdp, online, operators, policies, safety, scores
    from offtrace.agent.policy import load_policy as load_policy
    from offtrace.agent.runs import Result
    from offtrace.agent.spec import TrainSpec
    from offtrace.agent.training import train
    from offtrace.mdp import FiniteMDP
    from offtrace.safety import analyze

_ROOMS = ("doctor", "mdp", "online", "operators", "policies", "safety", "scores")
_NAMES = {"FiniteMDP": "mdp", "analyze": "safety"}
_AGENT = {"TrainSpec": "spec", "Result": "runs", "load_policy": "policy"}
"""Names by their module, which is loaded with them; the last needs an extra."""

if not TYPE_CHECKING:
    # `from offtrace import *` asks for every name of `__all__`, so this one cannot be loaded by asking: it would
    # bring JAX, or fail where that is not installed. `load_policy` is not in `__all__` for the same reason.
    def train(spec: Any, output: Any = None, **options: Any) -> Any:
        """Trains the agent of a `TrainSpec`, and gives its `Result`; of several specs, a list.

        This is `offtrace.agent.training.train`, which says more: with `output` the run is kept in that folder.
        Options are `resume`, `allow_changes`, `checkpoint_seconds`, `tensorboard`, `watcher` and `stop`.
        """
        try:
            run = import_module("offtrace.agent.training").train
        except ModuleNotFoundError as missing:
            raise ImportError(f"`ot.train` needs more: pip install 'offtrace[agent]' ({missing})") from missing
        return run(spec, output, **options)


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
    "Result",
    "Retrace",
    "SoftWatkins",
    "Trace",
    "TrainSpec",
    "TrajectoryAware",
    "TreeBackup",
    "TruncatedIS",
    "UnsafeTraceWarning",
    "Watkins",
    "__version__",
    "analyze",
    "arrays",
    "as_trace",
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
    "traces",
    "train",
    "vtrace_targets",
]
