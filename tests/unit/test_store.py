"""Results in a file: what is written is what is read, whoever writes beside it, and whenever somebody is killed."""

import errno
import inspect
import json
import math
import os
import random
import sqlite3
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from builders.reports import UNTRAINED, report

from offtrace.agent.telemetry import OWN_RECORDS, TickRecord
from offtrace.environments import protocols
from offtrace.environments.protocols import ATARI_RULES
from offtrace.experiments import database as module
from offtrace.experiments.store import Store, StoredRun, fingerprint, read
from offtrace.experiments.stored_runs import seal
from offtrace.experiments.worker_claims import WorkerClaim

NAN, INF = math.nan, math.inf
MADE = {"version": "0.1.0", "commit": "4e1c9ab", "machine": "a desk", "python": "3.11"}


def spec(seed: int = 0, **changes: object) -> dict[str, Any]:
    return {"env": "pocket/cartpole", "trace": "retrace", "lambda_": 1.0, "seed": seed, "hidden_sizes": [8]} | changes


def forked(function: Callable[[], object]) -> int:
    """The pid of a child that does it and ends."""
    if pid := os.fork():
        return pid
    try:
        function()
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


COMMON = f"""
import os, random, signal, sys, time, traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from offtrace.agent.telemetry import OWN_RECORDS, TickRecord
from offtrace.experiments.store import Store
path = Path(sys.argv[1])

{inspect.getsource(report)}
{inspect.getsource(spec)}
{inspect.getsource(forked)}
"""
"""The beginning of other processes. One that forks has no `Store` open then."""


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMON + textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(*processes: subprocess.Popen[str]) -> list[str]:
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def is_sound(path: Path) -> bool:
    return query(path, "PRAGMA integrity_check") == [("ok",)] and query(path, "PRAGMA foreign_key_check") == []


def bits(value: object) -> object:
    """nan equal to itself, and 1 not equal to 1.0."""
    if isinstance(value, tuple | list):
        return [bits(each) for each in value]
    return (
        struct.pack("<d", NAN if math.isnan(value) else value) if isinstance(value, float) else (type(value), value)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results of λ.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store(path) as opened:
        yield opened


def only(store: Store, **where: Any) -> StoredRun:
    (run,) = store.runs(**where)
    return run


# -- round trips ---------------------------------------------------------------------------------------------

REPORTS = [
    UNTRAINED,
    report(1),
    report(2)._replace(evaluation=12.5, off_policy_by_age=(0.5, INF, NAN)),
    report(3)._replace(events=("Q reached 1234", 'λ\n"quoted" \\ \x1b[31m \x00', "'; DROP TABLE runs; --")),
    report(4)._replace(loss=INF, q=-INF, gradient=NAN),
    report(5)._replace(loss=0.1 + 0.2, q=1e-300, step_size=5e-324, c=1.7976931348623157e308),
    report(6)._replace(num_steps=2**62, off_policy_by_age=()),
]
RETURNS = [1.0, 0.1 + 0.2, NAN, INF, -INF, 5e-324]
NOT_FINITE_RETURN = "a return of its evaluation is not finite"


def test_a_run_comes_back_bit_by_bit(path: Path) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], MADE)
        assert store.claim(run_id, "me")
        store.write(run_id, REPORTS)
        store.finish(run_id, RETURNS, 3)  # not all are finite: it diverged
        checksum = store.checksum(run_id)
    with Store(path, read_only=True) as store:
        run = only(store)
        assert bits(run.reports) == bits(REPORTS)
        assert bits(run.returns) == bits(RETURNS)
        assert (run.spec, run.status, run.failure, run.num_unfinished) == (spec(), "diverged", NOT_FINITE_RETURN, 3)
        assert MADE.items() <= run.provenance.items()
        assert run.provenance["made_at"] <= run.started_at <= run.ended_at
        assert run.checksum == store.checksum(run_id) == checksum
        assert store.missing() == []


def test_random_numbers_come_back_bit_by_bit(store: Store) -> None:
    rng = random.Random(0)
    numbers = [struct.unpack("<d", rng.randbytes(8))[0] for _ in range(11 * 500)]
    reports = [TickRecord(i, i, i, i, *numbers[11 * i : 11 * i + 11], ()) for i in range(500)]
    (run_id,) = store.register([spec()], MADE)
    store.write(run_id, reports)
    assert bits(only(store).reports) == bits(reports)


def test_what_sqlite_has_no_word_for(store: Store) -> None:
    (run_id,) = store.register([spec()], {})
    store.write(run_id, [report(0)._replace(q=-0.0, evaluation=NAN)])
    (row,) = only(store).reports
    assert row.q == 0
    assert row.evaluation is None


def test_the_columns_are_the_fields_of_a_report(store: Store, path: Path) -> None:
    names = [name for _, name, *_ in query(path, "PRAGMA table_info(reports)")]
    assert names == ["run", *(name for name in TickRecord._fields if name not in OWN_RECORDS)]


def test_a_checksum_is_of_every_number_and_of_nothing_else(path: Path) -> None:
    """Two files, made apart, agree; one bit of one number, and they do not."""
    sums = []
    for name, q, value in (("a", 8.5, 1.0), ("b", 8.5, 1.0), ("c", math.nextafter(8.5, 9), 1.0), ("d", 8.5, 2.0)):
        with Store(path.with_name(name)) as store:
            store.register([spec(seed=9)] if name == "b" else [], {"machine": name})
            (run_id,) = store.register([spec()], {"machine": name})
            store.write(run_id, [report(0), report(1, q=q)])
            store.finish(run_id, [value])
            sums.append(store.checksum(run_id))
    assert sums[0] == sums[1]
    assert len(set(sums)) == 3


def test_a_resumed_run_replaces_what_it_repeats(store: Store) -> None:
    one, other = store.register([spec(0), spec(1)], {})
    store.write(one, [report(tick) for tick in range(10)])
    store.write(other, [report(tick) for tick in range(10)])
    store.write(one, [report(6, q=1.0), report(7, q=2.0)])
    store.write(one, [])
    runs = store.runs()
    assert [(r.tick, r.q) for r in runs[0].reports] == [*((tick, 8.5) for tick in range(6)), (6, 1.0), (7, 2.0)]
    assert len(runs[1].reports) == 10


