"""The identities of the paper and of its successors, on windows that Hypothesis generates.

The windows hold what real ones do: terminations, resets, padding, actions that π never takes, illegal actions with
−inf or NaN for a value, and garbage in everything that the contract says is never read.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from precision import double_precision

import offtrace as ot
from offtrace.returns import reference

EPS = np.finfo(np.float64).eps
ULPS = 64
"""A term of the double sum passes at most 8 sums, 7 discounts, 7 coefficients of ≤ 4 roundings each (a ratio through
logarithms included) and 5 actions: under 64 roundings of half an ulp each, relative to the sum of absolute terms."""

MARKOV = [cls for cls in ot.TRACES.values() if cls.markov]
TRAJECTORY_AWARE = [cls for cls in ot.TRACES.values() if not cls.markov]
LAMBDAS = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])

few = settings(max_examples=30, deadline=None)


def each(traces: Iterable[type[ot.Trace]]) -> Iterator[type[ot.Trace]]:
    """Return the traces one by one, for the same window: generating it takes longest. A failure names the trace."""
    for cls in traces:
        note(cls.__name__)
        yield cls


# --- windows ------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """The arguments of `targets`, and μ in full."""

    q: np.ndarray
    a: np.ndarray
    r: np.ndarray
    discount: np.ndarray
    pi: np.ndarray
    mu: np.ndarray
    mu_a: np.ndarray
    expected_q: np.ndarray | None
    reset: np.ndarray | None
    mask: np.ndarray | None

    @property
    def real(self) -> np.ndarray:
        return np.ones(self.r.shape, bool) if self.mask is None else self.mask

    @property
    def ends(self) -> dict:
        return {"reset": self.reset, "mask": self.mask}

    @property
    def actions(self) -> np.ndarray:
        """a, with 0 in rows that are no real step."""
        return np.where(self.real, self.a, 0)

    def at_actions(self, values: np.ndarray) -> np.ndarray:
        picked = np.take_along_axis(values[: len(self.r)], self.actions[..., None], -1)[..., 0]
        return np.where(self.real, picked, 1)

    @property
    def pi_a(self) -> np.ndarray:
        """π(a_t|x_t), with 1 in rows that are no real step."""
        return self.at_actions(self.pi)

    @property
    def clean_mu_a(self) -> np.ndarray:
        return np.where(self.real, self.mu_a, 1)

    @property
    def successors(self) -> np.ndarray:
        """E_π Q(x_{t+1}, ·), by the definition."""
        return reference.expectations(self.q, self.pi) if self.expected_q is None else self.expected_q


def integers(low: int, high: int, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.int64, shape, elements=st.integers(low, high))


def booleans(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.bool_, shape, elements=st.booleans())


def normalised(weights: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Distributions over the legal actions; uniform where every weight is 0."""
    weights = weights * legal + (legal & ((weights * legal).sum(-1, keepdims=True) == 0))
    return weights / weights.sum(-1, keepdims=True)


@st.composite
def cases(draw, shape=None, num_actions=None, illegal_actions=True, all_ends=False) -> Case:
    """Valid windows of 0 to 8 steps with up to two batch axes and up to five actions."""
    if shape is None:
        shape = (draw(st.integers(0, 8)), *draw(st.sampled_from([(), (1,), (2,), (2, 1)])))
    n, batch = shape[0], shape[1:]
    num_actions = num_actions or draw(st.integers(1, 5))
    rows = (n + 1, *batch, num_actions)
    q = draw(integers(-40, 40, rows)) / 4
    a = draw(integers(0, num_actions - 1, shape))
    r = draw(integers(-8, 8, shape)) / 4
    discount = draw(hnp.arrays(np.float64, shape, elements=st.sampled_from([0.9, 0.0, 0.5, 1.0])))
    taken = np.zeros(rows, bool)
    np.put_along_axis(taken[:n], a[..., None], True, -1)
    legal = np.ones(rows, bool)
    if illegal_actions and draw(st.booleans()):
        legal = ~draw(booleans(rows)) | taken
        legal[-1, ..., 0] = True
        q = np.where(legal, q, draw(st.sampled_from([-np.inf, np.nan])))
    pi = normalised(draw(integers(0, 4, rows)), legal)
    mu = normalised(draw(integers(0, 4, rows)) + taken, legal)
    mu_a = np.take_along_axis(mu[:n], a[..., None], -1)[..., 0]
    reset = draw(booleans(shape) if all_ends else st.none() | booleans(shape))
    mask = draw(booleans(shape) if all_ends else st.none() | booleans(shape))
    real = np.ones(shape, bool) if mask is None else mask
    expected_q = None
    if draw(st.booleans()):
        expected_q = draw(integers(-40, 40, shape)) / 4
    elif reset is not None:  # q[t+1] is another episode's: only a termination may stand before it
        discount[:-1][(reset & real)[1:] & real[:-1]] = 0
    # Garbage in all that is never read: what padding holds, and states that nobody comes from or acts in
    own = np.concatenate([real, np.zeros((1, *batch), bool)])
    from_before = np.concatenate([np.zeros((1, *batch), bool), real & (discount != 0)])
    unread = ~(own | from_before)
    q[unread] = pi[unread] = mu[unread] = np.nan
    if expected_q is not None:
        expected_q[~real | (discount == 0)] = np.nan
    r[~real] = discount[~real] = np.nan
    mu_a[~real] = 0
    a[~real] = draw(st.sampled_from([-7, 99]))
    return Case(q, a, r, discount, pi, mu, mu_a, expected_q, reset, mask)


