"""The compiled kernel takes rows in slabs: windows that need several, in every layout, give the same answer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import windows
from builders.windows import Arrays, with_ends

import offtrace as ot
from offtrace import threads
from offtrace.kernels import jit
from offtrace.returns import compiled, simd

SHAPES = {
    "one window": (9, 1, 3),
    "a few": (700, 5, 4),
    "the last slab is short": (130, 33, 6),
    "one slab a step": (3, compiled.SLAB, 2),
    "a step is more than a slab": (4, compiled.SLAB + 1, 9),
    "many slabs a step": (3, 3 * compiled.SLAB - 5, 18),
}
FUSED = {
    "one_step": ot.OneStep(),
    "q_lambda": ot.QLambda(0.9),
    "tree_backup": ot.TreeBackup(0.9),
    "importance_sampling": ot.ImportanceSampling(0.9),
    "retrace": ot.Retrace(0.9),
}


def window(shape: tuple[int, int, int]) -> Arrays:
    n, batch, actions = shape
    return windows.window(n, (batch,), actions, terminated=0.1)


def recursion(w: dict[str, Any], name: str, lambda_: Any) -> np.ndarray:
    """Δ_t = δ_t + discount_t c_{t+1} Δ_{t+1} and the targets Q + Δ, in float64, step by step."""
    n = len(w["r"])
    q, pi = w["q"].astype(float), w["pi"].astype(float)
    q_a = np.take_along_axis(q[:n], w["a"][..., None], -1)[..., 0]
    pi_a = np.take_along_axis(pi[:n], w["a"][..., None], -1)[..., 0]
    c = {
        "one_step": 0 * pi_a,
        "q_lambda": 1 + 0 * pi_a,
        "tree_backup": pi_a,
        "importance_sampling": pi_a / w["mu_a"],
        "retrace": np.minimum(1, pi_a / w["mu_a"]),
    }[name]
    lambdas = np.asarray(lambda_, float)
    c = c * (lambdas[:, None] if lambdas.ndim == 1 else lambdas)
    if "reset" in w:
        c = np.where(w["reset"] | ~w["mask"], 0, c)
    delta, out = np.zeros(w["r"].shape[1]), np.zeros(w["r"].shape)
    for t in reversed(range(n)):
        one_step = w["r"][t] + w["discount"][t] * (pi[t + 1] * q[t + 1]).sum(-1) - q_a[t]
        delta = one_step + w["discount"][t] * (c[t + 1] * delta if t + 1 < n else 0)
        out[t] = q_a[t] + delta
    return np.where(w["mask"], out, 0) if "mask" in w else out


def check(w: dict[str, Any], name: str, lambda_: Any, *, given: dict[str, Any] | None = None) -> None:
    expected = recursion(w, name, lambda_)
    kind = {} if name == "one_step" else {"lambda_": lambda_}
    for validate in (True, False):
        out = ot.targets(**(given or w), trace=ot.as_trace(name, **kind), validate=validate)
        scale = 1e-12 if out.dtype == np.float64 else 2e-5
        np.testing.assert_allclose(out, expected, rtol=scale, atol=scale * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", FUSED)
def test_several_slabs(name: str, shape: tuple[int, int, int]) -> None:
    check(window(shape), name, 0.9)
    check(with_ends(window(shape)), name, 0.9)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_in_float32(shape: tuple[int, int, int]) -> None:
    w = window(shape)
    w = {k: v.astype(np.float32) if v.dtype == float else v for k, v in w.items()}
    check(w | {"a": w["a"].astype(np.int32)}, "retrace", 0.9)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_lambda_for_each_step_or_row(shape: tuple[int, int, int]) -> None:
    w, rng = with_ends(window(shape)), np.random.default_rng(2)
    for lambdas in (rng.random(shape[0]), rng.random(shape[:2])):
        check(w, "retrace", lambdas)


def batch_major(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value.swapaxes(0, 1)).swapaxes(0, 1)


def every_other(value: np.ndarray) -> np.ndarray:
    return np.repeat(value, 2, axis=1)[:, ::2]


def backwards(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value[::-1])[::-1]


def actions_apart(value: np.ndarray) -> np.ndarray:
    return np.repeat(value, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize("layout", [batch_major, every_other, backwards, actions_apart, np.asfortranarray])
@pytest.mark.parametrize("names", [("q",), ("q", "pi"), ("r", "a"), ("q", "pi", "a", "r", "discount", "mu_a")])
def test_rows_may_lie_anywhere(layout: Any, names: tuple[str, ...]) -> None:
    for shape in (SHAPES["a few"], SHAPES["a step is more than a slab"]):
        w = window(shape)
        check(w, "retrace", 0.9, given=w | {name: layout(w[name]) for name in names})


def test_threads_share_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    w = with_ends(window((6, 1000, 5)))
    alone = ot.targets(**w, trace=ot.Retrace(0.9))
    monkeypatch.setattr(threads, "WORTH_THREADS", 1)
    monkeypatch.setenv("OFFTRACE_NUM_THREADS", "5")
    np.testing.assert_array_equal(ot.targets(**w, trace=ot.Retrace(0.9)), alone)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("actions", [1, 2, 3, 7, 8, 9, 16, 18, 40])
def test_sums_in_lanes_and_one_by_one(actions: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    q, pi = rng.normal(size=(2, 3, 11, actions)).astype(dtype)
    expected = (q[1, 2:].astype(float) * pi[1, 2:]).sum(-1)
    for function in (simd.dots_in_lanes, simd.dots_one_by_one):
        out = np.full(12, 7, dtype)
        function(q, pi, 1, 2, 9, out)
        np.testing.assert_allclose(out[:9], expected, rtol=0, atol=20 * np.finfo(dtype).eps * actions)
        np.testing.assert_array_equal(out[9:], 7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("actions", [1, 3, 8, 18])
def test_totals_in_lanes_and_one_by_one(actions: int, dtype: type) -> None:
    pi = np.random.default_rng(0).dirichlet(np.ones(actions), (2, 5)).astype(dtype)
    for function in (simd.totals_in_lanes, simd.totals_one_by_one):
        out = np.full(5, 7, dtype)
        function(pi, 1, 1, 4, out)
        np.testing.assert_allclose(out[:4], 1, rtol=0, atol=1e-6)
        assert out[4] == 7
        for place in range(actions):
            for strange in (-1e-30, -np.inf, np.nan, np.inf):
                bad = pi.copy()
                bad[1, 2, place] = strange
                function(bad, 1, 1, 4, out)
                assert not np.isfinite(out[1])
                np.testing.assert_allclose(out[[0, 2, 3]], 1, rtol=0, atol=1e-6)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_sums_tell_what_is_no_number(strange: float) -> None:
    for actions in (3, 18):
        for place in range(actions):
            q, pi = np.ones((1, 2, actions)), np.ones((1, 2, actions))
            q[0, 1, place] = strange
            for function in (simd.dots_in_lanes, simd.dots_one_by_one):
                out = np.zeros(2)
                function(q, pi, 0, 0, 2, out)
                assert out[0] == actions
                assert not np.isfinite(out[1])


@jit()
def carried_in_lanes(r, discount, out, at, steps, count, carried, lambda_, slab, row):
    simd._carry(r, discount, out, at, steps, count, carried, lambda_, slab, row)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 5, 8, 21])
def test_the_recursion_in_lanes_and_one_by_one(count: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    r, discount = rng.normal(size=(2, 6, count)).astype(dtype)
    slab, first = rng.normal(size=(4, 4 * count + 3)).astype(dtype), rng.normal(size=count)
    discount[3, 0] = slab[simd.C, 3 + count] = 0
    first[0], slab[simd.Q_A, 3 + count] = np.nan, np.inf  # behind a factor of 0
    found = []
    for function in (carried_in_lanes, simd.carry_one_by_one):
        out, carried = np.full((6, count), 7, dtype), first.copy()
        function(r, discount, out, count, 3, count, carried, 0.9, slab, 3)
        np.testing.assert_array_equal(out[[0, 4, 5]], 7)
        found.append((out, carried))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=10 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-14)
    assert np.isfinite(found[0][0]).all()


@pytest.mark.parametrize("name", ["mu_a", "reset", "mask"])
def test_an_array_without_rows_is_refused(name: str) -> None:
    w = window((4, 3, 2)) | {name: np.empty((0, 3), float if name == "mu_a" else bool)}
    for validate in (True, False):
        with pytest.raises(ValueError, match=f"`{name}` must have the shape of `r`"):
            ot.targets(**w, trace=ot.Retrace(0.9), validate=validate)


def test_read_only_arrays_are_not_written_to() -> None:
    """Not even by a user's trace; and the kernels need not be compiled again for them."""
    w = window((7, 3, 2))
    expected = ot.targets(**w, trace=ot.Retrace(0.9))
    for value in w.values():
        value.flags.writeable = False
    before = len(compiled._targets.signatures)
    np.testing.assert_array_equal(ot.targets(**w, trace=ot.Retrace(0.9)), expected)
    assert len(compiled._targets.signatures) == before

    def careless(*, pi_a: np.ndarray, mu_a: np.ndarray) -> np.ndarray:
        mu_a *= 2
        return np.minimum(1, pi_a / mu_a)

    with pytest.raises(ValueError, match="read-only"):
        ot.targets(**w, trace=careless)


@pytest.mark.parametrize("switch", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_kernels_run_without_compiling_and_with_index_checks(switch: str, tmp_path: Path) -> None:
    """Numba can be switched off or told to check indices, for debugging a kernel."""
    code = """
import numpy as np, offtrace as ot
q, pi = np.array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
a, r, discount, mu_a = np.array([1, 0]), np.array([1.0, 1.5]), np.array([0.5, 0.0]), np.array([0.5, 1.0])
print(ot.targets(q=q, pi=pi, a=a, r=r, discount=discount, mu_a=mu_a, trace=ot.Retrace(1.0)).tolist())
"""
    environment = {**os.environ, switch: "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[1.75, 1.5]\n", done.stderr


def test_an_action_that_does_not_exist_is_found_in_every_slab() -> None:
    for shape in SHAPES.values():
        for row in (0, shape[0] // 2, shape[0] - 1):
            for action in (-1, shape[2]):
                w = window(shape)
                w["a"][row, -1] = action
                for validate in (True, False):
                    with pytest.raises(ValueError, match="`a`"):
                        ot.targets(**w, trace=ot.Retrace(0.9), validate=validate)
