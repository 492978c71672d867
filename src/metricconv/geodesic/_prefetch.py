"""Prefetching of memory in numba kernels."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Ask the processor to load the memory at the first element of ``array[index]``, which it may read soon."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values = context.make_array(signature.args[0])(context, builder, arguments[0])
        pitch = builder.extract_value(values.strides, 0)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.gep(builder.bitcast(values.data, byte), [builder.mul(arguments[1], pitch)])
        shape = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        # For reading, into all levels of the cache, as data.
        flags = [ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)]
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [byte], shape), [address, *flags])
        return context.get_dummy_value()

    return types.none(array, types.int64), generate
