"""Section 3.1: Lemma 1, Theorem 1, Remark 1 and Eq. 9; and what they leave out: Q(λ), truncated IS, c above π/μ."""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import oracle
import pytest
from theorem import models
from theorem.models import Case, Model

import offtrace as ot
from offtrace import operators
from offtrace.mdp import FiniteMDP

MARKOV = [name for name, cls in ot.TRACES.items() if cls.markov]
SAFE = [name for name in MARKOV if ot.TRACES[name].safe]
AWARE = [name for name, cls in ot.TRACES.items() if not cls.markov]

NUM_MODELS = 2_000

# A linear system with γ = 0.999 has a condition number of about 1e3, values are up to 1e3, float64 has 16 digits:
# 1e-10 of the largest number leaves two digits to spare and is far below any wrong coefficient.
BOUND_TOLERANCE = 1e-10
# With γ ≤ 0.9 both are under 1e2: 1e-12 leaves the same two digits.
EXACT_TOLERANCE = 1e-12


def trace_of(name: str, lam: float) -> ot.Trace:
    return ot.TRACES[name](lambda_=lam)


def operator(mdp: FiniteMDP, case: Case, trace: object) -> np.ndarray:
    return operators.general_operator(mdp, case.q, pi=case.pi, mu=case.mu, trace=trace)


def scale(*values: np.ndarray) -> float:
    return max(1.0, *(float(abs(v).max()) for v in values))


@functools.cache
def evaluation_cases() -> list[tuple[Case, FiniteMDP, np.ndarray]]:
    rng = np.random.default_rng(2016)
    cases = [models.random_case(rng) for _ in range(NUM_MODELS)]
    return [(case, case.model.mdp(), models.value(case.model, case.pi)) for case in cases]


@functools.cache
def exact_cases() -> list[tuple[Case, FiniteMDP, np.ndarray]]:
    rng = np.random.default_rng(1)
    cases = [models.random_case(rng, gammas=(0.0, 0.5, 0.9)) for _ in range(150)]
    return [(case, case.model.mdp(), models.value(case.model, case.pi)) for case in cases]


@functools.cache
def episodic_cases() -> list[tuple[Case, FiniteMDP]]:
    """Six that end within 4 steps, two within 8."""
    rng = np.random.default_rng(9)
    cases = [models.episodic_case(rng, length=4, branching=0.6) for _ in range(6)]
    cases += [models.episodic_case(rng, length=8) for _ in range(2)]
    return [(case, case.model.mdp()) for case in cases]


def test_the_models_are_as_varied_as_the_theorem() -> None:
    """γ from 0 to 0.999, ending and continuing, π where μ never goes, deterministic policies, π = μ."""
    cases = [case for case, _, _ in evaluation_cases()]
    gammas = {case.model.gamma for case in cases}
    assert {0.0, 0.5, 0.9, 0.99, 0.999} <= gammas
    assert len(gammas) > 200
    assert sum(case.model.continuing for case in cases) > 300
    assert sum(not case.model.continuing for case in cases) > 300
    assert sum(bool(((case.mu == 0) & (case.pi > 0)).any()) for case in cases) > 300
    assert sum(bool((case.pi.max(-1) == 1).all()) for case in cases) > 100
    assert sum(bool((case.mu.max(-1) == 1).all()) for case in cases) > 100
    assert sum(bool((case.pi == case.mu).all()) for case in cases) > 100


# -- the operators are the paper's ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARKOV)
def test_matrices_and_coefficients_are_those_of_the_paper(name: str) -> None:
    for case, mdp, _ in exact_cases():
        model, pi, mu, q, lam = case
        c = models.coefficients(name, case)
        given = {"pi": pi, "mu": mu, "trace": trace_of(name, lam), "q": q}
        # one rounding for each of the few factors
        np.testing.assert_allclose(operators.coefficients(mdp, **given), c, rtol=1e-14, atol=0)
        np.testing.assert_allclose(
            operators.p_cmu(mdp, c=c, mu=mu), models.transitions(model, c * mu), rtol=1e-14, atol=0
        )
        w = models.weights(case, c)
        np.testing.assert_allclose(operators.a_matrix(mdp, **given), w, rtol=0, atol=EXACT_TOLERANCE * scale(w))
        eta = operators.eta(mdp, **given)
        np.testing.assert_allclose(eta.ravel(), w.sum(1), rtol=0, atol=EXACT_TOLERANCE * scale(w))


