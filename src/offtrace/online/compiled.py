"""The learner and the environment in one compiled loop; a trajectory costs nothing that grows with X·A.

Two views of Eq. 7, for the pair (x_j, a_j) visited at time j, with β_{j,t} = Π_{i=j+1..t} c_i:

    forward   Q_{k+1}(x_j, a_j) += α_k Δ_j,   Δ_j = Σ_{t≥j} γ^{t−j} β_{j,t} δ_t       when the trajectory is over
    backward  Q(x, a) += α_k δ_t z_t(x, a),   z_t = γ c_t z_{t−1} + 1{x_t, a_t = x, a}   while it goes on

Forwards, a Markov trace is one sweep back over the steps, Δ_j = δ_j + γ c_{j+1} Δ_{j+1}. Backwards, it has one z for
each pair whose trace is not cut, in a list; a trajectory-aware one has one β for each visit. What was touched is
undone by walking the list, never by clearing a table.
"""

from typing import NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.online.rules import FIRST_AWARE, SOFT_WATKINS, TRUNCATED_IS, coefficient, gone, next_beta
from offtrace.online.sequences import FIXED, MIXTURE, SOFTMAX
from offtrace.online.simulate import act, best_action, choice, expect, fill_row, probability_of, transition


class Stored(NamedTuple):
    """Trajectories one after the other; empty where there is a model."""

    first: np.ndarray
    x: np.ndarray
    a: np.ndarray
    r: np.ndarray
    x_next: np.ndarray
    terminated: np.ndarray
    mu_a: np.ndarray


class How(NamedTuple):
    """Everything else that stays the same in a run."""

    gamma: float
    max_steps: int
    every_step: bool
    backward: bool
    first_visit: bool
    scale: np.ndarray
    power: float
    offset: float
    bounded: bool


class State(NamedTuple):
    """What a run carries along: (X, A), or (X·A,), and empty where the form of the update does not need it."""

    q: np.ndarray
    visits: np.ndarray
    words: np.ndarray
    alpha: np.ndarray
    seen: np.ndarray
    """The last trajectory that visited a pair, counted from 1; for the first-visit form and bounded step sizes."""
    within: np.ndarray
    """How often that trajectory has visited it so far; for bounded step sizes."""
    place: np.ndarray
    """Where a pair may be in the list; it is there if the list says so, too."""
    total: np.ndarray
    """Σ δ_t z_t of the trajectory under way, and 0 outside it."""


class Work(NamedTuple):
    """Rows of π and μ, and one number for each step of the longest trajectory."""

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
    """Where the points go; errors are taken where there is a truth."""

    every: int
    truth: np.ndarray
    weights: np.ndarray
    num_steps: np.ndarray
    returns: np.ndarray
    max_error: np.ndarray
    rms_error: np.ndarray


# -- one trajectory ------------------------------------------------------------------------------------------


@jit(forceinline=True)
def step_size(scale, power, visits, within):
    """α, and no more than 1/m where the m visits of the pair in this trajectory bound it, else m is 0."""
    alpha = scale
    if power != 0:
        alpha = scale / visits if power == 1 else scale / visits**power
    return 1.0 / within if alpha * within > 1 else alpha


@jit(forceinline=True)
def fold(gamma, kind, lambda_, pairs, delta, c, counts, visits, within, scale, power, offset, flat, num_steps):
    """The forward view: Q_{k+1}(x_j, a_j) += α_k Δ_j, for the visits j that count; trajectory-aware, `c` is ρ."""
    correction, ahead = 0.0, 0.0  # Δ_{j+1}, c_{j+1}
    for back in range(num_steps):
        j = num_steps - 1 - back
        if kind < FIRST_AWARE:
            correction = delta[j] + (gamma * ahead * correction if ahead != 0 else 0.0)
            ahead = c[j]
        elif counts[j] != 0:
            correction = delta[j]
            reach, beta, lambda_product, log_product = 1.0, 1.0, 1.0, 0.0
            for t in range(j + 1, num_steps):
                reach *= gamma
                lambda_product *= lambda_
                if kind == TRUNCATED_IS:
                    log_product += np.log(c[t])
                beta = next_beta(kind, lambda_, beta, c[t], lambda_product, log_product)
                if reach == 0 or gone(kind, beta, lambda_product, log_product):
                    break
                correction += reach * beta * delta[t]
        if counts[j] != 0:
            together = within[pairs[j]] if within.size > 0 else 0
            alpha = step_size(scale, power, visits[pairs[j]] + offset, together)
            flat[pairs[j]] += alpha * correction


