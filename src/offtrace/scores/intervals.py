"""Bootstrap intervals of what a few runs tell, and the verdicts that follow from them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.pools import Array, Pool, Scores, pool_of, two_pools, vector

Statistic = Callable[..., Any]
Verdict = Literal["holds", "does not hold", "cannot tell"]


@dataclass(frozen=True)
class Interval:
    """A statistic and its interval; without one, `low` and `high` are None and `reason` says why."""

    value: float
    low: float | None
    high: float | None
    num_runs: int
    """Runs that went in, of all games, and of both algorithms where two are compared."""
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Profile:
    """A performance profile: `share` of runs above each threshold and its band, (thresholds,) each."""

    thresholds: Array
    share: Array
    low: Array | None
    high: Array | None
    num_runs: int
    reason: str | None = None


def stratified_bootstrap(
    scores: Scores, statistic: Statistic, *, rng: np.random.Generator, num_resamples: int = 2000
) -> Array:
    """The statistic of `num_resamples` sets of runs, drawn with replacement within each game.

    Shapes: → (num_resamples,).

    Games are the same in every resample: the spread is that of new seeds, not of new games. It is that of the runs
    at hand, so a game with one run adds none. Draws do not depend on the order of the games in the mapping.

    >>> from offtrace.scores import mean
    >>> samples = stratified_bootstrap({"pong": [1.0, 3.0]}, mean, rng=np.random.default_rng(0))
    >>> samples.shape, sorted(set(samples.tolist()))
    ((2000,), [1.0, 2.0, 3.0])
    """
    pool = pool_of(scores, name="scores")
    counts = _resampled_counts(pool.sizes, rng=rng, num_resamples=num_resamples)
    return _of_resamples(statistic, pool, counts)


def interval(
    scores: Scores, statistic: Statistic, *, rng: np.random.Generator, level: float = 0.95, num_resamples: int = 2000
) -> Interval:
    """A statistic with the percentile interval of its stratified bootstrap.

    A game with a single run gives no interval, and the reason: one run has no spread. With n runs of each game the
    interval of the mean is about √((n − 1)/n) of the right width: on 5 games a 95 % interval covers some 94 % of the
    time with 30 runs, and some 86 % with 3.

    >>> from offtrace.scores import iqm, mean
    >>> scores = {"breakout": [4.0, 6.0], "pong": [20.0, 22.0]}  # both ends are drawn 1 time in 16
    >>> interval(scores, mean, rng=np.random.default_rng(0))
    Interval(value=13.0, low=12.0, high=14.0, num_runs=4, reason=None)
    >>> interval({"pong": [20.0]}, iqm, rng=np.random.default_rng(0)).reason
    "`scores` has a single run of game 'pong', and one run has no spread; add a seed"
    """
    pool = pool_of(scores, name="scores")
    _check_level(level)
    counts = _resampled_counts(pool.sizes, rng=rng, num_resamples=num_resamples)
    samples = _of_resamples(statistic, pool, counts)
    value = float(statistic(pool.values, weights=pool.weights))
    return _percentile_interval(value, samples, level=level, pools={"scores": pool})


def paired_difference(
    scores_a: Scores,
    scores_b: Scores,
    statistic: Statistic,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = 2000,
    paired: bool = False,
) -> Interval:
    """A statistic of algorithm a less that of algorithm b on the same games, with its interval.

    Both are resampled, each by itself. With `paired=True` run i of a and run i of b share their seed, and a resample
    takes the same seeds of both: what a seed does to both then drops out of the interval. A difference that rounding
    alone can make is 0, so that no verdict rests on the order of a sum.

    >>> from offtrace.scores import mean
    >>> a, b = {"pong": [3.0, 5.0, 10.0, 6.0]}, {"pong": [2.0, 4.0, 9.0, 5.0]}
    >>> paired_difference(a, b, mean, rng=np.random.default_rng(0), paired=True)
    Interval(value=1.0, low=1.0, high=1.0, num_runs=8, reason=None)
    >>> verdict(paired_difference(a, b, mean, rng=np.random.default_rng(0)))
    'cannot tell'
    """
    a, b = two_pools(scores_a, scores_b, names=("scores_a", "scores_b"))
    _check_level(level)
    if paired:
        for game, num_a, num_b in zip(a.games, a.sizes, b.sizes, strict=True):
            if num_a != num_b:
                raise ValueError(
                    f"`paired` must be False where runs have no partner, got {num_a} and {num_b} runs of game "
                    f"{game!r}; leave out the seeds that only one algorithm has"
                )
    counts_a = _resampled_counts(a.sizes, rng=rng, num_resamples=num_resamples)
    counts_b = counts_a if paired else _resampled_counts(b.sizes, rng=rng, num_resamples=num_resamples)
    samples = _difference(_of_resamples(statistic, a, counts_a), _of_resamples(statistic, b, counts_b))
    value = float(_difference(statistic(a.values, weights=a.weights), statistic(b.values, weights=b.weights)))
    return _percentile_interval(value, samples, level=level, pools={"scores_a": a, "scores_b": b})


def probability_of_improvement(
    x: Scores, y: Scores, *, rng: np.random.Generator, level: float = 0.95, num_resamples: int = 2000
) -> Interval:
    """How likely a run of x beats a run of y on the same game, the mean over games; ties count one half.

        (1/G) Σ_g (1/(n_g m_g)) Σ_i Σ_j ( 1{x_gi > y_gj} + ½ 1{x_gi = y_gj} )

    The interval resamples the runs of both. One half is no difference: `verdict(…, above=0.5)`.

    >>> x, y = {"breakout": [4.0, 6.0], "pong": [21.0, 21.0]}, {"breakout": [1.0, 5.0], "pong": [21.0, 21.0]}
    >>> probability_of_improvement(x, y, rng=np.random.default_rng(0)).value  # (¾ + ½) / 2
    0.625
    """
    of_x, of_y = two_pools(x, y, names=("x", "y"))
    _check_level(level)
    counts_x = _resampled_counts(of_x.sizes, rng=rng, num_resamples=num_resamples)
    counts_y = _resampled_counts(of_y.sizes, rng=rng, num_resamples=num_resamples)
    value, samples = 0.0, np.zeros(num_resamples)
    for rows, columns in zip(of_x.slices, of_y.slices, strict=True):
        mine, theirs = of_x.values[rows, None], of_y.values[columns]
        order = (mine > theirs).astype(np.float64) - (mine < theirs)  # (n_g, m_g): 1 won, 0 tied, −1 lost
        value += order.mean()
        samples += ((counts_x[:, rows] @ order) * counts_y[:, columns]).sum(axis=1) / order.size
    num_games = len(of_x.games)
    value, samples = 0.5 + 0.5 * value / num_games, 0.5 + 0.5 * samples / num_games
    return _percentile_interval(float(value), samples, level=level, pools={"x": of_x, "y": of_y})


def performance_profile(
    scores: Scores,
    thresholds: ArrayLike,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    num_resamples: int = 2000,
) -> Profile:
    """The share of runs above each threshold, and a band that holds at each threshold by itself.

        (1/G) Σ_g |{i : x_gi > τ}| / n_g

    Shapes: `thresholds` (T,) → `share`, `low`, `high` (T,).

    Above is strict; the score distribution of Sec. 5 counts games *at* the threshold too.

    >>> scores = {"breakout": [0.0, 1.0], "pong": [0.5, 0.5]}
    >>> performance_profile(scores, [-1.0, 0.0, 0.5, 1.0], rng=np.random.default_rng(0)).share
    array([1.  , 0.75, 0.25, 0.  ])
    """
    pool = pool_of(scores, name="scores")
    _check_level(level)
    thresholds = vector(thresholds, name="thresholds", remedy="give scores to compare with")
    above = (pool.values[:, None] > thresholds).astype(np.float64)
    share = pool.weights @ above / pool.weights.sum()
    counts = _resampled_counts(pool.sizes, rng=rng, num_resamples=num_resamples)
    num_runs, reason = len(pool.values), _no_spread({"scores": pool})
    if reason is not None:
        return Profile(thresholds, share, None, None, num_runs, reason)
    low, high = _percentiles((counts * pool.weights) @ above / pool.weights.sum(), level=level)
    return Profile(thresholds, share, low, high, num_runs)


def verdict(interval: Interval, *, above: float = 0.0) -> Verdict:
    """Whether the statistic is above a number: the whole interval is, none of it is, or neither.

    An interval that touches the number cannot tell, nor can a statistic without an interval.

    >>> verdict(Interval(value=0.3, low=0.1, high=0.5, num_runs=8))
    'holds'
    >>> verdict(Interval(value=0.3, low=0.1, high=0.5, num_runs=8), above=0.6)
    'does not hold'
    >>> verdict(Interval(value=0.3, low=None, high=None, num_runs=1, reason="one run"))
    'cannot tell'
    """
    if not math.isfinite(above):
        raise ValueError(f"`above` must be finite, got {above}; give the number to compare with")
    if interval.low is None or interval.high is None:
        return "cannot tell"
    if interval.low > above:
        return "holds"
    return "does not hold" if interval.high < above else "cannot tell"


def _resampled_counts(sizes: tuple[int, ...], *, rng: np.random.Generator, num_resamples: int) -> Array:
    """How often each run is drawn: (num_resamples, runs), the counts of a game adding up to its number of runs."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"`rng` must be a numpy.random.Generator, got {rng!r}; give numpy.random.default_rng(seed)")
    if isinstance(num_resamples, bool) or not isinstance(num_resamples, int | np.integer) or num_resamples < 1:
        raise ValueError(
            f"`num_resamples` must be a whole number of at least 1, got {num_resamples!r}; 2000 is usual"
        )
    num_runs = sum(sizes)
    flat = np.arange(num_resamples)[:, None] * num_runs
    starts = np.cumsum((0, *sizes[:-1])).tolist()
    drawn = [
        flat + start + rng.integers(size, size=(num_resamples, size))
        for start, size in zip(starts, sizes, strict=True)
    ]
    counts = np.bincount(np.concatenate(drawn, axis=1).ravel(), minlength=num_resamples * num_runs)
    return counts.reshape(num_resamples, num_runs).astype(np.float64)


