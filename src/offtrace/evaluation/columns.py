"""The columns of a log: their names and kinds, and arrays that are filled piece by piece.

A source of any kind (a file, a frame, a mapping) is a stream of pieces. Every column has a builder,
which converts the pieces, and notes the rows that cannot be converted:

    source      piece 0          piece 1          piece 2
    `action`    int64 · · ·      int64 · null ·   int64 · ·
                   ↓                ↓                ↓
    builder     int32 · · · · · · · ·             and the rows that are null: 4
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace.evaluation.problems import Problem, at, whole

KINDS = {
    "episode": "name",
    "step": "whole",
    "action": "action",
    "reward": "number",
    "terminated": "flag",
    "truncated": "flag",
    "state": "whole",
    "observation": "vector",
    "next_state": "whole",
    "next_observation": "vector",
    "behaviour_probability": "number",
    "behaviour_log_density": "number",
    "behaviour_policy": "name",
}
"""Every column that a log may have, and what it holds: "action" is a whole number or a vector."""
REQUIRED = ("episode", "step", "action", "reward", "terminated", "truncated")
MAY_BE_MISSING = ("next_state", "next_observation")
"""Columns that may be null at the last step of an episode."""
WORDS = {
    "name": "whole numbers or strings",
    "whole": "whole numbers from 0",
    "number": "numbers",
    "flag": "booleans, or 0 and 1",
    "vector": "vectors of numbers",
    "action": "whole numbers from 0, or vectors of numbers",
}
REMEDIES = {
    "state": " Number the states from 0.",
    "next_state": " Number the states from 0.",
    "action": " Number the actions from 0.",
}
MISSING = -1
"""Stands for a `next_state` that is not in the log."""
SMALL = np.iinfo(np.int32)
INITIAL_CAPACITY = 1 << 16


@dataclass
class Piece:
    """Consecutive rows of one column, as a source has them."""

    values: np.ndarray
    """(N,), (N, d), or all numbers one after the other if there are `lengths`."""
    nulls: np.ndarray | None = None
    """(N,) True where there is no value; None if every row has one."""
    lengths: np.ndarray | None = None
    """(N,) numbers per row, for lists; 0 at nulls."""
    shown: str = ""
    """The source's name of the type, for errors; that of `values` by default."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.values if self.lengths is None else self.lengths)


