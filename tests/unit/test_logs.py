"""Logs: every source gives the same one, and a log that breaks a rule is refused with the rows that break it.

The log of these tests has three episodes. What `read` must return is written down here, not computed.

    episode       a    a    a    b    b    c
    step          0    1    2    0    1    0
    state         0    2    1    0    3    1
    next_state    2    1    –    3    2    –        c is cut off, and where it led is unknown
    ends                    T         C    C
"""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import each

from offtrace.evaluation.log import Log
from offtrace.evaluation.problems import LogError
from offtrace.evaluation.reading import read, validate
from offtrace.evaluation.saving import write

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

STATES: dict[str, list[Any]] = {
    "episode": ["a", "a", "a", "b", "b", "c"],
    "step": [0, 1, 2, 0, 1, 0],
    "state": [0, 2, 1, 0, 3, 1],
    "action": [1, 0, 1, 0, 0, 1],
    "reward": [0.5, -1.0, 2.25, 0.0, 1e-3, 7.0],
    "terminated": [False, False, True, False, False, False],
    "truncated": [False, False, False, False, True, True],
    "next_state": [2, 1, None, 3, 2, None],
    "behaviour_probability": [0.5, 0.25, 1.0, 0.125, 0.1, 0.7],
    "behaviour_policy": ["old", "old", "old", "new", "new", "old"],
}
X = [[0.5, 1.0], [2.0, -1.0], [0.1, 0.2], [3.0, 4.0], [0.0, 0.0], [1.0, 1.0]]
OBSERVATIONS: dict[str, list[Any]] = {
    **{name: STATES[name] for name in ("episode", "step", "action", "reward", "terminated", "truncated")},
    "observation": X,
    "next_observation": [X[1], X[2], None, X[4], [9.0, 9.0], None],
}


