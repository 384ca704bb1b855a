"""Finite MDPs as environments: transitions, exact returns, and shared programs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from offtrace import mdp as mdps
from offtrace.agent.settings import check_shapes
from offtrace.agent.spec import TrainSpec, resolved
from offtrace.agent.training import train
from offtrace.environments import make, program_shape
from offtrace.environments.mdp import MDPEnvironment, from_mdp, register
from offtrace.environments.rows import advance, begin
from offtrace.experiments import exact
from offtrace.experiments.populations import populations
from offtrace.mdp import SMALL_WORLD, FiniteMDP

SHORT = {
    "num_steps": 400,
    "num_actors": 4,
    "fill": 80,
    "replay_size": 400,
    "hidden_sizes": (8,),
    "window": 4,
    "tick_steps": 160,
    "target_period": 20,
    "evaluation_ticks": 1,
}


def odd() -> FiniteMDP:
    """Two states and actions; a transition of (0, 1) ends with probability ¼, and pays 2 either way."""
    p = [[[0.2, 0.8], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]]
    r = [[[1.0, -1.0], [0.0, 2.0]], [[0.5, 0.0], [3.0, 0.0]]]
    ends = [[[0.0, 0.0], [0.0, 0.25]], [[0.0, 0.0], [1.0, 0.0]]]
    return FiniteMDP(p=p, r=r, gamma=0.9, terminates=ends, start=[0.25, 0.75])


def by_hand(mdp: FiniteMDP, policy: np.ndarray, num_steps: int) -> float:
    """The expected return of an episode, by recursion over its steps, with nothing but loops."""
    dense: dict[tuple[int, int], list[tuple[float, int, float, float]]] = {}
    ends = np.zeros(len(mdp.probability)) if mdp.ends is None else mdp.ends
    for i, row in enumerate(mdp.rows):
        x, a = divmod(int(row), mdp.num_actions)
        reward = mdp.r[x, a] if mdp.reward is None else mdp.reward[i]
        dense.setdefault((x, a), []).append((mdp.probability[i], int(mdp.successor[i]), reward, ends[i]))
    value = [0.0] * mdp.num_states
    for _ in range(num_steps):
        value = [
            sum(
                policy[x, a] * p * (reward + (1 - end) * value[y])
                for a in range(mdp.num_actions)
                for p, y, reward, end in dense[x, a]
            )
            for x in range(mdp.num_states)
        ]
    return float(np.dot(value, mdp.start))


def padded(env: MDPEnvironment, policy: np.ndarray) -> np.ndarray:
    rest = np.full((env.num_states - len(policy), env.num_actions), 1 / env.num_actions)
    return np.concatenate([policy, rest])


# -- what is drawn -------------------------------------------------------------------------------------------


def test_steps_have_the_probabilities_of_the_mdp() -> None:
    """Over 20,000 draws of every pair, within 5 standard errors: successor, reward and end together."""
    mdp, num = odd(), 20_000
    env = from_mdp(mdp)
    step = jax.jit(jax.vmap(env.step, in_axes=(None, None, 0)))
    for x in range(2):
        for a in range(2):
            state = env.reset(jax.random.key(0))[0]._replace(x=jnp.int32(x))
            found = step(state, jnp.int32(a), jax.random.split(jax.random.key(7 + 2 * x + a), num))
            for i in range(mdp.first[2 * x + a], mdp.first[2 * x + a + 1]):
                for ending, share in ((True, mdp.ends[i]), (False, 1 - mdp.ends[i])):
                    chance = mdp.probability[i] * share
                    hit = (found.state.x == mdp.successor[i]) & (found.terminated == ending)
                    hit &= found.reward == np.float32(mdp.reward[i])
                    error = np.sqrt(max(chance * (1 - chance), 1e-12) / num)
                    assert abs(float(hit.mean()) - chance) <= 5 * error, (x, a, i, ending)


def test_first_states_are_drawn_from_the_start() -> None:
    states, _ = jax.vmap(from_mdp(odd()).reset)(jax.random.split(jax.random.key(1), 20_000))
    assert abs(float((states.x == 1).mean()) - 0.75) <= 5 * np.sqrt(0.75 * 0.25 / 20_000)


def test_a_time_limit_truncates() -> None:
    """A chain whose walls are never left: no end but the limit, which keeps the value of the last state."""
    walls = FiniteMDP(p=np.ones((1, 1, 1)), r=[[1.0]], gamma=0.9)
    env = from_mdp(walls, time_limit=3)
    actor = begin(env, jax.random.key(0))
    kinds = []
    for _ in range(5):
        actor, row, ended = advance(env, actor, jnp.int32(0))
        kinds.append((bool(row.mask), bool(row.continues), bool(ended.ended)))
    dummy = (False, True, False)
    assert kinds == [(True, True, False), (True, True, False), (True, True, True), dummy, (True, True, False)]


def test_what_is_seen() -> None:
    env = make("mdp/fork")
    assert env.observation.shape == (64,)
    state, seen = env.reset(jax.random.key(0))
    assert np.flatnonzero(seen).tolist() == [int(state.x)]
    features = make("mdp/fork", observation="features", num_features=6)
    assert features.observation.shape == (6,)
    assert len(np.unique(features.world.observation[:45], axis=0)) == 45


# -- what is exact -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SMALL_WORLD, "odd"])
def test_exact_returns(name: str) -> None:
    """The environment's tables, the scale's arrays and plain loops agree; float32 in the first."""
    mdp = odd() if name == "odd" else SMALL_WORLD[name]()
    policy = np.random.default_rng(3).dirichlet(np.ones(mdp.num_actions), mdp.num_states)
    truth = by_hand(mdp, policy, 40)
    env = from_mdp(mdp, time_limit=40)
    assert float(env.exact_return(padded(env, policy))) == pytest.approx(truth, abs=2e-5)
    assert exact.returns_of(mdp, policy[None], 40)[0] == pytest.approx(truth, abs=1e-12)


def test_exact_returns_are_those_of_episodes() -> None:
    """20,000 episodes of random play on the fork: their mean is the exact one, within 5 standard errors."""
    env = make("mdp/fork")

    def episode(key: jax.Array) -> jax.Array:
        def one(carry: tuple, key: jax.Array) -> tuple:
            state, over, total = carry
            for_action, for_step = jax.random.split(key)
            step = env.step(state, jax.random.randint(for_action, (), 0, 4), for_step)
            return (
                step.state,
                over | step.terminated | step.truncated,
                total + jnp.where(over, 0, step.reward),
            ), None

        start, run = jax.random.split(key)
        state, _ = env.reset(start)
        (_, _, total), _ = jax.lax.scan(one, (state, jnp.bool_(False), 0.0), jax.random.split(run, 100))
        return total

    returns = np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(5), 20_000)))
    random, _ = exact.anchors("mdp/fork", {})
    assert abs(returns.mean() - random) <= 5 * returns.std() / np.sqrt(len(returns))


def test_the_optimal_policy_is_at_the_top_of_the_scale() -> None:
    """No deterministic policy that differs from it in one state does better, discounted as it is optimal."""
    for name, make_mdp in SMALL_WORLD.items():
        random, optimal = exact.anchors(f"mdp/{name}", {})
        low, high = exact.discounted_anchors(make_mdp())
        assert random < optimal
        assert low < high
    assert exact.anchors("pocket/catch", {}) is None
    assert exact.anchors("mdp/mine", {}) is None


def test_the_small_world_keeps_its_rules() -> None:
    """The properties of `small_world`: sizes, and a reward that random play finds in 5 % of the episodes."""
    for name, make_mdp in SMALL_WORLD.items():
        mdp = make_mdp()
        assert mdp.num_actions == 4
        assert mdp.num_states <= 64
        paid = FiniteMDP.from_transitions(
            probability=mdp.probability,
            successor=mdp.successor,
            first=mdp.first,
            num_actions=4,
            r=(mdp.reward > 0).astype(float),
            ends=mdp.ends,
            gamma=mdp.gamma,
            start=mdp.start,
        )
        assert exact.returns_of(paid, np.full((1, *mdp.shape), 0.25), 100)[0] >= 0.05, name
    shapes = {program_shape(f"mdp/{name}", {}) for name in SMALL_WORLD}
    assert len(shapes) == 1


# -- training ------------------------------------------------------------------------------------------------


def test_mdps_of_one_shape_train_together_as_they_would_alone() -> None:
    specs = [
        TrainSpec(env="mdp/fork", trace="retrace", seed=1, **SHORT),
        TrainSpec(env="mdp/field", trace="retrace", seed=1, lambda_=0.5, **SHORT),
    ]
    assert len(populations([resolved(spec) for spec in specs], 10)) == 1
    together = train(specs)
    for spec, result in zip(specs, together, strict=True):
        alone = train(spec)
        assert alone.returns == result.returns
        assert [repr(each) for each in alone.history] == [repr(each) for each in result.history]
    assert together[0].history[-1].episode_return != together[1].history[-1].episode_return


def test_evaluations_are_exact() -> None:
    """One number, the same however many episodes were asked for, and it is the greedy policy's."""
    few, many = (train(TrainSpec(env="mdp/lure", evaluation_episodes=n, **SHORT)) for n in (1, 50))
    assert len(few.returns) == 1
    assert few.returns == many.returns
    assert few.history[-1].evaluation is None  # that of the last tick is the result's
    assert few.history[1].evaluation is not None


