"""Metrics computed from an image, without learning, with balls that are narrow across edges.

Each function maps an image (B, C, *spatial) to a metric at each pixel with one group, computed from all channels
together. The images of a batch are independent: gradients are normalized by the maximum of each image. The functions
are differentiable. Where the image is constant, balls are round with radius 1/√ι (``iota``): 3.2 pixels for ι = 0.1.

Images must be finite. On the CPU this is checked. On other devices it is checked only within ``check_finite()``, as the
check waits for the device, and in traced or compiled graphs not at all: there an image that is not finite has a metric
of NaN.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from .. import _checks, _interpolation
from . import _symmetric
from .base import Metric
from .randers import Randers
from .riemannian import Riemannian

Spacing = float | Sequence[float] | None
EllipsoidalMetric = TypeVar("EllipsoidalMetric", Riemannian, Randers)

__all__ = [
    "IMAGE_METRICS",
    "edge_metric",
    "gradient_length",
    "gradient_metric",
    "gradient_reach",
    "image_metric",
    "structure_metric",
    "structure_trace",
]

# Range of the standard deviations of filters, in pixels.
_MIN_SCALE, _MAX_SCALE = 0.01, 1000
# Radius of sampled Gaussians in standard deviations; the weight outside is less than 1e-4.
_TRUNCATE = 4.0


def gradient_metric(
    image: Tensor,
    iota: float = 0.1,
    alpha: float = 100.0,
    *,
    eps_omega: float = 1.0,
    drift: str = "tangent",
    scale: float | None = None,
    padding_mode: str = "border",
    largest: float | None = None,
    spacing: Spacing = None,
) -> Riemannian | Randers:
    """Return the metric whose balls are narrow along the image gradient ∇f and elongated along edges.

    With n = ∇f/|∇f|, g = |∇f| / max |∇f| and a = 1 + αg:

        M = ι (a n nᵀ + (I − n nᵀ)/a),    ω = (1 − ε_ω) t / ‖t‖_{M⁻¹},

    where the direction t of the drift is n rotated by 90°, or n itself. ω = 0 where the gradient is 0. The anisotropy a
    is limited by the precision ε of the dtype, a ≤ √(ε_ω/ε)/2, so that M is not singular; 458 in float32 for ε_ω = 0.1.

    Args:
        image: (B, C, *spatial), finite; checked on the CPU and in ``check_finite()``. With several channels, ∇f
            is the longest of their gradients at each pixel.
        iota: scale ι of the metric, positive (default 0.1). M = ιI where the gradient is 0.
        alpha: gain α of the anisotropy, at least 0 (default 100). Its maximum is 1 + α, where the gradient is largest.
        eps_omega: ε_ω = 1 − ‖ω‖_{M⁻¹}, in (0, 1]. At 1 (default) there is no drift and the metric is Riemannian.
        drift: "tangent" (default): t = (n_x, −n_y) in (y, x) order, along the edge; 2-D only. "normal": t = n.
        scale: standard deviation of the Gaussian derivative filters, 0.01 to 1000 pixels. Default: None, 3×3 Sobel
            filters.
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        largest: max |∇f| of a larger image of which ``image`` is a part. Default: the maximum over each image.
        spacing: distance between pixels, a number or one per spatial axis. Lengths, such as 1/√ι and scales, are then
            in units of the smallest. Default: the same along all axes.

    Returns:
        ``Riemannian``, or ``Randers`` if ``eps_omega`` < 1: (B, 1, n, *spatial).

    >>> step = torch.zeros(1, 1, 5, 6)
    >>> step[..., 3:] = 1.0
    >>> ball = gradient_metric(step).unit_vectors(torch.eye(2))[0, 0, :, :, 2, 2]  # at the edge, which is along y
    >>> ball.diag()  # extent along y and along x
    tensor([31.7805,  0.3147])
    """
    _checks.one_of(drift, ("tangent", "normal"), "drift")
    eps_omega = _checks.fraction(eps_omega, "eps_omega")
    iota, alpha = _checks.positive(iota, "iota"), _checks.not_negative(alpha, "alpha")
    normal, length = _unit_gradient(image, scale, padding_mode, spacing)
    rounding = torch.finfo(length.dtype).eps
    margin = max(eps_omega, 4 * rounding)
    stretch = (1 + alpha * (length / _largest(length, largest))).clamp_max((margin / rounding) ** 0.5 / 2)
    across = _symmetric.outer(normal)
    M = iota * (_symmetric.identity(across) / stretch + (stretch - 1 / stretch) * across)
    if eps_omega == 1:
        return in_pixels(Riemannian(M), spacing)
    # n and t are eigenvectors of M, so ‖t‖_{M⁻¹} is known without an inverse.
    if drift == "normal":
        return in_pixels(Randers(M, (1 - margin) * (iota * stretch).sqrt() * normal), spacing)
    if normal.shape[2] != 2:
        raise ValueError(
            f"`drift` (='tangent') requires an image with 2 spatial axes, got {normal.shape[2]}: use drift='normal' or "
            "eps_omega=1"
        )
    y, x = normal.unbind(2)
    return in_pixels(Randers(M, (1 - margin) * (iota / stretch).sqrt() * torch.stack([x, -y], 2)), spacing)


def edge_metric(
    image: Tensor,
    iota: float = 0.05,
    alpha: float = 10.0,
    *,
    scale: float | None = 1.5,
    padding_mode: str = "border",
    largest: float | None = None,
    spacing: Spacing = None,
) -> Riemannian:
    """Return the metric whose balls are round and small near edges: M = ι (1 + α |∇f_s| / max |∇f_s|)² I.

    With g = |∇f_s| / max |∇f_s|, balls have radius (1/√ι) / (1 + αg). Geodesic balls of this metric end at edges.

    Args:
        image: (B, C, *spatial), finite; checked on the CPU and in ``check_finite()``. With several channels,
            ∇f_s is the longest of their gradients at each pixel.
        iota: scale ι of the metric, positive (default 0.05). M = ιI where the gradient is 0.
        alpha: α, at least 0 (default 10). Balls are smaller by 1 + α where the gradient is largest.
        scale: standard deviation s of the Gaussian derivative filters, 0.01 to 1000 pixels (default 1.5); None for
            3×3 Sobel filters.
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        largest: max |∇f_s| of a larger image of which ``image`` is a part. Default: the maximum over each image.
        spacing: distance between pixels, a number or one per spatial axis. Lengths, such as 1/√ι and scales, are then
            in units of the smallest. Default: the same along all axes.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> step = torch.zeros(1, 1, 5, 6)
    >>> step[..., 3:] = 1.0
    >>> edge_metric(step, iota=0.01, alpha=9.0, scale=None).bounding_radius[0, 0, 2]
    tensor([10., 10.,  1.,  1., 10., 10.])
    """
    iota, alpha = _checks.positive(iota, "iota"), _checks.not_negative(alpha, "alpha")
    _, length = _unit_gradient(image, scale, padding_mode, spacing)
    factor = iota * (1 + alpha * (length / _largest(length, largest))).square()  # [B, 1, 1, *spatial]
    dim = image.dim() - 2
    zero = torch.zeros_like(factor)
    return in_pixels(Riemannian(torch.cat([factor if i == j else zero for i, j in _symmetric.pairs(dim)], 2)), spacing)


def structure_metric(
    image: Tensor,
    iota: float = 0.2,
    alpha: float = 10.0,
    *,
    noise_scale: float = 1.0,
    integration_scale: float = 2.0,
    padding_mode: str = "border",
    largest: float | None = None,
    spacing: Spacing = None,
) -> Riemannian:
    """Return the metric whose balls are elongated along edges and stripes, with constant volume.

    With the structure tensor J = G_ρ ∗ Σ_c ∇f_c ∇f_cᵀ of the gradients at the noise scale, averaged at the integration
    scale ρ, and A = I + α² J / max tr J:

        M = ι A / det(A)^{1/d}.

    At an edge or a stripe, balls are elongated along it. At corners and in flat regions they are round. M does not
    involve eigenvectors, so it is a smooth function of the image. α is limited by the precision ε of the dtype, to
    1/(4√ε), so that M is not singular; 724 in float32.

    Args:
        image: (B, C, *spatial), finite; checked on the CPU and in ``check_finite()``. The structure tensors of the
            channels are added.
        iota: scale ι of the metric, positive (default 0.2). M = ιI in flat regions.
        alpha: gain α of the anisotropy, at least 0 (default 10). The anisotropy is at most √(1 + α²).
        noise_scale: standard deviation of the Gaussian derivative filters, 0.01 to 1000 pixels (default 1).
        integration_scale: standard deviation ρ of the Gaussian average of the structure tensor, 0.01 to 1000 pixels
            (default 2).
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        largest: max tr J of a larger image of which ``image`` is a part. Default: the maximum over each image.
        spacing: distance between pixels, a number or one per spatial axis. Lengths, such as 1/√ι and scales, are then
            in units of the smallest. Default: the same along all axes.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> stripes = torch.cos(torch.arange(32.0)).expand(1, 1, 32, 32)  # along y
    >>> ball = structure_metric(stripes).unit_vectors(torch.eye(2))[0, 0, :, :, 16, 16]
    >>> bool(ball[0, 0] > 9 * ball[1, 1])
    True
    """
    iota, alpha = _checks.positive(iota, "iota"), _checks.not_negative(alpha, "alpha")
    gradient = image_gradient(image, _check_scale(noise_scale, "noise_scale"), padding_mode, spacing)
    if largest is None:
        gradient = gradient / _scale(gradient)
    else:
        largest = _checks.not_negative(largest, "largest")
        # In float64, since tr J may exceed the range of the dtype of the image.
        gradient = (gradient.double() / math.sqrt(largest or 1.0)).clamp(-(2**10), 2**10).to(gradient.dtype)
        largest = 1.0
    tensor, trace = _structure(gradient, integration_scale, padding_mode, spacing)
    gain = min(alpha, 0.25 / torch.finfo(tensor.dtype).eps ** 0.5) ** 2
    shape = _symmetric.identity(tensor) + gain * (tensor / _largest(trace, largest))
    M = iota * shape / _symmetric.determinant(shape).pow(1 / (image.dim() - 2)).unsqueeze(2)
    return in_pixels(Riemannian(M), spacing)


IMAGE_METRICS: dict[str, Callable[..., Metric]] = {
    "gradient": gradient_metric,
    "edge": edge_metric,
    "structure": structure_metric,
}
"""The functions of this module that compute a metric, by name."""


def image_metric(
    metric: str | Callable[[Tensor], Metric], *, padding_mode: str | None = None, spacing: Spacing = None
) -> Callable[[Tensor], Metric]:
    """Return the function that computes a metric from an image.

    Layers and filters use it for their argument ``metric``: ``"gradient"`` and ``gradient_metric`` mean the same.

    Args:
        metric: "gradient", "edge" or "structure", for the function of that name in ``IMAGE_METRICS``; or a function of
            the image (B, C, *spatial).
        padding_mode: padding mode of a function in ``IMAGE_METRICS``, given by name or itself. Default: its own. Other
            functions, including ``functools.partial`` objects, are returned unchanged.
        spacing: distance between pixels, an argument of the functions in ``IMAGE_METRICS``; only with one of these.

    >>> image_metric("edge") is edge_metric and image_metric(edge_metric) is edge_metric
    True
    >>> image_metric("edge", padding_mode="circular").keywords
    {'padding_mode': 'circular'}
    """
    if not isinstance(metric, str) and not callable(metric):
        raise TypeError(f"`metric` must be a name or a function of the image, got {type(metric).__name__}")
    function: Callable[..., Metric] = (
        IMAGE_METRICS[_checks.one_of(metric, IMAGE_METRICS, "metric")] if isinstance(metric, str) else metric
    )
    known = function in IMAGE_METRICS.values()
    if spacing is not None and not known:
        raise ValueError(
            f"`spacing` (={spacing!r}) requires a metric of {', '.join(map(repr, IMAGE_METRICS))}: pass it to your own "
            "function, or scale its metric by metric.scaled([1 / s, …])"
        )
    options = {"padding_mode": padding_mode, "spacing": spacing} if known else {}
    given = {name: value for name, value in options.items() if value is not None}
    return partial(function, **given) if given else function


def gradient_length(
    image: Tensor, scale: float | None, padding_mode: str = "border", spacing: Spacing = None
) -> Tensor:
    """Return |∇f|, (B, 1, 1, *spatial), by whose maximum the gradient and the edge metric are normalized."""
    return _unit_gradient(image, scale, padding_mode, spacing)[1]


def structure_trace(
    image: Tensor,
    noise_scale: float,
    integration_scale: float,
    padding_mode: str = "border",
    spacing: Spacing = None,
) -> Tensor:
    """Return tr J in float64, (B, 1, 1, *spatial), by whose maximum the structure metric is normalized."""
    gradient = image_gradient(image, noise_scale, padding_mode, spacing).double()
    return _structure(gradient, integration_scale, padding_mode, spacing)[1]


def gradient_reach(scale: float | None) -> int:
    """Return the radius in pixels of the gradient and smoothing filters of a scale."""
    return 1 if scale is None else math.ceil(_TRUNCATE * _check_scale(scale, "scale"))


def _check_scale(value: object, name: str) -> float:
    """Check the standard deviation of a filter: smaller ones give the same filter, larger ones take too long."""
    if not isinstance(value, int) and not _checks.number(value) > 0:  # large integers do not convert to float
        value = _checks.positive(value, name)
    if not _MIN_SCALE <= value <= _MAX_SCALE:  # type: ignore[operator]
        raise ValueError(f"`{name}` (={value!r}) must be between {_MIN_SCALE} and {_MAX_SCALE} pixels")
    return float(value)  # type: ignore[arg-type]


def in_pixels(metric: EllipsoidalMetric, spacing: Spacing) -> EllipsoidalMetric:
    """Return a metric of lengths in units of the smallest spacing as a metric of lengths in pixels."""
    return metric if spacing is None else metric.scaled([1 / s for s in _checks.relative_spacing(spacing, metric.dim)])


def _structure(
    gradient: Tensor, integration_scale: float, padding_mode: str, spacing: Spacing
) -> tuple[Tensor, Tensor]:
    """Return the structure tensor J of gradients (B, C, d, *spatial), packed, and its trace: (B, 1, n, *spatial)."""
    _check_scale(integration_scale, "integration_scale")
    limit = math.sqrt(torch.finfo(gradient.dtype).max) / 2**10  # for finite squares and sums
    tensor = _symmetric.outer(gradient.clamp(-limit, limit)).sum(1, keepdim=True)
    padding_mode = _checks.padding_mode(padding_mode)
    for axis, step in enumerate(_checks.relative_spacing(spacing, gradient.dim() - 3), 3):
        tensor = _correlate(tensor, _gaussian(integration_scale / step), axis, padding_mode)
    diagonal = [k for k, (i, j) in enumerate(_symmetric.pairs(gradient.shape[2])) if i == j]
    return tensor, tensor[:, :, diagonal].sum(2, keepdim=True)


def _unit_gradient(
    image: Tensor, scale: float | None, padding_mode: str, spacing: Spacing = None
) -> tuple[Tensor, Tensor]:
    """Return the direction (B, 1, d, *spatial) and the length (B, 1, 1, *spatial) of the longest gradient of a channel.

    Where it is 0, the direction and the derivatives of both are 0. NaN stays NaN.
    """
    gradient = image_gradient(image, scale, padding_mode, spacing)
    unit = _scale(gradient)
    gradient = gradient / unit
    square = gradient.square().sum(2, keepdim=True)
    longest = square.argmax(1, keepdim=True)
    gradient = gradient.gather(1, longest.expand(-1, -1, gradient.shape[2], *gradient.shape[3:]))
    square = square.gather(1, longest)
    flat = square <= 0
    length = torch.where(flat, 1, square).sqrt()
    return torch.where(flat, 0, gradient / length), torch.where(flat, 0, length * unit)


def _scale(field: Tensor) -> Tensor:
    """Return a power of 2 near the largest value of each image, (B, 1, 1, …), to avoid overflow of squares."""
    largest = field.detach().abs().amax(tuple(range(1, field.dim())), keepdim=True)
    limit = math.frexp(torch.finfo(field.dtype).max)[1] - 4
    return torch.exp2(torch.frexp(largest).exponent.clamp(-limit, limit).to(field.dtype))


def _largest(field: Tensor, given: float | None) -> Tensor | float:
    """Return the divisor: the largest value of each image, (B, 1, 1, …), or the given one; 1 instead of 0."""
    if given is not None:
        return _checks.not_negative(given, "largest") or 1.0
    largest = field.amax(tuple(range(1, field.dim())), keepdim=True)
    return torch.where(largest <= 0, 1, largest)


def image_gradient(image: Tensor, scale: float | None, padding_mode: str, spacing: Spacing = None) -> Tensor:
    """Return ∇f of every channel, in tensor-axis order, in units of the smallest spacing: (B, C, d, *spatial).

    The difference filter is applied before smoothing, so that the gradient of a constant image is exactly 0.
    """
    image = _checks.floating(image, "image")
    if image.dim() < 3 or not image.shape[1] or not math.prod(image.shape[2:]):
        raise ValueError(f"`image` must be (B, C, *spatial) and not empty, got shape {tuple(image.shape)}")
    padding_mode = _checks.padding_mode(padding_mode)
    _checks.finite_where_cheap(image, "image")
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    limit = torch.finfo(image.dtype).max / 2**10  # for finite sums
    image = torch.where(image.isfinite(), image.clamp(-limit, limit), torch.nan)
    steps = _checks.relative_spacing(spacing, image.dim() - 2)
    if scale is not None:
        scale = _check_scale(scale, "scale")
    differences = [[0.5] if scale is None else _gaussian_derivative(scale / step) for step in steps]
    smoothings = [[0.5, 0.25] if scale is None else _gaussian(scale / step) for step in steps]
    components = []
    for axis, step in enumerate(steps):
        component = _correlate(image, [w / step for w in differences[axis]], axis + 2, padding_mode, odd=True)
        for other, smoothing in enumerate(smoothings):
            if other != axis:
                component = _correlate(component, smoothing, other + 2, padding_mode)
        components.append(component)
    return torch.stack(components, 2)


def _correlate(field: Tensor, weights: Sequence[float], axis: int, padding_mode: str, *, odd: bool = False) -> Tensor:
    """Filter along one axis with even weights w_0, w_1, … (w_{−t} = w_t) or odd ones w_1, w_2, … (w_{−t} = −w_t)."""
    size, reach = field.shape[axis], len(weights) - (not odd)
    index, inside = _interpolation.line(-reach, size + reach, size, padding_mode, field.device)
    padded = field.index_select(axis, index) * inside.to(field.dtype).view(-1, *(1,) * (field.dim() - 1 - axis))

    def shifted(t: int) -> Tensor:
        return padded.narrow(axis, reach + t, size)

    if odd:
        return torch.stack([w * (shifted(t) - shifted(-t)) for t, w in enumerate(weights, 1)]).sum(0)
    return weights[0] * shifted(0) + sum(w * (shifted(t) + shifted(-t)) for t, w in enumerate(weights[1:], 1))


def _gaussian(scale: float) -> list[float]:
    """Return the weights w_0, w_1, … of a sampled Gaussian, with sum 1 over both sides."""
    half = [math.exp(-0.5 * (t / scale) ** 2) for t in range(math.ceil(_TRUNCATE * scale) + 1)]
    total = half[0] + 2 * sum(half[1:])
    return [w / total for w in half]


def _gaussian_derivative(scale: float) -> list[float]:
    """Return the weights w_1, w_2, … of a sampled Gaussian derivative, exact for linear functions: Σ_t t w_t = 1."""
    # Relative to the weight at t = 1, so that not all weights underflow for small scales.
    half = [t * math.exp(-0.5 * (t * t - 1) / scale**2) for t in range(1, math.ceil(_TRUNCATE * scale) + 1)]
    total = 2 * sum(t * w for t, w in enumerate(half, 1))
    return [w / total for w in half]
