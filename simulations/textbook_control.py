"""What control in tables learns with the defaults on the MDPs of `ot.mdp`: a Markdown table.

    python simulations/textbook_control.py

The value of the greedy policy at the end, computed exactly, from the start states: mean, least and greatest of five
seeds, on which nothing was chosen. Of equal actions the greedy policy takes the first. Takes a minute or two.
"""

import argparse

import numpy as np

import offtrace as ot

TRACES = {"Retrace(0.9)": ot.Retrace(0.9), "TB(0.9)": ot.TreeBackup(0.9), "one step": ot.OneStep()}
SEEDS = range(1000, 1005)
LEFT_OUT = ("baird_star", "icu_sepsis")
"""The first has rewards of 0 only, the second needs a package and has 716 states."""


def models() -> dict[str, ot.FiniteMDP]:
    found = {"FrozenLake-v1": ot.mdp.from_gymnasium("FrozenLake-v1", gamma=0.99)}
    return found | {name: make() for name, make in ot.mdp.MDPS.items() if name not in LEFT_OUT}


def value(mdp: ot.FiniteMDP, q: np.ndarray) -> float:
    """Of the greedy policy; 0 < 1 − γ = 1e-9 where it may go round for ever undiscounted."""
    mdp = mdp.with_gamma(min(mdp.gamma, 1 - 1e-9))
    greedy = ot.policies.greedy(q)
    return float((greedy * ot.operators.q_pi(mdp, greedy, tol=1e-6)).sum(1) @ mdp.start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-episodes", type=int, nargs="+", default=[1_000, 20_000])
    given = parser.parse_args()
    columns = [f"{name}, {num:,}" for num in given.num_episodes for name in TRACES]
    print(f"| MDP | optimum | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    for label, mdp in models().items():
        optimum = float(ot.operators.q_star(mdp).max(1) @ mdp.start)
        cells = []
        for num in given.num_episodes:
            for trace in TRACES.values():
                runs = [ot.online.control(mdp, trace=trace, num_episodes=num, seed=seed).q for seed in SEEDS]
                values = [value(mdp, q) for q in runs]
                cells.append(f"{np.mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]")
        print(f"| `{label}` | {optimum:.3f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
