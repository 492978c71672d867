"""Shortest paths by descent along the solution: numba kernel.

At a pixel, the path arrives in direction D(∇u − ω), which is Σ_i ρ_i (u − v_i) (±e_i) for the differences that
determine u. Directions are interpolated multilinearly between pixels.
"""

import numpy as np

from ..ops.cpu.jit import compiled, noalloc
from ._marching import EDGE, SEED, neighbor_before
from ._selling import decompose, invert

# Steps without descent after which the path continues at a neighboring pixel.
_PATIENCE = 12


@compiled
def trace(metric, drift, shape, pitches, offsets, weights, drifts, distance, choice, start, end, step, points):
    """Write the points of a path from its end to its start, and return their number; 0 if there are too many."""
    dim = len(shape)
    dual, base, vectors, rho = np.zeros((3, 3)), np.zeros((4, 3)), np.zeros((6, 3), np.int64), np.zeros(6)
    work = (dual, base, vectors, rho)
    field = (metric, drift, offsets, weights, drifts, distance, choice)
    here, probe, middle, flow = end.copy(), end.copy(), np.zeros(dim), np.zeros(dim)
    points[0] = end
    count, least, waited = 1, np.inf, 0
    while count < len(points) - 1:
        pixel = lowest_corner(shape, distance, here)
        if pixel < 0:
            return 0
        if choice[pixel] == SEED:
            points[count] = start
            return count + 1
        value = 0.0
        if waited < _PATIENCE:
            interpolated(field, shape, here, start, flow, work)
            for k in range(dim):
                middle[k] = min(max(here[k] - 0.5 * step * flow[k], 0.0), shape[k] - 1.0)
            value = interpolated(field, shape, middle, start, flow, work)
            for k in range(dim):
                probe[k] = min(max(here[k] - step * flow[k], 0.0), shape[k] - 1.0)
            value = interpolated(field, shape, probe, start, middle, work)
        if waited >= _PATIENCE or not value < np.inf:
            # Continue at the pixel before the lowest corner.
            pixel = neighbor_before(pixel, distance[pixel], choice, offsets, weights, drifts, pitches, distance)
            for k in range(dim - 1, -1, -1):
                probe[k] = pixel % shape[k]
                pixel //= shape[k]
            value, waited, least = least, 0, np.inf
        here[:] = probe
        points[count] = here
        count += 1
        if value < least:
            least, waited = value, 0
        else:
            waited += 1
    return 0


@noalloc
def interpolated(field, shape, position, start, flow, work):
    """Write the interpolated unit direction at a position; return the distance there, ∞ if no corner is reached."""
    metric, drift, offsets, weights, drifts, distance, choice = field
    dual, base, vectors, rho = work
    dim, count = len(shape), offsets.shape[1]
    flow[:] = 0
    total, mass = 0.0, 0.0
    for corner in range(2**dim):
        x, share = 0, 1.0
        for k in range(dim):
            low = min(int(position[k]), shape[k] - 1)
            part = position[k] - low
            high = corner >> k & 1
            share *= part if high else 1 - part
            x = x * shape[k] + min(low + high, shape[k] - 1)
        if share <= 0 or not distance[x] < np.inf:
            continue
        size, chosen = 0.0, np.int64(choice[x])
        direction0 = direction1 = direction2 = 0.0
        if choice[x] == SEED:
            rest = x
            for k in range(dim - 1, -1, -1):
                along = rest % shape[k] - start[k]
                rest //= shape[k]
                direction0 += along if k == 0 else 0.0
                direction1 += along if k == 1 else 0.0
                direction2 += along if k == 2 else 0.0
        elif choice[x] >= EDGE:
            axis, sign = (chosen & 7) // 2, 1 - 2 * (chosen & 1)
            direction0 = sign if axis == 0 else 0.0
            direction1 = sign if axis == 1 else 0.0
            direction2 = sign if axis == 2 else 0.0
        else:
            invert(metric, x, dim, dual)
            decompose(dual, dim, base, vectors, rho)
            for i in range(count):
                code = chosen >> (3 * i) & 7
                if not code:
                    continue
                side = 1 if code % 2 == 0 else -1
                along = -side * float(drifts[x, i]) if len(drift) else 0.0
                difference = distance[x] - distance[x + side * offsets[x, i]] - along
                if code > 2:
                    behind = distance[x + 2 * side * offsets[x, i]] + 2 * along
                    difference += 0.5 * (distance[x] - 2 * (distance[x] - difference) + behind)
                weight = -side * weights[x, i] * difference
                direction0 += weight * vectors[i, 0]
                direction1 += weight * vectors[i, 1]
                direction2 += weight * vectors[i, 2]
        size = np.sqrt(direction0**2 + direction1**2 + direction2**2)
        mass += share
        total += share * distance[x]
        if size > 0:
            flow[0] += share * direction0 / size
            flow[1] += share * direction1 / size
            if dim == 3:
                flow[2] += share * direction2 / size
    if mass <= 0:
        return np.inf
    size = 0.0
    for k in range(dim):
        size += flow[k] * flow[k]
    for k in range(dim):
        flow[k] /= max(np.sqrt(size), 1e-12)
    return total / mass


@noalloc
def lowest_corner(shape, distance, position):
    """Return the corner of the cell around a position with the smallest distance, −1 if none is reached."""
    dim, least, found = len(shape), np.inf, -1
    for corner in range(2**dim):
        x, used = 0, True
        for k in range(dim):
            low = min(int(position[k]), shape[k] - 1)
            high = corner >> k & 1
            used = used and (not high or position[k] > low)
            x = x * shape[k] + min(low + high, shape[k] - 1)
        if used and distance[x] < least:
            least, found = distance[x], x
    return found
