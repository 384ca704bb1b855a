"""Checkpoints on disk: whole or not there at all, and refused if they are not as they were written.

    folder/
      lock                            held by the process that trains, with its pid inside
      checkpoints/
        000000400000/                 finished, named by its number
        000000500000/
          arrays.safetensors
          manifest.json               number, record, size and SHA-256 of the arrays, SHA-256 of itself
        .writing-000000600000-4711/   not finished, or on its way out: never read, removed by the next save

A checkpoint gets its name when every byte of it is on the disk, by one rename; it loses its name, by one rename, too,
before any of it is deleted. So a process can be killed at any moment, and what has a name is complete.

Sizes and checksums are compared before a file is parsed. They find accidents, not forgers; but a forged checkpoint,
too, is only data: nothing in it is run, no link is followed, no name in it is opened, and no memory is taken for what
it declares but does not have.
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

FORMAT, VERSION = "offtrace checkpoint", 2
ARRAYS, MANIFEST, WRITING = "arrays.safetensors", "manifest.json", ".writing-"
BLOCK = 16 << 20


class Checkpoint(NamedTuple):
    number: int
    arrays: dict[str, np.ndarray]
    record: dict[str, Any]
    path: Path


class Damaged(ValueError):
    """A checkpoint is not as it was written: the file, on one line whatever its name, and what is wrong with it."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{str(path)!r} {wrong}")


# -- the folder ----------------------------------------------------------------------------------------------


def writable(folder: Path) -> None:
    """Make `folder` and its parents, and write a file there: a run should fail before it trains, not after."""
    folder, home = Path(folder), _home(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder, home) if home.exists() else (folder,):
            with tempfile.TemporaryFile(dir=place) as probe:
                probe.write(b"probe")
    except OSError as error:
        rule = "`folder` must be a directory, or a new name, where files can be written"
        raise _explained(error, rule, folder) from error


def numbers(folder: Path) -> list[int]:
    """Of the finished checkpoints, oldest first, by their names alone."""
    home = _home(folder)
    names = os.listdir(home) if home.is_dir() else []
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{12}", name))


