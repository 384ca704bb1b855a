"""An agent that plays, on film and in the terminal."""

import dataclasses
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from offtrace.environments import make
from offtrace.watch import captions, mp4, record, screen
from offtrace.watch import show as show_policy
from offtrace.watch.captions import CAPTION_HEIGHT, HOLD_SECONDS
from offtrace.watch.drawing import MARGIN, NIGHT
from offtrace.watch.episodes import Frame, play
from offtrace.watch.gif import write_gif
from offtrace.watch.mp4 import write_mp4
from offtrace.watch.pictures import CHANNELS
from offtrace.watch.screen import View, show

Image = pytest.importorskip("PIL.Image", reason="films are made with Pillow: pip install 'offtrace[video]'")


def policy(env: str, q: Callable[[np.ndarray], np.ndarray], **options: Any) -> Any:
    return SimpleNamespace(env=env, options=options, q=q)


def by_chance(env: str, **options: Any) -> Any:
    """Q values that look random, and are a function of what is seen."""
    num_actions = make(env, **options).num_actions

    def q(observations: np.ndarray) -> np.ndarray:
        seed = zlib.crc32(observations.tobytes())
        return np.random.default_rng(seed).normal(size=(len(observations), num_actions))

    return policy(env, q, **options)


def along_the_cliff(observations: np.ndarray) -> np.ndarray:
    """The shortest way: up, right eleven times, down."""
    row, column = np.argwhere(observations[0, ..., 0])[0]
    action = 0 if row == 3 else 2 if column == 11 else 1
    return np.eye(4)[None, action]


