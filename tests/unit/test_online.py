"""Eq. 7 against the paper's double sum, written out below in plain Python; then what surrounds it."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from oracle import BETA, COEFFICIENT, Step

import offtrace as ot
from offtrace import online, policies
from offtrace.likelihoods import Likelihoods
from offtrace.mdp import FiniteMDP
from offtrace.online import runner
from offtrace.online.streams import Stream, state

NUM_STATES, NUM_ACTIONS, GAMMA = 5, 3, 0.9
TIGHT = 1e-12


def small_mdp(seed: int = 0, ends: float = 0.15) -> FiniteMDP:
    """Five states, three actions, revisited often; rewards by transition, ends by a share of each."""
    rng = np.random.default_rng(seed)
    shape = NUM_STATES, NUM_ACTIONS, NUM_STATES
    return FiniteMDP(
        p=rng.dirichlet(np.full(NUM_STATES, 0.5), size=shape[:2]),
        r=rng.normal(size=shape),
        gamma=GAMMA,
        terminates=2 * ends * rng.random(shape),
        start=[0.5, 0.5, 0, 0, 0],
    )


def policy(seed: int, num_states: int = NUM_STATES, num_actions: int = NUM_ACTIONS) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_actions), size=num_states)


# -- the oracle: Eq. 7 as printed ----------------------------------------------------------------------------

Rows = Callable[[np.ndarray, int], np.ndarray]


def product_of_traces(name: str, steps: list[Step]) -> float:
    """Π_{i=j+1..t} c_i, or the β of a trajectory-aware trace."""
    if name in BETA:
        return BETA[name](steps)
    product = 1.0
    for step in steps:
        product *= COEFFICIENT[name](step)
    return product


def eq7(q: np.ndarray, one: online.Trajectories, name: str, lam: float, rows: Rows, alpha, visits: str) -> np.ndarray:
    """Q_{k+1} from Q_k: the double sum over t ≥ s and j = s..t, pair by pair; `rows(q, x)` is π_k(·|x)."""
    length = one.num_steps
    steps, delta = [], []
    for t in range(length):
        x, a, y = int(one.states[t]), int(one.actions[t]), int(one.next_states[t])
        pi = rows(q, x)
        mu = float("nan") if one.mu_a is None else float(one.mu_a[t])
        steps.append(Step(lam, float(pi[a]), mu, q[x], pi, a))
        value = 0.0 if one.terminated[t] else sum(float(p) * float(v) for p, v in zip(rows(q, y), q[y], strict=True))
        delta.append(float(one.rewards[t]) + one.gamma * value - float(q[x, a]))
    new = q.copy()
    for x, a in {(int(x), int(a)) for x, a in zip(one.states, one.actions, strict=True)}:
        times = [t for t in range(length) if (one.states[t], one.actions[t]) == (x, a)]
        times = times[:1] if visits == "first" else times
        total = 0.0
        for t in range(times[0], length):
            for j in times:
                if j <= t:
                    total += delta[t] * one.gamma ** (t - j) * product_of_traces(name, steps[j + 1 : t + 1])
        new[x, a] += alpha(x, a) * total
    return new


def every_step(
    q: np.ndarray, one: online.Trajectories, name: str, lam: float, rows: Rows, alpha: float
) -> np.ndarray:
    """The same sum as it grows: after each step t every earlier visit j gets α δ_t γ^{t−j} β_{j,t}, with Q of now."""
    q, steps = q.copy(), []
    for t in range(one.num_steps):
        x, a, y = int(one.states[t]), int(one.actions[t]), int(one.next_states[t])
        pi = rows(q, x)
        steps.append(Step(lam, float(pi[a]), float(one.mu_a[t]), q[x].copy(), pi.copy(), a))
        value = 0.0 if one.terminated[t] else float(rows(q, y) @ q[y])
        delta = float(one.rewards[t]) + one.gamma * value - float(q[x, a])
        for j in range(t + 1):
            reach = one.gamma ** (t - j) * product_of_traces(name, steps[j + 1 : t + 1])
            q[one.states[j], one.actions[j]] += alpha * delta * reach
    return q


def epsilon_greedy_rows(q: np.ndarray, x: int) -> np.ndarray:
    row = np.full(NUM_ACTIONS, 0.3 / NUM_ACTIONS)
    row[int(np.argmax(q[x]))] += 0.7
    return row


def softmax_rows(q: np.ndarray, x: int) -> np.ndarray:
    weights = np.exp(2.0 * q[x])
    return weights / weights.sum()


def mixture_rows(q: np.ndarray, x: int) -> np.ndarray:
    mu, best = policy(5)[x], int(np.argmax(q[x]))
    row = 0.4 * mu / (1 - mu[best])
    row[best] = 0.6
    return row


TARGETS = {
    "fixed": (policy(1), lambda q, x: policy(1)[x]),
    "epsilon_greedy": (online.EpsilonGreedy(0.3), epsilon_greedy_rows),
    "softmax": (online.Softmax(2.0), softmax_rows),
    "mixture": (online.Mixture(policy(5), 0.4), mixture_rows),
}


@pytest.fixture(scope="module")
def stored() -> online.Trajectories:
    """Six trajectories of up to 14 steps, of which some are cut."""
    stored = online.collect(small_mdp(), mu=policy(2), num_episodes=6, seed=3, max_steps=14)
    last = stored.terminated[stored.first[1:] - 1]
    assert last.any()
    assert not last.all()
    return stored


def q_zero() -> np.ndarray:
    return np.random.default_rng(7).normal(size=(NUM_STATES, NUM_ACTIONS))


WAYS = [{"view": "forward"}, {"view": "backward"}, {"engine": "python"}]


@pytest.mark.parametrize("visits", ["every", "first"])
@pytest.mark.parametrize("name", list(ot.TRACES))
def test_eq7_as_printed(stored: online.Trajectories, name: str, visits: str) -> None:
    """Forward, backward and step by step, for every trace, evaluation and control, trajectory after trajectory."""
    for target, rows in TARGETS.values():
        expected = q_zero()
        for one in stored:
            expected = eq7(expected, one, name, 0.8, rows, lambda x, a: 0.1, visits)
        for way in WAYS:
            learned = online.control(
                stored,
                trace=ot.as_trace(name, lambda_=0.8),
                target=target,
                step_size=0.1,
                q0=q_zero(),
                visits=visits,
                **way,
            )
            np.testing.assert_allclose(learned.q, expected, rtol=TIGHT, atol=TIGHT)


@pytest.mark.parametrize("name", list(ot.TRACES))
def test_updating_at_every_step(stored: online.Trajectories, name: str) -> None:
    for target, rows in TARGETS.values():
        expected = q_zero()
        for one in stored:
            expected = every_step(expected, one, name, 0.8, rows, 0.1)
        for engine in ("auto", "python"):
            learned = online.control(
                stored,
                trace=ot.as_trace(name, lambda_=0.8),
                target=target,
                step_size=0.1,
                q0=q_zero(),
                update="step",
                engine=engine,
            )
            np.testing.assert_allclose(learned.q, expected, rtol=TIGHT, atol=TIGHT)


def test_one_trajectory_by_hand() -> None:
    """x: 0 → 1 → 0 → end, one action taken each time, γ = ½, Q = 0, π_a = ½, μ_a = 1, rewards 1, 2, 4.

    c = λ min(1, ½) = ½ with λ = 1. V = 0 as Q = 0, so δ = (1, 2, 4). γc = ¼.
    Δ_2 = 4, Δ_1 = 2 + ¼·4 = 3, Δ_0 = 1 + ¼·3 = 1¾. Pair (0, 0) is visited at 0 and 2: α (1¾ + 4); (1, 0): α·3.
    """
    one = online.Trajectories(
        states=[0, 1, 0],
        actions=[0, 0, 0],
        rewards=[1.0, 2.0, 4.0],
        next_states=[1, 0, 1],
        terminated=[False, False, True],
        first=[0, 3],
        mu_a=[1.0, 1.0, 1.0],
        num_states=2,
        num_actions=2,
        gamma=0.5,
    )
    pi = np.full((2, 2), 0.5)
    for way in WAYS:
        learned = online.evaluate(one, pi=pi, trace=ot.Retrace(1.0), step_size=0.1, **way)
        np.testing.assert_allclose(learned.q, [[0.575, 0], [0.3, 0]], rtol=1e-15)
        learned = online.evaluate(one, pi=pi, trace=ot.Retrace(1.0), step_size=0.1, visits="first", **way)
        np.testing.assert_allclose(learned.q, [[0.175, 0], [0.3, 0]], rtol=1e-15)
    # cut instead of ended: Q(1, ·) = 1 at the end is worth ½ γ (1 + 1) = ½ more, in δ_2
    cut = online.Trajectories(**(vars(one) | {"terminated": [False, False, False]}))
    q0 = np.array([[0.0, 0.0], [0.0, 0.0]])
    q0[1] = 1.0
    learned = online.evaluate(cut, pi=pi, trace="one_step", step_size=1.0, q0=q0)
    # δ_0 = 1 + ½, δ_1 = 2 − 1, δ_2 = 4 + ½
    np.testing.assert_allclose(learned.q, [[1.5 + 4.5, 0], [2.0, 1.0]], rtol=1e-15)


def test_a_trace_that_fades_away_takes_no_other_with_it() -> None:
    """c_1 c_2 = 1e-320, then ½ at every step: the first z reaches 0 in the middle, when later ones are alive."""
    length = 40
    pi = np.full((length + 1, 2), 0.5)
    pi[1], pi[2] = [1e-200, 1 - 1e-200], [1e-120, 1 - 1e-120]
    one = online.Trajectories(
        states=np.arange(length),
        actions=np.zeros(length, int),
        rewards=np.ones(length),
        next_states=np.arange(1, length + 1),
        terminated=np.arange(length) == length - 1,
        first=[0, length],
        num_states=length + 1,
        num_actions=2,
        gamma=0.9,
    )
    expected = eq7(np.zeros((length + 1, 2)), one, "tree_backup", 1.0, lambda q, x: pi[x], lambda x, a: 0.1, "every")
    for way in WAYS:
        learned = online.evaluate(one, pi=pi, trace=ot.TreeBackup(1.0), step_size=0.1, **way)
        np.testing.assert_allclose(learned.q, expected, rtol=TIGHT)


def test_one_over_visits_counts_this_trajectory(stored: online.Trajectories) -> None:
    seen = np.zeros((NUM_STATES, NUM_ACTIONS))
    expected = q_zero()
    size = online.StepSize(0.7, power=0.6, offset=2)
    for one in stored:
        np.add.at(seen, (one.states, one.actions), 1)
        counts = seen.copy()
        expected = eq7(
            expected,
            one,
            "retrace",
            0.8,
            TARGETS["fixed"][1],
            lambda x, a, n=counts: 0.7 / (n[x, a] + 2) ** 0.6,
            "every",
        )
    for way in WAYS:
        learned = online.evaluate(stored, pi=policy(1), trace=ot.Retrace(0.8), step_size=size, q0=q_zero(), **way)
        np.testing.assert_allclose(learned.q, expected, rtol=TIGHT)
        np.testing.assert_array_equal(learned.visits, seen)


# -- the three sources agree ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"view": "backward"}, {"update": "step"}, {"visits": "first"}], ids=str)
@pytest.mark.parametrize(
    "behaviour", [policy(2), online.EpsilonGreedy(online.linear(1.0, 0.1, 10))], ids=["fixed", "ε"]
)
def test_the_kernel_and_the_plain_learner_make_the_same_run(behaviour: object, options: dict) -> None:
    """Same seed, same random numbers: the environment inside the kernel is the one outside."""
    common = {"behaviour": behaviour, "target": online.Softmax(3.0), "num_episodes": 30, "max_steps": 25, "seed": 11}
    for trace in (ot.Retrace(0.9), ot.RBIS(0.9)):
        fast = online.control(small_mdp(ends=0.05), trace=trace, step_size=0.2, **common, **options)
        slow = online.control(small_mdp(ends=0.05), trace=trace, step_size=0.2, engine="python", **common, **options)
        np.testing.assert_allclose(fast.q, slow.q, rtol=1e-10, atol=1e-12)  # exp of two libraries, over 30 updates
        np.testing.assert_array_equal(fast.num_steps, slow.num_steps)
        np.testing.assert_allclose(fast.returns, slow.returns, rtol=1e-12)
        np.testing.assert_array_equal(fast.visits, slow.visits)


@pytest.mark.parametrize("options", [{}, {"view": "backward"}, {"update": "step"}, {"visits": "first"}], ids=str)
@pytest.mark.parametrize("ties", ["share", "first"])
@pytest.mark.parametrize("size", [online.DEFAULT_STEP_SIZE, online.StepSize(0.5, bounded=True)], ids=["default", "½"])
def test_ties_and_bounds_are_the_same_in_the_kernel_and_outside(
    size: online.StepSize, ties: str, options: dict
) -> None:
    """From 0, where all actions are as good as any, with pairs that a trajectory comes back to often."""
    common = {"behaviour": online.EpsilonGreedy(0.4, ties), "target": online.Greedy(ties), "step_size": size}
    common |= {"num_episodes": 25, "max_steps": 25, "seed": 4, **options}
    sparse = FiniteMDP(p=small_mdp().dense(), r=np.eye(NUM_STATES, NUM_ACTIONS), gamma=GAMMA)
    for trace in (ot.Retrace(0.9), ot.SoftWatkins(0.9, kappa=0.1), ot.RBIS(0.9)):
        fast = online.control(sparse, trace=trace, **common)
        slow = online.control(sparse, trace=trace, engine="python", **common)
        np.testing.assert_array_equal(fast.visits, slow.visits)
        np.testing.assert_allclose(fast.q, slow.q, rtol=1e-10, atol=1e-12)


def test_a_bounded_step_never_overshoots() -> None:
    """One state, one action, reward 1, no end: each of the m corrections of a trajectory would give Q = 1/(1 − γ)."""
    mdp = FiniteMDP(p=[[[1.0]]], r=[[1.0]], gamma=0.5)
    given = {"pi": [[1.0]], "trace": ot.Retrace(1.0), "num_episodes": 1, "max_steps": 50}
    free = online.evaluate(mdp, step_size=online.StepSize(power=0.6), **given).q[0, 0]
    bounded = online.evaluate(mdp, step_size=online.StepSize(power=0.6, bounded=True), **given).q[0, 0]
    assert free > 4
    assert bounded == pytest.approx(np.mean([2 - 2 * 0.5**left for left in range(1, 51)]))


@pytest.mark.parametrize("seed", range(2000, 2005))
def test_the_defaults_find_what_is_at_the_end_of_a_chain(seed: int) -> None:
    """From 0 everywhere, with nothing that says which way to go: 1,000 episodes, and the greedy policy is optimal."""
    mdp = ot.mdp.chain()
    learned = online.control(mdp, trace=ot.Retrace(0.9), seed=seed)
    ahead = np.flatnonzero(np.arange(mdp.num_states) >= np.argmax(mdp.start))
    assert (learned.q.argmax(1)[ahead] == 1).all()


@pytest.mark.parametrize("seed", range(2000, 2005))
def test_the_defaults_learn_to_cross_the_lake(seed: int) -> None:
    """Slippery, so that values are means of many outcomes: 20,000 episodes, within 2 % of the optimal value."""
    mdp = ot.mdp.from_gymnasium("FrozenLake-v1", gamma=0.99)
    given = {"trace": ot.Retrace(0.9), "behaviour": online.EpsilonGreedy(0.3)}
    greedy = policies.greedy(online.control(mdp, num_episodes=20_000, seed=seed, **given).q)
    reached = (greedy * ot.operators.q_pi(mdp, greedy)).sum(1) @ mdp.start
    assert reached > 0.98 * ot.operators.q_star(mdp).max(1) @ mdp.start


def test_replaying_what_was_collected_is_learning_from_it() -> None:
    mdp, pi, mu = small_mdp(), policy(1), policy(2)
    stored = online.collect(mdp, mu=mu, num_episodes=40, seed=5)
    direct = online.evaluate(mdp, pi=pi, mu=mu, trace=ot.Retrace(0.9), num_episodes=40, seed=5)
    replayed = online.evaluate(stored, pi=pi, trace=ot.Retrace(0.9))
    np.testing.assert_array_equal(direct.q, replayed.q)
    np.testing.assert_array_equal(direct.returns, replayed.returns)


def test_replay_orders(stored: online.Trajectories) -> None:
    thrice = online.evaluate(stored, pi=policy(1), trace="retrace", num_episodes=18)
    assert thrice.num_steps[-1] == 3 * stored.num_steps
    random = [
        online.evaluate(stored, pi=policy(1), trace="retrace", num_episodes=18, order="random", seed=s)
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(random[0].q, random[1].q)
    assert (random[0].q != random[2].q).any()


class Corridor(gymnasium.Env):
    """Three cells counted from 5; 8 goes right, 7 left; right of the last one it ends, with 1. Keeps a diary."""

    observation_space = gymnasium.spaces.Discrete(3, start=5)
    action_space = gymnasium.spaces.Discrete(2, start=7)

    def __init__(self, limit: int) -> None:
        self.limit, self.diary, self.seeds = limit, [], []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        self.seeds.append(seed)
        self.x, self.t = 0, 0
        return 5, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        x = self.x
        ended = action == 8 and x == 2
        self.x, self.t = min(max(x + (1 if action == 8 else -1), 0), 2), self.t + 1
        cut = self.t == self.limit and not ended
        self.diary.append((x, action - 7, float(ended), self.x, ended, ended or cut))
        return self.x + 5, float(ended), ended, cut, {}


def test_a_gymnasium_environment_step_by_step() -> None:
    env = Corridor(limit=6)
    mu = np.array([[0.4, 0.6]] * 3)
    pi = np.array([[0.1, 0.9]] * 3)
    learned = online.evaluate(
        env, pi=pi, mu=mu, trace=ot.Retrace(0.8), gamma=0.9, step_size=0.2, num_episodes=20, seed=4
    )
    assert env.seeds == [4] + [None] * 19
    x, a, r, x_next, ended, last = (np.array(column) for column in zip(*env.diary, strict=True))
    assert ended.any()
    assert (last & ~ended).any()
    stored = online.Trajectories(
        states=x,
        actions=a,
        rewards=r,
        next_states=x_next,
        terminated=ended,
        first=np.concatenate([[0], np.flatnonzero(last) + 1]),
        mu_a=mu[x, a],
        num_states=3,
        num_actions=2,
        gamma=0.9,
    )
    expected = np.zeros((3, 2))
    for one in stored:
        expected = eq7(expected, one, "retrace", 0.8, lambda q, x: pi[x], lambda x, a: 0.2, "every")
    np.testing.assert_allclose(learned.q, expected, rtol=TIGHT)


def test_frozen_lake_is_learned() -> None:
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    learned = online.control(
        env, trace=ot.Watkins(0.9), gamma=0.9, behaviour=online.EpsilonGreedy(0.5), num_episodes=1000, step_size=0.5
    )
    assert learned.q[0].max() == pytest.approx(0.9**5, rel=1e-3)  # six steps to the goal


# -- the environment inside the kernel -----------------------------------------------------------------------


def test_the_stream_is_xoshiro256_plus_plus() -> None:
    """Its first words from the state (1, 2, 3, 4), worked out from the definition; and the kernel's are the same."""
    from offtrace.online.simulate import uniform

    stream = Stream(0)
    stream.words = [1, 2, 3, 4]
    words = np.array([1, 2, 3, 4], np.uint64)
    # rotl(1 + 4, 23) + 1 = 5·2²³ + 1, of which the lowest 11 bits are dropped
    assert stream.uniform() == ((5 * 2**23 + 1) >> 11) * 2.0**-53
    uniform(words)
    np.testing.assert_array_equal(words, np.array(stream.words, np.uint64))
    stream, words = Stream(9), state(9)
    many = np.array([stream.uniform() for _ in range(2000)])
    np.testing.assert_array_equal(many, [uniform(words) for _ in range(2000)])
    assert abs(many.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 2000)


