"""Who is at work on a run: a claim is as alive as its process, or, from afar, as its heartbeat."""

import os
import socket
import time
from pathlib import Path
from typing import NamedTuple


class Claim(NamedTuple):
    token: str
    worker: str
    host: str
    pid: int
    born: int
    heartbeat: float


def host() -> str:
    """Where a pid means something: containers may share the name of their host."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def birth(pid: int) -> int | None:
    """When a process began, in the system's own count; 0 if that is not known; None if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return None if state in (b"Z", b"X") else int(others[18])
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0


def is_alive(claim: Claim, stale_seconds: float) -> bool:
    if claim.host != host():
        return time.time() - claim.heartbeat < stale_seconds
    born = birth(claim.pid)
    return born is not None and (born == claim.born or 0 in (born, claim.born))
