"""NumPy through Numba: one pass over the inputs, backwards in time, with little memory in between.

    w_n      = E_π Q(x_n, ·)
    target_t = r_t + discount_t · w_{t+1}                                   for t = n−1, …, 0
    w_t      = E_π Q(x_t, ·) + c_t (target_t − Q(x_t, a_t))

This is Eq. 3 on samples: every row of Q and π is read once, and one number w per batch element is
carried from step to step. It is kept in float64, so a long window of float32 does not accumulate
rounding errors. A factor discount_t or c_t of 0 makes its product 0, whatever the other factor
holds.

The rows of a window are numbered through all its steps, row i = t · batch + b, and taken in slabs
of at most SLAB rows. A slab is first summed, then looked up while it is still in the cache. The
loops over its rows are in `simd.py`.

    a batch larger than SLAB:                     a smaller batch whose steps are neighbours in memory:
    a slab is a part of one step                  a slab is several steps

         b ▸                                           b ▸
    t  ┌─────────┬─────────┬──────┐               t  ┌──────┐
    ▾  │    3    │    6    │  9   │               ▾  │   2  │
       ├─────────┼─────────┼──────┤                  │      │
       │    2    │    5    │  8   │                  ├──────┤
       ├─────────┼─────────┼──────┤                  │   1  │
       │    1    │    4    │  7   │                  │      │
       └─────────┴─────────┴──────┘                  └──────┘

Indices are unsigned where it matters for speed: Numba tests signed ones for being negative.
"""

import numpy as np
from numba.extending import overload
from numpy import float64, int64, uint64

from offtrace.kernels import jit
from offtrace.returns.simd import PI_A, Q_A, RUNS_ON, VALUE, C, carry, dots, read_rows, totals
from offtrace.traces import (
    RBIS,
    ImportanceSampling,
    OneStep,
    QLambda,
    RecursiveRetrace,
    Retrace,
    TreeBackup,
    TruncatedIS,
)
from offtrace.traces.formulas import (
    GIVEN,
    KIND_IS,
    KIND_ONE_STEP,
    KIND_Q_LAMBDA,
    KIND_RBIS,
    KIND_RECURSIVE_RETRACE,
    KIND_RETRACE,
    KIND_TREE_BACKUP,
    KIND_TRUNCATED_IS,
    KINDS,
    factor,
    is_cut,
    next_beta,
)

FUSED = {cls: KINDS[cls] for cls in (OneStep, ImportanceSampling, QLambda, TreeBackup, Retrace)}
"""Traces whose c is computed inside the kernel; any other Markov trace hands in its array of c."""

READ_MU = (KIND_RETRACE, KIND_IS)

TRAJECTORY_AWARE = {cls: KINDS[cls] for cls in (RecursiveRetrace, TruncatedIS, RBIS)}

FINE = 0
STRANGE = 1
"""A kernel's report: nothing looks wrong, or the input checks have to look for the rule that was broken."""

SLAB = 2048
"""Rows of Q and π per slab."""


# -- the values of a slab ------------------------------------------------------------------------


@jit()
def _without_unread_actions(q, pi, t, b, rows, slab):
    """Recompute the E_π Q that are not finite: Q may be −inf or NaN where π is 0, and is not read there."""
    if _all_finite(slab[VALUE], rows):
        return
    for j in range(rows):
        if slab[VALUE, j] - slab[VALUE, j] == 0:
            continue
        total = q.dtype.type(0)
        for i in range(q.shape[2]):
            if pi[t, b + j, i] != 0:
                total += pi[t, b + j, i] * q[t, b + j, i]
        slab[VALUE, j] = total


@jit(fastmath={"reassoc"})
def _all_finite(values, count):
    """Whether the first `count` values are finite, in one sum that the compiler can make vectors of."""
    total = values.dtype.type(0)
    for j in range(uint64(count)):
        total += values[j] - values[j]  # 0, or NaN where the value is NaN or infinite
    return total == 0


