"""`compare`: several target policies on one log, and which differences the log can tell."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from offtrace.evaluation.estimation import WEIGHTED, Evaluation, finite

LOGGED = "logged"
"""Name of the behaviour policy in a comparison."""


@dataclass(frozen=True)
class Difference:
    """The value of one policy minus that of another, by one estimator."""

    one: str
    other: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    """Paired: both values come from the same episodes."""
    p_value: float
    """Two-sided, by asymptotics."""
    told: bool
    """True if the log tells the two apart at the level of the intervals, all pairs considered (Holm).

    Never where the verdict on one of them is no. Nor against the log itself where episodes were cut off, as its
    own value ends at the cut, unless the estimator's does, too (importance sampling).
    """


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several policies on one log."""

    evaluations: dict[str, Evaluation]
    estimators: dict[str, str]
    """The estimator of every policy whose values are compared."""
    differences: tuple[Difference, ...]
    """One per pair, the better policy first."""
    ranking: tuple[str, ...]
    """All policies and the logged one, best first."""

    def __repr__(self) -> str:
        return f"Comparison({' > '.join(self.ranking)})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON."""
        return {
            "estimators": self.estimators,
            "ranking": list(self.ranking),
            "differences": [finite(asdict(one)) for one in self.differences],
            "evaluations": {name: one.as_dict() for name, one in self.evaluations.items()},
        }


def compare_evaluations(evaluations: dict[str, Evaluation], estimator: str | None) -> Comparison:
    """Compare evaluations of the same log, by one estimator, or by what the verdict on each policy recommends."""
    chosen = {name: estimator or one.verdict.estimate for name, one in evaluations.items()}
    any_one = next(iter(evaluations.values()))
    values = {name: one[chosen[name]].value for name, one in evaluations.items()} | {LOGGED: any_one.logged.value}
    influences = {name: one.influence[chosen[name]] for name, one in evaluations.items()}
    influences[LOGGED] = any_one.influence[LOGGED]
    unknown = {name for name, one in evaluations.items() if one.verdict.answer == "no"}
    if any_one.diagnostics.is_cut and not set(chosen.values()) <= set(WEIGHTED):
        unknown.add(LOGGED)
    ranking = tuple(sorted(values, key=lambda name: -values[name]))
    pairs = [(one, other) for i, one in enumerate(ranking) for other in ranking[i + 1 :]]
    errors = [_standard_error(influences[one] - influences[other]) for one, other in pairs]
    gaps = [values[one] - values[other] for one, other in pairs]
    p_values = [_p_value(gap, error) for gap, error in zip(gaps, errors, strict=True)]
    stands = _holm(p_values, 1 - any_one.confidence)
    z = float(norm.ppf((1 + any_one.confidence) / 2))
    differences = tuple(
        Difference(
            one, other, gap, error, (gap - z * error, gap + z * error), p_value, told and not {one, other} & unknown
        )
        for (one, other), gap, error, p_value, told in zip(pairs, gaps, errors, p_values, stands, strict=True)
    )
    return Comparison(evaluations, chosen, differences, ranking)


def _standard_error(influence: np.ndarray) -> float:
    return float(influence.std(ddof=1) / np.sqrt(len(influence)))


def _p_value(gap: float, error: float) -> float:
    if error == 0:
        return float(gap == 0)
    return 2 * float(norm.sf(gap / error))


def _holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which differences stand when all are tested together (Holm 1979).

    >>> _holm([0.04, 0.001, 0.03], 0.05)
    [False, True, False]
    """
    told = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        if p_values[i] > level / (len(p_values) - rank):
            break
        told[i] = True
    return told