@jit(forceinline=True)
def extend_pairs(decay, pairs, z, place, active, pair, counts):
    """z ← γ c z, then 1 more for the pair visited; how many pairs are in the list now."""
    if decay == 0:
        active = 0
    empty = 0
    for i in range(active):
        z[i] *= decay
        empty += 1 if z[i] == 0 else 0
    if empty > 0:  # underflow
        kept = 0
        for i in range(active):
            if z[i] != 0:
                z[kept], pairs[kept] = z[i], pairs[i]
                place[pairs[kept]] = kept
                kept += 1
        active = kept
    if counts:
        i = place[pair]
        if i < active and pairs[i] == pair:
            z[i] += 1.0
        else:
            place[pair], pairs[active], z[active] = active, pair, 1.0
            active += 1
    return active


@jit(forceinline=True)
def extend_visits(
    gamma, kind, lambda_, pairs, z, beta, reach, lambda_product, log_product, active, pair, ratio, counts
):
    """γ^{t−j} β_{j,t} of every visit j that is not cut, then 1 for the visit of now; how many there are."""
    for i in range(active):
        lambda_product[i] *= lambda_
    if kind == TRUNCATED_IS:
        log_ratio = np.log(ratio)
        for i in range(active):
            log_product[i] += log_ratio
    for i in range(active):  # in loops of few arrays each, which the compiler makes vectors of
        beta[i] = next_beta(kind, lambda_, beta[i], ratio, lambda_product[i], log_product[i])
    smallest = 1.0
    for i in range(active):
        reach[i] *= gamma
        z[i] = reach[i] * beta[i]
        smallest = min(smallest, z[i])
    if smallest == 0:
        kept = 0
        for i in range(active):
            if reach[i] != 0 and not gone(kind, beta[i], lambda_product[i], log_product[i]):
                pairs[kept], z[kept], beta[kept], reach[kept] = pairs[i], z[i], beta[i], reach[i]
                lambda_product[kept], log_product[kept] = lambda_product[i], log_product[i]
                kept += 1
        active = kept
    if counts:
        pairs[active], z[active], beta[active], reach[active] = pair, 1.0, 1.0, 1.0
        lambda_product[active], log_product[active] = 1.0, 0.0
        active += 1
    return active


