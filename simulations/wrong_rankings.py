"""Prints how often a ranking calls an algorithm worse where nothing differs, as a Markdown table.

    python simulations/wrong_rankings.py --repetitions 400

All algorithms have the same mean on four games, and share their seeds. In the last two rows every
second algorithm is steady: normal, with a tenth of the standard deviation. The rates are those of
at least one wrong verdict in the whole ranking: among the differences to the best (Bonferroni),
and among the differences of every two (Holm).
"""

import argparse

import numpy as np

from offtrace.scores import Comparison, Key, ranking

NUM_GAMES = 4
CASES = {
    "normal": (lambda rng, shape: rng.normal(size=shape), False),
    "exponential": (lambda rng, shape: rng.exponential(size=shape), False),
    "solved, 0.8 of runs": (lambda rng, shape: (rng.random(size=shape) < 0.8).astype(float), False),
    "exponential against steady": (lambda rng, shape: rng.exponential(size=shape), True),
    "solved (0.8) against steady": (lambda rng, shape: (rng.random(size=shape) < 0.8).astype(float), True),
}
MEANS = {"normal": 0.0, "exponential": 1.0, "exponential against steady": 1.0}


def rates(case: str, num_algorithms: int, num_seeds: int, repetitions: int, rng: np.random.Generator) -> list[float]:
    """Return the rates of wrong rankings: to the best, and of every two."""
    draw, with_steady = CASES[case]
    mean = MEANS.get(case, 0.8)
    wrong = np.zeros((repetitions, 2), dtype=bool)
    for i in range(repetitions):
        scores = draw(rng, (num_algorithms, NUM_GAMES, num_seeds))
        if with_steady:
            scores[1::2] = mean + 0.1 * rng.normal(size=scores[1::2].shape)
        runs = {
            Key(f"game {g}", f"algorithm {a}", 1.0): scores[a, g].tolist()
            for a in range(num_algorithms)
            for g in range(NUM_GAMES)
        }
        found = ranking(Comparison("nothing differs", {"final": runs}, paired=True))
        wrong[i, 0] = any(entry.verdict == "worse" for entry in found.entries)
        wrong[i, 1] = any(each.all_together != "cannot tell" for each in found.differences)
    return wrong.mean(0).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    sizes = [(num_algorithms, num_seeds) for num_algorithms in (2, 10) for num_seeds in (3, 8, 16)]
    print("| scores | " + " | ".join(f"{k} algorithms, {n} seeds" for k, n in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for case in CASES:
        cells = []
        for num_algorithms, num_seeds in sizes:
            found = rates(case, num_algorithms, num_seeds, given.repetitions, rng)
            cells.append(", ".join(f"{100 * rate:.1f}" for rate in found))
        print(f"| {case} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
