"""Runs by game, algorithm and λ: what the paper's tables, figures and claims are made of, its own and new ones alike.

Two scales, each averaged over games (Sec. 5, App. F):

    score   within one λ: 0 is the worst and 1 the best mean of a game over algorithms, as in the paper's Table 2.
            DQN has no λ and is the same run at each, but its score differs, as what it is compared with does.
    level   over all λ:   0 is the worst and 1 the best mean of a game over algorithms and λ. Only levels can be
            compared across λ.

Intervals are percentiles of a bootstrap that draws the seeds of every cell again, and takes the two ends of a scale
as they were found; a copy of a cell (all algorithms are one at λ = 0, DQN is the same at every λ) is drawn with it. A
comparison of one run each (the published one) draws games instead, if it says so by its `unit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.estimates import iqm, mean, optimality_gap
from offtrace.scores.intervals import Interval, interval, probability_of_improvement
from offtrace.scores.published import AveragesByLambda, published_table_2, published_table_3
from offtrace.scores.runs import normalised

Array = NDArray[np.float64]
Stretch = Literal["final", "early", "area"]
Scale = Literal["score", "level"]

BASELINES = ("dqn", "one_step")
"""They have no λ: one run is theirs at every λ, stored at 0."""
ORDER = ("retrace", "tree_backup", "q_lambda", "q_star", "dqn", "one_step")
NUM_DRAWS = 2000
LEVEL = 0.95


class Key(NamedTuple):
    """A cell."""

    game: str
    algorithm: str
    lambda_: float


@dataclass(frozen=True, eq=False)
class Table:
    """Mean scores at one λ, of games with runs of every algorithm: `values` and `num_runs` (games, algorithms)."""

    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    values: Array
    num_runs: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Averages:
    """Averages over games, (λ, algorithms) each; where `low` and `high` are None, `reason` says why."""

    lambdas: tuple[float, ...]
    algorithms: tuple[str, ...]
    value: Array
    low: Array | None
    high: Array | None
    num_games: int
    num_runs: int
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Draws:
    """Averages over games (algorithms, λ), and what other seeds would have given (draws, algorithms, λ)."""

    found: Array
    drawn: Array | None
    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    lambdas: tuple[float, ...]
    num_runs: int
    reason: str | None = None


class Statistics(NamedTuple):
    """Of one algorithm at one λ, on the scale of the inter-algorithm score."""

    algorithm: str
    mean: Interval
    iqm: Interval
    optimality_gap: Interval
    improvement: Interval | None
    """How likely one of its runs beats one of the baseline's; None for the baseline itself, or without one."""
    area: Interval | None
    """The mean for areas under learning curves; None where there are no curves."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """What is compared: the scores of every run of every cell.

    >>> runs = {Key("pong", "retrace", 1.0): (20.0, 21.0), Key("pong", "dqn", 0.0): (18.0, 19.0)}
    >>> mine = Comparison("mine", {"final": runs})
    >>> mine.averages("score").value.tolist()
    [[1.0, 0.0]]
    """

    name: str
    runs: Mapping[Stretch, Mapping[Key, Sequence[float]]]
    """`final`, `early`: mean returns over the last and the first tenth of a run; `area`: of its learning curve."""
    unit: Literal["seeds", "games"] = "seeds"
    """What intervals draw again."""
    paired: bool = False
    """Run i of every cell of a game shares its random numbers, so that they are drawn again together."""
    printed: AveragesByLambda | None = None
    """Average scores by λ, of which only these averages are known."""
    final_means: str = "Final: mean returns over the last tenth of a run."
    """What the final scores are, for a caption."""
    notes: tuple[str, ...] = field(default=())
    """What a reader should know of where the runs are from."""

    def __post_init__(self) -> None:
        for stretch, runs in self.runs.items():
            for key, values in runs.items():
                if not len(values) or not np.isfinite(values).all():
                    rule = "be finite scores, one or more"
                    raise ValueError(f"`runs[{stretch!r}]` must {rule}; got {values} at {key}.")
                if key.algorithm in BASELINES and key.lambda_:
                    raise ValueError(f"`runs[{stretch!r}]` must have {key.algorithm} at λ = 0; got {key}.")
            if self.paired and len({(key.game, len(values)) for key, values in runs.items()}) > len(self.games):
                raise ValueError("`paired` must be False where the cells of a game have different numbers of runs.")

    @cached_property
    def games(self) -> tuple[str, ...]:
        return tuple(sorted({key.game for key in self.runs.get("final", {})}))

    @cached_property
    def algorithms(self) -> tuple[str, ...]:
        """In the paper's order of merit, then others by name, and baselines last."""
        found = {key.algorithm for key in self.runs.get("final", {})}
        place = {name: i if name not in BASELINES else 1_000 + i for i, name in enumerate(ORDER)}
        return tuple(sorted(found, key=lambda name: (place.get(name, 500), name)))

    @cached_property
    def lambdas(self) -> tuple[float, ...]:
        """Of the algorithms that have one."""
        printed = self.printed.lambdas.tolist() if self.printed else ()
        return tuple(
            sorted({k.lambda_ for k in self.runs.get("final", {}) if k.algorithm not in BASELINES} | {*printed})
        )

    @property
    def baseline(self) -> str | None:
        return next((name for name in self.algorithms if name in BASELINES), None)

    def cell(self, game: str, algorithm: str, lambda_: float, stretch: Stretch = "final") -> Array:
        """The scores of its runs, in order unless they are paired; empty if there are none."""
        key = Key(game, algorithm, 0.0 if algorithm in BASELINES else lambda_)
        runs = np.asarray(self.runs.get(stretch, {}).get(key, ()), dtype=np.float64)
        return runs if self.paired else np.sort(runs)

    def complete_games(self, lambdas: Sequence[float], stretch: Stretch = "final") -> tuple[str, ...]:
        """Those with a run of every algorithm at every one of these λ."""
        return tuple(
            game
            for game in self.games
            if all(self.cell(game, name, x, stretch).size for name in self.algorithms for x in lambdas)
        )

    def table(self, lambda_: float, stretch: Stretch = "final") -> Table:
        """As the paper's Table 3."""
        games = self.complete_games([lambda_], stretch)
        cells = [[self.cell(game, name, lambda_, stretch) for name in self.algorithms] for game in games]
        shape = (len(games), len(self.algorithms))
        values = np.array([[cell.mean() for cell in row] for row in cells]).reshape(shape)
        return Table(games, self.algorithms, values, np.array([[c.size for c in row] for row in cells], int))

    def averages(self, scale: Scale, stretch: Stretch = "final", lambdas: Sequence[float] | None = None) -> Averages:
        """As the paper's Table 2, with intervals."""
        draws = self.draws(scale, stretch, lambdas)
        low = high = None
        if draws.drawn is not None:
            low, high = (ends.T for ends in np.quantile(draws.drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), axis=0))
        return Averages(
            draws.lambdas,
            draws.algorithms,
            draws.found.T,
            low,
            high,
            len(draws.games),
            draws.num_runs,
            draws.reason,
        )

    def draws(self, scale: Scale, stretch: Stretch = "final", lambdas: Sequence[float] | None = None) -> Draws:
        """The averages over games, and their bootstrap; the same numbers every time."""
        lambdas = self.lambdas if lambdas is None else tuple(lambdas)
        games = self.complete_games(lambdas, stretch)
        if self.printed and not games and stretch == "final":
            return self._of_print(self.printed, scale, lambdas)
        shape = (len(self.algorithms), len(lambdas))
        if not games or not lambdas or len(self.algorithms) < 2:
            at = ", ".join(f"{x:g}" for x in lambdas)
            nothing = f"no game has runs of {' and '.join(self.algorithms) or 'anything'}" + (at and f" at λ = {at}")
            reason = nothing if len(self.algorithms) != 1 else f"only {self.algorithms[0]} was run"
            return Draws(np.full(shape, np.nan), None, (), self.algorithms, lambdas, 0, reason)
        cells = [[[self.cell(g, a, x, stretch) for x in lambdas] for a in self.algorithms] for g in games]
        means = np.array([[[cell.mean() for cell in row] for row in game] for game in cells])
        worst, best = _ends(means, scale)
        on_scale = _scaled(means, worst, best)
        # a copy counts once: a baseline's runs are the same at every λ, and at λ = 0 all algorithms may be one
        num_runs = sum(cell.size for game in cells for cell in self._different(game, lambdas))
        drawn, reason = self._drawn(cells, on_scale, worst, best)
        return Draws(on_scale.mean(0), drawn, games, self.algorithms, lambdas, num_runs, reason)

    def statistics(self, lambda_: float) -> list[Statistics]:
        """Today's statistics at one λ, one row for each algorithm; none where no game is complete."""
        games = self.complete_games([lambda_])
        if not games or len(self.algorithms) < 2:
            return []
        z, area = self._normalised(games, lambda_, "final"), self._normalised(games, lambda_, "area")
        rows = []
        for name in self.algorithms:
            baseline = z[self.baseline] if self.baseline not in (None, name) else None
            rows.append(
                Statistics(
                    name,
                    *(interval(z[name], f, rng=np.random.default_rng(0)) for f in (mean, iqm, optimality_gap)),
                    probability_of_improvement(z[name], baseline, rng=np.random.default_rng(0)) if baseline else None,
                    interval(area[name], mean, rng=np.random.default_rng(0)) if area else None,
                )
            )
        return rows

    # -- inside ----------------------------------------------------------------------------------------------

    def _normalised(self, games: Sequence[str], lambda_: float, stretch: Stretch) -> dict[str, dict[str, Array]]:
        if not set(games) <= set(self.complete_games([lambda_], stretch)):
            return {}
        return normalised({a: {g: self.cell(g, a, lambda_, stretch) for g in games} for a in self.algorithms})

    def _different(self, game: list[list[Array]], lambdas: Sequence[float]) -> list[Array]:
        """The cells of a game without copies of the first one, at λ = 0."""
        found: list[Array] = []
        for a, (name, row) in enumerate(zip(self.algorithms, game, strict=True)):
            is_copy = a > 0 and lambdas[0] == 0 and np.array_equal(row[0], game[0][0])
            found += row[int(is_copy) : 1 if name in BASELINES else None]
        return found

    def _drawn(
        self, cells: list[list[list[Array]]], on_scale: Array, worst: Array, best: Array
    ) -> tuple[Array | None, str | None]:
        """(draws, algorithms, λ), or why not."""
        rng = np.random.default_rng(0)
        if self.unit == "games":
            if len(cells) < 2:
                return None, "one game has no spread"
            picked = rng.integers(len(cells), size=(NUM_DRAWS, len(cells)))
            return on_scale[picked].mean(1), None
        if min(cell.size for game in cells for row in game for cell in row) < 2:
            return None, "some cell has a single run, and one run has no spread; add a seed"
        total = np.zeros((NUM_DRAWS, *on_scale.shape[1:]))
        for g, game in enumerate(cells):
            means, picks = np.empty_like(total), {}
            for a, row in enumerate(game):
                for i, cell in enumerate(row):
                    key = b"" if self.paired else cell.tobytes()
                    if key not in picks:
                        picks[key] = rng.integers(cell.size, size=(NUM_DRAWS, cell.size))
                    means[:, a, i] = cell[picks[key]].mean(1)
            total += _scaled(means, worst[g], best[g])
        return total / len(cells), None

    def _of_print(self, printed: AveragesByLambda, scale: Scale, lambdas: Sequence[float]) -> Draws:
        names = [name for name in self.algorithms if name in printed.algorithms]
        rows, columns = np.isin(printed.lambdas, lambdas), [printed.algorithms.index(name) for name in names]
        found = printed.averages[rows][:, columns].T
        reason = "only averages are printed, without the runs behind them"
        if scale == "level":
            found, reason = np.full_like(found, np.nan), "averages are printed for each λ by itself: no level follows"
        return Draws(found, None, (), tuple(names), tuple(printed.lambdas[rows].tolist()), 0, reason)


