"""Filters as modules, for use in a network: each calls the function of the same name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..metrics.from_image import Spacing
from ..stencils import Stencil
from ._balls import MetricSource, geodesic_filter, tangent_filter
from ._diffusion import anisotropic_diffusion
from ._grids import box_filter, dilated_filter, interpolated_filter
from ._random import random_deformable_filter


class _Filter(nn.Module):
    """Base class: images (B, C, *spatial) → (B, C, *spatial), each filtered separately.

    Args:
        function: the filter.
        options: its arguments, which become attributes.
    """

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self._function, self._names = function, tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, images: Tensor) -> Tensor:
        """Filter a batch of images or volumes (B, C, *spatial)."""
        if not isinstance(images, Tensor) or images.dim() not in (4, 5):
            got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(f"`images` must be a tensor (B, C, H, W) or (B, C, D, H, W), got {got}")
        options = {name: getattr(self, name) for name in self._names}
        filtered = [self._function(image, channel_axis=0, **options) for image in images]
        return torch.stack(filtered) if filtered else images.clone()

    def extra_repr(self) -> str:
        """Return the arguments."""
        options = {name: getattr(self, name) for name in self._names}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if not isinstance(value, nn.Module))


class BoxFilter(_Filter):
    """Module of ``box_filter`` with the same arguments, for batches (B, C, *spatial).

    >>> BoxFilter(3)(torch.ones(2, 1, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """

    def __init__(self, size: int = 3, *, padding_mode: str = "reflect") -> None:
        super().__init__(box_filter, size=size, padding_mode=padding_mode)


class DilatedFilter(_Filter):
    """Module of ``dilated_filter`` with the same arguments, for batches (B, C, *spatial)."""

    def __init__(self, samples: int = 11, dilation: int = 3, *, padding_mode: str = "reflect") -> None:
        super().__init__(dilated_filter, samples=samples, dilation=dilation, padding_mode=padding_mode)


class InterpolatedFilter(_Filter):
    """Module of ``interpolated_filter`` with the same arguments, for batches (B, C, *spatial)."""

    def __init__(self, samples: int = 11, size: float = 5.0, *, padding_mode: str = "reflect") -> None:
        super().__init__(interpolated_filter, samples=samples, size=size, padding_mode=padding_mode)


class RandomDeformableFilter(_Filter):
    """Module of ``random_deformable_filter`` with the same arguments, for batches (B, C, *spatial).

    All images have the same displacements, those of the seed.
    """

    def __init__(
        self, samples: int = 11, reach: float | None = None, seed: int = 0, *, padding_mode: str = "reflect"
    ) -> None:
        super().__init__(random_deformable_filter, samples=samples, reach=reach, seed=seed, padding_mode=padding_mode)


class TangentFilter(_Filter):
    """Module of ``tangent_filter`` with the same arguments, for batches (B, C, *spatial).

    The metric of each image is computed from that image; ``metric`` may be a module with parameters. A metric given as
    a value applies to all images.

    >>> images = torch.rand(2, 3, 8, 8)
    >>> filtered = TangentFilter(5, metric="edge")(images)
    >>> torch.equal(filtered[1], tangent_filter(images[1], 5, metric="edge", channel_axis=0))
    True
    """

    def __init__(
        self,
        samples: int = 11,
        metric: MetricSource = "gradient",
        stencil: str | Stencil = "polar",
        *,
        center: bool = False,
        padding_mode: str = "reflect",
        spacing: Spacing = None,
    ) -> None:
        options = {"stencil": stencil, "center": center, "padding_mode": padding_mode, "spacing": spacing}
        super().__init__(tangent_filter, samples=samples, metric=metric, **options)


class GeodesicFilter(_Filter):
    """Module of ``geodesic_filter`` with the same arguments, for batches (B, C, *spatial).

    The metric of each image is computed from that image; ``metric`` may be a module with parameters. A metric given as
    a value applies to all images.
    """

    def __init__(
        self,
        samples: int = 11,
        metric: MetricSource = "edge",
        stencil: str | Stencil = "polar",
        *,
        steps: int | None = None,
        smooth: int = 1,
        center: bool = False,
        padding_mode: str = "reflect",
        spacing: Spacing = None,
    ) -> None:
        options = {"steps": steps, "smooth": smooth, "center": center, "padding_mode": padding_mode, "spacing": spacing}
        super().__init__(geodesic_filter, samples=samples, metric=metric, stencil=stencil, **options)


class AnisotropicDiffusion(_Filter):
    """Module of ``anisotropic_diffusion`` with the same arguments, for batches (B, C, *spatial).

    >>> AnisotropicDiffusion(time=0.1, rounds=1)(torch.ones(2, 1, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """

    def __init__(
        self, time: float = 0.5, metric: MetricSource = "structure", *, rounds: int = 4, spacing: Spacing = None
    ) -> None:
        super().__init__(anisotropic_diffusion, time=time, metric=metric, rounds=rounds, spacing=spacing)