def test_bellman_operators_are_those_of_the_paper() -> None:
    for case, mdp, q_pi in exact_cases():
        model, pi, _, q, lam = case
        tolerance = {"rtol": 0, "atol": EXACT_TOLERANCE * scale(q, q_pi)}
        np.testing.assert_allclose(operators.p_pi(mdp, pi), models.transitions(model, pi), rtol=1e-14, atol=0)
        np.testing.assert_allclose(operators.t_pi(mdp, q, pi=pi), models.bellman(model, q, pi), **tolerance)
        np.testing.assert_allclose(operators.t_star(mdp, q), models.optimal_bellman(model, q), **tolerance)
        np.testing.assert_allclose(operators.q_pi(mdp, pi), q_pi, **tolerance)
        summed = lambda_returns(model, q, pi, lam)  # up to thousands of additions, which cost one more digit
        np.testing.assert_allclose(
            operators.t_lambda(mdp, q, pi=pi, lambda_=lam), summed, rtol=0, atol=10 * EXACT_TOLERANCE * scale(q, q_pi)
        )


def lambda_returns(model: Model, q: np.ndarray, pi: np.ndarray, lam: float) -> np.ndarray:
    """(1 − λ) Σ_n λ^n (T^π)^{n+1} Q: printed with (T^π)^n, which at λ = 0 would be Q and not T^π Q."""
    if lam == 1:
        return models.value(model, pi)
    total, backed_up = np.zeros(q.shape), q
    transitions = models.transitions(model, pi)
    weight = 1 - lam
    while weight > 1e-18:
        backed_up = model.reward + model.gamma * models.apply(transitions, backed_up)
        total += weight * backed_up
        weight *= lam
    # what λ^n leaves out of the sum is (T^π)^∞ Q = Q^π
    return total + weight / (1 - lam) * models.value(model, pi)


@pytest.mark.parametrize("name", MARKOV)
def test_operator_is_equation_3(name: str) -> None:
    for case, mdp, q_pi in exact_cases():
        expected = models.general_operator(case, models.coefficients(name, case))
        actual = operator(mdp, case, trace_of(name, case.lam))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EXACT_TOLERANCE * scale(expected, case.q, q_pi))


@pytest.mark.parametrize("name", list(ot.TRACES))
def test_operator_is_equation_3_trajectory_by_trajectory(name: str) -> None:
    """The expectation over μ written out, on MDPs that end within 8 steps; Eq. 9 and RBIS have no other oracle."""
    steps = 0
    for case, mdp in episodic_cases():
        expected = models.listed_operator(case, models.beta_of(name))
        actual = operator(mdp, case, trace_of(name, case.lam))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EXACT_TOLERANCE * scale(expected))
        steps = max(steps, *(len(p.steps) for p in models.prefixes(case, 0, int(case.mu[0].argmax()))))
    assert steps == 7  # seven more after the first: 8 steps


@pytest.mark.parametrize("name", list(ot.TRACES))
def test_operator_without_discount(name: str) -> None:
    """γ = 1 is beyond the theorem, but Eq. 3 is a finite sum where episodes end."""
    for case, _ in episodic_cases()[:3]:
        case = case._replace(model=case.model._replace(gamma=1.0))
        expected = models.listed_operator(case, models.beta_of(name))
        actual = operator(case.model.mdp(), case, trace_of(name, case.lam))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EXACT_TOLERANCE * scale(expected))


@pytest.mark.parametrize("name", AWARE)
def test_trajectory_aware_traces_are_refused_where_episodes_go_on(name: str) -> None:
    """Every pair leads to every pair, with its own ratio: no two paths are alike, and there are 40^t of them."""
    rng = np.random.default_rng(0)
    model = Model(np.full((10, 4, 10), 0.1), np.zeros((10, 4, 10)), np.ones((10, 4)), 0.9)
    pi, mu = rng.dirichlet(np.ones(4), size=10), rng.dirichlet(np.ones(4), size=10)
    case = Case(model, pi, mu, np.zeros((10, 4)), 0.5)
    with pytest.raises(ValueError, match="sampled_operator"):
        operator(model.mdp(), case, trace_of(name, 0.5))


