"""Gradients of distances: numba kernel.

With the weights r_i and values v_i of the differences that determine u(x), and S = Σ_i r_i (u − v_i),

    ∂u/∂v_i = r_i (u − v_i) / S,      ∂u/∂r_i = −(u − v_i)² / (2S).

Pixels are visited in reverse order of acceptance, each after all that were computed from it. With drift, a pixel may be
computed from one that is accepted later; the rest of its gradient is passed on by further passes, until none is left.
"""

import numpy as np

from ..ops.cpu.jit import compiled
from ._marching import EDGE, SEED
from ._selling import decompose, invert, pair_of

# Passes with drift, and the part of the largest gradient that need not be passed on.
_MOST_PASSES, _NEGLIGIBLE = 100, 1e-13


@compiled
def propagate(
    metric, drift, shape, pitches, offsets, weights, drifts, distance, choice, stamp, visits,
    gradient, grad_metric, grad_drift,
):  # fmt: skip
    """Add the gradients by the metric and the drift, given those by distances; leave those by seeds in ``gradient``.

    ``gradient`` (P,) is that of distances on entry. On return it is 0 except at pixels whose value is a seed's.
    """
    order = np.full(visits, -1, np.int64)
    for x in range(len(stamp)):
        if stamp[x] >= 0:
            order[stamp[x]] = x
        else:
            gradient[x] = 0
    count, dim, asymmetric = offsets.shape[1], len(shape), len(drift) > 0
    values, factors, slopes = np.zeros(count), np.zeros(count), np.zeros(count)
    dual, base, vectors, rho = np.zeros((3, 3)), np.zeros((4, 3)), np.zeros((6, 3), np.int64), np.zeros(6)
    by_dual, product = np.zeros((3, 3)), np.zeros((3, 3))
    largest = np.max(np.abs(gradient)) if len(gradient) else 0.0
    for _ in range(_MOST_PASSES):
        rest = 0.0
        for n in range(visits - 1, -1, -1):
            x = order[n]
            if x < 0 or gradient[x] == 0 or choice[x] == SEED:
                continue
            g, chosen = gradient[x], np.int64(choice[x])
            gradient[x] = 0
            if choice[x] >= EDGE:
                side = chosen & 7
                axis, sign = side // 2, 2 * (side % 2) - 1
                y = x + sign * pitches[axis]
                diagonal = axis * dim - axis * (axis - 1) // 2
                gradient[y] += g
                if stamp[y] > n:
                    rest = max(rest, abs(g))
                grad_metric[x, diagonal] += 0.5 * g / np.sqrt(float(metric[x, diagonal]))
                if asymmetric:
                    grad_drift[x, axis] -= sign * g
                continue
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
                continue
            invert(metric, x, dim, dual)
            decompose(dual, dim, base, vectors, rho)
            by_dual[:] = 0
            for i in range(count):
                slopes[i] = 0
                if factors[i] <= 0:
                    continue
                code = chosen >> (3 * i) & 7
                side = 1 if code % 2 == 0 else -1
                y, difference = x + side * offsets[x, i], distance[x] - values[i]
                part = g * factors[i] * difference / total
                if code > 2:
                    y2 = x + 2 * side * offsets[x, i]
                    gradient[y] += part * 4 / 3
                    gradient[y2] -= part / 3
                    slopes[i] = -side * part * 2 / 3
                    if stamp[y2] > n:
                        rest = max(rest, abs(part))
                else:
                    gradient[y] += part
                    slopes[i] = -side * part
                if stamp[y] > n:
                    rest = max(rest, abs(part))
                by_weight = -0.5 * g * difference * difference / total * (2.25 if code > 2 else 1.0)
                first, second, _, _ = pair_of(i, dim)
                for k in range(dim):
                    for m in range(dim):
                        by_dual[k, m] -= (
                            0.5 * by_weight * (base[first, k] * base[second, m] + base[first, m] * base[second, k])
                        )
                if asymmetric:
                    for k in range(dim):
                        grad_drift[x, k] += slopes[i] * vectors[i, k]
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
        if rest <= _NEGLIGIBLE * largest:
            break


@compiled
def seed_gradients(seeds, seed_values, distance, choice, gradient, grad_seeds):
    """Move the gradient of each pixel with a given value to the first seed of that value."""
    for n in range(len(seeds)):
        x = seeds[n]
        if choice[x] == SEED and seed_values[n] == distance[x]:
            grad_seeds[n] = gradient[x]
            gradient[x] = 0
