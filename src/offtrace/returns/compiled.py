"""NumPy through Numba: one pass over the inputs, backwards in time, nothing of their size in between.

With `target_t = r_t + discount_t · w_{t+1}` and `w_t = E_π Q(x_t, ·) + c_t (target_t − Q(x_t, a_t))` every row of
Q and π is read once, and one number per batch element is carried. It is kept in float64, so a long window of
float32 loses nothing to rounding. Batch elements go in blocks that stay in the cache.
"""

import numpy as np
from numpy import float64

from offtrace.kernels import jit
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

BLOCK = 1024


@jit(fastmath={"reassoc", "contract", "nsz"})
def _read(q, pi, a, value, q_a, pi_a):
    """E_π Q(x_t, ·), Q(x_t, a_t) and π(a_t|x_t) from rows of Q and π; whether every a_t exists.

    Sums in any order, but keeps NaN and infinities, which tell that Q needs care.
    """
    for j in range(value.size):
        total = q.dtype.type(0)
        for i in range(q.shape[1]):
            total += pi[j, i] * q[j, i]
        value[j] = total
    num_actions = np.uint64(q.shape[1])
    lost = False
    for j in range(value.size):  # the rows are in the cache by now
        action = np.uint64(a[j])  # a negative one is out of range, too
        outside = action >= num_actions
        lost |= outside
        action = np.uint64(0) if outside else action
        q_a[j] = q[j, action]
        pi_a[j] = pi[j, action]
    return not lost


@jit(fastmath={"reassoc"})
def _finite(values):
    total = values.dtype.type(0)
    for j in range(values.size):
        total += values[j] - values[j]  # 0, or NaN where the value is NaN or infinite
    return total == 0


@jit()
def _expect_carefully(q, pi, t, first, value):
    """Where E_π Q came out strange: once more, without reading Q where π is 0."""
    for j in range(value.size):
        if value[j] - value[j] == 0:
            continue
        total = q.dtype.type(0)
        for i in range(q.shape[2]):
            if pi[t, first + j, i] != 0:
                total += pi[t, first + j, i] * q[t, first + j, i]
        value[j] = total


@jit()
def _coefficients(kind, pi_a, mu_a, lambdas, c):
    one = pi_a.dtype.type(1)
    if kind == RETRACE:
        for j in range(c.size):
            ratio = pi_a[j] / mu_a[j]
            c[j] = ratio if ratio < one else one
    elif kind == IS:
        for j in range(c.size):
            c[j] = pi_a[j] / mu_a[j]
    elif kind == TB:
        for j in range(c.size):
            c[j] = pi_a[j]
    else:
        for j in range(c.size):
            c[j] = 1.0 if kind == LAMBDA else 0.0
    if lambdas.size > 1:
        for j in range(c.size):
            c[j] *= lambdas[j]
    elif lambdas[0] != 1:
        for j in range(c.size):
            c[j] *= lambdas[0]


@jit()
def _one_step(r, discount, carried, out):
    for j in range(out.size):
        d = float64(discount[j])
        out[j] = float64(r[j]) + (d * carried[j] if d != 0 else 0.0)


@jit()
def _carry(r, discount, c, value, q_a, carried, out):
    """target_t = r_t + discount_t w_{t+1}, and w_t = E_π Q(x_t, ·) + c_t (target_t − Q(x_t, a_t))."""
    for j in range(out.size):
        d = float64(discount[j])
        target = float64(r[j]) + (d * carried[j] if d != 0 else 0.0)
        out[j] = target
        more = c[j] * (target - float64(q_a[j]))
        carried[j] = float64(value[j]) + (more if c[j] != 0 else 0.0)


@jit()
def _real(mask, t, b):
    return mask.size == 0 or mask[t, b]


@jit()
def _actions_exist(a, mask, t, first, count, num_actions):
    for b in range(first, first + count):
        if _real(mask, t, b) and not 0 <= a[t, b] < num_actions:
            return False
    return True


@jit(fastmath={"reassoc", "contract", "nsz"})
def _off_by(pi, out):
    """How far rows of π are from distributions: |Σ π − 1| + Σ |π| − Σ π; NaN stays NaN."""
    for j in range(out.size):
        total = pi.dtype.type(0)
        absolute = pi.dtype.type(0)
        for i in range(pi.shape[1]):
            total += pi[j, i]
            absolute += abs(pi[j, i])
        out[j] = abs(total - 1) + (absolute - total)


@jit()
def _distributions(pi, t, first, discount, mask, tolerance, scratch):
    """Whether the rows of π that are read, as a step's own or as a successor, are distributions."""
    _off_by(pi[t, first : first + scratch.size], scratch)
    for j in range(scratch.size):
        if not scratch[j] <= tolerance:
            b = first + j
            own = t < discount.shape[0] and _real(mask, t, b)
            if own or (t > 0 and _real(mask, t - 1, b) and discount[t - 1, b] != 0):
                return False
    return True


