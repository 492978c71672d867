"""Parameter groups, regularization, warm-up and recording of supports."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import metricconv as mc
from layers import randomize_predictors
from metricconv.nn import (
    DeformableConv2d,
    DilatedConv2d,
    MetricConv2d,
    ShiftedConv2d,
    geometry_l1,
    param_groups,
    record_supports,
    reset_geometry,
    set_geometry_gain,
)


def network() -> nn.Module:
    return randomize_predictors(
        nn.Sequential(MetricConv2d(3, 4, 3, padding=1), nn.ReLU(), DeformableConv2d(4, 2, 3, padding=1))
    )


def test_param_groups_separate_predictors_and_contain_every_parameter_once():
    net = network()
    weights, geometry = param_groups(net, lr=0.2, metric_lr_mult=0.5, weight_decay=1e-4)
    assert geometry["lr"] == 0.1 and weights["lr"] == 0.2
    assert {id(p) for p in geometry["params"]} == {id(p) for m in (net[0], net[2]) for p in m.predictor.parameters()}
    ids = [id(p) for group in (weights, geometry) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in net.parameters())
    predictor, weight = net[0].predictor.weight.clone(), net[0].weight.clone()
    net(torch.randn(1, 3, 8, 8)).sum().backward()
    torch.optim.SGD(param_groups(net, lr=0.1, metric_lr_mult=0.0), lr=1.0).step()
    rates = [float(group["lr"]) for group in param_groups(net, torch.tensor(0.5), 0.5)]
    assert rates == [0.5, 0.25]  # optimizers accept tensors
    assert torch.equal(net[0].predictor.weight, predictor) and not torch.equal(net[0].weight, weight)


def test_param_groups_leave_out_weight_decay_that_is_not_given():
    net = network()
    assert all("weight_decay" not in group for group in param_groups(net, lr=0.1))
    optimizer = torch.optim.AdamW(param_groups(net, lr=0.1, metric_weight_decay=0.0), weight_decay=0.05)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]


def test_timm_optimizer_applies_its_weight_decay_to_param_groups():
    optim = pytest.importorskip("timm.optim")
    optimizer = optim.create_optimizer_v2(param_groups(network(), lr=0.1), opt="adamw", weight_decay=0.05)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.05]
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01])


def test_geometry_l1_is_the_mean_of_the_means_and_zero_at_the_identity():
    net = network()
    means = [p.abs().mean() for m in (net[0], net[2]) for p in m.predictor.parameters()]
    torch.testing.assert_close(geometry_l1(net), sum(means) / 4)
    assert geometry_l1(nn.Sequential(MetricConv2d(3, 4, 3))) == 0
    with pytest.raises(ValueError, match="`model` has no adaptive"):
        geometry_l1(nn.Conv2d(3, 4, 3))


def test_geometry_gain_zero_is_an_ordinary_convolution():
    net = network()
    x = torch.randn(1, 3, 8, 8)
    adapted = net(x)
    set_geometry_gain(net, 0.0)
    plain = nn.functional.conv2d(x, net[0].weight, net[0].bias, padding=1).relu()
    torch.testing.assert_close(
        net(x), nn.functional.conv2d(plain, net[2].weight, net[2].bias, padding=1), atol=1e-5, rtol=1e-4
    )
    set_geometry_gain(net, 1.0)
    torch.testing.assert_close(net(x), adapted)


def test_checkpoints_of_version_0_1_load():
    layer, other = MetricConv2d(3, 4, 3), MetricConv2d(3, 4, 3)
    nn.init.normal_(layer.predictor.weight)
    other.load_state_dict({key.replace("predictor.", "head."): value for key, value in layer.state_dict().items()})
    assert torch.equal(other.predictor.weight, layer.predictor.weight)


def test_geometry_gain_scales_the_logits_of_the_modulation():
    layer, x = randomize_predictors(MetricConv2d(3, 4, 3, padding=1, modulation=True)), torch.randn(1, 3, 8, 8)
    logits = (layer.predict_support(x)[1] / 2).logit()
    set_geometry_gain(layer, 0.25)
    torch.testing.assert_close(layer.predict_support(x)[1], 2 * (0.25 * logits).sigmoid())
    set_geometry_gain(layer, 0.0)
    plain = nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(layer(x), plain, atol=1e-5, rtol=1e-4)


def test_reset_geometry_undoes_initialization_of_all_parameters_and_keeps_weights():
    net, x = network(), torch.randn(1, 3, 8, 8)
    for parameter in net.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    set_geometry_gain(net, 0.5)
    weights = [layer.weight.clone() for layer in (net[0], net[2])]
    reset_geometry(net)
    assert all(torch.equal(layer.weight, weight) for layer, weight in zip((net[0], net[2]), weights, strict=True))
    assert geometry_l1(net) == 0 and net[0].geometry_gain == net[2].geometry_gain == 1
    assert all(parameter.requires_grad for parameter in net.parameters())
    plain = nn.functional.conv2d(x, weights[0], net[0].bias, padding=1).relu()
    expected = nn.functional.conv2d(plain, weights[1], net[2].bias, padding=1)
    torch.testing.assert_close(net(x), expected, atol=1e-5, rtol=1e-4)
    reset_geometry(nn.Sequential(MetricConv2d(3, 4, 3, metric=mc.Riemannian.isotropic(1.0))))  # no predictor


def test_recorded_support_has_the_stride_of_its_layer():
    layers = [kind(3, 4, 3, stride=(2, 1)) for kind in (MetricConv2d, DeformableConv2d, ShiftedConv2d, DilatedConv2d)]
    layers.append(MetricConv2d(3, 4, 3, stride=(2, 1), modulation=True))
    layers.append(MetricConv2d(3, 4, 3, stride=(2, 1), metric=mc.Riemannian.isotropic(1.0)))
    x = torch.randn(1, 3, 8, 8)
    for layer in layers:
        with record_supports(layer) as supports:
            y = layer(x)
        support, modulation = layer.predict_support(x)
        assert supports[""].stride == support.stride == (2, 1)
        options = {"stride": layer.stride, "modulation": modulation}
        torch.testing.assert_close(mc.support_conv(x, support, layer.weight, layer.bias, **options), y)
    assert MetricConv2d(3, 4, 3).predict_support(x)[0].stride == (1, 1)


def test_recording_covers_every_layer_and_ends_with_the_context():
    net = network()
    x = torch.randn(1, 3, 8, 8)
    with record_supports(net) as supports:
        net(x)
    assert set(supports) == {"0", "2"} and supports["0"].metric.spatial == (8, 8)
    torch.testing.assert_close(supports["0"].offsets(), net[0].predict_support(x)[0].offsets())
    first = supports["0"]
    net(torch.randn(1, 3, 8, 8))
    assert supports["0"] is first


def test_recording_stops_when_the_network_raises():
    net = network()
    with pytest.raises(ValueError), record_supports(net) as supports:
        net(torch.randn(1, 5, 8, 8))
    net(torch.randn(1, 3, 8, 8))
    assert not supports


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: param_groups(net, float("nan")), r"`lr` \(=nan\) must be finite and at least 0"),
        (lambda net: param_groups(net, torch.ones(2)), r"`lr` \(=tensor.* must be finite and at least 0"),
        (lambda net: param_groups(net, 0.1, metric_lr_mult=-1.0), r"`metric_lr_mult` \(=-1.0\)"),
        (lambda net: param_groups(net, 0.1, weight_decay=-1.0), r"`weight_decay` \(=-1.0\)"),
        (lambda net: param_groups(net, 0.1, metric_weight_decay="a"), r"`metric_weight_decay` \(='a'\)"),
        (lambda net: set_geometry_gain(net, float("inf")), r"`gain` \(=inf\) must be finite and at least 0"),
        (lambda net: geometry_l1("net"), "`model` must be a Module, got str"),
    ],
)
def test_bad_arguments_raise_with_name_and_value(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(network())


def test_recordings_can_be_nested_and_do_not_apply_to_copies():
    net, x = network(), torch.randn(1, 3, 8, 8)
    with record_supports(net) as outer:
        with record_supports(net) as inner:
            net(x)
        assert outer["0"] is inner["0"]
        twin = copy.deepcopy(net)
        last = outer["0"]
        twin(x)
        assert outer["0"] is last
        net(x)
    assert outer["0"] is not last and inner["0"] is last


def test_threads_record_the_same_network_independently():
    net = network()
    sizes = [5, 7, 9, 11, 13, 15] * 4
    together = threading.Barrier(3)

    def recorded(size: int) -> tuple[int, ...]:
        with record_supports(net) as supports:
            together.wait(60)
            net(torch.randn(1, 3, size, size))
            together.wait(60)  # every thread records while the others do
        return tuple(supports["2"].spatial)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(recorded, sizes)) == [(size, size) for size in sizes]


def test_compiled_networks_are_recorded():
    net, x = network(), torch.randn(1, 3, 8, 8)
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        compiled(x)
        with record_supports(net) as supports:
            compiled(x)
    assert set(supports) == {"0", "2"}
