"""Which traces are safe and efficient for this MDP, π, μ, γ and λ: `analyze`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offtrace.mdp import CountedMDP, FiniteMDP
from offtrace.mdp.finite import checked_policy
from offtrace.operators import bellman
from offtrace.operators.trajectories import horizon
from offtrace.safety.analysis import Analysis
from offtrace.safety.rows import (
    BY_THEOREM,
    Row,
    Setting,
    largest_lambda,
    markov_row,
    trajectory_aware_rows,
)
from offtrace.traces import TRACES, Trace, TrajectoryAware, as_trace

__all__ = ["Analysis", "Row", "analyze"]

LAMBDAS = (0.5, 0.9, 1.0)
MAX_STATES_FOR_THRESHOLDS = 400


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
    rng: np.random.Generator | int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """The safety table: for every trace and λ, does R converge here, how fast, and how much do its samples vary?

    `model` is an MDP, or one counted from data (`ot.mdp.from_data`), which brings its own μ. `traces` are names,
    classes, values (with their own λ) or functions, as in `ot.as_trace`; all of `ot.TRACES` unless given. Targets are
    made from `q`, zeros unless given; what Watkins' traces call greedy is `q`, or Q^π unless given. Trajectory-aware
    traces are computed exactly where episodes end within a few steps and sampled otherwise, `num_trajectories` from
    every (x, a); where that would take minutes they are left out, unless they are named.

    >>> from offtrace import mdp, policies
    >>> model = mdp.chain(num_states=5, gamma=0.9)
    >>> mu = np.full(model.shape, 0.5)
    >>> analysis = analyze(model, pi=policies.greedy(bellman.q_star(model)), mu=mu, traces=["retrace", "q_lambda"])
    >>> analysis.row("retrace", 1.0).verdict
    'by theorem'
    """
    mdp, counted = (model.mdp, model) if isinstance(model, CountedMDP) else (model, None)
    if mu is None:
        if counted is None:
            raise TypeError("`mu` must be given: the policy that collects the data, (X, A).")
        mu = counted.mu
    pi, mu = checked_policy(pi, mdp.shape, "pi"), checked_policy(mu, mdp.shape, "mu")
    if not 0 < accuracy < 1:
        raise ValueError(f"`accuracy` must be in (0, 1), a share of the first error; got {accuracy}.")
    q_pi = bellman.q_pi(mdp, pi)
    start = np.zeros(mdp.shape) if q is None else bellman.values(mdp, q)
    greedy_q = q_pi if q is None else start
    setting = Setting(mdp, pi, mu, start, q_pi, greedy_q, accuracy)
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
        rows[name, lambda_] = markov_row(setting, name, lambda_, trace)
        if progress:
            progress(done + 1, len(asked))
    generator = np.random.default_rng(rng)
    for row in trajectory_aware_rows(setting, aware, num_trajectories=per_pair, rng=generator):
        rows[row.trace, row.lambda_] = row
    if progress:
        progress(len(asked), len(asked))
    ordered = tuple(rows[name, lambda_] for name, lambda_, _ in asked)
    return Analysis(
        mdp=mdp,
        pi=pi,
        mu=mu,
        accuracy=accuracy,
        rows=ordered,
        off_policyness=float(abs(pi - mu).sum(1)[_known_states(mdp, counted)].max(initial=0)),
        largest_lambdas=_thresholds(setting, asked, ordered),
        num_trajectories=per_pair if any(row.sampled for row in ordered) else 0,
        counted=counted,
        left_out=left_out,
    )


SAMPLES = 40_000
"""Trajectories for the traces that have to be sampled, over all (x, a)."""
MAX_SAMPLED_STEPS = 100_000_000
"""More than these, and traces that have to be sampled are left out unless they are named."""


def _known_states(mdp: FiniteMDP, counted: CountedMDP | None) -> np.ndarray:
    return np.ones(mdp.num_states, bool) if counted is None else ~counted.unvisited


def _asked(traces: Sequence[Any] | None, lambdas: Sequence[float]) -> list[tuple[str, float | None, Trace]]:
    """Names, λs and traces, in the order of the table."""
    if not len(lambdas):
        raise ValueError("`lambdas` must have at least one λ.")
    found: dict[tuple[str, float | None], Trace] = {}
    for given in TRACES.values() if traces is None else traces:
        trace = as_trace(given)
        family = [trace]
        if trace.has_lambda and not isinstance(given, Trace):
            family = [trace.with_lambda(lambda_) for lambda_ in lambdas]
        for member in family:
            lambda_ = None if member.lambda_ is None else float(member.lambda_)
            found[member.name, lambda_] = member
    return [(name, lambda_, trace) for (name, lambda_), trace in found.items()]


def _thresholds(
    setting: Setting, asked: list[tuple[str, float | None, Trace]], rows: tuple[Row, ...]
) -> dict[str, float]:
    """For each trace that is not safe by theorem here: the largest λ up to which iterating R converges."""
    if setting.mdp.num_states > MAX_STATES_FOR_THRESHOLDS:
        return {}
    covered = {row.trace for row in rows} - {row.trace for row in rows if row.verdict != BY_THEOREM}
    values = {name: trace for name, _, trace in asked if trace.has_lambda and trace.markov}
    return {name: largest_lambda(setting, trace.with_lambda) for name, trace in values.items() if name not in covered}
