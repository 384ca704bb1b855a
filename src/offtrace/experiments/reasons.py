"""Why runs failed or diverged, and what else they noted, by reason: thousands of runs may have one and the same."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from offtrace.experiments.records import StoredRun

NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?|\b(nan|inf)\b")
MOST = 20
"""Reasons that are told; of the others, how many there are."""


class Group(NamedTuple):
    """Runs with the same reason, numbers in it aside."""

    reason: str
    """In the words of the first of them."""
    runs: tuple[StoredRun, ...]


def failures(runs: Iterable[StoredRun]) -> list[Group]:
    """Of runs that failed: the last line of why."""
    return _grouped((_last_line(run.failure), run) for run in runs if run.status == "failed")


def divergences(runs: Iterable[StoredRun]) -> list[Group]:
    """Of runs that diverged: when, and how it showed."""
    return _grouped((_last_line(run.failure), run) for run in runs if run.status == "diverged")


def events(runs: Iterable[StoredRun]) -> list[Group]:
    """What runs noted as they went; each run counts once for what it noted again and again."""
    noted = []
    for run in runs:
        own = {}
        for report in run.reports:
            for event in report.events:
                own.setdefault(_kind(event), event)
        noted += [(event, run) for event in own.values()]
    return _grouped(noted)


def first_runs(runs: Sequence[StoredRun], most: int = 3) -> str:
    """
    >>> first_runs([])
    ''
    """
    shown = [_cell(run) for run in runs[:most]]
    others = [f"{len(runs) - most:,} more"] if len(runs) > most else []
    return ", ".join([*shown, *others])


def _cell(run: StoredRun) -> str:
    spec = run.spec
    return f"{spec['env']} {spec['trace']} λ = {spec['lambda_']:g} seed {spec['seed']}"


def _grouped(told: Iterable[tuple[str, StoredRun]]) -> list[Group]:
    """Those with the most runs first."""
    found: dict[str, tuple[str, list[StoredRun]]] = {}
    for reason, run in told:
        found.setdefault(_kind(reason), (reason, []))[1].append(run)
    groups = [Group(reason, tuple(runs)) for reason, runs in found.values()]
    return sorted(groups, key=lambda group: -len(group.runs))


def _kind(reason: str) -> str:
    """
    >>> _kind("|Q| reached 1.5e+03, beyond any possible return of 100")
    '|Q| reached #, beyond any possible return of #'
    """
    return NUMBER.sub("#", reason)


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines() or ["no reason known"]
    return lines[-1][:400]
