"""The recursion as an operator of PyTorch: it works inside `torch.compile`, `torch.export` and `torch.func`.

    G_t = b_t + m_t G_{t+1},    G_n = 0

Eager calls run the kernels directly. A traced tensor has no memory that a kernel could read, so there PyTorch has to
be told what the recursion does to shapes, to gradients and to the axes of `vmap`:

    torch.compile, torch.export    the operator `offtrace::solve`, one node of the graph
    torch.func                     the function `_Solve`, with the same rules: operators lack some of them
    torch.func in torch.compile    tensor operations alone (`as_tree`): neither of the two can be traced there

The gradient is the same recursion forwards in time, so derivatives of every order exist.
"""

import warnings
from functools import cache
from types import ModuleType
from typing import Any

import torch

from offtrace.arrays import joint_product, product
from offtrace.returns import numpy as on_cpu
from offtrace.returns.window import Window

Tensor = torch.Tensor


def solve(m: Tensor, b: Tensor) -> Tensor:
    """Return G, (n, …), from m and b of one shape and dtype, on a CPU or CUDA device."""
    if not torch.compiler.is_compiling():
        out: Any = _Solve.apply(m, b)
        return out
    if torch._C._are_functorch_transforms_active():
        return as_tree(m, b)
    return operator(m, b)


@torch.library.custom_op("offtrace::solve", mutates_args=())
def operator(m: Tensor, b: Tensor) -> Tensor:
    """Run the recursion by a kernel."""
    if b.device.type == "cpu":
        # Eq. 3 with Q = 0, c = 1, m for the discounts and b for the rewards
        zero = torch.zeros_like(b).numpy()
        steps = Window(b.contiguous().numpy(), m.contiguous().numpy(), expected_q=zero)
        return torch.from_numpy(on_cpu.fold(steps, zero, torch.ones_like(b).numpy(), as_targets=True))
    kernels = kernels_of(b.device)
    if kernels is None or b.numel() == 0:
        return as_tree(m, b).clone()  # the output of an operator must not share memory with its input
    return kernels.solve(m, b)


# -- the rules -----------------------------------------------------------------------------------------------


def _shape(m: Tensor, b: Tensor) -> Tensor:
    return b.new_empty(b.shape)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)
    if hasattr(ctx, "save_for_forward"):
        ctx.save_for_forward(inputs[0], output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of m and b: b_t gets e_t = g_t + m_{t−1} e_{t−1}, and m_t gets e_t G_{t+1}."""
    m, out = ctx.saved_tensors
    m_before = torch.cat([torch.zeros_like(m[:1]), m[:-1]])
    e = solve(m_before.flip(0), gradient.flip(0)).flip(0)
    return product(e, _next_read(m, out)), e


def _jvp(ctx: Any, to_m: Tensor, to_b: Tensor) -> Tensor:
    """Return the derivative along a direction: Ġ_t = ḃ_t + ṁ_t G_{t+1} + m_t Ġ_{t+1}."""
    m, out = ctx.saved_tensors
    return solve(m, to_b + product(to_m, _next_read(m, out)))


def _next_read(m: Tensor, out: Tensor) -> Tensor:
    """Return G_{t+1}; where m_t is 0 it is not read, so what is not finite becomes 0."""
    following = torch.cat([out[1:], torch.zeros_like(out[:1])])
    return torch.where((m == 0) & ~torch.isfinite(following), 0, following)


def _vmap(info: Any, in_dims: tuple[int | None, int | None], m: Tensor, b: Tensor) -> tuple[Tensor, int]:
    """Run a batch of recursions as one, with the new axis behind time."""
    return solve(_behind_time(m, in_dims[0], info.batch_size), _behind_time(b, in_dims[1], info.batch_size)), 1


def _operator_vmap(info: Any, in_dims: tuple[int | None, int | None], m: Tensor, b: Tensor) -> tuple[Tensor, int]:
    return operator(_behind_time(m, in_dims[0], info.batch_size), _behind_time(b, in_dims[1], info.batch_size)), 1


def _behind_time(rows: Tensor, axis: int | None, size: int) -> Tensor:
    """Return rows with the axis of `vmap` at place 1; what is not batched is repeated."""
    if axis is not None:
        return rows.movedim(axis, 1)
    return rows.unsqueeze(1).expand(-1, size, *rows.shape[1:])


operator.register_fake(_shape)
operator.register_autograd(_backward, setup_context=_setup_context)
operator.register_vmap(_operator_vmap)


class _Solve(torch.autograd.Function):
    forward: Any = staticmethod(operator)
    setup_context: Any = staticmethod(_setup_context)
    backward: Any = staticmethod(_backward)
    jvp: Any = staticmethod(_jvp)
    vmap: Any = staticmethod(_vmap)


def as_tree(m: Tensor, b: Tensor) -> Tensor:
    """Solve G_t = b_t + m_t G_{t+1} in log₂ n rounds; each doubles how far ahead a row has looked.

    After a round, G_t = b_t + m_t G_{t+reach}:

        reach 1    G_0 = b_0 + m_0 G_1        G_1 = b_1 + m_1 G_2        …
        reach 2    G_0 = (b_0 + m_0 b_1) + (m_0 m_1) G_2                 …
    """
    n = b.shape[0]
    reach = 1
    while reach < n:
        b = torch.cat([b[:-reach] + joint_product(m[:-reach], b[reach:]), b[-reach:]])
        m = torch.cat([joint_product(m[:-reach], m[reach:]), torch.zeros_like(m[-reach:])])
        reach *= 2
    return b


# -- the kernels of a device ---------------------------------------------------------------------------------


@cache
def kernels_of(device: torch.device) -> ModuleType | None:
    """Return the package with the kernels of a device, or None if it has none."""
    if device.type != "cuda":
        return None
    try:
        from offtrace.returns import gpu
    except ImportError:
        warnings.warn(
            "Triton cannot be imported, so the targets of CUDA tensors are computed by slower operations of PyTorch. "
            "Install the package `triton`; PyTorch for CUDA comes with it on Linux.",
            stacklevel=4,
        )
        return None
    if torch.version.hip or torch.cuda.get_device_capability(device) < (7, 0):
        return None
    return gpu
