"""MDPs from Gymnasium environments that hold their own model, such as FrozenLake and Taxi.

A time limit is not part of the model: it truncates episodes without terminating them, so it is left
out.
"""

import contextlib
import copy
import importlib
import io
import operator
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offtrace import imports
from offtrace.mdp.finite import FiniteMDP

NUM_RESETS = 1000
"""The resets of an environment that does not give its distribution of first states."""

PACKAGES = MappingProxyType({"gymnasium": "'offtrace[agent]'", "icu_sepsis": "icu-sepsis"})
"""Optional modules, and the package that installs each."""

Outcomes = Sequence[tuple[float, int, float, bool]]
"""(probability, next state, reward, terminated), …"""


def from_dictionary(
    p: Mapping[int, Mapping[int, Outcomes]] | Sequence[Sequence[Outcomes]],
    *,
    gamma: float,
    start: ArrayLike | None = None,
    name: str = "",
    grid: tuple[int, int] | None = None,
) -> FiniteMDP:
    """Make an MDP from a dictionary of the form of `env.unwrapped.P`.

    The form is `{x: {a: [(probability, next state, reward, terminated), …]}}`. Several entries of
    one (x, a) may lead to the same state; they are kept separate. Entries of probability 0 are
    dropped.

    >>> from_dictionary({0: {0: [(0.5, 0, 0.0, False), (0.5, 0, 1.0, True)]}}, gamma=0.9)
    FiniteMDP(1 state, 1 action, 2 transitions, gamma=0.9)
    """
    num_states = len(p)
    num_actions = len(_at(p, 0, "`p` must have the states 0, 1, … as its keys"))
    first = [0]
    flat = []
    for x in range(num_states):
        actions = _at(p, x, "`p` must have the states 0, 1, … as its keys")
        if len(actions) != num_actions:
            raise ValueError(
                f"`p` must have the same {num_actions} actions in each state; got {len(actions)} at x = {x}."
            )
        for a in range(num_actions):
            outcomes = _at(actions, a, f"`p[{x}]` must have the actions 0, 1, … as its keys")
            flat += [checked for entry in outcomes if (checked := _outcome(entry, x, a, num_states))[0] != 0]
            first.append(len(flat))
    probability, successor, reward, ends = ((), (), (), ())
    if flat:
        probability, successor, reward, ends = zip(*flat, strict=True)
    return FiniteMDP.from_transitions(
        probability=np.array(probability, np.float64),
        successor=np.array(successor, np.int64),
        first=first,
        num_actions=num_actions,
        r=np.array(reward, np.float64),
        ends=np.array(ends, np.float64),
        gamma=gamma,
        start=start,
        name=name,
        grid=grid,
    )


def from_gymnasium(env: Any, *, gamma: float, start: ArrayLike | None = None, **options: Any) -> FiniteMDP:
    """Return the MDP of an environment, given as an environment or by its id.

    The model is read from `env.unwrapped.P`, or from `env.unwrapped.dynamics` for ICU-Sepsis.
    `start` defaults to the environment's own distribution of first states; if it has none, to their
    frequency in 1000 resets of a copy. `options` are passed to `gymnasium.make`.

    `module:Name-v0`, an id, and `module:MyEnv`, a class or function, import that module, which runs
    its code.

    >>> from_gymnasium("FrozenLake-v1", gamma=0.99, is_slippery=False)
    FiniteMDP(FrozenLake-v1, 16 states, 4 actions, 64 transitions, gamma=0.99)
    """
    if isinstance(env, str):
        made = _made(env, options)
        try:
            return from_gymnasium(made, gamma=gamma, start=start)
        finally:
            made.close()
    if options:
        raise TypeError(
            f"options require an id; `env` is an environment already, so {', '.join(options)} would have no effect."
        )
    if not hasattr(env, "unwrapped"):
        raise TypeError(f"`env` must be the id of an environment or an environment; got {type(env).__name__}.")
    bare = env.unwrapped
    spec = getattr(bare, "spec", None)
    name = type(bare).__name__ if spec is None else spec.id
    dynamics = getattr(bare, "dynamics", None)
    if isinstance(dynamics, Mapping) and "tx_mat" in dynamics:
        return _sepsis(bare, gamma=gamma, start=start, name=name)
    if not hasattr(bare, "P"):
        raise ValueError(
            f"`env` must have a model, `env.unwrapped.P`; {name} has none. Gymnasium's FrozenLake, "
            "Taxi and CliffWalking have one. For other environments, estimate one with "
            "`from_data`, or write a FiniteMDP."
        )
    chosen = _first_states(bare) if start is None else start
    return from_dictionary(bare.P, gamma=gamma, start=chosen, name=name, grid=_grid(bare))