def frames_of(number: int, *, height: int = 30, width: int = 260, colours: int = 3) -> Iterator[Frame]:
    """Episodes of ten steps with pictures of noise."""
    generator = np.random.default_rng(0)
    for count in range(number):
        episode, step = divmod(count, 11)
        noise = generator.integers(0, colours, (height, width, 3)) * (255 // max(1, colours - 1))
        ended = "terminated" if step == 10 else ""
        q = None if ended else np.array([0.5, -1.0, 2.0])
        action = None if ended else 2
        yield Frame(noise.astype(np.uint8), None, np.zeros(2), action, 1.0, episode + 1, step, float(step), q, ended)


# -- playing -------------------------------------------------------------------------------------------------


def test_the_frames_of_an_episode() -> None:
    frames = [*play(policy("pocket/cliff", along_the_cliff), seed=0, max_steps=100, num_episodes=2)]
    assert len(frames) == 2 * 14  # thirteen steps, and where they end
    first, last = frames[0], frames[13]
    assert [frame.step for frame in frames] == [*range(14)] * 2
    assert [frame.episode for frame in frames] == [1] * 14 + [2] * 14
    assert [frame.action for frame in frames[:14]] == [0] + [1] * 11 + [2, None]
    assert (first.reward, first.episode_return, first.ended) == (0, 0, "")
    assert (last.reward, last.episode_return, last.ended) == (-1, -13, "terminated")
    assert last.q is None
    assert first.q is not None
    np.testing.assert_array_equal(first.q, [1, 0, 0, 0])
    assert first.observation[3, 0, 0]
    assert last.observation[3, 11, 0]
    assert (first.picture != last.picture).any()


@pytest.mark.parametrize(("max_steps", "ended", "number"), [(5, "stopped", 6), (50, "truncated", 21)])
def test_how_an_episode_ends_otherwise(max_steps: int, ended: str, number: int) -> None:
    up = policy("pocket/cliff", lambda x: np.eye(4)[None, 0], time_limit=20)
    frames = [*play(up, seed=0, max_steps=max_steps)]
    assert len(frames) == number
    assert frames[-1].ended == ended
    assert not any(frame.ended for frame in frames[:-1])


def test_the_seed_decides() -> None:
    def seen(seed: int, epsilon: float) -> list[tuple]:
        player = policy("pocket/catch", lambda x: np.array([[0.0, 1.0, 0.0]]))
        frames = play(player, seed=seed, epsilon=epsilon, max_steps=20, num_episodes=3)
        return [(frame.action, frame.picture.tobytes()) for frame in frames]

    assert seen(3, 0.5) == seen(3, 0.5)
    assert seen(3, 0.5) != seen(4, 0.5)
    assert {action for action, _ in seen(3, 0.0)} == {1, None}
    assert {action for action, _ in seen(3, 1.0)} == {0, 1, 2, None}


def test_minatar_plays() -> None:
    pytest.importorskip("pgx", reason="MinAtar needs pgx: pip install 'offtrace[minatar]'")
    for frame in play(by_chance("minatar/breakout"), seed=0, max_steps=30):
        colours = [colour for _, colour in CHANNELS["breakout"]]
        assert frame.cells is not None
        for channel, colour in enumerate(colours):
            shown = (frame.cells == colour).all(-1)
            assert not (shown & ~frame.observation[..., channel]).any()
        assert ((frame.cells[..., None, :] == colours).all(-1).any(-1) == frame.observation.any(-1)).all()


# -- Atari ---------------------------------------------------------------------------------------------------

needs_ale = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed: offtrace[atari]")


def fires(env: str = "atari/breakout", **options: Any) -> Any:
    """Fires in every step: in Breakout the ball is served, and the paddle stays where it is."""
    return policy(env, lambda observations: np.eye(4)[None, 1], **options)


@needs_ale
def test_atari_is_shown_in_colour() -> None:
    """A whole game: five lives and its score; then the next one."""
    frames = [*play(fires(), seed=0, max_steps=2_000, num_episodes=2)]
    ends = [frame for frame in frames if frame.ended]
    assert [frame.ended for frame in ends] == ["terminated", "terminated"]
    first = frames[0]
    assert first.picture.shape == (210, 160, 3)
    assert first.observation.shape == (4, 84, 84)
    assert list(first.action_names) == ["·", "*", "→", "←"]
    rows_of_bricks = {tuple(first.picture[row, 80]) for row in range(58, 93, 6)}
    assert len(rows_of_bricks) == 6, "each row of bricks has a colour of its own"
    for end in ends:
        rewards = [frame.reward for frame in frames if frame.episode == end.episode]
        assert end.episode_return == sum(rewards)
    lost = [not np.array_equal(a.picture[:16], b.picture[:16]) for a, b in itertools.pairwise(frames)]
    assert sum(lost) >= 2 * 4, "the number of lives at the top changes"


@needs_ale
def test_atari_on_film_and_in_the_terminal(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_episodes": 1, "max_steps": 30, "seed": 0, "epsilon": 0.0, "fps": 15}
    record(fires(), tmp_path / "breakout.gif", **settings)
    frames = [*play(fires(), seed=0, max_steps=30)]
    with Image.open(tmp_path / "breakout.gif") as film:
        assert film.size == (320, 420 + CAPTION_HEIGHT)
        assert film.n_frames <= len(frames)  # equal frames in a row are one
        shown = np.asarray(film.convert("RGB"))[:420]
    np.testing.assert_array_equal(shown, frames[0].picture.repeat(2, 0).repeat(2, 1))
    lines = terminal().render_lines(View(frames[-2], "atari/breakout"), pad=False)
    widths = {sum(segment.cell_length for segment in line) for line in lines[:-2]}
    assert (len(lines) - 2, widths) == (21, {56}), "4:3, with two pixels per character"


@needs_ale
def test_a_picture_of_another_game_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from offtrace.environments import atari_screen

    def without_sticky_actions(game: Any, seed: int, *, made: Any = atari_screen._Screen) -> Any:
        return made(dataclasses.replace(game, sticky=0.0), seed)

    monkeypatch.setattr(atari_screen, "_Screen", without_sticky_actions)
    with pytest.raises(RuntimeError, match="atari/breakout cannot be watched: frame"):
        [*play(fires(sticky=0.5), seed=0, max_steps=500)]


def test_small_bright_things_stay_visible() -> None:
    """A white pixel among four has a quarter of the light: half of the value, not a quarter."""
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[0, 0] = 200
    assert screen._resized(picture, (1, 1)).tolist() == [[[100, 100, 100]]]
    even = np.full((6, 4, 3), 77, np.uint8)
    assert (screen._resized(even, (3, 2)) == 77).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"seed": -1}, "`seed` must be"),
        ({"max_steps": 0}, "`max_steps` must be"),
        ({"num_episodes": 0}, "`num_episodes` must be"),
        ({"epsilon": 1.5}, "`epsilon` must be"),
    ],
)
def test_what_cannot_be_played_is_refused_at_once(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        play(by_chance("pocket/catch"), **{"seed": 0, "max_steps": 10, **wrong})


@pytest.mark.parametrize(("q", "says"), [(np.zeros((1, 2)), r"\(1, 3\)"), (np.full((1, 3), np.nan), "diverged")])
def test_a_wrong_policy_is_refused(q: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        next(play(policy("pocket/catch", lambda x: q), seed=0, max_steps=10))


# -- Gymnasium -----------------------------------------------------------------------------------------------


class Drawn(gymnasium.Env):
    """Four steps; draws the number of steps as a grey, always into the same array."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0.0, 10.0, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=5)
    closed = 0

    def __init__(self, render_mode: str | None = None, width: int = 300, shape: str = "array") -> None:
        self.render_mode, self._shape, self._canvas = render_mode, shape, np.zeros((20, width, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.taken: list[int] = []
        return np.array([0, 0.0]), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.taken.append(int(action))
        return np.array([len(self.taken), action]), 0.5, len(self.taken) == 4, False, {}

    def render(self) -> Any:
        self._canvas[:] = 10 * len(self.taken)
        return self._canvas if self._shape == "array" else None

    def close(self) -> None:
        type(self).closed += 1


class Unseen(Drawn):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Blind(Drawn):
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture
def registered() -> Iterator[None]:
    kinds = {"WatchedDrawn-v0": Drawn, "WatchedUnseen-v0": Unseen, "WatchedBlind-v0": Blind}
    for id_, kind in kinds.items():
        kind.closed = 0
        gymnasium.register(id_, entry_point=kind)
    yield
    for id_ in kinds:
        del gymnasium.registry[id_]


LAST = np.array([[0.0, 0.0, 1.0]])


@pytest.mark.usefixtures("registered")
def test_a_gymnasium_environment_draws_itself() -> None:
    player = policy("gymnasium/WatchedDrawn-v0", lambda x: LAST, width=280, timeout=5.0, check_bounds=False)
    frames = [*play(player, seed=0, max_steps=100, num_episodes=2)]
    assert len(frames) == 2 * 5
    assert [frame.picture.max() for frame in frames] == [0, 10, 20, 30, 40] * 2
    assert all(frame.picture.shape == (20, 280, 3) and frame.cells is None for frame in frames)
    assert frames[0].action == 2
    np.testing.assert_array_equal(frames[1].observation, [1, 7])  # its actions begin at 5
    assert frames[1].observation.dtype == np.float32
    assert (frames[-1].episode_return, frames[-1].ended) == (2.0, "terminated")
    assert Drawn.closed == 1


@pytest.mark.usefixtures("registered")
def test_a_gymnasium_environment_is_closed_when_nobody_looks_any_more() -> None:
    frames = play(policy("gymnasium/WatchedDrawn-v0", lambda x: LAST), seed=0, max_steps=100)
    next(frames)
    frames.close()
    assert Drawn.closed == 1


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("WatchedUnseen-v0", {}, r"render modes are \['human'\]"),
        ("WatchedBlind-v0", {}, "render"),
        ("WatchedDrawn-v0", {"shape": "none"}, "`render` gives NoneType"),
    ],
)
def test_what_draws_nothing_is_refused(name: str, options: dict, says: str) -> None:
    player = policy(f"gymnasium/{name}", lambda x: LAST, **options)
    with pytest.raises(ValueError, match=f"`env` must render .*{name} does not: .*{says}"):
        next(play(player, seed=0, max_steps=10))


def test_without_pygame_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    player = policy("gymnasium/CartPole-v1", lambda x: LAST[:, 1:])
    with pytest.raises(ValueError, match=r"needs pygame: pip install 'offtrace\[video\]'"):
        next(play(player, seed=0, max_steps=10))


def test_nothing_is_said_of_a_display_that_is_missing(tmp_path: Path) -> None:
    """pygame starts every driver of SDL's, and those talk to standard error past Python."""
    pytest.importorskip("pygame")
    code = """
        import sys
        from pathlib import Path
        from types import SimpleNamespace
        import numpy as np
        from offtrace.watch import record
        policy = SimpleNamespace(env="gymnasium/CartPole-v1", options={}, q=lambda x: np.zeros((1, 2)))
        record(policy, Path(sys.argv[1]), num_episodes=1, max_steps=2, seed=0, epsilon=0.0, fps=10.0)
    """
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "film.gif")],
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


