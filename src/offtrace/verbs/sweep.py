"""`offtrace sweep`: the verb."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from offtrace.environments import NAMES, with_options
from offtrace.verbs.numbers import count, duration, harmless, number, short
from offtrace.verbs.report import print_troubles
from offtrace.verbs.streams import print_json


def sweep(
    games: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="ENV …")] = (),
    preset: Literal["figure_1", "table_2", "table_3", "ladder"] | None = None,
    scale: Literal["pocket", "minatar", "atari"] | None = None,
    traces: tuple[str, ...] = (),
    lambdas: tuple[float, ...] = (),
    seeds: int | None = None,
    first_seed: int = 0,
    num_steps: int | None = None,
    step_size: float | None = None,
    output: Path = Path("results.sqlite"),
    jobs: int | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    json: bool = False,
) -> None:
    """Trains games × traces × λ × seeds, and keeps every result in one SQLite file.

    Only what is missing there is run, so the same command goes on after a stop, and a larger sweep adds to a smaller
    one. Cells of one shape are trained together as one program. `offtrace report` makes a page of it, at any time.

    Example: offtrace sweep pocket/catch pocket/cartpole --lambdas 0.5 1.0 --seeds 8

    Example: offtrace sweep --preset table_2 --scale minatar

    Example: offtrace sweep minatar/breakout --seeds 20 --engine ray --ray-address auto

    Args:
        games: environments.
        preset: one of the paper's experiments; what else is given replaces its games, traces, λ, seeds or settings.
        scale: of the preset: pocket, minutes on two cores, if not given; minutes on one accelerator; the paper's own.
        traces: algorithms, by their names in `offtrace train`; the paper's four if none is named.
        lambdas: for those that have a λ; 1 if none is named.
        seeds: number of seeds for each algorithm and λ.
        first_seed: the first of them; the others follow it.
        num_steps: of each run; what suits the environment if not given.
        step_size: of each run; what suits the environment if not given.
        output: the file; made if it is not there.
        jobs: processes at once; one for each core if not given (on Ray, of the cluster); 0 for none but this.
        engine: this machine, or a Ray cluster, whose nodes have offtrace installed; the file stays on this machine.
        ray_address: of the cluster; if not given, that in RAY_ADDRESS, else one is started here for the sweep.
        json: print the scores as JSON, for a program to read.
    """
    from offtrace.agent.spec import to_json
    from offtrace.experiments import cluster
    from offtrace.experiments import engine as local
    from offtrace.experiments.presets import preset as named_preset
    from offtrace.experiments.spec import Sweep, cells, with_settings
    from offtrace.experiments.store import Store, fingerprint

    if not games and preset is None:
        raise ValueError("name an environment, `offtrace sweep pocket/catch`, or a preset, `--preset figure_1`.")
    if ray_address is not None and engine != "ray":
        raise ValueError(f"`--ray-address` must come with `--engine ray`; got `--engine {engine}`.")
    if scale is not None and preset is None:
        raise ValueError(f"`--scale` must come with `--preset`, whose games it chooses; got `--scale {scale}` alone.")
    check_jobs(jobs, least=0 if engine == "local" else None)
    check_first_seed(first_seed)
    run = partial(cluster.run, ray_address=ray_address) if engine == "ray" else local.run
    chosen = named_preset(preset, scale or "pocket") if preset else Sweep("sweep", games)
    given = {"games": games, "traces": traces, "lambdas": lambdas, "num_seeds": seeds}
    settings = {"num_steps": num_steps, "step_size": step_size}
    known = {name: value for name, value in settings.items() if value is not None}
    if preset == "ladder" and (traces or lambdas):
        raise ValueError("`--preset ladder` has algorithms of its own; leave out `--traces` and `--lambdas`.")
    chosen = replace(
        with_settings(chosen, known),
        first_seed=first_seed,
        **{name: value for name, value in given.items() if value not in ((), None)},
    )
    console = Console(stderr=json)
    specs = cells(chosen)
    done, stopped = with_progress(run, specs, output, console=console, jobs=jobs, here=engine == "local")
    mine = {fingerprint(to_json(spec)) for spec in specs}
    with Store(output, read_only=True) as store:
        runs = [run for run in store.runs() if run.fingerprint in mine]
    scores = mean_scores(runs)
    if json:
        print_json(scores)
    elif scores:
        console.print(_table(scores))
    print_troubles(runs, console)
    console.print(in_words(done, output), markup=False, highlight=False, soft_wrap=True)
    if stopped:
        kept = "saved" if engine == "local" else "what is finished is kept"
        console.print(f"Stopped, and {kept}; the same command goes on.")
        sys.exit(130)
    if done.num_left or done.num_diverged:
        sys.exit(3)


LAST_SEED = 2**31 - 1
MOST_JOBS = 1024


def check_jobs(jobs: int | None, *, least: int | None = 0) -> None:
    """Before anything is made."""
    if jobs is not None and least is not None and jobs < least:
        raise ValueError(f"`--jobs` must be at least {least}; got {jobs}. Leave it out for one for each core.")
    if jobs is not None and jobs > MOST_JOBS:
        raise ValueError(
            f"`--jobs` must be at most {MOST_JOBS:,}; got {short(jobs)}. Leave it out for one each core."
        )


def check_first_seed(first_seed: int) -> None:
    if not 0 <= first_seed < LAST_SEED - 10_000:  # a block of seeds begins there
        raise ValueError(f"`--first-seed` must be at least 0, and well below 2³¹; got {short(first_seed)}.")


def check_cells(specs: Sequence[Any], *, here: bool) -> None:
    """Refuses what training would refuse: settings that do not fit together, and games, each looked at once.

    On a cluster not for what is missing here, as its nodes have packages and accelerators of their own.
    """
    from offtrace.agent.settings import explain_missing_package, program_spec

    for spec in specs:
        program_spec(spec)
    for spec in {repr((spec.env, spec.options)): spec for spec in specs}.values():
        if here:
            with explain_missing_package(spec):
                made = with_options(spec.env, spec.options)
                if spec.env.startswith("gymnasium/"):
                    made(num_actors=1, seed=spec.seed).close()
        elif spec.env not in NAMES:  # which are known; pgx would start an accelerator
            with suppress(ImportError):
                with_options(spec.env, spec.options)


def with_progress(
    run: Callable[..., Any],
    specs: Sequence[Any],
    output: Path,
    *,
    console: Console,
    jobs: int | None = None,
    here: bool = True,
) -> tuple[Any, bool]:
    """Runs what is missing, with a bar over the whole sweep: its last progress, and whether somebody stopped it.

    What cannot be trained is refused before the file is touched; `here` is False on a cluster.
    """
    from offtrace.verbs.train import signals

    check_cells(specs, here=here)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    lines = None if console.is_terminal else Lines()
    with progress as shown, signals() as stopping:
        looking = f"looking up which of {len(specs):,} runs are stored"
        task = shown.add_task(looking, total=1.0, steps="")
        if lines is not None and len(specs) > MANY:
            lines.say(f"{looking.capitalize()} ...")

        def tell(now: Any) -> None:
            shown.update(
                task,
                description=so_far(now),
                completed=now.num_steps / max(1, now.total_steps),
                steps=f"{count(now.num_steps)} of {count(now.total_steps)} steps",
            )
            if lines is not None:
                lines.tell(now)

        command = shlex.join(["offtrace", *sys.argv[1:]])
        done = run(specs, output, jobs=jobs, command=command, tell=tell, stop=stopping)
        return done, stopping() and done.num_left > 0


MANY = 2_000
"""Runs that take a while to be looked up."""
LINE_SECONDS = 30.0


def so_far(now: Any) -> str:
    others = {"diverged": now.num_diverged, "failed": now.num_failed, "with another process": now.num_elsewhere}
    told = "".join(f", {number:,} {word}" for word, number in others.items() if number)
    return f"{now.num_done:,} of {now.num_runs:,} runs{told}"


class Lines:
    """Where there is no terminal, a line on standard error when runs have ended, and every half a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun = self._said = now()
        self._first: int | None = None
        self._ended = 0

    def tell(self, progress: Any) -> None:
        time_now = self._now()
        ended = progress.num_runs - progress.num_left + progress.num_failed
        if self._first is None:  # what was there before took no time
            self._first, self._ended = progress.num_steps, ended
        if (ended == self._ended or time_now - self._said < 1) and time_now - self._said < LINE_SECONDS:
            return
        self._ended, self._said = ended, time_now
        spent = time_now - self._begun
        share = (progress.num_steps - self._first) / max(1, progress.total_steps - self._first)
        left = f", about {duration(spent / share - spent)} left" if 0 < share < 1 else ""
        steps = f"{count(progress.num_steps)} of {count(progress.total_steps)} steps"
        self.say(f"{so_far(progress)}; {steps}; {duration(spent)} so far{left}")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def in_words(done: Any, output: Path) -> str:
    """How a sweep ended, on one line."""
    others = {"diverged": done.num_diverged, "failed": done.num_failed}
    told = "".join(f", {number:,} {word}" for word, number in others.items() if number)
    return harmless(f"{done.num_done + done.num_diverged:,} of {done.num_runs:,} runs are in {output}{told}.")


