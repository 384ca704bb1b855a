"""rlax agrees, on its own domain: one unbatched window, terminations through the discount, nothing truncated.

rlax counts time from the state a step leads to. Its `r_t` and `discount_t` are our rows 0 … n−1, but its `q_t`,
`a_t`, `pi_t`, `mu_t` and `c_t` are our rows 1 … n:

    ours    q[0], a[0]  ──r[0], discount[0]──▶  q[1], a[1]  ──r[1], discount[1]──▶  q[2]
    rlax    q_tm1       ──r_t[0]           ──▶  q_t[0], a_t[0]

The action and the coefficient of the last state do not exist for us, and rlax does not read them.
"""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from builders import windows
from precision import double_precision

import offtrace as ot

with warnings.catch_warnings():
    # rlax imports TensorFlow Probability, which uses names that JAX is retiring
    warnings.filterwarnings("ignore", r"jax\.core\.\w+ is deprecated", DeprecationWarning)
    import rlax

MARKOV = [cls for cls in ot.TRACES.values() if cls.markov]
LAMBDAS = [0.0, 0.3, 0.9, 1.0]
N, NUM_ACTIONS = 12, 4

# Both sides in float64. Sums of 12 terms of size ≤ 30 with ratios up to 5: under 100 roundings of numbers under 1e4
CLOSE = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


def window(seed: int) -> dict[str, np.ndarray]:
    """One episode after another; μ(a_t|x_t) ≥ 0.2, and π never takes some of the actions that were taken."""
    rng = np.random.default_rng(seed)
    arrays = windows.window(N, (), NUM_ACTIONS, seed=seed, terminated=0.2)
    pi = arrays["pi"]
    pi[rng.random(pi.shape) < 0.2] = 0
    pi[:, 0] += pi.sum(-1) == 0
    undiscounted = (arrays["discount"] > 0) & (rng.random(N) < 0.5)
    return arrays | {
        "q": 3 * arrays["q"],
        "discount": np.where(undiscounted, 1.0, arrays["discount"]),
        "pi": pi / pi.sum(-1, keepdims=True),
        "mu_a": rng.uniform(0.2, 1, N),
    }


def one_later(rows: np.ndarray, last: float | int) -> jnp.ndarray:
    """Our rows 1 … n−1 and, for the last state, something that must not matter."""
    return jnp.asarray(np.append(rows[1:], np.asarray(last, rows.dtype)))


def jaxed(given: dict[str, np.ndarray]) -> dict[str, jnp.ndarray]:
    return {name: jnp.asarray(value) for name, value in given.items()}


@pytest.fixture(params=range(2))
def given(request) -> dict[str, np.ndarray]:
    given = window(request.param)
    assert (given["discount"] == 0).any()
    assert (np.take_along_axis(given["pi"][:N], given["a"][:, None], -1) == 0).any()
    return given


# --- the paper's operator -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_retrace(given, lambda_):
    errors = rlax.retrace(
        q_tm1=given["q"][:-1],
        q_t=given["q"][1:],
        a_tm1=given["a"],
        a_t=one_later(given["a"], 3),
        r_t=given["r"],
        discount_t=given["discount"],
        pi_t=given["pi"][1:],
        mu_t=one_later(given["mu_a"], 0.1),
        lambda_=lambda_,
        eps=0.0,  # it adds 1e-8 to μ otherwise
    )
    q_a = np.take_along_axis(given["q"][:N], given["a"][:, None], -1)[:, 0]
    trace = ot.Retrace(lambda_)
    np.testing.assert_allclose(ot.targets(**given, trace=trace) - q_a, errors, **CLOSE)
    np.testing.assert_allclose(ot.targets(**jaxed(given), trace=trace) - q_a, errors, **CLOSE)


def test_the_epsilon_of_rlax_is_no_retrace():
    """With μ = 1e-8 = π its ratio is ½ where Retrace's is 1: the reason for `eps=0.0` above."""
    q, pi = np.zeros((3, 2)), np.array([[1e-8, 1 - 1e-8]] * 3)
    a, r, discount, mu_a = np.array([0, 0]), np.array([0.0, 1.0]), np.array([1.0, 1.0]), np.array([1e-8, 1e-8])
    both = [
        rlax.retrace(q[:-1], q[1:], a, a, r, discount, pi[1:], mu_a, 1.0, **options)
        for options in ({"eps": 0.0}, {"eps": 1e-8})
    ]
    ours = ot.targets(q=q, a=a, r=r, discount=discount, pi=pi, mu_a=mu_a, trace=ot.Retrace(1.0))
    np.testing.assert_allclose(ours, [1, 1], **CLOSE)
    np.testing.assert_allclose(both[0], [1, 1], **CLOSE)
    np.testing.assert_allclose(both[1], [0.5, 1], **CLOSE)


