"""Learning-free image filters: averages over a support, for NumPy arrays and tensors.

The support is a box, a grid of any spacing, random sampling locations, or the unit ball of a metric of the image.

All of them take a grey image (H, W) or volume (D, H, W), or one with channels along ``channel_axis``, as in
scikit-image, and return an array or tensor of the same shape. Floating-point images keep their dtype. Integers are
divided by the maximum of their type, as by ``skimage.util.img_as_float``: an 8-bit image becomes floats in [0, 1],
float64 for NumPy arrays and torch's default dtype for tensors. Integers of up to 16 bits are filtered in float32, which
is accurate enough and takes half the time and memory. All channels are filtered over the same support.
"""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from . import _checks, _images, _interpolation, stencils
from .metrics import Metric, check_positive, edge_metric, gradient_metric, smoothed, structure_metric
from .metrics.flow import metric_padding
from .ops import support_conv
from .stencils import Stencil
from .supports import Deformable, GeodesicBall, Grid, Support, TangentBall
from .supports.geodesic import sight
from .supports.tangent_ball import farthest_sample

if TYPE_CHECKING:
    import numpy

# Approximate number of pixels between two progress reports.
_STRIP_PIXELS = 2**20
# Maximum number of random values in memory: 256 MB, twice that in float64.
_MAX_RANDOM_VALUES = 2**26

Image = TypeVar("Image", "numpy.ndarray[Any, Any]", Tensor)
Ball = TypeVar("Ball", TangentBall, GeodesicBall)
Progress = Callable[[int, int], object]

METRICS: dict[str, Callable[..., Metric]] = {
    "gradient": gradient_metric,
    "edge": edge_metric,
    "structure": structure_metric,
}


def box_filter(image: Image, size: int = 3, *, channel_axis: int | None = None, padding_mode: str = "reflect") -> Image:
    """Average over the box of size^d pixels centered at each pixel.

    Args:
        image: array or tensor (H, W) or (D, H, W), with channels if ``channel_axis`` is given.
        size: side length of the box in pixels, odd.
        channel_axis: axis of the channels, None for a grey image.
        padding_mode: padding mode at image borders: "reflect", "border", "circular" or "zeros".

    >>> impulse = torch.zeros(3, 3)
    >>> impulse[1, 1] = 9.0
    >>> box_filter(impulse, padding_mode="zeros")
    tensor([[1., 1., 1.],
            [1., 1., 1.],
            [1., 1., 1.]])
    """
    _checks.odd(size, "size")
    return _filter(image, channel_axis, lambda x: _mean(x, Grid(size, dim=x.dim() - 2), padding_mode))


