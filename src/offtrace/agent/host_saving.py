"""What a checkpoint holds of environments on the host and of their memory, and how they are restored.

Environments cannot be saved, but their actions can. A resumed run makes the environments anew and
repeats the actions, which also gives back every frame of the memory:

    saved       actions of the whole run, and the memory without its frames
    repeated    a_0    a_1    a_2    …     a_T
    frames      x_0    x_1    x_2    …     x_T      the newest ones go to the memory

So a checkpoint of a million Atari transitions has 39 MB, not 7 GB. Repeating takes as long as the
environments took. A run that shall not wait for it is resumed with new episodes and an empty memory.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import replay
from offtrace.agent.groups import Choice, Group, HostState, PartialTick
from offtrace.agent.learner import UpdateRecord
from offtrace.agent.program import Member
from offtrace.agent.replay import ReplayState, Rows
from offtrace.agent.runs import TICK
from offtrace.agent.spec import Plan
from offtrace.agent.states import checked_array, from_arrays, to_arrays, under

CHUNK = 32
"""Steps whose frames are written to the memory at once."""


def first_seed(spec: Plan, num_restarts: int) -> int:
    """Return the seed of a member's first actor; after a resume with new episodes, another one."""
    if not num_restarts:
        return spec.seed
    return int(np.random.default_rng([spec.seed, num_restarts]).integers(2**31 - spec.num_actors))


# -- saving --------------------------------------------------------------------------------------------------


def to_saved(state: HostState) -> dict[str, np.ndarray]:
    """Return everything that a resume needs, as named arrays."""
    for group in state.groups:
        _finish_step(state, group)
    found = to_arrays(state.rest, prefix="members.")
    num_rows = min(int(state.memory.num_steps), state.memory.spec.capacity)
    found["memory.records"] = np.asarray(state.memory.records[:num_rows])
    found["memory.num_steps"] = np.asarray(state.memory.num_steps)
    found["num_restarts"] = np.array(state.num_restarts)
    found["tick.num_turns"] = np.array(state.tick.num_turns)
    found["tick.episodes"] = state.tick.episodes.copy()
    if state.tick.updates:
        for name, value in joined_updates(state.tick.updates)._asdict().items():
            found[f"tick.{name}"] = value
    for number, group in enumerate(state.groups):
        found |= {f"group.{number}.{name}": value for name, value in _group_arrays(group).items()}
    return found


def _finish_step(state: HostState, group: Group) -> None:
    """Wait for a group that is stepping. If its environments have failed, its actions are saved instead."""
    try:
        state.count(group.receive())
    except Exception:
        if group.choice is None:
            raise


def _group_arrays(group: Group) -> dict[str, np.ndarray]:
    shape = (0, *group.actor.first.shape)
    found = {
        "actions": np.zeros(shape, np.uint8),
        "waiting.mu_a": np.zeros(shape, np.float32),
        "observation": np.asarray(group.actor.observation),
    }
    if group.actions:
        found["actions"] = np.stack(group.actions)
    if group.rows:
        found["waiting.mu_a"] = np.stack([np.asarray(rows.mu_a) for rows in group.rows])
    if group.choice is not None:
        found["choice.a"] = np.asarray(group.choice.a)
        found["choice.mu_a"] = np.asarray(group.choice.mu_a)
    return found


def joined_updates(updates: list[UpdateRecord]) -> UpdateRecord:
    """Return the records of all updates as one, (members, updates)."""
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part) for part in parts], axis=1), *updates)


# -- reading -------------------------------------------------------------------------------------------------


