"""The forward kernel, targets from a window in one pass over Q, π and the steps; and the recursion alone.

With G for the targets, Eq. 3 is a recursion backwards in time, G_t = b_t + m_t G_{t+1}, with

    m_t = discount_t c_{t+1},    b_t = r_t + discount_t (E_π Q(x_{t+1}, ·) − c_{t+1} Q(x_{t+1}, a_{t+1})).

A program takes some neighbours of the batch through time, a tile after the other. The pairs (m, b) of a tile are
folded by a scan, and G of its earliest step is carried to the next tile:

    time →   | chunk 2       | chunk 1       | chunk 0       |
    program  |   ← tile tile |   ← tile tile |   ← tile tile |

Where the batch is too small to keep the device busy, time is cut into chunks, each with programs of its own. They
take G behind their chunk as 0 at first. At the end, a program tells the others what its chunk does to G, looks up
what theirs do (`links.py`), and adds what is missing.

What is carried is float64, so a long window of float32 does not accumulate rounding errors.
"""

import triton
import triton.language as tl

from offtrace.returns.gpu.links import is_large, linked
from offtrace.returns.gpu.rows import (
    GIVEN,
    SOFT_WATKINS,
    WATKINS,
    action_ahead,
    ends,
    factor,
    fits,
    lambda_of_next,
    load_rows,
    order_in_tile,
    places,
    read_policy,
    taken,
    times,
    wrong_rows,
)

ADD_STEPS = tl.constexpr(8)
"""Steps at once where what is missing is added."""


@triton.jit
def load_tile(w, action, above, neighbour, n, batch, lambda_, mode: tl.constexpr):
    """Return what is read for a tile: the actions of the next tile, flags, single numbers, and rows of π and Q.

    `action` has the actions of steps t+1, which are loaded one tile before: where Q(x, a) is depends on them.
    """
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    SIZE: tl.constexpr = mode.steps * mode.rows
    in_batch = neighbour < batch
    t, base, here, state = places(above, neighbour, n, batch, mode)
    step = 1 if mode.batch_major else batch
    is_real, goes_on, continues = ends(w, t, in_batch, base, here, step, n)
    reward = tl.load(w.r + base + here, is_real, 0.0, eviction_policy=mode.eviction).to(real)
    discount = tl.load(w.discount + base + here, is_real, 0.0, eviction_policy=mode.eviction).to(real)
    known, q_a, value, pi_a, mu_a = taken(w, action, is_real, goes_on, base, here, state, step, mode)
    lambda_next = lambda_of_next(w, t, goes_on, base, here, step, lambda_, mode)
    c = tl.zeros((SIZE,), real)
    if w.c is not None:
        c = tl.load(w.c + base + step + here, goes_on, 0.0).to(real)
    successor = tl.zeros((SIZE,), real)
    if w.expected_q is not None:
        successor = tl.load(w.expected_q + base + here, is_real, 0.0).to(real)
    following = action_ahead(w, t - mode.steps, in_batch, base - mode.steps * step, here, step, n, mode)
    rows = load_rows(w, in_batch & (t >= -1), base, here, state, mode)
    flags = (is_real, goes_on, continues, known)
    singles = (reward, discount, q_a, value, pi_a, mu_a, lambda_next, c, successor)
    return following, flags, singles, rows


@triton.jit
def pairs_of_tile(w, tile, parameter, tolerance, mode: tl.constexpr):
    """Return m and b of the rows of a tile, from what `load_tile` returned, and which of them look wrong."""
    SIZE: tl.constexpr = mode.steps * mode.rows
    _, flags, singles, rows = tile
    is_real, goes_on, continues, known = flags
    reward, discount, q_a, value, pi_a, mu_a, lambda_next, c, successor = singles
    ahead, total, greedy = read_policy(rows, value, parameter, mode)
    if w.expected_q is not None:
        ahead = successor
    if mode.kind != GIVEN:
        if (mode.kind == WATKINS) | (mode.kind == SOFT_WATKINS):
            c = greedy
        else:
            c = factor(pi_a, mu_a, parameter, mode)
        c = times(lambda_next, c)
    c = tl.where(continues, c, 0.0)
    # In float64, where a product of two float32 is exact: c Q and c G are large if c is, and cancel each other.
    wide = c.to(tl.float64)
    gamma = discount.to(tl.float64)
    m = times(gamma, wide)
    if mode.corrections:
        b = reward + times(gamma, ahead.to(tl.float64)) - q_a
    else:
        b = reward + times(gamma, ahead.to(tl.float64) - times(wide, q_a.to(tl.float64)))
    b = tl.where(is_real, b, 0.0)

    bad = tl.zeros((SIZE,), tl.int1)
    if mode.checks:
        bad = wrong_rows(w, is_real, goes_on, continues, reward, discount, ahead, total, known, q_a, pi_a, mu_a,
                         tolerance, mode)  # fmt: skip
        bad = bad | ~fits(c, mode)
    return m, b, bad


