"""Kernels over the transitions of a large MDP; each works on the states start … stop − 1 and releases the GIL.

The transitions of pair (x, a) are k = first[x·A + a] … first[x·A + a + 1] − 1, with probability
p[k] and state successor[k]:

    pair            0         1     2
    first         [ 0         3     4       … ]
    p, successor  [ k=0  1  2 │  3  │  4  5   … ]

Weights w (X, A) are π, c·μ, or any other weights of the actions. (M_w v)(x) = Σ_a w(x, a) Σ_x'
p(x'|x, a) v(x') is a product over states: one pass over the transitions, without a matrix.

Indices are unsigned: Numba then does not test for negative ones, which halves the time of a sweep.
"""

import numpy as np
from numpy import uint64

from offtrace.kernels import jit

kernel = jit(fastmath={"contract"})


@kernel
def backup(start, stop, num_actions, first, p, successor, gamma, r, v, out):
    """out(x, a) = r(x, a) + γ Σ_x' p(x'|x, a) v(x')."""
    for x in range(start, stop):
        row = x * num_actions
        for a in range(num_actions):
            total = 0.0
            for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                total += p[k] * v[uint64(successor[k])]
            out[x, a] = r[x, a] + gamma * total


@kernel
def checked_backup(start, stop, first, p, successor, w, gamma, r, v, out):
    """`backup`; returns the greatest |Σ_a w(x, a) out(x, a) − v(x)|."""
    num_actions = w.shape[1]
    greatest = 0.0
    for x in range(start, stop):
        row = x * num_actions
        value = 0.0
        for a in range(num_actions):
            total = 0.0
            for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                total += p[k] * v[uint64(successor[k])]
            out[x, a] = r[x, a] + gamma * total
            value += w[x, a] * out[x, a]
        greatest = max(greatest, abs(value - v[x]))
    return greatest


@kernel
def sweep(start, stop, first, p, successor, w, gamma, b, v, out):
    """out = b + γ M_w v; returns the least and the greatest of out − v."""
    num_actions = w.shape[1]
    least, greatest = np.inf, -np.inf
    for x in range(start, stop):
        row = x * num_actions
        total = 0.0
        for a in range(num_actions):
            weight = w[x, a]
            if weight != 0:
                inner = 0.0
                for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                    inner += p[k] * v[uint64(successor[k])]
                total += weight * inner
        value = b[x] + gamma * total
        out[x] = value
        change = value - v[x]
        least, greatest = min(least, change), max(greatest, change)
    return least, greatest


@kernel
def diagonal(start, stop, first, p, successor, w, out):
    """out(x) = M_w(x, x): the weight with which a state leads back to itself."""
    num_actions = w.shape[1]
    for x in range(start, stop):
        row = x * num_actions
        total = 0.0
        for a in range(num_actions):
            for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                if successor[k] == x:
                    total += w[x, a] * p[k]
        out[x] = total


@kernel
def best_sweep(start, stop, num_actions, first, p, successor, gamma, r, v, out):
    """out(x) = max_a r(x, a) + γ Σ_x' p v; returns the least and the greatest of out − v."""
    least, greatest = np.inf, -np.inf
    for x in range(start, stop):
        row = x * num_actions
        best = -np.inf
        for a in range(num_actions):
            total = 0.0
            for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                total += p[k] * v[uint64(successor[k])]
            best = max(best, r[x, a] + gamma * total)
        out[x] = best
        change = best - v[x]
        least, greatest = min(least, change), max(greatest, change)
    return least, greatest


@kernel
def choose(start, stop, num_actions, first, p, successor, gamma, r, v, out):
    """out(x, ·) = the greedy policy for r + γ P v, ties to the first action; returns 1 if it changed in any state."""
    changed = 0
    for x in range(start, stop):
        row = x * num_actions
        best, chosen = -np.inf, 0
        for a in range(num_actions):
            total = 0.0
            for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                total += p[k] * v[uint64(successor[k])]
            value = r[x, a] + gamma * total
            if value > best:
                best, chosen = value, a
        if out[x, chosen] != 1:
            changed = 1
            out[x] = 0
            out[x, chosen] = 1
    return changed


@kernel
def matvec(start, stop, first, p, successor, w, gamma, v, out, with_):
    """out = v − γ M_w v; returns ⟨out, with_⟩ and ⟨out, out⟩."""
    num_actions = w.shape[1]
    one, two = 0.0, 0.0
    for x in range(start, stop):
        row = x * num_actions
        total = 0.0
        for a in range(num_actions):
            weight = w[x, a]
            if weight != 0:
                inner = 0.0
                for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                    inner += p[k] * v[uint64(successor[k])]
                total += weight * inner
        value = v[x] - gamma * total
        out[x] = value
        one += value * with_[x]
        two += value * value
    return one, two


@kernel
def chain_matvec(start, stop, first, p, successor, gamma, v, out, with_):
    """`matvec` for transitions per state that are weighted already."""
    one, two = 0.0, 0.0
    for x in range(start, stop):
        total = 0.0
        for k in range(uint64(first[x]), uint64(first[x + 1])):
            total += p[k] * v[uint64(successor[k])]
        value = v[x] - gamma * total
        out[x] = value
        one += value * with_[x]
        two += value * value
    return one, two


@kernel
def half_step(start, stop, residual, alpha, image):
    """residual −= α·image."""
    for x in range(start, stop):
        residual[x] -= alpha * image[x]


@kernel
def full_step(start, stop, v, residual, direction, image, shadow, alpha, omega):
    """v += α·direction + ω·residual; residual −= ω·image; returns ⟨residual, shadow⟩ and the largest |residual|."""
    total, largest = 0.0, 0.0
    for x in range(start, stop):
        v[x] += alpha * direction[x] + omega * residual[x]
        value = residual[x] - omega * image[x]
        residual[x] = value
        total += value * shadow[x]
        largest = max(largest, abs(value))
    return total, largest


@kernel
def turn(start, stop, direction, residual, image, beta, omega):
    """direction = residual + β (direction − ω·image)."""
    for x in range(start, stop):
        direction[x] = residual[x] + beta * (direction[x] - omega * image[x])


@kernel
def count_merged(start, stop, first, successor, w, seen, counts):
    """counts(x) = the number of different successors of x under the weights; `seen` (X,) is scratch, all −1."""
    num_actions = w.shape[1]
    for x in range(start, stop):
        row = x * num_actions
        found = 0
        for a in range(num_actions):
            if w[x, a] != 0:
                for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                    y = uint64(successor[k])
                    if seen[y] != x:
                        seen[y] = x
                        found += 1
        counts[x] = found


@kernel
def merge(start, stop, first, p, successor, w, place, merged_first, merged_p, merged_successor):
    """Write the rows of M_w as lists with each successor once; `place` (X,) is scratch, all −1."""
    num_actions = w.shape[1]
    for x in range(start, stop):
        row = x * num_actions
        begin = free = merged_first[x]
        for a in range(num_actions):
            weight = w[x, a]
            if weight != 0:
                for k in range(uint64(first[row + a]), uint64(first[row + a + 1])):
                    y = uint64(successor[k])
                    at = place[y]
                    if at >= begin and at < free and merged_successor[at] == y:
                        merged_p[at] += weight * p[k]
                    else:
                        place[y] = free
                        merged_successor[free] = y
                        merged_p[free] = weight * p[k]
                        free += 1
