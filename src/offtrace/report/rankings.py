"""All algorithms of a study, best first: the table, the chart, the files and the sentences of a ranking."""

from collections.abc import Sequence
from typing import Any

from offtrace.experiments.results import Study
from offtrace.report.charts import alt, finished, number_format, roomy
from offtrace.report.findings import SCORE_NAMES, scores_of, stretch_of
from offtrace.report.names import counted, named_at, short_label
from offtrace.report.page import Cell, Grid, Section
from offtrace.report.tables import csv_text
from offtrace.report.wording import is_or_are, listed, number_text, score_text, signed_text
from offtrace.scores import Difference, Entry, Interval, Ranking, ranking
from offtrace.scores.comparison import LEVEL, Stretch

KINDS = {"better": "verdict yes", "worse": "verdict no", "cannot tell": "verdict unknown"}
"""Classes of a verdict's cell in the style sheet."""
UNITS = {"return": "a mean return", "level": "an average level", "exact": "an average score"}
MAX_NAMED = 4
"""Names in a sentence; the others are counted."""
MAX_DRAWN = 40
"""Entries in a chart."""
LONG_NAME = 24
"""Characters of a name from which on a chart has the values of settings only."""
ROW_HEIGHT = 26
"""Height of an entry in a chart, in pixels."""
CHART_WIDTH = 380
NAME_WIDTH = 320
"""Largest width of a name beside a chart, in pixels."""


def entry_name(entry: Entry) -> str:
    return named_at(entry.algorithm, entry.lambda_)


def value_text(found: Ranking, value: float, *, signed: bool = False) -> str:
    """Return an average, or a difference if `signed`, with the digits of its unit."""
    if found.unit != "return":
        return signed_text(value) if signed else score_text(value)
    sign = "+" if signed and value > 0 else ""
    return sign + number_text(value + 0.0).replace("-", "−")


def interval_text(found: Ranking, interval: Interval) -> str:
    """Return the ends of an interval of differences; empty without an interval."""
    if interval.low is None or interval.high is None:
        return ""
    low, high = (value_text(found, end, signed=True) for end in (interval.low, interval.high))
    return f"{low} to {high}"


def scale_text(found: Ranking) -> str:
    """Return a sentence on what the averages are."""
    if found.unit == "return":
        return f"Mean returns on {found.games[0]}." if found.games else "Mean returns."
    if not found.games:
        return "No environment has runs of all; each average is over the environments of its own runs."
    ends = "0 is the worst and 1 the best mean on each"
    if found.unit == "exact":
        ends = "0 is random play and 1 the optimal policy"
    return f"Averages over {counted(len(found.games), 'environment')}; {ends}."


def method_text(found: Ranking) -> str:
    """Return a sentence on the intervals of the differences to the best, and on how many there are."""
    number = len(found.entries) - 1
    differences = [entry.to_best for entry in found.entries if entry.to_best is not None]
    reasons = {one.reason for one in differences if one.low is None}
    if len(reasons) == 1 and all(one.low is None for one in differences):
        return f"Differences have no intervals: {reasons.pop()}."
    if number == 1:
        return f"The difference has a {LEVEL:.0%} interval over seeds."
    level = 100 * (1 - (1 - LEVEL) / number)
    each = "both" if number == 2 else f"all {number}"
    return (
        f"Differences have {level:.4g}% intervals over seeds, so that {each} hold together with {LEVEL:.0%} "
        "(Bonferroni)."
    )


def sentence(study: Study) -> str:
    """Return which algorithm is best, and which others may be as good; empty for a single one."""
    stretch = stretch_of(study.comparison)
    found = ranking(study.comparison, stretch)
    if len(found.entries) < 2:
        return ""
    best, *others = found.entries
    average = value_text(found, best.average.value)
    score = f"{UNITS[found.unit]} of {average} ({SCORE_NAMES[stretch]})"
    text = f"{study.comparison.name}: {entry_name(best)} is best, with {score}"
    unknown = [entry_name(entry) for entry in others if entry.verdict != "worse"]
    num_worse = len(others) - len(unknown)
    if not unknown:
        return f"{text}. {'The other' if num_worse == 1 else f'All {num_worse} others'} {is_or_are(num_worse)} worse."
    if num_worse:
        text += f". {num_worse} of {len(others)} others {is_or_are(num_worse)} worse"
    names = (" and " if len(unknown) == 2 else "; ").join(unknown[:MAX_NAMED])
    if len(unknown) > MAX_NAMED:
        names += f"; and {counted(len(unknown) - MAX_NAMED, 'other')}"
    return f"{text}. The data cannot tell it from {names}."