# -- GIF -----------------------------------------------------------------------------------------------------


def durations(path: Path) -> list[int]:
    with Image.open(path) as film:
        times = []
        for index in range(film.n_frames):
            film.seek(index)
            times.append(film.info["duration"])
        assert film.info["loop"] == 0
        return times


@pytest.mark.parametrize("fps", [10, 30, 50])
def test_a_gif_has_its_frames_and_keeps_its_time(tmp_path: Path, fps: int) -> None:
    path = tmp_path / "film.gif"
    write_gif(path, frames_of(22), fps, title="noise")
    times = durations(path)
    assert len(times) == 22
    hold = 1000 * HOLD_SECONDS
    assert sum(times) == pytest.approx(1000 * 22 / fps + 2 * hold, abs=10)  # a GIF counts in 10 ms
    for index, duration in enumerate(times):
        assert duration == pytest.approx(1000 / fps + (hold if index in (10, 21) else 0), abs=10)
    assert [entry.name for entry in tmp_path.iterdir()] == ["film.gif"]


def test_a_gif_of_few_colours_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    frames = [*frames_of(12)]
    write_gif(path, frames, 20, title="noise")
    with Image.open(path) as film:
        for index, frame in enumerate(frames):
            film.seek(index)
            image = np.asarray(film.convert("RGB"))
            assert image.shape == (30 + CAPTION_HEIGHT, 260, 3)
            np.testing.assert_array_equal(image[:30], frame.picture)