class Lock:
    """One process at a time writes to `folder`, which must be there.

    The kernel lets go of it when the holder ends, by kill −9 too, even if forked children of it live on.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / "lock"
        self.descriptor: int | None = None

    def __enter__(self) -> "Lock":
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
        if self.descriptor is not None:  # a forked child has given it up before
            os.close(self.descriptor)
        self.descriptor = None
        _HELD.discard(self)


_HELD: set[Lock] = set()
os.register_at_fork(after_in_child=lambda: [lock.__exit__() for lock in list(_HELD)])


def _home(folder: Path) -> Path:
    home = Path(folder) / "checkpoints"
    if home.is_symlink():
        raise ValueError(f"{str(home)!r} must not be a link: nothing outside of `folder` is touched. Link `folder`.")
    return home


def _explained(error: OSError, text: str, path: Path) -> OSError:
    """Of the same kind, which its number decides."""
    return OSError(error.errno or errno.EIO, f"{text}: {error.strerror or error}", str(path))


# -- writing -------------------------------------------------------------------------------------------------


def save(
    folder: Path, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any], *, number: int, keep: int = 2
) -> Path:
    """Write checkpoint `number` and return its path; then remove all but the newest `keep`.

    From then on `load` takes it. Those of the same number or a higher one

        damaged                      are replaced: `load` fell back behind them, and the run has come here again
        the same number and content  is left as it is
        intact otherwise             are refused, as a run would be lost, or two mixed up: a ValueError

    `record` comes back as JSON has it: tuples as lists, keys as strings. An error leaves what was intact as it was.
    """
    folder, home = Path(folder), _home(folder)
    for name, value, least in (("number", number, 0), ("keep", keep, 1)):
        if not (isinstance(value, int) and least <= value < 10**12):
            raise ValueError(f"`{name}` must be a whole number from {least} and under 10¹²; got {value!r}.")
    path, writing = home / f"{number:012d}", home / f"{WRITING}{number:012d}-{os.getpid()}"
    try:
        if not home.is_dir():
            home.mkdir(parents=True)
            _sync(folder)
        _sweep(home)  # first, too: the disk may be full of them
        writing.mkdir()
        files = {ARRAYS: _write(writing / ARRAYS, _safetensors(arrays))}
        manifest = _manifest(number, record, files)
        _write(writing / MANIFEST, [manifest])
        _sync(writing)
        for other in [home / f"{other:012d}" for other in numbers(folder) if other >= number]:
            try:
                _read(other)
            except Damaged:
                _set_aside(other)
                continue
            if other == path and (path / MANIFEST).read_bytes() == manifest:
                return path
            raise ValueError(
                f"`number` must be above that of every intact checkpoint; got {number}, and {str(other)!r} holds "
                "something else. Resume from that one, or remove it, or use another folder."
            )
        writing.rename(path)
        _sync(home)
    except OSError as error:
        raise _explained(error, f"checkpoint {number} was not saved; those before it are intact", path) from error
    else:
        for old in numbers(folder)[:-keep]:
            _set_aside(home / f"{old:012d}")
    finally:
        _sweep(home)
    return path


def _safetensors(arrays: Mapping[str, np.ndarray]) -> Iterator[Any]:
    """The file, in pieces. The library's own writer ignores strides, and its errors have no number."""
    entries, end = {}, 0
    for name, array in arrays.items():
        if not (isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "buif" and array.itemsize <= 8):
            raise TypeError(f"`arrays[{name!r}]` must be a NumPy array of bools or numbers; got {array!r:.60}.")
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError(f"`arrays` must have strings as names, other than '__metadata__'; got {name!r}.")
        dtype = "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        begin, end = end, end + array.nbytes
        entries[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (begin, end)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for array in arrays.values():  # one by one, as those that are not contiguous are copied
        yield np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def _manifest(number: int, record: Mapping[str, Any], files: Mapping[str, Any]) -> bytes:
    content = {"format": FORMAT, "version": VERSION, "number": number, "record": dict(record), "files": files}
    try:
        return disk.sealed(content)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`record` must hold what JSON can: {error}.") from error


def _write(path: Path, pieces: Iterable[Any]) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
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
    """Names reach the disk with their directory."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_aside(path: Path) -> None:
    """Without its name, it is for `_sweep`."""
    path.rename(path.with_name(f"{WRITING}{path.name}-out"))


def _sweep(home: Path) -> None:
    """Remove what is unfinished; what resists is tried again by the next save."""
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
    """The newest intact checkpoint; or the one with this `number`, for which there is no substitute.

    For each damaged one that was passed over `warn` gets a line; without it, Python's warnings do. Without `arrays`
    only the record is read, and only its checksum is compared.
    """
    home, found, damages = _home(folder), numbers(folder), []
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
            line = f"{damage}; falls back to checkpoint {each}."
            warnings.warn(line, stacklevel=2) if warn is None else warn(line)
        return checkpoint
    if numbers(folder) != found:  # a running training has removed them meanwhile
        return load(folder, number=number, warn=warn, arrays=arrays)
    raise Damaged(home, f"has no intact checkpoint to load: {'; '.join(damages)}.")


def _read(path: Path, *, arrays: bool = True) -> Checkpoint:
    """All of it is checked before the arrays are taken into memory."""
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
            raise ValueError(  # not damaged, so neither to be passed over nor to be replaced
                f"{str(place)!r} has version {content['version']!r} of the format, and {VERSION} is read here. Use "
                "an offtrace that reads it, or another folder."
            )
        if (content["format"], content["number"], [*content["files"]]) != (FORMAT, int(path.name), [ARRAYS]):
            raise Damaged(place, f"is not the manifest of this checkpoint, or names another file than {ARRAYS}")
        record, file = content["record"] | {}, content["files"][ARRAYS]
        place = path / ARRAYS
        if (size := place.stat().st_size) != file["size"]:
            raise Damaged(place, f"has {size} bytes, and its manifest says {file['size']}")
        if not arrays:
            return Checkpoint(int(path.name), {}, record, path)
        with open(place, "rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                raise Damaged(place, "does not have the checksum in its manifest")
        with safe_open(place, framework="np") as tensors:  # refuses shapes that the file has no bytes for
            return Checkpoint(int(path.name), tensors.get_tensors(), record, path)
    except (TypeError, KeyError, SafetensorError) as error:
        raise Damaged(place, f"does not hold what it should: {error!r}") from error
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        raise Damaged(place, f"cannot be read: {error.strerror}") from error


def _manifest_at(path: Path) -> Any:
    """A manifest, if its last line fits the rest."""
    try:
        return disk.unsealed(disk.read(path))
    except ValueError as error:
        raise Damaged(path, str(error)) from error
