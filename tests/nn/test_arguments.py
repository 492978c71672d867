"""Arguments of the adaptive layers: signature, options, printed form, errors."""

import inspect
import math
import re
import typing
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.nn import (
    DeformableConv2d,
    DilatedConv2d,
    MetricConv,
    MetricConv1d,
    MetricConv2d,
    MetricConv3d,
    ShiftedConv2d,
)

LAYERS = [MetricConv2d, DeformableConv2d, ShiftedConv2d, DilatedConv2d]


def test_old_spelling_of_parametrization_is_accepted_with_a_warning():
    with pytest.warns(DeprecationWarning, match="`parametrisation` of MetricConv is deprecated: use `parametrization`"):
        layer = MetricConv2d(3, 4, 3, parametrisation="cholesky")
    assert isinstance(layer.parametrization, mc.metrics.Cholesky)
    with pytest.warns(DeprecationWarning, match="`parametrisation` of .*from_conv"):
        MetricConv2d.from_conv(nn.Conv2d(3, 4, 3), parametrisation="cholesky")
    with pytest.warns(DeprecationWarning, match="`parametrisation` of convert"):
        mc.convert(nn.Conv2d(3, 4, 3), parametrisation="cholesky")
    with pytest.raises(TypeError, match="both `parametrization` and `parametrisation`"):
        MetricConv2d(3, 4, 3, parametrisation="cholesky", parametrization="cholesky")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 5, "groups": 2}, "`in_channels` (=5) must be divisible by `groups` (=2)"),
        ({"metric_groups": 3}, "`in_channels` (=4) must be divisible by `metric_groups` (=3)"),
        ({"kernel_size": 4}, "must be odd"),
        ({"kernel_size": 4, "stencil": "onion"}, "`kernel_size` (=4) must be odd for an onion stencil"),
        ({"kernel_size": 1, "stencil": "polar"}, "`kernel_size` (=1) must be at least 2"),
        ({"padding_mode": "mirror"}, "`padding_mode` (='mirror')"),
        ({"parametrization": "qr"}, "`parametrization` (='qr')"),
        ({"stencil": "hexagon"}, "`stencil` (='hexagon')"),
        ({"stencil": mc.stencils.onion(5)}, "must agree"),
        ({"padding": "full"}, "`padding` (='full')"),
        ({"radius": -1.0}, "`radius` (=-1.0) must be positive"),
        ({"eps_omega": 0.0}, "`eps_omega` (=0.0)"),
        ({"metric": mc.Riemannian.isotropic(1.0), "modulation": True}, "`modulation`"),
        ({"radius": math.nan}, "`radius` (=nan) must be positive and finite"),
        ({"metric": mc.Riemannian.isotropic(1.0), "eps_omega": 0.5}, "`eps_omega` (=0.5)"),
        ({"metric": "edges"}, "`metric` (='edges') must be one of 'gradient', 'edge', 'structure'"),
        ({"metric": 3}, "`metric` must be a Metric, a function of the input or a name, got int"),
        ({"in_channels": 0}, "`in_channels` (=0) must be at least 1"),
        ({"out_channels": -1}, "`out_channels` (=-1) must be at least 1"),
        ({"metric_groups": 1.0}, "`metric_groups` (=1.0) must be an int"),
        ({"backend": "gpu"}, "`backend` (='gpu') must be one of 'auto'"),
        ({"dtype": torch.int32}, "`dtype` (=torch.int32)"),
    ],
)
def test_bad_arguments_raise_with_name_and_value(options, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        MetricConv2d(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, **options})
    assert message in str(caught.value)


