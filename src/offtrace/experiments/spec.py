"""A sweep is data: games × traces × λ × seeds, and anything else that a `TrainSpec` has.

Cells that two sweeps share are run once, as a run is known by its spec.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offtrace.agent.learner import MARKOV
from offtrace.agent.runtimes import NUMBERS
from offtrace.agent.spec import Plan, TrainSpec, resolved
from offtrace.environments import on_host

ALGORITHMS = ("retrace", "tree_backup", "q_lambda", "dqn")
"""Of the paper, by our names."""


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
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainSpec` that all cells share."""
    by_game: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for one game."""

    def __post_init__(self) -> None:
        for name in ("games", "traces", "lambdas"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise ValueError(f"`{name}` must be at least one; got none.")
        if self.num_seeds < 1:
            raise ValueError(f"`num_seeds` must be at least 1; got {self.num_seeds}.")
        fields = {f.name for f in dataclasses.fields(TrainSpec)} - {"env", "trace", "lambda_", "seed"}
        for given in (self.settings, *self.by_game.values()):
            unknown = sorted(set(given) - fields)
            if unknown:
                raise ValueError(f"`settings` must be fields of a TrainSpec; got {unknown[0]!r}.")


def cells(sweep: Sweep) -> list[Plan]:
    """Every run of it, each once, in the order of games, traces, λ, seeds."""
    found: dict[str, Plan] = {}
    for game in sweep.games:
        settings = {**sweep.settings, **sweep.by_game.get(game, {})}
        for trace in sweep.traces:
            for lambda_ in (0.0,) if trace in ("dqn", "one_step") else sweep.lambdas:
                for seed in range(sweep.num_seeds):
                    spec = resolved(TrainSpec(env=game, trace=trace, lambda_=lambda_, seed=seed, **settings))
                    found.setdefault(repr(spec), spec)
    return list(found.values())


def packs(specs: Sequence[Plan], most: int) -> list[list[Plan]]:
    """Specs that can share a program, together, `most` at a time; environments on the host are alone."""
    groups: dict[str, list[Plan]] = {}
    for spec in specs:
        shape = {name: value for name, value in vars(spec).items() if name not in NUMBERS}
        shares = spec.trace in MARKOV
        key = repr(spec) if on_host(spec.env) else repr((shape, "" if shares else spec.trace))
        groups.setdefault(key, []).append(spec)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
