"""The forward kernel, targets from a window in one pass over Q, π and the steps; and the recursion alone.

With G for the targets, Eq. 3 is a recursion backwards in time, G_t = b_t + m_t G_{t+1}, with

    m_t = discount_t c_{t+1},    b_t = r_t + discount_t (E_π Q(x_{t+1}, ·) − c_{t+1} Q(x_{t+1}, a_{t+1})).

A program takes some neighbours of the batch through time, a tile after the other. The pairs (m, b) of a tile are
folded, and G of its earliest step is carried to the next tile:

    time →   | chunk 2       | chunk 1       | chunk 0       |
    program  |   ← tile tile |   ← tile tile |   ← tile tile |

Where the batch is too small to keep the device busy, time is cut into chunks, each with programs of its own. They
take G behind their chunk as 0 at first, or as Q(x, a) if c can be above 1. At the end, a program tells the others
what its chunk does to G, looks up what theirs do (`links.py`), and adds what is missing.

What is carried is float64, so a long window of float32 does not accumulate rounding errors.
"""

import triton
import triton.language as tl

from offtrace.returns.gpu.links import linked, may_matter
from offtrace.returns.gpu.rows import (
    GIVEN,
    Q_LAMBDA,
    as_place,
    fits,
    flags_of,
    is_before,
    load_rows,
    load_steps,
    numbers_of_steps,
    order_in_tile,
    places,
    scaled,
    taken,
    times,
)
from offtrace.returns.gpu.rules import factor, read_policy, wrong_rows

ADD_STEPS = tl.constexpr(32)
"""Steps at once where what is missing is added, at most."""
ADD_ROWS = tl.constexpr(16)
"""Rows that a thread adds to at once, at most: more would need too many registers."""
GAIN_UNIT = tl.constexpr(2.0**64)
"""Products that may grow are divided by this before they are stored: float32 then has all digits of 2⁻⁶² to 2¹⁹¹."""


@triton.jit
def pairs_of_tile(w, loaded, above, neighbour, n, batch, parameter, tolerance, mode: tl.constexpr):
    """Return m and b of the rows of a tile, from what `load_steps` returned, and which of them look wrong."""
    SIZE: tl.constexpr = mode.steps * mode.rows
    steps = numbers_of_steps(loaded, mode)
    t, base, here, state = places(above, neighbour, n, batch, mode)
    is_real, goes_on, continues = flags_of(w, steps, t, neighbour, n, batch, mode)
    rows = ()
    if mode.reads_rows:
        rows = load_rows(w, (neighbour < batch) & (t >= -1), base, here, state, mode)
    known, q_a, value, pi_a, mu_a = taken(w, rows, steps, is_real, goes_on, base, here, state, mode)
    # Warps stay together, so that neighbours in the batch are read at the same time: they share lines of memory.
    tl.debug_barrier()
    reward, discount, successor = steps[0]
    if w.mask is not None:
        reward = tl.where(is_real, reward, 0.0)
        discount = tl.where(is_real, discount, 0.0)
    ahead, total, greedy = read_policy(rows, value, parameter, mode)
    if w.expected_q is not None:
        ahead = successor
    c = factor(steps[1][4], greedy, pi_a, mu_a, parameter, mode)
    if mode.kind != GIVEN:
        c = scaled(c, steps[1][5])
    c = tl.where(continues, c, 0.0)
    # In float64, where a product of two float32 is exact: c Q and c G are large if c is, and cancel each other.
    gamma = discount.to(tl.float64)
    m = gamma * tl.where(discount == 0, 0.0, c).to(tl.float64)
    b = reward + tl.where(discount == 0, 0.0, ahead).to(tl.float64) * gamma
    if mode.corrections:
        b -= q_a
    else:
        b -= scaled(q_a.to(tl.float64), m)

    bad = tl.zeros((SIZE,), tl.int1)
    if mode.checks:
        bad = wrong_rows(w, is_real, goes_on, continues, reward, discount, ahead, total, known, q_a, pi_a, mu_a,
                         tolerance, mode)  # fmt: skip
        bad = bad | ~fits(c, mode)
    return m, b, bad


