"""The general operator R (Eq. 3) on a finite MDP, its contraction, and the variance of its samples.

For a Markov trace, with c (X, A) and P^{cμ} = p(y|x, a) μ(b|y) c(y, b),

    R Q = Q + (I − γP^{cμ})^{-1} (T^π Q − Q),    R Q − Q^π = A (Q − Q^π),    A = γ (I − γP^{cμ})^{-1} (P^π − P^{cμ}).

All of it is solved over states: with M = Σ_b μ c P,

    (I − γP^{cμ})^{-1} = I + γ P (I − γM)^{-1} Σ_b μ c.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import bellman, products, spectrum, trajectories
from offtrace.traces import Trace, TrajectoryAware, as_trace

AnyTrace = str | type[Trace] | Trace | Callable[..., Any]
"""What `as_trace` takes."""


def coefficients(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """Return c (X, A) of a Markov trace; 0 where μ is 0, as such actions never occur.

    >>> from offtrace.traces import Retrace
    >>> mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=[[0.0, 0.0]], gamma=0.9)
    >>> coefficients(mdp, pi=[[0.9, 0.1]], mu=[[0.3, 0.7]], trace=Retrace(0.7))
    array([[0.7, 0.1]])
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    return coefficients_of(mdp, pi, mu, as_trace(trace), q)


def coefficients_of(mdp: FiniteMDP, pi: np.ndarray, mu: np.ndarray, trace: Trace, q: Any = None) -> np.ndarray:
    """Return `coefficients` for policies that have been checked."""
    if isinstance(trace, TrajectoryAware):
        raise TypeError(f"{type(trace).__name__} has no c(x, a): it depends on where a trajectory starts.")
    if np.ndim(trace.lambda_):
        raise ValueError(
            f"`lambda_` must be one number; got shape {np.shape(trace.lambda_)}. An operator has no steps."
        )
    given: dict[str, Any] = {"pi_a": pi.ravel(), "mu_a": np.where(mu == 0, 1, mu).ravel()}
    if trace.needs_q and q is None:
        raise TypeError(f"{trace.name} reads the action values: give `q=` as well.")
    if trace.reads_q and q is not None:
        q = bellman.values(mdp, q)
        each = np.repeat(np.arange(mdp.num_states), mdp.num_actions)
        given |= {"q": q[each], "pi": pi[each], "a": np.tile(np.arange(mdp.num_actions), mdp.num_states)}
    c = np.asarray(trace(**given), dtype=np.float64)
    if c.shape != (mdp.num_states * mdp.num_actions,):
        raise ValueError(f"`trace` must return one c per action taken, {given['pi_a'].shape}; got shape {c.shape}.")
    c = np.where(mu == 0, 0, c.reshape(mdp.shape))
    if not (np.isfinite(c) & (c >= 0)).all():
        x, a = np.argwhere(~(np.isfinite(c) & (c >= 0)))[0].tolist()
        raise ValueError(f"`trace` must return finite c of at least 0; got {c[x, a]} at (x, a) = ({x}, {a}).")
    return c


def p_cmu(mdp: FiniteMDP, *, c: Any, mu: Any) -> np.ndarray:
    """Return P^{cμ} as a dense matrix (X·A, X·A): p(y|x, a) μ(b|y) c(y, b)."""
    return bellman.weighted(mdp, np.asarray(c, dtype=np.float64) * checked_policy(mu, mdp.shape, "mu"))


def general_operator(mdp: FiniteMDP, q: Any, *, pi: Any, mu: Any, trace: AnyTrace, tol: float = 1e-8) -> np.ndarray:
    """Return R Q, Eq. 3, (X, A).

    For a trajectory-aware trace all paths are followed, which is possible only where episodes end
    within a few steps; elsewhere it raises, and `sampled_operator` estimates R Q.

    >>> from offtrace.traces import ImportanceSampling
    >>> mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=[[0.0, 1.0]], gamma=0.5)
    >>> general_operator(mdp, [[0.0, 0.0]], pi=[[0.0, 1.0]], mu=[[0.5, 0.5]], trace=ImportanceSampling(1.0))  # Q^π
    array([[1., 2.]])
    """
    q = bellman.values(mdp, q)
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    change = bellman.t_pi(mdp, q, pi=pi) - q
    trace = as_trace(trace)
    if isinstance(trace, TrajectoryAware):
        return q + (trajectories.reach(mdp, pi=pi, mu=mu, trace=trace) @ change.ravel()).reshape(mdp.shape)
    w = mu * coefficients_of(mdp, pi, mu, trace, q)
    _check_growth(mdp, w)
    return bellman.resolve(mdp, q, change, w, tol=tol)


