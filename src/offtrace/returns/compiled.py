"""NumPy through Numba: one pass over the inputs, backwards in time, nothing of their size in between.

With `target_t = r_t + discount_t · w_{t+1}` and `w_t = E_π Q(x_t, ·) + c_t (target_t − Q(x_t, a_t))` every row of
Q and π is read once, and one number per batch element is carried. It is kept in float64, so a long window of
float32 loses nothing to rounding. Indices are unsigned where it matters: Numba tests signed ones for being negative.
"""

import numpy as np
from numba.extending import overload
from numpy import float64, int64, uint64

from offtrace.kernels import jit
from offtrace.returns.lanes import PI_A, Q_A, RUNS_ON, VALUE, C, carry, dots, read_rows, totals
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

GIVEN, ZERO, IS, LAMBDA, TB, RETRACE = range(6)
FUSED = {OneStep: ZERO, ImportanceSampling: IS, QLambda: LAMBDA, TreeBackup: TB, Retrace: RETRACE}
"""Rows of Table 1 whose c is computed inside the kernel; any other Markov trace hands in its array of c."""

READ_MU = (RETRACE, IS)

RECURSIVE_RETRACE, TRUNCATED_IS, RBIS_ = range(3)
TRAJECTORY_AWARE = {RecursiveRetrace: RECURSIVE_RETRACE, TruncatedIS: TRUNCATED_IS, RBIS: RBIS_}

FINE, STRANGE = 0, 1
"""What a kernel reports: the door then looks for the rule that was broken."""

SLAB = 2048
"""Rows of Q and π taken at once: first summed, then looked up while they are still in the cache."""


@jit()
def _take_care(q, pi, t, b, rows, slab):
    """Where E_π Q came out strange: once more, without reading Q where π is 0."""
    if _finite(slab[VALUE], rows):
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
def _finite(values, count):
    total = values.dtype.type(0)
    for j in range(uint64(count)):
        total += values[j] - values[j]  # 0, or NaN where the value is NaN or infinite
    return total == 0


@jit()
def _coefficients(kind, lambdas, mu_a, batch, at, rows, slab):
    """c, with a λ for each step or for each row; one λ for all comes in later."""
    one = slab.dtype.type(1)
    at = uint64(at)
    if kind == RETRACE:
        for j in range(uint64(rows)):
            ratio = slab[PI_A, j] / mu_a.flat[at + j]
            slab[C, j] = ratio if ratio < one else one
    elif kind == IS:
        for j in range(uint64(rows)):
            slab[C, j] = slab[PI_A, j] / mu_a.flat[at + j]
    elif kind == TB:
        for j in range(uint64(rows)):
            slab[C, j] = slab[PI_A, j]
    else:
        for j in range(uint64(rows)):
            slab[C, j] = 1.0 if kind == LAMBDA else 0.0
    if lambdas.size > 1:
        for j in range(rows):
            t, b = divmod(int64(at) + j, batch)
            slab[C, j] *= lambdas[t, b if lambdas.shape[1] > 1 else 0]


@jit()
def _first_step(r, discount, mask, out, at, count, carried):
    """Step 0, which needs nothing of its own row of Q and π."""
    at = uint64(at)
    for j in range(uint64(count)):
        d = float64(discount.flat[at + j])
        out.flat[at + j] = float64(r.flat[at + j]) + (d * carried[j] if d != 0 else 0.0)
    if mask.size > 0:
        for j in range(uint64(count)):
            out.flat[at + j] = out.flat[at + j] if mask.flat[at + j] else 0


@jit()
def _cut(reset, mask, out, at, count, carried, slab, row):
    """Nothing is carried over the start of an episode or a row that is no step."""
    if reset.size > 0:
        for j in range(count):
            carried[j] = slab[VALUE, row + j] if reset.flat[at + j] else carried[j]
    if mask.size > 0:
        for j in range(count):
            carried[j] = carried[j] if mask.flat[at + j] else slab[VALUE, row + j]
            out.flat[at + j] = out.flat[at + j] if mask.flat[at + j] else 0


@jit()
def _real(mask, i):
    return mask.size == 0 or mask.flat[i]


@jit()
def _actions_exist(a, mask, at, rows, num_actions):
    """Those of real steps."""
    lost = False
    for i in range(uint64(at), uint64(at + rows)):
        lost |= uint64(a.flat[i]) >= uint64(num_actions)  # a negative one is beyond the last, too
    if lost and mask.size > 0:
        lost = False
        for i in range(at, at + rows):
            lost |= mask.flat[i] and not 0 <= a.flat[i] < num_actions
    return not lost


