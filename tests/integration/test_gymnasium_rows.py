"""Gymnasium environments as rows: against a plain loop in both autoreset modes, and faults of environments."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from offtrace.environments import make
from offtrace.environments.gymnasium import GymnasiumRows

MODULE = '''
import os, time
import gymnasium, numpy as np

class Scripted(gymnasium.Env):
    """Episodes of 1 to 4 steps that terminate, are truncated, or both; the observation says where it is."""

    observation_space = gymnasium.spaces.Box(-1.0, 1e6, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self, fault=None, at=3, pid_file=None):
        self.fault, self.at, self.num_steps, self.episode, self.pid_file = fault, at, 0, -1, pid_file
        if fault == "construction":
            raise OSError("no display")
        if fault == "uint8":
            self.observation_space = gymnasium.spaces.Box(0, 255, (3,), np.uint8)

    def _see(self):
        return np.array([self.key, self.episode, self.time], self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fault == "reset" and self.episode == 0:
            raise KeyError("no map")
        self.key = int(self.np_random.integers(100)) if seed is not None else self.key
        self.episode, self.time = self.episode + 1, 0
        self.length, self.kind = int(self.np_random.integers(1, 5)), int(self.np_random.integers(3))
        return (self._see(), {}) if self.fault != "old reset" else self._see()

    def step(self, action):
        assert action in (5, 6)
        self.time, self.num_steps = self.time + 1, self.num_steps + 1
        seen, reward = self._see(), float(self.time + (action - 5) / 2)
        over = self.time >= self.length
        terminated, truncated = over and self.kind != 1, over and self.kind != 0
        if self.num_steps >= self.at:
            if self.fault == "raise":
                return 1 // 0
            if self.fault == "hang":
                if self.pid_file:
                    open(self.pid_file, "w").write(str(os.getpid()))
                time.sleep(600)
            if self.fault == "die":
                os._exit(7)
            if self.fault == "old step":
                return seen, reward, over, {}
            if self.fault == "shape":
                return seen[:2], reward, terminated, truncated, {}
            if self.fault == "uint8":
                return seen * 0.0 + 300, reward, terminated, truncated, {}
            if self.fault == "nan observation":
                seen[1] = np.nan
            if self.fault == "outside":
                seen[2] = -2.0
            if self.fault == "nan reward":
                reward = float("nan")
            if self.fault == "no reward":
                reward = None
        return seen, reward, terminated, truncated, {"time": np.zeros(self.time)}

gymnasium.register("Scripted-v0", entry_point="scripted_envs:Scripted")
'''
ID = "scripted_envs:Scripted-v0"


@pytest.fixture(autouse=True)
def scripted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("envs")
    (folder / "scripted_envs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("scripted_envs", None)
    gymnasium.registry.pop("Scripted-v0", None)
    yield folder
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("Worker")]


def rows_of(num_actors: int = 2, seed: int = 3, **options: Any) -> GymnasiumRows:
    return GymnasiumRows(ID, num_actors, seed, **options)


def action_for(observation: np.ndarray) -> np.ndarray:
    return (observation.sum(-1) % 2).astype(np.int64)


# -- the same transitions as a plain loop --------------------------------------------------------------------

Transition = tuple[tuple[float, ...], int, float, tuple[float, ...] | None, bool]
"""x_t, a_t, r_t, x_{t+1} (None where step t terminated), truncated."""


def plain_loop(seed: int, num_steps: int) -> list[Transition]:
    import scripted_envs

    env, found = scripted_envs.Scripted(), []
    seen, _ = env.reset(seed=seed)
    while len(found) < num_steps:
        action = int(action_for(seen))
        after, reward, terminated, truncated, _ = env.step(action + 5)
        found.append(
            (tuple(seen), action, reward, None if terminated else tuple(after), truncated and not terminated)
        )
        seen = env.reset()[0] if terminated or truncated else after
    return found


def transitions(rows: GymnasiumRows, num_rows: int) -> tuple[list[list[Transition]], list[list[tuple[float, int]]]]:
    actor, found, actions = rows.begin(), [], []
    episodes: list[list[tuple[float, int]]] = [[] for _ in range(rows.num_actors)]
    for _ in range(num_rows):
        action = action_for(actor.observation)
        actor, row, ended = rows.advance(action)
        found.append(row)
        actions.append(action)
        for i in np.flatnonzero(ended.ended):
            episodes[i].append((float(ended.episode_return[i]), int(ended.episode_length[i])))
    lists: list[list[Transition]] = [[] for _ in range(rows.num_actors)]
    for t, row in enumerate(found[:-1]):
        after = found[t + 1]
        for i in np.flatnonzero(row.mask):
            assert not (row.continues[i] and after.reset[i]), "a transition crosses a reset"
            successor = tuple(after.observation[i].tolist()) if row.continues[i] else None
            x = tuple(row.observation[i].tolist())
            lists[i].append((x, int(actions[t][i]), float(row.reward[i]), successor, False))
    return lists, episodes


def without_end(transition: Transition) -> Transition:
    return (*transition[:4], False)


def episodes_of(plain: list[Transition]) -> list[tuple[float, int]]:
    out, total, length = [], 0.0, 0
    for _, _, reward, successor, truncated in plain:
        total, length = total + reward, length + 1
        if successor is None or truncated:
            out.append((total, length))
            total, length = 0.0, 0
    return out


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_both_modes_give_the_transitions_of_a_plain_loop(autoreset: str, vectorization: str) -> None:
    jnp.zeros(1).block_until_ready()  # JAX's threads run, and workers must not be forked from beside them
    with rows_of(2, vectorization=vectorization, autoreset=autoreset) as rows:
        assert (rows.num_actions, rows.observation) == (2, ((3,), np.float32))
        found, episodes = transitions(rows, 120)
    for i in range(2):
        plain = plain_loop(3 + i, 150)
        kinds = {(t[3] is None, t[4]) for t in plain}
        assert kinds == {(False, False), (True, False), (False, True)}
        kept = [t for t in plain if autoreset == "next_step" or not t[4]]
        assert len(found[i]) >= 60
        assert found[i] == [without_end(t) for t in kept[: len(found[i])]]
        assert episodes[i] == episodes_of(plain)[: len(episodes[i])]
        assert len(episodes[i]) >= 30


def test_rows_have_fixed_dtypes_and_are_not_overwritten() -> None:
    with rows_of(2) as rows:
        actor = rows.begin()
        kept = []
        for _ in range(30):
            actor, row, ended = rows.advance(np.array([0, 1]))
            kept.append((row, [leaf.copy() for leaf in (*row, *ended)], ended))
            assert [leaf.dtype.name for leaf in row] == ["float32", "bool", "bool", "float32", "bool"]
            assert [leaf.dtype.name for leaf in ended] == ["bool", "float32", "int32"]
            assert [leaf.dtype.name for leaf in actor[1:6]] == ["float32", "bool", "bool", "float32", "int32"]
            assert not row.reward[~row.mask].any()
            assert row.continues[~row.mask].all()
        again = rows.begin()
    for row, copies, ended in kept:
        assert all((leaf == copy).all() for leaf, copy in zip((*row, *ended), copies, strict=True))
    assert again.observation[:, 2].tolist() == [0, 0]
    assert again.first.all()


def test_a_vector_environment_of_ones_own() -> None:
    """Gymnasium's CartPole written as a vector environment, which resets in the next step, and one that does not."""
    vector: Any = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    with GymnasiumRows(vector, seed=0) as rows:
        assert (rows.name, rows.num_actors, rows.num_actions) == ("gymnasium/CartPole-v1", 3, 2)
        actor, num_dummies = rows.begin(), 0
        for _ in range(60):
            over = actor.over
            actor, row, ended = rows.advance(np.ones(3, int))
            assert (row.mask == ~over).all()
            assert (actor.first == over).all()
            assert (ended.episode_return == ended.episode_length).all()
            num_dummies += int(over.sum())
        assert num_dummies >= 9
    manual = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")], autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="must reset by itself"):
        GymnasiumRows(manual)


