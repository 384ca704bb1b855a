"""The compiled functions of one actor-learner: a few steps of its environment, then one gradient.

A member of `program.py` with one actor, whose `learner` is None: the networks are vectors that the
actor-learners share, and are arguments of these functions.

    pure environments        act_and_store                  steps, to replay
                             act_and_learn                  the same, then a gradient: one call per update
    on the host              choose                         an action, for each step
                             store, store_and_learn         after the last step

The programs ask for one thread each, as there is one actor-learner per core or more. (XLA's convolutions take more.)
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from offtrace.agent import program, replay
from offtrace.agent.learner import LearnerState
from offtrace.agent.program import ActionChoice, Member, Probe, Program, Settings
from offtrace.environments.interface import Row

OPTIONS = {"xla_cpu_multi_thread_eigen": False}
RECORD = ("num_episodes", "total_return", "total_length", "num_switches", "loss", "gradient", "refused")
"""Columns of a record; without learning only the first four."""


# -- starting ------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def init_params(prog: Program, settings: Settings, key: jax.Array) -> jax.Array:
    """Return the parameters of an untrained network as a vector."""
    return ravel_pytree(program.init(prog, settings, key).learner.params)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def init_member(prog: Program, stack: int, settings: Settings, key: jax.Array) -> Member:
    """Return an actor with an empty memory. With a `stack`, the memory holds single frames of the observations."""
    member = program.init(prog, settings, key)
    if stack > 1:
        shape, dtype = prog.env.observation
        member = member._replace(
            replay=replay.init(replay.ReplaySpec(prog.spec.capacity, 1, shape[1:], dtype, stack))
        )
    return without(member, "learner")


def without(member: Member, *parts: str) -> Any:
    """Return a member with None in place of some parts."""
    nothing: dict[str, Any] = dict.fromkeys(parts)
    return member._replace(**nothing)


def as_tree(prog: Program, settings: Settings, params: Any) -> Any:
    """Return a vector of parameters as those of the network."""
    shapes = jax.eval_shape(lambda: program.init(prog, settings, jax.random.key(0)).learner.params)
    leaves = []
    start = 0
    for leaf in jax.tree.leaves(shapes):
        leaves.append(params[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _with_networks(
    prog: Program, member: Member, settings: Settings, params: Any, target: Any, num_steps: Any
) -> Member:
    """Return a member with its networks, at a time that is counted over all actors."""
    networks = LearnerState(
        as_tree(prog, settings, params), as_tree(prog, settings, target), None, jnp.zeros((), jnp.int32)
    )
    return member._replace(learner=networks, num_steps=num_steps)


# -- pure environments ---------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=OPTIONS)
def act_and_store(
    prog: Program, member: Member, settings: Settings, params: Any, num_steps: Any
) -> tuple[Member, jax.Array]:
    """Take the steps of a segment; return the actor after it, and its record."""
    member = _with_networks(prog, member, settings, params, params, num_steps)
    member, record = _act(prog, member, settings)
    return without(member, "learner"), record


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=OPTIONS)
def act_and_learn(
    prog: Program, member: Member, settings: Settings, params: Any, target: Any, num_steps: Any
) -> tuple[Member, jax.Array, jax.Array]:
    """Take the steps of a segment; return the actor, the gradient of a batch as a vector, and the record."""
    member = _with_networks(prog, member, settings, params, target, num_steps)
    member, record = _act(prog, member, settings)
    return _learn(prog, member, settings, record)


def _act(prog: Program, member: Member, settings: Settings) -> tuple[Member, jax.Array]:
    def step(member: Member, _: None) -> tuple[Member, jax.Array]:
        after, ended = program.act(prog, member, settings)
        return after, _row(member, after.following, *ended)

    member, rows = jax.lax.scan(step, member, None, prog.spec.rounds)
    return member, rows.sum(0)


def _row(member: Member, following: Any, *ended: Any) -> jax.Array:
    """Return the record of one step: its end of an episode, and whether the actor switched to another schedule."""
    switched = jnp.zeros((), jnp.float32)
    if following is not None:
        switched = (following.current != member.following.current).sum()
    return jnp.stack([*(jnp.asarray(column, jnp.float32).sum() for column in ended), switched.astype(jnp.float32)])


def _learn(
    prog: Program, member: Member, settings: Settings, record: jax.Array
) -> tuple[Member, jax.Array, jax.Array]:
    member, gradient, update = program.gradient(prog, member, settings)
    columns = jnp.stack([jnp.asarray(column, jnp.float32) for column in update])
    return without(member, "learner"), ravel_pytree(gradient)[0], jnp.concatenate([record, columns])


# -- environments on the host --------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0, compiler_options=OPTIONS)
def choose(
    prog: Program, policy: Member, settings: Settings, params: Any, num_steps: Any, obs: Any, first: Any
) -> tuple[ActionChoice, jax.Array]:
    """Return the next action, and whether the actor switched to another schedule. `policy` has no memory."""
    member = _with_networks(prog, policy, settings, params, params, num_steps)
    chosen = program.choose(prog, member, settings, obs, first)
    return chosen, _row(member, chosen.following)[-1]


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=OPTIONS)
def store(prog: Program, member: Member, row: Row, a: Any, mu_a: Any) -> Member:
    """Write the rows of a segment, time first, to the memory."""
    return program.remember(prog, member, replay.Rows(*row, action=a, mu_a=mu_a))


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1, compiler_options=OPTIONS)
def store_and_learn(
    prog: Program,
    member: Member,
    settings: Settings,
    params: Any,
    target: Any,
    num_steps: Any,
    row: Row,
    a: Any,
    mu_a: Any,
) -> tuple[Member, jax.Array, jax.Array]:
    """Write the rows of a segment; return the actor, the gradient of a batch, and the last columns of the record."""
    member = _with_networks(prog, member, settings, params, target, num_steps)
    member = program.remember(prog, member, replay.Rows(*row, action=a, mu_a=mu_a))
    return _learn(prog, member, settings, jnp.zeros(0))


# -- measuring -----------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0, static_argnames="num_windows", compiler_options=OPTIONS)
def probe(
    prog: Program,
    member: Member,
    settings: Settings,
    params: Any,
    target: Any,
    num_steps: Any,
    key: jax.Array,
    *,
    num_windows: int,
) -> Probe:
    """Measure an actor-learner on a batch from its own memory."""
    member = _with_networks(prog, member, settings, params, target, num_steps)
    return program.probe(prog, member, settings, key=key, num_windows=num_windows)


@functools.partial(jax.jit, static_argnums=0)
def epsilon(prog: Program, policy: Member, settings: Settings, num_steps: Any) -> jax.Array:
    """Return the current ε of an actor; `policy` needs no memory."""
    return program.epsilon(prog, policy._replace(num_steps=num_steps), settings)[0]


@functools.partial(jax.jit, static_argnums=0)
def greedy(prog: Program, settings: Settings, params: Any, obs: Any) -> jax.Array:
    """Return the greedy action for each observation."""
    return prog.network(as_tree(prog, settings, params), obs).argmax(-1)
