"""Gradients at integer positions in Triton's interpreter, run by test_interpreted.py."""

import functools

import pytest
import torch

import metricconv as mc
from metricconv.ops.triton import plan
from ops.cases import BALLS, MODES, Case
from ops.triton.integer_positions import check_integer_positions, compare

pytestmark = pytest.mark.usefixtures("poison")


# Contractions for few channels, depthwise, and on the tensor cores.
INITIAL_CASES = {
    "few channels": Case(channels=(2, 3)),
    "depthwise": Case(channels=(4, 4), groups=4, metric_groups=2),
    "many channels": Case(channels=(18, 20), kernel=(1, 3)),
    "many channels, modulated": Case(channels=(18, 20), kernel=(3, 1), modulated=True),
    "groups": Case(channels=(36, 40), groups=2, metric_groups=3, kernel=(1, 3), padding=(0, 1), batch=1),
    "dilated kernel": Case(channels=(2, 3), dilation=2, padding=2, mode="border"),
    "stride": Case(channels=(2, 3), stride=2, mode="reflect", modulated=True),
    "larger kernel": Case(channels=(1, 1), kernel=(1, 5), padding=(0, 2), mode="circular"),
    "no drift": Case(channels=(2, 3), kind="riemannian", mode="border"),
    "one-sided drift": Case(channels=(2, 3), kind="asymmetric", mode="border"),
    "one pixel": Case(channels=(2, 3), size=(1, 1)),
    "one dimension": Case(channels=(2, 3), size=(5,), kernel=(3,)),
    "one dimension, deformable": Case(channels=(2, 3), kind="deformable", size=(5,), kernel=(3,)),
    "deformable": Case(channels=(2, 3), kind="deformable", modulated=True),
    "deformable, even kernel": Case(channels=(2, 3), kind="deformable", kernel=(2, 2)),
    "shifted": Case(channels=(4, 4), groups=4, kind="shifted"),
    "scaled": Case(channels=(2, 3), kind="dilated", mode="reflect"),
    "geodesic": Case(channels=(2, 3), kind="geodesic", size=(3, 4), kernel=(1, 3), padding=(0, 1), batch=1),
}


@pytest.mark.parametrize("name", INITIAL_CASES)
def test_gradients_of_a_converted_layer(name: str) -> None:
    check_integer_positions(INITIAL_CASES[name], "start")


@pytest.mark.parametrize("offsets", ["integer", "near", "mixed"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["deformable", "riemannian"])
def test_gradients_at_integer_positions_inside_and_outside_the_image(kind: str, mode: str, offsets: str) -> None:
    kernel, padding = ((3, 5), (1, 2)) if kind in BALLS and offsets == "mixed" else ((1, 3), (0, 1))
    modulated = offsets == "near"
    check_integer_positions(
        Case(kind, mode, 1, channels=(2, 3), modulated=modulated, kernel=kernel, padding=padding), offsets
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 1)])
def test_gradients_in_images_of_one_or_two_pixels(size: tuple[int, int], mode: str) -> None:
    check_integer_positions(
        Case(kind="shifted", mode=mode, channels=(2, 3), size=size, kernel=(1, 2), padding=1), "integer"
    )


KERNEL_CASES = {
    "patch": Case(channels=(18, 20), size=(5, 6), kernel=(1, 3), modulated=True),
    "image": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), stride=2),
    "image, depthwise": Case(kind="deformable", channels=(4, 4), groups=4, size=(3, 4), kernel=(1, 3)),
    "none, half": Case(channels=(18, 20), kernel=(1, 3), batch=1, dtype=torch.float16),
    "none, im2col": Case(channels=(18, 20), kernel=(1, 3), mode="border"),
    "image, im2col": Case(channels=(18, 20), kernel=(1, 3), modulated=True),
    "image, im2col, deformable": Case(kind="deformable", channels=(18, 20), kernel=(1, 3)),
    "image, im2col, half": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), dtype=torch.float16),
    "image, im2col, half, deformable": Case(
        kind="deformable", channels=(18, 20), size=(3, 4), kernel=(1, 3), modulated=True, dtype=torch.float16
    ),
}


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_gradients_in_every_kernel(name: str) -> None:
    case = KERNEL_CASES[name]
    with plan.fixed_choices(window=name.partition(",")[0], im2col_images=int("im2col" in name)):
        check_integer_positions(
            case, "mixed" if case.kind == "deformable" else "integer", 1e-5 if case.dtype == torch.float32 else 1e-2
        )


@pytest.mark.parametrize("mode", ["border", "circular"])
def test_geodesics_along_a_row_of_pixels(mode: str) -> None:
    case = Case(channels=(1, 1), kind="geodesic", mode=mode, size=(5, 4), kernel=(1, 3), padding=(0, 1), batch=1)
    tensors, run = case.make()
    # Symmetric about the middle row: rays along it are straight, and the metric has a kink across it.
    for name, signs in (("M", (1, -1, 1)), ("omega", (-1, 1))):
        mirrored = tensors[name].flip(3) * torch.tensor(signs).view(-1, 1, 1)
        tensors[name] = (tensors[name] + mirrored) / 2
    compare(tensors, run)


@pytest.mark.parametrize(
    ("mode", "reach", "kernel"), [("border", 2, (3, 3)), ("border", 4, (3, 1)), ("circular", 2, (1, 3))]
)
def test_geodesics_with_midpoints_at_pixels(
    mode: str, reach: int, kernel: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mc, "GeodesicBall", functools.partial(mc.GeodesicBall, steps=1, smooth=0))
    padding = (kernel[0] // 2, kernel[1] // 2)
    case = Case("geodesic", mode, 1, channels=(1, 1), size=(4, 3), kernel=kernel, padding=padding)
    tensors, run = case.make()
    # The midpoint of the first step is half of the reach away: at border pixels, on the margin or beyond it.
    border = torch.ones(4, 3).bool()
    border[1:-1, 1:-1] = False
    isotropic = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1) / reach**2
    tensors["M"] = torch.where(border, isotropic, tensors["M"])
    tensors["omega"] = torch.where(border, 0.0, tensors["omega"])
    compare(tensors, run)