ONE_SHAPE = cases(shape=(5, 2), num_actions=3, all_ends=True)
"""For JAX, which compiles once for every shape, and for every argument that is there or not."""


def targets(case: Case, trace: ot.Trace, library: str = "numpy", **changes) -> np.ndarray:
    given_ = {name: value for name, value in (case._asdict() | changes).items() if name != "mu"}
    given_ = {name: value for name, value in given_.items() if value is not None}
    if library == "jax":
        given_ = {name: jnp.asarray(value) for name, value in given_.items()}
    if library == "torch":  # the differentiable path; the other one is NumPy's
        given_ = {name: torch.from_numpy(value) for name, value in given_.items()}
        given_["r"] = given_["r"].clone().requires_grad_()
    out = ot.targets(**given_, trace=trace, stop_gradient=library == "numpy")
    return out.detach().numpy() if library == "torch" else np.asarray(out)


def absolute_terms(case: Case, c: np.ndarray | None = None) -> np.ndarray:
    """The sum of the absolute terms of every target: what rounding is measured against; c is 1 if not given."""
    c = np.ones(case.r.shape) if c is None else c

    def weight(start: int, step: int, b: tuple[int, ...]) -> float:
        return float(np.prod(c[(slice(start + 1, step + 1), *b)]))

    q_a = np.where(case.real, case.at_actions(case.q), 0)
    sums = reference.double_sum(q_a, case.successors, case.r, case.discount, weight, **case.ends)[1]
    return sums + np.abs(q_a)


def assert_same_to_rounding(got, want, case: Case, c: np.ndarray | None = None, eps: float = EPS) -> None:
    assert got.shape == want.shape == case.r.shape
    error = np.abs(got - want)
    limit = ULPS * eps * absolute_terms(case, c)
    assert (error <= limit).all(), f"off by {error.max()}; {got} is not {want}"  # a NaN fails, too


def coefficients(case: Case, trace: ot.Trace) -> np.ndarray:
    """c of a Markov trace, with 1 for π and μ in padding."""
    unread = np.isnan(case.pi)
    q, pi = np.where(unread, 0, case.q), np.where(unread, 0, case.pi)
    return trace(pi_a=case.pi_a, mu_a=case.clean_mu_a, q=q, pi=pi, a=case.actions)


# --- the order of Table 1 -----------------------------------------------------------------------------------


@few
@given(cases(), LAMBDAS)
def test_tree_backup_cuts_more_than_retrace_and_retrace_more_than_importance_sampling(case, lambda_):
    given_ = {"pi_a": case.pi_a, "mu_a": case.clean_mu_a}
    tree_backup = ot.TreeBackup(lambda_)(**given_)
    retrace = ot.Retrace(lambda_)(**given_)
    importance_sampling = ot.ImportanceSampling(lambda_)(**given_)
    # exactly: μ ≤ 1, and division, min and multiplication are monotone in floating point
    assert (tree_backup <= retrace).all()
    assert (retrace <= importance_sampling).all()
    assert (retrace <= ot.QLambda(lambda_)(**given_)).all()
    assert (retrace <= ot.ContinuousACER(lambda_, num_dims=3)(**given_)).all()


# --- λ = 0 --------------------------------------------------------------------------------------------------


@few
@given(cases())
def test_lambda_zero_is_the_one_step_target(case):
    with np.errstate(invalid="ignore"):  # 0 · NaN in what is not read
        one_step = np.where(case.discount == 0, case.r, case.r + case.discount * case.successors)
    for cls in each(ot.TRACES.values()):
        got = targets(case, cls(0.0))
        assert_same_to_rounding(got, np.where(case.real, one_step, 0), case, c=np.zeros(case.r.shape))
        if cls.markov or case.expected_q is not None:
            # one kernel, which adds nothing where c is 0. A trajectory-aware trace takes E_π Q from a sum over the
            # actions in another order, so without `expected_q` it is the same to rounding only.
            np.testing.assert_array_equal(got, targets(case, ot.OneStep()))


@pytest.mark.parametrize("library", ["jax", "torch"])
@settings(max_examples=6, deadline=None)
@given(ONE_SHAPE)
def test_lambda_zero_is_the_one_step_target_in_every_library(library, case):
    with double_precision():
        one_step = targets(case, ot.OneStep(), library)
        assert_same_to_rounding(one_step, targets(case, ot.OneStep()), case)
        for cls in ot.TRACES.values():
            got = targets(case, cls(0.0), library)
            # trajectory-aware traces round once more in torch; XLA rounds each program in its own way
            if library == "torch" and cls.markov:
                np.testing.assert_array_equal(got, one_step)
            else:
                assert_same_to_rounding(got, one_step, case)


