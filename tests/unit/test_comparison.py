"""Comparisons and claims against cases worked out by hand, and against plain loops that know nothing of them."""

import csv
import math
import statistics
import warnings
from functools import cache
from importlib import resources

import numpy as np
import pytest
from scipy import stats

from offtrace.scores import Claim, Comparison, Key, claims, holm, is_baseline, published_comparison
from offtrace.scores.verdicts import SKEWNESS


def cells(of: dict[str, dict[tuple[str, float], tuple[float, ...]]]) -> dict[Key, tuple[float, ...]]:
    return {Key(game, name, x): runs for game, row in of.items() for (name, x), runs in row.items()}


def around(mean: float) -> tuple[float, float]:
    """Two runs, so close that noise explains nothing of what follows."""
    return mean - 0.1, mean + 0.1


BY_HAND = cells(
    {
        "a": {
            ("retrace", 0.5): around(4.0),
            ("retrace", 1.0): around(10.0),
            ("tree_backup", 0.5): around(6.0),
            ("tree_backup", 1.0): around(5.0),
            ("dqn", 0.0): around(0.0),
        },
        "b": {
            ("retrace", 0.5): around(2.0),
            ("retrace", 1.0): around(2.0),
            ("tree_backup", 0.5): around(4.0),
            ("tree_backup", 1.0): around(0.0),
            ("dqn", 0.0): around(4.0),
        },
    }
)
"""Means: a is 4, 10, 6, 5, 0 and b is 2, 2, 4, 0, 4."""


def by_hand(**more: object) -> Comparison:
    return Comparison("by hand", {"final": BY_HAND, "early": BY_HAND} | more)


def claim(comparison: Comparison, text: str) -> Claim:
    return next(one for one in claims(comparison) if one.text == text)


# --- worked out by hand -------------------------------------------------------------------------------------


def test_scores_are_within_one_lambda():
    """a at ½: 4/6, 1, 0; at 1: 1, ½, 0. b at ½: 0, 1, 1; at 1: ½, 0, 1."""
    averages = by_hand().averages("score")
    assert averages.algorithms == ("retrace", "tree_backup", "dqn")
    assert averages.lambdas == (0.5, 1.0)
    assert averages.value == pytest.approx(np.array([[1 / 3, 1.0, 0.5], [0.75, 0.25, 0.5]]))


def test_levels_are_over_all_lambdas():
    """a is on the scale from 0 to 10: .4, .6, 0 and 1, .5, 0; b from 0 to 4: ½, 1, 1 and ½, 0, 1."""
    averages = by_hand().averages("level")
    assert averages.value == pytest.approx(np.array([[0.45, 0.8, 0.5], [0.75, 0.25, 0.5]]))


def test_a_table_has_means_and_counts():
    table = by_hand().table(1.0)
    assert table.games == ("a", "b")
    assert table.values.tolist() == [[10.0, 5.0, 0.0], [2.0, 0.0, 4.0]]
    assert table.num_runs.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_runs_of_a_baseline_count_once():
    """2 games × (2 algorithms × 2 λ + DQN) × 2 seeds."""
    assert by_hand().averages("score").num_runs == 20
    assert by_hand().averages("score", lambdas=[1.0]).num_runs == 12


def test_a_game_that_lacks_a_cell_is_left_out():
    lacking = BY_HAND | cells({"c": {("retrace", 1.0): (100.0,), ("tree_backup", 1.0): (0.0,)}})
    comparison = Comparison("one lacks DQN", {"final": lacking})
    assert comparison.games == ("a", "b", "c")
    assert comparison.table(1.0).games == ("a", "b")
    assert comparison.averages("score").num_games == 2
    assert comparison.averages("score").value == pytest.approx(by_hand().averages("score").value)
    only_at_one = BY_HAND | cells({"c": {(a, 0.0 if a == "dqn" else 1.0): (1.0,) for a in by_hand().algorithms}})
    comparison = Comparison("one lacks λ = ½", {"final": only_at_one})
    assert comparison.table(1.0).games == ("a", "b", "c")
    assert comparison.averages("score").num_games == 2


def test_all_equal_is_one_half():
    flat = cells({"flat": {("retrace", 1.0): (2.0, 2.0), ("dqn", 0.0): (2.0, 2.0, 2.0)}})
    averages = Comparison("flat", {"final": flat}).averages("score")
    assert averages.value.tolist() == [[0.5, 0.5]]


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(
        ValueError, match=r"`runs\['final'\]` must have one or more finite scores per cell; got \(1.0, inf\)"
    ):
        Comparison("bad", {"final": {Key("pong", "retrace", 1.0): (1.0, float("inf"))}})
    with pytest.raises(ValueError, match="one or more"):
        Comparison("bad", {"final": {Key("pong", "retrace", 1.0): ()}})


# --- intervals ----------------------------------------------------------------------------------------------


def test_one_run_has_no_interval_and_a_reason():
    short = BY_HAND | {Key("a", "retrace", 1.0): (10.0,)}
    averages = Comparison("short", {"final": short}).averages("score")
    assert averages.low is None
    assert averages.high is None
    assert "single run" in (averages.reason or "")
    assert averages.value == pytest.approx(by_hand().averages("score").value)


