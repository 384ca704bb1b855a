"""Environments of several members: each member's are those of its own factory and seeds."""

from typing import Any

import numpy as np
import pytest

from offtrace.agent.memory import most_that_fit
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.environments import atari, make, program_shape
from offtrace.environments.fleet import Fleet
from offtrace.experiments.populations import populations


def played(rows: Any, actions: np.ndarray) -> list[Any]:
    """Return the actors and rows of all steps."""
    found = [rows.begin()]
    for a in actions:
        rows.send(a)
        found += rows.receive()[:2]
    return found


def check_members(makers: list[Any], seeds: list[int], num_actors: int, options: dict[str, Any]) -> None:
    """Check that every member of a fleet has the rows that its factory gives alone."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (30, len(makers), num_actors))
    fleet = Fleet(makers, num_actors, seeds)
    together = played(fleet, actions)
    fleet.close()
    for member, (maker, seed) in enumerate(zip(makers, seeds, strict=True)):
        with maker(num_actors=num_actors, seed=seed, **options) as rows:
            alone = played(rows, actions[:, member])
        for one, other in zip(alone, together, strict=True):
            for name, value in one._asdict().items():
                if value is not None:
                    assert np.array_equal(value, getattr(other, name)[member]), name


def test_members_of_gymnasium() -> None:
    """Two environments in turn; the first and the third share a vector."""
    one = make("gymnasium/CartPole-v1")
    other = make("gymnasium/CartPole-v1", sutton_barto_reward=True)
    check_members([one, other, make("gymnasium/CartPole-v1")], [3, 3, 70], 2, {})


def test_members_of_two_games() -> None:
    pytest.importorskip("ale_py")
    makers = [make("atari/pong"), make("atari/qbert"), make("atari/pong")]
    check_members(makers, [0, 5, 9], 2, {"single_frames": True})


def test_games_that_step_together_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread per core for each game would leave the learner a fraction of a core."""
    pytest.importorskip("ale_py")
    started: list[tuple[str, int]] = []
    real = atari.started

    def watched(game: Any, *args: Any, **options: Any) -> Any:
        started.append((game.game, game.all_threads))
        return real(game, *args, **options)

    monkeypatch.setattr(atari, "started", watched)
    monkeypatch.setattr(atari, "num_cores", lambda: 16)
    names = ("pong", "qbert", "space_invaders", "demon_attack")
    Fleet([make(f"atari/{name}") for name in names], 1, range(4)).close()
    assert started == list(zip(names, (3, 3, 4, 4), strict=True))  # 14 in all: two cores are left to the learner
    started.clear()
    Fleet([make("atari/pong", num_threads=1), make("atari/qbert", num_threads=1)], 1, [0, 1]).close()
    assert [num_threads for _, num_threads in started] == [1, 1]


def test_members_of_one_environment_share_a_vector() -> None:
    made: list[tuple[int, Any]] = []

    def maker(num_actors: int, seed: Any) -> Any:
        made.append((num_actors, seed))

    Fleet([maker, maker], 3, [10, 20])
    ((num_actors, seeds),) = made
    assert num_actors == 6
    assert seeds.tolist() == [10, 11, 12, 20, 21, 22]


# -- which runs are one population ---------------------------------------------------------------------------


def plans(env: str, **changes: Any) -> list[Plan]:
    traces = ("retrace", "tree_backup", "q_lambda", "dqn")
    return [resolved(TrainSpec(env=env, trace=trace, **changes)) for trace in traces]


def test_games_with_as_many_actions_have_one_shape() -> None:
    pytest.importorskip("ale_py")
    assert program_shape("atari/pong", {}) == program_shape("atari/qbert", {}) == ("atari", 6)
    assert program_shape("atari/breakout", {}) == ("atari", 4)
    assert program_shape("atari/breakout", {"full_action_space": True}) == ("atari", 18)


def test_on_an_accelerator_a_game_is_two_populations() -> None:
    """Three traces with windows of 16 steps, and DQN; Pong and Q*Bert share both programs."""
    pytest.importorskip("ale_py")
    specs = [*plans("atari/pong", replay_size=1_000, fill=100), *plans("atari/qbert", replay_size=1_000, fill=100)]
    found = populations(specs, 100, on_accelerator=True)
    assert [[(spec.env, spec.trace) for spec in members] for members in found] == [
        [(env, trace) for env in ("atari/pong", "atari/qbert") for trace in ("retrace", "tree_backup", "q_lambda")],
        [("atari/pong", "dqn"), ("atari/qbert", "dqn")],
    ]
    assert [len(members) for members in populations(specs, 100)] == [1] * 8, "on a CPU each has its process"


def test_a_population_fits_into_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member with 1,000,000 transitions has 7 GB; four fifths of 40 GB hold four of them."""
    pytest.importorskip("ale_py")
    monkeypatch.setattr("offtrace.agent.memory.available", lambda: 40e9)
    spec = plans("atari/pong")[0]
    assert most_that_fit(spec) == 4
    assert most_that_fit(plans("CartPole-v1")[0]) > 1_000
    specs = [resolved(TrainSpec(env="atari/pong", seed=seed)) for seed in range(6)]
    assert [len(members) for members in populations(specs, 100, on_accelerator=True)] == [3, 3]
