"""The runs of one algorithm on several games side by side, and what is refused as such."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Scores = Mapping[str, ArrayLike]


class Pool(NamedTuple):
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


def pool_of(scores: Scores, *, name: str) -> Pool:
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"`{name}` must map games to the scores of their runs, got {type(scores)}; one game is a dict too"
        )
    if not scores:
        raise ValueError(f"`{name}` must have at least 1 game, got none; add a game")
    games = tuple(sorted(scores))
    runs = []
    for game in games:
        values = real_numbers(scores[game], name=f"{name}[{game!r}]")
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
    return Pool(games, sizes, np.concatenate(runs), weights)


def two_pools(first: Scores, second: Scores, *, names: tuple[str, str]) -> tuple[Pool, Pool]:
    pools = pool_of(first, name=names[0]), pool_of(second, name=names[1])
    check_games(*pools, names=names)
    return pools


def check_games(first: Pool, second: Pool, *, names: tuple[str, str]) -> None:
    alone = sorted(set(first.games) ^ set(second.games))
    if alone:
        has, lacks = names if alone[0] in first.games else names[::-1]
        raise ValueError(
            f"`{names[0]}` and `{names[1]}` must have the same games, got {alone[0]!r} in `{has}` only; "
            f"run it for `{lacks}` or leave it out of both"
        )


def vector(values: ArrayLike, *, name: str, remedy: str) -> Array:
    vector = real_numbers(values, name=name)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"`{name}` must be a vector of at least 1 number, got shape {vector.shape}; {remedy}")
    if not np.isfinite(vector).all():
        place = int(np.argmin(np.isfinite(vector)))
        raise ValueError(f"`{name}` must be finite, got {vector[place]} at index {place}; {remedy}")
    return vector


def real_numbers(values: ArrayLike, *, name: str, remedy: str = "give one number a run") -> Array:
    try:
        array = np.asarray(values)
    except ValueError as ragged:
        raise ValueError(f"`{name}` must be an array, got rows of different lengths; {remedy}") from ragged
    if array.dtype.kind not in "fiub":
        raise TypeError(f"`{name}` must hold real numbers, got dtype {array.dtype}; convert it to float first")
    return array.astype(np.float64)
