"""The kernel by which JAX reads Q and π on a CUDA device: there, or interpreted on the CPU. See `make test-gpu`."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from builders import windows
from builders.windows import Arrays
from jax.experimental.pallas import triton

import offtrace as ot
from offtrace.returns import jax as returns_jax
from offtrace.returns import pallas

if not hasattr(triton, "load"):
    pytest.skip("this version of JAX has no `pallas.triton.load`, so XLA reads the rows", allow_module_level=True)

SHAPES = [(5, (7,), 6), (16, (33,), 18), (3, (90,), 32), (1, (9,), 5), (4, (2, 3), 7), (6, (), 4), (40, (5,), 1)]
LAMBDA = 0.9
ON_GPU = jax.default_backend() == "gpu"
READ = functools.partial(pallas.read_rows, interpret=not ON_GPU)


def window(n: int, batch: tuple[int, ...], num_actions: int) -> Arrays:
    """Return a window in which some actions are illegal: π is 0 and Q is NaN."""
    w = windows.window(n, batch, num_actions, dtype="float32", terminated=0.1)
    is_illegal = w["pi"] < 0.05
    w["q"][is_illegal] = np.nan
    w["pi"][is_illegal] = 0
    w["pi"] /= w["pi"].sum(-1, keepdims=True)
    w["a"] = w["pi"][:-1].argmax(-1)
    return w


@pytest.fixture
def _by_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel reads all windows, also on the CPU, where operations would."""
    monkeypatch.setattr(returns_jax, "_is_read_by_kernel", lambda *_: True)
    monkeypatch.setattr(pallas, "read_rows_by_operations", READ)
    yield
    returns_jax._targets.clear_cache()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_as_defined(shape: tuple[int, tuple[int, ...], int]) -> None:
    """E_π Q(x_{t+1}, ·), Q(x_t, a_t) and π(a_t|x_t), by loops; NaN for an action that does not exist."""
    w = window(*shape)
    num_actions = shape[-1]
    rng = np.random.default_rng(3)
    a = np.where(rng.random(w["a"].shape) < 0.2, rng.choice([-1, num_actions], w["a"].shape), w["a"])
    for read in (READ, pallas.read_rows_by_operations):
        found = read(*map(jnp.asarray, (w["q"], w["pi"], a)))
        for t, *lane in np.ndindex(a.shape):
            at = (t, *lane)
            state = (t + 1, *lane)
            terms = [p * value for p, value in zip(w["pi"][state], w["q"][state], strict=True) if p > 0]
            np.testing.assert_allclose(found.expected_q[at], sum(terms), rtol=1e-5, atol=1e-6)
            if t > 0:
                exists = 0 <= a[at] < num_actions
                assert found.q_a[at] == w["q"][at][a[at]] if exists else np.isnan(found.q_a[at])
                assert found.pi_a[at] == w["pi"][at][a[at]] if exists else np.isnan(found.pi_a[at])


@pytest.mark.usefixtures("_by_kernel")
@pytest.mark.parametrize("name", ["retrace", "tree_backup", "q_lambda", "importance_sampling", "one_step"])
def test_targets_as_defined(name: str) -> None:
    w = windows.with_ends(window(12, (7,), 6))
    w["a"] = np.where(w["mask"], w["a"], 99)
    trace = ot.as_trace(name, LAMBDA)
    got = ot.targets(**{key: jnp.asarray(value) for key, value in w.items()}, trace=trace, validate=False)
    np.testing.assert_allclose(got, oracle.targets(name, LAMBDA, w)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_by_kernel")
def test_transforms() -> None:
    """`vmap` runs the kernel for each member; no derivative is asked of it, as targets are constants of a loss."""
    w = {name: jnp.asarray(value) for name, value in windows.window(9, (5,), 4, dtype="float32").items()}
    expected, _ = oracle.targets("retrace", LAMBDA, {name: np.asarray(value) for name, value in w.items()})
    targets = functools.partial(ot.targets, trace=ot.Retrace(LAMBDA), validate=False)
    mapped = jax.vmap(lambda w: targets(**w), in_axes=1, out_axes=1)(w)
    np.testing.assert_allclose(mapped, expected, rtol=1e-5, atol=1e-5)

    def loss(q: jax.Array) -> jax.Array:
        return ((targets(**w | {"q": q}) - q[:-1, :, 0]) ** 2).sum() / 2

    np.testing.assert_allclose(jax.grad(loss)(w["q"])[:-1, :, 0], w["q"][:-1, :, 0] - expected, rtol=1e-4, atol=1e-5)


def test_it_is_compiled_for_cuda() -> None:
    """The compiler accepts less than the interpreter. No GPU is needed to see what it is given."""
    w = window(16, (64,), 18)
    lowered = jax.jit(pallas.read_rows).trace(w["q"], w["pi"], w["a"]).lower(lowering_platforms=("cuda",))
    assert "triton" in lowered.as_text()


def test_which_windows_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    w = ot.returns.window.Window(**{name: jnp.asarray(value) for name, value in window(4, (8,), 6).items()})
    monkeypatch.setattr(returns_jax, "LARGE", w.q.size)
    reads = returns_jax._is_read_by_kernel
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    assert not reads(w, ot.Retrace(LAMBDA))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert reads(w, ot.Retrace(LAMBDA))
    assert not reads(w, ot.Watkins(LAMBDA))  # compares the values of all actions
    assert not reads(w._replace(expected_q=w.r), ot.Retrace(LAMBDA))
    assert not reads(w._replace(pi=w.pi.astype(jnp.bfloat16)), ot.Retrace(LAMBDA))
    assert not reads(w._replace(q=None), ot.Retrace(LAMBDA))
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert not reads(w, ot.Retrace(LAMBDA))
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(returns_jax, "LARGE", w.q.size + 1)
    assert not reads(w, ot.Retrace(LAMBDA))


@pytest.mark.skipif(not ON_GPU, reason="JAX sees no CUDA device")
@pytest.mark.parametrize("shape", [(64, 15000, 18), (700, 2003, 13), (16, 300001, 4)], ids=str)
def test_large_windows_on_a_gpu(shape: tuple[int, int, int]) -> None:
    """`ot.targets` uses the kernel by itself, and agrees with XLA."""
    n, batch, num_actions = shape
    keys = jax.random.split(jax.random.key(0), 6)
    w = {
        "q": jax.random.normal(keys[0], (n + 1, batch, num_actions)),
        "pi": jax.nn.softmax(jax.random.normal(keys[1], (n + 1, batch, num_actions))),
        "a": jax.random.randint(keys[2], (n, batch), 0, num_actions),
        "r": jax.random.normal(keys[3], (n, batch)),
        "discount": 0.99 * (jax.random.uniform(keys[4], (n, batch)) > 0.01),
        "mu_a": 0.1 + 0.8 * jax.random.uniform(keys[5], (n, batch)),
    }
    targets = functools.partial(ot.targets, trace=ot.Retrace(LAMBDA), validate=False)
    by_kernel = jax.jit(targets)
    by_xla = jax.jit(functools.partial(targets, stop_gradient=False))
    assert "triton" in by_kernel.lower(**w).as_text()
    assert "triton" not in by_xla.lower(**w).as_text()
    np.testing.assert_allclose(by_kernel(**w), by_xla(**w), rtol=1e-5, atol=1e-5)
