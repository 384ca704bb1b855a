"""The model that the log shows, and Q^π in it: for a table, where one-step fitted evaluation ends.

    n(x, a, x')  transitions seen          P̂ = n(x, a, x') / n(x, a)          r̂ = mean reward of (x, a)
    V = r̂_π + γ P̂_π V                      Q = r̂ + γ P̂ V                     0 for a pair never seen

The transitions are counted per fold, so that the model without any one fold costs one solution.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from offtrace.evaluation.fitted import solve_linear
from offtrace.evaluation.parts import Engine, Part, total

MAX_DENSE = 2_000
"""States up to which the equations are solved directly."""


class Transitions(NamedTuple):
    """What was counted, per pair (x, a) = x · A + a."""

    number: np.ndarray
    """(X · A,) rows that have a successor or an end."""
    reward: np.ndarray
    """(X · A,) their sum of rewards."""
    ahead: sparse.csr_array
    """(X · A, X) how often each state followed; a termination counts as none."""


def count(engine: Engine, num_folds: int) -> list[Transitions]:
    """Return the transitions of every fold."""
    by_part = engine.map(_count, num_folds)
    return [add([one[fold] for one in by_part]) for fold in range(num_folds)]


def add(several: Sequence[Transitions]) -> Transitions:
    """Return the sum of several counts."""
    number, reward, ahead = (total(column) for column in zip(*several, strict=True))
    return Transitions(number, reward, ahead)


def _count(part: Part, num_folds: int) -> list[Transitions]:
    basis = part.steps.basis
    size = basis.pi.size
    fold = np.repeat(part.labels["fold"], part.log.lengths)
    out = []
    for number in range(num_folds):
        rows = part.steps.mask & (fold == number)
        pair = basis.pair[rows]
        goes_on = part.steps.discount[rows] > 0
        ahead = sparse.coo_array(
            (np.ones(goes_on.sum()), (pair[goes_on], basis.successor[rows][goes_on])),
            shape=(size, len(basis.pi)),
        )
        out.append(
            Transitions(
                np.bincount(pair, minlength=size).astype(np.float64),
                np.bincount(pair, weights=part.log.reward[rows], minlength=size),
                ahead.tocsr(),
            )
        )
    return out


def q_of(transitions: Transitions, pi: np.ndarray, gamma: float) -> np.ndarray:
    """Return Q^π of the counted model, (X · A,)."""
    number = np.maximum(transitions.number, 1.0)
    reward = transitions.reward / number
    ahead = sparse.diags_array(gamma / number) @ transitions.ahead
    num_states, num_actions = pi.shape
    rows = np.repeat(np.arange(num_states), num_actions)
    choose = sparse.csr_array((pi.ravel(), (rows, np.arange(pi.size))), shape=(num_states, pi.size))
    by_state = (choose @ ahead).tocsr()
    reward_by_state = choose @ reward
    if num_states > MAX_DENSE:
        return reward + ahead @ solve_linear(lambda v: v - by_state @ v, reward_by_state)
    matrix = np.eye(num_states) - by_state.toarray()
    try:
        value = np.linalg.solve(matrix, reward_by_state)
    except np.linalg.LinAlgError:  # γ = 1, and in the model π never ends from some state
        value = np.linalg.lstsq(matrix, reward_by_state, rcond=None)[0]
    return reward + ahead @ value
