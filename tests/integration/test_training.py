"""Runs from end to end: stopped, killed, damaged, wrong input, diverged.

Resumed runs are compared to the last bit with runs that were never interrupted.

Compiling dominates, so all runs of this module share a cache of compiled programs, also those in other processes, and
tests about files share their programs.
"""

import dataclasses
import errno
import functools
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import tyro

from offtrace.agent import checkpoints, disk, hints, memory, runs, telemetry, ticks, training
from offtrace.agent.policy import load_policy
from offtrace.agent.runs import TICK
from offtrace.agent.settings import check_shapes
from offtrace.agent.spec import Plan, TrainSpec, from_json, resolved
from offtrace.agent.synchronous import Synchronous
from offtrace.agent.telemetry import Watcher
from offtrace.agent.training import train
from offtrace.cli import main
from offtrace.cli.train import as_arguments
from offtrace.evaluation.target import as_target
from offtrace.experiments.members import trained_network

SMALL: dict[str, Any] = {
    "network": "mlp",
    "hidden_sizes": (16,),
    "num_actors": 4,
    "num_steps": 200,
    "fill": 40,
    "replay_size": 160,
    "tick_steps": 40,
    "num_windows": 4,
    "target_period": 8,
    "epsilon_steps": 100,
    "evaluation_ticks": 0,
    "evaluation_episodes": 5,
    "evaluation_steps": 100,
}
"""Tick 0, 40 steps that fill the memory, 4 ticks of 40 steps and 10 updates; the memory is full before the end."""
LAST = 5


def spec(env: str = "pocket/catch", trace: str = "retrace", **changes: Any) -> TrainSpec:
    window = {} if trace == "dqn" else {"window": 4}
    return TrainSpec(env=env, trace=trace, **{**SMALL, **window, **changes})


def population(**second: Any) -> list[TrainSpec]:
    traces = ("retrace", "tree_backup", "q_lambda", "retrace")
    return [spec(trace=trace, seed=i, **(second if i == 1 else {})) for i, trace in enumerate(traces)]


# -- what is shared ------------------------------------------------------------------------------------------


Whole = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The folder of a run that was never interrupted; made once."""

    @functools.cache
    def made(*name: Any) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        train(population() if name == ("population",) else spec(*name[:2], seed=(*name, 0, 0, 0)[2]), folder)
        return folder

    return made


@pytest.fixture(scope="module")
def runtimes() -> Callable[[Sequence[Plan]], Synchronous]:
    """Return one runtime per list of specs, already compiled; it holds no state of a run."""
    made: dict[str, Synchronous] = {}
    make = training.runtime_for

    def runtime_for(specs: Sequence[Plan], _: Any = None) -> Synchronous:
        if repr(specs) not in made:
            made[repr(specs)] = make(specs)
        found = made[repr(specs)]
        found._piece_length = {True: 0, False: 0}  # it depends on how fast the tests before ran
        return found

    return runtime_for


@pytest.fixture
def compiled_once(runtimes: Callable[[Sequence[Plan]], Synchronous], monkeypatch: pytest.MonkeyPatch) -> None:
    """Share compiled programs, for tests of what surrounds them."""
    monkeypatch.setattr(training, "runtime_for", runtimes)


def digest(folder: Path) -> dict[str, str]:
    """Return a digest of a run: all arrays of the last checkpoint, and every file without times."""
    found = checkpoints.load(folder)
    seen = {"number": str(found.number), "record": hashlib.sha256(json.dumps(found.record).encode()).hexdigest()}
    for name, array in found.arrays.items():
        seen[name] = f"{array.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    for path in sorted(folder.glob("*.json*")):
        seen[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert "result.json" in seen
    return seen


def after(num_ticks: int) -> Callable[[], bool]:
    """Return a `stop` that is True after so many calls: one per tick, and on the host one per step."""
    left = iter(range(num_ticks - 1, -1, -1))
    return lambda: next(left) == 0


class Notes(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def test_what_does_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Allocating 120 GB on a CPU is not an error: the machine would stand still."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "available", lambda: 16e9)
    for env, changes in (
        ("pocket/catch", {"replay_size": 2_000_000_000}),
        ("pocket/catch", {"hidden_sizes": (10**9, 10**9)}),
        ("pocket/catch", {"evaluation_episodes": 10**9}),
        ("pocket/catch", {"num_windows": 10**9}),
        ("CartPole-v1", {"replay_size": 2_000_000_000}),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(arguments(spec(env, **changes)))
        assert exit_.value.code == 2
        assert re.search(
            r"must fit into the free memory, 16.0 GB; got about [\d,.]+ GB. Lower", capsys.readouterr().err
        )
    assert not list(tmp_path.iterdir())


def test_a_tick_is_no_longer_than_its_run() -> None:
    """A run consists of whole ticks: one of 2³¹ steps would run to its end, whatever `num_steps` is."""
    for changes in ({"tick_steps": 2**31 - 1}, {"tick_steps": 2 * 10**7, "num_steps": 10**8, "replay_size": 10**4}):
        with pytest.raises(ValueError, match="`tick_steps` must be at most"):
            training.runtime_for([resolved(spec(**changes))])


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"max": "1000000", "current": "700000", "stat": "anon 5\ninactive_file 200000\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(memory, "CGROUPS", [tuple(str(tmp_path / name) for name in files)])
    assert memory.available() == 500_000
    (tmp_path / "max").write_text("max\n")
    assert 500_000 < memory.available() < 1e15


# -- stopped and resumed --------------------------------------------------------------------------------------

RUNS = [(env, trace) for env in ("pocket/catch", "CartPole-v1") for trace in ("retrace", "dqn")]
"""Each has its own program. Traces with a λ have the same state and are tested together, as a population."""


@pytest.mark.parametrize("name", RUNS, ids="-".join)
def test_resumed_is_never_stopped(name: tuple[str, str], whole: Whole, tmp_path: Path) -> None:
    """Stopped while it learns; the first run also before the memory is full, and after the last tick."""
    for part, num_ticks in enumerate((1, 2, 3, 1) if name == RUNS[0] else (3,)):
        result = train(spec(*name), tmp_path, resume=part > 0, stop=after(num_ticks))
        assert not result.finished
        if name[0] == "pocket/catch":
            assert len(result.history) == ((1, 3, 6, 6) if name == RUNS[0] else (3,))[part]
            assert checkpoints.load(tmp_path).number == (len(result.history) - 1) * TICK
    assert train(spec(*name), tmp_path, resume=True).finished
    assert digest(tmp_path) == digest(whole(*name))


def test_a_stop_does_not_wait_for_slow_environments(whole: Whole, tmp_path: Path) -> None:
    """Between any two steps: of a tick, of the evaluation, and of the repeated actions of a resumed run."""
    mine = spec("CartPole-v1")
    train(mine, tmp_path, stop=after(19))
    found = checkpoints.load(tmp_path)
    assert found.number == TICK + 2 * 6 + 1  # tick 0, ten steps and tick 1, six steps and their answers
    assert len(found.arrays["group.0.actions"]) == 16
    train(mine, tmp_path, resume=True, stop=after(5))
    assert checkpoints.load(tmp_path).number == found.number, "it was stopped while it repeated its 16 steps"
    num_ticks = 0

    class Counting(Watcher):
        def on_tick(self, reports: Sequence[Any]) -> None:
            nonlocal num_ticks
            num_ticks += 1

    evaluated = train(mine, tmp_path, resume=True, watcher=Counting(), stop=lambda: num_ticks == LAST - 1)
    assert not evaluated.finished
    assert len(evaluated.history) == LAST + 1
    assert train(mine, tmp_path, resume=True).finished
    assert digest(tmp_path) == digest(whole("CartPole-v1", "retrace"))


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("name", [("pocket/catch", "retrace"), ("population",)], ids="-".join)
def test_a_stop_does_not_wait_for_a_long_tick(
    name: tuple[str, ...], whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long tick runs in pieces and can be saved between any two of them, also while the memory fills."""
    monkeypatch.setattr(
        "offtrace.agent.synchronous.PIECE_SECONDS", 0.0
    )  # a tick is two pieces, with a call of `stop` before each
    mine = population() if name == ("population",) else spec(*name)
    numbers = []
    for part, num_pieces in enumerate((3, 4, 4)):
        train(mine, tmp_path, resume=part > 0, stop=after(num_pieces))
        numbers.append(checkpoints.load(tmp_path).number)
    assert numbers == [5, TICK + 5, 2 * TICK + 5]
    train(mine, tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole(*name))


