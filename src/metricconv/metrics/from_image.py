"""Metrics read off an image, with no learning: balls that are thin across edges, and wide or long elsewhere.

Every function takes an image (B, C, *spatial) and returns a metric at every pixel of it, with one group. Images of a
batch do not see each other: the largest gradient is each image's own. Channels are seen together. All of them are
differentiable, and give round balls where the image is constant.

With ι (``iota``) the balls of a flat region have radius 1/√ι pixels: 3.2 for ι = 0.1.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _checks, _interpolation
from . import _symmetric
from .randers import Randers
from .riemannian import Riemannian

# A sampled Gaussian is cut here, in standard deviations: what is left out weighs less than 1e-4.
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
) -> Riemannian | Randers:
    """Flatten the balls against the image's edges: thin along the gradient ∇f, long across it.

    With n = ∇f/|∇f|, g = |∇f| / max |∇f| and a = 1 + αg:

        M = ι (a n nᵀ + (I − n nᵀ)/a),    ω = (1 − ε_ω) t / ‖t‖_{M⁻¹},

    where the drift's direction t is n turned by a quarter, or n itself. ω = 0 where the gradient vanishes. M is no
    thinner than the image's dtype can tell from a line: a ≤ √(ε_ω/ε)/2, with its rounding ε; 458 in float32 for 0.1.

    Args:
        image: (B, C, *spatial). With several channels, ∇f is the longest of their gradients at each pixel.
        iota: the scale of the metric; without gradient M = ιI.
        alpha: the gain in anisotropy; where the gradient is largest the ball is 1 + α times as long as thin.
        eps_omega: the room left below ‖ω‖_{M⁻¹} = 1, in (0, 1]. At 1 there is no drift and the metric is Riemannian.
        drift: "tangent" to the edge (2-D only; from (y, x) = (n_y, n_x) to (n_x, −n_y)), or "normal" to it.
        scale: the standard deviation, in pixels, of the Gaussian whose derivative is taken; None for 3×3 Sobel filters.
        padding_mode: what the gradient sees past the border: "border", "reflect", "circular" or "zeros".
        largest: max |∇f|, if not this image's own: that of the whole of which it is a part.

    Returns:
        ``Riemannian``, or ``Randers`` when ``eps_omega`` < 1: (B, 1, …, *spatial).

    >>> step = torch.zeros(1, 1, 5, 6)
    >>> step[..., 3:] = 1.0
    >>> ball = gradient_metric(step).unit_vectors(torch.eye(2))[0, 0, :, :, 2, 2]  # at the edge, which runs along y
    >>> ball.diag()  # its reach along y and along x
    tensor([31.7805,  0.3147])
    """
    _checks.one_of(drift, ("tangent", "normal"), "drift")
    _checks.share(eps_omega, "eps_omega")
    _checks.positive(iota, "iota")
    _checks.not_negative(alpha, "alpha")
    normal, length = _unit_gradient(image, scale, padding_mode)
    rounding = torch.finfo(length.dtype).eps
    room = max(eps_omega, 4 * rounding)
    stretch = (1 + alpha * (length / _largest(length, largest))).clamp_max((room / rounding) ** 0.5 / 2)
    across = _symmetric.outer(normal)
    M = iota * (_symmetric.identity(across) / stretch + (stretch - 1 / stretch) * across)
    if eps_omega == 1:
        return Riemannian(M)
    # n and its quarter turn are eigenvectors of M, so that ‖t‖_{M⁻¹} needs no inverse.
    if drift == "normal":
        return Randers(M, (1 - room) * (iota * stretch).sqrt() * normal)
    if normal.shape[2] != 2:
        raise ValueError(
            f"`drift` (='tangent') needs an image with 2 spatial axes, where an edge has one direction, got "
            f"{normal.shape[2]}: use drift='normal' or eps_omega=1"
        )
    y, x = normal.unbind(2)
    return Randers(M, (1 - room) * (iota / stretch).sqrt() * torch.stack([x, -y], 2))


def edge_metric(
    image: Tensor,
    iota: float = 0.05,
    alpha: float = 10.0,
    *,
    scale: float | None = 1.5,
    padding_mode: str = "border",
    largest: float | None = None,
) -> Riemannian:
    """Shrink the balls near the image's edges, and keep them round: M = ι (1 + α |∇f_s| / max |∇f_s|)² I.

    The balls have radius (1/√ι) / (1 + αg); a geodesic ball of this metric stops at edges.

    Args:
        image: (B, C, *spatial). With several channels, ∇f is the longest of their gradients at each pixel.
        iota: the scale of the metric; without gradient M = ιI.
        alpha: how much smaller the ball is where the gradient is largest: 1 + α times.
        scale: the standard deviation s, in pixels, of the Gaussian whose derivative is taken; None for Sobel filters.
        padding_mode: what the gradient sees past the border: "border", "reflect", "circular" or "zeros".
        largest: max |∇f_s|, if not this image's own.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> step = torch.zeros(1, 1, 5, 6)
    >>> step[..., 3:] = 1.0
    >>> edge_metric(step, iota=0.01, alpha=9.0, scale=None).bounding_radius[0, 0, 2]
    tensor([10., 10.,  1.,  1., 10., 10.])
    """
    _checks.positive(iota, "iota")
    _checks.not_negative(alpha, "alpha")
    _, length = _unit_gradient(image, scale, padding_mode)
    factor = iota * (1 + alpha * (length / _largest(length, largest))).square()  # [B, 1, 1, *spatial]
    dim = image.dim() - 2
    zero = torch.zeros_like(factor)
    return Riemannian(torch.cat([factor if i == j else zero for i, j in _symmetric.pairs(dim)], 2))


def structure_metric(
    image: Tensor,
    iota: float = 0.2,
    alpha: float = 10.0,
    *,
    noise_scale: float = 1.0,
    integration_scale: float = 2.0,
    padding_mode: str = "border",
    largest: float | None = None,
) -> Riemannian:
    """Lay the balls along the image's coherent structures, all with the volume of the round one.

    With the structure tensor J = G_ρ ∗ Σ_c ∇f_c ∇f_cᵀ of the gradients at the noise scale, averaged at the integration
    scale ρ, and A = I + α² J / max tr J:

        M = ι A / det(A)^{1/d}.

    Where one direction dominates, as along an edge or a stripe, the ball is long along it; where none does, at a corner
    as in a flat region, it is round. No eigenvectors are involved, so M is smooth in the image. It is no thinner than
    the image's dtype can tell from a line: α counts up to 1/(4√ε), with its rounding ε; 724 in float32.

    Args:
        image: (B, C, *spatial), in any number d of dimensions; the channels' tensors are added.
        iota: the scale of the metric; without structure M = ιI.
        alpha: the gain in anisotropy; the ball is at most √(1 + α²) times as long as thin.
        noise_scale: the standard deviation, in pixels, of the Gaussian whose derivative is taken.
        integration_scale: the standard deviation ρ, in pixels, of the window in which gradients are compared.
        padding_mode: what both Gaussians see past the border: "border", "reflect", "circular" or "zeros".
        largest: max tr J, if not this image's own.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> stripes = torch.cos(torch.arange(32.0)).expand(1, 1, 32, 32)  # vary along x, run along y
    >>> ball = structure_metric(stripes).unit_vectors(torch.eye(2))[0, 0, :, :, 16, 16]
    >>> bool(ball[0, 0] > 9 * ball[1, 1])
    True
    """
    _checks.positive(iota, "iota")
    _checks.not_negative(alpha, "alpha")
    gradient = _gradient(image, _checks.positive(noise_scale, "noise_scale"), padding_mode)
    if largest is None:
        gradient = gradient / _scale(gradient)
    else:
        _checks.not_negative(largest, "largest")
        # In float64, of which the root of what is given is a number, whatever the image's dtype.
        gradient, largest = (gradient.double() / math.sqrt(largest or 1.0)).to(gradient.dtype), 1.0
    tensor, trace = _structure(gradient, integration_scale, padding_mode)
    gain = min(alpha, 0.25 / torch.finfo(tensor.dtype).eps ** 0.5) ** 2
    shape = _symmetric.identity(tensor) + gain * (tensor / _largest(trace, largest))
    return Riemannian(iota * shape / _symmetric.determinant(shape).pow(1 / (image.dim() - 2)).unsqueeze(2))


def gradient_length(image: Tensor, scale: float | None, padding_mode: str = "border") -> Tensor:
    """Return |∇f|, whose maximum the gradient and the edge metric divide by: (B, 1, 1, *spatial)."""
    return _unit_gradient(image, scale, padding_mode)[1]


def structure_trace(
    image: Tensor, noise_scale: float, integration_scale: float, padding_mode: str = "border"
) -> Tensor:
    """Return tr J, whose maximum the structure metric divides by, in float64 as it is a square: (B, 1, 1, *spatial)."""
    return _structure(_gradient(image, noise_scale, padding_mode).double(), integration_scale, padding_mode)[1]


def gradient_reach(scale: float | None) -> int:
    """Return how many pixels away a gradient, or a smoothing, at that scale looks."""
    return 1 if scale is None else math.ceil(_TRUNCATE * _checks.positive(scale, "scale"))


def _structure(gradient: Tensor, integration_scale: float, padding_mode: str) -> tuple[Tensor, Tensor]:
    """Return the structure tensor J of gradients (B, C, d, *spatial), packed, and its trace: (B, 1, n, *spatial)."""
    _checks.positive(integration_scale, "integration_scale")
    limit = math.sqrt(torch.finfo(gradient.dtype).max) / 2**10  # so that squares and their sums are finite
    tensor = _symmetric.outer(gradient.clamp(-limit, limit)).sum(1, keepdim=True)
    smoothing = _gaussian(integration_scale)
    for axis in range(3, tensor.dim()):
        tensor = _correlate(tensor, smoothing, axis, padding_mode)
    diagonal = [k for k, (i, j) in enumerate(_symmetric.pairs(gradient.shape[2])) if i == j]
    return tensor, tensor[:, :, diagonal].sum(2, keepdim=True)


def _unit_gradient(image: Tensor, scale: float | None, padding_mode: str) -> tuple[Tensor, Tensor]:
    """Return the direction and the length of the longest gradient of all channels: (B, 1, d or 1, *spatial).

    Where it vanishes the direction is 0, and so are the derivatives of both. NaN stays NaN.
    """
    gradient = _gradient(image, scale, padding_mode)
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
    """Return a power of 2 near each image's largest value, (B, 1, 1, …): divided by it, squares are numbers still."""
    largest = field.detach().abs().amax(tuple(range(1, field.dim())), keepdim=True)
    limit = math.frexp(torch.finfo(field.dtype).max)[1] - 4
    return torch.exp2(torch.frexp(largest).exponent.clamp(-limit, limit).to(field.dtype))


