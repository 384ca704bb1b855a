"""Averages over games as sums of means of independent blocks, and Student's t intervals for linear functions of them.

On a scale that is taken as known, an average over games, or a difference of two, is a sum of
means. A block is a set of rows that are independent of each other and of all other blocks:

    all cells share their seeds          one block, one row per seed. Effects of a seed that are common to several
                                         cells then cancel in a difference.
    the cells of each game share seeds   one block per game, one row per seed
    otherwise                            one block per cell, one row per run
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offtrace.scores.scale import ROUNDING, Array

LEVEL = 0.95


class Estimates(NamedTuple):
    """Estimates of m sums, (m,) each, with standard errors.

    `num_rows` is the size of the smallest block in a sum. Where it is 1 the error is nan.
    """

    value: Array
    error: Array
    df: Array
    num_rows: NDArray[np.int64]

    @property
    def has_spread(self) -> NDArray[np.bool_]:
        """True where the rows differ by more than rounding."""
        return self.error > ROUNDING

    def interval(self, level: float = LEVEL) -> tuple[Array, Array]:
        """Return the ends of Student's interval, value ± t·error."""
        from scipy.special import stdtrit

        half = stdtrit(self.df, (1.0 + level) / 2.0) * np.where(self.has_spread, self.error, 0.0)
        return self.value - half, self.value + half


@dataclass(frozen=True, eq=False)
class Blocks:
    """Averages over games, (algorithms, λ), as a sum of means of blocks. Where `rows` is None, `reason` says why."""

    value: Array
    rows: Array | None
    """(rows, algorithms, λ): the rows of all blocks, one block after the other."""
    sizes: NDArray[np.int64]
    """(blocks,): number of rows per block."""
    fills: NDArray[np.bool_]
    """(blocks, algorithms, λ): False where all rows of a block are 0."""
    games: tuple[str, ...]
    algorithms: tuple[str, ...]
    lambdas: tuple[float, ...]
    num_runs: int
    """Number of distinct runs; a copy counts once."""
    reason: str | None = None

    def estimate(self, weights: Array) -> Estimates:
        """Return weighted sums, with standard errors and degrees of freedom by Welch and Satterthwaite.

            y_b = Σ_{a,λ} w·rows_b,    v_b = var(y_b) / n_b
            error² = Σ_b v_b,    df = (Σ_b v_b)² / Σ_b v_b²/(n_b − 1)

        Shapes: `weights` (m, algorithms, λ) → (m,) each.

        >>> rows = np.array([[[3.0], [1.0]], [[5.0], [2.0]], [[7.0], [6.0]]])  # two algorithms, one λ, three seeds
        >>> everywhere = np.ones((1, 2, 1), dtype=bool)
        >>> blocks = Blocks(rows.mean(0), rows, np.array([3]), everywhere, ("pong",), ("a", "b"), (1.0,), 6)
        >>> estimates = blocks.estimate(np.array([[[1.0], [-1.0]]]))  # 2, 3, 1
        >>> estimates.value, estimates.error * np.sqrt(3.0), estimates.df
        (array([2.]), array([1.]), array([2.]))
        """
        if self.rows is None:
            raise ValueError(f"`rows` must not be None for an estimate; got None, because {self.reason}.")
        flat = weights.reshape(len(weights), -1)
        row_sums = self.rows.reshape(len(self.rows), -1) @ flat.T
        starts = np.cumsum(self.sizes) - self.sizes
        means = np.add.reduceat(row_sums, starts, axis=0) / self.sizes[:, None]
        deviations = row_sums - np.repeat(means, self.sizes, axis=0)
        # Deviations are divided by the largest one before they are squared, so that no square overflows.
        unit = np.abs(deviations).max(axis=0)
        unit = np.where(unit > 0.0, unit, 1.0)
        df = np.maximum(self.sizes - 1, 1)[:, None]
        variances = np.add.reduceat((deviations / unit) ** 2, starts, axis=0) / (self.sizes[:, None] * df)
        total = variances.sum(axis=0)
        shares = variances / np.where(total > 0.0, total, 1.0)
        inverse_df = (shares**2 / df).sum(axis=0)
        contributes = (self.fills.reshape(len(self.fills), -1) @ (flat != 0.0).T) > 0
        num_rows = np.where(contributes, self.sizes[:, None], np.iinfo(np.int64).max).min(axis=0)
        return Estimates(
            value=flat @ self.value.ravel(),
            error=np.where(num_rows > 1, unit * np.sqrt(total), np.nan),
            df=1.0 / np.where(inverse_df > 0.0, inverse_df, 1.0),
            num_rows=num_rows,
        )
