"""A run on disk.

run/
  spec.json          what it is, and what it was made with, to be read by people
  progress.jsonl     a report a tick; of a population progress-0.jsonl, progress-1.jsonl, …
  checkpoints/       the last ones, each with everything that an exact resume needs
  events.out.…       for TensorBoard, if asked for
  result.json        the evaluation at the end; once it is there, the run is done

Every checkpoint and the result have the specs inside, and a checksum. A resumed run goes by those: editing spec.json
or progress.jsonl changes nothing.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from offtrace.agent import checkpoints, disk, telemetry
from offtrace.agent.spec import Plan, differences, from_json, to_json
from offtrace.agent.telemetry import Report


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    spec: Plan
    reports: tuple[Report, ...]
    returns: tuple[float, ...]
    """Of the evaluation episodes at the end, raw; empty if the run was stopped before."""
    num_unfinished: int
    """Evaluation episodes that were cut off; their returns count as they stood."""
    folder: Path | None

    @property
    def num_steps(self) -> int:
        """Environment steps that it has come to."""
        return self.reports[-1].num_steps if self.reports else 0

    @property
    def finished(self) -> bool:
        return bool(self.returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else math.nan


TICK = 10**6
"""Checkpoints are numbered by ticks, in millions; between them by what has been done of the next tick."""
RESULT = "offtrace result"


class Saved(NamedTuple):
    """What a folder says of its run."""

    specs: tuple[Plan, ...]
    made_with: dict[str, Any]
    history: list[list[Report]]
    """Ticks, and in each the report of every member."""


class Folder:
    """Everything that a run leaves on disk, for one process at a time."""

    def __init__(
        self,
        path: Path,
        specs: Sequence[Plan],
        *,
        resume: bool,
        tensorboard: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.path, self.specs = path, tuple(specs)
        self.history: list[list[Report]] = []
        self.arrays: dict[str, np.ndarray] | None = None
        """Of the checkpoint that is resumed."""
        self._resume, self._tensorboard, self._say = resume, tensorboard, say
        self._changed = False
        self._events: list[telemetry.Events] = []
        self._clock = (time.monotonic(), 0)
        if tensorboard:
            telemetry.tensorboard()  # before the folder is made
        there = (path / "spec.json").exists()
        if there and not resume:
            done = (path / "result.json").exists()
            raise ValueError(
                f"`output` {str(path)!r} holds a run that is {'finished' if done else 'not finished'} already. "
                "Resume it (`--resume`), or choose another folder."
            )
        if resume and not there:
            raise ValueError(f"`output` {str(path)!r} holds no run to resume.")
        checkpoints.writable(path)
        self._lock = checkpoints.Lock(path)

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for events in self._events:
            events.close()
        self._lock.__exit__(*error)

    def begin(self, *, allow_changes: bool = False) -> list[Result] | None:
        """Reads what is there; the results, if the run is done."""
        if self._resume:
            results = self._load(allow_changes)
            if results is not None:
                return results
        else:
            disk.write_json(self.path / "spec.json", self._record())
        for i in range(len(self.specs)):
            telemetry.rewrite(self._progress(i), [reports[i] for reports in self.history])
        if self._tensorboard:
            at = self.history[-1][0].num_steps if self.history else None
            self._events = [telemetry.Events(place, resumed_at=at) for place in self._event_folders()]
        return None

    def note(self, reports: Sequence[Report]) -> None:
        """A tick, before it is saved."""
        now, (then, steps) = time.monotonic(), self._clock
        speed = (reports[0].num_steps - steps) * len(reports) / max(now - then, 1e-9)
        self._clock = (now, reports[0].num_steps)
        for i, report in enumerate(reports):
            telemetry.append(self._progress(i), report)
            if self._events:
                self._events[i].write(report, speed)

    def save(self, arrays: dict[str, np.ndarray], under_way: int = 0) -> None:
        """A checkpoint of the last tick that was noted, and of what was done of the next one."""
        rows = [[telemetry.to_row(report) for report in reports] for reports in self.history]
        number = (len(self.history) - 1) * TICK + under_way
        checkpoints.save(self.path, arrays, {"reports": rows, **self._record()}, number=number)
        if self._changed:  # now that the checkpoint has been found to fit
            disk.write_json(self.path / "spec.json", self._record())
            self._changed = False

    def finish(self, results: Sequence[Result]) -> None:
        members = [{"returns": list(result.returns), "num_unfinished": result.num_unfinished} for result in results]
        content = {"format": RESULT, **self._record(), "num_steps": results[0].num_steps, "members": members}
        disk.write(self.path / "result.json", [disk.sealed(content)])

    def _progress(self, member: int) -> Path:
        return self.path / ("progress.jsonl" if len(self.specs) == 1 else f"progress-{member}.jsonl")

    def _event_folders(self) -> list[Path]:
        """The run's own, or one for each member."""
        if len(self.specs) == 1:
            return [self.path]
        places = [self.path / str(i) for i in range(len(self.specs))]
        for place in places:
            if place.is_symlink():
                raise ValueError(f"{str(place)!r} must not be a link: nothing outside of `output` is touched.")
        return places

    def _record(self) -> dict[str, Any]:
        import jax

        made_with = {"offtrace": version("offtrace"), "jax": jax.__version__, "device": jax.devices()[0].platform}
        return {"made_with": made_with, "specs": [to_json(spec) for spec in self.specs]}

    def _load(self, allow_changes: bool) -> list[Result] | None:
        """The results of a run that is done; else the checkpoint to go on with, if there is one."""
        try:
            found = checkpoints.load(self.path, warn=self._say)
        except FileNotFoundError:
            found = None
        stored = None
        if (self.path / "result.json").exists():
            stored = self._stored_result(must=found is None)
        if found is not None:
            saved = read_record(found)
        elif stored is not None:
            saved = _saved(stored)
        else:
            saved = _saved(_read_json(self.path / "spec.json"), self.path / "spec.json")
        self._refuse_changes(saved, allow_changes)
        if stored is not None and _saved(stored).specs == saved.specs:
            return self._results(stored, saved)
        self.history = saved.history
        if found is None:
            self._say("It was stopped before its first checkpoint, and starts from the beginning.")
        else:
            self.arrays = found.arrays
        return None

    def _stored_result(self, *, must: bool) -> dict[str, Any] | None:
        """The content of result.json. One that was changed is of no use: the last checkpoint is evaluated again."""
        path = self.path / "result.json"
        try:
            stored = disk.unsealed(disk.read(path))
            if stored["format"] != RESULT:
                raise ValueError("is not the result of a run")
            returns = [value for one in stored["members"] for value in one["returns"]]
            counts = [stored["num_steps"], *(one["num_unfinished"] for one in stored["members"])]
            if not (returns and all(type(x) is float and math.isfinite(x) for x in returns)):
                raise ValueError("has returns that are not finite numbers")
            if not all(type(x) is int and x >= 0 for x in counts) or len(stored["members"]) != len(stored["specs"]):
                raise ValueError("has counts that cannot be")
            _saved(stored)
        except (ValueError, KeyError, TypeError) as error:
            if must:
                raise ValueError(
                    f"{str(path)!r} is not as it was written, and there is no checkpoint to evaluate again: "
                    f"{_missing(error)}. Remove it to train the run anew."
                ) from error
            self._say(f"{str(path)!r} is not as it was written ({_missing(error)}): its run is evaluated again.")
            return None
        return stored

    def _results(self, stored: Mapping[str, Any], saved: Saved) -> list[Result]:
        results = []
        for i, (spec, one) in enumerate(zip(saved.specs, stored["members"], strict=True)):
            reports = tuple(tick[i] for tick in saved.history) or self._noted(i)
            results.append(Result(spec, reports, tuple(one["returns"]), one["num_unfinished"], self.path))
        return results

    def _noted(self, member: int) -> tuple[Report, ...]:
        """The progress of a run whose checkpoints were removed, as far as it can be read."""
        try:
            return tuple(telemetry.read(self._progress(member)))
        except (ValueError, OSError):
            return ()

    def _refuse_changes(self, saved: Saved, allow_changes: bool) -> None:
        """Raise if the saved run was started with other specs or versions, unless changes are allowed."""
        if len(saved.specs) != len(self.specs):
            raise ValueError(f"`spec` must be {len(saved.specs)}, as in {self.path}; got {len(self.specs)}.")
        changes = []
        for old, new in zip(saved.specs, self.specs, strict=True):
            changes += [f"{name} was {a!r} and is {b!r}" for name, (a, b) in differences(old, new).items()]
        for name, value in self._record()["made_with"].items():
            if saved.made_with.get(name) != value:
                changes.append(f"{name} was {saved.made_with.get(name)} and is {value}")
        if changes and not allow_changes:
            raise ValueError(
                f"`output` {str(self.path)!r} was begun otherwise: {'; '.join(dict.fromkeys(changes))}. Resume it as "
                "it was, or pass `--allow-changes` (in Python `allow_changes=True`)."
            )
        if changes:
            self._say(f"It goes on otherwise than it was begun: {'; '.join(dict.fromkeys(changes))}.")
        self._changed = bool(changes)


