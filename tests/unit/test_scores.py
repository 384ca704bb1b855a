"""Inter-algorithm scores against their definition by hand and by counting, and the paper's numbers."""

import doctest
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtrace import scores
from offtrace.scores import inter_algorithm, published

PAPER_ORDER = ("tree_backup", "retrace", "dqn", "q_star")


@st.composite
def integer_scores(draw) -> np.ndarray:
    """Whole numbers, so that sums and products in the tests are exact and equality may be asked for."""
    num_games = draw(st.integers(1, 8))
    num_algorithms = draw(st.integers(2, 5))
    row = st.lists(st.integers(-1000, 1000), min_size=num_algorithms, max_size=num_algorithms)
    return np.array(draw(st.lists(row, min_size=num_games, max_size=num_games)), dtype=np.float64)


# --- z ------------------------------------------------------------------------------------------------------


def test_two_games_and_three_algorithms_by_hand():
    # game 0: worst 10, best 50, so 20 is (20−10)/40; game 1: worst −3, best 5, so −1 is (−1+3)/8
    z = scores.inter_algorithm_scores([[10.0, 50.0, 20.0], [5.0, -1.0, -3.0]])
    np.testing.assert_array_equal(z, [[0.0, 1.0, 0.25], [1.0, 0.25, 0.0]])


@given(integer_scores())
def test_z_is_the_definition_in_exact_fractions(matrix):
    for game, z_row in zip(matrix.tolist(), scores.inter_algorithm_scores(matrix).tolist(), strict=True):
        worst, best = min(game), max(game)
        for score, z in zip(game, z_row, strict=True):
            exact = Fraction(1, 2) if best == worst else Fraction(score - worst) / Fraction(best - worst)
            assert z == float(exact)  # one correctly rounded division of exact numbers


@given(integer_scores(), st.data())
def test_z_ignores_a_positive_affine_map_of_each_game(matrix, data):
    rows = st.lists(st.integers(1, 2**16), min_size=len(matrix), max_size=len(matrix))
    scale = np.array(data.draw(rows))[:, None] / 2**8
    shift = np.array(data.draw(rows))[:, None] - 2.0**15
    # all products and sums stay under 2^53 units of 2^−8, so nothing rounds before the division
    np.testing.assert_array_equal(
        scores.inter_algorithm_scores(scale * matrix + shift), scores.inter_algorithm_scores(matrix)
    )


@given(integer_scores())
def test_negated_scores_reverse_z_ties_included(matrix):
    z = scores.inter_algorithm_scores(matrix)
    # a quotient in [0, 1] is off by at most 2^−54, twice; the subtraction by as much again
    np.testing.assert_allclose(scores.inter_algorithm_scores(-matrix), 1.0 - z, rtol=0, atol=2**-52)


def test_a_game_on_which_all_are_equal_gives_one_half():
    np.testing.assert_array_equal(scores.inter_algorithm_scores([[7, 7], [0, 1]]), [[0.5, 0.5], [0.0, 1.0]])


def test_subnormal_and_huge_scores_keep_their_place():
    np.testing.assert_array_equal(scores.inter_algorithm_scores([[0.0, 5e-324, 1e-323]]), [[0.0, 0.5, 1.0]])
    np.testing.assert_array_equal(scores.inter_algorithm_scores([[0.0, 8e307, 1.6e308]]), [[0.0, 0.5, 1.0]])


def test_the_argument_is_not_changed():
    matrix = np.array([[1.0, 2.0], [3.0, 3.0]])
    scores.inter_algorithm_scores(matrix)
    np.testing.assert_array_equal(matrix, [[1.0, 2.0], [3.0, 3.0]])


# --- f ------------------------------------------------------------------------------------------------------


@given(integer_scores())
def test_f_is_the_count_of_games_at_or_above_x(matrix):
    z = scores.inter_algorithm_scores(matrix)
    x = np.concatenate([np.linspace(-0.5, 1.5, 21), z.ravel(), np.nextafter(z.ravel(), 2.0)])
    f = scores.score_distribution(z, x)
    for i, threshold in enumerate(x):
        for a in range(z.shape[1]):
            assert f[i, a] == sum(score >= threshold for score in z[:, a]) / len(z)


