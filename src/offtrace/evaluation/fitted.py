"""Fitted evaluation with a trace: the return operator R applied to the log until Q stops changing.

A sweep moves Q to the best fit of the targets of all rows. In a table, that is their mean:

    Q(x, a)  ←  Q(x, a) + mean of Δ_t over the rows t with (x_t, a_t) = (x, a)
    Δ_t = Σ_{s ≥ t} γ^{s−t} (Π_{i=t+1..s} c_i) δ_s,    within the episode

If c does not depend on Q, a sweep is linear, w ← w + b − M w, and its fixed point M w = b is found
by GMRES, in far fewer sweeps. A pair that the log never shows keeps the value 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import linalg

from offtrace.evaluation.bases import Mean
from offtrace.evaluation.parts import Engine, Part, total
from offtrace.kernels import jit
from offtrace.returns import targets
from offtrace.traces import Trace, TrajectoryAware

TOLERANCE = 1e-8
"""Largest change of a sweep, relative to the largest |w|, at which the iteration stops."""
MAX_SWEEPS = 2_000
NUM_GROUPS = 20
"""Groups of episodes of which one at a time is left out, for traces that depend on the trajectory."""


@dataclass(eq=False)
class Steps:
    """The rows of a part as a sweep reads them, for one target policy."""

    basis: Any
    """A `Basis`; None where actions are vectors, for which there is no fitted evaluation."""
    log_pi_a: np.ndarray
    """(N,) log π(a_t|x_t)."""
    pi_a: np.ndarray
    """(N,) π(a_t|x_t)."""
    discount: np.ndarray
    """(N,) γ, and 0 where the step terminated."""
    reset: np.ndarray
    """(N,) True at the first step of an episode."""
    mask: np.ndarray
    """(N,) False at a truncated step whose successor is not in the log: it has no target."""
    start: np.ndarray | None = None
    """(E,) V̂(x_0) of a model of the other folds, for the doubly robust forms."""
    error: np.ndarray | None = None
    """(N,) r_t + γ V̂(x_{t+1}) − Q̂(x_t, a_t) of that model."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fixed point of a trace on a log."""

    w: np.ndarray
    """Coefficients of Q; for a table, Q itself."""
    mean: Mean
    value: float
    """Mean of Σ_a π(a|x_0) Q(x_0, a) over the episodes."""
    num_sweeps: int
    converged: bool


Left = tuple[str, int] | None
"""A label and its number: the episodes to leave out. None: all are used."""


def fit(engine: Engine, trace: Trace, *, without: Left = None, start: np.ndarray | None = None) -> Fitted:
    """Return the fixed point of the operator of the trace on the log."""
    mean = Mean(total(engine.map(gram, without)))
    num_sweeps = 0

    def mean_correction(w: np.ndarray) -> np.ndarray:
        nonlocal num_sweeps
        num_sweeps += 1
        return mean(total(engine.map(sum_of_corrections, trace, w, without)))

    if start is None:
        start = np.zeros(mean.seen.shape)
    if trace.reads_q:
        w, change = _iterate(mean_correction, start)
    else:
        w, change = _solve(mean_correction, start)
    values, num_episodes = total(engine.map(sum_of_start_values, w, without))
    largest = max(1.0, float(np.abs(w).max()))
    return Fitted(w, mean, float(values / num_episodes), num_sweeps, change <= 1e3 * TOLERANCE * largest)


def _iterate(mean_correction: Callable[[np.ndarray], np.ndarray], w: np.ndarray) -> tuple[np.ndarray, float]:
    change = np.inf
    for _ in range(MAX_SWEEPS):
        step = mean_correction(w)
        w = w + step
        change = float(np.abs(step).max())
        if not change > TOLERANCE * max(1.0, float(np.abs(w).max())):
            break
    return w, change


