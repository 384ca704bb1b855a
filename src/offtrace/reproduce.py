"""The paper, at a scale that fits this machine: the traces on a worked example, its comparison in tables and with
networks, its published tables, and one page with all of it.

    reproduction/
      index.html        the page; figures/, tables/ and data/ are its parts as files
      results.sqlite    every run of the comparison with networks: what is there is not run again
      numbers.json      the worked example and the published tables rescored
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import offtrace as ot
from offtrace import scores
from offtrace.experiments import tabular
from offtrace.report.names import named
from offtrace.returns import reference
from offtrace.verbs.report import SIGNS, STYLES, theory

EXAMPLE: dict[str, Any] = {
    "q": np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 0.0], [2.0, 2.0]]),
    "a": np.array([0, 1, 0, 1]),
    "r": np.array([1.0, 0.0, 2.0, 1.0]),
    "discount": np.array([0.9, 0.9, 0.9, 0.9]),
    "pi": np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2], [0.55, 0.45], [0.5, 0.5]]),
    "mu_a": np.array([0.5, 0.6, 0.2, 0.9]),
}
"""Four steps, two actions, with ratios below and above 1: ρ_1 = ½, ρ_2 = 4, ρ_3 = ½."""

HEADINGS = {"20 small MDPs, in tables": "tables", "The paper's 60 Atari games": "paper"}


def run(output: Path, console: Console, *, scale: str = "pocket", jobs: int | None = None) -> dict[str, Any]:
    """Prints it, writes the page into `output`, and gives back the numbers.

    What an earlier call has trained is not trained again; whoever stops it loses nothing.
    """
    output.mkdir(parents=True, exist_ok=True)
    example, rescored = worked_example(), published_tables()
    console.print(_example_table(example))
    console.print(
        f"By the double sum of Section 5, in plain Python, the same to {example['difference']:.1e}.\n",
        style="dim",
        highlight=False,
    )
    trained = _trained(output, console, scale, jobs)
    in_tables = tabular_study(console).comparison()
    compared = [*(study.comparison for study in trained), in_tables, scores.published_comparison()]
    for comparison in compared[:-1]:
        console.print(_level_table(comparison))
    console.print(_claim_table(compared))
    console.print(_score_table(rescored))
    numbers = {
        "version": ot.__version__,
        "worked_example": example,
        "published_tables": rescored,
        "claims": {c.name: [claim._asdict() for claim in scores.claims(c)] for c in compared},
    }
    text = json.dumps(numbers, indent=2, ensure_ascii=False, default=vars) + "\n"
    (output / "numbers.json").write_text(text, encoding="utf-8")
    _write_page(output, trained, in_tables, console)
    return json.loads(text)


def _trained(output: Path, console: Console, scale: str, jobs: int | None) -> list[Any]:
    """The studies of all presets at that scale, trained as far as they are not yet."""
    from offtrace.agent.spec import to_json
    from offtrace.experiments import engine
    from offtrace.experiments.presets import PRESETS, preset
    from offtrace.experiments.results import studies
    from offtrace.experiments.spec import cells
    from offtrace.experiments.store import fingerprint, read
    from offtrace.verbs.sweep import tell_failures, with_progress

    specs = list({repr(spec): spec for name in PRESETS for spec in cells(preset(name, scale))}.values())
    mine = {fingerprint(to_json(spec)) for spec in specs}
    store = output / "results.sqlite"
    done, stopped = with_progress(engine.run, specs, store, console=console, jobs=jobs)
    runs = [run for run in read([store]) if run.fingerprint in mine]
    tell_failures(runs, console)
    left = done.num_runs - done.num_done
    if left:
        state = "Stopped, and saved" if stopped else "Not all could be run"
        console.print(f"{state}: {left} of {done.num_runs} runs are left; the same command goes on.")
        sys.exit(130 if stopped else 3)
    return studies(runs)


def _write_page(output: Path, trained: Sequence[Any], in_tables: scores.Comparison, console: Console) -> None:
    try:
        from offtrace.report import folder
    except ImportError as error:
        console.print(f"No page: {error}", style="yellow", highlight=False)
        return
    from offtrace.experiments.results import Study

    with _bar(console) as shown:
        task = shown.add_task("drawing", total=None)
        page = folder.write(
            output,
            [*trained, Study(in_tables, ())],
            extra_sections=[theory()],
            command=shlex.join(["offtrace", *sys.argv[1:]]),
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    console.print(f"Open [bold]{escape(str(page))}[/bold] for all of it, with curves and intervals.", highlight=False)


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("left:"), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def worked_example() -> dict[str, Any]:
    """For every trace at λ = 1: what reaches row 0 of each TD error, and the target that comes of it."""
    rows, difference = {}, 0.0
    pi_a = np.take_along_axis(EXAMPLE["pi"][:-1], EXAMPLE["a"][:, None], -1)[:, 0]
    q_a = np.take_along_axis(EXAMPLE["q"][:-1], EXAMPLE["a"][:, None], -1)[:, 0]
    for name, cls in ot.TRACES.items():
        trace = cls(1.0, **({"num_dims": 2} if cls is ot.ContinuousACER else {}))
        if isinstance(trace, ot.TrajectoryAware):
            betas = trace.betas(pi_a=pi_a, mu_a=EXAMPLE["mu_a"])
        else:
            given = {"q": EXAMPLE["q"], "pi": EXAMPLE["pi"], "a": EXAMPLE["a"]} if trace.needs_q else {}
            c = trace(pi_a=pi_a, mu_a=EXAMPLE["mu_a"], **given)
            betas = np.concatenate([[1.0], np.cumprod(c[1:])])
        target = ot.targets(**EXAMPLE, trace=trace)[0]
        expected = reference.expectations(EXAMPLE["q"], EXAMPLE["pi"])
        delta, _ = reference.double_sum(
            q_a, expected, EXAMPLE["r"], EXAMPLE["discount"], lambda start, t, _, betas=betas: float(betas[t - start])
        )
        difference = max(difference, abs(float(q_a[0] + delta[0] - target)))
        rows[name] = {"rule": cls.rule, "reach": betas.tolist(), "target": float(target), "safe": cls.safe}
    return {"traces": rows, "difference": difference}


def published_tables() -> dict[str, Any]:
    """Table 3 scored by the paper's own rule, beside what Table 2 prints for λ = 1."""
    final, by_lambda = scores.published_table_3(), scores.published_table_2()
    z = scores.inter_algorithm_scores(final.scores)
    printed = dict(zip(by_lambda.algorithms, by_lambda.averages[-1], strict=True))
    best = scores.times_best(final.scores, highlighted=final.highlighted)
    return {
        name: {
            "times_best": int(best[i]),
            "average": float(scores.average_scores(z)[i]),
            "printed": float(printed[name]),
        }
        for i, name in enumerate(final.algorithms)
    }


