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

import errno
import hashlib
import json
import math
import os
import secrets
import socket
import sqlite3
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from offtrace.agent.telemetry import COUNTS, LISTS, Report, from_row, to_row

APPLICATION, VERSION = 0x6F667472, 1  # "oftr", and the schema below

SCHEMA = """
-- With what results were made; a row for each time that a sweep was begun. "commit" is a word of SQL: quote it.
CREATE TABLE provenance (
    id INTEGER PRIMARY KEY,
    version TEXT, "commit" TEXT, machine TEXT, command TEXT, python TEXT, jax TEXT, platform TEXT,
    made_at TEXT NOT NULL                          -- times are UTC, ISO 8601
) STRICT;

-- A row for each spec. env, trace, lambda and seed are copies out of it.
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,              -- SHA-256 of the spec, whatever the order of its fields
    env TEXT NOT NULL, trace TEXT NOT NULL, lambda REAL NOT NULL, seed INTEGER NOT NULL,
    spec TEXT NOT NULL,                            -- JSON
    status TEXT NOT NULL DEFAULT 'missing' CHECK (status IN ('missing', 'running', 'done', 'failed')),
    failure TEXT,                                  -- why, if it failed
    num_unfinished INTEGER,                        -- evaluation episodes at the end that were cut off
    provenance INTEGER NOT NULL REFERENCES provenance,    -- of who claimed it last
    registered_at TEXT NOT NULL, started_at TEXT, ended_at TEXT
) STRICT;

-- Who is at work on a run; it may be dead.
CREATE TABLE claims (
    run INTEGER PRIMARY KEY REFERENCES runs,
    token TEXT NOT NULL,                           -- tells this claim from every other
    worker TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    born INTEGER NOT NULL,                         -- when the process began, as pids are used again
    heartbeat REAL NOT NULL                        -- its last sign of life, in seconds since 1970
) STRICT;

-- One tick of a run: the fields of telemetry.Report, where each is explained.
CREATE TABLE reports (
    run INTEGER NOT NULL REFERENCES runs,
    tick INTEGER NOT NULL, num_steps INTEGER NOT NULL, num_updates INTEGER NOT NULL, num_episodes INTEGER NOT NULL,
    episode_return REAL, episode_length REAL, epsilon REAL, step_size REAL, loss REAL, q REAL, c REAL, cut REAL,
    effective_length REAL, off_policy REAL, gradient REAL,
    off_policy_by_age TEXT NOT NULL,               -- a JSON list of numbers
    evaluation REAL,
    events TEXT NOT NULL,                          -- a JSON list of sentences
    PRIMARY KEY (run, tick)
) STRICT, WITHOUT ROWID;

-- The evaluation at the end of a run that is done: raw returns, episode by episode.
CREATE TABLE evaluations (
    run INTEGER NOT NULL REFERENCES runs, episode INTEGER NOT NULL, return REAL,
    PRIMARY KEY (run, episode)
) STRICT, WITHOUT ROWID;

-- Of runs that are done: score, the mean raw return of the training episodes that ended in the last 10 % of frames
-- (in the ticks that end there), and evaluation, that of the episodes at the end.
CREATE VIEW final_scores AS
WITH ends AS (SELECT run, max(num_steps) AS num_steps FROM reports GROUP BY run)
SELECT runs.id AS run, env, trace, lambda, seed, ends.num_steps, sum(num_episodes) AS num_episodes,
    sum(num_episodes * episode_return) / sum(num_episodes) FILTER (WHERE episode_return IS NOT NULL) AS score,
    (SELECT avg(return) FROM evaluations WHERE evaluations.run = runs.id) AS evaluation
FROM runs LEFT JOIN ends ON ends.run = runs.id
    LEFT JOIN reports ON reports.run = runs.id AND 10 * reports.num_steps > 9 * ends.num_steps
WHERE status = 'done' GROUP BY runs.id;

-- Every tick of every run, with what the run is.
CREATE VIEW curves AS
SELECT env, trace, lambda, seed, status, reports.* FROM runs JOIN reports ON reports.run = runs.id;
"""

