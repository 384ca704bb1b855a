"""A user's own environment from end to end: by module, class, function or value, and only with consent."""

import contextlib
import json
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import disk
from offtrace.agent.runs import read_specs
from offtrace.agent.spec import Plan, from_json, resolved, to_json
from offtrace.agent.telemetry import TickRecord, Watcher
from offtrace.cli import main
from offtrace.cli.train import as_arguments
from offtrace.environments.gymnasium import GymnasiumRows
from offtrace.evaluation.reading import read
from offtrace.evaluation.target import as_target
from offtrace.experiments import engine
from offtrace.experiments.members import train_population
from offtrace.experiments.populations import saved_populations, work_folder
from offtrace.experiments.store import Store
from offtrace.watch import play

SOURCE = '''
"""A walk of `size` places, to the right; the second action costs something and does nothing."""
from pathlib import Path
import gymnasium, numpy as np
from gymnasium import spaces

Path(__file__).with_name("imported").touch()

class Walk(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, size=3, render_mode=None):
        self.size, self.render_mode = size, render_mode
        self.observation_space = spaces.Dict(place=spaces.Discrete(size), share=spaces.Box(0, 1, (2,)))
        self.action_space = spaces.MultiDiscrete([3, 2])

    def _seen(self):
        return {"place": self.x, "share": np.float32([self.x / self.size, self.np_random.random()])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        self.x = int(np.clip(self.x + action[0] - 1, 0, self.size - 1))
        arrived = self.x == self.size - 1
        return self._seen(), float(arrived) - 0.25 * float(action[1]), arrived, self.t >= 6, {}

    def render(self):
        picture = np.zeros((8, 8 * self.size, 3), np.uint8)
        picture[:, 8 * self.x : 8 * self.x + 8] = 255
        return picture

def make_walk(size=3):
    return Walk(size)

gymnasium.register("own/Walk-v0", Walk)
'''
MODULE = "offtrace_own_walk"
ID = f"{MODULE}:own/Walk-v0"
NOTES = [
    "Observations are Dict('place': Discrete(3), 'share': Box(0.0, 1.0, (2,), float32)): flattened, discrete parts "
    "one-hot, 5 numbers.",
    "Actions are MultiDiscrete([3 2]): numbered, 6 combinations.",
]
SMALL: dict[str, Any] = {
    "hidden_sizes": (8,),
    "num_actors": 2,
    "num_steps": 96,
    "fill": 16,
    "replay_size": 96,
    "tick_steps": 40,
    "window": 4,
    "num_windows": 2,
    "evaluation_ticks": 0,
    "evaluation_episodes": 2,
    "evaluation_steps": 20,
}


def small(env: Any, **changes: Any) -> ot.TrainSpec:
    return ot.TrainSpec(env=env, **{**SMALL, **changes})


