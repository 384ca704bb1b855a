"""The short way for a window like one before: same tensors given, same shapes, dtypes and trace.

A call spends most of its time in Python if the window is small. What has been found out about a window is remembered
by what it depends on, and a second call goes straight to the compiled kernel. This serves contiguous windows of our
traces with one λ that take one pass; gradients and everything else go the long way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace.returns.gpu.launch import Again, Job
from offtrace.returns.gpu.rows import Inputs
from offtrace.returns.window import Window
from offtrace.traces import Trace, formulas

MOST = 1024
"""Windows that are remembered."""


class Call(NamedTuple):
    """A kernel, and what it is called with besides the tensors and λ."""

    run: Callable[..., None]
    fields: tuple[str | None, ...]
    """The fields of the window that the kernel reads, in the order of its inputs."""
    numbers: tuple[int, int]
    constants: tuple
    dtype: torch.dtype
    parameter: str | None
    """The field of the trace that holds its parameter."""
    tolerance: float | None


_CALLS: dict[tuple, Call] = {}


def key_of(window: Window, trace: Trace, tolerance: float | None) -> tuple | None:
    """Return what a call depends on; None if the window has to go the long way."""
    key: list[Any] = [type(trace), tolerance, window.r.device]
    for value in window:
        if value is None:
            key.append(None)
        elif type(value) is Tensor and value.is_contiguous() and value.data_ptr() % 16 == 0:
            key.append(value.dtype)
            key.append(value.shape)
        else:
            return None
    return tuple(key)


def run(key: tuple, window: Window, trace: Trace) -> tuple[Tensor, Tensor | None] | None:
    """Return the targets and the flag of the checks, if there was such a call before."""
    call = _CALLS.get(key)
    if call is None or not all(isinstance(value, int | float) for value in trace.parameters()):
        return None
    r = window.r
    out = torch.empty(r.shape, dtype=call.dtype, device=r.device)
    strange = None
    if call.tolerance is not None:
        strange = torch.zeros(1, dtype=torch.int32, device=r.device)
    inputs = Inputs(*[None if name is None else getattr(window, name) for name in call.fields])
    parameter = 1.0 if call.parameter is None else float(getattr(trace, call.parameter))
    numbers = (*call.numbers, float(trace.lambda_), parameter, call.tolerance or 0.0)
    call.run(inputs, out, None, strange, *numbers, *call.constants)
    return out, strange


def remember(key: tuple, job: Job, again: Again, window: Window, trace: Trace) -> None:
    """Remember how a job was run, if its inputs are the tensors that were given."""
    fields = _fields(job, window)
    if fields is None:
        return
    if len(_CALLS) >= MOST:
        _CALLS.clear()
    parameter = formulas.PARAMETERS.get(type(trace))
    _CALLS[key] = Call(again.run, fields, job.shape, again.constants, job.dtype, parameter, job.tolerance)


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
