"""Environments of the user's own, as values: a class, a function that makes one, or an environment.

A spec holds the name of its environment. A class or function of a module has one, `module:MyEnv`.
What has no such name is kept with the name, in a `LocalName`: it works in this process, and cannot
be saved.
"""

import functools
import sys
from typing import Any

from offtrace.imports import reference_to


class LocalName(str):
    """The name of an environment that only this process can make: a text with the value that it stands for."""

    value: Any
    """A class, a function that makes an environment, or an environment."""
    reason: str
    """Why it cannot be saved."""

    def __new__(cls, text: str, value: Any, reason: str) -> "LocalName":
        name = super().__new__(cls, text)
        name.value = value
        name.reason = reason
        return name

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalName, (str(self), self.value, self.reason)


def name_of(env: Any) -> str:
    """Return the name of an environment that is given as a value.

    >>> from gymnasium.envs.classic_control import CartPoleEnv
    >>> name_of(CartPoleEnv)
    'gymnasium.envs.classic_control.cartpole:CartPoleEnv'
    >>> name_of(lambda: CartPoleEnv())
    'gymnasium/<lambda>'
    """
    if is_environment(env):
        return _name_of_made(env)
    if not callable(env):
        raise ValueError(
            f"`env` must be the name of an environment, its class, a function that makes one, or a Gymnasium "
            f"environment; got {env!r}."
        )
    try:
        name = reference_to(env)
        if _found(name) is env:
            return name
        reason = f"{name} is not what its module has under this name."
    except ValueError as error:
        reason = str(error)
    inner = env
    while isinstance(inner, functools.partial):
        inner = inner.func
    text = getattr(inner, "__qualname__", type(inner).__name__).rpartition(".")[2]
    return LocalName(f"gymnasium/{text}", env, reason)


def is_environment(value: Any) -> bool:
    """Return whether a value is a Gymnasium environment, made already. It is only then that Gymnasium is loaded."""
    loaded = sys.modules.get("gymnasium")
    return loaded is not None and isinstance(value, loaded.Env)


def check_saveable(name: str) -> None:
    """Raise unless an environment can be made again from its name, by another process."""
    if isinstance(name, LocalName):
        raise ValueError(
            f"`env` must have a name to be saved; {str(name)!r} has none: {name.reason} Without `output` it can be "
            "trained as it is."
        )


def _name_of_made(env: Any) -> str:
    """Return the id of an environment from `gymnasium.make`, if that is all there is to know about it."""
    spec = env.spec
    if spec is None:
        kind = type(env.unwrapped).__name__
        raise ValueError(
            f"`env` must be one that can be made again, for each actor; {env} was not made by `gymnasium.make`. Pass "
            f"its class, `env={kind}`, or a function, `env=lambda: {kind}(…)`."
        )
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise ValueError(
                f"`env` must be one that can be made again, for each actor; its wrapper {wrapper.name} does not "
                "record its arguments. Pass a function that makes the environment with its wrappers."
            )
    registry = sys.modules["gymnasium"].registry
    known = registry.get(spec.id)
    arguments = {key: value for key, value in spec.kwargs.items() if key != "render_mode"}
    if (
        known is not None
        and not spec.additional_wrappers
        and arguments == known.kwargs
        and (spec.entry_point, spec.max_episode_steps) == (known.entry_point, known.max_episode_steps)
    ):
        return f"gymnasium/{spec.id}"
    reason = "its arguments or wrappers are not part of its id. Pass the id and `options`, or a function of a module."
    return LocalName(f"gymnasium/{spec.id}", env, reason)


def _found(reference: str) -> Any:
    """Return what a module that is imported already has under a name; None if there is nothing."""
    module, _, name = reference.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
