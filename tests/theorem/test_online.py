"""Theorem 3: what Eq. 7 converges to, and where it does not; on MDPs whose Q* and Q^π are known from linear algebra.

Every bound is on the largest error over the pairs, as a share of the largest |Q|, and holds for each of the seeds.
"""

import numpy as np
import pytest

import offtrace as ot
from offtrace import online
from offtrace.mdp import FiniteMDP
from offtrace.mdp.grids import grid_world
from offtrace.mdp.textbook import chain, garnet

SEEDS = range(3)
ROBBINS_MONRO = online.StepSize(power=0.7)
"""Σ α = ∞ and Σ α² < ∞ wherever a pair is visited for ever."""


# -- the truth, by NumPy alone -------------------------------------------------------------------------------


def going(mdp: FiniteMDP) -> np.ndarray:
    """(X·A, X) the transitions that do not end."""
    p = np.zeros((mdp.num_states * mdp.num_actions, mdp.num_states))
    share = 1.0 if mdp.ends is None else 1 - mdp.ends
    np.add.at(p, (np.repeat(np.arange(len(p)), np.diff(mdp.first)), mdp.successor), mdp.probability * share)
    return p


def pairs(mdp: FiniteMDP, policy: np.ndarray) -> np.ndarray:
    """P^π over pairs, (X·A, X·A)."""
    return (going(mdp)[:, :, None] * policy[None]).reshape(policy.size, policy.size)


def q_pi(mdp: FiniteMDP, pi: np.ndarray) -> np.ndarray:
    matrix = np.eye(pi.size) - mdp.gamma * pairs(mdp, pi)
    return np.linalg.solve(matrix, mdp.r.ravel()).reshape(mdp.shape)


def q_star(mdp: FiniteMDP) -> np.ndarray:
    """By policy iteration, until nothing changes."""
    best = np.zeros(mdp.num_states, int)
    while True:
        q = q_pi(mdp, np.eye(mdp.num_actions)[best])
        better = q.argmax(1)
        same = np.isclose(q[np.arange(len(best)), best], q.max(1), rtol=1e-12, atol=1e-12)
        if same.all():
            return q
        best = np.where(same, best, better)


# -- control -------------------------------------------------------------------------------------------------

MDPS = {
    "chain": (chain(6, gamma=0.9, slip=0.1, left_reward=0.3), 60_000, 1_000),
    "grid": (grid_world((3, 4), gamma=0.9, slip=0.2, step_reward=-0.1), 60_000, 1_000),
    "garnet": (garnet(10, 3, 3, gamma=0.8, seed=1), 60_000, 20),
}
"""Two that end, and one that never does: with the number of trajectories, and where they are cut."""

BOUND = 0.05


def greedier(k: int) -> float:
    return online.decaying(0.3, 300)(k)


def uniform(mdp: FiniteMDP) -> np.ndarray:
    return np.full(mdp.shape, 1 / mdp.num_actions)


SETTINGS = {
    # the behaviour's ε stays 0.3 for ever: no GLIE
    "Watkins": lambda mdp: ("watkins", online.EpsilonGreedy(0.3), online.Greedy()),
    "Retrace, greedy target": lambda mdp: ("retrace", online.EpsilonGreedy(0.3), online.Greedy()),
    "Retrace, ε → 0": lambda mdp: ("retrace", online.EpsilonGreedy(0.3), online.EpsilonGreedy(greedier)),
    "Retrace, Eq. 8": lambda mdp: ("retrace", online.Mixture(uniform(mdp), 0.4), online.EpsilonGreedy(greedier)),
    "tree backup, ε → 0": lambda mdp: ("tree_backup", online.EpsilonGreedy(0.3), online.EpsilonGreedy(greedier)),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MDPS)
def test_theorem_3(name: str, setting: str) -> None:
    """Q_k → Q*, with λ = 1, from Q_0 = 0, which need not satisfy T^{π_0} Q_0 ≥ Q_0."""
    mdp, num_episodes, max_steps = MDPS[name]
    trace, behaviour, target = SETTINGS[setting](mdp)
    truth = q_star(mdp)
    runs = online.sweep(
        mdp,
        traces=[trace],
        lambdas=[1.0],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        behaviour=behaviour,
        target=target,
        num_episodes=num_episodes,
        max_steps=max_steps,
        truth=truth,
    )
    assert runs.max_error is not None
    error = runs.max_error[0, 0, 0] / abs(truth).max()
    assert (error[:, -1] < BOUND).all(), error[:, -1]
    assert error[:, -1].mean() < error[:, 5].mean() / 2  # and still falling


@pytest.mark.parametrize("name", MDPS)
def test_softmax_targets_are_reported(name: str, record_property: pytest.FixtureRequest) -> None:
    """Lemma 3 is false as stated, so nothing is promised; the run is finite, and its error goes into the report."""
    mdp, num_episodes, max_steps = MDPS[name]
    truth = q_star(mdp)
    runs = online.sweep(
        mdp,
        traces=["retrace"],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        behaviour=online.EpsilonGreedy(0.3),
        target=online.Softmax(lambda k: 1 + k / 100),
        num_episodes=num_episodes,
        max_steps=max_steps,
        truth=truth,
    )
    assert runs.max_error is not None
    error = runs.max_error[0, 0, 0, :, -1] / abs(truth).max()
    assert np.isfinite(error).all()
    record_property("softmax_error", float(error.max()))


