"""Measure each term of Eq. 3 in a function that no known mistake fits, and name it.

Targets are linear in the rewards, and nearly always in Q. So changing one reward at a time shows
how much of each step reaches each target, which is γ c γ c …; changing one value at a time shows
what stands for E_π Q and what is subtracted. Each term is then looked up in a small grammar of
formulas, simplest first (`offtrace.doctor.formulas`). Terms are measured independently, so three
mistakes at once give three lines.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.answers import Answer, single_answer
from offtrace.doctor.formulas import BASELINES, NONLINEAR, NUM_ACTIONS, ROUNDING, WEIGHTS, Place, name_c, name_weights
from offtrace.doctor.golden import ENDING, PROBES
from offtrace.doctor.quantities import ENDS
from offtrace.doctor.recursion import coefficients
from offtrace.doctor.responses import REWARD_CHANGE, Response, measured, tolerance
from offtrace.doctor.search import Guess
from offtrace.doctor.windows import GoldenWindow

COMPANIONS = PROBES[-2:]
"""The other streams of a batch while terms are measured."""
EXPECTATION = "E_π Q(x_{t+1},·)"
BASELINE = "Q(x_{t+1},a_{t+1})"


class WrongTerm(NamedTuple):
    """One term of Eq. 3 that is not as it should be."""

    term: str
    text: str
    named: bool = True
    """True if a formula was found for it; otherwise `text` describes the numbers."""


def wrong_terms(fn: Callable[..., Any], answer: Answer, guess: Guess) -> list[WrongTerm]:
    """Return the terms that differ from Eq. 3, or nothing if they cannot be measured."""
    convention = answer.attempt.convention
    if answer.form.target is None or answer.form.clamped or convention.two_networks:
        return []
    answer = _beside(answer, COMPANIONS)
    if convention.knows_lambda:
        guess = replace(guess, lambda_=PROBES[0].lambda_)
    if convention.takes_gamma:
        guess = replace(guess, gamma=PROBES[0].gamma)
    try:
        mixed = _mixing(fn, answer)
        responses = [measured(fn, answer, guess, window) for window in PROBES[:-2]]
    except Exception:  # the user's function may raise anything on these inputs
        return []
    near = tolerance(answer)
    if mixed > near:
        return [
            WrongTerm("G_t", "the streams of a batch are mixed: a reward in one stream changes targets of another")
        ]
    if not all(np.isfinite(x.rewards).all() and np.isfinite(x.values).all() for x in responses):
        return []
    order = _order(responses, near)
    if order is not None:
        return [order]
    found = [_own_reward(responses, near), _trace(responses, near), _values(responses, near)]
    wrong = [term for term in found if term is not None]
    return wrong or _ends(fn, answer, guess, near)


def _beside(answer: Answer, companions: tuple[GoldenWindow, ...]) -> Answer:
    """Return the answer with other windows in the rest of the batch."""
    convention = replace(answer.attempt.convention, companions=companions)
    return replace(answer, attempt=replace(answer.attempt, convention=convention))


def _mixing(fn: Callable[..., Any], answer: Answer) -> float:
    """Return how much the rewards of the other streams change the targets of the first."""
    if not answer.attempt.convention.batched:
        return 0.0
    others = tuple(replace(w, r=tuple(x + REWARD_CHANGE for x in w.r)) for w in COMPANIONS)
    changed = _beside(answer, others)
    return float(np.abs(single_answer(fn, answer, PROBES[0]) - single_answer(fn, changed, PROBES[0])).max())


# -- each term -------------------------------------------------------------------------------------


def _order(responses: list[Response], near: float) -> WrongTerm | None:
    """Check that targets depend on later rewards only. Some functions reverse time."""
    if all(np.abs(np.tril(x.rewards, -1)).max() <= near for x in responses):
        return None
    if all(np.abs(np.tril(x.rewards[::-1], -1)).max() <= near for x in responses):
        return WrongTerm("G_t", "the output is in reverse order: row t holds the result of row n−1−t")
    if all(np.abs(np.triu(x.rewards, 1)).max() <= near for x in responses):
        return WrongTerm(
            "G_{t+1}", "it runs forwards in time: G_t depends on rewards before step t, and on none after"
        )
    return WrongTerm("G_t", "G_t depends on rewards of steps before t", named=False)


OwnRule = Callable[[Response, np.ndarray, int], float]
"""From a response, its c and a step to the weight of the step's own reward."""

