"""Launches the kernels."""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from offtrace.returns.gpu import fold, trajectory_aware
from offtrace.returns.gpu.gradients import Gradients, gradients
from offtrace.returns.gpu.plans import (
    LONG_RUN,
    OWN_CHECKED_ROWS,
    OWN_ROWS,
    FoldPlan,
    Plan,
    blocks_of,
    fold_plan,
    gradient_plan,
    plan_for,
    power_of_2,
    tile_size,
    width_of,
)
from offtrace.returns.gpu.rows import Inputs, Mode
from offtrace.traces import formulas

MOST_ACTIONS = 8192
"""A program takes whole rows of actions."""
MOST_STEPS = 2**31 - 2**22
"""Steps are counted in 32 bits, up to the end of the last chunk."""

MOST_CELLS = 2**31 - 1
"""Places within a tile are counted in 32 bits if it reaches over no more cells of Q."""

# What the kernels read for a trace is what its class states.
GREEDY = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_q)
READ_PI = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_pi)
READ_MU = tuple(kind for cls, kind in formulas.KINDS.items() if cls.needs_mu)
TRAJECTORY_AWARE = tuple(kind for cls, kind in formulas.KINDS.items() if not cls.markov)
GROWING = (formulas.GIVEN, formulas.KIND_IS, formulas.KIND_Q_SIGMA)
"""c may be above 1, so that products of c may grow, see `fold.one_pass`."""
MOST_SELECTED = 6
"""Rows of up to this many actions, from which Q(x, a) and π(a|x) may be selected.

Usually they are loaded a second time, which is at least as fast. With checks, in long runs and if traces may grow,
registers are short: the compiler then uses the rows before it loads these, and waits for memory twice.
"""
TAKE_DENSITIES = tuple(kind for cls, kind in formulas.KINDS.items() if cls.takes_densities)


# -- the call itself -----------------------------------------------------------------------------------------

MOST_COMPILED = 4096
_COMPILED: dict[tuple, Any] = {}
"""Compiled kernels with their grids. Triton inspects every argument of a call, which takes longer than the kernel."""


Run = Callable[..., None]
"""A compiled kernel with its grid."""


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    arguments: tuple,
    constants: tuple,
    num_warps: int = 4,
    max_registers: int = 0,
) -> Run | None:
    """Launch a kernel, and return the function that did it.

    It takes tensors of the same dtypes and alignments, or their addresses. `constants` follow the other arguments,
    and are compiled in. Triton's interpreter has no such function.
    """
    key = (kernel.fn.__name__, grid, constants, num_warps, max_registers, *_types(arguments))
    run = _COMPILED.get(key)
    if run is not None:
        run(*arguments, *constants)
        return run
    options: dict[str, Any] = {"num_warps": num_warps}
    if max_registers:
        options["maxnreg"] = max_registers
    compiled = kernel[grid](*arguments, *constants, **options)
    if compiled is None or None in key:
        return None
    if len(_COMPILED) >= MOST_COMPILED:
        _COMPILED.clear()
    run = compiled[grid]
    _COMPILED[key] = run
    return run


