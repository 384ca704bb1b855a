"""The check that a run fits into the free memory, before anything is allocated.

On a CPU, allocating too much does not fail: the machine starts to swap, or the kernel kills a
process.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from offtrace.agent.spec import Plan
from offtrace.environments import with_options

CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Files of a container's limit, its use and the parts of the use: version 2 of control groups, then version 1."""


def check_fits(state: Any, num_batch_entries: int, specs: Sequence[Plan]) -> None:
    """Check that a state, given by its shapes, and a batch of so many numbers fit into the free memory."""
    need = num_bytes(state) + 4 * num_batch_entries
    free = available()
    if need <= free:
        return
    names = ("replay_size", "num_actors", "num_windows", "window", "evaluation_episodes")
    lower = ", ".join(f"`{name}` ({getattr(specs[0], name):,})" for name in names)
    members = f", or train fewer than {len(specs)} members together" if len(specs) > 1 else ""
    raise ValueError(
        f"`replay_size` and the other sizes must fit into the free memory, {_size(free)}; got about {_size(need)}. "
        f"Lower {lower} or `hidden_sizes`{members}."
    )


def most_that_fit(spec: Plan) -> int:
    """Return how many members with memories as large as this one's fit into the free memory: at least 1.

    Only memories of pictures count. A fifth of the memory is left for networks and batches.
    """
    environment = with_options(spec.env, spec.options)
    per_member = spec.replay_size * getattr(environment, "frame_bytes", 0)
    free = available()
    if not per_member or math.isinf(free):
        return 2**31
    return max(1, int(0.8 * free / per_member))


def num_bytes(shapes: Any) -> int:
    """Return the bytes of a tree of arrays or of shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def available() -> float:
    """Return the free bytes on the device; infinity if unknown."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return min(_free_on_machine(), *(_free_in_group(*paths) for paths in CGROUPS))


def _free_on_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else math.inf


def _free_in_group(limit: str, used: str, parts: str) -> float:
    """Return the free bytes of a control group. Cached files count as free: the kernel can drop them."""
    try:
        most = Path(limit).read_text().strip()
        now = Path(used).read_text().strip()
        lines = dict(line.split() for line in Path(parts).read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    if most == "max":
        return math.inf
    return int(most) - int(now) + int(lines.get("inactive_file", 0))


def _size(num: float) -> str:
    return f"{num / 1e9:,.1f} GB" if num >= 1e8 else f"{num / 1e6:,.1f} MB"
