"""Reads array files from untrusted sources.

Only regular files of limited size are read. The size that a header declares is checked against the
file before memory is allocated for it. Nothing is unpickled.
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
"""The largest file, packed and unpacked."""
MAX_NUMBERS = 1 << 24
"""The most numbers in all arrays of a file; they become float64, whatever they are stored as."""
MAX_HEADER = 10_000
"""The longest header of an array, in characters."""


def regular_file(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> Path:
    """Return the path if it is a regular file of at most `limit` bytes, else raise ValueError.

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
        raise ValueError(f"{path} has {found.st_size:,} bytes; the limit is {limit:,}")
    return Path(path)


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the array of a .npy file."""
    found = regular_file(path)
    try:
        with found.open("rb") as file:
            return _array(file, os.fstat(file.fileno()).st_size, MAX_NUMBERS)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a .npz file by name."""
    try:
        if not zipfile.is_zipfile(regular_file(path)):
            raise ValueError(f"{path} cannot be read: it is not an .npz file")
        with zipfile.ZipFile(path) as file:
            return _members(file, path)
    except (OSError, EOFError, zlib.error, struct.error, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    except (NotImplementedError, RuntimeError) as error:  # an unknown compression; a password
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None


def _members(file: zipfile.ZipFile, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    members = file.infolist()
    total = sum(member.file_size for member in members)
    if total > MAX_BYTES:
        raise ValueError(f"{path} unpacks to {total:,} bytes; the limit is {MAX_BYTES:,}")
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
    return arrays


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200].rstrip(".")


def _array(stream: IO[bytes], size: int, most: int) -> np.ndarray:
    """Read an array of at most `most` numbers from a stream of `size` bytes in the .npy format.

    bytes  0-5       6         7        8 …            …
           \\x93NUMPY  version   minor    header length  header, then the numbers
    """
    start = stream.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY":
        raise ValueError("it is not an .npy file")
    width = {1: 2, 2: 4, 3: 4}.get(start[6])
    if width is None:
        raise ValueError(f"it is an .npy file of the unknown version {start[6]}")
    length = int.from_bytes(stream.read(width), "little")
    if not 0 < length <= min(MAX_HEADER, size):
        raise ValueError(f"its header has {length:,} characters; the limit is {MAX_HEADER:,}")
    dtype, shape, order = _header(stream.read(length), "utf-8" if start[6] == 3 else "latin-1")
    count = math.prod(shape)
    if count > most:
        raise ValueError(f"it declares {count:,} numbers; the limit is {MAX_NUMBERS:,}")
    declared = count * dtype.itemsize
    present = size - 8 - width - length
    if declared != present:
        raise ValueError(f"it declares {declared:,} bytes of numbers and has {present:,}")
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