def test_frames_stay_uint8() -> None:
    with rows_of(1, fault="uint8", at=10**9) as rows:
        assert rows.observation.dtype == np.uint8
        assert rows.begin().observation.dtype == np.uint8


def test_by_name() -> None:
    with make("gymnasium/CartPole-v1", vectorization="sync")(num_actors=2, seed=1) as rows:
        assert rows.name == make("gymnasium/CartPole-v1").name == "gymnasium/CartPole-v1"
        assert rows.begin().observation.shape == (2, 4)
    with pytest.raises(ValueError, match="registered environment"):
        make("gymnasium/CartPool-v1")


# -- faults --------------------------------------------------------------------------------------------------

STEP = r"gymnasium/scripted_envs:Scripted-v0 \((actor 0, seed 3|actor 1, seed 4)\) failed at step 3, action 1: "
FAULTS = {
    "raise": STEP + r"ZeroDivisionError: .* at scripted_envs.py:\d+\.",
    "nan observation": STEP + r"the observation has nan, which is not a finite number\.",
    "nan reward": STEP + r"the reward is nan, which is not a finite number\.",
    "no reward": STEP + r"TypeError: ",
    "outside": STEP + r"the observation has -2.0, which is outside the bounds of its space",
    "old step": STEP + r"TypeError: `step` must return 5 values, .*; got 4 values",
    "shape": STEP + r"ValueError: the observation must have its space's shape, \(3,\); got \(2,\)",
    "uint8": STEP + r"TypeError: the observation must fit its space's dtype, uint8; got float64",
    "old reset": r"Scripted-v0 \(actor 0, seed 3\) failed in its reset after 0 steps: TypeError: `reset` must return",
    "reset": r"Scripted-v0 \(actor \d, seed \d\) failed in its reset after \d steps: KeyError: 'no map'",
}


