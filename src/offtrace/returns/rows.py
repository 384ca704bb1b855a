"""Σ_a π(a|x) Q(x, a) over rows of a few actions each: the inner loop of all targets, in vector instructions.

LLVM makes its own vector code for hundreds of numbers, and goes one by one through most of 6 or 18. Written out for
eight lanes, with a masked load for those left over, a row of 6 actions takes 0.9 ns instead of 2.5. Where the
processor has no masked loads, the plain loop is used.
"""

from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from offtrace.kernels import jit

LANES = 8
ANY_ORDER = ("reassoc", "contract", "nsz")
"""Sums in any order, but NaN and infinities are kept: they tell that Q needs care."""

WHOLE, SMALL, BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


@jit(fastmath=set(ANY_ORDER))
def dots_one_by_one(q: Any, pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `dots`."""
    for j in range(rows):
        total = q.dtype.type(0)
        for i in range(q.shape[2]):
            total += pi[t, b + j, i] * q[t, b + j, i]
        out[j] = total


@jit()
def dots_in_lanes(q: Any, pi: Any, t: int, b: int, rows: int, out: Any) -> None:
    """See `dots`; the actions of a row have to lie side by side."""
    _in_lanes(q, pi, t, b, rows, out)


def _write_lanes(typing: Any, q: Any, pi: Any, t: Any, b: Any, rows: Any, out: Any) -> Any:
    """The types of the call, and how its code is written."""

    def write(context: Any, builder: ir.IRBuilder, _: Any, arguments: Any) -> Any:
        number = context.get_value_type(q.dtype)
        size = number.get_abi_size(context.target_data)
        lanes, named = ir.VectorType(number, LANES), f"v{LANES}f{8 * size}"
        zeros, total = ir.Constant(lanes, [0.0] * LANES), cgutils.alloca_once(builder, lanes)

        inputs = []
        for kind, value in ((q, arguments[0]), (pi, arguments[1])):
            array = context.make_array(kind)(context, builder, value)
            place = [arguments[2], arguments[3], WHOLE(0)]
            start = cgutils.get_item_pointer(context, builder, kind, array, place, wraparound=False)
            inputs.append((builder.bitcast(start, BYTES), cgutils.unpack_tuple(builder, array.strides)[1]))
            actions = cgutils.unpack_tuple(builder, array.shape)[2]
        sums = context.make_array(out)(context, builder, arguments[5]).data

        full = builder.and_(actions, WHOLE(-LANES))
        unset = ir.Constant(ir.VectorType(WHOLE, LANES), ir.Undefined)
        left = builder.insert_element(unset, builder.sub(actions, full), SMALL(0))
        left = builder.shuffle_vector(left, unset, ir.Constant(ir.VectorType(SMALL, LANES), [0] * LANES))
        used = builder.icmp_unsigned("<", ir.Constant(unset.type, list(range(LANES))), left)

        def instruction(name: str, result: ir.Type, *takes: ir.Type) -> Any:
            return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, takes), f"llvm.{name}")

        masked_load = instruction(f"masked.load.{named}.p0", lanes, lanes.as_pointer(), SMALL, used.type, lanes)
        add_up = instruction(f"vector.reduce.fadd.{named}", number, number, lanes)

        with cgutils.for_range(builder, arguments[4]) as loop:
            starts = [builder.gep(start, [builder.mul(loop.index, stride)]) for start, stride in inputs]

            def at(start: Any, i: Any) -> Any:
                first = builder.gep(builder.bitcast(start, number.as_pointer()), [i])
                return builder.bitcast(first, lanes.as_pointer())

            x, y = (builder.call(masked_load, [at(start, full), SMALL(size), used, zeros]) for start in starts)
            builder.store(builder.fmul(x, y, flags=ANY_ORDER), total)
            with cgutils.for_range_slice(builder, WHOLE(0), full, WHOLE(LANES), inc=True) as (i, _):
                x, y = (builder.load(at(start, i), align=size) for start in starts)
                more = builder.fmul(x, y, flags=ANY_ORDER)
                builder.store(builder.fadd(builder.load(total), more, flags=ANY_ORDER), total)
            one = builder.call(add_up, [ir.Constant(number, -0.0), builder.load(total)], fastmath=ANY_ORDER)
            builder.store(one, builder.gep(sums, [loop.index]))
        return context.get_dummy_value()

    return types.void(q, pi, t, b, rows, out), write


_in_lanes: Any = intrinsic(_write_lanes)

dots = dots_in_lanes if binding.get_host_cpu_features().get("avx2") else dots_one_by_one
"""dots(q, pi, t, b, rows, out): out[j] = Σ_i π[t, b+j, i] Q[t, b+j, i] for j < rows, all of one dtype.

j may run on beyond the batch into the next step, where the rows of one follow those of the other in memory.
"""
