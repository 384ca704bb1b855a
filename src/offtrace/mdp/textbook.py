"""MDPs for examples and tests: random ones, chains, and Baird's star.

Maps are in `offtrace.mdp.grids`. Transitions end episodes, so there is no extra terminal state. On
a chain, action 0 is left and action 1 is right. `seed` is a whole number or a
`numpy.random.Generator`.
"""

from typing import Any, Literal

import numpy as np

from offtrace.mdp.checks import checked_generator, checked_share, checked_whole
from offtrace.mdp.finite import FiniteMDP


def garnet(
    num_states: int,
    num_actions: int,
    num_successors: int,
    *,
    gamma: float,
    seed: int | np.random.Generator,
    reward_sparsity: float = 0.0,
    local: int | None = None,
) -> FiniteMDP:
    """Return a random MDP with `num_successors` successors for each (x, a).

    It is that of Archibald et al. (1995).

    The probabilities are the pieces of [0, 1] cut at uniform places. r(x, a) is standard normal,
    and 0 for a share `reward_sparsity` of the pairs. With `local`, successors lie within that
    distance of x, modulo X, so the MDP mixes slowly. A million states with 4 actions and 5
    successors take seconds.

    >>> garnet(100, 4, 5, gamma=0.9, seed=0)
    FiniteMDP(garnet, 100 states, 4 actions, 2,000 transitions, gamma=0.9)
    """
    rng = checked_generator("seed", seed)
    num_states = checked_whole("num_states", num_states)
    num_actions = checked_whole("num_actions", num_actions)
    among = num_states
    bound = "num_states"
    if local is not None:
        among = 2 * checked_whole("local", local, least=0) + 1
        bound = "2·local + 1"
        if among > num_states:
            raise ValueError(f"`local` must be at most (num_states − 1) / 2; got {local} for {num_states} states.")
    if checked_whole("num_successors", num_successors) > among:
        raise ValueError(f"`num_successors` must be in [1, {bound}]; got {num_successors} with {bound} = {among}.")
    rows = num_states * num_actions
    index: Any = np.int32 if rows * num_successors < 2**31 else np.int64
    successor = _distinct(rng, rows, num_successors, among, index)
    if local is not None:
        successor += np.repeat(np.arange(num_states, dtype=index), num_actions)[:, None] - index(local)
        successor %= index(num_states)
    successor.sort(axis=1)
    probability = _cuts(rng, rows, num_successors)
    r = rng.normal(size=(num_states, num_actions))
    r[rng.random(r.shape) < checked_share("reward_sparsity", reward_sparsity)] = 0
    return FiniteMDP.from_transitions(
        probability=probability.ravel(),
        successor=successor.ravel(),
        first=np.arange(0, rows * num_successors + 1, num_successors, dtype=index),
        num_actions=num_actions,
        r=r,
        gamma=gamma,
        name="garnet",
    )


