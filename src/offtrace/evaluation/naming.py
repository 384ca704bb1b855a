"""Which columns of a file or a frame are which columns of a log."""

import re
from collections.abc import Callable, Mapping, Sequence

from offtrace.evaluation.columns import KINDS
from offtrace.evaluation.problems import Problem, whole

Names = Mapping[str, str | Sequence[str]]
"""By the column of a log: the user's name of it, or several that are one vector."""
VECTORS = ("observation", "next_observation", "action")
MOST_LISTED = 12


class Plan(dict[str, str | list[str]]):
    """By the column of a log, the column of the source; a list of them is a vector."""

    @property
    def sources(self) -> list[str]:
        """All columns that are read."""
        return [name for given in self.values() for name in ([given] if isinstance(given, str) else given)]


def check_renames(columns: Names | None) -> None:
    """Raise unless `columns` names columns of a log."""
    for name, given in (columns or {}).items():
        if name not in KINDS:
            raise ValueError(f"`columns` must have names among {', '.join(KINDS)}; got {name!r}.")
        if not isinstance(given, str) and name not in VECTORS:
            raise ValueError(f"`columns` must name one column for `{name}`; got {given!r}.")


def plan_columns(
    available: Sequence[str], columns: Names | None, tell: Callable[[str], None], where: str
) -> tuple[Plan, list[Problem]]:
    """Return which columns to read. A vector may be a column of lists, or `observation_0`, `observation_1`, …."""
    plan = Plan()
    for name in KINDS:
        given = (columns or {}).get(name)
        if given is not None:
            plan[name] = given if isinstance(given, str) else list(given)
        elif name in available:
            plan[name] = name
        elif name in VECTORS and f"{name}_0" in available:
            plan[name] = _numbered(name, available)
    problems = [
        whole(f"the column `{name}` is missing; {where} has {_listed(available)}")
        for name in plan.sources
        if name not in available
    ]
    used = set(plan.sources)
    unknown = [name for name in available if name not in used and not name.startswith("__index_level_")]
    if unknown and not problems:
        tell(f"{where}: ignored columns: {_listed(unknown)}.")
    return plan, problems


def _numbered(name: str, available: Sequence[str]) -> list[str]:
    """Return `observation_0`, `observation_1`, … in the order of their numbers."""
    pattern = re.compile(rf"{name}_(\d+)")
    found = [(int(match[1]), column) for column in available if (match := pattern.fullmatch(column))]
    return [column for _, column in sorted(found)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:MOST_LISTED])
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return (shown + more) or "none"
