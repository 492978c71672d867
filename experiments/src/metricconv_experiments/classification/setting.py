"""The setting of a run: all options that can change its result, which are also the key of its row."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Self, get_args

from metricconv import _checks

from ..results import text

DATASETS = ("mnist", "fashion-mnist", "cifar10", "cifar100")
METHODS = ("standard", "deformable", "shifted", "metric-randers", "metric-riemann", "metric-geodesic")
RECIPES = ("paper", "sgd", "onecycle")
LAYERS = ("2-4", "4")
AUGMENTATIONS = ("none", "pad-crop", "resized-crop")

# Defaults of the recipes. As in the paper, gray images are not augmented.
_EPOCHS = {"paper": 240, "sgd": 15, "onecycle": 15}
_RATE = {"paper": 1e-4, "sgd": 0.1, "onecycle": 0.2}
_DECAY = {"paper": 1e-4, "sgd": 5e-4, "onecycle": 5e-4}
# Lightning's short names of precisions.
_PRECISION = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_GEOMETRY = ("eps_omega", "stencil", "metric_groups", "s_min", "s_max")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training run. Options that do not apply to a method are set to None.

    Args:
        dataset: "mnist", "fashion-mnist", "cifar10" or "cifar100".
        network: "resnet18", "resnet50", "resnet152", all with a stem for small images.
        method: convolution of the replaced layers.
        weights: "learnt" (the paper's LKW), or "fixed" to the mean (FKW). Fixed weights of a standard network are a
            control without geometry: box filters in the stages that other methods replace.
        start: "scratch", or the name of the initial weights.
        layers: stages whose 3×3 convolutions are replaced, "2-4" or "4".
        init: "identity" (initially a standard convolution), "paper" (as the released code, see
            ``use_published_init``) or "constant" (constant kernels, with all predictors at zero).
        zero_gamma: start the last batch normalization of each residual block at γ = 0, also with pretrained weights.
        metric_parameters: raw parameters of a metric: 5, 6 or 7. Default: 7, or 6 if weights are fixed.
        eps_omega: 1 − maximum asymmetry of a Randers metric.
        stencil, metric_groups, s_min, s_max: options of ``MetricConv2d`` and ``Spectral7``; baselines have groups too.
        recipe: "paper" (Adam, a cosine by epochs), "sgd" (Nesterov, a cosine by steps) or "onecycle" (Nesterov).
        epochs, lr, weight_decay: options of the optimizer. Default: those of the recipe.
        batch: batch size over all processes.
        multiplier: predictor learning rate / ``lr``.
        l1: weight of the L1 penalty of the predictors.
        warmup: epochs in which all supports stay at their identity.
        augmentation: "none", "pad-crop" or "resized-crop"; the last two also flip.
        train_images: number of training images, without held-out images; None for all.
        holdout: number of training images to hold out for model selection.
        precision: precision in Lightning's terms.
        seed: seed of the initial weights, the order and the augmentation.
    """

    dataset: str = "cifar100"
    network: str = "resnet18"
    method: str = "metric-randers"
    weights: str = "learnt"
    start: str = "scratch"
    layers: str | None = "2-4"
    init: str | None = "identity"
    zero_gamma: bool = False
    metric_parameters: int | None = None
    eps_omega: float | None = None
    stencil: str | None = "square_onion"
    metric_groups: int | None = 1
    s_min: float | None = None
    s_max: float | None = None
    recipe: str = "sgd"
    epochs: int | None = None
    batch: int = 128
    lr: float | None = None
    weight_decay: float | None = None
    multiplier: float | None = 0.1
    l1: float | None = 0.0
    warmup: int | None = 0
    augmentation: str | None = None
    train_images: int | None = None
    holdout: int = 0
    precision: str = "32-true"
    seed: int = 0

    def __post_init__(self) -> None:
        _checks.one_of(self.dataset, DATASETS, "dataset")
        _checks.one_of(self.method, METHODS, "method")
        _checks.one_of(self.weights, ("learnt", "fixed"), "weights")
        _checks.one_of(self.recipe, RECIPES, "recipe")
        self._fill("epochs", _EPOCHS[self.recipe])
        self._fill("lr", _RATE[self.recipe])
        self._fill("weight_decay", _DECAY[self.recipe])
        self._fill("augmentation", "pad-crop" if self.dataset.startswith("cifar") else "none")
        _checks.one_of(str(self.augmentation), AUGMENTATIONS, "augmentation")
        self._set(precision=_PRECISION.get(self.precision, self.precision))
        self._check_numbers()
        if self.method == "standard":
            self._check_standard()
        else:
            self._check_adaptive()

    def __str__(self) -> str:
        """Return the options that are varied most often."""
        parts = [self.dataset, self.network, self.method, f"{self.weights} weights"]
        parts += [] if self.multiplier is None else [f"multiplier {self.multiplier:g}"]
        default = Setting(**{name: getattr(self, name) for name in ("dataset", "method", "weights", "recipe")})
        others = ("start", "layers", "init", "zero_gamma", "metric_parameters", *_GEOMETRY, "l1", "warmup")
        parts += [f"{name} {getattr(self, name)}" for name in others if getattr(self, name) != getattr(default, name)]
        return ", ".join([*parts, f"{self.epochs} epoch{'s' * (self.epochs != 1)}", f"seed {self.seed}"])

    @property
    def metric(self) -> bool:
        """Whether the replaced layers are metric convolutions."""
        return self.method.startswith("metric")

    @property
    def key(self) -> dict[str, Any]:
        """The columns that identify the row of this run."""
        return dataclasses.asdict(self)

    @property
    def folder(self) -> str:
        """A readable and unique name for the folder of this run."""
        digest = hashlib.sha256("\n".join(f"{k}={text(v)}" for k, v in self.key.items()).encode()).hexdigest()[:10]
        return f"{self.dataset}-{self.network}-{self.method}-{self.weights}-seed{self.seed}-{digest}"

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Return the setting of a row."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            kinds = get_args(field.type) or (field.type,)
            cell = row[field.name]
            if field.type is bool:
                values[field.name] = {"True": True, "False": False}[_checks.one_of(cell, ("True", "False"), field.name)]
            else:
                values[field.name] = None if cell == "" and type(None) in kinds else kinds[0](cell)
        return cls(**values)

    def _fill(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name, least in {"epochs": 1, "batch": 1, "holdout": 0, "train_images": 1, "warmup": 0, "seed": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`{name}` (={value}) must be at least {least}")
        for name in ("lr", "weight_decay", "multiplier", "l1"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"`{name}` (={value}) must be a finite number, at least 0")

    def _check_standard(self) -> None:
        unused = ("init", "metric_parameters", *_GEOMETRY, "multiplier", "l1", "warmup")
        self._set(**dict.fromkeys(unused))
        if self.weights == "fixed":
            _checks.one_of(str(self.layers), LAYERS, "layers")
        else:
            self._set(layers=None)

    def _check_adaptive(self) -> None:
        _checks.one_of(str(self.layers), LAYERS, "layers")
        _checks.one_of(str(self.init), ("identity", "paper", "constant"), "init")
        if not self.metric:
            self._set(metric_parameters=None, eps_omega=None, stencil=None, s_min=None, s_max=None)
            return
        self._fill("metric_parameters", 6 if self.weights == "fixed" else 7)
        if self.metric_parameters not in (5, 6, 7):
            raise ValueError(f"`metric_parameters` (={self.metric_parameters}) must be 5, 6 or 7")
        if self.method == "metric-riemann":
            self._set(eps_omega=1.0)
        self._fill("eps_omega", 0.5)
        if self.metric_parameters == 7:
            self._fill("s_min", 0.1)
            self._fill("s_max", 1.5)
        else:
            self._set(s_min=None, s_max=None)


KEY = tuple(field.name for field in dataclasses.fields(Setting))
# Runs are comparable if they agree in all options except those of a method, the initial weights, the replaced stages
# and the repetitions.
_VARIED = (
    "method",
    *_GEOMETRY,
    "init",
    "zero_gamma",
    "metric_parameters",
    "l1",
    "warmup",
    "weights",
    "start",
    "layers",
    "multiplier",
    "seed",
)
PROTOCOL = tuple(name for name in KEY if name not in _VARIED)
