"""The checks at the doors: each refusal names the argument, the rule, the value, the place and the remedy."""

from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_gamma
from offtrace.online import sources
from offtrace.online.records import Trajectories
from offtrace.traces import TRACES, Trace
from offtrace.traces import trace as trace_by_name


def checked_trace(given: Any, stored: bool, mu_a: Any) -> Any:
    """A trace, by name or as a value, with one λ; or anything that is called like one."""
    trace = trace_by_name(given) if isinstance(given, str) else given
    if isinstance(trace, type) or not (callable(trace) or isinstance(trace, Trace)):
        raise TypeError(
            f"`trace` must be a trace, such as ot.Retrace(0.9), or one of {', '.join(TRACES)}; got {given!r}."
        )
    if np.ndim(getattr(trace, "lambda_", 0.0)):
        raise ValueError(f"`lambda_` must be one number here; got shape {np.shape(trace.lambda_)}.")
    if stored and mu_a is None and getattr(trace, "needs_mu", False):
        raise TypeError(
            f"{type(trace).__name__} reads μ(a_t|x_t): the trajectories must have `mu_a`, as it was then."
        )
    return trace


def with_lambda(given: Any, lambda_: float) -> Any:
    """A trace by name, class or value, with this λ."""
    if isinstance(given, str):
        return trace_by_name(given, lambda_=lambda_)
    if isinstance(given, type) and issubclass(given, Trace):
        return given(lambda_)
    if is_dataclass(given) and hasattr(given, "lambda_"):
        return replace(given, lambda_=lambda_)
    raise TypeError(f"`traces` must be names, classes or values of traces; got {given!r}.")


def shape_and_gamma(source: Any, gamma: Any) -> tuple[tuple[int, int], float]:
    """(X, A) and γ: a model's and the trajectories' own unless given, an environment's as given."""
    if isinstance(source, FiniteMDP | Trajectories):
        return source.shape, source.gamma if gamma is None else checked_gamma(gamma)
    if not sources.is_gymnasium(source):
        raise TypeError(
            "the first argument must be a FiniteMDP, a Gymnasium environment or Trajectories; "
            f"got {type(source).__name__}."
        )
    if gamma is None:
        raise TypeError("`gamma` must be given with a Gymnasium environment, which has none of its own.")
    return sources.gymnasium_shape(source), checked_gamma(gamma)


def count(name: str, value: Any, low: int) -> int:
    """A whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ValueError(f"`{name}` must be a whole number of at least {low}; got {value!r}.")
    return int(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}.")
    return value


def table(name: str, given: Any, shape: tuple[int, int]) -> np.ndarray:
    """A number for all, or (X, A), as a new float64 array."""
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number or an array of numbers; got {given!r}.") from None
    if array.ndim and array.shape != shape:
        raise ValueError(f"`{name}` must be a number or have shape (X, A) = {shape}; got {array.shape}.")
    array = np.full(shape, array) if array.ndim == 0 else np.ascontiguousarray(array)
    if not np.isfinite(array).all():
        x, a = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"`{name}` must be finite; got {array[x, a]} at (x, a) = ({x}, {a}).")
    return array
