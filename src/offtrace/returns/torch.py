"""The PyTorch backend: CPU tensors share their memory with the NumPy kernels; those for CUDA are in `gpu`."""

import dataclasses
from typing import Any

import numpy as np
import torch

from offtrace.arrays import expectation, in_torch_transform, is_compiling, lead, product
from offtrace.likelihoods import tolerance
from offtrace.returns import checks, trajectory_aware
from offtrace.returns import numpy as on_cpu
from offtrace.returns.torch_operator import as_tree, kernels_of, solve
from offtrace.returns.window import (
    BOOLEAN,
    INTEGER,
    Window,
    check_given,
    coefficients,
    likelihoods_of,
    shape,
    value_of_taken,
    without_unread_rows,
)
from offtrace.traces import TRACES, Trace

Tensor = torch.Tensor


def targets(given: Window, trace: Trace, *, validate: bool, stop_gradient: bool) -> Tensor:
    """Return Q(x_t, a_t) + Δ_t for every row of a window."""
    if in_torch_transform():
        return _traced_targets(given, trace, stop_gradient=stop_gradient)
    wants_gradient = not stop_gradient and torch.is_grad_enabled() and _needs_gradient(given, trace)
    kernels = kernels_of(device_of(given))
    if kernels is not None:
        validate = validate and not kernels.is_capturing()
        out = kernels.targets(given, trace, validate=validate, wants_gradient=wants_gradient)
        if out is not None:
            return out
    if wants_gradient:
        return _targets(given, trace, validate=validate)
    if _on_cpu(given) and not _is_users_own(trace):
        return _targets_through_numpy(given, trace, validate=validate)
    with torch.no_grad():
        return _targets(given, trace, validate=validate)


def _traced_targets(given: Window, trace: Trace, *, stop_gradient: bool) -> Tensor:
    """Return the targets inside `torch.compile`, `torch.export` or `torch.func`, where values are not known."""
    if not stop_gradient:
        return _targets(given, trace, validate=False)
    with torch.no_grad():
        out = _targets(given, trace, validate=False)
    return out.detach()  # `no_grad` does not stop derivatives in forward mode


def _targets_through_numpy(given: Window, trace: Trace, *, validate: bool) -> Tensor:
    """Return the targets of CPU tensors from the NumPy kernels, on shared memory."""
    for name in BOOLEAN:
        if isinstance(getattr(given, name), Tensor):
            _readable(name, getattr(given, name))  # here, so that the remedy in the error is PyTorch's
    shared = Window(*(_array(value) if isinstance(value, Tensor) else value for value in given))
    trace = _on_host(trace)
    tol = tolerance(*given) if validate else None
    out = None
    if type(shared.r) is np.ndarray and all(value is None for value in shared[6:11]):
        out = on_cpu.targets_if_simple(*shared[:6], *shared[11:], trace, validate, tol=tol)
    if out is None:
        out = on_cpu.targets(shared, trace, validate=validate, tol=tol)
    return torch.from_numpy(out)


def corrections(given: Window, c: Tensor, *, validate: bool) -> Tensor:
    """Return Δ_t for every row of a window, from given coefficients; differentiable."""
    if not in_torch_transform():
        kernels = kernels_of(device_of(given))
        if kernels is not None:
            validate = validate and not kernels.is_capturing()
            out = kernels.corrections(given, c, validate=validate)
            if out is not None:
                return out
    window, _ = ready(given)
    shape(window)
    c = step_tensor("c", c, window)
    if validate and not in_torch_transform():
        checks.check_steps(window, c)
    return fold(window, window.q_a, window.expected_q, c, as_targets=False)


def _targets(given: Window, trace: Trace, *, validate: bool) -> Tensor:
    """Return the targets by tensor operations: any device, differentiable."""
    window, tol = ready(given)
    shape(window)
    check_given(window, trace)
    if validate:
        checks.check(window, trace, tol=tol)
    elif window.r.device.type == "cpu" and not in_torch_transform():
        checks.check_actions(window)
    window = without_unread_rows(window)
    expected = window.expected_q
    if expected is None:
        expected = expectation(window.q[1:], window.pi[1:])
    q_a = value_of_taken(window)
    if not trace.markov:
        return _trajectory_aware(window, trace, q_a, expected)
    c = step_tensor("c", coefficients(window, trace), window)
    if validate:
        checks.check_coefficients(window, trace, c, tol=tol)
    out = fold(window, q_a, expected, c, as_targets=True)
    if validate:
        checks.check_result(window, out)
    return out


