"""Tables as files: CSV for programs and spreadsheets, LaTeX as the paper's appendix prints it.

In CSV, numbers are written in full, and a name that a spreadsheet would read as a formula gets an
apostrophe. In LaTeX, special characters are escaped, and numbers have as many digits as in the
paper.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.experiments.results import Study, scores
from offtrace.experiments.store import StoredRun
from offtrace.report.names import named
from offtrace.scores import Averages, Claim, Comparison, Interval, Statistics, Table, published_table_3, times_best
from offtrace.scores.comparison import Array, Scale, Stretch

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Characters that start a formula in a spreadsheet, or that it skips before one."""
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
}
HEADINGS = {"q_star": r"Q$^*$($\lambda$)"}
"""Headings of columns in LaTeX that are not display names."""


@dataclass(frozen=True, eq=False)
class AveragesTable:
    """Table 2: average scores, `values` (λ, algorithms), with the ends of their intervals, if any."""

    lambdas: tuple[float, ...]
    algorithms: tuple[str, ...]
    values: Array
    low: Array | None = None
    high: Array | None = None

    def csv(self) -> str:
        """Return one row per λ; intervals have columns of their own, `…_low` and `…_high`."""
        header = ["lambda", *self.algorithms]
        columns = [np.array(self.lambdas)[:, None], self.values]
        if self.low is not None and self.high is not None:
            header += [f"{name}_{end}" for name in self.algorithms for end in ("low", "high")]
            columns += [np.stack([self.low, self.high], axis=-1).reshape(len(self.lambdas), -1)]
        return csv_text([header, *np.concatenate(columns, axis=1).tolist()])

    def latex(self) -> str:
        rows = [
            [_lambda(lambda_), *_bold([f"{x:.4g}" for x in row.tolist()], row == row.max())]
            for lambda_, row in zip(self.lambdas, self.values, strict=True)
        ]
        return _tabular([r"$\lambda$", *map(_heading, self.algorithms)], rows)


@dataclass(frozen=True, eq=False)
class GamesTable:
    """Table 3: mean scores, `values` (games, algorithms), and how often each algorithm is the best.

    Ties for the best are all bold and not counted, except in the published table, where the one
    printed in bold counts.
    """

    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    values: Array
    best: np.ndarray
    """(games, algorithms) bool: which scores are bold."""
    times_best: tuple[int, ...]

    def csv(self) -> str:
        """Return one row per game, without the row of counts at the end of the printed table."""
        rows = [[game, *row] for game, row in zip(self.games, self.values.tolist(), strict=True)]
        return csv_text([["game", *self.algorithms], *rows])

    def latex(self) -> str:
        rows = [
            [rf"\textsc{{{_escaped(game)}}}", *_bold([f"{x:.2f}" for x in values], best)]
            for game, values, best in zip(self.games, self.values.tolist(), self.best, strict=True)
        ]
        last = ["Times Best", *map(str, self.times_best)]
        return _tabular(["", *map(_heading, self.algorithms)], [*rows, last])


def table_2(comparison: Comparison, stretch: Stretch = "final") -> AveragesTable:
    """Return the average inter-algorithm score at every λ for which it is known."""
    found = known_averages(comparison, "score", stretch)
    return AveragesTable(found.lambdas, found.algorithms, found.value, found.low, found.high)


def table_3(comparison: Comparison, lambda_: float, stretch: Stretch = "final") -> GamesTable:
    """Return the mean score of every algorithm on every game that has runs of all of them."""
    table = comparison.table(lambda_, stretch)
    if not table.games or len(table.algorithms) < 2:
        raise ValueError(
            f"`comparison` must have a game with runs of 2 or more algorithms at λ = {lambda_:g}; got none."
        )
    highlighted = _highlighted(table) if comparison.printed else None
    best = table.values == table.values.max(axis=1, keepdims=True)
    if highlighted is not None:
        best = np.arange(len(table.algorithms)) == highlighted[:, None]
    counts = times_best(table.values, highlighted=highlighted)
    return GamesTable(table.games, table.algorithms, table.values, best, tuple(counts.tolist()))


def known_averages(comparison: Comparison, scale: Scale, stretch: Stretch = "final") -> Averages:
    """Return averages at all λ or, if no game is complete at all of them, at the λ where some game is."""
    averages = comparison.averages(scale, stretch)
    if not np.isfinite(averages.value).all() and not comparison.printed:
        complete = [x for x in comparison.lambdas if comparison.complete_games([x], stretch)]
        if complete:
            averages = comparison.averages(scale, stretch, lambdas=complete)
    if not averages.value.size or not np.isfinite(averages.value).all():
        raise ValueError(f"`comparison` has no averages: {averages.reason or 'there are no runs'}.")
    return averages


