"""The paper's asynchronous agent: one actor against a plain loop, several actors, stops, errors and records.

Compiling dominates, so all runs share one program: counts of all actors grow with their number.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import actor_records, replay, segments, spec, telemetry
from offtrace.agent.actor_records import ActorsRecord
from offtrace.agent.asynchronous import Asynchronous, AsynchronousState
from offtrace.agent.learner import LearnerState
from offtrace.agent.program import Member, act
from offtrace.agent.runtimes import runtime_for
from offtrace.agent.shared_parameters import SharedParameters
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.environments.interface import Actor, Ended, Row, Space
from offtrace.experiments.populations import populations

FILL, LEARN = 6, 12
"""Segments per actor without and with learning."""


def plan(num_actors: int = 1, **changes: Any) -> Plan:
    small: dict[str, Any] = {
        "env": "pocket/catch",
        "options": {"rows": 5, "columns": 4},
        "runtime": "asynchronous",
        "seed": 3,
        "network": "mlp",
        "hidden_sizes": (8,),
        "num_actors": num_actors,
        "steps_per_update": 4,
        "window": 3,
        "num_windows": 2,
        "lambda_": 0.9,
        "fill": 24 * num_actors,
        "replay_size": 60 * num_actors,  # smaller than the run, so that rows are overwritten
        "num_steps": 2_000 * num_actors,
        "epsilon_steps": 50 * num_actors,
        "target_period": 5,
        "step_size": 0.01,
        "tick_steps": 4 * LEARN * num_actors,
    }
    return resolved(TrainSpec(**{**small, **changes}))


def driven(runtime: Any, num_learning: int = LEARN) -> AsynchronousState:
    """Return the state after filling the memories and one tick of learning."""
    state = runtime.start()
    state, _ = runtime.advance(state, FILL, learns=False)
    runtime.end_tick(state)
    state, summary = runtime.advance(state, num_learning, learns=True)
    assert summary is not None
    return state


@functools.cache
def finished(num_actors: int = 1) -> tuple[Any, AsynchronousState]:
    """Return a runtime and its state; tests must not change it."""
    runtime = runtime_for([plan(num_actors)])
    return runtime, driven(runtime)


def bytes_of(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in arrays.items()}


# -- one actor against a plain loop --------------------------------------------------------------------------


def corrections(q: np.ndarray, q_target: np.ndarray, windows: Any, epsilon: float, given: Plan) -> np.ndarray:
    """Return the clamped ΔQ of a batch (n, B), term by term (Sec. 3), for double Q-learning and Retrace."""
    length, num_windows = windows.a.shape
    num_actions = q.shape[-1]
    pi = np.full(q.shape, epsilon / num_actions)
    np.put_along_axis(pi, q.argmax(-1)[..., None], 1 - epsilon + epsilon / num_actions, axis=-1)
    found = np.zeros((length, num_windows))
    for b in range(num_windows):
        for t in range(length):
            if not windows.mask[t, b]:
                continue
            weight = 1.0
            for s in range(t, length):
                a = windows.a[s, b]
                if s > t:
                    if windows.reset[s, b] or not windows.mask[s, b]:
                        break  # the episode of step t is over
                    weight *= given.gamma * given.lambda_ * min(1.0, pi[s, b, a] / windows.mu_a[s, b])
                value = (pi[s + 1, b] * q_target[s + 1, b]).sum()
                delta = windows.r[s, b] + given.gamma * windows.continues[s, b] * value
                # At s = t the online network's value, which the update changes (Deviation D32).
                delta -= (q if s == t else q_target)[s, b, a]
                found[t, b] += weight * delta
                if not windows.continues[s, b]:
                    break
    return np.clip(found, -1, 1)


def plain_loop(runtime: Any, given: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return parameters and moments of one actor-learner, from the equations of App. F."""
    prog = runtime._prog
    numbers = runtime._settings
    state = runtime.start()
    theta = state.shared.params.astype(np.float64)
    target = theta.copy()
    moments = np.zeros_like(theta)
    unread: Any = None
    member: Member = state.actors[0].member
    values = jax.jit(lambda params, obs: prog.network(segments.as_tree(prog, numbers, params), obs))
    pulled_back = jax.jit(lambda params, obs, q: jax.vjp(lambda one: values(one, obs), params)[1](q)[0])
    draw = jax.jit(lambda memory, key: replay.sample(memory, key, given.num_windows, given.window))
    take_step = jax.jit(lambda member: act(prog, member, numbers)[0])
    num_steps = 0
    num_updates = 0
    for segment in range(FILL + LEARN):
        params = jnp.asarray(theta, jnp.float32)
        network = LearnerState(segments.as_tree(prog, numbers, params), unread, unread, unread)
        member = member._replace(learner=network, num_steps=jnp.int32(num_steps))
        for _ in range(given.steps_per_update):
            member = take_step(member)
        num_steps += given.steps_per_update
        if segment < FILL:
            continue
        key, for_sample = jax.random.split(member.key)
        member = member._replace(key=key)
        windows = jax.tree.map(np.asarray, draw(member.replay, for_sample))
        # ε of the schedule that is followed, at its position.
        following = member.following
        end = (0.5, 0.1, 0.01)[int(following.current[0])]
        share = min(1.0, int(following.position[0, int(following.current[0])]) / given.epsilon_steps)
        epsilon = 1 - share + end * share
        q = np.asarray(values(params, windows.obs))
        q_target = np.asarray(values(jnp.asarray(target, jnp.float32), windows.obs))
        change = corrections(q, q_target, windows, epsilon, given)
        direction = np.zeros(q.shape, np.float32)
        rows = np.arange(given.window)[:, None], np.arange(given.num_windows)
        direction[(*rows, windows.a)] = -change / (given.window * given.num_windows)
        gradient = np.asarray(pulled_back(params, windows.obs, direction), np.float64)
        step_size = given.step_size * (1 - num_steps / given.num_steps)
        moments = 0.99 * moments + 0.01 * gradient**2
        theta = theta - step_size * gradient / np.sqrt(moments + given.regularisation)
        num_updates += 1
        if num_updates % given.target_period == 0:
            target = theta.copy()
    return theta, moments


