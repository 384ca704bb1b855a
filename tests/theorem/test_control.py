"""Section 3.2 and the appendix: Theorem 2 with A_k and B_k, Definition 1, Lemmas 2 to 5, of which 3 is false."""

from collections.abc import Callable

import numpy as np
import pytest
from theorem import models
from theorem.models import Case, Model

import offtrace as ot
from offtrace import operators, policies

SAFE = [name for name, cls in ot.TRACES.items() if cls.safe and cls.markov]

# γ ≤ 0.95 keeps condition numbers and values under 1e3: float64's 16 digits less 6 leave 1e-10 of the largest value.
TOLERANCE = 1e-10

Target = Callable[[np.ndarray, int], np.ndarray]
"""π_k from Q_k and k."""


def epsilon_greedy(q: np.ndarray, epsilon: float) -> np.ndarray:
    """As the proof of Lemma 2 writes it."""
    out = np.full(q.shape, epsilon / q.shape[-1])
    out[np.arange(len(q)), q.argmax(-1)] += 1 - epsilon
    return out


def pessimistic(model: Model, rng: np.random.Generator | None = None) -> np.ndarray:
    """Q_0 = −R_max/(1 − γ): T^π Q_0 ≥ Q_0 for every π.

    Or, without ties, −(R_max + 1)/(1 − γ) + u with 0 ≤ u < 1: T^π Q_0 − Q_0 ≥ r + R_max + 1 − u ≥ 0.
    """
    if rng is None:
        return np.full(model.shape, -abs(model.reward).max() / (1 - model.gamma))
    return -(abs(model.reward).max() + 1) / (1 - model.gamma) + rng.random(model.shape)


def control_model(seed: int) -> Model:
    return models.random_model(np.random.default_rng(seed), gammas=(0.5, 0.9, 0.95))


def behaviour(rng: np.random.Generator, q: np.ndarray, k: int) -> np.ndarray:
    """Arbitrary, another at every k: random, deterministic, without support, or Q_k's worst action."""
    if k % 3 == 2:
        return epsilon_greedy(-q, 0.1)
    return models.random_policy(rng, q.shape)


class Run:
    """Q_{k+1} = R_k Q_k, with what the proof of Theorem 2 looks at."""

    def __init__(self, model: Model, name: str, target: Target, *, seed: int, times: int, first: np.ndarray) -> None:
        rng = np.random.default_rng(seed)
        self.model, self.mdp, self.star = model, model.mdp(), models.optimal_value(model)
        self.qs, self.pis, self.epsilons = [first], [], []
        for k in range(times):
            q = self.qs[-1]
            pi, mu = target(q, k), behaviour(rng, q, k)
            trace = ot.TRACES[name](lambda_=float(rng.random()))
            self.pis.append(pi)
            self.epsilons.append(operators.greedy_gap(self.mdp, q, pi=pi))
            self.qs.append(operators.general_operator(self.mdp, q, pi=pi, mu=mu, trace=trace))

    @property
    def scale(self) -> float:
        return max(1.0, abs(self.qs[0]).max(), abs(self.star).max())

    def violations(self) -> int:
        """How often ‖Q_{k+1} − Q*‖ ≤ γ ‖Q_k − Q*‖ + ε_k ‖Q_k‖ does not hold."""
        count = 0
        for q, after, epsilon in zip(self.qs[:-1], self.qs[1:], self.epsilons, strict=True):
            bound = self.model.gamma * abs(q - self.star).max() + epsilon * abs(q).max()
            count += bool(abs(after - self.star).max() > bound + TOLERANCE * self.scale)
        return count

    def residuals(self) -> list[float]:
        """min ξ_k for ξ_k = T^{π_k} Q_k − Q_k."""
        return [
            float((models.bellman(self.model, q, pi) - q).min()) for q, pi in zip(self.qs[:-1], self.pis, strict=True)
        ]


def falling(q: np.ndarray, k: int) -> np.ndarray:
    return epsilon_greedy(q, 0.5 * 0.9**k)


def greedy(q: np.ndarray, k: int) -> np.ndarray:
    return epsilon_greedy(q, 0.0)


