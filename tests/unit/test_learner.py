"""The learner's update against the paper's ΔQ written out, for every trace, with clamp, division, masks and ends.

The network is a table: Q(x, ·) is a row of the parameters, so what an update does to them can be written down.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from precision import double_precision

import offtrace as ot
from offtrace.agent import learner
from offtrace.agent.learner import Batch, Hyper, LearnerSpec, TraceByIndex

STATES, ACTIONS, LENGTH, WINDOWS = 11, 3, 9, 5
STEP_SIZE, REGULARISATION, DECAY = 0.1, 1e-3, 0.99


def table(params: jax.Array, obs: jax.Array) -> jax.Array:
    return params[obs]


def batch(seed: int = 0) -> Batch:
    """Windows, some with a termination, some with a truncation and its dummy row."""
    rng = np.random.default_rng(seed)
    shape = (LENGTH, WINDOWS)
    continues, reset, mask = np.ones(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
    continues[3, 0] = False  # terminates; the dummy row, then a new episode
    mask[4, 0], reset[5, 0] = False, True
    mask[6, 1], reset[7, 1] = False, True  # truncated in row 5
    mask[0, 2], reset[1, 2] = False, True  # starts with a dummy row
    mask[8, 3] = False  # and ends with one
    mu_a = rng.uniform(0.1, 1, shape)
    return Batch(
        obs=jnp.asarray(rng.integers(STATES, size=(LENGTH + 1, WINDOWS))),
        a=jnp.asarray(rng.integers(ACTIONS, size=shape)),
        r=jnp.asarray(rng.normal(size=shape)),
        continues=jnp.asarray(continues),
        reset=jnp.asarray(reset),
        mask=jnp.asarray(mask),
        mu_a=jnp.asarray(np.where(mask, mu_a, np.nan)),  # what a dummy row holds is never read
        epsilon=jnp.asarray(rng.uniform(0, 1, WINDOWS)),
    )


def epsilon_greedy(q: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
    pi = np.zeros_like(q) + epsilon[None, :, None] / ACTIONS
    np.put_along_axis(pi, q.argmax(-1)[..., None], 1 - epsilon[None, :, None] * (1 - 1 / ACTIONS), -1)
    return pi


def expected_parameters(
    name: str, lambda_: float, params: np.ndarray, given: Batch, clamp: float | None
) -> np.ndarray:
    """RMSprop's first step along −clamp(ΔQ)/(n·B), summed over the visits of each (x, a)."""
    obs, a, mask = (np.asarray(x) for x in (given.obs, given.a, given.mask))
    q = params[obs]
    arguments = {
        "q": q,
        "pi": epsilon_greedy(q, np.asarray(given.epsilon)),
        "a": a,
        "r": np.asarray(given.r),
        "discount": 0.9 * np.asarray(given.continues),
        "mu_a": np.where(mask, np.asarray(given.mu_a), 0.5),
        "reset": np.asarray(given.reset),
        "mask": mask,
    }
    target, _ = oracle.targets(name, lambda_, arguments)
    gradient = np.zeros_like(params)
    for t, b in np.ndindex(a.shape):
        if mask[t, b]:
            delta = target[t, b] - q[t, b, a[t, b]]
            delta = delta if clamp is None else min(max(delta, -clamp), clamp)
            gradient[obs[t, b], a[t, b]] -= delta / (LENGTH * WINDOWS)
    return params - STEP_SIZE * gradient / np.sqrt((1 - DECAY) * gradient**2 + REGULARISATION)


@functools.partial(jax.jit, static_argnums=3)
def updates(traces: dict, given: Batch, params: np.ndarray, spec: LearnerSpec) -> dict:
    """One update with each trace. Compiling them together takes a third of the time."""
    found = {}
    for name, trace in traces.items():
        hyper = Hyper(gamma=0.9, step_size=STEP_SIZE, regularisation=REGULARISATION, trace=trace)
        state = learner.init(jnp.asarray(params), spec, hyper)
        state, progress = learner.update(state, given, hyper, network=table, spec=spec)
        found[name] = state.params, progress
    return found


