"""Calls that may never return, or whose worker processes may die: made from one thread that can be left behind.

A call that hangs cannot be interrupted from outside in Python, but it can be given up: the thread is a daemon, and
the processes it waits for are ended.
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
"""How often a waiting call looks whether its processes are alive."""


class Hung(Exception):
    """A call took too long, and has been given up."""


class Lost(Exception):
    """A process ended that should not have: its index, and what is known of its end."""


class Watchdog:
    """One daemon thread that makes every call, in order.

    >>> Watchdog().call(pow, 2, 5, seconds=10.0)
    32
    >>> Watchdog().call(time.sleep, 9, seconds=0.01)
    Traceback (most recent call last):
    offtrace.environments.watchdog.Hung: 0.01
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
        """What `function` returns or raises; `Hung` after `seconds`, `Lost` as soon as a process is gone.

        After either of those two the thread may be stuck, and this watchdog is of no further use.
        """
        self._calls.put((function, args, kwargs))
        last = time.monotonic() + (math.inf if seconds is None else seconds)
        while True:
            try:
                error, value = self._answers.get(timeout=max(0.0, min(LOOK_SECONDS, last - time.monotonic())))
                break
            except queue.Empty:
                look(processes)
                if time.monotonic() >= last:
                    raise Hung(seconds) from None
        if isinstance(error, EOFError | ConnectionError):  # the other end of a pipe is gone, and its process soon
            for process in processes:
                process.join(0.1)
            look(processes)
        if error is not None:
            raise error
        return value


def look(processes: Sequence[BaseProcess]) -> None:
    """Raises `Lost` for the first that is not alive."""
    for index, process in enumerate(processes):
        if not process.is_alive():
            raise Lost(index, f"its process {process.pid} ended with exit code {process.exitcode}")


def end(processes: Sequence[BaseProcess], *, seconds: float = 5.0) -> None:
    """No process is left behind, whatever it is doing."""
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join(seconds)


def _serve(calls: queue.SimpleQueue, answers: queue.SimpleQueue) -> None:
    while (call := calls.get()) is not None:
        answers.put(_answer(*call))
        del call  # or an idle thread would keep its last environment alive


def _answer(function: Callable[..., Any], args: tuple, kwargs: dict) -> tuple[BaseException | None, Any]:
    try:
        return None, function(*args, **kwargs)
    except BaseException as error:
        return error, None
