"""Many runs over the cores: plain threads around kernels that release the GIL, with a progress bar."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from offtrace.threads import num_threads as default_threads

SECONDS_BEFORE_BAR = 2.0
"""Runs that take less show no progress bar."""

Result = TypeVar("Result")
Job = Callable[[Callable[[int], bool]], Result]
"""A run, `job(progress)`: it calls `progress(k)` after k trajectories and stops where that returns False."""


def run_all(jobs: list[Job], *, length: int, num_threads: int | None, progress: bool) -> list[Any]:
    """Run all jobs; returns their results in order. An interruption stops every job at its next `progress`."""
    done = [0] * len(jobs)  # trajectories, per job
    stop = threading.Event()

    def progress_of(number: int) -> Callable[[int], bool]:
        def report(k: int) -> bool:
            done[number] = length if k < 0 else k  # a run that diverged is over
            return not stop.is_set()

        return report

    threads = min(num_threads or default_threads(), len(jobs))
    if threads <= 1 and not progress:
        return [job(progress_of(number)) for number, job in enumerate(jobs)]
    with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="offtrace-online") as pool:
        futures = [pool.submit(job, progress_of(number)) for number, job in enumerate(jobs)]
        try:
            _watch(futures, lambda: sum(done), length * len(jobs), progress)
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _watch(futures: list[Future], count: Callable[[], int], total: int, progress: bool) -> None:
    """Wait for all runs, behind a progress bar if it takes long; the first failure is raised."""
    waiting: set[Future] = set(futures)
    start = time.monotonic()
    bar = None
    task = None
    try:
        while waiting:
            finished, waiting = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            if progress and bar is None and time.monotonic() - start > SECONDS_BEFORE_BAR:
                from rich.progress import Progress

                bar = Progress()
                task = bar.add_task("trajectories", total=total)
                bar.start()
            if bar is not None and task is not None:
                bar.update(task, completed=count())
    finally:
        if bar is not None:
            bar.stop()
