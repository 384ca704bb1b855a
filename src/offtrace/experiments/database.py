"""The SQLite file of a store: its schema, how it is opened, and which files are rejected.

A file is accepted if it has our application id, a known version and every column of the schema.
One of an older version is migrated when it is opened for writing.
"""

import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

APPLICATION = 0x6F667472  # "oftr"
VERSION = 3  # of the schema below

TABLES = """
-- What results were made with; one row per start of a sweep. "commit" is a keyword of SQL: quote it.
CREATE TABLE provenance (
    id INTEGER PRIMARY KEY,
    version TEXT, "commit" TEXT, machine TEXT, command TEXT, python TEXT, jax TEXT, platform TEXT,
    made_at TEXT NOT NULL                          -- times are UTC, ISO 8601
) STRICT;

-- One row per spec. env, trace, lambda and seed are copied from it.
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    fingerprint TEXT NOT NULL UNIQUE,              -- SHA-256 of the spec, whatever the order of its fields
    env TEXT NOT NULL, trace TEXT NOT NULL, lambda REAL NOT NULL, seed INTEGER NOT NULL,
    spec TEXT NOT NULL,                            -- JSON
    status TEXT NOT NULL DEFAULT 'missing'
        CHECK (status IN ('missing', 'running', 'done', 'diverged', 'failed')),
    failure TEXT,                                  -- why, if it failed or diverged
    num_unfinished INTEGER,                        -- evaluation episodes at the end that were cut off
    provenance INTEGER NOT NULL REFERENCES provenance,    -- of the last claim
    registered_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
    results TEXT,                                  -- SHA-256 of its reports and returns, once it is done or diverged
    checksum TEXT NOT NULL,                        -- SHA-256 of the rest of this row, and of its provenance
    protocol TEXT                                  -- JSON: the rules of the game; NULL before version 3
) STRICT;

-- The process that works on a run; it may have died.
CREATE TABLE claims (
    run INTEGER PRIMARY KEY REFERENCES runs,
    token TEXT NOT NULL,                           -- identifies this claim
    worker TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    born INTEGER NOT NULL,                         -- when the process started, as pids are reused
    heartbeat REAL NOT NULL                        -- time of the last write, in seconds since 1970
) STRICT;

-- One tick of a run. The fields are those of telemetry.TickRecord, which explains each.
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

"""

VIEWS = """
-- Scores of runs that are done.
-- score: mean raw return of the training episodes that ended in the last 10 % of steps (in the ticks that end there);
-- evaluation: mean raw return of the evaluation at the end. A diverged run has neither.
CREATE VIEW final_scores AS
WITH ends AS (SELECT run, max(num_steps) AS num_steps FROM reports GROUP BY run)
SELECT runs.id AS run, env, trace, lambda, seed, status, ends.num_steps, sum(num_episodes) AS num_episodes,
    CASE status WHEN 'done' THEN sum(num_episodes * episode_return)
        / sum(num_episodes) FILTER (WHERE episode_return IS NOT NULL) END AS score,
    (SELECT avg(return) FROM evaluations WHERE evaluations.run = runs.id AND status = 'done') AS evaluation,
    protocol
FROM runs LEFT JOIN ends ON ends.run = runs.id
    LEFT JOIN reports ON reports.run = runs.id AND 10 * reports.num_steps > 9 * ends.num_steps
WHERE status IN ('done', 'diverged') GROUP BY runs.id;

-- Every tick of every run, with the env, trace, lambda, seed, status and protocol of the run.
CREATE VIEW curves AS
SELECT env, trace, lambda, seed, status, protocol, reports.* FROM runs JOIN reports ON reports.run = runs.id;
"""

SCHEMA = TABLES + VIEWS

