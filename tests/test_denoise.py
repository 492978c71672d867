"""``filters.denoise``: its results, arguments and parts."""

import math

import numpy as np
import pytest
import torch
from skimage import data, restoration

import metricconv as mc
from metricconv._checks import relative_spacing
from metricconv.filters import _steered, denoise, estimate_noise


def photo(dtype=np.float64):
    """Return a part of a photograph, from 0 to 1."""
    return data.camera()[64:224, 128:288].astype(dtype) / 255


def noisy(image, sigma, seed=0):
    return image + np.random.default_rng(seed).normal(0, sigma, image.shape)


def psnr(a, b):
    return -10 * np.log10(np.mean((np.asarray(a, float) - b) ** 2))


def test_denoise_beats_non_local_means_and_total_variation():
    clean = photo()
    for sigma in (15 / 255, 25 / 255, 50 / 255):
        image = noisy(clean, sigma)
        nlm = restoration.denoise_nl_means(image, 5, 6, h=0.6 * sigma, sigma=sigma, fast_mode=True)
        tv = max(psnr(restoration.denoise_tv_chambolle(image, w * sigma), clean) for w in (0.6, 0.8, 1.0))
        assert psnr(denoise(image, sigma), clean) > max(psnr(nlm, clean), tv)


def test_types_and_dtypes_are_kept():
    image = noisy(photo(), 0.1)
    expected = denoise(image, 0.1)
    assert isinstance(expected, np.ndarray) and expected.dtype == np.float64
    tensor = denoise(torch.from_numpy(image), 0.1)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(tensor.numpy(), expected)
    for dtype, unit in ((np.uint8, 255), (np.uint16, 65535), (np.int16, 32767), (np.int32, 2**31 - 1)):
        whole = np.rint(unit * image.clip(0, 1)).astype(dtype)
        result = denoise(whole, 0.1 * unit)
        assert result.dtype == dtype
        np.testing.assert_allclose(result / unit, denoise(whole / unit, 0.1), atol=0.51 / unit + 1e-6)
    half = denoise(torch.from_numpy(image).half(), 0.1)
    assert half.dtype == torch.float16 and (half - tensor).abs().max() < 0.05


@pytest.mark.parametrize(("gain", "offset"), [(7.0, -3.0), (1e-4, 0.0), (1.0, 1e4)])
def test_result_does_not_depend_on_the_scale_of_intensities(gain, offset):
    image = noisy(photo(), 0.1)[:64, :64]
    changed = (denoise(gain * image + offset, 0.1 * gain) - offset) / gain
    np.testing.assert_allclose(changed, denoise(image, 0.1), atol=1e-4)


def test_flips_and_transposes_commute_with_denoise():
    image = noisy(photo(), 0.1)[:50, :60]
    result = denoise(image, 0.1)
    np.testing.assert_allclose(denoise(image[::-1].copy(), 0.1)[::-1], result, atol=1e-4)
    np.testing.assert_allclose(denoise(image.T.copy(), 0.1).T, result, atol=1e-4)


def test_reflected_image_is_denoised_to_the_reflected_result():
    image = noisy(photo(), 0.1)[:40, :50]
    double = np.concatenate([image, image[-2::-1]])
    np.testing.assert_allclose(denoise(double, 0.1)[:40], denoise(image, 0.1), atol=1e-4)


def test_channels_share_the_metric():
    clean = data.astronaut()[100:180, 180:260] / 255
    color = noisy(clean, 0.1)
    result = denoise(color, 0.1, channel_axis=-1)
    separate = np.stack([denoise(color[..., c], 0.1) for c in range(3)], -1)
    assert psnr(result, clean) > psnr(separate, clean)
    np.testing.assert_allclose(denoise(np.moveaxis(color, -1, 0), 0.1, channel_axis=0), np.moveaxis(result, -1, 0))