@triton.jit
def then(m, b, m_before, b_before):
    """Return G → b_before + m_before (b + m G): the step before, in time, comes after in the scan."""
    return scaled(m, m_before), b_before + scaled(b, m_before)


@triton.jit
def folded(m, b, carried, product, mode: tl.constexpr):
    """Return G of the rows of a tile and Π m of all steps behind them, flat, and both at its earliest step.

    `carried` is G behind the tile, `product` Π m of the steps behind it, one per neighbour.
    """
    m = m.to(tl.float64)
    b = b.to(tl.float64)
    if mode.run > 0:
        found = folded_by_runs(m, b, carried, product, mode)
    else:
        found = folded_by_scan(m, b, carried, product, mode)
    return found


@triton.jit
def folded_by_scan(m, b, carried, product, mode: tl.constexpr):
    """The same for tiles whose steps are in many threads."""
    SIZE: tl.constexpr = mode.steps * mode.rows
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major:
        m, b = tl.associative_scan((tl.reshape(m, (ROWS, STEPS)), tl.reshape(b, (ROWS, STEPS))), 1, then)
        g = b + scaled(carried[:, None], m)
        m = scaled(product[:, None], m)
        is_earliest = tl.arange(0, STEPS)[None, :] == STEPS - 1
        carried = tl.sum(tl.where(is_earliest, g, 0.0), 1)
        product = tl.sum(tl.where(is_earliest, m, 0.0), 1)
    else:
        m, b = tl.associative_scan((tl.reshape(m, (STEPS, ROWS)), tl.reshape(b, (STEPS, ROWS))), 0, then)
        g = b + scaled(carried[None, :], m)
        m = scaled(product[None, :], m)
        is_earliest = tl.arange(0, STEPS)[:, None] == STEPS - 1
        carried = tl.sum(tl.where(is_earliest, g, 0.0), 0)
        product = tl.sum(tl.where(is_earliest, m, 0.0), 0)
    return tl.reshape(g, (SIZE,)), tl.reshape(m, (SIZE,)), carried, product


