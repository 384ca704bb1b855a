"""The tabular comparison: its scores, its choice of step sizes, and what it may say of a claim."""

import json

import numpy as np
import pytest

from offtrace import mdp as mdps
from offtrace import online
from offtrace.experiments import tabular
from offtrace.experiments.tabular import GAMES, TabularResults, TabularStudy

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


def made_up(levels: np.ndarray, *, noise: float = 0.01) -> TabularResults:
    """Twelve games on which every algorithm has the given level (algorithms, λ), with noise over eight seeds."""
    study = TabularStudy(games=tuple(GAMES)[:12], num_seeds=8)
    rng = np.random.default_rng(0)
    runs = levels[None, :, :, None] + noise * rng.normal(size=(12, *levels.shape, 8))
    return TabularResults(study, runs, dict.fromkeys(tabular.ALGORITHMS, 0.1), dict.fromkeys(tabular.ALGORITHMS, 0))


def test_games_are_twenty_and_each_can_be_made() -> None:
    assert len(GAMES) == 20
    for name, make in GAMES.items():
        mdp = make()
        assert mdp.num_states > 1, name
        assert mdp.gamma < 1, name


def test_a_run_is_that_of_the_learner(small: TabularResults) -> None:
    """The stored score is the mean return of one run with the chosen step size and the first seed after tuning."""
    learned = online.control(
        mdps.chain(8, slip=0.1, gamma=0.95),
        trace=online_trace("tree_backup", 0.5),
        behaviour=online.EpsilonGreedy(0.5),
        target=online.EpsilonGreedy(0.1),
        step_size=small.chosen["tree_backup"],
        seed=2,
        num_episodes=20,
        max_steps=30,
        record_every=20,
    )
    assert small.runs[0, 1, 1, 0] == learned.returns[-1]


def online_trace(name: str, lambda_: float):
    import offtrace as ot

    return ot.trace(name, lambda_=lambda_)


def test_lambda_zero_is_one_algorithm_with_one_step_size(small: TabularResults) -> None:
    same = [i for i, name in enumerate(tabular.ALGORITHMS) if small.chosen[name] == small.chosen["retrace"]]
    assert len(same) >= 1
    for i in same:
        assert (small.runs[:, i, 0] == small.runs[:, 0, 0]).all()


def test_it_is_the_same_again(small: TabularResults) -> None:
    again = tabular.run(SMALL)
    assert (again.runs == small.runs).all()
    assert again.claims() == small.claims()


def test_the_step_size_is_chosen_on_the_tuning_seeds_only() -> None:
    """Size 1 is best for tuning seeds, size 0 for the others: 1 is taken all the same."""
    study = TabularStudy(
        games=("chain 8",), lambdas=(0.0, 1.0), step_sizes=(0.1, 0.2), num_tuning_seeds=1, num_seeds=2
    )
    earned = np.zeros((1, 3, 2, 2, 3))
    earned[..., 1, 0] = 1.0
    earned[..., 0, 1:] = 5.0
    earned[0, 0, 0, 0, 0] = -1.0  # so that levels have a scale
    found = tabular._chosen(study, earned, np.zeros(earned.shape, bool))
    assert set(found.chosen.values()) == {0.2}
    assert (found.runs == 0).all()


def test_table_2_by_hand() -> None:
    """One λ, two games: worst 0, best 1 among the four, averaged."""
    study = TabularStudy(games=("chain 8", "chain 12"), lambdas=(0.0, 1.0), num_seeds=2)
    runs = np.zeros((2, 3, 2, 2))
    runs[0, :, 1] = np.array([4.0, 2.0, 1.0])[:, None]  # one-step, at λ = 0, has 0
    runs[1, :, 1] = np.array([2.0, 4.0, -4.0])[:, None]
    table = TabularResults(study, runs, {}, {}).table_2()
    assert table[0].tolist() == [0.5] * 4
    assert table[1] == pytest.approx([(1 + 0.75) / 2, (0.5 + 1) / 2, (0.25 + 0) / 2, (0 + 0.5) / 2])


def test_claims_follow_the_levels() -> None:
    good, collapsed = [0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], [0.5, 0.9, 0.9, 0.9, 0.6, 0.1, 0.0]
    found = made_up(np.array([good, good, collapsed])).claims()
    assert [claim.verdict for claim in found] == ["holds", "holds", "holds", "holds", "cannot tell"]
    assert found[0].difference.value == pytest.approx(0.85 / 0.9, abs=0.03)
    reverse = made_up(np.array([collapsed, good, good])).claims()
    assert [claim.verdict for claim in reverse][1:] == ["does not", "does not", "holds", "does not"]
    assert reverse[0].verdict == "cannot tell"


def test_intervals_cover_what_they_are_about() -> None:
    """The true level of each cell, in 40 repetitions: 95 % intervals from eight seeds a game cover it mostly."""
    truth = np.array([[0.0, 0.5, 1.0]] * 3)
    inside = total = 0
    for seed in range(40):
        study = TabularStudy(games=tuple(GAMES)[:4], lambdas=(0.0, 0.5, 1.0), num_seeds=8)
        rng = np.random.default_rng(seed)
        runs = truth[None, :, :, None] + 0.05 * rng.normal(size=(4, 3, 3, 8))
        results = TabularResults(study, runs, {}, {})
        cell = results.level_intervals()[0][1]
        inside += cell.low <= 0.5 <= cell.high
        total += 1
    assert inside / total > 0.85


def test_diverged_runs_score_as_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(*_, seeds, lambdas, step_sizes, traces, **__):
        shape = (len(list(traces)), len(lambdas), len(step_sizes), len(list(seeds)))
        returns = np.stack([np.full(shape, np.nan), np.arange(np.prod(shape), dtype=float).reshape(shape) - 7], -1)
        diverged = np.full(shape, -1)
        diverged[2, -1] = 3
        returns[2, -1, ..., -1] = np.nan
        nothing = np.zeros(1)
        return online.Sweep({}, nothing, nothing, returns, None, None, diverged)

    monkeypatch.setattr(tabular.online, "sweep", sweep)
    found = tabular.run(SMALL)
    assert found.num_diverged["q_star"] == 2 * 3  # two games, three seeds, at λ = 1
    assert (found.runs[:, 2, -1] == -7).all()


def test_as_dict_is_json(small: TabularResults) -> None:
    plain = json.loads(json.dumps(small.as_dict(), allow_nan=False))
    assert plain["lambdas"] == [0.0, 0.5, 1.0]
    assert len(plain["levels"]["retrace"]) == 3
    assert plain["claims"][0]["verdict"] in ("holds", "does not", "cannot tell")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"games": ("pong",)}, "`games` must be among .*; got 'pong'"),
        ({"lambdas": (0.5, 1.0)}, "`lambdas` must increase and begin with 0"),
        ({"lambdas": (0.0, 1.0, 0.5)}, "`lambdas` must increase"),
        ({"num_seeds": 1}, "`num_seeds` at least 2"),
    ],
)
def test_wrong_studies_are_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TabularStudy(**change)
