"""Outputs of layers, filters and commands that refactoring must not change, stored as a few values each.

After an intended change of behavior, ``python tests/test_golden.py`` writes the stored values again.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import metricconv as mc

STORE = Path(__file__).parent / "golden" / "outputs.json"
nn, filters = mc.nn, mc.filters


def wave(*shape: int) -> Tensor:
    """Return a smooth signal, computed without a random generator, whose values may depend on torch's version."""
    grids = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    phase = sum((k + 1) * 0.37 * g for k, g in enumerate(grids))
    return (torch.sin(phase) + 0.5 * torch.cos(2.3 * phase + 1)).float()


def layer(make: Callable[[], nn.AdaptiveConv], *size: int) -> Tensor:
    """Return the output, and gradients, of a layer whose parameters are all set by ``wave``."""
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.2 * wave(parameter.numel()).view(parameter.shape))
    x = wave(2, module.in_channels, *size).requires_grad_()
    y = module(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
    return torch.cat([y.detach().flatten(), *(g.flatten() for g in gradients)])


IMAGE = (0.5 + 0.25 * wave(18, 21)).numpy()
CASES: dict[str, Callable[[], Tensor | np.ndarray]] = {
    "metric 1-D": lambda: layer(lambda: nn.MetricConv1d(3, 4, 3, padding=1), 11),
    "metric 2-D": lambda: layer(lambda: nn.MetricConv2d(3, 4, 3, padding=1), 7, 8),
    "metric 3-D": lambda: layer(lambda: nn.MetricConv3d(2, 3, 3, padding=1), 4, 5, 6),
    "many channels": lambda: layer(lambda: nn.MetricConv2d(16, 8, 3, stride=2, padding=1, metric_groups=2), 7, 8),
    "modulated": lambda: layer(lambda: nn.MetricConv2d(4, 4, 3, padding=1, groups=2, modulation=True), 6, 5),
    "circular": lambda: layer(lambda: nn.MetricConv2d(3, 4, 5, padding=2, padding_mode="circular"), 7, 8),
    "geodesic": lambda: layer(lambda: nn.MetricConv2d(3, 4, 3, padding=1, ball="geodesic"), 7, 8),
    "deformable": lambda: layer(lambda: nn.DeformableConv2d(3, 4, 3, padding=1, padding_mode="reflect"), 7, 8),
    "shifted": lambda: layer(lambda: nn.ShiftedConv2d(3, 4, 3, padding=1, padding_mode="border"), 7, 8),
    "dilated": lambda: layer(lambda: nn.DilatedConv2d(3, 4, 3, padding=1), 7, 8),
    "tangent filter": lambda: filters.tangent_filter(IMAGE, samples=5),
    "geodesic filter": lambda: filters.geodesic_filter(IMAGE, samples=5),
    "box filter": lambda: filters.box_filter(IMAGE, 3),
    "dilated filter": lambda: filters.dilated_filter(IMAGE, 3),
    "interpolated filter": lambda: filters.interpolated_filter(IMAGE, 3, 4.0),
}


def filter_file(*options: str, suffix: str = ".npy") -> np.ndarray:
    """Return what ``metricconv filter`` writes for a gray array (.npy) or an 8-bit color image (.png)."""
    app, images = pytest.importorskip("metricconv.cli.app"), pytest.importorskip("metricconv.io.images")
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder, name + suffix) for name in ("in", "out"))
        if suffix == ".npy":
            np.save(source, IMAGE)
        else:
            colors = np.stack([IMAGE, IMAGE[::-1], 1 - IMAGE], -1)
            images.write(source, images.ImageData(np.rint(255 * np.clip(colors, 0, 1)).astype(np.uint8), -1))
        assert app.run(["filter", str(source), str(target), *options]) == 0
        return images.read(target).pixels.astype(np.float64)


def command(name: str, *options: str) -> list[float]:
    """Return the exit code, the pixels of the figure and the printed table of a command, without its times."""
    app, images = pytest.importorskip("metricconv.cli.app"), pytest.importorskip("metricconv.io.images")
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        source, figure = Path(folder, "in.npy"), Path(folder, "figure.png")
        np.save(source, np.clip(IMAGE, 0, 1))
        with contextlib.redirect_stdout(printed):
            code = app.run([name, str(source), "-o", str(figure), *options])
        size = images.read(figure).spatial
    rows = [line.split("│")[2:-1] for line in printed.getvalue().splitlines() if line.startswith("│")]
    cells = [cell for row in rows for cell in (row[:2] if name == "compare" else row)]
    return [code, *size, *(float(cell) for cell in cells)]


CASES |= {
    "command: filter": lambda: filter_file("-k", "5", "--alpha", "10", "--scale", "1.5"),
    "command: filter, shifted balls": lambda: filter_file("-k", "4", "--eps-omega", "0.3", "--padding", "circular"),
    "command: filter, structure": lambda: filter_file("--metric", "structure", "-k", "5", "--stencil", "onion"),
    "command: filter, geodesic": lambda: filter_file("-m", "geodesic", "-k", "5", "--steps", "2", "--center"),
    "command: filter, box": lambda: filter_file("-m", "box", "-k", "3", suffix=".png"),
    "command: filter, dilated": lambda: filter_file("-m", "dilated", "-k", "3", "--dilation", "2"),
    "command: filter, interpolated": lambda: filter_file("-m", "interpolated", "-k", "3", "--size", "4"),
    "command: filter, tiles": lambda: filter_file("-k", "5", "--tile", "16"),
}
# Stored value by value.
TABLES: dict[str, Callable[[], list[float]]] = {
    "command: balls": lambda: command("balls", "--at", "4,5", "--at", "9,17", "--eps-omega", "0.5", "-k", "3"),
    "command: balls, edge": lambda: command("balls", "--at", "4,5", "--metric", "edge", "--iota", "0.02", "--whole"),
    "command: compare": lambda: command("compare", "-k", "5", "--noise", "0.2", "--seed", "3"),
    "command: compare, structure": lambda: command("compare", "-k", "3", "--metric", "structure"),
}


def summary(name: str) -> list[float]:
    """Return eight values that depend on all elements of an output."""
    values = torch.as_tensor(CASES[name]()).detach().double().flatten()
    weights = torch.stack([torch.cos(0.1 + k * 0.7 * torch.arange(len(values))) for k in range(8)]).double()
    return ((weights * values).sum(1) / values.norm()).tolist()


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_stored_ones(name):
    assert summary(name) == pytest.approx(json.loads(STORE.read_text())[name], abs=3e-5)


@pytest.mark.parametrize("name", TABLES)
def test_printed_tables_equal_stored_ones(name):
    # One unit of the last printed digit: three significant digits, or two decimals of a PSNR.
    assert TABLES[name]() == pytest.approx(json.loads(STORE.read_text())[name], rel=2e-3, abs=2e-3)


if __name__ == "__main__":
    found = {name: [round(v, 7) for v in summary(name)] for name in CASES}
    STORE.write_text(json.dumps(found | {name: make() for name, make in TABLES.items()}, indent=1) + "\n")
