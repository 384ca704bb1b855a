"""What the page says of a study: its verdicts, charts and tables, one after the other.

The published tables and new results come through here alike. What cannot be drawn or said has its reason instead.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from offtrace.report.safety import contraction_against_variance
from offtrace.safety import Analysis
from offtrace.scores import Claim, Comparison, Interval
from offtrace.scores.comparison import LEVEL, Stretch
from offtrace.scores.intervals import Verdict

KINDS = {"holds": "verdict yes", "does not hold": "verdict no", "cannot tell": "verdict unknown"}
"""Of a verdict's cell."""
STATES = {
    "done": "done",
    "diverged": "diverged",
    "running": "under way",
    "missing": "not done yet",
    "failed": "failed",
}
STRETCHES: tuple[Stretch, ...] = ("early", "final", "evaluation")
MEASURES = ("c", "cut", "effective_length", "off_policy")
ENDS = ("", "_difference", "_low", "_high")


@dataclass
class Part:
    """A study on the page, and what goes into files beside it."""

    section: Section
    files: dict[str, str] = field(default_factory=dict)
    """Texts by address, from the page's folder."""


def study_part(study: Study, stem: str, claims: Mapping[Stretch, Sequence[Claim]]) -> Part:
    """All that is said of a study; `stem` begins the names of its files, and `claims` are for each of its scores."""
    comparison, files = study.comparison, {}
    lambda_ = main_lambda(comparison)
    add = _Files(stem, files)
    if study.runs:
        add("runs", csv=lambda: tables.runs_csv(study))
    if not comparison.games:
        return Part(Section(comparison.name, [*describe(study), "Nothing can be compared yet."]), files)
    parts = [
        _verdicts(claims, add),
        _charts(
            "Score distributions",
            {
                f"{stem}_distribution-{stretch}": (
                    f"the distribution of {stretch} scores",
                    lambda s=stretch: comparisons.score_distribution(comparison, lambda_, s),
                )
                for stretch in STRETCHES
                if stretch == "final" or comparison.runs.get(stretch)
            },
        ),
        *(_by_lambda(comparison, stem, add, stretch) for stretch in scores_of(comparison)),
        *(_statistics(comparison, lambda_, stem, add, stretch) for stretch in scores_of(comparison)),
        *(_games(comparison, lambda_, add, stretch) for stretch in scores_of(comparison)),
    ]
    if study.ladder is not None:
        parts.insert(1, ladder_section(study.ladder, stem, add))
    if study.runs:
        parts.append(_curves(study, lambda_, stem))
        if _has_evaluations(study):
            parts.append(_curves(study, lambda_, stem, evaluations=True))
        parts.append(_telemetry(study, lambda_, stem))
    return Part(Section(comparison.name, describe(study), parts=parts), files)


def safety_section(analysis: Analysis, stem: str = "contraction-against-variance") -> Section:
    """The theory's side: what speed costs in variance, on one MDP."""
    mdp = analysis.mdp
    return Section(
        "Contraction against variance",
        [
            f"On {mdp.name or 'an MDP'} ({counted(mdp.shape[0], 'state')}, {counted(mdp.shape[1], 'action')}, "
            f"γ = {mdp.gamma:g}), without any sampling: how many steps of the "
            "operator R bring the error down, and how far one sampled target scatters. Traces that are kept contract "
            "fast and scatter much; traces that are cut do neither."
        ],
        charts={stem: contraction_against_variance(analysis)},
    )


def main_lambda(comparison: Comparison) -> float:
    """The one that single tables are of: the largest at which some game has runs of every algorithm."""
    complete = [x for x in comparison.lambdas if comparison.complete_games([x])]
    return (complete or list(comparison.lambdas) or [0.0])[-1]


