"""Stopping: signals, and how the commands that save their work learn of them.

Commands that have nothing to save are interrupted by an exception (`interrupt_on_signals`). Those that save, `train`,
`sweep` and `reproduce`, ask between two steps whether they should stop (`stop_requests`).
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a polite kill, and a closed terminal."""


def interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does, so that processes and files are cleaned up.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


@contextmanager
def stop_requests() -> Generator[Callable[[], bool], None, None]:
    """Yield a function that returns True after a signal has requested a stop; a second signal exits at once.

    A signal that is ignored, as SIGHUP is under `nohup`, stays ignored.

    Python's handlers wait until a compiled program returns, which may take minutes, and merge two signals into one.
    The wake-up file descriptor gets every number at once:

        signal ──► handler in C ──► socket ──► thread: the second one ends the process
                        └─► (when Python has its turn) handler: a stop was requested
    """
    requests: list[int] = []
    heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: requests.append(got)) for number in heeded}
    numbers, written = socket.socketpair()
    written.setblocking(False)
    former = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_exit_on_second, args=(numbers,), daemon=True)
    thread.start()
    try:
        yield lambda: bool(requests)
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in before.items():
            signal.signal(number, handler)
        written.close()
        thread.join()
        numbers.close()


def _exit_on_second(numbers: socket.socket) -> None:
    """Read signal numbers until the socket closes; exit the process at the second one that requests a stop."""
    seen = 0
    while number := numbers.recv(1):
        seen += number[0] in STOP_SIGNALS
        if seen == 2:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h\n")  # the cursor, which a live display hides
            os._exit(128 + number[0])
