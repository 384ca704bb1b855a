"""The end of the page: notes on the scores and statistics, runs that went wrong, and provenance."""

import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from offtrace.experiments import reasons
from offtrace.experiments.store import StoredRun
from offtrace.report.charts import alt
from offtrace.report.names import named
from offtrace.report.overview import seeds_text
from offtrace.report.page import Cell, Grid, Section

NOTES = (
    "A run has two scores. Its training score is the mean return of the training episodes that "
    "ended in the last tenth of its steps, under exploration; an algorithm whose target is the "
    "exploring policy optimises exactly that. Its evaluation is the mean return at ε ≈ 0 at its "
    "end; on an MDP it is the expected return of the greedy policy, computed without sampling. "
    "Early scores are those of the first tenth, and the area is the mean height of the learning "
    "curve. Returns are raw: neither discounted nor clamped. Where the scores of a study have "
    "another meaning, its captions say so.",
    "The inter-algorithm score of a game maps the worst algorithm's mean to 0 and the best one's "
    "to 1, within one λ. So scores compare algorithms at one λ, but not one λ with another. "
    "Levels do: there 0 and 1 are the worst and the best mean of a game over all algorithms and "
    "all λ. Every game counts the same. If the means of a game differ by no more than the noise "
    "between seeds explains, its scale is as wide as that noise, and all scores are near ½: the "
    "game has little weight then. On an MDP the scale is exact: 0 is random play and 1 the "
    "optimal policy.",
    "DQN and one-step learning have no λ: the same runs are shown at every λ. At λ = 0 Retrace, "
    "TB and Q(λ) are the same algorithm, without a trace, which is trained once. Its difference "
    "to DQN is due to windows, the target policy and double Q-learning, not to a trace.",
    "Intervals are 95 % t intervals over seeds, with the two ends of each scale taken as known. "
    "Algorithms, λ and games share their seeds, so differences are taken within each seed. The "
    "published tables have one number per game, so their intervals are over games instead. "
    "Verdicts are more conservative: their intervals are wider, to allow for skewed scores. A "
    "claim holds if the interval is above 0 at every λ of the claim. It does not hold if at some "
    "λ the interval, widened for the number of λ, is below 0. Otherwise, and with fewer than 3 "
    "seeds or without any spread, there is no verdict. If nothing differs, a claim gets a verdict "
    "in at most 5 % of cases, by simulation. The column of Holm's method has the verdicts if all "
    "claims are to be right together. No interval covers other games than these.",
    "In the tables that are best first, an algorithm at each λ, with each setting, is compared with "
    "the best one: by returns on a single environment, by levels on several. Their intervals allow "
    "for skewed scores too, and for the number of comparisons with the best (Bonferroni). The files "
    "have the difference of every two with its own 95 % interval, and the verdict that remains if "
    "all of them are to be right together (Holm).",
    "A run diverged if a loss, a gradient or a value was no longer finite. Leaving it out would "
    "favour the algorithm that fails, so it counts as the worst run of its game: it gets the "
    "lowest score of any run of that game, or that of random play if known and lower. Tables show "
    "how many runs diverged.",
    "IQM is the mean of the middle half of the runs. The optimality gap is the mean distance of "
    "runs below 1. Both are computed with scores clipped to [0, 1], and have bootstrap intervals "
    "over seeds. P(beats …) is the share of pairs of runs, one of each algorithm, in which the "
    "algorithm is better than the baseline; ½ means no difference.",
)
PROVENANCE = {
    "made_at": "date (UTC)",
    "command": "command",
    "version": "offtrace",
    "commit": "commit",
    "python": "Python",
    "jax": "JAX",
    "platform": "platform",
    "machine": "machine",
}


def notes_section() -> Section:
    return Section("Notes", NOTES)


def trouble_sections(runs: Sequence[StoredRun]) -> list[Section]:
    """Return tables of divergences, failures and events, one row per reason; those that are not empty."""
    found = {
        "Divergences": (reasons.divergences(runs), "Runs that diverged. They count as the worst run of their game."),
        "Failures": (reasons.failures(runs), "Runs that failed, with the last line of the error. They are left out."),
        "Events": (reasons.events(runs), "Events that runs reported, in the words of the first run."),
    }
    return [
        Section(title, tables=[_reason_grid(groups, caption)]) for title, (groups, caption) in found.items() if groups
    ]


def _reason_grid(groups: Sequence[reasons.Group], caption: str) -> Grid:
    rows = []
    for group in groups[: reasons.MOST]:
        names = Counter(named(str(run.spec["trace"])) for run in group.runs)
        rows.append(
            [
                Cell(group.reason, kind="code"),
                Cell(f"{len(group.runs):,}", number=float(len(group.runs))),
                Cell(", ".join(f"{name} {number:,}" for name, number in names.most_common())),
                Cell(reasons.first_runs(group.runs)),
            ]
        )
    if len(groups) > reasons.MOST:
        rest = sum(len(group.runs) for group in groups[reasons.MOST :])
        rows.append([Cell(f"{len(groups) - reasons.MOST:,} other reasons"), Cell(f"{rest:,}"), Cell(""), Cell("")])
    return Grid(caption, ("reason", "runs", "by algorithm", "first runs"), rows, stacked=True)


def provenance_section(runs: Sequence[StoredRun], command: str) -> Section:
    """Return what the page and the runs were made with."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = (
        f"This page was made on {now} with offtrace {version('offtrace')}, Altair {alt.__version__}, vl-convert "
        f"{version('vl-convert-python')} and Python {platform.python_version()}"
    )
    if command:
        page += f", by: {command}"
    if not runs:
        return Section("Provenance", [f"{page}."])
    groups: dict[tuple[str | None, ...], list[StoredRun]] = {}
    for run in runs:
        groups.setdefault((run.file.name, *(run.provenance.get(name) for name in PROVENANCE)), []).append(run)
    rows = []
    for (file, *values), group in groups.items():
        row = [
            Cell(file or ""),
            Cell(str(len(group)), number=float(len(group))),
            Cell(seeds_text(group).partition(" ")[2]),
        ]
        for name, value in zip(PROVENANCE, values, strict=True):
            row.append(_provenance_cell(name, value))
        rows.append(row)
    header = ("file", "runs", "seeds", *PROVENANCE.values())
    return Section(
        "Provenance", [f"{page}."], tables=[Grid("What the runs were made with.", header, rows, stacked=True)]
    )


def _provenance_cell(name: str, value: str | None) -> Cell:
    if not value:
        return Cell("–")
    if name == "command":
        return Cell(value, kind="code")
    if name == "made_at":
        value = re.sub(r"T(\d\d:\d\d:\d\d).*", r" \1", value)  # to the second
    return Cell(value)
