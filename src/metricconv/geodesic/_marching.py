"""Fast marching on the stencils of _selling.py: numba kernels.

The distance u solves ‖∇u − ω‖_D = 1. Along e_i, the difference of u − ωᵀx towards the neighbor y = x ∓ e_i is
u(x) − v_i with v_i = u(y) ± ωᵀe_i, the smaller of both sides, and

    Σ_i ρ_i (u(x) − v_i)₊² = 1.

Pixels are accepted in increasing order of u. Without drift this is causal: v_i counts only if u(y) < u(x), and each
pixel is accepted once. With drift u(y) may be larger; a pixel whose value still decreases, by more than a tolerance
times its difference to the smallest v_i, is accepted again.

Of order 2: when a pixel is accepted, differences become those of order 2, (3 u(x) − 4 u(y) + u(y')) / 2 with
y' = x ∓ 2e_i, for the offsets where y and y' are accepted and the second difference is at most half of the first.

=========== ==========================================================================================================
array       per pixel
=========== ==========================================================================================================
key         best value so far, of order 1: the position in the queue
distance    value at the last acceptance, ∞ before
choice      differences of the value: 3 bits per offset (0 none, 1 towards x − e_i, 2 towards x + e_i, +2 for order 2);
            ``EDGE`` + side for the length of an edge along an axis, ``SEED`` for a given value, 0 for none
stamp       number of acceptances before the last one of the pixel
label       label of the given value that the pixel is reached from
=========== ==========================================================================================================
"""

import numpy as np

from ..ops.cpu.jit import compiled, inlined, noalloc

EDGE, SEED = np.uint32(1 << 31), np.uint32(1 << 30)
# Second differences of at most this fraction of the first are used.
_SMOOTH = 0.5