def test_several_runs_are_written_together_or_not_at_all(store: Store, path: Path) -> None:
    one, other = store.register([spec(0), spec(1)], {})
    store.write_all({one: [report(0), report(1)], other: [report(0, q=2.0)]})
    assert [[r.q for r in run.reports] for run in store.runs()] == [[8.5, 8.5], [2.0]]
    store.claim(other, "far away")
    forge(path, host="elsewhere", token="theirs")
    with pytest.raises(RuntimeError, match=f"run {other} of .* is claimed by 'far away'"):
        store.write_all({one: [report(0, q=1.0)], other: [report(0, q=1.0)]})
    assert [[r.q for r in run.reports] for run in store.runs()] == [[8.5, 8.5], [2.0]]


def test_what_a_run_is_made_with_may_be_known_late(store: Store, path: Path) -> None:
    ids = store.register([spec(0), spec(1), spec(2)], MADE)
    for run_id in ids[:2]:
        store.claim(run_id, "for a machine elsewhere")
    store.made_with(ids[:2], {"machine": "another desk"})
    assert [run.provenance["machine"] for run in store.runs()] == ["another desk", "another desk", "a desk"]
    with pytest.raises(ValueError, match="`provenance` must have keys among version"):
        store.made_with(ids, {"colour": "red"})
    forge(path, host="elsewhere", token="theirs")
    with pytest.raises(RuntimeError, match="is claimed by"):
        store.made_with(ids, {"machine": "mine"})
    assert [run.provenance["machine"] for run in store.runs()] == ["another desk", "another desk", "a desk"]


# -- specs ---------------------------------------------------------------------------------------------------


def test_equal_specs_have_one_fingerprint() -> None:
    one = spec(options={"a": 1, "b": 2.5})
    assert fingerprint(one) == fingerprint(dict(reversed(one.items())) | {"options": {"b": 2.5, "a": 1.0}})
    assert fingerprint(one) == fingerprint(one | {"lambda_": 1, "hidden_sizes": (8,)})
    others = [spec(), one | {"seed": 1}, one | {"lambda_": 0.5}, one | {"options": {"a": True, "b": 2.5}}]
    assert len({fingerprint(each) for each in [one, *others]}) == 5


def test_a_plan_goes_in_and_comes_out(store: Store) -> None:
    plans = pytest.importorskip("offtrace.agent.spec")
    plan = plans.resolved(plans.TrainSpec(env="CartPole-v1", lambda_=0.9, seed=3, options={"time_limit": 7}))
    store.register([plans.to_json(plan)], {})
    assert plans.from_json(only(store).spec) == plan


def test_registering_twice_is_registering_once(store: Store) -> None:
    ids = store.register([spec(0), spec(1), spec(0)], MADE)
    assert ids[0] == ids[2] != ids[1]
    store.write(ids[0], [report(0)])
    store.finish(ids[0], [1.0])
    assert store.register([spec(1), spec(0), spec(2)], {"commit": "other"})[:2] == [ids[1], ids[0]]
    assert [(run.status, run.provenance["commit"]) for run in store.runs()] == [
        ("done", "4e1c9ab"),
        ("missing", "4e1c9ab"),
        ("missing", "other"),
    ]
    assert store.claim(ids[1], "me")  # and so it is made by the other
    assert only(store, seed=1).provenance["commit"] == "other"


def test_what_is_missing(store: Store) -> None:
    ids = store.register([spec(seed) for seed in range(4)], {})
    store.finish(ids[0], [1.0])
    store.fail(ids[1], "it broke")
    store.claim(ids[2], "me")
    assert store.missing() == [(ids[seed], spec(seed)) for seed in (1, 2, 3)]
    assert store.missing([spec(3), spec(0), spec(1), spec(3)]) == [(ids[3], spec(3)), (ids[1], spec(1))]
    assert store.missing([]) == []
    with pytest.raises(ValueError, match=r"`specs` must be registered in '.*results"):
        store.missing([spec(5)])


def test_runs_are_chosen_by_their_columns(store: Store) -> None:
    store.register([spec(s, lambda_=x, trace=t) for t in ("retrace", "dqn") for x in (0, 0.5) for s in (0, 1)], {})
    assert len(store.runs()) == 8
    assert len(store.runs(trace="dqn", lambda_=0.5)) == 2
    assert only(store, trace="dqn", lambda_=0.0, seed=1, status="missing", env="pocket/cartpole").spec["seed"] == 1
    assert store.runs(status="done") == store.runs(seed=7) == []


