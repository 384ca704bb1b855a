"""Today's statistics of a comparison at one λ: mean, IQM, optimality gap, probability of improvement and area."""

from typing import TYPE_CHECKING

import numpy as np

from offtrace.scores.estimates import iqm, optimality_gap
from offtrace.scores.intervals import Interval, interval, probability_of_improvement
from offtrace.scores.layout import SINGLE, Statistics, Stretch

if TYPE_CHECKING:
    from offtrace.scores.comparison import Comparison


def statistics_of(comparison: "Comparison", lambda_: float, stretch: Stretch) -> list[Statistics]:
    """One row for each algorithm; none where no game is complete. The area is that of the training returns."""
    z = comparison.run_scores(lambda_, stretch)
    if not z:
        return []
    means = _means(comparison, lambda_, stretch)
    areas = _means(comparison, lambda_, "area") if stretch == "final" else {}
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
    """By algorithm; none of them where a game that is compared lacks a score."""
    games = comparison.complete_games([lambda_], stretch)
    if not games or (stretch == "area" and not set(comparison.complete_games([lambda_])) <= set(games)):
        return {}
    found = comparison.averages("score", stretch, [lambda_])
    of = {}
    for a, name in enumerate(found.algorithms):
        sizes = [comparison.cell(game, name, lambda_, stretch).size for game in games]
        low, high, reason = None, None, found.reason
        if min(sizes) < 2:
            reason = SINGLE  # as all statistics here are of seeds, also where averages are of games
        elif found.low is not None and found.high is not None:
            low, high = float(found.low[0, a]), float(found.high[0, a])
        of[name] = Interval(float(found.value[0, a]), low, high, sum(sizes), reason)
    return of
