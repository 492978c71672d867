"""Scores of segmentations: overlap, centerlines, ranking, thin structures, and a tolerance to misplaced borders."""

import functools

import torch
from torch import Tensor

# A pixel is correct for the tolerant F1 if the other mask has a pixel within this distance.
TOLERANCE = 2
# Probability from which a pixel is predicted to be part of the structure.
THRESHOLD = 0.5

NAMES = ("dice", "cldice", "auc", "precision", "sensitivity", "thin_sensitivity", "tolerant_f1")


def scores(probability: Tensor, mask: Tensor, field: Tensor, thin: Tensor) -> dict[str, float]:
    """Return all scores of predicted probabilities.

    Dice, clDice, precision, sensitivity and the tolerant F1 are means over images; AUC and the sensitivity on thin
    structures are of all pixels together. Pixels outside of the field are ignored.

    Args:
        probability: (N, H, W).
        mask, field, thin: (N, H, W), bool; see ``datasets.Images``.
    """
    mask, thin = mask & field, thin & field
    predicted = (probability >= THRESHOLD) & field
    hits, found, true = (_count(x) for x in (predicted & mask, predicted, mask))
    near_mask, near_predicted = dilated(mask), dilated(predicted)
    values = {
        "dice": 2 * hits / (found + true).clamp_min(1),
        "cldice": harmonic(
            _share(thinned(predicted), mask),
            _share(thinned(mask), predicted),
        ),
        "auc": auc(probability[field], mask[field]),
        "precision": hits / found.clamp_min(1),
        "sensitivity": hits / true.clamp_min(1),
        "thin_sensitivity": (predicted & thin).sum() / thin.sum().clamp_min(1),
        "tolerant_f1": harmonic(_share(predicted, near_mask), _share(mask, near_predicted)),
    }
    return {name: float(value.mean()) for name, value in values.items()}


def harmonic(a: Tensor, b: Tensor) -> Tensor:
    """Return the harmonic mean, 0 if both are 0."""
    return 2 * a * b / (a + b).clamp_min(1e-12)


def auc(score: Tensor, label: Tensor) -> Tensor:
    """Return the area under the ROC curve: how often a positive pixel has a higher score than a negative one.

    Pairs with equal scores count half; without positive or without negative pixels the result is NaN.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([False, False, True, True]))
    tensor(0.8750, dtype=torch.float64)
    """
    positive, negative = score[label].sort().values, score[~label].sort().values
    below = torch.searchsorted(negative, positive)
    not_above = torch.searchsorted(negative, positive, right=True)
    return (below + not_above).double().mean() / (2 * len(negative))


def dilated(mask: Tensor, radius: int = TOLERANCE) -> Tensor:
    """Return the pixels within a distance of a mask (N, H, W), bool."""
    result = mask.clone()
    height, width = mask.shape[1:]
    padded = torch.nn.functional.pad(mask, (radius,) * 4)
    for y in range(-radius, radius + 1):
        for x in range(-radius, radius + 1):
            if x * x + y * y <= radius * radius:
                result |= padded[:, radius + y : radius + y + height, radius + x : radius + x + width]
    return result


def thinned(mask: Tensor) -> Tensor:
    """Return the centerlines of a mask (N, H, W), bool, by the thinning of Zhang and Suen (1984).

    A pixel with neighbors p1, …, p8, clockwise from the one above, is removed if it has two to six neighbors in the
    mask, which form one arc, and if p1·p3·p5 = p3·p5·p7 = 0 in the first half of an iteration or p1·p3·p7 = p1·p5·p7 =
    0 in the second half.
    """
    height, width = mask.shape[1:]
    clockwise = ((0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0))
    removed = _removed_by_neighbors().to(mask.device)
    current = mask.byte()
    while True:
        before = current
        for half in removed:
            padded = torch.nn.functional.pad(current, (1,) * 4)
            neighbors = torch.zeros_like(current)  # bit i is neighbor p_(i+1)
            for bit, (y, x) in enumerate(clockwise):
                neighbors |= padded[:, y : y + height, x : x + width] << bit
            current = current * ~half[neighbors.int()]
        if torch.equal(current, before):
            return current.bool()


@functools.cache
def _removed_by_neighbors() -> Tensor:
    """Return whether both halves of an iteration remove a pixel, (2, 256), by the bits of its neighbors."""
    p = torch.arange(256) >> torch.arange(8).unsqueeze(1) & 1  # [8, 256]
    arcs = (p.roll(-1, 0) > p).sum(0)
    possible = (p.sum(0) >= 2) & (p.sum(0) <= 6) & (arcs == 1)
    up, right, down, left = p[::2]
    first = (up * right * down == 0) & (right * down * left == 0)
    second = (up * right * left == 0) & (up * down * left == 0)
    return possible & torch.stack([first, second])


def _count(mask: Tensor) -> Tensor:
    return mask.sum((1, 2)).double()


def _share(mask: Tensor, other: Tensor) -> Tensor:
    """Return the share of a mask that is in another one, for each image; 0 for an empty mask."""
    return _count(mask & other) / _count(mask).clamp_min(1)
