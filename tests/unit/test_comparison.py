"""Comparisons and claims against cases worked out by hand, and against plain loops that know nothing of them."""

import csv
import random
from importlib import resources

import numpy as np
import pytest

from offtrace.scores import Claim, Comparison, Key, claims, published_comparison

NUM_LOOPS = 6000


def cells(of: dict[str, dict[tuple[str, float], tuple[float, ...]]]) -> dict[Key, tuple[float, ...]]:
    return {Key(game, name, x): runs for game, row in of.items() for (name, x), runs in row.items()}


BY_HAND = cells(
    {
        "a": {
            ("retrace", 0.5): (3.0, 5.0),
            ("retrace", 1.0): (9.0, 11.0),
            ("tree_backup", 0.5): (6.0, 6.0),
            ("tree_backup", 1.0): (4.0, 6.0),
            ("dqn", 0.0): (0.0, 0.0),
        },
        "b": {
            ("retrace", 0.5): (2.0, 2.0),
            ("retrace", 1.0): (1.0, 3.0),
            ("tree_backup", 0.5): (4.0, 4.0),
            ("tree_backup", 1.0): (0.0, 0.0),
            ("dqn", 0.0): (3.0, 5.0),
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
    with pytest.raises(ValueError, match=r"`runs\['final'\]` must be finite scores, one or more; got \(1.0, inf\)"):
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


def noisy(num_games: int = 3, num_seeds: int = 3) -> Comparison:
    rng = np.random.default_rng(7)
    runs = {}
    for g in range(num_games):
        for name, height in (("retrace", 6.0), ("tree_backup", 5.0), ("q_lambda", 3.0), ("dqn", 4.0)):
            for x in (0.0,) if name == "dqn" else (0.5, 0.9, 1.0):
                runs[Key(f"game {g}", name, x)] = (height + x + 1.5 * rng.normal(size=num_seeds)).tolist()
    return Comparison("noisy", {"final": runs, "early": runs})


def loop(
    comparison: Comparison, lambdas, level: bool, num_draws: int = NUM_LOOPS
) -> list[dict[tuple[str, float], float]]:
    """Averages of every draw, with nothing but lists: draw the seeds of each cell, put their means on the scale of
    the means that were found, average games."""
    generator, runs = random.Random(3), comparison.runs["final"]
    names = sorted({key.algorithm for key in runs})
    games = sorted({key.game for key in runs})
    found = []
    for _ in range(num_draws):
        average = {(name, x): 0.0 for name in names for x in lambdas}
        for game in games:
            mean = {}
            for key, values in runs.items():
                if key.game == game:
                    drawn = [generator.choice(list(values)) for _ in values]
                    for x in lambdas if key.algorithm == "dqn" else [key.lambda_]:
                        mean[key.algorithm, x] = sum(drawn) / len(drawn)
            for x in lambdas:
                ends = [
                    sum(values) / len(values)
                    for key, values in runs.items()
                    if key.game == game and (level or key.algorithm == "dqn" or key.lambda_ == x)
                ]
                for name in names:
                    average[name, x] += (mean[name, x] - min(ends)) / (max(ends) - min(ends)) / len(games)
        found.append(average)
    return found


def ends(values: list[float], outside: float = 0.05) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[round(outside / 2 * len(ordered))], ordered[round((1 - outside / 2) * len(ordered)) - 1]


@pytest.mark.parametrize("scale", ["score", "level"])
def test_intervals_are_those_of_a_plain_loop(scale):
    comparison = noisy()
    averages = comparison.averages(scale)
    drawn = loop(comparison, averages.lambdas, level=scale == "level", num_draws=2000)
    assert averages.low is not None
    assert averages.high is not None
    for i, x in enumerate(averages.lambdas):
        for a, name in enumerate(averages.algorithms):
            low, high = ends([draw[name, x] for draw in drawn])
            width = averages.high[i, a] - averages.low[i, a]
            # an end of 2000 draws is off by about 0.05 of the width
            assert averages.low[i, a] == pytest.approx(low, abs=0.12 * width + 1e-9)
            assert averages.high[i, a] == pytest.approx(high, abs=0.12 * width + 1e-9)
            assert averages.low[i, a] <= averages.value[i, a] <= averages.high[i, a]


def test_a_baseline_is_drawn_once_for_all_lambdas():
    """And the interval of each of three λ leaves out a third of 5 %."""
    runs = {}
    for x in (0.5, 0.9, 1.0):
        for name, height in (("retrace", 6.0), ("tree_backup", 0.0), ("q_lambda", 10.0)):
            runs[Key("pong", name, x)] = (height, height, height)
    runs[Key("pong", "dqn", 0.0)] = (1.0, 4.0, 7.0)
    comparison = Comparison("only DQN is random", {"final": runs})
    found = claim(comparison, "No λ > 0 at which Retrace(λ) does poorly").difference
    drawn = loop(comparison, (0.5, 0.9, 1.0), level=True)
    low, high = ends([draw["retrace", 1.0] - draw["dqn", 1.0] for draw in drawn], outside=0.05 / 3)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.02)
    draws = comparison.draws("level").drawn
    assert (draws[:, -1] == draws[:, -1, :1]).all()


def test_the_same_numbers_every_time_whatever_the_order_of_the_runs():
    first, again = noisy(), noisy()
    turned = Comparison("turned", {s: {k: list(reversed(v)) for k, v in reversed(runs.items())}
                                   for s, runs in noisy().runs.items()})  # fmt: skip
    for other in (again, turned):
        assert np.array_equal(first.draws("score").drawn, other.draws("score").drawn)


def test_games_are_the_unit_where_there_is_one_run_of_each():
    """The bootstrap of four games: means of four draws of their z."""
    z = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.4}
    of = {g: {("retrace", 1.0): (x,), ("tree_backup", 1.0): (0.0,), ("dqn", 0.0): (1.0,)} for g, x in z.items()}
    averages = Comparison("games", {"final": cells(of)}, unit="games").averages("score")
    generator = random.Random(1)
    low, high = ends([sum(generator.choice([*z.values()]) for _ in z) / 4 for _ in range(NUM_LOOPS)])
    assert averages.value[0, 0] == pytest.approx(0.6)
    assert averages.low is not None
    assert averages.high is not None
    assert (averages.low[0, 0], averages.high[0, 0]) == pytest.approx((low, high), abs=0.051)
    alone = Comparison("one", {"final": cells({"a": of["a"]})}, unit="games").averages("score")
    assert alone.low is None
    assert alone.reason == "one game has no spread"


# --- statistics ---------------------------------------------------------------------------------------------


def test_statistics_are_on_the_scale_of_the_score():
    rows = {row.algorithm: row for row in by_hand().statistics(1.0)}
    assert list(rows) == ["retrace", "tree_backup", "dqn"]
    assert [row.mean.value for row in rows.values()] == pytest.approx([0.75, 0.25, 0.5])
    assert rows["dqn"].improvement is None
    assert rows["retrace"].area is None
    # on a both runs beat both of DQN's, on b 3 is tied with 3 and the rest lose: (1 + 1/8) / 2
    assert rows["retrace"].improvement.value == pytest.approx(0.5625)
    assert by_hand().statistics(0.7) == []


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
    assert claim(comparison, "Retrace(λ) is above DQN finally").difference.value == pytest.approx(0.75 - 0.5)
    assert claim(comparison, "TB(λ) is above DQN early").difference.value == pytest.approx(0.25 - 0.5)
    assert claim(comparison, "λ = 1 is best for Retrace(λ)").difference.value == pytest.approx(0.75 - 0.45)
    assert claim(comparison, "λ = 1 is best for TB(λ)").difference.value == pytest.approx(0.25 - 0.8)
    assert claim(comparison, "Retrace(λ) is above TB(λ) for λ > 0").difference.value == pytest.approx(0.45 - 0.8)
    worst = claim(comparison, "No λ > 0 at which Retrace(λ) does poorly")
    assert worst.difference.value == pytest.approx(0.45 - 0.5)
    assert worst.measure == "its level, less DQN's; worst of 2, at λ = 0.5"


def test_q_fails_above_one_half_is_a_mean_of_levels():
    """Q's levels in `clear` are, of a scale from 0 to 10, 4.5 and 2.5 up to ½, then .5 and 0."""
    difference = claim(clear(), "Q*(λ) fails for λ above 0.5").difference
    assert difference.value == pytest.approx((0.45 + 0.25) / 2 - (0.05 + 0.0) / 2)


def test_one_is_best_if_it_is_above_the_next_best():
    """Retrace's levels in `clear` are .64, .8, .96 and 1."""
    assert claim(clear(), "λ = 1 is best for Retrace(λ)").difference.value == pytest.approx(1.0 - 0.96)


def test_no_verdict_where_there_is_no_difference():
    """Retrace is TB, and neither minds λ: what is least over six λ must not decide. 40 repetitions, 5 % may err."""
    wrong = dict.fromkeys(("Retrace(λ) is above TB(λ) for λ > 0", "λ = 1 is best for Retrace(λ)"), 0)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        runs = {
            Key(f"game {g}", name, x): (height + rng.normal(size=8)).tolist()
            for g in range(4)
            for name, height in (("retrace", 5.0), ("tree_backup", 5.0), ("q_lambda", 3.0), ("dqn", 1.0))
            for x in ((0.0,) if name == "dqn" else (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0))
        }
        for text in wrong:
            wrong[text] += claim(Comparison("nothing", {"final": runs}), text).verdict != "cannot tell"
    assert max(wrong.values()) <= 8  # eight seeds cover less than they should


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
    assert found["TB(λ) is above DQN finally"].reason == "there are no runs of TB(λ)"
    assert found["TB(λ) is above DQN finally"].verdict == "cannot tell"
    assert found["TB(λ) is above DQN finally"].difference is None
    assert found["Retrace(λ) is above DQN finally"].verdict == "holds"
    assert claim(without(clear(), algorithm="dqn"), "TB(λ) is above DQN finally").reason == "there are no runs of DQN"


def test_a_missing_lambda_is_said_with_those_that_were_run():
    best = claim(without(clear(), lambda_=1.0), "λ = 1 is best for TB(λ)")
    assert (best.verdict, best.difference) == ("cannot tell", None)
    assert best.reason == "the λ that it speaks of were not run, only 0.1, 0.5, 0.9"
    large = without(without(clear(), lambda_=0.1), lambda_=0.5)
    assert claim(large, "Q*(λ) fails for λ above 0.5").reason == "the λ that it speaks of were not run, only 0.9, 1"
    assert claim(large, "Retrace(λ) is above DQN finally").verdict == "holds"


def test_missing_early_scores_are_said():
    comparison = Comparison("final only", {"final": clear().runs["final"]})
    assert claim(comparison, "Retrace(λ) is above DQN early").reason == "there are no early scores"
    assert claim(comparison, "Retrace(λ) is above DQN finally").verdict == "holds"


def test_the_claims_baseline_is_the_comparisons():
    """One-step runs beside DQN's do not take its place."""
    runs = clear().runs["final"] | {Key(f"{g}", "one_step", 0.0): (3.5, 3.5, 3.5) for g in range(2)}
    both = Comparison("both", {"final": runs})
    assert both.baseline == "dqn"
    draws = both.draws("score", "final", [1.0])
    retrace, dqn = (draws.found[both.algorithms.index(name), 0] for name in ("retrace", "dqn"))
    assert claim(both, "Retrace(λ) is above DQN finally").difference.value == pytest.approx(retrace - dqn)


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
        final, early = found[f"{text} is above DQN finally"], found[f"{text} is above DQN early"]
        assert final.verdict == "holds"
        assert final.difference.value == pytest.approx(of[name] - of["dqn"])
        assert final.difference.value == pytest.approx(value, abs=5e-4)
        assert (early.verdict, early.reason) == ("cannot tell", "there are no early scores")
    least = found["Retrace(λ) is above TB(λ) for λ > 0"]
    assert least.difference.value == pytest.approx(0.8698 - 0.8158)
    assert least.reason == "only averages are printed, without the runs behind them"
    assert found["λ = 1 is best for TB(λ)"].reason == "averages are printed for each λ by itself: no level follows"


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
