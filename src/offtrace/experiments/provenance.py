"""With what results are made: kept beside every run, so that a number can be traced to its code."""

import functools
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
GIT_SECONDS = 5.0


def provenance(command: str, *, computes: bool = True) -> dict[str, str]:
    """Here and now. The commit is there only if the package runs from a checkout.

    A process that only hands out work does not compute, and leaves accelerators alone.
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
    return made if commit is None else {**made, "commit": commit}


@functools.cache
def machine(*, with_accelerators: bool) -> str:
    """The processor, after the accelerators that JAX uses, if any."""
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
    return cores if devices[0].platform == "cpu" else f"{len(devices)} × {devices[0].device_kind}, {cores}"


@functools.cache
def commit_of(folder: Path) -> str | None:
    """The git commit of the source in a folder, with `+changes` if it is not as committed there.

    None if no repository keeps that source: one that only surrounds it, as around a virtual environment, says nothing
    of it. Whatever is wrong with git, there is no commit, and no error.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=normal", "--", ".")
    lines = (status or "").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    if not commits or commits[0] == "(initial)":
        return None
    return commits[0] + ("+changes" if any(not line.startswith("#") for line in lines) else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What it prints; None if it fails. It takes no locks, and does not listen to variables meant for others."""
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
