"""Runs as they are stored in a results file, and the checksums that protect them.

A row of `runs` has a checksum of itself and of its provenance and, once the run is over, one of
its results. Both are verified whenever a run is read. If one does not match, `Damaged` names the
file and the row.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offtrace.agent.telemetry import LISTS, TickRecord, from_row
from offtrace.environments import protocol_text
from offtrace.experiments.database import REMEDY, Damaged, Database
from offtrace.experiments.encoding import protocol_of, run_row

PROVENANCE = ("version", "commit", "machine", "command", "python", "jax", "platform", "made_at")
OVER = ("done", "diverged")
"""Statuses of runs whose results are final."""
SPEC_COLUMNS = ("fingerprint", "env", "trace", "lambda", "seed", "spec")
"""Columns that follow from the spec."""
CHECKED_COLUMNS = (
    *SPEC_COLUMNS,
    "status",
    "failure",
    "num_unfinished",
    "registered_at",
    "started_at",
    "ended_at",
    "results",
)
"""Columns that the checksum of a row covers."""


@dataclass(frozen=True)
class StoredRun:
    """A run as a results file has it, at one moment."""

    file: Path
    id: int
    fingerprint: str
    spec: dict[str, Any]
    status: str
    """`missing`, `running` or `failed`; `done`, with scores; or `diverged`: over as well, but without a score."""
    failure: str | None
    reports: tuple[TickRecord, ...]
    returns: tuple[float, ...]
    num_unfinished: int | None
    provenance: dict[str, str | None]
    started_at: str | None
    ended_at: str | None
    stored_protocol: dict[str, Any] | None = None
    """None in a file that was made before protocols were stored."""

    @property
    def protocol(self) -> dict[str, Any]:
        """The rules of the game (`offtrace.environments.protocol`); if not stored, they follow from the spec."""
        if self.stored_protocol is None:
            return protocol_of(self.spec)
        return self.stored_protocol

    @property
    def protocol_text(self) -> str:
        """`protocol` in words."""
        return protocol_text(self.spec["env"], self.protocol)

    @property
    def checksum(self) -> str:
        """SHA-256 of the results: equal if every number is, to the last bit, wherever and whenever it was made."""
        return hashlib.sha256(repr((self.reports, self.returns, self.num_unfinished)).encode()).hexdigest()


def stored_runs(database: Database, wanted: Mapping[str, Any]) -> list[StoredRun]:
    """Return the runs whose columns equal `wanted`, verified; within a transaction."""
    runs = []
    for row, run in _read(database, wanted):
        _verify_row(database, row, run.provenance)
        _verify_results(database, row, run)
        runs.append(run)
    return runs


def check_rows(database: Database) -> None:
    """Verify every row of `runs`, but not the results, which are many more."""
    provenance = _provenance(database)
    for row in database.do("SELECT * FROM runs"):
        _verify_row(database, row, provenance.get(row["provenance"]))


def seal(database: Database, run_ids: Iterable[int]) -> None:
    """Write the checksums of rows that have changed."""
    for run_id in run_ids:
        row = database.do("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        (provenance,) = database.do("SELECT * FROM provenance WHERE id = ?", (row["provenance"],))
        database.do("UPDATE runs SET checksum = ? WHERE id = ?", (row_checksum(row, provenance), run_id))


def seal_results(database: Database, run_id: int) -> None:
    """Write both checksums of a run that is over."""
    ((_, run),) = _read(database, {"id": run_id})
    database.do("UPDATE runs SET results = ? WHERE id = ?", (run.checksum, run_id))
    seal(database, [run_id])


def seal_all(database: Database, version: int) -> None:
    """Write the checksums of a file that was made before there were checksums, in version 2."""
    if version > 1:
        return
    for run_id, status in database.do("SELECT id, status FROM runs").fetchall():
        if status in OVER:
            seal_results(database, run_id)
        else:
            seal(database, [run_id])


def row_checksum(row: Any, provenance: Any) -> str:
    """Return the SHA-256 of a row of `runs` and its provenance, both with columns by name."""
    values: tuple[list[Any], ...] = [row[name] for name in CHECKED_COLUMNS], [provenance[name] for name in PROVENANCE]
    if row["protocol"] is not None:  # as in files of version 2
        values = (*values, [row["protocol"]])
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


# -- inside --------------------------------------------------------------------------------------------------


def _provenance(database: Database) -> dict[int, dict[str, Any]]:
    rows = database.do("SELECT * FROM provenance")
    return {row["id"]: {name: row[name] for name in PROVENANCE} for row in rows}


def _read(database: Database, wanted: Mapping[str, Any]) -> list[tuple[Any, StoredRun]]:
    """Return rows of `runs`, each with its run."""
    where = " AND ".join(["TRUE", *(f"runs.{name} = :{name}" for name in wanted)])
    joined = f"JOIN runs ON runs.id = run WHERE {where} ORDER BY run"
    reports: dict[int, list[TickRecord]] = {}
    returns: dict[int, list[float]] = {}
    provenance = _provenance(database)
    for row in database.do(f"SELECT reports.* FROM reports {joined}, tick", wanted):
        with database.reading(f"run {row['run']}, tick {row['tick']}"):
            lists = {name: json.loads(row[name]) for name in LISTS}
            reports.setdefault(row["run"], []).append(from_row({**dict(row), **lists}))
    for run_id, value in database.do(f"SELECT run, return FROM evaluations {joined}, episode", wanted):
        returns.setdefault(run_id, []).append(math.nan if value is None else value)
    found = []
    for row in database.do(f"SELECT * FROM runs WHERE {where} ORDER BY id", wanted):
        with database.reading(f"run {row['id']}"):
            run = StoredRun(
                file=database.path,
                id=row["id"],
                fingerprint=row["fingerprint"],
                spec=dict(json.loads(row["spec"])),
                status=row["status"],
                failure=row["failure"],
                reports=tuple(reports.get(row["id"], ())),
                returns=tuple(returns.get(row["id"], ())),
                num_unfinished=row["num_unfinished"],
                provenance=provenance[row["provenance"]],
                started_at=row["started_at"],
                ended_at=row["ended_at"],
                stored_protocol=None if row["protocol"] is None else dict(json.loads(row["protocol"])),
            )
        found.append((row, run))
    return found


def _verify_row(database: Database, row: Any, provenance: Mapping[str, Any] | None) -> None:
    if provenance is None or row["checksum"] != row_checksum(row, provenance):
        raise _damaged(database, row, "its row is not as it was stored")
    with database.reading(f"run {row['id']}"):
        spec = json.loads(row["spec"])
        columns = tuple(row[name] for name in SPEC_COLUMNS[:-1])
        if not isinstance(spec, dict) or run_row(spec)[:-1] != columns:
            raise _damaged(database, row, "its columns do not match its spec")


def _verify_results(database: Database, row: Any, run: StoredRun) -> None:
    if run.status not in OVER:
        if run.returns or row["results"] is not None:
            raise _damaged(database, row, f"it has results, but is {run.status}")
        return
    if not run.returns or row["results"] != run.checksum:
        raise _damaged(database, row, "its results are not as they were stored")
    if run.status == "done" and not _all_finite(run.returns):
        raise _damaged(database, row, "a return is not finite, but the run is done")


def _all_finite(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _damaged(database: Database, row: Any, reason: str) -> Damaged:
    name = ", ".join(repr(row[column]) for column in ("env", "trace", "lambda", "seed"))
    return Damaged(f"{database.name} is damaged at run {row['id']} ({name}): {reason}. {REMEDY}")
