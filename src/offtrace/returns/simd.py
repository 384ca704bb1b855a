"""The inner loops of all targets, written in vector (SIMD) instructions.

LLVM's own vector code is made for long loops: on rows of 6 or 18 actions it works mostly element by
element, and every time it is entered it tests which arrays overlap. Written for vectors of eight,
with a mask for the rest of a row, a row of 6 actions takes 0.9 ns instead of 2.5, and a step of a
few windows needs no call.

    a row of 18 actions:   │ 0 … 7 │ 8 … 15 │ 16 17 . . . . . . │      two full vectors, and one with a mask

Each loop exists twice: `…_in_lanes`, and `…_one_by_one` for processors without masked loads and
runs without a compiler.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from offtrace.kernels import jit

LANES = 8
"""Numbers per vector."""
ANY_ORDER = ("reassoc", "contract", "nsz")
"""Sums in any order; NaN and infinities are kept, as they show where Q must not be read."""

VALUE, Q_A, PI_A, C = range(4)
"""The lines of a slab (4, rows): E_π Q(x, ·), Q(x, a), π(a|x) and c."""

INT64 = ir.IntType(64)
INT32 = ir.IntType(32)
DOUBLE = ir.DoubleType()


class Writer:
    """Writes LLVM code that works on eight numbers at a time."""

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context = context
        self.builder = builder
        self.number = context.get_value_type(dtype)

    def array(self, kind: Any, value: Any) -> Any:
        return self.context.make_array(kind)(self.context, self.builder, value)

    def everywhere(self, number: Any) -> Any:
        """A vector with this number in every lane."""
        unset = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
        first = self.builder.insert_element(unset, number, INT32(0))
        return self.builder.shuffle_vector(first, unset, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))

    def below(self, count: Any) -> Any:
        """The mask of the lanes 0, 1, … below a count."""
        lanes = ir.Constant(ir.VectorType(INT64, LANES), list(range(LANES)))
        return self.builder.icmp_unsigned("<", lanes, self.everywhere(count))

    def load(self, start: Any, i: Any, used: Any = None) -> Any:
        """Eight numbers from start[i] on; 0 in unused lanes."""
        place, size, kind = self._place(start, i)
        if used is None:
            return self.builder.load(place, align=size)
        name = f"llvm.masked.load.v{LANES}f{8 * size}.p0"
        load = self._instruction(name, kind, kind.as_pointer(), INT32, used.type, kind)
        return self.builder.call(load, [place, INT32(size), used, ir.Constant(kind, [0.0] * LANES)])

    def store(self, numbers: Any, start: Any, i: Any, used: Any = None) -> None:
        """Write the used lanes to start[i], start[i + 1], …"""
        place, size, kind = self._place(start, i)
        if used is None:
            self.builder.store(numbers, place, align=size)
            return
        name = f"llvm.masked.store.v{LANES}f{8 * size}.p0"
        store = self._instruction(name, ir.VoidType(), kind, kind.as_pointer(), INT32, used.type)
        self.builder.call(store, [numbers, place, INT32(size), used])

    def total(self, numbers: Any) -> Any:
        """The sum of all lanes."""
        name = f"llvm.vector.reduce.fadd.v{LANES}f{8 * self._size(self.number)}"
        add_up = self._instruction(name, self.number, self.number, numbers.type)
        return self.builder.call(add_up, [ir.Constant(self.number, -0.0), numbers], fastmath=ANY_ORDER)

    def double(self, numbers: Any) -> Any:
        """The same numbers in float64."""
        wide = ir.VectorType(DOUBLE, LANES)
        return numbers if numbers.type == wide else self.builder.fpext(numbers, wide)

    def narrow(self, numbers: Any) -> Any:
        """The same numbers in the arrays' dtype."""
        kind = ir.VectorType(self.number, LANES)
        return numbers if numbers.type == kind else self.builder.fptrunc(numbers, kind)

    def product(self, m: Any, x: Any) -> Any:
        """m x, and 0 where m is 0, whatever x holds."""
        zeros = ir.Constant(m.type, [0.0] * LANES)
        return self.builder.select(self.builder.fcmp_unordered("!=", m, zeros), self.builder.fmul(m, x), zeros)

    def eight_by_eight(self, count: Any, body: Callable[[Any, Any], None]) -> None:
        """Write a loop: body(i, None) for i = 0, 8, …, then body(i, used) for the rest."""
        full = self.builder.and_(count, INT64(-LANES))
        with cgutils.for_range_slice(self.builder, INT64(0), full, INT64(LANES), inc=True) as (i, _):
            body(i, None)
        left = self.builder.sub(count, full)
        with self.builder.if_then(self.builder.icmp_signed(">", left, INT64(0))):
            body(full, self.below(left))

    def _place(self, start: Any, i: Any) -> tuple[Any, int, Any]:
        kind = ir.VectorType(start.type.pointee, LANES)
        place = self.builder.bitcast(self.builder.gep(start, [i]), kind.as_pointer())
        return place, self._size(start.type.pointee), kind

    def _size(self, number: Any) -> int:
        return number.get_abi_size(self.context.target_data)

    def _instruction(self, name: str, result: Any, *takes: Any) -> Any:
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(result, takes), name)


