"""Eq. 3 as a recursion in plain Python, with one switch per known mistake.

G_t = r_t + γ_t [ E_π Q(x_{t+1}, ·) + c_{t+1} (G_{t+1} − Q(x_{t+1}, a_{t+1})) ]
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from offtrace.doctor.windows import Floats, GoldenWindow, dot
from offtrace.traces import TRACES

EQUATION = "G_t = r_t + γ_t [ E_π Q(x_{t+1},·) + c_{t+1} (G_{t+1} − Q(x_{t+1},a_{t+1})) ]"
VTRACE_EQUATION = "G_t = V(x_t) + ρ_t (r_t + γ_t V(x_{t+1}) − V(x_t)) + γ_t c_t (G_{t+1} − V(x_{t+1}))"


@dataclass(frozen=True)
class Switches:
    """How each term of Eq. 3 is computed. The defaults are the paper's."""

    c_row: int = 1
    """c_{t + c_row} multiplies the correction that step t+1 passes to step t."""
    c_beyond: str = "drawn"
    """The c beyond the window: that of the action drawn there ("drawn"), "zero", "one" or "last"."""
    own_ratio: bool = False
    """The product of the traces starts at i = t."""
    policy_row: int = 1
    """π(·|x_{t + policy_row}) weights Q(x_{t+1}, ·)."""
    backup: str = "expected"
    """How x_{t+1} is valued: "expected", "under_mu", "max", "taken" (Sarsa), or "taken_inside"
    (Sarsa, but an expectation in the window's last state)."""
    baseline: str = "taken"
    """The value subtracted from G_{t+1}: "taken", "expected" or "nothing"."""
    ratio: str = "taken"
    """The ratio that min(1, ·) clips: "taken" (π/μ of the action taken), "inverted", or π/μ divided
    by its "mean", "sum" or "largest" value in the window."""
    clip: float = 1.0
    lambda_power: int = 1
    epsilon: float = 0.0
    truncation_terminates: bool = False
    true_next: bool = True
    """At a truncation the value is that of the true last state, not of row t+1."""
    cut: str = "ends"
    """The places where the trace is cut: "ends", "terminations" or "nowhere"."""
    reward_row: int = 0
    discount_row: int = 0
    beyond: str = "zero"
    """The reward or discount beyond the window: "zero", "wrap", "repeat" or "gamma"."""
    last_done: bool = True
    seed: str = "right"
    """The value at the end of the window: that of x_n ("right"), "previous", "taken",
    "previous_taken" or "zero"; "extra" folds in one step too many."""
    clamp_reward: bool = False
    clamp_td: bool = False
    """Each r_t, or each TD error before the sum, is clamped to [−1, 1]."""
    two_networks: bool = False
    """The function takes Q of an online and of a target network; the next three say which one is read where."""
    backup_online: bool = False
    baseline_online: bool = False
    error_online: bool = True


RIGHT = Switches()
RIGHT_TWO_NETWORKS = (
    replace(RIGHT, two_networks=True),
    replace(RIGHT, two_networks=True, baseline_online=True),
)
"""With two networks, values come from the target network and errors from the online one. The paper
does not say which network gives the subtracted Q(x_{t+1}, a_{t+1}) (Deviation D12): both are
right."""


def switched(*changes: dict[str, Any], right: Switches = RIGHT) -> Switches | None:
    """Return the paper's switches with these changes, or None where the changes contradict each other."""
    merged: dict[str, Any] = {}
    for change in changes:
        for key, value in change.items():
            if merged.setdefault(key, value) != value:
                return None
    return replace(right, **merged)


# -- the algorithms --------------------------------------------------------------------------------

NOT_TRACES = ("peng", "vtrace")
"""Algorithms with a recursion of their own, which are not in `TRACES`."""
ALGORITHMS = ("one_step", "retrace", *(name for name in TRACES if name not in ("one_step", "retrace")), *NOT_TRACES)
"""Every algorithm that is compared. Where two agree on every window, the first one is reported."""
BREAKABLE = ("retrace", "tree_backup", "importance_sampling", "q_lambda", "watkins", "one_step", "vtrace")
"""The algorithms that are also tried with mistakes."""