MIGRATIONS: dict[int, str] = {}
"""From a version to the next one: statements, each of which ends with a semicolon at the end of a line."""

COLUMNS = "SELECT m.type, m.name, c.name, c.type FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
PROVENANCE = ("version", "commit", "machine", "command", "python", "jax", "platform", "made_at")
LONGEST = 16 << 20
"""Bytes of a row: a longer one is neither written nor read."""
ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.ETIMEDOUT,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}
"""Of the system. Any other one of SQLite's says that the file, or a value, is not as it should be."""


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


class Claim(NamedTuple):
    token: str
    worker: str
    host: str
    pid: int
    born: int
    heartbeat: float


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
        self.path = Path(path).absolute()
        self._name = repr(str(self.path))
        self._tokens: dict[int, str] = {}
        self._provenance: int | None = None
        address = f"{self.path.as_uri()}?{self._mode(read_only)}"
        try:
            self._connection = sqlite3.connect(address, uri=True, timeout=timeout, isolation_level=None)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self._do = self._connection.execute
        try:
            self._connection.row_factory = sqlite3.Row
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
            self._begin(read_only)
        except sqlite3.Error as error:
            self._connection.close()
            raise self._explained(error) from error
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Gives the claims of this process back: while it lives, nobody could claim them again."""
        try:
            with suppress(OSError, sqlite3.ProgrammingError):
                for run_id in list(self._tokens):
                    claim = self.holder(run_id)
                    if claim and claim.pid == os.getpid():
                        self.release(run_id)
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is to be run -----------------------------------------------------------------------------------

    def register(self, specs: Iterable[Mapping[str, Any]], provenance: Mapping[str, Any]) -> list[int]:
        """Ids of the specs, in their order; a run that is there already stays as it is.

        `provenance` is that of new runs, and from now on of those that this `Store` claims.
        """
        if unknown := sorted(set(provenance) - set(PROVENANCE)):
            raise ValueError(f"`provenance` must be of {', '.join(PROVENANCE)}; got {unknown[0]!r}.")
        made = [provenance.get(name) for name in PROVENANCE]
        texts = [None if value is None else _text(value) for value in made[:-1]]
        rows = [_run_row(spec) for spec in specs]
        with self._transaction():
            insert = "INSERT INTO provenance VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)"
            self._provenance = self._do(insert, (*texts, _text(made[-1] or _now()))).lastrowid
            insert = (
                "INSERT INTO runs (fingerprint, env, trace, lambda, seed, spec, provenance, registered_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (fingerprint) DO NOTHING"
            )
            for row in rows:
                self._do(insert, (*row, self._provenance, _now()))
            return [self._do("SELECT id FROM runs WHERE fingerprint = ?", row[:1]).fetchone()[0] for row in rows]

    def missing(self, specs: Iterable[Mapping[str, Any]] | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Runs that are not done, of these specs or of all: never begun, stopped, failed, or claimed by somebody."""
        with self._transaction("DEFERRED"), self._reading():
            found = self._do("SELECT fingerprint, id, spec, status FROM runs ORDER BY id")
            rows = {key: (run_id, dict(json.loads(spec)), status) for key, run_id, spec, status in found}
        wanted = rows if specs is None else dict.fromkeys(map(fingerprint, specs))
        if not wanted.keys() <= rows.keys():
            raise ValueError(f"`specs` must be registered in {self._name} first.")
        return [rows[key][:2] for key in wanted if rows[key][2] != "done"]

    def claim(self, run_id: int, worker: str, *, pid: int | None = None, stale_seconds: float = 900.0) -> bool:
        """Whether the run is this worker's now; not if it is done, or if another claim on it is alive.

        A claim ends with its process (`pid`, or this one). That of another host, or container, which cannot be
        seen from here, ends when it has given no sign of life, by `write` or `beat`, for `stale_seconds`.
        """
        pid = os.getpid() if pid is None else pid
        born = _born(pid) if pid > 0 else None
        if born is None:
            raise ValueError(f"`pid` must be of a living process; got {pid!r}.")
        with self._transaction():
            status, claim = self._look(run_id)
            if status == "done" or (claim and _is_alive(claim, stale_seconds)):
                return False
            claim = Claim(secrets.token_hex(8), _text(worker), _host(), pid, born, time.time())
            self._do("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)", (run_id, *claim))
            self._do(
                "UPDATE runs SET status = 'running', failure = NULL, started_at = ?, ended_at = NULL, "
                "provenance = coalesce(?, provenance) WHERE id = ?",
                (_now(), self._provenance, run_id),
            )
        self._tokens[run_id] = claim.token
        return True

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
        ticks = [report.tick for report in reports]
        if ticks != sorted(set(ticks)):
            raise ValueError(f"`reports` must be in the order of their ticks, one of each; got {ticks}.")
        rows = [(run_id, *_report_row(report)) for report in reports]
        with self._transaction():
            self._hold(run_id)
            if rows:
                self._do("DELETE FROM reports WHERE run = ? AND tick >= ?", (run_id, ticks[0]))
            for row in rows:
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

    def fail(self, run_id: int, text: str) -> None:
        """Why it broke, in its last 20,000 characters. The run is still a missing one, and can be claimed again."""
        with self._transaction():
            self._hold(run_id)
            self._end(run_id, "failed", _text(text)[-20_000:], None)

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

    def checksum(self, run_id: int) -> str:
        """Of the results of a run: `StoredRun.checksum`."""
        self.holder(run_id)
        return self.runs(run_id=run_id)[0].checksum

    # -- inside ----------------------------------------------------------------------------------------------

    def _mode(self, read_only: bool) -> str:
        """How SQLite is to open the file; refused where that is known to be in vain.

        The file itself is not opened here: to close it would drop the locks of another `Store` of this process.
        """
        path, folder = self.path, self.path.parent
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"{self._name} must be a file of results, or a new name.")
        if read_only and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "there are no results", str(path))
        writable = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.R_OK | os.W_OK))
        if not writable and not read_only:
            raise PermissionError(errno.EACCES, "results cannot be written there, nor beside it", str(path))
        if writable:  # a reader, too, as it then leaves nothing behind
            return "mode=rw" if read_only else "mode=rwc"
        return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"

    def _begin(self, read_only: bool) -> None:
        """Nothing in a file is changed before it is known to be ours."""
        self._do("PRAGMA trusted_schema = OFF")
        with self._transaction("DEFERRED"):
            version = self._version()
        if read_only:
            self._do("PRAGMA query_only = ON")
            if version != VERSION:
                remedy = "Open it for writing once." if version else "Nothing was ever written to it."
                raise ValueError(f"{self._name} has schema {version}, and {VERSION} is read here. {remedy}")
            return
        if self._do("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise OSError(errno.ENOTSUP, "results must be on a local disk, where SQLite's WAL works", str(self.path))
        self._do("PRAGMA synchronous = FULL")
        self._do("PRAGMA foreign_keys = ON")
        with self._transaction():
            version = self._version()  # again, as another process may have been here meanwhile
            if version != VERSION:
                scripts = [MIGRATIONS[old] for old in range(version, VERSION)] if version else [SCHEMA]
                for statement in "".join(scripts).split(";\n"):
                    self._do(statement)
                self._do(f"PRAGMA application_id = {APPLICATION}")
                self._do(f"PRAGMA user_version = {VERSION}")
                self._version()

    def _version(self) -> int:
        """Of the schema, 0 if there is nothing in the file. What is not ours, or not all there, is refused."""
        sizes = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
        application, version, size = (self._do(sql).fetchone()[0] for sql in sizes)
        if application == version == size == 0:
            return 0
        if application != APPLICATION:
            raise ValueError(f"{self._name} is a SQLite database, but not one of offtrace's. Use another file.")
        if version not in (*MIGRATIONS, VERSION):
            remedy = "a newer offtrace" if version > VERSION else "the offtrace that made it"
            raise ValueError(f"{self._name} has schema {version}, and {VERSION} is read here. Use {remedy}.")
        if version == VERSION:
            with closing(sqlite3.connect(":memory:")) as fresh:
                fresh.executescript(SCHEMA)
                lost = set(fresh.execute(COLUMNS)) - set(map(tuple, self._do(COLUMNS)))
            if lost:
                what = ", ".join(sorted({f"{table}.{column}" for _, table, column, _ in lost}))
                raise ValueError(f"{self._name} is damaged: it has no {what}, or not as it was made.")
        return version

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Generator[None]:
        """All of it or nothing. One that writes waits for its turn at its beginning, where it can."""
        try:
            self._do(f"BEGIN {kind}")
            yield
            self._do("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter while it says what is wrong in a schema
            raise self._explained(error) from error
        finally:
            if self._connection.in_transaction:
                self._do("ROLLBACK")

    @contextmanager
    def _reading(self) -> Generator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{self._name} is damaged: {error!r}.") from error

    def _explained(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            return error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in ERRORS:
            return OSError(ERRORS[code], f"what was stored before is intact, but {error}", str(self.path))
        return ValueError(f"{self._name} is not a file of results, or damaged, or cannot hold this: {error}.")

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
        here = (_host(), os.getpid(), _born(os.getpid()))
        if claim and claim.token != mine and (claim.host, claim.pid, claim.born) != here:
            who = f"{claim.worker!r}, process {claim.pid} on {claim.host!r}"
            raise RuntimeError(f"run {run_id} of {self._name} is claimed by {who}, not by this worker.")
        if mine and not claim:
            raise RuntimeError(f"run {run_id} of {self._name} is not this worker's any more.")
        self._do("UPDATE claims SET heartbeat = ? WHERE run = ?", (time.time(), run_id))

    def _end(self, run_id: int, status: str, failure: str | None, num_unfinished: int | None) -> None:
        self._do("DELETE FROM claims WHERE run = ?", (run_id,))
        update = "UPDATE runs SET status = ?, failure = ?, num_unfinished = ?, ended_at = ? WHERE id = ?"
        self._do(update, (status, failure, num_unfinished, _now(), run_id))
        self._tokens.pop(run_id, None)


# -- rows ----------------------------------------------------------------------------------------------------


def fingerprint(spec: Mapping[str, Any]) -> str:
    """SHA-256 of its JSON: fields sorted, and 1.0 as 1, since specs that are equal have the same one.

    >>> fingerprint({"lambda_": 1.0, "seed": 3}) == fingerprint({"seed": 3, "lambda_": 1})
    True
    """
    return hashlib.sha256(_json(_plain(spec)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a spec must hold what JSON can: {error}.") from error


def _run_row(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    kinds = {"env": str, "trace": str, "lambda_": int | float, "seed": int}
    for name, kind in kinds.items():
        if not isinstance(spec.get(name), kind):
            raise ValueError(f"a spec must have `{name}`, of {kind}; got {spec.get(name)!r}.")
    env, trace, lambda_, seed = (spec[name] for name in kinds)
    return fingerprint(spec), _text(env), _text(trace), float(lambda_), seed, _json(dict(spec))


def _report_row(report: Report) -> list[Any]:
    """As SQLite has it: what JSON writes as a text, an infinity, is a number here."""
    row = to_row(report)
    plain = {name: json.dumps(row[name], allow_nan=False) for name in LISTS} | {name: row[name] for name in COUNTS}
    return [plain[name] if name in plain else None if row[name] is None else float(row[name]) for name in row]


def _text(value: Any) -> str:
    """What cannot be UTF-8, such as a part of a file's name, is spelt out."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# -- processes -----------------------------------------------------------------------------------------------


def _host() -> str:
    """Where a pid means something: containers may share the name of their host."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> int | None:
    """When a process began, in the system's own count; 0 if that is not known; None if it has ended."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        return None if state in (b"Z", b"X") else int(others[18])
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0


def _is_alive(claim: Claim, stale_seconds: float) -> bool:
    if claim.host != _host():
        return time.time() - claim.heartbeat < stale_seconds
    born = _born(claim.pid)
    return born is not None and (born == claim.born or 0 in (born, claim.born))
