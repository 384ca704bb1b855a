"""Lists of transitions from dense and sparse arrays, and their checks; `offtrace.mdp.finite` draws the format."""

from typing import Any

import numpy as np

from offtrace.mdp.checks import checked_numbers, checked_wholes

Transitions = tuple[tuple[int, int], np.ndarray, np.ndarray, np.ndarray]
"""(X, A), then the arrays `probability`, `successor` and `first`."""


def from_sparse(p: Any) -> Transitions:
    """Return the transitions of a sparse matrix (X·A, X)."""
    if len(p.shape) != 2 or 0 in p.shape or p.shape[0] % p.shape[1]:
        raise ValueError(f"a sparse `p` must have shape (X·A, X), row x·A + a; got {p.shape}.")
    matrix = p.tocsr()  # the same object if it is CSR already
    num_states = matrix.shape[1]
    shape = num_states, matrix.shape[0] // num_states
    return shape, checked_numbers("p", matrix.data), matrix.indices, matrix.indptr


def from_dense(p: Any) -> Transitions:
    """Return the transitions of an array (X, A, X); those of probability 0 are left out."""
    dense = checked_numbers("p", p)
    if dense.ndim != 3 or dense.shape[0] != dense.shape[2] or 0 in dense.shape:
        raise ValueError(f"`p` must have shape (X, A, X), with p(x'|x, a) in [x, a, x']; got {dense.shape}.")
    num_states, num_actions = dense.shape[:2]
    table = dense.reshape(-1, num_states)
    rows, successor = np.nonzero(table)
    first = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(table)))])
    return (num_states, num_actions), table[rows, successor], successor, first


def checked_successors(successor: Any, num_states: int) -> np.ndarray:
    """Return the successors as int32 or int64."""
    successor = checked_wholes("successor", successor)
    if successor.size and not 0 <= int(successor.min()) <= int(successor.max()) < num_states:
        worst = successor[(successor < 0) | (successor >= num_states)][0]
        raise ValueError(f"`successor` must be a state in [0, {num_states}); got {worst}.")
    if successor.dtype not in (np.int32, np.int64) or not successor.dtype.isnative:
        successor = successor.astype(np.int64)
    return np.ascontiguousarray(successor)


def check_rows(
    probability: np.ndarray, successor: np.ndarray, first: np.ndarray, shape: tuple[int, int], rounding: float
) -> tuple[float, float]:
    """Check that every row is a distribution; return the smallest and the largest sum."""
    if (
        first[0] != 0
        or first[-1] != len(probability)
        or len(probability) != len(successor)
        or (np.diff(first) < 0).any()
    ):
        raise ValueError(
            f"`first` must grow from 0 to the number of transitions; got {first[0]} … {first[-1]} "
            f"for {len(probability)} probabilities and {len(successor)} successors."
        )
    empty = np.diff(first) == 0
    if empty.any():
        x, a = divmod(int(np.argmax(empty)), shape[1])
        raise ValueError(f"`p` must have rows that sum to 1; got 0 at (x, a) = ({x}, {a}).")
    negative = ~(probability >= -rounding)
    check_transitions(negative, probability, first, shape, "p", "must be a probability in [0, 1]")
    sums = np.add.reduceat(probability, first[:-1])
    broken = ~(abs(sums - 1) <= rounding)
    if broken.any():
        x, a = divmod(int(np.argmax(broken)), shape[1])
        remedy = "Transitions that end an episode count too; mark them with `terminates`."
        got = sums[x * shape[1] + a]
        raise ValueError(f"`p` must have rows that sum to 1; got {got:.6g} at (x, a) = ({x}, {a}). {remedy}")
    return float(sums.min()), float(sums.max())


def check_transitions(
    broken: np.ndarray, values: np.ndarray, first: np.ndarray, shape: tuple[int, int], name: str, rule: str
) -> None:
    """Raise if `broken` is True for any transition."""
    if broken.any():
        place = int(np.argmax(broken))
        x, a = divmod(int(np.searchsorted(first, place, side="right")) - 1, shape[1])
        raise ValueError(f"`{name}` {rule}; got {values[place]:.6g} at (x, a) = ({x}, {a}).")


def rewards_of(r: Any, shape: tuple[int, int], successor: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return rewards (X, A), or one per transition."""
    if hasattr(r, "tocsr"):
        return _entries("r", r, shape, successor, first)
    r = checked_numbers("r", r)
    if r.shape == (*shape, shape[0]):
        return r.reshape(-1, shape[0])[_rows_of(first), successor]
    if r.shape != shape:
        raise ValueError(f"`r` must have shape (X, A) = {shape} or {(*shape, shape[0])}; got {r.shape}.")
    return r


def ends_of(terminates: Any, shape: tuple[int, int], successor: np.ndarray, first: np.ndarray) -> np.ndarray | None:
    """Return the share of each transition that terminates."""
    if terminates is None:
        return None
    if hasattr(terminates, "tocsr"):
        return _entries("terminates", terminates, shape, successor, first)
    terminates = checked_numbers("terminates", terminates)
    if terminates.shape == shape[:1]:
        return terminates[successor]
    if terminates.shape == shape:
        return np.repeat(terminates.ravel(), np.diff(first))
    if terminates.shape == (*shape, shape[0]):
        return terminates.reshape(-1, shape[0])[_rows_of(first), successor]
    allowed = f"{shape[:1]}, {shape} or {(*shape, shape[0])}"
    raise ValueError(f"`terminates` must have shape {allowed}; got {terminates.shape}.")


def _entries(name: str, given: Any, shape: tuple[int, int], successor: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the entries of a sparse matrix at the transitions."""
    expected = (shape[0] * shape[1], shape[0])
    if given.shape != expected:
        raise ValueError(f"a sparse `{name}` must have the shape of `p`, {expected}; got {given.shape}.")
    matrix = given.tocsr()
    if np.array_equal(matrix.indptr, first) and np.array_equal(matrix.indices, successor):
        return checked_numbers(name, matrix.data)
    return checked_numbers(name, np.asarray(matrix[_rows_of(first), successor])).ravel()


def _rows_of(first: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(first) - 1), np.diff(first))
