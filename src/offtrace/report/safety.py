"""The safety table as a chart: contraction against variance, one point per row of an `Analysis`."""

import math
from collections.abc import Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np

from offtrace.report.charts import COLOURS, OTHER_COLOURS, alt, finished
from offtrace.safety import BY_THEOREM, Analysis, SafetyRow
from offtrace.traces import WITHOUT_LAMBDA

WIDTH = 560
HEIGHT = 400
BAND = 0.1
"""Share of an axis that is reserved for 0, and for infinity."""
GREY = "#767676"
INK = "#222222"
SHADE = "#F2F2F2"
TRACE_COLOURS = {
    "retrace": COLOURS["retrace"],
    "tree_backup": COLOURS["tree_backup"],
    "q_lambda": COLOURS["q_star"],
    "one_step": COLOURS["dqn"],
}
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
SMALLEST = 36
"""Area of a point at the smallest λ."""
LARGEST = 170
"""Area of a point at the largest λ."""
RING = 480
"""Area of the ring around the recommended point."""
ROUNDING = 1e-7
"""Smaller standard deviations, relative to the largest, are 0: a variance is a difference of squares."""


def contraction_against_variance(analysis: Analysis) -> alt.LayerChart:
    """Return a chart of steps of R until the error is small against the standard deviation of a sampled target.

    There is one point per row. Both axes are logarithmic, with bands for diverging rows on the
    right, infinite variance at the top and no variance at the bottom. Traces with the same numbers
    at every λ are drawn once.
    """
    twins = analysis.twins()
    rows = [row for row in analysis.rows if row.trace not in twins and _can_be_drawn(row)]
    if not rows:
        raise ValueError(
            "`analysis` must have a row with a known number of steps; got none, as the MDP is too large."
        )
    steps = [row.iterations or 0.0 for row in rows]
    spreads = [math.sqrt(row.target_variance) for row in rows]
    least = ROUNDING * max((spread for spread in spreads if math.isfinite(spread)), default=0.0)
    heights = [0.0 if spread <= least else spread for spread in spreads]
    across = _Axis.of(steps)
    up = _Axis.of(heights)
    sizes = _sizes(rows)
    styles = _styles(list(dict.fromkeys(row.trace for row in rows)))
    best = _drawn(analysis.best, rows, twins)
    points = [
        {
            "trace": row.trace,
            "lambda": row.lambda_,
            "verdict": row.verdict,
            "steps": _json_number(step),
            "standard deviation": _json_number(spread),
            "norm": _json_number(row.contraction),
            "radius": _json_number(row.radius),
            "recommended": row is best,
            "x": x,
            "y": y,
            "size": sizes.get(row.lambda_, LARGEST),
            "colour": styles[row.trace][0],
            "shape": styles[row.trace][1],
            "fill": styles[row.trace][0] if row.verdict == BY_THEOREM else "white",
        }
        for row, step, spread, x, y in zip(
            rows, steps, spreads, across.places(steps), up.places(heights), strict=True
        )
    ]
    points.sort(key=lambda point: point["trace"] == "retrace")  # drawn last, on top of points at the same place
    layers = [
        _frame(across, up),
        *_points(points),
        *(_recommended(best, points) if best else []),
        *_key(rows, styles, sizes, twins),
    ]
    subtitle = [
        f"Steps of R until the error is {analysis.accuracy:g} of its first value, and spread of sampled targets.",
        "Lower left is better. A line connects the points of one trace, which grow with λ.",
    ]
    title = f"Contraction against variance: {subject(analysis)}"
    chart = finished(*layers, title=title, subtitle=subtitle, width=WIDTH, height=HEIGHT)
    return chart.resolve_scale(color="independent")


def _can_be_drawn(row: SafetyRow) -> bool:
    """Return whether the numbers of a row are known; they may be infinite."""
    return row.iterations is not None and not math.isnan(row.iterations) and not math.isnan(row.target_variance)


def _json_number(value: float | None) -> float | str | None:
    """Return a number as JSON can hold it."""
    if value is None or math.isnan(value):
        return None
    if math.isinf(value):
        return "∞"
    return value


# -- a logarithmic axis with bands for 0 and infinity --------------------------------------------------------


