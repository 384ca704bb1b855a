"""The forward kernels: targets from a window, in one pass over Q, π and the steps.

With G for the targets, Eq. 3 is a recursion backwards in time, G_t = b_t + m_t G_{t+1}, with

    m_t = discount_t c_{t+1},    b_t = r_t + discount_t (E_π Q(x_{t+1}, ·) − c_{t+1} Q(x_{t+1}, a_{t+1})).

A program takes some neighbours of the batch through time, a tile after the other. The pairs (m, b) of a tile are
folded by a scan, and G of its earliest step is carried to the next tile:

    time →   | chunk 2       | chunk 1       | chunk 0       |
    program  |   ← tile tile |   ← tile tile |   ← tile tile |

Where the batch is too small to keep the device busy, time is cut into chunks, each with programs of its own. They
take G behind their chunk as 0. It is added afterwards: `join_chunks` finds it, `add_carried` adds it.

What is carried is float64, so a long window of float32 does not accumulate rounding errors.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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

TINY = tl.constexpr(2.0**-80)
"""G behind a chunk counts as nothing where it is multiplied by less, so a target is off by 2⁻⁸⁰ |G| at most.

Float32 rounds to 2⁻²⁴: it is seen only in targets that are 2⁵⁶ times smaller than a later one of their trajectory.
"""
TINY_IN_DOUBLE = tl.constexpr(2.0**-160)


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
def one_pass(w, out, m_out, gain, reaches, total_m, total_b, strange, n, batch, chunk_steps,
             lambda_: tl.float64, parameter: tl.float64, tolerance: tl.float64,
             mode: tl.constexpr):  # fmt: skip
    """Take some neighbours of the batch through one chunk of time; chunk 0 has the last steps.

    If there are several chunks, G behind a chunk is not known yet. It is taken as 0, and what it would be multiplied
    by, Π m, is written to `gain`; `add_carried` does the rest. `total_m` and `total_b` get what the chunk does as a
    whole, G → B + M G.

    With `reaches`, Π m is written only as long as it can matter, and `reaches` gets how many steps that is for each
    neighbour. So little is written, and read again, where traces are cut.
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
    matters = tl.full((ROWS,), True, tl.int1)
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
            wanted = there & (chunk > 0)
            if reaches is not None:
                matters = matters & is_large(product, mode)
                num_reached += tl.where(matters, STEPS, 0)
                wanted = wanted & over_tile(matters, mode)
            reach = times(along, over_tile(product, mode))
            product = at_earliest(reach, mode)
            tl.store(gain + base + here, reach, wanted)
        if mode.checks:
            any_bad = any_bad | bad | (there & ~fits(g, mode))
    if gain is not None:
        lane = first + tl.arange(0, mode.rows)
        at = chunk.to(tl.int64) * batch + lane
        tl.store(total_m + at, product, lane < batch)
        tl.store(total_b + at, carried, lane < batch)
        if reaches is not None:
            tl.store(reaches + at, num_reached, lane < batch)
    if mode.checks:
        if tl.max(any_bad.to(tl.int32), 0) > 0:
            tl.store(strange, 1)


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