def test_equal_channels_are_denoised_as_one():
    gray = noisy(photo(), 0.1)[:40, :40]
    np.testing.assert_allclose(
        denoise(np.stack([gray] * 3), 0.1, channel_axis=0), np.stack([denoise(gray, 0.1)] * 3), atol=1e-5
    )


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "moon", "rocket"])
def test_image_without_noise_is_nearly_unchanged(name):
    image = getattr(data, name)()[:256, :256]
    result = denoise(image, channel_axis=-1 if image.ndim == 3 else None)
    assert np.array_equal(result, image) or psnr(result / 255, image / 255) > 45


def test_constant_and_tiny_images_are_unchanged():
    for shape in ((1, 1), (1, 7), (6, 5), (40, 40), (1, 1, 1), (3, 1, 20)):
        for sigma in ("auto", 0.1):
            image = np.full(shape, 0.25)
            np.testing.assert_allclose(denoise(image, sigma), image, atol=1e-7)


def test_sigma_zero_returns_a_copy():
    image = photo()
    result = denoise(image, 0)
    np.testing.assert_array_equal(result, image)
    assert not np.shares_memory(result, image)


def test_volume_with_anisotropic_voxels():
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in (9, 32, 32)), indexing="ij")
    clean = (np.hypot(np.hypot(z, y), x) < 0.7).astype(float)
    image = noisy(clean, 0.15)
    result = denoise(image, 0.15, spacing=(4, 1, 1))
    assert psnr(result, clean) > psnr(image, clean) + 5
    np.testing.assert_array_equal(denoise(image, 0.15, spacing=np.array([8.0, 2.0, 2.0])), result)


def test_slices_far_apart_are_denoised_separately():
    image = noisy(photo(), 0.1)[:40, :40]
    stack = np.stack([image, image.T, 1 - image])
    result = denoise(stack, 0.1, spacing=(1000, 1, 1))
    again = denoise(stack[:, :, ::-1].copy(), 0.1, spacing=(1000, 1, 1))[:, :, ::-1]
    np.testing.assert_allclose(result, again, atol=1e-4)
    np.testing.assert_allclose(result[1], result[0].T, atol=1e-4)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("channels", "guides"), [(1, 0), (3, 3)])
def test_compiled_kernel_equals_torch(dim, channels, guides):
    pytest.importorskip("numba")
    size, halves = ((20, 150), (4, 5)) if dim == 2 else ((5, 6, 9), (1, 2, 2))
    padded = [n + 2 * h for n, h in zip(size, halves, strict=True)]
    generator = torch.Generator().manual_seed(0)
    signal = torch.rand(channels, *padded, generator=generator)
    guide = 0.5 * torch.rand(guides, *padded, generator=generator)
    root = 0.2 * torch.randn(*padded, dim, dim, generator=generator)
    matrix = root @ root.mT + 0.03 * torch.eye(dim)
    metric = torch.stack([matrix[..., i, j] for i in range(dim) for j in range(i, dim)])
    density = 0.1 + torch.rand(*padded, generator=generator)
    kernel = _steered.fit(signal, guide, metric, density, halves)
    reference = _steered.fit(signal, guide, metric, density, halves, compiled=False)
    for a, b in zip(kernel, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=3e-6)


def test_fit_reproduces_slopes_and_their_gradient():
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(30.0), indexing="ij")
    signal = (2 + 0.5 * y - 0.25 * x)[None]
    metric = torch.tensor([0.05, 0.01, 0.08]).view(3, 1, 1).expand(3, 20, 30).contiguous()
    value, gradient = _steered.fit(signal, signal[:0], metric, torch.rand(20, 30) + 0.5, (4, 4))
    # Except for the ridge, which shrinks the gradient.
    torch.testing.assert_close(value, signal[:, 4:-4, 4:-4], rtol=0, atol=1e-2)
    torch.testing.assert_close(gradient[0, :, 5, 6], torch.tensor([0.5, -0.25]), rtol=0.05, atol=0)


