"""What happened on the way: learning curves of a game, and what the traces did while it was learned."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.results import Study
from offtrace.report.charts import (
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
"""Stretches that a run is divided into; the returns of a stretch are averaged over its episodes."""
FEWEST = 3
"""Runs that a bootstrap is of."""
NUM_DRAWS = 1000
LARGEST = 1e300
"""What is larger is left out, as are infinite values and nan: sums of it are no longer finite."""

Measure = Literal["c", "cut", "effective_length", "off_policy"]


class _Words(NamedTuple):
    title: str
    y: str
    meaning: str
    baselines: bool
    """Whether it says anything of algorithms without a λ."""
    top: float | None
    """Of the axis, at least."""


MEASURES: Mapping[str, _Words] = {
    "c": _Words(
        "How much of a TD error a step lets pass",
        "mean trace coefficient c",
        "1 lets all of a later TD error pass to the step before, 0 none of it.",
        False,
        1.0,
    ),
    "cut": _Words(
        "How often a trace is cut",
        "share of steps with c < 0.05",
        "What comes after such a step is lost to those before it.",
        False,
        1.0,
    ),
    "effective_length": _Words(
        "How many TD errors reach the start of a window",
        "effective length, TD errors",
        "1 is one-step learning; the most is the length of a window.",
        True,
        1.0,
    ),
    "off_policy": _Words(
        "How far replayed steps are from the policy they teach",
        "L1 distance of π and μ",
        "0 where memory was made by the policy that it teaches; 2 where they have nothing in common.",
        True,
        None,
    ),
}
"""Of `telemetry`."""


def learning_curves(
    runs: Mapping[str, Sequence[Sequence[TickRecord]]],
    *,
    title: str,
    subtitle: str | Sequence[str] = (),
    evaluations: bool = False,
) -> alt.LayerChart:
    """Mean raw return of training episodes against environment steps, one line for each algorithm.

    With `evaluations` it is the mean return of the evaluations on the way, at ε ≈ 0.

    `runs` has the reports of every run, by algorithm, as `Study.curves` gives them for a game. The band is the
    bootstrap interval of the mean over runs at each point by itself, the same every time; of fewer than three runs it
    is their range. The last line of the subtitle says which.
    """
    if not runs or not all(runs.values()):
        raise ValueError("`runs` must have at least one run for each algorithm.")
    algorithms = list(runs)
    last = max((reports[-1].num_steps for group in runs.values() for reports in group if reports), default=0)
    size, unit = (1e6, "millions") if last >= 1e6 else (1e3, "thousands")
    rows, ends = [], {}
    for algorithm, group in runs.items():
        curves = np.array([_stretches(reports, last, evaluations=evaluations) for reports in group])
        for i, (mean, low, high) in enumerate(_means(curves)):
            if math.isfinite(mean):
                point = {"steps": (i + 1) * last / POINTS / size, "mean": mean, "low": low, "high": high}
                # six digits are more than can be seen, and half the size of a page of many games
                rows.append({"algorithm": named(algorithm)} | {k: float(f"{x:.6g}") for k, x in point.items()})
                ends[algorithm] = mean
    if not rows:
        raise ValueError("`runs` must have an episode that ended; got none: train for longer.")
    domain, until = roomy(min(row["low"] for row in rows), max(row["high"] for row in rows)), last / size
    x = alt.X("steps:Q", title=f"environment steps, {unit}").scale(domain=[0, until], nice=False, clamp=True)
    x = x.axis(format=number_format((0.0, until)), tickCount=5)
    y = alt.Y("mean:Q", title="return of an episode").scale(domain=domain, nice=False, zero=False, clamp=True)
    y = y.axis(format=number_format(domain), tickCount=6)
    shown = {"algorithm": "algorithm", "steps": f"steps, {unit}", "mean": "mean return", "low": "from", "high": "to"}
    data, paint = alt.InlineData(values=rows), colour(algorithms)
    band = alt.Chart(data, mark=alt.MarkDef(type="area", opacity=0.15)).encode(
        x=x, y=alt.Y("low:Q", title="return of an episode"), y2="high:Q", color=paint
    )
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=2.5)).encode(
        x=x, y=y, color=paint, strokeDash=dash(algorithms), tooltip=tips(**shown)
    )
    points = lone_points(rows, x, y, paint, tips(**shown))
    labels = end_labels(ends, x=until, domain=domain, algorithms=algorithms)
    told = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    return finished(band, lines, *points, labels, title=title, subtitle=[*told, _band_words(runs)])


def telemetry(study: Study, lambda_: float, measure: Measure) -> alt.LayerChart:
    """What the traces did, on average over runs and games, against the share of the run that is over.

    Every game counts alike. Algorithms without a λ are drawn where the measure says something of them.
    """
    if measure not in MEASURES:
        raise ValueError(f"`measure` must be one of {', '.join(MEASURES)}; got {measure!r}.")
    words, found = MEASURES[measure], study.curves(lambda_)
    lines: dict[str, Array] = {}
    num_runs = 0
    for algorithm in study.comparison.algorithms:
        if is_baseline(algorithm) and not words.baselines:
            continue
        groups = [[_shares(run, measure) for run in game.get(algorithm, ())] for game in found.values()]
        groups = [[run for run in group if np.isfinite(run).any()] for group in groups]
        groups = [group for group in groups if group]
        if groups:
            num_runs += sum(map(len, groups))
            # a mean of all of them or of none: it must not move because a game joins late
            lines[algorithm] = np.mean([np.mean(group, axis=0) for group in groups], axis=0)
    known = [values[np.isfinite(values)] for values in lines.values()]
    if not any(values.size for values in known):
        raise ValueError(
            f"`study` must have runs that are done at λ = {lambda_:g} and say `{measure}`; it has none: run some."
        )
    rows = [
        {"algorithm": named(algorithm), "share": (i + 1) / POINTS, "value": value}
        for algorithm, values in lines.items()
        for i, value in enumerate(values.tolist())
        if math.isfinite(value)
    ]
    domain = _from_zero(np.concatenate(known), words.top or 0.0)
    ends = {name: float(values[-1]) for name, values in zip(lines, known, strict=True) if values.size}
    x = alt.X("share:Q", title="share of the run").axis(format=".0%", tickCount=5).scale(domain=[0, 1], nice=False)
    y = alt.Y("value:Q", title=words.y).scale(domain=domain, nice=False, clamp=True)
    y = y.axis(format=number_format(domain), tickCount=5)
    algorithms, paint = list(lines), colour(list(lines))
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
            f"Mean over {counted(num_runs, 'run')} of {counted(len(found), 'game')} at λ = {lambda_:g}.",
        ),
    )


# -- runs as points ------------------------------------------------------------------------------------------


def _stretches(reports: Sequence[TickRecord], last: int, *, evaluations: bool) -> list[float]:
    """Mean return of the episodes that ended in each stretch, or of its evaluations; nan where there are none."""
    total, count = np.zeros(POINTS), np.zeros(POINTS)
    for report in reports:
        value, weight = report.episode_return, report.num_episodes
        if evaluations:
            value, weight = math.nan if report.evaluation is None else report.evaluation, 1
        if weight and report.num_steps and abs(value) < LARGEST:
            at = _place(report.num_steps, last)
            total[at] += weight * value
            count[at] += weight
    return [t / c if c else math.nan for t, c in zip(total, count, strict=True)]


def _shares(reports: Sequence[TickRecord], measure: Measure) -> Array:
    """Mean of a measure in each stretch, (POINTS,); nan before the first one that is known.

    Runs of few ticks have stretches without one, which are between their neighbours.
    """
    total, count = np.zeros(POINTS), np.zeros(POINTS)
    for report in reports:
        value = getattr(report, measure)
        if report.num_steps and abs(value) < LARGEST:
            at = _place(report.num_steps, reports[-1].num_steps)
            total[at] += value
            count[at] += 1
    known = np.flatnonzero(count)
    if not known.size:
        return np.full(POINTS, math.nan)
    return np.interp(np.arange(POINTS), known, total[known] / count[known], left=math.nan)


def _place(num_steps: int, last: int) -> int:
    return min(math.ceil(num_steps * POINTS / last) - 1, POINTS - 1)


def _means(curves: Array) -> list[tuple[float, float, float]]:
    """From (runs, POINTS) to the mean over runs, and the ends of its band, at each point."""
    known = np.isfinite(curves)
    values, counts = np.where(known, curves, 0.0), known.sum(0)
    mean = np.where(counts, values.sum(0) / np.maximum(counts, 1), math.nan)
    if len(curves) < FEWEST:
        low, high = np.where(known, curves, math.inf).min(0), np.where(known, curves, -math.inf).max(0)
    else:
        picked = np.random.default_rng(0).integers(len(curves), size=(NUM_DRAWS, len(curves)))
        weights = (picked[..., None] == np.arange(len(curves))).sum(1).astype(np.float64)
        drawn_counts = weights @ known
        drawn = np.where(drawn_counts > 0, (weights @ values) / np.maximum(drawn_counts, 1), math.nan)
        ends, low, high = [(1 - LEVEL) / 2, (1 + LEVEL) / 2], mean.copy(), mean.copy()
        for some in (counts == len(curves), (counts > 0) & (counts < len(curves))):
            if some.any():
                quantile = np.nanquantile if np.isnan(drawn[:, some]).any() else np.quantile
                low[some], high[some] = quantile(drawn[:, some], ends, axis=0)
    return list(zip(mean.tolist(), low.tolist(), high.tolist(), strict=True))


def _band_words(runs: Mapping[str, Sequence[Any]]) -> str:
    sizes = {name: len(group) for name, group in runs.items()}
    most = max(sizes.values())
    if most == 1:
        return "One run of each: no band."
    few = [named(name) for name, size in sizes.items() if size < FEWEST]
    if most < FEWEST:
        return f"Bands: the range of {most} runs."
    told = f"Bands: {LEVEL:.0%} bootstrap intervals of the mean over runs ({_from_to(sizes)})"
    return f"{told}; of {', '.join(few)} the range." if few else f"{told}."


def _from_to(sizes: Mapping[str, int]) -> str:
    low, high = min(sizes.values()), max(sizes.values())
    return str(high) if low == high else f"{low} to {high}"


def _from_zero(values: Array, least: float) -> tuple[float, float]:
    """Of the y axis: from 0, or from what is below it, to `least` or to a little above the largest value."""
    low, high = min(float(values.min()), 0.0), float(values.max())
    top = least if high <= least else 1.05 * high
    return 1.05 * low, top or 1.0
