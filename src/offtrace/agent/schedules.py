"""What changes while an agent learns: ε of the exploration, the step size of the optimiser.

Pure functions of a count of frames, or of a carry for each actor, for `jit`, `vmap` and `scan`. Counts are those of
the paper: frames of the emulator, of which an agent's step takes four on Atari.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

MAX_FRAMES = 2**30
"""Positions of `SwitchingEpsilon` are int32; past this one every schedule has ended, and they stop."""


def linear(num_frames: Any, *, start: Any, end: Any, duration: Any) -> Array:
    """From `start` at frame 0 to `end` at frame `duration`, and `end` after it.

    >>> [float(linear(frame, start=1.0, end=0.5, duration=100)) for frame in (0, 50, 100, 200)]
    [1.0, 0.75, 0.5, 0.5]
    """
    share = jnp.clip(jnp.asarray(num_frames, np.float32) / duration, 0, 1)
    return start * (1 - share) + end * share


def annealed_step_size(num_frames: Any, *, step_size: Any, duration: Any = 300_000_000) -> Array:
    """The step size, annealed to 0 over 3·10⁸ frames of all actors together (App. F)."""
    return linear(num_frames, start=step_size, end=0.0, duration=duration)


def annealed_epsilon(num_frames: Any, *, start: Any = 1.0, end: Any = 0.1, duration: Any = 1_000_000) -> Array:
    """One ε for all: the defaults are those of DQN (Mnih et al. 2015)."""
    return linear(num_frames, start=start, end=end, duration=duration)


# -- three schedules, switched at random ---------------------------------------------------------------------


@dataclass(frozen=True)
class SwitchingEpsilon:
    """App. F: every 50,000 frames an actor switches at random between three schedules, going on where it left each.

        frames of the actor     0       50,000     100,000     150,000
        schedule, drawn         2          0           2           …
        its position            0 → 50k    0 → 50k     50k → 100k

    The paper does not say whether the schedules share a position. Deviation D16: `shared_position=False`
    gives every schedule its own, which advances only while it is followed ("starting new schedules at the
    intermediate positions where they left old ones"); with True, all read the frames of the actor. The
    first schedule is drawn as later ones are, and a draw may give the one that is being followed.
    """

    ends: tuple[float, ...] = (0.5, 0.1, 0.01)
    probabilities: tuple[float, ...] = (0.3, 0.4, 0.3)
    start: float = 1.0
    duration: int = 250_000
    """Frames from `start` to the end of a schedule."""
    period: int = 50_000
    """Frames of an actor between two draws."""
    shared_position: bool = False

    def __post_init__(self) -> None:
        if not self.ends or len(self.ends) != len(self.probabilities):
            raise ValueError(
                f"`probabilities` must be one for each of `ends`; got {len(self.probabilities)} for {len(self.ends)}."
            )
        for name, values in (("start", (self.start,)), ("ends", self.ends), ("probabilities", self.probabilities)):
            for value in values:
                if not 0 <= value <= 1:
                    raise ValueError(f"`{name}` must be in [0, 1]; got {value!r}.")
        if abs(sum(self.probabilities) - 1) > 1e-6:
            raise ValueError(f"`probabilities` must add up to 1; got {sum(self.probabilities):g}.")
        for name in ("duration", "period"):
            if not 1 <= getattr(self, name) < MAX_FRAMES:
                raise ValueError(f"`{name}` must be at least 1 frame and under 2³⁰; got {getattr(self, name)!r}.")


class Following(NamedTuple):
    """Where an actor is. All fields may have leading axes: one of actors, one of members."""

    current: Array
    """(…) int32: the schedule it follows."""
    position: Array
    """(…, K) int32: frames spent with each schedule."""
    frames: Array
    """(…) int32: frames since it was drawn."""


def follow(spec: SwitchingEpsilon, key: Array, num_actors: int) -> Following:
    """At frame 0: every actor has drawn a schedule, and stands at its beginning."""
    current = _draw(spec, key, (num_actors,))
    return Following(current, jnp.zeros((num_actors, len(spec.ends)), np.int32), jnp.zeros((num_actors,), np.int32))


def epsilon(spec: SwitchingEpsilon, following: Following) -> Array:
    """ε of each actor now: (…).

    >>> spec = SwitchingEpsilon(ends=(0.5, 0.1), probabilities=(0.5, 0.5), duration=100)
    >>> now = Following(jnp.array([0, 1]), jnp.array([[50, 0], [50, 100]]), jnp.array([0, 0]))
    >>> [round(float(value), 2) for value in epsilon(spec, now)]
    [0.75, 0.1]
    """
    position = jnp.take_along_axis(following.position, following.current[..., None], axis=-1)[..., 0]
    if spec.shared_position:
        position = following.position.sum(axis=-1)
    end = jnp.asarray(spec.ends, np.float32)[following.current]
    return linear(position, start=spec.start, end=end, duration=spec.duration)


def advance(spec: SwitchingEpsilon, following: Following, key: Array, num_frames: int) -> Following:
    """After `num_frames` more frames of each actor; whoever has reached the period draws a schedule.

    A step that goes past the period is counted in full with the old schedule, and the next period starts with what
    was past it.
    """
    here = jnp.arange(len(spec.ends)) == following.current[..., None]
    limit = MAX_FRAMES // len(spec.ends)  # so that their sum stays in range
    position = jnp.minimum(following.position + here * num_frames, limit).astype(np.int32)
    frames = following.frames + num_frames
    due = frames >= spec.period
    drawn = _draw(spec, key, following.current.shape)
    current = jnp.where(due, drawn, following.current)
    return Following(current, position, jnp.where(due, frames % spec.period, frames).astype(np.int32))


def _draw(spec: SwitchingEpsilon, key: Array, shape: tuple[int, ...]) -> Array:
    """An index for each, by the probabilities: as many of their sums as a uniform number has reached."""
    sums = jnp.asarray(np.cumsum(spec.probabilities)[:-1], np.float32)
    return (jax.random.uniform(key, shape)[..., None] >= sums).sum(axis=-1, dtype=np.int32)
