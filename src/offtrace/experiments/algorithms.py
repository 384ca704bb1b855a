"""Which runs are one algorithm: a trace, its target policy, and the settings in which its runs differ.

    retrace                          one target policy, one setting of everything else
    dqn.exploration                  a trace whose runs have several target policies
    retrace, step_size 0.001         a trace whose runs on one environment differ in the step size

Only what differs between runs of one cell (environment, trace, λ) is named. So settings that were
chosen for each environment or λ separately need no name.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offtrace.agent.spec import ADDED, TrainSpec
from offtrace.experiments.stored_runs import StoredRun
from offtrace.experiments.trace_names import trace_key, trace_names
from offtrace.scores import Key, is_baseline
from offtrace.scores.keys import split_variant

TARGET_FIELDS = ("target_policy", "double", "target_epsilon")
"""Fields of a spec that distinguish algorithms of the same trace."""
TRACE_FIELDS = ("trace_options", "trace_source", "trace_title")
"""Fields of a spec that the name of its trace stands for."""
RUN_FIELDS = ("env", "trace", "lambda_", "seed")
UNNAMED_FIELDS = (*RUN_FIELDS, *TRACE_FIELDS, "options")
"""Fields in which runs may differ without being named in a setting."""
DECIDING_FIELDS = ("optimiser", "num_steps")
"""Fields on which defaults of other fields depend. They are named first, and then the others need no name."""
FIELDS = (
    *DECIDING_FIELDS,
    *(f.name for f in dataclasses.fields(TrainSpec) if f.name not in (*DECIDING_FIELDS, *RUN_FIELDS)),
)


def algorithms_of(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return the algorithm of each run, by fingerprint."""
    settings = settings_of(runs)
    return {key: with_settings(name, settings[key]) for key, name in traces_of(runs).items()}


def with_settings(name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of an algorithm with its settings.

    >>> with_settings("retrace", {"step_size": 1e-3})
    'retrace, step_size 0.001'
    """
    return ", ".join([name, *(f"{field} {setting_text(value)}" for field, value in settings.items())])


def traces_of(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return the trace of each run, by fingerprint, with its target policy if the trace has several."""
    targets: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
    traces = trace_names([run.spec for run in runs])
    for run in runs:
        cell = run.spec["env"], traces[trace_key(run.spec)], run.spec["lambda_"]
        targets.setdefault(cell, set()).add(tuple(run.spec.get(name) for name in TARGET_FIELDS))
    several = {cell[1] for cell, found in targets.items() if len(found) > 1}
    names = {}
    for run in runs:
        name = traces[trace_key(run.spec)]
        if name in several:
            name += _target(run.spec)
        names[run.fingerprint] = name
    return names


def settings_of(runs: Sequence[StoredRun]) -> dict[str, dict[str, Any]]:
    """Return the settings that distinguish each run from others of its trace, by fingerprint."""
    by_trace: dict[str, list[StoredRun]] = {}
    for key, run in zip(traces_of(runs).values(), runs, strict=True):
        by_trace.setdefault(key, []).append(run)
    found = {}
    for group in by_trace.values():
        fields = _varied_fields([run.spec for run in group])
        for run in group:
            found[run.fingerprint] = {field: run.spec.get(field, ADDED.get(field)) for field in fields}
    return found


def _target(spec: Mapping[str, Any]) -> str:
    """Return the unusual parts of a target: DQN's is greedy and single, that of the others exploring and double."""
    if spec.get("target_policy") is None:
        return ""
    is_dqn = spec["trace"] == "dqn"
    usual_policy = "greedy" if is_dqn else "exploration"
    unusual_double = "double" if is_dqn else "single"
    parts = []
    if spec.get("target_policy") != usual_policy:
        parts.append(str(spec.get("target_policy")))
    if spec.get("double") is is_dqn:
        parts.append(unusual_double)
    return "".join(f".{part}" for part in parts)


def _varied_fields(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which specs of one cell differ, as few as distinguish them."""
    cells: dict[str, dict[str, Mapping[str, Any]]] = {}
    for spec in specs:
        cell = repr((spec["env"], float(spec["lambda_"]), spec.get("options")))
        rest = {name: setting_text(value) for name, value in spec.items() if name not in UNNAMED_FIELDS}
        cells.setdefault(cell, {})[repr(sorted(rest.items()))] = rest
    several = [list(found.values()) for found in cells.values() if len(found) > 1]
    varied = {
        name
        for found in several
        for name in {name for spec in found for name in spec}
        if len({spec.get(name) for spec in found}) > 1
    }
    fields = sorted(varied, key=lambda name: (FIELDS.index(name) if name in FIELDS else len(FIELDS), name))
    for name in reversed(fields.copy()):
        others = [field for field in fields if field != name]
        if all(len({tuple(map(spec.get, others)) for spec in found}) == len(found) for found in several):
            fields = others
    return fields


def setting_text(value: Any) -> str:
    """Return a setting as text; different values of a field have different texts.

    >>> [setting_text(value) for value in (1e-4, 0.5, [64, 64], None, True, 1.0)]
    ['0.0001', '0.5', '64x64', 'none', 'true', '1']
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return "x".join(map(setting_text, value))
    return "none" if value is None else str(value)


def incomplete_targets(final: Iterable[Key]) -> set[str]:
    """Return the algorithms with an unusual target that were not run on every game at every λ.

    They are rungs of the ladder, which are shown nowhere else.
    """
    cells: dict[str, set[tuple[str, float]]] = {}
    for key in final:
        cells.setdefault(key.algorithm, set()).add((key.game, key.lambda_))
    usual = [found for name, found in cells.items() if not _has_target(name)]
    games = {game for found in usual for game, _ in found}
    lambdas = {lambda_ for found in usual for _, lambda_ in found} - {0.0}
    left_out = set()
    for name, found in cells.items():
        wanted = {(game, x) for game in games for x in lambdas}
        if is_baseline(name):
            wanted = {(game, 0.0) for game in games}
        if _has_target(name) and not wanted <= found:
            left_out.add(name)
    return left_out


def _has_target(name: str) -> bool:
    """Return whether a name has a target policy after a dot; titles of traces may have dots too."""
    return bool(split_variant(name.partition(",")[0])[1])
