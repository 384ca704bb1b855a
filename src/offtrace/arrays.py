"""One function over NumPy, JAX and PyTorch: which library a value belongs to is decided by what comes in.

Nothing is imported for it. A value can only be a JAX array if somebody has imported JAX already.
"""

import functools
import operator
import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
"""A NumPy array, a JAX array or a PyTorch tensor; functions give back the kind they were given."""

_LIBRARY_OF_MODULE = {"jax": "jax", "jaxlib": "jax", "torch": "torch"}
_LIBRARY_OF_TYPE: dict[type, str] = {}


def library(*values: Any) -> str:
    """`"jax"` or `"torch"` if a value is theirs, otherwise `"numpy"`.

    NumPy arrays and Python numbers mix with either; JAX and PyTorch do not mix with each other.

    >>> library(np.zeros(3), 1.0, None)
    'numpy'
    """
    found = "numpy"
    for value in values:
        if value is None:
            continue
        kind = _LIBRARY_OF_TYPE.get(type(value)) or _remember(type(value))
        if kind != "numpy" and kind != found:
            if found != "numpy":
                raise TypeError("JAX arrays and PyTorch tensors in one call; convert one kind to the other first.")
            found = kind
    return found


def _remember(cls: type) -> str:
    """Walks the bases, so that a subclass of a tensor (a parameter, say) counts as a tensor."""
    roots = (base.__module__.partition(".")[0] for base in cls.__mro__)
    kind = next((_LIBRARY_OF_MODULE[root] for root in roots if root in _LIBRARY_OF_MODULE), "numpy")
    _LIBRARY_OF_TYPE[cls] = kind
    return kind


def namespace(*values: Any) -> ModuleType:
    """The module with `where`, `exp`, `minimum`, … for these values: `numpy`, `jax.numpy` or `torch`."""
    kind = library(*values)
    if kind == "numpy":
        return np
    return sys.modules["torch"] if kind == "torch" else sys.modules["jax.numpy"]


def known(*values: Any) -> bool:
    """False where a value is still unknown, inside a `jit` of JAX."""
    jax = sys.modules.get("jax")
    return jax is None or not any(isinstance(value, jax.core.Tracer) for value in values)


def without_gradient(values: Array) -> Array:
    """The same values as constants."""
    kind = library(values)
    if kind == "torch":
        return values.detach()
    return sys.modules["jax"].lax.stop_gradient(values) if kind == "jax" else values


def take_action(values: Array, a: Array) -> Array:
    """`values[..., a]` for an array with the actions on its last axis: (…, A) and (…) to (…).

    >>> take_action(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0]))
    array([2., 3.])
    """
    xp = namespace(values, a)
    if xp.__name__ == "torch":
        return xp.take_along_dim(values, a.long().unsqueeze(-1), dim=-1).squeeze(-1)
    if xp is not np:  # a negative index must not wrap: JAX gives NaN beyond the end
        a = xp.where(a < 0, values.shape[-1], a)
    return xp.take_along_axis(values, a[..., None], axis=-1)[..., 0]


def product(m: Array, x: Array) -> Array:
    """m x, where a factor m of 0 keeps an x that is no number out of the value and out of the gradient.

    >>> product(np.array([0.0, 0.0, 2.0]), np.array([np.nan, 5.0, 5.0]))
    array([ 0.,  0., 10.])
    """
    xp = namespace(m, x)
    return m * xp.where((m == 0) & ~xp.isfinite(x), 0, x)


def joint_product(x: Array, y: Array) -> Array:
    """x y, where a 0 on either side keeps what is no number on the other out of it.

    >>> joint_product(np.array([0.0, np.inf, 2.0]), np.array([np.nan, 0.0, 5.0]))
    array([ 0.,  0., 10.])
    """
    xp = namespace(x, y)
    return xp.where((y == 0) & ~xp.isfinite(x), 0, x) * xp.where((x == 0) & ~xp.isfinite(y), 0, y)


def expectation(q: Array, pi: Array) -> Array:
    """E_π Q(x, ·) = Σ_a π(a|x) Q(x, a), over the last axis; where π is 0 nothing is read from Q.

    >>> expectation(np.array([1.0, -np.inf]), np.array([1.0, 0.0]))
    np.float64(1.0)
    """
    xp = namespace(q, pi)
    if xp.__name__ == "jax.numpy" and q.shape[-1] <= 32:
        # XLA's reduction over a short last axis is up to seven times slower than this on a CPU
        return functools.reduce(operator.add, [product(pi[..., i], q[..., i]) for i in range(q.shape[-1])])
    return product(pi, q).sum(-1)


def lead(values: Array, ndim: int) -> Array:
    """A scalar, or an array whose axes are the first of `ndim` axes, ready to broadcast against the rest.

    >>> lead(np.array([0.5, 1.0]), 3).shape
    (2, 1, 1)
    """
    missing = ndim - np.ndim(values) if np.ndim(values) else 0
    return values.reshape(values.shape + (1,) * missing) if missing else values
