"""Sums over the steps of a log, for many weightings of its episodes at once.

Weighting b gives every episode i a weight u[i, b]: 1 for the estimate itself, and the number of
times that the episode was drawn for each bootstrap sample. With ρ_{i,t} = Π_{s≤t} π/μ,

    num[t, b]     = Σ_i u[i, b] ρ_{i,t} x_{i,t}            what an estimator sums at step t
    weight[t, b]  = Σ_i u[i, b] ρ_{i,t}                    what it is divided by, if it is weighted

An episode that has ended stays in an absorbing state with reward 0, where π = μ. So it keeps its
last weight in `weight` at all later steps:

    t                0       1       2       3
    episode a      ρ_a0    ρ_a1    ρ_a2    ρ_a3
    episode b      ρ_b0    ρ_b1    ρ_b1    ρ_b1        ended after two steps
"""

import numpy as np

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
def sums_by_step(first, rho, values, u, total, weight):
    """Add up `total` and `weight` (T, B) as above; all columns of `u` (E, B) in one pass over the rows."""
    num_columns = u.shape[1]
    for i in range(first.size - 1):
        for row in range(first[i], first[i + 1]):
            t = row - first[i]
            x = rho[row] * values[row]
            for b in range(num_columns):
                total[t, b] += u[i, b] * x
                weight[t, b] += u[i, b] * rho[row]


@jit()
def add_ended(first, rho, u, weight):
    """Add to `weight` (T, B) the last weight of the episodes that have ended, at all steps after their end.

    Each is first added at the step after its end, and the column is summed up at last:

        t           0    1    2    3
        added       ·    ·   ρ_b   ·        cumulative:  ·   ·   ρ_b   ρ_b
    """
    num_steps, num_columns = weight.shape
    added = np.zeros((num_steps + 1, num_columns))
    for i in range(first.size - 1):
        length = first[i + 1] - first[i]
        for b in range(num_columns):
            added[length, b] += u[i, b] * rho[first[i + 1] - 1]
    for t in range(1, num_steps):
        for b in range(num_columns):
            added[t, b] += added[t - 1, b]
            weight[t, b] += added[t, b]