def test_transitions_have_their_probabilities() -> None:
    """Rows searched one by one and by halves, a transition of probability 0, and ends of a share."""
    rng = np.random.default_rng(0)
    p = np.zeros((20, 2, 20))
    p[:, 0] = rng.dirichlet(np.ones(20), size=20)
    p[:, 1, :3] = [0.2, 0.0, 0.8]
    ends = np.full((20, 2, 20), 0.3)
    mdp = FiniteMDP(p=p, r=np.zeros((20, 2)), gamma=0.9, terminates=ends, start=np.full(20, 1 / 20))
    mu = np.tile([0.25, 0.75], (20, 1))
    stored = online.collect(mdp, mu=mu, num_episodes=40_000, seed=1)
    counts = np.zeros(p.shape)
    np.add.at(counts, (stored.states, stored.actions, stored.next_states), 1)
    assert counts[:, 1, 1].sum() == 0
    rows = counts.sum(-1, keepdims=True)
    off = (counts - rows * p) / np.sqrt(np.maximum(rows * p * (1 - p), 1e-9))
    assert abs(off[rows[..., 0] * p.min(-1) >= 0]).max() < 5.5  # 880 cells: beyond 5.5 σ once in 30,000 seeds
    starts = np.bincount(stored.states[stored.first[:-1]], minlength=20)
    assert abs(starts - 2000).max() < 5 * np.sqrt(2000)
    assert abs(stored.terminated.mean() - 0.3) < 5 * np.sqrt(0.21 / stored.num_steps)
    assert abs((stored.actions == 1).mean() - 0.75) < 5 * np.sqrt(0.19 / stored.num_steps)
    np.testing.assert_array_equal(stored.mu_a, mu[stored.states, stored.actions])


