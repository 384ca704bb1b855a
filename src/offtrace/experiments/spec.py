"""A sweep as data: environments × traces × λ × seeds, and any other field of a `TrainSpec`.

A run that is in two sweeps is trained once, as a run is identified by its spec. At λ = 0 all
traces are one algorithm, which is trained once, under the name of the first trace.
"""

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from offtrace.agent.own_traces import sweep_fields
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.traces import TRACES

PAPER_ALGORITHMS = ("retrace", "tree_backup", "q_lambda", "dqn")
"""The algorithms that the paper compares."""
MAX_RUNS = 1_000_000
"""Largest number of runs of a sweep."""
OWN_PARAMETERS = {"env": "envs", "trace": "traces", "lambda_": "lambdas", "seed": "num_seeds"}
"""Fields of a spec for which a sweep has a parameter of its own."""
FILLED_IN = ("trace_source", "trace_title")
"""Fields that follow from the trace."""
NOT_OF_DQN = ("window",)
"""Fields that DQN has no choice of: it learns from single transitions."""
TraceFields = tuple[Mapping[str, Any], bool]
"""A trace as fields of a spec, and whether it has a λ to vary."""


@dataclass(frozen=True)
class Sweep:
    """A grid of runs: every environment with every trace, λ, value of every axis, and seed.

    >>> sweep = Sweep(["pocket/catch"], traces=["retrace", "dqn"], lambdas=[0.5, 1.0], num_seeds=3)
    >>> len(runs_of(sweep))  # DQN has no λ
    9
    >>> sweep = Sweep(["pocket/catch"], traces=["retrace"], num_seeds=3, axes={"step_size": [1e-4, 1e-3]})
    >>> len(runs_of(sweep))
    6
    """

    envs: Sequence[str]
    """Environments, by name as in `TrainSpec`."""
    traces: Sequence[Any] = PAPER_ALGORITHMS
    """Names, your own as `my_module:MyTrace`, and `dqn`; in Python also classes, values and functions."""
    lambdas: Sequence[float] = (1.0,)
    """Values of λ, for traces that have one. A trace given as a value keeps its own."""
    num_seeds: int = 4
    first_seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainSpec` that all runs share."""
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Fields of `TrainSpec` that vary, each with its values; all combinations are run. DQN ignores `window`."""
    by_env: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of one environment, by its name."""
    by_algorithm: Mapping[tuple[str, float], Mapping[str, Any]] = field(default_factory=dict)
    """The settings of one trace at one λ; ("one_step", 0.0) is what all are at λ = 0."""
    variants: tuple["Variant", ...] = ()
    """Algorithms that are not just a trace and a λ, such as DQN with another target policy."""

    def __post_init__(self) -> None:
        for name in ("envs", "traces", "lambdas"):
            values = _listed(name, getattr(self, name))
            object.__setattr__(self, name, values)
            if not values and not (self.variants and name != "envs"):
                raise ValueError(f"`{name}` must not be empty.")
        if self.num_seeds < 1:
            raise ValueError(f"`num_seeds` must be at least 1; got {self.num_seeds}.")
        if self.num_seeds > MAX_RUNS:
            raise ValueError(
                f"`num_seeds` must be at most {MAX_RUNS:,}, the most runs of a sweep; got {self.num_seeds:,}."
            )
        if self.first_seed < 0:
            raise ValueError(f"`first_seed` must be at least 0; got {self.first_seed}.")
        for given in (self.settings, *self.by_env.values(), *self.by_algorithm.values()):
            for name in given:
                check_field(name, "settings")
        axes = {name: _listed(name, values) for name, values in self.axes.items()}
        object.__setattr__(self, "axes", axes)
        self._check_axes()

    def _check_axes(self) -> None:
        given = [self.settings, *self.by_env.values(), *self.by_algorithm.values()]
        given += [variant.fields for variant in self.variants]
        for name, values in self.axes.items():
            check_field(name, "axes")
            if not values:
                raise ValueError(f"`axes` must have a value for {name!r}; got none.")
            if any(name in settings for settings in given):
                raise ValueError(f"`axes` must not have {name!r}, which is among the settings too. Omit one of them.")
            for value in values:
                TrainSpec(env=self.envs[0], **{name: value})  # raises an error that names the field


def check_field(name: str, where: str, kind: str = "fields of `TrainSpec`") -> None:
    """Raise a ValueError unless a name is a field that a sweep can set.

    `where` it was given, and what `kind` of names these are, are for the error.

    >>> check_field("stepsize", "axes")
    Traceback (most recent call last):
    ValueError: `axes` must be fields of `TrainSpec`; got 'stepsize'. Did you mean 'step_size'?
    """
    if name in OWN_PARAMETERS:
        raise ValueError(f"`{where}` must not have {name!r}. Use `{OWN_PARAMETERS[name]}`.")
    fields = [f.name for f in dataclasses.fields(TrainSpec) if f.name not in (*OWN_PARAMETERS, *FILLED_IN)]
    if name not in fields:
        close = difflib.get_close_matches(str(name), fields, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`{where}` must be {kind}; got {name!r}.{hint}")


def _listed(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of a parameter as a tuple, with NumPy's numbers as Python's."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"`{name}` must be a list of values; got {values!r}. Write `[{values!r}]`.")
    return tuple(value.item() if hasattr(value, "dtype") and value.ndim == 0 else value for value in values)


def with_settings(
    sweep: Sweep, given: Mapping[str, Any], axes: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> Sweep:
    """Return the sweep with these settings and axes everywhere, instead of its own for these fields.

    >>> sweep = Sweep(["pocket/catch"], by_algorithm={("dqn", 0.0): {"step_size": 0.1}})
    >>> with_settings(sweep, {"step_size": 0.2}).by_algorithm
    {('dqn', 0.0): {}}
    """

    def rest(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in given and name not in axes}

    return dataclasses.replace(
        sweep,
        settings={**rest(sweep.settings), **given},
        axes={**rest(sweep.axes), **axes},
        by_env={env: rest(settings) for env, settings in sweep.by_env.items()},
        by_algorithm={name: rest(settings) for name, settings in sweep.by_algorithm.items()},
        variants=tuple(
            Variant(rest(variant.fields), {env: rest(settings) for env, settings in variant.by_env.items()})
            for variant in sweep.variants
        ),
    )


class Variant(NamedTuple):
    """An algorithm as fields of a `TrainSpec`, with its trace and λ, and fields that differ between environments."""

    fields: Mapping[str, Any]
    by_env: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def runs_of(sweep: Sweep, tell: Callable[[str], None] = lambda _: None) -> list[Plan]:
    """Return every run of a sweep once, in the order of environments, axes, algorithms, λ, seeds.

    The modules of your own traces are imported; `tell` is called with a line for each.

    >>> sweep = Sweep(["pocket/catch"], lambdas=[0.0, 1.0], num_seeds=1)
    >>> [(spec.trace, spec.lambda_) for spec in runs_of(sweep)]
    [('retrace', 0.0), ('retrace', 1.0), ('tree_backup', 1.0), ('q_lambda', 1.0), ('dqn', 0.0)]
    """
    found: dict[str, Plan] = {}
    traces = [sweep_fields(trace, tell) for trace in sweep.traces]
    algorithms = {env: list(_algorithms(sweep, env, traces)) for env in sweep.envs}
    number = sum(map(len, algorithms.values())) * sweep.num_seeds
    if number > MAX_RUNS:
        raise ValueError(f"a sweep must have at most {MAX_RUNS:,} runs; got {number:,}. Use fewer seeds or λ.")
    for env in sweep.envs:
        for fields in algorithms[env]:
            for seed in range(sweep.first_seed, sweep.first_seed + sweep.num_seeds):
                spec = resolved(TrainSpec(env=env, seed=seed, **fields))
                found.setdefault(repr(spec), spec)
    return list(found.values())


def _algorithms(sweep: Sweep, env: str, traces: Sequence[TraceFields]) -> Iterator[dict[str, Any]]:
    """Yield the fields of every algorithm on one environment, without the seed; `traces` are from `sweep_fields`."""
    for values in itertools.product(*sweep.axes.values()):
        at = dict(zip(sweep.axes, values, strict=True))
        for fields in _algorithms_at_one_point(sweep, env, traces):
            own = at
            if fields["trace"] == "dqn":
                own = {name: value for name, value in at.items() if name not in NOT_OF_DQN}
            yield {**fields, **own}


def _algorithms_at_one_point(sweep: Sweep, env: str, traces: Sequence[TraceFields]) -> Iterator[dict[str, Any]]:
    """Yield the fields of every algorithm on one environment, without the seed and the axes."""
    settings = {**sweep.settings, **sweep.by_env.get(env, {})}
    has_one_step = False  # λ = 0 is the same algorithm for all traces, and is run once
    for fields, has_lambda in traces:
        trace = fields["trace"]
        lambdas = sweep.lambdas
        if "lambda_" in fields:
            lambdas = (fields["lambda_"],)
        elif not has_lambda:
            lambdas = (0.0,)
        for lambda_ in lambdas:
            is_one_step = lambda_ == 0 and trace in TRACES  # of a user's trace, nothing is known at λ = 0
            if is_one_step and has_one_step and trace != "one_step":
                continue
            has_one_step = has_one_step or is_one_step
            name = "one_step" if is_one_step else trace
            own = sweep.by_algorithm.get((name, lambda_), {})
            yield {**settings, **own, **fields, "lambda_": lambda_}
    for variant in sweep.variants:
        yield {**settings, **variant.fields, **variant.by_env.get(env, {})}
