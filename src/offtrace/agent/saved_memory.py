"""A memory in a checkpoint: all of it but the frames, which environments on the host give back.

    saved       records of the rows (action, flags, reward, μ(a))
    repeated    a_0    a_1    a_2    …     a_T          every action since the environments began
    frames      x_0    x_1    x_2    …     x_T          the newest ones are written to the memory again

So a checkpoint of a million Atari transitions has 39 MB, not 7 GB.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.agent import replay
from offtrace.agent.replay import ReplaySpec, ReplayState
from offtrace.agent.states import checked_array

CHUNK = 32
"""Steps whose frames are written to the memory at once."""


def to_saved(memory: ReplayState) -> dict[str, np.ndarray]:
    """Return a memory without its frames, as named arrays."""
    num_rows = min(int(memory.num_steps), memory.spec.capacity)
    return {"records": np.asarray(memory.records[:num_rows]), "num_steps": np.asarray(memory.num_steps)}


class SavedMemory:
    """A memory that was saved without its frames; `template` is one of the same shape."""

    def __init__(self, arrays: Mapping[str, np.ndarray], template: ReplayState) -> None:
        self._template = template
        self.num_steps = int(checked_array(arrays, "num_steps", np.int32, ()))
        if self.num_steps < 0:
            raise ValueError(f"the checkpoint has an impossible count of steps in memory: {self.num_steps}.")
        capacity, *rest = template.records.shape
        self._first_kept = max(0, self.num_steps - capacity)
        self._records = checked_array(arrays, "records", np.uint32, (min(self.num_steps, capacity), *rest))

    def keeps(self, time: int) -> bool:
        """Return whether the row of `time` is in the memory."""
        return self._first_kept <= time < self.num_steps

    def matches(self, time: int, *, action: Any, reset: Any, mask: Any, continues: Any) -> bool:
        """Return whether the row of `time` has these actions and flags, one per actor."""
        record = self._records[time % self._template.records.shape[0]]
        return np.array_equal(replay.words(action, reset, mask, continues), record[:, 0])

    def without_frames(self) -> ReplayState:
        """Return the memory with frames of zeros."""
        template = self._template
        records = np.zeros(template.records.shape, np.uint32)
        records[: len(self._records)] = self._records
        return ReplayState(
            frames=jnp.zeros(template.frames.shape, template.frames.dtype),
            records=jnp.asarray(records),
            num_steps=jnp.int32(self.num_steps),
            spec=template.spec,
        )


class FrameWriter:
    """Writes frames to a memory, many steps at a time. `memory` is up to date after `flush`."""

    def __init__(self, memory: ReplayState) -> None:
        self.memory = memory
        self._start = 0
        self._frames: list[np.ndarray] = []

    def add(self, time: int, frames: np.ndarray) -> None:
        """Add the frames of all actors at `time`, (num_actors, …). Times are consecutive."""
        if not self._frames:
            self._start = time
        self._frames.append(frames)
        if len(self._frames) == CHUNK:
            self.flush()

    def flush(self) -> None:
        if not self._frames:
            return
        memory = self.memory
        frames = _with_frames(memory.spec, memory.frames, np.stack(self._frames), np.int32(self._start))
        self.memory = ReplayState(frames, memory.records, memory.num_steps, memory.spec)
        self._frames = []


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _with_frames(spec: ReplaySpec, frames: jax.Array, chunk: jax.Array, start: jax.Array) -> jax.Array:
    return replay.with_frames(spec, frames, chunk, start)