@pytest.mark.parametrize("gamma", [0.9, 0.999])
def test_a_large_mdp_is_many_small_ones(gamma: float) -> None:
    """Over a thousand states, where no dense system is solved: 120 random MDPs side by side."""
    rng = np.random.default_rng(4)
    kind = {"gammas": (gamma,), "num_actions": 3, "max_states": 20}
    cases = [models.random_case(rng, **kind)._replace(lam=0.9) for _ in range(120)]
    large = models.union(cases)
    mdp = large.model.mdp()
    assert mdp.num_states > 1_000
    given = {"pi": large.pi, "mu": large.mu}
    pairs = [(operators.q_pi(mdp, large.pi), [models.value(case.model, case.pi) for case in cases])]
    pairs.append((operators.t_pi(mdp, large.q, pi=large.pi), [models.bellman(c.model, c.q, c.pi) for c in cases]))
    pairs.append((operators.t_star(mdp, large.q), [models.optimal_bellman(c.model, c.q) for c in cases]))
    for name in MARKOV:
        trace = trace_of(name, large.lam)
        each = [models.coefficients(name, case) for case in cases]
        expected = [models.general_operator(case, c) for case, c in zip(cases, each, strict=True)]
        pairs.append((operators.general_operator(mdp, large.q, trace=trace, **given), expected))
        row_sums = [models.weights(case, c).sum(1).reshape(c.shape) for case, c in zip(cases, each, strict=True)]
        pairs.append((operators.eta(mdp, trace=trace, q=large.q, **given), row_sums))
    for actual, expected in pairs:
        joined = np.concatenate(expected)
        # 1e-8 is what a large solve promises unless told otherwise; the rest is rounding of values up to 1e4
        np.testing.assert_allclose(actual, joined, rtol=0, atol=1e-8 + 1e-12 * scale(joined))


# -- Lemma 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARKOV)
def test_lemma_1_by_its_series(name: str) -> None:
    """RQ − Q^π = Σ_{t≥1} γ^t (P^{cμ})^{t−1} (P^π − P^{cμ}) (Q − Q^π), for unsafe traces, too."""
    for case, mdp, q_pi in exact_cases():
        expected = models.apply(models.weights(case, models.coefficients(name, case)), case.q - q_pi)
        actual = operator(mdp, case, trace_of(name, case.lam)) - q_pi
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EXACT_TOLERANCE * scale(expected, case.q, q_pi))


@pytest.mark.parametrize("name", list(ot.TRACES))
def test_lemma_1_trajectory_by_trajectory(name: str) -> None:
    for case, mdp in episodic_cases():
        q_pi = models.value(case.model, case.pi)
        expected = models.listed_lemma_1(case, models.beta_of(name), case.q - q_pi)
        actual = operator(mdp, case, trace_of(name, case.lam)) - q_pi
        np.testing.assert_allclose(actual, expected, rtol=0, atol=EXACT_TOLERANCE * scale(expected, case.q))


# -- Theorem 1 and Remark 1 -----------------------------------------------------------------------------------


def violates(case: Case, rq: np.ndarray, q_pi: np.ndarray, eta: np.ndarray) -> bool:
    """|RQ − Q^π|(x, a) ≤ η(x, a) ‖Q − Q^π‖ ≤ γ ‖Q − Q^π‖ does not hold."""
    gamma, distance = case.model.gamma, abs(case.q - q_pi).max()
    slack = BOUND_TOLERANCE * scale(case.q, q_pi)
    outside = (eta < -BOUND_TOLERANCE).any() or (eta > gamma + BOUND_TOLERANCE).any()
    return bool(outside or (abs(rq - q_pi) > eta * distance + slack).any())


@pytest.mark.parametrize("name", SAFE)
def test_theorem_1_and_remark_1(name: str) -> None:
    """Also where π goes and μ does not: c exists only on actions that μ takes, and π − cμ = π ≥ 0 on the others."""
    checked, violations = 0, []
    for number, (case, mdp, q_pi) in enumerate(evaluation_cases()):
        trace = trace_of(name, case.lam)
        eta = operators.eta(mdp, pi=case.pi, mu=case.mu, trace=trace)
        if violates(case, operator(mdp, case, trace), q_pi, eta):
            violations.append(number)
        checked += 1
    assert checked == NUM_MODELS >= 1_000
    assert violations == []