@lru_cache(maxsize=100_000)
def coefficients(
    window: GoldenWindow,
    algorithm: str,
    lam: float,
    epsilon: float = 0.0,
    ratio: str = "taken",
    clip: float = 1.0,
) -> tuple[float, ...]:
    """Return c_0 … c_n."""
    if algorithm == "peng":
        return (lam,) * (window.n + 1)
    if (ratio, clip) != ("taken", 1.0) and algorithm in ("retrace", "vtrace", "importance_sampling"):
        above = np.inf if algorithm == "importance_sampling" else clip
        return tuple(float(lam * min(above, x)) for x in _ratios(window, epsilon, ratio))
    rule: Any = TRACES["retrace" if algorithm == "vtrace" else algorithm](lam)
    inputs: dict[str, np.ndarray] = {}
    if rule.needs_q:
        inputs = {"q": np.array(window.q), "pi": np.array(window.pi), "a": np.array(window.a)}
    c = rule(pi_a=np.array(window.pi_a), mu_a=np.array(window.mu_a) + epsilon, **inputs)
    return tuple(float(x) for x in c)


def _ratios(window: GoldenWindow, epsilon: float, ratio: str) -> np.ndarray:
    pi_a = np.array(window.pi_a)
    mu_a = np.array(window.mu_a) + epsilon
    if ratio == "inverted":
        with np.errstate(divide="ignore"):
            return mu_a / pi_a
    rho = pi_a / mu_a
    over = {"mean": np.mean, "sum": np.sum, "largest": np.max, "taken": lambda x: 1.0}[ratio]
    return rho / over(rho[: window.n])


def targets(window: GoldenWindow, algorithm: str, lam: float, switches: Switches = RIGHT) -> list[float]:
    """Return G_0 … G_{n−1}.

    >>> from offtrace.doctor.golden import GOLDEN
    >>> targets(GOLDEN[0], "retrace", 1.0)  # 1 + 0.5 (0.25 · 4 + 0.75 · 0)
    [1.5]
    """
    if algorithm in TRACES and not TRACES[algorithm].markov:
        return _trajectory_aware(window, algorithm, lam, switches)
    n = window.n
    state_values = algorithm == "vtrace"
    q_a = q_a_of(window, switches.two_networks and switches.baseline_online)
    own = window.v if state_values else q_a
    subtracted = _subtracted(window, algorithm, q_a, switches)
    ratio = (switches.epsilon, switches.ratio, switches.clip)
    c = coefficients(window, algorithm, lam**switches.lambda_power, *ratio)
    rho = coefficients(window, "retrace", 1.0, *ratio) if state_values else ()
    r = _rewards(window, switches)
    discount = _discounts(window, switches)
    values = [_value(window, t, switches) for t in range(n)]
    out = [0.0] * n
    for t in reversed(range(n)):
        ahead = 0.0  # the correction that step t+1 passes to step t
        if t + 1 < n:
            ahead = out[t + 1] - subtracted[t + 1]
        elif switches.seed == "extra":  # G_n = E_π Q(x_n, ·), and one more step folded in
            ahead = window.v[n] - window.q_a[n]
        carry = _carry(window, t, discount[t], switches)
        one_step = r[t] + discount[t] * values[t]
        if state_values:
            delta = one_step - own[t]
            out[t] = own[t] + rho[t] * delta + carry * _c_at(c, t - 1 + switches.c_row, switches) * ahead
        elif switches.clamp_td:
            delta = min(1.0, max(-1.0, one_step - own[t]))
            out[t] = own[t] + delta + carry * _c_at(c, t + switches.c_row, switches) * ahead
        elif switches.own_ratio:
            out[t] = own[t] + c[t] * (one_step - own[t] + carry * ahead)
        else:
            row = t + 1 if t + 1 == n else t + switches.c_row
            out[t] = one_step + carry * _c_at(c, row, switches) * ahead
    return out


def q_a_of(window: GoldenWindow, online: bool) -> Floats:
    """Return Q(x_t, a_t) of one of the two networks."""
    return window.online.q_a if online else window.q_a


def error_base(window: GoldenWindow, algorithm: str, switches: Switches) -> Floats:
    """Return the values that TD errors are taken against."""
    online = switches.two_networks and switches.error_online
    if algorithm == "vtrace":
        return window.online.v if online else window.v
    return q_a_of(window, online)


# -- the terms -------------------------------------------------------------------------------------