@jit()
def _crosses(reset, mask, discount, batch, at, rows):
    """Whether a real step is discounted into another episode's first row."""
    for i in range(max(at, batch), at + rows):
        if reset.flat[i] and discount.flat[i - batch] != 0 and _real(mask, i) and _real(mask, i - batch):
            return True
    return False


@jit()
def _distributions(pi, t, b, at, rows, discount, mask, batch, tolerance, scratch):
    """Whether the rows of π that are read, as a step's own or as a successor, are distributions."""
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
    """Comparisons with NaN are False, and inf − inf is NaN."""
    return (d >= 0) & (d <= 1) & (r - r == 0) & (q_a - q_a == 0) & (target - target == 0)


@jit()
def _steps(r, discount, slab, mu_a, target, mask, at, rows, tolerance):
    """Whether real steps hold numbers that may be used; a `tolerance` below 0 leaves out μ."""
    bad = 0
    at, rows = uint64(at), uint64(rows)
    for j in range(rows):
        good = _usable(r.flat[at + j], discount.flat[at + j], slab[Q_A, j], target.flat[at + j])
        bad += 0 if good else 1
    if tolerance >= 0:
        for i in range(at, at + rows):
            bad += 0 if (mu_a.flat[i] > 0) & (mu_a.flat[i] <= 1 + tolerance) else 1
    if bad > 0 and mask.size > 0:  # were they real?
        bad = 0
        for j in range(rows):
            good = _usable(r.flat[at + j], discount.flat[at + j], slab[Q_A, j], target.flat[at + j])
            if tolerance >= 0:
                good &= (mu_a.flat[at + j] > 0) & (mu_a.flat[at + j] <= 1 + tolerance)
            bad += 1 if mask.flat[at + j] and not good else 0
    return bad == 0


@jit()
def _fit(kind, q, pi, a, r, discount, mu_a, reset, mask):
    """Whether these are the shapes of one window, with something in it."""
    n, batch = r.shape
    fit = q.shape[0] == n + 1 and q.shape[1] == batch and pi.shape == q.shape and q.size > 0 and r.size > 0
    fit &= a.shape == r.shape and discount.shape == r.shape
    fit &= mu_a.shape == r.shape or not (kind == RETRACE or kind == IS)
    return fit and (reset.size == 0 or reset.shape == r.shape) and (mask.size == 0 or mask.shape == r.shape)


