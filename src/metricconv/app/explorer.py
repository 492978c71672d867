"""What the explorer computes: images, metrics, balls and filtered images, kept for the next click."""

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
from ..cli.options import MetricKnobs, MetricName
from ..io import images
from ..metrics import Randers, Riemannian
from ..nn import adaptive_layers, record_supports
from ..supports import Support
from ..supports.geodesic import sight
from ..viz.balls import Ball, ball_kind, in_field, unit_balls
from ..viz.fields import ball_numbers
from . import draw
from .networks import load_network

# Pictures that come with scikit-image, and where a first click is worth it, (y, x) in parts of the size.
BUNDLED = {
    "camera": (0.29, 0.46),
    "astronaut": (0.33, 0.52),
    "coins": (0.42, 0.37),
    "coffee": (0.45, 0.40),
    "retina": (0.37, 0.30),
    "brick": (0.50, 0.50),
}
# Uploads are read up to this many pixels, and shown at most so many pixels a side.
MAX_PIXELS, MAX_SIDE = 40_000_000, 512
# What an ImageNet network expects.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Look:
    """Every knob of the page."""

    image: str = "camera"
    noise: float = 0.0
    metric: str = "gradient"
    iota: float = 0.03
    alpha: float = 10.0
    scale: float = 1.5
    eps_omega: float = 1.0
    ball: str = "both"
    stencil: str = "polar"
    samples: int = 7
    overlay: str = "nothing"
    layer: str = ""
    group: int = 0

    @property
    def input(self) -> tuple[Hashable, ...]:
        """What the (noisy) image depends on."""
        return self.image, self.noise

    @property
    def geometry(self) -> tuple[Hashable, ...]:
        """What its metric depends on."""
        return *self.input, self.metric, self.iota, self.alpha, self.scale, self.eps_omega

    @property
    def kinds(self) -> list[str]:
        """The balls to show."""
        return ["tangent", "geodesic"] if self.ball == "both" else [self.ball]

    def metric_of(self) -> Callable[..., Any]:
        """Return the function from an image to its metric."""
        eps_omega = self.eps_omega if self.metric == "gradient" else None
        scale = max(self.scale, 0.3) if self.metric == "structure" else self.scale
        knobs = MetricKnobs(MetricName(self.metric), self.iota, self.alpha, scale, eps_omega)
        return knobs.function("gradient", "reflect")


