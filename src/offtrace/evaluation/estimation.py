"""All estimates of one target policy from a log: traces, importance sampling, doubly robust forms, a verdict."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import norm

from offtrace.evaluation import importance, model
from offtrace.evaluation.bases import Mean, Table
from offtrace.evaluation.behaviour import EstimatedBehaviour, estimate_behaviour
from offtrace.evaluation.diagnostics import Diagnostics, diagnose
from offtrace.evaluation.fitted import NUM_GROUPS, Fitted, fit, gram, influence, start_values
from offtrace.evaluation.importance import EpisodeSums, Estimate
from offtrace.evaluation.parts import Engine, Part, split, total
from offtrace.evaluation.preparation import Features, prepare, standardise
from offtrace.evaluation.resampling import Resamples
from offtrace.evaluation.target import Target
from offtrace.evaluation.verdict import Verdict, judge
from offtrace.traces import TRACES, OneStep, Trace, as_trace

TITLES = {
    "is": "importance sampling",
    "wis": "weighted importance sampling",
    "pdis": "per-decision importance sampling",
    "wpdis": "weighted per-decision importance sampling",
    "dr": "doubly robust",
    "wdr": "weighted doubly robust",
    "fqe": "fitted Q evaluation (one step)",
    "model": "model counted from the log",
}
MOST_BOOTSTRAP = 100_000
"""Most bootstrap samples; with 1,000 episodes they take half a minute."""
ESTIMATORS = tuple(TITLES)
DEFAULT = ("is", "wis", "pdis", "wpdis", "dr", "wdr", "fqe")
"""In a table `fqe` and `model` are the same number, so only one is shown."""
WITH_MODEL = ("dr", "wdr")
WEIGHTED = ("is", "wis", "pdis", "wpdis")
"""Those that need no Q, and so take actions that are vectors."""


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

    target: str
    estimates: tuple[ValueEstimate, ...]
    gamma: float
    confidence: float
    logged: ValueEstimate
    """Mean discounted return of the log itself: the value of the behaviour policy, up to the cuts."""
    diagnostics: Diagnostics
    behaviour: EstimatedBehaviour | None
    """How μ was estimated; None where the log has it."""
    verdict: Verdict
    q: np.ndarray | None
    """Q^π by the first trace: (X, A) for states, 0 where a pair was never seen; (d, A) coefficients for features.

    None where actions are vectors.
    """
    influence: dict[str, np.ndarray]
    """(E,) per estimator, and of "logged": for paired comparisons."""

    def __getitem__(self, name: str) -> ValueEstimate:
        """Return an estimate by its name, or by that of its trace, "retrace", if there is only one with it."""
        named = [one for one in self.estimates if one.name == name]
        if not named and name in TRACES:
            prefix = f"{TRACES[name].__name__}("
            named = [one for one in self.estimates if one.name.startswith(prefix)]
        if len(named) != 1:
            raise KeyError(f"no estimate {name!r}; there are {', '.join(self)}.")
        return named[0]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the estimates."""
        return (one.name for one in self.estimates)

    def __repr__(self) -> str:
        rows = ", ".join(f"{one.name} {one.value:.4g}" for one in self.estimates)
        return f"Evaluation({self.target}: {rows})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON; a number that is not finite is None."""
        return finite(
            {
                "target": self.target,
                "gamma": self.gamma,
                "confidence": self.confidence,
                "verdict": asdict(self.verdict),
                "estimates": [asdict(one) for one in self.estimates],
                "logged": asdict(self.logged),
                "diagnostics": asdict(self.diagnostics),
                "behaviour": None if self.behaviour is None else asdict(self.behaviour),
            }
        )


