"""What a sweep needs of every row for one target policy: π, the successor, discount, reset and mask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.evaluation import bases
from offtrace.evaluation.fitted import Steps
from offtrace.evaluation.parts import Engine, Part, total

Features = Callable[[np.ndarray], np.ndarray]
"""From observations (N, k) to features (N, d)."""


def prepare(part: Part, target: Any, gamma: float, features: Features | None) -> None:
    """Set the steps of a part. `features` is needed for observations only."""
    log = part.log
    here = log.state if log.state is not None else log.observation
    assert here is not None
    after = np.concatenate([here[1:], here[:1]]) if log.successor is None else log.successor
    mask = log.has_successor
    nowhere = (log.terminated | ~mask).reshape(-1, *[1] * (here.ndim - 1))
    successor = np.where(nowhere, here, after)  # its value is not used: the discount or the mask is 0
    basis: bases.Basis | None = None
    if target.log_density is not None:
        log_pi_a = target.log_densities(log)
        pi_a = np.exp(log_pi_a)
    else:
        if log.state is not None:
            basis = bases.table(log, target.table, successor)
            pi_a = target.table[log.state, log.action]
        else:
            linear = bases.linear(log, target, features, successor)
            basis = linear
            pi_a = np.take_along_axis(linear.pi, log.action[:, None], axis=1)[:, 0]
        with np.errstate(divide="ignore"):
            log_pi_a = np.log(pi_a)
    reset = np.zeros(log.num_steps, bool)
    reset[log.first[:-1]] = True
    part.steps = Steps(
        basis=basis,
        log_pi_a=log_pi_a,
        pi_a=np.ascontiguousarray(pi_a, np.float64),
        discount=np.where(log.terminated, 0.0, gamma),
        reset=reset,
        mask=mask,
    )


@dataclass(frozen=True, eq=False)
class Standardised:
    """An intercept and the observations, shifted and scaled to mean 0 and standard deviation 1."""

    centre: np.ndarray
    spread: np.ndarray

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        return np.column_stack([np.ones(len(observation)), (observation - self.centre) / self.spread])


def standardise(engine: Engine) -> Standardised:
    """Return the default features, from the observations of the whole log."""
    number, first, second = total(engine.map(moments))
    centre = first / number
    variance = np.maximum(second / number - centre**2, 0.0)
    return Standardised(centre, np.where(variance > 0, np.sqrt(variance), 1.0))


def moments(part: Part) -> np.ndarray:
    """Return the number, the sum and the sum of squares of every observed quantity."""
    observation = part.log.observation
    assert observation is not None
    number = np.full(observation.shape[1], float(len(observation)))
    return np.stack([number, observation.sum(axis=0), (observation**2).sum(axis=0)])