def updated(traces: dict, given: Batch, spec: LearnerSpec, params: np.ndarray) -> dict[str, np.ndarray]:
    found = updates(traces, given, params, spec)
    for _, progress in found.values():
        assert np.isfinite(progress.loss)
        assert not progress.refused
    return {name: np.asarray(params) for name, (params, _) in found.items()}


@pytest.fixture(autouse=True)
def _float64():
    with double_precision():
        yield


@pytest.mark.parametrize("clamp", [None, 0.5])
def test_the_update_is_the_papers(clamp: float | None) -> None:
    """Each trace as itself, and by its index, as in a population."""
    params = np.random.default_rng(1).normal(size=(STATES, ACTIONS))
    given, spec = batch(), LearnerSpec(optimiser="rmsprop", clamp=clamp)
    traces = {name: ot.as_trace(name) if name == "one_step" else ot.as_trace(name, lambda_=0.8) for name in ot.TRACES}
    found = updated(traces, given, spec, params)
    for name in ot.TRACES:
        expected = expected_parameters(name, 0.8, params, given, clamp)
        assert found[name] == pytest.approx(expected, abs=1e-12), name
        if name in learner.MARKOV:
            choice = TraceByIndex(learner.MARKOV.index(name), 0.8)
            assert updated({"": choice}, given, spec, params)[""] == pytest.approx(expected, abs=1e-12), name


def test_lambda_zero_is_one_algorithm_to_the_last_bit() -> None:
    """Each compiled separately: in one program XLA could merge equal computations."""
    params, given = np.random.default_rng(2).normal(size=(STATES, ACTIONS)), batch(2)
    traces = (ot.Retrace(0.0), ot.TreeBackup(0.0), ot.QLambda(0.0))
    found = [updated({"": trace}, given, LearnerSpec(), params)[""] for trace in traces]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_dqn_is_windows_of_one_step_and_a_greedy_target() -> None:
    """−clamp(r + γ max Q⁻(x′) − Q(x, a)), by hand."""
    rng = np.random.default_rng(3)
    params, old = rng.normal(size=(2, STATES, ACTIONS))
    given = batch(3)
    given = Batch(given.obs[:2], *(x[:1] for x in given[1:7]), given.epsilon)
    spec = LearnerSpec(optimiser="rmsprop", target_policy="greedy", double=False)
    hyper = Hyper(0.9, STEP_SIZE, REGULARISATION, ot.OneStep())
    state = learner.init(jnp.asarray(params), spec, hyper)._replace(target_params=jnp.asarray(old))
    state, _ = learner.update(state, given, hyper, network=table, spec=spec)
    gradient = np.zeros_like(params)
    for b in range(WINDOWS):
        if given.mask[0, b]:
            x, y, a = int(given.obs[0, b]), int(given.obs[1, b]), int(given.a[0, b])
            delta = given.r[0, b] + 0.9 * given.continues[0, b] * old[y].max() - params[x, a]
            gradient[x, a] -= float(np.clip(delta, -1, 1)) / WINDOWS
    expected = params - STEP_SIZE * gradient / np.sqrt((1 - DECAY) * gradient**2 + REGULARISATION)
    assert np.asarray(state.params) == pytest.approx(expected, abs=1e-12)


