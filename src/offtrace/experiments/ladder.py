"""The ladder: from DQN to Retrace, one difference at a time.

    control    DQN: 64 single transitions, a greedy target, one network's values
    target     + the target policy explores, as in App. F
    double     + π is made of the online network's values
    windows    + 4 windows of 16 steps instead of single transitions, without a trace (λ = 0)
    trace      + Retrace(0.5)

and two more, which tell whether the trace helps towards a greedy target, too: `greedy_windows` and `greedy_trace`
are `windows` and `trace` with a greedy target.
"""

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


def ladder_comparison(
    name: str,
    runs: Sequence[Any],
    scored: Mapping[str, Mapping[Stretch, float | None]],
    anchors: Mapping[str, tuple[float, float]] | None,
) -> Comparison | None:
    """The rungs as algorithms, all at λ = 1 so that they stand side by side; None where there is no ladder.

    `runs` are stored runs that are done, `scored` their scores by fingerprint. Rungs are compared on the games that
    all of them were run on.
    """
    found: dict[Stretch, dict[Key, list[float]]] = {"final": {}, "evaluation": {}}
    seeds: dict[Stretch, dict[Key, list[int]]] = {"final": {}, "evaluation": {}}
    for run in runs:
        rung = rung_of(run.spec)
        if rung is None:
            continue
        key = Key(run.spec["env"].partition("/")[2], rung, 1.0)
        for stretch in found:
            value = scored[run.fingerprint][stretch]
            if value is not None:
                found[stretch].setdefault(key, []).append(value)
                seeds[stretch].setdefault(key, []).append(int(run.spec["seed"]))
    there = {key.algorithm for key in found["final"]}
    if len(there) < FEWEST or "target" not in there:
        return None
    return Comparison(f"{name}: from DQN to Retrace", found, seeds=seeds, anchors=anchors)
