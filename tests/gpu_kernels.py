"""The kernels of `offtrace.returns.gpu` in tests: on a GPU if there is one, otherwise by Triton's interpreter."""

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace.returns import torch as returns_torch
from offtrace.returns import torch_operator

THERE = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Send tensors to the kernels, interpreted on the CPU where there is no GPU, and ignore warnings of NumPy."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
            for module in (returns_torch, torch_operator):
                patch.setattr(module, "kernels_of", lambda _: load())
        yield


@functools.cache
def load(name: str = "") -> ModuleType:
    """Return the package, or one of its modules. Whether kernels are interpreted is decided when they are defined."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        return importlib.import_module("offtrace.returns.gpu" + (name and f".{name}"))


def poison_memory(patch: pytest.MonkeyPatch) -> None:
    """Fill what the kernels write to with NaN before they do, so that rows that are not written are seen."""

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: Any, **options: Any) -> torch.Tensor:
            out = make(*args, **options)
            return out.fill_(torch.nan) if out.is_floating_point() else out

        return made

    own = ModuleType("torch")
    own.__dict__.update(vars(torch))
    own.empty = poisoned(torch.empty)  # ty: ignore
    own.empty_like = poisoned(torch.empty_like)  # ty: ignore
    for module in map(load, ("", "autograd", "calls", "launch")):
        patch.setattr(module, "torch", own)


def tensors(arrays: dict[str, np.ndarray], *, batch_major: bool = False) -> dict[str, torch.Tensor]:
    """Return tensors on the device, contiguous or with the batch first in memory."""
    found = {}
    for name, value in arrays.items():
        tensor = torch.tensor(np.ascontiguousarray(value), device=DEVICE)
        if batch_major:
            tensor = tensor.transpose(0, 1).contiguous().transpose(0, 1)
        found[name] = tensor
    return found


def on_tensors(trace: object, window: dict[str, torch.Tensor], **options: bool) -> torch.Tensor:
    """Return the targets, with a gradient if an input has one."""
    with in_use():
        return ot.targets(**window, trace=trace, **{"stop_gradient": False} | options)


def targets(trace: object, arrays: dict[str, np.ndarray], *, validate: bool = True) -> np.ndarray:
    return on_tensors(trace, tensors(arrays), validate=validate).cpu().numpy()
