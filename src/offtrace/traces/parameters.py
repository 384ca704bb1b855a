"""The parameters of a trace: λ, σ, κ, d. Their ranges and shapes, and how JAX sees them."""

import sys
from dataclasses import fields
from typing import Any

import numpy as np

from offtrace.arrays import Array, is_compiling, is_concrete, library, namespace, shape_of

Range = tuple[float, float]
"""Lowest and highest value of a parameter."""
SHARE: Range = (0, 1)
ANY: Range = (-np.inf, np.inf)


def check_parameter(owner: str, name: str, value: Any, allowed: Range = SHARE) -> None:
    """Check that a parameter is a number, or an array of numbers, in its range. Traced values pass."""
    low, high = allowed
    if isinstance(value, (int, float)) and low <= value <= high and abs(value) < np.inf:
        return
    if not isinstance(value, (int, float)) and not is_concrete(value):
        return
    if library(value) == "torch":
        value = value.detach().cpu().numpy()
    try:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` of {owner} must be a number or an array of numbers; got {value!r}.") from None
    outside = ~((numbers >= low) & (numbers <= high) & np.isfinite(numbers))
    if outside.any():
        rule = f"in [{low}, {high}]"
        if not np.isfinite(high):
            rule = f"at least {low}" if np.isfinite(low) else "finite"
        place = f" at {tuple(map(int, np.argwhere(outside)[0]))}" if numbers.ndim else ""
        raise ValueError(f"`{name}` of {owner} must be {rule}; got {numbers[outside].flat[0]:g}{place}.")


def check_lambda_shape(lambda_: Any, steps: tuple[int, ...]) -> None:
    """Check that λ is one number, one per step, or one per step and batch element; nothing else broadcasts."""
    got = shape_of(lambda_)
    if got and got != steps and got != steps[:1]:
        allowed = f"({steps[0]},) or {steps}" if len(steps) > 1 else f"{steps}"
        raise ValueError(f"`lambda_` must be a number, or have one value per step, {allowed}; got shape {got}.")


def as_array(numbers: Any) -> Any:
    """Return a list as an array; a ragged list stays a list, and `check_parameter` raises on it."""
    try:
        return np.asarray(numbers)
    except ValueError:
        return numbers


def like(value: Any, other: Array) -> Any:
    """Return a NumPy array in the library, dtype and device of `other`; numbers stay numbers."""
    if not isinstance(value, np.ndarray) or library(other) == "numpy":
        return value
    return namespace(other).asarray(value, dtype=other.dtype, device=other.device)


# -- JAX -----------------------------------------------------------------------------------------------------


_REGISTERED: set[type] = set()


def register_with_jax(cls: type[Any]) -> None:
    """Register a trace class as a pytree if JAX is loaded; JAX is never imported for this."""
    if is_compiling() or cls in _REGISTERED or "jax" not in sys.modules:
        return
    names = [field.name for field in fields(cls)]

    def flatten(trace: Any) -> tuple[list[Any], None]:
        return [getattr(trace, name) for name in names], None

    def unflatten(_: None, leaves: Any) -> Any:
        # Leaves may be tracers or placeholders, so the checks of the constructor are left out.
        trace = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(trace, name, leaf)
        return trace

    sys.modules["jax"].tree_util.register_pytree_node(cls, flatten, unflatten)
    _REGISTERED.add(cls)
