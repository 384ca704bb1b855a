"""Atari rows against the emulator stepped by hand; then in replay memory and in training."""

import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest

from offtrace import cli
from offtrace.agent import replay
from offtrace.agent.groups import HostState
from offtrace.agent.host import Host
from offtrace.agent.network import make_network
from offtrace.agent.settings import program_spec
from offtrace.agent.spec import PAPER, Plan, TrainSpec, full_name, resolved
from offtrace.agent.training import train
from offtrace.environments import ATARI, TITLES, make
from offtrace.environments.protocols import ATARI_RULES
from offtrace.scores.published import published_table_3

needs_ale = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed: offtrace[atari]")

GAME = "atari/space_invaders"
"""Three lives, rewards from 5 to 200, and random games of some 500 steps."""


# -- names ---------------------------------------------------------------------------------------------------


def test_the_games_are_those_of_table_3() -> None:
    assert tuple(TITLES.values()) == tuple(published_table_3().games)
    assert len(ATARI) == 60


@needs_ale
def test_every_game_has_its_rom() -> None:
    """The ROM is found and has the right checksum."""
    from ale_py import roms

    for name in ATARI:
        path = roms.get_rom_path(make(name).game)
        assert path is not None
        assert path.exists()


@needs_ale
def test_by_name() -> None:
    assert make("atari/pong").name == "atari/pong"
    with make("atari/pong", full_action_space=True)(num_actors=1, seed=0) as rows:
        assert (rows.name, rows.num_actors, rows.num_actions) == ("atari/pong", 1, 18)
    assert full_name("atari/pong") == "atari/pong"
    assert resolved(TrainSpec(env="atari/pong")).name == "atari-pong-retrace-0"
    assert resolved(TrainSpec(env="atari/pong")).title == "atari/pong  Retrace(λ = 1)  seed 0"


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("atari/pongg", "Did you mean atari/pong?"),
        ("atari/breakot", "Did you mean atari/breakout?"),
        ("breakot", "Did you mean minatar/breakout?"),
        ("atari/james_bond", "Did you mean atari/jamesbond?"),
        ("atari/river_raid", "Did you mean atari/riverraid?"),
        ("ms_pac_man", "Did you mean atari/ms_pacman?"),
        ("atari/cartpole", "Did you mean pocket/cartpole?"),
        ("atari/zzz", "Valid games: alien, amidar, "),
        ("zzz", "atari/<game>"),
    ],
)
def test_unknown_games_get_close_ones(wrong: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"`name` must be an environment; got ") as refused:
        make(wrong)
    assert hint in str(refused.value)


@needs_ale
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sticky": 1.0}, "`sticky` must be a probability below 1; got 1.0"),
        ({"life_loss": "false"}, "`life_loss` must be True or False; got 'false'"),
        ({"full_action_space": 1}, "`full_action_space` must be True or False; got 1"),
        ({"noop_max": -1}, "`noop_max` must be a whole number of at least 0; got -1"),
        ({"max_frames": 0}, "`max_frames` must be a whole number of at least 1; got 0"),
        ({"num_threads": 1.5}, "`num_threads` must be a whole number of at least 0; got 1.5"),
        ({"num_actors": 0}, "`num_actors` must be a whole number of at least 1; got 0"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0"),
        ({"seed": 2**31 - 1}, "under 2³¹; got 2147483647"),
    ],
)
def test_refused_arguments(options: dict, text: str) -> None:
    call = {"num_actors": 2, "seed": 0} | {k: v for k, v in options.items() if k in ("num_actors", "seed")}
    with pytest.raises(ValueError, match=text):
        make("atari/pong", **{k: v for k, v in options.items() if k not in call})(**call)


@needs_ale
def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        make("atari/pong", colour="red")


def test_without_ale_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(sys.modules, "ale_py.vector_env", raising=False)
    monkeypatch.delitem(sys.modules, "offtrace.environments.atari", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'offtrace\[atari\]'"):
        make("atari/pong")
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "atari/pong", "--output", str(tmp_path / "run")])
    assert left.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "'atari/pong' cannot be made here: this needs `ale-py`: pip install 'offtrace[atari]'" in stderr


