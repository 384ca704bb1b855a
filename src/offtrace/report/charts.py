"""The paper's two figures of results as Altair charts, and how to write them as PNG, SVG and PDF, offline.

`score_distribution_chart` and `average_by_lambda_chart` draw plain numbers; `offtrace.report.comparisons` draws what
a `Comparison` holds with them. Algorithms keep their names and colours from chart to chart. Names are data: they are
values of a chart's rows, never its fields, and what is too long for its place is cut short.

No mark leaves the frame, whatever the data are: what is beyond an axis is drawn at its edge, and its tooltip has the
value itself.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.report.names import NAMES, named
from offtrace.scores import average_scores, distribution_steps
from offtrace.scores.comparison import is_baseline

try:
    import altair as alt
    import vl_convert  # Altair writes files with it; better missed here than after the drawing
except ImportError as missing:
    raise ImportError(f"charts need `{missing.name}`: pip install 'offtrace[report]'") from missing

__all__ = [
    "NAMES",
    "alt",
    "average_by_lambda_chart",
    "finished",
    "named",
    "save",
    "score_distribution_chart",
    "vl_convert",
]

FORMATS = ("png", "svg", "pdf")
WIDTH, HEIGHT = 540, 340
LABEL_SIZE, LABEL_WIDTH = 14, 170
LABEL_GAP = 1.45 * LABEL_SIZE / HEIGHT
"""Between names right of the lines, as a share of the chart's height."""
TITLE_LENGTH, SUBTITLE_LENGTH = 68, 104
"""Characters in a line of them: longer ones go on in the next."""
LONGEST_WORD = 48
TICK_GAP = 36
"""Pixels between λs that are written."""
DODGE = 7 / WIDTH
"""Between the interval bars at one λ, as a share of the chart's width."""

