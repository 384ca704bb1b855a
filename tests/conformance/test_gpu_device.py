"""The kernels of `offtrace.returns.gpu` on a real GPU: large windows, CUDA graphs, launches. See `make test-gpu`."""

from collections.abc import Iterator
from typing import Any

import gpu_kernels
import pytest
import torch

import offtrace as ot
from offtrace.returns import torch_operator
from offtrace.returns.window import Window

if gpu_kernels.DEVICE != "cuda":
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

SHAPES = [
    (16, 4, 18),
    (16, 1024, 18),
    (128, 4096, 18),
    (128, 65536, 18),
    (1024, 4096, 18),
    (8192, 512, 18),
    (65536, 64, 18),
    (16, 1048576, 18),
    (16, 1048576, 4),
    (32, 262144, 6),
    (16, 32768, 18),
    (4096, 128, 18),
    (65536, 8, 18),
    (1024, 2048, 4),
    (1024, 16384, 4),
    (65536, 256, 4),
    (1000003, 1, 3),
    (5, 7, 2000),
    (212, 33707, 6),
    (68, 25913, 11),
    (2116, 517, 15),
    (35721, 79, 4),
    (9001, 29, 13),
    (5003, 21, 40),
    (701, 33, 300),
    (300, 9000, 11),
    (433, 18373, 4),
    (5003, 949, 5),
    (1697, 1915, 6),
    (40, 20011, 9),
    (262, 11281, 9),
    (130, 22701, 18),
    (250, 13764, 7),
    (391, 6503, 8),
    (500, 14001, 9),
    (90, 36001, 18),
    (12001, 42, 7),
    (4000, 116, 7),
    (6001, 79, 17),
]
Tensors = dict[str, torch.Tensor]


def window(shape: tuple[int, int, int], *, batch_major: bool = False) -> Tensors:
    """Return a float32 window with ends, and NaN in masked rows."""
    n, batch, num_actions = shape
    generator = torch.Generator("cuda").manual_seed(0)
    how: Any = {"device": "cuda", "generator": generator}

    def rows(*size: int) -> torch.Tensor:
        return torch.randn(size, **how)

    mask = torch.rand(n, batch, **how) < 0.95
    reset = torch.rand(n, batch, **how) < 0.05
    discount = 0.99 * (torch.rand(n, batch, **how) > 0.01).float()
    discount[:-1][reset[1:]] = 0
    w = {
        "q": rows(n + 1, batch, num_actions),
        "pi": torch.softmax(rows(n + 1, batch, num_actions), -1),
        "a": torch.randint(num_actions, (n, batch), **how),
        "r": torch.where(mask, rows(n, batch), torch.nan),
        "discount": torch.where(mask, discount, torch.nan),
        "mu_a": torch.where(mask, 0.1 + 0.8 * torch.rand(n, batch, **how), torch.nan),
        "reset": reset,
        "mask": mask,
    }
    if batch_major:
        w = {name: value.transpose(0, 1).contiguous().transpose(0, 1) for name, value in w.items()}
    return w


def in_double(w: Tensors) -> Tensors:
    return {name: value.double() if value.is_floating_point() else value for name, value in w.items()}


