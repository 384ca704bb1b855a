"""The file of a store: its schema, how it is opened, and what is refused.

A file is ours if it says so, has every column of the schema, and is of a version that is known here. An older one is
brought up to date when it is opened for writing.
"""

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

APPLICATION, VERSION = 0x6F667472, 2  # "oftr", and the schema below

TABLES = """
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
    status TEXT NOT NULL DEFAULT 'missing'
        CHECK (status IN ('missing', 'running', 'done', 'diverged', 'failed')),
    failure TEXT,                                  -- why, if it failed or diverged
    num_unfinished INTEGER,                        -- evaluation episodes at the end that were cut off
    provenance INTEGER NOT NULL REFERENCES provenance,    -- of who claimed it last
    registered_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
    results TEXT,                                  -- SHA-256 of its reports and returns, once it is done or diverged
    checksum TEXT NOT NULL                         -- SHA-256 of the rest of this row, and of its provenance
) STRICT;

-- Who is at work on a run; it may be dead.
CREATE TABLE claims (
    run INTEGER PRIMARY KEY REFERENCES runs,
    token TEXT NOT NULL,                           -- tells this claim from every other
    worker TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
    born INTEGER NOT NULL,                         -- when the process began, as pids are used again
    heartbeat REAL NOT NULL                        -- its last sign of life, in seconds since 1970
) STRICT;

-- One tick of a run: the fields of telemetry.TickRecord, where each is explained.
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
-- Of runs that are done: score, the mean raw return of the training episodes that ended in the last 10 % of frames
-- (in the ticks that end there), and evaluation, that of the episodes at the end. A run that diverged has neither.
CREATE VIEW final_scores AS
WITH ends AS (SELECT run, max(num_steps) AS num_steps FROM reports GROUP BY run)
SELECT runs.id AS run, env, trace, lambda, seed, status, ends.num_steps, sum(num_episodes) AS num_episodes,
    CASE status WHEN 'done' THEN sum(num_episodes * episode_return)
        / sum(num_episodes) FILTER (WHERE episode_return IS NOT NULL) END AS score,
    (SELECT avg(return) FROM evaluations WHERE evaluations.run = runs.id AND status = 'done') AS evaluation
FROM runs LEFT JOIN ends ON ends.run = runs.id
    LEFT JOIN reports ON reports.run = runs.id AND 10 * reports.num_steps > 9 * ends.num_steps
WHERE status IN ('done', 'diverged') GROUP BY runs.id;

-- Every tick of every run, with what the run is.
CREATE VIEW curves AS
SELECT env, trace, lambda, seed, status, reports.* FROM runs JOIN reports ON reports.run = runs.id;
"""

SCHEMA = TABLES + VIEWS

_RUNS = TABLES[TABLES.index("CREATE TABLE runs") : TABLES.index("-- Who is at work")]
_COLUMNS = "id, fingerprint, env, trace, lambda, seed, spec, status, failure, num_unfinished, provenance"
MIGRATIONS: dict[int, str] = {
    # to checksums, and a status for runs that diverged, which were done before, and had an event that said so
    1: f"""
DROP VIEW final_scores;
DROP VIEW curves;
ALTER TABLE runs RENAME TO former;
{_RUNS}
INSERT INTO runs SELECT {_COLUMNS}, registered_at, started_at, ended_at, NULL, '' FROM former;
UPDATE runs SET status = 'diverged', failure = 'its loss, gradient or Q was not finite' WHERE status = 'done'
    AND id IN (SELECT run FROM reports WHERE events LIKE '%not finite%');
DROP TABLE former;
{VIEWS}""",
}
"""From a version to the next one: statements, each of which ends with a semicolon at the end of a line."""

REMEDY = "Take a copy from before, or another file."
"""For a file that is damaged."""
COLUMNS = "SELECT m.type, m.name, c.name, c.type FROM sqlite_schema AS m, pragma_table_info(m.name) AS c"
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


class Damaged(ValueError):
    """A file of results that is not as it was stored."""


class OldSchema(ValueError):
    """A file that can be brought up to date, by who may write to it."""


