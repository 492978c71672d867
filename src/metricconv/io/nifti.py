"""Reading and writing of NIfTI volumes (the extra ``medical``).

The voxels of a NIfTI file are ordered (x, y, z); those of an image (z, y, x). The header is kept.
"""

import gzip
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .._errors import UserError
from .image_data import ImageData

__all__ = ["SUFFIXES", "read_header", "read_voxels", "to_bytes"]

SUFFIXES = (".nii", ".nii.gz")
# NIfTI has no others among those that torch supports.
_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64")


def read_header(path: Path) -> Any:
    """Open a volume without reading its voxels; the spatial shape of the result is (x, y, z)."""
    nibabel = _nibabel(path)
    volume = nibabel.load(path, mmap=False)
    if not isinstance(volume, nibabel.Nifti1Image):  # Nifti2Image is a subclass
        raise UserError(f"{path}: is a {type(volume).__name__}, expected a NIfTI volume")
    shape = volume.shape
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        raise UserError(f"{path}: has shape {shape}, expected one volume (x, y, z)")
    return volume


def read_voxels(volume: Any) -> ImageData:
    """Read the voxels of an opened volume, scaled as its header says."""
    voxels = np.asarray(volume.dataobj).reshape(volume.shape[:3])
    spacing = tuple(float(step) for step in volume.header.get_zooms()[:3])
    positive = all(step > 0 for step in spacing)
    return ImageData(voxels.T, spacing=spacing[::-1] if positive else None, header=volume.header)


def to_bytes(path: Path, image: ImageData) -> bytes:
    """Return the file of a volume, compressed if the path ends in .gz."""
    nibabel = _nibabel(path)
    if len(image.spatial) != 3 or image.channel_axis is not None:
        raise UserError(f"{path}: NIfTI files hold volumes without channels, got shape {image.pixels.shape}")
    if image.pixels.dtype.name not in _DTYPES:
        raise UserError(f"{path}: NIfTI does not support {image.pixels.dtype}, expected one of {', '.join(_DTYPES)}")
    if image.header is None:
        header, affine = nibabel.Nifti1Header(), np.diag([*(image.spacing or (1.0,) * 3)[::-1], 1.0])
    else:
        header, affine = image.header.copy(), image.header.get_best_affine()
    header.set_data_dtype(image.pixels.dtype)
    kind = nibabel.Nifti2Image if isinstance(header, nibabel.Nifti2Header) else nibabel.Nifti1Image
    volume = kind(np.ascontiguousarray(image.pixels.T), affine, header)
    volume.header.set_slope_inter(1, 0)
    whole: bytes = volume.to_bytes()
    return gzip.compress(whole, mtime=0) if path.name.lower().endswith(".gz") else whole


def _nibabel(path: Path) -> ModuleType:
    try:
        import nibabel
    except ModuleNotFoundError as error:
        raise UserError(f"{path}: NIfTI needs {error.name}: pip install 'metricconv[medical]'") from None
    return nibabel
