"""``metricconv doctor``: what runs here, and why the rest does not."""

import importlib.metadata
import importlib.util

import rich.markup
import rich.table
import torch
import typer

import metricconv as mc

from .._files import versions
from ..ops.functional import BACKENDS
from ..ops.problem import Problem
from .console import results

# What each extra brings, by the names under which it is imported.
EXTRAS = {
    "cpu": ("numba",),
    "images": ("matplotlib", "numpy", "rich", "skimage"),
    "cli": ("typer", "imagecodecs", "tifffile"),
    "large": ("dask", "zarr"),
    "app": ("gradio",),
    "experiments": ("lightning", "torchmetrics", "torchvision"),
}


def doctor_command() -> None:
    """Say what runs here, and why the rest does not.

    Versions, devices, engines and why one refuses, extras that are not installed. Runs a small metric convolution,
    forward and backward, and fails (exit code 1) if that goes wrong.
    """
    table = rich.table.Table(show_header=False, box=None)
    for name, value in (versions() | devices()).items():
        table.add_row(name, value)
    results.print(table)
    table = rich.table.Table("engine", "state", title="engines", title_justify="left")
    for name, missing in engines().items():
        table.add_row(name, "[green]ready[/]" if missing is None else f"no: {rich.markup.escape(missing)}")
    results.print(table)
    extras = rich.table.Table("extra", "state", title="extras", title_justify="left")
    for name, modules in EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"no {', '.join(absent)}: pip install 'metricconv\\[{name}]'" if absent else "[green]installed[/]"
        extras.add_row(name, state)
    results.print(extras)
    problem = trial()
    results.print("a metric convolution, forward and backward: " + (problem or "[green]works[/]"))
    if problem:
        raise typer.Exit(1)


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


def engines() -> dict[str, str | None]:
    """Return, for each engine, what it lacks to run here; None where it can."""
    report = getattr(mc, "backend_report", None)
    if report is not None:
        return {engine.name: engine.missing for engine in report().engines}
    return _refusals("cuda" if torch.cuda.is_available() else "cpu")


def _refusals(device: str) -> dict[str, str | None]:
    """Return why engines cannot compute an ordinary tangent ball on a device."""
    x, weight = torch.zeros(1, 1, 5, 5, device=device), torch.zeros(1, 1, 3, 3, device=device)
    metric = mc.Randers.isotropic(1.0).map(lambda t: t.expand(1, 1, -1, 5, 5).to(device))
    support = mc.TangentBall(metric, mc.stencils.onion(3).to(device))
    problem = Problem(x, support, weight, None, (1, 1), (1, 1), 1, None, "zeros")
    return {name: engine.refusal(problem) for name, engine in BACKENDS.items()}


def trial() -> str:
    """Run a small layer; return what went wrong, or nothing."""
    try:
        layer = mc.nn.MetricConv2d(2, 3, 3, padding=1)
        x = torch.rand(1, 2, 8, 8, requires_grad=True)
        layer(x).square().sum().backward()
        finite = x.grad is not None and bool(torch.isfinite(x.grad).all())
        return "" if finite else "its gradient is not finite"
    except Exception as error:  # whatever it is, it is what the user came to hear
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
