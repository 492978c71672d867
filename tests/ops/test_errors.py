"""Invalid arguments raise errors that name the argument, its value and what was expected."""

import math
import re
import types

import pytest
import torch

import metricconv as mc
from helpers import randers, riemannian
from metricconv.ops import backends, cpu, reference
from metricconv.ops.problem import Problem

IMAGE, WEIGHT, BIAS = torch.zeros(2, 6, 8, 7), torch.zeros(4, 6, 3, 3), torch.zeros(4)


def field(*shape, value=0.0):
    return torch.full(shape, value)


def backend(**functions):
    """Return a backend of these functions."""
    return types.SimpleNamespace(missing_dependency=lambda: None, **functions)


def deformable(batch=1, groups=1, size=(1, 1)):
    return mc.Deformable(field(batch, groups, 9, 2, *size), 3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"input": field(6, 8, 7)}, ValueError, r"`input` .*2 spatial axes, got shape \(6, 8, 7\)"),
        ({"input": field(2, 6, 8, 7, 3)}, ValueError, r"`input` .*got shape \(2, 6, 8, 7, 3\)"),
        ({"input": field(2, 6, 8, 7).int()}, TypeError, r"`input` must hold floating-point numbers, got .*int32"),
        (
            {"input": field(2, 6, 8, 7).cfloat()},
            TypeError,
            r"`input` must hold floating-point numbers, got .*complex64",
        ),
        ({"input": [[1.0]]}, TypeError, r"`input` must be a torch.Tensor, got list"),
        ({"input": field(2, 6, 2, 7)}, ValueError, r"`input` \(spatial size \(2, 7\)\) is too small .*\(0, 5\)"),
        ({"input": field(2, 6, 0, 7), "padding": 3}, ValueError, r"`input` \(spatial size \(0, 7\)\) is too small"),
        ({"weight": field(4, 6, 3)}, ValueError, r"`weight` .*kernel size \(3, 3\), got shape \(4, 6, 3\)"),
        ({"weight": field(4, 6, 3, 5)}, ValueError, r"`weight` .*kernel size \(3, 3\), got shape \(4, 6, 3, 5\)"),
        ({"weight": field(4, 5, 3, 3)}, ValueError, r"`weight` \(shape \(4, 5, 3, 3\)\) must have 6 input channels"),
        ({"weight": field(4, 6, 3, 3).long()}, TypeError, r"`weight` must hold floating-point numbers, got .*int64"),
        ({"bias": field(5)}, ValueError, r"`bias` must be \(4,\), got shape \(5,\)"),
        ({"bias": field(4, 1)}, ValueError, r"`bias` must be \(4,\), got shape \(4, 1\)"),
        ({"groups": 4}, ValueError, r"`input channels` \(=6\) must be divisible by `groups` \(=4\)"),
        ({"groups": 0}, ValueError, r"`groups` \(=0\) must be at least 1"),
        ({"groups": 3}, ValueError, r"`output channels` \(=4\) must be divisible by `groups` \(=3\)"),
        ({"groups": 2}, ValueError, r"`weight` .*must have 3 input channels per group .*`groups` \(=2\)"),
        ({"stride": 0}, ValueError, r"`stride` \(=0\) must be at least 1"),
        ({"stride": (1, -2)}, ValueError, r"`stride` \(=\(1, -2\)\) must be at least 1"),
        ({"stride": (1, 1, 1)}, ValueError, r"`stride` \(=\(1, 1, 1\)\) must be an int or 2 ints"),
        ({"stride": 1.5}, ValueError, r"`stride` \(=1.5\) must be an int or 2 ints"),
        ({"padding": -1}, ValueError, r"`padding` \(=-1\) must be at least 0"),
        ({"padding": "same"}, ValueError, r"`padding` \(='same'\) must be an int or 2 ints"),
        ({"padding_mode": "mirror"}, ValueError, r"`padding_mode` \(='mirror'\) must be one of 'zeros', 'border'"),
        ({"support": "grid"}, TypeError, r"`support` must be a Support, got str"),
        ({"support": deformable(groups=4)}, ValueError, r"`input channels` \(=6\) .*`metric groups` \(=4\)"),
        ({"support": deformable(batch=3)}, ValueError, r"`support.displacement` has batch 3 .*needs batch 2"),
        ({"support": deformable(size=(6, 6))}, ValueError, r"`support.displacement` .*size \(6, 6\); .*size \(6, 5\)"),
        (
            {"support": mc.TangentBall(randers(2, 2, 1, (8, 7)), mc.stencils.onion(3))},
            ValueError,
            r"`metric.M` has batch 2 and spatial size \(8, 7\); .*spatial size \(6, 5\)",
        ),
        ({"modulation": field(2, 9, 6, 5)}, ValueError, r"`modulation` must be \(B, 1, 9, \*out\).*\(2, 9, 6, 5\)"),
        ({"modulation": field(2, 2, 9, 6, 5)}, ValueError, r"`modulation` must be .*got shape \(2, 2, 9, 6, 5\)"),
        ({"modulation": field(2, 1, 8, 6, 5)}, ValueError, r"`modulation` must be .*got shape \(2, 1, 8, 6, 5\)"),
        ({"modulation": field(2, 1, 9, 6, 6)}, ValueError, r"`modulation` has batch 2 and spatial size \(6, 6\)"),
        ({"backend": "cudnn"}, ValueError, r"`backend` \(='cudnn'\) must be 'auto' or one of these: .*reference"),
    ],
)
def test_support_conv_checks_arguments(changes, error, message):
    arguments = {"input": IMAGE, "support": mc.Grid(3), "weight": WEIGHT, "bias": BIAS} | changes
    with pytest.raises(error, match=message):
        mc.support_conv(**arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"weight": field(4, 6, 4, 4)}, ValueError, r"`weight` has kernel size \(4, 4\): .*requires a `stencil`"),
        ({"weight": field(4, 6, 3)}, ValueError, r"`weight` has kernel size \(3,\): .*the 2 spatial axes of `metric`"),
        ({"weight": field(4, 4, 3, 3)}, ValueError, r"`input channels` \(=6\) .*`weight's input channels` \(=4\)"),
        ({"input": [1.0]}, TypeError, r"`input` must be a torch.Tensor, got list"),
        ({"weight": field(4)}, ValueError, r"`weight` must have spatial axes .*got shape \(4,\)"),
        ({"metric": field(3)}, TypeError, r"`metric` must be a Metric, got Tensor"),
        ({"metric": mc.Riemannian.isotropic(1.0, 3)}, ValueError, r"`weight` .*size \(3, 3\): .*3 spatial axes"),
        ({"dilation": 0}, ValueError, r"`dilation` \(=0\) must be at least 1"),
        ({"ball": "round"}, ValueError, r"`ball` \(='round'\) must be one of 'tangent', 'geodesic'"),
        ({"steps": 3}, ValueError, r"`steps` \(=3\) requires ball='geodesic'"),
        ({"smooth": 0}, ValueError, r"`smooth` \(=0\) requires ball='geodesic'"),
        ({"padding_mode": "wrap", "ball": "geodesic"}, ValueError, r"`padding_mode` \(='wrap'\) must be one of"),
        ({"stencil": mc.stencils.onion(5)}, ValueError, r"`weight` .*kernel size \(5, 5\), got shape \(4, 6, 3, 3\)"),
    ],
)
def test_metric_conv_checks_arguments(changes, error, message):
    arguments = {"input": IMAGE, "metric": mc.Riemannian.isotropic(1.0), "weight": WEIGHT} | changes
    with pytest.raises(error, match=message):
        mc.metric_conv(**arguments)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"offset": field(2, 17, 6, 5)}, ValueError, r"`offset` must be \(B, 2·G·9, H, W\).*got \(2, 17, 6, 5\)"),
        ({"offset": field(2, 18, 6, 6)}, ValueError, r"`offset` .*\(6, 6\); .*\(6, 5\)"),
        ({"offset": field(2, 18, 6, 5).int()}, TypeError, r"`offset` must hold floating-point numbers"),
        ({"mask": field(2, 8, 6, 5)}, ValueError, r"`mask` must be \(B, G·9, H, W\), .*\(2, 8, 6, 5\)"),
        ({"mask": field(2, 18, 6, 5)}, ValueError, r"`mask` must be \(B, G·9, H, W\), .*G = 1.*\(2, 18, 6, 5\)"),
        ({"weight": field(4, 4, 3, 3)}, ValueError, r"`input channels` \(=6\) .*`weight's input channels` \(=4\)"),
    ],
)
def test_deform_conv2d_checks_arguments(changes, error, message):
    arguments = {"input": IMAGE, "offset": field(2, 18, 6, 5), "weight": WEIGHT} | changes
    with pytest.raises(error, match=message):
        mc.deform_conv2d(**arguments)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("input", {"input": field(2, 6, 8, 7, value=1.0)}),
        ("weight", {"weight": field(4, 6, 3, 3, value=1.0)}),
        ("bias", {"bias": field(4, value=1.0)}),
        ("modulation", {"modulation": field(2, 1, 9, 6, 5, value=1.0)}),
        ("support.displacement", {"support": deformable(2, 1, (6, 5))}),
        ("metric.omega", {"support": mc.TangentBall(randers(2, 2, 1, (6, 5)), mc.stencils.onion(3))}),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_check_finite_names_tensor_and_index(name, changes, bad):
    arguments = {"input": IMAGE, "support": mc.Grid(3), "weight": WEIGHT} | changes
    tensor = arguments[name] if name in arguments else arguments["support"].tensors()[name.rpartition(".")[2]]
    index = tuple(n - 1 for n in tensor.shape)
    original = tensor[index].item()
    with mc.check_finite():
        mc.support_conv(**arguments)
        tensor[index] = bad
        try:
            message = f"`{name}` must be finite, got {bad} at index {index} (1 such of {tensor.numel()} values)"
            with pytest.raises(ValueError, match=re.escape(message)):
                mc.support_conv(**arguments)
        finally:
            tensor[index] = original