@triton.jit
def is_large(product, mode: tl.constexpr):
    """Return whether a product of m may matter; NaN does."""
    return ~(tl.abs(product) < (TINY_IN_DOUBLE if mode.double else TINY))


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def add_carried(out, gain, reaches, ends_of_chunks, strange, n, batch, chunk_steps,
                mode: tl.constexpr, OVERLAPS: tl.constexpr):  # fmt: skip
    """Add what G behind its chunk adds to a tile. Chunk 0 has nothing behind it.

    With `OVERLAPS` the programs are started before the kernel before them has ended, and wait for it.
    """
    if OVERLAPS:
        gdc_wait()
    ROWS: tl.constexpr = mode.rows
    chunk = tl.program_id(1) + 1
    lane = tl.program_id(0).to(tl.int64) * mode.rows + tl.arange(0, mode.rows)
    start = chunk * chunk_steps
    end = tl.zeros((ROWS,), tl.int32) + tl.minimum(start + chunk_steps, n)
    if reaches is not None:
        num_reached = tl.load(reaches + chunk.to(tl.int64) * batch + lane, lane < batch, 0)
        end = tl.minimum(end, start + num_reached)
    k = start + tl.program_id(2) * mode.steps + tl.arange(0, mode.steps)
    t = (n - 1 - k).to(tl.int64)
    if mode.batch_major:
        at = lane[:, None] * n + t[None, :]
        there = (lane < batch)[:, None] & (k[None, :] < end[:, None])
    else:
        at = t[:, None] * batch + lane[None, :]
        there = (k[:, None] < end[None, :]) & (lane < batch)[None, :]
    reach = tl.load(gain + at, there, 0.0).to(tl.float64)
    before = tl.load(out + at, there, 0.0)
    behind = tl.load(ends_of_chunks + (chunk - 1).to(tl.int64) * batch + lane, lane < batch, 0.0)
    if mode.batch_major:
        g = before.to(tl.float64) + times(reach, behind[:, None])
    else:
        g = before.to(tl.float64) + times(reach, behind[None, :])
    tl.store(out + at, g, there & (g.to(before.dtype) != before))  # often what is added is less than rounding
    if strange is not None:
        bad = there & ~fits(g, mode)
        if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
            tl.store(strange, 1)


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def fold_pairs(m, b, out, ends_of_chunks, total_m, total_b, n, batch, chunk_steps,
               mode: tl.constexpr, FORWARDS: tl.constexpr, STAGES: tl.constexpr):  # fmt: skip
    """Fold the pairs of one chunk of time; chunk 0 comes first in the recursion.

    Backwards in time it solves G_t = b_t + m_t G_{t+1}. Forwards it solves e_t = b_t + m_{t−1} e_{t−1}, the same
    recursion transposed, which is its gradient.

    With `total_m` and `total_b`, only what a chunk does as a whole is written, G → B + M G. Otherwise
    `ends_of_chunks`, if there are several, has the value behind each.
    """
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    chunk = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * mode.rows
    lane = first + tl.arange(0, mode.rows)
    carried = tl.zeros((ROWS,), tl.float64)
    product = tl.full((ROWS,), 1.0, tl.float64)
    own = chunk.to(tl.int64) * batch + lane
    if ends_of_chunks is not None:
        carried = tl.load(ends_of_chunks + own - batch, (chunk > 0) & (lane < batch), 0.0)
    start = chunk * chunk_steps
    end = tl.minimum(start + chunk_steps, n)
    later, row = order_in_tile(mode)
    for k in tl.range(start, end, STEPS, num_stages=STAGES):
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
        g, gain = folded(m_t, b_t, carried, mode)
        carried = at_earliest(g, mode)
        if total_m is not None:
            product = times(product, at_earliest(gain, mode))
        else:
            tl.store(out + at, g, there)
    if total_m is not None:
        tl.store(total_m + own, product, lane < batch)
        tl.store(total_b + own, carried, lane < batch)


@triton.jit(do_not_specialize=["num_chunks", "batch"])
def join_chunks(total_m, total_b, num_chunks, batch, CHUNKS: tl.constexpr, ROWS: tl.constexpr,
                OVERLAPS: tl.constexpr):  # fmt: skip
    """Replace B of every chunk by G at its earliest step, which is the value behind the chunk before."""
    if OVERLAPS:
        gdc_launch_dependents()  # the next kernel may be started
        gdc_wait()
    lane = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    carried = tl.zeros((ROWS,), tl.float64)
    for start in range(0, num_chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        there = (chunk < num_chunks)[:, None] & (lane < batch)[None, :]
        at = chunk[:, None].to(tl.int64) * batch + lane[None, :]
        m = tl.load(total_m + at, there, 1.0)
        b = tl.load(total_b + at, there, 0.0)
        m, b = tl.associative_scan((m, b), 0, then)
        g = b + times(m, carried[None, :])
        tl.store(total_b + at, g, there)
        carried = tl.sum(tl.where((tl.arange(0, CHUNKS) == CHUNKS - 1)[:, None], g, 0.0), 0)
