"""Find the guess that gives every number a function returned: an algorithm, its λ and γ, and known mistakes."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from offtrace.doctor.answers import NUM_STEPS, Answer, Attempt, step_at
from offtrace.doctor.golden import GOLDEN, ON_POLICY_PAIR, ROUGH, TINY_MU, WINDOWS
from offtrace.doctor.mistakes import MISTAKES, Mistake
from offtrace.doctor.quantities import ENDS
from offtrace.doctor.recursion import (
    BREAKABLE,
    RIGHT,
    RIGHT_TWO_NETWORKS,
    Switches,
    error_base,
    switched,
    targets,
)
from offtrace.doctor.windows import GAMMA, LAMBDA, GoldenWindow

EXACT = tuple(w for w in GOLDEN if w.n <= 2 and w.name != TINY_MU)
SINGLE = 2e-5
"""The largest relative error of float32."""
COMMON_LAMBDAS = (1.0, 0.95, 0.9, 0.99, 0.97, 0.8, 0.75, 0.7, 0.5, 0.25)
COMMON_GAMMAS = (0.99, 0.9, 0.95, 0.999, 0.997, 1.0)


@dataclass(frozen=True)
class Guess:
    """A hypothesis about a function: an algorithm, its λ and γ, and the mistakes in it."""

    algorithm: str
    lambda_: float
    switches: Switches = RIGHT
    mistakes: tuple[str, ...] = ()
    right: Switches = RIGHT
    """The switches without those mistakes."""
    gamma: float = GAMMA

    def corrected(self) -> "Guess":
        """Return the guess without its mistakes."""
        return replace(self, switches=self.right, mistakes=())

    def on(self, window: GoldenWindow) -> tuple[np.ndarray, np.ndarray]:
        """Return the targets in one window, and the values that errors are taken against."""
        if self.gamma != GAMMA:
            window = replace(window, gamma=self.gamma)
        g = targets(window, self.algorithm, self.lambda_, self.switches)
        return np.array(g), np.array(error_base(window, self.algorithm, self.switches)[: window.n])


@dataclass(frozen=True)
class Fit:
    """A guess that gives every number of an answer."""

    guess: Guess
    answer: Answer


# -- guesses ---------------------------------------------------------------------------------------


class Signature(NamedTuple):
    """The arguments of the function that decide which mistakes it can have, and its γ."""

    takes_lambda: bool = True
    two_networks: bool = False
    gamma: float = GAMMA

    def allows(self, mistake: Mistake) -> bool:
        """Return whether a function with this signature can have the mistake.

        Without a known λ, a mistake in λ looks like another λ.
        """
        return {"": True, "lambda": self.takes_lambda, "two_networks": self.two_networks}[mistake.needs]


@lru_cache(maxsize=64)
def guesses(
    algorithms: tuple[str, ...], lambdas: tuple[float, ...], num_mistakes: int, signature: Signature
) -> "Guesses":
    """Return every way to make this many mistakes; pairs are limited to the common variants of each."""
    allowed = [mistake for mistake in MISTAKES.values() if signature.allows(mistake)]
    rights = (RIGHT,)
    if signature.two_networks:
        rights = RIGHT_TWO_NETWORKS if num_mistakes < 2 else RIGHT_TWO_NETWORKS[:1]
    made: list[Guess] = []
    for right, chosen in itertools.product(rights, itertools.combinations(allowed, num_mistakes)):
        names = tuple(mistake.name for mistake in chosen)
        for changes in itertools.product(*(_variants(mistake, num_mistakes) for mistake in chosen)):
            switches = switched(*changes, right=right)
            if switches is None:
                continue
            for algorithm in algorithms:
                tried = (0.0,) if algorithm == "one_step" else lambdas
                made += [Guess(algorithm, lam, switches, names, right, signature.gamma) for lam in tried]
    return Guesses(made)


def _variants(mistake: Mistake, num_mistakes: int) -> tuple[dict, ...]:
    if num_mistakes < 2:
        return mistake.variants
    return mistake.variants[:1] if mistake.choice else mistake.variants[:6]


class Guesses:
    """Guesses, and the numbers they predict in all windows."""

    def __init__(self, made: list[Guess]) -> None:
        self.made = made
        predicted = [[guess.on(w) for w in WINDOWS] for guess in made]
        shape = (len(made), NUM_STEPS)
        self.targets = np.array([np.concatenate([g for g, _ in row]) for row in predicted]).reshape(shape)
        self.base = np.array([np.concatenate([base for _, base in row]) for row in predicted]).reshape(shape)

    def fitting(self, answer: Answer) -> list[Guess]:
        """Return the guesses that give every number of the answer."""
        left = np.arange(len(self.made))
        for part in (answer.first_numbers(), answer):  # a few numbers rule out most guesses
            if len(left):
                left = left[part.fits(self.targets[left], self.base[left]).all(axis=1)]
        return [self.made[i] for i in left]

    def nearest(self, answer: Answer) -> tuple[Guess, float]:
        """Return the closest guess and its closeness, at most 1; among nearly equal ones, the first."""
        error = np.abs(answer.predicted(self.targets, self.base) - answer.given)
        closeness = np.exp(-error).mean(axis=1)
        best = int(np.argmax(closeness >= 0.9 * closeness.max()))
        return self.made[best], float(closeness[best])


# -- λ and γ ---------------------------------------------------------------------------------------


def known_lambda(answer: Answer, given: float | None) -> float | None:
    """Return λ if the function takes it or the user gave it."""
    return LAMBDA if answer.attempt.convention.knows_lambda else given


def inferred(answer: Answer, algorithms: tuple[str, ...], num_mistakes: int, signature: Signature) -> "Guesses":
    """Return each guess with the λ that short windows show, where G is linear in it.

    G(λ) = G(0) + λ (G(1) − G(0)), so one number with a slope gives λ, and the others must agree.
    """
    at_0, half, at_1 = (guesses(algorithms, (lam,), num_mistakes, signature) for lam in (0.0, 0.5, 1.0))
    if answer.form.target is None or not at_0.made:
        tried = COMMON_LAMBDAS[: (None, 5, 3)[num_mistakes]]
        return guesses(algorithms, tried, num_mistakes, signature)
    # Without mistakes one on-policy pair is enough, and every trace, Markov or not, is linear in λ there.
    wanted = (ON_POLICY_PAIR,) if num_mistakes == 0 else tuple(w for w in WINDOWS if w.n <= 2)
    here = [i for i, column in enumerate(answer.columns) if step_at(int(column))[0] in wanted]
    columns = answer.columns[here]
    shown = answer.form.target(answer.given[here], at_0.base[:, columns])
    start = at_0.targets[:, columns]
    slope = (at_1.targets - at_0.targets)[:, columns]
    linear = np.abs(start + slope / 2 - half.targets[:, columns]) < 1e-12 * np.maximum(1.0, np.abs(start))
    slope = np.where(linear, slope, 0.0)
    # λ is read where the slope is steepest, which is the most precise place.
    steepest = np.argmax(np.abs(slope), axis=1)[:, None]
    divisor = np.take_along_axis(slope, steepest, 1)[:, 0]
    seen = np.take_along_axis(shown - start, steepest, 1)[:, 0]
    lam = np.where(divisor != 0, seen / np.where(divisor != 0, divisor, 1.0), 1.0)
    near = np.abs(start + lam[:, None] * slope - shown) <= 10 * answer.tolerance * np.maximum(1.0, np.abs(shown))
    plausible = (lam > 0.001) & (lam < 1.001) & ((near | ~linear).all(axis=1) | (num_mistakes == 0))
    made = []
    for guess, x, keep in zip(at_0.made, lam, plausible, strict=True):
        if guess.algorithm == "one_step":
            made.append(guess)
        elif keep:
            made.append(replace(guess, lambda_=_snapped(x, answer.tolerance)))
    return Guesses(made)


def _snapped(number: float, tolerance: float) -> float:
    """Round to four digits where that is within the tolerance: 0.9 for 0.9000001."""
    short = round(float(number), 4)
    return short if abs(short - number) <= 100 * tolerance else min(1.0, float(number))


def gammas(answer: Answer) -> tuple[float, ...]:
    """Return γ as it was passed; if the function takes none, the γ that one on-policy step shows: G = r + γ E_π Q."""
    if answer.attempt.convention.takes_gamma:
        return (GAMMA,)
    w = GOLDEN[0]
    first = next((i for i, column in enumerate(answer.columns) if step_at(int(column))[0] is w), None)
    if answer.form.target is None or first is None:
        return (GAMMA, *COMMON_GAMMAS)
    q_a = (w.online if answer.attempt.convention.two_networks else w).q_a[:1]
    g = answer.form.target(answer.given[[first]], np.array(q_a))[0]
    gamma = _snapped((g - w.r[0]) / w.next_v[0], answer.tolerance)
    return (gamma,) if 0 < gamma <= 1 else (GAMMA,)


# -- fitting ---------------------------------------------------------------------------------------


def fitting(answer: Answer, algorithms: tuple[str, ...], given: float | None, num_mistakes: int) -> list[Fit]:
    """Return the guesses with this many mistakes that give every number of the answer; `given` is the user's λ."""
    fits = []
    for tried in guessed(answer, algorithms, given, num_mistakes):
        fits += [Fit(guess, answer) for guess in tried.fitting(answer)]
    return [fit for fit in fits if _is_possible(fit)] or fits


