"""Metrics of images for paths and regions: the image as a surface, and tubes such as vessels."""

import torch
from torch import Tensor

from .. import _checks
from ..metrics import Riemannian, _symmetric
from ..metrics.from_image import Spacing, image_gradient, in_pixels

__all__ = ["surface_metric", "tube_metric"]

# The ridge strength of which a fraction of 1 % of the pixels is larger is the unit.
_QUANTILE = 0.99


def surface_metric(
    image: Tensor,
    contrast: float = 30.0,
    *,
    scale: float | None = 1.0,
    padding_mode: str = "border",
    spacing: Spacing = None,
) -> Riemannian:
    """Return the metric of the image as a surface: M = I + c² Σ_k ∇f_k ∇f_kᵀ over channels k.

    A step of one pixel has length 1 where the image is constant. Crossing an edge of height h adds about c h, whatever
    its width.

    Args:
        image: (B, C, *spatial), finite.
        contrast: c, at least 0 (default 30), in pixels per unit of intensity.
        scale: standard deviation of the Gaussian derivative filters, 0.01 to 1000 pixels (default 1); None for 3×3
            Sobel filters.
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        spacing: distance between pixels, a number or one per spatial axis; lengths are then in units of the smallest.
            Default: the same along all axes.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> step = torch.zeros(1, 1, 5, 6)
    >>> step[..., 3:] = 1.0
    >>> surface_metric(step, 10.0, scale=None).M[0, 0, 2, 2]  # of a step of one pixel along x, squared
    tensor([ 1.,  1., 26., 26.,  1.,  1.])
    """
    contrast = _at_most(_checks.not_negative(contrast, "contrast"), "contrast")
    gradient = contrast * image_gradient(image, scale, padding_mode, spacing)  # [B, C, d, *spatial]
    _check_range(gradient)
    M = _symmetric.outer(gradient).sum(1, keepdim=True)
    return in_pixels(Riemannian(M + _symmetric.identity(M)), spacing)


@torch.no_grad()
def tube_metric(
    image: Tensor,
    contrast: float = 10.0,
    *,
    scale: float = 2.0,
    dark: bool = False,
    anisotropy: float = 3.0,
    padding_mode: str = "border",
    spacing: Spacing = None,
) -> Riemannian:
    """Return the metric in which paths along bright tubes, such as vessels, are short.

    The Hessian of the mean of the channels at scale s gives the direction of a tube and its strength r in [0, 1]: the
    negative curvature across, divided by its 99th percentile. Unit balls reach 1 + c r pixels along the tube and
    1 + c r / a across it. The metric is not differentiable by the image.

    Args:
        image: (B, C, *spatial), finite, 2-D or 3-D.
        contrast: c, at least 0 (default 10).
        scale: s, in pixels, 0.1 to 1000 (default 2): about the radius of the tubes.
        dark: whether tubes are darker than their surroundings (default False).
        anisotropy: a, at least 1 (default 3).
        padding_mode: padding mode of the image, "border" (default), "reflect", "circular" or "zeros".
        spacing: distance between pixels, a number or one per spatial axis; lengths are then in units of the smallest.
            Default: the same along all axes.

    Returns:
        ``Riemannian``, M (B, 1, d(d+1)/2, *spatial).

    >>> line = torch.zeros(1, 1, 9, 9)
    >>> line[..., 4, :] = 1.0
    >>> tube_metric(line, 3.0, anisotropy=2.0).M[0, 0, :, 4, 4].rsqrt()  # reach along y, and along x
    tensor([2.5000,    inf, 4.0000])
    """
    contrast = _at_most(_checks.not_negative(contrast, "contrast"), "contrast")
    scale, dark = _checks.positive(scale, "scale"), _checks.boolean(dark, "dark")
    anisotropy = _at_most(_checks.positive(anisotropy, "anisotropy"), "anisotropy")
    if anisotropy < 1:
        raise ValueError(f"`anisotropy` (={anisotropy}) must be at least 1")
    if not 0.1 <= scale <= 1000:
        raise ValueError(f"`scale` (={scale}) must be from 0.1 to 1000")
    if _checks.floating(image, "image").dim() not in (4, 5):
        raise ValueError(f"`image` must be (B, C, *spatial), 2-D or 3-D, got shape {tuple(image.shape)}")
    _checks.with_values(image, "image")
    half = scale / 2**0.5  # two derivatives, each smoothed at half of the variance
    image = image.to(torch.promote_types(image.dtype, torch.float32))
    gradient = image_gradient(image, half, padding_mode, spacing)
    _check_range(gradient)
    hessian = torch.stack(
        [image_gradient(c, half, padding_mode, spacing).squeeze(1) for c in gradient.mean(1, True).unbind(2)], -1
    ).movedim(1, -1)  # [B, *spatial, d, d]
    values, axes = torch.linalg.eigh((1 if dark else -1) * 0.5 * (hessian + hessian.mT))
    strength = values[..., 1].clamp_min(0)  # the least curvature across the tube: along it is values[..., 0]
    flat = strength.flatten(1)
    unit = flat.kthvalue(max(1, round(_QUANTILE * flat.shape[1])), 1).values
    unit = torch.where(unit > 0, unit, flat.amax(1)).view(-1, *(1,) * (strength.dim() - 1))
    strength = contrast * (strength / torch.where(unit > 0, unit, 1)).clamp_max(1).unsqueeze(1)
    direction = axes[..., 0].movedim(-1, 1).unsqueeze(1)
    return in_pixels(Riemannian.needle(direction, 1 + strength, 1 + strength / anisotropy), spacing)


def _at_most(value: float, name: str, limit: float = 1e6) -> float:
    if value > limit:
        raise ValueError(f"`{name}` (={value:g}) must be at most {limit:g}")
    return value


def _check_range(gradient: Tensor) -> None:
    """Check that squares of the gradient are finite."""
    if gradient.is_meta or not gradient.numel():
        return
    if not bool(gradient.abs().amax() < 1e15):
        raise ValueError("`image` has gradients that are too large for float32; scale it to [0, 1]")
