"""Where a deep unit really looks: the supports of all layers below it, composed.

A layer spreads the attention of a unit over its samples, evenly; so do ordinary convolutions, over their grid, and
pooling. From the unit down to the image this is the adjoint of a network in which every layer takes the mean over its
support: a twin of the model, with supports frozen at what they were for the image, norms and activations left out. It
is followed through branches and residual connections as the model itself is.
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

from .. import _checks
from ..nn import AdaptiveConv
from ..nn.training import watch_supports
from ..ops import support_conv
from ..supports import Grid, Support
from . import canvas

Point = Sequence[int] | NDArray[Any] | Tensor

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm)
_POOLS = (nn.MaxPool2d, nn.AdaptiveMaxPool2d)


def receptive_field(
    model: nn.Module,
    image: Tensor,
    point: Point,
    layer: str | None = None,
    *,
    adaptive: bool = True,
) -> Tensor:
    """Return how much a unit looks at each pixel of the image, by composing the supports of the layers below it.

    Signs and sizes of weights do not count, nor does modulation: this is where the unit can look, not what it makes of
    it. Layers must be convolutions (these or torch's), linear, norms, pooling, or have no parameters; functions between
    them must let positive numbers pass, as ReLU and additions do.

    Args:
        model: a network of ordinary and adaptive convolutions.
        image: (1, C, H, W), its input.
        point: (y, x), the unit's place in the output of ``layer``.
        layer: the layer's name in ``model.named_modules()``; the model itself if not given.
        adaptive: False to see the ordinary network instead, each adaptive layer on its grid.

    Returns:
        (H, W), not negative, of sum 1.

    >>> two = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
    >>> receptive_field(two, torch.zeros(1, 1, 5, 5), (2, 2))[2].mul(81).round()
    tensor([3., 6., 9., 6., 3.])
    """
    if not isinstance(image, Tensor) or image.dim() != 4 or image.shape[0] != 1:
        raise ValueError(f"`image` must be a tensor (1, C, H, W), got {getattr(image, 'shape', type(image).__name__)}")
    _checks.floating(image, "image")
    _checks.instance_of(model, nn.Module, "model")
    seen: dict[str, list[Support]] = {}
    watched = watch_supports(model, lambda name, support: seen.setdefault(name, []).append(support))
    with torch.inference_mode(False), torch.no_grad(), _evaluating(model), watched:
        model(image.clone())
    reached: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad():
        twin = _twin(model, seen if adaptive else {})
        module = twin if layer is None else canvas.named_layer(twin, layer)
        handle = module.register_forward_hook(lambda module, args, output: reached.append(output))
        ones = torch.ones_like(image, requires_grad=True)
        twin(ones)
        handle.remove()
        unit = _unit(reached, point, layer)
        (attention,) = torch.autograd.grad(unit, ones, allow_unused=True)
    if attention is None or not float(attention.sum()):
        raise ValueError(f"`layer` (={layer!r}) sees nothing of the image at `point` (={tuple(point)})")
    density = attention[0].sum(0)
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
    """Draw where a deep unit looks, over the image, beside where the same network of ordinary convolutions would.

    Args:
        model, image, point, layer: as in ``receptive_field``.
        axes: what to draw on; new ones if not given.
        parts: each solid line encloses so much of the unit's attention; dashed ones are those of the ordinary network.
    """
    if not all(0 < part < 1 for part in parts):
        raise ValueError(f"`parts` (={parts!r}) must lie between 0 and 1")
    looked_at = receptive_field(model, image, point, layer).cpu().numpy()
    ordinary = receptive_field(model, image, point, layer, adaptive=False).cpu().numpy()
    axes = canvas.one_axes(axes, image)
    canvas.show(axes, image, looked_at.shape, alpha=0.6)
    clear = LinearSegmentedColormap.from_list("clear", [to_rgba(canvas.ORANGE, 0.0), to_rgba(canvas.ORANGE, 0.9)])
    axes.imshow(np.sqrt(looked_at / looked_at.max()), clear, vmin=0, vmax=1, interpolation="bilinear")
    _contours(axes, ordinary, parts, canvas.SKY, "dashed")
    _contours(axes, looked_at, parts, canvas.VERMILLION, "solid")
    return axes


class _Mean(nn.Module):
    """An adaptive convolution that takes the mean over supports it was given, one each time that it looks."""

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


def _twin(model: nn.Module, seen: dict[str, list[Support]]) -> nn.Module:
    """Return the network of means, to be run once; an adaptive layer that was not seen looks at its grid."""
    supports = {id(model.get_submodule(name)): looks for name, looks in seen.items()}

    def replaced(module: nn.Module) -> nn.Module | None:
        if isinstance(module, AdaptiveConv):
            return _Mean(
                module, supports.get(id(module)) or itertools.repeat(Grid(module.kernel_size, module.dilation))
            )
        if isinstance(module, _NORMS) or _is_activation(module):
            return nn.Identity()
        if isinstance(module, _POOLS):
            return _averaging(module)
        return None

    swapped = {id(module): new for module in model.modules() if (new := replaced(module)) is not None}
    # Placing the new modules in deepcopy's memory of what it has copied puts them wherever the old ones are.
    twin = copy.deepcopy(model, dict(swapped)).eval()
    for name, module in twin.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not isinstance(module, _CONVOLUTIONS):
            raise ValueError(f"`model` has a {type(module).__name__} ({name}), whose support is not known")
        for parameter in own:
            parameter.requires_grad_(False)
            parameter.fill_(1 / parameter[0].numel() if parameter is module.weight else 0.0)
    return twin


def _is_activation(module: nn.Module) -> bool:
    """Return whether a layer is an activation, number by number: not attention, nor one that joins halves."""
    among = type(module).__module__ == "torch.nn.modules.activation"
    return among and not isinstance(module, nn.MultiheadAttention | nn.GLU)


def _averaging(pool: nn.Module) -> nn.Module:
    if isinstance(pool, nn.AdaptiveMaxPool2d):
        return nn.AdaptiveAvgPool2d(pool.output_size)
    assert isinstance(pool, nn.MaxPool2d)
    return nn.AvgPool2d(pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, count_include_pad=False)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _unit(reached: list[Tensor], point: Point, layer: str | None) -> Tensor:
    """Return the sum over channels of a layer's last output at one place."""
    if not reached or not isinstance(reached[-1], Tensor) or reached[-1].dim() != 4:
        raise ValueError(f"`layer` (={layer!r}) must give an output (B, C, H, W) when the model runs")
    output = reached[-1]
    size = tuple(output.shape[2:])
    place = point.tolist() if isinstance(point, Tensor | np.ndarray) else point
    if not (
        isinstance(place, Sequence)
        and len(place) == 2
        and all(_checks.is_whole(p) and 0 <= p < n for p, n in zip(place, size, strict=True))
    ):
        raise ValueError(f"`point` (={point!r}) must be two whole numbers (y, x) in the layer's output of size {size}")
    return output[0, :, place[0], place[1]].sum()


def _contours(
    axes: matplotlib.axes.Axes, density: NDArray[Any], parts: Sequence[float], colour: str, style: str
) -> None:
    """Draw the lines that enclose given parts of a density, smoothed: strides leave it full of holes."""
    density = skimage.filters.gaussian(density, 0.12 * _spread(density), mode="constant")
    falling = np.sort(density, axis=None)[::-1]
    total = np.cumsum(falling)
    levels = sorted({float(falling[min(int(np.searchsorted(total, part)), len(total) - 1)]) for part in parts})
    levels = [level for level in levels if 0 < level < density.max()]
    if levels:
        axes.contour(density, levels, colors=colour, linestyles=style, linewidths=1.1)


def _spread(density: NDArray[Any]) -> float:
    """Return the standard deviation of a density, in pixels, over both axes."""
    y, x = np.indices(density.shape)
    total = density.sum()
    means = [(axis * density).sum() / total for axis in (y, x)]
    variance = sum(((axis - m) ** 2 * density).sum() for axis, m in zip((y, x), means, strict=True)) / total
    return float(np.sqrt(variance / 2))