@jit()
def _targets(
    kind, lambdas, q, pi, a, r, discount, mu_a, c_given, q_a_given, reset, mask, out, start, stop, tolerance
):
    """Eq. 3 on the batch elements start … stop; the checks of values are off where `tolerance` < 0.

    Rows are counted on from step to step, row i = t · batch + b, and come in slabs: a part of one step, or some steps
    of a batch whose rows are neighbours in memory.
    Reports FINE, or that something is strange: not that it is wrong, the door looks more closely then.
    """
    if not _fit(kind, q, pi, a, r, discount, mu_a, reset, mask):
        return STRANGE
    n, batch = r.shape
    validate, cut = tolerance >= 0, reset.size > 0 or mask.size > 0
    unread = 0 if validate else 1  # row 0 of Q and π is read by nobody but the checks
    lambda_ = lambdas[0, 0] if lambdas.size == 1 and kind != GIVEN else 1.0
    fine = True
    carried = np.empty(min(SLAB, stop - start), float64)
    slab = np.empty((4, min(SLAB, n * (stop - start))), q.dtype)
    neighbours = RUNS_ON and q.strides[0] == batch * q.strides[1] and pi.strides[0] == batch * pi.strides[1]
    for b in range(start, stop, SLAB):
        count = min(SLAB, stop - b)
        dots(q, pi, n, b, count, slab[VALUE])
        _take_care(q, pi, n, b, count, slab)
        for j in range(count):
            carried[j] = slab[VALUE, j]
        if validate:
            fine &= _distributions(pi, n, b, n * batch + b, count, discount, mask, batch, tolerance, slab[C])
        steps = SLAB // count if neighbours and count == batch else 1
        above = n
        while above > unread:
            t = max(above - steps, unread)
            rows, at = count * (above - t), t * batch + b
            above = t
            read_rows(q, pi, a, t, b, at, rows, slab)
            _take_care(q, pi, t, b, rows, slab)
            fine &= _actions_exist(a, mask, at, rows, q.shape[2])
            if q_a_given.size > 0:
                for j in range(rows):
                    slab[Q_A, j] = q_a_given.flat[at + j]
            if kind == GIVEN:
                for j in range(rows):
                    slab[C, j] = c_given.flat[at + j]
            else:
                _coefficients(kind, lambdas, mu_a, batch, at, rows, slab)
            if not (validate or cut):
                carry(r, discount, out, at, rows // count, count, carried, lambda_, slab, 0)
                continue
            for row in range(rows - count, -1, -count):
                carry(r, discount, out, at + row, 1, count, carried, lambda_, slab, row)
                if cut:
                    _cut(reset, mask, out, at + row, count, carried, slab, row)
                if validate and at + row >= batch:
                    fine &= _finite(carried, count)
            if validate:
                fine &= _finite(slab[VALUE], rows)
                mu_tolerance = tolerance if kind == RETRACE or kind == IS else -1.0
                fine &= _steps(r, discount, slab, mu_a, out, mask, at, rows, mu_tolerance)
                fine &= _distributions(pi, t, b, at, rows, discount, mask, batch, tolerance, slab[C])
                fine &= reset.size == 0 or not _crosses(reset, mask, discount, batch, at, rows)
        if not validate:
            fine &= _actions_exist(a, mask, b, count, q.shape[2])
            _first_step(r, discount, mask, out, b, count, carried)
    return FINE if fine else STRANGE


def _if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    """Chosen by the types that come in, so that nobody has to look at each array before the call."""


@overload(_if_ready)
def _choose(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    def run(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
        lambdas, nothing, no_ends = np.full((1, 1), lambda_), r[:0], np.empty((0, 0), np.bool_)
        given = (q, pi, a, r, discount, mu_a, nothing, nothing, no_ends, no_ends, out)
        return _targets(kind, lambdas, *given, 0, r.shape[1], tolerance)

    def decline(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
        return STRANGE

    steps = (a, r, discount, mu_a, out)
    plain = all(array.layout == "C" and array.aligned and array.mutable for array in (q, pi, *steps))
    return run if plain and q.ndim == pi.ndim == 3 and all(array.ndim == 2 for array in steps) else decline


@jit()
def _targets_if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance):
    """All windows, with neither ends nor anything else given; STRANGE for arrays that `_targets` is not made for."""
    return _if_ready(kind, lambda_, q, pi, a, r, discount, mu_a, out, tolerance)


@jit()
def _fold(q_a, expected_q, r, discount, c, reset, mask, as_targets, out, start, stop):
    """Δ_t = δ_t + discount_t c_{t+1} Δ_{t+1}, or the targets Q + Δ, where E_π Q is given."""
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
    """The gradient of `_fold`: e_t = g_t + discount_{t−1} c_t e_{t−1} reaches δ_t, forwards in time.

    Those of the discounts and of c only where there is room for them.
    """
    n = gradient.shape[0]
    carried = np.zeros(stop - start, float64)  # discount_{t−1} e_{t−1}
    for t in range(n):
        for b in range(start, stop):
            goes_on = (reset.size == 0 or not reset[t, b]) and (mask.size == 0 or mask[t, b])
            real = mask.size == 0 or mask[t, b]
            before = carried[b - start] if goes_on else 0.0
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
    """The double sum: from every start s, β is carried forwards until the trajectory ends. Batch-major."""
    n = delta.shape[1]
    for b in range(start, stop):
        for s in range(n):
            total = float64(one_step[b, s])
            reach, beta, lambda_product, log_product = 1.0, 1.0, 1.0, 0.0
            for t in range(s + 1, n):
                reach *= discount[b, t - 1]
                if cut[b, t] or reach == 0:
                    break
                step_lambda = lambdas[t if lambdas.shape[0] > 1 else 0, b if lambdas.shape[1] > 1 else 0]
                lambda_product *= step_lambda
                if kind == TRUNCATED_IS:
                    log_product += log_ratio[b, t]
                    beta = lambda_product * (np.exp(log_product) if log_product < 0 else 1.0)
                    gone = lambda_product == 0 or log_product == -np.inf
                else:
                    carried = beta * ratio[b, t]
                    if kind == RECURSIVE_RETRACE:
                        beta = step_lambda * (carried if carried < 1 else 1.0)
                    else:
                        beta = carried if carried < lambda_product else lambda_product
                    gone = beta == 0
                if gone:  # for good
                    break
                total += reach * beta * delta[b, t]
            out[b, s] = total
