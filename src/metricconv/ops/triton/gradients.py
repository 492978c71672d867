"""What the backward kernels share: the gradient of a sample, and where it goes."""

import triton
import triton.language as tl

from .forward import contract
from .geometry import add_product, axis_corners, corner_rows, load_corners, one_each, wide
from .slopes import any_whole, may_move, other_side_from, tap_limits


@triton.jit
def deposit(pointer, value, live, HOW: tl.constexpr):
    """Write a gradient that is this program's alone ("store"), or add it to what others found ("add")."""
    if HOW == "add":
        tl.atomic_add(pointer, value, mask=live, sem="relaxed")
    else:
        tl.store(pointer, value, mask=live)


@triton.jit
def scatter(grad_x, start, row, channel, value, mask, scale, HOW: tl.constexpr):
    """Add [BM, BK] values to the image's gradient.

    "fixed" adds integers, whose sum does not depend on the order of the additions: value · scale in 64 bits.
    """
    where = grad_x + ((start + row)[:, None] + channel[None, :])
    if HOW == "fixed":
        tl.atomic_add(where, (value * scale).to(tl.int64), mask=mask, sem="relaxed")
    else:
        tl.atomic_add(where, value, mask=mask, sem="relaxed")


@triton.jit
def scatter_corners(grad_x, start, rows, weights, channel, g, live, in_range, scale, HOW: tl.constexpr):
    """Add g [BM, BK] at the four corners by their weights; a corner that does not count (zero padding) is left out."""
    for corner in tl.static_range(4):
        w = weights[corner]
        mask = (live & (w != 0))[:, None] & in_range[None, :]
        scatter(grad_x, start, rows[corner], channel, w[:, None] * g, mask, scale, HOW)


@triton.jit
def load_upstream(grad_out, out_at, outs, mask, out_strides, HOW: tl.constexpr, HUGE: tl.constexpr):
    """Load ∂L/∂y [BM, BN]; in float32 where it does not go to the tensor cores."""
    gy = tl.load(grad_out + out_at[:, None] + wide(outs, HUGE)[None, :] * out_strides.n, mask=mask, other=0.0)
    if HOW == "dot":
        return gy
    else:
        return gy.to(tl.float32)


