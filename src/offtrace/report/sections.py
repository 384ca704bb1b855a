"""The section of a study on the page: its verdicts, charts and tables.

The published tables and new results have the same sections. In place of what cannot be drawn or
computed stands the reason.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from offtrace.experiments.results import Study
from offtrace.report import comparisons, curves, tables
from offtrace.report.charts import alt
from offtrace.report.findings import SCORE_NAMES, SIGNS, scores_of
from offtrace.report.ladder import rung_rows
from offtrace.report.names import counted, named
from offtrace.report.page import Cell, Grid, Section
from offtrace.report.rankings import ranking_section
from offtrace.report.safety import contraction_against_variance
from offtrace.report.wording import listed, number_text, score_text, signed_text, slug, unique
from offtrace.safety import Analysis
from offtrace.scores import Claim, Comparison, Interval
from offtrace.scores.comparison import LEVEL, Stretch
from offtrace.scores.intervals import Verdict

KINDS = {"holds": "verdict yes", "does not hold": "verdict no", "cannot tell": "verdict unknown"}
"""Classes of a verdict's cell in the style sheet."""
STATES = {
    "done": "done",
    "diverged": "diverged",
    "running": "in progress",
    "missing": "not run yet",
    "failed": "failed",
}
"""Display names of statuses."""
STRETCHES: tuple[Stretch, ...] = ("early", "final", "evaluation")
LADDER_COLUMNS = ("", "_difference", "_low", "_high")
"""Endings of the columns of each score in the ladder's CSV file."""


@dataclass
class Part:
    """The section of a study, and the files beside the page."""

    section: Section
    files: dict[str, str] = field(default_factory=dict)
    """Texts by path, relative to the page's folder."""


def study_part(study: Study, stem: str, claims: Mapping[Stretch, Sequence[Claim]]) -> Part:
    """Return the section of a study; `stem` starts the names of its files, and `claims` has verdicts by score."""
    comparison = study.comparison
    files: dict[str, str] = {}
    lambda_ = main_lambda(comparison)
    add = _Files(stem, files)
    if study.runs:
        add("runs", csv=lambda: tables.runs_csv(study))
    if not comparison.games:
        return Part(Section(comparison.name, [*describe(study), "There is nothing to compare yet."]), files)
    parts: list[Section | None] = []
    if claims:
        parts.append(_verdicts(claims, add))
    if study.ladder is not None:
        parts.append(ladder_section(study.ladder, stem, add))
    if study.runs:
        parts += [ranking_section(study, stretch, stem, add) for stretch in scores_of(comparison)]
    parts += [
        _distributions(comparison, lambda_, stem),
        *(_by_lambda(comparison, stem, add, stretch) for stretch in scores_of(comparison)),
        *(_statistics(comparison, lambda_, stem, add, stretch) for stretch in scores_of(comparison)),
        *(_games(comparison, lambda_, add, stretch) for stretch in scores_of(comparison)),
    ]
    if study.runs:
        parts.append(_curves(study, lambda_, stem))
        if _has_evaluations(study):
            parts.append(_curves(study, lambda_, stem, evaluations=True))
        parts.append(_telemetry(study, lambda_, stem))
    return Part(Section(comparison.name, describe(study), parts=[part for part in parts if part]), files)


def safety_section(analysis: Analysis, stem: str = "contraction-against-variance") -> Section:
    """Return the section on theory: the trade-off of contraction and variance on one MDP."""
    mdp = analysis.mdp
    return Section(
        "Contraction against variance",
        [
            f"On {mdp.name or 'an MDP'} ({counted(mdp.shape[0], 'state')}, {counted(mdp.shape[1], 'action')}, "
            f"γ = {mdp.gamma:g}), computed without sampling: the number of steps of the operator R until "
            "the error is small, and the standard deviation of a sampled target. Long traces contract "
            "fast but have a large variance; cut traces contract slowly and have a small one."
        ],
        charts={stem: contraction_against_variance(analysis)},
    )


def main_lambda(comparison: Comparison) -> float:
    """Return the λ of tables at a single λ: the largest at which some game has runs of every algorithm."""
    complete = [x for x in comparison.lambdas if comparison.complete_games([x])]
    return (complete or list(comparison.lambdas) or [0.0])[-1]


