"""Where a tile of pixels looks, computed in registers from compact parameters, and the chain rule back to them.

A pixel holds at most five numbers p0 … p4, whatever the number of samples:

    kind         p0     p1     p2     p3    p4     offset of the sample at reference cell (a, b)
    ball         M_yy   M_yx   M_xx   ω_y   ω_x    s·(a, b) / F(a, b), with (a, b) a unit direction
    shifted      v_y    v_x                        (a, b) + v
    deformable   v_y    v_x   (of this tap)        (a, b) + v
    dilated      λ                                 λ·(a, b)
    grid                                           (a, b)

Everything here is float32 and elementwise over the [BM] pixels of a tile.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from ..._interpolation import FARTHEST as _FARTHEST
from ...metrics.base import SMALLEST_NORM as _SMALLEST_NORM

SMALLEST_NORM = tl.constexpr(_SMALLEST_NORM)
FARTHEST = tl.constexpr(_FARTHEST)

# Triton's interpreter (triton.knobs.runtime.interpret) multiplies bfloat16 by its bits: there, factors are widened.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Shape(NamedTuple):
    """The sizes of one call."""

    batch: int
    height: int
    width: int
    out_height: int
    out_width: int
    samples: int
    kernel_width: int
    height_magic: int  # out_height and out_width as multiplications: see ``divide``
    height_shift: int
    width_magic: int
    width_shift: int


class Lattice(NamedTuple):
    """Output o is centred at o·stride + origin + half; cell (i, j) of the reference grid lies at first + (i, j)·step.

    Far from 0 a float32 has few fractions left: a centre's whole pixels are kept apart from its half.
    """

    stride_y: int
    stride_x: int
    origin_y: int
    origin_x: int
    half_y: float
    half_x: float
    first_y: float
    first_x: float
    step_y: float
    step_x: float


class Strides(NamedTuple):
    """How to walk through a field (B, G, n, *out), or (B, G, P, d, *out); 0 broadcasts."""

    b: int
    g: int
    n: int
    d: int
    y: int
    x: int


@triton.jit
def wide(index, HUGE: tl.constexpr):
    """Return an index ready to be multiplied by a stride: in 64 bits where any tensor is HUGE, 2³¹ numbers or more."""
    if HUGE:
        return tl.full([], 0, tl.int64) + index
    else:
        return tl.full([], 0, tl.int32) + index


@triton.jit
def divide(n, d, magic, shift, HUGE: tl.constexpr):
    """Return n // d for 0 ≤ n < 2³¹, by a multiplication: ⌊2n·magic / 2³²⌋ / 2^shift, magic = ⌈2^{31+shift} / d⌉."""
    if HUGE:
        return n // d
    else:
        factor = (tl.full([], 0, tl.int64) + magic).to(tl.uint32)
        return (tl.umulhi((2 * n).to(tl.uint32), factor) >> shift).to(tl.int32)


@triton.jit
def tile_pixels(tile, shape, HUGE: tl.constexpr, BM: tl.constexpr, TW: tl.constexpr):
    """Return (image, row, column, in range) of a tile's pixels; out of range they stand on the last pixel.

    TW = 0 takes BM pixels in memory order; otherwise the tile is a patch of BM/TW × TW pixels of one image, whose
    samples share cache lines.
    """
    lane = tl.arange(0, BM)
    if TW == 0:
        pixel = wide(tile, HUGE) * BM + lane
        count = wide(shape.out_height, HUGE) * shape.out_width * shape.batch
        live = pixel < count
        pixel = tl.minimum(pixel, count - 1)
        line = divide(pixel, shape.out_width, shape.width_magic, shape.width_shift, HUGE)
        image = divide(line, shape.out_height, shape.height_magic, shape.height_shift, HUGE)
        row, column = line - image * shape.out_height, pixel - line * shape.out_width
        return image.to(tl.int32), row.to(tl.int32), column.to(tl.int32), live
    else:
        TH: tl.constexpr = BM // TW
        across = (shape.out_width + TW - 1) // TW
        down = (shape.out_height + TH - 1) // TH
        column = tile % across * TW + lane % TW
        row = tile // across % down * TH + lane // TW
        image = tl.zeros_like(lane) + tile // (across * down)
        live = (column < shape.out_width) & (row < shape.out_height)
        return image, tl.minimum(row, shape.out_height - 1), tl.minimum(column, shape.out_width - 1), live


