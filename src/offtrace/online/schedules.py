"""Schedules over k, the number of the trajectory: step sizes α_k(x, a), and the ε_k or β_k of a policy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Schedule = float | np.ndarray | Callable[[int], float]
"""A number, an array with one number per trajectory, or a function of k = 0, 1, …"""


def numbers(schedule: Any, num: int, name: str, *, low: float, high: float = np.inf) -> np.ndarray:
    """Return the values of a schedule as an array, (num,).

    >>> numbers(lambda k: 1 / (k + 1), 3, "epsilon", low=0, high=1).round(2)
    array([1.  , 0.5 , 0.33])
    """
    try:
        given = [schedule(k) for k in range(num)] if callable(schedule) else schedule
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, an array or a function of k; got {schedule!r}.") from None
    if values.ndim == 0:
        values = np.full(num, float(values))
    if values.shape != (num,):
        raise ValueError(f"`{name}` must have one value per trajectory, ({num},); got shape {values.shape}.")
    outside = ~((values >= low) & (values <= high) & np.isfinite(values))
    if outside.any():
        k = int(np.argmax(outside))
        rule = f"in [{low:g}, {high:g}]" if np.isfinite(high) else f"a finite number of at least {low:g}"
        raise ValueError(f"`{name}` must be {rule}; got {values[k]:g} at k = {k}.")
    return values


def linear(start: float, end: float, num: int) -> Callable[[int], float]:
    """Return the schedule from `start` to `end` over `num` trajectories, then constant.

    >>> [linear(1.0, 0.5, 2)(k) for k in range(4)]
    [1.0, 0.75, 0.5, 0.5]
    """
    return lambda k: start + (end - start) * min(1.0, k / num)


def decaying(start: float, half_life: float) -> Callable[[int], float]:
    """Return the schedule start / (1 + k / half_life), which goes to 0 as Theorem 3 requires of the targets' ε_k.

    >>> [decaying(0.5, 10)(k) for k in (0, 10, 30)]
    [0.5, 0.25, 0.125]
    """
    return lambda k: start / (1 + k / half_life)


@dataclass(frozen=True)
class StepSize:
    """α_k(x, a) = scale_k / (N_k(x, a) + offset)^power, with N_k the visits so far, those of trajectory k included.

    `StepSize(0.1)` is constant. `StepSize(power=1)` is 1/visits, the plain average. With a power in
    (½, 1] the Robbins–Monro conditions of Theorem 3 hold at every pair that is visited infinitely
    often; the offset makes the first steps smaller. `scale` may be a schedule over k. In the
    first-visit form N_k counts trajectories.

    Eq. 7 moves a pair by α times the sum over all its visits in the trajectory. With many visits a
    large α overshoots, and may not recover; 1/visits cannot. Neither can a `bounded` step size,
    which is at most 1/m for the m visits of the pair in this trajectory. As N grows the bound no
    longer binds, so the Robbins–Monro conditions hold.

    >>> StepSize(power=1).at(visits=4)
    0.25
    >>> StepSize(0.5, bounded=True).at(visits=4, within=4)
    0.25
    """

    scale: Schedule = 1.0
    power: float = 0.0
    offset: float = 0.0
    bounded: bool = False

    def __post_init__(self) -> None:
        for name in ("power", "offset"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value < np.inf):
                raise ValueError(f"`{name}` of StepSize must be a finite number of at least 0; got {value!r}.")
        if not callable(self.scale):
            numbers(self.scale, np.size(self.scale), "scale", low=0)
        if not isinstance(self.bounded, bool):
            raise TypeError(f"`bounded` of StepSize must be True or False; got {self.bounded!r}.")

    def at(self, *, visits: int, k: int = 0, within: int = 1) -> float:
        """Return α for a pair that trajectory k has visited `within` times so far."""
        scale: Any = self.scale
        if callable(scale):
            scale = scale(k)
        elif np.ndim(scale):
            scale = scale[k]
        alpha = float(scale) / (visits + self.offset) ** self.power
        return 1.0 / within if self.bounded and alpha * within > 1 else alpha

    @property
    def label(self) -> str:
        """The name in charts.

        >>> StepSize(0.5, power=1, offset=9).label
        '0.5/(N + 9)'
        """
        label = f"{self.scale:g}" if isinstance(self.scale, int | float) else "α_k"
        if self.power:
            visits = f"(N + {self.offset:g})" if self.offset else "N"
            power = f"^{self.power:g}" if self.power != 1 else ""
            label = f"{label}/{visits}{power}"
        return f"min({label}, 1/m)" if self.bounded else label


ONE_OVER_VISITS = StepSize(power=1)
DEFAULT_STEP_SIZE = StepSize(power=0.6, bounded=True)
"""Unlike 1/N, which averages all targets, this forgets the early ones, which were made from wrong values."""


def as_step_size(given: Any) -> StepSize:
    """Return a `StepSize` as it is, and a number as a constant one."""
    if isinstance(given, StepSize):
        return given
    if isinstance(given, int | float | np.number) and not isinstance(given, bool):
        return StepSize(float(given))
    raise TypeError(f"`step_size` must be a number or a StepSize, such as StepSize(power=1); got {given!r}.")
