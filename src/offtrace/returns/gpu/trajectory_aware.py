"""The kernels of trajectory-aware traces: the double sum, with a β for every start.

    target_s = one_step_s + Σ_{t > s} (Π_{i=s..t−1} discount_i) β_{s,t} δ_t        until the trajectory is cut

δ_t is one_step_t − Q(x_t, a_t). The first kernel writes one_step, Q(x, a) and log ρ of every row. In the second, a
program takes some neighbouring starts of some neighbours in the batch, and goes through the steps after them, all
starts at once:

    step t       s   s+1  s+2  s+3  s+4
    start s      ·    ●    ●    ●    ●        ● the start takes part in the step
    start s+1    ·    ·    ●    ●    ●
    start s+2    ·    ·    ·    ●    ●

A step is read once for all starts of the program. So the work is O(n²), the memory O(n). A program stops once none of
its starts is reached any more.
"""

import triton
import triton.language as tl

from offtrace import likelihoods
from offtrace.returns.gpu.rows import (
    fits,
    flags_of,
    load_rows,
    load_steps,
    numbers_of_steps,
    places,
    taken,
    tile_of_program,
    times,
)
from offtrace.returns.gpu.rules import read_policy, wrong_rows
from offtrace.traces import formulas

SMALLEST_LOG = tl.constexpr(likelihoods.SMALLEST_LOG)
RECURSIVE_RETRACE = tl.constexpr(formulas.KIND_RECURSIVE_RETRACE)
TRUNCATED_IS = tl.constexpr(formulas.KIND_TRUNCATED_IS)


@triton.jit
def log_ratio_of(pi_a, mu_a, mode: tl.constexpr):
    """Return log ρ; −inf where π is 0."""
    if mode.logs:
        found = pi_a - mu_a
    else:
        log_mu = tl.where(mu_a > 0, tl.log(tl.where(mu_a > 0, mu_a, 1.0)), SMALLEST_LOG)
        found = tl.where(pi_a > 0, tl.log(tl.where(pi_a > 0, pi_a, 1.0)) - log_mu, float("-inf"))
    return found