@triton.jit
def then(m, b, m_before, b_before):
    """Return G → b_before + m_before (b + m G): the step before, in time, comes after in the scan."""
    return times(m_before, m), b_before + times(m_before, b)


@triton.jit
def folded(m, b, carried, mode: tl.constexpr):
    """Return G of the rows of a tile and Π m from its end, both flat, from G behind the tile, one per neighbour."""
    m = m.to(tl.float64)
    b = b.to(tl.float64)
    SIZE: tl.constexpr = mode.steps * mode.rows
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major:
        m, b = tl.associative_scan((tl.reshape(m, (ROWS, STEPS)), tl.reshape(b, (ROWS, STEPS))), 1, then)
        g = b + times(m, carried[:, None])
    else:
        m, b = tl.associative_scan((tl.reshape(m, (STEPS, ROWS)), tl.reshape(b, (STEPS, ROWS))), 0, then)
        g = b + times(m, carried[None, :])
    return tl.reshape(g, (SIZE,)), tl.reshape(m, (SIZE,))


@triton.jit
def at_earliest(x, mode: tl.constexpr):
    """Return the values of a tile at its earliest step, one per neighbour."""
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    last = tl.arange(0, mode.steps) == mode.steps - 1
    if mode.batch_major:
        found = tl.sum(tl.where(last[None, :], tl.reshape(x, (ROWS, STEPS)), 0.0), 1)
    else:
        found = tl.sum(tl.where(last[:, None], tl.reshape(x, (STEPS, ROWS)), 0.0), 0)
    return found


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def one_pass(w, out, m_out, gain, links, strange, n, batch, chunk_steps,
             lambda_: tl.float64, parameter: tl.float64, tolerance: tl.float64,
             mode: tl.constexpr, FADES: tl.constexpr, ORDERED: tl.constexpr):  # fmt: skip
    """Take some neighbours of the batch through one chunk of time; chunk 0 has the last steps.

    If there are several chunks, G behind a chunk is not known at first. It is taken as 0, and what it is to be
    multiplied by, Π m, is written to `gain`. At the end, the program gets G by `links`, and adds what is missing.

    If traces fade, Π m is written only as long as it can matter, which is not long where they are cut.
    """
    STEPS: tl.constexpr = mode.steps
    SIZE: tl.constexpr = mode.steps * mode.rows
    ROWS: tl.constexpr = mode.rows
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    lambda_ = tl.full((), lambda_, real)
    parameter = tl.full((), parameter, real)
    tolerance = tl.full((), tolerance, real)
    chunk = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * mode.rows
    _, row = order_in_tile(mode)
    neighbour = first + row
    in_batch = neighbour < batch
    carried = tl.zeros((ROWS,), tl.float64)
    product = tl.full((ROWS,), 1.0, tl.float64)
    matters = tl.full((ROWS,), True, tl.int1) & (chunk > 0)
    num_reached = tl.zeros((ROWS,), tl.int32)
    any_bad = tl.zeros((SIZE,), tl.int1)
    num_steps = n + 1 if mode.checks else n  # step −1 checks state 0, which no target reads
    start = chunk * chunk_steps
    end = tl.minimum(start + chunk_steps, num_steps)
    t, base, here, _ = places(n - start, neighbour, n, batch, mode)
    action = action_ahead(w, t, in_batch, base, here, 1 if mode.batch_major else batch, n, mode)
    for done in tl.range(start, end, STEPS, num_stages=1):
        tile = load_tile(w, action, n - done, neighbour, n, batch, lambda_, mode)
        action = tile[0]
        # All loads are on their way before one is waited for: without the barrier the compiler moves the single
        # numbers behind the sums, and behind the rows they would wait for registers.
        tl.debug_barrier()
        m, b, bad = pairs_of_tile(w, tile, parameter, tolerance, mode)
        g, along = folded(m, b, carried, mode)
        carried = at_earliest(g, mode)
        t, base, here, _ = places(n - done, neighbour, n, batch, mode)
        there = in_batch & (t >= 0)
        tl.store(out + base + here, g, there)
        if m_out is not None:
            tl.store(m_out + base + here, m, there)
        if gain is not None:
            if FADES:
                matters = matters & is_large(product, mode)
            num_reached += tl.where(matters, STEPS, 0)
            reach = times(along, over_tile(product, mode))
            product = at_earliest(reach, mode)
            tl.store(gain + base + here, reach, there & over_tile(matters, mode))
        if mode.checks:
            any_bad = any_bad | bad | (there & ~fits(g, mode))
    if gain is not None:
        lane = first + tl.arange(0, mode.rows)
        behind = linked(links, product, carried, chunk, first, batch, mode, FADES, ORDERED)
        wrong = add_behind(out, gain, behind, num_reached, start, lane, n, batch, mode)
        if mode.checks:
            if wrong:
                tl.store(strange, 1)
    if mode.checks:
        if tl.max(any_bad.to(tl.int32), 0) > 0:
            tl.store(strange, 1)


