"""εz-greedy exploration: durations, probabilities, ends of episodes, and runs with it."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from offtrace.agent import checkpoints, program, repeats
from offtrace.agent.host import Host
from offtrace.agent.learner import LearnerState
from offtrace.agent.program import Member
from offtrace.agent.repeats import Repeats
from offtrace.agent.spec import ADDED, TrainSpec, resolved, to_json
from offtrace.agent.training import train
from offtrace.environments import make

MOST, NUM_ACTORS, NUM_STEPS, NUM_ACTIONS = 5, 500, 200, 3
EPSILON, LENGTH = 0.4, 50
MU = np.array([EPSILON / 3, EPSILON / 3, 1 - 2 * EPSILON / 3])  # action 2 is greedy
P = np.array([3600, 900, 400, 225, 144]) / 5269  # 1/n², n = 1, …, 5, over their sum


@pytest.fixture(scope="module")
def played() -> tuple[np.ndarray, ...]:
    """Return a, μ(a) and the steps left after each step, (NUM_STEPS, NUM_ACTORS), in episodes of LENGTH steps."""

    def step(now: Repeats, given: Any) -> Any:
        time, key = given
        for_action, for_repeats = jax.random.split(key)
        a = jax.random.categorical(for_action, jnp.log(jnp.asarray(MU)), shape=(NUM_ACTORS,))
        first = jnp.full(NUM_ACTORS, time % LENGTH == 0)
        mu_a = jnp.asarray(MU, jnp.float32)[a]
        uniform = jnp.full(NUM_ACTORS, EPSILON / NUM_ACTIONS)
        a, mu_a, after = repeats.advance(now, for_repeats, a, mu_a, uniform=uniform, first=first, most=MOST)
        return after, (a, mu_a, after.steps_left)

    keys = jax.random.split(jax.random.key(0), NUM_STEPS)
    run = jax.jit(lambda: jax.lax.scan(step, repeats.init(NUM_ACTORS), (jnp.arange(NUM_STEPS), keys))[1])
    return tuple(np.asarray(each) for each in run())


def within(counts: np.ndarray, p: np.ndarray) -> bool:
    """Return whether counts are within four standard deviations of the probabilities `p`."""
    total = counts.sum()
    return bool((abs(counts / total - p) < 4 * np.sqrt(p * (1 - p) / total)).all())


def test_a_choice_is_epsilon_greedy_and_random_actions_last(played: tuple[np.ndarray, ...]) -> None:
    a, mu_a, left = played
    before = np.vstack([np.zeros(NUM_ACTORS, int), left[:-1]])
    before[::LENGTH] = 0  # an episode begins with a choice
    chosen = before == 0
    assert within(np.bincount(a[chosen]), MU)
    np.testing.assert_array_equal(mu_a[chosen], MU.astype(np.float32)[a[chosen]])
    # The actions 0 and 1 are random ones: their steps are those of the definition.
    assert within(np.bincount(left[chosen & (a < 2)], minlength=MOST), P)
    # Action 2 is a random one in ε/3 of the choices, and greedy, for one step, in 1 − ε of them.
    shared = EPSILON / 3 * P
    shared[0] += 1 - EPSILON
    assert within(np.bincount(left[chosen & (a == 2)], minlength=MOST), shared / shared.sum())


def test_a_repeated_action_has_probability_one(played: tuple[np.ndarray, ...]) -> None:
    a, mu_a, left = played
    repeated = left[:-1] > 0
    repeated[LENGTH - 1 :: LENGTH] = False  # not into the next episode
    assert repeated.mean() > 0.1
    assert (a[1:][repeated] == a[:-1][repeated]).all()
    assert (mu_a[1:][repeated] == 1).all()
    assert (left[1:][repeated] == left[:-1][repeated] - 1).all()
    assert (left[LENGTH - 1 :: LENGTH] > 0).any(), "no episode ended within a repeat: nothing was tested"
    assert (mu_a[::LENGTH] < 1).all()


def test_durations_of_any_bound() -> None:
    for most in (1, 2, 10_000):
        p = repeats.probabilities(most)
        assert p.sum() == pytest.approx(1)
        np.testing.assert_allclose(p[0] / p, np.arange(1, most + 1) ** 2.0)
        drawn = np.asarray(repeats.draw_steps(jax.random.key(0), most, 2_000))
        assert drawn.min() == 1
        assert drawn.max() <= most


# -- runs ----------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "network": "mlp",
    "hidden_sizes": (8,),
    "num_actors": 4,
    "num_steps": 120,
    "fill": 40,
    "replay_size": 160,
    "tick_steps": 40,
    "window": 4,
    "epsilon": 1.0,
    "evaluation_ticks": 0,
    "evaluation_episodes": 2,
    "evaluation_steps": 20,
    "random_action_steps": 20,
}


@pytest.mark.parametrize("env", ["pocket/cartpole", "CartPole-v1"])
def test_resumed_is_never_stopped(env: str, tmp_path: Path) -> None:
    """Both kinds of environments, stopped while actions are repeated."""
    spec = TrainSpec(env=env, **SMALL)
    whole = train(spec, tmp_path / "whole")
    calls = iter(range(10**6))
    num_calls = 3 if env.startswith("pocket") else 25
    assert not train(spec, tmp_path / "run", stop=lambda: next(calls) == num_calls - 1).finished
    saved = checkpoints.load(tmp_path / "run").arrays
    assert any(name.endswith("repeats.steps_left") and value.any() for name, value in saved.items())
    again = train(spec, tmp_path / "run", resume=True)
    assert again.returns == whole.returns
    one, other = (checkpoints.load(tmp_path / name).arrays for name in ("whole", "run"))
    assert {name: a.tobytes() for name, a in one.items()} == {name: a.tobytes() for name, a in other.items()}


def test_the_host_chooses_as_the_program_does() -> None:
    """With the same member, observations and first steps."""
    plan = resolved(TrainSpec(env="CartPole-v1", **SMALL))
    host = Host([make("gymnasium/CartPole-v1")], [plan])
    try:
        state = host.start()
        busy = Repeats(jnp.array([1, 0, 1, 0], jnp.int32), jnp.array([3, 2, 1, 0], jnp.int32))
        group = state.groups[0]
        first = np.array([False, False, True, False])
        group.actor = group.actor._replace(first=first[None])
        state.rest = state.rest._replace(repeats=jax.tree.map(lambda leaf: leaf[None], busy))
        own_settings = jax.tree.map(lambda leaf: leaf[0], host._settings)
        bare = jax.tree.map(lambda leaf: leaf[0], (state.rest.learner.params, state.rest.key))
        member = Member(
            LearnerState(bare[0], None, None, state.rest.num_steps),
            None,
            None,
            None,
            bare[1],
            state.rest.num_steps,
            busy,
        )
        own = program.choose(host._prog, member, own_settings, group.actor.observation[0], first)
        host._choose(state, group)
        found = jax.tree.map(lambda leaf: leaf[0], (group.choice.a, group.choice.mu_a, state.rest.repeats))
    finally:
        host.close()
    a, mu_a, repeats = found
    assert np.array_equal(a, own.a)
    assert np.array_equal(mu_a, own.mu_a)
    assert np.asarray(a)[:2].tolist() == [1, 0]
    assert np.asarray(mu_a)[:2].tolist() == [1, 1]
    assert (np.asarray(mu_a)[2:] < 1).all()
    assert np.asarray(repeats.steps_left)[:2].tolist() == [2, 1]


def test_the_setting() -> None:
    """It is 1 and adds nothing to a run or its spec, except for the mountain cars."""
    plan = resolved(TrainSpec(env="pocket/catch"))
    assert plan.random_action_steps == ADDED["random_action_steps"] == 1
    assert "random_action_steps" not in to_json(plan)
    for env in ("MountainCar-v0", "pocket/mountain_car"):
        assert resolved(TrainSpec(env=env)).random_action_steps == 200
    with pytest.raises(ValueError, match=r"`random_action_steps` must be at most 10,000; got 10001\."):
        TrainSpec(env="pocket/catch", random_action_steps=10_001)