# --- on-policy and greedy -----------------------------------------------------------------------------------


def on_policy(case: Case) -> Case:
    """π := μ, and mu_a to the last bit what π says of the action."""
    return case._replace(pi=case.mu, mu_a=case._replace(pi=case.mu).pi_a)


@few
@given(cases(), LAMBDAS)
def test_on_policy_retrace_is_q_lambda(case, lambda_):
    case = on_policy(case)
    q_lambda = targets(case, ot.QLambda(lambda_))
    # ρ is 1 exactly, so c is λ exactly, in the same kernel: to the last bit
    np.testing.assert_array_equal(targets(case, ot.Retrace(lambda_)), q_lambda)
    np.testing.assert_array_equal(targets(case, ot.ImportanceSampling(lambda_)), q_lambda)
    np.testing.assert_array_equal(targets(case, ot.ContinuousACER(lambda_, num_dims=7)), q_lambda)
    # β_t = λ^t for all three, by the O(n²) double sum: to rounding
    for cls in TRAJECTORY_AWARE:
        assert_same_to_rounding(targets(case, cls(lambda_)), q_lambda, case)


@pytest.mark.parametrize("library", ["jax", "torch"])
@settings(max_examples=10, deadline=None)
@given(ONE_SHAPE, LAMBDAS)
def test_on_policy_retrace_is_q_lambda_in_every_library(library, case, lambda_):
    case = on_policy(case)
    with double_precision():
        q_lambda = targets(case, ot.QLambda(lambda_), library)
        assert_same_to_rounding(q_lambda, targets(case, ot.QLambda(lambda_)), case)
        np.testing.assert_array_equal(targets(case, ot.Retrace(lambda_), library), q_lambda)


def greedy(case: Case) -> Case:
    """π greedy in Q, without ties: Q is a multiple of ¼, so 2^−10 per action tells them apart."""
    q = case.q + np.arange(case.q.shape[-1]) * 2.0**-10
    best = np.where(np.isnan(q), -np.inf, q).argmax(-1)
    pi = np.where(np.isnan(case.pi), np.nan, np.eye(q.shape[-1])[best])
    return case._replace(q=q, pi=pi)


@few
@given(cases(), LAMBDAS)
def test_for_a_greedy_policy_retrace_is_watkins(case, lambda_):
    case = greedy(case)
    # ρ is 0 or 1/μ ≥ 1, so c is 0 or λ exactly, in the same kernel: to the last bit
    np.testing.assert_array_equal(targets(case, ot.Retrace(lambda_)), targets(case, ot.Watkins(lambda_)))
    np.testing.assert_array_equal(targets(case, ot.TreeBackup(lambda_)), targets(case, ot.Watkins(lambda_)))
    # κ = 0 counts the actions that π takes and that are no better: the greedy one, if it was taken
    np.testing.assert_array_equal(
        targets(case, ot.SoftWatkins(lambda_, kappa=0.0)), targets(case, ot.Watkins(lambda_))
    )
    # so for a greedy π it is safe, though its class is not
    c = coefficients(case, ot.Watkins(lambda_))
    assert (c * case.clean_mu_a <= case.pi_a)[case.real].all()


# --- trajectory-aware products, and what is safe ------------------------------------------------------------


@st.composite
def likelihoods(draw) -> dict[str, np.ndarray]:
    """π(a_t|x_t) ∈ [0, 1] and μ(a_t|x_t) ∈ (0, 1] of up to eight steps of two trajectories."""
    shape = (draw(st.integers(1, 8)), 2)
    return {"pi_a": draw(integers(0, 16, shape)) / 16, "mu_a": draw(integers(1, 16, shape)) / 16}


SLACK = 1 + ULPS * EPS
"""Products of at most 7 ratios, each a quotient through logarithms: under 64 roundings."""


@given(likelihoods(), LAMBDAS)
def test_the_product_of_rbis_lies_between_those_of_retrace_and_q_lambda(given_, lambda_):
    rbis = ot.RBIS(lambda_).betas(**given_)
    c = ot.Retrace(lambda_)(**given_)
    c[0] = 1
    assert (rbis * SLACK >= np.cumprod(c, axis=0)).all()
    powers = np.cumprod(np.where(np.arange(len(rbis)) == 0, 1.0, lambda_))
    assert (rbis <= powers[:, None]).all()  # exactly: min(λ^t, ·) of the same products


@given(likelihoods(), LAMBDAS)
def test_the_product_of_equation_9_is_at_most_lambda_and_at_least_retraces_product(given_, lambda_):
    betas = ot.RecursiveRetrace(lambda_).betas(**given_)
    assert (betas[0] == 1).all()
    assert (betas[1:] <= lambda_).all()  # exactly: λ · min(1, ·)
    c = ot.Retrace(lambda_)(**given_)
    c[0] = 1
    assert (betas * SLACK >= np.cumprod(c, axis=0)).all()


