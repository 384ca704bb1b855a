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

SQLite has no nan, which is NULL there and nan again here, and no −0.0, which is 0.0. An infinity is kept. A nan as
`evaluation` comes back as None, as in progress.jsonl. Names are data: whatever is in them, they are never SQL.
"""

import hashlib
import json
import math
import os
import secrets
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from offtrace.agent.telemetry import LISTS, Report, from_row
from offtrace.experiments.database import Database
from offtrace.experiments.processes import Claim, birth, host, is_alive
from offtrace.experiments.rows import fingerprint, report_row, run_row, text

PROVENANCE = ("version", "commit", "machine", "command", "python", "jax", "platform", "made_at")


@dataclass(frozen=True)
class StoredRun:
    """All that a file says of a run, as it was at one moment."""

    file: Path
    id: int
    fingerprint: str
    spec: dict[str, Any]
    status: str
    failure: str | None
    reports: tuple[Report, ...]
    returns: tuple[float, ...]
    num_unfinished: int | None
    provenance: dict[str, str | None]
    started_at: str | None
    ended_at: str | None

    @property
    def checksum(self) -> str:
        """Of the results alone: equal if every number is, to the last bit, wherever and whenever it was made."""
        return hashlib.sha256(repr((self.reports, self.returns, self.num_unfinished)).encode()).hexdigest()


def read(paths: Sequence[str | Path], *, warn: Callable[[str], None] | None = None) -> list[StoredRun]:
    """Runs of several files, one for each spec, so that no seed counts twice.

    Of two with the same spec one that is done is taken, else the longer one. If both are done and their results
    differ, that of the file that was named first is taken, and `warn`, or else Python's warnings, gets a line.
    """
    found: dict[str, StoredRun] = {}
    for path in paths:
        with Store(path, read_only=True) as store:
            runs = store.runs()
        for run in runs:
            other = found.setdefault(run.fingerprint, run)
            if (run.status == "done", len(run.reports)) > (other.status == "done", len(other.reports)):
                found[run.fingerprint] = run
            if run.status == other.status == "done" and run.checksum != other.checksum:
                found[run.fingerprint] = other
                what = ", ".join(f"{name} {run.spec.get(name)!r}" for name in ("env", "trace", "lambda_", "seed"))
                line = f"{what} has other results in {str(run.file)!r} than in {str(other.file)!r}: those are taken."
                warnings.warn(line, stacklevel=2) if warn is None else warn(line)
    return list(found.values())


class Store:
    """An open file of results: made if it is not there, refused if it is not one of ours or of a newer schema."""

    def __init__(self, path: str | Path, *, read_only: bool = False, timeout: float = 60.0) -> None:
        """`timeout`: seconds to wait for other processes that write."""
        self._database = Database(Path(path), read_only=read_only, timeout=timeout)
        self.path, self._name = self._database.path, self._database.name
        self._tokens: dict[int, str] = {}
        self._provenance: int | None = None
        self._transaction, self._reading = self._database.transaction, self._database.reading
        self._do = self._database.do

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
                "INSERT INTO runs (fingerprint, env, trace, lambda, seed, spec, provenance, registered_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (fingerprint) DO NOTHING"
            )
            for row in rows:
                self._do(insert, (*row, self._provenance, _now()))
            return [self._do("SELECT id FROM runs WHERE fingerprint = ?", row[:1]).fetchone()[0] for row in rows]

    def missing(self, specs: Iterable[Mapping[str, Any]] | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Runs that are not done, of these specs or of all: never begun, stopped, failed, or claimed by somebody."""
        with self._transaction("DEFERRED"):
            rows = {row[0]: row[1:] for row in self._do("SELECT fingerprint, id, spec, status FROM runs ORDER BY id")}
        wanted = rows if specs is None else dict.fromkeys(map(fingerprint, specs))
        if not wanted.keys() <= rows.keys():
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        found = [rows[key] for key in wanted]
        with self._reading():
            return [(run_id, dict(json.loads(spec))) for run_id, spec, status in found if status != "done"]

    def claim(self, run_id: int, worker: str, *, pid: int | None = None, stale_seconds: float = 900.0) -> bool:
        """Whether the run is this worker's now; not if it is done, or if another claim on it is alive.

        A claim ends with its process (`pid`, or this one). That of another host, or container, which cannot be
        seen from here, ends when it has given no sign of life, by `write` or `beat`, for `stale_seconds`.
        """
        pid = os.getpid() if pid is None else pid
        born = birth(pid) if pid > 0 else None
        if born is None:
            raise ValueError(f"`pid` must be of a living process; got {pid!r}.")
        with self._transaction():
            status, claim = self._look(run_id)
            if status == "done" or (claim and is_alive(claim, stale_seconds)):
                return False
            claim = Claim(secrets.token_hex(8), text(worker), host(), pid, born, time.time())
            self._do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)", (run_id, *claim))
            self._do(
                "UPDATE runs SET status = 'running', failure = NULL, started_at = ?, ended_at = NULL, "
                "provenance = coalesce(?, provenance) WHERE id = ?",
                (_now(), self._provenance, run_id),
            )
        self._tokens[run_id] = claim.token
        return True

    def made_with(self, run_ids: Iterable[int], provenance: Mapping[str, Any]) -> None:
        """For runs of this worker that turn out to be made with something else than it was said when claimed."""
        with self._transaction():
            made = self._made(provenance)
            for run_id in run_ids:
                self._hold(run_id)
                self._do("UPDATE runs SET provenance = ? WHERE id = ?", (made, run_id))

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
        self._tokens.pop(run_id, None)

    # -- what came of it -------------------------------------------------------------------------------------
    # Who has claimed a run is alone in writing to it, and nobody writes to one that is done.

    def write(self, run_id: int, reports: Sequence[Report]) -> None:
        """These ticks, instead of all from the first of them on: a resumed run writes some a second time."""
        self.write_all({run_id: reports})

    def write_all(self, reports: Mapping[int, Sequence[Report]]) -> None:
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

    def finish(self, run_id: int, returns: Sequence[float], num_unfinished: int = 0) -> None:
        """The evaluation at the end: the run is done, for good."""
        values = [float(value) for value in returns]
        if not values:
            raise ValueError(
                "`returns` must be those of the evaluation's episodes; got none, as if it were not done."
            )
        with self._transaction():
            self._hold(run_id)
            for episode, value in enumerate(values):
                self._do("INSERT INTO evaluations VALUES (?, ?, ?)", (run_id, episode, value))
            self._end(run_id, "done", None, int(num_unfinished))

    def fail(self, run_id: int, reason: str) -> None:
        """Why it broke, in its last 20,000 characters. The run is still a missing one, and can be claimed again."""
        with self._transaction():
            self._hold(run_id)
            self._end(run_id, "failed", text(reason)[-20_000:], None)

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
        where = " AND ".join(["TRUE", *(f"runs.{name} = :{name}" for name in wanted)])
        reports: dict[int, list[Report]] = {}
        returns: dict[int, list[float]] = {}
        with self._transaction("DEFERRED"), self._reading():
            made = {
                row["id"]: {name: row[name] for name in PROVENANCE} for row in self._do("SELECT * FROM provenance")
            }
            joined = f"JOIN runs ON runs.id = run WHERE {where} ORDER BY run"
            for row in self._do(f"SELECT reports.* FROM reports {joined}, tick", wanted):
                lists = {name: json.loads(row[name]) for name in LISTS}
                reports.setdefault(row["run"], []).append(from_row({**dict(row), **lists}))
            for key, value in self._do(f"SELECT run, return FROM evaluations {joined}, episode", wanted):
                returns.setdefault(key, []).append(math.nan if value is None else value)
            return [
                StoredRun(
                    file=self.path,
                    spec=dict(json.loads(row["spec"])),
                    reports=tuple(reports.get(row["id"], ())),
                    returns=tuple(returns.get(row["id"], ())),
                    provenance=made[row["provenance"]],
                    **{name: row[name] for name in ("id", "fingerprint", "status", "failure", "num_unfinished")},
                    **{name: row[name] for name in ("started_at", "ended_at")},
                )
                for row in self._do(f"SELECT * FROM runs WHERE {where} ORDER BY id", wanted)
            ]

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
        if status == "done":
            raise ValueError(f"run {run_id} of {self._name} is done, and its results are not replaced.")
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
