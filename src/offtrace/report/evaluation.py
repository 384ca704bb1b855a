"""Off-policy evaluation as files: a chart of all estimates with their intervals, a table and the numbers."""

import csv
import json
from pathlib import Path
from typing import Any

from offtrace.evaluation import Comparison, Evaluation
from offtrace.evaluation.estimation import drawn_range
from offtrace.report import charts
from offtrace.report.charts import alt, finished

ROW_HEIGHT = 22
WIDTH = 420
COLOUR = "#0072B2"
CHOSEN = "#D55E00"
FIRST = "to be read first"
OTHERS = "others"


def write_evaluation(found: Evaluation | Comparison, output: Path) -> list[str]:
    """Write evaluation.json, evaluation.csv and a chart into a folder; return the names of the files."""
    evaluations = {found.target: found} if isinstance(found, Evaluation) else found.evaluations
    numbers = json.dumps(found.as_dict(), indent=2, ensure_ascii=False)
    (output / "evaluation.json").write_text(numbers + "\n", encoding="utf-8")
    rows = [
        {
            "target": name,
            "estimator": one.name,
            "value": one.value,
            "standard_error": one.standard_error,
            "low": one.interval[0],
            "high": one.interval[1],
            "bootstrap_low": one.bootstrap[0],
            "bootstrap_high": one.bootstrap[1],
            "note": one.note,
        }
        for name, evaluation in evaluations.items()
        for one in evaluation.estimates
    ]
    with (output / "evaluation.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    charts.save(evaluation_chart(evaluations), output / "evaluation")
    return ["evaluation.json", "evaluation.csv", "evaluation.png/.svg/.pdf"]


def evaluation_chart(evaluations: dict[str, Evaluation]) -> alt.LayerChart:
    """Return a chart with a row per policy and estimator: the value and its interval, and the log's own value."""
    several = len(evaluations) > 1
    low, high = _limits(evaluations)
    rows = []
    for name, evaluation in evaluations.items():
        for one in evaluation.estimates:
            ends = {"value": one.value, "low": one.interval[0], "high": one.interval[1]}
            drawn: dict[str, Any] = {end: min(max(value, low), high) for end, value in ends.items()}
            drawn["row"] = f"{name}: {one.title}" if several else one.title
            is_first = one.name == evaluation.verdict.estimate and evaluation.verdict.answer != "no"
            drawn["kind"] = FIRST if is_first else OTHERS
            drawn["cut"] = drawn["low"] > one.interval[0] or drawn["high"] < one.interval[1]
            rows.append(drawn)
    first = next(iter(evaluations.values()))
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    x = alt.X("value:Q", scale=scale, title="value at the start of an episode").axis(tickCount=6)
    y = alt.Y("row:N", title=None, sort=[str(row["row"]) for row in rows])
    base: Any = alt.Chart(alt.InlineData(values=rows)).encode(
        y=y.axis(labelLimit=440, grid=True),
        color=alt.Color("kind:N", legend=None).scale(domain=[FIRST, OTHERS], range=[CHOSEN, COLOUR]),
    )
    logged: Any = alt.Chart(alt.InlineData(values=[{"value": first.logged.value}]))
    notes = [
        f"{first.diagnostics.num_episodes:,} episodes, γ = {first.gamma:g}; intervals of {first.confidence:.0%}.",
        "Dashed: the log itself. Orange: the estimate to read, where the log can answer.",
    ]
    if any(row["cut"] for row in rows):
        notes.append("Intervals that reach the frame go on beyond it.")
    chart = finished(
        logged.mark_rule(strokeDash=[4, 3], color="#555555").encode(x=x),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x),
        title="What the target policies would earn" if several else "What the target policy would earn",
        subtitle=notes,
    )
    return chart.properties(width=WIDTH, height=ROW_HEIGHT * len(rows))


def _limits(evaluations: dict[str, Evaluation]) -> tuple[float, float]:
    """Return the ends of the axis, with a margin; longer bars end at the frame."""
    low, high = drawn_range(evaluations.values())
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin
