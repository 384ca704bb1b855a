"""Sweeps: runs and populations, and an engine that runs what is missing, whatever happened before.

Packs that are trained have two members everywhere, so their program is compiled once.
"""

import errno
import json
import multiprocessing
import multiprocessing.spawn
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path

import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import disk, training
from offtrace.agent.checkpoints import FolderLock
from offtrace.agent.spec import to_json
from offtrace.cli import main
from offtrace.cli.progress import SweepLines
from offtrace.cli.sweep_progress import run_sweep
from offtrace.experiments import engine, spec
from offtrace.experiments import populations as populations_module
from offtrace.experiments.ladder import RUNGS, rung_of
from offtrace.experiments.populations import populations, saved_populations
from offtrace.experiments.presets import PRESETS, preset
from offtrace.experiments.progress import SweepProgress
from offtrace.experiments.spec import Sweep, Variant, runs_of, with_settings
from offtrace.experiments.store import Store
from offtrace.experiments.workers import disk_error

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


def small(**changes) -> Sweep:
    return Sweep(**{"envs": ("pocket/catch",), "traces": ("retrace", "dqn"), "settings": SMALL, **changes})


def checksums(path: Path) -> dict[str, str]:
    with Store(path, read_only=True) as store:
        return {run.fingerprint: run.checksum for run in store.runs() if run.status == "done"}


def after(number: int) -> Callable[[], bool]:
    """To stop when it has been asked that often: before a population, and after every tick."""
    asked = iter([False] * number)
    return lambda: next(asked, True)


def test_cells_are_all_combinations_once() -> None:
    sweep = small(lambdas=(0.5, 1.0), num_seeds=3)
    found = [(spec.trace, spec.lambda_, spec.seed) for spec in runs_of(sweep)]
    assert len(found) == len(set(found)) == 2 * 3 + 3
    assert {lambda_ for trace, lambda_, _ in found if trace == "dqn"} == {0.0}


def test_lambda_zero_is_trained_once() -> None:
    """At λ = 0 all traces are one algorithm, with settings of its own; DQN is another one."""
    sweep = small(
        traces=("tree_backup", "retrace", "dqn"),
        lambdas=(0.0, 1.0),
        num_seeds=1,
        by_algorithm={("one_step", 0.0): {"step_size": 0.1}, ("tree_backup", 1.0): {"step_size": 0.2}},
    )
    found = {(spec.trace, spec.lambda_): spec.step_size for spec in runs_of(sweep)}
    assert list(found) == [("tree_backup", 0.0), ("tree_backup", 1.0), ("retrace", 1.0), ("dqn", 0.0)]
    assert found["tree_backup", 0.0] == 0.1
    assert found["tree_backup", 1.0] == 0.2


def test_variants_and_seeds() -> None:
    """Algorithms that are more than a trace and a λ, with what differs between games; seeds from another block."""
    fields = {"trace": "dqn", "lambda_": 0.0, "target_policy": "exploration", "step_size": 0.1}
    variant = Variant(fields, {"pocket/cartpole": {"step_size": 0.3}})
    sweep = small(envs=("pocket/catch", "pocket/cartpole"), traces=(), lambdas=(), variants=(variant,), first_seed=7)
    found = [(spec.env, spec.target_policy, spec.step_size, spec.seed) for spec in runs_of(sweep)]
    assert found[0] == ("pocket/catch", "exploration", 0.1, 7)
    assert {(env, size) for env, _, size, _ in found} == {("pocket/catch", 0.1), ("pocket/cartpole", 0.3)}
    everywhere = with_settings(sweep, {"step_size": 0.5})
    assert {spec.step_size for spec in runs_of(everywhere)} == {0.5}


