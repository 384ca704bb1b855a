"""Observations as arrays of numbers, and actions as one number: what the agent reads and chooses.

observations                         encoded as
Box                                  itself
Discrete(16)                         one-hot, 16 numbers
MultiDiscrete([3, 4])                one-hot for each entry, 3 + 4 numbers
MultiBinary(5)                       5 numbers
Dict, Tuple                          their parts side by side, in the order of the space

actions MultiDiscrete([3, 2])        0       1       2       3       4       5
are numbered                         (0, 0)  (0, 1)  (1, 0)  (1, 1)  (2, 0)  (2, 1)
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from offtrace.environments.guard import check_fits, gymnasium

spaces = gymnasium.spaces

MOST_ACTIONS = 256
"""The largest number of actions: the memory stores an action in one byte."""
MOST_NUMBERS = 100_000
"""The largest number of numbers in an encoded observation."""
MOST_SHOWN = 100
"""The largest number of characters of a space in a message."""
ONE_HOT = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose encoding consists of zeros and ones."""


def encoded(env: Any, name: str) -> Any:
    """Return an environment with Box observations and Discrete actions; the same one if it has both already.

    `name` is for errors about spaces that cannot be encoded.
    """
    box_space = observation_box(env.observation_space, name)
    num_actions = count_actions(env.action_space, name)
    if box_space is env.observation_space and isinstance(env.action_space, spaces.Discrete):
        return env
    return Encoded(env, box_space, num_actions)


class Encoded(gymnasium.Wrapper):
    """An environment with encoded observations and numbered actions."""

    def __init__(self, env: Any, box_space: Any, num_actions: int) -> None:
        super().__init__(env)
        self._inner_observations = env.observation_space
        self._inner_actions = env.action_space
        self._num_actions = num_actions
        self.observation_space = box_space
        if not isinstance(env.action_space, spaces.Discrete):
            self.action_space = spaces.Discrete(num_actions)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is encoded."""
        return tuple(_notes(self._inner_observations, self.observation_space, self._inner_actions, self.action_space))

    @property
    def action_names(self) -> tuple[str, ...]:
        """The parts of each numbered action, such as `2,0`; empty if the environment numbers its actions itself."""
        if self._inner_actions is self.action_space:
            return ()
        actions = [nth_action(self._inner_actions, number) for number in range(self._num_actions)]
        return tuple(",".join(map(str, _leaves(action))) for action in actions)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return self._observed(observation), info

    def step(self, action: Any) -> Any:
        if self._inner_actions is not self.action_space:
            action = nth_action(self._inner_actions, int(action))
        observation, *rest = self.env.step(action)
        return self._observed(observation), *rest

    def _observed(self, observation: Any) -> Any:
        if self._inner_observations is self.observation_space:
            return observation
        return encode(self._inner_observations, self.observation_space, observation)


# -- observations --------------------------------------------------------------------------------------------


def observation_box(space: Any, name: str) -> Any:
    """Return the Box of encoded observations; the space itself if it is a Box."""
    if isinstance(space, spaces.Box):
        return space
    parts = list(_parts(space))
    for part in parts:
        if not isinstance(part, (spaces.Box, *ONE_HOT)):
            raise ValueError(
                f"`env` must have observations that consist of numbers; {name} has {shown(part)}. Change them with a "
                "wrapper, such as gymnasium.wrappers.TransformObservation."
            )
    number = sum(map(spaces.utils.flatdim, parts))
    if not 1 <= number <= MOST_NUMBERS:
        raise ValueError(
            f"`env` must have observations of 1 to {MOST_NUMBERS:,} numbers; {name} has {shown(space)}, which are "
            f"{number:,}. Change them with a wrapper, such as gymnasium.wrappers.TransformObservation."
        )
    if all(isinstance(part, ONE_HOT) for part in parts):
        dtype: Any = np.bool_  # a byte per number in the replay memory
        return spaces.Box(0, 1, (number,), dtype)
    return spaces.utils.flatten_space(space)


def encode(space: Any, box_space: Any, observation: Any) -> np.ndarray:
    """Return an observation of `space` as an array of `box_space`; raise if the space does not contain it.

    >>> space = spaces.Dict(place=spaces.Discrete(3), speed=spaces.Box(-1, 1, (2,)))
    >>> encode(space, observation_box(space, ""), {"place": 1, "speed": np.float32([0.5, -0.5])}).tolist()
    [0.0, 1.0, 0.0, 0.5, -0.5]
    """
    _check_contains(space, observation)
    return np.asarray(spaces.utils.flatten(space, observation), box_space.dtype)


def _check_contains(space: Any, observation: Any) -> None:
    """Raise unless the observation is in its space. The bounds of a Box are checked later, for all actors at once.

    Gymnasium's `flatten` would encode a number outside of a Discrete space as another one.
    """
    if isinstance(space, spaces.Box):
        check_fits(np.asarray(observation), space)
    elif isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or set(observation) != set(space):
            raise ValueError(f"the observation must be a dict with the keys {', '.join(map(str, space))}")
        for key, part in space.items():
            _check_contains(part, observation[key])
    elif isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space):
            raise ValueError(f"the observation must be a tuple of {len(space)} parts")
        for part, value in zip(space, observation, strict=True):
            _check_contains(part, value)
    elif not space.contains(observation):
        raise ValueError(f"the observation must be in {shown(space)}; got {observation!r}")


def _parts(space: Any) -> Any:
    """Yield the spaces inside Dict and Tuple spaces, in their order."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.values() if isinstance(space, spaces.Dict) else space
        for part in inner:
            yield from _parts(part)
    else:
        yield space


