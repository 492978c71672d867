"""What the explorer computes, without its page."""

import dataclasses
import math
import types

import numpy as np
import PIL.Image
import pytest
import torch

import metricconv as mc
from metricconv import filters, stencils
from metricconv._errors import UserError
from metricconv.app import draw
from metricconv.app.explorer import BUNDLED, MAX_SIDE, Look, Studio, first_point
from metricconv.app.handlers import KNOBS, Answers
from metricconv.experiments.photographs import psnr
from metricconv.io import images
from metricconv.viz import unit_balls
from metricconv.viz.balls import COLOURS
from pictures import near


@pytest.fixture(scope="module")
def studio():
    return Studio()


def look(**knobs):
    return Look(**{"image": "coins"} | knobs)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_pictures_are_at_hand(studio, name):
    image = studio.clean(Look(name))
    assert max(image.shape) <= MAX_SIDE and image.dtype == np.float32 and 0 <= image.min() < image.max() <= 1
    y, x = first_point(name, image.shape)
    assert 0 <= y < image.shape[0] and 0 <= x < image.shape[1]


def test_balls_are_those_of_the_whole_metric(studio):
    here = look(eps_omega=0.6, samples=5)
    metric = studio.metric(here)
    for (kind, ball), expected in zip(studio.balls(here, (100, 3)), ("tangent", "geodesic"), strict=True):
        (whole,) = unit_balls(metric, [(100, 3)], expected, stencils.polar(5))
        assert kind == expected and ball.pixel == (100, 3)
        assert torch.allclose(ball.outline, whole.outline, atol=1e-6)
        assert torch.allclose(ball.samples, whole.samples, atol=1e-6)


def test_samples_beyond_the_outline_are_those_of_the_whole_metric_too(monkeypatch):
    # A ray of √2 times the ball's radius starts along the diagonal, and bends along an axis to where distances grow.
    y, x = torch.meshgrid(torch.arange(300.0) - 100, torch.arange(400.0) - 200, indexing="ij")
    radius = 70 + 30 * (y / 50).clamp(0, math.pi / 2).sin()
    metric = mc.Riemannian.isotropic(torch.where(x > 105, radius / 2, radius)[None, None])
    monkeypatch.setattr(Studio, "metric", lambda self, look: metric)
    ((_, ball),) = Studio().balls(Look(ball="geodesic", stencil="square_onion", samples=3), (100, 200))
    (whole,) = unit_balls(metric, [(100, 200)], "geodesic", stencils.square_onion(3))
    assert torch.allclose(ball.samples, whole.samples, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"iota": 0.1}, {"alpha": 30.0}, {"scale": 3.0}, {"eps_omega": 0.4}, {"metric": "structure"}, {"metric": "edge"}],
)
def test_every_knob_changes_the_ball(studio, change):
    before, after = (studio.balls(dataclasses.replace(look(ball="tangent"), **k), (90, 90))[0][1] for k in ({}, change))
    assert (before.outline - after.outline).abs().max() > 0.05


def test_noise_changes_the_image_and_the_balls_and_comes_back(studio):
    noisy = look(noise=0.1)
    assert np.std(studio.noisy(noisy) - studio.clean(noisy)) == pytest.approx(0.1, rel=0.05)
    assert studio.noisy(noisy) is studio.noisy(noisy)
    assert psnr(studio.clean(noisy), studio.noisy(noisy)) == pytest.approx(20, abs=0.2)


def test_the_filtered_image_is_that_of_the_library():
    studio = Studio()
    studio.uploads["small"] = np.random.default_rng(0).random((24, 20, 3)).astype(np.float32)
    for ball, apply in (("tangent", filters.tangent_filter), ("geodesic", filters.geodesic_filter)):
        here = Look("small", ball=ball, samples=3)
        expected = apply(studio.noisy(here), 3, studio.metric(here), "polar", channel_axis=-1)
        assert np.array_equal(studio.filtered(here), expected)


def test_numbers_describe_the_ball(studio):
    flat = Studio()
    flat.uploads["flat"] = np.full((20, 20), 0.5, np.float32)
    numbers = flat.numbers(Look("flat", iota=0.25), (10, 10))
    assert numbers["reach (px)"] == pytest.approx(2) and numbers["anisotropy"] == pytest.approx(1)