def test_max_steps_cuts_and_keeps_the_value() -> None:
    loop = FiniteMDP(p=[[[1.0]]], r=[[1.0]], gamma=0.5)
    learned = online.evaluate(loop, pi=[[1.0]], trace="one_step", num_episodes=200, max_steps=7)
    assert learned.num_steps[-1] == 1400
    assert learned.q[0, 0] == pytest.approx(2.0, rel=0.1)  # 1/visits of a bootstrapped value is slow
    stored = online.collect(loop, mu=[[1.0]], num_episodes=2, max_steps=7)
    assert not stored.terminated.any()


# -- identities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["trajectory", "step"])
def test_lambda_zero_is_one_algorithm(update: str) -> None:
    """Every trace of the table is λ times something, or its β has a factor λ: one-step, bit for bit."""
    grid = online.sweep(
        small_mdp(),
        traces=list(ot.TRACES),
        lambdas=[0.0],
        seeds=[1, 2],
        target=online.EpsilonGreedy(0.2),
        behaviour=online.Softmax(1.0),
        num_episodes=50,
        update=update,
        keep_q=True,
    )
    assert grid.q is not None
    for other in grid.q[1:]:
        np.testing.assert_array_equal(other, grid.q[0])
    assert (grid.q[0] != 0).any()


