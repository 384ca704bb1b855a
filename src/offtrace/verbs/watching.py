"""What `offtrace watch` makes of an agent that plays: a GIF, an MP4, or a view in the terminal."""

import itertools
import math
import os
import signal
import subprocess
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich import filesize
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from offtrace.environments.episodes import Frame, Policy, play
from offtrace.environments.pictures import ACTIONS

HOLD_SECONDS = 1.0
"""How long the last frame of an episode stays."""

NARROWEST, WIDEST_GIF, WIDEST_MP4 = 240, 400, 1280
"""Of pictures on film, in pixels: smaller ones are enlarged, larger ones reduced."""

MOST_GIF_FPS = 50
"""Browsers slow down a GIF whose frames take less than 0.02 s."""

CAPTION_HEIGHT = 44
GROUND, BRIGHT, DIM = (10, 12, 18), (236, 240, 248), (139, 149, 171)


def watch_policy(
    policy: Policy,
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
    _check_fps(fps)
    if terminal:
        _check_terminal(console)
    arguments = {"seed": seed, "epsilon": epsilon, "max_steps": max_steps, "num_episodes": num_episodes}
    returns: list[float] = []
    try:
        if output is not None:
            write = _writer(output, fps)
            with _progress(console, num_episodes, max_steps) as tell, closing(play(policy, **arguments)) as frames:
                write(output, _followed(frames, returns, tell), fps, title=policy.env)
            size = filesize.decimal(output.stat().st_size)
            console.print(f"Written to [bold]{escape(str(output))}[/bold], {size}", highlight=False, soft_wrap=True)
        if terminal:
            with closing(play(policy, **arguments)) as frames:
                actions = ACTIONS.get(policy.env, "")
                noted = returns if output is None else []
                show(_followed(frames, noted), console, fps, title=policy.env, actions=actions)
    except ImportError as error:
        raise ValueError(f"`policy` cannot be watched: {error}") from error
    return returns


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


def _check_fps(fps: float) -> None:
    if not 0 < fps < math.inf:
        raise ValueError(f"`fps` must be a number of frames per second above 0; got {fps!r}.")


def _writer(output: Path, fps: float) -> Callable[..., None]:
    """What writes such a file, after a look at whether it can: before anything is played."""
    suffix = output.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise ValueError(f"`output` must end in .gif or .mp4; got {str(output)!r}.")
    if output.is_dir():
        raise ValueError(f"`output` must be a file; {str(output)!r} is a folder.")
    _pillow()
    if suffix == ".gif":
        _check_gif_fps(fps)
    else:
        _ffmpeg()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`output`: the folder {str(output.parent)!r} cannot be made: {error.strerror}.") from None
    return write_gif if suffix == ".gif" else write_mp4


# -- films ---------------------------------------------------------------------------------------------------


def write_gif(path: Path, frames: Iterable[Frame], fps: float, *, title: str = "") -> None:
    """A GIF that repeats; appears at `path` when it is complete, or not at all.

    One palette serves all frames, without loss while the film has no more than 255 colours, and of each frame only
    the pixels that changed are stored.
    """
    _check_fps(fps)
    _check_gif_fps(fps)
    Image = _pillow()
    packed, durations, tally, shape = [], [], Counter(), (0, 0)
    clock = 0.0  # in hundredths of a second, the unit of a GIF; rounded at its ends, so that errors do not add up
    for image, seconds in _film(frames, fps, title, WIDEST_GIF):
        codes = image.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        colours, counts = np.unique(codes, return_counts=True)
        tally.update(dict(zip(colours.tolist(), counts.tolist(), strict=True)))
        packed.append(zlib.compress(codes.tobytes(), 1))  # the palette is known at the end only
        shape = codes.shape
        durations.append(10 * (round(clock + 100 * seconds) - round(clock)))
        clock += 100 * seconds
    palette, colours, indices = _palette(Image, tally)

    def images() -> Iterator[Any]:
        for film in packed:
            codes = np.frombuffer(zlib.decompress(film), np.uint32).reshape(shape)
            image = Image.frombytes("P", shape[::-1], indices[np.searchsorted(colours, codes)].tobytes())
            image.putpalette(palette)
            yield image

    unchanged = len(palette) // 3 - 1
    with _made_whole(path) as temporary:
        rest = images()
        next(rest).save(
            temporary,
            "GIF",
            save_all=True,
            append_images=rest,
            duration=durations,
            loop=0,
            palette=palette,
            transparency=unchanged,
            disposal=1,
            optimize=True,
            interlace=0,
        )


def _palette(Image: Any, tally: Counter[int]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """The palette, all colours in order, and the index in the palette of each; its last entry is free."""
    colours = np.array(sorted(tally), np.uint32)
    rgb = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], -1).astype(np.uint8)
    if len(colours) > 255:
        counts = np.array([tally[colour] for colour in colours.tolist()])
        often = np.ceil(counts * (100_000 / counts.sum())).astype(int)
        found = Image.fromarray(rgb.repeat(often, 0)[None]).quantize(255, Image.Quantize.MEDIANCUT)
        entries = np.unique(np.array(found.getpalette()[: 255 * 3], np.uint8).reshape(-1, 3), axis=0)
        chosen = Image.new("P", (1, 1))
        chosen.putpalette(entries.tobytes() + entries[-1:].tobytes() * (256 - len(entries)))
        nearest = Image.fromarray(rgb[None]).quantize(palette=chosen, dither=Image.Dither.NONE)
        indices, rgb = np.minimum(np.asarray(nearest)[0], len(entries) - 1).astype(np.uint8), entries
    else:
        indices = np.arange(len(colours), dtype=np.uint8)
    used = {tuple(entry) for entry in rgb.tolist()}
    free = next(grey for grey in range(256) if (grey, grey, grey) not in used)
    return rgb.tobytes() + bytes([free] * 3), colours, indices


