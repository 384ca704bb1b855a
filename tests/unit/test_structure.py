"""The structure of the code: which package imports which, the cost of importing, what `src/` must not hold."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from loops import each

import offtrace

SOURCE = Path(__file__).parents[2] / "src" / "offtrace"  # an installed package also has the benchmarks
FILES = sorted(SOURCE.rglob("*.py"))

MAY_IMPORT = {
    "arrays": set(),
    "errors": {"arrays"},
    "likelihoods": {"arrays", "errors"},
    "traces": {"arrays", "errors", "likelihoods", "kernels"},
    "threads": set(),
    "ray_connection": {"threads"},
    "imports": set(),
    "kernels": set(),
    "files": set(),
    "writing": set(),
    "policies": {"arrays", "errors"},
    "mdp": {"imports", "likelihoods", "errors"},
    "operators": {"mdp", "traces", "threads", "kernels"},
    "safety": {"evaluation", "files", "mdp", "policies", "traces", "operators"},
    "scores": set(),
    "returns": {"arrays", "errors", "likelihoods", "traces", "threads", "kernels"},
    "evaluation": {
        "agent",
        "files",
        "imports",
        "kernels",
        "likelihoods",
        "mdp",
        "ray_connection",
        "returns",
        "threads",
        "traces",
        "writing",
    },
    "online": {"mdp", "traces", "likelihoods", "kernels", "threads"},
    "doctor": {"arrays", "traces"},
    "environments": {"imports", "mdp", "threads"},
    "agent": {"arrays", "imports", "writing", "errors", "kernels", "policies", "traces", "returns", "environments"},
    "experiments": {
        "imports",
        "ray_connection",
        "writing",
        "threads",
        "mdp",
        "policies",
        "operators",
        "safety",
        "online",
        "scores",
        "agent",
        "environments",
        "traces",
    },
    "report": {
        "evaluation",
        "writing",
        "traces",
        "policies",
        "mdp",
        "operators",
        "scores",
        "safety",
        "experiments",
        "agent",
    },
    "bench": {"writing", "threads"},
    "reproduction": {"mdp", "returns", "scores", "report", "experiments", "agent"},
    "watch": {"writing", "environments"},
    "cli": {
        "environments",
        "evaluation",
        "traces",
        "imports",
        "mdp",
        "safety",
        "scores",
        "doctor",
        "agent",
        "experiments",
        "report",
        "reproduction",
        "bench",
        "watch",
    },
    "__main__": {"cli"},
}
"""What each package or module may import: downwards only."""

FRONT = {"reproduction", "cli"}
"""Packages that may also `import offtrace as ot`."""


def package(path: Path) -> str:
    """Return the package or module that a file belongs to."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "offtrace":
            inner = node.module.split(".")[1:]
            found |= {inner[0]} if inner else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {name[1] if len(name) > 1 else "offtrace" for name in names if name[0] == "offtrace"}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path.name}: relative import"
    return found


@each("path", {str(path.relative_to(SOURCE)): path for path in FILES})
def test_imports_go_down_only(path: Path) -> None:
    name = package(path)
    if name == "__init__":
        return
    assert name in MAY_IMPORT, f"{name} is a new package: add to MAY_IMPORT what it may import"
    allowed = MAY_IMPORT[name] | {name} | ({"offtrace"} if name in FRONT else set())
    assert imported_packages(path) <= allowed


def test_no_permission_is_unused() -> None:
    used: dict[str, set[str]] = {name: set() for name in MAY_IMPORT}
    for path in FILES:
        if package(path) != "__init__":
            used[package(path)] |= imported_packages(path)
    assert {name: may - used[name] for name, may in MAY_IMPORT.items() if may - used[name]} == {}


