"""The tabular comparison: its scores, its choice of step sizes, and what it may say of a claim."""

import numpy as np
import pytest

from offtrace import mdp as mdps
from offtrace import online
from offtrace.experiments import tabular
from offtrace.experiments.tabular import GAMES, TWENTY, TabularResults, TabularStudy
from offtrace.mdp import SMALL_WORLD
from offtrace.scores import claims

SMALL = TabularStudy(
    games=("chain 8", "random 1"),
    lambdas=(0.0, 0.5, 1.0),
    num_tuning_seeds=2,
    num_seeds=3,
    num_episodes=20,
    max_steps=30,
)


@pytest.fixture(scope="module")
def small() -> TabularResults:
    return tabular.run(SMALL)


def test_games_are_twenty_and_each_can_be_made() -> None:
    assert len(TWENTY) == 20
    assert set(GAMES) == {*TWENTY, *SMALL_WORLD}
    for name, make in GAMES.items():
        mdp = make()
        assert mdp.num_states > 1, name
        assert mdp.gamma < 1, name


def test_a_run_is_that_of_the_learner(small: TabularResults) -> None:
    """The stored score is the mean return of one run with the chosen step size and the first seed after tuning."""
    learned = online.control(
        mdps.chain(8, slip=0.1, gamma=0.95),
        trace=online_trace("tree_backup", 0.5),
        behaviour=online.EpsilonGreedy(0.5, ties="first"),
        target=online.EpsilonGreedy(0.1, ties="first"),
        step_size=small.chosen["tree_backup"],
        seed=2,
        num_episodes=20,
        max_steps=30,
        record_every=20,
    )
    assert small.runs[0, 1, 1, 0] == learned.returns[-1]


def online_trace(name: str, lambda_: float):
    import offtrace as ot

    return ot.as_trace(name, lambda_=lambda_)


def test_lambda_zero_is_one_algorithm_with_one_step_size(small: TabularResults) -> None:
    for i in range(len(tabular.TRACES)):
        assert (small.runs[:, i, 0] == small.runs[:, 0, 0]).all()
        assert (small.evaluations[:, i, 0] == small.evaluations[:, 0, 0]).all()


def test_an_evaluation_is_the_return_of_the_greedy_policy(small: TabularResults) -> None:
    """By hand: on the chain a greedy policy goes one way from the middle, or to and fro until the limit."""
    mdp = mdps.chain(8, slip=0.1, gamma=0.95)
    learned = online.control(
        mdp,
        trace=online_trace("retrace", 1.0),
        behaviour=online.EpsilonGreedy(0.5, ties="first"),
        target=online.EpsilonGreedy(0.1, ties="first"),
        step_size=small.chosen["retrace"],
        seed=2,
        num_episodes=20,
        max_steps=30,
        record_every=20,
    )
    greedy, total, at = learned.q.argmax(1), 0.0, mdp.start.copy()
    for _ in range(30):
        later = np.zeros(8)
        for x in range(8):
            for way, chance in ((greedy[x], 0.9), (1 - greedy[x], 0.1)):
                y = x + (1 if way else -1)
                if 0 <= y < 8:
                    later[y] += at[x] * chance
                elif y == 8:
                    total += at[x] * chance
        at = later
    assert small.evaluations[0, 0, 2, 0] == pytest.approx(total, abs=1e-12)


def test_the_exact_scale() -> None:
    """0 is random play and 1 the optimal policy: a table that learned the small world is near 1, and never above."""
    study = TabularStudy(games=("fork",), lambdas=(0.0, 1.0), num_tuning_seeds=1, num_seeds=2, exact=True)
    found = tabular.run(study)
    comparison = found.comparison()
    assert comparison.name == "The small world, tabular"
    assert comparison.anchors == {"fork": (0.0, 1.0)}
    assert found.evaluations.max() <= 1 + 1e-9
    assert comparison.averages("level", "evaluation").value[1, 0] > 0.9
    assert 0 < found.runs[0, 0].min() < found.runs[0, 0].max() < 1


def test_it_is_the_same_again(small: TabularResults) -> None:
    again = tabular.run(SMALL)
    assert (again.runs == small.runs).all()