def mean_scores(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Of runs that are over, by game, algorithm and λ: the mean of the final scores of those that are done."""
    from offtrace.experiments.results import algorithms_of, scores
    from offtrace.experiments.store import OVER

    over = [run for run in runs if run.status in OVER]
    algorithms = algorithms_of(over)
    groups: dict[tuple[str, str, float], list[float]] = {}
    diverged: Counter[tuple[str, str, float]] = Counter()
    for run in over:
        key = (run.spec["env"], algorithms[run.fingerprint], run.spec["lambda_"])
        score = scores(run)["final"] if run.status == "done" else None
        groups.setdefault(key, []).extend([] if score is None else [score])
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


def _table(scores: Sequence[dict[str, Any]]) -> Table:
    caption = "Mean raw return of training episodes in the last tenth of a run."
    has_diverged = any(row["num_diverged"] for row in scores)
    if has_diverged:
        caption += " Runs that diverged have no score."
    columns = ["game", "algorithm", "λ", "runs", *(["diverged"] if has_diverged else []), "score"]
    table = Table(*columns, caption=caption, box=None, pad_edge=False)
    game = ""
    for row in scores:
        shown = row["env"] if row["env"] != game else ""
        game = row["env"]
        lambda_ = "" if row["trace"].partition(".")[0] in ("dqn", "one_step") else f"{row['lambda']:g}"
        score = number(row["score"]) if row["score"] is not None else "–"
        diverged = [str(row["num_diverged"])] if has_diverged else []
        table.add_row(
            Text(harmless(shown)), Text(harmless(row["trace"])), lambda_, str(row["num_runs"]), *diverged, score
        )
    return table
