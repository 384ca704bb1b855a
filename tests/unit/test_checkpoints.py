"""Checkpoints under every fault of files: kills, full disks, bit rot, links, forgery, two writers."""

import errno
import hashlib
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from offtrace.agent import checkpoints, disk
from offtrace.agent.checkpoints import ARRAYS, MANIFEST, Checkpoint, FolderLock, check_writable, load, numbers, save

DTYPES = ["bool", "uint8", "int32", "int64", "uint32", "float16", "float32", "float64"]
RECORD = {"step": 3, "names": ["é", "\udc80", "\n"], "rng": {"state": 2**127 + 1}, "rate": 0.1, "none": None}

COMMON = """
import errno, os, random, signal, sys, time
from pathlib import Path
import numpy as np
from offtrace.agent import checkpoints, disk
from offtrace.agent.checkpoints import FolderLock, load, numbers, save, check_writable

def state(number):
    return {"a": np.arange(3000) * number, "b": np.full((7, 5), number % 2 == 0)}, {"number": number}

def check(checkpoint):
    arrays, record = state(checkpoint.number)
    assert checkpoint.record == record and checkpoint.arrays.keys() == arrays.keys()
    assert all(np.array_equal(checkpoint.arrays[name], arrays[name]) for name in arrays)

def warn(line):
    raise AssertionError(line)  # a killed process leaves nothing damaged under a finished name

folder = Path(sys.argv[1])
"""