class Database:
    """An open file: made if it is not there, refused if it is not one of ours or of a newer schema.

    `migrated` gets it, within the transaction, where it was of an older one.
    """

    def __init__(
        self, path: Path, *, read_only: bool, timeout: float, migrated: Callable[["Database"], None]
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
            except PermissionError:  # or SQLite's log has come or gone since the mode was chosen
                if not mode.startswith("mode=ro") or not os.access(self.path, os.R_OK) or time.monotonic() > deadline:
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
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
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
        """All of it or nothing. One that writes waits for its turn at its beginning, where it can."""
        try:
            self.do(f"BEGIN {kind}")
            yield
            self.do("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter while it says what is wrong in a schema
            raise self._explained(error) from error
        finally:
            if self.connection.in_transaction:
                self.do("ROLLBACK")

    @contextmanager
    def reading(self, where: str) -> Generator[None]:
        """What is read there is data of a stranger."""
        try:
            yield
        except Damaged:
            raise
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise Damaged(f"{self.name} is damaged at {where}: {error!r}. {REMEDY}") from error

    def check(self) -> None:
        """Refuses a file whose pages or rows do not fit together, within a transaction."""
        for sql in ("PRAGMA integrity_check(1)", "PRAGMA foreign_key_check"):
            row = self.do(sql).fetchone()
            if row is not None and row[0] != "ok":
                what = row[0] if len(row) == 1 else f"a row of `{row[0]}` belongs to none of `{row[2]}`"
                raise Damaged(f"{self.name} is damaged: {' '.join(str(what).split())}. {REMEDY}")

    def _explained(self, error: sqlite3.Error | UnicodeDecodeError) -> Exception:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            return error
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in ERRORS:
            return OSError(ERRORS[code], f"what was stored before is intact, but {error}", str(self.path))
        what = " ".join(str(error).split())  # it may quote a schema
        return ValueError(f"{self.name} is not a file of results, or damaged, or cannot hold this: {what}.")

    def _mode(self, read_only: bool) -> str:
        """How SQLite is to open the file; refused where that is known to be in vain.

        The file itself is not opened here: to close it would drop the locks of another `Store` of this process.
        """
        path, folder = self.path, self.path.parent
        if not read_only:
            folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"{self.name} must be a file of results, or a new name.")
        if read_only and not path.exists():
            raise FileNotFoundError(errno.ENOENT, "there are no results", str(path))
        writable = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.R_OK | os.W_OK))
        if not writable and not read_only:
            raise PermissionError(errno.EACCES, "results cannot be written there, nor beside it", str(path))
        if writable:  # a reader, too, as it then leaves nothing behind
            return "mode=rw" if read_only else "mode=rwc"
        return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"

    def _begin(self, read_only: bool, timeout: float) -> None:
        """Nothing in a file is changed before it is known to be ours."""
        self.do("PRAGMA trusted_schema = OFF")
        with self.transaction("DEFERRED"):
            version = self._version()
        if read_only:
            self.do("PRAGMA query_only = ON")
            if version == 0:
                raise ValueError(
                    f"{self.name} has schema 0, and {VERSION} is read here. Nothing was ever written to it."
                )
            if version != VERSION:
                raise OldSchema(
                    f"{self.name} has schema {version}, and {VERSION} is read here. Open it for writing once."
                )
            return
        if self._write_ahead(timeout) != "wal":
            raise OSError(errno.ENOTSUP, "results must be on a local disk, where SQLite's WAL works", str(self.path))
        self.do("PRAGMA synchronous = FULL")
        self.do("PRAGMA foreign_keys = OFF")  # with the next one: a table can take the place of another
        self.do("PRAGMA legacy_alter_table = ON")
        with self.transaction():
            version = self._version()  # again, as another process may have been here meanwhile
            if version != VERSION:
                scripts = [MIGRATIONS[old] for old in range(version, VERSION)] if version else [SCHEMA]
                for statement in "".join(scripts).split(";\n"):
                    self.do(statement)
                self.do(f"PRAGMA application_id = {APPLICATION}")
                self.do(f"PRAGMA user_version = {VERSION}")
                self._version()
                if version:
                    self._migrated(self)
        self.do("PRAGMA foreign_keys = ON")

    def _write_ahead(self, timeout: float) -> str:
        """The mode of the journal, set to WAL. SQLite does not wait here for others that do the same: we do."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self.do("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _version(self) -> int:
        """Of the schema, 0 if there is nothing in the file. What is not ours, or not all there, is refused."""
        sizes = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_schema")
        application, version, size = (self.do(sql).fetchone()[0] for sql in sizes)
        if application == version == size == 0:
            return 0
        if application != APPLICATION:
            raise ValueError(f"{self.name} is a SQLite database, but not one of offtrace's. Use another file.")
        if version not in (*MIGRATIONS, VERSION):
            remedy = "a newer offtrace" if version > VERSION else "the offtrace that made it"
            raise ValueError(f"{self.name} has schema {version}, and {VERSION} is read here. Use {remedy}.")
        if version == VERSION:
            with closing(sqlite3.connect(":memory:")) as fresh:
                fresh.executescript(SCHEMA)
                lost = set(fresh.execute(COLUMNS)) - set(map(tuple, self.do(COLUMNS)))
            if lost:
                what = ", ".join(sorted({f"{table}.{column}" for _, table, column, _ in lost}))
                raise ValueError(f"{self.name} is damaged: it has no {what}, or not as it was made.")
        return version