def noisy(num_games: int = 3, num_seeds: int = 3, **more: object) -> Comparison:
    """Retrace has one run more of its first game, so that cells differ in size unless `more` declares seeds."""
    rng = np.random.default_rng(7)
    runs = {}
    for g in range(num_games):
        for name, height in (("retrace", 6.0), ("tree_backup", 5.0), ("q_lambda", 3.0), ("dqn", 4.0)):
            for x in (0.0,) if name == "dqn" else (0.5, 0.9, 1.0):
                num_runs = num_seeds + (not more and g == 0 and name == "retrace")
                runs[Key(f"game {g}", name, x)] = (height + x + 1.5 * rng.normal(size=num_runs)).tolist()
    return Comparison("noisy", {"final": runs, "early": runs}, **more)


@cache
def quantile(num_cells: int, df: int) -> float:
    return float(stats.studentized_range.ppf(0.95, num_cells, df))


def ends_by_loop(comparison: Comparison, game: str, x: float | None) -> tuple[float, float]:
    """Middle and width of a game's scale, at one λ or over all, with nothing but lists."""
    compared = [
        list(runs)
        for key, runs in comparison.runs["final"].items()
        if key.game == game and (x is None or key.lambda_ == x or key.algorithm == "dqn")
    ]
    means = [statistics.fmean(runs) for runs in compared]
    df = sum(len(runs) - 1 for runs in compared)
    squares = sum((run - mean) ** 2 for runs, mean in zip(compared, means, strict=True) for run in runs)
    n = statistics.harmonic_mean([len(runs) for runs in compared])
    floor = quantile(len(compared), df) * math.sqrt(squares / df / n)
    return (max(means) + min(means)) / 2, max(max(means) - min(means), floor)


def runs_by_loop(comparison: Comparison, name: str, x: float, game: str, level: bool) -> list[float]:
    """The runs of a cell on the scale of its game."""
    middle, width = ends_by_loop(comparison, game, None if level else x)
    runs = comparison.runs["final"][Key(game, name, 0.0 if name == "dqn" else x)]
    return [0.5 + (run - middle) / width for run in runs]


def welch(parts: list[list[float]]) -> tuple[float, float, float]:
    """The sum of means of independent samples, its standard error and degrees of freedom."""
    variances = [statistics.variance(part) / len(part) for part in parts]
    df = sum(variances) ** 2 / sum(v**2 / (len(part) - 1) for v, part in zip(variances, parts, strict=True))
    return sum(statistics.fmean(part) for part in parts), math.sqrt(sum(variances)), df


@pytest.mark.parametrize("scale", ["score", "level"])
def test_intervals_without_seeds_are_welchs(scale):
    """Each cell by itself."""
    comparison = noisy()
    averages = comparison.averages(scale)
    for i, x in enumerate(averages.lambdas):
        for a, name in enumerate(averages.algorithms):
            parts = [runs_by_loop(comparison, name, x, game, scale == "level") for game in comparison.games]
            value, error, df = welch([[z / 3 for z in part] for part in parts])
            low, high = stats.t.interval(0.95, df, value, error)
            assert averages.value[i, a] == pytest.approx(value)
            assert averages.low[i, a] == pytest.approx(max(low, 0.0), abs=1e-12)
            assert averages.high[i, a] == pytest.approx(min(high, 1.0), abs=1e-12)


@pytest.mark.parametrize("scale", ["score", "level"])
def test_intervals_with_shared_seeds_are_of_seeds(scale):
    """A seed's number is the mean over games of its scaled scores; then Student's t of three numbers."""
    comparison = noisy(paired=True)
    averages = comparison.averages(scale)
    for i, x in enumerate(averages.lambdas):
        for a, name in enumerate(averages.algorithms):
            parts = [runs_by_loop(comparison, name, x, game, scale == "level") for game in comparison.games]
            of_seeds = [statistics.fmean(seed) for seed in zip(*parts, strict=True)]
            error = statistics.stdev(of_seeds) / math.sqrt(3)
            low, high = stats.t.interval(0.95, 2, statistics.fmean(of_seeds), error)
            assert averages.value[i, a] == pytest.approx(statistics.fmean(of_seeds))
            assert averages.low[i, a] == pytest.approx(max(low, 0.0), abs=1e-12)
            assert averages.high[i, a] == pytest.approx(min(high, 1.0), abs=1e-12)


def seeded(comparison: Comparison, seeds_of=lambda key: (3, 5, 9)) -> dict[str, dict[Key, tuple[int, ...]]]:
    return {
        stretch: {key: seeds_of(key) for key in runs if seeds_of(key)} for stretch, runs in comparison.runs.items()
    }


def test_paired_is_short_for_seeds():
    paired = noisy(paired=True)
    same = noisy(seeds=seeded(paired))
    assert np.array_equal(paired.averages("level").low, same.averages("level").low)
    assert [*map(repr, claims(paired))] == [*map(repr, claims(same))]


def test_seeds_pair_runs_in_whatever_order_they_are():
    first = noisy(paired=True)
    turn = {"final": {key: (2, 0, 1) if key.algorithm == "retrace" else (0, 1, 2) for key in first.runs["final"]}}
    runs = {key: [values[seed] for seed in turn["final"][key]] for key, values in first.runs["final"].items()}
    turned = Comparison("turned", {"final": runs}, seeds=turn)
    assert claim(turned, RETRACE_FINAL).p_value == pytest.approx(claim(first, RETRACE_FINAL).p_value, rel=1e-9)
    assert turned.cell("game 0", "retrace", 1.0).tolist() == first.runs["final"][Key("game 0", "retrace", 1.0)]


