"""The ladder from DQN to Retrace as rows, for the page, its CSV file and the terminal."""

from typing import NamedTuple

from offtrace.experiments.ladder import RUNGS
from offtrace.report.findings import difference, scores_of
from offtrace.scores import Comparison, Interval
from offtrace.scores.comparison import Stretch


class RungRow(NamedTuple):
    """A rung, its averages over games, and its differences to the rung that it is compared with."""

    name: str
    title: str
    before: str | None
    """The rung that it is compared with; None if it was not run."""
    values: dict[Stretch, float]
    differences: dict[Stretch, Interval | None]


def rung_rows(ladder: Comparison) -> list[RungRow]:
    """Return the rungs that were run, from DQN upwards."""
    averages = {stretch: ladder.averages("level", stretch) for stretch in scores_of(ladder)}
    rows = []
    for rung in RUNGS:
        if rung.name not in ladder.algorithms:
            continue
        before = rung.before if rung.before in ladder.algorithms else None
        values: dict[Stretch, float] = {}
        differences: dict[Stretch, Interval | None] = {}
        for stretch, found in averages.items():
            values[stretch] = float(found.value[0, found.algorithms.index(rung.name)])
            differences[stretch] = None
            if before is not None:
                differences[stretch] = difference(ladder, (rung.name, 1.0), (before, 1.0), stretch)
        rows.append(RungRow(rung.name, rung.title, before, values, differences))
    return rows
