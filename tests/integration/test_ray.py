"""The Ray engine: the rows of the local one, to the last bit, whoever dies on the way."""

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offtrace import evaluation
from offtrace.agent.spec import Plan
from offtrace.evaluation import parts
from offtrace.evaluation.simulation import simulate
from offtrace.experiments import cluster, engine
from offtrace.experiments.members import ClaimedRuns
from offtrace.experiments.networks import read_network
from offtrace.experiments.spec import Sweep, runs_of
from offtrace.experiments.store import Store, StoredRun
from offtrace.experiments.stored_runs import seal
from offtrace.experiments.workers import TRIES
from offtrace.mdp import chain

pytest.importorskip("ray", reason="ray is not installed: pip install 'offtrace[ray]'")
if not Path("/proc/self/stat").exists():
    pytest.skip("there is no /proc, by which workers are found", allow_module_level=True)

SMALL = {
    "network": "mlp",
    "hidden_sizes": (16,),
    "num_actors": 4,
    "num_steps": 400,
    "fill": 80,
    "replay_size": 400,
    "tick_steps": 100,
    "evaluation_ticks": 0,
    "evaluation_episodes": 2,
    "evaluation_steps": 20,
}


def small(num_seeds: int = 4) -> list[Plan]:
    """Packs have two members everywhere here, so their program is compiled once."""
    return runs_of(Sweep(("pocket/catch",), ("retrace",), num_seeds=num_seeds, settings=SMALL))


def runs(path: Path) -> dict[str, StoredRun]:
    with Store(path, read_only=True) as store:
        return {run.fingerprint: run for run in store.runs()}


def checksums(path: Path) -> dict[str, str]:
    return {name: run.checksum for name, run in runs(path).items() if run.status == "done"}


def workers() -> list[int]:
    """Processes that train for this one: Ray writes the name of a task over a worker's command.

    A process that a worker starts has the worker's command, too, until it runs a program of its own.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if _is_named(folder) and not _is_named(_parent(folder)) and _is_ours(folder):
                found.append(int(folder.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _is_named(folder: Path) -> bool:
    return (folder / "cmdline").read_bytes().startswith(b"ray::offtrace sweep")


def _parent(folder: Path) -> Path:
    return folder.with_name((folder / "stat").read_text().rpartition(") ")[2].split()[1])


def _is_ours(folder: Path) -> bool:
    while int((folder := _parent(folder)).name) > 1:
        if int(folder.name) == os.getpid():
            return True
    return False


@pytest.fixture(scope="module", autouse=True)
def _two_workers() -> Iterator[None]:
    """One cluster for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        with cluster.connected("local", jobs=2):
            yield