# Okabe and Ito's palette: distinct with every common colour blindness. The baseline is grey, and dashed.
COLOURS = {
    "retrace": "#0072B2",
    "tree_backup": "#D55E00",
    "q_star": "#009E73",
    "q_lambda": "#009E73",
    "dqn": "#555555",
    "one_step": "#555555",
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D1C", "#7A4FA3", "#A31F34", "#5B8C5A")

Rows = list[dict[str, Any]]


def score_distribution_chart(
    z: ArrayLike, *, algorithms: Sequence[str], title: str, subtitle: str | Sequence[str]
) -> alt.LayerChart:
    """A step line f(x) = |{g : z_{g,a} ≥ x}| / G for every algorithm (Sec. 5, Fig. 1).

    Shapes: `z` (games, algorithms) in [0, 1], as `offtrace.scores.inter_algorithm_scores` gives it.
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
    # f is constant up to and including a score and drops after it: "step-before" draws just that.
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
    """The average inter-algorithm score of every algorithm at every λ (App. F, Fig. 2).

    Shapes: `averages` (lambdas, algorithms) in [0, 1], `lambdas` (lambdas,), increasing; `low` and `high`, the ends
    of intervals, as `averages`. With intervals, what stands at one λ is drawn side by side. Bars that go beyond
    [0, 1] end at the edge; those without finite ends are left out.

    Points on one vertical compare; points along one line do not (each λ is normalised within itself), which
    is why the lines are faint.
    """
    averages, lambdas = np.asarray(averages, dtype=np.float64), np.asarray(lambdas, dtype=np.float64)
    if averages.ndim != 2 or lambdas.shape != averages.shape[:1] or not lambdas.size:
        raise ValueError(
            "`averages` must be (lambdas, algorithms) with one row per entry of `lambdas`, "
            f"got shapes {averages.shape} and {lambdas.shape}; transpose `averages` or complete `lambdas`"
        )
    if not ((averages >= 0.0) & (averages <= 1.0)).all():
        row, column = np.argwhere(~((averages >= 0.0) & (averages <= 1.0)))[0].tolist()
        raise ValueError(
            f"`averages` must lie in [0, 1], got {averages[row, column]} at row {row}, column {column}; "
            "average inter-algorithm scores, not raw ones"
        )
    if not np.isfinite(lambdas).all() or (np.diff(lambdas) <= 0.0).any():
        raise ValueError(f"`lambdas` must increase, got {lambdas.tolist()}; sort them with their rows")
    _check_algorithms(algorithms, num_columns=averages.shape[1], name="averages")
    ends = None if low is None or high is None else np.stack([np.asarray(low), np.asarray(high)])
    if ends is not None and ends.shape[1:] != averages.shape:
        raise ValueError(
            f"`low` and `high` must have the shape of `averages`, {averages.shape}, got {ends.shape[1:]}; "
            "give an interval for every average, or none"
        )
    apart = 0.0
    if ends is not None:
        apart = DODGE * float(np.ptp(lambdas) or 1.0)
        apart = min(apart, 0.6 * float(np.diff(lambdas).min(initial=1.0)) / max(len(algorithms) - 1, 1))
    places = apart * (np.arange(len(algorithms)) - (len(algorithms) - 1) / 2)
    rows = [
        {"algorithm": named(algorithm), "lambda": lambda_, "at": lambda_ + place, "average": average}
        for algorithm, place, column in zip(algorithms, places.tolist(), averages.T.tolist(), strict=True)
        for lambda_, average in zip(lambdas.tolist(), column, strict=True)
    ]
    shown = {"algorithm": "algorithm", "lambda": "λ", "average": y_title}
    layers, barred = [], []
    room = float(places[-1]) + DODGE * float(np.ptp(lambdas))
    x, y = lambda_axis(lambdas.tolist(), "at", room=room), alt.Y("average:Q", title=y_title)
    y, paint = y.scale(domain=[0, 1], clamp=True).axis(tickCount=5), colour(algorithms)
    if ends is not None:
        for row, lower, upper in zip(rows, ends[0].T.ravel().tolist(), ends[1].T.ravel().tolist(), strict=True):
            if math.isfinite(lower) and math.isfinite(upper):
                row |= {"low": lower, "high": upper}
                barred.append(row)
    if len(barred) == len(rows):
        shown |= {"low": "from", "high": "to"}
    data = alt.InlineData(values=rows)
    layers.append(
        alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=1.5, opacity=0.45)).encode(
            x=x, y=y, color=paint, strokeDash=dash(algorithms)
        )
    )
    layers.append(
        alt.Chart(data, mark=alt.MarkDef(type="circle", size=80, opacity=1)).encode(
            x=x, y=y, color=paint, tooltip=tips(**shown)
        )
    )
    if barred:
        bars = alt.MarkDef(type="rule", strokeWidth=2, opacity=0.75)
        layers.append(
            alt.Chart(alt.InlineData(values=barred), mark=bars).encode(x="at:Q", y="low:Q", y2="high:Q", color=paint)
        )
    last = float(lambdas[-1] + places[-1])
    labels = end_labels(dict(zip(algorithms, averages[-1].tolist(), strict=True)), x=last)
    return finished(*layers, labels, title=title, subtitle=subtitle)


def save(chart: alt.LayerChart, stem: str | Path) -> tuple[Path, ...]:
    """Write `stem`.png (at twice the size, for sharp screens), `stem`.svg and `stem`.pdf; return their paths.

    Folders are made and older pictures replaced. Nothing is fetched from a network.
    """
    stem = Path(stem)
    if stem.suffix.removeprefix(".").lower() in FORMATS:
        raise ValueError(
            f"`stem` must have no format's ending, got {str(stem)!r}; "
            f"give {str(stem.with_suffix(''))!r} and {', '.join(FORMATS)} are added"
        )
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = tuple(stem.with_name(f"{stem.name}.{format_}") for format_ in FORMATS)
    for path in paths:
        chart.save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    return paths


# -- what charts share ---------------------------------------------------------------------------------------


def colour(algorithms: Sequence[str]) -> alt.Color:
    """Everyone's own: the known ones' is fixed, unless two of them would have the same."""
    kept = {COLOURS[a]: a for a in reversed(algorithms) if a in COLOURS}
    free = cycle([*OTHER_COLOURS, *(colour for colour in dict.fromkeys(COLOURS.values()) if colour not in kept)])
    colours = [COLOURS[a] if a in kept.values() else next(free) for a in algorithms]
    return alt.Color("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=colours)


def dash(algorithms: Sequence[str]) -> alt.StrokeDash:
    dashes = [[6, 3] if is_baseline(a) else [1, 0] for a in algorithms]
    return alt.StrokeDash("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=dashes)


def tips(**titles: str) -> list[alt.Tooltip]:
    """What is shown over a mark: fields, and what they are called there."""
    return [
        alt.Tooltip(field, type="nominal", title=title)
        if field == "algorithm"
        else alt.Tooltip(field, type="quantitative", title=title, format=".4~g")
        for field, title in titles.items()
    ]


def lambda_axis(lambdas: Sequence[float], field: str = "lambda", *, room: float = 0.0, width: int = WIDTH) -> alt.X:
    """A tick for each λ, and `room` on both sides; where there is one λ it is in the middle.

    Of ticks that would overlap the larger λ has its own.
    """
    room = room if len(lambdas) > 1 else max(room, 0.5)
    ticks: list[float] = []
    for lambda_ in reversed(lambdas):
        if not ticks or ticks[-1] - lambda_ >= TICK_GAP / width * (lambdas[-1] - lambdas[0]):
            ticks.append(lambda_)
    x = alt.X(f"{field}:Q", title="λ").axis(values=ticks[::-1], format=".6~g", labelOverlap=False)
    return x.scale(domain=[lambdas[0] - room, lambdas[-1] + room], nice=False)


def number_format(domain: tuple[float, float]) -> str:
    """How numbers are written along an axis: short ones however large or small they are.

    >>> number_format((0.0, 500.0)), number_format((0.0, 2e6)), number_format((0.0, 1e9))
    (',.6~g', '.4~s', '.4~g')
    """
    largest = max(map(abs, domain))
    if 1e-4 <= largest < 1e5:
        return ",.6~g"
    if 1e5 <= largest < 1e9:
        return ".4~s"
    return ".4~g"


def roomy(low: float, high: float) -> tuple[float, float]:
    """The domain of an axis for values from `low` to `high`: a little more, and a tenth around what is constant."""
    largest = max(abs(low), abs(high))
    if high - low <= 1e-3 * largest or not largest:
        middle, room = (low + high) / 2, 0.1 * largest or 0.1
        return middle - room, middle + room
    room = 0.04 * (high - low)
    return low - room, high + room


def lone_points(rows: Rows, x: alt.X, y: alt.Y, paint: alt.Color, shown: list[alt.Tooltip]) -> list[alt.Chart]:
    """Points for algorithms of which only one is known: a line through it cannot be seen."""
    counts = Counter(row["algorithm"] for row in rows)
    lone = [row for row in rows if counts[row["algorithm"]] == 1]
    if not lone:
        return []
    mark = alt.MarkDef(type="circle", size=60, opacity=1)
    return [alt.Chart(alt.InlineData(values=lone), mark=mark).encode(x=x, y=y, color=paint, tooltip=shown)]


def end_labels(
    ends: Mapping[str, float],
    *,
    x: float,
    domain: tuple[float, float] = (0.0, 1.0),
    algorithms: Sequence[str] = (),
    merit: Mapping[str, float] | None = None,
    height: int = HEIGHT,
) -> alt.Chart:
    """The algorithms' names right of where their lines end, moved apart where they would overlap.

    `domain` is that of the y axis, of a chart that is `height` pixels high; `algorithms` are all that are drawn, if
    some have no end. Of lines that end at one height the better by `merit` is named above, else the earlier. Names
    are smaller where they are too many.
    """
    bottom, top = domain
    share = min(LABEL_GAP * HEIGHT / height, 1 / max(len(ends) - 1, 1))
    gap = share * (top - bottom)
    order = sorted(reversed(list(ends)), key=lambda name: (ends[name], merit[name] if merit else 0.0))
    placed: dict[str, float] = {}
    lowest = bottom
    for name in order:
        placed[name] = max(min(ends[name], top), lowest)
        lowest = placed[name] + gap
    highest = top
    for name in reversed(order):
        placed[name] = min(placed[name], highest)
        highest = placed[name] - gap
    rows = [{"algorithm": named(name), "x": x, "y": placed[name]} for name in ends]
    mark = alt.MarkDef(
        type="text",
        align="left",
        baseline="middle",
        dx=10,
        fontSize=min(LABEL_SIZE, round(share * height / 1.3)),
        fontWeight="bold",
        limit=LABEL_WIDTH,
    )
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q",
        y="y:Q",
        text="algorithm:N",
        color=colour(algorithms or list(ends)),
        tooltip=tips(algorithm="algorithm"),
    )


def finished(
    *layers: alt.Chart, title: str, subtitle: str | Sequence[str], width: float = WIDTH, height: float = HEIGHT
) -> alt.LayerChart:
    """The layers as one picture, with the title and the axes that all charts have."""
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    heading = alt.TitleParams(
        text=title if len(title) <= TITLE_LENGTH else _wrapped(title, TITLE_LENGTH, most=2),
        subtitle=[part for line in lines for part in _wrapped(line, SUBTITLE_LENGTH, most=3)],
        anchor="start",
        frame="group",
        fontSize=18,
        subtitleFontSize=13,
        subtitleColor="#555555",
        subtitlePadding=6,
        offset=14,
    )
    chart = alt.LayerChart(layer=list(layers), padding=16, background="white")
    chart = chart.properties(width=width, height=height, title=heading)
    return chart.configure_view(stroke=None).configure_axis(
        domain=False,  # Q*(λ) drops along x = 0, where the axis would run
        ticks=False,
        labelPadding=8,
        labelFlush=False,
        labelFontSize=13,
        titleFontSize=13,
        titleFontWeight="normal",
        titlePadding=10,
        gridColor="#E4E4E4",
    )


def _wrapped(text: str, length: int, *, most: int) -> list[str]:
    words = [word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…" for word in text.split()]
    return textwrap.wrap(" ".join(words), length, max_lines=most, placeholder=" …") or [""]


def _check_algorithms(algorithms: Sequence[str], *, num_columns: int, name: str) -> None:
    if len(algorithms) != num_columns or len(set(algorithms)) != num_columns:
        raise ValueError(
            f"`algorithms` must name each of the {num_columns} columns of `{name}` once, "
            f"got {list(algorithms)}; give {num_columns} different names"
        )
