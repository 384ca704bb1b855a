"""Frames of an agent at play as an MP4."""

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from offtrace.watch.captions import captioned_frames, check_fps
from offtrace.watch.episodes import Frame
from offtrace.writing import replacing

MAX_WIDTH = 1280
"""Width in pixels above which pictures are reduced."""


def write_mp4(path: Path, frames: Iterable[Frame], fps: float, *, title: str = "") -> None:
    """Write an H.264 video that every browser plays; the file appears at `path` when it is complete."""
    check_fps(fps)
    program = ffmpeg_path()
    with replacing(path) as temporary:
        encoder = None
        try:
            for image, seconds in captioned_frames(frames, fps, title, MAX_WIDTH):
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
    """An ffmpeg process that reads raw frames from a pipe.

    imageio-ffmpeg brings the program but starts it with a fork, which may deadlock with JAX's threads.
    """

    def __init__(self, ffmpeg: str, path: Path, width: int, height: int, fps: float) -> None:
        frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
        video = ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
        # A process group of its own: Ctrl-C is for us to handle.
        self._process = subprocess.Popen(
            [ffmpeg, "-loglevel", "error", "-y", *frames, *video],
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
        """Wait until the video is complete; raise an error if ffmpeg printed anything."""
        try:
            _, printed = self._process.communicate()
        except BrokenPipeError:
            printed = b""
        if self._process.wait() or printed:
            raise RuntimeError(f"ffmpeg failed: {printed.decode(errors='replace').strip() or 'no message'}")

    def end(self) -> None:
        """Kill the process if it still runs, and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):  # it may hold what could not be written
                    pipe.close()


def ffmpeg_path() -> str:
    """Return the path of the ffmpeg program."""
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as missing:
        raise ValueError(
            f"an MP4 needs ffmpeg: pip install 'offtrace[video]', or write a .gif ({missing})."
        ) from missing
