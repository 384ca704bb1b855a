"""What all charts share: colours, names beside lines, axes, frames, and files as PNG, SVG and PDF, made offline.

An algorithm has the same name and colour in all charts. Names are values of a chart's rows, never
its fields, and are shortened if they are too long.

No mark leaves the frame: a value beyond an axis is drawn at its edge, and its tooltip has the
value itself.
"""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from offtrace.report.names import NAMES, named, short_label
from offtrace.scores import is_baseline

try:
    import altair as alt
    import vl_convert  # Altair writes files with it; if it is missing, fail here and not after drawing
except ImportError as missing:
    raise ImportError(f"charts need `{missing.name}`: pip install 'offtrace[report]'") from missing

__all__ = [
    "NAMES",
    "alt",
    "finished",
    "named",
    "save",
    "vl_convert",
]

FORMATS = ("png", "svg", "pdf")
WIDTH = 540
HEIGHT = 340
LABEL_SIZE = 14
SMALL_LABEL_SIZE = 11
LONG_LABEL = 17
"""Characters of a label with settings from which on it is small."""
LABEL_WIDTH = 170
LABEL_GAP = 1.45 * LABEL_SIZE / HEIGHT
"""Distance between names to the right of the lines, as a share of the chart's height."""
TITLE_LENGTH = 68
"""Characters per line of a title."""
SUBTITLE_LENGTH = 104
"""Characters per line of a subtitle."""
LONGEST_WORD = 48
TICK_GAP = 36
"""Smallest distance between labels of λ, in pixels."""