def test_the_ladder_goes_one_difference_at_a_time() -> None:
    """Each rung differs from the one before it in one field, or in the size of its windows, and its step size."""
    for scale, length in (("pocket", 5), ("minatar", 7)):
        sweep = replace(preset("ladder", scale), envs=preset("ladder", scale).envs[:1], num_seeds=1)
        by_rung = {rung_of(to_json(spec)): to_json(spec) for spec in runs_of(sweep)}
        assert len(by_rung) == length
        for rung in RUNGS:
            if rung.name not in by_rung or rung.before is None:
                continue
            one, other = by_rung[rung.before], by_rung[rung.name]
            differing = {name for name in {*one, *other} if one.get(name) != other.get(name)} - {"step_size"}
            assert differing in (
                {"target_policy"},
                {"target_policy", "target_epsilon"},
                {"double"},
                {"lambda_"},
                {"trace", "window", "num_windows"},
            ), rung.name


def test_the_presets_of_the_small_world_share_their_runs() -> None:
    """Two rungs are runs of `table_2`, and `table_3` is a part of it; all of it is five programs."""
    whole = {repr(spec) for name in PRESETS for spec in runs_of(preset(name))}
    assert len(whole) == 5 * 28 * (11 + 2)
    assert len(populations(runs_of(preset("table_2")), 10_000)) == 2
    sizes = [len(members) for members in populations(runs_of(preset("table_2")), populations_module.MAX_MEMBERS)]
    assert sizes == [200] * 7 + [140]  # of one size, so that one compiled program serves all of the first kind


def test_settings_of_one_game() -> None:
    sweep = small(envs=("pocket/catch", "pocket/cartpole"), by_env={"pocket/cartpole": {"step_size": 0.5}})
    assert {(spec.env, spec.step_size) for spec in runs_of(sweep)} >= {("pocket/cartpole", 0.5)}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"envs": ()}, "`envs` must not be empty"),
        ({"first_seed": -1}, "`first_seed` must be at least 0; got -1"),
        ({"num_seeds": 0}, "`num_seeds` must be at least 1; got 0"),
        ({"settings": {"step": 1}}, "`settings` must be fields of `TrainSpec`; got 'step'"),
        ({"settings": {"seed": 1}}, "`settings` must not have 'seed'. Use `num_seeds`"),
    ],
)
def test_wrong_sweeps_are_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        small(**change)


def test_packs_share_a_program() -> None:
    """DQN has its own, so have traces that are not Markov, and environments on the host are alone."""
    sweep = small(traces=("retrace", "tree_backup", "rbis", "dqn"), lambdas=(0.5, 1.0), num_seeds=2)
    assert sorted(len(members) for members in populations(runs_of(sweep), 100)) == [2, 4, 8]
    assert max(len(members) for members in populations(runs_of(sweep), 3)) == 3
    host = small(envs=("CartPole-v1",), traces=("retrace",), num_seeds=2)
    assert [len(members) for members in populations(runs_of(host), 100)] == [1, 1]


