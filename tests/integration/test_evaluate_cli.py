"""`offtrace evaluate` as a user types it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import offtrace as ot
from offtrace.cli import main
from offtrace.evaluation import estimate, write
from offtrace.evaluation.simulation import simulate

MDP = ot.mdp.chain(5, gamma=0.9)
PI = np.tile([0.45, 0.55], (5, 1))
LOG = simulate(MDP, np.full((5, 2), 0.5), 300, seed=0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(LOG, tmp_path / "log.parquet")
    np.save(tmp_path / "new.npy", PI)
    np.save(tmp_path / "other.npy", PI[:, ::-1])
    (tmp_path / "policies_for_test.py").write_text(
        "import numpy as np\ndef new(states):\n    return np.tile([0.45, 0.55], (len(states), 1))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", "log.parquet", "--target", "new.npy", "--gamma", "0.9", "--lambda", "0.9"])
    out = capsys.readouterr().out
    assert out.startswith("Can this log answer the question? Yes: read the weighted doubly robust estimate")
    assert all(len(line) <= 80 for line in out.splitlines())
    for name in ("Retrace(λ = 0.9)", "FQE", "WPDIS", "WDR", "the log itself"):
        assert f"\n{name} " in out
    assert "300 episodes" in out


def test_an_interval_stays_on_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where numbers are small, and some of them below 0. All have as many decimals."""
    few = np.flatnonzero(LOG.reward)[::12]
    reward = np.zeros(LOG.num_steps)
    reward[few] = np.where(np.arange(len(few)) % 2, 7.0, -5.0)
    write(replace(LOG, reward=reward), folder / "few.parquet")
    main(["evaluate", "few.parquet", "--target", "new.npy", "--gamma", "0.9", "--lambda", "0.9"])
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("───"))
    rows = [line.split() for line in lines[first + 1 :] if " to " in line and "├" in line]
    assert len(rows) == 9
    numbers = [word for row in rows for word in row if word.lstrip("-").replace(".", "").isdigit()]
    assert any(word.startswith("-") for word in numbers)
    assert len({len(word.partition(".")[2]) for word in numbers}) == 1


def test_json_has_the_numbers_of_the_library(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", "log.parquet", "--target", "policies_for_test:new", "--gamma", "0.9", "--json"])
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    wanted = estimate(LOG, target=PI, gamma=0.9, trace=ot.Retrace(1.0))
    for one in found["estimates"]:
        assert one["value"] == pytest.approx(wanted[one["name"]].value, rel=1e-9)
        assert one["interval"] == pytest.approx(wanted[one["name"]].interval, rel=1e-6)
    assert found["verdict"]["answer"] == "yes"
    assert "Imported policies_for_test" in captured.err


def test_several_policies_and_a_chart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            "evaluate",
            "log.parquet",
            "--target",
            "new.npy",
            "--targets",
            "other.npy",
            "--gamma",
            "0.9",
            "--output",
            "out",
        ]
    )
    out = capsys.readouterr().out
    assert "Which policy is better?" in out
    assert {path.name for path in (folder / "out").iterdir()} == {
        "evaluation.csv",
        "evaluation.json",
        "evaluation.pdf",
        "evaluation.png",
        "evaluation.svg",
    }
    found = json.loads((folder / "out" / "evaluation.json").read_text())
    assert found["ranking"][0] == "new.npy"
    assert len(found["differences"]) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a log"),
        (["log.parquet"], "name a target policy"),
        (["missing.parquet", "--target", "new.npy"], "missing.parquet"),
        (["log.parquet", "--target", "missing.npy"], "missing.npy"),
        (["log.parquet", "--target", "new.npy", "--gamma", "2"], "`gamma` must be in [0, 1]; got 2.0."),
        (["log.parquet", "--target", "new.npy", "--columns", "state"], "`columns` must look like `state=s`"),
        (["new.npy", "--target", "new.npy"], "new.npy"),
    ],
)
def test_wrong_input(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *arguments])
    assert stop.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_each_problem_of_a_log_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a name in it would move the cursor."""
    rows = ["episode,step,state,action,reward,terminated,truncated,\x1b[2J"]
    rows += ["0,0,0,-1,0.5,False,False,0", "0,1,0,0,inf,True,False,0"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    np.save(tmp_path / "policy.npy", np.array([[0.5, 0.5]]))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(tmp_path / "log.csv"), "--target", str(tmp_path / "policy.npy")])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert (
        "offtrace: the log cannot be used (rows count from 0):\n  - `action` must not be negative: row 0\n  - "
        in told
    )
    assert "\x1b" not in told
