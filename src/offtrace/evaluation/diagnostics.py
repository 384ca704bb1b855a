"""What a log can say about a target policy: effective sample size, weights, support, and the horizon."""

from dataclasses import dataclass

import numpy as np

from offtrace.evaluation.bases import Table
from offtrace.evaluation.importance import EpisodeSums
from offtrace.evaluation.parts import Engine, Part, total

FEW = 100
"""Effective episodes below which intervals of importance sampling are too narrow (studies/interval_coverage.py)."""
FEW_REWARDED = 20
"""Episodes with a reward below which all intervals are too narrow, if at least half of the episodes have none."""
FEW_EFFECTIVE_REWARDED = 10
"""The same as FEW, if only the episodes with a reward are counted."""
LARGE_SHARE = 0.2
"""Share of all weight on one episode that is worth a warning."""
UNSEEN = 0.001
"""Share of π's actions without data that is worth a warning."""
CUT = 0.05
"""γ^T at a cut that is worth a warning."""


@dataclass(frozen=True)
class Diagnostics:
    """Numbers to read before the estimates."""

    num_episodes: int
    num_steps: int
    effective_episodes: float
    """(Σ ρ)² / Σ ρ² over the episodes' weights ρ_{T−1}: how many on-policy episodes they are worth."""
    largest_weight: float
    largest_share: float
    """Share of all weight that one episode has."""
    mean_weight: float
    """Mean of ρ_{T−1}; 1 in expectation."""
    mean_weight_error: float
    """Its standard error."""
    unseen_share: float
    """Share of π's actions, over the visited states, for which the log has no data."""
    num_unseen: int
    """Pairs (x, a) of visited states with π(a|x) > 0 that were never seen; actions, for observations."""
    truncated_share: float
    """Share of the episodes that were cut off."""
    horizon_weight: float
    """Mean γ^T of the episodes that were cut off: the weight of the rewards that the log does not have."""
    num_cut_unknown: int
    """Episodes that were cut off where the log does not have the state after the cut."""
    num_possible: int
    """Episodes that could come from π: it takes each of their actions with some probability."""
    num_rewarded: int
    """Episodes with a reward other than 0."""
    effective_rewarded: float
    """(Σ ρ)² / Σ ρ² over these episodes."""

    @property
    def is_cut(self) -> bool:
        """True if rewards after the cuts matter."""
        return self.truncated_share > 0 and self.horizon_weight > CUT

    @property
    def rewards_are_rare(self) -> bool:
        """True if few episodes have a reward, and at least half of them have none."""
        return self.num_rewarded < FEW_REWARDED and 2 * self.num_rewarded <= self.num_episodes

    @property
    def rewarded_are_worth_little(self) -> bool:
        """True if the episodes with a reward are worth few episodes of the target policy."""
        return self.effective_rewarded < FEW_EFFECTIVE_REWARDED

    def warnings(self) -> list[str]:
        """Return what a reader should know, the most serious first."""
        lines = []
        if self.unseen_share > UNSEEN:
            lines.append(
                f"The target policy takes actions for which the log has no data: {self.unseen_share:.1%} of its "
                "actions in the logged states. No estimator can know their value."
            )
        if self.rewards_are_rare and self.num_rewarded > 0:
            lines.append(
                f"There is a reward other than 0 in only {self.num_rewarded:,} of {self.num_episodes:,} episodes. "
                "With so few the intervals are too narrow more often than they say."
            )
        if self.num_possible == 0:
            lines.append(
                "No episode of the log could come from the target policy: each has an action that it never takes. So "
                "importance sampling and the doubly robust forms are left out. The others need Markov states."
            )
        elif self.effective_episodes < FEW:
            lines.append(
                f"{_episodes(self.num_episodes)} worth {self.effective_episodes:.1f} episodes of the target "
                "policy. The intervals of importance sampling and of the doubly robust forms are too narrow."
            )
        elif self.rewarded_are_worth_little and self.num_rewarded >= FEW_REWARDED:
            lines.append(
                f"The {self.num_rewarded:,} episodes with a reward are worth {self.effective_rewarded:.1f} episodes "
                "of the target policy. The intervals of importance sampling and of the doubly robust forms are too "
                "narrow."
            )
        if self.largest_share > LARGE_SHARE and self.num_possible > 1:
            lines.append(f"One episode has {self.largest_share:.0%} of all weight.")
        if abs(self.mean_weight - 1) > 4 * self.mean_weight_error + 0.01 and self.effective_episodes >= FEW:
            lines.append(
                f"The mean weight is {self.mean_weight:.3g}; it should be near 1. Check the probabilities of μ."
            )
        if self.is_cut:
            rest = "the doubly robust forms and fitted values add a model's value of what follows."
            if self.num_cut_unknown:
                rest = (
                    f"for {self.num_cut_unknown:,} of them the log does not have the state after the cut "
                    "(`next_state`), so the doubly robust forms do, too, and fitted values are biased."
                )
            lines.append(
                f"{self.truncated_share:.0%} of the episodes were cut off, where γ^T is still "
                f"{self.horizon_weight:.2f} on average. Importance sampling estimates the value up to the cut; {rest}"
            )
        return lines


