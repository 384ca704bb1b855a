"""The simulation of `docs/statistics.md` at a small scale: how often verdicts are wrong."""

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "simulations" / "wrong_verdicts.py"
REPETITIONS = 250


@pytest.fixture(scope="module")
def simulation() -> dict:
    return runpy.run_path(str(SCRIPT))


def found(simulation: dict, case: str, num_seeds: int, declared: bool, repetitions: int = REPETITIONS) -> dict:
    made = simulation["comparisons"](
        simulation["CASES"][case],
        lambdas=simulation["LAMBDAS"]["4 λ"],
        num_seeds=num_seeds,
        declared=declared,
        repetitions=repetitions,
        rng=np.random.default_rng(1),
    )
    rates = simulation["rates"](made)
    return {text: rates[text] for text in simulation["POWER"]}


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("case", ["normal", "exponential against normal"])
def test_nothing_is_seldom_taken_for_something(simulation, case, declared):
    """At most 5 % and two standard errors, with the fewest seeds that may decide."""
    assert max(found(simulation, case, 3, declared).values()) <= simulation["bar"](REPETITIONS)


def test_two_seeds_never_decide(simulation):
    assert set(found(simulation, "exponential", 2, declared=True, repetitions=50).values()) == {0.0}


def test_a_difference_of_one_deviation_is_found(simulation):
    """With 16 seeds, in at least four of five cases: 40 repetitions of each claim."""
    for text in simulation["POWER"]:
        rate = simulation["found_rate"]((text, 1, "4 λ", True, 40, 0))
        assert rate >= 0.8, text


def test_every_distribution_has_one_mean(simulation):
    """Otherwise a verdict could be right. Means of 200,000 scores per cell are within five standard errors."""
    cells = simulation["cells_of"](simulation["LAMBDAS"]["4 λ"])
    for name, draw in simulation["CASES"].items():
        scores = draw(np.random.default_rng(0), (4, 50_000, len(cells)), cells).astype(float)
        means = scores.mean((0, 1))
        errors = 5.0 * scores.std((0, 1)) / np.sqrt(50_000)  # a seed may act on all four games alike
        assert (np.abs(means - np.average(means, weights=errors**-2.0)) <= errors).all(), name
