"""Cached computations of the explorer: images, metrics, balls and filtered images."""

import dataclasses
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import skimage
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .. import filters, stencils
from .._errors import UserError
from .._images import to_field
from ..cli.options import ImageMetricOptions, MetricName
from ..io import images
from ..metrics import Randers, Riemannian
from ..nn import adaptive_layers, record_supports
from ..supports import Support
from ..supports.geodesic import halo_width
from ..viz.balls import Ball, ball_kind, in_field, unit_balls
from ..viz.fields import ball_properties
from . import draw
from .networks import load_checkpoint

__all__ = ["BUNDLED", "Explorer", "ExplorerSettings", "MAX_PIXELS", "MAX_SIDE", "Value", "first_point"]

# Images of scikit-image, and the initial pixel, (y, x) as fractions of the size.
BUNDLED = {
    "camera": (0.372, 0.333),
    "astronaut": (0.33, 0.52),
    "coins": (0.42, 0.37),
    "coffee": (0.45, 0.40),
    "retina": (0.37, 0.30),
    "brick": (0.50, 0.50),
}
# Maximum number of pixels of an upload, and maximum side length shown.
MAX_PIXELS, MAX_SIDE = 40_000_000, 512
# Normalization of ImageNet.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class ExplorerSettings:
    """The values of all controls of the page."""

    image: str = "camera"
    noise: float = 0.1
    metric: str = "edge"
    iota: float = 0.03
    alpha: float = 10.0
    scale: float = 1.5
    eps_omega: float = 1.0
    ball: str = "geodesic"
    stencil: str = "polar"
    samples: int = 7
    overlay: str = "none"
    layer: str = ""
    group: int = 0

    @property
    def input_key(self) -> tuple[Hashable, ...]:
        """Cache key of the (noisy) image."""
        return self.image, self.noise

    @property
    def metric_key(self) -> tuple[Hashable, ...]:
        """Cache key of the metric."""
        return *self.input_key, self.metric, self.iota, self.alpha, self.scale, self.eps_omega

    @property
    def ball_types(self) -> list[str]:
        """The types of balls to show."""
        return ["tangent", "geodesic"] if self.ball == "both" else [self.ball]

    def metric_function(self) -> Callable[..., Any]:
        """Return the function that computes the metric of an image."""
        eps_omega = self.eps_omega if self.metric == "gradient" else None
        scale = max(self.scale, 0.3) if self.metric == "structure" else self.scale
        options = ImageMetricOptions(MetricName(self.metric), self.iota, self.alpha, scale, eps_omega)
        return options.function("gradient", "reflect")


class Explorer:
    """Images and networks by name, with a cache of recent results."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.uploads: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self.models: OrderedDict[str, nn.Module] = OrderedDict()
        if model is not None:
            self.models["model"] = model
        self._cache: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def upload(self, path: Path) -> str:
        """Read an uploaded file and return the name of its image."""
        try:
            image = images.read(path, None, MAX_PIXELS)
        except UserError as error:  # the path is that of a temporary file on the server
            raise UserError(error.message.replace(str(path), path.name)) from error
        size = " × ".join(map(str, image.spatial))
        if len(image.spatial) != 2:
            raise UserError(f"{path.name}: expected a 2-D image, got a volume of {size} pixels")
        if min(image.spatial) < 8:
            raise UserError(f"{path.name}: expected an image of at least 8 × 8 pixels, got {size}")
        values = image.to_float()
        if image.channel_axis is not None:
            values = np.moveaxis(values, image.channel_axis, -1)
        name = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        _store(self.uploads, name, _to_display(values), 8)
        return name

    def load(self, path: str, report: Callable[[str], object] | None = None) -> list[str]:
        """Load a checkpoint and return the names of its adaptive layers; its path is the name of the network."""
        network = load_checkpoint(Path(path), report)
        _store(self.models, path, network, 3)
        return [name for name, _ in adaptive_layers(network)]

    def clean(self, settings: ExplorerSettings) -> NDArray[np.float32]:
        """Return the image without noise, (H, W) or (H, W, 3) in [0, 1]."""
        if settings.image in BUNDLED:
            return self._cached(("image", settings.image), lambda: _bundled(settings.image))
        if settings.image not in self.uploads:
            raise UserError("this image is no longer available; upload it again")
        return self.uploads[settings.image]

    def noisy(self, settings: ExplorerSettings) -> NDArray[np.float32]:
        """Return the image with added noise."""
        clean = self.clean(settings)
        if settings.noise == 0:
            return clean
        key = ("noisy", *settings.input_key)
        generator = np.random.default_rng(0)
        return self._cached(key, lambda: (clean + generator.normal(0, settings.noise, clean.shape)).astype(np.float32))

    def metric(self, settings: ExplorerSettings) -> Riemannian | Randers:
        """Return the metric of the (noisy) image."""

        @torch.no_grad()
        def compute() -> Riemannian | Randers:
            return settings.metric_function()(_field(self.noisy(settings)))

        return self._cached(("metric", *settings.metric_key), compute)

    def display(self, settings: ExplorerSettings) -> tuple[NDArray[np.uint8], PIL.Image.Image]:
        """Return the (noisy) image in 8 bits, and enlarged with the metric field drawn over it."""
        image = self._cached(("display", *settings.input_key), lambda: draw.to_rgb8(self.noisy(settings)))

        def overlay() -> PIL.Image.Image:
            return draw.enlarged(draw.overlaid(image, self.metric(settings), settings.overlay))

        return image, self._cached(("overlay", *settings.metric_key, settings.overlay), overlay)

    def support(self, settings: ExplorerSettings, model: str) -> Support:
        """Return the support of a layer of a network for the image."""

        @torch.no_grad()
        def record() -> dict[str, Support]:
            if model not in self.models:
                raise UserError("this network is no longer available; upload its checkpoint again")
            network = self.models[model].eval()
            channels = next(p.shape[1] for p in network.parameters() if p.dim() == 4)
            with record_supports(network) as supports:
                network(_normalized(self.noisy(settings), channels))
            return supports

        recorded = self._cached(("supports", model, *settings.input_key), record)
        if settings.layer not in recorded:
            raise UserError(f"the network has no adaptive layer {settings.layer!r}")
        return recorded[settings.layer]

    def balls(self, settings: ExplorerSettings, point: tuple[int, int], model: str = "") -> list[tuple[str, Ball]]:
        """Return the types and balls of a pixel, in pixels of the image."""
        if model and settings.layer:
            support = self.support(settings, model)
            position, zoom = in_field(support, [point], self.clean(settings).shape[:2])
            (ball,) = unit_balls(support, position, group=settings.group)
            return [(ball_kind(support, fitted="fitted"), _transformed(ball, lambda p: (p + 0.5) * zoom - 0.5))]
        stencil = stencils.stencil_factory(settings.stencil, settings.samples)(2)
        metric = self.metric(settings)
        largest = self._cached(("reach", *settings.metric_key), lambda: metric.bounding_radius.max().item())
        # The outline has radius 1; the corners of a square onion lie outside it.
        near, corner = _window(metric, point, largest * max(1.0, stencil.radii.max().item()))
        balls = []
        for kind in settings.ball_types:
            (ball,) = unit_balls(near, [(point[0] - corner[0], point[1] - corner[1])], kind, stencil)
            balls.append((kind, _transformed(ball, lambda p: p + torch.tensor(corner))))
        return balls

    def properties(self, settings: ExplorerSettings, point: tuple[int, int]) -> dict[str, float]:
        """Return the properties of the tangent ball of a pixel."""
        local = self.metric(settings)[:, :, point[0], point[1]]
        return {name: value.item() for name, value in ball_properties(local).items()}

    def filtered(self, settings: ExplorerSettings) -> NDArray[np.float32]:
        """Return the image filtered over the balls shown (tangent balls if both are, as they are faster)."""
        image = self.noisy(settings)
        apply = filters.geodesic_filter if settings.ball == "geodesic" else filters.tangent_filter
        axis = None if image.ndim == 2 else -1
        return apply(image, settings.samples, self.metric(settings), settings.stencil, channel_axis=axis)

    def _cached(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the cached value; compute and cache it if missing."""
        with self._lock:  # handlers run in several threads
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        value = compute()
        with self._lock:
            _store(self._cache, key, value, 24)
        return value


