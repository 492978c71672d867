"""Vector instructions that LLVM does not find by itself in the loops of the kernels.

LLVM cannot prove that the arrays a kernel writes do not overlap the image, which is read at computed addresses. It
would therefore read the corners of one sample after another.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ... import _compat
from .jit import FAST

_cgutils = _compat.numba_cgutils()

SAMPLES_PER_VECTOR = 4  # samples of one channel, see interpolate_vector
FIELD_CHANNELS = 12  # values per node of a geodesic field, see flow.py
CHANNELS_PER_VECTOR = 16  # image channels, see blend_channels and channel_dots

_INTEGER = ir.IntType(32)


@intrinsic
def power_of_two(typing: Any, exponent: Any) -> Any:
    """Return 2ⁿ in float32 for an int32 n in [−126, 127], from its bits; LLVM vectorizes it, unlike calls of ldexp."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.add(arguments[0], ir.Constant(_INTEGER, 127)), ir.Constant(_INTEGER, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), build


@intrinsic
def interpolate_vector(
    typing: Any, x: Any, start: Any, pitch: Any, address: Any, upper_weight: Any, value: Any, column: Any
) -> Any:
    """Write the samples column … column + 3 of a strip to value [1, n], interpolated in a plane.

    Args:
        start: the index of address 0 in x, an array of any shape.
        pitch: the distance from a row to the next.
        upper_weight: [3, n], see sampling.py.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, address, upper_weight, value = (
            context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 3, 4, 5)
        )
        real = context.get_value_type(signature.args[0].dtype)
        pair, vector = ir.VectorType(real, 2).as_pointer(), ir.VectorType(real, SAMPLES_PER_VECTOR).as_pointer()
        start, pitch, column = (arguments[k] for k in (1, 2, 6))
        pitch_of_weights = _cgutils.unpack_tuple(builder, upper_weight.shape)[1]

        def shuffle(a: Any, b: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INTEGER, len(lanes)), lanes))

        def load_neighbors(begin: Any) -> tuple[Any, Any]:
            """Return the values at the addresses, relative to an index of x, and those of their right neighbors."""
            pairs = []
            for k in range(SAMPLES_PER_VECTOR):
                offset = builder.load(builder.gep(address.data, [builder.add(column, column.type(k))]))
                pointer = builder.gep(x.data, [builder.add(begin, builder.zext(offset, begin.type))])
                pairs.append(builder.load(builder.bitcast(pointer, pair), align=real_size))
            a, b = (shuffle(pairs[k], pairs[k + 1], [0, 1, 2, 3]) for k in (0, 2))
            return shuffle(a, b, [0, 2, 4, 6]), shuffle(a, b, [1, 3, 5, 7])

        def load_weights(axis: int) -> Any:
            pointer = builder.gep(
                upper_weight.data, [builder.add(builder.mul(pitch_of_weights, pitch_of_weights.type(axis)), column)]
            )
            return builder.load(builder.bitcast(pointer, vector), align=real_size)

        def blend(a: Any, b: Any, weight: Any) -> Any:
            increment = builder.fmul(weight, builder.fsub(b, a, flags=FAST), flags=FAST)
            return builder.fadd(a, increment, flags=FAST)

        real_size = context.get_abi_sizeof(real)
        weight_x = load_weights(2)
        top, bottom = (blend(*load_neighbors(begin), weight_x) for begin in (start, builder.add(start, pitch)))
        target = builder.bitcast(builder.gep(value.data, [column]), vector)
        builder.store(blend(top, bottom, load_weights(1)), target, align=real_size)
        return context.get_dummy_value()

    return types.void(x, start, pitch, address, upper_weight, value, column), build


@intrinsic
def blend_channels(typing: Any, source: Any, corners: Any, weights: Any, target: Any, position: Any) -> Any:
    """Write Σ_c weight_c · source[corner_c : corner_c + 16] to target[position : position + 16]; flat arrays."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, CHANNELS_PER_VECTOR)
        total = vectors.blend(0, vectors.unpack(1), vectors.unpack(2))
        builder.store(total, vectors.pointer(3, arguments[4]), align=vectors.size)
        return context.get_dummy_value()

    return types.void(source, corners, weights, target, position), build


