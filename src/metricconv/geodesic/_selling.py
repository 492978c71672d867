"""Selling's decomposition of dual metrics, and the stencils of the scheme: numba kernels.

At each pixel D = M⁻¹ is written as Σ_i ρ_i e_i e_iᵀ with ρ_i ≥ 0 and K = d(d+1)/2 integer offsets e_i. The vectors of a
superbase (b_0, …, b_d) of ℤᵈ have sum 0, and any d of them determinant ±1. While a pair has b_iᵀDb_j > 0, Selling's
step replaces b_i by −b_i and adds b_i to the d − 1 vectors other than b_i, b_j (in 2-D it becomes b_i − b_j, up to
sign). Then ρ = −b_iᵀDb_j for each pair, and e is orthogonal to the other vectors.

=========== ==========================================================================================================
array       per pixel x, in row-major order
=========== ==========================================================================================================
offsets     (P, K) int32, address of x + e_i minus that of x
nodes       (P, N): ``KEY`` and K values, which are ∞ and change while distances are computed; K weights ρ_i; with drift
            K products ωᵀe_i. What a step reads of a pixel is in one place in memory
flags       (P,) uint32: bits 4i to 4i + 3 state whether x − e_i, x + e_i, x − 2e_i, x + 2e_i can be seen from x; bits
            24 + 2k and 25 + 2k whether the neighbor before or after x along axis k is used
=========== ==========================================================================================================

Axis neighbors are used only where the stencil leaves the domain, so that a pixel remains connected to its neighbors.
"""

import numpy as np

from ..ops.cpu.jit import compiled, inlined, noalloc

# Iterations of Selling's algorithm, which needs about as many as the anisotropy in the worst case.
_MOST_STEPS = 100_000
# Columns of ``nodes``: the key, then the values v_i.
KEY, VALUES = 0, 1
# Pairs of a superbase of ℤ³, each with the two other vectors.
_PAIRS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2), (1, 2, 0, 3), (1, 3, 0, 2), (2, 3, 0, 1))