def test_on_policy_retrace_is_q_lambda_and_greedy_retrace_is_watkins() -> None:
    mdp, pi = small_mdp(), policy(1)
    q0 = q_zero()  # no ties
    on = [online.evaluate(mdp, pi=pi, trace=trace(0.9), num_episodes=50).q for trace in (ot.Retrace, ot.QLambda)]
    np.testing.assert_array_equal(*on)
    greedy = [
        online.control(mdp, trace=trace(0.9), target=online.Greedy(), num_episodes=200, q0=q0, step_size=0.1).q
        for trace in (ot.Retrace, ot.Watkins)
    ]
    np.testing.assert_array_equal(*greedy)


@pytest.mark.parametrize("name", ["retrace", "q_lambda", "importance_sampling", "tree_backup", "rbis"])
def test_on_policy_lambda_one_is_monte_carlo_for_a_deterministic_policy(name: str) -> None:
    """With α = 1/visits, Q is the mean of the returns that followed each visit; whatever Q_0 was."""
    mdp = small_mdp()
    mu = np.eye(NUM_ACTIONS)[np.arange(NUM_STATES) % NUM_ACTIONS]
    stored = online.collect(mdp, mu=mu, num_episodes=60, seed=2, max_steps=10_000)
    assert stored.terminated[stored.first[1:] - 1].all()
    returns: dict[tuple[int, int], list[float]] = {}
    for one in stored:
        g = 0.0
        for t in reversed(range(one.num_steps)):
            g = float(one.rewards[t]) + GAMMA * g
            returns.setdefault((int(one.states[t]), int(one.actions[t])), []).append(g)
    for way in WAYS:
        learned = online.evaluate(
            mdp,
            pi=mu,
            trace=ot.as_trace(name, lambda_=1.0),
            step_size=online.ONE_OVER_VISITS,
            num_episodes=60,
            seed=2,
            max_steps=10_000,
            q0=q_zero(),
            **way,
        )
        for pair, values in returns.items():
            assert learned.q[pair] == pytest.approx(np.mean(values), rel=1e-11, abs=1e-12)
    np.testing.assert_array_equal(learned.q[learned.visits == 0], q_zero()[learned.visits == 0])


