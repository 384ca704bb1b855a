"""From stored runs to what is compared: a study for each suite of games and each way of training them.

Runs of one game, trace and λ that differ in nothing but the seed are a cell. Where some differ in another field, say
in the step size, they are never pooled: each value of that field is a study of its own, and its name says so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.agent.telemetry import Report
from offtrace.experiments.store import StoredRun
from offtrace.scores import Comparison, Key, area_under_curve, run_score
from offtrace.scores.comparison import BASELINES, Stretch

CELL = ("env", "trace", "lambda_", "seed")


@dataclass(frozen=True, eq=False)
class Study:
    """A comparison, and the runs that it is made of."""

    comparison: Comparison
    runs: tuple[StoredRun, ...]
    """Of every status; only those that are done are compared."""

    @property
    def num_by_status(self) -> Mapping[str, int]:
        return Counter(run.status for run in self.runs)

    def curves(self, lambda_: float) -> dict[str, dict[str, list[tuple[Report, ...]]]]:
        """Reports of runs that are done at this λ, by game and algorithm; baselines are at every λ."""
        found: dict[str, dict[str, list[tuple[Report, ...]]]] = {}
        for game in self.comparison.games:
            for algorithm in self.comparison.algorithms:
                key = Key(game, algorithm, 0.0 if algorithm in BASELINES else lambda_)
                reports = [run.reports for run in self.runs if run.status == "done" and _key(run) == key]
                if reports:
                    found.setdefault(game, {})[algorithm] = reports
        return found


def studies(runs: Sequence[StoredRun]) -> list[Study]:
    """By suite, and by whatever else differs."""
    varied = _varied_fields(runs)
    groups: dict[tuple[str, str], list[StoredRun]] = {}
    for run in runs:
        variant = ", ".join(f"{name.rstrip('_')} {_shown(run.spec[name])}" for name in varied if name in run.spec)
        groups.setdefault((_suite(run.spec["env"]), variant), []).append(run)
    return [
        Study(_comparison(suite + (variant and f", {variant}"), group), tuple(group))
        for (suite, variant), group in sorted(groups.items())
    ]


def _comparison(name: str, runs: Sequence[StoredRun]) -> Comparison:
    scores: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "early": {}, "area": {}}
    silent = 0
    for run in runs:
        if run.status != "done":
            continue
        for stretch, value in _scores(run).items():
            if value is not None:
                scores[stretch].setdefault(_key(run), []).append(value)
            elif stretch == "final":
                silent += 1
    notes = (f"{silent} runs count for nothing: no episode ended in their last tenth.",) if silent else ()
    return Comparison(name, scores, notes=notes)


def _scores(run: StoredRun) -> dict[Stretch, float | None]:
    reports = [report for report in run.reports if report.tick]
    if not reports:
        return {"final": None, "early": None, "area": None}
    columns: dict[str, Any] = {
        "steps": [report.num_steps for report in reports],
        "returns": [report.episode_return for report in reports],
    }
    episodes = [report.num_episodes for report in reports]
    known = [i for i, value in enumerate(columns["returns"]) if np.isfinite(value)]
    points = {name: [column[i] for i in known] for name, column in columns.items()}
    return {
        "final": run_score(**columns, num_episodes=episodes).value,
        "early": run_score(**columns, num_episodes=episodes, end="first").value,
        "area": area_under_curve(**points) if len(known) > 1 else None,
    }


def _key(run: StoredRun) -> Key:
    trace = run.spec["trace"]
    return Key(_game(run.spec["env"]), trace, 0.0 if trace in BASELINES else float(run.spec["lambda_"]))


def _suite(env: str) -> str:
    return env.partition("/")[0] if "/" in env else "games"


def _game(env: str) -> str:
    return env.partition("/")[2] or env


def _varied_fields(runs: Sequence[StoredRun]) -> list[str]:
    """Fields in which runs of one cell differ, the seed aside."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    varied: dict[str, None] = {}
    for run in runs:
        cell = tuple(run.spec.get(name) for name in CELL[:-1])
        other = first.setdefault(cell, run.spec)
        for name in sorted(set(run.spec) | set(other)):
            if name not in CELL and run.spec.get(name) != other.get(name):
                varied[name] = None
    return list(varied)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
