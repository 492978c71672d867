"""Commands that need other packages, imported when called: ``reproduce``, ``report``, ``explore``."""

import importlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from .._errors import UserError

__all__ = [
    "EXPERIMENTS_MISSING",
    "PASS_THROUGH",
    "entry_points",
    "explore_command",
    "import_extra",
    "report_command",
    "reproduce_command",
    "run_entry_point",
]

EXPERIMENTS_MISSING = "the experiments are not installed: pip install ./experiments in a checkout of metricconv"

# All arguments, including --help, are passed on unchanged.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def reproduce_command(context: typer.Context) -> None:
    """Run an experiment of the paper; `metricconv reproduce --help` lists them."""
    run_entry_point("reproduce", context.args)


def report_command(context: typer.Context) -> None:
    """Regenerate the tables and figures of experiments from their CSV files."""
    run_entry_point("report", context.args)


def entry_points(name: str, group: str = "metricconv.commands") -> Sequence[importlib.metadata.EntryPoint]:
    """Return the entry points of this name in other distributions, none if the experiments are not installed."""
    return tuple(importlib.metadata.entry_points(group=group, name=name))


def run_entry_point(name: str, arguments: list[str]) -> None:
    """Run the typer app that an entry point refers to."""
    found = entry_points(name)
    if not found:
        raise UserError(f"metricconv {name}: {EXPERIMENTS_MISSING}")
    try:
        found[0].load()(arguments, prog_name=f"metricconv {name}")
    except ModuleNotFoundError as error:
        message = f"metricconv {name} needs {error.name}: pip install ./experiments in a checkout of metricconv"
        raise UserError(message) from error


def explore_command(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the local server; 0 for any free port.")
    ] = 7860,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Checkpoint of a trained network, to show the balls of its layers."),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open an interactive page that shows the unit balls of a clicked pixel.

    It also shows the filtered image and the unit balls of a trained network as parameters change. The server listens
    on 127.0.0.1 only and makes no network requests.
    """
    if checkpoint is not None and checkpoint.is_dir():
        raise UserError(f"--checkpoint {checkpoint}: is a folder, expected a file")
    import_extra("metricconv.app", "app").launch(port=port, checkpoint=checkpoint, browser=browser)


def import_extra(name: str, extra: str) -> ModuleType:
    """Import a module of the library; raise a ``UserError`` that names the extra if a dependency is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_installed(name, error, extra) from None


def _not_installed(name: str, error: ModuleNotFoundError, extra: str) -> UserError:
    """Return the error for a module that cannot be imported."""
    if (error.name or "").startswith("metricconv"):
        return UserError(f"{name} is not part of this installation of metricconv")
    return UserError(f"{name} needs {error.name}: pip install 'metricconv[{extra}]'")
