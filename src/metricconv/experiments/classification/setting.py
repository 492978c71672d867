"""What a run is: every choice that can change its result, in one value that is also the key of its row."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any, Self, get_args

from ... import _checks
from ..results import text

DATASETS = ("mnist", "fashion-mnist", "cifar10", "cifar100")
METHODS = ("standard", "deformable", "shifted", "metric-randers", "metric-riemann", "metric-geodesic")
RECIPES = ("paper", "sgd", "onecycle")
AUGMENTATIONS = ("none", "pad-crop", "resized-crop")

# What a recipe takes where nothing else is said. The paper's images of clothes and digits are not augmented.
_EPOCHS = {"paper": 240, "sgd": 15, "onecycle": 15}
_RATE = {"paper": 1e-4, "sgd": 0.1, "onecycle": 0.2}
_DECAY = {"paper": 1e-4, "sgd": 5e-4, "onecycle": 5e-4}
# Lightning's short names, and what it takes them for.
_PRECISION = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
_GEOMETRY = ("eps_omega", "stencil", "metric_groups", "s_min", "s_max")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One training run. What means nothing for a method (a standard network has no heads) is set to None.

    Args:
        dataset: "mnist", "fashion-mnist", "cifar10" or "cifar100".
        network: "resnet18", "resnet50", "resnet152", all with a stem for small images.
        method: the convolution of the replaced layers.
        weights: "learnt" (the paper's LKW), or "fixed" to the mean (FKW).
        start: "scratch", or the name of the weights that training starts from.
        layers: "2-4" or "4", the stages whose 3×3 convolutions are replaced.
        init: "identity" (an ordinary convolution at first), or "paper" (constant kernels, balls of radius 1).
        head: numbers a pixel that make a metric: 5, 6 or 7. By default 7, or 6 where weights are fixed.
        eps_omega: 1 − the largest asymmetry of a Randers metric.
        stencil, metric_groups, s_min, s_max: of ``MetricConv2d`` and ``Spectral7``; groups also of the rivals.
        recipe: "paper" (Adam, a cosine by epochs), "sgd" (Nesterov, a cosine by steps) or "onecycle" (Nesterov).
        epochs, batch, lr, weight_decay: of the recipe by default.
        head_multiplier: the heads learn at ``lr`` times this.
        l1: λ of the heads' L1 term.
        warmup: epochs during which the geometry stays at its identity.
        augmentation: "none", "pad-crop" or "resized-crop"; the last two also flip.
        train_images: how many to train on; None for all. Those held out do not count.
        holdout: how many training images to keep for choosing between settings.
        precision: Lightning's.
        seed: of the initial weights, the order and the augmentation.
    """

    dataset: str = "cifar100"
    network: str = "resnet18"
    method: str = "metric-randers"
    weights: str = "learnt"
    start: str = "scratch"
    layers: str | None = "2-4"
    init: str | None = "identity"
    head: int | None = None
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
    head_multiplier: float | None = 0.1
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
        """Name the run by what is most often varied."""
        parts = [self.dataset, self.network, self.method, f"{self.weights} weights"]
        parts += [] if self.head_multiplier is None else [f"heads × {self.head_multiplier:g}"]
        usual = Setting(**{name: getattr(self, name) for name in ("dataset", "method", "weights", "recipe")})
        odd = ("start", "layers", "init", "head", *_GEOMETRY, "l1", "warmup")
        parts += [f"{name} {getattr(self, name)}" for name in odd if getattr(self, name) != getattr(usual, name)]
        return ", ".join([*parts, f"{self.epochs} epoch{'s' * (self.epochs != 1)}", f"seed {self.seed}"])

    @property
    def metric(self) -> bool:
        """Whether the replaced layers are metric convolutions."""
        return self.method.startswith("metric")

    @property
    def key(self) -> dict[str, Any]:
        """The columns that tell this run's row from others."""
        return dataclasses.asdict(self)

    @property
    def folder(self) -> str:
        """A name for the run's files: readable, and different for different runs."""
        digest = hashlib.sha256("\n".join(f"{k}={text(v)}" for k, v in self.key.items()).encode()).hexdigest()[:10]
        return f"{self.dataset}-{self.network}-{self.method}-{self.weights}-seed{self.seed}-{digest}"

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Self:
        """Read a setting from the columns of a table."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            kinds = get_args(field.type) or (field.type,)
            cell = row[field.name]
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
        for name in ("lr", "weight_decay", "head_multiplier", "l1"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"`{name}` (={value}) must be a finite number, at least 0")

    def _check_standard(self) -> None:
        if self.weights == "fixed":
            raise ValueError("`weights` (='fixed') would leave a standard network nothing to learn in those layers")
        nothing = ("layers", "init", "head", *_GEOMETRY, "head_multiplier", "l1", "warmup")
        self._set(**dict.fromkeys(nothing))

    def _check_adaptive(self) -> None:
        _checks.one_of(str(self.layers), ("2-4", "4"), "layers")
        _checks.one_of(str(self.init), ("identity", "paper"), "init")
        if not self.metric:
            self._set(head=None, eps_omega=None, stencil=None, s_min=None, s_max=None)
            return
        self._fill("head", 6 if self.weights == "fixed" else 7)
        if self.head not in (5, 6, 7):
            raise ValueError(f"`head` (={self.head}) must be 5, 6 or 7 numbers")
        if self.method == "metric-riemann":
            self._set(eps_omega=1.0)
        self._fill("eps_omega", 0.5)
        if self.head == 7:
            self._fill("s_min", 0.1)
            self._fill("s_max", 1.5)
        else:
            self._set(s_min=None, s_max=None)


KEY = tuple(field.name for field in dataclasses.fields(Setting))
# What makes runs comparable, the same for all methods: every choice but a method's own, what weights start as, the
# stages that are replaced, and what is repeated.
_VARIED = (
    "method",
    *_GEOMETRY,
    "init",
    "head",
    "l1",
    "warmup",
    "weights",
    "start",
    "layers",
    "head_multiplier",
    "seed",
)
PROTOCOL = tuple(name for name in KEY if name not in _VARIED)
