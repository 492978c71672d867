"""Loops over the pixels of a strip that several kernels share.

Rows are passed as an array and a row index: creating a view of a row costs more than many of these loops.
"""

from .jit import noalloc

# Pixels per strip: its buffers fill half of the L1 cache, and the overhead per sample is small.
STRIP = 512


@noalloc
def add_scaled(factor, source, row, source_start, target, target_row, target_start, n):
    """Add a multiple of one row of an array to a row of another, each from a start column on."""
    for i in range(n):
        target[target_row, target_start + i] += factor * source[row, source_start + i]


@noalloc
def fill(value, target, n):
    """Set n elements to a value."""
    for i in range(n):
        target[i] = value


@noalloc
def extend_range(address, n, written):
    """Extend the range ``written`` (first, last) to contain n addresses."""
    low, high = written[0], written[1]
    for i in range(n):
        low, high = low if low < address[i] else address[i], high if high > address[i] else address[i]
    written[0], written[1] = low, high


@noalloc
def multiply_by_slice_weight(z_slice, upper_weight, values, n):
    """Multiply values by the interpolation weight of a slice: the lower (0) or the upper (1) of a sample's two."""
    for i in range(n):
        values[i] *= upper_weight[0, i] if z_slice else values.dtype.type(1) - upper_weight[0, i]