def test_shapes_that_differ_are_refused() -> None:
    specs = [resolved(TrainSpec(env=f"mdp/{name}", **SHORT)) for name in ("fork", "chain")]
    with pytest.raises(ValueError, match="`env` must be the same for all members"):
        check_shapes(specs)
    assert len(populations(specs, 10)) == 2


def test_gamma_is_that_of_the_mdp() -> None:
    assert resolved(TrainSpec(env="mdp/fork")).gamma == 0.97
    assert resolved(TrainSpec(env="mdp/fork", options={"gamma": 0.5})).gamma == 0.5
    assert resolved(TrainSpec(env="mdp/fork", gamma=0.8)).gamma == 0.8


def test_a_target_policy_with_its_own_epsilon() -> None:
    """ε of the behaviour as that of the target changes nothing; 0 is a greedy target."""
    common = {**SHORT, "env": "mdp/fork", "epsilon": 0.5, "epsilon_steps": 1, "evaluation_ticks": 0}
    plain = train(TrainSpec(**common))
    same = train(TrainSpec(**common, target_epsilon=0.5))
    zero = train(TrainSpec(**common, target_epsilon=0.0))
    greedy = train(TrainSpec(**common, target_policy="greedy"))
    assert repr(plain.history[-1]) == repr(same.history[-1])
    assert repr(zero.history[-1]) == repr(greedy.history[-1])
    assert plain.history[-1].c != zero.history[-1].c
    assert zero.history[-1].off_policy > plain.history[-1].off_policy


