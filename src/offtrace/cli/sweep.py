"""`offtrace sweep`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table
from rich.text import Text

from offtrace.cli.exit_codes import BROKEN, INTERRUPTED
from offtrace.cli.numbers import number, printable
from offtrace.cli.options import option
from offtrace.cli.report import print_troubles
from offtrace.cli.streams import Console, print_json, tell
from offtrace.cli.sweep_progress import check_first_seed, check_jobs, run_sweep
from offtrace.cli.sweep_settings import parsed_axes
from offtrace.cli.tables import new_table
from offtrace.scores import is_baseline

CHOSEN = "the preset's, or what suits the environment"


def sweep(
    envs: Annotated[tyro.conf.Positional[tuple[str, ...]], option("ENV …", "the preset's")] = (),
    preset: Annotated[
        Literal["figure_1", "table_2", "table_3", "ladder"] | None,
        option("{figure_1,table_2,table_3,ladder}", "none"),
    ] = None,
    scale: Annotated[Literal["pocket", "minatar", "atari"] | None, option("{pocket,minatar,atari}", "pocket")] = None,
    traces: Annotated[tuple[str, ...], option("NAME …", "the preset's, or retrace tree_backup q_lambda dqn")] = (),
    lambdas: Annotated[tuple[float, ...], option("FLOAT …", "the preset's, or 1")] = (),
    num_seeds: Annotated[int | None, option("INT", "the preset's, or 4")] = None,
    first_seed: int = 0,
    num_steps: Annotated[int | None, option("INT", CHOSEN)] = None,
    step_size: Annotated[float | None, option("FLOAT", CHOSEN)] = None,
    axes: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], option("FIELD=VALUE,…", "", name="set")] = (),
    options: Annotated[dict[str, bool | int | float | str] | None, option("NAME VALUE …", CHOSEN)] = None,
    output: Path = Path("results.sqlite"),
    jobs: Annotated[int | None, option("INT", "one per core")] = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: Annotated[
        str | None, option("ADDRESS", "$RAY_ADDRESS, else a cluster started here for the sweep")
    ] = None,
    json: bool = False,
) -> None:
    """Train environments × traces × λ × seeds, and store every result in one SQLite file.

    Only missing runs are trained, so the same command resumes a sweep after a stop, and a larger sweep adds to a
    smaller one. Runs of one shape are trained together as one program. `offtrace report` makes a page of the results,
    also while the sweep runs.

    Example: offtrace sweep pocket/catch --lambdas 0.5 1.0 --num-seeds 8

    Example: offtrace sweep CartPole-v1 --traces retrace dqn --set step_size=1e-4,1e-3 --set hidden_sizes=64x64,128

    Example: offtrace sweep --preset table_2 --scale minatar

    Example: offtrace sweep minatar/breakout --engine ray --ray-address auto

    Args:
        envs: Environments.
        preset: Experiment of the paper. Other options replace its environments, traces, λs, seeds or settings.
        scale: Size of the preset: pocket (minutes on two cores), minatar (minutes on a GPU), atari (the paper's).
        traces: Traces, by name as in `offtrace train`; your own as `my_module:MyTrace`.
        lambdas: Values of λ, for traces that have one.
        num_seeds: Number of seeds per trace and λ.
        first_seed: First seed; the others follow it.
        num_steps: Environment steps per run.
        step_size: Initial step size per run.
        axes: Any other option of `offtrace train`, with the values to compare. Repeat it for several options: every
            combination is run. Layers are joined by x, as in 64x64, `none` means no bound, and parameters of a trace
            are written as `trace_options=sigma:0.3,sigma:0.7`.
        options: Options of the environments, as in `offtrace train`.
        output: Results file; created if it does not exist.
        jobs: Number of processes, or of tasks on Ray; 0 runs everything in this process.
        engine: This machine, or a Ray cluster whose nodes have offtrace installed. The results file stays here.
        ray_address: Address of the Ray cluster.
        json: Print the scores as JSON.
    """
    from offtrace.agent.spec import to_json
    from offtrace.experiments import cluster
    from offtrace.experiments import engine as local
    from offtrace.experiments.spec import runs_of
    from offtrace.experiments.store import Store, fingerprint
    from offtrace.experiments.summary import mean_scores

    if ray_address is not None and engine != "ray":
        raise ValueError(f"`--ray-address` must come with `--engine ray`; got `--engine {engine}`.")
    check_jobs(jobs, least=0 if engine == "local" else None)
    check_first_seed(first_seed)
    run = partial(cluster.run, ray_address=ray_address) if engine == "ray" else local.run
    given = {"envs": envs, "traces": traces, "lambdas": lambdas, "num_seeds": num_seeds}
    settings = {"num_steps": num_steps, "step_size": step_size, "options": options}
    varied = parsed_axes(axes)
    specs = runs_of(replace(_planned(preset, scale, given, settings, varied), first_seed=first_seed), tell)
    console = Console(stderr=json)
    done, stopped = run_sweep(run, specs, output, jobs=jobs, here=engine == "local")
    mine = {fingerprint(to_json(spec)) for spec in specs}
    with Store(output, read_only=True) as store:
        runs = [run for run in store.runs() if run.fingerprint in mine]
    scores = mean_scores(runs)
    if json:
        print_json(scores)
    elif scores:
        console.print(_table(scores))
    print_troubles(runs, console)
    console.print(_summary(done, output), markup=False, highlight=False, soft_wrap=True)
    if stopped:
        kept = "Stopped and saved" if engine == "local" else "Stopped; finished runs are saved"
        console.print(f"{kept}. The same command resumes the sweep.")
        sys.exit(INTERRUPTED)
    if done.num_left or done.num_diverged:
        sys.exit(BROKEN)
    command = printable(shlex.join(["offtrace", "report", str(output)]))
    console.print(f"Compare them: {command}", markup=False, highlight=False, soft_wrap=True)


def _planned(
    preset: str | None,
    scale: str | None,
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]],
) -> Any:
    """Return the preset, or a new sweep, with the given values in place of its own."""
    from offtrace.experiments.presets import preset as named_preset
    from offtrace.experiments.spec import Sweep, with_settings

    changes = {name: value for name, value in given.items() if value not in ((), None)}
    if preset is None and "envs" not in changes:
        raise ValueError("name an environment, `offtrace sweep pocket/catch`, or a preset, `--preset figure_1`.")
    if preset is None and scale is not None:
        raise ValueError(f"`--scale` must come with `--preset`; got `--scale {scale}` alone.")
    if preset == "ladder" and ("traces" in changes or "lambdas" in changes):
        raise ValueError("`--preset ladder` has its own algorithms. Omit `--traces` and `--lambdas`.")
    if preset == "ladder" and {*axes} & {"target_policy", "double"}:
        raise ValueError("`--preset ladder` has its own target policies. Omit `--set target_policy` and `double`.")
    settings = {name: value for name, value in settings.items() if value is not None}
    for name in {*settings} & {*axes}:
        option_name = f"--{name.replace('_', '-')}"
        raise ValueError(f"`--set {name}=…` must not come with `{option_name}`. Omit one of them.")
    chosen = named_preset(preset, scale or "pocket") if preset else Sweep(changes["envs"])
    return replace(with_settings(chosen, settings, axes), **changes)


def _summary(done: Any, output: Path) -> str:
    """Return on one line how a sweep ended."""
    others = {"diverged": done.num_diverged, "failed": done.num_failed}
    rest = "".join(f", {number:,} {state}" for state, number in others.items() if number)
    return printable(f"{done.num_done + done.num_diverged:,} of {done.num_runs:,} runs are in {output}{rest}.")


def _table(scores: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row per environment, algorithm and λ."""
    from offtrace.experiments.algorithms import with_settings

    caption = "Mean raw return of training episodes in the last tenth of a run."
    has_diverged = any(row["num_diverged"] for row in scores)
    if has_diverged:
        caption += " Runs that diverged have no score."
    table = new_table(caption=caption)
    for name in ("environment", "algorithm"):
        table.add_column(name)
    for name in ("λ", "runs", "diverged", "score"):
        if name != "diverged" or has_diverged:
            table.add_column(name, justify="right")
    env_above = ""
    for row in scores:
        env = row["env"] if row["env"] != env_above else ""
        lambda_ = "" if is_baseline(row["trace"]) else f"{row['lambda']:g}"
        name = with_settings(row["trace"], row["settings"])
        cells = [Text(printable(env)), Text(printable(name)), lambda_, str(row["num_runs"])]
        if has_diverged:
            cells.append(str(row["num_diverged"]))
        cells.append("–" if row["score"] is None else number(row["score"]))
        table.add_row(*cells)
        env_above = row["env"]
    return table
