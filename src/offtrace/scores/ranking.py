"""All algorithms of a comparison, best first, and the difference of every two of them.

An entry is an algorithm at one λ. On a single game entries are compared by their returns, on
several games by levels (see `offtrace.scores.comparison`):

    runs by game, algorithm, λ  ─ a scale per game ─→  scores by game and entry
                                                         average over games  →  entries, best first
                                                         every two entries   →  differences, verdicts

Two entries that share their seeds are compared seed by seed. Intervals allow for skewed scores, as
those of claims do. Several comparisons are corrected for in two ways:

    to the best    n − 1 differences, with intervals of 1 − 5 %/(n − 1) (Bonferroni). The best entry is chosen by the
                   same data. This is still right: the truly best one is called worse only if one of the n − 1 others
                   is above it by chance.
    every two      n(n − 1)/2 differences, each with its own 95 % interval, and with the verdict that remains if all
                   of them are to be right together (Holm)
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from offtrace.scores.blocks import LEVEL, Blocks
from offtrace.scores.claims import Decision, decide
from offtrace.scores.comparison import Comparison
from offtrace.scores.intervals import Interval
from offtrace.scores.keys import Key, Stretch, is_baseline
from offtrace.scores.runs import game_scale
from offtrace.scores.scale import Array, binary_exponent
from offtrace.scores.verdicts import holm

Relation = Literal["better", "worse", "cannot tell"]
RELATIONS: Mapping[str, Relation] = {"holds": "better", "does not hold": "worse", "cannot tell": "cannot tell"}
MINUS = np.array([[[1.0], [-1.0]]])
"""Weights of the first of two entries minus the second."""


class Entry(NamedTuple):
    """An algorithm at one λ, and its average over games."""

    algorithm: str
    lambda_: float | None
    """None for an algorithm without λ."""
    average: Interval
    """With Student's 95 % interval over seeds."""
    to_best: Interval | None
    """Its difference to the best entry, corrected for the number of entries; None for the best itself."""
    verdict: Relation | None
    """Whether it is worse than the best, by that interval."""
    num_diverged: int


class Difference(NamedTuple):
    """The average of one entry minus that of another, which is above it in the ranking."""

    entry: int
    """Its place in the ranking, from 0."""
    other: int
    """The place of the other entry; 0 is the best."""
    difference: Interval
    """With its 95 % interval."""
    verdict: Relation
    """Whether the entry is better or worse than the other, by that interval."""
    all_together: Relation
    """The verdict if all differences are to be right together, 95 % of the time (Holm)."""
    p_value: float | None
    num_games: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """The entries of a comparison, best first, and their differences.

    >>> runs = {Key("catch", "retrace", 1.0): (4.0, 5.0, 6.0), Key("catch", "rbis", 1.0): (1.0, 2.1, 2.9)}
    >>> seeds = dict.fromkeys(runs, (0, 1, 2))
    >>> found = ranking(Comparison("mine", {"final": runs}, seeds={"final": seeds}))
    >>> [entry.algorithm for entry in found.entries], found.unit
    (['retrace', 'rbis'], 'return')
    >>> found.entries[1].verdict, round(found.entries[1].to_best.value, 2)
    ('worse', -3.0)
    """

    entries: tuple[Entry, ...]
    differences: tuple[Difference, ...]
    """Every two entries with a game in common, once."""
    unit: Literal["return", "level", "exact"]
    """On one game averages are returns. On several they are levels, from 0, the worst, to 1, the best; or exact:
    0 is random play and 1 the optimal policy."""
    games: tuple[str, ...]
    """The games of the averages: those that every entry has; empty if there are none."""


def ranking(comparison: Comparison, stretch: Stretch = "final") -> Ranking:
    """Return the entries of a comparison, best first, with the differences of every two; once per comparison."""
    return comparison.cached(("ranking", stretch), lambda: _Scores(comparison, stretch).ranking())


