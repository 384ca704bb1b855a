"""What a function computes, term by term, where no known mistake fits: every term of Eq. 3 is measured, and named.

Targets are linear in the rewards, and nearly always in Q. So one reward changed at a time shows how much of each step
reaches each target, which is γ c γ c …; one value changed at a time shows what stands for E_π Q and what is
subtracted. Each term is then looked up in a small grammar of formulas, simplest first. Terms are independent: three
mistakes at once are three lines.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.answers import Answer, once
from offtrace.doctor.golden import ENDING, PROBES, Golden, dot
from offtrace.doctor.mistakes import base, coefficients
from offtrace.doctor.search import Guess

REWARD, VALUE = 1.0, 0.0625
"""By how much inputs are changed: a value by less than any two differ, so that the greedy action stays."""
BESIDE = PROBES[-2:]


@dataclass(frozen=True)
class Response:
    """How the targets of one window move with its rewards and values."""

    window: Golden
    streams: tuple[Golden, ...]
    lambda_: float
    gamma: float
    targets: np.ndarray
    rewards: np.ndarray
    """∂G_t / ∂r_s."""
    values: np.ndarray
    """∂G_t / ∂Q(x_s, b)."""
    linear: bool
    """In Q."""

    @property
    def n(self) -> int:
        return self.window.n


def measured(fn: Callable[..., Any], answer: Answer, guess: Guess, window: Golden) -> Response:
    """Changes the rewards and values of a window one at a time."""
    to_target = answer.form.target
    assert to_target is not None

    def targets(changed: Golden) -> np.ndarray:
        base_ = np.array(base(changed, guess.algorithm, guess.how)[: changed.n])
        return to_target(once(fn, answer, changed), base_)

    def moved(t: int, b: int, by: float) -> np.ndarray:
        row = tuple(x + by * (i == b) for i, x in enumerate(window.q[t]))
        return (targets(replace(window, q=(*window.q[:t], row, *window.q[t + 1 :]))) - before) / by

    before = targets(window)
    rewards = [
        targets(replace(window, r=(*window.r[:s], window.r[s] + REWARD, *window.r[s + 1 :]))) - before
        for s in range(window.n)
    ]
    cells = [[(t, b) for b in range(len(row))] for t, row in enumerate(window.q)]
    values, again = (np.array([[moved(t, b, by) for t, b in row] for row in cells]) for by in (VALUE, -VALUE))
    return Response(
        window=window,
        streams=answer.run.convention.streams(window),
        lambda_=guess.lambda_,
        gamma=guess.gamma,
        targets=before,
        rewards=np.array(rewards).T / REWARD,
        values=np.moveaxis(values, -1, 0),
        linear=bool(np.allclose(values, again, atol=_near(answer))),
    )


def _near(answer: Answer) -> float:
    return 1e-7 if answer.tolerance < 1e-6 else 4e-3


class Term(NamedTuple):
    """One term of Eq. 3 that is not as it should be."""

    term: str
    says: str
    named: bool = True
    """By a formula; otherwise by what was seen."""


def parted(fn: Callable[..., Any], answer: Answer, guess: Guess) -> list[Term]:
    """The terms that part from Eq. 3, each with what stands there; none if they cannot be measured."""
    if answer.form.target is None or answer.form.clamped or answer.run.convention.two_networks:
        return []
    convention = answer.run.convention
    answer = replace(answer, run=replace(answer.run, convention=replace(convention, beside=BESIDE)))
    if convention.knows_lambda:
        guess = replace(guess, lambda_=PROBES[0].lambda_)
    if {"gamma", "discount"} & convention.kinds:
        guess = replace(guess, gamma=PROBES[0].gamma)
    try:
        mixed = _mixed(fn, answer)
        responses = [measured(fn, answer, guess, window) for window in PROBES[:-2]]
    except Exception:  # somebody's function, with inputs of ours
        return []
    near = _near(answer)
    if mixed > near:
        return [Term("G_t", "the streams of a batch are mixed: a reward in one stream moves the targets of another")]
    if not all(np.isfinite(x.rewards).all() and np.isfinite(x.values).all() for x in responses):
        return []
    order = _order(responses, near)
    if order:
        return [order]
    found = [*_own(responses, near), *_carried(responses, near), *_values(responses, near)]
    return found or _ends(fn, answer, guess, near)


def _mixed(fn: Callable[..., Any], answer: Answer) -> float:
    """How much the rewards of the other streams move the targets of the first."""
    convention = answer.run.convention
    if not convention.batched:
        return 0.0
    others = tuple(replace(w, r=tuple(x + REWARD for x in w.r)) for w in BESIDE)
    changed = replace(answer, run=replace(answer.run, convention=replace(convention, beside=others)))
    return float(np.abs(once(fn, answer, PROBES[0]) - once(fn, changed, PROBES[0])).max())


# -- each term --------------------------------------------------------------------------------------------------


def _order(responses: list[Response], near: float) -> Term | None:
    """Targets depend on the rewards to come; some functions turn time round."""
    if all(np.abs(np.tril(x.rewards, -1)).max() <= near for x in responses):
        return None
    if all(np.abs(np.tril(x.rewards[::-1], -1)).max() <= near for x in responses):
        return Term("G_t", "the answer is in reverse order: what stands in row t belongs to row n−1−t")
    if all(np.abs(np.triu(x.rewards, 1)).max() <= near for x in responses):
        return Term(
            "G_{t+1}", "it runs forwards in time: G_t depends on the rewards before step t, and on none after"
        )
    return Term("G_t", "G_t depends on rewards of steps before t", named=False)


def _own(responses: list[Response], near: float) -> Iterator[Term]:
    """How much its own reward counts in each target: 1."""
    gamma = responses[0].gamma
    seen = np.concatenate([np.diag(x.rewards) for x in responses])
    if np.abs(seen - 1).max() <= near:
        return
    what = "r_t" if _values_stand(responses, near) else "the whole correction of step t"
    rules: dict[str, Callable[[Response, np.ndarray, int], float]] = {
        "λ": lambda x, c, t: x.lambda_,
        "1 − λ": lambda x, c, t: 1 - x.lambda_,
        "γ": lambda x, c, t: gamma,
        "1 − γ": lambda x, c, t: 1 - gamma,
        "1/n, n the length of the window": lambda x, c, t: 1 / x.n,
        "c_t, the first action's own": lambda x, c, t: c[t],
        "π(a_t)/μ(a_t), the first action's own": lambda x, c, t: x.window.pi_a[t] / x.window.mu_a[t],
        "γ^t": lambda x, c, t: gamma**t,
        "γ^t c_1 … c_t, so the product starts in row 0 and not at step t": lambda x, c, t: (
            gamma**t * float(np.prod(c[1 : t + 1]))
        ),
        "c_1 … c_t, so the product starts in row 0 and not at step t": lambda x, c, t: float(np.prod(c[1 : t + 1])),
    }
    for says, rule in rules.items():
        expected = [
            rule(x, np.array(coefficients(x.window, "retrace", x.lambda_)), t) for x in responses for t in range(x.n)
        ]
        if np.abs(seen - expected).max() <= near:
            yield Term("r_t", f"{what} is multiplied by {says}")
            return
    yield Term("r_t", f"its own reward counts {_some(seen)} in a target, and should count 1", named=False)


def _values_stand(responses: list[Response], near: float) -> bool:
    """The bootstrap counts in full, whatever its own reward does."""
    seen = np.array([x.values[x.n - 1, x.n] / x.gamma - x.window.pi[x.n] for x in responses])
    return bool(np.abs(seen).max() <= near)


def _carried(responses: list[Response], near: float) -> Iterator[Term]:
    """c: how much more of the step after reaches a target than of the step."""
    gamma = responses[0].gamma
    for far in range(2, responses[0].n):
        nearer, further = (np.concatenate([np.diag(x.rewards, k) for x in responses]) for k in (far - 1, far))
        if np.abs(further).max() <= near < np.abs(nearer).max():
            reached = f"{far - 1} step{'s' * (far > 2)}"
            yield Term("G_{t+1}", f"a target reaches {reached} ahead and no further: G_{{t+1}} is not complete")
            return
    points, factors = [], []
    for x in responses:
        for t in range(x.n - 1):
            if abs(x.rewards[t, t]) > near:
                points.append(Point(x, t + 1))
                factors.append(x.rewards[t, t + 1] / x.rewards[t, t] / gamma)
        step = np.r_[1.0, [x.rewards[t, t + 1] / x.rewards[t, t] if x.rewards[t, t] else 0.0 for t in range(x.n - 1)]]
        for t, s in itertools.combinations(range(x.n), 2):
            if abs(x.rewards[t, s] - x.rewards[t, t] * np.prod(step[t + 1 : s + 1])) > near * 4:
                yield Term("c_{t+1}", "what reaches back is no product of one c per step", named=False)
                return
    seen = np.array(factors)
    formula = named(points, seen, gamma, near * 4)
    if formula is None:
        rows = ", ".join(
            f"{c:.4g} where π = {p.x.window.pi_a[p.s]:.4g} and μ = {p.x.window.mu_a[p.s]:.4g}"
            for p, c in list(zip(points, seen, strict=True))[:3]
        )
        yield Term("c_{t+1}", f"c is {rows}: no formula that is known here", named=False)
    elif formula:
        why = " (γ is missing in what is carried back)" if "1/γ" in formula else ""
        why = why or (" (γ is there once more than it should)" if "γ" in formula else "")
        yield Term("c_{t+1}", f"c_{{t+1}} is {formula}{why}, and should be λ·min(1, π/μ)")


def _values(responses: list[Response], near: float) -> Iterator[Term]:
    """What stands for E_π Q(x_{t+1}, ·), read off the window's last state; and what is subtracted before it."""
    gamma = responses[0].gamma
    last = [(x, x.rewards[x.n - 1, x.n - 1]) for x in responses]
    if any(np.abs(np.diag(x.rewards)).min() <= near for x in responses):
        return  # there is nothing to measure by
    inside = [(x, t) for x in responses for t in range(x.n - 1)]
    if not all(x.linear for x in responses):
        seen = np.array([(x.targets[-1] - x.window.r[-1]) / gamma for x in responses])
        for says, value in NONLINEAR.items():
            if np.abs(seen - [value(np.array(x.window.q[x.n])) for x in responses]).max() <= near:
                yield Term("E_π Q(x_{t+1},·)", f"{says} stands for the expectation over π")
                return
        yield Term("E_π Q(x_{t+1},·)", "it is not linear in Q, as an expectation over π is", named=False)
        return
    if _values_stand(responses, near):
        last = [(x, 1.0) for x in responses]
    seen = np.array([x.values[x.n - 1, x.n] / weight / gamma for x, weight in last])
    at_end = _weights(seen, [(x, x.n) for x, _ in last], near)
    weights = {id(x): weight if weight == 1.0 else None for x, weight in last}
    middle = np.array([x.values[t, t + 1] / (weights[id(x)] or x.rewards[t, t]) / gamma for x, t in inside])
    c = np.array([x.rewards[t, t + 1] / x.rewards[t, t] / gamma for x, t in inside])
    rows = [(x, t + 1) for x, t in inside]
    taken = np.array([np.eye(3)[x.window.a[t + 1]] for x, t in inside])
    within = _weights(middle + c[:, None] * taken, rows, near)
    if at_end == within:
        if at_end != "π":
            yield Term(
                "E_π Q(x_{t+1},·)", f"Q is weighed with {at_end or _some(seen)}, and should be with π(·|x_{{t+1}})"
            )
        return
    if within is not None and at_end is not None:
        where = "in the window's last state" if within == "π" else "inside the window"
        other = at_end if within == "π" else within
        yield Term("E_π Q(x_{t+1},·)", f"{where} Q is weighed with {other}, and should be with π(·|x_{{t+1}})")
        return
    if at_end is not None:
        subtracted = np.array([WEIGHTS[at_end](x, m) for x, m in rows]) - middle
        for says, rule in BASELINES.items():
            expected = c[:, None] * np.array([rule(x, m) for x, m in rows])
            if np.abs(subtracted - expected).max() <= near * 4:
                yield Term("Q(x_{t+1},a_{t+1})", f"{says} is subtracted from G_{{t+1}}")
                return
        says = "what is subtracted from G_{t+1} is not Q(x_{t+1}, a_{t+1})"
        yield Term("Q(x_{t+1},a_{t+1})", says, named=False)
        return
    yield Term(
        "E_π Q(x_{t+1},·)", f"Q is weighed with {_some(seen)} in the last state, and should be with π", named=False
    )


