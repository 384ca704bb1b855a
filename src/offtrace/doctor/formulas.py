"""Formulas to name a measured term with: weights of Q, baselines, and a small grammar of c.

The grammar of c is scale × clip(base), for example λ· × min(1, ·) × π/μ. Every part has a cost: 0
if it is Retrace's, 1 or 2 if it is less usual. The formula of the lowest total cost that gives
every measured c is the name.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.responses import Response
from offtrace.doctor.windows import GoldenWindow, dot

NUM_ACTIONS = 3
"""The number of actions in the probes."""
ROUNDING = 4
"""Derivatives are quotients and products of measured ones, so they may be off by a few tolerances."""

# -- values ----------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A row of a window in which a term was measured."""

    response: Response
    row: int

    @property
    def window(self) -> GoldenWindow:
        return self.response.window


def _one_hot(action: Any) -> np.ndarray:
    return np.eye(NUM_ACTIONS)[int(action)]


def _pi(place: Place) -> np.ndarray:
    return np.array(place.window.pi[place.row])


WeightRule = Callable[[Place], np.ndarray]

WEIGHTS: dict[str, WeightRule] = {
    "π": _pi,
    "μ(·|x_{t+1})": lambda at: np.array(at.window.mu[at.row]),
    "π(·|x_t), the policy of the state before": lambda at: np.array(at.window.pi[at.row - 1]),
    "1/A for every action": lambda at: np.full(NUM_ACTIONS, 1 / NUM_ACTIONS),
    "π/A (a mean over actions in place of a sum)": lambda at: _pi(at) / NUM_ACTIONS,
    "2π (the bootstrap is counted twice)": lambda at: 2 * _pi(at),
    "γπ (it is discounted twice)": lambda at: at.response.gamma * _pi(at),
    "π/γ (it is not discounted)": lambda at: _pi(at) / at.response.gamma,
    "λπ (λ belongs in c only)": lambda at: at.response.lambda_ * _pi(at),
    "(1 − λ)π": lambda at: (1 - at.response.lambda_) * _pi(at),
    "0 (there is no bootstrap)": lambda at: np.zeros(NUM_ACTIONS),
    "1 for every action": lambda at: np.ones(NUM_ACTIONS),
    "1 for the likeliest action of π": lambda at: _one_hot(np.argmax(at.window.pi[at.row])),
    "1 for the likeliest action of μ": lambda at: _one_hot(np.argmax(at.window.mu[at.row])),
    "1 for the greedy action": lambda at: _one_hot(np.argmax(at.window.q[at.row])),
    "1 for the worst action": lambda at: _one_hot(np.argmin(at.window.q[at.row])),
    "1 for the action taken there": lambda at: _one_hot(at.window.a[at.row]),
    "1 for a_t, the action of the step before": lambda at: _one_hot(at.window.a[at.row - 1]),
}
BASELINES: dict[str, WeightRule] = {
    "Q(x_{t+1}, a_t), with the action of the step before,": lambda at: _one_hot(at.window.a[at.row - 1]),
    "E_π Q(x_{t+1}, ·)": _pi,
    "E_μ Q(x_{t+1}, ·)": lambda at: np.array(at.window.mu[at.row]),
    "max Q(x_{t+1}, ·)": lambda at: _one_hot(np.argmax(at.window.q[at.row])),
    "the mean of Q(x_{t+1}, ·)": lambda at: np.full(NUM_ACTIONS, 1 / NUM_ACTIONS),
    "nothing": lambda at: np.zeros(NUM_ACTIONS),
}


def _softmax(q: np.ndarray) -> np.ndarray:
    weights = np.exp(q - q.max())
    return weights / weights.sum()


NONLINEAR: dict[str, Callable[[np.ndarray], float]] = {
    "the expectation under softmax(Q)": lambda q: dot(tuple(_softmax(q)), tuple(q)),
    "log Σ exp Q": lambda q: float(np.log(np.exp(q - q.max()).sum()) + q.max()),
    "max Q": lambda q: float(q.max()),
    "min Q": lambda q: float(q.min()),
}


