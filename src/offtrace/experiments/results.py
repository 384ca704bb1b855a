"""From stored runs to what is compared: a study for each suite of games and each way of training them.

Runs of one game, algorithm and λ that differ in nothing but the seed are a cell. Where some differ in another field,
say in the step size, they are never pooled: each value of that field is a study of its own, and its name says so.

An algorithm is a trace with its target policy. Where runs of one trace have several target policies, each is an
algorithm of its own: `dqn.exploration` is DQN towards the exploring policy.

A run that diverged is compared, too, as to leave it out would favour what fails: it counts as the worst of its game.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.exact import anchors
from offtrace.experiments.ladder import ladder_comparison
from offtrace.experiments.store import OVER, StoredRun
from offtrace.mdp import SMALL_WORLD
from offtrace.scores import Comparison, Key, area_under_curve, is_baseline, run_score
from offtrace.scores.comparison import Stretch
from offtrace.scores.layout import in_order

VARIANTS = ("target_policy", "double", "target_epsilon")
"""Fields of a spec that make another algorithm of the same trace."""
CELL = ("env", "trace", "lambda_", "seed")


@dataclass(frozen=True, eq=False)
class Study:
    """A comparison, and the runs that it is made of."""

    comparison: Comparison
    runs: tuple[StoredRun, ...]
    """Of every status; those that are done or diverged are compared."""
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """The algorithm of each run, by fingerprint."""
    ladder: Comparison | None = None
    """The rungs from DQN to Retrace, where their runs are there."""

    @property
    def num_by_status(self) -> Mapping[str, int]:
        return Counter(run.status for run in self.runs)

    def curves(self, lambda_: float) -> dict[str, dict[str, list[tuple[TickRecord, ...]]]]:
        """Reports of runs that are over, at this λ, by game and algorithm; baselines are at every λ."""
        found: dict[Key, list[tuple[TickRecord, ...]]] = {}
        for run in self.runs:
            if run.status in OVER:
                found.setdefault(_key(run, self.algorithms), []).append(run.reports)
        by_game: dict[str, dict[str, list[tuple[TickRecord, ...]]]] = {}
        for game in self.comparison.games:
            for algorithm in self.comparison.algorithms:
                key = Key(game, algorithm, 0.0 if is_baseline(algorithm) else lambda_)
                reports = found.get(self.comparison.copies.get(key, key))
                if reports:
                    by_game.setdefault(game, {})[algorithm] = reports
        return by_game


def studies(runs: Sequence[StoredRun]) -> list[Study]:
    """By suite, and by whatever else differs."""
    algorithms = algorithms_of(runs)
    varied = _varied_fields(runs, algorithms)
    groups: dict[tuple[str, str], list[StoredRun]] = {}
    for run in runs:
        variant = ", ".join(f"{name.rstrip('_')} {_shown(run.spec[name])}" for name in varied if name in run.spec)
        groups.setdefault((_suite(run.spec["env"]), variant), []).append(run)
    ladders = {suite: _ladder([run for run in runs if _suite(run.spec["env"]) == suite]) for suite, _ in groups}
    found = []
    for (suite, variant), group in sorted(groups.items()):
        name = _title(suite, group) + (variant and f", {variant}")
        comparison = _comparison(name, group, algorithms)
        # a ladder may have runs of several studies; it stands with the first of its suite
        found.append(Study(comparison, tuple(group), algorithms, ladders.pop(suite, None)))
    return found


TITLES = {"minatar": "MinAtar", "atari": "Atari", "pocket": "Pocket games"}
"""Of suites, for people."""


def _title(suite: str, runs: Sequence[StoredRun]) -> str:
    if suite != "mdp":
        return TITLES.get(suite, suite)
    return "The small world" if {_game(run.spec["env"]) for run in runs} <= set(SMALL_WORLD) else "MDPs"


def _ladder(runs: Sequence[StoredRun]) -> Comparison | None:
    over = [run for run in runs if run.status in OVER]
    if not over:
        return None
    anchors = _anchors(over)
    return ladder_comparison(_title(_suite(over[0].spec["env"]), over), over, scored(over, anchors), anchors)


def _comparison(name: str, runs: Sequence[StoredRun], algorithms: Mapping[str, str]) -> Comparison:
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "evaluation": {}, "early": {}, "area": {}}
    seeds: dict[Stretch, dict[Key, list[int]]] = {stretch: {} for stretch in found}
    over = [run for run in runs if run.status in OVER]
    anchors = _anchors(over)
    values = scored(over, anchors)
    diverged = Counter(_key(run, algorithms) for run in over if run.status == "diverged")
    silent, exploring = [], 0
    for run in over:
        exploring += _plays_at_random_early(run)
        for stretch, value in values[run.fingerprint].items():
            key = _key(run, algorithms)
            if value is not None:
                found[stretch].setdefault(key, []).append(value)
                seeds[stretch].setdefault(key, []).append(int(run.spec["seed"]))
            elif stretch == "final" and run.status == "done":
                silent.append(run)
    left_out = _incomplete_variants(found["final"])
    for stretch in found:
        found[stretch] = {key: values for key, values in found[stretch].items() if key.algorithm not in left_out}
        seeds[stretch] = {key: values for key, values in seeds[stretch].items() if key.algorithm not in left_out}
    notes = [*_differences(over)]
    if silent:
        first = ", ".join(str(silent[0].spec[name]) for name in CELL)
        notes.append(f"{len(silent)} runs count for nothing, as their last tenth has no finite return ({first}, …).")
    if exploring:
        notes.append(f"{exploring:,} runs have no early score: they still played at random then.")
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
    """The scores of runs that are over, by fingerprint; one that diverged counts as the worst of its game.

    That is the lowest score of any run of the game, its own among them, or that of random play where it is known and
    lower. Where no run of the game is done, it has no score.
    """
    found = {run.fingerprint: scores(run) for run in runs}
    known: dict[tuple[str, Stretch], list[float]] = {}
    has_done = set()
    for run in runs:
        for stretch, value in found[run.fingerprint].items():
            if value is not None:
                place = _game(run.spec["env"]), stretch
                known.setdefault(place, []).append(value)
                if run.status == "done":
                    has_done.add(place)
    for run in runs:
        if run.status != "diverged":
            continue
        game = _game(run.spec["env"])
        random = [anchors[game][0]] if anchors is not None else []
        for stretch in found[run.fingerprint]:
            is_known = (game, stretch) in has_done and not (stretch == "early" and _plays_at_random_early(run))
            value = min([*known[game, stretch], *random]) if is_known else None
            found[run.fingerprint][stretch] = value
    return found


def scores(run: StoredRun) -> dict[Stretch, float | None]:
    """The scores of a run; None where no episode ended, or a return was not finite.

    `final` and `early` are training returns, under exploration; `evaluation` is the mean return at ε ≈ 0 at its end.
    """
    evaluation = None
    if run.returns and np.isfinite(run.returns).all():
        evaluation = float(np.mean(run.returns))
    reports = [report for report in run.reports if report.tick]
    known = [report for report in reports if report.num_episodes and np.isfinite(report.episode_return)]
    broken = any(report.num_episodes and not np.isfinite(report.episode_return) for report in reports)
    if not known or broken:
        return {"final": None, "evaluation": evaluation, "early": None, "area": None}
    columns: dict[str, Any] = {
        "steps": [report.num_steps for report in reports],
        "returns": [report.episode_return for report in reports],
        "num_episodes": [report.num_episodes for report in reports],
    }
    points = {"steps": [r.num_steps for r in known], "returns": [r.episode_return for r in known]}
    return {
        "final": run_score(**columns).value,
        "evaluation": evaluation,
        "early": None if _plays_at_random_early(run) else run_score(**columns, end="first").value,
        "area": area_under_curve(**points) if len(known) > 1 else None,
    }


# -- what belongs together -----------------------------------------------------------------------------------


def algorithms_of(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Of each run, by fingerprint: its trace, and where a trace has several target policies, which one."""
    targets: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    for run in runs:
        cell = tuple(run.spec.get(name) for name in CELL[:-1])
        targets.setdefault(cell, set()).add(tuple(run.spec.get(name) for name in VARIANTS))
    several = {cell[1] for cell, found in targets.items() if len(found) > 1}
    names = {}
    for run in runs:
        trace = str(run.spec["trace"])
        names[run.fingerprint] = trace + _suffix(run.spec) if trace in several else trace
    return names


