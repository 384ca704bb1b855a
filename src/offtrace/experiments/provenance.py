"""Provenance of results: version, commit, machine and command, stored with every run."""

import functools
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
GIT_SECONDS = 5.0


def provenance(command: str, *, computes: bool = True) -> dict[str, str]:
    """Return the provenance of results made now. It has a commit only if the package runs from a checkout.

    With `computes=False`, for a process that only hands out work, accelerators are not looked up.
    """
    made = {
        "version": version("offtrace"),
        "machine": machine(with_accelerators=computes),
        "command": command,
        "python": platform.python_version(),
        "jax": version("jax"),
        "platform": platform.platform(),
    }
    commit = commit_of(PACKAGE)
    if commit is not None:
        made["commit"] = commit
    return made


@functools.cache
def machine(*, with_accelerators: bool) -> str:
    """Return the accelerators that JAX uses, if any, and the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    processor = (names or [platform.processor()])[0] or platform.machine()
    cores = f"{os.cpu_count()} × {processor}"
    if not with_accelerators or os.environ.get("JAX_PLATFORMS") == "cpu":
        return cores
    import jax

    devices = jax.devices()
    if devices[0].platform == "cpu":
        return cores
    return f"{len(devices)} × {devices[0].device_kind}, {cores}"


@functools.cache
def commit_of(folder: Path) -> str | None:
    """Return the git commit of the source in a folder, with `+changes` if it differs from that commit.

    None if no repository tracks that source; a repository around a virtual environment does not
    count. If git fails for any reason, there is no commit and no error.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", ".")
    lines = (status or "").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits[0] == "(initial)":
        return None
    has_changes = any(not line.startswith("#") for line in lines)
    return commits[0] + ("+changes" if has_changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it fails. It takes no locks and ignores GIT_* variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