@given(likelihoods())
def test_with_lambda_one_equation_9_and_rbis_are_one(given_):
    np.testing.assert_array_equal(ot.RecursiveRetrace(1.0).betas(**given_), ot.RBIS(1.0).betas(**given_))


@pytest.mark.parametrize("cls", [cls for cls in ot.TRACES.values() if cls.safe and not cls.markov])
@given(given_=likelihoods(), lambda_=LAMBDAS)
def test_a_safe_product_never_grows_by_more_than_the_ratio(cls, given_, lambda_):
    betas = cls(lambda_).betas(**given_)
    ratios = given_["pi_a"] / given_["mu_a"]
    assert (betas >= 0).all()
    assert (betas[1:] <= betas[:-1] * ratios[1:] * SLACK).all()  # c_t = β_t / β_{t−1} ≤ ρ_t


@few
@given(cases(), LAMBDAS, st.sampled_from([0.0, 0.25, 1.0]))
def test_the_coefficient_of_a_safe_trace_lies_between_zero_and_the_ratio(case, lambda_, other):
    for cls in each(cls for cls in MARKOV if cls.safe):
        trace = cls(lambda_, other) if cls is ot.QSigma else cls(lambda_)
        c = coefficients(case, trace)
        assert (c >= 0).all()
        assert (c <= case.pi_a / case.clean_mu_a * SLACK).all()  # σρ + (1−σ)π rounds three times


Q_ROW, PI_ROW = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.25, 0.75], [0.5, 0.5]])
UNSAFE = {
    # the action is taken for sure (μ = 1) where π takes it with ¼: c = 1 > ρ = ¼
    "q_lambda": ot.QLambda(1.0),
    "watkins": ot.Watkins(1.0),  # it is the greedy one
    "soft_watkins": ot.SoftWatkins(1.0),  # it is as good as all that π takes
    "continuous_acer": ot.ContinuousACER(1.0, num_dims=2),  # √¼ = ½
    "truncated_is": ot.TruncatedIS(1.0),  # below
}


def test_every_trace_that_is_not_safe_has_a_witness():
    assert {name for name, cls in ot.TRACES.items() if not cls.safe} == set(UNSAFE)


@pytest.mark.parametrize("name", [name for name, trace in UNSAFE.items() if trace.markov])
def test_the_coefficient_of_an_unsafe_trace_can_exceed_the_ratio(name):
    given_ = {"pi_a": np.array([0.25]), "mu_a": np.array([1.0])}
    c = UNSAFE[name](**given_, q=Q_ROW, pi=PI_ROW, a=np.array([0]))
    assert c[0] > 0.25


def test_the_product_of_truncated_importance_sampling_can_grow_by_more_than_the_ratio():
    # ρ_1 = 4, ρ_2 = ½: β_1 = min(1, 4) = 1 and β_2 = min(1, 2) = 1 > β_1 ρ_2 = ½
    betas = UNSAFE["truncated_is"].betas(pi_a=np.array([1.0, 1.0, 0.25]), mu_a=np.array([1.0, 0.25, 0.5]))
    np.testing.assert_allclose(betas, 1, rtol=8 * EPS)  # ratios through logarithms
    assert betas[2] > betas[1] * 0.5 * 1.5


# --- the expected operator, by enumeration ------------------------------------------------------------------

HORIZON, NUM_STATES, NUM_ACTIONS = 3, 2, 2


class Enumerated(NamedTuple):
    """Every trajectory of three steps from every (x_0, a_0), and its probability given (x_0, a_0) under μ."""

    states: np.ndarray  # (3, trajectories), and x_3 in `last`
    actions: np.ndarray
    last: np.ndarray
    probability: np.ndarray
    start: np.ndarray  # (trajectories,): index of (x_0, a_0)
    p: np.ndarray
    r: np.ndarray
    pi: np.ndarray
    mu: np.ndarray
    gamma: float


@st.composite
def enumerated(draw) -> Enumerated:
    """A random MDP; π may have zeros, μ only where π has them (coverage)."""
    pairs = (NUM_STATES, NUM_ACTIONS)
    p = normalised(draw(integers(0, 3, (*pairs, NUM_STATES))), np.ones((*pairs, NUM_STATES), bool))
    pi = normalised(draw(integers(0, 3, pairs)), np.ones(pairs, bool))
    mu = normalised(draw(integers(0, 3, pairs)) + (pi > 0), np.ones(pairs, bool))
    r = draw(integers(-8, 8, pairs)) / 4
    rows = []
    for x0, a0, x1, a1, x2, a2, x3 in itertools.product(*[range(2)] * 7):
        weight = p[x0, a0, x1] * mu[x1, a1] * p[x1, a1, x2] * mu[x2, a2] * p[x2, a2, x3]
        if weight > 0:
            rows.append((x0, x1, x2, a0, a1, a2, x3, 2 * x0 + a0, weight))
    table = np.array(rows).T
    whole = table[:8].astype(int)
    gamma = draw(st.sampled_from([0.5, 0.9, 1.0]))
    return Enumerated(whole[:3], whole[3:6], whole[6], table[8], whole[7], p, r, pi, mu, gamma)


