"""Schedules of the exploration's ε and the optimiser's step size.

Pure functions of a step count, or of a state per actor, for `jit`, `vmap` and `scan`.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

MAX_STEPS = 2**30
"""Positions of `SwitchingEpsilon` are int32; at this one every schedule has ended, and counting stops."""


def linear(num_steps: Any, *, start: Any, end: Any, duration: Any) -> Array:
    """Return the value at step `num_steps` of a line from `start` at 0 to `end` at `duration`, and `end` later.

    >>> [float(linear(step, start=1.0, end=0.5, duration=100)) for step in (0, 50, 100, 200)]
    [1.0, 0.75, 0.5, 0.5]
    """
    share = jnp.clip(jnp.asarray(num_steps, np.float32) / duration, 0, 1)
    return start * (1 - share) + end * share


# -- three schedules, switched at random ---------------------------------------------------------------------


@dataclass(frozen=True)
class SwitchingEpsilon:
    """The exploration of App. F: every `period` an actor draws one of three schedules and resumes it.

        steps of the actor      0       50,000     100,000     150,000
        schedule, drawn         2          0           2           …
        its position            0 → 50k    0 → 50k     50k → 100k

    The paper does not say whether the schedules share a position (Deviation D16). With
    `shared_position=False` each has its own, which advances only while the schedule is followed
    ("starting new schedules at the intermediate positions where they left old ones"); with True,
    all of them use the step count of the actor. The first schedule is drawn like later ones, and a
    draw may repeat the current one.

    The defaults are the paper's, in frames; the agent gives `duration` and `period` in steps of one
    actor.
    """

    ends: tuple[float, ...] = (0.5, 0.1, 0.01)
    probabilities: tuple[float, ...] = (0.3, 0.4, 0.3)
    start: float = 1.0
    duration: int = 250_000
    """Steps from `start` to the end of a schedule."""
    period: int = 50_000
    """Steps of an actor between two draws."""
    shared_position: bool = False

    def __post_init__(self) -> None:
        if not self.ends or len(self.ends) != len(self.probabilities):
            raise ValueError(
                f"`probabilities` must have one entry per entry of `ends`; got {len(self.probabilities)} for "
                f"{len(self.ends)}."
            )
        for name, values in (("start", (self.start,)), ("ends", self.ends), ("probabilities", self.probabilities)):
            for value in values:
                if not 0 <= value <= 1:
                    raise ValueError(f"`{name}` must be in [0, 1]; got {value!r}.")
        if abs(sum(self.probabilities) - 1) > 1e-6:
            raise ValueError(f"`probabilities` must add up to 1; got {sum(self.probabilities):g}.")
        for name in ("duration", "period"):
            if not 1 <= getattr(self, name) < MAX_STEPS:
                raise ValueError(f"`{name}` must be at least 1 step and under 2³⁰; got {getattr(self, name)!r}.")


class ScheduleState(NamedTuple):
    """The schedules of an actor; fields may have leading axes, of actors and of members."""

    current: Array
    """(…) int32: the schedule that the actor follows."""
    position: Array
    """(…, K) int32: steps spent in each schedule."""
    frames: Array
    """(…) int32: steps since the last draw. The name is that of saved runs."""


def init(spec: SwitchingEpsilon, key: Array, num_actors: int) -> ScheduleState:
    """Draw the first schedule of every actor."""
    return ScheduleState(
        current=_draw(spec, key, (num_actors,)),
        position=jnp.zeros((num_actors, len(spec.ends)), np.int32),
        frames=jnp.zeros((num_actors,), np.int32),
    )


def epsilon(spec: SwitchingEpsilon, state: ScheduleState) -> Array:
    """Return the current ε of each actor: (…).

    >>> spec = SwitchingEpsilon(ends=(0.5, 0.1), probabilities=(0.5, 0.5), duration=100)
    >>> now = ScheduleState(jnp.array([0, 1]), jnp.array([[50, 0], [50, 100]]), jnp.array([0, 0]))
    >>> [round(float(value), 2) for value in epsilon(spec, now)]
    [0.75, 0.1]
    """
    position = jnp.take_along_axis(state.position, state.current[..., None], axis=-1)[..., 0]
    if spec.shared_position:
        position = state.position.sum(axis=-1)
    end = jnp.asarray(spec.ends, np.float32)[state.current]
    return linear(position, start=spec.start, end=end, duration=spec.duration)


def advance(spec: SwitchingEpsilon, state: ScheduleState, key: Array, num_steps: int) -> ScheduleState:
    """Advance every actor by `num_steps` steps; those that reach the end of the period draw a schedule.

    Steps past the end of a period count for the old schedule in full, and for the next period.
    """
    is_current = jnp.arange(len(spec.ends)) == state.current[..., None]
    limit = MAX_STEPS // len(spec.ends)  # keeps the sum of the positions in range
    position = jnp.minimum(state.position + is_current * num_steps, limit).astype(np.int32)
    steps = state.frames + num_steps
    due = steps >= spec.period
    drawn = _draw(spec, key, state.current.shape)
    current = jnp.where(due, drawn, state.current)
    return ScheduleState(current, position, jnp.where(due, steps % spec.period, steps).astype(np.int32))


def _draw(spec: SwitchingEpsilon, key: Array, shape: tuple[int, ...]) -> Array:
    """Draw a schedule for each actor: the number of cumulative probabilities that a uniform number has reached."""
    sums = jnp.asarray(np.cumsum(spec.probabilities)[:-1], np.float32)
    return (jax.random.uniform(key, shape)[..., None] >= sums).sum(axis=-1, dtype=np.int32)