# -- defaults ------------------------------------------------------------------------------------------------


def test_defaults_are_of_the_papers_scale() -> None:
    plan = resolved(TrainSpec(env="atari/pong"))
    assert (plan.num_steps, plan.replay_size, plan.num_actors, plan.reward_clamp) == (50_000_000, 1_000_000, 16, 1.0)
    assert (plan.window, plan.num_windows, plan.target_period, plan.epsilon_steps) == (16, 4, 2_500, 1_000_000)
    for trace, row in (("retrace", "multi-step"), ("dqn", "dqn")):
        paper = resolved(TrainSpec(env="atari/pong", trace=trace, optimiser="rmsprop"))
        assert (paper.step_size, paper.regularisation) == tuple(PAPER[row].values())
    paper = program_spec(resolved(TrainSpec(env="atari/pong", exploration="switching"))).switching
    assert paper is not None
    assert (4 * paper.duration, 4 * paper.period) == (250_000, 50_000), "frames of an actor, of which a step has four"
    assert resolved(plan) == plan
    assert resolved(TrainSpec(env="minatar/breakout")).reward_clamp is None


# -- rows against the emulator -------------------------------------------------------------------------------


class Moment(NamedTuple):
    """The expected row of one actor."""

    real: bool
    reward: int
    lives: int
    life_lost: bool
    over: bool
    score: int
    """Of the game so far."""
    length: int


def by_hand(game: str, seed: int, actions: np.ndarray) -> list[Moment]:
    """Steps ALE four frames per action until the game is over; then a dummy row, and a new game."""
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(roms.get_rom_path(game))
    known = ale.getMinimalActionSet()
    ale.reset_game()
    found, score, length, over = [], 0, 0, False
    for action in actions:
        if over:
            ale.reset_game()
            found.append(Moment(False, 0, ale.lives(), False, False, 0, 0))
            score, length, over = 0, 0, False
            continue
        before, reward = ale.lives(), 0
        for _ in range(4):
            reward += ale.act(known[action])
            if ale.game_over():
                break
        score, length, over = score + reward, length + 1, ale.game_over()
        found.append(Moment(True, reward, ale.lives(), ale.lives() < before and not over, over, score, length))
    return found


def random_actions(rows: Any, num_rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, rows.num_actions, (num_rows, rows.num_actors))


@needs_ale
def test_rows_are_the_emulators() -> None:
    """Rewards as they are, a lost life ends the task and not the game, a game ends with its whole score."""
    with make(GAME, noop_max=0)(num_actors=2, seed=7) as rows:
        actions = random_actions(rows, 700)
        actor, seen = rows.begin(), []
        assert actor.observation.shape == (2, 4, 84, 84)
        for a in actions:
            frame, first = actor.observation[:, -1], actor.first
            actor, row, ended = rows.advance(a)
            assert np.array_equal(row.observation, frame)
            assert np.array_equal(row.reset, first)
            seen.append((row, ended))
        assert [leaf.dtype.name for leaf in row] == ["uint8", "bool", "bool", "float32", "bool"]
        assert [leaf.dtype.name for leaf in ended] == ["bool", "float32", "int32"]
    for i in range(2):
        expected = by_hand("space_invaders", 7 + i, actions[:, i])
        assert sum(moment.life_lost for moment in expected) >= 2
        assert sum(moment.over for moment in expected) >= 1
        assert max(moment.reward for moment in expected) > 1
        for (row, ended), moment in zip(seen, expected, strict=True):
            assert row.mask[i] == moment.real
            assert row.reward[i] == moment.reward
            assert row.continues[i] == (not moment.life_lost and not moment.over)
            assert ended.ended[i] == moment.over
            assert ended.episode_return[i] == (moment.score if moment.over else 0)
            assert ended.episode_length[i] == (moment.length if moment.over else 0)


