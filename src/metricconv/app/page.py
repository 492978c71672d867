"""The page, in gradio: layout and events."""

import atexit
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from torch import nn

from .. import _checks
from .._errors import UserError
from ..io import images
from ..metrics import IMAGE_METRICS
from ..nn import adaptive_layers
from ..ops import backend_report
from ..stencils import STENCILS
from . import draw
from .explorer import BUNDLED, Explorer, ExplorerSettings, first_point
from .handlers import CONTROLS, Handlers
from .networks import load_checkpoint

__all__ = ["HOST", "MAX_UPLOAD", "build", "launch"]

# Maximum size of uploads in bytes, for checkpoints; images have their own limit.
MAX_UPLOAD = 512 * 2**20
HOST = "127.0.0.1"

_CSS = """
.gradio-container {max-width: 1400px !important; margin: auto}
#shown img {cursor: crosshair}
#properties table {font-variant-numeric: tabular-nums; width: 100%}
footer {display: none !important}
@media (max-width: 800px) {#layout {flex-direction: column-reverse !important}}
"""
_SHOWN: dict[str, Any] = {"interactive": False, "format": "jpeg", "buttons": [], "height": 430}
_INTRO = """# metricconv explorer
Each pixel is averaged over the **unit ball** of a metric computed from the image. **Click a pixel** to see its ball:
<b style="color:#2b8fd0">tangent</b> (metric constant around the pixel) or <b style="color:#c98500">geodesic</b> (metric
varying). The controls change the metric."""
_LEGEND = """Dots are the k² samples of a ball. The arrow shows the offset of the tangent ball's center from the pixel,
which is nonzero for ε_ω < 1. *Reach*: maximum distance of the ball from the pixel. *Radius*: that of the disc of equal
area. *Anisotropy*: longest axis / shortest axis. *Direction*: angle of the long axis, 0° to the right, increasing
downwards. *Asymmetry*: ‖ω‖ with respect to M⁻¹."""