def test_the_step_size_is_chosen_on_the_tuning_seeds_only() -> None:
    """Size 1 is best for tuning seeds, size 0 for the others: 1 is taken all the same."""
    study = TabularStudy(
        games=("chain 8",), lambdas=(0.0, 1.0), step_sizes=(0.1, 0.2), num_tuning_seeds=1, num_seeds=2
    )
    earned = np.zeros((1, 3, 2, 2, 3))
    earned[..., 1, 0] = 1.0
    earned[..., 0, 1:] = 5.0
    earned[0, 0, 0, 0, 0] = -1.0  # so that levels have a scale
    found = tabular._at_best_step_sizes(study, earned, 10 * earned, np.zeros(earned.shape, bool))
    assert set(found.chosen.values()) == {0.2}
    assert (found.runs == 0).all()
    assert (found.evaluations == 0).all()


def test_comparison_by_hand() -> None:
    """Two games: worst 0, best 1 among the four, averaged; one-step is what all are at λ = 0."""
    study = TabularStudy(games=("chain 8", "chain 12"), lambdas=(0.0, 1.0), num_seeds=2)
    runs = np.zeros((2, 3, 2, 2))
    runs[0, :, 1] = np.array([4.0, 2.0, 1.0])[:, None]
    runs[1, :, 1] = np.array([2.0, 4.0, -4.0])[:, None]
    comparison = TabularResults(study, runs, {"retrace": 0.1}, {"q_lambda": 3}, runs).comparison()
    found = comparison.averages("score")
    assert found.algorithms == ("retrace", "tree_backup", "q_lambda", "one_step")
    assert found.value[0].tolist() == [0.5] * 4
    assert found.value[1] == pytest.approx([(1 + 0.75) / 2, (0.5 + 1) / 2, (0.25 + 0) / 2, (0 + 0.5) / 2])
    assert comparison.paired
    assert comparison.notes[-1] == "3 runs diverged; they count as the worst of their game."


def test_seeds_pair_what_they_were_used_for() -> None:
    """A seed that shifts every algorithm of a game alike does not widen the interval of a difference."""
    study = TabularStudy(games=tuple(GAMES)[:3], num_seeds=4)
    level = np.array([0.9, 0.8, 0.1])[None, :, None, None] * np.array([0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0])[:, None]
    noise = 1e-3 * np.random.default_rng(0).normal(size=(3, 3, 7, 4))
    runs = level + 10.0 * np.arange(4) + noise
    comparison = TabularResults(study, runs, {}, {}, runs).comparison()
    found = {claim.text: claim for claim in claims(comparison)}
    difference = found["Retrace(λ) is above TB(λ) for λ > 0"].difference
    assert difference.high - difference.low < 0.05  # where the seeds are 10 apart
    assert found["TB(λ) is above one-step learning at the end"].verdict == "holds"


def test_diverged_runs_score_as_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(mdp, *, seeds, lambdas, step_sizes, traces, **_):
        shape = (len(list(traces)), len(lambdas), len(step_sizes), len(list(seeds)))
        returns = np.stack([np.full(shape, np.nan), np.arange(np.prod(shape), dtype=float).reshape(shape) - 7], -1)
        diverged = np.full(shape, -1)
        diverged[2, -1] = 3
        returns[2, -1, ..., -1] = np.nan
        nothing = np.zeros(1)
        q = np.zeros((*shape, *mdp.shape))
        return online.SweepResult({}, nothing, nothing, returns, None, None, diverged, q)

    monkeypatch.setattr(tabular.online, "sweep", sweep)
    found = tabular.run(SMALL)
    assert found.num_diverged["q_lambda"] == 2 * 3  # two games, three seeds, at λ = 1
    assert (found.runs[:, 2, -1] == -7).all()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"games": ("pong",)}, "`games` must be among .*; got 'pong'"),
        ({"lambdas": (0.5, 1.0)}, "`lambdas` must increase and start with 0"),
        ({"lambdas": (0.0, 1.0, 0.5)}, "`lambdas` must increase"),
        ({"num_seeds": 1}, "`num_seeds` at least 2"),
    ],
)
def test_wrong_studies_are_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TabularStudy(**change)
