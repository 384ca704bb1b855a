"""Compiled kernels are kept on disk until a file of their room changes."""

import os
import subprocess
import sys
from pathlib import Path

INNER = "from offtrace.kernels import jit\n\n\n@jit()\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from inner import inner\nfrom offtrace.kernels import jit\n\n\n@jit()\ndef outer(x):\n    return 10 * inner(x)\n"
)
CALL = "from outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"


def called(room: Path) -> list[int]:
    """What the kernel gives, and how often it was found on disk."""
    environment = {**os.environ, "PYTHONPATH": str(room), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_change_in_what_a_kernel_calls_is_seen(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert called(tmp_path) == [20, 0]
    assert called(tmp_path) == [20, 1]
    (tmp_path / "inner.py").write_text(INNER.format(2))
    assert called(tmp_path) == [30, 0]