def _grid(bare: Any) -> tuple[int, int] | None:
    """Return the (rows, columns) of an environment whose states are the cells of a map."""
    shape = np.shape(bare.desc) if hasattr(bare, "desc") else getattr(bare, "shape", ())
    if len(shape) == 2 and shape[0] * shape[1] == len(bare.P):
        return shape[0], shape[1]
    return None


def icu_sepsis(*, gamma: float = 0.99, inadmissible: str = "mean") -> FiniteMDP:
    """Return ICU-Sepsis (Choudhary et al. 2024), which is undiscounted there.

    It has 716 states and 25 actions, and reward 1 for survival. Entering state 713 (death), 714
    (survival) or 715 (after either) terminates the episode. `inadmissible` is the effect of an
    action that clinicians hardly ever took in a state: `"mean"`, the average effect of the
    admissible actions, or `"terminate"`, death.
    """
    package = _imported("icu_sepsis")
    env = package.ICUSepsisEnv(inadmissible_action_strategy=inadmissible)
    return _sepsis(env, gamma=gamma, start=None, name="icu_sepsis")


def _sepsis(env: Any, *, gamma: float, start: ArrayLike | None, name: str) -> FiniteMDP:
    constants = _imported("icu_sepsis.utils.constants")
    model = env.dynamics
    strategy = env._inadmissible_action_strategy
    p = model["tx_mat"]
    if strategy == "raise_exception":
        raise ValueError(
            '`inadmissible` must be "mean" or "terminate" for a model of every action; got "raise_exception".'
        )
    if strategy == "terminate":
        admissible = np.zeros(p.shape[:2], bool)
        for x, actions in enumerate(model["admissible_actions"]):
            admissible[x, actions] = True
        p = np.where(admissible[..., None], p, np.arange(len(p)) == constants.STATE_DEATH)
    terminates = np.isin(np.arange(len(p)), list(constants.STATES_TERMINAL))
    chosen = model["d_0"] if start is None else start
    return FiniteMDP(p=p, r=model["r_mat"], gamma=gamma, terminates=terminates, start=chosen, name=name)


def _made(name: str, options: dict[str, Any]) -> Any:
    gymnasium = _imported("gymnasium")
    id_ = name
    if ":" in name:
        module_name, id_ = imports.split(name)
        make = getattr(imports.import_module(module_name), id_, None)
        if callable(make):
            return _called(make, name, options)
    if name.startswith("Sepsis/"):
        _imported("icu_sepsis")  # importing it registers its ids
    try:
        return gymnasium.make(id_, **options)
    except gymnasium.error.DependencyNotInstalled:
        raise
    except gymnasium.error.Error as error:
        raise ValueError(f"`env` must be the id of a registered environment; got {name!r}. {error}") from error


def _called(make: Any, name: str, options: dict[str, Any]) -> Any:
    """Return the environment that a user's class or function makes."""
    try:
        made = make(**options)
    except TypeError as error:
        raise ValueError(f"`env` {name!r} must make an environment when it is called: {error}.") from error
    if not hasattr(made, "unwrapped"):
        raise ValueError(f"`env` {name!r} must make a Gymnasium environment; got {type(made).__name__}.")
    return made


def _imported(module: str) -> Any:
    """Import an optional module, without the notices that some packages print on import."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs `{package}`: pip install {PACKAGES[package]} ({error}).") from error


def _first_states(bare: Any) -> np.ndarray:
    """Return the environment's distribution of first states (X,), or their frequency in resets of a copy."""
    for name in ("initial_state_distrib", "isd"):
        if hasattr(bare, name):
            return np.asarray(getattr(bare, name))
    other = copy.deepcopy(bare)
    states = [int(other.reset(seed=seed)[0]) for seed in range(NUM_RESETS)]
    return np.bincount(states, minlength=len(bare.P)) / NUM_RESETS


def _at(values: Any, key: int, rule: str) -> Any:
    try:
        return values[key]
    except (KeyError, IndexError):
        raise ValueError(f"{rule}; {key} is missing.") from None


def _outcome(entry: Any, x: int, a: int, num_states: int) -> tuple[float, int, float, bool]:
    at = f"at (x, a) = ({x}, {a})"
    try:
        probability, successor, reward, terminated = entry
        successor = operator.index(successor)
        probability = float(probability)
        reward = float(reward)
    except (TypeError, ValueError):
        rule = "`p` must have entries (probability, next state, reward, terminated)"
        raise ValueError(f"{rule}; got {entry!r} {at}.") from None
    if not 0 <= successor < num_states:
        raise ValueError(f"`p` must lead to states in [0, {num_states}); got {successor} {at}.")
    if terminated not in (True, False):
        raise ValueError(f"`p` must have True or False for terminated; got {terminated!r} {at}.")
    return probability, successor, reward, bool(terminated)