def expected_targets(world: Enumerated, q: np.ndarray, trace: ot.Trace, *, terminates: bool) -> np.ndarray:
    """E_μ[target of row 0 | x_0, a_0]: (X, A), for values q (4, X, A), one table per step."""
    states = np.concatenate([world.states, world.last[None]])
    rows = np.stack([q[t][states[t]] for t in range(HORIZON + 1)])
    discount = np.full(world.actions.shape, world.gamma)
    if terminates:
        discount[-1], rows[-1] = 0, np.nan
    mu_a = world.mu[world.states, world.actions]
    mu_a[0] = 1  # a_0 is given, whatever μ says of it
    target = ot.targets(
        q=rows,
        a=world.actions,
        r=world.r[world.states, world.actions],
        discount=discount,
        pi=world.pi[states],
        mu_a=mu_a,
        trace=trace,
    )[0]
    return np.bincount(world.start, world.probability * target, minlength=4).reshape(NUM_STATES, NUM_ACTIONS)


def bellman(world: Enumerated, q: np.ndarray) -> np.ndarray:
    """T^π Q."""
    return world.r + world.gamma * world.p @ (world.pi * q).sum(-1)


# ρ ≤ (3/3) / (1/4) = 4, so the 16 · 2 targets of one expectation are at most 4² · (2 + 2 · 10) · 3 ≈ 1100 in size,
# and their probabilities sum to 1: 1100 · 64 EPS < 2e-11
EXPECTATION = {"rtol": 0, "atol": 1e-10}


@few
@given(enumerated(), integers(-40, 40, (4, NUM_STATES, NUM_ACTIONS)), st.booleans())
def test_importance_sampling_is_unbiased_whatever_q(world, quarters, terminates):
    """Section 2: with c = π/μ, R Q is Q^π for any Q, here of the problem that ends after three steps.

    Without a termination the problem goes on from Q(x_3, ·), and the target is unbiased for (T^π)³ Q.
    """
    q = quarters / 4
    truth = np.zeros_like(q[0]) if terminates else q[3]
    for _ in range(HORIZON):
        truth = bellman(world, truth)
    got = expected_targets(world, q, ot.ImportanceSampling(1.0), terminates=terminates)
    np.testing.assert_allclose(got, truth, **EXPECTATION)


@few
@given(enumerated(), st.sampled_from(list(ot.TRACES.values())), LAMBDAS, st.booleans())
def test_the_value_of_pi_is_a_fixed_point_for_every_trace(world, cls, lambda_, terminates):
    """Theorem 1's first line: where Q is Q^π each δ has mean 0, whatever the coefficients, safe or not."""
    last = np.zeros((NUM_STATES, NUM_ACTIONS)) if terminates else world.r
    values = [last]
    for _ in range(HORIZON):
        values.insert(0, bellman(world, values[0]))
    got = expected_targets(world, np.stack(values), cls(lambda_), terminates=terminates)
    np.testing.assert_allclose(got, values[0], **EXPECTATION)


# --- linearity ----------------------------------------------------------------------------------------------


@few
@given(cases(), LAMBDAS, st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**40, -1.0, -8.0]))
def test_rewards_and_values_times_k_are_targets_times_k(case, lambda_, k):
    for cls in each(ot.TRACES.values()):
        factor = abs(k) if cls.needs_q else k  # below 0 what is greedy turns around
        scaled = {"q": factor * case.q, "r": factor * case.r}
        if case.expected_q is not None:
            scaled["expected_q"] = factor * case.expected_q
        # to the last bit: k is a power of two, so every rounding scales with it
        np.testing.assert_array_equal(targets(case, cls(lambda_), **scaled), factor * targets(case, cls(lambda_)))


@few
@given(cases(), LAMBDAS, st.data())
def test_targets_of_a_sum_are_the_sum_of_the_targets(case, lambda_, data):
    other = {
        "q": data.draw(integers(-40, 40, case.q.shape)) / 4,
        "r": data.draw(integers(-8, 8, case.r.shape)) / 4,
    }
    if case.expected_q is not None:
        other["expected_q"] = data.draw(integers(-40, 40, case.r.shape)) / 4
    both = {name: getattr(case, name) + value for name, value in other.items()}
    for cls in each(cls for cls in ot.TRACES.values() if not cls.needs_q):
        got = targets(case, cls(lambda_), **both)
        apart = targets(case, cls(lambda_)) + targets(case, cls(lambda_), **other)
        c = coefficients(case, cls(lambda_)) if cls.markov else None
        scale = absolute_terms(case, c) + absolute_terms(case._replace(**other), c)
        assert (np.abs(got - apart) <= ULPS * EPS * scale).all()


# --- other ways to say the same -----------------------------------------------------------------------------


