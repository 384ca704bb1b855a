"""The learner and the environment in one compiled loop; the cost of a trajectory does not grow with X·A.

Eq. 7 has two views. For the pair (x_j, a_j) visited at time j, with β_{j,t} = Π_{i=j+1..t} c_i,

    forward   Q_{k+1}(x_j, a_j) += α_k Δ_j,   Δ_j = Σ_{t≥j} γ^{t−j} β_{j,t} δ_t          after the trajectory
    backward  Q(x, a) += α_k δ_t z_t(x, a),   z_t = γ c_t z_{t−1} + 1{x_t, a_t = x, a}    at every step t

In the forward view the steps are written down, and learned from when the trajectory is over. For a
Markov trace that is one loop back over the steps, Δ_j = δ_j + γ c_{j+1} Δ_{j+1}; for a
trajectory-aware one every visit j sums up its own Δ_j.

In the backward view the traces that are not cut are kept in a list, which is all that a step has to
go through:

    Markov             one entry per pair:       pairs  [ 7 │ 2 │ 9 ]      z  [ .5 │ .8 │ 1. ]
    trajectory-aware   one entry per visit:      pairs  [ 7 │ 2 │ 7 ]      β  [ .5 │ .8 │ 1. ]

`place[pair]` is the pair's index in the first list. It is never cleared: it is valid only if the
entry there names the pair. For the same reason nothing else is cleared over all of X·A between
trajectories.
"""

from typing import NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.online.compiled_trace import coefficient
from offtrace.online.policy_sequences import FIXED, MIXTURE, SOFTMAX
from offtrace.online.simulate import act, best_action, choice, expect, fill_row, probability_of, transition
from offtrace.traces.formulas import (
    FIRST_TRAJECTORY_AWARE,
    KIND_RBIS,
    KIND_RECURSIVE_RETRACE,
    KIND_SOFT_WATKINS,
    KIND_TRUNCATED_IS,
    is_cut,
    next_beta,
)


class StoredSteps(NamedTuple):
    """The steps of `Trajectories`; empty where a model is sampled."""

    first: np.ndarray
    x: np.ndarray
    a: np.ndarray
    r: np.ndarray
    x_next: np.ndarray
    terminated: np.ndarray
    mu_a: np.ndarray


class UpdateSettings(NamedTuple):
    """The form of the update, and the step sizes."""

    gamma: float
    max_steps: int
    every_step: bool
    """Q, π and μ change at every step, instead of after the trajectory."""
    backward: bool
    first_visit: bool
    scale: np.ndarray
    """(num_episodes,) the step size is scale / (visits + offset)^power."""
    power: float
    offset: float
    bounded: bool
    """The step size is at most 1/m, with m the pair's visits in the trajectory."""


class LearnerState(NamedTuple):
    """Arrays over pairs, (X, A) or (X·A,); those that the form of update does not need are empty."""

    q: np.ndarray
    visits: np.ndarray
    words: np.ndarray
    """(4,) the state of the random number generator."""
    alpha: np.ndarray
    last_visit: np.ndarray
    """The last trajectory that visited a pair, counted from 1; for first visits and bounded step sizes."""
    visits_here: np.ndarray
    """How often that trajectory has visited the pair so far; for bounded step sizes."""
    place: np.ndarray
    """Index of a pair in the list of traces, if the entry there names the pair."""
    total: np.ndarray
    """Σ δ_t z_t of the current trajectory; 0 between trajectories."""


class Workspace(NamedTuple):
    """Flat views of Q and the visits, rows of π and μ, and one number per step of the longest trajectory."""

    flat: np.ndarray
    visits: np.ndarray
    pi: np.ndarray
    ahead: np.ndarray
    mu: np.ndarray
    pairs: np.ndarray
    visited: np.ndarray
    delta: np.ndarray
    c: np.ndarray
    counts: np.ndarray
    z: np.ndarray
    beta: np.ndarray
    reach: np.ndarray
    lambda_product: np.ndarray
    log_product: np.ndarray


class Curves(NamedTuple):
    """The curves that a run writes; errors only where there is a truth."""

    every: int
    truth: np.ndarray
    weights: np.ndarray
    num_steps: np.ndarray
    returns: np.ndarray
    max_error: np.ndarray
    rms_error: np.ndarray


# -- steps ---------------------------------------------------------------------------------------
#
# These are inlined into `trajectory`. Each takes the arrays that it reads and writes, not the tuples above.


