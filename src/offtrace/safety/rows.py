"""One row of the safety table: a trace at one λ, what R does with it here, and what its samples cost.

Q_{k+1} = R Q_k multiplies the error Q_k − Q^π by a matrix A. Its norm says how much one step can stretch or shrink
the largest error; its spectral radius says whether iterating converges at all.
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


@dataclass(frozen=True)
class Row:
    """A trace at one λ, for one MDP, π and μ."""

    trace: str
    lambda_: float | None
    """None where the trace is a user's function."""
    verdict: str
    """`by theorem`: c ≤ π/μ here, so Theorem 1 holds. `here`: not covered, but iterating R converges. `diverges`.
    `unknown`: too large to say."""
    contraction: float | None
    """‖A‖: an error never grows by more than this factor in one step; max η where Theorem 1 holds. An upper bound
    where the MDP is large and Theorem 1 does not hold. None where it is not known."""
    radius: float | None
    """Spectral radius of A: the factor of a step in the long run. None where the MDP is large."""
    iterations: float | None
    """Of R until the error is `accuracy` of what it was, from whatever Q it starts; None where it is not known."""
    variance_radius: float | None
    """Spectral radius of γ²P^{c²μ}; below 1 every variance is finite. None where it was not computed."""
    trace_variance: float
    """Of Σ_t γ^t c_1…c_t, averaged over (x, a)."""
    target_variance: float
    """Of a sampled target, averaged over (x, a)."""
    cost: float
    """At most so many samples for each (x, a) until every error is within accuracy: the bound in `docs/safety.md`."""
    sampled: bool = False
    """The contraction was estimated from trajectories, not computed; the variances of a trajectory-aware trace
    always are."""
    standard_error: float = 0.0
    """Of `contraction`, where it was sampled."""
    eta: np.ndarray | None = field(default=None, repr=False, compare=False)
    """η(x, a), Remark 1, (X, A)."""

    @property
    def label(self) -> str:
        if self.lambda_ is None or self.trace in WITHOUT_LAMBDA:
            return self.trace
        return f"{self.trace}({self.lambda_:g})"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, which has no infinity: `"inf"`."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "eta"}
        return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value


@dataclass(frozen=True)
class Setting:
    """What the rows of one table share."""

    mdp: FiniteMDP
    pi: np.ndarray
    mu: np.ndarray
    q: np.ndarray
    """Where the targets are made."""
    q_pi: np.ndarray
    """Where they end up."""
    greedy_q: np.ndarray
    """What Watkins' traces call greedy."""
    accuracy: float

    @property
    def scale(self) -> float:
        """‖Q − Q^π‖, what there is to learn."""
        return float(abs(self.q - self.q_pi).max())

    def iterations(self, norms: Iterator[float], rate: float | None) -> float | None:
        """The least k with ‖Aᵏ‖ ≤ accuracy, from whatever Q; beyond the norms that are given, as the rate says."""
        norm, k = 1.0, 0
        for k, norm in enumerate(itertools.islice(norms, MAX_POWERS), start=1):
            if norm <= self.accuracy:
                return float(k)
        if rate is None:
            return None
        if rate >= 1:
            return math.inf
        return k + float(math.ceil(math.log(self.accuracy / norm) / math.log(rate))) if rate else k + 1.0

    def cost(self, iterations: float | None, variance: float) -> float:
        """Iterations × the samples that keep the noise of each, which piles up to 1/(1 − rate), within accuracy.

        `variance` is the largest of any (x, a), at Q or at Q^π: an error is a maximum, and so is its noise. The noise
        of all iterations counts as if it had one sign, so this is a bound, and may be hundreds of times too high.
        """
        if iterations is None or not math.isfinite(iterations + variance):
            return math.inf
        within = self.accuracy * self.scale * (1 - self.accuracy ** (1 / iterations))
        noise = math.sqrt(variance) / within if within else math.inf if variance else 0.0
        return iterations * max(1.0, noise * noise)


MAX_POWERS = 500