# -- traces and policies of one's own ------------------------------------------------------------------------


@dataclass(frozen=True)
class Halved(ot.Trace):
    """c = λ/2 min(1, π/μ)."""

    name = "halved"
    needs_mu = True
    safe = True

    def factor(self, likelihoods: Likelihoods, **_: object) -> np.ndarray:
        return 0.5 * likelihoods.clipped_ratio()


@dataclass(frozen=True)
class HalvedAware(ot.TrajectoryAware):
    """The same, said as a trajectory-aware trace."""

    name = "halved_aware"
    safe = True

    def next_beta(self, xp, reach):
        return reach.beta * reach.lambda_ * 0.5 * xp.where(reach.ratio < 1, reach.ratio, 1)


class Stranger:
    """Called like a trace, and related to none."""

    def __call__(self, *, pi_a: np.ndarray, mu_a: np.ndarray) -> np.ndarray:
        return 0.45 * np.minimum(1, pi_a / mu_a)


@dataclass(frozen=True)
class Timid(ot.Retrace):
    """A child of Retrace with its own coefficients is not Retrace."""

    def factor(self, likelihoods: Likelihoods, **_: object) -> np.ndarray:
        return 0.5 * likelihoods.clipped_ratio()


@pytest.mark.parametrize(
    "trace", [Halved(0.9), HalvedAware(0.9), Stranger(), Timid(0.9)], ids=lambda t: type(t).__name__
)
def test_a_trace_of_ones_own(stored: online.Trajectories, trace: object) -> None:
    """c = 0.45 min(1, ρ) is Retrace(0.45), said in four ways: from tables, and step by step."""
    mdp, pi, mu = small_mdp(), policy(1), policy(2)
    for source in (mdp, stored):
        arguments = {"pi": pi, "mu": mu, "num_episodes": 6, "step_size": 0.1, "seed": 3, "max_steps": 14}
        expected = online.evaluate(source, trace=ot.Retrace(0.45), **arguments)
        for update in ("trajectory", "step"):
            expected = online.evaluate(source, trace=ot.Retrace(0.45), update=update, **arguments)
            learned = online.evaluate(source, trace=trace, update=update, **arguments)
            np.testing.assert_allclose(learned.q, expected.q, rtol=TIGHT, atol=TIGHT)
    expected = online.control(mdp, trace=ot.Retrace(0.45), num_episodes=20)
    learned = online.control(mdp, trace=trace, num_episodes=20)
    np.testing.assert_allclose(learned.q, expected.q, rtol=TIGHT, atol=TIGHT)


def test_a_trace_of_ones_own_is_compiled_where_it_can_be() -> None:
    arguments = {"pi": policy(1), "mu": policy(2), "engine": "compiled", "num_episodes": 3}
    online.evaluate(small_mdp(), trace=Halved(0.9), **arguments)
    with pytest.raises(ValueError, match=r"`engine` must be 'auto' or 'python' for HalvedAware"):
        online.evaluate(small_mdp(), trace=HalvedAware(0.9), **arguments)


