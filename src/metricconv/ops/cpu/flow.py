"""Scalar formulas of the geodesic flow and their adjoints; see metrics/flow.py.

The field at a point, ``local``, has twelve values: M (3), ω (2), its curl, ∂_y M (3) and ∂_x M (3). Vectors are (y, x).
The gradient of a variable ``v`` is ``grad_v``.
"""

import numpy as np

from ...metrics.flow import _LEAST_NORM, _LEAST_PIVOT
from .jit import inlined

# Exact in float32, so they fit both dtypes: a product with float32 stays float32, one with float64 loses nothing.
ZERO, QUARTER, HALF, ONE = map(np.float32, (0, 0.25, 0.5, 1))


@inlined
def rates(local, q0, q1, least):
    """Return the velocity ẋ = e/c and the time derivative of the momentum, q̇."""
    n, e0, e1, _, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    return e0 / c, e1 / c, g0 * (n / c), g1 * (n / c)


@inlined
def rates_backward(local, q0, q1, grad_v0, grad_v1, grad_f0, grad_f1, least):
    """Return the gradients of the momentum (2) and of the field (12), given those of ẋ and q̇."""
    m00, m01, m11, w0, w1, curl, y0, y1, y2, x0, x1, x2 = local
    n, e0, e1, unclamped_c, c = direction(local, q0, q1, least)
    g0, g1 = forces(local, e0, e1)
    inverse = ONE / c
    t0, t1 = grad_f0 * n * inverse, grad_f1 * n * inverse
    grad_ratio = grad_f0 * g0 + grad_f1 * g1
    grad_n = grad_ratio * inverse
    grad_c = -(grad_ratio * n + grad_v0 * e0 + grad_v1 * e1) * inverse * inverse
    grad_c = grad_c if unclamped_c > least[1] else ZERO
    grad_e0 = grad_v0 * inverse + t0 * (y0 * e0 + y1 * e1) + t1 * (x0 * e0 + x1 * e1 - curl) + grad_c * w0
    grad_e1 = grad_v1 * inverse + t0 * (y1 * e0 + y2 * e1 + curl) + t1 * (x1 * e0 + x2 * e1) + grad_c * w1
    # e = s/n with s = M⁻¹q and n² = sᵀq; a is the gradient of s, raised, and t that of n².
    grad_n -= (grad_e0 * e0 + grad_e1 * e1) / n
    t, s0, s1 = HALF * grad_n / n, n * e0, n * e1
    a0, a1 = raise_index(m00, m01, m11, grad_e0 / n, grad_e1 / n, least)
    grad_m00 = -s0 * (a0 + t * s0)
    grad_m01 = -(a0 * s1 + a1 * s0) - (t + t) * s0 * s1
    grad_m11 = -s1 * (a1 + t * s1)
    # Where the second pivot is clamped to ε m₁₁, M acts as a matrix whose last entry is m₀₁²/m₀₀ + ε m₁₁.
    ratio = m01 / m00
    clamped = grad_m11 if m11 - ratio * m01 <= least[0] * m11 else ZERO
    return (
        a0 + (t + t) * s0, a1 + (t + t) * s1,
        grad_m00 - clamped * ratio * ratio, grad_m01 + (clamped + clamped) * ratio,
        grad_m11 - clamped + clamped * least[0],
        grad_c * e0, grad_c * e1, t0 * e1 - t1 * e0,
        HALF * t0 * e0 * e0, t0 * e0 * e1, HALF * t0 * e1 * e1,
        HALF * t1 * e0 * e0, t1 * e0 * e1, HALF * t1 * e1 * e1,
    )  # fmt: skip


@inlined
def direction(local, q0, q1, least):
    """Return n = |q|_{M⁻¹}, e = M⁻¹q / n, 1 + ωᵀe, and the latter bounded from below."""
    m00, m01, m11, w0, w1 = local[:5]
    s0, s1 = raise_index(m00, m01, m11, q0, q1, least)
    n = np.sqrt(s0 * q0 + s1 * q1)
    e0, e1 = s0 / n, s1 / n
    c = ONE + w0 * e0 + w1 * e1
    return n, e0, e1, c, (c if c > least[1] else least[1])


@inlined
def forces(local, e0, e1):
    """Return ½ eᵀ(∂M)e plus the curl times e rotated by 90°."""
    curl, y0, y1, y2, x0, x1, x2 = local[5:]
    g0 = HALF * (y0 * e0 * e0 + y2 * e1 * e1) + y1 * e0 * e1 + curl * e1
    g1 = HALF * (x0 * e0 * e0 + x2 * e1 * e1) + x1 * e0 * e1 - curl * e0
    return g0, g1


@inlined
def raise_index(m00, m01, m11, q0, q1, least):
    """Return M⁻¹q by elimination, with the second pivot bounded from below."""
    ratio = m01 / m00
    pivot, floor = m11 - ratio * m01, least[0] * m11
    z = (q1 - ratio * q0) / (pivot if pivot > floor else floor)
    return q0 / m00 - ratio * z, z


@inlined
def squares(m00, m01, m11, u0, u1, least):
    """Return |u|²_M and its lower bound, which follows from that of the pivots."""
    a, d = m00 * u0 * u0, m11 * u1 * u1
    return a + (m01 + m01) * u0 * u1 + d, least[0] * (a + d)


@inlined
def least_values(like):
    """Return the least pivot and the least norm in the dtype of an array."""
    return like.dtype.type(_LEAST_PIVOT), like.dtype.type(_LEAST_NORM)
