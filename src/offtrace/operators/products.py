"""Products with the transitions of an MDP: dense arrays for a small one, compiled sweeps for a large one.

Every operator of the paper acts on Q (X, A) through two of them,

    (P v)(x, a) = Σ_x' p(x'|x, a) v(x')           and           (M_w v)(x) = Σ_a w(x, a) (P v)(x, a),

since P^π Q = P (Σ_b π Q) and P^{cμ} Q = P (Σ_b μ c Q). Transitions that end an episode are left out
of p: nothing is bootstrapped past them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.threads import parts_of

DENSE_STATES = 1000
DENSE_ENTRIES = 1 << 24
"""Limits on the states, and on the entries of p as an array (134 MB), up to which linear algebra is dense."""


def is_small(mdp: FiniteMDP) -> bool:
    """Return whether linear algebra on this MDP is dense."""
    return mdp.num_states <= DENSE_STATES and mdp.num_states**2 * mdp.num_actions <= DENSE_ENTRIES


def dense(mdp: FiniteMDP) -> np.ndarray:
    """Return p without what ends, (X·A, X); cached on the MDP, and shared by its copies with another γ."""
    if "_dense" not in mdp.__dict__:
        p = np.zeros((mdp.num_states * mdp.num_actions, mdp.num_states))
        np.add.at(p, (mdp.rows, mdp.successor), mdp.continuing)
        mdp.__dict__["_dense"] = p
    return mdp.__dict__["_dense"]


def state_matrix(mdp: FiniteMDP, w: np.ndarray) -> np.ndarray:
    """Return M_w (X, X) of a small MDP."""
    p = dense(mdp).reshape(*mdp.shape, mdp.num_states)
    return np.matmul(w[:, None, :], p)[:, 0, :]


def backup(mdp: FiniteMDP, v: np.ndarray, *, r: np.ndarray | None = None) -> np.ndarray:
    """Return r + γ P v, (X, A); r = 0 unless given."""
    if is_small(mdp):
        future = mdp.gamma * (dense(mdp) @ v).reshape(mdp.shape)
        return future if r is None else r + future
    from offtrace.operators import sweep_kernels

    out = np.empty(mdp.shape)
    r = np.broadcast_to(0.0, mdp.shape) if r is None else r
    over_states(mdp, sweep_kernels.backup, mdp.num_actions, *lists(mdp), mdp.gamma, r, v, out)
    return out


def checked_backup(mdp: FiniteMDP, v: np.ndarray, w: np.ndarray, out: np.ndarray) -> float:
    """Write r + γ P v to `out` (X, A); returns the greatest |Σ_a w out − v|, in the same pass."""
    if is_small(mdp):
        out[:] = backup(mdp, v, r=mdp.r)
        return float(abs(expected(w, out) - v).max())
    from offtrace.operators import sweep_kernels

    return max(over_states(mdp, sweep_kernels.checked_backup, *lists(mdp), w, mdp.gamma, mdp.r, v, out))


def expected(w: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return Σ_a w(x, a) Q(x, a), (X,)."""
    return np.einsum("xa,xa->x", w, q)


def continuing_mass(mdp: FiniteMDP) -> np.ndarray:
    """Return P 1, (X, A): the probability that a step does not end its episode."""
    if is_small(mdp):
        return dense(mdp).sum(1).reshape(mdp.shape)
    return backup(mdp.with_gamma(1), np.ones(mdp.num_states))


def masses(mdp: FiniteMDP, w: np.ndarray | None = None) -> tuple[float, float]:
    """Return the least and the greatest row sum of γ M_w; without weights, of γ P."""
    if mdp.ends is None and not is_small(mdp):  # the rows of p sum to 1, up to rounding
        low, high = (mdp.gamma * mass for mass in mdp.row_sums)
        sums = np.ones(1) if w is None else np.einsum("xa->x", w)
        return low * float(sums.min()), high * float(sums.max())
    if w is None:
        mass = continuing_mass(mdp)
    elif is_small(mdp):
        mass = expected(w, continuing_mass(mdp))
    else:
        from offtrace.operators import sweep_kernels

        mass = np.empty(mdp.num_states)
        zeros = np.zeros(mdp.num_states)
        ones = np.ones(mdp.num_states)
        over_states(mdp, sweep_kernels.sweep, *lists(mdp), w, 1.0, zeros, ones, mass)
    return mdp.gamma * float(mass.min()), mdp.gamma * float(mass.max())


class Lists(NamedTuple):
    """Transitions as the kernels read them: those of row i are first[i] … first[i + 1] − 1."""

    first: np.ndarray
    p: np.ndarray
    successor: np.ndarray


def lists(mdp: FiniteMDP) -> Lists:
    """Return the transitions that do not end an episode, one row per pair (x, a)."""
    return Lists(mdp.first, mdp.continuing, mdp.successor)


def over_states(mdp: FiniteMDP, kernel: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a kernel over all states, in threads where there are many transitions; returns what each part returns."""
    num_bytes = 12 * len(mdp.probability)
    return parts_of(lambda start, stop: kernel(start, stop, *arguments), mdp.num_states, num_bytes)


def is_banded(mdp: FiniteMDP) -> bool:
    """Return whether successors are close in the order of the states, or around its end; looks at a sample."""
    which = np.linspace(0, len(mdp.successor) - 1, 4096).astype(
        mdp.first.dtype
    )  # of the same dtype, so `first` is not copied
    row = np.searchsorted(mdp.first, which, side="right") - 1
    apart = abs(mdp.successor[which].astype(np.int64) - row // mdp.num_actions)
    near = np.minimum(apart, mdp.num_states - apart) <= BAND
    return bool(near.mean() > 0.99)


BAND = 32
"""Successors at most this far away are close."""


def merged(mdp: FiniteMDP, w: np.ndarray) -> Lists | None:
    """Return M_w as lists, one row per state with each successor once; None where that saves less than half.

    It does where every action of a state leads to the same few states, or where the policy is
    deterministic.
    """
    from offtrace.operators import sweep_kernels

    given = lists(mdp)
    counts = np.empty(mdp.num_states, dtype=np.int64)

    def count(start: int, stop: int) -> None:
        seen = np.full(mdp.num_states, -1, dtype=np.int64)
        sweep_kernels.count_merged(start, stop, given.first, given.successor, w, seen, counts)

    parts_of(count, mdp.num_states, 12 * len(given.p))
    total = int(counts.sum())
    if 2 * total > len(given.p):
        return None
    first = np.concatenate([[0], np.cumsum(counts)])
    found = Lists(first, np.empty(total), np.empty(total, dtype=given.successor.dtype))

    def fill(start: int, stop: int) -> None:
        place = np.full(mdp.num_states, -1, dtype=np.int64)
        sweep_kernels.merge(start, stop, *given, w, place, *found)

    parts_of(fill, mdp.num_states, 12 * len(given.p))
    return found
