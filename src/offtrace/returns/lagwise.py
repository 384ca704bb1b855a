"""The double sum for any trajectory-aware trace: all starts at once, one lag after the other.

At lag k the start s looks at step t = s + k, so the arrays get one row shorter with every lag:

    s = 0 ▸ t = k        reach = Π discount · not cut        weight = reach · β
    s = 1 ▸ t = k + 1
    …
"""

from offtrace.arrays import Array, namespace, product
from offtrace.traces import Reach, TrajectoryAware


def targets(
    trace: TrajectoryAware,
    one_step: Array,
    delta: Array,
    discount: Array,
    log_ratio: Array,
    lambdas: Array,
    cut: Array,
) -> Array:
    """One-step targets plus Σ_{k ≥ 1} reach · β · δ_{s+k}, for every start s: O(n²) work, O(n) memory."""
    xp, n = namespace(one_step), one_step.shape[0]
    lambdas = lambdas * xp.ones_like(discount)
    reach = beta = lambda_product = xp.ones_like(discount)
    log_product = xp.zeros_like(discount)
    columns = [one_step]
    for k in range(1, n):
        reach = xp.where(cut[k:], 0, product(reach[:-1], discount[k - 1 : -1]))
        log_product = log_product[:-1] + log_ratio[k:]
        lambda_product = lambda_product[:-1] * lambdas[k:]
        clipped = xp.exp(xp.where(log_product < 0, log_product, 0))
        beta = trace.next_beta(xp, Reach.at(xp, beta[:-1], log_ratio[k:], lambdas[k:], clipped, lambda_product))
        columns.append(product(product(reach, beta), delta[k:]))
    total = xp.zeros_like(one_step)
    for column in reversed(columns):  # small terms first
        missing = n - column.shape[0]
        total = total + (xp.concatenate([column, xp.zeros_like(one_step[:missing])]) if missing else column)
    return total
