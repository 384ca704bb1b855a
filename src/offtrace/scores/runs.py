"""From curves to one number for each run, and from there to the scale of the inter-algorithm score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from offtrace.scores.pools import Array, Scores, check_games, pool_of, real_numbers, vector
from offtrace.scores.scale import Ends, ends_of, noise_floor, unit_of


@dataclass(frozen=True)
class RunScore:
    """One number for one run; None, with the reason, where no episode ended in the stretch that counts."""

    value: float | None
    num_episodes: int
    reason: str | None = None


def area_under_curve(*, steps: ArrayLike, returns: ArrayLike) -> float:
    """The mean height of a learning curve: the area of its trapezoids divided by the range of steps.

    Shapes: `steps` (points,), strictly increasing; `returns` (points,) → a float in the unit of the returns.

    A point that was not measured (nan) is refused: leave it out of both.

    >>> area_under_curve(steps=[0, 100, 400], returns=[0.0, 4.0, 4.0])  # (½·4·100 + 4·300) / 400
    3.5
    """
    steps, returns = _curve(steps, returns=vector(returns, name="returns", remedy="leave the point out of both"))
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
    num_episodes = vector(num_episodes, name="num_episodes", remedy="give 0 where none ended")
    wrong = (num_episodes < 0.0) | (num_episodes != np.floor(num_episodes))
    if wrong.any():
        tick = int(np.argmax(wrong))
        raise ValueError(
            f"`num_episodes` must be counts, got {num_episodes[tick]} at index {tick}; count what ended in the tick"
        )
    returns = real_numbers(returns, name="returns")
    if returns.shape != num_episodes.shape:
        raise ValueError(
            f"`returns` must have one number for each of `num_episodes`, got shapes {returns.shape} and "
            f"{num_episodes.shape}; give nan where no episode ended"
        )
    returns = np.where(num_episodes > 0.0, returns, 0.0)
    steps, returns = _curve(
        steps, returns=vector(returns, name="returns", remedy="a tick in which episodes ended has a mean return")
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


def normalised(scores_by_algorithm: Mapping[str, Scores], *, clip: bool = False) -> dict[str, dict[str, Array]]:
    """Every run on the scale of its game's inter-algorithm score: 0 the worst algorithm's mean, 1 the best one's.

        z_{g,a,i} = (s_{g,a,i} − min_b s̄_{g,b}) / (max_b s̄_{g,b} − min_b s̄_{g,b})        (Sec. 5, of the means s̄)

    Same layout as `scores_by_algorithm`: algorithm, then game, then runs.

    The mean of an algorithm's z on a game is `inter_algorithm_scores` of the means, so the paper's average is `mean`
    of this. Single runs lie outside [0, 1] too, unless `clip` cuts them off there. Where the means differ by no more
    than noise explains, the scale is as wide as that noise, and they lie around 1/2 (see `offtrace.scores.scale`);
    where nothing differs at all, every run is 1/2. An interval of z takes the two ends of the scale as known.

    >>> z = normalised({"retrace": {"pong": [18.0, 22.0]}, "dqn": {"pong": [10.0, 10.0, 10.0]}})
    >>> z["retrace"]["pong"], z["dqn"]["pong"]
    (array([0.8, 1.2]), array([0., 0., 0.]))
    """
    if len(scores_by_algorithm) < 2:
        raise ValueError(
            f"`scores_by_algorithm` must have at least 2 algorithms to compare, got {list(scores_by_algorithm)}; "
            "add a baseline"
        )
    pools = {a: pool_of(scores, name=f"scores_by_algorithm[{a!r}]") for a, scores in scores_by_algorithm.items()}
    first, *others = pools
    for other in others:
        check_games(pools[first], pools[other], names=(first, other))
    z: dict[str, dict[str, Array]] = {
        a: dict.fromkeys(scores, np.empty(0)) for a, scores in scores_by_algorithm.items()
    }
    for g, game in enumerate(pools[first].games):
        runs = {a: pool.values[pool.slices[g]] for a, pool in pools.items()}
        unit = unit_of(np.concatenate([*runs.values()]))
        runs = {a: np.ldexp(values, -unit) for a, values in runs.items()}
        ends = _ends([*runs.values()])
        for a, values in runs.items():
            of_runs = ends.of(values)
            if clip:
                of_runs = np.clip(of_runs, 0.0, 1.0)
            z[a][game] = of_runs
    return z


def _ends(cells: Sequence[Array]) -> Ends:
    """The scale of one game."""
    means = [_exact_mean(cell) for cell in cells]
    floor = noise_floor(
        squares=np.array(sum(((cell - mean) ** 2).sum() for cell, mean in zip(cells, means, strict=True))),
        num_cells=np.array(len(cells)),
        num_runs=np.array(sum(len(cell) for cell in cells)),
        inverse_sizes=np.array(sum(1.0 / len(cell) for cell in cells)),
    )
    return ends_of(np.array(min(means)), np.array(max(means)), floor)


def _curve(steps: ArrayLike, *, returns: Array) -> tuple[Array, Array]:
    steps = vector(steps, name="steps", remedy="give the steps at each point")
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


def _exact_mean(values: Array) -> float:
    """Rounded once, so that equal means are equal however many runs they come from, in whatever order."""
    return float(sum((Fraction(value) for value in values.tolist()), Fraction(0)) / len(values))
