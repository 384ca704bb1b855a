"""The general operator R (Eq. 3) on a finite MDP, what it contracts by, and how much its samples vary.

For a Markov trace, with c (X, A) and P^{cμ} = p(y|x, a) μ(b|y) c(y, b),

    R Q = Q + (I − γP^{cμ})^{-1} (T^π Q − Q),    R Q − Q^π = A (Q − Q^π),    A = γ (I − γP^{cμ})^{-1} (P^π − P^{cμ}).

All of it is solved over states: with M = Σ_b μ c P, (I − γP^{cμ})^{-1} = I + γ P (I − γM)^{-1} Σ_b μ c.
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
    """c (X, A) of a Markov trace; 0 where μ is 0, since nobody gets there.

    >>> from offtrace.traces import Retrace
    >>> mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=[[0.0, 0.0]], gamma=0.9)
    >>> coefficients(mdp, pi=[[0.9, 0.1]], mu=[[0.3, 0.7]], trace=Retrace(0.7))
    array([[0.7, 0.1]])
    """
    pi, mu = checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    if isinstance(trace, TrajectoryAware):
        raise TypeError(f"{type(trace).__name__} has no c(x, a): it depends on where a trajectory starts.")
    if np.ndim(trace.lambda_):
        raise ValueError("`lambda_` must be one number here: an operator has no steps to give each its own.")
    given: dict[str, Any] = {"pi_a": pi.ravel(), "mu_a": np.where(mu == 0, 1, mu).ravel()}
    if trace.needs_q and q is None:
        raise TypeError(f"{trace.name} reads the action values: give `q=` as well.")
    if trace.reads_q and q is not None:
        q = bellman.values(mdp, q)
        each = np.repeat(np.arange(mdp.num_states), mdp.num_actions)
        given |= {"q": q[each], "pi": pi[each], "a": np.tile(np.arange(mdp.num_actions), mdp.num_states)}
    c = np.asarray(trace(**given), dtype=np.float64)
    if c.shape != (mdp.num_states * mdp.num_actions,):
        raise ValueError(f"`trace` must return one c per action taken, {given['pi_a'].shape}; got {c.shape}.")
    c = np.where(mu == 0, 0, c.reshape(mdp.shape))
    if not (np.isfinite(c) & (c >= 0)).all():
        x, a = np.argwhere(~(np.isfinite(c) & (c >= 0)))[0].tolist()
        raise ValueError(f"`trace` must return c of at least 0; got {c[x, a]} at (x, a) = ({x}, {a}).")
    return c


def p_cmu(mdp: FiniteMDP, c: Any, mu: Any) -> np.ndarray:
    """P^{cμ} (X·A, X·A), as a dense matrix: p(y|x, a) μ(b|y) c(y, b)."""
    return bellman.weighted(mdp, np.asarray(c, dtype=np.float64) * checked_policy(mu, mdp.shape, "mu"))


def general_operator(mdp: FiniteMDP, q: Any, *, pi: Any, mu: Any, trace: AnyTrace, tol: float = 1e-8) -> np.ndarray:
    """R Q, Eq. 3, (X, A).

    A Markov trace may be any; a trajectory-aware one is followed exactly, path by path, where episodes end within a
    few steps, and is refused otherwise: `sampled_operator` estimates it.

    >>> from offtrace.traces import ImportanceSampling
    >>> mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=[[0.0, 1.0]], gamma=0.5)
    >>> general_operator(mdp, [[0.0, 0.0]], pi=[[0.0, 1.0]], mu=[[0.5, 0.5]], trace=ImportanceSampling(1.0))  # Q^π
    array([[1., 2.]])
    """
    q, pi, mu = bellman.values(mdp, q), checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    change = bellman.t_pi(mdp, q, pi) - q
    if isinstance(trace, TrajectoryAware):
        return q + (trajectories.reach(mdp, pi=pi, mu=mu, trace=trace) @ change.ravel()).reshape(mdp.shape)
    w = mu * coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q)
    _check_growth(mdp, w)
    return bellman.resolve(mdp, q, change, w, tol=tol)


def eta(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None, tol: float = 1e-8) -> np.ndarray:
    """η(x, a) = 1 − (1−γ) E_μ[Σ_t γ^t c_1…c_t], Remark 1, (X, A): where c ≤ π/μ, |RQ − Q^π| ≤ η ‖Q − Q^π‖.

    Where episodes end, 1 − γ is 1 less what goes on from the step; η is the row sum of A all the same.

    >>> from offtrace.traces import OneStep
    >>> mdp = FiniteMDP(p=[[[1.0]]], r=[[0.0]], gamma=0.9)
    >>> eta(mdp, pi=[[1.0]], mu=[[1.0]], trace=OneStep())
    array([[0.9]])
    """
    pi, mu = checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    stops = 1 - mdp.gamma * products.continuing_mass(mdp)
    if isinstance(trace, TrajectoryAware):
        return 1 - (trajectories.reach(mdp, pi=pi, mu=mu, trace=trace) @ stops.ravel()).reshape(mdp.shape)
    w = mu * coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q)
    _check_growth(mdp, w)
    return 1 - bellman.resolve(mdp, np.zeros(mdp.shape), stops, w, tol=tol)


def a_matrix(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """A (X·A, X·A): R Q − Q^π = A (Q − Q^π); non-negative with row sums η ≤ γ where c ≤ π/μ."""
    pi = checked_policy(pi, mdp.shape, "pi")
    reached = reach(mdp, pi=pi, mu=mu, trace=trace, q=q)
    return np.eye(len(reached)) - reached + mdp.gamma * reached @ bellman.weighted(mdp, pi)


def b_matrix(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """B (X·A, X·A): T^π R Q − R Q = B (T^π Q − Q); non-negative where c ≤ π/μ; its rows may sum to more than 1."""
    pi = checked_policy(pi, mdp.shape, "pi")
    reached = reach(mdp, pi=pi, mu=mu, trace=trace, q=q)
    return np.eye(len(reached)) - reached + mdp.gamma * bellman.weighted(mdp, pi) @ reached


def reach(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None) -> np.ndarray:
    """E_μ[Σ_t γ^t c_1…c_t 1{(x_t, a_t) = (y, b)}], (X·A, X·A): how much of a TD error at (y, b) reaches (x, a).

    (I − γP^{cμ})^{-1} for a Markov trace.
    """
    pi, mu = checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    trace = as_trace(trace)
    if isinstance(trace, TrajectoryAware):
        return trajectories.reach(mdp, pi=pi, mu=mu, trace=trace)
    w = mu * coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q)
    _check_growth(mdp, w)
    bellman.ended_in(mdp, w)
    matrix = bellman.weighted(mdp, w)
    return np.linalg.solve(np.eye(len(matrix)) - mdp.gamma * matrix, np.eye(len(matrix)))


class Moments(NamedTuple):
    """Mean and variance of Δ = Σ_t γ^t c_1…c_t δ_t over trajectories that start with (x, a), each (X, A)."""

    mean: np.ndarray
    variance: np.ndarray
    """Infinite where (x, a) leads to states among which noise grows faster than it is discounted, and only there."""
    radius: float
    """Spectral radius of γ²P^{c²μ}; every variance is finite where it is below 1."""


def correction_moments(mdp: FiniteMDP, q: Any, *, pi: Any, mu: Any, trace: AnyTrace, tol: float = 1e-8) -> Moments:
    """Mean and variance of the sampled correction of a Markov trace, exactly, for each (x, a).

    With d = E Δ, what a step adds to what was expected, ε = δ + γ c(x', a') d(x', a') − d(x, a), has mean 0 whatever
    came before, so that

        Var Δ = E[Σ_t γ^2t c_1²…c_t² E[ε_t² | x_t, a_t]] = E ε² + γ² Σ_x' p Σ_b μ c² Var Δ.

    Rewards count as r(x, a, x'), without noise of their own.
    """
    q, pi, mu = bellman.values(mdp, q), checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    return moments(mdp, q, pi, mu, coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q), tol=tol)


def trace_moments(mdp: FiniteMDP, *, pi: Any, mu: Any, trace: AnyTrace, q: Any = None, tol: float = 1e-8) -> Moments:
    """The same for Σ_t γ^t c_1…c_t itself, the discounted sum of the products of traces."""
    pi, mu = checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    return moments(mdp, None, pi, mu, coefficients(mdp, pi=pi, mu=mu, trace=trace, q=q), tol=tol)


def moments(
    mdp: FiniteMDP, q: np.ndarray | None, pi: np.ndarray, mu: np.ndarray, c: np.ndarray, *, tol: float = 1e-8
) -> Moments:
    """Of Σ_t γ^t c_1…c_t δ_t; without a Q, of Σ_t γ^t c_1…c_t."""

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
    # the noise of one step: of its outcome, and of the action taken after it
    carried = mdp.gamma * c * mean
    u = products.expected(mu, carried)
    spread = products.expected(mu, (carried - u[:, None]) ** 2)[mdp.successor]
    here, ahead = mean.ravel()[mdp.rows], u[mdp.successor]
    noise = average(going, (delta + ahead - here) ** 2 + spread) + average(ending, (ended - here) ** 2)
    size = np.maximum.reduceat(size + abs(ahead) + abs(here), mdp.first[:-1]).reshape(mdp.shape)
    known_to = 1e-10 * size + (0 if products.is_small(mdp) else 10 * tol)
    noise = np.where(noise > known_to**2, noise, 0)  # less is rounding
    radius = mdp.gamma * spectrum.state_radius(mdp, w * c)
    squared, kept = mdp.with_gamma(mdp.gamma**2), w * c
    if radius < 1:
        return Moments(mean, bellman.resolve(squared, np.zeros(mdp.shape), noise, kept, tol=tol), radius)
    from offtrace.operators import classes

    endless, kept = classes.diverging(squared, kept, noise)
    variance = bellman.resolve(squared, np.zeros(mdp.shape), noise, kept, tol=tol)
    return Moments(mean, np.where(products.backup(mdp, endless.astype(np.float64)) > 0, np.inf, variance), radius)


def _check_growth(mdp: FiniteMDP, w: np.ndarray) -> None:
    """R is a sum over time; where E_μ[c_1…c_t] grows faster than γ^t shrinks it has no value."""
    if mdp.gamma < 1 and products.masses(mdp, w)[1] >= 1:
        radius = spectrum.state_radius(mdp, w)
        if radius >= 1:
            raise ValueError(
                f"`trace` must let R be a finite sum: its traces grow by {radius / mdp.gamma:.3g} a step on average, "
                f"more than `gamma` = {mdp.gamma:g} shrinks them. Lower c; Theorem 1 wants c ≤ π/μ."
            )