# -- the page ------------------------------------------------------------------------------------------------


def ranking_section(study: Study, stretch: Stretch, stem: str, add: Any) -> Section | None:
    """Return the table and the chart of a score, best first; None for a single algorithm."""
    found = ranking(study.comparison, stretch)
    if len(found.entries) < 2:
        return None
    rows = [
        [
            Cell(entry_name(entry), below=f"{entry.num_diverged:,} diverged" if entry.num_diverged else ""),
            _average_cell(found, entry.average),
            _difference_cell(found, entry),
            _verdict_cell(entry),
        ]
        for entry in found.entries
    ]
    name = "ranking" if stretch == "final" else f"ranking-{stretch}"
    pairs = "differences" if stretch == "final" else f"differences-{stretch}"
    files = [
        *add(name, csv=lambda: entries_csv(found)),
        *add(pairs, csv=lambda: differences_csv(found)),
    ]
    header = ("algorithm", "average", "difference to the best", "verdict")
    caption = f"{SCORE_NAMES[stretch].capitalize()}, best first. {scale_text(found)} {method_text(found)}"
    grid = Grid(caption, header, rows, stacked=True, files=files)
    return Section(
        f"Best first: {SCORE_NAMES[stretch]}",
        [
            "The data cannot tell two algorithms apart if the interval of their difference holds 0. "
            "The second CSV file has the difference of every two."
        ],
        charts={f"{stem}_{name}": ranking_chart(study, found, stretch)},
        tables=[grid],
    )


def _average_cell(found: Ranking, average: Interval) -> Cell:
    below = ""
    if average.low is not None and average.high is not None:
        below = f"{value_text(found, average.low)} to {value_text(found, average.high)}"
    return Cell(value_text(found, average.value), number=average.value, below=below)


def _difference_cell(found: Ranking, entry: Entry) -> Cell:
    if entry.to_best is None:
        return Cell("" if entry.verdict is None else "–")
    value = entry.to_best.value
    return Cell(value_text(found, value, signed=True), number=value, below=interval_text(found, entry.to_best))


def _verdict_cell(entry: Entry) -> Cell:
    if entry.verdict is None:
        return Cell("best", kind="best")
    reason = "they share no environment"
    if entry.to_best is not None:
        reason = entry.to_best.reason or ""
    return Cell(entry.verdict, below=reason, kind=KINDS[entry.verdict])


def ranking_chart(study: Study, found: Ranking, stretch: Stretch) -> alt.LayerChart:
    """Return the averages as points with intervals, one row per algorithm, best at the top."""
    shown = found.entries[:MAX_DRAWN]
    names = [entry_name(entry) for entry in shown]
    lines = [scale_text(found), f"Bars: {LEVEL:.0%} t intervals of each average, over seeds."]
    short = [short_label(entry.algorithm, entry.lambda_) for entry in shown]
    if max(map(len, names)) > LONG_NAME and len(set(short)) == len(short):
        names = short
        fields = [text.partition(" ")[0] for entry in shown for text in entry.algorithm.split(", ")[1:]]
        if fields:
            lines.append(f"The numbers after a name are {listed(list(dict.fromkeys(fields)))}.")
    rows = []
    for name, entry in zip(names, shown, strict=True):
        row: dict[str, Any] = {"algorithm": name, "value": entry.average.value}
        if entry.average.low is not None:
            row |= {"low": entry.average.low, "high": entry.average.high}
        rows.append(row)
    ends = [row.get(key, row["value"]) for row in rows for key in ("low", "value", "high")]
    domain = roomy(min(ends), max(ends))
    if found.unit != "return" and min(ends) >= 0:
        domain = (0.0, max(1.0, *ends))
    title = UNITS[found.unit].partition(" ")[2]
    x = alt.X("value:Q", title=title).scale(domain=domain, nice=False, zero=False, clamp=True)
    x = x.axis(tickCount=5, format=number_format(domain))
    # A domain, not `sort`: that would put the names into an expression, which not every character may be in.
    y = alt.Y("algorithm:N", title=None).scale(domain=names).axis(labelLimit=NAME_WIDTH, grid=False)
    tooltip = [alt.Tooltip("algorithm:N"), alt.Tooltip("value:Q", title=title, format=".4~g")]
    layers = []
    with_interval = [row for row in rows if "low" in row]
    if with_interval:
        tooltip += [
            alt.Tooltip("low:Q", title="from", format=".4~g"),
            alt.Tooltip("high:Q", title="to", format=".4~g"),
        ]
        rule = alt.MarkDef(type="rule", color=COLOUR, strokeWidth=2.5, opacity=0.5)
        layers.append(
            alt.Chart(alt.InlineData(values=with_interval), mark=rule).encode(
                x=alt.X("low:Q", title=title), x2="high:Q", y=y
            )
        )
    point = alt.MarkDef(type="circle", size=70, opacity=1, color=COLOUR)
    layers.append(alt.Chart(alt.InlineData(values=rows), mark=point).encode(x=x, y=y, tooltip=tooltip))
    if len(found.entries) > MAX_DRAWN:
        lines.append(f"The best {MAX_DRAWN} of {len(found.entries)}.")
    return finished(
        *layers,
        title=f"Best first, {SCORE_NAMES[stretch]}: {study.comparison.name}",
        subtitle=lines,
        width=CHART_WIDTH,
        height=ROW_HEIGHT * len(rows),
    )


