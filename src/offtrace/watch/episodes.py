"""Plays episodes, and yields a frame per step: picture, action values and action.

    for frame in play(player, seed=0, max_steps=1000, num_episodes=2):
        frame.picture, frame.q, frame.action, frame.episode_return

Pure environments are drawn by `pictures`; a Gymnasium environment renders itself, and an Atari game shows its screen.
"""

import itertools
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from offtrace.environments import make
from offtrace.environments.checks import checked_whole
from offtrace.watch.pictures import ACTIONS, cells, picture

ATARI_PIXEL_WIDTH = 1.75
"""A television showed the 160×210 pixels of a game as 4:3."""


class Player(Protocol):
    """An agent that takes the greedy actions of `q`, and the environment `make(env, **options)` that it plays in."""

    @property
    def env(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def q(self, observations: np.ndarray, /) -> np.ndarray:
        """Return action values (N, A) for observations (N, *shape)."""
        ...


@dataclass(frozen=True, eq=False)
class Frame:
    """State x_t of an episode, with the action taken in it. T steps give T + 1 frames."""

    picture: np.ndarray
    """(H, W, 3) uint8."""
    cells: np.ndarray | None
    """(rows, columns, 3) uint8, if the environment consists of cells, else None."""
    observation: np.ndarray
    action: int | None
    """The action taken in x_t; None in the last frame."""
    reward: float
    """The reward on the way to x_t; 0 in the first frame."""
    episode: int
    """The number of the episode, from 1."""
    step: int
    """t, from 0."""
    episode_return: float
    """The undiscounted return so far."""
    q: np.ndarray | None
    """(A,) the action values in x_t; None in the last frame."""
    ended: str
    """In the last frame `terminated`, `truncated`, or `stopped` (by `max_steps`), else empty."""
    action_names: Sequence[str] = ()
    """The names of the actions; empty if they have none."""
    pixel_width: float = 1.0
    """How wide a pixel of the picture is for its height."""


def play(
    player: Player, *, seed: int, max_steps: int, num_episodes: int = 1, epsilon: float = 0.0
) -> Generator[Frame, None, None]:
    """Yield the frames of `num_episodes` episodes of at most `max_steps` steps each.

    The action is the first greedy one, or with probability `epsilon` a uniform one. The same seed
    gives the same frames if the environment is deterministic given its seed.

    >>> from types import SimpleNamespace
    >>> stays = lambda x: np.array([[0.0, 1.0, 0.0]])
    >>> frames = [*play(SimpleNamespace(env="pocket/catch", options={}, q=stays), seed=0, max_steps=100)]
    >>> len(frames), frames[0].action, frames[-1].action, frames[-1].ended
    (10, 1, None, 'terminated')
    """
    seed = checked_whole("seed", seed, least=0, limited=True)
    max_steps = checked_whole("max_steps", max_steps, limited=True)
    num_episodes = checked_whole("num_episodes", num_episodes, limited=True)
    if not 0 <= epsilon <= 1:
        raise ValueError(f"`epsilon` must be a probability; got {epsilon!r}.")
    return _frames(player, seed, max_steps, num_episodes, float(epsilon))


def _frames(
    player: Player, seed: int, max_steps: int, num_episodes: int, epsilon: float
) -> Generator[Frame, None, None]:
    generator = np.random.default_rng(seed)
    stage = _stage(player, seed)
    try:
        for episode in range(1, num_episodes + 1):
            now = stage.reset()
            total = 0.0
            for step in itertools.count():
                total += now.reward
                ended = _end(now, step, max_steps)
                q = None if ended else _values(player, now.observation, stage.num_actions)
                action = None if q is None else _action(q, epsilon, generator)
                yield Frame(
                    picture=stage.picture(),
                    cells=stage.cells(),
                    observation=now.observation,
                    action=action,
                    reward=now.reward,
                    episode=episode,
                    step=step,
                    episode_return=total,
                    q=q,
                    ended=ended,
                    action_names=stage.action_names,
                    pixel_width=stage.pixel_width,
                )
                if action is None:
                    break
                now = stage.step(action)
    finally:
        stage.close()


def _end(now: "_Moment", step: int, max_steps: int) -> str:
    if now.terminated:
        return "terminated"
    if now.truncated:
        return "truncated"
    return "stopped" if step == max_steps else ""


def _values(player: Player, observation: np.ndarray, num_actions: int) -> np.ndarray:
    q = np.asarray(player.q(observation[None]))
    if q.shape != (1, num_actions):
        raise ValueError(f"`player.q` must return (1, {num_actions}) for one observation; got shape {q.shape}.")
    if not np.isfinite(q).all():
        raise ValueError(f"`player.q` must be finite; got {q[0].tolist()}. The agent may have diverged.")
    return q[0]


def _action(q: np.ndarray, epsilon: float, generator: np.random.Generator) -> int:
    if epsilon and generator.random() < epsilon:
        return int(generator.integers(len(q)))
    return int(q.argmax())


# -- the environments ------------------------------------------------------------------------------


class _Moment(NamedTuple):
    observation: np.ndarray
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class _Stage(Protocol):
    """One environment of any kind, which keeps its own state."""

    num_actions: int
    action_names: Sequence[str]
    """Names of the actions; empty if they have none."""
    pixel_width: float
    """As in `Frame`."""

    def reset(self) -> _Moment: ...

    def step(self, action: int) -> _Moment: ...

    def picture(self) -> np.ndarray: ...

    def cells(self) -> np.ndarray | None: ...

    def close(self) -> None: ...


def _stage(player: Player, seed: int) -> _Stage:
    made = make(player.env, **player.options)
    if player.env.startswith("atari/"):
        return _Atari(made, seed)
    if player.env.startswith("gymnasium/"):
        return _Rendered(made.id, player.options, seed)
    return _Pure(made, seed)


class _Pure:
    """A pure environment in JAX."""

    pixel_width = 1.0

    def __init__(self, env: Any, seed: int) -> None:
        import jax

        self.num_actions = env.num_actions
        self.action_names: Sequence[str] = ACTIONS.get(env.name, "")
        self._env = env
        self._reset = jax.jit(env.reset)
        self._step = jax.jit(env.step)
        self._split = jax.random.split
        self._key = jax.random.key(seed)
        self._state: Any = None

    def reset(self) -> _Moment:
        self._key, used = self._split(self._key)
        self._state, observation = self._reset(used)
        return _Moment(np.asarray(observation))

    def step(self, action: int) -> _Moment:
        self._key, used = self._split(self._key)
        step = self._step(self._state, np.int32(action), used)
        self._state = step.state
        return _Moment(np.asarray(step.observation), float(step.reward), bool(step.terminated), bool(step.truncated))

    def picture(self) -> np.ndarray:
        return picture(self._env, self._state)

    def cells(self) -> np.ndarray | None:
        return cells(self._env, self._state)

    def close(self) -> None:
        pass


class _Atari:
    """An Atari game; a lost life does not end the episode."""

    pixel_width = ATARI_PIXEL_WIDTH

    def __init__(self, made: Any, seed: int) -> None:
        from offtrace.environments.atari_screen import WatchedGame

        self._game = WatchedGame(made, seed)
        self.num_actions = self._game.num_actions
        self.action_names: Sequence[str] = self._game.action_names

    def reset(self) -> _Moment:
        return _Moment(self._game.reset())

    def step(self, action: int) -> _Moment:
        return _Moment(*self._game.step(action))

    def picture(self) -> np.ndarray:
        return self._game.picture()

    def cells(self) -> None:
        return None

    def close(self) -> None:
        self._game.close()


class _Rendered:
    """A Gymnasium environment with `render_mode="rgb_array"`."""

    pixel_width = 1.0

    def __init__(self, id_: str, options: dict[str, Any], seed: int) -> None:
        from offtrace.environments.encoding import Encoded, encoded
        from offtrace.environments.finding import find
        from offtrace.environments.guard import gymnasium, make_one
        from offtrace.environments.gymnasium import own_options
        from offtrace.environments.spaces import observed_dtype

        self._name = f"gymnasium/{id_}"
        self._seed: int | None = seed
        self._missing = gymnasium.error.DependencyNotInstalled
        spec = find(id_)
        kept = {key: value for key, value in options.items() if key not in (*own_options(), "render_mode")}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*render_mode")  # checked below
                self._env = make_one(spec, render_mode="rgb_array", **kept)
        except TypeError as error:
            if "render_mode" not in str(error):
                raise
            raise self._unseen("it takes no `render_mode`, which gymnasium.Env documents") from error
        try:
            if "rgb_array" not in (self._env.metadata.get("render_modes") or ()):
                raise self._unseen(f"its render modes are {self._env.metadata.get('render_modes')}")
            self._env = encoded(self._env, self._name)
        except BaseException:
            self._env.close()
            raise
        self.num_actions = int(self._env.action_space.n)
        self.action_names: Sequence[str] = ACTIONS.get(self._name, "")
        if isinstance(self._env, Encoded):
            self.action_names = self._env.action_names or self.action_names
        self._first_action = int(self._env.action_space.start)
        self._dtype = observed_dtype(self._env.observation_space)

    def reset(self) -> _Moment:
        seed, self._seed = self._seed, None
        observation, _ = self._env.reset(seed=seed)
        return _Moment(np.array(observation, self._dtype))

    def step(self, action: int) -> _Moment:
        observation, reward, terminated, truncated, _ = self._env.step(action + self._first_action)
        return _Moment(np.array(observation, self._dtype), float(reward), bool(terminated), bool(truncated))

    def picture(self) -> np.ndarray:
        try:
            shown = self._env.render()
        except self._missing as missing:
            reason = str(missing)
            if "pygame" in reason:
                reason = "it needs pygame: pip install 'offtrace[video]'"
            raise self._unseen(reason) from missing
        if not isinstance(shown, np.ndarray):
            raise self._unseen(f"`render` gives {type(shown).__name__}")
        if shown.ndim != 3 or shown.shape[2] != 3 or shown.dtype != np.uint8:
            raise self._unseen(f"`render` gives {shown.dtype} {shown.shape}")
        return shown.copy()  # an environment may draw into the same array again

    def cells(self) -> None:
        return None

    def close(self) -> None:
        self._env.close()

    def _unseen(self, why: str) -> ValueError:
        return ValueError(f"`env` must render (H, W, 3) uint8 arrays to be watched; {self._name} does not: {why}.")
