"""Contraction of each operator on an MDP, computed without sampling: how much one step can enlarge an error."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from offtrace import policies
from offtrace.mdp import SMALL_WORLD, FiniteMDP
from offtrace.operators import q_star
from offtrace.safety import analyze

TRACES = ("retrace", "tree_backup", "q_lambda")
BEHAVIOUR_EPSILON = 0.5
"""ε of the behaviour policy in the small world."""
TARGET_EPSILON = 0.1
"""ε of the target policy in the small world."""


class Contraction(NamedTuple):
    """The contraction of a trace at one λ on one MDP."""

    game: str
    trace: str
    lambda_: float
    norm: float
    """‖A‖: one step of R multiplies the largest error by at most this. Above 1 errors can grow."""
    radius: float
    """Spectral radius: the factor per step in the long run."""


def contractions(
    lambdas: Sequence[float],
    mdps: Mapping[str, FiniteMDP] | None = None,
    *,
    behaviour_epsilon: float = BEHAVIOUR_EPSILON,
    target_epsilon: float = TARGET_EPSILON,
) -> list[Contraction]:
    """Return contractions for ε-greedy policies around the optimal one, on every MDP (default: the small world).

    >>> found = contractions([1.0], {"fork": SMALL_WORLD["fork"]()})
    >>> [(each.trace, round(each.norm, 2)) for each in found]
    [('retrace', 0.9), ('tree_backup', 0.93), ('q_lambda', 9.35)]
    """
    if mdps is None:
        mdps = {name: make() for name, make in SMALL_WORLD.items()}
    found = []
    for game, mdp in mdps.items():
        q = q_star(mdp)
        pi = policies.epsilon_greedy(q, target_epsilon)
        mu = policies.epsilon_greedy(q, behaviour_epsilon)
        for row in analyze(mdp, pi=pi, mu=mu, traces=TRACES, lambdas=list(lambdas)):
            if row.contraction is None or row.radius is None or row.lambda_ is None:
                raise ValueError(f"`mdps` must be small enough to be solved exactly; got {mdp}.")
            found.append(Contraction(game, row.trace, float(row.lambda_), row.contraction, row.radius))
    return found
