"""Frames of an agent that plays as a film: a GIF or an MP4."""

import math
import os
import subprocess
import zlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.environments.episodes import Frame

HOLD_SECONDS = 1.0
"""How long the last frame of an episode stays."""

NARROWEST, WIDEST_GIF, WIDEST_MP4 = 240, 400, 1280
"""Of pictures on film, in pixels: smaller ones are enlarged, larger ones reduced."""

MOST_GIF_FPS = 50
"""Browsers slow down a GIF whose frames take less than 0.02 s."""

CAPTION_HEIGHT = 44
GROUND, BRIGHT, DIM = (10, 12, 18), (236, 240, 248), (139, 149, 171)


def write_gif(path: Path, frames: Iterable[Frame], fps: float, *, title: str = "") -> None:
    """A GIF that repeats; appears at `path` when it is complete, or not at all.

    One palette serves all frames, without loss while the film has no more than 255 colours, and of each frame only
    the pixels that changed are stored.
    """
    check_fps(fps)
    check_gif_fps(fps)
    Image = pillow()
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
    check_fps(fps)
    program = ffmpeg_path()
    with _made_whole(path) as temporary:
        encoder = None
        try:
            for image, seconds in _film(frames, fps, title, WIDEST_MP4):
                even = np.pad(image, [(0, side % 2) for side in image.shape[:2]] + [(0, 0)], mode="edge")
                if encoder is None:
                    encoder = _Encoder(program, temporary, even.shape[1], even.shape[0], fps)
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
    Image = pillow()
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
        (0.58, "return", number(frame.episode_return)),
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


def number(value: float) -> str:
    """
    >>> number(7.0), number(-0.0010000000475), number(-1e-9), number(12345.678)
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


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise ValueError(f"pictures need Pillow: pip install 'offtrace[video]' ({missing}).") from missing
    return Image


def ffmpeg_path() -> str:
    """Where the program is."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as missing:
        raise ValueError(
            f"an MP4 needs ffmpeg: pip install 'offtrace[video]', or write a .gif ({missing})."
        ) from missing


def check_gif_fps(fps: float) -> None:
    if fps > MOST_GIF_FPS:
        raise ValueError(f"`fps` must be at most {MOST_GIF_FPS} in a GIF; got {fps:g}. Write an .mp4.")


def check_fps(fps: float) -> None:
    if not 0 < fps < math.inf:
        raise ValueError(f"`fps` must be a number of frames per second above 0; got {fps!r}.")
