"""Damaged .npz and .npy files as models, logs and policies for `offtrace analyze`.

A policy with some flipped bits may still be a valid policy, so each file is either analysed or
refused, within seconds.
"""

import random
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import damage
import numpy as np
import reference
from children import Case, one_line

HEADERS = (
    b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3), }",
    b"{'descr': '<f8', 'fortran_order': 7, 'shape': (2, 3), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': 3, }",
    b"{'descr': '<f8', 'fortran_order': False, }",
    b"{'descr': [('a', '<f8'), ('b', 'O')], 'fortran_order': False, 'shape': (3,), }",
    b"{'descr': '<c16', 'fortran_order': False, 'shape': (3, 2), }",
    b"{'descr': '<U7', 'fortran_order': False, 'shape': (3, 2), }",
    b"{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"1, " * 60 + b"), }",
    b"[" * 3000,
    b"__import__('os').system('touch harmed')",
)


def header(path: Path, rng: random.Random) -> str:
    """Write an .npy file whose header does not match its bytes, also inside an .npz file."""
    text = rng.choice(HEADERS)
    forged = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + rng.randbytes(48)
    if path.suffix == ".npy":
        path.write_bytes(forged)
    else:
        with zipfile.ZipFile(path, "a") as file:
            name = rng.choice(file.namelist())
        _rewritten(path, {name: forged})
    return f"a header of {text[:40]!r}"


def bomb(path: Path, rng: random.Random) -> str:
    """Write two gigabytes of zeros packed into two megabytes, or a header that declares as much."""
    if path.suffix == ".npy":
        return header(path, rng)
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (250000000,), }"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("p.npy", "w", force_zip64=True) as member,
    ):
        member.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
        for _ in range(64):
            member.write(bytes(1 << 25))
    return "a bomb"


def values(path: Path, rng: random.Random) -> str:
    """Write other numbers, shapes and dtypes in a valid file."""
    change = rng.choice((np.nan, np.inf, -1.0, 2.0, 1e308))
    if path.suffix == ".npy":
        array = np.load(path)
        array.flat[rng.randrange(array.size)] = change
        np.save(path, array)
        return f"a value of {change}"
    with np.load(path) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    one = arrays[name]
    with np.errstate(all="ignore"):
        odd = rng.choice((one.T, one.astype(str), one * change, np.zeros((0, 3)), np.zeros(())))
    np.savez(path, **{**arrays, name: odd})
    return f"{name} is {odd.dtype}{odd.shape}"


def _rewritten(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as file:
        kept = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in {**kept, **members}.items():
            file.writestr(name, data)


KINDS: tuple[Callable[[Path, random.Random], str], ...] = (damage.flip, damage.flip, damage.cut, damage.hole)
KINDS += (damage.longer, damage.doubled, damage.empty, damage.link, damage.fifo, damage.directory)
KINDS += (header, header, header, values, values, values)


def cases(num: int, seed: int, home: Path) -> Iterator[Case]:
    rng = random.Random(seed)
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(4), size=(4, 2))
    model = {"p": p, "r": generator.normal(size=(4, 2)), "gamma": np.array(0.9)}
    steps = generator.integers(4, size=200)
    log = {"state": steps[:-1], "action": generator.integers(2, size=199), "reward": np.ones(199)}
    log |= {"next_state": steps[1:], "terminated": np.zeros(199, bool)}
    whole = home / "arrays"
    whole.mkdir()
    np.savez(whole / "model.npz", **model)
    np.savez(whole / "log.npz", **log)
    np.save(whole / "policy.npy", np.full((4, 2), 0.5))
    for first in ("model.npz", "log.npz"):
        reference.made(_analyze(first), whole)
    for number in range(num):
        folder = Path(tempfile.mkdtemp(prefix="arrays-", dir=home))
        shutil.copytree(whole, folder, dirs_exist_ok=True)
        name = rng.choice(("model.npz", "log.npz", "policy.npy"))
        kind = bomb if rng.random() < 0.03 else rng.choice(KINDS)
        what = kind(folder / name, rng)
        arguments = _analyze("log.npz" if name == "log.npz" else "model.npz")
        clean = lambda folder=folder: shutil.rmtree(folder)  # noqa: E731
        yield Case(f"{name}: {what}", arguments, folder, one_line, clean=clean, number=number, patience=20)


def _analyze(first: str) -> list[str]:
    return ["analyze", first, "--target", "policy.npy", "--behaviour", "uniform", "--gamma", "0.9"]