@needs_ale
def test_pixels_and_lives_are_those_of_ale_py() -> None:
    """Compared with ale-py's own signal of a lost life, and with random starts."""
    from ale_py.vector_env import AtariVectorEnv

    theirs = AtariVectorEnv(
        "space_invaders", 3, life_loss_info=True, reward_clipping=False, use_fire_reset=False, num_threads=1
    )
    x, _ = theirs.reset(seed=3)
    with make(GAME)(num_actors=3, seed=3) as rows:
        actor, num_lost, num_ended = rows.begin(), 0, 0
        for a in random_actions(rows, 700):
            assert np.array_equal(actor.observation, x)
            actor, row, ended = rows.advance(a)
            x, reward, terminated, _, _ = theirs.step(a)
            assert np.array_equal(row.reward, reward)
            assert np.array_equal(row.continues, ~terminated)
            num_lost += int((terminated & ~ended.ended).sum())
            num_ended += int(ended.ended.sum())
    assert num_lost >= 4
    assert num_ended >= 1


@needs_ale
def test_a_game_may_be_one_task() -> None:
    with make(GAME, life_loss=False)(num_actors=2, seed=0) as rows:
        rows.begin()
        lost = 0
        for a in random_actions(rows, 500):
            before = rows._lives
            _, row, ended = rows.advance(a)
            assert np.array_equal(row.continues, ~ended.ended)
            lost += int((row.mask & (rows._lives < before)).sum())
    assert lost >= 2


@needs_ale
def test_truncation_keeps_its_bootstrap() -> None:
    """After 40 frames: not terminated, its true last frame in the dummy row, then another start."""
    with make("atari/pong", max_frames=40)(num_actors=2, seed=0) as rows:
        actor = rows.begin()
        for turn in range(3):
            for step in range(10):
                assert actor.first.all() == (step == 0)
                actor, row, ended = rows.advance(np.array([2, 3]))
                assert row.mask.all()
                assert row.continues.all()
                assert (ended.ended == (step == 9)).all()
            assert ended.episode_length.tolist() == [10, 10]
            assert actor.over.all()
            last = actor.observation
            actor, row, ended = rows.advance(np.array([5, 5]))
            assert np.array_equal(row.observation, last[:, -1])
            assert not (row.mask | row.reset | row.reward.astype(bool) | ended.ended).any()
            assert row.continues.all()
            assert not actor.observation[:, :-1].any(), f"frames of game {turn} are left in the stack"


@needs_ale
def test_the_frame_limit_of_a_long_game() -> None:
    """Breakout waits for ever for the ball to be served. The default limit would take too long here."""
    assert make("atari/breakout").max_frames == 108_000
    with make("atari/breakout", max_frames=8_000)(num_actors=1, seed=0) as rows:
        actor = rows.begin()
        for step in range(1, 2_001):
            assert not actor.over[0]
            actor, row, ended = rows.advance(np.array([0]))
            assert row.continues[0]
            assert ended.ended[0] == (step == 2_000)
        assert ended.episode_length[0] == 2_000
        actor, row, _ = rows.advance(np.array([0]))
        assert not row.mask[0]
        assert actor.first[0]


@needs_ale
def test_lives_won_and_gone_with_the_game_are_not_lost() -> None:
    """A truncated game may have more lives left than a new game starts with."""
    with make(GAME, max_frames=40)(num_actors=2, seed=0) as rows:
        actor = rows.begin()
        while not actor.over.all():
            actor, *_ = rows.advance(np.array([0, 0]))
        rows._lives = rows._lives + 2
        _, row, _ = rows.advance(np.array([0, 0]))
        assert not row.mask.any()
        assert row.continues.all()