class Messages(Watcher):
    """Keeps the messages of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_message(self, line: str) -> None:
        self.lines.append(line)


def forget() -> None:
    """Make the module as good as never imported, in this process and on the disk."""
    sys.modules.pop(MODULE, None)
    gymnasium.registry.pop("own/Walk-v0", None)
    Path("imported").unlink(missing_ok=True)


@contextlib.contextmanager
def in_folder(folder: Path) -> Generator[None]:
    """Work in a folder that is not on the path yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [entry for entry in sys.path if entry])
        forget()
        yield
        forget()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, trained by its typed name; the module is in the folder above."""
    folder = tmp_path_factory.mktemp("own")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    with in_folder(folder):
        main(["train", *as_arguments(small(ID)), "--output", "run"])
    return folder / "run"


@pytest.fixture(autouse=True)
def _here(run: Path) -> Iterator[None]:
    with in_folder(run.parent):
        yield


def returns_in(folder: str | Path) -> Any:
    return disk.unsealed(disk.read(Path(folder) / "result.json"))["members"]


# -- train, resume, watch ------------------------------------------------------------------------------------


def test_a_typed_name_is_consent_and_is_said_aloud(capfd: pytest.CaptureFixture[str]) -> None:
    """A stopped run, resumed by a typed name, ends like the run that was not stopped."""
    count = iter(range(30))
    stopped = ot.train(small(ID), "stopped", stop=lambda: next(count, None) is None)
    assert not stopped.finished
    forget()
    capfd.readouterr()
    main(["train", *as_arguments(small(ID)), "--output", "stopped", "--resume"])
    output = capfd.readouterr()
    assert f"Imported {MODULE} from {Path.cwd() / MODULE}.py." in output.err
    shown = " ".join(output.out.split())
    assert all(shown.count(note) == 1 for note in NOTES)
    assert f"Watch it: offtrace watch stopped --allow-import {MODULE}" in shown
    assert returns_in("stopped") == returns_in("run")


def test_a_run_is_only_watched_with_the_module_allowed(capfd: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--allow-import", "json"]):
        with pytest.raises(SystemExit) as ended:
            main(["watch", "run", "--output", "walk.gif", *flags])
        assert ended.value.code == 2
        assert f"the run 'run' names '{ID}'" in (said := capfd.readouterr().err)
        assert f"`--allow-import {MODULE}`" in said
    assert MODULE not in sys.modules
    assert not Path("imported").exists()
    main(["watch", "run", "--output", "walk.gif", "--allow-import", MODULE])
    assert f"Imported {MODULE} from" in capfd.readouterr().err
    assert Path("walk.gif").read_bytes()[:3] == b"GIF"


def test_the_view_names_the_parts_of_an_action() -> None:
    with pytest.raises(ValueError, match="`allow_import` must be a list of modules; got True"):
        ot.load_policy("run", allow_import=True)  # ty: ignore[invalid-argument-type]
    with pytest.raises(ValueError, match=f"`--allow-import {MODULE}`"):
        as_target("run")
    policy = ot.load_policy("run", allow_import=[MODULE])
    frames = [*play(policy, seed=0, max_steps=6)]
    assert frames[0].action_names == ("0,0", "0,1", "1,0", "1,1", "2,0", "2,1")
    assert frames[0].observation.shape == (5,)
    assert frames[0].observation[:3].tolist() == [1, 0, 0]


def test_the_file_of_a_run_cannot_allow_itself() -> None:
    """The first version kept the permission among the options; it is dropped."""
    (plan,) = read_specs(Path("run"))
    record = to_json(plan)
    assert record["options"] == {}
    assert from_json({**record, "options": {"allow_import": True}}) == plan
    with pytest.raises(ValueError, match="`options` must be without `allow_import`"):
        small(ID, options={"allow_import": True})


def test_an_environment_in_a_worker_process() -> None:
    """A worker finds the module in the current folder, too."""
    with GymnasiumRows(f"{MODULE}:make_walk", 1, 0, vectorization="async", size=4) as rows:
        assert rows.begin().observation[0, :4].tolist() == [1, 0, 0, 0]
        actor, row, _ = rows.advance(np.array([5]))  # one place to the right, for 0.25
        assert (actor.observation[0, :4].tolist(), row.reward[0]) == ([0, 1, 0, 0], -0.25)
        assert rows.notes[1] == NOTES[1]


# -- in Python -----------------------------------------------------------------------------------------------


def test_values_in_place_of_names() -> None:
    sys.path.append(str(Path.cwd()))
    walk = __import__(MODULE)
    assert small(walk.Walk).env == f"{MODULE}:Walk"
    assert small(walk.make_walk).env == f"{MODULE}:make_walk"
    watcher = Messages()
    spec = small(lambda: walk.Walk())
    result = ot.train(spec, watcher=watcher)
    assert watcher.lines == NOTES
    assert list(result.returns) == returns_in("run")[0]["returns"]  # the same seed and the same environment
    with pytest.raises(ValueError, match=r"`env` must have a name to be saved; .*<lambda> has no name"):
        ot.train(spec, "lambda")
    assert not Path("lambda").exists()
    with pytest.raises(ValueError, match=r"`env` must have a name to be saved"):
        engine.run([resolved(spec)], "lambda.sqlite", jobs=0)


def test_discrete_observations(capfd: pytest.CaptureFixture[str]) -> None:
    main(["train", *as_arguments(small("FrozenLake-v1")), "--output", "lake"])
    assert "Observations are Discrete(16): one-hot, 16 numbers." in " ".join(capfd.readouterr().out.split())
    policy = ot.load_policy("lake")
    assert repr(policy) == f"Policy(FrozenLake-v1, Retrace(λ = 1), seed 0, {policy.num_steps:,} steps)"
    q = policy.q(np.eye(16, dtype=bool))
    assert q.shape == (16, 4)
    flags = {"terminated": [True], "truncated": [False]}
    log = read({"episode": [0], "step": [0], "state": [15], "action": [3], "reward": [0.0], **flags})
    target = as_target("lake", log=log)
    assert target.table is not None
    assert target.table.tolist() == np.eye(4)[q.argmax(1)].tolist()
    assert repr(target) == "Target(lake, greedy, 4 actions)"
    frame = next(play(policy, seed=0, max_steps=1))
    assert (frame.observation.tolist(), frame.action_names) == ([True] + [False] * 15, "←↓→↑")
    with pytest.raises(SystemExit):
        main(["train", "Pendulum-v1"])
    assert "use `ot.targets` with log-densities" in capfd.readouterr().err


# -- sweeps --------------------------------------------------------------------------------------------------


def test_a_sweep_in_processes() -> None:
    from offtrace.experiments.checks import check_runs

    plan = resolved(small(f"{MODULE}:Walk"))
    told: list[str] = []
    check_runs([plan], tell=told.append)
    name = f"{MODULE}:Walk"
    assert told == [f"Imported {MODULE} from {Path.cwd() / MODULE}.py.", *(f"{name}: {note}" for note in NOTES)]
    assert engine.run([plan], "results.sqlite", jobs=1).num_done == 1
    with Store(Path("results.sqlite"), read_only=True) as store:
        (stored,) = store.runs()
    assert [*stored.returns] == returns_in("run")[0]["returns"]


def test_a_results_file_cannot_name_a_module() -> None:
    """A hostile file holds a run, or a saved population, that names a module: neither is imported."""
    path = Path("hostile.sqlite")
    hostile, mine = (resolved(small(env)) for env in (f"{MODULE}:Walk", "pocket/catch"))
    with Store(path) as store:
        hostile_id, my_id = store.register([to_json(hostile), to_json(mine)], {})
    train_population(path, [to_json(hostile)], "", lambda: False)
    with Store(path) as store:
        failed = store.runs(run_id=hostile_id)[0]
        assert f"names '{MODULE}:Walk'. Importing it runs the code" in (failed.failure or "")
        assert store.claim(hostile_id, "me")
        store.finish(hostile_id, [1.0])
        assert store.claim(my_id, "me")
        store.write(my_id, [TickRecord(1, 90, 9, 2, 0.5, 9.0, 1.0, 1e-3, *[0.25] * 7, (0.5,))])  # worth resuming
        store.release(my_id)
    saved = work_folder(path) / "population"
    saved.mkdir(parents=True)
    record = {"made_with": {}, "specs": [to_json(hostile), to_json(mine)]}
    (saved / "spec.json").write_text(json.dumps(record))
    assert resumed(path, [mine]) == []
    assert not Path("imported").exists()
    assert len(resumed(path, [mine, resolved(small(f"{MODULE}:Walk", seed=1))])) == 1  # its module was named


def resumed(path: Path, missing: list[Plan]) -> Any:
    return saved_populations(path, missing)[0]


# -- the list ------------------------------------------------------------------------------------------------


def test_the_list_of_environments(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from offtrace.environments import ATARI, NAMES, catalogue

    find_spec = catalogue.find_spec
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None if name in ("pgx", "Box2D") else find_spec(name))
    monkeypatch.setenv("COLUMNS", "80")
    main(["train", "--list"])
    shown = capfd.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for text in ("60 games: alien, amidar", "'offtrace[minatar]'", "'offtrace[box2d]'", "FrozenLake-v1"):
        assert text in shown
    assert "Pendulum" not in shown
    main(["train", "--list", "--json"])
    groups = json.loads(capfd.readouterr().out)
    names = [name for group in groups for name in group["names"]]
    assert {*NAMES, *ATARI, "mdp/chain", "CartPole-v1", "FrozenLake-v1"} <= {*names}
    assert len(names) == len({*names})
    by_suite = {group["suite"]: group for group in groups}
    assert (by_suite["minatar"]["installed"], by_suite["pocket"]["installed"]) == (False, True)
    with pytest.raises(SystemExit):
        main(["train"])
    assert "`offtrace train --list` shows all" in capfd.readouterr().err
