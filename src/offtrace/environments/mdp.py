"""Environments in JAX from finite MDPs: `mdp/<name>`, or your own with `register`.

`exact_return` gives the expected return of a policy without sampling. So scores are exact, and can
be scaled between random play and the optimal policy.

The tables of an MDP, its `World`, are padded to powers of two and are inputs of the compiled
program. So MDPs of similar sizes share one program:

    fork     45 states, 3 outcomes  ─┐
    field    64 states, 3 outcomes  ─┴─  tables of 64 × 4 × 4, one program

Episodes end where the MDP terminates, and are truncated after `time_limit` steps.
"""

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from offtrace.environments.checks import checked_whole
from offtrace.environments.interface import MDP_OPTIONS, TIME_LIMIT, Array, Space, Step
from offtrace.mdp import MDPS, FiniteMDP

OBSERVATIONS = ("one_hot", "features")
LEAST_STATES = 16
LEAST_OUTCOMES = 4
"""The smallest tables, so that small MDPs share a program too."""
MOST_ENTRIES = 2**24
"""The largest table: states × actions × outcomes."""
MOST_OBSERVED = 2**28
"""The largest table of observations: states × numbers per observation."""

_registered: dict[str, Callable[..., FiniteMDP]] = {}


class World(NamedTuple):
    """The tables of one MDP: X states, A actions and K outcomes per step, all padded."""

    threshold: Array
    """(X, A, K) cumulative probabilities: the outcome is the first with u < threshold, for a uniform u."""
    probability: Array
    """(X, A, K)"""
    successor: Array
    """(X, A, K) int32"""
    reward: Array
    """(X, A, K)"""
    ends: Array
    """(X, A, K) bool"""
    start: Array
    """(X,) the distribution of first states."""
    start_threshold: Array
    """(X,)"""
    observation: Array
    """(X, d) the observation of each state."""
    time_limit: Array
    """int32"""


class MDPState(NamedTuple):
    """The state of the environment."""

    x: Array
    """int32: the state of the MDP."""
    time: Array
    """int32: steps since the reset."""


@dataclass(frozen=True, eq=False)
class MDPEnvironment:
    """An environment made from one MDP by `from_mdp`.

    >>> env = from_mdp(MDPS["chain"](num_states=5), name="mdp/chain")
    >>> env.num_actions, env.observation.shape
    (2, (16,))
    >>> uniform = np.full((16, 2), 0.5)
    >>> round(float(env.exact_return(uniform)), 3)  # the walk ends on the right in half of the episodes
    0.5
    """

    name: str
    num_states: int
    """The padded number of states, X."""
    num_actions: int
    num_outcomes: int
    """The padded number of outcomes, K."""
    observation: Space
    world: World
    mdp: FiniteMDP = field(repr=False)
    max_return: None = None

    @property
    def shape(self) -> "MDPShape":
        """The sizes that a compiled program depends on; MDPs of the same shape share one."""
        return MDPShape(self.num_states, self.num_actions, self.num_outcomes, self.observation)

    def reset(self, key: Array) -> tuple[MDPState, Array]:
        return _reset(self.world, key)

    def step(self, state: MDPState, action: Array, key: Array) -> Step:
        return _step(self.world, state, action, key)

    def exact_return(self, policy: Array) -> Array:
        """Return the expected undiscounted return of an episode under `policy` (X, A)."""
        return _exact_return(self.world, jnp.asarray(policy))


@dataclass(frozen=True)
class MDPShape:
    """An MDP without its tables, the static part of a compiled program; `bound` adds the tables."""

    num_states: int
    num_actions: int
    num_outcomes: int
    observation: Space
    name: str = "mdp"
    max_return: None = None

    def bound(self, world: World) -> "BoundMDP":
        return BoundMDP(world, self.num_actions, self.observation)


class BoundMDP(NamedTuple):
    """An environment inside a compiled program, where the tables are traced arrays."""

    world: World
    num_actions: int
    observation: Space
    name: str = "mdp"
    max_return: None = None

    def reset(self, key: Array) -> tuple[MDPState, Array]:
        return _reset(self.world, key)

    def step(self, state: MDPState, action: Array, key: Array) -> Step:
        return _step(self.world, state, action, key)

    def exact_return(self, policy: Array) -> Array:
        return _exact_return(self.world, policy)