def _ends(fn: Callable[..., Any], answer: Answer, guess: Guess, near: float) -> list[Term]:
    """All is well away from ends: what happens where an episode terminates, and one step beside that?"""
    if not {"discount", "not_done", "terminated", "done"} & answer.run.convention.kinds:
        return []
    try:
        responses = [measured(fn, answer, guess, window) for window in ENDING]
    except Exception:  # as above
        return []
    if any(np.abs(np.diag(x.rewards) - 1).max() > near for x in responses):
        return [Term("r_t", "where a step terminates, its own reward is not counted in full")]
    found: dict[str, None] = {}
    for x in responses:
        for t in range(x.n):
            ends, ends_after = x.window.terminated[t], t + 1 < x.n and x.window.terminated[t + 1]
            reaches = t + 1 < x.n and abs(x.rewards[t, t + 1]) > near
            if ends and not reaches and np.abs(x.values[t, t + 1]).max() > near:
                found["where a step terminates, it still bootstraps from the state after it"] = None
            if ends and reaches:
                found["where a step terminates, the step after still reaches back through the end"] = None
            if ends_after and not ends and not reaches:
                found["the trace is cut one step before the end: by the done of step t+1, not of step t"] = None
            if not ends and not ends_after and t + 1 < x.n and not reaches:
                found["the trace is cut where no episode ends"] = None
    return [Term("γ_t", says) for says in found]


