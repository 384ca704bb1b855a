"""How a window is shared out among the programs of a device: tiles, and chunks of time."""

from functools import lru_cache
from typing import NamedTuple

TILE_CELLS = 4096
"""Cells of Q in a tile."""
TILE_ROWS = 128
WARPS = 2048
"""Warps that keep a device busy: about 16 for each of its multiprocessors."""
NARROW = 8
"""Rows of so many cells or fewer are so short that a program takes two steps of them at once."""
FEW_REGISTERS = 16
"""Rows of so many cells or fewer leave registers for loading a tile ahead."""
L2_BYTES = 150_000_000
"""Windows up to this size are read so that the cache keeps what is read again; larger ones are slower that way."""
FOLD_TILE = 1024
"""Rows of a tile where pairs are folded."""
FOLD_PROGRAMS = 512
"""The most programs that fold pairs."""
FADING = 32
"""Shorter chunks do not look whether a product of m has become too small to matter; this takes time, too."""
SHORT = 32
"""Windows of so many steps or fewer are not cut into chunks."""
ADD_TILE = 1024
"""Rows of a tile where what is carried is added."""
ADD_WARPS = 8
"""Warps of a program there."""
ADD_TILES = 4
"""The most tiles of a program there."""
ADD_PROGRAMS = 2048
"""The fewest programs there, if there are as many tiles."""
JOIN_PROGRAMS = 1024
"""The most programs that join chunks for one neighbour each."""


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


class Plan(NamedTuple):
    """How a window is shared out."""

    steps: int
    rows: int
    """Steps and neighbours of a tile."""
    num_chunks: int = 1
    """Chunks of time, each with programs of its own."""
    num_warps: int = 4
    loads_ahead: bool = False
    """A tile is loaded while the one after it in time is computed; takes registers for both."""
    eviction: str = ""
    """Hint for the cache about rows of Q and π; "evict_first" leaves more of it to what is read again."""


@lru_cache(maxsize=1024)
def plan_for(n: int, batch: int, width: int, batch_major: bool) -> Plan:
    """Return the plan for a window with rows of so many cells; found by trying (`studies/gpu_plans.py`).

    A warp has 32 rows. Tiles of one step and many neighbours need no scan. A short window has tiles of several steps
    if it has too few neighbours for that, a long one is cut into chunks of time.
    """
    size = tile_size(width)
    is_narrow = width <= NARROW
    if n <= SHORT or (batch < 32 and not batch_major):
        plan = _in_chunks(batch, _tile_of_few(n, batch, size, batch_major), size)
    elif batch_major:
        rows = min(max(1, size // 32), power_of_2(batch))
        plan = _in_chunks(batch, (size // rows, rows), size, 2 * WARPS if is_narrow else WARPS)
        if plan.num_chunks == 1 and not is_narrow:
            plan = _in_chunks(batch, (min(size, 64), 1), size)._replace(loads_ahead=True)
    else:
        plan = _in_chunks(batch, (1, min(size, 64)), size)._replace(loads_ahead=width <= FEW_REGISTERS)
        if plan.num_chunks > 1 and is_narrow:
            plan = plan._replace(steps=2)  # by the same warps: a thread has both steps of its row
    is_small = n * batch * (8 * width + 24) <= L2_BYTES and not is_narrow
    return plan._replace(
        num_chunks=1 if n <= SHORT else max(1, min(plan.num_chunks, n // (2 * plan.steps))),
        eviction="evict_first" if is_small else "",
    )


def _in_chunks(batch: int, tile: tuple[int, int], size: int, all_warps: int = WARPS) -> Plan:
    """Return a plan with a tile of steps and neighbours, and chunks of time until there are so many warps."""
    steps, rows = tile
    num_warps = max(1, min(4, steps * rows // 32)) if size >= 64 else 4
    num_groups = -(-batch // rows)
    return Plan(steps, rows, -(-all_warps // (num_groups * num_warps)), num_warps)


def _tile_of_few(n: int, batch: int, size: int, batch_major: bool) -> tuple[int, int]:
    """Return steps and neighbours of a tile, for a window with few steps or few neighbours."""
    if batch_major:
        steps = min(size, power_of_2(n))
        return steps, min(size // steps, power_of_2(batch))
    rows = min(size, power_of_2(batch))
    while rows > 8 and -(-batch // rows) * size < 32 * WARPS:
        rows //= 2
    return min(size // rows, power_of_2(n)), rows


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
    rows = min(16 if batch_major else 128, power_of_2(batch))
    steps = min(FOLD_TILE // rows, power_of_2(max(1, n // 8)))
    num_groups = -(-batch // rows)
    num_tiles = -(-n // steps)
    num_chunks = max(1, min(FOLD_PROGRAMS // num_groups, num_tiles // 2))
    return FoldPlan(FoldMode(steps, rows, batch_major, double), steps * -(-num_tiles // num_chunks))


def gradient_plan(n: int, batch: int, width: int, batch_major: bool) -> Plan:
    """Return the tiles of the backward kernel: small ones where rows are wide, as a program then needs registers."""
    size = tile_size(width) if width <= NARROW else max(1, tile_size(width) // 4)
    steps, rows = long_tile(n, batch, size, batch_major)
    return Plan(steps, rows, num_warps=max(1, size // 32) if width <= 32 else 4)


class AddPlan(NamedTuple):
    """How what is carried is added: tiles of several steps, which share it, and tiles of a program."""

    mode: FoldMode
    num_tiles: int


def add_plan(n: int, batch: int, chunk_steps: int, batch_major: bool, double: bool) -> AddPlan:
    if batch_major:
        steps = min(ADD_TILE, power_of_2(chunk_steps))
        rows = min(ADD_TILE // steps, power_of_2(batch))
    else:
        rows = min(ADD_TILE // 4, power_of_2(batch))
        steps = min(ADD_TILE // rows, power_of_2(chunk_steps))
    all_tiles = -(-batch // rows) * -(-n // steps)
    num_tiles = max(1, min(ADD_TILES, all_tiles // ADD_PROGRAMS, -(-chunk_steps // steps)))
    return AddPlan(FoldMode(steps, rows, batch_major, double), num_tiles)


def long_tile(n: int, batch: int, size: int, batch_major: bool) -> tuple[int, int]:
    """Return the steps and neighbours of a tile of so many rows that are, as far as possible, one piece of memory."""
    along, across = (n, batch) if batch_major else (batch, n)
    inner = min(size, power_of_2(along))
    outer = min(size // inner, power_of_2(across))
    return (inner, outer) if batch_major else (outer, inner)


def parts(num_actions: int) -> tuple[int, int]:
    """Return the two blocks that a row of actions is read in, both powers of 2.

    >>> parts(18), parts(4), parts(7)
    ((16, 2), (4, 0), (4, 4))
    """
    head = 1 << (num_actions.bit_length() - 1)
    rest = num_actions - head
    return head, power_of_2(rest) if rest else 0
