"""Every trace, every array library, every way an episode can end: one answer, the paper's double sum."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import gpu_kernels
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import torch
from loops import each
from precision import double_precision

import offtrace as ot
from offtrace.returns import jax as returns_jax
from offtrace.returns import torch as returns_torch

LAMBDA = 0.85
MODES = ["next-step", "same-step", "padding"]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}  # of the sum of absolute terms, as the project promises


def in_numpy(trace: ot.Trace, arguments: dict) -> np.ndarray:
    return ot.targets(**arguments, trace=trace)


def in_torch(trace: ot.Trace, arguments: dict) -> np.ndarray:
    return ot.targets(**{k: torch.from_numpy(v) for k, v in arguments.items()}, trace=trace).numpy()


def in_torch_differentiable(trace: ot.Trace, arguments: dict) -> np.ndarray:
    """The differentiable path, which is separate code."""
    tensors = {k: torch.from_numpy(v) for k, v in arguments.items()}
    tensors["r"].requires_grad_()
    out = ot.targets(**tensors, trace=trace, stop_gradient=False)
    assert out.requires_grad
    return out.detach().numpy()


def in_jax(trace: ot.Trace, arguments: dict) -> np.ndarray:
    return np.asarray(ot.targets(**{k: jnp.asarray(v) for k, v in arguments.items()}, trace=trace))


@jax.jit
def compiled(arguments: dict, trace: ot.Trace) -> jax.Array:
    return ot.targets(**arguments, trace=trace)


def in_jax_jit(trace: ot.Trace, arguments: dict) -> np.ndarray:
    return np.asarray(compiled(arguments, trace))


def in_jax_vmap(trace: ot.Trace, arguments: dict) -> np.ndarray:
    """One stream at a time, mapped over the batch."""
    one = jax.vmap(lambda arrays: ot.targets(**arrays, trace=trace), in_axes=1, out_axes=1)
    return np.asarray(one(arguments))


BACKENDS: dict[str, Callable] = {
    "numpy": in_numpy,
    "torch": in_torch,
    "torch, differentiable": in_torch_differentiable,
    "jax": in_jax,
    "jax.jit": in_jax_jit,
    "jax.vmap": in_jax_vmap,
} | ({"torch, gpu": gpu_kernels.targets} if gpu_kernels.THERE else {})


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    double = request.param == "float64"
    with double_precision() if double else contextlib.nullcontext():
        yield request.param


SHAPE = {"batch": 5, "num_actions": 4}
"""Of nearly all windows here, so that JAX compiles for few shapes."""


def cast(arguments: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    return {k: v.astype(dtype) if v.dtype.kind == "f" else v for k, v in arguments.items()}


def joined_window(mode: str, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    return cast(oracle.joined(np.random.default_rng(seed), mode=mode, **SHAPE).arguments, dtype)


@functools.cache
def double_sum(name: str, mode: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets by the double sum, computed once for all libraries."""
    return oracle.targets(name, LAMBDA, joined_window(mode, dtype))


@functools.cache
def in_one_program(backend: str, mode: str, dtype: str) -> dict[str, np.ndarray]:
    """Every trace, compiled together by `jit`, or by `jit` of `vmap`: it takes a third of the time of one by one."""

    def every(arrays: dict, traces: dict[str, ot.Trace]) -> dict[str, jax.Array]:
        return {name: ot.targets(**arrays, trace=trace) for name, trace in traces.items()}

    function = jax.vmap(every, in_axes=(1, None), out_axes=1) if backend == "jax.vmap" else every
    found = jax.jit(function)(
        joined_window(mode, dtype), {name: ot.as_trace(name, lambda_=LAMBDA) for name in ot.TRACES}
    )
    return {name: np.asarray(out) for name, out in found.items()}


def test_every_trace_has_an_oracle() -> None:
    assert set(oracle.COEFFICIENT) | set(oracle.BETA) == set(ot.TRACES)


