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
from dataclasses import replace
from functools import partial
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
from offtrace.experiments.presets import SMALL_LAMBDAS
from offtrace.experiments.results import Study
from offtrace.experiments.theory import contractions
from offtrace.mdp import SMALL_WORLD
from offtrace.report.findings import SHORT_SCORES, SIGNS, Materials, different_runs, findings, scores_of
from offtrace.report.ladder import rung_rows
from offtrace.report.names import counted, named
from offtrace.returns import reference
from offtrace.verbs.report import STYLES, print_findings, print_troubles, theory

EXAMPLE: dict[str, Any] = {
    "q": np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 0.0], [2.0, 2.0]]),
    "a": np.array([0, 1, 0, 1]),
    "r": np.array([1.0, 0.0, 2.0, 1.0]),
    "discount": np.array([0.9, 0.9, 0.9, 0.9]),
    "pi": np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2], [0.55, 0.45], [0.5, 0.5]]),
    "mu_a": np.array([0.5, 0.6, 0.2, 0.9]),
}
"""Four steps, two actions, with ratios below and above 1: ρ_1 = ½, ρ_2 = 4, ρ_3 = ½."""


def run(
    output: Path, console: Console, *, scale: str = "pocket", first_seed: int = 0, jobs: int | None = None
) -> dict[str, Any]:
    """Prints it, writes the page into `output`, and gives back the numbers.

    What an earlier call has trained is not trained again; whoever stops it loses nothing. Runs that diverged are
    named, and count as the worst of their game.
    """
    output.mkdir(parents=True, exist_ok=True)
    example, rescored = worked_example(), published_tables()
    console.print(_example_table(example))
    console.print(
        f"By the double sum of Section 5, in plain Python, the same to {example['difference']:.1e}.\n",
        style="dim",
        highlight=False,
    )
    trained = _trained(output, console, scale, first_seed, jobs)
    theory = contractions(SMALL_LAMBDAS)
    small, twenty = (study.comparison() for study in tabular_studies(console, first_seed))
    compared = [*(study.comparison for study in trained), small, twenty, scores.published_comparison()]
    for comparison in compared[:-1]:
        console.print(_level_table(comparison))
    for study in trained:
        if study.ladder is not None:
            console.print(_ladder_table(study.ladder))
    console.print(_claim_table(compared))
    console.print(_score_table(rescored))
    materials = Materials(theory, small, trained[0] if trained else None)
    sentences = findings(materials)
    numbers = {
        "version": ot.__version__,
        "worked_example": example,
        "published_tables": rescored,
        "contractions": [each._asdict() for each in theory],
        "claims": {
            c.name: {stretch: [claim._asdict() for claim in scores.claims(c, stretch)] for stretch in scores_of(c)}
            for c in compared
        },
        "found": sentences,
        "num_diverged": sum(study.num_by_status.get("diverged", 0) for study in trained),
    }
    text = json.dumps(numbers, indent=2, ensure_ascii=False, default=vars) + "\n"
    (output / "numbers.json").write_text(text, encoding="utf-8")
    page = _write_page(output, trained, [small, twenty], materials, console)
    num_trained = sum(different_runs(study) for study in trained)
    num_in_tables = sum(different_runs(Study(each, ())) for each in (small, twenty))
    told_of = f"What was found, by {num_trained:,} runs of networks and {num_in_tables:,} in tables:"
    console.print(told_of, style="bold", highlight=False)
    print_findings(sentences, console)
    if page is not None:
        console.print(f"Open [bold]{escape(str(page))}[/bold]", highlight=False, soft_wrap=True)
    return json.loads(text)


def _trained(output: Path, console: Console, scale: str, first_seed: int, jobs: int | None) -> list[Any]:
    """The studies of all presets at that scale, trained as far as they are not yet."""
    from offtrace.agent.spec import to_json
    from offtrace.experiments import engine
    from offtrace.experiments.presets import PRESETS, preset
    from offtrace.experiments.results import studies
    from offtrace.experiments.spec import runs_of
    from offtrace.experiments.store import fingerprint, read
    from offtrace.verbs.sweep import with_progress

    sweeps = [replace(preset(name, scale), first_seed=first_seed) for name in PRESETS]
    specs = list({repr(spec): spec for sweep in sweeps for spec in runs_of(sweep)}.values())
    mine = {fingerprint(to_json(spec)) for spec in specs}
    store = output / "results.sqlite"
    done, stopped = with_progress(engine.run, specs, store, console=console, jobs=jobs)
    runs = [run for run in read([store]) if run.fingerprint in mine]
    print_troubles(runs, console)
    left = done.num_left
    if left:
        state = "Stopped, and saved" if stopped else "Not all could be run"
        console.print(f"{state}: {left} of {done.num_runs} runs are left; the same command goes on.")
        sys.exit(130 if stopped else 3)
    return studies(runs)


