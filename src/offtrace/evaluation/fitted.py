"""Fitted evaluation with a trace: the return operator R applied to the log until Q stops changing.

A sweep moves Q(x, a) to the mean target over the visits of (x, a) in the log:

    Q(x, a)  ←  Q(x, a) + mean of Δ_t over the rows t with (x_t, a_t) = (x, a)
    Δ_t = Σ_{s ≥ t} γ^{s−t} (Π_{i=t+1..s} c_i) δ_s,    within the episode

If c does not depend on Q, a sweep is linear, Q ← Q + b − M Q, and its fixed point M Q = b is found
by GMRES, in far fewer sweeps. A pair that the log never visits keeps the value 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import linalg

from offtrace.evaluation.log import Log
from offtrace.kernels import jit
from offtrace.returns import targets
from offtrace.traces import Trace

TOLERANCE = 1e-8
"""Largest change of a sweep, relative to the largest |Q|, at which the iteration stops."""
MAX_SWEEPS = 2_000


@dataclass(frozen=True, eq=False)
class Steps:
    """A log of states as the sweep reads it."""

    pair: np.ndarray
    """(N,) x · A + a."""
    successor: np.ndarray
    """(N,) the next state; 0 where there is none, and the discount or the mask says so."""
    discount: np.ndarray
    """(N,) γ, and 0 where the step terminated."""
    reset: np.ndarray
    """(N,) True at the first step of an episode."""
    mask: np.ndarray
    """(N,) False at a truncated step whose successor is not in the log: it has no target."""
    num_states: int
    num_actions: int


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fixed point of a trace on a log."""

    q: np.ndarray
    """(X, A) values; 0 where the pair was never visited."""
    counts: np.ndarray
    """(X, A) the number of targets of each pair."""
    num_sweeps: int
    change: float
    """The largest change by one more sweep."""
    converged: bool


def steps_of(log: Log, gamma: float, num_states: int, num_actions: int) -> Steps:
    """Return the rows of a log of states, with the successor of every step that has one."""
    assert log.state is not None
    is_last = np.zeros(log.num_steps, bool)
    is_last[log.first[1:] - 1] = True
    successor = np.append(log.state[1:], 0)
    mask = np.ones(log.num_steps, bool)
    if log.successor is not None:
        successor = np.where(log.terminated, 0, log.successor)
    else:
        successor = np.where(is_last, 0, successor)
        mask = ~(is_last & log.truncated)
    reset = np.zeros(log.num_steps, bool)
    reset[log.first[:-1]] = True
    return Steps(
        pair=log.state * num_actions + log.action,
        successor=successor,
        discount=np.where(log.terminated, 0.0, gamma),
        reset=reset,
        mask=mask,
        num_states=num_states,
        num_actions=num_actions,
    )


def fit(
    log: Log,
    steps: Steps,
    trace: Trace,
    *,
    pi: np.ndarray,
    mu_a: np.ndarray | None,
    weights: np.ndarray | None = None,
    tolerance: float = TOLERANCE,
    max_sweeps: int = MAX_SWEEPS,
) -> Fitted:
    """Iterate the operator of the trace on the log. `weights` (E,) counts each episode so many times."""
    row_weights = steps.mask.astype(np.float64)
    if weights is not None:
        row_weights *= np.repeat(weights, log.lengths)
    size = steps.num_states * steps.num_actions
    counts = np.bincount(steps.pair, weights=row_weights, minlength=size)
    pi_a = pi.ravel()[steps.pair]
    num_sweeps = 0

    def mean_correction(q: np.ndarray) -> np.ndarray:
        """Return the mean of Δ over the visits of each pair."""
        nonlocal num_sweeps
        num_sweeps += 1
        given = _inputs(log, steps, pi, q, trace)
        delta = targets(**given, pi_a=pi_a, mu_a=mu_a, trace=trace, validate=False) - given["q_a"]
        total = np.bincount(steps.pair, weights=row_weights * delta, minlength=size)
        return total / np.maximum(counts, 1e-300) * (counts > 0)

    start = np.zeros(size)
    if trace.reads_q:
        q, change = _iterate(mean_correction, start, tolerance, max_sweeps)
    else:
        q, change = _solve(mean_correction, start, tolerance, max_sweeps)
    scale = max(1.0, float(np.abs(q).max()))
    shape = (steps.num_states, steps.num_actions)
    return Fitted(q.reshape(shape), counts.reshape(shape), num_sweeps, change, change <= 100 * tolerance * scale)