def test_population(whole: Whole, tmp_path: Path) -> None:
    """A resumed run equals one that never stopped, and members equal single runs: records, returns and state."""
    train(population(), tmp_path, stop=after(3))
    results = train(population(), tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole("population"))
    together = checkpoints.load(tmp_path).arrays
    for i, result in enumerate(results[:2]):
        folder = whole("pocket/catch", result.spec.trace, i)
        progress = (folder / "progress.jsonl").read_bytes()
        assert (tmp_path / f"progress-{i}.jsonl").read_bytes() == progress
        assert list(result.returns) == json.loads((folder / "result.json").read_text())["members"][0]["returns"]
        for name, array in checkpoints.load(folder).arrays.items():
            here = together[name] if array.shape == together[name].shape else together[name][i : i + 1]
            assert here.tobytes() == array.tobytes(), name
    assert load_policy(tmp_path, member=2).spec.trace == "q_lambda"


def test_members_must_fit_together() -> None:
    for one, other, wrong in (
        (spec(), spec(num_actors=8), "num_actors"),
        (spec(), spec(trace="dqn", window=1), "trace"),
        (spec(), spec(env="pocket/deep_sea"), "env"),
        (spec(), spec(trace="recursive_retrace"), "trace"),
    ):
        with pytest.raises(ValueError, match=f"`{wrong}`.*Train them separately"):
            check_shapes([resolved(one), resolved(other)])
    with pytest.raises(ValueError, match="`spec` must not be empty"):
        train([])
    with pytest.raises(ValueError, match="Train them separately"):
        train([spec("CartPole-v1"), spec("Acrobot-v1", seed=1)])


# -- what a run reports --------------------------------------------------------------------------------------


def test_reports_add_up(whole: Whole) -> None:
    """Tick 0 is the untrained agent; then 40 steps without an update; then one update per four steps."""
    for name in (("pocket/catch", "retrace"), ("CartPole-v1", "retrace")):
        reports = telemetry.read(whole(*name) / "progress.jsonl")
        assert [r.tick for r in reports] == [0, 1, 2, 3, 4, 5]
        assert [r.num_steps for r in reports] == [0, 40, 80, 120, 160, 200]
        assert [r.num_updates for r in reports] == [0, 0, 10, 20, 30, 40]
        assert reports[0].num_episodes == 0
        assert np.isnan([reports[0].loss, reports[0].q, reports[1].loss]).all()
        assert np.isfinite([(r.loss, r.gradient, r.q, r.c) for r in reports[2:]]).all()
        plan = resolved(spec(*name))
        assert ticks.Loop(training.runtime_for([plan])).total_steps == reports[-1].num_steps


@pytest.mark.usefixtures("compiled_once")
def test_tick_0_is_untrained(tmp_path: Path) -> None:
    train(spec(), tmp_path, stop=lambda: True)
    arrays = checkpoints.load(tmp_path).arrays
    runtime = training.runtime_for([resolved(spec())])
    start = runtime.arrays(runtime.start())
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: a.tobytes() for n, a in start.items()}
    assert int(arrays["num_steps"]) == int(arrays["learner.num_updates"]) == 0