def describe(study: Study) -> list[str]:
    """What was run, in sentences."""
    comparison = study.comparison
    at = f" at λ = {', '.join(f'{x:g}' for x in comparison.lambdas)}" if comparison.lambdas else ""
    lines = []
    notes = [*_divergences(comparison), *comparison.notes]
    if comparison.anchors is not None:
        notes.append("Scores have an exact scale: 0 is random play, and 1 the optimal policy of the MDP.")
    for stretch in scores_of(comparison):
        without = comparison.games_without_scale("level", stretch)
        if without and comparison.anchors is None:
            notes.append(
                f"By the {SCORE_NAMES[stretch]} the algorithms differ by no more than their seeds on "
                f"{listed(list(without))}: there the scale is as wide as that noise, so that it weighs little."
            )
    if comparison.games:
        names = listed([named(name) for name in comparison.algorithms])
        lines.append(f"{counted(len(comparison.games), 'game')}: {names}{at}.")
    if study.runs:
        by_status = study.num_by_status
        known = {words: by_status[status] for status, words in STATES.items() if by_status.get(status)}
        states = [f"{number:,} {words}" for words, number in known.items()]
        if len(known) == 1:
            states = [f"all {words}" for words in known]
        lines.append(f"{counted(len(study.runs), 'run')}: {', '.join(states)}.")
    return [" ".join(lines), *notes]


def _divergences(comparison: Comparison) -> list[str]:
    """How many runs of each algorithm diverged, and what that means."""
    parts = []
    for name in comparison.algorithms:
        number = sum(found for key, found in comparison.diverged.items() if key.algorithm == name)
        total = sum(len(runs) for key, runs in comparison.runs["final"].items() if key.algorithm == name)
        if number:
            parts.append(f"{named(name)} {number:,} of {total:,}")
    if not parts:
        return []
    return [f"Runs that diverged: {', '.join(parts)}. Each counts as the worst run of its game, not as it scored."]


# -- parts ---------------------------------------------------------------------------------------------------


class _Files:
    """Collects what is written beside the page; gives back the addresses."""

    def __init__(self, stem: str, files: dict[str, str]) -> None:
        self.stem, self.files = stem, files

    def __call__(self, name: str, **texts: Callable[[], str]) -> list[str]:
        found = {f"tables/{self.stem}_{name}.{ending}": text() for ending, text in texts.items()}
        self.files |= found
        return list(found)


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
        caption = f"By the {SCORE_NAMES[stretch]}; {LEVEL:.0%} intervals."
        name = "claims" if stretch == "final" else f"claims-{stretch}"
        header = ("claim", "verdict", "difference", "all at once (Holm)", "runs")
        files = add(name, csv=lambda answers=answers: tables.claims_csv(answers))
        grids.append(Grid(caption, header, rows, stacked=True, files=files))
    return Section("The paper's claims", tables=grids)


def ladder_section(ladder: Comparison, stem: str, add: _Files) -> Section:
    """From DQN to Retrace: every rung, its scores, and the difference to the rung that it is one step from."""
    header = ["rung", "compared_with", *(f"{stretch}{end}" for stretch in scores_of(ladder) for end in ENDS)]
    rows: list[list[Cell]] = []
    lines: list[list[Any]] = [header]
    for rung in rung_rows(ladder):
        cells = [Cell(rung.title, below=f"against {named(rung.before)}" if rung.before else "")]
        numbers: list[Any] = []
        for stretch, value in rung.values.items():
            found = rung.differences[stretch]
            cells += [Cell(f"{value:z.2f}", number=value), _interval(found, signed=True) if found else Cell("")]
            numbers += [value, *([found.value, found.low, found.high] if found else [None] * 3)]
        rows.append(cells)
        lines.append([rung.name, rung.before, *numbers])
    columns = [name for stretch in scores_of(ladder) for name in (SCORE_NAMES[stretch], "difference")]
    caption = (
        f"Averages over {counted(len(ladder.games), 'game')} ({listed(list(ladder.games))}); {LEVEL:.0%} intervals. "
        f"{comparisons.scale_words(ladder)}"
    )
    grid = Grid(caption, ("rung", *columns), rows, files=add("ladder", csv=lambda: tables.csv_text(lines)))
    words = "Each rung differs from the one that it is compared with by one thing; step sizes may differ as well."
    return Section("From DQN to Retrace, one difference at a time", [words], tables=[grid])


