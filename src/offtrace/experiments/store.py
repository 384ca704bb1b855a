"""The results of a sweep in one SQLite file, for many processes at once, and for whoever likes SQL.

    with Store("results.sqlite") as store:
        store.register(specs, {"version": "0.1.0", "commit": "4e1c9ab"})
        for run_id, spec in store.missing():
            if store.claim(run_id, "engine 1"):
                store.write(run_id, reports)                   # a tick, or many, as often as they come
                store.finish(run_id, returns, num_unfinished=0)

A call is one transaction: it is on the disk when it returns, and a process that is killed leaves all or nothing.
The file must be on a disk of this machine, as SQLite's log (WAL) does not work over a network: elsewhere write other
files, and `read` them together. A `Store` is for one thread of one process; a forked child opens its own.

A row of `runs` has a checksum, and one of its results once they are final. Both are verified whenever runs are read:
what is not as it was stored is refused, with the file and the row. A run that diverged is over, as one that is done
is, but has no score.

SQLite has no nan, which is NULL there and nan again here, and no −0.0, which is 0.0. An infinity is kept. A nan as
`evaluation` comes back as None, as in progress.jsonl. Names are data: whatever is in them, they are never SQL.
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
from offtrace.experiments.processes import Claim, birth, host, is_alive
from offtrace.experiments.records import (
    OVER,
    PROVENANCE,
    StoredRun,
    check_rows,
    seal,
    seal_all,
    seal_results,
    stored_runs,
)
from offtrace.experiments.rows import fingerprint, report_row, run_row, text

__all__ = ["OVER", "Store", "StoredRun", "fingerprint", "read"]


def read(paths: Sequence[str | Path], *, warn: Callable[[str], None] | None = None) -> list[StoredRun]:
    """Runs of several files, one for each spec, so that no seed counts twice.

    Of two with the same spec one that is over is taken, else the longer one. If both are over and their results
    differ, that of the file that was named first is taken, and `warn`, or else Python's warnings, gets a line.
    Every file is checked, and refused where it is damaged. One of an older version is brought up to date.
    """
    tell = warn or (lambda line: warnings.warn(line, stacklevel=3))
    found: dict[str, StoredRun] = {}
    for path in paths:
        for run in _checked_runs(path, tell):
            other = found.setdefault(run.fingerprint, run)
            is_over, was_over = run.status in OVER, other.status in OVER
            if (is_over, len(run.reports)) > (was_over, len(other.reports)):
                found[run.fingerprint] = run
            if is_over and was_over and run.checksum != other.checksum:
                found[run.fingerprint] = other
                what = ", ".join(f"{name} {run.spec.get(name)!r}" for name in ("env", "trace", "lambda_", "seed"))
                tell(f"{what} has other results in {str(run.file)!r} than in {str(other.file)!r}: those are taken.")
    return list(found.values())


def _checked_runs(path: str | Path, tell: Callable[[str], None]) -> list[StoredRun]:
    try:
        store = Store(path, read_only=True)
    except OldSchema:
        Store(path).close()
        tell(f"{str(path)!r} was made by an older version of offtrace, and was brought up to date.")
        store = Store(path, read_only=True)
    with store:
        store.check()
        return store.runs()


class Store:
    """An open file of results: made if it is not there, refused if it is not one of ours or of a newer schema."""

    def __init__(self, path: str | Path, *, read_only: bool = False, timeout: float = 60.0) -> None:
        """`timeout`: seconds to wait for other processes that write."""
        self._database = Database(Path(path), read_only=read_only, timeout=timeout, migrated=seal_all)
        self.path, self._name = self._database.path, self._database.name
        self._tokens: dict[int, str] = {}
        self._provenance: int | None = None
        self._transaction, self._do = self._database.transaction, self._database.do

    def close(self) -> None:
        """Gives the claims of this process back: while it lives, nobody could claim them again."""
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

    # -- what is to be run -----------------------------------------------------------------------------------

    def register(self, specs: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any]) -> list[int]:
        """Ids of the specs, in their order; a run that is there already stays as it is.

        `provenance` is that of new runs, and from now on of those that this `Store` claims.
        """
        rows = [run_row(spec) for spec in specs]
        with self._transaction():
            self._provenance = self._made(provenance)
            insert = (
                "INSERT INTO runs (fingerprint, env, trace, lambda, seed, spec, provenance, registered_at, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, '') ON CONFLICT (fingerprint) DO NOTHING"
            )
            known = dict(self._do("SELECT fingerprint, id FROM runs"))
            for row in rows:
                if row[0] not in known:
                    known[row[0]] = self._do(insert, (*row, self._provenance, _now())).lastrowid
                    seal(self._database, [known[row[0]]])
            return [known[row[0]] for row in rows]

    def missing(self, specs: Iterable[Mapping[str, Any]] | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Runs that are not over, of these specs or of all: never begun, stopped, failed, or claimed by somebody."""
        with self._transaction("DEFERRED"):
            rows = {row[0]: row[1:] for row in self._do("SELECT fingerprint, id, spec, status FROM runs ORDER BY id")}
        wanted = rows if specs is None else dict.fromkeys(map(fingerprint, specs))
        if not wanted.keys() <= rows.keys():
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        found = [rows[key] for key in wanted]
        missing = []
        for run_id, spec, status in found:
            if status not in OVER:
                with self._database.reading(f"run {run_id}"):
                    missing.append((run_id, dict(json.loads(spec))))
        return missing

    def missing_ids(self) -> set[int]:
        """Of all runs that are not over."""
        with self._transaction("DEFERRED"):
            return {run_id for run_id, status in self._do("SELECT id, status FROM runs") if status not in OVER}

    def ids(self, specs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Of specs that are registered, in their order."""
        with self._transaction("DEFERRED"):
            known = dict(self._do("SELECT fingerprint, id FROM runs").fetchall())
        keys = [fingerprint(spec) for spec in specs]
        if not known.keys() >= set(keys):
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        return [known[key] for key in keys]

    def specs(self, run_ids: Iterable[int]) -> list[dict[str, Any]]:
        """Of these runs, in their order."""
        found = []
        with self._transaction("DEFERRED"):
            for run_id in run_ids:
                row = self._do("SELECT spec FROM runs WHERE id = ?", (run_id,)).fetchone()
                if row is None:
                    raise ValueError(f"`run_ids` must be of runs in {self._name}; got {run_id!r}.")
                with self._database.reading(f"run {run_id}"):
                    found.append(dict(json.loads(row[0])))
        return found

    def at_work(self, *, stale_seconds: float = 900.0) -> tuple[set[str], set[str]]:
        """Fingerprints of runs that are not over and did not fail: those with a process at work, and the others."""
        names = ", ".join(Claim._fields)
        select = f"SELECT fingerprint, {names} FROM runs LEFT JOIN claims ON run = id"
        with self._transaction("DEFERRED"):
            rows = self._do(f"{select} WHERE status IN ('missing', 'running')").fetchall()
        found = {row[0] for row in rows if row["token"] and is_alive(Claim(*row[1:]), stale_seconds)}
        return found, {row[0] for row in rows} - found

    def workers(self) -> set[int]:
        """Pids of processes on this host that have claimed runs."""
        with self._transaction("DEFERRED"):
            return {pid for (pid,) in self._do("SELECT pid FROM claims WHERE host = ?", (host(),))}

    def claim(self, run_id: int, worker: str, *, pid: int | None = None, stale_seconds: float = 900.0) -> bool:
        """Whether the run is this worker's now; not if it is over, or if another claim on it is alive.

        A claim ends with its process (`pid`, or this one). That of another host, or container, which cannot be
        seen from here, ends when it has given no sign of life, by `write` or `beat`, for `stale_seconds`.
        """
        pid = os.getpid() if pid is None else pid
        born = birth(pid) if pid > 0 else None
        if born is None:
            raise ValueError(f"`pid` must be of a living process; got {pid!r}.")
        with self._transaction():
            status, claim = self._look(run_id)
            if status in OVER or (claim and is_alive(claim, stale_seconds)):
                return False
            claim = Claim(secrets.token_hex(8), text(worker), host(), pid, born, time.time())
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
        """For runs of this worker that turn out to be made with something else than it was said when claimed."""
        with self._transaction():
            made = self._made(provenance)
            for run_id in run_ids:
                self._hold(run_id)
                self._do("UPDATE runs SET provenance = ? WHERE id = ?", (made, run_id))
                seal(self._database, [run_id])

    def holder(self, run_id: int) -> Claim | None:
        """Whose run it is, dead or alive."""
        with self._transaction("DEFERRED"):
            return self._look(run_id)[1]

    def beat(self, run_id: int) -> None:
        """A sign of life between two writes."""
        self.write(run_id, ())

    def release(self, run_id: int) -> None:
        """Gives a claim of this `Store` back. What was written stays, for whoever resumes the run."""
        with self._transaction():
            mine = (run_id, self._tokens.get(run_id))
            if self._do("DELETE FROM claims WHERE run = ? AND token = ?", mine).rowcount:
                self._do("UPDATE runs SET status = 'missing' WHERE id = ?", (run_id,))
                seal(self._database, [run_id])
        self._tokens.pop(run_id, None)

    # -- what came of it -------------------------------------------------------------------------------------
    # Who has claimed a run is alone in writing to it, and nobody writes to one that is over.

    def write(self, run_id: int, reports: Sequence[TickRecord]) -> None:
        """These ticks, instead of all from the first of them on: a resumed run writes some a second time."""
        self.write_all({run_id: reports})

    def write_all(self, reports: Mapping[int, Sequence[TickRecord]]) -> None:
        """The same for several runs, in one transaction."""
        rows: dict[int, list[tuple[Any, ...]]] = {}
        for run_id, ticked in reports.items():
            ticks = [report.tick for report in ticked]
            if ticks != sorted(set(ticks)):
                raise ValueError(f"`reports` must be in the order of their ticks, one of each; got {ticks}.")
            rows[run_id] = [(run_id, *report_row(report)) for report in ticked]
        with self._transaction():
            for run_id, ticked in reports.items():
                self._hold(run_id)
                if ticked:
                    self._do("DELETE FROM reports WHERE run = ? AND tick >= ?", (run_id, ticked[0].tick))
                for row in rows[run_id]:
                    self._do(f"INSERT INTO reports VALUES ({', '.join('?' * len(row))})", row)

    def finish(
        self, run_id: int, returns: Sequence[float], num_unfinished: int = 0, *, diverged: str | None = None
    ) -> None:
        """The evaluation at the end: the run is done, for good; or it `diverged`, if that says when and how.

        One whose returns are not all finite diverged, too.
        """
        values = [float(value) for value in returns]
        if not values:
            raise ValueError(
                "`returns` must be those of the evaluation's episodes; got none, as if it were not done."
            )
        with self._transaction():
            self._hold(run_id)
            for episode, value in enumerate(values):
                self._do("INSERT INTO evaluations VALUES (?, ?, ?)", (run_id, episode, value))
            if diverged is None and not all(map(math.isfinite, values)):
                diverged = "a return of its evaluation is not finite"
            status = "done" if diverged is None else "diverged"
            self._end(run_id, status, None if diverged is None else text(diverged), int(num_unfinished))
            seal_results(self._database, run_id)

    def fail(self, run_id: int, reason: str) -> None:
        """Why it broke, in its last 20,000 characters. The run is still a missing one, and can be claimed again."""
        with self._transaction():
            self._hold(run_id)
            self._end(run_id, "failed", text(reason)[-20_000:], None)
            seal(self._database, [run_id])

    # -- what is there ---------------------------------------------------------------------------------------

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
        """Those that fit, in the order in which they were registered, all as they were at one moment."""
        given = {"id": run_id, "env": env, "trace": trace, "lambda": lambda_, "seed": seed, "status": status}
        wanted = {name: value for name, value in given.items() if value is not None}
        with self._transaction("DEFERRED"):
            return stored_runs(self._database, wanted)

    def check(self) -> None:
        """Refuses a file that is damaged: pages that do not fit together, rows that are not as they were stored.

        The results of runs that are over are verified where they are read, by `runs`.
        """
        with self._transaction("DEFERRED"):
            self._database.check()
            check_rows(self._database)

    def num_steps(self, run_id: int) -> int:
        """How far a run is, by its last report; 0 if there is none."""
        with self._transaction("DEFERRED"):
            return self._do("SELECT max(num_steps) FROM reports WHERE run = ?", (run_id,)).fetchone()[0] or 0

    def checksum(self, run_id: int) -> str:
        """Of the results of a run: `StoredRun.checksum`."""
        self.holder(run_id)
        return self.runs(run_id=run_id)[0].checksum

    # -- inside ----------------------------------------------------------------------------------------------

    def _look(self, run_id: int) -> tuple[str, Claim | None]:
        """The status of a run, and its claim."""
        names = f"status, {', '.join(Claim._fields)}"
        row = self._do(f"SELECT {names} FROM runs LEFT JOIN claims ON run = id WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise ValueError(f"`run_id` must be of a run in {self._name}; got {run_id!r}.")
        return row[0], None if row["token"] is None else Claim(*row[1:])

    def _hold(self, run_id: int) -> None:
        """Refuses who may not write to the run; from who may, it is a sign of life."""
        status, claim = self._look(run_id)
        if status in OVER:
            raise ValueError(f"run {run_id} of {self._name} is {status}, and its results are not replaced.")
        mine = self._tokens.get(run_id)
        here = (host(), os.getpid(), birth(os.getpid()))
        if claim and claim.token != mine and (claim.host, claim.pid, claim.born) != here:
            who = f"{claim.worker!r}, process {claim.pid} on {claim.host!r}"
            raise RuntimeError(f"run {run_id} of {self._name} is claimed by {who}, not by this worker.")
        if mine and not claim:
            raise RuntimeError(f"run {run_id} of {self._name} is not this worker's any more.")
        self._do("UPDATE claims SET heartbeat = ? WHERE run = ?", (time.time(), run_id))

    def _made(self, provenance: Mapping[str, Any]) -> int | None:
        """The id of a new row."""
        if unknown := sorted(set(provenance) - set(PROVENANCE)):
            raise ValueError(f"`provenance` must be of {', '.join(PROVENANCE)}; got {unknown[0]!r}.")
        made = [provenance.get(name) for name in PROVENANCE]
        texts = [None if value is None else text(value) for value in made[:-1]]
        insert = "INSERT INTO provenance VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)"
        return self._do(insert, (*texts, text(made[-1] or _now()))).lastrowid

    def _end(self, run_id: int, status: str, failure: str | None, num_unfinished: int | None) -> None:
        self._do("DELETE FROM claims WHERE run = ?", (run_id,))
        update = "UPDATE runs SET status = ?, failure = ?, num_unfinished = ?, ended_at = ? WHERE id = ?"
        self._do(update, (status, failure, num_unfinished, _now(), run_id))
        self._tokens.pop(run_id, None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
