"""Q* at γ = 1 where some policies never end an episode: stochastic shortest paths (Bertsekas and Tsitsiklis 1991).

Policy iteration from a policy that ends: each next one ends as well, unless it goes round a loop that earns for ever.
Of two actions that are worth the same, the one that ends sooner is better (Bertsekas and Yu 2016 make time cost a
little), so that no loop whose rewards add up to 0 is ever preferred to its way out.
"""

import numpy as np
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import splu

from offtrace.mdp import FiniteMDP
from offtrace.operators import classes, products, solvers

CLOSE = 1e-11
"""Values that differ by less than this share of the greatest are the same up to rounding."""
FEW_STEPS = 200
"""Of BiCGSTAB."""
CLOSER = 1e-3
"""Policies are evaluated to this share of `tol`, so that equal actions are seen to be equal."""


def best(mdp: FiniteMDP, *, tol: float) -> tuple[np.ndarray, int, str]:
    """v = max_a (r + P v), of the best policies among those that end; refused where going on for ever is better."""
    pairs = products.lists(mdp)
    lasting = np.add.reduceat(pairs.p, pairs.first[:-1]).reshape(mdp.shape)  # the chance that a step goes on
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
        time = np.where(q >= top - close[:, None], time, np.inf)  # of the best, the soonest
        better = (top[:, 0] > q[states, chosen] + close) | (
            time.min(1) < time[states, chosen] - np.maximum(1e-9 * duration, tol)
        )
        if not better.any():
            _refuse_loops(mdp, v, q >= top - close[:, None], close)
            return v, count, "policy iteration"
        chosen = np.where(better, time.argmin(1), chosen)
        _refuse_gain(mdp, chosen, lasting)
    return v, count, "policy iteration"


def _solve(mdp: FiniteMDP, w: np.ndarray, tol: float, *rights: np.ndarray) -> list[np.ndarray]:
    """v = b + M_w v for each b. Where paths are long, as in mazes, BiCGSTAB is slow and SuperLU is quick."""
    if products.is_small(mdp):
        return [solvers.solve(mdp, w, b, tol=tol)[0] for b in rights]
    found = [b.copy() for b in rights]
    if all(solvers.bicgstab(mdp, w, b, v, tol * CLOSER, FEW_STEPS)[1] for b, v in zip(rights, found, strict=True)):
        return found
    matrix = csc_array(eye_array(mdp.num_states, format="csr") - classes.graph(mdp, w))
    # an M-matrix needs no pivots, and without them little fills in
    system = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return [system.solve(b) for b in rights]


def _rounding(mdp: FiniteMDP, v: np.ndarray, duration: np.ndarray, tol: float) -> np.ndarray:
    """(X,) differences of Q that mean nothing: what is added up over an episode, and how well it is solved."""
    solved_to = 0.0 if products.is_small(mdp) else 2 * CLOSER * tol * duration
    return CLOSE * np.maximum(abs(mdp.r).max() * duration, abs(v).max()) + solved_to


def _ending(mdp: FiniteMDP, lasting: np.ndarray) -> np.ndarray:
    """(X,) an action in each state that leads nearer to an end, by the number of steps that it takes at least."""
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
            f"`gamma` = 1 has a fixed point only where episodes can end; no policy ends from x = {x}. "
            "Mark what ends with `terminates`, or lower `gamma`."
        )
    return chosen


def _refuse_gain(mdp: FiniteMDP, chosen: np.ndarray, lasting: np.ndarray) -> None:
    """A policy that is better than one that ends, and never ends, goes round a loop that earns."""
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
            f"`gamma` = 1 has a fixed point only where going on for ever does not pay; "
            f"a loop through x = {x} earns {gain:.4g} a step. Lower `gamma`."
        )


def _mean_reward(mdp: FiniteMDP, edges: csr_array, members: np.ndarray, reward: np.ndarray) -> float:
    """What a class that is never left earns a step, on average."""
    inside = np.flatnonzero(members)
    share = np.full(len(inside), 1 / len(inside))
    chain = edges[inside][:, inside]
    for _ in range(solvers.MAX_STEPS):
        new = (share + share @ chain) / 2  # half a step at a time, as a loop has a period
        if abs(new - share).max() <= 1e-12:
            break
        share = new
    return float(share @ reward[inside])


def _refuse_loops(mdp: FiniteMDP, v: np.ndarray, best: np.ndarray, close: np.ndarray) -> None:
    """A loop of best actions earns nothing on balance. Where ending costs something, going round it is better."""
    looping = classes.loops(mdp, best) & (v < -close)
    if looping.any():
        x = int(np.argmin(np.where(looping, v, np.inf)))
        raise ValueError(
            f"`gamma` = 1 has a fixed point only where it is best to end; a loop through x = {x} costs nothing on "
            f"balance, and ending from there earns {v[x]:.4g}. Lower `gamma`."
        )