@pytest.mark.usefixtures("compiled_once")
def test_evaluations_on_the_way_change_nothing(whole: Whole) -> None:
    result = train(spec(evaluation_ticks=2))
    expected = telemetry.read(whole("pocket/catch", "retrace") / "progress.jsonl")
    assert [r.evaluation is not None for r in result.history] == [True, False, True, False, True, False]
    assert repr([r._replace(evaluation=None) for r in result.history]) == repr(expected)


def test_too_short_to_learn() -> None:
    """A run without an update is an error, and the text names the settings to change."""
    with pytest.raises(ValueError, match=r"`num_steps` must be more than the 40 .*`fill`.*got 40"):
        train(spec(num_steps=40))
    with pytest.raises(ValueError, match="`num_steps` must be more than the 68 "):
        train(spec(window=16, fill=4, num_steps=60))
    with pytest.raises(ValueError, match=r"`replay_size` must hold the 40 .*got 39"):
        train(spec(replay_size=39))


# -- killed ---------------------------------------------------------------------------------------------------

TRAINS = """
import json, sys
from pathlib import Path
from offtrace.agent.spec import TrainSpec
from offtrace.agent.telemetry import Watcher
from offtrace.agent.training import train

class Says(Watcher):
    def on_tick(self, reports):
        print("tick", flush=True)

folder = Path(sys.argv[1])
resume = (folder / "spec.json").exists()
train(TrainSpec(**json.loads(sys.argv[2])), folder, resume=resume, checkpoint_seconds=0, watcher=Says())
"""


def test_killed_at_any_moment(whole: Whole, tmp_path: Path) -> None:
    rng, folder = random.Random(20160), whole("pocket/catch", "retrace")
    plan = json.loads((folder / "spec.json").read_text())["specs"][0]
    command = [sys.executable, "-c", TRAINS, str(tmp_path), json.dumps(plan)]
    for num_ticks in (rng.randint(1, 3), rng.randint(1, 3), None):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
            assert process.stdout is not None
            if num_ticks is None:
                process.stdout.read()
                assert process.wait(60) == 0
                break
            for _ in range(num_ticks):
                process.stdout.readline()
            time.sleep(rng.choice([0.0, 0.001, 0.003, 0.01, 0.03]))
            process.kill()
    assert digest(tmp_path) == digest(folder)