class SavedState:
    """The arrays of a checkpoint. Shapes and counts are checked when they are read."""

    def __init__(self, arrays: Mapping[str, np.ndarray], template: Member) -> None:
        self._arrays = arrays
        self._template = template
        self.num_restarts = self._count("num_restarts")
        self.num_stored = self._count("memory.num_steps", np.int32)
        self.num_turns = self._count("tick.num_turns")

    def _count(self, name: str, dtype: Any = np.int64) -> int:
        found = int(checked_array(self._arrays, name, dtype, ()))
        if found < 0 or (name != "memory.num_steps" and found >= TICK):
            raise ValueError(f"the checkpoint has an impossible count of {name}: {found}.")
        return found

    @functools.cached_property
    def rest(self) -> Member:
        """The members without their memory."""
        return from_arrays(self._template._replace(replay=None), under("members.", self._arrays))

    @functools.cached_property
    def records(self) -> np.ndarray:
        """The memory without its frames: (rows, actors of all members, 3)."""
        capacity, *rest = self._template.replay.records.shape
        shape = (min(self.num_stored, capacity), *rest)
        return checked_array(self._arrays, "memory.records", np.uint32, shape)

    def memory(self) -> ReplayState:
        """Return the memory with frames of zeros."""
        template = self._template.replay
        records = np.zeros(template.records.shape, np.uint32)
        records[: len(self.records)] = self.records
        return ReplayState(
            frames=jnp.zeros(template.frames.shape, template.frames.dtype),
            records=jnp.asarray(records),
            num_steps=jnp.int32(self.num_stored),
            spec=template.spec,
        )

    def tick(self) -> PartialTick:
        """Return the finished part of the tick."""
        num_members = len(self._template.key)
        episodes = checked_array(self._arrays, "tick.episodes", np.float64, (num_members, 3)).copy()
        tick = PartialTick(self.num_turns, episodes)
        if "tick.loss" in self._arrays:
            updates = UpdateRecord(
                loss=checked_array(self._arrays, "tick.loss", np.float32, (num_members, -1)),
                gradient=checked_array(self._arrays, "tick.gradient", np.float32, (num_members, -1)),
                refused=checked_array(self._arrays, "tick.refused", bool, (num_members, -1)),
            )
            tick.updates = [updates]
        return tick

    def group(self, number: int, group: Group) -> "SavedGroup":
        """Return what was saved of a group of the same shape as `group`."""
        arrays = under(f"group.{number}.", self._arrays)
        shape = group.actor.first.shape
        actions = checked_array(arrays, "actions", np.uint8, (-1, *shape))
        num_waiting = len(actions) - self.num_stored
        if num_waiting < 0:
            raise ValueError(
                f"the checkpoint has impossible counts: {len(actions)} actions and {self.num_stored} stored rows."
            )
        mu_a = checked_array(arrays, "waiting.mu_a", np.float32, (num_waiting, *shape))
        choice = None
        if "choice.a" in arrays:
            a = checked_array(arrays, "choice.a", np.int32, shape)
            choice = (a, checked_array(arrays, "choice.mu_a", np.float32, shape))
        return SavedGroup(actions, mu_a, choice, arrays.get("observation"))


class SavedGroup:
    """What was saved of a group: its actions, μ(a) of the rows that were not stored, and a choice to repeat."""

    def __init__(
        self,
        actions: np.ndarray,
        waiting_mu_a: np.ndarray,
        choice: tuple[np.ndarray, np.ndarray] | None,
        observation: np.ndarray | None,
    ) -> None:
        self.actions = actions
        self.waiting_mu_a = waiting_mu_a
        self.choice = choice
        self.observation = observation


# -- repeating the actions -----------------------------------------------------------------------------------


