"""The page itself, in gradio: what is where, and what follows from a click."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported

import gradio as gr
from torch import nn

from ..cli import images
from ..cli.errors import UserError
from ..nn import adaptive_layers
from . import draw
from .networks import load_network
from .studio import BUNDLED, Look, Studio, first_point, psnr

# What may be sent, in bytes: a picture, and a checkpoint (which is what gradio itself is told).
MAX_PICTURE, MAX_UPLOAD = 20 * 2**20, 512 * 2**20
PICTURES = list(images.SUFFIXES)
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
its longest by its shortest axis, *direction* that of its long axis, from right to down, and *asymmetry* ‖ω‖."""


def build(model: nn.Module | None = None) -> gr.Blocks:
    """Return the page; ``model`` is a network whose layers' balls to show."""
    studio = Studio(model)
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
        _wire(page, studio, knobs, (point, name, network), (shown, close, numbers), filtered)
    return page


def launch(
    port: int = 7860,
    checkpoint: str | None = None,
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
        path = Path(checkpoint)
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        model = load_network(path)
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


def _image(label: str, name: str) -> gr.Image:
    return gr.Image(label=label, elem_id=name, interactive=False, format="jpeg", buttons=[], height=430)


def _knobs(model: nn.Module | None) -> dict[str, Any]:
    """Lay out the knobs, by the names of ``Look``, and what else the page listens to."""
    usual = Look()
    found: dict[str, Any] = {}
    with gr.Group():
        found["bundled"] = gr.Dropdown(list(BUNDLED), value="camera", label="picture")
        found["file"] = gr.File(label="or drop your own", file_types=PICTURES, height=130, elem_id="file")
        found["noise"] = gr.Slider(0, 0.5, usual.noise, step=0.01, label="noise σ to add", elem_id="noise")
    with gr.Group():
        found["metric"] = gr.Radio(["gradient", "edge", "structure"], value=usual.metric, label="metric")
        found["iota"] = gr.Slider(0.005, 0.5, usual.iota, step=0.005, label="ι: radius 1/√ι px", elem_id="iota")
        found["alpha"] = gr.Slider(0, 50, usual.alpha, step=0.5, label="α: how much edges count")
        found["scale"] = gr.Slider(0, 4, usual.scale, step=0.1, label="σ of the gradient, px (0: Sobel)")
        found["eps_omega"] = gr.Slider(0.1, 1, usual.eps_omega, step=0.05, label="ε_ω: below 1, balls lean (gradient)")
    with gr.Group():
        found["ball"] = gr.Radio(["tangent", "geodesic", "both"], value=usual.ball, label="ball", elem_id="ball")
        found["stencil"] = gr.Radio(["polar", "onion", "square_onion"], value=usual.stencil, label="stencil")
        found["samples"] = gr.Slider(3, 15, usual.samples, step=2, label="k: k² samples a ball")
        found["overlay"] = gr.Dropdown(list(draw.OVERLAYS), value=usual.overlay, label="metric field over the image")
    names = [name for name, _ in adaptive_layers(model)] if model is not None else []
    with gr.Accordion("a trained network", open=bool(names)):
        found["checkpoint"] = gr.File(
            label="checkpoint", file_types=[".pt", ".pth", ".ckpt"], height=130, elem_id="checkpoint"
        )
        found["layer"] = gr.Dropdown(["", *names], value=names[0] if names else "", label="layer, or none")
        found["group"] = gr.Slider(0, 15, 0, step=1, label="metric group")
    return found


_LOOK = [
    "noise", "metric", "iota", "alpha", "scale", "eps_omega", "ball", "stencil", "samples", "overlay", "layer", "group",
]  # fmt: skip


def _wire(
    page: gr.Blocks,
    studio: Studio,
    knobs: dict[str, Any],
    states: tuple[Any, ...],
    outputs: tuple[Any, ...],
    filtered: Any,
) -> None:
    """Say what follows from what: balls at once, the filtered image after them."""
    point, name, network = states
    asked = [*states, *(knobs[key] for key in _LOOK)]

    def see(point: tuple[int, int], name: str, network: str, *values: Any) -> tuple[Any, ...]:
        look = _look(name, values)
        size = studio.clean(look).shape
        point = (min(point[0], size[0] - 1), min(point[1], size[1] - 1))
        with _messages():
            balls = studio.balls(look, point, network)
            image, over = studio.picture(look)
            text = _table(studio.numbers(look, point), point) if not (network and look.layer) else _where(look, point)
            return draw.with_balls(over, balls), draw.close_up(image, balls), text

    def click(event: gr.SelectData, *values: Any) -> tuple[Any, ...]:
        x, y = (int(place) // draw.ENLARGED for place in event.index)
        return ((y, x), *see((y, x), *values))

    def smooth(point: tuple[int, int], name: str, network: str, *values: Any) -> Any:
        look = _look(name, values)
        with _messages():
            image, clean = studio.filtered(look), studio.clean(look)
        label = f"filtered over {'tangent' if look.ball == 'both' else look.ball} balls"
        if look.noise:
            label += f": {psnr(clean, studio.noisy(look)):.1f} → {psnr(clean, image):.1f} dB"
        return gr.update(value=draw.to_rgb8(image), label=label)

    def take(path: str | None) -> tuple[Any, ...]:
        if path is None:
            return gr.update(), gr.update()
        with _messages():
            if os.path.getsize(path) > MAX_PICTURE:
                raise UserError(f"{Path(path).name}: larger than {MAX_PICTURE // 2**20} MB")
            taken = studio.upload(Path(path))
        return taken, first_point(taken, studio.uploads[taken].shape)

    def choose(bundled: str) -> tuple[Any, ...]:
        return bundled, first_point(bundled, studio.clean(Look(bundled)).shape), None

    def load(path: str | None) -> tuple[Any, ...]:
        if path is None:
            return "", gr.update(choices=[""], value="")
        with _messages():
            names = studio.load(path)
        return path, gr.update(choices=["", *names], value=names[0])

    quiet: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last"}
    behind: dict[str, Any] = quiet | {"concurrency_limit": 1, "show_progress": "minimal"}
    show: dict[str, Any] = {"fn": see, "inputs": asked, "outputs": list(outputs)}
    again: dict[str, Any] = {"fn": smooth, "inputs": asked, "outputs": [filtered]}
    moved = [knobs[key].release if isinstance(knobs[key], gr.Slider) else knobs[key].input for key in _LOOK]
    outputs[0].select(click, asked[1:], [point, *outputs], **quiet)
    gr.on(moved, **show, **quiet).then(**again, **behind)
    knobs["bundled"].input(choose, [knobs["bundled"]], [name, point, knobs["file"]], **quiet).then(
        **show, **quiet
    ).then(**again, **behind)
    knobs["file"].upload(take, [knobs["file"]], [name, point], **quiet).success(**show, **quiet).then(**again, **behind)
    knobs["checkpoint"].change(load, [knobs["checkpoint"]], [network, knobs["layer"]], **quiet).success(**show, **quiet)
    page.load(**show, **quiet).then(**again, **behind)


class _messages:
    """Show a user's mistake on the page, in a line."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, UserError | ValueError):
            raise gr.Error(" ".join(str(error).split()), duration=8, print_exception=False) from error


def _look(name: str, values: tuple[Any, ...]) -> Look:
    chosen = dict(zip(_LOOK, values, strict=True))
    chosen["samples"], chosen["group"] = int(chosen["samples"]), int(chosen["group"])
    return Look(image=name, **chosen)


def _table(numbers: dict[str, float], point: tuple[int, int]) -> str:
    rows = "\n".join(f"| {name} | {value:.3g} |" for name, value in numbers.items())
    return f"| pixel (y, x) | {point[0]}, {point[1]} |\n|:--|--:|\n{rows}"


def _where(look: Look, point: tuple[int, int]) -> str:
    rows = f"| layer | {look.layer} |\n| metric group | {look.group} |"
    return f"| pixel (y, x) | {point[0]}, {point[1]} |\n|:--|--:|\n{rows}"