# -- Σ_a π(a|x) Q(x, a) and what else is read of a row -----------------------------------------------------------


def _write_sums(
    writer: Writer,
    inputs: Sequence[tuple[Any, Any]],
    place: tuple[Any, Any],
    rows: Any,
    sums: Any,
    term: Callable[..., Any],
    also: Callable[[Any, list[Any]], None] | None = None,
) -> None:
    """sums[j] = Σ_i term(x[t, b+j, i], …) for j < rows; `also(j, here)` adds code to the loop over rows."""
    context, builder = writer.context, writer.builder
    starts, strides = [], []
    for kind, value in inputs:
        array = writer.array(kind, value)
        start = cgutils.get_item_pointer(context, builder, kind, array, [*place, INT64(0)], wraparound=False)
        starts.append(builder.bitcast(start, ir.IntType(8).as_pointer()))
        strides.append(cgutils.unpack_tuple(builder, array.strides)[1])
        actions = cgutils.unpack_tuple(builder, array.shape)[2]
    full = builder.and_(actions, INT64(-LANES))
    used = writer.below(builder.sub(actions, full))
    total = cgutils.alloca_once(builder, ir.VectorType(writer.number, LANES))
    with cgutils.for_range(builder, rows) as loop:
        here = [builder.gep(x, [builder.mul(loop.index, stride)]) for x, stride in zip(starts, strides, strict=True)]
        here = [builder.bitcast(x, writer.number.as_pointer()) for x in here]
        builder.store(term(*(writer.load(x, full, used) for x in here)), total)
        with cgutils.for_range_slice(builder, INT64(0), full, INT64(LANES), inc=True) as (i, _):
            more = term(*(writer.load(x, i) for x in here))
            builder.store(builder.fadd(builder.load(total), more, flags=ANY_ORDER), total)
        builder.store(writer.total(builder.load(total)), builder.gep(sums, [loop.index]))
        if also is not None:
            also(loop.index, here)


def _write_dots(typing: Any, q: Any, pi: Any, t: Any, b: Any, rows: Any, out: Any) -> Any:
    def write(context: Any, builder: Any, _: Any, given: Any) -> Any:
        writer, sums = Writer(context, builder, q.dtype), context.make_array(out)(context, builder, given[5]).data
        inputs = ((q, given[0]), (pi, given[1]))
        _write_sums(writer, inputs, given[2:4], given[4], sums, lambda x, y: builder.fmul(x, y, flags=ANY_ORDER))
        return context.get_dummy_value()

    return types.void(q, pi, t, b, rows, out), write


