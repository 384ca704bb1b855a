"""Eq. 3 as a recursion in plain Python, with one switch per known mistake at the term where it is made.

    G_t = r_t + γ_t [ E_π Q(x_{t+1}, ·) + c_{t+1} (G_{t+1} − Q(x_{t+1}, a_{t+1})) ]

A new mistake is one entry in `MISTAKES`; if it is made at a term that no switch reaches, one switch in `Reading`
and the line of `targets` that reads it.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.golden import GAMMA, Golden, Row, dot
from offtrace.traces import TRACES

EQUATION = "G_t = r_t + γ_t [ E_π Q(x_{t+1},·) + c_{t+1} (G_{t+1} − Q(x_{t+1},a_{t+1})) ]"
VTRACE_EQUATION = "G_t = V(x_t) + ρ_t (r_t + γ_t V(x_{t+1}) − V(x_t)) + γ_t c_t (G_{t+1} − V(x_{t+1}))"


@dataclass(frozen=True)
class Reading:
    """How each term of Eq. 3 is read. The defaults are the paper's."""

    c_row: int = 1
    """c_{t + c_row} carries the correction of step t+1 back to step t."""
    c_beyond: str = "drawn"
    """What stands for c beyond the window: the one of the action drawn there, or zero, one, last."""
    own_ratio: bool = False
    """The product of the traces starts at i = t."""
    policy_row: int = 1
    """π(·|x_{t + policy_row}) weighs Q(x_{t+1}, ·)."""
    backup: str = "expected"
    """expected, under_mu, taken (Sarsa), taken_inside (Sarsa, but the window's last state in expectation), max."""
    baseline: str = "taken"
    """What G_{t+1} is compared with: taken, expected, or nothing."""
    ratio: str = "taken"
    """What min(1, ·) is taken of: taken (π/μ of the action taken), inverted, or π/μ over its mean, sum or largest in
    the window."""
    clip: float = 1.0
    lambda_power: int = 1
    epsilon: float = 0.0
    truncation_terminates: bool = False
    true_next: bool = True
    """At a truncation the value is that of the true last state, not of row t+1."""
    cut: str = "ends"
    """Where the trace is cut: ends, terminations, nowhere."""
    reward_row: int = 0
    discount_row: int = 0
    beyond: str = "zero"
    """What stands for a reward or discount beyond the window: zero, wrap, repeat, gamma."""
    last_done: bool = True
    seed: str = "right"
    """The value at the end of the window: right (of x_n), previous, taken, zero; extra: one step folded too many."""
    clamp_reward: bool = False
    clamp_td: bool = False
    """Each r_t, or each TD error before it is summed, is clamped to [−1, 1]."""
    two_networks: bool = False
    """The function takes Q of an online and of a target network; the three below say which is read where."""
    backup_online: bool = False
    baseline_online: bool = False
    error_online: bool = True


RIGHT = Reading()
RIGHT_OF_TWO = (replace(RIGHT, two_networks=True), replace(RIGHT, two_networks=True, baseline_online=True))
"""With two networks the target's values are learned from, and errors are the online's. The paper does not say whose
Q(x_{t+1}, a_{t+1}) is subtracted (Deviation D12): both are right."""


class Mistake(NamedTuple):
    """One known mistake, and the broken variants of the reference that make it."""

    name: str
    title: str
    sentence: str
    where: str
    """The term of `EQUATION` where it parts."""
    remedy: str
    variants: tuple[dict[str, Any], ...]
    published: bool = True
    """Found in published code; the others are their neighbours."""
    harmless: bool = False
    """The answer is right up to it, where it is small."""
    choice: bool = False
    """Somebody may mean it: not Retrace as the paper has it, and not a slip either."""
    needs: str = ""
    """What the function must take for this to be asked: lambda, or two_networks."""


EPSILONS = (1e-8, 1e-6, 1e-5, 1e-10, 1e-7, 1e-9, 1e-4, 1e-3, 1e-2, 1e-12)

