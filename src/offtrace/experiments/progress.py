"""The progress of a sweep."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from offtrace.experiments.store import OVER, run_states


class SweepProgress(NamedTuple):
    """Progress of a whole sweep."""

    num_steps: int
    total_steps: int
    num_done: int
    num_diverged: int
    num_failed: int
    num_runs: int
    num_elsewhere: int = 0
    """Number of runs without a result that another process works on."""

    @property
    def num_left(self) -> int:
        """Number of runs without a result: failed, or not run yet."""
        return self.num_runs - self.num_done - self.num_diverged


class ProgressReader:
    """Reads the progress of a sweep from its store, and passes it to a callback."""

    def __init__(self, path: Path, num_steps: Mapping[int, int], tell: Callable[[SweepProgress], None]) -> None:
        """`num_steps`: the steps of each run, by its id."""
        self._path = path
        self._num_steps = num_steps
        self._tell = tell

    def update(self, num_elsewhere: int = 0) -> SweepProgress:
        """Read the progress, pass it on, and return it."""
        progress = self._read()._replace(num_elsewhere=num_elsewhere)
        self._tell(progress)
        return progress

    def _read(self) -> SweepProgress:
        states = run_states(self._path)
        num_steps = 0
        statuses = []
        for run_id, total in self._num_steps.items():
            if run_id not in states:
                continue
            status, steps = states[run_id]
            statuses.append(status)
            if status in OVER:
                num_steps += total
            else:
                num_steps += min(steps, total)
        return SweepProgress(
            num_steps=num_steps,
            total_steps=sum(self._num_steps.values()),
            num_done=statuses.count("done"),
            num_diverged=statuses.count("diverged"),
            num_failed=statuses.count("failed"),
            num_runs=len(self._num_steps),
        )
