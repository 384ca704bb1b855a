"""The small windows that functions are tested on, as plain tuples that can be checked by hand.

    row        0        1              n−1       n
    state     x_0 ──▶  x_1 ──▶ … ──▶ x_{n−1} ──▶ x_n        q, pi, mu, a: n+1 rows (a_n is drawn, but never counts)
    reward    r_0      r_1            r_{n−1}               r and the flags: n rows

Where an episode ends inside a window, row t+1 belongs to another episode, and `true_next` holds the
state that step t really led to.
"""

from dataclasses import dataclass, replace
from functools import cached_property

Floats = tuple[float, ...]
Table = tuple[Floats, ...]
"""One tuple of floats per row of a window."""

GAMMA = 0.5
LAMBDA = 0.75
"""The λ passed to a function that takes one: not 0 or 1, which hide mistakes, and not γ."""


@dataclass(frozen=True)
class GoldenWindow:
    """One stream of n steps, and the state after it."""

    name: str
    q: Table
    pi: Table
    mu: Table
    a: tuple[int, ...]
    r: Floats
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    starts: tuple[bool, ...]
    """True where row t does not continue row t−1."""
    real: tuple[bool, ...]
    """False for a row between two episodes that holds the first one's last state, and is not a step."""
    true_next: tuple[tuple[int, Floats, Floats], ...] = ()
    """(t, Q, π) of the state that step t led to, where that is not row t+1."""
    gamma: float = GAMMA
    lambda_: float = LAMBDA

    @property
    def n(self) -> int:
        return len(self.r)

    @cached_property
    def next_q(self) -> Table:
        """Q(x_{t+1}, ·) of each step's true successor."""
        other = {t: q for t, q, _ in self.true_next}
        return tuple(other.get(t, self.q[t + 1]) for t in range(self.n))

    @cached_property
    def next_pi(self) -> Table:
        """π(·|x_{t+1}) of each step's true successor."""
        other = {t: pi for t, _, pi in self.true_next}
        return tuple(other.get(t, self.pi[t + 1]) for t in range(self.n))

    @cached_property
    def q_a(self) -> Floats:
        return tuple(row[a] for row, a in zip(self.q, self.a, strict=True))

    @cached_property
    def pi_a(self) -> Floats:
        return tuple(row[a] for row, a in zip(self.pi, self.a, strict=True))

    @cached_property
    def mu_a(self) -> Floats:
        return tuple(row[a] for row, a in zip(self.mu, self.a, strict=True))

    @cached_property
    def online(self) -> "GoldenWindow":
        """The same window with the values of another network, for functions of an online and a target network."""
        return replace(
            self,
            q=tuple(_online(row, t) for t, row in enumerate(self.q)),
            true_next=tuple((t, _online(q, t + 1), pi) for t, q, pi in self.true_next),
        )

    @cached_property
    def v(self) -> Floats:
        """E_π Q(x_t, ·)."""
        return tuple(dot(p, q) for p, q in zip(self.pi, self.q, strict=True))

    @cached_property
    def next_v(self) -> Floats:
        """E_π Q(x_{t+1}, ·) of each step's true successor."""
        return tuple(dot(p, q) for p, q in zip(self.next_pi, self.next_q, strict=True))

    @cached_property
    def needs_cut(self) -> bool:
        """True if an episode is truncated inside, so that a flag must say that row t+1 does not continue row t."""
        return any(self.truncated[:-1])

    @property
    def needs_true_next(self) -> bool:
        return bool(self.true_next)


def _online(row: Floats, t: int) -> Floats:
    """Return values far from the other network's and not a multiple of them, with the same greedy action."""
    return tuple(1.25 * x + 0.5 + 0.125 * t for x in row)


def dot(p: Floats, q: Floats) -> float:
    return sum(x * y for x, y in zip(p, q, strict=True))


def window(
    name: str,
    *,
    q: tuple[Floats, ...],
    pi: Floats,
    mu: Floats,
    a: tuple[int, ...],
    r: Floats,
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    dummy: tuple[int, ...] = (),
    true_next: tuple[tuple[int, Floats, float], ...] = (),
) -> GoldenWindow:
    """Build a window of two actions from π and μ of the first one; the flags are given as row numbers."""
    n = len(r)
    ends = set(terminated) | set(truncated)
    return GoldenWindow(
        name=name,
        q=q,
        pi=tuple((p, 1 - p) for p in pi),
        mu=tuple((p, 1 - p) for p in mu),
        a=a,
        r=r,
        terminated=tuple(t in terminated for t in range(n)),
        truncated=tuple(t in truncated for t in range(n)),
        starts=tuple(t - 1 in ends or t in dummy or t - 1 in dummy for t in range(n)),
        real=tuple(t not in dummy for t in range(n)),
        true_next=tuple((t, row, (p, 1 - p)) for t, row, p in true_next),
    )
