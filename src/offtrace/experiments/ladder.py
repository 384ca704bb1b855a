"""The ladder: from DQN to Retrace, one difference at a time.

    control    DQN: 64 single transitions, a greedy target, one network's values
    target     + the target policy explores, as in App. F
    double     + π is computed from the online network's values
    windows    + 4 windows of 16 steps instead of single transitions, without a trace (λ = 0)
    trace      + Retrace(0.5)

Two more show whether the trace also helps with a greedy target: `greedy_windows` and
`greedy_trace` are `windows` and `trace` with a greedy target.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offtrace.scores import Comparison, Key
from offtrace.scores.comparison import Stretch

LAMBDA = 0.5
"""λ of the last rung; chosen on other seeds (`docs/experiments.md`)."""


class Rung(NamedTuple):
    """A rung: the fields of its spec, and the rung that it is compared with."""

    name: str
    title: str
    before: str | None
    """The rung that it differs from in one thing."""
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
MIN_RUNGS = 3
"""Fewer rungs are not shown as a ladder."""


def rung_of(spec: Mapping[str, Any]) -> str | None:
    """Return the name of the rung that a run belongs to; None if there is none.

    >>> rung_of({"trace": "dqn", "lambda_": 0.0, "target_policy": "exploration", "double": False})
    'target'
    """
    for rung in RUNGS:
        if all(spec.get(name) == value for name, value in rung.fields.items()):
            return rung.name
    return None


VARIED_FIELDS = (
    "env",
    "options",
    "trace",
    "lambda_",
    "seed",
    "step_size",
    "window",
    "num_windows",
    "target_policy",
    "target_epsilon",
    "double",
)
"""Fields in which the runs of a ladder may differ."""


def ladder_comparison(
    name: str,
    runs: Sequence[Any],
    scored: Mapping[str, Mapping[Stretch, float | None]],
    anchors: Mapping[str, tuple[float, float]] | None,
) -> Comparison | None:
    """Return a comparison with the rungs as algorithms, all at λ = 1 to stand side by side; None without a ladder.

    `runs` are stored runs of one suite that are over, and `scored` their scores by fingerprint.
    Runs of other sweeps are left out: a run of a ladder has the settings of the rung `target`,
    which only ladders have. So are games that lack a rung, or that have a rung with several step
    sizes.
    """
    kept = _runs_on_rungs(runs)
    if len({rung for _, rung in kept}) < MIN_RUNGS:
        return None
    games = _complete_games(kept)
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "evaluation": {}}
    seeds: dict[Stretch, dict[Key, list[int]]] = {"final": {}, "evaluation": {}}
    diverged: Counter[Key] = Counter()
    for run, rung in kept:
        env = str(run.spec["env"])
        if env not in games:
            continue
        key = Key(env.partition("/")[2] or env, rung, 1.0)
        diverged[key] += run.status == "diverged"
        for stretch in found:
            value = scored[run.fingerprint][stretch]
            if value is not None:
                found[stretch].setdefault(key, []).append(value)
                seeds[stretch].setdefault(key, []).append(int(run.spec["seed"]))
    if not found["final"]:
        return None
    return Comparison(f"{name}: from DQN to Retrace", found, seeds=seeds, anchors=anchors, diverged=diverged)


def _runs_on_rungs(runs: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return the runs of the ladder, each with its rung."""
    on_rungs = [(run, rung_of(run.spec)) for run in runs]
    settings = {run.spec["env"]: _shared_fields(run.spec) for run, rung in on_rungs if rung == "target"}
    return [
        (run, rung) for run, rung in on_rungs if rung and settings.get(run.spec["env"]) == _shared_fields(run.spec)
    ]


def _complete_games(kept: Sequence[tuple[Any, str]]) -> set[str]:
    """Return the environments that have every rung, each with a single step size."""
    rungs = {rung for _, rung in kept}
    step_sizes: dict[str, dict[str, set[Any]]] = {}
    for run, rung in kept:
        step_sizes.setdefault(run.spec["env"], {}).setdefault(rung, set()).add(run.spec.get("step_size"))
    complete = set()
    for env, by_rung in step_sizes.items():
        if set(by_rung) == rungs and max(map(len, by_rung.values())) == 1:
            complete.add(env)
    return complete


def _shared_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in spec.items() if field not in VARIED_FIELDS}
