"""The paper's two figures of results as Altair charts, and how to write them as PNG, SVG and PDF, offline.

`figure_1` and `figure_2` draw the published numbers; `score_distribution_chart` and `average_by_lambda_chart`
draw anybody's in the same way. The paper's four algorithms keep their names and colours from chart to chart.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from offtrace.experiments.tabular import TabularResults
from offtrace.scores import distribution_steps, inter_algorithm_scores, published_table_2, published_table_3

try:
    import altair as alt
    import vl_convert  # noqa: F401  (Altair writes files with it; better missed here than after the drawing)
except ImportError as missing:
    raise ImportError(f"charts need `{missing.name}`: pip install 'offtrace[report]'") from missing

FORMATS = ("png", "svg", "pdf")
WIDTH, HEIGHT = 540, 340
LABEL_SIZE = 14
LABEL_GAP = 1.3 * LABEL_SIZE / HEIGHT  # in units of the y axis, which always runs from 0 to 1

NAMES = {
    "retrace": "Retrace(λ)",
    "tree_backup": "TB(λ)",
    "q_star": "Q*(λ)",
    "q_lambda": "Q(λ)",
    "dqn": "DQN",
    "one_step": "one-step",
}
# Okabe and Ito's palette: distinct with every common colour blindness. The baseline is grey, and dashed.
COLOURS = {
    "retrace": "#0072B2",
    "tree_backup": "#D55E00",
    "q_star": "#009E73",
    "q_lambda": "#009E73",
    "dqn": "#555555",
    "one_step": "#555555",
}
OTHER_COLOURS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000")
BASELINES = ("dqn", "one_step")


def figure_1() -> alt.LayerChart:
    """Figure 1 of the paper, recomputed from the final scores that its Table 3 prints."""
    table = published_table_3()
    return score_distribution_chart(
        inter_algorithm_scores(table.scores),
        algorithms=table.algorithms,
        title=f"Inter-algorithm score distribution on {len(table.games)} Atari games",
        subtitle=(
            "Share of games on which an algorithm's score is at least x; roughly, a higher curve is better.",
            "Figure 1 of Munos et al. (2016), from the final scores in its Table 3 (λ = 1; DQN: λ = 0).",
        ),
    )


def figure_2() -> alt.LayerChart:
    """Figure 2 of the paper: the average scores by λ that its Table 2 prints."""
    table = published_table_2()
    return average_by_lambda_chart(
        table.averages,
        lambdas=table.lambdas,
        algorithms=table.algorithms,
        title="Average inter-algorithm score by λ on 60 Atari games",
        subtitle=(
            "Compare within one λ only: each has its own worst (0) and best (1), so averages are not",
            "comparable across λ. Figure 2 of Munos et al. (2016), drawn from its Table 2.",
        ),
    )


def tabular_figure_1(results: TabularResults) -> alt.LayerChart:
    """Figure 1 in the tabular world: the score distribution at λ = 1."""
    return score_distribution_chart(
        results.inter_algorithm_scores()[-1],
        algorithms=results.algorithms,
        title=f"Inter-algorithm score distribution on {len(results.study.games)} small MDPs",
        subtitle=(
            "Share of MDPs on which an algorithm's score is at least x; roughly, a higher curve is better.",
            f"Tabular learning by Eq. 7, λ = {results.study.lambdas[-1]:g}, {results.study.num_seeds} seeds, "
            "off-policy (ε 0.5 against 0.1).",
        ),
    )


def tabular_figure_2(results: TabularResults) -> alt.LayerChart:
    """Figure 2 in the tabular world, on one scale for all λ."""
    levels = np.array([[cell.value for cell in row] for row in results.level_intervals()]).T
    return average_by_lambda_chart(
        np.clip(levels, 0, 1),
        lambdas=results.study.lambdas,
        algorithms=tuple(name for name in results.algorithms if name != "one_step"),
        title=f"What each λ earns on {len(results.study.games)} small MDPs",
        subtitle=(
            "0 is the worst and 1 the best mean return of a game over algorithms and λ; averaged over games.",
            f"Tabular learning by Eq. 7, {results.study.num_seeds} seeds. At λ = 0 all three are one-step learning.",
        ),
        y_title="average level",
    )


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
        x=x.scale(domain=[0, 1]).axis(tickCount=5),
        y=y.scale(domain=[0, 1]),
        color=colour(algorithms),
        strokeDash=_dash(algorithms),
    )
    labels = _end_labels(algorithms, x=1.0, heights=[float(points.f[-1]) for points in steps])
    return finished(lines, labels, title=title, subtitle=subtitle)


def average_by_lambda_chart(
    averages: ArrayLike,
    *,
    lambdas: ArrayLike,
    algorithms: Sequence[str],
    title: str,
    subtitle: str | Sequence[str],
    y_title: str = "average inter-algorithm score",
) -> alt.LayerChart:
    """The average inter-algorithm score of every algorithm at every λ (App. F, Fig. 2).

    Shapes: `averages` (lambdas, algorithms) in [0, 1], `lambdas` (lambdas,), increasing.

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
    rows = [
        {"algorithm": named(algorithm), "lambda": lambda_, "average": average}
        for algorithm, column in zip(algorithms, averages.T.tolist(), strict=True)
        for lambda_, average in zip(lambdas.tolist(), column, strict=True)
    ]
    x = alt.X("lambda:Q", title="λ").axis(values=lambdas.tolist(), format="~g")
    x = x.scale(domain=[min(0.0, float(lambdas[0])), max(1.0, float(lambdas[-1]))], nice=False)
    y = alt.Y("average:Q", title=y_title).scale(domain=[0, 1]).axis(tickCount=5)
    data, paint = alt.InlineData(values=rows), colour(algorithms)
    lines = alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=1.5, opacity=0.45)).encode(
        x=x, y=y, color=paint, strokeDash=_dash(algorithms)
    )
    points = alt.Chart(data, mark=alt.MarkDef(type="circle", size=80, opacity=1)).encode(
        x=x, y=y, color=paint, tooltip=["algorithm:N", "lambda:Q", "average:Q"]
    )
    labels = _end_labels(algorithms, x=float(lambdas[-1]), heights=averages[-1].tolist())
    return finished(lines, points, labels, title=title, subtitle=subtitle)


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


