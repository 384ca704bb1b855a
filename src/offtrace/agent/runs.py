"""The folder of a run.

run/
  spec.json          the spec, the protocol and the versions it was started with, for people
  progress.jsonl     a record per tick; in a population progress-0.jsonl, progress-1.jsonl, …
  checkpoints/       the newest ones, each with everything that an exact resume needs
  events.out.…       TensorBoard events, on request
  result.json        the final evaluation; a run with this file is finished

Checkpoints and the result contain the specs, with a checksum. A resumed run uses those: editing
spec.json or progress.jsonl changes nothing.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from offtrace.agent import checkpoints, disk, telemetry
from offtrace.agent.spec import Plan, differences, from_json, to_json
from offtrace.agent.telemetry import TickRecord
from offtrace.environments import protocol


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    spec: Plan
    history: tuple[TickRecord, ...]
    """One record per tick."""
    returns: tuple[float, ...]
    """Raw returns of the final evaluation episodes; empty if the run was stopped before."""
    num_unfinished: int
    """Evaluation episodes that were cut off; their returns count as far as they got."""
    folder: Path | None
    parameters: Mapping[str, np.ndarray] | None = field(default=None, repr=False, compare=False)
    """Parameters of the trained network by name. None if the run was stopped, or finished by an earlier call."""

    @property
    def num_steps(self) -> int:
        """Environment steps so far."""
        return self.history[-1].num_steps if self.history else 0

    @property
    def finished(self) -> bool:
        """True if the run has its final evaluation."""
        return bool(self.returns)

    @property
    def mean_return(self) -> float:
        """Mean return of the final evaluation; nan if the run was stopped before."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def policy(self) -> Any:
        """The trained agent, a `Policy`: `result.policy.act(observation)`."""
        from offtrace.agent.policy import policy_of

        return policy_of(self)


TICK = 10**6
"""The number of a checkpoint is TICK times its tick, plus a count of what is done of the next tick."""
RESULT = "offtrace result"


class SavedRun(NamedTuple):
    """The description of a run in a checkpoint or a result."""

    specs: tuple[Plan, ...]
    made_with: dict[str, Any]
    """Versions and device."""
    history: list[list[TickRecord]]
    """Per tick, a record per member."""