@pytest.mark.parametrize("mode", MODES)
@each("name", list(ot.TRACES))
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_the_double_sum(backend: str, name: str, mode: str, dtype: str) -> None:
    expected, absolute = double_sum(name, mode, dtype)
    if backend in ("jax.jit", "jax.vmap"):
        got = in_one_program(backend, mode, dtype)[name]
    else:
        got = BACKENDS[backend](ot.as_trace(name, lambda_=LAMBDA), joined_window(mode, dtype))
    assert got.dtype == dtype
    assert np.all(np.abs(got - expected) <= TOLERANCE[dtype] * absolute), np.abs(got - expected).max()


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        *((backend, mode) for backend in ("numpy", "torch", "torch, differentiable") for mode in MODES),
        ("jax", MODES[0]),
    ],
)
@each("name", list(ot.TRACES))
def test_joined_episodes_equal_each_alone(backend: str, name: str, mode: str, dtype: str) -> None:
    """Bit for bit, where the same code runs forwards from the same numbers; JAX adds in another order and may round.

    JAX compiles every length, so what an episode gets alone is NumPy's there.
    """
    shape = SHAPE if backend == "jax" else {"batch": 2, "num_actions": 3, "size": 9}
    case = oracle.joined(np.random.default_rng(1), mode=mode, **shape)
    if mode == "same-step":  # E_π Q is given in the joined window, so it is given alone, too
        for b, rows, alone in case.episodes:
            alone["expected_q"] = case.arguments["expected_q"][rows, b]
    trace = ot.as_trace(name, lambda_=LAMBDA)
    together = BACKENDS[backend](trace, cast(case.arguments, dtype))
    for b, rows, alone in case.episodes:
        single = {k: v[:, None] for k, v in cast(alone, dtype).items()}
        apart = BACKENDS["numpy" if backend == "jax" else backend](trace, single)[:, 0]
        if backend in ("numpy", "torch"):
            assert np.array_equal(together[rows, b], apart)
        else:
            _, absolute = oracle.targets(name, LAMBDA, single)
            assert np.all(np.abs(together[rows, b] - apart) <= TOLERANCE[dtype] * absolute[:, 0])