@given(integer_scores())
def test_f_starts_at_one_never_increases_and_ends_at_zero(matrix):
    z = scores.inter_algorithm_scores(matrix)
    f = scores.score_distribution(z, np.linspace(0.0, 1.0, 101))
    assert (f[0] == 1.0).all()
    assert (np.diff(f, axis=0) <= 0.0).all()
    assert (scores.score_distribution(z, np.nextafter(1.0, 2.0)) == 0.0).all()


def test_f_keeps_the_shape_of_x():
    z = [[0.0, 1.0, 0.5]]
    assert scores.score_distribution(z, 0.5).tolist() == [0.0, 1.0, 1.0]
    assert scores.score_distribution(z, np.zeros((2, 4))).shape == (2, 4, 3)
    assert scores.score_distribution(z, []).shape == (0, 3)


@given(integer_scores())
def test_steps_are_the_whole_distribution(matrix):
    z = scores.inter_algorithm_scores(matrix)
    x = np.linspace(0.0, 1.0, 57)
    f = scores.score_distribution(z, x)
    for a, steps in enumerate(scores.distribution_steps(z)):
        assert steps.x[0] == 0.0
        assert steps.x[-1] == 1.0
        assert (np.diff(steps.x) > 0.0).all()
        # f is steps.f[k] on (x[k−1], x[k]]: the first step at or right of a threshold holds its value
        np.testing.assert_array_equal(steps.f[np.searchsorted(steps.x, x, side="left")], f[:, a])


@given(integer_scores())
def test_the_average_is_the_area_under_f(matrix):
    z = scores.inter_algorithm_scores(matrix)
    area = [float(np.sum(np.diff(steps.x) * steps.f[1:])) for steps in scores.distribution_steps(z)]
    # at most 10 additions of numbers under 1
    np.testing.assert_allclose(scores.average_scores(z), area, rtol=0, atol=1e-14)


# --- times best ---------------------------------------------------------------------------------------------


def test_a_tie_counts_for_the_highlighted_or_for_nobody():
    matrix = [[1.0, 2.0, 2.0], [3.0, 0.0, 0.0], [4.0, 4.0, 4.0]]
    assert scores.times_best(matrix).tolist() == [1, 0, 0]
    assert scores.times_best(matrix, highlighted=[2, 0, 1]).tolist() == [1, 1, 1]
    # unsigned columns are columns too, and who never wins still has its count
    assert scores.times_best(matrix, highlighted=np.array([1, 0, 0], dtype=np.uint64)).tolist() == [2, 1, 0]


@given(integer_scores())
def test_times_best_adds_up_to_the_games_without_a_tie(matrix):
    num_ties = sum(row.count(max(row)) > 1 for row in matrix.tolist())
    assert scores.times_best(matrix).sum() == len(matrix) - num_ties
    assert scores.times_best(matrix, highlighted=matrix.argmax(axis=1)).sum() == len(matrix)


# --- the paper ----------------------------------------------------------------------------------------------


def test_table_3_times_best():
    table = scores.published_table_3()
    assert table.algorithms == PAPER_ORDER
    assert table.scores.shape == (60, 4)
    assert len(set(table.games)) == 60
    # the table's last row
    assert scores.times_best(table.scores, highlighted=table.highlighted).tolist() == [16, 30, 12, 2]
    # Sec. 5 says 15 for TB(λ): Freeway, where it ties with Retrace(λ), counted for neither
    assert scores.times_best(table.scores).tolist() == [15, 30, 12, 2]
    freeway = table.games.index("Freeway")
    assert table.scores[freeway].tolist() == [32.13, 32.13, 31.07, 9.86]
    assert table.algorithms[table.highlighted[freeway]] == "tree_backup"


def test_table_3_averages_beside_the_printed_row_of_table_2():
    table_3, table_2 = scores.published_table_3(), scores.published_table_2()
    averages = scores.average_scores(scores.inter_algorithm_scores(table_3.scores))
    np.testing.assert_array_equal(averages.round(4), [0.8332, 0.8759, 0.6833, 0.0460])
    printed = dict(zip(table_2.algorithms, table_2.averages[table_2.lambdas == 1.0][0].tolist(), strict=True))
    assert [printed[name] for name in PAPER_ORDER] == [0.8158, 0.8698, 0.6839, 0.04317]
    # they disagree by more than rounding; the same order all the same
    differences = averages - [printed[name] for name in PAPER_ORDER]
    np.testing.assert_array_equal(differences.round(4), [0.0174, 0.0061, -0.0006, 0.0029])


