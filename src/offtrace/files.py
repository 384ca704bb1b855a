"""Files of strangers, read as data: regular ones of a sensible size, and arrays that are as large as they say.

What a header declares is checked against what is there before memory is taken for it. Nothing is unpickled.
"""

import ast
import math
import os
import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

MAX_BYTES = 128 << 20
"""Of a file, and of all that is packed in it."""
MAX_NUMBERS = 1 << 24
"""In all arrays of a file: whatever they are stored as, they are computed with as float64."""
MAX_HEADER = 10_000
"""Characters of the header of an array."""


def regular_file(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> Path:
    """The path, if it is a regular file of at most `limit` bytes; a ValueError says what is wrong otherwise.

    >>> regular_file("/")
    Traceback (most recent call last):
    ValueError: / is a folder, not a file
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise ValueError(f"{path} is {what}, not a file")
    if found.st_size > limit:
        raise ValueError(f"{path} has {found.st_size:,} bytes; at most {limit:,} are read")
    return Path(path)


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy file."""
    found = regular_file(path)
    try:
        with found.open("rb") as file:
            return _array(file, os.fstat(file.fileno()).st_size, MAX_NUMBERS)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a .npz file by name."""
    arrays: dict[str, np.ndarray] = {}
    try:
        if not zipfile.is_zipfile(regular_file(path)):
            raise ValueError(f"{path} cannot be read: it is no .npz")
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            total = sum(member.file_size for member in members)
            if total > MAX_BYTES:
                raise ValueError(f"{path} unpacks to {total:,} bytes; at most {MAX_BYTES:,} are read")
            left = MAX_NUMBERS
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"{path} has two arrays {name!r}")
                with file.open(member) as stream:
                    try:
                        arrays[name] = _array(stream, member.file_size, left)
                    except ValueError as error:
                        raise ValueError(f"{name!r} in {path}: {error}") from None
                left -= arrays[name].size
    except (OSError, EOFError, zlib.error, struct.error, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    except (NotImplementedError, RuntimeError) as error:  # a compression that is not known; a password
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    return arrays


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200].rstrip(".")


def _array(stream: IO[bytes], size: int, most: int) -> np.ndarray:
    """An array of at most `most` numbers from a stream of `size` bytes in the format .npy."""
    start = stream.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY":
        raise ValueError("it is no .npy")
    width = {1: 2, 2: 4, 3: 4}.get(start[6])
    if width is None:
        raise ValueError(f"it is a .npy of version {start[6]}, which is not known")
    length = int.from_bytes(stream.read(width), "little")
    if not 0 < length <= min(MAX_HEADER, size):
        raise ValueError(f"its header has {length:,} characters")
    dtype, shape, order = _header(stream.read(length), "utf-8" if start[6] == 3 else "latin-1")
    count = math.prod(shape)
    if count > most:
        raise ValueError(f"it declares {count:,} numbers; at most {MAX_NUMBERS:,} are read")
    declared, there = count * dtype.itemsize, size - 8 - width - length
    if declared != there:
        raise ValueError(f"it declares {declared:,} bytes of numbers and has {there:,}")
    data = stream.read(declared)
    if len(data) != declared:
        raise ValueError(f"it declares {declared:,} bytes of numbers and has {len(data):,}")
    return np.ndarray(shape, dtype, data, order=order)


def _header(text: bytes, encoding: str) -> tuple[np.dtype, tuple[int, ...], Any]:
    try:
        header = ast.literal_eval(text.decode(encoding).strip())
        descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
        dtype = np.dtype(descr) if isinstance(descr, str) else None
    except (ValueError, TypeError, SyntaxError, LookupError, MemoryError, RecursionError):
        raise ValueError("its header is broken") from None
    if dtype is None or dtype.kind not in "fiub":
        raise ValueError(f"it must hold numbers; got dtype {str(descr)[:40]}")
    sizes = isinstance(shape, tuple) and len(shape) <= 32 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not sizes or type(fortran) is not bool:
        raise ValueError("its header is broken")
    return dtype, shape, "F" if fortran else "C"
