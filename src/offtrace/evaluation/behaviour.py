"""The behaviour policy estimated from the log, where its probabilities were not recorded.

An episode's own actions are not used for its ratios: the episodes are split into folds, and the
probabilities of a fold come from the others.

    episode      0   1   2   3   4   5   6   7 …
    fold         2   0   1   1   0   2   0   1            μ̂ of fold 0 is estimated from folds 1 and 2
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from offtrace.evaluation.log import Log

PRIOR = 1.0
"""Pseudo-visits per state, spread over the actions as they occur in the whole log."""
RIDGE = 1e-3
"""Weight of the squared coefficients in the logistic regression, per row."""


@dataclass(frozen=True, eq=False)
class EstimatedBehaviour:
    """μ̂(a_t|x_t) of every row, and how well it predicts the actions it was not fitted to."""

    mu_a: np.ndarray
    """(N,)"""
    num_folds: int
    """1 if every episode was used for its own ratios."""
    log_likelihood: float
    """Mean log μ̂(a_t|x_t)."""
    marginal_log_likelihood: float
    """The same for a policy that ignores the state."""
    smallest: float
    """The smallest μ̂(a_t|x_t)."""


def folds_of(num_episodes: int, num_folds: int, seed: int) -> np.ndarray:
    """Return the fold of every episode, (E,): as equal in size as possible, in random order."""
    folds = np.arange(num_episodes) % max(1, min(num_folds, num_episodes))
    return np.random.default_rng(seed).permutation(folds)


def estimate_behaviour(log: Log, num_actions: int, *, num_folds: int = 5, seed: int = 0) -> EstimatedBehaviour:
    """Estimate μ: by counts for states, by multinomial logistic regression for observations.

    `num_folds=1` uses every episode for its own ratios as well.
    """
    folds = np.repeat(folds_of(log.num_episodes, num_folds, seed), log.lengths)
    marginal = np.bincount(log.action, minlength=num_actions) / log.num_steps
    mu_a = np.empty(log.num_steps)
    used = int(folds.max()) + 1
    for fold in range(used):
        inside = folds == fold
        others = ~inside if used > 1 else inside
        if log.state is not None:
            mu_a[inside] = _by_counts(log, others, inside, marginal)
        else:
            mu_a[inside] = _by_regression(log, others, inside, num_actions)
    with np.errstate(divide="ignore"):
        by_row = np.log(mu_a)
    return EstimatedBehaviour(
        mu_a=mu_a,
        num_folds=used,
        log_likelihood=float(by_row.mean()),
        marginal_log_likelihood=float(np.log(marginal[log.action]).mean()),
        smallest=float(mu_a.min()),
    )


def _by_counts(log: Log, fit: np.ndarray, wanted: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    """Return (n(x, a) + α p(a)) / (n(x) + α), with p(a) the share of the action in the whole log."""
    assert log.state is not None
    num_actions = len(marginal)
    num_states = int(log.state.max()) + 1
    pair = log.state * num_actions + log.action
    counts = np.bincount(pair[fit], minlength=num_states * num_actions)
    visits = counts.reshape(num_states, num_actions).sum(axis=1)
    prior = PRIOR * marginal[log.action[wanted]]
    return (counts[pair[wanted]] + prior) / (visits[log.state[wanted]] + PRIOR)


def _by_regression(log: Log, fit: np.ndarray, wanted: np.ndarray, num_actions: int) -> np.ndarray:
    """Return μ̂ of a multinomial logistic regression on standardised observations."""
    assert log.observation is not None
    centre = log.observation[fit].mean(axis=0)
    spread = log.observation[fit].std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    features = np.column_stack([np.ones(log.num_steps), (log.observation - centre) / spread])
    coefficients = fit_logistic(features[fit], log.action[fit], num_actions)
    probability = _softmax(features[wanted] @ coefficients)
    return probability[np.arange(len(probability)), log.action[wanted]]


def fit_logistic(features: np.ndarray, action: np.ndarray, num_actions: int) -> np.ndarray:
    """Return the coefficients (d, A) that maximise the likelihood of the actions, with a small ridge."""
    num_rows, width = features.shape
    rows = np.arange(num_rows)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients = flat.reshape(width, num_actions)
        probability = _softmax(features @ coefficients)
        value = -np.log(np.maximum(probability[rows, action], 1e-300)).mean() + RIDGE / 2 * (flat**2).sum()
        probability[rows, action] -= 1
        gradient = features.T @ probability / num_rows + RIDGE * coefficients
        return float(value), gradient.ravel()

    found = minimize(loss, np.zeros(width * num_actions), jac=True, method="L-BFGS-B", options={"maxiter": 500})
    return found.x.reshape(width, num_actions)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
