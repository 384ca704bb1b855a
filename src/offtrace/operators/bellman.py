"""P^π, T^π, T, T_λ^π, and the fixed points Q^π and Q*.

Nothing is bootstrapped past the end of an episode: p is the probability of the transitions that do
not end it.
"""

from typing import Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import products, solvers
from offtrace.operators.solvers import Solution


def p_pi(mdp: FiniteMDP, pi: Any) -> np.ndarray:
    """Return P^π as a dense matrix (X·A, X·A): p(y|x, a) π(b|y) in row x·A + a and column y·A + b.

    >>> mdp = FiniteMDP(p=[[[0.5, 0.5]], [[0.0, 1.0]]], r=[[1.0], [0.0]], gamma=0.9)
    >>> p_pi(mdp, [[1.0], [1.0]])
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    return weighted(mdp, checked_policy(pi, mdp.shape, "pi"))


def weighted(mdp: FiniteMDP, w: np.ndarray) -> np.ndarray:
    """Return p(y|x, a) w(y, b), (X·A, X·A)."""
    size = mdp.num_states * mdp.num_actions
    if size > MAX_MATRIX:
        raise ValueError(f"`mdp` must have at most {MAX_MATRIX:,} pairs (x, a) for a dense matrix; got {size:,}.")
    p = np.zeros((size, mdp.num_states))
    np.add.at(p, (mdp.rows, mdp.successor), mdp.continuing)
    return (p[:, :, None] * w).reshape(size, size)


MAX_MATRIX = 12_000
"""Limit on the pairs (x, a) for a dense matrix over them: 1.2 GB."""


def t_pi(mdp: FiniteMDP, q: Any, *, pi: Any) -> np.ndarray:
    """Return T^π Q = r + γ P^π Q, (X, A)."""
    pi = checked_policy(pi, mdp.shape, "pi")
    return products.backup(mdp, products.expected(pi, values(mdp, q)), r=mdp.r)


def t_star(mdp: FiniteMDP, q: Any) -> np.ndarray:
    """Return T Q = r + γ max_π P^π Q, Eq. 2, (X, A)."""
    return products.backup(mdp, values(mdp, q).max(1), r=mdp.r)


def t_lambda(mdp: FiniteMDP, q: Any, *, pi: Any, lambda_: float, tol: float = 1e-8) -> np.ndarray:
    """Return T_λ^π Q = Q + (I − λγP^π)^{-1}(T^π Q − Q), (X, A): one step at λ = 0, Q^π at λ = 1 (Deviation D1)."""
    if not 0 <= lambda_ <= 1:
        raise ValueError(f"`lambda_` must be in [0, 1]; got {lambda_}.")
    pi = checked_policy(pi, mdp.shape, "pi")
    q = values(mdp, q)
    return resolve(mdp, q, t_pi(mdp, q, pi=pi) - q, lambda_ * pi, tol=tol)


def resolve(mdp: FiniteMDP, q: np.ndarray, change: np.ndarray, w: np.ndarray, *, tol: float) -> np.ndarray:
    """Return Q + (I − γ P^w)^{-1} change, solved over states: the inverse is I + γ P (I − γ M_w)^{-1} Σ_b w."""
    check_episodes_end(mdp, w)
    u, _, _ = solvers.solve(mdp, w, products.expected(w, change), tol=tol)
    return q + change + products.backup(mdp, u)


def evaluate(mdp: FiniteMDP, pi: Any, *, tol: float = 1e-8) -> Solution:
    """Return Q^π, Eq. 1, with its residual and error bound.

    No value is off by more than `tol`, where rounding allows.

    >>> mdp = FiniteMDP(p=[[[1.0]]], r=[[1.0]], gamma=0.75)
    >>> evaluate(mdp, [[1.0]]).q
    array([[4.]])
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    check_episodes_end(mdp, pi)
    masses = products.masses(mdp, pi)
    q = np.empty(mdp.shape)
    spare = q.reshape(-1)[: mdp.num_states]  # scratch for the solver, until Q is computed
    v, num_sweeps, method = solvers.solve(mdp, pi, products.expected(pi, mdp.r), tol=tol, masses=masses, spare=spare)
    residual = products.checked_backup(mdp, v, pi, q)
    _, mass = masses
    bound = residual / (1 - mass) if mass < 1 else np.inf
    return solvers.checked(Solution(q, v, residual, bound, num_sweeps, method), tol)


