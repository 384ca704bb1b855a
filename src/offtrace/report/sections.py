"""What the page says of a study: its verdicts, charts and tables, one after the other.

The published tables and new results come through here alike. What cannot be drawn or said has its reason instead.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from offtrace.experiments.results import Study
from offtrace.report import comparisons, curves, tables
from offtrace.report.charts import alt
from offtrace.report.names import counted, named
from offtrace.report.page import Cell, Grid, Section
from offtrace.report.safety import contraction_against_variance
from offtrace.safety import Analysis
from offtrace.scores import Claim, Comparison, Interval
from offtrace.scores.comparison import LEVEL, Stretch

VERDICTS = {
    "holds": ("✓ holds", "verdict yes"),
    "does not hold": ("✗ does not hold", "verdict no"),
    "cannot tell": ("? cannot tell", "verdict unknown"),
}
STATES = {"done": "done", "running": "under way", "missing": "not done yet", "failed": "failed"}
STRETCHES: tuple[Stretch, ...] = ("early", "final")
MEASURES = ("c", "cut", "effective_length", "off_policy")


@dataclass
class Part:
    """A study on the page, and what goes into files beside it."""

    section: Section
    files: dict[str, str] = field(default_factory=dict)
    """Texts by address, from the page's folder."""


def study_part(study: Study, stem: str, claims: Sequence[Claim]) -> Part:
    """All that is said of a study; `stem` begins the names of its files."""
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
        _by_lambda(comparison, stem, add),
        _statistics(comparison, lambda_, stem, add),
        _games(comparison, lambda_, add),
    ]
    if study.runs:
        parts += [_curves(study, lambda_, stem), _telemetry(study, lambda_, stem)]
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
    if comparison.games:
        names = listed([named(name) for name in comparison.algorithms])
        lines.append(f"{counted(len(comparison.games), 'game')}: {names}{at}.")
    if study.runs:
        by_status = study.num_by_status
        states = [f"{by_status[status]} {words}" for status, words in STATES.items() if by_status.get(status)]
        lines.append(f"{counted(len(study.runs), 'run')}: {', '.join(states)}.")
    return [" ".join(lines), *comparison.notes]


# -- parts ---------------------------------------------------------------------------------------------------


class _Files:
    """Collects what is written beside the page; gives back the addresses."""

    def __init__(self, stem: str, files: dict[str, str]) -> None:
        self.stem, self.files = stem, files

    def __call__(self, name: str, **texts: Callable[[], str]) -> list[str]:
        found = {f"tables/{self.stem}_{name}.{ending}": text() for ending, text in texts.items()}
        self.files |= found
        return list(found)


def _verdicts(claims: Sequence[Claim], add: _Files) -> Section:
    rows = []
    for claim in claims:
        words, kind = VERDICTS[claim.verdict]
        found = claim.difference
        rows.append(
            [
                Cell(claim.text, below=claim.measure),
                Cell(words, below=claim.reason or "", kind=kind),
                _interval(found, signed=True) if found else Cell(""),
                _runs(found.num_runs, claim.num_games) if found and found.num_runs else Cell(""),
            ]
        )
    caption = f"What the paper claims, and what these runs say; {LEVEL:.0%} intervals."
    grid = Grid(
        caption,
        ("claim", "verdict", "difference", "runs"),
        rows,
        stacked=True,
        files=add("claims", csv=lambda: tables.claims_csv(claims)),
    )
    return Section("The paper's claims", tables=[grid])


def _by_lambda(comparison: Comparison, stem: str, add: _Files) -> Section:
    found = _charts(
        "Scores by λ",
        {
            f"{stem}_by-lambda": ("the average by λ", lambda: comparisons.average_by_lambda(comparison)),
            f"{stem}_sensitivity": ("sensitivity to λ", lambda: comparisons.sensitivity(comparison)),
        },
    )
    try:
        table = tables.table_2(comparison)
    except ValueError:
        return found  # which says why
    rows = []
    for i, lambda_ in enumerate(table.lambdas):
        cells = [Cell(f"{lambda_:g}", number=lambda_)]
        for a, value in enumerate(table.values[i].tolist()):
            is_known = table.low is not None and table.high is not None
            below = f"{table.low[i, a]:.2f} to {table.high[i, a]:.2f}" if is_known else ""
            cells.append(_marked(f"{value:.4f}", value, value == table.values[i].max(), "best at this λ", below))
        rows.append(cells)
    header = ("λ", *(named(name) for name in table.algorithms))
    files = add("by-lambda", csv=table.csv, tex=table.latex)
    grid = Grid("Average inter-algorithm score; the best at each λ is bold.", header, rows, files=files)
    return replace(found, tables=[grid])


def _statistics(comparison: Comparison, lambda_: float, stem: str, add: _Files) -> Section:
    make = {f"{stem}_profile": ("the performance profile", lambda: comparisons.profile(comparison, lambda_))}
    found = _charts("Today's statistics", make)
    rows, baseline = comparison.statistics(lambda_), comparison.baseline
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
    files = add("statistics", csv=lambda: tables.statistics_csv(rows))
    grid = Grid(caption, ("algorithm", *columns), cells, files=files)
    lines = [*found.paragraphs, *(f"No intervals: {reason}." for reason in sorted(reasons)[:1])]
    return replace(found, paragraphs=lines, tables=[grid])


def _games(comparison: Comparison, lambda_: float, add: _Files) -> Section:
    files: dict[float, list[str]] = {}
    for other in comparison.lambdas or (lambda_,):
        table = comparison.table(other)
        if table.games and len(table.algorithms) > 1:
            printed = tables.table_3(comparison, other)
            files[other] = add(f"games-lambda-{other:g}", csv=printed.csv, tex=printed.latex)
    table = comparison.table(lambda_)
    left_out = [game for game in comparison.games if game not in table.games]
    lines = [f"Not all algorithms have runs of {listed(left_out)} at λ = {lambda_:g}: left out."] if left_out else []
    if not table.games:
        return Section("Game by game", lines or ["No game has runs yet."])
    is_best = tables.table_3(comparison, lambda_).best if lambda_ in files else np.zeros(table.values.shape, bool)
    rows = []
    for g, game in enumerate(table.games):
        counts = table.num_runs[g].tolist()
        cells = [
            _marked(shown(value), value, bool(is_best[g, a]), f"best of this game, {counted(counts[a], 'run')}")
            for a, value in enumerate(table.values[g].tolist())
        ]
        runs = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
        rows.append([Cell(game), *cells, Cell(runs, number=float(min(counts)))])
    grid = Grid(
        f"Mean final scores at λ = {lambda_:g}; the best of each game is bold. Click a column's name to sort.",
        ("game", *(named(name) for name in table.algorithms), "runs of each"),
        rows,
        sortable=True,
        files=files.get(lambda_, ()),
    )
    return Section("Game by game", lines, tables=[grid])


def _curves(study: Study, lambda_: float, stem: str) -> Section:
    found = study.curves(lambda_)
    names = unique(f"{stem}_curve-{slug(game)}" for game in found)
    return _charts(
        f"Learning curves, λ = {lambda_:g}",
        {
            name: (f"the curve of {game}", lambda game=game, runs=runs: curves.learning_curves(runs, title=game))
            for name, (game, runs) in zip(names, found.items(), strict=True)
        },
        small=True,
    )


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


def _runs(num_runs: int, num_games: int) -> Cell:
    return Cell(f"{num_runs:,}", number=float(num_runs), below=f"of {counted(num_games, 'game')}")


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