def test_bad_inputs_raise():
    layer = MetricConv2d(4, 6, 3)
    with pytest.raises(ValueError, match=r"`input` must be \(B, 4, \*spatial\)"):
        layer(torch.randn(1, 5, 8, 8))
    with pytest.raises(TypeError, match=r"`input` must hold floating-point numbers, got dtype torch.int64"):
        layer(torch.zeros(1, 4, 8, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"`input` must be a torch.Tensor, got list"):
        layer([1.0])
    with pytest.raises(TypeError, match="unexpected keyword"):
        MetricConv2d(4, 6, 3, paddingmode="zeros")
    with pytest.raises(TypeError, match=r"`conv` must be an nn.Conv2d"):
        MetricConv2d.from_conv2d(nn.Conv1d(4, 4, 3))
    with pytest.raises(ValueError, match="`learn_weight`"):
        MetricConv2d.from_conv2d(nn.Conv2d(4, 4, 3), learn_weight=False)


@pytest.mark.parametrize("layer", [*LAYERS, MetricConv1d, MetricConv3d])
def test_signature_starts_as_that_of_conv2d_and_is_typed(layer):
    parameters = inspect.signature(layer).parameters
    assert list(parameters)[:9] == list(inspect.signature(nn.Conv2d).parameters)[:9]
    assert {"metric_groups", "learn_weight", "modulation", "backend", "device", "dtype"} < set(parameters)
    assert ("parametrization" in parameters) == issubclass(layer, MetricConv)
    for name, parameter in list(parameters.items())[9:]:
        assert parameter.kind == parameter.KEYWORD_ONLY, name
    for name, parameter in parameters.items():
        assert parameter.annotation not in (parameter.empty, Any), name
        assert (parameter.default is parameter.empty) == (name in ("in_channels", "out_channels", "kernel_size")), name


@pytest.mark.parametrize("layer", [MetricConv2d, DeformableConv2d])
def test_from_conv_accepts_the_options_of_the_constructor(layer):
    fixed = ("in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups", "bias", "device", "dtype")
    parameters = [p for p in inspect.signature(layer).parameters.values() if p.name not in fixed]
    options = inspect.signature(layer.from_conv).parameters["geometry"].annotation.__args__[0]
    expected = {p.name: p.annotation for p in parameters}
    assert typing.get_type_hints(options) == expected


def test_every_argument_is_documented():
    for name in inspect.signature(MetricConv2d).parameters:
        documented = inspect.cleandoc(MetricConv.__doc__)
        assert re.search(rf"^    (\w+, )*{name}(, \w+)*: ", documented, re.MULTILINE), name


@pytest.mark.parametrize("name", ["gradient", "edge", "structure"])
def test_metric_by_name_is_that_of_the_function(name):
    x = torch.rand(1, 3, 9, 8)
    named = MetricConv2d(3, 4, 3, padding=1, metric=name)
    given = MetricConv2d(3, 4, 3, padding=1, metric=getattr(mc.metrics, f"{name}_metric"))
    given.load_state_dict(named.state_dict())
    assert repr(named) == repr(given) and torch.equal(named(x), given(x))


def test_repr_shows_only_options_that_differ_from_the_defaults():
    text = repr(MetricConv2d(4, 6, 3, dilation=2, metric_groups=2, eps_omega=0.3))
    assert "dilation=(2, 2)" in text and "metric_groups=2" in text and "0.3" in text and "groups=1" not in text


def test_repr_with_weight_norm_does_not_show_learn_weight():
    layer = nn.utils.parametrizations.weight_norm(MetricConv2d(4, 6, 3))
    assert "learn_weight" not in repr(layer)
    assert "learn_weight=False" in repr(MetricConv2d(4, 6, 3, learn_weight=False))


def test_repr_shows_the_stencil_and_a_given_metric():
    assert "stencil" not in repr(MetricConv2d(4, 6, 3))
    assert "stencil='polar'" in repr(MetricConv2d(4, 6, 3, stencil="polar"))
    assert "stencil='given'" in repr(MetricConv2d(4, 6, 3, stencil=mc.stencils.onion(3)))
    given = repr(MetricConv2d(4, 6, 3, metric=mc.metrics.gradient_metric))
    assert "metric=gradient_metric" in given and "radius" not in given
    assert "metric=Riemannian" in repr(MetricConv2d(4, 6, 3, metric=mc.Riemannian.isotropic(1.0)))


def test_numpy_scalars_are_accepted():
    three = np.int64(3)
    assert MetricConv2d(np.int64(4), 6, three, padding=np.int64(1), radius=np.float32(2)).kernel_size == (3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 5.0}, r"`radius` \(=5.0\) has no effect when `metric` is given"),
        ({"metric_groups": 2}, r"`metric_groups` \(=2\) has no effect when"),
        ({"parametrization": "nonsense"}, r"`parametrization` \(=nonsense\) has no effect when"),
    ],
)
def test_options_of_the_predictor_raise_when_a_metric_is_given(options, message):
    with pytest.raises(ValueError, match=message):
        MetricConv2d(4, 6, 3, metric=mc.Riemannian.isotropic(1.0), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": 2.0}, r"`groups` \(=2.0\) must be an int$"),
        ({"dtype": "float32"}, "`dtype` \\(='float32'\\) must be a torch.dtype"),
        ({"parametrization": mc.metrics.Cholesky(dim=3)}, "must have 2 spatial axes"),
    ],
)
def test_arguments_of_the_wrong_type_or_dimension_raise(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        MetricConv2d(4, 6, 3, **options)


def test_from_conv_of_a_parametrized_weight_raises():
    with pytest.raises(TypeError, match="`conv` computes its weight"):
        MetricConv2d.from_conv2d(nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modulation": "yes"}, TypeError, r"`modulation` \(='yes'\) must be True or False"),
        ({"learn_weight": 0}, TypeError, r"`learn_weight` \(=0\) must be True or False"),
        ({"padding_mode": "mirror"}, ValueError, r"`padding_mode` \(='mirror'\) must be one of .*'replicate'"),
    ],
)
def test_ambiguous_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        MetricConv2d(3, 4, 3, **options)


def test_base_class_cannot_be_instantiated():
    with pytest.raises(
        TypeError, match="MetricConv does not define `dim`, the number of spatial axes: use MetricConv2d"
    ):
        mc.nn.MetricConv(3, 4, 3)


def test_from_conv_rejects_arguments_of_the_convolution_except_padding_mode():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    with pytest.raises(TypeError, match=r"`kernel_size` \(=5\) is taken from `conv`"):
        MetricConv2d.from_conv2d(conv, kernel_size=5)
    with pytest.raises(ValueError, match="`conv` cannot be replaced: it is lazy"):
        MetricConv2d.from_conv2d(nn.LazyConv2d(4, 3))
    layer, x = MetricConv2d.from_conv2d(conv, padding_mode="border"), torch.randn(1, 3, 6, 6)
    assert layer.padding_mode == "border"
    torch.testing.assert_close(layer(x)[..., 1:-1, 1:-1], conv(x)[..., 1:-1, 1:-1])
