"""Solvers of v = b + γ M_w v and v = max_a (r + γ P v): elimination, sweeps, or BiCGSTAB.

dense       A small MDP is solved by dense linear algebra.
banded      Where successors are close in the order of the states, elimination along the band takes about as long as a
            sweep. Where a few lead farther, SuperLU eliminates.
sweeps      Otherwise v ← b + γ M_w v is iterated. The least and the greatest change of a sweep bound the error from
            below and above (MacQueen 1966), so a fast-mixing MDP takes a dozen sweeps whatever γ
            is. Where no state ends, sweeps in stages (Gauss-Seidel) come first, which takes fewer
            passes.
bicgstab    Where the bounds close in slowly, successors are local, and BiCGSTAB (van der Vorst 1992) continues from
            the sweeps' result. Optimal values come from policy iteration around it.
"""

import functools
import itertools
import math
import warnings
from typing import Any, NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.operators import products
from offtrace.threads import parts_of

LOOK_AFTER = 12
"""Sweeps before their rate of convergence is estimated."""
FEW_SWEEPS = 40
"""BiCGSTAB is tried where more sweeps than this are still to come."""
NUM_STAGES = 8
"""Stages of a Gauss-Seidel sweep."""
MANY_TRANSITIONS = 5_000_000
"""Transitions from which on sweeps in stages are faster."""
WORTH_STAGES = 0.55
"""Sweeps in stages stop where a pass leaves more than this share of the error."""
MANY_LOOPS = 16
"""Self-loops are solved directly where at most one state in this many has one."""
SAME_MASS = 1e-9
"""If the row sums of γ M_w differ by at most this, no state ends an episode."""
MAX_SWEEPS = 100_000
MAX_STEPS = 5_000
"""Limit on the steps of BiCGSTAB."""
MAX_POLICIES = 1_000
"""Limit on the policies of policy iteration."""
EPS = float(np.finfo(np.float64).eps)


class ResidualWarning(UserWarning):
    """A solver stopped before it reached the requested accuracy."""


class Solution(NamedTuple):
    """A fixed point, with its residual and error bound."""

    q: np.ndarray
    """(X, A)."""
    v: np.ndarray
    """(X,)."""
    residual: float
    """max |T v − v|, measured on the result."""
    error_bound: float
    """No state's value is off by more than this; infinite at γ = 1."""
    num_sweeps: int
    """Passes over the transitions."""
    method: str
    """`dense`, `banded`, `sweeps`, `bicgstab`, `superlu` or `policy iteration`."""


def solve(
    mdp: FiniteMDP,
    w: np.ndarray,
    b: np.ndarray,
    *,
    tol: float,
    masses: tuple[float, float] | None = None,
    spare: np.ndarray | None = None,
) -> tuple[np.ndarray, int, str]:
    """Return v = b + γ M_w v, the passes it took and the method, for w ≥ 0 with ρ(γ M_w) < 1.

    `spare`, of X numbers or more, is scratch and may be overwritten.
    """
    if products.is_small(mdp):
        return _dense(np.eye(mdp.num_states) - mdp.gamma * products.state_matrix(mdp, w), b), 1, "dense"
    if products.is_banded(mdp) and mdp.gamma > 0.5:
        band = _band(mdp)
        if band is not None:
            return _banded(mdp, w, b, band, spare), 1, "banded"
        chain = products.merged(mdp, w)
        if chain is not None:
            return _eliminated(mdp, chain, b), 1, "superlu"
    spare = np.empty(mdp.num_states) if spare is None else spare
    return _sparse(mdp, w, b, tol, masses or products.masses(mdp, w), spare[: mdp.num_states])


def best(mdp: FiniteMDP, *, tol: float) -> tuple[np.ndarray, int, str]:
    """Return v = max_a (r + γ P v), the passes it took and the method."""
    if products.is_small(mdp):
        return _policy_iteration_dense(mdp)
    from offtrace.operators import sweep_kernels

    least_mass, most_mass = products.masses(mdp)
    v, new = np.zeros(mdp.num_states), np.empty(mdp.num_states)
    arguments = (mdp.num_actions, *products.lists(mdp), mdp.gamma, mdp.r)
    convergence = _Convergence()
    for count in range(1, MAX_SWEEPS):
        low, high = _bounds(
            products.over_states(mdp, sweep_kernels.best_sweep, *arguments, v, new), least_mass, most_mass
        )
        v, new = new, v
        if high - low <= 2 * tol or convergence.stuck(high - low, v, most_mass):
            return v + (low + high) / 2, count, "sweeps"
        if convergence.sweeps_left(high - low, tol) > FEW_SWEEPS:
            shifted = v + (low + high) / 2 if math.isfinite(low + high) else v
            return _policy_iteration(mdp, shifted, count, tol)
    return v, MAX_SWEEPS, "sweeps"