def _some(seen: np.ndarray) -> str:
    """A few numbers of many."""
    return ", ".join(f"{x:.4g}" for x in list(dict.fromkeys(np.round(seen.reshape(-1), 6)))[:3]) + ", …"


# -- values -----------------------------------------------------------------------------------------------------

Weigh = Callable[[Response, int], Any]

WEIGHTS: dict[str, Weigh] = {
    "π": lambda x, m: np.array(x.window.pi[m]),
    "μ(·|x_{t+1})": lambda x, m: np.array(x.window.mu[m]),
    "π(·|x_t), that of the state before": lambda x, m: np.array(x.window.pi[m - 1]),
    "1/A, the same for all actions": lambda x, m: np.full(3, 1 / 3),
    "π/A (a mean over actions where a sum belongs)": lambda x, m: np.array(x.window.pi[m]) / 3,
    "2π (the bootstrap is counted twice)": lambda x, m: 2 * np.array(x.window.pi[m]),
    "γπ (it is discounted twice)": lambda x, m: x.gamma * np.array(x.window.pi[m]),
    "π/γ (it is not discounted)": lambda x, m: np.array(x.window.pi[m]) / x.gamma,
    "λπ (λ belongs to c alone)": lambda x, m: x.lambda_ * np.array(x.window.pi[m]),
    "(1 − λ)π": lambda x, m: (1 - x.lambda_) * np.array(x.window.pi[m]),
    "0 (there is no bootstrap)": lambda x, m: np.zeros(3),
    "1 for every action": lambda x, m: np.ones(3),
    "1 for the likeliest action of π": lambda x, m: np.eye(3)[int(np.argmax(x.window.pi[m]))],
    "1 for the likeliest action of μ": lambda x, m: np.eye(3)[int(np.argmax(x.window.mu[m]))],
    "1 for the greedy action": lambda x, m: np.eye(3)[int(np.argmax(x.window.q[m]))],
    "1 for the worst action": lambda x, m: np.eye(3)[int(np.argmin(x.window.q[m]))],
    "1 for the action taken there": lambda x, m: np.eye(3)[x.window.a[m]],
    "1 for a_t, the action of the step before": lambda x, m: np.eye(3)[x.window.a[m - 1]],
}
BASELINES: dict[str, Weigh] = {
    "Q(x_{t+1}, a_t), the action being that of the step before,": lambda x, m: np.eye(3)[x.window.a[m - 1]],
    "E_π Q(x_{t+1}, ·)": lambda x, m: np.array(x.window.pi[m]),
    "E_μ Q(x_{t+1}, ·)": lambda x, m: np.array(x.window.mu[m]),
    "max Q(x_{t+1}, ·)": lambda x, m: np.eye(3)[int(np.argmax(x.window.q[m]))],
    "the mean of Q(x_{t+1}, ·)": lambda x, m: np.full(3, 1 / 3),
    "nothing": lambda x, m: np.zeros(3),
}


