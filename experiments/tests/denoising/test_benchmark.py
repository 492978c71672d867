"""The denoising benchmark: budgets of the baselines, the guided filter and the page."""

import itertools

import numpy as np
import pytest

from metricconv_experiments.denoising.benchmark import BASELINES, TRIALS, guided, noisy, table


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_has_the_same_number_of_trials(name):
    _, apply, grid = BASELINES[name]
    trials = list(itertools.product(*grid.values()))
    assert len(trials) == len(set(trials)) == TRIALS
    image = noisy(np.full((16, 18), 0.5), 25, 0)
    result = apply(image, 25 / 255, **dict(zip(grid, trials[TRIALS // 2], strict=True)))
    assert result.shape == image.shape and result.std() < image.std()


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
    assert "Noisy images per σ: 0 (σ = 15), 1 (σ = 25), 0 (σ = 50)." in page
    assert "| BM3D, as published | 31.07 | 28.57 | 25.62 |" in page
