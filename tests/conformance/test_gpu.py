"""The kernels of `offtrace.returns.gpu`: plans, gradients, layouts, dtypes, what is refused, and that they compile.

`test_operator.py` compares every trace with the paper's double sum.
"""

import ctypes
import importlib
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gpu_kernels
import numpy as np
import pytest
import torch
from builders import windows
from builders.kernel_inputs import FAULTS, overflow, plain, refusal, window_with_ends
from builders.windows import Arrays
from loops import each

import offtrace as ot
from offtrace import returns
from offtrace.returns import reference
from offtrace.returns.window import Window

if not gpu_kernels.THERE:
    pytest.skip("Triton is not there, it comes with PyTorch for CUDA", allow_module_level=True)

MARKOV = [ot.as_trace(name, 0.9) for name, cls in ot.TRACES.items() if cls.markov]
NEEDS_A_PARAMETER = {"continuous_acer": ot.ContinuousACER(0.9, 3), "q_sigma": ot.QSigma(0.9, 0.3)}
MARKOV = [NEEDS_A_PARAMETER.get(trace.name, trace) for trace in MARKOV]
NOT_MARKOV = [ot.as_trace(name, 0.9) for name, cls in ot.TRACES.items() if not cls.markov]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write is NaN."""
    gpu_kernels.poison_memory(monkeypatch)


@pytest.fixture(params=[1, 3], ids=["one chunk", "chunks"])
def _plan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to share out a window, with small tiles."""
    launch = gpu_kernels.load("launch")
    plans = gpu_kernels.load("plans")

    def plan_for(*_: Any) -> Any:
        return plans.Plan(4, 2, request.param)

    def fold_plan(n: int, batch: int, batch_major: bool, double: bool, _: int) -> Any:
        chunk_steps = 4 if request.param > 1 else 4 * -(-n // 4)
        return plans.FoldPlan(plans.FoldMode(2, 2, batch_major, double), chunk_steps)

    monkeypatch.setattr(launch, "plan_for", plan_for)
    monkeypatch.setattr(launch, "fold_plan", fold_plan)


@pytest.mark.usefixtures("_plan")
@pytest.mark.parametrize("batch_major", [False, True])
@each("shape", [(5, 3, 6), (1, 3, 4), (9, 1, 1), (12, 2, 9), (7, 3, 23)])
def test_every_plan(shape: tuple[int, int, int], batch_major: bool) -> None:
    w = window_with_ends(shape)
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    for validate in (True, False):
        given = gpu_kernels.tensors(w, batch_major=batch_major)
        got = gpu_kernels.on_tensors(ot.Retrace(0.9), given, validate=validate)
        np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_major", [False, True])
def test_what_is_carried_is_added_tile_by_tile(batch_major: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 36 steps takes three tiles of 16 there."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(4, 2, 2))
    w = window_with_ends((72, 3, 5))
    w["discount"][:] = np.where(w["discount"] == 0, 0, 1)
    got = gpu_kernels.on_tensors(ot.QLambda(1.0), gpu_kernels.tensors(w, batch_major=batch_major))
    np.testing.assert_allclose(got.cpu().numpy(), ot.targets(**w, trace=ot.QLambda(1.0)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_major", [False, True])
@pytest.mark.parametrize("batch", [3, 5])
def test_traces_that_may_grow(batch: int, batch_major: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, in chunks. Tiles reach beyond the batch."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(4, 4, 3))
    w = windows.with_ends(windows.window(40, (batch,), 4, dtype="float32"))
    exact = {name: value.astype("float64") if value.dtype == np.float32 else value for name, value in w.items()}
    expected = ot.targets(**exact, trace=ot.ImportanceSampling(0.9), validate=False)
    given = gpu_kernels.tensors(w, batch_major=batch_major)
    for validate in (True, False):
        got = gpu_kernels.on_tensors(ot.ImportanceSampling(0.9), given, validate=validate).cpu().numpy()
        # A number is rounded by 6e-8, but c Q and c G are larger than their difference.
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("batch_major", [False, True])
@pytest.mark.parametrize("value", [np.nan, 1e300, 0.5])
def test_any_value_may_be_taken_for_what_is_behind(
    value: float, batch_major: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of traces that may grow start from Q(x, a) of the step after them. A masked one may hold anything."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(4, 4, 4))
    w = windows.window(16, (3,), 4)
    w["mask"] = np.ones((16, 3), bool)
    w["mask"][[4, 8, 12], [0, 1, 2]] = False  # the first steps of chunks
    w["q"][~np.pad(w["mask"], ((0, 1), (0, 0)), constant_values=True)] = value
    w["discount"][[3, 7, 11], [0, 1, 2]] = 0  # so masked values are not read as those of successors
    w["a"][8, 1] = 10**9
    expected = ot.targets(**w, trace=ot.ImportanceSampling(1.0))
    got = gpu_kernels.on_tensors(ot.ImportanceSampling(1.0), gpu_kernels.tensors(w, batch_major=batch_major))
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_a_sum_that_overflows_with_what_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the sum over a chunk nor G behind it is too large for float32, but both together are."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 2, 3))
    w = {name: np.zeros((12, 1), np.float32) for name in ("q_a", "expected_q", "r")}
    w |= {name: np.ones((12, 1), np.float32) for name in ("discount", "pi_a", "mu_a")}
    w["r"][[1, -1]] = 3e38
    for trace in (ot.ImportanceSampling(1.0), ot.QLambda(1.0)):
        with pytest.raises(ValueError, match="`targets` overflow"):
            gpu_kernels.targets(trace, w)


@pytest.mark.parametrize("num_chunks", [1, 3])
@each("tile", [(1, 64, 2, 1), (2, 16, 1, 1), (4, 64, 4, 2), (8, 32, 4, 2), (8, 8, 1, 2), (8, 64, 4, 4)])
def test_runs_of_steps(tile: tuple[int, int, int, int], num_chunks: int) -> None:
    """Tiles in which a thread takes a run of steps: steps, neighbours, warps, run. They reach beyond the window."""
    launch = gpu_kernels.load("launch")
    steps, rows, num_warps, run = tile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(steps, rows, num_chunks, num_warps, run=run))
        for shape in [(21, 67, 3), (1, 2, 14)]:
            w = window_with_ends(shape)
            for trace in (ot.Retrace(0.9), ot.ImportanceSampling(0.9)):
                got = gpu_kernels.targets(trace, w, validate=num_chunks > 1)
                np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)


def test_places_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in windows whose tiles reach over more than 2³¹ cells."""
    launch = gpu_kernels.load("launch")
    w = window_with_ends((9, 5, 3))
    found = []
    for most_cells in (launch.MOST_CELLS, 0):
        monkeypatch.setattr(launch, "MOST_CELLS", most_cells)
        job = launch.Job(launch.Inputs(**gpu_kernels.tensors(w)), 4)
        assert job.mode(launch.Plan(4, 64)).wide == (most_cells == 0)
        found.append(gpu_kernels.targets(ot.Retrace(0.9), w))
    np.testing.assert_array_equal(*found)


def test_places_beyond_32_bits() -> None:
    """No window of this size is there: the first tile reaches over 15 · 2²⁸ rows, unless it is flat."""
    launch = gpu_kernels.load("launch")
    kernel = importlib.import_module("builders.places_kernel").write_places
    n, batch, steps, side = 100, 2**28, 16, 4
    w = launch.Inputs(*[torch.empty(n, batch, device="meta")] * 2)
    for flat in (False, True):
        mode = launch.Job(w, 0).mode(launch.Plan(1 if flat else steps, side, flat=flat))._replace(wide=True)
        out = torch.zeros(3, mode.steps, side, dtype=torch.int64, device=gpu_kernels.DEVICE)
        kernel[(1,)](out, n, batch, mode)
        t = np.array([[-1]]) if flat else np.arange(n - 1, n - 1 - steps, -1)[:, None]
        neighbour = np.arange(side)
        np.testing.assert_array_equal(out.cpu()[0], t * batch + neighbour)
        np.testing.assert_array_equal(out.cpu()[1], (t + 1) * batch + neighbour)
        assert (out.cpu()[2] == 64).all()


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int, int], bool]], None]:
    """Keep programs from telling some of the numbers of their chunk, as if they had not come to them yet."""
    if gpu_kernels.DEVICE == "cuda":
        pytest.skip("only interpreted kernels can be patched")
    links = gpu_kernels.load("links")
    original = links.tell

    def patch(tells: Callable[[int, int], bool]) -> None:
        num_told = 0

        def some(at: Any, x: Any, there: Any) -> None:
            nonlocal num_told
            chunk, which = divmod(num_told, 3)
            num_told += 1
            if tells(chunk, which):
                original(at, x, there)

        monkeypatch.setattr(links, "tell", some)

    return patch


@pytest.fixture
def _late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide half of what a program looks at: it has not been written yet, or only in part."""
    if gpu_kernels.DEVICE == "cuda":
        pytest.skip("only interpreted kernels can be patched")
    links = gpu_kernels.load("links")
    rng = np.random.default_rng(0)
    original = links.look
    num_looks = 0

    def look(at: Any, size: Any, wanted: Any) -> tuple:
        nonlocal num_looks
        num_looks += 1
        assert num_looks < 10_000, "a program waits for ever"
        found = tuple(value * 1 for value in original(at, size, wanted))
        for value in found:
            value.handle.data *= rng.random(value.handle.data.shape) < 0.5
        return found

    monkeypatch.setattr(links, "look", look)


@pytest.mark.usefixtures("_late")
@pytest.mark.parametrize("trace", [ot.Retrace(1.0), ot.ImportanceSampling(1.0)], ids=lambda trace: trace.name)
@each("known", [(0,), (0, 3, 4), (0, 10)])
def test_chunks_whose_targets_are_not_known_yet(
    trace: ot.Trace, known: tuple[int, ...], tell: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs run at the same time on a GPU, so many know what a chunk does, but not yet the targets in it."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 4, 12))
    w = windows.window(24, (3,), 4) | {"discount": np.full((24, 3), 0.99), "mu_a": np.full((24, 3), 0.1)}
    tell(lambda chunk, which: which < 2 or chunk in known)
    got = gpu_kernels.targets(trace, w, validate=False)
    np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)
    if trace.name == "importance_sampling":  # products over several chunks may shrink and grow again
        w["mu_a"][14] = 1e-40
        w["discount"][6] = 1e-40
        tell(lambda chunk, which: which < 2 or chunk in known)
        got = gpu_kernels.targets(trace, w, validate=False)
        np.testing.assert_allclose(got, ot.targets(**w, trace=trace, validate=False), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("trace", [ot.Retrace(1.0), ot.ImportanceSampling(1.0)], ids=lambda trace: trace.name)
def test_no_program_looks_beyond_the_end_of_an_episode(
    trace: ot.Trace, tell: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look takes a while. Here each chunk has an end, so each of 11 programs looks once, at four chunks."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 4, 12))
    w = windows.window(24, (3,), 4)
    w["discount"][::2] = 0
    links = gpu_kernels.load("links")
    looks = []
    original = links.look
    monkeypatch.setattr(links, "look", lambda *args: looks.append(args) or original(*args))
    tell(lambda chunk, which: which < 2 or chunk == 0)
    got = gpu_kernels.targets(trace, w, validate=False)
    np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)
    assert len(looks) == 4 * 11


@each(("run", "batch_major"), [(0, False), (0, True), (2, False)])
def test_a_product_is_lost_in_float32_and_grows_again(
    run: int, batch_major: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a chunk, Π m falls to 2⁻³⁰⁰ and is 1 again: the last reward is seen in the first target."""
    plan = gpu_kernels.load("plans").Plan(4, 4, 2, num_warps=1, run=run)
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: plan)
    steps = {name: np.zeros((80, 3), dtype="float32") for name in ("r", "q_a", "expected_q")}
    steps |= {name: np.ones((80, 3), dtype="float32") for name in ("discount", "pi_a", "mu_a")}
    steps["r"][-1] = 1
    steps["pi_a"][20:30] = 2.0**-30
    steps["mu_a"][10:20] = 2.0**-30
    given = gpu_kernels.tensors(steps, batch_major=batch_major)
    got = gpu_kernels.on_tensors(ot.ImportanceSampling(1.0), given).cpu().numpy()
    expected = ot.targets(**steps, trace=ot.ImportanceSampling(1.0))
    assert expected[0, 0] == 1
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=2.0**-80)


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_deterministic", "_late")
@pytest.mark.parametrize("discount", [0.99, 1e-9])
def test_deterministic_algorithms(discount: float, tell: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bit is the same, whatever is known when a program looks, and however often it has to look."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 4, 12))
    w = windows.window(24, (3,), 4) | {"discount": np.full((24, 3), discount), "mu_a": np.full((24, 3), 0.1)}
    w["r"][-1] = 1e40  # seen far away
    found = []
    for known in (range(12), (0,), (0, 3, 4), (0, 10)):
        tell(lambda chunk, which, known=known: which < 2 or chunk in known)
        found.append(gpu_kernels.targets(ot.Retrace(1.0), w, validate=False))
        np.testing.assert_array_equal(found[-1], found[0])
    scale = np.abs(found[0]).max()
    np.testing.assert_allclose(found[0], ot.targets(**w, trace=ot.Retrace(1.0)), rtol=1e-12, atol=2.0**-106 * scale)


@pytest.mark.usefixtures("_late")
def test_a_nan_with_all_bits_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inverted, it would be the sign for nothing yet."""
    monkeypatch.setattr(gpu_kernels.load("launch"), "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 4, 4))
    w = windows.window(8, (3,), 4)
    w["r"][5, 1] = np.array(-1).view(np.float64)
    got = gpu_kernels.targets(ot.Retrace(1.0), w, validate=False)
    assert np.isnan(got[4:6, 1]).all()
    assert np.isfinite(got[:, [0, 2]]).all()


def test_a_cached_call_heeds_deterministic_algorithms(short_calls: list[str]) -> None:
    w = gpu_kernels.tensors(plain())
    for _ in range(2):
        gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    num_short = len(short_calls)
    assert num_short
    try:
        torch.use_deterministic_algorithms(True)
        gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(short_calls) == num_short


def test_chunk_0_tells_its_targets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds what chunk 0 does, but not its targets, would look for a chunk behind it, for ever."""
    launch = gpu_kernels.load("launch")
    monkeypatch.setattr(launch, "plan_for", lambda *_: gpu_kernels.load("plans").Plan(2, 4, 3))
    found = []
    links_of = launch.links_of
    monkeypatch.setattr(launch, "links_of", lambda *args: found.append(links_of(*args)) or found[-1])
    gpu_kernels.targets(ot.Retrace(0.9), windows.window(6, (3,), 4), validate=False)
    told = found[0].cpu() != 0
    assert told[:, 1:].all()
    assert not told[:2, 0].any()
    assert told[2, 0].all()


@pytest.mark.parametrize("batch_major", [False, True])
@each("shape", [(40, 3, 2), (3, 37, 3), (6, 2, 70), (300, 1, 2), (6, 64, 40), (40, 9, 40), (36, 2, 70), (70, 20, 16)])
def test_its_own_plans(shape: tuple[int, int, int], batch_major: bool) -> None:
    w = window_with_ends(shape)
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    got = gpu_kernels.on_tensors(ot.Retrace(0.9), gpu_kernels.tensors(w, batch_major=batch_major))
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_plans_fit_their_windows() -> None:
    """Tiles are powers of 2 and not larger than needed; a long window with a small batch is cut into chunks."""
    plans = gpu_kernels.load("plans")
    for n in (1, 16, 1000, 65536):
        for batch in (1, 7, 20, 50, 64, 100, 300, 4096, 20011, 44001, 1 << 20):
            for num_actions in (*range(1, 40), 64, 100, 299, 1000, 8192):
                for batch_major, checks in [(False, False), (False, True), (True, False)]:
                    plan = plans.plan_for(n, batch, num_actions, batch_major, 132, checks)
                    assert plan.steps * plan.rows <= 512
                    assert plan.steps == plans.power_of_2(plan.steps) < 2 * n
                    if plan.run:
                        assert 32 * plan.num_warps == plan.steps // plan.run * plan.rows
                    assert plan.rows == plans.power_of_2(plan.rows)
                    if plan.num_chunks > 1:  # the device holds all programs at once
                        num_programs = -(-batch // plan.rows) * plan.num_chunks
                        assert num_programs <= 132 * (plan.max_warps // plan.num_warps)
                    mode, chunk_steps = plans.fold_plan(n, batch, batch_major, False, 132)
                    if chunk_steps < n:
                        assert mode.rows <= 32 or mode.rows == 32 * mode.num_warps
                    if mode.run:
                        assert 32 * mode.num_warps == mode.steps // mode.run * mode.rows
                        assert mode.side == mode.rows
    assert plans.plan_for(16, 1 << 20, 18, False, 132, False).num_chunks == 1
    assert plans.plan_for(16, 4, 18, False, 132, False).num_chunks == 1
    assert plans.plan_for(65536, 64, 18, False, 132, False).num_chunks > 100
    assert plans.width_of(18) == 18
    assert plans.width_of(7) == 8


@each("num_actions", [4, 6, 8, 9, 12, 13, 18])
def test_plans_keep_the_device_busy(num_actions: int) -> None:
    """Programs come in rounds, as many at a time as the device holds. A round has enough of them, or of bytes."""
    plans = gpu_kernels.load("plans")
    for batch in range(4000, 60000, 211):
        for checks in (False, True):
            plan = plans.plan_for(300, batch, num_actions, False, 132, checks)
            num_programs = -(-batch // plan.rows) * plan.num_chunks
            num_rounds = num_programs / (132 * (plan.max_warps // plan.num_warps))
            in_flight = num_programs / 132 * plan.steps * plan.rows * (8 * num_actions + 24)
            is_enough = num_rounds <= 1 and in_flight > 30_000
            assert is_enough or num_rounds / math.ceil(num_rounds) > 0.7, (batch, plan)


TIMED = {
    # n, batch, actions, checks: steps, neighbours, chunks, warps, warps at once, run
    (16, 1024, 18, False): (16, 8, 1, 4, 16, 0),
    (1024, 4096, 18, False): (2, 64, 8, 4, 16, 1),
    (65536, 256, 4, False): (8, 64, 99, 4, 12, 4),
    (5850, 668, 4, False): (8, 64, 36, 4, 12, 4),
    (7985, 788, 5, False): (8, 64, 30, 4, 12, 4),
    (13132, 286, 5, False): (8, 64, 79, 4, 12, 4),
    # of the windows that `studies/gpu_plans.py --seed 7283 --windows 60` draws
    (38, 43367, 10, True): (8, 32, 1, 4, 16, 2),
    (77, 10958, 12, False): (8, 32, 1, 4, 16, 2),
    (434, 5532, 7, False): (4, 64, 6, 4, 16, 2),
    (26, 52577, 11, False): (2, 64, 1, 2, 16, 2),
    (26, 52577, 11, True): (2, 64, 1, 2, 16, 2),
    (7085, 889, 10, False): (2, 128, 37, 8, 16, 1),
    (344, 21049, 6, True): (8, 32, 1, 4, 20, 2),
    (295, 20725, 9, False): (4, 16, 1, 1, 16, 2),
    # small batches, in windows that are not cached
    (45699, 115, 7, False): (4, 128, 264, 8, 16, 2),
    (62191, 164, 5, False): (4, 64, 176, 4, 16, 2),
    (40116, 166, 13, False): (2, 64, 176, 4, 16, 1),
    (27310, 93, 13, False): (2, 16, 352, 1, 16, 1),
    (17305, 213, 17, False): (2, 16, 150, 1, 16, 1),
    (27448, 175, 14, False): (2, 64, 176, 4, 16, 1),
    # batches for which tiles of 32 have over 1.1 places for each neighbour
    (39946, 169, 7, False): (2, 16, 192, 1, 16, 1),
    (64437, 140, 9, False): (2, 16, 234, 1, 16, 1),
    (6756, 229, 6, False): (4, 16, 140, 1, 16, 2),
    (22027, 142, 10, False): (2, 16, 234, 1, 16, 1),
    # few chunks
    (57, 18233, 18, False): (1, 64, 3, 2, 16, 1),
    (133, 13974, 13, False): (2, 16, 2, 1, 16, 1),
    (63, 41740, 15, False): (2, 16, 1, 1, 20, 1),
    (905, 19473, 7, False): (2, 64, 3, 2, 16, 2),
    (434, 19489, 5, False): (2, 64, 3, 2, 16, 2),
    # tiles of 64 with 20 warps, see `FEW_ACTIONS`
    (604, 33883, 6, False): (4, 64, 1, 4, 20, 2),
    (219, 37924, 4, False): (4, 64, 1, 4, 20, 2),
}


@each(("window", "plan"), TIMED.items())
def test_plans_are_those_that_were_timed(window: tuple, plan: tuple[int, ...]) -> None:
    """On an H200. A plan that changes has to be timed before it is put here."""
    plans = gpu_kernels.load("plans")
    n, batch, num_actions, checks = window
    steps, rows, num_chunks, num_warps, max_warps, run = plan
    found = plans.plan_for(n, batch, num_actions, False, 132, checks)
    assert found._replace(eviction="") == plans.Plan(
        steps, rows, num_chunks, num_warps=num_warps, max_warps=max_warps, run=run
    )


@each("n", [10**6, 2**26, 2**31 - 2**22])
def test_grids_of_huge_windows_fit(n: int) -> None:
    """CUDA allows 65,535 programs on the second and the third axis. Small devices have few chunks, so long ones."""
    plans = gpu_kernels.load("plans")
    launch = gpu_kernels.load("launch")
    for batch in (1, 100, 2500, 10**6):
        for num_multiprocessors in (1, 20, 132):
            for batch_major in (False, True):
                r = torch.empty(1, device="meta").expand(n, batch)
                job = launch.Job(launch.Inputs(r=r, discount=r), 0, batch_major=batch_major, tolerance=1e-4)
                form = launch.Form.of(job, plans.plan_for(n, batch, 4, batch_major, num_multiprocessors, True))
                assert form.num_chunks <= 65535


@each(("most_own", "in_halves"), [(0, True), (0, False), (12, True), (18, True)])
def test_blocks_cover_a_row(most_own: int, in_halves: bool) -> None:
    plans = gpu_kernels.load("plans")
    for num_actions in range(1, 2000):
        end = 0
        for start, width in plans.blocks_of(num_actions, most_own, in_halves=in_halves):
            assert start == end
            assert width == plans.power_of_2(width)
            end += width
        assert num_actions <= end < 2 * num_actions
        assert most_own or end == plans.width_of(num_actions)


# -- gradients -----------------------------------------------------------------------------------------------


def gradients(
    function: Callable[[dict[str, torch.Tensor]], torch.Tensor], given: dict[str, torch.Tensor], names: list[str]
) -> list[torch.Tensor]:
    """Return the output and the gradients of some inputs, for a random gradient of the output."""
    leaves = {name: value.detach() for name, value in given.items()}
    for name in names:
        leaves[name].requires_grad_()
    out = function(leaves)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    with gpu_kernels.in_use():
        found = torch.autograd.grad(out, [leaves[name] for name in names], weights)
    return [value.cpu() for value in (out.detach(), *found)]


def on_cpu(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in given.items()}


def by_operations(trace: Any) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
    """The path of the CPU, which other tests compare with finite differences."""
    return lambda given: ot.targets(**on_cpu(given), trace=trace, stop_gradient=False, validate=False)


def assert_same_gradients(trace: Any, given: dict[str, torch.Tensor], names: list[str]) -> None:
    expected = gradients(by_operations(trace), given, names)
    got = gradients(lambda leaves: gpu_kernels.on_tensors(trace, leaves), given, names)
    for name, one, other in zip(["out", *names], got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("batch_major", [False, True])
@each("trace", MARKOV)
def test_gradient_of_every_trace(trace: ot.Trace, batch_major: bool) -> None:
    w = gpu_kernels.tensors(window_with_ends((8, 3, 6)), batch_major=batch_major)
    names = ["q", "pi", "r", "discount"]
    if trace.needs_mu:
        names.append("mu_a")
    assert_same_gradients(trace, w, names)


@pytest.mark.usefixtures("_plan")
def test_gradient_with_every_plan() -> None:
    assert_same_gradients(ot.Retrace(0.9), gpu_kernels.tensors(window_with_ends((9, 3, 2))), ["q"])


@pytest.mark.parametrize("batch_major", [False, True])
@each("shape", [(70, 5, 3), (3, 150, 7), (2, 64, 40), (40, 9, 15)])
def test_gradient_over_many_tiles(shape: tuple[int, int, int], batch_major: bool) -> None:
    """Tiles end within a step, or hold several steps."""
    w = gpu_kernels.tensors(window_with_ends(shape), batch_major=batch_major)
    assert_same_gradients(ot.Retrace(0.9), w, ["q", "pi", "discount"])


def assert_solved(m: np.ndarray, *, forwards: bool, batch_major: bool, fades: bool) -> None:
    """Fold pairs in chunks of 64 steps, and as it is done by default."""
    launch = gpu_kernels.load("launch")
    plans = gpu_kernels.load("plans")
    n, batch = m.shape
    b = np.random.default_rng(0).normal(size=m.shape)
    expected = np.zeros((n + 1, batch))
    if forwards:
        for t in range(n):
            expected[t] = b[t] + (m[t - 1] * expected[t - 1] if t else 0)
    else:
        for t in reversed(range(n)):
            expected[t] = b[t] + m[t] * expected[t + 1]
    tensors = gpu_kernels.tensors({"m": m, "b": b}, batch_major=batch_major)
    plan = plans.FoldPlan(plans.FoldMode(4, 8, batch_major, double=True), 64)
    assert plan.chunk_steps < n
    for chosen in (plan, None):
        out = torch.full_like(tensors["b"], torch.nan)
        with gpu_kernels.in_use():
            launch.solve(**tensors, out=out, forwards=forwards, batch_major=batch_major, fades=fades, plan=chosen)
        np.testing.assert_allclose(out.cpu().numpy(), expected[:n], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batch_major", [False, True])
@each("forwards", [False, True])
@each("fades", [False, True])
def test_pairs_in_chunks_of_many_tiles(fades: bool, forwards: bool, batch_major: bool) -> None:
    """Some neighbours fade within a tile, some within a chunk, some not at all."""
    shrinks = np.random.default_rng(1).random((200, 5)) < 0.1
    m = np.array([0.0, 1e-9, 0.1, 0.5, 1.0]) * np.where(shrinks, 0.3, 1.0)
    assert_solved(m, forwards=forwards, batch_major=batch_major, fades=fades)


@each("forwards", [False, True])
def test_pairs_whose_products_shrink_and_grow_again(forwards: bool) -> None:
    """Π m of a chunk of 64 steps falls to 2⁻¹²⁸ on the way, and is 1 at its end."""
    m = np.ones((200, 1))
    for start in range(0, 200, 64):
        m[start + 4 : start + 20] = 2.0**8
        m[start + 20 : start + 36] = 2.0**-8
    m = m if forwards else m[::-1].copy()
    assert_solved(m, forwards=forwards, batch_major=False, fades=False)


@pytest.mark.usefixtures("_late")
def test_pairs_of_chunks_whose_products_shrink_and_grow_again(tell: Callable) -> None:
    """Chunk 3 looks behind chunk 2, with a product of 2⁻¹²⁸, and behind chunk 1, with one of 2¹²⁸."""
    m = np.ones((256, 1))
    m[64:128] = 2.0**2
    m[128:192] = 2.0**-2
    tell(lambda chunk, which: which < 2 or chunk == 0)
    assert_solved(m, forwards=True, batch_major=False, fades=False)


def test_gradient_of_traces_that_shrink_and_grow_again() -> None:
    """In chunks, as the default plan has them. Only traces with c of 1 at most fade."""
    n = 200
    steps = {name: np.ones((n, 8)) for name in ("q_a", "expected_q", "r", "discount", "pi_a", "mu_a")}
    steps["mu_a"][44:60] = 2.0**-15
    steps["pi_a"][60:76] = 2.0**-15
    plan = gpu_kernels.load("plans").fold_plan(n, 8, False, True, 132)
    assert 80 < plan.chunk_steps < n
    assert_same_gradients(ot.ImportanceSampling(1.0), gpu_kernels.tensors(steps), ["r", "expected_q"])


@each("names", [["q_a", "expected_q", "r"], ["discount"], ["log_pi_a", "log_mu_a"]])
@each("trace", [ot.Retrace(0.9), ot.ImportanceSampling(0.3), ot.ContinuousACER(0.9, 2)])
def test_gradient_of_log_densities(trace: ot.Trace, names: list[str]) -> None:
    assert_same_gradients(trace, gpu_kernels.tensors(densities()), names)


def densities() -> Arrays:
    rng = np.random.default_rng(3)
    w = window_with_ends((7, 3, 2))
    steps = {name: rng.normal(size=(7, 3)) for name in ("q_a", "expected_q", "log_pi_a", "log_mu_a")}
    return steps | {name: w[name] for name in ("r", "discount", "reset", "mask")}


@each(("batch", "shape"), [((3,), ()), ((3,), (7,)), ((3,), (7, 3)), ((), (7,))])
def test_gradient_of_lambda(batch: tuple[int, ...], shape: tuple[int, ...]) -> None:
    w = gpu_kernels.tensors(windows.with_ends(windows.window(7, batch, 4)))
    w["lambda_"] = torch.rand(shape, dtype=torch.float64, device=gpu_kernels.DEVICE)

    def function(run: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda given: run(ot.Retrace(given["lambda_"]), {k: v for k, v in given.items() if k != "lambda_"})

    on_host = function(lambda trace, given: by_operations(trace)(given))
    expected = gradients(lambda given: on_host(on_cpu(given)), w, ["lambda_", "q"])
    got = gradients(function(gpu_kernels.on_tensors), w, ["lambda_", "q"])
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gradient_of_a_users_own_trace() -> None:
    def halved(pi_a: torch.Tensor, mu_a: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.clamp(pi_a / mu_a, max=1.0)

    w = gpu_kernels.tensors(window_with_ends((7, 3, 4)))
    assert_same_gradients(halved, w, ["q", "pi", "mu_a"])


def test_gradients_where_a_probability_is_0() -> None:
    """Of log π(a|x), of π(a|x)^(1/d), and of μ in a masked row: no NaN."""
    w = windows.with_ends(windows.window(8, (3,), 4))
    w["pi"][3, 1] = [0.0, 0.5, 0.5, 0.0]
    w["a"][3, 1] = 0
    w["mask"][3, 1] = True
    w["reset"][:, 1] = False
    assert_same_gradients(ot.ContinuousACER(0.9, 1), gpu_kernels.tensors(w), ["pi"])
    masked = np.where(w["mask"], w["mu_a"], 0.0)
    log_mu_a = {k: v for k, v in w.items() if k != "mu_a"} | {"log_mu_a": np.log(w["mu_a"])}
    assert_same_gradients(ot.Retrace(0.9), gpu_kernels.tensors(log_mu_a), ["pi", "log_mu_a"])
    log_pi_a = {k: v for k, v in w.items() if k != "pi"} | {
        "mu_a": masked,
        "log_pi_a": np.full((8, 3), -0.5),
        "expected_q": np.ones((8, 3)),
    }
    assert_same_gradients(ot.Retrace(0.9), gpu_kernels.tensors(log_pi_a), ["log_pi_a", "mu_a"])


def test_a_value_that_is_not_read_has_no_part_in_the_gradient_of_the_discount() -> None:
    w = plain()
    w["discount"][5] = 0
    w["q"][6] = np.nan
    assert_same_gradients(ot.Retrace(0.9), gpu_kernels.tensors(w), ["discount"])
    steps = densities()
    steps["expected_q"] = np.where(steps["discount"] == 0, np.nan, steps["expected_q"])
    assert_same_gradients(ot.Retrace(0.9), gpu_kernels.tensors(steps), ["discount"])


def test_second_derivatives() -> None:
    w = gpu_kernels.tensors(plain())
    leaves = [w["q"].requires_grad_(), w["discount"].requires_grad_()]
    found = []
    for run in (by_operations(ot.Retrace(0.9)), lambda given: gpu_kernels.on_tensors(ot.Retrace(0.9), given)):
        (first,) = torch.autograd.grad(run(w).square().sum(), leaves[:1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), leaves[1:])[0])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("_plan")
@pytest.mark.parametrize("batch_major", [False, True])
def test_corrections_and_their_gradient(batch_major: bool) -> None:
    rng = np.random.default_rng(0)
    names = ["q_a", "expected_q", "r", "c", "discount"]
    w = windows.with_ends(windows.correction_arguments(9, (3,), dtype="float64"))
    for name in ("r", "c"):
        w[name] = np.where(w["mask"], rng.normal(size=(9, 3)), np.nan)
    given = gpu_kernels.tensors(w, batch_major=batch_major)

    def by_kernels(leaves: dict[str, torch.Tensor]) -> torch.Tensor:
        with gpu_kernels.in_use():
            return ot.corrections(**leaves)

    expected = gradients(lambda leaves: ot.corrections(**on_cpu(leaves), validate=False), given, names)
    got = gradients(by_kernels, given, names)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        got[0].numpy(),
        reference.corrections(**{k: np.where(w["mask"], v, 0) for k, v in w.items()}),
        rtol=1e-10,
    )
    with torch.no_grad():
        torch.testing.assert_close(by_kernels(given).cpu(), got[0])
    given["c"][3, 1] = torch.inf
    given["mask"][3, 1] = True
    given["reset"][3, 1] = False
    given["r"][3, 1] = 0
    with pytest.raises(ValueError, match="`c` must be finite"):
        by_kernels(given)


# -- inputs --------------------------------------------------------------------------------------------------


@each("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_are_read_as_they_are(dtype: torch.dtype) -> None:
    w = gpu_kernels.tensors(window_with_ends((7, 3, 6)))
    narrow = {name: value.to(dtype) if value.is_floating_point() else value for name, value in w.items()}
    wide = {name: value.double() if value.is_floating_point() else value for name, value in narrow.items()}
    job = gpu_kernels.load("jobs").job_for(Window(**narrow), ot.Retrace(0.9), tolerance=None)
    assert job.w.q.data_ptr() == narrow["q"].data_ptr()
    got = gpu_kernels.on_tensors(ot.Retrace(0.9), narrow, validate=False)
    assert got.dtype is torch.float32
    expected = ot.targets(**on_cpu(wide), trace=ot.Retrace(0.9), validate=False)
    torch.testing.assert_close(got.double().cpu(), expected, rtol=1e-5, atol=1e-5)


def test_a_batch_major_window_is_not_copied() -> None:
    w = gpu_kernels.tensors(window_with_ends((7, 3, 6)), batch_major=True)
    job = gpu_kernels.load("jobs").job_for(Window(**w), ot.Retrace(0.9), tolerance=None)
    assert job.batch_major
    assert job.w.q.data_ptr() == w["q"].data_ptr()
    assert job.w.r.data_ptr() == w["r"].data_ptr()


def test_views_of_windows_without_a_batch() -> None:
    """Their elements are not neighbours in memory, or are one element."""
    w = windows.window(8, (), 4)
    w["discount"] = np.full(8, 0.9)
    given = gpu_kernels.tensors(w)
    given["r"] = torch.stack([given["r"]] * 4, 1)[:, 1]
    given["discount"] = given["discount"][0].expand(8)
    got = gpu_kernels.on_tensors(ot.Retrace(0.9), given)
    np.testing.assert_allclose(got.cpu().numpy(), ot.targets(**w, trace=ot.Retrace(0.9)), rtol=1e-12)


def test_a_users_own_trace_sees_wide_numbers() -> None:
    """Its c is computed in the dtype of the result, whatever that of the rewards is."""
    w = gpu_kernels.tensors(windows.window(6, (3,), 4, dtype="float32"))
    w["r"] = w["r"].to(torch.bfloat16)

    def halved(pi_a: torch.Tensor, mu_a: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.clamp(pi_a / mu_a, max=1.0)

    got = gpu_kernels.on_tensors(halved, w)
    expected = gpu_kernels.on_tensors(ot.Retrace(0.5), w)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@each("batch", [(), (3,), (2, 3)])
def test_any_batch_axes(batch: tuple[int, ...]) -> None:
    w = windows.window(6, batch, 4)
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        np.testing.assert_allclose(
            gpu_kernels.targets(trace, w), ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12
        )


def test_pi_as_probabilities_and_mu_as_a_logarithm() -> None:
    w = plain()
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    mixed = {name: value for name, value in w.items() if name != "mu_a"} | {"log_mu_a": np.log(w["mu_a"])}
    np.testing.assert_allclose(gpu_kernels.targets(ot.Retrace(0.9), mixed), expected, rtol=1e-12)


@each("trace", [ot.Retrace(0.9), ot.Watkins(0.9), ot.SoftWatkins(0.9), ot.RBIS(0.9)])
def test_values_of_true_successors(trace: ot.Trace) -> None:
    w = window_with_ends((7, 3, 6))
    w["expected_q"] = np.random.default_rng(0).normal(size=(7, 3))
    got = gpu_kernels.targets(trace, w)
    np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)


def test_an_illegal_action_may_hold_anything() -> None:
    w = plain()
    w["a"][:] = 0
    w["pi"][...] = [0.5, 0.5, 0.0]
    for value in (np.nan, -np.inf):
        w["q"][..., 2] = value
        for trace in MARKOV:
            expected = ot.targets(**w, trace=trace)
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(gpu_kernels.targets(trace, w), expected, rtol=1e-12)


@each("shape", [(40, 3), (1, 2)])
def test_a_long_window_of_trajectory_aware_traces(shape: tuple[int, int]) -> None:
    w = window_with_ends((*shape, 2))
    for trace in NOT_MARKOV:
        got = gpu_kernels.targets(trace, w)
        np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@each("trace", [ot.ImportanceSampling(1.0), ot.RBIS(1.0)])
def test_what_is_refused(fault: Callable[[Arrays], None], trace: ot.Trace) -> None:
    """In the words of NumPy; without checks it is let pass, and nothing else is read."""
    w = plain()
    gpu_kernels.targets(trace, w)
    fault(w)
    if fault is overflow and not trace.markov:
        return  # RBIS clips the ratio that overflows
    expected = refusal(ot.targets, **w, trace=trace)
    words = refusal(gpu_kernels.targets, trace, w)
    assert words.replace("torch.float64", "float64") == expected
    assert gpu_kernels.targets(trace, w, validate=False).shape == (6, 2)


@pytest.mark.usefixtures("_plan")
@each(
    ("name", "place", "value"),
    [("pi", (0, 0, 1), 2.0), ("a", (0, 1), 9), ("mu_a", (0, 1), 0.0), ("q", (0, 1), np.inf)],
)
def test_the_first_state_is_checked(name: str, place: tuple[int, ...], value: float) -> None:
    """No target reads it, and it is not in the tiles of 8 steps."""
    w = windows.window(8, (3,), 4)
    wrong = windows.changed(w, name, place, value)
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        gpu_kernels.targets(trace, w)
        expected = refusal(ot.targets, **wrong, trace=trace)
        assert refusal(gpu_kernels.targets, trace, wrong) == expected


@each(("name", "value"), [("log_pi_a", np.inf), ("log_pi_a", np.nan), ("log_mu_a", -np.inf), ("q_a", np.nan)])
def test_what_is_refused_of_log_densities(name: str, value: float) -> None:
    w = windows.window(6, (2,), 3)
    steps = {key: w[key] for key in ("r", "discount")}
    rng = np.random.default_rng(0)
    steps |= {key: rng.normal(size=(6, 2)) for key in ("q_a", "expected_q", "log_pi_a", "log_mu_a")}
    gpu_kernels.targets(ot.Retrace(0.9), steps)
    for row in (0, 3, 5):
        wrong = windows.changed(steps, name, (row, 1), value)
        expected = refusal(ot.targets, **wrong, trace=ot.Retrace(0.9))
        assert refusal(gpu_kernels.targets, ot.Retrace(0.9), wrong) == expected


def test_an_overflow_is_refused() -> None:
    """Of float32, though the kernels compute in float64; and of a ratio that λ = 0 would hide."""
    w = windows.window(6, (2,), 3, dtype="float32")
    large = w | {"r": np.full_like(w["r"], 3e38), "discount": np.ones_like(w["r"])}
    tiny = windows.changed(windows.window(6, (2,), 3), "mu_a", (1, 0), 1e-310)
    for trace, wrong in [
        (ot.QLambda(1.0), large),
        (ot.RBIS(1.0), large | {"mu_a": np.full_like(w["r"], 1e-3)}),
        (ot.ImportanceSampling(1.0), tiny),
        (ot.ImportanceSampling(0.0), tiny),
    ]:
        with np.errstate(invalid="ignore"):  # 0 · inf
            expected = refusal(ot.targets, **wrong, trace=trace)
        words = refusal(gpu_kernels.targets, trace, wrong)
        assert words.replace("torch.float", "float") == expected


@pytest.mark.usefixtures("_plan")
@each("num_actions", [1, 4, 7, 12, 17, 40])
def test_a_valid_window_is_not_looked_at_again(num_actions: int) -> None:
    """The checks of the kernels find nothing in it, so those of the host, which take longer, are not run."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("", "calls"):
            patch.setattr(
                gpu_kernels.load(module), "raise_fault", lambda *_: pytest.fail("the host looks for a fault")
            )
        gpu_kernels.targets(ot.Retrace(0.9), window_with_ends((5, 3, num_actions)))


def test_a_policy_is_checked_without_values() -> None:
    w = plain()
    given = {name: w[name] for name in ("pi", "a", "r", "discount", "mu_a")}
    given |= {"q_a": w["r"], "expected_q": w["r"]}
    np.testing.assert_allclose(
        gpu_kernels.targets(ot.Retrace(0.9), given), ot.targets(**given, trace=ot.Retrace(0.9)), rtol=1e-12
    )
    wrong = windows.changed(given, "pi", (2, 1, 0), 5.2)
    expected = refusal(ot.targets, **wrong, trace=ot.Retrace(0.9))
    assert refusal(gpu_kernels.targets, ot.Retrace(0.9), wrong) == expected


def test_both_forms_of_a_likelihood_are_checked() -> None:
    w = windows.window(6, (2,), 3)
    given = {name: w[name] for name in ("r", "discount")}
    given |= {name: np.full((6, 2), -0.5) for name in ("q_a", "expected_q", "log_pi_a", "log_mu_a")}
    wrong = given | {"pi_a": np.full((6, 2), 1.7)}
    expected = refusal(ot.targets, **wrong, trace=ot.Retrace(0.9))
    assert refusal(gpu_kernels.targets, ot.Retrace(0.9), wrong) == expected


def test_a_density_above_1_is_refused_by_tree_backup() -> None:
    steps = {name: np.full((3, 1), 0.5) for name in ("q_a", "expected_q", "r", "discount", "log_pi_a")}
    with pytest.raises(ValueError, match="logarithm of a probability"):
        gpu_kernels.targets(ot.TreeBackup(0.9), steps)


def test_a_users_own_trace_is_warned_about() -> None:
    with warnings.catch_warnings(record=True) as caught:  # `pytest.warns` would repeat what Triton 3.4 warns of
        warnings.simplefilter("always")
        gpu_kernels.targets(lambda pi_a, mu_a: 2 * pi_a / mu_a, plain())
    assert any("Theorem 1" in str(warning.message) for warning in caught)


# -- the short way -------------------------------------------------------------------------------------------


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched the short way, which the interpreter has not: here it gets one."""
    launch = gpu_kernels.load("launch")
    real = launch.launch
    short: list[str] = []

    def launched(kernel: Any, grid: tuple, arguments: tuple, *more: Any, **options: Any) -> Any:
        real(kernel, grid, arguments, *more, **options)

        def run(*given: Any) -> None:
            """Launch the kernel again, with addresses of numbers that have the dtypes of the first call."""
            short.append(kernel.fn.__name__)
            kernel[grid](*at_addresses(given, arguments))

        return run

    monkeypatch.setattr(launch, "launch", launched)
    monkeypatch.setattr(gpu_kernels.load("calls"), "_CALLS", {})
    monkeypatch.setattr(returns, "_targets_like_before", None)
    return short


def at_addresses(given: tuple, like: tuple) -> tuple:
    """Return arguments in which tensors at the addresses that are given take the places of other tensors."""
    found: list[Any] = list(given)
    for i, other in enumerate(like):
        if isinstance(other, torch.Tensor):
            number = (ctypes.c_byte * other.element_size()).from_address(given[i])
            found[i] = torch.frombuffer(number, dtype=other.dtype)
        elif isinstance(other, tuple):
            found[i] = type(other)(*at_addresses(given[i], other))
    return tuple(found)


def test_a_second_call_goes_the_short_way(short_calls: list[str]) -> None:
    """With other values of tensors, λ and parameters."""
    first, second = (windows.with_ends(windows.window(6, (3,), 4, seed=seed)) for seed in (0, 1))
    for one, other in [(ot.Retrace(0.9), ot.Retrace(0.2)), (ot.QSigma(0.9, 0.3), ot.QSigma(0.9, 0.7))]:
        short_calls.clear()
        for number, (trace, w) in enumerate([(one, first), (other, second), (one, first)]):
            got = gpu_kernels.targets(trace, w)
            np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=1e-12, atol=1e-12)
            assert len(short_calls) == number
    wrong = windows.changed(second, "mu_a", (2, 1), 0.0)
    wrong["mask"] = np.ones((6, 3), bool)
    with pytest.raises(ValueError, match="`mu_a` must be above 0"):
        gpu_kernels.targets(ot.Retrace(0.9), wrong)
    assert len(short_calls) == 3


def test_a_fault_does_not_reach_the_next_call() -> None:
    """All calls of a thread share one flag."""
    w = plain()
    wrong = windows.changed(w, "mu_a", (2, 1), 0.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="`mu_a` must be above 0"):
            gpu_kernels.targets(ot.Retrace(0.9), wrong)
        np.testing.assert_allclose(
            gpu_kernels.targets(ot.Retrace(0.9), w), ot.targets(**w, trace=ot.Retrace(0.9)), rtol=1e-12
        )
    assert not gpu_kernels.load("launch")._FLAGS.values.any()


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("num_chunks", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_second_call(
    dtype: str, num_chunks: int, validate: bool, short_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = gpu_kernels.load("launch")
    monkeypatch.setattr(launch, "plan_for", lambda *_: launch.Plan(2, 2, num_chunks))
    tolerance = 1e-12 if dtype == "float64" else 1e-4  # ratios of up to 10 multiply what float32 rounds off
    for trace in (ot.Retrace(0.9), ot.ImportanceSampling(0.9)):
        for seed in (0, 1):
            w = windows.with_ends(windows.window(9, (3,), 4, seed=seed, dtype=dtype))
            got = gpu_kernels.targets(trace, w, validate=validate)
            np.testing.assert_allclose(got, ot.targets(**w, trace=trace), rtol=tolerance, atol=tolerance)
    assert short_calls == ["one_pass", "one_pass"]


def test_one_tensor_for_two_arguments(short_calls: list[str]) -> None:
    """A second call has two, and must not read one of them twice."""
    steps = {name: np.full((6, 3), 0.5) for name in ("q_a", "expected_q", "r", "discount")}
    given = gpu_kernels.tensors(steps)
    p = torch.rand(6, 3, dtype=torch.float64, device=gpu_kernels.DEVICE)
    gpu_kernels.on_tensors(ot.Retrace(0.9), given | {"pi_a": p, "mu_a": p})
    got = gpu_kernels.on_tensors(ot.Retrace(0.9), given | {"pi_a": 0.5 * p, "mu_a": p})
    assert short_calls == ["one_pass"]
    arrays = steps | {"pi_a": (0.5 * p).cpu().numpy(), "mu_a": p.cpu().numpy()}
    np.testing.assert_allclose(got.cpu().numpy(), ot.targets(**arrays, trace=ot.Retrace(0.9)), rtol=1e-12)
    given |= {"pi_a": p, "mu_a": p.clone(), "discount": given["discount"].clone()}
    gpu_kernels.load("calls")._CALLS.clear()
    gpu_kernels.on_tensors(ot.Retrace(given["discount"]), given)
    assert not gpu_kernels.load("calls")._CALLS


def test_what_does_not_go_the_short_way(short_calls: list[str]) -> None:
    """Its kernel is called with something else, though the window has the same shapes and the trace the same type."""
    w = windows.window(6, (3,), 4)
    gpu_kernels.targets(ot.Retrace(0.9), w)
    for trace in (
        ot.Retrace(np.linspace(0, 1, 6)),
        lambda mu_a: 0.5 * mu_a,
        lambda mu_a: mu_a,
        lambda pi_a: 0 * pi_a,
    ):
        got = gpu_kernels.targets(trace, w, validate=False)
        np.testing.assert_allclose(got, ot.targets(**w, trace=trace, validate=False), rtol=1e-12, atol=1e-12)
    given = gpu_kernels.tensors(w)
    given["q"].requires_grad_()
    assert gpu_kernels.on_tensors(ot.Retrace(0.9), given).requires_grad
    gpu_kernels.on_tensors(ot.Retrace(0.9), gpu_kernels.tensors(w, batch_major=True))
    assert not short_calls


# -- what a reviewer found -----------------------------------------------------------------------------------


@each("name", ["a", "r", "discount"])
def test_a_converted_argument_does_not_go_the_short_way(short_calls: list[str], name: str) -> None:
    """The kernel was compiled for the dtype that it was converted to."""
    w = windows.window(6, (3,), 4)
    w["discount"] = np.ones((6, 3))
    given = gpu_kernels.tensors(w)
    given[name] = given[name].to(torch.uint8)
    expected = ot.targets(**w | {name: w[name].astype(np.uint8)}, trace=ot.Retrace(0.9), validate=False)
    for _ in range(2):
        got = gpu_kernels.on_tensors(ot.Retrace(0.9), given, validate=False)
        np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-12)
    assert not short_calls


def test_both_forms_are_checked_in_every_call(short_calls: list[str]) -> None:
    steps = {name: np.full((6, 2), -0.5) for name in ("q_a", "expected_q", "log_pi_a", "log_mu_a")}
    steps |= {name: np.full((6, 2), 0.5) for name in ("r", "discount", "pi_a")}
    gpu_kernels.targets(ot.Retrace(0.9), steps)
    with pytest.raises(ValueError, match="`pi_a` must be a probability"):
        gpu_kernels.targets(ot.Retrace(0.9), steps | {"pi_a": np.full((6, 2), 1.7)})


@each("trace", [ot.Retrace(0.9), ot.TreeBackup(0.9), ot.RBIS(0.9)])
def test_of_two_forms_the_same_is_read(trace: ot.Trace) -> None:
    """Their values should agree; here they do not, to see which one is read."""
    steps = {name: np.full((6, 2), value) for name, value in [("pi_a", 0.1), ("mu_a", 0.5), ("r", 1.0)]}
    steps |= {name: np.full((6, 2), -0.5) for name in ("log_pi_a", "log_mu_a", "q_a", "expected_q")}
    steps["discount"] = np.full((6, 2), 0.9)
    np.testing.assert_allclose(gpu_kernels.targets(trace, steps), ot.targets(**steps, trace=trace), rtol=1e-12)


@pytest.mark.parametrize("batch_major", [False, True])
@each("reads_rows", [False, True])
def test_a_chunk_starts_from_the_value_of_the_step_behind_it(reads_rows: bool, batch_major: bool) -> None:
    """With TD errors of 0 and whole numbers for Q, the targets are Q to the last bit, though c is 1.5."""
    launch = gpu_kernels.load("launch")
    rng = np.random.default_rng(0)
    v = rng.integers(-8, 9, (121, 3)).astype(np.float32)
    q = np.stack([v + 1, v - 1], -1)
    a = rng.integers(2, size=(120, 3))
    q_a = windows.taken(q, a)
    steps = {
        "r": q_a - v[1:],
        "discount": np.ones((120, 3), np.float32),
        "mu_a": np.full((120, 3), 1 / 3, np.float32),
    }
    if reads_rows:
        steps |= {"q": q, "pi": np.full((121, 3, 2), 0.5, np.float32), "a": a}
    else:
        steps |= {"q_a": q_a, "expected_q": v[1:], "pi_a": np.full((120, 3), 0.5, np.float32)}
    w = gpu_kernels.tensors(steps, batch_major=batch_major)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(4, 2, 4))
        got = gpu_kernels.on_tensors(ot.ImportanceSampling(1.0), w)
    np.testing.assert_array_equal(got.cpu().numpy(), q_a)


@each("num_chunks", [1, 3])
def test_large_coefficients_cancel(num_chunks: int) -> None:
    """With TD errors of 0 the targets are Q, though c Q and c G grow to 10¹¹ times that."""
    n = 64
    steps = {name: np.full((n, 1), 5.1, np.float32) for name in ("q_a", "expected_q")}
    steps |= {"r": np.zeros((n, 1), np.float32), "discount": np.ones((n, 1), np.float32)}
    steps |= {"pi_a": np.full((n, 1), 0.75, np.float32), "mu_a": np.full((n, 1), 0.5, np.float32)}
    launch = gpu_kernels.load("launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(4, 1, num_chunks))
        got = gpu_kernels.targets(ot.ImportanceSampling(1.0), steps)
        given = gpu_kernels.tensors({k: v for k, v in steps.items() if k not in ("pi_a", "mu_a")})
        with gpu_kernels.in_use():
            zero = ot.corrections(**given, c=torch.full_like(given["r"], 1.5))
    np.testing.assert_allclose(got, 5.1, rtol=1e-4)
    np.testing.assert_allclose(zero.cpu().numpy(), 0, atol=1e-6)


def test_a_product_of_large_coefficients_may_be_beyond_float32() -> None:
    """If what it is multiplied by is small enough."""
    n = 600
    steps = {name: np.zeros((n, 1), np.float32) for name in ("q_a", "expected_q", "r")}
    steps |= {name: np.ones((n, 1), np.float32) for name in ("discount", "pi_a", "mu_a")}
    steps["mu_a"][2:5] = 1e-14
    steps["r"][-1] = 1e-10
    got = gpu_kernels.targets(ot.ImportanceSampling(1.0), steps)
    np.testing.assert_allclose(got, ot.targets(**steps, trace=ot.ImportanceSampling(1.0)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("batch_major", [False, True])
def test_products_that_fade(dtype: type, batch_major: bool) -> None:
    """What is behind a chunk is not added where Π m is below 2⁻⁴⁸, or 2⁻¹⁰⁶: after other steps for each neighbour."""
    n = 80
    rng = np.random.default_rng(0)
    steps = {name: rng.normal(size=(n, 5)).astype(dtype) for name in ("q_a", "expected_q", "r")}
    steps |= {name: np.ones((n, 5), dtype) for name in ("discount", "mu_a")}
    steps["pi_a"] = np.tile(np.array([1, 0.9, 0.1, 0.01, 0], dtype), (n, 1))
    launch = gpu_kernels.load("launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(2, 4, 2))
        got = gpu_kernels.on_tensors(ot.Retrace(1.0), gpu_kernels.tensors(steps, batch_major=batch_major))
    expected = ot.targets(**steps, trace=ot.Retrace(1.0))
    np.testing.assert_allclose(got.cpu().numpy(), expected, rtol=1e-5 if dtype is np.float32 else 1e-12)


def test_a_product_that_has_faded_stays_faded() -> None:
    """Even if a discount above 1, which checks refuse, makes it grow again."""
    n = 120
    steps = {name: np.ones((n, 1), np.float32) for name in ("q_a", "expected_q", "r", "pi_a", "mu_a")}
    steps["discount"] = np.full((n, 1), 0.1, np.float32)
    steps["discount"][:20] = 50
    launch = gpu_kernels.load("launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(1, 1, 2))
        got = gpu_kernels.targets(ot.Retrace(1.0), steps, validate=False)
    np.testing.assert_allclose(got, ot.targets(**steps, trace=ot.Retrace(1.0), validate=False), rtol=1e-5)


@pytest.mark.parametrize("batch_major", [False, True])
@each("trace", [ot.ImportanceSampling(1.0), ot.QSigma(1.0, 1.0), lambda pi_a, mu_a: pi_a / mu_a])
def test_products_that_shrink_and_grow_again(trace: Any, batch_major: bool) -> None:
    """Π m of a chunk falls to 2⁻⁶⁰ on the way and is 1 at its end, so the last reward reaches all steps."""
    n = 64
    zeros = {name: np.zeros((n, 3)) for name in ("q_a", "expected_q", "r")}
    steps = zeros | {name: np.ones((n, 3)) for name in ("discount", "pi_a", "mu_a")}
    steps["mu_a"][8:16] = 2.0**-7.5
    steps["pi_a"][16:24] = 2.0**-7.5
    steps["r"][-1] = 1
    w = gpu_kernels.tensors(
        {name: value.astype(np.float32) for name, value in steps.items()}, batch_major=batch_major
    )
    launch = gpu_kernels.load("launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_for", lambda *_: launch.Plan(4, 2, 2))
        got = gpu_kernels.on_tensors(trace, w)
    assert ot.targets(**steps, trace=trace)[0] == pytest.approx(1)
    np.testing.assert_allclose(got.cpu().numpy(), ot.targets(**steps, trace=trace), rtol=1e-5)


def test_whole_numbers_as_coefficients() -> None:
    """They are not rounded to the dtype of narrow rewards."""
    steps = {name: torch.ones(3, dtype=torch.bfloat16) for name in ("q_a", "expected_q", "r", "discount")}
    c = torch.full((3,), 257)
    expected = ot.corrections(**steps, c=c)
    on_device = {name: value.to(gpu_kernels.DEVICE) for name, value in steps.items()}
    with gpu_kernels.in_use():
        torch.testing.assert_close(ot.corrections(**on_device, c=c.to(gpu_kernels.DEVICE)).cpu(), expected)


@each("name", ["mask", "reset", "a"])
def test_a_change_before_the_backward_pass_is_noticed(name: str) -> None:
    w = gpu_kernels.tensors(window_with_ends((7, 3, 4)))
    w["q"].requires_grad_()
    out = gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    w[name].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_nothing_is_checked_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the kernels do not serve the window."""
    w = windows.changed(plain(), "mu_a", (2, 1), 0.0)
    expected = ot.targets(**w, trace=ot.Retrace(0.9), validate=False)
    for module in ("", "calls"):
        monkeypatch.setattr(gpu_kernels.load(module), "is_capturing", lambda: True)
    for most_actions in (8192, 1):
        monkeypatch.setattr(gpu_kernels.load("jobs"), "MOST_ACTIONS", most_actions)
        np.testing.assert_allclose(gpu_kernels.targets(ot.Retrace(0.9), w), expected, rtol=1e-12)


def test_a_users_own_trace_is_called_once() -> None:
    calls = []

    def own(pi_a: torch.Tensor, mu_a: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return 0.5 * torch.clamp(pi_a / mu_a, max=1.0)

    gpu_kernels.targets(own, plain())
    assert len(calls) == 1


def test_negative_views_and_empty_corrections() -> None:
    w = gpu_kernels.tensors(plain())
    expected = gpu_kernels.on_tensors(ot.Retrace(0.9), w)
    w["r"] = torch._neg_view(-w["r"])
    torch.testing.assert_close(gpu_kernels.on_tensors(ot.Retrace(0.9), w), expected)
    nothing = torch.zeros(0, 2, device=gpu_kernels.DEVICE, requires_grad=True)
    with gpu_kernels.in_use():
        out = ot.corrections(q_a=nothing, expected_q=nothing, r=nothing, discount=nothing, c=nothing)
    assert out.requires_grad


def test_a_default_device_changes_nothing() -> None:
    """The flag of the checks is in the host's memory; a thread makes its own."""
    w = gpu_kernels.tensors(plain())
    found = []

    def work() -> None:
        with torch.device("meta"):
            found.append(gpu_kernels.on_tensors(ot.Retrace(0.9), w))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], gpu_kernels.on_tensors(ot.Retrace(0.9), w))


# -- without Triton ------------------------------------------------------------------------------------------

WITHOUT_TRITON = """
import sys
import warnings

import torch
import offtrace as ot
from offtrace.returns.torch_operator import kernels_of

one = torch.ones(3)
ot.targets(r=one, discount=one, q_a=one, expected_q=one, pi_a=one, mu_a=one, trace="retrace")
assert "triton" not in sys.modules
sys.modules["triton"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = [kernels_of(torch.device("cuda")) for _ in range(2)]
assert found == [None, None]
(text,) = [str(warning.message) for warning in caught]
print(text)
"""


def test_a_missing_triton_is_told_once_and_not_needed_by_the_cpu() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Triton cannot be imported, so the targets of CUDA tensors are computed by slower")


# -- the compiler --------------------------------------------------------------------------------------------

COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from offtrace.returns.gpu import fold, gradients, launch, plans, trajectory_aware
from offtrace.returns.gpu.gradients import Gradients
from offtrace.returns.gpu.rows import Inputs
from offtrace.traces import formulas

WINDOW = {"r", "discount", "q", "pi", "a", "mu_a", "reset", "mask"}
TYPES = {"a": "*i64", "reset": "*i1", "mask": "*i1", "n": "i32", "batch": "i32", "strange": "*i32"}
TYPES |= {"chunk_steps": "i32", "links": "*i64"}
SCALARS = ("lambda_", "parameter", "tolerance")


def compile(kernel, constants, tuples):
    signature, constexprs = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in tuples:
            fields, given = tuples[name]
            signature[name] = fields(*(TYPES.get(f, "*fp32") if f in given else "constexpr" for f in fields._fields))
            constexprs |= {(i, j): None for j, f in enumerate(fields._fields) if f not in given}
        elif name in constants:
            signature[name], constexprs[name] = "constexpr", constants[name]
        else:
            signature[name] = TYPES.get(name, "fp64" if name in SCALARS else "*fp32")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    # The memory that is stored to: a loop that the compiler takes for empty would leave nothing of it.
    assert "st.global" in made.asm["ptx"], kernel.fn.__name__
    # What other programs tell is read again at every look: three numbers of four chunks.
    num_looks = made.asm["ptx"].count("ld.volatile.global")
    assert num_looks == (12 if signature.get("links") == "*i64" else 0), num_looks
    print(kernel.fn.__name__)


q = torch.empty(2, 1, 18)
w = Inputs(r=q[0], discount=q[0], q=q, pi=q, a=q, mu_a=q, reset=q, mask=q)
for kind in (formulas.KIND_RETRACE, formulas.KIND_SOFT_WATKINS):
    mode = launch.Job(w, kind, tolerance=1e-4).mode(plans.Plan(2, 64))
    window = {"w": (Inputs, WINDOW)}
    for ordered in (False, True):
        how = {"mode": mode, "FADES": True, "ORDERED": ordered, "m_out": None}
        compile(fold.one_pass, how, window)
    compile(fold.one_pass, how | {"gain": None, "links": None}, window)
    runs = launch.Job(w, kind, tolerance=1e-4).mode(plans.Plan(4, 64, num_warps=4, run=2))
    compile(fold.one_pass, how | {"mode": runs}, window)
    compile(fold.one_pass, how | {"FADES": False}, window)
    plain = mode._replace(checks=False)
    wanted = {"to": (Gradients, {"q", "pi", "mu_a", "discount"})}
    compile(gradients.gradients, {"mode": plain}, window | wanted)
    compile(gradients.gradients, {"mode": plain._replace(steps=1, rows=128, flat=True)}, window | wanted)
mode = launch.Job(w, formulas.KIND_RBIS, tolerance=1e-4).mode(plans.Plan(2, 64))
compile(trajectory_aware.all_steps, {"mode": mode}, window)
compile(trajectory_aware.double_sum, {"mode": mode, "STARTS": 32, "LANES": 32, "AT_ONCE": 16}, window)
how = {"mode": plans.fold_plan(1024, 64, False, False, 132).mode, "FADES": True, "ORDERED": True}
compile(fold.fold_pairs, how | {"FORWARDS": True}, {})
compile(fold.fold_pairs, how | {"FADES": False, "FORWARDS": False}, {})
compile(fold.fold_pairs, how | {"FORWARDS": False, "links": None}, {})
"""


def test_kernels_compile_for_a_gpu_that_is_not_there() -> None:
    """The interpreter accepts more than the compiler. No GPU is needed for that: Triton brings the assembler."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {
        "one_pass",
        "gradients",
        "all_steps",
        "double_sum",
        "fold_pairs",
    }