class _Page(gr.Blocks):
    """A page that reports invalid requests, which only other clients send, without a traceback on the terminal."""

    async def preprocess_data(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().preprocess_data(*arguments, **options)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception as error:  # gradio raises many kinds of errors for values of another type
            raise gr.Error("invalid value", print_exception=False) from error


def build(model: nn.Module | None = None) -> gr.Blocks:
    """Return the page; ``model`` is a network whose unit balls can be shown."""
    handlers = Handlers(Explorer(model))
    with _Page(title="metricconv explorer", analytics_enabled=False, fill_width=False) as page:
        gr.Markdown(_INTRO)
        point = gr.State(first_point("camera", (512, 512)))
        name = gr.State("camera")
        network = gr.State("model" if model is not None else "")
        with gr.Row(equal_height=False, elem_id="layout"):  # on a phone the images come before the controls
            with gr.Column(scale=3, min_width=280):
                controls = _controls(model)
            with gr.Column(scale=9, min_width=280):
                with gr.Row():
                    with gr.Column(min_width=280):
                        shown = _image("click a pixel", "shown")
                    with gr.Column(min_width=280):
                        filtered = gr.ImageSlider(label="filtered", elem_id="filtered", **_SHOWN)
                with gr.Row(equal_height=True):
                    with gr.Column(min_width=280):
                        close = _image("close-up", "close")
                    with gr.Column(min_width=280):
                        properties = gr.Markdown(elem_id="properties")
                        gr.Markdown(_LEGEND)
        _register_events(page, handlers, controls, (point, name, network), (shown, close, properties), filtered)
    return page


def launch(
    port: int = 7860,
    checkpoint: str | Path | None = None,
    browser: bool = True,
    *,
    model: nn.Module | None = None,
    block: bool = True,
) -> gr.Blocks:
    """Serve the page on 127.0.0.1 and return it; ``page.close()`` stops the server.

    Args:
        port: port of the server, 0 for any free port.
        checkpoint: checkpoint of a trained network, see ``metricconv.app.networks``.
        browser: whether to open the page in a browser.
        model: a network, instead of ``checkpoint``.
        block: whether to wait until the server is stopped.
    """
    if checkpoint is not None:
        if model is not None:
            raise ValueError(f"`checkpoint` (={str(checkpoint)!r}) cannot be combined with `model`")
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        model = load_checkpoint(path, lambda line: print(f"note: {line}", flush=True))
    missing = next(backend.missing for backend in backend_report().backends if backend.name == "cpu")
    if missing is not None:
        print(f"note: filtering is slow because the cpu backend is not available: {missing}", flush=True)
    if not _checks.is_whole(port) or not 0 <= port < 2**16:
        raise ValueError(f"`port` (={port!r}) must be an integer from 0 to 65535")
    if port and not _free(port):
        raise UserError(f"port {port} is in use; choose another one by --port, or 0 for any free port")
    _use_private_folder()
    page = build(model)
    page.launch(
        server_name=HOST,
        server_port=port or None,
        inbrowser=browser,
        share=False,
        quiet=True,
        show_error=True,
        max_file_size=MAX_UPLOAD,
        footer_links=[],
        enable_monitoring=False,
        ssr_mode=False,
        prevent_thread_lock=True,
        # System fonts: the default ones would be downloaded.
        theme=gr.themes.Default(primary_hue="orange", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        css=_CSS,
        # A page of another site that resolves its own name to this address must not reach the server (DNS rebinding).
        app_kwargs={"middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])]},
    )
    print(f"explorer running at {page.local_url} (Ctrl+C to stop)", flush=True)
    if block:
        page.block_thread()
    return page


def _use_private_folder() -> None:
    """Make gradio store uploads and images in a folder that only this user can read, deleted on exit."""
    folder = tempfile.mkdtemp(prefix="metricconv-")
    os.environ["GRADIO_TEMP_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def _image(label: str, name: str) -> gr.Image:
    return gr.Image(label=label, elem_id=name, **_SHOWN)


def _controls(model: nn.Module | None) -> dict[str, Any]:
    """Lay out the controls and return them by name: fields of ``ExplorerSettings``, and uploads."""
    default = ExplorerSettings()
    components: dict[str, Any] = {}
    with gr.Group():
        components["bundled"] = gr.Dropdown(list(BUNDLED), value="camera", label="image")
        components["file"] = gr.File(
            label="or upload an image", file_types=list(images.SUFFIXES), height=130, elem_id="file"
        )
        components["noise"] = gr.Slider(
            0, 0.5, default.noise, step=0.01, label="standard deviation of added noise", elem_id="noise"
        )
    with gr.Group():
        components["metric"] = gr.Radio(list(IMAGE_METRICS), value=default.metric, label="metric")
        components["iota"] = gr.Slider(0.005, 0.5, default.iota, step=0.005, label="ι: radius 1/√ι px", elem_id="iota")
        components["alpha"] = gr.Slider(0, 50, default.alpha, step=0.5, label="α: edge sensitivity")
        components["scale"] = gr.Slider(
            0, 4, default.scale, step=0.1, label="σ of the derivative filter, px (0: Sobel)"
        )
        components["eps_omega"] = gr.Slider(
            0.1, 1, default.eps_omega, step=0.05, label="ε_ω: below 1, balls are off-center (gradient)"
        )
    with gr.Group():
        components["ball"] = gr.Radio(["tangent", "geodesic", "both"], value=default.ball, label="ball", elem_id="ball")
        components["stencil"] = gr.Radio(list(STENCILS), value=default.stencil, label="stencil")
        components["samples"] = gr.Slider(3, 15, default.samples, step=2, label="k: k² samples per ball")
        components["overlay"] = gr.Dropdown(
            list(draw.OVERLAYS), value=default.overlay, label="overlay of the metric field"
        )
    names = [name for name, _ in adaptive_layers(model)] if model is not None else []
    with gr.Accordion("trained network", open=bool(names)):
        components["checkpoint"] = gr.File(
            label="checkpoint", file_types=[".pt", ".pth", ".ckpt"], height=130, elem_id="checkpoint"
        )
        components["layer"] = gr.Dropdown(
            ["", *names], value=names[0] if names else "", label="layer (empty: none)", elem_id="layer"
        )
        components["group"] = gr.Slider(0, 15, 0, step=1, label="metric group")
    return components


def _register_events(
    page: gr.Blocks,
    handlers: Handlers,
    controls: dict[str, Any],
    states: tuple[Any, ...],
    outputs: tuple[Any, ...],
    filtered: gr.ImageSlider,
) -> None:
    """Register the events: balls are updated first, then the filtered image."""
    point, name, network = states
    inputs = [*states, *(controls[key] for key in CONTROLS)]
    quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    show: dict[str, Any] = {"fn": handlers.show_balls, "inputs": inputs, "outputs": list(outputs)} | quick
    smooth: dict[str, Any] = {"fn": handlers.filter_image, "inputs": inputs, "outputs": [filtered]} | quick
    smooth |= {"concurrency_limit": 1, "show_progress": "minimal"}
    changes = [
        controls[key].release if isinstance(controls[key], gr.Slider) else controls[key].input for key in CONTROLS
    ]

    outputs[0].select(handlers.click, inputs, [point, *outputs], **quick)
    gr.on(changes, **show).then(**smooth)
    bundled, file, checkpoint = controls["bundled"], controls["file"], controls["checkpoint"]
    bundled.input(handlers.select_image, [bundled], [name, point, file], **quick).then(**show).then(**smooth)
    file.upload(handlers.upload_image, [file], [name, point], **quick).success(**show).then(**smooth)
    slow = {"show_progress": "minimal"}  # loading and running a network takes seconds
    checkpoint.change(handlers.load_checkpoint, [checkpoint], [network, controls["layer"]], **quick | slow).success(
        **show | slow
    )
    page.load(**show).then(**smooth)
