"""Suites and adapters: the only place that knows pgx, Gymnasium and ALE.

    env = make("minatar/breakout")                               # pure JAX, one environment: `vmap` it
    env = make("mdp/grid_world", slip=0.1)                       # likewise, from a finite MDP
    rows = make("gymnasium/CartPole-v1")(num_actors=8, seed=0)   # vector environments, on the host
    rows = make("atari/breakout")(num_actors=8, seed=0)          # likewise

All give the same rows: the first through `begin` and `advance` of `offtrace.environments.rows`, the others
through their methods of those names. Importing this loads neither JAX nor a suite; `make` does.
"""

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from offtrace.environments.interface import Actor, Ended, Environment, Row, Space, Step

__all__ = [
    "ATARI",
    "NAMES",
    "SUITE",
    "TITLES",
    "Actor",
    "Ended",
    "Environment",
    "Row",
    "Space",
    "Step",
    "make",
    "on_host",
    "own_gamma",
    "program_shape",
]

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

TITLES = MappingProxyType(
    {
        "atari/alien": "Alien",
        "atari/amidar": "Amidar",
        "atari/assault": "Assault",
        "atari/asterix": "Asterix",
        "atari/asteroids": "Asteroids",
        "atari/atlantis": "Atlantis",
        "atari/bank_heist": "Bank Heist",
        "atari/battle_zone": "Battle Zone",
        "atari/beam_rider": "Beam Rider",
        "atari/berzerk": "Berzerk",
        "atari/bowling": "Bowling",
        "atari/boxing": "Boxing",
        "atari/breakout": "Breakout",
        "atari/carnival": "Carnival",
        "atari/centipede": "Centipede",
        "atari/chopper_command": "Chopper Command",
        "atari/crazy_climber": "Crazy Climber",
        "atari/defender": "Defender",
        "atari/demon_attack": "Demon Attack",
        "atari/double_dunk": "Double Dunk",
        "atari/elevator_action": "Elevator Action",
        "atari/enduro": "Enduro",
        "atari/fishing_derby": "Fishing Derby",
        "atari/freeway": "Freeway",
        "atari/frostbite": "Frostbite",
        "atari/gopher": "Gopher",
        "atari/gravitar": "Gravitar",
        "atari/hero": "H.E.R.O.",
        "atari/ice_hockey": "Ice Hockey",
        "atari/jamesbond": "James Bond",
        "atari/kangaroo": "Kangaroo",
        "atari/krull": "Krull",
        "atari/kung_fu_master": "Kung-Fu Master",
        "atari/montezuma_revenge": "Montezuma's Revenge",
        "atari/ms_pacman": "Ms. Pac-Man",
        "atari/name_this_game": "Name This Game",
        "atari/phoenix": "Phoenix",
        "atari/pitfall": "Pitfall",
        "atari/pooyan": "Pooyan",
        "atari/pong": "Pong",
        "atari/private_eye": "Private Eye",
        "atari/qbert": "Q*Bert",
        "atari/riverraid": "River Raid",
        "atari/road_runner": "Road Runner",
        "atari/robotank": "Robotank",
        "atari/seaquest": "Seaquest",
        "atari/skiing": "Skiing",
        "atari/solaris": "Solaris",
        "atari/space_invaders": "Space Invaders",
        "atari/star_gunner": "Star Gunner",
        "atari/surround": "Surround",
        "atari/tennis": "Tennis",
        "atari/time_pilot": "Time Pilot",
        "atari/tutankham": "Tutankham",
        "atari/up_n_down": "Up and Down",
        "atari/venture": "Venture",
        "atari/video_pinball": "Video Pinball",
        "atari/wizard_of_wor": "Wizard Of Wor",
        "atari/yars_revenge": "Yar's Revenge",
        "atari/zaxxon": "Zaxxon",
    }
)
"""Of the paper's Atari games in its Table 3; their names are those of their ROMs."""

ATARI = tuple(TITLES)