@pytest.mark.parametrize("name", SAFE)
def test_remark_1_is_attained(name: str) -> None:
    """No smaller coefficient would do: Q = Q^π + e gives RQ − Q^π = η everywhere."""
    for case, mdp, q_pi in evaluation_cases()[:400]:
        trace = trace_of(name, case.lam)
        shifted = operator(mdp, case._replace(q=q_pi + 1), trace) - q_pi
        eta = operators.eta(mdp, pi=case.pi, mu=case.mu, trace=trace)
        np.testing.assert_allclose(shifted, eta, rtol=0, atol=BOUND_TOLERANCE * scale(q_pi))


@pytest.mark.parametrize("name", SAFE)
def test_eta_is_one_minus_the_discounted_length_of_the_trace(name: str) -> None:
    """η = 1 − (1 − γ) E_μ[Σ_t γ^t c_1 … c_t] where nothing ends, and the row sums of A everywhere."""
    continuing = 0
    for case, mdp, _ in evaluation_cases()[:400]:
        model = case.model
        c = models.coefficients(name, case)
        eta = operators.eta(mdp, pi=case.pi, mu=case.mu, trace=trace_of(name, case.lam))
        tolerance = {"rtol": 0, "atol": BOUND_TOLERANCE}
        np.testing.assert_allclose(eta.ravel(), models.weights(case, c).sum(1), **tolerance)
        if model.continuing:
            length = models.series(model.gamma * models.transitions(model, c * case.mu)).sum(1)
            np.testing.assert_allclose(eta.ravel(), 1 - (1 - model.gamma) * length, **tolerance)
            continuing += 1
    assert continuing > 80


@pytest.mark.parametrize("name", MARKOV)
def test_q_pi_is_the_fixed_point_of_every_trace(name: str) -> None:
    """Theorem 1's first sentence asks nothing of c."""
    for case, mdp, q_pi in evaluation_cases()[:300]:
        fixed = operator(mdp, case._replace(q=q_pi), trace_of(name, case.lam))
        np.testing.assert_allclose(fixed, q_pi, rtol=0, atol=BOUND_TOLERANCE * scale(q_pi))


@pytest.mark.parametrize("name", [name for name in AWARE if ot.TRACES[name].safe])
def test_theorem_1_for_traces_that_remember(name: str) -> None:
    """Eq. 9 and RBIS: c_s may be above 1 and depends on the past, but never exceeds π/μ. Remark 1 holds as well."""
    for case, mdp in episodic_cases():
        q_pi = models.value(case.model, case.pi)
        given = {"pi": case.pi, "mu": case.mu, "trace": trace_of(name, case.lam)}
        eta = operators.eta(mdp, **given)
        attained = models.listed_lemma_1(case, models.beta_of(name), np.ones(eta.shape))
        np.testing.assert_allclose(eta, attained, rtol=0, atol=EXACT_TOLERANCE)
        a = operators.a_matrix(mdp, **given)
        assert a.min() >= -EXACT_TOLERANCE
        np.testing.assert_allclose(a.sum(1), eta.ravel(), rtol=0, atol=EXACT_TOLERANCE)
        assert eta.max() <= case.model.gamma + EXACT_TOLERANCE
        for q in (case.q, q_pi + 1, q_pi + np.sign(case.q)):
            distance = abs(q - q_pi).max()
            for rq in (
                operator(mdp, case._replace(q=q), trace_of(name, case.lam)),
                models.listed_operator(case._replace(q=q), models.beta_of(name)),
            ):
                assert (abs(rq - q_pi) <= eta * distance + EXACT_TOLERANCE * scale(q, q_pi)).all()


def test_importance_sampling_is_done_in_one_step_only_where_mu_goes() -> None:
    """IS(1) gives Q^π from any Q if μ takes every action of π (Section 2); otherwise it still contracts, by η > 0."""
    finished = unfinished = 0
    for case, mdp, q_pi in evaluation_cases()[:400]:
        rq = operator(mdp, case, ot.ImportanceSampling(1.0))
        error = abs(rq - q_pi).max() / scale(case.q, q_pi)
        if not ((case.mu == 0) & (case.pi > 0)).any():
            assert error <= BOUND_TOLERANCE
            finished += 1
        unfinished += error > 1e-3
    assert finished > 100
    assert unfinished > 50


