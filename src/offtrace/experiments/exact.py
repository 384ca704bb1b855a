"""The exact scale of an MDP: the expected return of an episode under random play and under the optimal policy.

Returns are computed by dynamic programming, without sampling: undiscounted up to the time limit,
or discounted.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from offtrace import policies
from offtrace.environments.interface import MDP_OPTIONS, TIME_LIMIT
from offtrace.mdp import MDPS, FiniteMDP
from offtrace.operators import q_pi, q_star
from offtrace.operators.bellman import every_policy_ends

MAX_STEPS = 100_000
"""Longest episode whose return is computed."""


def anchors(env: str, options: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the scores (random, optimal) of `mdp/<name>` with these options.

    None if there is no such scale: the environment is not an MDP of `ot.mdp`, it does not take
    these options, γ is 1 and some policies never end, or random play is as good as optimal play.

    >>> random, optimal = anchors("mdp/fork", {})
    >>> round(random, 3), round(optimal, 3)
    (-1.598, 0.795)
    """
    suite, _, name = env.partition("/")
    if suite != "mdp" or name not in MDPS:
        return None
    try:
        random, optimal = _anchors(name, json.dumps(dict(options), sort_keys=True))
    except (ValueError, TypeError, OverflowError):
        return None
    if random >= optimal:
        return None
    return random, optimal


@functools.lru_cache(maxsize=256)
def _anchors(name: str, options: str) -> tuple[float, float]:
    # Options are passed as JSON, as the cache needs arguments that can be hashed.
    given = json.loads(options)
    time_limit = given.get("time_limit", TIME_LIMIT)
    if not 0 < time_limit <= MAX_STEPS:
        raise ValueError(f"`time_limit` must be from 1 to {MAX_STEPS:,}; got {time_limit}.")
    mdp = MDPS[name](**{option: value for option, value in given.items() if option not in MDP_OPTIONS})
    return expected_returns(mdp, time_limit)


def expected_returns(mdp: FiniteMDP, num_steps: int) -> tuple[float, float]:
    """Return (random, optimal): undiscounted returns of at most `num_steps` steps; optimal is greedy in Q*."""
    if mdp.gamma == 1 and not every_policy_ends(mdp):
        # Actions with the same Q* may differ in when they reach the end, if at all.
        raise ValueError("`gamma` must be below 1 where some policies never end; got 1.")
    both = np.stack([_uniform(mdp), policies.greedy(q_star(mdp))])
    random, optimal = returns_of(mdp, both, num_steps).tolist()
    return random, optimal


def discounted_anchors(mdp: FiniteMDP) -> tuple[float, float]:
    """Return (random, optimal): the expected discounted return from the start."""
    uniform = _uniform(mdp)
    random = (uniform * q_pi(mdp, uniform)).sum(axis=1) @ mdp.start
    return float(random), float(q_star(mdp).max(axis=1) @ mdp.start)


def returns_of(mdp: FiniteMDP, policies: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the expected sum of at most `num_steps` rewards of an episode, per policy: (P, X, A) → (P,).

        V_{n+1}(x) = Σ_a π(a|x) [r(x, a) + Σ_x' p(x', not terminated|x, a) V_n(x')],    V_0 = 0

    >>> from offtrace.mdp import chain
    >>> walk = np.full((1, 3, 2), 0.5)
    >>> returns_of(chain(3), walk, 2)  # two steps to the right from the middle
    array([0.25])
    """
    value = np.zeros((len(policies), mdp.num_states))
    for _ in range(num_steps):
        later = np.add.reduceat(mdp.continuing * value[:, mdp.successor], mdp.first[:-1], axis=1)
        value = (policies * (mdp.r + later.reshape(-1, *mdp.shape))).sum(axis=2)
    return value @ mdp.start


def _uniform(mdp: FiniteMDP) -> np.ndarray:
    return np.full(mdp.shape, 1 / mdp.num_actions)
