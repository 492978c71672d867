"""The paper's figure of what networks look at: rows of images, columns of methods."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from ..._files import writing
from ...viz import plot_gradcam
from .batches import Pictures
from .report import NAMES

# GradCAM looks at the last convolution's features, as the paper does.
LAYER = "layer4"


def write(
    path: Path, networks: Mapping[str, nn.Module], pictures: Pictures, indices: Sequence[int], names: Sequence[str]
) -> None:
    """Draw the class activation maps of test images for their true classes.

    Args:
        path: of the picture.
        networks: by method or another name, in evaluation mode, on the device of the pictures.
        pictures: the dataset.
        indices: of the test images, a row each.
        names: of the classes.
    """
    x, y = (part[list(indices)] for part in pictures.test)
    axes = plot_gradcam(
        pictures.normalised(x),
        {NAMES.get(name, name): (network, LAYER) for name, network in networks.items()},
        y,
        pictures=[image.cpu().numpy().squeeze(-1) if image.shape[-1] == 1 else image.cpu().numpy() for image in x],
        labels=[names[label] for label in y.tolist()],
    )
    with writing(path) as temporary:
        axes.flat[0].figure.savefig(temporary)


def choose(pictures: Pictures, count: int) -> list[int]:
    """Choose test images at random, of different classes while there are enough."""
    labels = pictures.test.y.cpu().numpy()
    generator = np.random.default_rng(0)
    order = generator.permutation(len(labels))
    first = [next(i for i in order if labels[i] == c) for c in generator.permutation(np.unique(labels))]
    return [int(i) for i in [*first, *(i for i in order if i not in set(first))][:count]]
