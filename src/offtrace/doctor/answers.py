"""What a function gives back: targets, TD errors or losses, in any layout, alone or inside tuples.

Guesses about the function are compared with its answers in the answer's own form, so a loss need not be inverted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from offtrace.arrays import library
from offtrace.doctor.conventions import Convention
from offtrace.doctor.golden import TRIAL, WINDOWS, Golden


class Form(NamedTuple):
    """From targets and what they are compared with to what the function returns."""

    name: str
    element: Callable[[np.ndarray, np.ndarray], np.ndarray]
    reduce: str = ""
    """mean or sum over the call, for a loss that is one number."""
    target: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """Back to the targets, where that can be done."""
    clamped: bool = False
    """The correction G − Q is clamped to [−1, 1] first, as in the paper's App. F."""
    per_length: bool = False
    """And divided by the length of the window."""

    def of(self, g: np.ndarray, q: np.ndarray) -> np.ndarray:
        """One call's answer, from its targets and its values (n, …)."""
        if self.clamped:
            g = q + np.clip(g - q, -1.0, 1.0) / (len(g) if self.per_length else 1)
        element = self.element(g, q)
        if not self.reduce:
            return element
        return np.asarray(element.mean() if self.reduce == "mean" else element.sum())

    @property
    def rank(self) -> int:
        """Targets before errors before losses."""
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
class Run:
    """One convention, and the answers it got: per window a list of arrays (n, streams), or of single numbers."""

    convention: Convention
    windows: tuple[Golden, ...]
    answers: tuple[tuple[np.ndarray | None, ...], ...]
    precision: float
    raised: tuple[str, ...] = ()
    """Windows that the function could not be called with, and why."""


