"""The examples run, print something true, and stay short."""

import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples"
AGENTS = sorted(FOLDER.glob("*_dqn_in_*.py"))
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - set(AGENTS))
SMALLER = {"08_evaluate_a_treatment": ["--stays", "2000"]}
"""Arguments of examples that take long."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_runs(example: Path) -> None:
    """The one in PyTorch also learns: V^π on its ring is known in closed form, and the error ends under 0.02."""
    assert len(example.read_text(encoding="utf-8").splitlines()) < 80
    command = [sys.executable, "-W", "error", example, *SMALLER.get(example.stem, [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if example.stem == "03_train_in_torch":
        found = re.search(r"(\d\.\d+) of", done.stdout)
        assert found is not None
        assert float(found[1]) < 0.02


@pytest.mark.parametrize("example", AGENTS, ids=lambda p: p.stem)
def test_agents_run(
    example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unchanged_torch: None
) -> None:
    """A few updates and the evaluation, in this process; docs/returns.md shows what a whole run learns."""
    assert len(example.read_text(encoding="utf-8").splitlines()) < 120
    monkeypatch.setattr(sys, "argv", [str(example), "--seed", "3", "--num-steps", "1000"])
    runpy.run_path(str(example), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.fullmatch(r"mean return of 100 greedy episodes: \d+\.\d \(500 is the maximum\)\n", printed)


@pytest.fixture
def unchanged_torch() -> Iterator[None]:
    """Restore what the example in PyTorch sets for its process: the number of threads and the random state."""
    num_threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(num_threads)
