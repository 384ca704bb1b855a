"""NumPy arrays in and out: what comes in made ready for the kernels, and the kernel chosen."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy import empty, ndarray

from offtrace import likelihoods as by_name
from offtrace.arrays import Array, expectation, lead
from offtrace.returns import checks, compiled, trajectory_aware
from offtrace.returns.compiled import FINE, FUSED, READ_MU, _targets_if_ready
from offtrace.returns.window import (
    BOOLEAN,
    INTEGER,
    Window,
    coefficients,
    likelihoods,
    require,
    shape,
    value_of_taken,
)
from offtrace.threads import WORTH_THREADS, over_batch
from offtrace.traces import OneStep

BOOL = np.dtype(bool)
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
ACTIONS = (np.dtype(np.int64), np.dtype(np.int32))
TOLERANCE = {dtype: by_name.TOLERANCE[dtype.name] for dtype in FLOATS}
NOTHING = {dtype: np.empty((0, 0), dtype) for dtype in (*FLOATS, BOOL)}
"""Stands for an argument that a kernel does not get; None would make it compile once more for each."""

LEAST_SHARE = 128
"""Batch elements below which another thread has too little to do in each step."""


def quick(
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
    """The common case without ceremony, for agents that call this with a few short windows at a time.

    Arrays that are ready as they are, one batch axis, a trace of Table 1 with one λ. None for anything else, and
    for anything strange, which `targets` then handles or refuses.
    """
    kind, dtype = FUSED.get(type(trace)), r.dtype
    if kind is None or type(trace.lambda_) is not float:
        return None
    if mu_a is None and kind not in READ_MU:
        mu_a = r  # which is not read
    if not (type(q) is type(pi) is type(a) is type(discount) is type(mu_a) is ndarray):
        return None
    if not (q.dtype is dtype and pi.dtype is dtype and discount.dtype is dtype and mu_a.dtype is dtype):
        return None
    if not (dtype in TOLERANCE and a.dtype in ACTIONS and r.ndim == 2 and q.ndim == 3):
        return None
    out, limit = empty(r.shape, dtype), (tol or TOLERANCE[dtype]) if validate else -1.0
    if reset is mask is None and q.nbytes < WORTH_THREADS // 2:
        status = _targets_if_ready(kind, trace.lambda_, q, pi, a, r, discount, mu_a, out, limit)
        return out if status == FINE else None
    steps, ends = (a, r, discount, mu_a), [end for end in (reset, mask) if end is not None]
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
    """In threads where it is large and each gets its share of the batch."""
    arguments = _for_kernels((lambdas, q, *given))

    def kernel(start: int, stop: int) -> int:
        return compiled._targets(kind, *arguments, start, stop, limit)

    return over_batch(kernel, q.shape[1], 2 * q.nbytes, least=LEAST_SHARE)


@lru_cache(maxsize=256)
def _one_lambda(lambda_: float) -> np.ndarray:
    return np.full((1, 1), lambda_)


def targets(
    given: Window, trace: Any, *, validate: bool, stop_gradient: bool = True, tol: float | None = None
) -> np.ndarray:
    """Q(x_t, a_t) + Δ_t for every row of a window; there is no gradient to stop."""
    window, rounding = ready(given)
    tol = rounding if tol is None else tol
    n, _, _ = shape(window)
    require(window, trace)
    if not getattr(trace, "markov", True):
        return _trajectory_aware(window, trace, validate=validate, tol=tol)
    kind = FUSED.get(type(trace), compiled.GIVEN)
    overrides = (window.expected_q, window.pi_a, window.log_pi_a, window.log_mu_a)
    if kind == compiled.GIVEN or any(value is not None for value in overrides):
        c, kind, lambdas = _coefficients(window, trace, validate=validate, tol=tol), compiled.GIVEN, _UNUSED
        if window.expected_q is not None:
            out = fold(window, value_of_taken(window), c, as_targets=True)
            if validate:
                checks.check_result(window, out)
            return out
        if window.a is None:
            window = window._replace(a=np.zeros(c.shape, np.int64))
    else:
        c, lambdas = None, step_lambdas(trace.lambda_, window.r.shape)
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
        _explain(window, trace, out, tol=tol, validate=validate)
    return out


def corrections(given: Window, c: Array, *, validate: bool) -> np.ndarray:
    """Δ_t for every row of a window, from coefficients that are given."""
    window, _ = ready(given)
    shape(window)
    c = step_array("c", c, window)
    if validate:
        checks.check_steps(window, c)
    return fold(window, window.q_a, c, as_targets=False)


def fold(window: Window, q_a: np.ndarray, c: np.ndarray, *, as_targets: bool) -> np.ndarray:
    """The recursion where E_π Q is given: targets, or the corrections alone."""
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
    """The gradients of the corrections in δ and, if wanted, in the discounts and in c."""
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
    """Native arrays of one float dtype, and the tolerance for probabilities as they came in.

    The dtype is the widest floating one that came in, at least float32 and at most float64; integers (rewards,
    say) follow. Nothing is copied that is ready already, and the rows of q and pi may be strided.
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
    """One number per step, as the window's own arrays are."""
    array = _native(name, _readable(name, value), window.r.dtype)
    if array.shape != window.r.shape:
        raise ValueError(f"`{name}` must have the shape of `r`, {window.r.shape}; got {array.shape}.")
    return array


