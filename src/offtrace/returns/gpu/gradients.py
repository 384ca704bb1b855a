"""The backward kernel: from the gradient of the targets to those of the inputs.

With G_t = b_t + m_t G_{t+1}, the gradient g of the targets reaches b_t as

    e_t = g_t + m_{t−1} e_{t−1},

the same recursion forwards in time (`fold.fold_pairs`). Everything else is local to a row:

    r_t                      e_t
    discount_t               e_t (V_t + c_{t+1} A_{t+1}),       V_t = E_π Q(x_{t+1}, ·),   A_t = G_t − Q(x_t, a_t)
    V_t                      discount_t e_t
    c_{t+1}                  discount_t e_t A_{t+1}
    Q(x_{t+1}, a_{t+1})      −discount_t e_t c_{t+1}

and through these Q, π, μ and λ. (Corrections have Q(x_t, a_t) in b_t alone: its gradient is −e_t, and A_t is Δ_t.) So
all rows are computed at once; row t writes what belongs to state and step t+1.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from offtrace.returns.gpu.rows import (
    ACER,
    GIVEN,
    IS,
    Q_SIGMA,
    RETRACE,
    SOFT_WATKINS,
    TREE_BACKUP,
    divided,
    flags_of,
    is_finite,
    is_in_window,
    load_rows,
    load_steps,
    numbers_of_steps,
    places,
    taken,
    tile_of_program,
    times,
)
from offtrace.returns.gpu.rules import factor, matches, read_policy


class Gradients(NamedTuple):
    """The gradients that are wanted, in the layout of their inputs; None for the others. That of r is e."""

    discount: Any = None
    q: Any = None
    pi: Any = None
    q_a: Any = None
    expected_q: Any = None
    pi_a: Any = None
    mu_a: Any = None
    c: Any = None
    lambda_: Any = None
    """One per row, also if λ is one number or one per step."""


@triton.jit
def slopes(pi_a, mu_a, parameter, mode: tl.constexpr):
    """Return the derivatives of c / λ in π(a|x) and μ(a|x), or in their logarithms."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    SIZE: tl.constexpr = mode.steps * mode.rows
    zero = tl.zeros((SIZE,), real)
    if mode.logs:
        target = tl.exp(pi_a).to(real)
        ratio = tl.exp(pi_a - mu_a).to(real)
        ratio_by_pi = ratio
        ratio_by_mu = -ratio
        target_by_pi = target
    else:
        ratio = divided(pi_a, mu_a)
        ratio_by_pi = 1 / mu_a
        ratio_by_mu = -ratio / mu_a
        target_by_pi = zero + 1
    by_ratio = zero
    by_target = zero
    if mode.kind == TREE_BACKUP:
        by_target = zero + 1
    elif mode.kind == IS:
        by_ratio = zero + 1
    elif mode.kind == Q_SIGMA:
        by_ratio = zero + parameter
        by_target = zero + 1 - parameter
    elif mode.kind == RETRACE:
        by_ratio = tl.where(ratio < 1, 1.0, zero)
    elif mode.kind == ACER:
        by_ratio = tl.where(ratio < 1, tl.exp(times(tl.log(ratio), zero + (1 / parameter - 1))) / parameter, zero)
    return times(by_ratio, ratio_by_pi) + times(by_target, target_by_pi), times(by_ratio, ratio_by_mu)


@triton.jit
def write_rows(to, p, values, to_v, to_taken, to_pi_a, to_match, action, value, there, base, here, state, parameter,
               START: tl.constexpr, WIDTH: tl.constexpr, mode: tl.constexpr):  # fmt: skip
    """Write the gradients of Q and π for some of the actions of state t+1."""
    column = START + tl.arange(0, WIDTH)
    inside = there[:, None] & (column < mode.num_actions)[None, :]
    at = ((here + state) * mode.num_actions)[:, None] + column[None, :]
    is_taken = action[:, None] == column[None, :]
    if to.q is not None:
        to_q = times(to_v.to(p.dtype)[:, None], p) + tl.where(is_taken, to_taken.to(p.dtype)[:, None], 0.0)
        tl.store(to.q + base * mode.num_actions + at, to_q, inside)
    if to.pi is not None:
        read = tl.where((p == 0) & ~is_finite(values), 0.0, values)
        to_pi = times(to_v.to(p.dtype)[:, None], read) + tl.where(is_taken, to_pi_a.to(p.dtype)[:, None], 0.0)
        if mode.kind == SOFT_WATKINS:
            to_pi += tl.where(matches(p, values, value, parameter), to_match.to(p.dtype)[:, None], 0.0)
        tl.store(to.pi + base * mode.num_actions + at, to_pi, inside)


