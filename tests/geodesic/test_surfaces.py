"""Metrics of images for paths and regions."""

import pytest
import torch

import metricconv as mc
from metricconv.geodesic import path_length, shortest_path, surface_metric, tube_metric


def test_crossing_an_edge_adds_contrast_times_height():
    ramp = torch.linspace(0, 1, 41).repeat(9, 1)
    step = (torch.arange(41) > 20).float().repeat(9, 1)
    line = torch.tensor([[4.0, 0.0], [4.0, 40.0]])
    line = line[0] + (line[1] - line[0]) * torch.linspace(0, 1, 321).unsqueeze(1)
    for image, sharp in ((ramp, False), (step, True)):
        length = path_length(surface_metric(image[None, None], 200.0), line)
        # A narrow edge adds 200, up to the path's own length; along the ramp it is √(40² + 200²).
        exact = 240.0 if sharp else (40.0**2 + 200.0**2) ** 0.5
        assert abs(length - exact) < 0.05 * exact


def test_channels_add_up():
    image = torch.rand(1, 3, 7, 8, generator=torch.Generator().manual_seed(0))
    one = [surface_metric(image[:, k : k + 1], 5.0).M for k in range(3)]
    identity = mc.Riemannian.isotropic(1.0).expand_to((7, 8)).M
    torch.testing.assert_close(surface_metric(image, 5.0).M, sum(one) - 2 * identity)


def test_constant_images_have_the_metric_of_the_plane():
    for shape in ((1, 1, 5, 6), (2, 3, 4, 5, 3), (1, 1, 1, 1)):
        image = torch.full(shape, 0.7)
        for metric in (surface_metric(image), tube_metric(image)):
            plane = mc.Riemannian.isotropic(1.0, len(shape) - 2).expand_to(shape[2:])
            torch.testing.assert_close(metric.M, plane.M.expand(shape[0], *plane.M.shape[1:]))


@pytest.mark.parametrize("dark", [False, True])
def test_balls_are_elongated_along_tubes(dark):
    y, x = torch.meshgrid(torch.arange(41.0), torch.arange(41.0), indexing="ij")
    image = torch.exp(-(((y - x) / 2) ** 2) / 4)[None, None]
    metric = tube_metric(1 - image if dark else image, 8.0, dark=dark, anisotropy=4.0)
    at = metric.at(torch.tensor([20.0, 20.0]).view(1, 2, 1, 1))
    along, across = (at.norm(torch.tensor(u).view(1, 1, 2, 1, 1) / 2**0.5) for u in ([1.0, 1.0], [1.0, -1.0]))
    assert 1 / along == pytest.approx(9.0, rel=0.02) and 1 / across == pytest.approx(3.0, rel=0.02)


def test_tubes_of_volumes_are_followed():
    pytest.importorskip("numba")
    volume = torch.zeros(1, 1, 20, 20, 20)
    volume[..., 3:17, 3:5, 3:5] = 1
    volume[..., 15:17, 3:17, 3:5] = 1
    path = shortest_path(tube_metric(volume, 20.0, scale=1.0), [3.0, 3.5, 3.5], [15.5, 16.0, 3.5])
    assert (path[:, 2] - 3.5).abs().max() < 1.5
    assert torch.minimum((path[:, 1] - 3.5).abs(), (path[:, 0] - 15.5).abs()).max() < 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tube_metric(torch.zeros(1, 1, 4, 4), anisotropy=0.5), r"`anisotropy` \(=0.5\) must be at least 1"),
        (lambda: tube_metric(torch.zeros(1, 1, 4, 4), scale=0.01), r"`scale` \(=0.01\) must be from"),
        (lambda: tube_metric(torch.zeros(1, 1, 4)), r"`image` must be \(B, C, \*spatial\), 2-D or 3-D"),
        (lambda: surface_metric(torch.zeros(1, 1, 4, 4), -1.0), "`contrast`"),
        (lambda: surface_metric(1e20 * torch.eye(4)[None, None]), "`image` has gradients that are too large"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
