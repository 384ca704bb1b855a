"""Claims of workers on runs. A claim lives as long as its process or, from another host, as its heartbeat."""

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple


class WorkerClaim(NamedTuple):
    """A row of the table `claims`: the process that may write to a run."""

    token: str
    worker: str
    host: str
    pid: int
    born: int
    heartbeat: float


def host() -> str:
    """Return the name of the host and its pid namespace, since containers may share the name of their host."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; 0 if unknown, None if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0 if _is_running(pid) else None
    if state in (b"Z", b"X"):
        return None
    return int(others[18])


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_alive(claim: WorkerClaim, stale_seconds: float) -> bool:
    """Return whether the process of a claim is running; on another host, whether its heartbeat is recent."""
    if claim.host != host():
        return time.time() - claim.heartbeat < stale_seconds
    started = process_start(claim.pid)
    # A pid is reused after its process has ended, so the start must match too, where both are known.
    return started is not None and (started == claim.born or 0 in (started, claim.born))
