"""Windows small enough to check by hand: two actions, one to four steps, numbers that binary fractions hold exactly.

row        0        1              n−1       n
state     x_0 ──▶  x_1 ──▶ … ──▶ x_{n−1} ──▶ x_n        q, pi, mu, a: n+1 rows (a_n is drawn, but never counts)
reward    r_0      r_1            r_{n−1}               r and the flags: n rows

Where an episode ends inside a window, row t+1 is another episode's, and `true_next` holds what step t really led to.
"""

import random
from dataclasses import dataclass, replace
from functools import cached_property

Row = tuple[float, ...]
Rows = tuple[Row, ...]

GAMMA = 0.5
LAMBDA = 0.75
"""What a function that takes λ is called with: not 0 or 1, which hide mistakes, and not γ."""


@dataclass(frozen=True)
class Golden:
    """One stream of n steps, and the state after it."""

    name: str
    q: Rows
    pi: Rows
    mu: Rows
    a: tuple[int, ...]
    r: Row
    terminated: tuple[bool, ...]
    truncated: tuple[bool, ...]
    starts: tuple[bool, ...]
    """Row t does not continue row t−1."""
    real: tuple[bool, ...]
    """False for the row between two episodes that holds the first one's last state and no step."""
    true_next: tuple[tuple[int, Row, Row], ...] = ()
    """(t, Q, π) of the state that step t led to, where that is not row t+1."""
    gamma: float = GAMMA
    lambda_: float = LAMBDA
    """What a function that takes λ is called with."""

    @property
    def n(self) -> int:
        return len(self.r)

    @cached_property
    def next_q(self) -> Rows:
        """Q(x_{t+1}, ·) of each step's true successor."""
        other = {t: q for t, q, _ in self.true_next}
        return tuple(other.get(t, self.q[t + 1]) for t in range(self.n))

    @cached_property
    def next_pi(self) -> Rows:
        other = {t: pi for t, _, pi in self.true_next}
        return tuple(other.get(t, self.pi[t + 1]) for t in range(self.n))

    @cached_property
    def q_a(self) -> Row:
        return tuple(row[a] for row, a in zip(self.q, self.a, strict=True))

    @cached_property
    def pi_a(self) -> Row:
        return tuple(row[a] for row, a in zip(self.pi, self.a, strict=True))

    @cached_property
    def mu_a(self) -> Row:
        return tuple(row[a] for row, a in zip(self.mu, self.a, strict=True))

    @cached_property
    def online(self) -> "Golden":
        """The same window as another network values it: for functions that take an online and a target network."""
        return replace(
            self,
            q=tuple(_online(row, t) for t, row in enumerate(self.q)),
            true_next=tuple((t, _online(q, t + 1), pi) for t, q, pi in self.true_next),
        )

    @cached_property
    def v(self) -> Row:
        """E_π Q(x_t, ·)."""
        return tuple(dot(p, q) for p, q in zip(self.pi, self.q, strict=True))

    @cached_property
    def next_v(self) -> Row:
        return tuple(dot(p, q) for p, q in zip(self.next_pi, self.next_q, strict=True))

    @cached_property
    def needs_cut(self) -> bool:
        """An episode ends inside by truncation, so something has to say that row t+1 does not continue row t."""
        return any(self.truncated[:-1])

    @property
    def needs_true_next(self) -> bool:
        return bool(self.true_next)


def _online(row: Row, t: int) -> Row:
    """Far from the other network's, and not a multiple of it; the greedy action is the same."""
    return tuple(1.25 * x + 0.5 + 0.125 * t for x in row)


def dot(p: Row, q: Row) -> float:
    return sum(x * y for x, y in zip(p, q, strict=True))