@jit()
def _steps(r, discount, q_a, mu_a, target, mask, tolerance):
    """Whether real steps hold numbers that may be used; comparisons with NaN are False, and inf − inf is NaN."""
    bad = 0
    for j in range(r.size):
        d = discount[j]
        good = (d >= 0) & (d <= 1) & (r[j] - r[j] == 0) & (q_a[j] - q_a[j] == 0) & (target[j] - target[j] == 0)
        bad += 0 if good else 1
    for j in range(mu_a.size):
        good = (mu_a[j] > 0) & (mu_a[j] <= 1 + tolerance)
        bad += 0 if good else 1
    if bad > 0 and mask.size > 0:  # were they real?
        bad = 0
        for j in range(r.size):
            d = discount[j]
            good = (d >= 0) & (d <= 1) & (r[j] - r[j] == 0) & (q_a[j] - q_a[j] == 0) & (target[j] - target[j] == 0)
            if mu_a.size > 0:
                good &= (mu_a[j] > 0) & (mu_a[j] <= 1 + tolerance)
            bad += 1 if mask[j] and not good else 0
    return bad == 0


@jit()
def _targets(
    kind, lambdas, q, pi, a, r, discount, mu_a, c_given, q_a_given, reset, mask, out, start, stop, tolerance
):
    """Eq. 3 on the batch elements start … stop; the checks of values are off where `tolerance` < 0.

    Reports FINE, or that something is strange: not that it is wrong, the door looks more closely then.
    """
    n = r.shape[0]
    validate = tolerance >= 0
    fine = True
    size = min(BLOCK, stop - start)
    precise = np.empty((2, size), float64)
    read = np.empty((3, size), q.dtype)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        count = last - first
        carried, c = precise[0, :count], precise[1, :count]
        value, q_a, pi_a = read[0, :count], read[1, :count], read[2, :count]
        _read(q[n, first:last], pi[n, first:last], a[n - 1, first:last], value, q_a, pi_a)
        if not _finite(value):
            _expect_carefully(q, pi, n, first, value)
        carried[:] = value
        if validate:
            fine &= _distributions(pi, n, first, discount, mask, tolerance, pi_a)
        for back in range(n):
            t = n - 1 - back
            if t == 0 and not validate:  # row 0 of Q and π is read by nobody
                _one_step(r[0, first:last], discount[0, first:last], carried, out[0, first:last])
                if mask.size > 0:
                    for b in range(first, last):
                        out[0, b] = out[0, b] if mask[0, b] else 0
                break
            exist = _read(q[t, first:last], pi[t, first:last], a[t, first:last], value, q_a, pi_a)
            fine &= exist or _actions_exist(a, mask, t, first, count, q.shape[2])
            if not _finite(value):
                _expect_carefully(q, pi, t, first, value)
            if q_a_given.size > 0:
                q_a[:] = q_a_given[t, first:last]
            if kind == GIVEN:
                c[:] = c_given[t, first:last]
            else:
                row = lambdas[t if lambdas.shape[0] > 1 else 0]
                row = row[first:last] if row.size > 1 else row
                _coefficients(kind, pi_a, mu_a[t, first:last] if mu_a.size > 0 else mu_a[:0, 0], row, c)
            _carry(r[t, first:last], discount[t, first:last], c, value, q_a, carried, out[t, first:last])
            if reset.size > 0:
                for j in range(count):
                    carried[j] = value[j] if reset[t, first + j] else carried[j]
                    crossing = t > 0 and reset[t, first + j] and discount[t - 1, first + j] != 0
                    if validate and crossing and _real(mask, t, first + j) and _real(mask, t - 1, first + j):
                        fine = False
            if mask.size > 0:
                for j in range(count):
                    carried[j] = carried[j] if mask[t, first + j] else value[j]
                    out[t, first + j] = out[t, first + j] if mask[t, first + j] else 0
            if validate:
                mu = mu_a[t, first:last] if kind == RETRACE or kind == IS else mu_a[:0, 0]
                real = mask[t, first:last] if mask.size > 0 else mask[:0, 0]
                fine &= _finite(value) and (t == 0 or _finite(carried))
                fine &= _distributions(pi, t, first, discount, mask, tolerance, pi_a)
                fine &= _steps(
                    r[t, first:last], discount[t, first:last], q_a, mu, out[t, first:last], real, tolerance
                )
    return FINE if fine else STRANGE


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
def _fold_backward(gradient, correction, expected_q, discount, c, reset, mask, to_delta, to_discount, to_c):
    """The gradient of `_fold`: e_t = g_t + discount_{t−1} c_t e_{t−1} reaches δ_t, forwards in time."""
    n, batch = gradient.shape
    carried = np.zeros(batch, float64)  # discount_{t−1} e_{t−1}
    for t in range(n):
        for b in range(batch):
            goes_on = (reset.size == 0 or not reset[t, b]) and (mask.size == 0 or mask[t, b])
            real = mask.size == 0 or mask[t, b]
            before = carried[b] if goes_on else 0.0
            e = float64(gradient[t, b]) + (c[t, b] * before if before != 0 else 0.0)
            e = e if real else 0.0
            to_delta[t, b] = e
            to_c[t, b] = before * correction[t, b] if before != 0 else 0.0
            carried[b] = discount[t, b] * e if e != 0 else 0.0
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
