"""The default parametrization of layers, ``Spectral7`` in 2-D, by one kernel for the metric and one for its gradient.

In plain PyTorch it is a chain of some seventy small operations. The formulas are those of metrics/parametrizations.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import _compat
from ...metrics import Metric, Randers, Spectral7
from ...metrics._frames import _SHORTEST_VECTOR
from ...metrics.parametrizations.base import _SATURATION
from ...metrics.parametrizations.ellipsoid import _SQUARED_NORM_FLOOR
from ...metrics.parametrizations.spectral import _EIGENVALUE_FLOOR
from .jit import inlined, kernel
from .simd import power_of_two
from .threads import run_tasks

_SHORTEST_SQUARE = _SHORTEST_VECTOR**2

# Pixels that one task computes: fewer are not worth a thread.
_TASK_PIXELS = 2**13


class Constants(NamedTuple):
    """The constants of a parametrization, in float32."""

    low: np.float32  # least scale
    high: np.float32  # largest scale
    asymmetry: np.float32
    gain: np.float32
    inverse_radius: np.float32
    differentiated: np.float32  # 1 if the factor of ω has a derivative, otherwise 0


def spectral7(parametrization: Spectral7, raw: Tensor, start: Tensor, gain: float, radius: float) -> Metric:
    """Return the metric of parameters start + gain·raw; raw (B, G, 7, H, W) in float32, start (7,)."""
    scales = parametrization.s_min, parametrization.s_max
    values = *scales, parametrization.max_asymmetry, gain, 1 / radius, not parametrization.detach_factor
    constants = Constants(*map(np.float32, values))
    M, omega = _apply(raw, start, constants, (parametrization, gain, radius))
    return Randers(M, omega)


class _Spectral7(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, raw: Tensor, start: Tensor, constants: Constants, arguments: tuple[Spectral7, float, float]
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(raw, start)
        ctx.constants, ctx.arguments = constants, arguments
        M, omega = (raw.new_empty(*raw.shape[:2], n, *raw.shape[3:]) for n in (3, 2))
        arrays = _rows(raw), start.numpy(), constants, _rows(M), _rows(omega)
        _run(metric_kernel, raw, arrays)
        return M, omega

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raw, start = ctx.saved_tensors
        second = torch.is_grad_enabled()  # a second derivative may follow
        if second or _compat.batched_gradients_active():
            parametrization, gain, radius = ctx.arguments
            with torch.enable_grad():
                tensors = parametrization(raw, start, raw.new_tensor(gain), radius).tensors().values()
            return *torch.autograd.grad(list(tensors), raw, grads, create_graph=second), None, None, None
        grad_raw = torch.empty_like(raw, memory_format=torch.contiguous_format)
        arrays = _rows(raw), start.numpy(), ctx.constants, *map(_rows, grads), _rows(grad_raw)
        _run(gradient_kernel, raw, arrays)
        return grad_raw, None, None, None


_apply = _compat.direct_apply(_Spectral7)


def _rows(field: Tensor) -> np.ndarray:
    """View (B, G, n, H, W) as [B·G, n, H·W]."""
    rows: np.ndarray = field.detach().flatten(0, 1).flatten(2).contiguous().numpy()
    return rows


def _run(kernel: Any, raw: Tensor, arrays: tuple[Any, ...]) -> None:
    fields, pixels = raw.shape[0] * raw.shape[1], math.prod(raw.shape[3:])
    count = min(max(fields * pixels // _TASK_PIXELS, 1), fields)
    edges = [fields * n // count for n in range(count + 1)]
    run_tasks(lambda n: kernel(*arrays, edges[n], edges[n + 1]), range(count))


@kernel
def metric_kernel(raw, start, constants, M, omega, first, last):
    """Write M [B·G, 3, N] and ω [B·G, 2, N] of fields first to last."""
    square = constants.inverse_radius * constants.inverse_radius
    for field in range(first, last):
        for i in range(np.uint64(raw.shape[2])):
            parameters = load_parameters(raw, start, constants, field, i)
            _, _, (mean, half, cos, sin) = eigen_terms(parameters, constants)
            yy, yx, xx = mean + half * cos, half * sin, mean - half * cos
            w0, w1 = parameters[5], parameters[6]
            s0, s1 = solve(yy, yx, xx, w0, w1)
            ratio, _ = tanh_ratio(np.float32(0.25) * (w0 * s0 + w1 * s1 + np.float32(_SQUARED_NORM_FLOOR)))
            factor = np.float32(0.5) * constants.asymmetry * ratio * constants.inverse_radius
            M[field, 0, i], M[field, 1, i], M[field, 2, i] = yy * square, yx * square, xx * square
            omega[field, 0, i], omega[field, 1, i] = factor * w0, factor * w1


@kernel
def gradient_kernel(raw, start, constants, grad_M, grad_omega, grad_raw, first, last):
    """Write the gradient of raw [B·G, 7, N], fields first to last."""
    square, one, two = constants.inverse_radius * constants.inverse_radius, np.float32(1), np.float32(2)
    half_one, spread = np.float32(0.5), np.float32(2 * (1 - _EIGENVALUE_FLOOR))
    for field in range(first, last):
        for i in range(np.uint64(raw.shape[2])):
            parameters = load_parameters(raw, start, constants, field, i)
            (u1, u2, unit), (first_ratio, second_ratio, scale), (mean, half, cos, sin) = eigen_terms(
                parameters, constants
            )
            a, b, w0, w1 = parameters[0], parameters[1], parameters[5], parameters[6]
            yy, yx, xx = mean + half * cos, half * sin, mean - half * cos
            s0, s1 = solve(yy, yx, xx, w0, w1)
            ratio, slope = tanh_ratio(np.float32(0.25) * (w0 * s0 + w1 * s1 + np.float32(_SQUARED_NORM_FLOOR)))
            grad_0 = grad_omega[field, 0, i] * half_one * constants.asymmetry * constants.inverse_radius
            grad_1 = grad_omega[field, 1, i] * half_one * constants.asymmetry * constants.inverse_radius
            grad_norm = (grad_0 * w0 + grad_1 * w1) * slope * np.float32(0.25) * constants.differentiated  # of ‖ω‖²
            grad_yy = grad_M[field, 0, i] * square - grad_norm * s0 * s0
            grad_yx = grad_M[field, 1, i] * square - two * grad_norm * s0 * s1
            grad_xx = grad_M[field, 2, i] * square - grad_norm * s1 * s1
            grad_half = cos * (grad_yy - grad_xx) + sin * grad_yx
            grad_cos, grad_sin = half * (grad_yy - grad_xx), half * grad_yx
            grad_first = half_one * (grad_yy + grad_xx + grad_half)
            grad_second = half_one * (grad_yy + grad_xx - grad_half)
            grad_scale = grad_first * first_ratio + grad_second * second_ratio
            inverse = one / (a * a + b * b + np.float32(_SHORTEST_SQUARE))
            grads = (
                two * inverse * (grad_cos * a * (one - cos) + grad_sin * (b - a * sin)),
                two * inverse * (grad_sin * (a - b * sin) - grad_cos * b * (one + cos)),
                grad_first * scale * spread * u1 * (one - u1),
                grad_second * scale * spread * u2 * (one - u2),
                grad_scale * (constants.high - constants.low) * unit * (one - unit),
                grad_0 * ratio + two * grad_norm * s0,
                grad_1 * ratio + two * grad_norm * s1,
            )
            store_gradients(raw, start, constants, grad_raw, grads, field, i)


@inlined
def parameter(raw, start, constants, field, n, i):
    """Return one parameter, clamped, and its derivative by raw; NaN stays NaN."""
    limit = np.float32(_SATURATION)
    value = start[n] + constants.gain * raw[field, n, i]
    clamped = -limit if value < -limit else value
    clamped = limit if clamped > limit else clamped
    return clamped, constants.gain if clamped == value else np.float32(0)


@inlined
def load_parameters(raw, start, constants, field, i):
    """Return the seven parameters of a pixel, clamped."""
    return (
        parameter(raw, start, constants, field, 0, i)[0],
        parameter(raw, start, constants, field, 1, i)[0],
        parameter(raw, start, constants, field, 2, i)[0],
        parameter(raw, start, constants, field, 3, i)[0],
        parameter(raw, start, constants, field, 4, i)[0],
        parameter(raw, start, constants, field, 5, i)[0],
        parameter(raw, start, constants, field, 6, i)[0],
    )


@inlined
def store_gradients(raw, start, constants, grad_raw, grads, field, i):
    """Write the gradients of a pixel's raw parameters, given those of the clamped ones."""
    grad_raw[field, 0, i] = grads[0] * parameter(raw, start, constants, field, 0, i)[1]
    grad_raw[field, 1, i] = grads[1] * parameter(raw, start, constants, field, 1, i)[1]
    grad_raw[field, 2, i] = grads[2] * parameter(raw, start, constants, field, 2, i)[1]
    grad_raw[field, 3, i] = grads[3] * parameter(raw, start, constants, field, 3, i)[1]
    grad_raw[field, 4, i] = grads[4] * parameter(raw, start, constants, field, 4, i)[1]
    grad_raw[field, 5, i] = grads[5] * parameter(raw, start, constants, field, 5, i)[1]
    grad_raw[field, 6, i] = grads[6] * parameter(raw, start, constants, field, 6, i)[1]