def window(
    name: str,
    *,
    q: tuple[Row, ...],
    pi: Row,
    mu: Row,
    a: tuple[int, ...],
    r: Row,
    terminated: tuple[int, ...] = (),
    truncated: tuple[int, ...] = (),
    dummy: tuple[int, ...] = (),
    true_next: tuple[tuple[int, Row, float], ...] = (),
) -> Golden:
    """From π and μ of the first action alone; the ends are given by the rows they happen in."""
    n = len(r)
    ends = set(terminated) | set(truncated)
    return Golden(
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


ON_POLICY_PAIR = window(
    "two steps, on-policy",
    q=((1.0, 2.0), (4.0, 0.0), (2.0, 1.0)),
    pi=(0.5, 0.25, 0.75),
    mu=(0.5, 0.25, 0.75),
    a=(0, 0, 1),
    r=(1.0, 2.0),
)
TINY = 2.0**-27
TINY_MU = "two steps, the second with a tiny μ"

GOLDEN = (
    window(
        "one step, on-policy",
        q=((1.0, 2.0), (4.0, 0.0)),
        pi=(0.5, 0.25),
        mu=(0.5, 0.25),
        a=(0, 1),
        r=(1.0,),
    ),
    window(
        "one step, off-policy",
        q=((3.0, 1.0), (0.0, 2.0)),
        pi=(0.25, 0.75),
        mu=(0.5, 0.5),
        a=(0, 1),
        r=(1.0,),
    ),
    window(
        "one step, and the episode terminates",
        q=((1.0, 2.0), (4.0, 1.0)),
        pi=(0.5, 0.25),
        mu=(0.5, 0.25),
        a=(1, 0),
        r=(2.0,),
        terminated=(0,),
    ),
    window(
        "one step, and the episode is truncated",
        q=((1.0, 2.0), (4.0, 1.0)),
        pi=(0.5, 0.25),
        mu=(0.5, 0.25),
        a=(1, 0),
        r=(2.0,),
        truncated=(0,),
    ),
    ON_POLICY_PAIR,
    window(
        "two steps, the second taken more often than π would",
        q=((2.0, 1.0), (1.0, 3.0), (4.0, 2.0)),
        pi=(0.75, 0.25, 0.5),
        mu=(0.25, 0.5, 0.75),
        a=(1, 0, 0),
        r=(1.0, 3.0),
    ),
    window(
        "two steps, the second taken more rarely than π would",
        q=((2.0, 1.0), (1.0, 4.0), (0.0, 2.0)),
        pi=(0.25, 0.75, 0.5),
        mu=(0.5, 0.25, 0.25),
        a=(0, 0, 1),
        r=(2.0, 1.0),
    ),
    window(
        "two steps, and the episode terminates",
        q=((1.0, 0.0), (2.0, 3.0), (4.0, 1.0)),
        pi=(0.5, 0.75, 0.25),
        mu=(0.25, 0.5, 0.5),
        a=(1, 1, 0),
        r=(1.0, 2.0),
        terminated=(1,),
    ),
    window(
        "two steps, an episode terminates between them",
        q=((1.0, 3.0), (2.0, 0.0), (1.0, 4.0)),
        pi=(0.25, 0.5, 0.75),
        mu=(0.5, 0.5, 0.25),
        a=(0, 0, 1),
        r=(2.0, 1.0),
        terminated=(0,),
    ),
    window(
        "two steps, an episode is truncated between them",
        q=((1.0, 3.0), (2.0, 0.0), (1.0, 4.0)),
        pi=(0.25, 0.5, 0.75),
        mu=(0.5, 0.5, 0.25),
        a=(0, 0, 1),
        r=(2.0, 1.0),
        truncated=(0,),
        true_next=((0, (4.0, 2.0), 0.25),),
    ),
    window(
        TINY_MU,
        q=((1.0, 2.0), (16.0, 3.0), (2.0, 4.0)),
        pi=(0.5, TINY / 2, 0.5),
        mu=(0.25, TINY, 0.5),
        a=(0, 0, 1),
        r=(1.0, 2.0),
    ),
    window(
        "three steps, off-policy",
        q=((1.0, 2.0), (3.0, 0.0), (2.0, 5.0), (1.0, 3.0)),
        pi=(0.5, 0.25, 0.75, 0.25),
        mu=(0.5, 0.75, 0.5, 0.25),
        a=(1, 0, 1, 0),
        r=(1.0, 0.0, 2.0),
    ),
    window(
        "three rows, an episode is truncated and its last state has a row of its own",
        q=((1.0, 3.0), (4.0, 2.0), (2.0, 0.0), (1.0, 4.0)),
        pi=(0.25, 0.5, 0.75, 0.25),
        mu=(0.5, 0.5, 0.25, 0.5),
        a=(0, 0, 0, 1),
        r=(2.0, 5.0, 1.0),
        truncated=(0,),
        dummy=(1,),
    ),
)
"""In the order of their size: the first that shows a mistake is the smallest."""


def _rough(name: str, rng: random.Random, n: int, *, terminated: tuple[int, ...] = (), **ends: object) -> Golden:
    def numbers(count: int) -> Row:
        return tuple(rng.randint(-40, 40) / 8 for _ in range(count))

    def chances(count: int) -> Row:
        return tuple(rng.randint(1, 15) / 16 for _ in range(count))

    return window(
        name,
        q=tuple(numbers(2) for _ in range(n + 1)),
        pi=chances(n + 1),
        mu=chances(n + 1),
        a=tuple(rng.randint(0, 1) for _ in range(n + 1)),
        r=numbers(n),
        terminated=terminated,
        **ends,  # ty: ignore[invalid-argument-type]
    )


def _rough_windows() -> tuple[Golden, ...]:
    rng = random.Random(2016)
    return (
        *(_rough(f"rough, {n} steps, number {k}", rng, n) for n in (1, 2, 3, 4) for k in (1, 2)),
        _rough("rough, 4 steps, a termination inside", rng, 4, terminated=(1,)),
        _rough("rough, 4 steps, a termination at the end", rng, 4, terminated=(3,)),
        _rough("rough, 4 steps, two terminations", rng, 4, terminated=(0, 2)),
        _rough("rough, 4 steps, a truncation inside", rng, 4, truncated=(1,), true_next=((1, (2.5, -1.25), 0.125),)),
        _rough("rough, 4 rows, a truncation with a row of its own", rng, 4, truncated=(0,), dummy=(1,)),
        _rough("rough, 3 steps, a truncation at the end", rng, 3, truncated=(2,)),
        window(
            "rough, 3 steps, ratios far above 1",
            q=((1.25, -0.5), (0.75, 2.125), (-1.5, 0.375), (2.25, -0.875)),
            pi=(0.9375, 0.9375, 0.875, 0.5),
            mu=(0.0625, 0.015625, 0.03125, 0.5),
            a=(0, 0, 0, 1),
            r=(-0.375, 0.625, 1.125),
        ),
    )


ROUGH = _rough_windows()
"""Windows without round numbers: what fits the golden ones by coincidence does not fit these."""

WINDOWS = GOLDEN + ROUGH
_BESIDE = {n: tuple(w for w in ROUGH if w.name.startswith(f"rough, {n} steps, number")) for n in (1, 2, 3, 4)}


def companions(window: Golden) -> tuple[Golden, ...]:
    """What stands beside a window in the other streams of a batch."""
    if window.n in _BESIDE:
        return _BESIDE[window.n]
    return tuple(w for w in LARGE if w.name.startswith("beside"))


TRIAL = ROUGH[7]
"""Four steps, beside three streams and two actions: every axis has another length."""


# -- windows for what was found right: nothing about them is like the others -----------------------------------


def _large(
    name: str,
    rng: random.Random,
    *,
    terminated: tuple[int, ...] = (),
    truncated: int = -1,
    deterministic: bool = False,
) -> Golden:
    """64 steps, five actions, another γ and another λ; small numbers, so that no clamp hides anything."""
    n, num_actions = 64, 5

    def chances() -> Row:
        parts = [rng.randint(1, 16) for _ in range(num_actions)]
        return tuple(x / sum(parts) for x in parts)

    q = tuple(tuple(rng.randint(-32, 32) / 256 for _ in range(num_actions)) for _ in range(n + 1))
    pi = tuple(chances() for _ in range(n + 1))
    if deterministic:
        pi = tuple(tuple(float(b == row.index(max(row))) for b in range(num_actions)) for row in q)
    return Golden(
        name=name,
        q=q,
        pi=pi,
        mu=tuple(chances() for _ in range(n + 1)),
        a=tuple(rng.randrange(num_actions) for _ in range(n + 1)),
        r=tuple(rng.randint(-16, 16) / 256 for _ in range(n)),
        terminated=tuple(t in terminated for t in range(n)),
        truncated=tuple(t == truncated for t in range(n)),
        starts=tuple(t - 1 in (*terminated, truncated) and t > 0 for t in range(n)),
        real=(True,) * n,
        true_next=((truncated, tuple(x + 0.25 for x in q[0]), pi[0]),) if truncated >= 0 else (),
        gamma=0.875,
        lambda_=0.9375,
    )


def _large_windows() -> tuple[Golden, ...]:
    rng = random.Random(1606)
    return (
        _large("64 steps, five actions, γ = 0.875", rng),
        _large("64 steps, and terminations in them", rng, terminated=(5, 31, 32, 63)),
        _large("64 steps, and a truncation in them", rng, truncated=40),
        _large("64 steps, and a π that is greedy, so that c is often 0", rng, deterministic=True),
        _large("beside it, 1", rng),
        _large("beside it, 2", rng),
    )


def _probe(name: str, rng: random.Random, *, terminated: tuple[int, ...] = ()) -> Golden:
    """Five steps, three actions whose values are far apart, and no number that could be taken for another."""
    n, order = 5, [-2.25, 0.5, 3.0]

    def chances() -> Row:
        parts = [rng.choice((1, 2, 3, 5, 8, 24)) for _ in order]
        return tuple(x / sum(parts) for x in parts)

    pi, mu = (tuple(chances() for _ in range(n + 1)) for _ in range(2))
    highest = [max(range(3), key=lambda b: p[b] / m[b]) for p, m in zip(pi, mu, strict=True)]
    return Golden(
        name=name,
        q=tuple(tuple(x + rng.randint(-4, 4) / 8 for x in rng.sample(order, 3)) for _ in range(n + 1)),
        pi=pi,
        mu=mu,
        a=tuple(highest[t] if t % 2 else rng.randrange(3) for t in range(n + 1)),  # ratios below 1 and above
        r=tuple(rng.randint(-24, 24) / 8 for _ in range(n)),
        terminated=tuple(t in terminated for t in range(n)),
        truncated=(False,) * n,
        starts=tuple(t - 1 in terminated for t in range(n)),
        real=(True,) * n,
        gamma=0.8125,
        lambda_=0.6875,
    )


_PROBING = random.Random(1951)
PROBES = tuple(_probe(f"probe {k}", _PROBING) for k in range(6))
ENDING = tuple(_probe(f"probe with ends {t}", _PROBING, terminated=(t,)) for t in (1, 2, 4))
"""Windows in which terms are measured, without and with ends."""

LARGE = _large_windows()
"""What only looks right in a short window, with two actions or with γ = 1 − γ, is found out here."""
CONFIRMING = LARGE[:4]