_RUNS = TABLES[TABLES.index("CREATE TABLE runs") : TABLES.index("-- The process that works on a run")]
_RUNS_2 = re.sub(r",( .*)\n    protocol TEXT .*", r"\1", _RUNS)
"""The table of version 2, without protocols."""
_COLUMNS = "id, fingerprint, env, trace, lambda, seed, spec, status, failure, num_unfinished, provenance"
MIGRATIONS: dict[int, str] = {
    # Adds checksums, and a status for diverged runs, which version 1 stored as done with an event that says so.
    1: f"""
DROP VIEW final_scores;
DROP VIEW curves;
ALTER TABLE runs RENAME TO former;
{_RUNS_2}
INSERT INTO runs SELECT {_COLUMNS}, registered_at, started_at, ended_at, NULL, '' FROM former;
UPDATE runs SET status = 'diverged', failure = 'its loss, gradient or Q was not finite' WHERE status = 'done'
    AND id IN (SELECT run FROM reports WHERE events LIKE '%not finite%');
DROP TABLE former;
{VIEWS}""",
    # Adds protocols. Those of older runs follow from their specs.
    2: f"DROP VIEW final_scores;\nDROP VIEW curves;\nALTER TABLE runs ADD COLUMN protocol TEXT;\n{VIEWS}",
}
"""Statements that migrate a version to the next one, each ending with a semicolon at the end of a line."""

REMEDY = "Restore a backup, or use another file."
"""Remedy for a damaged file."""
COLUMNS = "SELECT m.type, m.name, c.name, c.type FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
MAX_ROW_BYTES = 16 << 20
"""Longer rows are neither written nor read."""
ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_BUSY: errno.ETIMEDOUT,
    sqlite3.SQLITE_READONLY: errno.EACCES,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
}
"""Errors of the system. Any other error of SQLite means that the file or a value is wrong."""


class Damaged(ValueError):
    """A results file that is not as it was stored."""


class OldSchema(ValueError):
    """A results file of an older version, which is migrated when it is opened for writing."""


