"""How a wrong value is refused: the argument, the rule, the value, the place and the remedy, in one text.

A rule is an array that is True where it is broken, so one function serves every rule in every array library.
"""

import numpy as np

from offtrace.arrays import Array, library


def refuse(
    bad: Array, name: str, rule: str, values: Array, remedy: str = "", *, what: str = "got", axis: str = "t"
) -> None:
    """Raises if `bad` is True anywhere.

    >>> values = np.array([0.5, 1.5])
    >>> refuse(values > 1, "pi_a", "must be at most 1", values, "Normalise it.")
    Traceback (most recent call last):
    ValueError: `pi_a` must be at most 1; got 1.5 at t = 1. Normalise it.
    """
    place = first(bad)
    if place is not None:
        at = f" at {where(place, axis)}" if place else ""
        raise ValueError(f"`{name}` {rule}; {what} {_shown(number(values, place))}{at}. {remedy}".rstrip())


def first(bad: Array) -> tuple[int, ...] | None:
    """The first place where a rule is broken."""
    if not bool(bad.any()):
        return None
    host = bad.detach().cpu().numpy() if library(bad) == "torch" else np.asarray(bad)
    return tuple(int(i) for i in np.argwhere(host)[0])


def _shown(value: float) -> str:
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.6g}"


def number(values: Array, place: tuple[int, ...]) -> float:
    return float(values[place].detach() if library(values) == "torch" else values[place])


def where(place: tuple[int, ...], axis: str = "t") -> str:
    """A place in words: the index on the first axis, time unless named otherwise, then the rest.

    >>> where((3, 0, 1))
    't = 3, [0, 1]'
    """
    rest = ", ".join(map(str, place[1:]))
    return f"{axis} = {place[0]}" + (f", [{rest}]" if rest else "")
