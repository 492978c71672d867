"""The page itself, in gradio: what is where, and what follows from a click."""

import socket
from pathlib import Path
from typing import Any

import gradio as gr
from torch import nn

from .._errors import UserError
from ..filters import METRICS
from ..io import images
from ..nn import adaptive_layers
from ..ops import backend_report
from ..stencils import STENCILS
from . import draw
from .explorer import BUNDLED, Look, Studio, first_point
from .handlers import KNOBS, Answers
from .networks import load_network

# The largest file, in bytes: a checkpoint; pictures have a limit of their own.
MAX_UPLOAD = 512 * 2**20
HOST = "127.0.0.1"

_CSS = """
.gradio-container {max-width: 1400px !important; margin: auto}
#shown img {cursor: crosshair}
#numbers table {font-variant-numeric: tabular-nums; width: 100%}
footer {display: none !important}
"""
_INTRO = """# metricconv explorer
Each pixel looks at the **unit ball** of a metric that is read off the image. **Click a pixel** to see its ball:
<b style="color:#2b8fd0">tangent</b>, of the metric right there, or <b style="color:#c98500">geodesic</b>, of the metric
as it changes around it. Then move the knobs."""


_LEGEND = """Dots are the k² samples of a ball. An arrow goes from the pixel to the centre of its tangent ball, where a
drift (ε_ω < 1) carries it. *Reach* is how far the ball goes, *radius* that of the disc of the same area, *anisotropy*
its longest by its shortest axis, *direction* the angle of its long axis, 0° to the right and growing downwards, and
*asymmetry* the length of its drift, ‖ω‖ by M⁻¹."""


def build(model: nn.Module | None = None) -> gr.Blocks:
    """Return the page; ``model`` is a network whose layers' balls to show."""
    answers = Answers(Studio(model))
    with gr.Blocks(title="metricconv explorer", analytics_enabled=False, fill_width=False) as page:
        gr.Markdown(_INTRO)
        point = gr.State(first_point("camera", (512, 512)))
        name = gr.State("camera")
        network = gr.State("model" if model is not None else "")
        with gr.Row(equal_height=False):
            with gr.Column(scale=3, min_width=300):
                knobs = _knobs(model)
            with gr.Column(scale=9, min_width=600):
                with gr.Row():
                    shown = _image("click a pixel", "shown")
                    filtered = _image("filtered", "filtered")
                with gr.Row(equal_height=True):
                    close = _image("its ball", "close")
                    with gr.Column():
                        numbers = gr.Markdown(elem_id="numbers")
                        gr.Markdown(_LEGEND)
        _wire(page, answers, knobs, (point, name, network), (shown, close, numbers), filtered)
    return page


def launch(
    port: int = 7860,
    checkpoint: str | Path | None = None,
    browser: bool = True,
    *,
    model: nn.Module | None = None,
    block: bool = True,
) -> gr.Blocks:
    """Serve the page on this machine alone, and return it; ``page.close()`` stops it.

    Args:
        port: 0 takes any that is free.
        checkpoint: the file of a trained network, see ``metricconv.app.networks``.
        browser: open the page.
        model: a network of your own, instead of a checkpoint.
        block: wait until the server is stopped.
    """
    if checkpoint is not None:
        if model is not None:
            raise ValueError(f"`checkpoint` (={str(checkpoint)!r}) and `model` must not both be given")
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        model = load_network(path, lambda line: print(f"note: {line}", flush=True))
    missing = next(engine.missing for engine in backend_report().engines if engine.name == "cpu")
    if missing is not None:
        print(f"note: pictures are filtered slowly, as {missing}", flush=True)
    if port and not _free(port):
        raise UserError(f"port {port} is taken; choose another by --port, or 0 for any that is free")
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
        # Fonts of the system: the usual ones are fetched from elsewhere.
        theme=gr.themes.Default(primary_hue="orange", font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        css=_CSS,
    )
    print(f"the explorer is at {page.local_url} (Ctrl+C stops it)", flush=True)
    if block:
        page.block_thread()
    return page


