"""The compiled program of one agent: act, store, learn, probe. `synchronous.py` and `host.py` run it.

One iteration is `rounds` steps of all actors, then `updates` updates of the learner. This makes one
update per `steps_per_update` environment steps. Functions are pure, of a `Program` (static), `Settings`
(numbers) and a `Member` (state):

    choose    a ~ μ, with μ(a)  ─┐
    advance   the environments   ├─ act      one step of all actors
    remember  rows to replay    ─┘
    learn     windows from replay, `updates` updates
    probe     metrics of a large batch; changes nothing

`population.py` applies these functions to all members of a population.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from offtrace import policies
from offtrace.agent import learner, repeats, replay, schedules
from offtrace.agent.learner import Batch, Hyper, LearnerSpec, LearnerState, Metrics, UpdateRecord
from offtrace.agent.network import make_network
from offtrace.arrays import take_action
from offtrace.environments.interface import Environment
from offtrace.environments.rows import Ended, advance, begin

NUM_AGES = 5
"""Parts of the memory that a probe looks at separately, by age."""
NUM_PROBE_WINDOWS = 64

Numbers = jax.Array | np.ndarray


@dataclass(frozen=True)
class ProgramSpec:
    """The static part of a run. Runs with equal specs share one compiled program.

    Fields are those of `TrainSpec` with the same name, except where they say otherwise.
    """

    num_actors: int = 16
    window: int = 16
    num_windows: int = 4
    steps_per_update: int = 4
    capacity: int = 6_250
    """Rows of replay per actor."""
    fill: int = 64
    """Steps per actor before the first update."""
    reward_clamp: float | None = None
    network: str = "auto"
    precision: str = "float32"
    """Data type of the network's computations; parameters stay float32."""
    switching: schedules.SwitchingEpsilon | None = None
    """The ε schedules of App. F; None for the linear one in `Settings`."""
    random_action_steps: int = 1
    hidden_sizes: tuple[int, ...] = (64, 64)
    observation_scale: tuple[float, ...] = ()
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
        """Steps of each actor per iteration."""
        return max(1, self.steps_per_update // self.num_actors)

    @property
    def updates(self) -> int:
        """Updates per iteration."""
        return max(1, self.num_actors // self.steps_per_update)


class Settings(NamedTuple):
    """The numbers of one member, which are inputs of the program; in a population they have a leading axis.

    Steps are environment steps of all actors together.
    """

    hyper: Hyper
    epsilon_start: Any = 1.0
    epsilon_end: Any = 0.05
    epsilon_steps: Any = 20_000
    annealing_steps: Any = math.inf
    """Steps over which the step size falls to 0."""
    target_epsilon: Any = math.nan
    """ε of an exploring target policy; nan: the current ε of each window's actor."""
    world: Any = None
    """The tables of the member's MDP; None for other environments."""


class Member(NamedTuple):
    """The state of one run: everything that an exact resume needs."""

    learner: LearnerState
    actors: Any
    """An `Actor` with an axis of actors; None where the environments are on the host."""
    following: Any
    """The state of each actor's ε schedules; None if all actors share one ε."""
    replay: Any
    """A `ReplayState`; None in functions that do not read it."""
    key: jax.Array
    num_steps: jax.Array
    """Environment steps of all actors together; dummy rows count."""
    repeats: Any = None
    """The action that each actor is repeating; None if a random action lasts one step."""


class Probe(NamedTuple):
    """Measurements on a large batch from replay, and the current schedules."""

    metrics: Metrics
    off_policy_by_age: Numbers
    """‖π − μ‖₁ of fifths of the memory by age, newest first; nan where the batch has no row of that age."""
    largest_reward: Numbers
    """Max |r| in the memory."""
    epsilon: Numbers
    """Mean ε over actors."""
    step_size: Numbers


class ActionChoice(NamedTuple):
    """An action per actor, its probability, and the random state of all actors after the draw."""

    a: jax.Array
    mu_a: jax.Array
    key: jax.Array
    following: Any
    repeats: Any


# -- the static part -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """The static part of a run, an argument at compile time."""

    env: Any
    """An `Environment`, or the shape of an MDP, whose tables are inputs."""
    spec: ProgramSpec
    skeleton: Any
    """The network without its parameters."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """JAX asks for it in every call, and it takes 20 µs to compute."""
        return hash((self.env, self.spec, self.skeleton))

    def network(self, params: Any, obs: jax.Array) -> jax.Array:
        """Return Q(x, ·) in float32, computed in the precision of the spec."""
        params = jax.tree.map(lambda leaf: leaf.astype(self.spec.precision), params)
        return eqx.combine(params, self.skeleton)(obs).astype(jnp.float32)


def make_program(env: Environment, spec: ProgramSpec) -> Program:
    """Return the program for an environment. The key does not matter: only the network's shapes are used."""
    shapes = eqx.filter_eval_shape(_network, env, spec, jax.random.key(0))
    return Program(env, spec, eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))[1])