# -- names and options ---------------------------------------------------------------------------------------


def test_your_own_mdp() -> None:
    register("odd_one", odd)
    assert make("mdp/odd_one").num_actions == 2
    assert len(train(TrainSpec(env="mdp/odd_one", **SHORT)).returns) == 1
    with pytest.raises(ValueError, match="must not be that of a built-in MDP"):
        register("fork", odd)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("mdp/nowhere", {}, "`name` must be an MDP: mdp/baird_star"),
        ("mdp/fork", {"height": 3}, "unknown option 'height' of mdp/fork; valid options: gamma, slip"),
        ("mdp/fork", {"time_limit": 0}, "`time_limit` must be a whole number of at least 1 and under 2³¹; got 0"),
        ("mdp/fork", {"observation": "pixels"}, "`observation` must be one of one_hot, features"),
        ("mdp/fork", {"gamma": 2.0}, "`gamma` must be in"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make(name, **options)


def test_what_an_environment_cannot_hold_is_refused() -> None:
    huge = FiniteMDP(p=[[[1.0]]], r=[[1e300]], gamma=0.9)
    with pytest.raises(ValueError, match=r"rewards that float32 can hold.*got 1e\+300"):
        from_mdp(huge)
    with pytest.raises(ValueError, match="`observation` must have at most"):
        from_mdp(odd(), observation="features", num_features=2**30)


def test_every_mdp_of_the_library_is_an_environment() -> None:
    for name in mdps.MDPS:
        if name == "icu_sepsis":
            pytest.importorskip("icu_sepsis")
        env = make(f"mdp/{name}")
        state, seen = env.reset(jax.random.key(0))
        assert seen.shape == env.observation.shape
        assert int(state.x) < env.mdp.num_states


def test_options_are_data() -> None:
    """Options survive JSON."""
    options = json.loads(json.dumps({"slip": 0.0, "time_limit": 50}))
    assert int(make("mdp/field", **options).world.time_limit) == 50