_ENTRIES = (
    Mistake(
        "c_one_step_early",
        "c is used one step early",
        "The correction of step t+1 is carried back by c_t, the coefficient of an action already taken.",
        "c_{t+1}",
        "Shift c by one row: step t needs the coefficient of a_{t+1}. The first row of c is never read.",
        ({"c_row": 0},),
    ),
    Mistake(
        "c_one_step_late",
        "c is used one step late",
        "The correction of step t+1 is carried back by c_{t+2}, the coefficient of the action after it.",
        "c_{t+1}",
        "Shift c back by one row: step t needs the coefficient of a_{t+1}.",
        tuple({"c_row": 2, "c_beyond": edge} for edge in ("drawn", "zero", "one", "last")),
    ),
    Mistake(
        "first_ratio_used",
        "the first action's ratio is used",
        "The product of the traces starts at i = t, so the correction of step t is also weighed by its own c_t.",
        "c_{t+1}",
        "Start the product at i = t+1: a_t was taken already, and its own TD error counts in full.",
        ({"own_ratio": True},),
    ),
    Mistake(
        "policy_of_wrong_state",
        "π of the wrong state weighs Q",
        "π(·|x_t) weighs Q(x_{t+1}, ·): the policy of one state on the values of the next.",
        "E_π Q(x_{t+1},·)",
        "Weigh Q(x_{t+1}, ·) with π(·|x_{t+1}); the function then needs π in the state after the window, too.",
        ({"policy_row": 0},),
    ),
    Mistake(
        "expectation_missing",
        "the expectation over π is missing",
        "Q(x_{t+1}, a_{t+1}) stands where the expectation over π belongs, as in Sarsa.",
        "E_π Q(x_{t+1},·)",
        "Take Σ_a π(a|x_{t+1}) Q(x_{t+1}, a): the action that μ drew says nothing about π.",
        ({"backup": "taken"}, {"backup": "taken_inside"}),
    ),
    Mistake(
        "expectation_is_max",
        "a maximum replaces the expectation over π",
        "max_a Q(x_{t+1}, a) stands where the expectation over π belongs.",
        "E_π Q(x_{t+1},·)",
        "Take Σ_a π(a|x_{t+1}) Q(x_{t+1}, a); the maximum is right only if π is greedy in this same Q.",
        ({"backup": "max"},),
    ),
    Mistake(
        "expectation_under_mu",
        "the expectation is under μ, not under π",
        "μ(·|x_{t+1}) weighs Q(x_{t+1}, ·): the target is that of the policy that acted, not of the one to learn.",
        "E_π Q(x_{t+1},·)",
        "Take Σ_a π(a|x_{t+1}) Q(x_{t+1}, a).",
        ({"backup": "under_mu"},),
        published=False,
    ),
    Mistake(
        "baseline_is_expectation",
        "the wrong value is subtracted from G_{t+1}",
        "The carried correction is G_{t+1} − E_π Q(x_{t+1}, ·), not G_{t+1} − Q(x_{t+1}, a_{t+1}).",
        "Q(x_{t+1},a_{t+1})",
        "Subtract the value of the action that was taken.",
        ({"baseline": "expected"},),
        published=False,
    ),
    Mistake(
        "baseline_missing",
        "nothing is subtracted from G_{t+1}",
        "Nothing is subtracted from G_{t+1}: the bootstrap and the later return are both counted.",
        "Q(x_{t+1},a_{t+1})",
        "Carry back the correction G_{t+1} − Q(x_{t+1}, a_{t+1}), not the return itself.",
        ({"baseline": "nothing"},),
        published=False,
    ),
    Mistake(
        "ratio_inverted",
        "the ratio is inverted",
        "The ratio is μ/π, not π/μ: traces are cut where π would go on, and kept where it would not.",
        "c_{t+1}",
        "Divide π by μ (of log-probabilities: log π − log μ).",
        ({"ratio": "inverted"},),
        published=False,
    ),
    Mistake(
        "ratio_normalised",
        "the ratio is normalised",
        "π/μ is divided by its mean, its sum or its largest value in the window before it is clipped, as in "
        "weighted importance sampling. c may then be above π/μ, which Theorem 1 does not cover.",
        "c_{t+1}",
        "Clip π/μ itself; each step's ratio stands for itself.",
        tuple({"ratio": over} for over in ("mean", "sum", "largest")),
        published=False,
    ),
    Mistake(
        "clip_not_at_one",
        "the ratio is not clipped at 1",
        "The ratio is clipped at c̄ other than 1. Theorem 1 still holds, as c ≤ π/μ, but Retrace clips at 1: above it "
        "the variance grows with each step of the product, below it traces are cut even on-policy.",
        "c_{t+1}",
        "Take min(1, π/μ), unless you mean it.",
        tuple({"clip": clip} for clip in (2.0, 10.0, 5.0, 1.5, 3.0, 0.5, 1.2, 4.0)),
        published=False,
        choice=True,
    ),
    Mistake(
        "lambda_twice",
        "λ is applied twice",
        "λ is applied twice, so the trace decays with λ².",
        "c_{t+1}",
        "Leave λ in c or in the recursion, not in both.",
        ({"lambda_power": 2},),
        needs="lambda",
    ),
    Mistake(
        "lambda_left_out",
        "λ is left out",
        "λ is taken as an argument and not used.",
        "c_{t+1}",
        "Multiply c by λ.",
        ({"lambda_power": 0},),
        needs="lambda",
    ),
    Mistake(
        "epsilon_added_to_mu",
        "an epsilon is added to μ",
        "A small number is added to μ, which biases the ratio where μ is small.",
        "c_{t+1}",
        "Divide by μ as it is: μ of an action that was drawn is above 0. If it is 0, the log is wrong.",
        tuple({"epsilon": epsilon} for epsilon in EPSILONS),
        harmless=True,
    ),
    Mistake(
        "truncation_is_termination",
        "truncation is treated as termination",
        "A truncated step is treated as a terminated one, so the value of its last state is lost.",
        "γ_t",
        "Zero the discount where the step terminated, and only there; a truncated step cuts the trace alone.",
        ({"truncation_terminates": True},),
    ),
    Mistake(
        "bootstrap_from_next_episode",
        "the bootstrap comes from the next episode",
        "At a truncated step the value is taken from row t+1, the first state of the next episode.",
        "E_π Q(x_{t+1},·)",
        "Take the value of the state that the truncated step led to (Gymnasium: `final_obs`).",
        ({"true_next": False},),
    ),
    Mistake(
        "trace_not_cut",
        "the trace is not cut at the end of an episode",
        "The trace is not cut where an episode ends: the next episode's corrections reach back into it.",
        "c_{t+1}",
        "Take c as 0 in the first row of an episode, or multiply the carried correction by 1 − done_t.",
        ({"cut": "terminations"}, {"cut": "nowhere"}),
    ),
    Mistake(
        "reward_one_step_early",
        "rewards are read one step early",
        "Step t gets r_{t+1}, the reward of the step after it.",
        "r_t",
        "Shift the rewards by one row: r_t is what a_t earned.",
        tuple({"reward_row": 1, "beyond": edge} for edge in ("zero", "wrap", "repeat")),
    ),
    Mistake(
        "reward_one_step_late",
        "rewards are read one step late",
        "Step t gets r_{t−1}, the reward of the step before it.",
        "r_t",
        "Shift the rewards by one row: r_t is what a_t earned.",
        tuple({"reward_row": -1, "beyond": edge} for edge in ("zero", "wrap", "repeat")),
        published=False,
    ),
    Mistake(
        "discount_one_step_early",
        "discounts are read one step early",
        "Step t is discounted by γ_{t+1}: an end is seen one step before it happens.",
        "γ_t",
        "Shift the discounts (or the done flags) by one row: γ_t is 0 where step t itself terminated.",
        tuple({"discount_row": 1, "beyond": edge} for edge in ("gamma", "zero", "wrap", "repeat")),
    ),
    Mistake(
        "discount_one_step_late",
        "discounts are read one step late",
        "Step t is discounted by γ_{t−1}: an end is seen one step after it happened.",
        "γ_t",
        "Shift the discounts (or the done flags) by one row: γ_t is 0 where step t itself terminated.",
        tuple({"discount_row": -1, "beyond": edge} for edge in ("gamma", "zero", "wrap", "repeat")),
        published=False,
    ),
    Mistake(
        "last_done_ignored",
        "the last step's done is never applied",
        "The window's last step bootstraps even where it terminated.",
        "γ_t",
        "Apply the last step's done flag to the bootstrap of the whole window.",
        ({"last_done": False},),
    ),
    Mistake(
        "seed_of_wrong_state",
        "the backward pass starts from the wrong value",
        "The backward pass starts from the wrong value: the window's last step must bootstrap from E_π Q(x_n, ·).",
        "E_π Q(x_{t+1},·)",
        "Start with r_{n−1} + γ_{n−1} E_π Q(x_n, ·), x_n being the state after the last action.",
        ({"seed": "previous"}, {"seed": "taken"}, {"seed": "previous_taken"}, {"seed": "extra"}),
    ),
    Mistake(
        "no_bootstrap",
        "the end of the window has no bootstrap",
        "The window's last step does not bootstrap at all, as if every window ended an episode.",
        "E_π Q(x_{t+1},·)",
        "Add γ_{n−1} E_π Q(x_n, ·) to the last reward, unless the step terminated.",
        ({"seed": "zero"},),
        published=False,
    ),
    Mistake(
        "td_errors_clamped",
        "each TD error is clamped",
        "Each TD error is clamped to [−1, 1] before it is summed. The paper clamps the sum, the whole correction of "
        "a step (App. F); of one step's target the two are the same.",
        "r_t",
        "Clamp the correction G_t − Q(x_t, a_t), after the recursion.",
        ({"clamp_td": True},),
        published=False,
    ),
    Mistake(
        "rewards_clamped",
        "rewards are clamped",
        "Rewards are clamped to [−1, 1] inside the function. The paper does so to its rewards (App. F); it belongs "
        "where they are made, so that nobody clamps rewards that should not be.",
        "r_t",
        "Clamp rewards in the environment, or mean it.",
        ({"clamp_reward": True},),
        published=False,
        choice=True,
    ),
    Mistake(
        "networks_swapped",
        "the online and the target network are swapped",
        "The value of x_{t+1} comes from the online network. It belongs to the target network; the online "
        "network's Q(x_t, a_t) is what is learned.",
        "E_π Q(x_{t+1},·)",
        "Swap the two: E_π Q(x_{t+1}, ·) of the target network, errors against Q(x_t, a_t) of the online network.",
        tuple(
            {"backup_online": True, "baseline_online": baseline, "error_online": error}
            for error in (True, False)
            for baseline in (True, False)
        ),
        published=False,
        needs="two_networks",
    ),
    Mistake(
        "error_of_target_network",
        "the error is the target network's",
        "The error is G_t minus the target network's Q(x_t, a_t), which is not what is learned.",
        "r_t",
        "Subtract the online network's Q(x_t, a_t).",
        ({"error_online": False},),
        published=False,
        needs="two_networks",
    ),
)