def environment(prog: Program, settings: Settings) -> Any:
    """Return the member's environment. MDPs of one shape share a program, so their tables come from the settings."""
    if settings.world is None:
        return prog.env
    return prog.env.bound(settings.world)


def _network(env: Environment, spec: ProgramSpec, key: jax.Array) -> Any:
    space = env.observation
    return make_network(
        space.shape,
        space.dtype,
        env.num_actions,
        key,
        spec.network,
        hidden_sizes=spec.hidden_sizes,
        observation_scale=spec.observation_scale,
    )


# -- one member ----------------------------------------------------------------------------------------------


def init(prog: Program, settings: Settings, key: jax.Array, *, has_memory: bool = True) -> Member:
    """Return an untrained member with an empty memory and its actors at the start of their first episodes.

    Environments on the host cannot be reset inside the program, so there the member has no actors.
    """
    env = environment(prog, settings)
    spec = prog.spec
    kept, for_network, for_actors, for_epsilon = jax.random.split(key, 4)
    params = eqx.filter(_network(env, spec, for_network), eqx.is_array)
    memory = None
    if has_memory:
        memory = replay.init(replay.ReplaySpec(spec.capacity, spec.num_actors, *env.observation))
    actors = None
    if hasattr(env, "reset"):
        actors = jax.vmap(functools.partial(begin, env))(jax.random.split(for_actors, spec.num_actors))
    following = None
    if spec.switching is not None:
        following = schedules.init(spec.switching, for_epsilon, spec.num_actors)
    repeated = None
    if spec.random_action_steps > 1:
        repeated = repeats.init(spec.num_actors)
    state = learner.init(params, spec.learner, settings.hyper)
    return Member(state, actors, following, memory, kept, jnp.zeros((), jnp.int32), repeated)


def epsilon(prog: Program, member: Member, settings: Settings) -> jax.Array:
    """Return the current ε of each actor: (num_actors,)."""
    if prog.spec.switching is not None:
        return schedules.epsilon(prog.spec.switching, member.following)
    shared = schedules.linear(
        member.num_steps,
        start=settings.epsilon_start,
        end=settings.epsilon_end,
        duration=settings.epsilon_steps,
    )
    return jnp.full(prog.spec.num_actors, shared)