def test_seeds_that_only_a_game_shares_pair_within_it():
    """Three blocks, of one game each: what a seed does to both algorithms of a game still drops out."""
    first = noisy(paired=True)
    by_game = noisy(seeds=seeded(first, lambda key: tuple(int(key.game[-1]) * 10 + i for i in range(3))))
    blocks = by_game.blocks("level")
    assert blocks.sizes.tolist() == [3, 3, 3]
    found = blocks.estimate(np.eye(blocks.value.size).reshape(-1, *blocks.value.shape)[:1])
    parts = [runs_by_loop(first, "retrace", 0.5, game, level=True) for game in first.games]
    _, error, df = welch([[z / 3 for z in part] for part in parts])
    assert (found.error[0], found.df[0]) == pytest.approx((error, df))


def test_a_run_that_one_algorithm_lacks_does_not_unpair_the_others():
    first = noisy(paired=True)
    lacking = Key("game 1", "q_lambda", 0.9)
    runs = first.runs["final"] | {lacking: first.runs["final"][lacking][:2]}
    seeds = {"final": {key: tuple(range(len(of))) for key, of in runs.items()}}
    comparison = Comparison("lacking", {"final": runs}, seeds=seeds)
    assert len(comparison.blocks("score", lambdas=[1.0], algorithms=["retrace", "dqn"]).sizes) == 1
    assert len(comparison.blocks("level").sizes) > 1


def test_each_difference_counts_its_own_runs():
    first = noisy(num_seeds=5)
    few = {key: runs[:3] if key.lambda_ == 0.5 else runs for key, runs in first.runs["final"].items()}
    blocks = Comparison("few at ½", {"final": few}).blocks("level", algorithms=["tree_backup", "dqn"])
    weights = np.stack([np.eye(3), -np.eye(3)], axis=1)
    assert blocks.estimate(weights).num_rows.tolist() == [3, 5, 5]


def test_a_baseline_is_one_cell_for_all_lambdas():
    """Only DQN is random; a difference has its spread at every λ. The scale is from 0 to 10."""
    runs = {}
    for x in (0.5, 0.9, 1.0):
        for name, height in (("retrace", 6.0), ("tree_backup", 0.0), ("q_lambda", 10.0)):
            runs[Key("pong", name, x)] = (height, height, height)
    runs[Key("pong", "dqn", 0.0)] = (3.9, 4.0, 4.1)
    comparison = Comparison("only DQN is random", {"final": runs})
    found = claim(comparison, "Retrace(λ) does not do poorly at any λ > 0")
    assert found.difference.value == pytest.approx(0.2)
    assert found.difference.num_runs == 30
    half = careful(0.05, 3) * 0.01 / math.sqrt(3)
    assert (found.verdict, found.difference.low) == ("holds", pytest.approx(0.2 - half))
    blocks = comparison.blocks("level")
    assert len(blocks.sizes) == 10
    everywhere = np.ones((1, 4, 3)) * np.array([0.0, 0.0, 0.0, 1.0])[:, None]
    assert blocks.estimate(everywhere).error[0] == pytest.approx(3 * 0.01 / math.sqrt(3))  # thrice the same cell


def test_the_same_numbers_every_time_whatever_the_order_of_the_runs():
    first, again = noisy(), noisy()
    turned = Comparison("turned", {s: {k: list(reversed(v)) for k, v in reversed(runs.items())}
                                   for s, runs in noisy().runs.items()})  # fmt: skip
    for other in (again, turned):
        assert np.array_equal(first.averages("score").low, other.averages("score").low)
        assert [*map(repr, claims(first))] == [*map(repr, claims(other))]


def test_games_are_the_unit_where_there_is_one_run_of_each():
    """Student's t of the z of four games."""
    z = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.4}
    of = {g: {("retrace", 1.0): (x,), ("tree_backup", 1.0): (0.0,), ("dqn", 0.0): (1.0,)} for g, x in z.items()}
    averages = Comparison("games", {"final": cells(of)}, unit="games").averages("score")
    low, _ = stats.t.interval(0.95, 3, 0.6, statistics.stdev(z.values()) / 2)
    assert averages.value[0, 0] == pytest.approx(0.6)
    assert low < 0
    assert (averages.low[0, 0], averages.high[0, 0]) == (0.0, 1.0)  # of what would be from −0.18 to 1.38
    alone = Comparison("one", {"final": cells({"a": of["a"]})}, unit="games").averages("score")
    assert alone.low is None
    assert alone.reason == "one game has no spread"


# --- scales -------------------------------------------------------------------------------------------------


def test_a_game_of_noise_has_the_scale_of_noise():
    """Two cells of three runs, s = 1: q(2 cells, 4 degrees of freedom) = 3.927, so the floor is 3.927/√3 = 2.267."""
    runs = cells({"g": {("retrace", 1.0): (1.0, 2.0, 3.0), ("dqn", 0.0): (0.0, 1.0, 2.0)}})
    comparison = Comparison("noise", {"final": runs})
    off = 0.5 * math.sqrt(3) / 3.92650
    assert comparison.averages("score").value[0] == pytest.approx([0.5 + off, 0.5 - off], rel=1e-4)
    assert comparison.games_without_scale("score") == comparison.games_without_scale() == ("g",)
    apart = Comparison("apart", {"final": runs | {Key("g", "retrace", 1.0): (3.0, 4.0, 5.0)}})
    assert apart.averages("score").value[0].tolist() == [1.0, 0.0]
    assert apart.games_without_scale("score") == ()