class _Axis(NamedTuple):
    """A logarithmic axis: 10^low … 10^high is drawn on [first, last] of [0, 1], 0 before it and infinity after it."""

    low: float
    high: float
    first: float
    last: float

    @staticmethod
    def of(values: Sequence[float]) -> "_Axis":
        finite = [value for value in values if 0 < value < math.inf] or [1.0]
        low, high = math.log10(min(finite)), math.log10(max(finite))
        room = max(0.05 * (high - low), (0.6 - (high - low)) / 2)  # over half a decade, so that the axis has ticks
        first = BAND if min(values) == 0 else 0.0
        last = 1 - BAND if max(values) == math.inf else 1.0
        return _Axis(low - room, high + room, first, last)

    def place(self, value: float) -> float:
        """Return the place of a value in [0, 1]."""
        if value == 0:
            return self.first / 2
        if value == math.inf:
            return (1 + self.last) / 2
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)

    def places(self, values: Sequence[float]) -> list[float]:
        """Return the places of values. Infinite ones are side by side, in the order of the table."""
        infinite = sum(value == math.inf for value in values)
        room = iter(np.linspace(self.last, 1, infinite + 2)[1:-1].tolist())
        return [next(room) if value == math.inf else self.place(value) for value in values]

    def ticks(self) -> list[tuple[float, str]]:
        """Return ticks as places and labels: multiples of powers of ten, at most eight or so."""
        values: list[float] = []
        for every, steps in (
            (1, (1, 1.5, 2, 3, 5, 7)),
            (1, (1, 2, 5)),
            (1, (1, 3)),
            (1, (1,)),
            (2, (1,)),
            (4, (1,)),
            (8, (1,)),
            (32, (1,)),
            (128, (1,)),
        ):
            powers = [power for power in range(math.floor(self.low), math.ceil(self.high) + 1) if power % every == 0]
            values = [step * 10.0**power for power, step in product(powers, steps)]
            values = [value for value in values if self.low <= math.log10(value) <= self.high]
            if len(values) <= 8:
                break
        ticks = [(self.place(value), f"{value:,.15g}" if 1e-4 < value < 1e6 else f"{value:g}") for value in values]
        if self.first:
            ticks.insert(0, (self.first / 2, "0"))
        return ticks


def _frame(across: _Axis, up: _Axis) -> alt.Chart:
    """Return the axes, with shaded bands for 0 and infinity."""
    bands = [{"x": 0.0, "x2": 0.0, "y": 0.0, "y2": 0.0}]  # Vega draws no axes without data
    if across.last < 1:
        bands.append({"x": across.last, "x2": 1.0, "y": 0.0, "y2": 1.0})
    if up.last < 1:
        bands.append({"x": 0.0, "x2": 1.0, "y": up.last, "y2": 1.0})
    if up.first > 0:
        bands.append({"x": 0.0, "x2": 1.0, "y": 0.0, "y2": up.first})
    ticks_x = across.ticks()
    if across.last < 1:
        ticks_x.append(((1 + across.last) / 2, "diverges"))
    ticks_y = up.ticks()
    if up.last < 1:
        ticks_y.append(((1 + up.last) / 2, "∞"))
    x = alt.X("x:Q", title="steps of R").axis(**_labels(ticks_x)).scale(domain=[0, 1], nice=False)
    y = alt.Y("y:Q", title="standard deviation of a target").axis(**_labels(ticks_y)).scale(domain=[0, 1], nice=False)
    mark = alt.MarkDef(type="rect", color=SHADE)
    return alt.Chart(alt.InlineData(values=bands), mark=mark).encode(x=x, x2="x2:Q", y=y, y2="y2:Q")


def _labels(ticks: list[tuple[float, str]]) -> dict[str, Any]:
    """Return the axis settings that label each place, with a Vega expression that looks up the label."""
    chosen = "".join(f"abs(datum.value - {place!r}) < 1e-9 ? '{word}' : " for place, word in ticks)
    return {"values": [place for place, _ in ticks], "labelExpr": f"{chosen}''", "labelOverlap": False}


# -- layers --------------------------------------------------------------------------------------------------


def _points(points: list[dict[str, Any]]) -> list[alt.Chart]:
    data = alt.InlineData(values=points)
    at = {"x": "x:Q", "y": "y:Q"}
    colour = alt.Stroke("colour:N").scale(None)
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=1.5, opacity=0.45)).encode(
        **at, stroke=colour, detail="trace:N", order="lambda:Q"
    )
    shown = ["trace", "lambda", "verdict", "steps", "standard deviation", "norm", "radius"]
    marks = alt.Chart(data, mark=alt.MarkDef(type="point", strokeWidth=2, opacity=1)).encode(
        **at,
        **_looks(),
        tooltip=[alt.Tooltip(name, type="nominal") for name in shown],
    )
    return [lines, marks]


def _looks() -> dict[str, Any]:
    return {
        "stroke": alt.Stroke("colour:N").scale(None),
        "fill": alt.Fill("fill:N").scale(None),
        "shape": alt.Shape("shape:N").scale(None),
        "size": alt.Size("size:Q").scale(None),
    }


def _recommended(row: SafetyRow, points: list[dict[str, Any]]) -> list[alt.Chart]:
    """Return a ring around the recommended point, and its name where it covers the fewest points."""
    point = next(point for point in points if point["recommended"])
    dx, dy = _beside(point, points, width=8.2 * len(row.label))
    data = alt.InlineData(values=[{**point, "text": row.label}])
    ring = alt.MarkDef(type="point", shape="circle", size=RING, strokeWidth=2, opacity=1, color=INK, filled=False)
    place: dict[str, Any] = {"baseline": "middle", "dx": dx, "dy": dy, "fontSize": 14, "fontWeight": "bold"}
    halo = alt.MarkDef(type="text", stroke="white", strokeWidth=5, opacity=1, **place)
    text = alt.MarkDef(type="text", color=INK, opacity=1, **place)
    return [
        alt.Chart(data, mark=ring).encode(x="x:Q", y="y:Q"),
        *(alt.Chart(data, mark=mark).encode(x="x:Q", y="y:Q", text="text:N") for mark in (halo, text)),
    ]


