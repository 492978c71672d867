"""Lightning and torchmetrics without torchvision: all experiments import them from here.

Lightning imports torchmetrics, which imports torchvision for some of its image metrics if the package is installed,
whether or not it can be imported. A torchvision built for another torch then makes ``import lightning`` fail, although
training does not need it. There is no option to turn this off, so that the check for installed packages, which both
libraries take from lightning_utilities, is replaced while they are imported: it reports torchvision as missing.
torchmetrics then leaves out the metrics that need torchvision, none of which is used here.
"""

from unittest import mock

from lightning_utilities.core import imports


class _RequirementWithoutTorchvision(imports.RequirementCache):
    """A check for an installed package that is false for torchvision."""

    def __bool__(self) -> bool:
        return not (self.requirement or "").startswith("torchvision") and super().__bool__()


with mock.patch.object(imports, "RequirementCache", _RequirementWithoutTorchvision):
    import lightning
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint, TQDMProgressBar
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.utilities import rank_zero_only
    from lightning.pytorch.utilities.seed import isolate_rng
    from torchmetrics.classification import MulticlassAccuracy

__all__ = [
    "lightning",
    "Callback",
    "CSVLogger",
    "MisconfigurationException",
    "ModelCheckpoint",
    "MulticlassAccuracy",
    "TQDMProgressBar",
    "isolate_rng",
    "rank_zero_only",
]
