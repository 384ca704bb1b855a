"""Windows and their targets by the formulas of the papers, in plain Python.

Nothing here calls the code under test except `reference.double_sum`, which is the paper's Eq. 3 as printed.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from offtrace.returns import reference

# -- the coefficients, each as its paper prints it ------------------------------------------------------------


class Step(NamedTuple):
    """One step: λ, π(a|x), μ(a|x), the rows of Q and π, and the action."""

    lam: float
    pi: float
    mu: float
    q: np.ndarray
    policy: np.ndarray
    action: int


def watkins(s: Step) -> float:
    return s.lam if s.q[s.action] == max(x for x in s.q if not math.isnan(x)) else 0.0


def soft_watkins(s: Step, kappa: float = 0.01) -> float:
    matched = 0.0
    for b, probability in enumerate(s.policy):
        if probability > 0 and s.q[s.action] >= s.q[b] - kappa * abs(s.q[b]):
            matched += probability
    return s.lam * matched


COEFFICIENT = {
    "one_step": lambda s: 0.0,
    "importance_sampling": lambda s: s.lam * s.pi / s.mu,
    "q_lambda": lambda s: s.lam,
    "tree_backup": lambda s: s.lam * s.pi,
    "retrace": lambda s: s.lam * min(1.0, s.pi / s.mu),
    "watkins": watkins,
    "soft_watkins": soft_watkins,
    "continuous_acer": lambda s: s.lam * min(1.0, (s.pi / s.mu) ** (1.0 / 1)),
    "q_sigma": lambda s: s.lam * (0.5 * s.pi / s.mu + 0.5 * s.pi),
}
"""c_s at the default parameters (κ = 0.01, d = 1, σ = 0.5)."""


def recursive_retrace(steps: list[Step]) -> float:
    """Eq. 9 as printed: c_s = λ min(1 / (c_1 … c_{s−1}), ρ_s), and β the product; 0 once it is 0."""
    product = 1.0
    for s in steps:
        if product == 0:
            return 0.0
        product *= s.lam * min(1.0 / product, s.pi / s.mu)
    return product


def truncated_is(steps: list[Step]) -> float:
    return math.prod(s.lam for s in steps) * min(1.0, math.prod(s.pi / s.mu for s in steps))


def rbis(steps: list[Step]) -> float:
    beta, power = 1.0, 1.0
    for s in steps:
        power *= s.lam
        beta = min(power, beta * s.pi / s.mu)
    return beta


BETA = {"recursive_retrace": recursive_retrace, "truncated_is": truncated_is, "rbis": rbis}
"""β from the steps after the start."""


# -- windows --------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A window as a user has it, and where each episode lies in it."""

    arguments: dict[str, np.ndarray]
    episodes: list[tuple[int, list[int], dict[str, np.ndarray]]]
    """(batch element, rows of the window, the same episode alone)."""


def episode(rng: np.random.Generator, length: int, num_actions: int, *, terminated: bool) -> dict[str, np.ndarray]:
    """One episode alone: `length` steps, then its true last state."""
    pi = rng.dirichlet(np.ones(num_actions) * 0.7, size=length + 1)
    if num_actions > 2:  # an illegal action: π is 0, and Q is what such actions have
        pi[:, 0] = 0
        pi /= pi.sum(-1, keepdims=True)
    q = rng.normal(size=(length + 1, num_actions))
    if num_actions > 2:
        q[::2, 0] = -np.inf
    a = rng.integers(1 if num_actions > 2 else 0, num_actions, size=length)
    mu = rng.dirichlet(np.ones(num_actions), size=length)
    mu_a = np.maximum(np.take_along_axis(mu, a[:, None], -1)[:, 0], 0.05)
    discount = np.full(length, 0.9)
    if terminated:
        discount[-1] = 0.0
    return {"q": q, "pi": pi, "a": a, "r": rng.normal(size=length), "discount": discount, "mu_a": mu_a}