def _largest(field: Tensor, given: float | None) -> Tensor | float:
    """Return each image's largest value (B, 1, 1, …), or the one that is given, to divide by; 1 in place of 0."""
    if given is not None:
        _checks.not_negative(given, "largest")
        return given or 1.0
    largest = field.amax(tuple(range(1, field.dim())), keepdim=True)
    return torch.where(largest <= 0, 1, largest)


def _gradient(image: Tensor, scale: float | None, padding_mode: str) -> Tensor:
    """Return ∇f of every channel, in tensor-axis order: (B, C, d, *spatial).

    The difference is taken before the smoothing: a constant image has a gradient of exactly 0.
    """
    image = _checks.floating(image, "image")
    if image.dim() < 3 or not image.shape[1] or not math.prod(image.shape[2:]):
        raise ValueError(f"`image` must be (B, C, *spatial) and not empty, got shape {tuple(image.shape)}")
    _checks.one_of(padding_mode, _interpolation.PADDING_MODES, "padding_mode")
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    limit = torch.finfo(image.dtype).max / 2**10  # so that sums are finite
    image = image.clamp(-limit, limit)
    if scale is None:
        difference, smoothing = [0.5], [0.5, 0.25]
    else:
        difference, smoothing = _gaussian_derivative(_checks.positive(scale, "scale")), _gaussian(scale)
    components = []
    for axis in range(2, image.dim()):
        component = _correlate(image, difference, axis, padding_mode, odd=True)
        for other in range(2, image.dim()):
            if other != axis:
                component = _correlate(component, smoothing, other, padding_mode)
        components.append(component)
    return torch.stack(components, 2)


