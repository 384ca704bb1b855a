"""Table 1 of the paper and its successors: traces with one coefficient c(x, a) per step."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from offtrace.arrays import Array, quietly, take_action
from offtrace.likelihoods import Likelihoods
from offtrace.traces.base import Trace

# -- Table 1 -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneStep(Trace):
    """c = 0: the one-step target r + γ E_π Q; λ is not used."""

    lambda_: Any = 0.0
    name = "one_step"
    title = "one-step"
    full_name = "the one-step target"
    rule = "0"
    source = "Bellman"
    has_lambda = False
    needs_pi = False
    safe = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.xp.zeros_like(_any_array(likelihoods))


@dataclass(frozen=True)
class ImportanceSampling(Trace):
    """c = λ π/μ. With λ = 1 one application of R gives Q^π, with a variance that may be infinite."""

    name = "importance_sampling"
    title = "IS(λ)"
    full_name = "importance sampling (Retrace without the clip)"
    rule = "λ·π/μ"
    source = "Precup et al. 2000"
    needs_mu = True
    safe = True
    theory = (
        "The product of the ratios is not bounded, so its variance may be infinite, although the "
        "expectation is right (Theorem 1). For this reason Retrace clips each ratio at 1."
    )

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.ratio()


@dataclass(frozen=True)
class QLambda(Trace):
    """c = λ: Q^π(λ) and Q*(λ). It contracts only where π is close to μ: λ < (1−γ)/(γε)."""

    name = "q_lambda"
    title = "Q(λ)"
    full_name = "Q(λ)"
    rule = "λ"
    source = "Harutyunyan et al. 2016"
    needs_pi = False
    safe = False
    theory = (
        "c = λ, whatever μ is. It converges only where π is close to μ: λ < (1−γ)/(γε), where ε "
        "is the largest ‖π(·|x) − μ(·|x)‖₁. Beyond that it may diverge (Harutyunyan et al. 2016). "
        "Retrace converges for every π and μ."
    )

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.xp.ones_like(_any_array(likelihoods))


@dataclass(frozen=True)
class TreeBackup(Trace):
    """c = λ π: safe for any μ, which need not be known, but traces are cut even on-policy."""

    name = "tree_backup"
    title = "TB(λ)"
    full_name = "tree backup"
    rule = "λ·π"
    source = "Precup et al. 2000"
    takes_densities = False
    safe = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.target()


@dataclass(frozen=True)
class Retrace(Trace):
    """c = λ min(1, π/μ): safe for any π and μ, and uncut on-policy."""

    name = "retrace"
    title = "Retrace(λ)"
    full_name = "Retrace"
    rule = "λ·min(1, π/μ)"
    source = "Munos et al. 2016"
    needs_mu = True
    safe = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.clipped_ratio()


# -- successors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watkins(Trace):
    """c = λ 1{a is greedy in Q}; tied actions are all greedy. For a greedy π without ties it is Retrace, and safe."""

    name = "watkins"
    title = "Watkins's Q(λ)"
    full_name = "Watkins's Q(λ)"
    rule = "λ·1{a greedy}"
    source = "Watkins 1989"
    needs_pi = False
    needs_q = True
    safe = False
    theory = "It is safe only if π is greedy in this same Q, without ties. It is then the same as Retrace."

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        xp = likelihoods.xp
        q = q[: a.shape[0]]
        legal = xp.where(q == q, q, -np.inf)  # NaN marks an illegal action
        best = xp.amax(legal, -1)
        return xp.where(take_action(legal, a) == best, 1.0, xp.zeros_like(best))


@dataclass(frozen=True)
class SoftWatkins(Trace):
    """c = λ Σ_b π(b|x) 1{Q(x, a) ≥ Q(x, b) − κ |Q(x, b)|}: the share of π that the action nearly matches."""

    kappa: Any = 0.01
    ranges = MappingProxyType({"kappa": (0, np.inf)})
    name = "soft_watkins"
    title = "soft Watkins's Q(λ)"
    full_name = "soft Watkins"
    rule = "λ·P(Q(x,a) ≥ Q(x,b) − κ|Q(x,b)|), b ~ π"
    source = "Kapturowski et al. 2023"
    needs_pi = False
    needs_q = True
    safe = False
    theory = "c may exceed π/μ where π is not greedy, which Theorem 1 does not cover."

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        xp = likelihoods.xp
        q, pi = q[: a.shape[0]], pi[: a.shape[0]]
        others = xp.where(pi == 0, 0, q)
        with quietly(xp, invalid="ignore"):  # inf − inf, in rows that are not read
            matched = take_action(q, a)[..., None] >= others - self.kappa * abs(others)
        return xp.where(matched, pi, 0).sum(-1)


@dataclass(frozen=True)
class ContinuousACER(Trace):
    """c = λ min(1, ρ^{1/d}) for actions of d dimensions; above ρ where ρ < 1, so Theorem 1 does not cover it."""

    num_dims: Any = 1
    ranges = MappingProxyType({"num_dims": (1, np.inf)})
    name = "continuous_acer"
    title = "continuous ACER(λ)"
    full_name = "ACER's trace for continuous actions"
    rule = "λ·min(1, (π/μ)^(1/d))"
    source = "Wang et al. 2017"
    needs_mu = True
    safe = False
    theory = "c exceeds π/μ where π/μ < 1, which Theorem 1 does not cover."

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.clipped_ratio() ** (1.0 / self.num_dims)


@dataclass(frozen=True)
class QSigma(Trace):
    """c = λ (σ π/μ + (1 − σ) π): importance sampling at σ = 1, tree backup at σ = 0."""

    sigma: Any = 0.5
    ranges = MappingProxyType({"sigma": (0, 1)})
    name = "q_sigma"
    title = "Q(σ, λ)"
    full_name = "Q(σ)"
    rule = "λ·(σ·π/μ + (1−σ)·π)"
    source = "Sutton and Barto 2018, Eq. 7.17"
    needs_mu = True
    takes_densities = False
    safe = True
    theory = "Theorem 1 covers it, but the product of the ratios is not bounded, so its variance may be infinite."

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return self.sigma * likelihoods.ratio() + (1 - self.sigma) * likelihoods.target()


def _any_array(likelihoods: Likelihoods) -> Array:
    return next(value for value in likelihoods[1:] if value is not None)