def _by_lambda(comparison: Comparison, stem: str, add: _Files, stretch: Stretch) -> Section:
    end = _ending(stretch)
    makers = {
        f"{stem}_by-lambda{end}": ("the average by λ", lambda: comparisons.average_by_lambda(comparison, stretch)),
        f"{stem}_sensitivity{end}": ("sensitivity to λ", lambda: comparisons.sensitivity(comparison, stretch)),
    }
    if comparison.anchors is not None:
        del makers[f"{stem}_by-lambda{end}"]  # an exact scale is the same at every λ
    found = _charts(f"Scores by λ: {SCORE_NAMES[stretch]}", makers)
    try:
        table = tables.table_2(comparison, stretch)
    except ValueError:
        return found  # which says why
    rows = []
    for i, lambda_ in enumerate(table.lambdas):
        cells = [Cell(f"{lambda_:g}", number=lambda_)]
        for a, value in enumerate(table.values[i].tolist()):
            is_known = table.low is not None and table.high is not None
            below = f"{table.low[i, a]:.2f} to {table.high[i, a]:.2f}" if is_known else ""
            diverged = comparison.num_diverged(comparison.games, [table.algorithms[a]], [lambda_])
            below += _diverged(diverged, ", " if below else "")
            cells.append(_marked(f"{value:.4f}", value, value == table.values[i].max(), "best at this λ", below))
        rows.append(cells)
    header = ("λ", *(named(name) for name in table.algorithms))
    files = add(f"by-lambda{end}", csv=table.csv, tex=table.latex)
    grid = Grid(f"Average {SCORE_NAMES[stretch]}; the best at each λ is bold.", header, rows, files=files)
    return replace(found, tables=[grid])


def _statistics(comparison: Comparison, lambda_: float, stem: str, add: _Files, stretch: Stretch) -> Section:
    end = _ending(stretch)
    make = {
        f"{stem}_profile{end}": (
            "the performance profile",
            lambda: comparisons.profile(comparison, lambda_, stretch),
        )
    }
    found = _charts(f"Today's statistics: {SCORE_NAMES[stretch]}", make)
    rows, baseline = comparison.statistics(lambda_, stretch), comparison.baseline
    if not rows:
        return found  # which says why
    columns: dict[str, list[Interval | None]] = {
        "mean": [row.mean for row in rows],
        "IQM": [row.iqm for row in rows],
        "optimality gap": [row.optimality_gap for row in rows],
        f"beats {named(baseline or '')}": [row.improvement for row in rows],
        "area": [row.area for row in rows],
    }
    columns = {name: values for name, values in columns.items() if any(values)}
    cells = [
        [Cell(named(row.algorithm)), *(_interval(values[i]) for values in columns.values())]
        for i, row in enumerate(rows)
    ]
    reasons = {each.reason for row in rows for each in (row.mean, row.iqm) if each.reason}
    caption = f"Of normalised scores at λ = {lambda_:g}; of the optimality gap less is better, else more."
    files = add(f"statistics{end}", csv=lambda: tables.statistics_csv(rows))
    grid = Grid(caption, ("algorithm", *columns), cells, files=files)
    lines = [*found.paragraphs, *(f"No intervals: {reason}." for reason in sorted(reasons)[:1])]
    return replace(found, paragraphs=lines, tables=[grid])


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
    lines = [f"Not all algorithms have runs of {listed(left_out)} at λ = {lambda_:g}: left out."] if left_out else []
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
            best = f"best of this game, {counted(counts[a], 'run')}"
            below = _diverged(comparison.num_diverged([game], [table.algorithms[a]], [lambda_]), "")
            cells.append(_marked(shown(value), value, bool(is_best[g, a]), best, below))
        runs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
        rows.append([Cell(game), *cells, Cell(runs, number=float(min(counts)))])
    grid = Grid(
        f"Mean {SCORE_NAMES[stretch]} at λ = {lambda_:g}; the best of each game is bold. Click a column's name to "
        "sort.",
        ("game", *(named(name) for name in table.algorithms), "runs of each"),
        rows,
        sortable=True,
        files=files.get(lambda_, ()),
    )
    return Section(title, lines, tables=[grid])


