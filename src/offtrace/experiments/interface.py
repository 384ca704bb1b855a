"""Sweeps in Python: run one, and read its results as records, arrays, a data frame or rankings."""

import difflib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from offtrace.agent.spec import to_json
from offtrace.agent.telemetry import LISTS, OWN_RECORDS, TickRecord
from offtrace.experiments import reasons, store
from offtrace.experiments.algorithms import RUN_FIELDS, settings_of, traces_of
from offtrace.experiments.named_array import NamedArray
from offtrace.experiments.progress import SweepProgress
from offtrace.experiments.results import Study, have_several_options, scores, studies
from offtrace.experiments.spec import Sweep, runs_of
from offtrace.experiments.stored_runs import StoredRun
from offtrace.scores import Ranking, ranking
from offtrace.scores.keys import Stretch

SCORES: tuple[Stretch, ...] = ("final", "evaluation", "early", "area")
MEASURES = tuple(name for name in TickRecord._fields if name not in (*LISTS, *OWN_RECORDS, "tick", "num_steps"))
"""Fields of a `TickRecord` that are numbers."""


def run(
    sweep: Sweep,
    path: str | Path,
    *,
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    progress: Callable[[SweepProgress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> "Results":
    """Train the runs of a sweep that are missing in a results file, and return the results of the sweep.

    The file is created if it does not exist. `jobs` is the number of processes, by default one per
    core; 0 trains in this process, as on an accelerator. With `engine="ray"` runs are trained on a
    Ray cluster. `progress` is called about once a second. If `stop` returns True, what was trained
    is saved, and the same call continues later.

    Runs that fail are left out of the scores, with a warning; the same call tries them again.
    """
    from offtrace.experiments import cluster
    from offtrace.experiments import engine as local
    from offtrace.experiments.checks import check_runs

    if engine not in ("local", "ray"):
        raise ValueError(f"`engine` must be 'local' or 'ray'; got {engine!r}.")
    if ray_address is not None and engine != "ray":
        raise ValueError(f"`ray_address` must come with `engine='ray'`; got engine={engine!r}.")
    specs = runs_of(sweep)
    check_runs(specs, here=engine == "local")
    train = partial(cluster.run, ray_address=ray_address) if engine == "ray" else local.run
    train(specs, path, jobs=jobs, command="ot.experiments.run", tell=progress, stop=stop)
    wanted = {store.fingerprint(to_json(spec)) for spec in specs}
    found = Results(tuple(each for each in read(path).runs if each.fingerprint in wanted))
    failures = reasons.failures(found.runs)
    if failures:
        number = sum(len(group.runs) for group in failures)
        first = failures[0]
        warnings.warn(
            f"{number} of {len(specs)} runs failed; the first: {reasons.first_runs(first.runs, 1)}: {first.reason}",
            stacklevel=2,
        )
    return found


def read(path: str | Path | Sequence[str | Path]) -> "Results":
    """Return the results of one file or several; runs of the same spec count once.

    A sweep may still be writing to them.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    for each in paths:
        if not Path(each).exists():
            raise FileNotFoundError(f"`path` must be an existing results file; got {str(each)!r}.")
    return Results(tuple(store.read(paths)))


@dataclass(frozen=True, eq=False)
class Results:
    """Stored runs. A run has four scores, which are nan if it diverged or is not done.

    `evaluation` is the mean return at ε ≈ 0 after training; `final` and `early` are the mean returns
    of the training episodes in the last and the first tenth of the run, and `area` is the mean
    height of its learning curve.
    """

    runs: tuple[StoredRun, ...]
    """The runs with their whole spec, status, failure and reports."""

    def __repr__(self) -> str:
        states = ", ".join(f"{number:,} {status}" for status, number in Counter(r.status for r in self.runs).items())
        return f"Results({len(self.runs):,} runs: {states})"

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record per run: its place in the grid, its status, its scores and its protocol in words."""
        found = []
        for each, place in zip(self.runs, self._places, strict=True):
            values = scores(each) if each.status == "done" else {}
            shown = {name: math.nan if values.get(name) is None else values[name] for name in SCORES}
            found.append({**place, "status": each.status, **shown, "protocol": each.protocol_text})
        return found

    def frame(self) -> Any:
        """Return `records` as a data frame of pandas, or of polars if pandas is not installed."""
        for name in ("pandas", "polars"):
            try:
                library = import_module(name)
            except ImportError:
                continue
            return library.DataFrame(self.records)
        raise ImportError("`frame` needs pandas or polars: pip install pandas. `records` has the same as a list.")

    def scores(self, score: Stretch = "evaluation") -> NamedArray:
        """Return one score of all runs, by environment, trace, λ, what else varies, and seed.

        A trace without λ is at `lambda_` 0.
        """
        _check_name("score", score, SCORES)
        axes = self._axes
        values = np.full([len(found) for found in axes.values()], np.nan)
        for index, record in zip(self._indices(axes), self.records, strict=True):
            values[index] = record[score]
        return NamedArray(values, axes)

    def curves(self, measure: str = "episode_return") -> NamedArray:
        """Return a measure of every tick, by the axes of `scores` and `num_steps`, the steps so far.

        `measure` is a field of `TickRecord`, such as `episode_return`, `evaluation`, `loss` or `c`.
        """
        _check_name("measure", measure, MEASURES)
        axes = self._axes
        steps = sorted({report.num_steps for each in self.runs for report in each.reports})
        place = {num_steps: i for i, num_steps in enumerate(steps)}
        values = np.full([*(len(found) for found in axes.values()), len(steps)], np.nan)
        for index, each in zip(self._indices(axes), self.runs, strict=True):
            for report in each.reports:
                value = getattr(report, measure)
                if value is not None:
                    values[*index, place[report.num_steps]] = value
        return NamedArray(values, {**axes, "num_steps": tuple(steps)})

    def rankings(self, score: Stretch = "evaluation") -> dict[str, Ranking]:
        """Return the algorithms best first, with the differences of every two, by suite of environments.

        As in the report, a run that diverged counts as the worst of its environment.
        """
        _check_name("score", score, SCORES)
        return {study.comparison.name: ranking(study.comparison, score) for study in self.studies}

    @cached_property
    def studies(self) -> list[Study]:
        """The comparisons that a report is made of: one per suite of environments."""
        return studies(self.runs)

    # -- places in the grid ----------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> list[dict[str, Any]]:
        """The values of the axes, run by run."""
        traces = traces_of(self.runs)
        varied = dict.fromkeys(name for settings in settings_of(self.runs).values() for name in settings)
        if have_several_options(self.runs):
            varied["options"] = None
        places = []
        for each in self.runs:
            spec = each.spec
            settings = {name: _hashable(spec.get(name)) for name in varied}
            place = {"env": spec["env"], "trace": traces[each.fingerprint], "lambda_": float(spec["lambda_"])}
            places.append({**place, **settings, "seed": spec["seed"]})
        return places

    @cached_property
    def _axes(self) -> dict[str, tuple[Any, ...]]:
        """The values of each axis: environments and traces in the order of the file, others sorted."""
        names = list(self._places[0]) if self._places else list(RUN_FIELDS)
        axes = {}
        for name in names:
            values = dict.fromkeys(place[name] for place in self._places)
            is_sorted = name not in ("env", "trace") and all(isinstance(value, int | float) for value in values)
            axes[name] = tuple(sorted(values)) if is_sorted else tuple(values)
        return axes

    def _indices(self, axes: Mapping[str, tuple[Any, ...]]) -> list[tuple[int, ...]]:
        """Return the place of every run in the array."""
        numbers = {name: {value: i for i, value in enumerate(values)} for name, values in axes.items()}
        found = [tuple(numbers[name][value] for name, value in place.items()) for place in self._places]
        if len(set(found)) < len(found):
            raise ValueError("the runs differ in more than the axes can show. Use `records`, or read fewer files.")
        return found


def _hashable(value: Any) -> Any:
    """Return a setting as the value of an axis: lists as tuples, options as text."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return value


def _check_name(parameter: str, name: str, names: Sequence[str]) -> None:
    if name in names:
        return
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"`{parameter}` must be one of {', '.join(names)}; got {name!r}.{hint}")
