"""Interpolation of scattered samples along the structure of a guide image."""

import torch
from torch import Tensor

from .. import _checks
from ._images import Image, like, positions, to_field
from .distance import nearest_sources
from .surfaces import surface_metric

__all__ = ["interpolate"]

# Pixels that are fitted together.
_BLOCK = 2**16


def interpolate(
    samples: Image,
    guide: Image,
    *,
    neighbors: int = 8,
    contrast: float = 100.0,
    scale: float | None = 1.0,
    power: float = 2.0,
    ridge: float = 0.1,
    channel_axis: int | None = None,
    guide_channel_axis: int | None = None,
) -> Image:
    """Return values at all pixels from values at some, interpolated along the structure of a guide image.

    For each pixel x the k samples nearest in the metric of the guide g as a surface are found, at distances d_j. The
    value is a of the affine fit that minimizes Σ_j w_j (v_j − a − bᵀz_j)² + λ Σ_j w_j d_j² |b|², with w_j = d_j^(−β)
    and z_j the displacement of sample j from x in position and c g. It is clamped to the range of the k samples.
    Samples keep their values.

    Args:
        samples: floats, array or tensor, (*spatial), 2-D or 3-D, with channels along ``channel_axis`` if given; NaN
            where unknown.
        guide: array or tensor, (*spatial), with channels along ``guide_channel_axis`` if given. Integers are divided by
            the maximum of their type.
        neighbors: k, 1 to 64 (default 8).
        contrast: c, length in pixels of an edge of the guide from 0 to 1, 0 to 10⁶ (default 100).
        scale: standard deviation of the guide's derivative filters in pixels (default 1); None for Sobel filters.
        power: β, at least 0, at most 8 (default 2).
        ridge: λ, at least 10⁻⁶ (default 0.1). For large λ the value is the mean with weights w_j.
        channel_axis, guide_channel_axis: axes of the channels, None (default) for one channel.

    Returns:
        Values of the shape and dtype of ``samples``.

    >>> guide = torch.zeros(3, 6)
    >>> guide[:, 4:] = 1.0
    >>> samples = torch.full((3, 6), torch.nan)
    >>> samples[1, 0], samples[1, 5] = 2.0, 7.0
    >>> interpolate(samples, guide, neighbors=1, scale=None)[0]
    tensor([2., 2., 2., 2., 7., 7.])
    """
    values, known = _known(samples, channel_axis)
    field = to_field(guide, guide_channel_axis, "guide")
    size = tuple(field.shape[2:])
    if size != tuple(values.shape[1:]):
        raise ValueError(f"`samples` must have the spatial shape of `guide`, {size}, got {tuple(values.shape[1:])}")
    k = min(_checks.whole(neighbors, "neighbors", minimum=1), int(known.sum()))
    if neighbors > 64:
        raise ValueError(f"`neighbors` (={neighbors}) must be at most 64")
    power, ridge = _checks.not_negative(power, "power"), _checks.positive(ridge, "ridge")
    if power > 8:
        raise ValueError(f"`power` (={power:g}) must be at most 8")
    if ridge < 1e-6:
        raise ValueError(f"`ridge` (={ridge:g}) must be at least 1e-6")
    metric = surface_metric(field, contrast, scale=scale)
    points = known.nonzero()
    nearest = nearest_sources(metric, points, k, order=1)
    distance, label = nearest.distance[0, 0].flatten(1), nearest.label[0, 0].flatten(1)  # [k, P]
    surface = positions(field, contrast)  # [m, P]
    at_samples = known.flatten().nonzero().squeeze(1)
    observed = values.flatten(1)[:, at_samples]  # [C, N]
    result = values.flatten(1).clone()
    unknown = (~known).flatten().nonzero().squeeze(1)
    for block in unknown.split(_BLOCK):
        chosen = label[:, block]  # [k, n]
        z = surface[:, at_samples[chosen.clamp_min(0)]] - surface[:, block].unsqueeze(1)  # [m, k, n]
        reached = distance[:, block].double().masked_fill(chosen < 0, torch.inf)
        result[:, block] = _fit(z, observed[:, chosen.clamp_min(0)], reached, power, ridge)
    result = result.view(values.shape).to(_tensor(samples).dtype)
    return like(result[0] if channel_axis is None else result.movedim(0, channel_axis), samples)


def _known(samples: object, channel_axis: int | None) -> tuple[Tensor, Tensor]:
    """Return samples (C, *spatial) in float64 with 0 where unknown, and where they are known, (*spatial)."""
    given = _checks.floating(_tensor(samples), "samples").detach()
    missing = given.isnan()
    values = to_field(torch.where(missing, 0, given), channel_axis, "samples")[0].double()
    missing = missing.unsqueeze(0) if channel_axis is None else missing.movedim(channel_axis, 0)
    known = ~missing.any(0).to("cpu")
    if not bool(known.any()):
        raise ValueError("`samples` must have at least one pixel without NaN")
    return torch.where(known, values, 0), known


def _tensor(samples: object) -> Tensor:
    return _checks.vectors(samples, "samples")  # type: ignore[arg-type]


def _fit(z: Tensor, values: Tensor, distance: Tensor, power: float, ridge: float) -> Tensor:
    """Return the fitted values (C, n) at z = 0 for samples at z (m, k, n) with values (C, k, n)."""
    nearest = distance.amin(0).clamp_min(1e-6)
    weight = (distance.clamp_min(1e-6) / nearest).pow(-power)  # [k, n], at most 1
    weight = torch.where(distance.isfinite(), weight, 0)
    weight = weight / weight.sum(0)
    mean, middle = (weight * values).sum(1), (weight * z).sum(1)  # [C, n], [m, n]
    z0, v0 = z - middle.unsqueeze(1), values - mean.unsqueeze(1)
    spread = (weight * torch.where(distance.isfinite(), distance, 0).square()).sum(0).clamp_min(1e-9)
    gram = torch.einsum("kn,akn,bkn->nab", weight, z0, z0)
    gram = gram + (ridge * spread)[:, None, None] * torch.eye(len(z), dtype=z.dtype)
    slope = torch.linalg.solve(gram, torch.einsum("kn,akn,ckn->nac", weight, z0, v0))  # [n, m, C]
    fitted = mean - torch.einsum("an,nac->cn", middle, slope)
    used = distance.isfinite().expand_as(values)
    low = torch.where(used, values, torch.inf).amin(1)
    high = torch.where(used, values, -torch.inf).amax(1)
    return fitted.clamp(low, high)