# -- files ----------------------------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("compiled_once")
def test_disk_full(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a checkpoint, a record and the result are written: the last good state stays and can be resumed."""
    real, num_writes = checkpoints._write, 0

    def partly(path: Path, pieces: Any) -> Any:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 5:  # two files each: the third checkpoint's first
            path.write_bytes(b"half")
            full()
        return real(path, pieces)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_write", partly)
        with pytest.raises(OSError, match="checkpoint 2000000 was not saved; those before it are intact") as caught:
            train(spec(), tmp_path, checkpoint_seconds=0)
        assert caught.value.errno == errno.ENOSPC
    assert checkpoints.load(tmp_path).number == TICK
    with monkeypatch.context() as patch:
        appended = iter([telemetry.append] * 2 + [full])
        patch.setattr(telemetry, "append", lambda *given: next(appended)(*given))
        with pytest.raises(OSError, match="No space left"):
            train(spec(), tmp_path, resume=True, checkpoint_seconds=0)
    assert checkpoints.load(tmp_path).number == 3 * TICK
    write = disk.write
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", lambda path, of: full() if path.name == "result.json" else write(path, of))
        with pytest.raises(OSError, match="No space left"):
            train(spec(), tmp_path, resume=True)
    assert not (tmp_path / "result.json").exists()
    train(spec(), tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole("pocket/catch", "retrace"))


@pytest.mark.usefixtures("compiled_once")
def test_damaged_checkpoint(whole: Whole, tmp_path: Path) -> None:
    train(spec(), tmp_path, checkpoint_seconds=0, stop=after(4))
    newest = tmp_path / "checkpoints" / "000003000000" / "arrays.safetensors"
    content = bytearray(newest.read_bytes())
    content[-9] ^= 4
    newest.write_bytes(content)
    notes = Notes()
    train(spec(), tmp_path, resume=True, watcher=notes)
    assert any("arrays.safetensors" in line and "checkpoint 2000000 is used instead" in line for line in notes.lines)
    assert digest(tmp_path) == digest(whole("pocket/catch", "retrace"))


def test_second_process_is_refused(whole: Whole) -> None:
    folder = whole("pocket/catch", "retrace")
    before = digest(folder)
    code = (
        "import sys; from pathlib import Path; from offtrace.agent.checkpoints import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ValueError, match=f"process {holder.pid} holds"):
            train(spec(), folder, resume=True)
        holder.communicate(timeout=20)
    assert digest(folder) == before


@pytest.mark.usefixtures("compiled_once")
def test_changes_are_refused_by_name(whole: Whole, tmp_path: Path) -> None:
    train(spec(), tmp_path, stop=after(3))
    file = tmp_path / "spec.json"
    original = file.read_bytes()
    with pytest.raises(
        ValueError, match=r"started with different settings: lambda_ was 1.0 and is 0.5; step_size was .* and is 0.25"
    ):
        train(spec(lambda_=0.5, step_size=0.25), tmp_path, resume=True)
    with pytest.raises(ValueError, match="`spec` must have as many members as the saved run, 1"):
        train([spec(), spec(seed=1)], tmp_path, resume=True)
    forge(tmp_path, lambda record: record["made_with"].update(offtrace="0.0.7"))
    with pytest.raises(ValueError, match=r"offtrace was 0.0.7 and is \d"):
        train(spec(), tmp_path, resume=True)
    notes = Notes()
    train(spec(), tmp_path, resume=True, allow_changes=True, watcher=notes, stop=after(1))
    assert any("offtrace was 0.0.7" in line for line in notes.lines)
    assert json.loads(file.read_text()) == json.loads(original)  # the settings it continues with

    with pytest.raises(ValueError, match=r"replay\.frames.*where this version needs"):
        train(spec(replay_size=320), tmp_path, resume=True, allow_changes=True)
    assert file.read_bytes() == original  # a checkpoint that does not fit changes nothing
    train(spec(), tmp_path, resume=True)
    assert digest(tmp_path) == digest(whole("pocket/catch", "retrace"))

    result = train(spec(lambda_=0.5), tmp_path, resume=True, allow_changes=True)
    assert result.spec.lambda_ == 1.0, "a finished run stays what it was"
    assert digest(tmp_path) == digest(whole("pocket/catch", "retrace"))


@pytest.mark.usefixtures("compiled_once")
def test_changed_settings_are_written_down(tmp_path: Path) -> None:
    train(spec(), tmp_path, stop=after(2))
    train(spec(step_size=0.25), tmp_path, resume=True, allow_changes=True, stop=after(1))
    train(spec(step_size=0.25), tmp_path, resume=True, stop=after(1))
    assert runs.read_specs(tmp_path)[0].step_size == 0.25


def test_finished_is_read_back(whole: Whole, tmp_path: Path) -> None:
    folder = whole("pocket/catch", "retrace")
    notes = Notes()
    again = train(spec(), folder, resume=True, watcher=notes)
    assert again.finished
    assert len(again.history) == LAST + 1
    assert any("finished already" in line for line in notes.lines)
    with pytest.raises(ValueError, match="holds a finished run already"):
        train(spec(), folder)


def test_folders(tmp_path: Path) -> None:
    """Wrong folders are errors before training, and leave nothing behind."""
    taken = tmp_path / "a file"
    taken.write_text("here first")
    for output in (taken, taken / "below"):
        with pytest.raises(OSError, match="must be a directory, or a new name"):
            train(spec(), output)
    assert taken.read_text() == "here first"
    new = tmp_path / "new"
    with pytest.raises(ValueError, match="`output` must hold a run to resume"):
        train(spec(), new, resume=True)
    with pytest.raises(ValueError, match="`resume` must come with `output`"):
        train(spec(), resume=True)
    for wrong in (spec(env="pocket/cach"), spec(num_steps=40), spec(env="NoSuchThing-v0"), spec(env="a\n../b")):
        with pytest.raises(ValueError):
            train(wrong, new)
    with pytest.raises(
        ValueError, match=r"`options` of pocket/catch must be among rows, columns; got .*no_such_option"
    ):
        train(spec(options={"no_such_option": 1}), new)
    assert not new.exists()
    if os.getuid():
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(PermissionError):
            train(spec(), closed / "run")


@pytest.mark.usefixtures("compiled_once")
def test_spaces_and_unicode(tmp_path: Path) -> None:
    folder = tmp_path / "ein Lauf, Größe λ" / "[red]\n2"
    train(spec(), folder, stop=lambda: True)
    assert not train(spec(), folder, resume=True, stop=lambda: True).finished
    assert load_policy(folder).q(np.zeros((2, 10, 10, 2), bool)).shape == (2, 3)


@pytest.mark.usefixtures("compiled_once")
def test_the_policy_of_a_result(tmp_path: Path) -> None:
    """It is that of the folder, also where the run was finished before; and a function sees every tick."""
    seen: list[telemetry.TickRecord] = []
    result = train(spec(), tmp_path / "run", watcher=seen.append)
    assert tuple(seen) == result.history
    x = np.eye(200, dtype=bool).reshape(-1, 10, 10, 2)
    expected = load_policy(tmp_path / "run").q(x)
    assert (result.policy.q(x) == expected).all()
    target = as_target(tmp_path / "run", epsilon=0.3)  # a log has its observations as vectors
    assert (target.probabilities(x.reshape(-1, 200).astype(float)).argmax(1) == expected.argmax(1)).all()
    with pytest.raises(ValueError, match="the observations of the log must be bool"):
        target.probabilities(np.full((1, 200), 0.5))
    assert result.policy.num_steps == result.num_steps
    again = train(spec(), tmp_path / "run", resume=True)
    assert again.parameters is None
    assert (again.policy.q(x) == expected).all()
    assert (trained_network(again).parameters["layers[0].bias"] == result.parameters["layers[0].bias"]).all()
    with pytest.raises(ValueError, match="the run was stopped"):
        _ = train(spec(), stop=lambda: True).policy


@pytest.mark.usefixtures("compiled_once")
def test_a_run_that_learns_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once on the way, and once at the end."""
    monkeypatch.setattr(hints, "constant_episode", lambda records: (-1.0, 9.0) if len(records) > 1 else None)
    monkeypatch.setattr(Synchronous, "evaluate", lambda *_, **__: (np.full((1, 5), -1.0), np.ones((1, 5), bool)))
    said: list[str] = []

    class Listener(Watcher):
        def on_message(self, line: str) -> None:
            said.append(line)

    train(spec(), watcher=Listener())
    assert len(said) == 2
    assert all("a return of -1" in line and "--options time_limit 45" in line for line in said)


WRONG = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "no specs": "{}",
    "no mapping": '{"made_with": {}, "specs": [3]}',
    "a newer version": '{"made_with": {}, "specs": [{"env": "pocket/catch", "invented_later": 1}]}',
    "something missing": '{"made_with": {}, "specs": [{"env": "pocket/catch"}]}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_spec_of_another_kind(text: str, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(text)
    with pytest.raises(ValueError, match=r"spec\.json' is not a spec of this version"):
        train(spec(), tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"spec\.json' is not a spec of this version"):
        load_policy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"spec.json", "lock"}
    assert (tmp_path / "spec.json").read_text() == text