def child(script: str, *args: Any, timeout: float = 60) -> str:
    """Run code in a new process, since forking this one, with all its threads, is not safe."""
    command = [sys.executable, "-W", "error", "-c", COMMON + textwrap.dedent(script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state(number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {"a": np.arange(30) * number, "b": np.array(number % 2 == 0)}, {"number": number}


def two(folder: Path) -> tuple[Path, Path]:
    """Checkpoints 1 and 2."""
    one, other = (save(folder, *state(number), number=number) for number in (1, 2))
    return one, other


def assert_state(checkpoint: Checkpoint, number: int) -> None:
    arrays, record = state(number)
    assert (checkpoint.number, checkpoint.record, checkpoint.path.name) == (number, record, f"{number:012d}")
    assert checkpoint.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)


def assert_falls_back(folder: Path, *words: str) -> None:
    lines: list[str] = []
    assert_state(load(folder, warn=lines.append), 1)
    (line,) = lines
    assert "\n" not in line
    assert line.endswith("; checkpoint 1 is used instead.")
    for word in words:
        assert word in line


def forge(path: Path, *, data: bytes | None = None, **changes: Any) -> None:
    """Write a manifest with other content and right checksums; `data` replaces the arrays."""
    content = json.loads((path / MANIFEST).read_text())
    del content["sha256"]
    if data is not None:
        (path / ARRAYS).write_bytes(data)
        content["files"][ARRAYS] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    text = json.dumps(content | changes, indent=1).removesuffix("\n}").encode()
    seal = f',\n "sha256": "{hashlib.sha256(text).hexdigest()}"\n}}\n'.encode()
    (path / MANIFEST).write_bytes(text + seal)


# -- round trips ---------------------------------------------------------------------------------------------


def every_kind() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for dtype in DTYPES:
        size = np.dtype(dtype).itemsize
        raw = rng.integers(0, 2, 105, np.uint8) if dtype == "bool" else rng.integers(0, 256, 105 * size, np.uint8)
        arrays[f"{dtype}/any bits"] = raw.view(dtype).reshape(3, 5, 7)  # for floats: NaNs with payloads among them
        arrays[f"{dtype}/strided"] = arrays[f"{dtype}/any bits"].transpose(2, 0, 1)[::-2, 1:]
        arrays[f"{dtype}/scalar"] = arrays[f"{dtype}/any bits"][1, 2, 3]
        arrays[f"{dtype}/no dimension"] = np.array(arrays[f"{dtype}/scalar"])
        arrays[f"{dtype}/empty"] = np.zeros((0, 3), dtype)
    arrays["nan"] = np.array([0x7FF8_0000_0000_0001, 0xFFF0_0000_DEAD_BEEF, 0x7FF0_0000_0000_0001], "u8").view("f8")
    arrays["../ü \n"] = np.array([-0.0, np.inf])
    return arrays


def assert_bits(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert (left[name].dtype, left[name].shape) == (right[name].dtype, right[name].shape)
        assert left[name].tobytes() == right[name].tobytes()


def test_round_trip_is_bit_by_bit(tmp_path: Path) -> None:
    arrays = every_kind()
    before = {name: array.tobytes() for name, array in arrays.items()}
    path = save(tmp_path, arrays, RECORD, number=7)
    loaded = load(tmp_path)
    assert_bits(loaded.arrays, arrays)
    assert (loaded.number, loaded.record, loaded.path) == (7, RECORD, path)
    assert path == tmp_path / "checkpoints" / "000000000007"
    assert {name: array.tobytes() for name, array in arrays.items()} == before
    for array in loaded.arrays.values():
        assert array.flags.writeable
        assert array.flags.aligned  # though in the file they may not be


def test_the_file_is_safetensors_for_others(tmp_path: Path) -> None:
    path = save(tmp_path, every_kind(), RECORD, number=7)
    assert_bits(safetensors.numpy.load_file(path / ARRAYS), every_kind())
    assert json.loads((path / MANIFEST).read_text())["record"] == RECORD
    assert sorted(os.listdir(path)) == [ARRAYS, MANIFEST]


def test_the_order_of_the_arrays_is_kept(tmp_path: Path) -> None:
    save(tmp_path, every_kind(), RECORD, number=7)
    assert list(load(tmp_path).arrays) == list(every_kind())


def test_nothing_at_all_can_be_saved(tmp_path: Path) -> None:
    save(tmp_path, {}, {}, number=0)
    assert load(tmp_path)[:3] == (0, {}, {})


def test_pieces_larger_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "BLOCK", 5)
    save(tmp_path, every_kind(), RECORD, number=7)
    assert_bits(load(tmp_path).arrays, every_kind())


def test_big_endian_arrays_keep_their_values(tmp_path: Path) -> None:
    save(tmp_path, {"a": np.array([1.5, 2], ">f4")}, {}, number=1)
    assert_bits(load(tmp_path).arrays, {"a": np.array([1.5, 2], "f4")})


def test_numpy_generators_resume(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    save(tmp_path, {}, {"rng": rng.bit_generator.state}, number=1)
    other = np.random.default_rng(0)
    other.bit_generator.state = load(tmp_path).record["rng"]
    assert other.random() == rng.random()


@pytest.mark.parametrize(
    ("arrays", "record", "number", "keep", "word"),
    [
        ({"a": [1, 2]}, {}, 1, 2, "arrays['a']"),
        ({"a": np.array(["x"])}, {}, 1, 2, "arrays['a']"),
        ({"a": np.array([{}], object)}, {}, 1, 2, "arrays['a']"),
        ({"a": np.zeros(2, complex)}, {}, 1, 2, "arrays['a']"),
        ({"a": np.zeros(2, np.longdouble)}, {}, 1, 2, "arrays['a']"),
        ({1: np.zeros(2)}, {}, 1, 2, "arrays"),
        ({"__metadata__": np.zeros(2)}, {}, 1, 2, "__metadata__"),
        ({}, {"a": np.zeros(2)}, 1, 2, "record"),
        ({}, {"a": {1, 2}}, 1, 2, "record"),
        ({}, {}, -1, 2, "number"),
        ({}, {}, 10**12, 2, "number"),
        ({}, {}, 1.0, 2, "number"),
        ({}, {}, 1, 0, "keep"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, arrays: Any, record: Any, number: Any, keep: int, word: str
) -> None:
    save(tmp_path, *state(0), number=0)
    with pytest.raises((ValueError, TypeError)) as caught:
        save(tmp_path, arrays, record, number=number, keep=keep)
    assert word in str(caught.value)
    assert os.listdir(tmp_path / "checkpoints") == [f"{0:012d}"]


# -- which are kept, and which is loaded ---------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    for number in range(0, 80, 10):
        save(tmp_path, *state(number), number=number, keep=keep)
        assert numbers(tmp_path) == list(range(0, number + 1, 10))[-keep:]
        assert_state(load(tmp_path), number)
    assert len(os.listdir(tmp_path / "checkpoints")) == keep


def test_one_by_its_number(tmp_path: Path) -> None:
    one, _ = two(tmp_path)
    assert_state(load(tmp_path, number=1), 1)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint 3, but these: \[1, 2\]"):
        load(tmp_path, number=3)
    (one / ARRAYS).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{ARRAYS}' has 0 bytes"):
        load(tmp_path, number=1)


@pytest.mark.parametrize("made", ["nothing", "folder", "checkpoints", "unfinished"])
def test_no_checkpoint(tmp_path: Path, made: str) -> None:
    folder = tmp_path / "run"
    inner = {
        "nothing": "",
        "folder": "run",
        "checkpoints": "run/checkpoints",
        "unfinished": "run/checkpoints/.writing-1",
    }
    (tmp_path / inner[made]).mkdir(parents=True, exist_ok=True)
    assert numbers(folder) == []
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load(folder)


def test_none_intact_names_all(tmp_path: Path) -> None:
    one, other = two(tmp_path)
    (one / ARRAYS).unlink()
    (other / MANIFEST).write_bytes(b"{}")
    with pytest.raises(ValueError, match="no intact") as caught:
        load(tmp_path, warn=pytest.fail)
    assert str(one / ARRAYS) in str(caught.value)
    assert str(other / MANIFEST) in str(caught.value)


def test_without_warn_it_is_a_warning(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    (other / ARRAYS).write_bytes(b"")
    with pytest.warns(UserWarning, match=rf"000000000002/{ARRAYS}.*checkpoint 1 is used instead"):
        load(tmp_path)


def test_all_that_were_passed_over_are_told(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path, *state(number), number=number, keep=9)
    for number in (2, 3):
        (tmp_path / "checkpoints" / f"{number:012d}" / MANIFEST).unlink()
    lines: list[str] = []
    assert_state(load(tmp_path, warn=lines.append), 1)
    assert [("000000000003" in line, "000000000002" in line) for line in lines] == [(True, False), (False, True)]
    assert all(line.endswith("checkpoint 1 is used instead.") for line in lines)


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    before = (other / MANIFEST).stat()
    assert save(tmp_path, *state(2), number=2) == other
    after = (other / MANIFEST).stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"{1:012d}", f"{2:012d}"]


@pytest.mark.parametrize("number", [1, 2])
def test_an_intact_one_is_not_overwritten(tmp_path: Path, number: int) -> None:
    two(tmp_path)
    with pytest.raises(ValueError, match="`number` must be above") as caught:
        save(tmp_path, *state(5), number=number)
    assert "Resume from" in str(caught.value)
    assert_state(load(tmp_path), 2)
    assert_state(load(tmp_path, number=1), 1)
    assert len(os.listdir(tmp_path / "checkpoints")) == 2


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_is_replaced(tmp_path: Path, keep: int) -> None:
    """The run resumes from 1, because 2 is damaged, and reaches 2 again."""
    _, other = two(tmp_path)
    (other / ARRAYS).write_bytes(b"rot")
    save(tmp_path, *state(2), number=2, keep=keep)
    assert_state(load(tmp_path), 2)
    assert numbers(tmp_path) == [1, 2][-keep:]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_ahead_does_not_hide_the_newest(tmp_path: Path, keep: int) -> None:
    """If it counted, `keep=1` would remove the checkpoint just saved."""
    save(tmp_path, *state(10), number=10)
    damaged = save(tmp_path, *state(30), number=30)
    (damaged / MANIFEST).unlink()
    save(tmp_path, *state(20), number=20, keep=keep)
    assert_state(load(tmp_path), 20)
    assert numbers(tmp_path) == [10, 20][-keep:]


# -- rot -----------------------------------------------------------------------------------------------------


def mutations(path: Path, rng: np.random.Generator, count: int) -> Iterator[tuple[str, Path]]:
    """Yield the files of the checkpoint, each changed in one way meanwhile."""
    content = {path / name: (path / name).read_bytes() for name in (ARRAYS, MANIFEST)}
    for index in range(count):
        file = path / (ARRAYS, MANIFEST)[index % 2]
        data = content[file]
        kind = rng.choice(["truncate", "flip", "flip", "empty", "delete", "append", "swap"])
        if kind == "truncate":
            file.write_bytes(data[: rng.integers(1, len(data))])
        elif kind == "flip":
            changed = bytearray(data)
            changed[rng.integers(len(data))] ^= 1 << rng.integers(8)
            file.write_bytes(changed)
        elif kind == "empty":
            file.write_bytes(b"")
        elif kind == "delete":
            file.unlink()
        elif kind == "append":
            file.write_bytes(data + rng.bytes(rng.integers(1, 100)))
        else:
            file.write_bytes(content[path / (ARRAYS, MANIFEST)[1 - index % 2]])
        yield str(kind), file
        file.write_bytes(data)


def test_a_thousand_mutations(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    for _, file in mutations(other, np.random.default_rng(0), 1000):
        assert_falls_back(tmp_path, repr(str(file)))
    assert_state(load(tmp_path), 2)


def test_every_bit_of_the_manifest(tmp_path: Path) -> None:
    """The checksum covers every byte, also those that JSON would ignore."""
    path = save(tmp_path, {}, {"é": 1.5}, number=1)
    data = (path / MANIFEST).read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        (path / MANIFEST).write_bytes(changed)
        with pytest.raises(ValueError, match=MANIFEST):
            load(tmp_path)


def test_rot_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, other = two(tmp_path)
    parsed = []
    opened = checkpoints.safe_open
    monkeypatch.setattr(checkpoints, "safe_open", lambda path, **rest: parsed.append(path) or opened(path, **rest))
    for _, _ in mutations(other, np.random.default_rng(1), 100):
        load(tmp_path, warn=lambda line: None)
    assert {path.parent.name for path in parsed} == {f"{1:012d}"}


def test_a_renamed_checkpoint(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    other.rename(other.with_name(f"{3:012d}"))
    assert_falls_back(tmp_path, MANIFEST)


# -- kills ---------------------------------------------------------------------------------------------------


def test_two_hundred_kills(tmp_path: Path) -> None:
    """A child resumes, saves in a loop, reports each finished save, and is killed at a random moment."""
    out = child(
        """
        rng = random.Random(0)
        save(folder, *state(0), number=0)
        unfinished = 0
        for kill in range(200):
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                with FolderLock(folder):
                    number = load(folder, warn=warn).number
                    while True:
                        number += 1
                        save(folder, *state(number), number=number, keep=1 + kill % 3)
                        os.write(writer, b"%d\\n" % number)
            os.close(writer)
            told = os.read(reader, 8) if kill % 2 else b""  # every other one is killed within its first save
            time.sleep(rng.uniform(0, 0.01))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with open(reader, "rb") as pipe:
                told = (told + pipe.read()).split()
            unfinished += any(name.startswith(".writing") for name in os.listdir(folder / "checkpoints"))
            found = load(folder, warn=warn)
            check(found)
            assert found.number >= int(told[-1] if told else 0), (found.number, told)
            for number in numbers(folder):
                check(load(folder, number=number, warn=warn))
        save(folder, *state(found.number + 1), number=found.number + 1)
        assert not any(name.startswith(".") for name in os.listdir(folder / "checkpoints"))
        print(found.number, unfinished)
        """,
        tmp_path,
    )
    saved, unfinished = map(int, out.split())
    assert saved >= 100
    assert unfinished > 20  # or the kills would not have hit the saves


def test_death_or_error_at_every_call(tmp_path: Path) -> None:
    """The k-th call that changes the disk kills the process, or fails; also after half a write."""
    out = child(
        """
        class File:
            def __init__(self, file): self.file = file
            def __getattr__(self, name): return getattr(self.file, name)
            def __enter__(self): return self
            def __exit__(self, *rest): self.file.close()
            def write(self, data):
                if calls[0] == k - 1:
                    self.file.write(data[: len(data) // 2])
                    self.file.flush()
                return counted(self.file.write)(data)

        calls, k, dies = [0], None, None

        def counted(function):
            def call(*args, **kwargs):
                calls[0] += 1
                if calls[0] == k:
                    if dies:
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError(errno.ENOSPC, "No space left on device")
                return function(*args, **kwargs)
            return call

        def once(number, scene):
            for name in ("fsync", "rename", "mkdir", "unlink", "rmdir", "open"):
                setattr(os, name, counted(getattr(os, name)))
            checkpoints.open = lambda *args: File(counted(open)(*args))
            try:
                save(folder, *state(number), number=number)
            except OSError as error:
                assert error.errno == errno.ENOSPC and str(number) in str(error), error
                os._exit(1)
            os._exit(0 if calls[0] < k else 2)

        for scene in ("new", "damaged"):
            for dies in (True, False):
                for k in range(1, 200):
                    last = load(folder, warn=warn).number if numbers(folder) else 0
                    if scene == "damaged":
                        path = save(folder, *state(last + 1), number=last + 1)
                        (path / "arrays.safetensors").write_bytes(b"rot")
                    if not (pid := os.fork()):
                        once(last + 1, scene)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    if last:
                        lines = []
                        found = load(folder, warn=lines.append if scene == "damaged" else warn)
                        check(found)
                        assert found.number in (last, last + 1) and len(lines) <= 1
                        assert found.number == last + 1 or status in (1, -9)
                        if status == 1:
                            assert not [name for name in os.listdir(folder / "checkpoints") if name[0] == "."]
                    save(folder, *state(last + 2), number=last + 2)
                    check(load(folder, warn=warn))
                    if status == 0:
                        break
                print(k)
        """,
        tmp_path,
    )
    assert all(15 < int(calls) < 100 for calls in out.split()), out


def test_the_order_of_what_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To survive a crash of the machine, every sync must come before the rename, and one after it."""
    two(tmp_path)
    calls: list[str] = []

    def noted(name: str, shown: Callable[..., str]) -> None:
        true = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, **rest: calls.append(f"{name} {shown(*args)}") or true(*args, **rest)
        )

    noted("fsync", lambda descriptor: re.sub(r"(?<=-\d{12})-\d+", "", os.readlink(f"/proc/self/fd/{descriptor}")))
    noted("rename", lambda old, new: f"{Path(old).name[:9]} {Path(new).name}")
    home = tmp_path / "checkpoints"
    save(tmp_path, *state(3), number=3)
    assert calls == [
        f"fsync {home}/.writing-000000000003/{ARRAYS}",
        f"fsync {home}/.writing-000000000003/{MANIFEST}",
        f"fsync {home}/.writing-000000000003",
        f"rename .writing- {3:012d}",
        f"fsync {home}",
        f"rename 000000000 .writing-{1:012d}-out",
    ]


# -- full disks ----------------------------------------------------------------------------------------------


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"checkpoint 3 was not saved.*No space left") as caught:
            save(tmp_path, *state(3), number=3)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.endswith(f"{3:012d}")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"{1:012d}", f"{2:012d}"]
    assert_state(load(tmp_path), 2)
    save(tmp_path, *state(3), number=3)
    assert_state(load(tmp_path), 3)


@pytest.mark.parametrize("limit", [0, 1, 100, 24_000])
def test_a_true_limit_on_file_size(tmp_path: Path, limit: int) -> None:
    """The kernel's own error, with a half-written file."""
    child(
        """
        import resource
        save(folder, *state(1), number=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        try:
            save(folder, *state(2), number=2)
        except OSError as error:
            assert error.errno == errno.EFBIG and "checkpoint 2 was not saved" in str(error), error
        else:
            raise AssertionError
        try:
            check_writable(folder)
        except OSError as error:
            assert sys.argv[2] in "01" and error.errno == errno.EFBIG and "`folder` must be" in str(error), error
        else:
            assert sys.argv[2] not in "01"
        assert os.listdir(folder / "checkpoints") == ["000000000001"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        save(folder, *state(2), number=2)
        check(load(folder, warn=warn))
        """,
        tmp_path,
        limit,
    )


def test_leftovers_make_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may be full of files left by a killed process."""
    two(tmp_path)
    leftover = tmp_path / "checkpoints" / ".writing-000000000003-1"
    leftover.mkdir()
    (leftover / ARRAYS).write_bytes(b"half")
    seen = []
    written = checkpoints._write
    monkeypatch.setattr(checkpoints, "_write", lambda *args: seen.append(leftover.exists()) or written(*args))
    save(tmp_path, *state(3), number=3)
    assert seen == [False, False]


# -- links, strangers and forgers ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ARRAYS, MANIFEST, "another"])
@pytest.mark.parametrize("kind", ["link", "dangling", "directory", "fifo"])
def test_only_plain_files(tmp_path: Path, name: str, kind: str) -> None:
    _, other = two(tmp_path / "run")
    outside = tmp_path / "outside"
    if (other / name).exists():
        (other / name).rename(outside)  # with its true content: the link itself is refused
    else:
        outside.write_bytes(b"")
    if kind == "directory":
        (other / name).mkdir()
    elif kind == "fifo":
        os.mkfifo(other / name)
    else:
        (other / name).symlink_to(outside if kind == "link" else tmp_path / "nowhere")
    assert_falls_back(tmp_path / "run", repr(str(other / name)), "plain file")
    save(tmp_path / "run", *state(2), number=2)
    assert_state(load(tmp_path / "run"), 2)
    assert outside.exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_link_in_place_of_a_checkpoint(tmp_path: Path) -> None:
    _, other = two(tmp_path / "run")
    other.rename(tmp_path / other.name)
    other.symlink_to(tmp_path / other.name)
    assert_falls_back(tmp_path / "run", repr(str(other)), "link")
    for number in range(2, 6):
        save(tmp_path / "run", *state(number), number=number)
    assert sorted(os.listdir(tmp_path / other.name)) == [ARRAYS, MANIFEST]


def test_a_file_in_place_of_a_checkpoint(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    other.with_name(f"{3:012d}").write_bytes(b"")
    lines: list[str] = []
    assert_state(load(tmp_path, warn=lines.append), 2)
    assert "not a directory" in lines[0]
    for number in range(3, 7):
        save(tmp_path, *state(number), number=number)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"{5:012d}", f"{6:012d}"]


def test_a_link_in_place_of_all(tmp_path: Path) -> None:
    two(tmp_path / "other")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "other" / "checkpoints")
    for use in (load, numbers, check_writable, lambda folder: save(folder, {}, {}, number=3)):
        with pytest.raises(ValueError, match="must not be a link"):
            use(tmp_path / "run")
    assert numbers(tmp_path / "other") == [1, 2]
    (tmp_path / "linked").symlink_to(tmp_path / "other")  # the whole folder may be one
    assert_state(load(tmp_path / "linked"), 2)


def test_a_plain_file_more_is_not_read(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    (other / ".DS_Store").write_bytes(b"?")
    assert_state(load(tmp_path), 2)


def test_links_among_the_leftovers(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    two(tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / ".writing-link").symlink_to(tmp_path / "outside")
    save(tmp_path / "run", *state(3), number=3)
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) == 2
    assert (tmp_path / "outside" / "kept").exists()
    assert_state(load(tmp_path / "run"), 3)


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/passwd", "..", ".", "", "a/b", "other.safetensors", f"../{2:012d}/{ARRAYS}"]
)
def test_names_in_a_manifest(tmp_path: Path, name: str) -> None:
    _, other = two(tmp_path)
    file = json.loads((other / MANIFEST).read_text())["files"][ARRAYS]
    for files in ({name: file}, {ARRAYS: file, name: file}):
        forge(other, files=files)
        assert_falls_back(tmp_path, MANIFEST)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"number": 3},
        {"number": "2"},
        {"files": {}},
        {"files": []},
        {"files": {ARRAYS: None}},
        {"files": {ARRAYS: {"size": 10**15, "sha256": ""}}},
        {"files": {ARRAYS: {"size": -1}}},
        {"record": None},
    ],
    ids=repr,
)
def test_forged_manifests(tmp_path: Path, changes: dict) -> None:
    _, other = two(tmp_path)
    forge(other, **changes)
    assert_falls_back(tmp_path, f"{2:012d}")


def test_deep_json_is_refused(tmp_path: Path) -> None:
    _, other = two(tmp_path)
    for text in (b"[" * 100_000, b"1" * 10_000, b"\xff", b"[]", b'{"a":'):
        (other / MANIFEST).write_bytes(text + disk.seal(text))
        assert_falls_back(tmp_path, MANIFEST)


def test_another_version_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """It is not damaged: skipping or replacing it would lose a run."""
    _, other = two(tmp_path)
    forge(other, version=3, files="unheard of")
    with pytest.raises(ValueError, match="must have version 2 of the format; got 3"):
        load(tmp_path)
    with pytest.raises(ValueError, match="must have version 2 of the format; got 3"):
        save(tmp_path, *state(2), number=2)
    assert numbers(tmp_path) == [1, 2]


def tensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 100,
        (10**12).to_bytes(8, "little") + b"{}",
        tensors(b"[" * 10_000),
        tensors({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}),
        tensors({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}}, b"\0" * 4),
        tensors({"a": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}}),
        tensors({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        tensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"\0" * 8),
        tensors({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"\0" * 8),
        pickle.dumps({"a": [1.0] * 100}),
    ],
    ids=lambda data: repr(data[:60]),
)
def test_forged_arrays_with_the_right_checksum(tmp_path: Path, data: bytes) -> None:
    _, other = two(tmp_path)
    forge(other, data=data)
    assert_falls_back(tmp_path, repr(str(other / ARRAYS)))
    save(tmp_path, *state(2), number=2)
    assert_state(load(tmp_path), 2)


def test_no_memory_is_taken_for_what_is_only_declared(tmp_path: Path) -> None:
    """A header and a manifest that claim 4 TB, with 1 GB of memory left: no MemoryError."""
    _, other = two(tmp_path)
    header = {"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    forge(other, data=tensors(header))
    script = """
        import resource
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines = []
        assert load(folder, warn=lines.append).number == 1 and len(lines) == 1
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
    assert int(child(script, tmp_path)) < 20_000  # kB
    forge(other, files={ARRAYS: {"size": 4 * 10**12, "sha256": "0" * 64}})
    assert int(child(script, tmp_path)) < 20_000


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", [ARRAYS, MANIFEST])
def test_a_pickle_is_never_run(tmp_path: Path, name: str) -> None:
    _, other = two(tmp_path)
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    (other / name).write_bytes(trap)
    assert_falls_back(tmp_path, name)
    if name == ARRAYS:
        forge(other, data=trap)
        assert_falls_back(tmp_path, name)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)  # noqa: S301 (it would have worked)
    assert (tmp_path / "sprung").exists()


# -- locks ---------------------------------------------------------------------------------------------------


def test_one_lock_in_one_process(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    with lock:
        for second in (lock, FolderLock(tmp_path)):
            with pytest.raises(ValueError, match=rf"process {os.getpid()} holds .*lock'.* another folder"), second:
                pass
        with pytest.raises(ValueError), FolderLock(tmp_path):  # a failed attempt has not released it
            pass
    with lock, pytest.raises(ValueError), FolderLock(tmp_path):
        pass
    with pytest.raises(KeyError), lock:
        raise KeyError
    with FolderLock(tmp_path):
        pass


HOLD = """
with FolderLock(folder):
    if sys.argv[2] == "fork":
        told, tell = os.pipe()
        if not os.fork():
            os.write(tell, b"here")
            os.close(1)
            time.sleep(30)
            os._exit(0)
        os.read(told, 4)
    print("held", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("children", ["none", "fork"])
def test_locks_between_processes_and_after_a_kill(tmp_path: Path, children: str) -> None:
    """Also if a forked worker, which inherits the lock, outlives the holder."""
    command = [sys.executable, "-c", COMMON + HOLD, tmp_path, children]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            for _ in range(2):
                with pytest.raises(ValueError, match=rf"process {holder.pid} holds"), FolderLock(tmp_path):
                    pass
            holder.kill()
            holder.wait()
            with FolderLock(tmp_path):
                assert int((tmp_path / "lock").read_text()) == os.getpid()
        finally:
            os.killpg(holder.pid, 9) if children == "fork" else holder.kill()


def test_a_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError), FolderLock(tmp_path):
        pass
    assert (tmp_path / "outside").read_text() == "mine"


def test_a_lock_with_anything_inside(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        (tmp_path / "lock").write_bytes(b"\x1b[31m")
        with pytest.raises(ValueError, match="process of unknown id holds"), FolderLock(tmp_path):
            pass


# -- folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "ünï/日本/😀", "new\nline", "-x", "$HOME; 'q'\"", "a" * 200])
def test_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    check_writable(folder)
    assert os.listdir(folder) == []
    with FolderLock(folder):
        _, other = two(folder)
    assert_state(load(folder), 2)
    check_writable(folder)
    assert sorted(os.listdir(folder)) == ["checkpoints", "lock"]
    (other / ARRAYS).unlink()
    assert_falls_back(folder)


def test_relative_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(Path("run"))
    two(Path("run"))
    two(Path("."))
    assert_state(load(tmp_path / "run"), 2)
    assert_state(load(tmp_path), 2)


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="`folder` must be a directory"):
        check_writable(tmp_path / "file")
    with pytest.raises(NotADirectoryError, match="`folder` must be a directory"):
        check_writable(tmp_path / "file" / "run" / "deeper")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").touch()
    with pytest.raises(NotADirectoryError, match="`folder` must be a directory"):
        check_writable(tmp_path / "run")
    with pytest.raises(FileExistsError, match="checkpoint 1 was not saved"):
        save(tmp_path / "run", *state(1), number=1)


def test_no_permission() -> None:
    """As the user nobody if this process is root, who may write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        for inner, mode in (("run", 0o555), ("good", 0o777), ("good/checkpoints", 0o555)):
            (Path(name) / inner).mkdir()
            (Path(name) / inner).chmod(mode)
        child(
            """
            if os.getuid() == 0:
                os.setuid(65534)
            for inner, refused in (("run", "run"), ("run/new", "run/new"), ("good", "good")):
                try:
                    check_writable(folder / inner)
                except PermissionError as error:
                    assert "`folder` must be" in str(error) and error.filename == str(folder / refused), error
                else:
                    raise AssertionError(inner)
            check_writable(folder / "good" / "new" / "deeper")
            assert os.listdir(folder / "run") == [] and sorted(os.listdir(folder / "good")) == ["checkpoints", "new"]
            try:
                save(folder / "run", *state(1), number=1)
            except PermissionError as error:
                assert "checkpoint 1 was not saved" in str(error)
            else:
                raise AssertionError
            """,
            name,
        )


def test_other_people_can_read_them(tmp_path: Path) -> None:
    """Files get the modes of the user's umask, not those of a temporary file."""
    mask = os.umask(0o022)
    try:
        path = save(tmp_path, *state(1), number=1)
    finally:
        os.umask(mask)
    modes = [place.stat().st_mode & 0o777 for place in (path, path / ARRAYS, path / MANIFEST)]
    assert modes == [0o755, 0o644, 0o644]


def test_an_unreadable_sector_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)

    def digest(file: Any, name: str) -> Any:
        if f"{2:012d}" in str(file.name):
            raise OSError(errno.EIO, "Input/output error")
        return true(file, name)

    true = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", digest)
    assert_falls_back(tmp_path, ARRAYS, "Input/output error")


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    _, other = two(tmp_path)
    with FolderLock(tmp_path):
        for _ in mutations(other, np.random.default_rng(2), 30):
            load(tmp_path, warn=lambda line: None)
            with pytest.raises(ValueError), FolderLock(tmp_path):
                pass
    assert (len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0) == before
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
