"""Many runs over the cores: plain threads around kernels without the GIL, a bar where it takes long."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from offtrace.threads import num_threads as default_threads

PATIENCE = 2.0
"""Seconds until a bar appears."""

Result = TypeVar("Result")
Job = Callable[[Callable[[int], bool]], Result]
"""A run: `job(going)`, where `going(k)` is told how far it is, and is False once it should stop."""


def run_all(jobs: list[Job], *, length: int, num_threads: int | None, progress: bool) -> list[Any]:
    """What each job gives, in order, whoever ran it; an interruption stops all of them at their next look up."""
    done, stop = [0] * len(jobs), threading.Event()

    def going(number: int) -> Callable[[int], bool]:
        def told(k: int) -> bool:
            done[number] = length if k < 0 else k
            return not stop.is_set()

        return told

    threads = min(num_threads or default_threads(), len(jobs))
    if threads <= 1 and not progress:
        return [job(going(number)) for number, job in enumerate(jobs)]
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="offtrace-online") as pool:
        futures = [pool.submit(job, going(number)) for number, job in enumerate(jobs)]
        try:
            _watch(futures, lambda: sum(done), length * len(jobs), progress)
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _watch(futures: list[Future], count: Callable[[], int], total: int, progress: bool) -> None:
    """Waits, from some moment on behind a bar; the first failure ends it."""
    waiting: set[Future] = set(futures)
    start, bar, task = time.monotonic(), None, None
    try:
        while waiting:
            finished, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            if progress and bar is None and time.monotonic() - start > PATIENCE:
                from rich.progress import Progress

                bar = Progress()
                task = bar.add_task("trajectories", total=total)
                bar.start()
            if bar is not None and task is not None:
                bar.update(task, completed=count())
    finally:
        if bar is not None:
            bar.stop()
