"""What a run needs, compared with what there is, before anything is made.

A CPU's allocator does not refuse what does not fit: the machine begins to swap, or the kernel ends some process.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from offtrace.agent.spec import Plan

CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use, and what the use is made of: version 2 of control groups, and version 1. Containers are limited so."""


def refuse_too_large(state: Any, num_batch_entries: int, specs: Sequence[Plan]) -> None:
    """A ValueError if the shapes of a state, and a batch of so many numbers, do not fit into the free memory."""
    need = num_bytes(state) + 4 * num_batch_entries
    free = available()
    if need <= free:
        return
    names = ("replay_size", "num_actors", "num_windows", "window", "evaluation_episodes")
    lower = ", ".join(f"`{name}` ({getattr(specs[0], name):,})" for name in names)
    members = f", or train fewer than {len(specs)} members together" if len(specs) > 1 else ""
    raise ValueError(
        f"`replay_size` and the sizes beside it need about {_size(need)}, and {_size(free)} of memory are free here. "
        f"Lower {lower} or `hidden_sizes`{members}."
    )


def num_bytes(shapes: Any) -> int:
    """Of arrays, or of shapes without arrays."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def available() -> float:
    """Bytes that can be had on the device; infinity where nobody knows."""
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
    """What the kernel can take back, files that were read, counts as free."""
    try:
        most, now = (Path(path).read_text().strip() for path in (limit, used))
        lines = dict(line.split() for line in Path(parts).read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    if most == "max":
        return math.inf
    return int(most) - int(now) + int(lines.get("inactive_file", 0))


def _size(num: float) -> str:
    return f"{num / 1e9:,.1f} GB" if num >= 1e8 else f"{num / 1e6:,.1f} MB"
