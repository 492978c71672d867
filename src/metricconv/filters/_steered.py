"""Rounds of steered regression, which ``denoise`` iterates: one linear fit per pixel.

The image y is measured in units of the noise. In each round, at each pixel p:

1. The structure tensor J is the Gaussian mean of ∇f ∇fᵀ, averaged over channels, of the last estimate f.
2. The metric is M = A (det A)^{−β} / r², A = I + J/λ: balls are round with radius r where the image is flat, and narrow
   across edges.
3. A share of y − f is added to f, a larger one where its variance exceeds that of the noise. The result is g.
4. The fit minimizes Σ_v w_v (g(p + v) − P(v))² over linear functions P, over the offsets v of a window, with

       w_v = √det M(p + v) · (1 − vᵀ M(p + v) v − |f(p + v) − f(p)|²/Cρ²)₊⁸

   for C channels. The metric is that of the sample: a sample contributes to the pixels in its own ball, so that balls
   beyond an edge do not reach across it. Differences of f shorten balls further.
5. P(0) is the new estimate, and ∇P its gradient.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .. import _interpolation
from ..metrics import _symmetric
from ..ops import cpu
from . import _polynomials

__all__ = ["Round", "first_gradient", "fit", "steered_round"]

# Standard deviation in pixels of the Gaussian mean of the squared residual.
_VARIANCE_SCALE = 4.7
# Limits the values of float32 computations: gradients, in units of the noise per pixel.
_STEEPEST = 1e4
# Relative to the constant term, on the diagonal of the normal equations in units of the window.
_RIDGE = 2e-3
# Pixels per band of rows.
_BAND = 2**20


@dataclasses.dataclass(frozen=True)
class Round:
    """Parameters of a round, in units of the noise and of the smallest spacing.

    Args:
        radius: r, radius of balls where the image is flat.
        contrast: λ, square of the gradient at which balls are narrower by √2.
        exponent: β, how much the volume of balls is preserved: 0 not at all, 1/d entirely.
        scale: standard deviation of the Gaussian mean of the structure tensor.
        range: ρ, difference of intensities at which weights are 0; None for no such factor.
        feedback: share of the noisy image that is mixed with the estimate before the fit.
        adaptive_feedback: further share where the difference of both has a variance v above that of the noise, times
            1 − 1/v: there, the estimate lacks details.
    """

    radius: float
    contrast: float
    exponent: float
    scale: float
    range: float | None
    feedback: float
    adaptive_feedback: float

    def halves(self, spacing: Sequence[float]) -> tuple[int, ...]:
        """Return the half-widths of the window in pixels."""
        return tuple(math.ceil(self.radius / s) for s in spacing)

    def margins(self, spacing: Sequence[float]) -> tuple[int, ...]:
        """Return the distance in pixels, along each axis, at which a pixel can affect the round."""
        smoothing = (len(_gaussian(max(self.scale, _VARIANCE_SCALE) / s)) // 2 for s in spacing)
        return tuple(half + reach for half, reach in zip(self.halves(spacing), smoothing, strict=True))


def first_gradient(noisy: Tensor, radius: float, spacing: Sequence[float]) -> Tensor:
    """Return the gradient of fits over round balls, (C, d, *spatial), in units of the noise per spacing unit."""
    dim = noisy.dim() - 1
    flat = Round(radius, math.inf, 0.0, 0.0, None, 0.0, 0.0)
    gradient = noisy.new_zeros(noisy.shape[0], dim, *noisy.shape[1:])
    return steered_round(noisy, noisy, gradient, flat, spacing)[1]


def steered_round(
    noisy: Tensor,
    estimate: Tensor,
    gradient: Tensor,
    settings: Round,
    spacing: Sequence[float],
    progress: Callable[[int], object] = lambda rows: None,
) -> tuple[Tensor, Tensor]:
    """Return the next estimate (C, *spatial) and its gradient (C, d, *spatial).

    Args:
        noisy: (C, *spatial), float32 or float64, in units of the noise.
        estimate, gradient: results of the last round.
        settings: parameters of the round.
        spacing: distance between pixels along each axis; at least 1.
        progress: function called with the number of rows finished since the last call.
    """
    halves, margins = settings.halves(spacing), settings.margins(spacing)
    value, slope = torch.empty_like(estimate), torch.empty_like(gradient)
    rows = max(_BAND * noisy.shape[1] // math.prod(noisy.shape[1:]), 1)
    for start in range(0, noisy.shape[1], rows):
        stop = min(start + rows, noisy.shape[1])
        f, y = (_pad(field, start, stop, margins) for field in (estimate, noisy))
        metric, density = _metric(_pad_vectors(gradient, start, stop, margins), settings, spacing)
        size = (stop - start + 2 * halves[0], *(n + 2 * h for n, h in zip(noisy.shape[2:], halves[1:], strict=True)))
        signal = f if noisy is estimate else _mix(f, y, settings, spacing)
        f, signal, metric, density = (_crop(field, size) for field in (f, signal, metric, density))
        guide = f[:0] if settings.range is None else f / (settings.range * math.sqrt(len(f)))
        value[:, start:stop], slope[:, :, start:stop] = fit(signal, guide, metric, density, halves)
        progress(stop - start)
    scale = torch.tensor(spacing, dtype=slope.dtype, device=slope.device).view(-1, *(1,) * len(spacing))
    return value, slope.div_(scale).clamp_(-_STEEPEST, _STEEPEST)


def fit(
    signal: Tensor, guide: Tensor, metric: Tensor, density: Tensor, halves: Sequence[int], *, compiled: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the value (C, *spatial) and the gradient (C, d, *spatial) per pixel of the fits of order 1.

    Args:
        signal: (C, *padded), padded by ``halves`` on either side.
        guide: (n, *padded), n ≥ 0: signals whose squared differences are subtracted from the weights' base.
        metric, density: (d(d+1)/2, *padded) and (*padded): M, packed, and the factor of the weights.
        halves: half-widths of the window along each axis.
        compiled: use the numba kernel if it supports the arguments.
    """
    ridge = [_RIDGE * h * h for h in halves]
    if compiled and signal.device.type == "cpu" and cpu.missing_dependency() is None:
        from ..ops.cpu import weighted_fit  # compiles kernels

        if halves[-1] <= weighted_fit.MAX_HALF:
            return weighted_fit.fit_linear(signal, guide, metric, density, halves, ridge)
    return _fit_in_torch(signal, guide, metric, density, halves, ridge)


