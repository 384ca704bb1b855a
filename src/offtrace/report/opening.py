"""The charts at the top of the page: a few algorithms against λ, in theory, in tables and with networks."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offtrace.experiments.theory import TRACES, Contraction
from offtrace.report.charts import (
    ChartRows,
    alt,
    bands,
    colour,
    dash,
    end_labels,
    finished,
    lambda_axis,
    number_format,
)
from offtrace.report.comparisons import scale_words
from offtrace.report.findings import SCORE_NAMES, Materials, stretch_of
from offtrace.report.names import counted, named
from offtrace.report.page import Section
from offtrace.scores import Comparison, is_baseline

# In pixels:
WIDTH = 360
HEIGHT = 280
LABEL_ROOM = 16
"""Height that the text of a reference line needs."""
LABEL_WIDTH = 190
"""Largest width of the text of a reference line."""
POINT_ROOM = 8
"""Distance of the first and last points from the sides of the frame."""

SHOWN_ALGORITHMS = ("retrace", "tree_backup", "q_lambda", "q_star", "dqn", "one_step")
NORM_DOMAIN = (0.0, 3.0)
"""The axis of contraction norms; larger ones are drawn at its top."""


class Point(NamedTuple):
    """A value at one λ, and the ends of its interval, if any."""

    lambda_: float
    value: float
    low: float | None = None
    high: float | None = None


def opening(materials: Materials) -> Section | None:
    """Return the charts of theory, tables and networks, those that there are; None if there are none."""
    charts = {}
    if materials.theory:
        charts["opening_theory"] = _theory_panel(materials.theory)
    tables = _level_panel(materials.tables, "With tables")
    if tables is not None:
        charts["opening_tables"] = tables
    if materials.networks is not None:
        networks = _level_panel(materials.networks.comparison, "With networks")
        if networks is not None:
            charts["opening_networks"] = networks
    if not charts:
        return None
    return Section("Is it safe to use a large λ?", charts=charts, small=True)


def _theory_panel(found: Sequence[Contraction]) -> alt.LayerChart:
    games = counted(len({each.game for each in found}), "MDP")
    lines = {}
    for trace in TRACES:
        lambdas = sorted({each.lambda_ for each in found if each.trace == trace})
        lines[trace] = [
            Point(x, max(each.norm for each in found if each.trace == trace and each.lambda_ == x)) for x in lambdas
        ]
    subtitle = f"Largest factor by which one step can multiply an error; the worst of {games}."
    top = NORM_DOMAIN[1]
    if any(point.value > top for points in lines.values() for point in points):
        subtitle += f" Larger values are drawn at {top:g}."
    return lambda_panel(
        lines,
        title="In theory",
        subtitle=subtitle,
        y_title="‖A‖",
        domain=NORM_DOMAIN,
        reference=(1.0, "above 1 errors can grow"),
    )


def _level_panel(comparison: Comparison | None, title: str) -> alt.LayerChart | None:
    """Return a chart of averages by λ; None without averages at two or more λ."""
    if comparison is None:
        return None
    stretch = stretch_of(comparison)
    averages = comparison.averages("level", stretch)
    if len(averages.lambdas) < 2 or not averages.num_games:
        return None
    lines = {}
    for a, name in enumerate(averages.algorithms):
        if name not in SHOWN_ALGORITHMS:
            continue
        points = []
        for i, lambda_ in enumerate(averages.lambdas):
            ends = (None, None)
            if averages.low is not None and averages.high is not None:
                ends = (float(averages.low[i, a]), float(averages.high[i, a]))
            points.append(Point(lambda_, float(averages.value[i, a]), *ends))
        lines[name] = points
    if not lines:
        return None
    return lambda_panel(
        lines,
        title=title,
        subtitle=f"{SCORE_NAMES[stretch].capitalize()}. {scale_words(comparison)}",
        y_title="average score",
        domain=(_bottom(lines), 1.0),
    )


def _bottom(lines: Mapping[str, Sequence[Point]]) -> float:
    """Return the bottom of the axis: 0, or lower, down to −½, if an algorithm is worse than random play."""
    lowest = min(point.value for points in lines.values() for point in points)
    return max(-0.5, min(0.0, math.floor(4 * lowest) / 4))


def lambda_panel(
    lines: Mapping[str, Sequence[Point]],
    *,
    title: str,
    subtitle: str | Sequence[str],
    y_title: str,
    domain: tuple[float, float],
    reference: tuple[float, str] | None = None,
) -> alt.LayerChart:
    """Return a chart of several algorithms against λ, one line each, with a band if points have intervals.

    `lines` has the points of every algorithm; baselines, which have no λ, are dashed and without
    points. `domain` is that of the y axis. Values beyond it, also infinite ones, are drawn at its
    edge and keep their tooltips; nan is left out. `reference` is the height and the text of a
    dashed horizontal line.
    """
    bottom, top = domain
    if not -math.inf < bottom < top < math.inf:
        raise ValueError(f"`domain` must be two finite numbers, the lower one first; got {domain}.")
    rows = [
        _row(name, point, domain)
        for name, points in lines.items()
        for point in sorted(points)
        if math.isfinite(point.lambda_) and not math.isnan(point.value)
    ]
    if not rows:
        raise ValueError("`lines` must have a point with a finite λ and a value; got none.")
    algorithms = list(lines)
    lambdas = sorted({row["lambda"] for row in rows})
    room = POINT_ROOM / WIDTH * (lambdas[-1] - lambdas[0])
    x = lambda_axis(lambdas, room=room, width=WIDTH)
    paint = colour(algorithms)
    y = alt.Y("value:Q", title=y_title).scale(domain=[bottom, top], nice=False, zero=False, clamp=True)
    y = y.axis(tickCount=5, format=number_format(domain))
    at: dict[str, Any] = {"x": x, "y": y, "color": paint}
    rows_with_band = [row for row in rows if "low" in row]
    layers = [
        *_reference(reference, domain),
        *bands(rows_with_band, x, alt.Y("low:Q", title=y_title), paint),
    ]
    line = alt.MarkDef(type="line", strokeWidth=2.5)
    layers.append(alt.Chart(alt.InlineData(values=rows), mark=line).encode(**at, strokeDash=dash(algorithms)))
    layers += _circles(rows, at, y_title, without={named(name) for name in algorithms if is_baseline(name)})
    ends = {name: row["value"] for name in algorithms for row in rows if row["algorithm"] == named(name)}
    labels = end_labels(ends, x=lambdas[-1], domain=domain, algorithms=algorithms, height=HEIGHT)
    return finished(*layers, labels, title=title, subtitle=subtitle, width=WIDTH, height=HEIGHT)


def _row(name: str, point: Point, domain: tuple[float, float]) -> dict[str, Any]:
    """Return the data of a point: what is drawn, cut off at the axis, and its tooltip."""
    row: dict[str, Any] = {"algorithm": named(name), "lambda": point.lambda_, "value": _within(point.value, domain)}
    row |= {"shown": _text(point.value), "interval": ""}
    low = point.low
    high = point.high
    if low is not None and high is not None and not math.isnan(low) and not math.isnan(high):
        row |= {"low": _within(low, domain), "high": _within(high, domain)}
        row["interval"] = f"{_text(low)} to {_text(high)}"
    return row


def _within(value: float, domain: tuple[float, float]) -> float:
    return min(max(value, domain[0]), domain[1])


def _text(value: float) -> str:
    """Return a number as text, with typographic signs.

    >>> _text(0.12345), _text(float("inf")), _text(float("-inf"))
    ('0.1235', '∞', '−∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")


def _circles(rows: ChartRows, at: dict[str, Any], y_title: str, *, without: set[str]) -> list[alt.Chart]:
    """Return points, except for the algorithms in `without` that have a line to be seen."""
    counts = Counter(row["algorithm"] for row in rows)
    points = [row for row in rows if row["algorithm"] not in without or counts[row["algorithm"]] == 1]
    if not points:
        return []
    titles = {"algorithm": "algorithm", "lambda": "λ", "shown": y_title}
    if any(row["interval"] for row in points):
        titles["interval"] = "interval"
    tooltip = [alt.Tooltip(field, type="nominal", title=title) for field, title in titles.items()]
    mark = alt.MarkDef(type="circle", size=60, opacity=1)
    return [alt.Chart(alt.InlineData(values=points), mark=mark).encode(**at, tooltip=tooltip)]


def _reference(reference: tuple[float, str] | None, domain: tuple[float, float]) -> list[alt.Chart]:
    """Return a horizontal line, with its text on the right: above it, or below if there is no room."""
    if reference is None:
        return []
    height, text = reference
    if not domain[0] <= height <= domain[1]:
        raise ValueError(f"`reference` must lie in `domain`, {domain}; got {height}.")
    has_room = (domain[1] - height) / (domain[1] - domain[0]) * HEIGHT >= LABEL_ROOM
    data = alt.InlineData(values=[{"y": height, "text": text}])
    rule = alt.MarkDef(type="rule", color="#767676", strokeDash=[4, 4], strokeWidth=1.5)
    words = alt.MarkDef(
        type="text",
        align="right",
        baseline="bottom" if has_room else "top",
        dx=-4,
        dy=-3 if has_room else 4,
        color="#767676",
        fontSize=12,
        limit=LABEL_WIDTH,
    )
    return [
        alt.Chart(data, mark=rule).encode(y="y:Q"),
        alt.Chart(data, mark=words).encode(x=alt.value("width"), y="y:Q", text="text:N"),
    ]
