"""Gradients of distances: numba kernels.

With the weights r_i and values v_i of the differences that determine u(x), and S = Σ_i r_i (u − v_i),

    ∂u/∂v_i = r_i (u − v_i) / S,      ∂u/∂r_i = −(u − v_i)² / (2S).

Each pixel passes its gradient on after all that were computed from it. A drift that varies makes a few pixels depend on
each other, in strongly connected components of mostly two or three pixels. The pixels of a component pass gradients to
each other until nothing is left, before the next component.
"""

import numpy as np

from ..ops.cpu.jit import compiled, noalloc
from ._marching import EDGE, SEED
from ._selling import decompose, invert, pair_of

# Rounds of a component, and the part of the largest gradient that need not be passed on.
_MOST_ROUNDS, _NEGLIGIBLE = 10_000, 1e-10


@compiled
def propagate(
    metric, drift, pitches, offsets, weights, drifts, distance, choice, gradient, grad_metric, grad_drift,
):  # fmt: skip
    """Add the gradients by the metric and the drift, given those by distances; leave those by seeds in ``gradient``.

    ``gradient`` (P,) is that of distances on entry. On return it is 0 except at pixels whose value is a seed's.
    """
    order, ends = dependents_first(distance, choice, offsets, pitches)
    count = len(weights[0])
    state = (metric, drift, pitches, offsets, weights, drifts, distance, choice)
    work = (
        np.zeros(count), np.zeros(count), np.zeros((3, 3)), np.zeros((4, 3)), np.zeros((6, 3), np.int64), np.zeros(6),
        np.zeros((3, 3)), np.zeros((3, 3)),
    )  # fmt: skip
    largest = 0.0
    for x in range(len(gradient)):
        if not distance[x] < np.inf:
            gradient[x] = 0
        largest = max(largest, abs(gradient[x]))
    begin = 0
    for end in ends:
        for _ in range(_MOST_ROUNDS):
            rest = 0.0
            for n in range(begin, end):
                x = order[n]
                if gradient[x] != 0 and choice[x] != SEED:
                    pass_on(x, state, work, gradient, grad_metric, grad_drift)
            for n in range(begin, end - 1 if end - begin > 1 else begin):
                rest = max(rest, abs(gradient[order[n]]))
            if rest <= _NEGLIGIBLE * largest:
                break
        for n in range(begin, end if end - begin > 1 else begin):
            if choice[order[n]] != SEED:
                gradient[order[n]] = 0
        begin = end


@noalloc
def pass_on(x, state, work, gradient, grad_metric, grad_drift):
    """Move the gradient of a pixel to the pixels, the metric and the drift that its value was computed from."""
    metric, drift, pitches, offsets, weights, drifts, distance, choice = state
    values, factors, dual, base, vectors, rho, by_dual, product = work
    dim, count, asymmetric = len(pitches), len(values), len(drift) > 0
    g, chosen = gradient[x], np.int64(choice[x])
    gradient[x] = 0
    if choice[x] >= EDGE:
        side = chosen & 7
        axis, sign = side // 2, 2 * (side % 2) - 1
        diagonal = axis * dim - axis * (axis - 1) // 2
        gradient[x + sign * pitches[axis]] += g
        grad_metric[x, diagonal] += 0.5 * g / np.sqrt(float(metric[x, diagonal]))
        if asymmetric:
            grad_drift[x, axis] -= sign * g
        return
    total = 0.0
    for i in range(count):
        code = chosen >> (3 * i) & 7
        factors[i] = 0
        if not code:
            continue
        side = 1 if code % 2 == 0 else -1
        along = -side * float(drifts[x, i]) if asymmetric else 0.0
        values[i] = distance[x + side * offsets[x, i]] + along
        factors[i] = weights[x, i]
        if code > 2:
            values[i] += (values[i] - distance[x + 2 * side * offsets[x, i]] - 2 * along) / 3
            factors[i] *= 2.25
        total += factors[i] * (distance[x] - values[i])
    if not total > 0:
        return
    invert(metric, x, dim, dual)
    decompose(dual, dim, base, vectors, rho)
    by_dual[:] = 0
    for i in range(count):
        if factors[i] <= 0:
            continue
        code = chosen >> (3 * i) & 7
        side = 1 if code % 2 == 0 else -1
        y, difference = x + side * offsets[x, i], distance[x] - values[i]
        part = g * factors[i] * difference / total
        slope = -side * part
        if code > 2:
            gradient[y] += part * 4 / 3
            gradient[y + side * offsets[x, i]] -= part / 3
            slope *= 2 / 3
        else:
            gradient[y] += part
        by_weight = -0.5 * g * difference * difference / total * (2.25 if code > 2 else 1.0)
        first, second, _, _ = pair_of(i, dim)
        for k in range(dim):
            for m in range(dim):
                by_dual[k, m] -= 0.5 * by_weight * (base[first, k] * base[second, m] + base[first, m] * base[second, k])
        if asymmetric:
            for k in range(dim):
                grad_drift[x, k] += slope * vectors[i, k]
    # dL/dM = −D (dL/dD) D; an entry off the diagonal stands for two.
    for k in range(dim):
        for m in range(dim):
            product[k, m] = 0
            for j in range(dim):
                product[k, m] += dual[k, j] * by_dual[j, m]
    entry = 0
    for k in range(dim):
        for m in range(k, dim):
            by_metric = 0.0
            for j in range(dim):
                by_metric -= product[k, j] * dual[j, m]
            grad_metric[x, entry] += by_metric if k == m else 2 * by_metric
            entry += 1


