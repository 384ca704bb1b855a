"""Large loops, split over threads.

Numba's own parallel loops abort the process when they are entered from several Python threads at
once (its layer `workqueue`) or in a child after a fork (its layer `omp`). Replay workers and vector
environments do both. A pool of plain threads around kernels that release the GIL has neither
problem.
"""

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = TypeVar("Part")

WORTH_THREADS = 6 << 20
"""Bytes of input below which passing a part to another thread (50 µs) costs more than it saves."""

HEAD_START = 1 << 20
"""Bytes that the calling thread processes while the others wake up; its part is larger by as much."""

_POOL: "ThreadPoolExecutor | None" = None
_POOL_LOCK = threading.Lock()


def num_threads() -> int:
    """Return `OFFTRACE_NUM_THREADS`, or the number of cores this process may use, at most 16."""
    given = os.environ.get("OFFTRACE_NUM_THREADS", "")
    if given:
        if not given.isdecimal() or int(given) < 1:
            raise ValueError(f"`OFFTRACE_NUM_THREADS` must be a whole number of at least 1; got {given!r}.")
        return int(given)
    return min(num_cores(), 16)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _forget_pool() -> None:
    global _POOL, _POOL_LOCK
    _POOL = None
    _POOL_LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # threads do not survive a fork


def _pool() -> "ThreadPoolExecutor":
    from concurrent.futures import ThreadPoolExecutor

    global _POOL
    with _POOL_LOCK:
        if _POOL is None:
            _POOL = ThreadPoolExecutor(num_threads(), thread_name_prefix="offtrace")
        return _POOL


def parts_of(kernel: Callable[[int, int], Part], size: int, num_bytes: int, least: int = 1) -> list[Part]:
    """Return what `kernel(start, stop)` returns for each part of `range(size)`, in order.

    A small input is one part; a large one is split over threads, into parts of at least `least`.

        0                    edges[1]       edges[2]         size
        ├───────────────────────┼──────────────┼──────────────┤
              calling thread        thread 1       thread 2           the first is larger by HEAD_START
    """
    parts = 1
    if num_bytes >= WORTH_THREADS:
        parts = min(num_threads(), 2 * num_bytes // WORTH_THREADS, size // least)
    if parts <= 1:
        return [kernel(0, size)]
    head = min(size * HEAD_START // num_bytes, size // parts)
    edges = [0, *(head + (size - head) * i // parts for i in range(1, parts + 1))]
    try:
        pool = _pool()
        others = [pool.submit(kernel, edges[i], edges[i + 1]) for i in range(1, parts)]
    except RuntimeError:  # a pool takes no work once the main thread has ended
        return [kernel(edges[i], edges[i + 1]) for i in range(parts)]
    return [kernel(edges[0], edges[1]), *(other.result() for other in others)]


def over_batch(kernel: Callable[[int, int], int | None], batch: int, num_bytes: int, least: int = 1) -> int:
    """Run `kernel(start, stop)` over the batch; returns the parts' reports, combined by OR."""
    if num_bytes < WORTH_THREADS:
        return kernel(0, batch) or 0
    status = 0
    for part in parts_of(kernel, batch, num_bytes, least):
        status |= part or 0
    return status