def tabular_study(console: Console) -> tabular.TabularResults:
    """The paper's comparison on small MDPs, with a progress bar."""
    with _bar(console) as shown:
        task = shown.add_task("learning in tables", total=None)
        return tabular.run(progress=lambda done, total: shown.update(task, completed=done, total=total))


def _table(title: str, caption: str) -> Table:
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)


def _example_table(example: dict[str, Any]) -> Table:
    table = _table(
        "Four steps, λ = 1: how much of each TD error reaches row 0",
        "ρ₁ = 0.3/0.6, ρ₂ = 0.8/0.2, ρ₃ = 0.45/0.9; d = 2, σ = ½, κ = 0.01. Safe: by Theorem 1, any π, μ.",
    )
    table.add_column("trace", no_wrap=True)
    table.add_column("c, or β from the start")
    for label in ("δ₁", "δ₂", "δ₃", "target"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("safe", no_wrap=True)
    for name, row in example["traces"].items():
        reach = [f"{x:.3g}" for x in row["reach"][1:]]  # δ₀ always does, in full
        table.add_row(name, row["rule"], *reach, f"{row['target']:.4f}", "yes" if row["safe"] else "no")
    return table


def _level_table(comparison: scores.Comparison) -> Table:
    found = comparison.averages("level")
    table = _table(
        f"{comparison.name}: {found.num_games} games, {found.num_runs} runs",
        "Level: 0 is the worst and 1 the best mean score of a game over all of these; averaged over games.",
    )
    table.add_column("λ", justify="right")
    for name in found.algorithms:
        table.add_column(named(name), justify="right", no_wrap=True)
    for lambda_, row in zip(found.lambdas, found.value, strict=True):
        table.add_row(f"{lambda_:g}", *(f"{value:.2f}" for value in row))
    return table


def _claim_table(compared: Sequence[scores.Comparison]) -> Table:
    table = _table(
        "What the paper says, and what these runs and its own tables say of it",
        "A difference of scores or levels, positive if it is true. By 95 % intervals, which the page has: ✓ holds, "
        "✗ does not hold, ? cannot tell.",
    )
    table.add_column("claim")
    for comparison in compared:
        table.add_column(HEADINGS.get(comparison.name, comparison.name), justify="right", no_wrap=True)
    for row in zip(*(scores.claims(comparison) for comparison in compared), strict=True):
        cells = []
        for claim in row:
            value = f"{claim.difference.value:+.2f} " if claim.difference else ""
            cells.append(Text(value + SIGNS[claim.verdict], STYLES[claim.verdict]))
        table.add_row(row[0].text, *cells)
    return table


def _score_table(rescored: dict[str, Any]) -> Table:
    table = _table(
        "The paper's 60 Atari games (its Table 3), scored again",
        "Score: 0 is the worst and 1 the best of the four on a game; averaged over games.",
    )
    table.add_column("algorithm")
    for label in ("times best", "average score", "printed (Table 2)"):
        table.add_column(label, justify="right")
    for name, row in sorted(rescored.items(), key=lambda item: -item[1]["average"]):
        table.add_row(named(name), str(row["times_best"]), f"{row['average']:.4f}", f"{row['printed']:.4f}")
    return table