def eta(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None, tol: float = 1e-8) -> np.ndarray:
    """Return η(x, a) = 1 − (1−γ) E_μ[Σ_t γ^t c_1…c_t], Remark 1, (X, A): where c ≤ π/μ, |RQ − Q^π| ≤ η ‖Q − Q^π‖.

    Where episodes end, 1 − γ becomes 1 − γ times the probability that a step does not end its
    episode; η is still the row sum of A.

    >>> from offtrace.traces import OneStep
    >>> mdp = FiniteMDP(p=[[[1.0]]], r=[[0.0]], gamma=0.9)
    >>> eta(mdp, pi=[[1.0]], mu=[[1.0]], trace=OneStep())
    array([[0.9]])
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    if isinstance(trace, TrajectoryAware):
        reached = trajectories.reach(mdp, pi=pi, mu=mu, trace=trace)
        return 1 - (reached @ _stopping(mdp).ravel()).reshape(mdp.shape)
    return eta_of(mdp, mu * coefficients_of(mdp, pi, mu, trace, q), tol=tol)


def eta_of(mdp: FiniteMDP, w: np.ndarray, *, tol: float = 1e-8) -> np.ndarray:
    """Return η of a Markov trace from its weights w = μ c, (X, A)."""
    _check_growth(mdp, w)
    return 1 - bellman.resolve(mdp, np.zeros(mdp.shape), _stopping(mdp), w, tol=tol)


def _stopping(mdp: FiniteMDP) -> np.ndarray:
    """Return 1 − γ times the probability that a step does not end its episode, (X, A)."""
    return 1 - mdp.gamma * products.continuing_mass(mdp)


def a_matrix(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """Return A (X·A, X·A): R Q − Q^π = A (Q − Q^π); non-negative with row sums η ≤ γ where c ≤ π/μ."""
    pi = checked_policy(pi, mdp.shape, "pi")
    reached = reach(mdp, pi=pi, mu=mu, trace=trace, q=q)
    return np.eye(len(reached)) - reached + mdp.gamma * reached @ bellman.weighted(mdp, pi)


def b_matrix(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """Return B (X·A, X·A): T^π R Q − R Q = B (T^π Q − Q).

    B is non-negative where c ≤ π/μ; its rows may sum to more than 1.
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    reached = reach(mdp, pi=pi, mu=mu, trace=trace, q=q)
    return np.eye(len(reached)) - reached + mdp.gamma * bellman.weighted(mdp, pi) @ reached


