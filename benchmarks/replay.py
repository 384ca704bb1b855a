"""Batches of 64 transitions (4 windows of 16 steps with stacked observations), drawn from a ring in
memory.

Compiled contenders draw `NUM_BATCHES` batches in one program, as in a compiled training loop; each
batch is written out in full. Episodes last about 100 steps, and stacks contain nothing of an
earlier episode. Bytes are those of one transition, with all its fields. The rings are small, to fit
on any machine; with a million transitions the rates are lower, but the bytes are the same.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from offtrace.bench import Benchmark, LeftOut

NUM_WINDOWS = 4
LENGTH = 16
NUM_BATCHES = 16
Function = Callable[[], object]


@dataclass(frozen=True)
class Game:
    """The frames of one kind of game; `stack` of them make an observation."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    stack: int
    capacity: int
    num_actors: int = 4

    def __str__(self) -> str:
        return self.name


class Log(NamedTuple):
    """All rows written: frames (T, actors, *shape), the rest (T, actors), where T is one and a half rings."""

    game: Game
    frames: np.ndarray
    reset: np.ndarray
    reward: np.ndarray
    action: np.ndarray
    mu_a: np.ndarray
    """All different, so that a window can be identified."""

    def stacks(self) -> np.ndarray:
        """Return the observations of the actors: (T, actors, stack, *shape)."""
        out = np.zeros((*self.reset.shape, self.game.stack, *self.game.shape), self.frames.dtype)
        out[0, :, -1] = self.frames[0]
        for t in range(1, len(out)):
            out[t, :, :-1] = np.where(self.reset[t].reshape(-1, *(1,) * self.frames[0].ndim), 0, out[t - 1, :, 1:])
            out[t, :, -1] = self.frames[t]
        return out


def log(game: Game) -> Log:
    rng = np.random.default_rng(0)
    steps = game.capacity * 3 // 2, game.num_actors
    frames = rng.integers(0, 256, (*steps, *game.shape), dtype=np.uint8)
    reset = rng.random(steps) < 0.01
    reset[0] = True
    return Log(
        game,
        frames=frames > 200 if game.dtype == "bool" else frames,
        reset=reset,
        reward=rng.standard_normal(steps, dtype=np.float32),
        action=rng.integers(0, 6, steps),
        mu_a=rng.permutation(np.linspace(0.1, 1, math.prod(steps), dtype=np.float32)).reshape(steps),
    )


def check(log: Log, obs: Any, mu_a: Any) -> None:
    """Raise unless every window is one that was written: obs (n+1, B, stack, …), mu_a (n, B)."""
    stacks = log.stacks()
    obs = np.asarray(obs).reshape(LENGTH + 1, NUM_WINDOWS, *stacks.shape[2:])
    for window in range(NUM_WINDOWS):
        t, actor = np.argwhere(log.mu_a == np.asarray(mu_a)[0, window])[0]
        if not np.array_equal(obs[:, window], stacks[t : t + LENGTH + 1, actor]):
            raise ArithmeticError("wrong answer: a window differs from what was written")


# -- contenders ------------------------------------------------------------------------------------


