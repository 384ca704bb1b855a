"""Sweeps: define one, run it, read its results as arrays, a data frame, or a ranking.

sweep = ot.experiments.Sweep(["pocket/catch"], traces=["retrace", "dqn"], axes={"step_size": [1e-4, 1e-3]})
results = ot.experiments.run(sweep, "results.sqlite")      # trains what is missing in the file
results = ot.experiments.read("results.sqlite")            # or only reads it
results.scores("evaluation").select(trace="retrace", step_size=1e-3).values
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offtrace.experiments.interface import Results, read, run
    from offtrace.experiments.named_array import NamedArray
    from offtrace.experiments.presets import preset
    from offtrace.experiments.progress import SweepProgress
    from offtrace.experiments.spec import Sweep, runs_of

# Loaded on first use: other modules of this package need only a part of it.
_NAMES = {
    "NamedArray": "named_array",
    "Results": "interface",
    "Sweep": "spec",
    "SweepProgress": "progress",
    "preset": "presets",
    "read": "interface",
    "run": "interface",
    "runs_of": "spec",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'offtrace.experiments' has no attribute {name!r}")
    try:
        return getattr(import_module(f"offtrace.experiments.{_NAMES[name]}"), name)
    except ModuleNotFoundError as missing:  # AttributeError, so help() and hasattr() still work
        raise AttributeError(
            f"`ot.experiments.{name}` needs an extra: pip install 'offtrace[agent]' ({missing})"
        ) from missing


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["NamedArray", "Results", "Sweep", "SweepProgress", "preset", "read", "run", "runs_of"]