def name_weights(seen: np.ndarray, places: list[Place], near: float) -> str | None:
    """Return the name of the weights (places, A), or None."""
    for name, rule in WEIGHTS.items():
        if np.abs(seen - np.array([rule(at) for at in places])).max() <= near * ROUNDING:
            return name
    return None


# -- a grammar of c --------------------------------------------------------------------------------

Part = tuple[int, str, np.ndarray]
"""The cost of one part of a formula, its text, and its value at every place."""


def name_c(places: list[Place], seen: np.ndarray, gamma: float, near: float) -> str | None:
    """Return the simplest formula that gives every measured c: "" for Retrace's, None if there is none."""
    lam = np.array([at.response.lambda_ for at in places])
    row = np.array([at.row for at in places])
    best_cost = 99
    best: str | None = None
    for base, scale in itertools.product(_bases(places), _scales(lam, row, gamma)):
        base_cost, base_text, ratio = base
        scale_cost, scale_text, factor = scale
        for clip_cost, clip_text, clipped in _clips(ratio, seen / factor, lam):
            total = base_cost + scale_cost + clip_cost
            if total >= best_cost:
                continue
            text = clip_text.format(base_text)
            power = np.abs(clipped) ** lam * factor / np.maximum(lam, 1e-9)  # ·^λ in place of λ·
            if np.abs(factor * clipped - seen).max() <= near:
                best_cost = total
                best = f"{scale_text}{text}"
            if total + 2 < best_cost and np.abs(power - seen).max() <= near:
                best_cost = total + 2
                best = f"{scale_text.replace('λ·', '')}{text}^λ"
    if best is not None and best_cost == 0:
        return ""
    return best


def _bases(places: list[Place]) -> list[Part]:
    """Return what may be clipped; π/μ costs nothing."""
    pi = np.array([at.window.pi_a[at.row] for at in places])
    mu = np.array([at.window.mu_a[at.row] for at in places])
    pi_before = np.array([at.window.pi_a[at.row - 1] for at in places])
    mu_before = np.array([at.window.mu_a[at.row - 1] for at in places])
    pi_after = np.array([at.window.pi_a[at.row + 1] for at in places])
    mu_after = np.array([at.window.mu_a[at.row + 1] for at in places])
    greedy = np.array([float(at.window.a[at.row] == np.argmax(at.window.q[at.row])) for at in places])
    return [
        (0, "π/μ", pi / mu),
        (1, "μ/π", mu / pi),
        (1, "π", pi),
        (1, "1", np.ones_like(pi)),
        (1, "π(a_t)/μ(a_t)", pi_before / mu_before),
        (1, "π(a_{t+2})/μ(a_{t+2})", pi_after / mu_after),
        (1, "π(a_{t+1})/μ(a_t)", pi / mu_before),
        (1, "π(a_t)/μ(a_{t+1})", pi_before / mu),
        (1, "π(a_{t+1})/μ(a_{t+2})", pi / mu_after),
        (2, "μ", mu),
        (2, "√(π/μ)", np.sqrt(pi / mu)),
        (2, "(π/μ)²", (pi / mu) ** 2),
        (2, "1/μ", 1 / mu),
        (2, "1{a greedy}", greedy),
        (2, "(1 − π)/(1 − μ)", (1 - pi) / (1 - mu)),
        (2, "π/(π + μ)", pi / (pi + mu)),
        (2, "(π − μ)", pi - mu),
        *_smoothed_ratios(pi, mu),
        *_normalised_ratios(pi / mu, places),
    ]


