"""The paper's claims about its algorithms (Sec. 5, App. F), each as differences that are positive if it is true."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from offtrace.scores.cells import Scale
from offtrace.scores.keys import Stretch
from offtrace.scores.scale import Array

Weights = Mapping[str, Array]
"""By algorithm, (m, λ). The baseline is `dqn` and the Q-baseline's algorithm `q`, whatever the runs call them."""

DISPLAY_NAMES = {"retrace": "Retrace(λ)", "tree_backup": "TB(λ)", "q": "Q(λ)", "dqn": "DQN"}


@dataclass(frozen=True)
class PaperClaim:
    """A claim as m differences of averages over games, one per λ that it is about."""

    text: str
    measure: str
    weights: Callable[[Array], Weights]
    """From the λ of the claim to the weights of the m differences."""
    lambdas: Callable[[Array], Array]
    """The λ that the claim is about, out of those that were run; empty if it cannot be tested."""
    algorithms: tuple[str, ...]
    scale: Scale = "score"
    """For a level where only scores are printed, the score is used if algorithms are compared at one λ."""
    stretch: Stretch = "final"


def above(name: str, other: str) -> Callable[[Array], Weights]:
    """Return the weights of one algorithm minus another, at each λ.

    >>> {name: weights.tolist() for name, weights in above("retrace", "dqn")(np.array([0.5, 1.0])).items()}
    {'retrace': [[1.0, 0.0], [0.0, 1.0]], 'dqn': [[-1.0, -0.0], [-0.0, -1.0]]}
    """
    return lambda lambdas: {name: np.eye(lambdas.size), other: -np.eye(lambdas.size)}


def last_is_best(name: str) -> Callable[[Array], Weights]:
    """Return the weights of the last λ minus each other λ.

    >>> last_is_best("retrace")(np.array([0.0, 0.5, 1.0]))["retrace"].tolist()
    [[-1.0, 0.0, 1.0], [0.0, -1.0, 1.0]]
    """

    def weights(lambdas: Array) -> Weights:
        differences = 0.0 - np.eye(lambdas.size)[:-1]
        differences[:, -1] = 1.0
        return {name: differences}

    return weights


def falls_above_half(lambdas: Array) -> Weights:
    """Return the weights of the mean of Q for λ up to ½, minus that for λ above ½.

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


def _on_both_sides_of_half(lambdas: Array) -> Array:
    positive = _positive(lambdas)
    if positive.size and positive[0] <= 0.5 < positive[-1]:
        return positive
    return lambdas[:0]


PAPER_CLAIMS = (
    *(
        PaperClaim(
            f"{DISPLAY_NAMES[name]} is above DQN {when}",
            "difference of scores at λ = 1",
            above(name, "dqn"),
            _one,
            (name, "dqn"),
            stretch=stretch,
        )
        for name in ("tree_backup", "retrace")
        for when, stretch in (("early", "early"), ("at the end", "final"))
    ),
    PaperClaim(
        "Q*(λ) fails for λ above 0.5",
        "its mean level for 0 < λ ≤ 0.5, minus that for λ > 0.5",
        falls_above_half,
        _on_both_sides_of_half,
        ("q",),
        scale="level",
    ),
    *(
        PaperClaim(
            f"λ = 1 is best for {DISPLAY_NAMES[name]}",
            "its level at λ = 1, minus that at another λ",
            last_is_best(name),
            _up_to_one,
            (name,),
            scale="level",
        )
        for name in ("tree_backup", "retrace")
    ),
    PaperClaim(
        "Retrace(λ) is above TB(λ) for λ > 0",
        "difference of levels",
        above("retrace", "tree_backup"),
        _positive,
        ("retrace", "tree_backup"),
        scale="level",
    ),
    PaperClaim(
        "Retrace(λ) does not do poorly at any λ > 0",
        "its level, minus DQN's",
        above("retrace", "dqn"),
        _positive,
        ("retrace", "dqn"),
        scale="level",
    ),
)
