"""Retrace targets from Q, π, a, r, discount and μ_a: float32, one process, everything on the CPU.

Small shapes matter as much as large ones: an agent calls with 4 windows of 16 steps, where the
overhead of a call counts. λ = 1 everywhere.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import offtrace as ot
from offtrace.bench import Benchmark, LeftOut

Function = Callable[[], Any]


class Window(NamedTuple):
    """n steps of B windows: q, pi (n+1, B, A); a, r, discount, mu_a (n, B), in NumPy, JAX or PyTorch."""

    q: Any
    pi: Any
    a: Any
    r: Any
    discount: Any
    mu_a: Any


def window(shape: tuple[int, int, int]) -> Window:
    n, batch, actions = shape
    rng = np.random.default_rng(0)
    pi = rng.random((n + 1, batch, actions), dtype=np.float32) + np.float32(0.01)
    pi /= pi.sum(axis=-1, keepdims=True)
    return Window(
        q=rng.standard_normal((n + 1, batch, actions), dtype=np.float32),
        pi=pi,
        a=rng.integers(actions, size=(n, batch)),
        r=rng.standard_normal((n, batch), dtype=np.float32),
        discount=np.where(rng.random((n, batch)) < 0.01, 0, 0.99).astype(np.float32),
        mu_a=rng.uniform(0.5 / actions, 2 / actions, (n, batch)).astype(np.float32),
    )


def definition(w: Window) -> np.ndarray:
    """target_t = r_t + γ_t (E_πQ(x_{t+1}) + c_{t+1} (target_{t+1} − Q(x_{t+1}, a_{t+1}))), in float64."""
    target = np.zeros(w.r.shape)
    for t in reversed(range(len(w.r))):
        bootstrap = (w.pi[t + 1].astype(np.float64) * w.q[t + 1]).sum(axis=-1)
        if t + 1 < len(w.r):
            taken = w.a[t + 1][:, None]
            pi_a = np.take_along_axis(w.pi[t + 1], taken, axis=-1)[:, 0].astype(np.float64)
            q_a = np.take_along_axis(w.q[t + 1], taken, axis=-1)[:, 0]
            bootstrap += np.minimum(1, pi_a / w.mu_a[t + 1]) * (target[t + 1] - q_a)
        target[t] = w.r[t] + w.discount[t].astype(np.float64) * bootstrap
    return target


# -- ours ------------------------------------------------------------------------------------------


def ours(w: Window, validate: bool = False) -> Function:
    (q, pi, a, r, discount, mu_a), trace = w, ot.Retrace(1.0)
    return lambda: ot.targets(q=q, pi=pi, a=a, r=r, discount=discount, mu_a=mu_a, trace=trace, validate=validate)


def ours_checked(w: Window) -> Function:
    return ours(w, validate=True)


def ours_torch(w: Window) -> Function:
    return ours(torch_window(w))


def ours_jax(w: Window) -> Function:
    import jax

    def targets(w: Window) -> Any:
        return ot.targets(**w._asdict(), trace=ot.Retrace(1.0), validate=False)

    return jitted(jax.jit(targets), jax_window(w))


# -- peers: JAX ------------------------------------------------------------------------------------


def jax_window(w: Window) -> Window:
    import jax

    return jax.device_put(w._replace(a=w.a.astype(np.int32)), jax.devices("cpu")[0])


def jitted(function: Callable[[Window], Any], w: Window) -> Function:
    return lambda: function(w).block_until_ready()


def rlax_retrace(w: Window) -> Function:
    """Call rlax, which needs an action and μ in the last state too, and returns errors: target − Q(x_t, a_t)."""
    import jax
    import jax.numpy as jnp
    import rlax

    padded = w._replace(a=np.concatenate([w.a, w.a[-1:]]), mu_a=np.concatenate([w.mu_a, w.mu_a[-1:]]))
    errors = jax.vmap(rlax.retrace, in_axes=(1,) * 8 + (None,), out_axes=1)

    def targets(w: Window) -> Any:
        q_a = jnp.take_along_axis(w.q[:-1], w.a[:-1, :, None], axis=-1)[..., 0]
        return q_a + errors(w.q[:-1], w.q[1:], w.a[:-1], w.a[1:], w.r, w.discount, w.pi[1:], w.mu_a[1:], 1.0)

    return jitted(jax.jit(targets), jax_window(padded))


def rlax_q_and_v(w: Window) -> Function:
    import jax
    import jax.numpy as jnp
    import rlax

    returns = jax.vmap(rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1)

    def targets(w: Window) -> Any:
        expected_q = (w.pi[1:] * w.q[1:]).sum(axis=-1)
        q_a = jnp.take_along_axis(w.q[1:-1], w.a[1:, :, None], axis=-1)[..., 0]
        pi_a = jnp.take_along_axis(w.pi[1:-1], w.a[1:, :, None], axis=-1)[..., 0]
        return returns(q_a, expected_q, w.r, w.discount, jnp.minimum(1.0, pi_a / w.mu_a[1:]))

    return jitted(jax.jit(targets), jax_window(w))


# -- peers: PyTorch --------------------------------------------------------------------------------


def torch_window(w: Window) -> Window:
    import torch

    return Window(*map(torch.from_numpy, w))


def torch_filled(w: Window) -> Any:
    """Gather at once, then fill the targets from the end (as in DI-engine)."""
    import torch

    expected_q = (w.pi[1:] * w.q[1:]).sum(dim=-1)
    q_a = w.q[:-1].gather(-1, w.a.unsqueeze(-1)).squeeze(-1)
    ratio = w.pi[:-1].gather(-1, w.a.unsqueeze(-1)).squeeze(-1) / w.mu_a
    target = torch.empty_like(w.r)
    bootstrap = expected_q[-1]
    for t in range(len(w.r) - 1, -1, -1):
        target[t] = w.r[t] + w.discount[t] * bootstrap
        if t > 0:
            bootstrap = expected_q[t - 1] + ratio[t].clamp(max=1.0) * (target[t] - q_a[t])
    return target


def torch_stacked(w: Window) -> Any:
    """Gather and clip at once, then collect the targets in a list and stack them (as in deep_rl_zoo)."""
    import torch

    taken = w.a[1:].unsqueeze(-1)
    expected_q = (w.pi[1:] * w.q[1:]).sum(dim=-1)
    q_a = w.q[1:-1].gather(-1, taken).squeeze(-1)
    c = (w.pi[1:-1].gather(-1, taken).squeeze(-1) / w.mu_a[1:]).clamp(max=1.0)
    target = w.r[-1] + w.discount[-1] * expected_q[-1]
    targets = [target]
    for t in range(len(c) - 1, -1, -1):
        target = w.r[t] + w.discount[t] * (expected_q[t] - c[t] * q_a[t] + c[t] * target)
        targets.append(target)
    return torch.stack(targets[::-1])


def torch_eager(form: Callable[[Window], Any]) -> Callable[[Window], Function]:
    def prepare(w: Window) -> Function:
        tensors = torch_window(w)
        return lambda: form(tensors)

    return prepare


def torch_compiled(w: Window) -> Function:
    import torch
    import torch._inductor.config

    if len(w.r) > 128:
        raise LeftOut("a loop of over 128 steps takes minutes to compile")
    torch._inductor.config.compile_threads = 1  # no processes that start while others are timed
    torch.compiler.reset()  # compile every shape separately
    tensors = torch_window(w)
    compiled = torch.compile(torch_stacked, dynamic=False)
    return lambda: compiled(tensors)


# -- peers: NumPy, and the floor -------------------------------------------------------------------


def einsum_loop(w: Window) -> Function:
    return numpy_targets(w, lambda pi, q: np.einsum("tba,tba->tb", pi, q))


def numpy_loop(w: Window) -> Function:
    return numpy_targets(w, lambda pi, q: (pi * q).sum(axis=-1))


def numpy_targets(w: Window, expectation: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Function:
    def targets() -> np.ndarray:
        expected_q = expectation(w.pi[1:], w.q[1:])
        taken = w.a[..., None]
        q_a = np.take_along_axis(w.q[:-1], taken, axis=-1)[..., 0]
        c = np.minimum(np.float32(1), np.take_along_axis(w.pi[:-1], taken, axis=-1)[..., 0] / w.mu_a)
        target = np.empty_like(w.r)
        target[-1] = w.r[-1] + w.discount[-1] * expected_q[-1]
        for t in range(len(w.r) - 2, -1, -1):
            target[t] = w.r[t] + w.discount[t] * (expected_q[t] + c[t + 1] * (target[t + 1] - q_a[t + 1]))
        return target

    return targets


def memory_floor(parallel: bool) -> Callable[[Window], Function]:
    """Read as many bytes as rows 1 to n of q and π, a, r, discount, μ_a and the targets have, once."""

    def prepare(w: Window) -> Function:
        import numba

        from offtrace.threads import num_threads

        @numba.njit(nogil=True)
        def read(numbers: np.ndarray) -> int:
            total = 0
            for i in range(len(numbers)):
                total += numbers[i]
            return total

        size = w.q[1:].nbytes + w.pi[1:].nbytes + w.a.nbytes + 4 * w.r.nbytes
        numbers = np.ones(size // 8, dtype=np.int64)
        if not parallel:
            return lambda: read(numbers)
        # Plain threads, as in our kernel: after a parallel Numba loop, the contender timed next was slower.
        threads = num_threads()
        parts = np.array_split(numbers, threads)
        pool = ThreadPoolExecutor(threads)
        return lambda: sum(pool.map(read, parts))

    return prepare


BENCHMARK = Benchmark(
    name="return_operator",
    question="How long does one call for Retrace targets take? (n steps, B windows, A actions)",
    rows=(
        (16, 4, 18),
        (16, 64, 18),
        (16, 1024, 18),
        (128, 1024, 6),
        (1024, 64, 18),
        (16, 65536, 18),
    ),
    quick_rows=3,
    problem=window,
    answer=definition,
    contenders={
        "offtrace": ours,
        "offtrace, checked": ours_checked,
        "offtrace, torch": ours_torch,
        "offtrace, jax.jit": ours_jax,
        "rlax retrace, jit": rlax_retrace,
        "rlax q and v, jit": rlax_q_and_v,
        "torch loop, filled": torch_eager(torch_filled),
        "torch loop, stacked": torch_eager(torch_stacked),
        "torch.compile": torch_compiled,
        "NumPy loop": numpy_loop,
        "NumPy loop, einsum": einsum_loop,
    },
    ours=("offtrace", "offtrace, torch", "offtrace, jax.jit"),
    slow=("torch.compile",),
    floors={"read, 1 thread": memory_floor(parallel=False), "read, all threads": memory_floor(parallel=True)},
)
