"""Inter-algorithm scores over games (Sec. 5, after Bellemare et al. 2013).

A matrix of scores has one row per game and one column per algorithm. `inter_algorithm_scores` maps
every game to the scale from 0 (worst of the set) to 1 (best of the set); the other functions
summarise each column.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.scores.by_game import real_numbers


class StepPoints(NamedTuple):
    """Jump points of one score distribution: f is `f[k]` on (x[k−1], x[k]], with x[0] = 0 and x[-1] = 1."""

    x: NDArray[np.float64]
    f: NDArray[np.float64]


def inter_algorithm_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Return every game's scores on the scale from 0 (worst of the set) to 1 (best of the set).

        z_{g,a} = (s_{g,a} − min_b s_{g,b}) / (max_b s_{g,b} − min_b s_{g,b})        (Sec. 5, in words)

    Shapes: `scores` (games, algorithms) → z (games, algorithms).

    z depends on the set: adding or removing an algorithm changes the others' scores. A game on
    which all algorithms score the same is 0/0, which the paper does not cover. Here all of them
    get 1/2, the only value with z(−s) = 1 − z(s), which says neither "all best" nor "all worst".

    >>> inter_algorithm_scores([[10.0, 30.0, 20.0], [-4.0, -8.0, 0.0], [7.0, 7.0, 7.0]])
    array([[0. , 1. , 0.5],
           [0.5, 0. , 1. ],
           [0.5, 0.5, 0.5]])
    """
    scores = _matrix(scores, name="scores")
    worst = scores.min(axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        spread = scores.max(axis=1, keepdims=True) - worst
    if not np.isfinite(spread).all():
        game = int(np.argmin(np.isfinite(spread)))
        raise ValueError(
            f"`scores` must have a best minus worst that float64 can hold; got {scores[game].tolist()} "
            f"at game {game}. Divide that game's scores by a constant, which does not change z."
        )
    all_equal = spread == 0.0
    z = (scores - worst) / np.where(all_equal, 1.0, spread)
    return np.where(all_equal, 0.5, z)


def score_distribution(z: ArrayLike, x: ArrayLike) -> NDArray[np.float64]:
    """Return the fraction of games on which each algorithm scores at least x: the curves of Fig. 1.

        f_a(x) = |{g : z_{g,a} ≥ x}| / G        (Sec. 5, with G = 60)

    Shapes: `z` (games, algorithms), `x` any shape → f (*x.shape, algorithms).

    f never increases; f(x) = 1 for x ≤ 0 and f(x) = 0 for x > 1. f(1) is the fraction of games on
    which the algorithm is best, alone or tied. "Roughly, a strictly higher curve corresponds to a
    better algorithm."

    >>> z = [[0.0, 1.0], [0.25, 1.0], [1.0, 0.0], [1.0, 0.0]]
    >>> score_distribution(z, [0.0, 0.25, 0.5, 1.0])
    array([[1.  , 1.  ],
           [0.75, 0.5 ],
           [0.5 , 0.5 ],
           [0.5 , 0.5 ]])
    """
    z = _matrix_of_z(z)
    x = real_numbers(x, name="x", remedy="Give the scores to evaluate f at.")
    if not np.isfinite(x).all():
        place = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(f"`x` must be finite; got {x[tuple(place)]} at index {place}. Thresholds lie in [0, 1].")
    num_games = z.shape[0]
    columns = np.sort(z, axis=0).T
    num_below = np.stack([np.searchsorted(column, x, side="left") for column in columns], axis=-1)
    return (num_games - num_below) / num_games


def distribution_steps(z: ArrayLike) -> tuple[StepPoints, ...]:
    """Return the exact score distribution of each algorithm, as the points where it jumps.

        f_a(x) = f[k] for x in (x[k−1], x[k]]        (f of Sec. 5 is constant between two scores z_{g,a})

    Shapes: `z` (games, algorithms) → one `StepPoints(x, f)` per algorithm, of at most games + 2
    points.

    x increases strictly from 0 to 1. Both ends are always included (f[0] = 1, and f[-1] = f(1)
    before the drop to 0), so joining the points "vertical first, then horizontal" draws the whole
    curve on [0, 1].

    >>> first, second = distribution_steps([[0.0, 1.0], [0.25, 1.0], [1.0, 0.0], [1.0, 0.0]])
    >>> first.x, first.f
    (array([0.  , 0.25, 1.  ]), array([1.  , 0.75, 0.5 ]))
    >>> second.x, second.f
    (array([0., 1.]), array([1. , 0.5]))
    """
    z = _matrix_of_z(z)
    jumps = [np.unique(np.concatenate(([0.0, 1.0], column))) for column in z.T]
    return tuple(StepPoints(x, score_distribution(z, x)[:, a]) for a, x in enumerate(jumps))


def average_scores(z: ArrayLike) -> NDArray[np.float64]:
    """Return each algorithm's inter-algorithm score averaged over games: one row of Table 2.

        z̄_a = Σ_g z_{g,a} / G = ∫₀¹ f_a(x) dx        (App. F, in words)

    Shapes: `z` (games, algorithms) → (algorithms,).

    Averages of different sets (so also of different λ) cannot be compared: each set has its own
    scale.

    >>> average_scores([[0.0, 1.0], [0.5, 1.0], [1.0, 0.0], [1.0, 0.0]])
    array([0.625, 0.5  ])
    """
    return _matrix_of_z(z).mean(axis=0)


def times_best(scores: ArrayLike, *, highlighted: ArrayLike | None = None) -> NDArray[np.int64]:
    """Return on how many games each algorithm is the best: the last row of Table 3.

        n_a = |{g : s_{g,a} > s_{g,b} for every b ≠ a}|        (App. F, Table 3)

    Shapes: `scores` (games, algorithms), `highlighted` (games,) column numbers → (algorithms,)
    counts.

    A tie for the best counts for the game's `highlighted` algorithm if given, and for none
    otherwise: the counts then add up to the number of games minus the ties. `highlighted` only
    breaks ties and must name a best algorithm. Give raw scores: rounding may tie two of them in z.

    >>> scores = [[3.0, 1.0, 2.0], [5.0, 5.0, 0.0], [0.0, 0.0, 8.0]]
    >>> times_best(scores)
    array([1, 0, 1])
    >>> times_best(scores, highlighted=[0, 1, 2])
    array([1, 1, 1])
    """
    scores = _matrix(scores, name="scores")
    num_games, num_algorithms = scores.shape
    best = scores == scores.max(axis=1, keepdims=True)
    if highlighted is None:
        return (best & (best.sum(axis=1, keepdims=True) == 1)).sum(axis=0)

    highlighted = np.asarray(highlighted)
    if highlighted.dtype.kind not in "iu" or highlighted.shape != (num_games,):
        raise ValueError(
            f"`highlighted` must hold one column number per game, shape ({num_games},); "
            f"got {highlighted.dtype} of shape {highlighted.shape}. Leave it out to count ties for no algorithm."
        )
    outside = (highlighted < 0) | (highlighted >= num_algorithms)
    if outside.any():
        game = int(np.argmax(outside))
        raise ValueError(
            f"`highlighted` must lie in 0…{num_algorithms - 1}; got {highlighted[game]} at game {game}. "
            "Give the column of `scores` that wins the game."
        )
    not_best = ~best[np.arange(num_games), highlighted]
    if not_best.any():
        game = int(np.argmax(not_best))
        raise ValueError(
            f"`highlighted` must name a best score; got column {highlighted[game]} at game {game} "
            f"with scores {scores[game].tolist()}. Use column {int(np.argmax(best[game]))}."
        )
    return np.bincount(highlighted.astype(np.int64), minlength=num_algorithms)


def _matrix(values: ArrayLike, *, name: str) -> NDArray[np.float64]:
    matrix = real_numbers(values, name=name, remedy="Give every game the same algorithms.")
    if matrix.ndim != 2:
        raise ValueError(
            f"`{name}` must be a (games, algorithms) matrix; got shape {matrix.shape}. "
            "One game is a matrix with one row; average several seeds first."
        )
    num_games, num_algorithms = matrix.shape
    if num_games < 1:
        raise ValueError(f"`{name}` must have at least 1 game (row); got shape {matrix.shape}. Add a game.")
    if num_algorithms < 2:
        raise ValueError(
            f"`{name}` must have at least 2 algorithms (columns) to compare; got shape {matrix.shape}. "
            "Add a baseline, or transpose it if the games are in the columns."
        )
    finite = np.isfinite(matrix)
    if not finite.all():
        game, algorithm = np.argwhere(~finite)[0].tolist()
        raise ValueError(
            f"`{name}` must be finite; got {matrix[game, algorithm]} at game {game}, algorithm {algorithm}. "
            "Finish the run or leave the game out for all algorithms."
        )
    return matrix


def _matrix_of_z(z: ArrayLike) -> NDArray[np.float64]:
    z = _matrix(z, name="z")
    outside = (z < 0.0) | (z > 1.0)
    if outside.any():
        game, algorithm = np.argwhere(outside)[0].tolist()
        raise ValueError(
            f"`z` must lie in [0, 1]; got {z[game, algorithm]} at game {game}, algorithm {algorithm}. "
            "Pass raw scores through `inter_algorithm_scores` first."
        )
    return z
