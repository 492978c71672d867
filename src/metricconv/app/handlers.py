"""What the page answers to a click, a knob or a file."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from .._errors import UserError
from .._torchvision import TorchvisionError
from ..experiments.photographs import psnr
from . import draw
from .explorer import Look, Studio, first_point

# The largest picture, in bytes.
MAX_PICTURE = 20 * 2**20
# The knobs, in the order in which the page sends them.
KNOBS = (
    "noise", "metric", "iota", "alpha", "scale", "eps_omega", "ball", "stencil", "samples", "overlay", "layer", "group",
)  # fmt: skip

Point = tuple[int, int]


class Answers:
    """The page's functions: each takes what the page knows and returns what it is to show.

    What the page knows is ``asked``: the pixel, the picture's name, the network's name, then the values of ``KNOBS``.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio

    def see(self, *asked: Any) -> tuple[Any, ...]:
        """Return the picture with the pixel's balls, their close-up, and their numbers."""
        (y, x), network, look = asked[0], asked[2], _look(asked)
        with _messages():
            height, width = self.studio.clean(look).shape[:2]
            point = (min(y, height - 1), min(x, width - 1))
            balls = self.studio.balls(look, point, network)
            image, over = self.studio.picture(look)
            if network and look.layer:
                numbers: dict[str, object] = {"layer": look.layer, "metric group": look.group}
            else:
                numbers = {name: f"{value:.3g}" for name, value in self.studio.numbers(look, point).items()}
            shown = draw.with_balls(over, image.shape, balls)
            return shown, draw.close_up(image, balls), _table(point, numbers)

    def click(self, event: gr.SelectData, *asked: Any) -> tuple[Any, ...]:
        """Return the pixel that was clicked, and what there is to see of it."""
        with _messages():
            times = draw.enlargement(self.studio.clean(_look(asked)).shape)
        x, y = (int(place) // times for place in event.index)
        return (y, x), *self.see((y, x), *asked[1:])

    def smooth(self, *asked: Any) -> Any:
        """Return the filtered picture, and how near it is to the clean one if noise was added."""
        look = _look(asked)
        with _messages():
            image, clean = self.studio.filtered(look), self.studio.clean(look)
        label = f"filtered over {'tangent' if look.ball == 'both' else look.ball} balls"
        if look.noise:
            label += f": {psnr(clean, self.studio.noisy(look)):.1f} → {psnr(clean, image):.1f} dB"
        return gr.update(value=draw.enlarged(draw.to_rgb8(image)), label=label)

    def take(self, path: str) -> tuple[str, Point]:
        """Return the name of an uploaded picture, and a pixel of it."""
        with _messages():
            if os.path.getsize(path) > MAX_PICTURE:
                raise UserError(f"{Path(path).name}: larger than {MAX_PICTURE // 2**20} MB")
            name = self.studio.upload(Path(path))
        return name, first_point(name, self.studio.uploads[name].shape)

    def choose(self, name: str) -> tuple[str, Point, None]:
        """Return the name of a bundled picture, a pixel of it, and no uploaded file."""
        return name, first_point(name, self.studio.clean(Look(name)).shape), None

    def load(self, path: str | None) -> tuple[Any, ...]:
        """Return the name of a network, and its adaptive layers to choose from."""
        if path is None:
            return "", gr.update(choices=[""], value="")
        with _messages():
            names = self.studio.load(path, gr.Warning)
        return path, gr.update(choices=["", *names], value=names[0])


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Show a user's mistake on the page, in a line."""
    try:
        yield
    except (UserError, TorchvisionError, ValueError) as error:
        raise gr.Error(" ".join(str(error).split()), duration=8, print_exception=False) from error


def _look(asked: tuple[Any, ...]) -> Look:
    chosen = dict(zip(KNOBS, asked[3:], strict=True))
    chosen["samples"], chosen["group"] = int(chosen["samples"]), int(chosen["group"])
    return Look(image=asked[1], **chosen)


def _table(point: Point, numbers: dict[str, object]) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in numbers.items())
    return f"| pixel (y, x) | {point[0]}, {point[1]} |\n|:--|--:|\n{rows}"