def episodic(
    num_states: int,
    num_actions: int,
    num_steps: int,
    *,
    gamma: float,
    seed: int | np.random.Generator,
    num_successors: int = 2,
    early: float = 0.5,
) -> FiniteMDP:
    """Return a random MDP whose episodes end within `num_steps` steps.

    So all trajectories can be listed. The states form `num_steps` layers, and a step leads to the
    next layer. Up to a share `early` of each transition terminates before that, and transitions
    from the last layer always do; the states they lead to are arbitrary, and their values must not
    be used. A pair has `num_successors` successors, or as many as the smallest layer holds.
    Episodes start in the first layer. Rewards r(x, a, x') are standard normal.

    >>> episodic(6, 2, 3, gamma=0.9, seed=0).start[2:]
    array([0., 0., 0., 0.])
    """
    rng = checked_generator("seed", seed)
    num_states = checked_whole("num_states", num_states)
    num_actions = checked_whole("num_actions", num_actions)
    if checked_whole("num_steps", num_steps) > num_states:
        raise ValueError(f"`num_steps` must be at most `num_states`; got {num_steps} for {num_states} states.")
    layer = np.arange(num_states) * num_steps // num_states
    begin = np.searchsorted(layer, np.arange(num_steps + 1))
    each = min(checked_whole("num_successors", num_successors), num_states // num_steps)
    chosen = []
    for k in range(num_steps):
        low, high = 0, num_states
        if k + 1 < num_steps:
            low, high = begin[k + 1], begin[k + 2]
        chosen.append(low + _distinct(rng, (begin[k + 1] - begin[k]) * num_actions, each, high - low, np.int64))
    shape = num_states, num_actions, each
    ends = rng.random(shape) * checked_share("early", early)
    ends[layer == num_steps - 1] = 1
    start = np.zeros(num_states)
    start[: begin[1]] = _cuts(rng, 1, begin[1])[0]
    return from_outcomes(
        probability=_cuts(rng, num_states * num_actions, each).reshape(shape),
        successor=np.concatenate(chosen).reshape(shape),
        reward=rng.normal(size=shape),
        ends=ends,
        gamma=gamma,
        start=start,
        name="episodic",
    )


def chain(
    num_states: int = 10,
    *,
    gamma: float = 0.9,
    slip: float = 0.0,
    ends: Literal["both", "left", "right"] = "both",
    left_reward: float = 0.0,
    right_reward: float = 1.0,
    step_reward: float = 0.0,
) -> FiniteMDP:
    """Return a chain of states; `slip` is the probability that a step goes the other way.

    Walking off an end in `ends` terminates the episode with that side's reward; the other end, if
    any, is a wall. Episodes start in the middle, or at the wall.

    >>> chain(3, ends="right").r
    array([[0., 0.],
           [0., 0.],
           [0., 1.]])
    """
    x = np.arange(checked_whole("num_states", num_states))
    if ends not in ("both", "left", "right"):
        raise ValueError(f'`ends` must be "both", "left" or "right"; got {ends!r}.')
    other = checked_share("slip", slip)
    off = np.stack([(x == 0) & (ends != "right"), (x == num_states - 1) & (ends != "left")], axis=1)
    reward = np.where(off, [left_reward, right_reward], step_reward)
    return from_outcomes(
        probability=np.array([[1 - other, other], [other, 1 - other]]) * np.ones((num_states, 1, 1)),
        successor=np.stack([np.maximum(x - 1, 0), np.minimum(x + 1, num_states - 1)], axis=1)[:, None],
        reward=reward[:, None],
        ends=off[:, None],
        gamma=gamma,
        start=x == {"both": num_states // 2, "left": num_states - 1, "right": 0}[ends],
        name="chain",
        grid=(1, num_states),
    )


def random_walk(num_states: int = 19, *, gamma: float = 1.0) -> FiniteMDP:
    """Return the random walk of Sutton and Barto (Ex. 7.1): −1 at the left end, +1 at the right.

    Episodes start in the middle. Under the uniform policy and undiscounted, V is −0.9, −0.8, …,
    0.9.
    """
    mdp = chain(num_states, gamma=gamma, left_reward=-1.0)
    mdp.name = "random_walk"
    return mdp


def baird_star(*, gamma: float = 0.99) -> FiniteMDP:
    """Return Baird's star (1995), with seven states.

    Action 0 (dashed) leads to one of the first six states, action 1 (solid) to the seventh. All
    rewards are 0. The usual behaviour policy takes dashed with probability 6/7 and solid with 1/7,
    so that all states are visited equally often. The usual target policy always takes solid.

    >>> baird_star().dense()[0].round(2)
    array([[0.17, 0.17, 0.17, 0.17, 0.17, 0.17, 0.  ],
           [0.  , 0.  , 0.  , 0.  , 0.  , 0.  , 1.  ]])
    """
    p = np.zeros((7, 2, 7))
    p[:, 0, :6] = 1 / 6
    p[:, 1, 6] = 1
    return FiniteMDP(p=p, r=np.zeros((7, 2)), gamma=gamma, name="baird_star")


def from_outcomes(
    *,
    probability: np.ndarray,
    successor: np.ndarray,
    reward: np.ndarray,
    ends: np.ndarray,
    gamma: float,
    start: np.ndarray,
    name: str,
    grid: tuple[int, int] | None = None,
) -> FiniteMDP:
    """Return the MDP of arrays that broadcast to (X, A, K), for K outcomes per step."""
    kept = probability > 0

    def each(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, kept.shape)[kept]

    return FiniteMDP.from_transitions(
        probability=each(probability),
        successor=each(successor),
        first=np.concatenate([[0], np.cumsum(kept.sum(axis=2))]),
        num_actions=kept.shape[1],
        r=each(reward),
        ends=each(ends),
        gamma=gamma,
        start=start.astype(np.float64),
        name=name,
        grid=grid,
    )


def _distinct(rng: np.random.Generator, rows: int, count: int, among: int, index: Any) -> np.ndarray:
    """Draw whole numbers (rows, count) below `among`, distinct in each row (R. Floyd).

    Every set is equally likely. Step i draws from [0, last]; a number that is in the set already is
    replaced by `last`, which cannot be in it yet.
    """
    chosen = np.empty((rows, count), index)
    for i, last in enumerate(range(among - count, among)):
        drawn = rng.integers(0, last, rows, dtype=index, endpoint=True)
        taken = (chosen[:, :i] == drawn[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, index(last), drawn)
    return chosen


def _cuts(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """Draw the lengths (rows, count) of the pieces of [0, 1], cut at count − 1 uniform places."""
    ends = rng.random((rows, count))
    ends[:, -1] = 1
    ends.sort(axis=1)
    for i in range(count - 1, 0, -1):
        ends[:, i] -= ends[:, i - 1]
    return ends
