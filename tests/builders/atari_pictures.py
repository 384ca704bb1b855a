"""What an Atari agent must see, from the definitions: grey, and the mean of areas as OpenCV rounds it."""

import math
from functools import lru_cache

import numpy as np

GREY = (0.2989, 0.587, 0.114)
"""Shares of red, green and blue in the grey of ALE's palette."""


def grey(picture: np.ndarray) -> np.ndarray:
    """Return (H, W) uint8 of (H, W, 3)."""
    return np.rint(picture @ np.array(GREY)).astype(np.uint8)


def area_mean(picture: np.ndarray, size: tuple[int, int] = (84, 84)) -> np.ndarray:
    """Return the picture at `size`, width and height: the mean of the area that each pixel covers.

    As `cv2.resize(…, interpolation=cv2.INTER_AREA)` computes it, in float32: along each row, then down the columns,
    then rounded. The order matters where the mean is halfway between two numbers, as it often is.
    """
    width, height = size
    columns, shares = _covered(picture.shape[1], width)
    values = picture.astype(np.float32)
    rows = sum((values[:, columns[k]] * shares[k] for k in range(len(columns))), np.float32(0))
    lines, shares = _covered(picture.shape[0], height)
    mean = sum((rows[lines[k]] * shares[k][:, None] for k in range(len(lines))), np.float32(0))
    return np.rint(mean).astype(np.uint8)


@lru_cache
def _covered(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels that each new pixel covers, and their shares, both (most, target); the rest have share 0."""
    scale = source / target
    most = math.ceil(scale) + 1
    pixels = np.zeros((most, target), int)
    shares = np.zeros((most, target), np.float32)
    for i in range(target):
        start = i * scale
        end = start + scale
        covered = [p for p in range(math.floor(start), min(math.ceil(end), source)) if _overlap(p, start, end) > 1e-3]
        for k, pixel in enumerate(covered):
            pixels[k, i] = pixel
            shares[k, i] = _overlap(pixel, start, end) / scale
    used = shares.any(1)
    return pixels[used], shares[used]


def _overlap(pixel: int, start: float, end: float) -> float:
    return min(pixel + 1, end) - max(pixel, start)