def test_what_mu_never_does_is_never_asked() -> None:
    """One state, π takes action 1, μ takes action 0: the trace is cut at once, so R is T^π and η is γ."""
    model = Model(np.ones((1, 2, 1)), np.zeros((1, 2, 1)), np.array([[0.0, 1.0]]), 0.5)
    case = Case(model, np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]]), 1.0)
    for name in SAFE:
        given = {"pi": case.pi, "mu": case.mu, "trace": trace_of(name, 1.0)}
        np.testing.assert_array_equal(operators.coefficients(model.mdp(), **given), [[0.0, 0.0]])
        np.testing.assert_array_equal(operators.general_operator(model.mdp(), case.q, **given), [[2.0, 3.0]])
        np.testing.assert_array_equal(operators.eta(model.mdp(), **given), [[0.5, 0.5]])


def test_the_ends_of_lambda() -> None:
    """λ = 0 is T^π for every trace with a λ; on-policy Retrace(λ) is T^π_λ, and TB cuts there all the same."""
    cut = 0
    for case, mdp, q_pi in exact_cases():
        tolerance = {"rtol": 0, "atol": EXACT_TOLERANCE * scale(case.q, q_pi)}
        one_step = models.bellman(case.model, case.q, case.pi)
        for name in MARKOV:
            np.testing.assert_allclose(operator(mdp, case, trace_of(name, 0.0)), one_step, **tolerance)
        on_policy = case._replace(mu=case.pi)
        full = operators.t_lambda(mdp, case.q, pi=case.pi, lambda_=case.lam)
        np.testing.assert_allclose(operator(mdp, on_policy, ot.Retrace(case.lam)), full, **tolerance)
        cut += bool(abs(operator(mdp, on_policy, ot.TreeBackup(case.lam)) - full).max() > 1e-3)
    assert cut > 20


# -- would these tests notice? --------------------------------------------------------------------------------


def broken(mistake: str) -> Callable[[Case, np.ndarray], np.ndarray]:
    """Eq. 3 with one mistake in it."""

    def wrong(case: Case, c: np.ndarray) -> np.ndarray:
        model, pi, mu, q, _ = case
        gamma, cmu = model.gamma, models.transitions(model, c * mu)
        residual = models.bellman(model, q, pi) - q
        on_mu = models.transitions(model, mu)
        if mistake == "the trace starts at c_0":
            return q + models.apply(models.series(gamma * c.reshape(-1, 1) * on_mu), residual)
        if mistake == "the trace lacks c_t":
            return q + residual + gamma * models.apply(on_mu @ models.series(gamma * cmu), residual)
        if mistake == "c of another state":
            rolled = models.transitions(model, np.roll(c, 1, axis=0) * mu)
            return q + models.apply(models.series(gamma * rolled), residual)
        if mistake == "c of another action":
            rolled = models.transitions(model, np.roll(c, 1, axis=1) * mu)
            return q + models.apply(models.series(gamma * rolled), residual)
        if mistake == "the trace follows π":
            return q + models.apply(models.series(gamma * models.transitions(model, c * pi)), residual)
        if mistake == "γ twice in the trace":
            return q + models.apply(models.series(gamma**2 * cmu), residual)
        if mistake == "μ in the expectation":
            residual = models.bellman(model, q, mu) - q
        elif mistake == "a maximum for the expectation":
            residual = models.optimal_bellman(model, q) - q
        elif mistake == "no γ before the expectation":
            residual = model.reward + models.apply(models.transitions(model, pi), q) - q
        elif mistake == "bootstrapped past the end":
            residual = models.bellman(model._replace(ends=0 * model.ends, r=model.reward), q, pi) - q
        else:
            raise ValueError(mistake)
        return q + models.apply(models.series(gamma * cmu), residual)

    return wrong


WRONG_TRACES = [
    "the trace starts at c_0",
    "the trace lacks c_t",
    "c of another state",
    "c of another action",
    "the trace follows π",
    "γ twice in the trace",
]
WRONG_ERRORS = [
    "μ in the expectation",
    "a maximum for the expectation",
    "no γ before the expectation",
    "bootstrapped past the end",
]


