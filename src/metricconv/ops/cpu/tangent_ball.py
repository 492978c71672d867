"""The norm F of a metric in one direction, for the pixels of a strip, and its gradient."""

import numpy as np

from ...metrics.base import SMALLEST_NORM
from .jit import inlined, noalloc
from .strip import add_scaled


@noalloc
def fill_inverse_norm(first_axis, one_sided, params, start, stencil, t, pixel_term, n):
    """Write 1/F(u), F bounded from below, to row 0 of pixel_term, and a part of F to row 1 for the derivative.

    F = √(uᵀMu) + ωᵀu with the part √(uᵀMu); or, if one-sided, F = √(uᵀMu + (ωᵀu)₊²) with the part (ωᵀu)₊.
    """
    zero, two = pixel_term.dtype.type(0), pixel_term.dtype.type(2)
    u_z, u_y, u_x = stencil[t, 0], stencil[t, 1], stencil[t, 2]
    # The rows of M_yy, M_yx, M_xx and ω_y, ω_x; in 1-D only the last of each exists, and u_y = 0 cancels the others.
    yy, yx, xx, y, x = ((3, 4, 5, 7, 8), (0, 1, 2, 3, 4), (0, 0, 0, 1, 1))[first_axis]
    has_omega = params.shape[0] > x
    for i in range(n):
        j = start + i
        square = u_y * u_y * params[yy, j] + two * u_y * u_x * params[yx, j] + u_x * u_x * params[xx, j]
        omega_u = u_y * params[y, j] + u_x * params[x, j] if has_omega else zero
        if first_axis == 0:
            square += u_z * u_z * params[0, j] + two * u_z * u_y * params[1, j] + two * u_z * u_x * params[2, j]
            omega_u += u_z * params[6, j] if has_omega else zero
        pixel_term[0, i], pixel_term[1, i] = inverse_norm(one_sided, square, omega_u)


@inlined
def inverse_norm(one_sided, square, omega_u):
    """Return 1/F, and √(uᵀMu) or, if one-sided, (ωᵀu)₊."""
    real = type(square)
    zero, smallest = real(0), real(SMALLEST_NORM)
    positive = zero if omega_u < zero else omega_u
    square += positive * positive if one_sided else zero
    root = np.sqrt(zero if square <= zero else square)
    norm = root if one_sided else root + omega_u
    return real(1) / (smallest if norm < smallest else norm), positive if one_sided else root


@noalloc
def add_ball_gradient(first_axis, one_sided, start, stencil, t, pixel_term, grad_params, n):
    """Add the gradients of M and ω.

    The rows of pixel_term [3, n] hold what ``fill_inverse_norm`` wrote and the gradient of 1/F, which is set to 0.
    """
    real, row, column0 = pixel_term.dtype.type, 0, np.uint64(0)
    farthest, zero, half, two = real(1 / SMALLEST_NORM), real(0), real(0.5), real(2)
    for i in range(n):
        grad_norm = -pixel_term[2, i] * pixel_term[0, i] * pixel_term[0, i]
        grad_norm = zero if pixel_term[0, i] >= farthest else grad_norm
        if one_sided:
            pixel_term[2, i] = grad_norm * pixel_term[0, i] * pixel_term[1, i]
            pixel_term[1, i] = half * grad_norm * pixel_term[0, i]
        else:
            pixel_term[2, i] = grad_norm
            pixel_term[1, i] = zero if pixel_term[1, i] <= zero else half * grad_norm / pixel_term[1, i]
    for j in range(first_axis, 3):
        for k in range(j, 3):
            factor = stencil[t, j] * stencil[t, k]
            add_scaled(factor if j == k else two * factor, pixel_term, 1, column0, grad_params, row, start, n)
            row += 1
    if row < grad_params.shape[0]:
        for j in range(first_axis, 3):
            add_scaled(stencil[t, j], pixel_term, 2, column0, grad_params, row, start, n)
            row += 1
    pixel_term[2, :] = zero
