"""What the paper says of its algorithms (Sec. 5, App. F), each as differences that are positive if it is true."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from offtrace.scores.cells import Scale
from offtrace.scores.layout import Stretch
from offtrace.scores.scale import Array

Weights = Mapping[str, Array]
"""By algorithm, (m, λ); the baseline is `dqn` and the Q-baseline's algorithm `q`, whatever they are called."""

SHOWN = {"retrace": "Retrace(λ)", "tree_backup": "TB(λ)", "q": "Q(λ)", "dqn": "DQN"}


@dataclass(frozen=True)
class Rule:
    """A claim: m differences of averages over games, one for each λ that it speaks of."""

    text: str
    measure: str
    weights: Callable[[Array], Weights]
    """From the λ to what is added up, m times."""
    lambdas: Callable[[Array], Array]
    """Which λ it speaks of; none of them where it cannot be asked."""
    algorithms: tuple[str, ...]
    scale: Scale = "score"
    """Of a level, where only scores are printed, the score will do if algorithms are compared at one λ."""
    stretch: Stretch = "final"


def above(name: str, other: str) -> Callable[[Array], Weights]:
    """One algorithm less another, at each λ.

    >>> {name: found.tolist() for name, found in above("retrace", "dqn")(np.array([0.5, 1.0])).items()}
    {'retrace': [[1.0, 0.0], [0.0, 1.0]], 'dqn': [[-1.0, -0.0], [-0.0, -1.0]]}
    """
    return lambda lambdas: {name: np.eye(lambdas.size), other: -np.eye(lambdas.size)}


def last_is_best(name: str) -> Callable[[Array], Weights]:
    """The last λ less each other one.

    >>> last_is_best("retrace")(np.array([0.0, 0.5, 1.0]))["retrace"].tolist()
    [[-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]]
    """

    def weights(lambdas: Array) -> Weights:
        found = 0.0 - np.eye(lambdas.size)[:-1]
        found[:, -1] = 1.0
        return {name: found}

    return weights


def falls_above_half(lambdas: Array) -> Weights:
    """The mean of Q for λ up to ½, less that for λ above.

    >>> falls_above_half(np.array([0.1, 0.5, 0.9]))["q"].tolist()
    [[0.5, 0.5, -1.0]]
    """
    low = lambdas <= 0.5
    return {"q": np.where(low, 1.0 / low.sum(), -1.0 / (~low).sum())[None]}


def _one(lambdas: Array) -> Array:
    return lambdas[lambdas == 1.0]


def _positive(lambdas: Array) -> Array:
    return lambdas[lambdas > 0]


def _up_to_one(lambdas: Array) -> Array:
    if lambdas.size > 1 and lambdas[-1] == 1.0:
        return lambdas
    return lambdas[:0]


def _both_sides(lambdas: Array) -> Array:
    some = _positive(lambdas)
    if some.size and some[0] <= 0.5 < some[-1]:
        return some
    return lambdas[:0]


RULES = (
    *(
        Rule(
            f"{SHOWN[name]} is above DQN {when}",
            "difference of scores at λ = 1",
            above(name, "dqn"),
            _one,
            (name, "dqn"),
            stretch=stretch,
        )
        for name in ("tree_backup", "retrace")
        for when, stretch in (("early", "early"), ("finally", "final"))
    ),
    Rule(
        "Q*(λ) fails for λ above 0.5",
        "its mean level for 0 < λ ≤ 0.5, less that for λ > 0.5",
        falls_above_half,
        _both_sides,
        ("q",),
        scale="level",
    ),
    *(
        Rule(
            f"λ = 1 is best for {SHOWN[name]}",
            "its level at λ = 1, less that at another λ",
            last_is_best(name),
            _up_to_one,
            (name,),
            scale="level",
        )
        for name in ("tree_backup", "retrace")
    ),
    Rule(
        "Retrace(λ) is above TB(λ) for λ > 0",
        "difference of levels",
        above("retrace", "tree_backup"),
        _positive,
        ("retrace", "tree_backup"),
        scale="level",
    ),
    Rule(
        "No λ > 0 at which Retrace(λ) does poorly",
        "its level, less DQN's",
        above("retrace", "dqn"),
        _positive,
        ("retrace", "dqn"),
        scale="level",
    ),
)
