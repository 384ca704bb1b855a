"""Functions over NumPy, JAX and PyTorch arrays alike; the library is that of the input.

Neither JAX nor PyTorch is imported here: a value can only be a JAX array if JAX has been imported already.
"""

import functools
import operator
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor; functions return the kind they are given."""

_LIBRARY_OF_MODULE = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}
_LIBRARY_OF_TYPE: dict[type, str] = {}


def library(*values: Any) -> str:
    """Return `"jax"` or `"torch"` if one of the values is theirs, else `"numpy"`.

    NumPy arrays and Python numbers mix with either; JAX and PyTorch do not mix with each other.

    >>> library(np.zeros(3), 1.0, None)
    'numpy'
    """
    if is_compiling():  # without the cache, whose changes would make PyTorch compile again
        torch = sys.modules["torch"]
        return "torch" if any(isinstance(value, torch.Tensor) for value in values) else "numpy"
    found = "numpy"
    for value in values:
        if value is None:
            continue
        kind = _LIBRARY_OF_TYPE.get(type(value)) or _remember(type(value))
        if kind != "numpy" and kind != found:
            if found != "numpy":
                raise TypeError("JAX arrays and PyTorch tensors do not mix in one call; convert one kind first.")
            found = kind
    return found


def _remember(cls: type) -> str:
    """Return the library of a class and cache it; a subclass of a tensor (a parameter, say) is a tensor."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    kind = next((_LIBRARY_OF_MODULE[root] for root in roots if root in _LIBRARY_OF_MODULE), "numpy")
    _LIBRARY_OF_TYPE[cls] = kind
    return kind


def namespace(*values: Any) -> ModuleType:
    """Return the module with `where`, `exp`, … for these values: `numpy`, `jax.numpy` or `torch`."""
    kind = library(*values)
    if kind == "numpy":
        return np
    return sys.modules["torch"] if kind == "torch" else sys.modules["jax.numpy"]


def is_compiling() -> bool:
    """Return True while `torch.compile` or `torch.export` traces this code."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def in_torch_transform() -> bool:
    """Return True inside `torch.compile`, `torch.export` and `torch.func`."""
    torch = sys.modules.get("torch")
    return torch is not None and (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())


def is_concrete(*values: Any) -> bool:
    """Return False if the numbers of a value are not known: a JAX tracer, or a tensor in a transform of PyTorch."""
    if in_torch_transform():
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or any(isinstance(value, torch.Tensor) for value in values):
            return False
    jax = sys.modules.get("jax")
    return jax is None or not any(isinstance(value, jax.core.Tracer) for value in values)


def without_gradient(values: Array) -> Array:
    """Return the same values as constants."""
    kind = library(values)
    if kind == "torch":
        return values.detach()
    if kind == "jax":
        return sys.modules["jax"].lax.stop_gradient(values)
    return values


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array, a list or a number; PyTorch does not compile `np.shape`.

    >>> shape_of(0.5), shape_of([0.5, 1.0])
    ((), (2,))
    """
    if values is None or isinstance(values, (int, float)):
        return ()
    return tuple(values.shape) if hasattr(values, "shape") else np.shape(values)


def quietly(xp: ModuleType, **errors: Any) -> AbstractContextManager[Any]:
    """Return `np.errstate(…)` for NumPy; the other libraries do not warn, and PyTorch does not compile it."""
    if xp is np:
        return np.errstate(**errors)
    return nullcontext()


def take_action(values: Array, a: Array) -> Array:
    """Return `values[..., a]` for an array with the actions on its last axis: (…, A) and (…) to (…).

    >>> take_action(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0]))
    array([2., 3.])
    """
    xp = namespace(values, a)
    if xp.__name__ == "torch":
        index = a.long().unsqueeze(-1)
        if in_torch_transform():  # `take_along_dim` would fix the sizes, and wrap an action out of range
            return values.gather(-1, index).squeeze(-1)
        return xp.take_along_dim(values, index, dim=-1).squeeze(-1)
    if xp is not np:  # a negative index must not wrap: JAX gives NaN beyond the end
        a = xp.where(a < 0, values.shape[-1], a)
    return xp.take_along_axis(values, a[..., None], axis=-1)[..., 0]


def product(m: Array, x: Array) -> Array:
    """Return m x; where m is 0, a NaN or infinite x gets neither into the value nor into the gradient.

    >>> product(np.array([0.0, 0.0, 2.0]), np.array([np.nan, 5.0, 5.0]))
    array([ 0.,  0., 10.])
    """
    xp = namespace(m, x)
    return m * xp.where((m == 0) & ~xp.isfinite(x), 0, x)


def joint_product(x: Array, y: Array) -> Array:
    """Return x y; a 0 on either side keeps out a NaN or an infinity on the other.

    >>> joint_product(np.array([0.0, np.inf, 2.0]), np.array([np.nan, 0.0, 5.0]))
    array([ 0.,  0., 10.])
    """
    xp = namespace(x, y)
    return xp.where((y == 0) & ~xp.isfinite(x), 0, x) * xp.where((x == 0) & ~xp.isfinite(y), 0, y)


def expectation(q: Array, pi: Array) -> Array:
    """Return E_π Q(x, ·) = Σ_a π(a|x) Q(x, a), over the last axis; where π is 0, Q is not read.

    >>> expectation(np.array([1.0, -np.inf]), np.array([1.0, 0.0]))
    np.float64(1.0)
    """
    xp = namespace(q, pi)
    if xp.__name__ == "jax.numpy" and q.shape[-1] <= 32:
        # XLA's reduction over a short last axis is up to seven times slower than this sum on a CPU.
        return functools.reduce(operator.add, [product(pi[..., i], q[..., i]) for i in range(q.shape[-1])])
    return product(pi, q).sum(-1)


def lead(values: Array, ndim: int) -> Array:
    """Return an array with axes of length 1 appended, up to `ndim` axes; a scalar stays a scalar.

    >>> lead(np.array([0.5, 1.0]), 3).shape
    (2, 1, 1)
    """
    own = shape_of(values)
    if not own or len(own) == ndim:
        return values
    return values.reshape(own + (1,) * (ndim - len(own)))
