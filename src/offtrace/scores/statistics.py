"""Aggregate statistics of a comparison at one λ: mean, IQM, optimality gap, probability of improvement, area."""

from typing import TYPE_CHECKING

import numpy as np

from offtrace.scores.aggregates import iqm, optimality_gap
from offtrace.scores.intervals import Interval, interval, probability_of_improvement
from offtrace.scores.keys import Stretch
from offtrace.scores.summaries import SINGLE_RUN, Statistics

if TYPE_CHECKING:
    from offtrace.scores.comparison import Comparison


def statistics_at(comparison: "Comparison", lambda_: float, stretch: Stretch) -> list[Statistics]:
    """Return one entry per algorithm; an empty list if no game is complete. Areas are of training returns."""
    z = comparison.run_scores(lambda_, stretch)
    if not z:
        return []
    means = _means(comparison, lambda_, stretch)
    areas: dict[str, Interval] = {}
    if stretch == "final":
        areas = _means(comparison, lambda_, "area")
    raw = {name: {game: comparison.cell(game, name, lambda_, stretch) for game in z[name]} for name in z}
    rows = []
    for name in comparison.algorithms:
        improvement = None
        if comparison.baseline is not None and comparison.baseline != name:
            baseline = raw[comparison.baseline]
            improvement = probability_of_improvement(raw[name], baseline, rng=np.random.default_rng(0))
        middle = interval(z[name], iqm, rng=np.random.default_rng(0))
        gap = interval(z[name], optimality_gap, rng=np.random.default_rng(0))
        rows.append(Statistics(name, means[name], middle, gap, improvement, areas.get(name)))
    return rows


def _means(comparison: "Comparison", lambda_: float, stretch: Stretch) -> dict[str, Interval]:
    """Return the mean of each algorithm; nothing if a compared game lacks this score."""
    games = comparison.complete_games([lambda_], stretch)
    if not games or (stretch == "area" and not set(comparison.complete_games([lambda_])) <= set(games)):
        return {}
    averages = comparison.averages("score", stretch, [lambda_])
    means = {}
    for a, name in enumerate(averages.algorithms):
        sizes = [comparison.cell(game, name, lambda_, stretch).size for game in games]
        low = high = None
        reason = averages.reason
        if min(sizes) < 2:
            # These statistics vary over seeds, even where the averages have intervals over games.
            reason = SINGLE_RUN
        elif averages.low is not None and averages.high is not None:
            low = float(averages.low[0, a])
            high = float(averages.high[0, a])
        means[name] = Interval(float(averages.value[0, a]), low, high, sum(sizes), reason)
    return means
