"""Tables of `offtrace reproduce`."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from offtrace import scores
from offtrace.cli.tables import VERDICT_STYLES, new_table
from offtrace.report.findings import SHORT_SCORES, SIGNS, scores_of
from offtrace.report.ladder import rung_rows
from offtrace.report.names import counted, named
from offtrace.report.wording import score_text, signed_text

HEADINGS = {
    "The small world": "networks",
    "The small world, tabular": "tables",
    "20 small MDPs, tabular": "20 MDPs",
    "The paper's 60 Atari games": "paper",
}
"""Short names of the comparisons."""


def example_table(example: dict[str, Any]) -> Table:
    """Return how much of each TD error reaches row 0, with a row per trace."""
    table = new_table(
        "Four steps, λ = 1: how much of each TD error reaches row 0",
        "ρ₁ = 0.3/0.6, ρ₂ = 0.8/0.2, ρ₃ = 0.45/0.9; d = 2, σ = ½, κ = 0.01. Safe: by Theorem 1, any π, μ.",
    )
    table.add_column("trace", no_wrap=True)
    table.add_column("c, or β from the start")
    for label in ("δ₁", "δ₂", "δ₃", "target"):
        table.add_column(label, justify="right", no_wrap=True)
    table.add_column("safe", no_wrap=True)
    for name, row in example["traces"].items():
        reach = [f"{x:.3g}" for x in row["reach"][1:]]  # δ₀ reaches row 0 in full
        table.add_row(name, row["rule"], *reach, f"{row['target']:.4f}", "yes" if row["safe"] else "no")
    return table


def level_table(comparison: scores.Comparison) -> Table:
    """Return both scores by λ, training and at ε ≈ 0. Variants are in the table of the ladder."""
    found = {stretch: comparison.averages("level", stretch) for stretch in scores_of(comparison)}
    first = found["final"]
    scale = "0 is the worst and 1 the best mean of a game over all of these"
    if comparison.anchors is not None:
        scale = "0 is random play and 1 the optimal policy, exactly"
    table = new_table(
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
            values = [score_text(averages.value[i, a]) for averages in found.values()]
            cells.append(" | ".join(values))
        table.add_row(f"{lambda_:g}", *cells)
    return table


def ladder_table(ladder: scores.Comparison) -> Table:
    """Return the rungs from DQN to Retrace, with the difference that each makes."""
    table = new_table(ladder.name, "Averages over games, and differences from the rung before, ± 95 %.")
    table.add_column("rung", no_wrap=True)
    for stretch in scores_of(ladder):
        table.add_column(SHORT_SCORES[stretch], justify="right", no_wrap=True)
        table.add_column("difference", justify="right", no_wrap=True)
    for rung in rung_rows(ladder):
        cells = []
        for stretch, value in rung.values.items():
            cells += [score_text(value), _plus_minus(rung.differences[stretch])]
        table.add_row(rung.title, *cells)
    return table


def _plus_minus(found: scores.Interval | None) -> str:
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return signed_text(found.value)
    return f"{signed_text(found.value)} ± {(found.high - found.low) / 2:.2f}"


def claim_table(compared: Sequence[scores.Comparison]) -> Table:
    """Return a verdict per claim of the paper and comparison; the last comparison is the paper's own."""
    table = new_table(
        "Claims of the paper, and verdicts by these runs and by its own tables",
        "Differences that are positive if the claim is true, by the training score, then at ε ≈ 0. ✓ holds, ✗ does "
        "not hold, ? cannot tell. In tables one-step learning takes the place of DQN. Intervals are on the page.",
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
    """Return six characters, so that verdicts are aligned."""
    if claim is None:
        return Text("–".rjust(6), "dim")
    value = f"{claim.difference.value:+z.2f}".replace("-", "−") if claim.difference else ""
    return Text(f"{value + SIGNS[claim.verdict]:>6}", VERDICT_STYLES[claim.verdict])


def score_table(rescored: dict[str, Any]) -> Table:
    """Return the paper's Table 3 scored again, beside the averages of its Table 2."""
    table = new_table(
        "The paper's 60 Atari games (its Table 3), scored again",
        "Score: 0 is the worst and 1 the best of the four on a game; averaged over games.",
    )
    table.add_column("algorithm")
    for label in ("times best", "average score", "printed (Table 2)"):
        table.add_column(label, justify="right")
    for name, row in sorted(rescored.items(), key=lambda item: -item[1]["average"]):
        table.add_row(named(name), str(row["times_best"]), f"{row['average']:.4f}", f"{row['printed']:.4f}")
    return table
