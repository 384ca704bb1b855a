"""Ways to damage files: flipped bits, truncation, zeros, swapped names, edited values, links, FIFOs and folders."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

ODD: tuple[Any, ...] = (
    0, -1, 1, 3, 1e30, -1e30, 10**30, 10**400, 0.1, float("nan"), float("inf"), None, True, "", "x", "../../x",
    "\x1b[2J", "\x00", [], {}, [[]] * 3, "λ" * 1000, "gymnasium/os:system",
)  # fmt: skip


def flip(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 8, 64))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return "bits flipped"


def cut(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])
    return "cut"


def hole(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if data:
        start = rng.randrange(len(data))
        size = min(len(data) - start, rng.choice((1, 16, 512, 4096)))
        data[start : start + size] = bytes(size)
    path.write_bytes(data)
    return "zeros"


def longer(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    path.write_bytes(data + rng.randbytes(rng.choice((1, 100, 5000))))
    return "bytes added"


def doubled(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    path.write_bytes(data[:at] + data[rng.randrange(at + 1) :])
    return "a part doubled"


def gone(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


def empty(path: Path, rng: random.Random) -> str:
    path.write_bytes(b"")
    return "empty"


def link(path: Path, rng: random.Random) -> str:
    path.unlink()
    path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/etc/passwd", str(path), "/nowhere")))
    return "a link"


def fifo(path: Path, rng: random.Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return "a FIFO"


def directory(path: Path, rng: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def secret(path: Path, rng: random.Random) -> str:
    """Remove all permissions. This has no effect for root."""
    path.chmod(0)
    return "not readable"


def edited(path: Path, rng: random.Random) -> str:
    """Replace one value in a JSON or JSONL file by another; the file stays well-formed."""
    try:
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        at = rng.randrange(len(lines))
        value = json.loads(lines[at])
        holder, key = rng.choice(list(_places(value)))
    except (ValueError, IndexError):  # it is not JSON, or empty
        return flip(path, rng)
    holder[key] = rng.choice(ODD)
    lines[at] = json.dumps(value)
    path.write_text("\n".join(lines))
    return f"{key!r:.20} edited to {holder[key]!r:.20}"


def _places(value: Any) -> Any:
    """Yield every (container, key) in a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield value, key
        yield from _places(inner)


KINDS: tuple[Callable[[Path, random.Random], str], ...] = (
    flip, flip, flip, cut, cut, hole, longer, doubled, gone, empty, link, fifo, directory, secret,
    edited, edited, edited,
)  # fmt: skip


def swapped(files: list[Path], rng: random.Random) -> str:
    """Swap the names of two files."""
    one, other = rng.sample(files, 2)
    aside = one.with_name(".aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{one.name} and {other.name} swapped"


def damaged(folder: Path, rng: random.Random) -> str:
    """Damage something in a folder, chosen at random, and return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if rng.random() < 0.05:
        return swapped(files, rng)
    if rng.random() < 0.05:
        home = folder / "checkpoints"
        shutil.rmtree(home)
        return "no checkpoints"
    path = rng.choice(files)
    return f"{path.relative_to(folder)}: {rng.choice(KINDS)(path, rng)}"
