"""Logs drawn from a FiniteMDP, against its exact probabilities and values; and the MDPs of the studies."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace.evaluation.log import Log, check_columns
from offtrace.evaluation.simulation import simulate
from offtrace.mdp import FiniteMDP, chain, episodic
from offtrace.operators import q_pi

NUM_EPISODES = 20_000
SIGMAS = 5
"""A right simulator breaks a bound of five standard errors once in two million comparisons."""


def study(name: str) -> Any:
    path = Path(__file__).parents[2] / "studies" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))  # as for a script that is run from there
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mdp() -> FiniteMDP:
    return episodic(12, 3, 4, gamma=0.9, seed=3)


@pytest.fixture(scope="module")
def mu(mdp: FiniteMDP) -> np.ndarray:
    drawn = np.random.default_rng(1).dirichlet(np.ones(3), size=12)
    drawn[:, 2] = 0  # an action that is never taken, the last of its row
    return drawn / drawn.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def log(mdp: FiniteMDP, mu: np.ndarray) -> Log:
    return simulate(mdp, mu, NUM_EPISODES, seed=0)


def columns_of(log: Log) -> dict[str, Any]:
    return {
        "episode": np.repeat(np.arange(log.num_episodes), log.lengths),
        "step": np.arange(log.num_steps) - np.repeat(log.first[:-1], log.lengths),
        "state": log.state,
        "next_state": log.successor,
        "action": log.action,
        "reward": log.reward,
        "terminated": log.terminated,
        "truncated": log.truncated,
        "behaviour_probability": log.mu_a,
    }


def within(counts: np.ndarray, totals: np.ndarray, probability: np.ndarray) -> bool:
    """Whether counts are binomial with these probabilities, as far as `SIGMAS` can tell."""
    error = np.sqrt(totals * probability * (1 - probability))
    return bool((abs(counts - totals * probability) <= SIGMAS * error + 1e-9).all())


def test_a_simulated_log_passes_the_checks_of_logs(log: Log) -> None:
    assert check_columns(columns_of(log)) == []


def test_starts_actions_and_transitions_have_their_probabilities(mdp: FiniteMDP, mu: np.ndarray, log: Log) -> None:
    assert log.state is not None
    assert log.successor is not None
    num_states, num_actions = mdp.shape
    starts = np.bincount(log.state[log.first[:-1]], minlength=num_states)
    assert within(starts, np.full(num_states, NUM_EPISODES), mdp.start)
    pair = log.state * num_actions + log.action
    visits = np.bincount(log.state, minlength=num_states)
    actions = np.bincount(pair, minlength=mu.size).reshape(mu.shape)
    assert within(actions, visits[:, None], mu)
    assert np.array_equal(log.mu_a, mu[log.state, log.action])
    moves = np.bincount(pair * num_states + log.successor, minlength=mu.size * num_states)
    assert within(moves.reshape(mu.size, -1), actions.reshape(-1, 1), mdp.dense().reshape(mu.size, -1))


def test_episodes_end_as_often_as_the_mdp_says(mdp: FiniteMDP, mu: np.ndarray, log: Log) -> None:
    """Pairs terminate with probability Σ p(x'|x, a) ends(x'|x, a)."""
    assert log.state is not None
    ending = np.add.reduceat(mdp.probability - mdp.continuing, mdp.first[:-1])
    pair = log.state * mdp.num_actions + log.action
    visits = np.bincount(pair, minlength=mu.size)
    ended = np.bincount(pair, weights=log.terminated, minlength=mu.size)
    assert within(ended, visits, np.clip(ending, 0, 1))
    assert log.terminated.sum() == NUM_EPISODES


def test_the_mean_return_is_the_exact_value(mdp: FiniteMDP, mu: np.ndarray, log: Log) -> None:
    exact = mdp.start @ (mu * q_pi(mdp, mu)).sum(axis=1)
    step = np.arange(log.num_steps) - np.repeat(log.first[:-1], log.lengths)
    returns = np.add.reduceat(mdp.gamma**step * log.reward, log.first[:-1])
    assert abs(returns.mean() - exact) < SIGMAS * returns.std() / np.sqrt(NUM_EPISODES)


def test_episodes_are_truncated_after_max_steps() -> None:
    """On this chain an episode takes at least two steps, so one step ends none."""
    walk = chain(3)
    uniform = np.full(walk.shape, 0.5)
    log = simulate(walk, uniform, 50, seed=0, max_steps=1)
    assert log.truncated.all()
    assert log.num_steps == 50
    longer = simulate(walk, uniform, 50, seed=0, max_steps=4)
    assert longer.lengths.max() == 4
    last = longer.first[1:] - 1
    assert (longer.truncated ^ longer.terminated)[last].all()
    assert check_columns(columns_of(longer)) == []


def test_a_seed_gives_the_same_log_again() -> None:
    walk = chain(5)
    uniform = np.full(walk.shape, 0.5)
    one, same, other = (simulate(walk, uniform, 20, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.action, same.action)
    assert not np.array_equal(one.action[:20], other.action[:20])


def test_max_steps_must_be_given_where_episodes_do_not_end() -> None:
    loop = FiniteMDP(p=[[[1.0]]], r=[[1.0]], gamma=0.9)
    with pytest.raises(ValueError, match="`max_steps` must be given for an MDP without terminating"):
        simulate(loop, [[1.0]], 3, seed=0)
    with pytest.raises(ValueError, match="`mu` must have rows that sum to 1"):
        simulate(loop, [[0.5]], 3, seed=0, max_steps=2)


# -- the MDPs of COBS ----------------------------------------------------------------------------


def test_the_graph_has_its_closed_form_value() -> None:
    """Each of the T steps pays +1 with probability .75 p + .25 (1 − p) and −1 otherwise.

    The last step pays for the state that it leaves, so its probability is that of the step before.
    """
    cobs = study("cobs")
    for num_steps in (4, 16):
        for p in (0.2, 0.6, 0.8):
            mdp = cobs.graph(num_steps)
            mean = 2 * (0.75 * p + 0.25 * (1 - p)) - 1
            expected = mean * (1 - 0.98**num_steps) / (1 - 0.98)
            assert cobs.value(mdp, cobs.graph_policy(num_steps, p)) == pytest.approx(expected, abs=1e-9)
    assert expected == pytest.approx(4.143, abs=5e-4)  # T = 16, p = .8


def test_the_gridworld_moves_and_pays_as_defined() -> None:
    cobs = study("cobs")
    mdp = cobs.gridworld()
    p = mdp.dense()
    left, right, up, down = range(4)
    # from the corner, left and up stay; a slip of .2 takes any of the four directions
    assert p[0, right, 1] == pytest.approx(0.85)
    assert p[0, right, 8] == pytest.approx(0.05)
    assert p[0, left, 0] == pytest.approx(0.9)
    assert p[9, down, 17] == pytest.approx(0.85)
    assert p[9, up, 1] == pytest.approx(0.85)
    # below the hole at (6, 6) and left of the goal: a slip stays, goes back to (7, 5) or up into the hole
    assert mdp.r[62, right] == pytest.approx(0.85 * 1 + 0.05 * (-0.01 - 0.005 - 0.5))
    starts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40, 48, 56]
    assert np.flatnonzero(mdp.start).tolist() == starts
    # without slips, the greedy policy reaches the goal from every start and enters no hole
    greedy = cobs.greedy(mdp)
    cells = "".join(cobs.MAP.split())
    for x in starts:
        for _ in range(30):
            x = int(p[x, greedy[x]].argmax())
            assert cells[x] != "h"
            if cells[x] == "G":
                break
        assert cells[x] == "G"


def test_a_finite_horizon_is_the_sum_of_its_first_rewards() -> None:
    """On a chain that always goes right, the value of n steps is Σ_{t<n} γ^t r."""
    cobs = study("cobs")
    loop = FiniteMDP(p=[[[1.0]]], r=[[2.0]], gamma=0.5)
    assert cobs.value(loop, np.ones((1, 1)), num_steps=3) == pytest.approx(2 + 1 + 0.5)
