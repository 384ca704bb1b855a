"""Finite MDPs with a target and a behaviour policy, whose exact values are known.

"near" and "far" say how much the two policies differ. ε-greedy policies are around the optimal one.
"""

import functools
from typing import NamedTuple

import numpy as np

from offtrace.mdp import FiniteMDP, bifurcated_grid, from_gymnasium, garnet, icu_sepsis
from offtrace.operators import q_pi, q_star

HORIZON = 60
"""Steps after which episodes of the Garnet, which never ends, are truncated: γ^60 = .0018."""


class Problem(NamedTuple):
    """What is asked of a log, and the answer."""

    name: str
    mdp: FiniteMDP
    pi: np.ndarray
    mu: np.ndarray
    truth: float
    max_steps: int | None = None


def value(mdp: FiniteMDP, pi: np.ndarray) -> float:
    """Return the exact value of π at the start."""
    return float(mdp.start @ (pi * q_pi(mdp, pi)).sum(axis=1))


def around(mdp: FiniteMDP, epsilon: float) -> np.ndarray:
    """Return the ε-greedy policy of Q*; of several best actions it takes the first."""
    q = q_star(mdp)
    best = (q > q.max(axis=1, keepdims=True) - 1e-9).argmax(axis=1)
    return epsilon / mdp.num_actions + (1 - epsilon) * np.eye(mdp.num_actions)[best]


def clicks(num_pages: int = 5, num_offers: int = 3, seed: int = 0) -> FiniteMDP:
    """Return visits to a shop, of which a few in a hundred end with a click, the only reward.

    On every page one offer is shown. The visitor clicks, with a probability of up to 2 %, or leaves, or goes on.
    """
    rng = np.random.default_rng(seed)
    clicked = num_pages
    left = num_pages + 1
    p = np.zeros((num_pages + 2, num_offers, num_pages + 2))
    p[:num_pages, :, clicked] = rng.uniform(0, 0.02, (num_pages, num_offers))
    p[:num_pages, :, left] = 0.3
    rest = 1 - p[:num_pages].sum(axis=2, keepdims=True)
    p[:num_pages, :, :num_pages] = rest * rng.dirichlet(np.ones(num_pages), (num_pages, num_offers))
    p[[clicked, left], :, left] = 1
    ends = np.arange(num_pages + 2) >= num_pages
    reward = np.zeros_like(p)
    reward[:num_pages, :, clicked] = 1
    start = np.where(ends, 0, 1 / num_pages)
    return FiniteMDP(p=p, r=reward, gamma=1.0, terminates=ends, start=start, name="clicks")


def sepsis_policies(mdp: FiniteMDP) -> tuple[np.ndarray, np.ndarray]:
    """Return the clinicians' policy of ICU-Sepsis, and the best policy among their actions."""
    from icu_sepsis import ICUSepsisEnv

    expert = np.array(ICUSepsisEnv().expert_policy, np.float64)
    expert[expert.sum(axis=1) == 0] = 1 / mdp.num_actions  # terminal states, where nobody acts
    expert /= expert.sum(axis=1, keepdims=True)
    best = np.where(expert > 0, q_star(mdp), -1.0).argmax(axis=1)
    return expert, np.eye(mdp.num_actions)[best]


@functools.cache
def problems() -> tuple[Problem, ...]:
    """Return all problems, the small ones first."""
    found = []
    lake = from_gymnasium("FrozenLake-v1", gamma=0.99)
    fork = bifurcated_grid(slip=0.2)
    random = garnet(30, 3, 4, gamma=0.9, seed=0)
    shop = clicks()
    cases = (
        ("lake near", lake, 0.2, 0.4, None),
        ("lake far", lake, 0.2, 0.8, None),
        ("fork near", fork, 0.2, 0.4, None),
        ("fork far", fork, 0.2, 0.8, None),
        ("garnet near", random, 0.3, 0.4, HORIZON),
        ("garnet far", random, 0.3, 0.7, HORIZON),
        ("clicks near", shop, 0.3, 0.5, None),
        ("clicks far", shop, 0.3, 0.9, None),
    )
    for name, mdp, target, behaviour, max_steps in cases:
        pi = around(mdp, target)
        found.append(Problem(name, mdp, pi, around(mdp, behaviour), value(mdp, pi), max_steps))
    sepsis = icu_sepsis(gamma=1.0)
    expert, best = sepsis_policies(sepsis)
    for name, share in (("sepsis near", 0.2), ("sepsis far", 0.5)):
        pi = share * best + (1 - share) * expert
        found.append(Problem(name, sepsis, pi, expert, value(sepsis, pi)))
    return tuple(found)


def problem(name: str) -> Problem:
    """Return a problem by its name."""
    return next(one for one in problems() if one.name == name)