@triton.jit
def folded_by_runs(m, b, carried, product, mode: tl.constexpr):
    """The same where threads take runs: each folds its own, then gets from the one before what is behind its run."""
    tl.static_assert(not mode.batch_major)
    SIZE: tl.constexpr = mode.steps * mode.rows
    ROWS: tl.constexpr = mode.rows
    RUN: tl.constexpr = mode.run
    THREADS: tl.constexpr = mode.steps // mode.run
    SIDE: tl.constexpr = mode.side
    WARPS: tl.constexpr = ROWS // SIDE
    m = tl.reshape(m, (RUN, WARPS, THREADS, SIDE))
    b = tl.reshape(b, (RUN, WARPS, THREADS, SIDE))
    if RUN > 1:
        m, b = tl.associative_scan((m, b), 0, then)
    is_earliest = tl.arange(0, RUN)[:, None, None, None] == RUN - 1
    m_run = tl.sum(tl.where(is_earliest, m, 0.0), 0)
    b_run = tl.sum(tl.where(is_earliest, b, 0.0), 0)
    thread = tl.arange(0, THREADS)[None, :, None]
    carried = tl.reshape(carried, (WARPS, SIDE))
    product = tl.reshape(product, (WARPS, SIDE))
    g_behind = tl.broadcast_to(carried[:, None, :], (WARPS, THREADS, SIDE))
    m_behind = tl.broadcast_to(product[:, None, :], (WARPS, THREADS, SIDE))
    for k in tl.static_range(THREADS):
        if k > 0:
            g_behind = tl.where(thread == k, carried[:, None, :], g_behind)
            m_behind = tl.where(thread == k, product[:, None, :], m_behind)
        carried = tl.sum(tl.where(thread == k, b_run + scaled(g_behind, m_run), 0.0), 1)
        product = tl.sum(tl.where(thread == k, scaled(m_behind, m_run), 0.0), 1)
    g = b + scaled(g_behind[None, :, :, :], m)
    m = scaled(m_behind[None, :, :, :], m)
    flat_g = tl.reshape(g, (SIZE,))
    flat_m = tl.reshape(m, (SIZE,))
    return flat_g, flat_m, tl.reshape(carried, (ROWS,)), tl.reshape(product, (ROWS,))


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def one_pass(w, out, m_out, gain, links, strange, n, batch, chunk_steps,
             lambda_: tl.float64, parameter: tl.float64, tolerance: tl.float64,
             mode: tl.constexpr, FADES: tl.constexpr, ORDERED: tl.constexpr):  # fmt: skip
    """Take some neighbours of the batch through one chunk of time; chunk 0 has the last steps.

    If there are several chunks, G behind a chunk is not known at first. It is taken as some value, and what it is to
    be multiplied by, Π m, is written to `gain`. At the end, the program gets G by `links`, and adds what is missing.

    If traces fade, that value is 0, and Π m is written only as long as it can matter, which is not long where they
    are cut. If they may grow, so may a small error in G. Then the value is Q(x, a), and everything that is passed on
    is about G − Q(x, a): there is no large c Q that a large c G has to cancel.
    """
    STEPS: tl.constexpr = mode.steps
    SIZE: tl.constexpr = mode.steps * mode.rows
    ROWS: tl.constexpr = mode.rows
    # What is added to at the end is kept in the cache until then, unless it is too much. Small windows stay anyway.
    IS_LITTLE: tl.constexpr = FADES and mode.kind != Q_LAMBDA
    KEPT: tl.constexpr = "evict_last" if mode.eviction == "" and IS_LITTLE else ""
    UNIT: tl.constexpr = 1.0 if FADES or mode.double else GAIN_UNIT
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    lambda_ = tl.full((), lambda_, real)
    parameter = tl.full((), parameter, real)
    tolerance = tl.full((), tolerance, real)
    chunk = tl.program_id(1)
    first = as_place(tl.program_id(0), mode) * mode.rows
    neighbour = first + order_in_tile(mode)[1]
    in_batch = neighbour < batch
    carried = tl.zeros((ROWS,), tl.float64)
    product = tl.full((ROWS,), 1.0, tl.float64)
    matters = tl.full((ROWS,), True, tl.int1) & (chunk > 0)
    num_reached = tl.zeros((ROWS if FADES else SIZE,), tl.int32)  # steps of the chunk up to the last to be added to
    any_bad = tl.zeros((SIZE,), tl.int1)
    num_steps = n + 1 if mode.checks else n  # step −1 checks state 0, which no target reads
    start = chunk * chunk_steps
    end = tl.minimum(start + chunk_steps, num_steps)
    lane = first + tl.arange(0, mode.rows).to(tl.int64)
    if gain is not None and not FADES:
        carried = value_behind(w, n - start, lane, n, batch, mode)
    loaded = load_steps(w, n - start, neighbour, in_batch, n, batch, lambda_, mode)
    for done in tl.range(start, end, STEPS, num_stages=1):
        later = done + STEPS
        following = load_steps(w, n - later, neighbour, in_batch & (later < end), n, batch, lambda_, mode)
        m, b, bad = pairs_of_tile(w, loaded, n - done, neighbour, n, batch, parameter, tolerance, mode)
        loaded = following
        if gain is not None:
            matters = matters & near_any(may_matter(product, mode, FADES), mode)
        g, reach, carried, product = folded(m, b, carried, product, mode)
        t, base, here, _ = places(n - done, neighbour, n, batch, mode)
        there = in_batch & (t >= 0)
        if gain is not None:
            is_reached = over_tile(matters, mode)
            reach = reach * (1 / UNIT)
            if FADES:
                num_reached = tl.where(matters, later - start, num_reached)
            else:
                # Where the stored product is 0, nothing is added. It is written, as an earlier one may not be 0.
                num_reached = tl.where(is_reached & (reach.to(real) != 0), later - start, num_reached)
            tl.store(gain + base + here, reach, there & is_reached, eviction_policy=KEPT)
            tl.store(out + base + here, g, there & is_reached, eviction_policy=KEPT)
            tl.store(out + base + here, g, there & ~is_reached)
        else:
            tl.store(out + base + here, g, there)
        if m_out is not None:
            tl.store(m_out + base + here, m, there)
        if mode.checks:
            any_bad = any_bad | bad | (there & ~fits(g, mode))
    if gain is not None:
        tl.debug_barrier()  # `out` and `gain` were written by other threads
        if not FADES:
            carried -= value_behind(w, n - end, lane, n, batch, mode)
            num_reached = most_of_tile(num_reached, mode)
        behind = linked(links, product, carried, chunk, first, batch, mode, FADES, ORDERED)
        wrong = add_behind(out, gain, behind * UNIT, num_reached, start, lane, n, batch, mode)
        if mode.checks:
            if wrong:
                tl.store(strange, 1)
    if mode.checks:
        if tl.max(any_bad.to(tl.int32), 0) > 0:
            tl.store(strange, 1)


