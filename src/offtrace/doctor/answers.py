"""Outputs of a function: targets, TD errors or losses, in any layout, alone or inside tuples.

Guesses about the function are converted to the form of its output before they are compared, so a
loss need not be inverted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import library
from offtrace.doctor.conventions import Convention
from offtrace.doctor.golden import TRIAL, WINDOWS
from offtrace.doctor.windows import GoldenWindow


class Form(NamedTuple):
    """One form of output, computed from targets and the values they are compared with."""

    name: str
    element: Callable[[np.ndarray, np.ndarray], np.ndarray]
    reduce: str = ""
    """"mean" or "sum" over the call, for a loss that is one number."""
    target: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """The inverse: from the output back to the targets, where that is possible."""
    clamped: bool = False
    """The correction G − Q is clamped to [−1, 1] first, as in the paper's App. F."""
    per_length: bool = False
    """The clamped correction is also divided by the length of the window."""

    def output(self, g: np.ndarray, q: np.ndarray) -> np.ndarray:
        """Return the output of one call, from its targets and its values (n, …)."""
        element = self.elements(g, q, len(g))
        if self.reduce == "mean":
            return np.asarray(element.mean())
        if self.reduce == "sum":
            return np.asarray(element.sum())
        return element

    def elements(self, g: np.ndarray, q: np.ndarray, length: Any) -> np.ndarray:
        """Return the output per step, before a loss is reduced; `length` is that of the window."""
        if self.clamped:
            g = q + np.clip(g - q, -1.0, 1.0) / (length if self.per_length else 1)
        return self.element(g, q)

    @property
    def rank(self) -> int:
        """The order of preference: targets before errors before losses."""
        return [form.name for form in FORMS].index(self.name)


def _huber(g: np.ndarray, q: np.ndarray) -> np.ndarray:
    error = np.abs(g - q)
    return np.where(error <= 1, error**2 / 2, error - 0.5)


_PER_STEP = (
    Form("targets", lambda g, q: g, target=lambda y, q: y),
    Form("TD errors, target − Q", lambda g, q: g - q, target=lambda y, q: y + q),
    Form("TD errors, Q − target", lambda g, q: q - g, target=lambda y, q: q - y),
    Form("half squared errors", lambda g, q: (g - q) ** 2 / 2),
    Form("squared errors", lambda g, q: (g - q) ** 2),
)
_PER_CALL = (
    Form("a loss, half the mean squared error", lambda g, q: (g - q) ** 2 / 2, "mean"),
    Form("a loss, the mean squared error", lambda g, q: (g - q) ** 2, "mean"),
    Form("a loss, the mean Huber error", _huber, "mean"),
    Form("a loss, half the sum of squared errors", lambda g, q: (g - q) ** 2 / 2, "sum"),
    Form("a loss, the sum of squared errors", lambda g, q: (g - q) ** 2, "sum"),
)
_CLAMPED = tuple(
    form._replace(name=f"{form.name}, the correction clamped to [−1, 1]", clamped=True, target=None)
    for form in (*_PER_STEP, *_PER_CALL)
    if "Huber" not in form.name
)
_SHARED = tuple(
    form._replace(name=f"{form.name} and divided by the window's length", per_length=True) for form in _CLAMPED[:3]
)
FORMS = (*_PER_STEP, *_PER_CALL, *_CLAMPED, *_SHARED)
_FIRST = {window.name: sum(w.n for w in WINDOWS[:i]) for i, window in enumerate(WINDOWS)}
NUM_STEPS = sum(w.n for w in WINDOWS)
_LENGTHS = np.array([w.n for w in WINDOWS for _ in range(w.n)])


@dataclass(frozen=True)
class Attempt:
    """One convention, and the outputs it got in each window."""

    convention: Convention
    windows: tuple[GoldenWindow, ...]
    outputs: tuple[tuple[np.ndarray | None, ...], ...]
    """Per window, every array that was returned: (n, streams), or () for a single number."""
    precision: float
    raised: tuple[str, ...] = ()
    """The windows in which the function raised, and its errors."""


