"""Prints how often plain t tests are wrong on skewed scores, as a Markdown table. Verdicts correct
for skewness.

    python simulations/student_t.py

Two algorithms with equal means on four games: the first has skewed scores, the second normal ones
with a tenth of the standard deviation. The rates are for tests at 5 % and at 5 %/6 = 0.83 % (the
level per λ if there are six).
"""

import argparse

import numpy as np
from scipy import stats

NUM_GAMES = 4
CASES = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1.0,
    "lognormal": lambda rng, shape: np.exp(rng.normal(size=shape)) - np.exp(0.5),
}


def rates(draw, num_seeds: int, repetitions: int, rng: np.random.Generator) -> list[float]:
    """Return the rates of both tests, with shared seeds and without."""
    shape = (repetitions, NUM_GAMES, num_seeds)
    first = draw(rng, shape)
    second = 0.1 * rng.normal(size=shape)
    by_seed = (first - second).mean(axis=1)
    paired = stats.ttest_1samp(by_seed, 0.0, axis=1).pvalue
    variances = np.concatenate([first.var(axis=2, ddof=1), second.var(axis=2, ddof=1)], axis=1) / num_seeds
    error = np.sqrt(variances.sum(axis=1)) / NUM_GAMES
    df = (num_seeds - 1) * variances.sum(axis=1) ** 2 / (variances**2).sum(axis=1)
    alone = 2.0 * stats.t.sf(np.abs(by_seed.mean(axis=1)) / error, df)
    return [float((p <= level).mean()) for p in (paired, alone) for level in (0.05, 0.05 / 6)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    print("| scores | seeds | shared, 5 % | shared, 5 %/6 | not shared, 5 % | not shared, 5 %/6 |")
    print("|---|---|---|---|---|---|")
    for name, draw in CASES.items():
        for num_seeds in (3, 4, 8, 16):
            found = rates(draw, num_seeds, given.repetitions, rng)
            print(f"| {name} | {num_seeds} | " + " | ".join(f"{100 * rate:.1f}" for rate in found) + " |")


if __name__ == "__main__":
    main()