# -- what was changed since it was written -------------------------------------------------------------------


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the record of every checkpoint, with a right checksum."""
    for place in folder.glob("checkpoints/*/manifest.json"):
        content = disk.unsealed(place.read_bytes())
        del content["sha256"]
        change(content["record"])
        place.write_bytes(disk.sealed(content))


CHANGES = {
    "gamma": 0.5,
    "step_size": 0.25,
    "epsilon": 0.5,
    "lambda_": 0.25,
    "trace": "q_lambda",
    "seed": 3,
    "num_steps": 80,
    "tick_steps": 10**30,
    "clamp": None,
    "target_policy": "greedy",
}


@pytest.mark.usefixtures("compiled_once")
def test_a_changed_spec_file_changes_nothing(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec in the checkpoint counts, also for options that the command omits."""
    train(spec(), tmp_path / "run", stop=after(3))
    file = tmp_path / "run" / "spec.json"
    changed = json.loads(file.read_text())
    changed["specs"][0].update(CHANGES)
    file.write_text(json.dumps(changed))
    assert runs.read_specs(tmp_path / "run") == (resolved(spec()),)
    assert load_policy(tmp_path / "run").spec == resolved(spec())
    monkeypatch.chdir(tmp_path)
    open_ = dataclasses.replace(spec(), gamma=None, step_size=None, epsilon=None, num_steps=None, tick_steps=None)
    main(arguments(open_, "--output", "run", "--resume", "--quiet"))
    ours = digest(tmp_path / "run")
    theirs = digest(whole("pocket/catch", "retrace"))
    del ours["spec.json"], theirs["spec.json"]
    assert ours == theirs


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize(("tick_steps", "later"), [(20, [100, 120, 140, 160, 180, 200]), (80, [160, 240])])
def test_a_coarser_clock_does_not_end_a_run_early(tick_steps: int, later: list[int], tmp_path: Path) -> None:
    """`num_steps` decides when a run ends, not the number of its ticks; shorter ticks do not lengthen it."""
    train(spec(), tmp_path, stop=after(3))
    result = train(spec(tick_steps=tick_steps), tmp_path, resume=True, allow_changes=True)
    assert [report.num_steps for report in result.history] == [0, 40, 80, *later]


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("change", ["", "[]", "{}", "returns", "empty", "old", "a link", "a FIFO"])
def test_a_changed_result_is_made_again(change: str, whole: Whole, tmp_path: Path) -> None:
    """Made from the last checkpoint, the result is the same to the last bit."""
    folder, file = tmp_path / "run", tmp_path / "run" / "result.json"
    shutil.copytree(whole("pocket/catch", "retrace"), folder)
    content = json.loads(file.read_text())
    if change == "returns":
        content["members"][0]["returns"][0] += 1
        file.write_text(json.dumps(content, indent=1))
    elif change == "empty":
        content["members"][0]["returns"] = []
        del content["sha256"]
        file.write_bytes(disk.sealed(content))
    elif change == "old":
        file.write_text('[{"mean_return": 1.0, "returns": [1.0], "num_unfinished": 0}]')
    elif change == "a link":
        (tmp_path / "other").write_bytes(file.read_bytes())
        file.unlink()
        file.symlink_to(tmp_path / "other")
    elif change == "a FIFO":
        file.unlink()
        os.mkfifo(file)
    else:
        file.write_text(change)
    notes = Notes()
    assert train(spec(), folder, resume=True, watcher=notes).finished
    assert any("is damaged" in line for line in notes.lines)
    assert digest(folder) == digest(whole("pocket/catch", "retrace"))
    assert file.is_file()
    assert not file.is_symlink()


def test_a_finished_run_needs_no_checkpoints(whole: Whole, tmp_path: Path) -> None:
    """Without checkpoints a run keeps its result; without a result it is not finished."""
    folder = tmp_path / "run"
    shutil.copytree(whole("pocket/catch", "retrace"), folder)
    shutil.rmtree(folder / "checkpoints")
    result = train(spec(), folder, resume=True, stop=lambda: True)
    assert result.finished
    assert result.num_steps == 200
    (folder / "result.json").write_text("{}")
    with pytest.raises(ValueError, match="no checkpoint to evaluate again"):
        train(spec(), folder, resume=True)
    (folder / "result.json").unlink()
    assert not train(spec(), folder, resume=True, stop=after(1)).finished
    assert not train(spec(), folder, resume=True, stop=after(1)).finished


RECORDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no reports": lambda record: record.pop("reports"),
    "no ticks": lambda record: record.update(reports=[]),
    "too few ticks": lambda record: record["reports"].pop(),
    "no members": lambda record: record["reports"][0].clear(),
    "a tick of none": lambda record: record["reports"].__setitem__(0, None),
    "a report of a number": lambda record: record["reports"][0].__setitem__(0, 3),
    "a field missing": lambda record: record["reports"][0][0].pop("loss"),
    "a text for a number": lambda record: record["reports"][0][0].update(loss="a"),
    "another order": lambda record: record["reports"].reverse(),
    "no specs": lambda record: record.pop("specs"),
    "specs of none": lambda record: record.update(specs=[]),
    "specs of a number": lambda record: record.update(specs=3),
    "a spec of a number": lambda record: record.update(specs=[3]),
    "huge numbers": lambda record: record["specs"][0].update(step_size=10**400),
    "huge widths": lambda record: record["specs"][0].update(hidden_sizes=[10**30]),
    "a list for a name": lambda record: record["specs"][0].update(trace=[]),
    "no versions": lambda record: record.pop("made_with"),
    "versions of a number": lambda record: record.update(made_with=3),
}


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
def test_forged_records(change: Callable[[dict[str, Any]], object], whole: Whole, tmp_path: Path) -> None:
    """With a right checksum, every reader raises a one-line error."""
    folder = tmp_path / "run"
    shutil.copytree(whole("pocket/catch", "retrace"), folder)
    (folder / "result.json").unlink()
    forge(folder, change)
    for read in (lambda: train(spec(), folder, resume=True), lambda: load_policy(folder)):
        with pytest.raises(ValueError, match=r"manifest\.json"):
            read()


