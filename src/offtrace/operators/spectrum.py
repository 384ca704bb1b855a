"""Spectral radii, which decide whether iterating an operator converges, and norms, which bound a single step.

The nonzero eigenvalues of A are those of a matrix over states, γ (I − γM_{cμ})^{-1} (M_π − M_{cμ}).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.operators import products, solvers


def state_radius(mdp: FiniteMDP, w: np.ndarray) -> float:
    """Return the spectral radius of γ M_w, for w ≥ 0."""
    if products.is_small(mdp):
        return mdp.gamma * _radius(products.state_matrix(mdp, w))
    least, most = products.masses(mdp, w)
    if most - least <= 1e-12:
        return most  # equal row sums: the radius is that sum
    return _largest(mdp, lambda v: products.expected(w, products.backup(mdp, v)))


def contraction_radius(mdp: FiniteMDP, pi: np.ndarray, w: np.ndarray) -> float:
    """Return the spectral radius of A for weights w = μ·c: iterating R converges iff it is below 1."""
    gamma = mdp.gamma
    if products.is_small(mdp):
        kept, full = products.state_matrix(mdp, w), products.state_matrix(mdp, pi)
        return _radius(gamma * np.linalg.solve(np.eye(mdp.num_states) - gamma * kept, full - kept))

    def times(v: np.ndarray) -> np.ndarray:
        change = products.expected(pi - w, products.backup(mdp, v))
        return solvers.solve(mdp, w, change, tol=1e-10 * max(float(abs(change).max()), 1e-300))[0]

    return _largest(mdp, times)


def contraction_norms(mdp: FiniteMDP, pi: np.ndarray, w: np.ndarray) -> Iterator[float]:
    """Yield ‖A‖, ‖A²‖, ‖A³‖, …: k steps of R multiply ‖Q − Q^π‖ by at most ‖Aᵏ‖. Yields nothing for a large MDP.

    Where 0 ≤ w ≤ π, A is non-negative and ‖Aᵏ‖ = max Aᵏ1 needs one vector; elsewhere all of A is
    needed.
    """
    num_states, num_actions = mdp.shape
    if not products.is_small(mdp):
        return
    apart = pi - w
    if (apart >= -1e-10).all():
        ahead = apart.sum(1)[:, None]
    elif (num_states * num_actions) ** 2 * num_states > MAX_WORK:
        return
    else:
        ahead = np.zeros((num_states, num_states, num_actions))
        ahead[np.arange(num_states), np.arange(num_states)] = apart
        ahead = ahead.reshape(num_states, -1)
    kept = products.state_matrix(mdp, w)
    behind = mdp.gamma * np.linalg.solve((np.eye(num_states) - mdp.gamma * kept).T, products.dense(mdp).T).T
    while True:
        power = behind @ ahead
        yield float(abs(power).sum(1).max())
        ahead = np.einsum("xa,xak->xk", apart, power.reshape(num_states, num_actions, -1))


def contraction_bound(mdp: FiniteMDP, pi: np.ndarray, w: np.ndarray) -> float:
    """Return an upper bound of ‖A‖ for an MDP of any size: max γ (I − γP^{cμ})^{-1} |P^π − P^{cμ}| 1.

    It equals ‖A‖ where 0 ≤ w ≤ π.
    """
    apart = abs(pi - w).sum(1)
    kept = products.expected(w, products.backup(mdp, apart))
    inner, _, _ = solvers.solve(mdp, w, kept, tol=1e-10)
    return float((products.backup(mdp, apart) + products.backup(mdp, inner)).max())


MAX_WORK = 1 << 28
"""Limit on the multiplications for one power of a matrix over pairs."""


def _radius(matrix: np.ndarray) -> float:
    return float(abs(np.linalg.eigvals(matrix)).max(initial=0.0))


class _Product(NamedTuple):
    """A matrix given by its products with vectors, in the form that SciPy takes."""

    shape: tuple[int, int]
    matvec: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype = np.dtype(np.float64)


def _largest(mdp: FiniteMDP, times: Callable[[np.ndarray], np.ndarray]) -> float:
    """Return the largest |eigenvalue| of a product with vectors over states, by ARPACK."""
    from scipy.sparse.linalg import ArpackNoConvergence, aslinearoperator, eigs

    operator = aslinearoperator(_Product((mdp.num_states, mdp.num_states), times))
    start = np.random.default_rng(0).uniform(0.5, 1.5, mdp.num_states)
    try:
        found = eigs(operator, k=1, which="LM", v0=start, tol=1e-8, return_eigenvectors=False)
    except ArpackNoConvergence as short:
        found = short.eigenvalues
        if not len(found):
            raise ArithmeticError("ARPACK did not converge on the spectral radius.") from None
    return float(abs(found).max())