def write_mp4(path: Path, frames: Iterable[Frame], fps: float, *, title: str = "") -> None:
    """An H.264 film that every browser plays; appears at `path` when it is complete, or not at all."""
    _check_fps(fps)
    ffmpeg = _ffmpeg()
    with _made_whole(path) as temporary:
        encoder = None
        try:
            for image, seconds in _film(frames, fps, title, WIDEST_MP4):
                even = np.pad(image, [(0, side % 2) for side in image.shape[:2]] + [(0, 0)], mode="edge")
                if encoder is None:
                    encoder = _Encoder(ffmpeg, temporary, even.shape[1], even.shape[0], fps)
                for _ in range(round(seconds * fps)):
                    encoder.write(even)
            if encoder is not None:
                encoder.finish()
        finally:
            if encoder is not None:
                encoder.end()


class _Encoder:
    """ffmpeg in a process of its own.

    imageio-ffmpeg brings the program, but its way to start it forks: of that JAX warns, as it may deadlock.
    """

    def __init__(self, ffmpeg: str, path: Path, width: int, height: int, fps: float) -> None:
        frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
        film = ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        # A group of its own: Ctrl-C is for us to handle.
        self._process = subprocess.Popen(
            [ffmpeg, "-loglevel", "error", "-y", *frames, *film],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,
        )

    def write(self, image: np.ndarray) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(image.tobytes())
        except BrokenPipeError:
            self.finish()

    def finish(self) -> None:
        """Waits for the end of the film; whatever ffmpeg has to say is an error."""
        try:
            _, says = self._process.communicate()
        except BrokenPipeError:
            says = b""
        if self._process.wait() or says:
            raise RuntimeError(f"ffmpeg failed: {says.decode(errors='replace').strip() or 'it says nothing'}")

    def end(self) -> None:
        """By force, if it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it may hold what could not be written
                    pipe.close()


def _film(frames: Iterable[Frame], fps: float, title: str, widest: int) -> Iterator[tuple[np.ndarray, float]]:
    """Pictures of one size with captions, and the seconds that each is to be seen."""
    size = None
    for frame in frames:
        size = size or _film_size(frame.picture, widest)
        hold = HOLD_SECONDS if frame.ended else 0
        yield _captioned(frame, title, size), 1 / fps + hold
    if size is None:
        raise ValueError("`frames` must be at least one.")


def _film_size(picture: np.ndarray, widest: int) -> tuple[int, int]:
    """Width and height. Small pictures grow by a whole number, so that their pixels stay sharp.

    >>> _film_size(np.zeros((210, 160, 3)), 400), _film_size(np.zeros((400, 600, 3)), 400)
    ((320, 420), (400, 267))
    """
    height, width = picture.shape[:2]
    if width > widest:
        return widest, max(1, round(height * widest / width))
    times = math.ceil(NARROWEST / width)
    return width * times, height * times


def _captioned(frame: Frame, title: str, size: tuple[int, int]) -> np.ndarray:
    """The picture, and below it two lines: the environment, and where the episode stands."""
    Image = _pillow()
    width, height = size
    picture = Image.fromarray(frame.picture)
    if picture.size != size:
        grows = width % picture.width == 0 and height % picture.height == 0
        way = Image.Resampling.NEAREST if grows else Image.Resampling.BOX
        picture = picture.resize(size, way)
    left, first, second = 10, 5, 23
    bright, dim = _Ink(width, BRIGHT), _Ink(width, DIM)
    bright.write(title, left, first)
    if frame.ended:
        at = width - left - bright.length(frame.ended)
        bright.clear(at - 6, first)  # over the title, if that is long: how it ended matters more
        bright.write(frame.ended, at, first)
    # Each number has a place of its own, and does not move when another grows.
    for share, name, value in (
        (0, "episode", str(frame.episode)),
        (0.32, "step", str(frame.step)),
        (0.58, "return", _number(frame.episode_return)),
    ):
        at = left + share * (width - 2 * left)
        dim.write(name, at, second)
        bright.write(value, at + dim.length(name + " "), second)
    caption = np.array(GROUND) + bright.colour() + dim.colour()
    return np.concatenate([np.asarray(picture), np.rint(caption).astype(np.uint8)])


class _Ink:
    """Words in one colour, in eight shades: smooth enough, and the palette of a GIF stays for the picture."""

    def __init__(self, width: int, colour: tuple[int, int, int]) -> None:
        from PIL import Image, ImageDraw

        self._mask, self._above = Image.new("L", (width, CAPTION_HEIGHT)), np.subtract(colour, GROUND)
        self._draw, self._font = ImageDraw.Draw(self._mask), _font()

    def length(self, text: str) -> float:
        return self._draw.textlength(text, self._font)

    def write(self, text: str, x: float, y: float) -> None:
        self._draw.text((x, y), text, 255, self._font)

    def clear(self, x: float, y: float) -> None:
        self._draw.rectangle((x, y, self._mask.width, y + 17), 0)

    def colour(self) -> np.ndarray:
        """(CAPTION_HEIGHT, width, 3): what to add to the ground."""
        return np.rint(np.asarray(self._mask)[..., None] / 255 * 7) / 7 * self._above


def _number(value: float) -> str:
    """
    >>> _number(7.0), _number(-0.0010000000475), _number(-1e-9), _number(12345.678)
    ('7', '-0.001', '0', '12345.678')
    """
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@contextmanager
def _made_whole(path: Path) -> Generator[Path, None, None]:
    """A name beside `path` to write to, that becomes `path` when all went well, and else disappears."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(13)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise ValueError(f"pictures need Pillow: pip install 'offtrace[video]' ({missing}).") from missing
    return Image


