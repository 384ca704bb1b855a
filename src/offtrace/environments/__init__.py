"""Suites and adapters: the only place that knows pgx and Gymnasium.

    env = make("minatar/breakout")                               # pure JAX, one environment: `vmap` it
    rows = make("gymnasium/CartPole-v1")(num_actors=8, seed=0)   # vector environments, on the host

Either gives the same rows: the first through `begin` and `advance` of `offtrace.environments.rows`, the second
through its methods of those names. Importing this loads neither JAX nor a suite; `make` does.
"""

import difflib
from importlib import import_module
from types import MappingProxyType
from typing import Any

from offtrace.environments.interface import Actor, Ended, Environment, Row, Space, Step

__all__ = ["NAMES", "SUITE", "Actor", "Ended", "Environment", "Row", "Space", "Step", "make"]

SUITE = MappingProxyType(
    {
        "pocket/acrobot": ("pocket", "Acrobot", {}),
        "pocket/cartpole": ("pocket", "CartPole", {}),
        "pocket/catch": ("grids", "Catch", {}),
        "pocket/cliff": ("grids", "Cliff", {}),
        "pocket/deep_sea": ("grids", "DeepSea", {}),
        "pocket/mountain_car": ("pocket", "MountainCar", {}),
        "minatar/asterix": ("minatar", "MinAtar", {"game": "asterix"}),
        "minatar/breakout": ("minatar", "MinAtar", {"game": "breakout"}),
        "minatar/freeway": ("minatar", "MinAtar", {"game": "freeway"}),
        "minatar/seaquest": ("minatar", "MinAtar", {"game": "seaquest"}),
        "minatar/space_invaders": ("minatar", "MinAtar", {"game": "space_invaders"}),
    }
)
"""Where each pure environment is: module, class, arguments."""

NAMES = tuple(SUITE)


def make(name: str, **options: Any) -> Any:
    """The environment of that name; for `gymnasium/<id>` a factory that `num_actors` and `seed` turn into rows.

    Options are the fields of the environment (`time_limit`, `sticky`, …), or the arguments of `GymnasiumRows` and,
    through it, of `gymnasium.make`.

    >>> make("pocket/catch", columns=5).observation.shape
    (10, 5, 2)
    >>> make("pocket/cartpool")
    Traceback (most recent call last):
    ValueError: `name` must be an environment; got 'pocket/cartpool'. Did you mean pocket/cartpole?
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` must be the name of an environment; got {type(name).__name__}.")
    suite, _, id_ = name.partition("/")
    if suite == "gymnasium" and id_:
        gymnasium = import_module("offtrace.environments.gymnasium")
        gymnasium.find(id_, allow_import=options.get("allow_import", False))
        return gymnasium.GymnasiumFactory(id_, options)
    if name not in SUITE:
        raise ValueError(f"`name` must be an environment; got {name!r}. {_hint(name)}")
    module, class_name, arguments = SUITE[name]
    return getattr(import_module(f"offtrace.environments.{module}"), class_name)(**arguments, **options)


def _hint(name: str) -> str:
    """The names that are close, as a whole or without their suite; else all of them."""
    short = {known.partition("/")[2]: known for known in NAMES}
    close = [short[match] for match in difflib.get_close_matches(name.rpartition("/")[2], short, n=3, cutoff=0.7)]
    close = close or difflib.get_close_matches(name, NAMES, n=3, cutoff=0.7)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"There are {', '.join(NAMES)}, and gymnasium/<id> for any of Gymnasium's."