# -- reading -------------------------------------------------------------------------------------------------


def read_specs(path: Path) -> tuple[Plan, ...]:
    """Of the run in a folder: as its newest checkpoint has them, or its spec.json if there is none to be read."""
    file = path / "spec.json"
    if not file.is_file():
        raise ValueError(f"{str(path)!r} holds no run: there is no spec.json in it.")
    try:
        return read_record(checkpoints.load(path, warn=lambda _: None, arrays=False)).specs
    except (FileNotFoundError, checkpoints.Damaged):
        return _saved(_read_json(file), file).specs


def read_record(checkpoint: checkpoints.Checkpoint) -> Saved:
    """What a checkpoint says of its run, if it can be of one."""
    place = checkpoint.path / checkpoints.MANIFEST
    saved = _saved(checkpoint.record, place)
    try:
        history = [[telemetry.from_row(row) for row in tick] for tick in checkpoint.record["reports"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(place)!r} has no reports of this version: {_missing(error)}") from error
    if [[report.tick for report in tick] for tick in history] != [
        [number] * len(saved.specs) for number in range(checkpoint.number // TICK + 1)
    ]:
        raise ValueError(f"{str(place)!r} must have one report of every tick and member.")
    return saved._replace(history=history)


def _saved(record: Any, path: Path | str = "result.json") -> Saved:
    try:
        specs = tuple(from_json(one) for one in record["specs"])
        if not specs:
            raise ValueError("it has none")
        return Saved(specs, dict(record["made_with"]), [])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is no spec of this version: {_missing(error)}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(disk.read(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no spec of this version: {error}") from error


def _missing(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
