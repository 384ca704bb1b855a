"""The theory's section of the page: contraction against variance on a small grid."""

from offtrace import policies
from offtrace.mdp import grid_world
from offtrace.operators import q_star
from offtrace.report.page import Section
from offtrace.report.sections import safety_section
from offtrace.safety import analyze

TRACES = ("one_step", "importance_sampling", "q_lambda", "tree_backup", "retrace")
"""The traces that the paper compares (Table 1)."""


def theory_section() -> Section:
    """Return the section for ε-greedy policies around the optimal one: π with ε = 0.1, μ with ε = 0.5."""
    mdp = grid_world()
    q = q_star(mdp)
    pi = policies.epsilon_greedy(q, 0.1)
    mu = policies.epsilon_greedy(q, 0.5)
    return safety_section(analyze(mdp, pi=pi, mu=mu, traces=TRACES))