class _Scores:
    """The runs of a comparison on one scale, by game and entry."""

    def __init__(self, comparison: Comparison, stretch: Stretch) -> None:
        self.source = comparison
        self.stretch: Stretch = stretch
        self.entries = _entries(comparison, stretch)
        runs = comparison.runs.get(stretch, {})
        cells = {
            game: {entry: runs[key] for entry in self.entries if (key := Key(game, *entry)) in runs}
            for game in comparison.games
        }
        cells = {game: found for game, found in cells.items() if found}
        games_by_entry = [{game for game in cells if entry in cells[game]} for entry in self.entries]
        self.games = tuple(sorted(set.intersection(*games_by_entry))) if games_by_entry else ()
        """Games that every entry has."""
        self.exponent = 0
        """Scores are multiplied by 2 to this power: with one game they are returns, however large."""
        self.scaled: dict[Key, Array] = {}
        self.is_single = len(cells) == 1
        for game, by_entry in cells.items():
            for entry, scores in self._scaled(game, by_entry).items():
                self.scaled[Key(game, _name(entry), 1.0)] = scores

    def _scaled(
        self, game: str, by_entry: Mapping[tuple[str, float], Sequence[float]]
    ) -> dict[tuple[str, float], Array]:
        """Return the runs of one game on its scale."""
        arrays = {entry: np.array(runs, dtype=np.float64) for entry, runs in by_entry.items()}
        exponent = binary_exponent(np.concatenate([*arrays.values()]))
        small = {entry: np.ldexp(runs, -exponent) for entry, runs in arrays.items()}
        if self.is_single:
            self.exponent = exponent
            return small
        if self.source.anchors is not None:
            worst, best = self.source.anchors[game]
            return {entry: (runs - worst) / (best - worst) for entry, runs in arrays.items()}
        scale = game_scale([*small.values()])
        return {entry: scale.apply(runs) for entry, runs in small.items()}

    def ranking(self) -> Ranking:
        averages = [self._average(entry) for entry in self.entries]
        order = sorted(range(len(averages)), key=lambda i: -averages[i].value)
        ranked = []
        for i in order:
            name, lambda_ = self.entries[i]
            to_best = verdict = None
            if i != order[0]:
                to_best, verdict = self._to_best(i, order[0])
            shown = None if is_baseline(name) else lambda_
            num_diverged = self.source.num_diverged(self.source.games, [name], [lambda_])
            ranked.append(Entry(name, shown, averages[i], to_best, verdict, num_diverged))
        return Ranking(tuple(ranked), tuple(self._differences(order)), self._unit(), self.games)

    def _unit(self) -> Literal["return", "level", "exact"]:
        if self.is_single:
            return "return"
        return "level" if self.source.anchors is None else "exact"

    def _average(self, entry: tuple[str, float]) -> Interval:
        blocks = self._blocks([entry])
        estimates = blocks.estimate(np.ones((1, 1, 1)))
        value = float(estimates.value[0])
        low = high = None
        if blocks.reason is None:
            low, high = (float(end[0]) for end in estimates.interval(LEVEL))
            if not self.is_single:  # as in `Comparison.averages`
                low = low if self.source.anchors else max(low, 0.0)
                high = min(high, max(1.0, value))
        return self._interval(value, low, high, blocks.num_runs, blocks.reason)

    def _to_best(self, i: int, best: int) -> tuple[Interval | None, Relation]:
        blocks = self._blocks_of_two(i, best)
        if blocks.rows is None:
            return None, "cannot tell"
        level = 1.0 - (1.0 - LEVEL) / (len(self.entries) - 1)
        interval, decision = self._decided(blocks, level)
        return interval, RELATIONS[decision.verdict]

    def _differences(self, order: Sequence[int]) -> list[Difference]:
        """Return the differences of every two entries that have a game in common."""
        found = []
        for place, i in enumerate(order):
            for other_place, other in enumerate(order[:place]):
                blocks = self._blocks_of_two(i, other)
                if blocks.rows is None:
                    continue
                interval, decision = self._decided(blocks, LEVEL)
                verdict = RELATIONS[decision.verdict]
                found.append(
                    Difference(
                        place, other_place, interval, verdict, "cannot tell", decision.p_value, len(blocks.games)
                    )
                )
        significant = holm([each.p_value for each in found], level=1.0 - LEVEL)
        return [
            each._replace(all_together=each.verdict) if is_significant else each
            for each, is_significant in zip(found, significant, strict=True)
        ]

    def _decided(self, blocks: Blocks, level: float) -> tuple[Interval, Decision]:
        """Return the difference of two entries, with its interval, and the verdict on it."""
        decision = decide(blocks.estimate(MINUS), blocks.reason, self.source.unit, level=level)
        value = float(blocks.value[0, 0] - blocks.value[1, 0])
        if decision.reason is not None:  # such as too few seeds: with two, an interval may be hundreds wide
            return self._interval(value, None, None, blocks.num_runs, decision.reason), decision
        low = decision.low
        high = decision.high
        if low is not None and high is not None and not self.is_single and self.source.anchors is None:
            low = max(low, -1.0)  # levels are between 0 and 1
            high = min(high, 1.0)
        return self._interval(value, low, high, blocks.num_runs, None), decision

    def _blocks_of_two(self, i: int, other: int) -> Blocks:
        """Return the averages of two entries. If all entries share their seeds, they are a part of those of all."""
        whole = self._whole
        if whole.rows is None or len(whole.sizes) > 1:
            return self._blocks([self.entries[i], self.entries[other]])
        two = [i, other]
        return replace(
            whole,
            value=whole.value[two],
            rows=whole.rows[:, two],
            fills=whole.fills[:, two],
            algorithms=tuple(whole.algorithms[each] for each in two),
            num_runs=2 * len(whole.games) * len(whole.rows),
        )

    @cached_property
    def _whole(self) -> Blocks:
        return self._blocks(self.entries)

    def _blocks(self, entries: Sequence[tuple[str, float]]) -> Blocks:
        """Return the averages of some entries over the games of all, or else over those that they share."""
        names = {_name(entry): entry for entry in entries}
        games = self.games or self.source.games
        keys = [Key(game, name, 1.0) for game in games for name in names]
        runs = {key: self.scaled[key] for key in keys if key in self.scaled}
        known = self.source.seeds.get(self.stretch, {})
        seeds = {}
        for key in runs:
            cell = Key(key.game, *names[key.algorithm])
            if cell in known:
                seeds[key] = known[cell]
        same = Comparison(
            self.source.name,
            {"final": {key: scores.tolist() for key, scores in runs.items()}},
            unit=self.source.unit,
            paired=self.source.paired,
            seeds={"final": seeds},
            anchors=dict.fromkeys(games, (0.0, 1.0)),  # the runs are on their scale already
        )
        return same.blocks("level", lambdas=(1.0,), algorithms=[*names])

    def _interval(
        self, value: float, low: float | None, high: float | None, num_runs: int, reason: str | None
    ) -> Interval:
        """Return an interval in the unit of the ranking."""
        if low is None or high is None:
            return Interval(self._unscaled(value), None, None, num_runs, reason)
        return Interval(self._unscaled(value), self._unscaled(low), self._unscaled(high), num_runs, reason)

    def _unscaled(self, value: float) -> float:
        """Return a number multiplied by 2 to the exponent; the largest float in place of a larger number."""
        try:
            return math.ldexp(value, self.exponent)
        except OverflowError:
            return math.copysign(sys.float_info.max, value)


def _entries(comparison: Comparison, stretch: Stretch) -> list[tuple[str, float]]:
    """Return the algorithms and λ that have runs of their own: a copy is ranked as its original."""
    runs = comparison.runs.get(stretch, {})
    keys = {(key.algorithm, key.lambda_) for key in runs if key not in comparison.copies}
    return [(name, x) for name in comparison.algorithms for x in sorted({x for a, x in keys if a == name})]


def _name(entry: tuple[str, float]) -> str:
    """Return a name for an entry as an algorithm of its own, which is not that of a baseline."""
    name, lambda_ = entry
    plain = name.replace("()", "")  # a call marks a trace without λ, as a baseline is
    return f"at {lambda_!r}: {plain}"
