"""Learning curves: what each algorithm earned on the way, as means over runs with bands."""

import math
from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from offtrace.agent.telemetry import Report
from offtrace.report.charts import LABEL_SIZE, colour, finished, named

POINTS = 50
"""Stretches that a run is divided into; the returns of a stretch are averaged over its episodes."""
LABEL_GAP = 0.055
"""Between names at the right, as a share of the chart's height."""


def learning_curves(
    runs: Mapping[str, Sequence[Sequence[Report]]], *, title: str, subtitle: str | Sequence[str]
) -> alt.LayerChart:
    """Mean raw return of training episodes against environment steps, one line for each algorithm.

    `runs` has the reports of every run, by algorithm; the band is the range between the second-lowest and
    second-highest run, or all of them where there are fewer than five.
    """
    if not runs or not all(runs.values()):
        raise ValueError("`runs` must have at least one run for each algorithm.")
    algorithms = list(runs)
    last = max(reports[-1].num_steps for group in runs.values() for reports in group)
    rows, ends = [], {}
    for algorithm, group in runs.items():
        curves = np.array([_stretches(reports, last) for reports in group])
        for i, values in enumerate(curves.T):
            known = np.sort(values[~np.isnan(values)])
            if known.size:
                spared = 1 if known.size >= 5 else 0
                low, high = float(known[spared]), float(known[known.size - 1 - spared])
                mean, steps = float(known.mean()), (i + 1) * last / POINTS / 1e6
                rows.append({"algorithm": named(algorithm), "steps": steps, "mean": mean, "low": low, "high": high})
                ends[algorithm] = mean
    x = alt.X("steps:Q", title="environment steps, millions").scale(domain=[0, last / 1e6], nice=False)
    data, paint = alt.InlineData(values=rows), colour(algorithms)
    band = alt.Chart(data, mark=alt.MarkDef(type="area", opacity=0.15)).encode(
        x=x, y=alt.Y("low:Q", title="return of an episode"), y2="high:Q", color=paint
    )
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=2.5)).encode(
        x=x, y="mean:Q", color=paint, tooltip=["algorithm:N", "steps:Q", "mean:Q", "low:Q", "high:Q"]
    )
    top, bottom = max(row["high"] for row in rows), min(row["low"] for row in rows)
    labels = _labels(ends, x=last / 1e6, gap=LABEL_GAP * max(top - bottom, 1e-9), algorithms=algorithms)
    return finished(band, lines, labels, title=title, subtitle=subtitle)


def _stretches(reports: Sequence[Report], last: int) -> list[float]:
    """Mean return of the episodes that ended in each stretch; nan where none did."""
    total, count = np.zeros(POINTS), np.zeros(POINTS)
    for report in reports:
        if report.num_episodes and report.num_steps:
            at = min(math.ceil(report.num_steps * POINTS / last) - 1, POINTS - 1)
            total[at] += report.num_episodes * report.episode_return
            count[at] += report.num_episodes
    return [t / c if c else math.nan for t, c in zip(total, count, strict=True)]


def _labels(ends: Mapping[str, float], *, x: float, gap: float, algorithms: Sequence[str]) -> alt.Chart:
    """Names right of where the lines end, moved up where they would overlap."""
    rows, lowest = [], -math.inf
    for algorithm, height in sorted(ends.items(), key=lambda pair: pair[1]):
        lowest = max(height, lowest + gap)
        rows.append({"algorithm": named(algorithm), "x": x, "y": lowest})
    mark = alt.MarkDef(type="text", align="left", baseline="middle", dx=10, fontSize=LABEL_SIZE, fontWeight="bold")
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q", y="y:Q", text="algorithm:N", color=colour(algorithms)
    )
