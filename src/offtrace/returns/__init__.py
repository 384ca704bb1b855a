"""Eq. 3 on samples: TD errors folded back through the traces, for NumPy, JAX and PyTorch.

The array library is that of the input; its backend is loaded on first use.
"""

import concurrent.futures.thread  # noqa: F401  (SciPy 1.18 imports it, which fails once the main thread has ended)
import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar, overload

import numpy as np

from offtrace.arrays import Array, is_compiling, library
from offtrace.returns.flags import flags_from_gymnasium
from offtrace.returns.window import Window
from offtrace.traces import Trace, as_trace

ArrayT = TypeVar("ArrayT")
"""The library's array type; targets come in that of the rewards."""

__all__ = [
    "c_trace_targets",
    "corrections",
    "flags_from_gymnasium",
    "n_step_targets",
    "peng_targets",
    "targets",
    "vtrace_targets",
]


@overload
def targets(
    *,
    r: Sequence[Any],
    discount: Array,
    q: Array | None = ...,
    a: Array | None = ...,
    pi: Array | None = ...,
    mu_a: Array | None = ...,
    q_a: Array | None = ...,
    expected_q: Array | None = ...,
    pi_a: Array | None = ...,
    log_pi_a: Array | None = ...,
    log_mu_a: Array | None = ...,
    reset: Array | None = ...,
    mask: Array | None = ...,
    trace: Any,
    validate: bool = ...,
    stop_gradient: bool = ...,
) -> np.ndarray: ...


@overload
def targets(
    *,
    r: ArrayT,
    discount: Array,
    q: Array | None = ...,
    a: Array | None = ...,
    pi: Array | None = ...,
    mu_a: Array | None = ...,
    q_a: Array | None = ...,
    expected_q: Array | None = ...,
    pi_a: Array | None = ...,
    log_pi_a: Array | None = ...,
    log_mu_a: Array | None = ...,
    reset: Array | None = ...,
    mask: Array | None = ...,
    trace: Any,
    validate: bool = ...,
    stop_gradient: bool = ...,
) -> ArrayT: ...


def targets(
    *,
    r: Array,
    discount: Array,
    q: Array | None = None,
    a: Array | None = None,
    pi: Array | None = None,
    mu_a: Array | None = None,
    q_a: Array | None = None,
    expected_q: Array | None = None,
    pi_a: Array | None = None,
    log_pi_a: Array | None = None,
    log_mu_a: Array | None = None,
    reset: Array | None = None,
    mask: Array | None = None,
    trace: Any,
    validate: bool = True,
    stop_gradient: bool = True,
) -> Array:
    """Multi-step off-policy targets, Q(x_t, a_t) + Δ_t, for every row of a window: (n, …).

        Δ_t = δ_t + discount_t · c_{t+1} · Δ_{t+1},    δ_t = r_t + discount_t · E_π Q(x_{t+1}, ·) − Q(x_t, a_t)

    This is ΔQ of Section 5, the sample form of Eq. 3. The time axis is first, any batch axes follow, the action
    axis is last. NumPy, JAX and PyTorch in and out, computed in the widest floating dtype of the input, at least
    float32.

    Args:
        r: rewards (n, …).
        discount: (n, …), γ, and 0 where step t terminated. Termination enters only here; a truncated step keeps
            its γ.
        q: action values (n+1, …, A); not read where π is 0.
        a: actions (n, …), whole numbers.
        pi: probabilities of the target policy (n+1, …, A).
        mu_a: μ(a_t|x_t) (n, …), as it was when the action was drawn; only for traces that need it.
        q_a: Q(x_t, a_t) (n, …), if it does not come from `q` (an online network beside a target network).
        expected_q: E_π Q of each step's true successor (n, …), if it does not come from `q` and `pi` (continuous
            actions; same-step autoreset).
        pi_a, log_pi_a, log_mu_a: probabilities of the actions taken, or log-densities.
        reset: True where row t does not continue row t−1; the trace is cut there.
        mask: False where row t is not a real step; its target is 0, and its values are not read.
        trace: how much of a later TD error reaches back: a trace such as `ot.Retrace(0.9)`, its name or class
            (with λ = 1), or a function of `pi_a, mu_a` that returns c (see `ot.as_trace`).
        validate: check the values as well as the shapes; inside `jax.jit`, `torch.compile` and `torch.func` values
            are unknown and pass.
        stop_gradient: treat the targets as constants.

    The second of these two steps is on-policy, so Retrace(1) passes its TD error, −0.5, back in full:

    >>> import numpy as np, offtrace as ot
    >>> ot.targets(
    ...     q=np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), a=np.array([1, 0]),
    ...     r=np.array([1.0, 1.5]), discount=np.array([0.5, 0.0]),
    ...     pi=np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), mu_a=np.array([0.5, 1.0]),
    ...     trace=ot.Retrace(1.0))
    array([1.75, 1.5 ])
    """
    if not isinstance(trace, Trace):
        trace = as_trace(trace)
    if type(r) is np.ndarray and q_a is expected_q is pi_a is log_pi_a is log_mu_a is None:
        out = _targets_if_simple(r, discount, q, a, pi, mu_a, reset, mask, trace, validate)
        if out is not None:
            return out
    window = Window(r, discount, q, a, pi, mu_a, q_a, expected_q, pi_a, log_pi_a, log_mu_a, reset, mask)
    if _targets_like_before is not None:
        out = _targets_like_before(window, trace, validate, stop_gradient)
        if out is not None:
            return out
    backend = _backend(library(*window, *trace.parameters()))
    return backend.targets(window, trace, validate=validate, stop_gradient=stop_gradient)