def _ffmpeg() -> str:
    """Where the program is."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as missing:
        raise ValueError(
            f"an MP4 needs ffmpeg: pip install 'offtrace[video]', or write a .gif ({missing})."
        ) from missing


def _check_gif_fps(fps: float) -> None:
    if fps > MOST_GIF_FPS:
        raise ValueError(f"`fps` must be at most {MOST_GIF_FPS} in a GIF; got {fps:g}. Write an .mp4.")


# -- the terminal --------------------------------------------------------------------------------------------


def show(
    frames: Iterable[Frame], console: Console, fps: float, *, title: str = "", actions: Sequence[str] = ""
) -> None:
    """Plays in the terminal, two pixels per character, as large as fits; ends with the frames, or by Ctrl-C.

    Cells are shown one by one, whole; pictures are averaged down. `actions` has a character per action.
    """
    _check_fps(fps)
    live, due = Live(console=console, auto_refresh=False, vertical_overflow="crop"), time.monotonic()
    live.start()
    try:
        for frame in frames:
            live.update(View(frame, title, actions), refresh=True)
            due = max(due, time.monotonic() - 1 / fps) + 1 / fps + (HOLD_SECONDS if frame.ended else 0)
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        with _deaf():
            live.stop()


@contextmanager
def _deaf() -> Generator[None, None, None]:
    """No Ctrl-C for a moment: a second one must not keep the terminal from getting its cursor and output back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_terminal(console: Console) -> None:
    missing = (
        "it is no terminal"
        if not console.is_terminal or console.is_dumb_terminal
        else "it has no colours"
        if console.color_system is None or console.no_color
        else f"its encoding is {console.encoding}"
        if not console.encoding.lower().startswith("utf")
        else ""
    )
    if missing:
        raise ValueError(f"`terminal` needs a terminal with colours and UTF-8; {missing}. Write a .gif or .mp4.")


