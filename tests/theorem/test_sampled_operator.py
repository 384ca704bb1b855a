"""Eq. 3 is an expectation: `targets` and `corrections` on simulated windows average to the exact operator."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from theorem import models
from theorem.models import Case, Model

import offtrace as ot
from offtrace import operators

MARKOV = [name for name, cls in ot.TRACES.items() if cls.markov]
AWARE = [name for name, cls in ot.TRACES.items() if not cls.markov]

# Some 300 means are compared below, with fixed seeds: one in 2e6 normal variables is beyond five standard errors.
STANDARD_ERRORS = 5.0


class Windows(NamedTuple):
    """n steps of B streams, with one episode after the other in each."""

    x: np.ndarray
    """(n + 1, B)."""
    a: np.ndarray
    r: np.ndarray
    discount: np.ndarray
    mu_a: np.ndarray
    reset: np.ndarray


def simulate(case: Case, *, num_steps: int, batch: int, seed: int) -> Windows:
    """Episodes under μ that begin with any (x, a); after an end the next row is already another episode."""
    model, _, mu, _, _ = case
    num_states, num_actions = model.shape
    rng = np.random.default_rng(seed)
    to, act = model.p.cumsum(-1), mu.cumsum(-1)
    rewards = np.broadcast_to(model.r if model.r.ndim == 3 else model.r[..., None], model.p.shape)

    def draw(cumulated: np.ndarray) -> np.ndarray:
        """One index for each row of cumulated probabilities."""
        at = rng.random(len(cumulated))[:, None] * cumulated[:, -1:]
        return (cumulated <= at).sum(-1)

    rows: list[tuple[np.ndarray, ...]] = []
    x = rng.integers(num_states, size=batch)
    reset = np.ones(batch, bool)
    for _ in range(num_steps):
        a = np.where(reset, rng.integers(num_actions, size=batch), draw(act[x]))
        mu_a = np.where(reset, 1 / num_actions, mu[x, a])
        y = draw(to[x, a])
        ended = rng.random(batch) < model.ends[x, a, y]
        rows.append((x, a, rewards[x, a, y], np.where(ended, 0.0, model.gamma), mu_a, reset))
        x = np.where(ended, rng.integers(num_states, size=batch), y)
        reset = ended
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return Windows(np.concatenate([columns[0], x[None]]), *columns[1:])


class Average(NamedTuple):
    mean: np.ndarray
    """(X, A)."""
    standard_error: np.ndarray


def average(case: Case, w: Windows, targets: np.ndarray, num_rows: int) -> Average:
    """Of the targets of each (x, a) in the first rows. Streams are independent, rows of one stream are not."""
    size, batch = case.q.size, w.a.shape[1]
    place = ((w.x[:-1] * case.q.shape[1] + w.a) * batch + np.arange(batch))[:num_rows].ravel()
    totals = np.bincount(place, targets[:num_rows].ravel(), minlength=size * batch).reshape(size, batch)
    counts = np.bincount(place, minlength=size * batch).reshape(size, batch)
    visits = counts.sum(1)
    assert visits.min() > 500
    mean = totals.sum(1) / visits
    error = np.sqrt(((totals - mean[:, None] * counts) ** 2).sum(1)) / visits
    return Average(mean.reshape(case.q.shape), error.reshape(case.q.shape))


def furthest(found: Average, exact: np.ndarray) -> float:
    """How many standard errors the worst mean is away; where nothing varies, rounding is allowed for."""
    return float((abs(found.mean - exact) / (found.standard_error + 1e-12)).max())


class Setting(NamedTuple):
    case: Case
    windows: Windows
    num_rows: int
    """Rows whose episode ends inside the window, or has been discounted away before it does."""


def mild(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Every action has a share of 0.2 or more among two: ratios are at most 4."""
    return models.full_support(rng.dirichlet(np.ones(shape[1]), size=shape[0]), 0.4)


@functools.cache
def episodic() -> Setting:
    """At most 5 steps, so that every row but the last 4 sees the end of its episode."""
    rng = np.random.default_rng(21)
    case = models.episodic_case(rng, length=5, branching=0.6)
    case = case._replace(pi=mild(rng, case.q.shape), mu=mild(rng, case.q.shape), lam=0.9)
    return Setting(case, simulate(case, num_steps=16, batch=20_000, seed=1), 12)


@functools.cache
def endless() -> Setting:
    """Loops, chance, early ends. What the last row cuts off is 0.7^40 < 1e-6 of a value, a thousandth of an error."""
    rng = np.random.default_rng(22)
    shape = num_states, _ = 4, 2
    p = rng.dirichlet(np.ones(num_states), size=shape)
    ends = rng.random(p.shape) * (rng.random(p.shape) < 0.3)
    model = Model(p, ends, rng.normal(size=p.shape), 0.7)
    case = Case(model, mild(rng, shape), mild(rng, shape), rng.normal(size=shape), 0.9)
    return Setting(case, simulate(case, num_steps=48, batch=20_000, seed=2), 8)


