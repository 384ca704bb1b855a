"""Kernels for CUDA tensors, in Triton: every trace, its gradient, and the input checks along the way.

rows.py               what a kernel reads of a row, and the formulas of the traces
fold.py               the forward kernels
gradients.py          the backward kernel
trajectory_aware.py   traces that depend on the start of a trajectory
launch.py             how a window is shared out among programs
jobs.py               from the arguments of `targets` to a job
calls.py              the short way for a window like one before
autograd.py           the gradient as PyTorch calls it

`ot.targets` does not use them yet: on a GPU their results have not been compared with the reference, which `make
test-gpu` does. Until then CUDA tensors go to `returns/cuda.py`.
"""

import torch
from torch import Tensor

from offtrace.returns import checks
from offtrace.returns.gpu import calls, launch
from offtrace.returns.gpu.autograd import differentiable_targets
from offtrace.returns.gpu.jobs import corrections_job, has_both_forms, job_for
from offtrace.returns.window import Window, coefficients
from offtrace.traces import TRACES, Trace


def targets(window: Window, trace: Trace, *, tolerance: float | None) -> Tensor | None:
    """Return the targets of a window of tensors on the current CUDA device; None if the kernels do not serve it.

    With a `tolerance` the values are checked, and the host waits for the device once. Nothing is checked while a CUDA
    graph is captured.
    """
    if _is_capturing(window):
        tolerance = None
    wants_gradient = _wants_gradient(*window, *trace.parameters())
    key = None if wants_gradient else calls.key_of(window, trace, tolerance)
    found = None if key is None else calls.run(key, window, trace)
    if found is None:
        found = _compute(key, window, trace, tolerance, wants_gradient=wants_gradient)
    if found is None:
        return None
    out, strange = found
    is_users_own = type(trace) not in TRACES.values()
    if strange is not None and (is_users_own or strange.item()):
        _raise(window, trace, out, tolerance)
    return out


def _compute(
    key: tuple | None, window: Window, trace: Trace, tolerance: float | None, *, wants_gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Return the targets and the flag of the checks by the long way."""
    job = job_for(window, trace, tolerance=tolerance)
    if job is None or (wants_gradient and not trace.markov):
        return None
    if tolerance is not None and has_both_forms(window):
        checks.check(window, trace, tol=tolerance)
    if wants_gradient:
        return differentiable_targets(job, trace)
    if not trace.markov:
        result = launch.trajectory_aware_targets(job)
    else:
        result = launch.targets(job)
        if key is not None and result.again is not None:
            calls.remember(key, job, result.again, window, trace)
    return result.out, result.strange


def corrections(window: Window, c: Tensor, *, tolerance: float | None) -> Tensor | None:
    """Return the corrections of a window from given coefficients; None if the kernels do not serve it."""
    if _is_capturing(window):
        tolerance = None
    job = corrections_job(window, c, tolerance=tolerance)
    if job is None:
        return None
    if _wants_gradient(*job.w):
        out, strange = differentiable_targets(job, None)
    else:
        out, _, strange, _ = launch.targets(job)
    if strange is not None and strange.item():
        checks.check_steps(window, c)
    return out


def _is_capturing(window: Window) -> bool:
    """Return whether a CUDA graph is captured, which must not wait for the device."""
    return window.r.is_cuda and torch.cuda.is_current_stream_capturing()


def _wants_gradient(*values: object) -> bool:
    return torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in values)


def _raise(window: Window, trace: Trace, out: Tensor, tolerance: float | None) -> None:
    """Raise the error for the rule that is broken, if one is."""
    with torch.no_grad():
        checks.check(window, trace, tol=tolerance)
        if trace.markov:
            checks.check_coefficients(window, trace, coefficients(window, trace), tol=tolerance)
        checks.check_result(window, out)
