"""Frames of an agent at play in the terminal: two pixels per character, and the Q-values of its actions."""

import itertools
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from offtrace.watch.captions import HOLD_SECONDS, check_fps, pillow, return_text
from offtrace.watch.episodes import Frame


def show(frames: Iterable[Frame], console: Console, fps: float, *, title: str = "") -> None:
    """Show frames in the terminal, as large as fits, until they end or Ctrl-C is pressed.

    Grid environments are shown cell by cell; other pictures are reduced to what fits, Atari games as 4:3.
    """
    check_fps(fps)
    live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
    due = time.monotonic()
    live.start()
    try:
        for frame in frames:
            live.update(View(frame, title), refresh=True)
            due = max(due, time.monotonic() - 1 / fps) + 1 / fps + (HOLD_SECONDS if frame.ended else 0)
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        pass
    finally:
        with _ctrl_c_ignored():
            live.stop()


@contextmanager
def _ctrl_c_ignored() -> Generator[None, None, None]:
    """Ignore Ctrl-C: a second one must not keep the terminal from getting its cursor and output back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class View:
    """A frame as rich renders it: the picture, and two lines of text below it."""

    def __init__(self, frame: Frame, title: str) -> None:
        self.frame = frame
        self.title = title

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        rows = console.height - 3  # two lines of text, and the line of the cursor
        if rows > 0:
            yield from _blocks(_pixels(self.frame, width, rows))
        yield self._fitting(self._status(), width)
        yield self._fitting(self._values(width), width)

    def _status(self) -> Text:
        frame = self.frame
        text = Text(f"{self.title}  ", style="bold")
        pairs = [
            ("episode", str(frame.episode)),
            ("step", str(frame.step)),
            ("return", return_text(frame.episode_return)),
        ]
        if frame.action is not None:
            pairs.append(("action", self._label(frame.action)))
        for name, value in pairs:
            text.append(f"{name} ", "not bold dim").append(f"{value}  ", "not bold")
        return text

    def _values(self, width: int) -> Text:
        """Return a bar per action, from the worst to the best in this state, with its Q-value if there is space."""
        q = self.frame.q
        text = Text()
        if q is None:
            return text.append(self.frame.ended)
        shares = (q - q.min()) / (np.ptp(q) or 1)
        labels = [self._label(action) for action in range(len(q))]
        longest = max(map(len, labels))
        space = min(20, width // len(q)) - longest - 2
        for action, share in enumerate(shares.tolist()):
            style = "bold bright_yellow" if action == self.frame.action else "dim"
            if space < 1:  # too many actions for bars: one character each
                text.append("▁▂▃▄▅▆▇█"[round(7 * share)], style)
                continue
            number = f"{q[action]:8.3g} " if space >= 14 else ""
            length = space - len(number)
            text.append(f"{labels[action]:>{longest}} ", style)
            text.append(_bar(share, length), style).append(f"{number} ", style)
        return text

    def _label(self, action: int) -> str:
        names = self.frame.action_names
        return names[action] if action < len(names) else str(action)

    def _fitting(self, text: Text, width: int) -> Text:
        text.truncate(width, overflow="ellipsis")
        text.no_wrap = True
        return text


def _bar(share: float, length: int) -> str:
    """Return a bar of `length` characters in steps of an eighth; it is never empty.

    >>> _bar(0.5, 3), _bar(0.0, 3), _bar(1.0, 3)
    ('█▌ ', '▏  ', '███')
    """
    eighths = max(1, round(8 * length * share))
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(length)


def _pixels(frame: Frame, width: int, rows: int) -> np.ndarray:
    """Return (even, at most `width`, 3) uint8: the picture at the size that fits `width` columns and `rows` rows.

    A character is one pixel wide and two pixels high.
    """
    if frame.cells is not None:
        factor = min(width // frame.cells.shape[1], 2 * rows // frame.cells.shape[0])
        if factor > 0:
            return _even(frame.cells.repeat(factor, 0).repeat(factor, 1))
    picture_height, picture_width = frame.picture.shape[:2]
    shown_width = picture_width * frame.pixel_width
    scale = min(1.0, width / shown_width, 2 * rows / picture_height)
    size = max(1, int(shown_width * scale)), max(1, int(picture_height * scale))
    if size == (picture_width, picture_height):
        return _even(frame.picture)
    return _even(_resized(frame.picture, size))


def _resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return the picture at `size`, width and height, with the mean light of each area.

    The values of pixels are about the square root of their light. Averages of the values would make small bright
    things, such as a ball, too dark to see.
    """
    Image = pillow()
    light = np.square(picture, dtype=np.float32)
    channels = [Image.fromarray(light[..., channel]).resize(size, Image.Resampling.BOX) for channel in range(3)]
    return np.rint(np.sqrt(np.stack([np.asarray(channel) for channel in channels], -1))).astype(np.uint8)


def _even(pixels: np.ndarray) -> np.ndarray:
    """Repeat the last row if the number of rows is odd."""
    return np.pad(pixels, [(0, len(pixels) % 2), (0, 0), (0, 0)], mode="edge")


def _blocks(pixels: np.ndarray) -> Iterator[Segment]:
    """Yield lines of half blocks: the colour of ▀ is the upper pixel, its background the lower one.

    pixels             characters
    a a b              ▀ ▀ ▀     coloured a on c, a on c, b on c:
    c c c                        equal neighbours are one segment
    """
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


def check_terminal(console: Console) -> None:
    """Raise a ValueError if the console cannot show coloured half blocks."""
    if not console.is_terminal or console.is_dumb_terminal:
        reason = "this is not a terminal"
    elif console.color_system is None or console.no_color:
        reason = "this one has no colours"
    elif not console.encoding.lower().startswith("utf"):
        reason = f"the encoding of this one is {console.encoding}"
    else:
        return
    raise ValueError(
        f"an agent is shown in a terminal with colours and UTF-8; {reason}. Write a .gif or .mp4 instead (`output`)."
    )