def _of_resamples(statistic: Statistic, pool: Pool, counts: Array) -> Array:
    samples = np.asarray(statistic(pool.values, weights=counts * pool.weights))
    if samples.shape != counts.shape[:1]:
        raise ValueError(
            f"`statistic` must give one number for each row of `weights`, shape {counts.shape[:1]}, got shape "
            f"{samples.shape}; reduce the last axis only"
        )
    return samples


def _percentiles(samples: Array, *, level: float) -> Array:
    return np.quantile(samples, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)


def _percentile_interval(value: float, samples: Array, *, level: float, pools: Mapping[str, Pool]) -> Interval:
    num_runs, reason = sum(len(pool.values) for pool in pools.values()), _no_spread(pools)
    if reason is not None:
        return Interval(value, None, None, num_runs, reason)
    low, high = _percentiles(samples, level=level).tolist()
    return Interval(value, low, high, num_runs)


def _no_spread(pools: Mapping[str, Pool]) -> str | None:
    for name, pool in pools.items():
        if 1 in pool.sizes:
            game = pool.games[pool.sizes.index(1)]
            return f"`{name}` has a single run of game {game!r}, and one run has no spread; add a seed"
    return None


def _difference(a: Any, b: Any) -> Array:
    # 2⁻⁴⁴ is 256 roundings: as much as a sum of some hundred terms of one sign can be off
    return np.where(np.abs(a - b) <= 2.0**-44 * np.maximum(np.abs(a), np.abs(b)), 0.0, a - b)


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must lie between 0 and 1, got {level}; 95 % is 0.95")
