"""Checks of a vector environment: its spaces, its autoreset mode, and the actions it is given."""

from typing import Any

import numpy as np

from offtrace.environments.guard import gymnasium
from offtrace.environments.interface import Array, Space

MODES = {
    "next_step": gymnasium.vector.AutoresetMode.NEXT_STEP,
    "same_step": gymnasium.vector.AutoresetMode.SAME_STEP,
}
BOUNDS_TOLERANCE = 1e-5
"""The room for rounding, relative to the bound: float32 against the float64 that many environments compute in."""


def spaces(vector: Any, name: str) -> tuple[Space, int, int]:
    """Return the space of one observation, the number of actions, and the number of the first action."""
    observations = vector.single_observation_space
    actions = vector.single_action_space
    check_spaces(observations, actions, name)
    return Space(tuple(observations.shape), observed_dtype(observations)), int(actions.n), int(actions.start)


def check_spaces(observations: Any, actions: Any, name: str) -> None:
    """Raise unless observations are arrays and actions are numbered."""
    if not isinstance(observations, gymnasium.spaces.Box):
        raise ValueError(
            f"`env` must have observations in a Box; {name} has {observations}. Wrap it, for example to flatten."
        )
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise ValueError(f"`env` must have Discrete actions; {name} has {actions}.")


def observed_dtype(observations: Any) -> np.dtype:
    """Return the dtype that observations are kept in: uint8 and bool stay, all others become float32."""
    keeps = observations.dtype in (np.uint8, np.bool_)
    return np.dtype(observations.dtype if keeps else np.float32)


def is_next_step(vector: Any, autoreset: str | None) -> bool:
    """Return True for next-step and False for same-step autoreset; raise if the environment has neither."""
    declared = vector.metadata.get("autoreset_mode")
    known = None if declared is None else gymnasium.vector.AutoresetMode(declared)
    mode = known if autoreset is None else MODES[autoreset]
    if mode not in MODES.values():
        raise ValueError(
            f"`env` must reset by itself; its metadata have autoreset_mode = {declared}. Make it "
            f"with AutoresetMode.NEXT_STEP, or pass its mode as `autoreset`: {' or '.join(MODES)}."
        )
    if known not in (None, mode):
        raise ValueError(f"`autoreset` must be the mode in the metadata of `env`, {declared}; got {autoreset!r}.")
    return mode == MODES["next_step"]


def bounds(space: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return (low, high) with some room for rounding, or None where the dtype cannot exceed them."""
    if space.dtype == bool:
        return None, None
    if np.issubdtype(space.dtype, np.integer):
        limits = np.iinfo(space.dtype)
        inside = (space.low == limits.min).all() and (space.high == limits.max).all()
        return (None, None) if inside else (space.low, space.high)
    low = np.asarray(space.low, np.float64)
    high = np.asarray(space.high, np.float64)
    return low - _room(low), high + _room(high)


def _room(bound: np.ndarray) -> np.ndarray:
    return BOUNDS_TOLERANCE * np.maximum(1, np.where(np.isfinite(bound), abs(bound), 0))


def checked_actions(actions: Array, num_actors: int, num_actions: int) -> np.ndarray:
    """Return actions as (num_actors,) int64. Negative ones are refused: an index would wrap around."""
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