def test_the_traces_of_the_paper_are_compiled() -> None:
    """A trace without a formula for kernels works, too."""
    from offtrace.traces.formulas import KINDS

    paper = {ot.ImportanceSampling, ot.QLambda, ot.TreeBackup, ot.Retrace, ot.RecursiveRetrace}
    assert paper <= set(KINDS) <= set(ot.TRACES.values())


def test_rows_are_those_of_the_policies() -> None:
    q, mu = q_zero(), policy(5)
    for x in range(NUM_STATES):
        pairs = [
            (online.EpsilonGreedy(0.3).row(q[x], x, 0, 0.3), policies.epsilon_greedy(q[x], 0.3)),
            (online.Greedy().row(q[x], x, 0, 0.0), policies.greedy(q[x])),
            (online.EpsilonGreedy(0.3).row(q[0] * 0, 0, 0, 0.3), np.full(NUM_ACTIONS, 1 / NUM_ACTIONS)),
            (online.Greedy("first").row(q[0] * 0, 0, 0, 0.0), np.eye(NUM_ACTIONS)[0]),
            (online.Softmax(2.0).row(q[x], x, 0, 2.0), policies.softmax(q[x], 2.0)),
            (online.Mixture(mu, 0.3).row(q[x], x, 0, 0.3), policies.mixture(q[x], mu[x], 0.3)),
        ]
        for row, expected in pairs:
            np.testing.assert_allclose(row, expected, rtol=1e-15, atol=1e-16)


def test_policies_of_ones_own() -> None:
    mdp = small_mdp()
    arguments = {"trace": ot.Retrace(0.9), "num_episodes": 20, "step_size": 0.1}

    def mine(q: np.ndarray, x: int, k: int) -> np.ndarray:
        return policies.epsilon_greedy(q, 1 / (k + 1), ties="share")

    known = online.control(mdp, behaviour=online.EpsilonGreedy(lambda k: 1 / (k + 1)), **arguments)
    own = online.control(mdp, behaviour=mine, **arguments)
    np.testing.assert_allclose(own.q, known.q, rtol=TIGHT)
    with pytest.raises(ValueError, match=r"`behaviour` must have rows that sum to 1; got 0.5"):
        online.control(mdp, behaviour=lambda q, x, k: [0.5, 0.0, 0.0], **arguments)


# -- many runs -----------------------------------------------------------------------------------------------


def grid_of(num_threads: int | None, **options: object) -> online.SweepResult:
    return online.sweep(
        small_mdp(),
        traces=["retrace", ot.TruncatedIS, ot.QSigma(sigma=0.3)],
        lambdas=[0.5, 1.0],
        step_sizes=[0.1, online.StepSize(power=0.8)],
        seeds=[3, 1, 2],
        target=policy(1),
        behaviour=policy(2),
        num_episodes=25,
        record_every=10,
        truth=np.zeros((NUM_STATES, NUM_ACTIONS)),
        keep_q=True,
        num_threads=num_threads,
        **options,
    )


def test_a_run_depends_on_its_seed_alone() -> None:
    one = grid_of(1)
    for threads in (2, 5, None):
        other = grid_of(threads)
        for name in ("q", "num_steps", "returns", "max_error", "rms_error"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    alone = online.evaluate(
        small_mdp(),
        pi=policy(1),
        mu=policy(2),
        trace=ot.QSigma(1.0, sigma=0.3),
        step_size=0.1,
        seed=2,
        num_episodes=25,
        record_every=10,
        truth=np.zeros((NUM_STATES, NUM_ACTIONS)),
    )
    part = one.select(trace="q_sigma", lambda_=1.0, step_size=0.1, seed=2)
    np.testing.assert_array_equal(part.q, alone.q)
    np.testing.assert_array_equal(part.rms_error, alone.rms_error)
    np.testing.assert_array_equal(one.num_episodes, [0, 10, 20, 25])
    assert (one.num_steps[0, 0, 0, 0] == one.num_steps[1, 1, 1, 0]).all()  # same seed, same trajectories
    assert (one.num_steps[0, 0, 0, 0] != one.num_steps[0, 0, 0, 1]).any()


def test_curves() -> None:
    learned = online.control(
        small_mdp(), trace="retrace", num_episodes=25, record_every=10, truth=np.full((NUM_STATES, NUM_ACTIONS), 2.0)
    )
    assert learned.max_error is not None
    assert learned.rms_error is not None
    assert learned.max_error[0] == learned.rms_error[0] == 2.0
    reachable = small_mdp().dense().sum((0, 1)) > 0
    assert reachable.all()
    error = abs(learned.q - 2.0)
    assert learned.max_error[-1] == error.max()
    assert learned.rms_error[-1] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-14)
    assert set(learned.columns()) == {"num_episodes", "num_steps", "returns", "max_error", "rms_error"}
    stored = online.collect(small_mdp(), mu=policy(2), num_episodes=25, seed=0)
    learned = online.evaluate(
        small_mdp(), pi=policy(1), mu=policy(2), trace="retrace", num_episodes=25, record_every=10
    )
    g = [sum(GAMMA**t * r for t, r in enumerate(one.rewards)) for one in stored]
    expected = [np.mean(g[:10]), np.mean(g[10:20]), np.mean(g[20:])]
    assert np.isnan(learned.returns[0])
    np.testing.assert_allclose(learned.returns[1:], expected, rtol=1e-12)
    assert learned.max_error is None