@intrinsic
def blend_nodes(typing: Any, source: Any, corners: Any, weights: Any, target: Any, position: Any, pitch: Any) -> Any:
    """Interpolate the twelve values of a geodesic field for four pixels, and write them to twelve rows.

    Value k of pixel i, Σ_c weights[i][c] · source[corners[i][c] + k], is written to target[position + k·pitch + i];
    flat arrays.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, FIELD_CHANNELS)
        pixels = [
            vectors.blend(0, _cgutils.unpack_tuple(builder, own), _cgutils.unpack_tuple(builder, factors))
            for own, factors in zip(vectors.unpack(1), vectors.unpack(2), strict=True)
        ]
        rows = _Vectors(context, builder, signature, arguments, SAMPLES_PER_VECTOR)
        for k, row in enumerate(_transposed(builder, pixels)):
            index = builder.add(arguments[4], builder.mul(arguments[5], arguments[5].type(k)))
            builder.store(row, rows.pointer(3, index), align=rows.size)
        return context.get_dummy_value()

    return types.void(source, corners, weights, target, position, pitch), build


def _transposed(builder: Any, columns: list[Any]) -> list[Any]:
    """Return the rows of a matrix, given its four columns."""

    def shuffle(a: Any, b: Any, lanes: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INTEGER, len(lanes)), lanes))

    rows = []
    for first in range(0, columns[0].type.count, 4):
        a, b, c, d = (shuffle(column, column, list(range(first, first + 4))) for column in columns)
        for lanes in ([0, 4, 1, 5], [2, 6, 3, 7]):
            left, right = shuffle(a, b, lanes), shuffle(c, d, lanes)
            rows += [shuffle(left, right, [0, 1, 4, 5]), shuffle(left, right, [2, 3, 6, 7])]
    return rows


@intrinsic
def scatter_to_nodes(
    typing: Any, grad: Any, source: Any, corners: Any, weights: Any, values: Any, position: Any
) -> Any:
    """Add weight_c · values[position : position + 12] to grad[corner_c : corner_c + 12] for each of four corners.

    Returns the dot products of these values with the source at the four corners. Arrays are flat.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, FIELD_CHANNELS)
        vector, dots = vectors.load(4, arguments[5]), []
        for corner, weight in zip(vectors.unpack(2), vectors.unpack(3), strict=True):
            increment = builder.fmul(vector, vectors.broadcast(weight), flags=FAST)
            total = builder.fadd(vectors.load(0, corner), increment, flags=FAST)
            builder.store(total, vectors.pointer(0, corner), align=vectors.size)
            dots.append(vectors.reduce_sum(builder.fmul(vector, vectors.load(1, corner), flags=FAST)))
        return context.make_tuple(builder, signature.return_type, dots)

    return types.UniTuple(grad.dtype, 4)(grad, source, corners, weights, values, position), build


@intrinsic
def channel_dots(typing: Any, source: Any, starts: Any, values: Any, position: Any, count: Any) -> Any:
    """Return the dot products of values[position : position + count] with the source from each of four starts."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dots = None
        for width, begin, end in _channel_parts(builder, arguments[4]):
            vectors = _Vectors(context, builder, signature, arguments, width)
            starts = vectors.unpack(1)
            sums = [_cgutils.alloca_once_value(builder, vectors.zero()) for _ in starts]
            with _cgutils.for_range_slice(builder, begin, end, begin.type(width), begin.type) as (index, _):
                value = vectors.load(2, builder.add(arguments[3], index))
                for total, start in zip(sums, starts, strict=True):
                    product = builder.fmul(value, vectors.load(0, builder.add(start, index)), flags=FAST)
                    builder.store(builder.fadd(builder.load(total), product, flags=FAST), total)
            found = [vectors.reduce_sum(builder.load(total)) for total in sums]
            dots = found if dots is None else [builder.fadd(a, b) for a, b in zip(dots, found, strict=True)]
        return context.make_tuple(builder, signature.return_type, dots)

    return types.UniTuple(source.dtype, 4)(source, starts, values, position, count), build


@intrinsic
def scatter_channels(
    typing: Any, target: Any, starts: Any, weights: Any, values: Any, position: Any, count: Any
) -> Any:
    """Add weight_c · values[position : position + count] to the target from each of four starts; flat arrays."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for width, begin, end in _channel_parts(builder, arguments[5]):
            vectors = _Vectors(context, builder, signature, arguments, width)
            weights = [vectors.broadcast(weight) for weight in vectors.unpack(2)]
            with _cgutils.for_range_slice(builder, begin, end, begin.type(width), begin.type) as (index, _):
                value = vectors.load(3, builder.add(arguments[4], index))
                for start, weight in zip(vectors.unpack(1), weights, strict=True):
                    pointer = vectors.pointer(0, builder.add(start, index))
                    increment = builder.fmul(value, weight, flags=FAST)
                    total = builder.fadd(builder.load(pointer, align=vectors.size), increment, flags=FAST)
                    builder.store(total, pointer, align=vectors.size)
        return context.get_dummy_value()

    return types.void(target, starts, weights, values, position, count), build


