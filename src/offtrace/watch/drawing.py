"""Drawing of shapes and boards of tiles, in flat colours on a dark ground.

Coordinates are pixels of the finished picture, y downwards.
"""

import math
from functools import lru_cache

import numpy as np

Colour = tuple[int, int, int]
Point = tuple[float, float]

SCALE = 3
"""Factor by which drawings are larger before they are averaged down."""

MARGIN = 6
"""Pixels around a board."""
GAP = 1
"""Pixels around each cell of a board."""

NIGHT: Colour = (18, 21, 30)
CELL: Colour = (29, 34, 47)
LINE: Colour = (58, 66, 87)
WHITE: Colour = (236, 240, 248)
GREY: Colour = (139, 149, 171)
BLUE: Colour = (86, 166, 255)
YELLOW: Colour = (255, 209, 92)
ORANGE: Colour = (255, 152, 82)
RED: Colour = (242, 92, 102)
PINK: Colour = (236, 128, 196)
PURPLE: Colour = (166, 130, 255)
GREEN: Colour = (98, 211, 139)
TEAL: Colour = (70, 200, 208)
BROWN: Colour = (176, 120, 72)


class Drawing:
    """A Pillow drawing at `SCALE` times the size; coordinates are pixels of the finished picture, y downwards."""

    def __init__(self, width: int, height: int, ground: np.ndarray | None = None) -> None:
        try:
            from PIL import Image, ImageDraw
        except ImportError as missing:
            raise ImportError(f"pictures need Pillow: pip install 'offtrace[video]' ({missing})") from missing
        if ground is None:
            self._image = Image.new("RGB", (width * SCALE, height * SCALE), NIGHT)
        else:
            self._image = Image.fromarray(ground.repeat(SCALE, 0).repeat(SCALE, 1))
        self._draw = ImageDraw.Draw(self._image)

    def shape(self, points: list[Point], colour: Colour) -> None:
        self._draw.polygon(_large(points), fill=colour)

    def line(self, points: list[Point], colour: Colour, width: float) -> None:
        self._draw.line(_large(points), fill=colour, width=round(width * SCALE), joint="curve")

    def box(self, low: Point, high: Point, colour: Colour, radius: float = 0) -> None:
        # Pillow includes the last pixel; a box ends before it.
        (left, top), (right, bottom) = _large([low, high])
        self._draw.rounded_rectangle((left, top, right - 1, bottom - 1), radius * SCALE, fill=colour)

    def disc(self, centre: Point, radius: float, colour: Colour) -> None:
        x, y = _large([centre])[0]
        r = radius * SCALE
        self._draw.ellipse((x - r, y - r, x + r - 1, y + r - 1), fill=colour)

    def rod(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a line with round ends."""
        length = math.hypot(end[0] - start[0], end[1] - start[1])
        across = ((end[1] - start[1]) / length * width / 2, (start[0] - end[0]) / length * width / 2)
        sides = [(1, start), (1, end), (-1, end), (-1, start)]
        self.shape([(x + sign * across[0], y + sign * across[1]) for sign, (x, y) in sides], colour)
        for end_ in (start, end):
            self.disc(end_, width / 2, colour)

    def flag(self, foot: Point, height: float, colour: Colour) -> None:
        x, y = foot
        self.line([(x, y), (x, y - height)], WHITE, max(1.5, 0.05 * height))
        self.shape([(x, y - height), (x + 0.55 * height, y - 0.78 * height), (x, y - 0.55 * height)], colour)

    def finished(self) -> np.ndarray:
        return np.asarray(self._image.reduce(SCALE))


def _large(points: list[Point]) -> list[Point]:
    return [(x * SCALE, y * SCALE) for x, y in points]


# -- boards --------------------------------------------------------------------------------------------------


def board(colours: np.ndarray) -> np.ndarray:
    """Draw cells as tiles with round corners and thin gaps; the longer side has about 320 pixels.

    >>> board(np.zeros((10, 10, 3), np.uint8)).shape
    (332, 332, 3)
    """
    rows, columns, _ = colours.shape
    side = cell_side(rows, columns)
    tile = _tile(side)[None, :, None, :, None]
    mixed = colours[:, None, :, None, :] * tile + np.array(NIGHT) * (1 - tile)
    inner = mixed.reshape(rows * side, columns * side, 3)
    whole = np.full((rows * side + 2 * MARGIN, columns * side + 2 * MARGIN, 3), NIGHT, np.uint8)
    whole[MARGIN:-MARGIN, MARGIN:-MARGIN] = np.rint(inner)
    return whole


@lru_cache(maxsize=8)
def _tile(side: int) -> np.ndarray:
    """Return the share of each pixel that a tile covers, (side, side) in [0, 1]."""
    fine = 4
    radius = max(1.0, 0.14 * side)
    at = abs((np.arange(side * fine) + 0.5) / fine - side / 2)
    beyond = np.maximum(at - (side / 2 - GAP - radius), 0)
    covered = np.hypot(beyond[:, None], beyond[None, :]) <= radius
    return covered.reshape(side, fine, side, fine).mean((1, 3))


def cell_side(rows: int, columns: int) -> int:
    """Return the side of a cell in pixels."""
    return max(4, min(32, 380 // max(rows, columns)))


def on_board(colours: np.ndarray) -> Drawing:
    """Return a drawing with a board of these cells as its ground."""
    ground = board(colours)
    return Drawing(ground.shape[1], ground.shape[0], ground)


def cell_corner(rows: int, columns: int, row: int, column: int) -> Point:
    """Return the upper left corner of a cell."""
    side = cell_side(rows, columns)
    return MARGIN + side * column, MARGIN + side * row


def cell_centre(rows: int, columns: int, row: int, column: int) -> Point:
    """Return the centre of a cell."""
    left, top = cell_corner(rows, columns, row, column)
    return left + cell_side(rows, columns) / 2, top + cell_side(rows, columns) / 2
