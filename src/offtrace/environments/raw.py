"""Observations and actions as an environment has them, before they are encoded: for whoever steps it in a loop."""

from typing import Any

import numpy as np

from offtrace.environments.encoding import encode, nth_action, observation_box, spaces


def encoded_observations(space: Any, observation: Any) -> tuple[np.ndarray, bool] | None:
    """Return raw observations as encoded ones (N, d), and whether a single one was given; None if they are not raw.

    >>> encoded_observations(spaces.Discrete(3), 1)
    (array([[False,  True, False]]), True)
    >>> encoded_observations(spaces.Discrete(3), np.array([1, 2]))[0].argmax(axis=1)
    array([1, 2])
    """
    if isinstance(space, spaces.Box):
        return None
    box_space = observation_box(space, "")
    try:
        return encode(space, box_space, observation)[None], True
    except (ValueError, TypeError, KeyError):
        pass  # several, or not in the space
    if not isinstance(observation, np.ndarray | list) or not len(observation):
        return None
    try:
        return np.stack([encode(space, box_space, one) for one in observation]), False
    except (ValueError, TypeError, KeyError):
        return None


def raw_actions(space: Any, numbers: np.ndarray) -> Any:
    """Return numbered actions as the environment takes them: an array if they are numbers or arrays, else a list."""
    if isinstance(space, spaces.Discrete):
        return numbers + int(space.start)
    actions = [nth_action(space, int(number)) for number in numbers]
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return np.stack(actions)
    return actions