def test_errors_are_over_what_can_be_visited() -> None:
    """State 2 only ends episodes, and action 1 is never taken: neither can be learned."""
    p = np.zeros((3, 2, 3))
    p[0, :, 1] = p[1, :, 2] = p[2, :, 2] = 1
    mdp = FiniteMDP(p=p, r=np.ones((3, 2)), gamma=1.0, terminates=[False, False, True], start=[1, 0, 0])
    truth = np.array([[2.0, 2.0], [1.0, 1.0], [99.0, 99.0]])
    mu = np.tile([1.0, 0.0], (3, 1))
    learned = online.evaluate(mdp, pi=mu, trace="retrace", num_episodes=5, truth=truth)
    assert learned.max_error is not None
    assert learned.max_error[-1] == 0
    weights = np.zeros((3, 2))
    weights[2, 0] = 1
    learned = online.evaluate(mdp, pi=mu, trace="retrace", num_episodes=5, truth=truth, weights=weights)
    assert learned.max_error is not None
    assert learned.max_error[-1] == 99


def test_long_form() -> None:
    grid = grid_of(None)
    columns = grid.columns()
    assert {len(column) for column in columns.values()} == {3 * 2 * 2 * 3 * 4}
    assert list(columns)[:5] == ["trace", "lambda_", "step_size", "seed", "num_episodes"]
    place = (columns["trace"] == "truncated_is") & (columns["lambda_"] == 0.5) & (columns["seed"] == 1)
    place &= (columns["step_size"] == "1/N^0.8") & (columns["num_episodes"] == 20)
    assert columns["rms_error"][place].tolist() == [grid.rms_error[1, 0, 1, 1, 2]]
    two = online.sweep(small_mdp(), traces=[ot.QSigma(sigma=0.1), ot.QSigma(sigma=0.2)], num_episodes=1)
    assert two.axes["trace"] == ("QSigma(lambda_=1.0, sigma=0.1)", "QSigma(lambda_=1.0, sigma=0.2)")
    with pytest.raises(ValueError, match="unknown axis `lambda`; this sweep has trace, lambda_"):
        grid.select(**{"lambda": 1})
    with pytest.raises(ValueError, match=r"`seed` must be one of \(3, 1, 2\); got 7"):
        grid.select(seed=7)


def test_a_sweep_with_a_trace_of_ones_own() -> None:
    grid = online.sweep(
        small_mdp(), traces=[ot.Retrace, Halved], lambdas=[0.5, 1.0], num_episodes=10, seeds=[0, 1], keep_q=True
    )
    np.testing.assert_allclose(grid.q[0, 0], grid.q[1, 1], rtol=TIGHT)  # Retrace(½) is Halved(1)


def test_divergence_is_said(stored: online.Trajectories) -> None:
    for engine in ("auto", "python"):
        with np.errstate(over="ignore", invalid="ignore"):
            learned = online.evaluate(
                small_mdp(),
                pi=policy(1),
                mu=policy(2),
                trace=ot.QLambda(1.0),
                step_size=1e6,
                num_episodes=200,
                truth=np.zeros((NUM_STATES, NUM_ACTIONS)),
                engine=engine,
            )
        assert learned.diverged_at is not None
        assert 0 < learned.diverged_at < 200
        assert learned.max_error is not None
        assert np.isinf(learned.max_error[-1])
        assert np.isfinite(learned.max_error[learned.num_episodes <= learned.diverged_at - 5]).all()


def test_a_bar_where_it_takes_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(runner, "SECONDS_BEFORE_BAR", -1.0)
    with_bar = grid_of(2, progress=True)
    assert "trajectories" in capsys.readouterr().out
    np.testing.assert_array_equal(with_bar.q, grid_of(2).q)
    assert capsys.readouterr().out == ""


def test_a_failure_or_an_interruption_stops_every_run() -> None:
    started, stopped = threading.Event(), []

    def patient(going: Callable[[int], bool]) -> None:
        started.set()
        while going(0):
            pass
        stopped.append(True)

    def failing(going: Callable[[int], bool]) -> None:
        started.wait()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_all([patient, failing], length=1, num_threads=2, progress=False)
    assert stopped == [True]


# -- the doors -----------------------------------------------------------------------------------------------

MDP, PI, MU = small_mdp(), policy(1), policy(2)
NO_MU = MU.copy()
NO_MU[1] = [0.0, 0.5, 0.5]
ALONE = MU.copy()
ALONE[3] = [0.0, 1.0, 0.0]

