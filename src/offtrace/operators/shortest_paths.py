"""Q* at γ = 1 where some policies never end an episode: stochastic shortest paths (Bertsekas and Tsitsiklis 1991).

Policy iteration starts from a policy that ends every episode. Every later policy ends them as well,
unless it follows a loop that earns for ever. Of two actions of the same value the one that ends
sooner is chosen (Bertsekas and Yu 2016 make time cost a little), so a loop whose rewards add up to
0 is never preferred to its exit.
"""

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu

from offtrace.mdp import FiniteMDP
from offtrace.operators import classes, products, solvers

CLOSE = 1e-11
"""Values that differ by less than this share of the greatest are equal up to rounding."""
FEW_STEPS = 200
"""BiCGSTAB steps before SuperLU is used."""
CLOSER = 1e-3
"""Policies are evaluated to this share of `tol`, so that actions of equal value come out equal."""


def best(mdp: FiniteMDP, *, tol: float) -> tuple[np.ndarray, int, str]:
    """Return v = max_a (r + P v) of the best policy that ends all episodes; raises if going on for ever is better."""
    pairs = products.lists(mdp)
    lasting = np.add.reduceat(pairs.p, pairs.first[:-1]).reshape(
        mdp.shape
    )  # the probability that a step does not end the episode
    chosen = _ending(mdp, lasting)
    states, ones = np.arange(mdp.num_states), np.ones(mdp.shape)
    count = 0
    for _ in range(solvers.MAX_POLICIES):
        w = np.zeros(mdp.shape)
        w[states, chosen] = 1
        v, duration = _solve(mdp, w, tol, mdp.r[states, chosen], np.ones(mdp.num_states))
        count += 1
        q, time = products.backup(mdp, v, r=mdp.r), products.backup(mdp, duration, r=ones)
        close = _rounding(mdp, v, duration, tol)
        top = q.max(1, keepdims=True)
        time = np.where(q >= top - close[:, None], time, np.inf)  # among the best actions, the one that ends soonest
        better = (top[:, 0] > q[states, chosen] + close) | (
            time.min(1) < time[states, chosen] - np.maximum(1e-9 * duration, tol)
        )
        if not better.any():
            _check_loops(mdp, v, q >= top - close[:, None], close)
            return v, count, "policy iteration"
        chosen = np.where(better, time.argmin(1), chosen)
        _check_gain(mdp, chosen, lasting)
    return v, count, "policy iteration"


def _solve(mdp: FiniteMDP, w: np.ndarray, tol: float, *rights: np.ndarray) -> list[np.ndarray]:
    """Return v = b + M_w v for each b. Where paths are long, as in mazes, SuperLU is faster than BiCGSTAB."""
    if products.is_small(mdp):
        return [solvers.solve(mdp, w, b, tol=tol)[0] for b in rights]
    found = [b.copy() for b in rights]
    if all(solvers.bicgstab(mdp, w, b, v, tol * CLOSER, FEW_STEPS)[1] for b, v in zip(rights, found, strict=True)):
        return found
    matrix = csc_array(eye_array(mdp.num_states, format="csr") - classes.graph(mdp, w))
    # an M-matrix needs no pivoting, and without it there is little fill-in
    system = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return [system.solve(b) for b in rights]


def _rounding(mdp: FiniteMDP, v: np.ndarray, duration: np.ndarray, tol: float) -> np.ndarray:
    """(X,) the accuracy of Q: rounding errors added up over an episode, and the accuracy of the solver."""
    solved_to = 0.0 if products.is_small(mdp) else 2 * CLOSER * tol * duration
    return CLOSE * np.maximum(abs(mdp.r).max() * duration, abs(v).max()) + solved_to


def _ending(mdp: FiniteMDP, lasting: np.ndarray) -> np.ndarray:
    """(X,) for each state an action that leads towards the nearest end, counted in steps."""
    distance = np.full(mdp.num_states, np.inf)
    chosen = np.zeros(mdp.num_states, dtype=np.int64)
    steps, found = 1, lasting < 1 - 1e-12
    while found.any():
        new = found.any(1)
        chosen[new], distance[new] = found[new].argmax(1), steps
        steps += 1
        near = (distance[mdp.successor] < np.inf) & (mdp.continuing > 0)
        found = np.logical_or.reduceat(near, mdp.first[:-1]).reshape(mdp.shape) & (distance == np.inf)[:, None]
    if not np.isfinite(distance).all():
        x = int(np.argmax(distance))
        raise ValueError(
            f"`gamma` must be below 1 where episodes cannot end; got 1. No policy ends an episode from x = {x}: "
            "mark what ends with `terminates`, or lower `gamma`."
        )
    return chosen


def _check_gain(mdp: FiniteMDP, chosen: np.ndarray, lasting: np.ndarray) -> None:
    """Raise if the policy never ends some episodes: being better than one that does, it follows a loop that earns."""
    states = np.arange(mdp.num_states)
    w = np.zeros(mdp.shape)
    w[states, chosen] = 1
    edges = classes.graph(mdp, w)
    endless = ~classes.leading_to(edges, lasting[states, chosen] < 1 - 1e-12)
    if endless.any():
        label = classes.classes(edges)
        row, column = edges.nonzero()
        open_ = np.zeros(label.max() + 1, dtype=bool)
        open_[label[row[label[row] != label[column]]]] = True
        x = int(np.argmax(endless & ~open_[label]))
        gain = _mean_reward(mdp, edges, label == label[x], mdp.r[states, chosen])
        raise ValueError(
            f"`gamma` must be below 1 where going on for ever pays; got 1. A loop through x = {x} earns {gain:.4g} "
            "per step: lower `gamma`."
        )


def _mean_reward(mdp: FiniteMDP, edges: csr_array, members: np.ndarray, reward: np.ndarray) -> float:
    """Return the mean reward per step in a class of states that is never left."""
    inside = np.flatnonzero(members)
    share = np.full(len(inside), 1 / len(inside))
    chain = edges[inside][:, inside]
    for _ in range(solvers.MAX_STEPS):
        new = (share + share @ chain) / 2  # half a step at a time: a loop may be periodic
        if abs(new - share).max() <= 1e-12:
            break
        share = new
    return float(share @ reward[inside])


def _check_loops(mdp: FiniteMDP, v: np.ndarray, best: np.ndarray, close: np.ndarray) -> None:
    """Raise if a loop of best actions, which earns 0 in total, is better than ending."""
    looping = classes.loops(mdp, best) & (v < -close)
    if looping.any():
        x = int(np.argmin(np.where(looping, v, np.inf)))
        raise ValueError(
            f"`gamma` must be below 1 where it is not best to end; got 1. A loop through x = {x} earns 0 in total, "
            f"and ending from there earns {v[x]:.4g}: lower `gamma`."
        )
