"""CUDA graphs of training steps: same results, and an error where a graph would read the wrong memory."""

import copy
import pickle

import pytest
import torch
from torch import nn

from layers import randomize_predictors
from metricconv.nn import DeformableConv2d, MetricConv2d, capture
from metricconv.nn.graphs import Replay


def network():
    return randomize_predictors(
        nn.Sequential(MetricConv2d(3, 4, 3, padding=1), nn.ReLU(), DeformableConv2d(4, 2, 3, padding=1))
    )


def captured(x):
    """Return a network with a stand-in for CUDA graphs, which doubles the input."""
    net = network()
    plain = net.forward
    net.forward = Replay(net, lambda x: 2 * x if net.training else plain(x), (x,))
    return net


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_captured_network_trains_the_same(half):
    x, losses = torch.randn(8, 3, 8, 8, device="cuda"), []
    for graphs in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(network(), nn.BatchNorm2d(2), nn.BatchNorm2d(2).eval()).cuda()
        before = {name: value.clone() for name, value in net.state_dict().items()}
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            if graphs:
                capture(net, x)
                assert net.training and not net[2].training
                assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
                net.to(x.device)  # as trainers do before they start
                torch.cuda.empty_cache()
            for _ in range(5):
                loss = (net(x).float() - 1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    torch.testing.assert_close(losses[:5], losses[5:], rtol=0.02, atol=0.02)


@pytest.mark.gpu
def test_moved_network_can_be_captured_again():
    net, x = network().cuda(), torch.randn(2, 3, 8, 8, device="cuda")
    capture(net, x)
    net.cpu().cuda()
    with pytest.raises(RuntimeError, match="call `capture` again"):
        net(x)
    capture(net, x)
    torch.testing.assert_close(net(x), net.eval()(x))


def test_capture_on_a_cpu_raises():
    with pytest.raises(ValueError, match="needs a model and inputs on a GPU"):
        capture(network(), torch.randn(1, 3, 8, 8))


def test_graphs_are_replayed_only_in_training():
    x = torch.randn(2, 3, 8, 8)
    net = captured(x)
    torch.testing.assert_close(net(x), 2 * x)
    assert net.eval()(x).shape == (2, 2, 8, 8)


def test_moved_weights_raise():
    x = torch.randn(2, 3, 8, 8)
    net = captured(x)
    net.to(x.device)  # no move
    net(x)
    net[0].weight.data = net[0].weight.data.clone()
    with pytest.raises(RuntimeError, match="moved after it was captured: call `capture` again"):
        net(x)
    net.eval()(x)


@pytest.mark.parametrize("other", [torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8).double()])
def test_inputs_of_another_shape_or_dtype_raise(other):
    net = captured(torch.randn(2, 3, 8, 8))
    with pytest.raises(ValueError, match=r"`inputs` must be \[\(\(2, 3, 8, 8\), torch.float32\)\], as at the capture"):
        net(other)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copy_has_its_own_weights_and_no_graphs(duplicate):
    x = torch.randn(2, 3, 8, 8)
    net = captured(x)
    twin = duplicate(net)
    with torch.no_grad():
        twin[2].bias.fill_(7.0)
    before = twin(x)
    assert before.shape == (2, 2, 8, 8)  # its own forward pass, in training too
    torch.testing.assert_close(before - 7.0, net.eval()(x) - net[2].bias.view(-1, 1, 1))
    torch.testing.assert_close(duplicate(twin)(x), before)


@pytest.mark.parametrize("ball", ["tangent", "geodesic"])
def test_move_to_the_same_device_keeps_the_constants(ball):
    layer = MetricConv2d(3, 4, 3, ball=ball)
    stencil, rays, identity = layer.stencil, layer.rays, layer.identity
    layer.to("cpu").float()
    assert layer.stencil is stencil and layer.rays is rays and layer.identity is identity
