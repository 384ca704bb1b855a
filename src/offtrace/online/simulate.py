"""Policies and transitions for the kernels: rows of π_k and μ_k, actions and successors.

`best` is always the first greedy action at x. It is passed along, as several functions need it.
"""

from typing import NamedTuple

import numpy as np
from numpy import float64, uint64

from offtrace.kernels import jit
from offtrace.online.policy_sequences import EPSILON_GREEDY, EPSILON_SHARED, FIXED, SOFTMAX

S11, S17, S19, S23, S41, S45 = (uint64(bits) for bits in (11, 17, 19, 23, 41, 45))


class Model(NamedTuple):
    """A FiniteMDP to sample from; empty where trajectories are replayed."""

    first: np.ndarray
    """(X·A + 1,) the first transition of each pair."""
    width: int
    """Transitions per pair where all have the same number, which saves reading `first`; else 0."""
    cumulative: np.ndarray
    """(T,) sums of p within each pair."""
    successor: np.ndarray
    """(T,) states."""
    ends: np.ndarray
    """(T,) the probability that a transition ends the episode; empty where none does."""
    reward: np.ndarray
    """(T,) per transition, or (X·A,) per pair."""
    start: np.ndarray
    """(X,) sums of the probabilities of the start states."""


class Policy(NamedTuple):
    """π_k or μ_k: the number of its formula, its parameter for every k, and the table that it reads."""

    kind: int
    parameter: np.ndarray
    table: np.ndarray


@jit(allocates=False, forceinline=True)
def uniform(words):
    """xoshiro256++, as in `streams.py`."""
    w0, w1, w2, w3 = words[0], words[1], words[2], words[3]
    total = w0 + w3
    word = ((total << S23) | (total >> S41)) + w0
    w2 ^= w0
    w3 ^= w1
    words[1] = w1 ^ w2
    words[0] = w0 ^ w3
    words[2] = w2 ^ (w1 << S17)
    words[3] = (w3 << S45) | (w3 >> S19)
    return float64(word >> S11) * 2.0**-53


@jit(allocates=False, forceinline=True)
def choice(words, cumulative, start, stop):
    """Draw an index from start … stop − 1 by its cumulative sums; a single one is not drawn."""
    if stop - start == 1:
        return start
    mark = uniform(words) * cumulative[stop - 1]
    if stop - start <= 8:
        drawn = start
        for i in range(start, stop - 1):  # without a branch, which would be mispredicted
            drawn += 1 if cumulative[i] <= mark else 0
        return drawn
    low, high = start, stop - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[middle] <= mark:
            low = middle + 1
        else:
            high = middle
    return low


@jit(allocates=False, forceinline=True)
def choose_action(words, mu):
    """Draw an action with these probabilities, as `Stream.action` does."""
    left = uniform(words)
    last = 0
    for a in range(mu.size):
        if mu[a] > 0:
            last = a
            if left < mu[a]:
                return a
            left -= mu[a]
    return last


@jit(allocates=False, forceinline=True)
def best_action(q, x):
    """The first of the greedy actions."""
    best, highest = 0, q[x, 0]
    for b in range(1, q.shape[1]):
        if q[x, b] > highest:
            best, highest = b, q[x, b]
    return best


@jit(allocates=False, forceinline=True)
def num_best(q, x, best):
    """The number of greedy actions."""
    found = 0
    for b in range(q.shape[1]):
        found += 1 if q[x, b] == q[x, best] else 0
    return found


@jit(allocates=False, forceinline=True)
def fill_row(kind, parameter, table, q, x, best, out):
    """Write π_k(·|x) to `out`; a fixed policy does not read `best`."""
    num_actions = out.size
    if kind == FIXED:
        for b in range(num_actions):
            out[b] = table[x, b]
        return
    if kind == EPSILON_GREEDY:
        for b in range(num_actions):
            out[b] = parameter * (1.0 / num_actions)
        out[best] += 1 - parameter
    elif kind == EPSILON_SHARED:
        part = (1 - parameter) / num_best(q, x, best)
        for b in range(num_actions):
            out[b] = parameter * (1.0 / num_actions)
            if q[x, b] == q[x, best]:
                out[b] += part
    elif kind == SOFTMAX:
        total = 0.0
        for b in range(num_actions):
            out[b] = np.exp(parameter * (q[x, b] - q[x, best]))
            total += out[b]
        for b in range(num_actions):
            out[b] /= total
    else:  # Eq. 8
        others = 0.0
        for b in range(num_actions):
            others += table[x, b] if b != best else 0.0
        for b in range(num_actions):
            out[b] = parameter * table[x, b] / others if b != best else 1 - parameter


