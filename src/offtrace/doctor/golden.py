"""The windows: golden ones to check by hand, rough ones, long ones, and probes for measuring terms.

Golden windows have two actions, one to three steps, and numbers that binary fractions hold exactly.
"""

import random

from offtrace.doctor.windows import Floats, GoldenWindow, window

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
        "two steps, the second action likelier under μ than under π",
        q=((2.0, 1.0), (1.0, 3.0), (4.0, 2.0)),
        pi=(0.75, 0.25, 0.5),
        mu=(0.25, 0.5, 0.75),
        a=(1, 0, 0),
        r=(1.0, 3.0),
    ),
    window(
        "two steps, the second action likelier under π than under μ",
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
        "three rows, a truncated episode whose last state has its own row",
        q=((1.0, 3.0), (4.0, 2.0), (2.0, 0.0), (1.0, 4.0)),
        pi=(0.25, 0.5, 0.75, 0.25),
        mu=(0.5, 0.5, 0.25, 0.5),
        a=(0, 0, 0, 1),
        r=(2.0, 5.0, 1.0),
        truncated=(0,),
        dummy=(1,),
    ),
)
"""Sorted by size, so that the first one that shows a mistake is the smallest."""


def _rough(
    name: str, rng: random.Random, n: int, *, terminated: tuple[int, ...] = (), **ends: object
) -> GoldenWindow:
    def numbers(count: int) -> Floats:
        return tuple(rng.randint(-40, 40) / 8 for _ in range(count))

    def chances(count: int) -> Floats:
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


def _rough_windows() -> tuple[GoldenWindow, ...]:
    rng = random.Random(2016)
    return (
        *(_rough(f"rough, {n} steps, number {k}", rng, n) for n in (1, 2, 3, 4) for k in (1, 2)),
        _rough("rough, 4 steps, a termination inside", rng, 4, terminated=(1,)),
        _rough("rough, 4 steps, a termination at the end", rng, 4, terminated=(3,)),
        _rough("rough, 4 steps, two terminations", rng, 4, terminated=(0, 2)),
        _rough("rough, 4 steps, a truncation inside", rng, 4, truncated=(1,), true_next=((1, (2.5, -1.25), 0.125),)),
        _rough("rough, 4 rows, a truncation whose last state has its own row", rng, 4, truncated=(0,), dummy=(1,)),
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
"""Windows without round numbers. A guess that fits the golden ones by coincidence does not fit these."""

WINDOWS = GOLDEN + ROUGH
_BESIDE = {n: tuple(w for w in ROUGH if w.name.startswith(f"rough, {n} steps, number")) for n in (1, 2, 3, 4)}


def usual_companions(window: GoldenWindow) -> tuple[GoldenWindow, ...]:
    """Return the windows in the other streams of a batch."""
    if window.n in _BESIDE:
        return _BESIDE[window.n]
    return tuple(w for w in LARGE if w.name.startswith("beside"))


TRIAL = ROUGH[7]
"""The first window tried: four steps, three streams, two actions, so every axis has a different length."""


# -- long windows, which confirm a verdict reached on the short ones -------------------------------


def _large(
    name: str,
    rng: random.Random,
    *,
    terminated: tuple[int, ...] = (),
    truncated: int = -1,
    deterministic: bool = False,
) -> GoldenWindow:
    """64 steps, five actions, another γ and another λ; small numbers, so that no clamp hides anything."""
    n = 64
    num_actions = 5

    def chances() -> Floats:
        parts = [rng.randint(1, 16) for _ in range(num_actions)]
        return tuple(x / sum(parts) for x in parts)

    q = tuple(tuple(rng.randint(-32, 32) / 256 for _ in range(num_actions)) for _ in range(n + 1))
    pi = tuple(chances() for _ in range(n + 1))
    if deterministic:
        pi = tuple(_greedy(row) for row in q)
    true_next = ()
    if truncated >= 0:
        true_next = ((truncated, tuple(x + 0.25 for x in q[0]), pi[0]),)
    return GoldenWindow(
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
        true_next=true_next,
        gamma=0.875,
        lambda_=0.9375,
    )


def _greedy(q: Floats) -> Floats:
    best = q.index(max(q))
    return tuple(float(b == best) for b in range(len(q)))


def _large_windows() -> tuple[GoldenWindow, ...]:
    rng = random.Random(1606)
    return (
        _large("64 steps, five actions, γ = 0.875", rng),
        _large("64 steps with terminations", rng, terminated=(5, 31, 32, 63)),
        _large("64 steps with a truncation", rng, truncated=40),
        _large("64 steps with a greedy π, so that c is often 0", rng, deterministic=True),
        _large("beside it, 1", rng),
        _large("beside it, 2", rng),
    )


def _probe(name: str, rng: random.Random, *, terminated: tuple[int, ...] = ()) -> GoldenWindow:
    """Five steps, three actions with values far apart, and no two numbers that could be confused."""
    n = 5
    order = [-2.25, 0.5, 3.0]

    def chances() -> Floats:
        parts = [rng.choice((1, 2, 3, 5, 8, 24)) for _ in order]
        return tuple(x / sum(parts) for x in parts)

    pi = tuple(chances() for _ in range(n + 1))
    mu = tuple(chances() for _ in range(n + 1))
    highest = [max(range(3), key=lambda b: p[b] / m[b]) for p, m in zip(pi, mu, strict=True)]
    return GoldenWindow(
        name=name,
        q=tuple(tuple(x + rng.randint(-4, 4) / 8 for x in rng.sample(order, 3)) for _ in range(n + 1)),
        pi=pi,
        mu=mu,
        # Every other action has the highest ratio, so that there are ratios below 1 and above.
        a=tuple(highest[t] if t % 2 else rng.randrange(3) for t in range(n + 1)),
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
"""Windows in which terms are measured: `PROBES` without ends of episodes, `ENDING` with them."""

LARGE = _large_windows()
"""These expose a function that is right only in short windows, with two actions or with γ = 1 − γ."""
CONFIRMING = LARGE[:4]