def coefficients(given: dict[str, np.ndarray], trace: ot.Trace) -> np.ndarray:
    pi_a = np.take_along_axis(given["pi"][:N], given["a"][:, None], -1)[:, 0]
    return trace(pi_a=pi_a, mu_a=given["mu_a"], q=given["q"], pi=given["pi"], a=given["a"])


@pytest.mark.parametrize("lambda_", [0.3, 1.0])
@pytest.mark.parametrize("cls", MARKOV)
def test_every_markov_trace_through_rlax_from_action_values(given, cls, lambda_):
    c = coefficients(given, cls(lambda_))
    returns = rlax.general_off_policy_returns_from_action_values(
        q_t=given["q"][1:],
        a_t=one_later(given["a"], 0),
        r_t=given["r"],
        discount_t=given["discount"],
        c_t=one_later(c, 1e3),
        pi_t=given["pi"][1:],
    )
    np.testing.assert_allclose(ot.targets(**given, trace=cls(lambda_)), returns, **CLOSE)


@pytest.mark.parametrize("cls", MARKOV)
def test_every_markov_trace_through_rlax_from_q_and_v(given, cls):
    c = coefficients(given, cls(0.8))
    q_a = np.take_along_axis(given["q"][:N], given["a"][:, None], -1)[:, 0]
    expected_q = (given["pi"] * given["q"]).sum(-1)[1:]
    returns = rlax.general_off_policy_returns_from_q_and_v(
        q_t=q_a[1:], v_t=expected_q, r_t=given["r"], discount_t=given["discount"], c_t=c[1:]
    )
    steps = {"q_a": q_a, "expected_q": expected_q, "r": given["r"], "discount": given["discount"]}
    np.testing.assert_allclose(q_a + ot.corrections(**steps, c=c), returns, **CLOSE)
    np.testing.assert_allclose(q_a + ot.corrections(**jaxed(steps), c=jnp.asarray(c)), returns, **CLOSE)


def test_one_lambda_per_step_is_that_of_the_row_it_stands_in(given):
    lambdas = np.random.default_rng(9).random(N)
    c = coefficients(given, ot.Retrace(1.0)) * lambdas
    returns = rlax.general_off_policy_returns_from_action_values(
        given["q"][1:],
        one_later(given["a"], 0),
        given["r"],
        given["discount"],
        one_later(c, 0),
        given["pi"][1:],
    )
    np.testing.assert_allclose(ot.targets(**given, trace=ot.Retrace(lambdas)), returns, **CLOSE)


# --- continuous actions -------------------------------------------------------------------------------------


def test_retrace_from_log_densities(given):
    rng = np.random.default_rng(5)
    log_pi_a, log_mu_a = rng.normal(size=(2, N))
    q_a, expected_q = rng.normal(size=(2, N))
    errors = rlax.retrace_continuous(
        q_tm1=q_a,
        q_t=q_a[1:],
        v_t=expected_q,
        r_t=given["r"],
        discount_t=given["discount"],
        log_rhos=(log_pi_a - log_mu_a)[1:],
        lambda_=0.9,
    )
    got = ot.targets(
        q_a=q_a,
        expected_q=expected_q,
        r=given["r"],
        discount=given["discount"],
        log_pi_a=log_pi_a,
        log_mu_a=log_mu_a,
        trace=ot.Retrace(0.9),
    )
    np.testing.assert_allclose(got - q_a, errors, **CLOSE)


