"""Gymnasium's environments, and Atari's, on the CPU, the learner wherever JAX is, the two overlapped.

    learner     … add rows k−1, updates ─────────┐   … add rows k, updates ────
    choice              waits for the updates    └─ a_{k+1} ─┐
    environments  step with a_k ────────┘                    └─ step with a_{k+1} …

The learner's part of an iteration is dispatched first and runs while the environments step, so it learns from rows up
to the iteration before; the order is fixed, and a run is a function of its spec.

Environments cannot be saved. Their actions are: a resumed run makes the environments anew, repeats the actions, and
must see what was seen last, or it is refused.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from offtrace.agent import memory, replay, synchronous
from offtrace.agent.learner import Progress
from offtrace.agent.runs import TICK
from offtrace.agent.runtimes import (
    arrays_of,
    evaluation_key,
    never,
    num_batch_entries,
    program_spec,
    settings,
    state_of,
)
from offtrace.agent.spec import Plan
from offtrace.agent.synchronous import Member, Probe, Tick
from offtrace.environments.interface import Actor, Row


@dataclass
class HostState:
    """What is on the device, and where the environments stand."""

    member: Member
    rows: Any
    actor: Actor
    pending: tuple[Row, np.ndarray, np.ndarray] | None = None
    """Rows that the learner has not seen yet, with a and μ(a): a chunk, time first."""
    actions: list[np.ndarray] = field(default_factory=list)
    """All that were ever taken, to repeat them."""
    tick: "UnderWay" = field(default_factory=lambda: UnderWay())


@dataclass
class UnderWay:
    """What has been done of a tick: a run can be saved between any two steps of its environments."""

    num_iterations: int = 0
    """Those that are whole."""
    seen: list[tuple[Row, np.ndarray, np.ndarray]] = field(default_factory=list)
    """Rows of the iteration that is not, with a and μ(a)."""
    chosen: tuple[np.ndarray, np.ndarray] | None = None
    """a and μ(a) that the environments have not been given yet."""
    ends: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """Episodes that ended, their returns and lengths, summed up."""
    progress: list[Any] = field(default_factory=list)
    """Of the updates; on the device until the tick is over, so that the learner is not waited for."""


class Host:
    """One member; the environments are made by `make(num_actors=…, seed=…)`."""

    def __init__(self, make: Callable[..., Any], specs: Sequence[Plan]) -> None:
        if len(specs) != 1:
            raise ValueError(f"`specs` must be one for environments on the host, not {len(specs)}. Train them apart.")
        self.specs = tuple(specs)
        self.spec = specs[0]
        self.program, self.max_return = program_spec(self.spec), None
        self._make = make
        self._open: list[Any] = []
        self._rows = self._made(self.spec.num_actors, self.spec.seed)
        if self._rows.num_actions > 256:
            self.close()
            raise ValueError(
                f"`env` must have at most 256 actions, as the memory keeps a byte of each; {self.spec.env} has "
                f"{self._rows.num_actions}."
            )
        self._prog = synchronous.program(self._rows, self.program)
        self._settings = jax.tree.map(lambda leaf: leaf[0], settings(specs))
        self._key = jax.random.key(self.spec.seed)
        try:
            memory.refuse_too_large(self._template, num_batch_entries(self._prog, self.specs), self.specs)
        except ValueError:
            self.close()
            raise

    def start(self) -> HostState:
        member = jax.jit(self._init)()
        return HostState(member, self._rows, self._rows.begin())

    def _init(self) -> Member:
        member = synchronous.init_one(self._prog, self._settings, self._key)
        stack = getattr(self._rows, "stack", 1)
        if stack == 1:
            return member
        shape, dtype = self._rows.observation  # of a stack; its rows are single frames, and so is what is kept
        kept = replay.Spec(self.program.capacity, self.program.num_actors, shape[1:], dtype, stack)
        return member._replace(replay=replay.init(kept))

    def advance(
        self, state: HostState, num_iterations: int, *, learns: bool, stop: Callable[[], bool] = never
    ) -> tuple[HostState, Tick | None]:
        """What fails in an environment leaves `state` where its last step left it, to be saved and gone on with."""
        tick = state.tick
        while tick.num_iterations < num_iterations:
            while len(tick.seen) < self.program.rounds:
                if stop():
                    return state, None
                if tick.chosen is None:
                    tick.chosen = self._chosen(state, learns)
                a, mu_a = tick.chosen
                state.actor, row, ended = state.rows.advance(a)
                tick.chosen = None
                state.actions.append(a.astype(np.uint8))
                tick.seen.append((row, a, mu_a))
                tick.ends += [ended.ended.sum(), ended.episode_return.sum(), ended.episode_length.sum()]
            state.pending = jax.tree.map(lambda *parts: np.stack(parts), *tick.seen)
            tick.seen = []
            tick.num_iterations += 1
        return state, _tick(tick.ends, tick.progress)

    def _chosen(self, state: HostState, learns: bool) -> tuple[np.ndarray, np.ndarray]:
        """The next actions and their probabilities. If rows wait for the learner, it is set to work, and not waited
        for.
        """
        chosen = self._choose(state.member, self._settings, state.actor.observation)
        a, mu_a = np.asarray(chosen.a), np.asarray(chosen.mu_a)
        state.member = state.member._replace(key=chosen.key, following=chosen.following)
        if state.pending is not None:
            state.member, news = self._absorb(learns)(state.member, self._settings, *state.pending)
            state.pending = None
            if news is not None:
                state.tick.progress.append(news)
        return a, mu_a

    def over(self, state: HostState) -> None:
        state.tick = UnderWay()

    def num_done(self, state: HostState) -> int:
        """Rises by one with every choice of actions, and with every step of the environments."""
        tick = state.tick
        num_rows = tick.num_iterations * self.program.rounds + len(tick.seen)
        return 2 * num_rows + (tick.chosen is not None)

    @functools.cached_property
    def _choose(self) -> Any:
        def choose(params: Any, key: Any, following: Any, num_steps: Any, settings: Any, obs: Any) -> Any:
            learner = synchronous.LearnerState(params, None, None, num_steps)
            member = Member(learner, None, following, self._template.replay, key, num_steps)
            return synchronous.choose(self._prog, member, settings, obs)

        compiled = jax.jit(choose)
        return lambda m, s, obs: compiled(m.learner.params, m.key, m.following, m.num_steps, s, obs)

    @functools.lru_cache  # noqa: B019 (a runtime lives as long as its run)
    def _absorb(self, learns: bool) -> Any:
        def absorb(member: Member, settings: Any, row: Row, a: Any, mu_a: Any) -> Any:
            member = synchronous.remember(self._prog, member, row, a, mu_a)
            return synchronous.learn(self._prog, member, settings) if learns else (member, None)

        return jax.jit(absorb, donate_argnums=0)

    def probe(self, state: HostState, number: int) -> Probe:
        found = self._probe(state.member, self._settings, key=jax.random.key(number))
        return jax.tree.map(lambda leaf: np.asarray(leaf)[None], found)

    @functools.cached_property
    def _probe(self) -> Any:
        return jax.jit(functools.partial(synchronous.probe_one, self._prog))

    def evaluate(
        self, state: HostState, number: int, num_episodes: int, *, stop: Callable[[], bool] = never
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Each in an environment of its own, so that short episodes do not count more than long ones."""
        key = evaluation_key(self.spec, number)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        rows = self._made(num_episodes, int(rng.integers(2**31 - num_episodes)))
        try:
            actor = rows.begin()
            returns, done = np.zeros(num_episodes), np.zeros(num_episodes, bool)
            for _ in range(self.spec.evaluation_steps):
                if stop():
                    return None
                a = np.asarray(self._greedy(state.member.learner.params, actor.observation))
                drawn = rng.random(num_episodes) < self.spec.evaluation_epsilon
                a = np.where(drawn, rng.integers(rows.num_actions, size=num_episodes), a)
                actor, row, ended = rows.advance(a)
                returns += np.where(done, 0, row.reward)
                done |= ended.ended
                if done.all():
                    break
        finally:
            rows.close()
            self._open.remove(rows)
        return returns[None], done[None]

    @functools.cached_property
    def _greedy(self) -> Any:
        return jax.jit(lambda params, obs: self._prog.network(params, obs).argmax(-1))

    def counts(self, state: HostState) -> tuple[int, int]:
        """At the end of a tick. Steps that the learner has not seen yet count, too."""
        waiting = 0 if state.pending is None else state.pending[1].size
        return int(state.member.num_steps) + waiting, int(state.member.learner.num_updates)

    def arrays(self, state: HostState) -> dict[str, np.ndarray]:
        own = {f"member.{name}": value for name, value in arrays_of(state.member).items()}
        waiting = {} if state.pending is None else arrays_of(state.pending)
        own |= {f"pending.{name}": value for name, value in waiting.items()}
        taken = np.stack(state.actions) if state.actions else np.zeros((0, self.spec.num_actors), np.uint8)
        own |= {f"tick.{name}": value for name, value in _arrays_of_tick(state.tick).items()}
        return own | {"actions": taken, "observation": np.asarray(state.actor.observation)}

    def restored(self, arrays: Mapping[str, np.ndarray], *, stop: Callable[[], bool] = never) -> HostState | None:
        """None if it was asked to stop on the way."""
        member = state_of(self._template, _under("member.", arrays))
        taken = list(_expected(arrays, "actions", np.uint8, (-1, self.spec.num_actors)))
        actor = self._rows.begin()
        for a in taken:
            if stop():
                return None
            actor, _, _ = self._rows.advance(a.astype(np.int64))
        if "observation" not in arrays or not np.array_equal(
            actor.observation, arrays["observation"], equal_nan=True
        ):
            raise ValueError(
                f"{self.spec.env} is not where it was after the same {len(taken):,} actions of each actor, so it is "
                "no function of its seed, and this run cannot be resumed exactly."
            )
        waiting = _under("pending.", arrays)
        pending = self._rows_of(waiting, (self.program.rounds,)) if waiting else None
        return HostState(member, self._rows, actor, pending, taken, self._tick_of(_under("tick.", arrays)))

    def _rows_of(self, arrays: Mapping[str, np.ndarray], axes: tuple[int, ...]) -> tuple[Row, np.ndarray, np.ndarray]:
        """Rows with a and μ(a), as `arrays_of` names them; of the shapes that they have."""
        axes = (*axes, self.spec.num_actors)
        stack = getattr(self._rows, "stack", 1)
        shape = self._rows.observation.shape[1:] if stack > 1 else self._rows.observation.shape
        kinds = Row((self._rows.observation.dtype, shape), (bool, ()), (bool, ()), (np.float32, ()), (bool, ()))
        row = Row(
            *(
                _expected(arrays, f"[0].{name}", kind, (*axes, *shape))
                for name, (kind, shape) in kinds._asdict().items()
            )
        )
        return row, _expected(arrays, "[1]", np.int32, axes), _expected(arrays, "[2]", np.float32, axes)

    def _tick_of(self, arrays: Mapping[str, np.ndarray]) -> UnderWay:
        actors = (self.spec.num_actors,)
        count, num_seen = (int(n) for n in _expected(arrays, "counts", np.int64, (2,)))
        if not (0 <= count < TICK and 0 <= num_seen < self.program.rounds):
            raise ValueError(f"the checkpoint has {count} iterations and {num_seen} rows of a tick, which cannot be.")
        tick = UnderWay(count, ends=_expected(arrays, "ends", np.float64, (3,)).copy())
        tick.seen = [self._rows_of(_under(f"seen.{i}.", arrays), ()) for i in range(num_seen)]
        if "chosen.a" in arrays:
            a = _expected(arrays, "chosen.a", np.int32, actors)
            tick.chosen = (a, _expected(arrays, "chosen.mu_a", np.float32, actors))
        if "progress.loss" in arrays:
            values = {}
            for name, kind in (("loss", np.float32), ("gradient", np.float32), ("refused", bool)):
                values[name] = _expected(arrays, f"progress.{name}", kind, (-1,))
            tick.progress = [Progress(**values)]
        return tick

    @functools.cached_property
    def _template(self) -> Member:
        return jax.eval_shape(self._init)

    def _made(self, num_actors: int, seed: int) -> Any:
        rows = self._make(num_actors=num_actors, seed=seed)
        self._open.append(rows)
        return rows

    def close(self) -> None:
        """Ends the environments."""
        for rows in self._open:
            rows.close()


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _expected(arrays: Mapping[str, np.ndarray], name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An array of a checkpoint, of this dtype and shape; −1 is any size."""
    found = arrays.get(name)
    if (
        found is None
        or found.dtype != dtype
        or found.ndim != len(shape)
        or any(size not in (-1, has) for size, has in zip(shape, found.shape, strict=True))
    ):
        has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
        raise ValueError(
            f"the checkpoint has {has} for {name}, where this version needs {np.dtype(dtype)}{list(shape)}: it was "
            "written by another version."
        )
    return found


def _arrays_of_tick(tick: UnderWay) -> dict[str, np.ndarray]:
    found = {"counts": np.array([tick.num_iterations, len(tick.seen)]), "ends": tick.ends.copy()}
    for i, rows in enumerate(tick.seen):
        found |= {f"seen.{i}.{name}": value for name, value in arrays_of(rows).items()}
    if tick.chosen is not None:
        found |= {"chosen.a": tick.chosen[0], "chosen.mu_a": tick.chosen[1]}
    if tick.progress:
        together = _together(tick.progress)
        found |= {f"progress.{name}": value for name, value in together._asdict().items()}
    return found


def _together(progress: list[Any]) -> Progress:
    """Of all updates, one after the other."""
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts]), *progress)


def _tick(ends: np.ndarray, progress: list[Any]) -> Tick:
    """With an axis of one member."""
    num_episodes, total_return, total_length = ends
    loss = gradient = math.nan
    num_refused = 0
    if progress:
        updates = _together(progress)
        loss, gradient = updates.loss.mean(), updates.gradient.mean()
        num_refused = int(updates.refused.sum())
    values = int(num_episodes), total_return, int(total_length), loss, gradient
    return Tick(*(np.asarray([value]) for value in (*values, num_refused)))
