"""The paper's two figures of results as charts of plain numbers; `comparisons` draws those of a `Comparison`."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from offtrace.report.charts import WIDTH, ChartRows, alt, colour, dash, end_labels, finished, lambda_axis, tips
from offtrace.report.names import named
from offtrace.scores import average_scores, distribution_steps

DODGE = 7 / WIDTH
"""Distance between the interval bars at one λ, as a share of the chart's width."""


def score_distribution_chart(
    z: ArrayLike, *, algorithms: Sequence[str], title: str, subtitle: str | Sequence[str]
) -> alt.LayerChart:
    """Return a chart of f(x) = |{g : z_{g,a} ≥ x}| / G as a step line per algorithm (Sec. 5, Fig. 1).

    Shapes: `z` (games, algorithms) in [0, 1], as `offtrace.scores.inter_algorithm_scores` returns
    them.
    """
    steps = distribution_steps(z)
    _check_algorithms(algorithms, num_columns=len(steps), name="z")
    rows = [
        {"algorithm": named(algorithm), "score": x, "fraction": f}
        for algorithm, points in zip(algorithms, steps, strict=True)
        for x, f in zip(points.x.tolist(), points.f.tolist(), strict=True)
    ]
    x = alt.X("score:Q", title="inter-algorithm score x (0 = worst, 1 = best of the algorithms compared)")
    y = alt.Y("fraction:Q", title="games with score ≥ x").axis(format=".0%", tickCount=5)
    # f is constant up to and including a score, and drops after it. "step-before" draws exactly that.
    mark = alt.MarkDef(type="line", interpolate="step-before", strokeWidth=2.5)
    lines = alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x=x.scale(domain=[0, 1], clamp=True).axis(tickCount=5),
        y=y.scale(domain=[0, 1], clamp=True),
        color=colour(algorithms),
        strokeDash=dash(algorithms),
        tooltip=tips(algorithm="algorithm", score="score x", fraction="games with score ≥ x"),
    )
    ends = {a: float(points.f[-1]) for a, points in zip(algorithms, steps, strict=True)}
    merit = dict(zip(algorithms, average_scores(z).tolist(), strict=True))
    labels = end_labels(ends, x=1.0, merit=merit)
    return finished(lines, labels, title=title, subtitle=subtitle)


def average_by_lambda_chart(
    averages: ArrayLike,
    *,
    lambdas: ArrayLike,
    algorithms: Sequence[str],
    title: str,
    subtitle: str | Sequence[str],
    y_title: str = "average inter-algorithm score",
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
) -> alt.LayerChart:
    """Return a chart of the average inter-algorithm score of every algorithm at every λ (App. F, Fig. 2).

    Shapes: `averages` (lambdas, algorithms) in [0, 1], `lambdas` (lambdas,), increasing; `low` and
    `high`, the ends of intervals, like `averages`. With intervals, the points at one λ are drawn
    side by side. Bars that go beyond [0, 1] end at the edge; bars without finite ends are left
    out.

    Points at one λ can be compared, points along a line cannot, as each λ has its own scale. That
    is why the lines are faint.
    """
    averages = np.asarray(averages, dtype=np.float64)
    lambdas = np.asarray(lambdas, dtype=np.float64)
    _check_averages(averages, lambdas)
    _check_algorithms(algorithms, num_columns=averages.shape[1], name="averages")
    intervals = None
    if low is not None and high is not None:
        intervals = np.stack([np.asarray(low), np.asarray(high)])
        _check_intervals(intervals, averages)
    shifts = _shifts(lambdas, len(algorithms), with_intervals=intervals is not None)
    rows = [
        {"algorithm": named(algorithm), "lambda": lambda_, "at": lambda_ + shift, "average": average}
        for algorithm, shift, column in zip(algorithms, shifts, averages.T.tolist(), strict=True)
        for lambda_, average in zip(lambdas.tolist(), column, strict=True)
    ]
    rows_with_bars = _add_intervals(rows, intervals)
    tooltip = {"algorithm": "algorithm", "lambda": "λ", "average": y_title}
    if len(rows_with_bars) == len(rows):
        tooltip |= {"low": "from", "high": "to"}
    room = shifts[-1] + DODGE * float(np.ptp(lambdas))
    x = lambda_axis(lambdas.tolist(), "at", room=room)
    y = alt.Y("average:Q", title=y_title).scale(domain=[0, 1], clamp=True).axis(tickCount=5)
    paint = colour(algorithms)
    data = alt.InlineData(values=rows)
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=1.5, opacity=0.45)).encode(
        x=x, y=y, color=paint, strokeDash=dash(algorithms)
    )
    points = alt.Chart(data, mark=alt.MarkDef(type="circle", size=80, opacity=1)).encode(
        x=x, y=y, color=paint, tooltip=tips(**tooltip)
    )
    layers = [lines, points]
    if rows_with_bars:
        bars = alt.MarkDef(type="rule", strokeWidth=2, opacity=0.75)
        layers.append(
            alt.Chart(alt.InlineData(values=rows_with_bars), mark=bars).encode(
                x="at:Q", y="low:Q", y2="high:Q", color=paint
            )
        )
    ends = dict(zip(algorithms, averages[-1].tolist(), strict=True))
    labels = end_labels(ends, x=float(lambdas[-1]) + shifts[-1])
    return finished(*layers, labels, title=title, subtitle=subtitle)


