"""The results of a sweep in one SQLite file, which many processes can use at once and anyone can query with SQL.

    with Store("results.sqlite") as store:
        store.register(specs, {"version": "0.1.0", "commit": "4e1c9ab"})
        for run_id, spec in store.missing():
            if store.claim(run_id, "engine 1"):
                store.write(run_id, reports)                   # one tick or several, any number of times
                store.finish(run_id, returns, num_unfinished=0)

Every call is one transaction: its data are on disk when it returns, and a process that is killed
leaves all of it or nothing. The file must be on a local disk, as SQLite's log (WAL) does not work
over a network. On several machines, write one file each and `read` them together. A `Store` is for
one thread of one process; a forked child opens its own.

A row of `runs` has a checksum, and one of its results once they are final. Both are verified
whenever runs are read; an error names the file and the row that do not match. A run that diverged
is over, like one that is done, but it has no score.

SQLite has no nan: it is stored as NULL and read back as nan. It has no −0.0, which becomes 0.0.
Infinities are kept. A nan in `evaluation` is read back as None, as in progress.jsonl. Names are
always passed as data, never as SQL.
"""

import json
import math
import os
import secrets
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.database import Database, OldSchema
from offtrace.experiments.encoding import fingerprint, protocol_row, report_row, run_row, text
from offtrace.experiments.stored_runs import (
    OVER,
    PROVENANCE,
    StoredRun,
    check_rows,
    seal,
    seal_all,
    seal_results,
    stored_runs,
)
from offtrace.experiments.worker_claims import WorkerClaim, host, is_alive, process_start

__all__ = ["OVER", "Store", "StoredRun", "fingerprint", "read", "run_states"]

STALE_SECONDS = 900.0
"""A claim of another host ends after this time without a write."""
MAX_REASON_LENGTH = 20_000
"""Characters of the reason of a failure that are kept."""


def read(paths: Sequence[str | Path], *, warn: Callable[[str], None] | None = None) -> list[StoredRun]:
    """Return the runs of several files, one per spec, so that no seed counts twice.

    Of two runs with the same spec the one that is over is taken, else the longer one. If both are
    over and their results differ, that of the first file is taken, and `warn` is called with a
    line; by default it is a Python warning. Every file is checked, and a damaged one raises. A
    file of an older version is migrated.
    """
    if warn is None:
        warn = _warn
    found: dict[str, StoredRun] = {}
    for path in paths:
        for run in _checked_runs(path, warn):
            other = found.setdefault(run.fingerprint, run)
            is_over = run.status in OVER
            was_over = other.status in OVER
            if (is_over, len(run.reports)) > (was_over, len(other.reports)):
                found[run.fingerprint] = run
            if is_over and was_over and run.checksum != other.checksum:
                found[run.fingerprint] = other
                name = ", ".join(f"{field} {run.spec.get(field)!r}" for field in ("env", "trace", "lambda_", "seed"))
                warn(
                    f"{name} has different results in {str(run.file)!r} and {str(other.file)!r}. "
                    "Those of the latter are used."
                )
    return list(found.values())


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def run_states(path: Path) -> dict[int, tuple[str, int]]:
    """Return the status and the number of steps of every run, by id.

    For a progress bar: it reads without a `Store`, which checks the file first, and never blocks a
    process that writes.
    """
    query = "SELECT id, status, (SELECT max(num_steps) FROM reports WHERE run = runs.id) FROM runs"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        return {run_id: (status, steps or 0) for run_id, status, steps in connection.execute(query)}
    finally:
        connection.close()


def _checked_runs(path: str | Path, warn: Callable[[str], None]) -> list[StoredRun]:
    try:
        store = Store(path, read_only=True)
    except OldSchema:
        Store(path).close()
        warn(f"{str(path)!r} was written by an older version of offtrace and has been migrated.")
        store = Store(path, read_only=True)
    with store:
        store.check()
        return store.runs()


