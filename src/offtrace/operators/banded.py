"""(I − γ M_w) v = b by elimination, where every successor is within a few states, around the end included.

The rows come straight from the transitions, and each is eliminated as it comes: no matrix is made, and the upper
triangle is what is kept. Where successors reach around the end, the last `border` states are set apart, so that the
others form a band; their columns fill in along the way, and a small system for them is left at the end:

    band     x x . . . .   b b       row i: columns i − below … i + above, and the border's
             x x x . . .   b b
             . x x x . .   b b       b: nonzero at first only near the end, and near the beginning by going around
             . . x x x .   b b
             . . . x x x   b b
             . . . . x x   b b
    border   s s s s s s   s s       eliminated with the band; `ahead` holds the part in columns i … i + above

I − γ M_w is an M-matrix, so that no pivots are needed.
"""

from typing import NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.mdp import FiniteMDP
from offtrace.operators.products import BAND, lists, over_states

compiled = jit(fastmath={"contract"})

TINY = 1e-280
"""What is smaller is taken for 0, before it gets slow to compute with."""


class Shape(NamedTuple):
    below: int
    above: int
    border: int
    """States at the end that are set apart; 0 where nothing goes around it."""


def shape(mdp: FiniteMDP) -> Shape | None:
    """Of the band; None where some transition leads too far."""
    parts = over_states(mdp, _reach, mdp.num_states, mdp.num_actions, mdp.first, mdp.successor)
    below, above, around = (max(part[i] for part in parts) for i in range(3))
    if max(below, above) > BAND or mdp.num_states < 4 * BAND:
        return None
    return Shape(below, above, max(below, above) if around else 0)


def solve(mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, band: Shape) -> np.ndarray:
    """v, for weights w (X, A) ≥ 0 with γ M_w of spectral radius below 1."""
    num_inside, border = mdp.num_states - band.border, band.border
    # of each row: 1/pivot, what is right of it, the border's columns, the right-hand side
    upper = np.empty((num_inside, 1 + band.above + border + 1))
    corner, rest = np.zeros((border, border)), np.zeros(border)
    _eliminate(*lists(mdp), w, mdp.gamma, b, band.below, band.above, border, upper, corner, rest)
    v = np.empty(mdp.num_states)
    v[num_inside:] = np.linalg.solve(corner, rest) if border else rest
    _substitute(upper, band.above, border, v)
    return v


@compiled
def _reach(start, stop, num_states, num_actions, first, successor):
    below, above, around = 0, 0, 0
    for x in range(start, stop):
        for k in range(np.uint64(first[x * num_actions]), np.uint64(first[(x + 1) * num_actions])):
            apart = np.int64(successor[k]) - x
            if apart > num_states // 2:
                apart, around = apart - num_states, 1
            elif apart < -(num_states // 2):
                apart, around = apart + num_states, 1
            below, above = max(below, -apart), max(above, apart)
    return below, above, around


@compiled
def _row(x, first, p, successor, w, gamma, below, num_inside, row, aside):
    """Row x of I − γ M_w: `row` from column x − below on, `aside` the border's columns."""
    num_actions = w.shape[1]
    row[:] = 0.0
    aside[:] = 0.0
    for a in range(num_actions):
        weight = gamma * w[x, a]
        if weight != 0:
            line = x * num_actions + a
            for k in range(np.uint64(first[line]), np.uint64(first[line + 1])):
                y = np.int64(successor[k])
                if y >= num_inside:
                    aside[y - num_inside] -= weight * p[k]
                else:
                    row[y - x + below] -= weight * p[k]
    row[below] += 1.0


@compiled
def _eliminate(first, p, successor, w, gamma, b, below, above, border, upper, corner, rest):
    num_states, num_actions = w.shape
    num_inside = num_states - border
    last = 1 + above + border  # where the right-hand side is
    row, aside = np.empty(below + 1 + above), np.empty(border)
    # The border's rows: their entries in columns i … i + above, which move along, and in the border's own columns.
    ahead = np.zeros((border, 1 + above))
    early, late = np.zeros((border, border + 1)), np.zeros((border, below + border + 1))
    late_from = num_inside - below - border - 1
    for j in range(border):
        x = num_inside + j
        for a in range(num_actions):
            weight = gamma * w[x, a]
            line = x * num_actions + a
            for k in range(np.uint64(first[line]), np.uint64(first[line + 1])):
                y = np.int64(successor[k])
                if y >= num_inside:
                    corner[j, y - num_inside] -= weight * p[k]
                elif y <= border:
                    early[j, y] -= weight * p[k]
                else:
                    late[j, y - late_from] -= weight * p[k]
        corner[j, j] += 1.0
        rest[j] = b[x]
        for c in range(1 + above):
            ahead[j, c] = early[j, c] if c <= border else 0.0
    busy = True
    for i in range(num_inside):
        _row(i, first, p, successor, w, gamma, below, num_inside, row, aside)
        value = b[i]
        for c in range(max(0, below - i), below):
            factor = row[c] * upper[i - below + c, 0]
            if factor != 0:
                for d in range(above):
                    row[c + 1 + d] -= factor * upper[i - below + c, 1 + d]
                for j in range(border):
                    aside[j] -= factor * upper[i - below + c, 1 + above + j]
                value -= factor * upper[i - below + c, last]
        upper[i, 0] = 1.0 / row[below]
        for d in range(above):
            upper[i, 1 + d] = row[below + 1 + d]
        for j in range(border):
            upper[i, 1 + above + j] = aside[j] if abs(aside[j]) > TINY else 0.0
        upper[i, last] = value
        if border == 0:
            continue
        # The border's rows, past column i.
        busy = busy or i + above + 1 >= late_from or i <= border
        if not busy:
            continue
        busy = False
        column = i + above + 1  # comes into sight
        for j in range(border):
            factor = ahead[j, 0] * upper[i, 0]
            for d in range(above):
                ahead[j, d] = ahead[j, d + 1] - factor * upper[i, 1 + d]
                if abs(ahead[j, d]) > TINY:
                    busy = True
            for c in range(border):
                corner[j, c] -= factor * upper[i, 1 + above + c]
            rest[j] -= factor * value
            ahead[j, above] = 0.0
            if column <= border:
                ahead[j, above] = early[j, column]
            elif late_from <= column < num_inside:
                ahead[j, above] = late[j, column - late_from]


@compiled
def _substitute(upper, above, border, v):
    num_inside = upper.shape[0]
    last = 1 + above + border
    for i in range(num_inside - 1, -1, -1):
        value = upper[i, last]
        for d in range(min(above, num_inside - 1 - i)):
            value -= upper[i, 1 + d] * v[i + 1 + d]
        for j in range(border):
            value -= upper[i, 1 + above + j] * v[num_inside + j]
        v[i] = value * upper[i, 0]