def guessed(
    answer: Answer, algorithms: tuple[str, ...], given: float | None, num_mistakes: int
) -> "Iterator[Guesses]":
    """Yield guesses with every λ and γ that the function may have."""
    lam = known_lambda(answer, given)
    tried = gammas(answer) if num_mistakes < 2 else gammas(answer)[:1]
    for gamma in tried:
        signature = Signature(lam is not None, answer.attempt.convention.two_networks, gamma)
        if lam is None:
            yield inferred(answer, algorithms, num_mistakes, signature)
        else:
            yield guesses(algorithms, (lam,), num_mistakes, signature)


def rounded(answer: Answer, algorithms: tuple[str, ...], given: float | None) -> tuple[Fit, float] | None:
    """Return the right guess that differs by rounding only, and the largest error."""
    if answer.form.reduce or answer.form.clamped:
        return None
    # Half precision cannot hold the tiny μ.
    here = np.array([step_at(int(column))[0].name != TINY_MU for column in answer.columns])
    steps = [step_at(int(column)) for column in answer.columns[here]]
    exact = np.array([w in EXACT for w, _ in steps])
    rough = np.array([w in ROUGH and t + 1 < w.n for w, t in steps])
    best: tuple[Fit, float] | None = None
    for tried in guessed(answer, algorithms, given, 0):
        if not tried.made:
            continue
        error = answer.error(tried.targets, tried.base)[:, here]
        # Rounding leaves short windows of round numbers exact, and half precision leaves few of the others so.
        few_inexact = (error[:, rough] > 1e-12).mean(axis=1) < 0.4
        systematic = (error[:, exact] > 1e-7).any(axis=1) | (few_inexact & (error > SINGLE).any(axis=1))
        error = error + np.where(systematic, np.inf, 0.0)[:, None]
        worst = np.where(np.isfinite(error).all(axis=1), np.nan_to_num(error, nan=np.inf).max(axis=1), np.inf)
        i = int(np.argmin(worst))
        if worst[i] <= 3e-2 and (best is None or worst[i] < best[1]):
            best = Fit(tried.made[i], answer), float(worst[i])
    return best


def _is_possible(fit: Fit) -> bool:
    """Exclude shifted discounts in a function that has no argument for ends."""
    ends = ENDS & fit.answer.attempt.convention.kinds
    return bool(ends) or not any(name.startswith("discount_") for name in fit.guess.mistakes)


def breakable(trace: str | None, attempt: Attempt, num_mistakes: int) -> tuple[str, ...]:
    """Return the algorithms that are tried with mistakes."""
    if trace is not None:
        return (trace,) if trace in BREAKABLE else ()
    kinds = attempt.convention.kinds
    if "c" in kinds:
        return ("retrace",)
    if not {"q", "q_a", "q_online", "q_a_online"} & kinds:
        return ("vtrace",)
    of_action_values = tuple(x for x in BREAKABLE if x != "vtrace")
    return of_action_values[:4] if num_mistakes > 1 else of_action_values
