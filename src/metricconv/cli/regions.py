"""``metricconv segment``, ``superpixels`` and ``interpolate``: regions of an image, and values along its structure."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.text import Text

from .. import geodesic
from .._errors import UserError
from .._options import expand_options
from ..io import images
from ..io.image_data import ImageData
from . import options
from .console import console, print_line, results
from .options import ImageFileOptions

__all__ = ["interpolate_command", "segment_command", "superpixels_command"]

LabelsArgument = Annotated[
    Path, typer.Argument(metavar="OUT", help="Output label image, .png, .tif or .npy.", show_default=False)
]
ScaleOption = Annotated[
    float, typer.Option("--scale", min=0.1, max=100.0, help="Standard deviation of the derivative filters in pixels.")
]


@expand_options
def segment_command(
    source: options.InputArgument,
    strokes: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIBBLES",
            help="Label image of the size of IN: 0 where unknown, else a label.",
            show_default=False,
        ),
    ],
    output: LabelsArgument,
    files: ImageFileOptions,
    contrast: Annotated[
        float, typer.Option("--contrast", min=0.0, max=1e6, help="Length of an edge from 0 to 1 in pixels.")
    ] = 300.0,
    scale: ScaleOption = 1.0,
) -> None:
    """Segment an image: each pixel gets the label of the nearest scribble, along paths that avoid edges.

    * `metricconv segment photo.jpg scribbles.png labels.png`
    """
    images.check_output(output, force=files.force, inputs=(source, strokes))
    data, scribbles = files.read(source), files.read(strokes)
    labels = scribbles.pixels
    if scribbles.channel_axis is not None or labels.dtype.kind not in "bui" or labels.shape != data.spatial:
        raise UserError(
            f"{strokes}: expected integers of shape {data.spatial} without channels, got {labels.dtype} of shape "
            f"{labels.shape}"
        )
    if not (labels > 0).any():
        raise UserError(f"{strokes}: contains no positive label")
    with console.status(Text(f"segmenting {source}")):
        found = geodesic.segment(
            data.to_float(), labels.astype(np.int64), contrast=contrast, scale=scale, channel_axis=data.channel_axis
        )
        _write_labels(output, found, files.force)


@expand_options
def superpixels_command(
    source: options.InputArgument,
    output: LabelsArgument,
    files: ImageFileOptions,
    segments: Annotated[int, typer.Option("--segments", "-n", min=1, help="Approximate number of superpixels.")] = 100,
    contrast: Annotated[
        float,
        typer.Option(
            "--contrast", min=0.0, max=1e6, help="Length of an edge from 0 to 1 in pixels; small for compact regions."
        ),
    ] = 300.0,
    scale: ScaleOption = 1.0,
    iterations: Annotated[
        int, typer.Option("--iterations", min=0, max=1000, help="Number of times that seeds move.")
    ] = 5,
) -> None:
    """Divide an image into superpixels that follow edges.

    * `metricconv superpixels photo.jpg labels.png --segments 200`
    """
    images.check_output(output, force=files.force, inputs=(source,))
    data = files.read(source)
    pixels = int(np.prod(data.spatial))
    if segments > pixels:
        raise UserError(f"--segments {segments}: must be at most {pixels}, the number of pixels of {source}")
    with console.status(Text(f"dividing {source}")):
        found = geodesic.superpixels(
            data.to_float(), segments, contrast=contrast, scale=scale, max_num_iter=iterations,
            channel_axis=data.channel_axis,
        )  # fmt: skip
        _write_labels(output, found, files.force)


@expand_options
def interpolate_command(
    samples: Annotated[
        Path, typer.Argument(metavar="SAMPLES", help="Image of the values at some pixels.", show_default=False)
    ],
    guide: Annotated[Path, typer.Argument(metavar="GUIDE", help="Image whose edges bound values.", show_default=False)],
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="Output image, in the format of its suffix.", show_default=False)
    ],
    files: ImageFileOptions,
    known: Annotated[
        Path, typer.Option("--known", help="Image that is positive where values are known.", show_default=False)
    ],
    neighbors: Annotated[int, typer.Option("--neighbors", "-k", min=1, max=64, help="Samples per pixel.")] = 8,
    contrast: Annotated[
        float, typer.Option("--contrast", min=0.0, max=1e6, help="Length of an edge of GUIDE from 0 to 1 in pixels.")
    ] = 100.0,
    scale: ScaleOption = 1.0,
) -> None:
    """Interpolate values that are known at some pixels, along the structure of a guide image.

    * `metricconv interpolate depth.tif photo.jpg dense.tif --known valid.png`
    """
    images.check_output(output, force=files.force, inputs=(samples, guide, known))
    values, shape, valid = files.read(samples), files.read(guide), files.read(known)
    for path, other in ((samples, values), (known, valid)):
        if other.spatial != shape.spatial:
            raise UserError(f"{path}: has size {other.spatial}, expected that of {guide}, {shape.spatial}")
    if valid.channel_axis is not None:
        raise UserError(f"{known}: expected an image without channels")
    if not (valid.pixels > 0).any():
        raise UserError(f"{known}: is positive nowhere")
    if values.opacity is not None:
        raise UserError(f"{samples}: images with opacity are not supported")
    given, axis = values.to_float(), values.channel_axis
    unknown = valid.pixels <= 0
    sparse = np.where(unknown if axis is None else np.expand_dims(unknown, axis), np.nan, given)
    with console.status(Text(f"interpolating {samples}")):
        dense = geodesic.interpolate(
            sparse, shape.to_float(), neighbors=neighbors, contrast=contrast, scale=scale,
            channel_axis=axis, guide_channel_axis=shape.channel_axis,
        )  # fmt: skip
        images.write(output, values.with_values(dense), force=files.force)
    print_line(f"wrote {output}")


def _write_labels(path: Path, labels: NDArray[Any], force: bool) -> None:
    """Write labels in the smallest dtype that holds them, and print their number."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0:
        raise UserError(f"{path}: labels must not be negative, got {low}")
    dtype = np.uint8 if high < 2**8 else np.uint16 if high < 2**16 else np.uint32
    images.write(path, ImageData(labels.astype(dtype)), force=force)
    print_line(f"{len(np.unique(labels[labels > 0]))} regions", results)
    print_line(f"wrote {path}")
