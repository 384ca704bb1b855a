"""The rows of the safety table: for a trace at one λ, the convergence of R and the cost of its samples.

Q_{k+1} = R Q_k multiplies the error Q_k − Q^π by a matrix A. Its norm bounds the growth of the
largest error in one step; its spectral radius decides whether iterating converges.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.operators import bellman, general, products, spectrum, trajectories
from offtrace.traces import WITHOUT_LAMBDA, Trace, TrajectoryAware

BY_THEOREM, HERE, DIVERGES, UNKNOWN = "by theorem", "here", "diverges", "unknown"
ROUNDING = 1e-10
"""w may exceed π by this much and still count as w ≤ π."""


@dataclass(frozen=True)
class SafetyRow:
    """A trace at one λ, for one MDP, π and μ."""

    trace: str
    lambda_: float | None
    """None for a user's own function."""
    verdict: str
    """`by theorem`: c ≤ π/μ, so Theorem 1 holds. `here`: not covered by it, but iterating R converges. `diverges`.
    `unknown`: the MDP is too large to tell."""
    contraction: float | None
    """‖A‖: the largest factor by which one step multiplies the error; max η where Theorem 1 holds. An upper bound
    where the MDP is large and Theorem 1 does not hold. None if it is not known."""
    radius: float | None
    """Spectral radius of A: the factor per step in the long run. None where the MDP is large."""
    iterations: float | None
    """Iterations of R until the error is `accuracy` of the initial one, from any Q; None if it is not known."""
    variance_radius: float | None
    """Spectral radius of γ²P^{c²μ}; if it is below 1, every variance is finite. None if it was not computed."""
    trace_variance: float
    """Variance of Σ_t γ^t c_1…c_t, averaged over (x, a)."""
    target_variance: float
    """Variance of a sampled target, averaged over (x, a)."""
    cost: float
    """Upper bound of the samples per (x, a) until every error is within accuracy; see `docs/safety.md`."""
    sampled: bool = False
    """Whether the contraction was estimated from trajectories; the variances of a trajectory-aware trace always
    are."""
    standard_error: float = 0.0
    """Standard error of `contraction`, where it was sampled."""
    eta: np.ndarray | None = field(default=None, repr=False, compare=False)
    """η(x, a), Remark 1, (X, A)."""

    @property
    def label(self) -> str:
        """The trace with its λ, such as `retrace(0.9)`."""
        if self.lambda_ is None or self.trace in WITHOUT_LAMBDA:
            return self.trace
        return f"{self.trace}({self.lambda_:g})"

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON; infinity is `"inf"`."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "eta"}
        return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


@dataclass(frozen=True)
class Problem:
    """What all rows of a table share."""

    mdp: FiniteMDP
    pi: np.ndarray
    mu: np.ndarray
    q: np.ndarray
    """The Q from which targets are made."""
    q_pi: np.ndarray
    """The fixed point Q^π."""
    greedy_q: np.ndarray
    """The Q that decides what is greedy for Watkins' traces."""
    accuracy: float

    @property
    def scale(self) -> float:
        """The initial error, ‖Q − Q^π‖."""
        return float(abs(self.q - self.q_pi).max())

    def iterations(self, norms: Iterator[float], rate: float | None) -> float | None:
        """Return the least k with ‖Aᵏ‖ ≤ accuracy; beyond the given norms it is extrapolated by the rate."""
        norm, k = 1.0, 0
        for k, norm in enumerate(itertools.islice(norms, MAX_POWERS), start=1):
            if norm <= self.accuracy:
                return float(k)
        if rate is None:
            return None
        if rate >= 1:
            return math.inf
        if rate == 0:
            return k + 1.0
        return k + float(math.ceil(math.log(self.accuracy / norm) / math.log(rate)))

    def cost(self, iterations: float | None, variance: float) -> float:
        """Return iterations × the samples per iteration that keep the noise within accuracy: an upper bound.

        The noise of all iterations adds up to at most 1/(1 − rate) times that of one. `variance` is
        the largest over (x, a), at Q or at Q^π. As the noise is counted as if it always had the
        same sign, the bound may be hundreds of times too high.
        """
        if iterations is None or not math.isfinite(iterations + variance):
            return math.inf
        within = self.accuracy * self.scale * (1 - self.accuracy ** (1 / iterations))
        if within == 0:
            return math.inf if variance else iterations
        noise = math.sqrt(variance) / within
        return iterations * max(1.0, noise * noise)


MAX_POWERS = 500
"""Norms ‖Aᵏ‖ computed before the number of iterations is extrapolated."""


