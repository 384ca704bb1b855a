"""`offtrace doctor` on a user's file, in their own folder."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from offtrace.cli import main

COMMAND = "from offtrace.cli import main; main()"

THEIRS = """
import numpy as np

def right(q, a, r, discount, pi, mu_a, lam):
    return _retrace(q, a, r, discount, pi, mu_a, lam, 1)

def early(q, a, r, discount, pi, mu_a, lam):
    return _retrace(q, a, r, discount, pi, mu_a, lam, 0)

def _retrace(q, a, r, discount, pi, mu_a, lam, shift):
    v = (q * pi).sum(-1)
    g = np.zeros(len(r))
    for t in reversed(range(len(r))):
        g[t] = r[t] + discount[t] * v[t + 1]
        if t + 1 < len(r):
            c = lam * min(1.0, pi[t + shift, a[t + shift]] / mu_a[t + shift])
            g[t] += discount[t] * c * (g[t + 1] - q[t + 1, a[t + 1]])
    return g

def adapter(window):
    return right(window.q, window.a, window.r, window.discount, window.pi, window.mu_a, window.lambda_)

def strange(colour, shape):
    return colour

def lazy(q, a, r, discount, pi):
    import a_module_nobody_has

def leaves(q, a, r, discount, pi, mu_a, lam):
    print("RIGHT: `leaves` is Retrace.")
    raise SystemExit(0)

def ignores_mu(q, a, r, discount, pi, mu_a, lam):
    return _retrace(q, a, r, discount, pi, np.minimum(mu_a, taken(pi, a)) * 0 + taken(pi, a), lam, 1)

def taken(rows, a):
    return rows[np.arange(len(a)), a]

def loud(q, a, r, discount, pi, mu_a, lam):
    print("so far so good")
    return right(q, a, r, discount, pi, mu_a, lam)

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "theirs.py").write_text(THEIRS)
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no licence')\n")
    (tmp_path / "needs_more.py").write_text("import a_module_nobody_has\n")
    return tmp_path


def offtrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process; a process of its own would spend its time on imports."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(["doctor", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def test_right(folder: Path) -> None:
    """In a process of its own, as a user starts it."""
    command = [sys.executable, "-c", COMMAND, "doctor", "theirs:right"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RIGHT: `right` is Retrace")
    assert done.stderr == f"Imported theirs from {folder / 'theirs.py'}.\n"


def test_a_mistake_is_a_finding_and_not_a_failure(folder: Path) -> None:
    done = offtrace(folder, "theirs:early")
    assert done.returncode == 0
    assert "MISTAKE in `early`: c is used one step early." in done.stdout
    assert "^^^^^^^" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_strict_is_for_scripts(folder: Path) -> None:
    done = offtrace(folder, "theirs:early", "--strict")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "offtrace: `theirs:early` is not right (mistake)."
    assert offtrace(folder, "theirs:right", "--strict").returncode == 0


@pytest.mark.parametrize("function", ["theirs:leaves", "exits_on_import:f"])
def test_an_exit_of_its_own_is_no_success(folder: Path, function: str) -> None:
    (folder / "exits_on_import.py").write_text("print('RIGHT')\nraise SystemExit(0)\n")
    done = offtrace(folder, function, "--strict")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "exit" in done.stderr


def test_strict_does_not_take_what_ignores_mu_for_retrace(folder: Path) -> None:
    done = offtrace(folder, "theirs:ignores_mu", "--strict")
    assert done.returncode == 2
    assert done.stdout.startswith("NOT RETRACE: `ignores_mu` takes `mu_a` and never reads it,")
    assert offtrace(folder, "theirs:ignores_mu", "--strict", "--trace", "q_lambda").returncode == 0


def test_what_the_function_prints_is_not_the_verdict(folder: Path) -> None:
    done = offtrace(folder, "theirs:loud", "--json")
    assert json.loads(done.stdout)["right"] is True


def test_json(folder: Path) -> None:
    done = offtrace(folder, "theirs:early", "--json", "--convention", "single numpy", "--trace", "retrace")
    verdict = json.loads(done.stdout)
    assert verdict["right"] is False
    assert verdict["mistakes"] == ["c_one_step_early"]
    assert verdict["term"] == "c_{t+1}"
    assert verdict["given"] != verdict["expected"]


def test_an_adapter(folder: Path) -> None:
    done = offtrace(folder, "theirs:adapter")
    assert done.returncode == 0
    assert "RIGHT" in done.stdout


def test_list(folder: Path) -> None:
    done = offtrace(folder, "--list")
    assert done.returncode == 0
    assert "policy_of_wrong_state" in done.stdout
    assert done.stderr == ""  # nothing was imported


def test_help_shows_an_adapter(folder: Path) -> None:
    done = offtrace(folder, "--help")
    assert done.returncode == 0
    assert "def adapter(window)" in done.stdout
    assert "MODULE is imported, which runs its code" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name a function"),
        (("theirs",), "must look like `module:name`; got 'theirs'"),
        (("nowhere:f",), "there is no module 'nowhere'"),
        (("needs_more:f",), "No module named 'a_module_nobody_has'"),
        (("broken_module:f",), "RuntimeError: no licence"),
        (("theirs:missing",), "module 'theirs' has no 'missing'"),
        (("theirs:number",), "`theirs:number` must be a function; got int."),
        (("theirs:right", "--trace", "retraced"), "`trace` must be one of"),
        (
            ("theirs:right", "--convention", "sideways"),
            "the words single, time-major, batch-major, numpy, torch, jax;",
        ),
        (("theirs:adapter", "--convention", "sideways"), "`convention` must consist of"),
        (("theirs:lazy",), "`lazy` needs `a_module_nobody_has`, which is not installed."),
        (("theirs:right", "--lambda", "2"), "`lambda_` must be in"),
        (("theirs:strange",), "fits no known convention"),
    ],
)
def test_wrong_input_is_one_line_without_a_traceback(folder: Path, arguments: tuple[str, ...], text: str) -> None:
    done = offtrace(folder, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("offtrace: ")]
    assert len(errors) == 1
    assert text in errors[0]
    if "strange" in str(arguments):
        assert "\n    def adapter(window):  " in done.stderr  # on lines of its own, to be pasted
        assert "\n        return my_retrace(window.q" in done.stderr
