r"""Which plan of the CUDA kernels is fastest for a window? For choosing the defaults in `returns/gpu/plans.py`.

    python studies/gpu_plans.py --seed 0 --windows 40         # other plans beside the default
    python studies/gpu_plans.py --seed 1 --windows 60 --defaults-only
    ncu --set full --clock-control none --profile-from-start off -k one_pass \
      python studies/gpu_plans.py --profile 13132 286 5      # one call, for NVIDIA's profiler

Windows are drawn at random: 16 to 65,536 steps, 4 to 18 actions, 85 to 1,500 MB, batches of 8 and more. Choose with
one seed, look at the result with another. Times are those of CUDA graphs, which leave out Python: medians of 7
repeats, as shares of the bandwidth of a copy of as many bytes in the same run. Every plan is first compared with a
float64 reference. All cores compile.
"""

import argparse
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from offtrace import TRACES, Retrace
from offtrace.returns.gpu import launch, plans
from offtrace.returns.gpu.autograd import targets_by_operations
from offtrace.returns.gpu.gradients import Gradients
from offtrace.returns.gpu.launch import Job
from offtrace.returns.gpu.plans import Plan
from offtrace.returns.gpu.rows import Inputs
from offtrace.traces import formulas

Shape = tuple[int, int, int]
STEPS = (16, 65536)
ACTIONS = (4, 18)
MEGABYTES = (85, 1500)
FEWEST = 8
"""Size of the smallest batch."""
TILES = {
    (1, 64, 2, 1): (16, 24),
    (2, 64, 2, 2): (16,),
    (2, 16, 1, 1): (16, 20),
    (2, 32, 2, 1): (16, 24),
    (2, 64, 4, 1): (16, 20),
    (4, 16, 1, 2): (16,),
    (4, 32, 2, 2): (12, 16),
    (4, 64, 4, 2): (16, 20),
    (8, 8, 1, 2): (16,),
    (8, 32, 4, 2): (16, 20),
    (8, 32, 2, 4): (12,),
    (8, 64, 4, 4): (12,),
}
"""Steps, neighbours, warps and run of a tile, and how many warps a multiprocessor may hold."""
OTHERS = {"Q(λ)": formulas.KIND_Q_LAMBDA, "IS": formulas.KIND_IS}
"""Traces that are timed in every fifth window: c is 1, which is slow to fade, or may be above 1."""
KINDS = {name: formulas.KINDS[cls] for name, cls in TRACES.items() if cls.markov}
GRADIENTS = (("q",), ("q", "pi"))
"""The gradients that are timed there."""
ERROR = 1e-5
CHECKED = 1e-4
"""The tolerance of the checks."""