def checked(solution: Solution, tol: float) -> Solution:
    """Warn where the residual is above `tol`."""
    if not solution.residual <= tol:
        text = f"the residual is {solution.residual:.2g}, above `tol` = {tol:g}, after {solution.num_sweeps} sweeps"
        remedy = "raise `tol`"
        if solution.residual < 1e-6:
            remedy = "rounding allows no less for values this large"
        warnings.warn(f"{text}; {remedy}.", ResidualWarning, stacklevel=4)
    return solution


# -- small ---------------------------------------------------------------------------------------


def _dense(matrix: np.ndarray, b: np.ndarray) -> np.ndarray:
    v = np.linalg.solve(matrix, b)
    return v + np.linalg.solve(matrix, b - matrix @ v)  # one step of refinement


def _policy_iteration_dense(mdp: FiniteMDP) -> tuple[np.ndarray, int, str]:
    states = np.arange(mdp.num_states)
    chosen = mdp.r.argmax(1)
    num_policies = 0
    while num_policies < MAX_POLICIES:
        num_policies += 1
        w = np.zeros(mdp.shape)
        w[states, chosen] = 1
        v = _dense(np.eye(mdp.num_states) - mdp.gamma * products.state_matrix(mdp, w), mdp.r[states, chosen])
        q = products.backup(mdp, v, r=mdp.r)
        better = q.max(1) > q[states, chosen] + 1e-12 * max(1.0, float(abs(v).max()))  # more than rounding
        if not better.any():
            break
        chosen = np.where(better, q.argmax(1), chosen)
    return v, num_policies, "dense"


# -- large ---------------------------------------------------------------------------------------


def _band(mdp: FiniteMDP) -> Any:
    from offtrace.operators import banded

    return banded.shape(mdp) if products.is_banded(mdp) else None


def _banded(mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, band: Any, spare: np.ndarray | None = None) -> np.ndarray:
    from offtrace.operators import banded

    return banded.solve(mdp, w, b, band, spare)


def _eliminated(mdp: FiniteMDP, chain: products.Lists, b: np.ndarray) -> np.ndarray:
    """Return (I − γM)^{-1} b by SuperLU, in the order of the states, in which successors are close."""
    from scipy.sparse import csc_array, csr_array, eye_array
    from scipy.sparse.linalg import splu

    size = mdp.num_states
    chained = csr_array((chain.p, chain.successor, chain.first), shape=(size, size))
    system = csc_array(eye_array(size, format="csr") - mdp.gamma * chained)
    return splu(system, permc_spec="NATURAL").solve(b)


class _Convergence:
    """The rate at which the bounds close in."""

    def __init__(self) -> None:
        self.spans: list[float] = []

    def sweeps_left(self, span: float, tol: float) -> float:
        """Return the sweeps still to come, by the rate of the last ones; 0 as long as there are too few."""
        self.spans.append(span)
        if len(self.spans) < LOOK_AFTER:
            return 0.0
        if not math.isfinite(span):
            return math.inf
        rate = (span / self.spans[-6]) ** (1 / 5)
        return math.inf if rate >= 1 else math.log(tol / span) / math.log(rate)

    def stuck(self, span: float, v: np.ndarray, most_mass: float) -> bool:
        """Return whether the changes are down to rounding."""
        if len(self.spans) < LOOK_AFTER or span < 0.9 * self.spans[-1] or not math.isfinite(span):
            return False
        return span * (1 - most_mass) <= 16 * EPS * float(abs(v).max())