@jit()
def _coefficients(kind, lambdas, mu_a, batch, at, rows, slab):
    """Fill the slab's c. A λ per step or per row comes in here; one λ for all is a factor in `carry`.

    One loop per kind, as `mu_a` may be empty where it is not read, and as a constant kind leaves
    one formula in it.
    """
    at = uint64(at)
    if kind == KIND_RETRACE:
        for j in range(uint64(rows)):
            slab[C, j] = factor(KIND_RETRACE, 0.0, slab[PI_A, j], mu_a.flat[at + j])
    elif kind == KIND_IS:
        for j in range(uint64(rows)):
            slab[C, j] = factor(KIND_IS, 0.0, slab[PI_A, j], mu_a.flat[at + j])
    elif kind == KIND_TREE_BACKUP:
        for j in range(uint64(rows)):
            slab[C, j] = factor(KIND_TREE_BACKUP, 0.0, slab[PI_A, j], slab[PI_A, j])
    elif kind == KIND_Q_LAMBDA:
        for j in range(uint64(rows)):
            slab[C, j] = factor(KIND_Q_LAMBDA, 0.0, slab[PI_A, j], slab[PI_A, j])
    else:
        for j in range(uint64(rows)):
            slab[C, j] = factor(KIND_ONE_STEP, 0.0, slab[PI_A, j], slab[PI_A, j])
    if lambdas.size > 1:
        for j in range(rows):
            t, b = divmod(int64(at) + j, batch)
            slab[C, j] *= lambdas[t, b if lambdas.shape[1] > 1 else 0]


# -- the recursion over a slab -------------------------------------------------------------------


@jit()
def _first_step(r, discount, mask, out, at, count, carried):
    """Target of step 0, which needs nothing of its own row of Q and π."""
    at = uint64(at)
    for j in range(uint64(count)):
        d = float64(discount.flat[at + j])
        out.flat[at + j] = float64(r.flat[at + j]) + (d * carried[j] if d != 0 else 0.0)
    if mask.size > 0:
        for j in range(uint64(count)):
            out.flat[at + j] = out.flat[at + j] if mask.flat[at + j] else 0


@jit()
def _cut(reset, mask, out, at, count, carried, slab, row):
    """Take c as 0 at the first step of an episode and at a masked row, whose target is 0."""
    if reset.size > 0:
        for j in range(count):
            carried[j] = slab[VALUE, row + j] if reset.flat[at + j] else carried[j]
    if mask.size > 0:
        for j in range(count):
            carried[j] = carried[j] if mask.flat[at + j] else slab[VALUE, row + j]
            out.flat[at + j] = out.flat[at + j] if mask.flat[at + j] else 0


@jit(inline="always")
def _carry_step_by_step(r, discount, reset, mask, out, at, rows, count, carried, lambda_, slab, validate):
    """The recursion with a look at every step, from the slab's last: cuts, and whether w is still finite."""
    fine = True
    for row in range(rows - count, -1, -count):
        carry(r, discount, out, at + row, 1, count, carried, lambda_, slab, row)
        if reset.size > 0 or mask.size > 0:
            _cut(reset, mask, out, at + row, count, carried, slab, row)
        if validate and at + row >= r.shape[1]:  # nothing reads the w of step 0
            fine &= _all_finite(carried, count)
    return fine


# -- checks of a slab: whether its rows look as they should, masked rows excepted ----------------


@jit()
def _real(mask, i):
    """Whether row i is a real step."""
    return mask.size == 0 or mask.flat[i]


@jit()
def _actions_exist(a, mask, at, rows, num_actions):
    """Whether the actions of real steps are below `num_actions`."""
    lost = False
    for i in range(uint64(at), uint64(at + rows)):
        lost |= uint64(a.flat[i]) >= uint64(num_actions)  # a negative one is huge, too
    if lost and mask.size > 0:
        lost = False
        for i in range(at, at + rows):
            lost |= mask.flat[i] and not 0 <= a.flat[i] < num_actions
    return not lost


@jit()
def _crosses(reset, mask, discount, batch, at, rows):
    """Whether a real step with a discount above 0 is followed by the first row of another episode."""
    for i in range(max(at, batch), at + rows):
        if reset.flat[i] and discount.flat[i - batch] != 0 and _real(mask, i) and _real(mask, i - batch):
            return True
    return False