@pytest.mark.usefixtures("compiled_once")
def test_nothing_outside_of_the_folder_is_touched(whole: Whole, tmp_path: Path) -> None:
    """A folder from somebody else may hold links in place of files that a run writes."""
    victim = tmp_path / "victim"
    victim.write_text("thesis")
    folder = tmp_path / "run"
    train(spec(), folder, stop=after(2))
    (folder / "progress.jsonl").unlink()
    for name in (
        "progress.jsonl",
        "progress.jsonl.new",
        f".progress.{os.getpid()}.jsonl",
        f".result.{os.getpid()}.json",
        f".spec.{os.getpid()}.json",
    ):
        (folder / name).symlink_to(victim)
    train(spec(), folder, resume=True)
    assert victim.read_text() == "thesis"
    for name in ("spec.json", "lock"):
        (folder / name).unlink()
        (folder / name).symlink_to(victim)
    with pytest.raises((ValueError, OSError)):
        train(spec(), folder, resume=True)
    with pytest.raises((ValueError, OSError)):
        train(spec(), folder)
    assert victim.read_text() == "thesis"


def test_a_run_from_somebody_else_imports_nothing(faulty: Path, tmp_path: Path) -> None:
    """Only the caller can allow an import, not the files of a run."""
    mine = spec("offtrace_faulty:Faulty-v0")
    train(mine, tmp_path, stop=after(4))
    del sys.modules["offtrace_faulty"], gymnasium.registry["Faulty-v0"]
    with pytest.raises(ValueError, match="--allow-import"):
        load_policy(tmp_path)
    assert "offtrace_faulty" not in sys.modules
    policy = load_policy(tmp_path, allow_import=["offtrace_faulty"])
    assert policy.q(np.zeros((1, 2), np.float32)).shape == (1, 2)
    assert "offtrace_faulty" in sys.modules


# -- environments that break ----------------------------------------------------------------------------------

FAULTY = '''
"""Episodes of 7 steps; after 17 steps in total it does what the file FAULT says, if it exists."""
import os, time
from pathlib import Path
import gymnasium, numpy as np

class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    total = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.time += 1
        self.total += 1
        observation, reward = self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action)
        if self.total == 17 and os.path.exists(os.environ["FAULT"]):
            fault = Path(os.environ["FAULT"]).read_text()
            if fault == "raise":
                raise KeyError("no such\\nkey \\x1b[31m")
            if fault == "hang":
                time.sleep(60)
            if fault == "observation":
                observation[1] = np.nan
            if fault == "reward":
                reward = np.inf
            if fault == "huge":
                reward = 1e300
            if fault == "exit":
                raise SystemExit(0)
        return observation, reward, self.time == 7, False, {}

gymnasium.register("Faulty-v0", Faulty)
'''


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the file whose content is the fault."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "offtrace_faulty.py").write_text(FAULTY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("FAULT", str(folder / "fault"))
        yield folder / "fault"


FAULTS = {
    "raise": (RuntimeError, "KeyError"),
    "hang": (TimeoutError, "no answer in 2.0 seconds"),
    "observation": (RuntimeError, "the observation has nan"),
    "reward": (RuntimeError, "the reward is inf"),
    "huge": (RuntimeError, "the reward is 1e+300, which is larger than float32 can hold"),
    "exit": (RuntimeError, "SystemExit: 0"),
}
BROKEN = {"seed": 3, "options": {"timeout": 2.0}}