@dataclass
class ColumnBuilder:
    """An array that grows by pieces. `array` is its result; `problems` says which rows could not be converted."""

    name: str
    capacity: int = INITIAL_CAPACITY
    num_rows: int = 0
    names: dict[str, int] = field(default_factory=dict)
    """The number of every string, in the order in which they appear."""
    _array: np.ndarray | None = None
    _type_problem: Problem | None = None
    _rows: dict[str, list[np.ndarray]] = field(default_factory=dict)
    _got: dict[str, str] = field(default_factory=dict)

    @property
    def array(self) -> np.ndarray | None:
        """The rows so far; None if a piece had the wrong type."""
        if self._array is None or self._type_problem is not None:
            return None
        return self._array[: self.num_rows]

    @property
    def problems(self) -> list[Problem]:
        """What could not be converted."""
        if self._type_problem is not None:
            return [self._type_problem]
        found = []
        for rule, rows in self._rows.items():
            found += at(rule + self._got[rule], np.concatenate(rows))
        return found

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        if self._type_problem is None:
            values = self._converted(piece)
            if values is not None:
                self._append(values)
        self.num_rows += piece.num_rows

    def note(self, rule: str, broken: np.ndarray, values: np.ndarray | None = None) -> None:
        """Note the rows of the next piece where `broken` holds; the first of the `values` there is shown."""
        if broken.any():
            if rule not in self._got:
                self._got[rule] = "" if values is None else f"; got {values[broken][0].item()!r:.40}"
            self._rows.setdefault(rule, []).append(np.flatnonzero(broken) + self.num_rows)

    # -- conversions -----------------------------------------------------------------------------

    def _converted(self, piece: Piece) -> np.ndarray | None:
        """Return the values in the type of the column; None if they have a wrong one."""
        kind = KINDS[self.name]
        is_vector = piece.lengths is not None or piece.values.ndim == 2
        if kind == "action":
            kind = "vector" if is_vector else "whole"
        if is_vector != (kind == "vector") or piece.values.ndim > 2:
            return self._refuse(piece)
        convert = {
            "name": self._numbered,
            "whole": self._whole_numbers,
            "number": self._numbers,
            "flag": self._flags,
            "vector": self._vectors,
        }
        return convert[kind](piece)

    def _refuse(self, piece: Piece) -> None:
        got = piece.shown or str(piece.values.dtype)
        if piece.lengths is None and piece.values.ndim != 1 and not piece.shown:
            got = f"shape {piece.values.shape}"
        wanted = WORDS[KINDS[self.name]]
        rule = f"`{self.name}` must be {wanted}; got {got}{_example(piece)}.{REMEDIES.get(self.name, '')}"
        self._type_problem = whole(rule)

    def _whole_numbers(self, piece: Piece) -> np.ndarray | None:
        values = piece.values
        nulls = piece.nulls
        may_be_missing = self.name in MAY_BE_MISSING
        if values.dtype.kind == "f" and may_be_missing:  # NaN turned whole numbers into floats
            nulls = np.isnan(values) if nulls is None else nulls | np.isnan(values)
            values = np.where(nulls, 0, values)
            self.note(f"`{self.name}` must be whole numbers", values != np.floor(values))
            values = np.where(np.abs(values) < 2**53, values, 0).astype(np.int64)
        if values.dtype.kind not in "iu":
            return self._refuse(piece)
        if values.dtype == np.uint64:
            self.note(f"`{self.name}` must be below 2^63", values > np.iinfo(np.int64).max)
        if nulls is not None and nulls.any():
            if not may_be_missing:
                self.note(f"`{self.name}` must not be null", nulls)
            values = np.where(nulls, MISSING if may_be_missing else 0, values.astype(np.int64))
        return _smallest(values)

    def _numbers(self, piece: Piece) -> np.ndarray | None:
        if piece.values.dtype.kind not in "fiu":
            return self._refuse(piece)
        values = piece.values.astype(np.float64, copy=False)
        if piece.nulls is None:
            return values
        return np.where(piece.nulls, np.nan, values)  # reported with what is not finite

    def _flags(self, piece: Piece) -> np.ndarray | None:
        if piece.values.dtype.kind not in "biu":
            return self._refuse(piece)
        if piece.nulls is not None:
            self.note(f"`{self.name}` must not be null", piece.nulls)
        if piece.values.dtype.kind != "b":
            self.note(f"`{self.name}` must be true or false, or 0 or 1", (piece.values != 0) & (piece.values != 1))
        return piece.values.astype(bool, copy=False)

    def _vectors(self, piece: Piece) -> np.ndarray | None:
        if piece.values.dtype.kind not in "fiu":
            return self._refuse(piece)
        if piece.lengths is not None:
            return self._rows_of(piece)
        width = self._width or piece.values.shape[1]
        if piece.values.shape[1] != width:
            self.note(self._width_rule(width), np.ones(piece.num_rows, bool))
            return np.full((piece.num_rows, width), np.nan)
        return piece.values.astype(np.float64, copy=False)

    @property
    def _width(self) -> int:
        """Numbers per row; 0 before the first row that is not null."""
        return 0 if self._array is None else self._array.shape[1]

    def _width_rule(self, width: int) -> str:
        return f"`{self.name}` must have {width} numbers in every row, as in the first"

    def _rows_of(self, piece: Piece) -> np.ndarray:
        """Return lists as rows (N, d); NaN where a list is null or has another length than the first."""
        assert piece.lengths is not None
        nulls = np.zeros(piece.num_rows, bool) if piece.nulls is None else piece.nulls
        present = piece.lengths[~nulls]
        width = self._width
        if not width and present.any():
            width = int(present[present > 0][0])
        fits = ~nulls & (piece.lengths == width)
        self.note(self._width_rule(width), ~nulls & ~fits)
        values = np.full((piece.num_rows, width), np.nan)
        if width:  # otherwise all lists are null or empty, which the checks refuse
            values[fits] = piece.values[np.repeat(fits, piece.lengths)].reshape(-1, width)
        return values

    def _numbered(self, piece: Piece) -> np.ndarray | None:
        values = piece.values
        nulls = piece.nulls
        if values.dtype.kind == "O":
            nulls = np.array([value is None for value in values], bool)
            is_name = np.array([_is_name(value) for value in values], bool)
            if not (is_name | nulls).all():
                return self._refuse(piece)
        elif values.dtype.kind not in "iuUT":
            return self._refuse(piece)
        if nulls is not None:
            self.note(f"`{self.name}` must not be null", nulls)
        is_number = values.dtype.kind in "iu"
        if is_number and self.name == "episode" and not self.names:
            return _smallest(values)
        if self.name == "episode" and self._array is not None and not self.names:
            return self._refuse(piece)  # the pieces before had numbers
        return self._numbers_of(values)

    def _numbers_of(self, values: np.ndarray) -> np.ndarray:
        """Return the number of every name. Equal names often follow each other, so a name is looked up once a run."""
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        starts = np.concatenate([np.zeros(min(1, len(values)), np.int64), changes])
        found = [self.names.setdefault(str(value), len(self.names)) for value in values[starts]]
        return np.repeat(np.array(found, np.int32), np.diff(starts, append=len(values)))

    # -- memory ----------------------------------------------------------------------------------

    def _append(self, values: np.ndarray) -> None:
        end = self.num_rows + len(values)
        if self._array is None and self.num_rows == 0 and len(values) >= self.capacity:
            self._array = values  # the source is one piece: nothing to copy
            return
        if self._array is None:
            size = max(self.capacity, end)
            self._array = np.empty((size, *values.shape[1:]), values.dtype)
        if values.shape[1:] != self._array.shape[1:]:
            self._widen(values)
        if end > len(self._array):
            self._grow(max(end, 2 * len(self._array)), self._array.dtype)
        if values.dtype.itemsize > self._array.dtype.itemsize:
            self._grow(len(self._array), values.dtype)
        self._array[self.num_rows : end] = values

    def _grow(self, capacity: int, dtype: np.dtype) -> None:
        assert self._array is not None
        larger = np.empty((capacity, *self._array.shape[1:]), dtype)
        larger[: self.num_rows] = self._array[: self.num_rows]
        self._array = larger

    def _widen(self, values: np.ndarray) -> None:
        """Take the width of the first piece that has one: the rows before are all null."""
        assert self._array is not None
        self._array = np.full((len(self._array), *values.shape[1:]), np.nan)