# -- actions -------------------------------------------------------------------------------------------------


def count_actions(space: Any, name: str) -> int:
    """Return the number of actions; raise if they cannot be numbered, or if there are too many combinations."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    for part in _parts(space):
        if isinstance(part, spaces.Box):
            raise ValueError(
                f"`env` must have actions that can be numbered; {name} has {shown(space)}. Let a wrapper choose "
                "among a few values, such as gymnasium.wrappers.DiscretizeAction. For continuous actions, use "
                "`ot.targets` with log-densities in your own training loop, for example with `ot.ContinuousACER`."
            )
        if not isinstance(part, ONE_HOT):
            raise ValueError(f"`env` must have actions that can be numbered; {name} has {shown(space)}.")
    number = _count(space)
    if number > MOST_ACTIONS:
        raise ValueError(
            f"`env` must have at most {MOST_ACTIONS} actions; {name} has {shown(space)}, which are {number:,} "
            "combinations. Let a wrapper choose among fewer."
        )
    return number


def _count(space: Any) -> int:
    return math.prod(_sizes(space))


def _sizes(space: Any) -> list[int]:
    """Return the number of values of each entry of a space, in order."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(size) for size in space.nvec.flat]
    if isinstance(space, spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    return [size for part in _parts(space) for size in _sizes(part)]


def nth_action(space: Any, number: int) -> Any:
    """Return the action with this number; the last entry changes fastest.

    >>> [nth_action(spaces.MultiDiscrete([3, 2]), number).tolist() for number in (0, 1, 2, 5)]
    [[0, 0], [0, 1], [1, 0], [2, 1]]
    """
    if isinstance(space, spaces.Discrete):
        return int(space.start) + number
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = list(space.values() if isinstance(space, spaces.Dict) else space)
        values = [
            nth_action(part, int(index))
            for part, index in zip(inner, np.unravel_index(number, [_count(part) for part in inner]), strict=True)
        ]
        return dict(zip(space, values, strict=True)) if isinstance(space, spaces.Dict) else tuple(values)
    entries = np.array(np.unravel_index(number, _sizes(space)), space.dtype).reshape(space.shape)
    if isinstance(space, spaces.MultiDiscrete):
        entries += space.start
    return entries


def _leaves(action: Any) -> list[int]:
    """Return the entries of an action as one list."""
    if isinstance(action, dict):
        action = tuple(action.values())
    if isinstance(action, tuple):
        return [entry for part in action for entry in _leaves(part)]
    return np.ravel(action).tolist()


# -- messages ------------------------------------------------------------------------------------------------


def shown(space: Any) -> str:
    """Return a space as text, shortened if it is long."""
    text = " ".join(str(space).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _notes(observations: Any, box_space: Any, actions: Any, numbered: Any) -> Any:
    if box_space is not observations:
        number = math.prod(box_space.shape)
        how = "flattened"
        if isinstance(observations, spaces.Discrete | spaces.MultiDiscrete):
            how = "one-hot"
        elif any(isinstance(part, spaces.Discrete | spaces.MultiDiscrete) for part in _parts(observations)):
            how = "flattened, discrete parts one-hot"
        yield f"Observations are {shown(observations)}: {how}, {number:,} numbers."
    if numbered is not actions:
        yield f"Actions are {shown(actions)}: numbered, {int(numbered.n)} combinations."
