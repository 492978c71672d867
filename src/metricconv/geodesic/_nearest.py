"""Fast marching for the k nearest sources of each pixel: numba kernel.

The fronts of all sources are computed at once, of order 1, each from the distances of neighbors from the same source.
A pixel accepts the fronts of k sources at most: a path to it from one of its k nearest sources leads through pixels of
which that source is one of the k nearest.
"""

import numpy as np

from ..ops.cpu.jit import compiled, noalloc
from ._marching import BUCKETS_PER_STEP, edge, mean_step, place, root
from ._queue import has_room, insert, is_empty, load_bucket, new_queue, remove_first, with_room


@compiled
def march_nearest(
    metric, drift, pitches, offsets, weights, drifts, flags, start, readers,
    seeds, seed_values, seed_labels, limit, tolerance, most_visits, distance, label,
):  # fmt: skip
    """Fill the sorted distances and labels (P, k), ∞ and −1 where fewer sources are reached; return acceptances.

    An entry of the queue is the index of a candidate: a pixel, a label and a value.
    """
    count, asymmetric, k = offsets.shape[1], len(drift) > 0, distance.shape[1]
    state = (metric, drift, pitches, offsets, weights, drifts, flags, distance, label)
    values, factors, codes = np.empty(count), np.empty(count), np.empty(count, np.int64)
    least = np.inf
    for value in seed_values:
        least = min(least, value)
    queue = with_room(new_queue(least, mean_step(weights) / BUCKETS_PER_STEP), len(seeds))
    most = np.full(4 * len(seeds) + 4096, np.inf)  # keys of candidates never decrease
    candidates, used = np.empty((4 * len(seeds) + 4096, 2), np.int32), len(seeds)
    for n in range(len(seeds)):
        if seed_values[n] < np.inf:
            candidates[n, 0], candidates[n, 1] = seeds[n], seed_labels[n]
            insert(queue, seed_values[n], n)
    visits = 0
    while visits < most_visits:
        if is_empty(queue):
            load_bucket(queue, most)
            if is_empty(queue):
                break
        value, entry = remove_first(queue)
        if value > limit:
            break
        x, source = np.int64(candidates[entry, 0]), candidates[entry, 1]
        slot = slot_of(label, x, source)
        if slot == k or not value < distance[x, slot]:
            continue
        # Keep the slots sorted.
        while slot and distance[x, slot - 1] > value:
            distance[x, slot], label[x, slot] = distance[x, slot - 1], label[x, slot - 1]
            slot -= 1
        distance[x, slot], label[x, slot] = value, source
        visits += 1
        room = start[x + 1] - start[x]
        if not has_room(queue, room):
            queue = with_room(queue, room)
        if used + room > len(candidates):
            candidates = np.concatenate((candidates, np.empty((len(candidates) + room, 2), np.int32)))
            most = np.full(len(candidates), np.inf)
        for n in range(start[x], start[x + 1]):
            reader = np.int64(readers[n] >> np.uint32(4))
            slot = slot_of(label, reader, source)
            if slot == k:
                continue
            accepted = distance[reader, slot] < np.inf
            if accepted and not asymmetric:
                continue
            found, least = value_for_source(reader, source, state, values, factors, codes)
            if found < distance[reader, slot] - (tolerance * (found - least) if accepted else 0.0):
                candidates[used, 0], candidates[used, 1] = reader, source
                insert(queue, found, used)
                used += 1
    return visits


@noalloc
def slot_of(label, x, source):
    """Return the slot of a source at a pixel, otherwise the first free slot, k if there is none."""
    for slot in range(label.shape[1]):
        if label[x, slot] == source or label[x, slot] < 0:
            return slot
    return label.shape[1]


@noalloc
def distance_of(distance, label, x, source):
    """Return the distance of a pixel from a source, ∞ if it is not known."""
    for slot in range(label.shape[1]):
        if label[x, slot] == source:
            return distance[x, slot]
    return np.inf


@noalloc
def value_for_source(x, source, state, values, factors, codes):
    """Return the distance of a pixel from a source, computed from its neighbors, and the smallest v_i."""
    metric, drift, pitches, offsets, weights, drifts, flags, distance, label = state
    seen, asymmetric, used = np.int64(flags[x]), len(drift) > 0, 0
    for i in range(offsets.shape[1]):
        step, bits = offsets[x, i], seen >> (4 * i)
        along = drifts[x, i] if asymmetric else 0.0
        value = distance_of(distance, label, x - step, source) + along if bits & 1 else np.inf
        if bits & 2:
            value = min(value, distance_of(distance, label, x + step, source) - along)
        if value < np.inf:
            used = place(values, factors, codes, used, value, weights[x, i], 0)
    found, _ = root(values, factors, used)
    least = values[0] if used else np.inf
    for side in range(2 * len(pitches)):
        if seen >> (24 + side) & 1:
            neighbor, length = edge(metric, drift, pitches, x, side)
            before = distance_of(distance, label, neighbor, source)
            if before + length < found:
                found, least = before + length, min(least, before)
    return found, least
