"""Distances without numba: by the slow solver of ``metricconv.metrics.eikonal``."""

import math
import warnings

import torch
from torch import Tensor

from ..metrics import Metric
from ..metrics.eikonal import hopf_lax_distance
from ._problem import Sources

# Seconds for 256 × 256 pixels on two cores; the time grows with the number of pixels times the length of the paths.
_SECONDS = 30.0


@torch.no_grad()
def solve(
    metric: Metric, sources: Sources, domain: Tensor | None, max_distance: float | None, reason: str, wants_labels: bool
) -> tuple[Tensor, Tensor]:
    """Return distances and labels (B, G, *spatial), with a warning that states the reason and the expected time."""
    if domain is not None:
        raise NotImplementedError(f"`mask` requires the compiled solver: {reason}")
    several = wants_labels or bool((sources.initial != 0).any())
    runs = len(sources.points) if several else 1
    fields, pixels = metric.batch * metric.groups, metric.spatial.numel()
    seconds = runs * fields * _SECONDS * (pixels / 256**2) ** (1 + 1 / metric.dim)
    warnings.warn(
        f"{reason}: distances are computed by a slow solver of order 1, in about {max(seconds, 1):.0f} s, without "
        "gradients",
        RuntimeWarning,
        stacklevel=5,
    )
    if not several:
        distance = hopf_lax_distance(metric, sources.points)
        label = torch.zeros(distance.shape, dtype=torch.long)
    else:
        initial = sources.initial.view(metric.batch, metric.groups, -1, *(1,) * metric.dim)
        each = [
            hopf_lax_distance(metric, point.unsqueeze(0)) + initial[:, :, n] for n, point in enumerate(sources.points)
        ]
        distance, label = torch.stack(each).min(0)
    if max_distance is not None:
        distance = torch.where(distance <= max_distance, distance, math.inf)
    return distance, torch.where(distance.isfinite(), label, -1)
