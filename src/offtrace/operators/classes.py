"""Classes of states that lead to one another: where sums over time diverge, and where episodes never end."""

import numpy as np
from scipy.sparse import block_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigs

from offtrace.mdp import FiniteMDP

DENSE = 1000
"""States of a class up to which all of its eigenvalues are computed."""


def graph(mdp: FiniteMDP, w: np.ndarray) -> csr_array:
    """Return M_w (X, X) for w (X, A) ≥ 0 as a sparse matrix."""
    weight = w.ravel()[mdp.rows] * mdp.continuing
    kept = weight > 0
    edges = mdp.rows[kept] // mdp.num_actions, mdp.successor[kept]
    return csr_array((weight[kept], edges), shape=(mdp.num_states, mdp.num_states))


def leading_to(edges: csr_array, goals: np.ndarray) -> np.ndarray:
    """(X,) whether a state is one of `goals` or some path leads from it to one."""
    start = csr_array(goals[None].astype(np.float64))
    size = len(goals)
    backwards = csr_array(block_array([[edges.T, None], [start, csr_array((1, 1))]]))
    found = np.zeros(size + 1, dtype=bool)
    found[breadth_first_order(backwards, size, return_predecessors=False)] = True
    return found[:size]


def classes(edges: csr_array) -> np.ndarray:
    """(X,) the number of each state's class; two states are in one class if each leads to the other."""
    return connected_components(edges, connection="strong")[1]


def diverging(mdp: FiniteMDP, w: np.ndarray, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where z = Σ_t (γ M_w)^t b is infinite, (X,), and the weights that solve it elsewhere; b = Σ_a w·source.

    z(x) is infinite where x leads to a class of spectral radius 1 or more that leads to some b > 0.
    A class of such a radius that leads to none has z = 0, so its weights can be set to 0.
    """
    matrix = mdp.gamma * graph(mdp, w)
    growing = _growing(matrix)
    fed = leading_to(matrix, np.einsum("xa,xa->x", w, source) > 0)
    endless = leading_to(matrix, growing & fed)
    return endless, np.where((endless | growing)[:, None], 0.0, w)


def _growing(matrix: csr_array) -> np.ndarray:
    """(X,) whether the class of a state has a spectral radius of 1 or more."""
    label = classes(matrix)
    row, column = matrix.nonzero()
    inside = label[row] == label[column]
    within = csr_array((matrix.data[inside], (row[inside], column[inside])), shape=matrix.shape)
    sums = within.sum(1)
    least, most = np.full(label.max() + 1, np.inf), np.zeros(label.max() + 1)
    np.minimum.at(least, label, sums)
    np.maximum.at(most, label, sums)
    growing = least >= 1  # the radius lies between the least and the greatest row sum
    for undecided in np.flatnonzero((least < 1) & (most >= 1)):
        members = np.flatnonzero(label == undecided)
        growing[undecided] = _radius(within[members][:, members]) >= 1
    return growing[label]


def _radius(matrix: csr_array) -> float:
    """Return the spectral radius."""
    if matrix.shape[0] <= DENSE:
        return float(abs(np.linalg.eigvals(matrix.toarray())).max())
    start = np.random.default_rng(0).uniform(0.5, 1.5, matrix.shape[0])
    try:
        return float(abs(eigs(matrix, k=1, v0=start, tol=1e-8, return_eigenvectors=False)).max())
    except ArpackNoConvergence:
        raise ArithmeticError("ARPACK did not converge on the spectral radius.") from None


def loops(mdp: FiniteMDP, allowed: np.ndarray) -> np.ndarray:
    """(X,) the states among which an episode can stay for ever, using only the pairs (x, a) of `allowed`.

    These are the maximal end components: pairs that may end the episode or leave their class are
    dropped until there are none.
    """
    stays = np.add.reduceat(mdp.continuing, mdp.first[:-1]).reshape(mdp.shape) > 1 - 1e-12
    allowed = allowed & stays
    while True:
        label = classes(graph(mdp, allowed.astype(np.float64)))
        leaves = (label[mdp.rows // mdp.num_actions] != label[mdp.successor]) & (mdp.continuing > 0)
        kept = allowed & ~np.logical_or.reduceat(leaves, mdp.first[:-1]).reshape(mdp.shape)
        if (kept == allowed).all():
            return kept.any(1)
        allowed = kept
