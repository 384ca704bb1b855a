"""Verdicts on the paper's claims: each holds, does not hold, or cannot be decided.

A claim about m values of λ is m differences.

    holds           Every difference is above 0: the 95 % interval of each is. All must be, so none is corrected.
    does not hold   Some difference is below 0: its interval of 1 − 5 %/m is, as one of m may be below by chance.

So where nothing differs, the chance of a verdict is at most 5 %; `docs/statistics.md` has the
measurements. With fewer than 3 seeds, or seeds that all give the same difference, there is no
verdict. Intervals allow for skewness (see `offtrace.scores.verdicts`), so they are wider than
Student's. The interval shown is the one of the λ that decides.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from offtrace.scores.blocks import LEVEL, Blocks, Estimates
from offtrace.scores.comparison import Comparison
from offtrace.scores.intervals import Interval, Verdict
from offtrace.scores.keys import Stretch, plain_name
from offtrace.scores.paper_claims import DISPLAY_NAMES, PAPER_CLAIMS, PaperClaim
from offtrace.scores.scale import ROUNDING, Array
from offtrace.scores.verdicts import MIN_SEEDS, half_width, holm, one_sided_p_value


class Claim(NamedTuple):
    """A claim of the paper, and the verdict of these runs on it."""

    text: str
    measure: str
    """The difference that is positive if the claim holds."""
    verdict: Verdict
    difference: Interval | None
    """None if it cannot be computed."""
    num_games: int
    reason: str | None
    """Why there is no verdict, interval or number; None if the interval is just too wide."""
    p_value: float | None = None
    """At most 5 % if there is a verdict; None if there cannot be one."""
    holm: Verdict = "cannot tell"
    """The verdict if all claims of the list are to be right together, 95 % of the time."""
    num_diverged: int = 0
    """Number of diverged runs among those that the claim is about. They count as the worst of their game."""


class Decision(NamedTuple):
    """The verdict on m differences, and the interval of the one that decides."""

    verdict: Verdict
    p_value: float | None
    index: int
    low: float | None
    high: float | None
    reason: str | None


def claims(comparison: Comparison, stretch: Stretch = "final") -> list[Claim]:
    """Return the verdicts on all claims, in the order of the paper. A claim that cannot be tested says why.

    With `stretch="evaluation"` final scores are those of the evaluation, and claims about early
    scores are left out. They are computed once per comparison.
    """
    if stretch not in ("final", "evaluation"):
        raise ValueError(f"`stretch` must be 'final' or 'evaluation'; got {stretch!r}.")
    return list(comparison.cached(("claims", stretch), lambda: _claims(comparison, stretch)))


def relevant_claims(comparison: Comparison, stretch: Stretch = "final") -> list[Claim]:
    """Return the verdicts on the claims about algorithms and λ that were run.

    If all of the paper's algorithms were run, these are all claims.
    """
    found = claims(comparison, stretch)
    if are_the_papers(comparison.algorithms):
        return found
    names = _names(comparison)
    asked = [claim for claim in PAPER_CLAIMS if stretch == "final" or claim.stretch == "final"]
    relevant = []
    for claim, answer in zip(asked, found, strict=True):
        lambdas = claim.lambdas(np.array(comparison.lambdas))
        own_stretch = claim.stretch if stretch == "final" else stretch
        if _why_untestable(claim, comparison, own_stretch, names, lambdas) is None:
            relevant.append(answer)
    return relevant


def are_the_papers(algorithms: Iterable[str]) -> bool:
    """Return whether all of the paper's algorithms are there: Retrace, TB, Q and DQN, or one-step learning.

    >>> are_the_papers(["retrace", "tree_backup", "q_lambda", "one_step", "rbis"]), are_the_papers(["retrace", "dqn"])
    (True, False)
    """
    return set(DISPLAY_NAMES) <= set(map(_paper_name, algorithms))


def _claims(comparison: Comparison, stretch: Stretch) -> list[Claim]:
    if stretch == "final":
        found = [_claim(asked, comparison, asked.stretch) for asked in PAPER_CLAIMS]
    else:
        found = [_claim(asked, comparison, stretch) for asked in PAPER_CLAIMS if asked.stretch == "final"]
    significant = holm([claim.p_value for claim in found], level=1.0 - LEVEL)
    for i, claim in enumerate(found):
        if significant[i]:
            found[i] = claim._replace(holm=claim.verdict)
    if comparison.baseline is None or plain_name(comparison.baseline) != "one_step":
        return found
    name = "one-step learning"
    return [
        claim._replace(text=claim.text.replace("DQN", name), measure=claim.measure.replace("DQN", name))
        for claim in found
    ]


def _claim(asked: PaperClaim, comparison: Comparison, stretch: Stretch) -> Claim:
    names = _names(comparison)
    lambdas = asked.lambdas(np.array(comparison.lambdas))
    reason = _why_untestable(asked, comparison, stretch, names, lambdas)
    if reason is not None:
        return _untested(asked, reason)
    scale = asked.scale
    if comparison.printed and len(asked.algorithms) > 1:
        scale = "score"
    algorithms = [names[name] for name in asked.algorithms]
    blocks = comparison.blocks(scale, stretch, lambdas.tolist(), algorithms)
    if not np.isfinite(blocks.value).all():
        return _untested(asked, blocks.reason or "there are no runs")
    return _decided(asked, comparison, blocks, algorithms)


def _why_untestable(
    asked: PaperClaim, comparison: Comparison, stretch: Stretch, names: Mapping[str, str], lambdas: Array
) -> str | None:
    missing = [name for name in asked.algorithms if name not in names]
    if missing:
        return f"there are no runs of {' and '.join(DISPLAY_NAMES[name] for name in missing)}"
    if not comparison.runs.get(stretch):
        return f"there are no {stretch} scores"
    if not lambdas.size:
        run = ", ".join(f"{x:g}" for x in comparison.lambdas) or "none"
        return f"the λ of the claim were not run; λ that were run: {run}"
    return None


def _decided(asked: PaperClaim, comparison: Comparison, blocks: Blocks, algorithms: Sequence[str]) -> Claim:
    lambdas = np.array(blocks.lambdas)
    by_algorithm = asked.weights(lambdas)
    weights = np.stack([by_algorithm[name] for name in asked.algorithms], axis=1)
    values = _without_rounding(np.einsum("mal,al->m", weights, blocks.value))
    if blocks.rows is None:
        decision = Decision("cannot tell", None, int(values.argmin()), None, None, blocks.reason)
    else:
        decision = decide(blocks.estimate(weights)._replace(value=values), blocks.reason, comparison.unit)
    low = decision.low
    high = decision.high
    if low is not None and high is not None and comparison.anchors is None:
        # Scores are between 0 and 1, so a difference is between −1 and 1.
        low = max(low, -1.0)
        high = min(high, 1.0)
    measure = asked.measure
    if values.size > 1:
        measure += f"; the worst of {values.size}, at λ = {lambdas[decision.index]:g}"
    return Claim(
        asked.text,
        measure,
        decision.verdict,
        Interval(float(values[decision.index]), low, high, blocks.num_runs, decision.reason),
        len(blocks.games),
        decision.reason,
        p_value=decision.p_value,
        num_diverged=comparison.num_diverged(blocks.games, algorithms, blocks.lambdas),
    )


def decide(estimates: Estimates, no_interval: str | None, unit: str, *, level: float = LEVEL) -> Decision:
    """Return the verdict on m differences."""
    if estimates.num_rows.min() < 2:
        return Decision("cannot tell", None, int(estimates.value.argmin()), None, None, no_interval)
    m = estimates.value.size
    num_rows = int(estimates.num_rows.min())
    lows, highs = _intervals(estimates, (1.0 - level) / m)
    worst = int(lows.argmin())
    reason = None
    if not estimates.has_spread.any():
        reason = f"all {unit} give the same difference, so there is no spread to judge by"
    elif num_rows < MIN_SEEDS:
        reason = f"there are only {num_rows} {unit}, and a verdict needs at least {MIN_SEEDS}"
    if reason is not None:
        return Decision("cannot tell", None, worst, *_interval_at(estimates, worst, lows, highs), reason)
    ratio = estimates.value / np.where(estimates.has_spread, estimates.error, np.inf)
    p_holds = min(1.0, 2.0 * float(one_sided_p_value(ratio, estimates.num_rows).max()))
    p_fails = min(1.0, 2.0 * m * float(one_sided_p_value(-ratio, estimates.num_rows).min()))
    verdict: Verdict = "cannot tell"
    if p_holds <= 1.0 - level:
        verdict = "holds"
        lows, highs = _intervals(estimates, 1.0 - level)
        worst = int(lows.argmin())
    elif p_fails <= 1.0 - level:
        verdict = "does not hold"
        worst = int(np.where(estimates.has_spread, highs, np.inf).argmin())
    elif not estimates.has_spread.all():
        reason = f"at some λ all {unit} give the same difference, so there is no spread to judge by"
    p_value = min(p_holds, p_fails)
    return Decision(verdict, p_value, worst, *_interval_at(estimates, worst, lows, highs), reason)


def _intervals(estimates: Estimates, outside: float) -> tuple[Array, Array]:
    """Return the ends of the intervals that leave out a share `outside`."""
    half = half_width(outside, estimates.num_rows) * np.where(estimates.has_spread, estimates.error, 0.0)
    return estimates.value - half, estimates.value + half


def _interval_at(
    estimates: Estimates, index: int, lows: Array, highs: Array
) -> tuple[float, float] | tuple[None, None]:
    """Return the interval at an index; (None, None) without spread."""
    if not estimates.has_spread[index]:
        return None, None
    return float(lows[index]), float(highs[index])


def _without_rounding(difference: Array) -> Array:
    """Return differences with rounding errors set to 0: scales are from 0 to 1, so no verdict may rest on a 2⁻⁴⁰."""
    return np.where(np.abs(difference) <= ROUNDING, 0.0, difference)


def _untested(asked: PaperClaim, reason: str) -> Claim:
    return Claim(asked.text, asked.measure, "cannot tell", None, 0, reason)


def _names(comparison: Comparison) -> dict[str, str]:
    """Return the algorithms of a comparison by the paper's name for them; the first of its kind."""
    return {_paper_name(name): name for name in reversed(comparison.algorithms)}


def _paper_name(algorithm: str) -> str:
    """Return the name that `PAPER_CLAIMS` has for an algorithm."""
    return {"one_step": "dqn", "q_star": "q", "q_lambda": "q"}.get(algorithm, algorithm)