def drawn_range(evaluations: Iterable[Evaluation]) -> tuple[float, float]:
    """Return the ends of a chart: all values, and at most one and a half usual widths around each.

    The intervals of the estimates to read are in it as a whole.
    """
    evaluations = list(evaluations)
    rows = [one for found in evaluations for one in (*found.estimates, found.logged)]
    widths = sorted(one.interval[1] - one.interval[0] for one in rows)
    reach = 1.5 * widths[len(widths) // 2]
    ends = [(max(one.interval[0], one.value - reach), min(one.interval[1], one.value + reach)) for one in rows]
    read = [found[found.verdict.estimate] for found in evaluations if found.verdict.answer != "no"]
    lows, highs = zip(*ends, *(one.interval for one in read), strict=True)
    return min(lows), max(highs)


def finite(value: Any) -> Any:
    """Return nested dicts and lists with None for every number that is not finite."""
    if isinstance(value, dict):
        return {name: finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


Progress = Callable[[float, float, str], None]
"""Is called with the number of steps done, the number of all steps, and what is done next."""


class Stages:
    """Counts the steps of an evaluation."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def next(self, description: str) -> None:
        """Tell what is done next."""
        self._progress(min(self._done, self._total), self._total, description)
        self._done += 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How estimates are made; the same for all policies that are compared."""

    gamma: float
    traces: tuple[Trace, ...]
    estimators: tuple[str, ...] = DEFAULT
    num_folds: int = 5
    num_bootstrap: int = 400
    confidence: float = 0.95
    seed: int = 0
    features: Features | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.gamma, int | float | np.floating) or not 0 <= self.gamma <= 1:
            raise ValueError(f"`gamma` must be in [0, 1]; got {self.gamma!r}.")
        if not 0 < self.confidence < 1:
            raise ValueError(f"`confidence` must be between 0 and 1; got {self.confidence!r}.")
        if self.num_folds < 1:
            raise ValueError(f"`num_folds` must be at least 1; got {self.num_folds!r}.")
        if not 2 <= self.num_bootstrap <= MOST_BOOTSTRAP:
            raise ValueError(f"`num_bootstrap` must be from 2 to {MOST_BOOTSTRAP:,}; got {self.num_bootstrap!r}.")
        unknown = [name for name in self.estimators if name not in ESTIMATORS]
        if unknown:
            raise ValueError(f"`estimators` must be among {', '.join(ESTIMATORS)}; got {unknown[0]!r}.")


def title_of(trace: Trace) -> str:
    """Return the title of a trace with its λ.

    >>> title_of(as_trace("retrace", 0.9)), title_of(OneStep())
    ('Retrace(λ = 0.9)', 'one-step')
    """
    if not trace.has_lambda or np.ndim(trace.lambda_):
        return trace.title
    return trace.title.replace("(λ", f"(λ = {float(trace.lambda_):g}")


def settings_of(
    *,
    gamma: float,
    trace: Any = "retrace",
    lambda_: float | None = None,
    traces: Sequence[Any] = (),
    estimators: Sequence[str] = DEFAULT,
    **more: Any,
) -> Settings:
    """Return the settings of a call, with the traces as values."""
    chosen = dict.fromkeys([as_trace(trace, lambda_), *(as_trace(one) for one in traces)])
    return Settings(gamma=gamma, traces=tuple(chosen), estimators=tuple(estimators), **more)


def evaluate(engine: Engine, target: Target, settings: Settings, progress: Progress) -> Evaluation:
    """Return all estimates of one target policy; the log is in the parts of the engine."""
    if target.log_density is not None:
        settings = replace(settings, traces=(), estimators=tuple(n for n in settings.estimators if n in WEIGHTED))
    stages = Stages(progress, total=4 + len(settings.traces))
    num_folds = _label(engine, settings)
    features = settings.features
    if target.table is None and features is None and target.log_density is None:
        features = standardise(engine)
    stages.next("probabilities of the target policy")
    engine.map(prepare, target, settings.gamma, features)
    behaviour = None
    if not all(engine.map(_use_recorded)):
        if target.log_density is not None:
            raise ValueError("`log` must have `behaviour_log_density` where actions are vectors; it does not.")
        stages.next("behaviour policy")
        behaviour = estimate_behaviour(engine, engine.map(_shape)[0][-1], num_folds)
    resamples = Resamples(sum(engine.sizes), settings.num_bootstrap, settings.seed)
    found: dict[str, Estimate] = {}
    notes: dict[str, str] = {}
    titles = dict(TITLES)
    q: np.ndarray | None = None
    for trace in settings.traces:
        stages.next(title_of(trace))
        name = repr(trace)
        titles[name] = title_of(trace)
        fitted_q, found[name], notes[name] = _by_trace(engine, trace, resamples)
        q = fitted_q if q is None else q
    if "fqe" in settings.estimators:
        stages.next(TITLES["fqe"])
        _, found["fqe"], notes["fqe"] = _by_trace(engine, OneStep(), resamples)
    if "model" in settings.estimators:
        found["model"] = _by_model(engine, settings.gamma, num_folds, resamples)
    if any(name in settings.estimators for name in WITH_MODEL):
        stages.next("model for the doubly robust forms")
        by_fold = _models(engine, settings.gamma, num_folds)
        engine.map(_set_corrections, by_fold)
    stages.next("importance sampling")
    sums = importance.sums_of_episodes(engine, settings.gamma)
    found |= _by_weights(engine, sums, settings, resamples)
    logged = importance.mean(sums.discounted_return, resamples)
    diagnostics = diagnose(engine, sums, settings.gamma)
    rows = {
        name: _row(name, titles[name], one, settings.confidence, notes.get(name, "")) for name, one in found.items()
    }
    fitted_name = repr(settings.traces[0]) if settings.traces else None
    return Evaluation(
        target=target.title,
        estimates=tuple(rows.values()),
        gamma=settings.gamma,
        confidence=settings.confidence,
        logged=_row("logged", "the log itself", logged, settings.confidence, ""),
        diagnostics=diagnostics,
        behaviour=behaviour,
        verdict=judge(rows, diagnostics, behaviour, fitted_name),
        q=q,
        influence={name: one.influence for name, one in found.items()} | {"logged": logged.influence},
    )


def _label(engine: Engine, settings: Settings) -> int:
    """Give every episode a fold and a group, at random; return the number of folds."""
    num_episodes = sum(engine.sizes)
    generator = np.random.default_rng([settings.seed, 1])
    num_folds = min(settings.num_folds, num_episodes)
    for name, number in (("fold", num_folds), ("group", min(NUM_GROUPS, num_episodes))):
        labels = generator.permutation(np.arange(num_episodes) % number)
        engine.map(_set_label, name, each=split(engine, labels))
    return num_folds


def _set_label(part: Part, name: str, labels: np.ndarray) -> None:
    part.labels[name] = labels


def _use_recorded(part: Part) -> bool:
    """Take the recorded μ, where there is one; return whether there is."""
    part.mu_a = part.log.mu_a
    if part.log.log_mu_a is not None:
        part.mu_a = np.exp(part.log.log_mu_a)
    return part.mu_a is not None


def _by_trace(engine: Engine, trace: Trace, resamples: Resamples) -> tuple[np.ndarray, Estimate, str]:
    """Return the coefficients, the estimate and a note."""
    fitted = fit(engine, trace)
    moved = influence(engine, trace, fitted)
    samples = fitted.value + resamples.sum(moved) / len(moved)
    note = ""
    if not fitted.converged:
        note = f"did not settle in {fitted.num_sweeps:,} sweeps"
    shape = engine.map(_shape)[0]
    return fitted.w.reshape(shape), Estimate(fitted.value, samples, moved), note


def _shape(part: Part) -> tuple[int, ...]:
    basis = part.steps.basis
    if isinstance(basis, Table):
        return basis.pi.shape
    return (basis.features.shape[1], basis.pi.shape[1])


def _by_model(engine: Engine, gamma: float, num_folds: int, resamples: Resamples) -> Estimate:
    """Return the value in the counted model: the fixed point of one-step evaluation, with the same influence."""
    pi = engine.map(_table)[0]
    if pi is None:
        raise ValueError("`estimators` must not have 'model' for a log of observations; it counts states.")
    w = model.q_of(model.add(model.count(engine, num_folds)), pi, gamma)
    values = np.concatenate(engine.map(start_values, w))
    mean = Mean(total(engine.map(gram, None)))
    moved = influence(engine, OneStep(), Fitted(w, mean, float(values.mean()), num_sweeps=0, converged=True))
    return Estimate(float(values.mean()), values.mean() + resamples.sum(moved) / len(moved), moved)


# -- the doubly robust forms ---------------------------------------------------------------------


def _models(engine: Engine, gamma: float, num_folds: int) -> list[np.ndarray]:
    """Return the coefficients of Q̂ for every fold, fitted to the episodes of the other folds."""
    pi = engine.map(_table)[0]
    if pi is None:
        return [fit(engine, OneStep(), without=_without(fold, num_folds)).w for fold in range(num_folds)]
    counted = model.count(engine, num_folds)
    if num_folds == 1:
        return [model.q_of(counted[0], pi, gamma)]
    others = ([one for i, one in enumerate(counted) if i != fold] for fold in range(num_folds))
    return [model.q_of(model.add(several), pi, gamma) for several in others]


def _without(fold: int, num_folds: int) -> tuple[str, int] | None:
    return ("fold", fold) if num_folds > 1 else None


def _table(part: Part) -> np.ndarray | None:
    basis = part.steps.basis
    return basis.pi if isinstance(basis, Table) else None


def _set_corrections(part: Part, by_fold: list[np.ndarray]) -> None:
    """Set V̂(x_0) and the TD errors of the model that has not seen the episode."""
    steps = part.steps
    fold = part.labels["fold"]
    by_row = np.repeat(fold, part.log.lengths)
    steps.start = np.empty(part.log.num_episodes)
    steps.error = np.empty(part.log.num_steps)
    for number, w in enumerate(by_fold):
        start = steps.basis.start_value(w)
        ahead = np.where(steps.mask, steps.discount * steps.basis.expected_q(w), 0.0)
        error = part.log.reward + ahead - steps.basis.q_a(w)
        steps.start[fold == number] = start[fold == number]
        steps.error[by_row == number] = error[by_row == number]


# -- the table of estimates ------------------------------------------------------------------------


def _by_weights(engine: Engine, sums: EpisodeSums, settings: Settings, resamples: Resamples) -> dict[str, Estimate]:
    longest = int(sums.length.max())

    def weighted_steps(values: str) -> Estimate:
        return importance.weighted_steps(engine, settings.gamma, longest, values, resamples)

    def weighted_robust() -> Estimate:
        return importance.plus(importance.mean(sums.start, resamples), weighted_steps("error"))

    ways: dict[str, Callable[[], Estimate]] = {
        "is": lambda: importance.mean(sums.weight * sums.discounted_return, resamples),
        "wis": lambda: importance.weighted(sums, resamples),
        "pdis": lambda: importance.mean(sums.per_decision, resamples),
        "wpdis": lambda: weighted_steps("reward"),
        "dr": lambda: importance.mean(sums.start + sums.corrections, resamples),
        "wdr": weighted_robust,
    }
    return {name: way() for name, way in ways.items() if name in settings.estimators}


def _row(name: str, title: str, found: Estimate, confidence: float, note: str) -> ValueEstimate:
    num_episodes = len(found.influence)
    error = float("nan")
    if num_episodes > 1:
        error = float(found.influence.std(ddof=1) / np.sqrt(num_episodes))
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
