"""The paper's GradCAM figure: one row per image, one column per method."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from metricconv._files import writing
from metricconv.viz import plot_gradcam

from .batches import DeviceDataset
from .report import NAMES

# GradCAM of the last stage, as in the paper.
LAYER = "layer4"


def write(
    path: Path, networks: Mapping[str, nn.Module], dataset: DeviceDataset, indices: Sequence[int], names: Sequence[str]
) -> None:
    """Draw the class activation maps of test images for their true classes.

    Args:
        path: path of the figure.
        networks: networks by name, in evaluation mode, on the device of the dataset.
        dataset: the dataset.
        indices: indices of the test images, one row each.
        names: names of the classes.
    """
    x, y = (part[list(indices)] for part in dataset.test)
    axes = plot_gradcam(
        dataset.normalized(x),
        {NAMES.get(name, name): (network, LAYER) for name, network in networks.items()},
        y,
        backgrounds=[image.cpu().numpy().squeeze(-1) if image.shape[-1] == 1 else image.cpu().numpy() for image in x],
        labels=[names[label] for label in y.tolist()],
    )
    with writing(path) as temporary:
        axes.flat[0].figure.savefig(temporary)


def choose(dataset: DeviceDataset, count: int) -> list[int]:
    """Return the indices of random test images, of different classes as far as possible."""
    labels = dataset.test.y.cpu().numpy()
    generator = np.random.default_rng(0)
    order = generator.permutation(len(labels))
    first = [next(i for i in order if labels[i] == c) for c in generator.permutation(np.unique(labels))]
    return [int(i) for i in [*first, *(i for i in order if i not in set(first))][:count]]
