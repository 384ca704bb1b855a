"""The actor-learners of the asynchronous runtime: each has an environment, a private replay and a random key.

A segment is a few steps of the environment with one copy of the parameters, and then the gradient
of a batch. `PureActors` runs it as one compiled call, `HostActors` steps Gymnasium's and Atari's
environments. Their methods are called by one thread per actor.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import segments
from offtrace.agent.learner import LearnerState
from offtrace.agent.program import Member, ProgramSpec, Settings, make_program
from offtrace.agent.saved_memory import FrameWriter, SavedMemory, to_saved
from offtrace.agent.settings import evaluation_key, settings
from offtrace.agent.spec import Plan
from offtrace.agent.states import checked_array, from_arrays, to_arrays, under
from offtrace.agent.synchronous import Population, Synchronous
from offtrace.environments import program_shape
from offtrace.environments.interface import Space

Stop = Callable[[], bool]


class Segment(NamedTuple):
    """The result of a segment."""

    record: np.ndarray
    """The columns of `segments.RECORD`."""
    gradient: np.ndarray | None = None
    """None without learning."""


@dataclass
class ActorLearner:
    """The state of one actor-learner between two segments."""

    member: Member
    """Environment, ε schedules, replay and random key; without networks."""
    rows: Any = None
    """Its environment on the host."""
    actor: Any = None
    """The state of that environment's rows, an `Actor`."""
    actions: bytearray = field(default_factory=bytearray)
    """Every action in that environment, to repeat them after a restart."""


