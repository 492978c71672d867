"""Segmentation from scribbles on BSDS300: ``python -m benchmarks.scribbles --data FOLDER``.

``FOLDER`` has the archives bsds300.tar and bsds300_segmentations.tar. In each test image, the object is the region of
the first human segmentation whose area is nearest to 15 % of the image. A scribble is drawn in it and in each other
region of at least 1 %: the shortest path between two random pixels of the inside. ``geodesic.segment`` is compared with
scikit-image's ``random_walker``, both at their defaults and on the colors in CIE Lab divided by 100: the mean over the
images of the intersection over union of the object, and the mean time on one thread, in ``scribbles.csv``.

"""

import argparse
import datetime
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.ndimage
import skimage
import torch
from numpy.typing import NDArray

from metricconv.geodesic import segment

from .regions import Array, Labels, photographs
from .rows import Rows

COLUMNS = ["method", "images", "split", "iou", "seconds", "date"]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="Folder of the archives.")
    parser.add_argument("--images", type=int, default=40, help="Number of test images, the first by file number.")
    parser.add_argument("--only", default="", help="Part of the names of methods to run.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(Path(__file__).with_suffix(".csv"), COLUMNS, ("method",), options.only)
    tasks = [
        (skimage.color.rgb2lab(photo) / 100, *scribbles(truths[0], np.random.default_rng(seed)))
        for seed, (photo, truths) in enumerate(photographs(options.data, options.images))
    ]
    for name, divide in METHODS.items():
        if options.only in name:
            divide(tasks[0][0][:20, :20], np.eye(20, dtype=np.int64))  # compile
            start = time.perf_counter()
            labels = [divide(colors, strokes) for colors, strokes, _ in tasks]
            seconds = (time.perf_counter() - start) / len(tasks)
            overlaps = [overlap(found == 1, truth) for found, (_, _, truth) in zip(labels, tasks, strict=True)]
            rows.add(
                {"method": name, "images": str(len(tasks)), "split": "test", "iou": f"{np.mean(overlaps):.4f}"}
                | {"seconds": f"{seconds:.2f}", "date": datetime.date.today().isoformat()}
            )
    print(rows.written())


def scribbles(truth: Labels, rng: np.random.Generator) -> tuple[Labels, NDArray[np.bool_]]:
    """Return scribbles, 1 in the object and 2 in other regions, and the object."""
    share = np.bincount(truth.ravel()) / truth.size
    chosen = int(np.abs(share - 0.15).argmin())
    strokes = np.zeros(truth.shape, np.int64)
    for region in np.flatnonzero(share >= 0.01):
        strokes[stroke(truth == region, rng)] = 1 if region == chosen else 2
    return strokes, truth == chosen


def stroke(region: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Labels, Labels]:
    """Return the pixels of a path between two random pixels of the largest part of a region's inside."""
    depth = scipy.ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    parts, _ = scipy.ndimage.label(depth >= min(4, depth.max() / 2))
    inside = parts == np.bincount(parts.ravel())[1:].argmax() + 1
    pixels = np.argwhere(inside)
    ends = pixels[rng.choice(len(pixels), 2)]
    path, _ = skimage.graph.route_through_array(np.where(inside, 1.0, -1.0), *ends)
    rows, columns = np.array(path).T
    return rows, columns


def overlap(found: NDArray[np.bool_], truth: NDArray[np.bool_]) -> float:
    """Return the intersection over union."""
    return float((found & truth).sum() / (found | truth).sum())


def _random_walker(colors: Array, strokes: Labels) -> Labels:
    with warnings.catch_warnings(action="ignore"):  # that pyamg would be faster
        return np.asarray(skimage.segmentation.random_walker(colors, strokes, mode="cg_j", channel_axis=-1))


def _segment(colors: Array, strokes: Labels) -> Labels:
    return segment(torch.from_numpy(colors), torch.from_numpy(strokes), channel_axis=-1).numpy()


METHODS: dict[str, Callable[[Array, Labels], Labels]] = {"random_walker": _random_walker, "segment": _segment}


if __name__ == "__main__":
    main()
