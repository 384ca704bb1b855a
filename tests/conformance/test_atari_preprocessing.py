"""Atari rows against Gymnasium's `AtariPreprocessing` and `FrameStackObservation`, to the last bit.

Gymnasium's wrapper needs `cv2.resize` and nothing else of OpenCV, a package of 150 MB. Where it is not installed,
`area_mean` takes its place; the last test compares the two where it is (`pip install opencv-python-headless`).
"""

import sys
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from builders.atari_pictures import area_mean, grey

from offtrace.environments import ATARI, make
from offtrace.environments.atari import started
from offtrace.environments.atari_screen import WatchedGame

pytest.importorskip("ale_py", reason="ale-py is not installed: offtrace[atari]")

SEED = 1
"""Of Gymnasium, which gives its emulator another one; rows accept that of 1, as it is positive."""


@pytest.fixture(autouse=True)
def resize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Gymnasium's wrapper a `cv2.resize` where OpenCV is not installed."""
    if find_spec("cv2") is None:
        stand_in = SimpleNamespace(INTER_AREA=3, resize=lambda picture, size, interpolation: area_mean(picture, size))
        monkeypatch.setitem(sys.modules, "cv2", stand_in)


class Theirs(NamedTuple):
    """Gymnasium's environment after its first reset."""

    env: Any
    observation: np.ndarray
    lives: int
    emulator_seed: int


def gymnasiums(game: str, **options: Any) -> Theirs:
    """Return Gymnasium's environment with its default start, and the seed that it gives its emulator."""
    from ale_py.env import AtariEnv
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    frames = AtariEnv(game, frameskip=1, **options)
    env = FrameStackObservation(AtariPreprocessing(frames, noop_max=0, frame_skip=4), 4, padding_type="zero")
    observation, info = env.reset(seed=SEED)
    return Theirs(env, observation, info["lives"], int(np.int32(info["seeds"][1])))


def compared(game: str, num_rows: int, **options: Any) -> Counter[str]:
    """Play random actions in both, compare all they show, and return what happened how often."""
    theirs, expected, lives, emulator_seed = gymnasiums(
        game,
        repeat_action_probability=options.get("sticky", 0.0),
        full_action_space=options.get("full_action_space", False),
        max_num_frames_per_episode=options.get("max_frames", 108_000),
    )
    seen: Counter[str] = Counter()
    choose = np.random.default_rng(0)
    with make(f"atari/{game}", noop_max=0, **options)(num_actors=1, seed=emulator_seed) as rows:
        assert rows.num_actions == theirs.action_space.n
        actor = rows.begin()
        for _ in range(num_rows):
            assert np.array_equal(actor.observation[0], expected)
            action = int(choose.integers(rows.num_actions))
            was_over = bool(actor.over[0])
            actor, row, ended = rows.advance(np.array([action]))
            assert row.mask[0] == (not was_over)
            assert np.array_equal(row.observation[0], expected[-1])
            if was_over:
                expected, info = theirs.reset()
                lives = info["lives"]
                assert actor.first[0]
                continue
            expected, reward, terminated, truncated, info = theirs.step(action)
            lost = 0 < info["lives"] < lives
            lives = info["lives"]
            assert row.reward[0] == reward
            assert ended.ended[0] == (terminated or truncated)
            assert row.continues[0] == (not terminated and not lost)
            seen.update(rewards=bool(reward), lives=lost, terminated=terminated, truncated=truncated)
    theirs.close()
    return seen


@pytest.mark.parametrize(
    ("game", "num_rows", "least"),
    [
        ("breakout", 500, {"rewards": 3, "lives": 8, "terminated": 2}),
        ("seaquest", 500, {"lives": 4, "terminated": 1}),
        ("space_invaders", 600, {"rewards": 8, "lives": 2, "terminated": 1}),
        ("ms_pacman", 700, {"rewards": 30, "lives": 2, "terminated": 1}),
        ("pong", 300, {"rewards": 6}),
    ],
)
def test_games_are_gymnasiums(game: str, num_rows: int, least: dict[str, int]) -> None:
    """Observations, rewards, lost lives and ends of games, with what follows them."""
    seen = compared(game, num_rows)
    assert all(seen[what] >= number for what, number in least.items()), seen


