"""What the asynchronous runtime measures of its actor-learners in each tick."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class ActorsRecord(NamedTuple):
    """The actor-learners at the end of a tick: lists have an entry per actor."""

    epsilon: tuple[float, ...]
    """Current ε."""
    schedule: tuple[int, ...]
    """The ε schedule that each actor follows, counted from 0; empty if all have one linear ε."""
    num_switches: tuple[int, ...]
    """Changes to another schedule so far; a draw that repeats the current one is no change."""
    num_steps: tuple[int, ...]
    """Environment steps so far."""
    num_updates: tuple[int, ...]
    """Updates so far."""
    staleness: float
    """Mean number of updates by others between the copy of the parameters and the update, in this tick."""
    largest_staleness: int
    """The largest such number in this tick."""


def to_json(record: ActorsRecord) -> dict[str, Any]:
    """Return a record as JSON values; nan becomes None.

    >>> to_json(ActorsRecord((0.5,), (2,), (1,), (64,), (16,), 0.0, 0))["epsilon"]
    [0.5]
    """
    row: dict[str, Any] = {
        name: [*value] if isinstance(value, tuple) else value for name, value in record._asdict().items()
    }
    if record.staleness != record.staleness:
        row["staleness"] = None
    return row


def from_json(row: Any) -> ActorsRecord:
    """Return the record that `to_json` was given."""
    if not isinstance(row, Mapping) or set(ActorsRecord._fields) - set(row):
        raise ValueError(f"`actors` of a row of progress must have {', '.join(ActorsRecord._fields)}; got {row!r}.")
    values: dict[str, Any] = {}
    for name in ActorsRecord._fields:
        value: Any = row[name]
        if name == "staleness" and value is None:
            value = float("nan")
        numbers = value if isinstance(value, list) else [value]
        is_list = name not in ("staleness", "largest_staleness")
        if is_list != isinstance(value, list) or not all(_is_number(one) for one in numbers):
            raise ValueError(f"`{name}` of `actors` in a row of progress has a wrong value: {value!r}.")
        values[name] = value
        if isinstance(value, list):
            values[name] = tuple(value)
    return ActorsRecord(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
