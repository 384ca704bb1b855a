"""The examples run, print something true, and stay short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_runs(example: Path) -> None:
    """The one in PyTorch also learns: V^π on its ring is known in closed form, and the error ends under 0.02."""
    assert len(example.read_text(encoding="utf-8").splitlines()) < 80
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if example.stem == "03_train_in_torch":
        found = re.search(r"(\d\.\d+) of", done.stdout)
        assert found is not None
        assert float(found[1]) < 0.02