def test_a_gif_of_many_colours_is_close(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    frames = [*frames_of(3, colours=256)]
    write_gif(path, frames, 20)
    with Image.open(path) as film:
        for index, frame in enumerate(frames):
            film.seek(index)
            off = abs(np.asarray(film.convert("RGB"))[:30].astype(int) - frame.picture)
            # 255 colours of 256³, evenly spread, are 40 apart in each direction: half of it at most, on average.
            assert off.mean() < 20


def test_five_seconds_of_cart_and_pole_are_small(tmp_path: Path) -> None:
    def q(x: np.ndarray) -> np.ndarray:
        right = x[0] @ np.array([0.02, 0.1, 1.0, 0.3]) > 0
        return np.array([[0.0, 1.0 if right else -1.0]])

    path = tmp_path / "film.gif"
    write_gif(path, play(policy("pocket/cartpole", q), seed=0, max_steps=100), 20, title="pocket/cartpole")
    assert len(durations(path)) > 75
    assert path.stat().st_size < 375_000


def test_small_pictures_grow_and_large_ones_shrink(tmp_path: Path) -> None:
    for (height, width), expected in (((210, 160), (320, 420)), ((400, 600), (400, 267))):
        write_gif(tmp_path / "film.gif", frames_of(1, height=height, width=width), 20)
        with Image.open(tmp_path / "film.gif") as film:
            assert film.size == (expected[0], expected[1] + CAPTION_HEIGHT)


def test_the_caption_tells_the_frames_apart() -> None:
    frame = next(frames_of(1))
    changed = [frame, *(Frame(**{**vars(frame), **change}) for change in ({"step": 7}, {"episode_return": 7.0}))]
    images = [captions.captioned(one, "noise", (260, 30))[30:] for one in changed]
    for first in range(3):
        for second in range(first):
            assert (images[first] != images[second]).any()


def breaking() -> Iterator[Frame]:
    yield from frames_of(3)
    raise RuntimeError("the environment broke")


def test_what_ffmpeg_says_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(mp4, "ffmpeg_path", lambda: str(program))
    with pytest.raises(RuntimeError, match="ffmpeg failed: no such codec"):
        write_mp4(tmp_path / "film.mp4", frames_of(100), 20)
    assert [*tmp_path.iterdir()] == [program]


@pytest.mark.parametrize("write", [write_gif, write_mp4])
def test_nothing_is_left_behind_when_playing_breaks(tmp_path: Path, write: Callable[..., None]) -> None:
    if write is write_mp4:
        pytest.importorskip("imageio_ffmpeg", reason="MP4 needs imageio-ffmpeg: pip install 'offtrace[video]'")
    suffix = ".gif" if write is write_gif else ".mp4"
    before = tmp_path / f"before{suffix}"
    before.write_bytes(b"as it was")
    for path in (before, tmp_path / f"new{suffix}"):
        with pytest.raises(RuntimeError, match="the environment broke"):
            write(path, breaking(), 20)
    assert [*tmp_path.iterdir()] == [before]
    assert before.read_bytes() == b"as it was"


def test_a_gif_breaks_while_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, path: Path, *args: Any, **kwargs: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="no space left"):
        write_gif(tmp_path / "film.gif", frames_of(3), 20)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_a_gif_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`fps` must be at most 50 in a GIF; got 60"):
        write_gif(tmp_path / "film.gif", frames_of(3), 60)
    with pytest.raises(ValueError, match="`fps` must be a positive, finite number"):
        write_gif(tmp_path / "film.gif", frames_of(3), 0)
    with pytest.raises(ValueError, match="`frames` must not be empty"):
        write_gif(tmp_path / "film.gif", [], 20)
    assert not [*tmp_path.iterdir()]


