"""The compiled program of environment, replay and learner: counts, determinism, populations, learning.

Compiling dominates, so ticks are of few lengths, and tests share their programs.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import learner, population, replay
from offtrace.agent.learner import MARKOV, Hyper, LearnerSpec, TraceByIndex
from offtrace.agent.population import Iterations, TickSummary
from offtrace.agent.program import Member, Probe, Program, ProgramSpec, Settings, epsilon, learn, make_program
from offtrace.agent.schedules import SwitchingEpsilon
from offtrace.environments import make

SPEC = ProgramSpec(
    num_actors=8,
    window=4,
    num_windows=8,
    capacity=200,
    fill=20,
    network="mlp",
    hidden_sizes=(32,),
    learner=LearnerSpec(target_period=8),
)
OTHER = dataclasses.replace(SPEC, switching=SwitchingEpsilon(period=10, duration=40), reward_clamp=0.25)
TICK = 10
"""Iterations per tick; one test has a tick that is twice as long."""


def settings(*, lambda_: float = 0.9, kind: str = "retrace", step_size: float = 1e-3) -> Settings:
    trace = TraceByIndex(jnp.int32(MARKOV.index(kind)), jnp.float32(lambda_))
    hyper = Hyper(jnp.float32(0.9), jnp.float32(step_size), jnp.float32(1e-8), trace)
    alone = Settings(hyper, *map(jnp.float32, (1.0, 0.1, 2000, jnp.inf)))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def key(seed: int) -> jax.Array:
    """Return the keys of a population of one."""
    return jax.random.key(seed)[None]


@functools.cache
def program(spec: ProgramSpec = SPEC) -> Program:
    """Return the program of `pocket/catch` with episodes of five steps."""
    return make_program(make("pocket/catch", rows=6, columns=5), spec)


@functools.cache
def compiled(function: Any, spec: ProgramSpec = SPEC, **options: Any) -> Any:
    """Compile a function of `population` for that program."""
    return jax.jit(functools.partial(function, program(spec), **options))


def filled(chosen: Settings, keys: jax.Array, spec: ProgramSpec = SPEC) -> tuple[Member, TickSummary]:
    """Return new members after the steps before their first update."""
    return acted(compiled(population.init, spec)(chosen, keys), chosen, spec)


def acted(members: Member, chosen: Settings, spec: ProgramSpec = SPEC) -> tuple[Member, TickSummary]:
    table = population.empty_table(program(spec), len(members.key), spec.fill, learns=False)
    run = compiled(population.iterate, spec, block=1, learns=False)
    members, table = run(members, chosen, table, 0, spec.fill)
    return members, population.summarize(table)


def learned(members: Member, chosen: Settings, bounds: Sequence[int] = (0, TICK)) -> tuple[Member, TickSummary]:
    """Run a tick in pieces between these bounds, in blocks of one iteration or of ten."""
    block = math.gcd(*bounds, TICK)
    table = population.empty_table(program(), len(members.key), bounds[-1], learns=True)
    for start, until in itertools.pairwise(bounds):
        members, table = compiled(population.iterate, block=block, learns=True)(members, chosen, table, start, until)
    return members, population.summarize(table)


def probed(members: Member, chosen: Settings) -> Probe:
    return compiled(population.probe)(members, chosen, jax.random.key(0))


@functools.cache
def evaluation() -> Any:
    def of(params: Any, keys: jax.Array, max_steps: int) -> tuple[jax.Array, jax.Array]:
        episodes = population.start_episodes(program(), settings(), keys, num_episodes=50)
        episodes = population.play_until(program(), params, settings(), episodes, max_steps, epsilon=0.0)
        return episodes.returns, episodes.done

    return jax.jit(of)


def numbers(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def same(one: object, other: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(numbers(a), numbers(b), equal_nan=True) for a, b in pairs)


def first(tree: Any) -> Any:
    """Return the first member of a population."""
    return jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, tree)


def trained(**changes: Any) -> tuple[Member, TickSummary, Settings]:
    chosen = settings(**changes)
    member, _ = filled(chosen, key(1))
    return (*learned(member, chosen), chosen)


def test_counts() -> None:
    """Eight actors and an update per four steps: two updates per iteration."""
    member, tick, chosen = trained()
    assert int(member.num_steps) == 8 * (SPEC.fill + TICK)
    assert int(member.replay.num_steps) == SPEC.fill + TICK
    assert int(member.learner.num_updates) == 2 * TICK
    probe = probed(member, chosen)
    assert float(probe.epsilon[0]) == pytest.approx(1 - 0.9 * 240 / 2000)
    assert float(probe.step_size[0]) == pytest.approx(1e-3)
    assert int(tick.num_refused[0]) == 0


@pytest.mark.parametrize(("num_actors", "rounds", "updates"), [(1, 4, 1), (2, 2, 1), (4, 1, 1), (16, 1, 4)])
def test_one_update_for_every_four_steps(num_actors: int, rounds: int, updates: int) -> None:
    spec = ProgramSpec(num_actors=num_actors)
    assert (spec.rounds, spec.updates) == (rounds, updates)
    assert spec.rounds * num_actors / spec.updates == 4


def test_the_same_key_gives_the_same_run() -> None:
    one, other = trained(), trained()
    assert same(one[:2], other[:2])


def test_two_ticks_are_one_long_tick() -> None:
    """An exact resume needs this: no state outside of the member. The target network changes on the way."""
    chosen = settings()
    member, _ = filled(chosen, key(1))
    half, before = learned(member, chosen)
    twice, after = learned(half, chosen)
    once, whole = learned(member, chosen, (0, 2 * TICK))
    assert same(twice, once)
    assert (before.num_episodes + after.num_episodes == whole.num_episodes).all()


def test_a_tick_in_pieces_is_the_same_tick() -> None:
    chosen = settings()
    member, _ = filled(chosen, key(1))
    assert same(learned(member, chosen, (0, 1, 1, 4, TICK)), learned(member, chosen))


def test_lambda_zero_is_one_algorithm() -> None:
    """Retrace, TB and Q* at λ = 0, and one-step learning, give the same parameters to the last bit."""
    members = [trained(lambda_=0.0, kind=kind)[0] for kind in ("retrace", "tree_backup", "q_lambda", "one_step")]
    for other in members[1:]:
        assert same(members[0].learner, other.learner)


EACH = ((0.0, "retrace"), (0.9, "retrace"), (1.0, "tree_backup"))
"""λ and trace of the members of a population."""


@functools.cache
def three_members() -> tuple[Settings, jax.Array, tuple[Member, TickSummary]]:
    each = [settings(lambda_=x, kind=kind) for x, kind in EACH]
    together = jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)
    keys = jax.random.split(jax.random.key(5), 3)
    members, _ = filled(together, keys)
    return together, keys, learned(members, together)


def test_a_member_of_a_population_equals_itself_alone() -> None:
    """To the last bit on a CPU, where members run one after the other."""
    _, keys, found = three_members()
    found = jax.tree.map(numbers, found)
    for i, (x, kind) in enumerate(EACH):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1] if leaf.ndim else leaf, found)
        chosen = settings(lambda_=x, kind=kind)
        assert same(mine, learned(filled(chosen, keys[i : i + 1])[0], chosen))


def test_members_side_by_side_agree_with_members_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators batch the members. Batched products add in another order, which changes the rounding, but no
    action so early in a run."""
    together, keys, (in_turn, ticks) = three_members()

    def run(keys: jax.Array, chosen: Settings) -> tuple[Member, Iterations]:
        members = population.init(program(), chosen, keys)
        for learns, until in ((False, SPEC.fill), (True, TICK)):
            table = population.empty_table(program(), len(keys), until, learns=learns)
            members, table = population.iterate(program(), members, chosen, table, 0, until, block=1, learns=learns)
        return members, table

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    side_by_side, table = jax.jit(run)(keys, together)
    ticks_too = population.summarize(table)
    assert np.array_equal(in_turn.replay.records[..., 0], side_by_side.replay.records[..., 0])
    one, other = (jax.tree.leaves(members.learner.params) for members in (in_turn, side_by_side))
    for a, b in zip(one, other, strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-6)
    assert (ticks.total_return == ticks_too.total_return).all()


