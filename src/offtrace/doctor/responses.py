"""How the targets of a function respond to its inputs: every reward and value of a window is changed in turn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from offtrace.doctor.answers import Answer, single_answer
from offtrace.doctor.recursion import error_base
from offtrace.doctor.search import Guess
from offtrace.doctor.windows import GoldenWindow

REWARD_CHANGE = 1.0
VALUE_CHANGE = 0.0625
"""Smaller than the difference of any two values, so that the greedy action stays the same."""


@dataclass(frozen=True)
class Response:
    """The derivatives of the targets of one window, by its rewards and values.

    For Retrace, row t of `rewards` holds what reaches G_t from each later step:

        ∂G_t/∂r_s      s = 0    1       2
                t = 0      1    γ c_1   γ² c_1 c_2
                    1      0    1       γ c_2
                    2      0    0       1
    """

    window: GoldenWindow
    streams: tuple[GoldenWindow, ...]
    lambda_: float
    gamma: float
    targets: np.ndarray
    rewards: np.ndarray
    """(n, n) ∂G_t / ∂r_s."""
    values: np.ndarray
    """(n, n+1, A) ∂G_t / ∂Q(x_s, b)."""
    linear: bool
    """True if the targets are linear in Q."""

    @property
    def n(self) -> int:
        return self.window.n


def measured(fn: Callable[..., Any], answer: Answer, guess: Guess, window: GoldenWindow) -> Response:
    """Change the rewards and values of a window one at a time."""
    to_target = answer.form.target
    assert to_target is not None

    def targets(changed: GoldenWindow) -> np.ndarray:
        base = np.array(error_base(changed, guess.algorithm, guess.switches)[: changed.n])
        return to_target(single_answer(fn, answer, changed), base)

    def slope_by_value(t: int, b: int, by: float) -> np.ndarray:
        row = tuple(x + by * (i == b) for i, x in enumerate(window.q[t]))
        return (targets(replace(window, q=(*window.q[:t], row, *window.q[t + 1 :]))) - before) / by

    def slopes_by_value(by: float) -> np.ndarray:
        rows = enumerate(window.q)
        return np.array([[slope_by_value(t, b, by) for b in range(len(row))] for t, row in rows])

    before = targets(window)
    rewards = []
    for s in range(window.n):
        changed = (*window.r[:s], window.r[s] + REWARD_CHANGE, *window.r[s + 1 :])
        rewards.append(targets(replace(window, r=changed)) - before)
    values = slopes_by_value(VALUE_CHANGE)
    downwards = slopes_by_value(-VALUE_CHANGE)
    return Response(
        window=window,
        streams=answer.attempt.convention.streams(window),
        lambda_=guess.lambda_,
        gamma=guess.gamma,
        targets=before,
        rewards=np.array(rewards).T / REWARD_CHANGE,
        values=np.moveaxis(values, -1, 0),
        linear=bool(np.allclose(values, downwards, atol=tolerance(answer))),
    )


def tolerance(answer: Answer) -> float:
    """Return how far a measured derivative may be off: differences lose digits."""
    return 1e-7 if answer.tolerance < 1e-6 else 4e-3