@pytest.mark.parametrize("gap", [1e-1, 1e-6, 1e-12, 0.0])
def test_no_score_explodes_as_means_approach_each_other(gap):
    runs = cells({"g": {("retrace", 1.0): (1.0 + gap, 2.0, 3.0), ("dqn", 0.0): (1.0, 2.0, 3.0)}})
    comparison = Comparison("near", {"final": runs})
    assert comparison.averages("score").value[0] == pytest.approx([0.5, 0.5], abs=0.02)
    assert np.abs(comparison.blocks("score").rows).max() < 2


@pytest.mark.parametrize("size", [1e9, 1e-9, 1e300, 1e-300, 1.7e308])
def test_numbers_of_any_size_give_the_same_claims(size):
    """Whatever is positive and multiplies all scores of a game changes nothing."""
    first = noisy(paired=True)
    runs = {
        stretch: {key: [value / 16 * size for value in values] for key, values in of.items()}
        for stretch, of in first.runs.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = Comparison("large", runs, paired=True)
        averages = large.averages("level")
        assert averages.low == pytest.approx(first.averages("level").low, rel=1e-6)
        for one, other in zip(claims(first), claims(large), strict=True):
            assert one.verdict == other.verdict
            assert one.p_value == pytest.approx(other.p_value, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e300])
def test_constants_have_no_scale_and_decide_nothing(value):
    runs = {key: (value,) * 3 for key in clear().runs["final"]}
    comparison = Comparison("constant", {"final": runs, "early": runs})
    assert (comparison.averages("level").value == 0.5).all()
    assert comparison.games_without_scale() == comparison.games
    for one in claims(comparison):
        assert (one.verdict, one.difference.value, one.p_value) == ("cannot tell", 0.0, None)
        assert one.reason == "all seeds give the same difference, so there is no spread to judge by"


def test_an_exact_scale_is_from_random_to_optimal_play():
    runs = cells({"g": {("retrace", 1.0): (4.0, 6.0, 8.0), ("dqn", 0.0): (-1.0, 0.0, 1.0)}})
    exact = Comparison("exact", {"final": runs}, anchors={"g": (2.0, 6.0)})
    for scale in ("score", "level"):
        averages = exact.averages(scale)
        assert averages.value[0].tolist() == [1.0, -0.5]
        low, high = stats.t.interval(0.95, 2, -0.5, 0.25 / math.sqrt(3))
        assert (averages.low[0, 1], averages.high[0, 1]) == pytest.approx((low, high))
        assert averages.high[0, 0] == 1.0
    assert exact.games_without_scale() == ()
    assert exact.run_scores(1.0)["dqn"]["g"].tolist() == [0.0, 0.0, 0.0]
    alone = Comparison("alone", {"final": cells({"g": {("retrace", 1.0): (3.0, 5.0)}})}, anchors={"g": (2.0, 6.0)})
    assert alone.averages("level").value.tolist() == [[0.5]]


# --- copies and variants ------------------------------------------------------------------------------------

RETRACE_FINAL = "Retrace(λ) is above DQN at the end"


@pytest.mark.parametrize("paired", [False, True])
def test_equal_numbers_make_no_copy(paired):
    """Three games of noise and one without: the verdict is the same whether or not two cells have equal numbers."""
    found = []
    for added in (0.0, 1e-9):
        runs = {Key("d", "retrace", 1.0): (0.5,) * 4, Key("d", "dqn", 0.0): (added,) * 4}
        for game in "abc":
            runs[Key(game, "retrace", 1.0)] = (0.0, 0.0, 1.0, 1.0)
            runs[Key(game, "dqn", 0.0)] = [score + added for score in (1.0, 0.0, 1.0, 0.0)]
        found.append(claim(Comparison("equal", {"final": runs}, paired=paired), RETRACE_FINAL))
    assert [one.verdict for one in found] == ["cannot tell"] * 2
    assert found[0].p_value == pytest.approx(found[1].p_value, rel=1e-6)
    assert found[0].difference.num_runs == found[1].difference.num_runs == 32


def test_a_copy_is_its_source():
    runs = {Key("g", "retrace", 0.0): (1.0, 2.0, 6.0), Key("g", "dqn", 0.0): (5.0, 5.0, 5.0)}
    for name in ("retrace", "tree_backup"):
        runs[Key("g", name, 1.0)] = (9.0, 9.0, 9.0)
    copies = {Key("g", "tree_backup", 0.0): Key("g", "retrace", 0.0)}
    comparison = Comparison("copies", {"final": runs}, copies=copies)
    assert comparison.cell("g", "tree_backup", 0.0).tolist() == [1.0, 2.0, 6.0]
    assert comparison.complete_games([0.0, 1.0]) == ("g",)
    averages = comparison.averages("level")
    assert averages.num_runs == 12  # four cells of three
    assert averages.low[0, 0] == averages.low[0, 1]
    weights = np.zeros((1, 3, 2))
    weights[0, :2, 0] = 1.0, -1.0
    assert comparison.blocks("level").estimate(weights).error[0] == 0.0
    assert set(comparison.lambdas) == {0.0, 1.0}
    taken = Comparison("all of it", {"final": runs}, copies={Key("g", "one_step", 0.0): Key("g", "retrace", 0.0)})
    assert taken.algorithms == ("retrace", "tree_backup", "dqn", "one_step")
    assert taken.cell("g", "one_step", 1.0).tolist() == [1.0, 2.0, 6.0]