@triton.jit
def value_behind(w, t, lane, n, batch, mode: tl.constexpr):
    """Return Q(x_t, a_t), one per neighbour, or 0 where it is not there.

    Any value would do, as it is taken away again; this one loses the fewest digits. Corrections need none.
    """
    ROWS: tl.constexpr = mode.rows
    value = tl.zeros((ROWS,), tl.float64)
    if not mode.corrections:
        there = (lane < batch) & is_before(t, n)
        if mode.batch_major:
            at = lane * n + t
            state = at + lane
        else:
            at = t.to(tl.int64) * batch + lane
            state = at
        if w.q_a is not None:
            value = tl.load(w.q_a + at, there, 0.0).to(tl.float64)
        else:
            action = tl.load(w.a + at, there, -1).to(tl.int64)
            known = (action >= 0) & (action < mode.num_actions)
            value = tl.load(w.q + state * mode.num_actions + action, known, 0.0).to(tl.float64)
    return value


@triton.jit
def add_behind(out, gain, behind, num_reached, start, lane, n, batch, mode: tl.constexpr):
    """Add what G behind a chunk adds to the steps that it reaches; return whether a sum does not fit its dtype."""
    USED: tl.constexpr = "evict_first" if mode.eviction == "" else ""  # the cache need not keep it any longer
    ROWS: tl.constexpr = mode.rows
    MOST: tl.constexpr = ADD_ROWS * 32 * mode.num_warps // ROWS
    STEPS: tl.constexpr = ADD_STEPS if ADD_STEPS < MOST else MOST
    k = tl.arange(0, STEPS)
    wrong = tl.zeros((ROWS, STEPS) if mode.batch_major else (STEPS, ROWS), out.dtype.element_ty)
    # One comparison says which steps are there. With three, the compiler makes loads wait for each other.
    num_reached = tl.where(lane < batch, tl.minimum(num_reached, n - start), 0)
    for done in range(0, tl.max(num_reached, 0), STEPS):
        t = (n - 1 - start - done - k).to(tl.int64)
        if mode.batch_major:
            at = lane[:, None] * n + t[None, :]
            there = done + k[None, :] < num_reached[:, None]
            added = behind[:, None]
        else:
            at = t[:, None] * batch + lane[None, :]
            there = done + k[:, None] < num_reached[None, :]
            added = behind[None, :]
        before = tl.load(out + at, there, 0.0, eviction_policy=USED)
        reach = tl.load(gain + at, there, 0.0, eviction_policy=USED)
        g = before.to(tl.float64) + times(reach.to(tl.float64), added)
        g = g.to(before.dtype)
        tl.store(out + at, g, there & (g != before))  # often less than rounding is added
        if mode.checks:
            wrong += g - g  # NaN if it is not finite
    return tl.max(tl.max((wrong != 0).to(tl.int32), 1), 0) > 0 if mode.checks else False