def _trajectory_aware(window: Window, trace: Any, q_a: Tensor, expected: Tensor) -> Tensor:
    r, discount = window.r, window.discount
    cut = torch.zeros_like(r, dtype=torch.bool) if window.reset is None else window.reset
    if window.mask is not None:
        cut = cut | ~window.mask
        r, discount = torch.where(window.mask, r, 0), torch.where(window.mask, discount, 0)
        q_a = torch.where(window.mask, q_a, 0)
    one_step = r + product(discount, expected)
    lambdas = lead(torch.as_tensor(trace.lambda_, dtype=r.dtype, device=r.device), r.ndim)
    log_ratio = likelihoods_of(window).log_ratio()
    out = trajectory_aware.targets(trace, one_step, one_step - q_a, discount, log_ratio, lambdas, cut)
    return out if window.mask is None else torch.where(window.mask, out, 0)


def fold(window: Window, q_a: Tensor, expected_q: Tensor, c: Tensor, *, as_targets: bool) -> Tensor:
    """Run the recursion by a kernel of the CPU, or by tensor operations."""
    if window.r.device.type != "cpu" or in_torch_transform():
        return fold_by_operations(window, q_a, expected_q, c, as_targets=as_targets)
    out: Any = _Fold.apply(q_a, expected_q, window.r, window.discount, c, window.reset, window.mask, as_targets)
    return out


def fold_by_operations(window: Window, q_a: Tensor, expected_q: Tensor, c: Tensor, *, as_targets: bool) -> Tensor:
    """Run the recursion by tensor operations and, where PyTorch traces them, the operator `solve`."""
    r, discount = window.r, window.discount
    by_operator = in_torch_transform() and r.device.type in ("cpu", "cuda")
    if by_operator:  # the kernels compute in float64, too
        q_a, expected_q, r, discount, c = (rows.double() for rows in (q_a, expected_q, r, discount, c))
    if window.reset is not None:
        c = torch.where(window.reset, 0, c)
    if window.mask is not None:
        r, q_a, c, discount = (torch.where(window.mask, rows, 0) for rows in (r, q_a, c, discount))
    one_step = r + product(discount, expected_q)
    ahead = product(discount, _next(c))
    baseline = product(ahead, _next(q_a)) if as_targets else q_a
    if by_operator:
        return solve(ahead, one_step - baseline).to(window.r.dtype)
    return as_tree(ahead, one_step - baseline)


def _next(rows: Tensor) -> Tensor:
    """Return the rows moved up by one: row t+1 in row t, zeros in the last."""
    return torch.cat([rows[1:], torch.zeros_like(rows[:1])])


class _Fold(torch.autograd.Function):
    """The recursion on the CPU; its gradient is one pass of the same recursion, forwards in time."""

    @staticmethod
    def forward(
        ctx: Any,
        q_a: Tensor,
        expected_q: Tensor,
        r: Tensor,
        discount: Tensor,
        c: Tensor,
        reset: Tensor | None,
        mask: Tensor | None,
        as_targets: bool,
    ) -> Tensor:
        steps = [value.contiguous().numpy() for value in (q_a, expected_q, r, discount, c)]
        ends = [None if end is None else end.contiguous().numpy() for end in (reset, mask)]
        window = Window(steps[2], steps[3], expected_q=steps[1], reset=ends[0], mask=ends[1])
        out = on_cpu.fold(window, steps[0], steps[4], as_targets=as_targets)
        with np.errstate(all="ignore"):  # masked rows may hold anything
            correction = torch.from_numpy(out - steps[0]) if as_targets else torch.from_numpy(out.copy())
        ctx.save_for_backward(correction, expected_q, discount, c, reset, mask, q_a, r)
        ctx.as_targets = as_targets
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        if torch.is_grad_enabled():  # with `create_graph=True`
            return _backward_by_operations(ctx, gradient)
        saved: list[Any] = [None if value is None else value.contiguous().numpy() for value in ctx.saved_tensors[:6]]
        correction, expected_q, discount, c, reset, mask = saved
        g = gradient.contiguous().numpy()
        wants_q_a, wants_expected, _, *wants = ctx.needs_input_grad[:5]
        steps = (g, correction, expected_q, discount, c, reset, mask)
        to_delta, *others = on_cpu.fold_backward(*steps, wants=tuple(wants))
        e = torch.from_numpy(to_delta)
        to_discount, to_c = (value if value is None else torch.from_numpy(value) for value in others)
        to_q_a = to_expected = None
        if wants_q_a:
            to_q_a = gradient - e if ctx.as_targets else -e
        if wants_expected:
            to_expected = torch.from_numpy(discount) * e
        if mask is not None:  # a masked row may hold anything
            real = torch.from_numpy(mask)
            to_q_a, to_expected = (v if v is None else torch.where(real, v, 0) for v in (to_q_a, to_expected))
        return to_q_a, to_expected, e, to_discount, to_c, None, None, None


