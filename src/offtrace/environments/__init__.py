"""Environments. Only this package imports pgx, Gymnasium and ALE.

    env = make("minatar/breakout")                               # pure JAX, one environment: `vmap` it
    env = make("mdp/grid_world", slip=0.1)                       # the same, from a finite MDP
    rows = make("gymnasium/CartPole-v1")(num_actors=8, seed=0)   # a vector environment, on the host
    rows = make("atari/breakout")(num_actors=8, seed=0)          # the same

All give the same rows: pure environments through `begin` and `advance` of
`offtrace.environments.rows`, the others through their methods of the same names. Importing this
package loads neither JAX nor a suite; `make` does.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

from offtrace.environments.interface import Actor, Ended, Environment, Row, Space, Step
from offtrace.environments.own import LocalName
from offtrace.environments.protocols import protocol, protocol_text

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
    "protocol",
    "protocol_text",
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
"""The module, class and arguments of each pure environment."""

NAMES = tuple(SUITE)

SUITES = ("pocket", "minatar", "mdp", "atari", "gymnasium")
"""The first words of names."""

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
"""The titles of the Atari games in the paper's Table 3, by the name of their ROM."""

ATARI = tuple(TITLES)


def make(name: str, **options: Any) -> Any:
    """Make an environment; for `gymnasium/<id>` and `atari/<game>`, a factory of rows.

    A factory takes `num_actors` and `seed`. Options are the fields of the environment
    (`time_limit`, `sticky`, …). For Gymnasium they are the arguments of `GymnasiumRows`, which
    passes the rest to `gymnasium.make`. A module in the name, `gymnasium/my_module:MyEnv`, is
    imported: check a name from a file with `offtrace.imports.check_consent` first.

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
        if isinstance(name, LocalName):
            id_ = LocalName(id_, name.value, name.reason)
        gymnasium.find(id_)
        return gymnasium.GymnasiumFactory(id_, options)
    if name not in SUITE:
        raise ValueError(f"`name` must be an environment; got {name!r}. {_hint(name)}")
    module, class_name, arguments = SUITE[name]
    return getattr(import_module(f"offtrace.environments.{module}"), class_name)(**arguments, **options)


def with_options(name: str, options: Mapping[str, Any], tell: Callable[[str], None] | None = None) -> Any:
    """Call `make` with options from a spec, and raise ValueError for an option that the environment does not take.

    `tell` is called with a line for each module that is imported.
    """
    if tell is not None:
        import_named(name, tell)
    try:
        return make(name, **options)
    except TypeError as error:
        if not options or name not in (*SUITE, *ATARI):
            raise
        module, class_name, arguments = SUITE.get(name, ("atari", "AtariFactory", {"game": ""}))
        made = getattr(import_module(f"offtrace.environments.{module}"), class_name)
        known = [option for option in inspect.signature(made).parameters if option not in arguments]
        raise wrong_options(name, options, known, error) from error


def import_named(name: str, tell: Callable[[str], None]) -> None:
    """Import the module in the name of an environment, if it has one, and tell which file was imported."""
    if reference(name):
        import_module("offtrace.environments.finding").find(name.removeprefix("gymnasium/"), tell)


def reference(name: str) -> str:
    """Return the reference to a user's module in the name of an environment; "" if it has none.

    >>> reference("gymnasium/my_module:my/Grid-v0"), reference("CartPole-v1")
    ('my_module:my/Grid-v0', '')
    """
    plain = name.removeprefix("gymnasium/")
    return plain if ":" in plain and not isinstance(name, LocalName) else ""


def wrong_options(name: str, options: Mapping[str, Any], known: Sequence[str], error: Exception) -> ValueError:
    """Return the error for options that an environment does not take."""
    return ValueError(f"`options` of {name} must be among {', '.join(known)}; got {dict(options)}: {error}.")


def own_gamma(name: str, options: Mapping[str, Any]) -> float | None:
    """Return the discount of an environment that is an MDP, else None.

    >>> own_gamma("mdp/grid_world", {"gamma": 0.97}), own_gamma("pocket/catch", {})
    (0.97, None)
    """
    if not name.startswith("mdp/"):
        return None
    return with_options(name, options).mdp.gamma


def program_shape(name: str, options: Mapping[str, Any]) -> Any:
    """Return the key of a compiled program; environments with equal keys can share one.

    All Atari games with the same number of actions do.

    >>> program_shape("mdp/grid_world", {}) == program_shape("mdp/grid_world", {"slip": 0.1})
    True
    """
    if name in ATARI:
        return "atari", with_options(name, options).num_actions
    if not name.startswith("mdp/"):
        return name, repr(dict(options))
    return with_options(name, options).shape


def on_host(name: str) -> bool:
    """Return whether an environment is stepped on the CPU, and not inside a JAX program.

    >>> on_host("gymnasium/CartPole-v1"), on_host("atari/pong"), on_host("pocket/cartpole")
    (True, True, False)
    """
    return name.startswith(("gymnasium/", "atari/"))


def full_name(name: str) -> str:
    """Return an environment's name with its suite; a name without one belongs to Gymnasium, also `my/Grid-v0`.

    >>> full_name("CartPole-v1"), full_name("my/Grid-v0"), full_name("pocket/catch")
    ('gymnasium/CartPole-v1', 'gymnasium/my/Grid-v0', 'pocket/catch')
    """
    suite, slash, _ = name.partition("/")
    if slash and suite in SUITES:
        return name
    return f"gymnasium/{name}"


def _hint(name: str) -> str:
    return similar_names(name) or valid_names(name)


def similar_names(name: str) -> str:
    """Return a question with similar names, or an empty string if there are none.

    Ids of Gymnasium and ALE are understood. Atari games come last unless the name says Atari.

    >>> similar_names("catch"), similar_names("Walker"), similar_names("ALE/Pong-v5")
    ('Did you mean pocket/catch?', '', 'Did you mean atari/pong?')
    """
    last = re.sub(r"((NoFrameskip|Deterministic)?-v\d+)$", "", name.rpartition("/")[2])
    last = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last).lower()  # SpaceInvaders: space_invaders
    suites = (NAMES, ATARI)
    if name.startswith(("atari/", "ALE/")):
        suites = (ATARI, NAMES)
    for names in suites:
        short = {known.partition("/")[2]: known for known in names}
        if close := difflib.get_close_matches(last, short, n=3, cutoff=0.7):
            return f"Did you mean {' or '.join(short[match] for match in close)}?"
    if close := difflib.get_close_matches(name, NAMES, n=3, cutoff=0.7):
        return f"Did you mean {' or '.join(close)}?"
    return ""


def valid_names(name: str = "") -> str:
    """Return a sentence with all valid names; only the Atari games if the name says Atari."""
    if name.startswith("atari/"):
        return f"Valid games: {', '.join(game.partition('/')[2] for game in ATARI)}."
    return (
        f"Valid names: {', '.join(NAMES)}, mdp/<name> for the MDPs of `ot.mdp`, atari/<game> for "
        "the paper's games, and gymnasium/<id> for any Gymnasium environment."
    )


def __dir__() -> list[str]:
    return sorted(__all__)