def test_check_finite_names_the_first_of_several_indices():
    bad = torch.zeros(1, 6, 8, 7)
    bad[0, 3, 2, 1] = bad[0, 5, 0, 0] = math.nan
    with mc.check_finite(), pytest.raises(ValueError, match=r"index \(0, 3, 2, 1\) \(2 such of 336 values\)"):
        mc.support_conv(bad, mc.Grid(3), WEIGHT)


def test_check_finite_applies_to_its_block_only():
    bad = torch.full((1, 6, 8, 7), math.nan)
    assert mc.support_conv(bad, mc.Grid(3), WEIGHT).isnan().all()
    with pytest.raises(ValueError, match="`input` must be finite"), mc.check_finite():
        mc.support_conv(bad, mc.Grid(3), WEIGHT)
    assert mc.support_conv(bad, mc.Grid(3), WEIGHT).isnan().all()


def test_check_finite_checks_compiled_functions_that_run_eagerly():
    compiled = torch.compile(lambda x: mc.support_conv(x, mc.Grid(3), WEIGHT), backend="eager")
    bad = torch.full((1, 6, 8, 7), math.nan)
    with mc.check_finite():
        assert compiled(bad).isnan().all()
        with torch.compiler.set_stance("force_eager"), pytest.raises(ValueError, match="`input` must be finite"):
            compiled(bad)


