"""Environment, replay and updates in one compiled program: a run is a pure function of its settings and a key.

One iteration is `rounds` steps of all actors and then `updates` of the learner, so that there is one update for every
`steps_per_update` environment steps. A tick is many iterations under `scan`.

A program runs a population: every leaf of `Members`, `Settings` and `Tick` has a leading axis of members, but for
the clocks, which all members share. One run alone is a population of one.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from offtrace import policies
from offtrace.agent import learner, replay, schedules
from offtrace.agent.learner import Batch, Hyper, LearnerSpec, LearnerState, Metrics, Progress
from offtrace.agent.network import make_network
from offtrace.arrays import take_action
from offtrace.environments.interface import Environment
from offtrace.environments.rows import Ended, Row, advance, begin


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
    network: str = "auto"
    """`mlp`, `minatar`, `dqn`, or `auto`: what fits the observations."""
    precision: str = "float32"
    """What the network computes in: `bfloat16` is faster on accelerators; parameters stay float32."""
    switching: schedules.SwitchingEpsilon | None = None
    """The three ε schedules of App. F; without them ε is that of `Settings.exploration`."""
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
    annealing: Any = math.inf
    """Environment steps over which the step size falls to 0."""
    target_epsilon: Any = math.nan
    """ε of an exploring target policy; nan: that of each actor, now."""
    world: Any = None
    """The tables of the member's MDP; None for other environments."""


class Member(NamedTuple):
    """Everything that an exact resume needs."""

    learner: LearnerState
    actors: Any
    """An `Actor` with an axis of actors; None where the environments are on the host."""
    following: Any
    """Where each actor is in its ε schedules; None if ε is one for all."""
    replay: replay.State
    key: jax.Array
    num_steps: jax.Array
    """Of the environment, all actors together; dummy rows count."""


Numbers = jax.Array | np.ndarray


class Iterations(NamedTuple):
    """What every iteration of a tick did: (members, iterations), and for updates (members, iterations, updates).

    Rows of iterations that are still to come are 0.
    """

    num_episodes: Numbers
    """Episodes that ended."""
    total_return: Numbers
    total_length: Numbers
    loss: Numbers
    gradient: Numbers
    refused: Numbers


class Tick(NamedTuple):
    """Sums and means over the iterations of a tick, one per member."""

    num_episodes: Numbers
    total_return: Numbers
    """Of the episodes that ended, raw."""
    total_length: Numbers
    loss: Numbers
    gradient: Numbers
    num_refused: Numbers
    """Updates that were not applied, as their loss or gradient was not finite."""


class Probe(NamedTuple):
    """What a large batch from the memory says now."""

    metrics: Metrics
    off_policy_by_age: Numbers
    """‖π − μ‖₁ of fifths of the memory by age, newest first; NaN where the batch has none."""
    largest_reward: Numbers
    """Max |r| in the memory."""
    epsilon: Numbers
    """Mean over actors."""
    step_size: Numbers


class Program(NamedTuple):
    """What is fixed when it is compiled."""

    env: Any
    """An `Environment`, or the shape of an MDP, whose tables are inputs."""
    spec: ProgramSpec
    skeleton: Any
    """The network without its parameters."""

    def network(self, params: Any, obs: jax.Array) -> jax.Array:
        """Values in float32, whatever they are computed in."""
        params = jax.tree.map(lambda leaf: leaf.astype(self.spec.precision), params)
        return eqx.combine(params, self.skeleton)(obs).astype(jnp.float32)


AGES = 5
PROBED = 64
"""Windows of a probe."""


def environment(prog: Program, settings: Settings) -> Any:
    """The member's own: programs of MDPs take the tables as inputs, so that MDPs of one shape share a program."""
    if settings.world is None:
        return prog.env
    return prog.env.bound(settings.world)


def program(env: Environment, spec: ProgramSpec) -> Program:
    """Nothing is drawn: the network's shape does not depend on a key."""
    shapes = eqx.filter_eval_shape(_network, env, spec, jax.random.key(0))
    return Program(env, spec, eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))[1])


def init(prog: Program, settings: Settings, keys: jax.Array) -> Member:
    """Untrained members, one for each key; their actors at the start of first episodes, their memories empty."""
    members = jax.lax.map(lambda given: init_one(prog, *given), (settings, keys))
    return _shared_clocks(members)


