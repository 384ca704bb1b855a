"""A safety analysis as files: numbers, a table and pictures in a folder."""

import csv
import json
from pathlib import Path

from offtrace.report import charts, eta, safety
from offtrace.safety import BY_THEOREM, Analysis


def write_analysis(analysis: Analysis, output: Path) -> list[str]:
    """Write analysis.json, analysis.csv and pictures into a folder; return the names of the files."""
    numbers = json.dumps(analysis.as_dict(), indent=2, ensure_ascii=False)
    (output / "analysis.json").write_text(numbers + "\n", encoding="utf-8")
    rows = [row.as_dict() for row in analysis.rows]
    with (output / "analysis.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=[*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    files = ["analysis.json", "analysis.csv"]
    pictures = {"contraction_against_variance": safety.contraction_against_variance(analysis)}
    if analysis.mdp.grid is not None and any(row.verdict == BY_THEOREM for row in analysis.rows):
        pictures["eta"] = eta.eta_map(analysis)
    for stem, chart in pictures.items():
        charts.save(chart, output / stem)
        files.append(f"{stem}.png/.svg/.pdf")
    return files