def windows(seed: int, count: int) -> list[Shape]:
    """Return windows whose steps and bytes are uniform on a scale of logarithms."""
    rng = random.Random(seed)

    def draw(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    found: list[Shape] = []
    while len(found) < count:
        num_actions = rng.randint(*ACTIONS)
        num_bytes = 1e6 * draw(*MEGABYTES)
        n = int(draw(*STEPS))
        batch = int(num_bytes / n / (8 * num_actions + 24))
        if batch >= FEWEST:
            found.append((n, batch, num_actions))
    return found


def default_plan(shape: Shape, checks: bool = False) -> Plan:
    n, batch, num_actions = shape
    return launch.plan_for(n, batch, num_actions, False, num_multiprocessors(), checks)


def num_multiprocessors() -> int:
    return launch.num_multiprocessors_of(torch.device("cuda", 0))


def other_plans(shape: Shape) -> Iterator[Plan]:
    """Yield plans with as many chunks as the device holds programs."""
    n, batch, _ = shape
    default = default_plan(shape)
    for (steps, rows, num_warps, run), helds in TILES.items():
        if rows >= 2 * batch or steps > n:
            continue
        num_groups = -(-batch // rows)
        for max_warps in helds:
            num_programs = num_multiprocessors() * max_warps // num_warps
            num_chunks = max(1, min(num_programs // num_groups, n // (2 * steps)))
            if n <= plans.SHORT:
                num_chunks = 1
            yield default._replace(
                steps=steps, rows=rows, num_chunks=num_chunks, num_warps=num_warps, max_warps=max_warps, run=run
            )


def job(shape: Shape) -> Job:
    n, batch, num_actions = shape
    torch.manual_seed(0)
    steps = (n, batch)
    with torch.device("cuda"):
        w = Inputs(
            r=torch.randn(steps),
            discount=0.99 * (torch.rand(steps) > 0.01).float(),
            q=torch.randn(n + 1, batch, num_actions),
            pi=torch.softmax(torch.randn(n + 1, batch, num_actions), -1),
            a=torch.randint(num_actions, steps),
            mu_a=torch.rand(steps) * 0.8 + 0.1,
        )
    return Job(w, formulas.KIND_RETRACE)


def num_bytes_of(w: Inputs) -> int:
    """Return how many bytes a call has to read and write; row 0 of Q and π is not read."""
    return sum(v.nbytes for v in w if v is not None) + w.r.nbytes - 2 * w.q[0].nbytes


def seconds_of(function: Callable[[], Any], at_most: float = 0.004) -> float:
    """Return the time of a call in a CUDA graph."""
    function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def elapsed(num_replays: int) -> float:
        start.record()
        for _ in range(num_replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3 / num_replays

    elapsed(1)
    num_replays = max(2, min(50, int(at_most / elapsed(1))))
    return statistics.median(elapsed(num_replays) for _ in range(7))


def seconds_of_copy(num_bytes: int) -> float:
    """Return the time of a copy that reads and writes so many bytes together.

    CUDA copies some sizes at two thirds of the speed of others, so the best of some sizes nearby counts, and of two
    copies of half the bytes if these are many.
    """
    sizes = [num_bytes // 2 // unit * unit for unit in (1 << 12, 1 << 20, 1 << 22, 1 << 24)]
    if num_bytes > 600e6:
        sizes += [num_bytes // 4 // unit * unit for unit in (1 << 12, 1 << 22)]
    found = []
    for size in sizes:
        source = torch.zeros(size, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        seconds = seconds_of(lambda source=source, target=target: target.copy_(source))
        found.append(seconds * num_bytes / (2 * size))
    return min(found)


# -- compiling -----------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """What has to be compiled. The number of chunks matters only if it is 1."""

    num_actions: int
    plan: Plan
    kind: int
    checks: bool
    has_gradients: bool


def kernels_of(shape: Shape, plan: Plan, *, is_closer: bool) -> set[Kernel]:
    """Return the kernels that time a plan of a window."""
    num_actions = shape[2]
    checked = default_plan(shape, checks=True)
    found = {
        Kernel(num_actions, plan, formulas.KIND_RETRACE, checks=False, has_gradients=is_closer),
        Kernel(num_actions, checked, formulas.KIND_RETRACE, checks=True, has_gradients=False),
    }
    if is_closer:
        found |= {Kernel(num_actions, plan, kind, checks=False, has_gradients=False) for kind in OTHERS.values()}
    return {kernel._replace(plan=kernel.plan._replace(num_chunks=min(kernel.plan.num_chunks, 2))) for kernel in found}


def compile_share(share: list[Kernel]) -> None:
    """Compile kernels into Triton's cache on disk, except for those of the gradient's recursion, which are few."""
    for kernel in share:
        plan = kernel.plan
        given = job((4 * plan.steps, 2 * plan.rows, kernel.num_actions))._replace(kind=kernel.kind)
        launch.targets(given._replace(tolerance=CHECKED if kernel.checks else None), plan=plan)
        if kernel.has_gradients:
            for names in GRADIENTS:
                gradient(given, names)()


def compile_all(kernels: set[Kernel]) -> None:
    """Compile kernels on all cores."""
    num_processes = max(1, len(os.sched_getaffinity(0)) - 1)
    shares = [sorted(kernels)[i::num_processes] for i in range(num_processes)]
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        pool.map(compile_share, shares, chunksize=1)


# -- measuring -----------------------------------------------------------------------------------------------


def measure(given: Job, candidates: Iterable[Plan]) -> list[tuple[float, Plan]]:
    """Return the plans with their times, the fastest first; those that are wrong are told and left out."""
    wide = Inputs(*(v.double() if v is not None and v.is_floating_point() else v for v in given.w))
    expected = targets_by_operations(given._replace(w=wide, dtype=torch.float64), Retrace(1.0))
    del wide
    found = []
    for plan in dict.fromkeys(candidates):
        error = ((launch.targets(given, plan=plan).out - expected).abs().max() / expected.abs().max()).item()
        if not error <= ERROR:
            print(f"WRONG {given.shape} {plan}: relative error {error:.1e}", flush=True)
            continue
        found.append((seconds_of(lambda plan=plan: launch.targets(given, plan=plan)), plan))
    return sorted(found)


def gradient(given: Job, names: tuple[str, ...]) -> Callable[[], Any]:
    """Return a call of the backward pass alone."""
    result = launch.targets(given, keeps_m=True)
    to = Gradients(**{name: torch.empty_like(getattr(given.w, name)) for name in names})
    return lambda: launch.backward(given, result, result.out, to)


def short(plan: Plan) -> str:
    tile = f"{plan.steps}x{plan.rows}/{plan.num_warps}, runs of {plan.run}"
    return f"{tile}, {plan.num_chunks} chunks, {plan.max_warps} warps"


def show(shape: Shape, candidates: Iterable[Plan], *, is_closer: bool) -> float:
    """Print a line about a window, and return the share of the default."""
    given = job(shape)
    num_bytes = num_bytes_of(given.w)
    copy = seconds_of_copy(num_bytes)
    default = default_plan(shape)
    found = measure(given, [default, *candidates])
    seconds = next(seconds for seconds, plan in found if plan == default)
    checked = seconds_of(lambda: launch.targets(given._replace(tolerance=CHECKED)))
    print(f"{shape!s:20} {num_bytes / 1e6:5.0f} MB, {num_bytes / seconds / 1e12:.2f} TB/s, ", end="")
    print(f"{copy / seconds:4.0%} of a copy, checks × {checked / seconds:.2f}, {short(default)}", end="")
    print(f"; {1e6 * seconds:.0f} µs, a copy {1e6 * copy:.0f}", end="")
    if is_closer:
        for name, kind in OTHERS.items():
            other = seconds_of(lambda kind=kind: launch.targets(given._replace(kind=kind)))
            print(f"; {name} × {other / seconds:.2f}", end="")
        for names in GRADIENTS:
            backward = seconds_of(gradient(given, names))
            print(f"; gradient of {' and '.join(names)} × {backward / seconds:.2f}", end="")
    if default.num_chunks > 1:
        given.w.mu_a.fill_(1e-6)  # c = 1
        given.w.discount.fill_(0.999)
        lasting = seconds_of(lambda: launch.targets(given))
        print(f"; × {lasting / seconds:.2f} if traces do not fade", end="")
    print()
    for other, plan in found[:4] if len(found) > 1 else ():
        print(f"    {copy / other:4.0%} {short(plan)}")
    print(end="", flush=True)
    return copy / seconds


def profile(shape: Shape, kind: int, *, checks: bool) -> None:
    """Run one call between the marks that a profiler waits for."""
    given = job(shape)._replace(kind=kind, tolerance=CHECKED if checks else None)
    for _ in range(3):
        launch.targets(given)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    launch.targets(given)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def is_closer(i: int) -> bool:
    """Return whether gradients and other traces are timed in a window, too."""
    return i % 5 == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the windows")
    parser.add_argument("--windows", type=int, default=40, help="number of windows")
    parser.add_argument("--defaults-only", action="store_true", help="try no other plans")
    parser.add_argument("--seconds", type=float, default=300, help="start no window after this time")
    size = ("N", "BATCH", "ACTIONS")
    parser.add_argument(
        "--profile", nargs=3, type=int, metavar=size, help="run one call of this size under a profiler"
    )
    parser.add_argument("--trace", choices=KINDS, default="retrace", help="trace of that call")
    parser.add_argument("--checks", action="store_true", help="with checks")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device.")
    if options.profile:
        profile(tuple(options.profile), KINDS[options.trace], checks=options.checks)
        return
    began = time.monotonic()
    shapes = windows(options.seed, options.windows)
    others = {shape: [] if options.defaults_only else list(other_plans(shape)) for shape in shapes}
    kernels: set[Kernel] = set()
    for i, shape in enumerate(shapes):
        kernels |= kernels_of(shape, default_plan(shape), is_closer=is_closer(i))
        for plan in others[shape]:
            kernels |= kernels_of(shape, plan, is_closer=False)
    compile_all(kernels)
    print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    shares: dict[bool, list[float]] = {True: [], False: []}
    for i, shape in enumerate(shapes):
        if time.monotonic() - began > options.seconds:
            print(f"{len(shapes) - i} windows left out, as the time is over")
            break
        share = show(shape, others[shape], is_closer=is_closer(i))
        n, batch, num_actions = shape
        shares[n * batch * (8 * num_actions + 24) >= 200e6].append(share)
    for is_large, found in shares.items():
        if found:
            name = "200 MB and more" if is_large else "under 200 MB"
            quartiles = ", ".join(f"{q:.0%}" for q in statistics.quantiles(found, n=4)) if len(found) > 1 else ""
            print(f"{name}: {len(found)} windows, {min(found):.0%} to {max(found):.0%}, quartiles {quartiles}")


if __name__ == "__main__":
    main()
