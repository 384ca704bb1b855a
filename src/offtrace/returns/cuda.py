"""CUDA tensors through Triton: one pass over Q, π and the steps, backwards in time.

With G for the targets, Eq. 3 is G_t = b_t + m_t G_{t+1}, where row t+1 of Q and π enters into row t:

    m_t = discount_t c_{t+1},    b_t = r_t + discount_t (E_π Q(x_{t+1}, ·) − c_{t+1} Q(x_{t+1}, a_{t+1})).

A program takes some neighbours of the batch through time, several steps at once, and folds those by a scan. Where
the batch is too small to keep the device busy, the window is cut into chunks of time that do not wait for each other.
Each gives its targets as if G were 0 at its end, what every unit of G there adds to them, and (b, m) of the chunk as
a whole; a scan over those gives G at every end, and a small pass adds its share. What is carried is float64, so a
long window of float32 loses nothing to rounding.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from offtrace.traces import formulas

IS = tl.constexpr(formulas.KIND_IS)
LAMBDA = tl.constexpr(formulas.KIND_Q_LAMBDA)
TB = tl.constexpr(formulas.KIND_TREE_BACKUP)
RETRACE = tl.constexpr(formulas.KIND_RETRACE)

TILE = 4096
"""Elements of Q that a program takes at once, and so the most actions there may be."""
BUSY = 8192
"""Warps that keep a device busy."""
SHORTEST = 32
"""Tiles of a chunk: to join chunks takes two more launches."""


@triton.jit
def _times(x, y):
    """x y, where a 0 on either side keeps what is no number on the other out of it."""
    return tl.where((x == 0) | (y == 0), 0.0, x * y)


@triton.jit
def _is_finite(x):
    return x - x == 0


@triton.jit
def _then(m, b, m_before, b_before):
    """G → b_before + m_before (b + m G): the step before, in time, comes after."""
    return _times(m_before, m), b_before + _times(m_before, b)


@triton.jit
def _is_distribution(p, expected, tolerance):
    """Whether rows of π are such, with values that are numbers where π is not 0."""
    wrong = tl.max((~((p >= -tolerance) & (p <= 1 + tolerance))).to(tl.int32), 1)
    return (tl.abs(tl.sum(p, 1) - 1) <= tolerance) & (wrong == 0) & _is_finite(expected)


@triton.jit(do_not_specialize=["n", "batch", "steps"])
def _steps(
    q,
    pi,
    a,
    r,
    discount,
    mu_a,
    c_given,
    q_a_given,
    expected_q,
    reset,
    mask,
    out,
    share,
    chunk_b,
    chunk_m,
    strange,
    n,
    batch,
    steps,
    lambda_: tl.float64,
    tolerance: tl.float64,
    KIND: tl.constexpr,
    AS_TARGETS: tl.constexpr,
    A: tl.constexpr,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Some neighbours of the batch through one chunk of time; chunk 0 is the last of the window.

    E_π Q, Q(x, a) and c come from Q, π, a and μ, or they are given: what is not is None, and known to the compiler.
    """
    chunk = tl.program_id(1)
    first = tl.program_id(0).to(tl.int64) * ROWS
    back = tl.arange(0, STEPS * ROWS) // ROWS  # the latest step of a tile is its row 0
    row = tl.arange(0, STEPS * ROWS) % ROWS
    stride = batch.to(tl.int64)
    here = row - back * stride
    column = tl.arange(0, WIDTH)
    cell = here[:, None] * A + column[None, :]
    end = n - chunk * steps
    start = tl.maximum(end - steps, 0)
    bad = tl.zeros((STEPS * ROWS,), tl.int1)
    carried = tl.zeros((ROWS,), tl.float64)
    carried_m = tl.zeros((ROWS,), tl.float64)
    if chunk > 0:
        carried_m += 1

    for above in range(end, start, -STEPS):
        t = above - 1 - back
        there = (t >= start) & (first + row < batch)
        at = (above - 1) * stride + first  # of the tile's first row
        reward = tl.load(r + at + here, there, 0.0).to(tl.float64)
        d = tl.load(discount + at + here, there, 0.0).to(tl.float64)
        real = there
        if mask is not None:
            real = there & (tl.load(mask + at + here, there, 0) != 0)
        after = at + batch  # row t+1
        has_next = there & (t + 1 < n)
        goes_on = has_next
        if mask is not None:
            goes_on = goes_on & (tl.load(mask + after + here, has_next, 0) != 0)
        uncut = goes_on
        if reset is not None:
            uncut = uncut & (tl.load(reset + after + here, has_next, 0) == 0)
        if q is not None:
            inside = there[:, None] & (column < A)[None, :]
            p = tl.load(pi + after * A + cell, inside, 0.0)
            values = tl.load(q + after * A + cell, inside, 0.0)
            expected = tl.sum(tl.where(p != 0, p * values, 0.0), 1)
            ahead = expected.to(tl.float64)
            action = tl.load(a + after + here, goes_on, 0)
            known = (action >= 0) & (action < A)
            if q_a_given is not None:
                q_a = tl.load(q_a_given + after + here, goes_on, 0.0).to(tl.float64)
            else:
                own = tl.load(q + after * A + here * A + action, goes_on & known, float("nan"))
                q_a = own.to(tl.float64)
            pi_a = tl.full((STEPS * ROWS,), 1.0, tl.float64)
            if (KIND == IS) | (KIND == RETRACE) | (KIND == TB):
                pi_a = tl.load(pi + after * A + here * A + action, goes_on & known, 0.0).to(tl.float64)
            mu = tl.full((STEPS * ROWS,), 1.0, tl.float64)
            if (KIND == IS) | (KIND == RETRACE):
                mu = tl.load(mu_a + after + here, goes_on, 1.0).to(tl.float64)
            if KIND == RETRACE:
                ratio = pi_a / mu
                c = lambda_ * tl.where(ratio < 1, ratio, 1.0)
            elif KIND == IS:
                c = lambda_ * (pi_a / mu)
            elif KIND == TB:
                c = lambda_ * pi_a
            elif KIND == LAMBDA:
                c = lambda_ + tl.zeros((STEPS * ROWS,), tl.float64)
            else:
                c = tl.zeros((STEPS * ROWS,), tl.float64)
            if strange is not None:
                bad = bad | (goes_on & ~(known & _is_finite(q_a) & (mu > 0) & (mu <= 1 + tolerance)))
                reaches = real & (d != 0)
                bad = bad | ((goes_on | reaches) & ~_is_distribution(p, expected, tolerance))
                bad = bad | (goes_on & reaches & ~uncut)
        else:
            ahead = tl.load(expected_q + at + here, real, 0.0).to(tl.float64)
            q_a = tl.load(q_a_given + after + here, goes_on, 0.0).to(tl.float64)
            c = tl.load(c_given + after + here, goes_on, 0.0).to(tl.float64)
        c = tl.where(uncut, c, 0.0)
        d = tl.where(real, d, 0.0)
        b = tl.where(real, reward + _times(d, ahead - _times(c, q_a)), 0.0)
        m = _times(d, c)
        if strange is not None:
            bad = bad | (real & ~((d >= 0) & (d <= 1) & _is_finite(reward)))
        m, b = tl.associative_scan((tl.reshape(m, (STEPS, ROWS)), tl.reshape(b, (STEPS, ROWS))), 0, _then)
        whole = b + _times(m, carried[None, :])
        last = tl.arange(0, STEPS)[:, None] == STEPS - 1
        carried = tl.sum(tl.where(last, whole, 0.0), 0)
        if share is not None:
            gain = _times(m, carried_m[None, :])
            carried_m = tl.sum(tl.where(last, gain, 0.0), 0)
            if chunk > 0:
                tl.store(share + at + here, tl.where(real, tl.reshape(gain, (STEPS * ROWS,)), 0.0), there)
        target = tl.reshape(whole, (STEPS * ROWS,))
        if not AS_TARGETS:
            target -= tl.load(q_a_given + at + here, real, 0.0).to(tl.float64)
        if strange is not None:
            bad = bad | (real & ~_is_finite(target))
        tl.store(out + at + here, tl.where(real, target, 0.0), there)
    if (strange is not None) & (q is not None):
        if start == 0:  # row 0 of Q and π, which nobody else reads
            i = tl.arange(0, ROWS)
            real = first + i < batch
            if mask is not None:
                real = real & (tl.load(mask + first + i, real, 0) != 0)
            inside = real[:, None] & (column < A)[None, :]
            cells = (first + i)[:, None] * A + column[None, :]
            p, values = tl.load(pi + cells, inside, 0.0), tl.load(q + cells, inside, 0.0)
            fine = _is_distribution(p, tl.sum(tl.where(p != 0, p * values, 0.0), 1), tolerance)
            action = tl.load(a + first + i, real, 0)
            fine = fine & (action >= 0) & (action < A)
            if q_a_given is not None:
                fine = fine & _is_finite(tl.load(q_a_given + first + i, real, 0.0))
            else:
                fine = fine & _is_finite(tl.load(q + (first + i) * A + action, real & fine, 0.0))
            if (KIND == IS) | (KIND == RETRACE):
                mu = tl.load(mu_a + first + i, real, 1.0)
                fine = fine & (mu > 0) & (mu <= 1 + tolerance)
            if tl.max((real & ~fine).to(tl.int32), 0) > 0:
                tl.store(strange, 1)
    if share is not None:
        place = chunk.to(tl.int64) * batch + first + tl.arange(0, ROWS)
        there = first + tl.arange(0, ROWS) < batch
        tl.store(chunk_b + place, carried, there)
        tl.store(chunk_m + place, carried_m, there)
    if strange is not None:
        if tl.max(bad.to(tl.int32), 0) > 0:
            tl.store(strange, 1)


