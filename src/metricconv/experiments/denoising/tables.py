"""The columns of the tables, and the names of the folders that belong to their rows.

A key is all that can change a result. What only changes how it is computed (accelerator, strategy, algorithms that
repeat themselves) is not in it.
"""

from collections.abc import Mapping, Sequence

from ..results import text

HEURISTIC_KEY = ("image", "pixels", "method", "gradient", "sigma", "seed", "padding_mode", "knobs")
HEURISTIC_VALUES = ("group", "samples", "psnr", "ssim", "released_psnr", "scikit-image")
# The filtered pictures: a folder for each run, a file for each row of it.
HEURISTIC_RUN = ("image", "pixels", "sigma", "seed", "padding_mode")
HEURISTIC_PICTURE = ("method", "gradient", "knobs")
IMAGE_KEY = ("image", "pixels", "method", "eps_omega", "k", "sigma", "rate", "iterations", "precision", "seed")
IMAGE_VALUES = ("lr", "train_mse", "test_mse", "gap", "train_psnr", "test_psnr", "paper_mse", "paper_gap")
DATASET_KEY = (
    "dataset", "size", "recipe", "method", "eps_omega", "weights", "k", "sigma", "noise", "rate", "epochs",
    "precision", "devices", "seed",
)  # fmt: skip
DATASET_VALUES = (
    "lr", "train_mse", "test_mse", "test_psnr", "gap", "parameters", "ms_per_image",
    "paper_mse", "paper_printed", "paper_gap",
)  # fmt: skip
TUNED_KEY = ("dataset", "method", "sigma", "padding_mode", "pictures", "seed", "knobs", "base")
TUNED_VALUES = ("psnr", "psnr_sd", "ssim", "gain", "better")
# The paper's methods by the names that commands know them by: the columns ``method`` and ``eps_omega``.
METHODS = {"utb 0.1": ("utb", 0.1), "utb 0.9": ("utb", 0.9), "deformable": ("deformable", None)}
# Where learning rates come from: the paper's tables, or a range test of our own.
RATES = ("paper", "range")


def name_of(setting: Mapping[str, object], key: Sequence[str]) -> str:
    """Return a name for the folder or the file of a row, or of the setting that it will be.

    >>> name_of({"method": "utb deep", "eps_omega": None, "k": 5}, ["method", "eps_omega", "k"])
    'utb-deep_none_5'
    """
    return "_".join((text(setting[name]) or "none").replace(" ", "-").replace("/", "-") for name in key)