def make(name: str, **options: Any) -> Any:
    """The environment of that name; for `gymnasium/<id>` and `atari/<game>` a factory of rows.

    A factory takes `num_actors` and `seed`. Options are the fields of the environment (`time_limit`, `sticky`, …), or
    the arguments of `GymnasiumRows` and, through it, of `gymnasium.make`.

    >>> make("pocket/catch", columns=5).observation.shape
    (10, 5, 2)
    >>> make("pocket/cartpool")
    Traceback (most recent call last):
    ValueError: `name` must be an environment; got 'pocket/cartpool'. Did you mean pocket/cartpole?
    """
    if not isinstance(name, str):
        raise TypeError(f"`name` must be the name of an environment; got {type(name).__name__}.")
    if name in ATARI:
        return import_module("offtrace.environments.atari").AtariFactory(name.partition("/")[2], **options)
    suite, _, id_ = name.partition("/")
    if suite == "mdp" and id_:
        return import_module("offtrace.environments.mdp").named(id_, **options)
    if suite == "gymnasium" and id_:
        gymnasium = import_module("offtrace.environments.gymnasium")
        gymnasium.find(id_, allow_import=options.get("allow_import", False))
        return gymnasium.GymnasiumFactory(id_, options)
    if name not in SUITE:
        raise ValueError(f"`name` must be an environment; got {name!r}. {_hint(name)}")
    module, class_name, arguments = SUITE[name]
    return getattr(import_module(f"offtrace.environments.{module}"), class_name)(**arguments, **options)


def with_options(name: str, options: Mapping[str, Any]) -> Any:
    """`make` with options that are data, as in a spec: what the environment does not take is a wrong value."""
    try:
        return make(name, **options)
    except TypeError as error:
        if not options or name not in (*SUITE, *ATARI):
            raise
        module, class_name, arguments = SUITE.get(name, ("atari", "AtariFactory", {"game": ""}))
        made = getattr(import_module(f"offtrace.environments.{module}"), class_name)
        known = [option for option in inspect.signature(made).parameters if option not in arguments]
        raise wrong_options(name, options, known, error) from error


def wrong_options(name: str, options: Mapping[str, Any], known: Sequence[str], error: Exception) -> ValueError:
    """What was given, what could have been, and why it was refused."""
    return ValueError(f"`options` of {name} must be among {', '.join(known)}; got {dict(options)}: {error}.")


def own_gamma(name: str, options: Mapping[str, Any]) -> float | None:
    """The discount that belongs to an environment: that of its MDP; None where there is none.

    >>> own_gamma("mdp/grid_world", {"gamma": 0.97}), own_gamma("pocket/catch", {})
    (0.97, None)
    """
    if not name.startswith("mdp/"):
        return None
    return with_options(name, options).mdp.gamma


def program_shape(name: str, options: Mapping[str, Any]) -> Any:
    """What a compiled program depends on: environments with equal ones can share it.

    >>> program_shape("mdp/grid_world", {}) == program_shape("mdp/grid_world", {"slip": 0.1})
    True
    """
    if not name.startswith("mdp/"):
        return name, repr(dict(options))
    return with_options(name, options).shape


def on_host(name: str) -> bool:
    """Whether it is stepped on the CPU, as a vector environment, and not inside of a program of JAX.

    >>> on_host("gymnasium/CartPole-v1"), on_host("atari/pong"), on_host("pocket/cartpole")
    (True, True, False)
    """
    return name.startswith(("gymnasium/", "atari/"))


def _hint(name: str) -> str:
    """The names that are close; else all of them."""
    return near(name) or there_are(name)


def near(name: str) -> str:
    """The names that are close without their suite, or as a whole; nothing if there are none.

    What is not said to be Atari's is looked for among the others first. Ids of Gymnasium's and ALE's are understood.

    >>> near("catch"), near("Walker"), near("ALE/Pong-v5")
    ('Did you mean pocket/catch?', '', 'Did you mean atari/pong?')
    """
    last = re.sub(r"((NoFrameskip|Deterministic)?-v\d+)$", "", name.rpartition("/")[2])
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()
    for names in (ATARI, NAMES) if name.startswith(("atari/", "ALE/")) else (NAMES, ATARI):
        short = {known.partition("/")[2]: known for known in names}
        if close := difflib.get_close_matches(last, short, n=3, cutoff=0.7):
            return f"Did you mean {' or '.join(short[match] for match in close)}?"
    if close := difflib.get_close_matches(name, NAMES, n=3, cutoff=0.7):
        return f"Did you mean {' or '.join(close)}?"
    return ""


def there_are(name: str = "") -> str:
    """All names; of Atari, if it is said to be one of those."""
    if name.startswith("atari/"):
        return f"The games are {', '.join(game.partition('/')[2] for game in ATARI)}."
    return (
        f"There are {', '.join(NAMES)}, mdp/<name> for the MDPs of `ot.mdp`, atari/<game> for the paper's games, and "
        "gymnasium/<id> for any of Gymnasium's."
    )
