"""`analyze`: which traces are safe and efficient for an MDP, π, μ, γ and λ."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offtrace.mdp import CountedMDP, FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import bellman
from offtrace.operators.trajectories import horizon
from offtrace.safety.analysis import Analysis
from offtrace.safety.measures import (
    BY_THEOREM,
    DIVERGES,
    HERE,
    UNKNOWN,
    Problem,
    SafetyRow,
    largest_lambda,
    markov_row,
    trajectory_aware_rows,
)
from offtrace.traces import TRACES, FunctionTrace, Trace, TrajectoryAware, as_trace

__all__ = ["BY_THEOREM", "DIVERGES", "HERE", "UNKNOWN", "Analysis", "SafetyRow", "analyze"]

LAMBDAS = (0.5, 0.9, 1.0)
MAX_STATES_FOR_THRESHOLDS = 400
"""Limit on the states up to which the largest λ that converges is searched for."""
SAMPLES = 40_000
"""Trajectories over all (x, a) for the traces that have to be sampled."""
MAX_SAMPLED_STEPS = 100_000_000
"""Traces that need more sampled steps are left out unless they are named."""


def __dir__() -> list[str]:
    return __all__


def analyze(
    model: FiniteMDP | CountedMDP,
    *,
    pi: Any,
    mu: Any = None,
    traces: Sequence[str | type[Trace] | Trace | Callable[..., Any]] | None = None,
    lambdas: Sequence[float] = LAMBDAS,
    q: Any = None,
    accuracy: float = 0.01,
    num_trajectories: int | None = None,
    seed: np.random.Generator | int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Return the safety table: for every trace and λ, whether R converges, how fast, and the variance of its samples.

    Args:
        model: An MDP, or one counted from data (`ot.mdp.from_data`), which brings its own μ.
        pi: Target policy (X, A).
        mu: Behaviour policy (X, A).
        traces: Names, classes, values (with their own λ) or functions, as in `ot.as_trace`; default all of
            `ot.TRACES`.
        lambdas: The λs for names and classes.
        q: The Q from which targets are made, default 0. It also decides what is greedy for Watkins' traces, by
            default Q^π.
        accuracy: Share of the initial error at which R has converged.
        num_trajectories: Trajectories per (x, a) for trajectory-aware traces. They are computed exactly where
            episodes end within a few steps, and sampled elsewhere. Where sampling would take minutes they are left
            out, unless they are named in `traces`.
        seed: Random seed, or a NumPy generator.
        progress: Called with the number of rows done and the number of all.

    >>> from offtrace import mdp, policies
    >>> model = mdp.chain(num_states=5, gamma=0.9)
    >>> mu = np.full(model.shape, 0.5)
    >>> analysis = analyze(model, pi=policies.greedy(bellman.q_star(model)), mu=mu, traces=["retrace", "q_lambda"])
    >>> analysis.row("retrace", 1.0).verdict
    'by theorem'
    """
    counted = model if isinstance(model, CountedMDP) else None
    mdp = model.mdp if isinstance(model, CountedMDP) else model
    if mu is None:
        if counted is None:
            raise TypeError("`mu` must be given: the policy that collects the data, (X, A).")
        mu = counted.mu
    pi = checked_policy(pi, mdp.shape, "pi")
    mu = checked_policy(mu, mdp.shape, "mu")
    if not 0 < accuracy < 1:
        raise ValueError(f"`accuracy` must be in (0, 1), as a share of the initial error; got {accuracy}.")
    q_pi = bellman.q_pi(mdp, pi)
    start = np.zeros(mdp.shape) if q is None else bellman.values(mdp, q)
    greedy_q = q_pi if q is None else start
    problem = Problem(mdp, pi, mu, start, q_pi, greedy_q, accuracy)
    asked = _asked(traces, lambdas)
    per_pair = num_trajectories or int(np.clip(SAMPLES // mdp.r.size, 20, 2000))
    left_out: tuple[str, ...] = ()
    if traces is None and per_pair * mdp.r.size * horizon(mdp.gamma) > MAX_SAMPLED_STEPS:
        left_out = tuple(name for name, cls in TRACES.items() if not cls.markov)
        asked = [one for one in asked if one[0] not in left_out]
    markov = [(name, lambda_, trace) for name, lambda_, trace in asked if not isinstance(trace, TrajectoryAware)]
    aware = [(name, lambda_, trace) for name, lambda_, trace in asked if isinstance(trace, TrajectoryAware)]
    rows = {}
    for done, (name, lambda_, trace) in enumerate(markov):
        rows[name, lambda_] = markov_row(problem, name, lambda_, trace)
        if progress:
            progress(done + 1, len(asked))
    generator = np.random.default_rng(seed)
    for row in trajectory_aware_rows(problem, aware, num_trajectories=per_pair, rng=generator):
        rows[row.trace, row.lambda_] = row
    if progress:
        progress(len(asked), len(asked))
    off_policyness = abs(pi - mu).sum(1)
    if counted is not None:
        off_policyness = off_policyness[~counted.unvisited]
    ordered = tuple(rows[name, lambda_] for name, lambda_, _ in asked)
    return Analysis(
        mdp=mdp,
        pi=pi,
        mu=mu,
        accuracy=accuracy,
        rows=ordered,
        off_policyness=float(off_policyness.max(initial=0)),
        largest_lambdas=_thresholds(problem, asked, ordered),
        num_trajectories=per_pair if any(row.sampled for row in ordered) else 0,
        counted=counted,
        left_out=left_out,
    )


def _asked(traces: Sequence[Any] | None, lambdas: Sequence[float]) -> list[tuple[str, float | None, Trace]]:
    """Return names, λs and traces, in the order of the table."""
    if not len(lambdas):
        raise ValueError("`lambdas` must not be empty.")
    found: dict[tuple[str, float | None], Trace] = {}
    for given in TRACES.values() if traces is None else traces:
        trace = as_trace(given)
        family = [trace]
        if trace.has_lambda and not isinstance(given, Trace):
            family = [trace.with_lambda(lambda_) for lambda_ in lambdas]
        for member in family:
            lambda_ = None if member.lambda_ is None else float(member.lambda_)
            other = found.setdefault((member.name, lambda_), member)
            if type(other) is not type(member) or (isinstance(other, FunctionTrace) and other != member):
                raise ValueError(
                    f"`traces` must have different names; got {member.name!r} twice. Give your own another `name`."
                )
            found[member.name, lambda_] = member
    return [(name, lambda_, trace) for (name, lambda_), trace in found.items()]


def _thresholds(
    problem: Problem, asked: list[tuple[str, float | None, Trace]], rows: tuple[SafetyRow, ...]
) -> dict[str, float]:
    """Return, for each trace that is not safe by theorem, the largest λ up to which iterating R converges."""
    if problem.mdp.num_states > MAX_STATES_FOR_THRESHOLDS:
        return {}
    covered = {row.trace for row in rows} - {row.trace for row in rows if row.verdict != BY_THEOREM}
    values = {name: trace for name, _, trace in asked if trace.has_lambda and trace.markov}
    return {name: largest_lambda(problem, trace.with_lambda) for name, trace in values.items() if name not in covered}
