"""`offtrace sweep`: the verb."""

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from offtrace.verbs.display import count, number


def sweep(
    games: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="ENV …")],
    traces: tuple[str, ...] = ("retrace", "tree_backup", "q_lambda", "dqn"),
    lambdas: tuple[float, ...] = (1.0,),
    seeds: int = 4,
    num_steps: int | None = None,
    step_size: float | None = None,
    output: Path = Path("results.sqlite"),
    jobs: int | None = None,
    json: bool = False,
) -> None:
    """Trains games × traces × λ × seeds, and keeps every result in one SQLite file.

    Only what is missing there is run, so the same command goes on after a stop, and a larger sweep adds to a smaller
    one. Cells of one shape are trained together as one program.

    Example: offtrace sweep pocket/catch pocket/cartpole --lambdas 0.5 1.0 --seeds 8

    Args:
        games: environments.
        traces: algorithms, by their names in `offtrace train`.
        lambdas: for those that have a λ.
        seeds: of each cell: 0 to this, without it.
        num_steps: of each run; what suits the environment if not given.
        step_size: of each run; what suits the environment if not given.
        output: the file; made if it is not there.
        jobs: processes at once; one for each core if not given, and 0 for none but this, as on an accelerator.
        json: print the scores as JSON, for a program to read.
    """
    from offtrace.experiments import engine
    from offtrace.experiments.spec import Sweep, cells
    from offtrace.experiments.store import Store
    from offtrace.verbs.train import signals

    if not games:
        raise ValueError("name an environment: `offtrace sweep pocket/catch`.")
    settings = {"num_steps": num_steps, "step_size": step_size}
    settings = {name: value for name, value in settings.items() if value is not None}
    specs = cells(Sweep("sweep", games, traces, lambdas, seeds, settings))
    console = Console(stderr=json)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown, signals() as stopping:
        task = shown.add_task("starting", total=1.0, steps="")

        def tell(now: engine.Progress) -> None:
            failed = f", {now.num_failed} failed" if now.num_failed else ""
            shown.update(
                task,
                description=f"{now.num_done} of {now.num_runs} runs{failed}",
                completed=now.num_steps / max(1, now.total_steps),
                steps=f"{count(now.num_steps)} of {count(now.total_steps)} steps",
            )

        command = "offtrace sweep " + " ".join(games)
        done = engine.run(specs, output, jobs=jobs, command=command, tell=tell, stop=stopping)
        stopped = stopping() and done.num_done < done.num_runs
    with Store(output, read_only=True) as store:
        scores = mean_scores([run for run in store.runs() if run.status == "done"])
        failures = [run for run in store.runs(status="failed")]
    if json:
        print(json_module.dumps(scores, indent=2, ensure_ascii=False))
    else:
        console.print(_table(scores))
    for run in failures:
        last = (run.failure or "").strip().splitlines()[-1:] or ["no reason known"]
        console.print(
            f"failed: {run.spec['env']} {run.spec['trace']} seed {run.spec['seed']}: {last[0]}", markup=False
        )
    left = done.num_runs - done.num_done
    console.print(f"{done.num_done} of {done.num_runs} runs are in {output}.", markup=False, highlight=False)
    if stopped:
        console.print("Stopped and saved; the same command goes on.")
        sys.exit(130)
    if left:
        sys.exit(3)


def mean_scores(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Of runs that are done, by game, trace and λ: the mean of their scores, as `ot.scores.run_score` has them."""
    from offtrace.scores import run_score

    groups: dict[tuple[str, str, float], list[float]] = {}
    for run in runs:
        reports = [report for report in run.reports if report.tick]
        score = run_score(
            steps=[report.num_steps for report in reports],
            returns=[report.episode_return for report in reports],
            num_episodes=[report.num_episodes for report in reports],
        )
        key = (run.spec["env"], run.spec["trace"], run.spec["lambda_"])
        groups.setdefault(key, []).extend([] if score.value is None else [score.value])
    return [
        {
            "env": env,
            "trace": trace,
            "lambda": lambda_,
            "num_runs": len(values),
            "score": sum(values) / len(values) if values else None,
        }
        for (env, trace, lambda_), values in sorted(groups.items())
    ]


def _table(scores: Sequence[dict[str, Any]]) -> Table:
    caption = "Mean raw return of training episodes in the last tenth of a run."
    table = Table("game", "algorithm", "λ", "runs", "score", caption=caption, box=None, pad_edge=False)
    game = ""
    for row in scores:
        shown = row["env"] if row["env"] != game else ""
        game = row["env"]
        lambda_ = "" if row["trace"] == "dqn" else f"{row['lambda']:g}"
        score = number(row["score"]) if row["score"] is not None else "–"
        table.add_row(shown, row["trace"], lambda_, str(row["num_runs"]), score)
    return table