def optimise(mdp: FiniteMDP, *, tol: float = 1e-8) -> Solution:
    """Return Q*, with its residual and error bound.

    At γ = 1 the best policies must end every episode: raises where going on for ever earns more, or
    none can end.

    >>> mdp = FiniteMDP(p=[[[1.0], [1.0]]], r=[[1.0, 2.0]], gamma=0.75)
    >>> optimise(mdp).q
    array([[7., 8.]])
    """
    if mdp.gamma == 1 and not every_policy_ends(mdp):
        from offtrace.operators import shortest_paths

        v, num_sweeps, method = shortest_paths.best(mdp, tol=tol)
    else:
        v, num_sweeps, method = solvers.best(mdp, tol=tol)
    q = products.backup(mdp, v, r=mdp.r)
    residual = float(abs(q.max(1) - v).max())
    _, mass = products.masses(mdp)
    bound = residual / (1 - mass) if mass < 1 else np.inf
    return solvers.checked(Solution(q, v, residual, bound, num_sweeps, method), tol)


def q_pi(mdp: FiniteMDP, pi: Any, *, tol: float = 1e-8) -> np.ndarray:
    """Return Q^π (X, A); `evaluate` returns the residual as well."""
    return evaluate(mdp, pi, tol=tol).q


def q_star(mdp: FiniteMDP, *, tol: float = 1e-8) -> np.ndarray:
    """Return Q* (X, A); `optimise` returns the residual as well."""
    return optimise(mdp, tol=tol).q


def greedy_gap(mdp: FiniteMDP, q: Any, *, pi: Any) -> float:
    """Return ε_k of Theorem 2: the least ε with T^π Q ≥ T Q − ε ‖Q‖ e."""
    q = values(mdp, q)
    largest = float(abs(q).max())
    if largest == 0:
        return 0.0
    return float((t_star(mdp, q) - t_pi(mdp, q, pi=pi)).max()) / largest


def commutator(mdp: FiniteMDP, *, pi: Any, mu: Any) -> float:
    """Return ‖P^π P^{π∧μ} − P^{π∧μ} P^π‖, the largest row sum of |entries|; Theorem 3 requires that it goes to 0.

    Here P^{π∧μ} = p(y|x, a) min(π, μ)(b|y) (Deviation D2).
    """
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    p_pi_matrix = weighted(mdp, pi)
    p_min_matrix = weighted(mdp, np.minimum(pi, mu))
    return float(abs(p_pi_matrix @ p_min_matrix - p_min_matrix @ p_pi_matrix).sum(1).max())


# -- input checks -----------------------------------------------------------------------------------


def values(mdp: FiniteMDP, q: Any) -> np.ndarray:
    """Return Q as a finite float64 array (X, A)."""
    q = np.asarray(q, dtype=np.float64)
    if q.shape != mdp.shape:
        raise ValueError(f"`q` must have shape (X, A) = {mdp.shape}; got {q.shape}.")
    if not np.isfinite(q).all():
        x, a = np.argwhere(~np.isfinite(q))[0].tolist()
        raise ValueError(f"`q` must be finite; got {q[x, a]} at (x, a) = ({x}, {a}).")
    return q


def check_episodes_end(mdp: FiniteMDP, w: np.ndarray) -> None:
    """Raise for γ = 1 where episodes may never end under these weights: there may be no fixed point."""
    if mdp.gamma == 1:
        inside = _never_ending(mdp, w)
        if inside.any():
            x = int(np.argmax(inside))
            raise ValueError(
                "`gamma` must be below 1 where episodes may never end; got 1. Under this policy, episodes from "
                f"x = {x} never end."
            )


def every_policy_ends(mdp: FiniteMDP) -> bool:
    """Return whether every episode ends under every policy."""
    return not _never_ending(mdp, None).any()


def _never_ending(mdp: FiniteMDP, w: np.ndarray | None) -> np.ndarray:
    """(X,) the states from which an episode never ends: the largest set that is not left.

    With weights, a state belongs to it if all of its weight stays inside; without, if some action
    stays inside.
    """
    inside = np.ones(mdp.num_states, dtype=bool)
    while True:
        mass = np.add.reduceat(mdp.continuing * inside[mdp.successor], mdp.first[:-1]).reshape(mdp.shape)
        stays = mass > 1 - 1e-12
        kept = stays.any(1) if w is None else np.where(stays, w, 0).sum(1) > 1 - 1e-12
        if (inside & kept == inside).all():
            return inside
        inside &= kept
