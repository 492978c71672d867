"""NIfTI volumes: round trips, orientation, voxel size and invalid files."""

import gzip

import nibabel
import numpy as np
import pytest

from metricconv import filters
from metricconv._errors import UserError
from metricconv.cli.app import run
from metricconv.io import images

AFFINE = np.array([[0.0, -2.0, 0.0, 7.0], [1.0, 0.0, 0.0, -3.0], [0.0, 0.0, 4.0, 5.0], [0.0, 0.0, 0.0, 1.0]])


def scan(path, shape=(5, 6, 4), dtype=np.float32, cls=nibabel.Nifti1Image):
    voxels = (100 * np.random.default_rng(0).random(shape)).astype(dtype)
    volume = cls(voxels, AFFINE)
    volume.header["descrip"] = b"a scan"
    volume.to_filename(path)
    return voxels


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.NII.GZ"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("cls", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_volumes_keep_voxels_dtype_and_header(tmp_path, name, dtype, cls):
    voxels = scan(tmp_path / name.lower(), dtype=dtype, cls=cls)
    image = images.read(tmp_path / name.lower())
    assert image.pixels.dtype == dtype and np.array_equal(image.pixels, voxels.T)  # (z, y, x)
    assert image.spacing == (4.0, 2.0, 1.0) and image.channel_axis is None
    images.write(tmp_path / f"out-{name}", image)
    (tmp_path / f"out-{name}").rename(tmp_path / f"out-{name.lower()}")
    back = nibabel.load(tmp_path / f"out-{name.lower()}")
    assert type(back) is cls and back.get_data_dtype() == dtype and back.header["descrip"] == b"a scan"
    np.testing.assert_array_equal(back.affine, AFFINE)
    assert np.array_equal(np.asarray(back.dataobj), voxels)


def test_scaled_integers_are_read_as_the_values_they_stand_for(tmp_path):
    volume = nibabel.Nifti1Image(np.arange(24, dtype=np.int16).reshape(2, 3, 4), AFFINE)
    volume.header.set_slope_inter(0.5, -3)
    (tmp_path / "a.nii").write_bytes(volume.to_bytes())
    image = images.read(tmp_path / "a.nii")
    assert image.pixels.min() == -3 and image.pixels.max() == 8.5
    images.write(tmp_path / "b.nii", image)
    assert np.asarray(nibabel.load(tmp_path / "b.nii").dataobj).max() == 8.5


def test_denoise_uses_the_voxel_size_and_filter_writes_nifti(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    voxels = scan("a.nii.gz", (20, 18, 12))
    assert run(["denoise", "a.nii.gz", "b.nii.gz", "--sigma", "20"]) == 0
    expected = filters.denoise(voxels.T, 20, spacing=(4, 2, 1))
    np.testing.assert_allclose(nibabel.load("b.nii.gz").get_fdata().T, expected, rtol=1e-6)
    assert run(["denoise", "a.nii.gz", "c.nii", "--sigma", "20", "--spacing", "1,1,1"]) == 0
    assert np.abs(nibabel.load("c.nii").get_fdata().T - expected).max() > 1
    assert run(["filter", "a.nii.gz", "d.nii", "--method", "box", "-k", "3"]) == 0


def test_arrays_are_written_with_their_spacing(tmp_path):
    images.write(tmp_path / "a.nii", images.ImageData(np.zeros((2, 3, 4), np.float32), spacing=(3.0, 1.0, 2.0)))
    assert nibabel.load(tmp_path / "a.nii").header.get_zooms() == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (images.ImageData(np.zeros((3, 4))), ".nii does not support images"),
        (images.ImageData(np.zeros((2, 3, 4, 3)), -1), ".nii does not support 3 channels"),
        (images.ImageData(np.zeros((2, 3, 4), np.float16)), "NIfTI does not support float16"),
    ],
)
def test_unsupported_images_raise(tmp_path, image, message):
    with pytest.raises(UserError, match=message):
        images.write(tmp_path / "a.nii", image)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"no header", gzip.compress(b"x" * 400, mtime=0)], ids=["plain", "compressed"])
def test_damaged_files_raise(tmp_path, content):
    (tmp_path / "a.nii.gz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as an image"):
        images.read(tmp_path / "a.nii.gz")


def test_series_and_large_volumes_raise_before_voxels_are_read(tmp_path):
    scan(tmp_path / "a.nii", (2, 3, 4, 5))
    with pytest.raises(UserError, match=r"has shape \(2, 3, 4, 5\), expected one volume"):
        images.read(tmp_path / "a.nii")
    scan(tmp_path / "b.nii")
    with pytest.raises(UserError, match="exceed the limit of 100"):
        images.read(tmp_path / "b.nii", max_pixels=100)
