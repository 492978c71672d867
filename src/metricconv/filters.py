"""Learning-free image filters: the mean of an image over a support, NumPy arrays or tensors in and out.

They differ only in where each pixel looks: the pixels of a box, a grid of any spacing, places drawn at random, or the
unit ball of a metric that is read off the image itself.

All of them take a grey image (H, W) or volume (D, H, W), or one with channels along ``channel_axis``, as in
scikit-image, and return the same kind of object, of the same shape. Floating-point images keep their dtype. Integers
are divided by the largest number of their type, as by ``skimage.util.img_as_float``: an 8-bit image becomes floats in
[0, 1], float64 in NumPy and torch's default dtype in a tensor. Those of up to 16 bits are filtered in float32, whose
rounding is far below theirs, in half the time and memory. All channels are filtered over the same support.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from . import _checks, _interpolation, stencils
from .metrics import Metric, check_positive, edge_metric, gradient_metric, structure_metric
from .ops import support_conv
from .stencils import Stencil
from .supports import Deformable, GeodesicBall, Grid, Support, TangentBall

if TYPE_CHECKING:
    import numpy

# Pixels between one report of progress and the next, about as many.
_STRIP_PIXELS = 2**20

Image = TypeVar("Image", "numpy.ndarray[Any, Any]", Tensor)

_METRICS: dict[str, Callable[..., Metric]] = {
    "gradient": gradient_metric,
    "edge": edge_metric,
    "structure": structure_metric,
}
_STENCILS: dict[str, Callable[[int, int], Stencil]] = {
    "polar": stencils.polar,
    "onion": stencils.onion,
    "square_onion": stencils.square_onion,
}


def box_filter(image: Image, size: int = 3, *, channel_axis: int | None = None, padding_mode: str = "reflect") -> Image:
    """Take the mean of the size^d pixels around each pixel.

    Args:
        image: (H, W) or (D, H, W), array or tensor, and channels if ``channel_axis`` is given.
        size: pixels along each side of the box, odd.
        channel_axis: the axis of the channels, if there is one.
        padding_mode: what stands past the border: "reflect", "border", "circular" or "zeros".

    >>> impulse = torch.zeros(3, 3)
    >>> impulse[1, 1] = 9.0
    >>> box_filter(impulse, padding_mode="zeros")
    tensor([[1., 1., 1.],
            [1., 1., 1.],
            [1., 1., 1.]])
    """
    _odd(size, "size")
    return _filter(image, lambda x: Grid(size, dim=x.dim() - 2), channel_axis, padding_mode)


def dilated_filter(
    image: Image,
    size: int = 11,
    dilation: int = 3,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Take the mean of size^d pixels around each pixel that stand ``dilation`` pixels apart.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        size: samples along each axis, odd.
        dilation: whole pixels between samples.

    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 9.0
    >>> dilated_filter(impulse, size=3, dilation=2, padding_mode="zeros")[0]
    tensor([1., 0., 1., 0., 1.])
    """
    _odd(size, "size")
    return _filter(image, lambda x: Grid(size, dilation, dim=x.dim() - 2), channel_axis, padding_mode)