def choose(
    prog: Program,
    member: Member,
    settings: Settings,
    observation: jax.Array,
    first: Any = None,
    *,
    first_actor: Any = 0,
) -> ActionChoice:
    """Draw a ~ μ, ε-greedy in the current values. μ(a) is recorded here and never reconstructed.

    `observation` may be that of some actors only: those from `first_actor` on. `first` is True
    where it is the first of an episode; it is read only if random actions last several steps.
    """
    spec = prog.spec
    num_actors = observation.shape[0]

    def some(leaf: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(leaf, first_actor, num_actors)

    def with_some(leaf: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice_in_dim(leaf, new, first_actor, axis=0)

    key, for_action, for_schedule = jax.random.split(member.key, 3)
    epsilons = some(epsilon(prog, member, settings))
    mu = policies.epsilon_greedy(prog.network(member.learner.params, observation), epsilons)
    a = jax.random.categorical(for_action, jnp.log(mu))
    mu_a = take_action(mu, a)
    following = member.following
    if spec.switching is not None:
        part = schedules.advance(spec.switching, jax.tree.map(some, following), for_schedule, 1)
        following = jax.tree.map(with_some, following, part)
    repeated = member.repeats
    if spec.random_action_steps > 1:
        a, mu_a, part = repeats.advance(
            jax.tree.map(some, repeated),
            jax.random.fold_in(for_action, 1),
            a,
            mu_a,
            uniform=epsilons / mu.shape[-1],
            first=first,
            most=spec.random_action_steps,
        )
        repeated = jax.tree.map(with_some, repeated, part)
    return ActionChoice(a, mu_a, key, following, repeated)


def remember(prog: Program, member: Member, rows: replay.Rows) -> Member:
    """Write a row per actor, (num_actors, …), or a chunk of them with time first, to the memory."""
    memory = with_rows(prog, member.replay, rows)
    return member._replace(replay=memory, num_steps=member.num_steps + rows.action.size)


def with_rows(prog: Program, memory: replay.ReplayState, rows: replay.Rows) -> replay.ReplayState:
    """Return the memory with new rows, whose rewards are clipped as the spec says."""
    if prog.spec.reward_clamp is not None:
        rows = rows._replace(reward=jnp.clip(rows.reward, -prog.spec.reward_clamp, prog.spec.reward_clamp))
    return replay.add(memory, rows)


def act(prog: Program, member: Member, settings: Settings) -> tuple[Member, Ended]:
    """Take one step of every actor and write it to the memory."""
    chosen = choose(prog, member, settings, member.actors.observation, member.actors.first)
    env = environment(prog, settings)
    actors, row, ended = jax.vmap(functools.partial(advance, env))(member.actors, chosen.a)
    member = member._replace(actors=actors, key=chosen.key, following=chosen.following, repeats=chosen.repeats)
    return remember(prog, member, replay.Rows(*row, action=chosen.a, mu_a=chosen.mu_a)), ended


def learn(
    prog: Program, member: Member, settings: Settings, num_updates: int | None = None
) -> tuple[Member, UpdateRecord]:
    """Run the updates of one iteration, or `num_updates` of them.

    Their windows are drawn together and pass through the target network together: it changes only
    between iterations, and a pass with few rows costs as much as reading the parameters.
    """
    spec = prog.spec
    if num_updates is None:
        num_updates = spec.updates
    key, *for_samples = jax.random.split(member.key, 1 + num_updates)
    draw = functools.partial(replay.sample, member.replay, num_windows=spec.num_windows, length=spec.window)
    # A leading axis of updates: (updates, n+1, num_windows, …).
    batches = _batch(prog, member, settings, jax.vmap(lambda k: draw(key=k))(jnp.stack(for_samples)))
    q_target = _target_values(prog, member.learner.target_params, batches.obs)
    hyper = settings.hyper._replace(step_size=_step_size(member, settings))

    def step(state: LearnerState, given: tuple[Batch, jax.Array]) -> tuple[LearnerState, UpdateRecord]:
        return learner.step(state, *given, hyper, network=prog.network, spec=spec.learner)

    state, records = jax.lax.scan(step, member.learner, (batches, q_target), unroll=min(num_updates, 4))
    state = learner.refresh_target(state, spec.learner, num_updates)
    return member._replace(learner=state, key=key), records


def gradient(prog: Program, member: Member, settings: Settings) -> tuple[Member, Any, UpdateRecord]:
    """Return the gradient of the next batch. Only the random key of the member changes.

    The batch is the one that `learn` would draw for a program with one update per iteration.
    """
    spec = prog.spec
    key, for_sample = jax.random.split(member.key)
    windows = replay.sample(member.replay, for_sample, spec.num_windows, spec.window)
    batch = _batch(prog, member, settings, windows)
    q_target = _target_values(prog, member.learner.target_params, batch.obs[None])[0]
    found, loss = learner.gradient(
        member.learner.params, batch, q_target, settings.hyper, network=prog.network, spec=spec.learner
    )
    norm = optax.tree.norm(found)
    if spec.learner.max_gradient is not None:
        found, _ = optax.clip_by_global_norm(spec.learner.max_gradient).update(found, optax.EmptyState())
    refused = ~(jnp.isfinite(norm) & jnp.isfinite(loss))
    return member._replace(key=key), found, UpdateRecord(loss, norm, refused)


def _target_values(prog: Program, params: Any, obs: jax.Array) -> jax.Array:
    """Return the target network's values, (updates, n+1, B, A)."""
    if prog.spec.window > 1:
        return prog.network(params, obs)
    # In a one-step target the target network's Q(x_t, a_t) cancels, so zeros will do and half the pass is saved.
    later = prog.network(params, obs[:, 1:])
    return jnp.concatenate([jnp.zeros_like(later), later], axis=1)


def probe(
    prog: Program, member: Member, settings: Settings, *, key: jax.Array, num_windows: int = NUM_PROBE_WINDOWS
) -> Probe:
    """Measure the member on a large batch from its memory, which must not be empty; nothing changes."""
    spec = prog.spec
    windows = replay.sample(member.replay, key, num_windows, spec.window)
    batch = _batch(prog, member, settings, windows)
    metrics, away = learner.metrics(member.learner, batch, settings.hyper, network=prog.network, spec=spec.learner)
    num_rows = jnp.minimum(member.replay.num_steps, spec.capacity)
    part = jnp.where(windows.mask, windows.age * NUM_AGES // num_rows, NUM_AGES)  # dummy rows belong to no part
    belongs = part[..., None] == jnp.arange(NUM_AGES)
    by_age = jnp.where(belongs, away[..., None], 0).sum((0, 1)) / belongs.sum((0, 1))
    largest = replay.largest_reward(member.replay)
    mean_epsilon = epsilon(prog, member, settings).mean()
    return Probe(metrics, by_age, largest, mean_epsilon, _step_size(member, settings))


def _batch(prog: Program, member: Member, settings: Settings, windows: replay.Windows) -> Batch:
    """Add the ε of the target policy to windows from replay."""
    behaviour = epsilon(prog, member, settings)[windows.actor]
    target = jnp.where(jnp.isnan(settings.target_epsilon), behaviour, settings.target_epsilon)
    return Batch(
        obs=windows.obs,
        a=windows.a,
        r=windows.r,
        continues=windows.continues,
        reset=windows.reset,
        mask=windows.mask,
        mu_a=windows.mu_a,
        epsilon=target,
    )


def _step_size(member: Member, settings: Settings) -> jax.Array:
    return schedules.linear(
        member.num_steps, start=settings.hyper.step_size, end=0.0, duration=settings.annealing_steps
    )
