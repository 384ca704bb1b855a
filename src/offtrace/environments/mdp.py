"""Any finite MDP as an environment in JAX: `mdp/<name>`, or one of your own with `register`.

Everything that a network can do here is known exactly: `exact_return` gives the expected return of a policy, without
sampling, so a score has a scale (random play, the optimal policy) and no noise of its own.

The tables of an MDP are padded to powers of two and travel as inputs of a compiled program, its `World`. So MDPs of
about one size share one program:

    fork     45 states, 3 outcomes  ─┐
    field    64 states, 3 outcomes  ─┴─  tables of 64 × 4 × 4, one program

A state of the environment is the number of a state of the MDP. Episodes end where the MDP terminates, and are
truncated after `time_limit` steps.
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

from offtrace.environments.interface import MDP_OPTIONS, TIME_LIMIT, Array, Space, Step
from offtrace.mdp import MDPS, FiniteMDP

OBSERVATIONS = ("one_hot", "features")
LEAST_STATES, LEAST_OUTCOMES = 16, 4
"""Tables are at least this large, so that small MDPs share a program too."""
MOST_ENTRIES = 2**24
"""Of a table: states × actions × outcomes."""
MOST_SEEN = 2**28
"""Of the table of observations: states × numbers of each."""

_registered: dict[str, Callable[..., FiniteMDP]] = {}


class World(NamedTuple):
    """The tables of one MDP: X states, A actions, K outcomes of a step, all padded."""

    threshold: Array
    """(X, A, K) a uniform number u takes the first outcome with u < threshold."""
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
    """(X, d) what is seen in each state."""
    time_limit: Array
    """int32"""


class State(NamedTuple):
    x: Array
    """int32: the state of the MDP."""
    time: Array
    """int32: steps since the reset."""


@dataclass(frozen=True, eq=False)
class MDPEnvironment:
    """One MDP as an environment; `from_mdp` makes it.

    >>> env = from_mdp(MDPS["chain"](num_states=5), name="mdp/chain")
    >>> env.num_actions, env.observation.shape
    (2, (16,))
    >>> uniform = np.full((16, 2), 0.5)
    >>> round(float(env.exact_return(uniform)), 3)  # the walk ends on the right in half of the episodes
    0.5
    """

    name: str
    num_states: int
    """X, padded."""
    num_actions: int
    num_outcomes: int
    """K, padded."""
    observation: Space
    world: World
    mdp: FiniteMDP = field(repr=False)
    max_return: None = None

    @property
    def shape(self) -> "Shape":
        """What a compiled program depends on; MDPs of the same shape share one."""
        return Shape(self.num_states, self.num_actions, self.num_outcomes, self.observation)

    def reset(self, key: Array) -> tuple[State, Array]:
        return _reset(self.world, key)

    def step(self, state: State, action: Array, key: Array) -> Step:
        return _step(self.world, state, action, key)

    def exact_return(self, policy: Array) -> Array:
        """The expected undiscounted return of an episode under `policy` (X, A); padded states are never reached."""
        return _exact_return(self.world, jnp.asarray(policy))


@dataclass(frozen=True)
class Shape:
    """An MDP without its tables, as a compiled program knows it; `bound` gives them back."""

    num_states: int
    num_actions: int
    num_outcomes: int
    observation: Space
    name: str = "mdp"
    max_return: None = None

    def bound(self, world: World) -> "Bound":
        return Bound(world, self.num_actions, self.observation)


class Bound(NamedTuple):
    """An environment whose tables may be traced arrays."""

    world: World
    num_actions: int
    observation: Space
    name: str = "mdp"
    max_return: None = None

    def reset(self, key: Array) -> tuple[State, Array]:
        return _reset(self.world, key)

    def step(self, state: State, action: Array, key: Array) -> Step:
        return _step(self.world, state, action, key)

    def exact_return(self, policy: Array) -> Array:
        return _exact_return(self.world, policy)


def register(name: str, make: Callable[..., FiniteMDP]) -> None:
    """Makes `mdp/<name>` known in this process. `make` is called with the options of the environment.

    Other processes do not know it: run a sweep of it with `jobs=0`.

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
    """All that `named` knows."""
    return (*MDPS, *_registered)


def named(name: str, **options: Any) -> MDPEnvironment:
    """`mdp/<name>`. Options are those of `from_mdp` and of the function in `ot.mdp` that makes the MDP."""
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
    mine = {each: given.pop(each) for each in MDP_OPTIONS if each in given}
    try:
        mdp = make(**given)
    except TypeError as error:
        raise ValueError(f"the options of mdp/{name} must fit; got {given}: {error}") from error
    return from_mdp(mdp, name=f"mdp/{name}", **mine)