BAD_SPECS = {
    "without an environment": ({"trace": "dqn", "lambda_": 1.0, "seed": 0}, "`env`"),
    "a text as a seed": (spec() | {"seed": "0"}, "`seed`"),
    "no number": (spec(options={"x": NAN}), "JSON"),
    "an infinity": (spec(options={"x": INF}), "JSON"),
    "an object": (spec(options={"x": object()}), "JSON"),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_spec_is_refused_with_all_the_others(store: Store, name: str) -> None:
    bad, text = BAD_SPECS[name]
    with pytest.raises(ValueError, match=text):
        store.register([spec(), bad], {})
    assert store.runs() == []


def test_bad_calls_are_refused(store: Store) -> None:
    (run_id,) = store.register([spec()], {})
    with pytest.raises(ValueError, match=r"`provenance` must have keys among version, .*'colour'"):
        store.register([spec()], {"colour": "red"})
    for ticks in ([1, 1], [2, 1]):
        with pytest.raises(ValueError, match="`reports` must have increasing ticks"):
            store.write(run_id, [report(tick) for tick in ticks])
    with pytest.raises(ValueError, match="`returns`"):
        store.finish(run_id, [])
    calls = [store.holder, store.beat, store.checksum, lambda i: store.claim(i, "me"), lambda i: store.fail(i, "")]
    for call in [*calls, lambda i: store.write(i, [report(0)]), lambda i: store.finish(i, [1.0])]:
        with pytest.raises(ValueError, match=r"`run_id` must be the id of a run in .*got 77"):
            call(77)
    assert only(store).reports == ()


def test_what_is_done_stays(store: Store) -> None:
    (run_id,) = store.register([spec()], {})
    store.write(run_id, [report(0)])
    store.finish(run_id, [1.0])
    before = store.checksum(run_id)
    assert not store.claim(run_id, "me")
    for call in (lambda: store.write(run_id, [report(0, q=1.0)]), lambda: store.finish(run_id, [2.0])):
        with pytest.raises(ValueError, match="is done"):
            call()
    with pytest.raises(ValueError, match="is done"):
        store.fail(run_id, "")
    assert store.checksum(run_id) == before


HOSTILE = [
    "../../etc/passwd",
    "a\nb\x1b[2J\x1b]0;title\x07",
    "<script>alert(1)</script>",
    "'; DROP TABLE runs; --",
    '") OR 1=1 --',
    '=HYPERLINK("x")',
    ":env ?1 $x %s {0}",
    "nul \x00 inside",
    "λ 🎲",
    "lone \udcff",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / "results.sqlite"
    with Store(path) as store:
        ids = store.register([spec(), spec(env=name, trace=name, options={name: name})], {"command": name})
        assert store.claim(ids[1], name)
        shown = name.encode("utf-8", "backslashreplace").decode()
        assert store.holder(ids[1]).worker == shown
        store.write(ids[1], [report(0)._replace(events=(name,))])
        store.fail(ids[1], name)
        run = only(store, env=shown, trace=shown)
        assert run.spec == spec(env=name, trace=name, options={name: name})
        assert (run.failure, run.provenance["command"], run.reports[0].events) == (shown, shown, (name,))
        assert len(store.runs()) == 2
        assert store.runs(status=shown) == []
    assert [file.name for file in tmp_path.iterdir()] == ["results.sqlite"]
    assert is_sound(path)


def test_a_long_failure_keeps_its_end(store: Store) -> None:
    (run_id,) = store.register([spec()], {})
    store.fail(run_id, "x" * 100_000 + "the end")
    assert len(only(store).failure) == 20_000
    assert only(store).failure.endswith("the end")
    assert store.claim(run_id, "me")
    assert only(store).failure is None


# -- views ---------------------------------------------------------------------------------------------------


def test_views_against_a_computation_by_hand(store: Store, path: Path) -> None:
    """Ticks of 5 % of 1,000 steps: those that end at 950 and 1,000 are the last 10 %; 900 is not."""
    done, silent, running = store.register([spec(0), spec(1), spec(2)], {})
    reports = [report(i)._replace(num_steps=50 * i, num_episodes=5, episode_return=100.0) for i in range(21)]
    reports[19] = reports[19]._replace(num_episodes=3, episode_return=2.0)
    reports[20] = reports[20]._replace(num_episodes=1, episode_return=10.0)
    store.write(done, reports)
    store.finish(done, [1.0, 2.0, 6.0])
    store.write(silent, [r._replace(num_episodes=0, episode_return=NAN) for r in reports])
    store.finish(silent, [4.0])
    store.write(running, reports)
    names = "run, env, trace, lambda, seed, num_steps, num_episodes, score, evaluation"
    assert query(path, f"SELECT {names} FROM final_scores ORDER BY run") == [
        (done, "pocket/cartpole", "retrace", 1.0, 0, 1000, 4, (3 * 2.0 + 1 * 10.0) / 4, 3.0),
        (silent, "pocket/cartpole", "retrace", 1.0, 1, 1000, 0, None, 4.0),
    ]
    curve = query(path, "SELECT seed, status, tick, num_steps, episode_return FROM curves ORDER BY seed, tick")
    assert len(curve) == 3 * 21
    assert curve[19] == (0, "done", 19, 950, 2.0)
    assert curve[-1] == (2, "missing", 20, 1000, 10.0)


def test_a_tick_without_returns_has_no_weight(store: Store, path: Path) -> None:
    (run_id,) = store.register([spec()], {})
    ticks = [(960, 2, 3.0), (980, 3, NAN), (1000, 4, 6.0)]
    store.write(
        run_id,
        [report(i)._replace(num_steps=s, num_episodes=n, episode_return=r) for i, (s, n, r) in enumerate(ticks)],
    )
    store.finish(run_id, [1.0])
    assert query(path, "SELECT score FROM final_scores") == [((2 * 3.0 + 4 * 6.0) / 6,)]


# -- claims --------------------------------------------------------------------------------------------------


def test_of_two_processes_one_gets_a_run(path: Path) -> None:
    with Store(path) as store:
        ids = store.register([spec(seed) for seed in range(40)], {})
    code = """
    def claims():
        store = Store(path)
        claimed = [run for run, _ in store.missing() if store.claim(run, "one of two")]
        os.write(1, f"{' '.join(map(str, claimed))}\\n".encode())
        time.sleep(0.5)  # a claim of the dead would be free for the other

    children = [forked(claims) for _ in range(2)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    """
    (output,) = ended(start(code, path))
    claimed = [int(run) for run in output.split()]
    assert sorted(claimed) == ids, "each exactly once"


def test_a_claim_keeps_others_out(store: Store, path: Path) -> None:
    """Of the same process, too, by another `Store` of it; another process may not write, and is told who may."""
    (run_id,) = store.register([spec()], {})
    assert store.claim(run_id, "me")
    assert not store.claim(run_id, "me")
    code = """
    with Store(path) as store:
        print(store.claim(1, "you"))
        store.release(1)
        for call in (lambda: store.write(1, [report(0)]), lambda: store.finish(1, [1.0]), lambda: store.fail(1, "")):
            try:
                call()
            except RuntimeError as error:
                print(error)
    """
    (output,) = ended(start(code, path))
    first, *refusals = output.splitlines()
    assert first == "False"
    assert len(refusals) == 3
    assert all(f"is claimed by 'me', process {os.getpid()} on" in line for line in refusals)
    assert only(store).status == "running"
    assert only(store).reports == ()
    store.release(run_id)
    assert only(store).status == "missing"
    assert store.holder(run_id) is None
    assert store.claim(run_id, "me again")


def test_closing_gives_claims_back(path: Path) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], {})
        assert store.claim(run_id, "me")
        store.write(run_id, [report(0)])
    with Store(path) as store:
        assert (only(store).status, len(only(store).reports)) == ("missing", 1)
        assert store.claim(run_id, "me")


