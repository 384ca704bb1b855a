"""`offtrace reproduce` with a comparison of a few seconds: what it prints, writes, and goes on from."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offtrace.cli import main, reproduce

SMALL = """
import dataclasses, sys
from offtrace.experiments import presets, tabular
settings = {"num_steps": NUM_STEPS, "fill": 100, "epsilon_steps": 50, "hidden_sizes": (8,), "network": "mlp",
            "tick_steps": 100, "replay_size": 2_000, "num_actors": 2, "evaluation_ticks": 0, "evaluation_episodes": 2}
small = dataclasses.replace(presets.POCKET, envs=("mdp/fork",), num_seeds=2, settings=settings)
presets.SCALES, presets.SMALL_LAMBDAS = {"pocket": small}, (0.0, 0.5, 1.0)
whole = tabular.run
def run(study, progress=None):
    games = ("fork",) if study.exact else ("chain 8", "random 1")
    return whole(dataclasses.replace(study, games=games, num_seeds=2, num_episodes=20), progress=progress)
tabular.run = run
import vl_convert  # the charts are drawn; test_report.py also makes them PNG and PDF
vl_convert.svg_to_png = vl_convert.svg_to_pdf = lambda svg, **_: svg.encode()
from offtrace.cli import main
main(sys.argv[1:])
"""
EIGHTY = {**os.environ, "COLUMNS": "80", "TERM": "dumb", "JAX_PLATFORMS": "cpu"}


NO_PAGE = "from offtrace import reproduction; reproduction.write_page = lambda *_, **__: None"


def started(cwd: Path, *arguments: str, num_steps: int = 1_200, first: str = "") -> subprocess.Popen[str]:
    code = first + SMALL.replace("NUM_STEPS", str(num_steps))
    command = [sys.executable, "-c", code, "reproduce", "--jobs", "0", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=EIGHTY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    folder = tmp_path_factory.mktemp("clone")
    process = started(folder, "--output", "näch ste", "--json")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return folder / "näch ste", out, err


def test_it_prints_and_writes(reproduced: tuple[Path, str, str]) -> None:
    """With --json the numbers are for a program, and what a person reads goes to stderr."""
    output, out, err = reproduced
    assert max(map(len, err.splitlines())) <= 80
    for text in ("0.8759", "0.8698", "recursive_retrace", "The small world: 1 game", "from DQN to Retrace"):
        assert text in err
    *_, last = err.strip().splitlines()
    assert last.endswith("index.html")
    told = " ".join(err.partition("What was found")[2].split())
    for subject in (
        "Safety: in theory, at λ = 1, one step of Q(λ)",
        "Traces: compared with",
        "DQN: Retrace(0.5) minus DQN is",
    ):
        assert subject in told
    numbers = json.loads(out)
    assert numbers == json.loads((output / "numbers.json").read_text(encoding="utf-8"))
    assert numbers["published_tables"]["retrace"]["times_best"] == 30
    assert numbers["published_tables"]["dqn"]["times_best"] == 12
    assert numbers["worked_example"]["difference"] < 1e-12
    tables = ["The small world, tabular", "2 small MDPs, tabular"]
    assert list(numbers["claims"]) == ["The small world", *tables, "The paper's 60 Atari games"]
    assert len(numbers["found"]) == 3


def test_the_page_has_all_of_it(reproduced: tuple[Path, str, str]) -> None:
    output, _, _ = reproduced
    page = (output / "index.html").read_text(encoding="utf-8")
    titles = ("Verdicts", "The small world", "2 small MDPs, tabular", "Contraction against variance")
    for title in (*titles, "The paper's 60 Atari games"):
        assert f"{title}</h2>" in page.replace("&#x27;", "'"), title
    names = {path.name for path in (output / "figures").iterdir()}
    stems = ("opening_theory", "opening_tables", "opening_networks", "the-small-world_sensitivity-evaluation")
    for stem in (*stems, "the-small-world_distribution-final", "published_distribution-final"):
        assert {f"{stem}.png", f"{stem}.svg", f"{stem}.pdf"} <= names


def test_what_is_there_is_not_run_again(reproduced: tuple[Path, str, str]) -> None:
    output, _, _ = reproduced
    before = ended(output)
    assert len(before) == 2 * (3 * 2 + 1 + 3)  # seeds × (three traces at two λ, λ = 0, DQN and two of its rungs)
    assert "by 20 runs of networks" in reproduced[2]
    assert "The small world: 20 runs on 1 game" in (output / "index.html").read_text(encoding="utf-8")
    process = started(output.parent, "--output", output.name, first=NO_PAGE)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert ended(output) == before


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("jax equinox altair", "this needs `jax`, `equinox`, `altair`: pip install 'offtrace[agent,report]'"),
        ("gymnasium", "this needs `gymnasium`: pip install 'offtrace[agent]'"),
        ("pgx", "this needs `pgx`: pip install 'offtrace[minatar]'"),
    ],
)
def test_what_is_missing_is_told_before_it_begins(
    missing: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in missing.split():
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "--scale", "minatar", "--output", str(tmp_path / "reproduction")])
    told = capsys.readouterr()
    assert (end.value.code, told.out, told.err) == (2, "", f"offtrace: {text}\n")
    assert list(tmp_path.iterdir()) == []


def test_without_a_page_it_says_so_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    monkeypatch.setattr(reproduce, "run", lambda *_, **__: {"num_diverged": 1})
    with pytest.raises(SystemExit) as end:
        main(["reproduce", "--output", str(tmp_path)])
    assert end.value.code == 3, "some run diverged"
    told = " ".join(capsys.readouterr().out.split())
    assert told == "There will be tables but no page, which needs `altair`: pip install 'offtrace[report]'"


def test_it_needs_no_charts() -> None:
    """Without the extra `report` it prints all the same; only the page is missing."""
    code = "import sys; sys.modules['altair'] = None; from offtrace import reproduction; print(reproduction.findings)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_stopped_it_goes_on(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the training: what it had is there, and the same command ends as if nothing was."""
    process = started(tmp_path, num_steps=40_000)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None and not reports(tmp_path / "reproduction"):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "The same command resumes." in " ".join(out.split())
    assert len(ended(tmp_path / "reproduction")) < 20
    written = reports(tmp_path / "reproduction")
    assert written
    again = started(tmp_path, num_steps=40_000)
    while time.monotonic() < until + 120 and again.poll() is None and reports(tmp_path / "reproduction") <= written:
        time.sleep(0.2)
    assert reports(tmp_path / "reproduction") > written  # from where it was, and not from the beginning
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=120)


def ended(output: Path) -> dict[str, str]:
    """When each run was done."""
    with sqlite3.connect(output / "results.sqlite") as connection:
        return dict(connection.execute("SELECT fingerprint, ended_at FROM runs WHERE status = 'done'"))


def reports(output: Path) -> int:
    """The furthest tick of all runs."""
    try:
        with sqlite3.connect(f"file:{output / 'results.sqlite'}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT coalesce(max(tick), 0) FROM reports").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
