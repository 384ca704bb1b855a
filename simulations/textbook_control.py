"""Prints what tabular control learns with default settings on the MDPs of `ot.mdp`, as one Markdown
table per length.

    python simulations/textbook_control.py

The numbers are exact values of the final greedy policy from the start states: mean, minimum and
maximum of five seeds that were not used to choose any setting. Ties are broken by the first action.
This takes a minute or two.
"""

import argparse
from typing import Any

import numpy as np

import offtrace as ot

RUNS: dict[str, dict[str, Any]] = {
    "Retrace(0.9)": {"trace": ot.Retrace(0.9)},
    "TB(0.9)": {"trace": ot.TreeBackup(0.9)},
    "one step": {"trace": ot.OneStep()},
    "Retrace(0.9), ε = 0.3": {"trace": ot.Retrace(0.9), "behaviour": ot.online.EpsilonGreedy(0.3)},
}
SEEDS = range(1000, 1005)
LEFT_OUT = ("baird_star", "icu_sepsis")
"""The first has no rewards; the second needs a package and has 716 states."""


def models() -> dict[str, ot.FiniteMDP]:
    found = {"FrozenLake-v1": ot.mdp.from_gymnasium("FrozenLake-v1", gamma=0.99)}
    found |= {name: make() for name, make in ot.mdp.MDPS.items() if name not in LEFT_OUT}
    # Undiscounted, every way to the right end is equally good.
    return found | {"random_walk": ot.mdp.random_walk(gamma=0.99)}


def value(mdp: ot.FiniteMDP, q: np.ndarray) -> float:
    """Return the value of the greedy policy."""
    greedy = ot.policies.greedy(q)
    return float((greedy * ot.operators.q_pi(mdp, greedy)).sum(1) @ mdp.start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-episodes", type=int, nargs="+", default=[20_000, 1_000])
    given = parser.parse_args()
    known = {label: (mdp, float(ot.operators.q_star(mdp).max(1) @ mdp.start)) for label, mdp in models().items()}
    for num in given.num_episodes:
        print(f"\n{num:,} episodes\n\n| MDP | optimum | {' | '.join(RUNS)} |")
        print("|---" * (2 + len(RUNS)) + "|")
        for label, (mdp, optimum) in known.items():
            cells = []
            for run in RUNS.values():
                learned = [ot.online.control(mdp, **run, num_episodes=num, seed=seed) for seed in SEEDS]
                values = [value(mdp, one.q) for one in learned]
                cells.append(f"{np.mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]")
            print(f"| `{label}` | {optimum:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