# -- Theorem 2 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAFE)
def test_theorem_2_along_a_run(name: str) -> None:
    """The bound at every k, ξ_k ≥ 0, and Q_k → Q*, whatever μ_k does; ε_k falls from 0.5 by a tenth each time."""
    steps = 0
    for seed in range(8):
        model = control_model(seed)
        run = Run(model, name, falling, seed=seed, times=240, first=pessimistic(model))
        assert run.violations() == 0, seed
        assert min(run.residuals()) >= -TOLERANCE * run.scale
        assert policies.is_increasingly_greedy(run.pis, run.qs[:-1])
        # 0.95^240 = 5e-6 of the first distance, which is at most twice the scale, and ε_k is 1e-11 by then
        assert abs(run.qs[-1] - run.star).max() <= 1e-5 * run.scale
        steps += len(run.epsilons)
    assert steps == 8 * 240


def test_theorem_2_for_watkins() -> None:
    """With greedy targets and no ties Watkins's Q(λ) is Retrace(λ), ε_k is 0, and every step contracts by γ."""
    for seed in range(12):
        model = control_model(seed)
        first = pessimistic(model, np.random.default_rng(seed))
        run = Run(model, "watkins", greedy, seed=seed, times=320, first=first)
        same = Run(model, "retrace", greedy, seed=seed, times=5, first=first)
        assert max(run.epsilons) <= TOLERANCE
        assert run.violations() == 0
        assert min(run.residuals()) >= -TOLERANCE * run.scale
        assert abs(run.qs[-1] - run.star).max() <= 1e-6 * run.scale
        np.testing.assert_allclose(run.qs[5], same.qs[5], rtol=0, atol=TOLERANCE * run.scale)


def test_theorem_2_is_not_for_any_target() -> None:
    """The check can fail: targets that are greedy towards −Q_k break the bound."""
    broken = 0
    for seed in range(12):
        model = control_model(seed)
        run = Run(
            model, "retrace", lambda q, k: epsilon_greedy(-q, 0.0), seed=seed, times=20, first=pessimistic(model)
        )
        run.epsilons = [0.0] * 20  # as if they were greedy
        broken += run.violations() > 0
    assert broken >= 6


def test_theorem_2_needs_a_start_from_below() -> None:
    """One state, r = (0, 1), γ = 0.9, Q* = (9, 10).

    From Q_0 = (9.6, 9.5) the greedy action is the worse one, and Retrace(1) on-policy evaluates it: Q_1 = (0, 1) is 9
    away, where Q_0 was 0.6 away. T^{π_0} Q_0 − Q_0 is −0.96 there.
    """
    model = Model(np.ones((1, 2, 1)), np.zeros((1, 2, 1)), np.array([[0.0, 1.0]]), 0.9)
    q = np.array([[9.6, 9.5]])
    pi = policies.greedy(q)
    np.testing.assert_allclose(operators.q_star(model.mdp()), [[9.0, 10.0]], rtol=1e-12)  # condition number 10
    after = operators.general_operator(model.mdp(), q, pi=pi, mu=pi, trace=ot.Retrace(1.0))
    np.testing.assert_allclose(after, [[0.0, 1.0]], atol=1e-12)
    np.testing.assert_allclose(operators.t_pi(model.mdp(), q, pi=pi) - q, [[-0.96, 0.14]], rtol=1e-12)


def test_greedy_gap_is_the_smallest_epsilon() -> None:
    """T^π Q ≥ T Q − ε ‖Q‖ e holds for ε and not for less; 0 for a greedy π, and for Q = 0."""
    rng = np.random.default_rng(3)
    positive = 0
    for _ in range(200):
        case = models.random_case(rng, gammas=(0.5, 0.9))
        model, pi, _, q, _ = case
        mdp = model.mdp()
        lost = (models.optimal_bellman(model, q) - models.bellman(model, q, pi)).max()
        # a few roundings of numbers of the size of Q
        assert operators.greedy_gap(mdp, q, pi=pi) * abs(q).max() == pytest.approx(
            lost, abs=1e-13 * (1 + abs(q).max())
        )
        assert operators.greedy_gap(mdp, q, pi=epsilon_greedy(q, 0.0)) == pytest.approx(0, abs=1e-14)
        assert operators.greedy_gap(mdp, 0 * q, pi=pi) == 0
        positive += lost > 0.01
    assert positive > 100


