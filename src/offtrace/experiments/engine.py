"""Runs the cells of a sweep that are missing in its store, several at once, on this machine; `cluster` has others.

Cells that can share a program are trained as one population, a *pack*; each pack is a process of its own, or, on an
accelerator, follows the one before in this process. A pack is saved as it goes, in a folder beside the store: one
that was killed, with its process or with the machine, goes on where it was when the sweep is run again.

    results.sqlite          rows, as they come
    results.sqlite.work/    packs that are not finished, and programs that were compiled for them
"""

import errno
import hashlib
import math
import multiprocessing
import os
import secrets
import shutil
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from multiprocessing import resource_tracker
from operator import not_
from pathlib import Path
from typing import Any, NamedTuple

from offtrace.agent import compile_cache
from offtrace.agent.spec import Plan, from_json, to_json
from offtrace.agent.telemetry import TickRecord, Watcher, divergence
from offtrace.experiments.provenance import provenance
from offtrace.experiments.spec import packs
from offtrace.experiments.store import OVER, Store, fingerprint

MOST = 200
"""Members of a pack on a CPU, where they run one after the other: a pack is asked to stop after every tick of all."""
MOST_ON_ACCELERATOR = 512
TRIES = 3
"""Times that a pack whose process was killed is begun again."""
WRITE_SECONDS = 2.0
WAIT_SECONDS = 1.0
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of the disk: no cell is to blame, and there is nowhere to write them down."""
ERROR = 100
"""What a process of a sweep ends with if the system refused it something: this, and the number of the error."""
GONE = ".gone-"
"""How the name of a folder begins that is on its way out."""


class Progress(NamedTuple):
    """Of a whole sweep."""

    num_steps: int
    total_steps: int
    num_done: int
    num_diverged: int
    num_failed: int
    num_runs: int
    num_elsewhere: int = 0
    """Runs that are left, and that another process is at work on."""

    @property
    def num_left(self) -> int:
        """Runs without a result: failed, or not run yet."""
        return self.num_runs - self.num_done - self.num_diverged


class End(NamedTuple):
    """How a run ended."""

    returns: Sequence[float]
    num_unfinished: int
    diverged: str | None
    """When and how, if it did; it has no score then, whatever the returns are."""


def end_of(result: Any) -> End:
    """Of a `Result` of training; the same rule for every cell, however packs are cut."""
    return End(result.returns, result.num_unfinished, divergence(result.history))


def run(
    specs: Sequence[Plan],
    store: str | Path,
    *,
    jobs: int | None = None,
    command: str = "",
    tell: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Trains what is missing; the last progress. Cells that fail are recorded as failed, and the others go on.

    One that diverges is recorded as such, and is over. Cells that another process is at work on are waited for, and
    taken over if it leaves them.

    `jobs` processes at once, one for each core unless given; 0 trains in this process, as on an accelerator.
    """
    if jobs is not None and jobs < 0:
        raise ValueError(f"`jobs` must be at least 0; got {jobs}.")
    path = Path(store)
    on_accelerator = _on_accelerator()
    jobs = (0 if on_accelerator else num_cores()) if jobs is None else jobs
    missing, watched = begin(specs, path, command, tell)
    before: list[Plan] = []
    while missing and missing != before:
        begun, others = _begun(path, missing)
        waiting = [*begun, *packed(others, jobs, on_accelerator)]
        if jobs == 0:
            compile_cache.enable()
            for pack in waiting:
                if not stop():
                    work(path, pack, command, stop, watched.told)
        else:
            _processes(path, waiting, jobs, command, stop, watched)
        before, missing = missing, [] if stop() else _left_by_others(path, missing, stop, watched)
    _begun(path, [])  # removes those whose cells were done elsewhere
    with suppress(OSError):
        _work_folder(path).rmdir()  # unless something is left in it
    return watched.told()


def _left_by_others(path: Path, specs: Sequence[Plan], stop: Callable[[], bool], watched: "Watched") -> list[Plan]:
    """Waits while others are at work on some of these; those that somebody has left, if any. Failed ones stay so."""
    by_key = {fingerprint(to_json(spec)): spec for spec in specs}
    with Store(path) as store:
        while True:
            held, left = (found & by_key.keys() for found in store.at_work())
            if left or not held or stop():
                return [spec for key, spec in by_key.items() if key in left]
            watched.told(num_elsewhere=len(held))
            time.sleep(WAIT_SECONDS)


