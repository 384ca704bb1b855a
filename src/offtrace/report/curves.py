"""Charts over the course of a run: learning curves of a game, and measures of the traces."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.results import Study
from offtrace.report.charts import (
    ChartRows,
    alt,
    colour,
    dash,
    end_labels,
    finished,
    lone_points,
    number_format,
    roomy,
    tips,
)
from offtrace.report.names import counted, named
from offtrace.scores.comparison import LEVEL, Array, is_baseline

POINTS = 50
"""Number of equal parts that a run is divided into; returns are averaged over the episodes of a part."""
MIN_RUNS = 3
"""Fewer runs have a range instead of a bootstrap interval."""
NUM_RESAMPLES = 1000
LARGEST = 1e300
"""Larger values are left out, like infinities and nan, as their sums are not finite."""

Measure = Literal["c", "cut", "effective_length", "off_policy"]


class _Words(NamedTuple):
    """The texts of a chart of one measure."""

    title: str
    y: str
    meaning: str
    baselines: bool
    """Whether the measure applies to algorithms without λ."""
    top: float | None
    """Smallest top of the y axis."""


MEASURES: Mapping[Measure, _Words] = {
    "c": _Words(
        "How much of a TD error is passed on",
        "mean trace coefficient c",
        "At 1 a step passes later TD errors on in full, at 0 not at all.",
        False,
        1.0,
    ),
    "cut": _Words(
        "How often traces are cut",
        "share of steps with c < 0.05",
        "TD errors after such a step hardly reach the steps before it.",
        False,
        1.0,
    ),
    "effective_length": _Words(
        "How many TD errors reach the start of a window",
        "effective length, TD errors",
        "1 is one-step learning; the maximum is the length of a window.",
        True,
        1.0,
    ),
    "off_policy": _Words(
        "How off-policy the replayed steps are",
        "L1 distance of π and μ",
        "0 if the replayed steps were taken by the target policy; 2 if π and μ share no action.",
        True,
        None,
    ),
}
"""The measures that `telemetry` can draw."""


def learning_curves(
    runs: Mapping[str, Sequence[Sequence[TickRecord]]],
    *,
    title: str,
    subtitle: str | Sequence[str] = (),
    evaluations: bool = False,
) -> alt.LayerChart:
    """Return a chart of the mean raw return of training episodes against environment steps, one line per algorithm.

    With `evaluations` it is the mean return of the evaluations during training, at ε ≈ 0.

    `runs` has the reports of every run, by algorithm, as `Study.curves` returns them for a game.
    The band is the pointwise bootstrap interval of the mean over runs, with a fixed seed; for
    fewer than three runs it is their range. The last line of the subtitle says which.
    """
    if not runs or not all(runs.values()):
        raise ValueError("`runs` must have at least one run per algorithm; got none.")
    algorithms = list(runs)
    last = max((reports[-1].num_steps for group in runs.values() for reports in group if reports), default=0)
    unit, size = "thousands", 1e3
    if last >= 1e6:
        unit, size = "millions", 1e6
    rows: ChartRows = []
    ends = {}
    for algorithm, group in runs.items():
        curves = np.array([_mean_returns(reports, last, evaluations=evaluations) for reports in group])
        for i, (mean, low, high) in enumerate(_means(curves)):
            if math.isfinite(mean):
                point = {"steps": (i + 1) * last / POINTS / size, "mean": mean, "low": low, "high": high}
                # Six digits are more than can be seen, and halve the size of a page with many games.
                rows.append({"algorithm": named(algorithm)} | {k: float(f"{x:.6g}") for k, x in point.items()})
                ends[algorithm] = mean
    if not rows:
        raise ValueError("`runs` must have an episode that ended; got none. Train for longer.")
    domain = roomy(min(row["low"] for row in rows), max(row["high"] for row in rows))
    until = last / size
    x = alt.X("steps:Q", title=f"environment steps, {unit}").scale(domain=[0, until], nice=False, clamp=True)
    x = x.axis(format=number_format((0.0, until)), tickCount=5)
    y = alt.Y("mean:Q", title="return of an episode").scale(domain=domain, nice=False, zero=False, clamp=True)
    y = y.axis(format=number_format(domain), tickCount=6)
    shown = {"algorithm": "algorithm", "steps": f"steps, {unit}", "mean": "mean return", "low": "from", "high": "to"}
    data = alt.InlineData(values=rows)
    paint = colour(algorithms)
    band = alt.Chart(data, mark=alt.MarkDef(type="area", opacity=0.15)).encode(
        x=x, y=alt.Y("low:Q", title="return of an episode"), y2="high:Q", color=paint
    )
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=2.5)).encode(
        x=x, y=y, color=paint, strokeDash=dash(algorithms), tooltip=tips(**shown)
    )
    points = lone_points(rows, x, y, paint, tips(**shown))
    labels = end_labels(ends, x=until, domain=domain, algorithms=algorithms)
    first_lines = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    return finished(band, lines, *points, labels, title=title, subtitle=[*first_lines, _band_words(runs)])


def telemetry(study: Study, lambda_: float, measure: Measure) -> alt.LayerChart:
    """Return a chart of a measure of the traces, averaged over runs and games, against the share of the run.

    Every game counts the same. Algorithms without λ are drawn if the measure applies to them.
    """
    if measure not in MEASURES:
        raise ValueError(f"`measure` must be one of {', '.join(MEASURES)}; got {measure!r}.")
    words = MEASURES[measure]
    by_game = study.curves(lambda_)
    lines: dict[str, Array] = {}
    num_runs = 0
    for algorithm in study.comparison.algorithms:
        if is_baseline(algorithm) and not words.baselines:
            continue
        runs_of_games = [
            [_mean_measure(run, measure) for run in game.get(algorithm, ())] for game in by_game.values()
        ]
        runs_of_games = [[run for run in runs if np.isfinite(run).any()] for runs in runs_of_games]
        runs_of_games = [runs for runs in runs_of_games if runs]
        if runs_of_games:
            num_runs += sum(map(len, runs_of_games))
            # The mean is nan until all games have values: it must not move because a game starts later.
            lines[algorithm] = np.mean([np.mean(runs, axis=0) for runs in runs_of_games], axis=0)
    finite = {algorithm: values[np.isfinite(values)] for algorithm, values in lines.items()}
    if not any(values.size for values in finite.values()):
        raise ValueError(f"`study` must have finished runs at λ = {lambda_:g} with values of `{measure}`; got none.")
    rows = [
        {"algorithm": named(algorithm), "share": (i + 1) / POINTS, "value": value}
        for algorithm, values in lines.items()
        for i, value in enumerate(values.tolist())
        if math.isfinite(value)
    ]
    domain = _from_zero(np.concatenate(list(finite.values())), words.top or 0.0)
    ends = {algorithm: float(values[-1]) for algorithm, values in finite.items() if values.size}
    x = alt.X("share:Q", title="share of the run").axis(format=".0%", tickCount=5).scale(domain=[0, 1], nice=False)
    y = alt.Y("value:Q", title=words.y).scale(domain=domain, nice=False, clamp=True)
    y = y.axis(format=number_format(domain), tickCount=5)
    algorithms = list(lines)
    paint = colour(algorithms)
    shown = {"algorithm": "algorithm", "share": "share of the run", "value": words.y}
    marks = alt.Chart(alt.InlineData(values=rows), mark=alt.MarkDef(type="line", strokeWidth=2.5)).encode(
        x=x, y=y, color=paint, strokeDash=dash(algorithms), tooltip=tips(**shown)
    )
    return finished(
        marks,
        *lone_points(rows, x, y, paint, tips(**shown)),
        end_labels(ends, x=1.0, domain=domain, algorithms=algorithms),
        title=f"{words.title}: {study.comparison.name}",
        subtitle=(
            words.meaning,
            f"Mean over {counted(num_runs, 'run')} on {counted(len(by_game), 'game')} at λ = {lambda_:g}.",
        ),
    )


# -- runs as points ------------------------------------------------------------------------------------------


def _mean_returns(reports: Sequence[TickRecord], last: int, *, evaluations: bool) -> list[float]:
    """Return the mean return of the episodes, or evaluations, in each part of a run; nan if there are none."""
    total = np.zeros(POINTS)
    count = np.zeros(POINTS)
    for report in reports:
        value = report.episode_return
        weight = report.num_episodes
        if evaluations:
            value = math.nan if report.evaluation is None else report.evaluation
            weight = 1
        if weight and report.num_steps and abs(value) < LARGEST:
            at = _place(report.num_steps, last)
            total[at] += weight * value
            count[at] += weight
    return [t / c if c else math.nan for t, c in zip(total, count, strict=True)]


def _mean_measure(reports: Sequence[TickRecord], measure: Measure) -> Array:
    """Return the mean of a measure in each part of a run, (POINTS,); nan before its first value.

    Parts without a tick, in runs of few ticks, are interpolated.
    """
    total = np.zeros(POINTS)
    count = np.zeros(POINTS)
    for report in reports:
        value = getattr(report, measure)
        if report.num_steps and abs(value) < LARGEST:
            at = _place(report.num_steps, reports[-1].num_steps)
            total[at] += value
            count[at] += 1
    filled = np.flatnonzero(count)
    if not filled.size:
        return np.full(POINTS, math.nan)
    return np.interp(np.arange(POINTS), filled, total[filled] / count[filled], left=math.nan)


def _place(num_steps: int, last: int) -> int:
    """Return the part of a run that a step belongs to."""
    return min(math.ceil(num_steps * POINTS / last) - 1, POINTS - 1)


def _means(curves: Array) -> list[tuple[float, float, float]]:
    """Return the mean over runs (runs, POINTS) and the ends of its band, at each point."""
    is_finite = np.isfinite(curves)
    values = np.where(is_finite, curves, 0.0)
    counts = is_finite.sum(0)
    mean = np.where(counts, values.sum(0) / np.maximum(counts, 1), math.nan)
    if len(curves) < MIN_RUNS:
        low = np.where(is_finite, curves, math.inf).min(0)
        high = np.where(is_finite, curves, -math.inf).max(0)
    else:
        low, high = _bootstrap_band(values, is_finite, mean)
    return list(zip(mean.tolist(), low.tolist(), high.tolist(), strict=True))


def _bootstrap_band(values: Array, is_finite: np.ndarray, mean: Array) -> tuple[Array, Array]:
    """Return the ends of the bootstrap interval of the mean over runs, at each point."""
    num_runs = len(values)
    counts = is_finite.sum(0)
    drawn = np.random.default_rng(0).integers(num_runs, size=(NUM_RESAMPLES, num_runs))
    weights = (drawn[..., None] == np.arange(num_runs)).sum(1).astype(np.float64)
    resampled_counts = weights @ is_finite
    resampled = np.where(resampled_counts > 0, (weights @ values) / np.maximum(resampled_counts, 1), math.nan)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    low = mean.copy()
    high = mean.copy()
    # Points with values of all runs have no nan, and `quantile` is much faster than `nanquantile`.
    for points in (counts == num_runs, (counts > 0) & (counts < num_runs)):
        if points.any():
            has_nan = np.isnan(resampled[:, points]).any()
            quantile = np.nanquantile if has_nan else np.quantile
            low[points], high[points] = quantile(resampled[:, points], ends, axis=0)
    return low, high


def _band_words(runs: Mapping[str, Sequence[Any]]) -> str:
    sizes = {name: len(group) for name, group in runs.items()}
    most = max(sizes.values())
    if most == 1:
        return "One run per algorithm, so no bands."
    few = [named(name) for name, size in sizes.items() if size < MIN_RUNS]
    if most < MIN_RUNS:
        return f"Bands: the range of {most} runs."
    words = f"Bands: {LEVEL:.0%} bootstrap intervals of the mean over {_from_to(sizes)} runs"
    if few:
        words += f"; for {', '.join(few)} the range"
    return f"{words}."


def _from_to(sizes: Mapping[str, int]) -> str:
    low = min(sizes.values())
    high = max(sizes.values())
    if low == high:
        return str(high)
    return f"{low} to {high}"


def _from_zero(values: Array, least: float) -> tuple[float, float]:
    """Return the domain of the y axis: from 0 or below, to `least` or a little above the largest value."""
    low = min(float(values.min()), 0.0)
    top = float(values.max())
    if top <= least:
        top = least
    else:
        top *= 1.05
    return 1.05 * low, top or 1.0