@pytest.mark.parametrize("reaped", [True, False], ids=["gone", "a zombie"])
def test_the_claim_of_a_killed_process_can_be_claimed(store: Store, path: Path, reaped: bool) -> None:
    (run_id,) = store.register([spec()], {})
    process = start("store = Store(path); print(store.claim(1, 'victim'), flush=True); time.sleep(60)", path)
    assert process.stdout.readline() == "True\n"
    assert not store.claim(run_id, "me")
    process.kill()
    if reaped:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert only(store).status == "running"
    assert store.claim(run_id, "me")
    process.communicate()
    assert store.holder(run_id).pid == os.getpid()


def test_a_claim_for_another_process(store: Store, path: Path) -> None:
    """A parent claims for its child, who writes; the claim ends with the child."""
    (run_id,) = store.register([spec()], {})
    code = """
    print("ready", flush=True)
    sys.stdin.readline()
    with Store(path) as store:
        store.write(1, [report(0)])
    """
    command = [sys.executable, "-c", COMMON + textwrap.dedent(code), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        assert store.claim(run_id, "for a child", pid=child.pid)
        child.communicate("go\n", timeout=30)
    assert child.returncode == 0
    assert len(only(store).reports) == 1
    with pytest.raises(ValueError, match="`pid` must be the id of a running process"):
        store.claim(run_id, "late", pid=child.pid)
    assert store.claim(run_id, "me")


def forge(path: Path, **changes: Any) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE claims SET {', '.join(f'{name} = ?' for name in changes)}", [*changes.values()])


def test_a_pid_that_is_used_again_is_another_process(store: Store, path: Path) -> None:
    (run_id,) = store.register([spec()], {})
    store.claim(run_id, "me")
    forge(path, born=store.holder(run_id).born - 1, token="of the dead")
    assert store.claim(run_id, "me")


def test_another_host_lives_as_long_as_its_heart_beats(store: Store, path: Path) -> None:
    (run_id,) = store.register([spec()], {})
    store.claim(run_id, "far away")
    forge(path, host="elsewhere", pid=1, token="theirs", heartbeat=time.time() - 100)
    assert not store.claim(run_id, "me")
    assert not store.claim(run_id, "me", stale_seconds=200)
    with pytest.raises(RuntimeError, match="is claimed by 'far away', process 1 on 'elsewhere'"):
        store.beat(run_id)
    assert store.claim(run_id, "me", stale_seconds=50)


def test_writing_is_a_sign_of_life(store: Store, path: Path) -> None:
    (run_id,) = store.register([spec()], {})
    store.claim(run_id, "me")
    for call in (lambda: store.write(run_id, [report(0)]), lambda: store.beat(run_id)):
        forge(path, heartbeat=0.0)
        call()
        assert store.holder(run_id).heartbeat == pytest.approx(time.time(), abs=30)


def test_who_lost_a_claim_may_not_write(store: Store, path: Path) -> None:
    """It slept too long, and another host has taken the run, and perhaps given it back."""
    (run_id,) = store.register([spec()], {})
    store.claim(run_id, "sleeper")
    forge(path, host="elsewhere", token="theirs")
    with pytest.raises(RuntimeError, match="is claimed by"):
        store.write(run_id, [report(0)])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM claims")
    with pytest.raises(RuntimeError, match="no longer claimed by this worker"):
        store.write(run_id, [report(0)])


# -- many processes, and dead ones ---------------------------------------------------------------------------


def test_eight_processes_lose_no_row(path: Path) -> None:
    """1,000 rows each, ten a time, into a file that all of them make at once."""
    code = """
    def work(seed):
        with Store(path) as store:
            (run,) = store.register([spec(seed)], {})
            assert store.claim(run, f"worker {seed}")
            for first in range(0, 1000, 10):
                store.write(run, [report(tick, q=seed + tick / 1024) for tick in range(first, first + 10)])
            store.finish(run, [seed])

    children = [forked(lambda seed=seed: work(seed)) for seed in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    """
    ended(start(code, path))
    assert is_sound(path)
    with Store(path, read_only=True) as store:
        runs = store.runs()
    assert sorted(run.spec["seed"] for run in runs) == list(range(8))
    for run in runs:
        seed = run.spec["seed"]
        assert [(r.tick, r.q) for r in run.reports] == [(tick, seed + tick / 1024) for tick in range(1000)]
        assert run.returns == (seed,)


def test_a_file_that_another_process_is_making(path: Path) -> None:
    """SQLite does not wait for a file to be free before it changes its journal: it says at once that it is locked."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match="database is locked"):
            Store(path, timeout=0.05)
        leave = threading.Timer(0.3, other.execute, ["ROLLBACK"])
        leave.start()
        with Store(path, timeout=30) as store:
            assert store.register([spec()], MADE) == [1]
        leave.join()


def test_kill_while_writing(path: Path) -> None:
    """Five rows a time: always whole fives, and all of which it said that they are there."""
    code = """
    import sqlite3
    def work(told):
        store = Store(path)
        (run,) = store.register([spec()], {})
        assert store.claim(run, "victim")
        first = len(store.runs()[0].reports)
        while True:
            store.write(run, [report(tick) for tick in range(first, first + 5)])
            first += 5
            os.write(told, b"%d " % first)

    rng, written, sizes = random.Random(1), 0, set()
    for i in range(30):
        reader, told = os.pipe()
        child = forked(lambda: work(told))
        os.close(told)
        if i % 2 == 0:  # of the others, some are killed before they write
            os.read(reader, 1)
        time.sleep(rng.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(reader) as pipe:
            written = max([written, *map(int, pipe.read().split())])
        with Store(path, read_only=True) as store:
            ticks = [r.tick for r in store.runs()[0].reports]
        assert ticks == list(range(len(ticks))), ticks
        assert len(ticks) % 5 == 0 and len(ticks) >= written, (len(ticks), written)
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
        sizes.add(len(ticks))
    assert len(sizes) >= 15, sizes
    """
    ended(start(code, path))


def test_kill_while_the_file_is_made(tmp_path: Path) -> None:
    """At moments from before its first byte to after the last."""
    code = """
    rng, states, start = random.Random(2), set(), time.perf_counter()
    os.waitpid(forked(lambda: Store(path / "whole.sqlite").register([spec()], {})), 0)
    whole = time.perf_counter() - start
    for i in range(24):
        file = path / f"{i}.sqlite"
        child = forked(lambda: (Store(file).register([spec()], {}), time.sleep(60)))
        time.sleep(rng.uniform(0, 1.5 * whole))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        states.add((file.exists() and file.stat().st_size, Path(f"{file}-wal").exists()))
        with Store(file) as store:
            assert len(store.register([spec()], {})) == len(store.runs()) == 1
    assert len(states) > 1, states
    """
    ended(start(code, tmp_path))
    assert all(map(is_sound, tmp_path.iterdir()))


def test_a_reader_while_a_writer_writes(path: Path) -> None:
    """It sees whole transactions, more and more of them."""
    with Store(path) as store:
        store.register([spec()], {})
    code = """
    with Store(path) as store:
        print("ready", flush=True)
        for first in range(0, 1500, 5):
            store.write(1, [report(tick) for tick in range(first, first + 5)])
    """
    process = start(code, path)
    process.stdout.readline()
    seen = []
    with Store(path, read_only=True) as store:
        while process.poll() is None:
            seen.append(len(only(store).reports))
        seen.append(len(only(store).reports))
    process.communicate()
    assert process.returncode == 0
    assert seen == sorted(seen)
    assert all(number % 5 == 0 for number in seen)
    assert seen[-1] == 1500
    assert len(set(seen)) > 3, "it did read meanwhile"


def test_who_waits_too_long_is_told_so(store: Store, path: Path) -> None:
    (run_id,) = store.register([spec()], {})
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Store(path, timeout=0.05) as hurried:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError, match=r"results of λ\.sqlite"):
            hurried.write(run_id, [report(0)])
        assert len(hurried.runs()) == 1, "reading is never in the way"
        other.execute("ROLLBACK")
        hurried.write(run_id, [report(0)])


# -- disks and permissions -----------------------------------------------------------------------------------


def test_a_full_disk(store: Store, path: Path) -> None:
    one, other = store.register([spec(0), spec(1)], {})
    store.write(one, [report(tick) for tick in range(20)])
    before, pages = store.checksum(one), query(path, "PRAGMA page_count")[0][0]
    store._database.do(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(OSError, match="what was stored before is intact") as caught:
        store.write(one, [report(tick, q=1.0) for tick in range(10, 2000)])
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    with pytest.raises(OSError, match="full"):
        store.finish(other, [0.5] * 5000)
    assert store.checksum(one) == before
    assert only(store, seed=1).status == "missing"
    assert is_sound(path)
    store._database.do("PRAGMA max_page_count = 100000")
    store.write(one, [report(tick, q=1.0) for tick in range(10, 2000)])
    assert len(only(store, seed=0).reports) == 2000


def test_a_file_that_may_not_grow(path: Path) -> None:
    """By the system's own limit, in its write calls."""
    code = """
    import resource
    with Store(path) as store:
        (run,) = store.register([spec()], {})
        store.write(run, [report(tick) for tick in range(20)])
        limit = path.with_name(path.name + "-wal").stat().st_size + 8192
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            store.write(run, [report(tick) for tick in range(5000)])
        except OSError as error:
            print(error.filename)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(len(store.runs()[0].reports))
    """
    assert ended(start(code, path)) == [f"{path}\n20\n"]
    assert is_sound(path)


def test_no_permission() -> None:
    """As nobody, where this process is root, to whom everything is permitted."""
    code = """
    if os.getuid() == 0:
        os.setuid(65534)
    for name in ("new.sqlite", "old.sqlite", "inner/new.sqlite"):
        try:
            Store(path / name)
        except PermissionError as error:
            print(Path(error.filename).name)
    with Store(path / "old.sqlite", read_only=True) as store:
        print(len(store.runs()), len(list(path.iterdir())))
        try:
            store.register([spec(1)], {})
        except PermissionError as error:
            print("refused")
    """
    with tempfile.TemporaryDirectory() as name:
        with Store(Path(name) / "old.sqlite") as store:
            store.register([spec()], {})
        os.chmod(name, 0o555)
        try:
            assert ended(start(code, name)) == ["new.sqlite\nold.sqlite\ninner\n1 1\nrefused\n"]
        finally:
            os.chmod(name, 0o755)


def test_a_log_that_goes_while_a_file_is_opened() -> None:
    """A reader who may not write has seen it, and tries again; one who may not even read is told at once."""
    code = """
    from offtrace.experiments.database import Database
    if os.getuid() == 0:
        os.setuid(65534)
    mode, modes = Database._mode, ["mode=ro"]
    Database._mode = lambda database, read_only: modes.pop() if modes else mode(database, read_only)
    with Store(path / "old.sqlite", read_only=True) as store:
        print(len(store.runs()), modes)
    Database._mode = lambda *_: "mode=ro"
    for name, timeout in (("old.sqlite", 0.05), ("secret.sqlite", 90)):
        try:
            Store(path / name, read_only=True, timeout=timeout)
        except PermissionError as error:
            print(Path(error.filename).name)
    """
    with tempfile.TemporaryDirectory() as name:
        for file in ("old.sqlite", "secret.sqlite"):
            with Store(Path(name) / file) as store:
                store.register([spec()], {})
        os.chmod(Path(name) / "secret.sqlite", 0o000)
        os.chmod(name, 0o555)
        try:
            assert ended(start(code, name)) == ["1 []\nold.sqlite\nsecret.sqlite\n"]
        finally:
            os.chmod(name, 0o755)


def test_how_far_a_run_is(store: Store) -> None:
    one, other = store.register([spec(0), spec(1)], {})
    store.write(one, [report(0), report(3)])
    assert (store.num_steps(one), store.num_steps(other)) == (3000, 0)


def test_a_reader_changes_nothing(path: Path) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], {})
    before = path.read_bytes()
    with Store(path, read_only=True) as store:
        for call in (lambda: store.register([spec(1)], {}), lambda: store.write(run_id, [report(0)])):
            with pytest.raises(PermissionError, match="results of"):
                call()
        with pytest.raises(PermissionError):
            store.claim(run_id, "me")
        assert len(store.runs()) == 1
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with pytest.raises(FileNotFoundError, match="no results file"):
        Store(path.with_name("other"), read_only=True)