def _soft(q: np.ndarray) -> np.ndarray:
    weights = np.exp(q - q.max())
    return weights / weights.sum()


NONLINEAR: dict[str, Callable[[np.ndarray], float]] = {
    "the expectation under softmax(Q)": lambda q: dot(tuple(_soft(q)), tuple(q)),
    "log Σ exp Q": lambda q: float(np.log(np.exp(q - q.max()).sum()) + q.max()),
    "max Q": lambda q: float(q.max()),
    "min Q": lambda q: float(q.min()),
}


def _weights(seen: np.ndarray, rows: list[tuple[Response, int]], near: float) -> str | None:
    for says, rule in WEIGHTS.items():
        if np.abs(seen - np.array([rule(x, m) for x, m in rows])).max() <= near * 4:
            return says
    return None


# -- a grammar of c -----------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """Where a c was measured: that of row s."""

    x: Response
    s: int


Formula = tuple[str, np.ndarray]


def named(points: list[Point], seen: np.ndarray, gamma: float, near: float) -> str | None:
    """The simplest formula that gives every c that was seen: "" for Retrace's, None if there is none."""
    lam = np.array([p.x.lambda_ for p in points])
    row = np.array([p.s for p in points])
    best: tuple[int, str] | None = None
    for (cost, base_says, ratio), (scale_cost, scale_says, scale) in itertools.product(
        _bases(points), _scales(lam, row, gamma)
    ):
        for clip_cost, clip_says, clip in _clips(ratio, seen / scale, lam):
            total = cost + scale_cost + clip_cost
            if best is not None and total >= best[0]:
                continue
            c = scale * clip
            for power_cost, power_says, value in (
                (0, "", c),
                (2, "^λ", np.abs(clip) ** lam * scale / np.maximum(lam, 1e-9)),
            ):
                if total + power_cost < (best[0] if best else 99) and np.abs(value - seen).max() <= near:
                    inner = clip_says.format(base_says)
                    outer = scale_says.replace("λ·", "") if power_says else scale_says
                    best = total + power_cost, f"{outer}{inner}{power_says}"
    return None if best is None else best[1] if best[0] else ""