def markov_row(setting: Setting, name: str, lambda_: float | None, trace: Trace) -> Row:
    """Exactly, by linear algebra."""
    mdp, pi, mu = setting.mdp, setting.pi, setting.mu
    given: dict[str, Any] = {"pi": pi, "mu": mu, "trace": trace, "q": setting.greedy_q}
    c = general.coefficients(mdp, **given)
    w = mu * c
    covered = bool((w <= pi + ROUNDING).all())
    eta = general.eta(mdp, **given)
    small = products.is_small(mdp)
    radius = spectrum.contraction_radius(mdp, pi, w) if small else None
    norms = spectrum.contraction_norms(mdp, pi, w) if radius is not None and radius < 1 else iter(())
    norm = float(eta.max()) if covered else next(spectrum.contraction_norms(mdp, pi, w), None)
    norm = spectrum.contraction_bound(mdp, pi, w) if norm is None else norm
    rate = radius if small else norm if norm < 1 else None
    iterations = setting.iterations(norms, rate)
    verdict = BY_THEOREM if covered else UNKNOWN if rate is None else HERE if rate < 1 else DIVERGES
    target, settled = (general.moments(mdp, q, pi, mu, c) for q in (setting.q, setting.q_pi))
    products_of_traces = general.moments(mdp, None, pi, mu, c)
    largest = float(np.maximum(target.variance, settled.variance).max())
    return Row(
        trace=name,
        lambda_=lambda_,
        verdict=verdict,
        contraction=norm,
        radius=radius,
        iterations=iterations,
        variance_radius=target.radius,
        trace_variance=float(products_of_traces.variance.mean()),
        target_variance=float(target.variance.mean()),
        cost=setting.cost(iterations, largest),
        eta=eta,
    )


def trajectory_aware_rows(
    setting: Setting,
    named: Sequence[tuple[str, float | None, TrajectoryAware]],
    *,
    num_trajectories: int,
    rng: np.random.Generator,
) -> list[Row]:
    """The contraction exactly where paths can be followed, else from trajectories; the variance always from them."""
    if not named:
        return []
    mdp, pi, mu = setting.mdp, setting.pi, setting.mu
    num_pairs = mdp.num_states * mdp.num_actions
    traces = [trace for _, _, trace in named]
    samples = trajectories.sample(
        mdp,
        [setting.q, setting.q_pi],
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
        iterations = setting.iterations(norms, radius)  # the largest of many noisy η is no rate
        known = UNKNOWN if radius is None else HERE if radius < 1 else DIVERGES
        verdict = BY_THEOREM if trace.safe else known
        variances = sampled.correction.var(axis=2, ddof=1)
        rows.append(
            Row(
                trace=name,
                lambda_=lambda_,
                verdict=verdict,
                contraction=contraction,
                radius=radius,
                iterations=iterations,
                variance_radius=None,
                trace_variance=float(sampled.trace.var(axis=1, ddof=1).mean()),
                target_variance=float(variances[0].mean()),
                cost=setting.cost(iterations, float(variances.max())),
                sampled=not exact,
                standard_error=error,
                eta=eta.reshape(mdp.shape),
            )
        )
    return rows


def _powers(matrix: np.ndarray, *, not_negative: bool) -> Iterator[float]:
    """‖A‖, ‖A²‖, …"""
    power = matrix.sum(1, keepdims=True) if not_negative else matrix
    while True:
        yield float(abs(power).sum(1).max())
        power = matrix @ power


FEW_PATHS = 100_000
MAX_SAMPLED_PAIRS = 600
"""Up to this many pairs (x, a) the matrix A of a trajectory-aware trace is estimated as a whole."""


def largest_lambda(setting: Setting, make: Callable[[float], Trace]) -> float:
    """The largest λ up to which iterating R converges here, to 1e-3; looked for in steps of 0.1, then by halving."""

    def diverges(lambda_: float) -> bool:
        given = {"pi": setting.pi, "mu": setting.mu, "trace": make(lambda_), "q": setting.greedy_q}
        w = setting.mu * general.coefficients(setting.mdp, **given)
        return spectrum.contraction_radius(setting.mdp, setting.pi, w) >= 1

    good, bad = 0.0, None
    for lambda_ in np.linspace(0.1, 1, 10):
        if diverges(float(lambda_)):
            bad = float(lambda_)
            break
        good = float(lambda_)
    while bad is not None and bad - good > 1e-3:
        middle = (good + bad) / 2
        good, bad = (good, middle) if diverges(middle) else (middle, bad)
    return good
