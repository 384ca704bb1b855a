"""A sweep is data: games × traces × λ × seeds, and anything else that a `TrainSpec` has.

Runs that two sweeps share are trained once, as a run is known by its spec. At λ = 0 all traces are one algorithm: it
is trained once, under the name of the first of them.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from offtrace.agent.learner import MARKOV
from offtrace.agent.settings import NUMBERS, WORLDS
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.environments import on_host, program_shape

ALGORITHMS = ("retrace", "tree_backup", "q_lambda", "dqn")
"""Of the paper, by our names."""
MOST_RUNS = 1_000_000
"""Of a sweep."""


@dataclass(frozen=True)
class Sweep:
    """What is run, and under which name.

    >>> sweep = Sweep("mine", games=("pocket/catch",), traces=("retrace", "dqn"), lambdas=(0.5, 1.0), num_seeds=3)
    >>> len(cells(sweep))  # DQN has no λ
    9
    """

    name: str
    games: tuple[str, ...]
    traces: tuple[str, ...] = ALGORITHMS
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
        if self.num_seeds > MOST_RUNS:
            raise ValueError(f"`num_seeds` must be at most {MOST_RUNS:,}, the most runs of a sweep.")
        if self.first_seed < 0:
            raise ValueError(f"`first_seed` must be at least 0; got {self.first_seed}.")
        fields = {f.name for f in dataclasses.fields(TrainSpec)} - {"env", "trace", "lambda_", "seed"}
        for given in (self.settings, *self.by_game.values(), *self.by_algorithm.values()):
            unknown = sorted(set(given) - fields)
            if unknown:
                raise ValueError(f"`settings` must be fields of a TrainSpec; got {unknown[0]!r}.")


def with_settings(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with these settings everywhere, whatever it has chosen for a game or an algorithm.

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
    """One algorithm by its fields of a `TrainSpec`, the trace and λ among them, and what differs between games."""

    fields: Mapping[str, Any]
    by_game: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


def cells(sweep: Sweep) -> list[Plan]:
    """Every run of it, each once, in the order of games, algorithms, λ, seeds.

    >>> sweep = Sweep("mine", games=("pocket/catch",), lambdas=(0.0, 1.0), num_seeds=1)
    >>> [(spec.trace, spec.lambda_) for spec in cells(sweep)]
    [('retrace', 0.0), ('retrace', 1.0), ('tree_backup', 1.0), ('q_lambda', 1.0), ('dqn', 0.0)]
    """
    found: dict[str, Plan] = {}
    algorithms = {game: list(_algorithms(sweep, game)) for game in sweep.games}
    number = sum(map(len, algorithms.values())) * sweep.num_seeds
    if number > MOST_RUNS:
        raise ValueError(f"a sweep must have at most {MOST_RUNS:,} runs; got {number:,}. Take fewer seeds or λ.")
    for game in sweep.games:
        for fields in algorithms[game]:
            for seed in range(sweep.first_seed, sweep.first_seed + sweep.num_seeds):
                spec = resolved(TrainSpec(env=game, seed=seed, **fields))
                found.setdefault(repr(spec), spec)
    return list(found.values())


def _algorithms(sweep: Sweep, game: str) -> Iterator[dict[str, Any]]:
    """The fields of every algorithm on one game, but for the seed."""
    settings = {**sweep.settings, **sweep.by_game.get(game, {})}
    has_zero = False
    for trace in sweep.traces:
        lambdas = sweep.lambdas
        if trace in ("dqn", "one_step"):
            lambdas = (0.0,)
        for lambda_ in lambdas:
            is_one_step = lambda_ == 0 and trace != "dqn"
            if is_one_step and has_zero and trace != "one_step":
                continue
            has_zero = has_zero or is_one_step
            name = "one_step" if is_one_step else trace
            own = sweep.by_algorithm.get((name, lambda_), {})
            yield {**settings, **own, "trace": trace, "lambda_": lambda_}
    for variant in sweep.variants:
        yield {**settings, **variant.fields, **variant.by_game.get(game, {})}


def packs(specs: Sequence[Plan], most: int) -> list[list[Plan]]:
    """Specs that can share a program, together, `most` at a time at most; environments on the host are alone.

    Packs of one group are as equal as can be: those of one size share a compiled program.
    """
    groups: dict[str, list[Plan]] = {}
    for spec in specs:
        if on_host(spec.env):
            groups[repr(spec)] = [spec]
            continue
        shape = {name: value for name, value in vars(spec).items() if name not in (*NUMBERS, *WORLDS)}
        world = program_shape(spec.env, spec.options)
        shares = spec.trace in MARKOV
        key = repr((shape, world, "" if shares else spec.trace))
        groups.setdefault(key, []).append(spec)
    found = []
    for group in groups.values():
        number = -(-len(group) // most)
        size = -(-len(group) // number)
        found += [group[i : i + size] for i in range(0, len(group), size)]
    return found
