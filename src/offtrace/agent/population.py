"""The program of `program.py` for a population: every leaf has a leading axis of members.

The exceptions are the counters of steps and updates (`clocks`), which all members share. A single
run is a population of one.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offtrace import policies
from offtrace.agent import program
from offtrace.agent.learner import UpdateRecord
from offtrace.agent.program import Member, Numbers, Probe, Program, Settings, environment
from offtrace.environments.rows import advance, begin

# -- a tick --------------------------------------------------------------------------------------------------


class Iterations(NamedTuple):
    """A table of a tick: (members, iterations), and for updates (members, iterations, updates).

    Rows of iterations still to come are 0.
    """

    num_episodes: Numbers
    """Episodes that ended."""
    total_return: Numbers
    """Sum of their returns, raw."""
    total_length: Numbers
    loss: Numbers
    gradient: Numbers
    refused: Numbers


class TickSummary(NamedTuple):
    """Sums and means over the iterations of a tick, one per member."""

    num_episodes: Numbers
    total_return: Numbers
    total_length: Numbers
    loss: Numbers
    gradient: Numbers
    num_refused: Numbers
    """Updates that were not applied because their loss or gradient was not finite."""


def init(prog: Program, settings: Settings, keys: jax.Array, *, has_memory: bool = True) -> Member:
    """Return untrained members, one per key."""
    members = jax.lax.map(lambda given: program.init(prog, *given, has_memory=has_memory), (settings, keys))
    return shared_clocks(members)


def empty_table(prog: Program, num_members: int, num_iterations: int, *, learns: bool) -> Iterations:
    """Return a table for `num_iterations` iterations, none of them done."""
    shape = (num_members, num_iterations)
    updates = (*shape, prog.spec.updates if learns else 0)
    return Iterations(
        num_episodes=np.zeros(shape, np.int32),
        total_return=np.zeros(shape, np.float32),
        total_length=np.zeros(shape, np.int32),
        loss=np.zeros(updates, np.float32),
        gradient=np.zeros(updates, np.float32),
        refused=np.zeros(updates, bool),
    )


def iterate(
    prog: Program,
    members: Member,
    settings: Settings,
    table: Iterations,
    start: Numbers | int,
    until: Numbers | int,
    *,
    block: int,
    learns: bool,
) -> tuple[Member, Iterations]:
    """Run iterations `start` to `until` of a tick, in blocks; without learning, actors only fill the memory.

    The bounds are inputs of the program, so a tick in pieces needs no other program than a tick at
    once and gives the same numbers. They must be a multiple of `block` apart; a block as long as
    the table is always run.
    """
    run = functools.partial(_iterate_one, prog, start=start, until=until, block=block, learns=learns)
    members, table = map_members(run, members, settings, table)
    return shared_clocks(members), table


def _iterate_one(
    prog: Program,
    member: Member,
    settings: Settings,
    table: Iterations,
    *,
    start: Any,
    until: Any,
    block: int,
    learns: bool,
) -> tuple[Member, Iterations]:
    no_updates = UpdateRecord(*(jnp.zeros(0, column.dtype) for column in table[3:]))

    def one(carry: tuple[Member, Iterations], i: jax.Array) -> tuple[tuple[Member, Iterations], None]:
        member, table = carry
        member, ended = jax.lax.scan(lambda m, _: program.act(prog, m, settings), member, None, prog.spec.rounds)
        updates = no_updates
        if learns:
            member, updates = program.learn(prog, member, settings)
        row = Iterations(*(column.sum() for column in ended), *updates)  # the first three columns are of episodes
        # `column.at[i].set(value)` would be a scatter, which is slower on a GPU.
        write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
        return (member, jax.tree.map(write, table, row)), None

    if block == len(table.loss):
        return jax.lax.scan(one, (member, table), jnp.arange(block))[0]

    # Only the inner loop has a length that is known at compile time: a GPU runs its turns faster.
    def run_block(number: jax.Array, carry: tuple[Member, Iterations]) -> tuple[Member, Iterations]:
        return jax.lax.scan(one, carry, start + number * block + jnp.arange(block))[0]

    return jax.lax.fori_loop(0, (until - start) // block, run_block, (member, table))


def summarize(table: Iterations) -> TickSummary:
    """Add up the iterations of a tick."""
    with np.errstate(invalid="ignore", over="ignore"):  # a loss that is not finite is reported as such
        totals = [np.asarray(column).astype(np.float64).sum(1) for column in table[:3]]
        means = [np.full(len(totals[0]), np.nan)] * 2
        if table.loss.size:
            means = [np.asarray(column).astype(np.float64).mean((1, 2)) for column in (table.loss, table.gradient)]
    return TickSummary(*totals, *means, num_refused=np.asarray(table.refused).sum((1, 2)))


def probe(prog: Program, members: Member, settings: Settings, key: jax.Array) -> Probe:
    """Measure every member with `program.probe`, all with the same key."""
    return map_members(functools.partial(program.probe, prog, key=key), members, settings)


# -- evaluation ----------------------------------------------------------------------------------------------


class Episodes(NamedTuple):
    """Evaluation episodes in progress."""

    time: jax.Array
    actors: Any
    done: jax.Array
    """(members, episodes)"""
    returns: jax.Array
    key: jax.Array


def exact_returns(prog: Program, params: Any, settings: Settings, *, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """Return the exact expected return of every member in its MDP, as one episode that has ended."""

    def one(given: tuple[Any, Settings]) -> tuple[jax.Array, jax.Array]:
        params, settings = given
        q = prog.network(params, settings.world.observation)
        policy = policies.epsilon_greedy(q, jnp.full(len(q), epsilon))
        return environment(prog, settings).exact_return(policy)[None], jnp.ones(1, bool)

    return for_each(one)((params, settings))


def start_episodes(prog: Program, settings: Settings, keys: jax.Array, *, num_episodes: int) -> Episodes:
    """Return `num_episodes` evaluation episodes of every member, at their first observations."""

    def one(given: tuple[Settings, jax.Array]) -> Episodes:
        settings, key = given
        key, for_actors = jax.random.split(key)
        start = functools.partial(begin, environment(prog, settings))
        return Episodes(
            time=jnp.int32(0),
            actors=jax.vmap(start)(jax.random.split(for_actors, num_episodes)),
            done=jnp.zeros(num_episodes, bool),
            returns=jnp.zeros(num_episodes),
            key=key,
        )

    return for_each(one)((settings, keys))


def play_until(
    prog: Program, params: Any, settings: Settings, episodes: Episodes, until: Any, *, epsilon: float
) -> Episodes:
    """Play the episodes to time `until`, or until all of a member's have ended."""

    def one(given: tuple[Any, Settings, Episodes]) -> Episodes:
        params, settings, start = given
        step_all = jax.vmap(functools.partial(advance, environment(prog, settings)))
        epsilons = jnp.full(len(start.done), epsilon)

        def is_running(now: Episodes) -> jax.Array:
            return (now.time < until) & ~now.done.all()

        def step(now: Episodes) -> Episodes:
            mu = policies.epsilon_greedy(prog.network(params, now.actors.observation), epsilons)
            a = jax.random.categorical(jax.random.fold_in(now.key, now.time), jnp.log(mu))
            actors, row, ended = step_all(now.actors, a)
            returns = now.returns + jnp.where(now.done, 0, row.reward)
            return Episodes(now.time + 1, actors, now.done | ended.ended, returns, now.key)

        return jax.lax.while_loop(is_running, step, start)

    return for_each(one)((params, settings, episodes))