def _fit_in_torch(
    signal: Tensor, guide: Tensor, metric: Tensor, density: Tensor, halves: Sequence[int], ridge: Sequence[float]
) -> tuple[Tensor, Tensor]:
    dim = len(halves)
    size = [n - 2 * h for n, h in zip(density.shape, halves, strict=True)]
    center = guide[(slice(None), *(slice(h, h + n) for h, n in zip(halves, size, strict=True)))]
    terms = _polynomials.monomials(1, dim)
    products, index = _polynomials.moments(terms)
    sums = [torch.zeros_like(density[tuple(map(slice, size))]) for _ in products]
    right = [torch.zeros_like(signal[(slice(None), *map(slice, size))]) for _ in terms]
    for offset in itertools.product(*(range(-h, h + 1) for h in halves)):
        window = tuple(slice(h + v, h + v + n) for h, v, n in zip(halves, offset, size, strict=True))
        at = (slice(None), *window)
        base = 1 - sum(
            (1 if i == j else 2) * offset[i] * offset[j] * m
            for (i, j), m in zip(_symmetric.pairs(dim), metric[at], strict=True)
        )
        weight = (base - (guide[at] - center).square().sum(0)).clamp_min(0).pow(8) * density[window]
        for total, exponents in zip(sums, products, strict=True):
            total += weight * math.prod(v**e for v, e in zip(offset, exponents, strict=True))
        for total, exponents in zip(right, terms, strict=True):
            total += weight * signal[at] * math.prod(v**e for v, e in zip(offset, exponents, strict=True))
    matrix = torch.stack([torch.stack([sums[m] for m in row], -1) for row in index], -2)
    diagonal = torch.tensor([0.0, *ridge], dtype=matrix.dtype, device=matrix.device)
    matrix = matrix + torch.diag_embed(diagonal * sums[0].unsqueeze(-1))
    found = torch.linalg.solve(matrix, torch.stack(right, -1).movedim(0, -1)).movedim((-1, -2), (0, 1))
    return found[:, 0], found[:, 1:]


