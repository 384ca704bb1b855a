"""The exact scale of an MDP: what an episode returns under random play, and under the optimal policy.

By dynamic programming, without sampling: undiscounted until the episode ends or its time limit, or discounted.
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

LONGEST = 100_000
"""Steps of an episode whose return is computed."""


def anchors(env: str, options: Mapping[str, Any]) -> tuple[float, float] | None:
    """(random, optimal) of `mdp/<name>` with these options.

    None where there is no such scale: what is not one of the MDPs of `ot.mdp`, options that it does not take, an MDP
    without an optimal policy to speak of (γ = 1), or one where random play is as good.

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
    return (random, optimal) if random < optimal else None


@functools.lru_cache(maxsize=256)
def _anchors(name: str, options: str) -> tuple[float, float]:
    given = json.loads(options)
    time_limit = given.get("time_limit", TIME_LIMIT)
    if not 0 < time_limit <= LONGEST:
        raise ValueError(f"`time_limit` must be from 1 to {LONGEST:,}; got {time_limit}.")
    mdp = MDPS[name](**{option: value for option, value in given.items() if option not in MDP_OPTIONS})
    return expected_returns(mdp, time_limit)


def expected_returns(mdp: FiniteMDP, num_steps: int) -> tuple[float, float]:
    """(random, optimal): undiscounted returns of at most `num_steps` steps; optimal is the policy greedy in Q*."""
    if mdp.gamma == 1 and not every_policy_ends(mdp):  # of actions that Q* has as equal, some go round
        raise ValueError("`gamma` = 1 leaves it open which greedy policy is optimal.")
    both = np.stack([_uniform(mdp), policies.greedy(q_star(mdp))])
    random, optimal = returns_of(mdp, both, num_steps).tolist()
    return random, optimal


def discounted_anchors(mdp: FiniteMDP) -> tuple[float, float]:
    """(random, optimal): the expected discounted return of the first state."""
    uniform = _uniform(mdp)
    random = (uniform * q_pi(mdp, uniform)).sum(axis=1) @ mdp.start
    return float(random), float(q_star(mdp).max(axis=1) @ mdp.start)


def returns_of(mdp: FiniteMDP, policies: np.ndarray, num_steps: int) -> np.ndarray:
    """The expected sum of at most `num_steps` rewards of an episode, for every policy: (P, X, A) to (P,).

        V_{n+1}(x) = Σ_a π(a|x) [r(x, a) + Σ_x' p(x', goes on|x, a) V_n(x')],    V_0 = 0

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