def register(name: str, make: Callable[..., FiniteMDP]) -> None:
    """Register `mdp/<name>` in this process. `make` is called with the options of the environment.

    Other processes do not have it, so run a sweep of it with `jobs=0`.

    >>> register("two_states", lambda: FiniteMDP(p=np.full((2, 1, 2), 0.5), r=[[1.0], [0.0]], gamma=0.9))
    >>> named("two_states").num_actions
    1
    """
    if not name or "/" in name:
        raise ValueError(f"`name` must be a word without a slash; got {name!r}.")
    if name in MDPS:
        raise ValueError(f"`name` must not be that of a built-in MDP; got {name!r}.")
    _registered[name] = make
    _named.cache_clear()


def names() -> tuple[str, ...]:
    """Return all names that `named` accepts."""
    return (*MDPS, *_registered)


def named(name: str, **options: Any) -> MDPEnvironment:
    """Return `mdp/<name>`. Options are those of `from_mdp` and of the function in `ot.mdp` that makes the MDP."""
    return _named(name, json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=256)
def _named(name: str, options: str) -> MDPEnvironment:
    make = {**MDPS, **_registered}.get(name)
    if make is None:
        raise ValueError(f"`name` must be an MDP: {', '.join(f'mdp/{each}' for each in names())}; got 'mdp/{name}'.")
    given = json.loads(options)
    known = [*inspect.signature(make).parameters, *MDP_OPTIONS]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} of mdp/{name}; valid options: {', '.join(known)}.")
    for_environment = {each: given.pop(each) for each in MDP_OPTIONS if each in given}
    try:
        mdp = make(**given)
    except TypeError as error:
        raise ValueError(f"`options` of mdp/{name} must fit its MDP; got {given}: {error}") from error
    return from_mdp(mdp, name=f"mdp/{name}", **for_environment)


def from_mdp(
    mdp: FiniteMDP,
    *,
    name: str = "mdp",
    time_limit: int = TIME_LIMIT,
    observation: str = "one_hot",
    num_features: int = 32,
    feature_seed: int = 0,
) -> MDPEnvironment:
    """Return an environment made from an MDP.

    `observation` is `one_hot`, or `features`: a fixed vector of `num_features` normal numbers per
    state, drawn with `feature_seed`, so that a network must generalise.
    """
    if observation not in OBSERVATIONS:
        raise ValueError(f"`observation` must be one of {', '.join(OBSERVATIONS)}; got {observation!r}.")
    checked_whole("time_limit", time_limit, limited=True)
    checked_whole("num_features", num_features, limited=True)
    probability, successor, reward, ends = _outcomes(mdp)
    largest = float(abs(reward).max())
    if largest > float(np.finfo(np.float32).max):
        raise ValueError(f"`mdp` must have rewards that float32 can hold; got {largest:g}.")
    num_states, _, num_outcomes = probability.shape
    width = num_states if observation == "one_hot" else num_features
    if num_states * width > MOST_OBSERVED:
        raise ValueError(
            f"`observation` must have at most {MOST_OBSERVED:,} numbers in all states; got "
            f"{observation!r} with {num_states:,} states × {width:,} numbers. Use 'features', with "
            "few of them."
        )
    start = np.zeros(num_states)
    start[: mdp.num_states] = mdp.start
    if observation == "one_hot":
        seen = np.eye(num_states, dtype=bool)
    else:
        seen = np.zeros((num_states, num_features), np.float32)
        drawn = np.random.default_rng(feature_seed).normal(size=(mdp.num_states, num_features))
        seen[: mdp.num_states] = drawn
    world = World(
        threshold=_thresholds(probability),
        probability=probability.astype(np.float32),
        successor=successor,
        reward=reward.astype(np.float32),
        ends=ends,
        start=start.astype(np.float32),
        start_threshold=_thresholds(start),
        observation=seen,
        time_limit=np.int32(time_limit),
    )
    space = Space(seen.shape[1:], seen.dtype)
    return MDPEnvironment(name, num_states, mdp.num_actions, num_outcomes, space, world, mdp)


