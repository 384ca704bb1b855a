"""Mean scores of stored runs, by environment, algorithm and λ."""

from collections.abc import Sequence
from typing import Any

from offtrace.experiments.algorithms import algorithms_of, settings_of, traces_of
from offtrace.experiments.results import scores
from offtrace.experiments.store import OVER, StoredRun
from offtrace.scores.keys import in_order


def mean_scores(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """Return the mean final score of the runs that are done, per environment, algorithm and λ.

    Runs that diverged are counted and have no score; runs that are not over are left out.
    """
    over = [run for run in runs if run.status in OVER]
    algorithms = algorithms_of(over)
    order = in_order(set(algorithms.values()))
    groups: dict[tuple[str, int, float], list[StoredRun]] = {}
    for run in over:
        place = order.index(algorithms[run.fingerprint])
        groups.setdefault((run.spec["env"], place, run.spec["lambda_"]), []).append(run)
    traces = traces_of(over)
    settings = settings_of(over)
    rows = []
    for (env, _, lambda_), group in sorted(groups.items()):
        done = [scores(run)["final"] for run in group if run.status == "done"]
        values = [score for score in done if score is not None]
        rows.append(
            {
                "env": env,
                "trace": traces[group[0].fingerprint],
                "settings": settings[group[0].fingerprint],
                "lambda": lambda_,
                "num_runs": len(values),
                "num_diverged": sum(run.status == "diverged" for run in group),
                "score": sum(values) / len(values) if values else None,
            }
        )
    return rows
