"""Kernel of ``filters.denoise``: a linear fit at every pixel, weighted by the metric at the samples.

For the pixels p of one row, strip by strip, the kernel sums

    S_m = Σ_v w_v v^m,    T_b = Σ_v w_v f(p + v) v^b,
    w_v = s(p + v) (1 − vᵀ M(p + v) v − |g(p + v) − g(p)|²)₊⁸

over the offsets v of a window, for products v^m of up to two components and v^b of up to one, and solves the normal
equations S a = T. An image is a volume with one slice.

The two offsets ±dx share their powers: even ones need the sum of their weights, odd ones the difference.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from .jit import compiled, inlined
from .threads import run_tasks

__all__ = ["MAX_HALF", "fit_linear"]

# Pixels per strip: the sums of a strip fit in the L1 cache.
_STRIP = 128
# Maximum half-width of the window along the last axis.
MAX_HALF = 32
_PITCH = _STRIP + 2 * MAX_HALF
# Rows per task of a thread.
_ROWS = 8


def fit_linear(
    signal: Tensor, guide: Tensor, metric: Tensor, density: Tensor, halves: Sequence[int], ridge: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the value (C, *spatial) and the gradient (C, d, *spatial) of the fits; arguments as in ``filters``.

    ``ridge`` is added to the diagonal of the normal equations, relative to the sum of the weights.
    """
    dim = len(halves)
    volume = (1,) * (3 - dim)
    size = [n - 2 * h for n, h in zip(density.shape, halves, strict=True)]
    out = signal.new_empty(signal.shape[0], 1 + dim, *volume, *size)
    fields = [t.reshape(t.shape[0], *volume, *t.shape[1:]).numpy() for t in (signal, guide, metric, density[None])]
    units = np.eye(3, dtype=np.int64)[3 - dim :]
    terms = np.concatenate([np.zeros((1, 3), np.int64), units])  # [b, 3]: exponents
    products = terms[:, None] + terms[None]  # [b, b, 3]
    half = (*(0,) * (3 - dim), *halves)
    diagonal = np.array([0.0, *ridge], dtype=fields[0].dtype)
    rows = int(np.prod(out.shape[2:4]))

    def fit(start: int) -> None:
        _fit_rows(
            *fields[:3], fields[3][0], half, terms, products, diagonal, out.numpy(), start, min(start + _ROWS, rows)
        )

    run_tasks(fit, range(0, rows, _ROWS))
    out = out.reshape(*out.shape[:2], *size)
    return out[:, 0], out[:, 1:]


@inlined
def _weigh(local, guides, center, weights, dx, half, n):
    """Write the weights of the samples dx to the right and to the left."""
    step, zero = local.dtype.type(dx), local.dtype.type(0)
    right, left, second, third = np.uint64(half + dx), np.uint64(half - dx), np.uint64(_PITCH), np.uint64(2 * _PITCH)
    fourth, strip = np.uint64(3 * _PITCH), np.uint64(_STRIP)
    for i in range(np.uint64(n)):
        weights[i] = local[right + i] - step * (local[second + right + i] + step * local[third + right + i])
        weights[strip + i] = local[left + i] + step * (local[second + left + i] - step * local[third + left + i])
    for g in range(guides):
        middle, guide = np.uint64(g * _STRIP), np.uint64((4 + g) * _PITCH)
        for i in range(np.uint64(n)):
            a = local[guide + right + i] - center[middle + i]
            b = local[guide + left + i] - center[middle + i]
            weights[i] -= a * a
            weights[strip + i] -= b * b
    for i in range(np.uint64(n)):
        a, b = weights[i], weights[strip + i]
        a, b = a if a > zero else zero, b if b > zero else zero
        a *= a
        b *= b
        a *= a
        b *= b
        weights[i] = a * a * local[fourth + right + i]
        weights[strip + i] = b * b * local[fourth + left + i]


@inlined
def _add_moments(weights, sums, dx, n):
    """Add the weights times 1, dx, dx²."""
    x1 = weights.dtype.type(dx)
    x2, s1, s2 = x1 * x1, np.uint64(_STRIP), np.uint64(2 * _STRIP)
    for i in range(np.uint64(n)):
        both, difference = weights[i] + weights[s1 + i], weights[i] - weights[s1 + i]
        sums[i] += both
        sums[s1 + i] += x1 * difference
        sums[s2 + i] += x2 * both


@inlined
def _add_values(weights, local, sums, source, channel, dx, half, n):
    """Add the weighted values of a channel times 1, dx."""
    x1, strip = weights.dtype.type(dx), np.uint64(_STRIP)
    right, left = np.uint64(source * _PITCH + half + dx), np.uint64(source * _PITCH + half - dx)
    t0 = np.uint64((3 + 2 * channel) * _STRIP)
    t1 = t0 + strip
    for i in range(np.uint64(n)):
        a, b = weights[i] * local[right + i], weights[strip + i] * local[left + i]
        sums[t0 + i] += a + b
        sums[t1 + i] += x1 * (a - b)