def describe(study: Study) -> list[str]:
    """Return sentences on what was run: games, algorithms, runs, then notes."""
    comparison = study.comparison
    at = ""
    if comparison.lambdas:
        at = f" at λ = {', '.join(f'{x:g}' for x in comparison.lambdas)}"
    lines = []
    notes = [*_divergences(comparison), *comparison.notes]
    if comparison.anchors is not None:
        notes.append("Averages have an exact scale: 0 is random play and 1 the optimal policy.")
    for stretch in scores_of(comparison):
        without = comparison.games_without_scale("level", stretch)
        if without and comparison.anchors is None:
            these = "this game has" if len(without) == 1 else "these games have"
            notes.append(
                f"On {listed(list(without))}, algorithms differ in the {SCORE_NAMES[stretch]} by no more than noise "
                f"between seeds explains. The scale there is as wide as that noise, so {these} little weight."
            )
    if comparison.games:
        names = listed([named(name) for name in comparison.algorithms])
        if "," in "".join(comparison.algorithms):
            names = listed(list(dict.fromkeys(named(name.partition(",")[0]) for name in comparison.algorithms)))
            names += f", in {len(comparison.algorithms)} settings"
        lines.append(f"{counted(len(comparison.games), 'game')}: {names}{at}.")
    if study.runs:
        by_status = study.num_by_status
        numbers = {words: by_status[status] for status, words in STATES.items() if by_status.get(status)}
        states = [f"{number:,} {words}" for words, number in numbers.items()]
        if len(numbers) == 1:
            states = [f"all {words}" for words in numbers]
        lines.append(f"{counted(len(study.runs), 'run')}: {', '.join(states)}.")
    if study.protocol:
        notes.insert(0, f"Protocol: {study.protocol_text}. Scores under other protocols are in tables of their own.")
    return [" ".join(lines), *notes]


def _divergences(comparison: Comparison) -> list[str]:
    """Return a sentence on how many runs of each algorithm diverged."""
    parts = []
    for name in comparison.algorithms:
        number = sum(found for key, found in comparison.diverged.items() if key.algorithm == name)
        total = sum(len(runs) for key, runs in comparison.runs["final"].items() if key.algorithm == name)
        if number:
            parts.append(f"{named(name)} {number:,} of {total:,}")
    if not parts:
        return []
    return [f"Diverged runs: {', '.join(parts)}. Each counts as the worst run of its game, whatever it scored."]


# -- parts ---------------------------------------------------------------------------------------------------


class _Files:
    """Collects the files beside the page, and returns their paths."""

    def __init__(self, stem: str, files: dict[str, str]) -> None:
        self.stem = stem
        self.files = files

    def __call__(self, name: str, **texts: Callable[[], str]) -> list[str]:
        found = {f"tables/{self.stem}_{name}.{ending}": text() for ending, text in texts.items()}
        self.files |= found
        return list(found)


def _distributions(comparison: Comparison, lambda_: float, stem: str) -> Section:
    makers = {}
    for stretch in STRETCHES:
        if stretch == "final" or comparison.runs.get(stretch):
            draw = partial(comparisons.score_distribution, comparison, lambda_, stretch)
            makers[f"{stem}_distribution-{stretch}"] = (f"the distribution of {stretch} scores", draw)
    return _charts("Score distributions", makers)


def _verdicts(claims: Mapping[Stretch, Sequence[Claim]], add: _Files) -> Section:
    grids = []
    for stretch, answers in claims.items():
        rows = []
        for claim in answers:
            found = claim.difference
            rows.append(
                [
                    Cell(claim.text, below=claim.measure),
                    Cell(_worded(claim.verdict), below=claim.reason or "", kind=KINDS[claim.verdict]),
                    _interval(found, signed=True) if found else Cell(""),
                    Cell(_worded(claim.holm) if claim.p_value is not None else ""),
                    _runs(found.num_runs, claim) if found and found.num_runs else Cell(""),
                ]
            )
        caption = f"{SCORE_NAMES[stretch].capitalize()}; {LEVEL:.0%} intervals."
        name = "claims" if stretch == "final" else f"claims-{stretch}"
        header = ("claim", "verdict", "difference", "all together (Holm)", "runs")
        files = add(name, csv=lambda answers=answers: tables.claims_csv(answers))
        grids.append(Grid(caption, header, rows, stacked=True, files=files))
    return Section("The paper's claims", tables=grids)


def ladder_section(ladder: Comparison, stem: str, add: _Files) -> Section:
    """Return the table of rungs from DQN to Retrace: scores, and differences to the rung before."""
    header = [
        "rung",
        "compared_with",
        *(f"{stretch}{end}" for stretch in scores_of(ladder) for end in LADDER_COLUMNS),
    ]
    rows: list[list[Cell]] = []
    lines: list[list[Any]] = [header]
    for rung in rung_rows(ladder):
        below = f"compared with {named(rung.before)}" if rung.before else ""
        cells = [Cell(rung.title, below=below)]
        numbers: list[Any] = []
        for stretch, value in rung.values.items():
            found = rung.differences[stretch]
            cells.append(Cell(score_text(value), number=value))
            if found is None:
                cells.append(Cell(""))
                numbers += [value, None, None, None]
            else:
                cells.append(_interval(found, signed=True))
                numbers += [value, found.value, found.low, found.high]
        rows.append(cells)
        lines.append([rung.name, rung.before, *numbers])
    columns = [name for stretch in scores_of(ladder) for name in (SCORE_NAMES[stretch], "difference")]
    caption = (
        f"Averages over {counted(len(ladder.games), 'game')} ({listed(list(ladder.games))}); {LEVEL:.0%} intervals. "
        f"{comparisons.scale_words(ladder)}"
    )
    grid = Grid(caption, ("rung", *columns), rows, files=add("ladder", csv=lambda: tables.csv_text(lines)))
    words = "Each rung differs in one thing from the rung that it is compared with. Step sizes may differ too."
    return Section("From DQN to Retrace, one difference at a time", [words], tables=[grid])


