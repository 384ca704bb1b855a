"""How a window is shared out among the programs of a device: tiles, and chunks of time."""

from functools import lru_cache
from typing import NamedTuple

TILE_CELLS = 4096
"""Cells of Q in a tile."""
TILE_ROWS = 128
HELD = ((8, 36), (12, 32), (18, 16), (40, 12))
"""Warps that a multiprocessor holds at once, by the cells of a row: longer rows take more registers."""
HELD_IF_LONGER = 8
IN_CHUNKS = ((4, 32), (8, 28), (12, 24), (18, 20))
"""The same if time is cut into chunks."""
IN_SMALL_TILES = 4
"""Chunks whose tiles have fewer than 32 neighbours have this many warps fewer."""
FEW = 128
"""Smaller batches have tiles of 8 neighbours in chunks, others of 32."""
FEW_LONG_ROWS = 1024
"""The same for rows that threads share, but with tiles of 16 neighbours if these are almost full."""
FULL = 1.2
"""Tiles are almost full if they have at most this many rows per neighbour in the batch."""
WITHOUT_CHUNKS = 4
"""Time is cut into chunks if a tile would need more steps to keep the device busy; more than 1 for shared rows."""
SHORT = 32
"""Windows of up to this many steps are not cut into chunks."""
CACHED = 200_000_000
"""Windows of up to this many bytes are read so that the cache keeps what is read again; it slows larger ones."""
OWN_ROWS = 12
"""Rows of up to this many actions are read by one thread each."""
OWN_CHECKED_ROWS = 18
"""The same with checks, which make more sums over a row: threads that share one would exchange more."""
NARROW = 8
"""Rows of up to this many cells leave registers for large tiles in the backward kernel."""
FOLD_TILE = 1024
"""Rows of a tile where pairs are folded."""
FOLD_THREADS = 128
"""Threads of a program there: Triton's default, 4 warps."""
FOLD_PROGRAMS = 512
"""The most programs that fold pairs."""


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
    eviction: str = ""
    """Hint for the cache about what is read once; "evict_first" leaves more of it to what is read again."""
    max_warps: int = 16
    """Warps that a multiprocessor holds at once. It limits the registers of a thread."""
    shares_rows: bool = False
    """Short rows are shared by several threads, as longer ones are."""

    @property
    def max_registers(self) -> int:
        """Registers of a thread: a quarter of a multiprocessor has 16384, handed out by 8 for each thread of a warp.

        >>> Plan(1, 64, max_warps=16).max_registers, Plan(1, 64, max_warps=20).max_registers
        (128, 96)
        """
        return min(248, 16384 // (32 * self.max_warps // 4) // 8 * 8)


@lru_cache(maxsize=1024)
def plan_for(n: int, batch: int, width: int, batch_major: bool, num_multiprocessors: int) -> Plan:
    """Return the plan for a window with rows of so many cells; found by trying (`studies/gpu_plans.py`).

    What the device does not hold at once runs afterwards, almost alone. So a plan does not make more programs than it
    holds, unless the batch alone does.
    """
    size = tile_size(width)
    max_warps = next((held for cells, held in HELD if width <= cells), HELD_IF_LONGER)
    is_cut = n > SHORT
    if batch_major:
        steps, rows = _tile_of_long_rows(n, batch, size)
    else:
        steps, rows = _tile_without_chunks(n, batch, size, 32 * max_warps * num_multiprocessors)
        is_cut = is_cut and steps > (WITHOUT_CHUNKS if width <= OWN_ROWS else 1)
        if is_cut:
            steps, rows = _tile_of_chunks(n, batch, width, size)
            max_warps = _held_in_chunks(width, rows) or max_warps
    num_warps = max(1, steps * rows // 32) if size >= 64 else 4
    num_chunks = 1
    if is_cut:
        num_chunks = num_multiprocessors * max_warps // (-(-batch // rows) * num_warps)
        num_chunks = max(1, min(num_chunks, n // (2 * steps)))
    plan = Plan(steps, rows, num_chunks, num_warps, max_warps=max_warps)
    if n * batch * (8 * width + 24) <= CACHED:
        plan = plan._replace(eviction="evict_first")
    return plan


def _tile_without_chunks(n: int, batch: int, size: int, rows_held: int) -> tuple[int, int]:
    """Return steps and neighbours of a tile: as many steps as the device holds at once, at most 16."""
    steps = 1
    while steps < 16 and 2 * steps * batch <= rows_held:
        steps *= 2
    steps = min(steps, size, power_of_2(n))
    rows = min(size, 64) if steps == 1 else size // steps
    return steps, min(rows, power_of_2(batch))


def _tile_of_chunks(n: int, batch: int, width: int, size: int) -> tuple[int, int]:
    """Return steps and neighbours of a tile of a chunk: a warp or two, and few steps, so there is little to scan."""
    fewest_steps = 2
    if width > IN_CHUNKS[-1][0]:
        fewest_steps = 1
        rows = next((rows for rows in (64, 32, 16) if _is_full(batch, rows)), 8)
    elif width > OWN_ROWS and batch < FEW_LONG_ROWS:
        rows = 16 if _is_full(batch, 16) else 8
    elif width <= OWN_ROWS and batch < FEW:
        rows = 8
    else:
        rows = 32
    rows = min(rows, size, power_of_2(batch))
    steps = max(fewest_steps, min(32, size) // rows)
    return min(steps, size // rows, power_of_2(n)), rows


def _held_in_chunks(width: int, rows: int) -> int:
    """Return how many warps a multiprocessor holds in chunks; 0 for rows that are too long to have been tried."""
    held = next((held for cells, held in IN_CHUNKS if width <= cells), 0)
    return held - IN_SMALL_TILES if held and rows < 32 else held


def _is_full(batch: int, rows: int) -> bool:
    """Return whether few rows of tiles with so many neighbours would be empty."""
    return -(-batch // rows) * rows <= FULL * batch


def _tile_of_long_rows(n: int, batch: int, size: int) -> tuple[int, int]:
    """Return steps and neighbours of a tile of a batch-major window, which has steps side by side in memory."""
    rows = min(max(1, size // min(32, power_of_2(n))), power_of_2(batch))
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
    """Return how pairs are folded: in chunks of time, where the batch alone does not keep the device busy.

    Tiles of chunks have as many neighbours as there are threads, or at most 32 (see `links.py`).
    """
    rows = FOLD_THREADS if batch > FOLD_THREADS // 2 else min(32, power_of_2(batch))
    if batch_major:
        rows = min(16, rows)
    steps = min(FOLD_TILE // rows, power_of_2(max(1, n // 8)))
    num_groups = -(-batch // rows)
    num_tiles = -(-n // steps)
    num_chunks = max(1, min(FOLD_PROGRAMS // num_groups, num_tiles // 2)) if n > SHORT else 1
    return FoldPlan(FoldMode(steps, rows, batch_major, double), steps * -(-num_tiles // num_chunks))


def gradient_plan(n: int, batch: int, width: int, batch_major: bool) -> Plan:
    """Return the tiles of the backward kernel: small ones where rows are wide, as a program then needs registers."""
    size = tile_size(width) if width <= NARROW else max(1, tile_size(width) // 4)
    steps, rows = long_tile(n, batch, size, batch_major)
    num_warps = max(1, size // 32) if width <= 32 else 4
    return Plan(steps, rows, num_warps=num_warps, shares_rows=True)  # so they write side by side


def long_tile(n: int, batch: int, size: int, batch_major: bool) -> tuple[int, int]:
    """Return the steps and neighbours of a tile of so many rows that are, as far as possible, one piece of memory."""
    along, across = (n, batch) if batch_major else (batch, n)
    inner = min(size, power_of_2(along))
    outer = min(size // inner, power_of_2(across))
    return (inner, outer) if batch_major else (outer, inner)


def blocks_of(num_actions: int, most_own: int = 0) -> tuple[tuple[int, int], ...]:
    """Return the first action and the width of the blocks that a row of actions is read in; widths are powers of 2.

    A row of at most `most_own` actions is read by one thread, in blocks of what it can load at once: nothing is
    exchanged between threads. Threads share a longer one. It is read in two blocks, as one would leave cells empty:
    14 of 32 for 18 actions.

    >>> blocks_of(6, most_own=12), blocks_of(18, most_own=12), blocks_of(7)
    (((0, 2), (2, 2), (4, 2)), ((0, 16), (16, 2)), ((0, 4), (4, 4)))
    """
    if num_actions <= most_own:
        width = next(width for width in (4, 2, 1) if num_actions % width == 0)
        return tuple((start, width) for start in range(0, num_actions, width))
    head = 1 << (num_actions.bit_length() - 1)
    rest = num_actions - head
    return ((0, head), (head, power_of_2(rest))) if rest else ((0, head),)


def width_of(num_actions: int) -> int:
    """Return the cells of a row of actions, with those of the last block that are empty."""
    start, width = blocks_of(num_actions)[-1]
    return start + width
