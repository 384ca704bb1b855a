"""Replay memory of windows of consecutive steps: a frozen state and pure functions.

Every actor has a ring of `capacity` rows in device memory. Actors run in lockstep, so one clock
serves all:

    row     0    1    2    3    4    5    6    7    8        capacity 9, num_steps 12
    time    9   10   11    3    4    5    6    7    8
                newest ┘   └ oldest: the write head is here, in row num_steps % capacity

A row is step t of one actor: x_t, a_t, r_t, whether the episode continued, and μ(a_t|x_t) at the
time of the draw. A window of n steps needs n+1 rows, the last one only for its observation; it
never crosses the write head. Frames are stored singly and stacked when sampled; bools are packed
into bits:

    row            t−3     t−2     t−1      t
    reset           .      yes      .       .
    stack of t    zeros   frame   frame   frame      frames of an earlier episode are zero

A row with `mask` False (the dummy row after an end) belongs to the episode that ended and holds its
last observation; the row after it has `reset`. All functions work under `jit`, `vmap` (a leading
axis of members in every leaf) and `scan`. Outside of them `add` copies the memory: jit it with
`donate_argnums=0`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from offtrace.arrays import is_concrete
from offtrace.errors import raise_where

# Flags of a record, above the eight bits of the action.
RESET = 1 << 8
MASK = 1 << 9
CONTINUES = 1 << 10


@dataclass(frozen=True)
class ReplaySpec:
    """The size of a memory: `capacity` rows per actor, and the `shape` and `dtype` of a frame.

    An observation is `stack` frames, (stack, *shape), newest last; with `stack=1` it is the frame
    itself.

    >>> ReplaySpec(capacity=62_500, num_actors=16, shape=(84, 84), dtype="uint8", stack=4).observation_shape
    (4, 84, 84)
    """

    capacity: int
    num_actors: int
    shape: tuple[int, ...]
    dtype: Any
    stack: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))
        for name in ("capacity", "num_actors", "stack"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise ValueError(f"`{name}` must be a whole number of at least 1; got {getattr(self, name)!r}.")
        if (self.capacity + 1) * self.num_actors >= 2**31:
            raise ValueError(
                f"`capacity` × `num_actors` must be under 2³¹, as rows are counted in int32; got {self.capacity} × "
                f"{self.num_actors}."
            )

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.shape if self.stack == 1 else (self.stack, *self.shape)

    @property
    def packed(self) -> bool:
        """True for bools, which are stored as bits, eight to a byte."""
        return self.dtype == np.bool_

    @property
    def stored_size(self) -> int:
        """Size of a stored frame. It is flat, so that it is copied in one piece."""
        size = math.prod(self.shape)
        return -(-size // 8) if self.packed else size

    @property
    def stored_dtype(self) -> np.dtype:
        return np.dtype(np.uint8) if self.packed else self.dtype


class Rows(NamedTuple):
    """One step of all actors, (num_actors, …), or a chunk of T steps, (T, num_actors, …)."""

    observation: Any
    """x_t, a single frame."""
    reset: Any
    """True where the row does not continue the row before it."""
    mask: Any
    """False where the row is not a real step; its action, reward and mu_a are never read."""
    reward: Any
    continues: Any
    """False where the step terminated: discount_t = γ · continues_t."""
    action: Any
    mu_a: Any
    """μ(a_t|x_t), recorded when a_t was drawn."""


class ReplayState(eqx.Module):
    """The memory of all actors, time first.

    `frames` is (capacity + 1, num_actors, …). Its last row is always zero: stacks take frames of an
    earlier episode from there. `records` is (capacity, num_actors, 3) uint32, so that the small
    fields of a window are one gather:

        bits 0–7 action, 8–10 reset, mask, continues  |  reward, a float32  |  mu_a, a float32
    """

    frames: Array
    records: Array
    num_steps: Array
    """Rows written so far per actor: int32, the clock."""
    spec: ReplaySpec = eqx.field(static=True)
    first_actor: Any = None
    """The first of the `spec.num_actors` actors to read; None if these are all. See `part`."""


class Windows(NamedTuple):
    """B windows of n steps, (n, B): time first."""

    obs: Array
    """(n+1, B, *observation_shape), in the dtype of the frames."""
    a: Array
    r: Array
    continues: Array
    reset: Array
    mask: Array
    mu_a: Array
    age: Array
    """(n, B) int32: steps from this row to the newest one."""
    actor: Array
    """(B,) int32: the actor of the window."""


def init(spec: ReplaySpec) -> ReplayState:
    """Return an empty memory."""
    return ReplayState(
        frames=jnp.zeros((spec.capacity + 1, spec.num_actors, spec.stored_size), spec.stored_dtype),
        records=jnp.zeros((spec.capacity, spec.num_actors, 3), np.uint32),
        num_steps=jnp.zeros((), np.int32),
        spec=spec,
    )


def bytes_per_transition(spec: ReplaySpec) -> float:
    """Return the bytes of memory per row: frame, action, flags, reward and mu_a.

    >>> bytes_per_transition(ReplaySpec(capacity=1_000, num_actors=16, shape=(10, 10, 4), dtype=bool))
    62.05
    """
    leaves = jax.tree.leaves(jax.eval_shape(lambda: init(spec)))
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if leaf.ndim)
    return total / (spec.capacity * spec.num_actors)


# -- writing -------------------------------------------------------------------------------------------------


def add(state: ReplayState, rows: Rows) -> ReplayState:
    """Write the rows of one step, or of a chunk of steps, over the oldest ones."""
    spec = state.spec
    rows = _chunk(spec, rows)
    length = rows.reward.shape[0]
    if is_concrete(*rows):
        _check_values(rows)
    word = words(rows.action, rows.reset, rows.mask, rows.continues)
    records = jnp.stack([word, _bits(rows.reward), _bits(rows.mu_a)], axis=-1)
    frames = with_frames(spec, state.frames, rows.observation, state.num_steps)
    records = _written(spec, state.records, records, state.num_steps)
    return ReplayState(frames, records, state.num_steps + length, spec)


def words(action: Any, reset: Any, mask: Any, continues: Any) -> Any:
    """Return the first word of records: the action and the flags."""
    word = action.astype(np.uint32) & 0xFF  # the action of a masked row may be any number: protect the flags
    for bit, flag in ((RESET, reset), (MASK, mask), (CONTINUES, continues)):
        word |= bit * flag.astype(np.uint32)
    return word


def with_frames(spec: ReplaySpec, frames: Array, observation: Array, time: Array) -> Array:
    """Return the ring of frames with those of a chunk, (T, num_actors, *shape), in the rows from `time` on."""
    flat = observation.reshape(observation.shape[0], spec.num_actors, -1)
    if spec.packed:
        flat = _packed(flat)
    return _written(spec, frames, flat, time)


def _written(spec: ReplaySpec, ring: Array, chunk: Array, time: Array) -> Array:
    place = (time + jnp.arange(chunk.shape[0])) % spec.capacity
    if chunk.shape[0] == 1:  # twice as fast as a scatter
        return lax.dynamic_update_index_in_dim(ring, chunk[0], place[0], axis=0)
    return ring.at[place].set(chunk, unique_indices=True, mode="promise_in_bounds")


def push(stack: Array, frame: Array, reset: Array) -> Array:
    """Push a frame onto each actor's stack by the rule of `sample`, so that actors see what the learner will see.

    `stack` is (num_actors, k, *shape), all zero at first; `frame` (num_actors, *shape), `reset`
    (num_actors,).

    >>> push(jnp.array([[1, 2], [1, 2]]), jnp.array([3, 3]), jnp.array([False, True])).tolist()
    [[2, 3], [0, 3]]
    """
    older = jnp.where(reset.reshape(-1, *(1,) * frame.ndim), jnp.zeros((), stack.dtype), stack[:, 1:])
    return jnp.concatenate([older, frame[:, None]], axis=1)


# -- reading -------------------------------------------------------------------------------------------------


def part(state: ReplayState, first_actor: Any, num_actors: int) -> ReplayState:
    """Return the memory of some actors only, to read from; nothing is copied.

    Several agents can share one memory, each with its own actors.
    """
    spec = dataclasses.replace(state.spec, num_actors=num_actors)
    return ReplayState(state.frames, state.records, state.num_steps, spec, first_actor)


def largest_reward(state: ReplayState) -> Array:
    """Return the largest |r| in the memory."""
    records = state.records
    if state.first_actor is not None:
        records = lax.dynamic_slice_in_dim(records, state.first_actor, state.spec.num_actors, axis=1)
    return abs(lax.bitcast_convert_type(records[..., 1], np.float32)).max()


def num_starts(state: ReplayState, length: int) -> Array:
    """Return the number of rows per actor where a window of `length` steps can start.

    Once rows are overwritten, the oldest stack−1 rows lack frames for their stacks, so no window
    starts there.
    """
    return jnp.maximum(0, state.num_steps - length - _first_start(state))


def can_sample(state: ReplayState, length: int) -> Array:
    """Return True once there is a window of `length` steps, which `sample` needs."""
    return num_starts(state, length) > 0


def sample(state: ReplayState, key: Array, num_windows: int, length: int) -> Windows:
    """Draw windows of `length` steps, uniform over all pairs of an actor and a start, with replacement.

    A window may cross the end of an episode, which `reset`, `mask` and `continues` mark.
    """
    spec = state.spec
    if spec.capacity < length + spec.stack:
        raise ValueError(
            f"`capacity` must be at least `length` + `stack`, or no window ever fits; got {spec.capacity} with "
            f"{length} + {spec.stack}."
        )
    starts = num_starts(state, length)
    if is_concrete(starts) and not starts.all():
        raise ValueError(f"`state` must hold a window of {length} steps; got {state.num_steps} steps.")
    pair = jax.random.randint(key, (num_windows,), 0, starts * spec.num_actors)
    actor = pair % spec.num_actors
    start = _first_start(state) + pair // spec.num_actors

    # Rows t−k+1 … t+n of each window, with k the stack: (k−1 + n+1, B). The first k−1 are only for the stacks.
    time = start + jnp.arange(1 - spec.stack, length + 1)[:, None]
    row = time % spec.capacity
    column = actor
    if state.first_actor is not None:
        column = state.first_actor + actor
    records = _gathered(state.records, row, column)
    steps = records[spec.stack - 1 : -1]
    return Windows(
        obs=_observations(state, time, row, column, reset=(records[..., 0] & RESET) > 0),
        a=(steps[..., 0] & 0xFF).astype(np.int32),
        r=lax.bitcast_convert_type(steps[..., 1], np.float32),
        continues=(steps[..., 0] & CONTINUES) > 0,
        reset=(steps[..., 0] & RESET) > 0,
        mask=(steps[..., 0] & MASK) > 0,
        mu_a=lax.bitcast_convert_type(steps[..., 2], np.float32),
        age=state.num_steps - 1 - time[spec.stack - 1 : -1],
        actor=actor,
    )


def _observations(state: ReplayState, time: Array, row: Array, column: Array, *, reset: Array) -> Array:
    """Gather frames directly into stacks, (n+1, B, k, …); hidden frames come from the zero row."""
    spec = state.spec
    k = spec.stack
    num_obs = row.shape[0] - k + 1
    visible = jnp.ones_like(reset[k - 1 :])
    source = [row[k - 1 :]]  # newest first
    for j in range(k - 2, -1, -1):  # a frame is visible unless a later row of the stack starts an episode
        visible &= ~reset[j + 1 : j + 1 + num_obs] & (time[j : j + num_obs] >= 0)
        source.append(jnp.where(visible, row[j : j + num_obs], spec.capacity))
    frames = _gathered(state.frames, jnp.stack(source[::-1], axis=-1), column[:, None])
    if spec.packed:
        frames = _unpacked(frames, math.prod(spec.shape))
    return frames.reshape(*row[k - 1 :].shape, *spec.observation_shape)


def _gathered(ring: Array, row: Array, column: Array) -> Array:
    """Return `ring[row, column]`, through one flat index, which halves the arithmetic."""
    flat = ring.reshape(-1, ring.shape[-1])
    return flat.at[row * ring.shape[1] + column].get(mode="promise_in_bounds")


def _packed(bools: Array) -> Array:
    """Pack bools (…, size) into bytes (…, ⌈size/8⌉): the eighths of the last axis are laid over each other.

        16 bools     0  1 | 2  3 | 4  5 | … | 14 15
        2 bytes      byte 0: bools 0, 2, 4 … 14, in bits 0 … 7;  byte 1: bools 1, 3, 5 … 15

    Unpacking an eighth reads consecutive bytes; on a CPU this is six times faster than eight
    neighbours per byte.
    """
    num_bytes = -(-bools.shape[-1] // 8)
    padding = [(0, 0)] * (bools.ndim - 1) + [(0, 8 * num_bytes - bools.shape[-1])]
    eighths = jnp.pad(bools, padding).reshape(*bools.shape[:-1], 8, num_bytes)
    return jnp.packbits(eighths, axis=-2, bitorder="little")[..., 0, :]


def _unpacked(packed: Array, size: int) -> Array:
    num_bytes = packed.shape[-1]
    lengths = [max(0, min(num_bytes, size - bit * num_bytes)) for bit in range(8)]
    return jnp.concatenate([packed[..., :length] >> bit & 1 > 0 for bit, length in enumerate(lengths)], axis=-1)


def _bits(values: Array) -> Array:
    return lax.bitcast_convert_type(values.astype(np.float32), np.uint32)


def _first_start(state: ReplayState) -> Array:
    """Return the time of the oldest row with all frames of its stack; 0 until rows are overwritten."""
    lost = state.num_steps - state.spec.capacity
    return jnp.where(lost > 0, lost + state.spec.stack - 1, 0)


# -- input checks --------------------------------------------------------------------------------------------


def _chunk(spec: ReplaySpec, rows: Rows) -> Rows:
    """Return rows as a chunk of arrays, after checking shapes and dtypes."""
    rows = Rows(*(jnp.asarray(value) if not isinstance(value, jax.Array) else value for value in rows))
    if rows.reward.ndim == 1:
        rows = Rows(*(value[None] for value in rows))
    length = rows.reward.shape[0]
    for name, value in rows._asdict().items():
        expected = (length, spec.num_actors, *(spec.shape if name == "observation" else ()))
        if value.shape != expected:
            raise ValueError(f"`{name}` must have the shape {expected}, time first; got {value.shape}.")
    if not 1 <= length <= spec.capacity:
        raise ValueError(f"`rows` must be 1 to {spec.capacity} steps, the capacity; got {length}.")
    kinds = {"observation": spec.dtype, "reset": np.bool_, "mask": np.bool_, "continues": np.bool_}
    for name, kind in kinds.items():
        if getattr(rows, name).dtype != kind:
            raise TypeError(f"`{name}` must be {np.dtype(kind)}; got {getattr(rows, name).dtype}.")
    if not jnp.issubdtype(rows.action.dtype, jnp.integer):
        raise TypeError(f"`action` must be whole numbers; got {rows.action.dtype}.")
    return rows


def _check_values(rows: Rows) -> None:
    """Check the values of real rows; only possible outside of `jit`."""
    real = np.asarray(rows.mask)
    action = np.asarray(rows.action)
    mu_a = np.asarray(rows.mu_a)
    reward = np.asarray(rows.reward)
    raise_where(real & ~((action >= 0) & (action < 256)), "action", "must be 0 to 255", action)
    raise_where(real & ~((mu_a > 0) & (mu_a <= 1)), "mu_a", "must be in (0, 1], as a_t was drawn with it", mu_a)
    raise_where(real & ~np.isfinite(reward), "reward", "must be finite", reward)
