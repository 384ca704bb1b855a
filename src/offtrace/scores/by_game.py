"""Input checks for scores by game, and the runs of one algorithm on several games as one vector."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Scores = Mapping[str, ArrayLike]


class GameRuns(NamedTuple):
    """The runs of all games in one vector, with the games in alphabetical order."""

    games: tuple[str, ...]
    sizes: tuple[int, ...]
    """Number of runs per game."""
    values: Array
    weights: Array
    """L/n_g with L the least common multiple of all n_g: integers, so halves and quarters of them are exact."""

    @property
    def slices(self) -> list[slice]:
        """The part of `values` that belongs to each game."""
        ends = np.cumsum(self.sizes).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]


def game_runs(scores: Scores, *, name: str) -> GameRuns:
    """Check a mapping from game to scores, and return its runs as one vector."""
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"`{name}` must map games to the scores of their runs; got {type(scores)}. "
            "Give a dict, also for a single game."
        )
    if not scores:
        raise ValueError(f"`{name}` must have at least 1 game; got none. Add a game.")
    games = tuple(sorted(scores))
    runs = []
    for game in games:
        values = real_numbers(scores[game], name=f"{name}[{game!r}]")
        if values.ndim != 1 or not len(values):
            raise ValueError(
                f"`{name}` must have a vector of at least 1 run per game; got shape {values.shape} at game "
                f"{game!r}. Leave out games without runs."
            )
        if not np.isfinite(values).all():
            run = int(np.argmin(np.isfinite(values)))
            raise ValueError(
                f"`{name}` must be finite; got {values[run]} at game {game!r}, run {run}. "
                "Finish the run or leave it out."
            )
        runs.append(values)
    sizes = tuple(len(values) for values in runs)
    multiple = math.lcm(*sizes)
    weights = np.repeat([float(multiple // size) for size in sizes], sizes)
    return GameRuns(games, sizes, np.concatenate(runs), weights)


def same_game_runs(first: Scores, second: Scores, *, names: tuple[str, str]) -> tuple[GameRuns, GameRuns]:
    """Return the runs of two algorithms, which must have the same games."""
    runs = game_runs(first, name=names[0]), game_runs(second, name=names[1])
    check_same_games(*runs, names=names)
    return runs


def check_same_games(first: GameRuns, second: GameRuns, *, names: tuple[str, str]) -> None:
    unpaired = sorted(set(first.games) ^ set(second.games))
    if not unpaired:
        return
    has, lacks = names
    if unpaired[0] not in first.games:
        lacks, has = names
    raise ValueError(
        f"`{names[0]}` and `{names[1]}` must have the same games; got {unpaired[0]!r} in `{has}` only. "
        f"Run it for `{lacks}` or leave it out of both."
    )


def vector(values: ArrayLike, *, name: str, remedy: str) -> Array:
    """Return `values` as a vector of finite numbers."""
    vector = real_numbers(values, name=name)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"`{name}` must be a vector of at least 1 number; got shape {vector.shape}. {remedy}")
    if not np.isfinite(vector).all():
        place = int(np.argmin(np.isfinite(vector)))
        raise ValueError(f"`{name}` must be finite; got {vector[place]} at index {place}. {remedy}")
    return vector


def real_numbers(values: ArrayLike, *, name: str, remedy: str = "Give one number per run.") -> Array:
    """Return `values` as an array of float64."""
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise ValueError(f"`{name}` must be an array; got rows of different lengths. {remedy}") from ragged
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must hold real numbers; got dtype {array.dtype}. Convert it to float first.")
    return array.astype(np.float64)
