"""offtrace: multi-step off-policy reinforcement learning, after Munos et al. (2016).

    import offtrace as ot
    ot.targets(q=q, a=a, r=r, discount=discount, pi=pi, mu_a=mu_a, trace=ot.Retrace(lambda_=1.0))

Importing it loads NumPy, the traces and the return operator. Other packages are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offtrace import returns, traces
from offtrace.returns import (
    c_trace_targets,
    corrections,
    flags_from_gymnasium,
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
    from offtrace import doctor, evaluation, experiments, mdp, online, operators, policies, safety, scores
    from offtrace.agent.runs import Result
    from offtrace.agent.spec import TrainSpec
    from offtrace.agent.telemetry import Watcher
    from offtrace.agent.training import train
    from offtrace.experiments.trained import load_policies as load_policies
    from offtrace.experiments.trained import load_policy as load_policy
    from offtrace.mdp import FiniteMDP
    from offtrace.safety import analyze

# Loaded on first use: packages, and names with the module that defines them. Those of the agent need an extra.
_PACKAGES = ("doctor", "evaluation", "experiments", "mdp", "online", "operators", "policies", "safety", "scores")
_NAMES = {"FiniteMDP": "mdp", "analyze": "safety"}
_AGENT = {
    "TrainSpec": "agent.spec",
    "Result": "agent.runs",
    "Watcher": "agent.telemetry",
    "load_policies": "experiments.trained",
    "load_policy": "experiments.trained",
}

_LOADING = ("load_policies", "load_policy")

if not TYPE_CHECKING:
    # `from offtrace import *` looks up every name of `__all__`. If `train` were loaded by `__getattr__`, that would
    # import JAX, or fail where it is not installed. Those of `_LOADING` are not in `__all__` for the same reason.
    def train(
        spec: Any,
        output: Any = None,
        *,
        resume: bool = False,
        new_episodes: bool = False,
        allow_changes: bool = False,
        checkpoint_seconds: float = 30.0,
        tensorboard: bool = False,
        watcher: Any = None,
        stop: Any = lambda: False,
    ) -> Any:
        """Train the agent of a `TrainSpec` and return its `Result`; for a list of specs, a list of results.

        With `output` the run is kept in that folder, and `resume=True` continues it. The docstring of
        `offtrace.agent.training.train`, which this calls, describes all options.
        """
        try:
            run = import_module("offtrace.agent.training").train
        except ModuleNotFoundError as missing:
            raise ImportError(f"`ot.train` needs an extra: pip install 'offtrace[agent]' ({missing})") from missing
        return run(
            spec,
            output,
            resume=resume,
            new_episodes=new_episodes,
            allow_changes=allow_changes,
            checkpoint_seconds=checkpoint_seconds,
            tensorboard=tensorboard,
            watcher=watcher,
            stop=stop,
        )


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"offtrace.{name}")
    if name in _NAMES:
        return getattr(import_module(f"offtrace.{_NAMES[name]}"), name)
    if name in _AGENT:
        try:
            return getattr(import_module(f"offtrace.{_AGENT[name]}"), name)
        except ModuleNotFoundError as missing:  # AttributeError, so help() and hasattr() still work
            raise AttributeError(
                f"`ot.{name}` needs an extra: pip install 'offtrace[agent]' ({missing})"
            ) from missing
    for cls in TRACES.values():  # so that a new row of the table is public at once
        if cls.__name__ == name:
            return cls
    raise AttributeError(f"module 'offtrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_LOADING})


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
    "Watcher",
    "Watkins",
    "__version__",
    "analyze",
    "as_trace",
    "c_trace_targets",
    "corrections",
    "doctor",
    "evaluation",
    "experiments",
    "flags_from_gymnasium",
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
