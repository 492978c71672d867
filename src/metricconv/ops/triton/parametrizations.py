"""Metrics from raw parameters, and their gradients, by one kernel each, for 2-D parametrizations of 5 to 7 parameters.

In plain PyTorch they are long chains of small kernels. The formulas are those of ``metrics/parametrizations.py``.
"""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...metrics import (
    Cholesky,
    EllipsoidParametrization,
    Metric,
    Parametrization,
    Randers,
    Riemannian,
    Spectral6,
    Spectral7,
)
from ...metrics._frames import _SHORTEST_VECTOR
from ...metrics.parametrizations import _EIGENVALUE_FLOOR, _SATURATION, _SQUARED_NORM_FLOOR, _TRACE_FLOOR
from ..operators import register_backward, register_operator
from .bound_kernel import BoundKernel, on_device

_BLOCK = 256
_MAX_PIXELS = 65535 * _BLOCK  # per image: a grid has at most 65535 programs along its second axis
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MATRIX_PARAMETERS = {"cholesky": 3, "spectral6": 4, "spectral7": 5}

SATURATION = tl.constexpr(_SATURATION)
SHORTEST_SQUARED = tl.constexpr(_SHORTEST_VECTOR**2)
TRACE_FLOOR = tl.constexpr(_TRACE_FLOOR)
EIGENVALUE_FLOOR = tl.constexpr(_EIGENVALUE_FLOOR)
SQUARED_NORM_FLOOR = tl.constexpr(_SQUARED_NORM_FLOOR)


def parametrize(
    parametrization: Parametrization,
    raw: Tensor,
    start: Tensor | None,
    gain: Tensor | None,
    radius: float,
    max_pixels: int = _MAX_PIXELS,
) -> Metric | None:
    """Return the metric of parameters start + gain·raw, raw (B, G, n, H, W), or None if no kernel supports it."""
    kind = _kind(parametrization)
    if kind is None or raw.dtype not in _DTYPES or any(t is not None and t.requires_grad for t in (start, gain)):
        return None
    if math.prod(raw.shape[3:]) > max_pixels or math.prod(raw.shape[1:]) >= 2**31:
        return None
    if isinstance(parametrization, Spectral7):
        low, high = parametrization.s_min, parametrization.s_max
    else:
        low = high = parametrization.eps_L  # type: ignore[attr-defined]
    assert isinstance(parametrization, EllipsoidParametrization)
    has_drift = parametrization.eps_omega < 1
    asymmetry, detached = parametrization.max_asymmetry, parametrization.detach_factor
    start = None if start is None else start.to(raw.device).contiguous()
    M, omega = _forward(raw, start, gain, kind, low, high, asymmetry, float(radius), detached, has_drift)
    return Randers(M, omega) if has_drift else Riemannian(M)


def _kind(parametrization: Parametrization) -> str | None:
    names = {Cholesky: "cholesky", Spectral6: "spectral6", Spectral7: "spectral7"}
    kind = names.get(type(parametrization))
    other_frame = getattr(parametrization, "frame", None) not in (None, "vector")
    return None if parametrization.dim != 2 or other_frame else kind


@triton.jit
def load_clamped(raw, start, gain, n, r_n, valid):
    """Return start + gain·raw of parameter n, clamped, and its derivative with respect to raw, 0 where clamped."""
    value = tl.load(raw + n * r_n, valid, other=0.0).to(tl.float32)
    slope = 1.0
    if gain is not None:
        slope = tl.load(gain).to(tl.float32)
        value *= slope
    if start is not None:
        value += tl.load(start + n).to(tl.float32)
    bounded = tl.minimum(tl.maximum(value, -SATURATION), SATURATION)
    # As by torch's clamp, NaN is preserved, and a value on the bound has a derivative.
    return tl.where(value == value, bounded, value), tl.where(bounded == value, slope, 0.0)


@triton.jit
def magnitude(raw):
    """Return |raw| and its derivative, 1 at 0."""
    slope = tl.where(raw < 0, -1.0, 1.0)
    return raw * slope, slope


@triton.jit
def tanh(x):
    """Return tanh x for x ≥ 0, without overflow."""
    e = tl.exp(-2.0 * x)
    return (1.0 - e) / (1.0 + e)


