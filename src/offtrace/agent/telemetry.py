"""The measurements of a run: one `TickRecord` per tick, the file `progress.jsonl`, and TensorBoard events.

A record holds no times, so it is the same in every repetition of a run that is a function of its
spec. `progress.jsonl` has one record per line; only the last line can be incomplete.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from offtrace.agent import actor_records, disk
from offtrace.agent.actor_records import ActorsRecord


class TickRecord(NamedTuple):
    """One tick of one run. Tick 0 is the untrained agent: measurements of updates are nan there."""

    tick: int
    """Number of the tick. Ticks have equal numbers of environment steps, except 0 (none) and 1 (fills the memory)."""
    num_steps: int
    """Environment steps so far, of all actors together."""
    num_updates: int
    """Updates of the network so far."""
    num_episodes: int
    """Episodes that ended in this tick, of all actors."""
    episode_return: float
    """Mean sum of rewards of these episodes, raw: neither discounted nor clamped. nan if none ended."""
    episode_length: float
    """Mean number of steps of these episodes. nan if none ended."""
    epsilon: float
    """ε of the exploration at the end of the tick: the share of random actions."""
    step_size: float
    """Step size of the optimiser at the end of the tick."""
    loss: float
    """Mean |ΔQ| before the clamp: the distance of the values from their targets."""
    q: float
    """Mean Q(x_t, a_t) of replayed steps. Values far beyond any possible return mean divergence."""
    c: float
    """Mean trace coefficient: the share of a later TD error that passes one step, from 0 to 1."""
    cut: float
    """Share of steps with a coefficient under 0.05, which cut the trace."""
    effective_length: float
    """Mean of Σ_s Π c over a window: the number of TD errors that reach its start. 1 is one-step learning."""
    off_policy: float
    """‖π − μ‖₁ of replayed steps, from 0 (on-policy) to 2."""
    gradient: float
    """Norm of the gradient, before it is scaled down."""
    off_policy_by_age: tuple[float, ...]
    """‖π − μ‖₁ for fifths of the memory by age, newest first. nan for an empty fifth."""
    evaluation: float | None = None
    """Mean return of evaluation episodes. None in ticks without an evaluation."""
    events: tuple[str, ...] = ()
    """Warnings, as sentences: "Q reached 1234, beyond any possible return of 100"."""
    actors: ActorsRecord | None = None
    """The actor-learners of the asynchronous runtime; None in other runtimes."""


class Watcher:
    """Receives the events of a run while it trains; override the methods you need.

    In a population, `on_start` gets the spec and the records of the first member.
    """

    def on_start(self, spec: Any, total_steps: int, records: Sequence[TickRecord]) -> None:
        """Called before the first tick, with the records of the ticks before a resume."""

    def on_tick(self, records: Sequence[TickRecord]) -> None:
        """Called after every tick, with one record per member."""

    def on_message(self, line: str) -> None:
        """Called with a message for the user."""


class FunctionWatcher(Watcher):
    """Calls a function after every tick: with the record, or with the records of all members."""

    def __init__(self, function: Callable[[Any], object], *, several: bool) -> None:
        self._function = function
        self._several = several

    def on_tick(self, records: Sequence[TickRecord]) -> None:
        self._function(list(records) if self._several else records[0])


def as_watcher(given: Any, *, several: bool) -> Watcher:
    """Return a watcher: the given one, one that calls the given function, or for None one that does nothing."""
    if given is None:
        return Watcher()
    if isinstance(given, Watcher):
        return given
    if callable(given) and not isinstance(given, type):
        return FunctionWatcher(given, several=several)
    raise ValueError(f"`watcher` must be a function, or an instance of a subclass of `ot.Watcher`; got {given!r}.")


COUNTS = ("tick", "num_steps", "num_updates", "num_episodes")
LISTS = ("off_policy_by_age", "events")
OWN_RECORDS = ("actors",)
"""Fields that only some runs have. They are left out where they are None, and of the results files of sweeps."""
NOT_FINITE = "not finite"
"""Marks the events of an agent that has diverged."""


def divergence(records: Iterable[TickRecord]) -> str | None:
    """Return when and how a run diverged; None if it did not.

    >>> calm = TickRecord(1, 64, 16, 2, 0.5, 9.0, 1.0, 1e-3, *[0.25] * 7, (0.5, 0.75))
    >>> divergence([calm, calm._replace(num_steps=1_280, events=("Q is not finite",))])
    'by step 1,280 Q is not finite'
    """
    for record in records:
        for event in record.events:
            if NOT_FINITE in event:
                return f"by step {record.num_steps:,} {event}"
    return None


# -- rows of JSON --------------------------------------------------------------------------------------------


def to_row(record: TickRecord) -> dict[str, Any]:
    """Return a record as JSON values: nan becomes None, and infinities the strings "inf" and "-inf".

    >>> row = to_row(TickRecord(0, 0, 0, 0, math.nan, math.nan, 1.0, 1e-3, *[math.nan] * 7, (0.5, math.nan)))
    >>> row["epsilon"], row["loss"], row["off_policy_by_age"], row["evaluation"]
    (1.0, None, [0.5, None], None)
    """
    row: dict[str, Any] = {}
    for name, value in record._asdict().items():
        if name in OWN_RECORDS:
            if value is not None:
                row[name] = actor_records.to_json(value)
        elif name in COUNTS:
            row[name] = int(value)
        elif name == "events":
            row[name] = [str(event) for event in value]
        elif name == "off_policy_by_age":
            row[name] = [_to_json(number) for number in value]
        else:
            row[name] = None if value is None else _to_json(value)
    return row


def from_row(row: Mapping[str, Any]) -> TickRecord:
    """Return the record that `to_row` was given; unknown fields, of later versions, are ignored.

    >>> from_row(to_row(TickRecord(1, 64, 16, 2, 0.5, 9.0, 1.0, 1e-3, *[0.25] * 7, (0.5, 0.75)))).off_policy_by_age
    (0.5, 0.75)
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"a row of progress must be an object; got {row!r}.")
    values: dict[str, Any] = {}
    for name in TickRecord._fields:
        if name in OWN_RECORDS:
            if row.get(name) is not None:
                values[name] = actor_records.from_json(row[name])
            continue
        if name not in row:
            raise ValueError(f"a row of progress must have `{name}`; got {', '.join(map(str, row))}.")
        value = row[name]
        if name in LISTS and not isinstance(value, list | tuple):
            raise ValueError(f"`{name}` of a row of progress must be a list; got {value!r}.")
        if name in COUNTS:
            values[name] = _count(name, value)
        elif name == "events":
            values[name] = tuple(map(str, value))
        elif name == "off_policy_by_age":
            values[name] = tuple(_from_json(name, number) for number in value)
        elif name == "evaluation" and value is None:
            values[name] = None
        else:
            values[name] = _from_json(name, value)
    return TickRecord(**values)


