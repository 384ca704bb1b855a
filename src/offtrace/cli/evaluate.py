"""`offtrace evaluate LOG`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.markup import escape

from offtrace.agent.own_traces import is_reference, loaded
from offtrace.cli.evaluate_tables import print_comparison, print_evaluation
from offtrace.cli.options import option
from offtrace.cli.outputs import prepare_output
from offtrace.cli.progress import ProgressBar
from offtrace.cli.streams import Console, print_json, tell
from offtrace.evaluation import DEFAULT, Comparison, Evaluation, as_target, compare, estimate, read
from offtrace.traces import as_trace


def evaluate(
    logs: Annotated[tyro.conf.Positional[tuple[str, ...]], option("LOG …", "")] = (),
    target: Annotated[str, option("POLICY", "")] = "",
    targets: Annotated[tuple[str, ...], option("POLICY …", "none")] = (),
    gamma: float = 0.99,
    trace: Annotated[str, option("NAME")] = "retrace",
    lambda_: Annotated[float, option("FLOAT", name="lambda")] = 1.0,
    traces: Annotated[tuple[str, ...], option("NAME …", "none")] = (),
    estimators: Annotated[tuple[str, ...], option("NAME …")] = DEFAULT,
    epsilon: float = 0.0,
    columns: Annotated[tuple[str, ...], option("NAME=COLUMN …", "as in the docs")] = (),
    num_folds: int = 5,
    num_bootstrap: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
    engine: Literal["local", "ray"] = "local",
    ray_address: Annotated[str | None, option("ADDRESS", "$RAY_ADDRESS, else a cluster started here")] = None,
    jobs: Annotated[int | None, option("INT", "one per core of the cluster")] = None,
    allow_import: Annotated[tuple[str, ...], option("MODULE …", "none")] = (),
    output: Annotated[Path | None, option("PATH", "write nothing")] = None,
    json: bool = False,
) -> None:
    """Estimate what a policy would earn, from a log of episodes of another policy.

    LOG is a file log.parquet, log.csv or log.npz, a folder or several files of Parquet, or the name of a Minari
    dataset. It has a row per step: episode, step, state (a number) or observation (a vector), action, reward,
    terminated, truncated and, where it is known, behaviour_probability.

    POLICY is a file policy.npy (X, A), the folder of a run, or a function `my_module:policy` from states or
    observations to probabilities. Several policies are compared with each other and with the log.

    Example: offtrace evaluate log.parquet --target policy.npy --gamma 0.99 --trace retrace --lambda 0.9

    Example: offtrace evaluate log.parquet --target new.npy --targets newer.npy --output evaluation

    Args:
        logs: Log to read; several files of Parquet are one log.
        target: Target policy π.
        targets: More target policies, to compare.
        gamma: Discount γ in [0, 1].
        trace: Trace of the fitted evaluation; your own as `my_module:MyTrace`.
        lambda_: λ of the traces that have one.
        traces: More traces, to compare.
        estimators: Estimators beside the traces: is, wis, pdis, wpdis, dr, wdr, fqe, model.
        epsilon: Probability of a random action of a saved agent; 0 is its greedy policy.
        columns: Columns of the log that have other names, such as `state=s action=a`.
        num_folds: Folds of episodes, for an estimated μ and the model of the doubly robust forms.
        num_bootstrap: Bootstrap samples.
        confidence: Coverage of the intervals.
        seed: Random seed of folds and bootstrap samples.
        engine: This machine, or a Ray cluster whose nodes have offtrace installed.
        ray_address: Address of the Ray cluster.
        jobs: Workers on Ray.
        allow_import: Modules that a saved agent may import.
        output: Folder for a chart, a table (CSV) and the numbers (JSON); created if it does not exist.
        json: Print the numbers as JSON.
    """
    if not logs:
        raise ValueError("name a log: `offtrace evaluate log.parquet --target policy.npy`.")
    if not target:
        raise ValueError("name a target policy: `--target policy.npy`.")
    twice = {name for name in (target, *targets) if (target, *targets).count(name) > 1}
    if twice:
        raise ValueError(f"`targets` must name each policy once; got {min(twice)!r} twice.")
    if output is not None:
        prepare_output(output)
    console = Console(stderr=json)
    source = logs[0] if len(logs) == 1 else list(logs)
    with ProgressBar("reading the log"):
        steps = read(source, columns=_renamed(columns), tell=tell)
    policies = {
        name: as_target(name, log=steps, epsilon=epsilon, allow_import=allow_import, tell=tell)
        for name in (target, *targets)
    }
    chosen = [loaded(name, tell) if is_reference(name) else name for name in (trace, *traces)]
    made = [as_trace(one, lambda_) for one in chosen]
    settings: dict[str, Any] = {
        "gamma": gamma,
        "trace": made[0],
        "traces": made[1:],
        "estimators": estimators,
        "num_folds": num_folds,
        "num_bootstrap": num_bootstrap,
        "confidence": confidence,
        "seed": seed,
        "engine": engine,
        "ray_address": ray_address,
        "num_workers": jobs,
    }
    with ProgressBar("evaluating") as bar:
        settings["progress"] = bar.update
        if len(policies) == 1:
            found: Evaluation | Comparison = estimate(steps, target=next(iter(policies.values())), **settings)
        else:
            found = compare(steps, targets=policies, **settings)
    if json:
        print_json(found.as_dict())
    elif isinstance(found, Evaluation):
        print_evaluation(found, console)
    else:
        print_comparison(found, console)
    if output is not None:
        from offtrace.report.evaluation import write_evaluation

        files = write_evaluation(found, output)
        console.print(f"Written to [bold]{escape(str(output))}/[/bold]: {', '.join(files)}", highlight=False)


def _renamed(columns: tuple[str, ...]) -> dict[str, str] | None:
    found = {}
    for text in columns:
        name, equals, column = text.partition("=")
        if not (name and equals and column):
            raise ValueError(f"`columns` must look like `state=s`; got {text!r}.")
        found[name] = column
    return found or None