@each("name", list(ot.TRACES))
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_any_batch_axes(backend: str, name: str) -> None:
    """(n,), (n, B) and (n, B, C) hold the same windows."""
    arguments = joined_window("next-step", "float32")
    trace = ot.as_trace(name, lambda_=LAMBDA)
    flat = BACKENDS[backend](trace, arguments)
    pair = {k: np.stack([v, v[:, ::-1]], axis=2) for k, v in arguments.items()}
    folded = BACKENDS[backend](trace, pair)
    single = BACKENDS[backend](trace, {k: np.ascontiguousarray(v[:, 0]) for k, v in arguments.items()})
    np.testing.assert_allclose(folded[:, :, 0], flat, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(folded[:, :, 1], flat[:, ::-1], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(single, flat[:, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lambda_per_step(backend: str) -> None:
    """λ_t multiplies c_t: with λ 0 in row 3 nothing after it reaches the rows before."""
    arguments = {k: v for k, v in joined_window("next-step", "float32").items() if k not in ("reset", "mask")}
    arguments["mu_a"] = np.nan_to_num(arguments["mu_a"], nan=0.5)
    arguments["r"] = np.nan_to_num(arguments["r"])
    arguments["a"] = np.abs(arguments["a"]) % 3 + 1
    arguments["discount"] = np.full_like(arguments["r"], 0.9)
    n = len(arguments["r"])
    lambdas = np.ones(n, np.float32)
    lambdas[3] = 0
    got = BACKENDS[backend](ot.Retrace(lambdas), arguments)
    before = {k: v[: 3 + (k in ("q", "pi"))] for k, v in arguments.items()}
    np.testing.assert_allclose(got[:3], BACKENDS[backend](ot.Retrace(1.0), before), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_users_own_trace(backend: str) -> None:
    """Any callable from π(a) and μ(a) to c."""
    arguments = joined_window("next-step", "float32")

    def halved(*, pi_a: Any, mu_a: Any) -> Any:
        return 0.5 * ot.Retrace(1.0)(pi_a=pi_a, mu_a=mu_a)

    got = BACKENDS[backend](halved, arguments)
    np.testing.assert_allclose(got, BACKENDS[backend](ot.Retrace(0.5), arguments), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_users_own_trajectory_aware_trace(backend: str) -> None:
    """A class with `next_beta` takes the generic path and gives the same targets."""

    class Mine(ot.TrajectoryAware):
        name = "mine"

        def next_beta(self, xp, reach):
            return ot.RBIS.next_beta(self, xp, reach)

    arguments = joined_window("next-step", "float32")
    got = BACKENDS[backend](Mine(LAMBDA), arguments)
    expected, absolute = oracle.targets("rbis", LAMBDA, arguments)
    assert np.all(np.abs(got - expected) <= TOLERANCE["float32"] * absolute)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_online_and_target_network(backend: str) -> None:
    """`q_a` from the online network, E_π Q from the target network: only δ's baseline changes."""
    arguments = joined_window("next-step", "float32")
    rng = np.random.default_rng(3)
    online = rng.normal(size=arguments["r"].shape).astype(np.float32)
    got = BACKENDS[backend](ot.Retrace(0.9), {**arguments, "q_a": online})
    swapped = {**arguments, "q": arguments["q"].copy()}
    expected_q = np.zeros_like(online)
    real = arguments["mask"]
    for t, b in np.argwhere(real & (np.nan_to_num(arguments["discount"]) != 0)):
        pi, q = arguments["pi"][t + 1, b], arguments["q"][t + 1, b]
        expected_q[t, b] = (pi[pi > 0] * q[pi > 0]).sum()
    for t, b in np.argwhere(real):
        swapped["q"][t, b, arguments["a"][t, b]] = online[t, b]
    wanted, absolute = oracle.targets("retrace", 0.9, {**swapped, "expected_q": expected_q})
    assert np.all(np.abs(got - wanted) <= 1e-5 * absolute)


@pytest.mark.parametrize("backend", BACKENDS)
def test_continuous_actions(backend: str) -> None:
    """No `q`, no `pi`: values and log-densities alone."""
    rng = np.random.default_rng(4)
    n = 6
    arguments = {
        "q_a": rng.normal(size=(n, 2)),
        "expected_q": rng.normal(size=(n, 2)),
        "r": rng.normal(size=(n, 2)),
        "discount": np.full((n, 2), 0.95),
        "log_pi_a": rng.normal(size=(n, 2)) * 3,
        "log_mu_a": rng.normal(size=(n, 2)) * 3,
    }
    arguments = {k: v.astype(np.float32) for k, v in arguments.items()}
    ratio = np.exp(arguments["log_pi_a"].astype(np.float64) - arguments["log_mu_a"])
    steps = {k: arguments[k] for k in ("q_a", "expected_q", "r", "discount")}
    expected = arguments["q_a"] + ot.returns.reference.corrections(**steps, c=0.9 * np.minimum(1, ratio))
    got = BACKENDS[backend](ot.Retrace(0.9), arguments)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_jax_scan_and_nested_transformations() -> None:
    """Inside `lax.scan`, under `vmap` over λ: equal to one call each."""
    arguments = joined_window("next-step", "float32")
    lambdas = jnp.array([0.0, 0.5, 1.0])

    def body(carry: jax.Array, lam: jax.Array) -> tuple[jax.Array, jax.Array]:
        return carry, ot.targets(**arguments, trace=ot.Retrace(lam))

    scanned = jax.lax.scan(body, jnp.zeros(()), lambdas)[1]
    mapped = jax.vmap(lambda trace: ot.targets(**arguments, trace=trace))(ot.Retrace(lambdas))
    for i, lam in enumerate([0.0, 0.5, 1.0]):
        single = ot.targets(**arguments, trace=ot.Retrace(lam))
        np.testing.assert_allclose(scanned[i], single, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mapped[i], single, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 700), (40, 3000)])
def test_large_batches_equal_small_ones(shape: tuple[int, int]) -> None:
    """Blocks and threads change nothing: the same bits as one element at a time."""
    rng = np.random.default_rng(5)
    n, batch = shape
    arguments = {
        "q": rng.normal(size=(n + 1, batch, 6)).astype(np.float32),
        "pi": rng.dirichlet(np.ones(6), size=(n + 1, batch)).astype(np.float32),
        "a": rng.integers(0, 6, size=(n, batch)),
        "r": rng.normal(size=(n, batch)).astype(np.float32),
        "discount": np.full((n, batch), 0.99, np.float32),
        "mu_a": rng.uniform(0.1, 1, size=(n, batch)).astype(np.float32),
    }
    whole = ot.targets(**arguments, trace=ot.Retrace(0.9))
    for b in range(0, batch, 97):
        alone = {k: np.ascontiguousarray(v[:, b : b + 1]) for k, v in arguments.items()}
        assert np.array_equal(whole[:, b : b + 1], ot.targets(**alone, trace=ot.Retrace(0.9)))
    strided = {k: np.swapaxes(np.ascontiguousarray(np.swapaxes(v, 0, 1)), 0, 1) for k, v in arguments.items()}
    assert not strided["q"].flags.c_contiguous
    assert np.array_equal(whole, ot.targets(**strided, trace=ot.Retrace(0.9)))


def test_a_tree_whose_products_overflow_gives_zero_where_all_corrections_are() -> None:
    """π/μ = 10 in 5000 steps: their product is no number, but there is nothing that it multiplies."""
    n = 5000
    m, b = np.full(n - 1, 9, np.float32), np.zeros(n, np.float32)
    by_jax = jax.jit(returns_jax._as_tree)(m, b[:-1], b[-1:])
    by_torch = returns_torch.as_tree(torch.from_numpy(np.append(m, np.float32(0))), torch.from_numpy(b))
    np.testing.assert_array_equal(by_jax, b)
    np.testing.assert_array_equal(by_torch, b)
