"""Commands that live elsewhere, loaded when they are called: ``reproduce``, ``report``, ``bench``, ``explore``."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from .._errors import UserError
from .console import say

# Each has an ``app`` of typer commands.
EXPERIMENTS = ("metricconv.experiments.denoising.commands", "metricconv.experiments.classification.commands")
REPORT = "metricconv.experiments.report"

# All arguments, --help too, go to the command as they are.
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def reproduce_command(context: typer.Context) -> None:
    """Run an experiment of the paper again; `metricconv reproduce --help` lists them."""
    commands = typer.Typer(
        no_args_is_help=True, add_completion=False, help="The paper's experiments: a row of a table is a command."
    )
    commands.callback()(lambda: None)  # so that even a single experiment is called by its name
    missing = []
    for name in EXPERIMENTS:
        try:
            commands.registered_commands += load(name, "experiments").app.registered_commands
        except UserError as error:
            missing.append(str(error))
    if len(missing) == len(EXPERIMENTS):
        raise UserError(missing[0])
    for text in missing:
        say(f"note: {text}", style="dim")
    try:
        commands(context.args, prog_name="metricconv reproduce")
    except ModuleNotFoundError as error:  # commands import Lightning only when they train
        raise _not_installed("metricconv reproduce", error, "experiments") from error


def report_command(context: typer.Context) -> None:
    """Write the tables and figures of experiments anew, from the CSVs that they have left."""
    commands = typer.Typer(add_completion=False)
    commands.registered_commands += load(REPORT, "experiments").app.registered_commands
    commands(context.args, prog_name="metricconv report")


def bench_command(context: typer.Context) -> None:
    """Measure the engines on this machine, correctness first."""
    load("metricconv.bench.__main__", "images").main(context.args, "metricconv bench")


def explore_command(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 7860,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A trained network whose layers' balls to see.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Open a page to play with: click a pixel and see its balls.

    Move the metric's knobs, see the picture filtered, look into a trained network. It answers on this machine alone
    (127.0.0.1), and asks nothing of any other.
    """
    if checkpoint is not None and checkpoint.is_dir():
        raise UserError(f"--checkpoint {checkpoint}: is a folder; name the file in it")
    load("metricconv.app", "app").launch(port=port, checkpoint=checkpoint, browser=browser)


def load(name: str, extra: str) -> ModuleType:
    """Import a part of the library, or say in one line what it lacks."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _not_installed(name, error, extra) from None


def _not_installed(name: str, error: ModuleNotFoundError, extra: str) -> UserError:
    """Return the error for a part of the library that cannot be imported."""
    if (error.name or "").startswith("metricconv"):
        return UserError(f"{name} is not part of this installation of metricconv")
    return UserError(f"{name} needs {error.name}: pip install 'metricconv[{extra}]'")
