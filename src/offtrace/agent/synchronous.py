"""Environment, replay and updates in one compiled program: a run is a pure function of its settings and a key.

One iteration is `rounds` steps of all actors and then `updates` of the learner, so that there is one update for every
`steps_per_update` environment steps. A tick is many iterations under `scan`. A population is the same program under
`vmap`, with a leading axis of members in the state, the hyper-parameters and the metrics.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from offtrace import policies
from offtrace.agent import learner, replay, schedules
from offtrace.agent.learner import Batch, Hyper, LearnerSpec, LearnerState, Metrics
from offtrace.agent.network import make_network
from offtrace.arrays import take_action
from offtrace.environments.interface import Environment
from offtrace.environments.rows import Actor, Ended, advance, begin


@dataclass(frozen=True)
class ProgramSpec:
    """What shapes the compiled program; two runs with the same one can share it."""

    num_actors: int = 16
    window: int = 16
    """n, steps of a window (App. F)."""
    num_windows: int = 4
    steps_per_update: int = 4
    """Environment steps, of all actors together, for one update (Deviation D15)."""
    capacity: int = 6_250
    """Rows of each actor's replay."""
    fill: int = 64
    """Steps of each actor before the first update."""
    reward_clamp: float | None = None
    """Rewards are clamped to ± this for learning; returns are reported as they were."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Of the fully connected network, where the environment gives vectors."""
    learner: LearnerSpec = field(default_factory=LearnerSpec)

    def __post_init__(self) -> None:
        if max(self.num_actors, self.steps_per_update) % min(self.num_actors, self.steps_per_update):
            raise ValueError(
                f"`num_actors` and `steps_per_update` must divide one another; got {self.num_actors} and "
                f"{self.steps_per_update}."
            )
        if self.fill <= self.window:
            raise ValueError(f"`fill` must be more than `window`, {self.window}, or no window fits; got {self.fill}.")
        if self.capacity < self.fill:
            raise ValueError(f"`capacity` must be at least `fill`, {self.fill}; got {self.capacity}.")

    @property
    def rounds(self) -> int:
        return max(1, self.steps_per_update // self.num_actors)

    @property
    def updates(self) -> int:
        return max(1, self.num_actors // self.steps_per_update)


class Exploration(NamedTuple):
    """ε falls from `start` to `end` over `duration` environment steps of all actors."""

    start: Any = 1.0
    end: Any = 0.05
    duration: Any = 20_000


class Settings(NamedTuple):
    """Numbers of one member; a population has a leading axis."""

    hyper: Hyper
    exploration: Exploration


class Member(NamedTuple):
    """Everything that an exact resume needs."""

    learner: LearnerState
    actors: Actor
    replay: replay.State
    key: jax.Array
    num_steps: jax.Array
    """Of the environment, all actors together; dummy rows count."""


class Tick(NamedTuple):
    """What happened since the tick before."""

    metrics: Metrics
    num_episodes: jax.Array
    total_return: jax.Array
    """Of the episodes that ended, raw."""
    total_length: jax.Array
    epsilon: jax.Array


class Program(NamedTuple):
    """What is fixed when it is compiled."""

    env: Environment
    spec: ProgramSpec
    skeleton: Any
    """The network without its parameters."""

    def network(self, params: Any, obs: jax.Array) -> jax.Array:
        return eqx.combine(params, self.skeleton)(obs)


def program(env: Environment, spec: ProgramSpec) -> Program:
    """Nothing is drawn: the network's shape does not depend on a key."""
    space = env.observation
    net = make_network(space.shape, space.dtype, env.num_actions, jax.random.key(0), hidden_sizes=spec.hidden_sizes)
    return Program(env, spec, eqx.partition(net, eqx.is_array)[1])


def init(prog: Program, settings: Settings, key: jax.Array) -> Member:
    """An untrained member, its actors at the start of their first episodes, its memory empty."""
    env, spec = prog.env, prog.spec
    kept, for_network, for_actors = jax.random.split(key, 3)
    space = env.observation
    net = make_network(space.shape, space.dtype, env.num_actions, for_network, hidden_sizes=spec.hidden_sizes)
    params = eqx.filter(net, eqx.is_array)
    memory = replay.init(replay.Spec(spec.capacity, spec.num_actors, space.shape, space.dtype))
    actors = jax.vmap(functools.partial(begin, env))(jax.random.split(for_actors, spec.num_actors))
    state = learner.init(params, spec.learner, settings.hyper)
    return Member(state, actors, memory, kept, jnp.zeros((), jnp.int32))


def epsilon(member: Member, settings: Settings) -> jax.Array:
    """Of all actors, now."""
    return schedules.linear(member.num_steps, **settings.exploration._asdict())


def act(prog: Program, member: Member, settings: Settings) -> tuple[Member, Ended]:
    """One step of every actor, written into the memory with the probability of what it did."""
    env, spec = prog.env, prog.spec
    key, for_action = jax.random.split(member.key)
    q = prog.network(member.learner.params, member.actors.observation)
    mu = policies.epsilon_greedy(q, jnp.full(spec.num_actors, epsilon(member, settings)))
    a = jax.random.categorical(for_action, jnp.log(mu))
    actors, row, ended = jax.vmap(functools.partial(advance, env))(member.actors, a)
    clamp = spec.reward_clamp
    reward = row.reward if clamp is None else jnp.clip(row.reward, -clamp, clamp)
    rows = replay.Rows(row.observation, row.reset, row.mask, reward, row.continues, a, take_action(mu, a))
    memory = replay.add(member.replay, rows)
    steps = member.num_steps + spec.num_actors
    return member._replace(actors=actors, replay=memory, key=key, num_steps=steps), ended


def learn(prog: Program, member: Member, settings: Settings) -> tuple[Member, Metrics]:
    """One update from replay."""
    spec = prog.spec
    key, for_sample = jax.random.split(member.key)
    seen = replay.sample(member.replay, for_sample, spec.num_windows, spec.window)
    now = jnp.full(spec.num_windows, epsilon(member, settings))
    batch = Batch(seen.obs, seen.a, seen.r, seen.continues, seen.reset, seen.mask, seen.mu_a, now)
    state, metrics = learner.update(member.learner, batch, settings.hyper, network=prog.network, spec=spec.learner)
    return member._replace(learner=state, key=key), metrics


def tick(
    prog: Program, member: Member, settings: Settings, num_iterations: int, *, learns: bool
) -> tuple[Member, Tick]:
    """Many iterations; without learning, only acting, to fill the memory."""

    def iterate(carry: Member, _: None) -> tuple[Member, tuple[Metrics | None, Ended]]:
        carry, ended = jax.lax.scan(lambda m, _: act(prog, m, settings), carry, None, prog.spec.rounds)
        if not learns:
            return carry, (None, ended)
        carry, metrics = jax.lax.scan(lambda m, _: learn(prog, m, settings), carry, None, prog.spec.updates)
        return carry, (jax.tree.map(jnp.mean, metrics), ended)

    member, (metrics, ended) = jax.lax.scan(iterate, member, None, num_iterations)
    if metrics is None:
        metrics = Metrics(*[jnp.full((), jnp.nan)] * len(Metrics._fields))
    else:
        metrics = jax.tree.map(jnp.mean, metrics)
    totals = ended.ended.sum(), ended.episode_return.sum(), ended.episode_length.sum()
    return member, Tick(metrics, *totals, epsilon(member, settings))


def evaluate(prog: Program, params: Any, key: jax.Array, *, num_episodes: int, max_steps: int, epsilon: float) -> Any:
    """Returns of `num_episodes` episodes, one for each actor of their own; what has not ended counts as it stands."""
    env = prog.env
    key, for_actors = jax.random.split(key)
    actors = jax.vmap(functools.partial(begin, env))(jax.random.split(for_actors, num_episodes))

    def step(carry: tuple[Any, ...], key: jax.Array) -> tuple[tuple[Any, ...], None]:
        actors, done, returns = carry
        mu = policies.epsilon_greedy(prog.network(params, actors.observation), jnp.full(num_episodes, epsilon))
        after, row, ended = jax.vmap(functools.partial(advance, env))(
            actors, jax.random.categorical(key, jnp.log(mu))
        )
        returns = returns + jnp.where(done, 0, row.reward)
        return (after, done | ended.ended, returns), None

    start = (actors, jnp.zeros(num_episodes, bool), jnp.zeros(num_episodes))
    (_, _, returns), _ = jax.lax.scan(step, start, jax.random.split(key, max_steps))
    return returns