def repeat_actions(state: HostState, saved: SavedState, spec: Plan, stop: Callable[[], bool]) -> bool:
    """Bring new environments to the saved state, and the frames to the memory; False if `stop` returned True."""
    of_groups = [saved.group(number, group) for number, group in enumerate(state.groups)]
    num_steps = max(len(of_group.actions) for of_group in of_groups)
    first_kept = max(0, saved.num_stored - state.memory.spec.capacity)
    recent: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in state.groups]
    frames = _FrameWriter(state)
    for time in range(num_steps):
        if stop():
            return False
        stepping = [number for number, of_group in enumerate(of_groups) if time < len(of_group.actions)]
        for number in stepping:
            group = state.groups[number]
            recent[number] = [*recent[number], _seen(group)][-state.memory.spec.stack :]
            group.fleet.send(of_groups[number].actions[time].astype(np.int64))
        if first_kept <= time < saved.num_stored:
            frames.add(time, np.concatenate([group.actor.observation for group in state.groups], axis=1))
        rows = [_received(state.groups[number], of_groups[number], time) for number in stepping]
        if first_kept <= time < saved.num_stored:
            _check_rows(rows, saved.records[time % state.memory.spec.capacity], spec, time)
        elif time >= saved.num_stored:
            for number, row in zip(stepping, rows, strict=True):
                mu_a = of_groups[number].waiting_mu_a[time - saved.num_stored]
                state.groups[number].rows.append(row._replace(mu_a=jnp.asarray(mu_a)))
    frames.flush()
    for group, of_group, seen in zip(state.groups, of_groups, recent, strict=True):
        _finish(group, of_group, seen, spec)
    return True


def _seen(group: Group) -> tuple[np.ndarray, np.ndarray]:
    return group.actor.observation, group.actor.first


def _received(group: Group, saved: SavedGroup, time: int) -> Rows:
    """Take the answer of the environments, and return its rows without μ(a)."""
    a = saved.actions[time]
    frames = group.actor.observation
    group.actor, row, _ = group.fleet.receive()
    group.actions.append(a)
    return Rows(frames, row.reset, row.mask, row.reward, row.continues, a.astype(np.int32), None)


def _check_rows(rows: list[Rows], records: np.ndarray, spec: Plan, time: int) -> None:
    """Check that the environments have answered as before."""
    flags = [replay.words(row.action, row.reset, row.mask, row.continues) for row in rows]
    if not np.array_equal(np.concatenate(flags, axis=1).reshape(-1), records[:, 0]):
        raise _differs(spec, time + 1)


def _finish(group: Group, saved: SavedGroup, recent: list[tuple[np.ndarray, np.ndarray]], spec: Plan) -> None:
    """Check the last observation, and restore the stacks and the choice."""
    now = group.actor.observation
    if saved.observation is None or not np.array_equal(now, saved.observation, equal_nan=now.dtype.kind == "f"):
        raise _differs(spec, len(saved.actions))
    if saved.choice is not None:
        a, mu_a = saved.choice
        group.choice = Choice(jnp.asarray(now), jnp.asarray(a), jnp.asarray(mu_a))
        recent = [*recent, _seen(group)]
    if group.stacks is not None:
        push = jax.vmap(replay.push)
        for frames, first in recent:
            group.stacks = push(group.stacks, jnp.asarray(frames), jnp.asarray(first))


def _differs(spec: Plan, num_actions: int) -> ValueError:
    return ValueError(
        f"{spec.env} is in another state than before after the same {num_actions:,} actions of each actor. It is "
        "not a function of its seed, so this run cannot be resumed exactly. Resume it with new episodes: "
        "`--new-episodes`."
    )


class _FrameWriter:
    """Writes frames to the memory, many steps at a time."""

    def __init__(self, state: HostState) -> None:
        self._state = state
        self._start = 0
        self._frames: list[np.ndarray] = []
        write = functools.partial(replay.with_frames, state.memory.spec)
        self._write = jax.jit(write, donate_argnums=0)

    def add(self, time: int, frames: np.ndarray) -> None:
        """Add the frames of all actors at `time`: (members, actors, …). Times are consecutive."""
        if not self._frames:
            self._start = time
        self._frames.append(frames)
        if len(self._frames) == CHUNK:
            self.flush()

    def flush(self) -> None:
        if not self._frames:
            return
        memory = self._state.memory
        chunk = np.stack(self._frames)
        columns = chunk.reshape(len(chunk), -1, *chunk.shape[3:])
        written = self._write(memory.frames, columns, np.int32(self._start))
        self._state.memory = ReplayState(written, memory.records, memory.num_steps, memory.spec)
        self._frames = []
