"""The examples run, print something true, and stay short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def output_of(example: Path) -> str:
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_runs(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 80
    assert output_of(example).strip()


def test_the_torch_example_learns() -> None:
    """V^π on the ring is known in closed form: the error ends under 0.02."""
    text = output_of(EXAMPLES[2])
    found = re.search(r"(\d\.\d+) of", text)
    assert found is not None
    assert float(found[1]) < 0.02
