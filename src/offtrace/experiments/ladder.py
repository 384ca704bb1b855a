"""The ladder: from DQN to Retrace, one difference at a time.

    control    DQN: 64 single transitions, a greedy target, one network's values
    target     + the target policy explores, as in App. F
    double     + π is made of the online network's values
    windows    + 4 windows of 16 steps instead of single transitions, without a trace (λ = 0)
    trace      + Retrace(0.5)

and two more, which tell whether the trace helps towards a greedy target, too: `greedy_windows` and `greedy_trace`
are `windows` and `trace` with a greedy target.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offtrace.scores import Comparison, Key
from offtrace.scores.comparison import Stretch

LAMBDA = 0.5
"""Of its last rung; chosen on other seeds (`docs/experiments.md`)."""


class Rung(NamedTuple):
    """Fields of a spec that make it, and what it is compared with."""

    name: str
    title: str
    before: str | None
    """The rung that it differs from by one thing."""
    fields: Mapping[str, Any]


EXPLORING = {"target_policy": "exploration"}
GREEDY = {"target_policy": "greedy"}
RUNGS = (
    Rung("control", "DQN", None, {"trace": "dqn", "lambda_": 0.0, **GREEDY, "double": False}),
    Rung("target", "+ exploring target", "control", {"trace": "dqn", "lambda_": 0.0, **EXPLORING, "double": False}),
    Rung("double", "+ double Q-learning", "target", {"trace": "dqn", "lambda_": 0.0, **EXPLORING, "double": True}),
    Rung("windows", "+ windows, λ = 0", "double", {"trace": "retrace", "lambda_": 0.0, **EXPLORING, "double": True}),
    Rung(
        "trace",
        f"+ Retrace({LAMBDA:g})",
        "windows",
        {"trace": "retrace", "lambda_": LAMBDA, **EXPLORING, "double": True},
    ),
    Rung(
        "greedy_windows",
        "windows, λ = 0, greedy target",
        "windows",
        {"trace": "retrace", "lambda_": 0.0, **GREEDY, "double": True},
    ),
    Rung(
        "greedy_trace",
        f"+ Retrace({LAMBDA:g}), greedy target",
        "greedy_windows",
        {"trace": "retrace", "lambda_": LAMBDA, **GREEDY, "double": True},
    ),
)
BY_NAME = {rung.name: rung for rung in RUNGS}
FEWEST = 3
"""Rungs that make a ladder."""


def rung_of(spec: Mapping[str, Any]) -> str | None:
    """The rung that a run is on; None if it is on none.

    >>> rung_of({"trace": "dqn", "lambda_": 0.0, "target_policy": "exploration", "double": False})
    'target'
    """
    for rung in RUNGS:
        if all(spec.get(name) == value for name, value in rung.fields.items()):
            return rung.name
    return None


OWN = ("env", "options", "trace", "lambda_", "seed", "step_size", "window", "num_windows")
OWN += ("target_policy", "target_epsilon", "double")
"""Fields in which rungs may differ."""


def ladder_comparison(
    name: str,
    runs: Sequence[Any],
    scored: Mapping[str, Mapping[Stretch, float | None]],
    anchors: Mapping[str, tuple[float, float]] | None,
) -> Comparison | None:
    """The rungs as algorithms, all at λ = 1 so that they stand side by side; None where there is no ladder.

    `runs` are stored runs that are over, of one suite, and `scored` their scores by fingerprint. Runs of other sweeps
    are left out: a rung has the settings of the rung `target`, which only ladders have, and one step size a game. So
    are games that some rung was not run on.
    """
    on_rungs = [(run, rung_of(run.spec)) for run in runs]
    settings = {run.spec["env"]: _shared(run.spec) for run, rung in on_rungs if rung == "target"}
    kept = [(run, rung) for run, rung in on_rungs if rung and settings.get(run.spec["env"]) == _shared(run.spec)]
    rungs = {rung for _, rung in kept}
    if len(rungs) < FEWEST:
        return None
    sizes: dict[str, dict[str, set[Any]]] = {}
    for run, rung in kept:
        sizes.setdefault(run.spec["env"], {}).setdefault(str(rung), set()).add(run.spec.get("step_size"))
    games = {env for env, found in sizes.items() if set(found) == rungs and max(map(len, found.values())) == 1}
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "evaluation": {}}
    seeds: dict[Stretch, dict[Key, list[int]]] = {"final": {}, "evaluation": {}}
    diverged: Counter[Key] = Counter()
    for run, rung in kept:
        env = str(run.spec["env"])
        if env not in games:
            continue
        key = Key(env.partition("/")[2] or env, str(rung), 1.0)
        diverged[key] += run.status == "diverged"
        for stretch in found:
            value = scored[run.fingerprint][stretch]
            if value is not None:
                found[stretch].setdefault(key, []).append(value)
                seeds[stretch].setdefault(key, []).append(int(run.spec["seed"]))
    if not found["final"]:
        return None
    return Comparison(f"{name}: from DQN to Retrace", found, seeds=seeds, anchors=anchors, diverged=diverged)


def _shared(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in spec.items() if field not in OWN}