def _bounds(changes: list[tuple[float, float]], least_mass: float, most_mass: float) -> tuple[float, float]:
    """Return bounds of the error after a sweep, from the least and the greatest change of each of its parts.

    The error is Σ_{j ≥ 1} (γM)^j times the change; the row sums of (γM)^j are in [least_mass^j,
    most_mass^j].
    """
    least, greatest = min(low for low, _ in changes), max(high for _, high in changes)
    if most_mass >= 1:
        return -math.inf, math.inf
    few, many = least_mass / (1 - least_mass), most_mass / (1 - most_mass)
    return least * (many if least < 0 else few), greatest * (many if greatest > 0 else few)


def _staged(
    mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, v: np.ndarray, spare: np.ndarray, tol: float, mass: float
) -> int:
    """Gauss-Seidel in stages: each stage reads the results of those before it, which takes fewer passes.

    v is changed in place. It stops where one plain sweep should bound the error by `tol`, or where
    plain sweeps would be as fast. Returns the number of passes.

    - Threads work on the same stage and do not read its results, so v does not depend on their number.
    - Self-loops are solved for directly; the few states that have one would converge slowest of all.
    - After a pass v is shifted by an estimate of its mean error, as bounds shift it in plain sweeps: where successors
      are anywhere, the error of a state is γ times the mean of the changes made after it was
      computed.
    """
    from offtrace.operators import sweep_kernels

    if not 0 < mass < 1:
        return 0
    size, lists = len(v), products.lists(mdp)
    num_bytes = 12 * len(mdp.probability)
    edges = [size * i // NUM_STAGES for i in range(NUM_STAGES + 1)]
    products.over_states(mdp, sweep_kernels.diagonal, *lists, w, spare)
    loops = np.flatnonzero(spare)
    loops = loops if loops.size <= size // MANY_LOOPS else loops[:0]
    back = mdp.gamma * spare[loops]
    gain, at = back / (1 - back), np.searchsorted(loops, edges)
    spans: list[float] = []

    def part(first: int, start: int, stop: int) -> tuple[float, float]:
        return sweep_kernels.sweep(first + start, first + stop, *lists, w, mdp.gamma, b, v, spare)

    while len(spans) < MAX_SWEEPS:
        least, greatest, sums = math.inf, -math.inf, np.zeros(NUM_STAGES)
        for stage, (first, last) in enumerate(itertools.pairwise(edges)):
            for low, high in parts_of(functools.partial(part, first), last - first, num_bytes // NUM_STAGES):
                least, greatest = min(least, low), max(greatest, high)
            here = slice(at[stage], at[stage + 1])
            spare[loops[here]] += gain[here] * (spare[loops[here]] - v[loops[here]])
            sums[stage] = (spare[first:last] - v[first:last]).sum()
            v[first:last] = spare[first:last]
        later = np.cumsum(sums[::-1])[::-1] / size  # Σ of the changes in this stage and after it
        np.add(v, mass * float(later @ np.diff(edges)) / size / (1 - mass), out=v)
        spans.append(greatest - least)
        rate = (spans[-1] / spans[-4]) ** (1 / 3) if len(spans) > 3 and spans[-4] > 0 else 0.5
        if not rate < WORTH_STAGES or spans[-1] * rate * mass / (1 - mass) <= 2 * tol:
            break
    return len(spans)


def _sparse(
    mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, tol: float, masses: tuple[float, float], spare: np.ndarray
) -> tuple[np.ndarray, int, str]:
    from offtrace.operators import sweep_kernels

    least_mass, most_mass = masses
    v = own = b.copy()  # a sweep from 0 gives b
    new = spare
    convergence = _Convergence()
    try_bicgstab = True
    in_stages = most_mass - least_mass <= SAME_MASS and len(mdp.probability) >= MANY_TRANSITIONS
    passes = _staged(mdp, w, b, v, new, tol, most_mass) if in_stages else 0
    while passes < MAX_SWEEPS:
        passes += 1
        changes = products.over_states(mdp, sweep_kernels.sweep, *products.lists(mdp), w, mdp.gamma, b, v, new)
        low, high = _bounds(changes, least_mass, most_mass)
        v, new = new, v
        middle = (low + high) / 2 if math.isfinite(low + high) else 0.0
        if high - low <= 2 * tol or convergence.stuck(high - low, v, most_mass):
            return np.add(v, middle, out=own), passes, "sweeps"
        if try_bicgstab and convergence.sweeps_left(high - low, tol) > FEW_SWEEPS:
            trial = v + middle
            goal = tol * (1 - most_mass) / 2 if most_mass < 1 else tol
            steps, done = bicgstab(mdp, w, b, trial, goal)
            passes += 2 * steps
            if done:
                return trial, passes, "bicgstab"
            try_bicgstab = False  # it broke down; sweeps always converge
    return np.add(v, 0.0, out=own), passes, "sweeps"


def bicgstab(
    mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, v: np.ndarray, goal: float, max_steps: int = MAX_STEPS
) -> tuple[int, bool]:
    """Solve (I − γ M_w) v = b in place, from v; returns the steps, and whether it converged.

    It stops where the largest residual is at most `goal`, or rounding allows no less.
    """
    from offtrace.operators import sweep_kernels

    chain = products.merged(mdp, w)
    product = sweep_kernels.matvec if chain is None else sweep_kernels.chain_matvec
    transitions = (*products.lists(mdp), w) if chain is None else chain

    def run(kernel: Any, *arguments: Any) -> list[Any]:
        return parts_of(lambda start, stop: kernel(start, stop, *arguments), len(v), 8 * 4 * len(v))

    def times(x: np.ndarray, out: np.ndarray, with_: np.ndarray) -> tuple[float, float]:
        arguments = (*transitions, mdp.gamma, x, out, with_)
        parts = parts_of(lambda start, stop: product(start, stop, *arguments), len(v), 12 * len(transitions[1]))
        return sum(part[0] for part in parts), sum(part[1] for part in parts)

    image, image_2 = np.empty_like(v), np.empty_like(v)
    steps = 0
    floor = 0.0
    while steps < max_steps:  # every round starts from the true residual
        times(v, image, b)
        residual = b - image
        largest = float(abs(residual).max())
        floor = max(goal, 4 * EPS * float(abs(v).max()))
        if largest <= floor:
            return steps, True
        shadow, direction = residual.copy(), residual.copy()
        before, rho = largest, float(residual @ residual)
        while steps < max_steps:
            steps += 1
            alpha = rho / times(direction, image, shadow)[0]
            run(sweep_kernels.half_step, residual, alpha, image)
            dot, square = times(residual, image_2, residual)
            omega = dot / square if square else 0.0
            parts = run(sweep_kernels.full_step, v, residual, direction, image_2, shadow, alpha, omega)
            new_rho, largest = sum(part[0] for part in parts), max(part[1] for part in parts)
            if not math.isfinite(largest + new_rho):
                return steps, False
            beta = new_rho / rho * alpha / omega if rho and omega else 0.0
            if largest <= floor / 2 or beta == 0:
                break
            run(sweep_kernels.turn, direction, residual, image, beta, omega)
            rho = new_rho
        if largest >= before:
            return steps, False
    return steps, False


def _policy_iteration(mdp: FiniteMDP, v: np.ndarray, count: int, tol: float) -> tuple[np.ndarray, int, str]:
    from offtrace.operators import sweep_kernels

    arguments = (mdp.num_actions, *products.lists(mdp), mdp.gamma, mdp.r)
    least_mass, most_mass = products.masses(mdp)
    policy = np.zeros(mdp.shape)
    new = np.empty_like(v)
    goal = tol * (1 - most_mass) / 2 if most_mass < 1 else tol
    rough = math.inf  # accuracy to which the next policy is evaluated
    accuracy = math.inf  # accuracy of v for the current policy
    band = _band(mdp)
    for _ in range(MAX_POLICIES):
        changed = any(products.over_states(mdp, sweep_kernels.choose, *arguments, v, policy))
        if changed or accuracy > goal:
            earned = products.expected(policy, mdp.r)
            if band is None:
                steps, reached = bicgstab(mdp, policy, earned, v, max(goal, rough))
                accuracy = max(goal, rough) if reached else goal  # what was not reached never will be
                count += 2 * steps
            else:
                v = _banded(mdp, policy, earned, band)
                accuracy = goal
                count += 1
        changes = products.over_states(mdp, sweep_kernels.best_sweep, *arguments, v, new)
        low, high = _bounds(changes, least_mass, most_mass)
        v, new = new, v
        count += 2
        settled = not changed and accuracy <= goal
        if high - low <= 2 * tol or settled:
            break
        # the next policy need not be evaluated much more accurately than this one
        rough = max(max(-least, greatest) for least, greatest in changes) / 20
    if math.isfinite(low + high):
        v = v + (low + high) / 2
    return v, count, "policy iteration"
