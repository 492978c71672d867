"""The kernels in Triton's interpreter, on CPU tensors. Run by test_interpreted.py with TRITON_INTERPRET=1."""

import contextlib
import dataclasses
import importlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

import metricconv as mc
from layers import stir
from metricconv.metrics import parametrizations
from metricconv.ops import functional
from metricconv.ops.triton import backward, call, geodesic, launch, library, narrow_conv, tiles
from metricconv.ops.triton.launcher import Launch
from ops.cases import (
    KINDS,
    MODES,
    Case,
    check,
    check_clamped_norm,
    check_inference,
    outcome,
    random_case,
    relative,
    truth,
)
from ops.triton.narrowed import NARROW, check_narrow, make
from ops.triton.parametrized import PARAMETRIZATIONS, check_parametrization

pytestmark = pytest.mark.usefixtures("poison")
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """Plan each test's launches anew: some cut them otherwise."""
    call._memory.clear()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str, mode: str) -> None:
    check(
        Case(kind=kind, mode=mode, stride=(2, 1), kernel=(3, 1), padding=(1, 0), modulated=mode == "border"), TOLERANCE
    )


CHANNELS = {
    "dot": Case(channels=(18, 20), kernel=(1, 3), modulated=True),
    "dot in groups": Case(channels=(36, 40), groups=2, metric_groups=3, kernel=(1, 3), modulated=True),
    "few": Case(channels=(1, 1), size=(6, 6), kernel=(5, 5), padding=2, modulated=True),
    "few to some": Case(channels=(3, 5), kernel=(1, 3)),
    "few in groups": Case(channels=(6, 4), groups=2, metric_groups=3, kernel=(1, 3), modulated=True),
    "each": Case(channels=(6, 6), groups=6, metric_groups=2, kernel=(1, 3), modulated=True),
    "each twice": Case(channels=(4, 8), groups=4, kernel=(1, 3)),
    "each alone": Case(channels=(3, 3), groups=3, metric_groups=3, kernel=(1, 3)),
    "many blocks": Case(channels=(80, 16), kernel=(1, 1), padding=0, size=(3, 3), batch=1),
    "no bias": Case(biased=False, kernel=(1, 3)),
    "patches": Case(channels=(2, 2), size=(9, 49), kernel=(1, 3), batch=1),
    "patches of each": Case(channels=(2, 2), groups=2, size=(9, 49), kernel=(1, 1), batch=1),
    "constant": Case(constant=True, kernel=(1, 3)),
    "deformable in groups": Case(kind="deformable", channels=(32, 16), metric_groups=2, kernel=(1, 3), modulated=True),
    "many blocks of a deformable": Case(kind="deformable", channels=(80, 16), kernel=(1, 1), padding=0, modulated=True),
    "geodesic in groups": Case(kind="geodesic", channels=(4, 4), metric_groups=2, modulated=True, size=(4, 5)),
    "geodesic on one pixel": Case(kind="geodesic", size=(1, 1), kernel=(1, 3), padding=(0, 1)),
    "far": Case(radius=1000.0, mode="circular", kernel=(1, 3)),
    "far past the border": Case(radius=1000.0, mode="border", channels=(16, 16), size=(9, 9), batch=1),
    "a long way from the first pixel": Case(
        kind="deformable", channels=(1, 1), size=(1, 9000), kernel=(1, 3), stride=(1, 61), batch=1
    ),
    "one pixel": Case(size=(1, 1), mode="reflect", kernel=(1, 3)),
    "one dimension": Case(size=(7,), kernel=(3,), modulated=True),
    "one dimension, deformable": Case(kind="deformable", size=(7,), kernel=(3,), mode="border"),
    "one dimension, dilated": Case(kind="dilated", size=(7,), kernel=(3,), mode="circular"),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels(name: str) -> None:
    check(CHANNELS[name], 2e-3 if name.startswith("far") else TOLERANCE)


WINDOWS = {
    "patch": Case(channels=(18, 20), size=(9, 10), modulated=True, kernel=(1, 3)),
    "patch, no sample outside": Case(channels=(18, 20), size=(9, 10), radius=0.5, kernel=(1, 3)),
    "patch, some samples outside": Case(channels=(18, 20), size=(9, 10), mode="reflect", radius=4.0, kernel=(1, 3)),
    "patch of each": Case(channels=(4, 4), groups=4, metric_groups=2, size=(9, 10), modulated=True, kernel=(1, 3)),
    "image": Case(channels=(18, 20), size=(9, 10), modulated=True, stride=2, kernel=(1, 3)),
    "images of each": Case(channels=(4, 4), groups=4, metric_groups=2, size=(3, 4), batch=7, kernel=(1, 3)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "window", lambda *args: name[:5])
    check(WINDOWS[name], TOLERANCE)


IN_PARTS = {
    "patch": Case(channels=(18, 20), size=(9, 10), kernel=(1, 3), batch=3),
    "no": Case(channels=(4, 4), groups=4, metric_groups=2, modulated=True, batch=3),
    "no, deformable": Case(kind="deformable", channels=(4, 4), groups=4, kernel=(1, 3), constant=True, batch=3),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_half_precision_is_summed_a_few_images_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "window", lambda *args: name.partition(",")[0])
    monkeypatch.setattr(tiles, "images_at_a_time", lambda *args: 2)
    check(dataclasses.replace(IN_PARTS[name], dtype=torch.float16), 1e-2)


def test_sums_of_some_images_are_gone_when_the_next_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[launch.Sums] = weakref.WeakSet()
    counts = []

    class Counted(launch.Sums):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            alive.add(self)
            counts.append(len(alive))

    monkeypatch.setattr(backward, "Sums", Counted)
    monkeypatch.setattr(tiles, "window", lambda *args: "no")
    monkeypatch.setattr(tiles, "images_at_a_time", lambda *args: 1)
    check(dataclasses.replace(IN_PARTS["no"], dtype=torch.float16), 1e-2)
    assert counts == [1] * IN_PARTS["no"].batch


COLUMNS = {
    "image": Case(channels=(18, 20), size=(5, 4), modulated=True, stride=2, kernel=(1, 3), batch=3),
    "patch": Case(channels=(18, 20), size=(9, 10), mode="reflect", radius=4.0, kernel=(1, 3)),
    "no": Case(channels=(36, 20), size=(5, 4), metric_groups=2, mode="border", kernel=(1, 3), modulated=True),
    "no, deformable": Case(kind="deformable", channels=(18, 20), kernel=(1, 3), modulated=True, biased=False),
    "image, half": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), batch=3, dtype=torch.float16),
    "image, half, modulated": Case(
        channels=(18, 20), size=(7, 6), kernel=(1, 3), stride=2, modulated=True, dtype=torch.float16
    ),
    "image, half, deformable": Case(
        kind="deformable", channels=(36, 20), size=(3, 4), metric_groups=2, batch=5, dtype=torch.float16
    ),
    "image, geodesic": Case(kind="geodesic", channels=(18, 20), size=(4, 5), kernel=(1, 3), metric_groups=2),
    "no, one dimension": Case(channels=(18, 20), size=(7,), kernel=(3,), batch=3),
    "no, constant": Case(channels=(18, 20), constant=True, kernel=(1, 3), dtype=torch.float16),
    "no, channels last": Case(channels=(18, 20), layout="channels_last", stride=(1, 2), kernel=(1, 3), batch=3),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_samples_kept_for_matrix_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "window", lambda *args: name.partition(",")[0])
    monkeypatch.setattr(tiles, "images_by_columns", lambda *args: 1)
    check(COLUMNS[name], TOLERANCE if COLUMNS[name].dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("needed", ["input", "weight", "M"])
def test_samples_kept_for_one_gradient_alone(needed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "images_by_columns", lambda *args: 1)
    tensors, run = Case(channels=(18, 20), kernel=(1, 3)).make()
    tensors[needed].requires_grad_()
    expected, found = (
        torch.autograd.grad(run(tensors, backend=backend).square().sum(), tensors[needed])[0]
        for backend in ("reference", "triton")
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value")  # of numpy, where a NaN becomes an index
@pytest.mark.parametrize("kept", [0, 3])
def test_nan_in_the_metric_of_one_image_leaves_the_others_alone(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "images_by_columns", lambda *args: kept)
    monkeypatch.setattr(tiles, "window", lambda *args: "image")
    case = Case(channels=(18, 20), size=(4, 3), kernel=(1, 3), batch=3, dtype=torch.float16)  # all in one window
    tensors, run = case.make()
    tensors["M"][1, :, :, 2, 1] = torch.nan
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y = run(leaves, backend="triton")
    of_input, of_metric = torch.autograd.grad(y, [leaves["input"], leaves["M"]], torch.ones_like(y))
    for t in (y, of_input, of_metric):
        assert t.flatten(1).isnan().any(1).tolist() == [False, True, False]


def test_offsets_side_by_side_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, paired = [], call.Call.paired
    monkeypatch.setattr(call.Call, "paired", lambda self: seen.append(paired(self)) or seen[-1])
    offsets = torch.randn(2, 1, 9, 5, 4, 2).permute(0, 1, 2, 5, 3, 4)
    x, weight = torch.randn(2, 3, 5, 4), torch.randn(4, 3, 3, 3)
    support = mc.Deformable(offsets, 3)
    expected, found = (mc.support_conv(x, support, weight, padding=1, backend=b) for b in ("reference", "triton"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert all(seen) and seen


@pytest.mark.parametrize(("smooth", "steps", "drift"), [(0, 4, True), (2, 1, False)])
def test_geodesics(smooth: int, steps: int, drift: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    change_balls(monkeypatch, drift, smooth=smooth, steps=steps)
    check(Case(kind="geodesic", size=(4, 5), kernel=(3, 3)), TOLERANCE)


def change_balls(monkeypatch: pytest.MonkeyPatch, drift: bool, **changes: Any) -> None:
    """Make geodesic balls with other options, and without their ω."""

    def ball(metric: mc.Randers, stencil: mc.stencils.Stencil, **options: Any) -> mc.GeodesicBall:
        plain = mc.Riemannian(metric.M + 0.0 * metric.omega[:, :, :1])
        return GeodesicBall(metric if drift else plain, stencil, **{**options, **changes})

    GeodesicBall = mc.GeodesicBall
    monkeypatch.setattr(mc, "GeodesicBall", ball)


@pytest.mark.parametrize("seed", range(102, 109))
def test_anything_of_anything(seed: int) -> None:
    check(random_case(seed, 4), TOLERANCE)


def test_large_geodesic_stencils_are_traced_a_few_rays_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, shoot = [], geodesic.shoot
    monkeypatch.setattr(geodesic, "_CHUNK", 8 * 2 * 12 * 4)  # four samples of 2 images of 12 pixels
    monkeypatch.setattr(geodesic, "shoot", lambda *args: seen.append(args[6]) or shoot(*args))
    check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), modulated=True), TOLERANCE)
    assert max(seen) <= 4 and sum(seen) == 2 * 9 - seen[0]  # each chunk but the first once more in the backward pass
    seen.clear()
    check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), channels=(18, 20)), TOLERANCE)
    assert seen == [9]  # no more room than the image takes