def test_table_3_distribution_at_one_counts_the_tie_for_both():
    table = scores.published_table_3()
    f = scores.score_distribution(scores.inter_algorithm_scores(table.scores), 1.0)
    assert (60 * f).round().astype(int).tolist() == [16, 31, 12, 2]


def test_table_2_as_printed():
    table = scores.published_table_2()
    assert table.lambdas.tolist() == [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert table.averages.shape == (7, 4)
    assert table.averages[0].tolist() == [0.5071, 0.5512, 0.4288, 0.4487]


def test_published_tables_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        scores.published_table_3().scores[0, 0] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        scores.published_table_2().averages[0, 0] = 0.0


# --- what is refused ----------------------------------------------------------------------------------------

REFUSED_SCORES = {
    "vector": ([1.0, 2.0], r"`scores` must be a \(games, algorithms\) matrix; got shape \(2,\). One game"),
    "seeds": (np.zeros((2, 3, 4)), r"got shape \(2, 3, 4\). One game .* average several seeds first"),
    "no game": (np.zeros((0, 3)), r"`scores` must have at least 1 game \(row\); got shape \(0, 3\)"),
    "one algorithm": (np.zeros((60, 1)), r"at least 2 algorithms \(columns\) .* got shape \(60, 1\). Add a"),
    "nan": ([[1.0, 2.0], [0.0, np.nan]], r"`scores` must be finite; got nan at game 1, algorithm 1. Finish"),
    "inf": ([[-np.inf, 2.0]], r"`scores` must be finite; got -inf at game 0, algorithm 0"),
    "ragged": ([[1.0, 2.0], [3.0]], r"`scores` must be an array; got rows of different lengths. Give every"),
}


@pytest.mark.parametrize("function", [scores.inter_algorithm_scores, scores.times_best])
@pytest.mark.parametrize(("matrix", "text"), REFUSED_SCORES.values(), ids=REFUSED_SCORES)
def test_refused_scores(function, matrix, text):
    with pytest.raises(ValueError, match=text):
        function(matrix)


def test_refused_spread_that_overflows():
    with pytest.raises(ValueError, match=r"best minus worst that float64 can hold; got \[-1e\+308.* at game 1\."):
        scores.inter_algorithm_scores([[0.0, 1.0], [-1e308, 1e308]])


@pytest.mark.parametrize("matrix", [[["1", "2"]], [[1j, 2.0]], [[None, 1.0]]])
def test_refused_entries_that_are_not_real_numbers(matrix):
    with pytest.raises(TypeError, match=r"`scores` must hold real numbers; got dtype .*. Convert it to float"):
        scores.inter_algorithm_scores(matrix)


@pytest.mark.parametrize(
    "function",
    [scores.average_scores, scores.distribution_steps, lambda z: scores.score_distribution(z, 0.5)],
    ids=["average_scores", "distribution_steps", "score_distribution"],
)
def test_refused_raw_scores_where_z_is_wanted(function):
    with pytest.raises(
        ValueError,
        match=r"`z` must lie in \[0, 1\]; got 30.0 at game 0, algorithm 1. .*inter_algorithm_scores",
    ):
        function([[0.0, 30.0]])
    with pytest.raises(ValueError, match="`z` must be finite; got nan at game 0, algorithm 0"):
        function([[np.nan, 1.0]])


def test_refused_threshold():
    with pytest.raises(ValueError, match=r"`x` must be finite; got nan at index \[1\]"):
        scores.score_distribution([[0.0, 1.0]], [0.0, np.nan])


@pytest.mark.parametrize(
    ("highlighted", "text"),
    [
        ([0], r"one column number per game, shape \(2,\); got int64 of shape \(1,\). Leave it out"),
        ([0.0, 1.0], r"got float64 of shape \(2,\)"),
        (["retrace", "dqn"], r"got <U7 of shape \(2,\)"),
        ([0, 2], r"`highlighted` must lie in 0…1; got 2 at game 1"),
        ([-1, 1], r"`highlighted` must lie in 0…1; got -1 at game 0"),
        ([0, 0], r"must name a best score; got column 0 at game 1 with scores .*. Use column 1"),
    ],
)
def test_refused_highlights(highlighted, text):
    with pytest.raises(ValueError, match=text):
        scores.times_best([[2.0, 1.0], [1.0, 2.0]], highlighted=highlighted)


def test_dir_shows_the_public_names_only():
    assert dir(scores) == sorted(scores.__all__)


@pytest.mark.parametrize("module", [inter_algorithm, published])
def test_examples_in_the_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
