"""Input checks of the functions in `__init__.py`: each error names the argument, the rule, the value and a remedy."""

from typing import Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_gamma
from offtrace.online import sources
from offtrace.online.records import Trajectories
from offtrace.traces import Trace


def check_trace(trace: Trace, source: Any) -> None:
    """Check that λ is one number, and that stored trajectories have the μ that the trace reads."""
    if np.ndim(trace.lambda_):
        raise ValueError(f"`lambda_` must be one number here; got shape {np.shape(trace.lambda_)}.")
    if isinstance(source, Trajectories) and source.mu_a is None and trace.needs_mu:
        raise TypeError(
            f"{trace.name} needs μ(a_t|x_t): the trajectories must have `mu_a`, as it was when a_t was drawn."
        )


def shape_and_gamma(source: Any, gamma: Any) -> tuple[tuple[int, int], float]:
    """Return (X, A) and γ; a model and trajectories have a γ of their own, which `gamma` overrides."""
    if isinstance(source, FiniteMDP | Trajectories):
        if gamma is None:
            return source.shape, source.gamma
        return source.shape, checked_gamma(gamma)
    if not sources.is_gymnasium(source):
        raise TypeError(
            "the first argument must be a FiniteMDP, a Gymnasium environment or Trajectories; "
            f"got {type(source).__name__}."
        )
    if gamma is None:
        raise TypeError("`gamma` must be given with a Gymnasium environment, which has no γ of its own.")
    return sources.gymnasium_shape(source), checked_gamma(gamma)


def count(name: str, value: Any, low: int) -> int:
    """Return a whole number after checking that it is at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ValueError(f"`{name}` must be a whole number of at least {low}; got {value!r}.")
    return int(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return a choice after checking that it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}.")
    return value


def table(name: str, given: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return a number for all pairs, or an array (X, A), as a new float64 array (X, A)."""
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number or an array of numbers; got {given!r}.") from None
    if array.ndim and array.shape != shape:
        raise ValueError(f"`{name}` must be a number or have shape (X, A) = {shape}; got {array.shape}.")
    if array.ndim == 0:
        array = np.full(shape, array)
    array = np.ascontiguousarray(array)
    if not np.isfinite(array).all():
        x, a = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"`{name}` must be finite; got {array[x, a]} at (x, a) = ({x}, {a}).")
    return array
