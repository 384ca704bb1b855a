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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Scores = Mapping[str, ArrayLike]
Statistic = Callable[..., Any]
Verdict = Literal["holds", "does not hold", "cannot tell"]


@dataclass(frozen=True)
class Interval:
    """A statistic and its bootstrap interval; without one, `low` and `high` are None and `reason` says why."""

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


@dataclass(frozen=True)
class RunScore:
    """One number for one run; None, with the reason, where no episode ended in the stretch that counts."""

    value: float | None
    num_episodes: int
    reason: str | None = None


# -- statistics ----------------------------------------------------------------------------------------------


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


# -- intervals -----------------------------------------------------------------------------------------------


def stratified_bootstrap(
    scores: Scores, statistic: Statistic, *, rng: np.random.Generator, num_resamples: int = 2000
) -> Array:
    """The statistic of `num_resamples` sets of runs, drawn with replacement within each game.

    Shapes: → (num_resamples,).

    Games are the same in every resample: the spread is that of new seeds, not of new games. It is that of the runs
    at hand, so a game with one run adds none. Draws do not depend on the order of the games in the mapping.

    >>> samples = stratified_bootstrap({"pong": [1.0, 3.0]}, mean, rng=np.random.default_rng(0))
    >>> samples.shape, sorted(set(samples.tolist()))
    ((2000,), [1.0, 2.0, 3.0])
    """
    pool = _pool(scores, name="scores")
    counts = _resampled_counts(pool.sizes, rng=rng, num_resamples=num_resamples)
    return _of_resamples(statistic, pool, counts)


