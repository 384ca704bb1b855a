"""Training on a CPU: environment steps and updates per second, acting and learning together.

All contenders have the same network (two layers of 64, or MinAtar's convolution of 16 filters of
3×3 and a layer of 128), learn from batches of 64 transitions, make one update every 4 environment
steps, and keep 100,000 transitions. A call is `num_steps` environment steps with a quarter as many
updates; both are checked. Compilation and the steps that fill the memory are not timed.

offtrace, Retrace    16 actors, batches of 4 windows of 16 steps, everything in one compiled program
offtrace, DQN        the same with 64 windows of one step: the peers' algorithm
offtrace, 4 seeds    four agents of the first kind together; steps and updates of all four are summed
offtrace, Gymnasium  an agent of the first kind on 16 Gymnasium environments, which the peers also use

Stable-Baselines3    DQN("MlpPolicy", …).learn(num_steps), with one environment and with 4. PyTorch has
                     one thread or one per core, whichever is faster in one trial. It takes part if
                     `stable_baselines3` can be imported.
CleanRL              The script dqn_jax.py with the settings and the network above, without its prints and
                     TensorBoard. Between calls it waits inside its environment's step. Gymnasium's keys
                     for last observations are translated to those that the script expects. It takes part
                     if OFFTRACE_CLEANRL is the path of a checkout of github.com/vwxyzjn/cleanrl, and the
                     script's imports (flax, tensorboard, torch) work.

The peers use the package `minatar` (GPL) for MinAtar, offtrace uses pgx. All explore with ε = 0.05
or 0.1, so nearly all actions come from the networks.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from offtrace.bench import Benchmark, LeftOut, machine

Function = Callable[[], np.ndarray]
BATCH = 64
STEPS_PER_UPDATE = 4
MEMORY = 100_000
NUM_ACTORS = 16
NUM_SEEDS = 4
HIDDEN = (64, 64)
FILTERS = 16
WIDTH = 128
CHECKOUT = "OFFTRACE_CLEANRL"


class Task(NamedTuple):
    """One environment, ours and the peers', and the number of steps per call."""

    name: str
    env: str
    gymnasium: str
    fill: int
    epsilon: float
    num_steps: int

    def __str__(self) -> str:
        return self.name

    @property
    def has_pictures(self) -> bool:
        return self.env.startswith("minatar/")


def counts(num_steps: int, num_updates: int) -> np.ndarray:
    return np.array([num_steps, num_updates], np.float64)


# -- ours ------------------------------------------------------------------------------------------


