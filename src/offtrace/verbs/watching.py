"""What `offtrace watch` makes of an agent that plays: a GIF, an MP4, or a view in the terminal."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich import filesize
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from offtrace.environments.episodes import Frame, Player, play
from offtrace.environments.pictures import ACTIONS
from offtrace.verbs.films import check_fps, check_gif_fps, ffmpeg_path, pillow, write_gif, write_mp4
from offtrace.verbs.screen import check_terminal, show


def watch_policy(
    policy: Player,
    *,
    output: Path | None,
    terminal: bool,
    num_episodes: int,
    max_steps: int,
    seed: int,
    epsilon: float,
    fps: float,
    console: Console,
) -> list[float]:
    """Writes a film, shows it in the terminal, or both: the film first. The returns of the episodes that ended.

    The view plays again from the same seed. Ctrl-C ends the view, and whoever called goes on; while a film is being
    written it is an interruption as any other, and leaves no file.
    """
    if output is None and not terminal:
        raise ValueError("`output` must be a file .gif or .mp4, unless `terminal` is on.")
    check_fps(fps)
    if terminal:
        check_terminal(console)
    arguments = {"seed": seed, "epsilon": epsilon, "max_steps": max_steps, "num_episodes": num_episodes}
    returns: list[float] = []
    try:
        if output is not None:
            write = _writer(output, fps)
            with (
                _no_window(),
                _progress(console, num_episodes, max_steps) as tell,
                closing(play(policy, **arguments)) as frames,
            ):
                write(output, _followed(frames, returns, tell), fps, title=policy.env)
            size = filesize.decimal(output.stat().st_size)
            console.print(f"Written to [bold]{escape(str(output))}[/bold], {size}", highlight=False, soft_wrap=True)
        if terminal:
            with _no_window(), closing(play(policy, **arguments)) as frames:
                actions = ACTIONS.get(policy.env, "")
                noted = returns if output is None else []
                show(_followed(frames, noted), console, fps, title=policy.env, actions=actions)
    except ImportError as error:
        raise ValueError(f"`policy` cannot be watched: {error}") from error
    return returns


@contextmanager
def _no_window() -> Generator[None]:
    """Frames are arrays: SDL need not look for a display or a sound card, and complain that there is none."""
    ours = {name: "dummy" for name in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER") if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _followed(
    frames: Iterable[Frame], returns: list[float], tell: Callable[[Frame], None] = lambda _: None
) -> Iterator[Frame]:
    """The same frames; on their way, the returns of the episodes that end are noted."""
    for frame in frames:
        tell(frame)
        if frame.ended:
            returns.append(frame.episode_return)
        yield frame


@contextmanager
def _progress(console: Console, num_episodes: int, max_steps: int) -> Generator[Callable[[Frame], None], None, None]:
    """A bar, and what moves it. Episodes may end before `max_steps`: the time left is an upper bound."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left, at most:"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting …", total=num_episodes)

        def tell(frame: Frame) -> None:
            done = frame.episode - 1 + (1 if frame.ended else frame.step / max_steps)
            progress.update(task, completed=done, description=f"episode {frame.episode}, step {frame.step}")

        yield tell


def _writer(output: Path, fps: float) -> Callable[..., None]:
    """What writes such a file, after a look at whether it can: before anything is played."""
    suffix = output.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise ValueError(f"`output` must end in .gif or .mp4; got {str(output)!r}.")
    if output.is_dir():
        raise ValueError(f"`output` must be a file; {str(output)!r} is a folder.")
    pillow()
    if suffix == ".gif":
        check_gif_fps(fps)
    else:
        ffmpeg_path()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`output`: the folder {str(output.parent)!r} cannot be made: {error.strerror}.") from None
    return write_gif if suffix == ".gif" else write_mp4