def step_lambdas(lambda_: Any, steps: tuple[int, ...]) -> np.ndarray:
    """λ as the kernels index it: (1, 1), (n, 1) or (n, B)."""
    array = np.asarray(lambda_, np.float64)
    if array.size == 0:
        return _UNUSED
    return np.ascontiguousarray(array.reshape(steps[0], -1) if array.ndim else array.reshape(1, 1))


_UNUSED = np.ones((1, 1))
_ONE_STEP = OneStep()


@lru_cache(maxsize=64)
def _tolerance(dtype: np.dtype) -> float:
    """By dtype, since a dtype takes its time to say its name."""
    return by_name.TOLERANCE.get(dtype.name, 1e-6)


def _coefficients(window: Window, trace: Any, *, validate: bool, tol: float) -> np.ndarray:
    if validate:
        checks.check(window, trace, tol=tol)
    else:
        checks.check_actions(window)
    c = step_array("c", coefficients(window, trace), window)
    if validate:
        checks.check_coefficients(window, trace, c, tol=tol)
    return c


def _trajectory_aware(window: Window, trace: Any, *, validate: bool, tol: float) -> np.ndarray:
    """Targets of a trace that depends on where the trajectory starts: O(n²)."""
    n, steps = window.r.shape[0], window.r.shape
    if window.expected_q is None and window.a is not None:
        bare = window._replace(mu_a=None, pi_a=None, log_pi_a=None, log_mu_a=None)
        one_step = None
        if window.q_a is None:
            one_step = quick(*bare[:6], *bare[11:], _ONE_STEP, validate, tol=tol)
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
    if window.mask is not None:  # such rows may hold anything
        window = window._replace(discount=np.where(window.mask, window.discount, 0))
    delta = one_step - value_of_taken(window)
    out, cut = np.empty(steps, window.r.dtype), np.zeros(steps, bool)
    if out.size == 0:
        return out
    if window.reset is not None:
        cut |= window.reset
    if window.mask is not None:
        cut |= ~window.mask
    ratios = np.ascontiguousarray(likelihoods(window).log_ratio())
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
    """r_t + discount_t E_π Q(x_{t+1}, ·)."""
    expected = expectation(window.q[1:], window.pi[1:]) if window.expected_q is None else window.expected_q
    read = window.discount != 0 if window.mask is None else window.mask & (window.discount != 0)
    r = window.r if window.mask is None else np.where(window.mask, window.r, 0)
    return r + np.where(read, window.discount, 0) * np.where(read, expected, 0)


def _explain(window: Window, trace: Any, out: np.ndarray, *, tol: float, validate: bool) -> None:
    """A kernel saw something strange: says which rule was broken, if one was."""
    if not validate:
        checks.check_actions(window)
        return
    checks.check(window, trace, tol=tol)
    if window.mu_a is not None:
        checks.check_coefficients(window, trace, coefficients(window, trace), tol=tol)
    checks.check_result(window, out)


def _readable(name: str, value: Any) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"`{name}` is a masked array, whose own mask would be lost; say it with `mask=`.")
    is_array = isinstance(value, np.ndarray)
    if not is_array:
        try:
            value = np.asarray(value)
        except ValueError:
            raise ValueError(f"`{name}` must be a regular array; its rows have different lengths.") from None
    kind, dtype = value.dtype.kind, value.dtype
    if name in INTEGER and kind not in "iu":
        raise TypeError(f"`{name}` must hold whole numbers, the indices of actions; got dtype {dtype}.")
    if name in BOOLEAN and kind != "b":
        remedy = f"{name}.astype(bool)" if is_array else f"np.array({name}, dtype=bool)"
        raise TypeError(f"`{name}` must be boolean; got dtype {dtype}. Use `{remedy}`.")
    if kind not in "fiub" and dtype.name != "bfloat16":
        raise TypeError(f"`{name}` must hold real numbers; got dtype {dtype}.")
    return value


class _Open:
    """A window onto an array that may not be written to, which does not say so."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array  # kept alive by what is seen through this
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _for_kernels(values: Iterable[np.ndarray]) -> list[np.ndarray]:
    """For kernels, which only read: one that was compiled for arrays that may be written to serves others, too."""
    return [value if value.flags.writeable else np.asarray(_Open(value)) for value in values]


def _native(name: str, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if name in INTEGER:
        keep = value.dtype in ACTIONS
        return np.asarray(value, None if keep else np.int64, order="C")
    if name in BOOLEAN:
        return np.asarray(value, order="C")
    if name in ("q", "pi") and value.dtype == dtype and value.flags.aligned and value.strides[-1] == value.itemsize:
        return value  # rows of actions may lie anywhere
    return np.asarray(value, dtype, order="C")