def _outcomes(mdp: FiniteMDP) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return probability, successor, reward and end of every outcome, padded (X, A, K).

    A transition that terminates with a share in (0, 1) becomes two outcomes: one that terminates,
    and one that does not.
    """
    ends = np.zeros(len(mdp.probability)) if mdp.ends is None else mdp.ends
    reward = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
    rows = np.concatenate([mdp.rows, mdp.rows])
    chance = np.concatenate([mdp.probability * (1 - ends), mdp.probability * ends])
    kept = chance > 0
    order = np.argsort(rows[kept], kind="stable")
    rows = rows[kept][order]
    chance = chance[kept][order]
    successor = np.concatenate([mdp.successor, mdp.successor])[kept][order]
    reward = np.concatenate([reward, reward])[kept][order]
    is_end = np.repeat([False, True], len(ends))[kept][order]
    counts = np.bincount(rows, minlength=mdp.num_states * mdp.num_actions)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    num_states = _padded(mdp.num_states, LEAST_STATES)
    shape = num_states, mdp.num_actions, _padded(int(counts.max()), LEAST_OUTCOMES)
    if np.prod(shape) > MOST_ENTRIES:
        raise ValueError(
            f"`mdp` must fit into tables of {MOST_ENTRIES:,} entries (states × actions × "
            f"outcomes); got {mdp}, which needs {np.prod(shape):,}."
        )
    x, a = np.divmod(rows, mdp.num_actions)
    tables = []
    for values, dtype in ((chance, np.float64), (successor, np.int32), (reward, np.float64), (is_end, bool)):
        table = np.zeros(shape, dtype)
        table[x, a, place] = values
        tables.append(table)
    tables[0][mdp.num_states :, :, 0] = 1  # padded states are never reached; any distribution will do
    tables[3][mdp.num_states :, :, 0] = True
    return tables[0], tables[1], tables[2], tables[3]


def _thresholds(probability: np.ndarray) -> np.ndarray:
    """Return cumulative probabilities, but 2 from the last possible outcome on, so that rounding cannot pass it."""
    sums = np.cumsum(probability, axis=-1)
    later = np.cumsum(probability[..., ::-1], axis=-1)[..., ::-1]
    is_last = later - probability <= 1e-9
    return np.where(is_last, 2.0, sums).astype(np.float32)


def _padded(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())


# -- pure functions of the tables ------------------------------------------------------------------


def _reset(world: World, key: Array) -> tuple[MDPState, Array]:
    x = _drawn(world.start_threshold, key)
    return MDPState(x, jnp.int32(0)), jnp.asarray(world.observation)[x]


def _step(world: World, state: MDPState, action: Array, key: Array) -> Step:
    k = _drawn(jnp.asarray(world.threshold)[state.x, action], key)
    place = state.x, action, k
    x = jnp.asarray(world.successor)[place]
    time = state.time + 1
    return Step(
        MDPState(x, time),
        jnp.asarray(world.observation)[x],
        jnp.asarray(world.reward)[place],
        terminated=jnp.asarray(world.ends)[place],
        truncated=time >= world.time_limit,
    )


def _drawn(threshold: Array, key: Array) -> Array:
    """Draw the first outcome whose threshold is above a uniform number."""
    return jnp.sum(jax.random.uniform(key) >= jnp.asarray(threshold), dtype=jnp.int32)


def _exact_return(world: World, policy: Array) -> Array:
    """Sum the expected rewards up to the time limit: V_{n+1} = r^π + P^π V_n, from V_0 = 0."""
    weight = jnp.asarray(policy)[..., None] * world.probability  # (X, A, K)
    goes_on = jnp.where(world.ends, 0, weight)
    successor = jnp.asarray(world.successor)
    reward = (weight * world.reward).sum((1, 2))

    def once(_: Array, value: Array) -> Array:
        return reward + (goes_on * value[successor]).sum((1, 2))

    value = jax.lax.fori_loop(0, world.time_limit, once, jnp.zeros_like(reward))
    return value @ jnp.asarray(world.start)