def first_point(name: str, size: tuple[int, ...]) -> tuple[int, int]:
    """Return the pixel shown first."""
    y, x = BUNDLED.get(name, (0.5, 0.5))
    return int(y * (size[0] - 1)), int(x * (size[1] - 1))


def _store(cache: OrderedDict[Any, Any], key: Hashable, value: object, limit: int) -> None:
    cache[key] = value
    while len(cache) > limit:
        cache.popitem(last=False)


def _bundled(name: str) -> NDArray[np.float32]:
    image = getattr(skimage.data, name)()
    return _to_display(image / np.iinfo(image.dtype).max)


def _to_display(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert an image to display size, gray or with three channels, and the range [0, 1]."""
    if values.ndim == 3 and values.shape[-1] != 3:
        values = values.mean(-1)
    values = values if values.min() >= 0 and values.max() <= 1 else _rescale(values)
    factor = MAX_SIDE / max(values.shape[:2])
    if factor < 1:
        size = [max(round(n * factor), 1) for n in values.shape[:2]]
        values = skimage.transform.resize(values, (*size, *values.shape[2:]), anti_aliasing=True)
    return np.ascontiguousarray(values, dtype=np.float32)


def _rescale(values: NDArray[Any]) -> NDArray[Any]:
    low, high = float(values.min()), float(values.max())
    return (values - low) / max(high - low, 1e-12)


def _field(image: NDArray[np.float32]) -> Tensor:
    """Convert an array (H, W[, C]) to a tensor (1, C, H, W)."""
    return to_field(torch.from_numpy(image), None if image.ndim == 2 else -1)


def _normalized(image: NDArray[np.float32], channels: int) -> Tensor:
    """Return an image normalized for a network with color or gray input."""
    x = _field(image).expand(1, 3, *image.shape[:2])
    x = (x - torch.tensor(_MEAN).view(1, 3, 1, 1)) / torch.tensor(_STD).view(1, 3, 1, 1)
    return x.mean(1, keepdim=True) if channels == 1 else x


def _window(
    metric: Riemannian | Randers, point: tuple[int, int], reach: float
) -> tuple[Riemannian | Randers, tuple[int, int]]:
    """Return the part of a metric that the geodesics of a pixel depend on, and its first pixel."""
    margin = halo_width(reach, None) + 1  # for one smoothing pass
    rows, columns = (slice(max(p - margin, 0), p + margin + 1) for p in point)
    return metric[:, :, rows, columns], (rows.start, columns.start)


def _transformed(ball: Ball, transform: Callable[[Tensor], Tensor]) -> Ball:
    """Return a ball with all points mapped by ``transform``."""
    y, x = transform(torch.tensor(ball.pixel, dtype=torch.float64)).tolist()
    samples = None if ball.samples is None else transform(ball.samples)
    return Ball((y, x), transform(ball.outline), samples, transform(ball.center))
