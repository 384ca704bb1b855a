"""Q as a table or as a linear function of features, and the sums that fitting it needs.

A basis says what Q, given by coefficients w, is at the rows of a part, and adds rows up the other
way round:

    q_a(w)          Q(x_t, a_t)                       gather(z)           Σ_t z_t ∂Q(x_t, a_t)/∂w
    expected_q(w)   Σ_a π(a|x_{t+1}) Q(x_{t+1}, a)    gather_next(z)      Σ_t z_t ∂(the left)/∂w
    start_value(w)  Σ_a π(a|x_0) Q(x_0, a)            gather_start(z)     Σ_i z_i ∂(the left)/∂w
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from offtrace.evaluation.log import Log

RIDGE = 1e-8
"""Added to the diagonal of a Gram matrix, relative to its mean, so that features may be redundant."""


class Basis(Protocol):
    """Q at the rows of one part."""

    @property
    def size(self) -> int: ...
    def q_a(self, w: np.ndarray) -> np.ndarray: ...
    def expected_q(self, w: np.ndarray) -> np.ndarray: ...
    def start_value(self, w: np.ndarray) -> np.ndarray: ...
    def gather(self, z: np.ndarray) -> np.ndarray: ...
    def gather_next(self, z: np.ndarray) -> np.ndarray: ...
    def gather_start(self, z: np.ndarray) -> np.ndarray: ...

    def rows(self, w: np.ndarray) -> dict[str, np.ndarray]:
        """Return `q` and `pi` (N + 1, A) and `a`, for traces that read them."""
        ...

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """Return Σ_t weights_t φ_t φ_tᵀ: its diagonal for a table, a block per action for features."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """Q(x, a) in a table of all states and actions."""

    pi: np.ndarray
    """(X, A)"""
    pair: np.ndarray
    """(N,) x · A + a."""
    successor: np.ndarray
    """(N,) the next state; 0 where there is none."""
    start: np.ndarray
    """(E,) the first state of every episode."""

    @property
    def size(self) -> int:
        return self.pi.size

    def _values(self, w: np.ndarray) -> np.ndarray:
        return (self.pi * w.reshape(self.pi.shape)).sum(axis=1)

    def q_a(self, w: np.ndarray) -> np.ndarray:
        return w[self.pair]

    def expected_q(self, w: np.ndarray) -> np.ndarray:
        return self._values(w)[self.successor]

    def start_value(self, w: np.ndarray) -> np.ndarray:
        return self._values(w)[self.start]

    def gather(self, z: np.ndarray) -> np.ndarray:
        return np.bincount(self.pair, weights=z, minlength=self.size)

    def gather_next(self, z: np.ndarray) -> np.ndarray:
        return self._spread(np.bincount(self.successor, weights=z, minlength=len(self.pi)))

    def gather_start(self, z: np.ndarray) -> np.ndarray:
        return self._spread(np.bincount(self.start, weights=z, minlength=len(self.pi)))

    def _spread(self, by_state: np.ndarray) -> np.ndarray:
        return (by_state[:, None] * self.pi).ravel()

    def rows(self, w: np.ndarray) -> dict[str, np.ndarray]:
        state, action = np.divmod(self.pair, self.pi.shape[1])
        after = np.append(state, self.successor[-1])
        return {"q": w.reshape(self.pi.shape)[after], "pi": self.pi[after], "a": action}

    def gram(self, weights: np.ndarray) -> np.ndarray:
        return self.gather(weights)


@dataclass(frozen=True, eq=False)
class Linear:
    """Q(x, a) = f(x) · w_a, with features f and one vector of coefficients per action."""

    features: np.ndarray
    """(N, d)"""
    action: np.ndarray
    """(N,)"""
    next_features: np.ndarray
    """(N, d), of the next observation; 0 where there is none."""
    pi: np.ndarray
    """(N, A)"""
    next_pi: np.ndarray
    """(N, A)"""
    first: np.ndarray
    """(E,) the first row of every episode."""

    @property
    def size(self) -> int:
        return self.features.shape[1] * self.pi.shape[1]

    def _q(self, features: np.ndarray, w: np.ndarray) -> np.ndarray:
        return features @ w.reshape(-1, self.pi.shape[1])

    def q_a(self, w: np.ndarray) -> np.ndarray:
        return np.take_along_axis(self._q(self.features, w), self.action[:, None], axis=1)[:, 0]

    def expected_q(self, w: np.ndarray) -> np.ndarray:
        return (self.next_pi * self._q(self.next_features, w)).sum(axis=1)

    def start_value(self, w: np.ndarray) -> np.ndarray:
        return (self.pi[self.first] * self._q(self.features[self.first], w)).sum(axis=1)

    def gather(self, z: np.ndarray) -> np.ndarray:
        by_action = np.zeros(self.pi.shape)
        by_action[np.arange(len(z)), self.action] = z
        return (self.features.T @ by_action).ravel()

    def gather_next(self, z: np.ndarray) -> np.ndarray:
        return (self.next_features.T @ (self.next_pi * z[:, None])).ravel()

    def gather_start(self, z: np.ndarray) -> np.ndarray:
        return (self.features[self.first].T @ (self.pi[self.first] * z[:, None])).ravel()

    def rows(self, w: np.ndarray) -> dict[str, np.ndarray]:
        features = np.concatenate([self.features, self.next_features[-1:]])
        pi = np.concatenate([self.pi, self.next_pi[-1:]])
        return {"q": self._q(features, w), "pi": pi, "a": self.action}

    def gram(self, weights: np.ndarray) -> np.ndarray:
        num_actions = self.pi.shape[1]
        out = np.empty((num_actions, self.features.shape[1], self.features.shape[1]))
        for a in range(num_actions):
            rows = self.action == a
            chosen = self.features[rows]
            out[a] = chosen.T @ (chosen * weights[rows, None])
        return out


class Mean:
    """The projection of targets onto a basis: the mean of each pair, or the least squares fit of each action."""

    def __init__(self, gram: np.ndarray) -> None:
        self.gram = gram
        self.is_table = gram.ndim == 1
        if self.is_table:
            self.seen = gram > 0
            return
        width = gram.shape[1]
        has_rows = np.trace(gram, axis1=1, axis2=2) > 0
        self.seen = np.broadcast_to(has_rows, (width, len(gram))).ravel()
        size = np.where(has_rows, RIDGE * np.trace(gram, axis1=1, axis2=2) / width, 1.0)
        self.inverse = np.linalg.inv(gram + size[:, None, None] * np.eye(width))

    def __call__(self, sums: np.ndarray) -> np.ndarray:
        """Return the coefficients that fit best, from Σ_t target_t φ_t; 0 where the log has no row."""
        if self.is_table:
            return np.where(self.seen, sums / np.where(self.seen, self.gram, 1.0), 0.0)
        by_action = sums.reshape(-1, len(self.gram))
        fitted = np.einsum("aij,ja->ia", self.inverse, by_action)
        return np.where(self.seen, fitted.ravel(), 0.0)


def table(log: Log, pi: np.ndarray, successor: np.ndarray) -> Table:
    """Return the basis of a part with states."""
    assert log.state is not None
    kind: Any = np.int32 if pi.size < 2**31 else np.int64
    pair = log.state.astype(kind) * pi.shape[1] + log.action.astype(kind)
    return Table(pi, pair, successor.astype(kind), log.state[log.first[:-1]])


def linear(log: Log, target: Any, features: Any, successor: np.ndarray) -> Linear:
    """Return the basis of a part with observations."""
    return Linear(
        features=features(log.observation),
        action=log.action,
        next_features=features(successor),
        pi=target.probabilities(log.observation),
        next_pi=target.probabilities(successor),
        first=log.first[:-1],
    )