def begin(
    specs: Sequence[Plan], path: Path, command: str, tell: Callable[[Progress], None]
) -> tuple[list[Plan], "Watched"]:
    """Makes the cells known to the store; those that are missing in it."""
    rows = [to_json(spec) for spec in specs]
    with Store(path) as opened:
        opened.check()
        ids = opened.register(rows, provenance(command, computes=False))
        left = opened.missing_ids()
    missing = [spec for run_id, spec in zip(ids, specs, strict=True) if run_id in left]
    return missing, Watched(path, {run_id: spec.num_steps for run_id, spec in zip(ids, specs, strict=True)}, tell)


def packed(missing: Sequence[Plan], jobs: int, on_accelerator: bool) -> list[list[dict[str, Any]]]:
    """Packs, as rows, of a size that gives each of the jobs something to do; the long ones come first."""
    most = MOST_ON_ACCELERATOR if on_accelerator else max(1, min(MOST, -(-len(missing) // max(1, jobs))))
    cut = sorted(packs(missing, most), key=lambda pack: -len(pack) * pack[0].num_steps)
    return [[to_json(spec) for spec in pack] for pack in cut]


def _begun(path: Path, missing: Sequence[Plan]) -> tuple[list[list[dict[str, Any]]], list[Plan]]:
    """Packs that were begun before, as they are saved, however others would be cut now; and the cells in none.

    Some cells of such a pack may have been done in another one since: they come along, and count no more.
    """
    left, found = {fingerprint(to_json(spec)): spec for spec in missing}, []
    for rows, mine in sorted(_saved(path), key=lambda pack: len(pack[0]) - len(pack[1])):  # least in vain first
        if mine <= left.keys():
            found.append(rows)
            left = {key: spec for key, spec in left.items() if key not in mine}
    return found, list(left.values())


def _saved(path: Path) -> Generator[tuple[list[dict[str, Any]], set[str]]]:
    """Packs to go on with, and which of their cells are missing. One that is done is removed.

    One with cells that the store does not know is left alone, and so is one that is more work than its missing cells.
    """
    from offtrace.agent.runs import read_specs

    for gone in _work_folder(path).glob(f"{GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)
    with Store(path) as store:
        for folder in sorted(_work_folder(path).glob("[!.]*")):
            with suppress(ValueError, OSError):
                rows = [to_json(spec) for spec in read_specs(folder)]
                missing = store.missing(rows)  # asked now: who has written there has registered before
                if rows and not missing:
                    _remove(folder)
                elif missing and _is_worth_it(store, rows, missing):
                    yield rows, {fingerprint(row) for _, row in missing}


def _is_worth_it(store: Store, rows: Sequence[dict[str, Any]], missing: Sequence[tuple[int, dict[str, Any]]]) -> bool:
    """Whether to go on with a pack is less work than to begin its missing cells anew, if members take turns."""
    total = int(rows[0]["num_steps"])
    left = total - max(store.num_steps(run_id) for run_id, _ in missing)
    return len(missing) == len(rows) or len(rows) * left < len(missing) * total


def num_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def work(
    store: Path,
    rows: Sequence[dict[str, Any]],
    command: str,
    stop: Callable[[], bool],
    tick: Callable[[], object] = lambda: None,
) -> None:
    """One pack, from where it was; rows go to the store as they come."""
    with Store(store) as opened:
        whole = (_folder(store, rows) / "spec.json").exists()
        pack = Held(opened, rows, provenance(command), whole=whole)
        if not pack.ids:
            return

        def write(reports: Sequence[Sequence[TickRecord]]) -> None:
            pack.write(reports)
            tick()

        batches = Batches(write)
        try:
            results = _results(store, pack, batches, stop)
            pack.write([result.history for result in results])  # one that was killed has saved more than it wrote
            if not results[0].finished:
                return
            pack.finish([*map(end_of, results)])
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK:
                raise
            batches.flush()
            pack.fail("".join(traceback.format_exception(error)))
            return
    with suppress(ValueError, OSError):
        _remove(_folder(store, pack.rows))


def _results(store: Path, pack: "Held", batches: "Batches", stop: Callable[[], bool]) -> list[Any]:
    """Of training. What is saved and cannot be resumed is removed, and the claimed cells begin anew."""
    from offtrace.agent.checkpoints import FolderLock
    from offtrace.agent.training import runtime_for, train

    folder, specs = _folder(store, pack.rows), [from_json(row) for row in pack.rows]
    resume = (folder / "spec.json").exists()
    if resume:
        with FolderLock(folder):  # if it is in use, it is refused here, and stays
            pass
    try:
        return train(specs, folder, resume=resume, watcher=batches, stop=stop, checkpoint_seconds=30)
    except ValueError:
        if not resume or batches.begun:
            raise
        runtime_for(specs).close()  # if that is what was refused, the folder is not to blame
        _remove(folder)
    pack.narrow()
    return _results(store, pack, batches, stop)


def _work_folder(store: Path) -> Path:
    return store.with_name(store.name + ".work")


def _folder(store: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Where a pack is saved."""
    names = "".join(map(fingerprint, rows))
    return _work_folder(store) / hashlib.sha256(names.encode()).hexdigest()[:16]


def _remove(folder: Path) -> None:
    """Refused while somebody trains there. It loses its name first: who is killed on the way leaves no half of it."""
    from offtrace.agent.checkpoints import FolderLock

    with FolderLock(folder):
        gone = folder.rename(folder.with_name(f"{GONE}{folder.name}-{secrets.token_hex(4)}"))
        shutil.rmtree(gone, ignore_errors=True)


class Held:
    """The cells of a pack that this process has claimed: what comes of them goes to the store.

    `rows` are to be trained: these cells, and where a pack is saved as a `whole`, those of it that are done.
    """

    def __init__(
        self, store: Store, rows: Sequence[dict[str, Any]], made: dict[str, str], *, whole: bool = False
    ) -> None:
        ids = store.register(rows, made)
        self._store = store
        self._mine = [store.claim(run_id, f"engine {os.getpid()}") for run_id in ids]
        self.ids, self.rows = [*compress(ids, self._mine)], [*compress(rows, self._mine)]
        others = [*compress(rows, map(not_, self._mine))]
        if whole and not store.missing(others):
            self.rows = [*rows]
        else:
            self._mine = [True] * len(self.ids)

    def narrow(self) -> None:
        """From a whole pack to the cells that are claimed."""
        self.rows = [*compress(self.rows, self._mine)]
        self._mine = [True] * len(self.ids)

    def write(self, reports: Sequence[Sequence[TickRecord]]) -> None:
        """Of each row; none of any is a sign of life."""
        self._store.write_all(dict(zip(self.ids, compress(reports, self._mine), strict=True)))

    def finish(self, ends: Sequence[End]) -> None:
        """Of each row."""
        for run_id, end in zip(self.ids, compress(ends, self._mine), strict=True):
            self._store.finish(run_id, end.returns, end.num_unfinished, diverged=end.diverged)

    def fail(self, reason: str) -> None:
        for run_id in self.ids:
            self._store.fail(run_id, reason)

    def release(self) -> None:
        for run_id in self.ids:
            self._store.release(run_id)


class Batches(Watcher):
    """Reports of each cell: the first at once, as a sign that it has begun, then a few seconds' worth at a time."""

    def __init__(self, send: Callable[[list[list[TickRecord]]], None]) -> None:
        self.begun = False
        self._send = send
        self._kept: list[list[TickRecord]] = []
        self._sent = -math.inf

    def on_tick(self, records: Sequence[TickRecord]) -> None:
        self.begun = True
        self._kept = self._kept or [[] for _ in records]
        for kept, report in zip(self._kept, records, strict=True):
            kept.append(report)
        if time.monotonic() - self._sent > WRITE_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._kept:
            self._send(self._kept)
        self._kept, self._sent = [], time.monotonic()


# -- processes -----------------------------------------------------------------------------------------------


def _processes(
    path: Path,
    waiting: list[list[dict[str, Any]]],
    jobs: int,
    command: str,
    stop: Callable[[], bool],
    watched: "Watched",
) -> None:
    """Packs in processes of their own; whoever dies without a word is begun again."""
    spawn = multiprocessing.get_context("spawn")
    running: list[tuple[Any, list[dict[str, Any]], int]] = []
    queue = [(pack, 1) for pack in waiting]
    asked, last_look = False, 0.0
    try:
        while queue or running:
            if stop() and not asked:
                asked, queue = True, []
                with Store(path) as store:
                    begun = store.workers()
                for process, _, _ in running:
                    if process.pid in begun:
                        process.terminate()  # it saves, and ends
                    else:
                        process.kill()  # it has nothing to save yet
            while queue and len(running) < jobs:
                pack, tries = queue.pop(0)
                process = spawn.Process(target=_child, args=(str(path), _ids(path, pack), command, os.getpid()))
                _start(process)
                running.append((process, pack, tries))
            time.sleep(0.1)
            for entry in [entry for entry in running if not entry[0].is_alive()]:
                running.remove(entry)
                process, pack, tries = entry
                if (process.exitcode or 0) > ERROR:
                    _refuse_disk(path, process.exitcode - ERROR)
                if process.exitcode and not asked and tries < TRIES:
                    queue.append((pack, tries + 1))
                elif process.exitcode and not asked:
                    _give_up(path, pack, process.exitcode)
            if time.monotonic() - last_look > 1:
                watched.told()
                last_look = time.monotonic()
    finally:
        for process, _, _ in running:
            process.kill()


STOPS = (signal.SIGINT, signal.SIGTERM)


def _start(process: Any) -> None:
    """Until a new process has handlers of its own, signals to the whole group must wait for it.

    One that dies while it begins does not read what it is sent, and this process may wait for that for ever: so what
    is sent is short, too, the numbers of runs.
    """
    resource_tracker.ensure_running()  # it would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ids(path: Path, pack: Sequence[dict[str, Any]]) -> list[int]:
    with Store(path) as store:
        return store.ids(pack)


def _child(store: str, ids: Sequence[int], command: str, parent: int) -> None:
    """Stops, and saves, when it is told to, or when its parent is gone."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    path = Path(store)
    try:
        with Store(path) as opened:
            pack = opened.specs(ids)
        compile_cache.enable()
        if not asked.is_set():
            work(path, pack, command, lambda: asked.is_set() or os.getppid() != parent)
    except OSError as error:
        if error.errno is None:
            raise
        sys.exit(ERROR + error.errno)


def _refuse_disk(path: Path, number: int) -> None:
    raise OSError(
        number,
        f"{os.strerror(number)}. What was stored before is intact, and the same command goes on from there",
        str(path),
    )


def _give_up(path: Path, pack: Sequence[dict[str, Any]], code: int) -> None:
    with Store(path) as store:
        Held(store, pack, {}).fail(f"its process ended with {code}, {TRIES} times.")


# -- what is known of it -------------------------------------------------------------------------------------


class Watched:
    """Reads how far a sweep is, without disturbing those that write."""

    def __init__(self, path: Path, wanted: Mapping[int, int], tell: Callable[[Progress], None]) -> None:
        """`wanted`: the steps of each run, by its id."""
        self.path, self.tell = path, tell
        self._wanted = wanted

    def told(self, num_elsewhere: int = 0) -> Progress:
        """Looks, and tells."""
        progress = self.look()._replace(num_elsewhere=num_elsewhere)
        self.tell(progress)
        return progress

    def look(self) -> Progress:
        query = "SELECT id, status, (SELECT max(num_steps) FROM reports WHERE run = runs.id) FROM runs"
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            found = {key: (status, steps or 0) for key, status, steps in connection.execute(query)}
        finally:
            connection.close()
        mine = {key: found[key] for key in self._wanted if key in found}
        steps = sum(
            total if mine[key][0] in OVER else min(mine[key][1], total)
            for key, total in self._wanted.items()
            if key in mine
        )
        statuses = [status for status, _ in mine.values()]
        counts = [statuses.count(status) for status in ("done", "diverged", "failed")]
        return Progress(steps, sum(self._wanted.values()), *counts, len(self._wanted))


def _on_accelerator() -> bool:
    """Without waking one up, where JAX has been told to stay on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu" or sys.platform == "darwin":
        return False
    import jax

    return jax.default_backend() != "cpu"
