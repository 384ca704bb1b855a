"""An agent plays, and every moment of it becomes a frame: what it saw, what it thought of it, what it did.

    for frame in play(policy, seed=0, max_steps=1000, num_episodes=2):
        frame.picture, frame.q, frame.action, frame.episode_return

Pure environments are drawn by `pictures`; a Gymnasium environment draws itself.
"""

import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from offtrace.environments import make
from offtrace.environments.pictures import cells, picture


class Policy(Protocol):
    """Who plays, and where: the greedy actions of `q`, in the environment that `make(env, **options)` gives."""

    @property
    def env(self) -> str: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def q(self, observations: np.ndarray, /) -> np.ndarray:
        """(N, *shape) to (N, A)."""
        ...


@dataclass(frozen=True, eq=False)
class Frame:
    """One moment x_t of an episode; T steps give T + 1 frames."""

    picture: np.ndarray
    """(H, W, 3) uint8."""
    cells: np.ndarray | None
    """(rows, columns, 3) uint8, where the environment is made of cells."""
    observation: np.ndarray
    action: int | None
    """What is done here; None in the last frame."""
    reward: float
    """What came with x_t: 0 in the first frame."""
    episode: int
    """From 1."""
    step: int
    """t, from 0."""
    episode_return: float
    """Undiscounted, up to here."""
    q: np.ndarray | None
    """(A,): what the agent expects of each action; None in the last frame."""
    ended: str
    """Empty but in the last frame: `terminated`, `truncated`, or `stopped` by `max_steps`."""


def play(
    policy: Policy, *, seed: int, max_steps: int, num_episodes: int = 1, epsilon: float = 0.0
) -> Generator[Frame, None, None]:
    """Frames of `num_episodes` episodes, each stopped after `max_steps` steps if it has not ended before.

    The action is the first greedy one; with probability `epsilon` it is any. The same seed gives the same frames, if
    the environment keeps to its seed.

    >>> from types import SimpleNamespace
    >>> stays = lambda x: np.array([[0.0, 1.0, 0.0]])
    >>> frames = [*play(SimpleNamespace(env="pocket/catch", options={}, q=stays), seed=0, max_steps=100)]
    >>> len(frames), frames[0].action, frames[-1].action, frames[-1].ended
    (10, 1, None, 'terminated')
    """
    for name, value, least in (("seed", seed, 0), ("max_steps", max_steps, 1), ("num_episodes", num_episodes, 1)):
        if not isinstance(value, int | np.integer) or not least <= value < 2**31:
            raise ValueError(f"`{name}` must be an integer of at least {least} and under 2³¹; got {value!r}.")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"`epsilon` must be a probability; got {epsilon!r}.")
    return _frames(policy, int(seed), int(max_steps), int(num_episodes), float(epsilon))


def _frames(
    policy: Policy, seed: int, max_steps: int, num_episodes: int, epsilon: float
) -> Generator[Frame, None, None]:
    generator = np.random.default_rng(seed)
    stage = _stage(policy, seed)
    try:
        for episode in range(1, num_episodes + 1):
            now, total, step, ended = stage.reset(), 0.0, 0, ""
            while True:
                total += now.reward
                if now.terminated or now.truncated:
                    ended = "terminated" if now.terminated else "truncated"
                elif step == max_steps:
                    ended = "stopped"
                q = None if ended else _values(policy, now.observation, stage.num_actions)
                action = None if q is None else _action(q, epsilon, generator)
                look = stage.picture(), stage.cells()
                yield Frame(*look, now.observation, action, now.reward, episode, step, total, q, ended)
                if action is None:
                    break
                now, step = stage.step(action), step + 1
    finally:
        stage.close()


def _values(policy: Policy, observation: np.ndarray, num_actions: int) -> np.ndarray:
    q = np.asarray(policy.q(observation[None]))
    if q.shape != (1, num_actions):
        raise ValueError(f"`policy.q` must give (1, {num_actions}) for one observation; got shape {q.shape}.")
    if not np.isfinite(q).all():
        raise ValueError(f"`policy.q` must be finite; got {q[0].tolist()}. The agent may have diverged.")
    return q[0]


