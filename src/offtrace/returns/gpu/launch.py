"""Shares a window out among the programs of a device, and launches the kernels."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace.returns.gpu import fold, trajectory_aware
from offtrace.returns.gpu.gradients import Gradients, gradients
from offtrace.returns.gpu.rows import Inputs, Mode
from offtrace.traces import formulas

MOST_ACTIONS = 8192
"""A program takes whole rows of actions."""
TILE_CELLS = 4096
"""Cells of Q in a tile."""
TILE_ROWS = 128
MANY = 256
"""Programs of four warps that keep a device busy: about two for each of its multiprocessors."""
FOLD_TILE = 512
"""Rows of a tile where pairs are folded."""
FOLD_PROGRAMS = 2048
"""The most programs that fold pairs."""

# What the kernels read for a trace is what its class states.
GREEDY = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_q)
READ_PI = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_pi)
READ_MU = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_mu)
TAKE_DENSITIES = tuple(kind for cls, kind in formulas.KINDS.items() if cls.takes_densities)


def power_of_2(size: int) -> int:
    """Return the next power of 2."""
    return 1 << (size - 1).bit_length()


def tile_size(width: int) -> int:
    """Return how many rows of so many cells a tile has, a power of 2.

    >>> tile_size(18), tile_size(40), tile_size(8192)
    (128, 64, 1)
    """
    size = max(1, min(TILE_ROWS, TILE_CELLS // width))
    return 1 << (size.bit_length() - 1)


# -- plans ---------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a window is shared out."""

    steps: int
    rows: int
    """Steps and neighbours of a tile."""
    one_pass: bool
    num_warps: int = 4
    num_stages: int = 1
    """Tiles that are on their way at once, in one pass."""
    eviction: str = ""
    """Hint for the cache about rows of Q and π; "evict_first" leaves more of it to the pairs."""


