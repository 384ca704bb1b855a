"""Traces that depend on the whole trajectory: Eq. 9 of the paper and its successors."""

from dataclasses import dataclass
from types import ModuleType

from offtrace.arrays import Array, lead
from offtrace.traces.base import Trace, checked_likelihoods
from offtrace.traces.beta import BetaState, BetaStep, advance
from offtrace.traces.parameters import check_lambda_shape, like


@dataclass(frozen=True)
class TrajectoryAware(Trace):
    """Base class of traces whose β_t = c_1 … c_t is not a product of one coefficient per (x, a).

    What reaches back depends on where the trajectory started. So `targets` takes O(n²) for them, and there is no
    array of c for `corrections`. A subclass defines `next_beta`.
    """

    markov = False
    needs_mu = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        """Return β_t from what is known at step t."""
        raise TypeError(f"{type(self).__name__} has no β of its own; define `next_beta`.")

    def __call__(self, **_: Array | None) -> Array:
        raise TypeError(
            f"{type(self).__name__} depends on where a trajectory starts, so it has no array of c that serves "
            "every start; use `ot.targets(…, trace=…)`, or `.betas(…)` for the trajectory that starts in row 0."
        )

    def betas(
        self,
        *,
        pi_a: Array | None = None,
        mu_a: Array | None = None,
        log_pi_a: Array | None = None,
        log_mu_a: Array | None = None,
    ) -> Array:
        """Return β_0 = 1, β_1, …, β_{n−1} of the trajectory that starts in row 0: (n, …).

        >>> RecursiveRetrace(1.0).betas(pi_a=[0.5, 0.2, 0.9], mu_a=[0.5, 0.4, 0.3])
        array([1. , 0.5, 1. ])
        """
        likelihoods = checked_likelihoods(self, pi_a, mu_a, log_pi_a, log_mu_a)
        xp, log_ratio = likelihoods.xp, likelihoods.log_ratio()
        check_lambda_shape(self.lambda_, tuple(log_ratio.shape))
        if log_ratio.shape[0] == 0:
            return xp.zeros_like(log_ratio)
        lambdas = lead(like(self.lambda_, log_ratio), log_ratio.ndim) * xp.ones_like(log_ratio)
        state = BetaState.start(xp, log_ratio[0])
        betas = [state.beta]
        for t in range(1, log_ratio.shape[0]):
            state = advance(self, xp, state, log_ratio=log_ratio[t], lambda_=lambdas[t])
            betas.append(state.beta)
        return xp.stack(betas)


@dataclass(frozen=True)
class RecursiveRetrace(TrajectoryAware):
    """β_t = λ min(1, β_{t−1} ρ_t), Eq. 9: a later large ratio can make up for a small one."""

    name = "recursive_retrace"
    title = "recursive Retrace(λ)"
    full_name = "recursive Retrace (Eq. 9)"
    rule = "β_t = λ·min(1, β_{t−1}·ρ_t)"
    source = "Munos et al. 2016, Eq. 9"
    safe = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return step.lambda_ * xp.where(step.carried < 1, step.carried, 1)


@dataclass(frozen=True)
class TruncatedIS(TrajectoryAware):
    """β_t = λ^t min(1, Π_{s≤t} ρ_s); may diverge."""

    name = "truncated_is"
    title = "truncated IS(λ)"
    full_name = "truncated importance sampling"
    rule = "β_t = λ^t·min(1, Π ρ)"
    source = "Daley et al. 2023"
    safe = False
    theory = (
        "min(1, Πρ) clips the product and not each ratio, so the c of one step may exceed π/μ. "
        "Theorem 1 does not cover it, and it may diverge (Daley et al. 2023). Retrace is λ·min(1, "
        "ρ) at each step; RBIS is a safe trace close to this one."
    )

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return step.lambda_product * step.clipped_product


@dataclass(frozen=True)
class RBIS(TrajectoryAware):
    """β_t = min(λ^t, β_{t−1} ρ_t): the largest safe β with β_t ≤ λ^t, never smaller than Retrace's."""

    name = "rbis"
    title = "RBIS(λ)"
    full_name = "RBIS"
    rule = "β_t = min(λ^t, β_{t−1}·ρ_t)"
    source = "Daley et al. 2023"
    safe = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return xp.where(step.carried < step.lambda_product, step.carried, step.lambda_product)
