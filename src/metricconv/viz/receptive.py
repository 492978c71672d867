"""Receptive fields of deep units, by composing the supports of all layers below.

Each layer, adaptive or ordinary, distributes the contribution of a unit evenly over its samples. The receptive field is
the gradient of an averaging network: a copy of the model in which every layer averages over its support, with supports
fixed to those of the image and without norms and activations. Branches and residual connections are those of the model.
"""

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import matplotlib.axes
import numpy as np
import skimage
import torch
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import _checks, _compat
from ..nn import AdaptiveConv
from ..nn.training import watch_supports
from ..ops import support_conv
from ..supports import Grid, Support
from . import canvas

__all__ = ["Point", "plot_receptive_field", "receptive_field"]

Point = Sequence[int] | NDArray[Any] | Tensor

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
_NORMS = (_compat.BATCH_NORM, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
_POOLS = (nn.MaxPool2d, nn.AdaptiveMaxPool2d)


def receptive_field(
    model: nn.Module,
    image: Tensor,
    point: Point,
    layer: str | None = None,
    *,
    adaptive: bool = True,
) -> Tensor:
    """Return the receptive field of a unit: the contribution of each pixel of the image.

    Weights and modulation are replaced by averages: the result depends on the sampling locations only. Layers must be
    convolutions (of this package or torch), linear, norms, pooling, or have no parameters; functions between them must
    preserve positive values, as ReLU and addition do.

    Args:
        model: a network of ordinary and adaptive convolutions.
        image: (1, C, H, W), input of the model.
        point: (y, x), position of the unit in the output of ``layer``.
        layer: name of the layer in ``model.named_modules()``. Default: the model itself.
        adaptive: False to replace each adaptive layer by an ordinary convolution.

    Returns:
        (H, W), non-negative, with sum 1.

    >>> two = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    >>> receptive_field(two, torch.zeros(1, 1, 5, 5), (2, 2))[2].mul(81).round()
    tensor([3., 6., 9., 6., 3.])
    """
    if not isinstance(image, Tensor) or _checks.dense(image, "image").dim() != 4 or image.shape[0] != 1:
        raise ValueError(f"`image` must be a tensor (1, C, H, W), got {getattr(image, 'shape', type(image).__name__)}")
    _checks.floating(image, "image")
    _checks.instance_of(model, nn.Module, "model")
    _checks.with_values(image, "image")
    adaptive = _checks.boolean(adaptive, "adaptive")
    recorded: dict[str, list[Support]] = {}
    watched = watch_supports(model, lambda name, support: recorded.setdefault(name, []).append(support))
    with torch.inference_mode(False), torch.no_grad(), _evaluation_mode(model), watched:
        model(image.clone())
    outputs: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad():
        averaging = _averaging_network(model, recorded if adaptive else {})
        module = averaging if layer is None else canvas.named_layer(averaging, layer)
        handle = module.register_forward_hook(lambda module, args, output: outputs.append(output))
        ones = torch.ones_like(image, requires_grad=True)
        averaging(ones)
        handle.remove()
        unit = _unit(outputs, point, layer)
        (gradient,) = torch.autograd.grad(unit, ones, allow_unused=True)
    if gradient is None or not float(gradient.sum()):
        raise ValueError(f"`layer` (={layer!r}) does not depend on the image at `point` (={tuple(point)})")
    density = gradient[0].sum(0)
    return density / density.sum()


def plot_receptive_field(
    model: nn.Module,
    image: Tensor,
    point: Point,
    layer: str | None = None,
    *,
    axes: matplotlib.axes.Axes | None = None,
    parts: Sequence[float] = (0.5, 0.9),
) -> matplotlib.axes.Axes:
    """Plot the receptive field of a deep unit, compared with the same network of ordinary convolutions.

    Args:
        model, image, point, layer: as in ``receptive_field``.
        axes: axes to draw on. Default: new axes.
        parts: fractions of the receptive field enclosed by contours, solid for the model, dashed for the
            ordinary network.
    """
    if not isinstance(parts, Sequence) or not all(0 < _checks.number(part) < 1 for part in parts):
        raise ValueError(f"`parts` (={parts!r}) must lie between 0 and 1")
    field = receptive_field(model, image, point, layer).cpu().numpy()
    ordinary = receptive_field(model, image, point, layer, adaptive=False).cpu().numpy()
    axes = canvas.one_axes(axes, image)
    canvas.show(axes, image, field.shape, alpha=0.6)
    clear = LinearSegmentedColormap.from_list("clear", [to_rgba(canvas.ORANGE, 0.0), to_rgba(canvas.ORANGE, 0.9)])
    axes.imshow(np.sqrt(field / field.max()), clear, vmin=0, vmax=1, interpolation="bilinear")
    _contours(axes, ordinary, parts, canvas.SKY, "dashed")
    _contours(axes, field, parts, canvas.VERMILLION, "solid")
    return axes


class _UniformConv(nn.Module):
    """An adaptive convolution with uniform weights and given supports, one per call."""

    def __init__(self, layer: AdaptiveConv, supports: Iterable[Support]) -> None:
        super().__init__()
        self.supports = iter(supports)
        self.options: dict[str, Any] = {
            "stride": layer.stride,
            "padding": layer.padding,
            "groups": layer.groups,
            "padding_mode": layer.padding_mode,
        }
        self.register_buffer("weight", torch.full_like(layer.weight.detach(), 1 / layer.weight[0].numel()))
        self.weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return support_conv(x, next(self.supports), self.weight, backend="reference", **self.options)


def _averaging_network(model: nn.Module, recorded: dict[str, list[Support]]) -> nn.Module:
    """Return the averaging network, for one call; adaptive layers without recorded supports use their grid."""
    supports = {id(model.get_submodule(name)): calls for name, calls in recorded.items()}

    def replaced(module: nn.Module) -> nn.Module | None:
        if isinstance(module, AdaptiveConv):
            return _UniformConv(
                module, supports.get(id(module)) or itertools.repeat(Grid(module.kernel_size, module.dilation))
            )
        if isinstance(module, _NORMS) or _is_activation(module):
            return nn.Identity()
        if isinstance(module, _POOLS):
            return _average_pool(module)
        return None

    replacements = {id(module): new for module in model.modules() if (new := replaced(module)) is not None}
    # deepcopy takes modules found in its memo for copies, wherever they occur in the model.
    network = copy.deepcopy(model, dict(replacements)).eval()
    for name, module in network.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not isinstance(module, _CONVOLUTIONS):
            raise ValueError(f"`model` has a {type(module).__name__} ({name}), whose support is unknown")
        for parameter in own:
            parameter.requires_grad_(False)
            parameter.fill_(1 / parameter[0].numel() if parameter is module.weight else 0.0)
    return network


def _is_activation(module: nn.Module) -> bool:
    """Return whether a layer is an elementwise activation: neither attention nor GLU."""
    activation = type(module).__module__ == "torch.nn.modules.activation"
    return activation and not isinstance(module, nn.MultiheadAttention | nn.GLU)


def _average_pool(pool: nn.Module) -> nn.Module:
    if isinstance(pool, nn.AdaptiveMaxPool2d):
        return nn.AdaptiveAvgPool2d(pool.output_size)
    assert isinstance(pool, nn.MaxPool2d)
    return nn.AvgPool2d(pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, count_include_pad=False)


@contextlib.contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore the mode of each module on exit."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _unit(outputs: list[Tensor], point: Point, layer: str | None) -> Tensor:
    """Return the sum over channels of the last output at one position."""
    if not outputs or not isinstance(outputs[-1], Tensor) or outputs[-1].dim() != 4:
        raise ValueError(f"`layer` (={layer!r}) must return an output (B, C, H, W) in the forward pass")
    output = outputs[-1]
    size = tuple(output.shape[2:])
    position = _checks.vectors(point, "point").tolist() if isinstance(point, Tensor | np.ndarray) else point
    if not (
        isinstance(position, Sequence)
        and len(position) == 2
        and all(_checks.is_whole(p) and 0 <= p < n for p, n in zip(position, size, strict=True))
    ):
        raise ValueError(f"`point` (={point!r}) must be two integers (y, x) inside the layer's output of size {size}")
    return output[0, :, position[0], position[1]].sum()


def _contours(
    axes: matplotlib.axes.Axes, density: NDArray[Any], parts: Sequence[float], color: str, style: str
) -> None:
    """Draw contours that enclose given fractions of a density, smoothed because strides leave holes in it."""
    density = skimage.filters.gaussian(density, 0.12 * _standard_deviation(density), mode="constant")
    descending = np.sort(density, axis=None)[::-1]
    total = np.cumsum(descending)
    levels = sorted({float(descending[min(int(np.searchsorted(total, part)), len(total) - 1)]) for part in parts})
    levels = [level for level in levels if 0 < level < density.max()]
    if levels:
        axes.contour(density, levels, colors=color, linestyles=style, linewidths=1.1)


def _standard_deviation(density: NDArray[Any]) -> float:
    """Return the standard deviation of a density, in pixels, over both axes."""
    y, x = np.indices(density.shape)
    total = density.sum()
    means = [(axis * density).sum() / total for axis in (y, x)]
    variance = sum(((axis - m) ** 2 * density).sum() for axis, m in zip((y, x), means, strict=True)) / total
    return float(np.sqrt(variance / 2))