@pytest.mark.parametrize("mistake", WRONG_TRACES + WRONG_ERRORS)
def test_lemma_1_notices(mistake: str) -> None:
    """Each mistake moves the operator off Lemma 1 by 1e-3 or more in many of the cases, a billion tolerances."""
    noticed = 0
    for case, _, q_pi in exact_cases():
        c = models.coefficients("retrace", case)
        expected = models.apply(models.weights(case, c), case.q - q_pi)
        noticed += bool(abs(broken(mistake)(case, c) - q_pi - expected).max() > 1e-3)
    assert noticed > 15


@pytest.mark.parametrize("mistake", WRONG_ERRORS)
def test_theorem_1_notices_a_wrong_error(mistake: str) -> None:
    """A wrong δ has another fixed point: close to Q^π the distance grows."""
    noticed = 0
    for case, _, q_pi in exact_cases():
        near = case._replace(q=q_pi + 0.01 * case.q)
        c = models.coefficients("retrace", near)
        eta = models.weights(near, c).sum(1).reshape(c.shape)
        noticed += violates(near, broken(mistake)(near, c), q_pi, eta)
    assert noticed > 15


def test_theorem_1_notices_a_trace_of_the_wrong_place() -> None:
    """c of another state or action is above π/μ somewhere; Q = Q^π ± e, where the bound is attained, shows it."""
    for mistake in ("c of another state", "c of another action", "the trace lacks c_t"):
        noticed = 0
        for case, _, q_pi in exact_cases():
            near = case._replace(q=q_pi + np.sign(case.q))
            c = models.coefficients("retrace", near)
            eta = models.weights(near, c).sum(1).reshape(c.shape)
            noticed += violates(near, broken(mistake)(near, c), q_pi, eta)
        assert noticed > 5, mistake


def test_the_list_of_trajectories_agrees_with_the_series() -> None:
    """The two oracles share no line but the coefficients."""
    for case, _ in episodic_cases():
        for name in ("retrace", "tree_backup", "q_lambda"):
            listed = models.listed_operator(case, models.beta_of(name))
            summed = models.general_operator(case, models.coefficients(name, case))
            np.testing.assert_allclose(listed, summed, rtol=0, atol=EXACT_TOLERANCE * scale(listed))


# -- where the theorem does not hold --------------------------------------------------------------------------


def off_policyness(case: Case) -> float:
    """ε = max_x ‖π(·|x) − μ(·|x)‖₁."""
    return float(abs(case.pi - case.mu).sum(-1).max())


def distances(case: Case, trace: object, times: int) -> np.ndarray:
    """‖Q_k − Q^π‖ for Q_{k+1} = R Q_k."""
    mdp, q_pi = case.model.mdp(), models.value(case.model, case.pi)
    found = [abs(case.q - q_pi).max()]
    for _ in range(times):
        case = case._replace(q=operator(mdp, case, trace))
        found.append(abs(case.q - q_pi).max())
    return np.array(found)


def spectral_radius(matrix: np.ndarray) -> float:
    return float(abs(np.linalg.eigvals(matrix)).max())


def test_q_lambda_diverges_where_mu_is_far_from_pi() -> None:
    """`stay or go`, λ = 0.5: each application multiplies the distance by 0.72 · 1.5 / (1 − 0.36) = 1.6875."""
    case = models.stay_or_go()
    a = operators.a_matrix(case.model.mdp(), pi=case.pi, mu=case.mu, trace=ot.QLambda(0.5))
    assert spectral_radius(a) == pytest.approx(1.6875, rel=1e-12)
    grown = distances(case, ot.QLambda(0.5), 30)
    # Q^π is about 5 and the first distance is 1, so a dozen digits are left for the ratio
    np.testing.assert_allclose(grown[1:] / grown[:-1], 1.6875, rtol=1e-10)
    assert grown[-1] > 6e6
    # every safe trace converges on the same MDP from the same Q
    for name in SAFE:
        assert distances(case, trace_of(name, 0.5), 250)[-1] < 1e-10