def test_environments_that_break(
    faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault stops the run with an error that locates it; without the fault, the resumed run ends as usual."""
    mine = spec("offtrace_faulty:Faulty-v0", **BROKEN)
    train(mine, tmp_path / "whole")
    for number, (fault, (kind, text)) in enumerate(FAULTS.items()):
        faulty.write_text(fault)
        with pytest.raises(kind) as caught:
            train(mine, tmp_path / "run", resume=number > 0, checkpoint_seconds=0)
        for part in ("Faulty-v0", "actor 0, seed 3", "at step 17, action ", text):
            assert part in str(caught.value)
        saved = checkpoints.load(tmp_path / "run")
        assert len(saved.arrays["group.0.actions"]) == 18  # 16 steps, and two dummy rows
        assert saved.number == TICK + 2 * 9  # ten of them are tick 1; the actions of the ninth have no answer

    monkeypatch.chdir(tmp_path)
    faulty.write_text("raise")
    with pytest.raises(SystemExit) as exit_:
        main(arguments(mine, "--output", "run", "--resume"))
    assert exit_.value.code == 3
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "seed 3" in stderr
    assert "\x1b" not in stderr
    monkeypatch.setenv("OFFTRACE_TRACEBACK", "1")
    with pytest.raises(SystemExit) as exit_:
        main(arguments(mine, "--output", "run", "--resume"))
    assert exit_.value.code == 3
    assert "Traceback" in capsys.readouterr().err
    faulty.unlink()
    train(mine, tmp_path / "run", resume=True)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_an_environment_that_is_no_function_of_its_seed(
    faulty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = spec("offtrace_faulty:Faulty-v0")
    train(mine, tmp_path, stop=after(12))  # tick 0, ten steps, tick 1
    before = {path.name for path in tmp_path.rglob("*")}
    env = gymnasium.make("Faulty-v0").unwrapped
    fixed = type(env).reset
    monkeypatch.setattr(type(env), "reset", lambda self, **given: fixed(self, seed=7))
    with pytest.raises(ValueError, match="is in another state than before after the same 10 actions"):
        train(mine, tmp_path, resume=True)
    assert {path.name for path in tmp_path.rglob("*")} == before


# -- learning that breaks -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled_once")
def test_divergence_ends_a_run(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = spec(step_size=1e30)
    with pytest.raises(FloatingPointError) as caught:
        train(wild, tmp_path / "run", checkpoint_seconds=0)
    for part in ("pocket/catch", "seed 0", "step 80", "updates were not applied", "gradient", "`step_size`, 1e+30"):
        assert part in str(caught.value)
    assert checkpoints.load(tmp_path / "run").number == TICK
    assert len(telemetry.read(tmp_path / "run" / "progress.jsonl")) == 2
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(arguments(wild, "--output", "other", "--quiet"))
    assert exit_.value.code == 3
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert stderr.startswith("offtrace: pocket/catch (seed 0): by step 80 ")


def test_divergence_in_a_population(whole: Whole) -> None:
    """The other members continue, unchanged."""
    results = train(population(step_size=1e30))
    assert any("updates were not applied" in event for event in results[1].history[2].events)
    for i in (0, 2, 3):
        expected = (whole("population") / f"progress-{i}.jsonl").read_bytes()
        assert b"".join(map(telemetry._line, results[i].history)) == expected


def test_values_beyond_any_return() -> None:
    result = train(spec(step_size=100.0))
    event = result.history[-1].events[0]
    assert event.startswith("|Q| reached ")
    assert event.endswith("beyond any possible return of 1")


def test_values_that_are_not_finite() -> None:
    """Also before an update has met them: such a state must never be saved."""
    tick = SimpleNamespace(num_refused=np.array([0]))
    for value in (np.nan, np.inf):
        probe = SimpleNamespace(metrics=SimpleNamespace(largest_q=np.array([value])), largest_reward=np.array([1.0]))
        assert ticks._events(resolved(spec()), 1.0, tick, probe, 0) == ("Q is not finite",)


@pytest.mark.usefixtures("compiled_once")
def test_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = Synchronous.advance

    def advance(self: Synchronous, state: Any, num_iterations: int, *, learns: bool, **stop: Any) -> Any:
        if learns:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.\nA long\ntable")
        return real(self, state, num_iterations, learns=learns, **stop)

    monkeypatch.setattr(Synchronous, "advance", advance)
    with pytest.raises(MemoryError, match=r"Lower `replay_size` \(160\), `num_actors` \(4\).* is intact") as caught:
        train(spec(), tmp_path / "run", checkpoint_seconds=0)
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    assert checkpoints.load(tmp_path / "run").number == TICK
    with (
        pytest.raises(MemoryError, match="fewer than 4 members"),
        training._explain_memory(SimpleNamespace(specs=[resolved(one) for one in population()]), None),
    ):
        advance(SimpleNamespace(), None, 1, learns=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(arguments(spec(), "--output", "run", "--resume", "--quiet"))
    assert exit_.value.code == 3
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "Lower `replay_size` (160)" in stderr


# -- the command line -----------------------------------------------------------------------------------------


def arguments(given: TrainSpec, *more: str) -> list[str]:
    """Return the spec as typed on the command line."""
    typed = ["train", given.env]
    for name, value in vars(given).items():
        if name == "env" or value in (None, {}, ""):
            continue
        option = "--" + name.rstrip("_").replace("_", "-")
        if isinstance(value, bool):
            typed.append(option if value else option.replace("--", "--no-"))
        elif isinstance(value, dict):
            typed += [option, *(str(part) for pair in value.items() for part in pair)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            typed += [option, *map(str, value)]
        else:
            typed += [option, str(value)]
    return [*typed, *more]


def started(cwd: Path, *typed: str) -> subprocess.Popen[str]:
    heeds = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # these tests may run under `nohup`
    command = [sys.executable, "-c", f"{heeds}; from offtrace.cli import main; main()", *typed]
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_ticks(process: subprocess.Popen[str], progress: Path, num_ticks: int) -> None:
    end = time.monotonic() + 60
    while not progress.exists() or progress.read_bytes().count(b"\n") < num_ticks:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_interrupted_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run stopped by Ctrl-C, SIGTERM and a closed terminal, then resumed to its end, equals one without stops."""
    long = spec(num_steps=20_000)
    folder = tmp_path / "a run"
    num_ticks = 3
    for number, resume in ((signal.SIGINT, []), (signal.SIGTERM, ["--resume"]), (signal.SIGHUP, ["--resume"])):
        with started(tmp_path, *arguments(long, "--output", "a run", *resume)) as process:
            wait_for_ticks(process, folder / "progress.jsonl", num_ticks)
            process.send_signal(number)
            began = time.monotonic()
            stdout, stderr = process.communicate(timeout=30)
            assert time.monotonic() - began < 10
        assert process.returncode == 130, stderr
        assert stderr == ""
        assert "Stopped and saved" in stdout
        pasted = stdout.partition("Resume with: ")[2].splitlines()[0]
        assert shlex.split(pasted) == ["offtrace", "train", *as_arguments(long), "--output", "a run", "--resume"]
        saved = checkpoints.load(folder).number // TICK
        assert len(telemetry.read(folder / "progress.jsonl")) == saved + 1 >= num_ticks
        num_ticks = saved + 3
    monkeypatch.chdir(tmp_path)
    main([*shlex.split(pasted)[1:], "--json"])
    assert json.loads(capsys.readouterr().out)["folder"] == "a run"
    train(long, tmp_path / "whole")
    assert digest(folder) == digest(tmp_path / "whole")


def test_the_same_command_again_is_a_new_run_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs", resolved(spec()).name)
    run.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    main(arguments(spec(), "--quiet"))
    assert (
        f"{run} holds an unfinished run, which --resume goes on with. This is a new run, in {run}-2."
        in capsys.readouterr().err
    )
    assert (tmp_path / f"{run}-2" / "result.json").exists()
    (run / "result.json").write_text("{}")
    shutil.rmtree(f"{run}-2")
    main(arguments(spec(), "--quiet"))
    assert f"{run} holds a finished run. This is a new run, in {run}-2." in capsys.readouterr().err


def test_a_closed_pipe_is_a_stop(tmp_path: Path) -> None:
    """As in `offtrace train … | head -1`: what was learned is kept."""
    with started(tmp_path, *arguments(spec(num_steps=20_000), "--output", "run")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "pocket/catch" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 130
        said = process.stderr.read()
    assert said.count("\n") == 1
    assert "Stopped and saved. Resume with: offtrace train pocket/catch" in said
    reports = telemetry.read(tmp_path / "run" / "progress.jsonl")
    assert checkpoints.load(tmp_path / "run").number == (len(reports) - 1) * TICK


COMPUTES = """
import hashlib
from offtrace.cli.interrupts import stop_requests

with stop_requests() as is_stop_requested:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes without a turn for Python, as a long tick is
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_interrupt_ends_it_at_once(number: signal.Signals) -> None:
    """Even inside a compiled program, where Python's own handlers do not run."""
    with subprocess.Popen([sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(number)
        try:
            assert process.wait(5) == 128 + number
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (["train", "pocket/cach"], "pocket/catch"),
        (["train", "pocket/catch", "--trace", "retrase"], "Did you mean 'retrace'"),
        (["train", "pocket/catch", "--resume"], "no run"),
        (["train", "pocket/catch", "--num-steps", "1"], "`num_steps`"),
        (["train", "a\n../b", "--output", "x"], "a\\n../b"),
        (["train", "CartPole-v1", "--options", "vectorization", "parallel"], "vectorization"),
        (["train", "catch"], "Did you mean pocket/catch?"),
        (["train", "NoSuchThing-v0"], "`offtrace train --list` shows the installed ones"),
        (["train", "pocket/catch", "--options", "foo", "3"], "must be among rows, columns; got {'foo': 3}"),
        (["train", "CartPole-v1", "--options", "foo", "3"], "must be among sutton_barto_reward"),
        (["train", "CartPole-v1", "--options", "seed", "3"], "got {'seed': 3}"),
        (["watch", "nothing"], "must be the folder of a run, or a results file; it does not exist"),
    ],
    ids=lambda value: " ".join(value[1:3]) if isinstance(value, list) else "",
)
def test_wrong_input(
    wrong: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(wrong)
    assert exit_.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert text in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "package", "loaded", "extra"),
    [
        ("LunarLander-v3", "Box2D", "gymnasium.envs.box2d", "box2d"),
        ("minatar/breakout", "pgx.minatar.breakout", "", "minatar"),
    ],
)
def test_what_an_environment_needs_is_named(
    env: str,
    package: str,
    loaded: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`loaded` imports the package and must be imported anew. Atari's test is in test_atari.py."""
    for name in [name for name in sys.modules if loaded and name.startswith(loaded)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["train", env])
    assert exit_.value.code == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert f"pip install 'offtrace[{extra}]'" in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("compiled_once")
def test_without_tensorboard_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'offtrace\[track\]'"):
        train(spec(), tmp_path / "run", tensorboard=True)
    assert list(tmp_path.iterdir()) == []
    assert not train(spec(), tmp_path / "run", stop=after(1)).finished


@pytest.mark.usefixtures("compiled_once")
def test_resumed_without_what_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Omitted choices keep their saved values; other options must be given again, or are named in an error."""
    monkeypatch.chdir(tmp_path)
    train(spec(), "run", stop=after(2))
    chosen = TrainSpec(
        **{f.name: getattr(spec(), f.name) for f in dataclasses.fields(TrainSpec) if f.default is not None}
    )
    assert chosen.num_steps is None
    with pytest.raises(SystemExit) as exit_:
        main(arguments(dataclasses.replace(chosen, lambda_=0.5), "--output", "run", "--resume"))
    assert exit_.value.code == 2
    stderr = capsys.readouterr().err
    assert "lambda_ was 1.0 and is 0.5. Resume it with the same ones, or pass `--allow-changes`" in stderr
    main(arguments(chosen, "--output", "run", "--resume"))
    assert "Evaluation" in capsys.readouterr().out
    assert runs.read_specs(Path("run")) == (resolved(spec()),)


def test_typed_is_read_back() -> None:
    """Return the command that resumes a run."""
    given = spec(lambda_=0.25, anneal=False, double=False, clamp=None, options={"rows": 5, "columns": 7}, seed=3)
    assert tyro.cli(TrainSpec, args=as_arguments(given)) == given
    assert as_arguments(TrainSpec(env="CartPole-v1")) == ["CartPole-v1"]


# -- several devices -----------------------------------------------------------------------------------------

SPREADS = """
import json, sys
import jax
from offtrace.agent.synchronous import Synchronous
from offtrace.agent.spec import from_json
from offtrace.agent.training import train

advance, seen = Synchronous.advance, set()

def noted(*given, **options):
    state, tick = advance(*given, **options)
    seen.update(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(state.members.learner.params))
    return state, tick

Synchronous.advance = noted
train([from_json(one) for one in json.loads(sys.argv[2])], sys.argv[1])
print(len(jax.devices()), seen)
"""


def test_two_devices(whole: Whole, tmp_path: Path) -> None:
    """Four members, two per device, give the same results as on one device."""
    folder = whole("population")
    plans = json.loads((folder / "spec.json").read_text())["specs"]
    assert [from_json(plan) for plan in plans] == [resolved(one) for one in population()]
    done = subprocess.run(
        [sys.executable, "-c", SPREADS, str(tmp_path / "run"), json.dumps(plans)],
        env={**os.environ, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 {2}\n"
    assert digest(tmp_path / "run") == digest(folder)