def _types(arguments: tuple) -> list:
    """Return what a kernel is compiled for: dtypes, in the places of their tensors, the device, and large sizes.

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
        elif isinstance(value, int):
            found.append(value >= 2**31)  # in 32 or 64 bits
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
        needs_rows = self.kind in GREEDY or (self.w.expected_q is None and self.w.q is not None)
        checks = self.tolerance is not None
        reads_rows = needs_rows or (checks and self.w.pi is not None)
        looks_up_both = self.w.q_a is None and self.w.pi_a is None and self.kind in READ_PI
        holds_much = plan.run > 0 and (checks or self.kind in GROWING or plan.run == LONG_RUN)
        if plan.shares_rows:
            blocks = blocks_of(num_actions, in_halves=False)
        else:
            blocks = blocks_of(num_actions, OWN_CHECKED_ROWS if checks else OWN_ROWS)
        return Mode(
            kind=self.kind,
            num_actions=num_actions,
            blocks=blocks,
            logs=self.logs,
            reads_pi=self.kind in READ_PI,
            reads_mu=self.kind in READ_MU,
            reads_rows=reads_rows,
            selects=reads_rows and looks_up_both and holds_much and num_actions <= MOST_SELECTED,
            lambda_per_step=self.lambda_per_step,
            batch_major=self.batch_major,
            corrections=self.corrections,
            takes_densities=self.kind in (formulas.GIVEN, *TAKE_DENSITIES),
            checks=checks,
            double=self.dtype is torch.float64,
            eviction=plan.eviction,
            steps=plan.steps,
            rows=plan.rows,
            run=plan.run,
            side=plan.side,
            num_warps=plan.num_warps,
            flat=plan.flat,
            wide=self.batch_major or (plan.steps + 1) * (self.shape[1] + plan.rows) * num_actions > MOST_CELLS,
        )


class Form(NamedTuple):
    """How the targets of a window are computed, apart from its tensors and λ."""

    batch: int
    num_chunks: int
    mode: Mode
    num_warps: int
    max_registers: int
    """Registers of a thread at most; 0 for any number."""
    sizes: tuple[int, int, int]
    """Steps, batch, and the steps of a chunk."""
    constants: tuple[Mode, bool, bool]
    """Mode; whether traces fade; whether sums have the same order in every call."""

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "Form":
        n, batch = job.shape
        mode = job.mode(plan)
        num_steps = n + mode.checks  # step −1 checks state 0
        chunk_steps = plan.steps * -(-num_steps // (plan.steps * plan.num_chunks))
        num_chunks = -(-num_steps // chunk_steps)
        max_registers = 0 if mode.double else plan.max_registers
        constants = (mode, job.kind not in GROWING, torch.are_deterministic_algorithms_enabled())
        sizes = (n, batch, chunk_steps)
        return cls(batch, num_chunks, mode, plan.num_warps, max_registers, sizes, constants)


class Result(NamedTuple):
    out: Tensor
    m: Tensor | None = None
    """What the gradient needs."""
    form: Form | None = None
    run: Run | None = None
    """The compiled kernel, for a window like this one."""


def targets(job: Job, *, keeps_m: bool = False, plan: Plan | None = None) -> Result:
    """Return targets, or corrections, of a Markov trace."""
    n, batch = job.shape
    if plan is None:
        num_multiprocessors = num_multiprocessors_of(job.w.r.device)
        checks = job.tolerance is not None
        plan = plan_for(n, batch, job.num_actions, job.batch_major, num_multiprocessors, checks)
    form = Form.of(job, plan)
    out = torch.empty_like(job.w.r, dtype=job.dtype)
    m = torch.empty_like(out) if keeps_m else None
    numbers = (float(job.lambda_), float(job.parameter), float(job.tolerance or 0))
    return Result(out, m, form, run_form(form, job.w, out, m, numbers))


@lru_cache(maxsize=64)
def num_multiprocessors_of(device: torch.device) -> int:
    """Return how many multiprocessors a device has; those of an H200 for Triton's interpreter."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