def _suffix(spec: Mapping[str, Any]) -> str:
    """What is not as usual: DQN's target is greedy and single, that of the others explores and is double."""
    if spec.get("target_policy") is None:
        return ""
    is_dqn = spec["trace"] == "dqn"
    parts = []
    if spec.get("target_policy") != ("greedy" if is_dqn else "exploration"):
        parts.append(str(spec.get("target_policy")))
    if spec.get("double") is is_dqn:
        parts.append("double" if is_dqn else "single")
    return "".join(f".{part}" for part in parts)


def _incomplete_variants(final: Mapping[Key, Any]) -> set[str]:
    """Variants that were not run on every game and at every λ: rungs of the ladder, which are in no other table."""
    cells: dict[str, set[tuple[str, float]]] = {}
    for key in final:
        cells.setdefault(key.algorithm, set()).add((key.game, key.lambda_))
    plain = [found for name, found in cells.items() if "." not in name]
    games = {game for found in plain for game, _ in found}
    lambdas = {lambda_ for found in plain for _, lambda_ in found} - {0.0}
    left_out = set()
    for name, found in cells.items():
        wanted = {(game, x) for game in games for x in lambdas}
        if is_baseline(name):
            wanted = {(game, 0.0) for game in games}
        if "." in name and not wanted <= found:
            left_out.add(name)
    return left_out


