"""Running a sweep with a progress bar, until it is done or a stop is requested: for `sweep` and `reproduce`."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from offtrace.cli.interrupts import stop_requests
from offtrace.cli.numbers import short
from offtrace.cli.progress import ProgressBar, SweepLines, runs_so_far, steps_so_far
from offtrace.cli.streams import tell

MAX_FIRST_SEED = 2**31 - 10_002
"""Largest first seed: a block of up to 10,000 seeds must fit below 2³¹."""
MAX_JOBS = 1024
MANY_RUNS = 2_000
"""Runs that take a while to look up."""


def check_jobs(jobs: int | None, *, least: int | None = 0) -> None:
    if jobs is not None and least is not None and jobs < least:
        raise ValueError(f"`--jobs` must be at least {least}; got {jobs}. Omit it to use one process per core.")
    if jobs is not None and jobs > MAX_JOBS:
        raise ValueError(
            f"`--jobs` must be at most {MAX_JOBS:,}; got {short(jobs)}. Omit it to use one process per core."
        )


def check_first_seed(first_seed: int) -> None:
    if not 0 <= first_seed <= MAX_FIRST_SEED:
        raise ValueError(f"`--first-seed` must be from 0 to {MAX_FIRST_SEED:,}; got {short(first_seed)}.")


def run_sweep(
    run: Callable[..., Any],
    specs: Sequence[Any],
    output: Path,
    *,
    jobs: int | None = None,
    here: bool = True,
) -> tuple[Any, bool]:
    """Run what is missing in `output`; return the last progress, and whether a stop was requested before the end.

    What cannot be trained raises a ValueError before the file is touched; `here` is False on a cluster.
    """
    from offtrace.experiments.checks import check_runs

    check_runs(specs, here=here, tell=tell)
    description = f"looking up which of {len(specs):,} runs are stored"
    with ProgressBar(description) as bar, stop_requests() as is_stop_requested:
        lines = None if bar.is_shown else SweepLines()
        if lines is not None and len(specs) > MANY_RUNS:
            lines.print(f"{description.capitalize()} ...")

        def update(now: Any) -> None:
            share = now.num_steps / max(1, now.total_steps)
            bar.update(share, 1.0, runs_so_far(now), steps_so_far(now))
            if lines is not None:
                lines.update(now)

        command = shlex.join(["offtrace", *sys.argv[1:]])
        progress = run(specs, output, jobs=jobs, command=command, tell=update, stop=is_stop_requested)
        return progress, is_stop_requested() and progress.num_left > 0