def test_with_other_options() -> None:
    """Sticky actions, all 18 actions, and a limit in the middle of a step."""
    seen = compared("breakout", 300, sticky=0.25, full_action_space=True, max_frames=202)
    assert seen["truncated"] >= 3
    assert seen["lives"] >= 3


def test_random_starts() -> None:
    """A game starts after 0 to 29 frames without an action: its first picture is that of one of these frames."""
    theirs, _, _, emulator_seed = gymnasiums("seaquest")
    starts = []
    for _ in range(30):
        starts.append(area_mean(theirs.unwrapped.ale.getScreenGrayscale()).tobytes())
        theirs.unwrapped.step(0)
    with make("atari/seaquest")(num_actors=6, seed=emulator_seed) as rows:
        first = rows.begin().observation
    assert not first[:, :-1].any()
    assert len({starts.index(picture.tobytes()) for picture in first[:, -1]}) >= 3
    theirs.close()


# -- pictures in colour --------------------------------------------------------------------------------------


def assert_same_picture(watched: WatchedGame, observation: np.ndarray) -> None:
    assert np.array_equal(area_mean(grey(watched.picture())), observation[-1])


def test_all_games_step() -> None:
    """Without a seed, as ale-py loads a game again to set one, which takes most of the time."""
    for name in ATARI:
        emulator = started(make(name), 1, stack=1)
        try:
            emulator.reset()
            for action in (1, 0, emulator.single_action_space.n - 1, 0):
                picture, _, terminated, truncated, _ = emulator.step(np.array([action]))
                assert picture.shape == (1, 1, 84, 84), name
                assert not terminated[0], name
                assert not truncated[0], name
        finally:
            emulator.close()


def test_games_show_what_the_agent_sees() -> None:
    """Every fourth one."""
    for name in list(ATARI)[::4]:
        watched = WatchedGame(make(name), SEED)
        try:
            assert_same_picture(watched, watched.reset())
            assert watched.num_actions == len(set(watched.action_names))
            for action in (1, 0, watched.num_actions - 1, 0):
                assert_same_picture(watched, watched.step(action)[0])
        except BaseException as error:
            error.add_note(name)
            raise
        finally:
            watched.close()


@pytest.mark.parametrize("options", [{}, {"sticky": 0.25, "max_frames": 302}])
def test_the_picture_in_colour_is_what_the_agent_sees(options: dict[str, Any]) -> None:
    """Of the same game: its grey, reduced to 84×84, is the newest picture of the observation."""
    game = make("atari/space_invaders", **options)
    choose = np.random.default_rng(0)
    watched = WatchedGame(game, SEED)
    num_ends = 0
    with game(num_actors=1, seed=SEED) as rows:
        actor = rows.begin()
        observation = watched.reset()
        for _ in range(400):
            assert np.array_equal(observation, actor.observation[0])
            if not actor.over[0]:  # the emulator stops in the frame that ends a game, which no observation shows
                assert_same_picture(watched, observation)
            action = int(choose.integers(rows.num_actions))
            was_over = actor.over[0]
            actor, row, ended = rows.advance(np.array([action]))
            if was_over:
                observation = watched.reset()
                continue
            observation, reward, terminated, truncated = watched.step(action)
            assert reward == row.reward[0]
            assert (terminated or truncated) == ended.ended[0]
            num_ends += int(ended.ended[0])
    assert num_ends >= 1
    watched.close()


@pytest.mark.skipif(find_spec("cv2") is None, reason="OpenCV is not installed: pip install opencv-python-headless")
@pytest.mark.parametrize("height", [210, 214, 220])
def test_area_mean_is_opencvs(height: int) -> None:
    import cv2

    generator = np.random.default_rng(0)
    for _ in range(50):
        noise = generator.integers(0, 256, (height, 160), np.uint8)
        blocks = np.kron(generator.integers(0, 256, (height // 2, 16)), np.ones((2, 10))).astype(np.uint8)
        for picture in (noise, blocks):
            assert np.array_equal(area_mean(picture), cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA))
