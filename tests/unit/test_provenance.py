"""The provenance of results: the commit is recorded only if it is known to be that of this source."""

import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from offtrace.experiments import provenance as module
from offtrace.experiments.provenance import commit_of, provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false")
    command = ["git", *me, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a module, outside any repository."""
    folder = tmp_path / "tree" / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("x = 1\n")
    return folder


def commit(package: Path) -> str | None:
    """Return the commit; a new process is needed, since it is read once per process."""
    commit_of.cache_clear()
    return commit_of(package)


@needs_git
def test_from_this_checkout() -> None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or root not in module.PACKAGE.parents:
        pytest.skip("the package does not run from a checkout")
    made = provenance("a test")
    assert made["commit"].removesuffix("+changes") == git(root, "rev-parse", "HEAD")
    assert (made["version"], made["command"]) == (version("offtrace"), "a test")


@needs_git
def test_a_folder_without_git_has_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit(package) is None
    assert commit(package / "not there") is None
    monkeypatch.setattr(module, "PACKAGE", package)
    assert "commit" not in provenance("a test")


@needs_git
def test_changes_are_told(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes in the package, whatever a hook has set in the environment."""
    tree = package.parents[1]
    git(tree, "init", "--quiet")
    assert commit(package) is None
    git(tree, "add", ".")
    assert commit(package) is None, "nothing is committed"
    git(tree, "commit", "--quiet", "--message", "one")
    head = git(tree, "rev-parse", "HEAD")
    assert re.fullmatch("[0-9a-f]{40,64}", head)
    (tree / "notes.txt").write_text("of something else")
    monkeypatch.setenv("GIT_DIR", "/not/there")
    assert commit(package) == head
    (package / "new.py").write_text("y = 2\n")
    assert commit(package) == f"{head}+changes"
    (package / "new.py").unlink()
    (package / "module.py").write_text("x = 2\n")
    assert commit(package) == f"{head}+changes"


@needs_git
def test_a_repository_around_it_is_not_its_own(package: Path) -> None:
    """For example a user's project with a virtual environment inside."""
    tree = package.parents[1]
    git(tree, "init", "--quiet")
    (tree / ".gitignore").write_text("src/\n")
    git(tree, "add", ".gitignore")
    git(tree, "commit", "--quiet", "--message", "one")
    assert commit(package) is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(module.PACKAGE) is None
    commit_of.cache_clear()
