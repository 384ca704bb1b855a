"""Sums over the steps of a log, for many weightings of its episodes at once.

Weighting b gives every group g of episodes a weight u[g, b]: 1 for the estimate itself, and the
number of times that the group was drawn for each bootstrap sample. With ρ_{i,t} = Π_{s≤t} π/μ,

    total[t, b]   = Σ_i u[g_i, b] ρ_{i,t} x_{i,t}          what an estimator sums at step t
    weight[t, b]  = Σ_i u[g_i, b] ρ_{i,t}                  what it is divided by, if it is weighted

An episode that has ended stays in an absorbing state with reward 0, where π = μ. So it keeps its
last weight in `weight` at all later steps:

    t                0       1       2       3
    episode a      ρ_a0    ρ_a1    ρ_a2    ρ_a3
    episode b      ρ_b0    ρ_b1    ρ_b1    ρ_b1        ended after two steps
"""

from offtrace.kernels import jit


@jit()
def cumulative_ratios(first, log_ratio, out):
    """Write Σ_{s≤t} log π/μ of every step within its episode: the logarithm of ρ_{i,t}."""
    for i in range(first.size - 1):
        total = 0.0
        for row in range(first[i], first[i + 1]):
            total += log_ratio[row]
            out[row] = total


@jit()
def discounted_sums(first, gamma, values, out):
    """Write Σ_t γ^t x_{i,t} of every episode i."""
    for i in range(first.size - 1):
        total = 0.0
        discount = 1.0
        for row in range(first[i], first[i + 1]):
            total += discount * values[row]
            discount *= gamma
        out[i] = total


@jit()
def sums_by_step(first, rho, values, group, u, total, weight):
    """Add up `total` and `weight` (T, B) as above, all columns in one pass over the rows.

    Episode i has the weights u[group[i], :].
    """
    for i in range(first.size - 1):
        drawn = u[group[i]]
        for row in range(first[i], first[i + 1]):
            total_t = total[row - first[i]]  # rows of the arrays, so that the inner loop is vectorised
            weight_t = weight[row - first[i]]
            x = rho[row] * values[row]
            for b in range(drawn.size):
                total_t[b] += drawn[b] * x
                weight_t[b] += drawn[b] * rho[row]


@jit()
def last_weights_by_step(first, rho, group, u, ended):
    """Add to `ended` (T + 1, B), at the step after its end, the last weight of every episode.

    Its cumulative sum over the steps is what the episodes that have ended add to `weight`:

        t             0    1    2    3    4
        ended         ·    ·   ρ_b   ·   ρ_a        cumulative:  ·   ·   ρ_b   ρ_b   ρ_a + ρ_b
    """
    for i in range(first.size - 1):
        length = first[i + 1] - first[i]
        for b in range(u.shape[1]):
            ended[length, b] += u[group[i], b] * rho[first[i + 1] - 1]
