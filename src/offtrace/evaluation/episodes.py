"""Logs as Minari datasets: episodes with one observation more than they have steps.

observations   x_0   x_1   x_2   x_3
actions        a_0   a_1   a_2
rewards        r_0   r_1   r_2           the next observation of step 2 is x_3
"""

import re
from typing import Any

import numpy as np

from offtrace.evaluation.columns import Columns, Piece
from offtrace.evaluation.problems import Problem, whole

DATASET = re.compile(r"([\w.-]+/)*[\w.-]+-v\d+")
"""The name of a Minari dataset: `D4RL/door/human-v2`."""


def is_dataset(source: Any) -> bool:
    """Return whether this is a Minari dataset."""
    return hasattr(source, "iterate_episodes")


def load_dataset(name: str) -> Any:
    """Return the Minari dataset of this name, which must be on this machine."""
    try:
        import minari
    except ModuleNotFoundError as missing:
        raise ImportError(f"the Minari dataset {name!r} needs `minari`: pip install 'minari[arrow]'") from missing
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ValueError(f"{name!r} is neither a file nor a Minari dataset on this machine: {reason}") from None


def read_dataset(dataset: Any) -> tuple[Columns, list[Problem]]:
    """Return the columns of a Minari dataset: states if its observations are whole numbers, else observations."""
    found: Columns | None = None
    for number, episode in enumerate(dataset.iterate_episodes()):
        for what, values in (("observations", episode.observations), ("actions", episode.actions)):
            if not isinstance(values, np.ndarray):
                rule = f"{what} must be numbers or arrays; the dataset has {type(values).__name__}s. Flatten them"
                return Columns(()), [whole(rule)]
        if not len(episode):
            continue
        is_state = episode.observations.ndim == 1 and episode.observations.dtype.kind in "iu"
        name = "state" if is_state else "observation"
        if found is None:
            columns = ("episode", "step", "action", "reward", "terminated", "truncated", name, f"next_{name}")
            found = Columns(columns, int(dataset.total_steps))
        pieces = _columns(episode, number)
        seen = episode.observations if is_state else _rows(episode.observations)
        pieces[name] = seen[:-1]
        pieces[f"next_{name}"] = seen[1:]
        for column, values in pieces.items():
            found.builders[column].add(Piece(values))
    if found is None:
        return Columns(()), [whole("the dataset is empty")]
    return found, []


def _columns(episode: Any, number: int) -> dict[str, np.ndarray]:
    num_steps = len(episode)
    action = episode.actions
    return {
        "episode": np.full(num_steps, number),
        "step": np.arange(num_steps),
        "action": action if action.ndim == 1 and action.dtype.kind in "iu" else _rows(action),
        "reward": np.asarray(episode.rewards),
        "terminated": np.asarray(episode.terminations),
        "truncated": np.asarray(episode.truncations),
    }


def _rows(values: np.ndarray) -> np.ndarray:
    """Return arrays as vectors, (N, d)."""
    return values.reshape(len(values), -1)
