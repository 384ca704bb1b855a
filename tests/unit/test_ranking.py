"""Rankings against the definitions of their averages, intervals and verdicts, written out here."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from offtrace.experiments.results import Study
from offtrace.report.rankings import differences_csv, method_text, rankings_json, sentence
from offtrace.scores import Comparison, Key, Ranking, ranking

SEEDS = 8


def comparison(scores: dict[tuple[str, float], list[list[float]]], **more) -> Comparison:
    """Scores by entry, then game, then seed; the games are a, b, …"""
    runs = {Key("abcd"[g], *entry): row for entry, rows in scores.items() for g, row in enumerate(rows) if row}
    seeds = {"final": {key: range(len(row)) for key, row in runs.items()}}
    return Comparison("mine", {"final": runs}, **{"seeds": seeds, **more})


def noisy(
    names: str, num_games: int, *, spread: float = 1.0, shift: float = 5.0
) -> dict[tuple[str, float], list[list[float]]]:
    """Entry i is about i better than the first; a seed shifts all entries."""
    rng = np.random.default_rng(3)
    shifts = shift * rng.normal(size=(num_games, SEEDS))
    return {
        (name, 1.0): (shifts + i + spread * rng.normal(size=(num_games, SEEDS))).tolist()
        for i, name in enumerate(names)
    }


def half_width(rows: np.ndarray, level: float) -> float:
    """Student's t with an allowance for a skewness of 2.5, for independent rows (docs/statistics.md)."""
    n = len(rows)
    t = stats.t.ppf((1 + level) / 2, n - 1)
    return (t + 2.5 / math.sqrt(n) * (2 * t**2 + 1) / 6) * rows.std(ddof=1) / math.sqrt(n)


def test_one_game_is_compared_by_returns_seed_by_seed() -> None:
    scores = noisy("xyz", 1)
    found = ranking(comparison(scores))
    assert found.unit == "return"
    assert [entry.algorithm for entry in found.entries] == ["z", "y", "x"]
    assert "so that both hold together" in method_text(found)
    assert "so that all 3 hold together" in method_text(ranking(comparison(noisy("wxyz", 1))))
    best = np.array(scores["z", 1.0][0])
    for entry in found.entries[1:]:
        rows = np.array(scores[entry.algorithm, 1.0][0]) - best
        half = half_width(rows, 1 - 0.05 / 2)  # two are compared with the best
        assert (entry.to_best.low, entry.to_best.high) == pytest.approx((rows.mean() - half, rows.mean() + half))
        assert entry.verdict == ("worse" if rows.mean() + half < 0 else "cannot tell")
    for each in found.differences:
        one, other = (found.entries[i].algorithm for i in (each.entry, each.other))
        rows = np.subtract(scores[one, 1.0][0], scores[other, 1.0][0])
        half = half_width(rows, 0.95)
        assert (each.difference.low, each.difference.high) == pytest.approx((rows.mean() - half, rows.mean() + half))
        assert each.verdict == ("worse" if rows.mean() + half < 0 else "cannot tell")
        assert (each.p_value <= 0.05) == (each.verdict == "worse")
    assert {each.verdict for each in found.differences} == {"worse", "cannot tell"}


def test_several_games_are_compared_by_levels() -> None:
    """0 and 1 are the worst and the best mean of a game; the unit of intervals is a seed, averaged over games."""
    scores = noisy("wxyz", 3, spread=0.2, shift=0.5)
    scores = {entry: [[10.0**g * x for x in row] for g, row in enumerate(rows)] for entry, rows in scores.items()}
    found = ranking(comparison(scores))
    assert found.unit == "level"
    assert found.games == ("a", "b", "c")
    table = np.array(list(scores.values()))  # (entries, games, seeds)
    means = table.mean(-1)
    low, high = means.min(0)[:, None], means.max(0)[:, None]
    levels = ((table - low) / (high - low)).mean(1)
    by_name = dict(zip("wxyz", levels, strict=True))
    for entry in found.entries:
        assert entry.average.value == pytest.approx(by_name[entry.algorithm].mean())
    last = found.entries[-1]
    rows = by_name[last.algorithm] - by_name[found.entries[0].algorithm]
    assert last.to_best.high == pytest.approx(rows.mean() + half_width(rows, 1 - 0.05 / 3))
    exact = ranking(comparison(scores, anchors={"a": (-10.0, 10.0), "b": (-99.0, 99.0), "c": (-999.0, 999.0)}))
    assert exact.unit == "exact"