@triton.jit
def place(image, group, row, column, strides, HUGE: tl.constexpr):
    """Return where a field of these strides keeps each pixel's first number: [BM]."""
    at = wide(image, HUGE) * strides.b + wide(group, HUGE) * strides.g
    return at + wide(row, HUGE) * strides.y + wide(column, HUGE) * strides.x


@triton.jit
def load_parameters(field, at, strides, drift, drift_at, drift_strides, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return p0 … p4 of each pixel, zeros where the kind has fewer (or reads them tap by tap)."""
    zero = tl.zeros_like(at).to(tl.float32)
    p0, p1, p2, p3, p4 = zero, zero, zero, zero, zero
    if KIND == "ball":
        p0 = tl.load(field + at)
        p1 = tl.load(field + at + strides.n)
        p2 = tl.load(field + at + strides.n * 2)
        if DRIFT:
            p3 = tl.load(drift + drift_at)
            p4 = tl.load(drift + drift_at + drift_strides.n)
    if KIND == "shifted":
        p0 = tl.load(field + at)
        p1 = tl.load(field + at + strides.n)
    if KIND == "dilated":
        p0 = tl.load(field + at)
    return p0, p1, p2, p3, p4


@triton.jit
def load_tap(field, at, strides, tap, p0, p1, KIND: tl.constexpr, PAIRED: tl.constexpr, HUGE: tl.constexpr):
    """Return the p0, p1 of this tap: a deformable support has its own at each; PAIRED, they are loaded as one."""
    if KIND == "deformable":
        at = at + wide(tap, HUGE) * strides.n
        if PAIRED:
            pair = tl.load((field + at).to(tl.pointer_type(tl.int64)))
            p0 = pair.to(tl.int32).to(tl.float32, bitcast=True)
            p1 = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        else:
            p0 = tl.load(field + at)
            p1 = tl.load(field + at + strides.d)
    return p0, p1


@triton.jit
def load_factor(modulation, at, strides, tap, MODULATED: tl.constexpr, HUGE: tl.constexpr):
    """Return what the modulation multiplies this tap's samples by, in float32: [BM], ones where there is none."""
    if MODULATED:
        return tl.load(modulation + at + wide(tap, HUGE) * strides.n).to(tl.float32)
    else:
        return tl.full(at.shape, 1.0, tl.float32)


@triton.jit
def reference_cell(tap, table, shape, lattice, KIND: tl.constexpr):
    """Return (a, b, s): the stencil's direction and radius, or the reference grid's cell and 1."""
    if KIND == "ball":
        return tl.load(table + 3 * tap), tl.load(table + 3 * tap + 1), tl.load(table + 3 * tap + 2)
    else:
        i = tap // shape.kernel_width
        j = tap - i * shape.kernel_width
        return lattice.first_y + i * lattice.step_y, lattice.first_x + j * lattice.step_x, 1.0


@triton.jit
def ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT: tl.constexpr):
    """Return F(a, b) = √(uᵀMu) + ωᵀu before it is clamped, and its root, 0 where uᵀMu is not positive."""
    square = p0 * (a * a) + p1 * (2 * a * b) + p2 * (b * b)
    root = tl.sqrt(tl.where(square <= 0, 0.0, square))
    norm = root
    if DRIFT:
        norm += p3 * a + p4 * b
    return norm, root


@triton.jit
def clamp_norm(norm):
    """Return F, not too small to divide by; NaN stays NaN, as everywhere."""
    return tl.where(norm < SMALLEST_NORM, SMALLEST_NORM, norm)