def run_form(form: Form, w: Inputs, out: Tensor, m: Tensor | None, numbers: tuple[float, ...]) -> Run | None:
    """Compute targets, and return the compiled kernel.

    `numbers` are λ, the parameter of the trace, and the tolerance of the checks.
    """
    arguments = (w, out, m, *memory_of(form, out), *form.sizes, *numbers)
    grid = (-(-form.batch // form.mode.rows), form.num_chunks, 1)
    return launch(fold.one_pass, grid, arguments, form.constants, form.num_warps, form.max_registers)


def run_again(run: Run, form: Form, addresses: tuple, out: Tensor, numbers: tuple[float, ...]) -> None:
    """Compute targets by a compiled kernel, from addresses: Triton would ask the driver about every tensor."""
    if form.num_chunks == 1 and not form.mode.checks:
        run(addresses, out.data_ptr(), None, None, None, None, *form.sizes, *numbers, *form.constants)
        return
    memory = memory_of(form, out)
    others = [None if tensor is None else tensor.data_ptr() for tensor in memory]
    run(addresses, out.data_ptr(), None, *others, *form.sizes, *numbers, *form.constants)


def memory_of(form: Form, out: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return what the kernel writes to besides `out`: `gain` and `links` of `one_pass`, and the flag."""
    strange = flag_of(out) if form.mode.checks else None
    if form.num_chunks == 1:
        return None, None, strange
    return torch.empty_like(out), links_of(form.num_chunks, form.batch, out.device), strange


def links_of(num_chunks: int, batch: int, device: torch.device) -> Tensor:
    """Return memory in which programs tell each other what their chunks do; 0 stands for nothing yet."""
    return torch.zeros((3, num_chunks, batch), dtype=torch.int64, device=device)


# -- the flag of the checks ----------------------------------------------------------------------------------

_FLAGS = threading.local()


def flag_of(like: Tensor) -> Tensor:
    """Return the flag that a kernel sets if a check may have failed; a thread has one, which is 0 between calls.

    It is in the memory of the host, where a kernel can write to it: nothing has to be copied to look at it.
    """
    found = getattr(_FLAGS, "flag", None)
    if found is None:
        found = torch.zeros(4, dtype=torch.int32, device="cpu", pin_memory=like.is_cuda)
        _FLAGS.flag = found
        _FLAGS.values = found.numpy()
    return found


def flag_was_set(like: Tensor) -> bool:
    """Wait for the device, return whether the flag is set, and clear it."""
    if like.is_cuda:
        torch.cuda.current_stream().synchronize()
    was_set = bool(_FLAGS.values[0])
    _FLAGS.values[0] = 0
    return was_set


# -- the recursion alone -------------------------------------------------------------------------------------


def solve(
    m: Tensor,
    b: Tensor,
    out: Tensor,
    *,
    forwards: bool = False,
    batch_major: bool = False,
    fades: bool = False,
    plan: FoldPlan | None = None,
) -> None:
    """Solve G_t = b_t + m_t G_{t+1}, or forwards e_t = b_t + m_{t−1} e_{t−1}, for tensors of one layout.

    `out` may be `b`. With `fades` no m is above 1.
    """
    n = b.shape[0]
    batch = b.numel() // n
    is_double = out.dtype is torch.float64
    plan = plan or fold_plan(n, batch, batch_major, is_double, num_multiprocessors_of(b.device))
    num_chunks = -(-n // plan.chunk_steps)
    grid = (-(-batch // plan.mode.rows), num_chunks, 1)
    links = links_of(num_chunks, batch, b.device) if num_chunks > 1 else None
    constants = (plan.mode, forwards, fades, torch.are_deterministic_algorithms_enabled())
    arguments = (m, b, out, links, n, batch, plan.chunk_steps)
    launch(fold.fold_pairs, grid, arguments, constants, plan.mode.num_warps)


def backward(job: Job, result: Result, gradient: Tensor, to: Gradients) -> Tensor:
    """Write the gradients that are wanted, and return e, which is that of the rewards."""
    n, batch = job.shape
    e = torch.empty_like(result.out)
    fades = job.kind not in GROWING
    solve(result.m, gradient, e, forwards=True, batch_major=job.batch_major, fades=fades)
    if all(value is None for value in to):
        return e
    job = job._replace(tolerance=None)
    plan = gradient_plan(n, batch, width_of(job.num_actions), job.batch_major)
    if plan.flat:
        num_programs = -(-(n + 1) * batch // plan.rows)
    else:
        num_programs = -(-(n + 1) // plan.steps) * -(-batch // plan.rows)
    grid = (num_programs, 1, 1)
    numbers = (n, batch, float(job.lambda_), float(job.parameter))
    mode = job.mode(plan)
    max_registers = 0 if mode.double else plan.max_registers
    launch(gradients, grid, (job.w, to, e, result.out, *numbers), (mode,), plan.num_warps, max_registers)
    return e


def trajectory_aware_targets(job: Job) -> Result:
    """Return the targets of a trajectory-aware trace."""
    n, batch = job.shape
    out = torch.empty_like(job.w.r, dtype=job.dtype)
    one_step, q_taken, log_ratio = (torch.empty_like(out) for _ in range(3))
    strange = flag_of(out) if job.tolerance is not None else None
    size = tile_size(width_of(job.num_actions))
    rows = 1 if job.batch_major else min(size, power_of_2(batch))
    plan = Plan(min(size // rows, power_of_2(n)), rows)
    mode = job.mode(plan)
    grid = (-(-batch // plan.rows) * -(-(n + mode.checks) // plan.steps), 1, 1)
    arguments = (job.w, one_step, q_taken, log_ratio, strange, n, batch, float(job.tolerance or 0))
    launch(trajectory_aware.all_steps, grid, arguments, (mode,))
    lanes = min(32, power_of_2(batch))
    starts = min(1024 // lanes, power_of_2(n), 32)
    grid = (-(-batch // lanes) * -(-n // starts), 1, 1)
    arguments = (job.w, one_step, q_taken, log_ratio, out, strange, n, batch, float(job.lambda_))
    launch(trajectory_aware.double_sum, grid, arguments, (mode, starts, lanes, 16))
    return Result(out)
