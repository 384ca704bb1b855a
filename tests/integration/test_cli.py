"""The commands as a person types them: what they print, what they write, how they end."""

import inspect
import io
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from offtrace.cli import COMMANDS, main
from offtrace.cli.errors import report_error
from offtrace.cli.streams import print_json

EIGHTY = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}


def offtrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from offtrace.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, env=EIGHTY, capture_output=True, text=True, timeout=300, check=False)


def test_worked_example_by_hand() -> None:
    """β of the example from its ratios ½, 4, ½, on paper; Watkins stops at the action that is not greedy."""
    from offtrace.reproduction import worked_example

    reach = {name: row["reach"][1:] for name, row in worked_example()["traces"].items()}
    assert reach["importance_sampling"] == pytest.approx([0.5, 2.0, 1.0])
    assert reach["retrace"] == pytest.approx([0.5, 0.5, 0.25])
    assert reach["tree_backup"] == pytest.approx([0.3, 0.24, 0.108])
    assert reach["recursive_retrace"] == pytest.approx([0.5, 1.0, 0.5])
    assert reach["truncated_is"] == pytest.approx([0.5, 1.0, 1.0])
    assert reach["watkins"] == pytest.approx([1.0, 1.0, 0.0])
    assert reach["soft_watkins"] == pytest.approx([1.0, 1.0, 0.45])


def test_bench_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", "--list"])
    assert "return_operator" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["bench", "no_such_thing"])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "return_operator" in told


def test_help_lists_the_verbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--help`, and in a process of its own without any argument."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    done = offtrace(cwd=tmp_path)
    assert done.returncode == 0
    for text in (capsys.readouterr().out, done.stdout):
        assert all(f" {command} " in text for command in COMMANDS)
        assert "Example:" not in text, "the list has one sentence per command"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_verb_fits_80_columns_and_has_an_example(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert max(map(len, text.splitlines())) <= 80
    assert f"Example: offtrace {command} " in text
    assert "\n\n\n" not in text


def test_an_option_means_the_same_in_all_verbs() -> None:
    """One name for one thing: plural where several values are meant, `num_` before a count."""
    kinds: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for name, parameter in inspect.signature(command).parameters.items():
            text = str(parameter.annotation)
            kinds.setdefault(name, set()).add("several" if "tuple[" in text else "one")
    assert {name for name, kind in kinds.items() if len(kind) > 1} == set()
    several = {name for name, kind in kinds.items() if kind == {"several"}}
    plurals = {"envs", "traces", "lambdas", "axes", "results", "formats", "names", "logs", "targets", "estimators"}
    assert several == {*plurals, "columns", "select", "allow_import"}
    assert not {"seeds", "episodes", "steps"} & set(kinds), "these are counts"


def test_version(tmp_path: Path) -> None:
    import offtrace as ot

    assert offtrace("--version", cwd=tmp_path).stdout.strip() == f"offtrace {ot.__version__}"


def test_output_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "taken"
    taken.write_text("here first")
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "--output", str(taken)])
    assert ended.value.code == 2
    assert "taken" in capsys.readouterr().err
    assert taken.read_text() == "here first"


def test_training_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['jax'] = None; from offtrace.cli import main; main(['train', 'pocket/catch'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=EIGHTY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "offtrace: this needs `jax`: pip install 'offtrace[agent]'\n"


TALKATIVE = [["--help"], ["analyze", "--help"], ["sweep", "--help"], ["train", "--help"], ["doctor", "--list"]]
TALKATIVE += [["analyze", "FrozenLake-v1"], ["report", "--help"], ["reproduce", "--help"], ["watch", "--help"]]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", TALKATIVE, ids=" ".join)
def test_a_terminal_without_greek(arguments: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every letter that it lacks has a name, and nothing fails."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    monkeypatch.setattr(sys, "stdout", shown)
    with suppress(SystemExit):
        main(arguments)
    text = shown.buffer.getvalue().decode(encoding)
    assert len(text) > 200
    assert "\\u" not in text, "there is a word for each"
    if arguments in (["--help"], ["analyze", "FrozenLake-v1"]):
        assert "lambda" in text


def test_json_for_a_program_keeps_its_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, written in (("ascii", '"\\u03bb"'), ("utf-8", '"λ"')):
        shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
        monkeypatch.setattr(sys, "stdout", shown)
        print_json("λ")
        assert shown.buffer.getvalue().decode(encoding).strip() == written


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "pocket/catch", "--output", ""],
        ["train", "pocket/catch", "--output="],
        ["sweep", "pocket/catch", "--output", ""],
        ["report", ""],
        ["report", "results.sqlite", "--output", ""],
        ["watch", ""],
        ["reproduce", "--output", ""],
        ["bench", "--output", "", "--quick"],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "must not be empty" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_interrupt_verbs_that_save_nothing(name: str, tmp_path: Path) -> None:
    """Cleanly, with the exit code of Ctrl-C."""
    kills = (
        "import os, signal; from offtrace import cli; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        f"cli.COMMANDS['bench'] = lambda: os.kill(os.getpid(), signal.{name}); cli.main(['bench'])"
    )
    done = subprocess.run([sys.executable, "-c", kills], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "offtrace: interrupted\n")


def test_an_ignored_hang_up_stays_ignored(tmp_path: Path) -> None:
    """As under `nohup`."""
    survives = (
        "import os, signal; from offtrace import cli; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "cli.COMMANDS['bench'] = lambda: os.kill(os.getpid(), signal.SIGHUP); cli.main(['bench']); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", survives], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    "arguments",
    [["analyze", "chain"], ["analyze", "chain", "--json"], ["doctor", "--list"], ["--help"], ["--version"]],
)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_closed_pipe_is_no_error(arguments: list[str], unbuffered: str, tmp_path: Path) -> None:
    """As in `offtrace analyze chain | head -1`. Short outputs are written at exit, unless Python buffers nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "offtrace", *arguments]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path, env=env
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["tran", "train CartPole-v1 --lamda 0.5", "analyze chain --lambdas x"])
def test_an_error_of_parsing_has_no_colours(arguments: str, capfd: pytest.CaptureFixture[str]) -> None:
    """tyro writes them if standard output is one."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "offtrace", *arguments.split()]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    os.close(ours)
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert done.returncode == 2
    assert done.stderr == capfd.readouterr().err
    assert "\\x1b" not in done.stderr


def test_a_full_disk_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "offtrace", "analyze", "chain", "--traces", "retrace"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr == "offtrace: [Errno 28] No space left on device\n"


def test_a_missing_package_with_its_remedy_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = ImportError("logs need `pyarrow`: pip install 'offtrace[evaluation]'")
    error.__cause__ = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert report_error(error) == 2
    assert capsys.readouterr().err == "offtrace: logs need `pyarrow`: pip install 'offtrace[evaluation]'\n"
    assert report_error(ImportError("broken")) == 3