@needs_ale
def test_a_life_lost_in_the_last_frame_of_the_limit() -> None:
    """Both: the step terminates, and the game is over, which ale-py's `life_loss_info` alone would not say."""

    def played(max_frames: int, num_rows: int) -> list:
        with make(GAME, noop_max=0, max_frames=max_frames)(num_actors=1, seed=0) as rows:
            rows.begin()
            return [rows.advance(np.array([0]))[1:] for _ in range(num_rows)]

    free = played(108_000, 400)
    step = next(t for t, (row, _) in enumerate(free) if not row.continues[0])
    assert not free[step][1].ended[0]
    cut = played(4 * (step + 1), step + 3)
    assert [bool(row.continues[0]) for row, _ in cut[step:]] == [False, True, True]
    assert [bool(row.mask[0]) for row, _ in cut[step:]] == [True, False, True]
    assert [bool(ended.ended[0]) for _, ended in cut[step:]] == [True, False, False]
    assert cut[step + 2][0].reset[0]


@needs_ale
def test_the_same_seed_gives_the_same_rows() -> None:
    def played(seed: int, num_rows: int = 45, **options: Any) -> Any:
        with make(GAME, max_frames=80, sticky=0.25, **options)(num_actors=3, seed=seed) as rows:
            found = []
            for _ in range(2):
                rows.begin()
                found.append([rows.advance(a)[1] for a in random_actions(rows, num_rows)[:, [0, 0, 0]]])
            return [jax.tree.map(lambda *leaves: np.stack(leaves), *part) for part in found]

    one, again = played(5)
    other, _ = played(5, num_threads=1)
    shifted, _ = played(6)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True)), "begun again"
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)), "with another number of threads"
    assert not np.array_equal(one.observation, shifted.observation)
    assert np.array_equal(one.observation[:, 1], shifted.observation[:, 0]), "actor i has seed + i"


@needs_ale
def test_other_environments_do_not_inherit_the_autoreset_mode() -> None:
    before = dict(gymnasium.vector.VectorEnv.metadata)
    with make("atari/pong")(num_actors=1, seed=0) as rows:
        assert rows._is_next_step
    assert dict(gymnasium.vector.VectorEnv.metadata) == before


# -- through the host ----------------------------------------------------------------------------------------


def plan(**changes: Any) -> Plan:
    small: dict[str, Any] = {
        "env": GAME,
        "seed": 7,
        "network": "mlp",
        "hidden_sizes": (8,),
        "num_actors": 2,
        "steps_per_update": 2,
        "window": 5,
        "num_windows": 4,
        "fill": 100,
        "replay_size": 1_000,
        "num_steps": 4_000,
        "options": {"noop_max": 0},
    }
    return resolved(TrainSpec(**{**small, **changes}))


def actions_of(state: HostState) -> np.ndarray:
    """Return the actions of the first member's actors, from all groups: (time, actors)."""
    return np.concatenate([np.stack(group.actions)[:, 0] for group in state.groups], axis=1)


@pytest.fixture(scope="module")
def driven() -> Any:
    """A host runtime that has played some games, and its ticks."""
    host = Host([make(GAME, noop_max=0)], [plan()])
    state = host.start()
    state, tick = host.advance(state, 700, learns=False)
    yield host, state, tick
    host.close()


@needs_ale
def test_what_is_reported_is_the_raw_score_of_whole_games(driven: Any) -> None:
    """The memory holds clamped rewards."""
    _, state, tick = driven
    taken = actions_of(state)
    games = [m for i in range(2) for m in by_hand("space_invaders", 7 + i, taken[:, i]) if m.over]
    assert games
    assert tick.num_episodes.tolist() == [len(games)]
    assert tick.total_return.tolist() == [sum(moment.score for moment in games)]
    assert tick.total_length.tolist() == [sum(moment.length for moment in games)]
    kept = np.asarray(state.memory.records)[..., 1].view(np.float32)
    assert set(np.unique(kept)) == {0, 1}