MISTAKES: dict[str, Mistake] = {entry.name: entry for entry in _ENTRIES}
"""Every known mistake by name."""


def reading(*changes: dict[str, Any], right: Reading = RIGHT) -> Reading | None:
    """The paper's reading with these mistakes in it; None where they contradict each other."""
    merged: dict[str, Any] = {}
    for change in changes:
        for key, value in change.items():
            if merged.setdefault(key, value) != value:
                return None
    return replace(right, **merged)


# -- the algorithms ---------------------------------------------------------------------------------------------

SISTERS = ("peng", "vtrace")
ALGORITHMS = ("one_step", "retrace", *(name for name in TRACES if name not in ("one_step", "retrace")), *SISTERS)
"""Everything a function may turn out to be; where two are the same on every window the first is named."""
BREAKABLE = ("retrace", "tree_backup", "importance_sampling", "q_lambda", "watkins", "one_step", "vtrace")
"""What is tried together with mistakes."""


@lru_cache(maxsize=100_000)
def coefficients(
    window: Golden, algorithm: str, lam: float, epsilon: float = 0.0, ratio: str = "taken", clip: float = 1.0
) -> tuple[float, ...]:
    """c_0 … c_n."""
    if algorithm == "peng":
        return (lam,) * (window.n + 1)
    if (ratio, clip) != ("taken", 1.0) and algorithm in ("retrace", "vtrace", "importance_sampling"):
        above = clip if algorithm != "importance_sampling" else np.inf
        return tuple(float(lam * min(above, x)) for x in _ratios(window, epsilon, ratio))
    rule: Any = TRACES["retrace" if algorithm == "vtrace" else algorithm](lam)
    inputs = {"q": window.q, "pi": window.pi, "a": window.a} if rule.needs_q else {}
    c = rule(
        pi_a=np.array(window.pi_a),
        mu_a=np.array(window.mu_a) + epsilon,
        **{key: np.array(value) for key, value in inputs.items()},
    )
    return tuple(float(x) for x in c)