@inlined
def eigen_terms(parameters, constants):
    """Return the sigmoids of λ'_1, λ'_2 and s; λ'_1, λ'_2 and s̃; mean and half difference of λ, cos and sin of 2θ."""
    a, b = parameters[0], parameters[1]
    half, floor = np.float32(0.5), np.float32(_EIGENVALUE_FLOOR)
    spread = np.float32(2 * (1 - _EIGENVALUE_FLOOR))
    u1, u2, unit = sigmoid(parameters[2]), sigmoid(parameters[3]), sigmoid(parameters[4])
    scale = constants.low + (constants.high - constants.low) * unit
    first, second = floor + spread * u1, floor + spread * u2
    inverse = np.float32(1) / (a * a + b * b + np.float32(_SHORTEST_SQUARE))
    return (
        (u1, u2, unit),
        (first, second, scale),
        (
            half * scale * (first + second),
            half * scale * (first - second),
            (a * a - b * b) * inverse,
            np.float32(2) * a * b * inverse,
        ),
    )


@inlined
def solve(yy, yx, xx, w0, w1):
    """Return M⁻¹ω by elimination."""
    ratio = yx / yy
    s1 = (w1 - ratio * w0) / (xx - ratio * yx)
    return w0 / yy - ratio * s1, s1


@inlined
def tanh_ratio(square):
    """Return tanh(h)/h and its derivative by h², given h²."""
    one, two = np.float32(1), np.float32(2)
    h = np.sqrt(square)
    e = exponential(-two * h)
    t = (one - e) / (one + e)
    ratio = t / h
    slope = (one - t * t - ratio) / (two * square)
    # The series at 0: the difference in the slope would lose all digits.
    c1, c2, c3, c4 = np.float32(-1 / 3), np.float32(2 / 15), np.float32(-17 / 315), np.float32(62 / 2835)
    c5, c6, c7 = np.float32(-1382 / 155925), np.float32(21844 / 6081075), np.float32(-929569 / 638512875)
    x = square
    series = one + x * (c1 + x * (c2 + x * (c3 + x * (c4 + x * (c5 + x * (c6 + x * c7))))))
    series_slope = c1 + x * (
        two * c2
        + x
        * (
            np.float32(3) * c3
            + x * (np.float32(4) * c4 + x * (np.float32(5) * c5 + x * (np.float32(6) * c6 + x * (np.float32(7) * c7))))
        )
    )
    small = x < np.float32(0.2)
    return series if small else ratio, series_slope if small else slope


@inlined
def sigmoid(x):
    """Return 1/(1 + e⁻ˣ)."""
    return np.float32(1) / (np.float32(1) + exponential(-x))


@inlined
def exponential(x):
    """Return eˣ in float32 for |x| ≤ 87, beyond which x is clamped: 2ⁿ times a polynomial on [−½ ln 2, ½ ln 2]."""
    limit, half = np.float32(87), np.float32(0.5)
    x = -limit if x < -limit else x
    x = limit if x > limit else x
    n = np.floor(x * np.float32(1 / math.log(2)) + half)
    # ln 2 in two parts, the first exact in products with n.
    r = (x - n * np.float32(0.693359375)) - n * np.float32(math.log(2) - 0.693359375)
    one = np.float32(1)
    c3, c4, c5, c6 = np.float32(1 / 6), np.float32(1 / 24), np.float32(1 / 120), np.float32(1 / 720)
    p = one + r * (one + r * (half + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * np.float32(1 / 5040)))))))
    return p * power_of_two(np.int32(n))