class Database:
    """An open results file. It is created if missing, and rejected if it is not ours or has a newer schema.

    `migrated` is called with the database and its version before, within the transaction, after a migration.
    """

    def __init__(
        self, path: Path, *, read_only: bool, timeout: float, migrated: Callable[["Database", int], None]
    ) -> None:
        self.path = path.absolute()
        self.name = repr(str(self.path))
        self._migrated = migrated
        deadline = time.monotonic() + min(timeout, 2.0)
        while True:
            mode = self._mode(read_only)
            try:
                self._open(mode, read_only, timeout)
                return
            except PermissionError:
                # SQLite's log may have been created or removed since the mode was chosen: try again.
                may_retry = mode.startswith("mode=ro") and os.access(self.path, os.R_OK)
                if not may_retry or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _open(self, mode: str, read_only: bool, timeout: float) -> None:
        address = f"{self.path.as_uri()}?{mode}"
        try:
            self.connection = sqlite3.connect(address, uri=True, timeout=timeout, isolation_level=None)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self.do = self.connection.execute
        try:
            self.connection.row_factory = sqlite3.Row
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
            self._begin(read_only, timeout)
        except sqlite3.Error as error:
            self.connection.close()
            raise self._explained(error) from error
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Generator[None]:
        """Run a block as one transaction. One that writes waits for the lock at its start, not in the middle."""
        try:
            self.do(f"BEGIN {kind}")
            yield
            self.do("COMMIT")
        except (
            sqlite3.Error,
            UnicodeDecodeError,
        ) as error:  # the latter when an error message quotes a damaged schema
            raise self._explained(error) from error
        finally:
            if self.connection.in_transaction:
                self.do("ROLLBACK")

    @contextmanager
    def reading(self, where: str) -> Generator[None]:
        """Raise `Damaged` if data read in the block are malformed: a file may come from anywhere."""
        try:
            yield
        except Damaged:
            raise
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise Damaged(f"{self.name} is damaged at {where}: {error!r}. {REMEDY}") from error

    def check(self) -> None:
        """Raise `Damaged` if pages or rows of the file are inconsistent; within a transaction."""
        for sql in ("PRAGMA integrity_check(1)", "PRAGMA foreign_key_check"):
            row = self.do(sql).fetchone()
            if row is not None and row[0] != "ok":
                reason = row[0]
                if len(row) > 1:
                    reason = f"a row of `{row[0]}` refers to no row of `{row[2]}`"
                raise Damaged(f"{self.name} is damaged: {' '.join(str(reason).split())}. {REMEDY}")

    def _explained(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            return error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in ERRORS:
            return OSError(ERRORS[code], f"what was stored before is intact, but {error}", str(self.path))
        reason = " ".join(str(error).split())  # it may quote a schema of several lines
        return ValueError(f"{self.name} is not a results file, or is damaged, or cannot hold this: {reason}.")

    def _mode(self, read_only: bool) -> str:
        """Return how SQLite is to open the file, or raise if it cannot be opened that way.

        The file itself is not opened here: closing it would drop the locks of another `Store` of
        this process.
        """
        path = self.path
        folder = self.path.parent
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(
                f"{self.name} must be a results file or not exist yet; got something else. Use another name."
            )
        if read_only and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no results file", str(path))
        # SQLite writes its log beside the file, so the folder must be writable too.
        writable = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.R_OK | os.W_OK))
        if not writable and not read_only:
            raise PermissionError(errno.EACCES, "the file or its folder is not writable", str(path))
        if not read_only:
            return "mode=rwc"
        if writable:
            return "mode=rw"  # a reader opens for writing too where it can, as SQLite then removes its log
        if path.with_name(f"{path.name}-wal").exists():
            return "mode=ro"
        return "mode=ro&immutable=1"

    def _begin(self, read_only: bool, timeout: float) -> None:
        """Check the file, and set it up or migrate it. Nothing is written before the file is known to be ours."""
        self.do("PRAGMA trusted_schema = OFF")
        with self.transaction("DEFERRED"):
            version = self._version()
        if read_only:
            self.do("PRAGMA query_only = ON")
            if version == 0:
                raise ValueError(f"{self.name} must have schema {VERSION}; got 0: nothing was ever written to it.")
            if version != VERSION:
                raise OldSchema(
                    f"{self.name} must have schema {VERSION}; got {version}. Open it for writing once to migrate it."
                )
            return
        if self._enable_wal(timeout) != "wal":
            raise OSError(errno.ENOTSUP, "results must be on a local disk, where SQLite's WAL works", str(self.path))
        self.do("PRAGMA synchronous = FULL")
        # With these two settings a migration can replace a table that others refer to.
        self.do("PRAGMA foreign_keys = OFF")
        self.do("PRAGMA legacy_alter_table = ON")
        with self.transaction():
            version = self._version()  # again, as another process may have migrated the file meanwhile
            if version != VERSION:
                scripts = [SCHEMA]
                if version:
                    scripts = [MIGRATIONS[old] for old in range(version, VERSION)]
                for statement in "".join(scripts).split(";\n"):
                    self.do(statement)
                self.do(f"PRAGMA application_id = {APPLICATION}")
                self.do(f"PRAGMA user_version = {VERSION}")
                self._version()
                if version:
                    self._migrated(self, version)
        self.do("PRAGMA foreign_keys = ON")

    def _enable_wal(self, timeout: float) -> str:
        """Set the journal mode to WAL and return it. SQLite does not wait for other processes that do the same."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.do("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _version(self) -> int:
        """Return the version of the schema, 0 for an empty file. Raise if the file is not ours or lacks columns."""
        sizes = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
        application, version, size = (self.do(sql).fetchone()[0] for sql in sizes)
        if application == version == size == 0:
            return 0
        if application != APPLICATION:
            raise ValueError(f"{self.name} is a SQLite database, but not an offtrace results file. Use another file.")
        if version not in (*MIGRATIONS, VERSION):
            remedy = "the version of offtrace that wrote it"
            if version > VERSION:
                remedy = "a newer version of offtrace"
            raise ValueError(f"{self.name} must have schema {VERSION}; got {version}. Use {remedy}.")
        if version == VERSION:
            with closing(sqlite3.connect(":memory:")) as fresh:
                fresh.executescript(SCHEMA)
                lost = set(fresh.execute(COLUMNS)) - set(map(tuple, self.do(COLUMNS)))
            if lost:
                names = sorted({f"{table}.{column}" for _, table, column, _ in lost})
                others = f" and {len(names) - 1} others" if len(names) > 1 else ""
                reason = f"columns are missing or changed: {names[0]}{others}"
                raise ValueError(f"{self.name} is damaged: {reason}. {REMEDY}")
        return version