def play(rows: GymnasiumRows, num_rows: int = 40, *, begun: bool = False) -> None:
    if not begun:
        rows.begin()
    for _ in range(num_rows):
        rows.advance(np.ones(rows.num_actors, np.int64))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_errors_with_the_place(fault: str, autoreset: str) -> None:
    rows = rows_of(fault=fault, autoreset=autoreset)
    with pytest.raises(RuntimeError, match=FAULTS[fault]) as raised:
        play(rows)
    if fault == "raise":
        assert "1 // 0" in "".join(raised.value.__notes__)
    with pytest.raises(RuntimeError, match="closed"):
        rows.begin()
    rows.close()


@pytest.mark.parametrize("fault", ["raise", "nan observation", "old step"])
def test_faults_in_workers(fault: str) -> None:
    rows = rows_of(1, fault=fault, vectorization="async")
    with pytest.raises(RuntimeError, match=FAULTS[fault]):
        play(rows)


def test_bounds_can_be_let_pass() -> None:
    with rows_of(fault="outside", check_bounds=False) as rows:
        play(rows)


def test_a_hang_ends_here() -> None:
    rows = rows_of(fault="hang", timeout=0.3)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=STEP + r"no answer in 0.3 seconds"):
        play(rows)
    assert time.monotonic() - started < 3
    rows.close()


def test_without_a_limit_steps_run_in_this_thread() -> None:
    """And faults are found as before."""
    rows = rows_of(fault="raise", timeout=math.inf)
    seen = []
    real = rows._vector.env.step

    def step(actions: np.ndarray) -> Any:
        seen.append(threading.current_thread())
        return real(actions)

    rows._vector.env.step = step
    with pytest.raises(RuntimeError, match=FAULTS["raise"]):
        play(rows)
    assert set(seen) == {threading.current_thread()}
    rows.close()