# -- the axis of members -------------------------------------------------------------------------------------


def map_members(function: Callable[..., Any], members: Member, *others: Any, each: Any = None) -> Any:
    """Apply `function` to every member and its part of `others`, by `each`, which is `for_each` if not given.

    The clocks go in without an axis of members, so that a write to the memory stays a plain copy.
    """
    shared, own = eqx.partition(members, clocks(members))

    def one(given: tuple[Any, ...]) -> Any:
        return function(eqx.combine(given[0], shared), *given[1:])

    return (each or for_each)(one)((own, *others))


def for_each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Map `function` over members: together on an accelerator, one by one on a CPU.

    On a CPU, batched products are slower than single ones; and one by one, a member equals the same
    member alone to the last bit.
    """
    if jax.default_backend() == "cpu":
        return functools.partial(jax.lax.map, function)
    return jax.vmap(function)


def for_one_or_each(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Do the same as `for_each`, but on a CPU without a loop for a single member.

    A loop there copies its inputs and outputs, which made training on CartPole 0 to 8 % slower.
    """

    def call(given: Any) -> Any:
        if jax.default_backend() != "cpu" or jax.tree.leaves(given)[0].shape[0] > 1:
            return for_each(function)(given)
        found = function(jax.tree.map(lambda leaf: leaf[0], given))
        return jax.tree.map(lambda leaf: leaf[None], found)

    return call


def clocks(members: Member) -> Any:
    """Return a tree that is True for the leaves without an axis of members."""
    return eqx.tree_at(_clocks, jax.tree.map(lambda _: False, members), replace_fn=lambda _: True)


def _clocks(member: Member) -> tuple[jax.Array, ...]:
    of_memory = [] if member.replay is None else [member.replay.num_steps]
    return member.learner.num_updates, member.num_steps, *of_memory


def shared_clocks(members: Member) -> Member:
    """Drop the axis of members from the clocks, which are all equal."""
    return eqx.tree_at(_clocks, members, replace_fn=lambda clock: clock[0])