class View:
    """A frame for rich: the picture, and two lines below it."""

    def __init__(self, frame: Frame, title: str, actions: Sequence[str] = "") -> None:
        self.frame, self.title, self.actions = frame, title, actions

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, frame = options.max_width, self.frame
        rows = console.height - 3  # two lines of text, and the line of the cursor
        if rows > 0:
            yield from _blocks(_pixels(frame, width, rows))
        yield self._fitting(self._status(), width)
        yield self._fitting(self._values(width), width)

    def _status(self) -> Text:
        frame = self.frame
        text = Text(f"{self.title}  ", style="bold")
        pairs = [
            ("episode", str(frame.episode)),
            ("step", str(frame.step)),
            ("return", _number(frame.episode_return)),
        ]
        if frame.action is not None:
            pairs.append(("action", self._label(frame.action)))
        for name, value in pairs:
            text.append(f"{name} ", "not bold dim").append(f"{value}  ", "not bold")
        return text

    def _values(self, width: int) -> Text:
        """A bar per action, from the worst to the best in this state, and its Q if there is room."""
        q, text = self.frame.q, Text()
        if q is None:
            return text.append(self.frame.ended)
        shares = (q - q.min()) / (np.ptp(q) or 1)
        labels = [self._label(action) for action in range(len(q))]
        longest = max(map(len, labels))
        room = min(20, width // len(q)) - longest - 2
        for action, share in enumerate(shares.tolist()):
            style = "bold bright_yellow" if action == self.frame.action else "dim"
            if room < 1:  # too many of them: a column each
                text.append("▁▂▃▄▅▆▇█"[round(7 * share)], style)
                continue
            number = f"{q[action]:8.3g} " if room >= 14 else ""
            length = room - len(number)
            text.append(f"{labels[action]:>{longest}} ", style)
            text.append(_bar(share, length), style).append(f"{number} ", style)
        return text

    def _label(self, action: int) -> str:
        return self.actions[action] if action < len(self.actions) else str(action)

    def _fitting(self, text: Text, width: int) -> Text:
        text.truncate(width, overflow="ellipsis")
        text.no_wrap = True
        return text


def _bar(share: float, length: int) -> str:
    """
    >>> _bar(0.5, 3), _bar(0.0, 3), _bar(1.0, 3)
    ('█▌ ', '▏  ', '███')
    """
    eighths = max(1, round(8 * length * share))
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(length)


def _pixels(frame: Frame, width: int, rows: int) -> np.ndarray:
    """(even, at most `width`, 3) uint8: what fits into so many columns and rows, at two pixels per character."""
    if frame.cells is not None:
        times = min(width // frame.cells.shape[1], 2 * rows // frame.cells.shape[0])
        if times > 0:
            return _even(frame.cells.repeat(times, 0).repeat(times, 1))
    height, wide = frame.picture.shape[:2]
    scale = min(1.0, width / wide, 2 * rows / height)
    if scale < 1:
        Image = _pillow()
        size = max(1, int(wide * scale)), max(1, int(height * scale))
        return _even(np.asarray(Image.fromarray(frame.picture).resize(size, Image.Resampling.BOX)))
    return _even(frame.picture)


def _even(pixels: np.ndarray) -> np.ndarray:
    return np.pad(pixels, [(0, len(pixels) % 2), (0, 0), (0, 0)], mode="edge")


def _blocks(pixels: np.ndarray) -> Iterator[Segment]:
    """Lines of half blocks: the upper pixel is the character, the lower one its background."""
    pairs = np.concatenate([pixels[::2], pixels[1::2]], -1)
    for row in pairs:
        starts = [0, *(np.flatnonzero((row[1:] != row[:-1]).any(-1)) + 1).tolist(), len(row)]
        for start, end in itertools.pairwise(starts):
            pair = row[start].tolist()
            same = pair[:3] == pair[3:]
            yield Segment((" " if same else "▀") * (end - start), _style(*pair))
        yield Segment.line()


@lru_cache(maxsize=1 << 14)
def _style(*pair: int) -> Style:
    return Style(color=Color.from_rgb(*pair[:3]), bgcolor=Color.from_rgb(*pair[3:]))
