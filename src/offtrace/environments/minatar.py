"""The five MinAtar games (Young and Tian 2019) in pure JAX, from pgx.

They have sticky actions with probability 0.1, minimal action sets, raw rewards and no time limit,
so scores can be compared with the MinAtar paper. pgx's games are under the GPL, so they are an
extra: `pip install 'offtrace[minatar]'`.
"""

import warnings
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.environments.checks import check_sticky
from offtrace.environments.interface import Array, Space, Step


class Game(NamedTuple):
    """Properties of a game that are known without loading it."""

    class_name: str
    num_actions: int
    num_channels: int
    max_return: float | None = None


GAMES = MappingProxyType(
    {
        "asterix": Game("MinAtarAsterix", 5, 4),
        "breakout": Game("MinAtarBreakout", 3, 4),
        "freeway": Game("MinAtarFreeway", 3, 7, 92.0),  # a crossing takes 27 steps, a game 2501
        "seaquest": Game("MinAtarSeaquest", 6, 10),
        "space_invaders": Game("MinAtarSpaceInvaders", 4, 6),
    }
)


class Play(NamedTuple):
    """The state of a game."""

    game: Any
    """pgx's own state."""
    time: Array
    """int32: steps since the reset."""


@dataclass(frozen=True)
class MinAtar:
    """One MinAtar game.

    `time_limit` truncates episodes, since good agents never lose some of the games. With
    probability `sticky` the game repeats its last action in place of the given one. Freeway
    terminates after 2501 steps; its clock is part of the game, but not of the observation.
    """

    game: str
    sticky: float = 0.1
    time_limit: int | None = None
    rules: Any = field(init=False, repr=False, compare=False)
    """pgx's environment."""

    def __post_init__(self) -> None:
        if self.game not in GAMES:
            raise ValueError(f"`game` must be one of {', '.join(GAMES)}; got {self.game!r}.")
        check_sticky(self.sticky)
        if self.time_limit is not None and self.time_limit < 1:
            raise ValueError(f"`time_limit` must be at least 1, or None; got {self.time_limit!r}.")
        object.__setattr__(self, "rules", _rules(self.game, self.sticky))

    @property
    def name(self) -> str:
        return f"minatar/{self.game}"

    @property
    def num_actions(self) -> int:
        return GAMES[self.game].num_actions

    @property
    def observation(self) -> Space:
        return Space((10, 10, GAMES[self.game].num_channels), np.dtype(bool))

    @property
    def max_return(self) -> float | None:
        return GAMES[self.game].max_return

    def reset(self, key: Array) -> tuple[Play, Array]:
        game = self.rules.init(key)
        return Play(game, jnp.int32(0)), game.observation

    def step(self, state: Play, action: Array, key: Array) -> Step:
        game = self.rules.step(state.game, action, key)
        time = state.time + 1
        truncated = jnp.bool_(False) if self.time_limit is None else time >= self.time_limit
        return Step(Play(game, time), game.observation, game.rewards[0], game.terminated, truncated)


def _rules(game: str, sticky: float) -> Any:
    try:
        # pgx's modules make arrays when they are imported. These must not be traced, should this happen inside `jit`.
        with jax.ensure_compile_time_eval(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            module = import_module(f"pgx.minatar.{game}")
            return getattr(module, GAMES[game].class_name)(use_minimal_action_set=True, sticky_action_prob=sticky)
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs `pgx`: pip install 'offtrace[minatar]' ({error})") from error
