"""``metricconv doctor``: what runs here, and why the rest does not."""

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
from .console import results

# What each extra brings, by the names under which it is imported.
EXTRAS = {
    "cpu": ("numba",),
    "images": ("matplotlib", "numpy", "rich", "skimage"),
    "cli": ("typer", "imagecodecs", "tifffile"),
    "large": ("dask", "zarr"),
    "app": ("gradio",),
    "experiments": ("torchvision", "lightning", "torchmetrics"),
}


def doctor_command() -> None:
    """Say what runs here, and why the rest does not.

    Versions, devices, engines and why one refuses, extras that are not installed or cannot be imported. Runs a small
    metric convolution, forward and backward, and fails (exit code 1) if that goes wrong.
    """
    table = rich.table.Table(show_header=False, box=None)
    for name, value in (versions() | devices()).items():
        table.add_row(name, value)
    results.print(table)
    engines = {engine.name: engine.missing for engine in mc.backend_report().engines}
    _print_states("engine", "ready", engines)
    _print_states("extra", "installed", {name: lack(name, modules) for name, modules in EXTRAS.items()})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = trial(device)
    state = Text(problem, "red") if problem else Text("works", "green")
    results.print(Text.assemble(f"a metric convolution on {device}, forward and backward: ", state), soft_wrap=True)
    if problem:
        raise typer.Exit(1)


def lack(extra: str, modules: Iterable[str]) -> str | None:
    """Return why an extra cannot be used, None if it can: its modules are imported, which may fail where they exist."""
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
            return f"{error.name} is not installed; pip install 'metricconv[{extra}]'"
        except Exception as error:  # such as a compiled extension that was built for another Python
            return f"{module} cannot be imported ({' '.join(str(error).split())})"
    return None


def devices() -> dict[str, str]:
    """Return what torch computes on."""
    found = {"threads": str(torch.get_num_threads())}
    if torch.cuda.is_available():
        found["GPU"] = f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"
    elif torch.backends.mps.is_available():
        found["GPU"] = "Apple (MPS)"
    else:
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is a CPU build"
        found["GPU"] = f"none that torch can use; {built}"
    return found


def trial(device: str) -> str:
    """Run a small layer; return what went wrong, or nothing."""
    try:
        layer = mc.nn.MetricConv2d(2, 3, 3, padding=1, device=device)
        x = torch.rand(1, 2, 8, 8, device=device, requires_grad=True)
        layer(x).square().sum().backward()
        finite = x.grad is not None and bool(torch.isfinite(x.grad).all())
        return "" if finite else "its gradient is not finite"
    except Exception as error:  # whatever it is, it is what the user came to hear
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _print_states(what: str, well: str, lacks: dict[str, str | None]) -> None:
    table = rich.table.Table(what, "state")
    for name, missing in lacks.items():
        table.add_row(name, Text(well, "green") if missing is None else Text(f"no: {missing}"))
    results.print(table)
