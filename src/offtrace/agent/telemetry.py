"""What a run says about itself: one `Report` per tick, the file `progress.jsonl`, and TensorBoard events.

A report is the same on every repetition of a run, so it holds no times; what a clock says is added by whoever shows
it. `progress.jsonl` has one report a line, written whole or not at all but for the last one.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from offtrace.agent import disk


class Report(NamedTuple):
    """One tick of one run, in plain numbers. Tick 0 is the untrained agent: what an update measures is nan there."""

    tick: int
    """Its number; every tick but 0 is as many environment steps as the one before, the last perhaps fewer."""
    num_steps: int
    """Environment steps since the run began, of all actors together."""
    num_updates: int
    """Updates of the network since the run began."""
    num_episodes: int
    """Episodes that ended in this tick, of all actors."""
    episode_return: float
    """Mean sum of rewards of those episodes, raw: neither discounted nor clamped. nan where none ended."""
    episode_length: float
    """Mean number of steps of those episodes. nan where none ended."""
    epsilon: float
    """ε of the exploration at the end of the tick: the share of actions that are drawn at random."""
    step_size: float
    """Of the optimiser, at the end of the tick."""
    loss: float
    """Mean |ΔQ| before the clamp: how far the values are from their targets."""
    q: float
    """Mean Q(x_t, a_t) of the steps that were replayed. Far beyond any possible return it has diverged."""
    c: float
    """Mean trace coefficient: how much of a later TD error one step lets pass. 1 keeps all of it, 0 none."""
    cut: float
    """Share of steps whose coefficient is under 0.05: what comes after them is lost."""
    effective_length: float
    """Mean of Σ_s Π c from the start of a window: how many TD errors reach it. 1 is one-step learning."""
    off_policy: float
    """‖π − μ‖₁ of the steps that were replayed: 0 where memory was made by the policy it teaches, at most 2."""
    gradient: float
    """Norm of the gradient, before it is scaled down."""
    off_policy_by_age: tuple[float, ...]
    """‖π − μ‖₁ for fifths of the memory by age, newest first. nan where a fifth is empty."""
    evaluation: float | None = None
    """Mean return of evaluation episodes. None where this tick had none."""
    events: tuple[str, ...] = ()
    """What a person should know, as sentences: "Q reached 1234, beyond any possible return of 100"."""


class Watcher:
    """What a run tells, as it goes; every method may be left as it is."""

    def begins(self, spec: Any, total_steps: int, reports: Sequence[Report]) -> None:
        """With the reports of an earlier part, if it is resumed."""

    def ticks(self, reports: Sequence[Report]) -> None:
        """One for each member."""

    def says(self, line: str) -> None:
        """Something that a person should know."""


COUNTS = ("tick", "num_steps", "num_updates", "num_episodes")
LISTS = ("off_policy_by_age", "events")
NOT_FINITE = "not finite"
"""In the events of an agent that has diverged."""


def divergence(reports: Iterable[Report]) -> str | None:
    """When a run diverged, and how it showed; None if it did not.

    >>> calm = Report(1, 64, 16, 2, 0.5, 9.0, 1.0, 1e-3, *[0.25] * 7, (0.5, 0.75))
    >>> divergence([calm, calm._replace(num_steps=1_280, events=("Q is not finite",))])
    'by step 1,280 Q is not finite'
    """
    for report in reports:
        for event in report.events:
            if NOT_FINITE in event:
                return f"by step {report.num_steps:,} {event}"
    return None


# -- rows of JSON --------------------------------------------------------------------------------------------


def to_row(report: Report) -> dict[str, Any]:
    """For JSON, which has no word for some numbers: nan becomes None, an infinity the text "inf" or "-inf".

    >>> row = to_row(Report(0, 0, 0, 0, math.nan, math.nan, 1.0, 1e-3, *[math.nan] * 7, (0.5, math.nan)))
    >>> row["epsilon"], row["loss"], row["off_policy_by_age"], row["evaluation"]
    (1.0, None, [0.5, None], None)
    """
    row: dict[str, Any] = {}
    for name, value in report._asdict().items():
        if name in COUNTS:
            row[name] = int(value)
        elif name == "events":
            row[name] = [str(event) for event in value]
        elif name == "off_policy_by_age":
            row[name] = [_to_json(number) for number in value]
        else:
            row[name] = None if value is None else _to_json(value)
    return row


def from_row(row: Mapping[str, Any]) -> Report:
    """The report that `to_row` was given; fields that a later version may have added are passed over.

    >>> from_row(to_row(Report(1, 64, 16, 2, 0.5, 9.0, 1.0, 1e-3, *[0.25] * 7, (0.5, 0.75)))).off_policy_by_age
    (0.5, 0.75)
    """
    if not isinstance(row, Mapping):
        raise ValueError(f"a row of progress must be an object; got {row!r}.")
    values: dict[str, Any] = {}
    for name in Report._fields:
        if name not in row:
            raise ValueError(f"a row of progress must have `{name}`; it has {', '.join(map(str, row))}.")
        value = row[name]
        if name in LISTS and not isinstance(value, list | tuple):
            raise ValueError(f"`{name}` of a row of progress must be a list; got {value!r}.")
        if name in COUNTS:
            values[name] = _count(name, value)
        elif name == "events":
            values[name] = tuple(map(str, value))
        elif name == "off_policy_by_age":
            values[name] = tuple(_from_json(name, number) for number in value)
        else:
            values[name] = None if name == "evaluation" and value is None else _from_json(name, value)
    return Report(**values)


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


def append(path: str | Path, report: Report) -> None:
    """One more line, in one write, which nothing holds back: a reader of the file sees it at once."""
    disk.append(Path(path), _line(report))


def read(path: str | Path) -> list[Report]:
    """Every whole line. One that was being written when its process ended has no end, and is passed over."""
    *lines, _ = disk.read(Path(path)).split(b"\n")
    reports = []
    for number, line in enumerate(lines, start=1):
        try:
            reports.append(from_row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} of {path} is no report: {error}") from None
    return reports


def rewrite(path: str | Path, reports: Iterable[Report]) -> None:
    """These lines instead of what was there; whoever reads the file sees all of the old ones or all of the new.

    A resumed run drops what came after its checkpoint so.
    """
    disk.write(Path(path), (_line(report) for report in reports))


def _line(report: Report) -> bytes:
    return json.dumps(to_row(report), allow_nan=False, separators=(",", ":")).encode() + b"\n"


# -- TensorBoard ---------------------------------------------------------------------------------------------

TAGS = {
    "episode/return": ("episode_return", "Mean raw return of the episodes that ended since the point before."),
    "episode/length": ("episode_length", "Mean number of steps of those episodes."),
    "episode/count": ("num_episodes", "How many episodes ended since the point before."),
    "episode/evaluation": ("evaluation", "Mean return of evaluation episodes."),
    "trace/mean_c": ("c", "Mean trace coefficient: 1 lets all of a later TD error pass, 0 none of it."),
    "trace/cut": ("cut", "Share of steps whose coefficient is under 0.05."),
    "trace/effective_length": ("effective_length", "How many TD errors reach the start of a window; 1 is one-step."),
    "trace/off_policy": ("off_policy", "‖π − μ‖₁ of the steps that were replayed; 0 is on-policy, 2 the most."),
    "learner/loss": ("loss", "Mean |ΔQ| before the clamp."),
    "learner/q": ("q", "Mean Q(x, a) of the steps that were replayed."),
    "learner/gradient": ("gradient", "Norm of the gradient, before it is scaled down."),
    "learner/updates": ("num_updates", "Updates of the network since the run began."),
    "schedule/epsilon": ("epsilon", "Share of actions that are drawn at random."),
    "schedule/step_size": ("step_size", "Of the optimiser."),
}
"""What TensorBoard calls a field of `Report`, and what it says behind the chart's ⓘ."""

