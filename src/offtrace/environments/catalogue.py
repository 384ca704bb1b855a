"""What can be trained, and what is installed, found without making any environment."""

from importlib.util import find_spec
from typing import Any, NamedTuple

from offtrace.environments import ATARI, NAMES
from offtrace.mdp import MDPS
from offtrace.mdp.gymnasium import PACKAGES

GYMNASIUM = {
    "gymnasium.envs.classic_control": "classic control",
    "gymnasium.envs.toy_text": "toy text",
    "gymnasium.envs.box2d": "box2d",
}
"""The packages of Gymnasium that have environments with discrete actions."""
CONTINUOUS = (
    "BipedalWalker",
    "BipedalWalkerHardcore",
    "CarRacing",
    "LunarLanderContinuous",
    "MountainCarContinuous",
    "Pendulum",
)
"""Gymnasium's environments in these packages whose actions are continuous."""


class Group(NamedTuple):
    """Environments that need the same packages."""

    suite: str
    names: tuple[str, ...]
    """Names, as `offtrace train` takes them."""
    installed: bool
    install: str
    """The command that installs what is missing; "" if nothing is."""


def catalogue() -> list[Group]:
    """Return all groups of environments that can be trained.

    >>> [group.suite for group in catalogue()][:4]
    ['pocket', 'mdp', 'minatar', 'atari']
    """
    pocket = [name for name in NAMES if name.startswith("pocket/")]
    minatar = [name for name in NAMES if name.startswith("minatar/")]
    missing = [name for name in MDPS if name in PACKAGES and find_spec(name) is None]
    groups = [
        _group("pocket", pocket, "jax", "'offtrace[agent]'"),
        _group("mdp", [f"mdp/{name}" for name in MDPS if name not in missing], "jax", "'offtrace[agent]'"),
        *(_group("mdp", [f"mdp/{name}"], name, PACKAGES[name]) for name in missing),
        _group("minatar", minatar, "pgx", "'offtrace[minatar]'"),
        _group("atari", ATARI, "ale_py", "'offtrace[atari]'"),
    ]
    if find_spec("gymnasium") is None:
        return [*groups, Group("gymnasium", ("CartPole-v1",), False, "pip install 'offtrace[agent]'")]
    return [*groups, *_registered()]


def _group(suite: str, names: Any, package: str, install: str) -> Group:
    installed = find_spec(package) is not None
    return Group(suite, tuple(names), installed, "" if installed else f"pip install {install}")


def _registered() -> list[Group]:
    """Return the newest versions of Gymnasium's own environments, and all that other packages have registered."""
    from offtrace.environments.finding import load_plugins
    from offtrace.environments.guard import gymnasium

    load_plugins()
    newest: dict[tuple[str, str], Any] = {}
    for spec in gymnasium.registry.values():
        key = (spec.namespace or "", spec.name)
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    found: dict[str, list[str]] = {title: [] for title in GYMNASIUM.values()}
    others = []
    for spec in newest.values():
        module = str(getattr(spec.entry_point, "__module__", spec.entry_point)).partition(":")[0]
        title = GYMNASIUM.get(module.rpartition(".")[0])
        if title and spec.name not in CONTINUOUS:
            found[title].append(spec.id)
        elif not module.startswith("gymnasium."):
            others.append(spec.id)
    groups = []
    for title, names in found.items():
        package, install = ("Box2D", "'offtrace[box2d]'") if title == "box2d" else ("gymnasium", "")
        groups.append(_group(title, sorted(names), package, install))
    if others:
        groups.append(Group("other packages", tuple(sorted(others)), True, ""))
    return groups
