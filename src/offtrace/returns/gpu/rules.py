"""The formulas of the traces, and the rules that the numbers of a row may break."""

import triton
import triton.language as tl

from offtrace.returns.gpu.rows import (
    ACER,
    GIVEN,
    IS,
    ONE_STEP,
    Q_LAMBDA,
    Q_SIGMA,
    SOFT_WATKINS,
    TREE_BACKUP,
    WATKINS,
    divided,
    fits,
    is_finite,
    scaled,
)


@triton.jit
def sums_over(p, values, value, parameter, START: tl.constexpr, WIDTH: tl.constexpr, mode: tl.constexpr):
    """Return what is summed up over some of the actions of state t+1.

    E_π Q(x, ·);  Σ π, which is NaN if one of them is negative;  what Watkins's traces read: max Q(x, ·),
    or the share of π that the action taken, whose Q is `value`, nearly matches
    """
    expected = tl.sum(scaled(values, p), 1)
    total = expected
    if mode.checks:
        # None is above 1 if their sum is 1. A negative one may be rounding: `checks.py` decides.
        total = tl.sum(tl.where(p >= 0, p, float("nan")), 1)
    greedy = expected
    if mode.kind == WATKINS:
        is_legal = (values == values) & (START + tl.arange(0, WIDTH) < mode.num_actions)[None, :]  # NaN: illegal
        greedy = tl.max(tl.where(is_legal, values, float("-inf")), 1)
    elif mode.kind == SOFT_WATKINS:
        greedy = tl.sum(tl.where(matches(p, values, value, parameter), p, 0.0), 1)
    return expected, total, greedy


@triton.jit
def matches(p, values, value, parameter):
    """Return 1{Q(x, a) ≥ Q(x, b) − κ |Q(x, b)|} for every action b, of soft Watkins."""
    others = tl.where(p == 0, 0.0, values)
    return value.to(values.dtype)[:, None] >= others - tl.full((1, 1), parameter, values.dtype) * tl.abs(others)


@triton.jit
def read_policy(rows, value, parameter, mode: tl.constexpr):
    """Return the sums of `sums_over` over all actions of the rows that were loaded."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    SIZE: tl.constexpr = mode.steps * mode.rows
    expected = tl.zeros((SIZE,), real)
    total = tl.full((SIZE,), 1.0, real)
    greedy = expected
    if mode.reads_rows:
        total = expected
        if mode.kind == WATKINS:
            greedy = tl.full((SIZE,), float("-inf"), real)
        for i in tl.static_range(len(mode.blocks)):
            p, values = rows[i]
            sums = sums_over(p, values, value, parameter, mode.blocks[i][0], mode.blocks[i][1], mode)
            expected += sums[0]
            total += sums[1]
            greedy = tl.maximum(greedy, sums[2]) if mode.kind == WATKINS else greedy + sums[2]
    if mode.kind == WATKINS:
        own = tl.where(value == value, value, float("-inf"))
        greedy = tl.where(own == greedy, 1.0, 0.0)
    return expected.to(real), total, greedy.to(real)


@triton.jit
def factor(given, greedy, pi_a, mu_a, parameter, mode: tl.constexpr):
    """Return c / λ: from π(a|x) and μ(a|x), or what was read of the policy. A given c is returned as it is."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    SIZE: tl.constexpr = mode.steps * mode.rows
    one = tl.full((SIZE,), 1.0, real)
    if mode.logs:
        target = tl.exp(pi_a).to(real)
        ratio = tl.exp(pi_a - mu_a).to(real)
    else:
        target = pi_a
        ratio = divided(pi_a, mu_a)
    clipped = tl.where(ratio < 1, ratio, 1.0)
    if mode.kind == GIVEN:
        found = given
    elif (mode.kind == WATKINS) | (mode.kind == SOFT_WATKINS):
        found = greedy
    elif mode.kind == ONE_STEP:
        found = 0.0 * one
    elif mode.kind == Q_LAMBDA:
        found = one
    elif mode.kind == TREE_BACKUP:
        found = target
    elif mode.kind == IS:
        found = ratio
    elif mode.kind == Q_SIGMA:
        found = parameter * ratio + (1 - parameter) * target
    elif mode.kind == ACER:
        found = tl.exp(tl.log(clipped) / parameter)
    else:
        found = clipped  # Retrace
    return found


@triton.jit
def wrong_rows(w, is_real, goes_on, continues, reward, discount, ahead, total, known, q_a, pi_a, mu_a, tolerance,
               mode: tl.constexpr):  # fmt: skip
    """Return which rows break a rule of `checks.py`, or may do so: it then looks for the rule."""
    reaches = is_real & (discount != 0)
    bad = is_real & ~((discount >= 0) & (discount <= 1) & is_finite(reward))
    bad = bad | (reaches & ~is_finite(ahead))
    bad = bad | (goes_on & ~known)
    bad = bad | ((is_real if mode.corrections else goes_on) & ~is_finite(q_a))
    if (mode.kind == IS) | (mode.kind == Q_SIGMA):  # the others clip the ratio
        ratio = tl.exp(pi_a - mu_a) if mode.logs else divided(pi_a, mu_a)
        bad = bad | (continues & ~fits(ratio, mode))
    if mode.logs:
        bad = bad | (goes_on & ~((pi_a < float("inf")) & is_finite(mu_a)))
        if not mode.takes_densities:
            bad = bad | (goes_on & ~(pi_a <= tolerance))
    else:
        bad = bad | (goes_on & ~((pi_a >= -tolerance) & (pi_a <= 1 + tolerance)))
        bad = bad | (goes_on & ~((mu_a > 0) & (mu_a <= 1 + tolerance)))
    if mode.reads_rows:
        bad = bad | ((goes_on | reaches) & ~(tl.abs(total - 1) <= tolerance))
    if w.expected_q is None:
        bad = bad | (goes_on & ~is_finite(ahead))
        bad = bad | (reaches & goes_on & ~continues)  # a step into another episode
    return bad