def test_only_what_is_missing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the first population, gone on with, made larger; at the end as if nothing had happened."""
    path, specs = tmp_path / "results.sqlite", runs_of(small(traces=("retrace",), num_seeds=4))
    in_twos = [[to_json(spec) for spec in members] for members in populations(specs, 2)]
    monkeypatch.setattr(
        engine, "new_populations", lambda missing, *_: [rows for rows in in_twos if rows[0] in map(to_json, missing)]
    )
    asked = iter([False, False, True])
    stopped = engine.run(specs, path, jobs=0, stop=lambda: next(asked, True))
    assert stopped.num_done == 0
    assert 0 < stopped.num_steps < stopped.total_steps
    assert (tmp_path / "results.sqlite.work").exists()
    done = engine.run(specs, path, jobs=0)
    assert (done.num_done, done.num_failed, done.num_steps) == (4, 0, done.total_steps)
    assert not (tmp_path / "results.sqlite.work").exists()
    policies = ot.load_policies(path)
    assert [policy.spec for policy in policies] == specs
    x = np.ones((1, 10, 10, 2), bool)
    assert (ot.load_policy(path, seed=2).q(x) == policies[2].q(x)).all()
    assert (policies[0].q(x) != policies[2].q(x)).any()
    first = checksums(path)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is missing")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "train_population", never)
        engine.run(specs, path, jobs=0)

    # In two processes, one of which is killed: the same results, run by run.
    other, killed = tmp_path / "other.sqlite", []

    def kill(_: SweepProgress) -> None:
        for child in multiprocessing.active_children()[:1]:
            if not killed:
                killed.append(child.pid)
                child.kill()

    done = engine.run(specs, other, jobs=2, tell=kill)
    assert killed
    assert (done.num_done, done.num_failed) == (4, 0)
    assert checksums(other) == first


def test_a_sweep_in_python(tmp_path: Path) -> None:
    """The same runs as on the command line; only those of this sweep are returned, whatever else is in the file."""
    path = tmp_path / "results.sqlite"
    sweep = small(traces=("retrace",), num_seeds=2)
    told: list[SweepProgress] = []
    results = ot.experiments.run(sweep, path, jobs=0, progress=told.append)
    assert told[-1].num_done == 2
    assert {run.fingerprint: run.checksum for run in results.runs} == checksums(path)
    assert results.scores().axes["seed"] == (0, 1)
    with Store(path) as store:
        (run_id,) = store.register([{**to_json(runs_of(sweep)[0]), "seed": 7}], {})
        assert store.claim(run_id, "another")
        store.fail(run_id, "OSError: no room")
    assert len(ot.experiments.run(sweep, path, jobs=0).runs) == 2
    assert len(ot.experiments.read([path]).runs) == 3
    with pytest.warns(UserWarning, match="1 of 1 runs failed; the first: pocket/catch retrace λ = 1 seed 7: OSError"):
        ot.experiments.run(replace(sweep, first_seed=7, num_seeds=1), path, jobs=0, stop=lambda: True)


def test_a_population_goes_on_however_others_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two populations of two one is stopped; what is missing then would be cut into populations of one."""
    path, specs = tmp_path / "results.sqlite", runs_of(small(traces=("retrace",), num_seeds=4))
    new = engine.new_populations
    monkeypatch.setattr(engine, "new_populations", lambda missing, _, on_accelerator: new(missing, 2, on_accelerator))
    ticks = []
    stopped = engine.run(specs, path, jobs=0, stop=lambda: len(ticks) >= 10 or bool(ticks.append(None)))
    assert stopped.num_done == 2
    assert [len(members) for members in saved_populations(path, specs[2:])[0]] == [2]
    with Store(path) as store:  # as if the process had been killed after it saved, and before it wrote
        lost = store.missing()[0][0]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM reports WHERE run = ? AND tick > 0", (lost,))
    resumed = []
    train = engine.train_population
    monkeypatch.setattr(
        engine,
        "train_population",
        lambda path, members, *more: (resumed.append(len(members)), train(path, members, *more)),
    )
    assert engine.run(specs, path, jobs=0).num_done == 4
    assert resumed == [2]
    assert not (tmp_path / "results.sqlite.work").exists()
    with Store(path, read_only=True) as store:
        found = [[report.tick for report in run.reports] for run in store.runs()]
    assert found == [list(range(len(found[0])))] * 4


