"""Quality of superpixels and interpolation on BSDS300: ``python -m benchmarks.regions --data FOLDER``.

``FOLDER`` has the archives bsds300.tar (photographs) and bsds300_segmentations.tar (human segmentations of the test
images). Superpixels are compared with scikit-image's SLIC at about the same number of regions: the under-segmentation
error of Neubert and Protzel, the boundary recall within two pixels and the achievable segmentation accuracy, means over
the human segmentations of each image. Interpolation of chroma (Lab) from random pixels, with the lightness as guide, is
compared with linear interpolation: PSNR of the colors. Means over images are written to ``regions.csv``. All methods
have their default options; nothing is tuned.
"""

import argparse
import datetime
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.interpolate
import scipy.ndimage
import skimage
import torch
from numpy.typing import NDArray
from PIL import Image

from metricconv.geodesic import interpolate, superpixels

from .rows import Rows

COLUMNS = ["task", "method", "images", "split", "regions", "undersegmentation", "recall", "accuracy", "psnr", "date"]
Array = NDArray[np.float64]
Labels = NDArray[np.int64]
SEGMENTS = 200


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the archives.")
    parser.add_argument("--images", type=int, default=20, help="Number of test images, the first by file number.")
    parser.add_argument("--only", default="", help="Part of the names of methods to run.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(Path(__file__).with_suffix(".csv"), COLUMNS, ("task", "method"), options.only)
    data = list(photographs(options.data, options.images))
    shared = {"images": str(len(data)), "split": "test", "date": datetime.date.today().isoformat()}
    for name, divide in DIVISIONS.items():
        if options.only in name:
            scores = np.mean([region_scores(divide(photo), truths) for photo, truths in data], 0)
            columns = ("regions", "undersegmentation", "recall", "accuracy")
            rows.add(
                shared | {"task": "superpixels", "method": name} | dict(zip(columns, map(_text, scores), strict=True))
            )
    for part in (0.01, 0.001):
        for name, fill in FILLINGS.items():
            if options.only in name:
                psnr = np.mean([chroma_psnr(photo, part, fill) for photo, _ in data])
                rows.add(shared | {"task": f"chroma from {part:.1%}", "method": name, "psnr": f"{psnr:.2f}"})
    print(rows.written())


def photographs(folder: Path, count: int) -> Iterator[tuple[NDArray[np.uint8], list[Labels]]]:
    """Yield test images and their human segmentations."""
    with tarfile.open(folder / "bsds300.tar") as photos, tarfile.open(folder / "bsds300_segmentations.tar") as humans:
        names = sorted(n for n in photos.getnames() if n.startswith("test/") and n.endswith(".jpg"))
        segmentations = [n for n in humans.getnames() if n.endswith(".png")]
        for name in names[:count]:
            folder_of = f"/{Path(name).stem}/"
            truths = [_read(humans, n).astype(np.int64) for n in sorted(segmentations) if folder_of in n]
            yield _read(photos, name), truths


def _read(archive: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    file = archive.extractfile(name)
    assert file is not None
    return np.asarray(Image.open(io.BytesIO(file.read())))


def region_scores(labels: Labels, truths: list[Labels]) -> Array:
    """Return the number of regions, the under-segmentation error, boundary recall and achievable accuracy."""
    scores = []
    for truth in truths:
        counts = np.zeros((labels.max() + 1, truth.max() + 1), np.int64)
        np.add.at(counts, (labels.ravel(), truth.ravel()), 1)
        size = counts.sum(1, keepdims=True)
        error = np.minimum(counts, size - counts).sum() / labels.size
        wanted = skimage.segmentation.find_boundaries(truth, mode="inner")
        near = scipy.ndimage.distance_transform_cdt(~skimage.segmentation.find_boundaries(labels, mode="inner"))
        scores.append([len(np.unique(labels)), error, (near[wanted] <= 2).mean(), counts.max(1).sum() / labels.size])
    mean: Array = np.mean(scores, 0)
    return mean


def chroma_psnr(
    photo: NDArray[np.uint8], part: float, fill: Callable[[Array, NDArray[np.bool_], Array], Array]
) -> float:
    """Return the PSNR of colors whose chroma is interpolated from a random part of the pixels."""
    lab = skimage.color.rgb2lab(photo)
    known = np.random.default_rng(0).random(photo.shape[:2]) < part
    chroma = fill(lab[..., 1:], known, lab[..., 0] / 100)
    colors = skimage.color.lab2rgb(np.concatenate([lab[..., :1], chroma], -1))
    return float(-10 * np.log10(np.mean((colors - photo / 255) ** 2)))


def _geodesic(chroma: Array, known: NDArray[np.bool_], guide: Array) -> Array:
    filled: Array = interpolate(np.where(known[..., None], chroma, np.nan), guide, channel_axis=-1)
    return filled


def _linear(chroma: Array, known: NDArray[np.bool_], _: Array) -> Array:
    points, grid = np.argwhere(known), np.indices(known.shape).reshape(2, -1).T
    found = scipy.interpolate.LinearNDInterpolator(points, chroma[known])(grid)
    nearest = scipy.interpolate.NearestNDInterpolator(points, chroma[known])(grid)
    return np.where(np.isnan(found), nearest, found).reshape(chroma.shape)


def slic(photo: NDArray[np.uint8]) -> Labels:
    """Return SLIC's regions, as close to ``SEGMENTS`` as found: it merges small ones, so more are asked for."""
    wanted, found = SEGMENTS, []
    for _ in range(4):
        labels = skimage.segmentation.slic(photo, wanted, start_label=1)
        count = len(np.unique(labels))
        found.append((abs(count - SEGMENTS), wanted, labels))
        wanted = round(wanted * SEGMENTS / count)
    return np.asarray(min(found, key=lambda entry: entry[:2])[2])


DIVISIONS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "SLIC": slic,
    "superpixels": lambda photo: superpixels(photo, SEGMENTS, channel_axis=-1),
    "superpixels, Lab": lambda photo: superpixels(skimage.color.rgb2lab(photo) / 100, SEGMENTS, channel_axis=-1),
}
FILLINGS = {"linear": _linear, "interpolate": _geodesic}


def _text(value: float) -> str:
    return f"{value:.4f}" if value < 10 else f"{value:.1f}"


if __name__ == "__main__":
    main()
