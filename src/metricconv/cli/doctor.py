"""``metricconv doctor``: diagnose the installation."""

import importlib
import warnings
from collections.abc import Iterable

import rich.table
import torch
import typer
from rich.text import Text

import metricconv as mc

from .._files import versions
from .._torchvision import TorchvisionError, import_torchvision
from . import external
from .console import console, results

__all__ = ["EXTRAS", "devices", "doctor_command", "missing_experiments", "missing_reason", "run_convolution"]

# Modules that each extra installs.
EXTRAS = {
    "cpu": ("numba",),
    "images": ("matplotlib", "numpy", "rich", "skimage"),
    "cli": ("typer", "imagecodecs", "tifffile"),
    "large": ("dask", "zarr"),
    "medical": ("nibabel",),
    "app": ("gradio",),
}


def doctor_command() -> None:
    """Diagnose the installation.

    Prints versions, devices, backends and extras, each with the reason if unavailable. Runs a small metric convolution,
    forward and backward; the exit code is 1 if it fails.
    """
    table = rich.table.Table(show_header=False, box=None)
    for name, value in (versions() | devices()).items():
        table.add_row(name, value)
    results.print(table)
    with console.status("importing backends"):
        backends = {backend.name: backend.missing for backend in mc.backend_report().backends}
    _print_states("backend", "ready", backends)
    extras = {}
    for name, modules in EXTRAS.items():
        with console.status(f"importing {', '.join(modules)}"):
            extras[name] = missing_reason(f"metricconv[{name}]", modules)
    with console.status("importing the experiments"):
        extras["experiments"] = missing_experiments()
    _print_states("extra", "installed", extras)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with console.status("running a metric convolution; the first one compiles kernels"):
        problem = run_convolution(device)
    state = Text(problem, "red") if problem else Text("works", "green")
    results.print(Text.assemble(f"a metric convolution on {device}, forward and backward: ", state), soft_wrap=True)
    if problem:
        raise typer.Exit(1)


def missing_experiments() -> str | None:
    """Return why ``metricconv reproduce`` cannot be used, None if it can."""
    if not external.entry_points("reproduce"):
        return external.EXPERIMENTS_MISSING
    return missing_reason("./experiments", ("torchvision", "lightning", "torchmetrics"))


def missing_reason(requirement: str, modules: Iterable[str]) -> str | None:
    """Return why a requirement cannot be used, None if all its modules can be imported."""
    for module in modules:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if module == "torchvision":
                    import_torchvision()
                else:
                    importlib.import_module(module)
        except TorchvisionError as error:
            return str(error)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed; pip install '{requirement}'"
        except Exception as error:  # such as a compiled extension built for another Python version
            return f"{module} cannot be imported ({' '.join(str(error).split())})"
    return None


def devices() -> dict[str, str]:
    """Return the number of threads and the GPU that torch uses."""
    found = {"threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        found["GPU"] = f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    elif torch.backends.mps.is_available():
        found["GPU"] = "Apple (MPS)"
    else:
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is a CPU build"
        found["GPU"] = f"not available; {built}"
    return found


def run_convolution(device: str) -> str:
    """Run a small layer forward and backward; return the error, empty if there is none."""
    try:
        layer = mc.nn.MetricConv2d(2, 3, 3, padding=1, device=device)
        x = torch.rand(1, 2, 8, 8, device=device, requires_grad=True)
        layer(x).square().sum().backward()
        finite = x.grad is not None and bool(torch.isfinite(x.grad).all())
        return "" if finite else "the gradient is not finite"
    except Exception as error:  # the command reports any failure
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _print_states(title: str, available: str, missing: dict[str, str | None]) -> None:
    table = rich.table.Table(title, "state")
    for name, reason in missing.items():
        table.add_row(name, Text(available, "green") if reason is None else Text(f"not available: {reason}"))
    results.print(table)
