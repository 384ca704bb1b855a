"""Checks of numbers that environments take."""

from typing import Any

import numpy as np

LIMIT = 2**31
"""Counts and seeds must be below this, since they become int32."""


def checked_whole(name: str, value: Any, *, least: int = 1, limited: bool = False) -> int:
    """Return a whole number of at least `least`, and under 2³¹ if `limited`.

    >>> checked_whole("num_actors", 0)
    Traceback (most recent call last):
    ValueError: `num_actors` must be a whole number of at least 1; got 0.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < least or (limited and value >= LIMIT):
        under = " and under 2³¹" if limited else ""
        raise ValueError(f"`{name}` must be a whole number of at least {least}{under}; got {value!r}.")
    return int(value)


def check_flag(name: str, value: Any) -> None:
    """Raise unless a value is True or False. The text "false" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"`{name}` must be True or False; got {value!r}.")


def check_sticky(value: Any) -> None:
    """Raise unless the probability of a repeated action is in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"`sticky` must be a probability below 1; got {value!r}.")
