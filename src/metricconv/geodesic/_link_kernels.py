"""Links between pixels, and the flow along them: numba kernels.

``ends`` (P, 2K) and ``weights`` (P, 2K) are as in ``_links.Links``, transposed. ``values`` are (P, C).
"""

import numpy as np

from ..ops.cpu.jit import compiled
from ._selling import decompose

__all__ = ["build_links", "flow", "largest_outflow"]


@compiled
def build_links(matrices, shape, begin, end, ends, weights):
    """Fill the links of pixels begin to end; return the largest step along the first axis."""
    dim, count = len(shape), matrices.shape[1]
    dual, base, vectors, rho = np.zeros((3, 3)), np.zeros((4, 3)), np.zeros((6, 3), np.int64), np.zeros(6)
    here = np.zeros(3, np.int64)
    reach = 0
    for x in range(begin, end):
        entry = 0
        for i in range(dim):
            for j in range(i, dim):
                dual[i, j] = matrices[x, entry]
                dual[j, i] = matrices[x, entry]
                entry += 1
        decompose(dual, dim, base, vectors, rho)
        rest = x
        for k in range(dim - 1, -1, -1):
            here[k] = rest % shape[k]
            rest //= shape[k]
        for link in range(2 * count):
            sign = 2 * (link % 2) - 1
            address, inside = 0, True
            for k in range(dim):
                position = here[k] + sign * vectors[link // 2, k]
                inside = inside and 0 <= position < shape[k]
                address = address * shape[k] + position
            if inside and rho[link // 2] > 0:
                ends[x, link], weights[x, link] = address, rho[link // 2] / 2
                reach = max(reach, abs(vectors[link // 2, 0]))
            else:
                ends[x, link], weights[x, link] = x, 0
    return reach


@compiled
def largest_outflow(ends, weights):
    """Return the largest sum of weights at a pixel, of its own links and of those that end there."""
    pixels, count = ends.shape
    total = np.zeros(pixels, weights.dtype)
    for x in range(pixels):
        for link in range(count):
            total[x] += weights[x, link]
            total[ends[x, link]] += weights[x, link]
    return total.max()


@compiled
def flow(values, time, begin, end, ends, weights, result):
    """Add the flow along the links of pixels begin to end to ``result``."""
    for x in range(begin, end):
        for link in range(ends.shape[1]):
            other, weight = ends[x, link], time * weights[x, link]
            for c in range(values.shape[1]):
                change = weight * (values[other, c] - values[x, c])
                result[x, c] += change
                result[other, c] -= change
