"""Mean scores of stored runs, by environment, algorithm and λ."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from offtrace.experiments.results import algorithms_of, scores
from offtrace.experiments.store import OVER, StoredRun


def mean_scores(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return the mean final score of the runs that are done, per environment, algorithm and λ.

    Runs that diverged are counted and have no score; runs that are not over are left out.
    """
    over = [run for run in runs if run.status in OVER]
    algorithms = algorithms_of(over)
    groups: dict[tuple[str, str, float], list[float]] = {}
    diverged: Counter[tuple[str, str, float]] = Counter()
    for run in over:
        key = (run.spec["env"], algorithms[run.fingerprint], run.spec["lambda_"])
        score = scores(run)["final"] if run.status == "done" else None
        group = groups.setdefault(key, [])
        if score is not None:
            group.append(score)
        diverged[key] += run.status == "diverged"
    return [
        {
            "env": env,
            "trace": trace,
            "lambda": lambda_,
            "num_runs": len(values),
            "num_diverged": diverged[env, trace, lambda_],
            "score": sum(values) / len(values) if values else None,
        }
        for (env, trace, lambda_), values in sorted(groups.items())
    ]
