"""Table 1 of the paper and its successors: how much of a later TD error reaches back.

Every algorithm of the paper is the same operator (Eq. 3),

    R Q(x, a) = Q(x, a) + E_μ[ Σ_t γ^t (Π_{s=1..t} c_s) (r_t + γ E_π Q(x_{t+1}, ·) − Q(x_t, a_t)) ],

and differs only in its coefficients c_s. A trace here is a small frozen value that computes them. A new one
is one class below and one row in `TRACES`.
"""

import difflib
from dataclasses import dataclass, fields
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

import numpy as np

from offtrace.arrays import Array, known, lead, take_action
from offtrace.likelihoods import Likelihoods, check, tolerance
from offtrace.likelihoods import likelihoods as likelihoods_of
from offtrace.parameters import as_array, check_lambda_shape, check_parameter, like, register_with_jax
from offtrace.refusals import refuse
from offtrace.traces.beta import BetaState, BetaStep, advance


@dataclass(frozen=True)
class Trace:
    """What all traces share: λ, and how they are called.

    λ is a number in [0, 1], or an array of them: (n,) for one per step, or the shape of `mu_a`. The whole
    value is a JAX pytree whose leaves are its fields, so λ can be `vmap`ped.
    """

    lambda_: Any = 1.0

    name: ClassVar[str]
    rule: ClassVar[str] = ""
    source: ClassVar[str] = ""
    safe: ClassVar[bool] = False
    """c_s ∈ [0, π/μ] for every π, μ and λ ≤ 1: Theorem 1 holds, R is a γ-contraction around Q^π."""
    needs_pi: ClassVar[bool] = True
    needs_mu: ClassVar[bool] = False
    needs_q: ClassVar[bool] = False
    """Called with `q`, `pi` and `a` as well."""
    markov: ClassVar[bool] = True
    """c_s depends on (x_s, a_s) alone; otherwise on where the trajectory started, too."""

    def __post_init__(self) -> None:
        register_with_jax(type(self))
        for field in fields(self):
            if isinstance(getattr(self, field.name), (list, tuple)):
                object.__setattr__(self, field.name, as_array(getattr(self, field.name)))
            check_parameter(type(self).__name__, field.name, getattr(self, field.name))

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        """c_s / λ."""
        raise TypeError(f"{type(self).__name__} has no coefficient of its own.")

    def __call__(
        self,
        *,
        pi_a: Array | None = None,
        mu_a: Array | None = None,
        log_pi_a: Array | None = None,
        log_mu_a: Array | None = None,
        q: Array | None = None,
        pi: Array | None = None,
        a: Array | None = None,
    ) -> Array:
        """The coefficients c, one per step, from probabilities or from log-densities.

        >>> Retrace(0.5)(pi_a=[0.9, 0.1], mu_a=[0.3, 0.2])
        array([0.5 , 0.25])
        """
        likelihoods = likelihoods_of(pi_a, mu_a, log_pi_a, log_mu_a)
        q, pi, a = (np.asarray(value) if isinstance(value, (list, tuple)) else value for value in (q, pi, a))
        _check_inputs(self, likelihoods, q=q, pi=pi, a=a)
        check(likelihoods, needs_mu=self.needs_mu, tol=tolerance(*likelihoods))
        c = self.coefficients(likelihoods, q=q, pi=pi, a=a)
        if known(c):
            remedy = "Use a trace that clips the ratio, such as `ot.Retrace`."
            refuse(~likelihoods.xp.isfinite(c), "mu_a", "must not make π/μ overflow", c, remedy, what="c is")
        return c

    def coefficients(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        """c = λ · factor, unchecked."""
        factor = self.factor(likelihoods, q=q, pi=pi, a=a)
        check_lambda_shape(self.lambda_, tuple(factor.shape))
        return lead(like(self.lambda_, factor), np.ndim(factor)) * factor


@dataclass(frozen=True)
class OneStep(Trace):
    """c = 0: the one-step target r + γ E_π Q; λ is not used."""

    lambda_: Any = 0.0
    name = "one_step"
    rule = "0"
    source = "Bellman"
    safe = True
    needs_pi = False

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        given = next(value for value in likelihoods[1:] if value is not None)
        return likelihoods.xp.zeros_like(given)


@dataclass(frozen=True)
class ImportanceSampling(Trace):
    """c = λ π/μ. With λ = 1 one application of R gives Q^π, with a variance that may be infinite."""

    name = "importance_sampling"
    rule = "λ·π/μ"
    source = "Precup et al. 2000"
    safe = True
    needs_mu = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.ratio()


@dataclass(frozen=True)
class QLambda(Trace):
    """c = λ: Q^π(λ) and Q*(λ); contracts only where π is close to μ: λ < (1−γ)/(γε)."""

    name = "q_lambda"
    rule = "λ"
    source = "Harutyunyan et al. 2016"
    safe = False
    needs_pi = False

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        given = next(value for value in likelihoods[1:] if value is not None)
        return likelihoods.xp.ones_like(given)


@dataclass(frozen=True)
class TreeBackup(Trace):
    """c = λ π: safe for any μ, which it need not know, but cuts traces even on-policy."""

    name = "tree_backup"
    rule = "λ·π"
    source = "Precup et al. 2000"
    safe = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.target()


@dataclass(frozen=True)
class Retrace(Trace):
    """c = λ min(1, π/μ): safe for any π and μ, and uncut on-policy."""

    name = "retrace"
    rule = "λ·min(1, π/μ)"
    source = "Munos et al. 2016"
    safe = True
    needs_mu = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.clipped_ratio()


@dataclass(frozen=True)
class Watkins(Trace):
    """c = λ 1{a is greedy in Q}; ties are all greedy. For a greedy π without ties it is Retrace, and safe."""

    name = "watkins"
    rule = "λ·1{a greedy}"
    source = "Watkins 1989"
    safe = False
    needs_pi = False
    needs_q = True

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        xp, q = likelihoods.xp, q[: a.shape[0]]
        legal = xp.where(q == q, q, -np.inf)  # NaN marks an illegal action
        best = xp.amax(legal, -1)
        return xp.where(take_action(legal, a) == best, 1.0, xp.zeros_like(best))


@dataclass(frozen=True)
class SoftWatkins(Trace):
    """c = λ Σ_b π(b|x) 1{Q(x, a) ≥ Q(x, b) − κ |Q(x, b)|}: the share of π that the action nearly matches."""

    kappa: Any = 0.01
    name = "soft_watkins"
    rule = "λ·P(Q(x,a) ≥ Q(x,b) − κ|Q(x,b)|), b ~ π"
    source = "Kapturowski et al. 2023"
    safe = False
    needs_pi = False
    needs_q = True

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        xp, n = likelihoods.xp, a.shape[0]
        others = xp.where(pi[:n] == 0, 0, q[:n])
        with np.errstate(invalid="ignore"):  # inf − inf, in rows that are not read
            matched = take_action(q[:n], a)[..., None] >= others - self.kappa * abs(others)
        return xp.where(matched, pi[:n], 0).sum(-1)


@dataclass(frozen=True)
class ContinuousACER(Trace):
    """c = λ min(1, ρ^{1/d}) for actions of d dimensions; above ρ where ρ < 1, so Theorem 1 does not cover it."""

    num_dims: Any = 1
    name = "continuous_acer"
    rule = "λ·min(1, (π/μ)^(1/d))"
    source = "Wang et al. 2017"
    safe = False
    needs_mu = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return likelihoods.clipped_ratio() ** (1.0 / self.num_dims)


@dataclass(frozen=True)
class QSigma(Trace):
    """c = λ (σ π/μ + (1 − σ) π): importance sampling at σ = 1, tree backup at σ = 0."""

    sigma: Any = 0.5
    name = "q_sigma"
    rule = "λ·(σ·π/μ + (1−σ)·π)"
    source = "Sutton and Barto 2018, Eq. 7.17"
    safe = True
    needs_mu = True

    def factor(self, likelihoods: Likelihoods, **_: Array) -> Array:
        return self.sigma * likelihoods.ratio() + (1 - self.sigma) * likelihoods.target()


@dataclass(frozen=True)
class TrajectoryAware(Trace):
    """A trace whose product β_t = c_1 … c_t is not a product of one coefficient per (x, a).

    What reaches back depends on where the trajectory started, so `targets` works in O(n²) for these, and there
    is no array of c to hand to `corrections`.
    """

    markov = False
    needs_mu = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        """Return β_t from what is known at step t."""
        raise TypeError(f"{type(self).__name__} does not say how its trace goes on; define `next_beta`.")

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
        """β_0 = 1, β_1, …, β_{n−1} of the trajectory that starts in row 0: (n, …).

        >>> RecursiveRetrace(1.0).betas(pi_a=[0.5, 0.2, 0.9], mu_a=[0.5, 0.4, 0.3])
        array([1. , 0.5, 1. ])
        """
        likelihoods = likelihoods_of(pi_a, mu_a, log_pi_a, log_mu_a)
        _check_inputs(self, likelihoods, q=None, pi=None, a=None)
        check(likelihoods, needs_mu=True, tol=tolerance(*likelihoods))
        xp, log_ratio = likelihoods.xp, likelihoods.log_ratio()
        check_lambda_shape(self.lambda_, tuple(log_ratio.shape))
        if log_ratio.shape[0] == 0:
            return xp.zeros_like(log_ratio)
        lambdas = lead(like(self.lambda_, log_ratio), np.ndim(log_ratio)) * xp.ones_like(log_ratio)
        state = BetaState.start(xp, log_ratio[0])
        betas = [state.beta]
        for t in range(1, log_ratio.shape[0]):
            state = advance(self, xp, state, log_ratio=log_ratio[t], lambda_=lambdas[t])
            betas.append(state.beta)
        return xp.stack(betas)


@dataclass(frozen=True)
class RecursiveRetrace(TrajectoryAware):
    """β_t = λ min(1, β_{t−1} ρ_t), Eq. 9: a small ratio can be made good by a later large one."""

    name = "recursive_retrace"
    rule = "β_t = λ·min(1, β_{t−1}·ρ_t)"
    source = "Munos et al. 2016, Eq. 9"
    safe = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return step.lambda_ * xp.where(step.carried < 1, step.carried, 1)


@dataclass(frozen=True)
class TruncatedIS(TrajectoryAware):
    """β_t = λ^t min(1, Π_{s≤t} ρ_s); may diverge."""

    name = "truncated_is"
    rule = "β_t = λ^t·min(1, Π ρ)"
    source = "Daley et al. 2023"
    safe = False

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return step.lambda_product * step.clipped_product


@dataclass(frozen=True)
class RBIS(TrajectoryAware):
    """β_t = min(λ^t, β_{t−1} ρ_t): the largest safe trace under λ^t, never below Retrace's."""

    name = "rbis"
    rule = "β_t = min(λ^t, β_{t−1}·ρ_t)"
    source = "Daley et al. 2023"
    safe = True

    def next_beta(self, xp: ModuleType, step: BetaStep) -> Array:
        return xp.where(step.carried < step.lambda_product, step.carried, step.lambda_product)


TRACES: MappingProxyType[str, type[Trace]] = MappingProxyType(
    {
        cls.name: cls
        for cls in (
            OneStep,
            ImportanceSampling,
            QLambda,
            TreeBackup,
            Retrace,
            RecursiveRetrace,
            TruncatedIS,
            RBIS,
            Watkins,
            SoftWatkins,
            ContinuousACER,
            QSigma,
        )
    }
)
"""Every trace by name; tests, commands, tables and agents go through it."""


def trace(name: str, /, **parameters: Any) -> Trace:
    """A trace by its name.

    >>> trace("retrace", lambda_=0.9)
    Retrace(lambda_=0.9)
    """
    if name not in TRACES:
        near = difflib.get_close_matches(str(name), TRACES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"`trace` must be one of {', '.join(TRACES)}; got {name!r}.{hint}")
    cls = TRACES[name]
    unknown = set(parameters) - {field.name for field in fields(cls)}
    if unknown:
        known = ", ".join(field.name for field in fields(cls))
        raise ValueError(f"`{min(unknown)}` is not a parameter of {cls.__name__}; it has {known}.")
    return cls(**parameters)


def _check_inputs(trace: Trace, likelihoods: Likelihoods, *, q: Any, pi: Any, a: Any) -> None:
    name = type(trace).__name__
    if likelihoods.pi_a is None and likelihoods.log_pi_a is None:
        raise TypeError(f"{name} is called with `pi_a=` (or `log_pi_a=`); neither was given.")
    if trace.needs_mu and likelihoods.mu_a is None and likelihoods.log_mu_a is None:
        raise TypeError(f"{name} needs μ(a_t|x_t): give `mu_a=` (or `log_mu_a=`), as it was when a_t was drawn.")
    if trace.needs_mu and (likelihoods.pi_a is None) != (likelihoods.mu_a is None):
        raise TypeError(f"{name} takes `pi_a` with `mu_a`, or `log_pi_a` with `log_mu_a`, not one of each.")
    shapes = {tuple(value.shape) for value in likelihoods[1:] if value is not None}
    if len(shapes) > 1:
        given = ", ".join(
            f"`{k}` {tuple(v.shape)}" for k, v in likelihoods._asdict().items() if k != "xp" and v is not None
        )
        raise ValueError(f"{name} takes arrays of one shape; got {given}.")
    if trace.needs_q and (q is None or pi is None or a is None):
        raise TypeError(f"{name} has to know what is greedy: give `q=`, `pi=` and `a=` as well.")
