"""Untrusted files: no regular file, a header that declares too much, and a few hundred broken files."""

import io
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offtrace as ot
from offtrace import cli, files
from offtrace.safety import inputs


def model() -> dict[str, np.ndarray]:
    mdp = ot.mdp.chain(4, slip=0.1)
    ends = np.zeros((4, 2, 4))
    ends.reshape(-1, 4)[mdp.rows, mdp.successor] = mdp.ends
    half = np.full((4, 2), 0.5)
    return {"p": mdp.dense(), "r": mdp.r, "terminates": ends, "gamma": np.array(0.9), "pi": half, "mu": half}


def log() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (2, 30))
    a = rng.integers(0, 2, 30)
    return {
        "state": x,
        "action": a,
        "reward": rng.normal(size=30),
        "next_state": y,
        "terminated": rng.random(30) < 0.2,
    }


def npy(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def with_header(data: bytes, text: str, version: int = 1) -> bytes:
    """The same numbers under another header."""
    numbers = data[10 + int.from_bytes(data[8:10], "little") :]
    header = text.encode("latin-1") + b"\n"
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(width, "little") + header + numbers


HEADERS = [
    f"{{'descr': {d}, 'fortran_order': {f}, 'shape': {s}}}"
    for d, f, s in [
        ("'|O'", "False", "(4, 2)"),
        ("'<c16'", "False", "(2, 2)"),
        ("'<U2'", "False", "(4, 2)"),
        ("'|S8'", "False", "(4, 2)"),
        ("'<M8[s]'", "False", "(4, 2)"),
        ("[('x', '<f8')]", "False", "(4, 2)"),
        ("[('x', '<f4'), ('y', '<f4')]", "False", "(4, 2)"),
        ("'<f8,<f8'", "False", "(2, 2)"),
        ("'(2,)<f8'", "False", "(4,)"),
        ("'V8'", "False", "(4, 2)"),
        ("'<f99'", "False", "(4, 2)"),
        ("'nonsense'", "False", "(4, 2)"),
        ("None", "False", "(4, 2)"),
        ("7", "False", "(4, 2)"),
        ("'<f8'", "True", "(4, 2)"),
        ("'<f8'", "1", "(4, 2)"),
        ("'<f8'", "'no'", "(4, 2)"),
        ("'>f8'", "False", "(4, 2)"),
        ("'<i8'", "False", "(4, 2)"),
        ("'<f2'", "False", "(4, 8)"),
        ("'|b1'", "False", "(8, 8)"),
        ("'<f8'", "False", "(2, 4)"),
        ("'<f8'", "False", "(8,)"),
        ("'<f8'", "False", "()"),
        ("'<f8'", "False", "(4, 2, 1)"),
        ("'<f8'", "False", "(0, 2)"),
        ("'<f8'", "False", "(-4, -2)"),
        ("'<f8'", "False", "(4, -2)"),
        ("'<f8'", "False", "(4.0, 2)"),
        ("'<f8'", "False", "(True, 8)"),
        ("'<f8'", "False", "[4, 2]"),
        ("'<f8'", "False", "8"),
        ("'<f8'", "False", "(1000000000000,)"),
        ("'<f8'", "False", "(4294967296, 4294967296)"),
        ("'<f8'", "False", "(18446744073709551617, 2)"),
        ("'<f8'", "False", "(99999999999999999999999999, 0)"),
        ("'<f8'", "False", "(0, 1000000000000)"),
        ("'<f8'", "False", f"({'1, ' * 40})"),
    ]
] + [
    "",
    "{}",
    "7",
    "[1, 2]",
    "{'descr': '<f8'}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2)",
    "__import__('os').getpid()",
    "(" * 300,
    "-" * 9000 + "1",
    "\xff\xfe",
    "{'shape': " + "9" * 5000 + "}",
    "x" * 60000,
]


def broken(data: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Truncated, extended, and with flipped bits."""
    for size in rng.integers(0, len(data), 12):
        yield data[:size]
    yield data + b"more"
    for _ in range(40):
        changed = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[place] ^= 1 << int(rng.integers(8))
        yield bytes(changed)
    for _ in range(20):  # where the header is
        changed = bytearray(data)
        changed[rng.integers(0, min(128, len(data)))] = rng.integers(256)
        yield bytes(changed)


def npy_files() -> list[bytes]:
    good = npy(np.full((4, 2), 0.5))
    edited = [with_header(good, text, version) for text in HEADERS for version in (1, 2, 3, 9) if len(text) < 60000]
    strange = [npy(np.array(values)) for values in (["a", "b"], [1j, 2.0], [np.nan] * 8)]
    fortran = npy(np.asfortranarray(np.full((4, 2), 0.5)))
    return [*edited, *strange, fortran, b"", *broken(good, np.random.default_rng(1))]


def npz_files() -> list[bytes]:
    found = []
    rng = np.random.default_rng(2)
    for arrays in (model(), log()):
        members = {name: npy(values) for name, values in arrays.items()}
        found += [*broken(npz(members), rng), *broken(npz(members, zipfile.ZIP_STORED), rng)]
        for name in members:
            found.append(npz({key: value for key, value in members.items() if key != name}))
            for values in (
                np.nan,
                np.inf,
                -1,
                1e300,
                2**62,
                1j,
                "x",
                b"",
                [],
                [[1.0, 2.0]],
                np.zeros((4, 2, 4), bool),
            ):
                found.append(npz(members | {name: npy(np.array(values))}))
            full = np.broadcast_to(arrays[name], arrays[name].shape)
            found += [npz(members | {name: npy(full * factor)}) for factor in (0, -1, 1e9, 1e300, np.nan)]
            found += [
                npz(members | {name: with_header(members[name], text)}) for text in HEADERS[::4] if len(text) < 9999
            ]
        twice = io.BytesIO(npz(members))
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(twice, "a") as file:
            file.writestr("p.npy" if "p" in members else "state.npy", npy(np.zeros(3)))
        found.append(twice.getvalue())
        found += [npz({f"../{name}": data for name, data in members.items()}), npz({}), npz(members | {"": b""})]
    return found


TEXT = "state,action,reward,next_state,terminated\n0,0,1.0,1,0\n1,0,0.5,0,1\n"
CSV = [
    TEXT,
    TEXT.replace("0,0,1.0", "5000000,0,1.0"),  # a table of that size is built in seconds, from one number
    TEXT.replace("0,0,1.0", "1000000000,0,1.0"),
    TEXT.replace("0,0,1.0", "1e18,0,1.0"),
    TEXT.replace("0,0,1.0", "0,999999999,1.0"),
    TEXT.replace("1.0", "nan"),
    TEXT.replace("1.0", "1e400"),
    TEXT.replace("1.0", "\0"),
    TEXT.replace("\n", "\0\n"),
    TEXT.replace("0,0,1.0", "-1,0,1.0"),
    TEXT.replace("0,0,1.0", "0.5,0,1.0"),
    TEXT.replace("1.0", "x" * 200_000),
    TEXT.replace("1.0", '"'),
    TEXT.replace("1.0", "[/x]"),
    TEXT[:50],
    TEXT[:41],
    "",
    "\n\n",
    "state\n0\n",
]


def is_refused_or_right(call: Callable[[], Any]) -> bool:
    """An error of one line, or none; any other exception is a defect."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except ValueError as error:
        text = str(error)
    else:
        return False
    assert 0 < len(text) < 1000
    return True


def test_broken_npy_files(tmp_path: Path) -> None:
    path, mdp = tmp_path / "pi.npy", ot.mdp.chain(4)
    refused = 0
    cases = npy_files()
    for data in cases:
        path.write_bytes(data)
        try:
            want = np.load(io.BytesIO(data))
        except Exception:  # NumPy raises many things
            want = None
        got: list[np.ndarray] = []
        refused += is_refused_or_right(lambda got=got: got.append(inputs.read_policy(str(path), mdp, "target")))
        for values in got:
            assert want is not None
            np.testing.assert_array_equal(values, want)
    assert len(cases) // 2 < refused < len(cases)


def test_broken_npz_files(tmp_path: Path) -> None:
    """Files that load are analysed: odd numbers must not break that either."""
    path, refused = tmp_path / "model.npz", 0
    cases = npz_files()
    for data in cases:
        path.write_bytes(data)

        def whole() -> None:
            given, policies = inputs.read_model(str(path), None)
            inner = getattr(given, "mdp", given)
            uniform = np.full(inner.shape, 1 / inner.num_actions)
            pi, mu = policies.get("pi", uniform), policies.get("mu", uniform)
            ot.analyze(given, pi=pi, mu=mu, traces=["retrace"], lambdas=[0.5])

        refused += is_refused_or_right(whole)
    assert len(cases) // 2 < refused < len(cases)


@pytest.mark.parametrize("text", CSV, ids=range(len(CSV)))
def test_broken_logs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text, encoding="utf-8")
    assert is_refused_or_right(lambda: inputs.read_model(str(path), 0.9)) == (text != TEXT)


def test_a_header_that_declares_too_much_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """Also zeros that unpack to far more than they are packed in."""
    path = tmp_path / "x.npy"
    for shape in ("(1000000000000,)", "(1000000000000, 0)"):
        path.write_bytes(
            with_header(npy(np.zeros(8)), f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}")
        )
        with pytest.raises(ValueError, match=r"declares"):
            files.read_npy(path)
    bomb = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("p.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy(np.zeros(0))[:80])
        for _ in range(3):
            member.write(bytes(50 << 20))
    with pytest.raises(ValueError, match=r"unpacks to 157,\d+,\d+ bytes; the limit is"):
        files.read_npz(bomb)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".npy"])