@triton.jit
def metric_kernel(
    raw, start, gain, M, omega, groups, pixels, width, r_b, r_g, r_n, r_y, r_x, low, high, asymmetry, radius,
    KIND: tl.constexpr, DRIFT_START: tl.constexpr, DRIFT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write M (B, G, 3, H, W) and ω (B, G, 2, H, W) for a block of pixels of one image and group."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    valid = pixel < pixels
    raw_pointers = raw + image // groups * r_b + image % groups * r_g + pixel // width * r_y + pixel % width * r_x
    a, _ = load_clamped(raw_pointers, start, gain, 0, r_n, valid)
    b, _ = load_clamped(raw_pointers, start, gain, 1, r_n, valid)
    c, _ = load_clamped(raw_pointers, start, gain, 2, r_n, valid)
    if KIND == "cholesky":
        a, _ = magnitude(a)
        c, _ = magnitude(c)
        a += low
        c += low
        floor = TRACE_FLOOR * (a * a + b * b + c * c)
        yy, yx, xx = a * a + floor, a * b, b * b + c * c + floor
    else:
        d, _ = load_clamped(raw_pointers, start, gain, 3, r_n, valid)
        if KIND == "spectral6":
            eigenvalue_1, _ = magnitude(c)
            eigenvalue_2, _ = magnitude(d)
            floor = TRACE_FLOOR * (eigenvalue_1 + eigenvalue_2 + 2 * low)
            eigenvalue_1 += low + floor
            eigenvalue_2 += low + floor
        else:
            s, _ = load_clamped(raw_pointers, start, gain, 4, r_n, valid)
            scale = low + (high - low) * tl.sigmoid(s)
            eigenvalue_1 = scale * (EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * tl.sigmoid(c))
            eigenvalue_2 = scale * (EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * tl.sigmoid(d))
        square = a * a + b * b + SHORTEST_SQUARED
        mean, half = (eigenvalue_1 + eigenvalue_2) / 2, (eigenvalue_1 - eigenvalue_2) / 2
        half_cos = half * (a * a - b * b) / square
        yy, yx, xx = mean + half_cos, half * 2 * a * b / square, mean - half_cos
    out_pointers = M + image * 3 * pixels + pixel
    shrink = 1 / radius
    tl.store(out_pointers, yy * shrink * shrink, valid)
    tl.store(out_pointers + pixels, yx * shrink * shrink, valid)
    tl.store(out_pointers + 2 * pixels, xx * shrink * shrink, valid)
    if DRIFT:
        y, _ = load_clamped(raw_pointers, start, gain, DRIFT_START, r_n, valid)
        x, _ = load_clamped(raw_pointers, start, gain, DRIFT_START + 1, r_n, valid)
        remainder = x - yx / yy * y
        norm = tl.sqrt(y * y / yy + remainder * remainder / (xx - yx / yy * yx) + SQUARED_NORM_FLOOR)
        factor = asymmetry * tanh(norm / 2) / norm * shrink
        out_pointers = omega + image * 2 * pixels + pixel
        tl.store(out_pointers, factor * y, valid)
        tl.store(out_pointers + pixels, factor * x, valid)


@triton.jit
def metric_gradient_kernel(
    raw, start, gain, grad_M, grad_omega, grad, groups, pixels, width, r_b, r_g, r_n, r_y, r_x, low, high, asymmetry,
    radius, o_b, o_g, o_n, o_y, o_x, KIND: tl.constexpr, DRIFT_START: tl.constexpr, DRIFT: tl.constexpr,
    DETACHED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the raw parameters, (B, G, n, H, W). Recomputes the metric."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    valid = pixel < pixels
    raw_pointers = raw + image // groups * r_b + image % groups * r_g + pixel // width * r_y + pixel % width * r_x
    out_pointers = grad + image // groups * o_b + image % groups * o_g + pixel // width * o_y + pixel % width * o_x
    shrink = 1 / radius
    a, slope_a = load_clamped(raw_pointers, start, gain, 0, r_n, valid)
    b, slope_b = load_clamped(raw_pointers, start, gain, 1, r_n, valid)
    c, slope_c = load_clamped(raw_pointers, start, gain, 2, r_n, valid)
    if KIND == "cholesky":
        a, slope = magnitude(a)
        slope_a *= slope
        c, slope = magnitude(c)
        slope_c *= slope
        a += low
        c += low
        floor = TRACE_FLOOR * (a * a + b * b + c * c)
        yy, yx, xx = a * a + floor, a * b, b * b + c * c + floor
    else:
        d, slope_d = load_clamped(raw_pointers, start, gain, 3, r_n, valid)
        if KIND == "spectral6":
            eigenvalue_1, slope = magnitude(c)
            slope_c *= slope
            eigenvalue_2, slope = magnitude(d)
            slope_d *= slope
            floor = TRACE_FLOOR * (eigenvalue_1 + eigenvalue_2 + 2 * low)
            eigenvalue_1 += low + floor
            eigenvalue_2 += low + floor
        else:
            s, slope_s = load_clamped(raw_pointers, start, gain, 4, r_n, valid)
            unit_s, unit_c, unit_d = tl.sigmoid(s), tl.sigmoid(c), tl.sigmoid(d)
            scale = low + (high - low) * unit_s
            shape_c = EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * unit_c
            shape_d = EIGENVALUE_FLOOR + 2 * (1 - EIGENVALUE_FLOOR) * unit_d
            eigenvalue_1, eigenvalue_2 = scale * shape_c, scale * shape_d
        length = tl.sqrt(a * a + b * b + SHORTEST_SQUARED)
        cos, sin = a / length, b / length
        mean, half = (eigenvalue_1 + eigenvalue_2) / 2, (eigenvalue_1 - eigenvalue_2) / 2
        half_cos = half * (cos * cos - sin * sin)
        yy, yx, xx = mean + half_cos, half * 2 * cos * sin, mean - half_cos

    grad_pointers = grad_M + image * 3 * pixels + pixel
    g_yy = tl.load(grad_pointers, valid, other=0.0) * shrink * shrink
    g_yx = tl.load(grad_pointers + pixels, valid, other=0.0) * shrink * shrink
    g_xx = tl.load(grad_pointers + 2 * pixels, valid, other=0.0) * shrink * shrink
    if DRIFT:
        grad_pointers = grad_omega + image * 2 * pixels + pixel
        g_y = tl.load(grad_pointers, valid, other=0.0) * shrink
        g_x = tl.load(grad_pointers + pixels, valid, other=0.0) * shrink
        y, slope_y = load_clamped(raw_pointers, start, gain, DRIFT_START, r_n, valid)
        x, slope_x = load_clamped(raw_pointers, start, gain, DRIFT_START + 1, r_n, valid)
        remainder = x - yx / yy * y
        schur = xx - yx / yy * yx
        norm = tl.sqrt(y * y / yy + remainder * remainder / schur + SQUARED_NORM_FLOOR)
        t = tanh(norm / 2)
        factor = asymmetry * t / norm
        grad_y, grad_x = factor * g_y, factor * g_x
        if not DETACHED:
            # d factor / d(norm²); the gradient of norm² = ωᵀM⁻¹ω is 2 M⁻¹ω in ω and −(M⁻¹ω)(M⁻¹ω)ᵀ in M.
            slope = asymmetry * ((1 - t * t) / 2 - t / norm) / (2 * norm * norm)
            grad_square = (g_y * y + g_x * x) * slope
            dual_x = remainder / schur
            dual_y = (y - yx * dual_x) / yy
            grad_y += 2 * grad_square * dual_y
            grad_x += 2 * grad_square * dual_x
            g_yy -= grad_square * dual_y * dual_y
            g_yx -= 2 * grad_square * dual_y * dual_x
            g_xx -= grad_square * dual_x * dual_x
        tl.store(out_pointers + DRIFT_START * o_n, slope_y * grad_y, valid)
        tl.store(out_pointers + (DRIFT_START + 1) * o_n, slope_x * grad_x, valid)

    if KIND == "cholesky":
        floor = TRACE_FLOOR * (g_yy + g_xx)
        tl.store(out_pointers, slope_a * (2 * a * (g_yy + floor) + b * g_yx), valid)
        tl.store(out_pointers + o_n, slope_b * (a * g_yx + 2 * b * (g_xx + floor)), valid)
        tl.store(out_pointers + 2 * o_n, slope_c * 2 * c * (g_xx + floor), valid)
    else:
        g_mean = g_yy + g_xx
        g_half = (g_yy - g_xx) * (cos * cos - sin * sin) + g_yx * 2 * cos * sin
        g_cos = 2 * half * ((g_yy - g_xx) * cos + g_yx * sin)
        g_sin = 2 * half * (g_yx * cos - (g_yy - g_xx) * sin)
        radial = g_cos * cos + g_sin * sin
        tl.store(out_pointers, slope_a * (g_cos - cos * radial) / length, valid)
        tl.store(out_pointers + o_n, slope_b * (g_sin - sin * radial) / length, valid)
        g_eigenvalue_1, g_eigenvalue_2 = (g_mean + g_half) / 2, (g_mean - g_half) / 2
        if KIND == "spectral6":
            floor = TRACE_FLOOR * (g_eigenvalue_1 + g_eigenvalue_2)
            tl.store(out_pointers + 2 * o_n, slope_c * (g_eigenvalue_1 + floor), valid)
            tl.store(out_pointers + 3 * o_n, slope_d * (g_eigenvalue_2 + floor), valid)
        else:
            shape_range = 2 * (1 - EIGENVALUE_FLOOR) * scale
            tl.store(out_pointers + 2 * o_n, slope_c * g_eigenvalue_1 * shape_range * unit_c * (1 - unit_c), valid)
            tl.store(out_pointers + 3 * o_n, slope_d * g_eigenvalue_2 * shape_range * unit_d * (1 - unit_d), valid)
            g_scale = g_eigenvalue_1 * shape_c + g_eigenvalue_2 * shape_d
            tl.store(out_pointers + 4 * o_n, slope_s * g_scale * (high - low) * unit_s * (1 - unit_s), valid)


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
    has_drift: bool,
) -> tuple[Tensor, Tensor]:
    M, omega = _empty_outputs(raw, has_drift)
    if raw.numel():
        launch = _bind(metric_kernel, raw.shape, raw.stride(), kind, low, high, asymmetry, radius, has_drift)
        with on_device(raw):
            launch(raw=raw, start=start, gain=gain, M=M, omega=omega)
    return M, omega


@functools.lru_cache(maxsize=4096)
def _bind(
    kernel: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    kind: str,
    low: float,
    high: float,
    asymmetry: float,
    radius: float,
    has_drift: bool,
    **more: Any,
) -> BoundKernel:
    batch, groups, _, height, width = shape
    return BoundKernel(
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
        DRIFT_START=_MATRIX_PARAMETERS[kind],
        DRIFT=has_drift,
        BLOCK=_BLOCK,
        **more,
    )


def _fake(raw: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(raw, options[-1])


def _empty_outputs(raw: Tensor, has_drift: bool) -> tuple[Tensor, Tensor]:
    batch, groups, _, height, width = raw.shape
    M = torch.empty(batch, groups, 3, height, width, dtype=torch.float32, device=raw.device)
    return M, torch.empty(batch, groups, 2 * has_drift, height, width, dtype=torch.float32, device=raw.device)


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
    has_drift: bool,
) -> Tensor:
    grad = torch.empty_like(raw)
    if raw.numel():
        strides = dict(zip(("o_b", "o_g", "o_n", "o_y", "o_x"), grad.stride(), strict=True))
        sizes = (raw.shape, raw.stride(), kind, low, high, asymmetry, radius, has_drift)
        launch = _bind(metric_gradient_kernel, *sizes, DETACHED=detached, **strides)
        with on_device(raw):
            tensors = {"grad_M": grad_M.contiguous(), "grad_omega": grad_omega.contiguous()}
            launch(raw=raw, start=start, gain=gain, **tensors, grad=grad)
    return grad


def _backward_fake(raw: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(raw)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.options = inputs[3:]


def _differentiate(ctx: Any, grad_M: Tensor, grad_omega: Tensor) -> tuple[Any, ...]:
    return _backward(*ctx.saved_tensors, grad_M, grad_omega, *ctx.options), *[None] * 9


_backward = register_backward("parametrize_backward", _compute_backward, _backward_fake)
_forward = register_operator("parametrize", _compute, _fake, _save, _differentiate)
