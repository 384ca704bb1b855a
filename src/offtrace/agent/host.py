"""The runtime of Gymnasium's and Atari's environments: they step on the CPU while the learner works.

    learner     … add rows k−1, updates ─────────┐   … add rows k, updates ────
    choice              waits for the updates    └─ a_{k+1} ─┐
    environments  step with a_k ────────┘                    └─ step with a_{k+1} …

The learner's part of an iteration is dispatched first and runs while the environments step, so it
learns from rows up to the previous iteration. The order is fixed, so a run is a function of its
spec.

Environments cannot be saved, but their actions can: a resumed run makes the environments anew,
repeats the actions, and raises an error if the last observation differs from the saved one.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from offtrace.agent import memory, program, replay
from offtrace.agent.learner import LearnerState, UpdateRecord
from offtrace.agent.population import TickSummary
from offtrace.agent.program import Member, Probe, make_program
from offtrace.agent.runs import TICK
from offtrace.agent.settings import evaluation_key, num_batch_entries, program_spec, settings
from offtrace.agent.spec import Plan
from offtrace.agent.states import checked_array, from_arrays, to_arrays, under
from offtrace.environments.interface import Actor, Row

Stop = Callable[[], bool]


@dataclass
class PartialTick:
    """The finished part of a tick: a run can be saved between any two steps of its environments."""

    num_iterations: int = 0
    """Finished iterations."""
    steps: list[tuple[Row, np.ndarray, np.ndarray]] = field(default_factory=list)
    """Rows of the current iteration, with a and μ(a)."""
    chosen: tuple[np.ndarray, np.ndarray] | None = None
    """a and μ(a) that the environments have not executed yet."""
    episodes: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Number of ended episodes, sum of their returns, sum of their lengths."""
    updates: list[UpdateRecord] = field(default_factory=list)
    """One entry per iteration. They stay on the device until the tick ends, so that nothing waits for the learner."""


@dataclass
class HostState:
    """The member on the device, and the environments on the host."""

    member: Member
    rows: Any
    actor: Actor
    pending: tuple[Row, np.ndarray, np.ndarray] | None = None
    """A chunk of rows that the learner has not seen yet, with a and μ(a), time first."""
    actions: list[np.ndarray] = field(default_factory=list)
    """Every action of the run, to repeat them after a restart."""
    tick: PartialTick = field(default_factory=PartialTick)


