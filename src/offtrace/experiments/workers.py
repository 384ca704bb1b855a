"""Trains populations in processes of their own, several at once."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from offtrace.agent import compile_cache
from offtrace.experiments.members import ClaimedRuns, train_population
from offtrace.experiments.populations import Members
from offtrace.experiments.progress import ProgressReader
from offtrace.experiments.store import Store

TRIES = 3
"""Number of starts of a population whose process dies."""
ERROR_CODE = 100
"""Exit codes above this one are 100 plus the number of an error of the system."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Worker(NamedTuple):
    """A process that trains a population."""

    process: Any
    members: Members
    tries: int


def train_in_processes(
    path: Path,
    waiting: Sequence[Members],
    jobs: int,
    command: str,
    stop: Callable[[], bool],
    reader: ProgressReader,
    allow_import: Sequence[str] = (),
) -> None:
    """Train populations, `jobs` at once. One whose process dies is started again, up to `TRIES` times in all."""
    workers = _Workers(path, waiting, jobs, command, allow_import)
    looked_at = 0.0
    try:
        while workers.are_left():
            if stop():
                workers.stop()
            workers.start()
            time.sleep(0.1)
            workers.collect()
            if time.monotonic() - looked_at > 1:
                reader.update()
                looked_at = time.monotonic()
    finally:
        workers.kill()


class _Workers:
    """The populations that wait, and the processes that train others."""

    def __init__(
        self, path: Path, waiting: Sequence[Members], jobs: int, command: str, allow_import: Sequence[str]
    ) -> None:
        self._path = path
        self._jobs = jobs
        self._command = command
        self._allow_import = tuple(allow_import)
        self._queue = [(members, 1) for members in waiting]
        self._running: list[_Worker] = []
        self._is_stopping = False
        self._spawn = multiprocessing.get_context("spawn")

    def are_left(self) -> bool:
        return bool(self._queue or self._running)

    def start(self) -> None:
        """Start processes while there are populations and jobs left."""
        while self._queue and len(self._running) < self._jobs:
            members, tries = self._queue.pop(0)
            with Store(self._path) as store:
                ids = store.ids(members)
            args = (str(self._path), ids, self._command, os.getpid(), self._allow_import)
            process = self._spawn.Process(target=_train, args=args)
            _start(process)
            self._running.append(_Worker(process, members, tries))

    def stop(self) -> None:
        """Ask all processes, once, to save and end. Those that have not claimed any run yet are killed."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._queue = []
        with Store(self._path) as store:
            have_claimed = store.workers()
        for worker in self._running:
            if worker.process.pid in have_claimed:
                worker.process.terminate()
            else:
                worker.process.kill()

    def collect(self) -> None:
        """Remove processes that have ended, and restart or give up the populations of those that died."""
        ended = [worker for worker in self._running if not worker.process.is_alive()]
        for worker in ended:
            self._running.remove(worker)
            code = worker.process.exitcode or 0
            if code > ERROR_CODE:
                raise disk_error(self._path, code - ERROR_CODE)
            if not code or self._is_stopping:
                continue
            if worker.tries < TRIES:
                self._queue.append((worker.members, worker.tries + 1))
            else:
                with Store(self._path) as store:
                    runs = ClaimedRuns(store, worker.members, {})
                    runs.fail(f"the process ended with exit code {code}, {TRIES} times.")

    def kill(self) -> None:
        for worker in self._running:
            worker.process.kill()


def _start(process: Any) -> None:
    """Start a process with stop signals blocked, until it has handlers of its own.

    A process that dies while it starts does not read its arguments, and this process could block
    while it sends them. So the arguments are short: ids of runs instead of specs.
    """
    resource_tracker.ensure_running()  # started later, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    script = sys.modules["__main__"]
    # The process would import the user's script again, and so start the sweep again. It needs nothing of it.
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        process.start()
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _train(store: str, ids: Sequence[int], command: str, parent: int, allow_import: Sequence[str] = ()) -> None:
    """Train a population in this process. It stops, and saves, on SIGTERM or when its parent has ended."""
    is_stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on as SIGTERM
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    path = Path(store)
    try:
        with Store(path) as opened:
            members = opened.specs(ids)
        compile_cache.enable()
        if not is_stopping.is_set():
            train_population(
                path,
                members,
                command,
                lambda: is_stopping.is_set() or os.getppid() != parent,
                allow_import=allow_import,
            )
    except OSError as error:
        if error.errno is None:
            raise
        sys.exit(ERROR_CODE + error.errno)  # of this worker process; its parent raises the error again


def disk_error(path: Path, number: int) -> OSError:
    """Return the error of a worker that the system refused something, such as space on the disk."""
    reason = f"{os.strerror(number)}. The results so far are intact; run the same command again to continue"
    return OSError(number, reason, str(path))
