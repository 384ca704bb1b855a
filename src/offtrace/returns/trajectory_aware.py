"""The targets of any trajectory-aware trace, for NumPy and PyTorch arrays.

    target_s = one_step_s + Σ_{k ≥ 1} (Π_{i=s..s+k−1} discount_i) β_{s,s+k} δ_{s+k}        until the trajectory is cut

All starts s are computed at once, one lag k after the other. At lag k start s reads step s + k, so
the arrays become one row shorter with every lag:

    lag 0:  s = 0 1 2 3      lag 1:  s = 0 1 2      lag 2:  s = 0 1
            t = 0 1 2 3              t = 1 2 3              t = 2 3
"""

from offtrace.arrays import Array, namespace, product
from offtrace.traces import TrajectoryAware
from offtrace.traces.beta import BetaState, advance


def targets(
    trace: TrajectoryAware,
    one_step: Array,
    delta: Array,
    discount: Array,
    log_ratio: Array,
    lambdas: Array,
    cut: Array,
) -> Array:
    """Return the targets of every start, (n, …): O(n²) work, O(n) memory without gradients."""
    xp = namespace(one_step)
    n = one_step.shape[0]
    lambdas = lambdas * xp.ones_like(discount)
    reach = xp.ones_like(discount)  # Π discount, and 0 behind a cut
    state = BetaState.start(xp, discount)
    terms = [one_step]
    for k in range(1, n):
        reach = xp.where(cut[k:], 0, product(reach[:-1], discount[k - 1 : -1]))
        state = BetaState(*(values[:-1] for values in state))  # the last start has no step at this lag
        state = advance(trace, xp, state, log_ratio=log_ratio[k:], lambda_=lambdas[k:])
        terms.append(product(product(reach, state.beta), delta[k:]))
    total = xp.zeros_like(one_step)
    for term in reversed(terms):  # small terms first, which loses least to rounding
        missing = n - term.shape[0]
        if missing:
            term = xp.concatenate([term, xp.zeros_like(one_step[:missing])])
        total = total + term
    return total