def no_iterations(prog: Program, num_members: int, num_iterations: int, *, learns: bool) -> Iterations:
    """A table with room for so many iterations, none of them done."""
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

    The bounds are inputs of the program, so that a tick in pieces needs no other program than a tick at once, and
    gives the same numbers. They must be a multiple of `block` apart; a block as long as the table is always run.
    """
    run = functools.partial(_iterate, prog, start=start, until=until, block=block, learns=learns)
    members, table = _mapped(run, members, settings, table)
    return _shared_clocks(members), table


def summary(table: Iterations) -> Tick:
    """Add up the iterations of a tick."""
    with np.errstate(invalid="ignore", over="ignore"):  # a loss that is not finite is reported as such
        totals = [np.asarray(column).astype(np.float64).sum(1) for column in table[:3]]
        means = [np.full(len(totals[0]), np.nan)] * 2
        if table.loss.size:
            means = [np.asarray(column).astype(np.float64).mean((1, 2)) for column in (table.loss, table.gradient)]
    return Tick(*totals, *means, num_refused=np.asarray(table.refused).sum((1, 2)))


def probe(prog: Program, members: Member, settings: Settings, key: jax.Array) -> Probe:
    """Looks at the members and changes nothing; one key serves all. The memories must not be empty."""
    return _mapped(functools.partial(probe_one, prog, key=key), members, settings)


class Episodes(NamedTuple):
    """Evaluation episodes of every member that are under way; each leaf has an axis of members."""

    time: jax.Array
    actors: Any
    done: jax.Array
    """(members, episodes)"""
    returns: jax.Array
    key: jax.Array


def evaluate(
    prog: Program,
    params: Any,
    settings: Settings,
    keys: jax.Array,
    *,
    num_episodes: int,
    max_steps: int,
    epsilon: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Returns of `num_episodes` episodes of every member, and which ended within `max_steps`: (members, …).

    Where the environment knows the expected return of a policy exactly, that is the one return of a member.
    """
    if settings.world is not None:
        return expect(prog, params, settings, epsilon=epsilon)
    episodes = begin_episodes(prog, settings, keys, num_episodes=num_episodes)
    episodes = play_on(prog, params, settings, episodes, max_steps, epsilon=epsilon)
    return episodes.returns, episodes.done


def expect(prog: Program, params: Any, settings: Settings, *, epsilon: float) -> tuple[jax.Array, jax.Array]:
    """The exact expected return of every member in its MDP, as one episode that has ended."""

    def one(given: tuple[Any, Settings]) -> tuple[jax.Array, jax.Array]:
        params, settings = given
        q = prog.network(params, settings.world.observation)
        policy = policies.epsilon_greedy(q, jnp.full(len(q), epsilon))
        return environment(prog, settings).exact_return(policy)[None], jnp.ones(1, bool)

    return _over(one)((params, settings))


def begin_episodes(prog: Program, settings: Settings, keys: jax.Array, *, num_episodes: int) -> Episodes:
    def one(given: tuple[Settings, jax.Array]) -> Episodes:
        settings, key = given
        key, for_actors = jax.random.split(key)
        start = functools.partial(begin, environment(prog, settings))
        actors = jax.vmap(start)(jax.random.split(for_actors, num_episodes))
        time, done, returns = jnp.int32(0), jnp.zeros(num_episodes, bool), jnp.zeros(num_episodes)
        return Episodes(time, actors, done, returns, key)

    return _over(one)((settings, keys))


def play_on(
    prog: Program, params: Any, settings: Settings, episodes: Episodes, until: Any, *, epsilon: float
) -> Episodes:
    """The same episodes at time `until`, or where all of a member's have ended before."""

    def one(given: tuple[Any, Settings, Episodes]) -> Episodes:
        params, settings, start = given
        step_all = jax.vmap(functools.partial(advance, environment(prog, settings)))
        epsilons = jnp.full(len(start.done), epsilon)

        def goes_on(now: Episodes) -> jax.Array:
            return (now.time < until) & ~now.done.all()

        def step(now: Episodes) -> Episodes:
            mu = policies.epsilon_greedy(prog.network(params, now.actors.observation), epsilons)
            a = jax.random.categorical(jax.random.fold_in(now.key, now.time), jnp.log(mu))
            actors, row, ended = step_all(now.actors, a)
            returns = now.returns + jnp.where(now.done, 0, row.reward)
            return Episodes(now.time + 1, actors, now.done | ended.ended, returns, now.key)

        return jax.lax.while_loop(goes_on, step, start)

    return _over(one)((params, settings, episodes))


