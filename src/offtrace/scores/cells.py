"""The runs of all cells of a few games in one vector: their means, their scale, and their blocks.

A cell is a game, an algorithm and a λ; its runs differ in their seeds only
(`offtrace.scores.keys.Key`). Several algorithms may share a cell, as all do at λ = 0, so
algorithms and λ refer to cells by number:

    runs    [ 20 21 | 8 9 | 18 17 ]        cells 0, 1 and 2, with two runs each
    source  [[[ 1 0 ]                      one game: retrace is cell 1 at λ = 0 and cell 0 at λ = 1,
              [ 1 2 ]]]                    tree_backup is cell 1 at λ = 0 (a copy) and cell 2 at λ = 1
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.keys import Key
from offtrace.scores.scale import Array, GameScale, binary_exponent, noise_floor, scale_between

Scale = Literal["score", "level"]
"""`score`: a scale per game and λ. `level`: a scale per game, over all λ."""
BlockRows = tuple[Array, NDArray[np.int64], NDArray[np.bool_]]
"""`rows`, `sizes` and `fills` of `Blocks`."""


@dataclass(frozen=True, eq=False)
class Cells:
    """The runs of all cells in one vector, and the cell of each game, algorithm and λ."""

    runs: Array
    """(runs,): the runs of one cell after the other, each in the order of seeds, divided by a power of 2 per game."""
    sizes: NDArray[np.int64]
    """(cells,): number of runs per cell."""
    seeds: tuple[tuple[int, ...] | None, ...]
    """The sorted seeds of each cell; None where they are unknown."""
    source: NDArray[np.int64]
    """(games, algorithms, λ): the number of the cell. A copy has the number of its original."""
    anchors: Array | None
    """(games, 2): scores of random and optimal play, in the unit of the runs."""

    @cached_property
    def num_runs(self) -> int:
        """Number of runs of the cells in use; a copy counts once."""
        return int(self.sizes[list(set(self.source.ravel().tolist()))].sum())

    def at(self, lambdas: Sequence[int]) -> "Cells":
        """Return the cells at some λ only, given by their indices."""
        return replace(self, source=self.source[:, :, lambdas])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(cells,): the index of the first run of each cell."""
        return np.cumsum(self.sizes) - self.sizes

    @cached_property
    def means(self) -> Array:
        """(cells,): the mean of each cell."""
        return np.add.reduceat(self.runs, self.starts) / self.sizes

    @cached_property
    def squares(self) -> Array:
        """(cells,): Σ_j (x_ij − x̄_i)²."""
        return np.add.reduceat((self.runs - np.repeat(self.means, self.sizes)) ** 2, self.starts)

    @cached_property
    def _cache(self) -> dict[tuple[str, Scale], Any]:
        return {}

    def scales(self, scale: Scale) -> GameScale:
        """Return the scale of every game at every λ, (games, 1, λ)."""
        entry = ("scales", scale)
        if entry not in self._cache:
            self._cache[entry] = self._scales(scale)
        return self._cache[entry]

    def _scales(self, scale: Scale) -> GameScale:
        num_games, _, num_lambdas = self.source.shape
        shape = (num_games, 1, num_lambdas)
        if self.anchors is not None:
            low, high = (np.broadcast_to(self.anchors[:, i, None, None], shape) for i in (0, 1))
            return GameScale(low, np.zeros(shape), high - low, np.zeros(shape, dtype=bool))
        means = self.means[self.source]
        # (games, λ, cells): which cells each scale is made of. A boolean, so that a copy counts once.
        in_scale = np.zeros((num_games, num_lambdas, len(self.sizes)), dtype=bool)
        games = np.arange(num_games)[:, None, None]
        in_scale[games, np.arange(num_lambdas), self.source] = True
        axes: int | tuple[int, ...] = 1
        if scale == "level":
            axes = (1, 2)
            in_scale = in_scale.any(axis=1, keepdims=True)
        floor = noise_floor(
            squares=in_scale @ self.squares,
            num_cells=in_scale.sum(axis=-1),
            num_runs=(in_scale * self.sizes).sum(axis=-1),
            inverse_sizes=in_scale @ (1.0 / self.sizes),
        )
        worst = means.min(axes, keepdims=True)
        best = means.max(axes, keepdims=True)
        return scale_between(worst, best, floor[:, None, :]).broadcast_to(shape)

    def run_scores(self, scales: GameScale, game: int, algorithm: int, lambda_: int) -> Array:
        """Return the score of each run of one cell on its scale."""
        cell = self.source[game, algorithm, lambda_]
        return scales.at((game, 0, lambda_)).apply(self._runs_of(cell))

    def _runs_of(self, cell: int) -> Array:
        start = self.starts[cell]
        return self.runs[start : start + self.sizes[cell]]

    def share_seeds(self, source: NDArray[np.int64]) -> bool:
        """Return whether the seeds of all these cells are known and the same."""
        seeds = {self.seeds[cell] for cell in set(source.ravel().tolist())}
        return len(seeds) == 1 and None not in seeds

    def block_rows(self, scale: Scale, algorithms: Sequence[int]) -> BlockRows:
        """Return rows, sizes and fills of the `Blocks` of these algorithms."""
        entry = ("rows", scale)
        if entry not in self._cache:
            self._cache[entry] = self._block_rows(scale, self.source)
        rows, sizes, fills = self._cache[entry]
        if len(sizes) > 1 and any(seeds is not None for seeds in self.seeds):
            # The cells of a few algorithms may share their seeds even if those of all do not.
            rows, sizes, fills = self._block_rows(scale, self.source[:, algorithms])
        else:
            rows = rows[:, algorithms]
            fills = fills[:, algorithms]
        is_used = fills.any(axis=(1, 2))
        return rows[np.repeat(is_used, sizes)], sizes[is_used], fills[is_used]

    def _block_rows(self, scale: Scale, source: NDArray[np.int64]) -> BlockRows:
        """Return one block if all cells share their seeds; else one per game, or one per cell of a game."""
        scales = self.scales(scale)
        num_games, *rest = source.shape
        everywhere = np.ones((1, *rest), dtype=bool)
        if self.share_seeds(source):
            rows = self._by_seed(scales, source).mean(axis=1)
            return rows, np.array([len(rows)]), everywhere
        blocks = []
        for game in range(num_games):
            game_scales = scales.at(slice(game, game + 1))
            game_source = source[game : game + 1]
            if self.share_seeds(game_source):
                rows = self._by_seed(game_scales, game_source)[:, 0]
                blocks.append((rows, np.array([len(rows)]), everywhere))
            else:
                blocks.append(self._by_cell(game_scales, game_source))
        rows, sizes, fills = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return rows / num_games, sizes, fills

    def _by_seed(self, scales: GameScale, source: NDArray[np.int64]) -> Array:
        """Return scores as (seeds, games, algorithms, λ); all cells have the same seeds."""
        seeds = np.arange(self.sizes[source.flat[0]])
        return scales.apply(self.runs[self.starts[source] + seeds[:, None, None, None]])

    def _by_cell(self, scales: GameScale, source: NDArray[np.int64]) -> BlockRows:
        """Return one block per cell of one game: its runs, wherever the cell is used, and 0 elsewhere."""
        cells = np.unique(source)
        sizes = self.sizes[cells]
        fills = source == cells[:, None, None]
        runs = np.concatenate([self._runs_of(cell) for cell in cells.tolist()])
        rows = scales.apply(runs[:, None, None])
        return np.where(np.repeat(fills, sizes, axis=0), rows, 0.0), sizes, fills


