"""Charts of a `Comparison`: the paper's two figures, sensitivity to λ, and performance profiles.

The same functions draw the published numbers and new ones. A chart that cannot be drawn raises a
ValueError with the reason: no game has runs of every algorithm, say, or averages were printed
without the runs behind them.
"""

import math
from typing import Any

import numpy as np

from offtrace.report.charts import (
    ChartRows,
    alt,
    bands,
    colour,
    dash,
    end_labels,
    finished,
    lambda_axis,
    tips,
)
from offtrace.report.figures import average_by_lambda_chart, score_distribution_chart
from offtrace.report.names import counted, named
from offtrace.report.tables import known_averages
from offtrace.scores import Averages, Comparison, Profile, inter_algorithm_scores, performance_profile
from offtrace.scores.comparison import LEVEL, Stretch, Table, is_baseline

SCORE_TITLES = {
    "final": "final training scores",
    "evaluation": "evaluations at ε ≈ 0",
    "early": "early training scores",
    "area": "areas under learning curves",
}
SCORE_MEANINGS = {
    "evaluation": "Evaluation: mean return at ε ≈ 0 at the end of a run.",
    "early": "Early: mean return over the first tenth of a run.",
    "area": "Area: mean height of the learning curve of a run.",
}
NUM_THRESHOLDS = 101


def score_distribution(comparison: Comparison, lambda_: float, stretch: Stretch = "final") -> alt.LayerChart:
    """Return Figure 1 at one λ: its left half with `early` scores, its right half with `final` ones."""
    table = _table(comparison, lambda_, stretch)
    scores = "final scores" if comparison.printed else SCORE_TITLES[stretch]
    return score_distribution_chart(
        inter_algorithm_scores(table.values),
        algorithms=table.algorithms,
        title=f"Score distribution, {scores}: {comparison.name}",
        subtitle=(
            "Share of games on which an algorithm's score is at least x; roughly, a higher curve is better.",
            f"{_size(comparison, table, lambda_)}. {_source(comparison, stretch)}",
        ),
    )


def average_by_lambda(comparison: Comparison, stretch: Stretch = "final") -> alt.LayerChart:
    """Return Figure 2: the average inter-algorithm score at every λ, with intervals if there are any."""
    averages = known_averages(comparison, "score", stretch)
    scores = "" if comparison.printed else f", {SCORE_TITLES[stretch]}"
    return average_by_lambda_chart(
        np.clip(averages.value, 0, 1),
        lambdas=averages.lambdas,
        algorithms=averages.algorithms,
        title=f"Average score by λ{scores}: {comparison.name}",
        subtitle=(
            "Compare within one λ only: at each λ, 0 is the worst and 1 the best algorithm of a game.",
            f"{_over(comparison, averages)} {_intervals(averages, comparison, 'Bars')}",
        ),
        low=averages.low,
        high=averages.high,
    )


def sensitivity(comparison: Comparison, stretch: Stretch = "final") -> alt.LayerChart:
    """Return a chart of levels against λ. Baselines, which have no λ, are horizontal lines."""
    averages = known_averages(comparison, "level", stretch)
    if len(averages.lambdas) < 2:
        raise ValueError(
            f"`comparison` must have runs at 2 or more values of λ to compare them; got {list(averages.lambdas)}."
        )
    rows = [
        {"algorithm": named(name), "lambda": lambda_, "level": float(averages.value[i, a]), **_ends(averages, i, a)}
        for a, name in enumerate(averages.algorithms)
        for i, lambda_ in enumerate(averages.lambdas)
    ]
    rows_with_band = [row for row in rows if "low" in row]
    tooltip = {"algorithm": "algorithm", "lambda": "λ", "level": "average level"}
    if len(rows_with_band) == len(rows):
        tooltip |= {"low": "from", "high": "to"}
    x = lambda_axis(averages.lambdas)
    y = alt.Y("level:Q", title="average level").scale(domain=[0, 1], clamp=True).axis(tickCount=5)
    paint = colour(averages.algorithms)
    layers = bands(rows_with_band, x, alt.Y("low:Q", title="average level"), paint)
    line = alt.MarkDef(type="line", strokeWidth=2.5)
    layers.append(
        alt.Chart(alt.InlineData(values=rows), mark=line).encode(
            x=x, y=y, color=paint, strokeDash=dash(averages.algorithms)
        )
    )
    baselines = {named(name) for name in averages.algorithms if is_baseline(name)}
    with_lambda = [row for row in rows if row["algorithm"] not in baselines]
    if with_lambda:
        point = alt.MarkDef(type="circle", size=60, opacity=1)
        layers.append(
            alt.Chart(alt.InlineData(values=with_lambda), mark=point).encode(
                x=x, y=y, color=paint, tooltip=tips(**tooltip)
            )
        )
    ends = dict(zip(averages.algorithms, averages.value[-1].tolist(), strict=True))
    return finished(
        *layers,
        end_labels(ends, x=averages.lambdas[-1]),
        title=f"Sensitivity to λ, {SCORE_TITLES[stretch]}: {comparison.name}",
        subtitle=(
            scale_words(comparison),
            f"{_over(comparison, averages)} {_intervals(averages, comparison, 'Bands')}",
        ),
    )