SETTINGS = {"episodic": episodic, "endless": endless}


def targets(name: str, setting: Setting) -> np.ndarray:
    case, w, _ = setting
    return ot.targets(
        q=case.q[w.x],
        a=w.a,
        r=w.r,
        discount=w.discount,
        pi=case.pi[w.x],
        mu_a=w.mu_a,
        reset=w.reset,
        trace=ot.TRACES[name](lambda_=case.lam),
    )


def exact(name: str, case: Case) -> np.ndarray:
    trace = ot.TRACES[name](lambda_=case.lam)
    return operators.general_operator(case.model.mdp(), case.q, pi=case.pi, mu=case.mu, trace=trace)


def test_the_windows_hold_what_the_theorem_asks_for() -> None:
    """Episodes end and begin inside the windows; every pair is visited; importance sampling has a finite variance."""
    for setting in (episodic(), endless()):
        case, w, _ = setting
        assert (w.discount == 0).mean() > 0.05
        np.testing.assert_array_equal(w.reset[1:], w.discount[:-1] == 0)
        rho = case.pi / case.mu
        second = models.transitions(case.model, case.mu * rho**2)
        assert case.model.gamma**2 * abs(np.linalg.eigvals(second)).max() < 1
        assert rho.max() > 1.5
        assert rho.min() < 0.7


@pytest.mark.parametrize(
    ("place", "name"), [("episodic", name) for name in ot.TRACES] + [("endless", name) for name in MARKOV]
)
def test_targets_average_to_the_operator(place: str, name: str) -> None:
    setting = SETTINGS[place]()
    case, w, num_rows = setting
    found = average(case, w, targets(name, setting), num_rows)
    expected = exact(name, case)
    assert furthest(found, expected) < STANDARD_ERRORS
    # the means are sharp: values are of size 1
    assert found.standard_error.max() < 0.05
    # and they tell this trace from none
    one_step = models.bellman(case.model, case.q, case.pi)
    assert furthest(found, one_step) > 2 * STANDARD_ERRORS or name == "one_step"


@pytest.mark.parametrize("place", SETTINGS)
@pytest.mark.parametrize("name", MARKOV)
def test_corrections_average_to_the_operator(place: str, name: str) -> None:
    """The primitive, with c(x_t, a_t) looked up in the paper's table."""
    case, w, num_rows = SETTINGS[place]()
    at = w.x[:-1], w.a
    correction = ot.corrections(
        q_a=case.q[at],
        expected_q=(case.pi * case.q).sum(-1)[w.x[1:]],
        r=w.r,
        discount=w.discount,
        c=models.coefficients(name, case)[at],
        reset=w.reset,
    )
    found = average(case, w, case.q[at] + correction, num_rows)
    assert furthest(found, exact(name, case)) < STANDARD_ERRORS


@pytest.mark.parametrize("place", SETTINGS)
@pytest.mark.parametrize("name", MARKOV)
def test_corrections_vary_as_their_second_moments_say(place: str, name: str) -> None:
    """Mean and variance of Q + Δ over trajectories that begin with (x, a)."""
    setting = SETTINGS[place]()
    case, w, num_rows = setting
    trace = ot.TRACES[name](lambda_=case.lam)
    moments = operators.correction_moments(case.model.mdp(), case.q, pi=case.pi, mu=case.mu, trace=trace)
    expected = case.q + moments.mean
    np.testing.assert_allclose(expected, exact(name, case), rtol=1e-12)  # two exact solves
    squares = (targets(name, setting) - expected[w.x[:-1], w.a]) ** 2
    assert furthest(average(case, w, squares, num_rows), moments.variance) < STANDARD_ERRORS


# -- would these tests notice? --------------------------------------------------------------------------------