def test_variants_go_with_what_they_vary():
    names = (
        "dqn.exploration.double",
        "retrace.greedy",
        "dqn",
        "watkins",
        "tree_backup",
        "retrace",
        "dqn.exploration",
    )
    runs = {Key("g", name, 0.0 if is_baseline(name) else 1.0): (1.0, 2.0) for name in names}
    comparison = Comparison("variants", {"final": runs})
    assert comparison.algorithms == (
        "retrace",
        "retrace.greedy",
        "tree_backup",
        "watkins",
        "dqn",
        "dqn.exploration",
        "dqn.exploration.double",
    )
    assert comparison.baseline == "dqn"
    assert comparison.lambdas == (1.0,)
    assert comparison.cell("g", "dqn.exploration", 1.0).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"must have dqn.exploration at λ = 0; got"):
        Comparison("bad", {"final": {Key("g", "dqn.exploration", 1.0): (1.0,)}})


KEY, OTHER = Key("g", "retrace", 1.0), Key("g", "dqn", 0.0)
REFUSED = {
    "lengths": (
        {"seeds": {"final": {KEY: (1,)}}},
        r"`seeds\['final'\]` must have one seed per run; got 1 for 2",
    ),
    "no runs": ({"seeds": {"early": {KEY: (1, 2)}}}, r"`seeds\['early'\]` must have .* got 2 for 0"),
    "chains": (
        {"copies": {KEY: OTHER, OTHER: Key("g", "one_step", 0.0)}},
        r"`copies` must name the cell that was run; got .*dqn.* for .*retrace.*, which is itself a copy",
    ),
    "another game": ({"copies": {KEY: Key("h", "dqn", 0.0)}}, r"`copies` must stay within one game; got .*'h'"),
    "no anchor": ({"anchors": {"h": (0.0, 1.0)}}, r"`anchors` must have every game or be None; got none for 'g'"),
    "no range": (
        {"anchors": {"g": (1.0, 1.0)}},
        r"`anchors` must be finite, .* below the optimal one; got 1.0 and 1",
    ),
    "nan": ({"anchors": {"g": (0.0, math.nan)}}, r"`anchors` must be finite"),
}


