"""The behaviour policy estimated from the log, where its probabilities were not recorded.

An episode's own actions are not used for its ratios: the episodes are split into folds, and the
probabilities of a fold come from the others.

    episode      0   1   2   3   4   5   6   7 …
    fold         2   0   1   1   0   2   0   1            μ̂ of fold 0 is estimated from folds 1 and 2

Where the log says which of several behaviour policies acted, each has a μ̂ of its own in tables, and
an intercept of its own in the regression.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from offtrace.evaluation.parts import Engine, Part, total
from offtrace.evaluation.preparation import Standardised, standardise

PRIOR = 1.0
"""Pseudo-visits per state, spread over the actions as they occur in the whole log."""
RIDGE = 1e-3
"""Weight of the squared coefficients in the logistic regression, per row."""


@dataclass(frozen=True)
class EstimatedBehaviour:
    """How well μ̂ predicts the actions that it was not fitted to."""

    method: str
    """"counts" or "logistic regression"."""
    num_folds: int
    """1 if every episode was used for its own ratios."""
    log_likelihood: float
    """Mean log μ̂(a_t|x_t)."""
    marginal_log_likelihood: float
    """The same for a policy that ignores the state."""
    smallest: float
    """The smallest μ̂(a_t|x_t)."""


def estimate_behaviour(engine: Engine, num_actions: int, num_folds: int) -> EstimatedBehaviour:
    """Estimate μ: by counts for states, by multinomial logistic regression for observations.

    The parts need the label "fold". `num_folds=1` uses every episode for its own ratios as well.
    """
    has_states = all(engine.map(_has_states))
    if has_states:
        marginal = _fit_counts(engine, num_actions, num_folds)
    else:
        marginal = _fit_regression(engine, num_actions, num_folds)
    sums, smallest = zip(*engine.map(_likelihood, marginal), strict=True)
    log_likelihood, marginal_log_likelihood, num_rows = total(sums)
    return EstimatedBehaviour(
        method="counts" if has_states else "logistic regression",
        num_folds=num_folds,
        log_likelihood=float(log_likelihood / num_rows),
        marginal_log_likelihood=float(marginal_log_likelihood / num_rows),
        smallest=float(min(smallest)),
    )


def _has_states(part: Part) -> bool:
    return part.log.state is not None


def _likelihood(part: Part, marginal: np.ndarray) -> tuple[np.ndarray, float]:
    assert part.mu_a is not None
    with np.errstate(divide="ignore"):
        sums = [np.log(part.mu_a).sum(), np.log(marginal[part.log.action]).sum(), part.log.num_steps]
    return np.array(sums), part.mu_a.min()


# -- counts ----------------------------------------------------------------------------------------


def _fit_counts(engine: Engine, num_actions: int, num_folds: int) -> np.ndarray:
    num_states = max(engine.map(_largest_cell)) + 1
    counts = total(engine.map(_count, num_states, num_actions, num_folds))
    marginal = counts.sum(axis=(0, 1)) / counts.sum()
    used = counts
    if num_folds > 1:
        used = counts.sum(axis=0) - counts
    engine.map(_set_by_counts, used, marginal)
    return marginal


def _count(part: Part, num_states: int, num_actions: int, num_folds: int) -> np.ndarray:
    """Return n(x, a) of every fold, (F, X, A)."""
    fold = np.repeat(part.labels["fold"], part.log.lengths)
    key = (fold * num_states + _cells(part)) * num_actions + part.log.action
    shape = (num_folds, num_states, num_actions)
    return np.bincount(key, minlength=int(np.prod(shape))).reshape(shape)


def _set_by_counts(part: Part, counts: np.ndarray, marginal: np.ndarray) -> None:
    """Set μ̂ = (n(x, a) + α p(a)) / (n(x) + α), with p(a) the share of the action in the whole log."""
    fold = np.repeat(part.labels["fold"], part.log.lengths)
    cell = _cells(part)
    taken = counts[fold, cell, part.log.action] + PRIOR * marginal[part.log.action]
    part.mu_a = taken / (counts.sum(axis=2)[fold, cell] + PRIOR)


def _cells(part: Part) -> np.ndarray:
    """Return the state of every row, with a number of its own for every behaviour policy."""
    assert part.log.state is not None
    if part.log.behaviour_policy is None:
        return part.log.state.astype(np.int64)
    return part.log.state.astype(np.int64) * len(part.log.behaviour_names) + part.log.behaviour_policy


def _largest_cell(part: Part) -> int:
    return int(_cells(part).max())


# -- logistic regression ---------------------------------------------------------------------------


def _fit_regression(engine: Engine, num_actions: int, num_folds: int) -> np.ndarray:
    features = standardise(engine)
    shape = (engine.map(_width, features)[0], num_actions)
    coefficients = []
    for fold in range(num_folds):
        without = fold if num_folds > 1 else None

        def loss(flat: np.ndarray, without: int | None = without) -> tuple[float, np.ndarray]:
            sums = total(engine.map(_loss, flat.reshape(shape), features, without))
            value = sums[0] / sums[1] + RIDGE / 2 * (flat**2).sum()
            return float(value), sums[2:] / sums[1] + RIDGE * flat

        found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 500})
        coefficients.append(found.x.reshape(shape))
    engine.map(_set_by_regression, coefficients, features)
    marginal = total(engine.map(_action_counts, num_actions))
    return marginal / marginal.sum()


def _inputs(part: Part, features: Standardised) -> np.ndarray:
    """Return the standardised observations, and which behaviour policy acted."""
    assert part.log.observation is not None
    inputs = features(part.log.observation)
    if part.log.behaviour_policy is None:
        return inputs
    policy = np.eye(len(part.log.behaviour_names))[part.log.behaviour_policy]
    return np.column_stack([inputs, policy])


def _width(part: Part, features: Standardised) -> int:
    return 1 + len(features.centre) + len(part.log.behaviour_names)


def _loss(part: Part, coefficients: np.ndarray, features: Standardised, without: int | None) -> np.ndarray:
    """Return −Σ log μ̂(a_t|x_t), the number of rows, and the gradient of the first, in one vector."""
    rows = np.ones(part.log.num_steps, bool)
    if without is not None:
        rows = np.repeat(part.labels["fold"] != without, part.log.lengths)
    inputs = _inputs(part, features)[rows]
    action = part.log.action[rows]
    probability = _softmax(inputs @ coefficients)
    index = np.arange(len(action))
    value = -np.log(np.maximum(probability[index, action], 1e-300)).sum()
    probability[index, action] -= 1
    return np.concatenate([[value, len(action)], (inputs.T @ probability).ravel()])


def _set_by_regression(part: Part, coefficients: list[np.ndarray], features: Standardised) -> None:
    inputs = _inputs(part, features)
    fold = np.repeat(part.labels["fold"], part.log.lengths)
    part.mu_a = np.empty(part.log.num_steps)
    for number, one in enumerate(coefficients):
        rows = fold == number
        probability = _softmax(inputs[rows] @ one)
        part.mu_a[rows] = probability[np.arange(len(probability)), part.log.action[rows]]


def _action_counts(part: Part, num_actions: int) -> np.ndarray:
    return np.bincount(part.log.action, minlength=num_actions)


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