@triton.jit(do_not_specialize=["n", "batch"])
def all_steps(w, one_step, q_taken, log_ratio, strange, n, batch, tolerance: tl.float64, mode: tl.constexpr):
    """Write one_step_t, and Q(x, a) and log ρ of step t+1, with 0 in masked rows."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    tolerance = tl.full((), tolerance, real)
    neighbour, above = tile_of_program(n, batch, mode)
    in_batch = neighbour < batch
    t, base, here, state = places(above, neighbour, n, batch, mode)
    step = 1 if mode.batch_major else batch
    steps = numbers_of_steps(load_steps(w, above, neighbour, in_batch, n, batch, 1.0, mode), mode)
    is_real, goes_on, continues = flags_of(w, steps, t, neighbour, n, batch, mode)
    reward = tl.where(is_real, steps[0][0], 0.0)
    discount = tl.where(is_real, steps[0][1], 0.0)
    there = in_batch & (t >= -1)
    rows = load_rows(w, there, base, here, state, mode)
    known, q_a, value, pi_a, mu_a = taken(w, rows, steps, is_real, goes_on, base, here, state, mode)
    ahead, total, _ = read_policy(rows, value, tolerance, mode)
    if w.expected_q is not None:
        ahead = steps[0][2]
    now = tl.where(is_real, reward + times(discount, ahead), 0.0)
    tl.store(one_step + base + here, now, in_batch & (t >= 0))
    has_next = there & (t + 1 < n)
    found = log_ratio_of(pi_a, mu_a, mode)
    tl.store(q_taken + base + step + here, tl.where(goes_on, q_a, 0.0), has_next)
    tl.store(log_ratio + base + step + here, tl.where(goes_on, found, 0.0), has_next)
    if mode.checks:
        bad = wrong_rows(w, is_real, goes_on, continues, reward, discount, ahead, total, known, q_a, pi_a, mu_a,
                         tolerance, mode)  # fmt: skip
        if tl.max(bad.to(tl.int32), 0) > 0:
            tl.store(strange, 1)


@triton.jit
def next_beta(beta, ratio, lambda_, lambda_product, log_product, kind: tl.constexpr):
    """Return β_t from β_{t−1}, (starts, neighbours), and ρ_t and λ_t, (1, neighbours)."""
    carried = times(beta, ratio)
    if kind == RECURSIVE_RETRACE:
        found = lambda_ * tl.where(carried < 1, carried, 1.0)
    elif kind == TRUNCATED_IS:
        found = lambda_product * tl.exp(tl.where(log_product < 0, log_product, 0.0))
    else:
        found = tl.where(carried < lambda_product, carried, lambda_product)  # RBIS
    return found


@triton.jit(do_not_specialize=["n", "batch"])
def double_sum(w, one_step, q_taken, log_ratio, out, strange, n, batch, lambda_: tl.float64,
               mode: tl.constexpr, STARTS: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr):  # fmt: skip
    """Write the targets of some starts of some neighbours."""
    num_groups = tl.cdiv(batch, LANES)
    lane = (tl.program_id(0) % num_groups).to(tl.int64) * LANES + tl.arange(0, LANES)
    earliest = tl.program_id(0) // num_groups * STARTS
    start = earliest + tl.arange(0, STARTS)
    in_batch = lane < batch
    if mode.batch_major:
        first_row = lane * n
        step = 1
    else:
        first_row = lane
        step = batch
    own = first_row[None, :] + start[:, None].to(tl.int64) * step
    there = in_batch[None, :] & (start < n)[:, None]
    total = tl.load(one_step + own, there, 0.0).to(tl.float64)
    beta = tl.full((STARTS, LANES), 1.0, tl.float64)
    lambda_product = beta
    log_product = tl.zeros((STARTS, LANES), tl.float64)
    reach = tl.where(there, beta, 0.0)  # Π discount, and 0 behind a cut

    t = earliest + 1
    is_alive = t < n
    while is_alive:
        for _ in range(AT_ONCE):
            at = first_row + t.to(tl.int64) * step
            reads = in_batch & (t < n)
            before = tl.load(w.discount + at - step, reads, 0.0).to(tl.float64)
            is_cut = ~reads
            if w.mask is not None:
                is_cut = is_cut | ~tl.load(w.mask + at, reads, False)
            if w.reset is not None:
                is_cut = is_cut | tl.load(w.reset + at, reads, False)
            now = tl.load(one_step + at, reads, 0.0).to(tl.float64)
            delta = now - tl.load(q_taken + at, reads, 0.0).to(tl.float64)
            log_rho = tl.load(log_ratio + at, reads, 0.0).to(tl.float64)
            lambda_t = tl.full((LANES,), 1.0, tl.float64) * lambda_
            if w.lambda_ is not None:
                if mode.lambda_per_step:
                    lambda_t = lambda_t * 0 + tl.load(w.lambda_ + t, t < n, 0.0).to(tl.float64)
                else:
                    lambda_t = tl.load(w.lambda_ + at, reads, 0.0).to(tl.float64)
            takes_part = (start < t)[:, None]
            passed = tl.where(is_cut[None, :], 0.0, times(reach, before[None, :]))
            reach = tl.where(takes_part, passed, reach)
            lambda_product = tl.where(takes_part, lambda_product * lambda_t[None, :], lambda_product)
            log_product = tl.where(takes_part, log_product + log_rho[None, :], log_product)
            following = next_beta(
                beta, tl.exp(log_rho)[None, :], lambda_t[None, :], lambda_product, log_product, mode.kind
            )
            beta = tl.where(takes_part, following, beta)
            total += tl.where(takes_part, times(times(reach, beta), delta[None, :]), 0.0)
            t += 1
        is_alive = (t < n) & (tl.max(tl.max(tl.abs(reach), 1), 0) > 0)
    if w.mask is not None:
        total = tl.where(tl.load(w.mask + own, there, False), total, 0.0)
    tl.store(out + own, total, there)
    if strange is not None:
        bad = there & ~fits(total, mode)
        if tl.max(tl.max(bad.to(tl.int32), 1), 0) > 0:
            tl.store(strange, 1)
