"""The commands as a person types them: what they print, what they write, how they end."""

import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from offtrace.cli import main
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


def test_bench_lists_and_refuses(tmp_path: Path) -> None:
    listed = offtrace("bench", "--list", cwd=tmp_path)
    assert listed.returncode == 0
    assert "return_operator" in listed.stdout
    refused = offtrace("bench", "no_such_thing", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "return_operator" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["bench", "--help"], ["reproduce", "--help"]])
def test_help(arguments: list[str], tmp_path: Path) -> None:
    done = offtrace(*arguments, cwd=tmp_path)
    assert done.returncode == 0
    assert "offtrace" in done.stdout
    if arguments[-1:] == ["--help"] and len(arguments) == 2:
        assert "Example:" in done.stdout


def test_version(tmp_path: Path) -> None:
    import offtrace as ot

    assert offtrace("--version", cwd=tmp_path).stdout.strip() == f"offtrace {ot.__version__}"


def test_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("here first")
    done = offtrace("reproduce", "--output", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken" in done.stderr
    assert (tmp_path / "taken").read_text() == "here first"


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


def test_sigterm_interrupts_whatever_runs(tmp_path: Path) -> None:
    """Also what does not train, such as the tables of a reproduction: cleanly, with the exit code of Ctrl-C."""
    kills = (
        "import os, signal; from offtrace import cli; "
        "cli.VERBS['bench'] = lambda: os.kill(os.getpid(), signal.SIGTERM); cli.main(['bench'])"
    )
    done = subprocess.run([sys.executable, "-c", kills], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "offtrace: interrupted\n")