class Studio:
    """Images by name, and the last few things computed from them."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.uploads: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self.models: OrderedDict[str, nn.Module] = OrderedDict()
        if model is not None:
            self.models["model"] = model
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()

    def upload(self, path: Path) -> str:
        """Read a user's file and return the name under which it is kept."""
        picture = images.read(path, None, MAX_PIXELS)
        if len(picture.spatial) != 2 or min(picture.spatial) < 8:
            raise UserError(f"{path.name}: must be an image of 8 × 8 pixels or more, it is {picture.spatial}")
        values = picture.floats()
        if picture.channel_axis is not None:
            values = np.moveaxis(values, picture.channel_axis, -1)
        name = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        _keep(self.uploads, name, _shown(values), 8)
        return name

    def load(self, path: str, report: Callable[[str], object] | None = None) -> list[str]:
        """Read a checkpoint, keep its network by its path, and return the names of its adaptive layers."""
        network = load_network(Path(path), report)
        _keep(self.models, path, network, 3)
        return [name for name, _ in adaptive_layers(network)]

    def clean(self, look: Look) -> NDArray[np.float32]:
        """Return the image without noise, (H, W) or (H, W, 3) in [0, 1]."""
        if look.image in BUNDLED:
            return self._once(("image", look.image), lambda: _bundled(look.image))
        if look.image not in self.uploads:
            raise UserError("this picture is no longer here; upload it again")
        return self.uploads[look.image]

    def noisy(self, look: Look) -> NDArray[np.float32]:
        """Return the image with the noise that was asked for."""
        clean = self.clean(look)
        if look.noise == 0:
            return clean
        key = ("noisy", *look.input)
        generator = np.random.default_rng(0)
        return self._once(key, lambda: (clean + generator.normal(0, look.noise, clean.shape)).astype(np.float32))

    def metric(self, look: Look) -> Riemannian | Randers:
        """Return the metric of the (noisy) image."""

        @torch.no_grad()
        def read() -> Riemannian | Randers:
            return look.metric_of()(_field(self.noisy(look)))

        return self._once(("metric", *look.geometry), read)

    def picture(self, look: Look) -> tuple[NDArray[np.uint8], PIL.Image.Image]:
        """Return the (noisy) image in 8 bits, as it is, and enlarged with the metric field over it."""
        image = self._once(("picture", *look.input), lambda: draw.to_rgb8(self.noisy(look)))

        def over() -> PIL.Image.Image:
            return draw.enlarged(draw.overlaid(image, self.metric(look), look.overlay))

        return image, self._once(("over", *look.geometry, look.overlay), over)

    def support(self, look: Look, model: str) -> Support:
        """Return where a layer of a network looks when it is shown the image."""

        @torch.no_grad()
        def record() -> dict[str, Support]:
            if model not in self.models:
                raise UserError("this network is no longer here; upload its checkpoint again")
            network = self.models[model].eval()
            channels = next(p.shape[1] for p in network.parameters() if p.dim() == 4)
            with record_supports(network) as seen:
                network(_normalised(self.noisy(look), channels))
            return seen

        seen = self._once(("supports", model, *look.input), record)
        if look.layer not in seen:
            raise UserError(f"the network has no adaptive layer {look.layer!r}")
        return seen[look.layer]

    def balls(self, look: Look, point: tuple[int, int], model: str = "") -> list[tuple[str, Ball]]:
        """Return the balls of a pixel, by kind, in pixels of the image."""
        if model and look.layer:
            support = self.support(look, model)
            place, zoom = in_field(support, [point], self.clean(look).shape[:2])
            (ball,) = unit_balls(support, place, group=look.group)
            return [(ball_kind(support, fitted="fitted"), _placed(ball, lambda p: (p + 0.5) * zoom - 0.5))]
        stencil = stencils.chosen(look.stencil, look.samples)(2)
        metric = self.metric(look)
        largest = self._once(("reach", *look.geometry), lambda: metric.bounding_radius.max().item())
        # The outline lies at radius 1; corners of a square onion lie beyond it.
        near, corner = _window(metric, point, largest * max(1.0, stencil.radii.max().item()))
        found = []
        for kind in look.kinds:
            (ball,) = unit_balls(near, [(point[0] - corner[0], point[1] - corner[1])], kind, stencil)
            found.append((kind, _placed(ball, lambda p: p + torch.tensor(corner))))
        return found

    def numbers(self, look: Look, point: tuple[int, int]) -> dict[str, float]:
        """Return what describes the tangent ball of a pixel."""
        here = self.metric(look)[:, :, point[0], point[1]]
        return {name: value.item() for name, value in ball_numbers(here).items()}

    def filtered(self, look: Look) -> NDArray[np.float32]:
        """Return the image filtered over the balls that are shown (the tangent ones of both, which is faster)."""
        image = self.noisy(look)
        apply = filters.geodesic_filter if look.ball == "geodesic" else filters.tangent_filter
        axis = None if image.ndim == 2 else -1
        return apply(image, look.samples, self.metric(look), look.stencil, channel_axis=axis)

    def _once(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Compute what is not kept, and keep the last few."""
        with self._lock:  # clicks are answered by several threads
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = compute()
        with self._lock:
            _keep(self._kept, key, value, 24)
        return value


def first_point(name: str, size: tuple[int, ...]) -> tuple[int, int]:
    """Return a pixel worth a first look."""
    y, x = BUNDLED.get(name, (0.5, 0.5))
    return int(y * (size[0] - 1)), int(x * (size[1] - 1))


def _keep(store: OrderedDict[Any, Any], key: Hashable, value: object, most: int) -> None:
    store[key] = value
    while len(store) > most:
        store.popitem(last=False)


def _bundled(name: str) -> NDArray[np.float32]:
    image = getattr(skimage.data, name)()
    return _shown(image / np.iinfo(image.dtype).max)


def _shown(values: NDArray[Any]) -> NDArray[np.float32]:
    """Shrink an image to the size at which it is shown, grey or with three channels."""
    if values.ndim == 3 and values.shape[-1] != 3:
        values = values.mean(-1)
    values = values if values.min() >= 0 and values.max() <= 1 else _stretched(values)
    factor = MAX_SIDE / max(values.shape[:2])
    if factor < 1:
        size = [max(round(n * factor), 1) for n in values.shape[:2]]
        values = skimage.transform.resize(values, (*size, *values.shape[2:]), anti_aliasing=True)
    return np.ascontiguousarray(values, dtype=np.float32)


def _stretched(values: NDArray[Any]) -> NDArray[Any]:
    low, high = float(values.min()), float(values.max())
    return (values - low) / max(high - low, 1e-12)


def _field(image: NDArray[np.float32]) -> Tensor:
    """Bring (H, W[, C]) into the shape (1, C, H, W)."""
    return to_field(torch.from_numpy(image), None if image.ndim == 2 else -1)


def _normalised(image: NDArray[np.float32], channels: int) -> Tensor:
    """Return an image as a network of colour images expects it, or one of grey images."""
    x = _field(image).expand(1, 3, *image.shape[:2])
    x = (x - torch.tensor(_MEAN).view(1, 3, 1, 1)) / torch.tensor(_STD).view(1, 3, 1, 1)
    return x.mean(1, keepdim=True) if channels == 1 else x


def _window(
    metric: Riemannian | Randers, point: tuple[int, int], reach: float
) -> tuple[Riemannian | Randers, tuple[int, int]]:
    """Return the part of a metric that the geodesics of a pixel can meet, and its first pixel."""
    margin = sight(reach, None) + 1  # as it is smoothed once
    rows, columns = (slice(max(p - margin, 0), p + margin + 1) for p in point)
    return metric[:, :, rows, columns], (rows.start, columns.start)


def _placed(ball: Ball, place: Callable[[Tensor], Tensor]) -> Ball:
    """Return a ball with each of its points where ``place`` says."""
    y, x = place(torch.tensor(ball.pixel, dtype=torch.float64)).tolist()
    samples = None if ball.samples is None else place(ball.samples)
    return Ball((y, x), place(ball.outline), samples, place(ball.centre))
