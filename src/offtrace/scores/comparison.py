"""Runs by game, algorithm and λ, from which tables, figures and verdicts are made, the paper's and new ones alike.

Two scales, each averaged over games (Sec. 5, App. F):

    score   within one λ: 0 is the worst and 1 the best mean of a game over algorithms, as in the paper's Table 2.
            DQN has no λ. Its runs are the same at every λ, but its score differs, as its competitors do.
    level   over all λ:   0 is the worst and 1 the best mean of a game over algorithms and λ. Only levels can be
            compared across λ.

A game whose means differ by no more than noise explains has a wider scale
(`offtrace.scores.scale`). Where the scores of random and of optimal play are known, both scales
are exact instead: 0 is random play and 1 is optimal.

Intervals are Student's t over seeds, with the two ends of a scale taken as known. A comparison of
single runs (the published one) has intervals over games instead, if its `unit` says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np

from offtrace.scores.blocks import LEVEL, Blocks
from offtrace.scores.cells import Cells, Scale, gather_cells, sort_by_seed
from offtrace.scores.checks import check_comparison
from offtrace.scores.keys import BASELINES, Key, Stretch, in_order, is_baseline, plain_name
from offtrace.scores.published import AveragesByLambda, published_table_2, published_table_3
from offtrace.scores.scale import Array
from offtrace.scores.statistics import statistics_at
from offtrace.scores.summaries import SINGLE_RUN, Averages, Statistics, Table

__all__ = [
    "BASELINES",
    "LEVEL",
    "Array",
    "Averages",
    "Comparison",
    "Key",
    "Scale",
    "Statistics",
    "Stretch",
    "Table",
    "is_baseline",
    "published_comparison",
]

Computed = TypeVar("Computed")


@dataclass(frozen=True, eq=False)
class Comparison:
    """The scores of all runs to compare, by cell: game, algorithm and λ.

    >>> runs = {Key("pong", "retrace", 1.0): (20.0, 21.0), Key("pong", "dqn", 0.0): (8.0, 9.0)}
    >>> mine = Comparison("mine", {"final": runs})
    >>> mine.averages("score").value.tolist()
    [[1.0, 0.0]]
    """

    name: str
    runs: Mapping[Stretch, Mapping[Key, Sequence[float]]]
    """Scores of the runs of each cell. `final`, `early`: mean returns over the last and the first tenth of a run,
    under exploration; `area`: mean height of its learning curve; `evaluation`: mean return at its
    end, at ε ≈ 0."""
    unit: Literal["seeds", "games"] = "seeds"
    """The unit of intervals: they generalise to new seeds, or to new games."""
    paired: bool = False
    """Whether run i of every cell has seed i: short for `seeds`."""
    printed: AveragesByLambda | None = None
    """Average scores by λ that were published without the runs behind them."""
    final_means: str = "Final: mean returns over the last tenth of a run."
    """Meaning of the final scores, for a caption."""
    notes: tuple[str, ...] = field(default=())
    """Remarks on the origin of the runs, for a reader."""
    seeds: Mapping[Stretch, Mapping[Key, Sequence[int]]] = field(default_factory=dict)
    """The seed of each run, in the order of `runs`. Effects of a seed on several cells are then accounted for."""
    copies: Mapping[Key, Key] = field(default_factory=dict)
    """Cells that are another cell by definition, as all algorithms at λ = 0. Equal numbers do not make a copy."""
    anchors: Mapping[str, tuple[float, float]] | None = None
    """An exact scale per game: the score of random play, and that of the optimal policy."""
    diverged: Mapping[Key, int] = field(default_factory=dict)
    """Number of diverged runs of a cell. They are among its runs, with the worst score of their game."""

    def __post_init__(self) -> None:
        check_comparison(self)

    @cached_property
    def _keys(self) -> frozenset[Key]:
        final = self.runs.get("final", {})
        return frozenset(final) | {copy for copy, source in self.copies.items() if source in final}

    @cached_property
    def games(self) -> tuple[str, ...]:
        return tuple(sorted({key.game for key in self._keys}))

    @cached_property
    def algorithms(self) -> tuple[str, ...]:
        """The algorithms in the paper's order of merit, then others by name, then baselines."""
        return in_order({key.algorithm for key in self._keys})

    @cached_property
    def lambdas(self) -> tuple[float, ...]:
        """The λ of all algorithms that have one."""
        lambdas = {key.lambda_ for key in self._keys if not is_baseline(key.algorithm)}
        if self.printed:
            lambdas |= set(self.printed.lambdas.tolist())
        return tuple(sorted(lambdas))

    @property
    def baseline(self) -> str | None:
        """The first of `BASELINES` that was run, or of their variants, if any."""
        return next((name for name in self.algorithms if plain_name(name) in BASELINES), None)

    def cell(self, game: str, algorithm: str, lambda_: float, stretch: Stretch = "final") -> Array:
        """Return the scores of a cell's runs, in the order of seeds if known, else sorted; empty without runs."""
        return self._runs(self._source(game, algorithm, lambda_), stretch)[0].copy()

    def num_diverged(self, games: Sequence[str], algorithms: Sequence[str], lambdas: Sequence[float]) -> int:
        """Return the number of diverged runs in these cells; a copy counts once, with its original.

        >>> one, other = Key("pong", "retrace", 1.0), Key("pong", "dqn", 0.0)
        >>> mine = Comparison("mine", {"final": {one: (20.0, 8.0), other: (8.0, 9.0)}}, diverged={one: 1})
        >>> mine.num_diverged(["pong"], ["retrace", "dqn"], [1.0])
        1
        """
        cells = {self._source(game, name, x) for game in games for name in algorithms for x in lambdas}
        return sum(self.diverged.get(cell, 0) for cell in cells)

    def complete_games(self, lambdas: Sequence[float], stretch: Stretch = "final") -> tuple[str, ...]:
        """Return the games with a run of every algorithm at every one of these λ."""
        lambdas = tuple(lambdas)

        def compute() -> tuple[str, ...]:
            runs = self.runs.get(stretch, {})
            complete = []
            for game, sources in zip(self.games, self._sources(lambdas), strict=True):
                if all(key in runs for row in sources for key in row):
                    complete.append(game)
            return tuple(complete)

        return self.cached(("complete", lambdas, stretch), compute)

    def table(self, lambda_: float, stretch: Stretch = "final") -> Table:
        """Return the mean scores of complete games, as in the paper's Table 3."""
        games = self.complete_games([lambda_], stretch)
        cells = [[self.cell(game, name, lambda_, stretch) for name in self.algorithms] for game in games]
        shape = (len(games), len(self.algorithms))
        values = np.array([[cell.mean() for cell in row] for row in cells]).reshape(shape)
        sizes = np.array([[cell.size for cell in row] for row in cells], int)
        return Table(games, self.algorithms, values, sizes)

    def averages(self, scale: Scale, stretch: Stretch = "final", lambdas: Sequence[float] | None = None) -> Averages:
        """Return averages over games by λ, as in the paper's Table 2, with intervals."""
        blocks = self.blocks(scale, stretch, lambdas)
        low = high = None
        if blocks.rows is not None and blocks.reason is None:
            each = np.eye(blocks.value.size).reshape(-1, *blocks.value.shape)
            ends = (end.reshape(blocks.value.shape).T for end in blocks.estimate(each).interval(LEVEL))
            low, high = (self._within_scale(end, blocks.value.T) for end in ends)
        return Averages(
            blocks.lambdas,
            blocks.algorithms,
            blocks.value.T,
            low,
            high,
            len(blocks.games),
            blocks.num_runs,
            blocks.reason,
        )

    def blocks(
        self,
        scale: Scale,
        stretch: Stretch = "final",
        lambdas: Sequence[float] | None = None,
        algorithms: Sequence[str] | None = None,
    ) -> Blocks:
        """Return the averages over games and the blocks that they are sums of.

        With `algorithms`, of these only, on the scale of all.
        """
        lambdas = self.lambdas if lambdas is None else tuple(lambdas)
        names = self.algorithms if algorithms is None else tuple(algorithms)
        games = self.complete_games(lambdas, stretch)
        if self.printed and not games and stretch == "final":
            return self._printed_blocks(self.printed, scale, lambdas, names)
        if not games or not lambdas or (len(self.algorithms) < 2 and self.anchors is None):
            value = np.full((len(names), len(lambdas)), np.nan)
            return _blocks_without_rows(value, names, lambdas, self._why_no_averages(lambdas))
        cells = self._cells(games, lambdas, stretch)
        columns = [self.algorithms.index(name) for name in names]
        means = cells.scales(scale).apply(cells.means[cells.source])[:, columns]
        reason = None
        if self.unit == "games":
            rows = means
            sizes = np.array([len(games)])
            fills = np.ones((1, *means.shape[1:]), dtype=bool)
            if len(games) < 2:
                reason = "one game has no spread"
        else:
            rows, sizes, fills = cells.block_rows(scale, columns)
            if sizes.min() < 2:
                reason = SINGLE_RUN
        value = means.mean(0)
        if self.anchors is None:
            value = np.clip(value, 0.0, 1.0)  # it lies there but for rounding
        return Blocks(value, rows, sizes, fills, games, names, lambdas, cells.num_runs, reason)

    def games_without_scale(
        self, scale: Scale = "level", stretch: Stretch = "final", lambdas: Sequence[float] | None = None
    ) -> tuple[str, ...]:
        """Return the games whose means differ by no more than noise explains; for scores, at one λ or more."""
        lambdas = self.lambdas if lambdas is None else tuple(lambdas)
        games = self.complete_games(lambdas, stretch)
        if not games or not lambdas:
            return ()
        is_floored = self._cells(games, lambdas, stretch).scales(scale).is_floored
        return tuple(game for g, game in enumerate(games) if is_floored[g].any())

    def run_scores(self, lambda_: float, stretch: Stretch = "final") -> dict[str, dict[str, Array]]:
        """Return every run at one λ on the scale of the score, clipped to [0, 1]: algorithm, then game, then runs.

        >>> runs = {Key("pong", "retrace", 1.0): (19.0, 21.0), Key("pong", "dqn", 0.0): (10.0, 10.0)}
        >>> Comparison("mine", {"final": runs}).run_scores(1.0)["retrace"]["pong"]  # 0.9 and 1.1
        array([0.9, 1. ])
        """
        games = self.complete_games([lambda_], stretch)
        if not games or (len(self.algorithms) < 2 and self.anchors is None):
            return {}
        cells = self._cells(games, (lambda_,), stretch)
        scales = cells.scales("score")
        return {
            name: {game: np.clip(cells.run_scores(scales, g, a, 0), 0.0, 1.0) for g, game in enumerate(games)}
            for a, name in enumerate(self.algorithms)
        }

    def statistics(self, lambda_: float, stretch: Stretch = "final") -> list[Statistics]:
        """Return aggregate statistics at one λ, one entry per algorithm; none if no game is complete."""
        return statistics_at(self, lambda_, stretch)

    def cached(self, entry: Any, compute: Callable[[], Computed]) -> Computed:
        """Return `compute()`, which is called once per entry."""
        if entry not in self._cache:
            self._cache[entry] = compute()
        return self._cache[entry]

    # -- inside ----------------------------------------------------------------------------------------------

    @cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def _source(self, game: str, algorithm: str, lambda_: float) -> Key:
        """Return the cell that has the runs of a game, algorithm and λ."""
        if is_baseline(algorithm):
            lambda_ = 0.0
        key = Key(game, algorithm, lambda_)
        return self.copies.get(key, key)

    def _sources(self, lambdas: tuple[float, ...]) -> list[list[list[Key]]]:
        """Return the cells that have the runs, (games, algorithms, λ)."""
        return self.cached(
            ("sources", lambdas),
            lambda: [
                [[self._source(game, name, x) for x in lambdas] for name in self.algorithms] for game in self.games
            ],
        )

    def _runs(self, key: Key, stretch: Stretch) -> tuple[Array, tuple[int, ...] | None]:
        """Return the runs of a cell and their seeds, both in the order of seeds."""

        def compute() -> tuple[Array, tuple[int, ...] | None]:
            runs = np.array(self.runs.get(stretch, {}).get(key, ()), dtype=np.float64)
            seeds = self.seeds.get(stretch, {}).get(key)
            if self.paired:
                seeds = range(runs.size)
            return sort_by_seed(runs, seeds)

        return self.cached(("runs", key, stretch), compute)

    def _cells(self, games: Sequence[str], lambdas: Sequence[float], stretch: Stretch) -> Cells:
        entry = ("cells", tuple(games), tuple(lambdas), stretch)
        return self.cached(entry, lambda: self._gather(games, tuple(lambdas), stretch))

    def _gather(self, games: Sequence[str], lambdas: tuple[float, ...], stretch: Stretch) -> Cells:
        is_part = lambdas != self.lambdas and set(lambdas) <= set(self.lambdas)
        if is_part and games == self.complete_games(self.lambdas, stretch):
            # A part of the cells at all λ, which have been gathered before or will be needed.
            return self._cells(games, self.lambdas, stretch).at([self.lambdas.index(x) for x in lambdas])
        sources = zip(self.games, self._sources(lambdas), strict=True)
        keys = [of_game for game, of_game in sources if game in games]
        anchors = None
        if self.anchors is not None:
            anchors = [self.anchors[game] for game in games]
        return gather_cells(keys, lambda key: self._runs(key, stretch), anchors)

    def _within_scale(self, ends: Array, value: Array) -> Array:
        """Return the ends of intervals, cut off at 0 and 1.

        On an exact scale they are only cut off at the optimum, unless the value itself is above
        it.
        """
        if self.anchors is None:
            return np.clip(ends, 0.0, 1.0)
        return np.minimum(ends, np.maximum(1.0, value))

    def _why_no_averages(self, lambdas: Sequence[float]) -> str:
        if len(self.algorithms) == 1:
            return f"only {self.algorithms[0]} was run"
        reason = f"no game has runs of {' and '.join(self.algorithms) or 'anything'}"
        if lambdas:
            reason += f" at λ = {', '.join(f'{x:g}' for x in lambdas)}"
        return reason

    def _printed_blocks(
        self, printed: AveragesByLambda, scale: Scale, lambdas: Sequence[float], names: Sequence[str]
    ) -> Blocks:
        names = tuple(name for name in names if name in printed.algorithms)
        rows = np.isin(printed.lambdas, lambdas)
        columns = [printed.algorithms.index(name) for name in names]
        value = printed.averages[rows][:, columns].T
        reason = "only averages are printed, without the runs behind them"
        if scale == "level":
            value = np.full_like(value, np.nan)
            reason = "the printed averages are normalised within each λ, so levels cannot be computed from them"
        return _blocks_without_rows(value, names, tuple(printed.lambdas[rows].tolist()), reason)


def _blocks_without_rows(value: Array, names: Sequence[str], lambdas: Sequence[float], reason: str) -> Blocks:
    sizes = np.zeros(0, int)
    fills = np.zeros((0, *value.shape), dtype=bool)
    return Blocks(value, None, sizes, fills, (), tuple(names), tuple(lambdas), 0, reason)


@cache
def published_comparison() -> Comparison:
    """Return the paper's results: Table 3 as one run per game at λ = 1, and the averages by λ of Table 2."""
    final = published_table_3()
    runs = {}
    for a, name in enumerate(final.algorithms):
        lambda_ = 0.0 if is_baseline(name) else 1.0
        for g, game in enumerate(final.games):
            runs[Key(game, name, lambda_)] = (float(final.scores[g, a]),)
    return Comparison(
        "The paper's 60 Atari games",
        MappingProxyType({"final": MappingProxyType(runs)}),
        unit="games",
        printed=published_table_2(),
    )