def interpolated_filter(
    image: Image,
    samples: int = 11,
    size: float = 5.0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Take the mean of samples^d points spread over a box of size^d pixels, read between pixels.

    The outermost samples are the centres of the box's outermost pixels: the spacing is (size − 1) / (samples − 1), and
    with as many samples as pixels it is the box filter. Interpolation smooths too, so that this is how a small box
    compares fairly with the metric filters, which interpolate.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        samples: samples along each axis, at least 2.
        size: pixels along each side of the box, more than 1; need not be whole.

    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 1.0
    >>> interpolated_filter(impulse, samples=3, size=2.0)[2]  # samples at −½, 0 and ½ pixel
    tensor([0.0000, 0.1111, 0.4444, 0.1111, 0.0000])
    """
    if not isinstance(samples, int) or samples < 2:
        raise ValueError(f"`samples` (={samples!r}) must be a whole number, at least 2")
    if not 1 < size < math.inf:
        raise ValueError(f"`size` (={size!r}) must be more than 1 and finite")
    spacing = (size - 1) / (samples - 1)
    return _filter(
        image,
        lambda x: Grid(samples, _centring((samples,))[0], spacing, dim=x.dim() - 2),
        channel_axis,
        padding_mode,
    )


def random_deformable_filter(
    image: Image,
    size: int = 11,
    reach: float | None = None,
    seed: int = 0,
    *,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Take the mean over a box whose every sample, at every pixel, is moved by a random vector.

    The displacements are independent and uniform in [−reach, reach]^d: what a deformable convolution does before it has
    learnt anything.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``.
        size: samples along each axis, odd.
        reach: the largest displacement, in pixels; size/2 if not given.
        seed: of the displacements, which are the same on every device.

    >>> image = torch.rand(16, 16)
    >>> torch.equal(random_deformable_filter(image, 3, seed=1), random_deformable_filter(image, 3, seed=1))
    True
    """
    _odd(size, "size")
    reach = size / 2 if reach is None else reach
    if not 0 <= reach < math.inf:
        raise ValueError(f"`reach` (={reach!r}) must be finite and at least 0")

    def support(x: Tensor) -> Support:
        dim = x.dim() - 2
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand(1, 1, size**dim, dim, *x.shape[2:], generator=generator)
        return Deformable(((2 * uniform - 1) * reach).to(x.device), (size,) * dim)

    return _filter(image, support, channel_axis, padding_mode)


def tangent_filter(
    image: Image,
    samples: int = 11,
    metric: str | Metric | Callable[[Tensor], Metric] = "gradient",
    stencil: str | Stencil = "polar",
    *,
    centre: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
    progress: Callable[[int, int], object] | None = None,
) -> Image:
    """Take the mean over the unit tangent ball of a metric at each pixel: P samples s_j u_j / F(u_j).

    The metric is read off all channels of the image together, so that the balls lie along its edges or shrink at them.

    Args:
        image, channel_axis, padding_mode: as in ``box_filter``. The gradients of a metric given by name see the same
            past the border.
        samples: k, for P = k^d samples.
        metric: "gradient", "edge" or "structure", for the function of ``metricconv.metrics`` with its defaults; any
            function of the image (1, C, *spatial), such as ``partial(gradient_metric, eps_omega=0.5)``; or a metric.
        stencil: how the ball is sampled: "polar", "onion", "square_onion" or a stencil, which then sets P.
        centre: take the pixel itself as one more sample, as the paper's authors do.
        progress: called with the number of rows that are done and of those that there are, every million pixels or so.

    >>> step = torch.zeros(9, 8)
    >>> step[:, 4:] = 1.0
    >>> box_filter(step, 5)[4, 3:5], tangent_filter(step)[4, 3:5]  # either side of the edge
    (tensor([0.4000, 0.6000]), tensor([0.0780, 0.9065]))
    """
    ball = _balls(TangentBall, samples, metric, stencil, padding_mode)
    return _filter(image, ball, channel_axis, padding_mode, centre=centre, progress=progress)


def geodesic_filter(
    image: Image,
    samples: int = 11,
    metric: str | Metric | Callable[[Tensor], Metric] = "edge",
    stencil: str | Stencil = "polar",
    *,
    steps: int | None = None,
    smooth: int = 1,
    centre: bool = False,
    channel_axis: int | None = None,
    padding_mode: str = "reflect",
) -> Image:
    """Take the mean over the unit geodesic ball of a metric at each pixel: what lies within distance 1 of it.

    A tangent ball takes the metric at its pixel for that of all its points; a geodesic ball feels how it changes, and
    stops at an edge that is still some pixels away. It is smaller for it: the best scale of a metric is another.

    Args:
        image, samples, metric, stencil, centre, channel_axis, padding_mode: as in ``tangent_filter``.
        steps, smooth: of the geodesics and of the metric, as in ``GeodesicBall``.

    >>> step = torch.zeros(9, 12)
    >>> step[:, 6:] = 1.0
    >>> from functools import partial
    >>> wide = partial(edge_metric, iota=0.04, alpha=20.0, scale=None)  # 5 px wide away from edges
    >>> tangent_filter(step, metric=wide)[4, 3], geodesic_filter(step, metric=wide)[4, 3]  # 2½ px from the edge
    (tensor(0.1330), tensor(0.))
    """

    def make(field: Metric, stencil: Stencil, dilation: tuple[int, ...]) -> Support:
        check_positive(field)
        mode = "circular" if padding_mode == "circular" else "border"
        return GeodesicBall(field, stencil, steps, smooth, dilation=dilation, padding_mode=mode)

    ball = _balls(make, samples, metric, stencil, padding_mode)
    return _filter(image, ball, channel_axis, padding_mode, centre=centre)


def _balls(
    make: Callable[[Metric, Stencil, tuple[int, ...]], Support],
    samples: int,
    metric: str | Metric | Callable[[Tensor], Metric],
    stencil: str | Stencil,
    padding_mode: str,
) -> Callable[[Tensor], Support]:
    """Return how an image becomes the balls of its metric."""
    if isinstance(stencil, str):
        _checks.one_of(stencil, _STENCILS, "stencil")
    if isinstance(metric, str):
        _checks.one_of(metric, _METRICS, "metric")

    def support(x: Tensor) -> Support:
        reference = _STENCILS[stencil](samples, x.dim() - 2) if isinstance(stencil, str) else stencil
        if isinstance(metric, Metric):
            field = metric
        elif isinstance(metric, str):
            field = _METRICS[metric](x, padding_mode=padding_mode)
        else:
            field = metric(x)
        return make(field, reference, _centring(reference.kernel_size))

    return support


def _filter(
    image: Image,
    support_of: Callable[[Tensor], Support],
    channel_axis: int | None,
    padding_mode: str,
    *,
    centre: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Image:
    """Take the mean of every channel over the support that is made for the image (1, C, *spatial)."""
    values = _to_floats(image)
    dtype = _result_dtype(image, values)
    x = _to_field(values, channel_axis)
    support: Support = support_of(x)
    if progress is not None and isinstance(support, TangentBall):
        y = _mean_in_strips(x, support, padding_mode, progress)
    else:
        y = _mean(x, support, padding_mode)
    if centre:
        y = y + (x - y) / (support.samples + 1)
    del x, values, support  # as large as the image, and as what is made of it now
    y = y.squeeze(0).squeeze(0) if channel_axis is None else y.squeeze(0).movedim(0, channel_axis)
    if isinstance(image, Tensor):
        return y.to(dtype)
    return y.to(dtype, memory_format=torch.contiguous_format).contiguous().numpy()


def _mean(x: Tensor, support: Support, padding_mode: str) -> Tensor:
    """Take the mean of every channel over a support, at every pixel."""
    padding = tuple(d * (k - 1) // 2 for k, d in zip(support.kernel_size, support.dilation, strict=True))
    return _convolve(x, support, padding, padding_mode)


def _mean_in_strips(x: Tensor, ball: TangentBall, padding_mode: str, progress: Callable[[int, int], object]) -> Tensor:
    """Take the mean strip by strip along the first axis, each with a margin as wide as balls reach.

    The margin is that of a convolution without padding. The dilation sets it, and nothing else where the support is a
    ball; what lies past the image's border is laid there.
    """
    size, (k, *_) = x.shape[2], ball.kernel_size
    metric = ball.metric.map(lambda t: t.expand(*t.shape[:3], *x.shape[2:]))
    reach = float(metric.bounding_radius.detach().max() * ball.stencil.radii.max())
    if k == 1 or not reach < size:  # no margin, or one that holds the whole image
        y = _mean(x, ball, padding_mode)
        progress(size, size)
        return y
    dilation = (2 * math.ceil((reach + 1) / (k - 1)), *ball.dilation[1:])
    margin = dilation[0] * (k - 1) // 2
    padding = (0, *(d * (k - 1) // 2 for k, d in zip(ball.kernel_size[1:], dilation[1:], strict=True)))
    place = torch.arange(-margin, size + margin, device=x.device, dtype=torch.float32).unsqueeze(-1)
    index, inside = next(_interpolation.corners(place, [size], padding_mode))
    step, y = max(_STRIP_PIXELS * size // math.prod(x.shape[2:]), 1), torch.empty_like(x)
    for start in range(0, size, step):
        stop = min(start + step, size)
        rows = slice(start, stop + 2 * margin)
        seen = x.index_select(2, index[rows]) * inside[rows].to(x.dtype).view(-1, *(1,) * (x.dim() - 3))
        balls = TangentBall(metric[:, :, start:stop], ball.stencil, dilation)
        y[:, :, start:stop] = _convolve(seen, balls, padding, padding_mode)
        progress(stop, size)
    return y


def _convolve(x: Tensor, support: Support, padding: tuple[int, ...], padding_mode: str) -> Tensor:
    channels = x.shape[1]
    weight = x.new_full((channels, 1, *support.kernel_size), 1 / support.samples)
    return support_conv(x, support, weight, padding=padding, groups=channels, padding_mode=padding_mode)


def _to_floats(image: object) -> Tensor:
    """Return an image as a tensor of finite floats, integers scaled to at most 1."""
    if isinstance(image, Tensor):
        values, floats = image, torch.get_default_dtype()
    else:
        import numpy  # only arrays need it

        if not isinstance(image, numpy.ndarray):
            raise TypeError(f"`image` must be a NumPy array or a torch.Tensor, got {type(image).__name__}")
        try:
            # A copy, since torch cannot look at arrays that are read-only or have negative strides.
            values, floats = torch.from_numpy(image.copy()), torch.float64
        except TypeError:
            raise TypeError(f"`image` must hold numbers of a type that torch has, got dtype {image.dtype}") from None
    if values.is_complex():
        raise TypeError(f"`image` must hold real numbers, got dtype {values.dtype}")
    if not values.is_floating_point():
        largest = 1 if values.dtype == torch.bool else torch.iinfo(values.dtype).max
        values = values.to(floats if values.dtype.itemsize > 2 else torch.float32) / largest
    _checks.finite(values, "image")
    return values


def _result_dtype(image: object, values: Tensor) -> torch.dtype:
    """Return the dtype of the filtered image, given the floats that were made of it."""
    if isinstance(image, Tensor):
        return image.dtype if image.is_floating_point() else torch.get_default_dtype()
    return values.dtype if image.dtype.kind == "f" else torch.float64  # type: ignore[attr-defined]


def _to_field(values: Tensor, channel_axis: int | None) -> Tensor:
    """Bring an image into the shape (1, C, *spatial) and into float32 or wider."""
    shape, axes = tuple(values.shape), values.dim()
    if channel_axis is not None and not -axes <= channel_axis < axes:
        raise ValueError(f"`channel_axis` (={channel_axis!r}) is not an axis of `image` of shape {shape}")
    dim = axes - (channel_axis is not None)
    if dim not in (2, 3) or not values.numel():
        raise ValueError(
            f"`image` must have 2 or 3 spatial axes and not be empty, got shape {shape} with "
            f"`channel_axis` (={channel_axis!r})"
        )
    field = values.unsqueeze(0) if channel_axis is None else values.movedim(channel_axis, 0)
    return field.unsqueeze(0).to(torch.promote_types(values.dtype, torch.float32))


def _centring(kernel_size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dilation that centres outputs on pixels: an even kernel has its centre between two of them.

    It says nothing about where samples lie, which is the metric's or the spacing's affair.
    """
    return tuple(2 - k % 2 for k in kernel_size)


def _odd(value: int, name: str) -> None:
    if not isinstance(value, int) or value < 1 or value % 2 == 0:
        raise ValueError(f"`{name}` (={value!r}) must be a positive odd number, so that there is a central pixel")
