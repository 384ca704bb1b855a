"""Retrace targets on a CUDA device, from tensors on that device: float32, actions in int64, λ = 1.

A call ends when the device has finished, so this is the time that a training loop waits. The copy
moves as many bytes as a call must read and write: rows 1 to n of q and π, a, r, discount, μ_a and
the targets. `return_operator_cuda_graph` leaves out what the host does.

rl-triton takes π of the states before the steps and Q of those after them, both batch-major, and
computes advantages, too.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import offtrace as ot
from offtrace.bench import Benchmark, LeftOut

Function = Callable[[], Any]
Shape = tuple[int, int, int]


@functools.lru_cache(maxsize=1)
def window(shape: Shape) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        raise LeftOut("there is no CUDA device")
    n, batch, actions = shape
    torch.manual_seed(0)
    rows = (n + 1, batch, actions)
    steps = (n, batch)
    with torch.device("cuda"):
        return {
            "q": torch.randn(rows),
            "pi": torch.softmax(torch.randn(rows), -1),
            "a": torch.randint(actions, steps),
            "r": torch.randn(steps),
            "discount": 0.99 * (torch.rand(steps) > 0.01).float(),
            "mu_a": torch.rand(steps) * 0.8 + 0.1,
        }


def finished(function: Function) -> Function:
    import torch

    def call() -> Any:
        out = function()
        torch.cuda.synchronize()
        return out

    return call


def ours(shape: Shape, validate: bool = False) -> Function:
    w = window(shape)
    trace = ot.Retrace(1.0)
    return finished(lambda: ot.targets(**w, trace=trace, validate=validate))


def ours_jax(shape: Shape) -> Function:
    w = window(shape)
    import jax

    if jax.default_backend() == "cpu":
        raise LeftOut("JAX does not see the device")
    arrays = {k: jax.dlpack.from_dlpack((v.int() if k == "a" else v).contiguous()) for k, v in w.items()}
    targets = jax.jit(lambda w: ot.targets(**w, trace=ot.Retrace(1.0), validate=False))
    return lambda: targets(arrays).block_until_ready()


def rl_triton(shape: Shape) -> Function:
    w = window(shape)
    import torch

    compute_retrace = importlib.import_module("rl_triton").compute_retrace
    q_a = w["q"][:-1].gather(-1, w["a"][..., None]).squeeze(-1)
    steps = [w["pi"][:-1], w["mu_a"], q_a, w["q"][1:], w["a"], w["r"]]
    flags = [(w["discount"] == 0).float(), torch.zeros_like(w["r"])]
    given = [value.transpose(0, 1).contiguous() for value in (*steps, *flags)]
    return finished(lambda: compute_retrace(*given, 0.99))


def jax_tree(shape: Shape) -> Function:
    """What one would write in JAX: all rows at once, then `associative_scan` along time."""
    w = window(shape)
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu":
        raise LeftOut("JAX does not see the device")
    arrays = {k: jax.dlpack.from_dlpack((v.int() if k == "a" else v).contiguous()) for k, v in w.items()}

    @jax.jit
    def targets(q: Any, pi: Any, a: Any, r: Any, discount: Any, mu_a: Any) -> Any:
        q_a, pi_a = (jnp.take_along_axis(v[:-1], a[..., None], axis=-1)[..., 0] for v in (q, pi))
        c = jnp.minimum(1.0, pi_a / mu_a)
        following = jnp.concatenate([c[1:], jnp.zeros_like(c[:1])])
        delta = r + discount * (pi[1:] * q[1:]).sum(axis=-1) - q_a
        _, folded = jax.lax.associative_scan(
            lambda late, early: (early[0] * late[0], early[1] + early[0] * late[1]),
            (discount * following, delta),
            reverse=True,
        )
        return q_a + folded

    return lambda: targets(**arrays).block_until_ready()


def loop(q: Any, pi: Any, a: Any, r: Any, discount: Any, mu_a: Any) -> Any:
    """Compute what can be done at once, then go backwards in time with a few small operations per step."""
    import torch

    taken = a[1:].unsqueeze(-1)
    expected_q = (pi[1:] * q[1:]).sum(dim=-1)
    q_a = q[1:-1].gather(-1, taken).squeeze(-1)
    c = (pi[1:-1].gather(-1, taken).squeeze(-1) / mu_a[1:]).clamp(max=1.0)
    targets = [r[-1] + discount[-1] * expected_q[-1]]
    for t in range(len(c) - 1, -1, -1):
        targets.append(r[t] + discount[t] * (expected_q[t] + c[t] * (targets[-1] - q_a[t])))
    return torch.stack(targets[::-1])


def torch_loop(shape: Shape) -> Function:
    w = window(shape)
    if shape[0] > 1024:
        raise LeftOut("over 50 ms per call")
    return finished(lambda: loop(**w))


def torch_compiled(shape: Shape) -> Function:
    w = window(shape)
    if shape[0] > 16 or shape[1] > 1024:
        raise LeftOut("it takes long to compile")
    import torch

    torch.compiler.reset()
    compiled = torch.compile(loop, dynamic=False)
    return finished(lambda: compiled(**w))


def rlax_returns(shape: Shape) -> Function:
    w = window(shape)
    import jax
    import jax.numpy as jnp
    import rlax

    if jax.default_backend() == "cpu":
        raise LeftOut("JAX does not see the device")
    arrays = {k: jax.dlpack.from_dlpack((v.int() if k == "a" else v).contiguous()) for k, v in w.items()}
    returns = jax.vmap(rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1)

    @jax.jit
    def targets(q: Any, pi: Any, a: Any, r: Any, discount: Any, mu_a: Any) -> Any:
        q_a, pi_a = (jnp.take_along_axis(v[1:-1], a[1:, :, None], axis=-1)[..., 0] for v in (q, pi))
        return returns(q_a, (pi[1:] * q[1:]).sum(axis=-1), r, discount, jnp.minimum(1.0, pi_a / mu_a[1:]))

    return lambda: targets(**arrays).block_until_ready()


def copy(shape: Shape) -> Function:
    w = window(shape)
    import torch

    size = sum(v[1:].nbytes if k in ("q", "pi") else v.nbytes for k, v in w.items()) + w["r"].nbytes
    # Whole pages: CUDA copies some other sizes more slowly.
    source = torch.zeros(size // 8192 * 4096, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return finished(lambda: target.copy_(source))


BENCHMARK = Benchmark(
    name="return_operator_cuda",
    question="How long does one call for Retrace targets take on a GPU? (n steps, B windows, A actions)",
    rows=(
        (16, 4, 18),
        (16, 1024, 18),
        (128, 4096, 18),
        (128, 65536, 18),
        (1024, 4096, 18),
        (8192, 512, 18),
        (65536, 64, 18),
        (16, 1048576, 18),
        (16, 1048576, 4),
        (32, 262144, 6),
    ),
    problem=lambda shape: shape,
    contenders={
        "offtrace, torch": ours,
        "offtrace, checked": lambda shape: ours(shape, validate=True),
        "offtrace, jax.jit": ours_jax,
        "jax associative scan": jax_tree,
        "rlax q and v, jit": rlax_returns,
        "rl-triton": rl_triton,
        "torch loop": torch_loop,
        "torch.compile": torch_compiled,
        "copy": copy,
    },
    ours=("offtrace, torch", "offtrace, jax.jit"),
    slow=("torch.compile",),
    min_time=0.01,
    quick_rows=2,
)
