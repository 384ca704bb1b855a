"""A trained agent: its actions, what it earns, and how one of many is selected.

The network of these tests is set by hand: it pushes the cart to the side to which the pole falls. So the right action
is known, and a loop written with Gymnasium alone gives the returns to expect.
"""

import dataclasses
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from offtrace.agent.policy import Policy, make_policy
from offtrace.agent.selection import select, the_only
from offtrace.agent.spec import TrainSpec, resolved, to_json
from offtrace.experiments.encoding import fingerprint
from offtrace.experiments.networks import networks_folder, read_network, write_network

PARAMETERS = {
    "layers[0].weight": np.array([[0, 0], [0, 0], [1, -1], [0, 0]], np.float32),  # θ and −θ
    "layers[0].bias": np.zeros(2, np.float32),
    "layers[1].weight": np.array([[0, 1], [1, 0]], np.float32),  # Q(left) = max(−θ, 0), Q(right) = max(θ, 0)
    "layers[1].bias": np.zeros(2, np.float32),
}


@pytest.fixture(scope="module")
def policy() -> Policy:
    spec = resolved(TrainSpec(env="CartPole-v1", hidden_sizes=(2,)))
    return make_policy(spec, PARAMETERS, num_steps=7)


def by_hand(env: gymnasium.Env, num_episodes: int, first_seed: int = 0) -> tuple[float, ...]:
    """Return the returns of the same rule, in a loop as in Gymnasium's documentation."""
    returns = []
    for i in range(num_episodes):
        x, _ = env.reset(seed=first_seed + i)
        total, over = 0.0, False
        while not over:
            x, reward, terminated, truncated, _ = env.step(int(x[2] > 0))
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    return tuple(returns)


def test_the_greedy_action(policy: Policy) -> None:
    falls_left, falls_right = [9.0, 9.0, -0.1, 9.0], [-9.0, -9.0, 0.1, -9.0]
    assert policy.act(falls_left) == 0
    assert type(policy.act(np.array(falls_right))) is int
    assert policy.act([falls_left, falls_right, falls_left]).tolist() == [0, 1, 0]
    assert policy.act(np.zeros((0, 4))).shape == (0,)
    five_and_six = gymnasium.spaces.Discrete(2, start=5)
    from_five = dataclasses.replace(policy, spaces=policy.spaces._replace(raw=(policy.spaces.raw[0], five_and_six)))
    assert from_five.act(falls_right) == 6


def test_factors_of_observations_are_those_of_the_training() -> None:
    """The values are max(−θ, 0) and max(θ, 0) of ten times the angle."""
    spec = resolved(TrainSpec(env="CartPole-v1", hidden_sizes=(2,), observation_scale=(1.0, 1.0, 10.0, 1.0)))
    scaled = make_policy(spec, PARAMETERS, num_steps=7)
    np.testing.assert_allclose(scaled.q([[0, 0, -0.25, 0], [0, 0, 0.5, 0]]), [[2.5, 0], [0, 5]], rtol=1e-6)


def test_observations_and_actions_as_the_environment_has_them() -> None:
    """Values that are known for one-hot states: in state x the greedy action is x mod 4."""
    spec = resolved(TrainSpec(env="FrozenLake-v1", hidden_sizes=(16,)))
    weights = np.zeros((16, 4), np.float32)
    weights[np.arange(16), np.arange(16) % 4] = 1
    parameters = {
        "layers[0].weight": np.eye(16, dtype=np.float32),
        "layers[0].bias": np.zeros(16, np.float32),
        "layers[1].weight": weights,
        "layers[1].bias": np.zeros(4, np.float32),
    }
    policy = make_policy(spec, parameters, num_steps=7)
    assert [policy.act(state) for state in (0, 1, 2, 3, 6)] == [0, 1, 2, 3, 2]
    assert policy.act(np.array([3, 1])).tolist() == [3, 1]
    assert policy.act(np.eye(16, dtype=bool)[5]) == 1  # encoded
    assert policy.probabilities(np.array([3, 1])).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert policy.probabilities(6, epsilon=0.5).tolist() == [0.125, 0.125, 0.625, 0.125]  # 1 − ε + ε/A
    with pytest.raises(ValueError, match="`observation` must be bool of shape"):
        policy.act(16)
    raw = (policy.spaces.raw[0], gymnasium.spaces.MultiDiscrete([2, 2]))
    pairs = dataclasses.replace(policy, spaces=policy.spaces._replace(raw=raw))
    assert pairs.act(2).tolist() == [1, 0]
    assert pairs.act(np.array([0, 3])).tolist() == [[0, 0], [1, 1]]
    with gymnasium.make("FrozenLake-v1", is_slippery=False) as env:
        assert policy.evaluate(env, episodes=1, max_steps=50).lengths[0] >= 1