def _solve(mean_correction: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> tuple[np.ndarray, float]:
    b = mean_correction(np.zeros_like(start))
    w = solve_linear(lambda w: b - mean_correction(w), b, start)
    return w, float(np.abs(mean_correction(w)).max())


def solve_linear(
    product: Callable[[np.ndarray], np.ndarray], b: np.ndarray, start: np.ndarray | None = None
) -> np.ndarray:
    """Return the solution of M x = b by GMRES, where `product(x)` is M x."""
    make: Any = linalg.LinearOperator
    operator = make((len(b), len(b)), matvec=lambda x: product(np.ravel(x)), dtype=np.float64)
    x, _ = linalg.gmres(operator, b, x0=start, rtol=TOLERANCE, atol=0.0, restart=50, maxiter=MAX_SWEEPS // 50)
    return x


# -- on one part -----------------------------------------------------------------------------------


def gram(part: Part, without: Left) -> np.ndarray:
    """Return Σ_t φ_t φ_tᵀ over the rows that have a target."""
    return part.steps.basis.gram(row_weights(part, without))


def row_weights(part: Part, without: Left) -> np.ndarray:
    """Return 1 for every row that has a target, and 0 for those without one and those left out."""
    weights = part.steps.mask.astype(np.float64)
    if without is not None:
        name, number = without
        weights *= np.repeat(part.labels[name] != number, part.log.lengths)
    return weights


def corrections_of(part: Part, trace: Trace, w: np.ndarray) -> np.ndarray:
    """Return Δ_t of every row."""
    steps = part.steps
    q_a = steps.basis.q_a(w)
    given = steps.basis.rows(w) if trace.reads_q else {}
    found = targets(
        q_a=q_a,
        expected_q=steps.basis.expected_q(w),
        r=part.log.reward,
        discount=steps.discount,
        reset=steps.reset,
        mask=steps.mask,
        pi_a=steps.pi_a,
        mu_a=part.mu_a,
        trace=trace,
        validate=False,
        **given,
    )
    return found - q_a


def sum_of_corrections(part: Part, trace: Trace, w: np.ndarray, without: Left) -> np.ndarray:
    """Return Σ_t Δ_t φ_t."""
    weights = row_weights(part, without)
    correction = np.where(weights > 0, corrections_of(part, trace, w), 0.0)
    return part.steps.basis.gather(correction)


def sum_of_start_values(part: Part, w: np.ndarray, without: Left) -> np.ndarray:
    """Return the sum of V(x_0) over the episodes, and their number."""
    values = part.steps.basis.start_value(w)
    if without is not None:
        name, number = without
        values = values[part.labels[name] != number]
    return np.array([values.sum(), len(values)])


# -- the influence of an episode -----------------------------------------------------------------


def influence(engine: Engine, trace: Trace, fitted: Fitted) -> np.ndarray:
    """Return the influence of every episode on the value at the start, (E,): its mean is 0."""
    if isinstance(trace, TrajectoryAware):
        return _influence_of_groups(engine, trace, fitted)
    return _influence_by_adjoint(engine, trace, fitted)


def _influence_by_adjoint(engine: Engine, trace: Trace, fitted: Fitted) -> np.ndarray:
    """Return the influence for a Markov trace.

    The fixed point solves Σ_i g_i(w) = 0, where g_i sums Δ_t φ_t over the rows of episode i. With
    N = −Σ_i ∂g_i/∂w and the value V = d·w, one episode more moves V by y·g_i, where Nᵀ y = d:

        Nᵀ y = Σ_t z_t (φ_t − γ φ^π_{t+1}),    z_t = y·φ_t + γ c_t z_{t−1}

    The start states of the log are drawn, too, so V̂(x_0) − V is added.
    """
    seen = fitted.mean.seen
    num_episodes = sum(engine.sizes)

    def transposed(scaled: np.ndarray) -> np.ndarray:
        y = fitted.mean(scaled)
        return np.where(seen, total(engine.map(sum_of_adjoints, trace, fitted.w, y)), scaled)

    wanted = np.where(seen, total(engine.map(start_gradient)) / num_episodes, 0.0)
    y = fitted.mean(solve_linear(transposed, wanted))
    moved = np.concatenate(engine.map(sums_by_episode, trace, fitted.w, y))
    values = np.concatenate(engine.map(start_values, fitted.w))
    return num_episodes * moved + values - values.mean()


def _influence_of_groups(engine: Engine, trace: Trace, fitted: Fitted) -> np.ndarray:
    """Return the influence by leaving out one group of episodes at a time (the jackknife).

    With G groups and V_g the value without group g, G V − (G − 1) V_g are G independent values,
    whose variance over G is that of V. Each episode gets the value of its group, scaled so that
    the standard deviation over all E episodes, divided by √E, is the same.
    """
    labels = np.concatenate(engine.map(labels_of, "group"))
    num_groups = int(labels.max()) + 1
    values = [fit(engine, trace, without=("group", g), start=fitted.w).value for g in range(num_groups)]
    moved = (num_groups - 1) * (np.mean(values) - np.array(values))
    by_episode = moved[labels] * np.sqrt(len(labels) / max(1, num_groups - 1))
    return by_episode - by_episode.mean()


def trace_values(part: Part, trace: Trace, w: np.ndarray) -> np.ndarray:
    """Return c_t of every row, for a Markov trace."""
    steps = part.steps
    read = {}
    if trace.reads_q:
        read = {name: rows[: len(steps.pi_a)] for name, rows in steps.basis.rows(w).items()}
    c = trace(pi_a=steps.pi_a, mu_a=part.mu_a, **read)
    return np.ascontiguousarray(np.broadcast_to(c, steps.pi_a.shape), np.float64)


def sum_of_adjoints(part: Part, trace: Trace, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Σ_t z_t (φ_t − γ φ^π_{t+1})."""
    steps = part.steps
    z = np.empty(part.log.num_steps)
    c = trace_values(part, trace, w)
    looked_back(part.log.first, steps.discount, c, steps.mask, steps.basis.q_a(y), z)
    z = np.where(steps.mask, z, 0.0)
    return steps.basis.gather(z) - steps.basis.gather_next(z * steps.discount)


def sums_by_episode(part: Part, trace: Trace, w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return y·g_i of every episode."""
    steps = part.steps
    rows = np.where(steps.mask, steps.basis.q_a(y) * corrections_of(part, trace, w), 0.0)
    return np.add.reduceat(rows, part.log.first[:-1])


def start_gradient(part: Part) -> np.ndarray:
    """Return the sum of ∂V(x_0)/∂w over the episodes."""
    return part.steps.basis.gather_start(np.ones(part.log.num_episodes))


def start_values(part: Part, w: np.ndarray) -> np.ndarray:
    """Return V(x_0) of every episode."""
    return part.steps.basis.start_value(w)


def labels_of(part: Part, name: str) -> np.ndarray:
    """Return the label of every episode."""
    return part.labels[name]


@jit()
def looked_back(first, discount, c, mask, y, out):
    """Write z_t = y_t + γ c_t z_{t−1} for every row: Δ's transpose, for traces whose c depends on the step alone."""
    for i in range(first.size - 1):
        z = 0.0
        for row in range(first[i], first[i + 1]):
            before = 0.0
            if row > first[i]:
                before = discount[row - 1] * c[row] * z
            z = before
            if mask[row]:
                z += y[row]
            out[row] = z
