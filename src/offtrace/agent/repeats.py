"""Random actions that last several steps: εz-greedy exploration (Dabney, Ostrovski and Barreto 2021).

ε-greedy exploration draws a new action in every step, so it stays near where it began. Here a random
action also gets a number of steps n from 1 to N, with P(n) ∝ 1/n², and is repeated n times:

    step          0    1    2    3    4    5    6
    drawn         ←         →              ↑              ↑ is greedy, ← and → are random
    n             2         3              1
    a             ←    ←    →    →    →    ↑    …
    μ(a)         ε/A   1   ε/A   1    1    …              given what the actor knows

An action that ends an episode is not repeated in the next one. The probability of a repeated action
is 1: nothing else could happen. So μ depends on the history, which Retrace allows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Repeats(NamedTuple):
    """The action that each actor is repeating; fields may have a leading axis of members."""

    action: Array
    """(num_actors,) int32"""
    steps_left: Array
    """(num_actors,) int32: 0 where the next action is drawn."""


def init(num_actors: int) -> Repeats:
    """Return the state of actors that repeat nothing."""
    return Repeats(jnp.zeros(num_actors, jnp.int32), jnp.zeros(num_actors, jnp.int32))


def probabilities(most: int) -> np.ndarray:
    """Return P(n) ∝ 1/n² for n = 1, …, `most`.

    >>> probabilities(2)
    array([0.8, 0.2])
    """
    weights = 1 / np.arange(1, most + 1, dtype=np.float64) ** 2
    return weights / weights.sum()


def draw_steps(key: Array, most: int, num_actors: int) -> Array:
    """Draw a number of steps n for each actor: the first n whose cumulative probability exceeds a uniform number."""
    sums = np.cumsum(probabilities(most)).astype(np.float32)
    sums[-1] = 1  # above every uniform number, also after rounding
    return 1 + jnp.searchsorted(jnp.asarray(sums), jax.random.uniform(key, (num_actors,)), side="right")


def advance(
    repeats: Repeats, key: Array, a: Array, mu_a: Array, *, uniform: Array, first: Array, most: int
) -> tuple[Array, Array, Repeats]:
    """Return the action of each actor, its probability, and the state after this step.

    `a` was drawn from an ε-greedy policy, with probability `mu_a`; `uniform` is ε/A, the part of it
    that comes from random actions. So `a` is a random action with probability `uniform` / `mu_a`. It
    is taken where no action is being repeated, and in the `first` step of an episode.
    """
    for_kind, for_steps = jax.random.split(key)
    is_random = jax.random.uniform(for_kind, a.shape) < uniform / mu_a
    steps = jnp.where(is_random, draw_steps(for_steps, most, len(a)), 1)
    repeated = (repeats.steps_left > 0) & ~first
    a = jnp.where(repeated, repeats.action, a)
    mu_a = jnp.where(repeated, 1, mu_a)
    steps = jnp.where(repeated, repeats.steps_left, steps)
    return a, mu_a, Repeats(a.astype(jnp.int32), (steps - 1).astype(jnp.int32))
