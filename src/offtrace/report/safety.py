"""The safety table as a picture: what speed costs in variance, a point for each row of an `Analysis`."""

import math
from collections.abc import Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np

from offtrace.report.charts import COLOURS, alt, finished
from offtrace.safety import BY_THEOREM, Analysis, SafetyRow

WIDTH, HEIGHT = 560, 400
BAND = 0.1
"""Of an axis, for what has no place on it: 0, and infinity."""
GREY, INK, SHADE = "#767676", "#222222", "#F2F2F2"
TRACE_COLOURS = {
    "retrace": COLOURS["retrace"],
    "tree_backup": COLOURS["tree_backup"],
    "q_lambda": COLOURS["q_star"],
    "one_step": COLOURS["dqn"],
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D1C", "#7A4FA3", "#A31F34", "#5B8C5A")
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
SMALLEST, LARGEST = 36, 170
"""Areas of a point at the least λ and at the largest."""
ROUNDING = 1e-7
"""Of the largest standard deviation: a variance is a difference of squares, and its root is 0 up to this."""


def contraction_against_variance(analysis: Analysis) -> alt.LayerChart:
    """Steps of R until the error is small, against the standard deviation of a sampled target; a point for each row.

    Both axes are logarithmic. What has no place on them has a band of its own: diverging rows on the right, infinite
    variance at the top, no variance at the bottom. Traces with the same numbers at every λ are drawn once.
    """
    twins = analysis.twins()
    rows = [row for row in analysis.rows if row.trace not in twins and _can_be_drawn(row)]
    if not rows:
        raise ValueError("`analysis` must have a row whose steps are known; this MDP is too large for a picture.")
    steps, spreads = [row.iterations or 0.0 for row in rows], [math.sqrt(row.target_variance) for row in rows]
    least = ROUNDING * max((spread for spread in spreads if math.isfinite(spread)), default=0.0)
    heights = [0.0 if spread <= least else spread for spread in spreads]
    across, up = _Axis.of(steps), _Axis.of(heights)
    sizes = _sizes(rows)
    styles = _styles(list(dict.fromkeys(row.trace for row in rows)))
    best = _drawn(analysis.best, rows, twins)
    points = [
        {
            "trace": row.trace,
            "lambda": row.lambda_,
            "verdict": row.verdict,
            "steps": _told(step),
            "standard deviation": _told(spread),
            "norm": _told(row.contraction),
            "radius": _told(row.radius),
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
    points.sort(key=lambda point: point["trace"] == "retrace")  # on top of what it coincides with
    layers = [
        _frame(across, up),
        *_points(points),
        *(_recommended(best, points) if best else []),
        *_key(rows, styles, sizes, twins),
    ]
    subtitle = [
        f"Steps of R until the error is {analysis.accuracy:g} of what it was, and how far a sampled target scatters;",
        "left and down is better. A line follows one trace, and its points grow with λ.",
    ]
    title = f"What speed costs in variance: {subject(analysis)}"
    chart = finished(*layers, title=title, subtitle=subtitle, width=WIDTH, height=HEIGHT)
    return chart.resolve_scale(color="independent")


def _can_be_drawn(row: SafetyRow) -> bool:
    """Whether its numbers are known; they may be infinite."""
    return row.iterations is not None and not math.isnan(row.iterations) and not math.isnan(row.target_variance)


def _told(value: float | None) -> float | str | None:
    """As JSON can have it."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else "∞"


# -- an axis with room for 0 and infinity --------------------------------------------------------------------


class _Axis(NamedTuple):
    """A logarithmic axis over 10^[low, high], which has [first, last] of [0, 1]; 0 is before it, infinity beyond."""

    low: float
    high: float
    first: float
    last: float

    @staticmethod
    def of(values: Sequence[float]) -> "_Axis":
        finite = [value for value in values if 0 < value < math.inf] or [1.0]
        low, high = math.log10(min(finite)), math.log10(max(finite))
        room = max(0.05 * (high - low), (0.6 - (high - low)) / 2)  # more than half a decade, so that there are ticks
        first = BAND if min(values) == 0 else 0.0
        last = 1 - BAND if max(values) == math.inf else 1.0
        return _Axis(low - room, high + room, first, last)

    def place(self, value: float) -> float:
        if value == 0:
            return self.first / 2
        if value == math.inf:
            return (1 + self.last) / 2
        return self.first + (math.log10(value) - self.low) / (self.high - self.low) * (self.last - self.first)

    def places(self, values: Sequence[float]) -> list[float]:
        """Those at infinity stand side by side, in the order of the table, so that none hides another."""
        infinite = sum(value == math.inf for value in values)
        room = iter(np.linspace(self.last, 1, infinite + 2)[1:-1].tolist())
        return [next(room) if value == math.inf else self.place(value) for value in values]

    def ticks(self) -> list[tuple[float, str]]:
        """Places and what to write there: 1, 2 and 5 times powers of ten, or fewer where those are many."""
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
        return [*([(self.first / 2, "0")] if self.first else []), *ticks]


def _frame(across: _Axis, up: _Axis) -> alt.Chart:
    """The axes, and what lies beyond them, shaded."""
    bands = [{"x": 0.0, "x2": 0.0, "y": 0.0, "y2": 0.0}]  # Vega draws no axes for no data
    if across.last < 1:
        bands.append({"x": across.last, "x2": 1.0, "y": 0.0, "y2": 1.0})
    if up.last < 1:
        bands.append({"x": 0.0, "x2": 1.0, "y": up.last, "y2": 1.0})
    if up.first > 0:
        bands.append({"x": 0.0, "x2": 1.0, "y": 0.0, "y2": up.first})
    ticks_x = [*across.ticks(), *([((1 + across.last) / 2, "diverges")] if across.last < 1 else [])]
    ticks_y = [*up.ticks(), *([((1 + up.last) / 2, "∞")] if up.last < 1 else [])]
    x = alt.X("x:Q", title="steps of R").axis(**_words(ticks_x)).scale(domain=[0, 1], nice=False)
    y = alt.Y("y:Q", title="standard deviation of a target").axis(**_words(ticks_y)).scale(domain=[0, 1], nice=False)
    mark = alt.MarkDef(type="rect", color=SHADE)
    return alt.Chart(alt.InlineData(values=bands), mark=mark).encode(x=x, x2="x2:Q", y=y, y2="y2:Q")


def _words(ticks: list[tuple[float, str]]) -> dict[str, Any]:
    """Vega asks what to write at each place."""
    chosen = "".join(f"abs(datum.value - {place!r}) < 1e-9 ? '{word}' : " for place, word in ticks)
    return {"values": [place for place, _ in ticks], "labelExpr": f"{chosen}''", "labelOverlap": False}


# -- what is drawn -------------------------------------------------------------------------------------------


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
    """A ring around it, and its name where it hides least."""
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


RING = 480


def _beside(point: dict[str, Any], points: list[dict[str, Any]], *, width: float) -> tuple[float, float]:
    """Where the middle of a label goes, in pixels from the point: around it, where it hides the fewest others."""
    x, y = point["x"] * WIDTH, (1 - point["y"]) * HEIGHT
    others = [(other["x"] * WIDTH, (1 - other["y"]) * HEIGHT) for other in points]
    best, least = (0.0, 0.0), math.inf
    for far, angle in product((0, 14, 28, 44), np.linspace(0, 2 * math.pi, 24, endpoint=False).tolist()):
        dx, dy = (width / 2 + 18 + far) * math.cos(angle), (24 + far) * math.sin(angle)
        middle = x + dx, y + dy
        hidden = sum(abs(a - middle[0]) < width / 2 + 9 and abs(b - middle[1]) < 16 for a, b in others)
        outside = not (width / 2 < middle[0] < WIDTH - width / 2 and 10 < middle[1] < HEIGHT - 10)
        if hidden + 100 * outside + 0.01 * far < least:
            best, least = (dx, dy), hidden + 100 * outside + 0.01 * far
    return best


def _key(
    rows: list[SafetyRow],
    styles: dict[str, tuple[str, str]],
    sizes: dict[float | None, float],
    twins: dict[str, str],
) -> list[alt.Chart]:
    """On the right: every trace drawn, with those that coincide with it underneath, then what the looks mean."""
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
    shown = list(sizes.items()) if len(sizes) <= 4 else [*sizes.items()][:: len(sizes) - 1]
    for place, (lambda_, size) in enumerate(shown):
        add(18 if place else 29, f"λ = {lambda_:g}", size=size)
    add(29, "safe by Theorem 1")
    add(18, "not covered by it", fill="white")
    add(29, "recommended", colour=INK, fill="white", size=RING / 2)
    for entry in [*marks, *words]:
        entry["x"], entry["y"] = 1 + 26 / WIDTH, 1 - entry["line"] / HEIGHT
    text = alt.MarkDef(type="text", align="left", baseline="middle", dx=16)
    return [
        alt.Chart(alt.InlineData(values=marks), mark=alt.MarkDef(type="point", strokeWidth=2, opacity=1)).encode(
            x="x:Q", y="y:Q", **_looks()
        ),
        texts(words, text, size=alt.Size("size:Q").scale(None)),
    ]


def _drawn(row: SafetyRow, rows: list[SafetyRow], twins: dict[str, str]) -> SafetyRow | None:
    """The row itself, or the one that is drawn for it; None where its numbers are not known."""
    name = twins.get(row.trace, row.trace)
    return next((one for one in rows if one.trace == name and one.lambda_ == row.lambda_), None)


def _styles(names: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each trace."""
    free, shapes = cycle(OTHER_COLOURS), cycle(SHAPES)
    return {name: (TRACE_COLOURS.get(name) or next(free), next(shapes)) for name in names}


def _sizes(rows: list[SafetyRow]) -> dict[float | None, float]:
    """Areas by λ, which one-step targets do not have."""
    lambdas = sorted({row.lambda_ for row in rows if row.lambda_ is not None and row.trace != "one_step"})
    return dict(zip(lambdas, np.linspace(LARGEST, SMALLEST, len(lambdas))[::-1].tolist(), strict=True))


def subject(analysis: Analysis) -> str:
    return f"{analysis.mdp.name or 'an MDP'}, γ = {analysis.mdp.gamma:g}"


def texts(rows: list[dict[str, Any]], mark: alt.MarkDef, **encoding: Any) -> alt.Chart:
    colour = alt.Color("colour:N").scale(None)
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q", y="y:Q", text="text:N", color=colour, **encoding
    )
