"""GradCAM: class activation maps of a layer."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import matplotlib.axes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import _checks
from .._deprecation import renamed_arguments
from . import canvas

__all__ = ["GradCAM", "draw_heatmap", "plot_gradcam"]


class GradCAM:
    """The class activation map ReLU(Σ_c ᾱ_c A_c), A the output of a layer, ᾱ_c the mean gradient of a class score.

    A context manager: its forward hook is removed on exit.

    Args:
        model: a classifier from (B, C, H, W) to scores (B, classes).
        layer: a layer or its name in ``model.named_modules()``, usually the last one before pooling.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    >>> with GradCAM(net, "0") as cam:
    ...     cam(torch.randn(2, 1, 8, 8), target=1).shape
    torch.Size([2, 6, 6])
    """

    def __init__(self, model: nn.Module, layer: str | nn.Module) -> None:
        _checks.instance_of(model, nn.Module, "model")
        self.model = model
        self.layer = canvas.named_layer(model, layer) if isinstance(layer, str) else layer
        _checks.instance_of(self.layer, nn.Module, "layer")
        self._handle: Any = None
        self._outputs: list[Tensor] = []

    def __enter__(self) -> Self:
        if self._handle is not None:
            raise RuntimeError("this GradCAM is already in use: create another one for a nested `with` statement")
        self._handle = self.layer.register_forward_hook(self._record)
        return self

    def _record(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Store the output; pass on a copy, as later layers may modify it in place."""
        self._outputs.append(output)
        return output.clone() if isinstance(output, Tensor) else output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()
        self._handle = None
        self._outputs.clear()

    def __call__(self, images: Tensor, target: int | Sequence[int] | Tensor | None = None) -> Tensor:
        """Return the non-negative maps (B, h, w) of images (B, C, H, W), at the resolution of the layer.

        Args:
            images: input of the model, which stays in its mode (training or evaluation).
            target: class index, or one per image. Default: the class with the highest score.
        """
        if self._handle is None:
            raise RuntimeError("GradCAM can only be called inside a `with` statement")
        _checks.floating(images, "images")
        self._outputs.clear()
        with torch.inference_mode(False), torch.enable_grad():
            # Requires gradients of the image, as the layer may have no parameters that do.
            scores = self.model(images.detach().clone().requires_grad_())
            activation = self._activation()
            if scores.dim() != 2:
                raise ValueError(f"`model` must return scores (B, classes), got shape {tuple(scores.shape)}")
            classes = scores.argmax(1) if target is None else _classes(target, scores)
            score = scores.gather(1, classes.expand(len(scores)).view(-1, 1)).sum()
            (gradient,) = torch.autograd.grad(score, activation)
        spatial = tuple(range(2, activation.dim()))
        return (gradient.mean(spatial, keepdim=True) * activation).sum(1).relu().detach()

    def _activation(self) -> Tensor:
        if not self._outputs or not isinstance(self._outputs[-1], Tensor) or self._outputs[-1].dim() < 3:
            raise ValueError("`layer` must return an output (B, C, *spatial) in the forward pass")
        return self._outputs[-1]


def _classes(target: int | Sequence[int] | Tensor, scores: Tensor) -> Tensor:
    """Check the class indices against scores (B, classes) and return them as a tensor."""
    batch, classes = scores.shape
    try:
        indices = torch.as_tensor(target).to(scores.device)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError of lists of other types
        raise TypeError(f"`target` (={target!r}) must be a class index, or one per image") from None
    integer = not indices.is_floating_point() and indices.dtype != torch.bool
    if not integer or indices.shape not in ((), (1,), (batch,)) or bool(((indices < 0) | (indices >= classes)).any()):
        raise ValueError(f"`target` (={target!r}) must be a class index below {classes}, or one per image of {batch}")
    return indices.long()


@renamed_arguments(pictures="backgrounds")
def plot_gradcam(
    images: Tensor,
    methods: Mapping[str, tuple[nn.Module, str | nn.Module]],
    targets: Sequence[int] | Tensor | None = None,
    *,
    backgrounds: Sequence[canvas.ImageLike] | None = None,
    labels: Sequence[str] | None = None,
    axes: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Plot one row per image: the image, then its class activation map by each method.

    Args:
        images: (B, C, H, W), input of the models.
        methods: model and layer of each method, by name, as for ``GradCAM``.
        targets: class index of each image. Default: the prediction of each model.
        backgrounds: images to display instead of ``images``, which may be normalized: arrays (H, W[, C]) or tensors.
        labels: label of each row.
        axes: array (B, 1 + methods) of axes. Default: new axes.
    """
    if _checks.floating(images, "images").dim() != 4 or not len(images):
        raise ValueError(f"`images` must be (B, C, H, W) and not empty, got shape {tuple(images.shape)}")
    for name, given in (("backgrounds", backgrounds), ("labels", labels)):
        if given is not None:
            canvas.check_length(given, len(images), name, "one per image")
    if not isinstance(methods, Mapping) or not all(isinstance(m, tuple) and len(m) == 2 for m in methods.values()):
        raise TypeError(f"`methods` (={methods!r}) must be a mapping from names to (model, layer)")
    maps = {}
    for name, (model, layer) in methods.items():
        with GradCAM(model, layer) as cam:
            maps[name] = cam(images, targets).cpu()
    shape = (len(images), 1 + len(methods))
    if axes is not None and (not isinstance(axes, np.ndarray) or axes.shape != shape):
        raise ValueError(f"`axes` must be an array {shape}, images × (1 + methods), got {np.shape(axes)}")
    shown = list(images) if backgrounds is None else list(backgrounds)
    width, height = _panel_size(shown[0]) if axes is None else canvas.inches(axes[0, 0])
    titles = [canvas.wrapped(name, width, 9) for name in ("image", *maps)]
    names = [canvas.wrapped(str(name), height, 8) for name in ([""] * len(images) if labels is None else labels)]
    gap = 0.08  # left by matplotlib around a panel
    layout: dict[str, Any] = {"height": height + gap, "aspect": (width + gap) / (height + gap)}
    layout |= {"title_lines": canvas.most_lines(titles), "label_lines": canvas.most_lines(names)}
    panels = canvas.new_axes(*shape, **layout) if axes is None else axes
    for row, panel in enumerate(panels[:, 0]):
        canvas.show(panel, shown[row], images.shape[-2:])
        panel.set_ylabel(names[row], fontsize=8)
        for name, overlay in zip(maps, panels[row, 1:], strict=True):
            draw_heatmap(overlay, shown[row], maps[name][row])
    for title, panel in zip(titles, panels[0], strict=True):
        panel.set_title(title, fontsize=9)
    return panels


def _panel_size(image: canvas.ImageLike) -> tuple[float, float]:
    """Return the width and height of an image's panel in inches; all panels have the same area."""
    height, width = canvas.to_array(image).shape[:2]
    stretch = min(max(width / height, 1 / 3), 3.0) ** 0.5
    return 1.32 * stretch, 1.32 / stretch


def draw_heatmap(axes: matplotlib.axes.Axes, image: canvas.ImageLike, heat: Tensor) -> None:
    """Draw a map of any resolution over an image, bright where it is high."""
    height, width = canvas.to_array(image).shape[:2]
    canvas.show(axes, image, (height, width))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    scale = float(heat.max()) or 1.0
    axes.imshow(heat.numpy() / scale, "inferno", vmin=0, vmax=1, alpha=0.6, extent=extent, interpolation="bilinear")