def markov_row(problem: Problem, name: str, lambda_: float | None, trace: Trace) -> SafetyRow:
    """Return the row of a Markov trace, computed exactly by linear algebra."""
    mdp, pi, mu = problem.mdp, problem.pi, problem.mu
    c = general.coefficients_of(mdp, pi, mu, trace, problem.greedy_q)
    w = mu * c
    covered = bool((w <= pi + ROUNDING).all())
    eta = general.eta_of(mdp, w)
    small = products.is_small(mdp)
    radius = spectrum.contraction_radius(mdp, pi, w) if small else None
    norms = spectrum.contraction_norms(mdp, pi, w) if radius is not None and radius < 1 else iter(())
    norm = float(eta.max()) if covered else next(spectrum.contraction_norms(mdp, pi, w), None)
    if norm is None:
        norm = spectrum.contraction_bound(mdp, pi, w)
    rate = radius
    if not small and norm < 1:
        rate = norm
    iterations = problem.iterations(norms, rate)
    verdict = BY_THEOREM if covered else _verdict(rate)
    target, settled = (general.moments(mdp, q, pi, mu, c) for q in (problem.q, problem.q_pi))
    products_of_traces = general.moments(mdp, None, pi, mu, c)
    largest = float(np.maximum(target.variance, settled.variance).max())
    return SafetyRow(
        trace=name,
        lambda_=lambda_,
        verdict=verdict,
        contraction=norm,
        radius=radius,
        iterations=iterations,
        variance_radius=target.radius,
        trace_variance=float(products_of_traces.variance.mean()),
        target_variance=float(target.variance.mean()),
        cost=problem.cost(iterations, largest),
        eta=eta,
    )


def _verdict(rate: float | None) -> str:
    """Return the verdict on a trace that Theorem 1 does not cover."""
    if rate is None:
        return UNKNOWN
    return HERE if rate < 1 else DIVERGES


def trajectory_aware_rows(
    problem: Problem,
    named: Sequence[tuple[str, float | None, TrajectoryAware]],
    *,
    num_trajectories: int,
    rng: np.random.Generator,
) -> list[SafetyRow]:
    """Return the rows of trajectory-aware traces.

    The contraction is exact where all paths can be followed, and sampled elsewhere; variances are
    always sampled.
    """
    if not named:
        return []
    mdp, pi, mu = problem.mdp, problem.pi, problem.mu
    num_pairs = mdp.num_states * mdp.num_actions
    traces = [trace for _, _, trace in named]
    samples = trajectories.sample(
        mdp,
        [problem.q, problem.q_pi],
        pi=pi,
        mu=mu,
        traces=traces,
        num_trajectories=num_trajectories,
        rng=rng,
        with_reach=num_pairs <= MAX_SAMPLED_PAIRS,
    )
    stops = (1 - mdp.gamma * products.continuing_mass(mdp)).ravel()
    rows = []
    for (name, lambda_, trace), sampled in zip(named, samples, strict=True):
        error = 0.0
        try:
            reach: np.ndarray | None = trajectories.reach(mdp, pi=pi, mu=mu, trace=trace, max_paths=FEW_PATHS)
        except ValueError:
            reach = None
        exact = reach is not None
        if exact:
            eta = 1 - reach @ stops
        else:
            reach, eta = sampled.reach, 1 - sampled.stops.mean(1)
            error = float(sampled.stops[eta.argmax()].std(ddof=1)) / math.sqrt(num_trajectories)
        contraction, radius = float(eta.max()) if trace.safe else None, None
        norms: Iterator[float] = iter(())
        if reach is not None and num_pairs <= MAX_SAMPLED_PAIRS:
            matrix = np.eye(num_pairs) - reach + mdp.gamma * reach @ bellman.weighted(mdp, pi)
            radius = float(abs(np.linalg.eigvals(matrix)).max())
            norms = _powers(matrix, not_negative=trace.safe)
            contraction = contraction if trace.safe else float(abs(matrix).sum(1).max())
        iterations = problem.iterations(norms, radius)  # max η is not a rate: it is the largest of many noisy numbers
        verdict = BY_THEOREM if trace.safe else _verdict(radius)
        variances = sampled.correction.var(axis=2, ddof=1)
        rows.append(
            SafetyRow(
                trace=name,
                lambda_=lambda_,
                verdict=verdict,
                contraction=contraction,
                radius=radius,
                iterations=iterations,
                variance_radius=None,
                trace_variance=float(sampled.trace.var(axis=1, ddof=1).mean()),
                target_variance=float(variances[0].mean()),
                cost=problem.cost(iterations, float(variances.max())),
                sampled=not exact,
                standard_error=error,
                eta=eta.reshape(mdp.shape),
            )
        )
    return rows


def _powers(matrix: np.ndarray, *, not_negative: bool) -> Iterator[float]:
    """Yield ‖A‖, ‖A²‖, …"""
    power = matrix.sum(1, keepdims=True) if not_negative else matrix
    while True:
        yield float(abs(power).sum(1).max())
        power = matrix @ power


FEW_PATHS = 100_000
"""Limit on the distinct paths followed exactly."""
MAX_SAMPLED_PAIRS = 600
"""Limit on the pairs (x, a) up to which the whole matrix A of a trajectory-aware trace is estimated."""


def largest_lambda(problem: Problem, make: Callable[[float], Trace]) -> float:
    """Return the largest λ up to which iterating R converges, to 1e-3: in steps of 0.1, then by bisection."""

    def diverges(lambda_: float) -> bool:
        c = general.coefficients_of(problem.mdp, problem.pi, problem.mu, make(lambda_), problem.greedy_q)
        w = problem.mu * c
        return spectrum.contraction_radius(problem.mdp, problem.pi, w) >= 1

    good, bad = 0.0, None
    for lambda_ in np.linspace(0.1, 1, 10):
        if diverges(float(lambda_)):
            bad = float(lambda_)
            break
        good = float(lambda_)
    while bad is not None and bad - good > 1e-3:
        middle = (good + bad) / 2
        if diverges(middle):
            bad = middle
        else:
            good = middle
    return good
