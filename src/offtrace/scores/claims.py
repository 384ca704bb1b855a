"""What the paper says of its algorithms (Sec. 5, App. F), each as a number that is positive if it is true.

A claim that speaks of m values of λ is m differences, each with an interval of 1 − 5 %/m, so that all of them are
right at once 95 % of the time. It holds if all intervals are above 0, and does not hold if one is below; else one
cannot tell. What is shown is the λ where it does worst. (One interval of the least difference would not do: the least
of several numbers that scatter is too small, and a bootstrap of it smaller still.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offtrace.scores.comparison import LEVEL, Array, Comparison, Scale, Stretch
from offtrace.scores.intervals import Interval, Verdict

Averages = Mapping[str, Array]
"""By algorithm, (…, λ); the baseline is `dqn` and the Q-baseline's algorithm `q`, whatever they are called."""


SHOWN = {"retrace": "Retrace(λ)", "tree_backup": "TB(λ)", "q": "Q(λ)", "dqn": "DQN"}


class Claim(NamedTuple):
    """Something the paper says, and what these runs say of it."""

    text: str
    measure: str
    """The difference that is positive if it holds."""
    verdict: Verdict
    difference: Interval | None
    """None where it cannot be computed at all."""
    num_games: int
    reason: str | None
    """Why there is no interval, or no number."""


@dataclass(frozen=True)
class _Rule:
    text: str
    measure: str
    algorithms: tuple[str, ...]
    statistic: Callable[[Averages, Array], Array]
    """From averages (…, λ) and the λ to (…, m)."""
    lambdas: Callable[[Array], np.ndarray]
    """Which λ it speaks of; none of them where it cannot be asked."""
    scale: Scale = "score"
    """Of a level, where only scores are printed, the score will do if algorithms are compared at one λ."""
    stretch: Stretch = "final"


def _one(lambdas: Array) -> np.ndarray:
    return lambdas[lambdas == 1.0]


def _positive(lambdas: Array) -> np.ndarray:
    return lambdas[lambdas > 0]


def _up_to_one(lambdas: Array) -> np.ndarray:
    return lambdas if lambdas.size > 1 and lambdas[-1] == 1.0 else lambdas[:0]


def _both_sides(lambdas: Array) -> np.ndarray:
    some = _positive(lambdas)
    return some if some.size and some[0] <= 0.5 < some[-1] else lambdas[:0]


def _above_dqn(name: str) -> Callable[[Averages, Array], Array]:
    return lambda of, _: of[name] - of["dqn"]


def _one_is_best(name: str) -> Callable[[Averages, Array], Array]:
    return lambda of, _: of[name][..., -1:] - of[name][..., :-1]


def _falls_above_half(of: Averages, lambdas: Array) -> Array:
    return (of["q"][..., lambdas <= 0.5].mean(-1) - of["q"][..., lambdas > 0.5].mean(-1))[..., None]


RULES = (
    *(
        _Rule(
            f"{shown} is above DQN {when}",
            "difference of scores at λ = 1",
            (name, "dqn"),
            _above_dqn(name),
            _one,
            stretch=stretch,
        )
        for name, shown in (("tree_backup", "TB(λ)"), ("retrace", "Retrace(λ)"))
        for when, stretch in (("early", "early"), ("finally", "final"))
    ),
    _Rule(
        "Q*(λ) fails for λ above 0.5",
        "its mean level for 0 < λ ≤ 0.5, less that for λ > 0.5",
        ("q",),
        _falls_above_half,
        _both_sides,
        scale="level",
    ),
    *(
        _Rule(
            f"λ = 1 is best for {shown}",
            "its level at λ = 1, less that at another λ",
            (name,),
            _one_is_best(name),
            _up_to_one,
            scale="level",
        )
        for name, shown in (("tree_backup", "TB(λ)"), ("retrace", "Retrace(λ)"))
    ),
    _Rule(
        "Retrace(λ) is above TB(λ) for λ > 0",
        "difference of levels",
        ("retrace", "tree_backup"),
        lambda of, _: of["retrace"] - of["tree_backup"],
        _positive,
        scale="level",
    ),
    _Rule(
        "No λ > 0 at which Retrace(λ) does poorly",
        "its level, less DQN's",
        ("retrace", "dqn"),
        _above_dqn("retrace"),
        _positive,
        scale="level",
    ),
)


def claims(comparison: Comparison) -> list[Claim]:
    """All of them, in the order of the paper's text; those that cannot be asked say why."""
    found = [_asked(rule, comparison) for rule in RULES]
    if comparison.baseline != "one_step":
        return found
    shown = "one-step learning"
    return [
        each._replace(text=each.text.replace("DQN", shown), measure=each.measure.replace("DQN", shown))
        for each in found
    ]


def _asked(rule: _Rule, comparison: Comparison) -> Claim:
    names = {_plain(name): name for name in reversed(comparison.algorithms)}  # the first of a kind
    missing = [name for name in rule.algorithms if name not in names]
    if missing:
        return _unanswered(rule, f"there are no runs of {' and '.join(SHOWN[name] for name in missing)}")
    if not comparison.runs.get(rule.stretch):
        return _unanswered(rule, f"there are no {rule.stretch} scores")
    wanted = rule.lambdas(np.array(comparison.lambdas))
    if not wanted.size:
        return _unanswered(rule, f"the λ that it speaks of were not run, only {_listed(comparison.lambdas)}")
    scale = "score" if comparison.printed and len(rule.algorithms) > 1 else rule.scale
    draws = comparison.draws(scale, rule.stretch, wanted.tolist())
    if not np.isfinite(draws.found).all():
        return _unanswered(rule, draws.reason or "there are no runs")
    lambdas = np.array(draws.lambdas)
    columns = {plain: draws.algorithms.index(name) for plain, name in names.items() if name in draws.algorithms}
    found = _exact(rule.statistic({plain: draws.found[c] for plain, c in columns.items()}, lambdas))
    answer: Verdict = "cannot tell"
    worst, low, high = int(found.argmin()), None, None
    if draws.drawn is not None:
        drawn = _exact(rule.statistic({plain: draws.drawn[:, c] for plain, c in columns.items()}, lambdas))
        outside = (1 - LEVEL) / found.size
        lows, highs = np.quantile(drawn, (outside / 2, 1 - outside / 2), axis=0)
        answer = "holds" if (lows > 0).all() else "does not hold" if (highs < 0).any() else "cannot tell"
        worst = int((highs if answer == "does not hold" else lows).argmin())
        low, high = float(lows[worst]), float(highs[worst])
    difference = Interval(float(found[worst]), low, high, draws.num_runs, draws.reason)
    where = f"; worst of {found.size}, at λ = {lambdas[worst]:g}" if found.size > 1 else ""
    return Claim(rule.text, rule.measure + where, answer, difference, len(draws.games), draws.reason)


def _exact(difference: Array) -> Array:
    """Without what rounding alone can make: scales are from 0 to 1, so no verdict may rest on a 2⁻⁴⁰."""
    return np.where(np.abs(difference) <= 2.0**-40, 0.0, difference)


def _unanswered(rule: _Rule, reason: str) -> Claim:
    return Claim(rule.text, rule.measure, "cannot tell", None, 0, reason)


def _plain(algorithm: str) -> str:
    return {"one_step": "dqn", "q_star": "q", "q_lambda": "q"}.get(algorithm, algorithm)


def _listed(lambdas: tuple[float, ...]) -> str:
    return ", ".join(f"{x:g}" for x in lambdas) or "none"
