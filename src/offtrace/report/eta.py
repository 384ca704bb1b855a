"""η(x, a) of a few traces over a grid world: where on the map the contraction is slow."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace.report.charts import alt, finished
from offtrace.report.safety import GREY, INK, subject, texts
from offtrace.safety import BY_THEOREM, Analysis, SafetyRow

TELLING = ("one_step", "retrace", "rbis", "tree_backup", "recursive_retrace", "q_sigma")
NUM_MAPS = 4
LONGEST, WIDEST, GAP, HEAD, FOOT = 560, 780, 36, 56, 62
"""Pixels: the longer side of a map, all maps abreast, between two, above each for its name, below for the scale."""
TALLEST = 1400
"""Pixels: all maps, one below the other."""
NARROWEST = 250
"""Pixels that a map's name needs."""
ALIKE = 5e-4
"""Maps that differ by no more than this show the same numbers, and are drawn once."""


def eta_map(
    analysis: Analysis, *, traces: Sequence[str] | None = None, lambda_: float | None = None
) -> alt.LayerChart:
    """max_a η(x, a) over a grid world, a map for each of a few traces: |RQ − Q^π| ≤ η ‖Q − Q^π‖ (Remark 1).

    `traces` are up to four telling ones unless given, at `lambda_`, the largest of the table unless given. Only rows
    that are safe by theorem can be drawn: elsewhere η bounds nothing. Maps that look the same are drawn once. Cells
    where no step is taken are left grey: walls, ends, and what μ never enters from the first states.
    """
    if analysis.mdp.grid is None:
        raise ValueError("`analysis` must be of an MDP with a map; give the MDP `grid=(rows, columns)`.")
    num_rows, num_columns = analysis.mdp.grid
    entered = _entered(analysis)
    maps = _maps(analysis, traces, lambda_, entered)
    side, abreast = _layout(num_rows, num_columns, len(maps))
    width, height = max(num_columns * side, NARROWEST), num_rows * side
    above = 30 if any(same for _, same in maps) else 14
    cells, words = [], []
    for place, (row, same) in enumerate(maps):
        left, top = place % abreast * (width + GAP), place // abreast * (height + HEAD) + HEAD
        eta = np.asarray(row.eta).max(1)
        label = row.trace if row.trace == "one_step" else row.label
        heading = f"{label}: {abs(eta[entered].max()):.3f} or less"
        words.append({"x": left, "y": top - above, "text": heading, "colour": INK, "size": 14})
        if same:
            note = f"and {', '.join(same)}"
            words.append({"x": left, "y": top - 12, "text": note, "colour": GREY, "size": 12})
        for x in range(analysis.mdp.num_states):
            across, down = left + x % num_columns * side, top + x // num_columns * side
            shown = float(eta[x]) if entered[x] else None
            where = {"x": across, "x2": across + side, "y": down, "y2": down + side}
            cells.append({"trace": row.trace, "lambda": row.lambda_, "state": x, "eta": shown, **where})
    size = abreast * width + (abreast - 1) * GAP, -(-len(maps) // abreast) * (height + HEAD) + FOOT
    layers = _cells(cells, words, size=size, side=side, width=width)
    subtitle = ["One step of R leaves at most η(x, a) of the largest error at (x, a); the worst action is shown."]
    if not entered.all():
        subtitle.append("Grey: no step is taken there.")
    title = f"Where the contraction is slow: {subject(analysis)}"
    chart = finished(*layers, title=title, subtitle=subtitle, width=size[0], height=size[1])
    return chart.resolve_scale(color="independent")


def _maps(
    analysis: Analysis, traces: Sequence[str] | None, lambda_: float | None, entered: np.ndarray
) -> list[tuple[SafetyRow, list[str]]]:
    """Rows to draw, each with the names of others that look the same."""
    known = {row.trace for row in analysis.rows}
    for name in traces or ():
        if name not in known:
            raise ValueError(f"`traces` must be in the table: {', '.join(sorted(known))}; got {name!r}.")
    found: list[tuple[SafetyRow, list[str]]] = []
    for name in traces or TELLING:
        rows = [
            row
            for row in analysis.rows
            if row.trace == name and (name == "one_step" or lambda_ in (None, row.lambda_))
        ]
        row = max(rows, key=lambda row: row.lambda_ or 0.0, default=None)
        if row is None or row.eta is None or row.verdict != BY_THEOREM:
            if traces is not None:
                at = "" if lambda_ is None else f" at λ = {lambda_:g}"
                raise ValueError(f"`traces` must be safe by theorem for η to bound anything; {name}{at} is not.")
            continue
        alike = [same for drawn, same in found if _alike(drawn, row, entered)]
        if alike:
            alike[0].append(name)
        else:
            found.append((row, []))
    if not found:
        raise ValueError("`analysis` must have a row that is safe by theorem; add one_step or retrace.")
    shown = found[: NUM_MAPS if traces is None else None]
    return sorted(shown, key=lambda one: -np.asarray(one[0].eta)[entered].max())


def _layout(num_rows: int, num_columns: int, num_maps: int) -> tuple[float, int]:
    """The side of a cell in pixels, and how many maps stand abreast; smaller cells where all would be too tall."""
    side = min(56.0, LONGEST / num_columns, LONGEST / num_rows)
    while True:
        side = math.floor(side) if side >= 4 else side
        width = max(num_columns * side, NARROWEST)
        fitting = max(1, int((WIDEST + GAP) // (width + GAP)))
        abreast = 2 if num_maps == 4 and fitting >= 2 else min(fitting, num_maps)
        height = math.ceil(num_maps / abreast) * (num_rows * side + HEAD)
        if height <= TALLEST or side * max(num_rows, num_columns) < HEAD:
            return side, abreast
        side *= 0.9


def _alike(one: SafetyRow, other: SafetyRow, entered: np.ndarray) -> bool:
    return bool(abs(np.asarray(one.eta).max(1) - np.asarray(other.eta).max(1))[entered].max(initial=0) <= ALIKE)


def _entered(analysis: Analysis) -> np.ndarray:
    """(X,) where a step may be taken: the first states, and what μ gets to from them before an episode ends."""
    mdp = analysis.mdp
    going = (mdp.continuing > 0) & (analysis.mu.ravel()[mdp.rows] > 0)
    origin, successor = mdp.rows[going] // mdp.num_actions, mdp.successor[going]
    entered, count = mdp.start > 0, -1
    while entered.sum() > count:
        count = entered.sum()
        entered = entered.copy()
        entered[successor[entered[origin]]] = True
    return entered


def _cells(
    cells: list[dict[str, Any]], words: list[dict[str, Any]], *, size: tuple[float, float], side: float, width: float
) -> list[alt.Chart]:
    """In pixels, y downwards."""
    x = alt.X("x:Q", axis=None).scale(domain=[0, size[0]], nice=False)
    y = alt.Y("y:Q", axis=None).scale(domain=[size[1], 0], nice=False)
    known = [cell for cell in cells if cell["eta"] is not None]
    unknown = [cell for cell in cells if cell["eta"] is None]
    tenths = [10 * cell["eta"] for cell in known]
    low, high = max(0, min(9, math.floor(min(tenths)))), max(1, math.ceil(max(tenths) - 1e-9))
    legend = alt.Legend(
        title="η",
        orient="none",
        legendX=0,
        legendY=size[1] - FOOT + 24,
        direction="horizontal",
        gradientLength=min(size[0], 260),
        gradientThickness=12,
        titleOrient="left",
        titleFontSize=14,
        labelFontSize=12,
        values=[tenth / 10 for tenth in range(low, high + 1, 2 if high - low > 5 else 1)],
    )
    bright = (0.55 * low + 0.45 * high) / 10
    shade = alt.Color("eta:Q", legend=legend).scale(scheme="viridis", domain=[low / 10, high / 10], reverse=True)
    edges: dict[str, Any] = {"stroke": "white", "strokeWidth": 1.5 if side >= 12 else 0, "opacity": 1}
    at: dict[str, Any] = {"x": x, "x2": "x2:Q", "y": y, "y2": "y2:Q"}
    tooltip = [alt.Tooltip(name, type="nominal") for name in ("trace", "lambda", "state", "eta")]
    layers = [
        alt.Chart(alt.InlineData(values=known), mark=alt.MarkDef(type="rect", **edges)).encode(
            **at, color=shade, tooltip=tooltip
        )
    ]
    if unknown:
        mark = alt.MarkDef(type="rect", color="#E3E3E3", **edges)
        layers.append(alt.Chart(alt.InlineData(values=unknown), mark=mark).encode(**at))
    if side >= 24:
        numbers = [
            {
                "x": cell["x"] + side / 2,
                "y": cell["y"] + side / 2,
                "text": f"{abs(round(cell['eta'], 2)):.2f}",
                "colour": "white" if cell["eta"] > bright else INK,
            }
            for cell in known
        ]
        mark = alt.MarkDef(type="text", baseline="middle", fontSize=min(15, round(side * 0.36)))
        layers.append(texts(numbers, mark))
    names = alt.MarkDef(type="text", align="left", baseline="middle", limit=width + GAP / 2)
    layers.append(texts(words, names, size=alt.Size("size:Q").scale(None)))
    return layers