@triton.jit
def offset(a, b, s, p0, p1, p2, p3, p4, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return the displacement (dy, dx) from each pixel's centre to its sample at reference cell (a, b, s)."""
    if KIND == "ball":
        norm, _ = ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT)
        reach = s / clamp_norm(norm)
        return a * reach, b * reach
    elif KIND == "dilated":
        return p0 * a, p0 * b
    else:  # shifted and deformable add their vector; a grid's p0, p1 are zeros
        return p0 + a, p1 + b


@triton.jit
def offset_gradient(a, b, s, p0, p1, p2, p3, p4, gy, gx, KIND: tl.constexpr, DRIFT: tl.constexpr):
    """Return what a gradient (gy, gx) of the offset says about p0 … p4."""
    zero = tl.zeros_like(gy)
    if KIND == "ball":
        norm, root = ball_norm(a, b, p0, p1, p2, p3, p4, DRIFT)
        inverse = 1.0 / clamp_norm(norm)
        to_norm = -s * (a * gy + b * gx) * inverse * inverse
        to_norm = tl.where(norm < SMALLEST_NORM, 0.0, to_norm)
        to_square = tl.where(root == 0, 0.0, 0.5 * to_norm / tl.where(root == 0, 1.0, root))
        return to_square * (a * a), to_square * (2 * a * b), to_square * (b * b), to_norm * a, to_norm * b
    elif KIND == "dilated":
        return a * gy + b * gx, zero, zero, zero, zero
    else:
        return gy, gx, zero, zero, zero


@triton.jit
def fold(index, extent, MODE: tl.constexpr):
    """Bring a lattice index along one axis into [0, extent), and say 1 where it counts, 0 where it does not."""
    inside = tl.minimum(tl.maximum(index, 0), extent - 1)
    counts = tl.full(index.shape, 1.0, tl.float32)
    if MODE == "zeros":
        counts = tl.where(inside == index, 1.0, 0.0)
    if MODE == "circular":
        inside = index % extent
        inside = tl.where(inside < 0, inside + extent, inside)
    if MODE == "reflect":
        period = tl.maximum(tl.full([], 2, tl.int32) * (extent - 1), 1)
        inside = index % period
        inside = tl.where(inside < 0, inside + period, inside)
        inside = tl.minimum(inside, period - inside)
        inside = tl.minimum(inside, extent - 1)  # one pixel alone reflects onto itself
    return inside, counts