def test_all_together_is_holm_s_method() -> None:
    """The smallest of m p-values against 5 %/m, the next against 5 %/(m − 1), until one fails."""
    found = ranking(comparison(noisy("vwxyz", 2)))
    in_order = sorted(found.differences, key=lambda each: each.p_value)
    number = len(in_order)
    assert number == 10
    passed = list(itertools.takewhile(lambda i: in_order[i].p_value <= 0.05 / (number - i), range(number)))
    assert 0 < len(passed) < number
    for i, each in enumerate(in_order):
        assert each.all_together == (each.verdict if i in passed else "cannot tell")


def test_entries_are_algorithms_at_one_lambda() -> None:
    """A baseline has none; λ = 0, which is one algorithm for all traces, is ranked once."""
    key = {(name, x): Key("a", name, x) for name, x in (("retrace", 0.0), ("retrace", 1.0), ("dqn", 0.0))}
    runs = {cell: (float(i), i + 1.0) for i, cell in enumerate(key.values())}
    runs[Key("a", "tree_backup", 0.0)] = runs[Key("a", "tree_backup", 1.0)] = (9.0, 9.5)
    mine = Comparison(
        "mine",
        {"final": runs},
        copies={Key("a", "tree_backup", 0.0): Key("a", "retrace", 0.0)},
        diverged={Key("a", "dqn", 0.0): 1},
    )
    found = ranking(mine)
    assert [(entry.algorithm, entry.lambda_) for entry in found.entries] == [
        ("tree_backup", 1.0),
        ("dqn", None),
        ("retrace", 1.0),
        ("retrace", 0.0),
    ]
    assert [entry.num_diverged for entry in found.entries] == [0, 1, 0, 0]


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_few_seeds_never_decide(num_seeds: int) -> None:
    scores = {(name, 1.0): [[i + 0.01 * s for s in range(num_seeds)]] for i, name in enumerate("xyz")}
    found = ranking(comparison(scores))
    assert [entry.verdict for entry in found.entries] == [None, "cannot tell", "cannot tell"]
    assert all(each.difference.reason for each in found.differences)
    assert all(each.difference.low is None for each in found.differences)
    assert method_text(found).startswith("Differences have no intervals: ")


def test_entries_with_different_games_and_seeds() -> None:
    """Averages are over the games that all have; where there are none, two are compared on the games they share."""
    scores = noisy("xy", 2) | {("z", 1.0): [noisy("z", 1)["z", 1.0][0][:5], []]}
    found = ranking(comparison(scores))
    assert found.games == ("a",)
    assert {each.num_games for each in found.differences} == {1}
    assert {each.difference.num_runs for each in found.differences} == {16, 13}  # z has 5 seeds
    apart = ranking(comparison({("x", 1.0): [[1.0, 2.0, 3.0], []], ("y", 1.0): [[], [1.0, 2.0, 4.0]]}))
    assert apart.games == ()
    assert apart.differences == ()
    assert [entry.verdict for entry in apart.entries] == [None, "cannot tell"]
    assert ranking(Comparison("mine", {"final": {}})).entries == ()


def test_returns_of_any_size_can_be_written() -> None:
    for size in (1.7e308, 1e-308):
        scores = {
            (name, 1.0): [[size * x for x in (end, 0.5 * end, 0.9 * end)]] for name, end in (("x", -1), ("y", 1))
        }
        study = Study(comparison(scores), ())
        assert json.dumps(rankings_json([study]), allow_nan=False)
        assert "is best" in sentence(study)


def test_the_matrix_has_every_two_once() -> None:
    found: Ranking = ranking(comparison(noisy("stuvwxyz", 2)))
    lines = differences_csv(found).splitlines()
    assert len(lines) == 1 + 8 * 7 // 2
    pairs = {frozenset((line.split(",")[0], line.split(",")[2])) for line in lines[1:]}
    assert len(pairs) == 28
