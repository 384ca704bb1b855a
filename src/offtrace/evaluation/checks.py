"""The rules of a log: which columns it has, their values, and the order of its rows.

Within an episode, steps count from 0 without gaps, only the last step is an end, and the next state of
a step is the state of the step after it:

    step           0     1     2
    state          4     7     7
    next_state     7     7     3        at the last step, null is allowed
    truncated      ·     ·     ✓
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from offtrace.evaluation.columns import KINDS, MISSING, REQUIRED
from offtrace.evaluation.problems import Problem, where, whole

ROUNDING = 1e-6
"""Allowed difference of an observation and the next observation of the step before, which may have another dtype."""
AT_ONCE = 1 << 17
"""Rows of observations that are compared at once."""


class Order(NamedTuple):
    """The rows episode after episode, step after step."""

    rows: np.ndarray | None
    """(N,) the row in the source of each row in order; None if the source is in order."""
    first: np.ndarray
    """(E + 1,) where each episode starts, in order, and the number of rows."""

    def take(self, column: np.ndarray) -> np.ndarray:
        """Return a column in order."""
        return column if self.rows is None else column[self.rows]


def check_names(names: Collection[str]) -> list[Problem]:
    """Return what is wrong with the names of the columns."""
    problems = [whole(f"the column `{name}` is missing") for name in REQUIRED if name not in names]
    pairs = (("state", "observation"), ("behaviour_probability", "behaviour_log_density"))
    for one, other in pairs:
        if one in names and other in names:
            problems.append(whole(f"give `{one}` or `{other}`, not both"))
    if "state" not in names and "observation" not in names:
        problems.append(whole("the column `state` (numbers) or `observation` (vectors) is missing"))
    for one, other in (("next_state", "state"), ("next_observation", "observation")):
        if one in names and other not in names:
            problems.append(whole(f"`{one}` must come with `{other}`"))
    return problems


def check_columns(arrays: Mapping[str, np.ndarray], broken: Collection[str] = ()) -> list[Problem]:
    """Return everything that is wrong with the values of a log; an empty list if nothing is.

    Columns named in `broken` could not be converted in all rows, and are left out.
    """
    sound = {name: array for name, array in arrays.items() if name not in broken}
    problems = []
    for name, array in sound.items():
        problems += _check_values(name, array)
    if {"episode", "step", "terminated", "truncated"} <= sound.keys():
        problems += _check_episodes(sound)
    return problems


def _check_values(name: str, array: np.ndarray) -> list[Problem]:
    if name == "next_observation":  # a row of NaN is one that is missing
        missing = _is_missing(array)
        return where(f"`{name}` must be finite", ~_all_finite(array) & ~missing)
    if array.ndim == 2 and not array.shape[1]:
        return [whole(f"`{name}` must have at least one number per row")]
    if array.dtype.kind == "f":
        finite = _all_finite(array)
        problems = where(f"`{name}` must be finite", ~finite)
        if name == "behaviour_probability":
            rule = "`behaviour_probability` must be above 0 and at most 1, as the action was taken"
            problems += where(rule, finite & ((array <= 0) | (array > 1 + ROUNDING)))
        return problems
    if KINDS[name] in ("whole", "action"):
        least = MISSING if name == "next_state" else 0
        return where(f"`{name}` must not be negative", array < least)
    return []


def _is_missing(successor: np.ndarray) -> np.ndarray:
    """Return where a next state or observation is not in the log."""
    if successor.ndim == 1:
        return successor == MISSING
    return np.asarray(np.isnan(successor).all(axis=1))


def _all_finite(array: np.ndarray) -> np.ndarray:
    """Return where all numbers of a row are finite."""
    finite = np.isfinite(array)
    return finite if finite.ndim == 1 else np.asarray(finite.all(axis=1))


# -- episodes ------------------------------------------------------------------------------------


def order_of(episode: np.ndarray, step: np.ndarray) -> Order:
    """Return the order of the rows. Episodes keep the order in which they first appear."""
    num_rows = len(episode)
    starts_here = np.ones(num_rows, bool)
    np.not_equal(episode[1:], episode[:-1], out=starts_here[1:])
    starts = np.flatnonzero(starts_here)
    names = episode[starts]
    rises = bool((names[1:] > names[:-1]).all())  # the usual case, and far cheaper than `unique`
    if rises or len(np.unique(names)) == len(names):  # every episode is in one piece
        if (starts_here[1:] | (step[1:] >= step[:-1])).all():
            return Order(None, np.append(starts, num_rows))
        of_run = np.arange(len(starts), dtype=np.int32)
    else:
        _, first_seen, inverse = np.unique(names, return_index=True, return_inverse=True)
        rank = np.empty(len(first_seen), np.int32)
        rank[np.argsort(first_seen)] = np.arange(len(first_seen))
        of_run = rank[inverse]
    number = np.repeat(of_run, np.diff(starts, append=num_rows))
    first = np.concatenate([[0], np.cumsum(np.bincount(number))])
    return Order(np.lexsort((step, number)), first)


def _check_episodes(arrays: Mapping[str, np.ndarray]) -> list[Problem]:
    order = order_of(arrays["episode"], arrays["step"])
    step = order.take(arrays["step"])
    is_start = np.zeros(len(step), bool)
    is_start[order.first[:-1]] = True
    is_last = np.append(is_start[1:], True)
    change = np.diff(step)
    inside = ~is_start[1:]
    is_same = np.append(False, inside & (change == 0))
    is_gap = np.append(False, inside & (change > 1))
    del change
    problems = where("an episode must start with step 0", is_start & (step != 0), order.rows)
    problems += where("two rows have the same episode and step", is_same, order.rows)
    problems += where("steps are missing before", is_gap, order.rows)
    ends = order.take(arrays["terminated"] | arrays["truncated"])
    problems += where("the episode goes on after `terminated` or `truncated`", ends & ~is_last, order.rows)
    rule = "the last step of an episode must be `terminated` or `truncated`; if the log stops there, it is truncated"
    problems += where(rule, ~ends & is_last, order.rows)
    if is_same.any() or is_gap.any():  # the next row is another step
        return problems
    for name, successor in (("state", "next_state"), ("observation", "next_observation")):
        if name in arrays and successor in arrays:
            problems += _check_successors(name, arrays[name], arrays[successor], is_last, order)
    return problems


def _check_successors(
    name: str, state: np.ndarray, successor: np.ndarray, is_last: np.ndarray, order: Order
) -> list[Problem]:
    if state.ndim == 2 and not successor.shape[1]:  # all rows are null
        successor = np.full(state.shape, np.nan)
    if state.ndim == 2 and state.shape[1] != successor.shape[1]:
        return [whole(f"`next_{name}` must have {state.shape[1]} numbers per row; got {successor.shape[1]}")]
    after = order.take(state)[1:]
    before = order.take(successor)
    is_missing = _is_missing(before) & ~is_last
    differs = ~is_last & ~is_missing
    for start in range(0, len(after), AT_ONCE):
        piece = slice(start, min(start + AT_ONCE, len(after)))
        differs[piece] &= _differ(after[piece], before[piece])
    rule = f"`next_{name}` must be the {name} of the next step of the episode"
    problems = where(rule, differs, order.rows)
    rule = f"`next_{name}` is missing; it may be missing only at the last step of an episode"
    return [*problems, *where(rule, is_missing, order.rows)]


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.ndim == 1:
        return one != other
    return (np.abs(one - other) > ROUNDING * np.maximum(1.0, np.abs(one))).any(axis=1)
