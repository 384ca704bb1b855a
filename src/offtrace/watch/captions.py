"""Frames with captions: pictures of one size, and below each the environment and the state of the episode."""

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from offtrace.watch.episodes import Frame

HOLD_SECONDS = 1.0
"""Seconds for which the last frame of an episode stays."""

MIN_WIDTH = 240
"""Width in pixels up to which smaller pictures are enlarged."""

CAPTION_HEIGHT = 44
GROUND = (10, 12, 18)
BRIGHT = (236, 240, 248)
DIM = (139, 149, 171)


def captioned_frames(
    frames: Iterable[Frame], fps: float, title: str, max_width: int
) -> Iterator[tuple[np.ndarray, float]]:
    """Yield (height, width, 3) pictures of one size with captions, and the seconds for which each is shown."""
    size = None
    for frame in frames:
        size = size or _picture_size(frame.picture, max_width)
        hold = HOLD_SECONDS if frame.ended else 0
        yield captioned(frame, title, size), 1 / fps + hold
    if size is None:
        raise ValueError("`frames` must not be empty.")


def _picture_size(picture: np.ndarray, max_width: int) -> tuple[int, int]:
    """Return width and height. Small pictures grow by a whole factor, so that their pixels stay sharp.

    >>> _picture_size(np.zeros((210, 160, 3)), 400), _picture_size(np.zeros((400, 600, 3)), 400)
    ((320, 420), (400, 267))
    """
    height, width = picture.shape[:2]
    if width > max_width:
        return max_width, max(1, round(height * max_width / width))
    factor = math.ceil(MIN_WIDTH / width)
    return width * factor, height * factor


def captioned(frame: Frame, title: str, size: tuple[int, int]) -> np.ndarray:
    """Return the picture at `size` with two lines below it: the environment, and the state of the episode.

    +---------------------------------+
    |             picture             |
    +---------------------------------+
    | pocket/cartpole      terminated |
    | episode 1   step 120   return 9 |
    +---------------------------------+
    """
    Image = pillow()
    width, height = size
    picture = Image.fromarray(frame.picture)
    if picture.size != size:
        is_multiple = width % picture.width == 0 and height % picture.height == 0
        method = Image.Resampling.NEAREST if is_multiple else Image.Resampling.BOX
        picture = picture.resize(size, method)
    left, first, second = 10, 5, 23
    bright = _TextLayer(width, BRIGHT)
    dim = _TextLayer(width, DIM)
    bright.write(title, left, first)
    if frame.ended:
        x = width - left - bright.length(frame.ended)
        bright.clear(x - 6, first)  # over a long title: how the episode ended matters more
        bright.write(frame.ended, x, first)
    # Each number starts at a place of its own, so that it does not move when another one grows.
    for share, name, value in (
        (0, "episode", str(frame.episode)),
        (0.32, "step", str(frame.step)),
        (0.58, "return", return_text(frame.episode_return)),
    ):
        x = left + share * (width - 2 * left)
        dim.write(name, x, second)
        bright.write(value, x + dim.length(name + " "), second)
    caption = np.array(GROUND) + bright.colour() + dim.colour()
    return np.concatenate([np.asarray(picture), np.rint(caption).astype(np.uint8)])


class _TextLayer:
    """Text in one colour and eight shades: smooth enough, and leaves most of a GIF's palette to the picture."""

    def __init__(self, width: int, colour: tuple[int, int, int]) -> None:
        from PIL import Image, ImageDraw

        self._mask = Image.new("L", (width, CAPTION_HEIGHT))
        self._above = np.subtract(colour, GROUND)
        self._draw = ImageDraw.Draw(self._mask)
        self._font = _font()

    def length(self, text: str) -> float:
        return self._draw.textlength(text, self._font)

    def write(self, text: str, x: float, y: float) -> None:
        self._draw.text((x, y), text, 255, self._font)

    def clear(self, x: float, y: float) -> None:
        self._draw.rectangle((x, y, self._mask.width, y + 17), 0)

    def colour(self) -> np.ndarray:
        """Return (CAPTION_HEIGHT, width, 3): the difference from the ground colour."""
        return np.rint(np.asarray(self._mask)[..., None] / 255 * 7) / 7 * self._above


def return_text(value: float) -> str:
    """Return an episode's return with at most three decimals.

    >>> return_text(7.0), return_text(-0.0010000000475), return_text(-1e-9), return_text(12345.678)
    ('7', '-0.001', '0', '12345.678')
    """
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


@lru_cache(maxsize=1)
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(13)


def pillow() -> Any:
    """Import Pillow's `Image`; raise a ValueError that says how to install it if it is missing."""
    try:
        from PIL import Image
    except ImportError as missing:
        raise ValueError(f"pictures need Pillow: pip install 'offtrace[video]' ({missing}).") from missing
    return Image


def check_fps(fps: float) -> None:
    if not 0 < fps < math.inf:
        raise ValueError(f"`fps` must be a positive, finite number of frames per second; got {fps!r}.")
