"""Kernels for CUDA tensors, in Triton: every trace, its gradient, and the input checks along the way.

rows.py               what a kernel reads of a row, and the formulas of the traces
fold.py               the forward kernels
gradients.py          the backward kernel
trajectory_aware.py   traces that depend on the start of a trajectory
launch.py             how a window is shared out among programs
jobs.py               from the arguments of `targets` to a job
autograd.py           the gradient as PyTorch calls it
"""

import torch
from torch import Tensor

from offtrace.returns import checks
from offtrace.returns.gpu import launch
from offtrace.returns.gpu.autograd import differentiable_targets, needs_gradient
from offtrace.returns.gpu.jobs import is_mixed, job_for, like_window
from offtrace.returns.window import Window, coefficients
from offtrace.traces import TRACES, Trace


def targets(window: Window, trace: Trace, *, tolerance: float | None) -> Tensor | None:
    """Return the targets of a window of tensors on one CUDA device; None if the kernels do not serve it.

    With a `tolerance` the values are checked, and the host waits for the device once. Nothing is checked while a CUDA
    graph is captured.
    """
    if window.r.is_cuda and torch.cuda.is_current_stream_capturing():
        tolerance = None
    job = job_for(window, trace, tolerance=tolerance)
    if job is None:
        return None
    if tolerance is not None and is_mixed(window, trace):
        checks.check(window, trace, tol=tolerance)
    if needs_gradient(job):
        if not trace.markov:
            return None
        out, strange = differentiable_targets(job, trace)
    elif trace.markov:
        out, _, strange = launch.targets(job)
    else:
        out, _, strange = launch.trajectory_aware_targets(job)
    out = like_window(out, window, batch_major=job.batch_major)
    is_users_own = type(trace) not in TRACES.values()
    if strange is not None and (is_users_own or strange.item()):
        _raise(window, trace, out, tolerance)
    return out


def _raise(window: Window, trace: Trace, out: Tensor, tolerance: float | None) -> None:
    """Raise the error for the rule that is broken, if one is."""
    with torch.no_grad():
        checks.check(window, trace, tol=tolerance)
        if trace.markov:
            checks.check_coefficients(window, trace, coefficients(window, trace), tol=tolerance)
        checks.check_result(window, out)
