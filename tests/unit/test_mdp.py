"""Finite MDPs against results by hand, published numbers, and the same MDP made in several ways."""

import itertools
import subprocess
import sys
import tracemalloc
from dataclasses import FrozenInstanceError
from typing import Any

import gymnasium
import numpy as np
import pytest
import scipy.sparse
from builders.games import newest
from hypothesis import given, settings
from hypothesis import strategies as st

from offtrace.mdp import (
    MDPS,
    FiniteMDP,
    baird_star,
    bifurcated_grid,
    chain,
    cliff_walking,
    episodic,
    from_data,
    from_dictionary,
    from_gymnasium,
    garnet,
    grid_world,
    icu_sepsis,
    random_walk,
)
from offtrace.mdp import gymnasium as adapter

UP, RIGHT, DOWN, LEFT = range(4)
SIZES = st.tuples(st.integers(1, 6), st.integers(1, 3))
SEEDS = st.integers(0, 2**31)


# -- helpers --------------------------------------------------------------------------------------------------


def continuing(mdp: FiniteMDP) -> np.ndarray:
    """(X, A, X) the probability of each step that does not end."""
    p = np.zeros((mdp.num_states * mdp.num_actions, mdp.num_states))
    for row, (begin, end) in enumerate(itertools.pairwise(mdp.first)):
        for i in range(begin, end):
            p[row, mdp.successor[i]] += mdp.probability[i] * (1 - (0 if mdp.ends is None else mdp.ends[i]))
    return p.reshape(*mdp.shape, -1)


def values(mdp: FiniteMDP, pi: np.ndarray) -> np.ndarray:
    """V^π, by solving (I − γ P) V = r."""
    p, r = np.einsum("xa,xay->xy", pi, continuing(mdp)), (pi * mdp.r).sum(axis=1)
    return np.linalg.solve(np.eye(len(p)) - mdp.gamma * p, r)


def best_values(mdp: FiniteMDP, num_sweeps: int) -> np.ndarray:
    """V* by value iteration."""
    p, v = continuing(mdp), np.zeros(mdp.num_states)
    for _ in range(num_sweeps):
        v = (mdp.r + mdp.gamma * p @ v).max(axis=1)
    return v


def uniform(mdp: FiniteMDP) -> np.ndarray:
    return np.full(mdp.shape, 1 / mdp.num_actions)


def dictionary(mdp: FiniteMDP) -> dict[int, dict[int, list]]:
    """Gymnasium's dictionary form of an MDP whose transitions end with probability 0 or 1."""
    out: dict[int, dict[int, list]] = {x: {a: [] for a in range(mdp.num_actions)} for x in range(mdp.num_states)}
    for i, row in enumerate(mdp.rows):
        x, a = divmod(int(row), mdp.num_actions)
        ends = mdp.ends is not None and bool(mdp.ends[i])
        reward = mdp.r[x, a] if mdp.reward is None else mdp.reward[i]
        out[x][a].append((float(mdp.probability[i]), int(mdp.successor[i]), float(reward), ends))
    return out


def same(left: FiniteMDP, right: FiniteMDP, states: Any = slice(None)) -> None:
    """p, its continuing part and r agree; r up to rounding, since sums are in different orders."""
    np.testing.assert_allclose(left.dense()[states], right.dense()[states], atol=1e-15)
    np.testing.assert_allclose(continuing(left)[states], continuing(right)[states], atol=1e-15)
    np.testing.assert_allclose(left.r[states], right.r[states], rtol=1e-14, atol=1e-14)