def _smallest(values: np.ndarray) -> np.ndarray:
    """Return whole numbers as int32 where they fit, else as int64."""
    if len(values) and (values.max() > SMALL.max or values.min() < SMALL.min):
        return values.astype(np.int64, copy=False)
    return values.astype(np.int32, copy=False)


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int | np.integer) and not isinstance(value, bool)


def _example(piece: Piece) -> str:
    if piece.values.dtype.kind not in "OUT" or piece.values.ndim != 1:
        return ""
    for value in piece.values:
        if isinstance(value, str):
            return f" such as {value[:40]!r}"
    return ""


class Columns:
    """The columns of a log while they are read."""

    def __init__(self, names: Sequence[str], num_rows: int | None = None) -> None:
        capacity = INITIAL_CAPACITY if num_rows is None else max(1, num_rows)
        self.builders = {name: ColumnBuilder(name, capacity) for name in names}

    def add(self, name: str, values: Any, **options: Any) -> None:
        """Append rows to a column."""
        self.builders[name].add(Piece(np.asarray(values), **options))

    @property
    def problems(self) -> list[Problem]:
        """What could not be converted, in all columns."""
        return [problem for builder in self.builders.values() for problem in builder.problems]

    def pop(self, name: str) -> np.ndarray:
        """Return a column, which must be without problems, and forget it."""
        array = self.builders.pop(name).array
        assert array is not None
        return array

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The columns that could be converted."""
        found = {name: builder.array for name, builder in self.builders.items()}
        return {name: array for name, array in found.items() if array is not None}
