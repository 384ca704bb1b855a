"""(I − γ M_w) v = b by elimination, where successors are close in the order of the states, or around its end.

Rows are computed from the transitions and eliminated one after the other. No matrix is stored, only
its upper triangle. Where successors reach around the end of the order, the last `border` states are
set apart, so the other states, the inside, form a band:

                 inside          border

    inside       x x . . . .     b b       row i: columns i − below … i + above, and the border's columns
                 x x x . . .     b b
                 . x x x . .     . .       b: `aside`, 0 except near the two ends
                 . . x x x .     . .
                 . . . x x x     b b
                 . . . . x x     b b

    border       e e . . l l     c c       e, l: the entries near the first and the last inside columns
                 e e . . l l     c c       c: `corner`

Elimination turns the inside into an upper triangle and subtracts multiples of its rows from the
border's rows until those have nothing left in the inside columns. What remains in `corner` is a
small dense system for the border's values; back substitution gives the others. I − γ M_w is an
M-matrix, so no pivoting is needed.
"""

from typing import NamedTuple

import numpy as np

from offtrace.kernels import jit
from offtrace.mdp import FiniteMDP
from offtrace.operators.products import BAND, lists, over_states

kernel = jit(fastmath={"contract"})
inlined_kernel = jit(fastmath={"contract"}, inline="always")

TINY = 1e-280
"""Smaller numbers are taken for 0: arithmetic with subnormal numbers is slow."""


class Shape(NamedTuple):
    """The band: its width on either side of the diagonal, and the states set apart."""

    below: int
    above: int
    border: int
    """States at the end that are set apart; 0 where no transition goes around the end."""


def shape(mdp: FiniteMDP) -> Shape | None:
    """Return the shape of the band; None where a transition leads too far."""
    parts = over_states(mdp, _reach, mdp.num_states, mdp.num_actions, mdp.first, mdp.successor)
    below, above, around = (max(part[i] for part in parts) for i in range(3))
    if max(below, above) > BAND or mdp.num_states < 4 * BAND:
        return None
    return Shape(below, above, max(below, above) if around else 0)


def solve(mdp: FiniteMDP, w: np.ndarray, b: np.ndarray, band: Shape, spare: np.ndarray | None = None) -> np.ndarray:
    """Return v, for weights w (X, A) ≥ 0 with ρ(γ M_w) < 1. Works in `spare` if it is large enough."""
    border = band.border
    num_inside = mdp.num_states - border
    size = num_inside * (1 + band.above)
    room = np.empty(size) if spare is None or spare.size < size else spare[:size]
    upper = room.reshape(num_inside, 1 + band.above)  # per row: 1/pivot, then the entries right of it
    aside = np.zeros((num_inside, border))  # untouched pages between the two ends take no memory
    corner = np.zeros((border, border))
    v = b.copy()
    fades, returns = _eliminate(*lists(mdp), w, mdp.gamma, band.below, upper, aside, corner, v)
    if border:
        v[num_inside:] = np.linalg.solve(corner, v[num_inside:])
    _substitute(upper, aside, fades, returns, v)
    return v


