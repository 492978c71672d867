"""Filters reject sizes, scales and steps out of range at once; deprecated names and torch's words are accepted."""

from functools import partial

import pytest
import torch

from metricconv.filters import (
    box_filter,
    dilated_filter,
    geodesic_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from metricconv.metrics import edge_metric, gradient_metric, structure_metric

HUGE = 2**70 + 1
TOO_LARGE = {
    "size": [lambda x: box_filter(x, HUGE), lambda x: box_filter(x, 1025), lambda x: interpolated_filter(x, 3, 1e300)],
    "dilation": [lambda x: dilated_filter(x, 3, HUGE), lambda x: dilated_filter(x, 3, 10**400)],
    "samples": [
        lambda x: dilated_filter(x, HUGE),
        lambda x: interpolated_filter(x, HUGE),
        lambda x: random_deformable_filter(x, HUGE),
        lambda x: tangent_filter(x, HUGE),
        lambda x: geodesic_filter(x, HUGE, stencil="onion"),
    ],
    "reach": [lambda x: random_deformable_filter(x, 3, 1e300), lambda x: random_deformable_filter(x, 3, 10**400)],
    "steps": [lambda x: geodesic_filter(x, 3, steps=HUGE), lambda x: geodesic_filter(x, 3, steps=1001)],
    "smooth": [lambda x: geodesic_filter(x, 3, smooth=HUGE)],
}


@pytest.mark.parametrize(("name", "call"), [(name, call) for name, calls in TOO_LARGE.items() for call in calls])
def test_arguments_out_of_range_raise_at_once(name, call):
    with pytest.raises(ValueError, match=rf"`{name}` \(=.*\) must be at most \d+$"):
        call(torch.rand(5, 5))


@pytest.mark.parametrize("scale", [1e-320, 0.009, 1e5, 1e300, 2**70, 10**400])
@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (gradient_metric, "scale"),
        (edge_metric, "scale"),
        (structure_metric, "noise_scale"),
        (structure_metric, "integration_scale"),
    ],
)
def test_scales_out_of_range_raise_at_once(metric, name, scale):
    with pytest.raises(ValueError, match=rf"`{name}` \(=.*\) must be between 0.01 and 1000 pixels"):
        tangent_filter(torch.rand(9, 9), 3, partial(metric, **{name: scale}))


@pytest.mark.parametrize("scale", [0.01, 1000])
def test_extreme_scales_give_finite_results(scale):
    assert tangent_filter(torch.rand(9, 9), 3, partial(edge_metric, scale=scale)).isfinite().all()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: box_filter(x, 103),
        lambda x: dilated_filter(x, 103),
        lambda x: interpolated_filter(x, 102),
        lambda x: random_deformable_filter(x, 103),
        lambda x: tangent_filter(x, 102),
        lambda x: geodesic_filter(x, 103, stencil="onion"),
    ],
)
def test_too_many_samples_of_a_volume_raise_at_once(call):
    with pytest.raises(ValueError, match=r"gives 10[23]\^3 samples per pixel, expected at most 1048576"):
        call(torch.rand(5, 5, 5))


def test_largest_lengths_give_finite_results():
    image = torch.rand(5, 5, dtype=torch.float64)
    for mode in ("reflect", "border", "circular", "zeros"):
        for result in (
            dilated_filter(image, 3, 2**20, padding_mode=mode),
            interpolated_filter(image, 3, 2.0**20, padding_mode=mode),
            random_deformable_filter(image, 3, 2.0**20, padding_mode=mode),
        ):
            assert result.isfinite().all() and result.max() <= image.max()


@pytest.mark.parametrize(
    "function", [box_filter, dilated_filter, interpolated_filter, random_deformable_filter, tangent_filter]
)
def test_replicate_equals_border(function):
    image = torch.rand(9, 8)
    assert torch.equal(function(image, 3, padding_mode="replicate"), function(image, 3, padding_mode="border"))


def test_replicate_equals_border_for_geodesic_balls():
    image = torch.rand(9, 8)
    replicate, border = (geodesic_filter(image, 3, padding_mode=mode) for mode in ("replicate", "border"))
    assert torch.equal(replicate, border)


@pytest.mark.parametrize("function", [tangent_filter, geodesic_filter])
def test_centre_is_accepted_with_a_warning(function):
    image = torch.rand(9, 8)
    with pytest.warns(DeprecationWarning, match="`centre` of .*_filter is deprecated: use `center`"):
        result = function(image, 3, centre=True)
    assert torch.equal(result, function(image, 3, center=True))