def test_double_takes_the_policy_from_the_online_network() -> None:
    """The online network prefers action 0, the target network action 1: double Q-learning takes the target network's
    value of action 0."""
    online, old = np.array([[1.0, 0.0]]), np.array([[5.0, 7.0]])
    given = Batch(
        obs=jnp.zeros((2, 1), int),
        a=jnp.zeros((1, 1), int),
        r=jnp.zeros((1, 1)),
        continues=jnp.ones((1, 1), bool),
        reset=jnp.zeros((1, 1), bool),
        mask=jnp.ones((1, 1), bool),
        mu_a=jnp.ones((1, 1)),
        epsilon=jnp.zeros(1),
    )
    hyper = Hyper(0.5, STEP_SIZE, REGULARISATION, ot.OneStep())
    for double, value in ((True, 5.0), (False, 7.0)):
        spec = LearnerSpec(target_policy="greedy", double=double, clamp=None)
        state = learner.init(jnp.asarray(online), spec, hyper)._replace(target_params=jnp.asarray(old))
        _, progress = learner.update(state, given, hyper, network=table, spec=spec)
        assert float(progress.loss) == pytest.approx(abs(0.5 * value - 1.0))


def test_the_target_network_follows_in_steps() -> None:
    params, given = np.random.default_rng(4).normal(size=(STATES, ACTIONS)), batch(4)
    spec, hyper = LearnerSpec(target_period=3), Hyper(0.9, STEP_SIZE, REGULARISATION, ot.Retrace(1.0))
    state = learner.init(jnp.asarray(params), spec, hyper)
    for k in range(1, 7):
        state, _ = learner.update(state, given, hyper, network=table, spec=spec)
        assert bool((state.target_params == state.params).all()) == (k % 3 == 0)
        if k < 3:
            assert (np.asarray(state.target_params) == params).all()


def test_a_member_of_a_population_equals_itself_alone() -> None:
    """Five traces and λs under one `vmap`, three updates. Tables add in the same order, so to the last bit."""
    rng = np.random.default_rng(5)
    params, given, spec = rng.normal(size=(5, STATES, ACTIONS)), batch(5), LearnerSpec()
    kinds = jnp.array(
        [learner.MARKOV.index(n) for n in ("retrace", "tree_backup", "q_lambda", "watkins", "one_step")]
    )
    hypers = Hyper(
        jnp.full(5, 0.9),
        jnp.linspace(0.01, 0.2, 5),
        jnp.full(5, 1e-3),
        TraceByIndex(kinds, jnp.linspace(0.1, 1, 5)),
        jnp.ones(5),
    )

    def run(values: jax.Array, hyper: Hyper) -> jax.Array:
        state = learner.init(values, spec, hyper)
        for _ in range(3):
            state, _ = learner.update(state, given, hyper, network=table, spec=spec)
        return state.params

    together = jax.vmap(run)(jnp.asarray(params), hypers)
    for i in range(5):
        alone = run(jnp.asarray(params[i]), jax.tree.map(lambda leaf, i=i: leaf[i], hypers))
        assert np.asarray(together[i]) == pytest.approx(np.asarray(alone), abs=1e-15)


def test_metrics_by_hand() -> None:
    """Two windows of three rows, Q(λ) at ½: c = ½ on rows 1 and 2, reach 1 + ½ + ¼; a reset in the second cuts it."""
    obs = jnp.zeros((4, 2), int)
    reset = jnp.array([[False, False], [False, True], [False, False]])
    given = Batch(
        obs,
        jnp.zeros((3, 2), int),
        jnp.ones((3, 2)),
        jnp.ones((3, 2), bool),
        reset,
        jnp.ones((3, 2), bool),
        jnp.full((3, 2), 0.5),
        jnp.ones(2),
    )
    hyper = Hyper(0.0, STEP_SIZE, REGULARISATION, ot.QLambda(0.5))
    state = learner.init(jnp.zeros((1, 2)), LearnerSpec(), hyper)
    compiled = jax.jit(learner.metrics, static_argnames=("network", "spec"))
    metrics, away = compiled(state, given, hyper, network=table, spec=LearnerSpec())
    assert (np.asarray(away) == 0).all()
    assert float(metrics.c) == 0.5
    assert float(metrics.effective_length) == pytest.approx(((1 + 0.5 + 0.25) + 1) / 2)
    assert float(metrics.off_policy) == 0.0  # π is uniform over two actions at ε = 1, and so was μ
    assert float(metrics.cut) == 0.0
    assert (float(metrics.q), float(metrics.largest_q)) == (0.0, 0.0)
    _, progress = learner.update(state, given, hyper, network=table, spec=LearnerSpec())
    assert float(progress.loss) == 1.0