def reference(w: Tensors, trace: ot.Trace) -> torch.Tensor:
    """Return the targets by tensor operations in float64; other tests compare these with the double sum."""
    autograd = gpu_kernels.load("autograd")
    job = gpu_kernels.load("jobs").job_for(Window(**in_double(w)), trace, tolerance=None)
    return autograd.targets_by_operations(job, trace)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    error = (got.double() - expected).abs().max() / expected.abs().max()
    assert error <= 1e-5, f"relative error {error:.1e}"


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a kernel does not write is NaN. Memory is given back after the test, for other processes."""
    gpu_kernels.poison_memory(monkeypatch)
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("batch_major", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_targets_and_gradients(shape: tuple[int, int, int], batch_major: bool) -> None:
    trace = ot.Retrace(0.95)
    w = window(shape, batch_major=batch_major)
    weights = torch.randn(shape[:2], device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    leaves = {name: w[name].requires_grad_() for name in ("q", "pi")}
    out = gpu_kernels.on_tensors(trace, w)
    got = torch.autograd.grad(out, list(leaves.values()), weights)
    doubles = in_double({name: value.detach() for name, value in w.items()})
    for name in leaves:
        doubles[name].requires_grad_()
    expected = reference(doubles, trace)
    assert_close(out.detach(), expected.detach())
    wanted = torch.autograd.grad(expected, [doubles[name] for name in leaves], weights.double())
    for one, other in zip(got, wanted, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("batch_major", [False, True])
@pytest.mark.parametrize("shape", [(3000, 50, 18), (4096, 300, 5), (30000, 1, 4), (1697, 1915, 6)], ids=str)
def test_traces_that_may_grow(shape: tuple[int, int, int], batch_major: bool) -> None:
    w = window(shape, batch_major=batch_major)
    for trace in (ot.ImportanceSampling(0.95), ot.QSigma(1.0, 0.5)):
        assert_close(gpu_kernels.on_tensors(trace, w), reference(w, trace))


@pytest.mark.parametrize("shape", [(64, 64, 5), (3000, 50, 18), (4096, 300, 5), (30000, 1, 4)], ids=str)
def test_chunks_wait_for_each_other(shape: tuple[int, int, int]) -> None:
    """If traces do not fade, every chunk needs all behind it. Programs meet in another order in every call."""
    w = {name: value for name, value in window(shape).items() if name not in ("mask", "reset")}
    w["r"] = torch.nan_to_num(w["r"])
    w["discount"] = torch.full_like(w["discount"], 0.999)
    w["mu_a"] = torch.full_like(w["mu_a"], 1e-3)
    leaf = w["q"].clone().requires_grad_()
    expected = reference(w, ot.Retrace(1.0))

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        out = gpu_kernels.on_tensors(ot.Retrace(1.0), {**w, "q": leaf}, validate=False)
        return out.detach(), torch.autograd.grad(out.sum(), leaf)[0]

    _, gradient = both()
    for _ in range(100):
        out, other = both()
        assert_close(out, expected)
        assert_close(other, gradient.double())
    try:
        torch.use_deterministic_algorithms(True)
        first, gradient = both()
        assert_close(first, expected)
        for _ in range(100):
            out, other = both()
            assert torch.equal(out, first)
            assert torch.equal(other, gradient)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ot.TRACES)
def test_every_trace(name: str) -> None:
    w = window((200, 300, 7))
    trace = ot.as_trace(name, 0.5)
    expected = ot.targets(**{key: value.cpu() for key, value in in_double(w).items()}, trace=trace)
    for validate in (True, False):
        assert_close(gpu_kernels.on_tensors(trace, w, validate=validate).cpu(), expected)


def test_a_second_launch_reads_new_values() -> None:
    """It skips Triton's inspection of the arguments. A tensor at an odd address takes the long way."""
    calls = gpu_kernels.load("calls")
    w = window((16, 64, 18))
    gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    num_calls = len(calls._CALLS)
    assert num_calls
    other = {name: value.flip(1).contiguous() for name, value in w.items()}
    got = gpu_kernels.on_tensors(ot.Retrace(0.5), other)
    assert len(calls._CALLS) == num_calls
    assert_close(got, reference(other, ot.Retrace(0.5)))
    moved = torch.empty(other["r"].numel() + 1, device="cuda")[1:].view_as(other["r"]).copy_(other["r"])
    assert moved.data_ptr() % 16
    assert torch.equal(gpu_kernels.on_tensors(ot.Retrace(0.5), {**other, "r": moved}), got)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nothing_waits_for_the_device_without_checks() -> None:
    w = window((16, 64, 18))
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        gpu_kernels.on_tensors(trace, w, validate=False)
        try:
            torch.cuda.set_sync_debug_mode("error")
            gpu_kernels.on_tensors(trace, w, validate=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_in_a_cuda_graph() -> None:
    """With checks too: they are left out while a graph is captured."""
    w = window((64, 256, 18))
    expected = gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    out.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("shape", [(16, 256, 6), (500, 256, 18)], ids=str)
def test_a_backward_pass_in_a_cuda_graph(shape: tuple[int, int, int]) -> None:
    """A training step is captured with its backward pass, after steps on a side stream, as PyTorch asks for."""
    w = window(shape)
    w["q"].requires_grad_()

    def step() -> torch.Tensor:
        out = gpu_kernels.on_tensors(ot.Retrace(0.9), w)
        return torch.autograd.grad(out.square().sum(), w["q"])[0]

    expected = step()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    found.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_torch_func_and_compiled_operator() -> None:
    """The recursion is one node of a compiled program, and has rules of its own for `vmap` and `grad`."""
    w = {name: value for name, value in window((16, 64, 6)).items() if name not in ("mask", "reset")}
    for name in ("r", "discount", "mu_a"):
        w[name] = torch.nan_to_num(w[name], nan=0.5)
    trace = ot.Retrace(0.9)
    expected = ot.targets(**w, trace=trace)
    mapped = torch.func.vmap(lambda given: ot.targets(**given, trace=trace), in_dims=(1,), out_dims=1)(w)
    torch.testing.assert_close(mapped, expected, rtol=1e-5, atol=1e-5)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return ot.targets(**w | {"q": q}, trace=trace, stop_gradient=False).square().sum()

    leaf = w["q"].clone().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(leaf), leaf)
    assert_close(torch.func.grad(loss)(w["q"]), wanted.double())
    m = torch.rand(50, 7, dtype=torch.float64, device="cuda", requires_grad=True)
    b = torch.randn(50, 7, dtype=torch.float64, device="cuda")
    compiled = torch.compile(lambda m, b: torch_operator.operator(m, b).sin(), fullgraph=True)
    found = [
        torch.autograd.grad(f(m, b).sum(), m)[0] for f in (compiled, lambda m, b: torch_operator.as_tree(m, b).sin())
    ]
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_targets(dynamic: bool) -> None:
    """A loss with `ot.targets` in it is one graph, forward and backward, and later calls use it."""
    w = {name: value for name, value in window((16, 64, 6)).items() if name not in ("mask", "reset")}
    for name in ("r", "discount", "mu_a"):
        w[name] = torch.nan_to_num(w[name], nan=0.5)

    def loss(q: torch.Tensor, given: Tensors, trace: ot.Trace) -> torch.Tensor:
        return ot.targets(**given | {"q": q}, trace=trace, stop_gradient=False).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for trace in (ot.Retrace(0.9), ot.TreeBackup(0.9), ot.Watkins(0.9)):
        for scale in (1.0, 0.5):
            leaf = (scale * w["q"]).requires_grad_()
            (wanted,) = torch.autograd.grad(loss(leaf, w, trace), leaf)
            (found,) = torch.autograd.grad(compiled(leaf, w, trace), leaf)
            assert_close(found, wanted.double())


def test_triton_is_used() -> None:
    assert torch_operator.kernels_of(torch.device("cuda", 0)) is gpu_kernels.load()


def test_a_fault_is_found_in_a_large_window() -> None:
    w = window((1024, 4096, 18))
    row, lane = w["mask"].nonzero()[-1].tolist()
    w["mu_a"][row, lane] = 0
    with pytest.raises(ValueError, match="`mu_a` must be above 0"):
        gpu_kernels.on_tensors(ot.Retrace(0.9), w)