class RunFolder:
    """The files of a run; a context manager that locks the folder for one process."""

    def __init__(
        self,
        path: Path,
        specs: Sequence[Plan],
        *,
        resume: bool,
        tensorboard: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.path = path
        self.specs = tuple(specs)
        self.history: list[list[TickRecord]] = []
        self.arrays: dict[str, np.ndarray] | None = None
        """The arrays of the checkpoint to resume from."""
        self.loaded_number = -1
        """The number of that checkpoint."""
        self.saves_after = -1
        """Checkpoints up to this number are not saved: there is another one already, of the run before its resume
        with new episodes."""
        self._resume = resume
        self._tensorboard = tensorboard
        self._say = say
        self._changed = False
        self._writers: list[telemetry.TensorBoardWriter] = []
        self._clock = (time.monotonic(), 0)
        """Time and steps of the last tick, for the speed in TensorBoard."""
        if tensorboard:
            telemetry.import_tensorboard()  # fails before the folder is made
        self._check_output()
        checkpoints.check_writable(path)
        self._lock = checkpoints.FolderLock(path)

    def _check_output(self) -> None:
        exists = (self.path / "spec.json").exists()
        if self._resume and not exists:
            raise ValueError(f"`output` must hold a run to resume; {str(self.path)!r} has no spec.json.")
        if exists and not self._resume:
            kind = "a finished" if (self.path / "result.json").exists() else "an unfinished"
            raise ValueError(
                f"`output` must be a new folder; {str(self.path)!r} holds {kind} run already. Resume it "
                "(`--resume`), or choose another folder."
            )

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for writer in self._writers:
            writer.close()
        self._lock.__exit__(*error)

    def begin(self, *, allow_changes: bool = False) -> list[Result] | None:
        """Start or resume the run; return its results if it is finished."""
        if self._resume:
            results = self._load(allow_changes)
            if results is not None:
                return results
        else:
            disk.write_json(self.path / "spec.json", self._record())
        for i in range(len(self.specs)):
            telemetry.rewrite(self._progress(i), [records[i] for records in self.history])
        if self._tensorboard:
            steps = self.history[-1][0].num_steps if self.history else None
            folders = self._event_folders()
            self._writers = [telemetry.TensorBoardWriter(folder, resumed_at=steps) for folder in folders]
        return None

    def write_tick(self, records: Sequence[TickRecord]) -> None:
        """Append the records of a tick, one per member, to progress.jsonl and TensorBoard."""
        then, steps = self._clock
        now = time.monotonic()
        speed = (records[0].num_steps - steps) * len(records) / max(now - then, 1e-9)
        self._clock = (now, records[0].num_steps)
        for i, record in enumerate(records):
            telemetry.append(self._progress(i), record)
            if self._writers:
                self._writers[i].write(record, speed)

    def save(self, arrays: dict[str, np.ndarray], num_done: int = 0) -> None:
        """Save a checkpoint after the last tick; `num_done` counts what is done of the next one."""
        rows = [[telemetry.to_row(record) for record in records] for records in self.history]
        number = (len(self.history) - 1) * TICK + num_done
        if number <= self.saves_after:
            return
        checkpoints.save(self.path, arrays, {"reports": rows, **self._record()}, number=number)
        if self._changed:  # only now: a checkpoint that does not fit the new spec has failed before
            disk.write_json(self.path / "spec.json", self._record())
            self._changed = False

    def finish(self, results: Sequence[Result]) -> None:
        """Write result.json."""
        members = [{"returns": list(result.returns), "num_unfinished": result.num_unfinished} for result in results]
        content = {"format": RESULT, **self._record(), "num_steps": results[0].num_steps, "members": members}
        disk.write(self.path / "result.json", [disk.sealed(content)])

    def _progress(self, member: int) -> Path:
        return self.path / ("progress.jsonl" if len(self.specs) == 1 else f"progress-{member}.jsonl")

    def _event_folders(self) -> list[Path]:
        """Return the folders of TensorBoard events: the run's own, or one per member."""
        if len(self.specs) == 1:
            return [self.path]
        folders = [self.path / str(i) for i in range(len(self.specs))]
        for folder in folders:
            if folder.is_symlink():
                raise ValueError(f"{str(folder)!r} must not be a link: files outside of `output` are never written.")
        return folders

    def _record(self) -> dict[str, Any]:
        import jax

        made_with = {"offtrace": version("offtrace"), "jax": jax.__version__, "device": jax.devices()[0].platform}
        return {
            "made_with": made_with,
            "specs": [to_json(spec) for spec in self.specs],
            "protocols": [protocol(spec.env, spec.options) for spec in self.specs],
        }

    def _load(self, allow_changes: bool) -> list[Result] | None:
        """Return the results of a finished run; else load the checkpoint to resume from, if there is one."""
        try:
            found = checkpoints.load(self.path, warn=self._say)
        except FileNotFoundError:
            found = None
        stored = None
        if (self.path / "result.json").exists():
            stored = self._stored_result(required=found is None)
        if found is not None:
            saved = read_record(found)
        elif stored is not None:
            saved = _saved_run(stored)
        else:
            saved = _saved_run(_read_json(self.path / "spec.json"), self.path / "spec.json")
        self._check_changes(saved, allow_changes)
        if stored is not None and _saved_run(stored).specs == saved.specs:
            return self._results(stored, saved)
        self.history = saved.history
        if found is None:
            self._say("The run was stopped before its first checkpoint. It starts from the beginning.")
        else:
            self.arrays = found.arrays
            self.loaded_number = found.number
        return None

    def _stored_result(self, *, required: bool) -> dict[str, Any] | None:
        """Return the content of result.json; None if it is damaged: the last checkpoint is evaluated again."""
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
                raise ValueError("has impossible counts")
            _saved_run(stored)
        except (ValueError, KeyError, TypeError) as error:
            if required:
                raise ValueError(
                    f"{str(path)!r} is damaged, and there is no checkpoint to evaluate again: {_reason(error)}. "
                    "Remove it to train the run anew."
                ) from error
            self._say(f"{str(path)!r} is damaged ({_reason(error)}). The run is evaluated again.")
            return None
        return stored

    def _results(self, stored: Mapping[str, Any], saved: SavedRun) -> list[Result]:
        results = []
        for i, (spec, one) in enumerate(zip(saved.specs, stored["members"], strict=True)):
            history = tuple(tick[i] for tick in saved.history) or self._read_progress(i)
            results.append(Result(spec, history, tuple(one["returns"]), one["num_unfinished"], self.path))
        return results

    def _read_progress(self, member: int) -> tuple[TickRecord, ...]:
        """Return the records in progress.jsonl, for a run whose checkpoints were removed; () if unreadable."""
        try:
            return tuple(telemetry.read(self._progress(member)))
        except (ValueError, OSError):
            return ()

    def _check_changes(self, saved: SavedRun, allow_changes: bool) -> None:
        """Check that the run is resumed with the specs and versions it was started with."""
        if len(saved.specs) != len(self.specs):
            raise ValueError(
                f"`spec` must have as many members as the saved run, {len(saved.specs)}; got {len(self.specs)}."
            )
        changes = []
        for old, new in zip(saved.specs, self.specs, strict=True):
            changes += [_change(name, a, b, new) for name, (a, b) in differences(old, new).items()]
        for name, value in self._record()["made_with"].items():
            if saved.made_with.get(name) != value:
                changes.append(f"{name} was {saved.made_with.get(name)} and is {value}")
        listed = "; ".join(dict.fromkeys(changes))
        if changes and not allow_changes:
            raise ValueError(
                f"`output` {str(self.path)!r} was started with different settings: {listed}. Resume it with the same "
                "ones, or pass `--allow-changes` (in Python `allow_changes=True`)."
            )
        if changes:
            self._say(f"The run continues with different settings: {listed}.")
        self._changed = bool(changes)


# -- reading -------------------------------------------------------------------------------------------------


def read_specs(path: Path) -> tuple[Plan, ...]:
    """Return the specs of the run in a folder: from its newest checkpoint, or else from its spec.json."""
    file = path / "spec.json"
    if not file.is_file():
        raise ValueError(f"{str(path)!r} is not the folder of a run: it has no spec.json.")
    try:
        return read_record(checkpoints.load(path, warn=lambda _: None, arrays=False)).specs
    except (FileNotFoundError, checkpoints.Damaged):
        return _saved_run(_read_json(file), file).specs


def read_record(checkpoint: checkpoints.Checkpoint) -> SavedRun:
    """Return the description of the run in a checkpoint."""
    place = checkpoint.path / checkpoints.MANIFEST
    saved = _saved_run(checkpoint.record, place)
    try:
        history = [[telemetry.from_row(row) for row in tick] for tick in checkpoint.record["reports"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(place)!r} has no records of this version: {_reason(error)}") from error
    found = [[record.tick for record in tick] for tick in history]
    expected = [[number] * len(saved.specs) for number in range(checkpoint.number // TICK + 1)]
    if found != expected:
        raise ValueError(f"{str(place)!r} must have one record per tick and member.")
    return saved._replace(history=history)


def _saved_run(record: Any, path: Path | str = "result.json") -> SavedRun:
    try:
        specs = tuple(from_json(one) for one in record["specs"])
        if not specs:
            raise ValueError("it has no specs")
        return SavedRun(specs, dict(record["made_with"]), [])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is not a spec of this version: {_reason(error)}") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(disk.read(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not a spec of this version: {error}") from error


def _change(name: str, before: Any, now: Any, spec: Plan) -> str:
    if name == "trace_source" and before and now:
        return f"the source of {spec.trace} has changed (its hash was {before} and is {now})"
    return f"{name} was {before!r} and is {now!r}"


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)