@triton.jit
def not_too_far(position):
    """Return a position that an integer can hold; NaN stays NaN."""
    return tl.clamp(position, -FARTHEST, FARTHEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def axis_corners(base, position, extent, MODE: tl.constexpr):
    """Return the two lattice indices around base + position along one axis, their weights and these' derivatives."""
    near = tl.minimum(tl.maximum(position, -FARTHEST), FARTHEST)
    low = tl.floor(near)
    up = tl.where(position == position, near - low, position)  # a NaN position stays NaN
    index = base + low.to(tl.int32)
    i0, counts0 = fold(index, extent, MODE)
    i1, counts1 = fold(index + 1, extent, MODE)
    moves = tl.where(near == position, 1.0, 0.0)  # a clamped position does not feel its parameters
    if MODE != "zeros":  # nor one between a pixel and itself: what cancels but for rounding would be magnified
        moves = tl.where(i0 == i1, 0.0, moves)
    return i0, i1, (1 - up) * counts0, up * counts1, -counts0 * moves, counts1 * moves


@triton.jit
def image_start(image, shape, channels, HUGE: tl.constexpr):
    """Return where each pixel's image starts in (B, H, W, C): [BM]."""
    return wide(image, HUGE) * shape.height * shape.width * channels


@triton.jit
def corner_rows(y0, y1, x0, x1, shape, channels, HUGE: tl.constexpr):
    """Return where the four corners' channels start in an image (H, W, C): [BM]."""
    top, bottom = wide(y0, HUGE) * shape.width, wide(y1, HUGE) * shape.width
    return (top + x0) * channels, (top + x1) * channels, (bottom + x0) * channels, (bottom + x1) * channels


@triton.jit
def load_corner(x, start, row, channel, in_range, EVEN: tl.constexpr):
    """Gather one corner's channels: [BM, BK]. EVEN says that all channels are in range."""
    where = x + ((start + row)[:, None] + channel[None, :])
    if EVEN:
        value = tl.load(where)
    else:
        value = tl.load(where, mask=in_range[None, :], other=0.0)
    if INTERPRETED:
        value = value.to(tl.float32)
    return value


@triton.jit
def load_corners(x, start, rows, channel, in_range, EVEN: tl.constexpr):
    """Gather the four corners' channels: [BM, BK] each, as they are stored."""
    return (
        load_corner(x, start, rows[0], channel, in_range, EVEN),
        load_corner(x, start, rows[1], channel, in_range, EVEN),
        load_corner(x, start, rows[2], channel, in_range, EVEN),
        load_corner(x, start, rows[3], channel, in_range, EVEN),
    )


# Two multiplications with addition, and two roundings, in one instruction.
FMA_BFLOAT16 = tl.constexpr("fma.rn.bf16x2 $0, $1, $2, $3;")
FMA_FLOAT16 = tl.constexpr("fma.rn.f16x2 $0, $1, $2, $3;")
TO_BFLOAT16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
FROM_BFLOAT16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")
TO_FLOAT16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $2, $1;")


@triton.jit
def narrow(values, DTYPE: tl.constexpr):
    """Round float32 numbers to a dtype; to half precision two at a time, which then stay side by side."""
    if INTERPRETED or tl.float32 == DTYPE:
        return values.to(DTYPE)
    elif tl.bfloat16 == DTYPE:
        return tl.inline_asm_elementwise(TO_BFLOAT16, "=r,r,r", [values], tl.bfloat16, True, 2)
    else:
        return tl.inline_asm_elementwise(TO_FLOAT16, "=r,r,r", [values], tl.float16, True, 2)


@triton.jit
def widen(values):
    """Return bfloat16 numbers that lie side by side in float32."""
    if INTERPRETED:
        return values.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(FROM_BFLOAT16, "=r,=r,r", [values], tl.float32, True, 2)


@triton.jit
def add_product(a, b, total):
    """Return total + a b; in half precision two at a time, rounded once."""
    if total.dtype == tl.float32:
        return total + a * b
    elif INTERPRETED:
        return (total.to(tl.float32) + a.to(tl.float32) * b.to(tl.float32)).to(total.dtype)
    elif total.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(FMA_BFLOAT16, "=r,r,r,r", [a, b, total], tl.bfloat16, True, 2)
    else:
        return tl.inline_asm_elementwise(FMA_FLOAT16, "=r,r,r,r", [a, b, total], tl.float16, True, 2)


@triton.jit
def blend(corners, weights, HOW: tl.constexpr):
    """Interpolate: the four corners' channels [BM, BK] by their weights.

    In float32; but what goes to the tensor cores in half precision is interpolated in it, two numbers at a time.
    """
    wy0, wy1, wx0, wx1 = weights
    DTYPE: tl.constexpr = corners[0].dtype if HOW == "dot" or HOW == "keep" else tl.float32
    value = (wy0 * wx0).to(DTYPE)[:, None] * corners[0].to(DTYPE)
    value = add_product((wy0 * wx1).to(DTYPE)[:, None], corners[1].to(DTYPE), value)
    value = add_product((wy1 * wx0).to(DTYPE)[:, None], corners[2].to(DTYPE), value)
    return add_product((wy1 * wx1).to(DTYPE)[:, None], corners[3].to(DTYPE), value)


@triton.jit
def one_each(values):
    """Return [BM] values as they are, but one to a thread, so that what follows is not computed in many."""
    return tl.gather(values, tl.arange(0, values.shape[0]), 0)
