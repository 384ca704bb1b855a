"""How long do the kernels of offtrace and its peers take on a GPU, without what the host does?

    python studies/gpu_peers.py

In µs, for the sizes of `benchmarks/return_operator_cuda.py`: the durations of all kernels that a call starts, added
up, as PyTorch's profiler tells them. It sees those of JAX, too. Medians of 9 calls. The time between two kernels is
not counted, which is an advantage for those that need many.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from offtrace import bench

REPEATS = 9
NAMES = ["offtrace, torch", "offtrace, jax.jit", "jax associative scan", "rl-triton", "copy"]


def kernels_of(call: Callable[[], Any]) -> tuple[int, float]:
    """Return how many kernels a call starts, copies and fills included, and how many µs they take."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
    found = [event.device_time for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return len(found), sum(found)


def measure(call: Callable[[], Any]) -> str:
    for _ in range(3):
        call()
    found = [kernels_of(call) for _ in range(REPEATS)]
    num_kernels = max(number for number, _ in found)
    return f"{statistics.median(time for _, time in found):,.2f} ({num_kernels})"


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device.")
    benchmark = bench.load("return_operator_cuda")
    print("µs, and the number of kernels\n" + f"{'n, batch, actions':20}" + "".join(f"{name:>22}" for name in NAMES))
    for shape in benchmark.rows:
        print(f"{shape!s:20}", end="")
        for name in NAMES:
            try:
                found = measure(benchmark.contenders[name](shape))
            except (ImportError, bench.LeftOut):
                found = ""
            print(f"{found:>22}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
