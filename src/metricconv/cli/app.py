"""The commands and their exit codes: 0 for success, 1 for an error, 2 for a wrong option."""

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .. import __version__
from .._errors import UserError, out_of_memory_as_user_error
from .._torchvision import TorchvisionError
from . import external
from .balls import balls_command
from .compare import compare_command
from .console import print_error, print_line, results
from .denoising import denoise_command
from .doctor import doctor_command
from .filtering import filter_command
from .paths import path_command
from .regions import interpolate_command, segment_command, superpixels_command
from .warmup import warmup_command

__all__ = ["app", "run"]

app = typer.Typer(
    name="metricconv",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="Errors are printed in one line; set METRICCONV_TRACEBACK=1 to see tracebacks.",
)


def _version(requested: bool) -> None:
    if requested:
        print_line(__version__, results)
        raise typer.Exit


@app.callback()
def _metricconv(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Filter images over metric unit balls, plot these balls, and run the experiments of the paper."""


_IMAGES, _EXPERIMENTS = "Images", "Experiments and diagnostics"
app.command("denoise", rich_help_panel=_IMAGES)(denoise_command)
app.command("filter", rich_help_panel=_IMAGES)(filter_command)
app.command("balls", rich_help_panel=_IMAGES)(balls_command)
app.command("compare", rich_help_panel=_IMAGES)(compare_command)
app.command("path", rich_help_panel=_IMAGES)(path_command)
app.command("segment", rich_help_panel=_IMAGES)(segment_command)
app.command("superpixels", rich_help_panel=_IMAGES)(superpixels_command)
app.command("interpolate", rich_help_panel=_IMAGES)(interpolate_command)
app.command("explore", rich_help_panel=_IMAGES)(external.explore_command)
for _name, _command in (
    ("reproduce", external.reproduce_command),
    ("report", external.report_command),
):
    _options: dict[str, Any] = {"context_settings": external.PASS_THROUGH, "add_help_option": False}
    app.command(_name, rich_help_panel=_EXPERIMENTS, **_options)(_command)
app.command("doctor", rich_help_panel=_EXPERIMENTS)(doctor_command)
app.command("warmup", rich_help_panel=_EXPERIMENTS)(warmup_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        if "" in arguments:
            raise UserError("arguments must not be empty, got ''")
        with out_of_memory_as_user_error():
            app(list(arguments), prog_name="metricconv")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print_line(stop.code)
            return 1
        return stop.code or 0
    except (UserError, TorchvisionError, ValueError, OSError) as error:
        if os.environ.get("METRICCONV_TRACEBACK"):
            raise
        print_error(error)
        return 1
    return 0