def _check_averages(averages: np.ndarray, lambdas: np.ndarray) -> None:
    if averages.ndim != 2 or lambdas.shape != averages.shape[:1] or not lambdas.size:
        raise ValueError(
            "`averages` must be (lambdas, algorithms) with one row per entry of `lambdas`; "
            f"got shapes {averages.shape} and {lambdas.shape}. Transpose `averages` or complete `lambdas`."
        )
    is_outside = ~((averages >= 0.0) & (averages <= 1.0))
    if is_outside.any():
        row, column = np.argwhere(is_outside)[0].tolist()
        raise ValueError(
            f"`averages` must lie in [0, 1]; got {averages[row, column]} at row {row}, column {column}. "
            "Average inter-algorithm scores, not raw ones."
        )
    if not np.isfinite(lambdas).all() or (np.diff(lambdas) <= 0.0).any():
        raise ValueError(f"`lambdas` must increase; got {lambdas.tolist()}. Sort them with their rows.")


def _check_intervals(intervals: np.ndarray, averages: np.ndarray) -> None:
    if intervals.shape[1:] != averages.shape:
        raise ValueError(
            f"`low` and `high` must have the shape of `averages`, {averages.shape}; got {intervals.shape[1:]}. "
            "Give an interval for every average, or none."
        )


def _shifts(lambdas: np.ndarray, num_algorithms: int, *, with_intervals: bool) -> list[float]:
    """Return how far the points of each algorithm are moved along the λ axis, so that bars do not overlap."""
    distance = 0.0
    if with_intervals:
        distance = DODGE * float(np.ptp(lambdas) or 1.0)
        smallest_gap = float(np.diff(lambdas).min(initial=1.0))
        distance = min(distance, 0.6 * smallest_gap / max(num_algorithms - 1, 1))
    return (distance * (np.arange(num_algorithms) - (num_algorithms - 1) / 2)).tolist()


def _add_intervals(rows: ChartRows, intervals: np.ndarray | None) -> ChartRows:
    """Add the finite intervals (2, lambdas, algorithms) to the rows, and return the rows that have one."""
    if intervals is None:
        return []
    changed = []
    for row, low, high in zip(rows, intervals[0].T.ravel().tolist(), intervals[1].T.ravel().tolist(), strict=True):
        if math.isfinite(low) and math.isfinite(high):
            row |= {"low": low, "high": high}
            changed.append(row)
    return changed


def _check_algorithms(algorithms: Sequence[str], *, num_columns: int, name: str) -> None:
    if len(algorithms) != num_columns or len(set(algorithms)) != num_columns:
        raise ValueError(
            f"`algorithms` must name each of the {num_columns} columns of `{name}` once; "
            f"got {list(algorithms)}. Give {num_columns} different names."
        )