@inlined
def _load(signal, guide, metric, density, z, y, x, dz, dy, local, n):
    """Load the samples of a row, with the quadratic form as a polynomial in dx: 1 − vᵀMv = c₀ − dx c₁ − dx² c₂."""
    real = local.dtype.type
    first = 0 if metric.shape[0] == 3 else 3
    one, fz, fy = real(1), real(dz), real(dy)
    for i in range(n):
        local[i] = one - fy * fy * metric[first, z, y, x + i]
        local[_PITCH + i] = (fy + fy) * metric[first + 1, z, y, x + i]
        local[2 * _PITCH + i] = metric[first + 2, z, y, x + i]
        local[3 * _PITCH + i] = density[z, y, x + i]
    if first:
        for i in range(n):
            local[i] -= fz * (fz * metric[0, z, y, x + i] + (fy + fy) * metric[1, z, y, x + i])
            local[_PITCH + i] += (fz + fz) * metric[2, z, y, x + i]
    for g in range(guide.shape[0]):
        for i in range(n):
            local[(4 + g) * _PITCH + i] = guide[g, z, y, x + i]
    for channel in range(signal.shape[0]):
        for i in range(n):
            local[(4 + guide.shape[0] + channel) * _PITCH + i] = signal[channel, z, y, x + i]


@inlined
def _eliminate(matrix, right, c, factor, size, n):
    """Solve the symmetric positive systems of a strip in place; ``factor`` them first, M = L D Lᵀ.

    The upper triangle of ``matrix`` becomes D Lᵀ.
    """
    if factor:
        for k in range(size):
            for i in range(k + 1, size):
                for j in range(i, size):
                    for p in range(n):
                        matrix[i, j, p] -= matrix[k, i, p] * matrix[k, j, p] / matrix[k, k, p]
    for k in range(size):
        for p in range(n):
            right[c, k, p] /= matrix[k, k, p]
        for i in range(k + 1, size):
            for p in range(n):
                right[c, i, p] -= matrix[k, i, p] * right[c, k, p]
    for k in range(size - 2, -1, -1):
        for i in range(k + 1, size):
            for p in range(n):
                right[c, k, p] -= matrix[k, i, p] / matrix[k, k, p] * right[c, i, p]


@inlined
def _combine(sums, first, exponents, dz, dy, target, n):
    """Add the sums of a row times dz^a dy^b; the third exponent selects the sum."""
    factor = sums.dtype.type(dz ** exponents[0] * dy ** exponents[1])
    start = np.uint64((first + exponents[2]) * _STRIP)
    for i in range(np.uint64(n)):
        target[i] += factor * sums[start + i]


@compiled
def _fit_rows(signal, guide, metric, density, halves, terms, products, ridge, out, start, stop):
    """Fit at the pixels of the rows start … stop − 1 of a volume, rows counted through all slices.

    Args:
        signal, guide: [C, D + 2 h_z, H + 2 h_y, W + 2 h_x], padded by the half-widths of the window.
        metric: [6, …] or, for an image, [3, …]: M, packed; padded in the same way.
        density: […]: the factors s of the weights.
        halves: half-widths (h_z, h_y, h_x) of the window.
        terms, products: [b, 3] and [b, b, 3]: exponents of the terms of the polynomial and of their products.
        ridge: [b]: added to the diagonal.
        out: [C, b, D, H, W]: the coefficients.
    """
    channels, guides, size = signal.shape[0], guide.shape[0], terms.shape[0]
    height, width = out.shape[3], out.shape[4]
    hz, hy, hx = halves
    center = np.empty(guides * _STRIP, signal.dtype)
    local = np.empty((4 + guides + channels) * _PITCH, signal.dtype)
    weights = np.empty(2 * _STRIP, signal.dtype)
    sums = np.empty((3 + 2 * channels) * _STRIP, signal.dtype)
    right = np.empty((channels, size, _STRIP), signal.dtype)
    matrix = np.empty((size, size, _STRIP), signal.dtype)
    for row in range(start, stop):
        z, y = row // height, row % height
        for x in range(0, width, _STRIP):
            n = min(_STRIP, width - x)
            for g in range(guides):
                for i in range(n):
                    center[g * _STRIP + i] = guide[g, z + hz, y + hy, x + hx + i]
            matrix[:] = 0
            right[:] = 0
            for dz in range(-hz, hz + 1):
                for dy in range(-hy, hy + 1):
                    _load(signal, guide, metric, density, z + dz + hz, y + dy + hy, x, dz, dy, local, n + 2 * hx)
                    sums[:] = 0
                    for dx in range(hx + 1):
                        _weigh(local, guides, center, weights, dx, hx, n)
                        if dx == 0:
                            weights[_STRIP:] = 0  # the two offsets are the same
                        _add_moments(weights, sums, dx, n)
                        for c in range(channels):
                            _add_values(weights, local, sums, 4 + guides + c, c, dx, hx, n)
                    for a in range(size):
                        for b in range(a, size):
                            _combine(sums, 0, products[a, b], dz, dy, matrix[a, b], n)
                        for c in range(channels):
                            _combine(sums, 3 + 2 * c, terms[a], dz, dy, right[c, a], n)
            for a in range(1, size):
                for i in range(n):
                    matrix[a, a, i] += ridge[a] * matrix[0, 0, i]
            for c in range(channels):
                _eliminate(matrix, right, c, c == 0, size, n)
                for k in range(size):
                    for i in range(n):
                        out[c, k, z, y, x + i] = right[c, k, i]
