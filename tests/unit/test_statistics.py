"""Statistics of a few runs: closed forms, naive counting, coverage of the intervals, and what is refused."""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from offtrace import scores as sc

STATISTICS = [sc.mean, sc.median, sc.iqm, sc.optimality_gap]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# Whole numbers under 2¹⁰, a few of them: their sums are exact, so what is left is the rounding of one division.
whole_runs = st.lists(st.integers(-1000, 1000), min_size=1, max_size=12)
whole_scores = st.dictionaries(st.sampled_from("abcdef"), whole_runs, min_size=1, max_size=4)


# --- statistics ---------------------------------------------------------------------------------------------


def test_iqm_in_closed_form():
    assert sc.iqm(np.arange(100)) == 49.5
    assert sc.iqm([1.0, 2.0, 4.0, 100.0]) == 3.0
    assert sc.iqm([7.25]) == 7.25
    assert sc.iqm([1.0, 2.0]) == 1.5
    assert sc.iqm([-100.0, 2.0, 5.0]) == (0.25 * -100.0 + 2.0 + 0.25 * 5.0) / 1.5
    # of 6 runs 1½ go at either end: ½·1 + 2 + 3 + ½·4 over 3
    assert sc.iqm([0.0, 1.0, 2.0, 3.0, 4.0, 99.0]) == 2.5


@pytest.mark.parametrize("num_runs", [4, 8, 20, 400])
def test_iqm_is_the_trimmed_mean_where_quarters_are_whole(num_runs):
    values = generator(num_runs).normal(size=num_runs)
    # sums of at most 400 numbers around 1
    assert sc.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), rel=0, abs=1e-13)


@given(whole_runs, st.integers(-(2**20), 2**20), st.integers(-10, 10))
def test_iqm_moves_and_stretches_with_the_values(values, shift, power):
    found = sc.iqm(values)
    # shifted sums are exact; each side is rounded at most twice at a magnitude under 2²¹
    assert sc.iqm(np.array(values) + shift) == pytest.approx(found + shift, rel=0, abs=2.0**-30)
    assert sc.iqm(np.array(values) * 2.0**power) == found * 2.0**power
    assert sc.iqm(-np.array(values)) == -found


@given(whole_runs, st.randoms(use_true_random=False), st.integers(1, 4))
@pytest.mark.parametrize("statistic", STATISTICS)
def test_order_and_repetition_change_nothing(statistic, values, random, times):
    shuffled = values * times
    random.shuffle(shuffled)
    assert statistic(shuffled) == statistic(values)  # sums of whole numbers, one division of equal quotients


@given(whole_runs)
def test_median_is_numpys(values):
    assert sc.median(values) == np.median(values)


