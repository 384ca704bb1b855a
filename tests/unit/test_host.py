"""Environments on the host: the learner is one iteration behind, and its memory holds what a plain loop sees."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from offtrace.agent import checkpoints
from offtrace.agent.groups import HostState
from offtrace.agent.host import Host
from offtrace.agent.replay import CONTINUES, MASK, RESET
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.agent.training import train
from offtrace.environments import make
from offtrace.environments.interface import Actor, Ended, Row, Space

FILL, LEARN = 10, 15
"""Iterations without and with learning."""


def plan(**changes: Any) -> Plan:
    small: dict[str, Any] = {
        "env": "CartPole-v1",
        "seed": 5,
        "hidden_sizes": (8,),
        "num_actors": 3,
        "steps_per_update": 6,  # two rounds of three actors, then one update
        "window": 3,
        "num_windows": 4,
        "fill": 30,
        "replay_size": 300,
        "num_steps": 1_000,
        "epsilon_steps": 100,
    }
    return resolved(TrainSpec(**{**small, **changes}))


@pytest.fixture(scope="module")
def driven() -> Iterator[tuple[Host, HostState, list[tuple[int, int, int]]]]:
    """Return a host after some iterations, with the steps, updates and stored rows after each."""
    host = Host([make("gymnasium/CartPole-v1")], [plan()])
    state, seen = host.start(), []
    for number in range(FILL + LEARN):
        state, _ = host.advance(state, 1, learns=number >= FILL)
        host.end_tick(state)
        seen.append((*host.counts(state), int(state.memory.num_steps)))
    yield host, state, seen
    host.close()


def test_the_learner_is_one_iteration_behind(driven: Any) -> None:
    host, _, seen = driven
    assert (host.program.rounds, host.program.updates) == (2, 1)
    for number, (num_steps, num_updates, num_rows) in enumerate(seen):
        assert num_steps == (number + 1) * 2 * 3
        assert num_rows == number * 2, "the last chunk waits"
        assert num_updates == max(0, number + 1 - FILL)


def test_memory_is_what_a_plain_loop_sees(driven: Any) -> None:
    """The same actions in environments with the same seed give the same rows for every actor."""
    _, state, _ = driven
    memory = state.memory
    group = state.groups[0]
    frames, records = np.asarray(memory.frames), np.asarray(memory.records)
    with make("gymnasium/CartPole-v1")(num_actors=3, seed=5) as rows:
        rows.begin()
        for time, (a,) in enumerate(group.actions):
            _, row, _ = rows.advance(a.astype(np.int64))
            if time >= int(memory.num_steps):
                waiting = group.rows[time - int(memory.num_steps)]
                assert all(np.array_equal(own[0], seen) for own, seen in zip(waiting, row, strict=False))
                assert np.array_equal(waiting.action[0], a)
                continue
            word, reward, mu_a = records[time].T
            assert np.array_equal(frames[time], row.observation)
            assert np.array_equal(reward.view(np.float32), row.reward)
            assert np.array_equal(word & 0xFF, a)
            for bit, flag in ((RESET, row.reset), (MASK, row.mask), (CONTINUES, row.continues)):
                assert np.array_equal((word & bit) > 0, flag)
            assert ((mu_a.view(np.float32) > 0) & (mu_a.view(np.float32) <= 1)).all()
    assert len(group.actions) == int(memory.num_steps) + 2
    assert not (records[: int(memory.num_steps), :, 0] & MASK).all(), "no episode ended: nothing was tested"


def test_restored_is_the_same(driven: Any) -> None:
    """New environments reach the saved state by repeating the actions."""
    host, state, _ = driven
    arrays = host.arrays(state)
    other = Host([make("gymnasium/CartPole-v1")], [plan()])
    try:
        again = other.restore(arrays)
        assert {n: a.tobytes() for n, a in other.arrays(again).items()} == {n: a.tobytes() for n, a in arrays.items()}
        assert np.array_equal(again.groups[0].actor.episode_return, state.groups[0].actor.episode_return)
        assert np.array_equal(again.memory.frames, state.memory.frames), "frames are not saved: they come back"
        wrong = {**arrays, "group.0.observation": arrays["group.0.observation"] + 1}
        with pytest.raises(ValueError, match="is in another state than before after the same 50 actions"):
            other.restore(wrong)
        records = arrays["memory.records"].copy()
        records[20, 1, 0] ^= MASK
        with pytest.raises(ValueError, match="is in another state than before after the same 21 actions"):
            other.restore({**arrays, "memory.records": records})
    finally:
        other.close()


# -- populations ---------------------------------------------------------------------------------------------


def test_a_member_is_the_same_run_as_alone() -> None:
    """Members differ in seed, trace and step size; on a CPU each equals its run alone to the last bit."""
    small = {"hidden_sizes": (8,), "num_actors": 4, "window": 3, "num_windows": 4, "fill": 60, "replay_size": 200}
    small |= {"num_steps": 400, "evaluation_episodes": 5, "evaluation_ticks": 2, "tick_steps": 100}
    specs = [
        TrainSpec(env="CartPole-v1", **small),
        TrainSpec(env="CartPole-v1", seed=3, trace="tree_backup", step_size=1e-3, **small),
    ]
    together = train(specs)
    for spec, member in zip(specs, together, strict=True):
        alone = train(spec)
        assert alone.returns == member.returns
        assert [record.episode_return for record in alone.history] == pytest.approx(
            [record.episode_return for record in member.history], nan_ok=True, abs=0
        )
        for name, value in alone.parameters.items():
            assert np.array_equal(value, member.parameters[name]), name


@pytest.mark.parametrize("num_members", [1, 3])
def test_the_memory_is_not_copied(num_members: int) -> None:
    """Storing and learning in one program works in place: its temporary arrays are much smaller than the memory."""
    specs = [plan(seed=seed, replay_size=300_000) for seed in range(num_members)]
    host = Host([make("gymnasium/CartPole-v1")] * num_members, specs)
    try:
        state = host.start()
        state, _ = host.advance(state, 1, learns=False)
        rows = [group.rows for group in state.groups]
        program = host._programs.store.lower(
            rest=state.rest, memory=state.memory, settings=host._settings, rows=rows, num_updates=1, counts=True
        ).compile()
    finally:
        host.close()
    used = program.memory_analysis()
    assert used.alias_size_in_bytes > state.memory.frames.nbytes, "the memory is not updated in place"
    assert used.temp_size_in_bytes < state.memory.frames.nbytes / 4


def test_different_environments_are_not_one_population() -> None:
    specs = [plan(), plan(env="Acrobot-v1")]
    with pytest.raises(ValueError, match="`env` must be the same for all members of a population"):
        Host([make("gymnasium/CartPole-v1"), make("gymnasium/Acrobot-v1")], specs)


# -- resuming with new episodes ------------------------------------------------------------------------------


def test_a_resume_with_new_episodes_fills_the_memory_again(tmp_path: Path) -> None:
    """It repeats nothing; the network goes on, and neither steps nor updates of the filling count."""
    spec = plan(num_steps=600, tick_steps=120, evaluation_ticks=0, evaluation_episodes=2)
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return calls > 100

    stopped = train(spec, tmp_path / "run", stop=stop)
    assert not stopped.finished
    before = checkpoints.load(tmp_path / "run").arrays
    host = Host([make("gymnasium/CartPole-v1")], [spec])
    try:
        state = host.restore(before, new_episodes=True)
        assert state.num_restarts == 1
        assert int(state.memory.num_steps) == 0
        assert not state.groups[0].actions
        assert state.groups[0].fleet.rows.seed not in range(spec.seed, spec.seed + 3)
        num_steps = int(state.rest.num_steps)
        state, _ = host.advance(state, 1 + state.tick.num_turns // 2, learns=True)
        assert int(state.memory.num_steps) >= host.program.fill
        assert int(state.rest.num_steps) == num_steps + 6
        # A later resume repeats the actions since then.
        again = host.restore(host.arrays(state))
        assert np.array_equal(again.memory.frames, state.memory.frames)
    finally:
        host.close()
    result = train(spec, tmp_path / "run", resume=True, new_episodes=True)
    assert result.finished
    assert result.num_steps >= 600
    events = [event for record in result.history for event in record.events]
    assert any("resumed with new episodes" in event for event in events)


def test_a_stop_while_the_memory_is_filled_again_loses_nothing(tmp_path: Path) -> None:
    spec = plan(num_steps=600, tick_steps=120, evaluation_ticks=0, evaluation_episodes=2)
    calls = iter(range(10**6))
    train(spec, tmp_path / "run", stop=lambda: next(calls) > 100)
    saved = checkpoints.numbers(tmp_path / "run")
    train(spec, tmp_path / "run", resume=True, new_episodes=True, stop=lambda: True)
    assert checkpoints.numbers(tmp_path / "run") == saved
    assert train(spec, tmp_path / "run", resume=True).finished


def test_new_episodes_without_a_resume_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`new_episodes` must come with `resume`"):
        train(plan(), tmp_path / "run", new_episodes=True)
    assert not (tmp_path / "run").exists()


# -- factors of observations ---------------------------------------------------------------------------------


def doubled() -> gymnasium.Env:
    """Return MountainCar with twice the positions and eight times the speeds."""
    env = gymnasium.make("MountainCar-v0")
    factors = np.array([2, 8], np.float32)
    low, high = (factors * bound for bound in (env.observation_space.low, env.observation_space.high))
    space = gymnasium.spaces.Box(low, high, dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda x: factors * x, space)


def test_factors_of_observations_are_as_if_the_environment_had_them() -> None:
    """Products with powers of two are exact, so the runs are the same to the last bit."""
    common = {"random_action_steps": 5, "step_size": 1e-3, "epsilon": 0.1, "target_period": 50, "num_steps": 1_000}
    common["evaluation_episodes"] = 5
    runs = [train(plan(env="MountainCar-v0", observation_scale=scale, **common)) for scale in ((2, 8), (1, 1))]
    runs.append(train(plan(env=doubled, observation_scale=(), **common)))
    ends = [[(r.loss, r.q, r.gradient) for r in run.history[2:]] for run in runs]
    assert ends[0] == ends[2]
    assert ends[0] != ends[1]
    assert runs[0].returns == runs[2].returns


# -- evaluation ----------------------------------------------------------------------------------------------


class Scripted:
    """Actor i has episodes of i + 1 steps with a reward of 1 each, and resets after each episode."""

    observation, num_actions, max_return = Space((2,), np.dtype(np.float32)), 2, None
    notes = ()

    def __init__(self, num_actors: int, seed: int) -> None:
        self.num_actors, self.seed, self.time, self.closed = num_actors, seed, 0, False

    def begin(self) -> Actor:
        none = np.zeros(self.num_actors, bool)
        return Actor(None, np.zeros((self.num_actors, 2), np.float32), ~none, none, None, None, None)

    def send(self, actions: np.ndarray) -> None:
        self.time += 1

    def receive(self) -> tuple[Actor, Row, Ended]:
        one = np.ones(self.num_actors, np.float32)
        ended = self.time % (np.arange(self.num_actors) + 1) == 0
        flags = np.ones(self.num_actors, bool)
        return self.begin(), Row(None, flags, flags, one, ~ended), Ended(ended, None, None)

    def close(self) -> None:
        self.closed = True


def test_every_episode_counts_once() -> None:
    """Although the first actor ends nine episodes before the last one ends its first."""
    made: list[Scripted] = []

    def scripted(num_actors: int, seed: int) -> Scripted:
        made.append(Scripted(num_actors, seed))
        return made[-1]

    host = Host([scripted], [plan(evaluation_steps=9)])
    state = host.start()
    returns, ended = host.evaluate(state, 0, 10)
    assert returns.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]]
    assert ended.tolist() == [[True] * 9 + [False]]
    host.evaluate(state, 1, 10)
    host.evaluate(state, 0, 10)
    assert made[1].seed == made[3].seed != made[2].seed
    assert [rows.closed for rows in made] == [False, True, True, True]
    host.close()
    assert made[0].closed


def test_actions_that_do_not_fit_a_byte() -> None:
    made: list[Scripted] = []

    class Many(Scripted):
        num_actions = 257

    def many(num_actors: int, seed: int) -> Scripted:
        made.append(Many(num_actors, seed))
        return made[-1]

    with pytest.raises(ValueError, match=r"at most 256 actions.* has 257"):
        Host([many], [plan()])
    assert made[0].closed