def test_it_learns_to_catch() -> None:
    """Random play earns about −0.5; the maximum is 1."""
    chosen = settings(lambda_=1.0, step_size=1e-3)
    member, _ = filled(chosen, key(0))
    for _ in range(60):
        member, _ = learned(member, chosen)
    returns, ended = evaluation()(member.learner.params, key(9), 12)
    assert float(returns.mean()) > 0.8
    assert bool(ended.all())


def test_an_evaluation_that_is_cut_short_says_so() -> None:
    params = compiled(population.init)(settings(), key(0)).learner.params
    _, ended = evaluation()(params, key(9), 4)
    assert not bool(ended.any())


def test_the_three_schedules_of_the_paper() -> None:
    """Every actor has its own ε, and the target policy of its windows has the same ε."""
    chosen = settings()
    member, _ = filled(chosen, key(3), OTHER)
    member, _ = acted(member, chosen, OTHER)

    @jax.jit
    def epsilons(member: Member, chosen: Settings) -> tuple[jax.Array, jax.Array]:
        probe = population.probe(program(OTHER), member, chosen, jax.random.key(0))
        return epsilon(program(OTHER), first(member), first(chosen)), probe.epsilon

    each, mean = map(np.asarray, epsilons(member, chosen))
    assert each.shape == (8,)
    assert len(set(each.round(3))) > 2
    assert (np.asarray(member.following.position)[0].sum(-1) == 40).all()
    assert mean == pytest.approx(each.mean())


