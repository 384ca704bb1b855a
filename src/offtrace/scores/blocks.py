"""What was measured, as blocks of independent rows, and Student's t intervals of whatever is linear in them.

On a scale that is taken as known, an average over games or a difference of two is a sum of means. A block is a set of
rows that are independent of each other and of all other blocks: one row for each seed where all cells share their
seeds, so that whatever a seed does to several cells at once is accounted for; else one for each seed of a game, or
for each run of a cell.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.scale import ROUNDING, Array

LEVEL = 0.95


class Estimates(NamedTuple):
    """Of m sums, (m,) each: what was found, its standard error and degrees of freedom, and the fewest rows behind it.

    Where those are 1 there is no standard error, and it is nan.
    """

    value: Array
    error: Array
    df: Array
    num_rows: NDArray[np.int64]

    @property
    def has_spread(self) -> NDArray[np.bool_]:
        """Whether the rows differ by more than rounding."""
        return self.error > ROUNDING

    def interval(self, level: float = LEVEL) -> tuple[Array, Array]:
        """Student's: value ± t·error."""
        from scipy.special import stdtrit

        half = stdtrit(self.df, (1.0 + level) / 2.0) * np.where(self.has_spread, self.error, 0.0)
        return self.value - half, self.value + half


@dataclass(frozen=True, eq=False)
class Blocks:
    """Averages over games, (algorithms, λ), as a sum of means of blocks; `rows` is None where `reason` says why."""

    value: Array
    rows: Array | None
    """(rows, algorithms, λ), those of a block side by side."""
    sizes: NDArray[np.int64]
    """(blocks,): how many rows are of each."""
    fills: NDArray[np.bool_]
    """(blocks, algorithms, λ): where its rows may differ from 0."""
    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    lambdas: tuple[float, ...]
    num_runs: int
    """Different runs that went in; a copy counts once."""
    reason: str | None = None

    def estimate(self, weights: Array) -> Estimates:
        """Sums with these weights, with standard errors and degrees of freedom by Welch and Satterthwaite.

            y_b = Σ_{a,λ} w·rows_b,    v_b = var(y_b) / n_b
            error² = Σ_b v_b,    df = (Σ_b v_b)² / Σ_b v_b²/(n_b − 1)

        Shapes: `weights` (m, algorithms, λ) → (m,) each.

        >>> rows = np.array([[[3.0], [1.0]], [[5.0], [2.0]], [[7.0], [6.0]]])  # two algorithms, one λ, three seeds
        >>> everywhere = np.ones((1, 2, 1), dtype=bool)
        >>> blocks = Blocks(rows.mean(0), rows, np.array([3]), everywhere, ("pong",), ("a", "b"), (1.0,), 6)
        >>> found = blocks.estimate(np.array([[[1.0], [-1.0]]]))  # 2, 3, 1
        >>> found.value, found.error * np.sqrt(3.0), found.df
        (array([2.]), array([1.]), array([2.]))
        """
        if self.rows is None:
            raise ValueError(f"`estimate` must have runs, got none: {self.reason}")
        flat = weights.reshape(len(weights), -1)
        of_rows = self.rows.reshape(len(self.rows), -1) @ flat.T
        starts = np.cumsum(self.sizes) - self.sizes
        means = np.add.reduceat(of_rows, starts, axis=0) / self.sizes[:, None]
        away = of_rows - np.repeat(means, self.sizes, axis=0)
        unit = np.abs(away).max(axis=0)
        unit = np.where(unit > 0.0, unit, 1.0)  # so that no square overflows
        df = np.maximum(self.sizes - 1, 1)[:, None]
        variances = np.add.reduceat((away / unit) ** 2, starts, axis=0) / (self.sizes[:, None] * df)
        total = variances.sum(axis=0)
        shares = variances / np.where(total > 0.0, total, 1.0)
        inverse_df = (shares**2 / df).sum(axis=0)
        is_in = (self.fills.reshape(len(self.fills), -1) @ (flat != 0.0).T) > 0
        num_rows = np.where(is_in, self.sizes[:, None], np.iinfo(np.int64).max).min(axis=0)
        return Estimates(
            value=flat @ self.value.ravel(),
            error=np.where(num_rows > 1, unit * np.sqrt(total), np.nan),
            df=1.0 / np.where(inverse_df > 0.0, inverse_df, 1.0),
            num_rows=num_rows,
        )