def named(algorithm: str) -> str:
    return NAMES.get(algorithm, algorithm)


def _check_algorithms(algorithms: Sequence[str], *, num_columns: int, name: str) -> None:
    if len(algorithms) != num_columns or len(set(algorithms)) != num_columns:
        raise ValueError(
            f"`algorithms` must name each of the {num_columns} columns of `{name}` once, "
            f"got {list(algorithms)}; give {num_columns} different names"
        )


def colour(algorithms: Sequence[str]) -> alt.Color:
    free = cycle([*OTHER_COLOURS, *(colour for known, colour in COLOURS.items() if known not in algorithms)])
    colours = [COLOURS[a] if a in COLOURS else next(free) for a in algorithms]
    return alt.Color("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=colours)


def _dash(algorithms: Sequence[str]) -> alt.StrokeDash:
    dashes = [[6, 3] if a in BASELINES else [1, 0] for a in algorithms]
    return alt.StrokeDash("algorithm:N", legend=None).scale(domain=[named(a) for a in algorithms], range=dashes)


def _end_labels(algorithms: Sequence[str], *, x: float, heights: Sequence[float]) -> alt.Chart:
    """The algorithms' names right of where their lines end, moved apart where they would overlap."""
    order = np.argsort(heights, kind="stable").tolist()
    placed = dict.fromkeys(order, 0.0)
    lowest = 0.0
    for column in order:
        placed[column] = max(heights[column], lowest)
        lowest = placed[column] + LABEL_GAP
    highest = 1.0
    for column in reversed(order):
        placed[column] = min(placed[column], highest)
        highest = placed[column] - LABEL_GAP
    rows = [{"algorithm": named(a), "x": x, "y": placed[column]} for column, a in enumerate(algorithms)]
    mark = alt.MarkDef(type="text", align="left", baseline="middle", dx=10, fontSize=LABEL_SIZE, fontWeight="bold")
    return alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x="x:Q", y="y:Q", text="algorithm:N", color=colour(algorithms)
    )


def finished(
    *layers: alt.Chart, title: str, subtitle: str | Sequence[str], width: int = WIDTH, height: int = HEIGHT
) -> alt.LayerChart:
    """The layers as one picture, with the title and the axes that all charts have."""
    lines = [subtitle] if isinstance(subtitle, str) else list(subtitle)
    heading = alt.TitleParams(
        text=title,
        subtitle=lines,
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