def test_random_actions(policy: Policy) -> None:
    """With ε = 0.5 a quarter of the actions differ from the greedy one; a generator moves on, a seed does not."""
    many = np.tile(np.float32([0, 0, 1, 0]), (4_000, 1))
    share = np.mean(policy.act(many, epsilon=0.5, seed=0) == 0)
    assert abs(share - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4_000)
    assert (policy.act(many, epsilon=0.5, seed=0) == policy.act(many, epsilon=0.5, seed=0)).all()
    rng = np.random.default_rng(0)
    assert (policy.act(many, epsilon=0.5, seed=rng) != policy.act(many, epsilon=0.5, seed=rng)).any()


def test_evaluation_is_the_loop_that_users_write(policy: Policy) -> None:
    """By its name, as one environment, and as vectors in both autoreset modes, also with a number left over."""
    modes = gymnasium.vector.AutoresetMode
    with gymnasium.make("CartPole-v1") as env:
        expected = by_hand(env, 5)
        assert len(set(expected)) > 1
        found = policy.evaluate(episodes=5)
        assert found.returns == expected
        assert found.lengths == tuple(int(value) for value in expected)  # +1 per step
        assert found.num_unfinished == 0
        assert found.num_truncated == 0  # every pole has fallen
        assert policy.evaluate(env, 5).returns == expected
        assert policy.evaluate(env, 2, seed=3).returns == expected[3:]
        env.reset()  # it stays open
    for mode in (modes.NEXT_STEP, modes.SAME_STEP):
        vector = gymnasium.make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": mode})
        assert policy.evaluate(vector, 5).returns == expected
        vector.reset()
        vector.close()


class Endless(gymnasium.Env):
    """An environment in which nothing happens."""

    def __init__(self, other: gymnasium.Env) -> None:
        self.observation_space = other.observation_space
        self.action_space = other.action_space

    def reset(self, **_) -> tuple[np.ndarray, dict]:
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(4, np.float32), 0.0, False, False, {}


def test_who_is_done_waits(policy: Policy) -> None:
    """An environment that plays on, while another one is not done yet, counts once."""
    with gymnasium.make("CartPole-v1") as env:
        expected = by_hand(env, 1)
        vector = gymnasium.vector.SyncVectorEnv([lambda: env, lambda: Endless(env)])
        found = policy.evaluate(vector, 2, max_steps=300)
    assert found.returns == (*expected, 0.0)
    assert found.lengths == (int(expected[0]), 300)
    assert (found.num_truncated, found.num_unfinished) == (0, 1)


def test_pure_environments_and_ends(policy: Policy) -> None:
    """A time limit truncates; `max_steps` cuts off, and what was earned so far counts."""
    limited = policy.evaluate("pocket/cartpole", 4, options={"time_limit": 6})
    assert (limited.returns, limited.lengths) == ((6.0,) * 4, (6,) * 4)
    assert (limited.num_truncated, limited.num_unfinished) == (4, 0)
    cut = policy.evaluate("pocket/cartpole", 4, max_steps=5, options={"time_limit": 6})
    assert (cut.returns, cut.lengths, cut.num_truncated, cut.num_unfinished) == ((5.0,) * 4, (5,) * 4, 0, 4)
    assert "4 were cut off" in str(cut)


