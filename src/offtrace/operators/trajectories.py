"""The operator of trajectory-aware traces, whose β depends on the whole path.

Where episodes end within a few steps it is computed exactly: all paths from all (x, a) are followed
at once, and paths that are at the same pair with the same trace are merged into one. Otherwise it
is estimated by sampling.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import bellman, products
from offtrace.traces import TrajectoryAware, as_trace
from offtrace.traces.beta import BetaState, advance

MAX_PATHS = 300_000
"""Limit on the distinct paths followed at once."""
NEGLIGIBLE = 1e-17
"""Discounted weight of the remaining paths below which they no longer change a float64."""


def reach(
    mdp: FiniteMDP, *, pi: np.ndarray, mu: np.ndarray, trace: TrajectoryAware, max_paths: int = MAX_PATHS
) -> np.ndarray:
    """E_μ[Σ_t γ^t β_t 1{(x_t, a_t) = (y, b)}], (X·A, X·A), exactly."""
    if np.ndim(trace.lambda_):
        raise ValueError(
            f"`lambda_` must be one number; got shape {np.shape(trace.lambda_)}. An operator has no steps."
        )
    num_pairs = mdp.num_states * mdp.num_actions
    if num_pairs > bellman.MAX_MATRIX:
        raise ValueError(f"`mdp` must have at most {bellman.MAX_MATRIX:,} pairs (x, a); got {num_pairs:,}. {_REMEDY}")
    log_rho = _log_ratio(pi, mu).ravel()
    moves = _moves(mdp, mu)
    reached = np.zeros((num_pairs, num_pairs))
    # path i started in start[i], is at pair[i] now, has probability chance[i] and trace state.beta[i]
    start = pair = np.arange(num_pairs)
    chance = np.ones(num_pairs)
    state = BetaState(beta=np.ones(num_pairs), lambda_product=1.0, log_product=np.zeros(num_pairs))
    lambda_ = float(trace.lambda_)
    discount = 1.0
    while len(start) and discount * _alive(start, chance, state.beta) > NEGLIGIBLE * max(1 - mdp.gamma, 1e-3):
        np.add.at(reached, (start, pair), discount * chance * state.beta)
        # replace every path by its continuations to all possible (x', a')
        count = moves.first[pair + 1] - moves.first[pair]
        total = int(count.sum())
        if total > max_paths:
            raise ValueError(f"`mdp` must have at most {max_paths:,} distinct paths; got {total:,}. {_REMEDY}")
        which = np.repeat(np.arange(len(pair)), count)
        move = np.arange(total) - np.repeat(np.cumsum(count) - count, count) + np.repeat(moves.first[pair], count)
        start = start[which]
        pair = moves.pair[move]
        chance = chance[which] * moves.chance[move]
        state = BetaState(state.beta[which], state.lambda_product, state.log_product[which])
        state = advance(trace, np, state, log_ratio=log_rho[pair], lambda_=lambda_)
        beta = np.asarray(state.beta, dtype=np.float64)
        start, pair, chance, beta, log_product = _merged(start, pair, chance, beta, state.log_product)
        state = BetaState(beta, state.lambda_product, log_product)
        discount *= mdp.gamma
    return reached


def _alive(start: np.ndarray, chance: np.ndarray, beta: np.ndarray) -> float:
    """Return the largest weight that the paths from one (x, a) still have."""
    return float(np.bincount(start, chance * np.maximum(beta, 1)).max())


_REMEDY = "Estimate R with `sampled_operator`, or use a Markov trace."


class Estimate(NamedTuple):
    """A sampled estimate, each (X, A): the mean, its standard error, and an interval of 99.9 %."""

    mean: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray


Z_999 = 3.2905267314919255
"""99.9 % of a normal distribution lies within this many standard deviations."""


class Sampled(NamedTuple):
    """Discounted sums Σ_t γ^t β_t f_t along N trajectories of μ from every (x, a), each (X·A, N)."""

    trace: np.ndarray
    """f = 1."""
    stops: np.ndarray
    """f = 1 − γ P 1, so that η = 1 − its mean."""
    expected: np.ndarray
    """f = (T^π Q − Q)(x_t, a_t)."""
    correction: np.ndarray
    """f = δ_t, as a learner samples it; (len(qs), X·A, N)."""
    reach: np.ndarray | None
    """The mean for f = 1{(x_t, a_t) = (y, b)}, (X·A, X·A); None unless asked for."""


MAX_STEPS = 20_000
"""Limit on the length of a sampled trajectory."""


def horizon(gamma: float) -> int:
    """Return the number of steps after which γ^t is below 1e-6."""
    if gamma == 1:
        return MAX_STEPS
    return min(MAX_STEPS, int(np.log(1e-6) / np.log(max(gamma, 1e-6))) + 2)


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
    """Return the sums of every trace, on the same trajectories.

    A trajectory ends with the episode, or where γ^t is below 1e-6. Corrections are computed at
    every Q of `qs`, `expected` at the first.
    """
    if num_trajectories < 2:
        raise ValueError(f"`num_trajectories` must be at least 2; got {num_trajectories}.")
    num_actions = mdp.num_actions
    num_pairs = mdp.num_states * num_actions
    log_rho = _log_ratio(pi, mu).ravel()
    values = [products.expected(pi, q) for q in qs]
    change = (products.backup(mdp, values[0], r=mdp.r) - qs[0]).ravel()
    stops = (1 - mdp.gamma * products.continuing_mass(mdp)).ravel()
    rewards = mdp.r.ravel()[mdp.rows] if mdp.reward is None else mdp.reward
    draw_move = _Drawing(mdp.probability, mdp.first)
    draw_action = _Drawing(mu.ravel(), np.arange(0, num_pairs + 1, num_actions))

    path = np.arange(num_pairs * num_trajectories)
    pair = np.repeat(np.arange(num_pairs), num_trajectories)
    sums = [_TraceSums(trace, len(path), len(qs), num_pairs if with_reach else 0) for trace in traces]
    discount = 1.0
    for _ in range(horizon(mdp.gamma)):
        move = draw_move(pair, rng)
        going = np.ones(len(move), bool) if mdp.ends is None else rng.random(len(move)) >= mdp.ends[move]
        reward, after = rewards[move], mdp.successor[move]
        deltas = [
            reward + mdp.gamma * going * value[after] - q.ravel()[pair] for q, value in zip(qs, values, strict=True)
        ]
        for one in sums:
            one.add(path, pair, num_trajectories, discount, stops[pair], change[pair], *deltas)
        x = mdp.successor[move[going]]
        path = path[going]
        pair = x * num_actions + draw_action(x, rng) % num_actions
        if not len(path):
            break
        for one in sums:
            one.advance(going, log_rho[pair])
        discount *= mdp.gamma
    return [one.result(num_pairs, num_trajectories) for one in sums]


class _TraceSums:
    """One trace along all paths: the β of those that have not ended, and the sums of all."""

    def __init__(self, trace: TrajectoryAware, num_paths: int, num_qs: int, num_reached: int) -> None:
        self.trace = trace
        self.state = BetaState(beta=np.ones(num_paths), lambda_product=1.0, log_product=np.zeros(num_paths))
        self.sums = np.zeros((3 + num_qs, num_paths))
        self.reach = np.zeros((num_reached, num_reached)) if num_reached else None

    def advance(self, going: np.ndarray, log_ratio: np.ndarray) -> None:
        """Drop the paths that ended, and take the β of the others one step on."""
        beta, lambda_product, log_product = self.state
        state = BetaState(beta[going], lambda_product, log_product[going])
        state = advance(self.trace, np, state, log_ratio=log_ratio, lambda_=float(self.trace.lambda_))
        self.state = state._replace(beta=np.asarray(state.beta, dtype=np.float64))

    def add(self, path: np.ndarray, pair: np.ndarray, per_pair: int, discount: float, *values: np.ndarray) -> None:
        """Add γ^t β_t f_t of the paths that have not ended."""
        weight = discount * self.state.beta
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
    seed: np.random.Generator | int = 0,
) -> Estimate:
    """Estimate R Q of a trajectory-aware trace by sampling, with an interval of 99.9 % for each (x, a).

    TD errors enter by their expectation (T^π Q − Q)(x_t, a_t), so only the paths are random. `seed`
    may be a NumPy generator.
    """
    trace = as_trace(trace)
    if not isinstance(trace, TrajectoryAware):
        raise TypeError(
            f"`trace` must be trajectory-aware; got {type(trace).__name__}. `general_operator` is exact for others."
        )
    q = bellman.values(mdp, q)
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    generator = np.random.default_rng(seed)
    (found,) = sample(mdp, [q], pi=pi, mu=mu, traces=[trace], num_trajectories=num_trajectories, rng=generator)
    mean = q + found.expected.mean(1).reshape(mdp.shape)
    error = (found.expected.std(1, ddof=1) / np.sqrt(num_trajectories)).reshape(mdp.shape)
    return Estimate(mean, error, mean - Z_999 * error, mean + Z_999 * error)


# -- steps of the chain of pairs -----------------------------------------------------------------


class _Drawing:
    """Draws from rows of probabilities stored one after the other: one search in the cumulative sum of all."""

    def __init__(self, chance: np.ndarray, first: np.ndarray) -> None:
        self.edges = np.cumsum(chance)
        self.first = first
        self.before = np.concatenate([[0.0], self.edges])[first]

    def __call__(self, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = self.before[row], self.before[row + 1]
        found = np.searchsorted(self.edges, low + rng.random(len(row)) * (high - low), side="right")
        return np.minimum(found, self.first[row + 1] - 1)


class _Moves(NamedTuple):
    """The steps (x, a) → (x', a') with probability p(x'|x, a) μ(a'|x'), as lists; steps that end are left out."""

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
    """Return log π/μ; −inf where π is 0, and log π where μ is 0, which is never read."""
    with np.errstate(divide="ignore"):
        return np.where(pi > 0, np.log(pi) - np.log(np.where(mu > 0, mu, 1)), -np.inf)


def _merged(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Merge paths of the same start, pair and trace by adding their probabilities; drop those cut for good."""
    start, pair, chance, beta, log_product = columns
    alive = (beta > 0) | (log_product > -np.inf)
    start, pair, chance, beta, log_product = (column[alive] for column in columns)
    if not len(start):
        return start, pair, chance, beta, log_product
    keys = (
        start,
        pair,
        np.round(beta, 14),
        np.round(log_product, 13),
    )  # rounded: the order of the factors does not matter
    order = np.lexsort(keys[::-1])
    new = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    places = np.concatenate([[0], 1 + np.flatnonzero(new)])
    kept = order[places]
    return start[kept], pair[kept], np.add.reduceat(chance[order], places), beta[kept], log_product[kept]