OWN_WEIGHTS: dict[str, OwnRule] = {
    "λ": lambda x, c, t: x.lambda_,
    "1 − λ": lambda x, c, t: 1 - x.lambda_,
    "γ": lambda x, c, t: x.gamma,
    "1 − γ": lambda x, c, t: 1 - x.gamma,
    "1/n, where n is the length of the window": lambda x, c, t: 1 / x.n,
    "c_t, the first action's own": lambda x, c, t: c[t],
    "π(a_t)/μ(a_t), the first action's own": lambda x, c, t: x.window.pi_a[t] / x.window.mu_a[t],
    "γ^t": lambda x, c, t: x.gamma**t,
    "γ^t c_1 … c_t: the product starts in row 0, not at step t": lambda x, c, t: (
        x.gamma**t * float(np.prod(c[1 : t + 1]))
    ),
    "c_1 … c_t: the product starts in row 0, not at step t": lambda x, c, t: float(np.prod(c[1 : t + 1])),
}


def _own_reward(responses: list[Response], near: float) -> WrongTerm | None:
    """Check that each target counts its own reward with weight 1."""
    seen = np.concatenate([np.diag(x.rewards) for x in responses])
    if np.abs(seen - 1).max() <= near:
        return None
    scaled = "r_t" if _bootstrap_is_right(responses, near) else "the whole correction of step t"
    for name, rule in OWN_WEIGHTS.items():
        expected = []
        for x in responses:
            c = np.array(coefficients(x.window, "retrace", x.lambda_))
            expected += [rule(x, c, t) for t in range(x.n)]
        if np.abs(seen - expected).max() <= near:
            return WrongTerm("r_t", f"{scaled} is multiplied by {name}")
    return WrongTerm("r_t", f"the weight of r_t in G_t is {_some(seen)}; it should be 1", named=False)


def _bootstrap_is_right(responses: list[Response], near: float) -> bool:
    """Check the weights of Q in the last state, whatever the weight of the rewards."""
    seen = np.array([x.values[x.n - 1, x.n] / x.gamma - x.window.pi[x.n] for x in responses])
    return bool(np.abs(seen).max() <= near)


def _trace(responses: list[Response], near: float) -> WrongTerm | None:
    """Measure c, the ratio of two neighbouring entries of ∂G_t/∂r_s, and name it."""
    gamma = responses[0].gamma
    for lag in range(2, responses[0].n):
        nearer = np.concatenate([np.diag(x.rewards, lag - 1) for x in responses])
        further = np.concatenate([np.diag(x.rewards, lag) for x in responses])
        if np.abs(further).max() <= near < np.abs(nearer).max():
            steps = "1 step" if lag == 2 else f"{lag - 1} steps"
            return WrongTerm("G_{t+1}", f"a target reaches only {steps} ahead: G_{{t+1}} is not complete")
    if not all(_is_product(x, near * ROUNDING) for x in responses):
        return WrongTerm("c_{t+1}", "the weight of a later reward is not a product of one c per step", named=False)
    places = []
    factors = []
    for x in responses:
        for t in range(x.n - 1):
            if abs(x.rewards[t, t]) > near:
                places.append(Place(x, t + 1))
                factors.append(x.rewards[t, t + 1] / x.rewards[t, t] / gamma)
    seen = np.array(factors)
    formula = name_c(places, seen, gamma, near * ROUNDING)
    if formula == "":
        return None
    if formula is None:
        numbers = ", ".join(
            f"{c:.4g} where π = {at.window.pi_a[at.row]:.4g} and μ = {at.window.mu_a[at.row]:.4g}"
            for at, c in list(zip(places, seen, strict=True))[:3]
        )
        return WrongTerm("c_{t+1}", f"c is {numbers}, which no known formula gives", named=False)
    why = ""
    if "1/γ" in formula:
        why = " (γ is missing)"
    elif "γ" in formula:
        why = " (γ is applied once too often)"
    return WrongTerm("c_{t+1}", f"c_{{t+1}} is {formula}{why}; it should be λ·min(1, π/μ)")


def _is_product(x: Response, near: float) -> bool:
    """Check that ∂G_t/∂r_s is a product of one factor per step between t and s."""
    factors = np.ones(x.n)
    for t in range(x.n - 1):
        own = x.rewards[t, t]
        factors[t + 1] = x.rewards[t, t + 1] / own if own else 0.0
    return not any(
        abs(x.rewards[t, s] - x.rewards[t, t] * np.prod(factors[t + 1 : s + 1])) > near
        for t, s in itertools.combinations(range(x.n), 2)
    )


