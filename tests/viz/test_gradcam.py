"""GradCAM, against captum's."""

import pytest
import torch
from torch import nn

import metricconv as mc
from metricconv.viz import GradCAM, plot_gradcam
from rendering import pixels


def classifier():
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), mc.nn.MetricConv2d(8, 8, 3, padding=1, stride=2))
    return nn.Sequential(body, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)).eval()


@pytest.mark.parametrize("layer", ["0", "0.0", "1"])
def test_maps_equal_captum(layer):
    captum = pytest.importorskip("captum.attr")
    net, images = classifier(), torch.randn(3, 3, 12, 12)
    with GradCAM(net, layer) as cam:
        ours = cam(images, [1, 4, 2])
    theirs = captum.LayerGradCam(net, net.get_submodule(layer)).attribute(
        images, torch.tensor([1, 4, 2]), relu_attributions=True
    )
    assert torch.allclose(ours, theirs[:, 0], atol=1e-6) and ours.max() > 0


def test_default_target_is_highest_score():
    net, images = classifier(), torch.randn(3, 3, 12, 12)
    with GradCAM(net, "0") as cam:
        assert torch.equal(cam(images), cam(images, net(images).argmax(1)))


def test_hooks_are_removed():
    net = classifier()
    with pytest.raises(ZeroDivisionError), GradCAM(net, "0") as cam:
        cam(torch.randn(1, 3, 12, 12), 0)
        raise ZeroDivisionError
    assert not any(m._forward_hooks or m._backward_hooks for m in net.modules())
    assert all(p.grad is None for p in net.parameters())
    with pytest.raises(RuntimeError, match="inside a `with`"):
        cam(torch.randn(1, 3, 12, 12), 0)


def test_nested_use_raises():
    net = classifier()
    with GradCAM(net, "0") as cam:
        with pytest.raises(RuntimeError, match="already"), cam:
            pass
        assert cam(torch.randn(1, 3, 12, 12), 0).shape == (1, 6, 6)
    assert not any(m._forward_hooks for m in net.modules())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_frozen_model_has_maps(mode):
    net, images = classifier().requires_grad_(False), torch.randn(1, 3, 12, 12)
    with GradCAM(net, "0") as cam:
        expected = cam(images, 0)
        with mode():
            assert torch.equal(cam(images.clone(), 0), expected)


@pytest.mark.parametrize("target", [99, -1, [0, 1, 2], 1.5, True])
def test_invalid_target_raises(target):
    with (
        GradCAM(classifier(), "0") as cam,
        pytest.raises(ValueError, match=r"`target` \(=.*\) must be a class index below"),
    ):
        cam(torch.randn(2, 3, 12, 12), target)


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (torch.zeros(0, 3, 12, 12), {}, r"`images` must be \(B, C, H, W\) and not empty"),
        (torch.zeros(2, 3, 12, 12, dtype=torch.long), {}, "`images` must hold floating-point numbers"),
        (torch.zeros(2, 3, 12, 12), {"labels": ["one"]}, "`labels` must have 2 entries, one per image, got 1"),
        (torch.zeros(2, 3, 12, 12), {"backgrounds": []}, "`backgrounds` must have 2 entries, one per image, got 0"),
    ],
)
def test_invalid_arguments_raise(images, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        plot_gradcam(images, {"net": (classifier(), "0")}, **options)


def test_layer_of_wrong_type_raises():
    with pytest.raises(TypeError, match="`layer` must be a Module, got int"):
        GradCAM(classifier(), 3)


def test_unknown_layer_raises():
    with pytest.raises(ValueError, match="`layer` \\(='body'\\) is not the name"):
        GradCAM(classifier(), "body")


def test_rows_are_images_and_columns_methods():
    methods = {"one": (classifier(), "0"), "two": (classifier(), "0")}
    axes = plot_gradcam(torch.rand(2, 3, 12, 12), methods, [0, 1], labels=["a", "b"])
    assert axes.shape == (2, 3)
    assert [a.get_title() for a in axes[0]] == ["image", "one", "two"]
    assert [len(a.images) for a in axes[0]] == [1, 2, 2]
    assert pixels(axes[0, 0].figure).std() > 0.05


def test_later_in_place_operations_do_not_change_map():
    def net(inplace):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(inplace), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        )

    image, maps = torch.randn(1, 1, 6, 6), []
    for inplace in (False, True):
        with GradCAM(net(inplace), "0") as cam:
            maps.append(cam(image, 0))
    assert maps[0].any() and torch.equal(*maps)


def test_target_given_by_name_raises():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    with GradCAM(net, "0") as cam, pytest.raises(TypeError, match=r"`target` \(='cat'\) must be a class index"):
        cam(torch.rand(1, 1, 8, 8), target="cat")


def test_pictures_is_accepted_with_a_warning():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    with pytest.warns(DeprecationWarning, match="`pictures` of plot_gradcam is deprecated: use `backgrounds`"):
        panels = plot_gradcam(torch.rand(1, 1, 8, 8), {"a": (net, "0")}, pictures=[torch.zeros(8, 8)])
    assert panels.shape == (1, 2)
