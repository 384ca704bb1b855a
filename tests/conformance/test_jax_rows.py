"""How JAX reads rows of Q and π on a GPU, run on the CPU: the same numbers as in the form for the CPU."""

import functools
from collections.abc import Iterator
from typing import Any

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


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the library take the device for a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    jax.clear_caches()
    yield
    jax.clear_caches()


def count(name: str, program: Any) -> int:
    """Return how many operations of a program have this name."""
    found = 0
    for operation in program.eqns:
        found += operation.primitive.name == name
        inner = jax.tree.leaves(list(operation.params.values()), is_leaf=lambda value: hasattr(value, "eqns"))
        found += sum(count(name, value) for value in inner if hasattr(value, "eqns"))
    return found


def num_lookups(trace: Any, w: dict[str, jax.Array]) -> int:
    """Return how many arrays of entries are looked up in rows."""
    return count("gather", jax.make_jaxpr(lambda w: ot.targets(**w, trace=trace, validate=False))(w))


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("num_actions", [4, 5])  # three sums, and one reduction
@pytest.mark.parametrize("mode", ["next-step", "same-step", "padding"])
def test_targets_equal_the_double_sum(mode: str, num_actions: int) -> None:
    """Every trace, by the form for a GPU."""
    arguments = oracle.joined(np.random.default_rng(0), mode=mode, batch=3, num_actions=num_actions).arguments
    traces = {name: ot.as_trace(name, lambda_=0.85) for name in ot.TRACES}

    @jax.jit
    def every(arrays: dict, traces: dict[str, ot.Trace]) -> dict[str, jax.Array]:
        return {name: ot.targets(**arrays, trace=trace) for name, trace in traces.items()}

    got = every(arguments, traces)
    for name in traces:
        expected, absolute = oracle.targets(name, 0.85, arguments)
        assert np.all(np.abs(got[name] - expected) <= 1e-12 * absolute), name


def window_of(num_actions: int) -> dict[str, jax.Array]:
    q, pi, a = rows(num_actions)
    steps = jnp.ones(a.shape)
    return {"q": q, "pi": pi, "a": a, "r": steps, "discount": 0.9 * steps, "mu_a": 0.5 * steps}


@pytest.mark.usefixtures("_gpu")
@each("given", [("q_a",), ("pi_a",), ("log_pi_a", "log_mu_a"), ("expected_q",), ("q_a", "expected_q")])
def test_what_is_given_is_not_read_from_the_rows(given: tuple[str, ...]) -> None:
    """Also if it is not what the rows have."""
    w = window_of(5)
    rng = np.random.default_rng(1)
    w |= {name: jnp.asarray(rng.uniform(-2, -1, w["r"].shape)) for name in given}
    if "pi_a" in given:
        w["pi_a"] = -0.4 * w["pi_a"]
    if "log_mu_a" in given:
        del w["mu_a"]
    expected = ot.targets(
        **{name: np.asarray(value) for name, value in w.items()}, trace=ot.Retrace(0.9), validate=False
    )
    got = jax.jit(lambda w: ot.targets(**w, trace=ot.Retrace(0.9), validate=False))(w)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


def own_retrace(pi_a: Any, mu_a: Any) -> Any:
    return 0.9 * jnp.minimum(1, pi_a / mu_a)


@pytest.mark.usefixtures("_gpu")
@each(("num_actions", "trace", "expected"), [
    (4, ot.Retrace(0.9), 0),
    (18, ot.Retrace(0.9), 0),
    (18, own_retrace, 1),  # π(a|x), which the library reads for it
    (33, ot.Retrace(0.9), 2),  # Q(x, a) too: long rows are read as on a CPU
])  # fmt: skip
def test_programs_for_a_gpu_read_rows_at_once(num_actions: int, trace: Any, expected: int) -> None:
    assert num_lookups(trace, window_of(num_actions)) == expected


@pytest.mark.usefixtures("_gpu")
def test_programs_for_a_cpu_beside_a_gpu() -> None:
    for device in (jax.devices("cpu")[0], "cpu"):
        with jax.default_device(device):
            assert num_lookups(ot.Retrace(0.9), window_of(18)) == 2
    assert num_lookups(ot.Retrace(0.9), window_of(18)) == 0


@each("trace", [ot.Retrace(0.9), own_retrace])
def test_programs_for_a_cpu_look_entries_up(trace: Any) -> None:
    assert num_lookups(trace, window_of(18)) == 2


@each(("num_actions", "num_sums"), [(1, 3), (3, 0), (8, 3), (18, 0), (32, 3)])
def test_sums_over_a_row(num_actions: int, num_sums: int) -> None:
    """XLA makes one kernel of three sums if the length of a row divides 32, and of one operation otherwise."""
    program = jax.make_jaxpr(functools.partial(returns_jax._read_at_once, names=NAMES))(*rows(num_actions))
    assert count("reduce_sum", program) == num_sums
    assert count("reduce", program) == (num_sums == 0)


def test_strict_promotion() -> None:
    """Neither ranks nor dtypes are promoted, if a program asks for that."""
    q, pi, a = rows(18)
    a = a.astype("int32")
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        got = returns_jax._read_at_once(q, pi, a, names=NAMES)
    np.testing.assert_array_equal(got["q_a"], returns_jax._read_apart(q, pi, a, names=NAMES)["q_a"])
