"""What of a vector environment's spaces can be rows: arrays to see, numbered actions, an autoreset mode."""

from typing import Any

import numpy as np

from offtrace.environments.guard import gymnasium
from offtrace.environments.interface import Array, Space

MODES = {
    "next_step": gymnasium.vector.AutoresetMode.NEXT_STEP,
    "same_step": gymnasium.vector.AutoresetMode.SAME_STEP,
}
BOUNDS_TOLERANCE = 1e-5
"""Relative to the bound: float32 against the float64 that many environments compute in."""


def spaces(vector: Any, name: str) -> tuple[Space, int, int]:
    """One observation, the number of actions, and what the environment calls the first of them."""
    seen, done = vector.single_observation_space, vector.single_action_space
    if not isinstance(seen, gymnasium.spaces.Box):
        raise ValueError(
            f"`env` must have observations in a Box; {name} has {seen}. Wrap it, for example to flatten."
        )
    if not isinstance(done, gymnasium.spaces.Discrete):
        raise ValueError(f"`env` must have Discrete actions; {name} has {done}.")
    dtype = seen.dtype if seen.dtype in (np.uint8, np.bool_) else np.dtype(np.float32)
    return Space(tuple(seen.shape), np.dtype(dtype)), int(done.n), int(done.start)


def is_next_step(vector: Any, autoreset: str | None) -> bool:
    """Else it is same-step; what does not reset by itself is refused."""
    says = vector.metadata.get("autoreset_mode")
    known = None if says is None else gymnasium.vector.AutoresetMode(says)
    mode = known if autoreset is None else MODES[autoreset]
    if mode not in MODES.values():
        raise ValueError(
            f"`env` must reset by itself; its metadata say autoreset_mode = {says}. Make it with "
            f"AutoresetMode.NEXT_STEP; if it does reset, say how with `autoreset`: {' or '.join(MODES)}."
        )
    if known not in (None, mode):
        raise ValueError(f"`autoreset` must be what the metadata of `env` say, {says}; got {autoreset!r}.")
    return mode == MODES["next_step"]


def bounds(space: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(low, high) with some room for rounding; None where the dtype cannot leave them."""
    if space.dtype == bool:
        return None, None
    if np.issubdtype(space.dtype, np.integer):
        limits = np.iinfo(space.dtype)
        inside = (space.low == limits.min).all() and (space.high == limits.max).all()
        return (None, None) if inside else (space.low, space.high)
    low, high = (np.asarray(bound, np.float64) for bound in (space.low, space.high))
    room = BOUNDS_TOLERANCE * np.maximum(1, np.where(np.isfinite(low), abs(low), 0))
    more = BOUNDS_TOLERANCE * np.maximum(1, np.where(np.isfinite(high), abs(high), 0))
    return low - room, high + more


def checked_actions(actions: Array, num_actors: int, num_actions: int) -> np.ndarray:
    """(num_actors,) int64; anything else is refused, as a negative index would wrap."""
    actions = np.asarray(actions)
    if actions.shape != (num_actors,) or actions.dtype.kind not in "iu":
        raise ValueError(
            f"`actions` must be ({num_actors},) integers, one per actor; got {actions.dtype}, shape {actions.shape}."
        )
    wrong = (actions < 0) | (actions >= num_actions)
    if wrong.any():
        actor = int(wrong.argmax())
        raise ValueError(f"`actions` must be in [0, {num_actions}); got {actions[actor]} for actor {actor}.")
    return actions.astype(np.int64)