def _inputs(log: Log, steps: Steps, pi: np.ndarray, q: np.ndarray, trace: Trace) -> dict[str, Any]:
    table = q.reshape(pi.shape)
    value = (pi * table).sum(axis=1)
    given: dict[str, Any] = {
        "r": log.reward,
        "discount": steps.discount,
        "q_a": q[steps.pair],
        "expected_q": value[steps.successor],
        "reset": steps.reset,
        "mask": steps.mask,
    }
    if trace.reads_q:
        state, given["a"] = np.divmod(steps.pair, steps.num_actions)
        after = np.append(state, steps.successor[-1])
        given["q"] = table[after]
        given["pi"] = pi[after]
    return given


def _iterate(mean_correction: Any, q: np.ndarray, tolerance: float, max_sweeps: int) -> tuple[np.ndarray, float]:
    change = np.inf
    for _ in range(max_sweeps):
        step = mean_correction(q)
        q = q + step
        change = float(np.abs(step).max())
        if not change > tolerance * max(1.0, float(np.abs(q).max())):
            break
    return q, change


def _solve(mean_correction: Any, start: np.ndarray, tolerance: float, max_sweeps: int) -> tuple[np.ndarray, float]:
    b = mean_correction(start)
    q = solve_linear(lambda q: b - mean_correction(q), b, tolerance, max_sweeps)
    return q, float(np.abs(mean_correction(q)).max())


def solve_linear(product: Any, b: np.ndarray, tolerance: float, max_products: int) -> np.ndarray:
    """Return the solution of M x = b by GMRES, where `product(x)` is M x."""
    make: Any = linalg.LinearOperator
    operator = make((len(b), len(b)), matvec=lambda x: product(np.ravel(x)), dtype=np.float64)
    x, _ = linalg.gmres(operator, b, rtol=tolerance, atol=0.0, restart=50, maxiter=max(1, max_products // 50))
    return x


# -- the influence of an episode -----------------------------------------------------------------


def influence(
    log: Log, steps: Steps, trace: Trace, fitted: Fitted, *, pi: np.ndarray, mu_a: np.ndarray | None
) -> np.ndarray:
    """Return the influence of every episode on the value at the start, (E,), for a Markov trace.

    The fixed point solves Σ_i g_i(Q) = 0, where g_i(x, a) sums Δ_t over the visits of (x, a) in
    episode i. With N = −Σ_i ∂g_i/∂Q and the value V = d·Q + const, one episode more moves V by
    y·g_i, where Nᵀ y = d:

        Nᵀ y = Σ_t z_t (1{x_t, a_t} − γ π(·|x_{t+1})),    z_t = y(x_t, a_t) + γ c_t z_{t−1}

    The start states of the log are drawn, too, so V̂(x_0) − V is added.
    """
    given = _inputs(log, steps, pi, fitted.q.ravel(), trace)
    pi_a = pi.ravel()[steps.pair]
    read = {name: given[name][: len(pi_a)] for name in ("q", "pi", "a") if name in given}
    c = np.ascontiguousarray(np.broadcast_to(trace(pi_a=pi_a, mu_a=mu_a, **read), pi_a.shape), np.float64)
    counts = np.maximum(fitted.counts.ravel(), 1e-300)
    visited = fitted.counts.ravel() > 0
    looked = np.empty(log.num_steps)

    def transposed(scaled: np.ndarray) -> np.ndarray:
        y = np.where(visited, scaled / counts, 0.0)
        looked_back(log.first, steps.discount, c, steps.mask, y[steps.pair], looked)
        z = np.where(steps.mask, looked, 0.0)
        by_pair = np.bincount(steps.pair, weights=z, minlength=len(y))
        by_state = np.bincount(steps.successor, weights=z * steps.discount, minlength=len(pi))
        return np.where(visited, by_pair - (by_state[:, None] * pi).ravel(), scaled)

    starts = steps.pair[log.first[:-1]] // steps.num_actions
    share = np.bincount(starts, minlength=len(pi)) / log.num_episodes
    wanted = np.where(visited, (share[:, None] * pi).ravel(), 0.0)
    scaled = solve_linear(transposed, wanted, TOLERANCE, MAX_SWEEPS)
    y = np.where(visited, scaled / counts, 0.0)
    delta = targets(**given, pi_a=pi_a, mu_a=mu_a, trace=trace, validate=False) - given["q_a"]
    moved = np.add.reduceat(np.where(steps.mask, y[steps.pair] * delta, 0.0), log.first[:-1])
    value = (pi * fitted.q).sum(axis=1)[starts]
    return log.num_episodes * moved + value - value.mean()


@jit()
def looked_back(first, discount, c, mask, y, out):
    """Write z_t = y_t + γ c_t z_{t−1} for every row: Δ's transpose, for traces whose c depends on the step alone."""
    for i in range(first.size - 1):
        z = 0.0
        for row in range(first[i], first[i + 1]):
            before = discount[row - 1] * c[row] * z if row > first[i] else 0.0
            z = before + (y[row] if mask[row] else 0.0)
            out[row] = z
