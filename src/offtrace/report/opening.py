"""The pictures at the top of the page: a few algorithms against λ, small, on an axis that is given."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offtrace.experiments.theory import TRACES, Contraction
from offtrace.report.charts import alt, colour, dash, end_labels, finished, lambda_axis, number_format
from offtrace.report.comparisons import scale_words
from offtrace.report.findings import Materials, stretch_of
from offtrace.report.names import counted, named
from offtrace.report.page import Section
from offtrace.scores import Comparison
from offtrace.scores.comparison import is_baseline

WIDTH, HEIGHT = 360, 280
LABEL_ROOM, LABEL_WIDTH = 16, 190
"""Pixels that the text of a reference needs above it, and may have along it."""


POINT_ROOM = 8
"""Pixels between the first and the last points and the sides of the frame."""


SHOWN = ("retrace", "tree_backup", "q_lambda", "q_star", "dqn", "one_step")
"""Algorithms that are drawn there, where they are."""
NORMS = (0.0, 3.0)
"""The axis of contraction norms; larger ones are drawn at its top."""


class Point(NamedTuple):
    """A value at one λ, and the ends of its interval where it has one."""

    lambda_: float
    value: float
    low: float | None = None
    high: float | None = None


def opening(materials: Materials) -> Section | None:
    """Theory, tables, networks, side by side; those that there are."""
    charts = {}
    if materials.theory:
        charts["opening_theory"] = _theory_panel(materials.theory)
    parts = {"tables": materials.tables, "networks": None}
    if materials.networks is not None:
        parts["networks"] = materials.networks.comparison
    for name, comparison in parts.items():
        if comparison is not None:
            panel = _level_panel(comparison, "In tables" if name == "tables" else "With networks")
            if panel is not None:
                charts[f"opening_{name}"] = panel
    if not charts:
        return None
    return Section("Is it safe to use a large λ?", charts=charts, small=True)


def _theory_panel(found: Sequence[Contraction]) -> alt.LayerChart:
    games = {each.game for each in found}
    lines = {}
    for trace in TRACES:
        lambdas = sorted({each.lambda_ for each in found if each.trace == trace})
        lines[trace] = [
            Point(x, max(each.norm for each in found if each.trace == trace and each.lambda_ == x)) for x in lambdas
        ]
    return lambda_panel(
        lines,
        title="In theory",
        subtitle=f"The most that one step can multiply an error by; the worst of {counted(len(games), 'MDP')}.",
        y_title="‖A‖",
        domain=NORMS,
        reference=(1.0, "above: errors can grow"),
    )


def _level_panel(comparison: Comparison, title: str) -> alt.LayerChart | None:
    """Averages by λ; None where there is none, or a single λ."""
    stretch = stretch_of(comparison)
    averages = comparison.averages("level", stretch)
    if len(averages.lambdas) < 2 or not averages.num_games:
        return None
    lines = {}
    for a, name in enumerate(averages.algorithms):
        if name not in SHOWN:
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
    what = "the evaluation at ε ≈ 0" if stretch == "evaluation" else "the training score"
    return lambda_panel(
        lines,
        title=title,
        subtitle=f"By {what}; {scale_words(comparison)}",
        y_title="average score",
        domain=(_bottom(lines), 1.0),
    )


def _bottom(lines: Mapping[str, Sequence[Point]]) -> float:
    """Of the axis: 0, or lower where an algorithm is worse than random play, down to −½."""
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
    """Values of several algorithms against λ, a line for each, with a band where points have intervals.

    `lines` has the points of every algorithm; baselines, which have no λ, are dashed and without points. `domain` is
    the y axis from its bottom to its top. Values beyond it, infinite ones too, are drawn at its edge and keep their
    tooltips; nan is left out. `reference` is a dashed horizontal line and what is written along it.
    """
    bottom, top = domain
    if not -math.inf < bottom < top < math.inf:
        raise ValueError(f"`domain` must be two finite numbers, the lower one first; got {domain}.")
    rows = [
        _row(name, point, domain) for name, points in lines.items() for point in sorted(points) if _is_known(point)
    ]
    if not rows:
        raise ValueError("`lines` must have a point whose λ and value are known; got none.")
    algorithms = list(lines)
    lambdas = sorted({row["lambda"] for row in rows})
    room = POINT_ROOM / WIDTH * (lambdas[-1] - lambdas[0])
    x, paint = lambda_axis(lambdas, room=room, width=WIDTH), colour(algorithms)
    y = alt.Y("value:Q", title=y_title).scale(domain=[bottom, top], nice=False, zero=False, clamp=True)
    y = y.axis(tickCount=5, format=number_format(domain))
    at: dict[str, Any] = {"x": x, "y": y, "color": paint}
    layers = [*_reference(reference, domain), *_bands(rows, x, y_title, paint)]
    line = alt.MarkDef(type="line", strokeWidth=2.5)
    layers.append(alt.Chart(alt.InlineData(values=rows), mark=line).encode(**at, strokeDash=dash(algorithms)))
    layers += _circles(rows, at, y_title, without={named(name) for name in algorithms if is_baseline(name)})
    ends = {name: row["value"] for name in algorithms for row in rows if row["algorithm"] == named(name)}
    labels = end_labels(ends, x=lambdas[-1], domain=domain, algorithms=algorithms, height=HEIGHT)
    return finished(*layers, labels, title=title, subtitle=subtitle, width=WIDTH, height=HEIGHT)


def _is_known(point: Point) -> bool:
    return math.isfinite(point.lambda_) and not math.isnan(point.value)


def _row(name: str, point: Point, domain: tuple[float, float]) -> dict[str, Any]:
    """What is drawn, within the axis, and what its tooltip says."""
    row: dict[str, Any] = {"algorithm": named(name), "lambda": point.lambda_, "value": _within(point.value, domain)}
    row |= {"shown": _text(point.value), "interval": ""}
    low, high = point.low, point.high
    if low is not None and high is not None and not math.isnan(low) and not math.isnan(high):
        row |= {"low": _within(low, domain), "high": _within(high, domain)}
        row["interval"] = f"{_text(low)} to {_text(high)}"
    return row


def _within(value: float, domain: tuple[float, float]) -> float:
    return min(max(value, domain[0]), domain[1])


def _text(value: float) -> str:
    """
    >>> _text(0.12345), _text(float("inf")), _text(float("-inf"))
    ('0.1235', '∞', '−∞')
    """
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")


def _bands(rows: list[dict[str, Any]], x: alt.X, y_title: str, paint: alt.Color) -> list[alt.Chart]:
    banded = [row for row in rows if "low" in row]
    if not banded:
        return []
    mark = alt.MarkDef(type="area", opacity=0.14)
    low = alt.Y("low:Q", title=y_title)
    return [alt.Chart(alt.InlineData(values=banded), mark=mark).encode(x=x, y=low, y2="high:Q", color=paint)]


def _circles(rows: list[dict[str, Any]], at: dict[str, Any], y_title: str, *, without: set[str]) -> list[alt.Chart]:
    """Some algorithms are without, unless they have a single point, which could not be seen otherwise."""
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
    """A line across, and its text on the right: above it, or below where there is no room."""
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