def _ratios(w: Golden, epsilon: float, ratio: str) -> np.ndarray:
    pi_a, mu_a = np.array(w.pi_a), np.array(w.mu_a) + epsilon
    if ratio == "inverted":
        with np.errstate(divide="ignore"):
            return mu_a / pi_a
    rho = pi_a / mu_a
    over = {"mean": np.mean, "sum": np.sum, "largest": np.max, "taken": lambda x: 1.0}[ratio]
    return rho / over(rho[: w.n])


def targets(window: Golden, algorithm: str, lam: float, how: Reading = RIGHT) -> list[float]:
    """G_0 … G_{n−1}.

    >>> from offtrace.doctor.golden import GOLDEN
    >>> targets(GOLDEN[0], "retrace", 1.0)  # 1 + 0.5 (0.25 · 4 + 0.75 · 0)
    [1.5]
    """
    if algorithm in TRACES and not TRACES[algorithm].markov:
        return _trajectory_aware(window, algorithm, lam, how)
    n, w = window.n, window
    q_a = q_a_of(w, how.two_networks and how.baseline_online)
    c = coefficients(w, algorithm, lam**how.lambda_power, how.epsilon, how.ratio, how.clip)
    ends = [w.terminated[t] or (how.truncation_terminates and w.truncated[t]) for t in range(n)]
    if not how.last_done:
        ends[-1] = False
    r = [_shifted(w.r, t + how.reward_row, how.beyond) for t in range(n)]
    if how.clamp_reward:
        r = [min(1.0, max(-1.0, x)) for x in r]
    discount = [0.0 if end else w.gamma for end in ends]
    discount = [_shifted(discount, t + how.discount_row, how.beyond, w.gamma) for t in range(n)]
    values = [_value(w, t, how) for t in range(n)]
    state_values = algorithm == "vtrace"
    compared = {"taken": q_a, "expected": w.v, "nothing": (0.0,) * (n + 1)}
    base = w.v if state_values or algorithm == "peng" else compared[how.baseline]
    own = w.v if state_values else q_a
    out = [0.0] * n
    for t in reversed(range(n)):
        ahead = 0.0
        if t + 1 < n:
            ahead = out[t + 1] - base[t + 1]
        elif how.seed == "extra":  # G_n = E_π Q(x_n, ·), and one more step folded in
            ahead = w.v[n] - w.q_a[n]
        carry = discount[t]
        if t + 1 < n:
            ended = w.terminated[t] or w.truncated[t] or w.starts[t + 1]
            if how.cut == "ends" and w.starts[t + 1] and not w.terminated[t]:
                carry = 0.0
            elif how.cut == "nowhere" and ended:
                carry = w.gamma
        if how.clamp_td and not state_values:
            delta = min(1.0, max(-1.0, r[t] + discount[t] * values[t] - own[t]))
            out[t] = own[t] + delta + carry * _beyond(c, t + how.c_row, how) * ahead
        elif state_values:
            weight = coefficients(w, "retrace", 1.0, how.epsilon, how.ratio, how.clip)[t]
            row = t - 1 + how.c_row
            delta = r[t] + discount[t] * values[t] - own[t]
            out[t] = own[t] + weight * delta + carry * _beyond(c, row, how) * ahead
        elif how.own_ratio:
            out[t] = own[t] + c[t] * (r[t] + discount[t] * values[t] - own[t] + carry * ahead)
        else:
            row = t + 1 if t + 1 == n else t + how.c_row
            out[t] = r[t] + discount[t] * values[t] + carry * _beyond(c, row, how) * ahead
    return out