# Okabe and Ito's palette, which is distinct for the common kinds of colour blindness.
# The baseline is grey and dashed.
COLOURS = {
    "retrace": "#0072B2",
    "tree_backup": "#D55E00",
    "q_star": "#009E73",
    "q_lambda": "#009E73",
    "dqn": "#555555",
    "one_step": "#555555",
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D1C", "#7A4FA3", "#A31F34", "#5B8C5A")

ChartRows = list[dict[str, Any]]
"""The data of a chart, one dict per mark."""


def save(chart: alt.LayerChart, stem: str | Path) -> tuple[Path, ...]:
    """Write `stem`.png (at twice the size, for sharp screens), `stem`.svg and `stem`.pdf; return their paths.

    Missing folders are created and existing files replaced. No network is used.
    """
    stem = Path(stem)
    if stem.suffix.removeprefix(".").lower() in FORMATS:
        raise ValueError(
            f"`stem` must have no file extension; got {str(stem)!r}. "
            f"Give {str(stem.with_suffix(''))!r}: {', '.join(FORMATS)} are added."
        )
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = tuple(stem.with_name(f"{stem.name}.{format_}") for format_ in FORMATS)
    for path in paths:
        chart.save(str(path), scale_factor=2 if path.suffix == ".png" else 1)
    return paths


def colour(algorithms: Sequence[str]) -> alt.Color:
    """Return the colours of algorithms. Known ones have a fixed colour, unless two would have the same."""
    owners = {COLOURS[name]: name for name in reversed(algorithms) if name in COLOURS}
    unused = [colour for colour in dict.fromkeys(COLOURS.values()) if colour not in owners]
    free = cycle([*OTHER_COLOURS, *unused])
    colours = [COLOURS[name] if name in owners.values() else next(free) for name in algorithms]
    return alt.Color("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=colours)


def dash(algorithms: Sequence[str]) -> alt.StrokeDash:
    """Return the line styles of algorithms: baselines are dashed."""
    dashes = [[6, 3] if is_baseline(a) else [1, 0] for a in algorithms]
    return alt.StrokeDash("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=dashes)


def tips(**titles: str) -> list[alt.Tooltip]:
    """Return the tooltip of a mark, from its fields to their titles."""
    shown = []
    for field, title in titles.items():
        if field == "algorithm":
            shown.append(alt.Tooltip(field, type="nominal", title=title))
        else:
            shown.append(alt.Tooltip(field, type="quantitative", title=title, format=".4~g"))
    return shown


def lambda_axis(lambdas: Sequence[float], field: str = "lambda", *, room: float = 0.0, width: int = WIDTH) -> alt.X:
    """Return the x axis of λ, with one tick per λ and `room` on both sides; a single λ is in the middle.

    Of ticks that would overlap, only the one of the larger λ is drawn.
    """
    if len(lambdas) == 1:
        room = max(room, 0.5)
    ticks: list[float] = []
    for lambda_ in reversed(lambdas):
        if not ticks or ticks[-1] - lambda_ >= TICK_GAP / width * (lambdas[-1] - lambdas[0]):
            ticks.append(lambda_)
    x = alt.X(f"{field}:Q", title="λ").axis(values=ticks[::-1], format=".6~g", labelOverlap=False)
    return x.scale(domain=[lambdas[0] - room, lambdas[-1] + room], nice=False)


def number_format(domain: tuple[float, float]) -> str:
    """Return the format of numbers along an axis, which keeps them short whatever their size.

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
    """Return the domain of an axis for values from `low` to `high`, with some room around them."""
    largest = max(abs(low), abs(high))
    if high - low <= 1e-3 * largest or not largest:
        middle = (low + high) / 2
        room = 0.1 * largest or 0.1
        return middle - room, middle + room
    room = 0.04 * (high - low)
    return low - room, high + room


def bands(
    rows: ChartRows, x: alt.X, low: alt.Y | str, paint: alt.Color, *, interpolate: Any = alt.Undefined
) -> list[alt.Chart]:
    """Return a layer with the areas from `low` to `high` of the rows; none without rows."""
    if not rows:
        return []
    mark = alt.MarkDef(type="area", opacity=0.14, interpolate=interpolate)
    return [alt.Chart(alt.InlineData(values=rows), mark=mark).encode(x=x, y=low, y2="high:Q", color=paint)]


def lone_points(rows: ChartRows, x: alt.X, y: alt.Y, paint: alt.Color, shown: list[alt.Tooltip]) -> list[alt.Chart]:
    """Return points for algorithms with a single value, whose line cannot be seen."""
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
    """Return the names of algorithms to the right of the ends of their lines, moved apart if they would overlap.

    `domain` is that of the y axis, and `height` the height of the chart in pixels. `algorithms`
    are all that are drawn, if some lines have no end. Of lines that end at the same height, the
    one with the larger `merit`, else the earlier one, is named above. The font is smaller if there
    are many names.
    """
    bottom, top = domain
    share = min(LABEL_GAP * HEIGHT / height, 1 / max(len(ends) - 1, 1))
    gap = share * (top - bottom)
    merit = merit or dict.fromkeys(ends, 0.0)
    order = sorted(reversed(list(ends)), key=lambda name: (ends[name], merit[name]))
    # Upwards, each label is at least a gap above the one below; then downwards, none is above the top.
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
    size = min(LABEL_SIZE, round(share * height / 1.3))
    text = "algorithm:N"
    labels = {name: short_label(name) for name in ends}
    if any(labels[name] != named(name) for name in ends):
        text = "label:N"
        for row, label in zip(rows, labels.values(), strict=True):
            row["label"] = label
        if max(map(len, labels.values())) > LONG_LABEL:
            size = min(size, SMALL_LABEL_SIZE)
    mark = alt.MarkDef(
        type="text",
        align="left",
        baseline="middle",
        dx=10,
        fontSize=size,
        fontWeight="bold",
        limit=LABEL_WIDTH,
    )
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q",
        y="y:Q",
        text=text,
        color=colour(algorithms or list(ends)),
        tooltip=tips(algorithm="algorithm"),
    )


def finished(
    *layers: alt.Chart, title: str, subtitle: str | Sequence[str], width: float = WIDTH, height: float = HEIGHT
) -> alt.LayerChart:
    """Return the layers as one chart, with the title and the axes that all charts have."""
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    text: str | list[str] = title
    if len(title) > TITLE_LENGTH:
        text = _wrapped(title, TITLE_LENGTH, most=2)
    heading = alt.TitleParams(
        text=text,
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
        domain=False,  # no axis line, as Q*(λ) drops along x = 0
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
