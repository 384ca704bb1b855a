"""`estimate`: what a target policy would earn, from a log of another one, by every estimator at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offtrace.evaluation import importance
from offtrace.evaluation.behaviour import EstimatedBehaviour, estimate_behaviour, folds_of
from offtrace.evaluation.diagnostics import Diagnostics, diagnose
from offtrace.evaluation.fitted import Fitted, Steps, fit, influence, steps_of
from offtrace.evaluation.log import Log
from offtrace.traces import OneStep, Trace, as_trace

ESTIMATORS = ("is", "wis", "pdis", "wpdis", "dr", "wdr", "fqe")
TITLES = {
    "is": "importance sampling",
    "wis": "weighted importance sampling",
    "pdis": "per-decision importance sampling",
    "wpdis": "weighted per-decision importance sampling",
    "dr": "doubly robust",
    "wdr": "weighted doubly robust",
    "fqe": "fitted Q evaluation (one step)",
}


@dataclass(frozen=True)
class ValueEstimate:
    """The value of the target policy at the start of an episode, by one estimator."""

    name: str
    title: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    """By asymptotics: value ± z · standard error."""
    bootstrap: tuple[float, float]
    """Percentiles over episodes drawn with replacement."""
    note: str = ""
    """Why the number should not be trusted, if it should not."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All estimates of one target policy from one log."""

    estimates: tuple[ValueEstimate, ...]
    gamma: float
    confidence: float
    logged_value: float
    """Mean discounted return of the log itself: the value of the behaviour policy."""
    diagnostics: Diagnostics
    behaviour: EstimatedBehaviour | None
    """The estimated μ; None where the log has it."""
    q: np.ndarray | None
    """(X, A) Q^π by the trace, for a log of states; 0 where a pair was never seen."""
    influence: dict[str, np.ndarray]
    """(E,) per estimator, for paired comparisons."""

    def __getitem__(self, name: str) -> ValueEstimate:
        for found in self.estimates:
            if found.name == name:
                return found
        raise KeyError(f"no estimate {name!r}; there are {', '.join(one.name for one in self.estimates)}.")

    def __repr__(self) -> str:
        rows = ", ".join(f"{one.name} {one.value:.4g}" for one in self.estimates)
        return f"Evaluation({rows})"


