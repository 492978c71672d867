"""GradCAM: which parts of an image speak for a class, as a layer sees them."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import matplotlib.axes
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import _checks
from . import canvas


class GradCAM:
    """The class activation map ReLU(Σ_c ᾱ_c A_c), with A a layer's output and ᾱ_c the mean gradient of a class's score.

    Used as a context: the layer is watched inside it and no hook is left behind.

    Args:
        model: a classifier from (B, C, H, W) to scores (B, classes).
        layer: the name in ``model.named_modules()`` of the layer to watch, the last before pooling as a rule; or that
            module.

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
        self._seen: list[Tensor] = []

    def __enter__(self) -> Self:
        if self._handle is not None:
            raise RuntimeError("this GradCAM watches its layer already: make another for a `with` statement inside")
        self._handle = self.layer.register_forward_hook(self._see)
        return self

    def _see(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Keep the output; hand a copy on, as what follows may change it in place."""
        self._seen.append(output)
        return output.clone() if isinstance(output, Tensor) else output

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()
        self._handle = None
        self._seen.clear()

    def __call__(self, images: Tensor, target: int | Sequence[int] | Tensor | None = None) -> Tensor:
        """Return the maps of images (B, C, H, W) at the layer's size, (B, h, w), not negative.

        Args:
            images: what to show the model, in the mode (training or not) in which it is.
            target: the class, or one for each image; the one with the highest score if not given.
        """
        if self._handle is None:
            raise RuntimeError("GradCAM watches its layer only inside a `with` statement")
        _checks.floating(images, "images")
        self._seen.clear()
        with torch.inference_mode(False), torch.enable_grad():
            # The layer may have no parameters that ask for gradients; the image then does.
            scores = self.model(images.detach().clone().requires_grad_())
            activation = self._activation()
            if scores.dim() != 2:
                raise ValueError(f"`model` must give scores (B, classes), got shape {tuple(scores.shape)}")
            chosen = scores.argmax(1) if target is None else _classes(target, scores)
            picked = scores.gather(1, chosen.expand(len(scores)).view(-1, 1)).sum()
            (gradient,) = torch.autograd.grad(picked, activation)
        spatial = tuple(range(2, activation.dim()))
        return (gradient.mean(spatial, keepdim=True) * activation).sum(1).relu().detach()

    def _activation(self) -> Tensor:
        if not self._seen or not isinstance(self._seen[-1], Tensor) or self._seen[-1].dim() < 3:
            raise ValueError("`layer` must give an output (B, C, *spatial) when the model runs")
        return self._seen[-1]


def _classes(target: int | Sequence[int] | Tensor, scores: Tensor) -> Tensor:
    """Return the class or classes to ask for, of those that have scores (B, classes)."""
    batch, classes = scores.shape
    try:
        chosen = torch.as_tensor(target, device=scores.device)
    except TypeError:
        raise TypeError(f"`target` (={target!r}) must be a class's number, or one for each image") from None
    whole = not chosen.is_floating_point() and chosen.dtype != torch.bool
    if not whole or chosen.shape not in ((), (1,), (batch,)) or bool(((chosen < 0) | (chosen >= classes)).any()):
        raise ValueError(f"`target` (={target!r}) must be a class below {classes}, or one for each of {batch} images")
    return chosen.long()


def plot_gradcam(
    images: Tensor,
    methods: Mapping[str, tuple[nn.Module, str | nn.Module]],
    targets: Sequence[int] | Tensor | None = None,
    *,
    pictures: Sequence[canvas.Picture] | None = None,
    labels: Sequence[str] | None = None,
    axes: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Draw a row for each image: the image, then its class activation map by each method, laid over it.

    Args:
        images: (B, C, H, W), as the models want them.
        methods: by name, a model and its layer, as for ``GradCAM``.
        targets: the class of each image; each model's own choice if not given.
        pictures: what to show, if ``images`` are normalised beyond recognition: arrays (H, W[, C]) or tensors.
        labels: a name for each row.
        axes: an array (B, 1 + methods) to draw on; new ones if not given.
    """
    if _checks.floating(images, "images").dim() != 4 or not len(images):
        raise ValueError(f"`images` must be (B, C, H, W) and not empty, got shape {tuple(images.shape)}")
    for name, given in (("pictures", pictures), ("labels", labels)):
        if given is not None and len(given) != len(images):
            raise ValueError(f"`{name}` must be one for each of {len(images)} images, got {len(given)}")
    maps = {}
    for name, (model, layer) in methods.items():
        with GradCAM(model, layer) as cam:
            maps[name] = cam(images, targets).cpu()
    shape = (len(images), 1 + len(methods))
    if axes is not None and axes.shape != shape:
        raise ValueError(f"`axes` must be an array {shape}, images × (1 + methods), got {axes.shape}")
    shown = list(images) if pictures is None else list(pictures)
    width, height = _panel_size(shown[0]) if axes is None else canvas.inches(axes[0, 0])
    titles = [canvas.wrapped(name, width, 9) for name in ("image", *maps)]
    names = [canvas.wrapped(str(name), height, 8) for name in ([""] * len(images) if labels is None else labels)]
    gap = 0.08  # which matplotlib leaves around a panel
    layout: dict[str, Any] = {"height": height + gap, "aspect": (width + gap) / (height + gap)}
    layout |= {"title_lines": canvas.most_lines(titles), "label_lines": canvas.most_lines(names)}
    panels = canvas.new_axes(*shape, **layout) if axes is None else axes
    for row, panel in enumerate(panels[:, 0]):
        canvas.show(panel, shown[row], images.shape[-2:])
        panel.set_ylabel(names[row], fontsize=8)
        for name, beside in zip(maps, panels[row, 1:], strict=True):
            draw_heat(beside, shown[row], maps[name][row])
    for title, panel in zip(titles, panels[0], strict=True):
        panel.set_title(title, fontsize=9)
    return panels


def _panel_size(image: canvas.Picture) -> tuple[float, float]:
    """Return how wide and high a panel for an image is, in inches: of the same area whatever its shape."""
    height, width = canvas.to_array(image).shape[:2]
    stretch = min(max(width / height, 1 / 3), 3.0) ** 0.5
    return 1.32 * stretch, 1.32 / stretch


def draw_heat(axes: matplotlib.axes.Axes, image: canvas.Picture, heat: Tensor) -> None:
    """Lay a map of any size over an image, bright where it is high."""
    height, width = canvas.to_array(image).shape[:2]
    canvas.show(axes, image, (height, width))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    scale = float(heat.max()) or 1.0
    axes.imshow(heat.numpy() / scale, "inferno", vmin=0, vmax=1, alpha=0.6, extent=extent, interpolation="bilinear")
