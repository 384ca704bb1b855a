"""The progress bar of all commands; where there is no terminal, a sweep prints lines instead."""

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from offtrace.cli.numbers import count, duration
from offtrace.cli.streams import Console

LINE_SECONDS = 30.0
"""Most seconds between two lines of progress."""
EARLY_SECONDS = 60.0
"""A sweep has no estimate of the time left before this time, unless EARLY_SHARE of it is done."""
EARLY_SHARE = 0.05


class ProgressBar:
    """A bar with the time left, on standard error and only if that is a terminal; it disappears at the end."""

    def __init__(self, description: str) -> None:
        console = Console(stderr=True)
        self.is_shown = console.is_terminal
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not self.is_shown)
        self._task = self._progress.add_task(description, total=None, detail="left:")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.stop()

    def update(self, done: float, total: float, description: str | None = None, detail: str = "left:") -> None:
        """Show that `done` of `total` is done; `detail` stands before the time left."""
        self._progress.update(self._task, completed=done, total=total, description=description, detail=detail)


class SweepLines:
    """Progress of a sweep as lines on standard error: when runs have ended, and every half minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._printed = clock()
        self._first_steps: int | None = None
        self._num_ended = 0

    def update(self, progress: Any) -> None:
        now = self._clock()
        num_ended = progress.num_runs - progress.num_left + progress.num_failed
        if self._first_steps is None:  # steps of an earlier command took no time in this one
            self._first_steps = progress.num_steps
            self._num_ended = num_ended
        silent = now - self._printed
        if silent < LINE_SECONDS and (num_ended == self._num_ended or silent < 1):
            return
        self._num_ended = num_ended
        self._printed = now
        passed = now - self._started
        share = (progress.num_steps - self._first_steps) / max(1, progress.total_steps - self._first_steps)
        left = ""
        is_early = share < EARLY_SHARE and passed < EARLY_SECONDS  # most of this time went into compiling
        if 0 < share < 1 and not is_early:
            left = f", about {duration(passed / share - passed)} left"
        self.print(f"{runs_so_far(progress)}; {steps_so_far(progress)}; {duration(passed)} so far{left}")

    def print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def runs_so_far(progress: Any) -> str:
    """Return how many runs of a sweep are done, and how the others stand."""
    others = {
        "diverged": progress.num_diverged,
        "failed": progress.num_failed,
        "in another process": progress.num_elsewhere,
    }
    rest = "".join(f", {number:,} {state}" for state, number in others.items() if number)
    return f"{progress.num_done:,} of {progress.num_runs:,} runs{rest}"


def steps_so_far(progress: Any) -> str:
    return f"{count(progress.num_steps)} of {count(progress.total_steps)} steps"
