"""The compiled functions of a population whose environments are on the host.

    choose    newest frames in, actions out, for one group of actors of every member
    learn     some updates of every member
    store     rows of all groups to the memory, then some updates
    greedy    actions of evaluations
    probe     metrics; changes nothing

Arrays have a leading axis of members. The exception is the memory, which all members share:

    columns of the memory     0 1 2 … N−1     N … 2N−1     2N …
    actors of member          0               1            2

With an axis of its own for members, XLA's CPU compiler would copy the whole memory at every update.

Only the newest frames cross to the device: stacks are kept there, and the frames that an action was
chosen for are those that its row stores.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from offtrace.agent import population, program, replay
from offtrace.agent.learner import LearnerState, UpdateRecord
from offtrace.agent.program import ActionChoice, Member, Probe, Program, Settings

GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
"""What XLA puts into CUDA graphs: its defaults, and whole loops."""


@functools.cache
def _options() -> dict[str, Any] | None:
    """Return the options of the compiler for the updates.

    An update is about a hundred short kernels. As one graph they start without the host, which is
    45 % faster on an H200 with one member.
    """
    if jax.default_backend() != "gpu":
        return None
    options: dict[str, Any] = {"xla_gpu_enable_command_buffer": GRAPHS}
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options)()
    except Exception:  # another version of XLA, which knows other names
        return None
    return options


class HostPrograms:
    """The functions of one program; `stack` is the number of frames per observation."""

    def __init__(self, prog: Program, *, stack: int) -> None:
        self._prog = prog
        self._stack = stack
        self.choose = jax.jit(self._choose, donate_argnames="stacks")
        self.learn = jax.jit(
            self._learn, static_argnames="num_updates", donate_argnames="rest", compiler_options=_options()
        )
        self.store = jax.jit(
            self._store,
            static_argnames=("num_updates", "counts"),
            donate_argnames=("rest", "memory"),
            compiler_options=_options(),
        )
        self.greedy = jax.jit(self._greedy, donate_argnames="stacks")
        self.probe = jax.jit(self._probe)

    def empty_memory(self, num_members: int) -> replay.ReplayState:
        """Return the memory of all members without rows; it holds single frames."""
        spec = self._prog.spec
        shape, dtype = self._prog.env.observation
        if self._stack > 1:
            shape = shape[1:]
        num_actors = num_members * spec.num_actors
        return replay.init(replay.ReplaySpec(spec.capacity, num_actors, shape, dtype, self._stack))

    def empty_stacks(self, num_members: int, num_actors: int) -> Any:
        """Return stacks without frames; None where an observation is a single frame."""
        if self._stack == 1:
            return None
        shape, dtype = self._prog.env.observation
        return jnp.zeros((num_members, num_actors, *shape), dtype)

    def _observations(self, stacks: Any, frames: jax.Array, first: jax.Array) -> tuple[jax.Array, Any]:
        """Return the observations of some actors and their new stacks."""
        if self._stack == 1:
            return frames, None
        stacks = replay.push(stacks, frames, first)
        return stacks, stacks

    def _choose(
        self,
        params: Any,
        key: jax.Array,
        following: Any,
        repeats: Any,
        num_steps: jax.Array,
        settings: Settings,
        first_actor: Any,
        *,
        stacks: Any,
        frames: jax.Array,
        first: jax.Array,
    ) -> tuple[ActionChoice, Any]:
        """Return the actions of one group, and its stacks. It takes only the parts of the members that it reads."""

        def one(given: tuple[Any, ...]) -> tuple[ActionChoice, Any]:
            params, key, following, repeats, settings, stacks, frames, first = given
            observations, stacks = self._observations(stacks, frames, first)
            member = Member(
                learner=LearnerState(params, None, None, num_steps),
                actors=None,
                following=following,
                replay=None,
                key=key,
                num_steps=num_steps,
                repeats=repeats,
            )
            chosen = program.choose(self._prog, member, settings, observations, first, first_actor=first_actor)
            return chosen, stacks

        return population.for_one_or_each(one)((params, key, following, repeats, settings, stacks, frames, first))

    def _learn(
        self, rest: Member, memory: replay.ReplayState, settings: Settings, *, num_updates: int
    ) -> tuple[Member, UpdateRecord]:
        """Run some updates; `rest` is the members without their memory, which stays as it is."""

        def one(member: Member, settings: Settings) -> tuple[Member, UpdateRecord]:
            member, updates = program.learn(self._prog, member, settings, num_updates)
            return member._replace(replay=None), updates

        members, updates = self._map_members(one, rest, memory, settings)
        return population.shared_clocks(members), updates

    def _store(
        self,
        rest: Member,
        memory: replay.ReplayState,
        settings: Settings,
        rows: list[list[replay.Rows]],
        *,
        num_updates: int,
        counts: bool,
    ) -> tuple[Member, replay.ReplayState, UpdateRecord | None]:
        """Store rows, a list of steps for each group, then run some updates.

        With `counts=False` the steps do not count, and so change no schedule.
        """
        groups = [jax.tree.map(lambda *steps: jnp.stack(steps), *steps) for steps in rows]
        chunk = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), *groups)  # (steps, members, actors, …)
        num_steps, _, num_actors = chunk.action.shape
        columns = jax.tree.map(lambda leaf: leaf.reshape(num_steps, -1, *leaf.shape[3:]), chunk)
        memory = program.with_rows(self._prog, memory, columns)
        if counts:
            rest = rest._replace(num_steps=rest.num_steps + num_steps * num_actors)
        if not num_updates:
            return rest, memory, None
        rest, updates = self._learn(rest, memory, settings, num_updates=num_updates)
        return rest, memory, updates

    def _probe(self, rest: Member, memory: replay.ReplayState, settings: Settings, key: jax.Array) -> Probe:
        """Measure every member, all with the same key."""
        return self._map_members(functools.partial(program.probe, self._prog, key=key), rest, memory, settings)

    def _map_members(
        self, function: Callable[..., Any], rest: Member, memory: replay.ReplayState, settings: Settings
    ) -> Any:
        """Apply `function` to every member, with its part of the memory, and its settings."""
        num_actors = self._prog.spec.num_actors
        first_actors = jnp.arange(0, memory.spec.num_actors, num_actors)

        def one(member: Member, settings: Settings, first_actor: jax.Array) -> Any:
            part = replay.part(memory, first_actor, num_actors)
            return function(member._replace(replay=part), settings)

        return population.map_members(one, rest, settings, first_actors, each=population.for_one_or_each)

    def _greedy(self, params: Any, *, stacks: Any, frames: jax.Array, first: jax.Array) -> tuple[jax.Array, Any]:
        """Return the greedy actions of every member's actors, and their stacks."""

        def one(given: tuple[Any, ...]) -> tuple[jax.Array, Any]:
            params, stacks, frames, first = given
            observations, stacks = self._observations(stacks, frames, first)
            return self._prog.network(params, observations).argmax(-1), stacks

        return population.for_one_or_each(one)((params, stacks, frames, first))
