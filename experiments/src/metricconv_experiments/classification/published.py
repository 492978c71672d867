"""Accuracies of the paper in percent: medians (means in the ablation) and standard deviations over runs."""

from typing import NamedTuple

Number = tuple[float, float | None]


class Cell(NamedTuple):
    """Identifies a published number; ``start`` is "scratch" (SC) or "transfer" (TL)."""

    dataset: str
    method: str
    weights: str
    start: str


_COLUMNS = (("fixed", "scratch"), ("fixed", "transfer"), ("learnt", "scratch"), ("learnt", "transfer"))


def _table(dataset: str, rows: str) -> dict[Cell, Number]:
    """Parse rows in the format of the paper: method, FKW SC, FKW TL, LKW SC, LKW TL; "±" precedes a deviation."""
    numbers: dict[Cell, Number] = {}
    for row in rows.strip().splitlines():
        method, *cells = row.split()
        for (weights, start), cell in zip(_COLUMNS, cells, strict=True):
            if cell != "-":
                value, _, deviation = cell.partition("±")
                numbers[Cell(dataset, method, weights, start)] = float(value), float(deviation) if deviation else None
    return numbers


TOP1 = {
    **_table(
        "mnist",
        """
        standard        -      -      99.61  99.66
        deformable      83.79  99.16  99.51  99.64
        shifted         99.11  99.15  99.39  99.64
        metric-randers  99.14  99.17  99.64  99.68
        """,
    ),
    **_table(
        "fashion-mnist",
        """
        standard        -      -      92.37  93.30
        deformable      75.50  90.66  92.54  92.74
        shifted         82.43  89.40  92.75  93.45
        metric-randers  89.85  90.87  92.76  93.49
        """,
    ),
    **_table(
        "cifar10",
        """
        standard        -           -            92.26±0.20  92.64±0.18
        deformable      33.21±2.05  34.10±6.48   72.30±7.86  93.10±0.17
        shifted         37.89±2.06  29.52±17.19  86.63±4.49  92.58±0.28
        metric-randers  69.83±2.43  72.15±0.98   91.83±0.18  93.07±0.13
        """,
    ),
    **_table(
        "cifar100",
        """
        standard        -           -           70.48±0.29  70.52±0.38
        deformable      10.47±0.79  6.82±1.44   54.51±8.04  70.05±0.43
        shifted         14.47±2.40  2.67±0.66   47.14±9.05  68.58±0.48
        metric-randers  40.63±0.79  38.04±0.77  70.03±0.45  70.38±0.38
        """,
    ),
}
TOP5 = _table(
    "cifar100",
    """
    standard        -           -           90.30±0.10  90.03±0.22
    deformable      30.75±1.55  23.36±3.37  78.85±5.64  89.71±0.32
    shifted         37.73±3.72  10.67±2.21  74.34±6.56  88.77±0.29
    metric-randers  71.70±0.78  69.22±0.63  90.42±0.19  90.23±0.17
    """,
)

# Only layer 4 replaced, CIFAR-100, learnt weights, pretrained: (network, method) → top-1 and top-5.
_ABLATION = """
standard        73.61±0.31 79.06±0.29 79.86±0.30  91.83±0.20 94.76±0.17 94.53±0.22
deformable      73.55±0.26 78.15±0.25 79.73±0.41  91.50±0.23 94.08±0.17 94.51±0.23
shifted         73.15±0.17 78.33±0.32 79.70±0.35  91.37±0.15 94.16±0.15 94.30±0.15
metric-randers  74.20±0.58 79.17±0.60 80.56±0.80  92.31±0.36 94.85±0.34 94.94±0.32
metric-riemann  74.19±0.68 79.11±0.44 80.27±0.43  92.26±0.28 94.81±0.19 94.75±0.23
"""
ABLATION: dict[tuple[str, str], tuple[Number, Number]] = {}
for _row in _ABLATION.strip().splitlines():
    _method, *_cells = _row.split()
    _numbers = [(float(cell.split("±")[0]), float(cell.split("±")[1])) for cell in _cells]
    for _network, _top1, _top5 in zip(("resnet18", "resnet50", "resnet152"), _numbers[:3], _numbers[3:], strict=True):
        ABLATION[_network, _method] = _top1, _top5