def _smoothed_ratios(pi: np.ndarray, mu: np.ndarray) -> Iterator[Part]:
    """Yield ratios with an epsilon, a floor or a mixture in them."""
    for epsilon in (1e-1, 5e-2, 2e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
        yield 2, f"(π + {epsilon:g})/(μ + {epsilon:g})", (pi + epsilon) / (mu + epsilon)
        yield 2, f"π/max(μ, {epsilon:g})", pi / np.maximum(mu, epsilon)
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        kept = f"{1 - share:.2g}"
        mixed_pi = (1 - share) * pi + share / NUM_ACTIONS
        mixed_mu = (1 - share) * mu + share / NUM_ACTIONS
        yield 2, f"π′/μ with π′ = {kept} π + {share:.2g}/A", mixed_pi / mu
        yield 2, f"π/μ′ with μ′ = {kept} μ + {share:.2g}/A", pi / mixed_mu
        yield 2, f"π/({kept} μ + {share:.2g} π)", pi / ((1 - share) * mu + share * pi)


def _normalised_ratios(ratio: np.ndarray, places: list[Place]) -> Iterator[Part]:
    """Yield ratios divided by their mean, sum or maximum over the window, the batch or both."""
    tables = []  # (streams, steps) of ratios, per place
    for at in places:
        streams = at.response.streams
        tables.append(np.array([[p / m for p, m in zip(w.pi_a, w.mu_a, strict=True)][: w.n] for w in streams]))
    for name, reduce in (("mean", np.mean), ("sum", np.sum), ("maximum", np.max)):
        window = np.array([reduce(table[0]) for table in tables])
        batch = np.array([reduce(table[:, at.row]) for table, at in zip(tables, places, strict=True)])
        both = np.array([reduce(table) for table in tables])
        yield 2, f"(π/μ divided by its {name} over the window)", ratio / window
        yield 2, f"(π/μ divided by its {name} over the batch)", ratio / batch
        yield 2, f"(π/μ divided by its {name} over batch and window)", ratio / both


def _scales(lam: np.ndarray, row: np.ndarray, gamma: float) -> list[Part]:
    """Return the powers of λ and γ that may multiply the clipped ratio; λ costs nothing."""
    one = np.ones_like(lam)
    lambdas = [
        (0, "λ·", lam),
        (1, "", one),
        (1, "λ²·", lam**2),
        (2, "√λ·", np.sqrt(lam)),
        (2, "(1 − λ)·", 1 - lam),
        (2, "λ^t·", lam**row),
        (2, "λ/t·", lam / row),
        (1, "−λ·", -lam),
    ]
    gammas = [
        (0, "", one),
        (1, "γ·", gamma * one),
        (1, "1/γ·", one / gamma),
        (2, "γ²·", gamma**2 * one),
    ]
    products = []
    for (a, lambda_text, u), (b, gamma_text, v) in itertools.product(lambdas, gammas):
        if u.all():
            products.append((a + b, lambda_text + gamma_text, u * v))
    return products


def _clips(ratio: np.ndarray, wanted: np.ndarray, lam: np.ndarray) -> Iterator[Part]:
    """Yield the clips; min(1, ·) costs nothing. Other bounds are read off the values that several places share."""
    yield 0, "min(1, {})", np.minimum(1.0, ratio)
    yield 1, "{}", ratio
    yield 1, "max(1, {})", np.maximum(1.0, ratio)
    yield 1, "min(λ, {})", np.minimum(lam, ratio)
    top = float(np.max(wanted))
    bottom = float(np.min(wanted))
    shared_top = np.isfinite(top) and np.sum(np.abs(wanted - top) < 1e-3) > 1
    shared_bottom = np.isfinite(bottom) and np.sum(np.abs(wanted - bottom) < 1e-3) > 1
    if shared_top:
        yield 1, f"min({top:.4g}, {{}})", np.minimum(top, ratio)
    if shared_top and shared_bottom:
        yield 2, f"({{}} clipped to [{bottom:.4g}, {top:.4g}])", np.clip(ratio, bottom, top)
    elif shared_bottom:
        yield 2, f"max({bottom:.4g}, {{}})", np.maximum(bottom, ratio)