# -- one member ----------------------------------------------------------------------------------------------


def init_one(prog: Program, settings: Settings, key: jax.Array) -> Member:
    """Without actors where the environment is not a pure one: those live on the host."""
    env, spec = environment(prog, settings), prog.spec
    kept, for_network, for_actors, for_epsilon = jax.random.split(key, 4)
    params = eqx.filter(_network(env, spec, for_network), eqx.is_array)
    memory = replay.init(replay.Spec(spec.capacity, spec.num_actors, *env.observation))
    actors = None
    if hasattr(env, "reset"):
        actors = jax.vmap(functools.partial(begin, env))(jax.random.split(for_actors, spec.num_actors))
    schedule = spec.switching
    following = None if schedule is None else schedules.follow(schedule, for_epsilon, spec.num_actors)
    state = learner.init(params, spec.learner, settings.hyper)
    return Member(state, actors, following, memory, kept, jnp.zeros((), jnp.int32))


def _iterate(
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
    nothing = Progress(*(jnp.zeros(0, column.dtype) for column in table[3:]))

    def one(carry: tuple[Member, Iterations], i: jax.Array) -> tuple[tuple[Member, Iterations], None]:
        member, table = carry
        member, ended = jax.lax.scan(lambda m, _: act(prog, m, settings), member, None, prog.spec.rounds)
        progress = nothing
        if learns:
            member, progress = learn(prog, member, settings)
        row = Iterations(*(column.sum() for column in ended), *progress)
        # `column.at[i].set(value)` would be a scatter, which takes a GPU longer.
        write = functools.partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
        return (member, jax.tree.map(write, table, row)), None

    if block == len(table.loss):
        return jax.lax.scan(one, (member, table), jnp.arange(block))[0]

    # Only the length of the inner loop is known when this is compiled, which makes its turns quicker on a GPU.
    def blocks(number: jax.Array, carry: tuple[Member, Iterations]) -> tuple[Member, Iterations]:
        return jax.lax.scan(one, carry, start + number * block + jnp.arange(block))[0]

    return jax.lax.fori_loop(0, (until - start) // block, blocks, (member, table))


def probe_one(prog: Program, member: Member, settings: Settings, *, key: jax.Array) -> Probe:
    spec = prog.spec
    seen = replay.sample(member.replay, key, PROBED, spec.window)
    batch = _batch(prog, member, settings, seen)
    metrics, away = learner.metrics(member.learner, batch, settings.hyper, network=prog.network, spec=spec.learner)
    filled = jnp.minimum(member.replay.num_steps, spec.capacity)
    fifth = jnp.where(seen.mask, seen.age * AGES // filled, AGES)
    chosen = fifth[..., None] == jnp.arange(AGES)
    by_age = jnp.where(chosen, away[..., None], 0).sum((0, 1)) / chosen.sum((0, 1))
    largest = abs(jax.lax.bitcast_convert_type(member.replay.records[..., 1], jnp.float32)).max()
    now = epsilon(prog, member, settings).mean()
    return Probe(metrics, by_age, largest, now, _step_size(member, settings))


def epsilon(prog: Program, member: Member, settings: Settings) -> jax.Array:
    """Of each actor, now: (num_actors,)."""
    if prog.spec.switching is not None:
        return schedules.epsilon(prog.spec.switching, member.following)
    now = schedules.linear(member.num_steps, **settings.exploration._asdict())
    return jnp.full(prog.spec.num_actors, now)


class Chosen(NamedTuple):
    """An action of every actor, (num_actors,), with the probability that it had, and what choosing it used up."""

    a: jax.Array
    mu_a: jax.Array
    key: jax.Array
    following: Any


def choose(prog: Program, member: Member, settings: Settings, observation: jax.Array) -> Chosen:
    """a ~ μ, ε-greedy in the current values; μ(a) is written down now, never reconstructed."""
    key, for_action, for_schedule = jax.random.split(member.key, 3)
    mu = policies.epsilon_greedy(prog.network(member.learner.params, observation), epsilon(prog, member, settings))
    a = jax.random.categorical(for_action, jnp.log(mu))
    following, schedule = member.following, prog.spec.switching
    if schedule is not None:
        following = schedules.advance(schedule, following, for_schedule, 1)
    return Chosen(a, take_action(mu, a), key, following)


def remember(prog: Program, member: Member, row: Row, a: jax.Array, mu_a: jax.Array) -> Member:
    """Rows of every actor, (num_actors, …) or a chunk of them with time first, into the memory."""
    clamp = prog.spec.reward_clamp
    reward = row.reward if clamp is None else jnp.clip(row.reward, -clamp, clamp)
    rows = replay.Rows(row.observation, row.reset, row.mask, reward, row.continues, a, mu_a)
    return member._replace(replay=replay.add(member.replay, rows), num_steps=member.num_steps + a.size)


def act(prog: Program, member: Member, settings: Settings) -> tuple[Member, Ended]:
    """One step of every actor, written into the memory."""
    a, mu_a, key, following = choose(prog, member, settings, member.actors.observation)
    env = environment(prog, settings)
    actors, row, ended = jax.vmap(functools.partial(advance, env))(member.actors, a)
    member = member._replace(actors=actors, key=key, following=following)
    return remember(prog, member, row, a, mu_a), ended


def learn(prog: Program, member: Member, settings: Settings) -> tuple[Member, Progress]:
    """The updates of one iteration. Their windows are drawn together, and the target network, which is renewed only
    between iterations, sees them together: with few rows a pass costs what reading the parameters costs.
    """
    spec, num_updates = prog.spec, prog.spec.updates
    key, *for_samples = jax.random.split(member.key, 1 + num_updates)
    draw = functools.partial(replay.sample, member.replay, num_windows=spec.num_windows, length=spec.window)
    batches = _batch(prog, member, settings, jax.vmap(lambda k: draw(key=k))(jnp.stack(for_samples)))
    if spec.window == 1:  # Q(x_t, a_t) of the target network cancels from a target of one step: 0 will do
        later = prog.network(member.learner.target_params, batches.obs[:, 1:])
        q_target = jnp.concatenate([jnp.zeros_like(later), later], axis=1)
    else:
        q_target = prog.network(member.learner.target_params, batches.obs)
    hyper = settings.hyper._replace(step_size=_step_size(member, settings))

    def step(state: LearnerState, given: tuple[Batch, jax.Array]) -> tuple[LearnerState, Progress]:
        return learner.step(state, *given, hyper, network=prog.network, spec=spec.learner)

    state, progress = jax.lax.scan(step, member.learner, (batches, q_target), unroll=min(num_updates, 4))
    return member._replace(learner=learner.renewed(state, spec.learner, num_updates), key=key), progress


def _batch(prog: Program, member: Member, settings: Settings, seen: replay.Batch) -> Batch:
    now = epsilon(prog, member, settings)[seen.actor]
    now = jnp.where(jnp.isnan(settings.target_epsilon), now, settings.target_epsilon)
    return Batch(seen.obs, seen.a, seen.r, seen.continues, seen.reset, seen.mask, seen.mu_a, now)


def _step_size(member: Member, settings: Settings) -> jax.Array:
    return schedules.linear(member.num_steps, start=settings.hyper.step_size, end=0.0, duration=settings.annealing)


def _network(env: Environment, spec: ProgramSpec, key: jax.Array) -> Any:
    space = env.observation
    return make_network(space.shape, space.dtype, env.num_actions, key, spec.network, hidden_sizes=spec.hidden_sizes)


# -- populations ---------------------------------------------------------------------------------------------


def _mapped(function: Callable[..., Any], members: Member, *others: Any) -> Any:
    """Apply `function` to every member and its part of `others`.

    The clocks go in without an axis of members, which keeps writing to the memory a plain copy.
    """
    shared, own = eqx.partition(members, clocks(members))

    def one(given: tuple[Any, ...]) -> Any:
        return function(eqx.combine(given[0], shared), *given[1:])

    return _over(one)((own, *others))


def _over(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` of every member: all at once on an accelerator, one after the other on a CPU, where batched
    products are slower than single ones, and where a member then equals the same member alone to the last bit.
    """
    in_turn = jax.default_backend() == "cpu"
    return functools.partial(jax.lax.map, function) if in_turn else jax.vmap(function)


def clocks(members: Member) -> Any:
    """True for the leaves without an axis of members, False for all others."""
    return eqx.tree_at(_clocks, jax.tree.map(lambda _: False, members), replace=(True,) * 3)


def _clocks(member: Member) -> tuple[jax.Array, ...]:
    return member.learner.num_updates, member.replay.num_steps, member.num_steps


def _shared_clocks(members: Member) -> Member:
    """One clock of each kind instead of one for each member: they are all the same."""
    return eqx.tree_at(_clocks, members, replace_fn=lambda clock: clock[0])
