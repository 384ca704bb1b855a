"""Prints how often claims are decided where nothing differs, and how often true differences are
found.

    python simulations/wrong_verdicts.py --repetitions 2000

Scores of four games are drawn from distributions of equal means and different shapes, and judged by
`offtrace.scores.claims`, so every verdict other than "cannot tell" is wrong. At λ = 0 all
algorithms are the same, and are declared to be. The output is two Markdown tables.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool

import numpy as np

from offtrace.scores import Comparison, Key, claims
from offtrace.scores.comparison import Stretch

GAMES = ("a", "b", "c", "d")
ALGORITHMS = ("retrace", "tree_backup", "q_lambda")
LAMBDAS = {"4 λ": (0.0, 0.5, 0.9, 1.0), "7 λ": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)}
NUM_SEEDS = (2, 3, 4, 8, 16)
Draw = Callable[[np.random.Generator, tuple[int, ...], list[tuple[str, float]]], np.ndarray]
"""Draws scores of equal means from a shape (…, games, seeds, cells) and the algorithm and λ of each cell."""


# --- distributions ------------------------------------------------------------------------------------------


def normal(rng, shape, cells):
    return rng.normal(size=shape)


def exponential(rng, shape, cells):
    return rng.exponential(size=shape) - 1.0


def lognormal(rng, shape, cells):
    return np.exp(rng.normal(size=shape)) - np.exp(0.5)


def solved(probability: float) -> Draw:
    return lambda rng, shape, cells: (rng.random(shape) < probability).astype(np.float64)


def unequal_deviations(rng, shape, cells):
    """Draw with standard deviations from 0.1 (DQN) to 9 (TB(1))."""
    of = {"retrace": 1.0, "tree_backup": 3.0, "q_lambda": 0.5, "dqn": 0.1}
    return rng.normal(size=shape) * [of[name] * (1.0 + 2.0 * x) for name, x in cells]


def against_steady(skewed: Draw) -> Draw:
    """For λ > ½, skew Retrace and Q to one side and TB to the other; all else is normal with a smaller deviation."""

    def draw(rng, shape, cells):
        sign = np.array([(x > 0.5) * (-1.0 if name == "tree_backup" else 1.0) for name, x in cells])
        deviation = np.array([0.1 if name == "dqn" else 0.3 for name, _ in cells])
        steady = deviation * rng.normal(size=shape)
        return np.where(sign == 0.0, steady, sign * skewed(rng, shape, cells))

    return draw


def solved_against_steady(rng, shape, cells):
    """Draw 0 or 1 with mean 0.8 for λ > ½, and numbers close to 0.8 otherwise."""
    jumps = np.array([x > 0.5 for _, x in cells])
    return np.where(jumps, rng.random(shape) < 0.8, 0.8 + 0.05 * rng.normal(size=shape))


def seed_acts_on_game(rng, shape, cells):
    return rng.normal(size=shape) + 2.0 * rng.normal(size=(*shape[:-1], 1))


def seed_acts_on_all(rng, shape, cells):
    return rng.normal(size=shape) + 2.0 * rng.normal(size=(*shape[:-3], 1, shape[-2], 1))


def seed_acts_on_algorithm(rng, shape, cells):
    """Give a seed the same effect in all games; such seeds must be declared as shared."""
    return rng.normal(size=shape) + rng.normal(size=(*shape[:-3], 1, *shape[-2:]))


CASES: dict[str, Draw] = {
    "normal": normal,
    "exponential": exponential,
    "lognormal": lognormal,
    "solved, ½ of runs": solved(0.5),
    "solved, 0.8 of runs": solved(0.8),
    "unequal deviations": unequal_deviations,
    "exponential against normal": against_steady(exponential),
    "lognormal against normal": against_steady(lognormal),
    "solved (0.8) against steady": solved_against_steady,
    "seed acts on a game": seed_acts_on_game,
    "seed acts on all games": seed_acts_on_all,
    "seed acts on an algorithm": seed_acts_on_algorithm,
}
DECLARED_ONLY = ("seed acts on an algorithm",)


# --- comparisons --------------------------------------------------------------------------------------------


def cells_of(lambdas: tuple[float, ...]) -> list[tuple[str, float]]:
    """Return the cells that are run: at λ = 0 one cell serves all algorithms."""
    with_lambda = [(name, x) for name in ALGORITHMS for x in lambdas if x > 0.0]
    return [("retrace", 0.0), ("dqn", 0.0), *with_lambda]


def comparisons(
    draw: Draw,
    *,
    lambdas: tuple[float, ...],
    num_seeds: int,
    declared: bool,
    repetitions: int,
    rng: np.random.Generator,
    shift: Callable[[str, float], float] = lambda name, x: 0.0,
) -> Iterator[Comparison]:
    """Yield one comparison per repetition; `shift` moves the mean of an algorithm at a λ.

    Only final scores are compared; claims about early scores work in the same way.
    """
    cells = cells_of(lambdas)
    copies = {Key(game, name, 0.0): Key(game, "retrace", 0.0) for game in GAMES for name in ALGORITHMS[1:]}
    keys = [Key(game, *cell) for game in GAMES for cell in cells]
    seeds: dict[Stretch, dict[Key, range]] = {}
    if declared:
        seeds = {"final": dict.fromkeys(keys, range(num_seeds))}
    moved = np.array([shift(*cell) for cell in cells])
    for _ in range(repetitions):
        scores = draw(rng, (len(GAMES), num_seeds, len(cells)), cells) + moved
        runs = dict(zip(keys, np.moveaxis(scores, -1, -2).reshape(-1, num_seeds), strict=True))
        yield Comparison("simulated", {"final": runs}, seeds=seeds, copies=copies)


def rates(found: Iterator[Comparison], verdicts: tuple[str, ...] = ("holds", "does not hold")) -> dict[str, float]:
    """Return how often each claim has one of these verdicts."""
    each = [{one.text: one.verdict in verdicts for one in claims(comparison)} for comparison in found]
    return {text: float(np.mean([one[text] for one in each])) for text in each[0]}


def bar(repetitions: int) -> float:
    """Return 5 % plus two standard errors of the simulation."""
    return 0.05 + 2.0 * (0.05 * 0.95 / repetitions) ** 0.5


# --- tables -------------------------------------------------------------------------------------------------

POWER = {
    "TB(λ) is above DQN at the end": lambda name, x: float(name == "tree_backup"),
    "Retrace(λ) is above DQN at the end": lambda name, x: float(name == "retrace"),
    "Q*(λ) fails for λ above 0.5": lambda name, x: float(name == "q_lambda" and x <= 0.5),
    "λ = 1 is best for TB(λ)": lambda name, x: float(name == "tree_backup" and x == 1.0),
    "λ = 1 is best for Retrace(λ)": lambda name, x: float(name == "retrace" and x == 1.0),
    "Retrace(λ) is above TB(λ) for λ > 0": lambda name, x: float(name == "retrace"),
    "Retrace(λ) does not do poorly at any λ > 0": lambda name, x: float(name == "retrace"),
}
"""The shift that makes each claim true by one standard deviation of a run, at every λ it refers to."""
VERDICTS = {1: ("holds",), -1: ("does not hold",)}


def wrong_rates(task: tuple[str, bool, str, int, int, int]) -> dict[str, float]:
    """Return the rate of wrong verdicts per claim, in one case."""
    case, declared, label, num_seeds, repetitions, seed = task
    found = comparisons(
        CASES[case],
        lambdas=LAMBDAS[label],
        num_seeds=num_seeds,
        declared=declared,
        repetitions=repetitions,
        rng=np.random.default_rng([seed, num_seeds, len(label), *label.encode(), *case.encode()]),
    )
    return rates(found)


def found_rate(task: tuple[str, int, str, bool, int, int]) -> float:
    """Return how often a claim that is true (1) or false (−1) by one deviation is decided so, with 16 seeds."""
    text, sign, label, declared, repetitions, seed = task
    found = comparisons(
        normal,
        lambdas=LAMBDAS[label],
        num_seeds=16,
        declared=declared,
        repetitions=repetitions,
        rng=np.random.default_rng([seed, sign + 1, *text.encode()]),
        shift=lambda name, x: sign * POWER[text](name, x),
    )
    return rates(found, VERDICTS[sign])[text]


def wrong_table(repetitions: int, seed: int, pool: Pool) -> Iterator[str]:
    texts = list(POWER)
    rows = [
        (case, declared, label)
        for case in CASES
        for declared in (True, False)
        for label in LAMBDAS
        if declared or case not in DECLARED_ONLY
    ]
    tasks = [(*row, n, repetitions, seed) for row in rows for n in NUM_SEEDS]
    results = pool.imap(wrong_rates, tasks)
    yield "| scores | seeds declared | λ | " + " | ".join(f"{n} seeds" for n in NUM_SEEDS) + " |"
    yield "|" + "---|" * (3 + len(NUM_SEEDS))
    highest = dict.fromkeys(texts, (0.0, ""))
    for case, declared, label in rows:
        shown = []
        for n in NUM_SEEDS:
            progress(f"{case}, {label}, {n} seeds")
            found = next(results)
            worst = max(texts, key=found.__getitem__)
            shown.append(f"{100 * found[worst]:.1f} ({texts.index(worst) + 1})")
            for text in texts:
                highest[text] = max(highest[text], (found[text], f"{case}, {label}, {n} seeds"))
        shown = [each if not each.startswith("0.0 ") else "0" for each in shown]
        yield f"| {case} | {'yes' if declared else 'no'} | {label} | " + " | ".join(shown) + " |"
    yield ""
    yield "| | claim | most wrong verdicts, % | where |"
    yield "|---|---|---|---|"
    for i, (text, (rate, where)) in enumerate(highest.items(), start=1):
        yield f"| {i} | {text} | {100 * rate:.1f} | {where} |"
    over = max(rate for rate, _ in highest.values())
    relation = "within" if over <= bar(repetitions) else "OVER"
    yield ""
    yield f"The highest is {over:.1%}, {relation} the bar of {bar(repetitions):.1%} ({repetitions:,} repetitions)."


def power_table(repetitions: int, seed: int, pool: Pool) -> Iterator[str]:
    columns = [(sign, label, declared) for sign in VERDICTS for label in LAMBDAS for declared in (True, False)]
    tasks = [(text, *column, repetitions, seed) for text in POWER for column in columns]
    results = pool.imap(found_rate, tasks)
    names = {1: "true", -1: "false"}
    shown = [f"{names[sign]}, {label}{', declared' * declared}" for sign, label, declared in columns]
    yield "| claim | " + " | ".join(shown) + " |"
    yield "|" + "---|" * (1 + len(columns))
    for text in POWER:
        progress(f"power, {text}")
        yield f"| {text} | " + " | ".join(f"{100 * next(results):.0f}" for _ in columns) + " |"


START = time.monotonic()


def progress(what: str) -> None:
    print(f"\r\033[K{time.monotonic() - START:6.0f} s  {what}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000, help="repetitions of each case")
    parser.add_argument("--power-repetitions", type=int, default=2000, help="repetitions of each true difference")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        print("Wrong verdicts, %: the highest rate among seven claims (and its number), where nothing differs.\n")
        for line in wrong_table(given.repetitions, given.seed, pool):
            print(line, flush=True)
        print("\nPower, %: how often a difference of one standard deviation of a run is found with 16 seeds.\n")
        for line in power_table(given.power_repetitions, given.seed, pool):
            print(line, flush=True)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