def drawn(shape: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    """A dense model, with zeros in p, rewards by transition, and some transitions that end."""
    rng = np.random.default_rng(seed)
    p = rng.random((*shape, shape[0])) * (rng.random((*shape, shape[0])) < 0.7)
    p[..., 0] += 0.01
    return {
        "p": p / p.sum(axis=2, keepdims=True),
        "r": rng.normal(size=p.shape),
        "terminates": rng.random(p.shape) < 0.3,
    }


# -- one model, several ways ----------------------------------------------------------------------------------


@given(SIZES, SEEDS)
@settings(deadline=None, max_examples=50)
def test_dense_sparse_lists_and_dictionary_give_one_model(shape: tuple[int, int], seed: int) -> None:
    arrays = drawn(shape, seed)
    p, r, terminates = arrays.values()
    dense = FiniteMDP(**arrays, gamma=0.9)
    np.testing.assert_array_equal(dense.dense(), p)
    np.testing.assert_array_equal(continuing(dense), p * ~terminates)
    goes_on = np.zeros((shape[0] * shape[1], shape[0]))
    goes_on[dense.rows, dense.successor] = dense.continuing
    np.testing.assert_array_equal(goes_on.reshape(p.shape), p * ~terminates)
    np.testing.assert_allclose(dense.r, (p * r).sum(axis=2), rtol=1e-14, atol=1e-14)
    flat = {name: array.reshape(-1, shape[0]) for name, array in arrays.items()}
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_array):
        same(FiniteMDP(**{name: kind(array) for name, array in flat.items()}, gamma=0.9), dense)
    same(from_dictionary(dictionary(dense), gamma=0.9), dense)
    lists = {"probability": dense.probability, "successor": dense.successor, "first": dense.first}
    same(FiniteMDP.from_transitions(**lists, num_actions=shape[1], r=dense.reward, ends=dense.ends, gamma=0.9), dense)


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_sparse_p_is_taken_without_a_copy(kind: Any) -> None:
    p = kind(drawn((5, 3), 0)["p"].reshape(15, 5))
    mdp = FiniteMDP(p=p, r=np.zeros((5, 3)), gamma=0.9)
    for ours, theirs in ((mdp.probability, p.data), (mdp.successor, p.indices), (mdp.first, p.indptr)):
        assert np.shares_memory(ours, theirs)


def test_sparse_p_in_any_order_and_with_repeats() -> None:
    """Row 0 goes to state 1 in two pieces, one of which ends, and its indices are not sorted."""
    p = scipy.sparse.csr_array(([0.25, 0.5, 0.25, 1.0], [1, 0, 1, 1], [0, 3, 4]), shape=(2, 2))
    ends = scipy.sparse.csr_array(([1.0, 0.0, 0.0, 0.0], [1, 0, 1, 1], [0, 3, 4]), shape=(2, 2))
    mdp = FiniteMDP(p=p, r=[[0.0], [0.0]], terminates=ends, gamma=0.9)
    np.testing.assert_array_equal(mdp.dense()[:, 0], [[0.5, 0.5], [0.0, 1.0]])
    np.testing.assert_array_equal(continuing(mdp)[:, 0], [[0.5, 0.25], [0.0, 1.0]])
    assert p.nnz == 4, "the caller's matrix was summed up"


def test_terminates_by_state_by_pair_and_by_transition() -> None:
    p = np.full((2, 1, 2), 0.5)
    for terminates, goes_on in (
        ([False, True], [[0.5, 0.0], [0.5, 0.0]]),  # entering state 1
        ([[0.5], [0.0]], [[0.25, 0.25], [0.5, 0.5]]),  # half of what leaves state 0
        ([[[1, 0]], [[0, 0]]], [[0.0, 0.5], [0.5, 0.5]]),
        (np.zeros(2, bool), [[0.5, 0.5], [0.5, 0.5]]),
    ):
        mdp = FiniteMDP(p=p, r=np.zeros((2, 1)), terminates=terminates, gamma=0.9)
        np.testing.assert_array_equal(continuing(mdp)[:, 0], goes_on)
        np.testing.assert_array_equal(mdp.dense(), p)


def test_with_gamma_shares_everything_else() -> None:
    mdp = cliff_walking(gamma=0.9)
    other = mdp.with_gamma(0.5)
    assert (mdp.gamma, other.gamma, other.name, other.grid) == (0.9, 0.5, "cliff_walking", (4, 12))
    assert other.probability is mdp.probability


