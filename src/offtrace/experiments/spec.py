"""A sweep as data: environments × traces × λ × seeds, and any other field of a `TrainSpec`.

A run that is in two sweeps is trained once, as a run is identified by its spec. At λ = 0 all
traces are one algorithm, which is trained once, under the name of the first trace.
"""

import dataclasses
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


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, and its name.

    >>> sweep = Sweep("mine", games=("pocket/catch",), traces=("retrace", "dqn"), lambdas=(0.5, 1.0), num_seeds=3)
    >>> len(runs_of(sweep))  # DQN has no λ
    9
    """

    name: str
    games: tuple[str, ...]
    traces: tuple[Any, ...] = PAPER_ALGORITHMS
    """Names, your own as `my_module:MyTrace`; in Python also classes, values with their own λ, and functions."""
    lambdas: tuple[float, ...] = (1.0,)
    num_seeds: int = 4
    first_seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainSpec` that all runs share."""
    by_game: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one game."""
    by_algorithm: Mapping[tuple[str, float], Mapping[str, Any]] = field(default_factory=dict)
    """The same for one trace at one λ; ("one_step", 0.0) is what all are at λ = 0."""
    variants: tuple["Variant", ...] = ()
    """Algorithms that are not just a trace and a λ, such as DQN with another target policy."""

    def __post_init__(self) -> None:
        for name in ("games", "traces", "lambdas"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name) and not (self.variants and name != "games"):
                raise ValueError(f"`{name}` must not be empty.")
        if self.num_seeds < 1:
            raise ValueError(f"`num_seeds` must be at least 1; got {self.num_seeds}.")
        if self.num_seeds > MAX_RUNS:
            raise ValueError(
                f"`num_seeds` must be at most {MAX_RUNS:,}, the most runs of a sweep; got {self.num_seeds:,}."
            )
        if self.first_seed < 0:
            raise ValueError(f"`first_seed` must be at least 0; got {self.first_seed}.")
        fields = {f.name for f in dataclasses.fields(TrainSpec)} - {"env", "trace", "lambda_", "seed"}
        fields -= {"trace_source", "trace_title"}
        for given in (self.settings, *self.by_game.values(), *self.by_algorithm.values()):
            unknown = sorted(set(given) - fields)
            if unknown:
                raise ValueError(f"`settings` must be fields of `TrainSpec`; got {unknown[0]!r}.")


def with_settings(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """Return the sweep with these settings everywhere, instead of those for single games or algorithms.

    >>> sweep = Sweep("mine", games=("pocket/catch",), by_algorithm={("dqn", 0.0): {"step_size": 0.1}})
    >>> with_settings(sweep, {"step_size": 0.2}).by_algorithm
    {('dqn', 0.0): {}}
    """

    def rest(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if name not in given}

    return dataclasses.replace(
        sweep,
        settings={**sweep.settings, **given},
        by_game={game: rest(settings) for game, settings in sweep.by_game.items()},
        by_algorithm={name: rest(settings) for name, settings in sweep.by_algorithm.items()},
        variants=tuple(
            Variant(rest(variant.fields), {game: rest(settings) for game, settings in variant.by_game.items()})
            for variant in sweep.variants
        ),
    )


class Variant(NamedTuple):
    """An algorithm as fields of a `TrainSpec`, with its trace and λ, and fields that differ between games."""

    fields: Mapping[str, Any]
    by_game: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def runs_of(sweep: Sweep, tell: Callable[[str], None] = lambda _: None) -> list[Plan]:
    """Return every run of a sweep once, in the order of games, algorithms, λ, seeds.

    The modules of your own traces are imported; `tell` is called with a line for each.

    >>> sweep = Sweep("mine", games=("pocket/catch",), lambdas=(0.0, 1.0), num_seeds=1)
    >>> [(spec.trace, spec.lambda_) for spec in runs_of(sweep)]
    [('retrace', 0.0), ('retrace', 1.0), ('tree_backup', 1.0), ('q_lambda', 1.0), ('dqn', 0.0)]
    """
    found: dict[str, Plan] = {}
    traces = [sweep_fields(trace, tell) for trace in sweep.traces]
    algorithms = {game: list(_algorithms(sweep, game, traces)) for game in sweep.games}
    number = sum(map(len, algorithms.values())) * sweep.num_seeds
    if number > MAX_RUNS:
        raise ValueError(f"a sweep must have at most {MAX_RUNS:,} runs; got {number:,}. Use fewer seeds or λ.")
    for game in sweep.games:
        for fields in algorithms[game]:
            for seed in range(sweep.first_seed, sweep.first_seed + sweep.num_seeds):
                spec = resolved(TrainSpec(env=game, seed=seed, **fields))
                found.setdefault(repr(spec), spec)
    return list(found.values())


def _algorithms(
    sweep: Sweep, game: str, traces: Sequence[tuple[Mapping[str, Any], bool]]
) -> Iterator[dict[str, Any]]:
    """Yield the fields of every algorithm on one game, without the seed; `traces` are from `sweep_fields`."""
    settings = {**sweep.settings, **sweep.by_game.get(game, {})}
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
        yield {**settings, **variant.fields, **variant.by_game.get(game, {})}