@jit(allocates=False, forceinline=True)
def act(kind, parameter, table, q, x, best, words, row):
    """Draw a ~ μ_k(·|x); returns a and μ_k(a|x).

    ε-greedy needs no row. Its distribution function is two straight lines with a jump at the best
    action:

        a:      0        1       best           3        4
             ├──each──┼──each──┼──each + 1 − ε──┼──each──┼──each──┤          each = ε / A
    """
    if kind != EPSILON_GREEDY and not (kind == EPSILON_SHARED and num_best(q, x, best) == 1):
        fill_row(kind, parameter, table, q, x, best, row)
        a = choose_action(words, row)
        return a, row[a]
    each = parameter * (1.0 / row.size)
    mark = uniform(words)
    a = best
    if mark < best * each:
        a = int(mark / each)
    elif mark >= best * each + (each + (1 - parameter)):
        a = min(max(int((mark - (1 - parameter)) / each), best + 1), row.size - 1)
    return a, each + (1 - parameter) if a == best else each


@jit(allocates=False, forceinline=True)
def expect(kind, parameter, table, q, x, best, row):
    """E_π Q(x, ·); writes π(·|x) to `row` where it is not known without computing all of it (softmax, mixture)."""
    total = 0.0
    if kind == FIXED:
        for b in range(row.size):
            total += table[x, b] * q[x, b]
        return total
    if kind in (EPSILON_GREEDY, EPSILON_SHARED):
        for b in range(row.size):
            total += q[x, b]
        return parameter * (1.0 / row.size) * total + (1 - parameter) * q[x, best]
    fill_row(kind, parameter, table, q, x, best, row)
    for b in range(row.size):
        total += row[b] * q[x, b]
    return total


@jit(allocates=False, forceinline=True)
def probability_of(a, kind, parameter, table, q, x, best, row):
    """π(a|x); `row` is what `expect` has written at x."""
    if kind == FIXED:
        return table[x, a]
    if kind == EPSILON_GREEDY:
        return parameter * (1.0 / row.size) + (1 - parameter if a == best else 0.0)
    if kind == EPSILON_SHARED:
        part = (1 - parameter) / num_best(q, x, best) if q[x, a] == q[x, best] else 0.0
        return parameter * (1.0 / row.size) + part
    return row[a]


@jit(allocates=False, forceinline=True)
def transition(first, width, cumulative, ends, words, pair):
    """Draw a transition of the pair; returns its index, and whether it ends the episode."""
    if width > 0:
        i = choice(words, cumulative, pair * width, (pair + 1) * width)
    else:
        i = choice(words, cumulative, first[pair], first[pair + 1])
    ended = False
    if ends.size > 0 and ends[i] > 0:
        ended = ends[i] >= 1 or uniform(words) < ends[i]
    return i, ended


@jit(allocates=False)
def sample(model, behaviour, q, words, row, k, max_steps, steps, mu_a, reward, terminated):
    """Write one trajectory: x, a and x' to `steps` (3, n), the rest to the other arrays; returns its length."""
    by_transition = model.reward.size == model.cumulative.size
    x = choice(words, model.start, 0, model.start.size)
    for t in range(max_steps):
        best = best_action(q, x)
        a, drawn = act(behaviour.kind, behaviour.parameter[k], behaviour.table, q, x, best, words, row)
        pair = x * q.shape[1] + a
        i, ended = transition(model.first, model.width, model.cumulative, model.ends, words, pair)
        r = model.reward[i if by_transition else pair]
        x_next = np.int64(model.successor[i])
        steps[0, t] = x
        steps[1, t] = a
        steps[2, t] = x_next
        mu_a[t] = drawn
        reward[t] = r
        terminated[t] = ended
        x = x_next
        if ended:
            return t + 1
    return max_steps


@jit(allocates=False)
def cumulate(probability, first, out):
    """Write the cumulative sums of p within each row."""
    for row in range(first.size - 1):
        total = 0.0
        for i in range(first[row], first[row + 1]):
            total += probability[i]
            out[i] = total


@jit()
def reachable(first, successor, continuing, start, allowed, num_actions):
    """(X,) the states that the allowed actions lead to from the start states, along transitions that do not end."""
    found = start > 0
    stack = np.empty(start.size, np.int64)
    size = 0
    for x in range(start.size):
        if found[x]:
            stack[size] = x
            size += 1
    while size > 0:
        size -= 1
        x = stack[size]
        for a in range(num_actions):
            if allowed.size > 0 and not allowed[x, a] > 0:
                continue
            for i in range(first[x * num_actions + a], first[x * num_actions + a + 1]):
                y = successor[i]
                if continuing[i] > 0 and not found[y]:
                    found[y] = True
                    stack[size] = y
                    size += 1
    return found
