"""Reading and writing the small files of a run, without touching anything outside of its folder.

A folder may come from somebody else, or from a failing disk. A link in place of a file could point
to any file of the user, a FIFO would never end, and a huge file would fill the memory: each is an
error.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offtrace.writing import write_whole

LARGEST = 256 << 20
"""Bytes of a text file; progress.jsonl of a million ticks is smaller."""


def read(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a regular file of at most `largest` bytes."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{str(path)!r} must be a regular file; it is a link.") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{str(path)!r} must be a regular file; it is a folder, a pipe or a device.")
        if status.st_size > largest:
            raise ValueError(f"{str(path)!r} must have at most {largest:,} bytes; it has {status.st_size:,}.")
        return file.read(largest)


def write(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file of a run atomically. A link at `path` is replaced, not followed."""
    write_whole(path, pieces, sync=True)


def write_json(path: Path, value: Any) -> None:
    write(path, [json.dumps(value, indent=2, ensure_ascii=False).encode()])


# -- JSON with a checksum ------------------------------------------------------------------------------------


def sealed(content: dict[str, Any]) -> bytes:
    """Return an object as JSON whose last line is a checksum of all bytes before it."""
    text = json.dumps(content, indent=1).removesuffix("\n}").encode()
    return text + seal(text)


def seal(text: bytes) -> bytes:
    """Return the last line of sealed JSON that begins with `text`."""
    return f',\n "sha256": "{hashlib.sha256(text).hexdigest()}"\n}}\n'.encode()


def unsealed(data: bytes) -> Any:
    """Return the object in sealed JSON; the checksum is compared before parsing."""
    text = data[: -len(seal(b""))]
    if data != text + seal(text):
        raise ValueError("does not have the checksum in its last line")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error!r}") from error


# -- lines ---------------------------------------------------------------------------------------------------


def append(path: Path, line: bytes) -> None:
    """Append a line in one unbuffered write, so that readers see it at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb", buffering=0) as file:
        written = file.write(line)
    if written != len(line):
        raise OSError(errno.ENOSPC, "a line was written only in part; is the disk full?", str(path))
