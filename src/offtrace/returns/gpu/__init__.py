"""Kernels for CUDA tensors, in Triton: every trace, its gradient, and the input checks along the way.

rows.py               what a kernel reads of a row
rules.py              the formulas of the traces, and what is checked
fold.py               the forward kernel, and the recursion alone
links.py              what programs tell each other about their chunks of time
gradients.py          the backward kernel
trajectory_aware.py   traces that depend on the start of a trajectory
plans.py              how a window is shared out among programs
speed.py              an estimate of how fast that is
launch.py             launches the kernels
jobs.py               from the arguments of `targets` to a job
calls.py              the short way for a window like one before
faults.py             the error for input that breaks a rule
autograd.py           the gradient as PyTorch calls it
"""

import torch
from torch import Tensor

from offtrace.returns import checks
from offtrace.returns import torch as on_torch
from offtrace.returns.gpu import calls, launch
from offtrace.returns.gpu.autograd import differentiable_targets
from offtrace.returns.gpu.faults import is_capturing, raise_fault
from offtrace.returns.gpu.jobs import corrections_job, dtype_of_coefficients, has_both_forms, job_for, widened
from offtrace.returns.gpu.launch import Job
from offtrace.returns.window import Window, check_given, shape
from offtrace.traces import TRACES, Trace

__all__ = ["corrections", "is_capturing", "solve", "targets"]


def targets(given: Window, trace: Trace, *, validate: bool, wants_gradient: bool) -> Tensor | None:
    """Return the targets of a window; None if the kernels do not serve it.

    With `validate` the host waits for the device once.
    """
    device = on_torch.device_of(given)
    if device.index != _current_device(device):
        with torch.cuda.device(device):
            return _targets(given, trace, validate=validate, wants_gradient=wants_gradient)
    return _targets(given, trace, validate=validate, wants_gradient=wants_gradient)


def _targets(given: Window, trace: Trace, *, validate: bool, wants_gradient: bool) -> Tensor | None:
    window, tolerance = on_torch.ready(given, widens=False)
    shape(window)
    check_given(window, trace)
    with torch.set_grad_enabled(wants_gradient):
        job = job_for(window, trace, tolerance=tolerance if validate else None)
        if job is None or (wants_gradient and not trace.markov):
            return None
        out = _compute(job, trace, wants_gradient=wants_gradient, given=given)
    if validate:
        is_users_own = type(trace) not in TRACES.values()
        if launch.flag_was_set(out) or is_users_own or has_both_forms(given):
            raise_fault(given, trace, out, job.w.c)
    return out


def _compute(job: Job, trace: Trace, *, wants_gradient: bool, given: Window) -> Tensor:
    if wants_gradient:
        return differentiable_targets(job, trace)
    if not trace.markov:
        return launch.trajectory_aware_targets(job).out
    result = launch.targets(job)
    calls.remember(job, result, given, trace)
    return result.out


def corrections(given: Window, c: Tensor, *, validate: bool) -> Tensor | None:
    """Return the corrections of a window from given coefficients; None for an empty window."""
    window, tolerance = on_torch.ready(given, widens=False)
    shape(window)
    c = on_torch.step_tensor("c", c, window, dtype=dtype_of_coefficients(c, window))
    if c.numel() == 0:
        return None
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