PRINTS = {"cli"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_command_line_prints_and_exits(path: Path) -> None:
    """A worker process of a sweep is the exception: its exit code is how it reports a full disk."""
    if package(path) in PRINTS or path.relative_to(SOURCE) == Path("experiments/workers.py"):
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("print", "sys.exit", "exit"), f"line {node.lineno}"


def test_the_import_check_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from offtrace.cli import main\nimport offtrace.bench\nfrom offtrace import report\n")
    assert imported_packages(bad) == {"cli", "bench", "report"}


HEAVY = ("jax", "torch", "numba", "scipy", "gymnasium", "altair", "rich", "tyro", "rlax", "pandas")


def test_import_loads_numpy_and_nothing_heavier() -> None:
    """And takes under 0.1 s beyond NumPy: the best of five, of the processor's time, as others may be busy."""
    code = (
        "import sys, time, numpy; start = time.process_time(); import offtrace; "
        "print(time.process_time() - start); print(*sys.modules)"
    )
    seconds = []
    for _ in range(5):
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        duration, modules = output.split("\n", 1)
        seconds.append(float(duration))
        loaded = modules.split()
        assert not {name.split(".")[0] for name in loaded} & set(HEAVY)
        assert not {f"offtrace.{room}" for room in offtrace._PACKAGES} & set(loaded)
    assert min(seconds) < 0.1


FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve"}


@each("path", {str(path.relative_to(SOURCE)): path for path in FILES})
def test_nothing_unsafe(path: Path) -> None:
    """No pickle, no `eval` or `exec`, no shell: a file is data and never runs."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            assert not {name.split(".")[0] for name in names} & FORBIDDEN_MODULES
        if isinstance(node, ast.keyword):
            unsafe = node.arg in ("shell", "allow_pickle") and getattr(node.value, "value", None) is True
            assert not unsafe


def test_public_names_exist_and_are_documented() -> None:
    for name in (*offtrace.__all__, *offtrace._AGENT):
        assert hasattr(offtrace, name)
        if not name.startswith("__") and name != "TRACES":
            assert getattr(offtrace, name).__doc__


def test_the_agent_without_its_extra() -> None:
    """Nobody who looks around is stopped: `help`, completion, a star; who asks for it is told what to install."""
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from offtrace import *; import offtrace as ot, pydoc, inspect\n"
        "assert not hasattr(ot, 'load_policy') and 'load_policy' in dir(ot)\n"
        "assert 'Retrace' in dict(inspect.getmembers(ot)) and 'Retrace' in pydoc.render_doc(ot)\n"
    )
    for asked, kind in (("ot.load_policy", "AttributeError"), ("train(TrainSpec('pocket/catch'))", "ImportError")):
        ended = subprocess.run([sys.executable, "-c", code + asked], capture_output=True, text=True)
        name = asked.partition("(")[0].removeprefix("ot.")
        says = f"{kind}: `ot.{name}` needs an extra: pip install 'offtrace[agent]'"
        assert ended.stderr.splitlines()[-1].startswith(says)


def test_a_star_brings_what_trains_and_not_jax() -> None:
    code = (
        "import sys\n"
        "from offtrace import *\n"
        "assert 'jax' not in sys.modules and 'torch' not in sys.modules\n"
        "print(TrainSpec.__name__, train.__name__)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["TrainSpec", "train"], ended.stderr


def test_train_is_the_agent_s() -> None:
    """The function that loads the agent has the parameters and defaults of the real one."""
    training = pytest.importorskip("offtrace.agent.training")
    real = inspect.signature(training.train).parameters
    cheap = inspect.signature(offtrace.train).parameters
    assert list(real) == list(cheap)
    for name in set(real) - {"stop"}:
        assert real[name].default == cheap[name].default
    with pytest.raises(ValueError, match="`spec` must not be empty"):
        offtrace.train([])


def test_dir_shows_public_names_only() -> None:
    names = (
        "doctor",
        "experiments",
        "mdp",
        "online",
        "operators",
        "policies",
        "returns",
        "safety",
        "scores",
        "traces",
    )
    for name in names:
        module = getattr(offtrace, name)
        assert dir(module) == sorted(module.__all__), name
    assert set(dir(offtrace)) == {*offtrace.__all__, *offtrace._LOADING}
    assert (SOURCE / "py.typed").exists()


def test_version_is_the_package_metadata() -> None:
    from importlib.metadata import version

    assert offtrace.__version__ == version("offtrace")