@pytest.mark.parametrize("ball", [mc.TangentBall, mc.GeodesicBall])
@pytest.mark.parametrize("bad", [[1.0, 2.0, 1.0], [-1.0, 0.0, -1.0]], ids=["indefinite", "negative"])
def test_check_finite_names_pixels_of_metrics_that_are_not_positive(ball, bad):
    M = torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1).repeat(1, 1, 1, 6, 5)
    support = ball(mc.Riemannian(M), mc.stencils.onion(3))
    with mc.check_finite():
        mc.support_conv(IMAGE, support, WEIGHT)
    M[0, 0, :, 4, 2] = torch.tensor(bad)
    mc.support_conv(IMAGE, support, WEIGHT)
    message = rf"must be positive; it is not at index (0, 0, 4, 2) (1 such of 30 pixels): M = {bad}"
    with mc.check_finite(), pytest.raises(ValueError, match=re.escape(message)):
        mc.support_conv(IMAGE, support, WEIGHT)


def test_unsupported_backend_raises_with_reason_and_alternatives(monkeypatch):
    reason = "it needs a tensor on the moon"
    lunar = backend(run=lambda problem: pytest.fail("it is unsupported"), unsupported_reason=lambda problem: reason)
    monkeypatch.setattr(backends, "BACKENDS", {"lunar": lunar, "reference": reference})
    with pytest.raises(
        ValueError, match=rf"`backend` \(='lunar'\) does not support this: {reason}.*reference \(available\)"
    ):
        mc.support_conv(IMAGE, mc.Grid(3), WEIGHT, backend="lunar")
    with pytest.raises(ValueError, match=rf"`backend` \(='solar'\) .*lunar \({reason}\); reference \(available\)"):
        mc.support_conv(IMAGE, mc.Grid(3), WEIGHT, backend="solar")
    assert mc.support_conv(IMAGE, mc.Grid(3), WEIGHT).shape == (2, 4, 6, 5)


