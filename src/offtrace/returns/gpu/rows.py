"""What the kernels read of a row, as functions that Triton compiles into them.

A kernel works on tiles: `steps` steps of `rows` neighbours in the batch, the latest step first. Flat tiles are drawn
at `tile_of_program`.

    time-major                                 batch-major
    i = 0 … rows−1          step above−1       i = 0 … steps−1           first neighbour, steps above−1, above−2, …
    i = rows … 2 rows−1     step above−2       i = steps … 2 steps−1     second neighbour
    …                                          …

In other time-major tiles, a thread takes a run of steps, so that most of the recursion stays in one thread. Here is a
warp with runs of 2 steps and 2 threads for each neighbour, which makes tiles of 4 steps:

    thread      0 … 15              16 … 31               its neighbours, `side` = 16 of them, lie side by side
    first       step above−1        step above−3
    then        step above−2        step above−4

Row t of a tile reads r and the discount of step t, and of step t+1 what its c is computed from. Q and π are those of
state t+1, which both E_π Q(x_{t+1}, ·) and c_{t+1} are about, so every row of Q and π is read once.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from offtrace.traces import formulas

GIVEN = tl.constexpr(formulas.GIVEN)
ONE_STEP = tl.constexpr(formulas.KIND_ONE_STEP)
IS = tl.constexpr(formulas.KIND_IS)
Q_LAMBDA = tl.constexpr(formulas.KIND_Q_LAMBDA)
TREE_BACKUP = tl.constexpr(formulas.KIND_TREE_BACKUP)
RETRACE = tl.constexpr(formulas.KIND_RETRACE)
WATKINS = tl.constexpr(formulas.KIND_WATKINS)
SOFT_WATKINS = tl.constexpr(formulas.KIND_SOFT_WATKINS)
ACER = tl.constexpr(formulas.KIND_ACER)
Q_SIGMA = tl.constexpr(formulas.KIND_Q_SIGMA)


class Inputs(NamedTuple):
    """The tensors of a window; a kernel is compiled for those that are not None."""

    r: Any
    discount: Any
    q: Any = None
    pi: Any = None
    a: Any = None
    q_a: Any = None
    expected_q: Any = None
    pi_a: Any = None
    """π(a_t|x_t), or its logarithm; if None it comes from `pi`."""
    mu_a: Any = None
    """μ(a_t|x_t), or its logarithm."""
    c: Any = None
    lambda_: Any = None
    """λ of every step, (n,), or of every row; if None it is the number that the kernel is called with."""
    reset: Any = None
    mask: Any = None


class Mode(NamedTuple):
    """What a kernel is compiled for, besides the inputs that are there."""

    kind: int
    """The trace, as numbered in `formulas`; GIVEN for an array of c."""
    num_actions: int
    blocks: tuple[tuple[int, int], ...]
    """First action and width of the blocks that a row of actions is read in, see `plans.blocks_of`."""
    logs: bool
    """`pi_a` and `mu_a` are logarithms."""
    reads_pi: bool
    reads_mu: bool
    reads_rows: bool
    """Whole rows of Q and π are read, not only the entry of the action taken."""
    selects: bool
    """Q and π of the action taken are selected from rows that were read, see `launch.MOST_SELECTED`."""
    lambda_per_step: bool
    """`lambda_` is (n,)."""
    batch_major: bool
    """The batch is the first axis in memory, time the second."""
    corrections: bool
    """The result is Δ, not Q + Δ."""
    takes_densities: bool
    """Logarithms may be above 0."""
    checks: bool
    double: bool
    """The result is float64, and so are all numbers. Otherwise only products with c and what is carried are."""
    eviction: str
    """Hint for the cache about what is read once."""
    steps: int
    rows: int
    run: int = 0
    """Steps that a thread takes at once; 0 if the steps of a tile are folded by a scan."""
    side: int = 0
    """Neighbours side by side in a warp, if threads take runs."""
    num_warps: int = 4
    """Warps of a program."""
    wide: bool = False
    """Places within a tile are counted in 64 bits, as 32 would not do."""
    flat: bool = False
    """A tile is one piece of memory, as long as `rows`, whatever the batch; it may go on with the next step."""


@triton.jit
def times(x, y):
    """Return x y; a 0 on either side keeps a NaN or an infinity on the other out."""
    return tl.where((x == 0) | (y == 0), 0.0, x * y)


@triton.jit
def scaled(x, factor):
    """Return factor x; a factor of 0 keeps a NaN or an infinity of x out. Fewer instructions than `times`."""
    return factor * tl.where(factor == 0, 0.0, x)


@triton.jit
def divided(x, y):
    """Return x / y, correctly rounded, which Triton's `/` is not for float32: π / μ of equal numbers has to be 1."""
    if x.dtype == tl.float32:
        found = tl.div_rn(x, y)
    else:
        found = x / y
    return found