def test_runs_of_a_begun_population_are_done_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 0 and 1 are stopped, 0 and 2 run to their end, then all three: the population that was begun goes on."""
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    zero, one, two = runs_of(small(traces=("retrace",), num_seeds=3))
    engine.run([zero, one], path, jobs=0, stop=after(4))
    (begun,) = work.iterdir()
    assert engine.run([zero, two], path, jobs=0).num_done == 2
    assert [*work.iterdir()] == [begun]
    before = checksums(path)
    train, resumed = training.train, []

    def noted(specs, folder, *, resume, **more):
        resumed.append((specs, folder, resume))
        return train(specs, folder, resume=resume, **more)

    monkeypatch.setattr(training, "train", noted)
    assert engine.run([zero, one, two], path, jobs=0).num_done == 3
    assert resumed == [([zero, one], begun, True)]
    assert not work.exists()
    assert before.items() < checksums(path).items()
    with Store(path, read_only=True) as store:
        found = [[report.tick for report in run.reports] for run in store.runs()]
    assert found == [list(range(len(found[0])))] * 3

    train([zero, one], begun, stop=lambda: True)  # a folder that nobody will need
    engine.run([zero], path, jobs=0)
    assert not work.exists()


def test_a_begun_population_that_is_more_work_than_its_missing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds 0 and 1 are hardly begun when 0 is done elsewhere: 1 begins anew, with 3, and so it goes on."""
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    zero, one, two, three = runs_of(small(traces=("retrace",), num_seeds=4))
    engine.run([zero, one], path, jobs=0, stop=after(2))
    (begun,) = work.iterdir()
    engine.run([zero, two], path, jobs=0)
    train, trained = training.train, []

    def noted(specs, folder, *, resume, **more):
        trained.append((specs, resume))
        return train(specs, folder, resume=resume, **more)

    monkeypatch.setattr(training, "train", noted)
    engine.run([zero, one, two, three], path, jobs=0, stop=after(4))
    assert begun.exists()
    assert engine.run([zero, one, two, three], path, jobs=0).num_done == 4
    assert trained == [([one, three], False), ([one, three], True)]
    assert not work.exists()


def test_a_begun_population_that_the_store_does_not_know_stays(tmp_path: Path) -> None:
    """The file of results is moved away, and others come in its place."""
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    specs = runs_of(small(traces=("retrace",), num_seeds=4))
    engine.run(specs[:2], path, jobs=0, stop=after(2))
    (begun,) = work.iterdir()
    path.rename(tmp_path / "moved.sqlite")
    empty = work / "empty"
    empty.mkdir()
    (empty / "spec.json").write_text('{"made_with": {}, "specs": []}')
    assert engine.run(specs[2:], path, jobs=0).num_done == 2
    assert {*work.iterdir()} == {begun, empty}


def other_version(folder: Path) -> None:
    for place in folder.glob("checkpoints/*/manifest.json"):
        content = disk.unsealed(place.read_bytes())
        del content["sha256"]
        content["record"]["made_with"]["jax"] = "0.0.1"
        place.write_bytes(disk.sealed(content))


def damaged(folder: Path) -> None:
    for arrays in folder.glob("checkpoints/*/arrays.safetensors"):
        arrays.write_bytes(b"")


@pytest.mark.parametrize("spoil", [other_version, damaged])
def test_a_begun_population_that_cannot_be_resumed_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    """First with both of its cells missing; then, begun again, with one of them done elsewhere."""
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    zero, one, two = runs_of(small(traces=("retrace",), num_seeds=3))
    train, trained = training.train, []

    def noted(specs, folder, *, resume, **more):
        trained.append((specs, resume))
        if specs == [one]:
            return train([one, two])[:1]  # the program for two
        return train(specs, folder, resume=resume, **more)

    monkeypatch.setattr(training, "train", noted)
    engine.run([zero, one], path, jobs=0, stop=after(4))
    (begun,) = work.iterdir()
    spoil(begun)
    engine.run([zero, one], path, jobs=0, stop=after(4))
    assert trained[1:] == [([zero, one], True), ([zero, one], False)]
    engine.run([zero, two], path, jobs=0)
    spoil(begun)
    done = engine.run([zero, one], path, jobs=0)
    assert (done.num_done, done.num_failed) == (2, 0)
    assert trained[4:] == [([zero, one], True), ([one], False)]
    assert not work.exists()


