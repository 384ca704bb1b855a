"""The findings of a report in a few sentences, for the top of the page and the end of the terminal's output.

A sentence gives the numbers with their intervals.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from offtrace.experiments.ladder import LAMBDA
from offtrace.experiments.results import Study
from offtrace.experiments.store import OVER
from offtrace.experiments.theory import BEHAVIOUR_EPSILON, TARGET_EPSILON, Contraction, contractions
from offtrace.mdp import SMALL_WORLD
from offtrace.report.names import named
from offtrace.report.wording import score_text, signed_text
from offtrace.scores import Comparison, Interval
from offtrace.scores.comparison import LEVEL, Stretch
from offtrace.scores.verdicts import MIN_SEEDS

QUESTION = (
    "Munos et al. (2016) ask how to learn from data that another policy collected. Their answer: "
    "Retrace(λ) and TB(λ) are safe for any data, while Q(λ) is not; and with long traces they "
    "learn faster than one-step updates and DQN."
)

SCORES: tuple[Stretch, ...] = ("final", "evaluation")
"""The two scores of every table: the training return, under exploration, and the return at ε ≈ 0."""
SCORE_NAMES = {"final": "training score", "evaluation": "evaluation at ε ≈ 0"}
SIGNS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?"}
"""Signs of verdicts, in the terminal and on the page."""
SHORT_SCORES = {"final": "training", "evaluation": "at ε ≈ 0"}


class Materials(NamedTuple):
    """The results that the findings are about; what is missing is not mentioned."""

    theory: Sequence[Contraction] = ()
    tables: Comparison | None = None
    networks: Study | None = None


def materials_of(studies: Sequence[Study]) -> Materials:
    """Return the first study of a report, and the theory of its MDPs if they are the small world."""
    if not studies:
        return Materials()
    theory: Sequence[Contraction] = ()
    games = studies[0].comparison.games
    if games and _is_small_world(studies[0]):
        theory = contractions(studies[0].comparison.lambdas or (1.0,), {game: SMALL_WORLD[game]() for game in games})
    return Materials(theory, None, studies[0])


def scores_of(comparison: Comparison) -> list[Stretch]:
    """Return which of the two scores a comparison has."""
    return [stretch for stretch in SCORES if comparison.runs.get(stretch) or stretch == "final"]


def different_runs(study: Study) -> int:
    """Return the number of stored runs of a study that are over, else of those compared; a copy counts once."""
    if study.runs:
        return sum(study.num_by_status.get(status, 0) for status in OVER)
    cells = study.comparison.runs.get("final", {})
    return sum(len(scores) for key, scores in cells.items() if key not in study.comparison.copies)


def _is_small_world(study: Study) -> bool:
    """Return whether the MDPs and policies of a study are those of the small world, so that its theory applies."""
    specs = [run.spec for run in study.runs]
    if not specs or not set(study.comparison.games) <= set(SMALL_WORLD):
        return False
    is_usual = [not spec.get("options") and spec.get("epsilon") == BEHAVIOUR_EPSILON for spec in specs]
    is_off_policy = [spec.get("target_epsilon") in (None, TARGET_EPSILON) for spec in specs]
    return study.comparison.anchors is not None and all(is_usual) and all(is_off_policy)


def stretch_of(comparison: Comparison) -> Stretch:
    """Return the score that findings are about: the evaluation at ε ≈ 0 if there is one."""
    return "evaluation" if comparison.runs.get("evaluation") else "final"


def findings(materials: Materials) -> list[str]:
    """Return up to three sentences: on safety, on the gain by traces, and on the difference to DQN."""
    return [each for each in (_safety(materials), _speed(materials), _distance(materials)) if each]


def difference(
    comparison: Comparison, one: tuple[str, float], other: tuple[str, float], stretch: Stretch
) -> Interval | None:
    """Return the average level of one algorithm and λ minus that of another; None without runs."""
    if not {one[0], other[0]} <= set(comparison.algorithms):
        return None
    blocks = comparison.blocks("level", stretch)
    if blocks.rows is None or not {one[1], other[1]} <= set(blocks.lambdas):
        return None
    weights = np.zeros((1, *blocks.value.shape))
    for sign, (name, lambda_) in ((1.0, one), (-1.0, other)):
        weights[0, blocks.algorithms.index(name), blocks.lambdas.index(lambda_)] += sign
    found = blocks.estimate(weights)
    low = high = None
    if found.num_rows[0] >= MIN_SEEDS and found.has_spread[0]:
        low, high = (float(end[0]) for end in found.interval(LEVEL))
    return Interval(float(found.value[0]), low, high, blocks.num_runs, blocks.reason)


# -- sentences -----------------------------------------------------------------------------------------------


def _safety(materials: Materials) -> str:
    parts = []
    last = max((each.lambda_ for each in materials.theory), default=0.0)
    if last > 0:
        worst = {
            trace: max(each.norm for each in materials.theory if each.trace == trace and each.lambda_ == last)
            for trace in ("retrace", "tree_backup", "q_lambda")
        }
        safe = max(worst["retrace"], worst["tree_backup"])
        parts.append(
            f"in theory, at λ = {last:g}, one step of Q(λ) can multiply an error by {worst['q_lambda']:.3g}, while "
            f"Retrace and TB multiply it by at most {safe:.2f}"
        )
    with_tables = _q_and_retrace(materials.tables)
    if with_tables:
        parts.append(f"with tables, {with_tables}")
    if materials.networks is not None:
        with_networks = _q_and_retrace(materials.networks.comparison)
        if with_networks:
            parts.append(f"with networks, {with_networks}")
    if not parts:
        return ""
    return f"Safety: {'; '.join(parts)}."


def _q_and_retrace(comparison: Comparison | None) -> str:
    """Return the change of Q(λ) from the smallest to the largest λ, and its difference to Retrace there."""
    if comparison is None or len(comparison.lambdas) < 2:
        return ""
    stretch = stretch_of(comparison)
    first = comparison.lambdas[0]
    last = comparison.lambdas[-1]
    q = next((name for name in ("q_lambda", "q_star") if name in comparison.algorithms), None)
    if q is None or "retrace" not in comparison.algorithms:
        return ""
    to_retrace = difference(comparison, (q, last), ("retrace", last), stretch)
    if to_retrace is None:
        return ""
    levels = comparison.averages("level", stretch)
    value = {
        (name, x): levels.value[levels.lambdas.index(x), levels.algorithms.index(name)]
        for name, x in ((q, first), (q, last), ("retrace", last))
    }
    few = "; too few seeds for an interval" if to_retrace.low is None else ""
    apart = f"(difference {with_interval(to_retrace)}{few})"
    return (
        f"{named(q)} goes from {score_text(value[q, first])} at λ = {first:g} to {score_text(value[q, last])} at λ = "
        f"{last:g}, where Retrace has {score_text(value['retrace', last])} {apart}"
    )


def _speed(materials: Materials) -> str:
    """Return the gain of Retrace and TB by their traces."""
    study = materials.networks
    comparison = study.comparison if study else materials.tables
    if comparison is None or "retrace" not in comparison.algorithms or 0.0 not in comparison.lambdas:
        return ""
    stretch = stretch_of(comparison)
    parts = []
    for name in ("retrace", "tree_backup"):
        if name not in comparison.algorithms:
            continue
        for lambda_ in [x for x in comparison.lambdas if x > 0]:
            found = difference(comparison, (name, lambda_), (name, 0.0), stretch)
            if found is not None:
                parts.append((name, lambda_, found))
    if not parts:
        return ""
    gains = " and ".join(
        f"{named(name).replace('λ', f'{x:g}')} gains {with_interval(found)}"
        for name, x, found in parts
        if x == comparison.lambdas[-1]
    )
    sentence = f"Traces: compared with the same learner without a trace (λ = 0), {gains}"
    is_above = [found.low > 0 for _, _, found in parts if found.low is not None]
    if len(is_above) < len(parts):
        return f"{sentence}; there are too few seeds for intervals."
    return (
        f"{sentence}. The whole interval of the gain is above 0 in {sum(is_above)} of {len(parts)} combinations of "
        "Retrace or TB with a λ > 0."
    )


def _distance(materials: Materials) -> str:
    """Return the difference from DQN to Retrace, one step of the ladder at a time."""
    study = materials.networks
    if study is None:
        return ""
    if study.ladder is None:
        return _against_baseline(study.comparison)
    ladder = study.ladder
    stretch = stretch_of(ladder)
    steps = (("target", "control"), ("double", "target"), ("windows", "double"), ("trace", "windows"))
    words = {
        "target": "the target policy",
        "double": "double Q-learning",
        "windows": "windows without a trace",
        "trace": "the trace",
    }
    parts = []
    for rung, before in steps:
        found = difference(ladder, (rung, 1.0), (before, 1.0), stretch)
        if found is not None:
            parts.append(f"{words[rung]} {with_interval(found)}")
    whole = difference(ladder, ("trace", 1.0), ("control", 1.0), stretch)
    if whole is None or not parts:
        return ""
    return f"DQN: Retrace({LAMBDA:g}) minus DQN is {with_interval(whole)}, made up of {', '.join(parts)}."


def _against_baseline(comparison: Comparison) -> str:
    baseline = comparison.baseline
    stretch = stretch_of(comparison)
    if baseline is None or "retrace" not in comparison.algorithms or not comparison.lambdas:
        return ""
    last = comparison.lambdas[-1]
    found = difference(comparison, ("retrace", last), (baseline, last), stretch)
    if found is None:
        return ""
    sentence = f"{named(baseline)}: Retrace({last:g}) minus {named(baseline)} is {with_interval(found)}"
    if found.low is None:
        return f"{sentence}; there are too few seeds to tell them apart."
    return f"{sentence}."


def with_interval(found: Interval) -> str:
    """Return a difference with its interval.

    >>> with_interval(Interval(0.25, 0.1, 0.4, 32)), with_interval(Interval(-0.5, None, None, 2))
    ('+0.25 [+0.10, +0.40]', '−0.50')
    """
    value = signed_text(found.value)
    if found.low is None or found.high is None:
        return value
    return f"{value} [{signed_text(found.low)}, {signed_text(found.high)}]"
