"""The verdict: can this log answer the question what the target policy is worth, and by which estimate?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from offtrace.evaluation.behaviour import EstimatedBehaviour
from offtrace.evaluation.diagnostics import FEW, Diagnostics

MUCH_UNSEEN = 0.05
"""Share of π's actions without data from which on the log cannot answer."""
SOME_UNSEEN = 0.01
"""The same where few episodes resemble the target policy."""
RARE = 0.01
"""Estimated probability of a taken action that is worth a warning."""
HARDLY_REWARDED = 3
"""Episodes with a reward below which the log cannot answer, if at least half of the episodes have none."""
FEW_EPISODES = 100
"""Episodes below which intervals are too narrow more often than they say."""


@dataclass(frozen=True)
class Verdict:
    """An answer in words."""

    answer: Literal["yes", "with care", "no"]
    sentence: str
    estimate: str
    """Name of the estimate to read first."""
    warnings: tuple[str, ...]
    """What a reader should know, the most serious first."""

    def __str__(self) -> str:
        return self.sentence


def judge(
    rows: Mapping[str, Any], diagnostics: Diagnostics, behaviour: EstimatedBehaviour | None, trace: str | None
) -> Verdict:
    """Return the verdict on the estimates; `trace` names the fitted one, if there is one."""
    warnings = diagnostics.warnings()
    if behaviour is not None and behaviour.smallest < RARE:
        remedy = ""
        if behaviour.num_folds > 1:
            remedy = " With `num_folds=1` an action counts at least its own episode."
        warnings.append(
            f"The estimated μ of an action that was taken is as small as {behaviour.smallest:.2g}, so weights are "
            f"large.{remedy}"
        )
    if diagnostics.num_episodes < FEW_EPISODES:
        few = "With one episode" if diagnostics.num_episodes == 1 else f"With {diagnostics.num_episodes:,} episodes"
        warnings.append(f"{few} the intervals are too narrow more often than they say.")
    warnings += [f"{one.title}: {one.note}." for one in rows.values() if one.note]
    trusts_weights = (
        "wdr" in rows and diagnostics.effective_episodes >= FEW and not diagnostics.rewarded_are_worth_little
    )
    chosen = trace or ("wpdis" if "wpdis" in rows else next(iter(rows)))
    if trusts_weights:
        chosen = "wdr"
    if trusts_weights and trace is not None and _apart(rows["wdr"], rows[trace]):
        reason = "states may not be Markov, or features may be too few."
        if diagnostics.is_cut:
            reason = "episodes were cut off, and both rely on a model of what follows."
        elif diagnostics.unseen_share > 0:
            reason = "the fitted value takes actions without data for worthless."
        warnings.append(
            f"The intervals of {rows[trace].title} and of the weighted doubly robust estimate do not meet: {reason}"
        )
    if not math.isfinite(rows[chosen].value):
        return Verdict("no", "No: the numbers of the log are too large to add up.", chosen, tuple(warnings))
    if diagnostics.num_rewarded == 0:
        return Verdict("no", "No: every reward of the log is 0.", chosen, tuple(warnings))
    if diagnostics.rewards_are_rare and diagnostics.num_rewarded < HARDLY_REWARDED:
        return Verdict("no", "No: too few episodes of the log have a reward.", chosen, tuple(warnings))
    if diagnostics.unseen_share > MUCH_UNSEEN:
        sentence = "No: the log has too little data on what the target policy does."
        return Verdict("no", sentence, chosen, tuple(warnings))
    if diagnostics.effective_episodes < FEW and diagnostics.unseen_share > SOME_UNSEEN:
        sentence = "No: few episodes resemble the target policy, and some of its actions were never tried."
        return Verdict("no", sentence, chosen, tuple(warnings))
    if warnings:
        sentence = f"With care: read the {rows[chosen].title} estimate, and the warnings."
        return Verdict("with care", sentence, chosen, tuple(warnings))
    sentence = f"Yes: read the {rows[chosen].title} estimate and its interval."
    return Verdict("yes", sentence, chosen, ())


def _apart(one: Any, other: Any) -> bool:
    gap = max(one.interval[0] - other.interval[1], other.interval[0] - one.interval[1])
    return gap > 1e-6 * max(1.0, abs(one.value))  # without noise, both intervals are points
