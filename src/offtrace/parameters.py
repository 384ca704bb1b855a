"""λ and the other parameters of a trace: what they may be, and how JAX gets to see them."""

import sys
from dataclasses import fields
from typing import Any

import numpy as np

from offtrace.arrays import Array, known, library, namespace


def check_parameter(owner: str, name: str, value: Any) -> None:
    """λ, σ in [0, 1], κ ≥ 0, d ≥ 1; values inside a `jit` are unknown and pass."""
    if not known(value):
        return
    if library(value) == "torch":
        value = value.detach().cpu().numpy()
    try:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` of {owner} must be a number or an array of numbers; got {value!r}.") from None
    low, high = {"num_dims": (1, np.inf), "kappa": (0, np.inf)}.get(name, (0, 1))
    outside = ~((numbers >= low) & (numbers <= high) & np.isfinite(numbers))
    if outside.any():
        rule = f"in [{low}, {high}]" if np.isfinite(high) else f"at least {low}"
        place = f" at {tuple(map(int, np.argwhere(outside)[0]))}" if numbers.ndim else ""
        raise ValueError(f"`{name}` of {owner} must be {rule}; got {numbers[outside].flat[0]:g}{place}.")


def check_lambda_shape(lambda_: Any, steps: tuple[int, ...]) -> None:
    """λ is one number, one per step, or one per step and batch element; nothing else broadcasts."""
    got = tuple(np.shape(lambda_))
    if got and got != steps and got != steps[:1]:
        allowed = f"({steps[0]},) or {steps}" if len(steps) > 1 else f"{steps}"
        raise ValueError(f"`lambda_` must be a number, or have one for each step, {allowed}; got shape {got}.")


def as_array(numbers: Any) -> Any:
    """A list as an array; what is none stays what it is, and is refused with a better text."""
    try:
        return np.asarray(numbers)
    except ValueError:
        return numbers


def like(value: Any, other: Array) -> Any:
    """A NumPy array in the library of the others; numbers stay numbers."""
    if not isinstance(value, np.ndarray) or library(other) == "numpy":
        return value
    return namespace(other).asarray(value, dtype=other.dtype, device=other.device)


_REGISTERED: set[type] = set()


def register_with_jax(cls: type[Any]) -> None:
    """Makes a trace a pytree as soon as somebody uses JAX, without importing it for those who do not."""
    if cls in _REGISTERED or "jax" not in sys.modules:
        return
    names = [field.name for field in fields(cls)]

    def unflatten(_: None, leaves: Any) -> Any:
        value = object.__new__(cls)  # leaves may be tracers or placeholders: no checks
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        return value

    sys.modules["jax"].tree_util.register_pytree_node(
        cls, lambda value: ([getattr(value, name) for name in names], None), unflatten
    )
    _REGISTERED.add(cls)
