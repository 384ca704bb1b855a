"""Checkpoints on disk: written atomically, and checked against their checksums when read.

    folder/
      lock                            held by the training process; contains its pid
      checkpoints/
        000000400000/                 complete, named by its number
        000000500000/
          arrays.safetensors
          manifest.json               number, record, size and SHA-256 of the arrays, SHA-256 of itself
        .writing-000000600000-4711/   incomplete, or being deleted: never read, removed by the next save

A checkpoint gets its name by one rename once every byte is on disk, and loses it by one rename
before any of it is deleted. So a process can be killed at any moment, and every named checkpoint is
complete.

Sizes and checksums are compared before a file is parsed. They detect accidents, not forgery. A
forged checkpoint is still only data: nothing in it is executed, no link is followed, no file that
it names is opened, and no memory is allocated for arrays whose bytes are missing.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from offtrace.agent import disk

FORMAT = "offtrace checkpoint"
VERSION = 2
ARRAYS = "arrays.safetensors"
MANIFEST = "manifest.json"
WRITING = ".writing-"
"""Prefix of the names of incomplete checkpoints."""
BLOCK = 16 << 20
"""Bytes per write."""


class Checkpoint(NamedTuple):
    """A loaded checkpoint."""

    number: int
    arrays: dict[str, np.ndarray]
    record: dict[str, Any]
    path: Path


class Damaged(ValueError):
    """A checkpoint differs from what was written; the message is one line, whatever the name of the file."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{str(path)!r} {wrong}")


# -- the folder ----------------------------------------------------------------------------------------------


def check_writable(folder: Path) -> None:
    """Make `folder` and its parents and write a file there, so that a run fails before it trains, not after."""
    folder = Path(folder)
    home = _home(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, home) if home.exists() else (folder,):
            with tempfile.TemporaryFile(dir=place) as probe:
                probe.write(b"probe")
    except OSError as error:
        rule = "`folder` must be a directory, or a new name, where files can be written"
        raise _explained(error, rule, folder) from error


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the complete checkpoints, oldest first, by their names."""
    home = _home(folder)
    names = os.listdir(home) if home.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{12}", name))


class FolderLock:
    """A lock on an existing `folder`, so that only one process writes to it.

    The kernel releases it when the process ends, even by kill −9 and even if forked children live
    on.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / "lock"
        self.descriptor: int | None = None

    def __enter__(self) -> "FolderLock":
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 20, 0).strip()
            os.close(descriptor)
            raise ValueError(
                f"`folder` is in use: process {int(pid) if pid.isdigit() else 'of unknown id'} holds "
                f"{str(self.path)!r}. Wait until it ends, or end it, or use another folder."
            ) from None
        self.descriptor = descriptor
        _HELD.add(self)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:  # a forked child has closed it already
            os.close(self.descriptor)
        self.descriptor = None
        _HELD.discard(self)


_HELD: set[FolderLock] = set()
os.register_at_fork(after_in_child=lambda: [lock.__exit__() for lock in list(_HELD)])


def _home(folder: Path) -> Path:
    home = Path(folder) / "checkpoints"
    if home.is_symlink():
        raise ValueError(
            f"{str(home)!r} must not be a link: files outside of `folder` are never touched. Make `folder` the link."
        )
    return home


def _explained(error: OSError, text: str, path: Path) -> OSError:
    """Return an error of the same kind, which its number decides, with an explanation."""
    return OSError(error.errno or errno.EIO, f"{text}: {error.strerror or error}", str(path))


# -- writing -------------------------------------------------------------------------------------------------


def save(
    folder: Path, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any], *, number: int, keep: int = 2
) -> Path:
    """Write checkpoint `number` and return its path; then remove all but the newest `keep`.

    Existing checkpoints with the same number or a higher one:

        damaged                    replaced: the run was resumed from an older one and has reached this point again
        same number and content    left as it is
        otherwise                  a ValueError: a run would be lost, or two runs mixed

    `record` comes back as JSON: tuples as lists, keys as strings. If saving fails, intact
    checkpoints stay intact.
    """
    for name, value, least in (("number", number, 0), ("keep", keep, 1)):
        if not (isinstance(value, int) and least <= value < 10**12):
            raise ValueError(f"`{name}` must be a whole number of at least {least} and under 10¹²; got {value!r}.")
    folder = Path(folder)
    home = _home(folder)
    path = home / f"{number:012d}"
    writing = home / f"{WRITING}{number:012d}-{os.getpid()}"
    try:
        if not home.is_dir():
            home.mkdir(parents=True)
            _sync(folder)
        _remove_incomplete(home)  # before writing, as the disk may be full of them
        writing.mkdir()
        files = {ARRAYS: _write(writing / ARRAYS, _safetensors(arrays))}
        manifest = _manifest(number, record, files)
        _write(writing / MANIFEST, [manifest])
        _sync(writing)
        if _is_saved(path, manifest):
            return path
        writing.rename(path)
        _sync(home)
    except OSError as error:
        raise _explained(error, f"checkpoint {number} was not saved; those before it are intact", path) from error
    else:
        for old in numbers(folder)[:-keep]:
            _discard(home / f"{old:012d}")
    finally:
        _remove_incomplete(home)
    return path