class Host:
    """One member; `make(num_actors=…, seed=…)` returns its environments."""

    def __init__(self, make: Callable[..., Any], specs: Sequence[Plan]) -> None:
        if len(specs) != 1:
            raise ValueError(
                f"`specs` must have one entry for environments on the host; got {len(specs)}. Train them separately."
            )
        self.specs = tuple(specs)
        self.spec = specs[0]
        self.program = program_spec(self.spec)
        self.max_return = None
        self._make = make
        self._open: list[Any] = []
        self._rows = self._make_rows(self.spec.num_actors, self.spec.seed)
        self.notes: tuple[str, ...] = getattr(self._rows, "notes", ())
        self._stack = getattr(self._rows, "stack", 1)
        self._settings = jax.tree.map(lambda leaf: leaf[0], settings(specs))
        self._key = jax.random.key(self.spec.seed)
        try:
            self._prog = make_program(self._rows, self.program)
            self._check()
        except ValueError:
            self.close()
            raise

    def _check(self) -> None:
        if self._rows.num_actions > 256:
            raise ValueError(
                f"`env` must have at most 256 actions, as the memory stores an action in one byte; {self.spec.env} "
                f"has {self._rows.num_actions}."
            )
        memory.check_fits(self._template, num_batch_entries(self._prog, self.spec), self.specs)

    def start(self) -> HostState:
        member = jax.jit(self._init)()
        return HostState(member, self._rows, self._rows.begin())

    def _init(self) -> Member:
        member = program.init(self._prog, self._settings, self._key)
        if self._stack == 1:
            return member
        # Observations are stacks of frames; rows, and so the memory, hold single frames.
        shape, dtype = self._rows.observation
        spec = replay.ReplaySpec(self.program.capacity, self.program.num_actors, shape[1:], dtype, self._stack)
        return member._replace(replay=replay.init(spec))

    @functools.cached_property
    def _template(self) -> Member:
        return jax.eval_shape(self._init)

    def _make_rows(self, num_actors: int, seed: int) -> Any:
        rows = self._make(num_actors=num_actors, seed=seed)
        self._open.append(rows)
        return rows

    # -- a tick ----------------------------------------------------------------------------------------------

    def advance(
        self, state: HostState, num_iterations: int, *, learns: bool, stop: Stop = lambda: False
    ) -> tuple[HostState, TickSummary | None]:
        """Run the rest of a tick.

        If an environment fails, `state` is left as after its last step, and can be saved and
        resumed.
        """
        tick = state.tick
        while tick.num_iterations < num_iterations:
            while len(tick.steps) < self.program.rounds:
                if stop():
                    return state, None
                self._step(state, learns)
            state.pending = jax.tree.map(lambda *parts: np.stack(parts), *tick.steps)
            tick.steps = []
            tick.num_iterations += 1
        return state, _summary(tick)

    def _step(self, state: HostState, learns: bool) -> None:
        """Take one step of every environment."""
        tick = state.tick
        if tick.chosen is None:
            tick.chosen = self._choose_actions(state, learns)
        a, mu_a = tick.chosen
        state.actor, row, ended = state.rows.advance(a)  # may raise: `chosen` is kept until the step is done
        tick.chosen = None
        state.actions.append(a.astype(np.uint8))
        tick.steps.append((row, a, mu_a))
        tick.episodes += [ended.ended.sum(), ended.episode_return.sum(), ended.episode_length.sum()]

    def _choose_actions(self, state: HostState, learns: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the next actions and their probabilities; start the learner on pending rows, without waiting."""
        chosen = self._choose(state.member, self._settings, state.actor)
        # The actions are read before the learner is dispatched: later they would have to wait for its updates.
        a = np.asarray(chosen.a)
        mu_a = np.asarray(chosen.mu_a)
        state.member = state.member._replace(key=chosen.key, following=chosen.following, repeats=chosen.repeats)
        if state.pending is not None:
            state.member, updates = self._absorb(learns)(state.member, self._settings, *state.pending)
            state.pending = None
            if updates is not None:
                state.tick.updates.append(updates)
        return a, mu_a

    @functools.cached_property
    def _choose(self) -> Any:
        """`program.choose`, compiled; it takes only the parts of the member that it reads."""

        def choose(
            params: Any, key: Any, following: Any, num_steps: Any, repeats: Any, settings: Any, obs: Any, first: Any
        ) -> Any:
            learner = LearnerState(params, None, None, num_steps)
            member = Member(learner, None, following, self._template.replay, key, num_steps, repeats)
            return program.choose(self._prog, member, settings, obs, first)

        compiled = jax.jit(choose)

        def call(member: Member, settings: Any, actor: Actor) -> Any:
            first = None if member.repeats is None else actor.first
            state = (member.learner.params, member.key, member.following, member.num_steps, member.repeats)
            return compiled(*state, settings, actor.observation, first)

        return call

    @functools.lru_cache  # noqa: B019 (a runtime lives as long as its run)
    def _absorb(self, learns: bool) -> Any:
        """Return a compiled function that stores a chunk of rows and, if it `learns`, runs the updates."""

        def absorb(member: Member, settings: Any, row: Row, a: Any, mu_a: Any) -> Any:
            member = program.remember(self._prog, member, row, a, mu_a)
            if not learns:
                return member, None
            return program.learn(self._prog, member, settings)

        return jax.jit(absorb, donate_argnums=0)

    def end_tick(self, state: HostState) -> None:
        state.tick = PartialTick()

    def num_done(self, state: HostState) -> int:
        """Return a count that rises by one with every choice of actions and with every step of the environments."""
        tick = state.tick
        num_rows = tick.num_iterations * self.program.rounds + len(tick.steps)
        return 2 * num_rows + (tick.chosen is not None)

    def counts(self, state: HostState) -> tuple[int, int]:
        """Return steps and updates at the end of a tick. Steps that the learner has not seen yet count, too."""
        num_pending = 0
        if state.pending is not None:
            num_pending = state.pending[1].size
        return int(state.member.num_steps) + num_pending, int(state.member.learner.num_updates)

    # -- measuring -------------------------------------------------------------------------------------------

    def probe(self, state: HostState, number: int) -> Probe:
        found = self._probe(state.member, self._settings, key=jax.random.key(number))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)

    @functools.cached_property
    def _probe(self) -> Any:
        return jax.jit(functools.partial(program.probe, self._prog))

    def evaluate(
        self, state: HostState, number: int, num_episodes: int, *, stop: Stop = lambda: False
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Play evaluation episodes, one per environment, so that short episodes do not count more than long ones."""
        key = evaluation_key(self.spec, number)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        rows = self._make_rows(num_episodes, int(rng.integers(2**31 - num_episodes)))
        try:
            return self._play(rows, state.member.learner.params, rng, num_episodes, stop)
        finally:
            rows.close()
            self._open.remove(rows)

    def _play(
        self, rows: Any, params: Any, rng: np.random.Generator, num_episodes: int, stop: Stop
    ) -> tuple[np.ndarray, np.ndarray] | None:
        actor = rows.begin()
        returns = np.zeros(num_episodes)
        done = np.zeros(num_episodes, bool)
        for _ in range(self.spec.evaluation_steps):
            if stop():
                return None
            a = np.asarray(self._greedy(params, actor.observation))
            explores = rng.random(num_episodes) < self.spec.evaluation_epsilon
            a = np.where(explores, rng.integers(rows.num_actions, size=num_episodes), a)
            actor, row, ended = rows.advance(a)
            returns += np.where(done, 0, row.reward)
            done |= ended.ended
            if done.all():
                break
        return returns[None], done[None]

    @functools.cached_property
    def _greedy(self) -> Any:
        return jax.jit(lambda params, obs: self._prog.network(params, obs).argmax(-1))

    # -- saving ----------------------------------------------------------------------------------------------

    def parameters(self, state: HostState) -> list[dict[str, np.ndarray]]:
        return [to_arrays(state.member.learner.params)]

    def arrays(self, state: HostState) -> dict[str, np.ndarray]:
        found = to_arrays(state.member, prefix="member.")
        if state.pending is not None:
            found |= to_arrays(state.pending, prefix="pending.")
        found |= {f"tick.{name}": value for name, value in _tick_arrays(state.tick).items()}
        found["actions"] = np.zeros((0, self.spec.num_actors), np.uint8)
        if state.actions:
            found["actions"] = np.stack(state.actions)
        found["observation"] = np.asarray(state.actor.observation)
        return found

    def restore(self, arrays: Mapping[str, np.ndarray], *, stop: Stop = lambda: False) -> HostState | None:
        """Return the saved state; None if `stop` returned True while the actions were repeated."""
        member = from_arrays(self._template, under("member.", arrays))
        actions = list(checked_array(arrays, "actions", np.uint8, (-1, self.spec.num_actors)))
        actor = self._rows.begin()
        for a in actions:
            if stop():
                return None
            actor, _, _ = self._rows.advance(a.astype(np.int64))
        seen = arrays.get("observation")
        if seen is None or not np.array_equal(actor.observation, seen, equal_nan=True):
            raise ValueError(
                f"{self.spec.env} is in another state than before after the same {len(actions):,} actions of each "
                "actor. It is not a function of its seed, so this run cannot be resumed exactly."
            )
        pending = None
        if saved := under("pending.", arrays):
            pending = self._restore_rows(saved, (self.program.rounds,))
        tick = self._restore_tick(under("tick.", arrays))
        return HostState(member, self._rows, actor, pending, actions, tick)

    def _restore_rows(
        self, arrays: Mapping[str, np.ndarray], time: tuple[int, ...]
    ) -> tuple[Row, np.ndarray, np.ndarray]:
        """Return rows with a and μ(a), as `to_arrays` names them: shapes are (*time, num_actors, …)."""
        axes = (*time, self.spec.num_actors)
        shape, dtype = self._rows.observation
        if self._stack > 1:
            shape = shape[1:]
        row = Row(
            observation=checked_array(arrays, "[0].observation", dtype, (*axes, *shape)),
            reset=checked_array(arrays, "[0].reset", bool, axes),
            mask=checked_array(arrays, "[0].mask", bool, axes),
            reward=checked_array(arrays, "[0].reward", np.float32, axes),
            continues=checked_array(arrays, "[0].continues", bool, axes),
        )
        a = checked_array(arrays, "[1]", np.int32, axes)
        return row, a, checked_array(arrays, "[2]", np.float32, axes)

    def _restore_tick(self, arrays: Mapping[str, np.ndarray]) -> PartialTick:
        actors = (self.spec.num_actors,)
        num_iterations, num_steps = (int(n) for n in checked_array(arrays, "counts", np.int64, (2,)))
        if not (0 <= num_iterations < TICK and 0 <= num_steps < self.program.rounds):
            raise ValueError(
                f"the checkpoint has impossible counts: {num_iterations} iterations and {num_steps} steps of a tick."
            )
        tick = PartialTick(num_iterations, episodes=checked_array(arrays, "ends", np.float64, (3,)).copy())
        tick.steps = [self._restore_rows(under(f"seen.{i}.", arrays), ()) for i in range(num_steps)]
        if "chosen.a" in arrays:
            a = checked_array(arrays, "chosen.a", np.int32, actors)
            tick.chosen = (a, checked_array(arrays, "chosen.mu_a", np.float32, actors))
        if "progress.loss" in arrays:
            updates = UpdateRecord(
                loss=checked_array(arrays, "progress.loss", np.float32, (-1,)),
                gradient=checked_array(arrays, "progress.gradient", np.float32, (-1,)),
                refused=checked_array(arrays, "progress.refused", bool, (-1,)),
            )
            tick.updates = [updates]
        return tick

    def close(self) -> None:
        """Close the environments."""
        for rows in self._open:
            rows.close()


def _tick_arrays(tick: PartialTick) -> dict[str, np.ndarray]:
    """Return the tick as named arrays. The names are those of saved runs."""
    found = {"counts": np.array([tick.num_iterations, len(tick.steps)]), "ends": tick.episodes.copy()}
    for i, rows in enumerate(tick.steps):
        found |= to_arrays(rows, prefix=f"seen.{i}.")
    if tick.chosen is not None:
        found |= {"chosen.a": tick.chosen[0], "chosen.mu_a": tick.chosen[1]}
    if tick.updates:
        found |= {f"progress.{name}": value for name, value in _concatenated(tick.updates)._asdict().items()}
    return found


def _concatenated(updates: list[UpdateRecord]) -> UpdateRecord:
    """Return the records of all updates as one."""
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *updates)


def _summary(tick: PartialTick) -> TickSummary:
    """Return the summary of a finished tick, with an axis of one member."""
    num_episodes, total_return, total_length = tick.episodes
    loss = math.nan
    gradient = math.nan
    num_refused = 0
    if tick.updates:
        updates = _concatenated(tick.updates)
        loss = updates.loss.mean()
        gradient = updates.gradient.mean()
        num_refused = int(updates.refused.sum())
    values = (int(num_episodes), total_return, int(total_length), loss, gradient, num_refused)
    return TickSummary(*(np.asarray([value]) for value in values))