def _ending(stretch: Stretch) -> str:
    """Of the names of files; those of the training score have none."""
    return "" if stretch == "final" else f"-{stretch}"


def _curves(study: Study, lambda_: float, stem: str, *, evaluations: bool = False) -> Section:
    found = study.curves(lambda_)
    end = "-evaluation" if evaluations else ""
    names = unique(f"{stem}_curve{end}-{slug(game)}" for game in found)
    makers = {}
    for name, (game, runs) in zip(names, found.items(), strict=True):
        draw = partial(curves.learning_curves, runs, title=game, evaluations=evaluations)
        makers[name] = (f"the curve of {game}", draw)
    what = "evaluations at ε ≈ 0" if evaluations else "training returns"
    return _charts(f"Learning curves at λ = {lambda_:g}: {what}", makers, small=True)


def _has_evaluations(study: Study) -> bool:
    """On the way, not only at the end."""
    return any(report.evaluation is not None for run in study.runs for report in run.reports if report.tick)


def _telemetry(study: Study, lambda_: float, stem: str) -> Section:
    return _charts(
        "What the traces did",
        {
            f"{stem}_telemetry-{slug(measure)}": (measure, lambda m=measure: curves.telemetry(study, lambda_, m))
            for measure in MEASURES
        },
    )


def _charts(
    title: str, makers: Mapping[str, tuple[str, Callable[[], alt.LayerChart]]], *, small: bool = False
) -> Section:
    """Those that can be drawn; of the others, what they are and why not."""
    charts, reasons = {}, []
    for name, (what, make) in makers.items():
        try:
            charts[name] = make()
        except ValueError as error:
            reason = re.sub(r"`(comparison|study|runs)`", "the study", str(error))
            reasons.append(f"Not drawn, {what}: {reason}")
    return Section(title, reasons or ([] if charts else ["Nothing to draw yet."]), charts, small=small)


# -- words and numbers ---------------------------------------------------------------------------------------


def _interval(found: Interval | None, *, signed: bool = False) -> Cell:
    if found is None:
        return Cell("–")
    sign = "+" if signed else ""
    below = f"{found.low:{sign}z.3f} to {found.high:{sign}z.3f}" if found.low is not None else ""
    return Cell(f"{found.value:{sign}z.3f}", number=found.value, below=below)


def _marked(text: str, number: float, is_best: bool, title: str, below: str = "") -> Cell:
    return Cell(text, number=number, below=below, kind="best" if is_best else "", title=title if is_best else "")


def _worded(verdict: Verdict) -> str:
    return f"{SIGNS[verdict]} {verdict}"


def _runs(num_runs: int, claim: Claim) -> Cell:
    below = f"of {counted(claim.num_games, 'game')}{_diverged(claim.num_diverged)}"
    return Cell(f"{num_runs:,}", number=float(num_runs), below=below)


def _diverged(number: int, before: str = ", ") -> str:
    return f"{before}{number:,} diverged" if number else ""


def shown(value: float) -> str:
    """
    >>> [shown(value) for value in (0.5, 12.345, -1234.5, 0.00123)]
    ['0.50', '12.35', '-1,234.5', '0.0012']
    """
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.1f}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=1)
    ('a, b and c', 'a and 2 others')
    """
    if len(names) > most:
        names = [*names[:most], counted(len(names) - most, "other")]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def slug(name: str) -> str:
    """For the name of a file, whatever is in the name of a game. It has no _, which parts a study from its files.

    >>> slug("MinAtar/Breakout, λ"), slug("../<b>")
    ('minatar-breakout', 'b')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "x"


def unique(names: Iterable[str]) -> list[str]:
    """
    >>> unique(["a", "b", "a"])
    ['a', 'b', 'a-2']
    """
    found: dict[str, None] = {}
    for name in names:
        number, candidate = 1, name
        while candidate in found:
            number += 1
            candidate = f"{name}-{number}"
        found[candidate] = None
    return list(found)