def test_the_effective_length_ends_with_a_life() -> None:
    """Q(λ) at 1 over 16 rows: a life that is lost in row 3 lets four TD errors through, not 16. A window that begins
    on a dummy row has no first step whose target they could reach, and does not count.
    """
    shape = (16, 2)
    continues, reset, mask = np.ones(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
    continues[3, 0] = False  # γ is 0 there, and the episode goes on
    mask[0, 1], reset[1, 1] = False, True
    given = Batch(
        jnp.zeros((17, 2), int),
        jnp.zeros(shape, int),
        jnp.ones(shape),
        jnp.asarray(continues),
        jnp.asarray(reset),
        jnp.asarray(mask),
        jnp.full(shape, 0.5),
        jnp.ones(2),
    )
    hyper = Hyper(0.9, STEP_SIZE, REGULARISATION, ot.QLambda(1.0))
    state = learner.init(jnp.zeros((1, 2)), LearnerSpec(), hyper)
    metrics, _ = learner.metrics(state, given, hyper, network=table, spec=LearnerSpec())
    assert float(metrics.effective_length) == 4.0


def test_the_gradient_is_reported_before_it_is_scaled_down() -> None:
    """As documented in `UpdateRecord` and `TickRecord`."""
    hyper = Hyper(0.9, STEP_SIZE, REGULARISATION, ot.Retrace(1.0))
    params = jnp.asarray(np.random.default_rng(0).normal(size=(STATES, ACTIONS)))
    norms = []
    for most in (None, 1e-6):
        spec = LearnerSpec(max_gradient=most)
        state = learner.init(params, spec, hyper)
        norms.append(float(learner.update(state, batch(), hyper, network=table, spec=spec)[1].gradient))
    assert norms[0] == norms[1] > 1e-3


@pytest.mark.parametrize("bad", ["params", "target_params"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_applied(bad: str, value: float) -> None:
    """Also where the clamp would have hidden an infinite correction."""
    given, spec = batch(6), LearnerSpec(target_period=1000)
    hyper = Hyper(0.9, STEP_SIZE, REGULARISATION, ot.Retrace(1.0))
    state = learner.init(jnp.zeros((STATES, ACTIONS)), spec, hyper)
    state = state._replace(**{bad: getattr(state, bad).at[:].set(value)})
    after, progress = learner.update(state, given, hyper, network=table, spec=spec)
    assert bool(progress.refused)
    for one, other in zip(jax.tree.leaves(state[:3]), jax.tree.leaves(after[:3]), strict=True):
        assert np.array_equal(np.asarray(one), np.asarray(other), equal_nan=True)


def test_the_target_network_is_renewed_when_a_period_ends_among_several_updates() -> None:
    spec, hyper = LearnerSpec(target_period=10), Hyper(0.9, STEP_SIZE, REGULARISATION, ot.Retrace(1.0))
    state = learner.init(jnp.ones((1, 2)), spec, hyper)._replace(target_params=jnp.zeros((1, 2)))
    renewed = [
        bool((learner.refresh_target(state._replace(num_updates=jnp.int32(k)), spec, 4).target_params == 1).all())
        for k in range(4, 24)
    ]
    assert [k for k, yes in zip(range(4, 24), renewed, strict=True) if yes] == [10, 11, 12, 13, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"target_policy": "best"}, "`target_policy` must be one of exploration, greedy, softmax; got 'best'"),
        ({"optimiser": "sgd"}, "`optimiser` must be one of adam, rmsprop; got 'sgd'"),
        ({"target_period": 0}, "`target_period` must be at least 1 update; got 0"),
    ],
)
def test_wrong_specs_are_refused(change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LearnerSpec(**change)