@given(whole_scores)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_game_counts_alike(statistic, scores):
    """By the definition: repeat the runs of each game until all games have as many."""
    multiple = math.lcm(*map(len, scores.values()))
    repeated = [run for runs in scores.values() for run in runs * (multiple // len(runs))]
    assert statistic(scores) == statistic(repeated)


def test_many_games_with_unequal_numbers_of_runs_do_not_move_the_mean():
    a = {"easy": [100.0] * 10, "hard": [0.0] * 2}
    b = {"easy": [100.0] * 2, "hard": [0.0] * 10}
    assert sc.mean(a) == sc.mean(b) == 50.0
    assert sc.verdict(sc.paired_difference(a, b, sc.mean, rng=generator())) == "cannot tell"


def test_mean_and_optimality_gap_by_hand():
    assert sc.mean([1.0, 2.0, 9.0]) == 4.0
    assert sc.optimality_gap([0.25, 0.75, 1.0, 8.0]) == (0.75 + 0.25) / 4
    assert sc.optimality_gap([0.25, 0.75, 1.0, 8.0], gamma=2.0) == (1.75 + 1.25 + 1.0) / 4
    assert sc.optimality_gap([5.0, 6.0]) == 0.0


def test_weights_are_repetitions():
    values, weights = [3.0, -1.0, 8.0, 2.0], [[1, 1, 1, 1], [0, 2, 1, 3], [0, 0, 4, 0]]
    for statistic in STATISTICS:
        found = statistic(values, weights=weights)
        assert found.tolist() == [statistic(np.repeat(values, row)) for row in weights]


# --- bootstrap ----------------------------------------------------------------------------------------------


def test_the_bootstrap_visits_every_resample_as_often_as_it_should():
    scores = {"a": [0.0, 1.0], "b": [0.0, 10.0, 20.0]}
    samples = sc.stratified_bootstrap(scores, sc.mean, rng=generator(), num_resamples=40_000)
    exact = [
        (np.mean(a) + np.mean(b)) / 2
        for a, b in itertools.product(itertools.product([0, 1], repeat=2), itertools.product([0, 10, 20], repeat=3))
    ]
    values, counts = np.unique(np.round(exact, 9), return_counts=True)
    found = np.array([(np.round(samples, 9) == value).sum() for value in values])
    assert found.sum() == 40_000
    # χ² with 20 degrees of freedom: one seed in 10⁵ would fail
    assert stats.chisquare(found, counts / counts.sum() * 40_000).pvalue > 1e-5


@pytest.mark.parametrize("statistic", STATISTICS)
def test_the_bootstrap_is_the_statistic_of_resampled_runs(statistic):
    scores = {"a": [0.1, 0.7, 0.4], "b": [0.2, 0.9]}
    samples = sc.stratified_bootstrap(scores, statistic, rng=generator(), num_resamples=500)
    drawn = itertools.product(itertools.product(scores["a"], repeat=3), itertools.product(scores["b"], repeat=2))
    possible = np.unique([statistic({"a": a, "b": b}) for a, b in drawn])
    nearest = possible[np.abs(samples[:, None] - possible).argmin(axis=1)]
    np.testing.assert_allclose(samples, nearest, rtol=0, atol=1e-15)  # a few roundings of numbers under 1
    assert len(np.unique(nearest)) > len(possible) / 2


@pytest.mark.parametrize(("num_runs", "seed"), [(30, 0), (3, 1)])
def test_intervals_of_the_mean_cover(num_runs, seed):
    """With n runs a game the bootstrap's variance is (n − 1)/n of the unbiased one, which has G(n − 1) degrees.

    So a 95 % interval covers P(|t| ≤ 1.96 √((n − 1)/n)): 94 % for 30 runs of 5 games, 86 % for 3.
    """
    rng, num_games, num_repetitions = generator(seed), 5, 400
    truth = np.arange(num_games) * 10.0
    covered = 0
    for _ in range(num_repetitions):
        runs = truth[:, None] + rng.normal(size=(num_games, num_runs))
        found = sc.interval(dict(zip("abcde", runs, strict=True)), sc.mean, rng=rng, num_resamples=1000)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth.mean() <= found.high
    reach = stats.norm.ppf(0.975) * math.sqrt((num_runs - 1) / num_runs)
    expected = 1.0 - 2.0 * stats.t.sf(reach, df=num_games * (num_runs - 1))
    # three standard deviations of the binomial, 0.034 and 0.052; the noise of 1000 resamples costs under 0.005
    tolerance = 3.0 * math.sqrt(expected * (1.0 - expected) / num_repetitions) + 0.005
    assert abs(covered / num_repetitions - expected) < tolerance


def test_same_seed_same_interval():
    scores = {"a": generator(5).normal(size=9), "b": generator(6).normal(size=4)}
    backwards = dict(reversed(scores.items()))
    other = {"a": generator(7).normal(size=3), "b": generator(8).normal(size=6)}
    for function in (
        lambda s, rng: sc.interval(s, sc.iqm, rng=rng),
        lambda s, rng: sc.paired_difference(s, other, sc.iqm, rng=rng),
        lambda s, rng: sc.probability_of_improvement(s, other, rng=rng, num_resamples=201),
    ):
        assert function(scores, generator(1)) == function(scores, generator(1))
        assert function(scores, generator(1)) == function(backwards, generator(1))
    for function in (sc.interval, functools.partial(sc.paired_difference, other)):
        assert function(scores, sc.iqm, rng=generator(1)).low != function(scores, sc.iqm, rng=generator(2)).low


def test_a_wider_level_is_a_wider_interval():
    scores = {"a": generator(3).normal(size=20)}
    narrow, wide = (sc.interval(scores, sc.mean, rng=generator(), level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert narrow.num_runs == 20


def test_one_run_gives_no_interval_and_says_so():
    many, one = {"pong": [1.0, 2.0], "breakout": [4.0, 5.0]}, {"pong": [1.0, 2.0], "breakout": [4.0]}
    for name, found in {
        "scores": sc.interval(one, sc.iqm, rng=generator()),
        "scores_b": sc.paired_difference(many, one, sc.mean, rng=generator()),
        "x": sc.probability_of_improvement(one, many, rng=generator()),
        "scores_again": sc.performance_profile(one, [0.0], rng=generator()),
    }.items():
        assert found.low is None
        assert found.high is None
        assert found.reason is not None
        assert found.reason.startswith(
            f"`{name.removesuffix('_again')}` has a single run of game 'breakout', and one"
        )
    assert sc.interval(one, sc.mean, rng=generator()).value == (1.5 + 4.0) / 2
    assert sc.interval(many, sc.mean, rng=generator()).reason is None


def test_a_statistic_of_ones_own():
    def best(values, *, weights):
        return np.where(weights > 0.0, values, -np.inf).max(axis=-1)

    found = sc.interval({"a": [1.0, 2.0, 3.0]}, best, rng=generator())
    assert (found.value, found.high) == (3.0, 3.0)
    with pytest.raises(ValueError, match=r"`statistic` must return one number per row .* got shape \(\). Reduce"):
        sc.interval({"a": [1.0, 2.0]}, lambda values, *, weights: np.median(values), rng=generator())


# --- two algorithms -----------------------------------------------------------------------------------------


def test_probability_of_improvement_in_closed_form():
    x = {"a": [1.0, 2.0, 3.0], "b": [5.0, 6.0]}
    better = {"a": [4.0, 5.0], "b": [7.0, 8.0, 9.0]}
    for first, second, expected in [(x, x, 0.5), (better, x, 1.0), (x, better, 0.0)]:
        found = sc.probability_of_improvement(first, second, rng=generator())
        assert found.value == expected
    assert found.num_runs == 10
    assert (found.low, found.high) == (0.0, 0.0)
    # a: 3 beats 2 and 3 ties 3, so (1 + ½)/2; b: nothing of 2 beats
    mixed = sc.probability_of_improvement(
        {"a": [3.0], "b": [0.0]}, {"a": [2.0, 3.0], "b": [1.0, 1.0]}, rng=generator()
    )
    assert mixed.value == 0.75 / 2


@given(whole_scores, st.data())
@settings(max_examples=50)
def test_probability_of_improvement_by_counting(x, data):
    y = {game: data.draw(whole_runs) for game in x}
    by_game = [np.mean([(a > b) + 0.5 * (a == b) for a in x[game] for b in y[game]]) for game in x]
    found = sc.probability_of_improvement(x, y, rng=generator(), num_resamples=8)
    back = sc.probability_of_improvement(y, x, rng=generator(), num_resamples=8)
    assert found.value == pytest.approx(np.mean(by_game), rel=0, abs=1e-15)  # a few roundings of numbers under 1
    assert found.value + back.value == pytest.approx(1.0, rel=0, abs=1e-15)


def test_probability_of_improvement_resamples_both():
    # one of two runs of each: P is the share of drawn x that are 2 times the share of drawn y that are 1
    found = sc.probability_of_improvement({"a": [0.0, 2.0]}, {"a": [1.0, 3.0]}, rng=generator(), num_resamples=20_000)
    assert (found.value, found.low, found.high) == (0.25, 0.0, 1.0)  # 1 comes up one time in 16


def test_paired_difference():
    seeds = generator(4).normal(size=(2, 20)) * 100.0
    a = {"a": seeds[0] + 1.0, "b": seeds[1] + 3.0}
    b = {"a": seeds[0], "b": seeds[1]}
    paired = sc.paired_difference(a, b, sc.mean, rng=generator(), paired=True)
    apart = sc.paired_difference(a, b, sc.mean, rng=generator())
    # each game's difference is a constant, so nothing is left but rounding of numbers around 100
    np.testing.assert_allclose([paired.value, paired.low, paired.high], 2.0, rtol=0, atol=1e-12)
    assert apart.value == paired.value
    assert sc.verdict(paired) == "holds"
    assert sc.verdict(apart) == "cannot tell"
    # the two variances add: σ²/20 per game and algorithm, over two games; the quantiles of 2000 are good to 10 %
    width = 2 * 1.96 * np.sqrt(2 * np.mean(np.var(seeds, axis=1)) / 20 / 2)
    assert apart.high - apart.low == pytest.approx(width, rel=0.1)


def test_rounding_makes_no_difference():
    a, b = {"a": [0.1] * 3, "b": [0.7] * 3}, {"a": [0.1] * 5, "b": [0.7] * 5}
    for statistic in STATISTICS:
        found = sc.paired_difference(a, b, statistic, rng=generator())
        assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
        assert sc.verdict(found) == "cannot tell"


def test_verdicts():
    found = sc.Interval(value=0.5, low=0.25, high=0.75, num_runs=4)
    assert sc.verdict(found) == "holds"
    assert (
        sc.verdict(found, above=0.5)
        == sc.verdict(found, above=0.25)
        == sc.verdict(found, above=0.75)
        == "cannot tell"
    )
    assert sc.verdict(found, above=0.8) == "does not hold"
    assert sc.verdict(sc.Interval(0.5, None, None, 1, "one run")) == "cannot tell"


# --- profiles -----------------------------------------------------------------------------------------------


def test_profile_by_hand():
    scores = {"a": [0.0, 1.0], "b": [0.5, 0.5, 2.0, 0.25]}
    found = sc.performance_profile(scores, [-1.0, 0.0, 0.5, 1.0, 2.0], rng=generator())
    # above 0: (½ + 1)/2; above ½: (½ + ¼)/2; above 1: (0 + ¼)/2
    assert found.share.tolist() == [1.0, 0.75, 0.375, 0.125, 0.0]
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.share).all()
    assert (found.share <= found.high).all()
    assert (found.low[0], found.high[0], found.low[-1], found.high[-1]) == (1.0, 1.0, 0.0, 0.0)
    assert (found.num_runs, found.reason) == (6, None)


def test_the_band_is_the_interval_of_the_share():
    scores = {"a": generator(1).normal(size=7), "b": generator(2).normal(size=5)}
    found = sc.performance_profile(scores, [-0.5, 0.0, 0.5], rng=generator())
    for i, threshold in enumerate(found.thresholds):
        above = {game: (runs > threshold).astype(float) for game, runs in scores.items()}
        one = sc.interval(above, sc.mean, rng=generator())
        np.testing.assert_allclose([found.low[i], found.high[i]], [one.low, one.high], rtol=0, atol=1e-15)


# --- from curves to scores ----------------------------------------------------------------------------------


def test_area_under_curve():
    assert sc.area_under_curve(steps=[0, 10, 40], returns=[1.0, 2.0, 5.0]) == 3.0  # a line: its middle
    assert sc.area_under_curve(steps=[100, 200], returns=[7.0, 7.0]) == 7.0
    assert sc.area_under_curve(steps=[0, 1, 2, 4], returns=[0.0, 1.0, 0.0, 0.0]) == 0.25


def test_run_score_weighs_ticks_by_their_episodes():
    steps = np.arange(0, 101, 5) * 1000
    returns, num_episodes = np.full(21, 50.0), np.full(21, 4)
    returns[[0, 1, 2, 19, 20]] = [np.nan, 3.0, np.nan, 1.0, 4.0]
    num_episodes[[0, 1, 2, 19, 20]] = [0, 2, 0, 1, 2]
    found = sc.run_score(steps=steps, returns=returns, num_episodes=num_episodes)
    assert found == sc.RunScore(3.0, 3)  # (1 + 2·4)/3: the tick that ends at 90 000 is before the last tenth
    assert sc.run_score(steps=steps, returns=returns, num_episodes=num_episodes, end="first") == sc.RunScore(3.0, 2)
    whole = sc.run_score(steps=steps, returns=returns, num_episodes=num_episodes, share=1.0)
    assert whole == sc.RunScore((69 * 50.0 - 47 * 2 - 49 - 46 * 2) / 69, 69)


@given(st.integers(1, 10**9), st.integers(1, 9))
def test_first_and_last_share_split_a_run_exactly(unit, tenths):
    steps = np.arange(11) * unit
    counts = [0] + [1] * 10
    returns = np.arange(11.0)
    first = sc.run_score(steps=steps, returns=returns, num_episodes=counts, share=tenths / 10, end="first")
    last = sc.run_score(steps=steps, returns=returns, num_episodes=counts, share=(10 - tenths) / 10)
    assert (first.num_episodes, last.num_episodes) == (tenths, 10 - tenths)
    assert first.value == (tenths + 1) / 2


def test_run_score_without_an_episode_is_none_with_the_reason():
    found = sc.run_score(steps=[0, 90, 100], returns=[np.nan, 5.0, np.nan], num_episodes=[0, 3, 0])
    assert (found.value, found.num_episodes) == (None, 0)
    assert found.reason == "no episode ended in the last 0.1 of 100 steps; increase `share` or train for longer"


def test_normalised_means_are_the_papers_scores():
    rng = generator(9)
    raw = {
        a: {g: 20.0 * i + rng.normal(size=rng.integers(1, 6)) for g in "xyz"}  # 20 deviations apart: no noise floor
        for i, a in enumerate(("retrace", "tree_backup", "dqn"))
    }
    z = sc.normalised(raw)
    matrix = sc.inter_algorithm_scores([[np.mean(raw[a][g]) for a in raw] for g in "xyz"])
    for column, (algorithm, by_game) in enumerate(z.items()):
        assert list(by_game) == ["x", "y", "z"]
        np.testing.assert_allclose([runs.mean() for runs in by_game.values()], matrix[:, column], rtol=0, atol=1e-14)
        assert sc.mean(by_game) == pytest.approx(sc.average_scores(matrix)[column], rel=0, abs=1e-14)
        assert [len(runs) for runs in by_game.values()] == [len(runs) for runs in raw[algorithm].values()]


def test_normalised_published_table_is_the_papers_average():
    table = sc.published_table_3()
    raw = {a: {g: [table.scores[i, k]] for i, g in enumerate(table.games)} for k, a in enumerate(table.algorithms)}
    expected = sc.average_scores(sc.inter_algorithm_scores(table.scores))
    np.testing.assert_allclose([sc.mean(z) for z in sc.normalised(raw).values()], expected, rtol=0, atol=1e-14)


def test_where_nothing_differs_every_run_is_one_half():
    """However many runs there are, and in whatever order they are added up."""
    assert sc.normalised({"a": {"g": [0.1]}, "b": {"g": [0.1] * 3}})["b"]["g"].tolist() == [0.5] * 3
    assert sc.normalised({"a": {"g": [0.1]}, "b": {"g": [0.1]}})["b"]["g"].tolist() == [0.5]


def test_normalised_noise_is_as_wide_as_noise_is():
    """Means are equal, s² = 0.06/7 and 1/n = (1/3 + 1/6)/2, so with q(2, 7) = 3.344 the width is 0.1548."""
    raw = {"a": {"g": [0.1, 0.2, 0.3]}, "b": {"g": [0.3, 0.2, 0.1] * 2}}
    away = 0.1 / (3.3441 * np.sqrt(0.06 / 7) / 2)
    z = sc.normalised(raw)
    np.testing.assert_allclose(z["a"]["g"], [0.5 - away, 0.5, 0.5 + away], rtol=1e-4)
    np.testing.assert_allclose(z["b"]["g"], [0.5 + away, 0.5, 0.5 - away] * 2, rtol=1e-4)
    assert sc.normalised(raw, clip=True)["a"]["g"].tolist() == [0.0, pytest.approx(0.5), 1.0]


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1e9, 1e300])
def test_normalised_is_finite_for_numbers_of_any_size(size):
    z = sc.normalised({"a": {"g": [0.0]}, "b": {"g": [5e-324]}, "c": {"g": [-size, size]}})
    for runs in z.values():
        assert np.abs(runs["g"]).max() < 2.0
    assert z["c"]["g"].sum() == pytest.approx(1.0)


# --- what is refused ----------------------------------------------------------------------------------------

TAKES_SCORES = {
    "stratified_bootstrap": lambda s: sc.stratified_bootstrap(s, sc.mean, rng=generator()),
    "interval": lambda s: sc.interval(s, sc.mean, rng=generator()),
    "paired_difference": lambda s: sc.paired_difference({"pong": [1.0]}, s, sc.mean, rng=generator()),
    "probability_of_improvement": lambda s: sc.probability_of_improvement(s, {"pong": [1.0]}, rng=generator()),
    "performance_profile": lambda s: sc.performance_profile(s, [0.0], rng=generator()),
    "normalised": lambda s: sc.normalised({"dqn": {"pong": [1.0]}, "retrace": s}),
    "mean": sc.mean,
    "iqm": sc.iqm,
}
REFUSED_SCORES = {
    "nan": ({"pong": [1.0, np.nan]}, r"must be finite; got nan at game 'pong', run 1. Finish the run"),
    "inf": ({"pong": [-np.inf, 1.0]}, r"must be finite; got -inf at game 'pong', run 0"),
    "no game": ({}, r"must have at least 1 game; got none. Add"),
    "no run": ({"pong": []}, r"at least 1 run per game; got shape \(0,\) at game 'pong'. Leave out"),
    "matrix": ({"pong": [[1.0, 2.0]]}, r"must have a vector .* got shape \(1, 2\) at game 'pong'"),
    "ragged": ({"pong": [[1.0, 2.0], [3.0]]}, r"\['pong'\]` must be an array; got rows of different lengths"),
}


@pytest.mark.parametrize("function", TAKES_SCORES.values(), ids=TAKES_SCORES)
@pytest.mark.parametrize(("scores", "text"), REFUSED_SCORES.values(), ids=REFUSED_SCORES)
def test_refused_scores(function, scores, text):
    with pytest.raises(ValueError, match=text):
        function(scores)


def test_refused_types():
    with pytest.raises(TypeError, match=r"`scores` must map games to the scores of their runs; got .*list"):
        sc.interval([1.0, 2.0], sc.mean, rng=generator())
    with pytest.raises(TypeError, match=r"`scores\['pong'\]` must hold real numbers; got dtype <U1. Convert"):
        sc.interval({"pong": ["1"]}, sc.mean, rng=generator())
    with pytest.raises(TypeError, match=r"`rng` must be a numpy.random.Generator; got 0. Use numpy.random"):
        sc.interval({"pong": [1.0, 2.0]}, sc.mean, rng=0)


TWO = {"pong": [1.0, 2.0]}
CURVE = {"steps": [0, 1, 2], "returns": [0.0, 1.0, 2.0]}
REFUSED = {
    "games": (
        lambda: sc.paired_difference(TWO, {"qbert": [1.0]}, sc.mean, rng=generator()),
        r"`scores_a` and `scores_b` must have the same games; got 'pong' in `scores_a` only. Run it for `scores_b`",
    ),
    "more games": (
        lambda: sc.probability_of_improvement(TWO, TWO | {"qbert": [1.0]}, rng=generator()),
        r"got 'qbert' in `y` only. Run it for `x`",
    ),
    "partners": (
        lambda: sc.paired_difference(TWO, {"pong": [1.0] * 3}, sc.mean, rng=generator(), paired=True),
        r"`paired` must be False where runs have no partner; got 2 and 3 runs of game 'pong'. Leave out",
    ),
    "one algorithm": (lambda: sc.normalised({"dqn": TWO}), r"at least 2 algorithms to compare; got \['dqn'\]. Add"),
    "missing game": (
        lambda: sc.normalised({"dqn": TWO, "retrace": {"qbert": [1.0]}}),
        r"`dqn` and `retrace` must have the same games; got 'pong' in `dqn` only",
    ),
    "level": (lambda: sc.interval(TWO, sc.mean, rng=generator(), level=95), r"`level` must lie .* got 95. 95 % is"),
    "resamples": (
        lambda: sc.interval(TWO, sc.mean, rng=generator(), num_resamples=0),
        r"`num_resamples` must be a whole number of at least 1; got 0",
    ),
    "gamma": (lambda: sc.optimality_gap([1.0], gamma=math.nan), r"`gamma` must be finite; got nan"),
    "above": (lambda: sc.verdict(sc.Interval(0, 0, 0, 2), above=math.nan), r"`above` must be finite; got nan"),
    "values": (lambda: sc.iqm([0.0, np.nan]), r"`values` must be finite; got nan at index 1. Finish"),
    "no values": (lambda: sc.iqm([]), r"`values` must be a vector of at least 1 number; got shape \(0,\)"),
    "weights of games": (lambda: sc.iqm(TWO, weights=[1, 1]), r"`weights` must be None with scores by game"),
    "weights": (lambda: sc.iqm([1.0, 2.0], weights=[1]), r"`weights` must have .* shape \(…, 2\); got shape \(1,\)"),
    "no weight": (lambda: sc.iqm([1.0, 2.0], weights=[0, 0]), r"`weights` must be finite, at least 0 and not all 0"),
    "negative": (lambda: sc.iqm([1.0, 2.0], weights=[2, -1]), r"`weights` must be finite, at least 0 and not all 0"),
    "thresholds": (
        lambda: sc.performance_profile(TWO, [np.inf], rng=generator()),
        r"`thresholds` must be finite; got inf at index 0",
    ),
    "curve": (
        lambda: sc.area_under_curve(steps=[0, 1], returns=[0.0, np.nan]),
        r"`returns` must be finite; got nan at index 1. Leave the point out of both",
    ),
    "one point": (
        lambda: sc.area_under_curve(steps=[0], returns=[0.0]),
        r"`steps` must have at least 2 points; got 1",
    ),
    "lengths": (lambda: sc.area_under_curve(steps=[0, 1, 2], returns=[0.0, 1.0]), r"same length; got 3 and 2. Give"),
    "backwards": (
        lambda: sc.area_under_curve(steps=[0, 2, 2], returns=[0.0, 1.0, 2.0]),
        r"`steps` must increase strictly; got 2 after 2 at index 2. Sort",
    ),
    "episodes without a return": (
        lambda: sc.run_score(steps=[1, 2], returns=[1.0, np.nan], num_episodes=[1, 1]),
        r"`returns` must be finite; got nan at index 1. A tick in which episodes ended",
    ),
    "counts": (lambda: sc.run_score(**CURVE, num_episodes=[0, 1.5, 1]), r"must be counts; got 1.5 at index 1"),
    "fewer counts": (lambda: sc.run_score(**CURVE, num_episodes=[1, 1]), r"got shapes \(3,\) and \(2,\). Give nan"),
    "share": (lambda: sc.run_score(**CURVE, num_episodes=[1] * 3, share=10), r"`share` must lie in \(0, 1\]; got 10"),
    "end": (
        lambda: sc.run_score(**CURVE, num_episodes=[1] * 3, end="middle"),
        r"`end` must be 'last' or 'first'; got",
    ),
    "no steps": (
        lambda: sc.run_score(steps=[0], returns=[0.0], num_episodes=[1]),
        r"`steps` must count from 0 to the end of the run; got 0 to 0. Give",
    ),
}


@pytest.mark.parametrize(("call", "text"), REFUSED.values(), ids=REFUSED)
def test_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_arguments_are_not_changed():
    runs = np.array([3.0, 1.0, 2.0])
    scores = {"b": runs, "a": runs}
    sc.iqm(scores)
    sc.interval(scores, sc.median, rng=generator())
    sc.normalised({"x": scores, "y": {"a": [0.0], "b": [1.0]}})
    assert runs.tolist() == [3.0, 1.0, 2.0]
    assert list(scores) == ["b", "a"]
