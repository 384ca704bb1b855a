"""Measures how often the 95 % intervals of off-policy evaluation contain the exact value, and how
large the errors of its estimators are.

    python studies/interval_coverage.py  1,000 logs per problem and size, hours
    python studies/interval_coverage.py  --quick              a small part, in about a minute
    python studies/interval_coverage.py  --tables             the tables of the results so far

Logs of 50, 200 and 1,000 episodes are drawn from the MDPs of `problems.py`. Results are appended to
a file of JSON lines, one per log, and a log that is in the file is not evaluated again. The tables
are also written as CSV files beside it.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from problems import problem, problems
from runs import add_options, read_lines, run_all, write_csv

import offtrace as ot
from offtrace.evaluation import estimate
from offtrace.evaluation.simulation import simulate

SIZES = (50, 200, 1_000)
TRACES = {
    "Retrace .9": ot.Retrace(0.9),
    "Retrace 1": ot.Retrace(1.0),
    "TB .9": ot.TreeBackup(0.9),
    "Q(λ) .9": ot.QLambda(0.9),
    "IS trace 1": ot.ImportanceSampling(1.0),
}
NAMES = {repr(trace): name for name, trace in TRACES.items()}
ORDER = ("is", "wis", "pdis", "wpdis", "dr", "wdr", "fqe", *TRACES)
WEIGHTED = ("is", "wis", "pdis", "wpdis", "dr", "wdr")
FITTED = ("fqe", *TRACES)
Z = 1.959964
EFFECTIVE = (0, 3, 10, 30, 100, np.inf)
"""Bounds of the groups of logs by effective episodes."""
UNSEEN = (0, 1e-12, 0.01, 0.05, 0.2, 1)
"""Bounds of the groups of logs by the share of π's actions that they never show."""
REWARDED = (0, 1, 3, 5, 10, 20, 50, np.inf)
"""Bounds of the groups of logs by the episodes that have a reward."""
EFFECTIVE_REWARDED = (0, 5, 10, 20, 50, np.inf)
"""Bounds of the groups by the effective number of these episodes."""


def evaluate_one(task: tuple[str, int, int]) -> dict[str, Any]:
    """Return the line of results for one log."""
    name, num_episodes, seed = task
    chosen = problem(name)
    log = simulate(chosen.mdp, chosen.mu, num_episodes, seed=seed, max_steps=chosen.max_steps)
    first, *rest = TRACES.values()
    found = estimate(
        log, target=chosen.pi, gamma=chosen.mdp.gamma, trace=first, traces=rest, num_bootstrap=200, seed=seed
    )
    return {
        "problem": name,
        "num_episodes": num_episodes,
        "seed": seed,
        "effective": _short(found.diagnostics.effective_episodes),
        "unseen": _short(found.diagnostics.unseen_share),
        "rewarded": found.diagnostics.num_rewarded,
        "effective_rewarded": _short(found.diagnostics.effective_rewarded),
        "verdict": [found.verdict.answer, NAMES.get(found.verdict.estimate, found.verdict.estimate)],
        "estimates": {
            NAMES.get(one.name, one.name): [_short(x) for x in (one.value, one.standard_error, *one.bootstrap)]
            for one in found.estimates
        },
    }


def _short(number: float) -> float:
    return float(f"{number:.6g}")


# -- tables --------------------------------------------------------------------------------------


class Group:
    """The logs of one problem and size, or of another selection, by estimator."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.num_logs = len(lines)
        self._truth = np.array([problem(line["problem"]).truth for line in lines])
        self._lines = lines

    def _columns(self, name: str) -> np.ndarray:
        """Return (4, logs): value, standard error and the two ends of the bootstrap interval."""
        return np.array([line["estimates"][name] for line in self._lines]).T

    def errors(self, name: str) -> np.ndarray:
        return self._columns(name)[0] - self._truth

    def rmse(self, name: str) -> float:
        return float(np.sqrt((self.errors(name) ** 2).mean()))

    def coverage(self, name: str) -> float:
        """Return the share of logs whose asymptotic interval contains the exact value."""
        return float((abs(self.errors(name)) <= Z * self._columns(name)[1]).mean())

    def bootstrap_coverage(self, name: str) -> float:
        low, high = self._columns(name)[2:]
        return float(((low <= self._truth) & (self._truth <= high)).mean())


def summarise(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per problem, size and estimator."""
    rows = []
    sizes = sorted({line["num_episodes"] for line in lines})
    for one in problems():
        for size in sizes:
            chosen = [line for line in lines if (line["problem"], line["num_episodes"]) == (one.name, size)]
            if not chosen:
                continue
            group = Group(chosen)
            for name in ORDER:
                errors = group.errors(name)
                row = {
                    "problem": one.name,
                    "num_episodes": size,
                    "num_logs": group.num_logs,
                    "truth": _short(one.truth),
                    "effective_episodes": _short(float(np.median([line["effective"] for line in chosen]))),
                    "unseen_share": _short(float(np.mean([line["unseen"] for line in chosen]))),
                    "estimator": name,
                    "bias": _short(float(errors.mean())),
                    "standard_deviation": _short(float(errors.std(ddof=1))) if len(chosen) > 1 else 0.0,
                    "rmse": _short(group.rmse(name)),
                    "coverage": group.coverage(name),
                    "bootstrap_coverage": group.bootstrap_coverage(name),
                }
                rows.append(row)
    return rows