def test_one_actor_is_a_plain_loop() -> None:
    runtime, state = finished()
    theta, moments = plain_loop(runtime, plan())
    moved = abs(theta - runtime.start().shared.params).max()
    assert moved > 0.01, "nothing was learned: nothing was tested"
    # Float32 against float64: 12 updates of rounding, far below what an update moves.
    np.testing.assert_allclose(state.shared.params, theta, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state.shared.moments, moments, rtol=1e-3, atol=1e-9)
    assert (state.shared.num_steps, state.shared.num_updates) == (4 * (FILL + LEARN), LEARN)


def test_one_actor_is_deterministic() -> None:
    runtime, state = finished()
    again = runtime_for([plan()])
    assert bytes_of(again.arrays(driven(again))) == bytes_of(runtime.arrays(state))
    other = runtime_for([plan(seed=4)])
    assert not np.array_equal(driven(other).shared.params, state.shared.params)


def test_a_stopped_tick_is_resumed_to_the_last_bit() -> None:
    runtime = runtime_for([plan()])
    whole = driven(runtime, 500)
    other = runtime_for([plan()])
    state = other.start()
    state, _ = other.advance(state, FILL, learns=False)
    other.end_tick(state)
    num_stops = 0
    while True:
        state, summary = other.advance(state, 500, learns=True, stop=lambda: True)
        if summary is not None:
            break
        num_stops += 1
        saved = other.arrays(state)
        assert 0 < other.num_done(state) < 500
        other = runtime_for([plan()])
        state = other.restore(saved)
        assert bytes_of(other.arrays(state)) == bytes_of(saved)
    assert num_stops > 0
    assert bytes_of(other.arrays(state)) == bytes_of(runtime.arrays(whole))


# -- shared parameters ---------------------------------------------------------------------------------------


def shared(**changes: Any) -> SharedParameters:
    given: dict[str, Any] = {
        "step_size": 0.1,
        "annealing_steps": 100,
        "decay": 0.99,
        "regularisation": 1e-3,
        "target_period": 2,
    }
    return SharedParameters(np.arange(5, dtype=np.float32), **{**given, **changes})


