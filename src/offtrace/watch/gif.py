"""Frames of an agent at play as a GIF."""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.watch.captions import captioned_frames, check_fps, pillow
from offtrace.watch.episodes import Frame
from offtrace.writing import replacing

MAX_WIDTH = 400
"""Width in pixels above which pictures are reduced."""
MAX_FPS = 50
"""Browsers slow down a GIF whose frames take less than 0.02 s."""


def write_gif(path: Path, frames: Iterable[Frame], fps: float, *, title: str = "") -> None:
    """Write a GIF that repeats; the file appears at `path` when it is complete.

    All frames share one palette, which is exact up to 255 colours, and of each frame only the pixels that changed are
    stored.
    """
    check_fps(fps)
    check_gif_fps(fps)
    Image = pillow()
    packed: list[bytes] = []
    durations: list[int] = []
    tally: Counter[int] = Counter()
    shape = (0, 0)
    # A GIF counts in hundredths of a second. Start and end of a frame are rounded, so that errors do not add up.
    clock = 0.0
    for image, seconds in captioned_frames(frames, fps, title, MAX_WIDTH):
        codes = image.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
        colours, counts = np.unique(codes, return_counts=True)
        tally.update(dict(zip(colours.tolist(), counts.tolist(), strict=True)))
        packed.append(zlib.compress(codes.tobytes(), 1))  # the palette is known only at the end
        shape = codes.shape
        durations.append(10 * (round(clock + 100 * seconds) - round(clock)))
        clock += 100 * seconds
    palette, colours, indices = _palette(Image, tally)

    def images() -> Iterator[Any]:
        for data in packed:
            codes = np.frombuffer(zlib.decompress(data), np.uint32).reshape(shape)
            image = Image.frombytes("P", shape[::-1], indices[np.searchsorted(colours, codes)].tobytes())
            image.putpalette(palette)
            yield image

    unchanged = len(palette) // 3 - 1
    with replacing(path) as temporary:
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
    """Return the palette, all colours in ascending order, and the palette index of each colour.

    The last entry of the palette is a colour that no frame has: it marks unchanged pixels.
    """
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
        indices = np.minimum(np.asarray(nearest)[0], len(entries) - 1).astype(np.uint8)
        rgb = entries
    else:
        indices = np.arange(len(colours), dtype=np.uint8)
    used = {tuple(entry) for entry in rgb.tolist()}
    free = next(grey for grey in range(256) if (grey, grey, grey) not in used)
    return rgb.tobytes() + bytes([free] * 3), colours, indices


def check_gif_fps(fps: float) -> None:
    if fps > MAX_FPS:
        raise ValueError(f"`fps` must be at most {MAX_FPS} in a GIF; got {fps:g}. Write an .mp4.")
