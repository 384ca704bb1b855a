"""The paper's operators on a finite MDP, exactly: P^π, P^{cμ}, T^π, T, T_λ^π, R, η, and Q^π and Q*."""

from offtrace.operators.bellman import (
    commutator,
    evaluate,
    greedy_gap,
    optimise,
    p_pi,
    q_pi,
    q_star,
    t_lambda,
    t_pi,
    t_star,
)
from offtrace.operators.general import (
    Moments,
    a_matrix,
    b_matrix,
    coefficients,
    correction_moments,
    eta,
    general_operator,
    p_cmu,
    reach,
    trace_moments,
)
from offtrace.operators.solvers import ResidualWarning, Solution
from offtrace.operators.trajectories import Estimate, sampled_operator

__all__ = [
    "Estimate",
    "Moments",
    "ResidualWarning",
    "Solution",
    "a_matrix",
    "b_matrix",
    "coefficients",
    "commutator",
    "correction_moments",
    "eta",
    "evaluate",
    "general_operator",
    "greedy_gap",
    "optimise",
    "p_cmu",
    "p_pi",
    "q_pi",
    "q_star",
    "reach",
    "sampled_operator",
    "t_lambda",
    "t_pi",
    "t_star",
    "trace_moments",
]


def __dir__() -> list[str]:
    return __all__
