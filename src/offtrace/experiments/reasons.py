"""Why runs failed or diverged, and their events, grouped by reason: thousands of runs may have the same one."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from offtrace.experiments.stored_runs import StoredRun

NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b")
MOST = 20
"""Reasons that are shown; the others are counted."""


class Group(NamedTuple):
    """Runs with the same reason, up to the numbers in it."""

    reason: str
    """The reason of the first run."""
    runs: tuple[StoredRun, ...]


def failures(runs: Iterable[StoredRun]) -> list[Group]:
    """Return the failed runs by the last line of their error."""
    return _grouped((_last_line(run.failure), run) for run in runs if run.status == "failed")


def divergences(runs: Iterable[StoredRun]) -> list[Group]:
    """Return the diverged runs by when and how they diverged."""
    return _grouped((_last_line(run.failure), run) for run in runs if run.status == "diverged")


def events(runs: Iterable[StoredRun]) -> list[Group]:
    """Return runs by their events; a run counts once for an event that it reports repeatedly."""
    found = []
    for run in runs:
        first_of_kind: dict[str, str] = {}
        for report in run.reports:
            for event in report.events:
                first_of_kind.setdefault(_without_numbers(event), event)
        found += [(event, run) for event in first_of_kind.values()]
    return _grouped(found)


def first_runs(runs: Sequence[StoredRun], most: int = 3) -> str:
    """Return the names of the first runs, and the number of the others.

    >>> first_runs([])
    ''
    """
    names = ", ".join(_name(run) for run in runs[:most])
    others = len(runs) - most
    if others <= 0:
        return names
    return f"{names} and {others:,} other run{'s' if others > 1 else ''}"


def _name(run: StoredRun) -> str:
    spec = run.spec
    return f"{spec['env']} {spec['trace']} λ = {spec['lambda_']:g} seed {spec['seed']}"


def _grouped(reasons: Iterable[tuple[str, StoredRun]]) -> list[Group]:
    """Return the groups, largest first."""
    by_kind: dict[str, tuple[str, list[StoredRun]]] = {}
    for reason, run in reasons:
        by_kind.setdefault(_without_numbers(reason), (reason, []))[1].append(run)
    groups = [Group(reason, tuple(runs)) for reason, runs in by_kind.values()]
    return sorted(groups, key=lambda group: -len(group.runs))


def _without_numbers(reason: str) -> str:
    """Return a reason with numbers replaced.

    >>> _without_numbers("|Q| reached 1.5e+03, beyond any possible return of 100")
    '|Q| reached #, beyond any possible return of #'
    """
    return NUMBER.sub("#", reason)


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines() or ["unknown reason"]
    return lines[-1][:400]