def from_mdp(
    mdp: FiniteMDP,
    *,
    name: str = "mdp",
    time_limit: int = TIME_LIMIT,
    observation: str = "one_hot",
    num_features: int = 32,
    feature_seed: int = 0,
) -> MDPEnvironment:
    """An environment from an MDP.

    `observation` is `one_hot`, or `features`: a fixed random vector of `num_features` normal numbers for each state,
    drawn with `feature_seed`, which gives a network something to confuse.
    """
    if observation not in OBSERVATIONS:
        raise ValueError(f"`observation` must be one of {', '.join(OBSERVATIONS)}; got {observation!r}.")
    for what, value in (("time_limit", time_limit), ("num_features", num_features)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise ValueError(f"`{what}` must be a whole number of at least 1 and under 2³¹; got {value!r}.")
    probability, successor, reward, ends = _outcomes(mdp)
    largest = float(abs(reward).max())
    if largest > float(np.finfo(np.float32).max):
        raise ValueError(f"`mdp` must have rewards that float32 can hold to be an environment; it has {largest:g}.")
    num_states, num_outcomes = probability.shape[0], probability.shape[2]
    width = num_states if observation == "one_hot" else num_features
    if num_states * width > MOST_SEEN:
        raise ValueError(
            f"`observation` {observation!r} must be at most {MOST_SEEN:,} numbers in all; {num_states:,} states with "
            f"{width:,} each are more. Use 'features', and few of them."
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
    """Probability, successor, reward and whether it ends, (X, A, K) padded.

    A transition that ends with a share in (0, 1) becomes two outcomes: one that ends, and one that goes on.
    """
    ends = np.zeros(len(mdp.probability)) if mdp.ends is None else mdp.ends
    reward = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
    rows = np.concatenate([mdp.rows, mdp.rows])
    chance = np.concatenate([mdp.probability * (1 - ends), mdp.probability * ends])
    kept = chance > 0
    order = np.argsort(rows[kept], kind="stable")
    rows, chance = rows[kept][order], chance[kept][order]
    successor, reward = (np.concatenate([each, each])[kept][order] for each in (mdp.successor, reward))
    is_end = np.repeat([False, True], len(ends))[kept][order]
    counts = np.bincount(rows, minlength=mdp.num_states * mdp.num_actions)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    num_states = _padded(mdp.num_states, LEAST_STATES)
    shape = num_states, mdp.num_actions, _padded(int(counts.max()), LEAST_OUTCOMES)
    if np.prod(shape) > MOST_ENTRIES:
        raise ValueError(
            f"`mdp` must fit into tables of {MOST_ENTRIES:,} entries to be an environment; {mdp} would need "
            f"{np.prod(shape):,} (states × actions × outcomes)."
        )
    x, a = np.divmod(rows, mdp.num_actions)
    tables = []
    for values, dtype in ((chance, np.float64), (successor, np.int32), (reward, np.float64), (is_end, bool)):
        table = np.zeros(shape, dtype)
        table[x, a, place] = values
        tables.append(table)
    tables[0][mdp.num_states :, :, 0] = 1  # padded states are never reached; they stay where they are
    tables[3][mdp.num_states :, :, 0] = True
    return tables[0], tables[1], tables[2], tables[3]


def _thresholds(probability: np.ndarray) -> np.ndarray:
    """Cumulative probabilities; 2 from the last possible outcome on, so that rounding cannot pass it."""
    sums = np.cumsum(probability, axis=-1)
    later = np.cumsum(probability[..., ::-1], axis=-1)[..., ::-1]
    is_last = later - probability <= 1e-9
    return np.where(is_last, 2.0, sums).astype(np.float32)


def _padded(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())


# -- pure functions of the tables ------------------------------------------------------------------


def _reset(world: World, key: Array) -> tuple[State, Array]:
    x = _drawn(world.start_threshold, key)
    return State(x, jnp.int32(0)), jnp.asarray(world.observation)[x]


def _step(world: World, state: State, action: Array, key: Array) -> Step:
    k = _drawn(jnp.asarray(world.threshold)[state.x, action], key)
    place = state.x, action, k
    x = jnp.asarray(world.successor)[place]
    time = state.time + 1
    return Step(
        State(x, time),
        jnp.asarray(world.observation)[x],
        jnp.asarray(world.reward)[place],
        jnp.asarray(world.ends)[place],
        time >= world.time_limit,
    )


def _drawn(threshold: Array, key: Array) -> Array:
    """The first outcome whose threshold is above a uniform number."""
    return jnp.sum(jax.random.uniform(key) >= jnp.asarray(threshold), dtype=jnp.int32)


def _exact_return(world: World, policy: Array) -> Array:
    """Σ_{t < limit} of the expected rewards of an episode: V_{n+1} = r^π + P^π V_n, from V_0 = 0."""
    weight = jnp.asarray(policy)[..., None] * world.probability  # (X, A, K)
    goes_on = jnp.where(world.ends, 0, weight)
    successor = jnp.asarray(world.successor)
    reward = (weight * world.reward).sum((1, 2))

    def once(_: Array, value: Array) -> Array:
        return reward + (goes_on * value[successor]).sum((1, 2))

    value = jax.lax.fori_loop(0, world.time_limit, once, jnp.zeros_like(reward))
    return value @ jnp.asarray(world.start)