def recursion(setting: Setting, mistake: str) -> np.ndarray:
    """Δ_t = δ_t + discount_t c_{t+1} Δ_{t+1} for Retrace, plainly, with one mistake in it."""
    case, w, _ = setting
    model, pi, mu, q, _ = case
    c = models.coefficients("retrace", case)[w.x[:-1], w.a]
    if mistake == "λ twice":
        c = c * case.lam
    if mistake == "an ε added to μ":
        c = case.lam * np.minimum(1, pi[w.x[:-1], w.a] / (w.mu_a + 0.1))
    values = {
        "μ in the expectation": (mu * q).sum(-1)[w.x[1:]],
        "a maximum for the expectation": q.max(-1)[w.x[1:]],
        "π of the state before": (pi[w.x[:-1]] * q[w.x[1:]]).sum(-1),
        "Q of the state before": (pi * q).sum(-1)[w.x[:-1]],
    }
    ahead = values.get(mistake, (pi * q).sum(-1)[w.x[1:]])
    discount = w.discount
    bootstrap = {
        "bootstrapped past the end": np.full(discount.shape, model.gamma),
        "no γ before the expectation": (discount > 0) * 1.0,
    }.get(mistake, discount)
    carried = {
        "no γ in the trace": (discount > 0) * 1.0,
        "the trace not cut at the end": np.full(discount.shape, model.gamma),
    }.get(mistake, discount)
    delta = w.r + bootstrap * ahead - q[w.x[:-1], w.a]
    out = delta.copy()
    for t in range(len(delta) - 2, -1, -1):
        taken = {"c one step early": t, "c one step late": min(t + 2, len(c) - 1)}.get(mistake, t + 1)
        out[t] += carried[t] * c[taken] * out[t + 1]
    return q[w.x[:-1], w.a] + out


def test_the_plain_recursion_is_what_targets_computes() -> None:
    for setting in (episodic(), endless()):
        # the same sums in another order
        np.testing.assert_allclose(recursion(setting, ""), targets("retrace", setting), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "mistake",
    [
        "c one step early",
        "c one step late",
        "λ twice",
        "an ε added to μ",
        "μ in the expectation",
        "a maximum for the expectation",
        "π of the state before",
        "Q of the state before",
        "no γ before the expectation",
        "no γ in the trace",
        "the trace not cut at the end",
        "bootstrapped past the end",
    ],
)
def test_the_average_notices(mistake: str) -> None:
    """Each mistake is well outside the interval in one setting or the other."""
    seen = []
    for setting in (episodic(), endless()):
        case, w, num_rows = setting
        found = average(case, w, recursion(setting, mistake), num_rows)
        seen.append(furthest(found, exact("retrace", case)))
    assert max(seen) > 2 * STANDARD_ERRORS


# -- the library's own sampler --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AWARE)
def test_the_sampled_operator_covers_the_exact_one(name: str) -> None:
    """Against the list of all trajectories: within five standard errors everywhere, and 99.9 % of intervals hit."""
    rng = np.random.default_rng(23)
    cells = missed = 0
    for seed in range(6):
        case = models.episodic_case(rng, length=4, branching=0.6)
        case = case._replace(pi=mild(rng, case.q.shape), mu=mild(rng, case.q.shape))
        expected = models.listed_operator(case, models.beta_of(name))
        found = operators.sampled_operator(
            case.model.mdp(),
            case.q,
            pi=case.pi,
            mu=case.mu,
            trace=ot.TRACES[name](lambda_=case.lam),
            num_trajectories=4_000,
            seed=np.random.default_rng(seed),
        )
        assert furthest(Average(found.mean, found.standard_error), expected) < STANDARD_ERRORS
        slack = 1e-12  # where only rounding is left
        missed += int(((expected < found.low - slack) | (expected > found.high + slack)).sum())
        cells += expected.size
        # 3.2905 standard errors each way are 99.9 % of a normal distribution
        np.testing.assert_allclose(found.high - found.mean, 3.2905 * found.standard_error, rtol=1e-4, atol=1e-12)
        np.testing.assert_allclose(found.mean - found.low, 3.2905 * found.standard_error, rtol=1e-4, atol=1e-12)
    assert cells > 90
    assert missed <= 1  # 0.1 are expected


@pytest.mark.parametrize("name", AWARE)
def test_the_sampled_operator_on_policy_is_the_lambda_return(name: str) -> None:
    """π = μ makes every β_t λ^t, and R the operator T^π_λ, also where episodes need not end."""
    case = endless().case
    mdp, trace = case.model.mdp(), ot.TRACES[name](lambda_=case.lam)
    errors = []
    for num_trajectories in (2_000, 8_000):
        found = operators.sampled_operator(
            mdp,
            case.q,
            pi=case.pi,
            mu=case.pi,
            trace=trace,
            num_trajectories=num_trajectories,
            seed=np.random.default_rng(5),
        )
        expected = models.general_operator(case._replace(mu=case.pi), np.where(case.pi > 0, case.lam, 0.0))
        assert furthest(Average(found.mean, found.standard_error), expected) < STANDARD_ERRORS
        errors.append(found.standard_error)
    # four times as many trajectories halve the error; each is known to about 1/√(2·2000) = 2 %
    np.testing.assert_allclose(errors[0] / errors[1], 2.0, rtol=0.15)
