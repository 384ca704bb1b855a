"""Frames of an agent that plays, in the terminal: two pixels per character, and what it thinks of its actions."""

import itertools
import signal
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from offtrace.environments.episodes import Frame
from offtrace.verbs.films import HOLD_SECONDS, check_fps, number, pillow


def show(
    frames: Iterable[Frame], console: Console, fps: float, *, title: str = "", actions: Sequence[str] = ""
) -> None:
    """Plays in the terminal, two pixels per character, as large as fits; ends with the frames, or by Ctrl-C.

    Cells are shown one by one, whole; pictures are averaged down. `actions` has a character per action.
    """
    check_fps(fps)
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
            ("return", number(frame.episode_return)),
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
        Image = pillow()
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


def check_terminal(console: Console) -> None:
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