def _channel_parts(builder: Any, count: Any) -> list[tuple[int, Any, Any]]:
    """Return the parts of a loop over ``count`` channels: vector width, begin and end; then one channel at a time."""
    whole = builder.and_(count, count.type(-CHANNELS_PER_VECTOR))
    return [(CHANNELS_PER_VECTOR, count.type(0), whole), (1, whole, count)]


@intrinsic
def node_dot(typing: Any, source: Any, start: Any, values: Any, position: Any) -> Any:
    """Return the dot product of source[start : start + 12] and values[position : position + 12]."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = _Vectors(context, builder, signature, arguments, FIELD_CHANNELS)
        product = builder.fmul(vectors.load(0, arguments[1]), vectors.load(2, arguments[3]), flags=FAST)
        return vectors.reduce_sum(product)

    return source.dtype(source, start, values, position), build


class _Vectors:
    """Vector instructions on the arguments of an intrinsic, which are given by their position."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any, width: int) -> None:
        self.context, self.builder, self.types, self.arguments = context, builder, signature.args, arguments
        self.real = context.get_value_type(signature.args[0].dtype)
        self.size, self.vector_type = context.get_abi_sizeof(self.real), ir.VectorType(self.real, width)

    def unpack(self, argument: int) -> list[Any]:
        """Return the elements of a tuple."""
        return _cgutils.unpack_tuple(self.builder, self.arguments[argument])

    def pointer(self, argument: int, index: Any) -> Any:
        """Return the pointer to a vector that starts at an index of an array."""
        array = self.context.make_array(self.types[argument])(self.context, self.builder, self.arguments[argument])
        return self.builder.bitcast(self.builder.gep(array.data, [index]), self.vector_type.as_pointer())

    def load(self, argument: int, index: Any) -> Any:
        """Return the vector that starts at an index of an array."""
        return self.builder.load(self.pointer(argument, index), align=self.size)

    def broadcast(self, value: Any) -> Any:
        """Return a vector with all elements equal to a scalar."""
        one = self.builder.insert_element(
            ir.Constant(self.vector_type, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.vector_type.count), [0] * self.vector_type.count)
        return self.builder.shuffle_vector(one, ir.Constant(self.vector_type, ir.Undefined), lanes)

    def blend(self, argument: int, corners: list[Any], weights: list[Any]) -> Any:
        """Return the weighted sum of the vectors that start at the corners in an array."""
        total = None
        for corner, weight in zip(corners, weights, strict=True):
            product = self.builder.fmul(self.load(argument, corner), self.broadcast(weight), flags=FAST)
            total = product if total is None else self.builder.fadd(total, product, flags=FAST)
        return total

    def zero(self) -> Any:
        """Return a vector of zeros."""
        return ir.Constant(self.vector_type, [ir.Constant(self.real, 0.0)] * self.vector_type.count)

    def reduce_sum(self, vector: Any) -> Any:
        """Return the sum of a vector's elements."""
        name = f"llvm.vector.reduce.fadd.v{self.vector_type.count}{'f32' if self.real == ir.FloatType() else 'f64'}"
        function = _cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(self.real, [self.real, self.vector_type]), name
        )
        return self.builder.call(function, [ir.Constant(self.real, 0.0), vector], fastmath=("reassoc",))
