"""Environment, replay and learner as one program: counts, determinism, populations, and that it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import synchronous
from offtrace.agent.learner import MARKOV, Choice, Hyper, LearnerSpec
from offtrace.agent.synchronous import Exploration, ProgramSpec, Settings
from offtrace.environments import make

SPEC = ProgramSpec(
    num_actors=8,
    window=4,
    num_windows=8,
    capacity=200,
    fill=20,
    hidden_sizes=(32,),
    learner=LearnerSpec(target_period=20),
)


def settings(*, lambda_: float = 0.9, kind: str = "retrace", step_size: float = 1e-3) -> Settings:
    trace = Choice(jnp.int32(MARKOV.index(kind)), jnp.float32(lambda_))
    hyper = Hyper(jnp.float32(0.9), jnp.float32(step_size), jnp.float32(1e-8), trace)
    return Settings(hyper, Exploration(jnp.float32(1.0), jnp.float32(0.1), jnp.float32(2000)))


@functools.cache
def compiled(spec: ProgramSpec, num_iterations: int, learns: bool, name: str = "pocket/catch"):
    prog = synchronous.program(make(name), spec)
    start = jax.jit(lambda s, key: synchronous.init(prog, s, key))
    run = jax.jit(lambda m, s: synchronous.tick(prog, m, s, num_iterations, learns=learns))
    return prog, start, run


def same(one: object, other: object) -> bool:
    def data(leaf: jax.Array) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(data(a), data(b), equal_nan=True) for a, b in pairs)


def trained(num_iterations: int = 30, **changes: object):
    _, start, fill = compiled(SPEC, SPEC.fill, False)
    _, _, run = compiled(SPEC, num_iterations, True)
    chosen = settings(**changes)
    member, _ = fill(start(chosen, jax.random.key(1)), chosen)
    return (*run(member, chosen), chosen)


def test_counts() -> None:
    """Eight actors, an update for every four of their steps: two updates an iteration."""
    member, tick, _ = trained()
    assert int(member.num_steps) == 8 * (SPEC.fill + 30)
    assert int(member.replay.num_steps) == SPEC.fill + 30
    assert int(member.learner.num_updates) == 2 * 30
    assert float(tick.epsilon) == pytest.approx(1 - 0.9 * 400 / 2000)


@pytest.mark.parametrize(("num_actors", "rounds", "updates"), [(1, 4, 1), (2, 2, 1), (4, 1, 1), (16, 1, 4)])
def test_one_update_for_every_four_steps(num_actors: int, rounds: int, updates: int) -> None:
    spec = ProgramSpec(num_actors=num_actors)
    assert (spec.rounds, spec.updates) == (rounds, updates)
    assert spec.rounds * num_actors / spec.updates == 4


def test_the_same_key_gives_the_same_run() -> None:
    one, other = trained(), trained()
    assert same(one[:2], other[:2])


def test_two_ticks_are_one_long_tick() -> None:
    """Which is what an exact resume needs: nothing lives outside of the member."""
    _, start, fill = compiled(SPEC, SPEC.fill, False)
    _, _, short = compiled(SPEC, 15, True)
    _, _, long = compiled(SPEC, 30, True)
    chosen = settings()
    member, _ = fill(start(chosen, jax.random.key(1)), chosen)
    half, first = short(member, chosen)
    twice, second = short(half, chosen)
    once, whole = long(member, chosen)
    assert same(twice, once)
    assert int(first.num_episodes + second.num_episodes) == int(whole.num_episodes)


def test_lambda_zero_is_one_algorithm() -> None:
    """Retrace, TB and Q* at λ = 0, and one-step: the same parameters to the last bit."""
    members = [trained(lambda_=0.0, kind=kind)[0] for kind in ("retrace", "tree_backup", "q_lambda", "one_step")]
    for other in members[1:]:
        assert same(members[0].learner, other.learner)


def test_a_member_of_a_population_equals_itself_alone() -> None:
    """Batched matrix products may add in another order: float32 rounding, and no action decided by it so early."""
    prog, _, _ = compiled(SPEC, SPEC.fill, False)
    each = [settings(lambda_=x, kind=kind) for x, kind in ((0.0, "retrace"), (0.9, "retrace"), (1.0, "tree_backup"))]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    keys = jax.random.split(jax.random.key(5), 3)

    def run(key: jax.Array, chosen: Settings):
        member = synchronous.init(prog, chosen, key)
        member, _ = synchronous.tick(prog, member, chosen, SPEC.fill, learns=False)
        return synchronous.tick(prog, member, chosen, 10, learns=True)

    population, ticks = jax.jit(jax.vmap(run))(keys, together)
    alone = jax.jit(run)
    for i, chosen in enumerate(each):
        member, tick = alone(keys[i], chosen)
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], population)
        assert np.array_equal(
            mine.replay.records[..., 0], member.replay.records[..., 0]
        )  # the same actions and flags
        for a, b in zip(jax.tree.leaves(mine.learner.params), jax.tree.leaves(member.learner.params), strict=True):
            assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-6)
        assert float(ticks.total_return[i]) == float(tick.total_return)


def test_it_learns_to_catch() -> None:
    """Random play earns −0.8 or so; the best is 1."""
    spec = ProgramSpec(num_actors=16, window=8, num_windows=8, capacity=1000, fill=20, hidden_sizes=(64,))
    prog, start, fill = compiled(spec, spec.fill, False)
    _, _, run = compiled(spec, 1500, True)
    chosen = settings(lambda_=1.0, step_size=1e-3)
    member, _ = fill(start(chosen, jax.random.key(0)), chosen)
    member, _ = run(member, chosen)
    returns = synchronous.evaluate(
        prog, member.learner.params, jax.random.key(9), num_episodes=100, max_steps=12, epsilon=0.0
    )
    assert float(returns.mean()) > 0.8


def test_rewards_are_clamped_for_learning_and_reported_raw() -> None:
    clamped = ProgramSpec(**{**SPEC.__dict__, "reward_clamp": 0.25})
    _, start, fill = compiled(clamped, 60, False)
    chosen = settings()
    member, tick = fill(start(chosen, jax.random.key(0)), chosen)
    rewards = jax.lax.bitcast_convert_type(member.replay.records[:60, :, 1], jnp.float32)
    assert float(abs(rewards).max()) == 0.25
    assert abs(float(tick.total_return)) > 0.25


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_actors": 6}, "`num_actors` and `steps_per_update` must divide one another; got 6 and 4"),
        ({"fill": 16}, "`fill` must be more than `window`, 16"),
        ({"capacity": 10}, "`capacity` must be at least `fill`, 64; got 10"),
    ],
)
def test_wrong_programs_are_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ProgramSpec(**change)


def test_a_trajectory_aware_trace_has_a_program_of_its_own() -> None:
    prog, start, _ = compiled(SPEC, SPEC.fill, False)
    chosen = settings()._replace(hyper=Hyper(0.9, 1e-3, 1e-8, ot.RecursiveRetrace(0.9)))
    member, _ = jax.jit(lambda m, s: synchronous.tick(prog, m, s, SPEC.fill, learns=False))(
        start(chosen, jax.random.key(0)), chosen
    )
    member, tick = jax.jit(lambda m, s: synchronous.tick(prog, m, s, 5, learns=True))(member, chosen)
    assert np.isfinite(float(tick.metrics.loss))
    assert int(member.learner.num_updates) == 10