def test_q_star_is_the_fixed_point_of_t() -> None:
    for seed in range(60):
        model = control_model(seed)
        star = operators.q_star(model.mdp())
        expected = models.optimal_value(model)
        np.testing.assert_allclose(star, expected, rtol=0, atol=TOLERANCE * max(1.0, abs(expected).max()))


@pytest.mark.parametrize(("max_states", "count"), [(20, 120), (40, 60)])
def test_q_star_of_a_large_mdp(max_states: int, count: int) -> None:
    rng = np.random.default_rng(6)
    cases = [models.random_case(rng, gammas=(0.95,), num_actions=3, max_states=max_states) for _ in range(count)]
    mdp = models.union(cases).model.mdp()
    assert mdp.num_states > 1_000
    expected = np.concatenate([models.optimal_value(case.model) for case in cases])
    # 1e-8 is what a large solve promises unless told otherwise
    np.testing.assert_allclose(operators.q_star(mdp), expected, rtol=0, atol=1e-8 + 1e-12 * abs(expected).max())


# -- A_k and B_k ----------------------------------------------------------------------------------------------


def b_of(case: Case, c: np.ndarray) -> np.ndarray:
    """γ (P^π − P^{cμ}) Σ_t γ^t (P^{cμ})^t."""
    model, pi, mu, _, _ = case
    cut = models.transitions(model, c * mu)
    return model.gamma * (models.transitions(model, pi) - cut) @ models.series(model.gamma * cut)


