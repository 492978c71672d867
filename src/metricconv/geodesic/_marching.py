"""Fast marching on the stencils of _selling.py: numba kernels.

The distance u solves ‖∇u − ω‖_D = 1. Along e_i, the difference of u − ωᵀx towards the neighbor y = x ∓ e_i is
u(x) − v_i with v_i = u(y) ± ωᵀe_i, the smaller of both sides, and

    Σ_i ρ_i (u(x) − v_i)₊² = 1.

Pixels are accepted in increasing order of u. Without drift this is causal: v_i counts only if u(y) < u(x), and each
pixel is accepted once; values v_i arrive in increasing order, and the sums over i that give u are updated by each. With
drift u(y) may be larger; a pixel whose value still decreases, by more than a tolerance
times its difference to the smallest v_i, is accepted again.

Of order 2: when a pixel is accepted, differences become those of order 2, (3 u(x) − 4 u(y) + u(y')) / 2 with
y' = x ∓ 2e_i, for the offsets where y and y' are accepted and the second difference is at most half of the first.

=========== ==========================================================================================================
array       per pixel
=========== ==========================================================================================================
nodes       best value so far, of order 1, which is the position in the queue, −∞ if it is final; smallest v_i so far;
            see _selling.py for the other columns
distance    value at the last acceptance, ∞ before
choice      differences of the value: 3 bits per offset (0 none, 1 towards x − e_i, 2 towards x + e_i, +2 for order 2);
            ``EDGE`` + side for the length of an edge along an axis, ``SEED`` for a given value, 0 for none
label       label of the given value that the pixel is reached from
=========== ==========================================================================================================
"""

import numpy as np

from ..ops.cpu.jit import compiled, inlined, noalloc
from ._prefetch import prefetch
from ._queue import has_room, heap_size, insert, is_empty, load_bucket, new_queue, remove_first, with_room
from ._selling import KEY, VALUES

EDGE, SEED = np.uint32(1 << 31), np.uint32(1 << 30)
# Second differences of at most this fraction of the first are used.
_SMOOTH = 0.5
# Buckets of the queue per mean step.
BUCKETS_PER_STEP = 20.0


@compiled
def march(
    metric, drift, pitches, offsets, nodes, flags, start, readers,
    seeds, seed_values, seed_labels, targets, limit, second_order, tolerance, most_visits, chooses,
    distance, choice, label,
):  # fmt: skip
    """Fill the arrays of the table above; return the number of acceptances, at most ``most_visits``.

    ``limit``: distance beyond which pixels need not be computed. ``targets``: pixels after which to stop, or none.
    ``label`` may be empty if it is not needed; ``choice`` is incomplete unless ``chooses``.
    """
    asymmetric, dim = len(drift) > 0, len(pitches)
    count = dim * (dim + 1) // 2
    key, weights, drifts = nodes[:, KEY], nodes[:, weights_of(dim)], nodes[: len(drift), drifts_of(dim)]
    state = (metric, drift, pitches, offsets, nodes, flags, distance)
    values, factors, codes = np.empty(count), np.empty(count), np.empty(count, np.int64)
    chooses = chooses or second_order or asymmetric or len(label) > 0
    slack = 0.0  # u(x) is at most this much below u(y) for a neighbor y
    if asymmetric and (limit < np.inf or len(targets)):
        slack = np.max(np.abs(drifts))
    least = np.inf
    for value in seed_values:
        least = min(least, value)
    queue = with_room(new_queue(least, mean_step(weights) / BUCKETS_PER_STEP), len(seeds))
    for n in range(len(seeds)):
        if seed_values[n] < key[seeds[n]]:
            key[seeds[n]], choice[seeds[n]] = seed_values[n], SEED
            if len(label):
                label[seeds[n]] = seed_labels[n]
            insert(queue, seed_values[n], seeds[n])
    waiting = np.zeros(len(flags) if len(targets) else 0, np.bool_)
    remaining, last = 0, -np.inf
    for x in targets:
        remaining += not waiting[x]
        waiting[x] = True
    limit = limit + slack
    visits = 0
    while visits < most_visits:
        if is_empty(queue):
            load_bucket(queue, key)
            if is_empty(queue):
                break
            prefetch_readers(queue, start, readers, nodes)
        value, x = remove_first(queue)
        if value > nodes[x, KEY]:
            continue  # a smaller value was accepted before
        if value > limit:
            break
        if not asymmetric:
            nodes[x, KEY] = -np.inf
        if choice[x] != SEED:
            if chooses or flags[x] >> np.uint32(24):
                value, choice[x] = solve(x, second_order, value, state, values, factors, codes)
            if len(label):
                label[x] = label[neighbor_before(x, value, choice, offsets, weights, drifts, pitches, distance)]
        distance[x] = value
        visits += 1
        if remaining and waiting[x]:
            waiting[x] = False
            last = max(last, value)
            remaining -= 1
            if not remaining:
                limit = min(limit, last + slack)
        if not has_room(queue, start[x + 1] - start[x]):
            queue = with_room(queue, start[x + 1] - start[x])
        for n in range(start[x], start[x + 1]):
            reader, code = np.int64(readers[n] >> np.uint32(4)), np.int64(readers[n] & np.uint32(15))
            best = nodes[reader, KEY]
            if code < 12:
                v = value
                if asymmetric:
                    v += nodes[reader, VALUES + 2 * count + (code >> 1)] * (1 - 2 * (code & 1))
                if not (v < best and v < nodes[reader, VALUES + (code >> 1)]):
                    continue
                nodes[reader, VALUES + (code >> 1)] = v
                found, least = first_order(nodes, reader, dim, values, factors, codes)
            else:
                if not value < best:
                    continue
                least = value
                found, _ = shortest_edge(reader, state)
            if not found < best:
                continue
            if asymmetric and distance[reader] < np.inf and not found < best - tolerance * (found - least):
                continue
            nodes[reader, KEY] = found
            choice[reader] = 0
            prefetch(start, reader)
            insert(queue, found, reader)
    return visits


