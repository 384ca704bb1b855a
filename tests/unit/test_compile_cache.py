"""The cache of compiled programs: its folder, its size, and what is removed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offtrace.agent import compile_cache, training
from offtrace.agent.spec import TrainSpec, to_json
from offtrace.cli.train import train as train_verb
from offtrace.cli.watch import watch
from offtrace.experiments import engine, workers
from offtrace.experiments.spec import Sweep, runs_of
from offtrace.experiments.store import Store

WHERE = """
import jax
from offtrace.agent import compile_cache
compile_cache.enable()
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 2 + 1)(3.0)
"""


def kept(**variables: str) -> str:
    """Return the cache folder of a new process."""
    inherited = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    command = [sys.executable, "-c", WHERE]
    done = subprocess.run(command, env={**inherited, **variables}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.strip()


def test_where_programs_are_kept(tmp_path: Path) -> None:
    folder = kept(XDG_CACHE_HOME=str(tmp_path))
    assert Path(folder).parent == tmp_path / "offtrace" / "programs"
    assert (Path(folder).stat().st_mode & 0o777) == 0o700, "what is there is run, so nobody else may write to it"
    assert any(Path(folder).glob("*-cache"))
    assert Path(kept(OFFTRACE_CACHE=str(tmp_path / "mine"))).parent == tmp_path / "mine" / "programs"


@pytest.mark.parametrize(
    "variables",
    [
        {"OFFTRACE_CACHE": "off"},
        {"OFFTRACE_CACHE": "/proc/nowhere"},
        {"XDG_CACHE_HOME": "/dev/null"},
    ],
    ids=["off", "not writable", "no folder"],
)
def test_nothing_is_kept(variables: dict[str, str]) -> None:
    assert kept(**variables) == "None"


def test_whoever_has_chosen_a_folder_keeps_it(tmp_path: Path) -> None:
    assert kept(JAX_COMPILATION_CACHE_DIR=str(tmp_path)) == str(tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "now"
    folder.mkdir()
    old = time.time() - 2 * compile_cache.HALF_WRITTEN
    for name in ("whole-cache", "whole-atime", "torn-cache", "young-cache"):
        (folder / name).write_bytes(b"x")
        if not name.startswith("young"):
            os.utime(folder / name, (old, old))
    (tmp_path / "other version").mkdir()
    (tmp_path / "long ago").mkdir()
    os.utime(tmp_path / "long ago", (0, 0))
    compile_cache.tidy(folder)
    assert {path.name for path in folder.iterdir()} == {"whole-cache", "whole-atime", "young-cache"}
    assert {path.name for path in tmp_path.iterdir()} == {"now", "other version"}


def test_all_that_trains_or_plays_keeps_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train`, `watch` and sweeps, in this process and in others, enable the cache before they compile."""

    class Kept(Exception):
        pass

    def keep() -> None:
        raise Kept

    def train(*_: object, **__: object) -> None:
        raise RuntimeError("programs are compiled before the cache is enabled")

    monkeypatch.setattr(compile_cache, "enable", keep)
    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of this process stay
    wanted = runs_of(Sweep(("pocket/catch",), num_seeds=1))
    path = tmp_path / "results.sqlite"
    with Store(path) as store:
        ids = store.register([to_json(spec) for spec in wanted], {})
    for begin in (
        lambda: train_verb(TrainSpec(env="pocket/catch"), tmp_path / "run"),
        lambda: watch(tmp_path / "run"),
        lambda: engine.run(wanted, path, jobs=0),
        lambda: workers._train(str(path), ids, "", os.getppid()),
    ):
        with pytest.raises(Kept):
            begin()
