"""The numbers printed in the paper: Table 2 (average score by λ) and Table 3 (final scores on 60 games), App. F.

They are in the CSV files beside this module, digit by digit as printed. The two tables do not
quite agree: scoring Table 3 with `inter_algorithm_scores` gives averages that differ from Table
2's row for λ = 1 by up to 0.0174 (tree_backup: 0.8332 instead of 0.8158). Both are kept as
printed.
"""

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class FinalScores:
    """Table 3: `scores` (games, algorithms), and the column printed in bold for each game, `highlighted`."""

    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    scores: NDArray[np.float64]
    highlighted: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AveragesByLambda:
    """Table 2: `averages` (lambdas, algorithms); every row has its own scale, so rows cannot be compared."""

    lambdas: NDArray[np.float64]
    algorithms: tuple[str, ...]
    averages: NDArray[np.float64]


def published_table_3() -> FinalScores:
    """Return Table 3 of the paper: final scores of the λ-return variants (λ = 1) and DQN on 60 Atari games.

    Shapes: `scores` (60, 4), `highlighted` (60,) column numbers. The arrays are read-only.

    Freeway is printed as 32.13 for both tree_backup and retrace, with tree_backup in bold. Counted
    for tree_backup, the tie gives the 16 times best of the table's last row; not counted, the 15
    of Sec. 5.

    >>> table = published_table_3()
    >>> table.algorithms
    ('tree_backup', 'retrace', 'dqn', 'q_star')
    >>> table.games[0], table.scores[0].tolist(), int(table.highlighted[0])
    ('Alien', [2508.62, 3109.21, 2088.81, 154.35], 1)
    """
    header, *rows = _rows("table3_final_scores.csv")
    algorithms = tuple(header[1:-1])
    return FinalScores(
        games=tuple(row[0] for row in rows),
        algorithms=algorithms,
        scores=_read_only(np.array([row[1:-1] for row in rows], dtype=np.float64)),
        highlighted=_read_only(np.array([algorithms.index(row[-1]) for row in rows], dtype=np.int64)),
    )


def published_table_2() -> AveragesByLambda:
    """Return Table 2 of the paper: inter-algorithm scores averaged over 60 Atari games, for seven values of λ.

    Shapes: `lambdas` (7,), `averages` (7, 4). The arrays are read-only.

    At λ = 0 tree_backup, retrace and q_star are the same algorithm, so their spread there (0.43 to
    0.55) is noise between runs.

    >>> table = published_table_2()
    >>> table.algorithms
    ('dqn', 'tree_backup', 'retrace', 'q_star')
    >>> float(table.lambdas[-1]), table.averages[-1].tolist()
    (1.0, [0.6839, 0.8158, 0.8698, 0.04317])
    """
    header, *rows = _rows("table2_average_scores_by_lambda.csv")
    numbers = np.array(rows, dtype=np.float64)
    return AveragesByLambda(
        lambdas=_read_only(numbers[:, 0]),
        algorithms=tuple(header[1:]),
        averages=_read_only(numbers[:, 1:]),
    )


def _rows(file_name: str) -> list[list[str]]:
    text = resources.files("offtrace.scores").joinpath(file_name).read_text(encoding="utf-8")
    return list(csv.reader(text.splitlines()))


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
