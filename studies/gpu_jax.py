"""How far from a copy is JAX on a GPU, and where do Pallas kernels help?

    python studies/gpu_jax.py

For each window, the time of `ot.targets` under `jit`, by XLA alone and with a kernel that reads every row of Q and π
once (XLA reads them for E_π Q(x, ·), and again for the action taken); and of parts: the kernel; the pairs (m, b) of
all rows by XLA; their recursion G_t = b_t + m_t G_{t+1} as a tree, as a scan, and as a kernel that goes backwards
through time, one thread per window. Medians of 7 repeats, as shares of the bandwidth of a copy of as many bytes as
the whole must move.

The kernels use Pallas's Triton backend. From version 0.11 on, JAX warns that it will be removed, so `offtrace` does
not use it.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton

import offtrace as ot
from offtrace.arrays import product
from offtrace.returns import jax as returns_jax

SHAPES = [(128, 4096, 18), (128, 65536, 18), (1024, 4096, 18), (65536, 64, 18), (16, 1048576, 18), (32, 262144, 6)]
LANES = 128


def fold(m: jax.Array, b: jax.Array, *, interpret: bool = False) -> jax.Array:
    """Solve the recursion by a Pallas kernel; the batch is a multiple of LANES, or smaller."""
    n, batch = b.shape
    lanes = min(LANES, batch)

    def kernel(m_ref: Any, b_ref: Any, out_ref: Any) -> None:
        def step(i: Any, g: jax.Array) -> jax.Array:
            t = n - 1 - i
            g = b_ref[t, :] + m_ref[t, :] * g
            out_ref[t, :] = g
            return g

        lax.fori_loop(0, n, step, jnp.zeros(lanes, b.dtype))

    spec = pl.BlockSpec((n, lanes), lambda i: (0, i))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(b.shape, b.dtype),
        grid=(batch // lanes,),
        in_specs=[spec, spec],
        out_specs=spec,
        interpret=interpret,
        compiler_params=None if interpret else pallas_triton.CompilerParams(num_warps=4),
    )(m, b)


def pairs(w: dict[str, jax.Array], *, unrolled: bool, selected: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return m and b of Retrace(1); E_π Q as a sum over the last axis, or as one of slices.

    With `selected`, Q(x, a) and π(a|x) are sums of slices as well, not gathered.
    """
    products = w["pi"][1:] * w["q"][1:]
    expected = products.sum(-1)
    if unrolled:
        expected = functools.reduce(jnp.add, [products[..., i] for i in range(products.shape[-1])])
    taken = w["a"][1:, ..., None]
    q_a, pi_a = (jnp.take_along_axis(w[name][1:-1], taken, -1)[..., 0] for name in ("q", "pi"))
    if selected:
        actions = range(products.shape[-1])
        q_a, pi_a = (
            functools.reduce(jnp.add, [jnp.where(w["a"][1:] == i, w[name][1:-1, ..., i], 0) for i in actions])
            for name in ("q", "pi")
        )
    m = w["discount"][:-1] * jnp.minimum(1, pi_a / w["mu_a"][1:])
    m = jnp.concatenate([m, jnp.zeros_like(m[:1])])
    q_a = jnp.concatenate([q_a, jnp.zeros_like(q_a[:1])])
    return m, w["r"] + w["discount"] * expected - m * q_a


def read_rows(q: jax.Array, pi: jax.Array, a: jax.Array, *, interpret: bool = False) -> dict[str, jax.Array]:
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


def targets(w: Any, *, by_kernel: bool, interpret: bool = False) -> jax.Array:
    """Return Retrace targets."""
    if not by_kernel:
        return ot.targets(**w, trace=ot.Retrace(1.0), validate=False)
    rows: Any = read_rows(w["q"], w["pi"], w["a"], interpret=interpret)
    return ot.targets(r=w["r"], discount=w["discount"], mu_a=w["mu_a"], **rows, trace=ot.Retrace(1.0), validate=False)


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


def compare(shape: tuple[int, int, int]) -> None:
    w = window(shape)
    num_bytes = sum(v.nbytes for v in w.values()) + w["r"].nbytes - 2 * w["q"][0].nbytes
    copy = seconds_of(lambda x: x + 1, jnp.zeros(num_bytes // 8, jnp.float32))
    m, b = jax.jit(functools.partial(pairs, unrolled=False))(w)
    forms: dict[str, tuple[Callable[..., Any], tuple]] = {
        "targets, XLA": (functools.partial(targets, by_kernel=False), (w,)),
        "targets, kernel": (functools.partial(targets, by_kernel=True), (w,)),
        "kernel alone": (lambda w: read_rows(w["q"], w["pi"], w["a"]), (w,)),
        "pairs, sum": (functools.partial(pairs, unrolled=False), (w,)),
        "pairs, slices": (functools.partial(pairs, unrolled=True), (w,)),
        "pairs, selected": (functools.partial(pairs, unrolled=True, selected=True), (w,)),
        "tree": (lambda m, b: returns_jax._as_tree(m[:-1], b[:-1], b[-1:]), (m, b)),
        "Pallas": (fold, (m, b)),
        "pairs and Pallas": (lambda w: fold(*pairs(w, unrolled=False)), (w,)),
    }
    if shape[0] <= 1024:
        forms["scan"] = (lambda m, b: returns_jax._step_by_step(m[:-1], b[:-1], b[-1:]), (m, b))
    print(f"{shape}, {num_bytes / 1e6:.0f} MB: copy {1e6 * copy:.0f} µs")
    expected = jax.jit(forms["targets, XLA"][0])(w)
    others = (jax.jit(forms[name][0])(w) for name in ("targets, kernel", "pairs and Pallas"))
    error = max(jnp.abs(other - expected).max() / jnp.abs(expected).max() for other in others)
    for name, (function, arguments) in forms.items():
        seconds = seconds_of(function, *arguments)
        print(f"    {name:18} {1e6 * seconds:9.0f} µs  {copy / seconds:.0%}", flush=True)
    print(f"    relative error of kernels {error:.1e}")


if __name__ == "__main__":
    for shape in SHAPES:
        compare(shape)