def _backward_by_operations(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the recursion by tensor operations, which have derivatives of their own."""
    _, expected_q, discount, c, reset, mask, q_a, r = ctx.saved_tensors
    # As views, so that a gradient does not pass from one argument to another that was computed from it.
    steps = [rows.view_as(rows) for rows in (q_a, expected_q, r, discount, c)]
    window = Window(steps[2], steps[3], reset=reset, mask=mask)
    out = fold_by_operations(window, steps[0], steps[1], steps[4], as_targets=ctx.as_targets)
    wants = ctx.needs_input_grad[:5]
    wanted = [rows for rows, is_wanted in zip(steps, wants, strict=True) if is_wanted]
    found = iter(torch.autograd.grad(out, wanted, gradient, create_graph=True, materialize_grads=True))
    return (*(next(found) if is_wanted else None for is_wanted in wants), None, None, None)


_FIXED_DTYPES = {**dict.fromkeys(INTEGER, torch.int64), **dict.fromkeys(BOOLEAN, torch.bool)}
_DTYPES = [_FIXED_DTYPES.get(name) for name in Window._fields]
"""Dtypes of the arguments of `targets`; None for the floats, which share one dtype."""


_KEPT = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)
"""Dtypes that the kernels for CUDA read as they are."""


def ready(given: Window, *, widens: bool = True) -> tuple[Window, float]:
    """Return tensors on one device, of the widest float dtype given, at least float32; and the tolerance.

    Without `widens`, floats and integers that the kernels for CUDA can read keep their dtypes.
    """
    if _is_ready(given):
        return given, tolerance(given.r)
    device = device_of(given)
    values = [None if v is None else _readable(name, v) for name, v in zip(Window._fields, given, strict=True)]
    floats = [v.dtype for v in values if v is not None and v.dtype.is_floating_point]
    tol = tolerance(*(v for v in values if v is not None and v.dtype.is_floating_point))
    widest = torch.float64 if torch.float64 in floats or not floats else torch.float32
    found = []
    for wanted, value in zip(_DTYPES, values, strict=True):
        dtype = wanted or widest
        if value is not None:
            keeps = not widens and value.dtype in _KEPT and value.is_floating_point() == dtype.is_floating_point
            value = value.to(device=device, dtype=value.dtype if keeps else dtype)
        found.append(value)
    return Window(*found), tol


def device_of(given: Window) -> torch.device:
    """Return the device of the first tensor, to which the others are moved; the CPU if only λ is a tensor."""
    if isinstance(given.r, Tensor):
        return given.r.device
    return next((value.device for value in given if isinstance(value, Tensor)), torch.device("cpu"))


def _is_ready(given: Window) -> bool:
    """Return True if `ready` would change nothing."""
    if not isinstance(given.r, Tensor) or given.r.dtype not in (torch.float32, torch.float64):
        return False
    device, dtype = given.r.device, given.r.dtype
    return all(
        v is None or (isinstance(v, Tensor) and v.dtype is (wanted or dtype) and v.device == device)
        for wanted, v in zip(_DTYPES, given, strict=True)
    )


def step_tensor(name: str, value: Any, window: Window, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of one number per step on the window's device, by default in its dtype."""
    tensor = _readable(name, value).to(device=window.r.device, dtype=dtype or window.r.dtype)
    if tensor.shape != window.r.shape:
        raise ValueError(f"`{name}` must have the shape of `r`, {tuple(window.r.shape)}; got {tuple(tensor.shape)}.")
    return tensor


def _readable(name: str, value: Any) -> Tensor:
    """Return an argument as a tensor after checking its dtype."""
    if not isinstance(value, Tensor) and is_compiling():
        value = torch.as_tensor(np.asarray(value))
    elif not isinstance(value, Tensor):
        value = on_cpu._readable(name, value)
        value = np.asarray(value, value.dtype.newbyteorder("="), order="C")
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if name in INTEGER and (value.is_floating_point() or value.dtype is torch.bool or value.is_complex()):
        raise TypeError(f"`{name}` must hold whole numbers, the indices of actions; got dtype {value.dtype}.")
    if name in BOOLEAN and value.dtype is not torch.bool:
        raise TypeError(f"`{name}` must be boolean; got dtype {value.dtype}. Use `{name}.bool()`.")
    if value.is_complex():
        raise TypeError(f"`{name}` must hold real numbers; got dtype {value.dtype}.")
    return value


def _needs_gradient(window: Window, trace: Trace) -> bool:
    given = (*window, *trace.parameters())
    return any(isinstance(value, Tensor) and value.requires_grad for value in given)


def _on_cpu(window: Window) -> bool:
    return all(value.is_cpu for value in window if isinstance(value, Tensor))


def _is_users_own(trace: Trace) -> bool:
    """Return True for a user's code, which gets tensors because it may call PyTorch."""
    return type(trace) not in TRACES.values()


def _on_host(trace: Trace) -> Trace:
    """Return the same trace with NumPy arrays in place of tensors."""
    tensors = {k: v.detach().cpu().numpy() for k, v in trace.__dict__.items() if isinstance(v, Tensor)}
    return dataclasses.replace(trace, **tensors) if tensors else trace


def _array(tensor: Tensor) -> Any:
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().float().numpy()
    return (tensor.detach() if tensor.requires_grad else tensor).numpy()
