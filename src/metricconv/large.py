"""Filters of dask arrays larger than memory, tile by tile, equal to the filters of the whole image.

Each tile is read with a halo that covers its balls and the derivative filters of the metric. If the metric depends on
the whole image (max |∇f|), a first pass computes that maximum; another computes the largest ball. The result is a lazy
dask array, computed on one machine or a cluster.

The functions are those of ``metricconv.filters`` and need the extra ``large``. The image is a dask array, and three
other arguments differ:

- ``metric`` is a name or a function of the image, not a metric of the whole image, which might not fit into memory;
- ``metric_reach`` is additional: the receptive field radius, in pixels, of a metric function of your own;
- there is no ``progress``: dask reports its own when the result is computed.

``random_deformable_filter``, which draws displacements for the whole image, is not available.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import _checks, _images, filters, stencils
from ._deprecation import renamed_arguments
from .filters._denoise import check_dtype, check_sigma, denoise_field, mean_level, to_dtype
from .filters._denoise import reach as denoise_reach
from .filters._limits import check_box, check_dilation, check_sample_count, check_side, check_steps
from .filters._noise import noise_level, noise_windows
from .metrics import IMAGE_METRICS, Metric, edge_metric, gradient_metric, image_metric, structure_metric
from .metrics.from_image import Spacing, gradient_length, gradient_reach, structure_trace
from .stencils import Stencil
from .supports.geodesic import halo_width

__all__ = ["box_filter", "denoise", "dilated_filter", "geodesic_filter", "interpolated_filter", "tangent_filter"]

NumpyArray = NDArray[Any]
MetricOf = Callable[..., Metric]


def box_filter(
    image: da.Array, size: int = 3, *, channel_axis: int | None = None, padding_mode: str = "reflect"
) -> da.Array:
    """Average over the box of size^d pixels centered at each pixel, as ``filters.box_filter``.

    >>> whole = np.random.default_rng(0).random((40, 50))
    >>> tiled = box_filter(da.from_array(whole, chunks=16), 5)
    >>> bool(np.abs(tiled.compute() - filters.box_filter(whole, 5)).max() < 1e-12)
    True
    """
    size = check_side(size, "size")
    return _filtered(image, filters.box_filter, size // 2, channel_axis, padding_mode, size=size)


def dilated_filter(
    image: da.Array,
    samples: int = 11,
    dilation: int = 3,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> da.Array:
    """Average over samples^d pixels ``dilation`` pixels apart, as ``filters.dilated_filter``."""
    samples, dilation = check_side(samples, "samples"), check_dilation(dilation)
    halo = dilation * (samples // 2)
    options = {"samples": samples, "dilation": dilation}
    return _filtered(image, filters.dilated_filter, halo, channel_axis, padding_mode, **options)


def interpolated_filter(
    image: da.Array,
    samples: int = 11,
    size: float = 5.0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> da.Array:
    """Average over samples^d points in a box of size^d pixels, as ``filters.interpolated_filter``."""
    check_box(samples, size)
    halo = math.floor((size - 1) / 2) + 1
    return _filtered(image, filters.interpolated_filter, halo, channel_axis, padding_mode, samples=samples, size=size)


@renamed_arguments(centre="center")
def tangent_filter(
    image: da.Array,
    samples: int = 11,
    metric: str | MetricOf = "gradient",
    stencil: str | Stencil = "polar",
    *,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
    metric_reach: int | None = None,
) -> da.Array:
    """Average over the unit tangent ball of a metric at each pixel, as ``filters.tangent_filter``.

    The call reads the image twice, for the scale of the metric and the largest ball; computing the result reads it a
    third time.

    Args:
        image: dask array.
        samples, stencil, center, channel_axis, padding_mode, spacing: as in ``filters.tangent_filter``.
        metric: "gradient", "edge" or "structure"; one of these functions of ``metricconv.metrics`` with other
            arguments, by ``functools.partial``; or a function of your own, which requires ``metric_reach``.
        metric_reach: receptive field radius of your own metric: it depends only on pixels at most that far away.
    """
    local, reach = _local_metric(image, samples, metric, stencil, channel_axis, padding_mode, spacing, metric_reach)
    halo = max(math.floor(reach) + 1, local.reach)
    options = {"samples": samples, "metric": local.metric, "stencil": stencil, "center": center}
    return _filtered(image, filters.tangent_filter, halo, channel_axis, padding_mode, **options)


@renamed_arguments(centre="center")
def geodesic_filter(
    image: da.Array,
    samples: int = 11,
    metric: str | MetricOf = "edge",
    stencil: str | Stencil = "polar",
    *,
    steps: int | None = None,
    smooth: int = 1,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    spacing: Spacing = None,
    metric_reach: int | None = None,
) -> da.Array:
    """Average over the unit geodesic ball of a metric at each pixel, as ``filters.geodesic_filter``.

    Args:
        image, samples, metric, stencil, center, channel_axis, padding_mode, spacing, metric_reach: as in
            ``tangent_filter``.
        steps, smooth: as in ``metricconv.GeodesicBall``.
    """
    check_steps(steps, smooth)
    local, reach = _local_metric(image, samples, metric, stencil, channel_axis, padding_mode, spacing, metric_reach)
    # Each smoothing pass of the metric adds one pixel.
    halo = halo_width(reach, steps) + smooth + local.reach
    options = {"samples": samples, "metric": local.metric, "stencil": stencil, "center": center}
    options |= {"steps": steps, "smooth": smooth}
    return _filtered(image, filters.geodesic_filter, halo, channel_axis, padding_mode, **options)


def denoise(
    image: da.Array,
    sigma: float | str = "auto",
    *,
    channel_axis: int | None = None,
    spacing: Spacing = None,
) -> da.Array:
    """Remove white Gaussian noise from an image or a volume, as ``filters.denoise``.

    The call reads parts of the image, to estimate the noise. Each tile is read with a halo that covers all rounds, so
    tiles should be larger than that: 1024 pixels for an image.

    Args:
        image, sigma, channel_axis, spacing: as in ``filters.denoise``.

    >>> whole = np.random.default_rng(0).random((90, 80), dtype=np.float32)
    >>> tiled = denoise(da.from_array(whole, chunks=80), 0.1)
    >>> bool(np.abs(tiled.compute() - filters.denoise(whole, 0.1)).max() < 1e-5)
    True
    """
    padding_mode = _check(image, channel_axis, "reflect")
    level = check_sigma(sigma)
    check_dtype(np.empty(0, image.dtype))
    steps = _checks.relative_spacing(spacing, image.ndim - (channel_axis is not None))
    statistics = _statistics(image, channel_axis, level)
    apply = partial(_denoise_tile, statistics=statistics, spacing=steps, channel_axis=channel_axis)
    return _tiled(image, apply, denoise_reach(steps), channel_axis, padding_mode, image.dtype.newbyteorder("="))


def _statistics(image: da.Array, channel_axis: int | None, sigma: float | None) -> tuple[float, float]:
    """Return the noise level and the mean of the windows that represent an image."""
    channels = 0 if channel_axis is None else channel_axis
    field = image[None] if channel_axis is None else da.moveaxis(image, channels, 0)
    computed = [_images.to_floats(window) for window in da.compute(*noise_windows(field))]
    unit = _images.unit(np.empty(0, image.dtype))
    return noise_level(computed) if sigma is None else sigma / unit, mean_level(computed)


def _denoise_tile(
    pixels: NumpyArray, statistics: tuple[float, float], spacing: tuple[float, ...], channel_axis: int | None
) -> NumpyArray:
    sigma, offset = statistics
    x = _images.to_field(_images.to_floats(pixels), channel_axis)[0]
    y = denoise_field(x, sigma, offset, spacing)
    y = y.squeeze(0) if channel_axis is None else y.movedim(0, channel_axis)
    return to_dtype(y, check_dtype(pixels), _images.unit(pixels)).contiguous().numpy()


@dataclasses.dataclass(frozen=True)
class _LocalMetric:
    """A function from an image to its metric, and the radius of its receptive field in pixels.

    ``contrast`` computes the field whose maximum over the whole image normalizes the metric, if any.
    """

    metric: MetricOf
    reach: int
    padding_mode: str
    contrast: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def create(
        cls, metric: str | MetricOf, padding_mode: str, spacing: Spacing, metric_reach: int | None
    ) -> "_LocalMetric":
        """Return the metric function and its receptive field, by its name or arguments."""
        metric = image_metric(metric, padding_mode=padding_mode, spacing=spacing)
        function = metric.func if isinstance(metric, partial) else metric
        if function not in IMAGE_METRICS.values():
            if metric_reach is None or not _checks.is_whole(metric_reach) or metric_reach < 0:
                raise ValueError(
                    f"`metric_reach` (={metric_reach!r}) must be an integer of at least 0 for a `metric` of your own"
                )
            return cls(metric, int(metric_reach), padding_mode)
        given = metric.args if isinstance(metric, partial) else ()
        options = metric.keywords if isinstance(metric, partial) else {}
        bound = inspect.signature(function).bind(None, *given, **options)
        bound.apply_defaults()
        arguments = bound.arguments
        mode = arguments["padding_mode"]
        if (mode == "circular") != (padding_mode == "circular"):
            raise ValueError(
                f"`padding_mode` (={padding_mode!r}) and that of `metric` (={mode!r}) must both be 'circular' or "
                f"neither: use partial({function.__name__}, padding_mode={padding_mode!r})"
            )
        if function is structure_metric:
            scales = {"noise_scale": arguments["noise_scale"], "integration_scale": arguments["integration_scale"]}
            reach = sum(gradient_reach(scale) for scale in scales.values())
            contrast = partial(structure_trace, **scales, padding_mode=mode, spacing=arguments["spacing"])
        else:
            assert function in (gradient_metric, edge_metric)
            reach = gradient_reach(arguments["scale"])
            options = {"scale": arguments["scale"], "padding_mode": mode, "spacing": arguments["spacing"]}
            contrast = partial(gradient_length, **options)
        return cls(metric, reach, padding_mode, contrast if arguments["largest"] is None else None)

    def with_maximum(self, image: da.Array, channel_axis: int | None) -> "_LocalMetric":
        """Compute the maximum over the whole image; return the metric of any part of the image."""
        if self.contrast is None:
            return self
        contrast = self.contrast

        def tile(x: Tensor) -> Tensor:
            return contrast(x)[0, 0, 0]

        largest = _maximum(image, tile, self.reach, channel_axis, self.padding_mode)
        return dataclasses.replace(self, metric=partial(self.metric, largest=largest), contrast=None)

    def largest_ball(self, image: da.Array, channel_axis: int | None) -> float:
        """Return the maximum bounding radius of the balls, in pixels."""

        def tile(x: Tensor) -> Tensor:
            return self.metric(x).bounding_radius[0].amax(0).expand(x.shape[2:])  # maximum over metric groups

        return _maximum(image, tile, self.reach, channel_axis, self.padding_mode)


def _local_metric(
    image: da.Array,
    samples: int,
    metric: str | MetricOf,
    stencil: str | Stencil,
    channel_axis: int | None,
    padding_mode: str,
    spacing: Spacing,
    metric_reach: int | None,
) -> tuple[_LocalMetric, float]:
    """Return the metric of any part of the image, and the maximum distance of a sample from its pixel."""
    padding_mode = _check(image, channel_axis, padding_mode)
    dim = image.ndim - (channel_axis is not None)
    if isinstance(stencil, str):
        check_sample_count(samples, dim, "samples")
    reference = stencils.stencil_factory(stencil, samples)(dim)
    local = _LocalMetric.create(metric, padding_mode, spacing, metric_reach).with_maximum(image, channel_axis)
    return local, local.largest_ball(image, channel_axis) * float(reference.radii.max())


def _filtered(
    image: da.Array,
    function: Callable[..., NumpyArray],
    halo: int,
    channel_axis: int | None,
    padding_mode: str,
    **options: Any,
) -> da.Array:
    """Apply one of ``metricconv.filters`` to tiles with a halo of ``halo`` pixels."""
    padding_mode = _check(image, channel_axis, padding_mode)
    apply = partial(function, channel_axis=channel_axis, padding_mode=padding_mode, **options)
    return _tiled(image, apply, halo, channel_axis, padding_mode)


def _tiled(
    image: da.Array,
    apply: Callable[[NumpyArray], NumpyArray],
    halo: int | tuple[int, ...],
    channel_axis: int | None,
    padding_mode: str,
    dtype: np.dtype[Any] | None = None,
) -> da.Array:
    """Apply a function to tiles with a halo of ``halo`` pixels, an int or one per spatial axis, and crop the halo.

    At the border of the image tiles have no halo, unless it is circular: the function pads them.
    """
    spatial = [axis for axis in range(image.ndim) if channel_axis is None or axis != channel_axis % image.ndim]
    halos = dict(zip(spatial, halo if isinstance(halo, tuple) else (halo,) * len(spatial), strict=True))
    # Axes shorter than the halo are not split.
    split = [axis for axis in spatial if image.numblocks[axis] > 1 and halos[axis] < image.shape[axis]]
    image = image.rechunk({axis: -1 for axis in range(image.ndim) if axis not in split})
    if dtype is None:
        dtype = image.dtype.newbyteorder("=") if image.dtype.kind == "f" else np.dtype(np.float64)
    return da.map_overlap(
        apply,
        image,
        depth={axis: halos[axis] if axis in split else 0 for axis in range(image.ndim)},
        boundary={axis: "periodic" if padding_mode == "circular" else "none" for axis in range(image.ndim)},
        dtype=dtype,
        meta=np.empty((0,) * image.ndim, dtype),
    )


def _maximum(
    image: da.Array, field: Callable[[Tensor], Tensor], reach: int, channel_axis: int | None, padding_mode: str
) -> float:
    """Return the maximum over the whole image of a field (*spatial) computed from tensors (1, C, *spatial)."""

    def tile(pixels: NumpyArray) -> NumpyArray:
        with torch.no_grad():
            values = field(_images.to_field(_images.to_floats(pixels), channel_axis)).double().numpy()
        values = values if channel_axis is None else np.expand_dims(values, channel_axis)
        return np.broadcast_to(values, pixels.shape)

    return float(_tiled(image, tile, reach, channel_axis, padding_mode).max().compute())


def _check(image: da.Array, channel_axis: int | None, padding_mode: str) -> str:
    """Check the arguments of all filters; return the padding mode by its own name."""
    if not isinstance(image, da.Array):
        raise TypeError(
            f"`image` must be a dask array, got {type(image).__name__}; use metricconv.filters for arrays and tensors"
        )
    if any(math.isnan(n) for n in image.shape):
        raise ValueError("`image` must have chunks of known size: call its method compute_chunk_sizes() first")
    _images.check_axes(image.shape, channel_axis)
    return _checks.padding_mode(padding_mode)
