"""Trajectory-aware traces: what reaches back depends on the whole path, so paths have to be followed.

Exactly, where episodes end within a few steps: all paths from all (x, a) at once, step by step, and two paths that
stand in the same place with the same history of traces count as one. Otherwise by sampling, with an interval.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import bellman, products
from offtrace.traces import Reach, TrajectoryAware, as_trace

MAX_PATHS = 300_000
"""Distinct paths that are followed at once before giving up."""
NEGLIGIBLE = 1e-17
"""Discounted weight below which what is left of the paths cannot be seen in a float64."""


def reach(
    mdp: FiniteMDP, *, pi: np.ndarray, mu: np.ndarray, trace: TrajectoryAware, max_paths: int = MAX_PATHS
) -> np.ndarray:
    """E_μ[Σ_t γ^t β_t 1{(x_t, a_t) = (y, b)}], (X·A, X·A), exactly."""
    if np.ndim(trace.lambda_):
        raise ValueError("`lambda_` must be one number here: an operator has no steps to give each its own.")
    num_pairs = mdp.num_states * mdp.num_actions
    if num_pairs > bellman.MAX_MATRIX:
        raise ValueError(f"{num_pairs:,} pairs (x, a) are too many for a matrix; {_REMEDY}")
    log_rho = _log_ratio(pi, mu).ravel()
    moves = _moves(mdp, mu)
    reached = np.zeros((num_pairs, num_pairs))
    start = pair = np.arange(num_pairs)
    chance = beta = np.ones(num_pairs)
    log_product = np.zeros(num_pairs)
    lambda_product, discount = 1.0, 1.0
    while len(start) and discount * _alive(start, chance, beta) > NEGLIGIBLE * max(1 - mdp.gamma, 1e-3):
        np.add.at(reached, (start, pair), discount * chance * beta)
        # every path goes on to every (x', a') that it may
        count = moves.first[pair + 1] - moves.first[pair]
        total = int(count.sum())
        if total > max_paths:
            raise ValueError(f"{total:,} paths after a few steps are too many to follow exactly; {_REMEDY}")
        which = np.repeat(np.arange(len(pair)), count)
        move = np.arange(total) - np.repeat(np.cumsum(count) - count, count) + np.repeat(moves.first[pair], count)
        start, pair, chance = start[which], moves.pair[move], chance[which] * moves.chance[move]
        log_product = log_product[which] + log_rho[pair]
        lambda_product *= float(trace.lambda_)
        clipped = np.exp(np.minimum(log_product, 0))
        given = Reach.at(np, beta[which], log_rho[pair], float(trace.lambda_), clipped, lambda_product)
        beta = np.asarray(trace.next_beta(np, given), dtype=np.float64)
        start, pair, chance, beta, log_product = _merged(start, pair, chance, beta, log_product)
        discount *= mdp.gamma
    return reached


def _alive(start: np.ndarray, chance: np.ndarray, beta: np.ndarray) -> float:
    """The most weight that the paths from one (x, a) still carry."""
    return float(np.bincount(start, chance * np.maximum(beta, 1)).max())


_REMEDY = "estimate it with `sampled_operator`, or use a Markov trace."


class Estimate(NamedTuple):
    """What sampling gives, each (X, A): the mean, its standard error, and an interval of 99.9 %."""

    mean: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray


Z_999 = 3.2905267314919255
"""Of a normal distribution, 99.9 % lies within this many standard deviations."""


class Sampled(NamedTuple):
    """What N trajectories under μ from every (x, a) gave: discounted sums Σ_t γ^t β_t f_t, each (X·A, N)."""

    trace: np.ndarray
    """f = 1."""
    stops: np.ndarray
    """f = 1 − γ P 1, so that η = 1 − its mean."""
    expected: np.ndarray
    """f = (T^π Q − Q)(x_t, a_t)."""
    correction: np.ndarray
    """f = δ_t: what a learner sees; (len(qs), X·A, N)."""
    reach: np.ndarray | None
    """(X·A, X·A), f = 1{(x_t, a_t) = (y, b)}, the mean."""


MAX_STEPS = 20_000


def horizon(gamma: float) -> int:
    """Steps until γ^t is below 1e-6."""
    return MAX_STEPS if gamma == 1 else min(MAX_STEPS, int(np.log(1e-6) / np.log(max(gamma, 1e-6))) + 2)


def sample(
    mdp: FiniteMDP,
    qs: Sequence[np.ndarray],
    *,
    pi: np.ndarray,
    mu: np.ndarray,
    traces: Sequence[TrajectoryAware],
    num_trajectories: int,
    rng: np.random.Generator,
    with_reach: bool = False,
) -> list[Sampled]:
    """For each trace, on the same trajectories; they end with the episode, or where γ^t is below 1e-6.

    Corrections are made at every Q of `qs`; `expected` is at the first.
    """
    if num_trajectories < 2:
        raise ValueError(f"`num_trajectories` must be at least 2; got {num_trajectories}.")
    num_pairs, num_actions = mdp.num_states * mdp.num_actions, mdp.num_actions
    num_steps = horizon(mdp.gamma)
    log_rho = _log_ratio(pi, mu).ravel()
    values = [products.expected(pi, q) for q in qs]
    change = (products.backup(mdp, values[0], r=mdp.r) - qs[0]).ravel()
    stops = (1 - mdp.gamma * products.continuing_mass(mdp)).ravel()
    rewards = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
    draw_move, draw_action = _Drawing(mdp.probability, mdp.first), _Drawing(mu.ravel(), _starts(mdp))

    path = np.arange(num_pairs * num_trajectories)
    pair = np.repeat(np.arange(num_pairs), num_trajectories)
    states = [_State(num_pairs * num_trajectories, len(qs), num_pairs if with_reach else 0) for _ in traces]
    log_product, discount = np.zeros(len(path)), 1.0
    lambda_products = [1.0] * len(traces)
    for _ in range(num_steps):
        move = draw_move(pair, rng)
        going = np.ones(len(move), bool) if mdp.ends is None else rng.random(len(move)) >= mdp.ends[move]
        reward, after = rewards[move], mdp.successor[move]
        deltas = [
            reward + mdp.gamma * going * value[after] - q.ravel()[pair] for q, value in zip(qs, values, strict=True)
        ]
        for state in states:
            state.add(path, pair, num_trajectories, discount, stops[pair], change[pair], *deltas)
        x = mdp.successor[move[going]]
        path, pair = path[going], x * num_actions + draw_action(x, rng) % num_actions
        if not len(path):
            break
        log_product = log_product[going] + log_rho[pair]
        clipped = np.exp(np.minimum(log_product, 0))
        for i, (trace, state) in enumerate(zip(traces, states, strict=True)):
            lambda_ = float(trace.lambda_)
            lambda_products[i] *= lambda_
            seen = Reach.at(np, state.beta[going], log_rho[pair], lambda_, clipped, lambda_products[i])
            state.beta = np.asarray(trace.next_beta(np, seen), dtype=np.float64)
        discount *= mdp.gamma
    return [state.result(num_pairs, num_trajectories) for state in states]


class _State:
    """One trace along all paths: β of those still going, and the sums of all."""

    def __init__(self, num_paths: int, num_qs: int, num_reached: int) -> None:
        self.beta = np.ones(num_paths)
        self.sums = np.zeros((3 + num_qs, num_paths))
        self.reach = np.zeros((num_reached, num_reached)) if num_reached else None

    def add(self, path: np.ndarray, pair: np.ndarray, per_pair: int, discount: float, *values: np.ndarray) -> None:
        weight = discount * self.beta
        self.sums[0, path] += weight
        for total, numbers in zip(self.sums[1:], values, strict=True):
            total[path] += weight * numbers
        if self.reach is not None:
            size = len(self.reach)
            cells = path // per_pair * size + pair
            self.reach += np.bincount(cells, weight, size * size).reshape(size, size) / per_pair

    def result(self, num_pairs: int, num_trajectories: int) -> Sampled:
        sums = self.sums.reshape(-1, num_pairs, num_trajectories)
        return Sampled(*sums[:3], sums[3:], self.reach)


def sampled_operator(
    mdp: FiniteMDP,
    q: Any,
    *,
    pi: Any,
    mu: Any,
    trace: Any,
    num_trajectories: int = 1000,
    rng: np.random.Generator | int = 0,
) -> Estimate:
    """R Q of a trajectory-aware trace by sampling, with an interval of 99.9 % for each (x, a).

    TD errors enter by their expectation (T^π Q − Q)(x_t, a_t), so only the paths are random.
    """
    trace = as_trace(trace)
    if not isinstance(trace, TrajectoryAware):
        raise TypeError("`sampled_operator` is for trajectory-aware traces; `general_operator` is exact for others.")
    q, pi, mu = bellman.values(mdp, q), checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    generator = np.random.default_rng(rng)
    (found,) = sample(mdp, [q], pi=pi, mu=mu, traces=[trace], num_trajectories=num_trajectories, rng=generator)
    mean = q + found.expected.mean(1).reshape(mdp.shape)
    error = (found.expected.std(1, ddof=1) / np.sqrt(num_trajectories)).reshape(mdp.shape)
    return Estimate(mean, error, mean - Z_999 * error, mean + Z_999 * error)


# -- steps of the chain of pairs -----------------------------------------------------------------------------


class _Drawing:
    """Draws from rows of probabilities kept as lists: one search in the running sum of all."""

    def __init__(self, chance: np.ndarray, first: np.ndarray) -> None:
        self.edges = np.cumsum(chance)
        self.first = first
        self.before = np.concatenate([[0.0], self.edges])[first]

    def __call__(self, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = self.before[row], self.before[row + 1]
        found = np.searchsorted(self.edges, low + rng.random(len(row)) * (high - low), side="right")
        return np.minimum(found, self.first[row + 1] - 1)


def _starts(mdp: FiniteMDP) -> np.ndarray:
    return np.arange(0, mdp.num_states * mdp.num_actions + 1, mdp.num_actions)


class _Moves(NamedTuple):
    """From (x, a) to (x', a') with p(x'|x, a) μ(a'|x'), as lists; what ends is missing."""

    first: np.ndarray
    pair: np.ndarray
    chance: np.ndarray


def _moves(mdp: FiniteMDP, mu: np.ndarray) -> _Moves:
    num_actions = mdp.num_actions
    chance = mdp.continuing[:, None] * mu[mdp.successor]
    pair = mdp.successor[:, None] * num_actions + np.arange(num_actions)
    kept = chance > 0
    rows = np.broadcast_to(mdp.rows[:, None], chance.shape)[kept]
    counts = np.bincount(rows, minlength=len(mdp.first) - 1)
    return _Moves(np.concatenate([[0], np.cumsum(counts)]), pair[kept], chance[kept])


def _log_ratio(pi: np.ndarray, mu: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.where(pi > 0, np.log(pi) - np.log(np.where(mu > 0, mu, 1)), -np.inf)


def _merged(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Paths that nothing can tell apart any more, with their chances added; those cut for good are left out."""
    start, pair, chance, beta, log_product = columns
    alive = (beta > 0) | (log_product > -np.inf)
    start, pair, chance, beta, log_product = (column[alive] for column in columns)
    if not len(start):
        return start, pair, chance, beta, log_product
    keys = start, pair, np.round(beta, 14), np.round(log_product, 13)  # the same product in another order is the same
    order = np.lexsort(keys[::-1])
    new = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    places = np.concatenate([[0], 1 + np.flatnonzero(new)])
    kept = order[places]
    return start[kept], pair[kept], np.add.reduceat(chance[order], places), beta[kept], log_product[kept]