def _metric(gradient: Tensor, settings: Round, spacing: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the metric, packed, in pixels, and √det M of a padded gradient; smoothing removes its padding."""
    dim = len(spacing)
    pairs = _symmetric.pairs(dim)
    if math.isinf(settings.contrast):
        size = gradient.shape[2:]
        metric = torch.stack([gradient.new_full(size, float(i == j)) for i, j in pairs])
        det = gradient.new_ones(size)
    else:
        tensor = torch.stack([(gradient[:, i] * gradient[:, j]).mean(0) for i, j in pairs])
        for axis, s in enumerate(spacing):
            tensor = _correlate(tensor, _gaussian(settings.scale / s), axis + 1)
        metric = tensor / settings.contrast
        for k, (i, j) in enumerate(pairs):
            metric[k] += float(i == j)
        det = _symmetric.determinant(metric[None, None])[0, 0].clamp_min(1)  # the eigenvalues of A are at least 1
        metric = metric * det.pow(-settings.exponent)
    factors = [spacing[i] * spacing[j] / settings.radius**2 for i, j in pairs]
    metric = metric * torch.tensor(factors, dtype=metric.dtype, device=metric.device).view(-1, *(1,) * dim)
    return metric, det.pow((1 - dim * settings.exponent) / 2)


def _mix(estimate: Tensor, noisy: Tensor, settings: Round, spacing: Sequence[float]) -> Tensor:
    """Return a padded estimate mixed with the noisy image; smoothing removes part of the padding."""
    residual = noisy - estimate
    variance = residual.square().mean(0)
    for axis, s in enumerate(spacing):
        variance = _correlate(variance, _gaussian(_VARIANCE_SCALE / s), axis)
    share = settings.feedback + settings.adaptive_feedback * (1 - 1 / variance).clamp_min(0)
    return torch.addcmul(_crop(estimate, variance.shape), share, _crop(residual, variance.shape))


def _crop(field: Tensor, size: Sequence[int]) -> Tensor:
    """Return the center of a field (…, *spatial)."""
    for axis, n in zip(range(-len(size), 0), size, strict=True):
        field = field.narrow(axis, (field.shape[axis] - n) // 2, n)
    return field


def _gaussian(scale: float) -> list[float]:
    """Return a sampled Gaussian of sum 1, up to three standard deviations."""
    reach = math.ceil(3 * scale - 1e-9)
    weights = [math.exp(-0.5 * (t / scale) ** 2) if t else 1.0 for t in range(-reach, reach + 1)]
    return [w / sum(weights) for w in weights]


def _correlate(field: Tensor, weights: Sequence[float], axis: int) -> Tensor:
    """Filter along one axis without padding."""
    if len(weights) == 1:
        return field
    size = field.shape[axis] - len(weights) + 1
    result = field.narrow(axis, 0, size) * weights[0]
    for start, weight in enumerate(weights[1:], 1):
        result.add_(field.narrow(axis, start, size), alpha=weight)
    return result


def _pad(field: Tensor, start: int, stop: int, margins: Sequence[int]) -> Tensor:
    """Return rows start … stop − 1 of a field (n, *spatial) with margins on all sides, reflected at the border."""
    for axis, margin in enumerate(margins):
        first, last = (start, stop) if axis == 0 else (0, field.shape[axis + 1])
        index, _ = _interpolation.line(first - margin, last + margin, field.shape[axis + 1], "reflect", field.device)
        field = field.index_select(axis + 1, index)
    return field


def _pad_vectors(field: Tensor, start: int, stop: int, margins: Sequence[int]) -> Tensor:
    """Pad vectors (C, d, *spatial) as ``_pad``; a reflection reverses the component along its axis."""
    size = field.shape[2:]
    padded = _pad(field.flatten(0, 1), start, stop, margins).unflatten(0, field.shape[:2])
    for axis, margin in enumerate(margins):
        first, last = (start, stop) if axis == 0 else (0, size[axis])
        position = torch.arange(first - margin, last + margin, device=field.device)
        period = max(2 * (size[axis] - 1), 1)
        sign = torch.where(position.remainder(period) < size[axis], 1, -1)
        padded[:, axis] *= sign.view(-1, *(1,) * (len(size) - 1 - axis))
    return padded