@kernel
def _reach(start, stop, num_states, num_actions, first, successor):
    """How far the transitions of these states lead down and up the order, and whether any goes around its end."""
    below, above, around = 0, 0, 0
    for x in range(start, stop):
        for k in range(np.uint64(first[x * num_actions]), np.uint64(first[(x + 1) * num_actions])):
            apart = np.int64(successor[k]) - x
            if apart > num_states // 2:
                apart -= num_states
                around = 1
            elif apart < -(num_states // 2):
                apart += num_states
                around = 1
            below = max(below, -apart)
            above = max(above, apart)
    return below, above, around


@kernel
def _inside_row(x, first, p, successor, w, gamma, below, num_inside, row, side):
    """Write row x of I − γ M_w: columns x − below … x + above to `row`, the border's columns to `side`."""
    num_actions = w.shape[1]
    row[:] = 0.0
    side[:] = 0.0
    for a in range(num_actions):
        weight = gamma * w[x, a]
        if weight != 0:
            pair = x * num_actions + a
            for k in range(np.uint64(first[pair]), np.uint64(first[pair + 1])):
                y = np.int64(successor[k])
                if y >= num_inside:
                    side[y - num_inside] -= weight * p[k]
                else:
                    row[y - x + below] -= weight * p[k]
    row[below] += 1.0


@inlined_kernel
def _border_rows(first, p, successor, w, gamma, num_inside, late_from, early, late, corner):
    """Write the border's rows of I − γ M_w: `early` from column 0 on, `late` from `late_from` on, and `corner`."""
    num_actions = w.shape[1]
    border = corner.shape[0]
    for j in range(border):
        x = num_inside + j
        for a in range(num_actions):
            weight = gamma * w[x, a]
            pair = x * num_actions + a
            for k in range(np.uint64(first[pair]), np.uint64(first[pair + 1])):
                y = np.int64(successor[k])
                if y >= num_inside:
                    corner[j, y - num_inside] -= weight * p[k]
                elif y <= border:
                    early[j, y] -= weight * p[k]
                else:
                    late[j, y - late_from] -= weight * p[k]
        corner[j, j] += 1.0


@inlined_kernel
def _eliminate_below(i, below, row, side, upper, aside, v, with_aside):
    """Subtract the rows above from row i until nothing is left of the diagonal; returns its right-hand side."""
    above = upper.shape[1] - 1
    value = v[i]
    for c in range(max(0, below - i), below):
        k = i - below + c
        factor = row[c] * upper[k, 0]
        if factor != 0:
            for d in range(above):
                row[c + 1 + d] -= factor * upper[k, 1 + d]
            value -= factor * v[k]
            if with_aside:
                for j in range(side.size):
                    side[j] -= factor * aside[k, j]
    return value


@inlined_kernel
def _eliminate_from_border(i, ahead, early, late, late_from, upper, aside, corner, v):
    """Subtract row i from the border's rows, whose window `ahead` moves on to columns i + 1 … i + 1 + above.

    Returns whether anything is left in the window.
    """
    num_inside, border = aside.shape
    above = upper.shape[1] - 1
    column = i + above + 1  # enters the window
    left = False
    for j in range(border):
        factor = ahead[j, 0] * upper[i, 0]
        for d in range(above):
            ahead[j, d] = ahead[j, d + 1] - factor * upper[i, 1 + d]
            left = left or abs(ahead[j, d]) > TINY
        for c in range(border):
            corner[j, c] -= factor * aside[i, c]
        v[num_inside + j] -= factor * v[i]
        ahead[j, above] = 0.0
        if column <= border:
            ahead[j, above] = early[j, column]
        elif late_from <= column < num_inside:
            ahead[j, above] = late[j, column - late_from]
    return left


@kernel
def _eliminate(first, p, successor, w, gamma, below, upper, aside, corner, v):
    """Eliminate below the diagonal, one inside row after the other; `v` holds the right-hand side.

    Fills `upper`, `aside` and `corner`. Returns the rows between which `aside` is 0, so that
    nothing is computed there.
    """
    num_inside, border = aside.shape
    above = upper.shape[1] - 1
    row = np.empty(below + 1 + above)  # row i inside: columns i − below … i + above
    side = np.empty(border)  # row i in the border's columns
    late_from = num_inside - below - border - 1
    early = np.zeros((border, border + 1))
    late = np.zeros((border, below + border + 1))
    _border_rows(first, p, successor, w, gamma, num_inside, late_from, early, late, corner)
    ahead = np.zeros((border, 1 + above))  # the border's rows in columns i … i + above
    for j in range(border):
        for c in range(min(above, border) + 1):
            ahead[j, c] = early[j, c]

    busy = True  # the border's rows may have something in the window
    fades = 0  # the border's columns are 0 from this row on …
    returns = num_inside  # … up to this one
    zeros = 0  # rows in a row whose border columns are 0
    for i in range(num_inside):
        _inside_row(i, first, p, successor, w, gamma, below, num_inside, row, side)
        v[i] = _eliminate_below(i, below, row, side, upper, aside, v, zeros < below)
        upper[i, 0] = 1.0 / row[below]
        for d in range(above):
            upper[i, 1 + d] = row[below + 1 + d]

        zeros += 1
        for j in range(border):
            if abs(side[j]) > TINY:
                aside[i, j] = side[j]
                zeros = 0
        if zeros == 0 and i < num_inside // 2:
            fades = i + 1
        elif zeros == 0 and returns == num_inside:
            returns = i

        # Between the two ends the border's rows are 0 in the window, and there is nothing to subtract.
        if border > 0 and (busy or i + above + 1 >= late_from or i <= border):
            busy = _eliminate_from_border(i, ahead, early, late, late_from, upper, aside, corner, v)
    return fades, returns


@kernel
def _substitute(upper, aside, fades, returns, v):
    """Back substitution: v holds the right-hand side inside, and the values of the border."""
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