def test_only_regular_files_are_opened(tmp_path: Path, suffix: str) -> None:
    """Reading a pipe would wait for ever."""
    pipe, folder, device = tmp_path / f"pipe{suffix}", tmp_path / f"folder{suffix}", tmp_path / f"device{suffix}"
    os.mkfifo(pipe)
    folder.mkdir()
    device.symlink_to("/dev/zero")
    read = partial(inputs.read_model, gamma=None)
    if suffix == ".npy":
        read = partial(inputs.read_policy, mdp=ot.mdp.chain(), name="target")
    for path, what in ((pipe, "a pipe or a device"), (folder, "a folder"), (device, "a pipe or a device")):
        with pytest.raises(ValueError, match=f"is {what}, not a file"):
            read(str(path))
    with pytest.raises(ValueError, match="No such file"):
        files.regular_file(tmp_path / f"missing{suffix}")


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(inputs.MAX_LOG + 1)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"has 67,108,865 bytes; the limit is 67,108,864"):
        inputs.read_model(str(path), None)


NUMBERS = ("1e400", "1e30", "-0", "-1", "nan", "inf", "99999999999999999999", "1e-320", "0x10", "")


@pytest.mark.parametrize("option", ["--gamma", "--lambda", "--accuracy", "softmax", "epsilon_greedy"])
def test_odd_numbers_end_in_one_line(
    option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in NUMBERS:
        given = [option, number] if option.startswith("--") else ["--behaviour", f"{option}:{number}"]
        code: Any = 0
        try:
            cli.main(["analyze", "chain", "--traces", "retrace", "--lambdas", "0.5", *given])
        except SystemExit as left:
            code = left.code
        said = capsys.readouterr()
        assert code in (0, 2), (given, said.err)
        assert "Traceback" not in said.err
        if code == 2 and "Error parsing" not in said.err:
            assert said.err.count("\n") == 1, said.err


def test_a_folder_may_have_any_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that the terminal library would take for markup."""
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("altair")
    cli.main(["analyze", "chain", "--traces", "retrace", "--lambdas", "0.5", "--output", "[/x]"])
    assert "[/x]/" in "".join(capsys.readouterr().out.split())
    assert (tmp_path / "[" / "x]" / "analysis.json").exists()
