"""The denoising benchmark: budgets of the baselines, the guided filter and the page."""

import numpy as np
import pytest

from metricconv_experiments.denoising.benchmark import BASELINES, TRIALS, guided, noisy, table


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_has_the_same_number_of_trials(name):
    baseline = BASELINES[name]
    trials = baseline.trials()
    assert len(trials) == len({tuple(trial.values()) for trial in trials}) == TRIALS
    for shape in [(16, 18), (16, 18, 3)][: 1 + baseline.color]:
        image = noisy(np.full(shape, 0.5), 25, 0)
        channel_axis = -1 if len(shape) == 3 else None
        result = baseline.apply(image, 25 / 255, channel_axis, **trials[TRIALS // 2])
        assert result.shape == image.shape and result.std() < image.std()


def test_values_at_the_edge_of_a_fine_grid_are_reported():
    baseline = BASELINES["non-local means"]
    assert baseline.edges({"patch": 3, "h": 0.35}) == ["h"]
    assert baseline.edges({"patch": 3, "h": 0.538}) == []


def test_guided_filter_is_between_the_image_and_its_mean():
    image = np.random.default_rng(0).random((12, 12))
    np.testing.assert_allclose(guided(image, 2, 1e-9), image, atol=1e-6)
    assert guided(image, 2, 1e9).std() < image.std() / 4


def row(image, method, psnr, group="local supports"):
    return {
        **{"dataset": "BSD68", "image": image, "sigma": "25", "seed": "0", "method": method, "group": group},
        **{"psnr": str(psnr), "ssim": "0.5", "seconds": "0.1"},
    }


def test_page_compares_methods_on_the_same_images():
    rows = [row("a", "x", 20.0), row("a", "y", 22.0), row("b", "x", 40.0)]
    page = table(rows)
    assert "| x |  | 20.00 |" in page and "| y |  | 22.00 |" in page
    assert "1 images, noise seeds 0. Noisy images per σ: 0 (σ = 15), 1 (σ = 25), 0 (σ = 50)." in page
    assert "| BM3D, as published | 31.07 | 28.57 | 25.62 |" in page