def print_summary(rows: list[dict[str, Any]]) -> None:
    for problem_name in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == problem_name]
        sizes = list(dict.fromkeys(row["num_episodes"] for row in here))
        print(f"\n{problem_name}: exact value {here[0]['truth']:.4g}, {here[0]['num_logs']:,} logs per size")
        for size in sizes:
            row = next(row for row in here if row["num_episodes"] == size)
            print(
                f"  E = {size:,}: median effective episodes {row['effective_episodes']:.3g}, "
                f"unseen share {row['unseen_share']:.1%}"
            )
        groups = "".join(f"{f'E = {size:,}':>25}" for size in sizes)
        print(f"{'':<11}{groups}")
        print(f"{'':<11}" + f"{'bias':>10}{'rmse':>7}{'95%':>4}{'b':>4}" * len(sizes))
        for name in ORDER:
            cells = ""
            for size in sizes:
                row = next(r for r in here if (r["num_episodes"], r["estimator"]) == (size, name))
                cells += f"{_figure(row['bias'], 10)}{_figure(row['rmse'], 7)}"
                cells += f"{100 * row['coverage']:>4.0f}{100 * row['bootstrap_coverage']:>4.0f}"
            print(f"{name:<11}{cells}")


def _figure(number: float, width: int) -> str:
    text = f"{number:.2g}" if abs(number) < 1e4 else f"{number:.0e}"
    return f"{text:>{width}}"


class Threshold(NamedTuple):
    """A number of a log by which the verdict decides; logs are grouped by it."""

    key: str
    """Its name in a line of results."""
    bounds: tuple[float, ...]
    names: tuple[str, ...]
    """Estimators."""
    title: str
    includes: Callable[[dict[str, Any]], bool] = lambda _: True
    """Whether a log is in any group."""


THRESHOLDS = (
    Threshold("effective", EFFECTIVE, WEIGHTED, "effective episodes"),
    Threshold("unseen", UNSEEN, FITTED, "unseen share"),
    Threshold(
        "rewarded",
        REWARDED,
        (*WEIGHTED, *FITTED),
        "episodes with a reward, in logs of which at least half have none",
        lambda line: 2 * line["rewarded"] <= line["num_episodes"],
    ),
    Threshold(
        "effective_rewarded",
        EFFECTIVE_REWARDED,
        (*WEIGHTED, *FITTED),
        "effective episodes with a reward, in logs of 100 effective episodes or more",
        lambda line: line["effective"] >= 100,
    ),
)


def print_thresholds(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the coverage in groups of logs, over all problems and sizes."""
    rows = []
    for threshold in THRESHOLDS:
        print(f"\nCoverage of asymptotic intervals by {threshold.title}")
        print(f"{'':<12}{'logs':>6}" + "".join(f"{name:>11}" for name in threshold.names))
        included = [line for line in lines if threshold.includes(line)]
        for low, high in itertools.pairwise(threshold.bounds):
            chosen = [line for line in included if low <= line[threshold.key] < high]
            if not chosen:
                continue
            group = Group(chosen)
            label = f"{low:.2g} to {high:.2g}"
            cells = "".join(f"{100 * group.coverage(name):>11.0f}" for name in threshold.names)
            print(f"{label:<12}{len(chosen):>6}{cells}")
            rows += [
                {
                    "by": threshold.title,
                    "low": low,
                    "high": high,
                    "num_logs": len(chosen),
                    "estimator": name,
                    "coverage": group.coverage(name),
                    "bootstrap_coverage": group.bootstrap_coverage(name),
                }
                for name in threshold.names
            ]
    return rows


def print_verdicts(lines: list[dict[str, Any]]) -> None:
    """Print how often the interval of the estimate that the verdict names holds the exact value."""
    print("\nCoverage of the estimate that the verdict names\n" + f"{'':<14}{'logs':>6}{'95%':>6}{'b':>6}")
    for answer in ("yes", "with care", "no"):
        chosen = [line for line in lines if line["verdict"][0] == answer]
        if not chosen:
            continue
        groups = {name: [line for line in chosen if line["verdict"][1] == name] for name in ORDER}
        shares = []
        for coverage in (Group.coverage, Group.bootstrap_coverage):
            held = sum(coverage(Group(part), name) * len(part) for name, part in groups.items() if part)
            shares.append(100 * held / len(chosen))
        print(f"{answer:<14}{len(chosen):>6}{shares[0]:>6.0f}{shares[1]:>6.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, repetitions=1_000, output="interval_coverage.jsonl")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="episodes per log (50 200 1000)")
    parser.add_argument("--problems", nargs="+", default=[""], help="problems by the start of their names (all)")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + (5 if given.quick else given.repetitions))
    sizes = SIZES[:2] if given.quick else given.sizes
    chosen = [one.name for one in problems() if one.name.startswith(tuple(given.problems))]
    tasks = [(name, size, seed) for seed in seeds for name in chosen for size in sizes]
    if not given.tables:
        run_all(
            evaluate_one,
            tasks,
            given.output,
            given.jobs,
            key=lambda line: (line["problem"], line["num_episodes"], line["seed"]),
            of_task=lambda task: task,
        )
    lines = read_lines(given.output)
    rows = summarise(lines)
    print_summary(rows)
    write_csv(given.output.with_suffix(".csv"), rows)
    write_csv(given.output.with_suffix(".thresholds.csv"), print_thresholds(lines))
    print_verdicts(lines)


if __name__ == "__main__":
    main()
