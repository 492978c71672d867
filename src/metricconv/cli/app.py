"""The commands, and how they end: 0 when all is well, 1 for a mistake of one line, 2 for a wrong option."""

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .. import __version__
from .._errors import UserError, lack_of_memory
from .._torchvision import TorchvisionError
from . import mounts
from .balls import balls_command
from .compare import compare_command
from .console import results, say, say_error
from .doctor import doctor_command
from .filtering import filter_command

app = typer.Typer(
    name="metricconv",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog="An error is one line; METRICCONV_TRACEBACK=1 shows where it comes from.",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(__version__, results)
        raise typer.Exit


@app.callback()
def _metricconv(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Filter pictures over the unit balls of a metric, see these balls, and run the paper's experiments."""


_USE, _STUDY = "Pictures", "Experiments and this machine"
app.command("filter", rich_help_panel=_USE)(filter_command)
app.command("balls", rich_help_panel=_USE)(balls_command)
app.command("compare", rich_help_panel=_USE)(compare_command)
app.command("explore", rich_help_panel=_USE)(mounts.explore_command)
for _name, _command in (
    ("reproduce", mounts.reproduce_command),
    ("report", mounts.report_command),
    ("bench", mounts.bench_command),
):
    _options: dict[str, Any] = {"context_settings": mounts.PASS_THROUGH, "add_help_option": False}
    app.command(_name, rich_help_panel=_STUDY, **_options)(_command)
app.command("doctor", rich_help_panel=_STUDY)(doctor_command)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        if "" in arguments:
            raise UserError("an argument is empty (''); it must name something")
        with lack_of_memory():
            app(list(arguments), prog_name="metricconv")
    except SystemExit as leave:
        if isinstance(leave.code, str):
            say(leave.code)
            return 1
        return leave.code or 0
    except (UserError, TorchvisionError, ValueError, OSError) as error:
        if os.environ.get("METRICCONV_TRACEBACK"):
            raise
        say_error(error)
        return 1
    return 0
