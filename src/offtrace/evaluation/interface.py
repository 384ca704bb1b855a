"""`estimate` and `compare`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offtrace.evaluation.comparison import LOGGED, Comparison, compare_evaluations
from offtrace.evaluation.engines import make_engine
from offtrace.evaluation.estimation import DEFAULT, WEIGHTED, WITH_MODEL, Evaluation, Settings, evaluate, settings_of
from offtrace.evaluation.log import Log
from offtrace.evaluation.preparation import Features
from offtrace.evaluation.problems import LogError
from offtrace.evaluation.reading import read
from offtrace.evaluation.target import Target, as_target, impossible


def _quiet(done: float, total: float, description: str) -> None:
    pass


def estimate(
    log: Any,
    *,
    target: Any,
    gamma: float,
    trace: Any = "retrace",
    lambda_: float | None = None,
    traces: Sequence[Any] = (),
    estimators: Sequence[str] = DEFAULT,
    features: Features | None = None,
    num_folds: int = 5,
    num_bootstrap: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
    engine: str = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    progress: Callable[[float, float, str], None] = _quiet,
) -> Evaluation:
    """Estimate the value of a target policy π from a log.

    Args:
        log: A `Log`, or whatever `read` takes.
        target: π: a table (X, A), a file, a run's folder, a saved policy, or a function from states or
            observations to probabilities.
        gamma: Discount γ in [0, 1].
        trace: Trace of the fitted evaluation whose Q is returned: a name, a class, a value or a function.
        lambda_: λ of a trace given by name or class.
        traces: More traces to show beside it.
        estimators: Names among `ESTIMATORS`, to show beside the traces.
        features: Function from observations (N, k) to features (N, d), in which Q is linear; by default the
            standardised observations and a constant.
        num_folds: Folds of episodes, for an estimated μ and for the model of the doubly robust forms.
        num_bootstrap: Bootstrap samples.
        confidence: Coverage of the intervals.
        seed: Random seed of folds and bootstrap samples.
        engine: "local", or "ray" to spread the episodes over a Ray cluster.
        ray_address: Address of the Ray cluster; by default $RAY_ADDRESS, else one is started on this machine.
        num_workers: Workers on Ray; by default one per core of the cluster.
        progress: Called with the number of steps done, the number of all steps, and what is done next.
    """
    settings = settings_of(
        gamma=gamma,
        trace=trace,
        lambda_=lambda_,
        traces=traces,
        estimators=estimators,
        features=features,
        num_folds=num_folds,
        num_bootstrap=num_bootstrap,
        confidence=confidence,
        seed=seed,
    )
    log = read(log)
    policy = as_target(target, log=log)
    settings = _without_impossible(settings, log, policy)
    with make_engine(log, engine, ray_address, num_workers) as parts:
        return evaluate(parts, policy, settings, progress)


def _without_impossible(settings: Settings, log: Log, policy: Target) -> Settings:
    """Leave out the estimators that weigh episodes if none of the log could come from the target policy."""
    problems = impossible(log, policy.of_actions(log))
    if not problems:
        return settings
    if policy.log_density is not None:  # there is importance sampling only
        raise LogError(problems)
    kept = tuple(name for name in settings.estimators if name not in (*WEIGHTED, *WITH_MODEL))
    return replace(settings, estimators=kept)


def compare(
    log: Any,
    *,
    targets: Sequence[Any] | Mapping[str, Any],
    gamma: float,
    estimator: str | None = None,
    trace: Any = "retrace",
    lambda_: float | None = None,
    traces: Sequence[Any] = (),
    estimators: Sequence[str] = DEFAULT,
    features: Features | None = None,
    num_folds: int = 5,
    num_bootstrap: int = 400,
    confidence: float = 0.95,
    seed: int = 0,
    engine: str = "local",
    ray_address: str | None = None,
    num_workers: int | None = None,
    progress: Callable[[float, float, str], None] = _quiet,
) -> Comparison:
    """Evaluate several target policies on the same log, and compare them in pairs, with the logged one among them.

    Args:
        log: A `Log`, or whatever `read` takes.
        targets: Policies as in `estimate`; a dict gives them names.
        gamma: Discount γ in [0, 1].
        estimator: Name of the estimator whose differences are taken; by default, for every policy, the one that
            its verdict recommends.
        trace: As in `estimate`, and so are the arguments that follow.
    """
    settings = settings_of(
        gamma=gamma,
        trace=trace,
        lambda_=lambda_,
        traces=traces,
        estimators=estimators,
        features=features,
        num_folds=num_folds,
        num_bootstrap=num_bootstrap,
        confidence=confidence,
        seed=seed,
    )
    log = read(log)
    named = _named(targets, log)
    evaluations = {}
    chosen = {name: _without_impossible(settings, log, target) for name, target in named.items()}
    with make_engine(log, engine, ray_address, num_workers) as parts:
        for number, (name, target) in enumerate(named.items()):

            def tell(done: float, total: float, what: str, number: int = number, name: str = name) -> None:
                progress(number * total + done, len(named) * total, f"{name}: {what}")

            evaluations[name] = evaluate(parts, target, chosen[name], tell)
    return compare_evaluations(evaluations, estimator)


def _named(targets: Sequence[Any] | Mapping[str, Any], log: Log) -> dict[str, Target]:
    """Return the target policies by name: as given, or their titles, numbered where two are the same."""
    if isinstance(targets, Mapping):
        found = {str(name): as_target(one, log=log) for name, one in targets.items()}
    else:
        found = {}
        for given in targets:
            one = as_target(given, log=log)
            name = one.title
            number = 2
            while name in found:
                name = f"{one.title} {number}"
                number += 1
            found[name] = one
    if not found:
        raise ValueError("`targets` must have at least one policy; got none.")
    if LOGGED in found:
        raise ValueError(f"`targets` must not have the name {LOGGED!r}: it is the log's own policy.")
    return found
