"""Importance sampling, doubly robust and weighted forms: estimates of the value of π at the start.

With ρ_t = Π_{s≤t} π(a_s|x_s)/μ(a_s|x_s), n episodes, Q̂ and V̂(x) = Σ_a π(a|x) Q̂(x, a) of a model:

    IS      1/n Σ_i ρ_{T−1} Σ_t γ^t r_t                                   ordinary
    WIS     Σ_i ρ_{T−1} Σ_t γ^t r_t / Σ_i ρ_{T−1}                         weighted
    PDIS    1/n Σ_i Σ_t γ^t ρ_t r_t                                       per decision (Precup et al. 2000)
    WPDIS   Σ_t γ^t Σ_i ρ_t r_t / Σ_i ρ_t                                 per decision, weighted
    DR      1/n Σ_i V̂(x_0) + Σ_t γ^t ρ_t (r_t + γ V̂(x_{t+1}) − Q̂(x_t, a_t))     (Jiang & Li 2016)
    WDR     the same with ρ_t / Σ_i ρ_t in place of ρ_t / n               (Thomas & Brunskill 2016)

Every estimate comes with its influence: one number per episode, whose mean is 0 and whose standard
deviation, divided by √n, is the standard error.
"""

from typing import NamedTuple

import numpy as np

from offtrace.evaluation.log import Log
from offtrace.evaluation.sums import add_ended, cumulative_ratios, discounted_sums, sums_by_step


class Estimate(NamedTuple):
    """A value, the same under every bootstrap weighting, and the influence of every episode."""

    value: float
    samples: np.ndarray
    """(B,) one per bootstrap sample."""
    influence: np.ndarray
    """(E,) its mean is 0."""


class Corrections(NamedTuple):
    """What a model knows of every step, for the doubly robust forms."""

    start: np.ndarray
    """(E,) V̂ at the first state of every episode."""
    error: np.ndarray
    """(N,) r_t + γ V̂(x_{t+1}) − Q̂(x_t, a_t); V̂ is 0 after an end."""


def step_ratios(log: Log, pi_a: np.ndarray, mu_a: np.ndarray) -> np.ndarray:
    """Return ρ_t of every row; the product is taken in logarithms, so that long episodes do not underflow early."""
    with np.errstate(divide="ignore"):
        log_ratio = np.log(pi_a) - np.log(mu_a)
    sums = np.empty_like(log_ratio)
    cumulative_ratios(log.first, log_ratio, sums)
    with np.errstate(over="ignore"):
        return np.exp(sums)


def ordinary(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray) -> Estimate:
    """Return the estimate of ordinary importance sampling."""
    return _mean(rho[log.first[1:] - 1] * _returns(log, log.reward, gamma), u)


def weighted(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray) -> Estimate:
    """Return the estimate of weighted importance sampling."""
    weight = rho[log.first[1:] - 1]
    product = weight * _returns(log, log.reward, gamma)
    value = product.sum() / weight.sum()
    influence = (product - value * weight) / weight.mean()
    return Estimate(float(value), (product @ u) / (weight @ u), influence)


def per_decision(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray) -> Estimate:
    """Return the estimate of per-decision importance sampling."""
    return _mean(_returns(log, rho * log.reward, gamma), u)


def weighted_per_decision(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray) -> Estimate:
    """Return the estimate of weighted per-decision importance sampling."""
    return _weighted_steps(log, rho, log.reward, gamma, u)


def doubly_robust(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray, model: Corrections) -> Estimate:
    """Return the doubly robust estimate."""
    return _mean(model.start + _returns(log, rho * model.error, gamma), u)


def weighted_doubly_robust(log: Log, rho: np.ndarray, gamma: float, u: np.ndarray, model: Corrections) -> Estimate:
    """Return the weighted doubly robust estimate."""
    starts = _mean(model.start, u)
    rest = _weighted_steps(log, rho, model.error, gamma, u)
    return Estimate(
        starts.value + rest.value,
        starts.samples + rest.samples,
        starts.influence + rest.influence,
    )


def _returns(log: Log, values: np.ndarray, gamma: float) -> np.ndarray:
    out = np.empty(log.num_episodes)
    discounted_sums(log.first, gamma, values, out)
    return out


def _mean(values: np.ndarray, u: np.ndarray) -> Estimate:
    value = values.mean()
    return Estimate(float(value), (values @ u) / u.sum(axis=0), values - value)


def _weighted_steps(log: Log, rho: np.ndarray, values: np.ndarray, gamma: float, u: np.ndarray) -> Estimate:
    """Return Σ_t γ^t Σ_i ρ_t x_t / Σ_i ρ_t, where an episode that has ended keeps its last weight."""
    num_steps = int(log.lengths.max())
    every = np.concatenate([np.ones((log.num_episodes, 1)), u], axis=1)
    total = np.zeros((num_steps, every.shape[1]))
    weight = np.zeros_like(total)
    sums_by_step(log.first, rho, values, every, total, weight)
    add_ended(log.first, rho, every, weight)
    discount = gamma ** np.arange(num_steps)
    with np.errstate(invalid="ignore"):
        mean = np.where(weight > 0, total / weight, 0.0)
    results = discount @ mean
    return Estimate(float(results[0]), results[1:], _step_influence(log, rho, values, discount, mean, weight))


def _step_influence(
    log: Log,
    rho: np.ndarray,
    values: np.ndarray,
    discount: np.ndarray,
    mean: np.ndarray,
    weight: np.ndarray,
) -> np.ndarray:
    """Return Σ_t γ^t ρ_t (x_t − m_t) / ρ̄_t of every episode, with m_t the mean at step t and ρ̄_t that of the weights.

    After its end an episode has x = 0 and its last ρ, so it adds −ρ Σ_{t ≥ T} γ^t m_t / ρ̄_t.
    """
    step = np.arange(log.num_steps) - np.repeat(log.first[:-1], log.lengths)
    with np.errstate(divide="ignore"):
        scale = np.where(weight[:, 0] > 0, discount * log.num_episodes / weight[:, 0], 0.0)
    inside = rho * (values - mean[step, 0]) * scale[step]
    parts = np.add.reduceat(inside, log.first[:-1])
    after = np.concatenate([np.cumsum((scale * mean[:, 0])[::-1])[::-1], [0.0]])
    return parts - rho[log.first[1:] - 1] * after[log.lengths]
