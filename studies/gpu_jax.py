"""How far from a copy is JAX on a GPU, and how are the rows of Q and π best read?

    python studies/gpu_jax.py

For each window, the time of `ot.targets` under `jit`, and the same with rows read in other ways: apart (a sum for
E_π Q, then the entries of the actions taken, as on a CPU), by three sums, by one reduction, by slices, and by
a Pallas kernel. `tree` is the recursion G_t = b_t + m_t G_{t+1} alone. Medians of 7 repeats, in µs, beside a copy of
as many bytes as the whole must move. All are compared with NumPy in float64.

The kernel uses Pallas's Triton backend. From version 0.11 on, JAX warns that it will be removed, so `offtrace` does
not use it.
"""

import functools
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton

import offtrace as ot
from offtrace.arrays import product
from offtrace.returns import jax as returns_jax

SHAPES = [
    (16, 1024, 18),
    (128, 4096, 18),
    (128, 65536, 18),
    (1024, 4096, 18),
    (65536, 64, 18),
    (16, 1048576, 18),
    (16, 1048576, 4),
    (1024, 16384, 4),
    (32, 262144, 6),
    (128, 65536, 9),
    (128, 65536, 16),
    (64, 65536, 32),
    (64, 32768, 100),
]
NAMES = ["expected_q", "q_a", "pi_a"]
ERROR = 1e-5
Rows = dict[str, jax.Array]