@triton.jit
def near_any(x, mode: tl.constexpr):
    """Return for every neighbour whether `x` is true for any of its group of eight.

    In float32, and if the batch is a multiple of 8, these are 32 bytes of memory. A part of them is slow to write.
    """
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major or ROWS < 8:
        found = x
    else:
        any_of_8 = tl.max(tl.reshape(x.to(tl.int32), (ROWS // 8, 8)), 1) > 0
        found = tl.reshape(tl.broadcast_to(any_of_8[:, None], (ROWS // 8, 8)), (ROWS,))
    return found


@triton.jit
def over_tile(x, mode: tl.constexpr):
    """Return one value per neighbour for every row of a tile, flat."""
    SIZE: tl.constexpr = mode.steps * mode.rows
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major:
        found = tl.broadcast_to(x[:, None], (ROWS, STEPS))
    elif mode.run == 0:
        found = tl.broadcast_to(x[None, :], (STEPS, ROWS))
    else:
        WARPS: tl.constexpr = ROWS // mode.side
        x = tl.reshape(x, (1, WARPS, 1, mode.side))
        found = tl.broadcast_to(x, (mode.run, WARPS, STEPS // mode.run, mode.side))
    return tl.reshape(found, (SIZE,))


@triton.jit
def most_of_tile(x, mode: tl.constexpr):
    """Return the largest of the numbers of every neighbour, from one per row of a tile, flat."""
    STEPS: tl.constexpr = mode.steps
    ROWS: tl.constexpr = mode.rows
    if mode.batch_major:
        found = tl.max(tl.reshape(x, (ROWS, STEPS)), 1)
    elif mode.run == 0:
        found = tl.max(tl.reshape(x, (STEPS, ROWS)), 0)
    else:
        WARPS: tl.constexpr = ROWS // mode.side
        x = tl.reshape(x, (mode.run, WARPS, STEPS // mode.run, mode.side))
        found = tl.reshape(tl.max(tl.max(x, 0), 1), (ROWS,))
    return found


@triton.jit(do_not_specialize=["n", "batch", "chunk_steps"])
def fold_pairs(m, b, out, links, n, batch, chunk_steps,
               mode: tl.constexpr, FORWARDS: tl.constexpr, FADES: tl.constexpr,
               ORDERED: tl.constexpr):  # fmt: skip
    """Fold the pairs of one chunk of time; chunk 0 comes first in the recursion.

    Backwards in time it solves G_t = b_t + m_t G_{t+1}. Forwards it solves e_t = b_t + m_{t−1} e_{t−1}, the same
    recursion transposed, which is its gradient. If there are several chunks, a program first finds out what its own
    does as a whole, then gets the value behind it:

        first    what the chunk does        ← tile ← tile     from its end, as far as it matters
        then     its values                 tile → tile → tile → tile → tile
    """
    ROWS: tl.constexpr = mode.rows
    chunk = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * ROWS
    start = chunk * chunk_steps
    carried = tl.zeros((ROWS,), tl.float64)
    product = tl.full((ROWS,), 1.0, tl.float64)
    if links is not None:
        nothing = carried
        one = product
        done = start + chunk_steps
        goes_on = True
        while goes_on:
            done -= mode.steps
            m_t, b_t, _, _ = load_pairs(m, b, done, first, n, batch, mode, FORWARDS)
            _, _, b_tile, m_tile = folded(m_t, b_t, nothing, one, mode)
            carried += times(product, b_tile)
            product = times(product, m_tile)
            goes_on = (done > start) & (tl.max(may_matter(product, mode, FADES).to(tl.int32), 0) > 0)
        carried = linked(links, product, carried, chunk, first, batch, mode, FADES, ORDERED)
    for done in tl.range(start, tl.minimum(start + chunk_steps, n), mode.steps, num_stages=2):
        m_t, b_t, at, there = load_pairs(m, b, done, first, n, batch, mode, FORWARDS)
        g, _, carried, product = folded(m_t, b_t, carried, product, mode)
        tl.store(out + at, g, there)


@triton.jit
def load_pairs(m, b, done, first, n, batch, mode: tl.constexpr, FORWARDS: tl.constexpr):
    """Return the pairs of a tile, where it is in memory, and which of its rows are there."""
    later, row = order_in_tile(mode)
    t = done + later if FORWARDS else n - 1 - done - later
    there = (done + later < n) & (first + row < batch)
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