def test_shared_rmsprop_by_hand() -> None:
    """In float32, operation by operation: equal to the last bit. The moments are not centred."""
    one = shared()
    f = np.float32
    theta = np.arange(5, dtype=f)
    moments = np.zeros(5, f)
    rng = np.random.default_rng(0)
    for number in range(1, 5):
        gradient = rng.normal(size=5).astype(f)
        one.count_steps(10)
        one.apply(gradient, seen=one.num_updates, refused=False)
        moments = f(0.99) * moments + (f(1) - f(0.99)) * gradient * gradient
        step_size = f(0.1) * (f(1) - f(10 * number) / f(100))
        theta = theta - step_size * gradient / np.sqrt(moments + f(1e-3))
        assert np.array_equal(one.params, theta)
        assert np.array_equal(one.moments, moments)
        assert one.step_size == step_size
        if number == 2:
            copied = theta
    assert np.array_equal(one.target, theta)
    assert not np.array_equal(copied, theta)


def test_the_target_network_is_copied_every_period() -> None:
    one = shared(target_period=3)
    start = np.array(one.target)
    for number in range(1, 8):
        before = np.array(one.target)
        one.apply(np.ones(5, np.float32), seen=one.num_updates, refused=False)
        if number % 3 == 0:
            assert np.array_equal(one.target, one.params)
        else:
            assert np.array_equal(one.target, before)
    assert not np.array_equal(one.target, start)


def test_staleness_counts_the_updates_of_others() -> None:
    one = shared()
    copied, seen = one.copy()
    gradient = np.ones(5, np.float32)
    assert [one.apply(gradient, seen=seen, refused=False) for _ in range(3)] == [0, 1, 2]
    assert np.array_equal(copied, np.arange(5)), "a copy is private"


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    one = shared()
    one.apply(np.full(5, np.nan, np.float32), seen=0, refused=True)
    assert np.array_equal(one.params, np.arange(5))
    assert not one.moments.any()
    assert one.num_updates == 1


def test_the_step_size_ends_at_0() -> None:
    one = shared()
    one.count_steps(250)
    assert one.step_size == 0
    assert shared(annealing_steps=np.inf).step_size == np.float32(0.1)


# -- several actors ------------------------------------------------------------------------------------------


def test_counts_of_several_actors() -> None:
    runtime, state = finished(4)
    num_steps, num_updates, _ = state.totals.T
    assert runtime.counts(state) == (num_steps.sum(), num_updates.sum()) == (4 * 4 * (FILL + LEARN), 4 * LEARN)
    for actor, own in zip(state.actors, num_steps, strict=True):
        assert int(actor.member.replay.num_steps) == own, "an actor stores its own steps and no others"
    assert runtime.num_done(state) == 4 * LEARN


def test_each_actor_has_its_own_memory_key_and_schedule() -> None:
    runtime, _ = finished(4)
    state = runtime.start()
    state, _ = runtime.advance(state, FILL, learns=False)
    assert [int(actor.member.replay.num_steps) for actor in state.actors] == [4 * FILL] * 4
    memories = {np.asarray(actor.member.replay.frames).tobytes() for actor in state.actors}
    keys = {np.asarray(jax.random.key_data(actor.member.key)).tobytes() for actor in state.actors}
    assert len(memories) == len(keys) == 4
    assert {actor.member.replay.spec.capacity for actor in state.actors} == {60}
    # Filling is not asynchronous: nobody reads what others write.
    again = runtime.start()
    again, _ = runtime.advance(again, FILL, learns=False)
    for one, other in zip(again.actors, state.actors, strict=True):
        assert np.array_equal(one.member.replay.frames, other.member.replay.frames)
        assert np.array_equal(one.member.replay.records, other.member.replay.records)


def test_app_f_is_in_the_record() -> None:
    runtime, state = finished(4)
    record = runtime.actors_record(state)
    assert len(record.epsilon) == len(record.schedule) == len(record.num_switches) == 4
    assert sum(record.num_updates) == 4 * LEARN
    assert sum(record.num_steps) == 4 * 4 * (FILL + LEARN)
    assert 0 <= record.staleness <= record.largest_staleness < 4 * LEARN
    for actor, epsilon, schedule in zip(state.actors, record.epsilon, record.schedule, strict=True):
        position = int(actor.member.following.position[0, schedule])
        share = min(1, position / 50)
        assert epsilon == pytest.approx(1 - share + (0.5, 0.1, 0.01)[schedule] * share, abs=1e-6)
    alone = finished()[0].actors_record(finished()[1])
    assert (alone.staleness, alone.largest_staleness) == (0, 0)


