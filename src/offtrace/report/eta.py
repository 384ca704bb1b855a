"""Maps of η(x, a) of a few traces over a grid world, which show where the contraction is slow."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from offtrace.report.charts import alt, finished
from offtrace.report.safety import GREY, INK, subject, texts
from offtrace.safety import BY_THEOREM, Analysis, SafetyRow
from offtrace.traces import WITHOUT_LAMBDA

DEFAULT_TRACES = ("one_step", "retrace", "rbis", "tree_backup", "recursive_retrace", "q_sigma")
NUM_MAPS = 4
# In pixels:
MAX_MAP_SIDE = 560
MAX_WIDTH = 780
"""Width of all maps in a row."""
MAX_HEIGHT = 1400
"""Height of all rows of maps."""
GAP = 36
"""Distance between two maps."""
HEAD = 56
"""Height of a map's heading."""
FOOT = 62
"""Height of the colour scale below the maps."""
MIN_MAP_WIDTH = 250
"""Width of a map's name."""
SAME_MAP = 5e-4
"""Maps that differ by no more than this show the same numbers, and are drawn once."""


def eta_map(
    analysis: Analysis, *, traces: Sequence[str] | None = None, lambda_: float | None = None
) -> alt.LayerChart:
    """Return maps of max_a η(x, a) over a grid world, one per trace: |RQ − Q^π| ≤ η ‖Q − Q^π‖ (Remark 1).

    `traces` are by default up to four that differ, at `lambda_`, by default the largest of the
    table. Only rows that are safe by theorem can be drawn: otherwise η is not a bound. Maps that
    look the same are drawn once. Cells where no step is taken are grey: walls, terminal cells, and
    cells that μ never enters from the start.
    """
    if analysis.mdp.grid is None:
        raise ValueError("`analysis` must be of an MDP with a map; got none. Give the MDP `grid=(rows, columns)`.")
    num_rows, num_columns = analysis.mdp.grid
    entered = _entered(analysis)
    maps = _maps(analysis, traces, lambda_, entered)
    side, abreast = _layout(num_rows, num_columns, len(maps))
    width = max(num_columns * side, MIN_MAP_WIDTH)
    height = num_rows * side
    above = 30 if any(same for _, same in maps) else 14
    cells = []
    words = []
    for place, (row, same) in enumerate(maps):
        left = place % abreast * (width + GAP)
        top = place // abreast * (height + HEAD) + HEAD
        eta = np.asarray(row.eta).max(1)
        heading = f"{row.label}: at most {abs(eta[entered].max()):.3f}"
        words.append({"x": left, "y": top - above, "text": heading, "colour": INK, "size": 14})
        if same:
            note = f"and {', '.join(same)}"
            words.append({"x": left, "y": top - 12, "text": note, "colour": GREY, "size": 12})
        for x in range(analysis.mdp.num_states):
            across = left + x % num_columns * side
            down = top + x // num_columns * side
            shown = float(eta[x]) if entered[x] else None
            where = {"x": across, "x2": across + side, "y": down, "y2": down + side}
            cells.append({"trace": row.trace, "lambda": row.lambda_, "state": x, "eta": shown, **where})
    size = abreast * width + (abreast - 1) * GAP, -(-len(maps) // abreast) * (height + HEAD) + FOOT
    layers = _cells(cells, words, size=size, side=side, width=width)
    subtitle = ["After one step of R, the error at (x, a) is at most η(x, a) times the largest error. Worst action."]
    if not entered.all():
        subtitle.append("Grey: no step is taken from there.")
    title = f"Where the contraction is slow: {subject(analysis)}"
    chart = finished(*layers, title=title, subtitle=subtitle, width=size[0], height=size[1])
    return chart.resolve_scale(color="independent")


def _maps(
    analysis: Analysis, traces: Sequence[str] | None, lambda_: float | None, entered: np.ndarray
) -> list[tuple[SafetyRow, list[str]]]:
    """Return the rows to draw, each with the names of others that look the same."""
    in_table = {row.trace for row in analysis.rows}
    for name in traces or ():
        if name not in in_table:
            raise ValueError(f"`traces` must be among {', '.join(sorted(in_table))}; got {name!r}.")
    found: list[tuple[SafetyRow, list[str]]] = []
    for name in traces or DEFAULT_TRACES:
        rows = [
            row
            for row in analysis.rows
            if row.trace == name and (name in WITHOUT_LAMBDA or lambda_ in (None, row.lambda_))
        ]
        row = max(rows, key=lambda row: row.lambda_ or 0.0, default=None)
        if row is None or row.eta is None or row.verdict != BY_THEOREM:
            if traces is not None:
                at = "" if lambda_ is None else f" at λ = {lambda_:g}"
                raise ValueError(f"`traces` must be safe by theorem, as η is a bound only then; got {name}{at}.")
            continue
        same_maps = [same for drawn, same in found if _look_the_same(drawn, row, entered)]
        if same_maps:
            same_maps[0].append(name)
        else:
            found.append((row, []))
    if not found:
        raise ValueError("`analysis` must have a row that is safe by theorem; got none. Add one_step or retrace.")
    shown = found[: NUM_MAPS if traces is None else None]
    return sorted(shown, key=lambda one: -np.asarray(one[0].eta)[entered].max())


def _layout(num_rows: int, num_columns: int, num_maps: int) -> tuple[float, int]:
    """Return the side of a cell in pixels and the number of maps in a row; cells shrink if all would be too tall."""
    side = min(56.0, MAX_MAP_SIDE / num_columns, MAX_MAP_SIDE / num_rows)
    while True:
        if side >= 4:
            side = math.floor(side)
        width = max(num_columns * side, MIN_MAP_WIDTH)
        fitting = max(1, int((MAX_WIDTH + GAP) // (width + GAP)))
        abreast = min(fitting, num_maps)
        if num_maps == 4 and fitting >= 2:
            abreast = 2
        height = math.ceil(num_maps / abreast) * (num_rows * side + HEAD)
        if height <= MAX_HEIGHT or side * max(num_rows, num_columns) < HEAD:
            return side, abreast
        side *= 0.9


def _look_the_same(one: SafetyRow, other: SafetyRow, entered: np.ndarray) -> bool:
    difference = abs(np.asarray(one.eta).max(1) - np.asarray(other.eta).max(1))
    return bool(difference[entered].max(initial=0) <= SAME_MAP)


def _entered(analysis: Analysis) -> np.ndarray:
    """Return where steps are taken, (X,): the start states, and what μ reaches from them within an episode."""
    mdp = analysis.mdp
    is_possible = (mdp.continuing > 0) & (analysis.mu.ravel()[mdp.rows] > 0)
    origin = mdp.rows[is_possible] // mdp.num_actions
    successor = mdp.successor[is_possible]
    entered = mdp.start > 0
    count = -1
    while entered.sum() > count:
        count = entered.sum()
        entered = entered.copy()
        entered[successor[entered[origin]]] = True
    return entered


def _cells(
    cells: list[dict[str, Any]], words: list[dict[str, Any]], *, size: tuple[float, float], side: float, width: float
) -> list[alt.Chart]:
    """Return the layers of the maps, in pixels with y downwards."""
    x = alt.X("x:Q", axis=None).scale(domain=[0, size[0]], nice=False)
    y = alt.Y("y:Q", axis=None).scale(domain=[size[1], 0], nice=False)
    known = [cell for cell in cells if cell["eta"] is not None]
    unknown = [cell for cell in cells if cell["eta"] is None]
    tenths = [10 * cell["eta"] for cell in known]
    low = max(0, min(9, math.floor(min(tenths))))
    high = max(1, math.ceil(max(tenths) - 1e-9))
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
