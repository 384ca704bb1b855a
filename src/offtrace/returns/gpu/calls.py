"""The short way for a window like one before: same tensors given, same shapes, dtypes and trace.

A call spends most of its time in Python if the window is small. What has been found out about a window is remembered
by what it depends on, and a second call goes straight to the compiled kernel. This serves contiguous windows of our
traces with one λ; gradients and everything else go the long way.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace.returns.gpu import launch
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
    select: Callable[[tuple], tuple]
    """Returns the inputs of the kernel from the fields of the window and a None."""
    dtype: torch.dtype
    parameter: str | None
    """The field of the trace that holds its parameter."""
    tolerance: float


_CALLS: dict[tuple, Call] = {}


def key_of(window: Window, trace: Trace, validate: bool) -> tuple | None:
    """Return what a call depends on; None if the window has to go the long way."""
    key: list[Any] = [type(trace), validate, torch.are_deterministic_algorithms_enabled()]
    for value in window:
        if value is None:
            key.append(None)
        elif type(value) is Tensor and value.is_contiguous() and value.data_ptr() % 16 == 0 and not value.is_neg():
            key += (value.dtype, value.shape, value.get_device())
        else:
            return None
    return tuple(key)


def run(key: tuple, window: Window, trace: Trace) -> Tensor | None:
    """Return the targets, if there was such a call before."""
    call = _CALLS.get(key)
    if call is None or not all(isinstance(value, int | float) for value in trace.parameters()):
        return None
    out = torch.empty_like(window.r, dtype=call.dtype)
    inputs = Inputs._make(call.select((*window, None)))
    parameter = 1.0 if call.parameter is None else float(getattr(trace, call.parameter))
    launch.run_form(call.form, inputs, out, None, (float(trace.lambda_), parameter, call.tolerance), call.run)
    return out


def remember(key: tuple, job: Job, result: Result, window: Window, trace: Trace) -> None:
    """Remember how a job was run, if its inputs are the tensors that were given, neither converted nor moved."""
    fields = _fields(job, window)
    if fields is None or result.form is None or result.run is None:
        return
    if len(_CALLS) >= MOST:
        _CALLS.clear()
    parameter = formulas.PARAMETERS.get(type(trace))
    tolerance = float(job.tolerance or 0)
    nothing = len(window)
    places = [nothing if name is None else window._fields.index(name) for name in fields]
    _CALLS[key] = Call(result.form, result.run, itemgetter(*places), job.dtype, parameter, tolerance)


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