def _write_rows(typing: Any, q: Any, pi: Any, a: Any, t: Any, b: Any, at: Any, rows: Any, slab: Any) -> Any:
    def write(context: Any, builder: Any, _: Any, given: Any) -> Any:
        writer = Writer(context, builder, q.dtype)
        taken, kept = writer.array(a, given[2]).data, writer.array(slab, given[7])
        num_actions = cgutils.unpack_tuple(builder, writer.array(q, given[0]).shape)[2]
        width = cgutils.unpack_tuple(builder, kept.shape)[1]

        def look_up(j: Any, here: list[Any]) -> None:
            action = builder.load(builder.gep(taken, [builder.add(given[5], j)]))
            action = action if action.type == INT64 else builder.sext(action, INT64)
            action = builder.select(builder.icmp_unsigned("<", action, num_actions), action, INT64(0))
            for start, kind in zip(here, (Q_A, PI_A), strict=True):
                place = builder.add(j, builder.mul(width, INT64(kind)))
                builder.store(builder.load(builder.gep(start, [action])), builder.gep(kept.data, [place]))

        inputs = ((q, given[0]), (pi, given[1]))
        term = lambda x, y: builder.fmul(x, y, flags=ANY_ORDER)  # noqa: E731
        _write_sums(writer, inputs, given[3:5], given[6], kept.data, term, look_up)
        return context.get_dummy_value()

    return types.void(q, pi, a, t, b, at, rows, slab), write


def _write_totals(typing: Any, pi: Any, t: Any, b: Any, rows: Any, out: Any) -> Any:
    def write(context: Any, builder: Any, _: Any, given: Any) -> Any:
        def term(x: Any) -> Any:
            zeros, lost = (ir.Constant(x.type, [number] * LANES) for number in (0.0, float("-inf")))
            return builder.select(builder.fcmp_ordered("<", x, zeros), lost, x)

        writer, sums = Writer(context, builder, pi.dtype), context.make_array(out)(context, builder, given[4]).data
        _write_sums(writer, ((pi, given[0]),), given[1:3], given[3], sums, term)
        return context.get_dummy_value()

    return types.void(pi, t, b, rows, out), write


_dots: Any = intrinsic(_write_dots)
_rows: Any = intrinsic(_write_rows)
_totals: Any = intrinsic(_write_totals)


