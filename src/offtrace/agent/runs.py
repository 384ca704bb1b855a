"""A run on disk.

run/
  spec.json          what it is, and what it was made with
  progress.jsonl     a report a tick; of a population progress-0.jsonl, progress-1.jsonl, …
  checkpoints/       the last ones, each with everything that an exact resume needs
  events.out.…       for TensorBoard, if asked for
  result.json        the evaluation at the end; once it is there, the run is done
"""

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np

from offtrace.agent import checkpoints, telemetry
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
    def finished(self) -> bool:
        return bool(self.returns)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns)) if self.returns else math.nan


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
            results = self._load(self._check(allow_changes))
            if results is not None:
                return results
        else:
            _write_json(self.path / "spec.json", self._record())
        for i in range(len(self.specs)):
            telemetry.rewrite(self._progress(i), [reports[i] for reports in self.history])
        if self._tensorboard:
            at = self.history[-1][0].num_steps if self.history else None
            one = len(self.specs) == 1
            places = [self.path] if one else [self.path / str(i) for i in range(len(self.specs))]
            self._events = [telemetry.Events(place, resumed_at=at) for place in places]
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

    def save(self, arrays: dict[str, np.ndarray]) -> None:
        """A checkpoint of the last tick that was noted."""
        rows = [[telemetry.to_row(report) for report in reports] for reports in self.history]
        record = {"reports": rows, "specs": [to_json(spec) for spec in self.specs]}
        if self._changed:  # now that the checkpoint has been found to fit
            _write_json(self.path / "spec.json", self._record())
            self._changed = False
        checkpoints.save(self.path, arrays, record, number=len(self.history) - 1)

    def finish(self, results: Sequence[Result]) -> None:
        rows = [
            {"mean_return": r.mean_return, "returns": list(r.returns), "num_unfinished": r.num_unfinished}
            for r in results
        ]
        _write_json(self.path / "result.json", rows)

    def _progress(self, member: int) -> Path:
        return self.path / ("progress.jsonl" if len(self.specs) == 1 else f"progress-{member}.jsonl")

    def _record(self) -> dict[str, Any]:
        import jax

        made_with = {"offtrace": version("offtrace"), "jax": jax.__version__, "device": jax.devices()[0].platform}
        return {"made_with": made_with, "specs": [to_json(spec) for spec in self.specs]}

    def _check(self, allow_changes: bool) -> list[Plan]:
        """The specs that are there (fault matrix, row 34)."""
        specs, made_with = read_specs(self.path)
        if len(specs) != len(self.specs):
            raise ValueError(f"`spec` must be {len(specs)}, as in {self.path}; got {len(self.specs)}.")
        changes = []
        for old, new in zip(specs, self.specs, strict=True):
            changes += [f"{name} was {a!r} and is {b!r}" for name, (a, b) in differences(old, new).items()]
        for name, value in self._record()["made_with"].items():
            if made_with.get(name) != value:
                changes.append(f"{name} was {made_with.get(name)} and is {value}")
        if changes and not allow_changes:
            raise ValueError(
                f"`output` {str(self.path)!r} was begun otherwise: {'; '.join(dict.fromkeys(changes))}. Resume it as "
                "it was, or pass `--allow-changes` (in Python `allow_changes=True`)."
            )
        if changes:
            self._say(f"It goes on otherwise than it was begun: {'; '.join(dict.fromkeys(changes))}.")
        self._changed = bool(changes)
        return specs

    def _load(self, specs: Sequence[Plan]) -> list[Result] | None:
        try:
            found = checkpoints.load(self.path, warn=self._say)
        except FileNotFoundError:
            self._say("It was stopped before its first checkpoint, and starts from the beginning.")
            return None
        rows = found.record["reports"]
        self.history = [[telemetry.from_row(row) for row in tick] for tick in rows]
        self.arrays = found.arrays
        path = self.path / "result.json"
        if not path.exists():
            return None
        results = []
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            for i, (spec, one) in enumerate(zip(specs, stored, strict=True)):
                reports, returns = tuple(tick[i] for tick in self.history), tuple(map(float, one["returns"]))
                results.append(Result(spec, reports, returns, int(one["num_unfinished"]), self.path))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{str(path)!r} is no result of this version: {_missing(error)}") from error
        return results


def read_specs(path: Path) -> tuple[list[Plan], dict[str, Any]]:
    """Of the run in a folder, with what it was made with."""
    file = path / "spec.json"
    if not file.is_file():
        raise ValueError(f"{str(path)!r} holds no run: there is no spec.json in it.")
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        return [from_json(one) for one in there["specs"]], dict(there["made_with"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{str(file)!r} is no spec of this version: {_missing(error)}") from error


def _missing(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.writing")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