def _is_saved(path: Path, manifest: bytes) -> bool:
    """Return True if the checkpoint at `path` exists with the same content; discard damaged ones from there on."""
    for number in numbers(path.parent.parent):
        other = path.with_name(f"{number:012d}")
        if other.name < path.name:
            continue
        try:
            _read(other)
        except Damaged:
            _discard(other)
            continue
        if other == path and (path / MANIFEST).read_bytes() == manifest:
            return True
        raise ValueError(
            f"`number` must be above that of every intact checkpoint; got {int(path.name)}, and {str(other)!r} holds "
            "something else. Resume from that one, or remove it, or use another folder."
        )
    return False


def _safetensors(arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """Return the file in pieces. The library's own writer ignores strides, and its errors have no number."""
    entries = {}
    end = 0
    for name, array in arrays.items():
        if not (isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "buif" and array.itemsize <= 8):
            raise TypeError(f"`arrays[{name!r}]` must be a NumPy array of bools or numbers; got {array!r:.60}.")
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError(f"`arrays` must have strings as names, other than '__metadata__'; got {name!r}.")
        dtype = "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        begin = end
        end += array.nbytes
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (begin, end)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for array in arrays.values():  # one by one, because arrays that are not contiguous are copied
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _manifest(number: int, record: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    content = {"format": FORMAT, "version": VERSION, "number": number, "record": dict(record), "files": files}
    try:
        return disk.sealed(content)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`record` must hold only JSON values: {error}.") from error


def _write(path: Path, pieces: Iterable[Any]) -> dict[str, Any]:
    """Write a new file to disk; return its size and checksum."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for view in map(memoryview, pieces):
            size += len(view)
            for start in range(0, len(view), BLOCK):
                file.write(view[start : start + BLOCK])
                digest.update(view[start : start + BLOCK])
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "sha256": digest.hexdigest()}


def _sync(folder: Path) -> None:
    """Write the names in a directory to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: Path) -> None:
    """Take a checkpoint's name away; `_remove_incomplete` deletes it."""
    path.rename(path.with_name(f"{WRITING}{path.name}-out"))


def _remove_incomplete(home: Path) -> None:
    """Remove incomplete checkpoints; the next save tries again if something cannot be removed."""
    for path in home.glob(f"{WRITING}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# -- reading -------------------------------------------------------------------------------------------------


def load(
    folder: Path,
    *,
    number: int | None = None,
    warn: Callable[[str], None] | None = None,
    arrays: bool = True,
) -> Checkpoint:
    """Return the newest intact checkpoint, or exactly the one with this `number`.

    `warn` gets a line for each damaged checkpoint that was skipped; by default it is a Python
    warning. With `arrays=False` only the record is read, and only its checksum compared.
    """
    home = _home(folder)
    found = numbers(folder)
    damages = []
    wanted = [each for each in reversed(found) if number in (None, each)]
    if not wanted:
        what = "no checkpoint" if number is None else f"no checkpoint {number}, but these: {found}"
        raise FileNotFoundError(errno.ENOENT, f"`folder` has {what}", str(home))
    for each in wanted:
        try:
            checkpoint = _read(home / f"{each:012d}", arrays=arrays)
        except Damaged as damage:
            damages.append(str(damage))
            continue
        for damage in damages:
            line = f"{damage}; checkpoint {each} is used instead."
            if warn is None:
                warnings.warn(line, stacklevel=2)
            else:
                warn(line)
        return checkpoint
    if numbers(folder) != found:  # a training process has removed them meanwhile
        return load(folder, number=number, warn=warn, arrays=arrays)
    raise Damaged(home, f"has no intact checkpoint to load: {'; '.join(damages)}.")


def _read(path: Path, *, arrays: bool = True) -> Checkpoint:
    """Return a checkpoint; everything is checked before the arrays are read into memory."""
    place = path
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise Damaged(path, "is a link, or not a directory")
        for place in path.iterdir():
            if not stat.S_ISREG(place.lstat().st_mode):
                raise Damaged(place, "is a link, or not a plain file")
        place = path / MANIFEST
        content = _manifest_at(place)
        if content["format"] == FORMAT and content["version"] != VERSION:
            raise ValueError(  # not `Damaged`: it must be neither skipped nor replaced
                f"{str(place)!r} must have version {VERSION} of the format; got {content['version']!r}. Use a "
                "version of offtrace that reads it, or another folder."
            )
        if (content["format"], content["number"], [*content["files"]]) != (FORMAT, int(path.name), [ARRAYS]):
            raise Damaged(place, f"is not the manifest of this checkpoint, or names another file than {ARRAYS}")
        record = content["record"] | {}
        file = content["files"][ARRAYS]
        place = path / ARRAYS
        if (size := place.stat().st_size) != file["size"]:
            raise Damaged(place, f"has {size} bytes, but its manifest says {file['size']}")
        if not arrays:
            return Checkpoint(int(path.name), {}, record, path)
        with open(place, "rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                raise Damaged(place, "does not have the checksum in its manifest")
        with safe_open(place, framework="np") as tensors:  # raises if the file is too short for its shapes
            loaded = {name: tensors.get_tensor(name) for name in tensors.offset_keys()}
        return Checkpoint(int(path.name), loaded, record, path)
    except (TypeError, KeyError, SafetensorError) as error:
        raise Damaged(place, f"has unexpected content: {error!r}") from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        raise Damaged(place, f"cannot be read: {error.strerror}") from error


def _manifest_at(path: Path) -> Any:
    """Return a manifest whose checksum is right."""
    try:
        return disk.unsealed(disk.read(path))
    except ValueError as error:
        raise Damaged(path, str(error)) from error
