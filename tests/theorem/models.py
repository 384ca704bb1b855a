"""MDPs for the theorems, and the paper's operators on them by dense arrays, power series and lists of trajectories.

Nothing here calls the code under test; the coefficients are those of `oracle`, as their papers print them.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import oracle
from oracle import Step

from offtrace.mdp import FiniteMDP


class Model(NamedTuple):
    """A finite MDP as the paper writes it, with p(x'|x, a) in `p[x, a, x']`."""

    p: np.ndarray
    ends: np.ndarray
    """(X, A, X) the share of each transition that ends the episode."""
    r: np.ndarray
    """(X, A), or (X, A, X) for a reward of each transition."""
    gamma: float
    name: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return self.p.shape[:2]

    @property
    def going(self) -> np.ndarray:
        """(X, A, X) the mass that goes on."""
        return self.p * (1 - self.ends)

    @property
    def reward(self) -> np.ndarray:
        """(X, A) r(x, a)."""
        return self.r if self.r.ndim == 2 else (self.p * self.r).sum(-1)

    @property
    def continuing(self) -> bool:
        return not self.ends.any()

    def mdp(self) -> FiniteMDP:
        ends = None if self.continuing else self.ends
        return FiniteMDP(p=self.p, r=self.r, gamma=self.gamma, terminates=ends, name=self.name)


class Case(NamedTuple):
    """A model, the two policies, a Q-function and a λ."""

    model: Model
    pi: np.ndarray
    mu: np.ndarray
    q: np.ndarray
    lam: float


# -- the paper's operators ------------------------------------------------------------------------------------


def transitions(model: Model, weight: np.ndarray) -> np.ndarray:
    """(XA, XA) p(y|x, a) weight(y, b): P^π for π, P^{cμ} for c·μ, P^{π∧μ} for min(π, μ)."""
    size = math.prod(model.shape)
    return (model.going[..., None] * weight).reshape(size, size)


def series(m: np.ndarray) -> np.ndarray:
    """Σ_t m^t over 2^17 terms, (I + m)(I + m²)(I + m⁴)…: no linear system is solved; 0.999^(2^17) is 1e-57."""
    total = np.eye(len(m))
    for _ in range(17):
        total = total + m @ total
        m = m @ m
    return total


def apply(m: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (m @ q.ravel()).reshape(q.shape)


def bellman(model: Model, q: np.ndarray, pi: np.ndarray) -> np.ndarray:
    """T^π Q = r + γ P^π Q."""
    return model.reward + model.gamma * apply(transitions(model, pi), q)


def optimal_bellman(model: Model, q: np.ndarray) -> np.ndarray:
    """T Q = r + γ max_π P^π Q."""
    return model.reward + model.gamma * model.going @ q.max(-1)


def value(model: Model, pi: np.ndarray) -> np.ndarray:
    """Q^π = Σ_t γ^t (P^π)^t r, Eq. 1."""
    return apply(series(model.gamma * transitions(model, pi)), model.reward)


def optimal_value(model: Model) -> np.ndarray:
    """Q*, by applying T until nothing changes any more."""
    q = np.zeros(model.shape)
    for _ in range(20_000):
        q, before = optimal_bellman(model, q), q
        if abs(q - before).max() <= 1e-15 * max(1.0, abs(q).max()):
            return q
    return q


def coefficients(name: str, case: Case) -> np.ndarray:
    """(X, A) c(x, a) of a Markov trace, 0 where μ never goes."""
    c = np.zeros(case.model.shape)
    for x, a in zip(*np.nonzero(case.mu), strict=True):
        step = Step(case.lam, float(case.pi[x, a]), float(case.mu[x, a]), case.q[x], case.pi[x], int(a))
        c[x, a] = oracle.COEFFICIENT[name](step)
    return c


def general_operator(case: Case, c: np.ndarray) -> np.ndarray:
    """Eq. 3 for a Markov trace: R Q = Q + Σ_t γ^t (P^{cμ})^t (T^π Q − Q)."""
    model, pi, mu, q, _ = case
    return q + apply(series(model.gamma * transitions(model, c * mu)), bellman(model, q, pi) - q)


def weights(case: Case, c: np.ndarray) -> np.ndarray:
    """(XA, XA) w of Theorem 1's proof: Σ_{t≥1} γ^t (P^{cμ})^{t−1} (P^π − P^{cμ}), which is A of Theorem 2's."""
    model, pi, mu, _, _ = case
    cut = transitions(model, c * mu)
    return model.gamma * series(model.gamma * cut) @ (transitions(model, pi) - cut)


# -- the same by listing every trajectory ---------------------------------------------------------------------

Beta = Callable[[list[Step]], float]
"""β_t = c_1 … c_t from the steps 1 … t of a trajectory."""


def beta_of(name: str) -> Beta:
    if name in oracle.BETA:
        return oracle.BETA[name]
    return lambda steps: math.prod(oracle.COEFFICIENT[name](step) for step in steps)


class Prefix(NamedTuple):
    """A trajectory (x_0, a_0) … (x_t, a_t), and the steps 1 … t as a trace sees them."""

    x: int
    a: int
    weight: float
    """γ^t times its probability under μ."""
    steps: list[Step]


def prefixes(case: Case, x: int, a: int) -> Iterator[Prefix]:
    """Every trajectory that begins with (x, a), and every beginning of one. All have to end."""
    model, pi, mu, q, lam = case
    going = model.going
    todo = [Prefix(x, a, 1.0, [])]
    while todo:
        prefix = todo.pop()
        yield prefix
        assert len(prefix.steps) < 8, "a trajectory of more than 8 steps"
        for y in np.flatnonzero(going[prefix.x, prefix.a]).tolist():
            for b in np.flatnonzero(mu[y]).tolist():
                weight = prefix.weight * model.gamma * float(going[prefix.x, prefix.a, y] * mu[y, b])
                step = Step(lam, float(pi[y, b]), float(mu[y, b]), q[y], pi[y], b)
                todo.append(Prefix(y, b, weight, [*prefix.steps, step]))


def listed_operator(case: Case, beta: Beta) -> np.ndarray:
    """Eq. 3, trajectory by trajectory."""
    out = case.q.copy()
    residual = _residuals(case)
    for x, a in np.ndindex(*case.model.shape):
        out[x, a] += math.fsum(p.weight * beta(p.steps) * residual[p.x][p.a] for p in prefixes(case, x, a))
    return out


def _residuals(case: Case) -> list[list[float]]:
    """E[r_t + γ E_π Q(x_{t+1}, ·) − Q(x_t, a_t)] for each (x_t, a_t), transition by transition."""
    model, pi, _, q, _ = case
    num_states, num_actions = model.shape
    rows = []
    for x in range(num_states):
        row = []
        for a in range(num_actions):
            total = -float(q[x, a])
            for y in range(num_states):
                reward = model.r[x, a] if model.r.ndim == 2 else model.r[x, a, y]
                ahead = sum(float(pi[y, b] * q[y, b]) for b in range(num_actions))
                total += float(model.p[x, a, y]) * float(reward + model.gamma * (1 - model.ends[x, a, y]) * ahead)
            row.append(total)
        rows.append(row)
    return rows


def listed_lemma_1(case: Case, beta: Beta, delta: np.ndarray) -> np.ndarray:
    """Lemma 1's right-hand side with ΔQ = `delta`, trajectory by trajectory:

    E_μ Σ_{t≥1} γ^t [(c_1 … c_{t−1}) E_π ΔQ(x_t, ·) − (c_1 … c_t) ΔQ(x_t, a_t)].
    """
    model, pi, _, _, _ = case
    expected = (pi * delta).sum(-1)
    ahead = model.gamma * model.going @ expected
    out = np.zeros(model.shape)
    for x, a in np.ndindex(*model.shape):
        terms = []
        for p in prefixes(case, x, a):
            reach = beta(p.steps)
            terms.append(p.weight * reach * float(ahead[p.x, p.a]))
            if p.steps:
                terms.append(-p.weight * reach * float(delta[p.x, p.a]))
        out[x, a] = math.fsum(terms)
    return out


# -- random models --------------------------------------------------------------------------------------------


def random_model(
    rng: np.random.Generator,
    *,
    gammas: tuple[float, ...] = (0.0, 0.5, 0.9, 0.99, 0.999),
    max_states: int = 5,
    num_actions: int | None = None,
) -> Model:
    """Dense or sparse, continuing or ending for some or for a share of its transitions."""
    num_states = int(rng.integers(1, max_states + 1))
    shape = num_states, int(rng.integers(1, 5)) if num_actions is None else num_actions
    p = np.zeros((*shape, num_states))
    for x, a in np.ndindex(*shape):
        successors = rng.choice(num_states, size=rng.integers(1, num_states + 1), replace=False)
        p[x, a, successors] = rng.dirichlet(np.ones(len(successors)))
    kind = rng.integers(3)
    ends = np.zeros(p.shape)
    if kind == 1:
        ends[rng.random(p.shape) < 0.3] = 1.0
    elif kind == 2:
        ends = rng.random(p.shape) * (rng.random(p.shape) < 0.5)
    r = rng.normal(size=p.shape if rng.integers(2) else shape)
    gamma = float(rng.choice(gammas)) if len(gammas) == 1 or rng.integers(4) else float(rng.uniform(0, max(gammas)))
    return Model(p, ends, r, gamma)


def random_policy(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """State by state: full, deterministic, or with some actions that are never taken."""
    policy = np.zeros(shape)
    for row in policy:
        kind = rng.integers(3)
        count = (len(row), 1, int(rng.integers(1, len(row) + 1)))[kind]
        support = rng.choice(len(row), size=count, replace=False)
        row[support] = rng.dirichlet(np.full(count, rng.choice([0.3, 1.0, 10.0])))
    return policy


def full_support(policy: np.ndarray, share: float = 0.05) -> np.ndarray:
    return (1 - share) * policy + share / policy.shape[-1]


def random_case(rng: np.random.Generator, **kind: object) -> Case:
    """π and μ are unrelated, or nearly the same, or the same."""
    model = random_model(rng, **kind)
    pi, mu = random_policy(rng, model.shape), random_policy(rng, model.shape)
    close = rng.choice([0.0, 0.0, 0.0, 0.9, 1.0])
    mu = pi.copy() if close == 1 else close * pi + (1 - close) * mu
    q = rng.normal(size=model.shape) * rng.choice([1.0, 10.0])
    lam = float(rng.choice([0.0, 1.0])) if rng.integers(3) == 0 else float(rng.random())
    return Case(model, pi, mu, q, lam)


def union(cases: list[Case]) -> Case:
    """One large MDP that is many small ones side by side; all have the same γ and as many actions."""
    sizes = [case.model.shape[0] for case in cases]
    firsts = np.cumsum([0, *sizes])
    p, ends, r = (np.zeros((firsts[-1], cases[0].model.shape[1], firsts[-1])) for _ in range(3))
    for case, first, size in zip(cases, firsts, sizes, strict=False):
        own = slice(first, first + size)
        p[own, :, own], ends[own, :, own] = case.model.p, case.model.ends
        r[own, :, own] = case.model.r if case.model.r.ndim == 3 else case.model.r[..., None]
    pi, mu, q = (np.concatenate([getattr(case, name) for case in cases]) for name in ("pi", "mu", "q"))
    return Case(Model(p, ends, r, cases[0].model.gamma), pi, mu, q, cases[0].lam)


def episodic_case(rng: np.random.Generator, *, length: int, width: int = 2, branching: float = 0.3) -> Case:
    """Layers of `width` states with two or three actions; every step leads one layer down, so at most `length` steps.

    Some transitions end early, some only for a share.
    """
    num_states, num_actions = width * length, int(rng.integers(2, 4)) if length <= 4 else 2
    shape = num_states, num_actions
    p, ends = np.zeros((*shape, num_states)), np.zeros((*shape, num_states))
    for x, a in np.ndindex(*shape):
        layer = x // width
        if layer == length - 1:
            p[x, a, x] = 1.0
            ends[x, a, x] = 1.0
            continue
        below = (layer + 1) * width + rng.permutation(width)
        count = 2 if width > 1 and rng.random() < branching else 1
        p[x, a, below[:count]] = rng.dirichlet(np.ones(count))
        ends[x, a, below[:count]] = rng.choice([0.0, 0.0, 0.0, 0.25, 1.0], size=count)
    r = rng.normal(size=p.shape if rng.integers(2) else shape)
    model = Model(p, ends, r, float(rng.choice([0.5, 0.9, 0.99])))
    pi, mu = random_policy(rng, shape), full_support(random_policy(rng, shape), 0.2)
    mu[:width] = random_policy(rng, (width, num_actions))  # some actions are never taken here
    q = rng.normal(size=shape)
    return Case(model, pi, mu, q, float(rng.choice([0.4, 0.8, 1.0])))


# -- stored models --------------------------------------------------------------------------------------------


def stay_or_go(*, gamma: float = 0.9, target: float = 0.9) -> Case:
    """Two states; action 0 stays, action 1 goes to the other. π goes with probability `target`, μ stays with it.

    On functions that are +1 in one state and −1 in the other P^π multiplies by 1 − 2·target =: −d and P^μ by d, so
    A multiplies by −γ d (1 + λ) / (1 − γ d λ), which leaves the unit disc at λ = (1 − γd) / (2γd). With ε = 2d the
    sufficient bound of Harutyunyan et al. is (1 − γ) / (2γd): the same for d = 1, smaller for d < 1.
    """
    p = np.zeros((2, 2, 2))
    p[0, 0, 0] = p[1, 0, 1] = p[0, 1, 1] = p[1, 1, 0] = 1.0
    model = Model(p, np.zeros(p.shape), np.array([[1.0, 0.0], [0.0, 1.0]]), gamma, "stay or go")
    pi = np.array([[1 - target, target]] * 2)
    q = value(model, pi) + np.array([[1.0, -1.0], [-1.0, 1.0]])  # +1 where the next state is 0
    return Case(model, pi, pi[:, ::-1].copy(), q, 1.0)


def regretted_credit() -> Case:
    """A chain 0 → 1 → 2 → 3 → end on which β_t = min(1, ρ_1 … ρ_t) expands: 1.397 > 1.

    At state 1 the action of π has ρ = 2, and β stays 1. At state 2 action 0 has ρ = 10 and action 1 has ρ = 0.526, so
    2 · 0.526 > 1 leaves β_2 at 1 although β_1 ρ_2 is only 0.526: c_2 = 1 > π/μ, and the weight of (2, 1) is negative.
    """
    p = np.zeros((4, 2, 4))
    for x in range(4):
        p[x, :, min(x + 1, 3)] = 1.0
    ends = np.zeros(p.shape)
    ends[3] = 1.0
    pi = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])
    mu = np.array([[0.5, 0.5], [0.5, 0.5], [0.05, 0.95], [0.05, 0.95]])
    model = Model(p, ends, np.zeros((4, 2)), 0.99, "regretted credit")
    # ΔQ = Q, as Q^π = 0: the signs of the weights
    q = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    return Case(model, pi, mu, q, 1.0)


def hidden_loop() -> Case:
    """B_k need not contract: one of its rows sums to γ/(1 − γ) = 9.

    State 0: action 0 stays, action 1 leads to state 1, where everything stays. π takes action 1 in state 0, μ takes
    action 0: the trace is cut there, so P^{cμ} never enters (0, 1), but P^π does, with the whole weight Σ γ^t of the
    loop behind it.
    """
    p = np.zeros((2, 2, 2))
    p[0, 0, 0] = p[0, 1, 1] = p[1, 0, 1] = p[1, 1, 1] = 1.0
    model = Model(p, np.zeros(p.shape), np.array([[0.0, 1.0], [2.0, 2.0]]), 0.9, "hidden loop")
    pi = np.array([[0.0, 1.0], [0.5, 0.5]])
    mu = np.array([[1.0, 0.0], [0.5, 0.5]])
    return Case(model, pi, mu, np.zeros((2, 2)), 1.0)