@needs_ale
def test_the_memory_gives_back_what_the_actor_saw(driven: Any) -> None:
    """Frames are stored once and stacked when drawn, also across the ends of games."""
    _, state, _ = driven
    memory = state.memory
    assert memory.frames.shape == (501, 2, 84 * 84)
    with make(GAME, noop_max=0)(num_actors=2, seed=7) as rows:
        seen = [rows.begin().observation]
        seen += [rows.advance(a.astype(np.int64))[0].observation for a in actions_of(state)]
    batch = replay.sample(memory, jax.random.key(0), 100, 5)
    time = int(memory.num_steps) - 1 - np.asarray(batch.age)
    assert batch.obs.shape == (6, 100, 4, 84, 84)
    for t in range(5):
        expected = np.stack([seen[when][who] for when, who in zip(time[t], np.asarray(batch.actor), strict=True)])
        assert np.array_equal(batch.obs[t], expected)
    assert batch.reset.any(), "no game began: nothing was tested"


@needs_ale
def test_restored_is_the_same(driven: Any) -> None:
    """In new emulators, which repeat the recorded actions."""
    host, state, _ = driven
    arrays = host.arrays(state)
    other = Host([make(GAME, noop_max=0)], [plan()])
    try:
        again: HostState = other.restore(arrays)
        assert {n: a.tobytes() for n, a in other.arrays(again).items()} == {n: a.tobytes() for n, a in arrays.items()}
        assert np.array_equal(again.memory.frames, state.memory.frames), "frames are not saved: they come back"
        for group, before in zip(again.groups, state.groups, strict=True):
            assert np.array_equal(group.actor.episode_return, before.actor.episode_return)
            assert np.array_equal(group.fleet.rows._lives, before.fleet.rows._lives)
            assert np.array_equal(group.stacks, before.stacks)
    finally:
        other.close()


@needs_ale
def test_bytes_of_a_transition() -> None:
    """At the paper's size: a frame of 84×84 bytes, and twelve for the rest."""
    host = Host([make(GAME)], [resolved(TrainSpec(env=GAME, network="mlp", hidden_sizes=(8,)))])
    host.close()
    spec = host.template.replay.spec
    assert (spec.capacity, spec.num_actors, spec.stack) == (62_500, 16, 4)
    assert replay.bytes_per_transition(spec) == pytest.approx(84 * 84 + 12, rel=1e-4)


@needs_ale
def test_the_network_is_that_of_dqn() -> None:
    """For what the rows show, and for windows from memory: shapes only, as compiling it takes long."""
    with make(GAME)(num_actors=1, seed=0) as rows:
        shape, dtype = rows.observation
        window = jax.ShapeDtypeStruct((17, 4, *shape), dtype)
        found = jax.eval_shape(lambda key: make_network(shape, dtype, rows.num_actions, key), jax.random.key(0))
        q = jax.eval_shape(lambda key, x: make_network(shape, dtype, 6, key)(x), jax.random.key(0), window)
    assert type(found).__name__ == "DQNNet"
    assert found.layers[-1].weight.shape == (512, 6)
    assert q.shape == (17, 4, 6)


@needs_ale
def test_training_from_end_to_end(tmp_path: Path) -> None:
    """With a network that compiles fast."""
    spec = TrainSpec(
        env="atari/pong",
        network="mlp",
        hidden_sizes=(8,),
        num_steps=1_200,
        num_actors=4,
        steps_per_update=40,
        fill=400,
        window=4,
        num_windows=2,
        replay_size=1_000,
        exploration="switching",
        optimiser="rmsprop",
        evaluation_ticks=0,
        evaluation_episodes=2,
        evaluation_steps=30,
        options={"max_frames": 400},
    )
    result = train(spec, tmp_path / "run")
    assert result.finished
    for name in ("spec.json", "result.json"):
        (rules,) = json.loads((tmp_path / "run" / name).read_text())["protocols"]
        assert rules == {**ATARI_RULES, "max_frames": 400}
    assert result.history[-1].num_steps >= 1_200
    assert result.history[-1].num_updates >= 10
    assert sum(report.num_episodes for report in result.history) >= 8
    ended = [report for report in result.history if report.num_episodes]
    assert all(report.episode_length == 100 for report in ended)
    assert all(report.episode_return <= 0 for report in ended)
    assert math.isfinite(result.history[-1].loss)
    assert math.isfinite(result.history[-1].q)
    assert not result.history[-1].events
    assert len(result.returns) == 2
    assert result.num_unfinished == 2