# --- state values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho_bar", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("lambda_", [0.0, 0.3, 1.0, "per step"])
def test_vtrace(given, lambda_, rho_bar):
    rng = np.random.default_rng(7)
    v, pi_a = rng.normal(size=N + 1), rng.random(N)
    # a step's own λ and ratio count, so there is no shift here; its c̄ is always 1
    lambda_ = rng.random(N) if lambda_ == "per step" else lambda_
    errors = rlax.vtrace(
        v_tm1=v[:-1],
        v_t=v[1:],
        r_t=given["r"],
        discount_t=given["discount"],
        rho_tm1=pi_a / given["mu_a"],
        lambda_=lambda_,
        clip_rho_threshold=rho_bar,
    )
    steps = {"v": v, "r": given["r"], "discount": given["discount"], "pi_a": pi_a, "mu_a": given["mu_a"]}
    got = ot.vtrace_targets(**steps, lambda_=lambda_, rho_bar=rho_bar)
    np.testing.assert_allclose(got - v[:-1], errors, **CLOSE)
    got = ot.vtrace_targets(**jaxed(steps), lambda_=lambda_, rho_bar=rho_bar)
    np.testing.assert_allclose(got - v[:-1], errors, **CLOSE)


# --- uncorrected returns ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_peng_is_the_lambda_return_from_expected_values(given, lambda_):
    expected_q = (given["pi"] * given["q"]).sum(-1)[1:]
    returns = rlax.lambda_returns(given["r"], given["discount"], expected_q, lambda_)
    steps = {name: given[name] for name in ("r", "discount", "q", "pi")}
    np.testing.assert_allclose(ot.peng_targets(**steps, lambda_=lambda_), returns, **CLOSE)
    np.testing.assert_allclose(ot.peng_targets(**jaxed(steps), lambda_=lambda_), returns, **CLOSE)


def test_peng_with_one_lambda_per_step_has_rlaxs_lambda_one_row_later(given):
    lambdas = np.random.default_rng(3).random(N)
    expected_q = (given["pi"] * given["q"]).sum(-1)[1:]
    returns = rlax.lambda_returns(given["r"], given["discount"], expected_q, one_later(lambdas, 0.5))
    steps = {name: given[name] for name in ("r", "discount", "q", "pi")}
    np.testing.assert_allclose(ot.peng_targets(**steps, lambda_=lambdas), returns, **CLOSE)


def greedy(q: np.ndarray) -> np.ndarray:
    return np.eye(NUM_ACTIONS)[q.argmax(-1)]


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_rlaxs_q_lambda_with_a_number_is_peng_and_not_our_q_lambda(given, lambda_):
    """Two algorithms under one name: rlax's bootstraps from max Q, and corrects nothing."""
    errors = rlax.q_lambda(
        given["q"][:-1], given["a"], given["r"], given["discount"], given["q"][1:], jnp.asarray(lambda_)
    )
    q_a = np.take_along_axis(given["q"][:N], given["a"][:, None], -1)[:, 0]
    steps = {name: given[name] for name in ("r", "discount", "q")} | {"pi": greedy(given["q"])}
    np.testing.assert_allclose(ot.peng_targets(**steps, lambda_=lambda_) - q_a, errors, **CLOSE)
    corrected = ot.targets(**steps, a=given["a"], trace=ot.QLambda(lambda_)) - q_a
    assert np.allclose(corrected, errors, **CLOSE) == (lambda_ == 0)


@pytest.mark.parametrize("lambda_", LAMBDAS)
def test_rlaxs_q_lambda_with_one_lambda_per_step_is_watkins(given, lambda_):
    is_greedy = given["q"][:N].argmax(-1) == given["a"]
    assert is_greedy[1:].any()
    errors = rlax.q_lambda(
        given["q"][:-1],
        given["a"],
        given["r"],
        given["discount"],
        given["q"][1:],
        one_later(lambda_ * is_greedy, 0),
    )
    q_a = np.take_along_axis(given["q"][:N], given["a"][:, None], -1)[:, 0]
    steps = {name: given[name] for name in ("r", "discount", "q", "a")} | {"pi": greedy(given["q"])}
    np.testing.assert_allclose(ot.targets(**steps, trace=ot.Watkins(lambda_)) - q_a, errors, **CLOSE)


@pytest.mark.parametrize("num_steps", [1, 2, 5, N - 1, N, N + 3])
def test_n_step_returns(given, num_steps):
    expected_q = (given["pi"] * given["q"]).sum(-1)[1:]
    returns = rlax.n_step_bootstrapped_returns(
        jnp.asarray(given["r"]), jnp.asarray(given["discount"]), jnp.asarray(expected_q), num_steps
    )
    steps = {name: given[name] for name in ("r", "discount", "q", "pi")}
    np.testing.assert_allclose(ot.n_step_targets(**steps, num_steps=num_steps), returns, **CLOSE)
    np.testing.assert_allclose(ot.n_step_targets(**jaxed(steps), num_steps=num_steps), returns, **CLOSE)
