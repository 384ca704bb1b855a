"""Input checks of a comparison."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from offtrace.scores.keys import Key, is_baseline

if TYPE_CHECKING:
    from offtrace.scores.comparison import Comparison


def check_comparison(comparison: "Comparison") -> None:
    """Raise a ValueError where fields are wrong or contradict each other."""
    for stretch, runs in comparison.runs.items():
        _check_runs(stretch, runs)
        if comparison.paired:
            _check_pairs(runs)
    for stretch, seeds in comparison.seeds.items():
        _check_seeds(stretch, seeds, comparison.runs.get(stretch, {}))
    _check_copies(comparison.copies)
    if comparison.anchors is not None:
        _check_anchors(comparison.anchors, comparison.games)


def _check_runs(stretch: str, runs: Mapping[Key, Sequence[float]]) -> None:
    for key, values in runs.items():
        if not len(values) or not np.isfinite(values).all():
            raise ValueError(
                f"`runs[{stretch!r}]` must have one or more finite scores per cell; got {values} at {key}. "
                "Leave out cells without runs."
            )
        if key.lambda_ and is_baseline(key.algorithm):
            raise ValueError(
                f"`runs[{stretch!r}]` must have {key.algorithm} at λ = 0; got {key}. A baseline has no λ."
            )


def _check_pairs(runs: Mapping[Key, Sequence[float]]) -> None:
    sizes: dict[str, int] = {}
    for key, values in runs.items():
        if sizes.setdefault(key.game, len(values)) != len(values):
            raise ValueError(
                "`paired` must be False where the cells of a game have different numbers of runs; got True. "
                "Give `seeds` instead."
            )


def _check_seeds(stretch: str, seeds: Mapping[Key, Sequence[int]], runs: Mapping[Key, Sequence[float]]) -> None:
    for key, of_cell in seeds.items():
        num_runs = len(runs.get(key, ()))
        if len(of_cell) != num_runs:
            raise ValueError(
                f"`seeds[{stretch!r}]` must have one seed per run; got {len(of_cell)} for {num_runs} at {key}."
            )


def _check_copies(copies: Mapping[Key, Key]) -> None:
    for copy, source in copies.items():
        if copy.game != source.game:
            raise ValueError(f"`copies` must stay within one game; got {source} for {copy}.")
        if copies.get(source, source) != source:
            raise ValueError(
                f"`copies` must name the cell that was run; got {source} for {copy}, which is itself a copy."
            )


def _check_anchors(anchors: Mapping[str, tuple[float, float]], games: Sequence[str]) -> None:
    for game in games:
        if game not in anchors:
            raise ValueError(f"`anchors` must have every game or be None; got none for {game!r}.")
        low, high = anchors[game]
        if not (np.isfinite([low, high]).all() and low < high):
            raise ValueError(
                "`anchors` must be finite, with the score of random play below the optimal one; "
                f"got {low} and {high} at {game!r}."
            )
