"""Charts of a `Comparison`: the paper's two figures, and what its λ and its runs say today.

The published numbers and new ones are drawn by the same functions. What cannot be drawn is refused with the reason:
no game has runs of every algorithm, say, or averages were printed without the runs behind them.
"""

import math

import numpy as np

from offtrace.report.charts import (
    alt,
    average_by_lambda_chart,
    colour,
    dash,
    end_labels,
    finished,
    lambda_axis,
    score_distribution_chart,
    tips,
)
from offtrace.report.names import counted, named
from offtrace.report.tables import known_averages
from offtrace.scores import Averages, Comparison, inter_algorithm_scores, performance_profile
from offtrace.scores.comparison import LEVEL, Stretch, Table, is_baseline

WHEN = {
    "final": "final training scores",
    "evaluation": "evaluations at ε ≈ 0",
    "early": "early training scores",
    "area": "areas under learning curves",
}
MEANS = {
    "evaluation": "Evaluation: the mean return at ε ≈ 0 at the end of a run.",
    "early": "Early: mean returns over the first tenth of a run.",
    "area": "The mean height of a run's learning curve.",
}
NUM_THRESHOLDS = 101


def score_distribution(comparison: Comparison, lambda_: float, stretch: Stretch = "final") -> alt.LayerChart:
    """Figure 1 at one λ: its left half with `early` scores, its right half with `final` ones, or evaluations."""
    table = _table(comparison, lambda_, stretch)
    return score_distribution_chart(
        inter_algorithm_scores(table.values),
        algorithms=table.algorithms,
        title=f"Score distribution of {'final scores' if comparison.printed else WHEN[stretch]}: {comparison.name}",
        subtitle=(
            "Share of games on which an algorithm's score is at least x; roughly, a higher curve is better.",
            f"{_what(comparison, table, lambda_)}. {_source(comparison, stretch)}",
        ),
    )


def average_by_lambda(comparison: Comparison, stretch: Stretch = "final") -> alt.LayerChart:
    """Figure 2: the average inter-algorithm score at every λ, with intervals where there are some."""
    averages = known_averages(comparison, "score", stretch)
    return average_by_lambda_chart(
        np.clip(averages.value, 0, 1),
        lambdas=averages.lambdas,
        algorithms=averages.algorithms,
        title=f"Average score by λ{'' if comparison.printed else f', {WHEN[stretch]}'}: {comparison.name}",
        subtitle=(
            "Compare within one λ only: each λ has its own worst (0) and best (1), and its own scale.",
            f"{_over(comparison, averages)} {_intervals(averages, comparison, 'Bars, side by side')}",
        ),
        low=averages.low,
        high=averages.high,
    )


def sensitivity(comparison: Comparison, stretch: Stretch = "final") -> alt.LayerChart:
    """The level of every algorithm against λ, on one scale for all λ; baselines, which have no λ, are level lines."""
    averages = known_averages(comparison, "level", stretch)
    if len(averages.lambdas) < 2:
        raise ValueError(f"`comparison` must have runs at 2 λ or more to compare them; got {list(averages.lambdas)}.")
    rows = [
        {"algorithm": named(name), "lambda": lambda_, "level": float(averages.value[i, a]), **_ends(averages, i, a)}
        for a, name in enumerate(averages.algorithms)
        for i, lambda_ in enumerate(averages.lambdas)
    ]
    x, paint = lambda_axis(averages.lambdas), colour(averages.algorithms)
    y = alt.Y("level:Q", title="average level").scale(domain=[0, 1], clamp=True).axis(tickCount=5)
    shown = {"algorithm": "algorithm", "lambda": "λ", "level": "average level"}
    layers, data = [], alt.InlineData(values=rows)
    banded = [row for row in rows if "low" in row]
    if banded:
        band = alt.MarkDef(type="area", opacity=0.14)
        layers.append(
            alt.Chart(alt.InlineData(values=banded), mark=band).encode(
                x=x, y=alt.Y("low:Q", title="average level"), y2="high:Q", color=paint
            )
        )
    if len(banded) == len(rows):
        shown |= {"low": "from", "high": "to"}
    layers.append(
        alt.Chart(data, mark=alt.MarkDef(type="line", strokeWidth=2.5)).encode(
            x=x, y=y, color=paint, strokeDash=dash(averages.algorithms)
        )
    )
    level = {named(name) for name in averages.algorithms if is_baseline(name)}
    with_lambda = [row for row in rows if row["algorithm"] not in level]
    if with_lambda:
        points = alt.InlineData(values=with_lambda)
        layers.append(
            alt.Chart(points, mark=alt.MarkDef(type="circle", size=60, opacity=1)).encode(
                x=x, y=y, color=paint, tooltip=tips(**shown)
            )
        )
    ends = dict(zip(averages.algorithms, averages.value[-1].tolist(), strict=True))
    return finished(
        *layers,
        end_labels(ends, x=averages.lambdas[-1]),
        title=f"How much the choice of λ matters, {WHEN[stretch]}: {comparison.name}",
        subtitle=(
            scale_words(comparison),
            f"{_over(comparison, averages)} {_intervals(averages, comparison, 'Bands')}",
        ),
    )