def _by_lambda(comparison: Comparison, stem: str, add: _Files, stretch: Stretch) -> Section:
    end = _ending(stretch)
    makers = {
        f"{stem}_by-lambda{end}": ("the average by λ", lambda: comparisons.average_by_lambda(comparison, stretch)),
        f"{stem}_sensitivity{end}": ("sensitivity to λ", lambda: comparisons.sensitivity(comparison, stretch)),
    }
    if comparison.anchors is not None:
        del makers[f"{stem}_by-lambda{end}"]  # on an exact scale, which is the same at every λ, both are the same
    section = _charts(f"Scores by λ: {SCORE_NAMES[stretch]}", makers)
    try:
        table = tables.table_2(comparison, stretch)
    except ValueError:
        return section  # it has the reason
    rows = []
    for i, lambda_ in enumerate(table.lambdas):
        cells = [Cell(f"{lambda_:g}", number=lambda_)]
        for a, value in enumerate(table.values[i].tolist()):
            notes = []
            if table.low is not None and table.high is not None:
                notes.append(f"{table.low[i, a]:.2f} to {table.high[i, a]:.2f}")
            num_diverged = comparison.num_diverged(comparison.games, [table.algorithms[a]], [lambda_])
            if num_diverged:
                notes.append(f"{num_diverged:,} diverged")
            below = ", ".join(notes)
            cells.append(_marked(f"{value:.4f}", value, value == table.values[i].max(), "best at this λ", below))
        rows.append(cells)
    header = ("λ", *(named(name) for name in table.algorithms))
    files = add(f"by-lambda{end}", csv=table.csv, tex=table.latex)
    grid = Grid(f"Average {SCORE_NAMES[stretch]}; the best at each λ is bold.", header, rows, files=files)
    return replace(section, tables=[grid])


def _statistics(comparison: Comparison, lambda_: float, stem: str, add: _Files, stretch: Stretch) -> Section:
    end = _ending(stretch)
    make = {
        f"{stem}_profile{end}": (
            "the performance profile",
            lambda: comparisons.profile(comparison, lambda_, stretch),
        )
    }
    section = _charts(f"Aggregate statistics: {SCORE_NAMES[stretch]}", make)
    rows = comparison.statistics(lambda_, stretch)
    baseline = comparison.baseline
    if not rows:
        return section  # it has the reason
    columns: dict[str, list[Interval | None]] = {
        "mean": [row.mean for row in rows],
        "IQM": [row.iqm for row in rows],
        "optimality gap": [row.optimality_gap for row in rows],
        f"P(beats {named(baseline or '')})": [row.improvement for row in rows],
        "area": [row.area for row in rows],
    }
    columns = {name: values for name, values in columns.items() if any(values)}
    cells = [
        [Cell(named(row.algorithm)), *(_interval(values[i]) for values in columns.values())]
        for i, row in enumerate(rows)
    ]
    reasons = {each.reason for row in rows for each in (row.mean, row.iqm) if each.reason}
    caption = f"Normalised scores at λ = {lambda_:g}. Higher is better, except for the optimality gap."
    files = add(f"statistics{end}", csv=lambda: tables.statistics_csv(rows))
    grid = Grid(caption, ("algorithm", *columns), cells, files=files)
    lines = list(section.paragraphs)
    if reasons:
        reason = sorted(reasons)[0]
        if comparison.printed:
            reason = "one number is printed for each game, without the runs behind it"
        lines.append(f"No intervals: {reason}.")
    return replace(section, paragraphs=lines, tables=[grid])


