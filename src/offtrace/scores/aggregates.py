"""Aggregates of a few runs on several games: mean, median, interquartile mean, optimality gap.

The scores of one algorithm are a mapping from game to the scores of its runs (seeds), a vector
whose length may differ between games. Every game counts the same, however many runs it has: a run
weighs 1/n_g, so a game with more seeds does not dominate the aggregate, and unfinished runs do not
bias the comparison of two algorithms.

A statistic is a function of `values` (runs,) and, by keyword, `weights` (…, runs), and returns
(…). A bootstrap resample only changes how often each run counts, so all resamples are one matrix
of weights.

    game     breakout        pong                  With 2 and 3 runs, each run of breakout weighs 3 and each run
    values   [ 4   6 | 20   21   18]               of pong 2. A resample that draws breakout's second run twice,
    weights  [ 3   3 |  2    2    2]               and pong's first, first and last run, has the weights in the
    resample [ 0   6 |  4    0    2]               last line.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.by_game import Array, Scores, game_runs, real_numbers, vector


def mean(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """Return the mean of all runs over games.

        Σ_i w_i x_i / Σ_i w_i

    Shapes: `values` (runs,) or scores by game, `weights` (…, runs) → (…), a float for one set of
    weights. Scores by game have their own weights, so that every game counts the same; plain
    values weigh the same by default.

    >>> mean([1.0, 2.0, 6.0])
    3.0
    >>> mean({"breakout": [0.0], "pong": [1.0, 2.0, 3.0]})
    1.0
    """
    values, weights = _values_and_weights(values, weights)
    return _float_if_scalar(weights @ values / weights.sum(axis=-1))


def median(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """Return the weighted median of all runs over games.

    Where half the weight ends exactly between two values, it is their midpoint. Shapes: as `mean`.

    >>> median([1.0, 2.0, 3.0, 10.0])
    2.5
    >>> median({"breakout": [0.0], "pong": [1.0, 2.0, 3.0]})
    0.5
    """
    ordered, weights = _sorted(*_values_and_weights(values, weights))
    weight = weights.cumsum(axis=-1)
    half = weight[..., -1:] / 2.0
    lower = ordered[(weight < half).sum(axis=-1)]
    upper = ordered[(weight <= half).sum(axis=-1)]
    return _float_if_scalar((lower + upper) / 2.0)


def iqm(values: ArrayLike | Scores, *, weights: ArrayLike | None = None) -> Any:
    """Return the interquartile mean: the mean of the middle half of the runs.

        2 ∫_{1/4}^{3/4} F⁻¹(p) dp

    Shapes: as `mean`.

    A run on the boundary of a quartile counts with the part of it that lies inside: of 5 runs, the
    second and the fourth count three quarters. So nothing is rounded, and repeating every run does
    not change the result. A single run is its own IQM.

    >>> iqm(range(100))
    49.5
    >>> iqm([1.0, 2.0, 3.0, 10.0])
    2.5
    >>> iqm([0.0, 4.0, 6.0, 12.0, 99.0])  # (¾·4 + 6 + ¾·12) / 2½
    7.2
    """
    ordered, weights = _sorted(*_values_and_weights(values, weights))
    weight = weights.cumsum(axis=-1)
    quarter = weight[..., -1:] / 4.0
    inside = np.diff(np.clip(weight, quarter, 3.0 * quarter), prepend=quarter, axis=-1)
    return _float_if_scalar(inside @ ordered / (2.0 * quarter[..., 0]))


def optimality_gap(values: ArrayLike | Scores, *, gamma: float = 1.0, weights: ArrayLike | None = None) -> Any:
    """Return the mean shortfall of runs below γ. Less is better; scores above γ count as γ.

        Σ_i w_i max(γ − x_i, 0) / Σ_i w_i

    Shapes: as `mean`. To bootstrap with another γ, use `functools.partial(optimality_gap,
    gamma=0.5)`.

    >>> optimality_gap([0.5, 1.0, 3.0, 0.0])  # (0.5 + 0 + 0 + 1) / 4
    0.375
    """
    if not math.isfinite(gamma):
        raise ValueError(f"`gamma` must be finite; got {gamma}. Give the score that counts as solved.")
    values, weights = _values_and_weights(values, weights)
    return _float_if_scalar(weights @ np.maximum(gamma - values, 0.0) / weights.sum(axis=-1))


def _values_and_weights(values: ArrayLike | Scores, weights: ArrayLike | None) -> tuple[Array, Array]:
    if isinstance(values, Mapping):
        if weights is not None:
            raise ValueError(
                "`weights` must be None with scores by game, which have their own weights; got an array. "
                "Leave it out, or give plain values."
            )
        runs = game_runs(values, name="values")
        return runs.values, runs.weights
    values = vector(values, name="values", remedy="Finish the run or leave it out.")
    if weights is None:
        return values, np.ones(len(values))
    weights = real_numbers(weights, name="weights")
    if weights.shape[-1:] != values.shape:
        raise ValueError(
            f"`weights` must have one number per entry of `values`, shape (…, {len(values)}); "
            f"got shape {weights.shape}. Put the runs on the last axis."
        )
    if not (np.isfinite(weights).all() and (weights >= 0.0).all() and (weights.sum(axis=-1) > 0.0).all()):
        raise ValueError(
            "`weights` must be finite, at least 0 and not all 0; got others. Give how often each run counts."
        )
    return values, weights


def _sorted(values: Array, weights: Array) -> tuple[Array, Array]:
    order = np.argsort(values, kind="stable")
    return values[order], weights[..., order]


def _float_if_scalar(result: Any) -> Any:
    if np.ndim(result) == 0:
        return float(result)
    return result