@lru_cache(maxsize=1024)
def plan_for(n: int, batch: int, width: int, batch_major: bool) -> Plan:
    """Return the plan for a window with rows of so many cells.

    One pass needs a large batch, or little work. Its tiles are one or two steps of many neighbours, so that the
    scan costs nothing; where the batch is small, or its neighbours far apart in memory, they are longer.
    """
    size = tile_size(width)
    is_large = batch >= MANY * size and not batch_major
    one_pass = is_large or n * batch <= MANY * size or batch >= MANY * size // 8 >= n
    if is_large:
        steps = min(2 if width <= 8 else 1, power_of_2(n), size)
        rows = size
    elif one_pass:
        rows = min(max(1, size // 8), power_of_2(batch))
        steps = min(max(1, size // rows), power_of_2(n))
    elif batch_major:
        steps = min(size, power_of_2(n))
        rows = min(size // steps, power_of_2(batch))
    else:
        rows = min(size, power_of_2(batch))
        steps = min(size // rows, power_of_2(n))
    return Plan(steps, rows, one_pass)


class FoldMode(NamedTuple):
    """What `fold_pairs` is compiled for."""

    steps: int
    rows: int
    batch_major: bool
    double: bool
    """The output is float64."""


class FoldPlan(NamedTuple):
    mode: FoldMode
    chunk_steps: int
    """A multiple of the steps of a tile."""


@lru_cache(maxsize=1024)
def fold_plan(n: int, batch: int, batch_major: bool, double: bool) -> FoldPlan:
    """Return how pairs are folded: in chunks of time, where the batch alone does not keep the device busy."""
    rows = min(16 if batch_major else 64, power_of_2(batch))
    steps = min(FOLD_TILE // rows, power_of_2(n))
    num_groups = -(-batch // rows)
    num_tiles = -(-n // steps)
    num_chunks = max(1, min(FOLD_PROGRAMS // num_groups, num_tiles // 8))
    return FoldPlan(FoldMode(steps, rows, batch_major, double), steps * -(-num_tiles // num_chunks))


# -- the call itself -----------------------------------------------------------------------------------------

MOST_COMPILED = 4096
_COMPILED: dict[tuple, Callable[..., None]] = {}
"""Compiled kernels with their grids. Triton inspects every argument of a call, which takes longer than the kernel."""


def launch(
    kernel: Any, grid: tuple[int, int, int], arguments: tuple, constants: tuple, num_warps: int = 4
) -> Callable[..., None] | None:
    """Launch a kernel, and return the function that did it: it takes tensors of the same dtypes and alignments.

    `constants` follow the other arguments, and are compiled in. Triton's interpreter has no such function.
    """
    key = (kernel.fn.__name__, grid, constants, num_warps, *_types(arguments))
    run = _COMPILED.get(key)
    if run is not None:
        run(*arguments, *constants)
        return run
    compiled = kernel[grid](*arguments, *constants, num_warps=num_warps)
    if compiled is None or None in key:
        return None
    if len(_COMPILED) >= MOST_COMPILED:
        _COMPILED.clear()
    _COMPILED[key] = compiled[grid]
    return _COMPILED[key]


def _types(arguments: tuple) -> list:
    """Return what a kernel is compiled for: dtypes, in the places of their tensors, and the device.

    A tensor that does not start at a multiple of 16 bytes gives None: Triton has to look at it.
    """
    found: list = []
    for value in arguments:
        if isinstance(value, tuple):
            found += _types(value)
        elif isinstance(value, Tensor):
            found.append((value.dtype, value.device.index) if value.data_ptr() % 16 == 0 else None)
        elif value is None:
            found.append(False)
    return found


# -- the kernels ---------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A window and what to make of it."""

    w: Inputs
    """Tensors of one layout: contiguous, or with the axis of time behind those of the batch in memory."""
    kind: int
    lambda_: float = 1.0
    parameter: float = 1.0
    logs: bool = False
    lambda_per_step: bool = False
    batch_major: bool = False
    corrections: bool = False
    tolerance: float | None = None
    """None for no checks."""
    dtype: torch.dtype = torch.float32
    """Dtype of the result."""

    @property
    def shape(self) -> tuple[int, int]:
        """n and the size of the batch."""
        n = self.w.r.shape[0]
        return n, self.w.r.numel() // n

    @property
    def num_actions(self) -> int:
        rows = self.w.pi if self.w.q is None else self.w.q
        return 1 if rows is None else rows.shape[-1]

    def mode(self, plan: Plan) -> Mode:
        """Return what the kernels are compiled for."""
        num_actions = self.num_actions
        head, tail = parts(num_actions)
        needs_rows = self.kind in GREEDY or (self.w.expected_q is None and self.w.q is not None)
        checks = self.tolerance is not None
        return Mode(
            kind=self.kind,
            num_actions=num_actions,
            head=head,
            tail=tail,
            logs=self.logs,
            reads_pi=self.kind in READ_PI,
            reads_mu=self.kind in READ_MU,
            reads_rows=needs_rows or (checks and self.w.pi is not None),
            lambda_per_step=self.lambda_per_step,
            batch_major=self.batch_major,
            corrections=self.corrections,
            takes_densities=self.kind in (formulas.GIVEN, *TAKE_DENSITIES),
            checks=checks,
            double=self.dtype is torch.float64,
            eviction=plan.eviction,
            steps=plan.steps,
            rows=plan.rows,
        )


def parts(num_actions: int) -> tuple[int, int]:
    """Return the two blocks that a row of actions is read in, both powers of 2.

    >>> parts(18), parts(4), parts(7)
    ((16, 2), (4, 0), (4, 4))
    """
    head = 1 << (num_actions.bit_length() - 1)
    rest = num_actions - head
    return head, power_of_2(rest) if rest else 0


class Again(NamedTuple):
    """How to launch the kernel of one pass again: the function, and its last arguments."""

    run: Callable[..., None]
    constants: tuple


class Result(NamedTuple):
    out: Tensor
    m: Tensor | None
    """What the gradient needs."""
    strange: Tensor | None
    """Not 0 if a check may have failed."""
    again: Again | None = None


def targets(job: Job, *, keeps_m: bool = False, plan: Plan | None = None) -> Result:
    """Return targets, or corrections, of a Markov trace."""
    n, batch = job.shape
    plan = plan or plan_for(n, batch, sum(parts(job.num_actions)), job.batch_major)
    out = torch.empty_like(job.w.r, dtype=job.dtype)
    m = torch.empty_like(out) if keeps_m or not plan.one_pass else None
    strange = _flag(job)
    numbers = (n, batch, float(job.lambda_), float(job.parameter), float(job.tolerance or 0))
    num_groups = -(-batch // plan.rows)
    mode = job.mode(plan)
    again = None
    if plan.one_pass:
        constants = (mode, plan.num_stages)
        arguments = (job.w, out, m, strange, *numbers)
        run = launch(fold.one_pass, (num_groups, 1, 1), arguments, constants, plan.num_warps)
        if run is not None and m is None:
            again = Again(run, constants)
    else:
        num_tiles = -(-(n + mode.checks) // plan.steps)
        grid = (num_groups * num_tiles, 1, 1)
        launch(fold.all_pairs, grid, (job.w, m, out, strange, *numbers), (mode,), plan.num_warps)
        solve(m, out, out, batch_major=job.batch_major, strange=strange)
    return Result(out, m, strange, again)


def _flag(job: Job) -> Tensor | None:
    if job.tolerance is None:
        return None
    return torch.zeros(1, dtype=torch.int32, device=job.w.r.device)


def solve(
    m: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    forwards: bool = False,
    batch_major: bool = False,
    strange: Tensor | None = None,
    plan: FoldPlan | None = None,
) -> None:
    """Solve G_t = b_t + m_t G_{t+1}, or forwards e_t = b_t + m_{t−1} e_{t−1}, for tensors of one layout.

    `out` may be `b`.
    """
    n = b.shape[0]
    batch = b.numel() // n
    plan = plan or fold_plan(n, batch, batch_major, out.dtype is torch.float64)
    num_groups = -(-batch // plan.mode.rows)
    num_chunks = -(-n // plan.chunk_steps)
    numbers = (n, batch, plan.chunk_steps)
    constants = (plan.mode, forwards, 2)
    grid = (num_groups, num_chunks, 1)
    if num_chunks == 1:
        launch(fold.fold_pairs, grid, (m, b, out, None, None, None, strange, *numbers), constants)
        return
    total_m, total_b = torch.empty((2, num_chunks, batch), dtype=torch.float64, device=b.device)
    launch(fold.fold_pairs, grid, (m, b, None, None, total_m, total_b, None, *numbers), constants)
    at_once = min(256, power_of_2(num_chunks))
    launch(fold.join_chunks, (-(-batch // 8), 1, 1), (total_m, total_b, num_chunks, batch), (at_once, 8))
    launch(fold.fold_pairs, grid, (m, b, out, total_b, None, None, strange, *numbers), constants)


def backward(job: Job, result: Result, gradient: Tensor, to: Gradients) -> Tensor:
    """Write the gradients that are wanted, and return e, which is that of the rewards."""
    n, batch = job.shape
    e = torch.empty_like(result.out)
    solve(result.m, gradient, e, forwards=True, batch_major=job.batch_major)
    if all(value is None for value in to):
        return e
    job = job._replace(tolerance=None)
    size = tile_size(sum(parts(job.num_actions)))
    along, across = (n, batch) if job.batch_major else (batch, n)
    inner = min(size, power_of_2(along))
    outer = min(size // inner, power_of_2(across))
    plan = Plan(*((inner, outer) if job.batch_major else (outer, inner)), one_pass=False)
    num_tiles = -(-(n + 1) // plan.steps)
    grid = (-(-batch // plan.rows) * num_tiles, 1, 1)
    numbers = (n, batch, float(job.lambda_), float(job.parameter))
    launch(gradients, grid, (job.w, to, e, result.out, *numbers), (job.mode(plan),))
    return e


def trajectory_aware_targets(job: Job) -> Result:
    """Return the targets of a trajectory-aware trace."""
    n, batch = job.shape
    out = torch.empty_like(job.w.r, dtype=job.dtype)
    one_step, q_taken, log_ratio = (torch.empty_like(out) for _ in range(3))
    strange = _flag(job)
    size = tile_size(sum(parts(job.num_actions)))
    rows = 1 if job.batch_major else min(size, power_of_2(batch))
    plan = Plan(min(size // rows, power_of_2(n)), rows, one_pass=False)
    mode = job.mode(plan)
    grid = (-(-batch // plan.rows) * -(-(n + mode.checks) // plan.steps), 1, 1)
    arguments = (job.w, one_step, q_taken, log_ratio, strange, n, batch, float(job.tolerance or 0))
    launch(trajectory_aware.all_steps, grid, arguments, (mode,))
    lanes = min(32, power_of_2(batch))
    starts = min(1024 // lanes, power_of_2(n), 32)
    grid = (-(-batch // lanes) * -(-n // starts), 1, 1)
    arguments = (job.w, one_step, q_taken, log_ratio, out, strange, n, batch, float(job.lambda_))
    launch(trajectory_aware.double_sum, grid, arguments, (mode, starts, lanes, 16))
    return Result(out, None, strange)
