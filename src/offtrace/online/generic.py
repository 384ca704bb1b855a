"""The learner without a compiler: Eq. 7 in its backward view, with dictionaries, one step at a time.

Slow and plain. It serves what the kernels cannot: traces and policies of the user's own, and environments that have
to be stepped. On a model it makes the same trajectories as the kernels, seed for seed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from offtrace.likelihoods import Likelihoods
from offtrace.online.schedules import StepSize
from offtrace.online.sequences import Sequence
from offtrace.online.sources import Source
from offtrace.traces import Reach


class Visit(NamedTuple):
    """What a trajectory-aware trace carries for the visit of a pair."""

    pair: tuple[int, int]
    discount: float
    beta: float
    lambda_product: float
    log_product: float


class Learner:
    """Q, the counts of visits, and the traces of the trajectory that is under way."""

    def __init__(
        self,
        *,
        q: np.ndarray,
        gamma: float,
        target: Sequence,
        behaviour: Sequence,
        trace: Any,
        step_size: StepSize,
        every_step: bool,
        first_visit: bool,
        num_episodes: int,
    ) -> None:
        self.q, self.gamma, self.trace, self.step_size = q, gamma, trace, step_size
        self.target, self.behaviour = target, behaviour
        self.every_step, self.first_visit = every_step, first_visit
        self.visits = np.zeros(q.shape, np.int64)
        self.pi_parameters, self.mu_parameters = target.parameters(num_episodes), behaviour.parameters(num_episodes)

    def trajectory(self, source: Source, k: int, max_steps: int) -> tuple[int, float, bool]:
        """The k-th trajectory: its length, its discounted return, and whether a TD error was no longer finite."""
        z: dict[tuple[int, int], float] = {}
        visits: list[Visit] = []
        alpha: dict[tuple[int, int], float] = {}
        total: dict[tuple[int, int], float] = {}
        within: dict[tuple[int, int], int] = {}
        x, earned, t = source.start(k), 0.0, 0
        pi = self.target.row(self.q[x], x, k, self.pi_parameters[k])
        while t < max_steps:
            a, mu_a, r, x_next, terminated, truncated = source.step(x, k, self._row(x, k))
            value, ahead = 0.0, pi
            if not terminated:
                ahead = self.target.row(self.q[x_next], x_next, k, self.pi_parameters[k])
                value = float(np.dot(ahead, self.q[x_next]))
            delta = r + self.gamma * value - self.q[x, a]
            if not np.isfinite(delta):
                return t, earned, True
            earned += self.gamma**t * r
            counts = not (self.first_visit and (x, a) in alpha)
            if counts:
                self.visits[x, a] += 1
                within[x, a] = within.get((x, a), 0) + 1
                alpha[x, a] = self.step_size.at(visits=int(self.visits[x, a]), k=k, within=within[x, a])
            if self.trace.markov:
                c = self._c(x, a, pi, mu_a) if t > 0 else 0.0
                z = {pair: self.gamma * c * reached for pair, reached in z.items() if c != 0}
                if counts:
                    z[x, a] = z.get((x, a), 0.0) + 1.0
                reached = list(z.items())
            else:
                visits = self._carried_on(visits, float(pi[a]), mu_a)
                if counts:
                    visits.append(Visit((x, a), 1.0, 1.0, 1.0, 0.0))
                reached = [(visit.pair, visit.discount * visit.beta) for visit in visits]
            for pair, weight in reached:
                if self.every_step:
                    self.q[pair] += alpha[pair] * (delta * weight)
                else:
                    total[pair] = total.get(pair, 0.0) + delta * weight
            t += 1
            if terminated or truncated:
                break
            x, pi = x_next, ahead
            if self.every_step:
                pi = self.target.row(self.q[x], x, k, self.pi_parameters[k])
        for pair, correction in total.items():  # Q_k was frozen until here
            self.q[pair] += alpha[pair] * correction
        return t, earned, False

    def _row(self, x: int, k: int) -> Callable[[], np.ndarray]:
        return lambda: self.behaviour.row(self.q[x], x, k, self.mu_parameters[k])

    def _c(self, x: int, a: int, pi: np.ndarray, mu_a: float) -> float:
        pi_a, drawn = pi[a : a + 1], np.array([mu_a])
        given: dict[str, Any] = {"q": self.q[x : x + 1], "pi": pi[None], "a": np.array([a])}
        return float(self.trace.coefficients(Likelihoods(np, pi_a, drawn, None, None), **given)[0])

    def _carried_on(self, visits: list[Visit], pi_a: float, mu_a: float) -> list[Visit]:
        with np.errstate(divide="ignore"):
            log_ratio = np.log(pi_a) - np.log(mu_a)
        lambda_ = float(self.trace.lambda_)
        kept = []
        for pair, discount, beta, lambda_product, log_product in visits:
            lambdas, logs = lambda_product * lambda_, log_product + log_ratio
            clipped = np.exp(min(logs, 0.0))
            reach = Reach(
                *(np.float64(v) for v in (beta, pi_a / mu_a, beta * (pi_a / mu_a), lambda_, clipped, lambdas))
            )
            beta = float(self.trace.next_beta(np, reach))
            kept.append(Visit(pair, discount * self.gamma, beta, lambdas, logs))
        return kept
