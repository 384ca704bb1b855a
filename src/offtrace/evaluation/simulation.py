"""Logs drawn from a FiniteMDP, where the exact value of every policy is known."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from offtrace.evaluation.log import Log
from offtrace.mdp.checks import checked_generator, checked_whole
from offtrace.mdp.finite import FiniteMDP, checked_policy

MOST_STEPS = 100_000
"""The longest episode that is waited for without `max_steps`."""


def simulate(
    mdp: FiniteMDP,
    mu: ArrayLike,
    num_episodes: int,
    *,
    seed: int | np.random.Generator,
    max_steps: int | None = None,
) -> Log:
    """Draw a log of episodes of a behaviour policy μ.

    Args:
        mdp: The MDP. Episodes start in a state drawn from `mdp.start`.
        mu: (X, A) μ.
        num_episodes: Number of episodes.
        seed: A whole number or a `numpy.random.Generator`.
        max_steps: Steps after which an episode is truncated. By default every episode goes on until
            it terminates.

    The log has the probability of every action and the state after every step, so the values of
    truncated episodes can be bootstrapped.

    >>> from offtrace.mdp import chain
    >>> simulate(chain(3), np.full((3, 2), 0.5), 100, seed=0)
    Log(100 episodes, 406 steps, 3 states, 2 actions, known μ)
    """
    mu = checked_policy(mu, mdp.shape, "mu")
    rng = checked_generator("seed", seed)
    num_episodes = checked_whole("num_episodes", num_episodes)
    if max_steps is not None:
        max_steps = checked_whole("max_steps", max_steps)
    elif mdp.ends is None:
        raise ValueError("`max_steps` must be given for an MDP without terminating transitions; got None.")
    rows = _drawn(mdp, mu, num_episodes, rng, MOST_STEPS if max_steps is None else max_steps)
    is_last = np.append(rows.episode[1:] != rows.episode[:-1], True)
    truncated = is_last & ~rows.terminated
    if max_steps is None and truncated.any():
        raise ValueError(
            f"`max_steps` must be given here; got None, and an episode was still running after {MOST_STEPS:,} steps."
        )
    pair = rows.state * mdp.num_actions + rows.action
    return Log(
        first=np.concatenate([[0], np.flatnonzero(is_last) + 1]),
        action=rows.action,
        reward=mdp.r.ravel()[pair] if mdp.reward is None else mdp.reward[rows.transition],
        terminated=rows.terminated,
        truncated=truncated,
        state=rows.state,
        successor=mdp.successor[rows.transition].astype(np.int64),
        mu_a=mu.ravel()[pair],
    )


class _Rows(NamedTuple):
    """Columns (N,) of the log, by episode and step."""

    episode: np.ndarray
    state: np.ndarray
    action: np.ndarray
    transition: np.ndarray
    terminated: np.ndarray


def _drawn(mdp: FiniteMDP, mu: np.ndarray, num_episodes: int, rng: np.random.Generator, max_steps: int) -> _Rows:
    """Draw all episodes at once, one step after the other.

    Step t is drawn for the episodes that are still running. A stable sort by episode puts the rows
    in order:

        drawn      t = 0: a b c     t = 1: a c     t = 2: c
        sorted     a0 a1   b0   c0 c1 c2
    """
    starts = _Choice(mdp.start, np.array([0, mdp.num_states]))
    actions = _Choice(mu.ravel(), np.arange(mdp.num_states + 1) * mdp.num_actions)
    transitions = _Choice(mdp.probability, mdp.first)
    episode = np.arange(num_episodes)
    state = starts.draw(np.zeros(num_episodes, np.int64), rng)
    steps = []
    for _ in range(max_steps):
        pair = actions.draw(state, rng)
        transition = transitions.draw(pair, rng)
        terminated = np.zeros(len(state), bool)
        if mdp.ends is not None:
            terminated = rng.random(len(state)) < mdp.ends[transition]
        steps.append(_Rows(episode, state, pair % mdp.num_actions, transition, terminated))
        episode = episode[~terminated]
        state = mdp.successor[transition[~terminated]].astype(np.int64)
        if not len(state):
            break
    columns = [np.concatenate(column) for column in zip(*steps, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Rows(*(column[order] for column in columns))


class _Choice:
    """Draws from many distributions, whose probabilities are stored one after the other.

    A draw for row i searches i + u, u uniform in [0, 1), in the cumulative sums, where those of row i
    lie between i and i + 1:

        probability     .5  .5  |  1   |  .2  .8         first  0 2 3 5
        sums            .5   1  |  2   | 2.2   3         row 2, u = .1:  2.1 → the fourth entry
    """

    def __init__(self, probability: np.ndarray, first: np.ndarray) -> None:
        row = np.repeat(np.arange(len(first) - 1), np.diff(first))
        total = np.add.reduceat(probability, first[:-1])
        sums = np.cumsum(probability / total[row])
        before = np.append(0.0, sums)[first[:-1]]
        self.sums = row + np.minimum(sums - before[row], 1.0)  # rounding must not reach into the next row
        possible = np.where(probability > 0, np.arange(len(probability)), 0)
        self.last = np.maximum.reduceat(possible, first[:-1])
        """The last entry of every row that has a probability above 0."""

    def draw(self, row: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the index of the entry that was drawn for each row."""
        found = np.searchsorted(self.sums, row + rng.random(len(row)), side="right")
        return np.minimum(found, self.last[row])
