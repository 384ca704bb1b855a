"""Files of results as a sweep writes them, without any training."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.reports import UNTRAINED
from offtrace.agent.telemetry import TickRecord
from offtrace.experiments.store import Store

MADE = {
    "version": "0.1.0",
    "commit": "4e1c9ab",
    "machine": "a desk, 2 cores",
    "command": "offtrace sweep made-up",
    "python": "3.11.7",
    "jax": "0.10.2",
    "platform": "Linux",
}
SKILL = {"retrace": 1.0, "tree_backup": 0.85, "q_lambda": 0.7, "dqn": 0.6}
TRACES = ("retrace", "tree_backup", "q_lambda", "dqn")


def specs(
    games: Sequence[str] = ("made/alpha", "made/beta"),
    traces: Sequence[str] = TRACES,
    lambdas: Sequence[float] = (0.5, 1.0),
    seeds: Sequence[int] = (0, 1, 2),
) -> list[dict[str, Any]]:
    """Return the specs of a grid; a baseline has no λ."""
    return [
        {"env": game, "trace": trace, "lambda_": lambda_, "seed": seed, "num_steps": 50_000}
        for game in games
        for trace in traces
        for lambda_ in ((0.0,) if trace in ("dqn", "one_step") else lambdas)
        for seed in seeds
    ]


def reports(spec: Mapping[str, Any], ticks: int = 25) -> list[TickRecord]:
    """Return a learning curve that rises to the skill of the algorithm, and less far for Q(λ) with a large λ."""
    rng = random.Random(repr(sorted(spec.items())))
    lambda_, trace = spec["lambda_"], spec["trace"]
    skill = SKILL.get(trace, 0.5) + 0.15 * lambda_ - (0.6 * lambda_ if trace == "q_lambda" and lambda_ > 0.5 else 0.0)
    scale = (1 + len(spec["env"]) % 3) * 10.0 ** (len(spec["env"]) % 4)
    c = {"retrace": 0.8, "tree_backup": 0.45, "q_lambda": 1.0}.get(trace, 0.0) * lambda_
    found = [UNTRAINED]
    for tick in range(1, ticks + 1):
        share = tick / ticks
        value = scale * (skill * (1 - math.exp(-4 * share)) + rng.gauss(0, 0.05))
        found.append(
            TickRecord(
                tick,
                2000 * tick,
                500 * tick,
                8,
                value,
                120.0,
                max(0.1, 1 - share),
                2.5e-4,
                0.1 / share,
                10 * share,
                c * (0.8 + 0.2 * share),
                0.3 * (1 - c),
                1 + 5 * c,
                1.2 * (1 - 0.6 * share),
                1.0,
                (0.1, 0.2, 0.3, 0.4, 0.5),
            )
        )
    return found


def store(
    path: Path,
    wanted: Sequence[Mapping[str, Any]] | None = None,
    *,
    failing: Mapping[int, str] | None = None,
    unfinished: Sequence[int] = (),
    made: Mapping[str, Any] = MADE,
    told: Callable[[Mapping[str, Any]], Sequence[TickRecord]] = reports,
) -> Path:
    """Write these runs to a file of results. `told` returns the reports of a run.

    By their place in the list: `failing` runs end with an error text, `unfinished` runs are never started.
    """
    wanted, failing = specs() if wanted is None else wanted, failing or {}
    with Store(path) as opened:
        opened._do("PRAGMA synchronous = OFF")  # nothing here has to survive a power cut
        for i, run_id in enumerate(opened.register(wanted, made)):
            if i in unfinished:
                continue
            assert opened.claim(run_id, "made up")
            found = told(wanted[i])
            opened.write(run_id, found)
            if i in failing:
                opened.fail(run_id, failing[i])
            else:
                opened.finish(run_id, [found[-1].episode_return] * 3)
    return path
