"""torchvision, imported where its datasets, models or operators are used; errors state what to install."""

import importlib
from typing import Any

import torch


class TorchvisionError(ImportError):
    """torchvision is missing, or was built for another torch than the one installed."""


def import_torchvision(name: str = "torchvision") -> Any:
    """Return torchvision or one of its modules.

    Args:
        name: full name of the module, such as "torchvision.models".

    Raises:
        TorchvisionError: the import fails; the message states why and what to install.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a build for another torch fails with RuntimeError, OSError or AttributeError
        reason = " ".join(str(error).split())
        raise TorchvisionError(
            f"torchvision cannot be imported ({reason}): install the build that matches torch {torch.__version__}, "
            "see https://pytorch.org/get-started"
        ) from error
