"""The CUDA kernels: windows of one and of many chunks, what they refuse, and what they leave alone.

`test_operator.py` has every trace and every way an episode can end.
"""

from collections.abc import Callable, Iterator

import cuda_kernels
import numpy as np
import pytest
import torch
from builders.kernel_inputs import FAULTS, INF, NAN, plain, refusal, window_with_ends
from builders.windows import Arrays

import offtrace as ot
from offtrace.returns import reference

if not cuda_kernels.THERE:
    pytest.skip("Triton is not there, it comes with PyTorch for CUDA", allow_module_level=True)

FUSED = [ot.OneStep(), ot.QLambda(0.9), ot.TreeBackup(0.9), ot.ImportanceSampling(0.5), ot.Retrace(0.9)]
SHAPES = {
    "small": (5, 3, 4),
    "one step": (1, 3, 4),
    "one action": (5, 2, 1),
    "a batch that fills no tile": (9, 37, 3),
    "longer than a tile": (300, 1, 2),
    "wider than a warp": (6, 2, 70),
}
CASES = [
    *((ot.Retrace(0.9), shape) for shape in SHAPES if shape != "small"),
    *((trace, "small") for trace in FUSED if trace.name != "retrace"),
]
"""Every shape with Retrace; the other traces, which differ by one formula for c, with a small one."""


@pytest.fixture(params=["one chunk", "chunks"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As few chunks of time as there can be, or as many."""
    kernels = cuda_kernels.load()
    if request.param == "one chunk":
        monkeypatch.setattr(kernels, "BUSY", 0)
    else:
        monkeypatch.setattr(kernels, "BUSY", 1 << 20)
        monkeypatch.setattr(kernels, "SHORTEST", 1)
    kernels._plan.cache_clear()
    yield
    kernels._plan.cache_clear()


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize(("trace", "shape"), CASES, ids=lambda value: getattr(value, "name", value))
def test_targets(trace: ot.Trace, shape: str) -> None:
    """Equal to the compiled kernel of the CPU, which other tests compare with the paper's double sum."""
    w = window_with_ends(SHAPES[shape])
    expected = ot.targets(**w, trace=trace)
    for validate in (True, False):
        got = cuda_kernels.targets(trace, w, validate=validate)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_chunks")
def test_corrections() -> None:
    rng, shape = np.random.default_rng(0), (40, 3)
    w = {name: rng.normal(size=shape) for name in ("q_a", "expected_q", "r")}
    w |= {"discount": np.full(shape, 0.9), "c": rng.uniform(0, 1.2, shape)}
    w |= {"reset": rng.random(shape) < 0.1, "mask": rng.random(shape) < 0.9}
    expected = reference.corrections(**w)
    w["r"], w["c"] = (np.where(w["mask"], w[name], NAN) for name in ("r", "c"))
    with cuda_kernels.in_use():
        got = ot.corrections(**{k: torch.from_numpy(v).to(cuda_kernels.DEVICE) for k, v in w.items()})
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_chunks")
def test_a_long_window_loses_nothing_to_rounding() -> None:
    """On-policy with γ = 1 a target is a sum of rewards, rounded once, or twice where chunks are joined."""
    n = 400
    w = {
        "q": np.zeros((n + 1, 1, 1), np.float32),
        "pi": np.ones((n + 1, 1, 1), np.float32),
        "a": np.zeros((n, 1), np.int64),
        "r": np.full((n, 1), 0.1, np.float32),
        "discount": np.ones((n, 1), np.float32),
        "mu_a": np.ones((n, 1), np.float32),
    }
    got = cuda_kernels.targets(ot.Retrace(1.0), w)
    expected = np.arange(n, 0, -1) * float(np.float32(0.1))
    np.testing.assert_array_max_ulp(got[:, 0], expected.astype(np.float32), maxulp=1)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_what_is_refused(fault: Callable[[Arrays], None]) -> None:
    """In the words of NumPy; without checks it is let pass, and nothing else is read."""
    w = plain()
    cuda_kernels.targets(ot.ImportanceSampling(1.0), w)
    fault(w)
    expected = refusal(ot.targets, **w, trace=ot.ImportanceSampling(1.0))
    words = refusal(cuda_kernels.targets, ot.ImportanceSampling(1.0), w)
    assert words.replace("torch.float64", "float64") == expected
    assert cuda_kernels.targets(ot.ImportanceSampling(1.0), w, validate=False).shape == (6, 2)


def test_an_illegal_action_may_hold_anything() -> None:
    w = plain()
    w["a"][:] = 0
    w["pi"][...] = [0.5, 0.5, 0.0]
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    for value in (NAN, -INF):
        w["q"][..., 2] = value
        np.testing.assert_allclose(cuda_kernels.targets(ot.Retrace(0.9), w), expected, rtol=1e-12)


def test_a_gradient_goes_another_way() -> None:
    """The kernels have none, so where one is wanted they are not used."""
    w = {k: torch.from_numpy(v).to(cuda_kernels.DEVICE) for k, v in plain().items()}
    w["r"].requires_grad_()
    with cuda_kernels.in_use():
        out = ot.targets(**w, trace=ot.Retrace(0.9), stop_gradient=False)
        constant = ot.targets(**w, trace=ot.Retrace(0.9))
    assert out.requires_grad
    assert not constant.requires_grad
    torch.testing.assert_close(out.detach(), constant)


def test_tensors_that_are_not_contiguous() -> None:
    w = plain()
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    other = {k: np.ascontiguousarray(v.swapaxes(0, 1)).swapaxes(0, 1) for k, v in w.items()}
    np.testing.assert_allclose(cuda_kernels.targets(ot.Retrace(0.9), other), expected, rtol=1e-12)