@triton.jit
def tap_gradient(
    gy,  # ∂L/∂y [BM, BN] where one block holds all output channels of a group, or the channels themselves
    grad_out,
    out_at,
    weight,
    tap,
    group,
    in_group,
    c,
    live,
    in_span,
    shape,
    channels,
    out_strides,
    HOW: tl.constexpr,
    PRECISION: tl.constexpr,
    HUGE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Return the gradient of the samples at a tap, g_j = Σ_o w_jo ∂L/∂y_o: [BM, BK]."""
    g = tl.zeros([BM, BK], tl.float32)
    if HOW == "each":
        w = tl.load(weight + wide(c, HUGE) * shape.samples + tap, mask=in_span, other=0.0)[None, :]  # [1, BK]
        return contract(g, gy, w, HOW, PRECISION)
    else:
        for k in tl.range(STEPS):
            some = k * BN + tl.arange(0, BN)
            in_outs = some < channels.outs_per_group
            outs = group * channels.outs_per_group + some  # [BN]
            if STEPS == 1:
                some_gy = gy
            else:
                mask = live[:, None] & in_outs[None, :]
                some_gy = load_upstream(grad_out, out_at, outs, mask, out_strides, HOW, HUGE)  # [BM, BN]
            at = (wide(outs, HUGE) * shape.samples + tap) * channels.ins_per_group
            where = weight + at[:, None] + in_group[None, :]
            w = tl.load(where, mask=in_outs[:, None] & in_span[None, :], other=0.0)  # [BN, BK]
            g = contract(g, some_gy, w, HOW, PRECISION)
        return g


@triton.jit
def pull(g, corners, weights, slopes, a, b, KIND: tl.constexpr, MODULATED: tl.constexpr):
    """Return what samples' gradients g [BM, BK] say of their places: Σ_c g ∂x/∂y, Σ_c g ∂x/∂x, Σ_c g x, [BM] each.

    A ball's sample moves only along its ray: one sum over channels, of the derivative in the direction (a, b), is all
    that its metric feels, and it comes back as a vector along the ray. That derivative is one of differences between
    corners, which half precision keeps as well as it keeps the corners.
    """
    wy0, wy1, wx0, wx1 = weights
    vy0, vy1, vx0, vx1 = slopes
    if KIND == "ball" and not MODULATED:
        c00, c01 = a * vy0 * wx0 + b * wy0 * vx0, a * vy0 * wx1 + b * wy0 * vx1
        c10, c11 = a * vy1 * wx0 + b * wy1 * vx0, a * vy1 * wx1 + b * wy1 * vx1
        first = corners[0]
        slope = (c00 + c01 + c10 + c11).to(first.dtype)[:, None] * first  # 0 but for corners that do not count
        slope = add_product(c01.to(first.dtype)[:, None], corners[1] - first, slope)
        slope = add_product(c10.to(first.dtype)[:, None], corners[2] - first, slope)
        slope = add_product(c11.to(first.dtype)[:, None], corners[3] - first, slope)
        along = one_each(tl.sum(g * slope.to(tl.float32), 1))
        return along * a, along * b, along
    else:
        q00 = one_each(tl.sum(g * corners[0].to(tl.float32), 1))
        q01 = one_each(tl.sum(g * corners[1].to(tl.float32), 1))
        q10 = one_each(tl.sum(g * corners[2].to(tl.float32), 1))
        q11 = one_each(tl.sum(g * corners[3].to(tl.float32), 1))
        above, below = wx0 * q00 + wx1 * q01, wx0 * q10 + wx1 * q11
        to_x = vx0 * (wy0 * q00 + wy1 * q10) + vx1 * (wy0 * q01 + wy1 * q11)
        return vy0 * above + vy1 * below, to_x, wy0 * above + wy1 * below


@triton.jit
def position_gradient(
    g,  # [BM, BK]
    corners,
    weights,
    slopes,
    x,
    start,
    along_y,  # (base, position), as for ``axis_corners``
    along_x,
    cell,  # (a, b, r) of the tap
    offsets,  # (dy, dx)
    channel,
    in_range,
    shape,
    channels,
    lattice,
    KIND: tl.constexpr,
    MODULATED: tl.constexpr,
    MODE: tl.constexpr,
    HUGE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Return what ``pull`` does; at lattice points, the mean of both sides: see slopes.py."""
    a, b, r = cell
    to_y, to_x, to_m = pull(g, corners, weights, slopes, a, b, KIND, MODULATED)
    if KIND != "grid":
        limits = tap_limits(a, b, r, lattice, KIND)
        moves = may_move(offsets[0], offsets[1], lattice, KIND)
        if any_whole(along_y[1], along_x[1], limits, moves):
            base_y, at_y = other_side_from(along_y[0], along_y[1], limits[0])
            base_x, at_x = other_side_from(along_x[0], along_x[1], limits[1])
            y0, y1, wy0, wy1, vy0, vy1 = axis_corners(base_y, at_y, shape.height, MODE)
            x0, x1, wx0, wx1, vx0, vx1 = axis_corners(base_x, at_x, shape.width, MODE)
            rows = corner_rows(y0, y1, x0, x1, shape, channels.ins, HUGE)
            others = load_corners(x, start, rows, channel, in_range, EVEN)
            weights, slopes = (wy0, wy1, wx0, wx1), (vy0, vy1, vx0, vx1)
            other_y, other_x, _ = pull(g, others, weights, slopes, a, b, KIND, MODULATED)
            to_y, to_x = 0.5 * (to_y + other_y), 0.5 * (to_x + other_x)
    return to_y, to_x, to_m


@triton.jit
def deposit_parameters(
    to_field, to_drift, gradients, live, steps, KIND: tl.constexpr, DRIFT: tl.constexpr, HOW: tl.constexpr
):
    """Deposit the gradients of p0 … p4, as many as the kind has for a whole pixel."""
    if KIND == "ball" or KIND == "shifted" or KIND == "dilated":
        deposit(to_field, gradients[0], live, HOW)
    if KIND == "ball" or KIND == "shifted":
        deposit(to_field + steps[0], gradients[1], live, HOW)
    if KIND == "ball":
        deposit(to_field + steps[0] * 2, gradients[2], live, HOW)
        if DRIFT:
            deposit(to_drift, gradients[3], live, HOW)
            deposit(to_drift + steps[1], gradients[4], live, HOW)