def arrays(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the columns as NumPy arrays, in which −1 or NaN is what is missing."""
    found: dict[str, Any] = {name: np.array(values) for name, values in columns.items() if "next" not in name}
    if "next_state" in columns:
        found["next_state"] = np.array([-1 if value is None else value for value in columns["next_state"]])
    if "next_observation" in columns:
        given = columns["next_observation"]
        found["next_observation"] = np.array([[np.nan] * 2 if value is None else value for value in given])
    return found


def check_states(log: Log, *, names: tuple[str, ...] = ("old", "new")) -> None:
    assert log.first.tolist() == [0, 3, 5, 6]
    assert log.state is not None
    assert log.successor is not None
    assert log.mu_a is not None
    assert log.behaviour_policy is not None
    assert log.state.tolist() == STATES["state"]
    assert log.action.tolist() == STATES["action"]
    assert log.reward.tolist() == STATES["reward"]
    assert log.terminated.tolist() == STATES["terminated"]
    assert log.truncated.tolist() == STATES["truncated"]
    assert log.successor.tolist() == [2, 1, -1, 3, 2, -1]
    assert log.mu_a.tolist() == STATES["behaviour_probability"]
    assert log.behaviour_policy.tolist() == [0, 0, 0, 1, 1, 0]
    assert log.behaviour_names == names
    assert log.observation is None
    assert log.has_successor.tolist() == [True, True, True, True, True, False]
    assert (log.state.dtype, log.action.dtype, log.terminated.dtype) == (np.int32, np.int32, bool)


def check_observations(log: Log) -> None:
    assert log.first.tolist() == [0, 3, 5, 6]
    assert log.state is None
    assert log.observation is not None
    assert log.successor is not None
    assert log.observation.tolist() == X
    assert log.action.tolist() == OBSERVATIONS["action"]
    known = [0, 1, 3, 4]
    assert log.successor[known].tolist() == [X[1], X[2], X[4], [9.0, 9.0]]
    assert np.isnan(log.successor[[2, 5]]).all()
    assert log.has_successor.tolist() == [True, True, True, True, True, False]


# -- sources -------------------------------------------------------------------------------------


def test_every_source_of_states_gives_the_same_log(tmp_path: Path) -> None:
    import pandas
    import polars

    table = pa.table(STATES)
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=2)
    parts = tmp_path / "parts"
    parts.mkdir()
    pq.write_table(table.slice(0, 2), parts / "a.parquet")  # within an episode
    pq.write_table(table.slice(2), parts / "b.parquet")
    (parts / "_SUCCESS").touch()
    pandas.DataFrame(STATES).to_csv(tmp_path / "pandas.csv", index=False)  # next_state as 2.0 and empty cells
    polars.DataFrame(STATES).write_csv(tmp_path / "polars.csv")
    shuffled = [4, 0, 5, 2, 3, 1]
    sources = {
        "mapping": arrays(STATES),
        "lists": {**STATES, "next_state": [2, 1, -1, 3, 2, -1]},
        "pyarrow": table,
        "categories": table.set_column(0, "episode", table["episode"].dictionary_encode()),
        "Parquet": tmp_path / "log.parquet",
        "text": str(tmp_path / "log.parquet"),
        "folder": parts,
        "several": [parts / "a.parquet", parts / "b.parquet"],
        "pandas": pandas.DataFrame(STATES),
        "pandas, another index": pandas.DataFrame(STATES, index=pandas.Index(list("uvwxyz"))),
        "polars": polars.DataFrame(STATES),
        "CSV of pandas": tmp_path / "pandas.csv",
        "CSV of polars": tmp_path / "polars.csv",
    }
    for name, source in sources.items():
        try:
            assert validate(source) == []
            log = read(source)
            check_states(log)
            assert log.row is None
            assert read(log) is log
        except BaseException as error:
            error.add_note(name)
            raise
    for names in (STATES["episode"], [1, 1, 1, 9, 9, 5]):
        log = read(polars.DataFrame({**STATES, "episode": names})[shuffled].to_arrow())
        assert log.row is not None
        assert log.lengths.tolist() == [2, 3, 1]  # the second comes first
        assert np.array(shuffled)[log.row].tolist() == [3, 4, 0, 1, 2, 5]


def test_every_source_of_observations_gives_the_same_log(tmp_path: Path) -> None:
    import pandas
    import polars

    table = pa.table(OBSERVATIONS)
    vectors = pa.array(X, pa.list_(pa.float64(), 2))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float64(), [2]), vectors)
    place = table.schema.get_field_index("observation")
    fixed = table.set_column(place, "observation", vectors)
    flat = {name: values for name, values in OBSERVATIONS.items() if "observation" not in name}
    for name in ("observation", "next_observation"):
        for i in (1, 0):
            flat[f"{name}_{i}"] = [None if row is None else row[i] for row in OBSERVATIONS[name]]
    polars.DataFrame(flat).write_csv(tmp_path / "log.csv")
    pq.write_table(fixed, tmp_path / "log.parquet", row_group_size=2)
    for source in (
        arrays(OBSERVATIONS),
        table,
        fixed,
        table.set_column(place, "observation", tensors),
        pandas.DataFrame(OBSERVATIONS),
        polars.DataFrame(OBSERVATIONS),
        pa.table(flat),
        tmp_path / "log.csv",
        tmp_path / "log.parquet",
    ):
        check_observations(read(source))
    named = {"observation": ["y", "z"], "next_observation": ["observation_0", "observation_1"]}
    renamed = pa.table(flat).rename_columns(
        [{"observation_0": "y", "observation_1": "z"}.get(name, name) for name in flat]
    )
    renamed = renamed.rename_columns([name.replace("next_", "") for name in renamed.column_names])
    check_observations(read(renamed, columns=named))


def test_minari_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari's documentation: an episode has one observation more than it has actions."""
    minari = pytest.importorskip("minari")
    from gymnasium.spaces import Box, Discrete
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def made(name: str, observations: list[Any], space: Any) -> Any:
        buffers = [
            EpisodeBuffer(
                id=i,
                observations=np.array(seen, space.dtype),
                actions=np.array([1, 0, 1][: len(seen) - 1]),
                rewards=[0.5] * (len(seen) - 1),
                terminations=[False] * (len(seen) - 2) + [i == 0],
                truncations=[False] * (len(seen) - 2) + [i == 1],
            )
            for i, seen in enumerate(observations)
        ]
        with pytest.warns(UserWarning, match="None|env_spec"):
            return minari.create_dataset_from_buffers(
                name, buffers, observation_space=space, action_space=Discrete(2), data_format="arrow"
            )

    states = made("lake/few-v0", [[0, 2, 1], [3, 0, 1, 2]], Discrete(4))
    for source in (states, "lake/few-v0"):
        log = read(source)
        assert log.state is not None
        assert log.successor is not None
        assert log.first.tolist() == [0, 2, 5]
        assert log.state.tolist() == [0, 2, 3, 0, 1]
        assert log.successor.tolist() == [2, 1, 0, 1, 2]
        assert log.action.tolist() == [1, 0, 1, 0, 1]
        assert log.terminated.tolist() == [False, True, False, False, False]
        assert log.truncated.tolist() == [False, False, False, False, True]
    boxes = read(made("pole/few-v0", [X[:3], X[2:6]], Box(-9, 9, (2,), np.float64)))
    assert boxes.observation is not None
    assert boxes.successor is not None
    assert boxes.observation.tolist() == [X[0], X[1], X[2], X[3], X[4]]
    assert boxes.successor.tolist() == [X[1], X[2], X[3], X[4], X[5]]
    (missing,) = validate("lake/none-v0")
    assert "neither a file nor a Minari dataset" in str(missing)
    with pytest.raises(ValueError, match="`columns` must come with a file"):
        read(states, columns={"state": "s"})


def test_actions_that_are_vectors(tmp_path: Path) -> None:
    columns = {name: values for name, values in STATES.items() if not name.startswith("behaviour")}
    columns |= {"action": X, "behaviour_log_density": [-0.5, 0.5, 1.5, 0.0, 3.0, -9.0]}
    logs = [read(pa.table(columns))]
    for suffix in (".parquet", ".csv", ".npz"):
        write(logs[0], tmp_path / f"log{suffix}")
        logs.append(read(tmp_path / f"log{suffix}"))
    for log in logs:
        assert log.action.tolist() == X
        assert log.log_mu_a is not None
        assert log.log_mu_a.tolist() == columns["behaviour_log_density"]


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of two rows, as a log of millions of rows in its pieces."""
    monkeypatch.setattr("offtrace.evaluation.saving.ROWS_AT_ONCE", 2)
    monkeypatch.setattr("offtrace.evaluation.tables.BATCH_ROWS", 2)
    monkeypatch.setattr("offtrace.evaluation.text.ROWS_AT_ONCE", 2)
    monkeypatch.setattr("offtrace.evaluation.columns.INITIAL_CAPACITY", 1)
    for suffix in (".parquet", ".csv", ".npz"):
        path = tmp_path / f"log{suffix}"
        path.write_bytes(b"an older file")
        write(read(pa.table(STATES)), path)
        if suffix == ".parquet":
            assert pq.read_table(path)["next_state"].to_pylist() == STATES["next_state"]
        check_states(read(path), names=("0", "1") if suffix == ".npz" else ("old", "new"))
        write(read(pa.table(OBSERVATIONS)), path)
        check_observations(read(path))
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "log.npz", "log.parquet"]
    for path, text in (("log.xls", "must end with"), ("none/log.csv", "in a folder that exists")):
        with pytest.raises(ValueError, match=text):
            write(read(pa.table(STATES)), tmp_path / path)


def test_large_numbers_keep_their_values() -> None:
    """int32 is used where every number fits, also if the first rows do."""
    huge = [0, 2**40, 1, 0, 3, 1]
    table = pa.table({**STATES, "state": huge, "next_state": [2**40, 1, None, 3, 2, None]})
    batches = pa.Table.from_batches([batch for i in range(6) for batch in table.slice(i, 1).to_batches()])
    log = read(batches)
    assert log.state is not None
    assert log.successor is not None
    assert log.state.tolist() == huge
    assert log.successor.tolist() == [2**40, 1, -1, 3, 2, -1]
    assert log.action.dtype == np.int32


def test_other_names_and_columns_that_are_ignored(tmp_path: Path) -> None:
    renamed = {("s" if name == "state" else name): values for name, values in STATES.items()}
    given = {**renamed, "doctor": list("xxyyzz")}
    pq.write_table(pa.table(given), tmp_path / "log.parquet")
    for source in (pa.table(given), tmp_path / "log.parquet"):
        lines: list[str] = []
        check_states(read(source, columns={"state": "s"}, tell=lines.append))
        assert len(lines) == 1
        assert lines[0].endswith("ignored columns: `doctor`.")
    check_states(read({**arrays(renamed), "s": STATES["state"]}, columns={"state": "s"}))
    assert "unknown column `doctor`" in refused(arrays(given))  # it may be spelled wrong
    assert "the column `x` is missing; the frame has `episode`" in refused(pa.table(given), columns={"state": "x"})
    with pytest.raises(ValueError, match="`columns` must have names among episode, step"):
        read(given, columns={"staet": "s"})


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.parquet"
    write(read(arrays(STATES)), path)
    write(read(arrays(STATES)), tmp_path / "log.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check_states(read(tmp_path / "log.csv"))
    check_states(read(arrays(STATES)))
    for call in (lambda: read(path), lambda: write(read(arrays(STATES)), path)):
        with pytest.raises(ImportError, match=re.escape("pip install 'offtrace[evaluation]'")):
            call()


# -- what is wrong -------------------------------------------------------------------------------


def refused(source: Any, **options: Any) -> str:
    """Return what is wrong with a source; `read` raises it, and `validate` returns it."""
    with pytest.raises(LogError) as caught:
        read(source, **options)
    assert list(caught.value.problems) == validate(source, **options)
    return str(caught.value)


def changed(name: str, row: int, value: Any) -> dict[str, list[Any]]:
    return {**STATES, name: [value if i == row else old for i, old in enumerate(STATES[name])]}


def selected(rows: list[int]) -> dict[str, list[Any]]:
    return {name: [values[row] for row in rows] for name, values in STATES.items()}


BAD = {
    "a missing step": (selected([0, 2, 3, 4, 5]), "steps are missing before: row 1"),
    "a missing start": (selected([0, 1, 2, 4, 5]), "an episode must start with step 0: row 3"),
    "a missing end": (
        selected([0, 1, 3, 4, 5]),
        "must be `terminated` or `truncated`; if the log stops there, it is truncated: row 1",
    ),
    "duplicate rows": (selected([0, 1, 1, 2, 3, 4, 5]), "two rows have the same episode and step: row 2"),
    "far duplicates": (selected([0, 1, 2, 3, 4, 5, 4]), "two rows have the same episode and step: row 6"),
    "an early end": (changed("truncated", 1, True), "the episode goes on after `terminated` or `truncated`: row 1"),
    "a negative action": (changed("action", 4, -1), "`action` must not be negative: row 4"),
    "a negative state": (changed("state", 0, -7), "`state` must not be negative: row 0"),
    "probability 0": (
        changed("behaviour_probability", 2, 0.0),
        "`behaviour_probability` must be above 0 and at most 1, as the action was taken: row 2",
    ),
    "probability 1.5": (changed("behaviour_probability", 5, 1.5), "must be above 0 and at most 1"),
    "NaN reward": (changed("reward", 3, float("nan")), "`reward` must be finite: row 3"),
    "infinite reward": (changed("reward", 3, float("inf")), "`reward` must be finite: row 3"),
    "null reward": (changed("reward", 3, None), "`reward` must be finite: row 3"),
    "null action": (changed("action", 1, None), "`action` must not be null: row 1"),
    "null flag": (changed("terminated", 1, None), "`terminated` must not be null: row 1"),
    "null episode": (changed("episode", 1, None), "`episode` must not be null: row 1"),
    "another next state": (
        changed("next_state", 1, 3),
        "`next_state` must be the state of the next step of the episode: row 1",
    ),
    "no next state": (
        changed("next_state", 3, None),
        "`next_state` is missing; it may be missing only at the last step of an episode: row 3",
    ),
    "names of actions": (
        {**STATES, "action": list("lrlrlr")},
        "`action` must be whole numbers from 0, or vectors of numbers; got string such as 'l'. Number the actions",
    ),
    "names of states": ({**STATES, "state": list("uvwxyz")}, "`state` must be whole numbers from 0; got string"),
    "fractions as states": ({**STATES, "state": [0.5] * 6}, "`state` must be whole numbers from 0; got double"),
    "text as rewards": ({**STATES, "reward": ["high"] * 6}, "`reward` must be numbers; got string such as 'high'"),
    "numbers as flags": (
        {**STATES, "terminated": [0, 0, 1, 2, 0, 0]},
        "`terminated` must be true or false, or 0 or 1: row 3",
    ),
    "fractions as flags": (
        {**STATES, "terminated": [0.0] * 6},
        "`terminated` must be booleans, or 0 and 1; got double",
    ),
    "no rows": ({name: pa.array(values)[:0] for name, values in STATES.items()}, "the log is empty"),
    "no reward": (
        {name: values for name, values in STATES.items() if name != "reward"},
        "the column `reward` is missing",
    ),
    "both": ({**STATES, "observation": X}, "give `state` or `observation`, not both"),
    "neither": (
        {name: values for name, values in STATES.items() if "state" not in name},
        "the column `state` (numbers) or `observation` (vectors) is missing",
    ),
}


@each(("columns", "text"), BAD)
def test_bad_logs_are_refused_with_their_rows(columns: dict[str, Any], text: str) -> None:
    assert text in refused(pa.table(columns))


OBSERVED = {
    "ragged": (
        {"observation": [*X[:4], [1.0], X[5]]},
        "`observation` must have 2 numbers in every row, as in the first: row 4",
    ),
    "NaN": ({"observation": [*X[:4], [1.0, None], X[5]]}, "`observation` must be finite: row 4"),
    "text": ({"observation": [list("ab")] * 6}, "`observation` must be vectors of numbers; got list"),
    "empty": ({"observation": [[]] * 6}, "`observation` must have at least one number per row"),
    "all null": (
        {"observation": pa.array([None] * 6, pa.list_(pa.float64()))},
        "`observation` must have at least one number per row",
    ),
    "no next one": (
        {"next_observation": pa.array([None] * 6, pa.list_(pa.float64()))},
        "it may be missing only at the last step of an episode: rows 0, 1, 3",
    ),
    "scalars": ({"observation": [1.0] * 6}, "`observation` must be vectors of numbers; got double"),
    "another": (
        {"next_observation": [[2.0, -1.001], X[2], None, X[4], None, None]},
        "`next_observation` must be the observation of the next step of the episode: row 0",
    ),
    "null": (
        {"next_observation": [None, X[2], None, X[4], None, None]},
        "`next_observation` is missing; it may be missing only at the last step of an episode: row 0",
    ),
    "wider": ({"next_observation": [[1.0] * 3] * 6}, "`next_observation` must have 2 numbers per row; got 3"),
}


@each(("columns", "text"), OBSERVED)
def test_bad_observations_are_refused_with_their_rows(columns: dict[str, Any], text: str) -> None:
    assert text in refused(pa.table({**OBSERVATIONS, **columns}))


def test_a_single_problem_is_on_the_first_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.parquet"
    assert refused(missing) == f"the log cannot be used: {missing} does not exist"


def test_all_problems_come_at_once_with_the_rows_of_the_source() -> None:
    """Six rows of one problem are counted; rows that are out of order keep their numbers."""
    backwards = {name: values[::-1] for name, values in STATES.items()}
    backwards |= {"reward": [float("nan")] * 6, "action": [-1, 0, 0, 0, 0, 0], "terminated": [False] * 6}
    text = refused(pa.table(backwards))
    assert text.startswith("the log cannot be used (rows count from 0):\n")
    assert "`reward` must be finite: rows 0, 1, 2, 3, 4 and 1 more" in text
    assert "`action` must not be negative: row 0" in text
    assert "it is truncated: row 3" in text  # the last step of a, which was terminated


def test_rows_of_later_pieces() -> None:
    table = pa.table(changed("action", 4, None))
    batches = [batch for i in range(6) for batch in table.slice(i, 1).to_batches()]
    assert "`action` must not be null: row 4" in refused(pa.Table.from_batches(batches))


def test_mappings_with_wrong_shapes() -> None:
    given = arrays(STATES)
    assert "`action` must have 6 rows, as other columns; got 2" in refused({**given, "action": [0, 1]})
    assert "`reward` must be numbers; got shape (6, 1)" in refused({**given, "reward": np.zeros((6, 1))})
    assert "`action` must have the same shape in every row" in refused({**given, "action": [[0], [1, 2]] * 3})
    assert "`action` must be whole numbers from 0, or vectors" in refused({**given, "action": np.zeros(6, bool)})


def test_cells_that_are_not_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    write(read(arrays(STATES)), path)
    lines = path.read_text().splitlines()
    assert lines[2] == "0,1,2,0,-1.0,False,False,1,0.25,old"
    for cells, text in (
        ("0,1,2,0,much,False,False,1,0.25,old", "`reward` must be numbers; got 'much': row 1"),
        (
            "0,1,2,up,-1.0,False,False,1,0.25,old",
            "`action` must be whole numbers from 0, or vectors of numbers; got 'up': row 1",
        ),
        ("0,1,2.0,0,-1.0,False,False,1,0.25,old", "`state` must be whole numbers from 0; got '2.0': row 1"),
        ("0,1,,0,-1.0,False,False,1,0.25,old", "`state` must not be null: row 1"),
        ("0,1,2,0,,False,False,1,0.25,old", "`reward` must be finite: row 1"),
        ("0,1,2,0,-1.0,no,False,1,0.25,old", "`terminated` must be true or false; got 'no': row 1"),
        ("0,1,2,0,-1.0,False,False,1.5,0.25,old", "`next_state` must be whole numbers: row 1"),
        ("0,1,2,0,-1.0", "must have 10 cells in every row; got 5: row 1"),
    ):
        path.write_text("\n".join([*lines[:2], cells, *lines[3:]]))
        assert text in refused(path)


def broken(path: Path, change: Callable[[bytes], bytes]) -> Path:
    found = path.with_name(f"broken{path.suffix}")
    found.write_bytes(change(path.read_bytes()))
    return found


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    log = read(arrays(STATES))
    for suffix in (".parquet", ".csv", ".npz"):
        write(log, tmp_path / f"log{suffix}")
    whole = tmp_path / "log.parquet"
    data_begins = len(b"PAR1") + 20
    for path, text in (
        (broken(whole, lambda data: data[: len(data) // 2]), "is not a whole Parquet file: its end is missing"),
        (broken(whole, lambda data: data[:-1]), "is not a whole Parquet file"),
    ):
        assert text in refused(path)
    assert "is not a Parquet file" in refused(broken(whole, lambda _: b"a letter to a friend"))
    assert "is empty" in refused(broken(whole, lambda _: b""))
    footer = refused(broken(whole, lambda data: data[:-20] + b"\xff" * 12 + data[-8:]))
    assert "broken.parquet cannot be read" in footer
    body = broken(whole, lambda data: data[:data_begins] + b"\xff" * 60 + data[data_begins + 60 :])
    assert "broken.parquet cannot be read after row 0" in refused(body)
    num_refused = 0
    for place in range(data_begins, 400, 5):  # pages have checksums; parts of their headers are never read
        flipped = broken(whole, lambda data, at=place: data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
        if validate(flipped):
            num_refused += 1
        else:
            check_states(read(flipped))
    assert num_refused > 20
    assert "is empty" in refused(broken(tmp_path / "log.csv", lambda _: b""))
    assert "is not a CSV file" in refused(broken(tmp_path / "log.csv", lambda _: b"\xff\xfe\x00\x81"))
    assert "is not an .npz file" in refused(broken(tmp_path / "log.npz", lambda data: data[: len(data) // 2]))
    (tmp_path / "log.txt").touch()
    (tmp_path / "none").mkdir()
    (tmp_path / "folder.parquet").mkdir()
    for source, text in (
        (tmp_path / "missing.parquet", "missing.parquet does not exist"),
        (tmp_path / "log.txt", "`source` must be a file .parquet, .pq, .csv, .npz; got"),
        (tmp_path / "none", "none has no Parquet file"),
        (tmp_path / "folder.parquet", "folder.parquet has no Parquet file"),
        ([tmp_path / "log.csv", tmp_path / "log.csv"], "several files must be Parquet files"),
        ("a" * 5000, "`source` cannot be read: File name too long"),
        (7, "`source` must be a file, a folder, a list of files, a frame"),
        ([], "`source` must be a file, a folder"),
    ):
        assert text in refused(source)


def test_next_observations_that_are_all_missing() -> None:
    """Every episode has one step."""
    one = {name: [values[row] for row in (2, 5)] for name, values in OBSERVATIONS.items() if "next" not in name}
    given = {**one, "step": [0, 0], "next_observation": pa.array([None] * 2, pa.list_(pa.float64()))}
    log = read(pa.table(given))
    assert log.successor is None
    assert log.has_successor.tolist() == [True, False]


def test_rows_of_several_files(tmp_path: Path) -> None:
    """Rows count through all files, and the error says where each of them starts."""
    table = pa.table(changed("reward", 4, float("nan")))
    pq.write_table(table.slice(0, 3), tmp_path / "a.parquet")
    pq.write_table(table.slice(3), tmp_path / "b.parquet")
    text = refused(tmp_path)
    assert "`reward` must be finite: row 4" in text
    assert text.endswith("Rows count through the files: a.parquet from row 0, b.parquet from row 3.")
    pq.write_table(table.slice(3).drop_columns(["behaviour_policy"]), tmp_path / "b.parquet")
    assert "only one of them has `behaviour_policy`" in refused(tmp_path)
