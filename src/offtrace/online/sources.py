"""The sources of trajectories for the Python learner: a model, a Gymnasium environment, or stored steps.

A model draws the same random numbers in the same order as the compiled learner does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online.records import Trajectories
from offtrace.online.streams import Stream

PolicyRow = Callable[[], np.ndarray]


class SourceStep(NamedTuple):
    """One step: a_t, μ(a_t|x_t), r_t, x_{t+1}, and how the episode ended, if it did."""

    a: int
    mu_a: float
    r: float
    x_next: int
    terminated: bool
    truncated: bool


class Source(Protocol):
    """A source of trajectories."""

    def start(self, k: int) -> int:
        """Begin trajectory k; returns its first state."""
        ...

    def step(self, x: int, k: int, row: PolicyRow) -> SourceStep:
        """Take a step from x; `row()` returns μ_k(·|x)."""
        ...


class ModelSource:
    """A FiniteMDP."""

    def __init__(self, mdp: FiniteMDP, seed: int) -> None:
        self.mdp = mdp
        self.stream = Stream(seed)
        self.first_states = np.cumsum(mdp.start)

    def start(self, k: int) -> int:
        return self.stream.choice(self.first_states)

    def step(self, x: int, k: int, row: PolicyRow) -> SourceStep:
        mdp = self.mdp
        mu = row()
        a = self.stream.action(mu)
        pair = x * mdp.num_actions + a
        begin, stop = mdp.first[pair : pair + 2]
        i = int(begin) + self.stream.choice(np.cumsum(mdp.probability[begin:stop]))
        share = 0.0 if mdp.ends is None else float(mdp.ends[i])
        ended = share >= 1 or (share > 0 and self.stream.uniform() < share)
        r = mdp.r[x, a] if mdp.reward is None else mdp.reward[i]
        return SourceStep(a, float(mu[a]), float(r), int(mdp.successor[i]), ended, False)


class GymnasiumSource:
    """A Gymnasium environment with discrete observations and actions; it is seeded once, at the first reset."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        self.seed = seed
        self.stream = Stream(seed)
        self.first_state = int(getattr(env.observation_space, "start", 0))
        self.first_action = int(getattr(env.action_space, "start", 0))

    def start(self, k: int) -> int:
        observation, _ = self.env.reset(seed=self.seed) if k == 0 else self.env.reset()
        return int(observation) - self.first_state

    def step(self, x: int, k: int, row: PolicyRow) -> SourceStep:
        mu = row()
        a = self.stream.action(mu)
        observation, r, terminated, truncated, _ = self.env.step(a + self.first_action)
        x_next = int(observation) - self.first_state
        return SourceStep(a, float(mu[a]), float(r), x_next, bool(terminated), bool(truncated))


class StoredSource:
    """Stored trajectories in the given order, with the stored μ(a_t|x_t)."""

    def __init__(self, stored: Trajectories, order: np.ndarray) -> None:
        self.stored = stored
        self.order = order
        self.at = 0  # the next step

    def start(self, k: int) -> int:
        self.at = int(self.stored.first[self.order[k]])
        return int(self.stored.states[self.at])

    def step(self, x: int, k: int, row: PolicyRow) -> SourceStep:
        stored = self.stored
        i = self.at
        self.at += 1
        return SourceStep(
            a=int(stored.actions[i]),
            mu_a=float("nan") if stored.mu_a is None else float(stored.mu_a[i]),
            r=float(stored.rewards[i]),
            x_next=int(stored.next_states[i]),
            terminated=bool(stored.terminated[i]),
            truncated=self.at == int(stored.first[self.order[k] + 1]),
        )


def is_gymnasium(source: Any) -> bool:
    """Whether this looks like a Gymnasium environment."""
    return all(hasattr(source, name) for name in ("observation_space", "action_space", "reset", "step"))


def gymnasium_shape(env: Any) -> tuple[int, int]:
    """Return (X, A) of an environment with discrete observations and actions."""
    for name in ("observation_space", "action_space"):
        space = getattr(env, name)
        if type(space).__name__ != "Discrete":
            remedy = "A table needs finitely many states and actions; use `ot.train` for other environments."
            raise TypeError(f"`{name}` of the environment must be Discrete; got {space}. {remedy}")
    return int(env.observation_space.n), int(env.action_space.n)
