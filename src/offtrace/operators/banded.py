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


def solve(mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, band: Shape, spare: np.ndarray | None = None) -> np.ndarray:
    """v, for weights w (X, A) ≥ 0 with γ M_w of spectral radius below 1. Works in `spare`, if that is enough."""
    num_inside, border = mdp.num_states - band.border, band.border
    size = num_inside * (1 + band.above)
    room = np.empty(size) if spare is None or spare.size < size else spare[:size]
    upper = room.reshape(num_inside, 1 + band.above)  # of each row: 1/pivot, and what is right of it
    aside = np.zeros((num_inside, border))  # the border's columns; nonzero at both ends, and takes memory only there
    corner, v = np.zeros((border, border)), b.copy()
    fades, returns = _eliminate(*lists(mdp), w, mdp.gamma, band.below, upper, aside, corner, v)
    if border:
        v[num_inside:] = np.linalg.solve(corner, v[num_inside:])
    _substitute(upper, aside, fades, returns, v)
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
def _row(x, first, p, successor, w, gamma, below, num_inside, row, side):
    """Row x of I − γ M_w: `row` from column x − below on, `side` the border's columns."""
    num_actions = w.shape[1]
    row[:] = 0.0
    side[:] = 0.0
    for a in range(num_actions):
        weight = gamma * w[x, a]
        if weight != 0:
            line = x * num_actions + a
            for k in range(np.uint64(first[line]), np.uint64(first[line + 1])):
                y = np.int64(successor[k])
                if y >= num_inside:
                    side[y - num_inside] -= weight * p[k]
                else:
                    row[y - x + below] -= weight * p[k]
    row[below] += 1.0


@compiled
def _eliminate(first, p, successor, w, gamma, below, upper, aside, corner, v):
    """v holds the right-hand side. Returns the rows between which the border's columns are zero."""
    num_actions = w.shape[1]
    num_inside, border = aside.shape
    above = upper.shape[1] - 1
    row, side = np.empty(below + 1 + above), np.empty(border)
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
        for c in range(min(above, border) + 1):
            ahead[j, c] = early[j, c]
    busy = True
    fades, returns, zeros = 0, num_inside, 0
    for i in range(num_inside):
        _row(i, first, p, successor, w, gamma, below, num_inside, row, side)
        value = v[i]
        for c in range(max(0, below - i), below):
            k = i - below + c
            factor = row[c] * upper[k, 0]
            if factor != 0:
                for d in range(above):
                    row[c + 1 + d] -= factor * upper[k, 1 + d]
                value -= factor * v[k]
                if zeros < below:
                    for j in range(border):
                        side[j] -= factor * aside[k, j]
        upper[i, 0] = 1.0 / row[below]
        for d in range(above):
            upper[i, 1 + d] = row[below + 1 + d]
        v[i] = value
        zeros += 1
        for j in range(border):
            if abs(side[j]) > TINY:
                aside[i, j] = side[j]
                zeros = 0
        if zeros == 0 and i < num_inside // 2:
            fades = i + 1
        elif zeros == 0 and returns == num_inside:
            returns = i
        # The border's rows, past column i; between the ends there is nothing to do.
        busy = border > 0 and (busy or i + above + 1 >= late_from or i <= border)
        if not busy:
            continue
        busy = False
        column = i + above + 1  # comes into sight
        for j in range(border):
            factor = ahead[j, 0] * upper[i, 0]
            for d in range(above):
                ahead[j, d] = ahead[j, d + 1] - factor * upper[i, 1 + d]
                busy = busy or abs(ahead[j, d]) > TINY
            for c in range(border):
                corner[j, c] -= factor * aside[i, c]
            v[num_inside + j] -= factor * value
            ahead[j, above] = 0.0
            if column <= border:
                ahead[j, above] = early[j, column]
            elif late_from <= column < num_inside:
                ahead[j, above] = late[j, column - late_from]
    return fades, returns


@compiled
def _substitute(upper, aside, fades, returns, v):
    num_inside, border = aside.shape
    above = upper.shape[1] - 1
    for i in range(num_inside - 1, -1, -1):
        value = v[i]
        for d in range(min(above, num_inside - 1 - i)):
            value -= upper[i, 1 + d] * v[i + 1 + d]
        if i < fades or i >= returns:
            for j in range(border):
                value -= aside[i, j] * v[num_inside + j]
        v[i] = value * upper[i, 0]
