"""Learning-free filters: denoising performance, stored as PSNR."""

from functools import partial

import pytest
import torch
from skimage import data, metrics

import metricconv as mc
from metricconv.filters import (
    box_filter,
    dilated_filter,
    interpolated_filter,
    random_deformable_filter,
    tangent_filter,
)
from metricconv.metrics import gradient_metric

# PSNR in dB by filter, in the setting that reproduces the authors' table on their image (not distributed): noise of
# torch.manual_seed(42), neither clamped nor quantized; zero padding, for the samples and for the Sobel filter; the
# pixel itself as an additional sample of each ball; random offsets within ±k, where the paper says ±k/2.
PSNR = {
    "noisy": (lambda f: f, 19.948),
    "box 11": (partial(box_filter, size=11), 20.397),
    "box 5": (partial(box_filter, size=5), 23.208),
    "box 3": (partial(box_filter, size=3), 24.927),
    "dilated 3": (partial(dilated_filter, samples=11, dilation=3), 16.636),
    "interpolated 5": (partial(interpolated_filter, samples=11, size=5), 23.754),
    "random deformable": (partial(random_deformable_filter, samples=11, reach=11), 17.837),
    "UTB isotropic": (partial(tangent_filter, metric=mc.Riemannian.isotropic(10**0.5), center=True), 24.274),
    "UTB 1": (partial(tangent_filter, center=True), 26.508),
    "UTB 0.5": (
        partial(tangent_filter, metric=partial(gradient_metric, eps_omega=0.5, padding_mode="zeros"), center=True),
        26.454,
    ),
    "UTB 0.1": (
        partial(tangent_filter, metric=partial(gradient_metric, eps_omega=0.1, padding_mode="zeros"), center=True),
        26.164,
    ),
}


@pytest.mark.parametrize(("filter", "expected"), PSNR.values(), ids=PSNR.keys())
def test_denoising_psnr_equals_stored_one(filter, expected):
    clean = torch.from_numpy(data.camera()).float().div(255).unflatten(1, (256, 2)).unflatten(0, (256, 2)).mean((1, 3))
    noisy = clean + 0.1 * torch.randn(256, 256, generator=torch.Generator().manual_seed(42))
    options = {} if filter is PSNR["noisy"][0] else {"padding_mode": "zeros"}
    psnr = metrics.peak_signal_noise_ratio(clean.numpy(), filter(noisy, **options).numpy(), data_range=1)
    assert psnr == pytest.approx(expected, abs=0.02)