# -- files of others -----------------------------------------------------------------------------------------


def make(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


OURS = f"PRAGMA application_id = {module.APPLICATION}"
FOREIGN = {
    "a text": (lambda path: path.write_text("run,score\n1,2\n" * 100), "is not a results file"),
    "a short text": (lambda path: path.write_text("xy"), "is not a results file"),
    "another database": (lambda path: make(path, "CREATE TABLE runs (id)"), "not an offtrace results file"),
    "another application": (lambda path: make(path, "PRAGMA application_id = 7"), "not an offtrace results file"),
    "a newer schema": (
        lambda path: make(path, OURS, "PRAGMA user_version = 7"),
        "must have schema 3; got 7.*newer",
    ),
    "an older schema": (lambda path: make(path, OURS, "PRAGMA user_version = -1"), "must have schema 3; got -1"),
    "ours by name alone": (
        lambda path: make(path, OURS, f"PRAGMA user_version = {module.VERSION}"),
        "is damaged: columns are missing or changed: claims.born",
    ),
    "a folder": (lambda path: path.mkdir(), "must be a results file"),
    "a pipe": (lambda path: os.mkfifo(path), "must be a results file"),
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_ours_is_refused_and_left_alone(path: Path, name: str, read_only: bool) -> None:
    forge, text = FOREIGN[name]
    forge(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError, match=text) as caught:
        Store(path, read_only=read_only)
    assert path.name in str(caught.value)
    assert before is None or path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_cut_or_flipped_file_is_refused_or_read_as_data(path: Path, tmp_path: Path) -> None:
    """Whatever a stranger's file has in it: an answer, or one of the refusals."""
    with Store(path) as store:
        (run_id,) = store.register([spec()], MADE)
        store.write(run_id, [report(tick) for tick in range(50)])
        store.finish(run_id, [1.0, 2.0])
    whole, rng, other, refused = path.read_bytes(), random.Random(3), tmp_path / "other", []
    for i in range(60):
        data = bytearray(whole[: rng.randrange(1, len(whole))] if i % 3 == 0 else whole)
        for _ in range(0 if i % 3 == 0 else 20):
            data[rng.randrange(len(data))] = rng.randrange(256)
        other.write_bytes(data)
        try:
            with Store(other, read_only=True) as store:
                store.runs()
                store.missing()
        except (ValueError, OSError) as error:
            refused.append(str(error))
    assert len(refused) > 30
    assert [line for line in refused if str(other) not in line] == []


def test_no_damage_changes_a_score(path: Path, tmp_path: Path) -> None:
    """Bytes changed, cut off, swapped or zeroed: refused with the file's name on one line, or all as it was."""
    with Store(path) as store:
        for seed, run_id in enumerate(store.register([spec(seed) for seed in range(4)], MADE)):
            store.write(run_id, [report(tick, q=float(seed)) for tick in range(12)])
            store.finish(run_id, [1.0 + seed, 2.0])
    whole, page, other = path.read_bytes(), 4096, tmp_path / "other"

    def told(file: Path) -> list[Any]:
        return [(run.spec, run.status, run.provenance, bits(run.reports), bits(run.returns)) for run in read([file])]

    def damaged(rng: random.Random) -> bytes:
        data = bytearray(whole)
        kind = rng.randrange(6)
        if kind < 3:
            for _ in range(rng.choice((1, 1, 3))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[rng.randrange(len(data)) :]
        elif kind == 4:
            start = rng.randrange(len(data))
            data[start : start + 64] = bytes(len(data[start : start + 64]))
        else:
            one, two = (page * rng.randrange(len(data) // page) for _ in range(2))
            data[one : one + page], data[two : two + page] = data[two : two + page], data[one : one + page]
        return bytes(data)

    before, refused = told(path), []
    for i in range(300):
        other.write_bytes(damaged(random.Random(i)))
        try:
            assert told(other) == before, f"damage {i} was not noticed"
        except (ValueError, OSError) as error:
            refused.append(str(error))
    assert len(refused) > 150
    assert [line for line in refused if str(other) not in line or "\n" in line] == []


FORGED = {
    "a λ": "UPDATE runs SET lambda = 0.5",
    "a λ in the spec": """UPDATE runs SET spec = replace(spec, '"lambda_":1.0', '"lambda_":0.5')""",
    "a return": "UPDATE evaluations SET return = 9e999 WHERE episode = 1",
    "a return that is gone": "DELETE FROM evaluations WHERE episode = 1",
    "an episode's return": "UPDATE reports SET episode_return = 7 WHERE tick = 1",
    "a tick that is gone": "DELETE FROM reports WHERE tick = 1",
    "a status": "UPDATE runs SET status = 'failed'",
    "provenance": "UPDATE provenance SET version = '9'",
    "a run that is gone": "DELETE FROM runs",
}


@pytest.mark.parametrize("name", FORGED)
def test_what_is_not_as_it_was_stored_is_refused(path: Path, name: str) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], MADE)
        store.write(run_id, [report(0), report(1)])
        store.finish(run_id, [1.0, 2.0])
    make(path, FORGED[name])
    with pytest.raises(ValueError, match=r"results of λ.sqlite' is damaged(: a row| at run 1 )"):
        read([path])


def test_a_return_that_is_not_finite_is_no_score(store: Store, path: Path) -> None:
    """Also with checksums that fit."""
    (run_id,) = store.register([spec()], MADE)
    store.finish(run_id, [1.0, INF])
    assert only(store).status == "diverged"
    make(path, "UPDATE runs SET status = 'done', failure = NULL")
    seal(store._database, [run_id])
    with pytest.raises(ValueError, match="a return is not finite"):
        store.runs()


def test_values_of_a_stranger_are_checked(path: Path) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], MADE)
        store.write(run_id, [report(0)])
    for column, value in (("events", "[" * 100_000), ("events", "7"), ("off_policy_by_age", '["x"]'), ("events", "")):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"UPDATE reports SET {column} = ?", (value,))
        with (
            Store(path, read_only=True) as store,
            pytest.raises(ValueError, match=r"results of λ.sqlite' is damaged"),
        ):
            store.runs()
        with Store(path) as store:
            store.write(run_id, [report(0)])
    with Store(path) as store, pytest.raises(ValueError, match="too big"):
        store.write(run_id, [report(0)._replace(events=("x" * 17_000_000,))])