@compiled
def build_stencils(metric, drift, domain, shape, begin, end, offsets, nodes, flags):
    """Fill the stencils of pixels begin to end; return the first pixel whose metric is not positive, or −1.

    ``metric`` (P, K) and ``drift`` (P, d), or (0, d), are those of pixels; ``domain`` (P,) is False at walls, (0,)
    without walls. ``shape`` is a tuple, so that loops over axes are unrolled.
    """
    dim = len(shape)
    count = dim * (dim + 1) // 2
    weights, drifts = VALUES + count, VALUES + 2 * count
    dual, base, vectors, rho = np.zeros((3, 3)), np.zeros((4, 3)), np.zeros((6, 3), np.int64), np.zeros(6)
    here, step = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for x in range(begin, end):
        flags[x] = 0
        nodes[x, :weights] = np.inf
        if len(domain) and not domain[x]:
            offsets[x] = 0
            nodes[x, weights:] = 0
            continue
        if not invert(metric, x, dim, dual):
            return x
        if len(drift):
            square = 0.0
            for i in range(dim):
                for j in range(dim):
                    square += drift[x, i] * dual[i, j] * drift[x, j]
            if not square < 1:
                return x
        decompose(dual, dim, base, vectors, rho)
        rest = x
        for k in range(dim - 1, -1, -1):
            here[k] = rest % shape[k]
            rest //= shape[k]
        for i in range(count):
            address, along = 0, 0.0
            for k in range(dim):
                address = address * shape[k] + vectors[i, k]
                if len(drift):
                    along += drift[x, k] * vectors[i, k]
            offsets[x, i], nodes[x, weights + i] = address, rho[i]
            if len(drift):
                nodes[x, drifts + i] = along
        if not len(domain) and in_interior(shape, here, vectors, count):
            for i in range(count):
                flags[x] |= np.uint32((15 if rho[i] > 0 else 0) << 4 * i)
            continue
        complete = True
        for i in range(count):
            if rho[i] <= 0:
                continue
            for side in range(4):
                factor = (1 - 2 * ((side + 1) % 2)) * (1 + side // 2)  # −1, 1, −2, 2
                for k in range(dim):
                    step[k] = factor * vectors[i, k]
                if visible(domain, shape, here, step):
                    flags[x] |= np.uint32(1 << (4 * i + side))
                elif side < 2:
                    complete = False
        if not complete:
            for k in range(dim):
                for side in range(2):
                    step[:] = 0
                    step[k] = 2 * side - 1
                    if visible(domain, shape, here, step):
                        flags[x] |= np.uint32(1 << (24 + 2 * k + side))
    return -1


@inlined
def invert(metric, x, dim, dual):
    """Write M⁻¹ of a pixel; return whether M is positive definite and M⁻¹ finite."""
    if dim == 2:
        a, b, d = float(metric[x, 0]), float(metric[x, 1]), float(metric[x, 2])
        det = a * d - b * b
        if not (a > 0 and det > 0 and det < np.inf):
            return False
        dual[0, 0], dual[0, 1], dual[1, 1] = d / det, -b / det, a / det
        dual[1, 0] = dual[0, 1]
        return True
    a, b, c = float(metric[x, 0]), float(metric[x, 1]), float(metric[x, 2])
    d, e, f = float(metric[x, 3]), float(metric[x, 4]), float(metric[x, 5])
    first, second, third = d * f - e * e, c * e - b * f, b * e - c * d
    det = a * first + b * second + c * third
    if not (a > 0 and a * d - b * b > 0 and det > 0 and det < np.inf):
        return False
    dual[0, 0], dual[0, 1], dual[0, 2] = first / det, second / det, third / det
    dual[1, 1], dual[1, 2], dual[2, 2] = (a * f - c * c) / det, (b * c - a * e) / det, (a * d - b * b) / det
    dual[1, 0], dual[2, 0], dual[2, 1] = dual[0, 1], dual[0, 2], dual[1, 2]
    return True


@inlined
def product(dual, base, i, j, dim):
    """Return b_iᵀ D b_j."""
    total = 0.0
    for k in range(dim):
        for m in range(dim):
            total += base[i, k] * dual[k, m] * base[j, m]
    return total


@noalloc
def decompose(dual, dim, base, vectors, rho):
    """Write the offsets e_i and weights ρ_i of a matrix."""
    base[:] = 0
    for k in range(dim):
        base[k, k] = 1
        base[dim, k] = -1
    count = dim * (dim + 1) // 2
    for _ in range(_MOST_STEPS):
        changed = False
        for pair in range(count):
            i, j, k, m = pair_of(pair, dim)
            found = product(dual, base, i, j, dim)
            if found > 0 and found > 1e-14 * (product(dual, base, i, i, dim) + product(dual, base, j, j, dim)):
                for axis in range(dim):
                    old = base[i, axis]
                    base[i, axis] = -old
                    base[k, axis] += old
                    if dim == 3:
                        base[m, axis] += old
                    else:
                        base[k, axis] += old
                changed = True
        if not changed:
            break
    for pair in range(count):
        i, j, k, m = pair_of(pair, dim)
        rho[pair] = max(-product(dual, base, i, j, dim), 0.0)
        if dim == 2:
            vectors[pair, 0], vectors[pair, 1] = -base[k, 1], base[k, 0]
        else:
            for axis in range(3):
                p, q = (axis + 1) % 3, (axis + 2) % 3
                vectors[pair, axis] = base[k, p] * base[m, q] - base[k, q] * base[m, p]


@inlined
def pair_of(pair, dim):
    """Return the vectors (i, j) of a pair and the other vectors."""
    if dim == 2:
        return (0, 1, 2, 2) if pair == 0 else ((0, 2, 1, 1) if pair == 1 else (1, 2, 0, 0))
    return _PAIRS[pair]


@inlined
def in_interior(shape, here, vectors, count):
    """Return whether twice each offset, in both directions, stays in the image."""
    for k in range(len(shape)):
        for i in range(count):
            reach = 2 * abs(vectors[i, k])
            if here[k] < reach or here[k] + reach >= shape[k]:
                return False
    return True


@noalloc
def visible(domain, shape, here, step):
    """Return whether the segment from a pixel by an integer step stays in the image and meets no wall.

    Where it passes between pixels diagonally, all pixels beside it count, so that diagonal walls are closed.
    """
    dim, length = len(shape), 0
    for k in range(dim):
        if not 0 <= here[k] + step[k] < shape[k]:
            return False
        length = max(length, abs(step[k]))
    if len(domain) == 0:
        return True
    address = 0
    for k in range(dim):
        address = address * shape[k] + here[k]
    for n in range(1, length + 1):
        following = 0
        for k in range(dim):
            following = following * shape[k] + here[k] + rounded(step[k] * n, length)
        pitch = 1
        for k in range(dim - 1, -1, -1):
            move = rounded(step[k] * n, length) - rounded(step[k] * (n - 1), length)
            if move and not (domain[address + move * pitch] and domain[following - move * pitch]):
                return False
            pitch *= shape[k]
        if not domain[following]:
            return False
        address = following
    return True


@inlined
def rounded(numerator, denominator):
    """Return the quotient rounded to the nearest integer, the same for both signs."""
    size = (2 * abs(numerator) + denominator) // (2 * denominator)
    return size if numerator >= 0 else -size


@compiled
def build_readers(offsets, flags, pitches):
    """Return the reverse stencils: for each pixel y, the pixels that read it.

    Entries start[y] to start[y + 1] of ``readers`` are 16 x + c: x reads y as x − e_i for c = 2i, as x + e_i for
    c = 2i + 1, as a neighbor along an axis for c = 12.
    """
    pixels, count = offsets.shape
    start = np.zeros(pixels + 1, np.int64)
    for x in range(pixels):
        for i in range(count):
            if flags[x] >> np.uint32(4 * i) & np.uint32(1):
                start[x - offsets[x, i] + 1] += 1
            if flags[x] >> np.uint32(4 * i + 1) & np.uint32(1):
                start[x + offsets[x, i] + 1] += 1
        if flags[x] >> np.uint32(24):
            for side in range(2 * len(pitches)):
                if flags[x] >> np.uint32(24 + side) & np.uint32(1):
                    start[x + (2 * (side % 2) - 1) * pitches[side // 2] + 1] += 1
    for x in range(pixels):
        start[x + 1] += start[x]
    readers = np.empty(start[pixels], np.uint32)
    # Each start is advanced to the end of its entries, which is where those of the next pixel start.
    for x in range(pixels):
        for i in range(count):
            for side in range(2):
                if flags[x] >> np.uint32(4 * i + side) & np.uint32(1):
                    y = x + (2 * side - 1) * offsets[x, i]
                    readers[start[y]] = 16 * x + 2 * i + side
                    start[y] += 1
        if flags[x] >> np.uint32(24):
            for side in range(2 * len(pitches)):
                if flags[x] >> np.uint32(24 + side) & np.uint32(1):
                    y = x + (2 * (side % 2) - 1) * pitches[side // 2]
                    readers[start[y]] = 16 * x + 12
                    start[y] += 1
    for x in range(pixels, 0, -1):
        start[x] = start[x - 1]
    start[0] = 0
    return start, readers
