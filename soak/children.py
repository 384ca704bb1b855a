"""Runs offtrace commands in child processes, forked after all imports, which saves four seconds per command."""

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

LONG = 120.0
"""Seconds after which a command is sent SIGTERM."""
HUNG = 60.0
"""Further seconds after which a command counts as hung; compiling takes most of that on a busy machine."""


class Outcome(NamedTuple):
    """The result of a command."""

    code: int
    """The exit code; negative for a signal."""
    out: str
    err: str
    seconds: float
    megabytes: float
    """The peak memory."""
    hung: bool


@dataclass
class Case:
    """A command, its folder, and a check that returns what is wrong with its outcome, or ""."""

    name: str
    arguments: list[str]
    folder: Path
    check: Callable[[Outcome], str]
    kill_after: float | None = None
    """Seconds until it is killed with SIGKILL."""
    patience: float = LONG
    """Seconds until it is sent SIGTERM."""
    then: "Case | None" = None
    """A case to run after it, whatever its outcome."""
    clean: Callable[[], object] = lambda: None
    number: int = 0

    @property
    def command(self) -> list[str]:
        """The arguments of the command, computed when it starts."""
        return self.arguments


class Running(NamedTuple):
    """A command that was started."""

    pid: int
    started: float
    files: tuple[Any, Any]


def start(case: Case) -> Running:
    out = tempfile.TemporaryFile()  # noqa: SIM115 (closed when its outcome is read)
    err = tempfile.TemporaryFile()  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        _run_child(case, out.fileno(), err.fileno())
    return Running(pid, time.monotonic(), (out, err))


def _run_child(case: Case, out: int, err: int) -> None:
    """Run the command in the child process, and exit."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(case.folder)
        from offtrace.cli import main

        try:
            main(case.command)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def outcome(case: Case, running: Running, asked: list[float]) -> Outcome | None:
    """Return the outcome, or None while it runs. A slow command is sent SIGTERM, then killed and marked as hung."""
    now = time.monotonic() - running.started
    if case.kill_after is not None and now > case.kill_after:
        _kill(running.pid)
    elif case.kill_after is None and now > case.patience and not asked:
        os.kill(running.pid, signal.SIGTERM)
        asked.append(now)
    hung = bool(asked) and now - asked[0] > HUNG
    if hung:
        _kill(running.pid)
    pid, status, use = os.wait4(running.pid, 0 if hung else os.WNOHANG)
    if pid == 0:
        return None
    _kill(running.pid)  # its children
    texts = []
    for file in running.files:
        file.seek(0)
        texts.append(file.read().decode("utf-8", "replace"))
        file.close()
    return Outcome(os.waitstatus_to_exitcode(status), texts[0], texts[1], now, use.ru_maxrss / 1024, hung)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def run_all(cases: Iterable[Case], jobs: int) -> Iterator[tuple[Case, Outcome, str]]:
    """Run every case, `jobs` at a time, and yield what is wrong with it."""
    waiting = iter(cases)
    running: dict[int, tuple[Case, Running, list[float]]] = {}
    while True:
        while len(running) < jobs:
            case = next(waiting, None)
            if case is None:
                break
            running[case.number] = case, start(case), []
        if not running:
            return
        time.sleep(0.01)
        for number, (case, child, asked) in list(running.items()):
            done = outcome(case, child, asked)
            if done is None:
                continue
            del running[number]
            wrong = case.check(done)
            if case.then is not None and not wrong:
                case.then.number = number
                running[number] = case.then, start(case.then), []
                continue
            yield case, done, wrong
            case.clean()


def must_succeed(done: Outcome) -> str:
    """Return what is wrong with the outcome of a command that must succeed."""
    wrong = one_line(done)
    if not wrong and done.code != 0:
        return f"exit {done.code}: {done.err or done.out}"
    return wrong


def one_line(done: Outcome) -> str:
    """Return what is wrong with the outcome of any command: a hang, much memory, a traceback, a long message."""
    if done.hung:
        return f"hung: {done.seconds:.0f} s"
    if done.megabytes > 1024:
        return f"{done.megabytes:,.0f} MB"
    if "Traceback (most recent call last)" in done.err + done.out:
        return "traceback: " + done.err.strip().splitlines()[-1][:200]
    if done.code < 0:
        return f"ended by signal {-done.code}"
    if done.code not in (0, 2, 3, 130):
        return f"exit code {done.code}"
    lines = [line for line in done.err.splitlines() if line.strip()]
    if done.code in (2, 3) and not (len(lines) == 1 and lines[0].startswith("offtrace: ")):
        return f"exit {done.code}, and not one line: {done.err[-300:]!r}"
    return ""
