"""Images and label images, arrays or tensors, as arguments and results."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import _checks, _images

# A NumPy array or a tensor.
Image = TypeVar("Image", bound=Any)


def to_field(image: object, channel_axis: int | None, name: str = "image") -> Tensor:
    """Return an image as a tensor (1, C, *spatial) on the CPU; errors name it ``name``."""
    try:
        return _images.to_field(_images.to_floats(image), channel_axis).to("cpu")
    except (TypeError, ValueError) as error:
        if name == "image":
            raise
        text = str(error).replace("`image`", f"`{name}`").replace("`channel_axis`", f"`{name}_channel_axis`")
        raise type(error)(text) from None


def to_labels(labels: object, spatial: tuple[int, ...], name: str) -> Tensor:
    """Check integers of an image's spatial shape, and return them as int64 on the CPU."""
    values = _checks.vectors(labels, name)  # type: ignore[arg-type]
    if values.is_floating_point():
        raise TypeError(f"`{name}` must hold integers, got dtype {values.dtype}")
    if tuple(values.shape) != spatial:
        raise ValueError(f"`{name}` must have the shape of the image, {spatial}, got {tuple(values.shape)}")
    return values.to("cpu", torch.int64)


def like(result: Tensor, image: Image) -> Image:
    """Return a result as an array if the image is one, otherwise on the image's device."""
    converted: Any = result.to(image.device) if isinstance(image, Tensor) else result.numpy()
    return converted


def positions(field: Tensor, contrast: float) -> Tensor:
    """Return the position of each pixel on the surface of an image (1, C, *spatial): (d + C, P), in float64.

    Intensities are relative to the first pixel.
    """
    size, colors = field.shape[2:], field[0].flatten(1).double()
    grid = torch.stack(torch.meshgrid(*map(torch.arange, size), indexing="ij")).flatten(1)
    return torch.cat([grid.double(), contrast * (colors - colors[:, :1])])
