"""What all runs of one call share, checked once; and one run of it, compiled or step by step."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online import sources
from offtrace.online.records import Learned, Trajectories
from offtrace.online.schedules import StepSize, numbers
from offtrace.online.sequences import FIXED, Sequence
from offtrace.online.streams import state as stream_state

if TYPE_CHECKING:
    from offtrace.online.compiled import State, Stored, Work
    from offtrace.online.rules import Rule
    from offtrace.online.simulate import Model, Policy

BUDGET = 250_000
"""Steps between two looks at the clock, the progress bar and whether somebody wants to stop."""


@dataclass(frozen=True, eq=False)
class Setting:
    """The environment, the policies and the form of the update; the doors of `__init__.py` explain each."""

    source: Any
    shape: tuple[int, int]
    gamma: float
    target: Sequence
    behaviour: Sequence
    num_episodes: int
    every_step: bool
    backward: bool
    first_visit: bool
    max_steps: int
    record_every: int
    order: str
    engine: str
    q0: np.ndarray
    truth: np.ndarray | None
    weights: np.ndarray

    @property
    def num_points(self) -> int:
        return 1 + -(-self.num_episodes // self.record_every)

    @property
    def points(self) -> np.ndarray:
        """(P,) after how many trajectories a point of the curves is taken."""
        return np.minimum(np.arange(self.num_points) * self.record_every, self.num_episodes)

    def replay_order(self, seed: int) -> np.ndarray:
        """Which stored trajectory comes k-th."""
        if not isinstance(self.source, Trajectories):
            return np.empty(0, np.int64)
        if self.order == "random":
            return np.random.default_rng(seed).integers(len(self.source), size=self.num_episodes)
        return np.arange(self.num_episodes) % len(self.source)

    def rule(self, trace: Any) -> "Rule | None":
        """The trace for the kernels, or None where the run goes step by step."""
        from offtrace.online import rules

        possible = not sources.is_gymnasium(self.source) and None not in (self.target.code, self.behaviour.code)
        if self.engine == "python" or not possible:
            return None
        pi, mu = (policy.table if policy.kind == FIXED else None for policy in self.arrays[2:])
        return rules.rule(trace, pi=pi, mu=None if isinstance(self.source, Trajectories) else mu)

    @functools.cached_property
    def arrays(self) -> "tuple[Model, Stored, Policy, Policy]":
        """The model or the stored steps, π_k and μ_k, as the kernels take them."""
        from offtrace.online import compiled, simulate

        nothing, whole, names = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32)
        model = simulate.Model(whole, 0, nothing, names, nothing, nothing, nothing)
        stored = compiled.Stored(whole, whole, whole, nothing, whole, np.empty(0, np.bool_), nothing)
        if isinstance(self.source, Trajectories):
            s = self.source
            mu_a = np.full(s.num_steps, np.nan) if s.mu_a is None else s.mu_a
            stored = compiled.Stored(s.first, s.x, s.a, s.r, s.x_next, s.terminated, mu_a)
        else:
            model = model_of(self.source)
        pi, mu = (
            simulate.Policy(-1 if s.code is None else s.code, s.parameters(self.num_episodes), s.table(self.shape))
            for s in (self.target, self.behaviour)
        )
        return model, stored, pi, mu

    def run(
        self,
        trace: Any,
        rule: "Rule | None",
        step_size: StepSize,
        seed: int,
        going: Callable[[int], bool] = lambda _: True,
    ) -> Learned | None:
        """One run; `going(k)` hears of progress, and stops the run (None) by being False."""
        if rule is not None:
            return self._compiled(rule, step_size, seed, going)
        if self.engine == "compiled":
            raise ValueError(
                f"`engine` must be 'auto' or 'python' here: {trace!r} with these policies and this environment has "
                "to be called step by step."
            )
        return self._step_by_step(trace, step_size, seed, going)

    def _compiled(self, rule: "Rule", step_size: StepSize, seed: int, going: Callable[[int], bool]) -> Learned | None:
        from offtrace.online import compiled

        model, stored, pi, mu = self.arrays
        scale = numbers(step_size.scale, self.num_episodes, "scale", low=0)
        backward = self.backward or self.every_step
        how = compiled.How(
            self.gamma,
            self.max_steps,
            self.every_step,
            backward,
            self.first_visit,
            scale,
            float(step_size.power),
            float(step_size.offset),
            step_size.bounded,
        )
        state, work = self._state(backward, step_size.bounded, seed)
        shown = np.full((4, self.num_points), np.nan)
        truth = np.empty((0, 0)) if self.truth is None else self.truth
        curves = compiled.Curves(self.record_every, truth, self.weights, *shown)
        order, sums, k = self.replay_order(seed), np.zeros(2), 0
        while True:
            k = compiled.run(
                model, stored, order, pi, mu, rule, how, state, work, curves, sums, k, self.num_episodes, BUDGET
            )
            if not going(k):
                return None
            if not 0 <= k < self.num_episodes:
                break
        return self._learned(state.q, state.visits, shown, None if k >= 0 else -1 - k)

    def _state(self, backward: bool, bounded: bool, seed: int) -> "tuple[State, Work]":
        from offtrace.online import compiled

        pairs = self.shape[0] * self.shape[1]
        longest = self.max_steps
        if isinstance(self.source, Trajectories):
            longest = int(np.diff(self.source.first).max())
        state = compiled.State(
            q=self.q0.copy(),
            visits=np.zeros(self.shape, np.int64),
            words=stream_state(seed),
            alpha=np.zeros(pairs if backward else 0),
            seen=np.zeros(pairs if self.first_visit or bounded else 0, np.int64),
            within=np.zeros(pairs if bounded else 0, np.int64),
            place=np.zeros(pairs if backward else 0, np.int64),
            total=np.zeros(pairs if backward and not self.every_step else 0),
        )
        flat = state.q.reshape(-1), state.visits.reshape(-1)
        lists = np.empty((2, longest), np.int64)
        forwards, backwards = np.empty((3, 0 if backward else longest)), np.empty((5, longest if backward else 0))
        return state, compiled.Work(*flat, *np.empty((3, self.shape[1])), *lists, *forwards, *backwards)

    def _step_by_step(
        self, trace: Any, step_size: StepSize, seed: int, going: Callable[[int], bool]
    ) -> Learned | None:
        from offtrace.online.generic import Learner

        if isinstance(self.source, Trajectories):
            source: sources.Source = sources.StoredSource(self.source, self.replay_order(seed))
        elif isinstance(self.source, FiniteMDP):
            source = sources.ModelSource(self.source, seed)
        else:
            source = sources.GymnasiumSource(self.source, seed)
        limit = np.iinfo(np.int64).max if isinstance(self.source, Trajectories) else self.max_steps
        learner = Learner(
            q=self.q0.copy(),
            gamma=self.gamma,
            target=self.target,
            behaviour=self.behaviour,
            trace=trace,
            step_size=step_size,
            every_step=self.every_step,
            first_visit=self.first_visit,
            num_episodes=self.num_episodes,
        )
        shown = np.full((4, self.num_points), np.nan)
        shown[:, 0] = 0, np.nan, *self._errors(learner.q)
        num_steps, since, diverged_at = 0, [], None
        for k in range(self.num_episodes):
            length, earned, diverged = learner.trajectory(source, k, limit)
            num_steps += length
            since.append(earned)
            if not going(k + 1):
                return None
            if diverged:
                diverged_at = k
                break
            if (k + 1) % self.record_every == 0 or k + 1 == self.num_episodes:
                point = -(-(k + 1) // self.record_every)
                shown[:, point] = num_steps, np.mean(since), *self._errors(learner.q)
                since = []
        return self._learned(learner.q, learner.visits, shown, diverged_at)

    def _errors(self, q: np.ndarray) -> tuple[float, float]:
        if self.truth is None:
            return np.nan, np.nan
        error, weights = abs(q - self.truth), self.weights
        return float(error[weights > 0].max()), float(np.sqrt((weights * error**2).sum() / weights.sum()))

    def _learned(self, q: np.ndarray, visits: np.ndarray, shown: np.ndarray, diverged_at: int | None) -> Learned:
        num_steps, returns, max_error, rms_error = shown
        if diverged_at is not None:
            after = self.points > diverged_at
            num_steps[after] = np.nanmax(num_steps)
            max_error[after] = rms_error[after] = np.inf
        known = self.truth is not None
        return Learned(
            q=q,
            visits=visits,
            num_episodes=self.points,
            num_steps=num_steps.astype(np.int64),
            returns=returns,
            max_error=max_error if known else None,
            rms_error=rms_error if known else None,
            diverged_at=diverged_at,
        )


def model_of(mdp: FiniteMDP) -> "Model":
    """A FiniteMDP as the kernels sample it: sums of p in each row, to be searched."""
    from offtrace.online import simulate

    first = np.ascontiguousarray(mdp.first, dtype=np.int64)
    cumulative = np.empty_like(mdp.probability)
    simulate.cumulate(mdp.probability, first, cumulative)
    successor = mdp.successor.astype(np.int32, copy=False)
    ends = np.empty(0) if mdp.ends is None else mdp.ends
    reward = mdp.r.ravel() if mdp.reward is None else mdp.reward
    widths = np.diff(first)
    width = int(widths[0]) if (widths == widths[0]).all() else 0
    return simulate.Model(first, width, cumulative, successor, ends, reward, np.cumsum(mdp.start))


def acted_in(mdp: FiniteMDP, mu: np.ndarray | None) -> np.ndarray:
    """(X,) the states where an action can be taken: from the start states, by μ or by any action."""
    from offtrace.online import simulate

    allowed = np.empty((0, 0)) if mu is None else mu
    first = np.ascontiguousarray(mdp.first, dtype=np.int64)
    successor = mdp.successor.astype(np.int32, copy=False)
    return simulate.reach(first, successor, mdp.continuing, mdp.start, allowed, mdp.num_actions)