def profile(comparison: Comparison, lambda_: float, stretch: Stretch = "final") -> alt.LayerChart:
    """Return performance profiles: the share of runs above every score, with pointwise bands."""
    table = _table(comparison, lambda_, stretch)
    thresholds = np.linspace(0.0, 1.0, NUM_THRESHOLDS)
    profiles = {
        name: performance_profile(scores, thresholds, rng=np.random.default_rng(0))
        for name, scores in comparison.run_scores(lambda_, stretch).items()
    }
    rows = [row for name, found in profiles.items() for row in _profile_rows(name, found)]
    rows_with_band = [row for row in rows if "low" in row]
    tooltip = {"algorithm": "algorithm", "score": "score τ", "share": "runs with score > τ"}
    bands_note = "Bands need two or more runs per game."
    if rows_with_band:
        tooltip |= {"low": "from", "high": "to"}
    if all(found.reason is None for found in profiles.values()):
        bands_note = f"Bands: {LEVEL:.0%} bootstrap intervals over seeds."
    scale = "0 = worst, 1 = best mean of an algorithm"
    if comparison.anchors is not None:
        scale = "0 = random play, 1 = the optimal policy"
    x = alt.X("score:Q", title=f"score τ of a run ({scale})")
    x = x.scale(domain=[0, 1], nice=False, clamp=True).axis(tickCount=5)
    y = alt.Y("share:Q", title="runs with score > τ")
    y = y.scale(domain=[0, 1], clamp=True).axis(format=".0%", tickCount=5)
    paint = colour(table.algorithms)
    mark = alt.MarkDef(type="line", strokeWidth=2.5, interpolate="step-after")
    lines = alt.Chart(alt.InlineData(values=rows), mark=mark).encode(
        x=x, y=y, color=paint, strokeDash=dash(table.algorithms), tooltip=tips(**tooltip)
    )
    ends = {name: float(found.share[-2]) for name, found in profiles.items()}  # the last is often 0 for all
    merit = {name: float(found.share.mean()) for name, found in profiles.items()}
    return finished(
        *bands(rows_with_band, x, "low:Q", paint, interpolate="step-after"),
        lines,
        end_labels(ends, x=1.0, merit=merit),
        title=f"Performance profiles, {SCORE_TITLES[stretch]}: {comparison.name}",
        subtitle=(
            "Share of runs with a score above τ; every game counts the same. A higher curve is better.",
            f"{_size(comparison, table, lambda_)}. Scores are clipped to [0, 1]. {bands_note}",
        ),
    )


def _profile_rows(name: str, found: Profile) -> ChartRows:
    rows = []
    for i, (threshold, share) in enumerate(zip(found.thresholds.tolist(), found.share.tolist(), strict=True)):
        row: dict[str, Any] = {"algorithm": named(name), "score": threshold, "share": share}
        if found.low is not None and found.high is not None:
            row |= {"low": float(found.low[i]), "high": float(found.high[i])}
        rows.append(row)
    return rows


# -- data and captions ---------------------------------------------------------------------------------------


def scale_words(comparison: Comparison) -> str:
    """Return a sentence on the meaning of 0 and 1 for levels."""
    if comparison.anchors is not None:
        return "All λ share one exact scale: 0 is random play and 1 the optimal policy."
    return "All λ share one scale: 0 is the worst and 1 the best mean of a game over algorithms and λ."


def _table(comparison: Comparison, lambda_: float, stretch: Stretch) -> Table:
    table = comparison.table(lambda_, stretch)
    if len(table.algorithms) < 2:
        names = ", ".join(table.algorithms) or "none"
        raise ValueError(f"`comparison` must have 2 or more algorithms; got {names}.")
    if not table.games:
        raise ValueError(
            f"`comparison` must have a game with {SCORE_TITLES[stretch]} of {', '.join(table.algorithms)} at "
            f"λ = {lambda_:g}; got none. Run what is missing."
        )
    return table


def _ends(averages: Averages, i: int, a: int) -> dict[str, float]:
    """Return the ends of an interval; empty if there is none."""
    if averages.low is None or averages.high is None:
        return {}
    low = float(averages.low[i, a])
    high = float(averages.high[i, a])
    if not math.isfinite(low) or not math.isfinite(high):
        return {}
    return {"low": low, "high": high}


def _size(comparison: Comparison, table: Table, lambda_: float) -> str:
    """Return the number of games and runs, and the λ."""
    games = counted(len(table.games), "game")
    if len(comparison.games) > len(table.games):
        games = f"{len(table.games)} of {len(comparison.games)} games (those with all runs)"
    if comparison.printed:
        return f"{games}, λ = {lambda_:g}"
    return f"{games}, {counted(int(table.num_runs.sum()), 'run')}, λ = {lambda_:g}"


def _source(comparison: Comparison, stretch: Stretch) -> str:
    if comparison.printed:
        return "Figure 1 of Munos et al. (2016), from the final scores in its Table 3."
    if stretch == "final":
        return comparison.final_means
    return SCORE_MEANINGS[stretch]


def _over(comparison: Comparison, averages: Averages) -> str:
    if comparison.printed and not averages.num_games:
        return "Figure 2 of Munos et al. (2016), drawn from its Table 2."
    games = counted(len(comparison.games), "game")
    if len(comparison.games) > averages.num_games:
        games = f"{averages.num_games} of {games}"
    return f"{games}, {counted(averages.num_runs, 'run')}."


def _intervals(averages: Averages, comparison: Comparison, what: str) -> str:
    if averages.low is not None:
        return f"{what}: {LEVEL:.0%} t intervals over {comparison.unit}."
    if comparison.printed or not averages.reason:
        return ""
    return f"No intervals: {averages.reason}."
