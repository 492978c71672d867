"""Columns of the tables, and names of the folders of their rows.

A key contains all options that can change a result. Options of the computation (accelerator, strategy, deterministic
algorithms) are not part of it.
"""

from collections.abc import Mapping, Sequence

from ..results import text

HEURISTIC_KEY = ("image", "pixels", "method", "gradient", "sigma", "seed", "padding_mode", "filter_parameters")
HEURISTIC_VALUES = ("group", "samples", "psnr", "ssim", "released_psnr", "scikit-image")
# Filtered images: one folder per run, one file per row.
HEURISTIC_RUN = ("image", "pixels", "sigma", "seed", "padding_mode")
HEURISTIC_FILTER = ("method", "gradient", "filter_parameters")
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
TUNED_KEY = ("dataset", "method", "sigma", "padding_mode", "images", "seed", "filter_parameters", "base")
TUNED_VALUES = ("psnr", "psnr_sd", "ssim", "gain", "better")
# Methods of the paper by their names on the command line: columns ``method`` and ``eps_omega``.
METHODS = {"utb 0.1": ("utb", 0.1), "utb 0.9": ("utb", 0.9), "deformable": ("deformable", None)}
# Sources of learning rates: the paper's tables, or a range test.
RATES = ("paper", "range")


def name_of(setting: Mapping[str, object], key: Sequence[str]) -> str:
    """Return the name of the folder or file of a row or setting.

    >>> name_of({"method": "utb deep", "eps_omega": None, "k": 5}, ["method", "eps_omega", "k"])
    'utb-deep_none_5'
    """
    return "_".join((text(setting[name]) or "none").replace(" ", "-").replace("/", "-") for name in key)