def test_a_begun_population_stays_if_it_is_not_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is at work in its folder, or its environment is not there: it fails, and goes on the next time."""
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    specs = runs_of(small(traces=("retrace",), num_seeds=2))
    engine.run(specs, path, jobs=0, stop=after(4))
    (begun,) = work.iterdir()
    saved = {*begun.rglob("*")}

    def failures() -> list[str]:
        assert engine.run(specs, path, jobs=0).num_failed == 2
        assert {*begun.rglob("*")} == saved
        with Store(path, read_only=True) as store:
            return [run.failure or "" for run in store.runs()]

    with FolderLock(begun):
        assert all("`folder` is in use" in failure for failure in failures())

    def refuse(*_: object) -> None:
        raise ValueError("no such environment")

    with monkeypatch.context() as patch:
        patch.setattr(training, "runtime_for", refuse)
        assert all("no such environment" in failure for failure in failures())
    assert engine.run(specs, path, jobs=0).num_done == 2


def test_killed_while_a_population_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, work = tmp_path / "results.sqlite", tmp_path / "results.sqlite.work"
    specs = runs_of(small(traces=("retrace",), num_seeds=2))

    def killed(folder: Path, **_: object) -> None:
        (folder / "spec.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.run(specs, path, jobs=0)
    assert len([*work.iterdir()]) == 1
    assert engine.run(specs, path, jobs=0).num_done == 2
    assert not work.exists()


def test_wrong_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`jobs` must be at least 0; got -1"):
        engine.run(runs_of(small()), tmp_path / "results.sqlite", jobs=-1, stop=lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    wrong = runs_of(
        small(traces=("retrace",), num_seeds=1, settings={**SMALL, "num_steps": 60})
    )  # less than is filled
    right = runs_of(small(traces=("retrace",), num_seeds=2))
    done = engine.run([*wrong, *right], tmp_path / "results.sqlite", jobs=0)
    assert (done.num_done, done.num_failed) == (2, 1)
    with Store(tmp_path / "results.sqlite", read_only=True) as store:
        failed = store.runs(status="failed")
    assert failed[0].spec == to_json(wrong[0])
    assert "`num_steps` must be more than" in failed[0].failure


@pytest.mark.parametrize("most", [1, 2])
def test_a_run_that_diverges_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    """However populations are cut: it is over, with the same reports, and the sweep ends with 3 and says which."""
    monkeypatch.setattr(populations_module, "MAX_MEMBERS", most)
    wild = runs_of(small(traces=("retrace",), num_seeds=2, settings={**SMALL, "step_size": 1e30}))
    path = tmp_path / "results.sqlite"
    done = engine.run(wild, path, jobs=0)
    assert (done.num_done, done.num_diverged, done.num_failed, done.num_left) == (0, 2, 0, 0)
    with Store(path, read_only=True) as store:
        runs, missing = store.runs(), store.missing()
    assert missing == []
    assert [run.status for run in runs] == ["diverged"] * 2
    assert all(run.reports[-1].num_steps >= SMALL["num_steps"] for run in runs), "to the end, in any population"
    assert all(run.failure.startswith("by step ") and "not finite" in run.failure for run in runs)
    monkeypatch.setattr(spec, "runs_of", lambda *_: wild)
    with pytest.raises(SystemExit) as exit_:
        main(["sweep", "pocket/catch", "--jobs", "0", "--output", str(path), "--json"])
    assert exit_.value.code == 3
    told = capsys.readouterr()
    assert json.loads(told.out)[0].items() >= {"num_runs": 0, "num_diverged": 2, "score": None}.items()
    assert "diverged: pocket/catch retrace λ = 1 seed 0 and 1 other run: by step " in told.err
    assert told.err.splitlines()[-1].endswith("results.sqlite, 2 diverged.")


def test_runs_of_another_process_are_waited_for_and_taken_over(tmp_path: Path) -> None:
    specs, path = runs_of(small(num_seeds=2)), tmp_path / "results.sqlite"
    with subprocess.Popen(["sleep", "600"]) as other:
        with Store(path) as store:
            for run_id in store.register([to_json(spec) for spec in specs[:2]], {}):
                assert store.claim(run_id, "other", pid=other.pid)

        def tell(progress: SweepProgress) -> None:
            if (progress.num_done, progress.num_elsewhere) == (2, 2):
                other.kill()
                other.wait()

        done = engine.run(specs, path, jobs=0, tell=tell)
    assert done.num_done == len(specs) == 4


def test_a_process_that_dies_as_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a population that is larger than a pipe: it is recorded, and nobody waits for ever."""
    stillborn = tmp_path / "python"
    stillborn.write_text(f'#!/bin/sh\ncase "$*" in *resource_tracker*) exec "{sys.executable}" "$@";; esac\nexit 1\n')
    stillborn.chmod(0o755)
    resource_tracker.ensure_running()
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(stillborn))
    specs = runs_of(small(traces=("retrace",), num_seeds=120))
    assert len(json.dumps([to_json(spec) for spec in specs])) > 1 << 16
    done = engine.run(specs, tmp_path / "results.sqlite", jobs=1)
    assert (done.num_done, done.num_failed) == (0, 120)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_on_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """No run is to blame, so none is recorded as failed."""

    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "a checkpoint")

    monkeypatch.setattr(training, "train", full)
    path = tmp_path / "results.sqlite"
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "pocket/catch", "--jobs", "0", "--output", str(path)])
    assert ended.value.code == 3
    assert capsys.readouterr().err == f"offtrace: [Errno {number}] {os.strerror(number)}: 'a checkpoint'\n"
    with Store(path, read_only=True) as store:
        assert {run.status for run in store.runs()} == {"missing"}


