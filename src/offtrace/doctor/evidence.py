"""Evidence of an error: the first difference, failures in long windows, inputs with a wrong effect."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from offtrace.doctor.answers import Answer, batch_answer, single_answer, step_at
from offtrace.doctor.golden import CONFIRMING, WINDOWS
from offtrace.doctor.search import Fit, Guess, Guesses
from offtrace.doctor.windows import Floats, GoldenWindow


class Difference(NamedTuple):
    """The smallest window in which an answer and a guess differ, and the numbers on both sides."""

    window: GoldenWindow
    step: int
    given: float
    expected: float
    given_row: tuple[float, ...]
    """All numbers given for this window."""
    expected_row: tuple[float, ...]


def first_difference(answer: Answer, guess: Guess) -> Difference:
    """Return the first difference; a loss is one number per window."""
    one = Guesses([guess])
    wrong = np.flatnonzero(~answer.fits(one.targets, one.base)[0])
    expected = answer.predicted(one.targets, one.base)[0]
    steps = [step_at(int(column)) for column in answer.given_columns]
    index = min(wrong, key=lambda i: (WINDOWS.index(steps[i][0]), -steps[i][1]))
    window, t = steps[index]
    rows: dict[int, int] = {}  # a window may be in several calls, as a companion: the first one counts
    for i, (other, step) in enumerate(steps):
        if other == window:
            rows.setdefault(step, i)
    shown = [rows[step] for step in sorted(rows)]
    return Difference(
        window=window,
        step=t,
        given=float(answer.given[index]),
        expected=float(expected[index]),
        given_row=tuple(float(answer.given[i]) for i in shown),
        expected_row=tuple(float(expected[i]) for i in shown),
    )


class Failure(NamedTuple):
    """A long window in which a guess fails that holds in the small ones."""

    window: str
    text: str
    raised: bool = False


def failures(fn: Callable[..., Any], fit: Fit) -> list[Failure]:
    """Try a function that fits in long windows, with many actions, c = 0, another γ and another λ."""
    convention = fit.answer.attempt.convention
    found = []
    for window in CONFIRMING:
        if not convention.expresses(window):
            continue
        failure = _failure(fn, fit, window)
        if failure is not None:
            found.append(failure)
    return found


def _failure(fn: Callable[..., Any], fit: Fit, window: GoldenWindow) -> Failure | None:
    convention = fit.answer.attempt.convention
    guess = fit.guess
    if convention.knows_lambda and guess.algorithm != "one_step":
        guess = replace(guess, lambda_=window.lambda_)
    if convention.takes_gamma:
        guess = replace(guess, gamma=window.gamma)
    try:
        given = batch_answer(fn, fit.answer, window)
    except Exception as error:  # the user's function may raise anything on these inputs
        line = (str(error).splitlines() or [""])[0][:90]
        return Failure(window.name, f"it raises {type(error).__name__}: {line}", raised=True)
    predicted = [guess.on(stream) for stream in convention.streams(window)]
    expected = fit.answer.form.output(
        np.stack([g for g, _ in predicted], axis=-1), np.stack([base for _, base in predicted], axis=-1)
    )
    if given.shape != expected.shape:
        return Failure(window.name, f"its output has shape {given.shape}; it should be {expected.shape}")
    with np.errstate(invalid="ignore"):
        error = np.abs(given - expected) / np.maximum(1.0, np.abs(expected))
    error = np.where((given == expected) | (np.isnan(given) & np.isnan(expected)), 0.0, error)
    if (error <= 3 * fit.answer.tolerance).all():
        return None
    worst = int(np.argmax(np.where(np.isfinite(error), error, np.inf)))
    wrong = given.reshape(-1)[worst]
    right = expected.reshape(-1)[worst]
    return Failure(window.name, f"it returns {wrong:.6g}; {right:.6g} is right")


def wrong_dependencies(fn: Callable[..., Any], answer: Answer, guess: Guess, window: GoldenWindow) -> list[str]:
    """Change the inputs one at a time, and return those that have an effect they should not have, or lack one."""
    wrong: list[str] = []
    amounts: list[str] = []
    before, right_before = _both(fn, answer, guess, window)
    for name, changed in _changes(window):
        try:
            after, right_after = _both(fn, answer, guess, changed)
        except Exception as error:  # the user's function may raise anything on these inputs
            wrong.append(f"it raises {type(error).__name__} when {name} is changed")
            continue
        for t in range(len(before)):
            if len(before) == window.n and not window.real[t]:
                continue
            moved = after[t] - before[t]
            should = right_after[t] - right_before[t]
            near = answer.tolerance * max(1.0, abs(before[t]), abs(right_before[t])) * 4
            if abs(moved) > near >= abs(should):
                wrong.append(f"step {t} depends on {name}, but should not")
            elif abs(should) > near >= abs(moved):
                wrong.append(f"step {t} does not depend on {name}, but should")
            elif abs(moved - should) > near:
                amounts.append(f"step {t}: changing {name} changes it by {moved:.4g}, and should by {should:.4g}")
    return wrong or amounts


def _both(
    fn: Callable[..., Any], answer: Answer, guess: Guess, window: GoldenWindow
) -> tuple[np.ndarray, np.ndarray]:
    """Return what the function gives for a window, and what the guess predicts."""
    given = single_answer(fn, answer, window)
    expected = answer.form.output(*guess.on(window))
    return given, expected.reshape(-1)


def _changes(window: GoldenWindow) -> Iterator[tuple[str, GoldenWindow]]:
    """Yield the name of each input, and the window with that input changed."""
    for t in range(window.n):
        yield f"r_{t}", replace(window, r=_put(window.r, t, window.r[t] + 1.0))
    for t in range(window.n + 1):
        for b in range(2):
            row = _put(window.q[t], b, window.q[t][b] + 0.375)
            taken = " (the action taken)" if window.a[t] == b and t < window.n else ""
            yield f"Q(x_{t},{b}){taken}", replace(window, q=_put(window.q, t, row))
        yield f"π(·|x_{t})", replace(window, pi=_put(window.pi, t, _moved(window.pi[t])))
        yield f"μ(·|x_{t})", replace(window, mu=_put(window.mu, t, _moved(window.mu[t])))
    for t, q, pi in window.true_next:
        others = tuple(x for x in window.true_next if x[0] != t)
        moved = (t, tuple(x + 0.5 for x in q), pi)
        yield f"Q of the true state after step {t}", replace(window, true_next=(*others, moved))


def _moved(probabilities: Floats) -> Floats:
    """Return another distribution over two actions."""
    p = probabilities[0] / 2 + 0.03125
    return p, 1 - p


def _put(rows: Any, t: int, value: Any) -> Any:
    return (*rows[:t], value, *rows[t + 1 :])
