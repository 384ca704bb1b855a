"""Today's statistics of a few runs on several games: aggregates, bootstrap intervals, verdicts.

The scores of one algorithm are a mapping from game to the scores of its runs (seeds), a vector that may be of
another length for every game. Every game counts alike, however many runs it has: a run weighs 1/n_g, so that a
game with more seeds does not pull the aggregate towards itself, nor two algorithms with unfinished runs apart.

A statistic is a function of `values` (runs,) and, by keyword, `weights` (…, runs) that gives (…): what a bootstrap
resample changes is only how often each run counts, so all of them are one matrix of weights.

    game     breakout        pong                  with 2 and 3 runs each run of breakout weighs 3, of pong 2;
    values   [ 4   6 | 20   21   18]               a resample that draws breakout's second run twice, and
    weights  [ 3   3 |  2    2    2]               pong's first, first and last, is
    resample [ 0   6 |  4    0    2]               this one
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.pools import Array, Scores, pool_of, real_numbers, vector


def mean(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """The mean of all runs over games.

        Σ_i w_i x_i / Σ_i w_i

    Shapes: `values` (runs,) or scores by game, `weights` (…, runs) → (…), a float for one set of weights. Scores by
    game bring their weights, which make every game count alike; plain values weigh the same.

    >>> mean([1.0, 2.0, 6.0])
    3.0
    >>> mean({"breakout": [0.0], "pong": [1.0, 2.0, 3.0]})
    1.0
    """
    values, weights = _values_and_weights(values, weights)
    return _plain(weights @ values / weights.sum(axis=-1))


def median(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """The median of all runs over games: the middle of the two middle values where half the weight ends between them.

    Shapes: as `mean`.

    >>> median([1.0, 2.0, 3.0, 10.0])
    2.5
    >>> median({"breakout": [0.0], "pong": [1.0, 2.0, 3.0]})
    0.5
    """
    ordered, weights = _in_order(*_values_and_weights(values, weights))
    weight = weights.cumsum(axis=-1)
    half = weight[..., -1:] / 2.0
    lower = ordered[(weight < half).sum(axis=-1)]
    upper = ordered[(weight <= half).sum(axis=-1)]
    return _plain((lower + upper) / 2.0)


def iqm(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """The interquartile mean: the mean of the middle half of the runs.

        2 ∫_{1/4}^{3/4} F⁻¹(p) dp

    Shapes: as `mean`.

    A run across the edge of a quarter counts for the part of it that is inside: of 5 runs the second and the fourth
    count three quarters. So nothing is rounded, and repeating every run changes nothing. One run is its own IQM.

    >>> iqm(range(100))
    49.5
    >>> iqm([1.0, 2.0, 3.0, 10.0])
    2.5
    >>> iqm([0.0, 4.0, 6.0, 12.0, 99.0])  # (¾·4 + 6 + ¾·12) / 2½
    7.2
    """
    ordered, weights = _in_order(*_values_and_weights(values, weights))
    weight = weights.cumsum(axis=-1)
    quarter = weight[..., -1:] / 4.0
    inside = np.diff(np.clip(weight, quarter, 3.0 * quarter), prepend=quarter, axis=-1)
    return _plain(inside @ ordered / (2.0 * quarter[..., 0]))


def optimality_gap(values: ArrayLike | Scores, *, gamma: float = 1.0, weights: ArrayLike | None = None) -> Any:
    """By how much runs fall short of γ on average; less is better, and beyond γ nothing is gained.

        Σ_i w_i max(γ − x_i, 0) / Σ_i w_i

    Shapes: as `mean`. Another γ goes into a bootstrap as `functools.partial(optimality_gap, gamma=0.5)`.

    >>> optimality_gap([0.5, 1.0, 3.0, 0.0])  # (0.5 + 0 + 0 + 1) / 4
    0.375
    """
    if not math.isfinite(gamma):
        raise ValueError(f"`gamma` must be finite, got {gamma}; give the score that counts as solved")
    values, weights = _values_and_weights(values, weights)
    return _plain(weights @ np.maximum(gamma - values, 0.0) / weights.sum(axis=-1))


def _values_and_weights(values: ArrayLike | Scores, weights: ArrayLike | None) -> tuple[Array, Array]:
    if isinstance(values, Mapping):
        if weights is not None:
            raise ValueError(
                "`weights` must be left out with scores by game, which bring theirs; or give plain values"
            )
        pool = pool_of(values, name="values")
        return pool.values, pool.weights
    values = vector(values, name="values", remedy="finish the run or leave it out")
    if weights is None:
        return values, np.ones(len(values))
    weights = real_numbers(weights, name="weights")
    if weights.shape[-1:] != values.shape:
        raise ValueError(
            f"`weights` must have one number for each of `values`, shape (…, {len(values)}), got {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0.0).all() and (weights.sum(axis=-1) > 0.0).all()):
        raise ValueError("`weights` must be finite, at least 0 and not all 0; give how often each run counts")
    return values, weights


def _in_order(values: Array, weights: Array) -> tuple[Array, Array]:
    order = np.argsort(values, kind="stable")
    return values[order], weights[..., order]


def _plain(result: Any) -> Any:
    return float(result) if np.ndim(result) == 0 else result
