"""The score of a run from its learning curve, and runs on the scale of the inter-algorithm score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offtrace.scores.by_game import Array, Scores, check_same_games, game_runs, real_numbers, vector
from offtrace.scores.scale import GameScale, binary_exponent, noise_floor, scale_between


@dataclass(frozen=True)
class RunScore:
    """The score of one run. `value` is None, with the `reason`, if no episode ended in the scored stretch."""

    value: float | None
    num_episodes: int
    reason: str | None = None


def area_under_curve(*, steps: ArrayLike, returns: ArrayLike) -> float:
    """Return the mean height of a learning curve: the area of its trapezoids divided by the range of steps.

    Shapes: `steps` (points,), strictly increasing; `returns` (points,) → a float in the unit of
    the returns.

    A point that was not measured (nan) raises: leave it out of both.

    >>> area_under_curve(steps=[0, 100, 400], returns=[0.0, 4.0, 4.0])  # (½·4·100 + 4·300) / 400
    3.5
    """
    returns = vector(returns, name="returns", remedy="Leave the point out of both.")
    steps = _checked_steps(steps, returns)
    if len(steps) < 2:
        raise ValueError(f"`steps` must have at least 2 points; got {len(steps)}. One point has no area under it.")
    return float(np.trapezoid(returns, steps) / (steps[-1] - steps[0]))


def run_score(
    *,
    steps: ArrayLike,
    returns: ArrayLike,
    num_episodes: ArrayLike,
    share: float = 0.1,
    end: Literal["last", "first"] = "last",
) -> RunScore:
    """Return the mean return of the training episodes in the last (or first) tenth of a run.

        Σ_k n_k G_k / Σ_k n_k over the ticks k that end in the stretch

    Shapes: `steps` (ticks,), steps or frames from the start of the run to the end of each tick;
    `returns` (ticks,), the mean return of the episodes that ended in it; `num_episodes` (ticks,),
    how many did.

    A tick belongs to where it ends: with T = `steps[-1]` the last share is ((1 − share)·T, T], the
    first is [0, share·T], and a share of 0.1 is exactly a tenth. The return of a tick without
    episodes is never read, so it may be nan. If no episode ended in the stretch the value is None,
    and the reason says so.

    >>> steps, returns = [0, 50, 90, 95, 100], [float("nan"), 1.0, 9.0, 2.0, 5.0]
    >>> run_score(steps=steps, returns=returns, num_episodes=[0, 8, 4, 2, 1])  # (2·2 + 1·5) / 3
    RunScore(value=3.0, num_episodes=3, reason=None)
    >>> run_score(steps=steps, returns=returns, num_episodes=[0, 8, 4, 2, 1], end="first").reason
    'no episode ended in the first 0.1 of 100 steps; increase `share` or train for longer'
    """
    if end not in ("last", "first"):
        raise ValueError(f"`end` must be 'last' or 'first'; got {end!r}.")
    if not 0.0 < share <= 1.0:
        raise ValueError(f"`share` must lie in (0, 1]; got {share}. A tenth of the run is 0.1.")
    steps, returns, num_episodes = _checked_ticks(steps, returns, num_episodes)
    inside = _stretch(steps, share, end)
    total = num_episodes[inside].sum()
    if total == 0.0:
        reason = (
            f"no episode ended in the {end} {share:g} of {steps[-1]:.15g} steps; increase `share` or train for longer"
        )
        return RunScore(None, 0, reason)
    return RunScore(float(num_episodes[inside] @ returns[inside] / total), int(total))


def _checked_ticks(steps: ArrayLike, returns: ArrayLike, num_episodes: ArrayLike) -> tuple[Array, Array, Array]:
    """Return the ticks of a run, with return 0 where no episode ended."""
    num_episodes = vector(num_episodes, name="num_episodes", remedy="Give 0 where no episode ended.")
    wrong = (num_episodes < 0.0) | (num_episodes != np.floor(num_episodes))
    if wrong.any():
        tick = int(np.argmax(wrong))
        raise ValueError(
            f"`num_episodes` must be counts; got {num_episodes[tick]} at index {tick}. "
            "Give the number of episodes that ended in the tick."
        )
    returns = real_numbers(returns, name="returns")
    if returns.shape != num_episodes.shape:
        raise ValueError(
            f"`returns` must have one number per entry of `num_episodes`; got shapes {returns.shape} and "
            f"{num_episodes.shape}. Give nan where no episode ended."
        )
    returns = np.where(num_episodes > 0.0, returns, 0.0)
    returns = vector(returns, name="returns", remedy="A tick in which episodes ended has a mean return.")
    steps = _checked_steps(steps, returns)
    if steps[0] < 0.0 or steps[-1] == 0.0:
        raise ValueError(
            f"`steps` must count from 0 to the end of the run; got {steps[0]:g} to {steps[-1]:g}. "
            "Give the steps since the start of the run."
        )
    return steps, returns, num_episodes


def _stretch(steps: Array, share: float, end: str) -> NDArray[np.bool_]:
    """Return which ticks end in the first or last share of a run."""
    # The share as the decimal 0.1, not as the float next to it: the tick at exactly nine tenths must not depend on
    # rounding.
    stretch = Fraction(repr(float(share))) * Fraction(float(steps[-1]))
    if end == "last":
        return steps > float(Fraction(float(steps[-1])) - stretch)
    return steps <= float(stretch)


def normalised(scores_by_algorithm: Mapping[str, Scores], *, clip: bool = False) -> dict[str, dict[str, Array]]:
    """Return every run on the scale of its game: 0 is the worst algorithm's mean, 1 the best one's.

        z_{g,a,i} = (s_{g,a,i} − min_b s̄_{g,b}) / (max_b s̄_{g,b} − min_b s̄_{g,b})        (Sec. 5, with means s̄)

    The result has the layout of `scores_by_algorithm`: algorithm, then game, then runs.

    The mean of an algorithm's z on a game is its `inter_algorithm_scores`, so the paper's average
    is the `mean` of the result. Single runs may lie outside [0, 1], unless `clip` is True. Where
    the means differ by no more than noise explains, the scale is as wide as that noise, and they
    lie around 1/2 (see `offtrace.scores.scale`). Where nothing differs at all, every run is 1/2.
    An interval of z takes the two ends of the scale as known.

    >>> z = normalised({"retrace": {"pong": [18.0, 22.0]}, "dqn": {"pong": [10.0, 10.0, 10.0]}})
    >>> z["retrace"]["pong"], z["dqn"]["pong"]
    (array([0.8, 1.2]), array([0., 0., 0.]))
    """
    if len(scores_by_algorithm) < 2:
        raise ValueError(
            f"`scores_by_algorithm` must have at least 2 algorithms to compare; got {list(scores_by_algorithm)}. "
            "Add a baseline."
        )
    vectors = {
        name: game_runs(scores, name=f"scores_by_algorithm[{name!r}]") for name, scores in scores_by_algorithm.items()
    }
    first, *others = vectors
    for other in others:
        check_same_games(vectors[first], vectors[other], names=(first, other))
    z: dict[str, dict[str, Array]] = {
        name: dict.fromkeys(scores, np.empty(0)) for name, scores in scores_by_algorithm.items()
    }
    for g, game in enumerate(vectors[first].games):
        runs = {name: every.values[every.slices[g]] for name, every in vectors.items()}
        exponent = binary_exponent(np.concatenate([*runs.values()]))
        runs = {name: np.ldexp(values, -exponent) for name, values in runs.items()}
        scale = game_scale([*runs.values()])
        for name, values in runs.items():
            scores = scale.apply(values)
            if clip:
                scores = np.clip(scores, 0.0, 1.0)
            z[name][game] = scores
    return z


def game_scale(cells: Sequence[Array]) -> GameScale:
    """Return the scale of one game from the runs of each algorithm."""
    means = [_exact_mean(cell) for cell in cells]
    floor = noise_floor(
        squares=np.array(sum(((cell - mean) ** 2).sum() for cell, mean in zip(cells, means, strict=True))),
        num_cells=np.array(len(cells)),
        num_runs=np.array(sum(len(cell) for cell in cells)),
        inverse_sizes=np.array(sum(1.0 / len(cell) for cell in cells)),
    )
    return scale_between(np.array(min(means)), np.array(max(means)), floor)


def _checked_steps(steps: ArrayLike, returns: Array) -> Array:
    steps = vector(steps, name="steps", remedy="Give the steps at each point.")
    if steps.shape != returns.shape:
        raise ValueError(
            f"`steps` and `returns` must have the same length; got {len(steps)} and {len(returns)}. "
            "Give both for every point."
        )
    rises = np.diff(steps) > 0.0
    if not rises.all():
        place = int(np.argmin(rises)) + 1
        raise ValueError(
            f"`steps` must increase strictly; got {steps[place]:g} after {steps[place - 1]:g} at index {place}. "
            "Sort the points and leave out duplicates."
        )
    return steps


def _exact_mean(values: Array) -> float:
    """Return the mean, rounded once: equal means are then equal, whatever the number and order of the runs."""
    return float(sum((Fraction(value) for value in values.tolist()), Fraction(0)) / len(values))
