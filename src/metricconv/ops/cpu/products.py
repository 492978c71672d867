"""Matrix products inside kernels, computed by the BLAS library of torch."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ... import _compat
from .jit import noalloc

_cgutils = _compat.numba_cgutils()


@intrinsic
def _call_address(typing: Any, address: Any, pointers: Any) -> Any:
    """Call the function at an address with pointers, which are given as integers."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, packed = arguments
        values = _cgutils.unpack_tuple(builder, packed)
        signature_type = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(pointer, signature_type.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(address, pointers), build


def make_blas_arguments(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays whose addresses ``product`` passes to BLAS: the letters N and T, six sizes, two factors."""
    return np.frombuffer(b"NT", np.uint8).copy(), np.empty(6, np.int32), np.ones(2, dtype)


@noalloc
def product(gemm, blas, a, a_pitch, a_transposed, b, b_pitch, b_transposed, beta, c, c_pitch, rows, columns, inner):
    """Write A·B + beta·C to C [rows, columns].

    Arrays are flat and start at their matrix; a pitch is the distance between rows. A is [rows, inner], or its
    transpose if ``a_transposed``; B likewise. BLAS is column-major, so it computes Cᵀ = Bᵀ·Aᵀ.
    """
    letters, sizes, factors = blas
    sizes[0], sizes[1], sizes[2] = columns, rows, inner
    sizes[3], sizes[4], sizes[5] = b_pitch, a_pitch, c_pitch
    factors[1] = beta
    size, factor = sizes.ctypes.data, factors.ctypes.data
    _call_address(
        gemm,
        (
            letters[b_transposed:].ctypes.data, letters[a_transposed:].ctypes.data, size, size + 4, size + 8, factor,
            b.ctypes.data, size + 12, a.ctypes.data, size + 16, factor + factors.itemsize, c.ctypes.data, size + 20,
        ),
    )  # fmt: skip


@noalloc
def multiply_columns(gemm, blas, columns, weight, layout, buffer, out, tile):
    """Add a tile's columns times their weights to out [N, C_out], or, through ``buffer``, to out [C_out, N]."""
    if layout.depthwise:
        multiply_depthwise(
            columns,
            weight[0, tile.first_sample : tile.first_sample + tile.samples],
            out[tile.first_pixel : tile.first_pixel + tile.pixels],
        )
        return
    inner, out_channels = tile.samples * layout.in_per_group, layout.out_per_group
    for group in range(weight.shape[0]):
        a = columns[group * tile.pixels * inner :]
        b = weight[group, tile.first_sample * layout.in_per_group :].reshape(-1)
        c = out.reshape(-1)[first_output_index(out, layout, group, tile) :]
        if layout.channels_first:
            product(
                gemm, blas, a, inner, 0, b, out_channels, 0, 0, buffer, out_channels, tile.pixels, out_channels, inner
            )
            add_transposed(buffer, c, out.shape[1], tile.pixels, out_channels)
        else:
            product(gemm, blas, a, inner, 0, b, out_channels, 0, 1, c, out.shape[1], tile.pixels, out_channels, inner)


@noalloc
def add_transposed(a, c, pitch, rows, columns):
    """Add the transpose of A [rows, columns] to C, whose rows are a pitch apart; flat arrays."""
    for block in range(0, rows, 16):  # values that share cache lines
        for j in range(columns):
            for i in range(block, block + 16 if block + 16 < rows else rows):
                c[np.uint64(j * pitch + i)] += a[np.uint64(i * columns + j)]


@noalloc
def accumulate_weight_gradient(gemm, blas, columns, grad, layout, grad_weight, tile):
    """Add the gradient of the weights from a tile's columns and the gradient of the output."""
    if layout.depthwise:
        depthwise_weight_gradient(
            columns,
            grad[tile.first_pixel : tile.first_pixel + tile.pixels],
            grad_weight[0, tile.first_sample : tile.first_sample + tile.samples],
        )
        return
    inner = tile.samples * layout.in_per_group
    out_channels = layout.out_per_group
    transposed = 1 if layout.channels_first else 0
    for group in range(grad_weight.shape[0]):
        a = columns[group * tile.pixels * inner :]
        b = grad.reshape(-1)[first_output_index(grad, layout, group, tile) :]
        c = grad_weight[group, tile.first_sample * layout.in_per_group :].reshape(-1)
        product(
            gemm, blas, a, inner, 1, b, grad.shape[1], transposed, 1, c, out_channels, inner, out_channels, tile.pixels
        )


@noalloc
def columns_gradient(gemm, blas, grad, weight, layout, grad_columns, tile):
    """Write the gradient of a tile's columns."""
    if layout.depthwise:
        depthwise_columns_gradient(
            grad[tile.first_pixel : tile.first_pixel + tile.pixels],
            weight[0, tile.first_sample : tile.first_sample + tile.samples],
            grad_columns,
        )
        return
    inner = tile.samples * layout.in_per_group
    out_channels = layout.out_per_group
    transposed = 1 if layout.channels_first else 0
    for group in range(weight.shape[0]):
        a = grad.reshape(-1)[first_output_index(grad, layout, group, tile) :]
        b = weight[group, tile.first_sample * layout.in_per_group :].reshape(-1)
        c = grad_columns[group * tile.pixels * inner :]
        product(
            gemm, blas, a, grad.shape[1], transposed, b, out_channels, 1, 0, c, inner, tile.pixels, inner, out_channels
        )


@noalloc
def first_output_index(y, layout, group, tile):
    """Return the index in the output of a group's first channel at a tile's first pixel."""
    channel = group * layout.out_per_group
    return channel * y.shape[1] + tile.first_pixel if layout.channels_first else tile.first_pixel * y.shape[1] + channel


@noalloc
def multiply_depthwise(columns, weight, total):
    """Add Σ_t w[t, c] columns[i, t, c] to total [T, C], each channel with its own weights."""
    samples, channels = weight.shape
    for i in range(total.shape[0]):
        row = total[i]
        for k in range(samples):
            source, factor = np.uint64((i * samples + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                row[j] += columns[source + j] * factor[j]


@noalloc
def depthwise_columns_gradient(grad, weight, grad_columns):
    """Write ∂L/∂columns[i, t, c] = w[t, c] ∂L/∂y[i, c]; grad [T, C]."""
    samples, channels = weight.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(samples):
            target, factor = np.uint64((i * samples + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                grad_columns[target + j] = row[j] * factor[j]


@noalloc
def depthwise_weight_gradient(columns, grad, grad_weight):
    """Add Σ_i columns[i, t, c] ∂L/∂y[i, c] to grad_weight [samples, C]."""
    samples, channels = grad_weight.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(samples):
            source, sums = np.uint64((i * samples + k) * channels), grad_weight[k]
            for j in range(np.uint64(channels)):
                sums[j] += columns[source + j] * row[j]