@jit(allocates=False, forceinline=True)
def count_visit(first_visit, bounded, last_visit, visits_here, pair, k):
    """Whether this visit counts, and the pair's visits in trajectory k where they bound the step size, else 0."""
    if not (first_visit or bounded):
        return True, 0
    again = last_visit[pair] == k + 1
    last_visit[pair] = k + 1
    if first_visit and again:
        return False, 0
    if not bounded:
        return True, 0
    visits_here[pair] = visits_here[pair] + 1 if again else 1
    return True, visits_here[pair]


@jit(allocates=False, forceinline=True)
def step_size(scale, power, visits, visits_here):
    """scale / visits^power, and at most 1/m for m visits in this trajectory; m = 0 means no bound."""
    alpha = scale
    if power != 0:
        alpha = scale / visits if power == 1 else scale / visits**power
    return 1.0 / visits_here if alpha * visits_here > 1 else alpha


# -- the forward view ----------------------------------------------------------------------------


@jit(allocates=False, forceinline=True)
def sum_ahead(gamma, kind, lambda_, delta, ratio, j, num_steps):
    """Δ_j = Σ_{t≥j} γ^{t−j} β_{j,t} δ_t of a trajectory-aware trace."""
    correction = delta[j]
    reach = 1.0
    beta = 1.0
    lambda_product = 1.0
    log_product = 0.0
    for t in range(j + 1, num_steps):
        reach *= gamma
        lambda_product *= lambda_
        if kind == KIND_TRUNCATED_IS:
            log_product += np.log(ratio[t])
        beta = next_beta(kind, lambda_, beta, ratio[t], lambda_product, log_product)
        if reach == 0 or is_cut(kind, beta, lambda_product, log_product):
            break
        correction += reach * beta * delta[t]
    return correction


@jit(allocates=False, forceinline=True)
def learn_forward(
    gamma, kind, lambda_, pairs, delta, c, counts, visits, visits_here, scale, power, offset, flat, num_steps
):
    """Q_{k+1}(x_j, a_j) += α_k Δ_j for the visits j that count, from the last to the first.

    `c` holds the coefficients of a Markov trace, and the ratios ρ of a trajectory-aware one.
    """
    correction = 0.0  # Δ_{j+1}
    c_ahead = 0.0  # c_{j+1}
    for back in range(num_steps):
        j = num_steps - 1 - back
        if kind < FIRST_TRAJECTORY_AWARE:
            correction = delta[j] + (gamma * c_ahead * correction if c_ahead != 0 else 0.0)
            c_ahead = c[j]
        elif counts[j] != 0:
            # a constant kind per call, so each inlined loop is free of branches
            if kind == KIND_RECURSIVE_RETRACE:
                correction = sum_ahead(gamma, KIND_RECURSIVE_RETRACE, lambda_, delta, c, j, num_steps)
            elif kind == KIND_TRUNCATED_IS:
                correction = sum_ahead(gamma, KIND_TRUNCATED_IS, lambda_, delta, c, j, num_steps)
            else:
                correction = sum_ahead(gamma, KIND_RBIS, lambda_, delta, c, j, num_steps)
        if counts[j] != 0:
            bound = visits_here[pairs[j]] if visits_here.size > 0 else 0
            alpha = step_size(scale, power, visits[pairs[j]] + offset, bound)
            flat[pairs[j]] += alpha * correction


# -- the backward view ---------------------------------------------------------------------------


@jit(allocates=False, forceinline=True)
def extend_pairs(decay, pairs, z, place, active, pair, counts):
    """z ← γ c z for every pair in the list, then z + 1 for the pair visited; returns the length of the list."""
    if decay == 0:
        active = 0
    empty = 0
    for i in range(active):
        z[i] *= decay
        empty += 1 if z[i] == 0 else 0
    if empty > 0:  # underflow: close the gaps
        kept = 0
        for i in range(active):
            if z[i] != 0:
                z[kept] = z[i]
                pairs[kept] = pairs[i]
                place[pairs[kept]] = kept
                kept += 1
        active = kept
    if counts:
        i = place[pair]
        if i < active and pairs[i] == pair:
            z[i] += 1.0
        else:
            place[pair] = active
            pairs[active] = pair
            z[active] = 1.0
            active += 1
    return active


