"""Kernels for CUDA tensors, in Triton: every trace, its gradient, and the input checks along the way.

rows.py               what a kernel reads of a row, and the formulas of the traces
fold.py               the forward kernels
gradients.py          the backward kernel
trajectory_aware.py   traces that depend on the start of a trajectory
launch.py             how a window is shared out among programs
jobs.py               from the arguments of `targets` to a job
calls.py              the short way for a window like one before
autograd.py           the gradient as PyTorch calls it
"""

import torch
from torch import Tensor

from offtrace.returns import checks
from offtrace.returns import torch as on_torch
from offtrace.returns.gpu import calls, launch
from offtrace.returns.gpu.autograd import differentiable_targets
from offtrace.returns.gpu.jobs import corrections_job, has_both_forms, job_for, widened
from offtrace.returns.window import Window, check_given, coefficients, shape
from offtrace.traces import TRACES, Trace


def targets(given: Window, trace: Trace, *, validate: bool, wants_gradient: bool) -> Tensor | None:
    """Return the targets of a window; None if the kernels do not serve it.

    With `validate` the host waits for the device once. Nothing is checked while a CUDA graph is captured.
    """
    if validate and _is_capturing():
        validate = False
    device = on_torch.device_of(given)
    if device.index != _current_device(device):
        with torch.cuda.device(device):
            return _targets(given, trace, validate=validate, wants_gradient=wants_gradient)
    return _targets(given, trace, validate=validate, wants_gradient=wants_gradient)


def _targets(given: Window, trace: Trace, *, validate: bool, wants_gradient: bool) -> Tensor | None:
    key = None if wants_gradient else calls.key_of(given, trace, validate)
    out = None if key is None else calls.run(key, given, trace)
    if out is None:
        window, tolerance = on_torch.ready(given, widens=False)
        shape(window)
        check_given(window, trace)
        checked = tolerance if validate else None
        with torch.set_grad_enabled(wants_gradient):
            out = _compute(key, window, trace, checked, wants_gradient=wants_gradient)
    if out is not None and validate:
        is_users_own = type(trace) not in TRACES.values()
        if launch.flag_was_set(out) or is_users_own:
            _raise(given, trace, out)
    return out


def _compute(
    key: tuple | None, window: Window, trace: Trace, tolerance: float | None, *, wants_gradient: bool
) -> Tensor | None:
    """Return the targets by the long way."""
    job = job_for(window, trace, tolerance=tolerance)
    if job is None or (wants_gradient and not trace.markov):
        return None
    if tolerance is not None and has_both_forms(window):
        checks.check(widened(window), trace, tol=tolerance)
    if wants_gradient:
        return differentiable_targets(job, trace)
    if not trace.markov:
        return launch.trajectory_aware_targets(job).out
    result = launch.targets(job)
    if key is not None:
        calls.remember(key, job, result, window, trace)
    return result.out


def corrections(given: Window, c: Tensor, *, validate: bool) -> Tensor:
    """Return the corrections of a window from given coefficients."""
    window, tolerance = on_torch.ready(given, widens=False)
    shape(window)
    c = on_torch.step_tensor("c", c, window, widens=False)
    if c.numel() == 0:
        return torch.empty_like(window.r, dtype=widened(window).r.dtype)
    if validate and _is_capturing():
        validate = False
    with torch.cuda.device(window.r.device if window.r.is_cuda else -1):
        job = corrections_job(window, c, tolerance=tolerance if validate else None)
        if torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in job.w):
            out = differentiable_targets(job, None)
        else:
            out = launch.targets(job).out
        if validate and launch.flag_was_set(out):
            checks.check_steps(widened(window), c)
    return out


def solve(m: Tensor, b: Tensor) -> Tensor:
    """Solve G_t = b_t + m_t G_{t+1}."""
    out = torch.empty_like(b, memory_format=torch.contiguous_format)
    with torch.cuda.device(b.device if b.is_cuda else -1):
        launch.solve(m.contiguous(), b.contiguous(), out)
    return out


def _current_device(device: torch.device) -> int | None:
    """Return the index of the current CUDA device; kernels are launched there."""
    return torch.cuda.current_device() if device.type == "cuda" else device.index


def _is_capturing() -> bool:
    """Return whether a CUDA graph is captured, which must not wait for the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _raise(given: Window, trace: Trace, out: Tensor) -> None:
    """Raise the error for the rule that is broken, if one is."""
    with torch.no_grad():
        window, tolerance = on_torch.ready(given)
        checks.check(window, trace, tol=tolerance)
        if trace.markov:
            checks.check_coefficients(window, trace, coefficients(window, trace), tol=tolerance)
        checks.check_result(window, out)