@triton.jit
def is_finite(x):
    return x - x == 0


@triton.jit
def fits(x, mode: tl.constexpr):
    """Return whether numbers are finite in the dtype of the result."""
    dtype: tl.constexpr = tl.float64 if mode.double else tl.float32
    return is_finite(x.to(dtype))


@triton.jit
def as_place(x, mode: tl.constexpr):
    """Return a whole number in as many bits as places take."""
    if mode.wide:
        x = x.to(tl.int64)
    return x


@triton.jit
def tile_of_program(n, batch, mode: tl.constexpr):
    """Return the neighbours of a program and the step above its first row.

    In a flat tile, neighbours beyond the batch are those of later steps:

        batch of 3      step 0: 0 1 2   step 1: 3 4 5   step 2: 6 7 …
    """
    _, row = order_in_tile(mode)
    if mode.flat:
        first = tl.program_id(0).to(tl.int64) * mode.rows
        above = (first // batch).to(tl.int32)  # so the first row of all is that of step −1
        side = first % batch
        if not mode.wide:
            side = side.to(tl.int32)
        neighbour = side + row
    else:
        num_groups = tl.cdiv(batch, mode.rows)
        above = n - tl.program_id(0) // num_groups * mode.steps
        neighbour = as_place(tl.program_id(0) % num_groups, mode) * mode.rows + row
    return neighbour, above


@triton.jit
def order_in_tile(mode: tl.constexpr):
    """Return the step and the neighbour of each row of a tile, both counted from its first row."""
    i = tl.arange(0, mode.steps * mode.rows)
    if mode.batch_major:
        step = i % mode.steps
        neighbour = i // mode.steps
    elif mode.run == 0:
        step = i // mode.rows
        neighbour = i % mode.rows
    else:
        # In the order of registers, warps, threads of a neighbour, neighbours: (run, rows / side, num_threads, side)
        num_threads: tl.constexpr = mode.steps // mode.run
        step = i // mode.side % num_threads * mode.run + i // (mode.rows * num_threads)
        neighbour = i // (mode.side * num_threads) * mode.side % mode.rows + i % mode.side
    return step, neighbour


@triton.jit
def places(above, neighbour, n, batch, mode: tl.constexpr):
    """Return where the rows of a tile are in memory, in 4 parts.

    t             the step of each row, above − 1 for the first one; steps below −1 are not there
    base, here    row t of r, a, …, as a common offset and one per row
    state         row t+1 of Q and π is at base + here + state

    `neighbour` is the place of each row in the batch.
    """
    earlier, _ = order_in_tile(mode)
    t = above - 1 - earlier
    if mode.flat:
        t += (neighbour // batch).to(tl.int32)
    if mode.batch_major:
        base = above.to(tl.int64) - 1
        here = neighbour * n - earlier
        state = neighbour + 1  # a window has one state more than steps
    else:
        base = (above - 1) * batch.to(tl.int64)
        here = neighbour - earlier.to(neighbour.dtype) * batch
        state = batch
    return t, base, here, state


@triton.jit
def is_before(t, n):
    """Return whether 0 ≤ t < n, by one comparison."""
    return t.to(tl.uint32) < n.to(tl.uint32)


@triton.jit
def load_steps(w, above, neighbour, wanted, n, batch, lambda_, mode: tl.constexpr):
    """Return what a tile reads of its steps, besides Q and π, as it is in memory, for `numbers_of_steps`.

    No load waits for another, so that a kernel can load them a tile ahead. Masked steps are loaded, too.
    """
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    t, base, here, _ = places(above, neighbour, n, batch, mode)
    step = 1 if mode.batch_major else batch.to(tl.int64)
    ahead = base + step
    is_there = wanted & (t >= 0)
    has_next = wanted & is_before(t + 1, n)
    nothing = tl.zeros(t.shape, real)
    reward = tl.load(w.r + base + here, is_there, 0.0, eviction_policy=mode.eviction)
    discount = tl.load(w.discount + base + here, is_there, 0.0, eviction_policy=mode.eviction)
    successor = nothing
    if w.expected_q is not None:
        successor = tl.load(w.expected_q + base + here, is_there, 0.0)
    action = tl.zeros(t.shape, tl.int32)
    if w.a is not None:
        action = tl.load(w.a + ahead + here, has_next, 0, eviction_policy=mode.eviction)
    q_a = nothing
    if w.q_a is not None:
        # Corrections have δ_t in b_t, and so Q(x_t, a_t), where targets have c_{t+1} Q(x_{t+1}, a_{t+1}).
        q_a = tl.load(
            w.q_a + (base if mode.corrections else ahead) + here, is_there if mode.corrections else has_next, 0.0
        )
    pi_a = nothing
    if w.pi_a is not None:
        pi_a = tl.load(w.pi_a + ahead + here, has_next, 0.0)
    mu_a = nothing + 1
    if mode.reads_mu:
        mu_a = tl.load(w.mu_a + ahead + here, has_next, 1.0, eviction_policy=mode.eviction)
    c = nothing
    if w.c is not None:
        c = tl.load(w.c + ahead + here, has_next, 0.0)
    if w.lambda_ is None:
        lambda_next = nothing + lambda_
    elif mode.lambda_per_step:
        lambda_next = tl.load(w.lambda_ + t + 1, has_next, 0.0)
    else:
        lambda_next = tl.load(w.lambda_ + ahead + here, has_next, 0.0)
    is_real = is_there
    goes_on = has_next
    resets = ~has_next
    if w.mask is not None:
        is_real = load_flags(w.mask, base + here, is_there)
        goes_on = load_flags(w.mask, ahead + here, has_next)
    if w.reset is not None:
        resets = load_flags(w.reset, ahead + here, has_next)
    return (reward, discount, successor), (action, q_a, pi_a, mu_a, c, lambda_next), (is_real, goes_on, resets)


@triton.jit
def load_flags(flags, at, wanted):
    """Return flags as bytes, 0 where they are not wanted."""
    return tl.load(flags.to(tl.pointer_type(tl.int8)) + at, wanted, 0)


@triton.jit
def numbers_of_steps(loaded, mode: tl.constexpr):
    """Return what `load_steps` loaded, as numbers of step t, numbers of step t+1, and flags.

    Converting a number waits until it is loaded. Right after a load, that would also delay the loads that follow.
    """
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    likelihood: tl.constexpr = tl.float64 if mode.double or mode.logs else tl.float32  # `exp` of float32 is not exact
    reward, discount, successor = loaded[0]
    action, q_a, pi_a, mu_a, c, lambda_next = loaded[1]
    is_real, goes_on, resets = loaded[2]
    action = tl.where((action >= 0) & (action < mode.num_actions), action.to(tl.int32), -1)
    return (
        (reward.to(real), discount.to(real), successor.to(real)),
        (action, q_a.to(real), pi_a.to(likelihood), mu_a.to(likelihood), c.to(real), lambda_next.to(real)),
        (is_real != 0, goes_on != 0, resets == 0),
    )


@triton.jit
def is_in_window(t, neighbour, n, batch, mode: tl.constexpr):
    """Return which rows of a tile do not reach beyond the batch, or, if it is flat, beyond the last step."""
    return t < n if mode.flat else neighbour < batch


@triton.jit
def flags_of(w, steps, t, neighbour, n, batch, mode: tl.constexpr):
    """Return which rows are real steps, which of them have a real step after them, and which are continued by it."""
    inside = is_in_window(t, neighbour, n, batch, mode)
    is_real = inside & (t >= 0)
    goes_on = inside & is_before(t + 1, n)
    if w.mask is not None:
        is_real = steps[2][0]
        goes_on = steps[2][1]
    continues = goes_on
    if w.reset is not None:
        continues = continues & steps[2][2]
    return is_real, goes_on, continues


@triton.jit
def policy_and_values(w, there, base, here, state, START: tl.constexpr, WIDTH: tl.constexpr, mode: tl.constexpr):
    """Return π and Q of state t+1 for some of the actions, (rows of the tile, WIDTH), with zeros beyond the last."""
    column = START + tl.arange(0, WIDTH)[None, :]
    inside = there[:, None] & (column < mode.num_actions)
    row = ((here + state) * mode.num_actions)[:, None]
    dtype: tl.constexpr = tl.float64 if mode.double else tl.float32
    p = tl.zeros(inside.shape, dtype)
    values = tl.zeros(inside.shape, dtype)
    if w.pi is not None:
        at = w.pi + base * mode.num_actions + row
        p = tl.load(at + column, inside, 0.0, eviction_policy=mode.eviction).to(dtype)
    if w.q is not None:
        at = w.q + base * mode.num_actions + row
        values = tl.load(at + column, inside, 0.0, eviction_policy=mode.eviction).to(dtype)
    return p, values


@triton.jit
def load_rows(w, there, base, here, state, mode: tl.constexpr):
    """Return π and Q of state t+1, a pair for every block of actions."""
    rows = ()
    for i in tl.static_range(len(mode.blocks)):
        pair = policy_and_values(w, there, base, here, state, mode.blocks[i][0], mode.blocks[i][1], mode)
        rows = rows + (pair,)  # noqa: RUF005, Triton has no other way
    return rows


@triton.jit
def selected(rows, which: tl.constexpr, action, mode: tl.constexpr):
    """Return the entry of an action in its row of π (0) or Q (1), from what `load_rows` loaded; 0 for no action."""
    found = tl.zeros(action.shape, tl.float64 if mode.double else tl.float32)
    for i in tl.static_range(len(mode.blocks)):
        column = mode.blocks[i][0] + tl.arange(0, mode.blocks[i][1])
        found += tl.sum(tl.where(action[:, None] == column[None, :], rows[i][which], 0.0), 1)
    return found


@triton.jit
def taken(w, rows, steps, is_real, goes_on, base, here, state, mode: tl.constexpr):
    """Return whether the action of step t+1 exists, Q of it, Q of it in `q` if a trace reads that, π and μ."""
    real: tl.constexpr = tl.float64 if mode.double else tl.float32
    action, q_a, pi_a, mu_a, _, _ = steps[1]
    known = goes_on
    if w.a is not None:
        known = goes_on & (action >= 0)
    cell = (here + state) * mode.num_actions + action
    if mode.selects:
        q_a = tl.where(known, selected(rows, 1, action, mode), float("nan"))
    elif w.q_a is None:
        q_a = tl.load(w.q + base * mode.num_actions + cell, known, float("nan")).to(real)
    elif w.mask is not None:
        q_a = tl.where(is_real if mode.corrections else goes_on, q_a, 0.0)
    value = q_a
    if (mode.kind == WATKINS) | (mode.kind == SOFT_WATKINS):
        value = tl.load(w.q + base * mode.num_actions + cell, known, float("nan")).to(real)
    if mode.selects:
        pi_a = selected(rows, 0, action, mode).to(pi_a.dtype)
    elif w.pi_a is not None:
        if w.mask is not None:
            pi_a = tl.where(goes_on, pi_a, 0.0)
    elif mode.reads_pi:
        pi_a = tl.load(w.pi + base * mode.num_actions + cell, known, 0.0).to(pi_a.dtype)
    else:
        pi_a = mu_a * 0 + 1
    if w.mask is not None:
        mu_a = tl.where(goes_on, mu_a, 1.0)
    return known, q_a, value, pi_a, mu_a
