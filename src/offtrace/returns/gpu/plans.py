"""How a window is shared out among the programs of a device: tiles, and chunks of time."""

from functools import lru_cache
from typing import NamedTuple

from offtrace.returns.gpu.speed import most_programs, programs_of, rounds_of, speed_of

TILE_CELLS = 4096
"""Cells of Q in a tile."""
TILE_ROWS = 128
HELD = 16
"""Warps that a multiprocessor holds at once, so that a thread has 128 registers."""
HELD_IN_LONG_RUNS = 12
"""The same for runs of 4 steps."""
MOST_HELD = 20
"""The same where more warps help more than registers: a thread has 96."""
HELD_IN_SCANS = ((8, 28), (12, 24), (18, 16), (40, 12))
"""The same without runs, by the cells of a row: longer rows take more registers."""
HELD_IF_LONGER = 8
FEW_ACTIONS = 6
"""With up to this many actions, without chunks and checks, a thread needs no more than 96 registers.

So tiles of 64 neighbours are also tried with `MOST_HELD` warps.
"""
SLOW = 0.85
"""They are tried if all other plans are slower than this."""
LONG_RUN = 4
"""Steps of the longest run."""
NARROWEST = 5
"""In chunks, rows of up to this many actions are read in runs of 4 steps, without checks, in large windows."""
LARGE = 200_000_000
"""Bytes of a window that is large enough for that."""
MORE_IN_LONG_RUNS = 1.12
"""Long runs are used if tiles of 64 have at most this many places for each neighbour in the batch."""
NARROW_IN_CHUNKS = 7
"""In chunks, other rows of up to this many actions are read in runs of 2 steps."""
WIDEST = 18
"""Wider rows are not read in runs."""
FEWEST = 8
"""Smaller batches are not read in runs, either."""
NEIGHBOURS = ((128, 1.1), (64, 1.1), (32, 1.2), (16, 1.5))
"""Neighbours of a tile in chunks, and at most how many places all tiles have for each neighbour in the batch; else 8.

A batch of 100 takes 128 places in tiles of 64 or 32, which is 1.28 for each.
"""
MORE_OF_128 = 1.15
"""The same for 128 neighbours and runs of 2 steps, in windows that are not cached."""
MORE_OF_64 = 1.18
"""The same for 64 neighbours and up to 5 actions, or rows that several threads share."""
LESS_OF_32 = 1.1
"""A lower limit for 32 neighbours, with 6 to 12 actions and without checks."""
FEW_CHUNKS = 8
"""With fewer chunks, much of the device may be idle because one more chunk does not fit: other tiles are tried."""
LONG = 16
"""Steps of a chunk that is long enough."""
CLOSE = 0.01
"""Among plans whose speeds differ less than this, the first is taken: those that do not cut time come first."""
FAST = 0.9
"""A plan that is fast enough for a short window."""
SHORT = 32
"""Windows of up to this many steps are not cut into chunks."""
CACHED = 260_000_000
"""Windows of up to this many bytes are read so that the cache keeps what is read again; it slows larger ones."""
CACHED_WITH_CHECKS = 125_000_000
"""The same with checks."""
OWN_ROWS = 12
"""Rows of up to this many actions are read by one thread each."""
OWN_CHECKED_ROWS = 18
"""The same with checks, which make more sums over a row: threads that share one would exchange more."""
NARROW = 8
"""Rows of up to this many cells leave registers for large tiles in the backward kernel."""
FOLD_RUN = 8
"""Steps that a thread takes at once where pairs are folded."""
FOLD_TILE = 128
"""Rows of a tile there, if its steps are folded by a scan."""
FOLD_WARPS = 16
"""Programs that fold pairs, each of one warp, for each multiprocessor."""


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
    """Warps that a multiprocessor holds at once, which limits the registers of a thread; 0 for no limit."""
    run: int = 0
    """Steps that a thread takes at once, see `rows.order_in_tile`; 0 if the steps of a tile are folded by a scan."""
    shares_rows: bool = False
    """Short rows are shared by several threads, as longer ones are."""
    flat: bool = False
    """Tiles are pieces of memory, see `rows.tile_of_program`."""

    @property
    def side(self) -> int:
        """Neighbours side by side in a warp, if threads take runs of steps."""
        return min(self.rows, 32 * self.run // self.steps) if self.run else 0

    @property
    def max_registers(self) -> int:
        """Registers of a thread at most, 0 for any number.

        A quarter of a multiprocessor has 16384. They are handed out by 8 for each thread of a warp.

        >>> Plan(1, 64, max_warps=16).max_registers, Plan(1, 64, max_warps=20).max_registers
        (128, 96)
        """
        if self.max_warps == 0:
            return 0
        return min(248, 16384 // (32 * self.max_warps // 4) // 8 * 8)


class Size(NamedTuple):
    """What a plan depends on, besides the layout."""

    n: int
    batch: int
    num_actions: int
    num_multiprocessors: int
    checks: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of a step, in float32 and with actions in int64: Q, π, and 24 for the rest."""
        return 8 * self.num_actions + 24

    @property
    def has_own_rows(self) -> bool:
        """Whether a row is read by one thread, without checks."""
        return self.num_actions <= OWN_ROWS

    @property
    def num_bytes(self) -> int:
        return self.n * self.batch * self.row_bytes

    @property
    def is_cached(self) -> bool:
        return self.num_bytes <= (CACHED_WITH_CHECKS if self.checks else CACHED)


@lru_cache(maxsize=1024)
def plan_for(n: int, batch: int, num_actions: int, batch_major: bool, num_multiprocessors: int, checks: bool) -> Plan:
    """Return the plan for a window. Tiles were chosen by timing (`studies/gpu_plans.py`).

    What the device does not hold at once runs afterwards, almost alone. So a plan does not make more programs than it
    holds, unless the batch alone does.
    """
    size = Size(n, batch, num_actions, num_multiprocessors, checks)
    plan = None
    if not batch_major and num_actions <= WIDEST and batch >= FEWEST:
        plan = _plan_of_runs(size)
    if plan is None:
        plan = _plan_of_scans(size, batch_major)
    return plan._replace(eviction="evict_first" if size.is_cached else "")


def _plan_of_runs(size: Size) -> Plan | None:
    """Return a plan in which a thread takes a run of steps at once, and a few threads those of a neighbour.

    None for a window that is too short for it, or so short and small that a scan over a tile is faster.
    """
    tiles_in_chunks = _tiles_in_chunks(size)
    if size.n > SHORT:
        for tile in tiles_in_chunks:
            plan = _cut(tile, size)
            if plan.num_chunks >= FEW_CHUNKS:
                return plan
    run = 2 if size.has_own_rows else 1
    shared = _tile_of_runs(run, 4, 32)
    tiles = (_tile_of_runs(run, 1, 64), _tile_of_runs(run, 2, 64), shared, shared._replace(max_warps=MOST_HELD))
    plans = [plan for plan in tiles if plan.steps <= size.n]
    if size.n > SHORT:
        plans += _plans_with_few_chunks(size, run, tiles_in_chunks[-1].run)
    if not plans:
        return None
    speeds = [speed_of(plan, size) for plan in plans]
    if size.n <= SHORT and rounds_of(shared, size) < 1 and max(speeds) < FAST:
        return None
    if size.num_actions <= FEW_ACTIONS and not size.checks and max(speeds) < SLOW:
        tile = _tile_of_runs(run, 2, 64, MOST_HELD)
        if tile.steps <= size.n and speed_of(tile, size) > max(speeds):
            return tile
    return next(plan for plan, speed in zip(plans, speeds, strict=True) if speed >= max(speeds) - CLOSE)


def _plans_with_few_chunks(size: Size, run: int, run_in_chunks: int) -> list[Plan]:
    """Return plans with tiles of several sizes, in any number of chunks for which the device has room."""
    narrow = _tile_of_runs(run_in_chunks, 2, 16)
    tiles = [
        _tile_of_runs(run_in_chunks, 2, 64 if size.is_cached else 128),
        _tile_of_runs(run_in_chunks, 2, 64),
        _tile_of_runs(run_in_chunks, 1, 64),
        narrow,
    ]
    if not size.is_cached:
        tiles += [_tile_of_runs(run, 2, 16), _tile_of_runs(run, 1, 32)]
    most = {tile: min(_cut(tile, size).num_chunks, size.n // LONG) for tile in tiles}
    if not size.has_own_rows:
        most[narrow._replace(max_warps=MOST_HELD)] = 1  # with more chunks, some devices share them out unevenly
    return [
        tile._replace(num_chunks=num_chunks)
        for num_chunks in range(1, max(most.values()) + 1)
        for tile in most
        if num_chunks <= most[tile]
    ]


def _tiles_in_chunks(size: Size) -> list[Plan]:
    """Return tiles for many chunks, the best one first."""
    if not size.has_own_rows:
        return [_tile_of_shared_rows(size)]
    tiles = [_tile_of_own_rows(size)]
    fits_long_runs = size.num_bytes >= LARGE and _places(size.batch, 64) <= MORE_IN_LONG_RUNS * size.batch
    if size.num_actions <= NARROWEST and fits_long_runs and not size.checks:
        tiles.insert(0, _tile_of_runs(LONG_RUN, 2, 64, HELD_IN_LONG_RUNS))
    return tiles


def _tile_of_own_rows(size: Size) -> Plan:
    """Return that tile for rows of up to 12 actions."""
    is_narrow = size.num_actions <= NARROWEST
    # Rows of 9 and 11 actions are loaded number by number, and then longer runs help.
    is_odd = size.num_actions % 2 == 1 and not size.is_cached
    run = 2 if size.num_actions <= NARROW_IN_CHUNKS or is_odd else 1
    if size.is_cached:
        rows = _neighbours(size.batch, 64)
    else:
        rows = _neighbours(size.batch, 128, MORE_OF_128 if run == 2 else 0)
    if is_narrow and size.checks:
        rows = min(rows, 64)
    elif is_narrow and not size.is_cached:
        rows = max(rows, _neighbours(size.batch, 64, MORE_OF_64))
    elif rows == 32 and not is_narrow and not size.checks and _places(size.batch, 32) > LESS_OF_32 * size.batch:
        rows = 16
        run = 1 if is_odd else run
    return _tile_of_runs(run, 4 if rows == 8 else 2, rows)


def _tile_of_shared_rows(size: Size) -> Plan:
    """Return that tile for rows of 13 to 18 actions, which threads share without checks."""
    rows = _neighbours(size.batch, 16)
    if not size.is_cached and (size.num_actions == WIDEST or not size.checks):
        wide = _neighbours(size.batch, 64, MORE_OF_64)
        if wide == 64 or size.num_actions % 2 == 0:
            rows = wide
    return _tile_of_runs(1, 4 if rows == 8 else 2, rows)


def _tile_of_runs(run: int, num_threads: int, rows: int, max_warps: int = HELD) -> Plan:
    """Return a plan in which so many threads share a neighbour, each with a run of steps."""
    return Plan(run * num_threads, rows, num_warps=rows * num_threads // 32, max_warps=max_warps, run=run)


def _cut(plan: Plan, size: Size) -> Plan:
    """Return the plan with as many chunks of time as the device holds programs."""
    num_chunks = most_programs(plan, size) // programs_of(plan, size)
    return plan._replace(num_chunks=max(1, min(num_chunks, size.n // (2 * plan.steps))))


def _neighbours(batch: int, most: int, more: float = 0) -> int:
    """Return how many neighbours tiles in chunks have: `most`, or fewer if too many places would be empty.

    `more` is the limit for `most` itself, where it is higher than that of `NEIGHBOURS`.

    >>> _neighbours(100, 64), _neighbours(60, 64), _neighbours(56, 64), _neighbours(56, 64, more=MORE_OF_64)
    (16, 64, 32, 64)
    """
    for rows, places in NEIGHBOURS:
        allowed = max(places, more) if rows == most else places
        if rows <= most and _places(batch, rows) <= allowed * batch:
            return rows
    return 8


def _places(batch: int, rows: int) -> int:
    """Return how many places all tiles of a batch have, including those that stay empty."""
    return -(-batch // rows) * rows


def _plan_of_scans(size: Size, batch_major: bool) -> Plan:
    """Return a plan in which the steps of a tile are folded by a scan: batch-major, wide, short or small windows."""
    n = size.n
    batch = size.batch
    width = width_of(size.num_actions)
    max_warps = next((held for cells, held in HELD_IN_SCANS if width <= cells), HELD_IF_LONGER)
    num_warps = size.num_multiprocessors * max_warps
    num_rows = tile_size(width)
    if batch_major:
        steps, rows = _tile_of_long_rows(n, batch, num_rows)
    else:
        steps = 1
        while steps < 16 and 2 * steps * batch <= 32 * num_warps:
            steps *= 2
        steps = min(steps, num_rows, power_of_2(n))
        rows = min(num_rows, 64) if steps == 1 else num_rows // steps
        if n > SHORT and steps > 1:
            rows = min(_neighbours(batch, 64), num_rows, power_of_2(batch))
            steps = max(1, min(32, num_rows) // rows)
        rows = min(rows, power_of_2(batch))
    num_warps_of_program = max(1, steps * rows // 32) if num_rows >= 64 else 4
    plan = Plan(steps, rows, num_warps=num_warps_of_program, max_warps=max_warps)
    is_cut = n > SHORT and (batch_major or steps * batch < 32 * num_warps)
    return _cut(plan, size) if is_cut else plan


def _tile_of_long_rows(n: int, batch: int, size: int) -> tuple[int, int]:
    """Return steps and neighbours of a tile of a batch-major window, which has steps side by side in memory."""
    rows = min(max(1, size // min(32, power_of_2(n))), power_of_2(batch))
    return min(size // rows, power_of_2(n)), rows


class FoldMode(NamedTuple):
    """What `fold_pairs` is compiled for; the last three as in `rows.Mode`."""

    steps: int
    rows: int
    batch_major: bool
    double: bool
    """The output is float64."""
    run: int = 0
    side: int = 0
    num_warps: int = 1


class FoldPlan(NamedTuple):
    mode: FoldMode
    chunk_steps: int
    """A multiple of the steps of a tile."""


@lru_cache(maxsize=1024)
def fold_plan(n: int, batch: int, batch_major: bool, double: bool, num_multiprocessors: int) -> FoldPlan:
    """Return how pairs are folded: in chunks of time, where the batch alone does not keep the device busy.

    A program is one warp. One to four threads share a neighbour, each with a run of steps; in batch-major windows and
    very small batches, the steps of a tile are folded by a scan.
    """
    if batch_major or batch < FEWEST:
        steps = min(FOLD_TILE, power_of_2(n)) if batch_major else FOLD_TILE // power_of_2(batch)
        mode = FoldMode(steps, FOLD_TILE // steps, batch_major, double)
    else:
        rows = _neighbours(batch, 32)
        mode = FoldMode(FOLD_RUN * 32 // rows, rows, False, double, FOLD_RUN, rows)
    num_groups = -(-batch // mode.rows)
    num_tiles = -(-n // mode.steps)
    num_chunks = max(1, min(num_multiprocessors * FOLD_WARPS // num_groups, num_tiles // 2)) if n > SHORT else 1
    return FoldPlan(mode, mode.steps * -(-num_tiles // num_chunks))


def gradient_plan(n: int, batch: int, width: int, batch_major: bool) -> Plan:
    """Return the tiles of the backward kernel. They are small where rows are wide: these take many registers."""
    size = max(1, tile_size(width) // (2 if width <= NARROW else 4))
    num_warps = max(1, size // 32) if width <= 32 else 4
    max_warps = MOST_HELD if width <= WIDEST else 0
    # Threads share a row so that they write side by side.
    plan = Plan(1, size, num_warps=num_warps, max_warps=max_warps, shares_rows=True, flat=True)
    if batch_major:
        steps = min(size, power_of_2(n))
        plan = plan._replace(steps=steps, rows=min(size // steps, power_of_2(batch)), flat=False)
    return plan


def blocks_of(num_actions: int, most_own: int = 0, *, in_halves: bool = True) -> tuple[tuple[int, int], ...]:
    """Return the first action and the width of the blocks that a row of actions is read in; widths are powers of 2.

    A row of at most `most_own` actions is read by one thread, in blocks of what it can load at once: nothing is
    exchanged between threads. Threads share a longer one. It is read in two blocks, as one would leave cells empty:
    14 of 32 for 18 actions. Where two of equal width leave as many empty, `in_halves` chooses them.

    >>> blocks_of(6, most_own=12), blocks_of(18, most_own=12)
    (((0, 2), (2, 2), (4, 2)), ((0, 16), (16, 2)))
    >>> blocks_of(7), blocks_of(7, in_halves=False)
    (((0, 4), (4, 4)), ((0, 8),))
    """
    if num_actions <= most_own:
        width = next(width for width in (4, 2, 1) if num_actions % width == 0)
        return tuple((start, width) for start in range(0, num_actions, width))
    head = 1 << (num_actions.bit_length() - 1)
    if num_actions == head:
        return ((0, head),)
    rest = power_of_2(num_actions - head)
    if rest == head and not in_halves:
        return ((0, 2 * head),)
    return ((0, head), (head, rest))


def width_of(num_actions: int) -> int:
    """Return the cells of a row of actions, with those of the last block that are empty."""
    start, width = blocks_of(num_actions)[-1]
    return start + width
