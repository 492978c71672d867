"""Computations and handlers of the explorer, without a browser."""

import dataclasses
import math
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import pytest
import torch

import metricconv as mc
from metricconv import filters, stencils
from metricconv._errors import UserError
from metricconv._images import psnr
from metricconv.app import draw
from metricconv.app.explorer import BUNDLED, MAX_SIDE, Explorer, ExplorerSettings, first_point
from metricconv.app.handlers import CONTROLS, Handlers
from metricconv.io import images
from metricconv.viz import unit_balls
from metricconv.viz.balls import COLORS
from rendering import near


@pytest.fixture(scope="module")
def explorer():
    return Explorer()


def settings(image="coins", **values):
    """Return settings without noise, with both balls of the gradient metric unless given otherwise."""
    return ExplorerSettings(**{"image": image, "noise": 0.0, "metric": "gradient", "ball": "both"} | values)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_images_are_available(explorer, name):
    image = explorer.clean(ExplorerSettings(name))
    assert max(image.shape) <= MAX_SIDE and image.dtype == np.float32 and 0 <= image.min() < image.max() <= 1
    y, x = first_point(name, image.shape)
    assert 0 <= y < image.shape[0] and 0 <= x < image.shape[1]


def test_balls_equal_those_of_whole_metric(explorer):
    here = settings(eps_omega=0.6, samples=5)
    metric = explorer.metric(here)
    for (kind, ball), expected in zip(explorer.balls(here, (100, 3)), ("tangent", "geodesic"), strict=True):
        (whole,) = unit_balls(metric, [(100, 3)], expected, stencils.polar(5))
        assert kind == expected and ball.pixel == (100, 3)
        assert torch.allclose(ball.outline, whole.outline, atol=1e-6)
        assert torch.allclose(ball.samples, whole.samples, atol=1e-6)


def test_samples_outside_outline_equal_those_of_whole_metric(monkeypatch):
    # A ray of √2 times the ball's radius starts along the diagonal, and bends along an axis to where distances grow.
    y, x = torch.meshgrid(torch.arange(300.0) - 100, torch.arange(400.0) - 200, indexing="ij")
    radius = 70 + 30 * (y / 50).clamp(0, math.pi / 2).sin()
    metric = mc.Riemannian.isotropic(torch.where(x > 105, radius / 2, radius)[None, None])
    monkeypatch.setattr(Explorer, "metric", lambda self, settings: metric)
    ((_, ball),) = Explorer().balls(settings("camera", ball="geodesic", stencil="square_onion", samples=3), (100, 200))
    (whole,) = unit_balls(metric, [(100, 200)], "geodesic", stencils.square_onion(3))
    assert torch.allclose(ball.samples, whole.samples, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"iota": 0.1}, {"alpha": 30.0}, {"scale": 3.0}, {"eps_omega": 0.4}, {"metric": "structure"}, {"metric": "edge"}],
)
def test_every_control_changes_the_ball(explorer, change):
    before, after = (
        explorer.balls(dataclasses.replace(settings(ball="tangent"), **k), (90, 90))[0][1] for k in ({}, change)
    )
    assert (before.outline - after.outline).abs().max() > 0.05


def test_noise_has_requested_level_and_is_cached(explorer):
    noisy = settings(noise=0.1)
    assert np.std(explorer.noisy(noisy) - explorer.clean(noisy)) == pytest.approx(0.1, rel=0.05)
    assert explorer.noisy(noisy) is explorer.noisy(noisy)
    assert psnr(explorer.clean(noisy), explorer.noisy(noisy)) == pytest.approx(20, abs=0.2)


@pytest.mark.slow
def test_filtered_image_equals_library():
    explorer = Explorer()
    explorer.uploads["small"] = np.random.default_rng(0).random((24, 20, 3)).astype(np.float32)
    for ball, apply in (("tangent", filters.tangent_filter), ("geodesic", filters.geodesic_filter)):
        here = settings("small", ball=ball, samples=3)
        expected = apply(explorer.noisy(here), 3, explorer.metric(here), "polar", channel_axis=-1)
        assert np.array_equal(explorer.filtered(here), expected)


def test_properties_of_constant_metric_are_known(explorer):
    flat = Explorer()
    flat.uploads["flat"] = np.full((20, 20), 0.5, np.float32)
    properties = flat.properties(settings("flat", iota=0.25), (10, 10))
    assert properties["reach (px)"] == pytest.approx(2) and properties["anisotropy"] == pytest.approx(1)


def test_uploads_are_downscaled_and_named_by_content(tmp_path):
    explorer = Explorer()
    image = images.ImageData(np.random.default_rng(0).integers(0, 65535, (1100, 700, 3), dtype=np.uint16), -1)
    images.write(tmp_path / "large.tif", image)
    name = explorer.upload(tmp_path / "large.tif")
    assert explorer.clean(ExplorerSettings(name)).shape == (MAX_SIDE, 326, 3)
    assert explorer.upload(tmp_path / "large.tif") == name and len(explorer.uploads) == 1


def test_first_image_of_mpo_is_shown(tmp_path):
    first, second = (PIL.Image.new("RGB", (20, 20), color) for color in ("red", "blue"))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    explorer = Explorer()
    assert np.allclose(
        explorer.clean(ExplorerSettings(explorer.upload(tmp_path / "a.jpg")))[0, 0], (1, 0, 0), atol=0.02
    )


