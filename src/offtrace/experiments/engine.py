"""Runs the cells of a sweep that are missing in its store, several at once.

Cells that can share a program are trained as one population, a *pack*; each pack is a process of its own, or, on an
accelerator, follows the one before in this process. A pack is saved as it goes, in a folder beside the store: one
that was killed, with its process or with the machine, goes on where it was when the sweep is run again.

    results.sqlite          rows, as they come
    results.sqlite.work/    packs that are not finished
"""

import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from offtrace.agent.spec import Plan, from_json, to_json
from offtrace.agent.telemetry import Report, Watcher
from offtrace.experiments.spec import packs
from offtrace.experiments.store import Store, fingerprint

MOST = 32
"""Members of a pack on a CPU, where they run one after the other anyway."""
MOST_ON_ACCELERATOR = 512
TRIES = 3
"""Times that a pack whose process was killed is begun again."""
WRITE_SECONDS = 2.0


class Progress(NamedTuple):
    """Of a whole sweep."""

    num_steps: int
    total_steps: int
    num_done: int
    num_failed: int
    num_runs: int


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

    `jobs` processes at once, one for each core unless given; 0 trains in this process, as on an accelerator.
    """
    path = Path(store)
    rows = [to_json(spec) for spec in specs]
    with Store(path) as opened:
        opened.register(rows, provenance(command))
        missing = [from_json(row) for _, row in opened.missing(rows)]
    on_accelerator = _on_accelerator()
    jobs = (0 if on_accelerator else len(os.sched_getaffinity(0))) if jobs is None else jobs
    most = MOST_ON_ACCELERATOR if on_accelerator else max(1, min(MOST, -(-len(missing) // max(1, jobs))))
    waiting = [[to_json(spec) for spec in pack] for pack in packs(missing, most)]
    watched = _Watched(path, rows, tell)
    if jobs == 0:
        for pack in waiting:
            if not stop():
                work(path, pack, command, stop, lambda: tell(watched.look()))
    else:
        _processes(path, waiting, jobs, command, stop, watched)
    with suppress(OSError):
        _work_folder(path).rmdir()  # unless something is left in it
    progress = watched.look()
    tell(progress)
    return progress


def work(
    store: Path,
    rows: Sequence[dict[str, Any]],
    command: str,
    stop: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """One pack, from where it was; rows go to the store as they come."""
    from offtrace.agent.training import train

    with Store(store) as opened:
        ids = opened.register(rows, provenance(command))
        mine = [i for i, run_id in enumerate(ids) if opened.claim(run_id, f"engine {os.getpid()}")]
        specs = [from_json(rows[i]) for i in mine]
        if not specs:
            return
        names = "".join(fingerprint(rows[i]) for i in mine)
        folder = _work_folder(store) / hashlib.sha256(names.encode()).hexdigest()[:16]
        writer = _Writer(opened, [ids[i] for i in mine], tick)
        try:
            results = train(
                specs,
                folder,
                resume=(folder / "spec.json").exists(),
                watcher=writer,
                stop=stop,
                checkpoint_seconds=20,
            )
            writer.flush()
            if not results[0].finished:
                return
            for run_id, result in zip(writer.ids, results, strict=True):
                opened.finish(run_id, result.returns, result.num_unfinished)
        except Exception as error:
            writer.flush()
            for run_id in writer.ids:
                opened.fail(run_id, "".join(traceback.format_exception(error)))
            return
    shutil.rmtree(folder, ignore_errors=True)


def _work_folder(store: Path) -> Path:
    return store.with_name(store.name + ".work")


class _Writer(Watcher):
    """Reports to the store, a few seconds' worth at a time."""

    def __init__(self, store: Store, ids: Sequence[int], tick: Callable[[], None]) -> None:
        self.store, self.ids, self.tick = store, list(ids), tick
        self._kept: list[list[Report]] = [[] for _ in ids]
        self._written = time.monotonic()

    def ticks(self, reports: Sequence[Report]) -> None:
        for kept, report in zip(self._kept, reports, strict=True):
            kept.append(report)
        if time.monotonic() - self._written > WRITE_SECONDS:
            self.flush()
            self.tick()

    def flush(self) -> None:
        for run_id, kept in zip(self.ids, self._kept, strict=True):
            if kept:
                self.store.write(run_id, kept)
            kept.clear()
        self._written = time.monotonic()


# -- processes -----------------------------------------------------------------------------------------------


def _processes(
    path: Path,
    waiting: list[list[dict[str, Any]]],
    jobs: int,
    command: str,
    stop: Callable[[], bool],
    watched: "_Watched",
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
                for process, _, _ in running:
                    process.terminate()  # it saves, and ends
            while queue and len(running) < jobs:
                pack, tries = queue.pop(0)
                process = spawn.Process(target=_child, args=(str(path), json.dumps(pack), command, os.getpid()))
                process.start()
                running.append((process, pack, tries))
            time.sleep(0.1)
            for entry in [entry for entry in running if not entry[0].is_alive()]:
                running.remove(entry)
                process, pack, tries = entry
                if process.exitcode and not asked and tries < TRIES:
                    queue.append((pack, tries + 1))
                elif process.exitcode and not asked:
                    _give_up(path, pack, process.exitcode)
            if time.monotonic() - last_look > 1:
                watched.tell(watched.look())
                last_look = time.monotonic()
    finally:
        for process, _, _ in running:
            process.kill()


def _child(store: str, pack: str, command: str, parent: int) -> None:
    """Stops, and saves, when it is told to, or when its parent is gone."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent passes it on
    work(Path(store), json.loads(pack), command, lambda: asked.is_set() or os.getppid() != parent)


def _give_up(path: Path, pack: Sequence[dict[str, Any]], code: int) -> None:
    with Store(path) as store:
        for run_id in store.register(pack, {}):
            if store.claim(run_id, f"engine {os.getpid()}"):
                store.fail(run_id, f"its process ended with {code}, {TRIES} times.")


# -- what is known of it -------------------------------------------------------------------------------------


class _Watched:
    """Reads how far a sweep is, without disturbing those that write."""

    def __init__(self, path: Path, rows: Sequence[dict[str, Any]], tell: Callable[[Progress], None]) -> None:
        self.path, self.tell = path, tell
        self._wanted = {fingerprint(row): int(row["num_steps"]) for row in rows}

    def look(self) -> Progress:
        query = "SELECT fingerprint, status, (SELECT max(num_steps) FROM reports WHERE run = runs.id) FROM runs"
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            found = {key: (status, steps or 0) for key, status, steps in connection.execute(query)}
        finally:
            connection.close()
        mine = {key: found[key] for key in self._wanted if key in found}
        steps = sum(
            total if mine[key][0] == "done" else min(mine[key][1], total)
            for key, total in self._wanted.items()
            if key in mine
        )
        statuses = [status for status, _ in mine.values()]
        return Progress(
            steps, sum(self._wanted.values()), statuses.count("done"), statuses.count("failed"), len(self._wanted)
        )


def provenance(command: str) -> dict[str, str]:
    """With what results are made, here and now."""
    return {
        "version": version("offtrace"),
        "machine": platform.processor() or platform.machine(),
        "command": command,
        "python": platform.python_version(),
        "jax": version("jax"),
        "platform": platform.platform(),
    }


def _on_accelerator() -> bool:
    """Without waking one up, where JAX has been told to stay on the CPU."""
    if os.environ.get("JAX_PLATFORMS", "") == "cpu" or sys.platform == "darwin":
        return False
    import jax

    return jax.default_backend() != "cpu"
