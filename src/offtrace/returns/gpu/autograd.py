"""The kernels as a function of PyTorch with a gradient."""

from typing import Any

import torch
from torch import Tensor

from offtrace.arrays import expectation
from offtrace.returns import torch as on_torch
from offtrace.returns.gpu import launch
from offtrace.returns.gpu.gradients import Gradients
from offtrace.returns.gpu.launch import Job, Result
from offtrace.returns.gpu.rows import Inputs
from offtrace.returns.window import Window, coefficients, value_of_taken, without_unread_rows
from offtrace.traces import Trace

DIFFERENTIABLE = ("r", "discount", "q", "pi", "q_a", "expected_q", "pi_a", "mu_a", "c", "lambda_")
"""The inputs that may have a gradient."""


def differentiable_targets(job: Job, trace: Trace | None) -> Tensor:
    """Return targets or corrections with a gradient. A given c needs no trace."""
    out: Any = _Targets.apply(job, trace, *(getattr(job.w, name) for name in DIFFERENTIABLE))
    return out


class _Targets(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, trace: Trace | None, *inputs: Tensor | None) -> Tensor:
        result = launch.targets(job, keeps_m=True)
        # PyTorch sees whether what is saved here is changed before the backward pass.
        ctx.save_for_backward(*job.w, result.out, result.m)
        ctx.job = job._replace(w=None)
        ctx.trace = trace
        return result.out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, m = ctx.saved_tensors
        job = ctx.job._replace(w=Inputs(*inputs))
        given = {name: getattr(job.w, name) for name in DIFFERENTIABLE}
        wants = dict(zip(DIFFERENTIABLE, ctx.needs_input_grad[2:], strict=True))
        if torch.is_grad_enabled():  # with `create_graph=True`
            found = _by_operations(job, ctx.trace, given, wants, gradients[0])
        else:
            found = _by_kernels(job, Result(out, m), wants, gradients[0])
        return None, None, *(found.get(name) for name in DIFFERENTIABLE)


def _by_kernels(job: Job, result: Result, wants: dict[str, bool], gradient: Tensor) -> dict[str, Tensor]:
    to: dict[str, Tensor] = {}
    for name, is_wanted in wants.items():
        if is_wanted and name == "lambda_":
            to[name] = torch.empty_like(result.out)
        elif is_wanted and name != "r":
            to[name] = torch.empty_like(getattr(job.w, name))
    if gradient.stride() != result.out.stride():
        gradient = torch.empty_like(result.out).copy_(gradient)
    e = launch.backward(job, result, gradient, Gradients(**to))
    if wants["r"]:
        to["r"] = e.to(job.w.r.dtype)
        if job.w.mask is not None:
            to["r"] = to["r"].masked_fill(~job.w.mask, 0)
    if "lambda_" in to and job.lambda_per_step:
        to["lambda_"] = to["lambda_"].reshape(len(e), -1).sum(1)
    return to


def _by_operations(
    job: Job, trace: Trace | None, given: dict[str, Tensor], wants: dict[str, bool], gradient: Tensor
) -> dict[str, Tensor]:
    """Return the gradients by tensor operations, which have derivatives of their own."""
    # As views, so that a gradient does not pass from one argument to another that was computed from it.
    views = {name: value.view_as(value) for name, value in given.items() if value is not None}
    out = targets_by_operations(job._replace(w=job.w._replace(**views)), trace)
    wanted = [name for name, is_wanted in wants.items() if is_wanted]
    found = torch.autograd.grad(
        out, [views[name] for name in wanted], gradient, create_graph=True, materialize_grads=True
    )
    return dict(zip(wanted, found, strict=True))


def targets_by_operations(job: Job, trace: Trace | None) -> Tensor:
    """Return what `launch.targets` returns, by tensor operations."""
    w = job.w
    names = ("log_pi_a", "log_mu_a") if job.logs else ("pi_a", "mu_a")
    likelihoods = dict(zip(names, (w.pi_a, w.mu_a), strict=True))
    floats = {name: getattr(w, name) for name in ("r", "discount", "q", "pi", "q_a", "expected_q")} | likelihoods
    wide = {name: None if value is None else value.to(job.dtype) for name, value in floats.items()}
    window = without_unread_rows(Window(**wide, a=w.a, reset=w.reset, mask=w.mask))
    expected = window.expected_q
    if expected is None:
        expected = expectation(window.q[1:], window.pi[1:])
    c = w.c
    if trace is not None and c is None:
        if w.lambda_ is not None:
            trace = trace.with_lambda(w.lambda_.to(job.dtype))
        c = coefficients(window, trace)
    return on_torch.fold_by_operations(
        window, value_of_taken(window), expected, c.to(job.dtype), as_targets=not job.corrections
    )
