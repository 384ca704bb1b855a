"""What is wrong with a log, by row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_SHOWN = 5
"""The most rows that a problem names."""


@dataclass(frozen=True)
class Problem:
    """One rule that a log breaks, and the rows that break it."""

    rule: str
    rows: tuple[int, ...]
    """The first rows, counted from 0; empty where the whole log is concerned."""
    num_rows: int
    """The number of rows that break the rule."""

    def __str__(self) -> str:
        if not self.rows:
            return self.rule
        shown = ", ".join(f"{row:,}" for row in self.rows)
        rest = self.num_rows - len(self.rows)
        more = f" and {rest:,} more" if rest else ""
        return f"{self.rule}: row{'s' if self.num_rows > 1 else ''} {shown}{more}"


class LogError(ValueError):
    """A log that breaks a rule. `problems` has all of them."""

    has_lines = True
    """The command line prints the text with its lines."""

    def __init__(self, problems: Sequence[Problem], note: str = "") -> None:
        self.problems = tuple(problems)
        has_rows = any(problem.rows for problem in self.problems)
        counted = " (rows count from 0)" if has_rows else ""
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        if len(self.problems) == 1:
            lines = f" {self.problems[0]}"
        after = f"\n{note}" if note and has_rows else ""
        super().__init__(f"the log cannot be used{counted}:{lines}{after}")


def whole(rule: str) -> Problem:
    """Return a problem of the whole log."""
    return Problem(rule, (), 0)


def where(rule: str, broken: np.ndarray, order: np.ndarray | None = None) -> list[Problem]:
    """Return the problem with the rows where `broken` holds, or an empty list; `order` leads back to the source."""
    found = np.flatnonzero(broken)
    if order is not None:
        found = np.sort(order[found])
    return at(rule, found)


def at(rule: str, rows: np.ndarray) -> list[Problem]:
    """Return the problem with these rows, or an empty list if there are none."""
    if not len(rows):
        return []
    return [Problem(rule, tuple(int(row) for row in rows[:MOST_SHOWN]), len(rows))]
