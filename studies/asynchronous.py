"""Compares the paper's asynchronous agent with the synchronous one at equal steps and settings.

    python studies/asynchronous.py                  both games, tuning and comparison: hours on two busy cores
    python studies/asynchronous.py --games catch    one game
    python studies/asynchronous.py --tables         the tables of the results so far

Both runtimes have RMSprop and the three ε schedules of App. F, 16 actors and the same number of
steps. The step size of each is the best of a grid on seeds 100 to 102, by the mean evaluation, and
the comparison is on seeds 0 to 4. "In turns" is the asynchronous runtime, with its step size, but
only one thread at a time copies the parameters, acts and updates: its gradients are never stale.

Results are appended to a file of JSON lines, one per run, and a run that is in the file is not
repeated.
"""

import argparse
import math
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from runs import read_lines, run_all

import offtrace as ot
from offtrace.agent.asynchronous import Asynchronous

GAMES: dict[str, dict[str, Any]] = {
    "catch": {"env": "pocket/catch", "network": "mlp", "num_steps": 100_000},
    "breakout": {"env": "minatar/breakout", "network": "mlp", "num_steps": 300_000},
}
STEP_SIZES = {"catch": (1e-3, 3e-3, 1e-2), "breakout": (3e-4, 1e-3, 3e-3)}
RUNTIMES = ("asynchronous", "synchronous")
IN_TURNS = "in turns"
TUNING = range(100, 103)
SEEDS = range(5)
T_QUANTILE = 2.776
"""The 97.5 % quantile of Student's distribution with 4 degrees of freedom, for five seeds."""

Task = tuple[str, str, float, int]
"""Game, runtime (or `IN_TURNS`), step size and seed."""


@contextmanager
def in_turns() -> Generator[None, None, None]:
    """Let only one actor-learner run at a time."""
    lock = threading.Lock()
    freely = Asynchronous._segment

    def segment(*args: Any) -> None:
        with lock:
            freely(*args)

    setattr(Asynchronous, "_segment", segment)  # noqa: B010 (a method of another type)
    try:
        yield
    finally:
        Asynchronous._segment = freely


def train_one(task: Task) -> dict[str, Any]:
    """Return the line of results of one run."""
    game, runtime, step_size, seed = task
    spec = ot.TrainSpec(
        **GAMES[game],
        runtime="asynchronous" if runtime == IN_TURNS else runtime,
        optimiser="rmsprop",
        exploration="switching",
        step_size=step_size,
        seed=seed,
        evaluation_ticks=0,
    )
    started = time.monotonic()
    with in_turns() if runtime == IN_TURNS else nullcontext():
        result = ot.train(spec)
    last = [record for record in result.history if 10 * record.num_steps > 9 * result.num_steps]
    num_episodes = sum(record.num_episodes for record in last)
    total = sum(record.num_episodes * record.episode_return for record in last if record.num_episodes)
    staleness = [record.actors.staleness for record in result.history[2:] if record.actors]
    return {
        "game": game,
        "runtime": runtime,
        "step_size": step_size,
        "seed": seed,
        "evaluation": result.mean_return,
        "training": total / max(1, num_episodes),
        "staleness": float(np.mean(staleness)) if staleness else 0.0,
        "seconds": round(time.monotonic() - started, 1),
    }


def best_step_size(lines: list[dict[str, Any]], game: str, runtime: str) -> float:
    """Return the step size with the best mean evaluation on the tuning seeds."""
    if runtime == IN_TURNS:
        runtime = "asynchronous"
    return max(STEP_SIZES[game], key=lambda step_size: mean(lines, game, runtime, step_size))


def mean(lines: list[dict[str, Any]], game: str, runtime: str, step_size: float) -> float:
    """Return the mean evaluation on the tuning seeds; −∞ without runs."""
    found = values(lines, game, runtime, step_size, TUNING)
    return float(np.mean(found)) if found else -math.inf


def values(
    lines: list[dict[str, Any]], game: str, runtime: str, step_size: float, seeds: range, measure: str = "evaluation"
) -> list[float]:
    """Return the measure of every seed that is in the file, by seed."""
    here = {
        line["seed"]: line[measure]
        for line in lines
        if (line["game"], line["runtime"], line["step_size"]) == (game, runtime, step_size)
    }
    return [here[seed] for seed in seeds if seed in here]


def interval(sample: Any) -> str:
    """Return the mean with its 95 % interval, by Student's distribution."""
    half = T_QUANTILE * np.std(sample, ddof=1) / math.sqrt(len(sample))
    return f"{np.mean(sample):.2f} ± {half:.2f}"


def print_tables(lines: list[dict[str, Any]], games: list[str]) -> None:
    for game in games:
        print(f"{game}: mean evaluation on seeds {TUNING.start} to {TUNING.stop - 1}")
        for runtime in RUNTIMES:
            cells = [f"{mean(lines, game, runtime, step_size):10.2f}" for step_size in STEP_SIZES[game]]
            print(f"  {runtime:<14}" + "".join(cells))
        print(f"{game}: seeds {SEEDS.start} to {SEEDS.stop - 1}, mean and 95 % interval")
        found = {}
        for runtime in (*RUNTIMES, IN_TURNS):
            chosen = best_step_size(lines, game, runtime)
            of = {name: values(lines, game, runtime, chosen, SEEDS, name) for name in ("evaluation", "training")}
            found[runtime] = of
            if len(of["evaluation"]) < len(SEEDS):
                continue
            staleness = np.mean(values(lines, game, runtime, chosen, SEEDS, "staleness"))
            seconds = np.median(values(lines, game, runtime, chosen, SEEDS, "seconds"))
            print(
                f"  {runtime:<14} step size {chosen:g}   evaluation {interval(of['evaluation'])}   "
                f"training {interval(of['training'])}   staleness {staleness:.1f}   {seconds:.0f} s"
            )
        for measure in ("evaluation", "training"):
            both = [np.array(found[runtime][measure]) for runtime in RUNTIMES]
            if all(len(one) == len(SEEDS) for one in both):
                print(f"  {measure}, asynchronous − synchronous, by seed: {interval(both[0] - both[1])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=[*GAMES])
    parser.add_argument("--tables", action="store_true", help="print the tables of the results so far")
    parser.add_argument("--output", type=Path, default=Path("asynchronous.jsonl"), help="file of results")
    given = parser.parse_args()

    def run(tasks: list[Task]) -> None:
        names = ("game", "runtime", "step_size", "seed")
        # One run at a time: each uses all cores.
        run_all(
            train_one,
            tasks,
            given.output,
            1,
            key=lambda line: tuple(line[name] for name in names),
            of_task=lambda task: task,
        )

    for game in given.games if not given.tables else ():
        run([(game, r, size, seed) for size in STEP_SIZES[game] for r in RUNTIMES for seed in TUNING])
        lines = read_lines(given.output)
        run([(game, r, best_step_size(lines, game, r), seed) for r in (*RUNTIMES, IN_TURNS) for seed in SEEDS])
    print_tables(read_lines(given.output), given.games)


if __name__ == "__main__":
    main()