def test_auto_selects_the_first_backend_that_supports_the_problem(monkeypatch):
    first = backend(run=lambda problem: "first", unsupported_reason=lambda problem: None)
    monkeypatch.setattr(backends, "BACKENDS", {"first": first, "reference": reference})
    assert mc.support_conv(IMAGE, mc.Grid(3), WEIGHT) == "first"


@pytest.mark.parametrize("name", ["weight", "bias", "modulation", "support"])
def test_tensors_on_another_device_raise(name):
    where = dict.fromkeys(("weight", "bias", "modulation", "support"), "cpu") | {name: "meta"}
    x, weight = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3, device=where["weight"])
    support = mc.Shifted(torch.zeros(1, 1, 2, 5, 5, device=where["support"]), 3)
    bias, modulation = torch.randn(6, device=where["bias"]), torch.ones(1, 1, 9, 5, 5, device=where["modulation"])
    with pytest.raises(ValueError, match=rf"`{name}.* is on meta, `input` on cpu"):
        mc.support_conv(x, support, weight, bias, padding=1, modulation=modulation)


def test_fractional_groups_raise():
    with pytest.raises(ValueError, match=r"`groups` \(=2.0\) must be an int"):
        mc.support_conv(torch.randn(1, 4, 5, 5), mc.Grid(3), torch.randn(4, 2, 3, 3), groups=2.0)


def test_geodesic_ball_of_another_stride_raises_unless_constant():
    metric = mc.Riemannian(torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1).repeat(1, 1, 1, 4, 4))
    x, weight, stencil = torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 3, 3), mc.stencils.onion(3)
    with pytest.raises(ValueError, match=r"`stride` \(=\(2, 2\)\) must be that of the support, \(1, 1\)"):
        mc.support_conv(x, mc.GeodesicBall(metric, stencil), weight, stride=2, padding=1)
    mc.support_conv(x, mc.GeodesicBall(metric, stencil, stride=2), weight, stride=2, padding=1)
    mc.support_conv(x, mc.GeodesicBall(metric[..., :1, :1], stencil), weight, stride=2, padding=1)


def test_long_axes_fall_back_to_reference():
    x = torch.zeros(1).expand(1, 1, 2**23 + 1)
    problem = Problem(x, mc.Grid(1, dim=1), torch.zeros(1, 1, 1), None, (1,), (0,), 1, None, "zeros")
    assert backends.choose_backend(problem) is reference
    if cpu.missing_dependency() is None:
        assert "its positions reach 2²³ pixels along an axis" in cpu.unsupported_reason(problem)


def test_cpu_backend_counts_the_halo_of_large_images():
    pytest.importorskip("numba")
    x = torch.zeros(1).expand(1, 1, 5_000_000, 1, 143)  # a third of 2³¹ pixels, but more with the halo
    problem = Problem(x, mc.Grid(1, dim=3), torch.zeros(1, 1, 1, 1, 1), None, (1,) * 3, (0,) * 3, 1, None, "zeros")
    assert "fewer than 2³¹ pixels" in cpu.unsupported_reason(problem)


@pytest.mark.parametrize("ball", [mc.TangentBall, mc.GeodesicBall])
def test_stencils_that_require_grad_receive_gradients(ball):
    fixed = mc.stencils.onion(3)
    leaves = [fixed.directions.float().requires_grad_(), fixed.radii.float().requires_grad_()]
    metric = riemannian(2, spatial=(4, 5)).to(torch.float32)
    x, weight = torch.randn(1, 2, 4, 5), torch.randn(3, 2, 3, 3)
    gradients = {}
    for backend in ("auto", "reference"):
        support = ball(metric, mc.stencils.Stencil(*leaves, (3, 3)))
        y = mc.support_conv(x, support, weight, padding=1, backend=backend)
        gradients[backend] = torch.autograd.grad(y.square().sum(), leaves)
    for auto, expected in zip(*gradients.values(), strict=True):
        assert expected.abs().sum() > 0
        torch.testing.assert_close(auto, expected, rtol=1e-4, atol=1e-4)
