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

from offtrace.evaluation.parts import Engine, Part, split, total
from offtrace.evaluation.resampling import Resamples
from offtrace.evaluation.sums import cumulative_ratios, discounted_sums, last_weights_by_step, sums_by_step

MAX_ENTRIES = 20_000_000
"""Steps × bootstrap samples above which the weighted forms use the influence instead of their sums."""


class Estimate(NamedTuple):
    """A value, the same under every bootstrap sample, and the influence of every episode."""

    value: float
    samples: np.ndarray
    """(B,) one per bootstrap sample."""
    influence: np.ndarray
    """(E,) its mean is 0."""


class EpisodeSums(NamedTuple):
    """What the unweighted forms need of every episode, (E,) each."""

    weight: np.ndarray
    """ρ_{T−1}"""
    discounted_return: np.ndarray
    """Σ_t γ^t r_t"""
    per_decision: np.ndarray
    """Σ_t γ^t ρ_t r_t"""
    start: np.ndarray
    """V̂(x_0), or 0 without a model."""
    corrections: np.ndarray
    """Σ_t γ^t ρ_t (r_t + γ V̂(x_{t+1}) − Q̂(x_t, a_t)), or 0 without a model."""
    length: np.ndarray
    truncated: np.ndarray
    rewarded: np.ndarray
    """True where a reward is not 0."""
    possible: np.ndarray
    """True where π takes every action of the episode with some probability."""


def sums_of_episodes(engine: Engine, gamma: float) -> EpisodeSums:
    """Return the sums of all episodes, in order."""
    return EpisodeSums(*map(np.concatenate, zip(*engine.map(_sums_of_part, gamma), strict=True)))


def _sums_of_part(part: Part, gamma: float) -> EpisodeSums:
    log = part.log
    rho = ratios_of(part)
    corrections = np.zeros(log.num_episodes)
    start = np.zeros(log.num_episodes)
    if part.steps.error is not None:
        start = part.steps.start
        corrections = _discounted(log.first, gamma, rho * part.steps.error)
    return EpisodeSums(
        weight=rho[log.first[1:] - 1],
        discounted_return=_discounted(log.first, gamma, log.reward),
        per_decision=_discounted(log.first, gamma, rho * log.reward),
        start=start,
        corrections=corrections,
        length=log.lengths,
        truncated=log.truncated[log.first[1:] - 1],
        rewarded=np.logical_or.reduceat(log.reward != 0, log.first[:-1]),
        possible=np.logical_and.reduceat(part.steps.log_pi_a > -np.inf, log.first[:-1]),
    )


def ratios_of(part: Part) -> np.ndarray:
    """Return ρ_t of every row; the product is taken in logarithms, so that long episodes do not underflow early."""
    log_mu_a = part.log.log_mu_a
    if log_mu_a is None:
        assert part.mu_a is not None
        log_mu_a = np.log(part.mu_a)
    log_ratio = part.steps.log_pi_a - log_mu_a
    sums = np.empty_like(log_ratio)
    cumulative_ratios(part.log.first, log_ratio, sums)
    with np.errstate(over="ignore"):
        return np.exp(sums)


def _discounted(first: np.ndarray, gamma: float, values: np.ndarray) -> np.ndarray:
    out = np.empty(len(first) - 1)
    discounted_sums(first, gamma, values, out)
    return out


# -- the estimates ---------------------------------------------------------------------------------


def mean(values: np.ndarray, resamples: Resamples) -> Estimate:
    """Return the mean of one value per episode: IS, PDIS and DR."""
    value = values.mean()
    return Estimate(float(value), resamples.sum(values) / len(values), values - value)


def weighted(sums: EpisodeSums, resamples: Resamples) -> Estimate:
    """Return the estimate of weighted importance sampling."""
    product = sums.weight * sums.discounted_return
    total_weight = sums.weight.sum()
    value = product.sum() / total_weight
    influence = (product - value * sums.weight) / sums.weight.mean()
    return Estimate(float(value), resamples.sum(product) / resamples.sum(sums.weight), influence)


def weighted_steps(engine: Engine, gamma: float, num_steps: int, values: str, resamples: Resamples) -> Estimate:
    """Return Σ_t γ^t Σ_i ρ_t x_t / Σ_i ρ_t, where an episode that has ended keeps its last weight.

    `values` says what x is: "reward" for WPDIS, "error" for the corrections of WDR.
    """
    is_short = num_steps * (1 + resamples.num_samples) <= MAX_ENTRIES
    columns = resamples.columns() if is_short else np.ones((resamples.num_groups, 1))
    each = split(engine, resamples.group)
    parts = engine.map(_weighted_sums, num_steps, values, columns, each=each)
    num, weight, ended = (total([one[i] for one in parts]) for i in range(3))
    weight = weight + np.cumsum(ended, axis=0)[:-1]
    discount = gamma ** np.arange(num_steps)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_step = np.where(weight > 0, num / weight, 0.0)
        scale = np.where(weight[:, 0] > 0, discount * len(resamples.group) / weight[:, 0], 0.0)
    influence = np.concatenate(engine.map(_step_influence, values, scale, by_step[:, 0]))
    results = discount @ by_step
    value = float(results[0])
    samples = results[1:] if is_short else value + resamples.sum(influence) / len(influence)
    return Estimate(value, samples, influence)


def plus(one: Estimate, other: Estimate) -> Estimate:
    """Return the sum of two estimates from the same samples."""
    return Estimate(one.value + other.value, one.samples + other.samples, one.influence + other.influence)


def _weighted_sums(
    part: Part, num_steps: int, values: str, columns: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = (num_steps, columns.shape[1])
    num = np.zeros(shape)
    weight = np.zeros(shape)
    ended = np.zeros((num_steps + 1, columns.shape[1]))
    rho = ratios_of(part)
    sums_by_step(part.log.first, rho, _values(part, values), group, columns, num, weight)
    last_weights_by_step(part.log.first, rho, group, columns, ended)
    return num, weight, ended


def _step_influence(part: Part, values: str, scale: np.ndarray, by_step: np.ndarray) -> np.ndarray:
    """Return Σ_t γ^t ρ_t (x_t − m_t) / ρ̄_t of every episode, with m_t the mean at step t and ρ̄_t that of the weights.

    After its end an episode has x = 0 and its last ρ, so it adds −ρ Σ_{t ≥ T} γ^t m_t / ρ̄_t.
    """
    log = part.log
    rho = ratios_of(part)
    step = np.arange(log.num_steps) - np.repeat(log.first[:-1], log.lengths)
    inside = rho * (_values(part, values) - by_step[step]) * scale[step]
    after = np.concatenate([np.cumsum((scale * by_step)[::-1])[::-1], [0.0]])
    return np.add.reduceat(inside, log.first[:-1]) - rho[log.first[1:] - 1] * after[log.lengths]


def _values(part: Part, name: str) -> np.ndarray:
    return part.log.reward if name == "reward" else part.steps.error