@compiled
def dependents_first(distance, choice, offsets, pitches):
    """Return the pixels with finite distance, each component after those computed from it, and the components' ends.

    By Tarjan's algorithm, which finds components in the reverse of this order.
    """
    pixels, most = len(choice), 2 * offsets.shape[1]
    index, low, tried = np.full(pixels, -1, np.int32), np.empty(pixels, np.int32), np.zeros(pixels, np.uint8)
    order, ends, neighbors = np.empty(pixels, np.int32), np.empty(pixels, np.int32), np.empty(most, np.int64)
    path, open_pixels = np.empty(pixels, np.int32), np.empty(pixels, np.int32)
    depth = opened = found = written = components = 0
    for root in range(pixels):
        if index[root] >= 0 or not distance[root] < np.inf:
            continue
        path[0], depth = root, 1
        while depth:
            x = np.int64(path[depth - 1])
            if index[x] < 0:
                index[x] = low[x] = found
                found += 1
                open_pixels[opened] = x
                opened += 1
            count = used_neighbors(x, choice, offsets, pitches, neighbors)
            if tried[x] < count:
                y = neighbors[tried[x]]
                if index[y] < 0:
                    path[depth] = y
                    depth += 1
                else:
                    if index[y] < pixels:  # still open
                        low[x] = min(low[x], low[y])
                    tried[x] += 1
                continue
            depth -= 1
            if low[x] == index[x]:
                while True:
                    opened -= 1
                    y = np.int64(open_pixels[opened])
                    index[y] = pixels
                    order[written] = y
                    written += 1
                    if y == x:
                        break
                ends[components] = written
                components += 1
    # From the last component to the first; a component starts where the one before it ends.
    bounds = np.empty(components, np.int32)
    for n in range(components):
        bounds[n] = written - (ends[components - 2 - n] if n < components - 1 else 0)
    return order[:written][::-1].copy(), bounds


@noalloc
def used_neighbors(x, choice, offsets, pitches, neighbors):
    """Write the pixels that a pixel was computed from, and return their number."""
    chosen, used = np.int64(choice[x]), 0
    if choice[x] >= EDGE:
        neighbors[0] = x + (2 * (chosen & 1) - 1) * pitches[(chosen & 7) // 2]
        return 1
    if choice[x] == SEED:
        return 0
    for i in range(offsets.shape[1]):
        code = chosen >> (3 * i) & 7
        for reach in range(1, 1 + (code > 0) + (code > 2)):
            neighbors[used] = x + reach * (1 if code % 2 == 0 else -1) * offsets[x, i]
            used += 1
    return used


@compiled
def seed_gradients(seeds, seed_values, distance, choice, gradient, grad_seeds):
    """Move the gradient of each pixel with a given value to the first seed of that value."""
    for n in range(len(seeds)):
        x = seeds[n]
        if choice[x] == SEED and seed_values[n] == distance[x]:
            grad_seeds[n] = gradient[x]
            gradient[x] = 0