def test_a_hang_in_a_worker_ends_there_and_leaves_no_process() -> None:
    rows = rows_of(2, fault="hang", timeout=20.0, vectorization="async")
    workers = list(rows._vector.env.processes)
    rows.begin()
    rows._vector._timeout = 0.5  # starting took its time; a step need not
    with pytest.raises(TimeoutError, match=STEP + r"no answer in 0.5 seconds"):
        play(rows, begun=True)
    assert not any(worker.is_alive() for worker in workers)


def test_a_killed_worker_is_noticed_while_another_hangs() -> None:
    rows = rows_of(2, vectorization="async")
    rows.begin()
    workers = list(rows._vector.env.processes)
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)  # Ctrl-C reaches them too, and is the parent's to handle
    rows.advance(np.ones(2, int))
    os.kill(workers[0].pid, signal.SIGSTOP)  # never answers
    os.kill(workers[1].pid, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"\(actor 1, seed 4\) failed at step 2, action 1: its process \d+ ended"):
        rows.advance(np.ones(2, int))
    assert time.monotonic() - started < 5
    assert not any(worker.is_alive() for worker in workers)


def test_workers_end_with_their_parent_even_from_a_hang(scripted: Path) -> None:
    pid_file = scripted / "pid"
    script = scripted / "run.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(scripted)!r})
        import numpy as np
        from offtrace.environments.gymnasium import GymnasiumRows
        if __name__ == "__main__":
            options = dict(fault="hang", at=1, pid_file={str(pid_file)!r})
            rows = GymnasiumRows({ID!r}, 1, 0, vectorization="async", **options)
            rows.begin()
            rows.advance(np.ones(1, int))
        """)
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    try:
        wait_until(lambda: pid_file.exists() and pid_file.read_text(), 30)
        worker = int(pid_file.read_text())
        assert alive(worker)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not alive(worker), 5)


def wait_until(condition: Any, seconds: float) -> None:
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_faults_of_construction() -> None:
    with pytest.raises(OSError, match="no display"):
        rows_of(fault="construction")
    with pytest.raises(TypeError, match="colour"):
        rows_of(colour="red")


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("Pendulum-v1", 1), {}, "must have actions that can be numbered.* `ot.targets` with log-densities"),
        (("CartPole-v1", 0), {}, "`num_actors` must be a whole number of at least 1"),
        (("CartPole-v1",), {}, "`num_actors` must be a whole number of at least 1"),
        (("CartPole-v1", 1, -1), {}, "`seed` must be a whole number of at least 0"),
        (("CartPole-v1", 1), {"timeout": 0}, "`timeout` must be"),
        (("CartPole-v1", 1), {"autoreset": "disabled"}, "`autoreset` must be one of next_step, same_step"),
        (("CartPole-v1", 1), {"vectorization": "threads"}, '`vectorization` must be "sync" or "async"'),
        (("scripted_envs:Missing-v0", 1), {}, "It has these environments: Scripted-v0, Scripted."),
        (("no_such_module:Missing-v0", 1), {}, "neither installed nor in the current folder"),
    ],
)
def test_refused_arguments(arguments: tuple, options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GymnasiumRows(*arguments, **options)


@pytest.mark.parametrize("actions", [[0, 2], [-1, 0], [0.0, 1.0], [0], [[0, 1]], [True, False]])
def test_refused_actions(actions: list) -> None:
    with rows_of() as rows:
        with pytest.raises(RuntimeError, match="`begin` must be called before"):
            rows.advance(np.zeros(2, int))
        rows.begin()
        with pytest.raises(ValueError, match="`actions` must be"):
            rows.advance(np.array(actions))


def test_a_made_environment_takes_no_options_and_another_number_is_refused() -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    with pytest.raises(TypeError, match="would have no effect"):
        GymnasiumRows(vector, gravity=1.0)
    with pytest.raises(ValueError, match="`num_actors` must be that of `env`, 2"):
        GymnasiumRows(vector, 3)
    with pytest.raises(ValueError, match="`autoreset` must be the mode in the metadata"):
        GymnasiumRows(vector, autoreset="same_step")
    with pytest.raises(TypeError, match="an id or a vector environment"):
        GymnasiumRows(gymnasium.make("CartPole-v1"))
