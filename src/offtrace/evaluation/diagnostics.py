"""What a log can say about a target policy: effective sample size, weights, support, and the horizon."""

from dataclasses import dataclass

import numpy as np

from offtrace.evaluation.log import Log

FEW = 30
"""Effective episodes below which importance sampling is not trusted."""
LARGE_SHARE = 0.2
"""Share of all weight on one episode that is worth a warning."""


@dataclass(frozen=True)
class Diagnostics:
    """Numbers to read before the estimates."""

    num_episodes: int
    num_steps: int
    effective_episodes: float
    """(Σ ρ)² / Σ ρ² over the episodes' weights ρ_{T−1}: how many on-policy episodes they are worth."""
    largest_share: float
    """Share of all weight that one episode has."""
    mean_weight: float
    """Mean of ρ_{T−1}; 1 in expectation."""
    unseen_share: float
    """Share of π's actions, over the visited states, that the log never shows; None where it cannot be counted."""
    num_unseen: int
    """Pairs (x, a) of visited states with π(a|x) > 0 that were never seen."""
    truncated_share: float
    """Share of the episodes that were cut off."""
    horizon_weight: float
    """Mean γ^T of the episodes that were cut off: the weight of the rewards that the log does not have."""

    def warnings(self) -> list[str]:
        """Return what a reader should know, the most serious first."""
        lines = []
        if self.effective_episodes < FEW:
            lines.append(
                f"The weights of {self.num_episodes:,} episodes are worth {self.effective_episodes:.1f} episodes of "
                "the target policy. Estimates by importance sampling are not reliable."
            )
        if self.largest_share > LARGE_SHARE and self.num_episodes > 1:
            lines.append(f"One episode has {self.largest_share:.0%} of all weight.")
        if self.unseen_share > 0.01:
            lines.append(
                f"The target policy takes actions that the log never shows in that state: {self.num_unseen:,} pairs, "
                f"{self.unseen_share:.1%} of its actions. No estimator can know their value."
            )
        if abs(self.mean_weight - 1) > 0.5:
            lines.append(
                f"The mean weight is {self.mean_weight:.3g}; it should be near 1. Check the probabilities of μ."
            )
        if self.truncated_share > 0 and self.horizon_weight > 0.05:
            lines.append(
                f"{self.truncated_share:.0%} of the episodes were cut off, where γ^T is still "
                f"{self.horizon_weight:.2f} on average. Importance sampling estimates the value up to the cut only."
            )
        return lines


def diagnose(log: Log, rho: np.ndarray, gamma: float, pi: np.ndarray | None) -> Diagnostics:
    """Return the diagnostics of a log for a target policy; `pi` (X, A) where there is a table."""
    weight = rho[log.first[1:] - 1]
    total = weight.sum()
    cut = log.truncated[log.first[1:] - 1]
    unseen_share = 0.0
    num_unseen = 0
    if pi is not None and log.state is not None:
        counts = np.bincount(log.state * pi.shape[1] + log.action, minlength=pi.size).reshape(pi.shape)
        visits = counts.sum(axis=1)
        missing = (counts == 0) & (pi > 0) & (visits > 0)[:, None]
        num_unseen = int(missing.sum())
        unseen_share = float((visits[:, None] * pi * missing).sum() / visits.sum())
    return Diagnostics(
        num_episodes=log.num_episodes,
        num_steps=log.num_steps,
        effective_episodes=float(total**2 / (weight**2).sum()) if total > 0 else 0.0,
        largest_share=float(weight.max() / total) if total > 0 else 1.0,
        mean_weight=float(weight.mean()),
        unseen_share=unseen_share,
        num_unseen=num_unseen,
        truncated_share=float(cut.mean()),
        horizon_weight=float((gamma ** log.lengths[cut]).mean()) if cut.any() else 0.0,
    )