# -- random models --------------------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 6), SEEDS)
@settings(deadline=None, max_examples=50)
def test_garnet_has_distinct_successors(shape: tuple[int, int], num_successors: int, seed: int) -> None:
    num_successors = min(num_successors, shape[0])
    mdp = garnet(*shape, num_successors, gamma=0.9, seed=seed)
    rows = mdp.successor.reshape(-1, num_successors)
    assert (np.diff(rows, axis=1) > 0).all()
    assert rows.min() >= 0
    assert rows.max() < shape[0]
    np.testing.assert_allclose(mdp.probability.reshape(rows.shape).sum(axis=1), 1, rtol=1e-15)
    assert (mdp.probability >= 0).all()
    assert mdp.ends is None


def test_garnet_draws_every_set_of_successors_alike() -> None:
    """Of 10 pairs out of 5 states, each should come up in a tenth of 40,000 rows: σ is 60."""
    mdp = garnet(5, 8000, 2, gamma=0.9, seed=0)
    found = np.bincount(mdp.successor.reshape(-1, 2) @ [5, 1])
    assert (found > 0).sum() == 10
    assert abs(found[found > 0] - 4000).max() < 5 * 60


def test_garnet_cuts_the_unit_interval() -> None:
    """One of b pieces has mean 1/b and variance (b − 1) / (b² (b + 1)), wherever it lies."""
    pieces = garnet(50, 1000, 4, gamma=0.9, seed=0).probability.reshape(-1, 4)
    np.testing.assert_allclose(pieces.mean(axis=0), 1 / 4, atol=0.005)
    np.testing.assert_allclose(pieces.var(axis=0), 3 / 80, rtol=0.03)


def test_garnet_rewards() -> None:
    mdp = garnet(1000, 4, 2, gamma=0.9, seed=0, reward_sparsity=0.75)
    assert abs((mdp.r == 0).mean() - 0.75) < 0.03
    assert abs(mdp.r[mdp.r != 0].std() - 1) < 0.1
    assert (garnet(1000, 4, 2, gamma=0.9, seed=0).r != 0).all()