def dilated_filter(
    image: Image,
    samples: int = 11,
    dilation: int = 3,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Average over a grid of samples^d pixels centered at each pixel, ``dilation`` pixels apart.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        samples: samples along each axis, odd.
        dilation: distance between samples in pixels, an integer.

    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 9.0
    >>> dilated_filter(impulse, samples=3, dilation=2, padding_mode="zeros")[0]
    tensor([1., 0., 1., 0., 1.])
    """
    _checks.odd(samples, "samples")
    return _filter(image, channel_axis, lambda x: _mean(x, Grid(samples, dilation, dim=x.dim() - 2), padding_mode))


def interpolated_filter(
    image: Image,
    samples: int = 11,
    size: float = 5.0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Average over samples^d interpolated points in a box of size^d pixels.

    The outermost samples are the centers of the outermost pixels of the box: the spacing is (size − 1) / (samples − 1).
    With samples = size it is the box filter. Interpolation also smooths, so this is the fair comparison of a small box
    with the metric filters, which interpolate.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        samples: samples along each axis, at least 2.
        size: side length of the box in pixels, more than 1; not necessarily an integer.

    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 1.0
    >>> interpolated_filter(impulse, samples=3, size=2.0)[2]  # samples at −½, 0 and ½ pixel
    tensor([0.0000, 0.1111, 0.4444, 0.1111, 0.0000])
    """
    _check_box(samples, size)
    spacing, dilation = (size - 1) / (samples - 1), _centering((samples,))[0]
    return _filter(image, channel_axis, lambda x: _mean(x, Grid(samples, dilation, spacing, x.dim() - 2), padding_mode))


def random_deformable_filter(
    image: Image,
    samples: int = 11,
    reach: float | None = None,
    seed: int = 0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Average over a box whose samples are displaced at random, independently at every pixel.

    The displacements are uniform in [−reach, reach]^d, as in an untrained deformable convolution. For large images they
    are drawn some rows at a time.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        samples: samples along each axis, odd.
        reach: maximum displacement along each axis in pixels. Default: samples/2.
        seed: random seed; the displacements are the same on every device.

    >>> image = torch.rand(16, 16)
    >>> torch.equal(random_deformable_filter(image, 3, seed=1), random_deformable_filter(image, 3, seed=1))
    True
    """
    _checks.odd(samples, "samples")
    reach = samples / 2 if reach is None else reach
    _checks.not_negative(reach, "reach")
    if not _checks.is_whole(seed) or not -(2**63) <= seed < 2**64:
        raise ValueError(f"`seed` (={seed!r}) must be an integer of at most 64 bits")

    def mean(x: Tensor) -> Tensor:
        dim, (height, *others) = x.dim() - 2, x.shape[2:]
        generator = torch.Generator().manual_seed(int(seed))

        def draw(rows: int) -> Tensor:
            uniform = torch.rand(1, 1, samples**dim, dim, rows, *others, generator=generator, device="cpu")
            return uniform.mul_(2).sub_(1).mul_(reach).to(x)

        step = max(_MAX_RANDOM_VALUES // (samples**dim * dim * math.prod(others)), 1)
        if step >= height or samples == 1:
            return _mean(x, Deformable(draw(height), (samples,) * dim), padding_mode)
        # As for balls, a larger dilation widens the margin; the offsets below compensate for it.
        half = samples // 2
        dilation = math.ceil((half + reach + 1) / half)
        rows = torch.arange(-half, half + 1, device="cpu").repeat_interleave(samples ** (dim - 1))
        added = rows.mul(dilation - 1).to(x)
        strips = []
        for start, stop, padded in _strips(x, step, dilation * half, padding_mode):
            vectors = draw(stop - start)
            vectors[:, :, :, 0] -= added.view(-1, *(1,) * dim)
            support = Deformable(vectors, (samples,) * dim, (dilation,) + (1,) * (dim - 1))
            strips.append(_convolve(padded, support, (0,) + (half,) * (dim - 1), padding_mode))
        return torch.cat(strips, 2)

    return _filter(image, channel_axis, mean)


def tangent_filter(
    image: Image,
    samples: int = 11,
    metric: str | Metric | Callable[[Tensor], Metric] = "gradient",
    stencil: str | Stencil = "polar",
    *,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    progress: Progress | None = None,
) -> Image:
    """Average over the unit tangent ball of a metric at each pixel: P samples s_j u_j / F(u_j).

    The metric is computed from all channels together; its balls are elongated along edges or shrink at them.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``. A metric given by name uses the same padding mode.
        samples: k, for P = k^d samples.
        metric: "gradient", "edge" or "structure", for the function of ``metricconv.metrics`` with its defaults; any
            function of the image (1, C, *spatial), such as ``partial(gradient_metric, eps_omega=0.5)``; or a metric.
        stencil: sampling pattern: "polar", "onion", "square_onion" or a ``Stencil``, which then determines P.
        center: add the pixel itself as one more sample, as in the code released with the paper.
        progress: function called with the number of finished rows and of all rows, about every million pixels.

    >>> step = torch.zeros(9, 8)
    >>> step[:, 4:] = 1.0
    >>> box_filter(step, 5)[4, 3:5], tangent_filter(step)[4, 3:5]  # either side of the edge
    (tensor([0.4000, 0.6000]), tensor([0.0780, 0.9065]))
    """
    make_balls = _ball_factory(TangentBall, samples, metric, stencil, padding_mode)
    return _filter_over_balls(image, channel_axis, make_balls, padding_mode, center, progress)


def geodesic_filter(
    image: Image,
    samples: int = 11,
    metric: str | Metric | Callable[[Tensor], Metric] = "edge",
    stencil: str | Stencil = "polar",
    *,
    steps: int | None = None,
    smooth: int = 1,
    center: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    progress: Progress | None = None,
) -> Image:
    """Average over the unit geodesic ball of a metric at each pixel: the points within distance 1.

    A tangent ball assumes that the metric is constant around its pixel; a geodesic ball follows its variation and stops
    at edges some pixels away. It is smaller, so the best scale of the metric differs.

    Args:
        image, samples, metric, stencil, center, channel_axis, padding_mode, progress: as in ``tangent_filter``.
        steps, smooth: integration steps and smoothing passes of the metric, as in ``GeodesicBall``.

    >>> step = torch.zeros(9, 12)
    >>> step[:, 6:] = 1.0
    >>> from functools import partial
    >>> wide = partial(edge_metric, iota=0.04, alpha=20.0, scale=None)  # 5 px wide away from edges
    >>> tangent_filter(step, metric=wide)[4, 3], geodesic_filter(step, metric=wide)[4, 3]  # 2½ px from the edge
    (tensor(0.1330), tensor(0.))
    """
    mode = metric_padding(padding_mode)

    def make(field: Metric, stencil: Stencil, dilation: tuple[int, ...]) -> GeodesicBall:
        return GeodesicBall(field, stencil, steps, smooth, dilation=dilation, padding_mode=mode)

    make_balls = _ball_factory(make, samples, metric, stencil, padding_mode)
    return _filter_over_balls(image, channel_axis, make_balls, padding_mode, center, progress)


def _ball_factory(
    make: Callable[[Metric, Stencil, tuple[int, ...]], Ball],
    samples: int,
    metric: str | Metric | Callable[[Tensor], Metric],
    stencil: str | Stencil,
    padding_mode: str,
) -> Callable[[Tensor], Ball]:
    """Return the function from an image to its balls."""
    make_stencil = stencils.chosen(stencil, samples)
    if isinstance(metric, str):
        _checks.one_of(metric, METRICS, "metric")
    elif not isinstance(metric, Metric) and not callable(metric):
        raise TypeError(f"`metric` must be a name, a Metric or a function of the image, got {type(metric).__name__}")

    def balls(x: Tensor) -> Ball:
        reference = make_stencil(x.dim() - 2)
        if isinstance(metric, Metric):
            field = metric
        elif isinstance(metric, str):
            field = METRICS[metric](x, padding_mode=padding_mode)
        else:
            field = metric(x)
        _checks.instance_of(field, Metric, "metric")
        if not isinstance(metric, str):
            check_positive(field)
        size = tuple(x.shape[2:])
        if field.dim == len(size) and any(n not in (1, m) for n, m in zip(field.spatial, size, strict=True)):
            raise ValueError(f"`metric` must have the spatial size {size} of `image`, got {tuple(field.spatial)}")
        return make(field, reference, _centering(reference.kernel_size))

    return balls


def _filter(image: Image, channel_axis: int | None, mean: Callable[[Tensor], Tensor]) -> Image:
    """Apply a function of tensors (1, C, *spatial) to an image."""
    values = _images.to_floats(image)
    dtype = _images.result_dtype(image, values)
    x = _images.to_field(values, channel_axis)
    del values  # frees memory
    y = mean(x)
    del x
    y = y.squeeze(0).squeeze(0) if channel_axis is None else y.squeeze(0).movedim(0, channel_axis)
    if isinstance(image, Tensor):
        return y.to(dtype)
    return y.detach().to(dtype, memory_format=torch.contiguous_format).contiguous().numpy()


def _filter_over_balls(
    image: Image,
    channel_axis: int | None,
    make_balls: Callable[[Tensor], TangentBall | GeodesicBall],
    padding_mode: str,
    center: bool,
    progress: Progress | None,
) -> Image:
    """Average over balls, and the pixel itself if ``center``; in strips if ``progress`` is given."""
    _checks.boolean(center, "center")
    if progress is not None and not callable(progress):
        raise TypeError(f"`progress` must be a function of two integers, got {type(progress).__name__}")

    def mean(x: Tensor) -> Tensor:
        balls = make_balls(x)
        if progress is None:
            y = _mean(x, balls, padding_mode)
        elif isinstance(balls, TangentBall):
            y = _mean_in_strips(x, balls, padding_mode, progress)
        else:
            y = _geodesic_mean_in_strips(x, balls, padding_mode, progress)
        return y + (x - y) / (balls.samples + 1) if center else y

    return _filter(image, channel_axis, mean)


def _mean(x: Tensor, support: Support, padding_mode: str) -> Tensor:
    """Average each channel over a support."""
    padding = tuple(d * (k - 1) // 2 for k, d in zip(support.kernel_size, support.dilation, strict=True))
    return _convolve(x, support, padding, padding_mode)


def _mean_in_strips(x: Tensor, ball: TangentBall, padding_mode: str, progress: Progress) -> Tensor:
    """Average over balls in strips along the first axis, with a margin of the largest ball.

    The strips are convolved without padding: the dilation, which has no other effect on balls, determines the margin.
    At the border of the image the margin is filled by the padding mode.
    """
    size, (k, *_) = x.shape[2], ball.kernel_size
    metric = ball.metric.expand_to(x.shape[2:])
    reach = ball.reach()
    if k == 1 or not reach < size:  # no margin, or one larger than the image
        y = _mean(x, ball, padding_mode)
        progress(size, size)
        return y
    dilation = (2 * math.ceil((reach + 1) / (k - 1)), *ball.dilation[1:])
    padding = (0, *(d * (k - 1) // 2 for k, d in zip(ball.kernel_size[1:], dilation[1:], strict=True)))
    step, y = max(_STRIP_PIXELS * size // math.prod(x.shape[2:]), 1), torch.empty_like(x)
    for start, stop, padded in _strips(x, step, dilation[0] * (k - 1) // 2, padding_mode):
        balls = TangentBall(metric[:, :, start:stop], ball.stencil, dilation)
        y[:, :, start:stop] = _convolve(padded, balls, padding, padding_mode)
        progress(stop, size)
    return y


def _geodesic_mean_in_strips(x: Tensor, ball: GeodesicBall, padding_mode: str, progress: Progress) -> Tensor:
    """Average over geodesic balls in strips along the first axis, with a margin that geodesics do not leave.

    Geodesics of the margin are traced too and discarded, so strips are at least four times as wide.
    """
    size, mode = x.shape[2], ball.padding_mode
    metric = smoothed(ball.metric.expand_to(x.shape[2:]), ball.smooth, padding_mode=mode)
    reach = farthest_sample(metric, ball.stencil)
    margin = sight(reach, ball.steps) if reach < size else size
    step, y = max(_STRIP_PIXELS * size // math.prod(x.shape[2:]), 4 * margin), torch.empty_like(x)
    margin = margin if step < size else 0  # a single strip needs none
    for start in range(0, size, step):
        stop = min(start + step, size)
        rows = torch.arange(start - margin, stop + margin, device=x.device)
        # Strips end at the border of the image, unless it is circular.
        rows = rows % size if mode == "circular" else rows[(rows >= 0) & (rows < size)]
        balls = GeodesicBall(metric[:, :, rows], ball.rays, ball.steps, 0, dilation=ball.dilation, padding_mode=mode)
        mean = _mean(x[:, :, rows], balls, padding_mode)
        y[:, :, start:stop] = mean.narrow(2, margin if mode == "circular" else min(start, margin), stop - start)
        progress(stop, size)
    return y


def _strips(x: Tensor, step: int, margin: int, padding_mode: str) -> Iterator[tuple[int, int, Tensor]]:
    """Yield start and stop of each strip of ``step`` rows, and its rows with ``margin`` more on either side."""
    size = x.shape[2]
    index, inside = _interpolation.line(-margin, size + margin, size, padding_mode, x.device)
    for start in range(0, size, step):
        stop = min(start + step, size)
        rows = slice(start, stop + 2 * margin)
        yield start, stop, x.index_select(2, index[rows]) * inside[rows].to(x.dtype).view(-1, *(1,) * (x.dim() - 3))


def _convolve(x: Tensor, support: Support, padding: tuple[int, ...], padding_mode: str) -> Tensor:
    channels = x.shape[1]
    weight = x.new_full((channels, 1, *support.kernel_size), 1 / support.samples)
    return support_conv(x, support, weight, padding=padding, groups=channels, padding_mode=padding_mode)


def _centering(kernel_size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dilation that centers outputs on pixels: 2 for even kernels, whose center is between two pixels.

    It does not affect the sampling locations, which depend on the metric or the spacing.
    """
    return tuple(2 - k % 2 for k in kernel_size)


def _check_box(samples: int, size: float) -> None:
    _checks.whole(samples, "samples", minimum=2)
    if _checks.positive(size, "size") <= 1:
        raise ValueError(f"`size` (={size!r}) must be more than 1")