@jit()
def dots_in_lanes(q: Any, pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `dots`; the actions of a row must be contiguous."""
    _dots(q, pi, t, b, rows, out)


@jit()
def rows_in_lanes(q: Any, pi: Any, a: Any, t: int, b: int, at: int, rows: int, slab: Any) -> None:
    """See `read_rows`; the actions of a row must be contiguous."""
    _rows(q, pi, a, t, b, at, rows, slab)


@jit()
def totals_in_lanes(pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `totals`; the actions of a row must be contiguous."""
    _totals(pi, t, b, rows, out)


@jit(fastmath=set(ANY_ORDER))
def dots_one_by_one(q: Any, pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `dots`."""
    for j in range(rows):
        total = q.dtype.type(0)
        for i in range(q.shape[2]):
            total += pi[t, b + j, i] * q[t, b + j, i]
        out[j] = total


@jit()
def rows_one_by_one(q: Any, pi: Any, a: Any, t: int, b: int, at: int, rows: int, slab: Any) -> None:
    """See `read_rows`."""
    dots_one_by_one(q, pi, t, b, rows, slab[VALUE])
    for j in range(rows):
        action = a.flat[at + j] if 0 <= a.flat[at + j] < q.shape[2] else 0
        slab[Q_A, j] = q[t, b + j, action]
        slab[PI_A, j] = pi[t, b + j, action]


@jit()
def totals_one_by_one(pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `totals`."""
    for j in range(rows):
        total = pi.dtype.type(0)
        for i in range(pi.shape[2]):
            total += pi[t, b + j, i] if not pi[t, b + j, i] < 0 else -np.inf
        out[j] = total


@jit()
def carry_one_by_one(
    r: Any,
    discount: Any,
    out: Any,
    at: int,
    steps: int,
    count: int,
    carried: Any,
    lambda_: float,
    slab: Any,
    row: int,
) -> None:
    """See `carry`."""
    for step in range(steps - 1, -1, -1):
        for j in range(count):
            i, k = at + step * count + j, row + step * count + j
            d, c = np.float64(discount.flat[i]), lambda_ * slab[C, k]
            target = np.float64(r.flat[i]) + (d * carried[j] if d != 0 else 0.0)
            out.flat[i] = target
            carried[j] = slab[VALUE, k] + (c * (target - slab[Q_A, k]) if c != 0 else 0.0)


COMPILED = not getattr(numba.config, "DISABLE_JIT", False)
MASKS = COMPILED and binding.get_host_cpu_features().get("avx2", False)
"""Whether kernels are compiled, for a processor with masked loads."""

RUNS_ON = COMPILED and not getattr(numba.config, "BOUNDSCHECK", None)
"""Whether an index may run past a step into the next one: not where Numba checks bounds."""

dots = dots_in_lanes if MASKS else dots_one_by_one
"""dots(q, pi, t, b, rows, out): out[j] = Σ_i π[t, b+j, i] Q[t, b+j, i] for j < rows, all of one dtype.

j may run past the batch into the next step, where the steps are contiguous in memory.
"""

read_rows = rows_in_lanes if MASKS else rows_one_by_one
"""read_rows(q, pi, a, t, b, at, rows, slab): the same sums, and Q and π of the actions taken, into a slab.

`a` is indexed by row, from row `at` on; an action that does not exist is replaced by action 0.
"""

totals = totals_in_lanes if MASKS else totals_one_by_one
"""totals(pi, t, b, rows, out): out[j] = Σ_i π[t, b+j, i], and −∞ or NaN if one of them is negative."""


# -- target_t = r_t + discount_t w_{t+1} and w_t = E_π Q(x_t, ·) + λ c_t (target_t − Q(x_t, a_t)) -----------------


def _write_carry(
    typing: Any,
    r: Any,
    discount: Any,
    out: Any,
    at: Any,
    steps: Any,
    count: Any,
    carried: Any,
    lambda_: Any,
    slab: Any,
    row: Any,
) -> Any:
    def write(context: Any, builder: Any, _: Any, given: Any) -> Any:
        writer = Writer(context, builder, r.dtype)
        kinds = {0: r, 1: discount, 2: out, 6: carried, 8: slab}
        arrays = {i: writer.array(kind, given[i]) for i, kind in kinds.items()}
        at, steps, count, first_row = given[3], given[4], given[5], given[9]
        width = cgutils.unpack_tuple(builder, arrays[8].shape)[1]
        lambdas = writer.everywhere(given[7])
        with cgutils.for_range(builder, steps) as loop:
            earlier = builder.mul(builder.sub(builder.sub(steps, loop.index), INT64(1)), count)
            step, slab_row = builder.add(at, earlier), builder.add(first_row, earlier)

            def eight(j: Any, used: Any) -> None:
                i, k = builder.add(step, j), builder.add(slab_row, j)
                rewards, discounts = (writer.double(writer.load(arrays[a].data, i, used)) for a in (0, 1))
                later = writer.load(arrays[6].data, j, used)
                target = builder.fadd(rewards, writer.product(discounts, later))
                writer.store(writer.narrow(target), arrays[2].data, i, used)
                places = [builder.add(k, builder.mul(width, INT64(n))) for n in (VALUE, Q_A, C)]
                value, q_a, c = (writer.double(writer.load(arrays[8].data, place, used)) for place in places)
                correction = writer.product(builder.fmul(lambdas, c), builder.fsub(target, q_a))
                writer.store(builder.fadd(value, correction), arrays[6].data, j, used)

            writer.eight_by_eight(count, eight)
        return context.get_dummy_value()

    return types.void(r, discount, out, at, steps, count, carried, lambda_, slab, row), write


_carry: Any = intrinsic(_write_carry)

carry: Any = _carry if MASKS else carry_one_by_one
"""carry(r, discount, out, at, steps, count, carried, lambda_, slab, row): the recursion, from the last step back.

A step is `count` numbers of r, discount and out, which are indexed by row. The first step begins at
row `at`, and at `row` in the slab. `carried` is w of the step after the last on entry, and w of the
first step on return.
"""