def _free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) != 0


def _image(label: str, name: str) -> gr.Image:
    return gr.Image(label=label, elem_id=name, interactive=False, format="jpeg", buttons=[], height=430)


def _knobs(model: nn.Module | None) -> dict[str, Any]:
    """Lay out the knobs, by the names of ``Look``, and what else the page listens to."""
    usual = Look()
    found: dict[str, Any] = {}
    with gr.Group():
        found["bundled"] = gr.Dropdown(list(BUNDLED), value="camera", label="picture")
        found["file"] = gr.File(label="or drop your own", file_types=list(images.SUFFIXES), height=130, elem_id="file")
        found["noise"] = gr.Slider(0, 0.5, usual.noise, step=0.01, label="noise σ to add", elem_id="noise")
    with gr.Group():
        found["metric"] = gr.Radio(list(METRICS), value=usual.metric, label="metric")
        found["iota"] = gr.Slider(0.005, 0.5, usual.iota, step=0.005, label="ι: radius 1/√ι px", elem_id="iota")
        found["alpha"] = gr.Slider(0, 50, usual.alpha, step=0.5, label="α: how much edges count")
        found["scale"] = gr.Slider(0, 4, usual.scale, step=0.1, label="σ of the gradient, px (0: Sobel)")
        found["eps_omega"] = gr.Slider(0.1, 1, usual.eps_omega, step=0.05, label="ε_ω: below 1, balls lean (gradient)")
    with gr.Group():
        found["ball"] = gr.Radio(["tangent", "geodesic", "both"], value=usual.ball, label="ball", elem_id="ball")
        found["stencil"] = gr.Radio(list(STENCILS), value=usual.stencil, label="stencil")
        found["samples"] = gr.Slider(3, 15, usual.samples, step=2, label="k: k² samples a ball")
        found["overlay"] = gr.Dropdown(list(draw.OVERLAYS), value=usual.overlay, label="metric field over the image")
    names = [name for name, _ in adaptive_layers(model)] if model is not None else []
    with gr.Accordion("a trained network", open=bool(names)):
        found["checkpoint"] = gr.File(
            label="checkpoint", file_types=[".pt", ".pth", ".ckpt"], height=130, elem_id="checkpoint"
        )
        found["layer"] = gr.Dropdown(
            ["", *names], value=names[0] if names else "", label="layer, or none", elem_id="layer"
        )
        found["group"] = gr.Slider(0, 15, 0, step=1, label="metric group")
    return found


def _wire(
    page: gr.Blocks,
    answers: Answers,
    knobs: dict[str, Any],
    states: tuple[Any, ...],
    outputs: tuple[Any, ...],
    filtered: gr.Image,
) -> None:
    """Say what follows from what: balls at once, the filtered picture after them."""
    point, name, network = states
    asked = [*states, *(knobs[key] for key in KNOBS)]
    quick: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    see: dict[str, Any] = {"fn": answers.see, "inputs": asked, "outputs": list(outputs)} | quick
    smooth: dict[str, Any] = {"fn": answers.smooth, "inputs": asked, "outputs": [filtered]} | quick
    smooth |= {"concurrency_limit": 1, "show_progress": "minimal"}
    moved = [knobs[key].release if isinstance(knobs[key], gr.Slider) else knobs[key].input for key in KNOBS]

    outputs[0].select(answers.click, asked, [point, *outputs], **quick)
    gr.on(moved, **see).then(**smooth)
    bundled, file, checkpoint = knobs["bundled"], knobs["file"], knobs["checkpoint"]
    bundled.input(answers.choose, [bundled], [name, point, file], **quick).then(**see).then(**smooth)
    file.upload(answers.take, [file], [name, point], **quick).success(**see).then(**smooth)
    slow = {"show_progress": "minimal"}  # a network takes seconds to read, and to look at the picture
    checkpoint.change(answers.load, [checkpoint], [network, knobs["layer"]], **quick | slow).success(**see | slow)
    page.load(**see).then(**smooth)
