"""Pictures of agents at play: a GIF, an MP4, or a view in the terminal.

    record(policy, Path("cartpole.gif"), num_episodes=2, max_steps=500, seed=0, epsilon=0.0, fps=30)
    show(policy, console, num_episodes=1, max_steps=500, seed=0, epsilon=0.0, fps=30)

`episodes` plays and yields frames; `pictures` draws the states of environments that are pure
functions, with `drawing`; Gymnasium environments render themselves, and Atari games show their
screen. `gif` and `mp4` write the frames to a file, `screen` shows them in a terminal.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from offtrace.watch import screen
from offtrace.watch.captions import check_fps, pillow
from offtrace.watch.episodes import Frame, Player, play
from offtrace.watch.gif import check_gif_fps, write_gif
from offtrace.watch.mp4 import ffmpeg_path, write_mp4

__all__ = ["Frame", "Player", "play", "record", "show", "usual_fps"]


def usual_fps(env: str) -> float:
    """Return the frames per second at which an environment looks right.

    A step of an Atari game has four of its 60 frames per second.

    >>> usual_fps("atari/pong"), usual_fps("pocket/cartpole")
    (15.0, 30.0)
    """
    return 15.0 if env.startswith("atari/") else 30.0


def record(
    policy: Player,
    path: Path,
    *,
    num_episodes: int,
    max_steps: int,
    seed: int,
    epsilon: float,
    fps: float,
    progress: Callable[[Frame], None] = lambda _: None,
) -> list[float]:
    """Write a GIF or an MP4 of a policy at play; return the returns of the episodes that ended.

    The file appears when it is complete: an error or an interrupt leaves none. `progress` is called with every frame.
    """
    write = _writer(path, fps)
    returns: list[float] = []
    settings = {"seed": seed, "epsilon": epsilon, "max_steps": max_steps, "num_episodes": num_episodes}
    with _explained_imports(), _no_window(), closing(play(policy, **settings)) as frames:
        write(path, _observed(frames, returns, progress), fps, title=policy.env)
    return returns


def show(
    policy: Player,
    console: Console,
    *,
    num_episodes: int,
    max_steps: int,
    seed: int,
    epsilon: float,
    fps: float,
) -> list[float]:
    """Show a policy at play in the terminal; return the returns of the episodes that ended. Ctrl-C ends the view."""
    check_fps(fps)
    screen.check_terminal(console)
    returns: list[float] = []
    settings = {"seed": seed, "epsilon": epsilon, "max_steps": max_steps, "num_episodes": num_episodes}
    with _explained_imports(), _no_window(), closing(play(policy, **settings)) as frames:
        screen.show(_observed(frames, returns), console, fps, title=policy.env)
    return returns


@contextmanager
def _explained_imports() -> Generator[None]:
    """Turn a missing package into a ValueError that says what cannot be watched."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"`policy` cannot be watched: {error}") from error


@contextmanager
def _no_window() -> Generator[None]:
    """Give SDL dummy drivers: frames are arrays, so it need not search for a display or a sound card."""
    ours = {name: "dummy" for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER") if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _observed(
    frames: Iterable[Frame], returns: list[float], progress: Callable[[Frame], None] = lambda _: None
) -> Iterator[Frame]:
    """Pass the frames on, report each to `progress`, and append the returns of ended episodes to `returns`."""
    for frame in frames:
        progress(frame)
        if frame.ended:
            returns.append(frame.episode_return)
        yield frame


def _writer(path: Path, fps: float) -> Callable[..., None]:
    """Return the function that writes such a file, once everything it needs is known to be there."""
    check_fps(fps)
    suffix = path.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise ValueError(f"`output` must end in .gif or .mp4; got {str(path)!r}.")
    if path.is_dir():
        raise ValueError(f"`output` must be a file; {str(path)!r} is a folder.")
    pillow()
    if suffix == ".gif":
        check_gif_fps(fps)
        write = write_gif
    else:
        ffmpeg_path()
        write = write_mp4
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"`output` must be in a folder that can be made; got {str(path.parent)!r} ({error.strerror})."
        ) from None
    return write