@jit()
def _distributions(pi, t, b, at, rows, discount, mask, batch, tolerance, scratch):
    """Whether the rows of π that are read, as a step's own or as its successor, are distributions."""
    totals(pi, t, b, rows, scratch)
    off = 0
    for j in range(uint64(rows)):
        off += 0 if abs(scratch[j] - 1) <= tolerance else 1
    if off == 0:
        return True
    for i in range(at, at + rows):
        if not abs(scratch[i - at] - 1) <= tolerance:
            own = i < discount.size and _real(mask, i)
            if own or (i >= batch and _real(mask, i - batch) and discount.flat[i - batch] != 0):
                return False
    return True


@jit(inline="always")
def _usable(r, d, q_a, target):
    """Whether r, Q and the target are finite and 0 ≤ d ≤ 1: comparisons with NaN are False, inf − inf is NaN."""
    return (d >= 0) & (d <= 1) & (r - r == 0) & (q_a - q_a == 0) & (target - target == 0)


@jit()
def _steps(r, discount, slab, mu_a, target, mask, at, rows, tolerance):
    """Whether the numbers of real steps are in range; a `tolerance` below 0 leaves out μ."""
    bad = 0
    at, rows = uint64(at), uint64(rows)
    for j in range(rows):
        good = _usable(r.flat[at + j], discount.flat[at + j], slab[Q_A, j], target.flat[at + j])
        bad += 0 if good else 1
    if tolerance >= 0:
        for i in range(at, at + rows):
            bad += 0 if (mu_a.flat[i] > 0) & (mu_a.flat[i] <= 1 + tolerance) else 1
    if bad > 0 and mask.size > 0:  # in real steps?
        bad = 0
        for j in range(rows):
            good = _usable(r.flat[at + j], discount.flat[at + j], slab[Q_A, j], target.flat[at + j])
            if tolerance >= 0:
                good &= (mu_a.flat[at + j] > 0) & (mu_a.flat[at + j] <= 1 + tolerance)
            bad += 1 if mask.flat[at + j] and not good else 0
    return bad == 0


@jit()
def _fit(kind, q, pi, a, r, discount, mu_a, reset, mask):
    """Whether these are the shapes of one window that is not empty."""
    n, batch = r.shape
    fit = q.shape[0] == n + 1 and q.shape[1] == batch and pi.shape == q.shape and q.size > 0 and r.size > 0
    fit &= a.shape == r.shape and discount.shape == r.shape
    fit &= mu_a.shape == r.shape or not (kind == KIND_RETRACE or kind == KIND_IS)
    return fit and (reset.size == 0 or reset.shape == r.shape) and (mask.size == 0 or mask.shape == r.shape)


@jit(inline="always")
def _slab_is_fine(kind, pi, r, discount, mu_a, reset, mask, out, t, b, at, rows, tolerance, slab):
    """Everything that is checked once a slab's targets are there; overwrites the slab's c."""
    batch = r.shape[1]
    mu_tolerance = tolerance if kind == KIND_RETRACE or kind == KIND_IS else -1.0
    fine = _all_finite(slab[VALUE], rows)
    fine &= _steps(r, discount, slab, mu_a, out, mask, at, rows, mu_tolerance)
    fine &= _distributions(pi, t, b, at, rows, discount, mask, batch, tolerance, slab[C])
    fine &= reset.size == 0 or not _crosses(reset, mask, discount, batch, at, rows)
    return fine


# -- the kernels ---------------------------------------------------------------------------------