def test_q_lambda_may_converge_beyond_its_bound() -> None:
    """Between (1 − γ)/(γε) = 0.069 and the threshold 0.194 it still converges on `stay or go`."""
    case = models.stay_or_go()
    bound, threshold = 0.1 / (0.9 * off_policyness(case)), 0.28 / 1.44
    assert bound == pytest.approx(0.0694, abs=1e-4)
    assert bound < 0.13 < threshold
    mdp = case.model.mdp()
    for lam, diverges in ((0.13, False), (threshold - 1e-6, False), (threshold + 1e-6, True)):
        a = operators.a_matrix(mdp, pi=case.pi, mu=case.mu, trace=ot.QLambda(lam))
        assert (spectral_radius(a) > 1) == diverges
    assert distances(case, ot.QLambda(0.13), 250)[-1] < 1e-10
    # with deterministic policies bound and threshold meet at 1/18: it cannot be improved
    tight = models.stay_or_go(target=1.0)
    assert 0.1 / (0.9 * off_policyness(tight)) == pytest.approx(1 / 18)
    below = distances(tight, ot.QLambda(1 / 18 - 0.01), 200)
    above = distances(tight, ot.QLambda(1 / 18 + 0.01), 200)
    assert below[-1] < 0.1 * below[0]
    assert above[-1] > 10 * above[0]


def test_q_lambda_contracts_below_its_bound() -> None:
    """‖RQ − Q^π‖ ≤ γ (1 − λ + λε) / (1 − λγ) ‖Q − Q^π‖, which is below 1 for λ < (1 − γ)/(γε)."""
    checked = 0
    for case, mdp, q_pi in evaluation_cases():
        gamma, eps = case.model.gamma, off_policyness(case)
        if gamma * eps == 0:
            continue
        lam = 0.99 * case.lam * min(1.0, (1 - gamma) / (gamma * eps))
        factor = gamma * (1 - lam + lam * eps) / (1 - lam * gamma)
        error = abs(operator(mdp, case, ot.QLambda(lam)) - q_pi).max()
        assert factor < 1
        assert error <= factor * abs(case.q - q_pi).max() + BOUND_TOLERANCE * scale(case.q, q_pi)
        checked += 1
    assert checked > 500


def test_a_trace_above_the_ratio_leaves_the_theorem() -> None:
    """c = 1.5 π/μ on `stay or go` with γ = 0.6: A e = −γ · 0.5 / (1 − 0.9) e = −3 e, an expansion by 3."""
    case = models.stay_or_go(gamma=0.6)

    def above(*, pi_a: np.ndarray, mu_a: np.ndarray) -> np.ndarray:
        return 1.5 * pi_a / mu_a

    def below(*, pi_a: np.ndarray, mu_a: np.ndarray) -> np.ndarray:
        return 0.5 * pi_a / mu_a

    q_pi = models.value(case.model, case.pi)
    shifted = case._replace(q=q_pi + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ot.UnsafeTraceWarning)
        rq = operator(case.model.mdp(), shifted, above)
        grown = distances(shifted, above, 20)
    np.testing.assert_allclose(rq - q_pi, -3.0, rtol=1e-12)
    np.testing.assert_allclose(grown[1:] / grown[:-1], 3.0, rtol=1e-10)
    assert violates(shifted, rq, q_pi, np.full((2, 2), 0.6))
    # the same callable at half the ratio is IS(0.5)
    np.testing.assert_allclose(
        operator(case.model.mdp(), case, below),
        operator(case.model.mdp(), case, ot.ImportanceSampling(0.5)),
        rtol=1e-13,  # a handful of operations in another order
    )


def test_truncated_importance_sampling_expands() -> None:
    """`regretted credit`: |RQ − Q^π| = 1.397 where ‖Q − Q^π‖ = 1. The safe traces that remember contract there."""
    case = models.regretted_credit()
    mdp = case.model.mdp()
    # 0.5γ + (0.225 + 0.225)γ² + 0.475γ³, the sizes of the weights of states 1, 2 and 3
    by_hand = 0.5 * 0.99 + 2 * 0.225 * 0.99**2 + 0.475 * 0.99**3
    rq = operator(mdp, case, ot.TruncatedIS(1.0))
    assert rq[0] == pytest.approx([by_hand] * 2, rel=1e-12)
    assert by_hand > 1.39
    np.testing.assert_allclose(models.listed_operator(case, oracle.truncated_is), rq, rtol=1e-12)
    for name in (*SAFE, *AWARE):
        if ot.TRACES[name].safe:
            assert abs(operator(mdp, case, trace_of(name, 1.0))).max() <= 0.99