def _beside(point: dict[str, Any], points: list[dict[str, Any]], *, width: float) -> tuple[float, float]:
    """Return the offset of a label from its point in pixels, where it covers the fewest other points."""
    x = point["x"] * WIDTH
    y = (1 - point["y"]) * HEIGHT
    others = [(other["x"] * WIDTH, (1 - other["y"]) * HEIGHT) for other in points]
    best = (0.0, 0.0)
    least = math.inf
    for far, angle in product((0, 14, 28, 44), np.linspace(0, 2 * math.pi, 24, endpoint=False).tolist()):
        dx = (width / 2 + 18 + far) * math.cos(angle)
        dy = (24 + far) * math.sin(angle)
        middle = x + dx, y + dy
        hidden = sum(abs(a - middle[0]) < width / 2 + 9 and abs(b - middle[1]) < 16 for a, b in others)
        outside = not (width / 2 < middle[0] < WIDTH - width / 2 and 10 < middle[1] < HEIGHT - 10)
        cost = hidden + 100 * outside + 0.01 * far
        if cost < least:
            best = (dx, dy)
            least = cost
    return best


def _key(
    rows: list[SafetyRow],
    styles: dict[str, tuple[str, str]],
    sizes: dict[float | None, float],
    twins: dict[str, str],
) -> list[alt.Chart]:
    """Return the key on the right: every trace, those with the same numbers below it, then sizes and fills."""
    marks: list[dict[str, Any]] = []
    words: list[dict[str, Any]] = []
    line = -8.0

    def add(
        gap: int, text: str, *, colour: str = GREY, fill: str = GREY, shape: str = "circle", size: float = 100
    ) -> None:
        nonlocal line
        line += gap
        marks.append({"line": line, "colour": colour, "fill": fill, "shape": shape, "size": size})
        words.append({"line": line, "text": text, "colour": INK, "size": 13})

    for name, (colour, shape) in styles.items():
        unsafe = all(row.verdict != BY_THEOREM for row in rows if row.trace == name)
        add(19, name, colour=colour, fill="white" if unsafe else colour, shape=shape)
        for twin in (one for one, other in twins.items() if other == name):
            line += 15
            words.append({"line": line, "text": f"= {twin}", "colour": GREY, "size": 12})
    shown = list(sizes.items())
    if len(shown) > 4:
        shown = [shown[0], shown[-1]]
    for place, (lambda_, size) in enumerate(shown):
        add(18 if place else 29, f"λ = {lambda_:g}", size=size)
    add(29, "safe by Theorem 1")
    add(18, "not covered by it", fill="white")
    add(29, "recommended", colour=INK, fill="white", size=RING / 2)
    for entry in [*marks, *words]:
        entry["x"] = 1 + 26 / WIDTH
        entry["y"] = 1 - entry["line"] / HEIGHT
    text = alt.MarkDef(type="text", align="left", baseline="middle", dx=16)
    return [
        alt.Chart(alt.InlineData(values=marks), mark=alt.MarkDef(type="point", strokeWidth=2, opacity=1)).encode(
            x="x:Q", y="y:Q", **_looks()
        ),
        texts(words, text, size=alt.Size("size:Q").scale(None)),
    ]


def _drawn(row: SafetyRow, rows: list[SafetyRow], twins: dict[str, str]) -> SafetyRow | None:
    """Return the row, or the one that is drawn in its place; None if its numbers are not known."""
    name = twins.get(row.trace, row.trace)
    return next((one for one in rows if one.trace == name and one.lambda_ == row.lambda_), None)


def _styles(names: list[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and shape of each trace."""
    free, shapes = cycle(OTHER_COLOURS), cycle(SHAPES)
    return {name: (TRACE_COLOURS.get(name) or next(free), next(shapes)) for name in names}


def _sizes(rows: list[SafetyRow]) -> dict[float | None, float]:
    """Return the area of a point by λ; one-step learning has none."""
    lambdas = sorted({row.lambda_ for row in rows if row.lambda_ is not None and row.trace not in WITHOUT_LAMBDA})
    return dict(zip(lambdas, np.linspace(LARGEST, SMALLEST, len(lambdas))[::-1].tolist(), strict=True))


def subject(analysis: Analysis) -> str:
    """Return the name and γ of the MDP."""
    return f"{analysis.mdp.name or 'an MDP'}, γ = {analysis.mdp.gamma:g}"


def texts(rows: list[dict[str, Any]], mark: alt.MarkDef, **encoding: Any) -> alt.Chart:
    """Return a layer of texts, each with its own colour."""
    colour = alt.Color("colour:N").scale(None)
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q", y="y:Q", text="text:N", color=colour, **encoding
    )
