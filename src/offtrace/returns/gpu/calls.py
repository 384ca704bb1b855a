"""The short way for a window like one before: same tensors given, same shapes, dtypes and trace.

A call spends most of its time in Python if the window is small. What has been found out about a window is remembered
by what it depends on, and a second call goes straight from `ot.targets` to the compiled kernel. This serves
contiguous windows of our traces with one λ; gradients and everything else go the long way.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace import returns
from offtrace.returns.gpu import launch
from offtrace.returns.gpu.faults import is_capturing, raise_fault
from offtrace.returns.gpu.jobs import has_both_forms
from offtrace.returns.gpu.launch import Form, Job, Result, Run
from offtrace.returns.gpu.rows import Inputs
from offtrace.returns.window import Window
from offtrace.traces import Trace, formulas

MOST = 1024
"""Windows that are remembered."""


class Call(NamedTuple):
    """A compiled kernel, and what it is called with besides the tensors and λ."""

    form: Form
    run: Run
    select: Callable[[list], tuple]
    """Returns the inputs of the kernel from the addresses of the window's fields and a None."""
    dtype: torch.dtype
    parameter: str | None
    """The field of the trace that holds its parameter."""
    tolerance: float


_CALLS: dict[tuple | None, Call] = {}


def targets_like_before(window: Window, trace: Trace, validate: bool, stop_gradient: bool) -> Tensor | None:
    """Return the targets, if there was such a call before."""
    r = window.r
    if type(r) is not Tensor or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    if validate and is_capturing():
        validate = False
    key, addresses = _key_of(window, trace, validate)
    call = _CALLS.get(key)
    wants_gradient = not stop_gradient and torch.is_grad_enabled() and _needs_gradient(window)
    if call is None or wants_gradient:
        return None
    if r.is_cuda and r.get_device() != torch.cuda.current_device():  # kernels are launched there
        return None
    lambda_ = trace.lambda_
    parameter = 1.0 if call.parameter is None else getattr(trace, call.parameter)
    if type(lambda_) not in (float, int) or type(parameter) not in (float, int):
        return None
    out = torch.empty_like(r) if r.dtype is call.dtype else torch.empty_like(r, dtype=call.dtype)
    numbers = (float(lambda_), float(parameter), call.tolerance)
    launch.run_again(call.run, call.form, call.select(addresses), out, numbers)
    if validate and launch.flag_was_set(out):
        raise_fault(window, trace, out)
    return out


def remember(job: Job, result: Result, window: Window, trace: Trace) -> None:
    """Remember how a job was run, if its inputs are the tensors that were given, neither converted nor moved."""
    validate = job.tolerance is not None
    key, _ = _key_of(window, trace, validate)
    fields = _fields(job, window)
    if key is None or fields is None or result.form is None or result.run is None:
        return
    if validate and has_both_forms(window):  # the kernel checks one form
        return
    if len(_CALLS) >= MOST:
        _CALLS.clear()
    parameter = formulas.PARAMETERS.get(type(trace))
    tolerance = float(job.tolerance or 0)
    nothing = len(window)
    places = [nothing if name is None else window._fields.index(name) for name in fields]
    _CALLS[key] = Call(result.form, result.run, itemgetter(*places), job.dtype, parameter, tolerance)
    returns._targets_like_before = targets_like_before


def _key_of(window: Window, trace: Trace, validate: bool) -> tuple[tuple | None, list]:
    """Return what a call depends on, and the addresses of the tensors; no key if it has to go the long way."""
    key: list[Any] = [type(trace), validate, torch.are_deterministic_algorithms_enabled()]
    addresses: list[int | None] = []
    for value in window:
        if value is None:
            key.append(None)
            addresses.append(None)
        elif type(value) is Tensor and value.is_contiguous() and not value.is_neg():
            address = value.data_ptr()
            if address % 16:
                return None, []
            key += (value.dtype, value.shape, value.get_device())
            addresses.append(address)
        else:
            return None, []
    addresses.append(None)
    return tuple(key), addresses


def _needs_gradient(window: Window) -> bool:
    return any(isinstance(value, Tensor) and value.requires_grad for value in window)


def _fields(job: Job, window: Window) -> tuple[str | None, ...] | None:
    """Return the fields of the window that are the inputs of a job; None if one of them was computed."""
    found: list[str | None] = []
    for name, value in zip(Inputs._fields, job.w, strict=True):
        if job.logs and name in ("pi_a", "mu_a"):
            name = f"log_{name}"
        if value is None:
            found.append(None)
        elif getattr(window, name, None) is value:
            found.append(name)
        else:
            return None
    return tuple(found)
