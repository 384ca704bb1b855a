"""Which plan of the CUDA kernels is fastest for a window? For choosing the defaults in `returns/gpu/plans.py`.

    python studies/gpu_plans.py [--seconds 120]
    python studies/gpu_plans.py --held-out         # the defaults on windows that they were not chosen on

Times are those of CUDA graphs, which leave out Python: medians of 7 repeats, as shares of the bandwidth of a copy of
as many bytes in the same run. Every plan is first compared with a float64 reference. All cores compile.
"""

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from offtrace import Retrace
from offtrace.returns.gpu import launch
from offtrace.returns.gpu.autograd import targets_by_operations
from offtrace.returns.gpu.gradients import Gradients
from offtrace.returns.gpu.launch import Job
from offtrace.returns.gpu.plans import Plan
from offtrace.returns.gpu.rows import Inputs
from offtrace.traces import formulas

Shape = tuple[int, int, int]
SHAPES: list[Shape] = [
    (1024, 16384, 4),
    (65536, 256, 4),
    (1024, 2048, 4),
    (65536, 64, 18),
    (65536, 8, 18),
    (1024, 4096, 18),
    (8192, 512, 18),
    (4096, 128, 18),
    (128, 4096, 18),
    (16, 32768, 18),
    (128, 65536, 18),
    (16, 1048576, 18),
    (16, 1048576, 4),
    (32, 262144, 6),
]
HELD_OUT: list[Shape] = [
    (2500, 4000, 4),
    (40000, 200, 4),
    (500, 5000, 4),
    (3000, 1500, 5),
    (5000, 640, 6),
    (700, 25000, 7),
    (20000, 300, 9),
    (150, 30000, 12),
    (12000, 900, 15),
    (60000, 100, 18),
    (100, 9000, 18),
    (50, 100000, 5),
]
TILES = [
    (1, 32, 1),
    (1, 64, 2),
    (1, 128, 4),
    (2, 32, 1),
    (2, 64, 2),
    (2, 64, 4),
    (4, 32, 1),
    (4, 32, 4),
    (4, 64, 2),
    (8, 16, 1),
    (8, 16, 4),
    (16, 8, 1),
    (16, 8, 4),
    (32, 8, 2),
]
"""Steps, neighbours and warps."""
ERROR = 1e-5