def estimate(
    log: Log,
    *,
    target: Any,
    gamma: float,
    trace: Any = "retrace",
    lambda_: float | None = None,
    traces: Sequence[Any] = (),
    estimators: Sequence[str] = ESTIMATORS,
    num_folds: int = 5,
    num_bootstrap: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """Estimate the value of a target policy π from a log.

    Args:
        log: Episodes of one or several behaviour policies.
        target: π as a table (X, A).
        gamma: Discount γ in [0, 1].
        trace: Trace of the fitted evaluation whose Q is returned: a name, a class, a value or a function.
        lambda_: λ of a trace given by name or class.
        traces: More traces to show beside it.
        estimators: Names among `ESTIMATORS`, to show beside the traces.
        num_folds: Folds of episodes, for an estimated μ and for the model of the doubly robust forms.
        num_bootstrap: Bootstrap samples.
        confidence: Coverage of the intervals.
        seed: Random seed of folds and bootstrap samples.
    """
    pi = _table(target, log)
    if not 0 <= gamma <= 1:
        raise ValueError(f"`gamma` must be in [0, 1]; got {gamma!r}.")
    behaviour = None
    mu_a = log.mu_a
    if mu_a is None:
        behaviour = estimate_behaviour(log, pi.shape[1], num_folds=num_folds, seed=seed)
        mu_a = behaviour.mu_a
    chosen = [as_trace(trace, lambda_), *(as_trace(one) for one in traces)]
    steps = steps_of(log, gamma, *pi.shape)
    rho = importance.step_ratios(log, pi[log.state, log.action], mu_a)
    u = _draws(log.num_episodes, num_bootstrap, seed)
    found: dict[str, importance.Estimate] = {}
    notes: dict[str, str] = {}
    titles = dict(TITLES)
    q = None
    for one in chosen:
        fitted = fit(log, steps, one, pi=pi, mu_a=mu_a)
        name = repr(one)
        titles[name] = one.title
        found[name] = _of_fit(log, steps, one, fitted, pi, mu_a, u)
        if not fitted.converged:
            notes[name] = f"did not settle in {fitted.num_sweeps} sweeps"
        q = fitted.q if q is None else q
    if "fqe" in estimators:
        fitted = fit(log, steps, OneStep(), pi=pi, mu_a=mu_a)
        found["fqe"] = _of_fit(log, steps, OneStep(), fitted, pi, mu_a, u)
    found |= _by_weights(log, rho, gamma, u, estimators, lambda: _corrections(log, steps, pi, num_folds, seed))
    logged = importance.ordinary(log, np.ones(log.num_steps), gamma, u)
    return Evaluation(
        estimates=tuple(
            _row(name, titles[name], one, confidence, notes.get(name, "")) for name, one in found.items()
        ),
        gamma=gamma,
        confidence=confidence,
        logged_value=logged.value,
        diagnostics=diagnose(log, rho, gamma, pi),
        behaviour=behaviour,
        q=q,
        influence={name: one.influence for name, one in found.items()},
    )


def _table(target: Any, log: Log) -> np.ndarray:
    pi = np.asarray(target, np.float64)
    if log.state is None:
        raise ValueError("`log` must have states for a target table (X, A); it has observations.")
    if pi.ndim != 2 or not np.isfinite(pi).all() or (pi < 0).any() or (abs(pi.sum(axis=1) - 1) > 1e-6).any():
        raise ValueError(
            f"`target` must be a table (X, A) of probabilities whose rows sum to 1; got shape {pi.shape}."
        )
    largest = int(log.state.max()) if log.successor is None else int(max(log.state.max(), log.successor.max()))
    if largest >= pi.shape[0] or int(log.action.max()) >= pi.shape[1]:
        raise ValueError(
            f"`target` must have a row per state and a column per action of the log, at least "
            f"({largest + 1}, {int(log.action.max()) + 1}); got {pi.shape}."
        )
    return pi


def _draws(num_episodes: int, num_bootstrap: int, seed: int) -> np.ndarray:
    """Return how often each bootstrap sample draws each episode, (E, B)."""
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(num_episodes, np.full(num_episodes, 1 / num_episodes), size=num_bootstrap)
    return np.ascontiguousarray(draws.T, np.float64)


def _by_weights(
    log: Log,
    rho: np.ndarray,
    gamma: float,
    u: np.ndarray,
    estimators: Sequence[str],
    model: Callable[[], importance.Corrections],
) -> dict[str, importance.Estimate]:
    plain = {
        "is": importance.ordinary,
        "wis": importance.weighted,
        "pdis": importance.per_decision,
        "wpdis": importance.weighted_per_decision,
    }
    robust = {"dr": importance.doubly_robust, "wdr": importance.weighted_doubly_robust}
    found = {name: function(log, rho, gamma, u) for name, function in plain.items() if name in estimators}
    if any(name in estimators for name in robust):
        corrections = model()
        found |= {name: run(log, rho, gamma, u, corrections) for name, run in robust.items() if name in estimators}
    return found


def _corrections(log: Log, steps: Steps, pi: np.ndarray, num_folds: int, seed: int) -> importance.Corrections:
    """Return V̂ and the TD errors of Q̂, where the Q̂ of an episode was fitted to the episodes of other folds."""
    folds = folds_of(log.num_episodes, num_folds, seed)
    start = np.empty(log.num_episodes)
    error = np.empty(log.num_steps)
    rows = np.repeat(folds, log.lengths)
    for fold in range(int(folds.max()) + 1):
        inside = folds == fold
        weights = np.where(inside, 0.0, 1.0) if len(np.unique(folds)) > 1 else None
        q = fit(log, steps, OneStep(), pi=pi, mu_a=None, weights=weights).q
        value = (pi * q).sum(axis=1)
        start[inside] = value[steps.pair[log.first[:-1]][inside] // steps.num_actions]
        here = rows == fold
        ahead = np.where(steps.mask, steps.discount * value[steps.successor], 0.0)
        error[here] = (log.reward + ahead - q.ravel()[steps.pair])[here]
    return importance.Corrections(start, error)


def _of_fit(
    log: Log, steps: Steps, trace: Trace, fitted: Fitted, pi: np.ndarray, mu_a: np.ndarray, u: np.ndarray
) -> importance.Estimate:
    value = (pi * fitted.q).sum(axis=1)[steps.pair[log.first[:-1]] // steps.num_actions].mean()
    moved = influence(log, steps, trace, fitted, pi=pi, mu_a=mu_a)
    return importance.Estimate(float(value), value + (moved @ u) / log.num_episodes, moved)


def _row(name: str, title: str, found: importance.Estimate, confidence: float, note: str) -> ValueEstimate:
    from scipy.stats import norm

    num_episodes = len(found.influence)
    error = float(found.influence.std(ddof=1) / np.sqrt(num_episodes)) if num_episodes > 1 else float("nan")
    reach = float(norm.ppf((1 + confidence) / 2)) * error
    low, high = np.quantile(found.samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ValueEstimate(
        name=name,
        title=title,
        value=found.value,
        standard_error=error,
        interval=(found.value - reach, found.value + reach),
        bootstrap=(float(low), float(high)),
        note=note,
    )
