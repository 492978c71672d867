"""Matrix products inside kernels, by the BLAS that torch brings with it."""

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import compiled, inner


@functools.cache
def gemm_address(dtype: torch.dtype) -> int:
    """Return where the BLAS's product of matrices of a dtype starts, 0 where it cannot be found."""
    name = {torch.float32: "sgemm_", torch.float64: "dgemm_"}[dtype]
    function = _find(name)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def set_blas_threads(count: int) -> int:
    """Set how many threads MKL takes for this one, 0 for as many as torch says; return what was set before."""
    setter = _find("MKL_Set_Num_Threads_Local")
    return 0 if setter is None else setter(count)


@functools.cache
def _find(name: str) -> Any:
    """Return a function of torch's library, or of those it needs; None where there is none of that name."""
    folder = Path(torch.__file__).parent / "lib"
    for file in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            return getattr(ctypes.CDLL(str(folder / file)), name)
        except (OSError, AttributeError):
            continue
    return None


@intrinsic
def _call(typing: Any, address: Any, pointers: Any) -> Any:
    """Call the function at an address with pointers, given as integers."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, packed = arguments
        values = cgutils.unpack_tuple(builder, packed)
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(start, kind.as_pointer()), values)
        return context.get_dummy_value()

    return types.void(address, pointers), build


@compiled
def product_scratch(like):
    """Return what ``product`` passes to BLAS by address: the letters N and T, six sizes, two factors."""
    letters = np.empty(2, np.uint8)
    letters[0], letters[1] = 78, 84
    return letters, np.empty(6, np.int32), np.ones(2, like.dtype)


@inner
def product(gemm, scratch, a, a_pitch, a_turned, b, b_pitch, b_turned, keep, c, c_pitch, rows, columns, inner):
    """Write A·B, plus keep·C, to C [rows, columns]: flat arrays that start at their matrices, rows a pitch apart.

    A is [rows, inner], or its transpose where it is turned, and B likewise. BLAS counts by columns, and so sees
    Cᵀ = Bᵀ·Aᵀ.
    """
    letters, sizes, factors = scratch
    sizes[0], sizes[1], sizes[2] = columns, rows, inner
    sizes[3], sizes[4], sizes[5] = b_pitch, a_pitch, c_pitch
    factors[1] = keep
    size, factor = sizes.ctypes.data, factors.ctypes.data
    _call(
        gemm,
        (
            letters[b_turned:].ctypes.data, letters[a_turned:].ctypes.data, size, size + 4, size + 8, factor,
            b.ctypes.data, size + 12, a.ctypes.data, size + 16, factor + factors.itemsize, c.ctypes.data, size + 20,
        ),
    )  # fmt: skip


@inner
def contract(gemm, scratch, columns, weight, layout, room, out, tile):
    """Add a tile's columns, times their weights, to out [N, C_out]; by way of ``room`` to [C_out, N], if planar."""
    if layout.each:
        weigh_each(columns, weight[0, tile.tap : tile.tap + tile.depth], out[tile.pixel : tile.pixel + tile.size])
        return
    inner, outs = tile.depth * layout.per_group, layout.outs_per_group
    for group in range(weight.shape[0]):
        a = columns[group * tile.size * inner :]
        b = weight[group, tile.tap * layout.per_group :].reshape(-1)
        c = out.reshape(-1)[first_of(out, layout, group, tile) :]
        if layout.planar:
            product(gemm, scratch, a, inner, 0, b, outs, 0, 0, room, outs, tile.size, outs, inner)
            add_turned(room, c, out.shape[1], tile.size, outs)
        else:
            product(gemm, scratch, a, inner, 0, b, outs, 0, 1, c, out.shape[1], tile.size, outs, inner)


@inner
def add_turned(a, c, pitch, rows, columns):
    """Add the transpose of A [rows, columns] to C, whose rows are a pitch apart; flat arrays."""
    for block in range(0, rows, 16):  # numbers that share the lines of a cache
        for j in range(columns):
            for i in range(block, min(block + 16, rows)):
                c[np.uint64(j * pitch + i)] += a[np.uint64(i * columns + j)]


@inner
def contract_weight(gemm, scratch, columns, grad, layout, total, tile):
    """Add what a tile's columns and the output's gradient say about the weights."""
    if layout.each:
        sum_each(columns, grad[tile.pixel : tile.pixel + tile.size], total[0, tile.tap : tile.tap + tile.depth])
        return
    inner, outs, turned = tile.depth * layout.per_group, layout.outs_per_group, 1 if layout.planar else 0
    for group in range(total.shape[0]):
        a = columns[group * tile.size * inner :]
        b = grad.reshape(-1)[first_of(grad, layout, group, tile) :]
        c = total[group, tile.tap * layout.per_group :].reshape(-1)
        product(gemm, scratch, a, inner, 1, b, grad.shape[1], turned, 1, c, outs, inner, outs, tile.size)


@inner
def spread(gemm, scratch, grad, weight, layout, columns, tile):
    """Write the gradient of a tile's columns."""
    if layout.each:
        spread_each(grad[tile.pixel : tile.pixel + tile.size], weight[0, tile.tap : tile.tap + tile.depth], columns)
        return
    inner, outs, turned = tile.depth * layout.per_group, layout.outs_per_group, 1 if layout.planar else 0
    for group in range(weight.shape[0]):
        a = grad.reshape(-1)[first_of(grad, layout, group, tile) :]
        b = weight[group, tile.tap * layout.per_group :].reshape(-1)
        c = columns[group * tile.size * inner :]
        product(gemm, scratch, a, grad.shape[1], turned, b, outs, 1, 0, c, inner, tile.size, inner, outs)


@inner
def first_of(y, layout, group, tile):
    """Return where a group's first channel at a tile's first pixel stands in the output, or in its gradient."""
    channel = group * layout.outs_per_group
    return channel * y.shape[1] + tile.pixel if layout.planar else tile.pixel * y.shape[1] + channel


@inner
def weigh_each(columns, weight, total):
    """Add Σ_t w[t, c] columns[i, t, c] to total [T, C]: each channel with weights of its own."""
    depth, channels = weight.shape
    for i in range(total.shape[0]):
        row = total[i]
        for k in range(depth):
            of, factor = np.uint64((i * depth + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                row[j] += columns[of + j] * factor[j]


@inner
def spread_each(grad, weight, grad_columns):
    """Write ∂L/∂columns[i, t, c] = w[t, c] ∂L/∂y[i, c]; grad [T, C]."""
    depth, channels = weight.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(depth):
            to, factor = np.uint64((i * depth + k) * channels), weight[k]
            for j in range(np.uint64(channels)):
                grad_columns[to + j] = row[j] * factor[j]


@inner
def sum_each(columns, grad, total):
    """Add Σ_i columns[i, t, c] ∂L/∂y[i, c] to total [taps, C]."""
    depth, channels = total.shape
    for i in range(grad.shape[0]):
        row = grad[i]
        for k in range(depth):
            of, sums = np.uint64((i * depth + k) * channels), total[k]
            for j in range(np.uint64(channels)):
                sums[j] += columns[of + j] * row[j]