def diagnose(engine: Engine, sums: EpisodeSums, gamma: float) -> Diagnostics:
    """Return the diagnostics of a log for a target policy."""
    weight = sums.weight
    all_weight = weight.sum()
    unseen_share, num_unseen = _unseen(engine)
    cut = sums.length[sums.truncated]
    return Diagnostics(
        num_episodes=len(weight),
        num_steps=int(sums.length.sum()),
        effective_episodes=_effective(weight),
        largest_weight=float(weight.max()),
        largest_share=float(weight.max() / all_weight) if all_weight > 0 else 1.0,
        mean_weight=float(weight.mean()),
        mean_weight_error=float(weight.std() / np.sqrt(len(weight))),
        unseen_share=unseen_share,
        num_unseen=num_unseen,
        truncated_share=float(sums.truncated.mean()),
        horizon_weight=float((gamma**cut).mean()) if len(cut) else 0.0,
        num_cut_unknown=int(sum(engine.map(_num_cut_unknown))),
        num_possible=int(sums.possible.sum()),
        num_rewarded=int(sums.rewarded.sum()),
        effective_rewarded=_effective(weight[sums.rewarded]),
    )


def _episodes(number: int) -> str:
    """Return the beginning of a sentence about all episodes."""
    return "The only episode is" if number == 1 else f"The {number:,} episodes are"


def _effective(weight: np.ndarray) -> float:
    """Return (Σ ρ)² / Σ ρ², or 0 without any weight."""
    total_weight = weight.sum()
    return float(total_weight**2 / (weight**2).sum()) if total_weight > 0 else 0.0


def _num_cut_unknown(part: Part) -> int:
    return int((~part.steps.mask).sum())


def _unseen(engine: Engine) -> tuple[float, int]:
    """Return the share of π's actions without data, and the number of such pairs."""
    if not all(engine.map(_is_discrete)):
        return 0.0, 0
    visits, seen, pi = _visits(engine)
    missing = (seen == 0) & (pi > 0) & (visits > 0)[:, None]
    return float((visits[:, None] * pi * missing).sum() / visits.sum()), int(missing.sum())


def _visits(engine: Engine) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return n(x) (X,), n(x, a) (X, A) and π (X, A); all observations together count as one state."""
    counts, expected = zip(*engine.map(_counts), strict=True)
    seen = total(counts)
    visits = seen.sum(axis=1)
    if expected[0] is not None:
        return visits, seen, total(expected) / visits.sum()
    return visits, seen, engine.map(_table)[0]


def _is_discrete(part: Part) -> bool:
    return part.steps.basis is not None


def _counts(part: Part) -> tuple[np.ndarray, np.ndarray | None]:
    basis = part.steps.basis
    if isinstance(basis, Table):
        return np.bincount(basis.pair, minlength=basis.size).reshape(basis.pi.shape), None
    num_actions = basis.pi.shape[1]
    return np.bincount(basis.action, minlength=num_actions)[None], basis.pi.sum(axis=0)[None]


def _table(part: Part) -> np.ndarray:
    return part.steps.basis.pi