def repeated(one: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that draws `NUM_BATCHES` batches in one compiled program, and returns the last one."""
    import jax

    def batches(key: Any) -> Any:
        keys = jax.random.split(key, NUM_BATCHES)
        return jax.lax.fori_loop(1, NUM_BATCHES, lambda i, _: one(keys[i]), one(keys[0]))

    return batches


def ours(log: Log) -> Function:
    import jax

    from offtrace.agent import replay

    always = np.ones_like(log.reset)
    rows = replay.Rows(log.frames, log.reset, always, log.reward, always, log.action, log.mu_a)
    write = jax.jit(replay.add, donate_argnums=0)
    state = replay.init(spec(log.game))
    for part in (slice(None, log.game.capacity), slice(log.game.capacity, None)):
        state = write(state, replay.Rows(*(value[part] for value in rows)))
    draw = jax.jit(lambda state, key: repeated(lambda k: replay.sample(state, k, NUM_WINDOWS, LENGTH))(key))
    key = jax.random.key(0)
    batch = draw(state, key)
    check(log, batch.obs, batch.mu_a)
    return lambda: jax.block_until_ready(draw(state, key))


def spec(game: Game) -> Any:
    from offtrace.agent import replay

    return replay.ReplaySpec(game.capacity, game.num_actors, game.shape, game.dtype, game.stack)


def flashbax(log: Log, *, stacked: bool) -> Function:
    """Store whole stacks, or single frames that are stacked after they are drawn."""
    import jax
    import jax.numpy as jnp

    k = 1 if stacked else log.game.stack
    buffer = importlib.import_module("flashbax").make_trajectory_buffer(
        add_batch_size=log.game.num_actors,
        sample_batch_size=NUM_WINDOWS,
        sample_sequence_length=LENGTH + k,
        period=1,
        min_length_time_axis=LENGTH + k,
        max_length_time_axis=log.game.capacity,
    )
    always = np.ones_like(log.reset)
    fields = {"obs": log.stacks() if stacked else log.frames, "reset": log.reset, "mask": always, "continues": always}
    fields |= {"r": log.reward, "a": log.action.astype(np.uint8), "mu_a": log.mu_a}
    state = buffer.init({name: jnp.asarray(value[0, 0]) for name, value in fields.items()})
    write = jax.jit(buffer.add, donate_argnums=0)
    for part in (slice(None, log.game.capacity), slice(log.game.capacity, None)):
        state = write(state, {name: np.swapaxes(value[part], 0, 1) for name, value in fields.items()})

    def one(state: Any, key: Any) -> Any:
        drawn = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), buffer.sample(state, key).experience)
        if not stacked:
            frames, episode = drawn["obs"], jnp.cumsum(drawn["reset"], axis=0)
            views = []
            for j in range(k):
                same = episode[j : j + LENGTH + 1] == episode[k - 1 :]
                views.append(
                    jnp.where(same.reshape(*same.shape, *(1,) * (frames.ndim - 2)), frames[j:][: LENGTH + 1], 0)
                )
            drawn["obs"] = jnp.stack(views, axis=2)
        return drawn["obs"], {name: drawn[name][k - 1 : -1] for name in fields if name != "obs"}

    draw = jax.jit(lambda state, key: repeated(lambda key: one(state, key))(key))
    key = jax.random.PRNGKey(0)
    obs, rest = draw(state, key)
    check(log, obs, rest["mu_a"])
    return lambda: jax.block_until_ready(draw(state, key))


def flashbax_stacks(log: Log) -> Function:
    if log.game.stack == 1:
        raise LeftOut("nothing to stack")
    return flashbax(log, stacked=True)


def numpy_ring(log: Log) -> Function:
    """Store single frames, with bools packed to bits; build stacks frame by frame, with zeros before an episode."""
    game = log.game
    rng = np.random.default_rng(0)
    flat = log.frames.reshape(*log.reset.shape, -1)
    size = flat.shape[-1]
    written = np.packbits(flat, axis=-1) if game.dtype == "bool" else flat
    ring = {"frames": written, "reset": log.reset, "mask": np.ones_like(log.reset), "r": log.reward}
    ring |= {"continues": np.ones_like(log.reset), "a": log.action.astype(np.uint8), "mu_a": log.mu_a}
    newest = len(log.reset)
    rows = np.arange(newest - game.capacity, newest)
    for name, values in ring.items():
        ring[name] = np.empty_like(values[: game.capacity])
        ring[name][rows % game.capacity] = values[rows]

    def one() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        start = rng.integers(rows[0] + game.stack - 1, newest - LENGTH, NUM_WINDOWS)
        actor = rng.integers(game.num_actors, size=NUM_WINDOWS)
        row = (start + np.arange(1 - game.stack, LENGTH + 1)[:, None]) % game.capacity
        frames = ring["frames"][row, actor]
        if game.dtype == "bool":
            frames = np.unpackbits(frames, axis=-1, count=size).view(np.bool_)
        episode = np.cumsum(ring["reset"][row, actor], axis=0)
        obs = np.empty((LENGTH + 1, NUM_WINDOWS, game.stack, size), frames.dtype)
        for j in range(game.stack):
            obs[:, :, j] = frames[j : j + LENGTH + 1]
            obs[episode[j : j + LENGTH + 1] != episode[game.stack - 1 :], j] = 0
        steps = row[game.stack - 1 : -1]
        return obs, {name: values[steps, actor] for name, values in ring.items() if name != "frames"}

    obs, rest = one()
    check(log, obs, rest["mu_a"])
    return lambda: [one() for _ in range(NUM_BATCHES)]


def bytes_per_transition(game: Game, name: str) -> float:
    """Return the size of frame, action, reward, mu_a and three flags, as each contender stores them."""
    if name == "offtrace":
        from offtrace.agent import replay

        return replay.bytes_per_transition(spec(game))
    size = math.prod(game.shape)
    if name.startswith("NumPy"):
        size = -(-size // 8) if game.dtype == "bool" else size
    return size * (game.stack if name.endswith("whole stacks") else 1) + 1 + 4 + 4 + 3


BENCHMARK = Benchmark(
    name="replay",
    question=f"How long do {NUM_BATCHES} batches of {NUM_WINDOWS} windows × {LENGTH} steps take?",
    rows=(
        Game("MinAtar Breakout, 10×10×4 bits", (10, 10, 4), "bool", stack=1, capacity=10_000),
        Game("MinAtar Seaquest, 10×10×10 bits", (10, 10, 10), "bool", stack=1, capacity=10_000),
        Game("Atari, 84×84 bytes, 4 stacked", (84, 84), "uint8", stack=4, capacity=1_000),
    ),
    problem=log,
    contenders={
        "offtrace": ours,
        "flashbax, single frames": lambda log: flashbax(log, stacked=False),
        "flashbax, whole stacks": flashbax_stacks,
        "NumPy ring": numpy_ring,
    },
    ours=("offtrace",),
    columns={"batches/s": lambda _, seconds: NUM_BATCHES / seconds},
    measures={"bytes": bytes_per_transition},
)
