"""The NumPy backend: prepares arrays for the compiled kernels and chooses the kernel."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import empty, ndarray

from offtrace import likelihoods
from offtrace.arrays import Array, expectation, lead
from offtrace.returns import checks, compiled, trajectory_aware
from offtrace.returns.compiled import FINE, FUSED, READ_MU, _targets_if_ready
from offtrace.returns.window import (
    BOOLEAN,
    INTEGER,
    Window,
    check_given,
    coefficients,
    likelihoods_of,
    shape,
    value_of_taken,
)
from offtrace.threads import WORTH_THREADS, over_batch
from offtrace.traces import OneStep, Trace

BOOL = np.dtype(bool)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
ACTIONS = (np.dtype(np.int64), np.dtype(np.int32))
TOLERANCE = {dtype: likelihoods.TOLERANCE[dtype.name] for dtype in FLOATS}
NOTHING = {dtype: np.empty((0, 0), dtype) for dtype in (*FLOATS, BOOL)}
"""Placeholder for an argument that was not given; for None, Numba would compile the kernel once more."""

LEAST_SHARE = 128
"""Batch elements per thread below which another thread does not pay."""


def targets_if_simple(
    r: Any,
    discount: Any,
    q: Any,
    a: Any,
    pi: Any,
    mu_a: Any,
    reset: Any,
    mask: Any,
    trace: Any,
    validate: bool,
    *,
    tol: float | None = None,
) -> np.ndarray | None:
    """Return the targets in the common case with little overhead, as agents need it for a few short windows.

    The common case: native arrays of one float dtype, one batch axis, a trace of Table 1 with one λ. Otherwise, or
    if a value is suspicious, the result is None, and `targets` computes it or raises.
    """
    kind = FUSED.get(type(trace))
    dtype = r.dtype
    if kind is None or type(trace.lambda_) is not float:
        return None
    if mu_a is None and kind not in READ_MU:
        mu_a = r  # a placeholder that is not read
    if not (type(q) is type(pi) is type(a) is type(discount) is type(mu_a) is ndarray):
        return None
    if not (q.dtype is dtype and pi.dtype is dtype and discount.dtype is dtype and mu_a.dtype is dtype):
        return None
    if not (dtype in TOLERANCE and a.dtype in ACTIONS and r.ndim == 2 and q.ndim == 3):
        return None
    out = empty(r.shape, dtype)
    limit = (tol or TOLERANCE[dtype]) if validate else -1.0
    if reset is mask is None and q.nbytes < WORTH_THREADS // 2:
        status = _targets_if_ready(kind, trace.lambda_, q, pi, a, r, discount, mu_a, out, limit)
        return out if status == FINE else None
    steps = (a, r, discount, mu_a)
    ends = [end for end in (reset, mask) if end is not None]
    if not all(type(end) is ndarray and end.dtype == BOOL and end.shape == r.shape for end in ends):
        return None
    if not all(array.flags.carray and array.ndim == 2 for array in (*steps, *ends)):
        return None
    if not (q.flags.carray and pi.flags.carray and pi.ndim == 3):
        return None
    ends = (NOTHING[BOOL] if reset is None else reset, NOTHING[BOOL] if mask is None else mask)
    given = (q, pi, *steps, NOTHING[dtype], NOTHING[dtype], *ends, out)
    return out if _run(kind, _one_lambda(trace.lambda_), *given, limit=limit) == FINE else None


def _run(kind: int, lambdas: np.ndarray, q: np.ndarray, *given: Any, limit: float) -> int:
    """Run the kernel, in threads over the batch where it is large; return its status."""
    arguments = _for_kernels((lambdas, q, *given))

    def kernel(start: int, stop: int) -> int:
        return compiled._targets(kind, *arguments, start, stop, limit)

    return over_batch(kernel, q.shape[1], 2 * q.nbytes, least=LEAST_SHARE)


@lru_cache(maxsize=256)
def _one_lambda(lambda_: float) -> np.ndarray:
    return np.full((1, 1), lambda_)


def targets(
    given: Window, trace: Trace, *, validate: bool, stop_gradient: bool = True, tol: float | None = None
) -> np.ndarray:
    """Return Q(x_t, a_t) + Δ_t for every row of a window; NumPy has no gradient to stop."""
    window, rounding = ready(given)
    tol = rounding if tol is None else tol
    n, _, _ = shape(window)
    check_given(window, trace)
    if not trace.markov:
        return _trajectory_aware(window, trace, validate=validate, tol=tol)
    kind = FUSED.get(type(trace), compiled.GIVEN)
    overrides = (window.expected_q, window.pi_a, window.log_pi_a, window.log_mu_a)
    if kind == compiled.GIVEN or any(value is not None for value in overrides):
        kind = compiled.GIVEN
        lambdas = _UNUSED
        c = _coefficients(window, trace, validate=validate, tol=tol)
        if window.expected_q is not None:
            out = fold(window, value_of_taken(window), c, as_targets=True)
            if validate:
                checks.check_result(window, out)
            return out
        if window.a is None:
            window = window._replace(a=np.zeros(c.shape, np.int64))
    else:
        c = None
        lambdas = step_lambdas(trace.lambda_, window.r.shape)
    out = np.empty(window.r.shape, window.r.dtype)
    if out.size == 0:
        return out
    q = window.q.reshape(n + 1, -1, window.q.shape[-1])
    pi = window.pi.reshape(q.shape)
    steps = (window.a, window.r, window.discount, window.mu_a, c, window.q_a)
    flat = [NOTHING[out.dtype] if value is None else value.reshape(n, -1) for value in steps]
    ends = [NOTHING[BOOL] if value is None else value.reshape(n, -1) for value in (window.reset, window.mask)]
    limit = tol if validate else -1.0
    if _run(kind, lambdas, q, pi, *flat, *ends, out.reshape(n, -1), limit=limit) != FINE:
        _raise_if_broken(window, trace, out, tol=tol, validate=validate)
    return out


def corrections(given: Window, c: Array, *, validate: bool) -> np.ndarray:
    """Return Δ_t for every row of a window, from given coefficients."""
    window, _ = ready(given)
    shape(window)
    c = step_array("c", c, window)
    if validate:
        checks.check_steps(window, c)
    return fold(window, window.q_a, c, as_targets=False)


def fold(window: Window, q_a: np.ndarray, c: np.ndarray, *, as_targets: bool) -> np.ndarray:
    """Run the recursion where E_π Q is given; return the targets, or the corrections alone."""
    n = window.r.shape[0]
    out = np.empty(window.r.shape, window.r.dtype)
    if out.size == 0:
        return out
    flat = [value.reshape(n, -1) for value in (q_a, window.expected_q, window.r, window.discount, c)]
    ends = [NOTHING[BOOL] if value is None else value.reshape(n, -1) for value in (window.reset, window.mask)]
    given = _for_kernels((*flat, *ends))

    def kernel(start: int, stop: int) -> None:
        compiled._fold(*given, as_targets, out.reshape(n, -1), start, stop)

    over_batch(kernel, out.size // n, 6 * out.nbytes)
    return out


def fold_backward(
    gradient: np.ndarray,
    correction: np.ndarray,
    expected_q: np.ndarray,
    discount: np.ndarray,
    c: np.ndarray,
    reset: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    wants: tuple[bool, bool],
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return the gradients of the corrections with respect to δ and, if wanted, the discounts and c."""
    n = gradient.shape[0]
    to_delta = np.empty_like(gradient)
    to_discount, to_c = (np.empty_like(gradient) if wanted else None for wanted in wants)
    if gradient.size:
        steps = (gradient, correction, expected_q, discount, c)
        ends = [NOTHING[BOOL] if end is None else end.reshape(n, -1) for end in (reset, mask)]
        every = (*steps, to_delta, to_discount, to_c)
        flat = [NOTHING[gradient.dtype] if value is None else value.reshape(n, -1) for value in every]
        given = _for_kernels((*flat[:5], *ends, *flat[5:]))

        def kernel(start: int, stop: int) -> None:
            compiled._fold_backward(*given, start, stop)

        over_batch(kernel, gradient.size // n, 8 * gradient.nbytes)
    return to_delta, to_discount, to_c


def ready(given: Window) -> tuple[Window, float]:
    """Return native arrays of one float dtype, and the tolerance for probabilities of the dtypes given.

    The dtype is the widest floating one of the input, at least float32 and at most float64; integers (rewards, say)
    are converted to it. Arrays that fit already are not copied, and the rows of q and pi may be strided.
    """
    values = [None if v is None else _readable(name, v) for name, v in zip(Window._fields, given, strict=True)]
    floats = {v.dtype for v in values if v is not None and v.dtype.kind not in "iub"}
    tol = max((_tolerance(dtype) for dtype in floats), default=1e-6)
    wide = not floats or any(dtype.itemsize > 4 for dtype in floats)
    dtype = FLOATS[wide]
    for i, value in enumerate(values):
        if value is not None and not (value.dtype == dtype and value.flags.carray):
            values[i] = _native(Window._fields[i], value, dtype)
    return Window(*values), tol


def step_array(name: str, value: Any, window: Window) -> np.ndarray:
    """Return an array of one number per step in the window's dtype."""
    array = _native(name, _readable(name, value), window.r.dtype)
    if array.shape != window.r.shape:
        raise ValueError(f"`{name}` must have the shape of `r`, {window.r.shape}; got {array.shape}.")
    return array


def step_lambdas(lambda_: Any, steps: tuple[int, ...]) -> np.ndarray:
    """Return λ in the shape that the kernels index: (1, 1), (n, 1) or (n, B)."""
    array = np.asarray(lambda_, np.float64)
    if array.size == 0:
        return _UNUSED
    num_rows = steps[0] if array.ndim else 1
    return np.ascontiguousarray(array.reshape(num_rows, -1))


_UNUSED = np.ones((1, 1))
_ONE_STEP = OneStep()


@lru_cache(maxsize=64)
def _tolerance(dtype: np.dtype) -> float:
    """Return the tolerance of a dtype; cached, because `dtype.name` is slow."""
    return likelihoods.TOLERANCE.get(dtype.name, 1e-6)


def _coefficients(window: Window, trace: Trace, *, validate: bool, tol: float) -> np.ndarray:
    if validate:
        checks.check(window, trace, tol=tol)
    else:
        checks.check_actions(window)
    c = step_array("c", coefficients(window, trace), window)
    if validate:
        checks.check_coefficients(window, trace, c, tol=tol)
    return c


def _trajectory_aware(window: Window, trace: Any, *, validate: bool, tol: float) -> np.ndarray:
    """Return the targets of a trace that depends on where the trajectory starts: O(n²)."""
    steps = window.r.shape
    n = steps[0]
    if window.expected_q is None and window.a is not None:
        bare = window._replace(mu_a=None, pi_a=None, log_pi_a=None, log_mu_a=None)
        one_step = None
        if window.q_a is None:
            one_step = targets_if_simple(*bare[:6], *bare[11:], _ONE_STEP, validate, tol=tol)
        if one_step is None:
            one_step = targets(bare, _ONE_STEP, validate=validate, tol=tol)
        if validate:
            checks.check_likelihoods(window, trace, tol=tol)
    else:
        if validate:
            checks.check(window, trace, tol=tol)
        else:
            checks.check_actions(window)
        one_step = _one_step(window)
    if window.mask is not None:  # masked rows may hold anything
        window = window._replace(discount=np.where(window.mask, window.discount, 0))
    delta = one_step - value_of_taken(window)
    out = np.empty(steps, window.r.dtype)
    cut = np.zeros(steps, bool)
    if out.size == 0:
        return out
    if window.reset is not None:
        cut |= window.reset
    if window.mask is not None:
        cut |= ~window.mask
    ratios = np.ascontiguousarray(likelihoods_of(window).log_ratio())
    if type(trace) in compiled.TRAJECTORY_AWARE:
        with np.errstate(over="ignore"):
            arrays = (one_step, delta, window.discount, np.exp(ratios), ratios)
        flat = _for_kernels(np.ascontiguousarray(value.reshape(n, -1).T) for value in (*arrays, cut))
        columns = np.empty((out.size // n, n), out.dtype)
        rest = (step_lambdas(trace.lambda_, steps), flat.pop(), columns)
        kind = compiled.TRAJECTORY_AWARE[type(trace)]

        def kernel(start: int, stop: int) -> None:
            compiled._trajectory_aware(kind, *flat, *rest, start, stop)

        over_batch(kernel, out.size // n, n * out.nbytes)
        out[...] = columns.T.reshape(steps)
    else:
        lambdas = lead(np.asarray(trace.lambda_), len(steps))
        out[...] = trajectory_aware.targets(trace, one_step, delta, window.discount, ratios, lambdas, cut)
    if window.mask is not None:
        out[~window.mask] = 0
    if validate:
        checks.check_result(window, out)
    return out


def _one_step(window: Window) -> np.ndarray:
    """Return r_t + discount_t E_π Q(x_{t+1}, ·)."""
    expected = window.expected_q
    if expected is None:
        expected = expectation(window.q[1:], window.pi[1:])
    r = window.r
    read = window.discount != 0
    if window.mask is not None:
        r = np.where(window.mask, r, 0)
        read = window.mask & read
    return r + np.where(read, window.discount, 0) * np.where(read, expected, 0)


def _raise_if_broken(window: Window, trace: Trace, out: np.ndarray, *, tol: float, validate: bool) -> None:
    """Raise the error for the rule that is broken, if one is; a kernel reports only that a value is suspicious."""
    if not validate:
        checks.check_actions(window)
        return
    checks.check(window, trace, tol=tol)
    if window.mu_a is not None:
        checks.check_coefficients(window, trace, coefficients(window, trace), tol=tol)
    checks.check_result(window, out)


def _readable(name: str, value: Any) -> np.ndarray:
    """Return an argument as an array after checking its dtype."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"`{name}` must not be a masked array, whose mask would be lost; pass it as `mask=`.")
    is_array = isinstance(value, np.ndarray)
    if not is_array:
        try:
            value = np.asarray(value)
        except ValueError:
            raise ValueError(f"`{name}` must be a regular array; its rows have different lengths.") from None
    dtype = value.dtype
    kind = dtype.kind
    if name in INTEGER and kind not in "iu":
        raise TypeError(f"`{name}` must hold whole numbers, the indices of actions; got dtype {dtype}.")
    if name in BOOLEAN and kind != "b":
        remedy = f"{name}.astype(bool)" if is_array else f"np.array({name}, dtype=bool)"
        raise TypeError(f"`{name}` must be boolean; got dtype {dtype}. Use `{remedy}`.")
    if kind not in "fiub" and dtype.name != "bfloat16":
        raise TypeError(f"`{name}` must hold real numbers; got dtype {dtype}.")
    return value


class _Writable:
    """A read-only array presented to NumPy as a writable one, without a copy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # the view keeps the array alive through this
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _for_kernels(values: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Return arrays that are all marked writable.

    Kernels only read their inputs, but Numba would compile them once more for every mix of read-only arrays.
    """
    return [value if value.flags.writeable else np.asarray(_Writable(value)) for value in values]


def _native(name: str, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return an array as the kernels take it: C order, native byte order, one float dtype."""
    if name in INTEGER:
        keeps_dtype = value.dtype in ACTIONS
        return np.asarray(value, None if keeps_dtype else np.int64, order="C")
    if name in BOOLEAN:
        return np.asarray(value, order="C")
    if name in ("q", "pi") and value.dtype == dtype and value.flags.aligned and value.strides[-1] == value.itemsize:
        return value  # the rows may be strided
    return np.asarray(value, dtype, order="C")
