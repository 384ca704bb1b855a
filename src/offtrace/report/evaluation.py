"""Off-policy evaluation as files: a chart of all estimates with their intervals, a table and the numbers."""

import csv
import json
from pathlib import Path

from offtrace.evaluation import Comparison, Evaluation
from offtrace.report import charts
from offtrace.report.charts import alt, finished

ROW_HEIGHT = 22
WIDTH = 420
COLOUR = "#0072B2"
CHOSEN = "#D55E00"


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
    """Return a chart with a row per policy and estimator: the value, its interval, and the value of the log itself."""
    several = len(evaluations) > 1
    rows = [
        {
            "row": f"{name}: {one.title}" if several else one.title,
            "value": one.value,
            "low": one.interval[0],
            "high": one.interval[1],
            "kind": "to be read first" if one.name == evaluation.verdict.estimate else "others",
        }
        for name, evaluation in evaluations.items()
        for one in evaluation.estimates
    ]
    low, high = _limits(evaluations)
    for row in rows:
        row |= {end: min(max(row[end], low), high) for end in ("value", "low", "high")}
    first = next(iter(evaluations.values()))
    scale = alt.Scale(domain=[low, high], nice=True, zero=False)
    order = [row["row"] for row in rows]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("row:N", sort=order, title=None, axis=alt.Axis(labelLimit=360, grid=True)),
        color=alt.Color(
            "kind:N", scale=alt.Scale(domain=["to be read first", "others"], range=[CHOSEN, COLOUR]), legend=None
        ),
    )
    ends = {"x": alt.X("low:Q", scale=scale, title="value at the start of an episode"), "x2": "high:Q"}
    bars = base.mark_rule(strokeWidth=2).encode(**ends)
    points = base.mark_point(filled=True, size=60, opacity=1).encode(x=alt.X("value:Q", scale=scale))
    logged = alt.Chart(alt.InlineData(values=[{"value": first.logged.value}])).mark_rule(
        strokeDash=[4, 3], color="#555555"
    )
    chart = finished(
        logged.encode(x=alt.X("value:Q", scale=scale)),
        bars,
        points,
        title="What the target policy would earn" if not several else "What the target policies would earn",
        subtitle=[
            f"{first.diagnostics.num_episodes:,} episodes, γ = {first.gamma:g}; intervals of {first.confidence:.0%}. "
            "Dashed: the log itself. Orange: the estimate to read first."
        ],
    )
    return chart.properties(width=WIDTH, height=ROW_HEIGHT * len(rows))


def _limits(evaluations: dict[str, Evaluation]) -> tuple[float, float]:
    """Return the axis: all values, and intervals up to three times the narrow ones; longer bars end at the edge."""
    every = [one for evaluation in evaluations.values() for one in evaluation.estimates]
    logged = [evaluation.logged.value for evaluation in evaluations.values()]
    widths = sorted(one.interval[1] - one.interval[0] for one in every)
    reach = 1.5 * widths[len(widths) // 2]
    low = min(logged + [max(one.interval[0], one.value - reach) for one in every])
    high = max(logged + [min(one.interval[1], one.value + reach) for one in every])
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin
