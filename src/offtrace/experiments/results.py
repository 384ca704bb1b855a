"""From stored runs to comparisons: one study per suite of games.

Runs of one game, algorithm and λ that differ only in the seed are a cell. Runs that also differ in
another field, such as the target policy or the step size, are never mixed: they are algorithms of
their own, named after it (see `offtrace.experiments.algorithms`). Other options of an environment
are another environment, so they have a study of their own. So has each protocol of Atari and of
MinAtar, also if no game was played under two of them.

A run that diverged is compared as the worst of its game. To leave it out would favour the
algorithm that fails.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace.agent.telemetry import TickRecord
from offtrace.environments.protocols import SHARED_RULES
from offtrace.experiments.algorithms import (
    RUN_FIELDS,
    algorithms_of,
    incomplete_targets,
    setting_text,
)
from offtrace.experiments.encoding import fingerprint
from offtrace.experiments.exact import anchors
from offtrace.experiments.ladder import ladder_comparison
from offtrace.experiments.store import OVER, StoredRun
from offtrace.mdp import SMALL_WORLD
from offtrace.scores import Comparison, Key, area_under_curve, is_baseline, run_score
from offtrace.scores.comparison import Stretch
from offtrace.scores.keys import in_order


@dataclass(frozen=True, eq=False)
class Study:
    """A comparison, and the runs behind it."""

    comparison: Comparison
    runs: tuple[StoredRun, ...]
    """Runs of every status; those that are done or diverged are compared."""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """The algorithm of each run, by fingerprint."""
    ladder: Comparison | None = None
    """The comparison of the rungs from DQN to Retrace, if they were run."""

    @property
    def protocol(self) -> dict[str, Any]:
        """The rules of all games, if they share them, as Atari and MinAtar games do; else empty."""
        if not self.runs or _suite(self.runs[0].spec["env"]) not in SHARED_RULES:
            return {}
        return self.runs[0].protocol

    @property
    def protocol_text(self) -> str:
        """`protocol` in words."""
        return self.runs[0].protocol_text if self.protocol else ""

    @property
    def num_by_status(self) -> Mapping[str, int]:
        """Number of runs per status."""
        return Counter(run.status for run in self.runs)

    def curves(self, lambda_: float) -> dict[str, dict[str, list[tuple[TickRecord, ...]]]]:
        """Return the reports of runs that are over, at this λ, by game and algorithm; baselines have every λ."""
        found: dict[Key, list[tuple[TickRecord, ...]]] = {}
        for run in self.runs:
            if run.status in OVER:
                found.setdefault(_key(run, self.algorithms), []).append(run.reports)
        by_game: dict[str, dict[str, list[tuple[TickRecord, ...]]]] = {}
        for game in self.comparison.games:
            for algorithm in self.comparison.algorithms:
                key = Key(game, algorithm, _stored_lambda(algorithm, lambda_))
                reports = found.get(self.comparison.copies.get(key, key))
                if reports:
                    by_game.setdefault(game, {})[algorithm] = reports
        return by_game


def studies(runs: Sequence[StoredRun]) -> list[Study]:
    """Return a study per suite and protocol, and per choice of options if one environment has several."""
    runs = _distinct(runs)
    algorithms = algorithms_of(runs)
    by_suite: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_suite.setdefault(_suite(run.spec["env"]), []).append(run)
    found = []
    for suite, in_suite in sorted(by_suite.items()):
        for addition, group in _by_protocol(suite, in_suite):
            name = _title(suite, group) + addition
            found.append(Study(_comparison(name, group, algorithms), tuple(group), algorithms, _ladder(name, group)))
    return found


def _by_protocol(suite: str, runs: Sequence[StoredRun]) -> list[tuple[str, list[StoredRun]]]:
    """Return the runs of a suite that may be in one table, each group with an addition to the name of the suite."""
    if suite not in SHARED_RULES and not have_several_options(runs):
        return [("", list(runs))]
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(fingerprint(run.protocol), []).append(run)
    if len(groups) == 1:
        return [("", list(runs))]
    protocols = {key: group[0].protocol for key, group in groups.items()}
    names = {key: f", options {rules}" for key, rules in protocols.items()}
    if suite in SHARED_RULES:
        rules = dict.fromkeys([*SHARED_RULES[suite], *(rule for found in protocols.values() for rule in found)])
        differing = [rule for rule in rules if len({setting_text(p.get(rule)) for p in protocols.values()}) > 1]
        names = {
            key: "".join(f", {rule} {setting_text(found.get(rule))}" for rule in differing)
            for key, found in protocols.items()
        }
    return sorted(((names[key], group) for key, group in groups.items()), key=lambda pair: pair[0])


def _distinct(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Return the runs without those that repeat another one with other words for the same protocol."""
    found: dict[str, StoredRun] = {}
    for run in runs:
        key = fingerprint({**run.spec, "options": run.protocol})
        other = found.setdefault(key, run)
        if other.status not in OVER and run.status in OVER:
            found[key] = run
    return list(found.values())


TITLES = {"minatar": "MinAtar", "atari": "Atari", "pocket": "Pocket games"}
"""Display names of suites."""


def _title(suite: str, runs: Sequence[StoredRun]) -> str:
    if suite != "mdp":
        return TITLES.get(suite, suite)
    if {_game(run.spec["env"]) for run in runs} <= set(SMALL_WORLD):
        return "The small world"
    return "MDPs"


def _ladder(name: str, runs: Sequence[StoredRun]) -> Comparison | None:
    over = [run for run in runs if run.status in OVER]
    if not over:
        return None
    anchors = _anchors(over)
    return ladder_comparison(name, over, scored(over, anchors), anchors)


def _comparison(name: str, runs: Sequence[StoredRun], algorithms: Mapping[str, str]) -> Comparison:
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "evaluation": {}, "early": {}, "area": {}}
    seeds: dict[Stretch, dict[Key, list[int]]] = {stretch: {} for stretch in found}
    over = [run for run in runs if run.status in OVER]
    anchors = _anchors(over)
    values = scored(over, anchors)
    diverged = Counter(_key(run, algorithms) for run in over if run.status == "diverged")
    without_score = []
    num_random = 0
    for run in over:
        num_random += _plays_at_random_early(run)
        for stretch, value in values[run.fingerprint].items():
            key = _key(run, algorithms)
            if value is not None:
                found[stretch].setdefault(key, []).append(value)
                seeds[stretch].setdefault(key, []).append(int(run.spec["seed"]))
            elif stretch == "final" and run.status == "done":
                without_score.append(run)
    left_out = incomplete_targets(found["final"])
    for stretch in found:
        found[stretch] = {key: values for key, values in found[stretch].items() if key.algorithm not in left_out}
        seeds[stretch] = {key: values for key, values in seeds[stretch].items() if key.algorithm not in left_out}
    notes = _differences(over, algorithms)
    if without_score:
        first = ", ".join(str(without_score[0].spec[name]) for name in RUN_FIELDS)
        notes.append(
            f"{len(without_score)} runs are left out, as their last tenth has no finite return (the first: {first})."
        )
    if num_random:
        notes.append(f"{num_random:,} runs have no early score, as they still played at random in their first tenth.")
    return Comparison(
        name,
        found,
        seeds=seeds,
        copies=_copies(found["final"], {_key(run, algorithms): run.spec for run in over}),
        anchors=anchors,
        notes=tuple(notes),
        diverged={key: number for key, number in diverged.items() if key.algorithm not in left_out},
    )


def scored(
    runs: Sequence[StoredRun], anchors: Mapping[str, tuple[float, float]] | None
) -> dict[str, dict[Stretch, float | None]]:
    """Return the scores of runs that are over, by fingerprint. A diverged run has the worst score of its game.

    That is the lowest score of any run of the game, its own included, or that of random play if
    known and lower. If no run of the game is done, a diverged run has no score.
    """
    found = {run.fingerprint: scores(run) for run in runs}
    by_game: dict[tuple[str, Stretch], list[float]] = {}
    has_done = set()
    for run in runs:
        for stretch, value in found[run.fingerprint].items():
            if value is not None:
                place = _game(run.spec["env"]), stretch
                by_game.setdefault(place, []).append(value)
                if run.status == "done":
                    has_done.add(place)
    for run in runs:
        if run.status != "diverged":
            continue
        game = _game(run.spec["env"])
        for stretch in found[run.fingerprint]:
            worst = None
            if (game, stretch) in has_done and not (stretch == "early" and _plays_at_random_early(run)):
                worst = min(by_game[game, stretch])
                if anchors is not None:
                    worst = min(worst, anchors[game][0])
            found[run.fingerprint][stretch] = worst
    return found


def scores(run: StoredRun) -> dict[Stretch, float | None]:
    """Return the scores of a run; None if no episode ended, or a return was not finite.

    `final`, `early` and `area` are training returns, under exploration; `evaluation` is the mean
    return at ε ≈ 0 at the end.
    """
    evaluation = None
    if run.returns and np.isfinite(run.returns).all():
        evaluation = float(np.mean(run.returns))
    reports = [report for report in run.reports if report.tick]
    with_episodes = [report for report in reports if report.num_episodes]
    if not with_episodes or not all(np.isfinite(report.episode_return) for report in with_episodes):
        return {"final": None, "evaluation": evaluation, "early": None, "area": None}
    columns: dict[str, Any] = {
        "steps": [report.num_steps for report in reports],
        "returns": [report.episode_return for report in reports],
        "num_episodes": [report.num_episodes for report in reports],
    }
    early = None
    if not _plays_at_random_early(run):
        early = run_score(**columns, end="first").value
    area = None
    if len(with_episodes) > 1:
        area = area_under_curve(
            steps=[report.num_steps for report in with_episodes],
            returns=[report.episode_return for report in with_episodes],
        )
    return {"final": run_score(**columns).value, "evaluation": evaluation, "early": early, "area": area}


