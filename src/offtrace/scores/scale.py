"""The scale of a game: from the worst to the best mean that was found, but never narrower than noise alone makes it.

The range of k means of n runs each, all of one algorithm, is below q·s/√n 95 % of the time, where s is the standard
deviation of a run and q the quantile of the studentized range. A game whose means differ by less has no scale of its
own: it gets that width, with its means around ½, so that it can neither decide anything nor make a number explode.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
ROUNDING = 2.0**-40
"""Of numbers of about 1, what rounding alone can make: nothing may rest on it."""


class Ends(NamedTuple):
    """A scale: z = offset + (x − origin) / width; `is_floored` where the means differ by no more than noise does."""

    origin: Array
    offset: Array
    width: Array
    is_floored: NDArray[np.bool_]

    def of(self, values: Array) -> Array:
        """Values on the scale, of shapes that go together."""
        return self.offset + (values - self.origin) / self.width

    def at(self, place: Any) -> "Ends":
        """The same, indexed."""
        return Ends(self.origin[place], self.offset[place], self.width[place], self.is_floored[place])

    def to(self, shape: tuple[int, ...]) -> "Ends":
        """The same, broadcast."""
        return Ends(
            np.broadcast_to(self.origin, shape),
            np.broadcast_to(self.offset, shape),
            np.broadcast_to(self.width, shape),
            np.broadcast_to(self.is_floored, shape),
        )


def ends_of(worst: Array, best: Array, floor: Array | float = 0.0) -> Ends:
    """The scale from the worst to the best mean.

        width = max(best − worst, floor),    z = ½ + (x − (worst + best)/2) / width

    Where both are 0, up to rounding, everything is ½.

    >>> ends = ends_of(np.array([0.0, 0.0, 3.0]), np.array([4.0, 4.0, 3.0]), np.array([1.0, 8.0, 0.0]))
    >>> ends.of(np.array([1.0, 1.0, 3.0])), ends.is_floored
    (array([0.25 , 0.375, 0.5  ]), array([False,  True,  True]))
    """
    rounding = ROUNDING * np.maximum(np.abs(worst), np.abs(best))
    spread = np.where(best - worst > rounding, best - worst, 0.0)
    floor = np.where(floor > rounding, floor, 0.0)
    width = np.maximum(spread, floor)
    is_floored = (spread < floor) | (width == 0.0)
    return Ends(
        origin=np.where(is_floored, worst / 2.0 + best / 2.0, worst),
        offset=np.where(is_floored, 0.5, 0.0),
        width=np.where(width > 0.0, width, np.inf),
        is_floored=is_floored,
    )


def noise_floor(
    *, squares: Array, num_cells: NDArray[np.int64], num_runs: NDArray[np.int64], inverse_sizes: Array
) -> Array:
    """How far apart the best and the worst of k equal algorithms are found, at most, 95 % of the time.

        q · s / √n,    s² = Σ_i Σ_j (x_ij − x̄_i)² / df,    df = Σ_i (n_i − 1),    1/n = (1/k) Σ_i 1/n_i

    Shapes: all of one shape, which is that of the floor: the sum of `squares` around the means of the cells, the
    number of cells and of runs, and the sum of all 1/n_i. Without a second run of anything (df = 0) it is 0.

    >>> sums = np.array([16.0]), np.array([2]), np.array([6]), np.array([2 / 3])  # two cells of 3 runs, s = 2
    >>> names = ("squares", "num_cells", "num_runs", "inverse_sizes")
    >>> noise_floor(**dict(zip(names, sums))).round(3)  # 3.927 · 2 / √3
    array([4.534])
    """
    df = num_runs - num_cells
    quantile = [
        studentized_range(int(k), int(d)) if d > 0 else 0.0
        for k, d in zip(num_cells.ravel().tolist(), df.ravel().tolist(), strict=True)
    ]
    variance_of_mean = squares / np.maximum(df, 1) * inverse_sizes / num_cells
    return np.reshape(quantile, df.shape) * np.sqrt(variance_of_mean)


def unit_of(values: Array) -> int:
    """The power of 2 that no value exceeds: divided by it, nothing overflows, and nothing is rounded.

    >>> unit_of(np.array([-5.0, 3.0])), unit_of(np.zeros(2))
    (3, 0)
    """
    return int(np.frexp(np.abs(values).max())[1])


@lru_cache(maxsize=4096)
def studentized_range(num_cells: int, df: int) -> float:
    """The 95 % quantile of the range of k standard normal numbers over an estimate of their deviation; 0 for one.

    >>> round(studentized_range(3, 10), 3)  # as in any table of it
    3.877
    """
    if num_cells < 2:
        return 0.0
    from scipy.stats import studentized_range as distribution

    return float(distribution.ppf(LEVEL, num_cells, df))
