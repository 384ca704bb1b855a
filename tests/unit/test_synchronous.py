"""Environment, replay and learner as one program: counts, determinism, populations, and that it learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import offtrace as ot
from offtrace.agent import learner, replay, synchronous
from offtrace.agent.learner import MARKOV, Choice, Hyper, LearnerSpec
from offtrace.agent.schedules import SwitchingEpsilon
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
    alone = Settings(hyper, Exploration(jnp.float32(1.0), jnp.float32(0.1), jnp.float32(2000)), jnp.float32(jnp.inf))
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], alone)


def key(seed: int) -> jax.Array:
    """Of a population of one."""
    return jax.random.key(seed)[None]


@functools.cache
def compiled(spec: ProgramSpec, num_iterations: int, learns: bool, name: str = "pocket/catch"):
    prog = synchronous.program(make(name), spec)
    start = jax.jit(lambda s, keys: synchronous.init(prog, s, keys))
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
    member, _ = fill(start(chosen, key(1)), chosen)
    return (*run(member, chosen), chosen)


def test_counts() -> None:
    """Eight actors, an update for every four of their steps: two updates an iteration."""
    member, tick, chosen = trained()
    assert int(member.num_steps) == 8 * (SPEC.fill + 30)
    assert int(member.replay.num_steps) == SPEC.fill + 30
    assert int(member.learner.num_updates) == 2 * 30
    prog, _, _ = compiled(SPEC, 30, True)
    probe = synchronous.probe(prog, member, chosen, jax.random.key(0))
    assert float(probe.epsilon[0]) == pytest.approx(1 - 0.9 * 400 / 2000)
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
    """Which is what an exact resume needs: nothing lives outside of the member."""
    _, start, fill = compiled(SPEC, SPEC.fill, False)
    _, _, short = compiled(SPEC, 15, True)
    _, _, long = compiled(SPEC, 30, True)
    chosen = settings()
    member, _ = fill(start(chosen, key(1)), chosen)
    half, first = short(member, chosen)
    twice, second = short(half, chosen)
    once, whole = long(member, chosen)
    assert same(twice, once)
    assert (first.num_episodes + second.num_episodes == whole.num_episodes).all()


def test_lambda_zero_is_one_algorithm() -> None:
    """Retrace, TB and Q* at λ = 0, and one-step: the same parameters to the last bit."""
    members = [trained(lambda_=0.0, kind=kind)[0] for kind in ("retrace", "tree_backup", "q_lambda", "one_step")]
    for other in members[1:]:
        assert same(members[0].learner, other.learner)


def test_a_member_of_a_population_equals_itself_alone() -> None:
    """On a CPU to the last bit, as members run one after the other."""
    prog, _, _ = compiled(SPEC, SPEC.fill, False)
    each = [settings(lambda_=x, kind=kind) for x, kind in ((0.0, "retrace"), (0.9, "retrace"), (1.0, "tree_backup"))]
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each)
    keys = jax.random.split(jax.random.key(5), 3)

    def run(keys: jax.Array, chosen: Settings):
        members = synchronous.init(prog, chosen, keys)
        members, _ = synchronous.tick(prog, members, chosen, SPEC.fill, learns=False)
        return synchronous.tick(prog, members, chosen, 10, learns=True)

    population = jax.jit(run)(keys, together)
    alone = jax.jit(run)
    for i, chosen in enumerate(each):
        mine = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1] if leaf.ndim else leaf, population)
        assert same(mine, alone(keys[i : i + 1], chosen))


def test_members_side_by_side_agree_with_members_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an accelerator runs. Batched products may add in another order: float32 rounding, and no action decided
    by it so early."""
    prog, _, _ = compiled(SPEC, SPEC.fill, False)
    each = [settings(lambda_=x, kind=kind) for x, kind in ((0.0, "retrace"), (1.0, "tree_backup"))]
    together = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each)
    keys = jax.random.split(jax.random.key(5), 2)

    def run(keys: jax.Array, chosen: Settings):
        members = synchronous.init(prog, chosen, keys)
        members, _ = synchronous.tick(prog, members, chosen, SPEC.fill, learns=False)
        return synchronous.tick(prog, members, chosen, 10, learns=True)

    in_turn, ticks = jax.jit(run)(keys, together)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    side_by_side, ticks_too = jax.jit(lambda *given: run(*given))(keys, together)
    assert np.array_equal(in_turn.replay.records[..., 0], side_by_side.replay.records[..., 0])
    one, other = (jax.tree.leaves(members.learner.params) for members in (in_turn, side_by_side))
    for a, b in zip(one, other, strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=2e-6)
    assert (ticks.total_return == ticks_too.total_return).all()


def test_it_learns_to_catch() -> None:
    """Random play earns −0.8 or so; the best is 1."""
    spec = ProgramSpec(num_actors=16, window=8, num_windows=8, capacity=1000, fill=20, hidden_sizes=(64,))
    prog, start, fill = compiled(spec, spec.fill, False)
    _, _, run = compiled(spec, 700, True)
    chosen = settings(lambda_=1.0, step_size=1e-3)
    member, _ = fill(start(chosen, key(0)), chosen)
    member, _ = run(member, chosen)
    returns, ended = synchronous.evaluate(prog, member.learner.params, key(9), num_episodes=100, max_steps=12)
    assert float(returns.mean()) > 0.5
    assert bool(ended.all())


