"""Reads, checks and writes logs: `read`, `validate`, `write`.

a source                                    rows as
.parquet, a folder or a list of them        Arrow batches       tables.py
a frame (pandas, polars, pyarrow)           Arrow batches       tables.py
.csv                                        cells of text       text.py
a Minari dataset                            episodes            episodes.py
.npz, a mapping                             NumPy arrays        log.py
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from offtrace.evaluation.columns import Columns
from offtrace.evaluation.episodes import DATASET, is_dataset, load_dataset, read_dataset
from offtrace.evaluation.log import Log, columns_of, ordered, problems_of
from offtrace.evaluation.naming import Names, check_renames, plan_columns
from offtrace.evaluation.problems import LogError, Problem, whole
from offtrace.evaluation.tables import Found, first_rows, read_frame, read_parquet
from offtrace.evaluation.text import read_csv
from offtrace.files import read_npz

PARQUET = (".parquet", ".pq")
SUFFIXES = (*PARQUET, ".csv", ".npz")


def _silent(_: str) -> None:
    """Say nothing."""


def read(source: Any, *, columns: Names | None = None, tell: Callable[[str], None] = _silent) -> Log:
    """Read a log; raise `LogError` with everything that is wrong with it, by row.

    >>> read({
    ...     "episode": ["a", "a", "b"], "step": [0, 1, 0], "state": [0, 1, 0], "action": [1, 0, 1],
    ...     "reward": [0.0, 1.0, 0.5], "terminated": [0, 1, 1], "truncated": [0, 0, 0],
    ... })
    Log(2 episodes, 3 steps, 2 states, 2 actions, unknown μ)

    Args:
        source: A file .parquet, .csv or .npz; a folder or a list of Parquet files, which are one log; a
            pandas, polars or pyarrow frame; a Minari dataset or its name; a mapping of arrays; or a `Log`.
        columns: Names of the source's columns, where they are others: `{"state": "s"}`. Several
            columns may be one vector: `{"observation": ["x", "y"]}`.
        tell: Is called with a line about columns that are ignored.
    """
    _check_columns(source, columns)
    if isinstance(source, Log):
        return source
    found, problems = _found(source, columns, tell)
    problems = problems or problems_of(found)
    if problems:
        raise LogError(problems, _files(source))
    return ordered(found)


def validate(source: Any, *, columns: Names | None = None) -> list[Problem]:
    """Return what is wrong with a log, with row numbers: an empty list if nothing is.

    `source` and `columns` are those of `read`. A file that cannot be read is a problem, not an error.

    >>> validate({"episode": [0], "step": [1], "state": [0], "action": [1], "reward": [0.0],
    ...     "terminated": [True], "truncated": [False]})
    [Problem(rule='an episode must start with step 0', rows=(0,), num_rows=1)]
    """
    _check_columns(source, columns)
    if isinstance(source, Log):
        return []
    found, problems = _found(source, columns, _silent)
    return problems or problems_of(found)


def _check_columns(source: Any, columns: Names | None) -> None:
    check_renames(columns)
    if columns and (isinstance(source, Log) or is_dataset(source)):
        raise ValueError(f"`columns` must come with a file, a frame or a mapping; got {type(source).__name__}.")


# -- sources -------------------------------------------------------------------------------------


def _found(source: Any, columns: Names | None, tell: Callable[[str], None]) -> Found:
    """Return the columns of a source, or why it cannot be read."""
    if is_dataset(source):
        return read_dataset(source)
    if hasattr(source, "__arrow_c_stream__"):
        return read_frame(source, columns, tell)
    if isinstance(source, Mapping):
        return _from_mapping(source, columns)
    try:
        paths = _paths(source)
        if paths is None:
            return read_dataset(load_dataset(str(source)))
    except ValueError as error:
        return Columns(()), [whole(str(error))]
    except OSError as error:  # such as a name that is too long, or a folder that may not be listed
        return Columns(()), [whole(f"`source` cannot be read: {error.strerror}")]
    if paths[0].suffix == ".csv":
        return read_csv(paths[0], columns, tell)
    if paths[0].suffix == ".npz":
        return _from_npz(paths[0], columns, tell)
    return read_parquet(paths, columns, tell)


def _paths(source: Any) -> list[Path] | None:
    """Return the files of a source; None if it is the name of a Minari dataset."""
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_dir():
            return _in_folder(path)
        if not path.exists() and path.suffix not in SUFFIXES and DATASET.fullmatch(str(source)):
            return None
        paths = [path]
    elif isinstance(source, Sequence) and source and all(isinstance(one, str | Path) for one in source):
        paths = [Path(one) for one in source]
    else:
        kinds = "a file, a folder, a list of files, a frame, a Minari dataset, a mapping of arrays or a `Log`"
        raise ValueError(f"`source` must be {kinds}; got {type(source).__name__}")
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        if path.suffix not in SUFFIXES:
            raise ValueError(f"`source` must be a file {', '.join(SUFFIXES)}; got {path}")
        if len(paths) > 1 and path.suffix not in PARQUET:
            raise ValueError(f"several files must be Parquet files; got {path}")
    return paths


def _in_folder(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder by name; hidden ones and those with an underscore are not data."""
    found = [path for path in sorted(folder.iterdir()) if path.suffix in PARQUET and path.name[0] not in "._"]
    if not found:
        raise ValueError(f"{folder} has no Parquet file (.parquet)")
    return found


def _files(source: Any) -> str:
    """Return where each of several files starts, as a note for errors with rows."""
    if hasattr(source, "__arrow_c_stream__") or isinstance(source, Mapping) or is_dataset(source):
        return ""
    try:
        paths = _paths(source) or []
        starts = first_rows(paths) if len(paths) > 1 else []
    except (ValueError, OSError):
        return ""
    shown = [f"{path.name} from row {start:,}" for path, start in zip(paths, starts, strict=False)][:20]
    return f"Rows count through the files: {', '.join(shown)}." if shown else ""


def _from_npz(path: Path, columns: Names | None, tell: Callable[[str], None]) -> Found:
    try:
        arrays = read_npz(path)
    except ValueError as error:
        return Columns(()), [whole(str(error))]
    plan, problems = plan_columns(list(arrays), columns, tell, str(path))
    if problems:
        return Columns(()), problems
    return columns_of({name: arrays[given] for name, given in plan.items() if isinstance(given, str)})


def _from_mapping(source: Mapping[str, Any], columns: Names | None) -> Found:
    """Return the columns of a mapping; names that are unknown are refused, as they may be spelled wrong."""
    renamed = {given: name for name, given in (columns or {}).items() if isinstance(given, str)}
    missing = [name for name in renamed if name not in source]
    if missing:
        return Columns(()), [whole(f"the column `{missing[0]}` is missing")]
    return columns_of({renamed.get(name, name): values for name, values in source.items()})
