"""Checks of arguments, written once for every way to make an MDP."""

from typing import Any

import numpy as np


def checked_whole(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number that is at least `least`.

    >>> checked_whole("num_states", 0)
    Traceback (most recent call last):
    ValueError: `num_states` must be at least 1; got 0.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a whole number; got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}; got {value}.")
    return int(value)


def checked_share(name: str, value: Any) -> float:
    """Return a number in [0, 1]."""
    if not isinstance(value, (int, float, np.number)):
        raise TypeError(f"`{name}` must be a number in [0, 1]; got {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")
    return float(value)


def checked_generator(name: str, seed: Any) -> np.random.Generator:
    """Return a generator made from a seed, or the given generator itself."""
    if not isinstance(seed, (np.random.Generator, int, np.integer)) or isinstance(seed, bool):
        raise TypeError(f"`{name}` must be a whole number or a numpy.random.Generator; got {type(seed).__name__}.")
    return np.random.default_rng(seed)


def checked_numbers(name: str, values: Any) -> np.ndarray:
    """Return an array of floats; float32 stays float32."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array of numbers; got {type(values).__name__}.") from None
    return array if array.dtype.kind == "f" and array.dtype.isnative else array.astype(np.float64)


def checked_array(name: str, values: Any) -> np.ndarray:
    """Return an array of any dtype."""
    try:
        return np.asarray(values)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be an array; got {type(values).__name__}.") from None


def checked_wholes(name: str, values: Any) -> np.ndarray:
    """Return an array of whole numbers."""
    array = checked_array(name, values)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"`{name}` must be whole numbers; got {array.dtype}.")
    return array