def test_old_trajectories_are_enough() -> None:
    """Replay, the paper's use: whole trajectories of policies long gone, each with the μ it was drawn with.

    Six collections, each ε-greedy in what the one before had taught; then a new Q, from what was stored alone.
    """
    mdp, _, max_steps = MDPS["grid"]
    truth = q_star(mdp)
    q, parts = np.zeros(mdp.shape), []
    for k in range(6):
        acting = online.EpsilonGreedy(1.0 if k == 0 else 0.6)
        parts.append(online.collect(mdp, mu=acting, q=q, num_episodes=2_000, seed=k, max_steps=max_steps))
        q = online.control(parts[-1], trace=ot.Retrace(1.0), q0=q, step_size=0.02).q
    memory = online.Trajectories.joined(parts)
    runs = online.sweep(
        memory,
        traces=["retrace", "tree_backup"],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        target=online.Greedy(),
        num_episodes=50_000,
        order="random",
        truth=truth,
        weights=memory_weights(memory),
    )
    assert runs.max_error is not None
    error = runs.max_error[:, 0, 0, :, -1] / abs(truth).max()
    assert (error < 2 * BOUND).all(), error  # 12,000 trajectories say no more than that about Q*


def memory_weights(memory: online.Trajectories) -> np.ndarray:
    """1 for the pairs that were tried."""
    weights = np.zeros(memory.shape)
    weights[memory.states, memory.actions] = 1
    return weights


# -- evaluation ----------------------------------------------------------------------------------------------

LEFT_CHAIN = chain(6, gamma=0.99, slip=0.02, ends="left", left_reward=1.0)
"""The way out is on the left; π goes right, μ both ways alike."""
PI, MU = np.tile([0.02, 0.98], (6, 1)), np.full((6, 2), 0.5)


def test_far_off_policy_retrace_and_tree_backup_evaluate_and_q_lambda_diverges() -> None:
    """Same seeds, so the same 20,000 trajectories, λ = 1, and step sizes by the book for all three."""
    truth = q_pi(LEFT_CHAIN, PI)
    runs = online.sweep(
        LEFT_CHAIN,
        traces=["retrace", "tree_backup", "q_lambda"],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        target=PI,
        behaviour=MU,
        num_episodes=20_000,
        max_steps=10_000,
        truth=truth,
    )
    assert runs.max_error is not None
    np.testing.assert_array_equal(runs.num_steps[0], runs.num_steps[2])
    final = runs.max_error[:, 0, 0, :, -1] / abs(truth).max()
    assert (final[:2] < 0.02).all(), final
    assert (final[2] > 1e3).all(), final


def test_q_lambda_had_to_diverge_there() -> None:
    """Its operator's spectral radius exceeds 1, and so does the mean update, weighted by how often pairs are visited.

    R Q − Q^π = (I − γ P^μ)^{-1} γ (P^π − P^μ) (Q − Q^π), and the mean of Eq. 7 is α D (R Q − Q), D the mean visits.
    """
    gamma, p_pi, p_mu = LEFT_CHAIN.gamma, pairs(LEFT_CHAIN, PI), pairs(LEFT_CHAIN, MU)
    one = np.eye(len(p_mu))
    contraction = np.linalg.solve(one - gamma * p_mu, gamma * (p_pi - p_mu))
    assert abs(np.linalg.eigvals(contraction)).max() > 1.5
    visits = np.linalg.solve((one - p_mu).T, (LEFT_CHAIN.start[:, None] * MU).ravel())
    mean_update = visits[:, None] * (contraction - one)
    assert np.linalg.eigvals(mean_update).real.max() > 0  # no step size, however small, helps
    clipped = pairs(LEFT_CHAIN, np.minimum(PI, MU))  # Retrace, the same computation
    retrace = np.linalg.solve(one - gamma * clipped, gamma * (p_pi - clipped))
    assert abs(np.linalg.eigvals(retrace)).max() < gamma
    assert np.linalg.eigvals(visits[:, None] * (retrace - one)).real.max() < 0


def test_q_lambda_can_diverge_online_where_its_operator_does_not() -> None:
    """One state, two actions, π takes the first, μ the first three times in four; rewards are 0, so Q^π = 0.

    R − Q^π is nilpotent: two applications of the exact operator give Q^π. But a trajectory updates the pairs as often
    as it visits them, and the mean update, weighted so, is unstable for γ > 8/9. For Retrace, a contraction in the
    maximum norm, the weights do not matter.
    """
    mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=np.zeros((1, 2)), gamma=0.99, terminates=np.full((1, 2), 0.02))
    pi, mu = np.array([[1.0, 0.0]]), np.array([[0.75, 0.25]])
    p_pi, p_mu, one = pairs(mdp, pi), pairs(mdp, mu), np.eye(2)
    contraction = np.linalg.solve(one - mdp.gamma * p_mu, mdp.gamma * (p_pi - p_mu))
    np.testing.assert_allclose(contraction @ contraction, 0, atol=1e-9)
    assert np.linalg.eigvals(mu.ravel()[:, None] * (contraction - one)).real.max() > 0
    runs = online.sweep(
        mdp,
        traces=["retrace", "q_lambda"],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        target=pi,
        behaviour=mu,
        q0=[[1.0, 0.0]],
        num_episodes=5_000,
        truth=np.zeros((1, 2)),
    )
    assert runs.max_error is not None
    final = runs.max_error[:, 0, 0, :, -1]
    assert (final[0] < 0.01).all(), final
    assert (final[1] > 1e3).all(), final


