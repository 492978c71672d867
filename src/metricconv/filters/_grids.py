"""Filters that average over a grid of pixels or of interpolated points."""

from torch import Tensor

from .. import _checks
from ..supports import Grid
from ._average import Image, average, centering_dilation, filter_image
from ._limits import check_box, check_dilation, check_sample_count, check_side


def box_filter(image: Image, size: int = 3, *, channel_axis: int | None = None, padding_mode: str = "reflect") -> Image:
    """Average over the box of size^d pixels centered at each pixel.

    Args:
        image: array or tensor (H, W) or (D, H, W), with channels if ``channel_axis`` is given.
        size: side length of the box in pixels, odd, at most 1023; 101 for a volume.
        channel_axis: axis of the channels, None for a gray image.
        padding_mode: padding mode at image borders: "reflect", "border" (or "replicate"), "circular" or "zeros".

    >>> import torch
    >>> impulse = torch.zeros(3, 3)
    >>> impulse[1, 1] = 9.0
    >>> box_filter(impulse, padding_mode="zeros")
    tensor([[1., 1., 1.],
            [1., 1., 1.],
            [1., 1., 1.]])
    """
    size = check_side(size, "size")
    mode = _checks.padding_mode(padding_mode)

    def mean(x: Tensor) -> Tensor:
        dim = x.dim() - 2
        return average(x, Grid(check_sample_count(size, dim, "size"), dim=dim), mode)

    return filter_image(image, channel_axis, mean)


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
        samples: samples along each axis, odd, at most 1023; 101 for a volume.
        dilation: distance between samples in pixels, an integer from 1 to 2^20.

    >>> import torch
    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 9.0
    >>> dilated_filter(impulse, samples=3, dilation=2, padding_mode="zeros")[0]
    tensor([1., 0., 1., 0., 1.])
    """
    samples, dilation = check_side(samples, "samples"), check_dilation(dilation)
    mode = _checks.padding_mode(padding_mode)

    def mean(x: Tensor) -> Tensor:
        dim = x.dim() - 2
        return average(x, Grid(check_sample_count(samples, dim, "samples"), dilation, dim=dim), mode)

    return filter_image(image, channel_axis, mean)


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
        samples: samples along each axis, from 2 to 1023; at most 101 for a volume.
        size: side length of the box in pixels, more than 1 and at most 2^20; not necessarily an integer.

    >>> import torch
    >>> impulse = torch.zeros(5, 5)
    >>> impulse[2, 2] = 1.0
    >>> interpolated_filter(impulse, samples=3, size=2.0)[2]  # samples at −½, 0 and ½ pixel
    tensor([0.0000, 0.1111, 0.4444, 0.1111, 0.0000])
    """
    check_box(samples, size)
    mode = _checks.padding_mode(padding_mode)
    spacing, (dilation,) = (size - 1) / (samples - 1), centering_dilation((samples,))

    def mean(x: Tensor) -> Tensor:
        dim = x.dim() - 2
        return average(x, Grid(check_sample_count(samples, dim, "samples"), dilation, spacing, dim), mode)

    return filter_image(image, channel_axis, mean)
