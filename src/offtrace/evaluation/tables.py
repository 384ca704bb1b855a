"""Logs as tables: Parquet files, and frames that export Arrow data (pandas, polars, pyarrow and others).

Rows are read in batches, so that a file never is in memory as a whole, only its columns as NumPy arrays.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.evaluation.checks import check_names
from offtrace.evaluation.columns import ColumnBuilder, Columns, Piece
from offtrace.evaluation.naming import Names, Plan, plan_columns
from offtrace.evaluation.problems import Problem, whole
from offtrace.files import regular_file

BATCH_ROWS = 1 << 16
BUFFER_BYTES = 1 << 20
"""Bytes of a column that are read from the file at once; a whole row group would be held otherwise."""
MAGIC = b"PAR1"
NO_LIMIT = 1 << 62

Found = tuple[Columns, list[Problem]]


def arrow() -> Any:
    """Return pyarrow; raise if it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"logs as Parquet files or frames need `{missing.name}`: pip install 'offtrace[evaluation]'"
        ) from missing
    return pyarrow


def read_frame(frame: Any, columns: Names | None, tell: Callable[[str], None]) -> Found:
    """Return the columns of a frame, by the Arrow C stream interface."""
    pa = arrow()
    try:
        reader = pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:  # such as a column of unlike objects
        return Columns(()), [whole(f"the frame cannot be read: {_reason(error)}")]
    plan, problems = plan_columns(reader.schema.names, columns, tell, "the frame")
    problems = problems or check_names(plan)
    if problems:
        return Columns(()), problems
    num_rows = len(frame) if hasattr(frame, "__len__") else None
    found = Columns(list(plan), num_rows)
    for batch in reader:
        _add(found, plan, batch)
    return found, []


def read_parquet(paths: Sequence[Path], columns: Names | None, tell: Callable[[str], None]) -> Found:
    """Return the columns of Parquet files, one after the other."""
    pa = arrow()
    files = []
    plans = []
    for path in paths:
        try:
            file = _opened(path)
            plan, problems = plan_columns(file.schema_arrow.names, columns, tell if not files else _silent, str(path))
        except (ValueError, OSError, pa.ArrowException) as error:
            return Columns(()), [whole(_reason(error))]
        problems = problems or check_names(plan)
        if problems:
            return Columns(()), problems
        if files and plan.keys() != plans[0].keys():
            differing = sorted(plan.keys() ^ plans[0].keys())
            return Columns(()), [
                whole(f"{path} must have the columns of {paths[0]}; only one of them has `{differing[0]}`")
            ]
        files.append(file)
        plans.append(plan)
    found = Columns(list(plans[0]), sum(file.metadata.num_rows for file in files))
    for path, file, plan in zip(paths, files, plans, strict=True):
        problems = _add_file(found, path, file, plan)
        if problems:
            return found, problems
    return found, []


def first_rows(paths: Sequence[Path]) -> list[int]:
    """Return the row at which each Parquet file starts, if they are read one after the other."""
    counts = [_opened(path).metadata.num_rows for path in paths]
    return [int(start) for start in np.cumsum([0, *counts[:-1]])]


def _silent(_: str) -> None:
    """Say nothing: a second file ignores what the first one does."""


def _opened(path: Path) -> Any:
    size = regular_file(path, NO_LIMIT).stat().st_size
    if size == 0:
        raise ValueError(f"{path} is empty")
    with path.open("rb") as file:
        start = file.read(len(MAGIC))
        file.seek(-min(size, len(MAGIC)), 2)
        end = file.read()
    if start != MAGIC:
        raise ValueError(f"{path} is not a Parquet file")
    if end != MAGIC or size < 3 * len(MAGIC):
        raise ValueError(f"{path} is not a whole Parquet file: its end is missing. Copy or write it again")
    try:
        return arrow().parquet.ParquetFile(
            path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None


def _add_file(found: Columns, path: Path, file: Any, plan: Plan) -> list[Problem]:
    pa = arrow()
    num_rows = 0
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=plan.sources):
            num_rows += batch.num_rows
            _add(found, plan, batch)
    except (pa.ArrowException, OSError) as error:
        return [whole(f"{path} cannot be read after row {num_rows:,}: {_reason(error)}")]
    return []


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")


# -- Arrow arrays --------------------------------------------------------------------------------


def _add(found: Columns, plan: Plan, batch: Any) -> None:
    """Append a batch of rows."""
    for name, source in plan.items():
        builder = found.builders[name]
        if isinstance(source, str):
            builder.add(piece_of(batch.column(source)))
        else:
            add_stacked(builder, [piece_of(batch.column(one)) for one in source])


def add_stacked(builder: ColumnBuilder, pieces: Iterable[Piece]) -> None:
    """Append columns of numbers side by side, as vectors."""
    columns = []
    for piece in pieces:
        if piece.values.dtype.kind not in "fiu" or piece.values.ndim != 1 or piece.lengths is not None:
            builder.add(piece)  # is refused
            return
        nulls = False if piece.nulls is None else piece.nulls
        columns.append(np.where(nulls, np.nan, piece.values))
    builder.add(Piece(np.stack(columns, axis=1)))


def piece_of(column: Any) -> Piece:
    """Return an Arrow array as a piece of a column."""
    pa = arrow()
    kind = pa.types
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if kind.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kind.is_decimal(column.type):
        column = column.cast(pa.float64())
    shown = str(column.type)
    nulls = np.asarray(column.is_null()) if column.null_count else None
    if kind.is_list(column.type) or kind.is_large_list(column.type) or kind.is_fixed_size_list(column.type):
        return _lists(column, nulls, shown)
    if kind.is_null(column.type):
        return Piece(np.zeros(len(column), np.int64), nulls, shown=shown)
    if kind.is_integer(column.type):
        return Piece(_filled(column, 0), nulls, shown=shown)
    if kind.is_boolean(column.type):
        return Piece(_filled(column, False), nulls, shown=shown)
    if kind.is_floating(column.type):
        return Piece(_filled(column, np.nan), nulls, shown=shown)
    return Piece(column.to_numpy(zero_copy_only=False), nulls, shown=shown)


def _filled(column: Any, value: Any) -> np.ndarray:
    if column.null_count:
        column = column.fill_null(value)
    return column.to_numpy(zero_copy_only=False)


def _lists(column: Any, nulls: np.ndarray | None, shown: str) -> Piece:
    pa = arrow()
    lengths = _filled(pa.compute.list_value_length(column), 0)
    inner = column.flatten()  # without those of null rows
    values = np.zeros(len(inner), object)  # refused, unless they are numbers
    if pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type) or pa.types.is_null(inner.type):
        values = _filled(inner.cast(pa.float64()), np.nan)
    return Piece(values, nulls, lengths, shown=shown)