@pytest.mark.parametrize("trace", ["recursive_retrace", "rbis", "q_sigma", "importance_sampling"])
def test_the_other_safe_traces_evaluate(trace: str) -> None:
    """Theorem 1 covers trajectory-aware traces in evaluation; λ = 0.9 keeps importance sampling's variance down."""
    mdp, _, max_steps = MDPS["chain"]
    pi, mu = np.tile([0.8, 0.2], (6, 1)), np.tile([0.3, 0.7], (6, 1))
    truth = q_pi(mdp, pi)
    runs = online.sweep(
        mdp,
        traces=[trace],
        lambdas=[0.9],
        step_sizes=[ROBBINS_MONRO],
        seeds=SEEDS,
        target=pi,
        behaviour=mu,
        num_episodes=30_000,
        max_steps=max_steps,
        truth=truth,
    )
    assert runs.max_error is not None
    assert (runs.max_error[..., -1] / abs(truth).max() < BOUND).all(), runs.max_error[..., -1]


# -- known numbers -------------------------------------------------------------------------------------------


def walk() -> FiniteMDP:
    """The 19-state random walk as Sutton and Barto run it: one action, which goes either way."""
    x = np.arange(19)
    off = np.stack([x == 0, x == 18], axis=1)
    return FiniteMDP.from_transitions(
        probability=np.full(38, 0.5),
        successor=np.stack([np.maximum(x - 1, 0), np.minimum(x + 1, 18)], axis=1).ravel(),
        first=np.arange(0, 39, 2),
        num_actions=1,
        r=(off * [-1.0, 1.0]).ravel(),
        ends=off.ravel(),
        gamma=1.0,
        start=(x == 9).astype(float),
    )


def test_the_random_walks_optimum_over_lambda() -> None:
    """TD(λ) on-policy (Sutton and Barto 2018, Fig. 12.6): RMS error over 10 episodes, the best step size for each λ.

    Read off the figure: 0.34 to 0.36 at λ = 0, a minimum near 0.27 at λ = 0.8, 0.43 to 0.45 at 0.99, over 0.5 at 1.
    """
    lambdas = [0.0, 0.4, 0.8, 0.9, 0.95, 0.99, 1.0]
    runs = online.sweep(
        walk(),
        traces=["retrace"],
        lambdas=lambdas,
        step_sizes=[0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.6, 0.8],
        seeds=range(60),
        target=np.ones((19, 1)),
        behaviour=np.ones((19, 1)),
        update="step",
        num_episodes=10,
        record_every=1,
        max_steps=5_000,
        truth=((np.arange(19) - 9) / 10)[:, None],
    )
    assert runs.rms_error is not None
    best = runs.rms_error[0, ..., 1:].mean((-1, -2)).min(1)
    at = dict(zip(lambdas, best, strict=True))
    assert min(at, key=at.__getitem__) == 0.8
    assert 0.25 < at[0.8] < 0.29
    assert 0.33 < at[0.0] < 0.37
    assert 0.41 < at[0.99] < 0.47
    assert at[1.0] > 0.46
    assert list(best[2:]) == sorted(best[2:])


def test_on_policy_lambda_one_is_monte_carlo_in_expectation() -> None:
    """For a stochastic π a correction is not the return minus Q: Σ γ^t (E_π Q − Q(x_t, a_t)) remains, of mean 0."""
    mdp = chain(5, gamma=0.9, slip=0.1, left_reward=-0.5)
    pi = np.tile([0.4, 0.6], (5, 1))
    q0 = np.random.default_rng(0).normal(size=mdp.shape)
    seeds = range(4000)
    runs = online.sweep(
        mdp,
        traces=["retrace"],
        step_sizes=[1.0],
        seeds=seeds,
        target=pi,
        behaviour=pi,
        q0=q0,
        visits="first",
        num_episodes=1,
        keep_q=True,
        max_steps=10_000,
    )
    assert runs.q is not None
    gaps = []
    for seed, q in zip(seeds, runs.q[0, 0, 0], strict=True):
        one = online.collect(mdp, mu=pi, num_episodes=1, seed=seed, max_steps=10_000)
        g = float(np.sum(0.9 ** np.arange(one.num_steps) * one.rewards))
        gaps.append(q[one.states[0], one.actions[0]] - g)  # with α = 1, the first pair's Q is its target
    gaps = np.array(gaps)
    assert gaps.std() > 0.1
    assert abs(gaps.mean()) < 4 * gaps.std() / np.sqrt(len(gaps))
