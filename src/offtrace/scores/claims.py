"""What runs say of the paper's claims: each holds, does not hold, or cannot be told.

A claim that speaks of m values of λ is m differences.

    holds           every one is above 0: the 95 % interval of each is. As all must be, none needs a correction.
    does not hold   some one is below 0: its interval of 1 − 5 %/m is, as any of m may be below by chance.

So a verdict where nothing differs is to have a chance of 5 % at most; `docs/statistics.md` has what was measured.
Fewer than 3 seeds, or seeds that all give the same, cannot tell. Intervals allow for skewness (see
`offtrace.scores.verdicts`), so they are wider than Student's. What is shown is the λ that decides.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offtrace.scores.blocks import LEVEL, Estimates
from offtrace.scores.comparison import Comparison
from offtrace.scores.intervals import Interval, Verdict
from offtrace.scores.layout import Stretch
from offtrace.scores.rules import RULES, SHOWN, Rule
from offtrace.scores.scale import ROUNDING, Array
from offtrace.scores.verdicts import FEWEST, half_width, holm, tail


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
    """Why there is no verdict, no interval, or no number; None where only the interval is too wide."""
    p_value: float | None = None
    """At most 5 % where there is a verdict; None where there cannot be one."""
    holm: Verdict = "cannot tell"
    """The verdict if all claims of the list are to be right at once, 95 % of the time."""
    num_diverged: int = 0
    """Runs among those that it is about that diverged, and count as the worst of their game."""


class _Found(NamedTuple):
    verdict: Verdict
    p_value: float | None
    worst: int
    low: float | None
    high: float | None
    reason: str | None


def claims(comparison: Comparison, stretch: Stretch = "final") -> list[Claim]:
    """All of them, in the order of the paper's text; those that cannot be asked say why.

    With `stretch="evaluation"` final scores are those of the evaluation, and claims of early ones are left out.
    """
    if stretch not in ("final", "evaluation"):
        raise ValueError(f"`stretch` must be 'final' or 'evaluation', got {stretch!r}")
    if stretch == "final":
        found = [_asked(rule, comparison, rule.stretch) for rule in RULES]
    else:
        found = [_asked(rule, comparison, stretch) for rule in RULES if rule.stretch == "final"]
    stands = holm([each.p_value for each in found], level=1.0 - LEVEL)
    found = [
        each._replace(holm=each.verdict) if it_does else each for each, it_does in zip(found, stands, strict=True)
    ]
    if comparison.baseline is None or comparison.baseline.partition(".")[0] != "one_step":
        return found
    shown = "one-step learning"
    return [
        each._replace(text=each.text.replace("DQN", shown), measure=each.measure.replace("DQN", shown))
        for each in found
    ]


def _asked(rule: Rule, comparison: Comparison, stretch: Stretch) -> Claim:
    names = {_plain(name): name for name in reversed(comparison.algorithms)}  # the first of a kind
    missing = [name for name in rule.algorithms if name not in names]
    if missing:
        return _unanswered(rule, f"there are no runs of {' and '.join(SHOWN[name] for name in missing)}")
    if not comparison.runs.get(stretch):
        return _unanswered(rule, f"there are no {stretch} scores")
    wanted = rule.lambdas(np.array(comparison.lambdas))
    if not wanted.size:
        return _unanswered(rule, f"the λ that it speaks of were not run, only {_listed(comparison.lambdas)}")
    scale = rule.scale
    if comparison.printed and len(rule.algorithms) > 1:
        scale = "score"
    chosen = [names[name] for name in rule.algorithms]
    blocks = comparison.blocks(scale, stretch, wanted.tolist(), chosen)
    if not np.isfinite(blocks.value).all():
        return _unanswered(rule, blocks.reason or "there are no runs")
    lambdas = np.array(blocks.lambdas)
    of = rule.weights(lambdas)
    weights = np.stack([of[name] for name in rule.algorithms], axis=1)
    values = _exact(np.einsum("mal,al->m", weights, blocks.value))
    if blocks.rows is None:
        found = _Found("cannot tell", None, int(values.argmin()), None, None, blocks.reason)
    else:
        found = _judged(blocks.estimate(weights)._replace(value=values), blocks.reason, comparison.unit)
    low, high = found.low, found.high
    if low is not None and high is not None and comparison.anchors is None:
        low, high = max(low, -1.0), min(high, 1.0)  # between worst and best there is no more
    difference = Interval(float(values[found.worst]), low, high, blocks.num_runs, found.reason)
    where = ""
    if values.size > 1:
        where = f"; worst of {values.size}, at λ = {lambdas[found.worst]:g}"
    measure = rule.measure + where
    return Claim(
        rule.text,
        measure,
        found.verdict,
        difference,
        len(blocks.games),
        found.reason,
        p_value=found.p_value,
        num_diverged=comparison.num_diverged(blocks.games, chosen, blocks.lambdas),
    )


def _judged(found: Estimates, no_interval: str | None, unit: str) -> _Found:
    """The verdict on m differences, and the one that decides."""
    if found.num_rows.min() < 2:
        return _Found("cannot tell", None, int(found.value.argmin()), None, None, no_interval)
    m, num_rows = found.value.size, int(found.num_rows.min())
    lows, highs = _ends(found, (1.0 - LEVEL) / m)
    worst = int(lows.argmin())
    reason = None
    if not found.has_spread.any():
        reason = f"all {unit} give the same difference, so there is no spread to judge by"
    elif num_rows < FEWEST:
        reason = f"there are only {num_rows} {unit}, and a verdict needs {FEWEST} or more"
    if reason is not None:
        return _Found("cannot tell", None, worst, *_known(found, worst, lows, highs), reason)
    ratio = found.value / np.where(found.has_spread, found.error, np.inf)
    for_it = min(1.0, 2.0 * float(tail(ratio, found.num_rows).max()))
    against = min(1.0, 2.0 * m * float(tail(-ratio, found.num_rows).min()))
    verdict: Verdict = "cannot tell"
    if for_it <= 1.0 - LEVEL:
        verdict = "holds"
        lows, highs = _ends(found, 1.0 - LEVEL)
        worst = int(lows.argmin())
    elif against <= 1.0 - LEVEL:
        verdict = "does not hold"
        worst = int(np.where(found.has_spread, highs, np.inf).argmin())
    elif not found.has_spread.all():
        reason = f"at some λ all {unit} give the same difference, so there is no spread to judge by"
    return _Found(verdict, min(for_it, against), worst, *_known(found, worst, lows, highs), reason)


def _ends(found: Estimates, outside: float) -> tuple[Array, Array]:
    half = half_width(outside, found.num_rows) * np.where(found.has_spread, found.error, 0.0)
    return found.value - half, found.value + half


def _known(found: Estimates, place: int, lows: Array, highs: Array) -> tuple[float | None, float | None]:
    """The ends there; without spread there are none."""
    if not found.has_spread[place]:
        return None, None
    return float(lows[place]), float(highs[place])


def _exact(difference: Array) -> Array:
    """Without what rounding alone can make: scales are from 0 to 1, so no verdict may rest on a 2⁻⁴⁰."""
    return np.where(np.abs(difference) <= ROUNDING, 0.0, difference)


def _unanswered(rule: Rule, reason: str) -> Claim:
    return Claim(rule.text, rule.measure, "cannot tell", None, 0, reason)


def _plain(algorithm: str) -> str:
    return {"one_step": "dqn", "q_star": "q", "q_lambda": "q"}.get(algorithm, algorithm)


def _listed(lambdas: Sequence[float]) -> str:
    return ", ".join(f"{x:g}" for x in lambdas) or "none"
