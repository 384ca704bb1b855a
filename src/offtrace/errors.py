"""Errors about the values of arrays: argument, rule, value, place and remedy in one text.

A rule is given as an array that is True where it is broken, so one function serves every rule in every library.
"""

import numpy as np

from offtrace.arrays import Array, library


def raise_where(
    broken: Array, name: str, rule: str, values: Array, remedy: str = "", *, verb: str = "got", axis: str = "t"
) -> None:
    """Raise a ValueError if `broken` is True anywhere; the text shows the first such value and its place.

    >>> values = np.array([0.5, 1.5])
    >>> raise_where(values > 1, "pi_a", "must be at most 1", values, "Normalise it.")
    Traceback (most recent call last):
    ValueError: `pi_a` must be at most 1; got 1.5 at t = 1. Normalise it.
    """
    place = first_place(broken)
    if place is None:
        return
    at = f" at {place_in_words(place, axis)}" if place else ""
    shown = _shown(value_at(values, place))
    raise ValueError(f"`{name}` {rule}; {verb} {shown}{at}. {remedy}".rstrip())


def first_place(mask: Array) -> tuple[int, ...] | None:
    """Return the index of the first True, or None."""
    if not bool(mask.any()):
        return None
    if library(mask) == "torch":
        mask = mask.detach().cpu()
    return tuple(int(i) for i in np.argwhere(np.asarray(mask))[0])


def value_at(values: Array, place: tuple[int, ...]) -> float:
    """Return one entry of an array of any library as a Python float."""
    value = values[place]
    if library(values) == "torch":
        value = value.detach()
    return float(value)


def place_in_words(place: tuple[int, ...], axis: str = "t") -> str:
    """Return an index as text: the first axis by name, time by default, then the rest.

    >>> place_in_words((3, 0, 1))
    't = 3, [0, 1]'
    """
    first = f"{axis} = {place[0]}"
    rest = ", ".join(map(str, place[1:]))
    return f"{first}, [{rest}]" if rest else first


def _shown(value: float) -> str:
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return f"{value:.6g}"