def test_uploads_are_shrunk_and_kept_by_their_content(tmp_path):
    studio = Studio()
    picture = images.Picture(np.random.default_rng(0).integers(0, 65535, (1100, 700, 3), dtype=np.uint16), -1)
    images.write(tmp_path / "large.tif", picture)
    name = studio.upload(tmp_path / "large.tif")
    assert studio.clean(Look(name)).shape == (MAX_SIDE, 326, 3)
    assert studio.upload(tmp_path / "large.tif") == name and len(studio.uploads) == 1


def test_of_a_phones_photograph_of_several_pictures_the_first_is_shown(tmp_path):
    first, second = (PIL.Image.new("RGB", (20, 20), colour) for colour in ("red", "blue"))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    studio = Studio()
    assert np.allclose(studio.clean(Look(studio.upload(tmp_path / "a.jpg")))[0, 0], (1, 0, 0), atol=0.02)


def test_floats_of_any_range_are_stretched(tmp_path):
    studio = Studio()
    np.save(tmp_path / "a.npy", np.linspace(-300, 900, 400).reshape(20, 20))
    image = studio.clean(Look(studio.upload(tmp_path / "a.npy")))
    assert image.min() == 0 and image.max() == 1


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("a.npy", np.full((9, 9), np.nan), "not finite"),
        ("a.npy", np.zeros((4, 90)), "8 × 8 pixels or more"),
        ("a.npy", np.zeros((9, 9, 9)), "8 × 8 pixels or more"),
        ("a.npy", np.zeros(9), "neither an image nor a volume"),
    ],
)
def test_uploads_that_are_no_images_are_refused(tmp_path, name, values, message):
    np.save(tmp_path / name, values)
    with pytest.raises(UserError, match=message):
        Studio().upload(tmp_path / name)


def test_a_forgotten_upload_is_said():
    with pytest.raises(UserError, match="upload it again"):
        Studio().clean(Look("0123456789abcdef"))


def test_the_picture_shows_the_ball_where_it_is(studio):
    here = look(ball="tangent")
    image, over = studio.picture(here)
    balls = studio.balls(here, (60, 200))
    drawn = np.asarray(draw.with_balls(over, image.shape, balls)) / 255.0
    assert drawn.shape[:2] == tuple(2 * n for n in image.shape[:2])
    blue = np.argwhere(near(drawn, COLOURS["tangent"], 0.12)) / 2
    assert np.abs(blue.mean(0) - (60.5, 200.5)).max() < 4
    large = np.asarray(draw.close_up(image, balls)) / 255.0
    assert near(large, COLOURS["tangent"], 0.12).sum() > 3 * len(blue)


@pytest.mark.parametrize("size", [(20, 20), (8, 90), (200, 150)])
def test_a_small_picture_is_shown_large_and_clicked_where_it_is(size):
    small = Studio()
    small.uploads["small"] = np.random.default_rng(0).random(size).astype(np.float32)
    here = Look("small", iota=0.5, alpha=0.0, ball="tangent")
    answers, asked = Answers(small), ((3, 5), "small", "", *(getattr(here, knob) for knob in KNOBS))
    shown, *_ = answers.see(*asked)
    assert 450 < max(shown.size) < 650 and answers.smooth(*asked)["value"].size == shown.size
    times = shown.size[0] / size[1]
    blue = np.argwhere(near(np.asarray(shown) / 255.0, COLOURS["tangent"], 0.12)) / times
    assert np.abs((blue.max(0) + blue.min(0)) / 2 - (3.5, 5.5)).max() < 0.5
    event = types.SimpleNamespace(index=[(size[1] - 0.5) * times, (size[0] - 0.5) * times])
    assert answers.click(event, *asked)[0] == (size[0] - 1, size[1] - 1)


def test_a_close_up_at_the_border_shows_grey_past_it(studio):
    here = look()
    image, _ = studio.picture(here)
    corner = np.asarray(draw.close_up(image, studio.balls(here, (0, 0))))
    assert (corner[5, 5] == 216).all()


@pytest.mark.parametrize("overlay", draw.OVERLAYS[1:])
def test_every_field_can_be_laid_over(studio, overlay):
    here = look(overlay=overlay, eps_omega=0.5)
    image, _ = studio.picture(here)
    over = draw.overlaid(image, studio.metric(here), overlay)
    assert over.shape == image.shape and over.dtype == np.uint8 and (over != image).any()