def test_windows_of_one_step_learn_what_the_learner_would() -> None:
    """DQN with convolutions: the target network sees successors only, and the update is the same."""
    dqn = LearnerSpec(target_policy="greedy", double=False)
    spec = dataclasses.replace(SPEC, window=1, steps_per_update=8, network="auto", learner=dqn)
    prog, chosen = program(spec), settings(kind="one_step")
    member = compiled(population.init, spec)(chosen, key(3))
    member = member._replace(
        replay=filled(chosen, key(3))[0].replay
    )  # of another network, which does not matter here

    @jax.jit
    def both(member: Member, chosen: Settings) -> tuple[Any, Any]:
        one, alone = first(member), first(chosen)
        target = jax.tree.map(lambda leaf: leaf + 0.1, one.learner.params)
        one = one._replace(learner=one.learner._replace(target_params=target))
        found, _ = learn(prog, one, alone)
        seen = replay.sample(one.replay, jax.random.split(one.key, 2)[1], spec.num_windows, 1)
        batch = learner.Batch(*seen[:7], epsilon(prog, one, alone)[seen.actor])
        expected, _ = learner.update(one.learner, batch, alone.hyper, network=prog.network, spec=spec.learner)
        return found.learner.params, expected.params

    found, expected = both(member, chosen)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)
    assert not same(found, member.learner.params)


def test_the_step_size_is_annealed() -> None:
    chosen = settings()._replace(annealing_steps=jnp.array([480.0]))
    member, _ = learned(filled(chosen, key(1))[0], chosen)
    assert float(probed(member, chosen).step_size[0]) == pytest.approx(1e-3 * (1 - 240 / 480))
    ended = chosen._replace(annealing_steps=jnp.array([1.0]))
    after, _ = learned(member, ended)
    assert same(after.learner.params, member.learner.params)  # a step size of 0 changes nothing


def test_off_policyness_grows_with_age() -> None:
    """ε falls while the memory fills, so the behaviour of older rows differs more."""
    chosen = settings()
    chosen = chosen._replace(epsilon_end=jnp.zeros(1), epsilon_steps=jnp.array([1500.0]))
    member, _ = filled(chosen, key(1))
    for _ in range(8):
        member, _ = acted(member, chosen)
    by_age = np.asarray(probed(member, chosen).off_policy_by_age[0])
    assert by_age.shape == (5,)
    assert (np.diff(by_age) > 0).all()


def test_rewards_are_clamped_for_learning_and_reported_raw() -> None:
    member, tick = filled(settings(), key(0), OTHER)
    rewards = jax.lax.bitcast_convert_type(member.replay.records[0, : OTHER.fill, :, 1], jnp.float32)
    assert float(abs(rewards).max()) == 0.25
    assert abs(float(tick.total_return[0])) > 0.25


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
    chosen = settings()
    member, _ = filled(chosen, key(0))  # filling does not depend on the trace
    hyper = Hyper(0.9, 1e-3, 1e-8, ot.RecursiveRetrace(jnp.float32(0.9)), 1.0)
    chosen = chosen._replace(hyper=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], hyper))
    member, tick = learned(member, chosen)
    assert np.isfinite(float(tick.loss[0]))
    assert int(member.learner.num_updates) == 2 * TICK
