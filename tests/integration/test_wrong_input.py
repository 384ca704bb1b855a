"""`offtrace sweep` and `offtrace reproduce` on what cannot be: one line, exit code 2, and nothing is written."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import offtrace as ot
from offtrace.agent.spec import TrainSpec
from offtrace.cli import main, reproduce, sweep
from offtrace.cli.parsing import ELSEWHERE
from offtrace.experiments import checks, engine
from offtrace.experiments.presets import preset
from offtrace.experiments.spec import runs_of


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """The line."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--output", str(folder / "results")])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("offtrace: ")
    assert told.err.count("\n") == 1
    assert list(folder.iterdir()) == []
    return told.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["pocket/nonsense"], "must be an environment; got 'pocket/nonsense'. Valid names: pocket/acrobot"),
        (
            ["pocket/nonsense", "--engine", "ray"],
            "must be an environment; got 'pocket/nonsense'. Valid names: pocket/",
        ),
        (["pocket/catch", "pocket/cartpool"], "Did you mean pocket/cartpole?"),
        (["NoSuch-v0"], "`env` must be the id of a registered environment; got 'NoSuch-v0'"),
        (["Pendulum-v1"], "`env` must have actions that can be numbered"),
        (["pocket/catch", "--num-steps", "3"], "`num_steps` must be more than"),
        (["pocket/catch", "--jobs", "-1"], "`--jobs` must be at least 0; got -1."),
        (["pocket/catch", "--jobs", "-1", "--engine", "ray"], "`jobs` must be at least 1 on Ray"),
        (["pocket/catch", "--scale", "minatar"], "`--scale` must come with `--preset`"),
        (["pocket/catch", "--scale", "pocket"], "`--scale` must come with `--preset`"),
    ],
)
def test_a_sweep_that_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert text in refused(capsys, tmp_path, "sweep", *arguments)


def test_jobs_of_a_reproduction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "`--jobs` must be at least 0; got -1." in refused(capsys, tmp_path, "reproduce", "--jobs", "-1")


EXTREME = [
    "nan",
    "-inf",
    "1e400",
    "1e30",
    "-1",
    "99999999999999999999",
    str(2**31),
    str(2**63),
    "9" * 400,
    "9" * 5000,
]
EXTREME += ["100000000", "0x10", "∞", "1,000", "None of it"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["sweep", "pocket/catch", "--lambdas"],
        ["sweep", "pocket/catch", "--num-seeds"],
        ["sweep", "pocket/catch", "--first-seed"],
        ["sweep", "pocket/catch", "--num-steps"],
        ["sweep", "pocket/catch", "--step-size"],
        ["sweep", "pocket/catch", "--jobs"],
        ["reproduce", "--first-seed"],
        ["reproduce", "--jobs"],
    ],
    ids=" ".join,
)
def test_extreme_numbers(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is refused on one line, but for those that can be run, which are few."""
    run: list[str] = []

    def begun(*_: object, **__: object) -> None:
        sys.exit(0)

    monkeypatch.setattr(sweep, "run_sweep", begun)
    monkeypatch.setattr(reproduce, "run", begun)
    for value in EXTREME:
        try:
            refused(capsys, tmp_path, *arguments, value)
        except AssertionError:
            capsys.readouterr()
            run.append(value)
    allowed = {"--num-steps": ["100000000"], "--first-seed": ["100000000"]}
    allowed["--step-size"] = ["1e30", "99999999999999999999", str(2**31), str(2**63), "100000000"]
    assert run == allowed.get(arguments[-1], [])


def test_hints_for_options_of_other_libraries_name_options() -> None:
    fields = {field.name.rstrip("_") for field in dataclasses.fields(TrainSpec)}
    assert {name.removeprefix("--").replace("-", "_") for name in ELSEWHERE.values()} <= fields


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["sweep", "pocket/catch", "--num-seeds", "x"],
            "`--num-seeds` must be a whole number; got 'x'. See `offtrace sweep",
        ),
        (["sweep", "pocket/catch", "--lambdas=0.5x"], "`--lambdas` must be a number; got '0.5x'."),
        (
            ["sweep", "--num-sedes", "3"],
            "Unrecognized options: --num-sedes, 3. Did you mean --num-seeds? See `offtrace sweep",
        ),
        *(
            (["train", "pocket/catch", name, "3"], f"Unrecognized options: {name}, 3. Did you mean {same}?")
            for name, same in ELSEWHERE.items()
        ),
        (["swep"], "Valid options: reproduce, train, sweep, report,"),
        (["sweep", "--engine", "x"], "invalid choice 'x' for argument '--engine'."),
        (["sweep", "pocket/catch", "--num-seeds", "1000000"], "at most 1,000,000 runs; got 4,000,000."),
    ],
)
def test_what_cannot_be_parsed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert text in refused(capsys, tmp_path, *arguments)


@pytest.mark.parametrize(
    ("game", "missing", "extra"),
    [
        ("atari/pong", ("ale_py", "ale_py.vector_env", "offtrace.environments.atari"), "atari"),
        ("minatar/breakout", ("pgx.minatar.breakout",), "minatar"),
    ],
)
def test_a_game_whose_extra_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    game: str,
    missing: tuple[str, ...],
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, missing[0], None)
    for name in missing[1:]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert f"pip install 'offtrace[{extra}]'" in refused(capsys, tmp_path, "sweep", "pocket/catch", game)


def test_each_game_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on a cluster those that are known are not: pgx would start an accelerator there."""
    seen: list[str] = []
    monkeypatch.setattr(checks, "with_options", lambda name, *_, **__: seen.append(name))
    specs = runs_of(preset("table_2", "minatar"))
    checks.check_runs(specs, here=True)
    assert len(seen) == len(set(seen)) == 5
    checks.check_runs(specs, here=False)
    assert len(seen) == 5


def test_no_table_where_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "train_population", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "pocket/catch", "--num-seeds", "1", "--traces", "retrace", "--jobs", "0"])
    assert ended.value.code == 3
    assert capsys.readouterr().out == "0 of 1 runs are in results.sqlite.\n"


@pytest.mark.parametrize("module", ["offtrace", "offtrace.cli"])
def test_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"offtrace {ot.__version__}\n", "")
