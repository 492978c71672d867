"""Gradients at lattice points in Triton's interpreter. Run by test_interpreted.py with TRITON_INTERPRET=1."""

import functools

import pytest
import torch

import metricconv as mc
from metricconv.ops.triton import call, tiles
from ops.cases import BALLS, MODES, Case
from ops.triton.on_lattice import check_lattice, compare

pytestmark = pytest.mark.usefixtures("poison")


@pytest.fixture(autouse=True)
def _plan_anew() -> None:
    """Forget known launches: some tests change how they are planned."""
    call._memory.clear()


# Contractions of few channels, of each channel alone and of many on the tensor cores.
STARTS = {
    "few channels": Case(channels=(2, 3)),
    "each channel": Case(channels=(4, 4), groups=4, metric_groups=2),
    "many channels": Case(channels=(18, 20), kernel=(1, 3)),
    "many channels, modulated": Case(channels=(18, 20), kernel=(3, 1), modulated=True),
    "groups": Case(channels=(36, 40), groups=2, metric_groups=3, kernel=(1, 3), padding=(0, 1), batch=1),
    "dilated kernel": Case(channels=(2, 3), dilation=2, padding=2, mode="border"),
    "stride": Case(channels=(2, 3), stride=2, mode="reflect", modulated=True),
    "larger kernel": Case(channels=(1, 1), kernel=(1, 5), padding=(0, 2), mode="circular"),
    "no drift": Case(channels=(2, 3), kind="riemannian", mode="border"),
    "one pixel": Case(channels=(2, 3), size=(1, 1)),
    "one dimension": Case(channels=(2, 3), size=(5,), kernel=(3,)),
    "one dimension, deformable": Case(channels=(2, 3), kind="deformable", size=(5,), kernel=(3,)),
    "deformable": Case(channels=(2, 3), kind="deformable", modulated=True),
    "deformable, even kernel": Case(channels=(2, 3), kind="deformable", kernel=(2, 2)),
    "shifted": Case(channels=(4, 4), groups=4, kind="shifted"),
    "scaled": Case(channels=(2, 3), kind="dilated", mode="reflect"),
    "geodesic": Case(channels=(2, 3), kind="geodesic", size=(3, 4), kernel=(1, 3), padding=(0, 1), batch=1),
}


@pytest.mark.parametrize("name", STARTS)
def test_gradients_where_a_converted_layer_starts(name: str) -> None:
    check_lattice(STARTS[name], "start")


@pytest.mark.parametrize("offsets", ["whole", "near", "mixed"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["deformable", "riemannian"])
def test_gradients_at_whole_pixels_inside_and_past_every_border(kind: str, mode: str, offsets: str) -> None:
    kernel, padding = ((3, 5), (1, 2)) if kind in BALLS and offsets == "mixed" else ((1, 3), (0, 1))
    modulated = offsets == "near"
    check_lattice(Case(kind, mode, 1, channels=(2, 3), modulated=modulated, kernel=kernel, padding=padding), offsets)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 1)])
def test_gradients_in_images_of_few_pixels(size: tuple[int, int], mode: str) -> None:
    check_lattice(Case(kind="shifted", mode=mode, channels=(2, 3), size=size, kernel=(1, 2), padding=1), "whole")


PATHS = {
    "patch": Case(channels=(18, 20), size=(5, 6), kernel=(1, 3), modulated=True),
    "image": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), stride=2),
    "image, each channel": Case(kind="deformable", channels=(4, 4), groups=4, size=(3, 4), kernel=(1, 3)),
    "no, half": Case(channels=(18, 20), kernel=(1, 3), batch=1, dtype=torch.float16),
    "no, kept": Case(channels=(18, 20), kernel=(1, 3), mode="border"),
    "image, kept": Case(channels=(18, 20), kernel=(1, 3), modulated=True),
    "image, kept, deformable": Case(kind="deformable", channels=(18, 20), kernel=(1, 3)),
    "image, kept, half": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), dtype=torch.float16),
    "image, kept, half, deformable": Case(
        kind="deformable", channels=(18, 20), size=(3, 4), kernel=(1, 3), modulated=True, dtype=torch.float16
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_gradients_on_every_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "window", lambda *args: name.partition(",")[0])
    monkeypatch.setattr(tiles, "images_by_columns", lambda *args: int("kept" in name))
    case = PATHS[name]
    check_lattice(
        case, "mixed" if case.kind == "deformable" else "whole", 1e-5 if case.dtype == torch.float32 else 1e-2
    )


@pytest.mark.parametrize("mode", ["border", "circular"])
def test_geodesics_along_a_row_of_nodes(mode: str) -> None:
    case = Case(channels=(1, 1), kind="geodesic", mode=mode, size=(5, 4), kernel=(1, 3), padding=(0, 1), batch=1)
    tensors, run = case.make()
    # Mirrored in the middle row, along which rays are straight: there the metric has a kink across them.
    for name, signs in (("M", (1, -1, 1)), ("omega", (-1, 1))):
        mirrored = tensors[name].flip(3) * torch.tensor(signs).view(-1, 1, 1)
        tensors[name] = (tensors[name] + mirrored) / 2
    compare(tensors, run)


@pytest.mark.parametrize(
    ("mode", "reach", "kernel"), [("border", 2, (3, 3)), ("border", 4, (3, 1)), ("circular", 2, (1, 3))]
)
def test_geodesics_whose_midpoints_are_nodes(
    mode: str, reach: int, kernel: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mc, "GeodesicBall", functools.partial(mc.GeodesicBall, steps=1, smooth=0))
    padding = (kernel[0] // 2, kernel[1] // 2)
    case = Case("geodesic", mode, 1, channels=(1, 1), size=(4, 3), kernel=kernel, padding=padding)
    tensors, run = case.make()
    # The first step has its midpoint half of the reach away: for pixels at the border, on the margin or beyond it.
    border = torch.ones(4, 3).bool()
    border[1:-1, 1:-1] = False
    isotropic = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1) / reach**2
    tensors["M"] = torch.where(border, isotropic, tensors["M"])
    tensors["omega"] = torch.where(border, 0.0, tensors["omega"])
    compare(tensors, run)
