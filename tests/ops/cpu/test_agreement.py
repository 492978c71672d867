"""The CPU kernels agree with the float64 reference: supports, padding modes, channel layouts, shapes, all gradients."""

import dataclasses

import pytest
import torch

from ops.cases import KINDS, MODES, Case, check, check_clamped_norm, outcome, random_case, relative

pytest.importorskip("numba")
TOLERANCE = 1e-5


@pytest.mark.parametrize("channels", [(6, 4), (16, 4)], ids=["few", "many"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_supports_and_padding_modes_agree_with_reference(kind: str, mode: str, channels: tuple[int, int]) -> None:
    modulated = mode in ("border", "circular")
    check(Case(kind, mode, channels=channels, stride=(2, 1), modulated=modulated), TOLERANCE, backend="cpu")


@pytest.mark.parametrize("channels", [(2, 3), (8, 3)], ids=["few", "many"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "geodesic"])  # 2-D only
@pytest.mark.parametrize(("size", "kernel"), [((7,), (3,)), ((4, 3, 5), (3, 1, 3))], ids=["1d", "3d"])
def test_1d_and_3d_agree_with_reference(
    size: tuple[int, ...], kernel: tuple[int, ...], kind: str, mode: str, channels: tuple[int, int]
) -> None:
    padding = tuple(k // 2 for k in kernel)
    case = Case(kind, mode, channels=channels, size=size, kernel=kernel, padding=padding, modulated=mode != "zeros")
    check(case, TOLERANCE, backend="cpu")


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_agree_with_reference(seed: int) -> None:
    check(random_case(seed, 24), 10 * TOLERANCE, backend="cpu")


CASES = {
    "one channel": Case(channels=(1, 1), size=(9, 8), kernel=(5, 5), padding=2, modulated=True),
    "few to some": Case(channels=(3, 5), kernel=(1, 3), padding=(0, 1)),
    "few in groups": Case(channels=(6, 4), groups=2, metric_groups=3, modulated=True),
    "few, depthwise": Case(channels=(3, 3), groups=3, metric_groups=3),
    "few, two outputs per channel": Case(channels=(4, 8), groups=4),
    "many": Case(channels=(18, 20), modulated=True),
    "many in groups": Case(channels=(48, 40), groups=2, metric_groups=3, modulated=True),
    "many, depthwise": Case(channels=(16, 16), groups=16, metric_groups=2, modulated=True),
    "many, two outputs per channel": Case(channels=(16, 32), groups=16),
    "more samples than a tile has": Case(channels=(1400, 2), batch=1, size=(3, 3)),
    "few, several ranges": Case(channels=(2, 1), batch=1, size=(37, 41), modulated=True),
    "many, several ranges": Case(channels=(16, 3), batch=1, size=(37, 41), modulated=True),
    # Two pixel ranges: the last corner that the second one writes to lies inside the image.
    "volume, few, several ranges": Case("grid", channels=(2, 1), batch=1, size=(9, 9, 9), kernel=(2, 2, 2), padding=0),
    "volume, many, several ranges": Case("grid", channels=(8, 1), batch=1, size=(9, 9, 9), kernel=(2, 2, 2), padding=0),
    "more images than tasks": Case(channels=(2, 2), batch=19, size=(3, 4)),
    "geodesics, several ranges": Case(kind="geodesic", channels=(1, 1), batch=1, size=(37, 41)),
    "geodesics in groups": Case(kind="geodesic", channels=(16, 16), groups=2, metric_groups=2, modulated=True),
    "geodesics, strided": Case(kind="geodesic", size=(9, 8), stride=(1, 2), kernel=(5, 3), padding=(2, 1)),
    "long axis": Case(kind="deformable", channels=(1, 1), size=(1, 9000), kernel=(1, 2), batch=1),
    "long axis, reflected": Case(mode="reflect", channels=(18, 20), size=(1, 9000), kernel=(1, 3), batch=1),
    "no bias": Case(biased=False),
    "strides and dilation": Case(size=(15, 14), stride=(2, 1), dilation=(1, 2), padding=2),
    "constant": Case(constant=True),
    "constant geodesics": Case(kind="geodesic", constant=True),
    "constant, deformable": Case(kind="deformable", constant=True, metric_groups=1),
}


@pytest.mark.parametrize("name", CASES)
def test_channels_groups_and_sizes_agree_with_reference(name: str) -> None:
    check(CASES[name], TOLERANCE, backend="cpu")


@pytest.mark.parametrize("channels", [(2, 2), (16, 2)], ids=["few", "many"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["randers", "geodesic", "deformable"])
def test_one_pixel_images_agree_with_reference(kind: str, mode: str, channels: tuple[int, int]) -> None:
    check(Case(kind, mode, channels=channels, size=(1, 1)), TOLERANCE, backend="cpu")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [(2, 2), (16, 2)], ids=["few", "many"])
def test_balls_much_larger_than_the_image(channels: tuple[int, int], mode: str) -> None:
    # float32 resolves a position of 1000 to 1e-4 of a pixel.
    check(Case("randers", mode, channels=channels, radius=1000.0, kernel=(3, 3)), 2e-3, backend="cpu")


def test_clamped_norm_has_zero_gradient() -> None:
    check_clamped_norm(TOLERANCE, "cpu")


@pytest.mark.parametrize("layout", ["channels_last", "strided"])
@pytest.mark.parametrize(
    "case",
    [Case(), Case(channels=(16, 20)), Case(channels=(8, 4), size=(4, 3, 5), kernel=(1, 3, 3), padding=(0, 1, 1))],
)
def test_output_keeps_memory_layout_of_input(case: Case, layout: str) -> None:
    case = dataclasses.replace(case, layout=layout)
    check(case, TOLERANCE, backend="cpu")
    tensors, run = case.make()
    last = [t.movedim(1, -1).is_contiguous() for t in (tensors["input"], run(tensors, backend="cpu"))]
    assert last[0] == last[1] == (layout == "channels_last")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [(2, 2), (16, 2)], ids=["few", "many"])
def test_empty_batch(kind: str, channels: tuple[int, int]) -> None:
    tensors, run = Case(kind, batch=0, channels=channels).make()
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y = run(leaves, backend="cpu")
    assert y.shape == (0, 2, 5, 4)
    for grad in torch.autograd.grad(y.sum(), list(leaves.values())):
        assert not grad.any()


@pytest.mark.parametrize("case", [Case(modulated=True), Case(channels=(16, 4), modulated=True), Case("geodesic")])
def test_single_gradient_equals_the_one_computed_with_all(case: Case) -> None:
    tensors, run = case.make()
    together = outcome(run, tensors, backend="cpu")
    for name in tensors:
        fixed = {other: t for other, t in tensors.items() if other != name}
        alone = outcome(lambda t, fixed=fixed, **o: run(fixed | t, **o), {name: tensors[name]}, backend="cpu")
        assert relative(alone[name], together[name]) < 1e-6, name


@pytest.mark.parametrize("kind", ["randers", "geodesic", "shifted"])
@pytest.mark.parametrize("channels", [(2, 2), (16, 2)], ids=["few", "many"])
@pytest.mark.parametrize("mode", MODES)
def test_nan_propagates_as_in_reference(kind: str, channels: tuple[int, int], mode: str) -> None:
    tensors, run = Case(kind, mode, channels=channels, size=(7, 8), kernel=(3, 3)).make()
    field = tensors["shift" if kind == "shifted" else "M"]
    field[0, 0, :, 3, 3] = torch.nan
    y, expected = run(tensors, backend="cpu"), run(tensors, backend="reference")
    assert y.isnan().any()
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("channels", [(2, 2), (16, 2)], ids=["few", "many"])
def test_asymmetric_metric_with_w_0_equals_its_riemannian_metric(channels: tuple[int, int]) -> None:
    tensors, run = Case("asymmetric", channels=channels, modulated=True).make()
    symmetric = {name: t for name, t in tensors.items() if name != "w"}
    _, run_symmetric = Case("riemannian", channels=channels, modulated=True).make()
    found = outcome(run, tensors | {"w": torch.zeros_like(tensors["w"])}, backend="cpu")
    expected = outcome(run_symmetric, symmetric, backend="cpu")
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
    assert not found["w"].any()
