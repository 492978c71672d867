"""The backend of exported programs, run eagerly and compared with the reference in float64."""

import dataclasses

import pytest
import torch

import metricconv as mc
from layers import randomize_predictors
from metricconv import _compat
from metricconv.nn import MetricConv2d
from metricconv.ops import export
from metricconv.ops.backends import record_backends
from ops.cases import KINDS, Case, check_inference, random_case

MODES = ("zeros", "border", "reflect")


@pytest.fixture(autouse=True)
def _exporting(monkeypatch):
    monkeypatch.setattr(_compat, "exporting", lambda: True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_and_padding_modes(kind, mode):
    groups = {"channels": (12, 6), "groups": 3, "metric_groups": 1 if kind == "grid" else 2, "modulated": True}
    for case in (
        Case(kind=kind, mode=mode),
        Case(kind=kind, mode=mode, stride=(2, 1), dilation=(1, 2), padding=2, size=(9, 8), biased=False, **groups),
        Case(kind=kind, mode=mode, constant=True, modulated=True, whole=0.5),
        Case(kind=kind, mode=mode, size=(1, 6), kernel=(1, 3), padding=(0, 1)),
    ):
        check_inference(case, 1e-4, backend="export")


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed):
    case = random_case(seed, 8)
    if case.mode in MODES and len(case.kernel) == 2:
        check_inference(dataclasses.replace(case, dtype=torch.float32), 1e-4, backend="export")


@pytest.mark.parametrize("radius", [1, 2.5])
def test_metric_of_a_layer_is_that_of_its_parametrization(radius):
    spectral7 = mc.metrics.parametrizations.Spectral7()
    raw = 3 * torch.randn(2, 3, 7, 5, 4, dtype=torch.float64)
    raw[0, 0, :2] = 0  # no direction: a round ball
    raw[0, 1] *= 1e8  # beyond the clamp
    start, gain = spectral7.identity(), torch.tensor(0.7, dtype=torch.float64)
    found, expected = (f(spectral7, raw, start, gain, radius) for f in (export.parametrize, mc.ops.parametrize))
    plain = spectral7(raw, start, gain, radius)
    for metric in (found, expected):
        for name, tensor in plain.tensors().items():
            torch.testing.assert_close(metric.tensors()[name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"metric_groups": 2, "modulation": True}, {"parametrization": "cholesky"}])
def test_layers_equal_those_of_other_backends(options):
    layer = randomize_predictors(MetricConv2d(4, 6, 3, padding=1, **options)).eval().double()
    x = torch.randn(2, 4, 7, 9, dtype=torch.float64)
    with torch.no_grad(), record_backends() as names:
        found = layer(x)
        layer.backend = "reference"
        torch.testing.assert_close(found, layer(x))
    assert names == {"export", "reference"}


def test_other_problems_are_left_to_other_backends():
    x, weight = torch.rand(1, 2, 6, 6), torch.rand(2, 2, 3, 3)
    with pytest.raises(ValueError, match="it does not support `padding_mode` 'circular'"):
        mc.support_conv(x, mc.Grid((3, 3)), weight, padding_mode="circular", backend="export")
    with pytest.raises(ValueError, match="it supports 2 spatial axes, `support` has 1"):
        mc.support_conv(x[..., 0], mc.Grid((3,)), weight[..., 0], backend="export")


def test_far_samples_are_padding():
    x, weight = torch.rand(1, 1, 4, 5), torch.ones(1, 1, 1, 1)
    support = mc.Deformable(torch.full((1, 1, 1, 2, 4, 5), 1e30), (1, 1))
    for mode, expected in (("zeros", 0.0), ("border", float(x[0, 0, -1, -1]))):
        y = mc.support_conv(x, support, weight, padding_mode=mode, backend="export")
        torch.testing.assert_close(y, torch.full_like(y, expected))


def test_is_not_used_by_programs_that_are_not_exported(monkeypatch):
    monkeypatch.setattr(_compat, "exporting", lambda: False)
    with pytest.raises(ValueError, match="it computes exported programs only"):
        mc.support_conv(torch.rand(1, 1, 4, 4), mc.Grid((3, 3)), torch.rand(1, 1, 3, 3), backend="export")