def profile(comparison: Comparison, lambda_: float, stretch: Stretch = "final") -> alt.LayerChart:
    """Performance profiles: the share of runs above every score, with bands that hold at each score by itself."""
    table = _table(comparison, lambda_, stretch)
    z = comparison.run_scores(lambda_, stretch)
    thresholds = np.linspace(0.0, 1.0, NUM_THRESHOLDS)
    rows, ends, merit, reason = [], {}, {}, None
    for name, scores in z.items():
        found = performance_profile(scores, thresholds, rng=np.random.default_rng(0))
        reason = reason or found.reason
        ends[name], merit[name] = float(found.share[-2]), float(found.share.mean())  # the last is often 0 for all
        for i, (threshold, share) in enumerate(zip(thresholds.tolist(), found.share.tolist(), strict=True)):
            row = {"algorithm": named(name), "score": threshold, "share": share}
            if found.low is not None and found.high is not None:
                row |= {"low": float(found.low[i]), "high": float(found.high[i])}
            rows.append(row)
    x = alt.X("score:Q", title="score τ of a run (0 = worst, 1 = best of the algorithms' means)")
    x = x.scale(domain=[0, 1], nice=False, clamp=True).axis(tickCount=5)
    y = alt.Y("share:Q", title="runs with score > τ").scale(domain=[0, 1], clamp=True).axis(format=".0%", tickCount=5)
    paint, data, layers = colour(table.algorithms), alt.InlineData(values=rows), []
    banded = [row for row in rows if "low" in row]
    if banded:
        band = alt.MarkDef(type="area", opacity=0.14, interpolate="step-after")
        layers.append(
            alt.Chart(alt.InlineData(values=banded), mark=band).encode(x=x, y="low:Q", y2="high:Q", color=paint)
        )
    shown = {"algorithm": "algorithm", "score": "score τ", "share": "runs with score > τ"}
    shown |= {"low": "from", "high": "to"} if banded else {}
    mark = alt.MarkDef(type="line", strokeWidth=2.5, interpolate="step-after")
    lines = alt.Chart(data, mark=mark).encode(
        x=x, y=y, color=paint, strokeDash=dash(table.algorithms), tooltip=tips(**shown)
    )
    if reason is None:
        bands = f"Bands: {LEVEL:.0%} bootstrap intervals over seeds."
    else:
        bands = "Bands need two runs or more of every game."
    return finished(
        *layers,
        lines,
        end_labels(ends, x=1.0, merit=merit),
        title=f"Performance profiles, {WHEN[stretch]}: {comparison.name}",
        subtitle=(
            "Share of runs whose score is above τ, every game counting alike; a higher curve is better.",
            f"{_what(comparison, table, lambda_)}. Runs beyond 0 and 1 count as 0 and 1. {bands}",
        ),
    )


# -- what can be drawn, and what is said of it ---------------------------------------------------------------


def scale_words(comparison: Comparison) -> str:
    """What 0 and 1 of a level are."""
    if comparison.anchors is not None:
        return "0 is random play and 1 the optimal policy, exactly; all points compare."
    return "Level: 0 is the worst and 1 the best mean of a game over algorithms and λ; all points compare."


def _table(comparison: Comparison, lambda_: float, stretch: Stretch) -> Table:
    table = comparison.table(lambda_, stretch)
    if len(table.algorithms) < 2:
        raise ValueError(f"`comparison` must have 2 algorithms or more; got {', '.join(table.algorithms) or 'none'}.")
    if not table.games:
        raise ValueError(
            f"`comparison` must have a game with {WHEN[stretch]} of {', '.join(table.algorithms)} at "
            f"λ = {lambda_:g}; it has none: run what is missing."
        )
    return table


def _ends(averages: Averages, i: int, a: int) -> dict[str, float]:
    """The interval, where it is known."""
    if averages.low is None or averages.high is None:
        return {}
    low, high = float(averages.low[i, a]), float(averages.high[i, a])
    if not math.isfinite(low) or not math.isfinite(high):
        return {}
    return {"low": low, "high": high}


def _what(comparison: Comparison, table: Table, lambda_: float) -> str:
    """How many games and runs, at which λ."""
    of = len(comparison.games)
    games = counted(len(table.games), "game") + (f" of {of} that have all runs" if of > len(table.games) else "")
    if comparison.printed:
        return f"{games}, λ = {lambda_:g}"
    return f"{games}, {counted(int(table.num_runs.sum()), 'run')}, λ = {lambda_:g}"


def _source(comparison: Comparison, stretch: Stretch) -> str:
    if comparison.printed:
        return "Figure 1 of Munos et al. (2016), from the final scores in its Table 3."
    if stretch == "final":
        return comparison.final_means
    return MEANS[stretch]


def _over(comparison: Comparison, averages: Averages) -> str:
    if comparison.printed and not averages.num_games:
        return "Figure 2 of Munos et al. (2016), drawn from its Table 2."
    of = len(comparison.games)
    games = f"{averages.num_games} of {of} games" if of > averages.num_games else counted(of, "game")
    return f"{games}, {counted(averages.num_runs, 'run')}."


def _intervals(averages: Averages, comparison: Comparison, what: str) -> str:
    if averages.low is not None:
        return f"{what}: {LEVEL:.0%} t intervals over {comparison.unit}."
    if comparison.printed:
        return ""
    return f"No intervals: {averages.reason}." if averages.reason else ""
