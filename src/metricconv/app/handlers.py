"""Event handlers of the page."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from .._errors import UserError
from .._images import psnr
from .._torchvision import TorchvisionError
from . import draw
from .explorer import Explorer, ExplorerSettings, first_point

__all__ = ["CONTROLS", "Handlers", "MAX_IMAGE_BYTES", "Point"]

# Maximum size of an uploaded image in bytes.
MAX_IMAGE_BYTES = 20 * 2**20
# The controls of the page, in the order of the handlers' inputs.
CONTROLS = (
    "noise", "metric", "iota", "alpha", "scale", "eps_omega", "ball", "stencil", "samples", "overlay", "layer", "group",
)  # fmt: skip

Point = tuple[int, int]


@contextlib.contextmanager
def _errors_on_page() -> Iterator[None]:
    """Show errors on the page, in one line and without a traceback on the terminal."""
    try:
        yield
    except gr.Error:
        raise
    except (UserError, TorchvisionError, ValueError) as error:
        text = error.message if isinstance(error, UserError) else str(error)
        raise gr.Error(" ".join(text.split()), duration=8, print_exception=False) from error
    except (
        TypeError,
        AttributeError,
        KeyError,
        OverflowError,
    ) as error:  # only another client than the page sends such
        raise gr.Error("invalid value", duration=8, print_exception=False) from error


class Handlers:
    """Event handlers: each takes the state of the page and returns new values of its outputs.

    The state is ``inputs``: the pixel, the name of the image, the name of the network, then the values of ``CONTROLS``.
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    @_errors_on_page()
    def show_balls(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the image with the balls of the pixel, a close-up, and a table of their properties."""
        (y, x), network, settings = inputs[0], inputs[2], _settings(inputs)
        height, width = self.explorer.clean(settings).shape[:2]
        point = (min(max(y, 0), height - 1), min(max(x, 0), width - 1))
        balls = self.explorer.balls(settings, point, network)
        image, enlarged = self.explorer.display(settings)
        if network and settings.layer:
            properties: dict[str, object] = {"layer": settings.layer, "metric group": settings.group}
        else:
            # Adding 0 turns −0 into 0.
            values = self.explorer.properties(settings, point)
            properties = {name: f"{round(value, 6) + 0.0:.3g}" for name, value in values.items()}
        shown = draw.with_balls(enlarged, image.shape, balls)
        return shown, draw.close_up(image, balls), _table(point, properties)

    @_errors_on_page()
    def click(self, event: gr.EventData, *inputs: Any) -> tuple[Any, ...]:
        """Return the clicked pixel, and the outputs of ``show_balls``."""
        factor = draw.enlargement(self.explorer.clean(_settings(inputs)).shape)
        x, y = (int(position) // factor for position in event.index)
        return (y, x), *self.show_balls((y, x), *inputs[1:])

    @_errors_on_page()
    def filter_image(self, *inputs: Any) -> Any:
        """Return the image before and after filtering, labeled with both PSNRs if noise was added."""
        settings = _settings(inputs)
        image, clean = self.explorer.filtered(settings), self.explorer.clean(settings)
        noisy = self.explorer.noisy(settings)
        label = f"before | averaged over {'tangent' if settings.ball == 'both' else settings.ball} balls"
        if settings.noise:
            label += f": {psnr(clean, noisy):.1f} → {psnr(clean, image):.1f} dB"
        return gr.update(value=tuple(draw.enlarged(draw.to_rgb8(shown)) for shown in (noisy, image)), label=label)

    @_errors_on_page()
    def upload_image(self, path: str) -> tuple[str, Point]:
        """Return the name of an uploaded image, and a pixel of it."""
        if os.path.getsize(path) > MAX_IMAGE_BYTES:
            raise UserError(f"{Path(path).name}: larger than the limit of {MAX_IMAGE_BYTES // 2**20} MB")
        name = self.explorer.upload(Path(path))
        return name, first_point(name, self.explorer.uploads[name].shape)

    @_errors_on_page()
    def select_image(self, name: str) -> tuple[str, Point, None]:
        """Return the name of a bundled image, a pixel of it, and no uploaded file."""
        return name, first_point(name, self.explorer.clean(ExplorerSettings(name)).shape), None

    @_errors_on_page()
    def load_checkpoint(self, path: str | None) -> tuple[Any, ...]:
        """Return the name of a network, and the choices of its adaptive layers."""
        if path is None:
            return "", gr.update(choices=[""], value="")
        names = self.explorer.load(path, gr.Warning)
        return path, gr.update(choices=["", *names], value=names[0])


def _settings(inputs: tuple[Any, ...]) -> ExplorerSettings:
    values = dict(zip(CONTROLS, inputs[3:], strict=True))
    values["samples"], values["group"] = int(values["samples"]), int(values["group"])
    return ExplorerSettings(image=inputs[1], **values)


def _table(point: Point, properties: dict[str, object]) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in properties.items())
    return f"| pixel (y, x) | {point[0]}, {point[1]} |\n|:--|--:|\n{rows}"