def test_a_process_that_finds_the_disk_full_ends_the_sweep(tmp_path: Path) -> None:
    error = disk_error(tmp_path / "results.sqlite", errno.ENOSPC)
    assert "The results so far are intact" in str(error)
    assert error.errno == errno.ENOSPC


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """One when runs have ended, and one every half a minute, with the time that is left if that can be told."""
    clock = iter([0.0, 0.0, 10.0, 31.0, 40.0, 41.0])
    lines = SweepLines(lambda: next(clock))
    for steps, done in ((0, 0), (10, 0), (40, 0), (500, 2), (500, 2)):
        lines.update(SweepProgress(steps, 1000, done, 0, 0, 4))
    assert capsys.readouterr().err.splitlines() == [
        "0 of 4 runs; 40 of 1,000 steps; 31 s so far",
        "2 of 4 runs; 500 of 1,000 steps; 40 s so far, about 40 s left",
    ]


def test_a_sweep_tells_how_far_it_is_without_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object, tell: Callable[[SweepProgress], None], **__: object) -> SweepProgress:
        tell(SweepProgress(0, 1000, 0, 0, 0, 4))
        return SweepProgress(1000, 1000, 4, 0, 0, 4)

    monkeypatch.setattr("offtrace.cli.progress.LINE_SECONDS", 0)
    run_sweep(run, runs_of(small()), tmp_path / "results.sqlite")
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[0] for line in told] == ["0 of 4 runs; 0 of 1,000 steps"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--engine", "ray"], "offtrace: this needs `ray`: pip install 'offtrace[ray]'\n"),
        (
            ["--ray-address", "auto"],
            "offtrace: `--ray-address` must come with `--engine ray`; got `--engine local`.\n",
        ),
    ],
)
def test_a_sweep_without_ray(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    text: str,
) -> None:
    """One line, the code for wrong input, and no file."""
    monkeypatch.setitem(sys.modules, "ray", None)  # so it cannot be imported
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "pocket/catch", "--output", str(tmp_path / "results.sqlite"), *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err == text
    assert list(tmp_path.iterdir()) == []