@dataclass(frozen=True)
class Answer:
    """One array of an attempt, interpreted in one form, as one flat row of numbers.

    columns   0   1 2   3 4 …      the steps of all WINDOWS, one window after the other
    given     y   y y   y y …      one number per step, or one per call for a loss
    calls     0   1 1   2 2 …      which call a step belongs to
    """

    attempt: Attempt
    leaf: int
    """The position of the array among those that the function returned."""
    form: Form
    given: np.ndarray
    columns: np.ndarray
    """The step that each number belongs to, counted over all windows."""
    calls: np.ndarray
    """The call that each step belongs to, for losses."""
    tolerance: float = field(default=1e-9)

    def predicted(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Return the numbers that guesses predict: from (guesses, all steps) to (guesses, numbers given)."""
        element = self.form.elements(targets[:, self.columns], base[:, self.columns], _LENGTHS[self.columns])
        if not self.form.reduce:
            return element
        edges = self.call_starts
        total = np.add.reduceat(element, edges, axis=1)
        if self.form.reduce == "mean":
            return total / np.diff(np.r_[edges, len(self.calls)])
        return total

    @property
    def call_starts(self) -> np.ndarray:
        """The position of each call's first step."""
        return np.flatnonzero(np.r_[True, self.calls[1:] != self.calls[:-1]])

    @property
    def given_columns(self) -> np.ndarray:
        """The step of each number given; for a loss, the first step of its call."""
        return self.columns[self.call_starts] if self.form.reduce else self.columns

    def first_numbers(self) -> "Answer":
        """Return the answer with its first 16 numbers only."""
        if self.form.reduce:
            return self
        return replace(self, given=self.given[:16], columns=self.columns[:16], calls=self.calls[:16])

    def error(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Return the error of each guess and number, relative to the number or to 1: (guesses, numbers given)."""
        expected = self.predicted(targets, base)
        return np.abs(expected - self.given) / np.maximum(1.0, np.abs(expected))

    def fits(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Return which numbers agree: (guesses, numbers given)."""
        return self.error(targets, base) <= self.tolerance


def attempted(fn: Callable[..., Any], convention: Convention) -> Attempt:
    """Call the function with every window that the convention can express; raise if the first call fails."""
    first, precision = _call(fn, convention, TRIAL)
    windows = []
    outputs = []
    raised = []
    for window in WINDOWS:
        if not convention.expresses(window):
            continue
        try:
            leaves, _ = _call(fn, convention, window)
        except Exception as error:
            raised.append(f"{window.name}: {type(error).__name__}: {str(error).splitlines()[:1]}")
            continue
        if len(leaves) == len(first):
            windows.append(window)
            outputs.append(leaves)
    return Attempt(convention, tuple(windows), tuple(outputs), precision, tuple(raised))


def batch_answer(fn: Callable[..., Any], answer: Answer, window: GoldenWindow) -> np.ndarray:
    """Return the function's output for a window and its companions: (n, streams), or one number."""
    leaf = _call(fn, answer.attempt.convention, window)[0][answer.leaf]
    if leaf is None:
        raise ValueError(f"it returned another shape for {window.n} steps")
    return leaf


def single_answer(fn: Callable[..., Any], answer: Answer, window: GoldenWindow) -> np.ndarray:
    """Return the function's output for one window, without its companions: (n,), or one number."""
    leaf = batch_answer(fn, answer, window)
    return leaf[:, 0] if leaf.ndim else leaf.reshape(1)


def _call(
    fn: Callable[..., Any], convention: Convention, window: GoldenWindow
) -> tuple[tuple[np.ndarray | None, ...], float]:
    raw = list(_leaves(convention.call(fn, window)))
    shaped = tuple(_shaped(leaf, convention, window) for leaf in raw)
    if all(leaf is None for leaf in shaped):
        shapes = ", ".join(str(np.shape(leaf)) for leaf in raw) or "nothing"
        raise ValueError(f"it returned {shapes} for {window.n} steps")
    single = convention.library != "numpy" or any(leaf.dtype == np.float32 for leaf in raw)
    return shaped, 2e-5 if single else 1e-9


def _leaves(value: Any) -> Iterator[np.ndarray]:
    """Yield the arrays in a function's return value, in order."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple) or (isinstance(value, list) and not all(np.ndim(x) == 0 for x in value)):
        for inner in value:
            yield from _leaves(inner)
        return
    array = _as_numpy(value)
    if array.dtype.kind in "fiu":
        yield array


def _as_numpy(value: Any) -> np.ndarray:
    """Convert to NumPy, which has no bfloat16."""
    if library(value) == "torch":
        value = value.detach().cpu()
        if "bfloat16" in str(value.dtype):
            value = value.float()
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    return array


def _shaped(leaf: np.ndarray, convention: Convention, window: GoldenWindow) -> np.ndarray | None:
    """Return the output as (n, streams), or () for a loss; None where it is neither."""
    n = window.n
    if leaf.ndim == 0:
        if n == 1 and not convention.batched:
            leaf = leaf.reshape(1, 1)
        return leaf.astype(np.float64)
    if leaf.shape[-1:] == (1,) and leaf.ndim > 1 + convention.batched:
        leaf = leaf[..., 0]
    if leaf.ndim != 1 + convention.batched:
        return None
    if not convention.batched:
        table = leaf[:, None]
    elif convention.layout.startswith("batch"):
        table = leaf.T
    else:
        table = leaf
    if table.shape[0] not in (n, n + 1) or table.shape[1] != len(convention.streams(window)):
        return None
    return table[:n].astype(np.float64)


def answers_in(attempt: Attempt) -> Iterator[Answer]:
    """Yield every array of an attempt in every form it may have."""
    for leaf in range(len(attempt.outputs[0]) if attempt.outputs else 0):
        outputs = [output[leaf] for output in attempt.outputs]
        kept = [(w, x) for w, x in zip(attempt.windows, outputs, strict=True) if x is not None]
        if len(kept) < len(outputs):
            continue
        if all(x.ndim == 2 for _, x in kept):
            answers = [_answer(attempt, leaf, form, kept) for form in FORMS if not form.reduce]
            yield from filter(_is_possible, answers)
        losses = [(w, x.reshape(-1)[:1]) for w, x in kept if x.size == 1 and all(w.real)]
        if len(losses) > 1 and any(x.ndim == 0 for _, x in kept):
            answers = [_answer(attempt, leaf, form, losses) for form in FORMS if form.reduce]
            yield from filter(_is_possible, answers)


def _is_possible(answer: Answer) -> bool:
    """Exclude clamped forms where a correction is above 1."""
    if not answer.form.clamped or answer.form.reduce == "sum":
        return True
    size = np.abs(answer.given)
    if "targets" in answer.form.name:
        online = answer.attempt.convention.two_networks
        q_a = np.array([x for w in WINDOWS for x in (w.online if online else w).q_a[: w.n]])
        size = np.abs(answer.given - q_a[answer.columns])
    if answer.form.per_length:
        size = size * _LENGTHS[answer.columns]
    return bool((size <= 1 + 1e-4).all())


def _answer(attempt: Attempt, leaf: int, form: Form, kept: list[tuple[GoldenWindow, np.ndarray]]) -> Answer:
    given = []
    columns = []
    calls = []
    for call, (window, array) in enumerate(kept):
        for b, stream in enumerate(attempt.convention.streams(window)):
            for t in range(window.n):
                if not stream.real[t] and not form.reduce:
                    continue
                columns.append(_FIRST[stream.name] + t)
                calls.append(call)
                if not form.reduce:
                    given.append(array[t, b])
        if form.reduce:
            given.append(array[0])
    return Answer(attempt, leaf, form, np.array(given), np.array(columns), np.array(calls), attempt.precision)


def step_at(column: int) -> tuple[GoldenWindow, int]:
    """Return the window and the step that a column belongs to."""
    for window in WINDOWS:
        if column < _FIRST[window.name] + window.n:
            return window, column - _FIRST[window.name]
    raise IndexError(column)