@inlined
def weights_of(dim):
    """Return the columns of ``nodes`` with the weights ρ_i."""
    count = dim * (dim + 1) // 2
    return slice(VALUES + count, VALUES + 2 * count)


@inlined
def drifts_of(dim):
    """Return the columns of ``nodes`` with the products ωᵀe_i."""
    count = dim * (dim + 1) // 2
    return slice(VALUES + 2 * count, VALUES + 3 * count)


@noalloc
def mean_step(weights):
    """Return the mean of 1/√Σρ, the difference of u to a pixel if all its v_i are equal."""
    total, used = 0.0, 0
    for x in range(0, len(weights), 7 + len(weights) // 10007):
        size = 0.0
        for i in range(weights.shape[1]):
            size += weights[x, i]
        if size > 0:
            total += 1 / np.sqrt(size)
            used += 1
    return total / used if used else 1.0


@inlined
def prefetch_readers(queue, start, readers, nodes):
    """Prefetch the readers of the pixels in the heap of a queue, which are accepted next."""
    for entry in range(heap_size(queue)):
        x = queue[1][entry]
        for n in range(start[x], start[x + 1]):
            prefetch(nodes, np.int64(readers[n] >> np.uint32(4)))


@inlined
def first_order(nodes, x, dim, values, factors, codes):
    """Return the value of a pixel, of order 1, and the smallest v_i, of which at least one is finite."""
    if dim == 2:
        return root_of_three(nodes[x, 1], nodes[x, 2], nodes[x, 3], nodes[x, 4], nodes[x, 5], nodes[x, 6])
    used = 0
    for i in range(6):
        if nodes[x, VALUES + i] < np.inf:
            used = place(values, factors, codes, used, nodes[x, VALUES + i], nodes[x, VALUES + 6 + i], 0)
    return root(values, factors, used)[0], values[0]


@inlined
def root_of_three(v0, v1, v2, r0, r1, r2):
    """Return the root for three values, of which at least one is finite, and the smallest value.

    It has no branches, since they would depend on the data in a way that processors cannot predict.
    """
    v0, v1, r0, r1 = (v1, v0, r1, r0) if v1 < v0 else (v0, v1, r0, r1)
    v1, v2, r1, r2 = (v2, v1, r2, r1) if v2 < v1 else (v1, v2, r1, r2)
    v0, v1, r0, r1 = (v1, v0, r1, r0) if v1 < v0 else (v0, v1, r0, r1)
    shift = v1 - v0
    used = r0 * shift * shift < 1
    shift = shift if used else 0.0
    r1 = r1 if used else 0.0
    a, b, c = r0 + r1, r1 * shift, r1 * shift * shift - 1
    shift = v2 - v0
    used = used and a * shift * shift - 2 * b * shift + c < 0
    shift = shift if used else 0.0
    r2 = r2 if used else 0.0
    a, b, c = a + r2, b + r2 * shift, c + r2 * shift * shift
    return v0 + (b + np.sqrt(max(b * b - a * c, 0.0))) / a, v0


@noalloc
def solve(x, second_order, first, state, values, factors, codes):
    """Return the value of a pixel and the choice of differences; for order 2 ``first`` is the value of order 1."""
    _metric, drift, pitches, offsets, nodes, flags, distance = state
    seen, asymmetric, used = np.int64(flags[x]), len(drift) > 0, 0
    count = len(pitches) * (len(pitches) + 1) // 2
    for i in range(count):
        if nodes[x, VALUES + i] == np.inf:
            continue
        step, bits, factor = offsets[x, i], seen >> (4 * i), nodes[x, VALUES + count + i]
        along = nodes[x, VALUES + 2 * count + i] if asymmetric else 0.0
        value, code = distance[x - step] + along if bits & 1 else np.inf, 1
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
        used = place(values, factors, codes, used, value, factor, code << 3 * i)
    found, active = root(values, factors, used)
    choice = np.uint32(0)
    for n in range(active):
        choice |= np.uint32(codes[n])
    if seen >> 24:
        length, side = shortest_edge(x, state)
        if length < found:
            found, choice = length, EDGE | np.uint32(side)
    return found, choice


@inlined
def place(values, factors, codes, used, value, factor, code):
    """Insert a value into increasing ones, with its factor and its code; return their number."""
    n = used
    while n and values[n - 1] > value:
        values[n], factors[n], codes[n] = values[n - 1], factors[n - 1], codes[n - 1]
        n -= 1
    values[n], factors[n], codes[n] = value, factor, code
    return used + 1


@inlined
def root(values, factors, used):
    """Return the solution u of Σ_i r_i (u − v_i)₊² = 1 for increasing v_i, and the number of v_i below it."""
    if not used:
        return np.inf, 0
    active, a, b, c = 1, factors[0], 0.0, 0.0
    while active < used:
        shift = values[active] - values[0]
        if a * shift * shift - 2 * b * shift + c >= 1:
            break
        a += factors[active]
        b += factors[active] * shift
        c += factors[active] * shift * shift
        active += 1
    return values[0] + (b + np.sqrt(max(b * b - a * (c - 1), 0.0))) / a, active


@noalloc
def shortest_edge(x, state):
    """Return the smallest distance of a pixel over its neighbors along axes, and the side of the neighbor."""
    metric, drift, pitches, _, _, flags, distance = state
    seen, least, found = np.int64(flags[x]) >> 24, np.inf, 0
    for side in range(2 * len(pitches)):
        if seen >> side & 1:
            neighbor, length = edge(metric, drift, pitches, x, side)
            if distance[neighbor] + length < least:
                least, found = distance[neighbor] + length, side
    return least, found


@inlined
def edge(metric, drift, pitches, x, side):
    """Return the neighbor of a pixel along an axis, and the length of the step from it."""
    dim, axis, sign = len(pitches), side // 2, 2 * (side % 2) - 1
    length = np.sqrt(metric[x, axis * dim - axis * (axis - 1) // 2])
    if len(drift):
        length -= sign * drift[x, axis]
    return x + sign * pitches[axis], length


@noalloc
def neighbor_before(x, value, choice, offsets, weights, drifts, pitches, distance):
    """Return the neighbor of largest ρ_i (u − v_i) that a value u is computed from, or the pixel itself."""
    chosen, found, most = np.int64(choice[x]), x, -np.inf
    if choice[x] >= EDGE:
        return x + (2 * (chosen & 1) - 1) * pitches[(chosen & 7) // 2]
    if choice[x] == SEED:
        return x
    for i in range(offsets.shape[1]):
        code = chosen >> 3 * i & 7
        if code:
            side = 1 if code % 2 == 0 else -1
            y = x + side * offsets[x, i]
            along = -side * drifts[x, i] if len(drifts) else 0.0
            part = weights[x, i] * (value - distance[y] - along)
            if part > most:
                most, found = part, y
    return found
