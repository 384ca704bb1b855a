"""Compiled kernels are cached on disk until a file of their package, or one of the shared kernels, changes.

Those that make no array count no references.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError

from offtrace.kernels import jit

INNER = "from offtrace.kernels import jit\n\n\n@jit()\ndef inner(x):\n    return x + {}\n"
OUTER = (
    "from inner import inner\nfrom offtrace.kernels import jit\n\n\n@jit()\ndef outer(x):\n    return 10 * inner(x)\n"
)
CALL = "from outer import outer; print(outer(1), sum(outer.stats.cache_hits.values()))"


def called(package: Path, *others: Path, code: str = CALL) -> list[int]:
    """What the kernel returns, and how often it was found on disk."""
    path = os.pathsep.join([str(package), *map(str, others), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def test_a_change_in_what_a_kernel_calls_is_seen(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert called(tmp_path) == [20, 0]
    assert called(tmp_path) == [20, 1]
    (tmp_path / "inner.py").write_text(INNER.format(2))
    assert called(tmp_path) == [30, 0]


def test_a_change_in_a_shared_kernel_is_seen_by_other_packages(tmp_path: Path) -> None:
    package, shared = tmp_path / "package", tmp_path / "shared"
    package.mkdir()
    shared.mkdir()
    (package / "outer.py").write_text(OUTER)
    (shared / "inner.py").write_text(INNER.format(1))
    code = f"import pathlib, offtrace.kernels as k; k.SHARED = (pathlib.Path({str(shared)!r}, 'inner.py'),); {CALL}"
    assert called(package, shared, code=code) == [20, 0]
    assert called(package, shared, code=code) == [20, 1]
    (shared / "inner.py").write_text(INNER.format(2))
    assert called(package, shared, code=code) == [30, 0]


def test_the_shared_kernels_are_there() -> None:
    from offtrace.kernels import SHARED

    assert all(file.exists() for file in SHARED)


def test_a_file_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """The index (nbi) or the code (nbc): the kernel's is emptied, and that of what it calls lacks its last byte."""
    (tmp_path / "outer.py").write_text(OUTER)
    (tmp_path / "inner.py").write_text(INNER.format(1))
    assert called(tmp_path) == [20, 0]
    for kind in ("nbi", "nbc"):
        (outer,) = tmp_path.rglob(f"outer*.{kind}")
        (inner,) = tmp_path.rglob(f"inner*.{kind}")
        cut = {outer: b"", inner: inner.read_bytes()[:-1]}
        for file, content in cut.items():
            file.write_bytes(content)
        assert called(tmp_path) == [20, 0], kind
        assert all(file.read_bytes() != content for file, content in cut.items()), kind
    assert called(tmp_path) == [20, 1]


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


def inner_product(pair):
    total = 0.0
    for i in range(pair.left.size):
        total += pair.left[i] * pair.right[i]
    return total


def filled(value):
    return np.full(3, value)[0]


def test_a_kernel_without_allocation_counts_no_references() -> None:
    pair = Pair(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    for allocates in (True, False):
        kernel = jit(allocates=allocates)(inner_product)
        kernel._cache = NullCache()  # what is read from disk cannot be inspected
        assert kernel(pair) == 1 * 3 + 2 * 4
        assert ("NRT_decref" in kernel.inspect_llvm(kernel.signatures[0])) == allocates


def test_a_kernel_without_allocation_cannot_make_an_array() -> None:
    assert jit()(filled)(2.0) == 2
    with pytest.raises(NumbaError):
        jit(allocates=False)(filled)(3)


def test_where_numba_lacks_the_option_references_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offtrace.kernels.CAN_BORROW", False)
    assert "_nrt" not in jit(allocates=False)(inner_product).targetoptions


def test_the_learner_counts_no_references() -> None:
    """Counting took half of the time. Only `reachable` makes arrays, once per call."""
    from offtrace.online import compiled_learner, compiled_trace, simulate
    from offtrace.traces import formulas

    counts = {
        name: kernel.targetoptions.get("_nrt", True)
        for module in (compiled_learner, compiled_trace, simulate, formulas)
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
    }
    assert {"run", "trajectory", "sample", "coefficient", "factor"} <= set(counts)
    assert [name for name in counts if counts[name]] == ["reachable"]


LATE = """
import {module}, threading, time
import numpy as np
import offtrace as ot

n, b, a = 40, 4096, 18
half = np.full((n, b), 0.5, np.float32)
q, pi = np.ones((n + 1, b, a), np.float32), np.full((n + 1, b, a), 1 / a, np.float32)
given = dict(q=q, pi=pi, a=np.zeros((n, b), np.int64), r=half, discount=half, mu_a=half, trace=ot.Retrace(0.9))
first = ot.targets(**given) if {warm} else None


def late():
    time.sleep(0.3)
    out = ot.targets(**given)
    print(out.shape, first is None or bool((out == first).all()), flush=True)


{register}
"""


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("module", "register"), [("atexit", "atexit.register(late)"), ("sys", "threading.Thread(target=late).start()")]
)
def test_large_targets_after_the_main_thread_has_ended(module: str, register: str, warm: bool) -> None:
    code = LATE.format(module=module, register=register, warm=warm)
    environment = {**os.environ, "OFFTRACE_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "(40, 4096) True\n", done.stderr