def networks(path: Path) -> dict[str, Any]:
    """Return the parameters of every run's network, to the last bit, and the steps it was trained for."""
    found = {}
    for name in runs(path):
        arrays, num_steps = read_network(path, name)
        found[name] = {key: array.tobytes() for key, array in arrays.items()}, num_steps
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the local engine, one population after the other."""
    path = tmp_path_factory.mktemp("local") / "results.sqlite"
    assert engine.run(small(2), path, jobs=0).num_done == 2
    assert engine.run(small(), path, jobs=0).num_done == 4
    return path


def test_two_workers_give_the_rows_of_the_local_engine(local: Path, tmp_path: Path) -> None:
    path, seen = tmp_path / "results.sqlite", []
    done = cluster.run(small(), path, command="a test", tell=seen.append)
    assert (done.num_done, done.num_failed, done.num_steps) == (4, 0, done.total_steps)
    assert seen[-1] == done
    assert checksums(path) == checksums(local)
    made = [run.provenance for run in runs(path).values()]
    assert {(one["command"], one["jax"]) for one in made} == {("a test", version("jax"))}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["results.sqlite", "results.sqlite.policies"]
    assert networks(path) == networks(local)


def test_stopped_and_killed_it_ends_equal(local: Path, tmp_path: Path) -> None:
    """Stopped once it trains, nothing is claimed any more. Then a worker is killed, and its cells run again."""
    path = tmp_path / "results.sqlite"
    stopped = cluster.run(small(2), path, jobs=1, stop=lambda: any(run.reports for run in runs(path).values()))
    assert stopped.num_done == 0
    assert {run.status for run in runs(path).values()} == {"missing"}
    assert any(run.reports for run in runs(path).values())

    killed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        write = ClaimedRuns.write

        def kill(claimed: ClaimedRuns, reports: Any) -> None:
            write(claimed, reports)
            if not killed:
                killed.extend(workers())
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

        patch.setattr(ClaimedRuns, "write", kill)
        done = cluster.run(small(2), path, jobs=1)
    assert killed
    assert (done.num_done, done.num_failed) == (2, 0)
    assert len(checksums(path)) == 2
    assert checksums(path).items() <= checksums(local).items()


def test_who_is_killed_every_time_fails(tmp_path: Path) -> None:
    killed: set[int] = set()
    before = set(workers())  # of tests before, on their way out

    def kill() -> bool:
        for pid in set(workers()) - killed - before:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return False

    done = cluster.run(small(2), tmp_path / "results.sqlite", jobs=1, stop=kill)
    assert (done.num_done, done.num_failed) == (0, 2)
    assert len(killed) == TRIES
    for run in runs(tmp_path / "results.sqlite").values():
        assert run.failure is not None
        assert run.failure.startswith("its worker died, 3 times; the last time: WorkerCrashedError")


def test_only_what_is_missing_is_run(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.sqlite"
    shutil.copy(local, path)
    before = runs(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        lost = "SELECT id FROM runs WHERE seed >= 2"
        connection.execute(f"DELETE FROM reports WHERE run IN ({lost})")
        connection.execute(f"DELETE FROM evaluations WHERE run IN ({lost})")
        connection.execute(
            "UPDATE runs SET status = 'missing', num_unfinished = NULL, results = NULL WHERE seed >= 2"
        )
    with Store(path) as store:
        seal(store._database, [run.id for run in before.values()])
    assert cluster.run(small(), path, jobs=1).num_done == 4
    assert checksums(path) == checksums(local)
    begun = [run for name, run in runs(path).items() if run.started_at != before[name].started_at]
    assert sorted(run.spec["seed"] for run in begun) == [2, 3]

    def never(*_: object) -> None:
        raise AssertionError("nothing is missing")

    monkeypatch.setattr(cluster, "ClaimedRuns", never)
    assert cluster.run(small(), path).num_done == 4


def test_a_users_trace_goes_with_the_task(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this process can import the module: workers get its file."""
    (tmp_path / "sent_traces.py").write_text("def uncut(pi_a, mu_a):\n    return (pi_a / mu_a).clip(0, 1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sweep = Sweep(["pocket/catch"], ("sent_traces:uncut",), num_seeds=2, settings=SMALL)
    specs = runs_of(sweep)
    path = tmp_path / "results.sqlite"
    assert cluster.run(specs, path, jobs=1).num_done == 2
    returns = {run.spec["seed"]: run.returns for run in runs(path).values()}
    assert returns == {run.spec["seed"]: run.returns for run in runs(local).values() if run.spec["seed"] < 2}
    sys.modules.pop("sent_traces")


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`jobs` must be at least 1 on Ray, .*got 0"):
        cluster.run(small(), tmp_path / "results.sqlite", jobs=0)
    assert not (tmp_path / "results.sqlite").exists()


def test_an_evaluation_has_the_numbers_of_the_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers and more parts than workers; to the last bit."""
    monkeypatch.setattr(parts, "ROWS_PER_PART", 300)
    log = simulate(chain(5, slip=0.1), np.full((5, 2), 0.5), 100, seed=0)
    assert len(parts.cuts(log)) > 2
    settings: dict[str, Any] = {"target": np.tile([0.4, 0.6], (5, 1)), "gamma": 0.9, "trace": "retrace"}
    here = evaluation.estimate(log, **settings)
    there = evaluation.estimate(log, engine="ray", num_workers=2, **settings)
    assert there.as_dict() == here.as_dict()
