"""The setting of a run: all options that can change its result, which are also the key of its row."""

import dataclasses
from typing import Any

from metricconv import _checks

# Training images of each dataset.
DATASETS = {"drive": 20, "crackforest": 72}
# Methods without a predictor, then adaptive ones; the slow ones last.
ORDINARY = ("standard", "standard-5x5")
ADAPTIVE = ("deformable", "snake", "metric-randers", "metric-riemann", "metric-geodesic", "metric-asymmetric")
METHODS = (*ORDINARY, *ADAPTIVE)
# Multipliers of the predictors' learning rate that suit each kind of layer; used if none is given.
DEFAULT_MULTIPLIER = {"deformable": 0.01, "snake": 0.01, "metric-geodesic": 0.01}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training run.

    Args:
        dataset: "drive" or "crackforest".
        method: which layers replace the 3×3 convolutions; see ``METHODS``.
        images: number of training images; None for all. The seed chooses them.
        seed: seed of the training images, the initial weights and the patches; methods with the same seed share them.
        holdout: number of training images, chosen by the seed, on which the network is evaluated instead of on the
            test images; 0 for the test images.
        multiplier: learning rate of the predictors, relative to ``lr``; None for methods without them.
        steps, batch, patch: training steps, patches per step and side of a patch in pixels.
        lr: largest learning rate of the schedule; see ``runs.learning_rate``.
        weight_decay: weight decay of AdamW.
    """

    dataset: str = "drive"
    method: str = "metric-randers"
    images: int | None = None
    seed: int = 1
    holdout: int = 0
    multiplier: float | None = None
    steps: int = 800
    batch: int = 16
    patch: int = 96
    lr: float = 0.01
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        available = DATASETS[_checks.one_of(self.dataset, DATASETS, "dataset")]
        _checks.one_of(self.method, METHODS, "method")
        for name in ("steps", "batch", "patch"):
            _checks.whole(getattr(self, name), name, minimum=1)
        if self.patch % 4:
            raise ValueError(f"`patch` (={self.patch}) must be a multiple of 4")
        if not 0 <= self.holdout < available:
            raise ValueError(f"`holdout` (={self.holdout}) must be between 0 and {available - 1}")
        images = available - self.holdout if self.images is None else self.images
        if not 0 < images <= available - self.holdout:
            raise ValueError(
                f"`images` (={images}) and `holdout` (={self.holdout}) must fit into the {available} training images "
                f"of {self.dataset}"
            )
        multiplier = self.multiplier
        if self.method in ORDINARY:
            multiplier = None
        elif multiplier is None:
            multiplier = DEFAULT_MULTIPLIER.get(self.method, 0.1)
        for name, value in (("images", images), ("multiplier", multiplier)):
            object.__setattr__(self, name, value)

    @property
    def key(self) -> dict[str, Any]:
        """The columns that identify the row."""
        return dataclasses.asdict(self)

    @property
    def name(self) -> str:
        """A name for files of this run."""
        multiplier = "" if self.multiplier is None else f"-x{self.multiplier:g}"
        held = f"-held{self.holdout}" if self.holdout else ""
        return f"{self.dataset}-{self.method}{multiplier}-{self.images}-seed{self.seed}{held}"


KEY = tuple(field.name for field in dataclasses.fields(Setting))