def _copies(final: Mapping[Key, Any], specs: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Key]:
    """At λ = 0 all traces are one algorithm, and one of them is run for all: the one with the most runs.

    Only for a trace whose own runs have the same settings; its step size may be another one, unless it was run at
    λ = 0 itself.
    """
    found: dict[Key, Key] = {}
    with_lambda = in_order({key.algorithm for key in final if not is_baseline(key.algorithm)})
    for game in {key.game for key in final}:
        known = [Key(game, name, 0.0) for name in with_lambda if Key(game, name, 0.0) in final]
        known.sort(key=lambda key: -len(final[key]))
        for name in with_lambda:
            key = Key(game, name, 0.0)
            is_run = key in final
            own = next(
                (specs[other] for other in specs if other[:2] == key[:2] and (other == key or not is_run)), None
            )
            for source in known:
                if source == key or own is None:
                    break  # none has more runs
                if _settings(own, step_size=is_run) == _settings(specs[source], step_size=is_run):
                    found[key] = source
                    break
    return found


def _settings(spec: Mapping[str, Any], *, step_size: bool) -> dict[str, Any]:
    left_out = ("trace", "lambda_", "seed", *(() if step_size else ("step_size",)))
    return {name: value for name, value in spec.items() if name not in left_out}


def _anchors(runs: Sequence[StoredRun]) -> dict[str, tuple[float, float]] | None:
    """An exact scale, where every game is an MDP that is known here."""
    specs = {_game(run.spec["env"]): run.spec for run in runs}
    found = {game: anchors(spec["env"], spec.get("options", {})) for game, spec in specs.items()}
    known = {game: ends for game, ends in found.items() if ends is not None}
    return known if known and len(known) == len(found) else None


def _plays_at_random_early(run: StoredRun) -> bool:
    """Whether ε falls, or nothing is learned yet, for more than half of the first tenth of a run."""
    random_steps = max(run.spec.get("epsilon_steps", 0), run.spec.get("fill", 0))
    return random_steps > 0.05 * run.spec.get("num_steps", math.inf)


def _differences(runs: Sequence[StoredRun]) -> list[str]:
    """A sentence for each of two settings in which algorithms of one game differ."""
    notes = []
    for name in ("num_steps", "step_size"):
        values: dict[str, set[Any]] = {}
        for run in runs:
            values.setdefault(_game(run.spec["env"]), set()).add(run.spec.get(name))
        games = [game for game, found in values.items() if len(found) > 1]
        if games:
            others = f" and {len(games) - 3} more" if len(games) > 3 else ""
            notes.append(f"Algorithms differ in `{name}` on {', '.join(games[:3])}{others}.")
    return notes


def _key(run: StoredRun, algorithms: Mapping[str, str]) -> Key:
    name = algorithms.get(run.fingerprint, str(run.spec["trace"]))
    return Key(_game(run.spec["env"]), name, 0.0 if is_baseline(name) else float(run.spec["lambda_"]))


def _suite(env: str) -> str:
    return env.partition("/")[0] if "/" in env else "games"


def _game(env: str) -> str:
    return env.partition("/")[2] or env


def _varied_fields(runs: Sequence[StoredRun], algorithms: Mapping[str, str]) -> list[str]:
    """Fields in which runs of one cell differ, the seed aside."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    varied: dict[str, None] = {}
    for run in runs:
        cell = run.spec["env"], algorithms[run.fingerprint], run.spec["lambda_"]
        other = first.setdefault(cell, run.spec)
        for name in sorted(set(run.spec) | set(other)):
            if name not in CELL and run.spec.get(name) != other.get(name):
                varied[name] = None
    options: dict[str, list[Any]] = {}
    for run in runs:
        seen = options.setdefault(run.spec["env"], [])
        if run.spec.get("options", {}) not in seen:
            seen.append(run.spec.get("options", {}))
    if any(len(seen) > 1 for seen in options.values()):
        varied["options"] = None  # another environment by the same name
    return list(varied)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