def _subtracted(window: GoldenWindow, algorithm: str, q_a: Floats, switches: Switches) -> Floats:
    if algorithm in NOT_TRACES:
        return window.v
    return {"taken": q_a, "expected": window.v, "nothing": (0.0,) * (window.n + 1)}[switches.baseline]


def _rewards(window: GoldenWindow, switches: Switches) -> list[float]:
    r = [_shifted(window.r, t + switches.reward_row, switches.beyond) for t in range(window.n)]
    if switches.clamp_reward:
        r = [min(1.0, max(-1.0, x)) for x in r]
    return r


def _discounts(window: GoldenWindow, switches: Switches) -> list[float]:
    ends = list(window.terminated)
    if switches.truncation_terminates:
        ends = [a or b for a, b in zip(window.terminated, window.truncated, strict=True)]
    if not switches.last_done:
        ends[-1] = False
    discount = [0.0 if end else window.gamma for end in ends]
    rows = (t + switches.discount_row for t in range(window.n))
    return [_shifted(discount, row, switches.beyond, window.gamma) for row in rows]


def _carry(window: GoldenWindow, t: int, discount: float, switches: Switches) -> float:
    """Return the discount of what step t+1 passes to step t: 0 where the trace is cut."""
    if t + 1 == window.n:
        return discount
    if switches.cut == "ends" and window.starts[t + 1] and not window.terminated[t]:
        return 0.0
    ended = window.terminated[t] or window.truncated[t] or window.starts[t + 1]
    if switches.cut == "nowhere" and ended:
        return window.gamma
    return discount


def _value(window: GoldenWindow, t: int, switches: Switches) -> float:
    """Return the value that step t bootstraps from."""
    last = t == window.n - 1
    if switches.two_networks and switches.backup_online:
        window = window.online
    if last and switches.seed not in ("right", "extra"):
        by_seed = {
            "previous": window.v[t],
            "taken": window.q_a[t + 1],
            "previous_taken": window.q_a[t],
            "zero": 0.0,
        }
        return by_seed[switches.seed]
    q = window.next_q[t] if switches.true_next else window.q[t + 1]
    if switches.backup == "max":
        return max(q)
    if switches.backup == "taken" or (switches.backup == "taken_inside" and not last):
        return q[window.a[t + 1]]
    return dot(_weights(window, t, switches), q)


def _weights(window: GoldenWindow, t: int, switches: Switches) -> Floats:
    """Return the weights of Q(x_{t+1}, ·) in the expectation."""
    if switches.backup == "under_mu":
        return window.mu[t + 1]
    if switches.policy_row == 0:
        return window.pi[t]
    return window.next_pi[t] if switches.true_next else window.pi[t + 1]


def _shifted(rows: Any, t: int, beyond: str, gamma: float = 0.0) -> float:
    """Return row t, or what `beyond` puts outside the window."""
    if 0 <= t < len(rows):
        return rows[t]
    if beyond == "zero":
        return 0.0
    if beyond == "wrap":
        return rows[t % len(rows)]
    if beyond == "repeat":
        return rows[-1] if t >= len(rows) else rows[0]
    return gamma


def _c_at(c: tuple[float, ...], row: int, switches: Switches) -> float:
    """Return c of a row, which may lie beyond the window."""
    n = len(c) - 1
    if row < 0:
        return c[0]
    if row < n:
        return c[row]
    return {"drawn": c[min(row, n)], "zero": 0.0, "one": 1.0, "last": c[n - 1]}[switches.c_beyond]


def _trajectory_aware(window: GoldenWindow, algorithm: str, lam: float, switches: Switches) -> list[float]:
    """Compute the double sum, for traces whose β depends on where the trajectory starts."""
    rule: Any = TRACES[algorithm](lam)
    n = window.n
    q_a = q_a_of(window, switches.two_networks and switches.baseline_online)
    out = []
    for start in range(n):
        betas = rule.betas(pi_a=np.array(window.pi_a[start:n]), mu_a=np.array(window.mu_a[start:n]))
        total = q_a[start]
        reach = 1.0  # γ_start … γ_{s−1}
        for s in range(start, n):
            if s > start and window.starts[s]:
                break
            discount = 0.0 if window.terminated[s] else window.gamma
            delta = window.r[s] + discount * window.next_v[s] - q_a[s]
            total += reach * float(betas[s - start]) * delta
            reach *= discount
        out.append(total)
    return out
