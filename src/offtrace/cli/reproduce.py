"""`offtrace reproduce`."""

import json as json_module
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.markup import escape

from offtrace.cli import extras
from offtrace.cli.exit_codes import BROKEN, INTERRUPTED
from offtrace.cli.options import option
from offtrace.cli.progress import ProgressBar
from offtrace.cli.report import print_findings, print_troubles
from offtrace.cli.streams import Console, print_json
from offtrace.cli.sweep_progress import check_first_seed, check_jobs, run_sweep


def reproduce(
    scale: Literal["pocket", "minatar", "atari"] = "pocket",
    output: Path = Path("reproduction"),
    first_seed: int = 0,
    jobs: Annotated[int | None, option("INT", "one per core")] = None,
    json: bool = False,
) -> None:
    """Reproduce the paper on this machine, and make one page of the results.

    The parts are the theory, the comparison in tables and with networks, and the published tables.
    Stop it at any time; the same command resumes it. Stored runs are not run again.

    The comparison with networks has three scales: pocket, the small world, takes minutes on two
    cores; minatar takes minutes on one accelerator; atari is the paper's own, with 60 games and 200
    million frames per run.

    Example: offtrace reproduce --output reproduction

    Args:
        scale: Size of the comparison with networks.
        output: Folder for the page, figures, tables and results; created if it does not exist.
        first_seed: First random seed. Another block of seeds, such as 100, repeats the experiment.
        jobs: Number of processes; 0 runs everything in this process, as on an accelerator.
        json: Print the numbers as JSON.
    """
    check_jobs(jobs)
    check_first_seed(first_seed)
    console = Console(stderr=json)
    _check_packages(scale, console)
    numbers = run(output, console, scale=scale, first_seed=first_seed, jobs=jobs)
    if json:
        print_json(numbers)
    if numbers["num_diverged"]:
        sys.exit(BROKEN)


def _check_packages(scale: str, console: Console) -> None:
    """Check that all packages are installed before anything runs; only the page can be left out."""
    suite = [name for name, extra in extras.EXTRAS.items() if extra == scale]
    missing = extras.missing([*extras.AGENT, *suite, *extras.PAGE])
    if set(missing) - set(extras.PAGE):
        raise ValueError(f"this needs {extras.remedy(missing)}")
    if missing:
        line = f"There will be tables but no page, which needs {extras.remedy(missing)}"
        console.print(line, style="yellow", markup=False)


def run(
    output: Path, console: Console, *, scale: str = "pocket", first_seed: int = 0, jobs: int | None = None
) -> dict[str, Any]:
    """Print the parts as they are done, write the page, and return the numbers."""
    from offtrace import reproduction
    from offtrace.cli import reproduce_tables as tables

    output.mkdir(parents=True, exist_ok=True)
    example = reproduction.worked_example()
    console.print(tables.example_table(example))
    line = f"The double sum of Section 5, in plain Python, differs by at most {example['difference']:.1e}.\n"
    console.print(line, style="dim", highlight=False)
    runs = _trained(output / "results.sqlite", console, scale, first_seed, jobs)
    with ProgressBar("learning in tables") as bar:
        in_tables = reproduction.tabular_studies(first_seed, bar.update)
    found = reproduction.compare(runs, in_tables)
    for comparison in found.comparisons[:-1]:
        console.print(tables.level_table(comparison), "")
    for study in found.trained:
        if study.ladder is not None:
            console.print(tables.ladder_table(study.ladder), "")
    console.print(tables.claim_table(found.comparisons), "")
    console.print(tables.score_table(found.rescored), "")
    numbers = found.numbers()
    text = json_module.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
    (output / "numbers.json").write_text(text, encoding="utf-8")
    page = _written_page(output, found, console)
    title = f"What was found, by {found.num_trained:,} runs of networks and {found.num_in_tables:,} in tables:"
    console.print(title, style="bold", highlight=False)
    print_findings(numbers["found"], console)
    if page is not None:
        console.print(f"Open [bold]{escape(str(page))}[/bold]", highlight=False, soft_wrap=True)
    return numbers


def _trained(results: Path, console: Console, scale: str, first_seed: int, jobs: int | None) -> list[Any]:
    """Train the runs that are missing in the results file, and return all; exit if some are left."""
    from offtrace import reproduction
    from offtrace.experiments import engine
    from offtrace.experiments.networks import remove_networks

    specs = reproduction.planned_runs(scale, first_seed)
    done, stopped = run_sweep(engine.run, specs, results, jobs=jobs)
    remove_networks(results)  # nearly two thousand of them, which the page does not need
    runs = reproduction.stored_runs(results, specs)
    print_troubles(runs, console)
    if done.num_left:
        state = "Stopped and saved" if stopped else "Some runs failed"
        console.print(f"{state}: {done.num_left} of {done.num_runs} runs are left. The same command resumes.")
        sys.exit(INTERRUPTED if stopped else BROKEN)
    return runs


def _written_page(output: Path, found: Any, console: Console) -> Path | None:
    from offtrace import reproduction

    command = shlex.join(["offtrace", *sys.argv[1:]])
    try:
        with ProgressBar("drawing") as bar:
            return reproduction.write_page(output, found, command=command, progress=bar.update)
    except ImportError as error:
        console.print(f"No page: {error}", style="yellow", highlight=False)
        return None