def test_floats_outside_unit_range_are_rescaled(tmp_path):
    explorer = Explorer()
    np.save(tmp_path / "a.npy", np.linspace(-300, 900, 400).reshape(20, 20))
    image = explorer.clean(ExplorerSettings(explorer.upload(tmp_path / "a.npy")))
    assert image.min() == 0 and image.max() == 1


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("a.npy", np.full((9, 9), np.nan), "^a.npy: contains NaN or infinite values$"),
        ("a.npy", np.zeros((4, 90)), "at least 8 × 8 pixels"),
        ("a.npy", np.zeros((9, 9, 9)), "^a.npy: expected a 2-D image, got a volume of 9 × 9 × 9 pixels$"),
        ("a.npy", np.zeros(9), "neither an image nor a volume"),
        ("a.npy", np.zeros((7000, 7000), np.uint8), "^a.npy: 7000 × 7000 pixels exceed the limit of 40000000$"),
    ],
)
def test_invalid_uploads_raise(tmp_path, name, values, message):
    np.save(tmp_path / name, values)
    with pytest.raises(UserError, match=message):
        Explorer().upload(tmp_path / name)


def test_expired_upload_raises():
    with pytest.raises(UserError, match="upload it again"):
        Explorer().clean(ExplorerSettings("0123456789abcdef"))


def test_balls_are_drawn_at_their_position(explorer):
    here = settings(ball="tangent")
    image, over = explorer.display(here)
    balls = explorer.balls(here, (60, 200))
    drawn = np.asarray(draw.with_balls(over, image.shape, balls)) / 255.0
    assert drawn.shape[:2] == tuple(2 * n for n in image.shape[:2])
    blue = np.argwhere(near(drawn, COLORS["tangent"], 0.12)) / 2
    assert np.abs(blue.mean(0) - (60.5, 200.5)).max() < 4
    large = np.asarray(draw.close_up(image, balls)) / 255.0
    assert near(large, COLORS["tangent"], 0.12).sum() > 3 * len(blue)


@pytest.mark.parametrize("size", [(20, 20), (8, 90), (200, 150)])
def test_small_images_are_enlarged(size):
    small = Explorer()
    small.uploads["small"] = np.random.default_rng(0).random(size).astype(np.float32)
    here = settings("small", iota=0.5, alpha=0.0, ball="tangent")
    handlers = Handlers(small)
    inputs = ((3, 5), "small", "", *(getattr(here, name) for name in CONTROLS))
    shown, *_ = handlers.show_balls(*inputs)
    before, after = handlers.filter_image(*inputs)["value"]
    assert 450 < max(shown.size) < 650 and before.size == after.size == shown.size
    factor = shown.size[0] / size[1]
    blue = np.argwhere(near(np.asarray(shown) / 255.0, COLORS["tangent"], 0.12)) / factor
    assert np.abs((blue.max(0) + blue.min(0)) / 2 - (3.5, 5.5)).max() < 0.5
    event = types.SimpleNamespace(index=[(size[1] - 0.5) * factor, (size[0] - 0.5) * factor])
    assert handlers.click(event, *inputs)[0] == (size[0] - 1, size[1] - 1)


def test_close_up_is_gray_outside_image(explorer):
    here = settings()
    image, _ = explorer.display(here)
    corner = np.asarray(draw.close_up(image, explorer.balls(here, (0, 0))))
    assert (corner[5, 5] == 216).all()


@pytest.mark.parametrize("overlay", draw.OVERLAYS[1:])
def test_every_overlay_is_drawn(explorer, overlay):
    here = settings(overlay=overlay, eps_omega=0.5)
    image, _ = explorer.display(here)
    over = draw.overlaid(image, explorer.metric(here), overlay)
    assert over.shape == image.shape and over.dtype == np.uint8 and (over != image).any()


def test_concurrent_sessions_get_the_supports_of_their_own_image():
    torch.manual_seed(0)
    network = torch.nn.Sequential(mc.nn.MetricConv2d(1, 4, 3, padding=1), mc.nn.MetricConv2d(4, 2, 3, padding=1))
    for layer in network:
        torch.nn.init.normal_(layer.predictor.weight, std=0.1)
    pages = [
        settings(image=name, noise=noise, layer="1") for name in ("coins", "camera", "brick") for noise in (0, 0.1)
    ]
    expected = [Explorer(network).support(page, "model").metric.M for page in pages]
    shared = Explorer(network)
    with ThreadPoolExecutor(len(pages)) as pool:
        found = list(pool.map(lambda page: shared.support(page, "model").metric.M, pages))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other)


def test_page_opens_with_noise_that_geodesic_balls_remove(explorer):
    opening = ExplorerSettings()
    clean, noisy = explorer.clean(opening), explorer.noisy(opening)
    assert psnr(clean, explorer.filtered(opening)) > psnr(clean, noisy) + 7
    ((kind, ball),) = explorer.balls(opening, first_point("camera", clean.shape))
    distances = torch.linalg.vector_norm(ball.outline - ball.outline.new_tensor(ball.pixel), dim=1)
    assert kind == "geodesic" and distances.max() > 2 * distances.min()  # beside an edge