def test_rays_are_planned_once_for_all_balls_of_a_stencil(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plan = [], geodesic._make_plan
    monkeypatch.setattr(geodesic, "_make_plan", lambda *args: seen.append(args) or plan(*args))
    tensors, run = Case(kind="geodesic", size=(3, 4), kernel=(1, 3), padding=(0, 1)).make()
    for _ in range(2):
        run(tensors, backend="triton")
    assert len(seen) == 1


def test_rays_are_walked_back_in_as_many_launches_as_their_states_need(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts, launch_of = [], geodesic.launch_of
    monkeypatch.setattr(geodesic, "_CHUNK", 1)
    monkeypatch.setattr(
        geodesic,
        "launch_of",
        lambda *args, **numbers: firsts.append(numbers.get("first_program")) or launch_of(*args, **numbers),
    )
    check(Case(kind="geodesic", size=(3, 4), kernel=(3, 3), channels=(18, 20), batch=3), TOLERANCE)
    # Of 3 images of 8 rays, a block each; planned once in the forward pass, where they begin to be compiled.
    assert [first for first in firsts if first is not None] == 2 * [0, 16]


@pytest.mark.parametrize("layout", ["channels_last", "strided"])
@pytest.mark.parametrize("kind", ["randers", "geodesic", "deformable"])
def test_layout(kind: str, layout: str) -> None:
    check(Case(kind=kind, layout=layout, channels=(18, 20), kernel=(1, 3), padding=(0, 1), modulated=True), TOLERANCE)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(("smooth", "drift"), [(1, True), (0, False)])
def test_images_in_bfloat16_look_up_rounded_derivatives(
    smooth: int, drift: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded, shoot = [], geodesic.shoot
    monkeypatch.setattr(geodesic, "shoot", lambda *args: rounded.append(args[-1]) or shoot(*args))
    change_balls(monkeypatch, drift, smooth=smooth)
    check_inference(Case(kind="geodesic", dtype=torch.bfloat16, mode=mode, size=(4, 5), kernel=(3, 3)), 1e-2)
    assert rounded == [True]


@pytest.mark.parametrize("kind", ["randers", "geodesic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, kind: str) -> None:
    check(Case(kind=kind, dtype=dtype, channels=(18, 20), kernel=(1, 3), modulated=True), 1e-2)


@pytest.mark.parametrize("name", ["dot in groups", "each", "few", "many blocks of a deformable"])
def test_deterministic(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        check(CHANNELS[name], TOLERANCE)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_clamped_norm_has_no_gradient() -> None:
    check_clamped_norm(TOLERANCE, "triton")


@pytest.mark.parametrize("window", ["no", "patch"])  # those that add in memory, in fixed point
@pytest.mark.parametrize("factor", [2.0**40, 2.0**-40])
def test_deterministic_sums_hold_for_large_and_small_modulation(
    factor: float, window: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "window", lambda *args: window)
    tensors, run = Case(channels=(18, 20), size=(9, 10), kernel=(1, 3), padding=(0, 1), batch=1, modulated=True).make()
    tensors["modulation"] *= factor
    torch.use_deterministic_algorithms(True)
    try:
        found = outcome(run, tensors, backend="triton")["input"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert relative(found / factor, truth(run, tensors)["input"] / factor) <= TOLERANCE


@pytest.mark.parametrize("size", [(5, 4), (7,)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_an_activation_in_place_may_follow(layout: str, size: tuple[int, ...]) -> None:
    tensors, run = Case(layout=layout, size=size, kernel=(3,) * len(size)).make()
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    run(leaves, backend="triton").relu_().sum().backward()
    assert leaves["input"].grad.any()


def test_batch_of_none() -> None:
    tensors, run = Case(batch=0).make()
    y = run({name: t.requires_grad_() for name, t in tensors.items()}, backend="triton")
    y.sum().backward()
    assert y.shape == (0, 4, 5, 4) and tensors["weight"].grad is not None and not tensors["weight"].grad.any()


def test_double_backward_is_refused_in_words() -> None:
    tensors, run = Case(kernel=(1, 1), padding=0).make()
    x = tensors["input"].requires_grad_()
    (grad,) = torch.autograd.grad(run(tensors, backend="triton").square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        grad.sum().backward()


def test_operators_pass_opcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, run = Case(channels=(2, 2), size=(3, 4), kernel=(1, 3), padding=(0, 1), modulated=True).make()
    calls: list[tuple] = []
    forward, operator = library.support_conv, torch.ops.metricconv.support_conv.default
    monkeypatch.setattr(library, "support_conv", lambda *args: calls.append(args) or forward(*args))
    run(tensors, backend="triton")
    args = [a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in calls[0]]
    args[5] = args[5].detach()  # the stencil is not learnt
    torch.library.opcheck(operator, args)
    backward = torch.ops.metricconv.support_conv_backward.default
    fixed = [a.detach() if isinstance(a, torch.Tensor) else a for a in args[:-2]]
    torch.library.opcheck(backward, (*fixed, torch.randn(2, 2, 3, 4), [True] * 5))


def test_the_operator_itself_obeys_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, run = Case(channels=(2, 2), size=(3, 4), kernel=(1, 3), padding=(0, 1), modulated=True).make()
    calls: list[tuple] = []
    forward = library.support_conv
    monkeypatch.setattr(library, "support_conv", lambda *args: calls.append(args) or forward(*args))
    run(tensors, backend="triton")
    leaves = [
        a.detach().requires_grad_() if isinstance(a, torch.Tensor) and n != 5 else a for n, a in enumerate(calls[0])
    ]
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = torch.ops.metricconv.support_conv(*leaves), run(tensors, backend="triton")
    assert y.dtype == torch.bfloat16 and torch.equal(y, expected)
    for t, grad in zip(leaves[:5], torch.autograd.grad(y.sum(), leaves[:5]), strict=True):
        assert grad.dtype == t.dtype == torch.float32 and grad.isfinite().all()


def test_products_are_counted_as_those_of_a_convolution() -> None:
    x, weight = torch.randn(2, 4, 7, 6, requires_grad=True), torch.randn(6, 4, 3, 3, requires_grad=True)
    counted = []
    for conv in (lambda: mc.support_conv(x, mc.Grid(3), weight, backend="triton"), lambda: conv2d(x, weight)):
        with FlopCounterMode(display=False) as counter:
            conv().sum().backward()
        counted.append(counter.get_total_flops())
    assert counted[0] == counted[1]


def test_compiles_to_one_graph() -> None:
    tensors, run = Case(kernel=(1, 3), channels=(2, 2)).make()
    compiled = torch.compile(lambda t: run(t, backend="triton"), fullgraph=True, backend="aot_eager")
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y, z = compiled(leaves), run(leaves, backend="triton")
    torch.testing.assert_close(y, z)
    for a, b in zip(*(torch.autograd.grad(t.sum(), list(leaves.values())) for t in (y, z)), strict=True):
        torch.testing.assert_close(a, b)


def test_auto_takes_the_kernels() -> None:
    tensors, _ = Case().make()
    support = mc.TangentBall(mc.Randers(tensors["M"], tensors["omega"]), mc.stencils.onion(3))
    problem = functional.Problem(tensors["input"], support, tensors["weight"], None, (1, 1), (1, 1), 1, None, "zeros")
    assert functional.choose_backend(problem) is functional.BACKENDS["triton"]


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS, ids=str)
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # NumPy's, which plays the GPU here
def test_parametrization_in_one_kernel_equals_its_formulas(parametrization: mc.metrics.Parametrization) -> None:
    check_parametrization(parametrization)


def test_images_of_more_pixels_than_programs_take_the_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    room, raw = importlib.import_module("metricconv.ops.triton.parametrizations"), torch.randn(1, 1, 7, 3, 4)
    for most, fused in ((12, True), (11, False)):
        monkeypatch.setattr(room, "_MOST_PIXELS", most)
        assert (room.parametrize(mc.metrics.Spectral7(), raw, None, None, 1.0) is not None) == fused


@pytest.mark.parametrize(("backend", "calls"), [("auto", 1), ("triton", 1), ("reference", 0)])
def test_layers_take_the_fused_parametrization_unless_they_ask_for_the_reference(
    backend: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(parametrizations, "FUSED", [lambda *call: seen.append(call)])
    mc.nn.MetricConv2d(4, 4, 1, backend=backend)(torch.randn(1, 4, 2, 2))
    assert len(seen) == calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", NARROW)
@pytest.mark.usefixtures("tf32")
def test_a_convolution_with_few_outputs_equals_torchs(name: str, dtype: torch.dtype) -> None:
    check_narrow(dtype, **NARROW[name])


def test_a_convolution_with_few_outputs_has_second_derivatives() -> None:
    x, weight, bias, sizes = make(torch.float16, size=(3, 3))
    seconds = []
    for conv in (narrow_conv, torch.nn.functional.conv2d):
        y = conv(x, weight.half(), bias.half(), *sizes)
        (first,) = torch.autograd.grad((y.float() / 8).square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad((first.float() / 64).square().sum(), weight)[0])
    assert (seconds[0] - seconds[1]).norm() <= 1e-2 * seconds[1].norm()


@pytest.mark.parametrize(
    "options", [{"channels": 40}, {"channels": 100}, {"size": (2, 2), "padding": (0, 0)}, {"dtype": torch.float32}]
)
def test_a_convolution_with_few_outputs_is_torchs_where_that_serves(options: dict[str, Any]) -> None:
    x, weight, bias, sizes = make(**{"dtype": torch.float16, **options})
    assert narrow_conv(x, weight.to(x.dtype), bias.to(x.dtype), *sizes) is None
    x, weight, bias, sizes = make(torch.float16)
    assert narrow_conv(x, weight.half(), bias.half(), *sizes) is not None
    assert narrow_conv(x, weight, bias, *sizes) is None  # torch's refuses two types
    assert narrow_conv(x.contiguous(), weight.half(), bias.half(), *sizes) is None
    assert narrow_conv(*(t.half().to("meta") for t in (x, weight, bias)), *sizes) is None
    with torch.autocast("cpu", torch.float16):  # which leaves float64 alone
        assert narrow_conv(x.double(), weight.double(), bias.double(), *sizes) is None


def test_layers_predict_by_the_fused_way() -> None:
    layer = mc.nn.MetricConv2d(128, 4, 3, padding=1)
    x = torch.randn(1, 128, 4, 4).to(memory_format=torch.channels_last)
    assert layer.predictor is not None
    with torch.no_grad():
        layer.predictor.weight.normal_(std=0.02)
        expected = layer.predictor(x)
        with torch.autocast("cpu", torch.float16):
            found = layer.predictor(x)
    assert found.dtype == torch.float16 and found.is_contiguous()
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-2)


def test_function_transforms_take_the_reference() -> None:
    tensors, run = Case(channels=(2, 2), kernel=(1, 3), size=(3, 4)).make()
    for name, tensor in tensors.items():
        slopes = []
        for backend in ("auto", "reference"):
            _, slope = torch.func.jvp(lambda t: run(tensors | {name: t}, backend=backend), (tensor,), (tensor,))  # noqa: B023
            slopes.append(slope)
        assert slopes[1].norm() > 0
        torch.testing.assert_close(*slopes)
    with pytest.raises(ValueError, match="derivatives of autograd's backward alone"):
        torch.func.grad(lambda x: run(tensors | {"input": x}, backend="triton").sum())(tensors["input"])


def test_layers_have_the_derivatives_of_function_transforms() -> None:
    layer, x = stir(mc.nn.MetricConv2d(2, 2, 3, padding=1)), torch.randn(1, 2, 4, 4)
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, x).square().sum()

    found = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    torch.testing.assert_close(list(found.values()), list(expected), rtol=1e-4, atol=1e-4)


def test_every_launch_goes_to_the_device_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, launched, launch_now = [], [], Launch.__call__

    @contextlib.contextmanager
    def guard(x: torch.Tensor) -> Iterator[None]:
        guarded.append(x.device)
        yield
        guarded.pop()

    def watched(self: Launch, **tensors: Any) -> None:
        launched.append((self.kernel.fn.__name__, guarded[-1] if guarded else None))
        launch_now(self, **tensors)

    for name in ("launch", "backward", "geodesic", "narrow", "parametrizations"):
        monkeypatch.setattr(importlib.import_module(f"metricconv.ops.triton.{name}"), "on_device", guard)
    monkeypatch.setattr(Launch, "__call__", watched)
    for ball in ("tangent", "geodesic"):
        layer = stir(mc.nn.MetricConv2d(128, 4, 3, padding=1, ball=ball))
        x = torch.randn(1, 128, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
        with torch.autocast("cpu", torch.float16):
            layer(x).float().sum().backward()
    assert len({name for name, _ in launched}) > 8
    assert not [name for name, device in launched if device != x.device]