def plans(shape: Shape) -> Iterator[Plan]:
    """Yield the plans to compare: tiles, loads ahead, and the number of warps that time is cut into chunks for."""
    n, batch, _ = shape
    seen = set()
    all_plans = itertools.product(TILES, (1024, 2048, 4096, 8192), (False, True))
    for (steps, rows, num_warps), all_warps, loads_ahead in all_plans:
        if rows > batch or (rows < 32 and batch >= 1024):
            continue
        num_groups = -(-batch // rows)
        num_tiles = -(-n // steps)
        num_chunks = min(max(1, all_warps // (num_groups * num_warps)), num_tiles)
        if num_chunks > 1 and -(-num_tiles // num_chunks) < 2:
            continue
        plan = Plan(steps, rows, num_chunks, num_warps, loads_ahead)
        if plan not in seen:
            seen.add(plan)
            yield plan


def variants(plan: Plan) -> Iterator[Plan]:
    """Yield what else may be tried with the tiles of a plan."""
    yield plan._replace(eviction="evict_first")
    if plan.num_chunks > 1:
        yield plan._replace(num_chunks=plan.num_chunks * 3 // 2)
        yield plan._replace(num_chunks=max(1, plan.num_chunks * 3 // 4))


def default_plan(shape: Shape) -> Plan:
    n, batch, num_actions = shape
    return launch.plan_for(n, batch, sum(launch.parts(num_actions)), False)


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


def seconds_of(function: Callable[[], Any], at_most: float = 0.006) -> float:
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
    """Return the time of a copy that reads and writes so many bytes together."""
    # Whole pages: CUDA copies some other sizes at two thirds of the speed.
    source = torch.zeros(num_bytes // 8192 * 4096, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return seconds_of(lambda: target.copy_(source))


def compile_plans(share: list[tuple[int, Plan]]) -> None:
    """Compile kernels into Triton's cache on disk."""
    for num_actions, plan in share:
        num_steps = plan.steps * (4 if plan.num_chunks > 1 else 2)
        small = plan._replace(num_chunks=min(plan.num_chunks, 2))
        launch.targets(job((num_steps, 2 * plan.rows, num_actions)), plan=small)


def compile_all(jobs: Iterable[tuple[int, Plan]]) -> None:
    """Compile plans on all cores."""
    kinds = {(num_actions, plan._replace(num_chunks=min(plan.num_chunks, 2))) for num_actions, plan in jobs}
    num_processes = max(1, len(os.sched_getaffinity(0)) - 2)
    shares = [sorted(kinds)[i::num_processes] for i in range(num_processes)]
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
        pool.map(compile_plans, shares, chunksize=1)


class Comparison:
    """The plans of one window."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.found: list[tuple[float, Plan]] = []
        given = job(shape)
        self.num_bytes = num_bytes_of(given.w)
        self.copy = seconds_of_copy(self.num_bytes)

    def measure(self, plans: Iterable[Plan]) -> None:
        given = job(self.shape)
        wide = Inputs(*(v.double() if v is not None and v.is_floating_point() else v for v in given.w))
        expected = targets_by_operations(given._replace(w=wide, dtype=torch.float64), Retrace(1.0))
        del wide
        scale = expected.abs().max()
        for plan in plans:
            error = ((launch.targets(given, plan=plan).out - expected).abs().max() / scale).item()
            if not error <= ERROR:
                print(f"WRONG {self.shape} {plan}: relative error {error:.1e}", flush=True)
                continue
            self.found.append((seconds_of(lambda plan=plan: launch.targets(given, plan=plan)), plan))
        self.found = sorted(set(self.found))

    def show(self) -> None:
        given = job(self.shape)
        chosen = seconds_of(lambda: launch.targets(given))
        checked = seconds_of(lambda: launch.targets(given._replace(tolerance=1e-4)))
        endless = given._replace(
            kind=formulas.KIND_Q_LAMBDA, w=given.w._replace(discount=given.w.discount * 0 + 0.99)
        )
        constant = seconds_of(lambda: launch.targets(endless))
        print(f"{self.shape}, {self.num_bytes / 1e6:.0f} MB: copy {1e6 * self.copy:.0f} µs, ", end="")
        print(f"default {self.copy / chosen:.0%}, checks × {checked / chosen:.2f}, ", end="")
        print(f"c = 1 and no ends {self.copy / constant:.0%}, default {tuple(default_plan(self.shape))}")
        for seconds, plan in self.found[:8]:
            print(f"    {self.copy / seconds:.0%} {tuple(plan)}")
        for names in (("q",), ("q", "pi")):
            result = launch.targets(given, keeps_m=True)
            to = Gradients(**{name: torch.empty_like(getattr(given.w, name)) for name in names})
            seconds = seconds_of(lambda result=result, to=to: launch.backward(given, result, result.out, to))
            print(f"    gradient of {' and '.join(names)}: × {seconds / chosen:.2f}")
        print(end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="start no window after this time")
    parser.add_argument("--held-out", action="store_true", help="time the defaults on other windows, and end")
    options = parser.parse_args()
    if options.held_out:
        for shape in HELD_OUT:
            comparison = Comparison(shape)
            comparison.measure([default_plan(shape)])
            comparison.show()
        return
    began = time.monotonic()
    compile_all((shape[2], plan) for shape in SHAPES for plan in plans(shape))
    print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
    comparisons = []
    for shape in SHAPES:
        if time.monotonic() - began < options.seconds / 2:
            comparisons.append(Comparison(shape))
            comparisons[-1].measure(plans(shape))
    print(f"measured {len(comparisons)} windows after {time.monotonic() - began:.0f} s", flush=True)
    more = [(c, [v for _, plan in c.found[:2] for v in variants(plan)]) for c in comparisons]
    compile_all((c.shape[2], plan) for c, found in more for plan in found)
    for comparison, found in more:
        if time.monotonic() - began < options.seconds:
            comparison.measure(found)
        comparison.show()


if __name__ == "__main__":
    main()