def test_the_interval_holds_the_mean(policy: Policy) -> None:
    """The standard error of 100 coin flips is 0.05, so the interval is about 0.4 to 0.6."""
    found = policy.evaluate("pocket/cartpole", 1, max_steps=1)
    assert np.isnan(found.interval).all()
    flips = dataclasses.replace(found, returns=(0.0, 1.0) * 50)
    assert flips.mean == 0.5
    assert flips.interval == pytest.approx((0.4, 0.6), abs=0.02)


def test_what_does_not_fit(policy: Policy) -> None:
    three = gymnasium.wrappers.TransformAction(
        gymnasium.make("CartPole-v1"), lambda a: a % 2, gymnasium.spaces.Discrete(3)
    )
    wrong = {
        "got shape": lambda: policy.act([1.0, 2.0]),
        "got something without a shape": lambda: policy.act([[1.0], [2.0, 3.0]]),
        "got <U1": lambda: policy.act(["a", "b", "c", "d"]),
        "`epsilon` must be in": lambda: policy.act(np.zeros(4), epsilon=1.5),
        "`episodes` must be": lambda: policy.evaluate(episodes=0),
        r"must have observations float32 of shape \(4,\).*CartPole-v1.*; pocket/mountain_car has": (
            lambda: policy.evaluate("pocket/mountain_car")
        ),
        r"must have 2 actions.*; CartPole-v1 has 3": lambda: policy.evaluate(three),
        "got int": lambda: policy.evaluate(3),
        "`options` must come with the name": lambda: policy.evaluate(three, options={"time_limit": 3}),
    }
    for text, call in wrong.items():
        with pytest.raises(ValueError, match=text):
            call()
    diverged = make_policy(policy.spec, {**PARAMETERS, "layers[1].bias": np.full(2, np.nan, np.float32)}, 0)
    with pytest.raises(ValueError, match="diverged"):
        diverged.act(np.zeros(4))


def test_one_of_many_is_selected() -> None:
    specs = [
        resolved(TrainSpec(env="CartPole-v1", trace=trace, seed=seed))
        for trace in ("retrace", "q_lambda")
        for seed in (0, 1)
    ]
    assert select(specs, {"env": "CartPole-v1", "trace": "q_lambda", "seed": 1}, where="runs") == [3]
    assert select(specs, {}, 2, where="runs") == [2]
    assert select(specs, {}, where="runs") == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"4 runs of 'runs' fit. Select one by `trace` .*, `seed` \(0, 1\);"):
        the_only([0, 1, 2, 3], specs, where="runs")
    for fields, member, text in (
        ({"seed": 7}, None, r"no run with seed=7. It has `seed` \(0, 1\)"),
        ({"sead": 1}, None, "Did you mean `seed`"),
        ({}, 4, "under 4; got 4"),
        ({"seed": 1}, 0, "`member` must come without"),
    ):
        with pytest.raises(ValueError, match=text):
            select(specs, fields, member, where="runs")


def test_networks_beside_a_store(policy: Policy, tmp_path: Path) -> None:
    """They come back to the last bit, or not at all."""
    store, spec = tmp_path / "results.sqlite", to_json(policy.spec)
    key = fingerprint(spec)
    with pytest.raises(ValueError, match="but not its network"):
        read_network(store, key)
    for num_steps in (1, 8):  # the second one replaces the first
        write_network(store, spec, PARAMETERS, num_steps)
    arrays, num_steps = read_network(store, key)
    assert num_steps == 8
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in PARAMETERS.items()
    }
    (file,) = networks_folder(store).iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + b"\x01", whole.replace(key.encode(), b"0" * 64), b"\xff" * 100):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            read_network(store, key)