COLOUR = "#0072B2"


# -- files ---------------------------------------------------------------------------------------------------

ENTRY_COLUMNS = (
    "place",
    "algorithm",
    "lambda",
    "average",
    "average_low",
    "average_high",
    "to_best",
    "to_best_low",
    "to_best_high",
    "verdict",
    "num_runs",
    "num_diverged",
    "reason",
)
DIFFERENCE_COLUMNS = (
    "algorithm",
    "lambda",
    "compared_with",
    "compared_with_lambda",
    "difference",
    "low",
    "high",
    "verdict",
    "all_together",
    "p_value",
    "num_environments",
    "num_runs",
    "reason",
)


def rankings_json(studies: Sequence[Study]) -> list[dict[str, Any]]:
    """Return the rankings of all studies, by score, for a program to read."""
    return [
        {"study": study.comparison.name, "protocol": study.protocol, "rankings": study_rankings(study)}
        for study in studies
    ]


def study_rankings(study: Study) -> list[dict[str, Any]]:
    return [_ranking_json(ranking(study.comparison, stretch), stretch) for stretch in scores_of(study.comparison)]


def _ranking_json(found: Ranking, stretch: Stretch) -> dict[str, Any]:
    return {
        "score": stretch,
        "unit": found.unit,
        "environments": list(found.games),
        "entries": [dict(zip(ENTRY_COLUMNS, row, strict=True)) for row in _entry_rows(found)],
        "differences": [dict(zip(DIFFERENCE_COLUMNS, row, strict=True)) for row in _difference_rows(found)],
    }


def entries_csv(found: Ranking) -> str:
    """Return one row per algorithm and λ, best first."""
    return csv_text([ENTRY_COLUMNS, *_entry_rows(found)])


def differences_csv(found: Ranking) -> str:
    """Return one row per two entries: the full matrix."""
    return csv_text([DIFFERENCE_COLUMNS, *_difference_rows(found)])


def _entry_rows(found: Ranking) -> list[list[Any]]:
    rows = []
    for place, entry in enumerate(found.entries, start=1):
        average = entry.average
        to_best = entry.to_best
        numbers: list[Any] = [None, None, None]
        if to_best is not None:
            numbers = [to_best.value, to_best.low, to_best.high]
        reason = to_best.reason if to_best else average.reason
        rows.append(
            [
                place,
                entry.algorithm,
                entry.lambda_,
                average.value,
                average.low,
                average.high,
                *numbers,
                entry.verdict or "best",
                average.num_runs,
                entry.num_diverged,
                reason,
            ]
        )
    return rows


def _difference_rows(found: Ranking) -> list[list[Any]]:
    return [_difference_row(found.entries[each.entry], found.entries[each.other], each) for each in found.differences]


def _difference_row(one: Entry, other: Entry, found: Difference) -> list[Any]:
    return [
        one.algorithm,
        one.lambda_,
        other.algorithm,
        other.lambda_,
        found.difference.value,
        found.difference.low,
        found.difference.high,
        found.verdict,
        found.all_together,
        found.p_value,
        found.num_games,
        found.difference.num_runs,
        found.difference.reason,
    ]
