"""MDPs to try things on: random ones, chains, and a star. Maps are in `offtrace.mdp.grids`.

Episodes end by transition, so no state is added for the end. On a chain action 0 is left and 1 is right. Where
something is drawn, `rng` is a `numpy.random.Generator`, or a seed for one.
"""

from typing import Any, Literal

import numpy as np

from offtrace.mdp.finite import FiniteMDP


def garnet(
    num_states: int,
    num_actions: int,
    num_successors: int,
    *,
    gamma: float,
    rng: np.random.Generator | int,
    reward_sparsity: float = 0.0,
    local: int | None = None,
) -> FiniteMDP:
    """A random MDP: each (x, a) has `num_successors` distinct successors (Archibald et al. 1995).

    Their probabilities are the pieces of [0, 1] cut at uniform places; r(x, a) is standard normal, and 0 for a share
    `reward_sparsity` of the pairs. With `local` the successors are within that distance of x, modulo X: it mixes
    slowly. Any size that fits in memory: a million states with 4 actions and 5 successors take seconds.

    >>> garnet(100, 4, 5, gamma=0.9, rng=0)
    FiniteMDP(garnet, 100 states, 4 actions, 2,000 transitions, gamma=0.9)
    """
    rng = generator(rng)
    num_states, num_actions = whole("num_states", num_states), whole("num_actions", num_actions)
    among, within = num_states, "num_states"
    if local is not None:
        among, within = 2 * whole("local", local, least=0) + 1, "2·local + 1"
        if among > num_states:
            raise ValueError(f"`local` must be at most (num_states − 1) / 2; got {local} for {num_states} states.")
    if not 1 <= whole("num_successors", num_successors) <= among:
        raise ValueError(f"`num_successors` must be in [1, {within}]; got {num_successors} with {within} = {among}.")
    rows = num_states * num_actions
    index: Any = np.int32 if rows * num_successors < 2**31 else np.int64
    successor = _distinct(rng, rows, num_successors, among, index)
    if local is not None:
        successor += np.repeat(np.arange(num_states, dtype=index), num_actions)[:, None] - index(local)
        successor %= index(num_states)
    successor.sort(axis=1)
    probability = _cuts(rng, rows, num_successors)
    r = rng.normal(size=(num_states, num_actions))
    r[rng.random(r.shape) < share("reward_sparsity", reward_sparsity)] = 0
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
    rng: np.random.Generator | int,
    num_successors: int = 2,
    early: float = 0.5,
) -> FiniteMDP:
    """A random MDP whose episodes end within `num_steps` steps, whatever is done: every trajectory can be listed.

    The states lie in `num_steps` layers and a step goes to the next one; up to a share `early` of each transition
    ends before that, and the last layer always ends, into states that nothing may be read from. A state has
    `num_successors` of them, or as many as the smallest layer holds. Episodes start in the first layer; rewards
    are r(x, a, x'), standard normal.

    >>> episodic(6, 2, 3, gamma=0.9, rng=0).start[2:]
    array([0., 0., 0., 0.])
    """
    rng = generator(rng)
    num_states, num_actions = whole("num_states", num_states), whole("num_actions", num_actions)
    if not whole("num_steps", num_steps) <= num_states:
        raise ValueError(f"`num_steps` must be at most `num_states`; got {num_steps} for {num_states} states.")
    layer = np.arange(num_states) * num_steps // num_states
    begin = np.searchsorted(layer, np.arange(num_steps + 1))
    each = min(whole("num_successors", num_successors), num_states // num_steps)
    chosen = []
    for k in range(num_steps):
        low, high = (begin[k + 1], begin[k + 2]) if k + 1 < num_steps else (0, num_states)
        chosen.append(low + _distinct(rng, (begin[k + 1] - begin[k]) * num_actions, each, high - low, np.int64))
    shape = num_states, num_actions, each
    ends = rng.random(shape) * share("early", early)
    ends[layer == num_steps - 1] = 1
    start = np.zeros(num_states)
    start[: begin[1]] = _cuts(rng, 1, begin[1])[0]
    return outcomes(
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
    """States in a row; `slip` is the chance that a step goes the other way.

    Walking off an end in `ends` ends the episode with that side's reward; the other end, if there is one, is a wall.
    Episodes start in the middle, or at the wall.

    >>> chain(3, ends="right").r
    array([[0., 0.],
           [0., 0.],
           [0., 1.]])
    """
    x = np.arange(whole("num_states", num_states))
    if ends not in ("both", "left", "right"):
        raise ValueError(f'`ends` must be "both", "left" or "right"; got {ends!r}.')
    other = share("slip", slip)
    off = np.stack([(x == 0) & (ends != "right"), (x == num_states - 1) & (ends != "left")], axis=1)
    reward = np.where(off, [left_reward, right_reward], step_reward)
    return outcomes(
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
    """The random walk of Sutton and Barto (Ex. 7.1): −1 off the left end, +1 off the right end, from the middle.

    The walk is random if the policy is: under the uniform one, and undiscounted, V is −0.9, −0.8, …, 0.9.
    """
    mdp = chain(num_states, gamma=gamma, left_reward=-1.0)
    mdp.name = "random_walk"
    return mdp


def baird_star(*, gamma: float = 0.99) -> FiniteMDP:
    """Baird's star (1995): action 0, dashed, goes to one of the first six states, action 1, solid, to the seventh.

    All rewards are 0. The usual behaviour takes dashed with 6/7 and solid with 1/7, so that every state is visited
    alike, and the usual target is always solid.

    >>> baird_star().dense()[0].round(2)
    array([[0.17, 0.17, 0.17, 0.17, 0.17, 0.17, 0.  ],
           [0.  , 0.  , 0.  , 0.  , 0.  , 0.  , 1.  ]])
    """
    p = np.zeros((7, 2, 7))
    p[:, 0, :6] = 1 / 6
    p[:, 1, 6] = 1
    return FiniteMDP(p=p, r=np.zeros((7, 2)), gamma=gamma, name="baird_star")


def outcomes(
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
    """From arrays (X, A, K), or what broadcasts to them, for K outcomes of a step; those of probability 0 go."""
    kept = probability > 0
    each = (np.broadcast_to(values, kept.shape)[kept] for values in (probability, successor, reward, ends))
    probability, successor, reward, ends = each
    return FiniteMDP.from_transitions(
        probability=probability,
        successor=successor,
        first=np.concatenate([[0], np.cumsum(kept.sum(axis=2))]),
        num_actions=kept.shape[1],
        r=reward,
        ends=ends,
        gamma=gamma,
        start=start.astype(np.float64),
        name=name,
        grid=grid,
    )


def _distinct(rng: np.random.Generator, rows: int, count: int, among: int, index: Any) -> np.ndarray:
    """(rows, count) whole numbers below `among`, distinct in a row, each set as likely as any other (R. Floyd)."""
    chosen = np.empty((rows, count), index)
    for i, last in enumerate(range(among - count, among)):
        drawn = rng.integers(0, last, rows, dtype=index, endpoint=True)
        taken = (chosen[:, :i] == drawn[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, index(last), drawn)
    return chosen


def _cuts(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    """(rows, count) lengths of the pieces of [0, 1], cut at count − 1 uniform places."""
    ends = rng.random((rows, count))
    ends[:, -1] = 1
    ends.sort(axis=1)
    for i in range(count - 1, 0, -1):
        ends[:, i] -= ends[:, i - 1]
    return ends


def generator(rng: np.random.Generator | int) -> np.random.Generator:
    """The generator itself, or a new one from a seed."""
    if not isinstance(rng, (np.random.Generator, int, np.integer)) or isinstance(rng, bool):
        raise TypeError(f"`rng` must be a numpy.random.Generator or a seed; got {type(rng).__name__}.")
    return np.random.default_rng(rng)


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number, not below `least`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be a whole number; got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}; got {value}.")
    return int(value)


def share(name: str, value: Any) -> float:
    """A number in [0, 1]."""
    if not isinstance(value, (int, float, np.number)):
        raise TypeError(f"`{name}` must be a number in [0, 1]; got {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"`{name}` must be in [0, 1]; got {value}.")
    return float(value)
