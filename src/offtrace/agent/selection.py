"""Selects runs by the fields of their specs."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from offtrace.agent.spec import TrainSpec, full_name

MOST_LISTED = 8
"""Values of a field that a message lists."""


def select(
    specs: Sequence[TrainSpec], fields: Mapping[str, Any], member: int | None = None, *, where: str
) -> list[int]:
    """Return the numbers of the specs whose fields have these values; raise if there are none.

    >>> specs = [TrainSpec(env="pocket/catch", trace=trace) for trace in ("retrace", "q_lambda")]
    >>> select(specs, {"trace": "q_lambda"}, where="runs/catch")
    [1]
    """
    if member is not None:
        if fields:
            raise ValueError(f"`member` must come without fields of the spec; got {', '.join(fields)} as well.")
        if isinstance(member, bool) or not isinstance(member, int) or not 0 <= member < len(specs):
            raise ValueError(f"`member` must be at least 0 and under {len(specs)}; got {member!r}.")
        return [member]
    wanted = dict(fields)
    for name in wanted:
        _check_field(name)
    if "env" in wanted:
        wanted["env"] = full_name(wanted["env"])
    found = [i for i, spec in enumerate(specs) if _fields(spec, wanted) == wanted]
    if not found:
        raise ValueError(f"{where!r} has no run with {_shown(fields)}. It has {_values(specs, wanted)}.")
    return found


def the_only(found: Sequence[int], specs: Sequence[TrainSpec], *, where: str) -> int:
    """Return the number of the only run that was found; raise if there are several, and say how they differ."""
    if len(found) == 1:
        return found[0]
    several = [specs[i] for i in found]
    names = [field.name for field in dataclasses.fields(TrainSpec)]
    differing = [name for name in names if len({repr(getattr(spec, name)) for spec in several}) > 1]
    raise ValueError(
        f"{len(found)} runs of {where!r} fit. Select one by {_values(several, differing[:4])}; "
        "`ot.load_policies` returns all of them."
    )


def _check_field(name: str) -> None:
    known = [field.name for field in dataclasses.fields(TrainSpec)]
    if name in known:
        return
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else f" Fields are {', '.join(known)}."
    raise ValueError(f"`{name}` must be a field of `TrainSpec`.{hint}")


def _fields(spec: TrainSpec, names: Any) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in names}


def _shown(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _values(specs: Sequence[TrainSpec], names: Any) -> str:
    """Return the values that these fields have, as text: `seed` (0, 1, 2)."""
    parts = []
    for name in names:
        values = list(dict.fromkeys(repr(getattr(spec, name)) for spec in specs))
        more = ", …" if len(values) > MOST_LISTED else ""
        parts.append(f"`{name}` ({', '.join(values[:MOST_LISTED])}{more})")
    return ", ".join(parts)
