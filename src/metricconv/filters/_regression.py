"""Filters that fit a polynomial to the samples of each ball."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _checks, _interpolation
from ..metrics import Metric, Riemannian
from ..metrics.flow import metric_padding
from ..metrics.from_image import Spacing
from ..stencils import Stencil, polar
from ..supports import GeodesicBall, TangentBall
from . import _polynomials
from ._average import Image, convolve_centered, filter_components, filter_image
from ._balls import MetricSource, ball_factory
from ._limits import MAX_SIDE, check_at_most, check_sample_count, check_steps

__all__ = ["regression_filter", "regression_gradient"]

Ball = TangentBall | GeodesicBall
Progress = Callable[[int, int], object]

MAX_ROUNDS = 1000
# Weights exp(−c F²) of samples: the radius of the ball is two standard deviations.
_FALL_OFF = 2.0


def regression_filter(
    image: Image,
    samples: int = 8,
    metric: MetricSource = "structure",
    *,
    order: int = 2,
    ball: str = "tangent",
    steps: int | None = None,
    smooth: int = 1,
    rounds: int = 1,
    sigma: float | None = None,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
    progress: Progress | None = None,
) -> Image:
    """Fit a polynomial to the samples of the unit ball of a metric at each pixel; return its value at the pixel.

    The fit minimizes Σ_j w_j (f_j − P(v_j))² over polynomials P of the given order, where f_j is the image at the
    sample v_j and w_j = s_j^{d−1} exp(−2 s_j²) with F(v_j) = s_j: its area element times a weight that falls off with
    the metric. Order 0 is a weighted mean; order 1 is also exact on slopes, order 2 on curved surfaces, so that balls
    can be larger.

    On tangent balls of a symmetric metric the fit is a convolution with the same weights at every pixel, since every
    direction has the same radii and the opposite direction too. Otherwise a small system is solved at each pixel.

    Args:
        image, metric, channel_axis, padding_mode, spacing: as in ``tangent_filter``.
        samples: k, even, for k radii in each of k^{d−1} directions; at least 4 for order 2 (default 8).
        order: order of the polynomial, 0, 1 or 2 (default).
        ball: "tangent" (default) or "geodesic".
        steps, smooth: as in ``geodesic_filter``, for geodesic balls.
        rounds: number of iterations, 1 (default) to 1000. Each filters the last result over the balls of its metric.
        sigma: standard deviation of the noise, in the range of floats. If given, iterations stop as soon as the
            variance of the difference to the image is at least σ².
        progress: function called with the number of finished iterations and of all of them.

    >>> import metricconv as mc
    >>> y, x = torch.meshgrid(torch.arange(9.0), torch.arange(9.0), indexing="ij")
    >>> bowl = (x - 4) ** 2 + (y - 4) ** 2
    >>> round = mc.Riemannian.isotropic(3.0)
    >>> [f"{regression_filter(bowl, metric=round, order=order)[4, 4]:.1f}" for order in (1, 2)]  # at the bottom
    ['3.6', '0.3']
    """
    make_balls, mode = _prepare(samples, metric, order, ball, steps, smooth, padding_mode, spacing)
    check_at_most(rounds, MAX_ROUNDS, "rounds")
    rounds = _checks.whole(rounds, "rounds", minimum=1)
    variance = None if sigma is None else _checks.positive(sigma, "sigma") ** 2
    if progress is not None and not callable(progress):
        raise TypeError(f"`progress` must be a function of two integers, got {type(progress).__name__}")

    def iterate(x: Tensor) -> Tensor:
        result = x
        for finished in range(1, rounds + 1):
            result = _value(result, make_balls(result), order, mode)
            done = variance is not None and bool((x - result).var(correction=0) >= variance)
            if progress is not None:
                progress(rounds if done else finished, rounds)
            if done:
                break
        return result

    return filter_image(image, channel_axis, iterate)


def regression_gradient(
    image: Image,
    samples: int = 8,
    metric: MetricSource = "structure",
    *,
    order: int = 2,
    ball: str = "tangent",
    steps: int | None = None,
    smooth: int = 1,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
) -> Image:
    """Return the gradient at each pixel of the polynomial that ``regression_filter`` fits: a denoised ∇f.

    Args:
        image, samples, metric, ball, steps, smooth, channel_axis, padding_mode, spacing: as in ``regression_filter``.
        order: order of the polynomial, 1 or 2 (default).

    Returns:
        The derivatives along each spatial axis, per pixel: (d, *shape of the image).

    >>> slope = torch.arange(8.0).expand(8, 8)
    >>> regression_gradient(slope, padding_mode="border")[:, 4, 4].abs().round(decimals=4)  # along y and along x
    tensor([0., 1.])
    """
    make_balls, mode = _prepare(samples, metric, order, ball, steps, smooth, padding_mode, spacing)
    if order < 1:
        raise ValueError(f"`order` (={order!r}) must be 1 or 2 for a gradient")

    def gradient(x: Tensor) -> Tensor:
        dim = x.dim() - 2
        return _coefficients(x, make_balls(x), order, mode)[1 : 1 + dim]

    return filter_components(image, channel_axis, gradient)


def _prepare(
    samples: int,
    metric: MetricSource,
    order: int,
    ball: str,
    steps: int | None,
    smooth: int,
    padding_mode: str,
    spacing: Spacing,
) -> tuple[Callable[[Tensor], Ball], str]:
    """Check the arguments; return the function from an image to its balls, and the padding mode."""
    if not _checks.is_whole(order) or not 0 <= order <= 2:
        raise ValueError(f"`order` (={order!r}) must be 0, 1 or 2")
    check_at_most(samples, MAX_SIDE, "samples")
    least = 4 if order == 2 else 2
    if _checks.whole(samples, "samples", minimum=least) % 2:
        raise ValueError(f"`samples` (={samples!r}) must be even, so that every direction has its opposite")
    check_steps(steps, smooth)
    mode = _checks.padding_mode(padding_mode)
    if _checks.one_of(ball, ("tangent", "geodesic"), "ball") == "tangent" and (steps is not None or smooth != 1):
        raise ValueError(f"`steps` (={steps!r}) and `smooth` (={smooth!r}) require ball='geodesic'")

    def stencil(dim: int) -> Stencil:
        return opposite_directions(check_sample_count(samples, dim, "samples"), dim)

    def geodesic(field: Metric, stencil: Stencil, dilation: tuple[int, ...]) -> GeodesicBall:
        return GeodesicBall(field, stencil, steps, smooth, dilation=dilation, padding_mode=metric_padding(mode))

    if ball == "geodesic":
        return ball_factory(geodesic, stencil, metric, mode, spacing), mode
    return ball_factory(TangentBall, stencil, metric, mode, spacing), mode


def opposite_directions(samples: int, dim: int) -> Stencil:
    """Return the stencil of k radii 1/k, …, 1 times k^{d−1} directions, each with its opposite; k is even.

    >>> opposite_directions(4, 3).directions.sum(0).abs().max() < 1e-12
    tensor(True)
    """
    if dim == 2:
        return polar(samples)
    sphere = polar(samples, dim).directions[: samples**2]
    # The Fibonacci spiral starts at one pole and ends at the other: one half covers a hemisphere.
    half = sphere[: samples**2 // 2]
    directions = torch.cat([half, -half]).repeat(samples, 1)
    radii = torch.arange(1, samples + 1, dtype=torch.float64).div(samples).repeat_interleave(samples**2)
    return Stencil(directions, radii, (samples,) * dim)


def sample_weights(stencil: Stencil) -> Tensor:
    """Return w_j = s_j^{d−1} exp(−2 s_j²), with sum 1: (P,)."""
    weights = stencil.radii ** (stencil.dim - 1) * torch.exp(-_FALL_OFF * stencil.radii.square())
    return weights / weights.sum()


def _value(x: Tensor, balls: Ball, order: int, padding_mode: str) -> Tensor:
    """Return the value of the fit at each pixel, (1, C, *spatial)."""
    if isinstance(balls, GeodesicBall) or not isinstance(balls.metric, Riemannian):
        return _coefficients(x, balls, order, padding_mode)[:1]
    stencil = balls.stencil
    weights = _polynomials.fixed_weights(stencil.directions, stencil.radii, sample_weights(stencil), order)
    kernel = weights.to(x).view(1, 1, *stencil.kernel_size).expand(x.shape[1], 1, *stencil.kernel_size)
    return convolve_centered(x, balls, kernel, padding_mode)


def _coefficients(x: Tensor, balls: Ball, order: int, padding_mode: str) -> Tensor:
    """Return the coefficients of the fit at each pixel, (n, C, *spatial), in the order of ``monomials``."""
    dim, size = x.dim() - 2, x.shape[2:]
    geodesic, stencil = isinstance(balls, GeodesicBall), balls.stencil
    balls = balls.expand_to(size) if isinstance(balls, GeodesicBall) else balls
    metric = balls.metric.expand_to(size)
    terms = _polynomials.monomials(order, dim)
    products, index = _polynomials.moments(terms)
    unit = metric.bounding_radius.double()[0, 0] * float(stencil.radii.max())  # [*spatial]
    center = torch.stack(
        torch.meshgrid(*(torch.arange(n, dtype=torch.float64, device=x.device) for n in size), indexing="ij"), -1
    )
    sums = [torch.zeros_like(unit) for _ in products]
    right = [x.new_zeros(x.shape[1:], dtype=torch.float64) for _ in terms]
    weights = sample_weights(stencil).tolist()
    step = stencil.samples if geodesic else stencil.kernel_size[-1]  # a geodesic leads to several samples
    for start in range(0, stencil.samples, step):
        offsets = balls.offsets(slice(start, start + step)).double()[0, 0].expand(-1, -1, *size)  # [p, d, *spatial]
        for w, offset in zip(weights[start:], offsets, strict=False):
            position = (center + offset.movedim(0, -1)).unsqueeze(0)
            values = _interpolation.interpolate(x.double(), position, padding_mode)[0] * w
            vector = (offset / unit).unbind(0)
            for totals, factor, exponents in ((sums, w, products), (right, values, terms)):
                for total, exponent in zip(totals, exponents, strict=True):
                    total += factor * _polynomials.power(vector, exponent)
    found = _polynomials.solve(sums, right, index)  # [C, n, *spatial]
    degree = torch.tensor([sum(e) for e in terms], device=x.device).view(-1, *(1,) * dim)
    return (found / unit.pow(degree)).movedim(1, 0).to(x.dtype)
