"""A kernel that writes where the rows of a tile are. Import it after `gpu_kernels.load()`."""

import triton
import triton.language as tl

from offtrace.returns.gpu import rows


@triton.jit
def write_places(out, n, batch, mode: tl.constexpr):
    neighbour, above = rows.tile_of_program(n, batch, mode)
    _, base, here, state = rows.places(above, neighbour, n, batch, mode)
    at = out + tl.arange(0, mode.steps * mode.rows)
    tl.store(at, base + here)
    tl.store(at + mode.steps * mode.rows, base + here + state)
    tl.store(at + 2 * mode.steps * mode.rows, here.dtype.primitive_bitwidth)