def test_migrations(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        (run_id,) = store.register([spec()], MADE)
        store.write(run_id, [report(0)])
        before = store.checksum(run_id)
    monkeypatch.setattr(module, "VERSION", 5)
    monkeypatch.setattr(
        module, "SCHEMA", module.SCHEMA.replace("    failure TEXT,", "    failure TEXT, note TEXT, more TEXT,")
    )
    with pytest.raises(ValueError, match=r"must have schema 5; got 3. Use the version of offtrace that wrote it"):
        Store(path)
    more = "ALTER TABLE runs ADD COLUMN more TEXT;\nUPDATE runs SET more = 'some';\n"
    monkeypatch.setattr(
        module, "MIGRATIONS", {3: "ALTER TABLE runs ADD COLUMN note TEXT;\n", 4: more + "NONSENSE;\n"}
    )
    with pytest.raises(ValueError, match="NONSENSE"):
        Store(path)
    assert query(path, "PRAGMA user_version") == [(3,)], "all or nothing"
    assert "note" not in str(query(path, "PRAGMA table_info(runs)"))
    monkeypatch.setitem(module.MIGRATIONS, 4, more)
    with pytest.raises(ValueError, match=r"must have schema 5; got 3. Open it for writing once"):
        Store(path, read_only=True)
    with Store(path) as store:
        assert store.checksum(run_id) == before
    assert query(path, "PRAGMA user_version") == [(5,)]
    assert query(path, "SELECT note, more FROM runs") == [(None, "some")]
    Store(path, read_only=True).close()


FIRST = module.SCHEMA
for new, old in (
    ("ended_at TEXT,\n", "ended_at TEXT\n"),
    (" status, ends.num_steps", " ends.num_steps"),
    ("'done', 'diverged', 'failed'", "'done', 'failed'"),
    ("    results TEXT, ", "--"),
    ("    checksum TEXT NOT NULL", "--"),
    ("    protocol TEXT ", "--"),
    (" AS evaluation,\n    protocol\n", " AS evaluation\n"),
    (" protocol, reports.*", " reports.*"),
):
    assert FIRST.count(new) == 1
    FIRST = FIRST.replace(new, old)


def test_a_file_of_the_first_version_gets_checksums(path: Path) -> None:
    """Who reads it for a report brings it up to date; a run with an event of divergence is no longer a done one."""
    with Store(path) as store:
        done, wild, begun = store.register([spec(0), spec(1), spec(2)], MADE)
        for run_id in (done, wild, begun):
            store.write(run_id, [report(0), report(1)])
        store.write(wild, [report(1)._replace(events=("Q is not finite",))])
        store.finish(done, [1.0, 2.0])
        store.finish(wild, [3.0])
        before = store.runs()
    old = path.with_name("old.sqlite")
    make(old, OURS, "PRAGMA user_version = 1")
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.executescript(FIRST)
        connection.execute("ATTACH ? AS new", (str(path),))
        columns = "id, fingerprint, env, trace, lambda, seed, spec, status, failure, num_unfinished, provenance"
        for table in ("provenance", "reports", "evaluations"):
            connection.execute(f"INSERT INTO main.{table} SELECT * FROM new.{table}")
        connection.execute(
            f"INSERT INTO main.runs SELECT {columns}, registered_at, started_at, ended_at FROM new.runs"
        )
    with pytest.raises(ValueError, match="Open it for writing once"):
        Store(old, read_only=True)
    lines: list[str] = []
    runs = read([old], warn=lines.append)
    assert [line for line in lines if "older version" in line and "old.sqlite" in line] == lines[:1] != []
    assert [run.status for run in runs] == ["done", "diverged", "missing"]
    assert [run.checksum for run in runs] == [run.checksum for run in before]
    assert is_sound(old)
    assert query(old, "SELECT count(*) FROM final_scores") == query(path, "SELECT count(*) FROM final_scores")
    assert [*query(old, "SELECT sql FROM sqlite_schema WHERE name = 'reports'")] == [
        *query(path, "SELECT sql FROM sqlite_schema WHERE name = 'reports'")
    ]
    with Store(old) as store:
        assert store.claim(begun, "me")
        store.finish(begun, [0.0])


# -- protocols -----------------------------------------------------------------------------------------------

PONG = {"env": "atari/pong", "trace": "retrace", "lambda_": 1.0, "seed": 0}


def test_the_protocol_is_stored_and_protected(path: Path) -> None:
    with Store(path) as store:
        store.register([PONG, {**PONG, "options": {"sticky": 0.25, "num_threads": 4}}, spec()], MADE)
        plain, sticky, other = [run.protocol for run in store.runs()]
    assert plain == dict(ATARI_RULES)
    assert sticky == {**ATARI_RULES, "sticky": 0.25}
    assert other == {}
    shown = query(path, "SELECT json_extract(protocol, '$.sticky'), json_extract(protocol, '$.noop_max') FROM runs")
    assert shown == [(0.0, 30), (0.25, 30), (None, None)]
    make(path, """UPDATE runs SET protocol = '{"sticky":0.9}' WHERE id = 1""")
    with Store(path, read_only=True) as store, pytest.raises(ValueError, match=r"run 1.*not as it was stored"):
        store.runs()


def test_a_stored_protocol_outlives_other_defaults(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store:
        store.register([PONG], MADE)
        monkeypatch.setattr(protocols, "SHARED_RULES", {"atari": {**ATARI_RULES, "sticky": 0.25}})
        (run,) = store.runs()
    assert run.protocol["sticky"] == 0.0


SECOND = module.SCHEMA
for new, old in (
    ("checksum TEXT NOT NULL,", "checksum TEXT NOT NULL "),
    ("    protocol TEXT ", "--"),
    (" AS evaluation,\n    protocol\n", " AS evaluation\n"),
    (" protocol, reports.*", " reports.*"),
):
    assert SECOND.count(new) == 1
    SECOND = SECOND.replace(new, old)


def test_runs_without_a_stored_protocol(path: Path, tmp_path: Path) -> None:
    """Files of version 2: the protocol follows from the options; checksums are as they were, and still checked."""
    with Store(path) as store:
        run_id, other = store.register([{**PONG, "options": {"sticky": 0.25}}, PONG], MADE)
        store.finish(run_id, [1.0])
        with store._transaction():
            store._do("UPDATE runs SET protocol = NULL")
            seal(store._database, [run_id, other])
    old = tmp_path / "old.sqlite"
    make(old, OURS, "PRAGMA user_version = 2")
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.executescript(SECOND)
        connection.execute("ATTACH ? AS new", (str(path),))
        for table in ("provenance", "runs", "reports", "evaluations"):
            columns = ", ".join(f'"{row[1]}"' for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO main.{table} SELECT {columns} FROM new.{table}")
    checksums = query(old, "SELECT checksum FROM runs")
    lines: list[str] = []
    runs = read([old], warn=lines.append)
    assert "has been migrated" in lines[0]
    assert query(old, "SELECT checksum FROM runs") == checksums
    assert [run.protocol for run in runs] == [{**ATARI_RULES, "sticky": 0.25}, dict(ATARI_RULES)]
    assert query(old, "SELECT env, evaluation, protocol FROM final_scores") == [("atari/pong", 1.0, None)]
    assert is_sound(old)
    make(old, "UPDATE runs SET seed = 5 WHERE id = 1")
    with pytest.raises(ValueError, match="not as it was stored"):
        read([old])


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.touch()
    with pytest.raises(ValueError, match="nothing was ever written"):
        Store(path, read_only=True)
    with Store(path) as store:
        assert len(store.register([spec()], {})) == 1


def test_settings(store: Store, path: Path) -> None:
    found = [store._database.do(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")]
    assert found == [2, 1]
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    tables = query(
        path, "SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    )
    assert sorted(tables) == [(name, 1) for name in ("claims", "evaluations", "provenance", "reports", "runs")]


# -- several files -------------------------------------------------------------------------------------------


def filled(path: Path, *, seeds: range, q: float = 8.5, ticks: int = 2, done: bool = True) -> Path:
    with Store(path) as store:
        for run_id in store.register([spec(seed) for seed in seeds], {"machine": path.name}):
            store.write(run_id, [report(tick, q=q) for tick in range(ticks)])
            if done:
                store.finish(run_id, [1.0])
    return path


def test_files_are_merged(tmp_path: Path) -> None:
    """The same results are one run; what is done goes before what is not, and the longer before the shorter."""
    a = filled(tmp_path / "a", seeds=range(3))
    b = filled(tmp_path / "b", seeds=range(2, 5))
    c = filled(tmp_path / "c", seeds=range(4, 7), ticks=5, done=False)
    d = filled(tmp_path / "d", seeds=range(6, 7), ticks=6, done=False)
    runs = read([c, a, b, d, a])
    found = {run.spec["seed"]: (run.file.name, run.status, len(run.reports)) for run in runs}
    assert len(runs) == len(found) == 7
    assert found == {
        **{seed: ("a", "done", 2) for seed in range(3)},
        3: ("b", "done", 2),
        4: ("b", "done", 2),
        5: ("c", "missing", 5),
        6: ("d", "missing", 6),
    }
    assert read([]) == []


def test_different_results_of_one_spec_are_told(tmp_path: Path) -> None:
    """Also if one of them is longer; the first file's count."""
    a = filled(tmp_path / "a", seeds=range(2))
    b = filled(tmp_path / "b", seeds=range(1, 3), q=8.25, ticks=3)
    lines: list[str] = []
    for first, other in ((a, b), (b, a)):
        runs = read([first, other], warn=lines.append)
        assert len(runs) == 3
        assert next(run for run in runs if run.spec["seed"] == 1).file == first
    assert len(lines) == 2
    assert f"seed 1 has different results in {str(b)!r} and {str(a)!r}. Those of the latter are used." in lines[0]
    with pytest.warns(UserWarning, match="has different results"):
        read([a, b])


# -- the module ----------------------------------------------------------------------------------------------


def test_it_loads_nothing_heavy() -> None:
    code = "import sys, offtrace.experiments.store; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {name.split(".")[0] for name in output.split()} & {"jax", "equinox", "numba", "scipy", "gymnasium"}


def test_a_claim_is_plain(store: Store) -> None:
    (run_id,) = store.register([spec()], {})
    store.claim(run_id, "me")
    claim = store.holder(run_id)
    assert isinstance(claim, WorkerClaim)
    assert json.loads(json.dumps(claim))[1] == "me"


def test_a_closed_store_says_so(path: Path) -> None:
    store = Store(path)
    store.close()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.runs()