def _games(comparison: Comparison, lambda_: float, add: _Files, stretch: Stretch) -> Section:
    files: dict[float, list[str]] = {}
    title = f"Game by game: {SCORE_NAMES[stretch]}"
    for other in comparison.lambdas or (lambda_,):
        table = comparison.table(other, stretch)
        if table.games and len(table.algorithms) > 1:
            printed = tables.table_3(comparison, other, stretch)
            files[other] = add(f"games-lambda-{other:g}{_ending(stretch)}", csv=printed.csv, tex=printed.latex)
    table = comparison.table(lambda_, stretch)
    left_out = [game for game in comparison.games if game not in table.games]
    lines = []
    if left_out:
        lines.append(f"Left out, as some algorithm has no runs at λ = {lambda_:g}: {listed(left_out)}.")
    if not table.games:
        return Section(title, lines or ["No game has runs yet."])
    is_best = np.zeros(table.values.shape, bool)
    if lambda_ in files:
        is_best = tables.table_3(comparison, lambda_, stretch).best
    rows = []
    for g, game in enumerate(table.games):
        counts = table.num_runs[g].tolist()
        cells = []
        for a, value in enumerate(table.values[g].tolist()):
            tooltip = f"best on this game, {counted(counts[a], 'run')}"
            num_diverged = comparison.num_diverged([game], [table.algorithms[a]], [lambda_])
            below = f"{num_diverged:,} diverged" if num_diverged else ""
            cells.append(_marked(number_text(value), value, bool(is_best[g, a]), tooltip, below))
        runs = f"{min(counts)}"
        if min(counts) < max(counts):
            runs += f"–{max(counts)}"
        rows.append([Cell(game), *cells, Cell(runs, number=float(min(counts)))])
    grid = Grid(
        f"Mean {SCORE_NAMES[stretch]} at λ = {lambda_:g}; the best on each game is bold. Click on a heading to sort.",
        ("game", *(named(name) for name in table.algorithms), "runs per algorithm"),
        rows,
        sortable=True,
        files=files.get(lambda_, ()),
    )
    return Section(title, lines, tables=[grid])


def _ending(stretch: Stretch) -> str:
    """Return the ending of file names for a score; those of the training score have none."""
    return "" if stretch == "final" else f"-{stretch}"


def _curves(study: Study, lambda_: float, stem: str, *, evaluations: bool = False) -> Section:
    found = study.curves(lambda_)
    end = "-evaluation" if evaluations else ""
    names = unique(f"{stem}_curve{end}-{slug(game)}" for game in found)
    makers = {}
    for name, (game, runs) in zip(names, found.items(), strict=True):
        draw = partial(curves.learning_curves, runs, title=game, evaluations=evaluations)
        makers[name] = (f"the learning curve of {game}", draw)
    returns = "evaluations at ε ≈ 0" if evaluations else "training returns"
    return _charts(f"Learning curves at λ = {lambda_:g}: {returns}", makers, small=True)


def _has_evaluations(study: Study) -> bool:
    """Return whether runs were evaluated during training, not only at the end."""
    return any(report.evaluation is not None for run in study.runs for report in run.reports if report.tick)


def _telemetry(study: Study, lambda_: float, stem: str) -> Section:
    makers = {}
    for measure in curves.MEASURES:
        draw = partial(curves.telemetry, study, lambda_, measure)
        makers[f"{stem}_telemetry-{slug(measure)}"] = (measure, draw)
    return _charts("Traces during training", makers)


def _charts(
    title: str, makers: Mapping[str, tuple[str, Callable[[], alt.LayerChart]]], *, small: bool = False
) -> Section:
    """Return a section with the charts that can be drawn, and the reasons why others cannot.

    `makers` maps the name of a chart to its description and the function that draws it.
    """
    charts = {}
    paragraphs = []
    for name, (description, make) in makers.items():
        try:
            charts[name] = make()
        except ValueError as error:
            reason = re.sub(r"`(comparison|study|runs)`", "the study", str(error))
            paragraphs.append(f"Not drawn: {description}. {reason[0].upper()}{reason[1:]}")
    if not charts and not paragraphs:
        paragraphs = ["There is nothing to draw yet."]
    return Section(title, paragraphs, charts, small=small)


# -- cells ---------------------------------------------------------------------------------------------------


def _interval(found: Interval | None, *, signed: bool = False) -> Cell:
    if found is None:
        return Cell("–")
    as_text = signed_text if signed else score_text
    below = ""
    if found.low is not None and found.high is not None:
        below = f"{as_text(found.low, 3)} to {as_text(found.high, 3)}"
    return Cell(as_text(found.value, 3), number=found.value, below=below)


def _marked(text: str, number: float, is_best: bool, title: str, below: str = "") -> Cell:
    if is_best:
        return Cell(text, number=number, below=below, kind="best", title=title)
    return Cell(text, number=number, below=below)


def _worded(verdict: Verdict) -> str:
    return f"{SIGNS[verdict]} {verdict}"


def _runs(num_runs: int, claim: Claim) -> Cell:
    below = f"on {counted(claim.num_games, 'game')}"
    if claim.num_diverged:
        below += f", {claim.num_diverged:,} diverged"
    return Cell(f"{num_runs:,}", number=float(num_runs), below=below)