@jit(allocates=False, forceinline=True)
def extend_visits(
    gamma, kind, lambda_, pairs, z, beta, reach, lambda_product, log_product, active, pair, ratio, counts
):
    """z = γ^{t−j} β_{j,t} for every visit j, then 1 for the visit at t; returns the length of the list."""
    # several loops over few arrays each, which the compiler can vectorise
    for i in range(active):
        lambda_product[i] *= lambda_
    if kind == KIND_TRUNCATED_IS:
        log_ratio = np.log(ratio)
        for i in range(active):
            log_product[i] += log_ratio
    for i in range(active):
        beta[i] = next_beta(kind, lambda_, beta[i], ratio, lambda_product[i], log_product[i])
    smallest = 1.0
    for i in range(active):
        reach[i] *= gamma
        z[i] = reach[i] * beta[i]
        smallest = min(smallest, z[i])
    if smallest == 0:  # close the gaps of traces that were cut
        kept = 0
        for i in range(active):
            if reach[i] != 0 and not is_cut(kind, beta[i], lambda_product[i], log_product[i]):
                pairs[kept] = pairs[i]
                z[kept] = z[i]
                beta[kept] = beta[i]
                reach[kept] = reach[i]
                lambda_product[kept] = lambda_product[i]
                log_product[kept] = log_product[i]
                kept += 1
        active = kept
    if counts:
        pairs[active] = pair
        z[active] = 1.0
        beta[active] = 1.0
        reach[active] = 1.0
        lambda_product[active] = 1.0
        log_product[active] = 0.0
        active += 1
    return active


@jit(allocates=False, forceinline=True)
def learn_totals(flat, alpha, total, visited, num_steps):
    """Q_{k+1}(x, a) = Q_k(x, a) + α_k Σ_t δ_t z_t(x, a) for the pairs visited; sets the sums back to 0."""
    for t in range(num_steps):
        pair = visited[t]
        flat[pair] += alpha[pair] * total[pair]
        total[pair] = 0.0  # so a later visit of the pair adds nothing


# -- one trajectory ------------------------------------------------------------------------------


@jit(allocates=False)
def trajectory(model, stored, which, target, behaviour, trace, settings, state, work, k):
    """Learn from trajectory k. Returns its length, its discounted return, and whether a TD error was not finite.

    `which` is the stored trajectory to replay. Every step t goes through

        1. a_t ~ μ_k(·|x_t), r_t and x_{t+1}, drawn or replayed
        2. δ_t = r_t + γ E_{π_k} Q_k(x_{t+1}, ·) − Q_k(x_t, a_t)
        3. the visit of (x_t, a_t), and its step size in the backward view
        4. c_t, or ρ_t for a trajectory-aware trace
        5. forward: the step is written down; backward: z_t is updated and δ_t z_t is learned, or added up
        6. π_k and the greedy action at x_{t+1}, which become those at x_t
    """
    q = state.q
    words = state.words
    alpha = state.alpha
    flat = work.flat
    visits = work.visits
    num_actions = q.shape[1]
    gamma = settings.gamma
    kind = trace.kind
    lambda_ = trace.lambda_
    is_markov = kind < FIRST_TRAJECTORY_AWARE
    pi_kind, pi_parameter, pi_table = target.kind, target.parameter[k], target.table
    mu_kind, mu_parameter, mu_table = behaviour.kind, behaviour.parameter[k], behaviour.table
    reads_q = pi_kind != FIXED or mu_kind != FIXED
    pi, ahead = work.pi, work.ahead  # π_k(·|x_t) and π_k(·|x_{t+1}), where `expect` writes them

    replayed = stored.first.size > 1
    by_transition = model.reward.size == model.cumulative.size
    begin = stored.first[which] if replayed else 0
    limit = stored.first[which + 1] - begin if replayed else settings.max_steps
    x = stored.x[begin] if replayed else choice(words, model.start, 0, model.start.size)
    best = best_action(q, x) if reads_q else 0
    best_ahead = best
    expect(pi_kind, pi_parameter, pi_table, q, x, best, pi)
    earned = 0.0
    discount = 1.0
    active = 0  # length of the list of traces
    num_steps = 0
    for t in range(limit):
        # 1. the step
        if replayed:
            i = begin + t
            a = stored.a[i]
            mu_a = stored.mu_a[i]
            r = stored.r[i]
            x_next = stored.x_next[i]
            ended = stored.terminated[i]
            pair = x * num_actions + a
        else:
            a, mu_a = act(mu_kind, mu_parameter, mu_table, q, x, best, words, work.mu)
            pair = x * num_actions + a
            i, ended = transition(model.first, model.width, model.cumulative, model.ends, words, pair)
            r = model.reward[i if by_transition else pair]
            x_next = np.int64(model.successor[i])

        # 2. its TD error
        delta = r - q[x, a]
        if not ended:
            best_ahead = best_action(q, x_next) if reads_q else 0
            delta += gamma * expect(pi_kind, pi_parameter, pi_table, q, x_next, best_ahead, ahead)
        if delta - delta != 0:  # infinite or NaN
            return num_steps, earned, True
        earned += discount * r
        discount *= gamma
        num_steps += 1

        # 3. the visit
        counts, visits_here = count_visit(
            settings.first_visit, settings.bounded, state.last_visit, state.visits_here, pair, k
        )
        if counts:
            visits[pair] += 1
        if counts and settings.backward:
            alpha[pair] = step_size(settings.scale[k], settings.power, visits[pair] + settings.offset, visits_here)

        # 4. the coefficient
        pi_a = probability_of(a, pi_kind, pi_parameter, pi_table, q, x, best, pi)
        if is_markov:
            if kind == KIND_SOFT_WATKINS:  # reads all of π(·|x)
                fill_row(pi_kind, pi_parameter, pi_table, q, x, best, pi)
            c = coefficient(kind, lambda_, trace.parameter, trace.c, pair, a, pi_a, mu_a, q, x, pi)
        else:
            c = pi_a / mu_a

        # 5. what is learned now, and what is kept for later
        if not settings.backward:
            work.pairs[t] = pair
            work.delta[t] = delta
            work.c[t] = c
            work.counts[t] = counts
        else:
            if is_markov:
                active = extend_pairs(gamma * c, work.pairs, work.z, state.place, active, pair, counts)
            else:
                active = extend_visits(
                    gamma,
                    kind,
                    lambda_,
                    work.pairs,
                    work.z,
                    work.beta,
                    work.reach,
                    work.lambda_product,
                    work.log_product,
                    active,
                    pair,
                    c,
                    counts,
                )
            if settings.every_step:
                for i in range(active):
                    flat[work.pairs[i]] += alpha[work.pairs[i]] * (delta * work.z[i])
            else:
                work.visited[t] = pair
                for i in range(active):
                    state.total[work.pairs[i]] += delta * work.z[i]
        if ended:
            break

        # 6. on to the next state
        x = x_next
        if settings.every_step:  # Q has changed since `expect` was there
            best = best_action(q, x) if reads_q else 0
            if pi_kind in (SOFTMAX, MIXTURE):
                fill_row(pi_kind, pi_parameter, pi_table, q, x, best, pi)
        else:
            best = best_ahead
            pi, ahead = ahead, pi

    if not settings.backward:
        learn_forward(
            gamma,
            kind,
            lambda_,
            work.pairs,
            work.delta,
            work.c,
            work.counts,
            visits,
            state.visits_here,
            settings.scale[k],
            settings.power,
            settings.offset,
            flat,
            num_steps,
        )
    elif not settings.every_step:
        learn_totals(flat, alpha, state.total, work.visited, num_steps)
    return num_steps, earned, False