# -- MP4 -----------------------------------------------------------------------------------------------------


def test_an_mp4_has_even_sizes_and_its_frames(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="MP4 needs imageio-ffmpeg: pip install 'offtrace[video]'")
    path = tmp_path / "film.mp4"
    write_mp4(path, frames_of(22, height=31, width=261), 20, title="noise")
    decode = [ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    result = subprocess.run(decode, capture_output=True, check=True)
    assert b"Video: h264" in result.stderr
    assert b"yuv420p" in result.stderr
    assert b"262x76" in result.stderr
    assert b"20 fps" in result.stderr
    images = np.frombuffer(result.stdout, np.uint8).reshape(-1, 76, 262, 3)
    ends = np.repeat(np.arange(22), [1] * 10 + [21] + [1] * 10 + [21])  # the last of each episode, a second longer
    assert len(images) == len(ends)
    frames = [*frames_of(22, height=31, width=261)]
    for image, index in zip(images, ends, strict=True):
        # Colour is stored at half the resolution, and this is noise; brightness is not, and survives.
        seen, drawn = (part.mean(-1) for part in (image[:31, :261], frames[index].picture))
        assert np.corrcoef(seen.ravel(), drawn.ravel())[0, 1] > 0.8
    assert [entry.name for entry in tmp_path.iterdir()] == ["film.mp4"]


def test_without_ffmpeg_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ValueError, match=r"pip install 'offtrace\[video\]'"):
        write_mp4(tmp_path / "film.mp4", frames_of(3), 20)


