"""How JAX reads rows of Q and π on a GPU, run on the CPU: the same numbers as in the form for the CPU."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from loops import each
from precision import double_precision

import offtrace as ot
from offtrace.returns import jax as returns_jax

NAMES = ["expected_q", "q_a", "pi_a"]
NUM_ACTIONS = [1, 2, 3, 8, 18, 32]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def rows(num_actions: int, n: int = 5, batch: int = 4) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return q, pi and a; one action that π never takes has no value."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(n + 1, batch, num_actions))
    pi = rng.dirichlet(np.ones(num_actions), (n + 1, batch))
    a = rng.integers(num_actions, size=(n, batch))
    if num_actions > 1:
        q[3, 1, 0] = -np.inf
        pi[3, 1, 0] = 0
        a[3, 1] = 1
    return jnp.asarray(q), jnp.asarray(pi), jnp.asarray(a)


@each("num_actions", NUM_ACTIONS)
@each("names", [NAMES[:1], NAMES[:2], NAMES])
def test_at_once_equals_apart(num_actions: int, names: list[str]) -> None:
    q, pi, a = rows(num_actions)
    a = a.at[0, 0].set(-1).at[1, 2].set(num_actions)  # they do not exist, and give NaN
    got = returns_jax._read_at_once(q, pi, a, names=names)
    expected = returns_jax._read_apart(q, pi, a, names=names)
    assert list(got) == list(expected) == names
    for name in names:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-14, atol=1e-14)
    if len(names) > 1:
        assert np.isnan(got["q_a"]).sum() == 2


@each("num_actions", [3, 4])
def test_derivatives(num_actions: int) -> None:
    q, pi, a = rows(num_actions, batch=2)
    weights = jnp.arange(1.0, 1 + a.size).reshape(a.shape)

    def total(form, q, pi):
        return sum((weights * value**2).sum() for value in form(q, pi, a, names=NAMES).values())

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        got, expected = (
            jax.jit(derivative(lambda q, pi, form=form: total(form, q, pi), argnums=(0, 1)))(q, pi)
            for form in (returns_jax._read_at_once, returns_jax._read_apart)
        )
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-13)


@each("num_actions", [3, 8])
def test_what_is_not_read_reaches_no_gradient(num_actions: int) -> None:
    """Of state 0 only the action taken is read, of the last state none is."""
    q, pi, a = rows(num_actions)
    a = a.at[0].set(1)
    q = q.at[0, :, 0].set(jnp.nan)

    def total(q, pi):
        return sum(value.sum() for value in returns_jax._read_at_once(q, pi, a, names=NAMES).values())

    assert np.isfinite(total(q, pi))
    for gradient in jax.grad(total, argnums=(0, 1))(q, pi):
        assert np.isfinite(gradient[0]).all()


@pytest.mark.parametrize("num_actions", [4, 5])  # three sums, and one reduction
@pytest.mark.parametrize("mode", ["next-step", "same-step", "padding"])
def test_targets_equal_the_double_sum(mode: str, num_actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trace, by the form for a GPU."""
    arguments = oracle.joined(np.random.default_rng(0), mode=mode, batch=3, num_actions=num_actions).arguments
    traces = {name: ot.as_trace(name, lambda_=0.85) for name in ot.TRACES}

    def every(arrays: dict, traces: dict[str, ot.Trace]) -> dict[str, jax.Array]:
        return {name: ot.targets(**arrays, trace=trace) for name, trace in traces.items()}

    calls = []

    def at_once(*rows: jax.Array, names: list[str]) -> dict[str, jax.Array]:
        calls.append(names)
        return returns_jax._read_at_once(*rows, names=names)

    monkeypatch.setattr(returns_jax, "_read_apart", at_once)
    jax.clear_caches()
    got = jax.jit(every)(arguments, traces)
    jax.clear_caches()
    if "expected_q" not in arguments:
        assert NAMES in calls
    for name in traces:
        expected, absolute = oracle.targets(name, 0.85, arguments)
        assert np.all(np.abs(got[name] - expected) <= 1e-12 * absolute), name


@each(("num_actions", "is_at_once"), [(4, True), (18, True), (33, False)])
def test_programs_for_a_gpu_read_rows_at_once(num_actions: int, is_at_once: bool) -> None:
    """Entries are gathered in programs for the CPU, and for long rows."""
    q, pi, a = rows(num_actions)
    steps = jnp.ones(a.shape)
    window = {"q": q, "pi": pi, "a": a, "r": steps, "discount": steps, "mu_a": steps}
    traced = jax.jit(lambda w: ot.targets(**w, trace=ot.Retrace(0.9), validate=False)).trace(window)
    on_gpu, on_cpu = (traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu"))
    assert ("stablehlo.gather" not in on_gpu) == is_at_once
    assert "stablehlo.gather" in on_cpu
