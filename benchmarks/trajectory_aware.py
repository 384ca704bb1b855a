"""Targets of recursive Retrace (Eq. 9), whose trace depends on where it started: O(n²), where
Retrace is O(n).

β_t = 1 at the start t, β_s = λ min(1, β_{s−1} ρ_s) after it, and
target_t = Q(x_t, a_t) + Σ_s γ_t ⋯ γ_{s−1} β_s δ_s. λ = 1, float32, on the CPU.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import offtrace as ot
from offtrace.bench import Benchmark

Function = Callable[[], np.ndarray]


class Window(NamedTuple):
    """n steps of B windows: q, pi (n+1, B, A); a, r, discount, mu_a (n, B)."""

    q: np.ndarray
    pi: np.ndarray
    a: np.ndarray
    r: np.ndarray
    discount: np.ndarray
    mu_a: np.ndarray


def window(shape: tuple[int, int, int]) -> Window:
    n, batch, actions = shape
    rng = np.random.default_rng(0)
    pi = rng.random((n + 1, batch, actions), dtype=np.float32) + np.float32(0.01)
    pi /= pi.sum(axis=-1, keepdims=True)
    return Window(
        q=rng.standard_normal((n + 1, batch, actions), dtype=np.float32),
        pi=pi,
        a=rng.integers(actions, size=(n, batch)),
        r=rng.standard_normal((n, batch), dtype=np.float32),
        discount=np.where(rng.random((n, batch)) < 0.01, 0, 0.99).astype(np.float32),
        mu_a=rng.uniform(0.5 / actions, 2 / actions, (n, batch)).astype(np.float32),
    )


def steps(w: Window) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Q(x_t, a_t), δ_t and ρ_t, each (n, B)."""
    taken = w.a[..., None]
    q_a = np.take_along_axis(w.q[:-1], taken, axis=-1)[..., 0]
    ratio = np.take_along_axis(w.pi[:-1], taken, axis=-1)[..., 0] / w.mu_a
    delta = w.r + w.discount * np.einsum("tba,tba->tb", w.pi[1:], w.q[1:]) - q_a
    return q_a, delta, ratio


def definition(w: Window) -> np.ndarray:
    """Compute the targets one start after the other, in float64."""
    exact = Window(*(array if array.dtype.kind == "i" else array.astype(np.float64) for array in w))
    return numpy_double_loop(exact)()


def ours(w: Window) -> Function:
    arguments = w._asdict()
    trace = ot.RecursiveRetrace(1.0)
    return lambda: ot.targets(**arguments, trace=trace, validate=False)


def ours_checked(w: Window) -> Function:
    arguments = w._asdict()
    trace = ot.RecursiveRetrace(1.0)
    return lambda: ot.targets(**arguments, trace=trace, validate=True)


def numpy_double_loop(w: Window) -> Function:
    """For each start, go to the end; every step is one operation over the batch."""

    def targets() -> np.ndarray:
        q_a, delta, ratio = steps(w)
        target = q_a + delta
        for start in range(len(w.r)):
            beta = np.ones_like(w.r[0])
            discount = w.discount[start]
            for s in range(start + 1, len(w.r)):
                beta = np.minimum(1, beta * ratio[s])
                target[start] += discount * beta * delta[s]
                discount = discount * w.discount[s]
        return target

    return targets


def numpy_all_starts(w: Window) -> Function:
    """Go through the window once; every step is one operation over all earlier starts and the batch."""

    def targets() -> np.ndarray:
        q_a, delta, ratio = steps(w)
        target = q_a + delta
        beta = np.ones_like(w.r)
        discount = w.discount.copy()
        for s in range(1, len(w.r)):
            beta[:s] = np.minimum(1, beta[:s] * ratio[s])
            target[:s] += discount[:s] * beta[:s] * delta[s]
            discount[:s] *= w.discount[s]
        return target

    return targets


BENCHMARK = Benchmark(
    name="trajectory_aware",
    question="How long does one call for recursive Retrace targets take? (n steps, B windows, A actions)",
    rows=((16, 4, 6), (16, 64, 6), (64, 64, 6), (256, 16, 6)),
    quick_rows=2,
    problem=window,
    answer=definition,
    contenders={
        "offtrace": ours,
        "offtrace, checked": ours_checked,
        "NumPy, one start at a time": numpy_double_loop,
        "NumPy, all starts": numpy_all_starts,
    },
    ours=("offtrace",),
)
