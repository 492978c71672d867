"""A node's twelve numbers, or sixteen channels, at once: vector instructions that numba would not find by itself."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import FAST

CHANNELS = 12  # of a node
WIDE = 16  # channels of an image


def _mixing(width: int) -> Any:
    """Return how to write Σ_c weight_c · source[corner_c : corner_c + width] to target[at : at + width].

    There are four corners, and arrays are flat.
    """

    @intrinsic
    def mix(typing: Any, source: Any, corners: Any, weights: Any, target: Any, at: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vectors = _Vectors(context, builder, signature, arguments, width)
            total = None
            for corner, weight in zip(vectors.unpacked(1), vectors.unpacked(2), strict=True):
                part = builder.fmul(vectors.load(0, corner), vectors.splat(weight), flags=FAST)
                total = part if total is None else builder.fadd(total, part, flags=FAST)
            builder.store(total, vectors.pointer(3, arguments[4]), align=vectors.size)
            return context.get_dummy_value()

        return types.void(source, corners, weights, target, at), build

    return mix


mix, mix_channels = _mixing(CHANNELS), _mixing(WIDE)


@intrinsic
def unmix(typing: Any, grad: Any, source: Any, corners: Any, weights: Any, pull: Any, at: Any) -> Any:
    """Add weight_c · pull[at : at + 12] to grad[corner_c : corner_c + 12] for each of four corners.

    Return the scalar products of the pull with the source at the corners.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, CHANNELS)
        felt, dots = vectors.load(4, arguments[5]), []
        for corner, weight in zip(vectors.unpacked(2), vectors.unpacked(3), strict=True):
            share = builder.fmul(felt, vectors.splat(weight), flags=FAST)
            total = builder.fadd(vectors.load(0, corner), share, flags=FAST)
            builder.store(total, vectors.pointer(0, corner), align=vectors.size)
            dots.append(vectors.sum(builder.fmul(felt, vectors.load(1, corner), flags=FAST)))
        return context.make_tuple(builder, signature.return_type, dots)

    return types.UniTuple(grad.dtype, 4)(grad, source, corners, weights, pull, at), build


@intrinsic
def dot(typing: Any, source: Any, start: Any, pull: Any, at: Any) -> Any:
    """Return the scalar product of source[start : start + 12] with pull[at : at + 12]."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, CHANNELS)
        product = builder.fmul(vectors.load(0, arguments[1]), vectors.load(2, arguments[3]), flags=FAST)
        return vectors.sum(product)

    return source.dtype(source, start, pull, at), build


class _Vectors:
    """Instructions on the arguments of an intrinsic."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, width: int) -> None:
        self.context, self.builder, self.types, self.arguments = context, builder, signature.args, arguments
        self.real = context.get_value_type(signature.args[0].dtype)
        self.size, self.kind = context.get_abi_sizeof(self.real), ir.VectorType(self.real, width)

    def unpacked(self, number: int) -> list[Any]:
        """Return the members of an argument that is a tuple."""
        return cgutils.unpack_tuple(self.builder, self.arguments[number])

    def pointer(self, number: int, index: Any) -> Any:
        """Return where a vector of an argument that is an array starts."""
        array = self.context.make_array(self.types[number])(self.context, self.builder, self.arguments[number])
        return self.builder.bitcast(self.builder.gep(array.data, [index]), self.kind.as_pointer())

    def load(self, number: int, index: Any) -> Any:
        """Return a vector of an argument that is an array."""
        return self.builder.load(self.pointer(number, index), align=self.size)

    def splat(self, value: Any) -> Any:
        """Return a vector of the same number."""
        one = self.builder.insert_element(ir.Constant(self.kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        where = ir.Constant(ir.VectorType(ir.IntType(32), self.kind.count), [0] * self.kind.count)
        return self.builder.shuffle_vector(one, ir.Constant(self.kind, ir.Undefined), where)

    def sum(self, vector: Any) -> Any:
        """Return the sum of a vector's numbers."""
        name = f"llvm.vector.reduce.fadd.v{self.kind.count}{'f32' if self.real == ir.FloatType() else 'f64'}"
        reduce = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(self.real, [self.real, self.kind]), name
        )
        return self.builder.call(reduce, [ir.Constant(self.real, 0.0), vector], fastmath=("reassoc",))