def test_switches_are_counted() -> None:
    """An actor draws every 10 steps; a draw of the current schedule is no switch."""
    runtime = runtime_for([plan(2)])
    state = runtime.start()
    before = [int(actor.member.following.current[0]) for actor in state.actors]
    expected = [0, 0]
    for _ in range(20):
        state, _ = runtime.advance(state, 1, learns=False)
        runtime.end_tick(state)
        now = [int(actor.member.following.current[0]) for actor in state.actors]
        # A segment has 4 steps, so at most one draw.
        expected = [n + (a != b) for n, a, b in zip(expected, before, now, strict=True)]
        before = now
    assert state.totals[:, 2].tolist() == expected
    assert sum(expected) > 0


def test_saved_and_restored() -> None:
    runtime, state = finished(4)
    arrays = runtime.arrays(state)
    other = runtime_for([plan(4)])
    again = other.restore(arrays)
    assert bytes_of(other.arrays(again)) == bytes_of(arrays)
    again, summary = other.advance(again, 2 * LEARN, learns=True)
    assert summary is not None
    assert other.counts(again)[1] == 4 * 2 * LEARN
    with pytest.raises(ValueError, match=r"shared\.moments|moments"):
        other.restore({**arrays, "shared.moments": np.zeros(3, np.float32)})


def test_a_stop_takes_less_than_a_second() -> None:
    runtime, _ = finished(4)
    state = runtime.start()
    state, _ = runtime.advance(state, FILL, learns=False)
    runtime.end_tick(state)
    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.monotonic())
        return True

    state, summary = runtime.advance(state, 10**6, learns=True, stop=stop)
    assert summary is None
    assert time.monotonic() - asked[0] < 5  # about 0.1 s; the machine may be busy
    num_updates = runtime.counts(state)[1]
    time.sleep(0.05)
    assert runtime.counts(state)[1] == num_updates, "all threads have stopped"