def by_kernel(q: jax.Array, pi: jax.Array, a: jax.Array, *, interpret: bool = False) -> Rows:
    """Return `expected_q`, `q_a` and `pi_a` by a Pallas kernel; no target reads the last two at step 0.

    A row of the kernel is about the state after a step, where E_π Q(x_{t+1}, ·) of that step and Q(x_{t+1}, a_{t+1})
    of the next one are found. One thread reads it.
    """
    num_actions = q.shape[-1]
    num_rows = a.size
    batch = num_rows // a.shape[0]
    tile = 128 if num_actions <= 8 else 32
    width = next(width for width in (4, 2, 1) if num_actions % width == 0)  # numbers that a thread loads at once

    def kernel(q_ref: Any, pi_ref: Any, a_ref: Any, expected_ref: Any, q_a_ref: Any, pi_a_ref: Any) -> None:
        row = pl.program_id(0) * tile + jnp.arange(tile)
        is_there = row < num_rows
        has_next = row < num_rows - batch
        state = (row + batch) * num_actions
        action = pallas_triton.load(a_ref.at[row + batch], mask=has_next, other=0)
        inside = jnp.broadcast_to(is_there[:, None], (tile, width))
        expected = jnp.zeros((tile,), q.dtype)
        for start in range(0, num_actions, width):
            at = state[:, None] + start + jnp.arange(width)[None, :]
            p = pallas_triton.load(pi_ref.at[at], mask=inside, other=0.0)
            expected += product(p, pallas_triton.load(q_ref.at[at], mask=inside, other=0.0)).sum(1)
        pallas_triton.store(expected_ref.at[row], expected, mask=is_there)
        for ref, found in ((q_ref, q_a_ref), (pi_ref, pi_a_ref)):
            taken = pallas_triton.load(ref.at[state + action], mask=has_next, other=1.0)
            pallas_triton.store(found.at[row], taken, mask=is_there)

    output = jax.ShapeDtypeStruct((num_rows,), q.dtype)
    found = pl.pallas_call(
        kernel,
        out_shape=(output, output, output),
        grid=(pl.cdiv(num_rows, tile),),
        interpret=interpret,
        compiler_params=None if interpret else pallas_triton.CompilerParams(num_warps=tile // 32),
    )(q.reshape(-1), pi.reshape(-1), a.reshape(-1))
    expected, q_a, pi_a = (values.reshape(a.shape) for values in found)
    q_a, pi_a = (jnp.concatenate([jnp.ones_like(values[:1]), values[:-1]]) for values in (q_a, pi_a))
    return {"expected_q": expected, "q_a": q_a, "pi_a": pi_a}


def by_slices(q: jax.Array, pi: jax.Array, a: jax.Array) -> Rows:
    """Return the same as sums of slices, one for each action."""
    action = jnp.concatenate([a, a[:1]])
    expected, q_a, pi_a = (jnp.zeros(action.shape, q.dtype) for _ in NAMES)
    for i in range(q.shape[-1]):
        expected += product(pi[..., i], q[..., i])
        q_a = jnp.where(action == i, q[..., i], q_a)
        pi_a = jnp.where(action == i, pi[..., i], pi_a)
    return {"expected_q": expected[1:], "q_a": q_a[:-1], "pi_a": pi_a[:-1]}


def by_sums(q: jax.Array, pi: jax.Array, a: jax.Array, *, one_operation: bool) -> Rows:
    """Return the same by sums over the last axis, apart or as one operation."""
    is_taken = jnp.concatenate([a, a[:1]])[..., None] == jnp.arange(q.shape[-1])
    cells = (product(pi, q), jnp.where(is_taken, q, 0), jnp.where(is_taken, pi, 0))
    if one_operation:
        zeros = (jnp.zeros((), q.dtype),) * 3
        expected, q_a, pi_a = lax.reduce(cells, zeros, lambda x, y: tuple(map(jnp.add, x, y)), (q.ndim - 1,))
    else:
        expected, q_a, pi_a = (values.sum(-1) for values in cells)
    return {"expected_q": expected[1:], "q_a": q_a[:-1], "pi_a": pi_a[:-1]}


READERS: dict[str, Callable[..., Rows]] = {
    "apart": functools.partial(returns_jax._read_apart, names=NAMES),
    "three sums": functools.partial(by_sums, one_operation=False),
    "one reduction": functools.partial(by_sums, one_operation=True),
    "slices": by_slices,
    "kernel": by_kernel,
}
MOST_SLICES = 32


def targets(w: Any, reader: str = "") -> jax.Array:
    """Return Retrace targets, as `offtrace` reads rows or by another reader."""
    if not reader:
        return ot.targets(**w, trace=ot.Retrace(1.0), validate=False)
    rows: Any = READERS[reader](w["q"], w["pi"], w["a"])
    return ot.targets(r=w["r"], discount=w["discount"], mu_a=w["mu_a"], **rows, trace=ot.Retrace(1.0), validate=False)


def tree(w: Any) -> jax.Array:
    """Solve a recursion of the same size."""
    return returns_jax._as_tree(w["discount"][1:], w["r"][1:], w["r"][:1])


def window(shape: tuple[int, int, int]) -> dict[str, jax.Array]:
    n, batch, num_actions = shape
    keys = jax.random.split(jax.random.key(0), 6)
    return {
        "q": jax.random.normal(keys[0], (n + 1, batch, num_actions)),
        "pi": jax.nn.softmax(jax.random.normal(keys[1], (n + 1, batch, num_actions))),
        "a": jax.random.randint(keys[2], (n, batch), 0, num_actions),
        "r": jax.random.normal(keys[3], (n, batch)),
        "discount": 0.99 * (jax.random.uniform(keys[4], (n, batch)) > 0.01),
        "mu_a": 0.1 + 0.8 * jax.random.uniform(keys[5], (n, batch)),
    }


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the time of a call, from ten that are waited for together."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    found = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(10):
            out = compiled(*arguments)
        jax.block_until_ready(out)
        found.append((time.perf_counter() - start) / 10)
    return statistics.median(found)


def error_of(got: jax.Array, expected: np.ndarray) -> float:
    return float(np.abs(np.asarray(got) - expected).max() / np.abs(expected).max())


def in_float64(w: dict[str, jax.Array]) -> dict[str, Any]:
    on_host = {name: np.asarray(value) for name, value in w.items()}
    return {name: v.astype(np.float64) if v.dtype == np.float32 else v for name, v in on_host.items()}


def compare(shape: tuple[int, int, int]) -> None:
    """Print a line about a window."""
    w = window(shape)
    num_bytes = sum(v.nbytes for v in w.values()) + w["r"].nbytes - 2 * w["q"][0].nbytes
    expected = ot.targets(**in_float64(w), trace=ot.Retrace(1.0), validate=False)
    copy = seconds_of(lambda x: x + 1, jnp.zeros(num_bytes // 8, jnp.float32))
    print(f"{shape!s:20}{1e6 * copy:8.0f}", end="")
    for reader in ("", *READERS):
        if reader == "slices" and shape[2] > MOST_SLICES:
            print(f"{'':14}", end="")
            continue
        form = functools.partial(targets, reader=reader)
        error = error_of(jax.jit(form)(w), expected)
        mark = " " if error <= ERROR else "!"  # wrong
        print(f"{1e6 * seconds_of(form, w):13.0f}{mark}", end="", flush=True)
    print(f"{1e6 * seconds_of(tree, w):8.0f}", flush=True)


if __name__ == "__main__":
    if jax.default_backend() != "gpu":
        sys.exit("JAX sees no GPU.")
    warnings.filterwarnings("ignore", message=".*Triton")
    columns = "".join(f"{name:>13} " for name in ("offtrace", *READERS))
    print(f"{'n, batch, actions':20}{'copy':>8}{columns}{'tree':>8}")
    for shape in SHAPES:
        compare(shape)