def _bases(points: list[Point]) -> list[tuple[int, str, np.ndarray]]:
    """What is clipped, with how odd it is: π/μ costs nothing."""

    def at(rows: Callable[[Golden], Any], shift: int = 0) -> np.ndarray:
        return np.array([rows(p.x.window)[p.s + shift] for p in points])

    def over(reduce: Callable[..., Any], which: str) -> np.ndarray:
        out = []
        for p in points:
            table = np.array([[a / b for a, b in zip(w.pi_a, w.mu_a, strict=True)][: w.n] for w in p.x.streams])
            out.append({"window": reduce(table[0]), "batch": reduce(table[:, p.s]), "all": reduce(table)}[which])
        return np.array(out)

    pi, mu = at(lambda w: w.pi_a), at(lambda w: w.mu_a)
    before, mu_before = at(lambda w: w.pi_a, -1), at(lambda w: w.mu_a, -1)
    after, mu_after = at(lambda w: w.pi_a, 1), at(lambda w: w.mu_a, 1)
    greedy = np.array([float(p.x.window.a[p.s] == np.argmax(p.x.window.q[p.s])) for p in points])
    made = [
        (0, "π/μ", pi / mu),
        (1, "μ/π", mu / pi),
        (1, "π", pi),
        (1, "1", np.ones_like(pi)),
        (1, "π(a_t)/μ(a_t)", before / mu_before),
        (1, "π(a_{t+2})/μ(a_{t+2})", after / mu_after),
        (1, "π(a_{t+1})/μ(a_t)", pi / mu_before),
        (1, "π(a_t)/μ(a_{t+1})", before / mu),
        (1, "π(a_{t+1})/μ(a_{t+2})", pi / mu_after),
        (2, "μ", mu),
        (2, "√(π/μ)", np.sqrt(pi / mu)),
        (2, "(π/μ)²", (pi / mu) ** 2),
        (2, "1/μ", 1 / mu),
        (2, "1{a greedy}", greedy),
        (2, "(1 − π)/(1 − μ)", (1 - pi) / (1 - mu)),
        (2, "π/(π + μ)", pi / (pi + mu)),
        (2, "(π − μ)", pi - mu),
    ]
    for epsilon in (1e-1, 5e-2, 2e-2, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
        made.append((2, f"(π + {epsilon:g})/(μ + {epsilon:g})", (pi + epsilon) / (mu + epsilon)))
        made.append((2, f"π/max(μ, {epsilon:g})", pi / np.maximum(mu, epsilon)))
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        mixed, mixed_mu = (1 - share) * pi + share / 3, (1 - share) * mu + share / 3
        made.append((2, f"π′/μ with π′ = {1 - share:.2g} π + {share:.2g}/A", mixed / mu))
        made.append((2, f"π/μ′ with μ′ = {1 - share:.2g} μ + {share:.2g}/A", pi / mixed_mu))
        made.append((2, f"π/({1 - share:.2g} μ + {share:.2g} π)", pi / ((1 - share) * mu + share * pi)))
    for name, reduce in (("mean", np.mean), ("sum", np.sum), ("largest", np.max)):
        for which, where in (("window", "window"), ("batch", "batch"), ("all", "batch and window")):
            made.append((2, f"(π/μ over its {name} in the {where})", pi / mu / over(reduce, which)))
    return made


def _scales(lam: np.ndarray, row: np.ndarray, gamma: float) -> list[tuple[int, str, np.ndarray]]:
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
    gammas = [(0, "", one), (1, "γ·", gamma * one), (1, "1/γ·", one / gamma), (2, "γ²·", gamma**2 * one)]
    return [(a + b, x + y, u * v) for (a, x, u), (b, y, v) in itertools.product(lambdas, gammas) if u.all()]


def _clips(ratio: np.ndarray, wanted: np.ndarray, lam: np.ndarray) -> Iterator[tuple[int, str, np.ndarray]]:
    """min(1, ·) costs nothing; of another bound the numbers say which."""
    yield 0, "min(1, {})", np.minimum(1.0, ratio)
    yield 1, "{}", ratio
    yield 1, "max(1, {})", np.maximum(1.0, ratio)
    yield 1, "min(λ, {})", np.minimum(lam, ratio)
    top, bottom = float(np.max(wanted)), float(np.min(wanted))
    if np.isfinite(top) and np.sum(np.abs(wanted - top) < 1e-3) > 1:
        yield 1, f"min({top:.4g}, {{}})", np.minimum(top, ratio)
        if np.sum(np.abs(wanted - bottom) < 1e-3) > 1:
            yield 2, f"({{}} clipped to [{bottom:.4g}, {top:.4g}])", np.clip(ratio, bottom, top)
    elif np.isfinite(bottom) and np.sum(np.abs(wanted - bottom) < 1e-3) > 1:
        yield 2, f"max({bottom:.4g}, {{}})", np.maximum(bottom, ratio)