REFUSALS = {
    "environment": (lambda: online.control("chain", trace="retrace"), "the first argument must be a FiniteMDP"),
    "coverage": (
        lambda: online.evaluate(MDP, pi=PI, mu=NO_MU, trace="retrace"),
        r"`mu` must be above 0 wherever π is; got μ = 0, π = 0.\d+ at \(x, a\) = \(1, 0\).* mix a little",
    ),
    "policy": (
        lambda: online.evaluate(MDP, pi=[[1.0]], trace="retrace"),
        r"`pi` must have shape \(X, A\) = \(5, 3\)",
    ),
    "sums": (lambda: online.evaluate(MDP, pi=PI * 2, trace="retrace"), "`pi` must have rows that sum to 1|in .0, 1."),
    "sequence": (lambda: online.control(MDP, trace="retrace", target=0.1), r"`target` must be a policy \(X, A\), or"),
    "mixture": (lambda: online.Mixture(ALONE, 0.1), r"`mu` must have mass on two actions or more; .* at x = 3"),
    "epsilon": (
        lambda: online.control(
            MDP, trace="retrace", behaviour=online.EpsilonGreedy(lambda k: 0.5 + k), num_episodes=3
        ),
        r"`epsilon` must be in \[0, 1\]; got 1.5 at k = 1",
    ),
    "schedule": (
        lambda: online.control(MDP, trace="retrace", target=online.Softmax(np.ones(4)), num_episodes=3),
        r"`beta` must have one value per trajectory, \(3,\); got shape \(4,\)",
    ),
    "trace": (lambda: online.control(MDP, trace="retrase"), "Did you mean 'retrace'"),
    "class": (lambda: online.control(MDP, trace=int), "`trace` must be a trace such as"),
    "lambda": (
        lambda: online.control(MDP, trace=ot.Retrace([0.5, 0.6])),
        r"`lambda_` must be one number here; .*\(2,\)",
    ),
    "episodes": (
        lambda: online.control(MDP, trace="retrace", num_episodes=-1),
        "`num_episodes` must be a whole number",
    ),
    "none": (
        lambda: online.control(MDP, trace="retrace", num_episodes=0),
        "`num_episodes` must be .* at least 1; got 0",
    ),
    "seed": (lambda: online.control(MDP, trace="retrace", seed=0.5), "`seed` must be a whole number of at least 0"),
    "option": (lambda: online.control(MDP, trace="retrace", max_step=5), "unexpected keyword argument 'max_step'"),
    "update": (
        lambda: online.control(MDP, trace="retrace", update="episode"),
        "`update` must be one of trajectory, step",
    ),
    "q0": (lambda: online.control(MDP, trace="retrace", q0=[1.0]), r"`q0` must be a number or have shape \(X, A\)"),
    "finite": (lambda: online.control(MDP, trace="retrace", q0=np.inf), r"`q0` must be finite; got inf at \(x, a\)"),
    "gamma": (lambda: online.control(Corridor(3), trace="retrace"), "`gamma` must be given with a Gymnasium"),
    "space": (
        lambda: online.control(gymnasium.make("CartPole-v1"), trace="retrace", gamma=0.9),
        "`observation_space` of the environment must be Discrete",
    ),
    "step size": (lambda: online.control(MDP, trace="retrace", step_size="big"), "`step_size` must be a number or"),
    "power": (lambda: online.StepSize(power=-1), "`power` of StepSize must be a finite number of at least 0; got -1"),
    "scale": (lambda: online.StepSize(-0.1), "`scale` must be a finite number of at least 0; got -0.1"),
    "seeds": (lambda: online.sweep(MDP, traces=["retrace"], seeds=[]), "`seeds` must not be empty"),
    "traces": (
        lambda: online.sweep(MDP, traces=[3]),
        "`trace` must be a trace such as .*, or a function that returns c; got 3",
    ),
    "weights": (
        lambda: online.control(MDP, trace="retrace", weights=0.0),
        "`weights` must be at least 0 everywhere and above",
    ),
    "collect": (lambda: online.collect(Corridor(3), mu=MU, num_episodes=1), "`mdp` must be a FiniteMDP"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    call, text = REFUSALS[name]
    with pytest.raises((ValueError, TypeError), match=text):
        call()


STEPS = {
    "states": [0, 1, 0],
    "actions": [0, 1, 0],
    "rewards": [0.0, 0.0, 1.0],
    "next_states": [1, 2, 1],
    "terminated": [False, True, False],
    "first": [0, 2, 3],
    "mu_a": [0.5, 0.5, 0.5],
    "num_states": 3,
    "num_actions": 2,
    "gamma": 0.9,
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"states": [0, 1, 3]}, r"`states` must be in \[0, 3\); got 3 at step 2"),
        ({"actions": [0, 2, 0]}, r"`actions` must be in \[0, 2\); got 2 at step 1"),
        (
            {"next_states": [2, 2, 1]},
            "`next_states` must be the state of the next step of the same trajectory; got 2 at step 0",
        ),
        ({"terminated": [True, True, False]}, "`terminated` must be False before the last step .* at step 0"),
        ({"first": [0, 2]}, "`first` must increase from 0 to the number of steps, 3"),
        ({"first": [0, 2, 2, 3]}, "`first` must increase from 0"),
        ({"mu_a": [0.5, 0.0, 0.5]}, r"`mu_a` must be a probability in \(0, 1\]; got 0.0 at step 1.* can have had 0"),
        ({"rewards": [0.0, np.nan, 0.0]}, "`rewards` must be finite; got nan at step 1"),
        ({"rewards": [0.0, 0.0]}, r"`rewards` must have one entry per step, \(3,\); got shape \(2,\)"),
        ({"states": [0.0, 1.0, 0.0]}, "`states` must be whole numbers; got float64"),
        ({"gamma": 1.5}, r"`gamma` must be in \[0, 1\]"),
    ],
)
def test_stored_trajectories_are_checked(change: dict, text: str) -> None:
    online.Trajectories(**STEPS)
    with pytest.raises((ValueError, TypeError), match=text):
        online.Trajectories(**(STEPS | change))


def test_mu_is_asked_for_only_where_it_is_read() -> None:
    stored = online.Trajectories(**(STEPS | {"mu_a": None}))
    pi = np.full((3, 2), 0.5)
    for trace in (ot.TreeBackup(0.9), ot.QLambda(0.9), ot.Watkins(0.9), ot.OneStep()):
        for way in WAYS:
            assert np.isfinite(online.evaluate(stored, pi=pi, trace=trace, **way).q).all()
    with pytest.raises(TypeError, match=r"retrace needs μ\(a_t\|x_t\): the trajectories must have `mu_a`"):
        online.evaluate(stored, pi=pi, trace=ot.Retrace(0.9))


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    code = "import sys, offtrace.online; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numba", "rich", "gymnasium", "scipy"} & {name.split(".")[0] for name in loaded}


def test_all_ways_of_asking_are_covered_by_the_oracle() -> None:
    """The oracle has a formula of its own for every trace of the table."""
    assert set(itertools.chain(COEFFICIENT, BETA)) == set(ot.TRACES)