# -- which runs belong together ------------------------------------------------------------------------------


def _copies(final: Mapping[Key, Any], specs: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Key]:
    """Return the cells at λ = 0 that are copies: all traces are one algorithm there, run for the sake of all.

    The original is the cell at λ = 0 with the most runs. A trace copies it only if its own runs
    have the same settings. The step size may differ if it was chosen for the trace: that is, unless
    the trace was run at λ = 0 itself, or with several settings.
    """
    found: dict[Key, Key] = {}
    with_lambda = in_order({key.algorithm for key in final if not is_baseline(key.algorithm)})
    for game in {key.game for key in final}:
        originals = [Key(game, name, 0.0) for name in with_lambda if Key(game, name, 0.0) in final]
        originals.sort(key=lambda key: -len(final[key]))
        for name in with_lambda:
            key = Key(game, name, 0.0)
            was_run = key in final
            spec = _spec_of(key, specs, exactly=was_run)
            is_strict = was_run or "," in name
            for original in originals:
                if original == key or spec is None:
                    break  # no other cell has more runs
                if _settings(spec, step_size=is_strict) == _settings(specs[original], step_size=is_strict):
                    found[key] = original
                    break
    return found


def _spec_of(key: Key, specs: Mapping[Key, Mapping[str, Any]], *, exactly: bool) -> Mapping[str, Any] | None:
    """Return the spec of a cell or, if not `exactly`, of the same game and algorithm at any λ."""
    for other, spec in specs.items():
        if other[:2] == key[:2] and (other == key or not exactly):
            return spec
    return None


def _settings(spec: Mapping[str, Any], *, step_size: bool) -> dict[str, Any]:
    """Return the fields of a spec that a copy must share with its original."""
    left_out = {"trace", "lambda_", "seed"}
    if not step_size:
        left_out.add("step_size")
    return {name: value for name, value in spec.items() if name not in left_out}


def _anchors(runs: Sequence[StoredRun]) -> dict[str, tuple[float, float]] | None:
    """Return an exact scale if every game is an MDP that has one."""
    specs = {_game(run.spec["env"]): run.spec for run in runs}
    found = {game: anchors(spec["env"], spec.get("options", {})) for game, spec in specs.items()}
    exact = {game: ends for game, ends in found.items() if ends is not None}
    if not exact or len(exact) < len(found):
        return None
    return exact


def _plays_at_random_early(run: StoredRun) -> bool:
    """Return whether ε falls, or replay fills, for more than half of the first tenth of a run."""
    random_steps = max(run.spec.get("epsilon_steps", 0), run.spec.get("fill", 0))
    return random_steps > 0.05 * run.spec.get("num_steps", math.inf)


def _differences(runs: Sequence[StoredRun], algorithms: Mapping[str, str]) -> list[str]:
    """Return a note for each of two settings in which the algorithms of a game differ, if no name says so."""
    notes = []
    for name in ("num_steps", "step_size"):
        if any(f", {name} " in algorithms[run.fingerprint] for run in runs):
            continue
        values: dict[str, set[Any]] = {}
        for run in runs:
            values.setdefault(_game(run.spec["env"]), set()).add(run.spec.get(name))
        games = [game for game, found in values.items() if len(found) > 1]
        if games:
            others = ""
            if len(games) > 3:
                others = f" and {len(games) - 3} more"
            notes.append(f"Algorithms differ in `{name}` on {', '.join(games[:3])}{others}.")
    return notes


def _key(run: StoredRun, algorithms: Mapping[str, str]) -> Key:
    name = algorithms[run.fingerprint]
    return Key(_game(run.spec["env"]), name, _stored_lambda(name, float(run.spec["lambda_"])))


def _stored_lambda(algorithm: str, lambda_: float) -> float:
    return 0.0 if is_baseline(algorithm) else lambda_


def _suite(env: str) -> str:
    suite, slash, _ = env.partition("/")
    return suite if slash else "games"


def _game(env: str) -> str:
    return env.partition("/")[2] or env


def have_several_options(runs: Sequence[StoredRun]) -> bool:
    """Return whether runs of one environment have different protocols: another environment with the same name."""
    first: dict[str, Any] = {}
    for run in runs:
        rules = run.protocol
        if first.setdefault(run.spec["env"], rules) != rules:
            return True
    return False