def published_comparison() -> Comparison:
    """The paper's own: Table 3 as one run of every game at λ = 1, and the averages by λ that Table 2 prints."""
    final = published_table_3()
    runs = {
        Key(game, name, 0.0 if name in BASELINES else 1.0): (float(final.scores[g, a]),)
        for g, game in enumerate(final.games)
        for a, name in enumerate(final.algorithms)
    }
    return Comparison("The paper's 60 Atari games", {"final": runs}, unit="games", printed=published_table_2())


def _ends(means: Array, scale: Scale) -> tuple[Array, Array]:
    """The worst and the best of means (…, algorithms, λ), at each λ or of all of them."""
    axes = -2 if scale == "score" else (-2, -1)
    return means.min(axes, keepdims=True), means.max(axes, keepdims=True)


def _scaled(means: Array, worst: Array, best: Array) -> Array:
    """Means (…, algorithms, λ) between the worst and the best; ½ where those are equal, up to rounding.

    >>> means = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> _scaled(means, *_ends(means, "score")).tolist()
    [[0.0, 0.5], [1.0, 0.5]]
    >>> _scaled(means, *_ends(means, "level")).tolist()
    [[0.0, 1.0], [0.5, 1.0]]
    """
    differ = best - worst > 2.0**-40 * np.maximum(np.abs(best), np.abs(worst))
    return np.where(differ, (means - worst) / np.where(differ, best - worst, 1.0), 0.5)