@few
@given(cases(), LAMBDAS)
def test_logarithms_give_the_same_as_probabilities(case, lambda_):
    with np.errstate(divide="ignore"):
        log_pi_a, log_mu_a = np.log(case.pi_a), np.log(case.clean_mu_a)
    log_pi_a[~case.real] = log_mu_a[~case.real] = np.nan
    logs = {"mu_a": None, "log_pi_a": log_pi_a, "log_mu_a": log_mu_a}
    for cls in each(ot.TRACES.values()):
        want = targets(case, cls(lambda_))
        # |log| ≤ 4, so a ratio is off by about 8 EPS, and a product of seven by under ULPS
        c = coefficients(case, cls(lambda_)) if cls.markov else None
        assert_same_to_rounding(targets(case, cls(lambda_), mu_a=None, log_mu_a=log_mu_a), want, case, c)
        assert_same_to_rounding(targets(case, cls(lambda_), **logs), want, case, c)


@few
@given(cases(), LAMBDAS)
def test_one_lambda_for_each_step_or_element_is_the_same_as_one_for_all(case, lambda_):
    for cls in each(ot.TRACES.values()):
        want = targets(case, cls(lambda_))
        # to the last bit: the same number meets the same number
        np.testing.assert_array_equal(targets(case, cls(np.full(case.r.shape[:1], lambda_))), want)
        np.testing.assert_array_equal(targets(case, cls(np.full(case.r.shape, lambda_))), want)


@few
@given(cases(), st.data())
def test_lambdas_that_differ_multiply_each_steps_own_coefficient(case, data):
    q_a = np.where(case.real, case.at_actions(case.q), 0)
    for shape in {case.r.shape[:1], case.r.shape}:
        lambdas = data.draw(integers(0, 4, shape)) / 4
        for cls in each(MARKOV):
            c = coefficients(case, cls(1.0)) * lambdas.reshape(shape + (1,) * (case.r.ndim - len(shape)))
            delta = ot.corrections(
                q_a=q_a, expected_q=case.successors, r=case.r, discount=case.discount, c=c, **case.ends
            )
            assert_same_to_rounding(targets(case, cls(lambdas)), q_a + delta, case, c)


@few
@given(cases(), st.data())
def test_lambdas_that_differ_enter_the_products_step_by_step(case, data):
    """Against the definition: from every start, β of the rows after it."""
    lambdas = data.draw(integers(0, 4, case.r.shape)) / 4
    q_a, pi_a, mu_a = np.where(case.real, case.at_actions(case.q), 0), case.pi_a, case.clean_mu_a
    for cls in each(TRAJECTORY_AWARE):

        def weight(start: int, step: int, b: tuple[int, ...], cls=cls) -> float:
            rows = (slice(start, step + 1), *b)
            return float(cls(lambdas[rows]).betas(pi_a=pi_a[rows], mu_a=mu_a[rows])[-1])

        delta, _ = reference.double_sum(q_a, case.successors, case.r, case.discount, weight, **case.ends)
        assert_same_to_rounding(targets(case, cls(lambdas)), q_a + delta, case)


# --- families that contain one another ----------------------------------------------------------------------


@few
@given(cases(), LAMBDAS)
def test_q_sigma_goes_from_tree_backup_to_importance_sampling(case, lambda_):
    # 0·ρ + 1·π and 1·ρ + 0·π are exact, and c meets the same kernel: to the last bit
    np.testing.assert_array_equal(targets(case, ot.QSigma(lambda_, 0.0)), targets(case, ot.TreeBackup(lambda_)))
    np.testing.assert_array_equal(
        targets(case, ot.QSigma(lambda_, 1.0)), targets(case, ot.ImportanceSampling(lambda_))
    )


@few
@given(cases(), LAMBDAS)
def test_continuous_acer_in_one_dimension_is_retrace(case, lambda_):
    # x ** 1.0 is x: to the last bit
    np.testing.assert_array_equal(
        targets(case, ot.ContinuousACER(lambda_, num_dims=1)), targets(case, ot.Retrace(lambda_))
    )


@few
@given(cases(), LAMBDAS)
def test_c_trace_goes_from_retrace_to_on_policy_q_lambda(case, lambda_):
    given_ = {name: getattr(case, name) for name in ("q", "a", "r", "discount", "pi", "mu", "expected_q")}
    # 1·π + 0·μ and 0·π + 1·μ are exact: to the last bit
    retrace = ot.c_trace_targets(alpha=1.0, lambda_=lambda_, **given_, **case.ends)
    np.testing.assert_array_equal(retrace, targets(case, ot.Retrace(lambda_)))
    q_lambda = ot.c_trace_targets(alpha=0.0, lambda_=lambda_, **given_, **case.ends)
    np.testing.assert_array_equal(q_lambda, targets(case, ot.QLambda(lambda_), pi=case.mu))


# --- other recursions ---------------------------------------------------------------------------------------

# |r| ≤ 2, |Q| ≤ 10, γ ≤ 1 and at most 8 steps: no sum of absolute terms exceeds 8 · (2 + 2 · 10) = 176
RECURSION_TOLERANCE = {"rtol": 0, "atol": 176 * ULPS * EPS}


