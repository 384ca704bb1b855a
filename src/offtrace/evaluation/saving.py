"""Writes logs as Parquet, CSV or NumPy files, in the columns that `read` reads."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.evaluation.columns import MISSING
from offtrace.evaluation.log import Log
from offtrace.evaluation.tables import arrow
from offtrace.writing import replacing

ROWS_AT_ONCE = 1 << 17
"""Rows that are converted at once, and the size of a row group of a Parquet file."""


def write(log: Log, path: str | Path) -> None:
    """Write a log as .parquet, .csv or .npz. A file at `path` is replaced.

    Episodes are numbered from 0. A vector is a list in a Parquet file, `observation_0`, `observation_1`,
    … in a CSV file. An .npz file has the numbers of the behaviour policies in place of their names.
    """
    path = Path(path)
    writers = {".parquet": _write_parquet, ".pq": _write_parquet, ".csv": _write_csv, ".npz": _write_npz}
    if path.suffix not in writers:
        raise ValueError(f"`path` must end with {', '.join(writers)}; got {str(path)!r}.")
    if not isinstance(log, Log):
        raise ValueError(f"`log` must be a `Log`, as from `read`; got {type(log).__name__}.")
    if not path.parent.is_dir():
        raise ValueError(f"`path` must be in a folder that exists; got {str(path)!r}.")
    with replacing(path) as temporary:
        writers[path.suffix](log, temporary)


def columns_in(log: Log, rows: slice) -> dict[str, np.ndarray]:
    """Return rows of a log as the columns of a file."""
    number = np.arange(log.num_steps)[rows]
    episode = np.searchsorted(log.first, number, side="right") - 1
    found = {"episode": episode, "step": number - log.first[episode]}
    successor = "next_state" if log.state is not None else "next_observation"
    given = {
        "state": log.state,
        "observation": log.observation,
        "action": log.action,
        "reward": log.reward,
        "terminated": log.terminated,
        "truncated": log.truncated,
        successor: log.successor,
        "behaviour_probability": log.mu_a,
        "behaviour_log_density": log.log_mu_a,
    }
    found |= {name: column[rows] for name, column in given.items() if column is not None}
    if log.behaviour_policy is not None:
        found["behaviour_policy"] = np.array(log.behaviour_names)[log.behaviour_policy[rows]]
    return found


def _pieces(log: Log) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, log.num_steps, ROWS_AT_ONCE):
        yield columns_in(log, slice(start, min(start + ROWS_AT_ONCE, log.num_steps)))


# -- formats -------------------------------------------------------------------------------------


def _write_parquet(log: Log, path: Path) -> None:
    pa = arrow()
    writer = None
    try:
        for piece in _pieces(log):
            table = pa.table({name: _arrow_column(pa, name, column) for name, column in piece.items()})
            if writer is None:
                writer = pa.parquet.ParquetWriter(path, table.schema, write_page_checksum=True)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _arrow_column(pa: Any, name: str, column: np.ndarray) -> Any:
    if column.ndim == 2:
        num_rows, width = column.shape
        if name != "next_observation":
            return pa.FixedSizeListArray.from_arrays(pa.array(column.ravel()), width)
        # pyarrow 17 can write lists of a fixed size some of which are null, but it cannot read them.
        offsets = pa.array(width * np.arange(num_rows + 1, dtype=np.int64))
        lists = pa.LargeListArray.from_arrays(offsets, pa.array(column.ravel()))
        return pa.compute.if_else(pa.array(~np.isnan(column).any(axis=1)), lists, pa.scalar(None, lists.type))
    if name == "next_state":
        return pa.array(column, mask=column == MISSING)
    return pa.array(column)


def _write_csv(log: Log, path: Path) -> None:
    with path.open("x", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, piece in enumerate(_pieces(log)):
            cells = _cells(piece)
            if number == 0:
                writer.writerow(cells)
            writer.writerows(zip(*cells.values(), strict=True))


def _cells(piece: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    """Return the columns of a CSV file; a cell of what is missing is empty."""
    found: dict[str, list[Any]] = {}
    for name, column in piece.items():
        if column.ndim == 2:
            for i in range(column.shape[1]):
                found[f"{name}_{i}"] = ["" if value != value else value for value in column[:, i].tolist()]
        elif name == "next_state":
            found[name] = ["" if value == MISSING else value for value in column.tolist()]
        else:
            found[name] = column.tolist()
    return found


def _write_npz(log: Log, path: Path) -> None:
    columns: dict[str, Any] = columns_in(log, slice(None))
    if log.behaviour_policy is not None:
        columns["behaviour_policy"] = log.behaviour_policy  # arrays in files are numbers
    np.savez_compressed(path, allow_pickle=False, **columns)