class Store:
    """An open results file. It is created if missing, and rejected if it is not ours or has a newer schema."""

    def __init__(self, path: str | Path, *, read_only: bool = False, timeout: float = 60.0) -> None:
        """Open the file; `timeout` is the number of seconds to wait for other processes that write."""
        self._database = Database(Path(path), read_only=read_only, timeout=timeout, migrated=seal_all)
        self.path = self._database.path
        self._name = self._database.name
        self._tokens: dict[int, str] = {}
        self._provenance: int | None = None
        self._transaction = self._database.transaction
        self._do = self._database.do

    def close(self) -> None:
        """Release the claims of this process, which nobody else could claim while it lives, and close the file."""
        try:
            with suppress(OSError, sqlite3.ProgrammingError):
                for run_id in list(self._tokens):
                    claim = self.holder(run_id)
                    if claim and claim.pid == os.getpid():
                        self.release(run_id)
        finally:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- runs and their claims -------------------------------------------------------------------------------

    def register(self, specs: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any]) -> list[int]:
        """Add the specs that are not in the file yet, and return the ids of all, in their order.

        `provenance` applies to the new runs, and from now on to the runs that this `Store` claims.
        """
        wanted = list(specs)
        rows = [run_row(spec) for spec in wanted]
        with self._transaction():
            self._provenance = self._insert_provenance(provenance)
            insert = (
                "INSERT INTO runs (fingerprint, env, trace, lambda, seed, spec, provenance, registered_at, protocol, "
                "checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '') ON CONFLICT (fingerprint) DO NOTHING"
            )
            ids = dict(self._do("SELECT fingerprint, id FROM runs"))
            for spec, row in zip(wanted, rows, strict=True):
                key = row[0]
                if key not in ids:
                    ids[key] = self._do(insert, (*row, self._provenance, _now(), protocol_row(spec))).lastrowid
                    seal(self._database, [ids[key]])
            return [ids[row[0]] for row in rows]

    def missing(self, specs: Iterable[Mapping[str, Any]] | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Return the runs that are not over, of these specs or of all: not started, stopped, failed or claimed."""
        with self._transaction("DEFERRED"):
            rows = {row[0]: row[1:] for row in self._do("SELECT fingerprint, id, spec, status FROM runs ORDER BY id")}
        wanted = rows if specs is None else dict.fromkeys(map(fingerprint, specs))
        if not wanted.keys() <= rows.keys():
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        missing = []
        for key in wanted:
            run_id, spec, status = rows[key]
            if status not in OVER:
                with self._database.reading(f"run {run_id}"):
                    missing.append((run_id, dict(json.loads(spec))))
        return missing

    def missing_ids(self) -> set[int]:
        """Return the ids of all runs that are not over."""
        with self._transaction("DEFERRED"):
            return {run_id for run_id, status in self._do("SELECT id, status FROM runs") if status not in OVER}

    def ids(self, specs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Return the ids of registered specs, in their order."""
        with self._transaction("DEFERRED"):
            ids = dict(self._do("SELECT fingerprint, id FROM runs").fetchall())
        keys = [fingerprint(spec) for spec in specs]
        if not ids.keys() >= set(keys):
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        return [ids[key] for key in keys]

    def specs(self, run_ids: Iterable[int]) -> list[dict[str, Any]]:
        """Return the specs of these runs, in their order."""
        found = []
        with self._transaction("DEFERRED"):
            for run_id in run_ids:
                row = self._do("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
                if row is None:
                    raise ValueError(f"`run_ids` must be ids of runs in {self._name}; got {run_id!r}.")
                with self._database.reading(f"run {run_id}"):
                    found.append(dict(json.loads(row[0])))
        return found

    def at_work(self, *, stale_seconds: float = STALE_SECONDS) -> tuple[set[str], set[str]]:
        """Return fingerprints of runs that are neither over nor failed: those in progress, and the others."""
        names = ", ".join(WorkerClaim._fields)
        select = f"SELECT fingerprint, {names} FROM runs LEFT JOIN claims ON run = id"
        with self._transaction("DEFERRED"):
            rows = self._do(f"{select} WHERE status IN ('missing', 'running')").fetchall()
        claimed = {row[0] for row in rows if row["token"] and is_alive(WorkerClaim(*row[1:]), stale_seconds)}
        return claimed, {row[0] for row in rows} - claimed

    def workers(self) -> set[int]:
        """Return the pids of processes on this host that have claimed runs."""
        with self._transaction("DEFERRED"):
            return {pid for (pid,) in self._do("SELECT pid FROM claims WHERE host = ?", (host(),))}

    def claim(
        self, run_id: int, worker: str, *, pid: int | None = None, stale_seconds: float = STALE_SECONDS
    ) -> bool:
        """Claim a run for this worker. Return False if it is over or another living process has claimed it.

        A claim ends with its process (`pid`, default: this one). A process of another host or
        container cannot be seen from here; its claim ends when it has not called `write` or `beat`
        for `stale_seconds`.
        """
        if pid is None:
            pid = os.getpid()
        started = process_start(pid) if pid > 0 else None
        if started is None:
            raise ValueError(f"`pid` must be the id of a running process; got {pid!r}.")
        with self._transaction():
            status, claim = self._look(run_id)
            if status in OVER or (claim and is_alive(claim, stale_seconds)):
                return False
            claim = WorkerClaim(secrets.token_hex(8), text(worker), host(), pid, started, time.time())
            self._do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)", (run_id, *claim))
            self._do(
                "UPDATE runs SET status = 'running', failure = NULL, started_at = ?, ended_at = NULL, "
                "provenance = coalesce(?, provenance) WHERE id = ?",
                (_now(), self._provenance, run_id),
            )
            seal(self._database, [run_id])
        self._tokens[run_id] = claim.token
        return True

    def made_with(self, run_ids: Iterable[int], provenance: Mapping[str, Any]) -> None:
        """Replace the provenance of runs of this worker, which may be trained elsewhere than they were claimed."""
        with self._transaction():
            row_id = self._insert_provenance(provenance)
            for run_id in run_ids:
                self._check_may_write(run_id)
                self._do("UPDATE runs SET provenance = ? WHERE id = ?", (row_id, run_id))
                seal(self._database, [run_id])

    def holder(self, run_id: int) -> WorkerClaim | None:
        """Return the claim on a run, whether its process is alive or not."""
        with self._transaction("DEFERRED"):
            return self._look(run_id)[1]

    def beat(self, run_id: int) -> None:
        """Renew the heartbeat of a claim between two writes."""
        self.write(run_id, ())

    def release(self, run_id: int) -> None:
        """Give up a claim of this `Store`. The reports of the run stay, for the worker that resumes it."""
        with self._transaction():
            mine = (run_id, self._tokens.get(run_id))
            if self._do("DELETE FROM claims WHERE run = ? AND token = ?", mine).rowcount:
                self._do("UPDATE runs SET status = 'missing' WHERE id = ?", (run_id,))
                seal(self._database, [run_id])
        self._tokens.pop(run_id, None)

    # -- results ---------------------------------------------------------------------------------------------
    # Only the claim's holder may write to a run, and only until the run is over.

    def write(self, run_id: int, reports: Sequence[TickRecord]) -> None:
        """Write ticks. They replace all from the first of them on, as a resumed run writes some a second time."""
        self.write_all({run_id: reports})

    def write_all(self, reports: Mapping[int, Sequence[TickRecord]]) -> None:
        """Write ticks of several runs in one transaction."""
        rows: dict[int, list[tuple[Any, ...]]] = {}
        for run_id, ticked in reports.items():
            ticks = [report.tick for report in ticked]
            if ticks != sorted(set(ticks)):
                raise ValueError(f"`reports` must have increasing ticks; got {ticks}.")
            rows[run_id] = [(run_id, *report_row(report)) for report in ticked]
        with self._transaction():
            for run_id, ticked in reports.items():
                self._check_may_write(run_id)
                if ticked:
                    self._do("DELETE FROM reports WHERE run = ? AND tick >= ?", (run_id, ticked[0].tick))
                for row in rows[run_id]:
                    self._do(f"INSERT INTO reports VALUES ({', '.join('?' * len(row))})", row)

    def finish(
        self, run_id: int, returns: Sequence[float], num_unfinished: int = 0, *, diverged: str | None = None
    ) -> None:
        """Write the evaluation at the end of a run, which is then done for good.

        If `diverged` says when and how, the run has diverged instead, and so has one whose returns
        are not all finite.
        """
        values = [float(value) for value in returns]
        if not values:
            raise ValueError("`returns` must have the return of each evaluation episode; got none.")
        with self._transaction():
            self._check_may_write(run_id)
            for episode, value in enumerate(values):
                self._do("INSERT INTO evaluations VALUES (?, ?, ?)", (run_id, episode, value))
            if diverged is None and not all(map(math.isfinite, values)):
                diverged = "a return of its evaluation is not finite"
            if diverged is None:
                self._end(run_id, "done", None, int(num_unfinished))
            else:
                self._end(run_id, "diverged", text(diverged), int(num_unfinished))
            seal_results(self._database, run_id)

    def fail(self, run_id: int, reason: str) -> None:
        """Record why a run failed. It can be claimed again; only the last characters of a long reason are kept."""
        with self._transaction():
            self._check_may_write(run_id)
            self._end(run_id, "failed", text(reason)[-MAX_REASON_LENGTH:], None)
            seal(self._database, [run_id])

    # -- reading ---------------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        run_id: int | None = None,
        env: str | None = None,
        trace: str | None = None,
        lambda_: float | None = None,
        seed: int | None = None,
        status: str | None = None,
    ) -> list[StoredRun]:
        """Return the runs with these values, in the order of registration, all as they were at one moment."""
        given = {"id": run_id, "env": env, "trace": trace, "lambda": lambda_, "seed": seed, "status": status}
        wanted = {name: value for name, value in given.items() if value is not None}
        with self._transaction("DEFERRED"):
            return stored_runs(self._database, wanted)

    def check(self) -> None:
        """Raise an error if pages of the file are inconsistent or rows are not as they were stored.

        The results of runs that are over are verified when they are read, by `runs`.
        """
        with self._transaction("DEFERRED"):
            self._database.check()
            check_rows(self._database)

    def num_steps(self, run_id: int) -> int:
        """Return the number of steps in the last report of a run; 0 without reports."""
        with self._transaction("DEFERRED"):
            return self._do("SELECT max(num_steps) FROM reports WHERE run = ?", (run_id,)).fetchone()[0] or 0

    def checksum(self, run_id: int) -> str:
        """Return the checksum of the results of a run, `StoredRun.checksum`."""
        self.holder(run_id)
        return self.runs(run_id=run_id)[0].checksum

    # -- inside ----------------------------------------------------------------------------------------------

    def _look(self, run_id: int) -> tuple[str, WorkerClaim | None]:
        """Return the status of a run, and its claim."""
        names = f"status, {', '.join(WorkerClaim._fields)}"
        row = self._do(f"SELECT {names} FROM runs LEFT JOIN claims ON run = id WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise ValueError(f"`run_id` must be the id of a run in {self._name}; got {run_id!r}.")
        if row["token"] is None:
            return row[0], None
        return row[0], WorkerClaim(*row[1:])

    def _check_may_write(self, run_id: int) -> None:
        """Raise an error if this worker may not write to a run; else renew the heartbeat of its claim."""
        status, claim = self._look(run_id)
        if status in OVER:
            raise ValueError(f"run {run_id} of {self._name} is {status}; its results cannot be replaced.")
        token = self._tokens.get(run_id)
        this_process = (host(), os.getpid(), process_start(os.getpid()))
        if claim and claim.token != token and (claim.host, claim.pid, claim.born) != this_process:
            holder = f"{claim.worker!r}, process {claim.pid} on {claim.host!r}"
            raise RuntimeError(f"run {run_id} of {self._name} is claimed by {holder}, not by this worker.")
        if token and not claim:
            raise RuntimeError(f"run {run_id} of {self._name} is no longer claimed by this worker.")
        self._do("UPDATE claims SET heartbeat = ? WHERE run = ?", (time.time(), run_id))

    def _insert_provenance(self, provenance: Mapping[str, Any]) -> int | None:
        """Insert a row into `provenance` and return its id."""
        if unknown := sorted(set(provenance) - set(PROVENANCE)):
            raise ValueError(f"`provenance` must have keys among {', '.join(PROVENANCE)}; got {unknown[0]!r}.")
        *values, made_at = (provenance.get(name) for name in PROVENANCE)
        texts = [None if value is None else text(value) for value in values]
        insert = "INSERT INTO provenance VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)"
        return self._do(insert, (*texts, text(made_at or _now()))).lastrowid

    def _end(self, run_id: int, status: str, failure: str | None, num_unfinished: int | None) -> None:
        self._do("DELETE FROM claims WHERE run = ?", (run_id,))
        update = "UPDATE runs SET status = ?, failure = ?, num_unfinished = ?, ended_at = ? WHERE id = ?"
        self._do(update, (status, failure, num_unfinished, _now(), run_id))
        self._tokens.pop(run_id, None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
