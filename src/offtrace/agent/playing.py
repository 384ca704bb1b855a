"""Episodes of a policy in an environment of any kind, and what they earned.

round 1   actor 0   x x x x x end
          actor 1   x x end . . .            waits for the others
round 2   actor 0   x x x end                after a reset of all
          actor 1   x x x x x x x cut off    after `max_steps`
"""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.environments import full_name, on_host, with_options
from offtrace.environments.checks import checked_whole
from offtrace.environments.rows import advance, begin

MOST_ON_HOST = 16
"""Environments that step side by side on the CPU."""
MOST_PURE = 256
"""The same, for environments inside a JAX program."""
NUM_RESAMPLES = 2_000


@dataclass(frozen=True)
class Evaluation:
    """The episodes of a policy in an environment."""

    env: str
    """Name of the environment."""
    returns: tuple[float, ...]
    """Undiscounted return of each episode."""
    lengths: tuple[int, ...]
    """Steps of each episode."""
    num_truncated: int
    """Episodes that a time limit of the environment ended."""
    num_unfinished: int
    """Episodes that were cut off after `max_steps`; their returns count as far as they got."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean return: percentiles of its bootstrap over episodes. nan for one episode."""
        if len(self.returns) < 2:
            return math.nan, math.nan
        rng = np.random.default_rng(0)
        values = np.asarray(self.returns)
        means = [rng.choice(values, len(values)).mean() for _ in range(NUM_RESAMPLES)]
        low, high = np.percentile(means, [2.5, 97.5])
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        among = f"{len(self.returns)} episodes of {np.mean(self.lengths):.4g} steps on average"
        parts = [
            f"{shown_name(self.env)}: mean return {self.mean:.4g} (95 % interval {low:.4g} to {high:.4g})",
            among,
        ]
        if self.num_truncated:
            parts.append(f"{self.num_truncated} ended at the time limit")
        if self.num_unfinished:
            parts.append(f"{self.num_unfinished} were cut off")
        return "; ".join(parts)


def shown_name(env: str) -> str:
    """Return the name of an environment as a user writes it."""
    return env.removeprefix("gymnasium/")


def play(
    rows: Any, choose: Callable[[np.ndarray], np.ndarray], episodes: int, seed: int, max_steps: int
) -> Evaluation:
    """Play episodes in rounds; `choose` returns an action per observation."""
    episodes = checked_whole("episodes", episodes, limited=True)
    max_steps = checked_whole("max_steps", max_steps, limited=True)
    returns: list[float] = []
    lengths: list[int] = []
    num_truncated = 0
    num_unfinished = 0
    while len(returns) < episodes:
        rows.seed = seed + len(returns)  # actor i has the seed of episode len(returns) + i
        one = _round(rows, choose, min(rows.num_actors, episodes - len(returns)), max_steps)
        returns += one.returns.tolist()
        lengths += one.lengths.tolist()
        num_truncated += int(one.is_truncated.sum())
        num_unfinished += int((~one.is_done).sum())
    return Evaluation(rows.name, tuple(returns), tuple(lengths), num_truncated, num_unfinished)


@dataclass
class _Round:
    """One episode of each actor."""

    returns: np.ndarray
    lengths: np.ndarray
    is_done: np.ndarray
    is_truncated: np.ndarray


def _round(rows: Any, choose: Callable[[np.ndarray], np.ndarray], num_episodes: int, max_steps: int) -> _Round:
    """Play one episode in each of the first `num_episodes` actors. The others are stepped as well."""
    size = rows.num_actors
    played = _Round(np.zeros(size), np.zeros(size, int), np.zeros(size, bool), np.zeros(size, bool))
    actor = rows.begin()
    for step in range(1, max_steps + 1):
        actor, row, ended = rows.advance(choose(np.asarray(actor.observation)))
        ends = np.asarray(ended.ended) & ~played.is_done
        played.returns[ends] = np.asarray(ended.episode_return)[ends]
        played.lengths[ends] = np.asarray(ended.episode_length)[ends]
        played.is_truncated |= ends & np.asarray(row.continues)
        played.is_done |= ends
        if step == max_steps:
            played.returns = np.where(played.is_done, played.returns, actor.episode_return)
            played.lengths = np.where(played.is_done, played.lengths, step)
        if played.is_done[:num_episodes].all():
            break
    return _Round(*(column[:num_episodes] for column in vars(played).values()))


# -- environments --------------------------------------------------------------------------------------------


@contextmanager
def rows_for(env: Any, options: Mapping[str, Any] | None, episodes: int, seed: int) -> Generator[Any]:
    """Yield rows of an environment: one that has a name, or one that the user has made, which stays open."""
    seed = checked_whole("seed", seed, least=0, limited=True)
    if isinstance(env, str):
        name = full_name(env)
        most = MOST_ON_HOST if on_host(name) else MOST_PURE
        num_actors = min(checked_whole("episodes", episodes, limited=True), most)
        made = with_options(name, options or {})
        if not on_host(name):
            yield PureRows(made, num_actors, seed)
            return
        with made(num_actors=num_actors, seed=seed) as rows:
            yield rows
        return
    if options:
        raise ValueError(f"`options` must come with the name of an environment; got {env!r}.")
    from offtrace.environments.gymnasium import borrowed_rows

    with borrowed_rows(env, seed) as rows:
        yield rows


class PureRows:
    """Rows of a pure environment, with the methods of `GymnasiumRows`."""

    def __init__(self, env: Any, num_actors: int, seed: int) -> None:
        self.name = env.name
        self.observation = env.observation
        self.num_actions = env.num_actions
        self.num_actors = num_actors
        self.seed = seed
        self._begin = jax.jit(jax.vmap(lambda key: begin(env, key)))
        self._advance = jax.jit(jax.vmap(lambda actor, a: advance(env, actor, a)))
        self._actor: Any = None

    def begin(self) -> Any:
        """Return all actors at the start of their first episodes; actor i is seeded with `seed` + i."""
        keys = jnp.stack([jax.random.key(self.seed + i) for i in range(self.num_actors)])
        self._actor = self._begin(keys)
        return self._actor

    def advance(self, actions: np.ndarray) -> Any:
        """Return one row of every actor."""
        self._actor, row, ended = self._advance(self._actor, jnp.asarray(actions, jnp.int32))
        return self._actor, row, ended