@pytest.mark.parametrize("name", SAFE)
def test_a_and_b_are_not_negative(name: str) -> None:
    """A ≥ 0 with row sums η ≤ γ; B ≥ 0, its rows unbounded by 1; both as their series."""
    rng = np.random.default_rng(7)
    above_one = 0
    for _ in range(200):
        case = models.random_case(rng, gammas=(0.0, 0.5, 0.9, 0.95))
        mdp, gamma = case.model.mdp(), case.model.gamma
        given = {"pi": case.pi, "mu": case.mu, "trace": ot.TRACES[name](lambda_=case.lam)}
        a, b, eta = operators.a_matrix(mdp, **given), operators.b_matrix(mdp, **given), operators.eta(mdp, **given)
        c = models.coefficients(name, case)
        np.testing.assert_allclose(a, models.weights(case, c), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(b, b_of(case, c), rtol=0, atol=TOLERANCE)
        assert min(a.min(), b.min()) >= -TOLERANCE
        assert a.sum(1).max() <= gamma + TOLERANCE
        np.testing.assert_allclose(a.sum(1), eta.ravel(), rtol=0, atol=TOLERANCE)
        above_one += bool(b.sum(1).max() > 1)
    assert above_one > 0 or name == "one_step"  # c = 0 makes A = B = γP^π


def test_b_moves_the_residual() -> None:
    """T^π R Q − R Q = B (T^π Q − Q) and R Q − Q^π = A (Q − Q^π), for unsafe traces, too."""
    rng = np.random.default_rng(8)
    for _ in range(100):
        case = models.random_case(rng, gammas=(0.5, 0.9))
        model, pi, mu, q, lam = case
        mdp, q_pi = model.mdp(), models.value(model, pi)
        for name in ("retrace", "tree_backup", "q_lambda", "watkins"):
            given = {"pi": pi, "mu": mu, "trace": ot.TRACES[name](lambda_=lam)}
            rq = operators.general_operator(mdp, q, **given)
            b, a = operators.b_matrix(mdp, q=q, **given), operators.a_matrix(mdp, q=q, **given)
            scale = max(1.0, abs(q).max(), abs(rq).max(), abs(q_pi).max())
            after = models.bellman(model, rq, pi) - rq
            before = models.bellman(model, q, pi) - q
            np.testing.assert_allclose(after, models.apply(b, before), rtol=0, atol=TOLERANCE * scale)
            np.testing.assert_allclose(rq - q_pi, models.apply(a, q - q_pi), rtol=0, atol=TOLERANCE * scale)


def test_a_row_of_b_may_sum_to_nine() -> None:
    """`hidden loop`: B does not contract where A does."""
    case = models.hidden_loop()
    given = {"pi": case.pi, "mu": case.mu, "trace": ot.Retrace(1.0)}
    b = operators.b_matrix(case.model.mdp(), **given)
    a = operators.a_matrix(case.model.mdp(), **given)
    np.testing.assert_allclose(b.sum(1), [9.0, 0.0, 0.0, 0.0], atol=1e-12)  # condition number 10, 16 digits
    np.testing.assert_allclose(a.sum(1), [0.9, 0.0, 0.0, 0.0], atol=1e-12)


# -- Definition 1 and Lemmas 2 and 3 --------------------------------------------------------------------------


def smallest_gap(pis: list[np.ndarray], qs: list[np.ndarray]) -> float:
    """Definition 1, state by state."""
    return min(float(((new - old) * q).sum(-1).min()) for old, new, q in zip(pis[:-1], pis[1:], qs[1:], strict=True))


def random_sequence(rng: np.random.Generator) -> list[np.ndarray]:
    """Q_0, Q_1, … that have nothing to do with each other, some with ties."""
    shape = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    qs = [rng.normal(size=shape) * rng.choice([0.1, 1.0, 100.0]) for _ in range(8)]
    return [np.round(q) for q in qs] if rng.integers(2) else qs


def test_lemma_2_epsilon_greedy_is_increasingly_greedy() -> None:
    rng = np.random.default_rng(11)
    for _ in range(500):
        qs = random_sequence(rng)
        epsilons = np.sort(rng.random(len(qs)))[::-1]
        pis = [policies.epsilon_greedy(q, float(e)) for q, e in zip(qs, epsilons, strict=True)]
        for pi, q, e in zip(pis, qs, epsilons, strict=True):
            np.testing.assert_allclose(pi, epsilon_greedy(q, float(e)), rtol=0, atol=1e-15)  # one rounding
        gap = policies.increasingly_greedy_gap(pis, qs)
        # differences of numbers up to 1e3 with a few roundings each
        assert gap == pytest.approx(smallest_gap(pis, qs), abs=1e-12)
        assert gap >= -1e-12
        assert policies.is_increasingly_greedy(pis, qs)


def test_lemma_2_needs_epsilon_not_to_grow() -> None:
    """The same with growing ε, and the paper's counter-example argmin, are seen not to be."""
    rng = np.random.default_rng(12)
    for _ in range(100):
        shape = int(rng.integers(1, 5)), int(rng.integers(2, 5))
        qs = [rng.normal(size=shape) for _ in range(8)]
        growing = [policies.epsilon_greedy(q, e) for q, e in zip([qs[0]] * 8, np.linspace(0, 1, 8), strict=True)]
        assert not policies.is_increasingly_greedy(growing, [qs[0]] * 8)
        worst = [policies.greedy(-q) for q in qs]
        assert not policies.is_increasingly_greedy(worst, qs)
        assert policies.increasingly_greedy_gap(worst, qs) == pytest.approx(smallest_gap(worst, qs), abs=1e-14)


def test_definition_1_reads_the_later_q() -> None:
    """By hand: π_0 on action 0, π_1 on action 1, Q_0 = (5, 0), Q_1 = (1, 3): 3 − 1 = 2 by Q_1, −5 by Q_0."""
    pis = [np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])]
    qs = [np.array([[5.0, 0.0]]), np.array([[1.0, 3.0]])]
    assert policies.increasingly_greedy_gap(pis, qs) == 2.0
    assert policies.is_increasingly_greedy(pis, qs)
    assert not policies.is_increasingly_greedy(pis, qs[::-1])


