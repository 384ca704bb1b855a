"""Compares evaluation with the recorded μ and with an estimated one, by root mean squared error.

    python studies/behaviour.py                     1,000 logs per problem and size, hours on two cores
    python studies/behaviour.py --quick             a small part, in about a minute
    python studies/behaviour.py --tables            the tables of the results so far

Every log is evaluated three times, by the ratios of

    μ           the recorded probabilities
    crossed     counts of the other folds' actions (num_folds=5), the default for a log without μ
    own         counts of all actions, an episode's own among them (num_folds=1)

The Q̂ of the doubly robust forms is fitted to the other folds in all three. Results are appended to
a file of JSON lines, one per log, and a log that is in the file is not evaluated again.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
from problems import problem, problems
from runs import add_options, read_lines, run_all, write_csv

import offtrace as ot
from offtrace.evaluation import estimate
from offtrace.evaluation.simulation import simulate

SIZES = (50, 200, 1_000)
TRACE = ot.Retrace(0.9)
ESTIMATORS = ("is", "wis", "pdis", "wpdis", "dr", "wdr")
ORDER = (*ESTIMATORS, "Retrace")
RATIOS = ("μ", "crossed", "own")


def evaluate_one(task: tuple[str, int, int]) -> dict[str, Any]:
    """Return the line of results for one log."""
    name, num_episodes, seed = task
    chosen = problem(name)
    log = simulate(chosen.mdp, chosen.mu, num_episodes, seed=seed, max_steps=chosen.max_steps)
    values = {}
    for ratios, num_folds in zip(RATIOS, (5, 5, 1), strict=True):
        seen = log if ratios == "μ" else replace(log, mu_a=None)
        found = estimate(
            seen,
            target=chosen.pi,
            gamma=chosen.mdp.gamma,
            trace=TRACE,
            estimators=ESTIMATORS,
            num_folds=num_folds,
            num_bootstrap=2,
            seed=seed,
        )
        values[ratios] = [float(f"{one.value:.6g}") for one in _in_order(found)]
    return {"problem": name, "num_episodes": num_episodes, "seed": seed, "values": values}


def _in_order(found: Any) -> list[Any]:
    return [*(found[name] for name in ESTIMATORS), found[repr(TRACE)]]


def summarise(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per problem, size, estimator and kind of ratios."""
    rows = []
    for one in problems():
        for size in SIZES:
            chosen = [line for line in lines if (line["problem"], line["num_episodes"]) == (one.name, size)]
            if not chosen:
                continue
            for ratios in RATIOS:
                errors = np.array([line["values"][ratios] for line in chosen]) - one.truth
                for name, error in zip(ORDER, errors.T, strict=True):
                    rows.append(
                        {
                            "problem": one.name,
                            "num_episodes": size,
                            "num_logs": len(chosen),
                            "ratios": ratios,
                            "estimator": name,
                            "bias": float(f"{error.mean():.6g}"),
                            "rmse": float(f"{np.sqrt((error**2).mean()):.6g}"),
                        }
                    )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print("Root mean squared error")
    print(f"{'':<11}{'E':>5} {'ratios':<7}" + "".join(f"{name:>8}" for name in ORDER))
    keys = list(dict.fromkeys((row["problem"], row["num_episodes"]) for row in rows))
    for name, size in keys:
        for ratios in RATIOS:
            here = [
                row for row in rows if (row["problem"], row["num_episodes"], row["ratios"]) == (name, size, ratios)
            ]
            start = f"{name:<11}{size:>5}" if ratios == RATIOS[0] else f"{'':<16}"
            print(f"{start} {ratios:<7}" + "".join(f"{row['rmse']:>8.2g}" for row in here))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, repetitions=1_000, output="behaviour.jsonl")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + (5 if given.quick else given.repetitions))
    sizes = SIZES[:2] if given.quick else SIZES
    tasks = [(one.name, size, seed) for seed in seeds for one in problems() for size in sizes]
    if not given.tables:
        run_all(
            evaluate_one,
            tasks,
            given.output,
            given.jobs,
            key=lambda line: (line["problem"], line["num_episodes"], line["seed"]),
            of_task=lambda task: task,
        )
    rows = summarise(read_lines(given.output))
    print_table(rows)
    write_csv(given.output.with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
