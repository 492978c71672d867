"""Filters as modules: the functions, applied to each image of a batch."""

import pytest
import torch

import metricconv as mc
from metricconv import filters
from metricconv.filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)

MODULES = {
    filters.BoxFilter(5, padding_mode="zeros"): lambda x: box_filter(x, 5, channel_axis=0, padding_mode="zeros"),
    filters.DilatedFilter(3, 2): lambda x: dilated_filter(x, 3, 2, channel_axis=0),
    filters.InterpolatedFilter(4, 2.5): lambda x: interpolated_filter(x, 4, 2.5, channel_axis=0),
    filters.RandomDeformableFilter(3, 1.0, 7): lambda x: random_deformable_filter(x, 3, 1.0, 7, channel_axis=0),
    filters.TangentFilter(4, "edge", center=True): lambda x: tangent_filter(x, 4, "edge", center=True, channel_axis=0),
    filters.GeodesicFilter(3, stencil="onion", steps=2, smooth=0): lambda x: geodesic_filter(
        x, 3, stencil="onion", steps=2, smooth=0, channel_axis=0
    ),
}


@pytest.mark.parametrize(("module", "function"), MODULES.items(), ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("shape", [(2, 3, 8, 7), (1, 1, 4, 5, 6)])
def test_modules_filter_each_image_as_the_functions_do(module, function, shape):
    images = torch.rand(shape)
    result = torch.nn.Sequential(module)(images)
    assert torch.equal(result, torch.stack([function(image) for image in images]))


def test_module_prints_its_arguments_and_accepts_modules_as_metric():
    assert repr(filters.BoxFilter(5)) == "BoxFilter(size=5, padding_mode='reflect')"

    class LearnedMetric(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.iota = torch.nn.Parameter(torch.tensor(0.2))

        def forward(self, x):
            return mc.Riemannian(self.iota * torch.tensor([1.0, 0.0, 1.0]).view(1, 1, 3, 1, 1))

    module = filters.TangentFilter(5, LearnedMetric())
    module(torch.rand(2, 1, 8, 8)).square().sum().backward()
    assert [name for name, _ in module.named_parameters()] == ["metric.iota"]
    assert next(module.parameters()).grad.isfinite()


@pytest.mark.parametrize("images", [torch.rand(4, 4), torch.rand(3, 4, 4), [1.0]])
def test_modules_require_a_batch(images):
    with pytest.raises(ValueError, match=r"`images` must be a tensor \(B, C, H, W\)"):
        filters.BoxFilter()(images)
