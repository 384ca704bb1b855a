"""Lines of the display of a training run: numbers in columns, and the curve of returns."""

import itertools
import math
from collections.abc import Iterable, Sequence

from rich.text import Text

from offtrace.agent.telemetry import TickRecord

LABEL = 12
"""Width of the name at the left, in columns of the terminal."""
SLOT = 12
"""Least width of a number with its name."""
GAP = 3
"""Columns between two numbers."""
LEVELS = "▁▂▃▄▅▆▇█"

Part = tuple[str, str]
"""A name, shown dim, and its value."""


def row(label: str, width: int, *candidates: Sequence[Part]) -> Text:
    """Return the first candidate that fits the width, or as much of the last one as fits."""
    for parts in candidates:
        line = _joined(label, parts)
        if line.cell_len <= width:
            return line
    kept = [*candidates[-1]]
    while len(kept) > 1 and _joined(label, kept).cell_len > width:
        kept.pop()
    return _joined(label, kept)


def _joined(label: str, parts: Sequence[Part]) -> Text:
    """Return the parts in columns, so that they do not move when a number to their left grows by a digit."""
    line = Text(f"{label:{LABEL}}" if label else "")
    line.stylize("bold", 0, len(label))
    for place, (name, value) in enumerate(parts):
        start = len(line)
        if name:
            line.append(f"{name} ", style="dim")
        line.append(value)
        if place < len(parts) - 1:
            line.append(" " * (max(0, SLOT - (len(line) - start)) + GAP))
    return line


def schedule_counts(schedules: Sequence[int]) -> str:
    """Return how many actors follow each ε schedule, from the first to the last one in use.

    >>> schedule_counts((0, 2, 2, 0, 2))
    '2 + 0 + 3'
    """
    return " + ".join(str(schedules.count(number)) for number in range(max(schedules) + 1))


def weighted_mean(reports: Iterable[TickRecord], field: str = "episode_return") -> tuple[float, int]:
    """Return the mean over all episodes that ended in these ticks, and the number of episodes."""
    total = 0.0
    episodes = 0
    for report in reports:
        value: float = getattr(report, field)
        if report.num_episodes and math.isfinite(value):
            total += report.num_episodes * value
            episodes += report.num_episodes
    if not episodes:
        return math.nan, 0
    return total / episodes, episodes


def best(before: float, value: float) -> float:
    """Return the larger number; nan counts as absent."""
    if math.isnan(before):
        return value
    if math.isnan(value):
        return before
    return max(before, value)


def sparkline(reports: Sequence[TickRecord], width: int) -> tuple[str, float, float]:
    """Return the curve of returns as one line, and its lowest and highest value.

    A column is one tick, or the mean of several if there are more ticks than columns. It is blank if no episode ended
    in it.
    """
    reports = [report for report in reports if report.num_steps]
    width = max(1, min(width, len(reports)))
    edges = [place * len(reports) // width for place in range(width + 1)]
    values = [weighted_mean(reports[a:b])[0] for a, b in itertools.pairwise(edges)]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return " " * width, math.nan, math.nan
    low = min(known)
    high = max(known)
    span = high - low
    if not 0 < span < math.inf:
        span = math.inf  # a flat curve, or one beyond all numbers, is in the middle
    return "".join(_level(value, low, span) for value in values), low, high


def _level(value: float, low: float, span: float) -> str:
    """Return the character of a value; blank for nan."""
    if math.isnan(value):
        return " "
    if math.isinf(span):
        return LEVELS[3]
    return LEVELS[min(7, int(8 * ((value - low) / span)))]