@dataclass(frozen=True)
class Answer:
    """One array of a run, read in one form, as one long row of numbers."""

    run: Run
    leaf: int
    form: Form
    given: np.ndarray
    columns: np.ndarray
    """Which step of which window (of all windows, one after the other) each number belongs to."""
    calls: np.ndarray
    """Which call each step belongs to, for losses."""
    tolerance: float = field(default=1e-9)

    def predicted(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """(guesses, all steps) to (guesses, numbers given)."""
        g, q = targets[:, self.columns], base[:, self.columns]
        if self.form.clamped:
            g = q + np.clip(g - q, -1.0, 1.0) / (_LENGTHS[self.columns] if self.form.per_length else 1)
        element = self.form.element(g, q)
        if not self.form.reduce:
            return element
        edges = np.flatnonzero(np.r_[True, self.calls[1:] != self.calls[:-1]])
        total = np.add.reduceat(element, edges, axis=1)
        return total / np.diff(np.r_[edges, len(self.calls)]) if self.form.reduce == "mean" else total

    def beginning(self) -> "Answer":
        """A few of its numbers."""
        if self.form.reduce:
            return self
        return replace(self, given=self.given[:16], columns=self.columns[:16], calls=self.calls[:16])

    def off(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """(guesses, numbers given): how far from each, relative to the number or to 1."""
        expected = self.predicted(targets, base)
        return np.abs(expected - self.given) / np.maximum(1.0, np.abs(expected))

    def fits(self, targets: np.ndarray, base: np.ndarray) -> np.ndarray:
        """(guesses, numbers given): which numbers agree."""
        return self.off(targets, base) <= self.tolerance


def perform(fn: Callable[..., Any], convention: Convention) -> Run:
    """Calls the function with every window that the convention can express; raises if the first fails."""
    first, precision = _call(fn, convention, TRIAL)
    windows, answers, raised = [], [], []
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
            answers.append(leaves)
    return Run(convention, tuple(windows), tuple(answers), precision, tuple(raised))


def whole(fn: Callable[..., Any], answer: Answer, window: Golden) -> np.ndarray:
    """What the function gives for a window and those beside it: (n, streams), or one number."""
    leaf = _call(fn, answer.run.convention, window)[0][answer.leaf]
    if leaf is None:
        raise ValueError(f"gave back another shape for {window.n} steps")
    return leaf


def once(fn: Callable[..., Any], answer: Answer, window: Golden) -> np.ndarray:
    """What the function gives for one window alone: (n,), or one number."""
    leaf = whole(fn, answer, window)
    return leaf[:, 0] if leaf.ndim else leaf.reshape(1)


def _call(
    fn: Callable[..., Any], convention: Convention, window: Golden
) -> tuple[tuple[np.ndarray | None, ...], float]:
    raw = list(_leaves(convention.call(fn, window)))
    shaped = tuple(_shaped(leaf, convention, window) for leaf in raw)
    if all(leaf is None for leaf in shaped):
        shapes = ", ".join(str(np.shape(leaf)) for leaf in raw) or "nothing"
        raise ValueError(f"gave back {shapes} for {window.n} steps")
    narrow = convention.library != "numpy" or any(leaf.dtype == np.float32 for leaf in raw)
    return shaped, 2e-5 if narrow else 1e-9


def _leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays in what a function gave back, in order."""
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, tuple) or (isinstance(value, list) and not all(np.ndim(x) == 0 for x in value)):
        for inner in value:
            yield from _leaves(inner)
    else:
        if library(value) == "torch":
            value = value.detach().cpu()
            value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()
        array = np.asarray(value)
        if array.dtype.name == "bfloat16":
            array = array.astype(np.float32)
        if array.dtype.kind in "fiu":
            yield array


def _shaped(leaf: np.ndarray, convention: Convention, window: Golden) -> np.ndarray | None:
    """(n, streams), or () for a loss; None where it is neither."""
    n, streams = window.n, len(convention.streams(window))
    if leaf.ndim == 0:
        return leaf.astype(np.float64) if n > 1 or convention.batched else leaf.reshape(1, 1).astype(np.float64)
    if leaf.shape[-1:] == (1,) and leaf.ndim > 1 + convention.batched:
        leaf = leaf[..., 0]
    if leaf.ndim != 1 + convention.batched:
        return None
    table = leaf[:, None] if not convention.batched else (leaf.T if convention.layout.startswith("batch") else leaf)
    if table.shape[0] not in (n, n + 1) or table.shape[1] != streams:
        return None
    return table[:n].astype(np.float64)


def read(run: Run) -> Iterator[Answer]:
    """Every array of a run in every form it may have."""
    for leaf in range(len(run.answers[0]) if run.answers else 0):
        arrays = [answer[leaf] for answer in run.answers]
        if any(array is None for array in arrays):
            continue
        kept = [(w, x) for w, x in zip(run.windows, arrays, strict=True) if x is not None]
        if all(x.ndim == 2 for _, x in kept):
            yield from _possible(_answer(run, leaf, form, kept) for form in FORMS if not form.reduce)
        kept = [(w, x.reshape(-1)[:1]) for w, x in kept if x.size == 1 and all(w.real)]
        if len(kept) > 1 and any(x.ndim == 0 for x in arrays if x is not None):
            yield from _possible(_answer(run, leaf, form, kept) for form in FORMS if form.reduce)


def _possible(answers: Iterator[Answer]) -> Iterator[Answer]:
    """A clamp leaves no correction above 1, and some at 1."""
    for answer in answers:
        if answer.form.clamped:
            online = answer.run.convention.two_networks
            q_a = np.array([x for w in WINDOWS for x in (w.online if online else w).q_a[: w.n]])
            size = (
                np.abs(answer.given - q_a[answer.columns]) if "targets" in answer.form.name else np.abs(answer.given)
            )
            lengths = _LENGTHS[answer.columns] if answer.form.per_length else 1
            if answer.form.reduce != "sum" and not (size * lengths <= 1 + 1e-4).all():
                continue
        yield answer


def _answer(run: Run, leaf: int, form: Form, kept: list[tuple[Golden, np.ndarray]]) -> Answer:
    given, columns, calls = [], [], []
    for call, (window, array) in enumerate(kept):
        for b, stream in enumerate(run.convention.streams(window)):
            for t in range(window.n):
                if not stream.real[t] and not form.reduce:
                    continue
                columns.append(_FIRST[stream.name] + t)
                calls.append(call)
                if not form.reduce:
                    given.append(array[t, b])
        if form.reduce:
            given.append(array[0])
    return Answer(run, leaf, form, np.array(given), np.array(columns), np.array(calls), run.precision)


def place(column: int) -> tuple[Golden, int]:
    """Which step of which window a column belongs to."""
    for window in WINDOWS:
        if column < _FIRST[window.name] + window.n:
            return window, column - _FIRST[window.name]
    raise IndexError(column)
