"""What JAX reads of Q and π on a CUDA device, by a Pallas kernel.

XLA reads the rows of Q and π once for E_π Q(x, ·), and again for Q(x, a) and π(a|x). The kernel reads them once, and
leaves everything else to XLA. A row of the kernel is about the state after a step, where E_π Q(x_{t+1}, ·) of that
step and Q(x_{t+1}, a_{t+1}) of the next one are found:

    state       x_0   x_1   x_2   …   x_n
    row          ·     0     1       n−1      for a batch of 1
    action      a_0   a_1   a_2       ·

So nothing is read of state 0: no target depends on Q(x_0, a_0) and π(a_0|x_0).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from offtrace.arrays import expectation, product, take_action

Array = jax.Array


class Rows(NamedTuple):
    """What targets need of Q and π, (n, …) each, named as in `Window`."""

    expected_q: Array
    q_a: Array
    """0 at step 0."""
    pi_a: Array
    """1 at step 0."""


def read_rows(q: Array, pi: Array, a: Array, *, interpret: bool = False) -> Rows:
    """Return what targets need of Q and π, (n+1, …, A), for the actions taken, (n, …)."""
    num_actions = q.shape[-1]
    tile = 128 if num_actions <= 8 else 32  # rows of a program, one for each thread
    kernel = functools.partial(
        _read, tile=tile, num_rows=a.size, batch=a.size // a.shape[0], num_actions=num_actions, dtype=q.dtype
    )
    output = jax.ShapeDtypeStruct((a.size,), q.dtype)
    found = pl.pallas_call(
        kernel,
        out_shape=(output, output, output),
        grid=(pl.cdiv(a.size, tile),),
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=tile // 32),
    )(q.reshape(-1), pi.reshape(-1), a.reshape(-1))
    expected_q, next_q_a, next_pi_a = (values.reshape(a.shape) for values in found)
    return Rows(expected_q, _after(0, next_q_a), _after(1, next_pi_a))


def _read(
    q: Any, pi: Any, a: Any, expected_q: Any, next_q_a: Any, next_pi_a: Any,
    *, tile: int, num_rows: int, batch: int, num_actions: int, dtype: Any,
) -> None:  # fmt: skip
    """Read the rows of one program, and write what was found."""
    row = pl.program_id(0) * tile + jnp.arange(tile)
    is_there = row < num_rows
    has_next = row < num_rows - batch
    state = (row + batch) * num_actions
    action = triton.load(a.at[row + batch], mask=has_next, other=0)
    exists = has_next & (action >= 0) & (action < num_actions)
    expected = jnp.zeros((tile,), dtype)
    width = next(width for width in (4, 2, 1) if num_actions % width == 0)  # numbers that a thread loads at once
    inside = jnp.broadcast_to(is_there[:, None], (tile, width))
    for start in range(0, num_actions, width):
        at = state[:, None] + start + jnp.arange(width)[None, :]
        p = triton.load(pi.at[at], mask=inside, other=0.0)
        values = triton.load(q.at[at], mask=inside, other=0.0)
        expected += product(p, values).sum(1)
    triton.store(expected_q.at[row], expected, mask=is_there)
    taken = state + action
    triton.store(next_q_a.at[row], triton.load(q.at[taken], mask=exists, other=jnp.nan), mask=is_there)
    triton.store(next_pi_a.at[row], triton.load(pi.at[taken], mask=exists, other=jnp.nan), mask=is_there)


def read_rows_by_operations(q: Array, pi: Array, a: Array) -> Rows:
    """Return the same by operations of XLA, for other devices."""
    q_a = take_action(q[1:-1], a[1:])
    pi_a = take_action(pi[1:-1], a[1:])
    first = jnp.zeros_like(q[:1, ..., 0])
    return Rows(expectation(q[1:], pi[1:]), jnp.concatenate([first, q_a]), jnp.concatenate([first + 1, pi_a]))


def _after(first: float, following: Array) -> Array:
    """Return values moved down by a step, with a number at step 0."""
    return jnp.concatenate([jnp.full_like(following[:1], first), following[:-1]])