def test_an_evaluation_that_is_cut_short_says_so() -> None:
    prog, start, _ = compiled(SPEC, SPEC.fill, False)
    params = start(settings(), key(0)).learner.params
    _, ended = synchronous.evaluate(prog, params, key(9), num_episodes=10, max_steps=5)
    assert not bool(ended.any())


def test_the_three_schedules_of_the_paper() -> None:
    """Every actor has its own ε, and its windows are learned towards the policy with that ε."""
    switching = SwitchingEpsilon(period=10, duration=40)
    spec = ProgramSpec(**{**SPEC.__dict__, "switching": switching})
    prog, start, fill = compiled(spec, 40, False)
    chosen = settings()
    member, _ = fill(start(chosen, key(3)), chosen)
    one = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, member)
    each = np.asarray(synchronous.epsilon(prog, one, settings()))
    assert each.shape == (8,)
    assert len(set(each.round(3))) > 2
    assert (one.following.position.sum(-1) == 40).all()
    probe = synchronous.probe(prog, member, chosen, jax.random.key(0))
    assert float(probe.epsilon[0]) == pytest.approx(each.mean())


def test_windows_of_one_step_learn_what_the_learner_would() -> None:
    """DQN: the target network looks at successors only, and the update is the same."""
    spec = ProgramSpec(
        **{
            **SPEC.__dict__,
            "window": 1,
            "steps_per_update": 8,
            "learner": LearnerSpec(target_policy="greedy", double=False),
        }
    )
    prog, start, fill = compiled(spec, spec.fill, False)
    chosen = settings(kind="one_step")
    member, _ = fill(start(chosen, key(3)), chosen)
    one, alone = (jax.tree.map(lambda leaf: leaf[0] if leaf.ndim else leaf, tree) for tree in (member, chosen))
    target = jax.tree.map(lambda leaf: leaf + 0.1, one.learner.params)
    one = one._replace(learner=one.learner._replace(target_params=target))
    found, _ = synchronous.learn(prog, one, alone)
    seen = replay.sample(one.replay, jax.random.split(one.key, 2)[1], spec.num_windows, 1)
    batch = learner.Batch(*seen[:7], synchronous.epsilon(prog, one, alone)[seen.actor])
    expected, _ = learner.update(one.learner, batch, alone.hyper, network=prog.network, spec=spec.learner)
    pairs = zip(jax.tree.leaves(found.learner.params), jax.tree.leaves(expected.params), strict=True)
    for a, b in pairs:
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-6)


def test_the_step_size_is_annealed() -> None:
    _, start, fill = compiled(SPEC, SPEC.fill, False)
    prog, _, run = compiled(SPEC, 30, True)
    chosen = settings()._replace(annealing=jnp.array([800.0]))
    member, _ = run(fill(start(chosen, key(1)), chosen)[0], chosen)
    probe = synchronous.probe(prog, member, chosen, jax.random.key(0))
    assert float(probe.step_size[0]) == pytest.approx(1e-3 * (1 - 400 / 800))
    ended = chosen._replace(annealing=jnp.array([1.0]))
    after, _ = run(member, ended)
    assert same(after.learner.params, member.learner.params)  # a step size of 0 changes nothing


def test_off_policyness_grows_with_age() -> None:
    """ε falls while the memory fills, so older rows were drawn from another policy."""
    _, start, fill = compiled(SPEC, 190, False)
    prog, _, _ = compiled(SPEC, 30, True)
    chosen = settings()
    chosen = chosen._replace(exploration=Exploration(jnp.ones(1), jnp.zeros(1), jnp.full(1, 1500.0)))
    member, _ = fill(start(chosen, key(1)), chosen)
    by_age = np.asarray(synchronous.probe(prog, member, chosen, jax.random.key(0)).off_policy_by_age[0])
    assert by_age.shape == (5,)
    assert (np.diff(by_age) > 0).all()


def test_rewards_are_clamped_for_learning_and_reported_raw() -> None:
    clamped = ProgramSpec(**{**SPEC.__dict__, "reward_clamp": 0.25})
    _, start, fill = compiled(clamped, 60, False)
    chosen = settings()
    member, tick = fill(start(chosen, key(0)), chosen)
    rewards = jax.lax.bitcast_convert_type(member.replay.records[0, :60, :, 1], jnp.float32)
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
    prog, start, _ = compiled(SPEC, SPEC.fill, False)
    chosen = settings()
    hyper = Hyper(0.9, 1e-3, 1e-8, ot.RecursiveRetrace(jnp.float32(0.9)), 1.0)
    chosen = chosen._replace(hyper=jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], hyper))
    member, _ = jax.jit(lambda m, s: synchronous.tick(prog, m, s, SPEC.fill, learns=False))(
        start(chosen, key(0)), chosen
    )
    member, tick = jax.jit(lambda m, s: synchronous.tick(prog, m, s, 5, learns=True))(member, chosen)
    assert np.isfinite(float(tick.loss[0]))
    assert int(member.learner.num_updates) == 10
