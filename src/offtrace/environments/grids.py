"""Small grid environments that are learned in seconds: Catch, Deep Sea and the cliff.

Observations are bool planes (rows, columns, channels). Catch tests credit assignment over a whole
episode, Deep Sea tests exploration, and the cliff tests off-policy learning and time limits.
"""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.environments.checks import checked_whole
from offtrace.environments.interface import Array, Space, Step

BOOL = np.dtype(bool)


class Fall(NamedTuple):
    """The state of Catch: where the ball and the paddle are."""

    row: Array
    column: Array
    paddle: Array


@dataclass(frozen=True)
class Catch:
    """bsuite's `catch`: a ball falls from a random column, and a paddle must catch it.

    The paddle in the last row moves left, stays or moves right. When the ball reaches that row, the
    reward is +1 for a catch and −1 for a miss, and the episode terminates. The planes are the ball
    and the paddle.
    """

    rows: int = 10
    columns: int = 10

    name: ClassVar[str] = "pocket/catch"
    num_actions: ClassVar[int] = 3
    max_return: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        checked_whole("rows", self.rows, least=2)
        checked_whole("columns", self.columns)

    @property
    def observation(self) -> Space:
        return Space((self.rows, self.columns, 2), BOOL)

    def reset(self, key: Array) -> tuple[Fall, Array]:
        column = jax.random.randint(key, (), 0, self.columns, jnp.int32)
        state = Fall(jnp.int32(0), column, jnp.int32(self.columns // 2))
        return state, self._planes(state)

    def step(self, state: Fall, action: Array, key: Array) -> Step:
        paddle = jnp.clip(state.paddle + jnp.asarray(action, jnp.int32) - 1, 0, self.columns - 1)
        state = Fall(state.row + 1, state.column, paddle)
        landed = state.row == self.rows - 1
        caught = jnp.where(state.column == paddle, jnp.float32(1), jnp.float32(-1))
        reward = jnp.where(landed, caught, 0)
        return Step(state, self._planes(state), reward, terminated=landed, truncated=jnp.bool_(False))

    def _planes(self, state: Fall) -> Array:
        ball = _plane(self.rows, self.columns, state.row, state.column)
        return jnp.stack([ball, _plane(self.rows, self.columns, self.rows - 1, state.paddle)], -1)


class Place(NamedTuple):
    """The state of Deep Sea and the cliff: where the agent is."""

    row: Array
    column: Array
    time: Array


@dataclass(frozen=True)
class DeepSea:
    """bsuite's `deep_sea`: a dive of `size` rows, where only going right in every row finds the
    treasure.

    A step to the right costs 0.01 / size, and the last one, from the last column, gives 1. Any
    policy that does not reach the treasure does best by never going right. Which action goes right
    differs between cells, and is drawn with the seed `mapping`. The plane is empty below the last
    row, where the episode terminates.

    >>> env = DeepSea(size=3)
    >>> state, x = env.reset(jax.random.key(0))
    >>> gained = 0.0
    >>> for action in env.right.diagonal():
    ...     step = env.step(state, action, jax.random.key(0))
    ...     state, gained = step.state, gained + float(step.reward)
    >>> round(gained, 6), bool(step.terminated)
    (0.99, True)
    """

    size: int = 10
    mapping: int = 0
    right: np.ndarray = field(init=False, repr=False, compare=False)
    """(size, size) int: the action that goes right."""

    name: ClassVar[str] = "pocket/deep_sea"
    num_actions: ClassVar[int] = 2
    max_return: ClassVar[float] = 0.99

    def __post_init__(self) -> None:
        checked_whole("size", self.size, least=2)
        right = np.random.default_rng(self.mapping).integers(0, 2, (self.size, self.size))
        object.__setattr__(self, "right", right.astype(np.int32))

    @property
    def observation(self) -> Space:
        return Space((self.size, self.size, 1), BOOL)

    def reset(self, key: Array) -> tuple[Place, Array]:
        state = Place(jnp.int32(0), jnp.int32(0), jnp.int32(0))
        return state, self._planes(state)

    def step(self, state: Place, action: Array, key: Array) -> Step:
        last = self.size - 1
        goes_right = action == jnp.asarray(self.right)[jnp.minimum(state.row, last), state.column]
        treasure = goes_right & (state.column == last)
        reward = treasure - jnp.where(goes_right, jnp.float32(0.01 / self.size), jnp.float32(0))
        column = jnp.clip(state.column + jnp.where(goes_right, 1, -1), 0, last)
        state = Place(state.row + 1, column, state.time + 1)
        is_over = state.row == self.size
        return Step(state, self._planes(state), reward, terminated=is_over, truncated=jnp.bool_(False))

    def _planes(self, state: Place) -> Array:
        return _plane(self.size, self.size, state.row, state.column)[..., None]


@dataclass(frozen=True)
class Cliff:
    """Gymnasium's CliffWalking-v1 with a time limit: −1 per step, −100 for the cliff.

    The cliff leads back to the start. The grid has 4 rows of 12 cells; the start is the lower left
    corner, the goal the lower right one, with the cliff between them. The actions are up, right,
    down and left.
    """

    time_limit: int = 200

    name: ClassVar[str] = "pocket/cliff"
    num_actions: ClassVar[int] = 4
    observation: ClassVar[Space] = Space((4, 12, 1), BOOL)
    max_return: ClassVar[float] = -13.0

    def reset(self, key: Array) -> tuple[Place, Array]:
        state = Place(jnp.int32(3), jnp.int32(0), jnp.int32(0))
        return state, _plane(4, 12, state.row, state.column)[..., None]

    def step(self, state: Place, action: Array, key: Array) -> Step:
        row = jnp.clip(state.row + jnp.array([-1, 0, 1, 0], jnp.int32)[action], 0, 3)
        column = jnp.clip(state.column + jnp.array([0, 1, 0, -1], jnp.int32)[action], 0, 11)
        low = row == 3
        falls = low & (column > 0) & (column < 11)
        arrives = low & (column == 11)
        column = jnp.where(falls, 0, column)
        state = Place(row, column, state.time + 1)
        reward = jnp.where(falls, jnp.float32(-100), jnp.float32(-1))
        planes = _plane(4, 12, row, column)[..., None]
        truncated = jnp.bool_(state.time >= self.time_limit)
        return Step(state, planes, reward, terminated=arrives, truncated=truncated)


def _plane(rows: int, columns: int, row: Array, column: Array) -> Array:
    """Return a plane that is True at (row, column), or nowhere if that is outside."""
    return (jnp.arange(rows)[:, None] == row) & (jnp.arange(columns) == column)