# -- the terminal --------------------------------------------------------------------------------------------


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(),
        record=True,
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "HOLD_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["pocket/cartpole", "pocket/deep_sea", "minatar/breakout"])
def test_the_view_fits(name: str) -> None:
    if name.startswith("minatar/"):
        pytest.importorskip("pgx", reason="MinAtar needs pgx: pip install 'offtrace[minatar]'")
    console = terminal()
    show(play(by_chance(name), seed=0, max_steps=5), console, 1000, title=name)
    # What is on one line of the screen: between line ends and the moves of the cursor that begin the next frame.
    output = re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())
    lines = re.split(r"\n|\r|\x1b\[\??\d+[A-Zl]", output)
    assert max(map(cell_len, lines)) <= 80
    assert "▀" in output or name != "pocket/cartpole"
    for count in range(6):
        assert any(re.search(rf"{name} +episode 1 +step {count} +return", line) for line in lines)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6), (9, 5), (5, 2)])
@pytest.mark.parametrize("name", ["pocket/cartpole", "pocket/catch", "pocket/cliff"])
def test_the_view_fits_into_any_terminal(name: str, width: int, height: int) -> None:
    console = terminal(width, height)
    frames = [*play(by_chance(name), seed=0, max_steps=2)]
    for frame in frames:
        lines = console.render_lines(View(frame, name), pad=False)
        assert len(lines) < max(height, 3)  # two lines of text there always are
        assert max(sum(segment.cell_length for segment in line) for line in lines) <= width


@pytest.mark.parametrize("num_actions", [1, 2, 6, 18, 100])
def test_all_actions_have_a_bar(num_actions: int) -> None:
    frame = next(frames_of(1))
    q = np.linspace(0, 1, num_actions)
    changed = Frame(**{**vars(frame), "q": q, "action": num_actions - 1})
    console = terminal()
    *_, status, bars = console.render_lines(View(changed, "noise"), pad=False)
    assert f"action {num_actions - 1}" in "".join(segment.text for segment in status)
    text = "".join(segment.text for segment in bars)
    assert cell_len(text) <= 80
    assert num_actions > 80 or sum(map(text.count, "▏▁█")) >= min(num_actions, 2)