def ours(task: Task, trace: str = "retrace", env: str = "", num_seeds: int = 1) -> Function:
    from offtrace.agent.spec import TrainSpec, resolved
    from offtrace.agent.training import runtime_for

    specs = tuple(
        resolved(
            TrainSpec(
                env or task.env,
                trace=trace,
                seed=seed,
                num_actors=NUM_ACTORS,
                steps_per_update=STEPS_PER_UPDATE,
                replay_size=MEMORY,
                fill=task.fill,
                epsilon=task.epsilon,
                epsilon_steps=task.fill,
                anneal=False,
                hidden_sizes=HIDDEN,
            )
        )
        for seed in range(num_seeds)
    )
    assert specs[0].window * specs[0].num_windows == BATCH
    runtime = runtime_for(specs)
    program = runtime.program
    num_iterations, rest = divmod(task.num_steps, num_seeds * program.rounds * NUM_ACTORS)
    assert rest == 0
    state = runtime.start()

    def tick(num_iterations: int, *, learns: bool) -> None:
        nonlocal state
        state, _ = runtime.advance(state, num_iterations, learns=learns)
        runtime.end_tick(state)

    tick(-(-program.fill // program.rounds), learns=False)
    tick(num_iterations, learns=True)

    def run() -> np.ndarray:
        before = counts(*runtime.counts(state))
        tick(num_iterations, learns=True)
        return num_seeds * (counts(*runtime.counts(state)) - before)

    return run


def on_the_host(task: Task) -> Function:
    register(task)
    return ours(task, env=f"gymnasium/{task.gymnasium}")


# -- peers -----------------------------------------------------------------------------------------


def register(task: Task) -> None:
    """Register the task's environment in Gymnasium."""
    gymnasium = importlib.import_module("gymnasium")
    if task.has_pictures and task.gymnasium not in gymnasium.registry:
        try:
            importlib.import_module("minatar.gym").register_envs()
        except ModuleNotFoundError:
            raise LeftOut("not installed: its environment is in the package `minatar`; pip install minatar") from None


def stable_baselines3(task: Task, num_envs: int) -> Function:
    try:
        theirs, torch = (importlib.import_module(name) for name in ("stable_baselines3", "torch"))
    except ModuleNotFoundError as error:
        raise LeftOut(f"not installed: {error}; pip install stable-baselines3") from None
    register(task)
    envs = importlib.import_module("stable_baselines3.common.env_util").make_vec_env(task.gymnasium, num_envs)
    model = theirs.DQN(
        "MlpPolicy",
        envs,
        train_freq=STEPS_PER_UPDATE // num_envs,
        gradient_steps=1,
        batch_size=BATCH,
        buffer_size=MEMORY,
        learning_starts=task.fill,
        exploration_fraction=0.001,
        exploration_final_eps=task.epsilon,
        policy_kwargs=torch_network(task),
        device="cpu",
        seed=0,
    )

    def learn(num_steps: int) -> None:
        model.learn(num_steps, reset_num_timesteps=False)

    def run(num_threads: int) -> np.ndarray:
        torch.set_num_threads(num_threads)
        before = counts(model.num_timesteps, model._n_updates)
        learn(task.num_steps)
        return counts(model.num_timesteps, model._n_updates) - before

    learn(task.fill + STEPS_PER_UPDATE)
    run(1)
    best = min((1, machine()["cores"]), key=lambda num_threads: elapsed(lambda: run(num_threads)))
    return lambda: run(best)


def torch_network(task: Task) -> dict[str, Any]:
    """Return the arguments of its policy."""
    if not task.has_pictures:
        return {"net_arch": list(HIDDEN)}
    nn = importlib.import_module("torch").nn
    layers = importlib.import_module("stable_baselines3.common.torch_layers")

    class Pictures(layers.BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, WIDTH)
            height, width, num_channels = space.shape
            self.layers = nn.Sequential(
                nn.Conv2d(num_channels, FILTERS, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear((height - 2) * (width - 2) * FILTERS, WIDTH),
                nn.ReLU(),
            )

        def forward(self, x: Any) -> Any:
            return self.layers(x.permute(0, 3, 1, 2))

    return {"features_extractor_class": Pictures, "net_arch": []}


def elapsed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def cleanrl(task: Task) -> Function:
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        raise LeftOut(
            f"not installed: git clone https://github.com/vwxyzjn/cleanrl, and set {CHECKOUT} to that folder"
        )
    script = Path(checkout) / "cleanrl" / "dqn_jax.py"
    if not script.is_file():
        raise LeftOut(f"{CHECKOUT} is not a checkout of CleanRL: it has no {script}")
    if checkout not in sys.path:
        sys.path.append(checkout)
    register(task)
    loop = PausedLoop()
    module = module_of(script, replaced(task, loop.step))
    loop.start(lambda: module.__loader__.exec_module(module))
    loop.advance(task.fill + task.num_steps)

    def run() -> np.ndarray:
        before = int(module.q_state.step)
        loop.advance(task.num_steps)
        return counts(task.num_steps, int(module.q_state.step) - before)

    return run


class PausedLoop:
    """A loop in its own thread, which runs for a given number of steps at a time."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._left = 0
        self._error: BaseException | None = None

    def step(self) -> None:
        """Wait if no steps are left. The loop calls this at every step."""
        if self._left == 0:
            self._done.release()
            self._go.acquire()
        self._left -= 1

    def start(self, loop: Callable[[], object]) -> None:
        """Run the loop up to its first step."""
        threading.Thread(target=self._run, args=(loop,), daemon=True).start()
        self._wait()

    def advance(self, num_steps: int) -> None:
        self._left = num_steps
        self._go.release()
        self._wait()

    def _run(self, loop: Callable[[], object]) -> None:
        try:
            loop()
            raise RuntimeError("the loop ended too early")
        except BaseException as error:
            self._error = error
            self._done.release()

    def _wait(self) -> None:
        self._done.acquire()
        if self._error is not None:
            raise self._error


class Script(importlib.abc.InspectLoader):
    """A script as a module, including its main part; `replaced` overrides its definitions."""

    MAIN = 'if __name__ == "__main__":'

    def __init__(self, path: Path) -> None:
        self.path = path

    def get_source(self, fullname: str) -> str:
        definitions, found, main = self.path.read_text(encoding="utf-8").partition(f"\n{self.MAIN}\n")
        if not found:
            raise LeftOut(f"{self.path.name} is of another version: it has no line `{self.MAIN}`")
        return f"{definitions}\nglobals().update(replaced)\nif True:\n{main}"


def module_of(script: Path, replacements: dict[str, Any]) -> Any:
    spec = importlib.util.spec_from_loader(f"offtrace_benchmark_{script.stem}", Script(script))
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    module.__file__ = str(script)
    module.replaced = replacements
    return module


def replaced(task: Task, hold: Callable[[], None]) -> dict[str, Any]:
    """Return replacements for its settings, its network, its output, and the wrapper of its environment."""
    gymnasium, nn = (importlib.import_module(name) for name in ("gymnasium", "flax.linen"))
    base: Any = gymnasium.vector.SyncVectorEnv

    class Environments(base):
        def __init__(self, functions: Any) -> None:
            super().__init__(functions, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)

        def step(self, actions: Any) -> Any:
            hold()
            *seen, infos = super().step(actions)
            if "final_obs" in infos:
                infos = {"final_observation": infos["final_obs"]}
            return *seen, infos

    class QNetwork(nn.Module):
        action_dim: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            if task.has_pictures:
                x = nn.relu(nn.Conv(FILTERS, (3, 3), padding="VALID")(x.astype("float32")))
                x = x.reshape(len(x), -1)
            for width in (WIDTH,) if task.has_pictures else HIDDEN:
                x = nn.relu(nn.Dense(width)(x))
            return nn.Dense(self.action_dim)(x)

    settings = {
        "env_id": task.gymnasium,
        "total_timesteps": 10**9,
        "exploration_fraction": task.fill / 10**9,
        "end_e": task.epsilon,
        "batch_size": BATCH,
        "buffer_size": MEMORY,
        "learning_starts": task.fill,
        "train_frequency": STEPS_PER_UPDATE,
    }
    quiet = SimpleNamespace(add_text=nothing, add_scalar=nothing, close=nothing)
    return {
        "tyro": SimpleNamespace(cli=lambda args: args(**settings)),
        "SummaryWriter": lambda folder: quiet,
        "print": nothing,
        "QNetwork": QNetwork,
        "gym": SimpleNamespace(
            vector=SimpleNamespace(SyncVectorEnv=Environments),
            **{name: getattr(gymnasium, name) for name in ("make", "wrappers", "spaces")},
        ),
    }


def nothing(*args: object) -> None:
    pass


BENCHMARK = Benchmark(
    name="training",
    question="How fast does an agent train on a CPU?",
    rows=(
        Task("CartPole, MLP 2×64", "pocket/cartpole", "CartPole-v1", 1_000, 0.05, 1_024),
        Task("MinAtar Breakout, conv 16 + FC 128", "minatar/breakout", "MinAtar/Breakout-v1", 5_000, 0.1, 1_024),
    ),
    quick_rows=1,
    problem=lambda task: task,
    answer=lambda task: counts(task.num_steps, task.num_steps // STEPS_PER_UPDATE),  # checks that none makes fewer
    contenders={
        "offtrace, Retrace": ours,
        "offtrace, DQN": lambda task: ours(task, "dqn"),
        "offtrace, 4 seeds": lambda task: ours(task, num_seeds=NUM_SEEDS),
        "offtrace, Gymnasium": on_the_host,
        "Stable-Baselines3": lambda task: stable_baselines3(task, 1),
        "Stable-Baselines3, 4 envs": lambda task: stable_baselines3(task, 4),
        "CleanRL, JAX": cleanrl,
    },
    ours=("offtrace, Retrace", "offtrace, DQN"),
    columns={
        "steps/s": lambda task, seconds: task.num_steps / seconds,
        "updates/s": lambda task, seconds: task.num_steps / STEPS_PER_UPDATE / seconds,
    },
    slow=("offtrace, DQN", "offtrace, 4 seeds", "Stable-Baselines3, 4 envs"),
    repeats=7,
    min_time=0.3,
)