@triton.jit(do_not_specialize=["n", "batch"])
def gradients(w, to, e, out, n, batch, lambda_: tl.float64, parameter: tl.float64, mode: tl.constexpr):
    """Write the gradients of one tile, from e and the output of the forward pass."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    lambda_ = tl.full((), lambda_, real)
    parameter = tl.full((), parameter, real)
    neighbour, above = tile_of_program(n, batch, mode)
    t, base, here, state = places(above, neighbour, n, batch, mode)
    inside = is_in_window(t, neighbour, n, batch, mode)
    step = 1 if mode.batch_major else batch
    there = inside & (t >= -1)
    # All rows, before anything else: the compiler does not move loads to before stores.
    rows = load_rows(w, there, base, here, state, mode)
    steps = numbers_of_steps(load_steps(w, above, neighbour, inside, n, batch, lambda_, mode), mode)
    is_real, goes_on, continues = flags_of(w, steps, t, neighbour, n, batch, mode)
    discount = tl.where(is_real, steps[0][1], 0.0)
    e_t = tl.load(e + base + here, is_real, 0.0).to(real)
    action, _, _, _, c, lambda_next = steps[1]
    _, q_a, value, pi_a, mu_a = taken(w, rows, steps, is_real, goes_on, base, here, state, mode)
    ahead, _, greedy = read_policy(rows, value, parameter, mode)
    if w.expected_q is not None:
        ahead = tl.where(is_real, steps[0][2], 0.0)

    share = factor(tl.where(goes_on, c, 0.0), greedy, pi_a, mu_a, parameter, mode)
    c = share
    if mode.kind != GIVEN:
        c = times(lambda_next, share)
    c = tl.where(continues, c, 0.0)
    advantage = tl.load(out + base + step + here, goes_on, 0.0).to(real)
    if not mode.corrections:
        advantage -= q_a
    to_v = times(discount, e_t)
    to_c = tl.where(continues, times(to_v, advantage), 0.0)
    to_taken = -times(to_v, c)

    has_next = there & (t + 1 < n)
    if to.discount is not None:
        # What is not read has no derivative: values of a masked successor, where nothing is bootstrapped from it.
        if w.expected_q is None:
            ahead = tl.where((discount != 0) | goes_on, ahead, 0.0)
        ahead = tl.where((discount == 0) & ~is_finite(ahead), 0.0, ahead)
        tl.store(to.discount + base + here, times(e_t, ahead + times(c, advantage)), inside & (t >= 0))
    if to.expected_q is not None:
        tl.store(to.expected_q + base + here, to_v, inside & (t >= 0))
    if to.q_a is not None:
        if mode.corrections:
            tl.store(to.q_a + base + here, -e_t, inside & (t >= 0))
        else:
            tl.store(to.q_a + base + step + here, to_taken, has_next)
    if to.c is not None:
        tl.store(to.c + base + step + here, to_c, has_next)
    if to.lambda_ is not None:
        tl.store(to.lambda_ + base + step + here, times(to_c, share), has_next)
    to_share = times(to_c, lambda_next)
    by_pi, by_mu = slopes(pi_a, mu_a, parameter, mode)
    to_pi_a = times(to_share, by_pi)
    if to.pi_a is not None:
        tl.store(to.pi_a + base + step + here, to_pi_a, has_next)
    if to.mu_a is not None:
        tl.store(to.mu_a + base + step + here, times(to_share, by_mu), has_next)
    if (to.q is not None) | (to.pi is not None):
        if w.q_a is not None:
            to_taken = 0.0 * to_taken
        if w.expected_q is not None:
            to_v = 0.0 * to_v
        if w.pi_a is not None:
            to_pi_a = 0.0 * to_pi_a
        for i in tl.static_range(len(mode.blocks)):
            p, values = rows[i]
            write_rows(to, p, values, to_v, to_taken, to_pi_a, to_share, action, value, there, base, here, state,
                       parameter, mode.blocks[i][0], mode.blocks[i][1], mode)  # fmt: skip
