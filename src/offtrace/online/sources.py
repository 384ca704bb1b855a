"""Where trajectories come from, step by step: a model, a Gymnasium environment, or what was stored.

A source has `start(k)`, the first state of trajectory k, and `step(x, k, row)`, where `row()` is μ_k(·|x): what
follows, as a `Step`. A model draws the same numbers in the same order as the compiled loop does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online.records import Trajectories
from offtrace.online.streams import Stream

Row = Callable[[], np.ndarray]


class Step(NamedTuple):
    """a_t and μ(a_t|x_t), then r_t, x_{t+1}, whether the episode ended, and whether it was cut here."""

    a: int
    mu_a: float
    r: float
    x_next: int
    terminated: bool
    truncated: bool


class Source(Protocol):
    def start(self, k: int) -> int: ...

    def step(self, x: int, k: int, row: Row) -> Step: ...


class ModelSource:
    """A FiniteMDP."""

    def __init__(self, mdp: FiniteMDP, seed: int) -> None:
        self.mdp, self.stream = mdp, Stream(seed)
        self.first_states = np.cumsum(mdp.start)

    def start(self, k: int) -> int:
        return self.stream.choice(self.first_states)

    def step(self, x: int, k: int, row: Row) -> Step:
        mdp, mu = self.mdp, row()
        a = self.stream.action(mu)
        begin, stop = mdp.first[x * mdp.num_actions + a : x * mdp.num_actions + a + 2]
        i = int(begin) + self.stream.choice(np.cumsum(mdp.probability[begin:stop]))
        share = 0.0 if mdp.ends is None else float(mdp.ends[i])
        ended = share >= 1 or (share > 0 and self.stream.uniform() < share)
        r = mdp.r[x, a] if mdp.reward is None else mdp.reward[i]
        return Step(a, float(mu[a]), float(r), int(mdp.successor[i]), ended, False)


class GymnasiumSource:
    """An environment of Gymnasium with discrete observations and actions; its own seed is set once, at the start."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.seed, self.stream = env, seed, Stream(seed)
        self.first_state = int(getattr(env.observation_space, "start", 0))
        self.first_action = int(getattr(env.action_space, "start", 0))

    def start(self, k: int) -> int:
        observation, _ = self.env.reset(seed=self.seed) if k == 0 else self.env.reset()
        return int(observation) - self.first_state

    def step(self, x: int, k: int, row: Row) -> Step:
        mu = row()
        a = self.stream.action(mu)
        observation, r, terminated, truncated, _ = self.env.step(a + self.first_action)
        x_next = int(observation) - self.first_state
        return Step(a, float(mu[a]), float(r), x_next, bool(terminated), bool(truncated))


class StoredSource:
    """Trajectories, in the order given; μ is what was written down."""

    def __init__(self, stored: Trajectories, order: np.ndarray) -> None:
        self.stored, self.order, self.at = stored, order, 0

    def start(self, k: int) -> int:
        self.at = int(self.stored.first[self.order[k]])
        return int(self.stored.x[self.at])

    def step(self, x: int, k: int, row: Row) -> Step:
        stored, i = self.stored, self.at
        self.at += 1
        mu_a = float("nan") if stored.mu_a is None else float(stored.mu_a[i])
        last = self.at == int(stored.first[self.order[k] + 1])
        terminated = bool(stored.terminated[i])
        return Step(int(stored.a[i]), mu_a, float(stored.r[i]), int(stored.x_next[i]), terminated, last)


def is_gymnasium(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("observation_space", "action_space", "reset", "step"))


def gymnasium_shape(env: Any) -> tuple[int, int]:
    """(X, A) of an environment whose observations and actions are counted."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        if type(space).__name__ != "Discrete":
            remedy = "Tables need a count of states and actions; for others there is the agent."
            raise TypeError(f"`{name}` of the environment must be Discrete; got {space}. {remedy}")
    return int(env.observation_space.n), int(env.action_space.n)