@compiled
def march(
    metric, drift, pitches, offsets, weights, drifts, flags, start, readers,
    seeds, seed_values, seed_labels, targets, limit, second_order, tolerance, most_visits,
    key, distance, choice, stamp, label,
):  # fmt: skip
    """Fill the arrays of the table above; return the number of acceptances, at most ``most_visits``.

    ``limit``: distance beyond which pixels need not be computed. ``targets``: pixels after which to stop, or none.
    ``stamp`` and ``label`` may be empty if they are not needed.
    """
    count, asymmetric = offsets.shape[1], len(drift) > 0
    state = (metric, drift, pitches, offsets, weights, drifts, flags, distance)
    values, factors, codes = np.empty(count), np.empty(count), np.empty(count, np.uint32)
    heap_keys, heap_pixels, size = np.empty(4096), np.empty(4096, np.int32), 0
    slack = 0.0  # u(x) is at most this much below u(y) for a neighbor y
    for x in range(len(drifts)):
        for i in range(count):
            slack = max(slack, abs(float(drifts[x, i])))
    for n in range(len(seeds)):
        x, value = seeds[n], seed_values[n]
        if value < key[x]:
            key[x], choice[x] = value, SEED
            if len(label):
                label[x] = seed_labels[n]
            heap_keys, heap_pixels = room(heap_keys, heap_pixels, size)
            size = push(heap_keys, heap_pixels, size, value, x)
    waiting = np.zeros(len(key) if len(targets) else 0, np.bool_)
    remaining, last = 0, -np.inf
    for x in targets:
        remaining += not waiting[x]
        waiting[x] = True
    limit = limit + slack
    visits = 0
    while size:
        value, x = heap_keys[0], heap_pixels[0]
        size = pop(heap_keys, heap_pixels, size)
        if value > key[x]:
            continue  # a smaller value was accepted before
        if value > limit:
            break
        if visits == most_visits:
            break
        if choice[x] != SEED:
            value, _, choice[x], parent = solve(x, second_order, value, state, values, factors, codes)
            if len(label):
                label[x] = label[parent]
        distance[x] = value
        if len(stamp):
            stamp[x] = visits
        visits += 1
        if remaining and waiting[x]:
            waiting[x] = False
            last = max(last, value)
            remaining -= 1
            if not remaining:
                limit = min(limit, last + slack)
        for n in range(start[x], start[x + 1]):
            reader, code = np.int64(readers[n] >> np.uint32(4)), np.int64(readers[n] & np.uint32(15))
            accepted = distance[reader] < np.inf
            if accepted and not asymmetric:
                continue
            along = 0.0
            if asymmetric and code < 12:
                along = float(drifts[reader, code // 2]) * (1 - 2 * (code % 2))
            if code < 12 and value + along >= key[reader]:
                continue
            found, least, _, _ = solve(reader, False, np.inf, state, values, factors, codes)
            if found < key[reader] - (tolerance * (found - least) if accepted else 0.0):
                key[reader], choice[reader] = found, 0
                heap_keys, heap_pixels = room(heap_keys, heap_pixels, size)
                size = push(heap_keys, heap_pixels, size, found, reader)
    return visits


@noalloc
def solve(x, second_order, first, state, values, factors, codes):
    """Return the value of a pixel, the smallest v_i, the choice of differences, and the neighbor of most weight.

    For order 2 ``first`` is the value of order 1.
    """
    metric, drift, pitches, offsets, weights, drifts, flags, distance = state
    seen, asymmetric = np.int64(flags[x]), len(drift) > 0
    count, used = offsets.shape[1], 0
    for i in range(count):
        factor = float(weights[x, i])
        if factor <= 0:
            continue
        step, bits = offsets[x, i], seen >> (4 * i)
        along = float(drifts[x, i]) if asymmetric else 0.0
        value, code = np.inf, 0
        if bits & 1:
            value, code = distance[x - step] + along, 1
        if bits & 2:
            other = distance[x + step] - along
            if other < value:
                value, code = other, 2
        if value == np.inf:
            continue
        if second_order and bits & (2 << code) and value < first:
            side = 2 * code - 3
            behind = distance[x + 2 * side * step] - 2 * side * along
            if behind <= value and abs(first - 2 * value + behind) <= _SMOOTH * (first - value):
                value += (value - behind) / 3
                factor *= 2.25
                code += 2
        n = used
        while n and values[n - 1] > value:
            values[n], factors[n], codes[n] = values[n - 1], factors[n - 1], codes[n - 1]
            n -= 1
        values[n], factors[n], codes[n] = value, factor, 8 * i + code
        used += 1
    found, active = np.inf, 0
    if used:
        a = b = c = 0.0
        while active < used:
            shift = values[active] - values[0]
            a += factors[active]
            b += factors[active] * shift
            c += factors[active] * shift * shift
            active += 1
            found = (b + np.sqrt(max(b * b - a * (c - 1), 0.0))) / a + values[0]
            if active == used or found <= values[active]:
                break
    choice, parent, most = np.uint32(0), x, -1.0
    for n in range(active):
        i, code = np.int64(codes[n]) // 8, np.int64(codes[n]) % 8
        choice |= np.uint32(code << (3 * i))
        if factors[n] * (found - values[n]) > most:
            most = factors[n] * (found - values[n])
            parent = x + offsets[x, i] * (1 if code % 2 == 0 else -1)
    least = values[0] if used else np.inf
    if seen >> 24:
        for side in range(2 * len(pitches)):
            if seen >> (24 + side) & 1:
                axis, sign = side // 2, 2 * (side % 2) - 1
                y = x + sign * pitches[axis]
                length = edge_length(metric, drift, x, axis, sign)
                if distance[y] + length < found:
                    found, least, choice, parent = distance[y] + length, distance[y], EDGE | np.uint32(side), y
    return found, least, choice, parent


@inlined
def edge_length(metric, drift, x, axis, sign):
    """Return the length at x of the step from x + sign along an axis to x."""
    dim = 2 if metric.shape[1] == 3 else 3
    length = np.sqrt(float(metric[x, axis * dim - axis * (axis - 1) // 2]))
    if len(drift):
        length -= sign * float(drift[x, axis])
    return length


@compiled
def room(keys, pixels, size):
    """Return the arrays of a queue, of twice the length if they are full."""
    if size < len(keys):
        return keys, pixels
    return np.concatenate((keys, np.empty(size))), np.concatenate((pixels, np.empty(size, np.int32)))


@inlined
def push(keys, pixels, size, value, x):
    """Insert a pixel into a queue, a heap with four children per node, and return its size."""
    n = size
    while n:
        parent = (n - 1) // 4
        if keys[parent] <= value:
            break
        keys[n], pixels[n] = keys[parent], pixels[parent]
        n = parent
    keys[n], pixels[n] = value, x
    return size + 1


@inlined
def pop(keys, pixels, size):
    """Remove the first pixel of a queue and return its size."""
    size -= 1
    value, x = keys[size], pixels[size]
    n = 0
    while 4 * n + 1 < size:
        child = 4 * n + 1
        for other in range(child + 1, min(child + 4, size)):
            if keys[other] < keys[child]:
                child = other
        if keys[child] >= value:
            break
        keys[n], pixels[n] = keys[child], pixels[child]
        n = child
    keys[n], pixels[n] = value, x
    return size
