"""Which explanation fits: right, one known mistake, two of them, or none."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.answers import NUM_STEPS, Answer, Run, once, place, whole
from offtrace.doctor.golden import (
    CONFIRMING,
    GAMMA,
    GOLDEN,
    LAMBDA,
    ON_POLICY_PAIR,
    ROUGH,
    TINY_MU,
    WINDOWS,
    Golden,
    Row,
)
from offtrace.doctor.mistakes import (
    BREAKABLE,
    MISTAKES,
    RIGHT,
    RIGHT_OF_TWO,
    Mistake,
    Reading,
    base,
    reading,
    targets,
)

EXACT = tuple(w for w in GOLDEN if w.n <= 2 and w.name != TINY_MU)
SINGLE = 2e-5
"""How far float32 may be off."""
COMMON_LAMBDAS = (1.0, 0.95, 0.9, 0.99, 0.97, 0.8, 0.75, 0.7, 0.5, 0.25)


@dataclass(frozen=True)
class Guess:
    """What a function may be: an algorithm, its λ and γ, and the mistakes in it."""

    algorithm: str
    lambda_: float
    how: Reading = RIGHT
    mistakes: tuple[str, ...] = ()
    right: Reading = RIGHT
    """The reading without those mistakes."""
    gamma: float = GAMMA

    def corrected(self) -> "Guess":
        return replace(self, how=self.right, mistakes=())

    def on(self, window: Golden) -> tuple[np.ndarray, np.ndarray]:
        """Targets, and what errors are measured against, in one window."""
        window = window if self.gamma == GAMMA else replace(window, gamma=self.gamma)
        g = targets(window, self.algorithm, self.lambda_, self.how)
        return np.array(g), np.array(base(window, self.algorithm, self.how)[: window.n])


@dataclass(frozen=True)
class Fit:
    """A guess that gives every number the function gave."""

    guess: Guess
    answer: Answer


# -- guesses --------------------------------------------------------------------------------------------------


class Takes(NamedTuple):
    """What the function takes that decides which mistakes can be asked about."""

    lambda_: bool = True
    two_networks: bool = False
    gamma: float = GAMMA

    def may_have(self, entry: Mistake) -> bool:
        return {"": True, "lambda": self.lambda_, "two_networks": self.two_networks}[entry.needs]


@lru_cache(maxsize=64)
def guesses(algorithms: tuple[str, ...], lambdas: tuple[float, ...], count: int, takes: Takes) -> "Guesses":
    """Every way to make `count` mistakes; without a known λ the mistakes in λ cannot be told from another λ."""
    entries = [entry for entry in MISTAKES.values() if takes.may_have(entry)]
    made: list[Guess] = []
    rights = RIGHT_OF_TWO[: 1 if count > 1 else 2] if takes.two_networks else (RIGHT,)
    for right, chosen in itertools.product(rights, itertools.combinations(entries, count)):
        names = tuple(m.name for m in chosen)
        shown = (m.variants[: 1 if m.choice else 6] if count > 1 else m.variants for m in chosen)
        for changes in itertools.product(*shown):
            how = reading(*changes, right=right)
            if how is not None:
                made += [
                    Guess(algorithm, lam, how, names, right, takes.gamma)
                    for algorithm in algorithms
                    for lam in (lambdas if algorithm != "one_step" else (0.0,))
                ]
    return Guesses(made)


class Guesses:
    """Guesses, and the numbers they stand for."""

    def __init__(self, made: list[Guess]) -> None:
        self.made = made
        rows = [[guess.on(w) for w in WINDOWS] for guess in made]
        self.targets, self.base = (
            np.array([np.concatenate([pair[i] for pair in row]) for row in rows]).reshape(len(made), NUM_STEPS)
            for i in (0, 1)
        )

    def fitting(self, answer: Answer) -> list[Guess]:
        left = np.arange(len(self.made))
        for part in (answer.beginning(), answer):  # most guesses are out after a few numbers
            if len(left):
                left = left[part.fits(self.targets[left], self.base[left]).all(axis=1)]
        return [self.made[i] for i in left]

    def nearest(self, answer: Answer) -> tuple[Guess, float]:
        """The guess that comes closest, and how close, at most 1; the first of those that are nearly as good."""
        off = np.abs(answer.predicted(self.targets, self.base) - answer.given)
        closeness = np.exp(-off).mean(axis=1)
        best = int(np.argmax(closeness >= 0.9 * closeness.max()))
        return self.made[best], float(closeness[best])


# -- λ ---------------------------------------------------------------------------------------------------------


def known_lambda(answer: Answer, given: float | None) -> float | None:
    """λ if the function takes it, or if somebody said it."""
    return LAMBDA if answer.run.convention.knows_lambda else given


def inferred(answer: Answer, algorithms: tuple[str, ...], count: int, takes: Takes) -> "Guesses":
    """For each guess the λ that short windows say, where G is linear in it: G(λ) = G(0) + λ (G(1) − G(0))."""
    at_0, half, at_1 = (guesses(algorithms, (lam,), count, takes) for lam in (0.0, 0.5, 1.0))
    if answer.form.target is None or not at_0.made:
        return guesses(algorithms, COMMON_LAMBDAS[: (None, 5, 3)[count]], count, takes)
    # With nothing wrong one on-policy pair is enough, and every trace, Markov or not, is linear in λ there.
    wanted = (ON_POLICY_PAIR,) if count == 0 else tuple(w for w in WINDOWS if w.n <= 2)
    here = [i for i, column in enumerate(answer.columns) if place(int(column))[0] in wanted]
    columns = answer.columns[here]
    shown = answer.form.target(answer.given[here], at_0.base[:, columns])
    start, slope = at_0.targets[:, columns], (at_1.targets - at_0.targets)[:, columns]
    linear = np.abs(start + slope / 2 - half.targets[:, columns]) < 1e-12 * np.maximum(1.0, np.abs(start))
    slope = np.where(linear, slope, 0.0)
    steepest = np.argmax(np.abs(slope), axis=1)[:, None]
    divisor = np.take_along_axis(slope, steepest, 1)[:, 0]
    seen = np.take_along_axis(shown - start, steepest, 1)[:, 0]
    lam = np.where(divisor != 0, seen / np.where(divisor != 0, divisor, 1.0), 1.0)
    near = np.abs(start + lam[:, None] * slope - shown) <= 10 * answer.tolerance * np.maximum(1.0, np.abs(shown))
    plausible = (lam > 0.001) & (lam < 1.001) & ((near | ~linear).all(axis=1) | (count == 0))
    made = [
        replace(guess, lambda_=guess.lambda_ if guess.algorithm == "one_step" else _snapped(x, answer.tolerance))
        for guess, x, keep in zip(at_0.made, lam, plausible, strict=True)
        if keep or guess.algorithm == "one_step"
    ]
    return Guesses(made)


def _snapped(lam: float, tolerance: float) -> float:
    """0.9 for 0.9000001."""
    short = round(float(lam), 4)
    return short if abs(short - lam) <= 100 * tolerance else min(1.0, float(lam))


COMMON_GAMMAS = (0.99, 0.9, 0.95, 0.999, 0.997, 1.0)


def gammas(answer: Answer) -> tuple[float, ...]:
    """γ as it was given; of a function that takes none, what one on-policy step says: G = r + γ E_π Q."""
    if {"gamma", "discount"} & answer.run.convention.kinds:
        return (GAMMA,)
    if answer.form.target is None:
        return (GAMMA, *COMMON_GAMMAS)
    windows = [place(int(column))[0] for column in answer.columns]
    first = next((i for i, w in enumerate(windows) if w is GOLDEN[0]), None)
    if first is None:
        return (GAMMA, *COMMON_GAMMAS)
    w = GOLDEN[0]
    q_a = (w.online if answer.run.convention.two_networks else w).q_a[:1]
    g = answer.form.target(answer.given[[first]], np.array(q_a))[0]
    gamma = _snapped((g - w.r[0]) / w.next_v[0], answer.tolerance)
    return (gamma,) if 0 < gamma <= 1 else (GAMMA,)


# -- fitting ----------------------------------------------------------------------------------------------------


def fitting(answer: Answer, algorithms: tuple[str, ...], given: float | None, count: int) -> list[Fit]:
    """The guesses with this many mistakes that give every number this answer has."""
    fits = [
        Fit(guess, answer) for tried in guessed(answer, algorithms, given, count) for guess in tried.fitting(answer)
    ]
    return [fit for fit in fits if _can_be_made(fit)] or fits


def guessed(answer: Answer, algorithms: tuple[str, ...], given: float | None, count: int) -> "Iterator[Guesses]":
    """With every λ and γ that it may have."""
    lam = known_lambda(answer, given)
    for gamma in gammas(answer) if count < 2 else gammas(answer)[:1]:
        takes = Takes(lam is not None, answer.run.convention.two_networks, gamma)
        yield inferred(answer, algorithms, count, takes) if lam is None else guesses(algorithms, (lam,), count, takes)


def rounded(answer: Answer, algorithms: tuple[str, ...], given: float | None) -> tuple[Fit, float] | None:
    """The right guess that differs by rounding alone, and by how much; half precision has no tiny μ."""
    loose = 3e-2
    here = np.array([place(int(column))[0].name != TINY_MU for column in answer.columns])
    best: tuple[Fit, float] | None = None
    if answer.form.reduce or answer.form.clamped:
        return None
    for tried in guessed(answer, algorithms, given, 0):
        if not tried.made:
            continue
        off = answer.off(tried.targets, tried.base)[:, here]
        # Rounding leaves short windows of round numbers exact; half precision leaves few of the others so.
        places = [place(int(column)) for column in answer.columns[here]]
        exact, rough = np.array([(w in EXACT, w in ROUGH and t + 1 < w.n) for w, t in places]).T
        some = (off[:, rough] > 1e-12).mean(axis=1) < 0.4
        systematic = (off[:, exact] > 1e-7).any(axis=1) | (some & (off > SINGLE).any(axis=1))
        off = off + np.where(systematic, np.inf, 0.0)[:, None]
        worst = np.where(np.isfinite(off).all(axis=1), np.nan_to_num(off, nan=np.inf).max(axis=1), np.inf)
        i = int(np.argmin(worst))
        if worst[i] <= loose and (best is None or worst[i] < best[1]):
            best = Fit(tried.made[i], answer), float(worst[i])
    return best


def _can_be_made(fit: Fit) -> bool:
    """A function that is told of no ends cannot see them one step early or late."""
    ends = {"discount", "not_done", "terminated", "done"} & fit.answer.run.convention.kinds
    return bool(ends) or not any(name.startswith("discount_") for name in fit.guess.mistakes)


def breakable(trace: str | None, run: Run, count: int) -> tuple[str, ...]:
    """The algorithms that are tried with mistakes in them."""
    if trace is not None:
        return (trace,) if trace in BREAKABLE else ()
    if "c" in run.convention.kinds:
        return ("retrace",)
    state_values = not {"q", "q_a", "q_online", "q_a_online"} & run.convention.kinds
    if state_values:
        return ("vtrace",)
    return tuple(x for x in BREAKABLE if x != "vtrace")[: 4 if count > 1 else None]


# -- where it parts, and evidence -----------------------------------------------------------------------------


def first_difference(answer: Answer, guess: Guess) -> tuple[Golden, int, float, float]:
    """The smallest window, the step, the number given and the right one; losses are one number per window."""
    one = Guesses([guess])
    wrong = np.flatnonzero(~answer.fits(one.targets, one.base)[0])
    expected = answer.predicted(one.targets, one.base)[0]
    columns = _starts(answer) if answer.form.reduce else answer.columns
    index = min(wrong, key=lambda i: (WINDOWS.index(place(int(columns[i]))[0]), -place(int(columns[i]))[1]))
    window, t = place(int(columns[index]))
    return window, t, float(answer.given[index]), float(expected[index])


def row_of(answer: Answer, guess: Guess, window: Golden) -> tuple[list[float], list[float]]:
    """All numbers given for one window, and the right ones."""
    one = Guesses([guess])
    expected = answer.predicted(one.targets, one.base)[0]
    columns = _starts(answer) if answer.form.reduce else answer.columns
    steps: dict[int, int] = {}
    for i, column in enumerate(columns):
        if place(int(column))[0] == window:
            steps.setdefault(place(int(column))[1], i)
    chosen = [steps[t] for t in sorted(steps)]
    return [float(answer.given[i]) for i in chosen], [float(expected[i]) for i in chosen]


def _starts(answer: Answer) -> np.ndarray:
    return answer.columns[np.flatnonzero(np.r_[True, answer.calls[1:] != answer.calls[:-1]])]


class Doubt(NamedTuple):
    """A window where a guess fails that holds in the small ones."""

    window: str
    said: str
    raised: bool = False


def doubts(fn: Callable[..., Any], fit: Fit) -> list[Doubt]:
    """Where a function that fits is wrong after all: long windows, many actions, c = 0, another γ and λ."""
    convention, form, found = fit.answer.run.convention, fit.answer.form, []
    for window in CONFIRMING:
        if not convention.expresses(window):
            continue
        lam = window.lambda_ if convention.knows_lambda and fit.guess.algorithm != "one_step" else fit.guess.lambda_
        guess = replace(fit.guess, lambda_=lam)
        if {"gamma", "discount"} & convention.kinds:
            guess = replace(guess, gamma=window.gamma)
        try:
            given = whole(fn, fit.answer, window)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0][:90]
            found.append(Doubt(window.name, f"it raises {type(error).__name__}: {line}", raised=True))
            continue
        columns = [guess.on(stream) for stream in convention.streams(window)]
        expected = form.of(*(np.stack([column[i] for column in columns], axis=-1) for i in (0, 1)))
        if given.shape != expected.shape:
            found.append(Doubt(window.name, f"it gives {given.shape}, not {expected.shape}"))
            continue
        with np.errstate(invalid="ignore"):
            off = np.abs(given - expected) / np.maximum(1.0, np.abs(expected))
        off = np.where((given == expected) | (np.isnan(given) & np.isnan(expected)), 0.0, off)
        if not (off <= 3 * fit.answer.tolerance).all():
            bad = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
            wrong, right = given.reshape(-1)[bad], expected.reshape(-1)[bad]
            found.append(Doubt(window.name, f"it gives {wrong:.6g} where {right:.6g} is right"))
    return found


def evidence(fn: Callable[..., Any], answer: Answer, guess: Guess, window: Golden) -> list[str]:
    """Which inputs the answer wrongly depends on, or wrongly does not, by changing them one at a time."""
    lines: list[str] = []
    amounts: list[str] = []
    before, right_before = _both(fn, answer, guess, window)
    for name, changed in _changes(window):
        try:
            after, right_after = _both(fn, answer, guess, changed)
        except Exception as error:
            lines.append(f"raises {type(error).__name__} when {name} is changed")
            continue
        for t in range(len(before)):
            if len(before) == window.n and not window.real[t]:
                continue
            moved, should = after[t] - before[t], right_after[t] - right_before[t]
            near = answer.tolerance * max(1.0, abs(before[t]), abs(right_before[t])) * 4
            if abs(moved) > near >= abs(should):
                lines.append(f"step {t}: depends on {name}, and should not")
            elif abs(should) > near >= abs(moved):
                lines.append(f"step {t}: does not depend on {name}, and should")
            elif abs(moved - should) > near:
                amounts.append(f"step {t}: {name} moves it by {moved:.4g}, and should by {should:.4g}")
    return lines or amounts


def _both(fn: Callable[..., Any], answer: Answer, guess: Guess, window: Golden) -> tuple[np.ndarray, np.ndarray]:
    """What the function gives for a window, and what the guess says."""
    given = once(fn, answer, window)
    expected = answer.form.of(*guess.on(window))
    return given, expected.reshape(-1)


def _changes(window: Golden) -> Sequence[tuple[str, Golden]]:
    """The window with one of its inputs changed, and the name of that input."""
    out = [(f"r_{t}", replace(window, r=_put(window.r, t, window.r[t] + 1.0))) for t in range(window.n)]
    for t in range(window.n + 1):
        for b in range(2):
            row = _put(window.q[t], b, window.q[t][b] + 0.375)
            taken = " (the action taken)" if window.a[t] == b and t < window.n else ""
            out.append((f"Q(x_{t},{b}){taken}", replace(window, q=_put(window.q, t, row))))
        for name, rows in (("π", window.pi), ("μ", window.mu)):
            p = rows[t][0] / 2 + 0.03125
            changed = _put(rows, t, (p, 1 - p))
            both = replace(window, pi=changed) if name == "π" else replace(window, mu=changed)
            out.append((f"{name}(·|x_{t})", both))
    for t, q, pi in window.true_next:
        others = tuple(x for x in window.true_next if x[0] != t)
        moved: Row = tuple(x + 0.5 for x in q)
        out.append((f"Q of the true state after step {t}", replace(window, true_next=(*others, (t, moved, pi)))))
    return out


def _put(rows: Any, t: int, value: Any) -> Any:
    return (*rows[:t], value, *rows[t + 1 :])
