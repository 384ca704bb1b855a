"""Peng's Q(λ), n-step returns, V-trace and C-trace: precision, arguments, gradients, and one λ per step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import offtrace as ot

N, B, A = 12, 3, 4
MAKERS: dict[str, Callable[..., Any]] = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.as_tensor}
HALF: dict[str, Any] = {"numpy": ml_dtypes.bfloat16, "jax": jnp.bfloat16, "torch": torch.bfloat16}
EVERY_LIBRARY = pytest.mark.parametrize("way", MAKERS)


def bfloat16_window() -> dict[str, np.ndarray]:
    """A window in float64 whose numbers bfloat16 holds exactly: what is lost is lost in the computation."""
    rng = np.random.default_rng(0)

    def policy(shape: tuple[int, ...]) -> np.ndarray:
        return rng.multinomial(8, np.full(A, 1 / A), shape) / 8

    rounded = lambda values: values.astype(ml_dtypes.bfloat16).astype(np.float64)  # noqa: E731
    mu = 0.5 * policy((N + 1, B)) + 0.125
    given = {"q": rounded(rng.normal(size=(N + 1, B, A))), "pi": policy((N + 1, B)), "mu": mu}
    given |= {"a": rng.integers(0, A, (N, B)), "r": rounded(rng.normal(size=(N, B)))}
    given["discount"] = np.full((N, B), 0.875)
    given["pi_a"], given["mu_a"] = (
        np.take_along_axis(given[name][:N], given["a"][..., None], -1)[..., 0] for name in ("pi", "mu")
    )
    return given | {"v": given["q"].max(-1)}


def chosen(*names: str) -> dict[str, np.ndarray]:
    return {name: bfloat16_window()[name] for name in ("r", "discount", *names)}


RECURSIONS: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray]]] = {
    "peng": (lambda **given: ot.peng_targets(**given, lambda_=0.9), chosen("q", "pi")),
    "n_step": (lambda **given: ot.n_step_targets(**given, num_steps=5), chosen("q", "pi")),
    "vtrace": (lambda **given: ot.vtrace_targets(**given, lambda_=0.9), chosen("v", "pi_a", "mu_a")),
    "c_trace": (lambda **given: ot.c_trace_targets(**given, alpha=0.7, lambda_=0.9), chosen("q", "pi", "mu", "a")),
}
EVERY_RECURSION = pytest.mark.parametrize("name", RECURSIONS)


def made(way: str, given: dict[str, np.ndarray], dtype: Any) -> dict[str, Any]:
    make = MAKERS[way]
    return {name: make(value) if name == "a" else make(value, dtype=dtype) for name, value in given.items()}


@EVERY_LIBRARY
@EVERY_RECURSION
def test_half_precision_is_computed_in_float32(way: str, name: str) -> None:
    """Inputs that bfloat16 holds exactly: the result is off by a float32's rounding, not by a bfloat16's."""
    recursion, given = RECURSIONS[name]
    right = recursion(**given)
    got = np.asarray(recursion(**made(way, given, HALF[way])))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, right, atol=1e-5)


@EVERY_LIBRARY
@EVERY_RECURSION
def test_ends_may_be_lists(way: str, name: str) -> None:
    recursion, given = RECURSIONS[name]
    reset, mask = np.zeros((N, B), dtype=bool), np.ones((N, B), dtype=bool)
    mask[-2:, 0] = False
    given = given | {"discount": np.where(reset | ~mask, 0, given["discount"])}
    want = recursion(**given, reset=reset, mask=mask)
    got = recursion(
        **made(way, given, np.float32 if way != "torch" else torch.float32), reset=reset.tolist(), mask=mask.tolist()
    )
    np.testing.assert_allclose(np.asarray(got), want, atol=1e-5)


@EVERY_LIBRARY
@EVERY_RECURSION
def test_everything_may_be_a_list(way: str, name: str) -> None:
    """One array says which library it is."""
    recursion, given = RECURSIONS[name]
    lists = {key: value if key == "r" else value.tolist() for key, value in given.items()}
    lists["r"] = MAKERS[way](lists["r"])
    np.testing.assert_allclose(np.asarray(recursion(**lists)), recursion(**given), atol=1e-5)


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("shape", [(A,), (1,), (N + 1, 1, 1)])
def test_one_alpha_for_all(shape: tuple[int, ...], validate: bool) -> None:
    with pytest.raises(ValueError, match=r"`alpha` must be one number; got shape"):
        ot.c_trace_targets(**RECURSIONS["c_trace"][1], alpha=np.full(shape, 0.5), validate=validate)


@pytest.mark.parametrize("logs", [False, True])
@pytest.mark.parametrize("way", ["jax", "torch"])
def test_a_tiny_mu_has_a_gradient_through_vtrace(way: str, logs: bool) -> None:
    """Where ρ is clipped, π and μ do not matter: 0. Where it is not, d/dπ of (π/μ) δ at the last step is δ/μ."""
    pi_a, mu_a = np.array([0.5, 0.25], np.float32), np.array([1e-30, 0.5], np.float32)
    rest = {
        "v": np.zeros(3, np.float32),
        "r": np.array([1.0, 2.0], np.float32),
        "discount": np.full(2, 0.5, np.float32),
    }
    pi_name, mu_name = ("log_pi_a", "log_mu_a") if logs else ("pi_a", "mu_a")
    pi_a, mu_a = (np.log(pi_a), np.log(mu_a)) if logs else (pi_a, mu_a)
    if way == "jax":

        def total(pi: Any, mu: Any) -> Any:
            return ot.vtrace_targets(**rest, **{pi_name: pi, mu_name: mu}, stop_gradient=False).sum()

        to_pi, to_mu = jax.grad(total, argnums=(0, 1))(jnp.asarray(pi_a), jnp.asarray(mu_a))
    else:
        pi, mu = (torch.tensor(value, requires_grad=True) for value in (pi_a, mu_a))
        given = {name: torch.as_tensor(value) for name, value in rest.items()} | {pi_name: pi, mu_name: mu}
        ot.vtrace_targets(**given, stop_gradient=False).sum().backward()
        to_pi, to_mu = pi.grad, mu.grad
    # Δ_1 = ρ_1 · 2 and Δ_0 = 1 + ½ Δ_1: the sum has 3 ρ_1, and ρ_1 = ½
    slopes = ([0.0, 1.5], [0.0, -1.5]) if logs else ([0.0, 6.0], [0.0, -3.0])
    np.testing.assert_allclose(np.asarray(to_pi), slopes[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(to_mu), slopes[1], rtol=1e-6)


@EVERY_LIBRARY
def test_whose_lambda_it_is(way: str) -> None:
    """Peng: G_t = r_t + γ_t [(1 − λ_{t+1}) v_{t+1} + λ_{t+1} G_{t+1}]. V-trace: Δ_t = δ_t + γ_t λ_t Δ_{t+1}."""
    rng = np.random.default_rng(1)
    lambdas, r, v = rng.random(5), rng.normal(size=5), rng.normal(size=6)
    total, returns = v[5], np.zeros(5)
    for t in reversed(range(5)):
        weight = lambdas[t + 1] if t < 4 else 1.0  # at the end G is v itself
        returns[t] = total = r[t] + 0.9 * ((1 - weight) * v[t + 1] + weight * total)
    given = made(way, {"r": r, "discount": np.full(5, 0.9)}, None)
    got = ot.peng_targets(**given, expected_q=MAKERS[way](v[1:]), lambda_=lambdas)
    np.testing.assert_allclose(np.asarray(got), returns, rtol=1e-5)
    delta = 0.0
    for t in reversed(range(5)):
        returns[t] = delta = r[t] + 0.9 * v[t + 1] - v[t] + 0.9 * lambdas[t] * delta
    half = MAKERS[way](np.full(5, 0.5))
    got = ot.vtrace_targets(**given, v=MAKERS[way](v), pi_a=half, mu_a=half, lambda_=lambdas)
    np.testing.assert_allclose(np.asarray(got), returns + v[:5], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call", ["targets", *RECURSIONS])
@pytest.mark.parametrize(
    ("way", "remedy"), [("numpy", "mask.astype(bool)"), ("jax", "mask.astype(bool)"), ("torch", "mask.bool()")]
)
def test_a_float_mask_is_told_what_helps(way: str, remedy: str, call: str) -> None:
    """And the remedy is run, to see that the library has it."""
    recursion, given = RECURSIONS.get(
        call, (lambda **given: ot.targets(**given, trace=ot.TreeBackup(0.9)), chosen("q", "pi", "a"))
    )
    arrays = made(way, given, None)
    mask = MAKERS[way](np.ones((N, B), dtype=np.float32))
    with pytest.raises(TypeError, match="`mask` must be boolean") as refusal:
        recursion(**arrays, mask=mask)
    assert f"`{remedy}`" in str(refusal.value)
    helped = mask.bool() if way == "torch" else mask.astype(bool)
    np.testing.assert_allclose(np.asarray(recursion(**arrays, mask=helped)), recursion(**given), atol=1e-5)


def test_a_list_of_numbers_for_a_mask_is_told_what_helps() -> None:
    _, given = RECURSIONS["peng"]
    with pytest.raises(TypeError, match=r"`np\.array\(mask, dtype=bool\)`"):
        ot.peng_targets(**given, mask=[[1] * B] * N)


def test_wrong_values_and_weights_of_vtrace() -> None:
    given = {name: value[:, 0] for name, value in chosen("v", "pi_a", "mu_a").items()}
    batch = chosen("v", "pi_a", "mu_a")
    swapped = {name: value.swapaxes(0, 1) for name, value in batch.items()}
    wanted = (B + 1, N)
    with pytest.raises(ValueError, match="`v` must have one row more than `r`") as caught:
        ot.vtrace_targets(**swapped)
    assert f"{wanted}, as `r` is {(B, N)}; got {(B, N + 1)}. Batch-major?" in str(caught.value)
    with pytest.raises(ValueError, match=r"got .*All shapes: ") as caught:
        ot.vtrace_targets(**{**given, "mu_a": given["mu_a"][1:]})
    assert "q_a" not in str(caught.value)
    for name in ("rho_bar", "c_bar"):
        for value in (None, "1", 0, -1.0):
            with pytest.raises(ValueError, match=f"`{name}` must be a number above 0; got {value!r}"):
                ot.vtrace_targets(**given, **{name: value})


@pytest.mark.parametrize("logs", [False, True])
def test_vtrace_with_two_bounds(logs: bool) -> None:
    """Against the recursion of Espeholt et al. (2018), Remark 1, for equal and for different ρ̄ and c̄."""
    given = chosen("v", "pi_a", "mu_a")
    ratio = given["pi_a"] / given["mu_a"]
    v, r, discount = (given[name] for name in ("v", "r", "discount"))
    if logs:
        with np.errstate(divide="ignore"):
            given |= {f"log_{name}": np.log(given.pop(name)) for name in ("pi_a", "mu_a")}
    for rho_bar, c_bar in [(1.0, 1.0), (2.0, 2.0), (2.0, 0.5), (np.inf, 1.0)]:
        delta = np.minimum(rho_bar, ratio) * (r + discount * v[1:] - v[:-1])
        expected = np.zeros_like(v)
        for t in reversed(range(N)):
            expected[t] = delta[t] + discount[t] * np.minimum(c_bar, ratio[t]) * expected[t + 1]
        found = ot.vtrace_targets(**given, rho_bar=rho_bar, c_bar=c_bar)
        np.testing.assert_allclose(found, (expected + v)[:-1], rtol=1e-12, atol=1e-12)


def test_a_number_of_steps_from_numpy() -> None:
    given = chosen("q", "pi")
    found = ot.n_step_targets(**given, num_steps=np.int64(3))
    np.testing.assert_array_equal(found, ot.n_step_targets(**given, num_steps=3))


def test_padded_tokens_of_an_older_policy() -> None:
    """The lines of docs/returns.md against every sequence alone, without padding."""
    rng = np.random.default_rng(5)
    lengths = np.array([7, 1, 4])
    num_tokens, num_sequences = 7, 3
    values, r = rng.normal(size=(2, num_tokens, num_sequences))
    log_old, log_new = np.log(rng.uniform(0.05, 1, size=(2, num_tokens, num_sequences)))
    t = np.arange(num_tokens)[:, None]
    mask = t < lengths
    for given in (values, r, log_old, log_new):
        given[~mask] = np.nan
    discount = (t < lengths - 1).astype(np.float32)
    v = np.concatenate([values, np.zeros((1, num_sequences))])
    targets = ot.vtrace_targets(v=v, r=r, discount=discount, log_pi_a=log_new, log_mu_a=log_old, mask=mask)
    following = np.concatenate([targets[1:], np.zeros((1, num_sequences))])
    weights = np.minimum(1, np.exp(log_new - log_old))
    advantages = np.where(mask, weights * (r + discount * following - values), 0)
    for i, n in enumerate(lengths):
        ahead = 0.0  # of a target, that of the token behind
        for k in reversed(range(n)):
            weight = min(1.0, np.exp(log_new[k, i] - log_old[k, i]))
            value_behind = values[k + 1, i] if k + 1 < n else 0.0
            surprise = weight * (r[k, i] + value_behind - values[k, i])
            target = values[k, i] + surprise + weight * (ahead - value_behind)
            np.testing.assert_allclose(targets[k, i], target, rtol=1e-12)
            np.testing.assert_allclose(advantages[k, i], weight * (r[k, i] + ahead - values[k, i]), rtol=1e-12)
            ahead = target
        assert not targets[n:, i].any()
        assert not advantages[n:, i].any()