def corrections(
    *,
    q_a: Array,
    expected_q: Array,
    r: Array,
    discount: Array,
    c: Array,
    reset: Array | None = None,
    mask: Array | None = None,
    validate: bool = True,
) -> Array:
    """Return Δ_t = δ_t + discount_t · c_{t+1} · Δ_{t+1} from given coefficients: (n, …).

    `c[t]` belongs to (x_t, a_t), `c[0]` is never read, and c is taken as 0 where `reset` is True or `mask` False.
    Differentiable in `q_a`, `expected_q`, `r`, `discount` and `c` (JAX, PyTorch).

    >>> import numpy as np, offtrace as ot
    >>> ot.corrections(
    ...     q_a=np.array([1.0, 2.0]), expected_q=np.array([2.0, 0.0]), r=np.array([1.0, 1.5]),
    ...     discount=np.array([0.5, 0.0]), c=np.array([1.0, 1.0]))
    array([ 0.75, -0.5 ])
    """
    window = Window(r, discount, q_a=q_a, expected_q=expected_q, reset=reset, mask=mask)
    return _backend(library(c, *window)).corrections(window, c, validate=validate)


_BACKENDS: dict[str, ModuleType] = {}


def _backend(name: str) -> ModuleType:
    if name == "torch" and is_compiling():
        from offtrace.returns import torch  # PyTorch compiles an `import`, but not `import_module`

        return torch
    if name not in _BACKENDS:
        _BACKENDS[name] = importlib.import_module(f"offtrace.returns.{name}")
    return _BACKENDS[name]


_targets_like_before: Callable[[Window, Trace, bool, bool], Array | None] | None = None
"""The short way for CUDA tensors, set by `gpu/calls.py` after the first call."""


def _targets_if_simple(*given: Any) -> np.ndarray | None:
    """Replace this function by the backend's on first use: a lookup per call is measurable."""
    global _targets_if_simple
    _targets_if_simple = _backend("numpy").targets_if_simple
    return _targets_if_simple(*given)


from offtrace.returns.recursions import (  # noqa: E402  (they are built on the two functions above)
    c_trace_targets,
    n_step_targets,
    peng_targets,
    vtrace_targets,
)


def __dir__() -> list[str]:
    return sorted(__all__)