def test_an_error_in_one_actor_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = runtime_for([plan(4)])
    state = driven(runtime)
    runtime.end_tick(state)
    own_segment = runtime._actors.segment

    def segment(actor: Any, *args: Any, **kwargs: Any) -> Any:
        if actor is state.actors[2] and state.totals[2, 1] > LEARN + 3:
            raise RuntimeError("actor 2 is broken")
        return own_segment(actor, *args, **kwargs)

    monkeypatch.setattr(runtime._actors, "segment", segment)
    with pytest.raises(RuntimeError, match="actor 2 is broken"):
        runtime.advance(state, 10**5, learns=True)
    assert runtime.num_done(state) < 10**5
    monkeypatch.undo()
    again = runtime.restore(runtime.arrays(state))
    _, summary = runtime.advance(again, runtime.num_done(state) // 4 + 5, learns=True)
    assert summary is not None


# -- environments on the host --------------------------------------------------------------------------------


class Corridor:
    """Rows of one actor: the state is a number that the actions change; an episode has six steps."""

    observation = Space((2,), np.dtype(np.float32))
    num_actions = 2
    notes = ("a note",)
    broken_at = 10**9

    def __init__(self, num_actors: int, seed: int) -> None:
        self.num_actors = num_actors
        self.seed = seed
        self.num_calls = 0

    def begin(self) -> Actor:
        self.num_calls = 0
        self.position = np.zeros(self.num_actors)
        self.length = np.zeros(self.num_actors, int)
        self.over = np.zeros(self.num_actors, bool)
        return self._actor()

    def _actor(self) -> Actor:
        obs = np.stack([self.position, np.full(self.num_actors, self.seed)], axis=-1).astype(np.float32)
        return Actor(None, obs, (self.length == 0) & ~self.over, self.over, self.position, self.length, None)

    def advance(self, a: np.ndarray) -> tuple[Actor, Row, Ended]:
        self.num_calls += 1
        if self.num_calls == self.broken_at and self.num_actors == 1 and self.seed == 4:
            raise RuntimeError("the corridor has collapsed")
        before = self._actor()
        over = self.over.copy()
        reward = np.where(over, 0, a).astype(np.float32)
        self.position = np.where(over, 0, self.position + a)
        self.length = np.where(over, 0, self.length + 1)
        self.over = self.length == 6
        ended = Ended(self.over, np.where(self.over, self.position, 0), np.where(self.over, 6, 0))
        return self._actor(), Row(before.observation, before.first, ~over, reward, ~self.over), ended

    def close(self) -> None:
        pass


def corridors(num_actors: int = 2, make: Callable[..., Any] = Corridor) -> Asynchronous:
    return Asynchronous(make, [plan(num_actors, env="gymnasium/Corridor-v0", options={}, evaluation_steps=20)])


def test_on_the_host_the_memory_is_what_a_plain_loop_sees() -> None:
    runtime = corridors()
    state = driven(runtime)
    for index, actor in enumerate(state.actors):
        memory = actor.member.replay
        assert int(memory.num_steps) == len(actor.actions) == state.totals[index, 0]
        rows = Corridor(1, 3 + index)
        rows.begin()
        for at, a in enumerate(actor.actions):
            _, row, _ = rows.advance(np.array([a]))
            if at < len(actor.actions) - 60:
                continue  # overwritten
            word, reward, mu_a = np.asarray(memory.records)[at % 60, 0]
            assert np.array_equal(np.asarray(memory.frames)[at % 60, 0], row.observation[0])
            assert word & 0xFF == a
            assert bool(word & replay.MASK) == row.mask[0]
            assert bool(word & replay.CONTINUES) == row.continues[0]
            assert bool(word & replay.RESET) == row.reset[0]
            assert reward.view(np.float32) == row.reward[0]
            assert 0 < mu_a.view(np.float32) <= 1
    assert runtime.notes[0] == "a note"
    returns, done = runtime.evaluate(state, 1, 3)
    assert returns.shape == done.shape == (1, 3)
    assert done.all()


def test_on_the_host_one_actor_is_deterministic_and_resumes_exactly() -> None:
    runtime = corridors(1)
    half = driven(runtime)
    other = corridors(1)
    arrays = runtime.arrays(half)
    assert "actor.0.memory.frames" not in arrays, "frames are not saved"
    resumed = other.restore(arrays)
    frames = [np.asarray(state.actors[0].member.replay.frames) for state in (half, resumed)]
    assert np.array_equal(*frames), "they come back when the actions are repeated"
    ends = []
    for own, state in ((runtime, half), (other, resumed)):
        own.end_tick(state)
        ended, _ = own.advance(state, LEARN, learns=True)
        ends.append(bytes_of(own.arrays(ended)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["actor.0.observation", "actor.0.memory.records"])
def test_an_environment_that_differs_is_not_resumed(name: str) -> None:
    """In its last observation, or in an action or flag of a stored row."""
    runtime = corridors(1)
    arrays = runtime.arrays(driven(runtime))
    arrays[name] = arrays[name] + 1
    with pytest.raises(ValueError, match="in another state than before"):
        corridors(1).restore(arrays)


def test_a_failed_environment_leaves_its_actor_as_before_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corridor, "broken_at", 4 * FILL + 11)  # in the third step of a segment
    runtime = corridors()
    state = runtime.start()
    state, _ = runtime.advance(state, FILL, learns=False)
    runtime.end_tick(state)
    with pytest.raises(RuntimeError, match="the corridor has collapsed"):
        runtime.advance(state, 10**5, learns=True)
    assert len(state.actors[1].actions) == 4 * FILL + 8
    assert int(state.actors[1].member.replay.num_steps) == 4 * FILL + 8
    saved = runtime.arrays(state)
    monkeypatch.setattr(Corridor, "broken_at", 10**9)
    other = corridors()
    again, summary = other.advance(other.restore(saved), runtime.num_done(state), learns=True)
    assert summary is not None
    assert len(again.actors[1].actions) > 4 * FILL + 8


# -- a run ---------------------------------------------------------------------------------------------------


def test_a_run_is_stopped_resumed_and_loaded(tmp_path: Path) -> None:
    given = dataclasses.replace(
        plan(2), num_steps=1_000, evaluation_ticks=0, evaluation_episodes=4, evaluation_steps=20
    )
    seen: list[telemetry.TickRecord] = []
    folder = tmp_path / "run"
    stopped = ot.train(given, folder, watcher=seen.append, stop=lambda: len(seen) == 4)
    assert not stopped.finished
    result = ot.train(given, folder, resume=True, watcher=seen.append)
    assert result.finished
    assert [record.tick for record in result.history] == list(range(len(result.history)))
    rows = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert "actors" not in rows[0], "nothing is measured of an untrained agent"
    assert len(rows[-1]["actors"]["epsilon"]) == 2
    assert telemetry.read(folder / "progress.jsonl")[-1].actors == result.history[-1].actors
    assert sum(result.history[-1].actors.num_updates) == result.history[-1].num_updates
    observation = np.zeros((3, *result.policy.spaces.observation.shape), result.policy.spaces.observation.dtype)
    assert np.array_equal(ot.load_policy(folder).q(observation), result.policy.q(observation))


def test_a_record_comes_back_from_json() -> None:
    record = ActorsRecord((0.5, 1.0), (0, 2), (3, 4), (64, 60), (16, 15), float("nan"), 0)
    again = actor_records.from_json(json.loads(json.dumps(actor_records.to_json(record))))
    assert again[:5] == record[:5]
    assert np.isnan(again.staleness)
    for wrong in ({"epsilon": 0.5}, {"staleness": "1"}, {"num_steps": [True]}):
        with pytest.raises(ValueError, match="actors"):
            actor_records.from_json(actor_records.to_json(record) | wrong)
    with pytest.raises(ValueError, match="must have epsilon"):
        actor_records.from_json({})


# -- specs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["retrace", "tree_backup", "q_lambda", "dqn"])
def test_on_atari_the_defaults_are_app_f(trace: str) -> None:
    """16 actor-learners of 62,500 transitions; the step size goes to 0 over 3·10⁸ frames of four per step."""
    given = resolved(TrainSpec(env="atari/pong", trace=trace, runtime="asynchronous"))
    paper = spec.PAPER["dqn" if trace == "dqn" else "multi-step"]
    assert (given.step_size, given.regularisation) == (paper["step_size"], paper["regularisation"])
    assert (given.optimiser, given.exploration) == ("rmsprop", "switching")
    assert given.annealing_steps * 4 == 300_000_000
    assert given.replay_size // given.num_actors == 62_500
    assert given.window * given.num_windows == 64
    assert given.clamp == given.reward_clamp == 1


def test_other_runtimes_keep_their_defaults() -> None:
    given = resolved(TrainSpec(env="atari/pong"))
    assert (given.runtime, given.optimiser, given.exploration) == ("synchronous", "adam", "linear")
    assert given.annealing_steps is None
    data = spec.to_json(given)
    assert not {"runtime", "annealing_steps"} & set(data), "the fingerprints of older runs stay"
    assert spec.from_json(data) == given
    asynchronous = resolved(TrainSpec(env="atari/pong", runtime="asynchronous", exploration="linear", epsilon=0.2))
    assert asynchronous.exploration == "linear"
    assert spec.from_json(spec.to_json(asynchronous)) == asynchronous


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`optimiser` must be rmsprop with `runtime='asynchronous'`"):
        TrainSpec(env="pocket/catch", runtime="asynchronous", optimiser="adam")
    with pytest.raises(ValueError, match=r"`runtime` must be one of synchronous, asynchronous \(did you mean"):
        TrainSpec(env="pocket/catch", runtime="asynchronos")
    with pytest.raises(ValueError, match="`specs` must have one entry"):
        runtime_for([plan(seed=0), plan(seed=1)])
    with pytest.raises(ValueError, match="`runtime` must be the same"):
        runtime_for([plan(), plan(runtime="synchronous")])
    with pytest.raises(ValueError, match="`tick_steps` must be at most"):
        runtime_for(
            [plan(steps_per_update=1, num_actors=16, tick_steps=10**6, num_steps=10**8, fill=500, replay_size=9_000)]
        )


def test_a_sweep_trains_each_on_its_own() -> None:
    specs = [plan(runtime=runtime, seed=seed) for runtime in ("asynchronous", "synchronous") for seed in range(3)]
    assert sorted(map(len, populations(specs, 10))) == [1, 1, 1, 3]


def test_an_annealing_shorter_than_the_run() -> None:
    runtime = runtime_for([plan(annealing_steps=4 * (FILL + LEARN))])
    assert driven(runtime).shared.step_size == 0
