"""The scale of a game: from the worst to the best mean score, but never narrower than noise alone would make it.

The range of k means of n runs each, all of one algorithm, is below q·s/√n 95 % of the time, where
s is the standard deviation of a run and q the quantile of the studentized range. A game whose
means differ by less than that has no scale of its own. Its scale is that wide, with the means
around ½, so the game can neither decide a claim nor inflate a score.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
ROUNDING = 2.0**-40
"""Bound on the rounding error of numbers near 1. Differences up to this count as 0."""


class GameScale(NamedTuple):
    """The map from raw scores to a scale, z = offset + (x − origin) / width.

    `is_floored` is True where the means differ by no more than noise explains.
    """

    origin: Array
    offset: Array
    width: Array
    is_floored: NDArray[np.bool_]

    def apply(self, values: Array) -> Array:
        """Return raw scores on the scale; shapes broadcast."""
        return self.offset + (values - self.origin) / self.width

    def at(self, index: Any) -> "GameScale":
        """Return the scale at an index of its arrays."""
        return GameScale(self.origin[index], self.offset[index], self.width[index], self.is_floored[index])

    def broadcast_to(self, shape: tuple[int, ...]) -> "GameScale":
        """Return the scale with all arrays broadcast to a shape."""
        return GameScale(
            np.broadcast_to(self.origin, shape),
            np.broadcast_to(self.offset, shape),
            np.broadcast_to(self.width, shape),
            np.broadcast_to(self.is_floored, shape),
        )


def scale_between(worst: Array, best: Array, floor: Array | float = 0.0) -> GameScale:
    """Return the scale from the worst to the best mean, at least `floor` wide.

        width = max(best − worst, floor),    z = ½ + (x − (worst + best)/2) / width

    Where best − worst and the floor are both 0, up to rounding, every score is ½.

    >>> scale = scale_between(np.array([0.0, 0.0, 3.0]), np.array([4.0, 4.0, 3.0]), np.array([1.0, 8.0, 0.0]))
    >>> scale.apply(np.array([1.0, 1.0, 3.0])), scale.is_floored
    (array([0.25 , 0.375, 0.5  ]), array([False,  True,  True]))
    """
    rounding = ROUNDING * np.maximum(np.abs(worst), np.abs(best))
    spread = np.where(best - worst > rounding, best - worst, 0.0)
    floor = np.where(floor > rounding, floor, 0.0)
    width = np.maximum(spread, floor)
    is_floored = (spread < floor) | (width == 0.0)
    return GameScale(
        origin=np.where(is_floored, worst / 2.0 + best / 2.0, worst),
        offset=np.where(is_floored, 0.5, 0.0),
        width=np.where(width > 0.0, width, np.inf),
        is_floored=is_floored,
    )


def noise_floor(
    *, squares: Array, num_cells: NDArray[np.int64], num_runs: NDArray[np.int64], inverse_sizes: Array
) -> Array:
    """Return the 95 % bound on the range of the means of k cells that do not differ.

        q · s / √n,    s² = Σ_i Σ_j (x_ij − x̄_i)² / df,    df = Σ_i (n_i − 1),    1/n = (1/k) Σ_i 1/n_i

    Shapes: all arguments and the result have one shape. `squares` is the sum of squares around the
    means of the cells, and `inverse_sizes` the sum of all 1/n_i. If no cell has a second run (df =
    0), the floor is 0.

    >>> sums = np.array([16.0]), np.array([2]), np.array([6]), np.array([2 / 3])  # two cells of 3 runs, s = 2
    >>> names = ("squares", "num_cells", "num_runs", "inverse_sizes")
    >>> noise_floor(**dict(zip(names, sums))).round(3)  # 3.927 · 2 / √3
    array([4.534])
    """
    df = num_runs - num_cells
    quantiles = [
        studentized_range(int(k), int(d)) if d > 0 else 0.0
        for k, d in zip(num_cells.ravel().tolist(), df.ravel().tolist(), strict=True)
    ]
    variance_of_mean = squares / np.maximum(df, 1) * inverse_sizes / num_cells
    return np.reshape(quantiles, df.shape) * np.sqrt(variance_of_mean)


def binary_exponent(values: Array) -> int:
    """Return e such that no value exceeds 2^e. Dividing by 2^e is exact and prevents overflow.

    >>> binary_exponent(np.array([-5.0, 3.0])), binary_exponent(np.zeros(2))
    (3, 0)
    """
    return int(np.frexp(np.abs(values).max())[1])


@lru_cache(maxsize=4096)
def studentized_range(num_cells: int, df: int) -> float:
    """Return the 95 % quantile of the studentized range of k means; 0 for a single mean.

    >>> round(studentized_range(3, 10), 3)  # as in statistical tables
    3.877
    """
    if num_cells < 2:
        return 0.0
    from scipy.stats import studentized_range as distribution

    return float(distribution.ppf(LEVEL, num_cells, df))