BY_AGE = "trace/off_policy_by_age"
SPEED = "speed/steps_per_second"


def tensorboard() -> tuple[Any, Any, Any, Any]:
    """What events are written with: their texts, writer, events and summaries; refused where it is not installed."""
    try:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2
    except ImportError as missing:
        raise ValueError(f"TensorBoard events need `{missing.name}`: pip install 'offtrace[track]'") from None
    return summary.text, EventsWriter, event_pb2, summary_pb2


class Events:
    """TensorBoard events of one run, in a folder; the horizontal axis is environment steps.

    A tick is one record, on the disk when `write` returns. A run that goes on from a checkpoint says `resumed_at`,
    the steps of the last report that it keeps, and TensorBoard forgets the points after it.
    """

    def __init__(self, folder: str | Path, *, resumed_at: int | None = None) -> None:
        self._text, writer, self._events, self._summaries = tensorboard()
        folder = Path(folder).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        # The writer names its file after the second and replaces one of that name: a number keeps the old ones.
        self._writer = writer(str(folder / "events"), f".{len(list(folder.glob('events.out.tfevents.*')))}")
        self._closed = False
        if resumed_at is not None:
            log = self._events.SessionLog
            self._write(resumed_at + 1, session_log=log(status=log.START))

    def write(self, report: Report, steps_per_second: float | None = None) -> None:
        """One report; what is nan or None has no point."""
        values = {tag: (getattr(report, field), text) for tag, (field, text) in TAGS.items()}
        shares = report.off_policy_by_age
        for place, value in enumerate(shares):
            values[f"{BY_AGE}/{age(place, len(shares))}"] = value, f"‖π − μ‖₁; part {place + 1} of memory, from new."
        values[SPEED] = steps_per_second, "Environment steps of all actors for each second of the clock."
        scalars = [
            self._summaries.Summary.Value(
                tag=tag,
                simple_value=value,
                metadata=self._summaries.SummaryMetadata(summary_description=text),
            )
            for tag, (value, text) in values.items()
            if value is not None and not math.isnan(value)
        ]
        self._write(report.num_steps, summary=self._summaries.Summary(value=scalars))
        if report.events:
            self._write(report.num_steps, summary=self._text("events", "\n\n".join(report.events)))
        self._writer.flush()

    def close(self) -> None:
        """A second time does nothing."""
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
    """What a part of the memory is called, counted from the newest.

    >>> [age(place, 5) for place in range(5)]
    ['newest', '2_of_5', '3_of_5', '4_of_5', 'oldest']
    """
    return "newest" if place == 0 else "oldest" if place == parts - 1 else f"{place + 1}_of_{parts}"
