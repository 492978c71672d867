"""The geodesic flow in formulas, of single numbers, and its derivative; see metrics/flow.py.

A local field is twelve numbers: M (3), ω (2), its curl, ∂_y M (3) and ∂_x M (3). Vectors are (y, x).
"""

import numpy as np

from ...metrics.flow import _LEAST_NORM, _LEAST_PIVOT
from .jit import inlined

# Exact in float32, and so no reason to widen what they are multiplied with, nor to narrow it.
ZERO, QUARTER, HALF, ONE = map(np.float32, (0, 0.25, 0.5, 1))


@inlined
def rates(local, q0, q1, least):
    """Return the velocity ẋ = e/c and the rate of momentum q̇."""
    n, e0, e1, _, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    return e0 / c, e1 / c, g0 * (n / c), g1 * (n / c)


@inlined
def rates_back(local, q0, q1, to_v0, to_v1, to_f0, to_f1, least):
    """Return the gradients of momentum (2) and field (12), given those of velocity and rate of momentum."""
    m00, m01, m11, w0, w1, curl, y0, y1, y2, x0, x1, x2 = local
    n, e0, e1, free, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    inverse = ONE / c
    t0, t1 = to_f0 * n * inverse, to_f1 * n * inverse
    to_ratio = to_f0 * g0 + to_f1 * g1
    to_n = to_ratio * inverse
    to_c = -(to_ratio * n + to_v0 * e0 + to_v1 * e1) * inverse * inverse
    to_c = to_c if free > least[1] else ZERO
    to_e0 = to_v0 * inverse + t0 * (y0 * e0 + y1 * e1) + t1 * (x0 * e0 + x1 * e1 - curl) + to_c * w0
    to_e1 = to_v1 * inverse + t0 * (y1 * e0 + y2 * e1 + curl) + t1 * (x1 * e0 + x2 * e1) + to_c * w1
    # e = s/n with s = M⁻¹q and n² = sᵀq; a is the gradient of s, raised, and t that of n².
    to_n -= (to_e0 * e0 + to_e1 * e1) / n
    t, s0, s1 = HALF * to_n / n, n * e0, n * e1
    a0, a1 = raise_index(m00, m01, m11, to_e0 / n, to_e1 / n, least)
    to_m00 = -s0 * (a0 + t * s0)
    to_m01 = -(a0 * s1 + a1 * s0) - (t + t) * s0 * s1
    to_m11 = -s1 * (a1 + t * s1)
    # Where the second pivot is ε m₁₁, M stands for a matrix whose last entry is m₀₁²/m₀₀ + ε m₁₁.
    ratio = m01 / m00
    kept = to_m11 if m11 - ratio * m01 <= least[0] * m11 else ZERO
    return (
        a0 + (t + t) * s0, a1 + (t + t) * s1,
        to_m00 - kept * ratio * ratio, to_m01 + (kept + kept) * ratio, to_m11 - kept + kept * least[0],
        to_c * e0, to_c * e1, t0 * e1 - t1 * e0,
        HALF * t0 * e0 * e0, t0 * e0 * e1, HALF * t0 * e1 * e1,
        HALF * t1 * e0 * e0, t1 * e0 * e1, HALF * t1 * e1 * e1,
    )  # fmt: skip


@inlined
def direction(local, q0, q1, least):
    """Return n = |q|_{M⁻¹}, e = M⁻¹q / n, 1 + ωᵀe and c, which is at least so much."""
    m00, m01, m11, w0, w1 = local[:5]
    s0, s1 = raise_index(m00, m01, m11, q0, q1, least)
    n = np.sqrt(s0 * q0 + s1 * q1)
    e0, e1 = s0 / n, s1 / n
    c = ONE + w0 * e0 + w1 * e1
    return n, e0, e1, c, (c if c > least[1] else least[1])


@inlined
def forces(local, e0, e1):
    """Return ½ eᵀ(∂M)e + the curl's turn of e."""
    curl, y0, y1, y2, x0, x1, x2 = local[5:]
    g0 = HALF * (y0 * e0 * e0 + y2 * e1 * e1) + y1 * e0 * e1 + curl * e1
    g1 = HALF * (x0 * e0 * e0 + x2 * e1 * e1) + x1 * e0 * e1 - curl * e0
    return g0, g1


@inlined
def raise_index(m00, m01, m11, q0, q1, least):
    """Return M⁻¹q by elimination, with its second pivot kept positive."""
    ratio = m01 / m00
    pivot, floor = m11 - ratio * m01, least[0] * m11
    z = (q1 - ratio * q0) / (pivot if pivot > floor else floor)
    return q0 / m00 - ratio * z, z


@inlined
def squares(m00, m01, m11, u0, u1, least):
    """Return |u|²_M, and what the least pivots would make of it."""
    a, d = m00 * u0 * u0, m11 * u1 * u1
    return a + (m01 + m01) * u0 * u1 + d, least[0] * (a + d)


@inlined
def guards(like):
    """Return the least pivot and the least norm in the dtype of an array."""
    return like.dtype.type(_LEAST_PIVOT), like.dtype.type(_LEAST_NORM)