def interval(
    scores: Scores, statistic: Statistic, *, rng: np.random.Generator, level: float = 0.95, num_resamples: int = 2000
) -> Interval:
    """A statistic with the percentile interval of its stratified bootstrap.

    A game with a single run gives no interval, and the reason: one run has no spread. With n runs of each game the
    interval of the mean is about √((n − 1)/n) of the right width: on 5 games a 95 % interval covers some 94 % of the
    time with 30 runs, and some 86 % with 3.

    >>> scores = {"breakout": [4.0, 6.0], "pong": [20.0, 22.0]}  # both ends are drawn 1 time in 16
    >>> interval(scores, mean, rng=np.random.default_rng(0))
    Interval(value=13.0, low=12.0, high=14.0, num_runs=4, reason=None)
    >>> interval({"pong": [20.0]}, iqm, rng=np.random.default_rng(0)).reason
    "`scores` has a single run of game 'pong', and one run has no spread; add a seed"
    """
    pool = _pool(scores, name="scores")
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

    >>> a, b = {"pong": [3.0, 5.0, 10.0, 6.0]}, {"pong": [2.0, 4.0, 9.0, 5.0]}
    >>> paired_difference(a, b, mean, rng=np.random.default_rng(0), paired=True)
    Interval(value=1.0, low=1.0, high=1.0, num_runs=8, reason=None)
    >>> verdict(paired_difference(a, b, mean, rng=np.random.default_rng(0)))
    'cannot tell'
    """
    a, b = _two_pools(scores_a, scores_b, names=("scores_a", "scores_b"))
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
    of_x, of_y = _two_pools(x, y, names=("x", "y"))
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
    pool = _pool(scores, name="scores")
    _check_level(level)
    thresholds = _vector(thresholds, name="thresholds", remedy="give scores to compare with")
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


# -- from curves to scores -----------------------------------------------------------------------------------


def area_under_curve(*, steps: ArrayLike, returns: ArrayLike) -> float:
    """The mean height of a learning curve: the area of its trapezoids divided by the range of steps.

    Shapes: `steps` (points,), strictly increasing; `returns` (points,) → a float in the unit of the returns.

    A point that was not measured (nan) is refused: leave it out of both.

    >>> area_under_curve(steps=[0, 100, 400], returns=[0.0, 4.0, 4.0])  # (½·4·100 + 4·300) / 400
    3.5
    """
    steps, returns = _curve(steps, returns=_vector(returns, name="returns", remedy="leave the point out of both"))
    if len(steps) < 2:
        raise ValueError(f"`steps` must have at least 2 points, got {len(steps)}; one point has no area under it")
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def run_score(
    *,
    steps: ArrayLike,
    returns: ArrayLike,
    num_episodes: ArrayLike,
    share: float = 0.1,
    end: Literal["last", "first"] = "last",
) -> RunScore:
    """The mean return of the training episodes in the last (or first) tenth of a run.

        Σ_k n_k G_k / Σ_k n_k over the ticks k that end in the stretch

    Shapes: `steps` (ticks,), steps or frames from the start of the run to the end of each tick; `returns` (ticks,),
    the mean return of the episodes that ended in it; `num_episodes` (ticks,), how many did.

    A tick belongs to where it ends: with T = `steps[-1]` the last share is ((1 − share)·T, T], the first is
    [0, share·T], and a share of 0.1 is exactly a tenth. The return of a tick without episodes is never read, so it
    may be nan. If no episode ended in the stretch there is no score: the value is None, and the reason says so.

    >>> steps, returns = [0, 50, 90, 95, 100], [float("nan"), 1.0, 9.0, 2.0, 5.0]
    >>> run_score(steps=steps, returns=returns, num_episodes=[0, 8, 4, 2, 1])  # (2·2 + 1·5) / 3
    RunScore(value=3.0, num_episodes=3, reason=None)
    >>> run_score(steps=steps, returns=returns, num_episodes=[0, 8, 4, 2, 1], end="first").reason
    'no episode ended in the first 0.1 of 100 steps; take a larger `share` or train for longer'
    """
    if end not in ("last", "first"):
        raise ValueError(f"`end` must be 'last' or 'first', got {end!r}")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"`share` must lie in (0, 1], got {share}; a tenth of the run is 0.1")
    num_episodes = _vector(num_episodes, name="num_episodes", remedy="give 0 where none ended")
    wrong = (num_episodes < 0.0) | (num_episodes != np.floor(num_episodes))
    if wrong.any():
        tick = int(np.argmax(wrong))
        raise ValueError(
            f"`num_episodes` must be counts, got {num_episodes[tick]} at index {tick}; count what ended in the tick"
        )
    returns = _real_numbers(returns, name="returns")
    if returns.shape != num_episodes.shape:
        raise ValueError(
            f"`returns` must have one number for each of `num_episodes`, got shapes {returns.shape} and "
            f"{num_episodes.shape}; give nan where no episode ended"
        )
    returns = np.where(num_episodes > 0.0, returns, 0.0)
    steps, returns = _curve(
        steps, returns=_vector(returns, name="returns", remedy="a tick in which episodes ended has a mean return")
    )
    if steps[0] < 0.0 or steps[-1] == 0.0:
        raise ValueError(
            f"`steps` must count from 0 to the end of the run, got {steps[0]:g} to {steps[-1]:g}; "
            "give the steps since the run began"
        )
    # 0.1 as it is written, not the float beside it: the tick that ends at nine tenths must not depend on rounding
    stretch = Fraction(repr(float(share))) * Fraction(float(steps[-1]))
    begin = Fraction(float(steps[-1])) - stretch
    inside = steps > float(begin) if end == "last" else steps <= float(stretch)
    total = num_episodes[inside].sum()
    if total == 0.0:
        return RunScore(
            None,
            0,
            f"no episode ended in the {end} {share:g} of {steps[-1]:.15g} steps; "
            "take a larger `share` or train for longer",
        )
    return RunScore(float(num_episodes[inside] @ returns[inside] / total), int(total))


def normalised(scores_by_algorithm: Mapping[str, Scores]) -> dict[str, dict[str, Array]]:
    """Every run on the scale of its game's inter-algorithm score: 0 the worst algorithm's mean, 1 the best one's.

        z_{g,a,i} = (s_{g,a,i} − min_b s̄_{g,b}) / (max_b s̄_{g,b} − min_b s̄_{g,b})        (Sec. 5, of the means s̄)

    Same layout as `scores_by_algorithm`: algorithm, then game, then runs.

    The mean of an algorithm's z on a game is `inter_algorithm_scores` of the means, so the paper's average is `mean`
    of this. Single runs lie outside [0, 1] too, and far outside on a game where all algorithms are nearly alike.
    Where their means are all equal there is no scale and every run is 1/2, as there. An interval of z takes the two
    ends of the scale as known.

    >>> z = normalised({"retrace": {"pong": [18.0, 22.0]}, "dqn": {"pong": [10.0, 10.0, 10.0]}})
    >>> z["retrace"]["pong"], z["dqn"]["pong"]
    (array([0.8, 1.2]), array([0., 0., 0.]))
    """
    if len(scores_by_algorithm) < 2:
        raise ValueError(
            f"`scores_by_algorithm` must have at least 2 algorithms to compare, got {list(scores_by_algorithm)}; "
            "add a baseline"
        )
    pools = {a: _pool(scores, name=f"scores_by_algorithm[{a!r}]") for a, scores in scores_by_algorithm.items()}
    first, *others = pools
    for other in others:
        _check_games(pools[first], pools[other], names=(first, other))
    z: dict[str, dict[str, Array]] = {
        a: dict.fromkeys(scores, np.empty(0)) for a, scores in scores_by_algorithm.items()
    }
    for g, game in enumerate(pools[first].games):
        runs = {a: pool.values[pool.slices[g]] for a, pool in pools.items()}
        means = {a: _exact_mean(values) for a, values in runs.items()}
        worst, best = min(means.values()), max(means.values())
        for a, values in runs.items():
            with np.errstate(over="ignore"):
                z[a][game] = (values - worst) / (best - worst) if best > worst else np.full(len(values), 0.5)
            if not np.isfinite(z[a][game]).all():
                raise ValueError(
                    f"`scores_by_algorithm` must have a z that float64 can hold, got means from {worst} to {best} "
                    f"and runs {values.tolist()} of {a!r} at game {game!r}; leave that game out"
                )
    return z


# -- resampling ----------------------------------------------------------------------------------------------


class _Pool(NamedTuple):
    """The runs of all games side by side, the games in the order of their names."""

    games: tuple[str, ...]
    sizes: tuple[int, ...]
    values: Array
    weights: Array
    """L/n_g with L the least common multiple of all n_g: whole numbers, so halves and quarters of them are exact."""

    @property
    def slices(self) -> list[slice]:
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]


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


def _of_resamples(statistic: Statistic, pool: _Pool, counts: Array) -> Array:
    samples = np.asarray(statistic(pool.values, weights=counts * pool.weights))
    if samples.shape != counts.shape[:1]:
        raise ValueError(
            f"`statistic` must give one number for each row of `weights`, shape {counts.shape[:1]}, got shape "
            f"{samples.shape}; reduce the last axis only"
        )
    return samples


def _percentiles(samples: Array, *, level: float) -> Array:
    return np.quantile(samples, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=0)


def _percentile_interval(value: float, samples: Array, *, level: float, pools: Mapping[str, _Pool]) -> Interval:
    num_runs, reason = sum(len(pool.values) for pool in pools.values()), _no_spread(pools)
    if reason is not None:
        return Interval(value, None, None, num_runs, reason)
    low, high = _percentiles(samples, level=level).tolist()
    return Interval(value, low, high, num_runs)


def _no_spread(pools: Mapping[str, _Pool]) -> str | None:
    for name, pool in pools.items():
        if 1 in pool.sizes:
            game = pool.games[pool.sizes.index(1)]
            return f"`{name}` has a single run of game {game!r}, and one run has no spread; add a seed"
    return None


def _in_order(values: Array, weights: Array) -> tuple[Array, Array]:
    order = np.argsort(values, kind="stable")
    return values[order], weights[..., order]


def _difference(a: Any, b: Any) -> Array:
    # 2⁻⁴⁴ is 256 roundings: as much as a sum of some hundred terms of one sign can be off
    return np.where(np.abs(a - b) <= 2.0**-44 * np.maximum(np.abs(a), np.abs(b)), 0.0, a - b)


def _exact_mean(values: Array) -> float:
    """Rounded once, so that equal means are equal however many runs they come from, in whatever order."""
    return float(sum((Fraction(value) for value in values.tolist()), Fraction(0)) / len(values))


def _plain(result: Any) -> Any:
    return float(result) if np.ndim(result) == 0 else result


# -- what is refused -----------------------------------------------------------------------------------------


def _pool(scores: Scores, *, name: str) -> _Pool:
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"`{name}` must map games to the scores of their runs, got {type(scores)}; one game is a dict too"
        )
    if not scores:
        raise ValueError(f"`{name}` must have at least 1 game, got none; add a game")
    games = tuple(sorted(scores))
    runs = []
    for game in games:
        values = _real_numbers(scores[game], name=f"{name}[{game!r}]")
        if values.ndim != 1 or not len(values):
            raise ValueError(
                f"`{name}` must have a vector of at least 1 run for each game, got shape {values.shape} at game "
                f"{game!r}; leave out a game without runs"
            )
        if not np.isfinite(values).all():
            run = int(np.argmin(np.isfinite(values)))
            raise ValueError(
                f"`{name}` must be finite, got {values[run]} at game {game!r}, run {run}; "
                "finish the run or leave it out"
            )
        runs.append(values)
    sizes = tuple(len(values) for values in runs)
    multiple = math.lcm(*sizes)
    weights = np.repeat([float(multiple // size) for size in sizes], sizes)
    return _Pool(games, sizes, np.concatenate(runs), weights)


def _two_pools(first: Scores, second: Scores, *, names: tuple[str, str]) -> tuple[_Pool, _Pool]:
    pools = _pool(first, name=names[0]), _pool(second, name=names[1])
    _check_games(*pools, names=names)
    return pools


def _check_games(first: _Pool, second: _Pool, *, names: tuple[str, str]) -> None:
    alone = sorted(set(first.games) ^ set(second.games))
    if alone:
        has, lacks = names if alone[0] in first.games else names[::-1]
        raise ValueError(
            f"`{names[0]}` and `{names[1]}` must have the same games, got {alone[0]!r} in `{has}` only; "
            f"run it for `{lacks}` or leave it out of both"
        )


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"`level` must lie between 0 and 1, got {level}; 95 % is 0.95")


def _values_and_weights(values: ArrayLike | Scores, weights: ArrayLike | None) -> tuple[Array, Array]:
    if isinstance(values, Mapping):
        if weights is not None:
            raise ValueError(
                "`weights` must be left out with scores by game, which bring theirs; or give plain values"
            )
        pool = _pool(values, name="values")
        return pool.values, pool.weights
    values = _vector(values, name="values", remedy="finish the run or leave it out")
    if weights is None:
        return values, np.ones(len(values))
    weights = _real_numbers(weights, name="weights")
    if weights.shape[-1:] != values.shape:
        raise ValueError(
            f"`weights` must have one number for each of `values`, shape (…, {len(values)}), got {weights.shape}"
        )
    if not (np.isfinite(weights).all() and (weights >= 0.0).all() and (weights.sum(axis=-1) > 0.0).all()):
        raise ValueError("`weights` must be finite, at least 0 and not all 0; give how often each run counts")
    return values, weights


def _curve(steps: ArrayLike, *, returns: Array) -> tuple[Array, Array]:
    steps = _vector(steps, name="steps", remedy="give the steps at each point")
    if steps.shape != returns.shape:
        raise ValueError(
            f"`steps` and `returns` must have the same length, got {len(steps)} and {len(returns)}; "
            "give both for every point"
        )
    rises = np.diff(steps) > 0.0
    if not rises.all():
        place = int(np.argmin(rises)) + 1
        raise ValueError(
            f"`steps` must increase strictly, got {steps[place]:g} after {steps[place - 1]:g} at index {place}; "
            "sort the points and leave out what was run twice"
        )
    return steps, returns


def _vector(values: ArrayLike, *, name: str, remedy: str) -> Array:
    vector = _real_numbers(values, name=name)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"`{name}` must be a vector of at least 1 number, got shape {vector.shape}; {remedy}")
    if not np.isfinite(vector).all():
        place = int(np.argmin(np.isfinite(vector)))
        raise ValueError(f"`{name}` must be finite, got {vector[place]} at index {place}; {remedy}")
    return vector


def _real_numbers(values: ArrayLike, *, name: str) -> Array:
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise ValueError(
            f"`{name}` must be an array, got rows of different lengths; give one number a run"
        ) from ragged
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must hold real numbers, got dtype {array.dtype}; convert it to float first")
    return array.astype(np.float64)