def gather_cells(
    keys: Sequence[Sequence[Sequence[Key]]],
    runs_of: Callable[[Key], tuple[Array, tuple[int, ...] | None]],
    anchors: Sequence[tuple[float, float]] | None,
) -> Cells:
    """Return the cells of `keys`, (games, algorithms, λ); `runs_of` returns the runs of a cell and their seeds."""
    numbers: dict[Key, int] = {}
    for game in keys:
        for row in game:
            for key in row:
                numbers.setdefault(key, len(numbers))
    source = np.array([[[numbers[key] for key in row] for row in game] for game in keys])
    found = [runs_of(key) for key in numbers]
    exponents = np.array(_exponents(source, [runs for runs, _ in found], anchors))
    names = [game[0][0].game for game in keys]
    game_of_cell = np.array([names.index(key.game) for key in numbers])
    sizes = np.array([len(runs) for runs, _ in found])
    scaled_anchors = None
    if anchors is not None:
        scaled_anchors = np.ldexp(np.array(anchors), -exponents[:, None])
    return Cells(
        runs=np.ldexp(np.concatenate([runs for runs, _ in found]), -np.repeat(exponents[game_of_cell], sizes)),
        sizes=sizes,
        seeds=tuple(seeds for _, seeds in found),
        source=source,
        anchors=scaled_anchors,
    )


def _exponents(
    source: NDArray[np.int64], runs: Sequence[Array], anchors: Sequence[tuple[float, float]] | None
) -> list[int]:
    """Return the exponent of the power of 2 that the runs of each game are divided by."""
    exponents = []
    for g, game in enumerate(source):
        values = [runs[cell] for cell in set(game.ravel().tolist())]
        if anchors is not None:
            values.append(np.array(anchors[g]))
        exponents.append(binary_exponent(np.concatenate(values)))
    return exponents


def sort_by_seed(runs: Array, seeds: Sequence[int] | None) -> tuple[Array, tuple[int, ...] | None]:
    """Return runs and seeds in the order of seeds; without seeds, the runs in the order of their scores.

    >>> sort_by_seed(np.array([5.0, 3.0, 4.0]), [7, 9, 8])
    (array([5., 4., 3.]), (7, 8, 9))
    """
    if seeds is None:
        return np.sort(runs), None
    seeds = tuple(seeds)
    in_order = tuple(sorted(seeds))
    if seeds != in_order:
        runs = runs[np.argsort(seeds, kind="stable")]
    return runs, in_order