def test_definition_1_implies_the_order_of_the_operators() -> None:
    """P^{π_{k+1}} Q_{k+1} ≥ P^{π_k} Q_{k+1} as matrices, along ε-greedy policies."""
    rng = np.random.default_rng(13)
    for _ in range(50):
        model = models.random_model(rng)
        mdp = model.mdp()
        q, after = (rng.normal(size=model.shape) for _ in range(2))
        pi, pi_after = policies.epsilon_greedy(q, 0.4), policies.epsilon_greedy(after, 0.3)
        ordered = operators.p_pi(mdp, pi_after) @ after.ravel() - operators.p_pi(mdp, pi) @ after.ravel()
        assert ordered.min() >= -1e-14  # sums of a few numbers of size 1


def test_lemma_3_is_false_as_stated() -> None:
    """Q_k = (10, 0), Q_{k+1} = (1, 0), β = 1: softmax(Q_{k+1}) has .731 where softmax(Q_k) has 1.000."""
    qs = [np.array([[10.0, 0.0]]), np.array([[1.0, 0.0]])]
    pis = [policies.softmax(q, 1.0) for q in qs]
    assert float((pis[1] * qs[1]).sum()) == pytest.approx(0.731, abs=5e-4)
    assert float((pis[0] * qs[1]).sum()) == pytest.approx(1.000, abs=5e-4)
    assert policies.increasingly_greedy_gap(pis, qs) == pytest.approx(1 / (1 + np.exp(-1)) - 1 / (1 + np.exp(-10)))
    assert not policies.is_increasingly_greedy(pis, qs)


def test_lemma_3_holds_where_q_stays() -> None:
    """What its proof shows: for one Q, E_π Q grows with β."""
    rng = np.random.default_rng(14)
    for _ in range(200):
        q = random_sequence(rng)[0]
        betas = np.sort(rng.exponential(size=8) * 3)
        pis = [policies.softmax(q, float(beta)) for beta in betas]
        for pi, beta in zip(pis, betas, strict=True):
            weight = np.exp(beta * (q - q.max(-1, keepdims=True)))
            np.testing.assert_allclose(pi, weight / weight.sum(-1, keepdims=True), rtol=1e-13)  # a few roundings
        assert policies.is_increasingly_greedy(pis, [q] * 8)
        falls = policies.is_increasingly_greedy(pis[::-1], [q] * 8)
        assert not falls or abs(pis[0] - pis[-1]).max() < 1e-9


# -- Lemmas 4 and 5 -------------------------------------------------------------------------------------------


def commutator(model: Model, pi: np.ndarray, mu: np.ndarray) -> float:
    one, other = models.transitions(model, pi), models.transitions(model, np.minimum(pi, mu))
    return float(abs(one @ other - other @ one).sum(1).max())


def test_commutator_is_the_norm_of_the_paper() -> None:
    rng = np.random.default_rng(15)
    apart = 0
    for _ in range(200):
        model, pi, mu, _, _ = models.random_case(rng)
        found = operators.commutator(model.mdp(), pi=pi, mu=mu)
        assert found == pytest.approx(commutator(model, pi, mu), abs=1e-13)  # sums of a few products of shares
        apart += found > 0.05
    assert apart > 50  # in general they do not commute


def test_lemma_4_where_the_smaller_is_a_multiple_of_pi() -> None:
    """min(π, μ) = α π for all x, a makes the two commute: a greedy π, and a μ with 1 − α off it everywhere."""
    rng = np.random.default_rng(16)
    for _ in range(100):
        model = models.random_model(rng)
        q = rng.normal(size=model.shape)
        pi, alpha = policies.greedy(q), rng.random()
        num_others = max(model.shape[1] - 1, 1)
        mu = np.where(pi == 1, alpha, (1 - alpha) / num_others) if model.shape[1] > 1 else pi
        assert operators.commutator(model.mdp(), pi=pi, mu=mu) <= 1e-14  # sums of a few products of shares
    # where μ(greedy) depends on x they need not
    case = models.hidden_loop()
    assert operators.commutator(case.model.mdp(), pi=case.pi, mu=case.mu) > 0.5


