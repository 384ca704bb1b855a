"""Logs as CSV files: cells of text, converted column by column, and the rows that cannot be converted."""

import csv
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from offtrace.evaluation.checks import check_names
from offtrace.evaluation.columns import KINDS, MAY_BE_MISSING, WORDS, ColumnBuilder, Columns, Piece
from offtrace.evaluation.naming import Names, plan_columns
from offtrace.evaluation.problems import Problem, whole
from offtrace.evaluation.tables import NO_LIMIT, add_stacked
from offtrace.files import regular_file

ROWS_AT_ONCE = 1 << 15
FLAGS = {"true": True, "false": False, "1": True, "0": False}


def read_csv(path: Path, columns: Names | None, tell: Callable[[str], None]) -> tuple[Columns, list[Problem]]:
    """Return the columns of a CSV file with a header."""
    try:
        with regular_file(path, NO_LIMIT).open(newline="", encoding="utf-8-sig") as file:
            return _read(csv.reader(file), path, columns, tell)
    except ValueError as error:  # also text that is not UTF-8
        return Columns(()), [whole(f"{path} is not a CSV file: {error}" if "utf-8" in str(error) else str(error))]
    except (OSError, csv.Error) as error:
        return Columns(()), [whole(f"{path} cannot be read: {error}")]


def header_of(path: Path) -> list[str]:
    """Return the names of the columns of a CSV file."""
    with regular_file(path, NO_LIMIT).open(newline="", encoding="utf-8-sig") as file:
        return [cell.strip() for cell in next(csv.reader(file), [])]


def _read(
    rows: Iterator[list[str]], path: Path, columns: Names | None, tell: Callable[[str], None]
) -> tuple[Columns, list[Problem]]:
    header = [cell.strip() for cell in next(rows, [])]
    if not header:
        return Columns(()), [whole(f"{path} is empty")]
    plan, problems = plan_columns(header, columns, tell, str(path))
    problems = problems or check_names(plan)
    if problems:
        return Columns(()), problems
    found = Columns(list(plan))
    num_rows = 0
    rows = (row for row in rows if row)
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        for number, row in enumerate(chunk, start=num_rows):
            if len(row) != len(header):
                rule = f"{path} must have {len(header)} cells in every row; got {len(row)}"
                return found, [Problem(rule, (number,), 1)]
        cells = dict(zip(header, zip(*chunk, strict=True), strict=True))
        for name, source in plan.items():
            builder = found.builders[name]
            if isinstance(source, str):
                builder.add(_piece(builder, cells[source], KINDS[name]))
            else:
                add_stacked(builder, [_piece(builder, cells[one], "number") for one in source])
        num_rows += len(chunk)
    return found, []


def _piece(builder: ColumnBuilder, cells: tuple[str, ...], kind: str) -> Piece:
    """Return cells as what the column holds. An empty cell is null."""
    texts = np.array([cell.strip() for cell in cells])
    nulls = texts == ""
    if kind == "flag":
        return _flags(builder, texts)
    if kind == "name":
        return Piece(texts, nulls)
    is_whole = kind in ("whole", "action")
    if nulls.any():
        texts = np.where(nulls, "0" if is_whole else "nan", texts)
    dtypes: list[Any] = [np.int64] if is_whole else [np.float64]
    if builder.name in MAY_BE_MISSING:  # NaN may have turned whole numbers into floats
        dtypes.append(np.float64)
    for dtype in dtypes:
        with suppress(ValueError, OverflowError):
            return Piece(texts.astype(dtype), nulls)
    broken = np.array([not _fits(text, dtypes[-1]) for text in texts])
    builder.note(f"`{builder.name}` must be {WORDS[kind]}", broken, texts)
    return Piece(np.zeros(len(texts), dtypes[0]))


def _flags(builder: ColumnBuilder, texts: np.ndarray) -> Piece:
    found = [FLAGS.get(text) for text in np.char.lower(texts)]
    broken = np.array([value is None for value in found])
    builder.note(f"`{builder.name}` must be true or false", broken, texts)
    return Piece(np.array([value is True for value in found]))


def _fits(text: str, dtype: Any) -> bool:
    try:
        np.array([text]).astype(dtype)
    except (ValueError, OverflowError):
        return False
    return True
