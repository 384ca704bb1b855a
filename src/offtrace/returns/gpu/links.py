"""What the programs of a kernel tell each other, so that each finds G behind its own chunk of time.

A chunk turns G behind it into b + m G, which is G at its earliest step. So there are three numbers for each chunk and
neighbour. A program writes m and b as soon as it has them, and G at the earliest step as soon as it knows G behind
its chunk. To find that, it looks at the chunks behind its own, the nearest first:

    chunk      5       4       3       2       1       0
    known      own     m b     m b     G       m b     G
    G behind         = b₄ + m₄(b₃  + m₃ G₂)

It stops at a chunk once the product of all m up to there is too small to matter. If traces may grow, it stops only
once that product is 0.

It waits where nothing is known yet, but never for a program with a higher number. All programs come to an end if the
device starts them in the order of their numbers. CUDA does not promise this, but devices do it, and scans in one pass
rely on it.

Which G are already known differs from call to call, and so does the last bit of a sum; without checks also where
infinities end. If a program uses G of chunk 0 only, the result is always the same (`ORDERED`). This takes longer if
traces do not fade.
"""

import triton
import triton.language as tl

from offtrace.returns.gpu.rows import times

TINY = tl.constexpr(2.0**-48)
"""G behind a chunk counts as nothing where it is multiplied by less: a target is off by 2⁻⁴⁸ of a later |G| at most.

Float32 rounds to 2⁻²⁴: it is seen only in targets that are 2²⁴ times smaller than a later one of their trajectory.
"""
TINY_IN_DOUBLE = tl.constexpr(2.0**-106)
"""The same for float64."""


@triton.jit
def linked(links, m, b, chunk, first, batch, mode: tl.constexpr, FADES: tl.constexpr, ORDERED: tl.constexpr):
    """Tell other programs what a chunk does, G → b + m G, and return G behind it, one per neighbour.

    With `FADES`, products of m that are too small to matter count as 0, see `may_matter`.
    """
    ROWS: tl.constexpr = mode.rows
    # Threads that hold copies of a neighbour may see different numbers. So every thread has a slot of its own, and
    # the loop ends when all are done. With up to 32 slots, each warp has all of them, and ends for itself.
    SLOTS: tl.constexpr = 32 if mode.rows <= 32 else 32 * mode.num_warps
    size = tl.num_programs(1) * batch.to(tl.int64)
    lane = first + tl.arange(0, mode.rows)
    own = chunk * batch.to(tl.int64) + lane
    tells = (lane < batch) & (chunk > 0)  # chunk 0 tells G only: nobody has to look behind it
    tell(links + own, m, tells)
    tell(links + size + own, b, tells)
    slot = first + tl.arange(0, SLOTS) % ROWS
    other = tl.zeros((SLOTS,), tl.int32) + chunk - 1
    is_open = (slot < batch) & (chunk > 0)
    m_between = tl.full((SLOTS,), 1.0, tl.float64)
    behind = tl.zeros((SLOTS,), tl.float64)
    while tl.max(is_open.to(tl.int32), 0) > 0:
        # Four chunks at once, as every look takes a while.
        at = links + other * batch.to(tl.int64) + slot
        one = look(at, size, is_open)
        two = look(at - batch, size, is_open & (other > 0))
        three = look(at - 2 * batch, size, is_open & (other > 1))
        four = look(at - 3 * batch, size, is_open & (other > 2))
        state = (other, is_open, m_between, behind)
        state, goes_on = follow(state, is_open, one, mode, FADES, ORDERED)
        state, goes_on = follow(state, goes_on, two, mode, FADES, ORDERED)
        state, goes_on = follow(state, goes_on, three, mode, FADES, ORDERED)
        state, goes_on = follow(state, goes_on, four, mode, FADES, ORDERED)
        other, is_open, m_between, behind = state
        is_open = is_open & may_matter(m_between, mode, FADES)
    if SLOTS > ROWS:
        copy = tl.arange(0, SLOTS // ROWS)[:, None]
        behind = tl.sum(tl.where(copy == 0, tl.reshape(behind, (SLOTS // ROWS, ROWS)), 0.0), 0)
    tell(links + 2 * size + own, b + times(m, behind), lane < batch)
    return behind


@triton.jit
def look(at, size, wanted):
    """Return what the program of a chunk has told: m, b and G; 0 for nothing yet."""
    m = tl.load(at, wanted, 0, volatile=True)
    b = tl.load(at + size, wanted, 0, volatile=True)
    g = tl.load(at + 2 * size, wanted, 0, volatile=True)
    return m, b, g


@triton.jit
def follow(state, goes_on, found, mode: tl.constexpr, FADES: tl.constexpr, ORDERED: tl.constexpr):
    """Take the next chunk, where it is known and those before it are; return also where to go on."""
    other, is_open, m_between, behind = state
    m, b, g = found
    is_last = g != 0
    if ORDERED:
        is_last = is_last & (other == 0)
        goes_on = goes_on & may_matter(m_between, mode, FADES)  # for each chunk: a look covers now more, now fewer
    is_known = goes_on & (is_last | ((m != 0) & (b != 0)))
    behind = tl.where(is_known, behind + times(m_between, told(tl.where(is_last, g, b))), behind)
    goes_on = is_known & ~is_last
    m_between = tl.where(goes_on, times(m_between, told(m)), m_between)
    other = tl.where(goes_on, other - 1, other)
    is_open = is_open & ~(is_known & is_last)
    return (other, is_open, m_between, behind), goes_on


@triton.jit
def tell(at, x, there):
    """Write numbers for other programs, with all bits inverted: 0 stands for nothing yet.

    Only a NaN can have all bits set, and be 0 then. So there is one NaN for all.
    """
    x = tl.where(x == x, x, float("nan"))
    tl.atomic_xchg(at, ~x.to(tl.int64, bitcast=True), there, sem="relaxed")


@triton.jit
def told(x):
    """Return numbers that another program wrote with `tell`."""
    return (~x).to(tl.float64, bitcast=True)


@triton.jit
def may_matter(product, mode: tl.constexpr, FADES: tl.constexpr):
    """Return whether what is multiplied by a product of m may matter; NaN does.

    If traces may grow, a small product can become large again. Only 0 stays 0, as at the end of an episode.
    """
    if FADES:
        found = ~(tl.abs(product) < (TINY_IN_DOUBLE if mode.double else TINY))
    else:
        found = product != 0
    return found