def test_lemma_5_the_mixture_commutes_in_the_limit() -> None:
    """‖P^π P^{π∧μ} − P^{π∧μ} P^π‖ ≤ 2 ε_k with ε_k = max_x ‖π_k − π_Q‖₁: it goes to 0 with ε_k, not with α.

    P^{π∧μ} = (1 − α) P^π + D. On the greedy action |min(π, 1 − α) − (1 − α)π| ≤ (1 − α) ε_k / 2, on the others
    together at most ε_k / 2, so ‖D‖ ≤ ε_k, and the commutator is P^π D − D P^π.
    """
    rng = np.random.default_rng(17)
    checked = 0
    for _ in range(100):
        model = models.random_model(rng)
        if model.shape[1] == 1:
            continue
        mdp, q = model.mdp(), rng.normal(size=model.shape)
        mu = models.full_support(models.random_policy(rng, model.shape))
        alpha = float(rng.random())
        mixed = policies.mixture(q, mu, alpha)
        for epsilon in (0.5, 0.1, 1e-3, 1e-6, 0.0):
            pi = policies.epsilon_greedy(q, epsilon)
            away = policies.distance_from_greedy(pi, q)
            share = 1 - 1 / model.shape[1]
            assert away == pytest.approx(2 * epsilon * share, abs=1e-14)  # a few roundings of numbers below 1
            assert operators.commutator(mdp, pi=pi, mu=mixed) <= 2 * away + 1e-14
            checked += 1
    assert checked > 300


def test_lemma_5_fails_for_a_mu_that_is_no_mixture() -> None:
    """Greedy π, but μ(greedy|x) is 1 in one state and 0 in the other: ε_k = 0 and the two do not commute."""
    case = models.hidden_loop()
    q = np.array([[0.0, 1.0], [1.0, 0.0]])
    pi, mu = policies.greedy(q), np.array([[1.0, 0.0], [1.0, 0.0]])
    assert policies.distance_from_greedy(pi, q) == 0
    assert operators.commutator(case.model.mdp(), pi=pi, mu=mu) == pytest.approx(1.0)


def test_equation_8() -> None:
    """1 − ε on the greedy action, the rest in proportion to μ over the others."""
    rng = np.random.default_rng(18)
    for _ in range(100):
        shape = int(rng.integers(1, 5)), int(rng.integers(2, 5))
        q, mu, epsilon = rng.normal(size=shape), rng.dirichlet(np.ones(shape[1]), size=shape[0]), float(rng.random())
        expected = np.zeros(shape)
        for x, a in np.ndindex(*shape):
            best = int(q[x].argmax())
            expected[x, a] = 1 - epsilon if a == best else epsilon * mu[x, a] / (1 - mu[x, best])
        # 1 − μ(greedy) and the sum of the others differ by a rounding, which a small remainder magnifies
        np.testing.assert_allclose(policies.mixture(q, mu, epsilon), expected, rtol=1e-10)
        np.testing.assert_allclose(policies.mixture(q, mu, epsilon).sum(-1), 1, rtol=1e-14)


def test_equation_8_is_undefined_where_mu_is_greedy_already() -> None:
    """0/0: there is no way to spread ε over actions that μ never takes."""
    q, mu = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="mu"):
        policies.mixture(q, mu, 0.3)
    assert np.isfinite(policies.mixture(q[:1], mu[:1], 0.3)).all()


def test_ties_make_watkins_longer_than_the_ratio() -> None:
    """Two best actions: c is λ on both, also on the one that a greedy π never takes, where π/μ is 0."""
    model = Model(np.ones((1, 2, 1)), np.zeros((1, 2, 1)), np.zeros((1, 2)), 0.9)
    q = np.zeros((1, 2))
    pi, mu = policies.greedy(q), np.array([[0.5, 0.5]])
    c = operators.coefficients(model.mdp(), pi=pi, mu=mu, trace=ot.Watkins(0.7), q=q)
    np.testing.assert_array_equal(c, [[0.7, 0.7]])
    assert c[0, 1] > pi[0, 1] / mu[0, 1]
