"""The runtime of Gymnasium's and Atari's environments: they step on the CPU while the learner works.

Atari's actors are two groups, which take turns, so that neither the environments nor the device
wait (`groups.py`); others are one. A turn of a group, for all members at once:

    host      receive rows ─┐               ┌─ send actions           the other group is stepping
    device                  └─ choose a ────┴─ updates …

The actions wait for the updates of the turn before. Nobody waits for those of this turn.
Rows are stored once all groups have theirs. The order is fixed, so a run is a function of its spec.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import host_saving, memory, population
from offtrace.agent.groups import Choice, Group, HostState, PartialTick
from offtrace.agent.host_programs import HostPrograms
from offtrace.agent.population import TickSummary
from offtrace.agent.program import Member, Probe, make_program
from offtrace.agent.settings import check_shapes, evaluation_key, num_batch_entries, program_spec, settings
from offtrace.agent.spec import Plan
from offtrace.agent.states import members_of, to_arrays
from offtrace.environments.fleet import Fleet

Stop = Callable[[], bool]


class Host:
    """A population; `makers` has a factory of environments for each member."""

    def __init__(self, makers: Sequence[Callable[..., Any]], specs: Sequence[Plan]) -> None:
        check_shapes(specs)
        self.specs = tuple(specs)
        self.spec = specs[0]
        self.program = program_spec(self.spec)
        self.max_return = None
        self._makers = makers
        self._open: list[Fleet] = []
        self._num_groups = 1
        if getattr(makers[0], "alternates", False) and self.program.num_actors % 2 == 0:
            self._num_groups = 2
            # The first updates come before the newest rows are stored, and need a window.
            fill = max(self.program.fill, self.program.window + 2)
            self.program = dataclasses.replace(self.program, fill=fill)
        self._settings = settings(specs)
        self._keys = jnp.stack([jax.random.key(spec.seed) for spec in specs])
        self._fleets = self._make_groups(num_restarts=0)
        rows = self._fleets[0].rows
        self.notes: tuple[str, ...] = getattr(rows, "notes", ())
        try:
            self._prog = make_program(rows, self.program)
            self._programs = HostPrograms(self._prog, stack=getattr(makers[0], "stack", 1))
            self._check(rows)
        except ValueError:
            self.close()
            raise

    def _check(self, rows: Any) -> None:
        if rows.num_actions > 256:
            raise ValueError(
                f"`env` must have at most 256 actions, as the memory stores an action in one byte; {self.spec.env} "
                f"has {rows.num_actions}."
            )
        memory.check_fits(self.template, num_batch_entries(self._prog, self.spec), self.specs)

    def start(self) -> HostState:
        return self._state(jax.jit(self._init)(), self._fleets)

    def _state(self, members: Member, fleets: Sequence[Fleet], num_restarts: int = 0) -> HostState:
        """Return a state whose environments are at the start of their first episodes."""
        groups = []
        for number, fleet in enumerate(fleets):
            stacks = self._programs.empty_stacks(len(self.specs), fleet.num_actors)
            groups.append(Group(fleet, number * fleet.num_actors, fleet.begin(), stacks))
        tick = PartialTick.empty(len(self.specs))
        return HostState(members._replace(replay=None), members.replay, groups, tick, num_restarts)

    def _init(self) -> Member:
        """Return untrained members; their memory has no axis of members."""
        members = population.init(self._prog, self._settings, self._keys, has_memory=False)
        return members._replace(replay=self._programs.empty_memory(len(self.specs)))

    @functools.cached_property
    def template(self) -> Member:
        """The shapes of the members."""
        return jax.eval_shape(self._init)

    def _make_groups(self, num_restarts: int) -> list[Fleet]:
        """Return the environments of each group."""
        num_actors = self.program.num_actors // self._num_groups
        seeds = [host_saving.first_seed(spec, num_restarts) for spec in self.specs]
        return [
            self._make_fleet(num_actors, [seed + number * num_actors for seed in seeds])
            for number in range(self._num_groups)
        ]

    def _make_fleet(self, num_actors: int, seeds: Sequence[int]) -> Fleet:
        fleet = Fleet(self._makers, num_actors, seeds)
        self._open.append(fleet)
        return fleet

    def _close_fleet(self, fleet: Fleet) -> None:
        fleet.close()
        self._open.remove(fleet)

    # -- a tick ----------------------------------------------------------------------------------------------

    def advance(
        self, state: HostState, num_iterations: int, *, learns: bool, stop: Stop = lambda: False
    ) -> tuple[HostState, TickSummary | None]:
        """Run the rest of a tick.

        If an environment fails, `state` is left as after its last turn, and can be saved and
        resumed.
        """
        if learns and not self._refill(state, stop):
            return state, None
        num_turns = num_iterations * self._turns_per_iteration
        while state.tick.num_turns < num_turns:
            if stop():
                state.receive_all()
                return state, None
            self._turn(state, learns=learns)
            state.tick.num_turns += 1
        state.receive_all()
        return state, _summary(state.tick)

    @property
    def _turns_per_iteration(self) -> int:
        return self.program.rounds * self._num_groups

    def _refill(self, state: HostState, stop: Stop) -> bool:
        """Fill a memory that a resume has left empty, without learning; False if `stop` returned True."""
        while not state.tick.num_turns % self._turns_per_iteration and self._lacks_rows(state):
            for number in range(self._turns_per_iteration):
                self._turn(state, learns=False, number=number, counts=False)
            state.receive_all()
            state.tick.episodes[:] = 0  # these steps do not count, and so their episodes do not
            if stop():
                return False
        return True

    def _lacks_rows(self, state: HostState) -> bool:
        num_rows = int(state.memory.num_steps) + len(state.groups[0].rows)
        return num_rows < self.program.fill

    def _turn(self, state: HostState, *, learns: bool, number: int | None = None, counts: bool = True) -> None:
        """Run one turn of a group; `number` is that of the turn in the tick."""
        if number is None:
            number = state.tick.num_turns
        turn = number % self._turns_per_iteration
        round_, index = divmod(turn, self._num_groups)
        group = state.groups[index]
        state.count(group.receive())
        self._choose(state, group)
        if jax.default_backend() == "cpu":
            # A CPU would finish the updates before it gives back the actions.
            group.send()
        if round_ == 0:
            self._work(state, index, learns=learns, counts=counts)
        group.send()

    def _choose(self, state: HostState, group: Group) -> None:
        """Choose the next actions of a group."""
        rest = state.rest
        frames = group.actor.observation
        if jax.default_backend() != "cpu":
            frames = jnp.asarray(frames)  # once, for the choice and for the memory
        chosen, group.stacks = self._programs.choose(
            rest.learner.params,
            rest.key,
            rest.following,
            rest.repeats,
            rest.num_steps,
            self._settings,
            np.int32(group.first_actor),
            stacks=group.stacks,
            frames=frames,
            first=group.actor.first,
        )
        state.rest = rest._replace(key=chosen.key, following=chosen.following, repeats=chosen.repeats)
        chosen.a.copy_to_host_async()
        group.choice = Choice(frames, chosen.a, chosen.mu_a)

    def _work(self, state: HostState, index: int, *, learns: bool, counts: bool) -> None:
        """Dispatch the share of a group in the updates of an iteration; the last group also stores all rows."""
        num_updates = 0
        if learns:
            total = self.program.updates
            num_updates = total * (index + 1) // self._num_groups - total * index // self._num_groups
        stores = index == self._num_groups - 1 and bool(state.groups[0].rows)
        if index == self._num_groups - 1 and not stores:
            return
        updates = None
        if stores:
            rows = [group.rows[: self.program.rounds] for group in state.groups]
            state.rest, state.memory, updates = self._programs.store(
                rest=state.rest,
                memory=state.memory,
                settings=self._settings,
                rows=rows,
                num_updates=num_updates,
                counts=counts,
            )
            for group in state.groups:
                del group.rows[: self.program.rounds]
        elif num_updates:
            state.rest, updates = self._programs.learn(
                rest=state.rest, memory=state.memory, settings=self._settings, num_updates=num_updates
            )
        if updates is not None:
            state.tick.updates.append(updates)

    def end_tick(self, state: HostState) -> None:
        state.tick = PartialTick.empty(len(self.specs))

    def num_done(self, state: HostState) -> int:
        """Return a count that rises with every turn and when the environments have answered."""
        if not state.tick.num_turns:
            return 0
        has_received = all(group.choice is None for group in state.groups)
        return 2 * state.tick.num_turns + has_received

    def counts(self, state: HostState) -> tuple[int, int]:
        """Return steps and updates at the end of a tick. Steps that are not stored yet count, too."""
        num_waiting = sum(len(group.rows) * group.fleet.num_actors for group in state.groups)
        return int(state.rest.num_steps) + num_waiting, int(state.rest.learner.num_updates)

    # -- measuring -------------------------------------------------------------------------------------------

    def probe(self, state: HostState, number: int) -> Probe:
        found = self._programs.probe(state.rest, state.memory, self._settings, jax.random.key(number))
        return jax.tree.map(np.asarray, found)

    def evaluate(
        self, state: HostState, number: int, num_episodes: int, *, stop: Stop = lambda: False
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Play evaluation episodes, one per environment, so that short episodes do not count more than long ones."""
        keys = [evaluation_key(spec, number) for spec in self.specs]
        rngs = [np.random.default_rng(np.asarray(jax.random.key_data(key))) for key in keys]
        seeds = [int(rng.integers(2**31 - num_episodes)) for rng in rngs]
        fleet = self._make_fleet(num_episodes, seeds)
        try:
            return self._play(fleet, state.rest.learner.params, rngs, stop)
        finally:
            self._close_fleet(fleet)

    def _play(
        self, fleet: Fleet, params: Any, rngs: Sequence[np.random.Generator], stop: Stop
    ) -> tuple[np.ndarray, np.ndarray] | None:
        actor = fleet.begin()
        shape = (fleet.num_members, fleet.num_actors)
        stacks = self._programs.empty_stacks(*shape)
        returns = np.zeros(shape)
        done = np.zeros(shape, bool)
        for _ in range(self.spec.evaluation_steps):
            if stop():
                return None
            greedy, stacks = self._programs.greedy(params, stacks=stacks, frames=actor.observation, first=actor.first)
            explores = np.stack([rng.random(shape[1]) < self.spec.evaluation_epsilon for rng in rngs])
            drawn = np.stack([rng.integers(fleet.rows.num_actions, size=shape[1]) for rng in rngs])
            fleet.send(np.where(explores, drawn, np.asarray(greedy)))
            actor, row, ended = fleet.receive()
            returns += np.where(done, 0, row.reward)
            done |= ended.ended
            if done.all():
                break
        return returns, done

    # -- saving ----------------------------------------------------------------------------------------------

    def parameters(self, state: HostState) -> list[dict[str, np.ndarray]]:
        return members_of(to_arrays(state.rest.learner.params), len(self.specs))

    def arrays(self, state: HostState) -> dict[str, np.ndarray]:
        return host_saving.to_saved(state)

    def restore(
        self, arrays: Mapping[str, np.ndarray], *, new_episodes: bool = False, stop: Stop = lambda: False
    ) -> HostState | None:
        """Return the saved state; None if `stop` returned True while the actions were repeated.

        With `new_episodes` the actions are not repeated: all environments start new episodes, and
        the memory is filled again before learning goes on.
        """
        saved = host_saving.SavedState(arrays, self.template)
        num_restarts = saved.num_restarts + new_episodes
        if num_restarts:
            for fleet in self._fleets:
                self._close_fleet(fleet)
            self._fleets = self._make_groups(num_restarts)
        rows = self._programs.empty_memory(len(self.specs)) if new_episodes else saved.memory.without_frames()
        state = self._state(saved.rest._replace(replay=rows), self._fleets, num_restarts)
        state.tick = saved.tick()
        if new_episodes:
            state.tick.num_turns -= state.tick.num_turns % self._turns_per_iteration
        elif not host_saving.repeat_actions(state, saved, self.spec, stop):
            return None
        return state

    def close(self) -> None:
        """Close the environments."""
        for fleet in self._open:
            fleet.close()


def _summary(tick: PartialTick) -> TickSummary:
    """Return the summary of a finished tick."""
    num_members = len(tick.episodes)
    loss = np.full(num_members, np.nan)
    gradient = np.full(num_members, np.nan)
    num_refused = np.zeros(num_members, np.int64)
    if tick.updates:
        updates = host_saving.joined_updates(tick.updates)
        loss = updates.loss.mean(1)
        gradient = updates.gradient.mean(1)
        num_refused = updates.refused.sum(1)
    num_episodes, total_return, total_length = tick.episodes.T
    return TickSummary(
        num_episodes.astype(np.int64), total_return, total_length.astype(np.int64), loss, gradient, num_refused
    )