# -- one run -------------------------------------------------------------------------------------


@jit(allocates=False)
def record(state, curves, point, num_steps, returns):
    """Write one point of the curves."""
    curves.num_steps[point] = num_steps
    curves.returns[point] = returns
    if curves.truth.size == 0:
        return
    worst = 0.0
    squares = 0.0
    weight = 0.0
    for x in range(curves.truth.shape[0]):
        for a in range(curves.truth.shape[1]):
            w = curves.weights[x, a]
            if w > 0:
                error = abs(state.q[x, a] - curves.truth[x, a])
                error = error if error == error else np.inf
                worst = max(worst, error)
                squares += w * error * error
                weight += w
    curves.max_error[point] = worst
    curves.rms_error[point] = np.sqrt(squares / weight)


@jit(allocates=False)
def run(model, stored, order, target, behaviour, trace, settings, state, work, curves, sums, k, stop, budget):
    """Run trajectories k … stop − 1, or until `budget` steps are made; returns the next k, or −1 − k if k diverged.

    `sums` carries the steps so far, and the returns since the last point.
    """
    if k == 0:
        record(state, curves, 0, 0, np.nan)
    made = 0
    while k < stop and made < budget:
        which = order[k] if order.size > 0 else 0
        num_steps, earned, diverged = trajectory(
            model, stored, which, target, behaviour, trace, settings, state, work, k
        )
        sums[0] += num_steps
        sums[1] += earned
        made += num_steps + 1
        if diverged:
            return -1 - k
        k += 1
        if k % curves.every == 0 or k == stop:
            point = (k + curves.every - 1) // curves.every
            since = k - (point - 1) * curves.every
            record(state, curves, point, sums[0], sums[1] / since)
            sums[1] = 0.0
    return k