@jit()
def _targets(
    kind, lambdas, q, pi, a, r, discount, mu_a, c_given, q_a_given, reset, mask, out, start, stop, tolerance
):
    """The targets of batch elements start … stop − 1, written to `out`; values are checked where `tolerance` ≥ 0.

    Arrays that are not given are empty. Returns FINE or STRANGE; strange is not always wrong, the
    input checks decide.
    """
    if not _fit(kind, q, pi, a, r, discount, mu_a, reset, mask):
        return STRANGE
    n, batch = r.shape
    validate = tolerance >= 0
    look_at_steps = validate or reset.size > 0 or mask.size > 0
    first = 0 if validate else 1  # row 0 of Q and π is read by the checks only
    lambda_ = lambdas[0, 0] if lambdas.size == 1 and kind != GIVEN else 1.0
    neighbours = RUNS_ON and q.strides[0] == batch * q.strides[1] and pi.strides[0] == batch * pi.strides[1]
    carried = np.empty(min(SLAB, stop - start), float64)  # w_{t+1}
    slab = np.empty((4, min(SLAB, n * (stop - start))), q.dtype)
    fine = True
    for b in range(start, stop, SLAB):
        count = min(SLAB, stop - b)
        # w_n = E_π Q(x_n, ·)
        dots(q, pi, n, b, count, slab[VALUE])
        _without_unread_actions(q, pi, n, b, count, slab)
        for j in range(count):
            carried[j] = slab[VALUE, j]
        if validate:
            fine &= _distributions(pi, n, b, n * batch + b, count, discount, mask, batch, tolerance, slab[C])
        # steps t … above − 1, from the last slab to the first
        steps = SLAB // count if neighbours and count == batch else 1
        above = n
        while above > first:
            t = max(above - steps, first)
            rows = count * (above - t)
            at = t * batch + b
            # E_π Q(x, ·), Q(x, a), π(a|x) and c of the slab's rows
            read_rows(q, pi, a, t, b, at, rows, slab)
            _without_unread_actions(q, pi, t, b, rows, slab)
            if q_a_given.size > 0:
                for j in range(rows):
                    slab[Q_A, j] = q_a_given.flat[at + j]
            if kind == GIVEN:
                for j in range(rows):
                    slab[C, j] = c_given.flat[at + j]
            else:
                _coefficients(kind, lambdas, mu_a, batch, at, rows, slab)
            fine &= _actions_exist(a, mask, at, rows, q.shape[2])
            # the recursion through the slab's steps, from the last to the first
            if look_at_steps:
                fine &= _carry_step_by_step(
                    r, discount, reset, mask, out, at, rows, count, carried, lambda_, slab, validate
                )
            else:
                carry(r, discount, out, at, above - t, count, carried, lambda_, slab, 0)
            if validate:
                fine &= _slab_is_fine(kind, pi, r, discount, mu_a, reset, mask, out, t, b, at, rows, tolerance, slab)
            above = t
        if first == 1:
            fine &= _actions_exist(a, mask, b, count, q.shape[2])
            _first_step(r, discount, mask, out, b, count, carried)
    return FINE if fine else STRANGE


def _if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    """Overloaded by the types of the arguments: Numba's dispatch checks the arrays, which Python would do slower."""


