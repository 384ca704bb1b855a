"""The interface of environments, and of the rows that they give.

A pure environment is a single environment in JAX: `reset` and `step` are functions of their
arguments, and the caller uses `vmap`. Automatic resets and masks are added by
`offtrace.environments.rows`.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

TIME_LIMIT = 100
"""The default time limit of an MDP, in steps."""
MDP_OPTIONS = ("time_limit", "observation", "num_features", "feature_seed")
"""The options of `mdp/<name>` for the environment; all others are for the MDP."""

State = Any
"""The state of an environment: a pytree of arrays of fixed shapes, which only the environment reads."""

Array = Any
"""A NumPy or a JAX array."""


class Space(NamedTuple):
    """Shape and dtype of an observation: bool planes, uint8 frames or float32 vectors.

    >>> Space((10, 10, 4), np.dtype(bool)).shape
    (10, 10, 4)
    """

    shape: tuple[int, ...]
    dtype: np.dtype


class Step(NamedTuple):
    """The result of one action. `observation` is the true successor, also at the end of an episode."""

    state: State
    observation: Array
    reward: Array
    """float32, not clipped."""
    terminated: Array
    """bool: the task is over."""
    truncated: Array
    """bool: the time limit was reached; the value of the last observation still counts."""


class Environment(Protocol):
    """An environment in pure JAX. It is frozen and hashable, so it can be a static argument of `jit`."""

    @property
    def name(self) -> str: ...

    @property
    def num_actions(self) -> int: ...

    @property
    def observation(self) -> Space: ...

    @property
    def max_return(self) -> float | None:
        """The largest possible undiscounted return of an episode, or None if there is no bound."""
        ...

    def reset(self, key: Array) -> tuple[State, Array]: ...

    def step(self, state: State, action: Array, key: Array) -> Step: ...


class Actor(NamedTuple):
    """The state of one stream of rows. The next action is chosen for `observation`."""

    state: State
    observation: Array
    first: Array
    """bool: `observation` is the first of an episode."""
    over: Array
    """bool: `observation` is the last of an episode; the next row is its dummy row."""
    episode_return: Array
    """float32: the return so far."""
    episode_length: Array
    """int32: the steps so far."""
    key: Array


class Row(NamedTuple):
    """Row t: x_t and the result of a_t. The discount of step t is γ · `continues`.

    An episode of two steps that is truncated, and the first row of the next one:

        observation   x_0    x_1    x_2    y_0
        reset         True   False  False  True
        mask          True   True   False  True     x_2 is in a dummy row, the successor of step 1
        continues     True   True   True   True     False in step 1, had it terminated
    """

    observation: Array
    reset: Array
    """bool: the observation is the first of an episode."""
    mask: Array
    """bool: False in the dummy row after an end, whose observation is the last one of the episode."""
    reward: Array
    """float32; 0 in a dummy row."""
    continues: Array
    """bool: False where step t terminated."""


class Ended(NamedTuple):
    """The end of an episode: `ended` is True in its last row, with its undiscounted return and its length, else 0."""

    ended: Array
    episode_return: Array
    episode_length: Array
