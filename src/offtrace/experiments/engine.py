"""Trains the runs of a sweep that its store does not have yet, on this machine; `cluster` uses a Ray cluster.

Runs that can share a program are trained as one population. On a CPU each population has its own
process; on an accelerator, populations are trained in turn in this process. A population is saved
as it goes, in a folder beside the store. After a crash of its process or of the machine it is
resumed when the sweep is run again.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from offtrace.agent import compile_cache
from offtrace.agent.consent import modules
from offtrace.agent.spec import Plan, to_json
from offtrace.experiments.members import train_population
from offtrace.experiments.populations import Members, new_populations, saved_populations, work_folder
from offtrace.experiments.progress import ProgressReader, SweepProgress
from offtrace.experiments.provenance import provenance
from offtrace.experiments.store import Store, fingerprint
from offtrace.experiments.workers import train_in_processes
from offtrace.threads import num_cores

WAIT_SECONDS = 1.0


def run(
    specs: Sequence[Plan],
    store: str | Path,
    *,
    jobs: int | None = None,
    command: str = "",
    tell: Callable[[SweepProgress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> SweepProgress:
    """Train the runs that are missing in the store, and return the final progress.

    Runs that fail or diverge are recorded as such, and the others continue. Runs that another
    process works on are waited for, and taken over if it ends without finishing them.

    `jobs` is the number of processes, by default one per core. 0 trains in this process, as on an
    accelerator.
    """
    if jobs is not None and jobs < 0:
        raise ValueError(f"`jobs` must be at least 0; got {jobs}.")
    path = Path(store)
    on_accelerator = _on_accelerator()
    if jobs is None:
        jobs = 0 if on_accelerator else num_cores()
    allowed = modules(specs)
    missing, reader = register(specs, path, command, tell)
    before: list[Plan] = []
    while missing and missing != before:
        resumed, others = saved_populations(path, missing)
        waiting = [*resumed, *new_populations(others, jobs, on_accelerator)]
        if jobs == 0:
            _train_here(path, waiting, command, stop, reader, allowed)
        else:
            train_in_processes(path, waiting, jobs, command, stop, reader, allowed)
        before = missing
        missing = []
        if not stop():
            missing = _left_by_others(path, before, stop, reader)
    saved_populations(path, [])  # removes those whose members finished elsewhere
    with suppress(OSError):
        work_folder(path).rmdir()  # unless something is left in it
    return reader.update()


def _train_here(
    path: Path,
    waiting: Sequence[Members],
    command: str,
    stop: Callable[[], bool],
    reader: ProgressReader,
    allow_import: Sequence[str],
) -> None:
    compile_cache.enable()
    for members in waiting:
        if not stop():
            train_population(path, members, command, stop, reader.update, allow_import)


def _left_by_others(
    path: Path, specs: Sequence[Plan], stop: Callable[[], bool], reader: ProgressReader
) -> list[Plan]:
    """Wait while other processes work on some of these runs, and return those that were left unfinished.

    Runs that failed are not among them.
    """
    by_key = {fingerprint(to_json(spec)): spec for spec in specs}
    with Store(path) as store:
        while True:
            claimed, left = (keys & by_key.keys() for keys in store.at_work())
            if left or not claimed or stop():
                return [spec for key, spec in by_key.items() if key in left]
            reader.update(num_elsewhere=len(claimed))
            time.sleep(WAIT_SECONDS)


def register(
    specs: Sequence[Plan], path: Path, command: str, tell: Callable[[SweepProgress], None]
) -> tuple[list[Plan], ProgressReader]:
    """Add the runs to the store, and return those that are missing in it."""
    with Store(path) as store:
        store.check()
        ids = store.register([to_json(spec) for spec in specs], provenance(command, computes=False))
        missing_ids = store.missing_ids()
    missing = [spec for run_id, spec in zip(ids, specs, strict=True) if run_id in missing_ids]
    num_steps = {run_id: spec.num_steps for run_id, spec in zip(ids, specs, strict=True)}
    return missing, ProgressReader(path, num_steps, tell)


def _on_accelerator() -> bool:
    """Return whether JAX computes on an accelerator; it is not loaded where it is told to stay on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu" or sys.platform == "darwin":
        return False
    import jax

    return jax.default_backend() != "cpu"