def _action(q: np.ndarray, epsilon: float, generator: np.random.Generator) -> int:
    if epsilon and generator.random() < epsilon:
        return int(generator.integers(len(q)))
    return int(q.argmax())


# -- where it plays --------------------------------------------------------------------------------


class _Moment(NamedTuple):
    observation: np.ndarray
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class _Stage(Protocol):
    """One environment, whatever its kind, that knows where it stands."""

    num_actions: int

    def reset(self) -> _Moment: ...

    def step(self, action: int) -> _Moment: ...

    def picture(self) -> np.ndarray: ...

    def cells(self) -> np.ndarray | None: ...

    def close(self) -> None: ...


def _stage(policy: Policy, seed: int) -> _Stage:
    if policy.env.startswith("atari/"):
        raise ValueError(
            f"`env` must be an environment that can be watched, which Atari's cannot yet; got {policy.env!r}."
        )
    made = make(policy.env, **policy.options)
    if policy.env.startswith("gymnasium/"):
        return _Rendered(made.id, policy.options, seed)
    return _Pure(made, seed)


class _Pure:
    def __init__(self, env: Any, seed: int) -> None:
        import jax

        self.num_actions, self._env = env.num_actions, env
        self._reset, self._step, self._split = jax.jit(env.reset), jax.jit(env.step), jax.random.split
        self._key, self._state = jax.random.key(seed), None

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


class _Rendered:
    """A Gymnasium environment with `render_mode="rgb_array"`."""

    def __init__(self, id_: str, options: dict[str, Any], seed: int) -> None:
        from offtrace.environments.guard import find, gymnasium, made
        from offtrace.environments.gymnasium import own_options

        self._name = f"gymnasium/{id_}"
        self._seed: int | None = seed
        self._missing = gymnasium.error.DependencyNotInstalled
        spec = find(id_, allow_import=options.get("allow_import", False))
        kept = {key: value for key, value in options.items() if key not in (*own_options(), "render_mode")}
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*render_mode")  # refused below
                self._env = made(spec, render_mode="rgb_array", **kept)
        except TypeError as error:
            if "render_mode" not in str(error):
                raise
            raise self._unseen("it takes no `render_mode`") from error
        try:
            if "rgb_array" not in (self._env.metadata.get("render_modes") or ()):
                raise self._unseen(f"its render modes are {self._env.metadata.get('render_modes')}")
            seen, done = self._env.observation_space, self._env.action_space
            if not isinstance(seen, gymnasium.spaces.Box) or not isinstance(done, gymnasium.spaces.Discrete):
                raise ValueError(
                    f"`env` must have observations in a Box and Discrete actions; {self._name} has {seen} and {done}."
                )
        except BaseException:
            self._env.close()
            raise
        self.num_actions, self._first_action = int(done.n), int(done.start)
        self._dtype = seen.dtype if seen.dtype in (np.uint8, np.bool_) else np.dtype(np.float32)

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
            with_pygame = "it needs pygame: pip install 'offtrace[video]'"
            raise self._unseen(with_pygame if "pygame" in str(missing) else str(missing)) from missing
        if not isinstance(shown, np.ndarray) or shown.ndim != 3 or shown.shape[2] != 3 or shown.dtype != np.uint8:
            kind = f"{shown.dtype} {shown.shape}" if isinstance(shown, np.ndarray) else type(shown).__name__
            raise self._unseen(f"`render` gives {kind}")
        return shown.copy()  # an environment may draw on the same array again

    def cells(self) -> None:
        return None

    def close(self) -> None:
        self._env.close()

    def _unseen(self, why: str) -> ValueError:
        return ValueError(f"`env` must render (H, W, 3) uint8 arrays to be watched; {self._name} does not: {why}.")