def _to_json(value: Any) -> float | str | None:
    number = float(value)
    if math.isfinite(number):
        return number
    return None if math.isnan(number) else str(number)


def _from_json(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in ("inf", "-inf")):
        raise ValueError(f"`{name}` of a row of progress must be a number; got {value!r}.")
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{name}` of a row of progress must be a whole number; got {value!r}.")
    return value


# -- progress.jsonl ------------------------------------------------------------------------------------------


def append(path: str | Path, record: TickRecord) -> None:
    """Append a line, unbuffered, so that readers see it at once."""
    disk.append(Path(path), _line(record))


def read(path: str | Path) -> list[TickRecord]:
    """Return the records of all complete lines; a last line without an end is ignored."""
    *lines, _ = disk.read(Path(path)).split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(from_row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} of {path} is not a record of a tick: {error}") from None
    return records


def rewrite(path: str | Path, records: Iterable[TickRecord]) -> None:
    """Replace the file by these lines, atomically. A resumed run drops the lines after its checkpoint this way."""
    disk.write(Path(path), (_line(record) for record in records))


def _line(record: TickRecord) -> bytes:
    return json.dumps(to_row(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"


# -- TensorBoard ---------------------------------------------------------------------------------------------

TAGS = {
    "episode/return": ("episode_return", "Mean raw return of the episodes that ended since the previous point."),
    "episode/length": ("episode_length", "Mean number of steps of these episodes."),
    "episode/count": ("num_episodes", "Number of episodes that ended since the previous point."),
    "episode/evaluation": ("evaluation", "Mean return of evaluation episodes."),
    "trace/mean_c": ("c", "Mean trace coefficient: the share of a later TD error that passes one step."),
    "trace/cut": ("cut", "Share of steps with a coefficient under 0.05."),
    "trace/effective_length": ("effective_length", "TD errors that reach the start of a window; 1 is one-step."),
    "trace/off_policy": ("off_policy", "‖π − μ‖₁ of replayed steps, from 0 (on-policy) to 2."),
    "learner/loss": ("loss", "Mean |ΔQ| before the clamp."),
    "learner/q": ("q", "Mean Q(x, a) of replayed steps."),
    "learner/gradient": ("gradient", "Norm of the gradient, before it is scaled down."),
    "learner/updates": ("num_updates", "Updates of the network so far."),
    "schedule/epsilon": ("epsilon", "Share of random actions."),
    "schedule/step_size": ("step_size", "Step size of the optimiser."),
}
"""TensorBoard tags, each with its field of `TickRecord` and the text behind the chart's ⓘ."""

ACTOR_TAGS = {
    "actors/staleness": "Mean number of updates by others between the copy of the parameters and the update.",
    "actors/lowest_epsilon": "The lowest ε of an actor.",
    "actors/highest_epsilon": "The highest ε of an actor.",
    "actors/switches": "Changes of all actors to another ε schedule so far.",
}
"""Tags of the asynchronous runtime."""

BY_AGE = "trace/off_policy_by_age"
SPEED = "speed/steps_per_second"


def import_tensorboard() -> tuple[Any, Any, Any, Any]:
    """Return the parts of tensorboardX that write texts, files, events and summaries."""
    try:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2
    except ImportError as missing:
        raise ValueError(f"TensorBoard events need `{missing.name}`: pip install 'offtrace[track]'") from None
    return summary.text, EventsWriter, event_pb2, summary_pb2


class TensorBoardWriter:
    """Writes the TensorBoard events of one run to a folder, by environment steps.

    A tick is on disk when `write` returns. A resumed run gives `resumed_at`, the steps of the last
    record that it keeps, and TensorBoard drops later points.
    """

    def __init__(self, folder: str | Path, *, resumed_at: int | None = None) -> None:
        self._text, writer, self._events, self._summaries = import_tensorboard()
        folder = Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        # The writer names its file by the second and replaces a file of that name: a number keeps the old one.
        self._writer = writer(str(folder / "events"), f".{len(list(folder.glob('events.out.tfevents.*')))}")
        self._closed = False
        if resumed_at is not None:
            log = self._events.SessionLog
            self._write(resumed_at + 1, session_log=log(status=log.START))

    def write(self, record: TickRecord, steps_per_second: float | None = None) -> None:
        """Write one record; values that are nan or None give no point."""
        values = {tag: (getattr(record, field), text) for tag, (field, text) in TAGS.items()}
        shares = record.off_policy_by_age
        for place, value in enumerate(shares):
            text = f"‖π − μ‖₁ of part {place + 1} of the memory, newest first."
            values[f"{BY_AGE}/{age(place, len(shares))}"] = (value, text)
        if record.actors is not None:
            own = (
                record.actors.staleness,
                min(record.actors.epsilon),
                max(record.actors.epsilon),
                sum(record.actors.num_switches),
            )
            values |= {tag: (value, text) for (tag, text), value in zip(ACTOR_TAGS.items(), own, strict=True)}
        values[SPEED] = (steps_per_second, "Environment steps of all actors per second.")
        scalars = [
            self._summaries.Summary.Value(
                tag=tag,
                simple_value=value,
                metadata=self._summaries.SummaryMetadata(summary_description=text),
            )
            for tag, (value, text) in values.items()
            if value is not None and not math.isnan(value)
        ]
        self._write(record.num_steps, summary=self._summaries.Summary(value=scalars))
        if record.events:
            self._write(record.num_steps, summary=self._text("events", "\n\n".join(record.events)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, step: int, **what: Any) -> None:
        self._writer.write_event(self._events.Event(wall_time=time.time(), step=step, **what))


def age(place: int, parts: int) -> str:
    """Return the name of a part of the memory, counted from the newest.

    >>> [age(place, 5) for place in range(5)]
    ['newest', '2_of_5', '3_of_5', '4_of_5', 'oldest']
    """
    if place == 0:
        return "newest"
    if place == parts - 1:
        return "oldest"
    return f"{place + 1}_of_{parts}"