def _values(responses: list[Response], near: float) -> WrongTerm | None:
    """Name the weights of Q(x_{t+1}, ·), or the value subtracted from G_{t+1}.

    The last state shows the weights alone. Inside the window, the value that c_{t+1} multiplies is
    subtracted:

        ∂G_t/∂Q(x_{t+1}, ·)  =  γ (weights − c_{t+1} · one_hot(a_{t+1}))
    """
    if any(np.abs(np.diag(x.rewards)).min() <= near for x in responses):
        return None  # a reward that has no effect leaves nothing to measure by
    if not all(x.linear for x in responses):
        return _nonlinear(responses, near)
    ends = [Place(x, x.n) for x in responses]
    places = [Place(x, t + 1) for x in responses for t in range(x.n - 1)]
    only_rewards_scaled = _bootstrap_is_right(responses, near)
    last = np.array([_slope_by_values(at, only_rewards_scaled) for at in ends])
    inside = np.array([_slope_by_values(at, only_rewards_scaled) for at in places])
    c = np.array([_c(at) for at in places])[:, None]
    taken = np.array([np.eye(NUM_ACTIONS)[at.window.a[at.row]] for at in places])
    at_end = name_weights(last, ends, near)
    within = name_weights(inside + c * taken, places, near)
    should = "it should be weighted with π(·|x_{t+1})"
    if at_end == within == "π":
        return None
    if at_end == within:
        return WrongTerm(EXPECTATION, f"Q is weighted with {at_end or _some(last)}; {should}")
    if at_end is None:
        return WrongTerm(EXPECTATION, f"in the last state Q is weighted with {_some(last)}; {should}", named=False)
    if within is None:
        subtracted = np.array([WEIGHTS[at_end](at) for at in places]) - inside
        return _baseline(subtracted, c, places, near)
    if within == "π":
        return WrongTerm(EXPECTATION, f"in the window's last state Q is weighted with {at_end}; {should}")
    return WrongTerm(EXPECTATION, f"inside the window Q is weighted with {within}; {should}")


def _nonlinear(responses: list[Response], near: float) -> WrongTerm:
    gamma = responses[0].gamma
    seen = np.array([(x.targets[-1] - x.window.r[-1]) / gamma for x in responses])
    for name, value in NONLINEAR.items():
        if np.abs(seen - [value(np.array(x.window.q[x.n])) for x in responses]).max() <= near:
            return WrongTerm(EXPECTATION, f"{name} is used in place of the expectation over π")
    return WrongTerm(EXPECTATION, "it is not linear in Q, as an expectation over π is", named=False)


def _slope_by_values(at: Place, only_rewards_scaled: bool) -> np.ndarray:
    """Return ∂G_t/∂Q(x_{t+1}, ·) / γ, where t + 1 is the place's row.

    Where the whole correction is scaled, and not the reward only, it is divided by that scale.
    """
    x = at.response
    t = at.row - 1
    scale = x.rewards[t, t]
    if only_rewards_scaled or x.rewards[x.n - 1, x.n - 1] == 1.0:
        scale = 1.0
    return x.values[t, t + 1] / scale / x.gamma


def _c(at: Place) -> float:
    x = at.response
    t = at.row - 1
    return x.rewards[t, t + 1] / x.rewards[t, t] / x.gamma


def _baseline(subtracted: np.ndarray, c: np.ndarray, places: list[Place], near: float) -> WrongTerm:
    for name, rule in BASELINES.items():
        expected = c * np.array([rule(at) for at in places])
        if np.abs(subtracted - expected).max() <= near * ROUNDING:
            return WrongTerm(BASELINE, f"{name} is subtracted from G_{{t+1}}")
    return WrongTerm(BASELINE, "the value subtracted from G_{t+1} is not Q(x_{t+1}, a_{t+1})", named=False)


def _ends(fn: Callable[..., Any], answer: Answer, guess: Guess, near: float) -> list[WrongTerm]:
    """Look at the steps around a termination, once everything away from ends is right."""
    if not ENDS & answer.attempt.convention.kinds:
        return []
    try:
        responses = [measured(fn, answer, guess, window) for window in ENDING]
    except Exception:  # the user's function may raise anything on these inputs
        return []
    if any(np.abs(np.diag(x.rewards) - 1).max() > near for x in responses):
        return [WrongTerm("r_t", "the reward of a step that terminates is not counted in full")]
    texts: dict[str, None] = {}
    for x in responses:
        for t in range(x.n):
            text = _wrong_at_end(x, t, near)
            if text:
                texts[text] = None
    return [WrongTerm("γ_t", text) for text in texts]


def _wrong_at_end(x: Response, t: int, near: float) -> str:
    """Return what is wrong in step t of a window with a termination, or nothing."""
    inside = t + 1 < x.n
    ends = x.window.terminated[t]
    ends_after = inside and x.window.terminated[t + 1]
    reaches = inside and abs(x.rewards[t, t + 1]) > near
    if ends and reaches:
        return "a step that terminates still gets corrections from the step after it"
    if ends and np.abs(x.values[t, t + 1]).max() > near:
        return "a step that terminates still bootstraps from the state after it"
    if ends or reaches or not inside:
        return ""
    if ends_after:
        return "the trace is cut one step before the end: by the done of step t+1, not of step t"
    return "the trace is cut where no episode ends"


def _some(seen: np.ndarray) -> str:
    """Return the first three distinct numbers."""
    return ", ".join(f"{x:.4g}" for x in list(dict.fromkeys(np.round(seen.reshape(-1), 6)))[:3]) + ", …"