def test_cells_are_crisp() -> None:
    """20 rows of 40 columns hold ten times ten cells: four columns and two rows each, of one colour."""
    frame = next(play(by_chance("pocket/catch"), seed=0, max_steps=2))
    assert frame.cells is not None
    lines = terminal().render_lines(View(frame, "catch"), pad=False)[:-2]
    assert len(lines) == 20
    for row, line in enumerate(lines):
        colours = []
        for segment in line:
            assert set(segment.text) == {" "}
            assert segment.style is not None
            assert segment.style.bgcolor is not None
            assert segment.style.bgcolor.triplet is not None
            colours += [tuple(segment.style.bgcolor.triplet)] * len(segment.text)
        np.testing.assert_array_equal(colours, frame.cells[row // 2].repeat(4, 0))


def test_half_blocks_carry_two_pixels() -> None:
    upper, lower = (1, 2, 3), (40, 50, 60)
    first, line = screen._blocks(np.array([[upper] * 3, [lower] * 3], np.uint8))
    assert (first.text, line.text) == ("▀▀▀", "\n")
    assert first.style is not None
    assert first.style.color is not None
    assert first.style.bgcolor is not None
    assert (first.style.color.triplet, first.style.bgcolor.triplet) == (upper, lower)


@pytest.mark.usefixtures("impatient")
def test_ctrl_c_ends_the_view_and_gives_the_terminal_back() -> None:
    def interrupted() -> Iterator[Frame]:
        yield from frames_of(3)
        raise KeyboardInterrupt

    console = terminal()
    before = sys.stdout
    show(interrupted(), console, 1000)
    assert sys.stdout is before
    output = console.file.getvalue()
    assert output.rstrip().endswith("\x1b[?25h")  # the cursor is shown again
    assert "step 2" in console.export_text()


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_real_ctrl_c() -> None:
    code = """
        import sys, numpy as np
        from rich.console import Console
        from offtrace.watch.episodes import Frame
        from offtrace.watch.screen import show
        def frames():
            for step in range(10**6):
                yield Frame(np.zeros((9, 9, 3), np.uint8), None, np.zeros(1), 0, 0.0, 1, step, 0.0, np.zeros(2), "")
                if step == 3:
                    print("ready", file=sys.__stderr__, flush=True)
        show(frames(), Console(force_terminal=True, width=80, height=24), 50)
        print("went on")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    assert output.endswith("\x1b[?25hwent on\n")


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_second_ctrl_c_does_not_hurt() -> None:
    with screen._ctrl_c_ignored():
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


# -- together ------------------------------------------------------------------------------------------------


SETTINGS: dict[str, Any] = {"num_episodes": 2, "max_steps": 50, "seed": 0, "epsilon": 0.0, "fps": 20}


def test_recording_writes_a_film(tmp_path: Path) -> None:
    path = tmp_path / "films" / "cliff.GIF"
    player = policy("pocket/cliff", along_the_cliff)
    steps: list[int] = []
    assert record(player, path, **SETTINGS, progress=lambda frame: steps.append(frame.step)) == [-13, -13]
    assert len(durations(path)) == 28
    assert steps == [*range(14)] * 2
    with Image.open(path) as film:
        image = np.asarray(film.convert("RGB"))
    assert (image[:MARGIN] == NIGHT).all()


@pytest.mark.usefixtures("impatient")
def test_watching_in_the_terminal() -> None:
    console = terminal()
    player = policy("pocket/cliff", along_the_cliff)
    assert show_policy(player, console, **{**SETTINGS, "fps": 50}) == [-13, -13]
    text = console.export_text()
    assert "episode 2  step 13  return -13" in text
    assert "action ↑" in text


@pytest.mark.usefixtures("registered")
def test_a_policy_that_cannot_be_watched_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must render"):
        record(policy("gymnasium/WatchedUnseen-v0", lambda x: LAST), tmp_path / "film.gif", **SETTINGS)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_watched_is_refused_before_it_is_played(tmp_path: Path) -> None:
    def never(x: np.ndarray) -> np.ndarray:
        raise AssertionError("played")

    player = policy("pocket/catch", never)
    (tmp_path / "folder.gif").mkdir()
    (tmp_path / "file").write_text("")
    for output, says in (
        (tmp_path / "film.avi", r"`output` must end in \.gif or \.mp4"),
        (tmp_path / "film", r"`output` must end in \.gif or \.mp4"),
        (tmp_path / "folder.gif", "is a folder"),
        (tmp_path / "file" / "film.gif", "must be in a folder that can be made"),
    ):
        with pytest.raises(ValueError, match=says):
            record(player, output, **SETTINGS)
    for console, why in (
        (Console(file=io.StringIO()), "this is not a terminal"),
        (Console(file=io.StringIO(), force_terminal=True, color_system=None), "this one has no colours"),
    ):
        with pytest.raises(ValueError, match=why):
            show_policy(player, console, **SETTINGS)


def test_without_pillow_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ValueError, match=r"pip install 'offtrace\[video\]'"):
        record(by_chance("pocket/catch"), tmp_path / "film.gif", **SETTINGS)
    with pytest.raises(ValueError, match=r"pip install 'offtrace\[video\]'"):
        show_policy(by_chance("pocket/catch"), terminal(), **SETTINGS)
