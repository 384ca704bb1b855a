"""From stored runs to what is compared: a study for each suite of games and each way of training them.

Runs of one game, trace and λ that differ in nothing but the seed are a cell. Where some differ in another field, say
in the step size, they are never pooled: each value of that field is a study of its own, and its name says so.
"""

import math
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
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "early": {}, "area": {}}
    done = [run for run in runs if run.status == "done"]
    silent, exploring = [], 0
    for run in done:
        values = scores(run)
        exploring += _still_explores_early(run)
        for stretch, value in values.items():
            if value is not None:
                found[stretch].setdefault(_key(run), []).append(value)
            elif stretch == "final":
                silent.append(run)
    notes = [*_differences(done)]
    if silent:
        first = ", ".join(str(silent[0].spec[name]) for name in CELL)
        notes.append(f"{len(silent)} runs count for nothing, as their last tenth has no finite return ({first}, …).")
    if exploring:
        notes.append(f"{exploring} runs have no early score: ε was still falling then, so they played at random.")
    return Comparison(name, found, notes=tuple(notes))


def scores(run: StoredRun) -> dict[Stretch, float | None]:
    """Its early and final score and its area; None where no episode ended, or a return was not finite."""
    reports = [report for report in run.reports if report.tick]
    known = [report for report in reports if report.num_episodes and np.isfinite(report.episode_return)]
    broken = any(report.num_episodes and not np.isfinite(report.episode_return) for report in reports)
    if not known or broken:
        return {"final": None, "early": None, "area": None}
    columns: dict[str, Any] = {
        "steps": [report.num_steps for report in reports],
        "returns": [report.episode_return for report in reports],
        "num_episodes": [report.num_episodes for report in reports],
    }
    points = {"steps": [r.num_steps for r in known], "returns": [r.episode_return for r in known]}
    return {
        "final": run_score(**columns).value,
        "early": None if _still_explores_early(run) else run_score(**columns, end="first").value,
        "area": area_under_curve(**points) if len(known) > 1 else None,
    }


def _still_explores_early(run: StoredRun) -> bool:
    """Whether ε falls for more than half of the first tenth: what is early then is mostly random play."""
    return run.spec.get("epsilon_steps", 0) > 0.05 * run.spec.get("num_steps", math.inf)


def _differences(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence for each of two settings in which algorithms of one game differ."""
    notes = []
    for name in ("num_steps", "step_size"):
        values: dict[str, set[Any]] = {}
        for run in runs:
            values.setdefault(_game(run.spec["env"]), set()).add(run.spec.get(name))
        games = [game for game, found in values.items() if len(found) > 1]
        if games:
            notes.append(f"Algorithms differ in `{name}` on {', '.join(games[:3])}{', …' if len(games) > 3 else ''}.")
    return notes


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
