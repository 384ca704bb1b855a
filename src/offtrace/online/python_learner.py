"""The learner in plain Python: Eq. 7 in its backward view, one step at a time, with dictionaries.

It is slow and simple, and serves what the kernels cannot: your own traces and policies, and
environments that have to be stepped. On a model it makes the same trajectories as the kernels, seed
by seed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from offtrace.likelihoods import Likelihoods
from offtrace.online.policy_sequences import PolicySequence
from offtrace.online.schedules import StepSize
from offtrace.online.sources import Source
from offtrace.traces import Trace
from offtrace.traces.beta import BetaState, advance

Pair = tuple[int, int]


class Learner:
    """Q, the visit counts and the step sizes of a run."""

    def __init__(
        self,
        *,
        q: np.ndarray,
        gamma: float,
        target: PolicySequence,
        behaviour: PolicySequence,
        trace: Trace,
        step_size: StepSize,
        every_step: bool,
        first_visit: bool,
        num_episodes: int,
    ) -> None:
        self.q = q
        self.gamma = gamma
        self.target = target
        self.behaviour = behaviour
        self.trace = trace
        self.step_size = step_size
        self.every_step = every_step
        self.first_visit = first_visit
        self.visits = np.zeros(q.shape, np.int64)
        self.pi_parameters = target.parameters(num_episodes)
        self.mu_parameters = behaviour.parameters(num_episodes)

    def trajectory(self, source: Source, k: int, max_steps: int) -> tuple[int, float, bool]:
        """Learn from trajectory k; returns its length, its discounted return, and whether it diverged."""
        traces: MarkovTraces | TrajectoryAwareTraces
        traces = MarkovTraces(self.gamma) if self.trace.markov else TrajectoryAwareTraces(self.gamma, self.trace)
        alpha: dict[Pair, float] = {}
        total: dict[Pair, float] = {}  # Σ_t δ_t z_t, where Q_k stays as it is until the end
        visits_here: dict[Pair, int] = {}
        x = source.start(k)
        pi = self._target_row(x, k)
        earned = 0.0
        t = 0
        while t < max_steps:
            a, mu_a, r, x_next, terminated, truncated = source.step(x, k, self._behaviour_row(x, k))
            value = 0.0
            pi_next = pi
            if not terminated:
                pi_next = self._target_row(x_next, k)
                value = float(np.dot(pi_next, self.q[x_next]))
            delta = r + self.gamma * value - self.q[x, a]
            if not np.isfinite(delta):
                return t, earned, True
            earned += self.gamma**t * r

            counts = not (self.first_visit and (x, a) in alpha)
            if counts:
                self.visits[x, a] += 1
                visits_here[x, a] = visits_here.get((x, a), 0) + 1
                alpha[x, a] = self.step_size.at(visits=int(self.visits[x, a]), k=k, within=visits_here[x, a])

            if isinstance(traces, MarkovTraces):
                traces.decay(self._coefficient(x, a, pi, mu_a) if t > 0 else 0.0)
            else:
                traces.advance(float(pi[a]), mu_a)
            if counts:
                traces.visit((x, a))
            for pair, z in traces.weights():
                if self.every_step:
                    self.q[pair] += alpha[pair] * (delta * z)
                else:
                    total[pair] = total.get(pair, 0.0) + delta * z
            t += 1
            if terminated or truncated:
                break
            x = x_next
            pi = self._target_row(x, k) if self.every_step else pi_next
        for pair, correction in total.items():
            self.q[pair] += alpha[pair] * correction
        return t, earned, False

    def _target_row(self, x: int, k: int) -> np.ndarray:
        """π_k(·|x)."""
        return self.target.row(self.q[x], x, k, self.pi_parameters[k])

    def _behaviour_row(self, x: int, k: int) -> Callable[[], np.ndarray]:
        """A function that returns μ_k(·|x), which stored trajectories do not call."""
        return lambda: self.behaviour.row(self.q[x], x, k, self.mu_parameters[k])

    def _coefficient(self, x: int, a: int, pi: np.ndarray, mu_a: float) -> float:
        """c(x, a) of a Markov trace."""
        pi_a = pi[a : a + 1]
        drawn = np.array([mu_a])
        given: dict[str, Any] = {"q": self.q[x : x + 1], "pi": pi[None], "a": np.array([a])}
        # without `Trace.__call__`'s checks: the inputs were checked on the way in
        return float(self.trace.coefficients(Likelihoods(np, pi_a, drawn, None, None), **given)[0])


class MarkovTraces:
    """z_t(x, a) = γ c_t z_{t−1}(x, a) + 1{x_t, a_t = x, a}, for the pairs where it is not 0."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.z: dict[Pair, float] = {}

    def decay(self, c: float) -> None:
        """z ← γ c z."""
        self.z = {pair: self.gamma * c * z for pair, z in self.z.items() if c != 0}

    def visit(self, pair: Pair) -> None:
        self.z[pair] = self.z.get(pair, 0.0) + 1.0

    def weights(self) -> list[tuple[Pair, float]]:
        return list(self.z.items())


class TrajectoryAwareTraces:
    """γ^{t−j} β_{j,t} for every visit j of the trajectory: one entry per visit in all arrays."""

    def __init__(self, gamma: float, trace: Any) -> None:
        self.gamma = gamma
        self.trace = trace
        self.lambda_ = float(trace.lambda_)
        self.pairs: list[Pair] = []
        self.discount = np.empty(0)
        self.state = BetaState(np.empty(0), np.empty(0), np.empty(0))

    def advance(self, pi_a: float, mu_a: float) -> None:
        """Take every β one step on, by ρ_t = π(a_t|x_t) / μ(a_t|x_t)."""
        if not self.pairs:
            return
        with np.errstate(divide="ignore"):
            log_ratio = np.log(pi_a) - np.log(mu_a)
        ratio = np.float64(pi_a / mu_a)
        state = advance(self.trace, np, self.state, log_ratio=log_ratio, lambda_=self.lambda_, ratio=ratio)
        self.state = BetaState(*(np.broadcast_to(values, len(self.pairs)) for values in state))
        self.discount = self.discount * self.gamma

    def visit(self, pair: Pair) -> None:
        self.pairs.append(pair)
        self.discount = np.append(self.discount, 1.0)
        beta, lambda_product, log_product = self.state
        self.state = BetaState(np.append(beta, 1.0), np.append(lambda_product, 1.0), np.append(log_product, 0.0))

    def weights(self) -> list[tuple[Pair, float]]:
        return list(zip(self.pairs, (self.discount * self.state.beta).tolist(), strict=True))