def continues(case: Case, t: int, b: tuple[int, ...]) -> bool:
    """Row t+1 goes on with what row t began."""
    if t + 1 == len(case.r) or not case.real[(t + 1, *b)]:
        return False
    return case.reset is None or not case.reset[(t + 1, *b)]


def uncorrected(case: Case, successors: np.ndarray, lambda_: float) -> np.ndarray:
    """G_t = r_t + γ_t [(1 − λ) V(x_{t+1}) + λ G_{t+1}], one number at a time, G_{t+1} := V(x_{t+1}) at an end."""
    out = np.zeros(case.r.shape)
    for b in np.ndindex(*case.r.shape[1:]):
        for t in reversed(range(len(case.r))):
            if case.real[(t, *b)]:
                value = successors[(t, *b)]
                later = out[(t + 1, *b)] if continues(case, t, b) else value
                bootstrap = (1 - lambda_) * value + lambda_ * later
                discount = case.discount[(t, *b)]
                out[(t, *b)] = case.r[(t, *b)] + (discount * bootstrap if discount != 0 else 0)
    return out


@st.composite
def with_successors(draw) -> Case:
    """Every row has a finite E_π Q of its successor, given as `expected_q`."""
    case = draw(cases())
    return case._replace(expected_q=draw(integers(-40, 40, case.r.shape)) / 4)


def recursion_arguments(case: Case) -> dict[str, np.ndarray | None]:
    return {"r": case.r, "discount": case.discount, "expected_q": case.expected_q, **case.ends}


@few
@given(with_successors(), LAMBDAS)
def test_peng_goes_from_one_step_to_the_uncorrected_return(case, lambda_):
    one_step = targets(case, ot.OneStep())
    np.testing.assert_allclose(
        ot.peng_targets(**recursion_arguments(case), lambda_=0.0), one_step, **RECURSION_TOLERANCE
    )
    to_the_end = ot.n_step_targets(**recursion_arguments(case), num_steps=max(len(case.r), 1))
    np.testing.assert_allclose(
        ot.peng_targets(**recursion_arguments(case), lambda_=1.0), to_the_end, **RECURSION_TOLERANCE
    )
    np.testing.assert_array_equal(ot.n_step_targets(**recursion_arguments(case), num_steps=100), to_the_end)
    want = uncorrected(case, case.expected_q, lambda_)
    np.testing.assert_allclose(
        ot.peng_targets(**recursion_arguments(case), lambda_=lambda_), want, **RECURSION_TOLERANCE
    )


@few
@given(with_successors(), st.integers(1, 10))
def test_an_n_step_return_is_the_sum_as_rainbow_prints_it(case, num_steps):
    got = ot.n_step_targets(**recursion_arguments(case), num_steps=num_steps)
    want = np.zeros(case.r.shape)
    for b in np.ndindex(*case.r.shape[1:]):
        for start in range(len(case.r)):
            if not case.real[(start, *b)]:
                continue
            reach, t = 1.0, start
            while True:
                want[(start, *b)] += reach * case.r[(t, *b)]
                reach *= case.discount[(t, *b)]
                if t + 1 == start + num_steps or not continues(case, t, b):
                    break
                t += 1
            want[(start, *b)] += reach * case.expected_q[(t, *b)]
    np.testing.assert_allclose(got, want, **RECURSION_TOLERANCE)
    if num_steps == 1:
        np.testing.assert_allclose(got, targets(case, ot.OneStep()), **RECURSION_TOLERANCE)


SISTER = {
    "peng": lambda **given_: ot.peng_targets(**given_, lambda_=1.0),
    "n_step": lambda **given_: ot.n_step_targets(**given_, num_steps=8),
}
"""Two ways to the uncorrected return, to the end of the window."""


@pytest.mark.parametrize("sister", SISTER)
@few
@given(cases(illegal_actions=False))
def test_the_other_recursions_read_no_more_than_the_operator_does(sister, case):
    """Values where the discount is 0 or the mask False may be anything, as for `targets`."""
    given_ = recursion_arguments(case) | ({"q": case.q, "pi": case.pi} if case.expected_q is None else {})
    np.testing.assert_allclose(
        SISTER[sister](**given_), uncorrected(case, case.successors, 1.0), **RECURSION_TOLERANCE
    )