@pytest.mark.parametrize("local", [1, 2, 4])
def test_local_garnet_stays_near(local: int) -> None:
    mdp = garnet(9, 3, 3, gamma=0.9, seed=0, local=local)
    away = (mdp.successor - mdp.rows // 3) % 9
    assert set(away.tolist()) == {offset % 9 for offset in range(-local, local + 1)}
    assert (np.diff(mdp.successor.reshape(-1, 3), axis=1) > 0).all()


def test_a_seed_and_a_generator_draw_the_same() -> None:
    for make in (
        lambda rng: garnet(20, 2, 3, gamma=0.9, seed=rng),
        lambda rng: episodic(20, 2, 4, gamma=0.9, seed=rng),
    ):
        one, two, other = make(7), make(np.random.default_rng(7)), make(8)
        np.testing.assert_array_equal(one.probability, two.probability)
        np.testing.assert_array_equal(one.successor, two.successor)
        np.testing.assert_array_equal(one.r, two.r)
        assert (one.r != other.r).any()


def test_a_large_garnet_takes_little_more_memory_than_it_holds() -> None:
    tracemalloc.start()
    mdp = garnet(50_000, 4, 5, gamma=0.99, seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = sum(array.nbytes for array in (mdp.probability, mdp.successor, mdp.first, mdp.r, mdp.start))
    assert peak < 1.6 * held
    assert mdp.successor.dtype == mdp.first.dtype == np.int32


@given(st.integers(1, 8), st.integers(0, 12), st.integers(1, 3), SEEDS)
@settings(deadline=None, max_examples=50)
def test_episodic_ends_in_time(num_steps: int, more: int, num_actions: int, seed: int) -> None:
    """For all actions: no path of `num_steps` steps continues."""
    mdp = episodic(num_steps + more, num_actions, num_steps, gamma=1.0, seed=seed)
    step = continuing(mdp).sum(axis=1)
    mass = mdp.start
    for k in range(num_steps):
        assert mass.sum() > 0, f"all over after {k} steps"
        mass = mass @ step
    assert mass.sum() == 0
    np.testing.assert_allclose(mdp.dense().sum(axis=2), 1, rtol=1e-14)


# -- chains ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_states", [1, 5, 19])
def test_random_walk(num_states: int) -> None:
    """Under the uniform policy V is linear from −1 to 1: −0.9, …, 0.9 for 19 states."""
    mdp = random_walk(num_states)
    expected = np.linspace(-1, 1, num_states + 2)[1:-1]
    np.testing.assert_allclose(values(mdp, uniform(mdp)), expected, atol=1e-12)
    assert (mdp.gamma, mdp.grid, mdp.name) == (1.0, (1, num_states), "random_walk")
    assert mdp.start.argmax() == num_states // 2


def test_chain_with_one_end_takes_as_long_as_it_should() -> None:
    """From a wall at 0 the walk needs n² + n − x² − x steps to leave n states on the right."""
    mdp = chain(6, ends="right", gamma=1.0, step_reward=1.0, right_reward=1.0)
    x = np.arange(6)
    np.testing.assert_allclose(values(mdp, uniform(mdp)), 42 - x**2 - x)
    assert mdp.start[0] == 1
    mirrored = chain(6, ends="left", gamma=1.0, step_reward=1.0, left_reward=1.0)
    np.testing.assert_allclose(values(mirrored, uniform(mirrored)), (42 - x**2 - x)[::-1])
    assert mirrored.start[-1] == 1


def test_chain_slips_the_other_way() -> None:
    mdp = chain(3, slip=0.1, left_reward=5.0, step_reward=-1.0)
    np.testing.assert_array_equal(mdp.dense()[1], [[0.9, 0.0, 0.1], [0.1, 0.0, 0.9]])
    np.testing.assert_allclose(mdp.r[0], [0.9 * 5 - 0.1, 0.1 * 5 - 0.9])
    same(chain(3, slip=1.0), FiniteMDP(p=chain(3).dense()[:, ::-1], r=chain(3).r[:, ::-1], gamma=0.9), states=1)


def test_baird_star() -> None:
    """Under 6/7 dashed, 1/7 solid every state follows every state with 1/7."""
    mdp = baird_star()
    mu = np.tile([6 / 7, 1 / 7], (7, 1))
    np.testing.assert_allclose(np.einsum("xa,xay->xy", mu, mdp.dense()), np.full((7, 7), 1 / 7))
    assert (mdp.gamma, mdp.ends, mdp.r.any()) == (0.99, None, False)


# -- maps -----------------------------------------------------------------------------------------------------


def test_grid_world_walls_and_edges_keep_one_in_place() -> None:
    mdp = grid_world(["S.", "#G"], step_reward=-1.0, goal_reward=5.0)
    assert mdp.grid == (2, 2)
    assert mdp.dense()[0].argmax(axis=1).tolist() == [0, 1, 0, 0]
    assert mdp.dense()[1].argmax(axis=1).tolist() == [1, 1, 3, 0]
    np.testing.assert_array_equal(mdp.r[:2], [[-1, -1, -1, -1], [-1, -1, 5, -1]])
    assert (mdp.r[2:] == 0).all()
    assert (continuing(mdp)[2:] == 0).all(), "a wall and a goal are over at once"
    assert continuing(mdp)[1, DOWN].sum() == 0


def test_grid_world_by_shape_is_the_map_drawn() -> None:
    same(
        grid_world((3, 4), walls=iter([(1, 1), (0, -1)]), slip=0.2),
        grid_world(["S..#", ".#..", "...G"], slip=0.2),
    )
    same(grid_world((2, 2), start=(1, 0), goal=(0, 1)), grid_world(".G\nS."))


def test_grid_world_starts() -> None:
    np.testing.assert_array_equal(grid_world(["S.S", "..G"]).start, [0.5, 0, 0.5, 0, 0, 0])
    np.testing.assert_array_equal(grid_world(["..", "#G"]).start, [0.5, 0.5, 0, 0])


@pytest.mark.parametrize("slippery", [False, True])
@pytest.mark.parametrize("name", ["4x4", "8x8"])
def test_grid_world_is_frozen_lake(name: str, slippery: bool) -> None:
    """Its actions are left, down, right, up; slippery is a third for each side."""
    lake = from_gymnasium("FrozenLake-v1", gamma=0.99, map_name=name, is_slippery=slippery)
    with gymnasium.make("FrozenLake-v1", map_name=name) as env:
        layout = ["".join(cell.decode() for cell in row) for row in env.unwrapped.desc]
    ours = grid_world(layout, slip=2 / 3 if slippery else 0.0)
    order = [LEFT, DOWN, RIGHT, UP]
    np.testing.assert_allclose(ours.dense()[:, order], lake.dense(), atol=1e-15)
    np.testing.assert_allclose(continuing(ours)[:, order], continuing(lake), atol=1e-15)
    np.testing.assert_allclose(ours.r[:, order], lake.r, atol=1e-15)
    np.testing.assert_array_equal(ours.start, lake.start)
    assert ours.grid == lake.grid


@pytest.mark.parametrize("slip", [0.0, 2 / 3])
def test_cliff_walking_is_gymnasiums_wherever_one_can_be(slip: float) -> None:
    ours = cliff_walking(slip=slip)
    theirs = from_gymnasium(newest("CliffWalking"), gamma=0.99, is_slippery=slip > 0)
    same(ours, theirs, states=slice(0, 37))
    np.testing.assert_array_equal(ours.start, theirs.start)
    assert ours.grid == theirs.grid == (4, 12)
    assert not theirs.dense()[:37, :, 37:47].any(), "nobody ever stands on the cliff"


def test_cliff_walking_by_hand() -> None:
    mdp = cliff_walking(gamma=1.0)
    assert best_values(mdp, 50)[36] == -13
    assert mdp.r[36, RIGHT] == -100
    assert mdp.dense()[36, RIGHT, 36] == 1
    assert continuing(mdp)[36, RIGHT, 36] == 1, "falling is no end"
    assert mdp.r[35, DOWN] == -1
    assert continuing(mdp)[35, DOWN].sum() == 0


def test_bifurcated_grid_is_as_published() -> None:
    """Six steps to the goal: two to the fork, four by the short way; the long one has eight."""
    mdp = bifurcated_grid()
    fork = 4 * 5 + 2
    assert mdp.grid == (5, 5)
    assert mdp.start[20] == 1
    best = best_values(mdp, 30)
    np.testing.assert_allclose(best[[20, fork]], [0.9**5, 0.9**3])
    long_way = best_values(bifurcated_grid(rewards=(0.0, 1.0)), 30)
    np.testing.assert_allclose(long_way[[20, fork]], [0.9**9, 0.9**7])


@pytest.mark.parametrize(("approach", "height", "width", "goal_row"), [(0, 3, 3, 1), (4, 9, 5, 6), (1, 8, 3, 1)])
def test_bifurcated_grid_of_other_sizes(approach: int, height: int, width: int, goal_row: int) -> None:
    sizes = {"approach": approach, "height": height, "width": width, "goal_row": goal_row}
    short = approach + (width - 1) + (height - 1 - goal_row)
    long = approach + (height - 1) + (width - 1) + goal_row
    for rewards, steps in (((1.0, 0.0), short), ((0.0, 1.0), long)):
        mdp = bifurcated_grid(**sizes, rewards=rewards)
        assert best_values(mdp, 80) @ mdp.start == pytest.approx(0.9 ** (steps - 1))


# -- Gymnasium ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", ["FrozenLake", "FrozenLake8x8", "Taxi", "CliffWalking"])
def test_gymnasium_models_entry_by_entry(game: str) -> None:
    name = newest(game)
    mdp = from_gymnasium(name, gamma=0.95)
    with gymnasium.make(name) as env:
        same(from_gymnasium(env, gamma=0.95), mdp)
        table, start = env.unwrapped.P, env.unwrapped.initial_state_distrib
    np.testing.assert_array_equal(mdp.start, start)
    assert (mdp.name, mdp.gamma) == (name, 0.95)
    p, goes_on, r = np.zeros((3, *mdp.shape, mdp.num_states))
    for x, a in np.ndindex(mdp.shape):
        for probability, successor, reward, terminated in table[x][a]:
            p[x, a, successor] += probability
            goes_on[x, a, successor] += probability * (not terminated)
            r[x, a] += probability * reward
    np.testing.assert_array_equal(mdp.dense(), p)
    np.testing.assert_allclose(continuing(mdp), goes_on, atol=1e-15)
    np.testing.assert_allclose(mdp.r, r[..., 0], rtol=1e-14, atol=1e-14)


def test_taxi_ends_in_states_that_are_not_absorbing() -> None:
    """Dropping the passenger off ends the episode in a state whose own row continues: ends belong to transitions."""
    mdp = from_gymnasium(newest("Taxi"), gamma=0.9)
    assert mdp.ends is not None
    entered = np.unique(mdp.successor[mdp.ends == 1])
    assert len(entered) == 4
    assert all(continuing(mdp)[x].any() for x in entered)
    assert mdp.reward is not None
    assert set(mdp.reward[mdp.ends == 1].tolist()) == {20.0}
    assert mdp.grid is None, "its 500 states are no cells of its map"


def test_dictionary_keeps_entries_to_one_state_apart() -> None:
    mdp = from_dictionary(
        {0: {0: [(0.5, 0, 2.0, True), (0.25, 0, 0.0, False), (0.25, 0, 4.0, 0), (0.0, 0, 9, 1)]}}, gamma=1
    )
    np.testing.assert_array_equal(mdp.probability, [0.5, 0.25, 0.25])
    np.testing.assert_array_equal(mdp.ends, [1, 0, 0])
    np.testing.assert_array_equal(mdp.reward, [2, 0, 4])
    assert mdp.r[0, 0] == 2
    assert continuing(mdp)[0, 0, 0] == 0.5


class Coin(gymnasium.Env):
    """Two states, no distribution of first states of its own: state 1 in a quarter of the resets."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(1)

    def __init__(self) -> None:
        self.P = [[[(1.0, 1, 0.0, False)]], [[(1.0, 1, 1.0, True)]]]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        return int(self.np_random.random() < 0.25), {}


def test_first_states_are_counted_where_the_environment_does_not_say() -> None:
    env = Coin()
    env.reset(seed=5)
    before = env.np_random.bit_generator.state
    mdp = from_gymnasium(env, gamma=0.9)
    assert env.np_random.bit_generator.state == before, "the user's environment was touched"
    assert abs(mdp.start[1] - 0.25) < 5 * np.sqrt(0.25 * 0.75 / adapter.NUM_RESETS)
    assert mdp.name == "Coin"
    np.testing.assert_array_equal(from_gymnasium(env, gamma=0.9, start=[0.0, 1.0]).start, [0, 1])


@pytest.mark.parametrize("inadmissible", ["mean", "terminate"])
def test_icu_sepsis(inadmissible: str) -> None:
    mdp = icu_sepsis(inadmissible=inadmissible)
    same_model = from_gymnasium("Sepsis/ICU-Sepsis-v2", gamma=0.99, inadmissible_action_strategy=inadmissible)
    np.testing.assert_array_equal(mdp.probability, same_model.probability)
    np.testing.assert_array_equal(mdp.ends, same_model.ends)
    assert mdp.shape == (716, 25)
    assert mdp.ends is not None
    np.testing.assert_array_equal(mdp.ends, mdp.successor >= 713)
    assert mdp.reward is not None
    np.testing.assert_array_equal(mdp.reward[mdp.rows < 713 * 25], (mdp.successor == 714)[mdp.rows < 713 * 25])
    assert not mdp.start[713:].any()
    if inadmissible == "terminate":  # in state 1 only action 0 is admissible
        np.testing.assert_array_equal(mdp.dense()[1, 1:, 713], np.ones(24))
        assert mdp.dense()[1, 0, 713] < 1


def test_icu_sepsis_gives_the_published_returns() -> None:
    """0.78 for random actions, 0.78 for the clinicians and 0.88 for the best policy (Choudhary et al. 2024)."""
    mdp = icu_sepsis(gamma=1.0)
    expert = adapter._imported("icu_sepsis").ICUSepsisEnv().expert_policy

    def value(pi: np.ndarray) -> float:
        step = np.zeros((716, 716))
        np.add.at(step, (mdp.rows // 25, mdp.successor), mdp.continuing * pi.ravel()[mdp.rows])
        return mdp.start @ np.linalg.solve(np.eye(716) - step, (pi * mdp.r).sum(axis=1))

    assert round(value(uniform(mdp)), 2) == 0.78
    assert round(value(expert), 2) == 0.78
    q = np.zeros(mdp.shape)
    for _ in range(300):
        q = mdp.r + np.add.reduceat(mdp.continuing * q.max(axis=1)[mdp.successor], mdp.first[:-1]).reshape(q.shape)
    assert round(mdp.start @ q.max(axis=1), 2) == 0.88


# -- data -----------------------------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 40), SEEDS)
@settings(deadline=None, max_examples=100)
def test_from_data_counts(shape: tuple[int, int], num_transitions: int, seed: int) -> None:
    """Against counting in a dictionary; few states, so that both ways of counting are taken."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, shape[0], (2, num_transitions))
    a, r = rng.integers(0, shape[1], num_transitions), rng.normal(size=num_transitions)
    end = rng.random(num_transitions) < 0.3
    model = from_data(
        states=x,
        actions=a,
        rewards=r,
        next_states=y,
        terminated=end,
        gamma=0.9,
        num_states=shape[0],
        num_actions=shape[1],
    )
    table: dict[int, dict[int, list]] = {i: {j: [] for j in range(shape[1])} for i in range(shape[0])}
    for step in zip(x.tolist(), a.tolist(), r.tolist(), y.tolist(), end.tolist(), strict=True):
        table[step[0]][step[1]].append(step[2:])
    for i, j in np.ndindex(shape):
        seen = table[i][j]
        assert model.counts[i, j] == len(seen)
        assert model.unseen[i, j] == (not seen)
        table[i][j] = [(1 / len(seen), *step[1:2], step[0], step[2]) for step in seen] or [(1.0, i, 0.0, True)]
    naive = from_dictionary(table, gamma=0.9)
    np.testing.assert_allclose(model.mdp.dense(), naive.dense(), atol=1e-14)
    np.testing.assert_allclose(continuing(model.mdp), continuing(naive), atol=1e-14)
    np.testing.assert_allclose(model.mdp.r, naive.r, atol=1e-13)
    np.testing.assert_allclose(model.mu.sum(axis=1), 1)
    visits = model.counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.mu[~model.unvisited] * visits[~model.unvisited], model.counts[~model.unvisited])
    assert (model.mu[model.unvisited] == 1 / shape[1]).all()
    assert model.num_transitions == num_transitions


@pytest.mark.parametrize("num_states", [5, 200])
def test_from_data_tends_to_the_truth(num_states: int) -> None:
    """400,000 draws: each frequency within six standard errors of its probability, for every pair and successor."""
    rng = np.random.default_rng(0)
    mdp = episodic(num_states, 2, 5, gamma=0.9, seed=rng, num_successors=1 if num_states == 5 else 3)
    mu = rng.dirichlet([5.0, 5.0], num_states)
    x = rng.integers(0, num_states, 400_000)
    a = (rng.random(len(x)) < mu[x, 1]).astype(np.int64)
    row, share, each = x * 2 + a, rng.random(len(x)), int(mdp.first[1])
    total = np.cumsum(mdp.probability.reshape(-1, each), axis=1)
    chosen = mdp.first[row] + (share[:, None] > total[row, :-1]).sum(axis=1)
    assert mdp.ends is not None
    assert mdp.reward is not None
    model = from_data(
        states=x,
        actions=a,
        rewards=mdp.reward[chosen],
        next_states=mdp.successor[chosen],
        terminated=rng.random(len(x)) < mdp.ends[chosen],
        gamma=0.9,
    )
    error = 6 * 0.5 / np.sqrt(model.counts)[..., None]
    assert (abs(model.mdp.dense() - mdp.dense()) <= error).all()
    assert (abs(continuing(model.mdp) - continuing(mdp)) <= error).all()
    assert (abs(model.mdp.r - mdp.r) <= error[..., 0] * np.ptp(mdp.reward)).all()
    assert abs(model.mu - mu).max() < 6 * 0.5 / np.sqrt(len(x) / num_states / 1.2)


def test_from_data_marks_what_it_has_not_seen() -> None:
    model = from_data(
        states=[0, 0], actions=[1, 1], rewards=[1, 2], next_states=[2, 2], terminated=[False, True], gamma=0.9
    )
    assert model.unseen.tolist() == [[True, False], [True, True], [True, True]]
    assert model.unvisited.tolist() == [False, True, True]
    np.testing.assert_array_equal(model.mu, [[0, 1], [0.5, 0.5], [0.5, 0.5]])
    assert continuing(model.mdp)[0, 1].tolist() == [0, 0, 0.5]
    assert model.mdp.r.tolist() == [[0, 1.5], [0, 0], [0, 0]]
    assert not continuing(model.mdp)[model.unseen].any()
    assert "5 of 6 pairs unseen" in repr(model)
    with pytest.raises(FrozenInstanceError):
        model.mu = None  # ty: ignore[invalid-assignment]


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint64", ">i4"])
def test_from_data_takes_any_whole_numbers(kind: str) -> None:
    """200 states of uint8 would overflow if they were multiplied as uint8."""
    x = np.arange(200).astype(kind)
    model = from_data(
        states=x, actions=x % 2, rewards=np.ones(200), next_states=x[::-1], terminated=x > 300, gamma=0.9
    )
    assert model.mdp.dense()[np.arange(200), np.arange(200) % 2, 199 - np.arange(200)].tolist() == [1.0] * 200


# -- the registry, and what importing costs -------------------------------------------------------------------


@pytest.mark.parametrize("name", MDPS)
def test_every_name_makes_a_model_of_that_name(name: str) -> None:
    mdp = MDPS[name](gamma=0.5)
    assert (mdp.name, mdp.gamma) == (name, 0.5)
    assert isinstance(MDPS[name](), FiniteMDP)
    np.testing.assert_allclose(np.add.reduceat(mdp.probability, mdp.first[:-1]), 1, rtol=1e-12)
    assert mdp.start.sum() == pytest.approx(1)


def test_the_registry_takes_arguments_and_cannot_be_changed() -> None:
    assert MDPS["garnet"](num_states=7, seed=3).num_states == 7
    with pytest.raises(TypeError):
        MDPS["mine"] = chain  # ty: ignore[invalid-assignment]


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, offtrace.mdp; offtrace.mdp.cliff_walking(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {name.split(".")[0] for name in loaded.split()} & {"scipy", "gymnasium", "numba", "gym", "icu_sepsis"}