def claims_csv(claims: Sequence[Claim]) -> str:
    """Return one row per claim of the paper."""
    header = ["claim", "measure", "verdict", "all_claims_together", "p_value"]
    header += ["difference", "low", "high", "num_games", "num_runs", "num_diverged", "reason"]
    rows = [
        [
            claim.text,
            claim.measure,
            claim.verdict,
            claim.holm,
            claim.p_value,
            *_numbers(claim.difference),
            claim.num_games,
            claim.difference.num_runs if claim.difference else 0,
            claim.num_diverged,
            claim.reason,
        ]
        for claim in claims
    ]
    return csv_text([header, *rows])


def statistics_csv(rows: Sequence[Statistics]) -> str:
    """Return one row per algorithm, with the ends of every interval."""
    measures = ("mean", "iqm", "optimality_gap", "improvement", "area")
    header = ["algorithm", *(f"{name}{end}" for name in measures for end in ("", "_low", "_high")), "num_runs"]
    found = [
        [row.algorithm, *(x for name in measures for x in _numbers(getattr(row, name))), row.mean.num_runs]
        for row in rows
    ]
    return csv_text([header, *found])


def runs_csv(study: Study) -> str:
    """Return one row per run of any status; only those that are done have scores."""
    header = ["game", "algorithm", "lambda", "seed", "status", "early", "final", "area", "evaluation"]
    header += ["file", "protocol"]
    return csv_text([header, *(_run_row(run, study.algorithms[run.fingerprint]) for run in study.runs)])


# -- inside --------------------------------------------------------------------------------------------------


def _run_row(run: StoredRun, algorithm: str) -> list[Any]:
    env = run.spec["env"]
    found = {}
    evaluation = None
    if run.status == "done":
        found = scores(run)
        returns = [value for value in run.returns if math.isfinite(value)]
        if returns:
            evaluation = sum(returns) / len(returns)
    return [
        env.partition("/")[2] or env,
        algorithm,
        float(run.spec["lambda_"]),
        run.spec["seed"],
        run.status,
        *(found.get(name) for name in ("early", "final", "area")),
        evaluation,
        run.file.name,
        run.protocol_text,
    ]


def _highlighted(table: Table) -> np.ndarray | None:
    """Return the column that the paper prints in bold per game, if this is its table."""
    printed = published_table_3()
    if {*table.games} != {*printed.games} or {*table.algorithms} != {*printed.algorithms}:
        return None
    rows = [printed.games.index(game) for game in table.games]
    columns = [printed.algorithms.index(name) for name in table.algorithms]
    if not np.array_equal(printed.scores[rows][:, columns], table.values):
        return None
    return np.array([columns.index(column) for column in printed.highlighted[rows].tolist()])


def _numbers(interval: Interval | None) -> list[float | None]:
    if interval is None:
        return [None, None, None]
    return [interval.value, interval.low, interval.high]


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a value that a spreadsheet does not read as a formula.

    >>> _cell("=1+1"), _cell("pong"), _cell(-1.5)
    ("'=1+1", 'pong', -1.5)
    """
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def _tabular(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        rf"\begin{{tabular}}{{|{'r|' * len(header)}}}",
        r"\hline",
        rf"{' & '.join(header).lstrip()} \\",
        r"\hline",
    ]
    for row in rows:
        lines += [r"\hline", rf"{' & '.join(row)} \\"]
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _bold(cells: Sequence[str], best: np.ndarray) -> list[str]:
    return [rf"\textbf{{{cell}}}" if bold else cell for cell, bold in zip(cells, best.tolist(), strict=True)]


def _lambda(lambda_: float) -> str:
    """Return λ as the paper prints it: 1.0, 0.95."""
    if round(lambda_, 1) == lambda_:
        return f"{lambda_:.1f}"
    return f"{lambda_:g}"


def _heading(algorithm: str) -> str:
    return HEADINGS.get(algorithm) or _escaped(named(algorithm))


def _escaped(name: str) -> str:
    r"""Return a name with LaTeX's special characters escaped.

    >>> print(_escaped("50% of a_b & {c}\n"))
    50\% of a\_b \& \{c\}
    """
    return "".join(LATEX.get(character, character) for character in " ".join(name.split()))
