"""Which plan of the CUDA kernels is fastest for a window? For choosing the defaults in `returns/gpu/launch.py`.

    python studies/gpu_plans.py [--seconds 120]

Times are those of CUDA graphs, which leave out Python: medians of 7 repeats, as shares of the bandwidth of a copy of
as many bytes in the same run. Every plan is first compared with a float64 reference. All cores compile.
"""

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from offtrace import Retrace
from offtrace.returns.gpu import launch
from offtrace.returns.gpu.autograd import targets_by_operations
from offtrace.returns.gpu.gradients import Gradients
from offtrace.returns.gpu.launch import Job, Plan
from offtrace.returns.gpu.rows import Inputs
from offtrace.traces import formulas

Shape = tuple[int, int, int]
SHAPES: list[Shape] = [
    (1024, 4096, 18),
    (128, 65536, 18),
    (16, 1048576, 4),
    (32, 262144, 6),
    (8192, 512, 18),
    (65536, 64, 18),
    (128, 4096, 18),
    (16, 1048576, 18),
    (16, 1024, 18),
]
ERROR = 1e-5


def plans(shape: Shape) -> Iterator[Plan]:
    """Yield the plans to compare: tiles of one pass and of two, with and without the hint for the cache."""
    n, batch, _ = shape
    tiles = [(1, 128), (2, 128), (2, 64), (4, 32), (8, 16), (16, 8), (32, 4), (16, 4), (8, 8)]
    for (steps, rows), num_stages in itertools.product(tiles, (1, 2, 3)):
        if steps <= n and batch // rows >= 64 and (num_stages == 1 or batch // rows < 4096):
            yield Plan(steps, rows, True, 4 if steps * rows >= 128 else 2, num_stages)
    if n >= 64:
        for size, eviction in itertools.product((64, 128, 256), ("", "evict_first")):
            rows = min(size, launch.power_of_2(batch))
            yield Plan(size // rows, rows, False, 2 if size == 64 else 4, 1, eviction)


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


def seconds_of(function: Callable[[], Any]) -> float:
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
    num_replays = max(2, min(50, int(0.008 / elapsed(1))))
    return statistics.median(elapsed(num_replays) for _ in range(7))


def seconds_of_copy(num_bytes: int) -> float:
    """Return the time of a copy that reads and writes so many bytes together."""
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return seconds_of(lambda: target.copy_(source))


def compile_plans(share: list[tuple[int, Plan]]) -> None:
    """Compile kernels into Triton's cache on disk."""
    for num_actions, plan in share:
        launch.targets(job((2 * plan.steps, 2 * plan.rows, num_actions)), plan=plan)


def compare(shape: Shape) -> None:
    given = job(shape)
    n, batch, num_actions = shape
    w = given.w
    wide = Inputs(*(v.double() if v is not None and v.is_floating_point() else v for v in w))
    expected = targets_by_operations(given._replace(w=wide, dtype=torch.float64), Retrace(1.0))
    scale = expected.abs().max()
    num_bytes = sum(v.nbytes for v in w if v is not None) + w.r.nbytes - 2 * w.q[0].nbytes
    copy = seconds_of_copy(num_bytes)
    found = []
    for plan in plans(shape):
        error = ((launch.targets(given, plan=plan).out - expected).abs().max() / scale).item()
        if not error <= ERROR:
            print(f"WRONG {shape} {plan}: relative error {error:.1e}", flush=True)
            continue
        found.append((seconds_of(lambda plan=plan: launch.targets(given, plan=plan)), plan))
    own = launch.plan_for(n, batch, sum(launch.parts(num_actions)), False)
    chosen = seconds_of(lambda: launch.targets(given))
    checked = seconds_of(lambda: launch.targets(given._replace(tolerance=1e-4)))
    print(f"{shape}, {num_bytes / 1e6:.0f} MB: copy {1e6 * copy:.0f} µs, default {copy / chosen:.0%}, ", end="")
    print(f"checks × {checked / chosen:.2f}, default {tuple(own)}")
    for seconds, plan in sorted(found)[:8]:
        print(f"    {copy / seconds:.0%} {tuple(plan)}")
    for names in (("q",), ("q", "pi")):
        result = launch.targets(given, keeps_m=True)
        to = Gradients(**{name: torch.empty_like(getattr(w, name)) for name in names})
        seconds = seconds_of(lambda result=result, to=to: launch.backward(given, result, result.out, to))
        print(f"    gradient of {' and '.join(names)}: × {seconds / chosen:.2f}")
    print(end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="start no window after this time")
    options = parser.parse_args()
    began = time.monotonic()
    jobs = sorted({(shape[2], plan) for shape in SHAPES for plan in plans(shape)})
    num_processes = max(1, len(os.sched_getaffinity(0)) - 2)
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        pool.map(compile_plans, [jobs[i::num_processes] for i in range(num_processes)], chunksize=1)
    print(f"{len(jobs)} kernels after {time.monotonic() - began:.0f} s", flush=True)
    for shape in SHAPES:
        if time.monotonic() - began > options.seconds:
            print(f"no time for {shape}")
        else:
            compare(shape)


if __name__ == "__main__":
    main()
