"""A priority queue of pixels on two levels: numba functions.

Entries are (value, pixel). Buckets of equal width hold later ones in linked lists; the entries of the current bucket
are in a heap with four children per node. The heap is small, and most entries that were replaced by smaller values are
dropped before they reach it. Entries beyond the last bucket wait in it.

======= ==============================================================================================================
array   contents
======= ==============================================================================================================
keys    (n,) values of the heap
pixels  (n,) its pixels
nodes   (m,) values of the lists' nodes
links   (m, 2) int32, their pixels and the next nodes, −1 at the end
heads   (buckets,) int32, the first node of each list
sizes   int64: current bucket, entries of the heap, entries in lists, first free node (−1), nodes ever used
scale   smallest value, buckets per unit
======= ==============================================================================================================
"""

import numpy as np

from ..ops.cpu.jit import compiled, inlined, noalloc

BUCKETS = 1024
_NOW, _HEAP, _LISTED, _FREE, _USED = range(5)


@compiled
def new_queue(least, width):
    """Return an empty queue for values of at least ``least``, with buckets of the given width."""
    return (
        np.empty(1024), np.empty(1024, np.int32), np.empty(4096), np.empty((4096, 2), np.int32),
        np.full(BUCKETS, -1, np.int32), np.array([0, 0, 0, -1, 0]), np.array([least, 1 / width]),
    )  # fmt: skip


@compiled
def with_room(queue, count):
    """Return the queue with room for ``count`` more entries."""
    keys, pixels, nodes, links, heads, sizes, scale = queue
    if sizes[_HEAP] + count > len(keys):
        more = len(keys) + count
        keys, pixels = np.concatenate((keys, np.empty(more))), np.concatenate((pixels, np.empty(more, np.int32)))
    if sizes[_LISTED] + count > len(nodes):
        more = len(nodes) + count
        nodes, links = np.concatenate((nodes, np.empty(more))), np.concatenate((links, np.empty((more, 2), np.int32)))
    return keys, pixels, nodes, links, heads, sizes, scale


@inlined
def has_room(queue, count):
    """Return whether ``count`` more entries fit, in the heap and in the lists."""
    sizes = queue[5]
    return sizes[_HEAP] + count <= len(queue[0]) and sizes[_LISTED] + count <= len(queue[2])


@inlined
def insert(queue, value, x):
    """Insert an entry, for which there is room."""
    keys, pixels, nodes, links, heads, sizes, scale = queue
    ahead = (value - scale[0]) * scale[1] - sizes[_NOW]
    if ahead < 1:
        n = sizes[_HEAP]
        sizes[_HEAP] += 1
        while n:
            parent = (n - 1) >> 2
            if keys[parent] <= value:
                break
            keys[n], pixels[n] = keys[parent], pixels[parent]
            n = parent
        keys[n], pixels[n] = value, x
        return
    n = sizes[_FREE]
    if n >= 0:
        sizes[_FREE] = links[n, 1]
    else:
        n = sizes[_USED]
        sizes[_USED] += 1
    bucket = (sizes[_NOW] + np.int64(min(ahead, BUCKETS - 1.0))) % BUCKETS
    nodes[n], links[n, 0], links[n, 1] = value, x, heads[bucket]
    heads[bucket] = n
    sizes[_LISTED] += 1


@noalloc
def load_bucket(queue, key):
    """Move the entries of the next bucket to the empty heap, but for those above the ``key`` of their pixel."""
    _keys, _pixels, nodes, links, heads, sizes, scale = queue
    while sizes[_LISTED]:
        sizes[_NOW] += 1
        n = heads[sizes[_NOW] % BUCKETS]
        if n < 0:
            continue
        heads[sizes[_NOW] % BUCKETS] = -1
        least, count, m = np.inf, 0, n
        while m >= 0:
            least, count, m = min(least, nodes[m]), count + 1, np.int64(links[m, 1])
        if count == sizes[_LISTED]:  # the only list: continue at its first value, however far
            scale[0], sizes[_NOW] = least, 0
        while n >= 0:
            value, x, following = nodes[n], np.int64(links[n, 0]), np.int64(links[n, 1])
            links[n, 1] = sizes[_FREE]
            sizes[_FREE] = n
            sizes[_LISTED] -= 1
            if value <= key[x]:
                insert(queue, value, x)
            n = following
        if sizes[_HEAP]:
            return


@inlined
def remove_first(queue):
    """Remove the first entry of the heap and return its value and pixel."""
    keys, pixels, _, _, _, sizes, _ = queue
    first, first_pixel = keys[0], np.int64(pixels[0])
    sizes[_HEAP] -= 1
    size, n = sizes[_HEAP], 0
    value, x = keys[size], pixels[size]
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
    return first, first_pixel


@inlined
def heap_size(queue):
    """Return the number of entries of the heap."""
    return queue[5][_HEAP]


@inlined
def is_empty(queue):
    """Return whether the heap has no entry."""
    return queue[5][_HEAP] == 0
