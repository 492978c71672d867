"""Raw numbers to (M, ω) in one kernel, and back: in two dimensions, for the parametrizations of 5, 6 and 7 numbers.

In plain PyTorch this is a long chain of small launches; the formulas are those of ``metrics/parametrizations.py``.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...metrics import Cholesky, Metric, Parametrization, Randers, Riemannian, Spectral6, Spectral7
from ...metrics._frames import _SHORTEST_VECTOR
from ...metrics.parametrizations import _EIGENVALUE_FLOOR, _SATURATION, _SQUARED_NORM_FLOOR, _TRACE_FLOOR
from .launcher import Launch, on_device
from .library import refuse
from .shortcut import first_derivative, shortcut

_BLOCK = 256
_MOST_PIXELS = 65535 * _BLOCK  # of an image: programs along the second axis of a launch
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MATRIX_NUMBERS = {"cholesky": 3, "spectral6": 4, "spectral7": 5}

SATURATION = tl.constexpr(_SATURATION)
SHORTEST_SQUARED = tl.constexpr(_SHORTEST_VECTOR**2)
TRACE_FLOOR = tl.constexpr(_TRACE_FLOOR)
EIGENVALUE_FLOOR = tl.constexpr(_EIGENVALUE_FLOOR)
SQUARED_NORM_FLOOR = tl.constexpr(_SQUARED_NORM_FLOOR)


def parametrize(
    parametrization: Parametrization, raw: Tensor, start: Tensor | None, gain: Tensor | None, radius: float
) -> Metric | None:
    """Return the metric of numbers start + gain·raw, raw (B, G, n, H, W), or None where no kernel computes it."""
    kind = _kind(parametrization)
    if kind is None or raw.dtype not in _DTYPES or any(t is not None and t.requires_grad for t in (start, gain)):
        return None
    if math.prod(raw.shape[3:]) > _MOST_PIXELS or math.prod(raw.shape[1:]) >= 2**31:
        return None
    if isinstance(parametrization, Spectral7):
        low, high = parametrization.s_min, parametrization.s_max
    else:
        low = high = parametrization.eps_L  # type: ignore[attr-defined]
    drifts = parametrization.eps_omega < 1
    asymmetry, detached = parametrization.max_asymmetry, parametrization.detach_factor
    start = None if start is None else start.to(raw.device).contiguous()
    M, omega = _forward(raw, start, gain, kind, low, high, asymmetry, float(radius), detached, drifts)
    return Randers(M, omega) if drifts else Riemannian(M)


def _kind(parametrization: Parametrization) -> str | None:
    names = {Cholesky: "cholesky", Spectral6: "spectral6", Spectral7: "spectral7"}
    kind = names.get(type(parametrization))
    framed = getattr(parametrization, "frame", None) not in (None, "vector")
    return None if parametrization.dim != 2 or framed else kind


@triton.jit
def saturated(raw, start, gain, n, r_n, live):
    """Load number n of a pixel, moved; return it bounded, and its derivative, 0 outside the bounds."""
    moved = tl.load(raw + n * r_n, live, other=0.0).to(tl.float32)
    slope = 1.0
    if gain is not None:
        slope = tl.load(gain).to(tl.float32)
        moved *= slope
    if start is not None:
        moved += tl.load(start + n).to(tl.float32)
    bounded = tl.minimum(tl.maximum(moved, -SATURATION), SATURATION)
    # As torch's clamp: NaN stays NaN, and a number on the bound still has its slope.
    return tl.where(moved == moved, bounded, moved), tl.where(bounded == moved, slope, 0.0)


@triton.jit
def magnitude(raw):
    """Return |raw| and its slope, 1 at 0."""
    slope = tl.where(raw < 0, -1.0, 1.0)
    return raw * slope, slope


@triton.jit
def tanh(x):
    """Return tanh x for x ≥ 0, without overflow."""
    e = tl.exp(-2.0 * x)
    return (1.0 - e) / (1.0 + e)


@triton.jit
def forward_kernel(
    raw, start, gain, M, omega, groups, pixels, width, r_b, r_g, r_n, r_y, r_x, low, high, asymmetry, radius,
    KIND: tl.constexpr, FIRST: tl.constexpr, DRIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write M (B, G, 3, H, W) and ω (B, G, 2, H, W) for a block of pixels of one image and group."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    live = pixel < pixels
    at = raw + image // groups * r_b + image % groups * r_g + pixel // width * r_y + pixel % width * r_x
    a, _ = saturated(at, start, gain, 0, r_n, live)
    b, _ = saturated(at, start, gain, 1, r_n, live)
    c, _ = saturated(at, start, gain, 2, r_n, live)
    if KIND == "cholesky":
        a, _ = magnitude(a)
        c, _ = magnitude(c)
        a += low
        c += low
        floor = TRACE_FLOOR * (a * a + b * b + c * c)
        yy, yx, xx = a * a + floor, a * b, b * b + c * c + floor
    else:
        d, _ = saturated(at, start, gain, 3, r_n, live)
        if KIND == "spectral6":
            one, _ = magnitude(c)
            two, _ = magnitude(d)
            floor = TRACE_FLOOR * (one + two + 2 * low)
            one += low + floor
            two += low + floor
        else:
            s, _ = saturated(at, start, gain, 4, r_n, live)
            scale = low + (high - low) * tl.sigmoid(s)
            one = scale * (EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * tl.sigmoid(c))
            two = scale * (EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * tl.sigmoid(d))
        square = a * a + b * b + SHORTEST_SQUARED
        mean, half = (one + two) / 2, (one - two) / 2
        turn = half * (a * a - b * b) / square
        yy, yx, xx = mean + turn, half * 2 * a * b / square, mean - turn
    to = M + image * 3 * pixels + pixel
    shrink = 1 / radius
    tl.store(to, yy * shrink * shrink, live)
    tl.store(to + pixels, yx * shrink * shrink, live)
    tl.store(to + 2 * pixels, xx * shrink * shrink, live)
    if DRIFT:
        y, _ = saturated(at, start, gain, FIRST, r_n, live)
        x, _ = saturated(at, start, gain, FIRST + 1, r_n, live)
        rest = x - yx / yy * y
        norm = tl.sqrt(y * y / yy + rest * rest / (xx - yx / yy * yx) + SQUARED_NORM_FLOOR)
        factor = asymmetry * tanh(norm / 2) / norm * shrink
        to = omega + image * 2 * pixels + pixel
        tl.store(to, factor * y, live)
        tl.store(to + pixels, factor * x, live)


@triton.jit
def backward_kernel(
    raw, start, gain, grad_M, grad_omega, grad, groups, pixels, width, r_b, r_g, r_n, r_y, r_x, low, high, asymmetry,
    radius, g_b, g_g, g_n, g_y, g_x, KIND: tl.constexpr, FIRST: tl.constexpr, DRIFT: tl.constexpr,
    DETACHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the raw numbers, (B, G, n, H, W), computing the metric again on the way."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    live = pixel < pixels
    at = raw + image // groups * r_b + image % groups * r_g + pixel // width * r_y + pixel % width * r_x
    to = grad + image // groups * g_b + image % groups * g_g + pixel // width * g_y + pixel % width * g_x
    shrink = 1 / radius
    a, in_a = saturated(at, start, gain, 0, r_n, live)
    b, in_b = saturated(at, start, gain, 1, r_n, live)
    c, in_c = saturated(at, start, gain, 2, r_n, live)
    if KIND == "cholesky":
        a, slope = magnitude(a)
        in_a *= slope
        c, slope = magnitude(c)
        in_c *= slope
        a += low
        c += low
        floor = TRACE_FLOOR * (a * a + b * b + c * c)
        yy, yx, xx = a * a + floor, a * b, b * b + c * c + floor
    else:
        d, in_d = saturated(at, start, gain, 3, r_n, live)
        if KIND == "spectral6":
            one, slope = magnitude(c)
            in_c *= slope
            two, slope = magnitude(d)
            in_d *= slope
            floor = TRACE_FLOOR * (one + two + 2 * low)
            one += low + floor
            two += low + floor
        else:
            s, in_s = saturated(at, start, gain, 4, r_n, live)
            unit_s, unit_c, unit_d = tl.sigmoid(s), tl.sigmoid(c), tl.sigmoid(d)
            scale = low + (high - low) * unit_s
            shape_c = EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * unit_c
            shape_d = EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * unit_d
            one, two = scale * shape_c, scale * shape_d
        length = tl.sqrt(a * a + b * b + SHORTEST_SQUARED)
        cos, sin = a / length, b / length
        mean, half = (one + two) / 2, (one - two) / 2
        turn = half * (cos * cos - sin * sin)
        yy, yx, xx = mean + turn, half * 2 * cos * sin, mean - turn

    given = grad_M + image * 3 * pixels + pixel
    g_yy = tl.load(given, live, other=0.0) * shrink * shrink
    g_yx = tl.load(given + pixels, live, other=0.0) * shrink * shrink
    g_xx = tl.load(given + 2 * pixels, live, other=0.0) * shrink * shrink
    if DRIFT:
        given = grad_omega + image * 2 * pixels + pixel
        g_y = tl.load(given, live, other=0.0) * shrink
        g_x = tl.load(given + pixels, live, other=0.0) * shrink
        y, in_y = saturated(at, start, gain, FIRST, r_n, live)
        x, in_x = saturated(at, start, gain, FIRST + 1, r_n, live)
        rest = x - yx / yy * y
        schur = xx - yx / yy * yx
        norm = tl.sqrt(y * y / yy + rest * rest / schur + SQUARED_NORM_FLOOR)
        t = tanh(norm / 2)
        factor = asymmetry * t / norm
        moved_y, moved_x = factor * g_y, factor * g_x
        if not DETACHED:
            # d factor / d(norm²), and norm² = ωᵀM⁻¹ω moves by 2 M⁻¹ω in ω and by −(M⁻¹ω)(M⁻¹ω)ᵀ in M.
            slope = asymmetry * ((1 - t * t) / 2 - t / norm) / (2 * norm * norm)
            pull = (g_y * y + g_x * x) * slope
            raised_x = rest / schur
            raised_y = (y - yx * raised_x) / yy
            moved_y += 2 * pull * raised_y
            moved_x += 2 * pull * raised_x
            g_yy -= pull * raised_y * raised_y
            g_yx -= 2 * pull * raised_y * raised_x
            g_xx -= pull * raised_x * raised_x
        tl.store(to + FIRST * g_n, in_y * moved_y, live)
        tl.store(to + (FIRST + 1) * g_n, in_x * moved_x, live)

    if KIND == "cholesky":
        floor = TRACE_FLOOR * (g_yy + g_xx)
        tl.store(to, in_a * (2 * a * (g_yy + floor) + b * g_yx), live)
        tl.store(to + g_n, in_b * (a * g_yx + 2 * b * (g_xx + floor)), live)
        tl.store(to + 2 * g_n, in_c * 2 * c * (g_xx + floor), live)
    else:
        g_mean = g_yy + g_xx
        g_half = (g_yy - g_xx) * (cos * cos - sin * sin) + g_yx * 2 * cos * sin
        g_cos = 2 * half * ((g_yy - g_xx) * cos + g_yx * sin)
        g_sin = 2 * half * (g_yx * cos - (g_yy - g_xx) * sin)
        radial = g_cos * cos + g_sin * sin
        tl.store(to, in_a * (g_cos - cos * radial) / length, live)
        tl.store(to + g_n, in_b * (g_sin - sin * radial) / length, live)
        g_one, g_two = (g_mean + g_half) / 2, (g_mean - g_half) / 2
        if KIND == "spectral6":
            floor = TRACE_FLOOR * (g_one + g_two)
            tl.store(to + 2 * g_n, in_c * (g_one + floor), live)
            tl.store(to + 3 * g_n, in_d * (g_two + floor), live)
        else:
            span = 2 * (1 - EIGENVALUE_FLOOR) * scale
            tl.store(to + 2 * g_n, in_c * g_one * span * unit_c * (1 - unit_c), live)
            tl.store(to + 3 * g_n, in_d * g_two * span * unit_d * (1 - unit_d), live)
            g_scale = g_one * shape_c + g_two * shape_d
            tl.store(to + 4 * g_n, in_s * g_scale * (high - low) * unit_s * (1 - unit_s), live)


def _compute(
    raw: Tensor,
    start: Tensor | None,
    gain: Tensor | None,
    kind: str,
    low: float,
    high: float,
    asymmetry: float,
    radius: float,
    detached: bool,
    drifts: bool,
) -> tuple[Tensor, Tensor]:
    M, omega = _empty_outputs(raw, drifts)
    if raw.numel():
        launch = _launch(forward_kernel, raw.shape, raw.stride(), kind, low, high, asymmetry, radius, drifts)
        with on_device(raw):
            launch(raw=raw, start=start, gain=gain, M=M, omega=omega)
    return M, omega


@functools.lru_cache(maxsize=4096)
def _launch(
    kernel: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kind: str,
    low: float,
    high: float,
    asymmetry: float,
    radius: float,
    drifts: bool,
    **more: Any,
) -> Launch:
    batch, groups, _, height, width = shape
    return Launch(
        kernel,
        (batch * groups, triton.cdiv(height * width, _BLOCK)),
        groups=groups,
        pixels=height * width,
        width=width,
        **dict(zip(("r_b", "r_g", "r_n", "r_y", "r_x"), strides, strict=True)),
        low=low,
        high=high,
        asymmetry=asymmetry,
        radius=radius,
        KIND=kind,
        FIRST=_MATRIX_NUMBERS[kind],
        DRIFT=drifts,
        BLOCK=_BLOCK,
        **more,
    )


_forward_operator = torch.library.custom_op("metricconv::parametrize", _compute, mutates_args=())


@_forward_operator.register_fake
def _(raw: Tensor, *numbers: Any) -> Any:
    return _empty_outputs(raw, numbers[-1])


def _empty_outputs(raw: Tensor, drifts: bool) -> tuple[Tensor, Tensor]:
    batch, groups, _, height, width = raw.shape
    M = torch.empty(batch, groups, 3, height, width, dtype=torch.float32, device=raw.device)
    return M, torch.empty(batch, groups, 2 * drifts, height, width, dtype=torch.float32, device=raw.device)


def _compute_backward(
    raw: Tensor,
    start: Tensor | None,
    gain: Tensor | None,
    grad_M: Tensor,
    grad_omega: Tensor,
    kind: str,
    low: float,
    high: float,
    asymmetry: float,
    radius: float,
    detached: bool,
    drifts: bool,
) -> Tensor:
    grad = torch.empty_like(raw)
    if raw.numel():
        strides = dict(zip(("g_b", "g_g", "g_n", "g_y", "g_x"), grad.stride(), strict=True))
        sizes = (raw.shape, raw.stride(), kind, low, high, asymmetry, radius, drifts)
        launch = _launch(backward_kernel, *sizes, DETACHED=detached, **strides)
        with on_device(raw):
            tensors = {"grad_M": grad_M.contiguous(), "grad_omega": grad_omega.contiguous()}
            launch(raw=raw, start=start, gain=gain, **tensors, grad=grad)
    return grad


_backward_operator = torch.library.custom_op("metricconv::parametrize_backward", _compute_backward, mutates_args=())


@_backward_operator.register_fake
def _(raw: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(raw)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.numbers = inputs[3:]


def _differentiate(ctx: Any, grad_M: Tensor, grad_omega: Tensor) -> tuple[Any, ...]:
    return _backward(*ctx.saved_tensors, grad_M, grad_omega, *ctx.numbers), *[None] * 9


_forward_operator.register_autograd(_differentiate, setup_context=_keep)
_backward_operator.register_autograd(refuse)
_forward = shortcut(_forward_operator, _compute, _keep, _differentiate)
_backward = first_derivative(_backward_operator, _compute_backward)