def reach(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """Return E_μ[Σ_t γ^t c_1…c_t 1{(x_t, a_t) = (y, b)}], (X·A, X·A).

    It is the share of a TD error at (y, b) that reaches (x, a); (I − γP^{cμ})^{-1} for a Markov
    trace.
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    if isinstance(trace, TrajectoryAware):
        return trajectories.reach(mdp, pi=pi, mu=mu, trace=trace)
    w = mu * coefficients_of(mdp, pi, mu, trace, q)
    _check_growth(mdp, w)
    bellman.check_episodes_end(mdp, w)
    matrix = bellman.weighted(mdp, w)
    return np.linalg.solve(np.eye(len(matrix)) - mdp.gamma * matrix, np.eye(len(matrix)))


class Moments(NamedTuple):
    """Mean and variance of Δ = Σ_t γ^t c_1…c_t δ_t over trajectories that start with (x, a), each (X, A)."""

    mean: np.ndarray
    variance: np.ndarray
    """Infinite exactly where (x, a) leads to states among which noise grows faster than it is discounted."""
    radius: float
    """Spectral radius of γ²P^{c²μ}; if it is below 1, every variance is finite."""


def correction_moments(mdp: FiniteMDP, q: Any, *, pi: Any, mu: Any, trace: AnyTrace, tol: float = 1e-8) -> Moments:
    """Return the exact mean and variance of the sampled correction Δ of a Markov trace, for each (x, a).

    With d = E Δ, the surprise of a step, ε = δ + γ c(x', a') d(x', a') − d(x, a), has mean 0 given
    the steps before it, so

        Var Δ = E[Σ_t γ^2t c_1²…c_t² E[ε_t² | x_t, a_t]] = E ε² + γ² Σ_x' p Σ_b μ c² Var Δ.

    Rewards are r(x, a, x'), without further noise.
    """
    q = bellman.values(mdp, q)
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    return moments(mdp, q, pi, mu, coefficients_of(mdp, pi, mu, as_trace(trace), q), tol=tol)


def trace_moments(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None, tol: float = 1e-8) -> Moments:
    """Return the exact mean and variance of Σ_t γ^t c_1…c_t, the discounted sum of the products of traces."""
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    return moments(mdp, None, pi, mu, coefficients_of(mdp, pi, mu, as_trace(trace), q), tol=tol)


def moments(
    mdp: FiniteMDP, q: np.ndarray | None, pi: np.ndarray, mu: np.ndarray, c: np.ndarray, *, tol: float = 1e-8
) -> Moments:
    """Return the moments of Σ_t γ^t c_1…c_t δ_t; without a Q, of Σ_t γ^t c_1…c_t."""

    def average(share: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.add.reduceat(share * numbers, mdp.first[:-1]).reshape(mdp.shape)

    if q is None:
        ended = delta = size = np.ones(len(mdp.probability))
    else:
        rewards = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
        ended = rewards - q.ravel()[mdp.rows]
        delta = ended + mdp.gamma * products.expected(pi, q)[mdp.successor]
        size = abs(rewards) + abs(q).ravel()[mdp.rows] + mdp.gamma * products.expected(pi, abs(q))[mdp.successor]
    going = mdp.continuing
    ending = mdp.probability - going
    w = mu * c
    _check_growth(mdp, w)
    change = average(going, delta) + average(ending, ended)
    mean = bellman.resolve(mdp, np.zeros(mdp.shape), change, w, tol=tol)
    # the noise of one step: that of its outcome, and that of the next action
    carried = mdp.gamma * c * mean
    u = products.expected(mu, carried)
    spread = products.expected(mu, (carried - u[:, None]) ** 2)[mdp.successor]
    here, ahead = mean.ravel()[mdp.rows], u[mdp.successor]
    noise = average(going, (delta + ahead - here) ** 2 + spread) + average(ending, (ended - here) ** 2)
    size = np.maximum.reduceat(size + abs(ahead) + abs(here), mdp.first[:-1]).reshape(mdp.shape)
    accuracy = 1e-10 * size + (0 if products.is_small(mdp) else 10 * tol)
    noise = np.where(noise > accuracy**2, noise, 0)  # less is rounding
    radius = mdp.gamma * spectrum.state_radius(mdp, w * c)
    squared = mdp.with_gamma(mdp.gamma**2)
    kept = w * c
    if radius < 1:
        return Moments(mean, bellman.resolve(squared, np.zeros(mdp.shape), noise, kept, tol=tol), radius)
    from offtrace.operators import classes

    endless, kept = classes.diverging(squared, kept, noise)
    variance = bellman.resolve(squared, np.zeros(mdp.shape), noise, kept, tol=tol)
    return Moments(mean, np.where(products.backup(mdp, endless.astype(np.float64)) > 0, np.inf, variance), radius)


def _check_growth(mdp: FiniteMDP, w: np.ndarray) -> None:
    """Raise where R is not a finite sum: E_μ[c_1…c_t] grows faster than γ^t shrinks."""
    if mdp.gamma < 1 and products.masses(mdp, w)[1] >= 1:
        radius = spectrum.state_radius(mdp, w)
        if radius >= 1:
            raise ValueError(
                f"`trace` must not grow faster than `gamma` = {mdp.gamma:g} shrinks it; got growth by "
                f"{radius / mdp.gamma:.3g} per step on average. Lower c: Theorem 1 requires c ≤ π/μ."
            )