@overload(_if_ready)
def _choose(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    def run(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
        lambdas = np.full((1, 1), lambda_)
        nothing = r[:0]
        no_ends = np.empty((0, 0), np.bool_)
        given = (q, pi, a, r, discount, mu_a, nothing, nothing, no_ends, no_ends, out)
        return _targets(kind, lambdas, *given, 0, r.shape[1], tolerance)

    def decline(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
        return STRANGE

    steps = (a, r, discount, mu_a, out)
    plain = all(array.layout == "C" and array.aligned and array.mutable for array in (q, pi, *steps))
    return run if plain and q.ndim == pi.ndim == 3 and all(array.ndim == 2 for array in steps) else decline


@jit()
def _targets_if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    """`_targets` for the whole batch, without resets, mask or given c; STRANGE for arrays it is not compiled for."""
    return _if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance)


@jit()
def _fold(q_a, expected_q, r, discount, c, reset, mask, as_targets, out, start, stop):
    """Δ_t = δ_t + discount_t c_{t+1} Δ_{t+1}, or the targets Q + Δ, for an E_π Q that is given."""
    n = r.shape[0]
    carried = np.zeros(stop - start, float64)  # c_{t+1} Δ_{t+1}
    for back in range(n):
        t = n - 1 - back
        for b in range(start, stop):
            d = float64(discount[t, b])
            ahead = float64(expected_q[t, b]) + carried[b - start]
            target = float64(r[t, b]) + (d * ahead if d != 0 else 0.0)
            correction = target - q_a[t, b]
            out[t, b] = target if as_targets else correction
            more = float64(c[t, b]) * correction
            carried[b - start] = more if c[t, b] != 0 else 0.0
        if reset.size > 0:
            for b in range(start, stop):
                carried[b - start] = 0.0 if reset[t, b] else carried[b - start]
        if mask.size > 0:
            for b in range(start, stop):
                carried[b - start] = carried[b - start] if mask[t, b] else 0.0
                out[t, b] = out[t, b] if mask[t, b] else 0


@jit()
def _fold_backward(
    gradient, correction, expected_q, discount, c, reset, mask, to_delta, to_discount, to_c, start, stop
):
    """The gradient of `_fold`: δ_t gets e_t = g_t + discount_{t−1} c_t e_{t−1}, forwards in time.

    The gradients of the discounts and of c are computed only where `to_discount` and `to_c` are not
    empty.
    """
    n = gradient.shape[0]
    carried = np.zeros(stop - start, float64)  # discount_{t−1} e_{t−1}
    for t in range(n):
        for b in range(start, stop):
            continues = (reset.size == 0 or not reset[t, b]) and (mask.size == 0 or mask[t, b])
            real = mask.size == 0 or mask[t, b]
            before = carried[b - start] if continues else 0.0
            e = float64(gradient[t, b]) + (c[t, b] * before if before != 0 else 0.0)
            e = e if real else 0.0
            to_delta[t, b] = e
            if to_c.size > 0:
                to_c[t, b] = before * correction[t, b] if before != 0 else 0.0
            carried[b - start] = discount[t, b] * e if e != 0 else 0.0
            if to_discount.size == 0:
                continue
            ahead = float64(expected_q[t, b])
            if t + 1 < n:
                cut = (reset.size > 0 and reset[t + 1, b]) or (mask.size > 0 and not mask[t + 1, b])
                if not cut and c[t + 1, b] != 0:
                    ahead += float64(c[t + 1, b]) * correction[t + 1, b]
            unread = discount[t, b] == 0 and ahead - ahead != 0
            to_discount[t, b] = 0.0 if e == 0 or unread else e * ahead


@jit()
def _trajectory_aware(kind, one_step, delta, discount, ratio, log_ratio, lambdas, cut, out, start, stop):
    """The targets of a trajectory-aware trace; arrays are batch-major, (batch, n)."""
    # a constant kind leaves one formula in the loop
    if kind == KIND_TRUNCATED_IS:
        _double_sum(KIND_TRUNCATED_IS, one_step, delta, discount, ratio, log_ratio, lambdas, cut, out, start, stop)
    elif kind == KIND_RECURSIVE_RETRACE:
        _double_sum(
            KIND_RECURSIVE_RETRACE, one_step, delta, discount, ratio, log_ratio, lambdas, cut, out, start, stop
        )
    else:
        _double_sum(KIND_RBIS, one_step, delta, discount, ratio, log_ratio, lambdas, cut, out, start, stop)


@jit(forceinline=True)
def _double_sum(kind, one_step, delta, discount, ratio, log_ratio, lambdas, cut, out, start, stop):
    """target_s = one_step_s + Σ_{t>s} (Π_{i=s..t−1} discount_i) β_{s,t} δ_t, in O(n²).

    From every start s, β is carried forwards until the trajectory is cut.
    """
    n = delta.shape[1]
    for b in range(start, stop):
        for s in range(n):
            total = float64(one_step[b, s])
            reach = 1.0
            beta = 1.0
            lambda_product = 1.0
            log_product = 0.0
            for t in range(s + 1, n):
                reach *= discount[b, t - 1]
                if cut[b, t] or reach == 0:
                    break
                lambda_ = lambdas[t if lambdas.shape[0] > 1 else 0, b if lambdas.shape[1] > 1 else 0]
                lambda_product *= lambda_
                if kind == KIND_TRUNCATED_IS:
                    log_product += log_ratio[b, t]
                beta = next_beta(kind, lambda_, beta, ratio[b, t], lambda_product, log_product)
                if is_cut(kind, beta, lambda_product, log_product):
                    break
                total += reach * beta * delta[b, t]
            out[b, s] = total
