"""What a file of results says of its runs, and how one knows that it still says what was stored.

A row of `runs` has a checksum of itself and of its provenance, and, once the run is over, one of its results. Whoever
reads a run verifies both; what does not fit is refused, with the file and the row.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offtrace.agent.telemetry import LISTS, TickRecord, from_row
from offtrace.experiments.database import REMEDY, Damaged, Database
from offtrace.experiments.rows import run_row

PROVENANCE = ("version", "commit", "machine", "command", "python", "jax", "platform", "made_at")
OVER = ("done", "diverged")
"""Statuses of runs whose results stay."""
COPIES = ("fingerprint", "env", "trace", "lambda", "seed", "spec")
"""Columns that follow from the spec."""
SEALED = (*COPIES, "status", "failure", "num_unfinished", "registered_at", "started_at", "ended_at", "results")
"""Columns that the checksum of a row is of."""


@dataclass(frozen=True)
class StoredRun:
    """All that a file says of a run, as it was at one moment."""

    file: Path
    id: int
    fingerprint: str
    spec: dict[str, Any]
    status: str
    """`missing`, `running` or `failed`; `done`, with scores; `diverged`, which is over, too, but has no score."""
    failure: str | None
    reports: tuple[TickRecord, ...]
    returns: tuple[float, ...]
    num_unfinished: int | None
    provenance: dict[str, str | None]
    started_at: str | None
    ended_at: str | None

    @property
    def checksum(self) -> str:
        """Of the results alone: equal if every number is, to the last bit, wherever and whenever it was made."""
        return hashlib.sha256(repr((self.reports, self.returns, self.num_unfinished)).encode()).hexdigest()


def stored_runs(database: Database, wanted: Mapping[str, Any]) -> list[StoredRun]:
    """Those whose columns are as wanted, verified, within a transaction."""
    found = []
    for row, run in _read(database, wanted):
        _verify_row(database, row, run.provenance)
        _verify_results(database, row, run)
        found.append(run)
    return found


def check_rows(database: Database) -> None:
    """Verifies every row of `runs`, but not the results, which are many more."""
    made = _provenance(database)
    for row in database.do("SELECT * FROM runs"):
        _verify_row(database, row, made.get(row["provenance"]))


def seal(database: Database, run_ids: Iterable[int]) -> None:
    """Writes the checksum of rows that have changed."""
    for run_id in run_ids:
        row = database.do("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        (made,) = database.do("SELECT * FROM provenance WHERE id = ?", (row["provenance"],))
        database.do("UPDATE runs SET checksum = ? WHERE id = ?", (row_checksum(row, made), run_id))


def seal_results(database: Database, run_id: int) -> None:
    """Writes both checksums of a run that is over."""
    ((_, run),) = _read(database, {"id": run_id})
    database.do("UPDATE runs SET results = ? WHERE id = ?", (run.checksum, run_id))
    seal(database, [run_id])


def seal_all(database: Database) -> None:
    """For a file from before there were checksums."""
    for run_id, status in database.do("SELECT id, status FROM runs").fetchall():
        if status in OVER:
            seal_results(database, run_id)
        else:
            seal(database, [run_id])


def row_checksum(row: Any, made: Any) -> str:
    """Of what a row of `runs` and its provenance say, by the names of their columns."""
    values = [row[name] for name in SEALED], [made[name] for name in PROVENANCE]
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


# -- inside --------------------------------------------------------------------------------------------------


def _provenance(database: Database) -> dict[int, dict[str, Any]]:
    rows = database.do("SELECT * FROM provenance")
    return {row["id"]: {name: row[name] for name in PROVENANCE} for row in rows}


def _read(database: Database, wanted: Mapping[str, Any]) -> list[tuple[Any, StoredRun]]:
    """Rows of `runs`, and the runs that they are of."""
    where = " AND ".join(["TRUE", *(f"runs.{name} = :{name}" for name in wanted)])
    joined = f"JOIN runs ON runs.id = run WHERE {where} ORDER BY run"
    reports: dict[int, list[TickRecord]] = {}
    returns: dict[int, list[float]] = {}
    made = _provenance(database)
    for row in database.do(f"SELECT reports.* FROM reports {joined}, tick", wanted):
        with database.reading(f"run {row['run']}, tick {row['tick']}"):
            lists = {name: json.loads(row[name]) for name in LISTS}
            reports.setdefault(row["run"], []).append(from_row({**dict(row), **lists}))
    for key, value in database.do(f"SELECT run, return FROM evaluations {joined}, episode", wanted):
        returns.setdefault(key, []).append(math.nan if value is None else value)
    found = []
    for row in database.do(f"SELECT * FROM runs WHERE {where} ORDER BY id", wanted):
        with database.reading(f"run {row['id']}"):
            run = StoredRun(
                file=database.path,
                spec=dict(json.loads(row["spec"])),
                reports=tuple(reports.get(row["id"], ())),
                returns=tuple(returns.get(row["id"], ())),
                provenance=made[row["provenance"]],
                **{name: row[name] for name in ("id", "fingerprint", "status", "failure", "num_unfinished")},
                **{name: row[name] for name in ("started_at", "ended_at")},
            )
        found.append((row, run))
    return found


def _verify_row(database: Database, row: Any, made: Mapping[str, Any] | None) -> None:
    if made is None or row["checksum"] != row_checksum(row, made):
        raise _damaged(database, row, "its row is not as it was stored")
    with database.reading(f"run {row['id']}"):
        spec = json.loads(row["spec"])
        if not isinstance(spec, dict) or run_row(spec)[:-1] != tuple(row[name] for name in COPIES[:-1]):
            raise _damaged(database, row, "its columns are not those of its spec")


def _verify_results(database: Database, row: Any, run: StoredRun) -> None:
    if run.status not in OVER:
        if run.returns or row["results"] is not None:
            raise _damaged(database, row, f"it has results, but is {run.status}")
        return
    if not run.returns or row["results"] != run.checksum:
        raise _damaged(database, row, "its results are not those that were stored")
    if run.status == "done" and not _all_finite(run.returns):
        raise _damaged(database, row, "a return is not finite, but it is done")


def _all_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _damaged(database: Database, row: Any, what: str) -> Damaged:
    cell = ", ".join(repr(row[name]) for name in ("env", "trace", "lambda", "seed"))
    return Damaged(f"{database.name} is damaged at run {row['id']} ({cell}): {what}. {REMEDY}")
