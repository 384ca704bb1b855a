"""The different cells of a few games side by side: their means, their scale, and the blocks that they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.layout import Key
from offtrace.scores.scale import Array, Ends, ends_of, noise_floor, unit_of

Scale = Literal["score", "level"]
Rows = tuple[Array, NDArray[np.int64], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Cells:
    """Runs of all cells, one cell after the other, and which of them each algorithm and λ is."""

    runs: Array
    """(runs,), those of a cell in the order of their seeds. Every game has a unit of its own, a power of 2."""
    sizes: NDArray[np.int64]
    """(cells,)"""
    seeds: tuple[tuple[int, ...] | None, ...]
    """Of each cell, sorted; None where they are not known."""
    source: NDArray[np.int64]
    """(games, algorithms, λ): the number of the cell. Copies have the same."""
    anchors: Array | None
    """(games, 2), in the unit of the runs."""

    @cached_property
    def num_runs(self) -> int:
        """Of the cells that are anywhere; a copy counts once."""
        return int(self.sizes[list(set(self.source.ravel().tolist()))].sum())

    def at(self, lambdas: Sequence[int]) -> "Cells":
        """The same at some λ only."""
        return replace(self, source=self.source[:, :, lambdas])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def means(self) -> Array:
        """(cells,)"""
        return np.add.reduceat(self.runs, self.starts) / self.sizes

    @cached_property
    def squares(self) -> Array:
        """(cells,): Σ_j (x_ij − x̄_i)²."""
        return np.add.reduceat((self.runs - np.repeat(self.means, self.sizes)) ** 2, self.starts)

    @cached_property
    def _known(self) -> dict[tuple[str, Scale], Any]:
        """What was asked for before."""
        return {}

    def ends(self, scale: Scale) -> Ends:
        """The scale at every place, (games, 1, λ)."""
        asked = ("ends", scale)
        if asked not in self._known:
            self._known[asked] = self._ends(scale)
        return self._known[asked]

    def _ends(self, scale: Scale) -> Ends:
        """The scale at every place, (games, 1, λ): the same at each λ if it is of levels."""
        num_games, _, num_lambdas = self.source.shape
        shape = (num_games, 1, num_lambdas)
        if self.anchors is not None:
            low, high = (np.broadcast_to(self.anchors[:, i, None, None], shape) for i in (0, 1))
            return Ends(low, np.zeros(shape), high - low, np.zeros(shape, dtype=bool))
        means, axes = self.means[self.source], 1 if scale == "score" else (1, 2)
        counts = np.zeros((num_games, num_lambdas, len(self.sizes)), dtype=bool)
        games, lambdas = np.arange(num_games)[:, None, None], np.arange(num_lambdas)
        counts[games, lambdas, self.source] = True  # a copy counts once
        if scale == "level":
            counts = counts.any(axis=1, keepdims=True)
        floor = noise_floor(
            squares=counts @ self.squares,
            num_cells=counts.sum(axis=-1),
            num_runs=(counts * self.sizes).sum(axis=-1),
            inverse_sizes=counts @ (1.0 / self.sizes),
        )
        found = ends_of(means.min(axes, keepdims=True), means.max(axes, keepdims=True), floor[:, None, :])
        return found.to(shape)

    def run_scores(self, ends: Ends, game: int, algorithm: int, lambda_: int) -> Array:
        """Of each run at this place."""
        cell = self.source[game, algorithm, lambda_]
        start = self.starts[cell]
        return ends.at((game, 0, lambda_)).of(self.runs[start : start + self.sizes[cell]])

    def share_seeds(self, source: NDArray[np.int64]) -> bool:
        """Whether all these cells have the same seeds, and say so."""
        seeds = {self.seeds[cell] for cell in set(source.ravel().tolist())}
        return len(seeds) == 1 and None not in seeds

    def rows(self, scale: Scale, algorithms: Sequence[int]) -> Rows:
        """Blocks of these algorithms, as `Blocks` has them: its rows, sizes and fills."""
        asked = ("rows", scale)
        if asked not in self._known:
            self._known[asked] = self._rows(scale, self.source)
        rows, sizes, fills = self._known[asked]
        if len(sizes) > 1 and any(seeds is not None for seeds in self.seeds):
            rows, sizes, fills = self._rows(scale, self.source[:, algorithms])  # fewer cells may share their seeds
        else:
            rows, fills = rows[:, algorithms], fills[:, algorithms]
        is_in = fills.any(axis=(1, 2))
        return rows[np.repeat(is_in, sizes)], sizes[is_in], fills[is_in]

    def _rows(self, scale: Scale, source: NDArray[np.int64]) -> Rows:
        ends, (num_games, *places) = self.ends(scale), source.shape
        everywhere = np.ones((1, *places), dtype=bool)
        if self.share_seeds(source):
            rows = self._paired(ends, source).mean(axis=1)
            return rows, np.array([len(rows)]), everywhere
        found = []
        for game in range(num_games):
            here, one = ends.at(slice(game, game + 1)), source[game : game + 1]
            if self.share_seeds(one):
                rows = self._paired(here, one)[:, 0]
                found.append((rows, np.array([len(rows)]), everywhere))
            else:
                found.append(self._alone(here, one))
        rows, sizes, fills = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows / num_games, sizes, fills

    def _paired(self, ends: Ends, source: NDArray[np.int64]) -> Array:
        """(seeds, games, algorithms, λ)"""
        seeds = np.arange(self.sizes[source.flat[0]])
        return ends.of(self.runs[self.starts[source] + seeds[:, None, None, None]])

    def _alone(self, ends: Ends, source: NDArray[np.int64]) -> Rows:
        """A block for each cell of one game, wherever it is found."""
        cells = np.unique(source)
        sizes, fills = self.sizes[cells], source == cells[:, None, None]
        runs = np.concatenate([self.runs[self.starts[c] : self.starts[c] + self.sizes[c]] for c in cells.tolist()])
        rows = ends.of(runs[:, None, None])
        return np.where(np.repeat(fills, sizes, axis=0), rows, 0.0), sizes, fills


def gathered(
    keys: Sequence[Sequence[Sequence[Key]]],
    runs_of: Callable[[Key], tuple[Array, tuple[int, ...] | None]],
    anchors: Sequence[tuple[float, float]] | None,
) -> Cells:
    """The cells at these places, (games, algorithms, λ); `runs_of` gives the runs of one and their seeds."""
    numbers: dict[Key, int] = {}
    source = np.array([[[numbers.setdefault(key, len(numbers)) for key in row] for row in game] for game in keys])
    found = [runs_of(key) for key in numbers]
    units = []
    for g, game in enumerate(source):
        values = [found[cell][0] for cell in set(game.ravel().tolist())]
        if anchors is not None:
            values.append(np.array(anchors[g]))
        units.append(unit_of(np.concatenate(values)))
    first = [game[0][0].game for game in keys]
    game_of = np.array([first.index(key.game) for key in numbers])
    sizes = np.array([len(runs) for runs, _ in found])
    return Cells(
        runs=np.ldexp(np.concatenate([runs for runs, _ in found]), -np.repeat(np.array(units)[game_of], sizes)),
        sizes=sizes,
        seeds=tuple(seeds for _, seeds in found),
        source=source,
        anchors=None if anchors is None else np.ldexp(np.array(anchors), -np.array(units)[:, None]),
    )


def by_seed(runs: Array, seeds: Sequence[int] | None) -> tuple[Array, tuple[int, ...] | None]:
    """Runs in the order of their seeds, and these; without seeds, in the order of their scores.

    >>> by_seed(np.array([5.0, 3.0, 4.0]), [7, 9, 8])
    (array([5., 4., 3.]), (7, 8, 9))
    """
    if seeds is None:
        return np.sort(runs), None
    seeds = tuple(seeds)
    in_order = tuple(sorted(seeds))
    if seeds != in_order:
        runs = runs[np.argsort(seeds, kind="stable")]
    return runs, in_order