@triton.jit(do_not_specialize=["num_chunks", "batch"])
def _scan(chunk_b, chunk_m, num_chunks, batch, CHUNKS: tl.constexpr, ROWS: tl.constexpr):
    """G in the first step of each chunk, in the place of its b: there the chunk of the steps before has its end."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    carried = tl.zeros((ROWS,), tl.float64)
    for first in range(0, num_chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)
        there = (chunk < num_chunks)[:, None] & (row < batch)[None, :]
        at = chunk[:, None].to(tl.int64) * batch + row[None, :]
        m, b = tl.load(chunk_m + at, there, 1.0), tl.load(chunk_b + at, there, 0.0)
        m, b = tl.associative_scan((m, b), 0, _then)
        whole = b + _times(m, carried[None, :])
        tl.store(chunk_b + at, whole, there)
        carried = tl.sum(tl.where(tl.arange(0, CHUNKS)[:, None] == CHUNKS - 1, whole, 0.0), 0)


@triton.jit(do_not_specialize=["n", "batch", "steps"])
def _add(out, share, chunk_b, strange, n, batch, steps, STEPS: tl.constexpr, ROWS: tl.constexpr):
    """What G at the end of its chunk adds to each target."""
    chunk = tl.program_id(1) + 1
    end = n - chunk * steps
    start = tl.maximum(end - steps, 0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    carried = tl.load(chunk_b + (chunk - 1).to(tl.int64) * batch + row, row < batch, 0.0)
    bad = tl.zeros((STEPS, ROWS), tl.int1)
    for first in range(start, end, STEPS):
        t = first + tl.arange(0, STEPS)
        at = t[:, None].to(tl.int64) * batch + row[None, :]
        there = (t < end)[:, None] & (row < batch)[None, :]
        gain = tl.load(share + at, there, 0.0).to(tl.float64)
        whole = tl.load(out + at, there, 0.0).to(tl.float64) + _times(gain, carried[None, :])
        tl.store(out + at, whole, there)
        if strange is not None:
            bad = bad | (there & ~_is_finite(whole))
    if strange is not None:
        if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
            tl.store(strange, 1)


def run(
    *,
    r: Tensor,
    discount: Tensor,
    q: Tensor | None = None,
    pi: Tensor | None = None,
    a: Tensor | None = None,
    mu_a: Tensor | None = None,
    c: Tensor | None = None,
    q_a: Tensor | None = None,
    expected_q: Tensor | None = None,
    reset: Tensor | None = None,
    mask: Tensor | None = None,
    kind: int = formulas.GIVEN,
    lambda_: float = 1.0,
    as_targets: bool = True,
    tolerance: float | None = None,
) -> tuple[Tensor, bool]:
    """Targets or corrections, and whether something looked strange; nothing is looked at without a `tolerance`.

    From `q`, `pi`, `a` and what a fused trace reads, or from `q_a`, `expected_q` and `c`.
    """
    n, num_actions = r.shape[0], 1 if q is None else q.shape[-1]
    batch = r.numel() // n
    plan = _plan(n, batch, num_actions)
    out = torch.empty_like(r)
    share = chunk_b = chunk_m = strange = None
    if plan.num_chunks > 1:
        share = torch.empty_like(r)
        chunk_b, chunk_m = r.new_empty((2, plan.num_chunks, batch), dtype=torch.float64)
    if tolerance is not None:
        strange = torch.zeros(1, dtype=torch.int32, device=r.device)
    _steps[(plan.num_groups, plan.num_chunks)](
        q,
        pi,
        a,
        r,
        discount,
        mu_a,
        c,
        q_a,
        expected_q,
        None if reset is None else reset.view(torch.int8),
        None if mask is None else mask.view(torch.int8),
        out,
        share,
        chunk_b,
        chunk_m,
        strange,
        n,
        batch,
        plan.steps,
        lambda_,
        0.0 if tolerance is None else tolerance,
        KIND=kind,
        AS_TARGETS=as_targets,
        A=num_actions,
        WIDTH=plan.width,
        STEPS=plan.tile,
        ROWS=plan.rows,
        num_warps=plan.num_warps,
    )
    if plan.num_chunks > 1:
        at_once, rows = min(256, _power_of_2(plan.num_chunks)), min(128, _power_of_2(batch))
        _scan[(-(-batch // 8),)](chunk_b, chunk_m, plan.num_chunks, batch, CHUNKS=at_once, ROWS=8)
        _add[(-(-batch // rows), plan.num_chunks - 1)](
            out, share, chunk_b, strange, n, batch, plan.steps, STEPS=1024 // rows, ROWS=rows
        )
    return out, strange is not None and bool(strange.item())


class _Plan(NamedTuple):
    """How a window is shared out among programs."""

    width: int
    """Of a row of actions, rounded up."""
    tile: int
    """Steps that a program takes at once."""
    rows: int
    """Neighbours in the batch that it takes."""
    num_warps: int
    num_groups: int
    """Of neighbours."""
    steps: int
    """Of a chunk."""
    num_chunks: int


@lru_cache(maxsize=256)
def _plan(n: int, batch: int, num_actions: int) -> _Plan:
    """Found by trying: a thread has about one row, so that what is done once a row is not done by several threads."""
    width = _power_of_2(num_actions)
    size = min(256, TILE // width)
    rows = min(size // 4 if width <= 32 else size, _power_of_2(batch))
    tile, num_warps = min(size // rows, _power_of_2(n)), 4 if size == 128 else 8
    num_groups, num_tiles = -(-batch // rows), -(-n // tile)
    num_chunks = max(1, min(BUSY // (num_groups * num_warps), num_tiles // SHORTEST))
    steps = tile * -(-num_tiles // num_chunks)
    return _Plan(width, tile, rows, num_warps, num_groups, steps, -(-n // steps))


def _power_of_2(size: int) -> int:
    """The next one."""
    return 1 << (size - 1).bit_length()
