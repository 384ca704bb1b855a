"""What a trace is: a small frozen value that computes coefficients, and the facts known about it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from offtrace.arrays import Array, is_compiling, is_concrete, lead
from offtrace.errors import raise_where
from offtrace.likelihoods import Likelihoods, as_likelihoods, check_likelihoods, tolerance
from offtrace.traces.parameters import (
    ANY,
    SHARE,
    Range,
    as_array,
    check_lambda_shape,
    check_parameter,
    like,
    register_with_jax,
)


@dataclass(frozen=True)
class Trace:
    """Base class of all traces: λ, the facts about the trace, and how it is called.

    λ is a number in [0, 1], or an array: (n,) for one per step, or the shape of `mu_a`. A trace is a JAX pytree
    whose leaves are its fields, so λ can be `vmap`ped.

    A subclass defines `factor`, and states what differs from the facts below:

    >>> @dataclass(frozen=True)
    ... class HalfRetrace(Trace):
    ...     needs_mu = True
    ...     def factor(self, likelihoods, **_):
    ...         return 0.5 * likelihoods.clipped_ratio()
    >>> HalfRetrace(0.8)(pi_a=[0.9, 0.1], mu_a=[0.3, 0.2])
    array([0.4, 0.2])
    >>> HalfRetrace.name, HalfRetrace.title
    ('half_retrace', 'HalfRetrace(λ)')
    """

    lambda_: Any = 1.0

    name: ClassVar[str] = "trace"
    """Identifier in specs, stored results and on the command line; by default the class name in snake case."""
    title: ClassVar[str] = "Trace(λ)"
    """Name in charts and tables, such as "TB(λ)"; by default the class name, with "(λ)" if it has a λ."""
    full_name: ClassVar[str] = "Trace"
    """Name inside a sentence, such as "tree backup"; by default the class name."""
    rule: ClassVar[str] = ""
    """Formula of the coefficient."""
    source: ClassVar[str] = ""
    """Publication that introduced it."""
    ranges: ClassVar[Mapping[str, Range]] = MappingProxyType({})
    """Lowest and highest value of parameters other than λ; a parameter that is not here may be any finite number."""
    has_lambda: ClassVar[bool] = True
    """False if the coefficients do not depend on λ."""
    needs_pi: ClassVar[bool] = True
    """Reads π(a_t|x_t)."""
    needs_mu: ClassVar[bool] = False
    """Reads μ(a_t|x_t)."""
    needs_q: ClassVar[bool] = False
    """Reads `q`, `pi` and `a` as well."""
    takes_densities: ClassVar[bool] = True
    """`log_pi_a` and `log_mu_a` may be log-densities; otherwise they must be log-probabilities."""
    markov: ClassVar[bool] = True
    """c_s depends on (x_s, a_s) alone, not on the start of the trajectory."""
    safe: ClassVar[bool] = False
    """Theorem 1 covers it: c_s ∈ [0, π/μ] for every π, μ and λ ≤ 1, so R is a γ-contraction around Q^π."""
    safe_for_control: ClassVar[bool] = False
    """Theorem 2 covers it: safe and Markov, by default; target policies must become increasingly greedy."""
    theory: ClassVar[str] = ""
    """What else the theory says, in one or two sentences: a condition, a warning."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "name" not in own:
            cls.name = "_".join(re.findall(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z]?[a-z0-9]+", cls.__name__)).lower()
        if "title" not in own:
            cls.title = f"{cls.__name__}(λ)" if cls.has_lambda else cls.__name__
        if "full_name" not in own:
            cls.full_name = cls.__name__
        if "safe_for_control" not in own:
            cls.safe_for_control = cls.safe and cls.markov

    def __post_init__(self) -> None:
        register_with_jax(type(self))
        for field in fields(self):
            if isinstance(getattr(self, field.name), (list, tuple)):
                object.__setattr__(self, field.name, as_array(getattr(self, field.name)))
            allowed = SHARE if field.name == "lambda_" else self.ranges.get(field.name, ANY)
            check_parameter(type(self).__name__, field.name, getattr(self, field.name), allowed)

    @property
    def reads_mu(self) -> bool:
        """True if μ(a_t|x_t) is used when it is given; `needs_mu`: it must be given."""
        return self.needs_mu

    @property
    def reads_q(self) -> bool:
        """True if `q`, `pi` and `a` are used when they are given; `needs_q`: they must be given."""
        return self.needs_q

    def parameters(self) -> tuple[Any, ...]:
        """Return λ, the other parameters and what else a trace holds; they may be arrays of any library."""
        if is_compiling():  # Dynamo of PyTorch 2.11 cannot read `__dict__`
            return tuple(getattr(self, field.name) for field in fields(self))
        return tuple(self.__dict__.values())

    def with_lambda(self, lambda_: Any) -> Self:
        """Return the same trace with another λ; a trace without λ is returned as it is."""
        if not self.has_lambda:
            return self
        return replace(self, lambda_=lambda_)

    def factor(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        """Return c_s / λ."""
        raise TypeError(f"{type(self).__name__} has no coefficient of its own; define `factor`.")

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
        """Return the coefficients c, one per step, from probabilities or from log-densities.

        >>> from offtrace.traces import Retrace
        >>> Retrace(0.5)(pi_a=[0.9, 0.1], mu_a=[0.3, 0.2])
        array([0.5 , 0.25])
        """
        q, pi, a = (np.asarray(value) if isinstance(value, (list, tuple)) else value for value in (q, pi, a))
        likelihoods = checked_likelihoods(self, pi_a, mu_a, log_pi_a, log_mu_a)
        if self.needs_q and (q is None or pi is None or a is None):
            raise TypeError(f"{self.name} reads the action values: give `q=`, `pi=` and `a=` as well.")
        c = self.coefficients(likelihoods, q=q, pi=pi, a=a)
        self._check_coefficients(likelihoods, c)
        return c

    def coefficients(self, likelihoods: Likelihoods, *, q: Array, pi: Array, a: Array) -> Array:
        """Return c = λ · factor, without checking any value."""
        factor = self.factor(likelihoods, q=q, pi=pi, a=a)
        check_lambda_shape(self.lambda_, tuple(factor.shape))
        return lead(like(self.lambda_, factor), factor.ndim) * factor

    def _check_coefficients(self, likelihoods: Likelihoods, c: Array) -> None:
        if is_concrete(c):
            remedy = "Use a trace that clips the ratio, such as `ot.Retrace`."
            infinite = ~likelihoods.xp.isfinite(c)
            raise_where(infinite, "mu_a", "must not make π/μ overflow", c, remedy, verb="c is")


def checked_likelihoods(trace: Trace, *given: Array | None) -> Likelihoods:
    """Return `pi_a, mu_a, log_pi_a, log_mu_a` as arrays, after checking that the trace can be computed from them."""
    likelihoods = as_likelihoods(*given)
    _check_inputs(trace, likelihoods)
    check_likelihoods(likelihoods, reads_mu=trace.reads_mu, tol=tolerance(*likelihoods))
    return likelihoods


def _check_inputs(trace: Trace, likelihoods: Likelihoods) -> None:
    _, pi_a, mu_a, log_pi_a, log_mu_a = likelihoods
    name = trace.name
    if pi_a is None and log_pi_a is None:
        raise TypeError(f"{name} is called with `pi_a=` (or `log_pi_a=`); neither was given.")
    if trace.needs_mu and mu_a is None and log_mu_a is None:
        raise TypeError(f"{name} needs μ(a_t|x_t): give `mu_a=` (or `log_mu_a=`), as it was when a_t was drawn.")
    if trace.needs_mu and (pi_a is None) != (mu_a is None):
        raise TypeError(f"{name} takes `pi_a` with `mu_a`, or `log_pi_a` with `log_mu_a`, not one of each.")
    shapes = {tuple(value.shape) for value in likelihoods[1:] if value is not None}
    if len(shapes) > 1:
        arrays = likelihoods._asdict().items()
        given = ", ".join(f"`{k}` {tuple(v.shape)}" for k, v in arrays if k != "xp" and v is not None)
        raise ValueError(f"{name} takes arrays of one shape; got {given}.")
