"""Runs by game, algorithm and λ: what the paper's tables, figures and claims are made of, its own and new ones alike.

Two scales, each averaged over games (Sec. 5, App. F):

    score   within one λ: 0 is the worst and 1 the best mean of a game over algorithms, as in the paper's Table 2.
            DQN has no λ and is the same run at each, but its score differs, as what it is compared with does.
    level   over all λ:   0 is the worst and 1 the best mean of a game over algorithms and λ. Only levels can be
            compared across λ.

A game whose means differ by no more than noise explains has a wider scale (`offtrace.scores.scale`). Where the scores
of random and of optimal play are known, both scales go from the one to the other instead.

Intervals are Student's t: of seeds, with the two ends of a scale as they were found. A comparison of one run each
(the published one) takes games instead, if it says so by its `unit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from offtrace.scores.blocks import LEVEL, Blocks
from offtrace.scores.cells import Cells, Scale, by_seed, gathered
from offtrace.scores.declared import check_declared
from offtrace.scores.layout import BASELINES, SINGLE, Averages, Key, Statistics, Stretch, Table, in_order, is_baseline
from offtrace.scores.published import AveragesByLambda, published_table_2, published_table_3
from offtrace.scores.scale import Array
from offtrace.scores.today import statistics_of

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


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is compared: the scores of every run of every cell.

    >>> runs = {Key("pong", "retrace", 1.0): (20.0, 21.0), Key("pong", "dqn", 0.0): (8.0, 9.0)}
    >>> mine = Comparison("mine", {"final": runs})
    >>> mine.averages("score").value.tolist()
    [[1.0, 0.0]]
    """

    name: str
    runs: Mapping[Stretch, Mapping[Key, Sequence[float]]]
    """`final`, `early`: mean returns over the last and the first tenth of a run, as it explores; `area`: of its
    learning curve; `evaluation`: of episodes at its end, at ε ≈ 0."""
    unit: Literal["seeds", "games"] = "seeds"
    """What would be drawn anew: intervals are of these."""
    paired: bool = False
    """Run i of every cell has seed i: short for `seeds`."""
    printed: AveragesByLambda | None = None
    """Average scores by λ, of which only these averages are known."""
    final_means: str = "Final: mean returns over the last tenth of a run."
    """What the final scores are, for a caption."""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know of where the runs are from."""
    seeds: Mapping[Stretch, Mapping[Key, Sequence[int]]] = field(default_factory=dict)
    """The seed of each run, in the order of `runs`; what a seed does to several cells is then accounted for."""
    copies: Mapping[Key, Key] = field(default_factory=dict)
    """Cells that *are* another one, as all algorithms are at λ = 0. Equal numbers alone never make a copy."""
    anchors: Mapping[str, tuple[float, float]] | None = None
    """An exact scale for every game: the score of random play, and that of the optimal policy."""
    diverged: Mapping[Key, int] = field(default_factory=dict)
    """How many runs of a cell diverged. They are among its runs, with the worst score of their game."""

    def __post_init__(self) -> None:
        check_declared(self)

    @cached_property
    def _keys(self) -> frozenset[Key]:
        final = self.runs.get("final", {})
        return frozenset(final) | {copy for copy, source in self.copies.items() if source in final}

    @cached_property
    def games(self) -> tuple[str, ...]:
        return tuple(sorted({key.game for key in self._keys}))

    @cached_property
    def algorithms(self) -> tuple[str, ...]:
        """In the paper's order of merit, then others by name, and baselines last; variants after what they vary."""
        return in_order({key.algorithm for key in self._keys})

    @cached_property
    def lambdas(self) -> tuple[float, ...]:
        """Of the algorithms that have one."""
        printed = self.printed.lambdas.tolist() if self.printed else ()
        return tuple(sorted({key.lambda_ for key in self._keys if not is_baseline(key.algorithm)} | {*printed}))

    @property
    def baseline(self) -> str | None:
        return next((name for name in self.algorithms if is_baseline(name)), None)

    def cell(self, game: str, algorithm: str, lambda_: float, stretch: Stretch = "final") -> Array:
        """The scores of its runs, by seed if seeds are known, else in order; empty if there are none."""
        return self._runs(self._source(game, algorithm, lambda_), stretch)[0].copy()

    def num_diverged(self, games: Sequence[str], algorithms: Sequence[str], lambdas: Sequence[float]) -> int:
        """Runs that diverged in these cells; a cell that is a copy of another one counts with it, once.

        >>> one, other = Key("pong", "retrace", 1.0), Key("pong", "dqn", 0.0)
        >>> mine = Comparison("mine", {"final": {one: (20.0, 8.0), other: (8.0, 9.0)}}, diverged={one: 1})
        >>> mine.num_diverged(["pong"], ["retrace", "dqn"], [1.0])
        1
        """
        cells = {self._source(game, name, x) for game in games for name in algorithms for x in lambdas}
        return sum(self.diverged.get(cell, 0) for cell in cells)

    def complete_games(self, lambdas: Sequence[float], stretch: Stretch = "final") -> tuple[str, ...]:
        """Those with a run of every algorithm at every one of these λ."""
        asked = ("complete", tuple(lambdas), stretch)
        if asked not in self._known:
            found, sources = self.runs.get(stretch, {}), self._sources(asked[1])
            is_complete = [all(key in found for row in of for key in row) for of in sources]
            self._known[asked] = tuple(game for game, it_is in zip(self.games, is_complete, strict=True) if it_is)
        return self._known[asked]

    def table(self, lambda_: float, stretch: Stretch = "final") -> Table:
        """As the paper's Table 3."""
        games = self.complete_games([lambda_], stretch)
        cells = [[self.cell(game, name, lambda_, stretch) for name in self.algorithms] for game in games]
        shape = (len(games), len(self.algorithms))
        values = np.array([[cell.mean() for cell in row] for row in cells]).reshape(shape)
        return Table(games, self.algorithms, values, np.array([[c.size for c in row] for row in cells], int))

    def averages(self, scale: Scale, stretch: Stretch = "final", lambdas: Sequence[float] | None = None) -> Averages:
        """As the paper's Table 2, with intervals."""
        blocks = self.blocks(scale, stretch, lambdas)
        low = high = None
        if blocks.rows is not None and blocks.reason is None:
            found = blocks.estimate(np.eye(blocks.value.size).reshape(-1, *blocks.value.shape))
            ends = (end.reshape(blocks.value.shape).T for end in found.interval(LEVEL))
            low, high = (self._in_range(end, blocks.value.T) for end in ends)
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
        """The averages over games, and what they are sums of; of some algorithms only, on the scale of all."""
        lambdas = self.lambdas if lambdas is None else tuple(lambdas)
        names = self.algorithms if algorithms is None else tuple(algorithms)
        games = self.complete_games(lambdas, stretch)
        if self.printed and not games and stretch == "final":
            return self._of_print(self.printed, scale, lambdas, names)
        if not games or not lambdas or (len(self.algorithms) < 2 and self.anchors is None):
            return _nothing(np.full((len(names), len(lambdas)), np.nan), names, lambdas, self._why_nothing(lambdas))
        cells = self._cells(games, lambdas, stretch)
        ends, columns = cells.ends(scale), [self.algorithms.index(name) for name in names]
        means = ends.of(cells.means[cells.source])[:, columns]
        if self.unit == "games":
            rows, sizes = means, np.array([len(games)])
            fills = np.ones((1, *means.shape[1:]), dtype=bool)
        else:
            rows, sizes, fills = cells.rows(scale, columns)
        reason = None
        if sizes.min() < 2:
            reason = "one game has no spread" if self.unit == "games" else SINGLE
        value = means.mean(0)
        if self.anchors is None:
            value = np.clip(value, 0.0, 1.0)  # rounding aside, it is between them
        return Blocks(value, rows, sizes, fills, games, names, lambdas, cells.num_runs, reason)

    def games_without_scale(
        self, scale: Scale = "level", stretch: Stretch = "final", lambdas: Sequence[float] | None = None
    ) -> tuple[str, ...]:
        """Those whose means differ by no more than noise explains; for scores, at one λ or more."""
        lambdas = self.lambdas if lambdas is None else tuple(lambdas)
        games = self.complete_games(lambdas, stretch)
        if not games or not lambdas:
            return ()
        is_floored = self._cells(games, lambdas, stretch).ends(scale).is_floored
        return tuple(game for g, game in enumerate(games) if is_floored[g].any())

    def run_scores(self, lambda_: float, stretch: Stretch = "final") -> dict[str, dict[str, Array]]:
        """Every run at one λ on the scale of the score, cut off at 0 and 1: algorithm, then game, then runs.

        >>> runs = {Key("pong", "retrace", 1.0): (19.0, 21.0), Key("pong", "dqn", 0.0): (10.0, 10.0)}
        >>> Comparison("mine", {"final": runs}).run_scores(1.0)["retrace"]["pong"]  # 0.9 and 1.1
        array([0.9, 1. ])
        """
        games = self.complete_games([lambda_], stretch)
        if not games or (len(self.algorithms) < 2 and self.anchors is None):
            return {}
        cells = self._cells(games, (lambda_,), stretch)
        ends = cells.ends("score")
        return {
            name: {game: np.clip(cells.run_scores(ends, g, a, 0), 0.0, 1.0) for g, game in enumerate(games)}
            for a, name in enumerate(self.algorithms)
        }

    def statistics(self, lambda_: float, stretch: Stretch = "final") -> list[Statistics]:
        """Today's statistics at one λ, one row for each algorithm; none where no game is complete."""
        return statistics_of(self, lambda_, stretch)

    # -- inside ----------------------------------------------------------------------------------------------

    def _source(self, game: str, algorithm: str, lambda_: float) -> Key:
        key = Key(game, algorithm, 0.0 if is_baseline(algorithm) else lambda_)
        return self.copies.get(key, key)

    @cached_property
    def _known(self) -> dict[Any, Any]:
        """What was asked for before."""
        return {}

    def _sources(self, lambdas: tuple[float, ...]) -> list[list[list[Key]]]:
        """Where the runs are, (games, algorithms, λ)."""
        if lambdas not in self._known:
            at = {name: [0.0] * len(lambdas) if is_baseline(name) else lambdas for name in self.algorithms}
            keys = [[[Key(game, name, x) for x in at[name]] for name in self.algorithms] for game in self.games]
            self._known[lambdas] = [[[self.copies.get(key, key) for key in row] for row in of] for of in keys]
        return self._known[lambdas]

    def _runs(self, key: Key, stretch: Stretch) -> tuple[Array, tuple[int, ...] | None]:
        """The runs of a cell and their seeds, both in the order of the seeds."""
        if (key, stretch) not in self._known:
            runs = np.array(self.runs.get(stretch, {}).get(key, ()), dtype=np.float64)
            seeds = self.seeds.get(stretch, {}).get(key)
            if self.paired:
                seeds = range(runs.size)
            self._known[key, stretch] = by_seed(runs, seeds)
        return self._known[key, stretch]

    def _cells(self, games: Sequence[str], lambdas: Sequence[float], stretch: Stretch) -> Cells:
        asked = ("cells", tuple(games), tuple(lambdas), stretch)
        if asked in self._known:
            return self._known[asked]
        is_part = lambdas != self.lambdas and set(lambdas) <= set(self.lambdas)
        if is_part and games == self.complete_games(self.lambdas, stretch):
            found = self._cells(games, self.lambdas, stretch).at([self.lambdas.index(x) for x in lambdas])
        else:
            keys = [of for game, of in zip(self.games, self._sources(asked[2]), strict=True) if game in games]
            anchors = None
            if self.anchors is not None:
                anchors = [self.anchors[game] for game in games]
            found = gathered(keys, lambda key: self._runs(key, stretch), anchors)
        self._known[asked] = found
        return found

    def _in_range(self, ends: Array, value: Array) -> Array:
        """Between the worst and the best; below the optimum, unless the value itself is above it."""
        if self.anchors is None:
            return np.clip(ends, 0.0, 1.0)
        return np.minimum(ends, np.maximum(1.0, value))

    def _why_nothing(self, lambdas: Sequence[float]) -> str:
        if len(self.algorithms) == 1:
            return f"only {self.algorithms[0]} was run"
        at = ", ".join(f"{x:g}" for x in lambdas)
        return f"no game has runs of {' and '.join(self.algorithms) or 'anything'}" + (at and f" at λ = {at}")

    def _of_print(
        self, printed: AveragesByLambda, scale: Scale, lambdas: Sequence[float], names: Sequence[str]
    ) -> Blocks:
        names = tuple(name for name in names if name in printed.algorithms)
        rows, columns = np.isin(printed.lambdas, lambdas), [printed.algorithms.index(name) for name in names]
        found = printed.averages[rows][:, columns].T
        reason = "only averages are printed, without the runs behind them"
        if scale == "level":
            found, reason = np.full_like(found, np.nan), "averages are printed for each λ by itself: no level follows"
        return _nothing(found, names, tuple(printed.lambdas[rows].tolist()), reason)


def _nothing(value: Array, names: Sequence[str], lambdas: Sequence[float], reason: str) -> Blocks:
    nowhere = np.zeros((0, *value.shape), dtype=bool)
    return Blocks(value, None, np.zeros(0, int), nowhere, (), tuple(names), tuple(lambdas), 0, reason)


def published_comparison() -> Comparison:
    """The paper's own: Table 3 as one run of every game at λ = 1, and the averages by λ that Table 2 prints."""
    final = published_table_3()
    runs = {
        Key(game, name, 0.0 if is_baseline(name) else 1.0): (float(final.scores[g, a]),)
        for g, game in enumerate(final.games)
        for a, name in enumerate(final.algorithms)
    }
    return Comparison("The paper's 60 Atari games", {"final": runs}, unit="games", printed=published_table_2())