def _write_page(
    output: Path,
    trained: Sequence[Any],
    in_tables: Sequence[scores.Comparison],
    materials: Materials,
    console: Console,
) -> Path | None:
    try:
        from offtrace.report import folder
    except ImportError as error:
        console.print(f"No page: {error}", style="yellow", highlight=False)
        return None
    with _bar(console) as shown:
        task = shown.add_task("drawing", total=None)
        return folder.write(
            output,
            [*trained, *(Study(comparison, ()) for comparison in in_tables)],
            materials=materials,
            extra_sections=[theory()],
            command=shlex.join(["offtrace", *sys.argv[1:]]),
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )


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


def tabular_studies(console: Console, first_seed: int) -> list[tabular.TabularResults]:
    """The paper's comparison in tables, on the small world and on twenty MDPs, with a progress bar."""
    small = tabular.TabularStudy(
        games=tuple(SMALL_WORLD),
        lambdas=SMALL_LAMBDAS,
        num_seeds=16,
        num_episodes=100,
        exact=True,
        first_seed=first_seed,
    )
    found = []
    for study in (small, tabular.TabularStudy(first_seed=first_seed)):
        with _bar(console) as shown:
            task = shown.add_task("learning in tables", total=None)
            tell = partial(_tell, shown, task)
            found.append(tabular.run(study, progress=tell))
    return found


def _tell(shown: Progress, task: Any, done: int, total: int) -> None:
    shown.update(task, completed=done, total=total)


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
    """Both scores by λ: training, and at ε ≈ 0. Variants are in the table of the ladder."""
    found = {stretch: comparison.averages("level", stretch) for stretch in scores_of(comparison)}
    first = found["final"]
    scale = "0 is the worst and 1 the best mean of a game over all of these"
    if comparison.anchors is not None:
        scale = "0 is random play and 1 the optimal policy, exactly"
    table = _table(
        f"{comparison.name}: {counted(first.num_games, 'game')}, {first.num_runs:,} runs",
        f"Training score | evaluation at ε ≈ 0. {scale}; averaged over games.",
    )
    table.add_column("λ", justify="right")
    columns = [a for a, name in enumerate(first.algorithms) if "." not in name]
    for a in columns:
        table.add_column(named(first.algorithms[a]), justify="right", no_wrap=True)
    for i, lambda_ in enumerate(first.lambdas):
        cells = []
        for a in columns:
            values = [f"{averages.value[i, a]:z.2f}" for averages in found.values()]
            cells.append(" | ".join(values))
        table.add_row(f"{lambda_:g}", *cells)
    return table


def _ladder_table(ladder: scores.Comparison) -> Table:
    table = _table(
        ladder.name, "Averages over games, and differences to the rung that each is one step from, ± 95 %."
    )
    table.add_column("rung", no_wrap=True)
    for stretch in scores_of(ladder):
        table.add_column(SHORT_SCORES[stretch], justify="right", no_wrap=True)
        table.add_column("difference", justify="right", no_wrap=True)
    for rung in rung_rows(ladder):
        cells = []
        for stretch, value in rung.values.items():
            cells += [f"{value:z.2f}", _plus_minus(rung.differences[stretch])]
        table.add_row(rung.title, *cells)
    return table


def _plus_minus(found: scores.Interval | None) -> str:
    if found is None:
        return ""
    half = "" if found.low is None or found.high is None else f" ± {(found.high - found.low) / 2:.2f}"
    return f"{found.value:+z.2f}{half}"


def _claim_table(compared: Sequence[scores.Comparison]) -> Table:
    table = _table(
        "What the paper says, and what these runs and its own tables say of it",
        "A difference that is positive if it is true, by the training score, then at ε ≈ 0. ✓ holds, ✗ does not "
        "hold, ? cannot tell. In tables one-step learning takes the place of DQN. Intervals are on the page.",
    )
    table.add_column("claim")
    answers = []
    for comparison in compared:
        table.add_column(HEADINGS.get(comparison.name, comparison.name), no_wrap=True)
        by_score = [scores.claims(comparison, stretch) for stretch in scores_of(comparison)]
        answers.append(
            [{claim.text.replace("one-step learning", "DQN"): claim for claim in found} for found in by_score]
        )
    for text in answers[-1][0]:
        cells = [Text(" ").join(_verdict(given.get(text)) for given in found) for found in answers]
        table.add_row(text, *cells)
    return table


def _verdict(claim: scores.Claim | None) -> Text:
    """Six characters, so that verdicts stand in columns."""
    if claim is None:
        return Text("–".rjust(6), "dim")
    value = f"{claim.difference.value:+z.2f}" if claim.difference else ""
    return Text(f"{value + SIGNS[claim.verdict]:>6}", STYLES[claim.verdict])


HEADINGS = {
    "The small world": "networks",
    "The small world, tabular": "tables",
    "20 small MDPs, tabular": "20 MDPs",
    "The paper's 60 Atari games": "paper",
}


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