def joined(rng: np.random.Generator, *, batch: int, num_actions: int, mode: str, size: int = 14) -> Case:
    """Episodes one after the other in each batch element, as one of Gymnasium's vector environments gives them.

    next-step: after an episode's last step comes a dummy row whose observation is its true last state (masked).
    same-step: the next row is already the next episode's first; a truncated end has its value in `expected_q`.
    padding:   one episode, then rows of rubbish (masked).
    """
    columns, episodes = [], []
    for b in range(batch):
        rows: dict[str, list[Any]] = {k: [] for k in ("q", "pi", "a", "r", "discount", "mu_a")}
        reset: list[bool] = []
        mask: list[bool] = []
        expected: list[float] = []
        while len(reset) < size:
            left = size - len(reset)
            length = int(rng.integers(1, 6)) if mode != "padding" else int(rng.integers(1, size + 1))
            length = min(length, left)
            alone = episode(rng, length, num_actions, terminated=bool(rng.integers(2)))
            first = len(reset)
            episodes.append((b, list(range(first, first + length)), alone))
            for k in ("a", "r", "discount", "mu_a"):
                rows[k].extend(alone[k])
            rows["q"].extend(alone["q"][:-1])
            rows["pi"].extend(alone["pi"][:-1])
            reset.extend([True] + [False] * (length - 1))
            mask.extend([True] * length)
            expected.extend(reference.expectations(alone["q"], alone["pi"]))
            last_state = (alone["q"][-1], alone["pi"][-1])
            if mode == "next-step" and len(reset) < size:
                _dummy_row(rows, reset, mask, expected, *last_state, starts=False)
            if mode == "padding":
                if len(reset) < size:
                    _dummy_row(rows, reset, mask, expected, *last_state, starts=False)
                while len(reset) < size:
                    rubbish = np.full(num_actions, np.nan)
                    _dummy_row(rows, reset, mask, expected, rubbish, rubbish, starts=bool(rng.integers(2)))
        rows["q"].append(last_state[0])
        rows["pi"].append(last_state[1])
        columns.append((rows, reset, mask, expected))
    arguments = {k: np.stack([np.asarray(c[0][k]) for c in columns], axis=1) for k in columns[0][0]}
    arguments["reset"] = np.stack([np.asarray(c[1]) for c in columns], axis=1)
    if mode != "same-step":
        arguments["mask"] = np.stack([np.asarray(c[2]) for c in columns], axis=1)
    else:
        arguments["expected_q"] = np.stack([np.asarray(c[3]) for c in columns], axis=1)
    return Case(arguments, episodes)


def _dummy_row(rows: dict, reset: list, mask: list, expected: list, q: Any, pi: Any, *, starts: bool) -> None:
    rows["q"].append(q)
    rows["pi"].append(pi)
    rows["a"].append(-7)
    for k in ("r", "discount", "mu_a"):
        rows[k].append(np.nan)
    reset.append(starts)
    mask.append(False)
    expected.append(np.nan)


# -- the double sum -------------------------------------------------------------------------------------------


def targets(name: str, lam: float, arguments: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The targets by the paper's double sum, and the sum of absolute terms that errors are measured against."""
    w = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in arguments.items()}
    n, batch = w["r"].shape[0], w["r"].shape[1:]
    real = w.get("mask", np.ones(w["r"].shape, bool))
    q_a = np.zeros(w["r"].shape)
    for place in np.ndindex(*q_a.shape):
        if real[place]:
            q_a[place] = w["q"][(*place, w["a"][place])]

    def step(t: int, b: tuple[int, ...]) -> Step:
        action = int(w["a"][(t, *b)])
        policy = w["pi"][(t, *b)]
        return Step(lam, float(policy[action]), float(w["mu_a"][(t, *b)]), w["q"][(t, *b)], policy, action)

    def weight(start: int, t: int, b: tuple[int, ...]) -> float:
        between = [step(i, b) for i in range(start + 1, t + 1)]
        if name in BETA:
            return BETA[name](between)
        return math.prod(COEFFICIENT[name](s) for s in between)

    expected = w.get("expected_q")
    if expected is None:
        expected = np.zeros(w["r"].shape)
        for place in np.ndindex(n, *batch):
            t, b = place[0], place[1:]
            if real[place] and w["discount"][place] != 0:
                q, pi = w["q"][(t + 1, *b)], w["pi"][(t + 1, *b)]
                expected[place] = sum(p * x for p, x in zip(pi, q, strict=True) if p != 0)
    delta, absolute = reference.double_sum(
        q_a, expected, w["r"], w["discount"], weight, reset=w.get("reset"), mask=w.get("mask")
    )
    return np.where(real, q_a + delta, 0), absolute + np.abs(q_a)
