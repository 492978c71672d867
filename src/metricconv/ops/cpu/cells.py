"""Four samples at once: vector instructions that numba's compiler would not find by itself.

It cannot know that what is written is not part of the image, whose addresses are anyone's guess, and so would read the
corners of one sample after another. Neighbours along x are read together.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import FAST

WIDE = 4

_INTEGER = ir.IntType(32)


@intrinsic
def interpolate(typing: Any, x: Any, first: Any, pitch: Any, address: Any, up: Any, value: Any, at: Any) -> Any:
    """Write the samples of the addresses at … at + 4 to value [1, n], given the weights up [3, n].

    ``first`` is the place of address 0 in x, an array of any shape, and ``pitch`` that of the next row's after it.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, address, up, value = (
            context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 3, 4, 5)
        )
        real = context.get_value_type(signature.args[0].dtype)
        pair, four = ir.VectorType(real, 2).as_pointer(), ir.VectorType(real, WIDE).as_pointer()
        first, pitch, at = (arguments[k] for k in (1, 2, 6))
        row = cgutils.unpack_tuple(builder, up.shape)[1]

        def shuffled(a: Any, b: Any, places: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INTEGER, len(places)), places))

        def neighbours(start: Any) -> tuple[Any, Any]:
            """Return what stands at the addresses, counted from a place in x, and right of them."""
            pairs = []
            for k in range(WIDE):
                place = builder.load(builder.gep(address.data, [builder.add(at, at.type(k))]))
                where = builder.gep(x.data, [builder.add(start, builder.zext(place, start.type))])
                pairs.append(builder.load(builder.bitcast(where, pair), align=real_size))
            a, b = (shuffled(pairs[k], pairs[k + 1], [0, 1, 2, 3]) for k in (0, 2))
            return shuffled(a, b, [0, 2, 4, 6]), shuffled(a, b, [1, 3, 5, 7])

        def weights(axis: int) -> Any:
            where = builder.gep(up.data, [builder.add(builder.mul(row, row.type(axis)), at)])
            return builder.load(builder.bitcast(where, four), align=real_size)

        def mixed(a: Any, b: Any, weight: Any) -> Any:
            part = builder.fmul(weight, builder.fsub(b, a, flags=FAST), flags=FAST)
            return builder.fadd(a, part, flags=FAST)

        real_size = context.get_abi_sizeof(real)
        along_x = weights(2)
        top, bottom = (mixed(*neighbours(start), along_x) for start in (first, builder.add(first, pitch)))
        target = builder.bitcast(builder.gep(value.data, [at]), four)
        builder.store(mixed(top, bottom, weights(1)), target, align=real_size)
        return context.get_dummy_value()

    return types.void(x, first, pitch, address, up, value, at), build