@pytest.mark.parametrize("sister", ["targets", *SISTER])
@pytest.mark.parametrize("unread", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("where", ["after a termination", "in a masked row"])
def test_a_value_that_is_not_read_does_not_reach_the_next_row(sister, unread, where):
    """The return of row 2 is 3 + ½·8 = 7, whatever row 1 holds for its successor."""
    given_ = {"r": np.array([1.0, 2.0, 3.0]), "discount": np.array([0.5, 0.0, 0.5])}
    given_["expected_q"] = np.array([4.0, unread, 8.0])
    if where == "in a masked row":
        given_["mask"] = np.array([True, False, True])
    else:
        given_["reset"] = np.array([False, False, True])
    if sister == "targets":
        got = ot.targets(**given_, q_a=np.zeros(3), trace=ot.QLambda(1.0))
    else:
        got = SISTER[sister](**given_)
    assert got[2] == 7


LIBRARIES = {"numpy": np.asarray, "jax": jnp.asarray, "torch": torch.tensor}


def with_lambda(sister: str, library: str, lambda_) -> np.ndarray:
    """Peng's or V-trace targets of one window of 4 steps, two wide; V-trace on-policy."""
    make, numbers = LIBRARIES[library], np.arange(10.0).reshape(5, 2)
    given_ = {"r": make(numbers[1:]), "discount": make(np.full((4, 2), 0.5)), "lambda_": lambda_}
    if sister == "peng":
        return np.asarray(ot.peng_targets(**given_, expected_q=make(numbers[1:])))
    half = make(np.full((4, 2), 0.5))
    return np.asarray(ot.vtrace_targets(**given_, v=make(numbers), pi_a=half, mu_a=half))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("sister", ["peng", "v_trace"])
def test_the_other_recursions_take_one_lambda_per_step_in_every_form(sister, library):
    lambdas = [0.5, 0.25, 0.75, 1.0]
    want = with_lambda(sister, "numpy", np.repeat(np.array(lambdas)[:, None], 2, axis=1))
    for form in (lambdas, np.array(lambdas), LIBRARIES[library](np.array(lambdas))):
        np.testing.assert_allclose(with_lambda(sister, library, form), want, rtol=1e-6)  # JAX is in float32 here
    np.testing.assert_array_equal(  # one number for all is the same number for each
        with_lambda(sister, library, 0.5), with_lambda(sister, library, [0.5] * 4)
    )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("sister", ["peng", "v_trace"])
@pytest.mark.parametrize("shape", [(1,), (2,), (4, 1)])
def test_the_other_recursions_refuse_lambdas_that_would_broadcast(sister, library, shape):
    with pytest.raises(ValueError, match="`lambda_`"):
        with_lambda(sister, library, np.full(shape, 0.5))


@few
@given(cases(), LAMBDAS, st.data())
def test_on_policy_v_trace_is_the_lambda_return(case, lambda_, data):
    rows = (len(case.r) + 1, *case.r.shape[1:])
    v = data.draw(integers(-40, 40, rows)) / 4
    next_v = v[1:].copy()
    if case.reset is not None and len(case.r):  # a truncated step's successor is not the next row's state
        elsewhere = data.draw(integers(-40, 40, case.r.shape)) / 4
        next_v[:-1] = np.where(case.reset[1:], elsewhere[:-1], next_v[:-1])
    v[:-1][~case.real] = np.nan
    next_v = np.where(case.real, np.nan_to_num(next_v), np.nan)
    want = uncorrected(case, next_v, lambda_)
    given_ = {"v": v, "next_v": next_v, "r": case.r, "discount": case.discount, "lambda_": lambda_, **case.ends}
    mu_a = case.mu_a
    np.testing.assert_allclose(ot.vtrace_targets(**given_, pi_a=mu_a, mu_a=mu_a), want, **RECURSION_TOLERANCE)
    higher = {"rho_bar": 3.0, "c_bar": 2.0}  # ρ = 1, so nothing is clipped
    np.testing.assert_allclose(
        ot.vtrace_targets(**given_, pi_a=mu_a, mu_a=mu_a, **higher), want, **RECURSION_TOLERANCE
    )


@few
@given(cases(illegal_actions=False), st.data())
def test_on_policy_with_a_deterministic_policy_lambda_one_is_the_monte_carlo_return(case, data):
    """The terms E_π Q − Q(x, a) vanish: rewards to the end, and the bootstrap there."""
    chosen = np.zeros(case.q.shape)
    actions = np.concatenate([case.actions, data.draw(integers(0, case.q.shape[-1] - 1, case.q.shape[1:-1]))[None]])
    np.put_along_axis(chosen, actions[..., None], 1, -1)
    case = case._replace(pi=chosen, mu=chosen, mu_a=np.ones(case.r.shape), expected_q=None)
    discount = case.discount.copy()
    if case.reset is not None:
        discount[:-1][(case.reset & case.real)[1:]] = 0
    discount[~case.real] = np.nan
    case = case._replace(discount=discount, q=np.nan_to_num(case.q))
    # where a trace looks at Q the action has to be the greedy one
    greedy = case._replace(q=np.where(chosen == 1, np.abs(case.q) + 1, -np.abs(case.q)))
    every = [cls for cls in ot.TRACES.values() if cls is not ot.OneStep]
    for needs_q, window in ((False, case), (True, greedy)):
        want = uncorrected(window, window.successors, 1.0)
        given_ = {"q": window.q, "pi": window.pi, "r": window.r, "discount": discount, **window.ends}
        np.testing.assert_allclose(ot.n_step_targets(**given_, num_steps=8), want, **RECURSION_TOLERANCE)
        for cls in each(cls for cls in every if cls.needs_q == needs_q):
            np.testing.assert_allclose(targets(window, cls(1.0)), want, **RECURSION_TOLERANCE)