@pytest.mark.parametrize(("more", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_together_is_refused(more, text):
    with pytest.raises(ValueError, match=text):
        Comparison("bad", {"final": {KEY: (1.0, 2.0), OTHER: (0.0, 1.0)}}, **more)


def test_pairs_need_partners():
    with pytest.raises(ValueError, match="`paired` must be False where the cells of a game have different numbers"):
        Comparison("bad", {"final": {KEY: (1.0, 2.0), OTHER: (0.0,)}}, paired=True)


# --- statistics ---------------------------------------------------------------------------------------------


def test_statistics_are_on_the_scale_of_the_score():
    rows = {row.algorithm: row for row in by_hand().statistics(1.0)}
    assert list(rows) == ["retrace", "tree_backup", "dqn"]
    assert [row.mean.value for row in rows.values()] == pytest.approx([0.75, 0.25, 0.5])
    assert rows["dqn"].improvement is None
    assert rows["retrace"].area is None
    assert rows["retrace"].improvement.value == 0.5  # on a all runs beat DQN's, on b none does
    averages = by_hand().averages("score", lambdas=[1.0])
    assert [row.mean.low for row in rows.values()] == pytest.approx(averages.low[0])
    assert [row.mean.high for row in rows.values()] == pytest.approx(averages.high[0])
    assert [row.mean.num_runs for row in rows.values()] == [4, 4, 4]
    assert by_hand().statistics(0.7) == []
    published = published_comparison().statistics(1.0)[0]
    assert (published.mean.low, published.iqm.low) == (None, None)  # statistics are of seeds, and it has one
    assert "single run" in published.mean.reason


def test_statistics_stay_in_their_range_whatever_the_runs():
    """One run of a thousand times the others; means are 0, 100.9 and 1, so the floor is all that there is."""
    wild = cells({"g": {("retrace", 1.0): (1.0,) * 9 + (1000.0,), ("tree_backup", 1.0): (0.0,) * 10,
                        ("dqn", 0.0): (1.0,) * 10}})  # fmt: skip
    comparison = Comparison("wild", {"final": wild, "area": wild})
    for row in comparison.statistics(1.0):
        for found in (row.mean, row.iqm, row.optimality_gap, row.area):
            assert 0.0 <= found.low <= found.high <= 1.0
            assert found.low - 1e-12 <= found.value <= found.high + 1e-12  # equal up to the order of sums
    z = comparison.run_scores(1.0)["retrace"]["g"]
    assert (z.min() >= 0.0, z.max()) == (True, 1.0)
    assert comparison.run_scores(0.5) == {}


# --- claims -------------------------------------------------------------------------------------------------


def clear(sign: float = 1.0, spread: float = 0.01, num_games: int = 2) -> Comparison:
    """What the paper says, or its opposite: everything depends on λ as it should."""
    levels = {"retrace": lambda x: 6 + 4 * x, "tree_backup": lambda x: 4 + 4 * x, "q_lambda": lambda x: 5 - 5 * x}
    runs = {}
    for g in range(num_games):
        for name, height in levels.items():
            for x in (0.1, 0.5, 0.9, 1.0):
                runs[Key(f"{g}", name, x)] = tuple(sign * height(x) + spread * e for e in (-1.0, 0.0, 1.0))
        runs[Key(f"{g}", "dqn", 0.0)] = tuple(sign * 3.0 + spread * e for e in (-1.0, 0.0, 1.0))
    return Comparison("clear", {"final": runs, "early": runs})


def test_claims_hold_where_everything_is_as_the_paper_says():
    assert {one.verdict for one in claims(clear())} == {"holds"}
    assert all(one.difference.low > 0 for one in claims(clear()))
    assert {one.num_games for one in claims(clear())} == {2}


def test_claims_do_not_hold_where_everything_is_the_other_way_round():
    assert {one.verdict for one in claims(clear(sign=-1.0))} == {"does not hold"}
    assert all(one.difference.high < 0 for one in claims(clear(sign=-1.0)))


def test_claims_cannot_be_told_where_seeds_differ_more_than_algorithms():
    assert {one.verdict for one in claims(clear(spread=40.0, num_games=1))} == {"cannot tell"}


def test_measures_of_claims_by_hand():
    comparison = by_hand()
    assert claim(comparison, "Retrace(λ) is above DQN at the end").difference.value == pytest.approx(0.75 - 0.5)
    assert claim(comparison, "TB(λ) is above DQN early").difference.value == pytest.approx(0.25 - 0.5)
    assert claim(comparison, "λ = 1 is best for Retrace(λ)").difference.value == pytest.approx(0.75 - 0.45)
    assert claim(comparison, "λ = 1 is best for TB(λ)").difference.value == pytest.approx(0.25 - 0.8)
    assert claim(comparison, "Retrace(λ) is above TB(λ) for λ > 0").difference.value == pytest.approx(0.45 - 0.8)
    worst = claim(comparison, "Retrace(λ) does not do poorly at any λ > 0")
    assert worst.difference.value == pytest.approx(0.45 - 0.5)
    assert worst.measure == "its level, minus DQN's; the worst of 2, at λ = 0.5"


def test_q_fails_above_one_half_is_a_mean_of_levels():
    """Q's levels in `clear` are, of a scale from 0 to 10, 4.5 and 2.5 up to ½, then .5 and 0."""
    difference = claim(clear(), "Q*(λ) fails for λ above 0.5").difference
    assert difference.value == pytest.approx((0.45 + 0.25) / 2 - (0.05 + 0.0) / 2)


def test_one_is_best_if_it_is_above_the_next_best():
    """Retrace's levels in `clear` are .64, .8, .96 and 1."""
    assert claim(clear(), "λ = 1 is best for Retrace(λ)").difference.value == pytest.approx(1.0 - 0.96)


def careful(outside: float, num_runs: int) -> float:
    """Half the width of a verdict's interval in standard errors: Student's t, and an allowance for skewness."""
    t = float(stats.t.ppf(1 - outside / 2, num_runs - 1))
    return t + SKEWNESS / math.sqrt(num_runs) * (2 * t**2 + 1) / 6


def differences(comparison: Comparison, name: str, other: str, x: float) -> list[float]:
    """Of levels, by seed."""
    parts = [
        [u - v for u, v in zip(runs_by_loop(comparison, name, x, game, level=True),
                               runs_by_loop(comparison, other, x, game, level=True), strict=True)]
        for game in comparison.games
    ]  # fmt: skip
    return [statistics.fmean(seed) for seed in zip(*parts, strict=True)]


def test_a_claim_that_holds_shows_the_least_interval_of_95_percent():
    comparison = noisy(num_games=8, num_seeds=12, paired=True)
    found = claim(comparison, "Retrace(λ) does not do poorly at any λ > 0")
    lows = {}
    for x in comparison.lambdas:
        each = differences(comparison, "retrace", "dqn", x)
        lows[x] = statistics.fmean(each) - careful(0.05, 12) * statistics.stdev(each) / math.sqrt(12)
    worst = min(lows, key=lows.__getitem__)
    assert found.verdict == "holds"
    assert found.difference.low == pytest.approx(lows[worst])
    assert found.measure.endswith(f"worst of 3, at λ = {worst:g}")


def test_a_claim_that_does_not_hold_shows_the_interval_of_one_of_m():
    mirrored = {
        key: [-x for x in runs] for key, runs in noisy(num_games=8, num_seeds=12, paired=True).runs["final"].items()
    }
    comparison = Comparison("mirrored", {"final": mirrored}, paired=True)
    found = claim(comparison, "Retrace(λ) does not do poorly at any λ > 0")
    highs = {}
    for x in comparison.lambdas:
        each = differences(comparison, "retrace", "dqn", x)
        highs[x] = statistics.fmean(each) + careful(0.05 / 3, 12) * statistics.stdev(each) / math.sqrt(12)
    worst = min(highs, key=highs.__getitem__)
    assert found.verdict == "does not hold"
    assert found.difference.high == pytest.approx(highs[worst])
    assert found.measure.endswith(f"worst of 3, at λ = {worst:g}")


def test_p_values_are_where_intervals_begin_to_touch_zero():
    """p is the share that an interval leaves out when its end is 0: of one that holds, and of one of three."""
    comparison = noisy(num_games=8, num_seeds=12, paired=True)
    holds = claim(comparison, RETRACE_FINAL)
    each = [u - v for u, v in zip(*(
        [statistics.fmean(seed) for seed in zip(*(runs_by_loop(comparison, name, 1.0, game, level=False)
                                                  for game in comparison.games), strict=True)]
        for name in ("retrace", "dqn")), strict=True)]  # fmt: skip
    ratio = statistics.fmean(each) / (statistics.stdev(each) / math.sqrt(12))
    assert careful(holds.p_value, 12) == pytest.approx(ratio)
    mirrored = {key: [-x for x in runs] for key, runs in comparison.runs["final"].items()}
    fails = claim(
        Comparison("mirrored", {"final": mirrored}, paired=True), "Retrace(λ) does not do poorly at any λ > 0"
    )
    ratios = []
    for x in comparison.lambdas:
        each = differences(comparison, "retrace", "dqn", x)
        ratios.append(statistics.fmean(each) / (statistics.stdev(each) / math.sqrt(12)))
    assert careful(fails.p_value / 3, 12) == pytest.approx(max(ratios))


def test_there_is_a_verdict_where_p_is_at_most_5_percent():
    seen = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        above = {"retrace": seed * (-1) ** seed / 4, "tree_backup": 0.0, "q_lambda": 0.0, "dqn": 0.0}
        runs = {key: rng.normal(above[key.algorithm], size=5) for key in clear().runs["final"]}
        for one in claims(Comparison("random", {"final": runs, "early": runs})):
            assert (one.verdict != "cannot tell") == (one.p_value <= 0.05)
            assert (one.difference.low > 0) == (one.verdict == "holds")
            assert 0 <= one.p_value <= 1
            seen.add(one.verdict)
    assert seen == {"holds", "does not hold", "cannot tell"}


def test_holm_is_the_textbooks():
    """Four p-values at 5 %: 0.005 ≤ 0.0125, 0.015 ≤ 0.0167, 0.03 > 0.025; those after it do not count."""
    assert holm([0.015, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([0.015, None, 0.04, 0.03, 0.005]) == [True, False, False, False, True]
    assert holm([]) == []
    assert holm([0.05]) == [True]


def test_all_claims_at_once_are_holms():
    found = claims(noisy(num_games=6, num_seeds=8, paired=True))
    expected = holm([one.p_value for one in found])
    assert 0 < sum(expected) < sum(one.verdict != "cannot tell" for one in found)
    for one, stands in zip(found, expected, strict=True):
        assert one.holm == (one.verdict if stands else "cannot tell")


def test_two_seeds_give_an_interval_but_no_verdict():
    two = {key: runs[:2] for key, runs in clear().runs["final"].items()}
    for one in claims(Comparison("two", {"final": two, "early": two})):
        assert (one.verdict, one.p_value, one.holm) == ("cannot tell", None, "cannot tell")
        assert one.difference.low < one.difference.value < one.difference.high
        assert one.reason == "there are only 2 seeds, and a verdict needs at least 3"


def test_seeds_that_all_give_the_same_decide_nothing():
    """With seeds declared, every seed of `clear` moves all cells alike, so that no difference has a spread."""
    same = Comparison("same", clear().runs, paired=True)
    for one in claims(same):
        assert (one.verdict, one.p_value, one.difference.low) == ("cannot tell", None, None)
        assert one.reason == "all seeds give the same difference, so there is no spread to judge by"


def test_a_difference_without_spread_is_no_evidence_for_a_claim():
    """At λ = 0.5 all seeds of Retrace say 4 more than DQN's, and at 1 about 4 more."""
    runs = cells(
        {"g": {("retrace", 0.5): (4.0, 5.0, 6.0), ("retrace", 1.0): (4.0, 5.1, 6.0), ("dqn", 0.0): (0.0, 1.0, 2.0)}}
    )
    both = claim(Comparison("both", {"final": runs}, paired=True), "Retrace(λ) does not do poorly at any λ > 0")
    assert (both.verdict, both.p_value) == ("cannot tell", 1.0)
    assert both.reason == "at some λ all seeds give the same difference, so there is no spread to judge by"


def test_few_runs_of_an_algorithm_matter_only_where_it_does():
    few = {key: runs[:2] if key.algorithm == "q_lambda" else runs for key, runs in clear().runs["final"].items()}
    found = {one.text: one.verdict for one in claims(Comparison("few", {"final": few}))}
    assert found["Q*(λ) fails for λ above 0.5"] == "cannot tell"
    assert found[RETRACE_FINAL] == "holds"


def test_claims_of_the_evaluation():
    """Final scores say what the paper says, the evaluation the opposite; nothing is early in an evaluation."""
    runs = {"final": clear().runs["final"], "evaluation": clear(sign=-1.0).runs["final"]}
    comparison = Comparison("both", runs)
    found = claims(comparison, "evaluation")
    assert [one.text for one in found] == [one.text for one in claims(comparison) if "early" not in one.text]
    assert len(found) == 7
    assert {one.verdict for one in found} == {"does not hold"}
    assert claims(clear(), "evaluation")[0].reason == "there are no evaluation scores"
    with pytest.raises(ValueError, match=r"`stretch` must be 'final' or 'evaluation'; got 'area'"):
        claims(clear(), "area")


def test_single_runs_have_a_number_but_no_verdict():
    single = {key: runs[:1] for key, runs in clear().runs["final"].items()}
    for one in claims(Comparison("single", {"final": single, "early": single})):
        assert one.verdict == "cannot tell"
        assert one.difference.value > 0
        assert one.difference.low is None
        assert "single run" in one.reason


def without(comparison: Comparison, **what: object) -> Comparison:
    """Less those cells whose key has one of these values."""
    kept = {
        stretch: {k: v for k, v in runs.items() if not any(getattr(k, name) == x for name, x in what.items())}
        for stretch, runs in comparison.runs.items()
    }
    return Comparison("less", kept)


def test_a_missing_algorithm_is_named():
    found = {one.text: one for one in claims(without(clear(), algorithm="tree_backup"))}
    assert found["TB(λ) is above DQN at the end"].reason == "there are no runs of TB(λ)"
    assert found["TB(λ) is above DQN at the end"].verdict == "cannot tell"
    assert found["TB(λ) is above DQN at the end"].difference is None
    assert found["Retrace(λ) is above DQN at the end"].verdict == "holds"
    assert (
        claim(without(clear(), algorithm="dqn"), "TB(λ) is above DQN at the end").reason == "there are no runs of DQN"
    )


def test_a_missing_lambda_is_said_with_those_that_were_run():
    best = claim(without(clear(), lambda_=1.0), "λ = 1 is best for TB(λ)")
    assert (best.verdict, best.difference) == ("cannot tell", None)
    assert best.reason == "the λ of the claim were not run; λ that were run: 0.1, 0.5, 0.9"
    large = without(without(clear(), lambda_=0.1), lambda_=0.5)
    assert (
        claim(large, "Q*(λ) fails for λ above 0.5").reason
        == "the λ of the claim were not run; λ that were run: 0.9, 1"
    )
    assert claim(large, "Retrace(λ) is above DQN at the end").verdict == "holds"


def test_missing_early_scores_are_said():
    comparison = Comparison("final only", {"final": clear().runs["final"]})
    assert claim(comparison, "Retrace(λ) is above DQN early").reason == "there are no early scores"
    assert claim(comparison, "Retrace(λ) is above DQN at the end").verdict == "holds"


def test_the_claims_baseline_is_the_comparisons():
    """One-step runs beside DQN's do not take its place."""
    runs = clear().runs["final"] | {Key(f"{g}", "one_step", 0.0): (3.5, 3.5, 3.5) for g in range(2)}
    both = Comparison("both", {"final": runs})
    assert both.baseline == "dqn"
    blocks = both.blocks("score", "final", [1.0])
    retrace, dqn = (blocks.value[both.algorithms.index(name), 0] for name in ("retrace", "dqn"))
    assert claim(both, "Retrace(λ) is above DQN at the end").difference.value == pytest.approx(retrace - dqn)


# --- the paper's own ----------------------------------------------------------------------------------------


def printed() -> dict[str, float]:
    """The average inter-algorithm scores of Table 3, straight from the file."""
    text = resources.files("offtrace.scores").joinpath("table3_final_scores.csv").read_text(encoding="utf-8")
    header, *rows = list(csv.reader(text.splitlines()))
    total = dict.fromkeys(header[1:-1], 0.0)
    for row in rows:
        numbers = [float(cell) for cell in row[1:-1]]
        for name, number in zip(total, numbers, strict=True):
            total[name] += (number - min(numbers)) / (max(numbers) - min(numbers)) / len(rows)
    return total


def test_published_scores_are_those_of_the_file():
    averages = published_comparison().averages("score", lambdas=[1.0])
    found = dict(zip(averages.algorithms, averages.value[0].tolist(), strict=True))
    assert found == pytest.approx(printed())
    rounded = {"retrace": 0.8759, "tree_backup": 0.8332, "dqn": 0.6833, "q_star": 0.0460}
    assert found == pytest.approx(rounded, abs=5e-5)
    assert (averages.num_games, averages.num_runs, averages.reason) == (60, 240, None)


def test_published_claims():
    of = printed()
    found = {one.text: one for one in claims(published_comparison())}
    for text, name, value in (("TB(λ)", "tree_backup", 0.150), ("Retrace(λ)", "retrace", 0.193)):
        final, early = found[f"{text} is above DQN at the end"], found[f"{text} is above DQN early"]
        assert final.verdict == "holds"
        assert final.difference.value == pytest.approx(of[name] - of["dqn"])
        assert final.difference.value == pytest.approx(value, abs=5e-4)
        assert (early.verdict, early.reason) == ("cannot tell", "there are no early scores")
    least = found["Retrace(λ) is above TB(λ) for λ > 0"]
    assert least.difference.value == pytest.approx(0.8698 - 0.8158)
    assert least.reason == "only averages are printed, without the runs behind them"
    assert (
        found["λ = 1 is best for TB(λ)"].reason
        == "the printed averages are normalised within each λ, so levels cannot be computed from them"
    )


def test_averages_by_lambda_are_the_printed_ones():
    averages = published_comparison().averages("score")
    assert averages.lambdas == (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    assert dict(zip(averages.algorithms, averages.value[-1].tolist(), strict=True)) == {
        "retrace": 0.8698,
        "tree_backup": 0.8158,
        "dqn": 0.6839,
        "q_star": 0.04317,
    }
    assert averages.low is None


def test_claims_are_computed_once(monkeypatch):
    comparison = clear()
    first = claims(comparison)
    first.pop()
    monkeypatch.setattr(Comparison, "blocks", None)
    assert claims(comparison)[:-1] == first
    assert published_comparison() is published_comparison()