def _value(w: Golden, t: int, how: Reading) -> float:
    """What step t bootstraps from."""
    last = t == w.n - 1
    if how.two_networks and how.backup_online:
        w = w.online
    if last and how.seed not in ("right", "extra"):
        return {"previous": w.v[t], "taken": w.q_a[t + 1], "previous_taken": w.q_a[t], "zero": 0.0}[how.seed]
    q, pi = (w.next_q[t], w.next_pi[t]) if how.true_next else (w.q[t + 1], w.pi[t + 1])
    if how.policy_row == 0:
        pi = w.pi[t]
    if how.backup == "under_mu":
        pi = w.mu[t + 1]
    if how.backup == "max":
        return max(q)
    if how.backup == "taken" or (how.backup == "taken_inside" and not last):
        return q[w.a[t + 1]]
    return dot(pi, q)


def _shifted(rows: Any, t: int, beyond: str, gamma: float = GAMMA) -> float:
    if 0 <= t < len(rows):
        return rows[t]
    edge = rows[-1] if t >= len(rows) else rows[0]
    return {"zero": 0.0, "wrap": rows[t % len(rows)], "repeat": edge, "gamma": gamma}[beyond]


def _beyond(c: tuple[float, ...], row: int, how: Reading) -> float:
    n = len(c) - 1
    if 0 <= row < n:
        return c[row]
    if row < 0:
        return c[0]
    return {"drawn": c[min(row, n)], "zero": 0.0, "one": 1.0, "last": c[n - 1]}[how.c_beyond]


def q_a_of(w: Golden, online: bool) -> Row:
    """Q(x_t, a_t) of one of the two networks."""
    return w.online.q_a if online else w.q_a


def base(w: Golden, algorithm: str, how: Reading) -> Row:
    """What errors are measured against."""
    online = how.two_networks and how.error_online
    return (w.online if online else w).v if algorithm == "vtrace" else q_a_of(w, online)


def _trajectory_aware(w: Golden, algorithm: str, lam: float, how: Reading) -> list[float]:
    """The double sum, for traces whose β depends on where the trajectory starts."""
    rule: Any = TRACES[algorithm](lam)
    q_a = q_a_of(w, how.two_networks and how.baseline_online)
    out = []
    for start in range(w.n):
        betas = rule.betas(pi_a=np.array(w.pi_a[start : w.n]), mu_a=np.array(w.mu_a[start : w.n]))
        total, reach = q_a[start], 1.0
        for s in range(start, w.n):
            if s > start and w.starts[s]:
                break
            discount = 0.0 if w.terminated[s] else w.gamma
            total += reach * float(betas[s - start]) * (w.r[s] + discount * w.next_v[s] - q_a[s])
            reach *= discount
        out.append(total)
    return out
