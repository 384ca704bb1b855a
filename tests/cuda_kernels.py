"""The CUDA kernels in tests: on a GPU if there is one, otherwise on the CPU by Triton's interpreter."""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch

import offtrace as ot
from offtrace.returns import torch as returns_torch

THERE = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def load() -> ModuleType:
    if DEVICE == "cuda":
        return importlib.import_module("offtrace.returns.cuda")
    spec = importlib.util.find_spec("offtrace.returns.cuda")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Send tensors on the CPU to the CUDA kernels, and ignore floating-point warnings of the interpreter."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
            patch.setattr(returns_torch, "kernels_of", lambda _: load())
            patch.setattr(returns_torch, "_on_cpu", lambda _: False)
        yield


def targets(trace: ot.Trace, arguments: dict[str, np.ndarray], **options: bool) -> np.ndarray:
    tensors = {name: torch.from_numpy(value).to(DEVICE) for name, value in arguments.items()}
    with in_use():
        return ot.targets(**tensors, trace=trace, **options).cpu().numpy()