@triton.jit
def add_behind(out, gain, behind, num_reached, start, lane, n, batch, mode: tl.constexpr):
    """Add what G behind a chunk adds to the steps that it reaches; return whether a sum does not fit its dtype."""
    tl.debug_barrier()  # out and gain were written by other threads
    k = tl.arange(0, ADD_STEPS)
    ROWS: tl.constexpr = mode.rows
    wrong = tl.zeros((ROWS, ADD_STEPS) if mode.batch_major else (ADD_STEPS, ROWS), tl.int1)
    for done in range(0, tl.max(num_reached, 0), ADD_STEPS):
        t = (n - 1 - start - done - k).to(tl.int64)
        if mode.batch_major:
            at = lane[:, None] * n + t[None, :]
            there = (lane < batch)[:, None] & (done + k[None, :] < num_reached[:, None]) & (t >= 0)[None, :]
            added = behind[:, None]
        else:
            at = t[:, None] * batch + lane[None, :]
            there = (done + k[:, None] < num_reached[None, :]) & (t >= 0)[:, None] & (lane < batch)[None, :]
            added = behind[None, :]
        before = tl.load(out + at, there, 0.0)
        g = before.to(tl.float64) + times(tl.load(gain + at, there, 0.0).to(tl.float64), added)
        tl.store(out + at, g, there & (g.to(before.dtype) != before))  # often what is added is less than rounding
        if mode.checks:
            wrong = wrong | (there & ~fits(g, mode))
    return tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0 if mode.checks else False


@triton.jit
def over_tile(x, mode: tl.constexpr):
    """Return one value per neighbour for every row of a tile, flat."""
    SIZE: tl.constexpr = mode.steps * mode.rows
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major:
        found = tl.broadcast_to(x[:, None], (ROWS, STEPS))
    else:
        found = tl.broadcast_to(x[None, :], (STEPS, ROWS))
    return tl.reshape(found, (SIZE,))


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def fold_pairs(m, b, out, links, n, batch, chunk_steps,
               mode: tl.constexpr, FORWARDS: tl.constexpr, FADES: tl.constexpr,
               ORDERED: tl.constexpr):  # fmt: skip
    """Fold the pairs of one chunk of time; chunk 0 comes first in the recursion.

    Backwards in time it solves G_t = b_t + m_t G_{t+1}. Forwards it solves e_t = b_t + m_{t−1} e_{t−1}, the same
    recursion transposed, which is its gradient. If there are several chunks, a program goes through its own twice: to
    tell what it does as a whole, and again with the value behind it.
    """
    ROWS: tl.constexpr = mode.rows
    chunk = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * mode.rows
    start = chunk * chunk_steps
    end = tl.minimum(start + chunk_steps, n)
    carried = tl.zeros((ROWS,), tl.float64)
    if links is not None:
        product = tl.full((ROWS,), 1.0, tl.float64)
        for k in tl.range(start, end, mode.steps, num_stages=2):
            m_t, b_t, _, _ = load_pairs(m, b, k, end, first, n, batch, mode, FORWARDS)
            g, gain = folded(m_t, b_t, carried, mode)
            carried = at_earliest(g, mode)
            product = times(product, at_earliest(gain, mode))
        carried = linked(links, product, carried, chunk, first, batch, mode, FADES, ORDERED)
    for k in tl.range(start, end, mode.steps, num_stages=2):
        m_t, b_t, at, there = load_pairs(m, b, k, end, first, n, batch, mode, FORWARDS)
        g, _ = folded(m_t, b_t, carried, mode)
        carried = at_earliest(g, mode)
        tl.store(out + at, g, there)


@triton.jit
def load_pairs(m, b, k, end, first, n, batch, mode: tl.constexpr, FORWARDS: tl.constexpr):
    """Return the pairs of a tile, where it is in memory, and which of its rows are there."""
    later, row = order_in_tile(mode)
    t = k + later if FORWARDS else n - 1 - k - later
    there = (k + later < end) & (first + row < batch)
    if mode.batch_major:
        at = (first + row) * n + t
        before = 1
    else:
        at = t * batch.to(tl.int64) + first + row
        before = batch
    b_t = tl.load(b + at, there, 0.0).to(tl.float64)
    if FORWARDS:
        m_t = tl.load(m + at - before, there & (t > 0), 0.0).to(tl.float64)
    else:
        m_t = tl.load(m + at, there, 0.0).to(tl.float64)
    return m_t, b_t, at, there