def _correlate(field: Tensor, taps: Sequence[float], axis: int, padding_mode: str, *, odd: bool = False) -> Tensor:
    """Filter along one axis with even taps w_0, w_1, … (w_{−t} = w_t) or odd ones w_1, w_2, … (w_{−t} = −w_t)."""
    size, reach = field.shape[axis], len(taps) - (not odd)
    index, inside = _interpolation.line(-reach, size + reach, size, padding_mode, field.device)
    padded = field.index_select(axis, index) * inside.to(field.dtype).view(-1, *(1,) * (field.dim() - 1 - axis))

    def moved(t: int) -> Tensor:
        return padded.narrow(axis, reach + t, size)

    if odd:
        return torch.stack([w * (moved(t) - moved(-t)) for t, w in enumerate(taps, 1)]).sum(0)
    return taps[0] * moved(0) + sum(w * (moved(t) + moved(-t)) for t, w in enumerate(taps[1:], 1))


def _gaussian(scale: float) -> list[float]:
    """Return the half of a sampled Gaussian, of sum 1 when mirrored."""
    half = [math.exp(-0.5 * (t / scale) ** 2) for t in range(math.ceil(_TRUNCATE * scale) + 1)]
    total = half[0] + 2 * sum(half[1:])
    return [w / total for w in half]


def _gaussian_derivative(scale: float) -> list[float]:
    """Return the half of a Gaussian's sampled derivative, scaled to be exact on ramps: Σ_t t w_t = 1."""
    # From t = 1 on: relative to that first tap, so that no scale is so small that all of them vanish.
    half = [t * math.exp(-0.5 * (t * t - 1) / scale**2) for t in range(1, math.ceil(_TRUNCATE * scale) + 1)]
    total = 2 * sum(t * w for t, w in enumerate(half, 1))
    return [w / total for w in half]