def actor_key(spec: Plan, index: int) -> jax.Array:
    """Return the random key of an actor-learner: from the seed and its index, independent of evaluations."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), 2), index)


# -- pure environments ---------------------------------------------------------------------------------------


class PureActors:
    """Actor-learners with environments in JAX."""

    notes: tuple[str, ...] = ()

    def __init__(self, env: Any, plan: Plan, program: ProgramSpec) -> None:
        self.max_return = env.max_return
        self._plan = plan
        # It is not trained, and serves for evaluations.
        self._evaluator = Synchronous(env, [dataclasses.replace(plan, steps_per_update=plan.num_actors)])
        self.settings = one_member(settings([plan]))
        if plan.env.startswith("mdp/"):
            self.settings = self.settings._replace(world=env.world)
            env = program_shape(plan.env, plan.options)
        self.prog = make_program(env, program)

    def start(self, index: int) -> ActorLearner:
        return ActorLearner(segments.init_member(self.prog, 1, self.settings, actor_key(self._plan, index)))

    def segment(self, actor: ActorLearner, params: Any, target: Any, num_steps: int, *, learns: bool) -> Segment:
        """Run a segment that begins after `num_steps` steps of all actors."""
        now = np.int32(num_steps)
        if not learns:
            actor.member, record = segments.act_and_store(self.prog, actor.member, self.settings, params, now)
            return Segment(np.asarray(record))
        actor.member, gradient, record = segments.act_and_learn(
            self.prog, actor.member, self.settings, params, target, now
        )
        return Segment(np.asarray(record), np.asarray(gradient))

    def evaluate(
        self, params: Any, number: int, num_episodes: int, stop: Stop
    ) -> tuple[np.ndarray, np.ndarray] | None:
        tree = segments.as_tree(self.prog, self.settings, jnp.asarray(params))
        unread: Any = None  # of an agent, an evaluation reads only the online network
        networks = LearnerState(jax.tree.map(lambda leaf: leaf[None], tree), unread, unread, unread)
        member = Member(networks, unread, unread, unread, unread, unread)
        return self._evaluator.evaluate(Population(member), number, num_episodes, stop=stop)

    def arrays(self, actor: ActorLearner) -> dict[str, np.ndarray]:
        return to_arrays(actor.member, prefix="member.")

    def restore(self, index: int, arrays: Mapping[str, np.ndarray], stop: Stop) -> ActorLearner | None:
        return ActorLearner(from_arrays(self.template, under("member.", arrays)))

    @functools.cached_property
    def template(self) -> Member:
        """The shapes of a member."""
        return jax.eval_shape(functools.partial(segments.init_member, self.prog, 1), self.settings, jax.random.key(0))

    def close(self) -> None:
        """Do nothing: the environments are arrays."""


# -- environments on the host --------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostSpaces:
    """What a program needs to know of an environment on the host."""

    observation: Space
    num_actions: int


class HostActors:
    """Actor-learners with environments on the host; `make(num_actors=1, seed=…)` returns one.

    A failed step leaves its actor as before the segment, so that it can be saved and resumed.
    """

    max_return = None

    def __init__(self, make: Callable[..., Any], plan: Plan, program: ProgramSpec) -> None:
        self._make = make
        self._plan = plan
        self._open: list[Any] = []
        self._rows = [self._make_rows(1, plan.seed + index) for index in range(plan.num_actors)]
        first = self._rows[0]
        self.notes: tuple[str, ...] = getattr(first, "notes", ())
        self._stack = getattr(first, "stack", 1)
        try:
            if first.num_actions > 256:
                raise ValueError(
                    "`env` must have at most 256 actions, as the memory stores an action in one byte; "
                    f"{plan.env} has {first.num_actions}."
                )
            self.settings = one_member(settings([plan]))
            spaces: Any = HostSpaces(first.observation, first.num_actions)
            self.prog = make_program(spaces, program)
        except ValueError:
            self.close()
            raise

    def _make_rows(self, num_actors: int, seed: int) -> Any:
        rows = self._make(num_actors=num_actors, seed=seed)
        self._open.append(rows)
        return rows

    def start(self, index: int) -> ActorLearner:
        rows = self._rows[index]
        key = actor_key(self._plan, index)
        return ActorLearner(segments.init_member(self.prog, self._stack, self.settings, key), rows, rows.begin())

    def segment(self, actor: ActorLearner, params: Any, target: Any, num_steps: int, *, learns: bool) -> Segment:
        """Run a segment that begins after `num_steps` steps of all actors."""
        params = jax.device_put(params)  # once for all steps
        policy = segments.without(actor.member, "replay")
        seen = actor.actor
        steps = []
        actions = bytearray()
        record = np.zeros(4, np.float32)
        for i in range(self.prog.spec.rounds):
            now = np.int32(num_steps + i)
            first = None if policy.repeats is None else seen.first
            chosen, switched = segments.choose(self.prog, policy, self.settings, params, now, seen.observation, first)
            a = np.asarray(chosen.a)
            seen, row, ended = actor.rows.advance(a)
            policy = policy._replace(key=chosen.key, following=chosen.following, repeats=chosen.repeats)
            actions.append(int(a[0]))
            steps.append((row, a, np.asarray(chosen.mu_a)))
            record += [ended.ended.sum(), ended.episode_return.sum(), ended.episode_length.sum(), switched]
        rows = jax.tree.map(lambda *parts: np.stack(parts), *steps)
        member = policy._replace(replay=actor.member.replay)
        # Only from here on the actor is changed.
        actor.actor = seen
        actor.actions += actions
        if not learns:
            actor.member = segments.store(self.prog, member, *rows)
            return Segment(record)
        actor.member, gradient, update = segments.store_and_learn(
            self.prog, member, self.settings, params, target, np.int32(num_steps), *rows
        )
        return Segment(np.concatenate([record, np.asarray(update)]), np.asarray(gradient))

    def evaluate(
        self, params: Any, number: int, num_episodes: int, stop: Stop
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Play evaluation episodes, one per environment, so that short episodes do not count more than long ones."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(evaluation_key(self._plan, number))))
        rows = self._make_rows(num_episodes, int(rng.integers(2**31 - num_episodes)))
        try:
            return self._play(rows, jax.device_put(params), rng, num_episodes, stop)
        finally:
            rows.close()
            self._open.remove(rows)

    def _play(
        self, rows: Any, params: Any, rng: np.random.Generator, num_episodes: int, stop: Stop
    ) -> tuple[np.ndarray, np.ndarray] | None:
        actor = rows.begin()
        returns = np.zeros(num_episodes)
        done = np.zeros(num_episodes, bool)
        for _ in range(self._plan.evaluation_steps):
            if stop():
                return None
            a = np.asarray(segments.greedy(self.prog, self.settings, params, actor.observation))
            explores = rng.random(num_episodes) < self._plan.evaluation_epsilon
            a = np.where(explores, rng.integers(rows.num_actions, size=num_episodes), a)
            actor, row, ended = rows.advance(a)
            returns += np.where(done, 0, row.reward)
            done |= ended.ended
            if done.all():
                break
        return returns[None], done[None]

    def arrays(self, actor: ActorLearner) -> dict[str, np.ndarray]:
        found = to_arrays(segments.without(actor.member, "replay"), prefix="member.")
        found |= {f"memory.{name}": value for name, value in to_saved(actor.member.replay).items()}
        found["actions"] = np.frombuffer(bytes(actor.actions), np.uint8)
        found["observation"] = np.asarray(actor.actor.observation)
        return found

    def restore(self, index: int, arrays: Mapping[str, np.ndarray], stop: Stop) -> ActorLearner | None:
        """Repeat the actions in a new environment; None if `stop` returned True before the last one."""
        member = from_arrays(segments.without(self.template, "replay"), under("member.", arrays))
        memory = SavedMemory(under("memory.", arrays), self.template.replay)
        actions = checked_array(arrays, "actions", np.uint8, (memory.num_steps,))
        writer = FrameWriter(memory.without_frames())
        rows = self._rows[index]
        actor = rows.begin()
        for time, a in enumerate(actions):
            if stop():
                return None
            actor, row, _ = rows.advance(np.array([a], np.int64))
            if not memory.keeps(time):
                continue
            writer.add(time, row.observation)
            flags = {"reset": row.reset, "mask": row.mask, "continues": row.continues}
            if not memory.matches(time, action=actions[time : time + 1], **flags):
                raise self._differs(index, time + 1)
        writer.flush()
        seen = arrays.get("observation")
        if seen is None or not np.array_equal(actor.observation, seen, equal_nan=True):
            raise self._differs(index, len(actions))
        member = member._replace(replay=writer.memory)
        return ActorLearner(member, rows, actor, bytearray(actions.tobytes()))

    def _differs(self, index: int, num_actions: int) -> ValueError:
        return ValueError(
            f"{self._plan.env} is in another state than before after the same {num_actions:,} actions of actor "
            f"{index}. It is not a function of its seed, so this run cannot be resumed."
        )

    @functools.cached_property
    def template(self) -> Member:
        """The shapes of a member."""
        init = functools.partial(segments.init_member, self.prog, self._stack)
        return jax.eval_shape(init, self.settings, jax.random.key(0))

    def close(self) -> None:
        """Close the environments."""
        for rows in self._open:
            rows.close()


def one_member(stacked: Settings) -> Settings:
    """Return the numbers of the only member, without the axis of members."""
    return jax.tree.map(lambda leaf: leaf[0], stacked)
