"""The environments of several members on the host, as one set of arrays (members, actors, …).

Members of the same environment share one vector of it, so that its threads or processes serve all:

    members    0  pong   seed 0        vector of pong       seeds 0 1 2, 7 8 9      members 0 and 2
               1  tennis seed 0        vector of tennis     seeds 0 1 2             member 1
               2  pong   seed 7
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offtrace.environments.interface import Actor, Array, Ended, Row


class Fleet:
    """`num_actors` environments of every member. Actor i of member m is seeded with `seeds[m]` + i.

    `makers` has a factory of rows per member; members with equal factories share a vector.
    """

    def __init__(self, makers: Sequence[Callable[..., Any]], num_actors: int, seeds: Sequence[int]) -> None:
        self.num_members = len(makers)
        self.num_actors = num_actors
        self._parts: list[tuple[np.ndarray, Any]] = []
        first_seeds = np.asarray(seeds, np.int64)
        try:
            distinct = _distinct(makers)
            for number, maker in enumerate(distinct):
                members = np.array([i for i, other in enumerate(makers) if other is maker or other == maker])
                rows = _made(maker, num_actors, first_seeds[members], number, len(distinct))
                self._parts.append((members, rows))
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> Any:
        """The rows of the first environment; all have the same spaces."""
        return self._parts[0][1]

    def begin(self) -> Actor:
        """Return all actors at the start of their first episodes. A second call starts the same episodes again."""
        return self._joined([rows.begin() for _, rows in self._parts])

    def send(self, actions: Array) -> None:
        """Start a step with actions (members, actors)."""
        for members, rows in self._parts:
            rows.send(actions[members].reshape(-1))

    def receive(self) -> tuple[Actor, Row, Ended]:
        """Return the rows of the step that `send` started."""
        answers = [rows.receive() for _, rows in self._parts]
        actors, rows, ended = zip(*answers, strict=True)
        return self._joined(actors), self._joined(rows), self._joined(ended)

    def close(self) -> None:
        for _, rows in self._parts:
            rows.close()

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Return one record with arrays (members, actors, …) from a record per vector."""
        columns = zip(*parts, strict=True)
        return type(parts[0])(*(self._joined_column(column) for column in columns))

    def _joined_column(self, column: Sequence[Array]) -> Array:
        if column[0] is None:
            return None
        if len(column) == 1:
            return column[0].reshape(self.num_members, self.num_actors, *column[0].shape[1:])
        joined = np.empty((self.num_members, self.num_actors, *column[0].shape[1:]), column[0].dtype)
        for (members, _), part in zip(self._parts, column, strict=True):
            joined[members] = part.reshape(len(members), self.num_actors, *part.shape[1:])
        return joined


def _distinct(makers: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Return every maker once, in the order of the first members that have it."""
    found: list[Callable[..., Any]] = []
    for maker in makers:
        if maker not in found:
            found.append(maker)
    return found


def _made(maker: Callable[..., Any], num_actors: int, first_seeds: np.ndarray, number: int, num_vectors: int) -> Any:
    """Return the rows of the members with these first seeds: one of several vectors that step together."""
    options: dict[str, Any] = {}
    if hasattr(maker, "stack"):
        options["single_frames"] = True
    if hasattr(maker, "all_threads"):
        options |= {"number": number, "num_games": num_vectors}
    if len(first_seeds) == 1:
        return maker(num_actors=num_actors, seed=int(first_seeds[0]), **options)
    seeds = first_seeds[:, None] + np.arange(num_actors)
    return maker(num_actors=seeds.size, seed=seeds.reshape(-1), **options)
