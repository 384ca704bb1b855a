"""What a checkpoint holds of environments on the host, and how they are restored.

Environments cannot be saved, but their actions can. A resumed run makes the environments anew and
repeats the actions, which also gives back the frames of the memory (`saved_memory.py`). Repeating
takes as long as the environments took. A run that shall not wait for it is resumed with new
episodes and an empty memory.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import replay
from offtrace.agent.groups import Choice, Group, HostState, PartialTick
from offtrace.agent.learner import UpdateRecord
from offtrace.agent.program import Member
from offtrace.agent.replay import Rows
from offtrace.agent.runs import TICK
from offtrace.agent.saved_memory import FrameWriter, SavedMemory
from offtrace.agent.saved_memory import to_saved as to_saved_memory
from offtrace.agent.spec import Plan
from offtrace.agent.states import checked_array, from_arrays, to_arrays, under


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
    found |= {f"memory.{name}": value for name, value in to_saved_memory(state.memory).items()}
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
        self.memory = SavedMemory(under("memory.", arrays), template.replay)
        self.num_turns = self._count("tick.num_turns")

    def _count(self, name: str) -> int:
        found = int(checked_array(self._arrays, name, np.int64, ()))
        if not 0 <= found < TICK:
            raise ValueError(f"the checkpoint has an impossible count of {name}: {found}.")
        return found

    @functools.cached_property
    def rest(self) -> Member:
        """The members without their memory."""
        return from_arrays(self._template._replace(replay=None), under("members.", self._arrays))

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
        num_waiting = len(actions) - self.memory.num_steps
        if num_waiting < 0:
            raise ValueError(
                f"the checkpoint has impossible counts: {len(actions)} actions and {self.memory.num_steps} stored "
                "rows."
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
    recent: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in state.groups]
    writer = FrameWriter(state.memory)
    for time in range(num_steps):
        if stop():
            return False
        stepping = [number for number, of_group in enumerate(of_groups) if time < len(of_group.actions)]
        for number in stepping:
            group = state.groups[number]
            recent[number] = [*recent[number], _seen(group)][-state.memory.spec.stack :]
            group.fleet.send(of_groups[number].actions[time].astype(np.int64))
        if saved.memory.keeps(time):
            writer.add(time, _columns([group.actor.observation for group in state.groups]))
        rows = [_received(state.groups[number], of_groups[number], time) for number in stepping]
        if saved.memory.keeps(time):
            _check_rows(rows, saved.memory, spec, time)
        elif time >= saved.memory.num_steps:
            for number, row in zip(stepping, rows, strict=True):
                mu_a = of_groups[number].waiting_mu_a[time - saved.memory.num_steps]
                state.groups[number].rows.append(row._replace(mu_a=jnp.asarray(mu_a)))
    writer.flush()
    state.memory = writer.memory
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


def _columns(parts: list[np.ndarray]) -> np.ndarray:
    """Return arrays of each group, (members, actors, …), as columns of the memory: the actors of all members."""
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(-1, *joined.shape[2:])


def _check_rows(rows: list[Rows], memory: SavedMemory, spec: Plan, time: int) -> None:
    """Check that the environments have answered as before."""
    names = ("action", "reset", "mask", "continues")
    found = {name: _columns([getattr(row, name) for row in rows]) for name in names}
    if not memory.matches(time, **found):
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
