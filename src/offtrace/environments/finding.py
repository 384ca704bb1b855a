"""Finds Gymnasium environments by name: a registered id, or a module with an id, a class or a function.

CartPole-v1                   registered by Gymnasium
my/Grid-v0                    registered by a plug-in of an installed package, or by a module that was imported
my_module:my/Grid-v0          registered by my_module, which is imported first
my_module:MyEnv               a class or a function in my_module
"""

import copy
import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from offtrace import imports
from offtrace.environments import similar_names
from offtrace.environments.guard import gymnasium
from offtrace.environments.own import LocalName, is_environment

PLUGINS = "gymnasium.envs"
"""The group of entry points by which installed packages register environments."""
HOW_TO_NAME = (
    "`offtrace train --list` shows the installed ones. For one of your own, name the module that has it: "
    "my_module:my/Env-v0 for an id that it registers, or my_module:MyEnv for a class or function."
)
MOST_SHOWN = 12
"""The largest number of names in a message."""


def find(name: str, tell: Callable[[str], None] = lambda _: None) -> Any:
    """Return Gymnasium's spec of an environment. `module:…` imports the module, which runs its code."""
    if isinstance(name, LocalName):
        return _spec_of(name.value, name)
    if ":" in name:
        return _of_module(name, tell)
    try:
        return _registered(name, tell)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"`env` must be the id of a registered environment; got {name!r}. {_with_hint(name, error)}"
        ) from error


def _of_module(name: str, tell: Callable[[str], None]) -> Any:
    try:
        module_name, id_ = imports.split(name)
        module = imports.import_module(module_name, tell)
    except ValueError as error:
        raise ValueError(f"`env` {name!r} cannot be imported: {error}") from error
    try:
        value = functools.reduce(getattr, id_.split("."), module)
    except AttributeError:
        return _id_of_module(module, id_, name)
    return _spec_of(value, name)


def _id_of_module(module: ModuleType, id_: str, name: str) -> Any:
    """Return the spec of an id that should be registered now, since its module was imported."""
    module_name = module.__name__
    try:
        return gymnasium.spec(id_)
    except gymnasium.error.Error:
        pass
    ids = [key for key, spec in gymnasium.registry.items() if _module_of(spec) == module_name]
    classes = [key for key, value in vars(module).items() if _is_class_of(value, module_name)]
    found = ", ".join([*ids, *classes][:MOST_SHOWN]) or "none"
    raise ValueError(
        f"`env` must be an id that {module_name} registers, or a class or function in it; got {name!r}. It has these "
        f"environments: {found}."
    )


def _registered(id_: str, tell: Callable[[str], None]) -> Any:
    """Return the spec of an id; installed plug-ins are loaded if it is not known yet."""
    try:
        return gymnasium.spec(id_)
    except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound):
        if not load_plugins(tell):
            raise
        return gymnasium.spec(id_)


def _spec_of(value: Any, name: str) -> Any:
    """Return a spec that makes environments by a class or function, or as a given environment was made."""
    if is_environment(value):
        spec = copy.copy(value.spec)
        if spec is None:
            raise ValueError(f"`env` must be one that can be made again, for each actor; {name} is an environment.")
        spec.kwargs = {key: given for key, given in spec.kwargs.items() if key != "render_mode"}
        return spec
    is_other_class = isinstance(value, type) and not issubclass(value, gymnasium.Env)
    if is_other_class or not callable(value):
        raise ValueError(
            f"`env` must be a subclass of gymnasium.Env, or a function that makes an environment; {name} is "
            f"{value!r}."
        )
    id_ = re.sub(r"[^\w.:-]", "", name.removeprefix("gymnasium/")) or "environment"
    return gymnasium.envs.registration.EnvSpec(id_, entry_point=value)


def _module_of(spec: Any) -> str:
    """Return the module of a registered environment."""
    if isinstance(spec.entry_point, str):
        return spec.entry_point.partition(":")[0]
    return getattr(spec.entry_point, "__module__", "")


def _is_class_of(value: Any, module_name: str) -> bool:
    return isinstance(value, type) and issubclass(value, gymnasium.Env) and value.__module__ == module_name


def _with_hint(id_: str, error: Exception) -> str:
    """Return Gymnasium's message about an unknown name, with our own names added, and what to do."""
    message = str(error)
    if not isinstance(error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound):
        return message
    searched = f"Searched: {len(gymnasium.registry)} ids, with plug-ins of installed packages. {HOW_TO_NAME}"
    hint = similar_names(id_)
    if "Did you mean" in message and hint:
        message = f"{message.removesuffix('?')}, or {hint.removeprefix('Did you mean ')}"
    elif hint:
        message = f"{message} {hint}"
    return f"{message} {searched}"


# -- plug-ins ------------------------------------------------------------------------------------------------

_loaded: set[str] = set()


def load_plugins(tell: Callable[[str], None] = lambda _: None) -> bool:
    """Load the plug-ins of installed packages that were not loaded yet; return whether there were any.

    A plug-in is an entry point of the group `gymnasium.envs`, as in Gymnasium before 1.0: a function
    that registers environments, in the namespace that it is called, or in none for `__root__`.
    Packages in the current folder do not count as installed.
    """
    here = os.getcwd()
    path = [entry for entry in sys.path if entry and os.path.abspath(entry) != here]
    found = {}
    for distribution in importlib.metadata.distributions(path=path):
        found |= {entry.value: entry for entry in distribution.entry_points if entry.group == PLUGINS}
    new = {value: entry for value, entry in found.items() if value not in _loaded}
    for value, entry in new.items():
        _loaded.add(value)
        in_namespace = nullcontext()
        if entry.name != "__root__":
            in_namespace = gymnasium.envs.registration.namespace(entry.name)
        try:
            with in_namespace:
                entry.load()()
        except Exception as error:  # a plug-in that fails must not keep others from being used
            tell(f"The plug-in {value} failed: {type(error).__name__}: {error}.")
        else:
            tell(f"Loaded the plug-in {value} for Gymnasium.")
    return bool(new)