def test_progress_counts_the_rows_of_all_rounds():
    seen = []
    denoise(np.random.default_rng(0).random((30, 20)), 0.1, progress=lambda *done: seen.append(done))
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(done) and set(totals) == {done[-1]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": "high"}, "`sigma` (='high') must be one of 'auto'"),
        ({"sigma": -1}, "`sigma` (=-1) must be finite and at least 0"),
        ({"sigma": math.nan}, "`sigma` (=nan) must be finite and at least 0"),
        ({"spacing": (1, 1, 1)}, "`spacing` (=(1, 1, 1)) must be a positive number, or one for each of 2 spatial axes"),
        ({"spacing": 0}, "`spacing` (=0) must be positive"),
        ({"progress": 3}, "`progress` must be a function of two integers"),
        ({"image": np.ones((4, 4), bool)}, "`image` must hold floats or integers of at most 32 bits, got dtype"),
        ({"image": np.ones((4, 4), np.int64)}, "`image` must hold floats or integers of at most 32 bits, got dtype"),
    ],
)
def test_invalid_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError)) as error:
        denoise(**{"image": np.ones((4, 4)), **arguments})
    assert message in str(error.value)


def test_spacing_is_relative():
    assert relative_spacing(None, 2) == relative_spacing(3.0, 2) == (1, 1)
    assert relative_spacing([6, 2, 3], 3) == (3, 1, 1.5)
    assert relative_spacing([1e-9, 1e9], 2) == (1, 1000)


@pytest.mark.parametrize("sigma", [5, 10, 25, 50])
def test_noise_of_photographs_is_estimated(sigma):
    moon, camera = data.moon().astype(float), data.camera().astype(float)
    assert estimate_noise(noisy(moon, sigma)) == pytest.approx(sigma, rel=0.06)
    assert estimate_noise(noisy(camera, sigma)) == pytest.approx(math.hypot(sigma, 3.3), rel=0.06)  # has noise itself


def test_noise_is_estimated_in_the_units_of_the_image():
    image = noisy(data.astronaut()[:256, :256] / 255, 0.1, seed=1)
    level = estimate_noise(image, channel_axis=-1)
    assert level == pytest.approx(0.1, rel=0.06)
    assert estimate_noise(np.moveaxis(image, -1, 0), channel_axis=0) == pytest.approx(level)
    assert estimate_noise(torch.from_numpy(image), channel_axis=-1) == pytest.approx(level)
    gray = 0.25 + 0.5 * image[..., 0]  # not clipped
    for unit, dtype in ((255, np.uint8), (65535, np.uint16)):
        whole = np.rint(unit * gray.clip(0, 1)).astype(dtype)
        assert estimate_noise(whole) == pytest.approx(0.05 * unit, rel=0.06)


def test_noise_of_volumes_and_of_large_images_is_estimated():
    generator = np.random.default_rng(0)
    ramp = np.linspace(0, 5, 60)
    assert estimate_noise(ramp + generator.normal(0, 0.3, (40, 50, 60))) == pytest.approx(0.3, rel=0.05)
    wide = generator.normal(0, 2, (40, 5000)).astype(np.float32)
    assert estimate_noise(wide) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("fill", [0.0, 0.7])
def test_black_background_does_not_lower_the_estimate(fill):
    image = np.full((200, 200), fill)
    image[50:150, 50:150] = np.random.default_rng(0).normal(0.5, 0.1, (100, 100))
    assert estimate_noise(image) == pytest.approx(0.1, rel=0.2)


def test_no_noise_is_found_where_there_is_none():
    y, x = np.mgrid[:200, :200] / 200
    assert estimate_noise(np.sin(9 * y) * x) < 1e-3
    assert estimate_noise(np.ones((30, 30))) == 0
    assert estimate_noise(np.random.default_rng(0).random((3, 3))) == 0


def test_denoise_is_public():
    assert mc.filters.denoise is denoise
