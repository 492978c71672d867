"""The convolution kernels in Triton's interpreter, run by test_interpreted.py."""

import dataclasses
import weakref
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d
from torch.utils.flop_counter import FlopCounterMode

import metricconv as mc
from metricconv.ops import backends
from metricconv.ops.problem import Problem
from metricconv.ops.triton import backward_pass, conv_call, library, plan
from ops.cases import KINDS, MODES, Case, check, check_clamped_norm, outcome, random_case, relative, truth

pytestmark = pytest.mark.usefixtures("poison")
TOLERANCE = 2e-5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_padding_modes(kind: str, mode: str) -> None:
    check(
        Case(kind=kind, mode=mode, stride=(2, 1), kernel=(3, 1), padding=(1, 0), modulated=mode == "border"), TOLERANCE
    )


CHANNELS = {
    "dense": Case(channels=(18, 20), kernel=(1, 3), modulated=True),
    "dense in groups": Case(channels=(36, 40), groups=2, metric_groups=3, kernel=(1, 3), modulated=True),
    "few channels": Case(channels=(1, 1), size=(6, 6), kernel=(5, 5), padding=2, modulated=True),
    "few channels to more": Case(channels=(3, 5), kernel=(1, 3)),
    "few channels in groups": Case(channels=(6, 4), groups=2, metric_groups=3, kernel=(1, 3), modulated=True),
    "depthwise": Case(channels=(6, 6), groups=6, metric_groups=2, kernel=(1, 3), modulated=True),
    "depthwise, two outputs each": Case(channels=(4, 8), groups=4, kernel=(1, 3)),
    "depthwise, a metric each": Case(channels=(3, 3), groups=3, metric_groups=3, kernel=(1, 3)),
    "many blocks": Case(channels=(80, 16), kernel=(1, 1), padding=0, size=(3, 3), batch=1),
    "no bias": Case(biased=False, kernel=(1, 3)),
    "patches": Case(channels=(2, 2), size=(9, 49), kernel=(1, 3), batch=1),
    "patches, depthwise": Case(channels=(2, 2), groups=2, size=(9, 49), kernel=(1, 1), batch=1),
    "constant": Case(constant=True, kernel=(1, 3)),
    "deformable in groups": Case(kind="deformable", channels=(32, 16), metric_groups=2, kernel=(1, 3), modulated=True),
    "many blocks, deformable": Case(kind="deformable", channels=(80, 16), kernel=(1, 1), padding=0, modulated=True),
    "geodesic in groups": Case(kind="geodesic", channels=(4, 4), metric_groups=2, modulated=True, size=(4, 5)),
    "geodesic, one pixel": Case(kind="geodesic", size=(1, 1), kernel=(1, 3), padding=(0, 1)),
    "large radius": Case(radius=1000.0, mode="circular", kernel=(1, 3)),
    "large radius, border": Case(radius=1000.0, mode="border", channels=(16, 16), size=(9, 9), batch=1),
    "long axis": Case(kind="deformable", channels=(1, 1), size=(1, 9000), kernel=(1, 3), stride=(1, 61), batch=1),
    "one pixel": Case(size=(1, 1), mode="reflect", kernel=(1, 3)),
    "one dimension": Case(size=(7,), kernel=(3,), modulated=True),
    "one dimension, one-sided drift": Case(kind="asymmetric", size=(7,), kernel=(3,), modulated=True),
    "one dimension, deformable": Case(kind="deformable", size=(7,), kernel=(3,), mode="border"),
    "one dimension, dilated": Case(kind="dilated", size=(7,), kernel=(3,), mode="circular"),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels(name: str) -> None:
    check(CHANNELS[name], 2e-3 if name.startswith("large radius") else TOLERANCE)


WINDOWS = {
    "patch": Case(channels=(18, 20), size=(9, 10), modulated=True, kernel=(1, 3)),
    "patch, no outliers": Case(channels=(18, 20), size=(9, 10), radius=0.5, kernel=(1, 3)),
    "patch, outliers": Case(channels=(18, 20), size=(9, 10), mode="reflect", radius=4.0, kernel=(1, 3)),
    "patch, depthwise": Case(channels=(4, 4), groups=4, metric_groups=2, size=(9, 10), modulated=True, kernel=(1, 3)),
    "image": Case(channels=(18, 20), size=(9, 10), modulated=True, stride=2, kernel=(1, 3)),
    "image, depthwise": Case(channels=(4, 4), groups=4, metric_groups=2, size=(3, 4), batch=7, kernel=(1, 3)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    with plan.fixed_choices(window=name.partition(",")[0]):
        check(WINDOWS[name], TOLERANCE)


SPLIT_SUMS = {
    "patch": Case(channels=(18, 20), size=(9, 10), kernel=(1, 3), batch=3),
    "none": Case(channels=(4, 4), groups=4, metric_groups=2, modulated=True, batch=3),
    "none, deformable": Case(kind="deformable", channels=(4, 4), groups=4, kernel=(1, 3), constant=True, batch=3),
}


@pytest.mark.parametrize("name", SPLIT_SUMS)
def test_half_precision_gradients_summed_for_a_few_images_at_a_time(name: str) -> None:
    with plan.fixed_choices(window=name.partition(",")[0], images_per_sum=2):
        check(dataclasses.replace(SPLIT_SUMS[name], dtype=torch.float16), 1e-2)


@pytest.mark.slow
def test_sum_of_images_is_freed_before_the_next_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[backward_pass.ImageGradientSum] = weakref.WeakSet()
    counts = []

    class Counted(backward_pass.ImageGradientSum):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            alive.add(self)
            counts.append(len(alive))

    monkeypatch.setattr(backward_pass, "ImageGradientSum", Counted)
    with plan.fixed_choices(window="none", images_per_sum=1):
        check(dataclasses.replace(SPLIT_SUMS["none"], dtype=torch.float16), 1e-2)
    assert counts == [1] * SPLIT_SUMS["none"].batch


IM2COL = {
    "image": Case(channels=(18, 20), size=(5, 4), modulated=True, stride=2, kernel=(1, 3), batch=3),
    "patch": Case(channels=(18, 20), size=(9, 10), mode="reflect", radius=4.0, kernel=(1, 3)),
    "none": Case(channels=(36, 20), size=(5, 4), metric_groups=2, mode="border", kernel=(1, 3), modulated=True),
    "none, deformable": Case(kind="deformable", channels=(18, 20), kernel=(1, 3), modulated=True, biased=False),
    "image, half": Case(channels=(18, 20), size=(5, 4), kernel=(1, 3), batch=3, dtype=torch.float16),
    "image, half, modulated": Case(
        channels=(18, 20), size=(7, 6), kernel=(1, 3), stride=2, modulated=True, dtype=torch.float16
    ),
    "image, half, deformable": Case(
        kind="deformable", channels=(36, 20), size=(3, 4), metric_groups=2, batch=5, dtype=torch.float16
    ),
    "image, one-sided drift": Case(kind="asymmetric", channels=(18, 20), kernel=(1, 3), metric_groups=2),
    "image, geodesic": Case(kind="geodesic", channels=(18, 20), size=(4, 5), kernel=(1, 3), metric_groups=2),
    "none, one dimension": Case(channels=(18, 20), size=(7,), kernel=(3,), batch=3),
    "none, constant": Case(channels=(18, 20), constant=True, kernel=(1, 3), dtype=torch.float16),
    "none, channels last": Case(channels=(18, 20), layout="channels_last", stride=(1, 2), kernel=(1, 3), batch=3),
}


@pytest.mark.parametrize("name", IM2COL)
def test_im2col(name: str) -> None:
    with plan.fixed_choices(window=name.partition(",")[0], im2col_images=1):
        check(IM2COL[name], TOLERANCE if IM2COL[name].dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("needed", ["input", "weight", "M"])
def test_im2col_with_a_single_gradient(needed: str) -> None:
    tensors, run = Case(channels=(18, 20), kernel=(1, 3)).make()
    tensors[needed].requires_grad_()
    with plan.fixed_choices(im2col_images=1):
        expected, found = (
            torch.autograd.grad(run(tensors, backend=backend).square().sum(), tensors[needed])[0]
            for backend in ("reference", "triton")
        )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, if a NaN becomes an index
@pytest.mark.parametrize("im2col_images", [0, 3])
def test_nan_in_the_metric_of_one_image_does_not_affect_others(im2col_images: int) -> None:
    case = Case(channels=(18, 20), size=(4, 3), kernel=(1, 3), batch=3, dtype=torch.float16)  # all in one window
    tensors, run = case.make()
    tensors["M"][1, :, :, 2, 1] = torch.nan
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    with plan.fixed_choices(im2col_images=im2col_images, window="image"):
        y = run(leaves, backend="triton")
        grad_input, grad_metric = torch.autograd.grad(y, [leaves["input"], leaves["M"]], torch.ones_like(y))
    for t in (y, grad_input, grad_metric):
        assert t.flatten(1).isnan().any(1).tolist() == [False, True, False]


def test_adjacent_offset_components_are_loaded_as_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found_pairs, load_pairs = [], conv_call.ConvCall.load_pairs

    def recorded(self: conv_call.ConvCall) -> bool:
        found_pairs.append(load_pairs(self))
        return found_pairs[-1]

    monkeypatch.setattr(conv_call.ConvCall, "load_pairs", recorded)
    offsets = torch.randn(2, 1, 9, 5, 4, 2).permute(0, 1, 2, 5, 3, 4)
    x, weight = torch.randn(2, 3, 5, 4), torch.randn(4, 3, 3, 3)
    support = mc.Deformable(offsets, 3)
    expected, found = (mc.support_conv(x, support, weight, padding=1, backend=b) for b in ("reference", "triton"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert all(found_pairs) and found_pairs


@pytest.mark.parametrize("seed", range(102, 109))
def test_random_problems_agree_with_reference(seed: int) -> None:
    check(random_case(seed, 4), TOLERANCE)


@pytest.mark.parametrize("layout", ["channels_last", "strided"])
@pytest.mark.parametrize("kind", ["randers", "geodesic", "deformable"])
def test_layouts(kind: str, layout: str) -> None:
    check(Case(kind=kind, layout=layout, channels=(18, 20), kernel=(1, 3), padding=(0, 1), modulated=True), TOLERANCE)


@pytest.mark.parametrize("kind", ["randers", "geodesic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, kind: str) -> None:
    check(Case(kind=kind, dtype=dtype, channels=(18, 20), kernel=(1, 3), modulated=True), 1e-2)


@pytest.mark.parametrize("name", ["dense in groups", "depthwise", "few channels", "many blocks, deformable"])
def test_deterministic(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        check(CHANNELS[name], TOLERANCE)
    finally:
        torch.use_deterministic_algorithms(False)


def test_clamped_norm_has_no_gradient() -> None:
    check_clamped_norm(TOLERANCE, "triton")


@pytest.mark.parametrize("window", ["none", "patch"])  # those with additions in fixed point
@pytest.mark.parametrize("factor", [2.0**40, 2.0**-40])
def test_deterministic_sums_are_accurate_for_large_and_small_modulation(factor: float, window: str) -> None:
    tensors, run = Case(channels=(18, 20), size=(9, 10), kernel=(1, 3), padding=(0, 1), batch=1, modulated=True).make()
    tensors["modulation"] *= factor
    torch.use_deterministic_algorithms(True)
    try:
        with plan.fixed_choices(window=window):
            found = outcome(run, tensors, backend="triton")["input"]
    finally:
        torch.use_deterministic_algorithms(False)
    assert relative(found / factor, truth(run, tensors)["input"] / factor) <= TOLERANCE


@pytest.mark.parametrize("size", [(5, 4), (7,)])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_output_can_be_changed_in_place(layout: str, size: tuple[int, ...]) -> None:
    tensors, run = Case(layout=layout, size=size, kernel=(3,) * len(size)).make()
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    run(leaves, backend="triton").relu_().sum().backward()
    assert leaves["input"].grad.any()


def test_empty_batch() -> None:
    tensors, run = Case(batch=0).make()
    y = run({name: t.requires_grad_() for name, t in tensors.items()}, backend="triton")
    y.sum().backward()
    assert y.shape == (0, 4, 5, 4) and tensors["weight"].grad is not None and not tensors["weight"].grad.any()


def test_double_backward_raises_with_the_reason() -> None:
    tensors, run = Case(kernel=(1, 1), padding=0).make()
    x = tensors["input"].requires_grad_()
    (grad,) = torch.autograd.grad(run(tensors, backend="triton").square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match='backend="reference"'):
        grad.sum().backward()


@pytest.mark.slow
def test_operators_pass_opcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, run = Case(channels=(2, 2), size=(3, 4), kernel=(1, 3), padding=(0, 1), modulated=True).make()
    calls: list[tuple] = []
    forward, operator = library.support_conv, torch.ops.metricconv.support_conv.default
    monkeypatch.setattr(library, "support_conv", lambda *args: calls.append(args) or forward(*args))
    run(tensors, backend="triton")
    args = [a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in calls[0]]
    args[5] = args[5].detach()  # the stencil has no gradient
    torch.library.opcheck(operator, args)
    backward = torch.ops.metricconv.support_conv_backward.default
    fixed = [a.detach() if isinstance(a, torch.Tensor) else a for a in args[:-2]]
    torch.library.opcheck(backward, (*fixed, torch.randn(2, 2, 3, 4), [True] * 5))


def test_registered_operator_supports_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_flops_are_those_of_a_convolution() -> None:
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


def test_auto_selects_triton() -> None:
    tensors, _ = Case().make()
    support = mc.TangentBall(mc.Randers(tensors["M"], tensors["omega"]), mc.stencils.onion(3))
    problem = Problem(tensors["input"], support, tensors["weight"], None, (1, 1), (1, 1), 1, None, "zeros")
    assert backends.choose_backend(problem) is backends.BACKENDS["triton"]
