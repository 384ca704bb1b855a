"""Makes calls that may never return, or whose worker processes may die.

Python cannot interrupt a call that hangs. So calls are made from a daemon thread, which can be
abandoned, and the processes that it waits for are killed.
"""

import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

LOOK_SECONDS = 1.0
"""The interval at which a waiting call checks that its processes are alive."""


class CallHung(Exception):
    """A call took too long and was abandoned."""


class WorkerLost(Exception):
    """A worker process ended unexpectedly: its index, and how it ended."""


class Watchdog:
    """A daemon thread that makes calls, in order.

    >>> Watchdog().call(pow, 2, 5, seconds=10.0)
    32
    >>> Watchdog().call(time.sleep, 9, seconds=0.01)
    Traceback (most recent call last):
    offtrace.environments.watchdog.CallHung: 0.01
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls, self._answers), daemon=True).start()
        weakref.finalize(self, self._calls.put, None)

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        seconds: float | None,
        processes: Sequence[BaseProcess] = (),
        **kwargs: Any,
    ) -> Any:
        """Return or raise what `function` does, `CallHung` after `seconds`, or `WorkerLost`.

        After either of those two the thread may be stuck, and this watchdog cannot be used again. Where there is
        neither a limit nor a process to watch, the function runs in the caller's thread, which is faster.
        """
        if not processes and (seconds is None or seconds == math.inf):
            return function(*args, **kwargs)
        self._calls.put((function, args, kwargs))
        last = time.monotonic() + (math.inf if seconds is None else seconds)
        while True:
            try:
                error, value = self._answers.get(timeout=max(0.0, min(LOOK_SECONDS, last - time.monotonic())))
                break
            except queue.Empty:
                check_alive(processes)
                if time.monotonic() >= last:
                    raise CallHung(seconds) from None
        if isinstance(error, EOFError | ConnectionError):  # a pipe was closed, so its process is about to end
            for process in processes:
                process.join(0.1)
            check_alive(processes)
        if error is not None:
            raise error
        return value


def check_alive(processes: Sequence[BaseProcess]) -> None:
    """Raise `WorkerLost` for the first process that is not alive."""
    for index, process in enumerate(processes):
        if not process.is_alive():
            raise WorkerLost(index, f"its process {process.pid} ended with exit code {process.exitcode}")


def kill(processes: Sequence[BaseProcess], *, seconds: float = 5.0) -> None:
    """Kill all processes, and wait for their end."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join(seconds)


def _serve(calls: queue.SimpleQueue, answers: queue.SimpleQueue) -> None:
    while (call := calls.get()) is not None:
        answers.put(_answer(*call))
        del call  # otherwise an idle thread keeps its last environment alive


def _answer(function: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[BaseException | None, Any]:
    try:
        return None, function(*args, **kwargs)
    except BaseException as error:
        return error, None
