"""What all runs of one call share, checked once, and a single run of it: compiled, or step by step in Python."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offtrace.mdp import FiniteMDP
from offtrace.online import sources
from offtrace.online.checks import count, one_of, shape_and_gamma, table
from offtrace.online.policy_sequences import FIXED, Fixed, PolicySequence
from offtrace.online.records import Learned, Trajectories
from offtrace.online.schedules import StepSize, numbers
from offtrace.online.streams import state as stream_state

if TYPE_CHECKING:
    from offtrace.online.compiled_learner import LearnerState, StoredSteps, Workspace
    from offtrace.online.compiled_trace import CompiledTrace
    from offtrace.online.simulate import Model, Policy

STEPS_PER_CALL = 250_000
"""Steps of a compiled run between two reports of its progress, at which it can be stopped."""


@dataclass(frozen=True, eq=False)
class LearningProblem:
    """The source, the policies and the form of the update; `control` explains the options."""

    source: Any
    shape: tuple[int, int]
    gamma: float
    target: PolicySequence
    behaviour: PolicySequence
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
    def is_stored(self) -> bool:
        """Whether trajectories are replayed instead of drawn."""
        return isinstance(self.source, Trajectories)

    @property
    def num_points(self) -> int:
        """Points per curve, the one before the first trajectory included."""
        return 1 + -(-self.num_episodes // self.record_every)

    @property
    def points(self) -> np.ndarray:
        """(P,) the number of trajectories after which each point of the curves is taken."""
        return np.minimum(np.arange(self.num_points) * self.record_every, self.num_episodes)

    def replay_order(self, seed: int) -> np.ndarray:
        """Return the index of the stored trajectory to replay, for every k; empty where none is stored."""
        if not self.is_stored:
            return np.empty(0, np.int64)
        if self.order == "random":
            return np.random.default_rng(seed).integers(len(self.source), size=self.num_episodes)
        return np.arange(self.num_episodes) % len(self.source)

    def compile_trace(self, trace: Any) -> "CompiledTrace | None":
        """Return the trace for the compiled learner, or None where the Python learner has to run."""
        from offtrace.online.compiled_trace import compile_trace

        if self.engine == "python" or sources.is_gymnasium(self.source):
            return None
        if self.target.code is None or self.behaviour.code is None:
            return None
        _, _, target, behaviour = self.arrays
        pi = target.table if target.kind == FIXED else None
        mu = behaviour.table if behaviour.kind == FIXED and not self.is_stored else None
        return compile_trace(trace, pi=pi, mu=mu)

    @functools.cached_property
    def arrays(self) -> "tuple[Model, StoredSteps, Policy, Policy]":
        """The model, the stored steps, π_k and μ_k as the kernels take them."""
        from offtrace.online import simulate

        target, behaviour = (
            simulate.Policy(
                -1 if policies.code is None else policies.code,
                policies.parameters(self.num_episodes),
                policies.table(self.shape),
            )
            for policies in (self.target, self.behaviour)
        )
        if self.is_stored:
            return _empty_model(), _stored_steps(self.source), target, behaviour
        return model_of(self.source), _stored_steps(None), target, behaviour

    def run(
        self,
        trace: Any,
        compiled_trace: "CompiledTrace | None",
        step_size: StepSize,
        seed: int,
        progress: Callable[[int], bool] = lambda _: True,
    ) -> Learned | None:
        """Make one run. It calls `progress(k)` now and then; where that returns False it stops and returns None."""
        if compiled_trace is not None:
            return self._run_compiled(compiled_trace, step_size, seed, progress)
        if self.engine == "compiled":
            raise ValueError(
                f"`engine` must be 'auto' or 'python' for {trace!r} with these policies and this source; "
                "got 'compiled'. They have no compiled form."
            )
        return self._run_in_python(trace, step_size, seed, progress)

    def _run_compiled(
        self, trace: "CompiledTrace", step_size: StepSize, seed: int, progress: Callable[[int], bool]
    ) -> Learned | None:
        from offtrace.online import compiled_learner

        model, stored, target, behaviour = self.arrays
        settings = compiled_learner.UpdateSettings(
            gamma=self.gamma,
            max_steps=self.max_steps,
            every_step=self.every_step,
            backward=self.backward or self.every_step,
            first_visit=self.first_visit,
            scale=numbers(step_size.scale, self.num_episodes, "scale", low=0),
            power=float(step_size.power),
            offset=float(step_size.offset),
            bounded=step_size.bounded,
        )
        state, work = self._allocate(settings.backward, step_size.bounded, seed)
        values = np.full((4, self.num_points), np.nan)
        truth = np.empty((0, 0)) if self.truth is None else self.truth
        curves = compiled_learner.Curves(self.record_every, truth, self.weights, *values)
        order = self.replay_order(seed)
        sums = np.zeros(2)
        given = (model, stored, order, target, behaviour, trace, settings, state, work, curves, sums)
        k = 0
        while 0 <= k < self.num_episodes:
            k = compiled_learner.run(*given, k, self.num_episodes, STEPS_PER_CALL)
            if not progress(k):
                return None
        return self._learned(state.q, state.visits, values, None if k >= 0 else -1 - k)

    def _allocate(self, backward: bool, bounded: bool, seed: int) -> "tuple[LearnerState, Workspace]":
        """Return the arrays that a compiled run works on; those that its form of update does not need are empty."""
        from offtrace.online.compiled_learner import LearnerState, Workspace

        num_pairs = self.shape[0] * self.shape[1]
        longest = self.max_steps
        if self.is_stored:
            longest = int(np.diff(self.source.first).max())
        state = LearnerState(
            q=self.q0.copy(),
            visits=np.zeros(self.shape, np.int64),
            words=stream_state(seed),
            alpha=np.zeros(num_pairs if backward else 0),
            last_visit=np.zeros(num_pairs if self.first_visit or bounded else 0, np.int64),
            visits_here=np.zeros(num_pairs if bounded else 0, np.int64),
            place=np.zeros(num_pairs if backward else 0, np.int64),
            total=np.zeros(num_pairs if backward and not self.every_step else 0),
        )
        flat = (state.q.reshape(-1), state.visits.reshape(-1))
        policy_rows = np.empty((3, self.shape[1]))
        pair_lists = np.empty((2, longest), np.int64)
        forward_lists = np.empty((3, 0 if backward else longest))
        backward_lists = np.empty((5, longest if backward else 0))
        return state, Workspace(*flat, *policy_rows, *pair_lists, *forward_lists, *backward_lists)

    def _run_in_python(
        self, trace: Any, step_size: StepSize, seed: int, progress: Callable[[int], bool]
    ) -> Learned | None:
        from offtrace.online.python_learner import Learner

        max_steps = self.max_steps
        if self.is_stored:
            source: sources.Source = sources.StoredSource(self.source, self.replay_order(seed))
            max_steps = np.iinfo(np.int64).max
        elif isinstance(self.source, FiniteMDP):
            source = sources.ModelSource(self.source, seed)
        else:
            source = sources.GymnasiumSource(self.source, seed)
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
        values = np.full((4, self.num_points), np.nan)
        values[:, 0] = 0, np.nan, *self._errors(learner.q)
        num_steps = 0
        returns: list[float] = []  # since the last point
        for k in range(self.num_episodes):
            length, earned, diverged = learner.trajectory(source, k, max_steps)
            num_steps += length
            returns.append(earned)
            if not progress(k + 1):
                return None
            if diverged:
                return self._learned(learner.q, learner.visits, values, k)
            if (k + 1) % self.record_every == 0 or k + 1 == self.num_episodes:
                point = -(-(k + 1) // self.record_every)
                values[:, point] = num_steps, np.mean(returns), *self._errors(learner.q)
                returns = []
        return self._learned(learner.q, learner.visits, values, None)

    def _errors(self, q: np.ndarray) -> tuple[float, float]:
        """Return the largest and the root mean square error of Q; NaN without a truth."""
        if self.truth is None:
            return np.nan, np.nan
        error = abs(q - self.truth)
        weights = self.weights
        return float(error[weights > 0].max()), float(np.sqrt((weights * error**2).sum() / weights.sum()))

    def _learned(self, q: np.ndarray, visits: np.ndarray, values: np.ndarray, diverged_at: int | None) -> Learned:
        num_steps, returns, max_error, rms_error = values
        if diverged_at is not None:
            after = self.points > diverged_at
            num_steps[after] = np.nanmax(num_steps)
            max_error[after] = rms_error[after] = np.inf
        has_truth = self.truth is not None
        return Learned(
            q=q,
            visits=visits,
            num_episodes=self.points,
            num_steps=num_steps.astype(np.int64),
            returns=returns,
            max_error=max_error if has_truth else None,
            rms_error=rms_error if has_truth else None,
            diverged_at=diverged_at,
        )


def learning_problem(
    source: Any,
    target: PolicySequence,
    behaviour: PolicySequence,
    *,
    num_episodes: int | None = None,
    update: str = "trajectory",
    view: str = "forward",
    visits: str = "every",
    q0: Any = 0.0,
    gamma: float | None = None,
    order: str = "stored",
    max_steps: int = 1_000,
    truth: Any = None,
    weights: Any = None,
    record_every: int | None = None,
    engine: str = "auto",
) -> LearningProblem:
    """Check everything, and fill in the defaults that depend on the source."""
    shape, gamma = shape_and_gamma(source, gamma)
    is_stored = isinstance(source, Trajectories)
    if num_episodes is None:
        num_episodes = len(source) if is_stored else 1_000
    num_episodes = count("num_episodes", num_episodes, 1)
    if record_every is None:
        record_every = max(1, num_episodes // 100)
    fixed_pi = target.table(shape) if isinstance(target, Fixed) else None
    fixed_mu = behaviour.table(shape) if isinstance(behaviour, Fixed) and not is_stored else None
    if fixed_mu is not None and fixed_pi is not None and isinstance(source, FiniteMDP):
        _check_coverage(source, fixed_pi, fixed_mu)
    return LearningProblem(
        source=source,
        shape=shape,
        gamma=gamma,
        target=target,
        behaviour=behaviour,
        num_episodes=num_episodes,
        every_step=one_of("update", update, ("trajectory", "step")) == "step",
        backward=one_of("view", view, ("forward", "backward")) == "backward",
        first_visit=one_of("visits", visits, ("every", "first")) == "first",
        max_steps=count("max_steps", max_steps, 1),
        record_every=count("record_every", record_every, 1),
        order=one_of("order", order, ("stored", "random")),
        engine=one_of("engine", engine, ("auto", "compiled", "python")),
        q0=table("q0", q0, shape),
        truth=None if truth is None else table("truth", truth, shape),
        weights=_error_weights(source, shape, weights, fixed_mu),
    )


def _error_weights(source: Any, shape: tuple[int, int], weights: Any, mu: np.ndarray | None) -> np.ndarray:
    """The weights of the errors, (X, A); by default 1 for every pair that can be visited."""
    if weights is None and isinstance(source, FiniteMDP):
        weights = np.repeat(acted_in(source, mu)[:, None], shape[1], axis=1).astype(np.float64)
        if mu is not None:
            weights *= mu > 0
    weights = table("weights", 1.0 if weights is None else weights, shape)
    if (weights < 0).any() or not weights.any():
        raise ValueError("`weights` must be at least 0 everywhere and above 0 somewhere.")
    return weights


def _check_coverage(mdp: FiniteMDP, pi: np.ndarray, mu: np.ndarray) -> None:
    """Raise where π takes an action that μ never takes: Theorem 3 requires that every pair is visited for ever."""
    missing = (pi > 0) & ~(mu > 0) & acted_in(mdp, mu)[:, None]
    if missing.any():
        x, a = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"`mu` must be above 0 wherever π is; got μ = 0, π = {pi[x, a]:.6g} at (x, a) = ({x}, {a}). What is "
            "never tried is never learned: mix a little of π into μ."
        )


# -- arrays for the kernels ----------------------------------------------------------------------


def model_of(mdp: FiniteMDP) -> "Model":
    """Return a FiniteMDP as the kernels sample it: with the cumulative sums of p in each row."""
    from offtrace.online import simulate

    first = np.ascontiguousarray(mdp.first, dtype=np.int64)
    cumulative = np.empty_like(mdp.probability)
    simulate.cumulate(mdp.probability, first, cumulative)
    widths = np.diff(first)
    return simulate.Model(
        first=first,
        width=int(widths[0]) if (widths == widths[0]).all() else 0,
        cumulative=cumulative,
        successor=mdp.successor.astype(np.int32, copy=False),
        ends=np.empty(0) if mdp.ends is None else mdp.ends,
        reward=mdp.r.ravel() if mdp.reward is None else mdp.reward,
        start=np.cumsum(mdp.start),
    )


def _empty_model() -> "Model":
    from offtrace.online import simulate

    numbers, indices, states = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32)
    return simulate.Model(indices, 0, numbers, states, numbers, numbers, numbers)


def _stored_steps(stored: Trajectories | None) -> "StoredSteps":
    from offtrace.online.compiled_learner import StoredSteps

    if stored is None:
        numbers, indices = np.empty(0), np.empty(0, np.int64)
        return StoredSteps(indices, indices, indices, numbers, indices, np.empty(0, np.bool_), numbers)
    mu_a = np.full(stored.num_steps, np.nan) if stored.mu_a is None else stored.mu_a
    return StoredSteps(
        first=stored.first,
        x=stored.states,
        a=stored.actions,
        r=stored.rewards,
        x_next=stored.next_states,
        terminated=stored.terminated,
        mu_a=mu_a,
    )


def acted_in(mdp: FiniteMDP, mu: np.ndarray | None) -> np.ndarray:
    """(X,) the states in which μ acts, from the start states on; without μ, those in which any policy can act."""
    from offtrace.online import simulate

    allowed = np.empty((0, 0)) if mu is None else mu
    first = np.ascontiguousarray(mdp.first, dtype=np.int64)
    successor = mdp.successor.astype(np.int32, copy=False)
    return simulate.reachable(first, successor, mdp.continuing, mdp.start, allowed, mdp.num_actions)
