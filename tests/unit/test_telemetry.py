"""Records, their file and TensorBoard events: what is written is read back, also after a crash."""

import ast
import inspect
import io
import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from builders.reports import UNTRAINED, report

from offtrace.agent import disk, telemetry
from offtrace.agent.actor_records import ActorsRecord
from offtrace.agent.telemetry import BY_AGE, COUNTS, SPEED, TAGS, TensorBoardWriter, TickRecord, from_row, to_row

NAN, INF = math.nan, math.inf

REPORTS = {
    "plain": report(),
    "untrained": UNTRAINED,
    "evaluated": report(evaluation=12.5),
    "half a memory": report(off_policy_by_age=(0.5, 0.25, NAN, NAN, NAN)),
    "events": report(events=("Q reached 1234, beyond any possible return of 100", 'λ\n"quoted"  \\')),
    "diverged": report(loss=INF, q=-INF, gradient=NAN),
    "rounding": report(loss=0.1 + 0.2, q=1e-300, step_size=5e-324),
}


def same(one: object, other: object) -> bool:
    """Compare with nan equal to itself, and 1 not equal to 1.0."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or (type(one) is type(other) and one == other)


# -- rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", REPORTS.values(), ids=REPORTS)
def test_a_row_is_json_and_comes_back(given: TickRecord) -> None:
    text = json.dumps(to_row(given), allow_nan=False)
    assert same(from_row(json.loads(text)), given)


def test_a_later_version_may_add_fields() -> None:
    assert from_row(to_row(report()) | {"kelvin": 300}) == report()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"tick": 1.5}, "`tick`"),
        ({"num_steps": True}, "`num_steps`"),
        ({"loss": "high"}, "`loss`"),
        ({"loss": [1]}, "`loss`"),
        ({"off_policy_by_age": 0.5}, "`off_policy_by_age`"),
        ({"events": "one"}, "`events`"),
    ],
)
def test_a_row_of_something_else_is_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        from_row(to_row(report()) | changes)


def test_a_row_that_lacks_a_field_is_refused() -> None:
    row = to_row(report())
    del row["cut"]
    with pytest.raises(ValueError, match="must have `cut`"):
        from_row(row)


def test_every_field_says_what_it_is() -> None:
    """Every number has a chart."""
    (cls,) = ast.parse(inspect.getsource(TickRecord)).body
    assert isinstance(cls, ast.ClassDef)
    body = cls.body[1:]
    for field, text in zip(body[::2], body[1::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(text, ast.Expr)
        assert isinstance(text.value, ast.Constant)
    charted = {field for field, _ in TAGS.values()}
    assert set(TickRecord._fields) - charted == {"tick", "num_steps", "off_policy_by_age", "events", "actors"}


# -- progress.jsonl ------------------------------------------------------------------------------------------


def test_lines_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    for number, given in enumerate(REPORTS.values(), start=1):
        telemetry.append(path, given)
        assert len(telemetry.read(path)) == number  # nothing is held back
    assert same(tuple(telemetry.read(path)), tuple(REPORTS.values()))
    assert path.read_bytes().count(b"\n") == len(REPORTS)


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []

    class Counted(io.FileIO):
        def __init__(self, descriptor: int, mode: str, *, buffering: int) -> None:
            assert buffering == 0
            super().__init__(descriptor, mode)

        def write(self, line: bytes) -> int:
            writes.append(line)
            return super().write(line)

    monkeypatch.setattr(disk, "open", Counted, raising=False)
    telemetry.append(tmp_path / "progress.jsonl", report())
    assert len(writes) == 1
    assert writes[0].count(b"\n") == 1
    assert writes[0].endswith(b"\n")


def test_a_full_disk_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(OSError, match="No space left"):
        telemetry.append("/dev/full", report())


def test_a_torn_last_line_is_passed_over(tmp_path: Path) -> None:
    """Wherever it was cut."""
    path = tmp_path / "progress.jsonl"
    telemetry.append(path, report(1))
    telemetry.append(path, report(2, events=("λ",)))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert telemetry.read(path) == [report(1)]
    path.write_bytes(b"")
    assert telemetry.read(path) == []


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"", b"\x00\x00", b'{"tick": NaN}', b"[" * 100_000])
def test_a_broken_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "progress.jsonl"
    telemetry.append(path, report(1))
    with path.open("ab") as file:
        file.write(line + b"\n")
    telemetry.append(path, report(2))
    with pytest.raises(ValueError, match=r"line 2 of .*progress\.jsonl is not a record of a tick"):
        telemetry.read(path)


def test_rewrite_replaces(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    for tick in range(5):
        telemetry.append(path, report(tick))
    telemetry.rewrite(path, telemetry.read(path)[:3])
    telemetry.append(path, report(3, loss=9.0))
    assert telemetry.read(path) == [report(0), report(1), report(2), report(3, loss=9.0)]
    assert [file.name for file in tmp_path.iterdir()] == ["progress.jsonl"]


def test_rewrite_leaves_the_old_file_if_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    telemetry.append(path, report(1))

    def broken():
        yield report(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        telemetry.rewrite(path, broken())
    assert telemetry.read(path) == [report(1)]
    assert [file.name for file in tmp_path.iterdir()] == ["progress.jsonl"]


def test_import_is_light() -> None:
    code = "import sys, offtrace.agent.telemetry; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {name.split(".")[0] for name in output.split()} & {"jax", "rich", "tensorboardX", "torch"}


# -- TensorBoard ---------------------------------------------------------------------------------------------


def event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))


def records(path: Path) -> list:
    """A record is its length (8 bytes), a checksum of that (4), the event, a checksum of it (4)."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    data, start, events = path.read_bytes(), 0, []
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        events.append(event_pb2.Event.FromString(data[start + 12 : start + 12 + length]))
        start += length + 16
    assert start == len(data)
    return events


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in records(path):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tags_of_actor_learners(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    actors = ActorsRecord((0.5, 0.125), (0, 2), (3, 4), (64, 60), (16, 15), 14.5, 40)
    with TensorBoardWriter(tmp_path) as events:
        events.write(report(1)._replace(actors=actors))
        (path,) = event_files(tmp_path)
    found = {tag: points[0][1] for tag, points in scalars(path).items() if tag.startswith("actors/")}
    assert found == {
        "actors/staleness": 14.5,
        "actors/lowest_epsilon": 0.125,
        "actors/highest_epsilon": 0.5,
        "actors/switches": 7,
    }


def test_tags(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorBoardWriter(tmp_path / "new" / "folder") as events:
        events.write(report(1), steps_per_second=2048.0)
        (path,) = event_files(tmp_path / "new" / "folder")
        assert len(records(path)) == 2  # the version of the format, and all of the first tick: nothing is held back
        events.write(report(2, evaluation=5.5, loss=1e300))
    found = scalars(path)
    ages = [f"{BY_AGE}/{name}" for name in ("newest", "2_of_5", "3_of_5", "4_of_5", "oldest")]
    assert set(found) == {*TAGS, *ages, SPEED}
    for tag, (field, _) in TAGS.items():
        if field not in ("evaluation", "loss", *COUNTS):
            # the format holds single precision
            assert found[tag] == [
                (1000 * tick, pytest.approx(getattr(report(tick), field), rel=1e-7)) for tick in (1, 2)
            ]
    assert found["learner/updates"] == [(1000, 250), (2000, 500)]
    assert found["learner/loss"] == [(1000, 0.03125), (2000, INF)]
    assert found["episode/evaluation"] == [(2000, 5.5)]
    assert found[SPEED] == [(1000, 2048.0)]
    assert [found[tag][0][1] for tag in ages] == [0.0, 0.125, 0.25, 0.5, 1.0]
    described = [value.metadata.summary_description for value in records(path)[1].summary.value]
    assert all(described)


def test_what_is_nan_has_no_point(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorBoardWriter(tmp_path) as events:
        events.write(UNTRAINED)
    (path,) = event_files(tmp_path)
    assert set(scalars(path)) == {"episode/count", "learner/updates", "schedule/epsilon", "schedule/step_size"}


def test_events_are_text(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    with TensorBoardWriter(tmp_path) as events:
        events.write(report(5, events=("Q reached 1234.", "‖π−μ‖₁ is 2.")))
    (path,) = event_files(tmp_path)
    (text,) = [value for event in records(path) for value in event.summary.value if value.HasField("tensor")]
    assert text.metadata.plugin_data.plugin_name == "text"
    assert text.tensor.string_val[0].decode() == "Q reached 1234.\n\n‖π−μ‖₁ is 2."


def test_a_resumed_run_keeps_the_old_events(tmp_path: Path) -> None:
    """Also within the same second. TensorBoard drops the points after the checkpoint."""
    pytest.importorskip("tensorboardX")
    for tick, resumed_at in ((2, None), (2, 1000), (3, 2000)):
        events = TensorBoardWriter(tmp_path, resumed_at=resumed_at)
        events.write(report(tick))
        events.close()
        events.close()
    paths = event_files(tmp_path)
    assert [scalars(path)["learner/q"][0][0] for path in paths] == [2000, 2000, 3000]
    starts = [[event.step for event in records(path) if event.HasField("session_log")] for path in paths]
    assert starts == [[], [1001], [2001]]


def test_without_tensorboard_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"`tensorboardX`: pip install 'offtrace\[track\]'"):
        TensorBoardWriter(tmp_path / "events")
    assert not (tmp_path / "events").exists()
