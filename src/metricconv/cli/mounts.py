"""Commands of other packages, imported when called: ``reproduce``, ``report``, ``bench``, ``explore``."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from .._errors import UserError
from .console import print_line

# Modules with a typer ``app``.
EXPERIMENTS = (
    "metricconv.experiments.denoising.commands",
    "metricconv.experiments.classification.commands",
    "metricconv.experiments.lattice.commands",
)
REPORT = "metricconv.experiments.report"

# All arguments, including --help, are passed on unchanged.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def reproduce_command(context: typer.Context) -> None:
    """Run an experiment of the paper; `metricconv reproduce --help` lists them."""
    commands = typer.Typer(
        no_args_is_help=True, add_completion=False, help="Experiments of the paper, one command per table row."
    )
    commands.callback()(lambda: None)  # so that a single experiment is still called by its name
    missing = []
    for name in EXPERIMENTS:
        try:
            commands.registered_commands += load(name, "experiments").app.registered_commands
        except UserError as error:
            missing.append(str(error))
    if len(missing) == len(EXPERIMENTS):
        raise UserError(missing[0])
    for text in missing:
        print_line(f"note: {text}", style="dim")
    try:
        commands(context.args, prog_name="metricconv reproduce")
    except ModuleNotFoundError as error:  # commands import Lightning only when they train
        raise _not_installed("metricconv reproduce", error, "experiments") from error


def report_command(context: typer.Context) -> None:
    """Regenerate the tables and figures of experiments from their CSV files."""
    commands = typer.Typer(add_completion=False)
    commands.registered_commands += load(REPORT, "experiments").app.registered_commands
    commands(context.args, prog_name="metricconv report")


def bench_command(context: typer.Context) -> None:
    """Benchmark the backends on this machine, after checking their correctness."""
    load("metricconv.bench.__main__", "images").main(context.args, "metricconv bench")


def explore_command(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the local server; 0 for any free port.")
    ] = 7860,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Checkpoint of a trained network whose unit balls to show.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open an interactive page that shows the unit balls of a clicked pixel.

    It also shows the filtered image and the unit balls of a trained network as parameters change. The server listens
    on 127.0.0.1 only and makes no network requests.
    """
    if checkpoint is not None and checkpoint.is_dir():
        raise UserError(f"--checkpoint {checkpoint}: is a folder, expected a file")
    load("metricconv.app", "app").launch(port=port, checkpoint=checkpoint, browser=browser)


def load(name: str, extra: str) -> ModuleType:
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