@jit()
def trajectory(model, stored, which, target, behaviour, rule, how, state, work, k):
    """The k-th trajectory, and what is learned from it: its length, its discounted return, whether it diverged."""
    q, words, alpha = state.q, state.words, state.alpha
    flat, visits = work.flat, work.visits
    num_actions = q.shape[1]
    gamma, kind, lambda_ = how.gamma, rule.kind, rule.lambda_
    pi_kind, pi_parameter, pi_table = target.kind, target.parameter[k], target.table
    mu_kind, mu_parameter, mu_table = behaviour.kind, behaviour.parameter[k], behaviour.table
    pi, ahead, mu = work.pi, work.ahead, work.mu
    replayed = stored.first.size > 1
    by_transition = model.reward.size == model.cumulative.size
    begin = stored.first[which] if replayed else 0
    limit = stored.first[which + 1] - begin if replayed else how.max_steps
    x = stored.x[begin] if replayed else choice(words, model.start, 0, model.start.size)
    reads_q = pi_kind != FIXED or mu_kind != FIXED
    best = best_action(q, x) if reads_q else 0
    best_ahead = best
    whole = kind == SOFT_WATKINS  # reads all of π(·|x)
    expect(pi_kind, pi_parameter, pi_table, q, x, best, pi)
    earned, discount, active, num_steps = 0.0, 1.0, 0, 0
    for t in range(limit):
        if replayed:
            i = begin + t
            a, r, x_next, ended, mu_a = (
                stored.a[i],
                stored.r[i],
                stored.x_next[i],
                stored.terminated[i],
                stored.mu_a[i],
            )
            pair = x * num_actions + a
        else:
            a, mu_a = act(mu_kind, mu_parameter, mu_table, q, x, best, words, mu)
            pair = x * num_actions + a
            i, ended = transition(model.first, model.width, model.cumulative, model.ends, words, pair)
            r = model.reward[i if by_transition else pair]
            x_next = np.int64(model.successor[i])
        delta = r - q[x, a]
        if not ended:
            best_ahead = best_action(q, x_next) if reads_q else 0
            delta += gamma * expect(pi_kind, pi_parameter, pi_table, q, x_next, best_ahead, ahead)
        if delta - delta != 0:
            return num_steps, earned, True
        earned += discount * r
        discount *= gamma
        num_steps += 1
        counts, together = True, 0
        if how.first_visit or how.bounded:
            again = state.seen[pair] == k + 1
            state.seen[pair] = k + 1
            counts = not (how.first_visit and again)
            if how.bounded and counts:
                together = state.within[pair] + 1 if again else 1
                state.within[pair] = together
        if counts:
            visits[pair] += 1
        if counts and how.backward:
            alpha[pair] = step_size(how.scale[k], how.power, visits[pair] + how.offset, together)
        pi_a = probability_of(a, pi_kind, pi_parameter, pi_table, q, x, best, pi)
        if kind < FIRST_AWARE:
            if whole:
                fill_row(pi_kind, pi_parameter, pi_table, q, x, best, pi)
            c = coefficient(kind, lambda_, rule.parameter, rule.c, pair, a, pi_a, mu_a, q, x, pi)
        else:
            c = pi_a / mu_a
        if not how.backward:
            work.pairs[t], work.delta[t], work.c[t], work.counts[t] = pair, delta, c, counts
        else:
            if kind < FIRST_AWARE:
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
            if how.every_step:
                for i in range(active):
                    flat[work.pairs[i]] += alpha[work.pairs[i]] * (delta * work.z[i])
            else:
                work.visited[t] = pair
                for i in range(active):
                    state.total[work.pairs[i]] += delta * work.z[i]
        if ended:
            break
        x = x_next
        if how.every_step:
            best = best_action(q, x) if reads_q else 0
            if pi_kind in (SOFTMAX, MIXTURE):
                fill_row(pi_kind, pi_parameter, pi_table, q, x, best, pi)
        else:
            best = best_ahead
            pi, ahead = ahead, pi
    if not how.backward:
        fold(
            gamma,
            kind,
            lambda_,
            work.pairs,
            work.delta,
            work.c,
            work.counts,
            visits,
            state.within,
            how.scale[k],
            how.power,
            how.offset,
            flat,
            num_steps,
        )
    elif not how.every_step:
        for t in range(num_steps):
            pair = work.visited[t]
            flat[pair] += alpha[pair] * state.total[pair]
            state.total[pair] = 0.0  # the next visit adds nothing
    return num_steps, earned, False


# -- one run -------------------------------------------------------------------------------------------------


@jit()
def record(state, curves, point, num_steps, returns):
    curves.num_steps[point] = num_steps
    curves.returns[point] = returns
    if curves.truth.size == 0:
        return
    worst, squares, weight = 0.0, 0.0, 0.0
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


@jit()
def run(model, stored, order, target, behaviour, rule, how, state, work, curves, sums, k, stop, budget):
    """Trajectories k … stop − 1, or until `budget` steps are made; the next k, and −1 − k where k diverged.

    `sums` carries the steps so far, and the returns since the last point.
    """
    if k == 0:
        record(state, curves, 0, 0, np.nan)
    made = 0
    while k < stop and made < budget:
        which = order[k] if order.size > 0 else 0
        num_steps, earned, diverged = trajectory(model, stored, which, target, behaviour, rule, how, state, work, k)
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
