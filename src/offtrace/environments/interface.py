"""What an environment is to the rest of the library, and what comes out of one row by row.

A pure environment is one environment in JAX: `reset` and `step` are functions of their arguments, and whoever drives
it uses `vmap`. It knows nothing of resets in the middle of a run, discounts or masks; `rows` makes those.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np

TIME_LIMIT = 100
"""Steps of an episode of an MDP, unless told otherwise."""
MDP_OPTIONS = ("time_limit", "observation", "num_features", "feature_seed")
"""Options of `mdp/<name>` that are the environment's; others are the MDP's."""

State = Any
"""A pytree of arrays of fixed shapes; only its environment looks inside."""

Array = Any
"""A NumPy or a JAX array."""


class Space(NamedTuple):
    """One observation: bool for planes of a grid, uint8 for frames, float32 for vectors.

    >>> Space((10, 10, 4), np.dtype(bool)).shape
    (10, 10, 4)
    """

    shape: tuple[int, ...]
    dtype: np.dtype


class Step(NamedTuple):
    """What came of one action. `observation` is the true successor, also where the episode ends with it."""

    state: State
    observation: Array
    reward: Array
    """float32, as the environment gives it: never clipped."""
    terminated: Array
    """bool: the task is over, and nothing follows."""
    truncated: Array
    """bool: a time limit; the last observation keeps its value."""


class Environment(Protocol):
    """One environment in pure JAX; a frozen, hashable value, so it can be a static argument of `jit`."""

    @property
    def name(self) -> str: ...

    @property
    def num_actions(self) -> int: ...

    @property
    def observation(self) -> Space: ...

    @property
    def max_return(self) -> float | None:
        """No episode can return more, undiscounted; None where there is no bound."""
        ...

    def reset(self, key: Array) -> tuple[State, Array]: ...

    def step(self, state: State, action: Array, key: Array) -> Step: ...


class Actor(NamedTuple):
    """Where one stream of rows stands: `observation` is what the next action is chosen for."""

    state: State
    observation: Array
    first: Array
    """bool: `observation` is the first of an episode."""
    over: Array
    """bool: `observation` is the last of an episode; the next row is its dummy row."""
    episode_return: Array
    """float32, so far."""
    episode_length: Array
    """int32, so far."""
    key: Array


class Row(NamedTuple):
    """Row t of the paper's index: x_t, and what came of a_t; the discount of step t is γ · `continues`.

    An episode of two steps that is truncated, then the first row of the next one:

        observation   x_0    x_1    x_2    y_0
        reset         True   False  False  True
        mask          True   True   False  True     x_2 is in a dummy row, the successor of step 1
        continues     True   True   True   True     False in step 1, had it terminated
    """

    observation: Array
    reset: Array
    """bool: the observation is the first of an episode."""
    mask: Array
    """bool: False in the dummy row after an end, whose observation is the true last one of the episode."""
    reward: Array
    """float32; 0 in a dummy row."""
    continues: Array
    """bool: False where step t terminated."""


class Ended(NamedTuple):
    """Which episodes ended with this row, with their raw returns and lengths; both are 0 where none did."""

    ended: Array
    episode_return: Array
    episode_length: Array
