"""The geodesic flow of a 2-D metric, and its derivative, for the [BM] positions of a tile: see ``metrics/flow.py``.

The flow at a position depends on twelve local values, of which seven are derivatives:

    m00 m01 m11   o0 o1   B = ∂₀ω₁ − ∂₁ω₀   ∂₀m00 ∂₀m01 ∂₀m11   ∂₁m00 ∂₁m01 ∂₁m11.

Functions take them as the tuple ``local``. All numbers are float32.
"""

import triton
import triton.language as tl

from ...metrics.flow import _LEAST_NORM, _LEAST_PIVOT
from .geometry import INTERPRETED

LEAST_PIVOT = tl.constexpr(_LEAST_PIVOT)
LEAST_NORM = tl.constexpr(_LEAST_NORM)


@triton.jit
def reciprocal(x):
    """Return 1 / x by the hardware's approximation, to within 1 ulp, for |x| neither huge nor denormal."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)


@triton.jit
def factorize(local):
    """Return 1/m00, m01/m00, 1/pivot of M = LDLᵀ, with a clamped second pivot, and 0 where it was clamped, else 1."""
    inverse_m00 = reciprocal(local[0])
    ratio = local[1] * inverse_m00
    pivot, smallest = local[2] - ratio * local[1], local[2] * LEAST_PIVOT
    return (
        inverse_m00,
        ratio,
        reciprocal(tl.where(pivot >= smallest, pivot, smallest)),
        tl.where(pivot >= smallest, 1.0, 0.0),
    )


@triton.jit
def unit_velocity(local, M, q0, q1):
    """Return |q|_{M⁻¹} and its inverse, e = M⁻¹q / |q|, 1/(1 + ωᵀe), and 1 where that was not clamped, else 0."""
    inverse_m00, ratio, inverse_pivot, _ = M
    rest = q1 - ratio * q0
    r1 = rest * inverse_pivot
    square = q0 * q0 * inverse_m00 + rest * r1
    inverse_norm = tl.rsqrt(square)
    e0, e1 = (q0 * inverse_m00 - ratio * r1) * inverse_norm, r1 * inverse_norm
    c = 1.0 + (local[3] * e0 + local[4] * e1)
    return (
        square * inverse_norm,
        inverse_norm,
        e0,
        e1,
        reciprocal(tl.where(c < LEAST_NORM, LEAST_NORM, c)),
        tl.where(c < LEAST_NORM, 0.0, 1.0),
    )


@triton.jit
def momentum_rates(local, curl, e0, e1):
    """Return ½ eᵀ(∂_k M)e + Σ_j (∂_k ω_j − ∂_j ω_k) e_j for both k, with B = ``curl``."""
    a, b = 0.5 * e0, 0.5 * e1
    p0 = e0 * (local[6] * a + local[7] * e1) + e1 * (local[8] * b + curl)
    p1 = e0 * (local[9] * a + (local[10] * e1 - curl)) + e1 * (local[11] * b)
    return p0, p1


@triton.jit
def flow(local, M, q0, q1, h):
    """Return the velocity ẋ and the rate of momentum q̇ times h; M is the result of ``factorize``.

    With r = M⁻¹q and n = |q|, the unit vector is e = r/n and 1 + ωᵀe = (n + ωᵀr)/n, so that no division by n is needed.
    """
    inverse_m00, ratio, inverse_pivot, _ = M
    rest, along = q1 - ratio * q0, q0 * inverse_m00
    r1 = rest * inverse_pivot
    r0 = along - ratio * r1
    norm = tl.sqrt(q0 * along + rest * r1)
    p0, p1 = momentum_rates(local, norm * local[5], r0, r1)
    speed = h * reciprocal(tl.maximum(norm + (local[3] * r0 + local[4] * r1), norm * LEAST_NORM))
    return speed * r0, speed * r1, speed * p0, speed * p1


@triton.jit
def flow_adjoint(local, M, q0, q1, gv0, gv1, gf0, gf1):
    """Return the gradients of the local values and of q, given those of ẋ and q̇."""
    inverse_m00, ratio, inverse_pivot, pivot_slope = M
    norm, inverse_norm, e0, e1, inverse_c, c_slope = unit_velocity(local, M, q0, q1)
    r0, r1 = e0 * norm, e1 * norm
    p0, p1 = momentum_rates(local, local[5], e0, e1)
    h0, h1 = gf0 * (norm * inverse_c), gf1 * (norm * inverse_c)  # of p0 and p1
    work = (gf0 * p0 + gf1 * p1) * inverse_c
    gc = -((gv0 * e0 + gv1 * e1) * inverse_c + work * norm) * inverse_c * c_slope
    ge0 = gv0 * inverse_c + h0 * (local[6] * e0 + local[7] * e1) + h1 * (local[9] * e0 + local[10] * e1 - local[5])
    ge1 = gv1 * inverse_c + h0 * (local[7] * e0 + local[8] * e1 + local[5]) + h1 * (local[10] * e0 + local[11] * e1)
    ge0, ge1 = ge0 + gc * local[3], ge1 + gc * local[4]
    grad_square = 0.5 * (work - (ge0 * e0 + ge1 * e1) * inverse_norm) * inverse_norm
    # With r = M⁻¹q and qᵀr = |q|²: one more solution of the same system carries the gradient to M and q.
    s0, s1 = ge0 * inverse_norm + grad_square * q0, ge1 * inverse_norm + grad_square * q1
    y1 = (s1 - ratio * s0) * inverse_pivot
    y0 = s0 * inverse_m00 - ratio * y1
    grad_m11 = -y1 * r1
    clamped_m11 = grad_m11 * (1 - pivot_slope)  # a clamped pivot is m11 = m01²/m00 + a small part of m11
    return (
        -y0 * r0 - clamped_m11 * ratio * ratio, -(y0 * r1 + y1 * r0) + 2 * clamped_m11 * ratio,
        grad_m11 * tl.where(pivot_slope > 0, 1.0, LEAST_PIVOT),
        gc * e0, gc * e1, h0 * e1 - h1 * e0,
        h0 * (0.5 * e0 * e0), h0 * (e0 * e1), h0 * (0.5 * e1 * e1),
        h1 * (0.5 * e0 * e0), h1 * (e0 * e1), h1 * (0.5 * e1 * e1),
        y0 + grad_square * r0, y1 + grad_square * r1,
    )  # fmt: skip
